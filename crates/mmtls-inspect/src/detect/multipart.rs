//! The parts of a body of type multipart/form-data (RFC 7578; RFC 2046, section 5.1), as it comes.
//!
//! A delimiter is a line that starts with two hyphens and the boundary, and holds nothing else but blanks
//! or, at the end of all parts, two more hyphens. Where servers may read a body differently, or it is
//! malformed, or something stands around its parts, that is said once, and it is gone on with one reading: who
//! must not miss anything looks into the whole body then. Refuses to keep more of a body than the head of a part, to look into parts that
//! are multipart themselves, and to undo codings of a part.

use super::part_head::PartHead;

/// Longest head of a part, in bytes.
pub(crate) const MAX_PART_HEAD: usize = 8 << 10;
/// Most blanks behind a delimiter.
const MAX_PADDING: usize = 128;

/// What comes next in a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part<'a> {
    /// A part begins.
    Begin {
        /// Of the field of the form.
        name: Option<&'a [u8]>,
        /// Not all files have one.
        filename: Option<&'a [u8]>,
        /// A server may take the part for a file.
        may_be_file: bool,
        /// A server may take a coding off, which is left here.
        may_be_coded: bool,
    },
    /// Bytes of the part. Never empty.
    Data(&'a [u8]),
    /// The part ends.
    End,
    /// Malformed, or to be read in more than one way. Comes once at most.
    Fault,
}

type Sink<'s> = dyn FnMut(Part<'_>) + 's;

/// What the bytes between two delimiters are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// In front of all parts: nothing, or what only servers with another boundary read.
    Preamble,
    Part,
    /// Behind all parts: the same.
    Epilogue,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// At the start of a line, so many bytes of which are those of a delimiter.
    LineStart(usize),
    /// In a line that is no delimiter.
    Line,
    /// Behind hyphens and boundary.
    BehindBoundary,
    /// In the head of a part.
    Head,
}

/// The reader of one body.
pub(crate) struct Multipart {
    /// Two hyphens and the boundary.
    delimiter: Vec<u8>,
    place: Place,
    state: State,
    /// The end of the line before, or its first byte: it belongs to the delimiter if one follows.
    line_end: &'static [u8],
    /// What is behind the boundary in a line, or the head of a part.
    held: Vec<u8>,
    /// Where the last line of a head in `held` starts.
    held_line: usize,
    faulty: bool,
}

impl Multipart {
    /// Reads a body from its start. See [`super::part_head::boundary_of`].
    pub(crate) fn new(boundary: &[u8]) -> Self {
        Self {
            delimiter: [b"--", boundary].concat(),
            place: Place::Preamble,
            state: State::LineStart(0),
            line_end: b"",
            held: Vec::new(),
            held_line: 0,
            faulty: false,
        }
    }

    /// The next bytes of the body, cut anywhere.
    pub(crate) fn data(&mut self, mut bytes: &[u8], sink: &mut Sink<'_>) {
        while let [next, rest @ ..] = bytes {
            match self.state {
                State::LineStart(matched) if self.delimiter.get(matched) == Some(next) => {
                    bytes = rest;
                    self.state = if matched + 1 == self.delimiter.len() {
                        State::BehindBoundary
                    } else {
                        State::LineStart(matched + 1)
                    };
                }
                State::LineStart(_) => self.no_delimiter(sink),
                State::Line => bytes = self.line(bytes, sink),
                State::BehindBoundary => {
                    if self.behind_boundary(*next, sink) {
                        bytes = rest;
                    }
                }
                State::Head => bytes = self.head(bytes, sink),
            }
        }
    }

    /// The body is over.
    pub(crate) fn end(&mut self, sink: &mut Sink<'_>) {
        match self.state {
            State::LineStart(_) | State::BehindBoundary => self.no_delimiter(sink),
            State::Line => self.show_line_end(sink),
            State::Head => self.head_without_end(sink),
        }
        if self.place != Place::Epilogue {
            self.fault(sink);
        }
        self.part_over(sink);
        self.place = Place::Epilogue;
        self.state = State::Line;
    }

    fn fault(&mut self, sink: &mut Sink<'_>) {
        if !self.faulty {
            self.faulty = true;
            sink(Part::Fault);
        }
    }

    fn show(&mut self, bytes: &[u8], sink: &mut Sink<'_>) {
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        if self.place != Place::Part {
            if !self.faulty && !bytes.iter().all(is_blank) {
                self.fault(sink);
            }
        } else if !bytes.is_empty() {
            sink(Part::Data(bytes));
        }
    }

    fn show_line_end(&mut self, sink: &mut Sink<'_>) {
        let line_end = core::mem::take(&mut self.line_end);
        self.show(line_end, sink);
    }

    fn part_over(&self, sink: &mut Sink<'_>) {
        if self.place == Place::Part {
            sink(Part::End);
        }
    }

    /// The line is none, as far as it was matched.
    fn no_delimiter(&mut self, sink: &mut Sink<'_>) {
        self.show_line_end(sink);
        let matched = match self.state {
            State::LineStart(matched) => matched,
            _ => {
                // Some servers do not look at what follows the boundary.
                self.fault(sink);
                self.delimiter.len()
            }
        };
        let delimiter = core::mem::take(&mut self.delimiter);
        self.show(&delimiter[..matched], sink);
        self.delimiter = delimiter;
        let held = core::mem::take(&mut self.held);
        self.show(&held, sink);
        self.state = State::Line;
    }

