//! Lines for the operator, on standard error. Refuses to fail.

use std::io::Write;

/// One line for the operator. Where nobody reads it any more, the bridge goes on.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "mmtls: {text}");
}
