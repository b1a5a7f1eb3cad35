//! JSON that a terminal can show.
//!
//! Refuses to write DEL and the C1 control characters as they are: JSON allows that, but some
//! terminals take them for the beginning of a command, and they come from the network.

use std::io::{self, Write};

use serde_json::ser::Formatter;

/// As compact as serde_json writes it.
pub(crate) struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        // Nearly every text. Controls below DEL are escaped by serde_json. No early end: that
        // would cost more than it saves.
        if fragment.bytes().fold(true, |plain, byte| plain & (byte < 0x7f)) {
            return writer.write_all(fragment.as_bytes());
        }
        let mut written = 0;
        for (at, control) in fragment.match_indices(char::is_control) {
            writer.write_all(&fragment.as_bytes()[written..at])?;
            for character in control.chars() {
                write!(writer, "\\u{:04x}", u32::from(character))?;
            }
            written = at + control.len();
        }
        writer.write_all(&fragment.as_bytes()[written..])
    }
}
