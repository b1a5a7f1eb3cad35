//! How a result file is laid out: an entry of a list on a line, as far as series, so that people and `git diff` can read it.
//!
//! Refuses nothing: what is written is JSON in any case.

use std::io::{Result, Write};

use serde::Serialize;
use serde_json::ser::Formatter;

/// How deep entries get lines of their own: file, figures, figure; and the lists of a figure.
const DEPTH: usize = 3;

/// The text of a file.
pub fn text(value: &impl Serialize) -> std::result::Result<String, String> {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, Layout::default());
    value.serialize(&mut serializer).map_err(|error| error.to_string())?;
    text.push(b'\n');
    String::from_utf8(text).map_err(|error| error.to_string())
}

/// Whether entries of each list or object that is open stand on lines of their own, and whether it has any.
#[derive(Default)]
struct Layout {
    open: Vec<(bool, bool)>,
}

impl Layout {
    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, is_list: bool) -> Result<()> {
        let depth = self.open.len();
        let broken = depth < DEPTH || (is_list && depth == DEPTH);
        self.open.push((broken && self.open.iter().all(|(broken, _)| *broken), false));
        writer.write_all(if is_list { b"[" } else { b"{" })
    }

    fn entry<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        let depth = self.open.len();
        if let Some((broken, filled)) = self.open.last_mut() {
            *filled = true;
            if *broken {
                return line(writer, depth);
            }
        }
        Ok(())
    }

    fn end<W: ?Sized + Write>(&mut self, writer: &mut W, with: &[u8]) -> Result<()> {
        if self.open.pop() == Some((true, true)) {
            line(writer, self.open.len())?;
        }
        writer.write_all(with)
    }
}

fn line<W: ?Sized + Write>(writer: &mut W, depth: usize) -> Result<()> {
    writer.write_all(b"\n")?;
    writer.write_all(" ".repeat(depth).as_bytes())
}

impl Formatter for Layout {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.begin(writer, true)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        self.entry(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.begin(writer, false)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        self.entry(writer, first)
    }
}