    /// Shows bytes up to a line that may be a delimiter; returns what is left.
    fn line<'b>(&mut self, bytes: &'b [u8], sink: &mut Sink<'_>) -> &'b [u8] {
        if self.line_end == b"\r" {
            if let [b'\n', rest @ ..] = bytes {
                self.line_end = b"\r\n";
                self.state = State::LineStart(0);
                return rest;
            }
            self.show_line_end(sink);
        }
        let mut searched = 0;
        while let Some(len) = bytes[searched..].iter().position(|&byte| byte == b'\n') {
            searched += len + 1;
            if matches!(bytes.get(searched), None | Some(b'-')) {
                let (lines, rest) = bytes.split_at(searched);
                let lines = match lines {
                    [lines @ .., b'\r', b'\n'] => {
                        self.line_end = b"\r\n";
                        lines
                    }
                    _ => {
                        self.line_end = b"\n";
                        &lines[..lines.len() - 1]
                    }
                };
                self.show(lines, sink);
                self.state = State::LineStart(0);
                return rest;
            }
        }
        match bytes {
            [lines @ .., b'\r'] => {
                self.show(lines, sink);
                self.line_end = b"\r";
            }
            _ => self.show(bytes, sink),
        }
        &[]
    }

    /// Takes a byte behind the boundary; false if the line is no delimiter.
    fn behind_boundary(&mut self, byte: u8, sink: &mut Sink<'_>) -> bool {
        let has_room = self.held.len() < MAX_PADDING;
        match (&self.held[..], byte) {
            ([.., b'\r'], b'\n') => self.delimiter(false, sink),
            ([b'-'], b'-') => self.delimiter(true, sink),
            ([.., b'\r'] | [b'-'], _) => {
                self.no_delimiter(sink);
                return false;
            }
            (_, b'\n') => {
                self.fault(sink);
                self.delimiter(false, sink);
            }
            ([], b'-') | (_, b' ' | b'\t' | b'\r') if has_room => self.held.push(byte),
            _ => {
                self.no_delimiter(sink);
                return false;
            }
        }
        true
    }

    /// There is a delimiter, the last one or another.
    fn delimiter(&mut self, is_last: bool, sink: &mut Sink<'_>) {
        // Not all servers end lines so.
        if self.line_end == b"\n" {
            self.fault(sink);
        }
        self.line_end = b"";
        self.held.clear();
        self.held_line = 0;
        self.part_over(sink);
        if self.place == Place::Epilogue {
            // Parts behind the last one.
            self.fault(sink);
            self.state = State::Line;
        } else if is_last {
            self.place = Place::Epilogue;
            self.state = State::Line;
        } else {
            self.state = State::Head;
        }
    }

    /// Collects the head of a part; returns what is left.
    fn head<'b>(&mut self, bytes: &'b [u8], sink: &mut Sink<'_>) -> &'b [u8] {
        let room = (MAX_PART_HEAD - self.held.len()).min(bytes.len());
        let end = bytes[..room].iter().position(|&byte| byte == b'\n');
        let (taken, rest) = bytes.split_at(end.map_or(room, |end| end + 1));
        self.held.extend_from_slice(taken);
        if end.is_some() {
            let line = &self.held[self.held_line..self.held.len() - 1];
            let has_cr = line.ends_with(b"\r");
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                self.begin(has_cr, sink);
                self.state = State::LineStart(0);
                return rest;
            }
            if let Some(behind) = line.strip_prefix(&self.delimiter[..]) {
                let is_last = behind.starts_with(b"--");
                if is_last || behind.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
                    self.held.truncate(self.held_line);
                    self.fault(sink);
                    self.begin(has_cr, sink);
                    self.delimiter(is_last, sink);
                    return rest;
                }
            }
            if !has_cr {
                self.fault(sink);
            }
            self.held_line = self.held.len();
        }
        if self.held.len() == MAX_PART_HEAD {
            self.head_without_end(sink);
        }
        rest
    }

    /// What is held is the whole head of a part.
    fn begin(&mut self, has_cr: bool, sink: &mut Sink<'_>) {
        let head = PartHead::read(&self.held);
        if !has_cr || head.is_faulty {
            self.fault(sink);
        }
        self.held.clear();
        self.held_line = 0;
        self.place = Place::Part;
        let (name, filename) = (head.name.as_deref(), head.filename.as_deref());
        let (may_be_file, may_be_coded) = (head.may_be_file(), head.is_coded);
        sink(Part::Begin { name, filename, may_be_file, may_be_coded });
    }

    /// What is held may be anything.
    fn head_without_end(&mut self, sink: &mut Sink<'_>) {
        self.fault(sink);
        self.place = Place::Part;
        // Whoever hears of a fault takes all of the body for a file. What is left of a head may name a coding.
        let may_be_coded = self.held.len() == MAX_PART_HEAD;
        sink(Part::Begin { name: None, filename: None, may_be_file: false, may_be_coded });
        let held = core::mem::take(&mut self.held);
        self.show(&held, sink);
        self.held_line = 0;
        self.state = if held.ends_with(b"\n") { State::LineStart(0) } else { State::Line };
    }
}
