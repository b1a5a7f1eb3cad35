//! One line on stderr.

use std::io::{self, Write};

/// Says something as `mmtls COMMAND`. A closed stderr must not end the agent.
pub fn say(command: &str, text: &str) {
    let _ = writeln!(io::stderr(), "mmtls {command}: {text}");
}
