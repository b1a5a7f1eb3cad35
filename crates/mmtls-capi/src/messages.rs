//! What operators should know while contexts run: to the application, or to standard error.
//!
//! Refuses to keep any of it.

use std::ffi::CString;
use std::io::Write;

use crate::types::mmtls_message_cb;
use crate::{current, handle};

/// Where it goes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Messages(pub(crate) mmtls_message_cb);

impl Messages {
    /// Tells a line, on the thread of this context.
    pub(crate) fn tell(self, context: usize, line: &str) {
        let Some(callback) = self.0 else {
            // There is nobody to tell that it cannot be written.
            let _ = writeln!(std::io::stderr(), "mmtls: {line}");
            return;
        };
        let text = CString::new(line.replace('\0', "?")).unwrap_or_default();
        current::during_none(|| {
            // SAFETY: the application registered it as a function of this type.
            unsafe { callback(handle::handle_of(context), text.as_ptr()) }
        });
    }
}
