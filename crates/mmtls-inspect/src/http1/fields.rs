//! The lines and fields of a head of HTTP/1 as rules see them: read again from what was sent, as libhtp
//! reads it. Clients and the observer pass over lines that are no fields; rules look into those too.
//!
//! Compared with libhtp 0.5.47: the same for heads whose lines end with LF or CR LF. Where other line ends
//! stand alone, libhtp may take the head to end elsewhere than the observer does.
//!
//! Refuses more than [`MAX_FIELDS`] fields, [`MAX_REPETITIONS`] repetitions and [`MAX_LINES`] lines, of which
//! the rest is passed over.

use std::borrow::Cow;

use crate::event::Side;

/// Most fields of different names. Also what Suricata is shipped with.
const MAX_FIELDS: usize = 1024;
/// Most fields that repeat a name for more than the second time.
const MAX_REPETITIONS: usize = 64;

/// Most lines that are looked at: each name is compared with those before it, each fold copies what it goes on.
const MAX_LINES: usize = 2048;

/// The lines of a head without their ends: LF, CR, or both.
pub(crate) struct Lines<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        // A CR ends a line unless an LF or another CR follows; LF CR is one end, not two.
        let is_end = |at: usize| match self.0[at..] {
            [b'\n', ..] | [b'\r'] => true,
            [b'\r', next, ..] => !matches!(next, b'\r' | b'\n'),
            _ => false,
        };
        let end = (0..self.0.len()).find(|&at| is_end(at));
        let (line, rest) = self.0.split_at(end.map_or(self.0.len(), |end| end + 1));
        self.0 = match rest {
            [b'\r', behind @ ..] if !behind.starts_with(b"\n") => behind,
            _ => rest,
        };
        let ends = line.iter().rev().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        Some(&line[..line.len() - ends])
    }
}

struct Field<'a> {
    name: Cow<'a, [u8]>,
    value: Cow<'a, [u8]>,
    /// Others behind it have the same name.
    repeated: bool,
}

/// The fields of a head.
pub(crate) struct Http1Fields<'a> {
    side: Side,
    /// In the order of their first appearance.
    fields: Vec<Field<'a>>,
    /// The place of the field that is repeated, and the value that joins its own.
    repeated: Vec<(usize, Cow<'a, [u8]>)>,
    repetitions: usize,
    /// Something was passed over.
    pub(crate) is_cut: bool,
}

impl<'a> Http1Fields<'a> {
    /// Reads the lines behind a start line.
    pub(crate) fn read(side: Side, is_http11: bool, lines: Lines<'a>) -> Self {
        let (fields, repeated) = (Vec::new(), Vec::new());
        let mut out = Self { side, fields, repeated, repetitions: 0, is_cut: false };
        let mut open: Option<Cow<'a, [u8]>> = None;
        for (number, line) in lines.filter(|line| !line.is_empty()).enumerate() {
            if number == MAX_LINES {
                out.is_cut = true;
                break;
            }
            let folded = matches!(line[0], b' ' | b'\t' | 0);
            open = Some(match open.take() {
                // Browsers take such a line for the next field.
                Some(before)
                    if folded
                        && side == Side::Server
                        && is_http11
                        && before.contains(&b':')
                        && line.contains(&b':') =>
                {
                    out.add(before);
                    Cow::Borrowed(&line[1..])
                }
                Some(before) if folded => Cow::Owned([&before[..], line].concat()),
                Some(before) => {
                    out.add(before);
                    Cow::Borrowed(line)
                }
                None => {
                    let folds = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | 0));
                    Cow::Borrowed(&line[folds.count()..])
                }
            });
        }
        if let Some(last) = open {
            out.add(last);
        }
        out
    }

    /// Each field with its values, which are to be joined.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], impl Iterator<Item = &[u8]>)> {
        self.fields.iter().enumerate().map(|(at, field)| {
            let repeated = if field.repeated { &self.repeated[..] } else { &[] };
            let further = repeated.iter().filter(move |(of, _)| *of == at);
            let values = core::iter::once(&field.value).chain(further.map(|(_, value)| value));
            (&field.name[..], values.map(|value| &value[..]))
        })
    }

    fn add(&mut self, line: Cow<'a, [u8]>) {
        let (name, value) = match line {
            Cow::Borrowed(line) => {
                let (name, value) = split(self.side, line);
                (Cow::Borrowed(name), Cow::Borrowed(value))
            }
            Cow::Owned(line) => {
                let (name, value) = split(self.side, &line);
                (Cow::Owned(name.to_vec()), Cow::Owned(value.to_vec()))
            }
        };
        let known = self.fields.iter().position(|field| field.name.eq_ignore_ascii_case(&name));
        let Some(at) = known else {
            if self.fields.len() < MAX_FIELDS {
                self.fields.push(Field { name, value, repeated: false });
            } else {
                self.is_cut = true;
            }
            return;
        };
        if self.fields[at].repeated {
            if self.repetitions == MAX_REPETITIONS {
                self.is_cut = true;
                return;
            }
            self.repetitions += 1;
        }
        self.fields[at].repeated = true;
        // Of several lengths the first one counts.
        if !name.eq_ignore_ascii_case(b"content-length") {
            self.repeated.push((at, value));
        }
    }
}

/// White space of C, which has one more than that of Rust.
pub(crate) fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Name and value of a field. What is no field is the value of one without a name.
fn split(side: Side, line: &[u8]) -> (&[u8], &[u8]) {
    let is_blank = |byte: u8| matches!(byte, b' ' | b'\t');
    let is_behind_name = |byte: u8| match side {
        Side::Client => is_blank(byte),
        Side::Server => is_space(byte),
    };
    let colon = line
        .iter()
        .position(|&byte| byte == b':' || side == Side::Client && byte == 0)
        .filter(|&at| line[at] == b':');
    let (name, value) = match colon {
        None if side == Side::Client => return (b"", line),
        None => (&line[..0], line),
        Some(colon) => (&line[..colon], &line[colon + 1..]),
    };
    let name_end = name.iter().rposition(|&byte| !is_behind_name(byte)).map_or(0, |at| at + 1);
    let start = value.iter().position(|&byte| !is_blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|&byte| !is_blank(byte)).map_or(start, |at| at + 1);
    (&name[..name_end], &value[start..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_lines_without_end() {
        // Each fold copies what was before it.
        let folds = |count: usize| {
            let text = [&b"a: b\n"[..], &b" c\n".repeat(count)].concat();
            Http1Fields::read(Side::Client, true, Lines(&text)).is_cut
        };
        assert!(!folds(MAX_LINES - 1) && folds(MAX_LINES));
        let distinct = |count: usize| {
            let text: Vec<u8> = (0..count).flat_map(|at| format!("{at}:\n").into_bytes()).collect();
            let fields = Http1Fields::read(Side::Client, true, Lines(&text));
            (fields.iter().count(), fields.is_cut)
        };
        assert_eq!(distinct(MAX_FIELDS), (MAX_FIELDS, false));
        assert_eq!(distinct(20 * MAX_FIELDS), (MAX_FIELDS, true));
    }
}
