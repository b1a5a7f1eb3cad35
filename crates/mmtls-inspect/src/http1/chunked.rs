//! Streaming decoder of the chunked transfer coding (RFC 9112, section 7.1).
//!
//! Body bytes are borrowed from the input. Accepts what some client accepts, and says so: a bare LF
//! where CRLF is due, anything between a size and its line end (curl), and white space and empty lines before a
//! size (browsers). Extensions and trailers
//! have no cap here, since none of them is kept. Refuses sizes beyond 64 bits.

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    Extension,
    Data,
    DataEnd,
    Trailer,
}

/// Where in the coding a body is.
pub(crate) struct Chunked {
    state: State,
    /// The size being read, then data bytes left.
    size: u64,
    digits: u8,
    /// Whether the current trailer field line is empty so far.
    empty_field: bool,
    after_cr: bool,
    pub(crate) faults: Faults,
}

/// What was wrong so far.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Faults {
    /// A size, an extension or a trailer ended with a bare LF.
    pub(crate) bare_line_feed: bool,
    /// Something else than an extension followed a size, white space stood before it, or a bare LF is in one.
    pub(crate) bad_size: bool,
    /// The data of a chunk ended with a bare LF.
    pub(crate) bad_end: bool,
}

/// What the next bytes are.
pub(crate) enum Step<'a> {
    /// All input was used; the body goes on.
    More,
    /// Something is wrong that was not before; so much input was used.
    Fault(usize),
    /// Body bytes, and how much input was used.
    Data(&'a [u8], usize),
    /// A part of the trailers, and of the empty line behind them; the coding may end there.
    Trailers { bytes: &'a [u8], used: usize, is_last: bool },
    /// Not the chunked coding from this byte on.
    Bad(usize),
}

enum Byte {
    Ok,
    Done,
    Bad,
}

impl Chunked {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Size,
            size: 0,
            digits: 0,
            empty_field: true,
            after_cr: false,
            faults: Faults::default(),
        }
    }

    /// Looks at the input up to the next thing worth telling.
    pub(crate) fn step<'a>(&mut self, input: &'a [u8]) -> Step<'a> {
        let mut at = 0;
        while at < input.len() {
            if self.state == State::Data {
                let left = usize::try_from(self.size).unwrap_or(usize::MAX);
                let end = at + left.min(input.len() - at);
                self.size -= (end - at) as u64;
                if self.size == 0 {
                    self.state = State::DataEnd;
                }
                return Step::Data(&input[at..end], end);
            }
            if self.state == State::Trailer {
                return self.trailers(input, at);
            }
            let before = self.faults;
            match self.byte(input[at]) {
                Byte::Ok if self.faults != before => return Step::Fault(at + 1),
                Byte::Ok | Byte::Done => at += 1,
                Byte::Bad => return Step::Bad(at),
            }
        }
        Step::More
    }

    fn trailers<'a>(&mut self, input: &'a [u8], start: usize) -> Step<'a> {
        let (mut at, mut is_last) = (start, false);
        while let Some(&byte) = input.get(at).filter(|_| !is_last) {
            match self.byte(byte) {
                Byte::Ok => at += 1,
                Byte::Done => (at, is_last) = (at + 1, true),
                Byte::Bad if at == start => return Step::Bad(at),
                // It comes again.
                Byte::Bad => break,
            }
        }
        Step::Trailers { bytes: &input[start..at], used: at, is_last }
    }

    fn byte(&mut self, byte: u8) -> Byte {
        // A CR means something only right before a LF.
        if self.after_cr && byte != b'\n' {
            match self.state {
                State::Size => self.pass_over_size_line(),
                State::Extension => {}
                _ => return Byte::Bad,
            }
        }
        if byte == b'\r' {
            if self.state == State::Size && self.digits == 0 {
                self.faults.bad_size = true;
            } else {
                self.after_cr = true;
            }
            return Byte::Ok;
        }
        let line_end = byte == b'\n';
        let is_bare = line_end && !self.after_cr;
        if line_end {
            match self.state {
                State::DataEnd => self.faults.bad_end |= is_bare,
                _ => self.faults.bare_line_feed |= is_bare,
            }
        }
        self.after_cr = false;
        match self.state {
            State::Size if line_end && self.digits > 0 => self.size_complete(),
            State::Size => {
                if let Some(digit) = (byte as char).to_digit(16) {
                    if self.digits == 16 {
                        return Byte::Bad;
                    }
                    self.digits += 1;
                    self.size = self.size << 4 | u64::from(digit);
                } else if self.digits == 0 && matches!(byte, b'\n' | b' ' | b'\t' | 0x0b | 0x0c) {
                    self.faults.bad_size = true;
                } else if self.digits == 0 {
                    return Byte::Bad;
                } else if matches!(byte, b';' | b' ' | b'\t') {
                    self.state = State::Extension;
                } else {
                    self.pass_over_size_line();
                }
                Byte::Ok
            }
            State::Extension if line_end => {
                // Who waits for CRLF takes what follows for a part of the extension.
                self.faults.bad_size |= is_bare;
                self.size_complete()
            }
            State::Extension => Byte::Ok,
            // `Data` is handled by the caller.
            State::Data | State::DataEnd => {
                if !line_end {
                    return Byte::Bad;
                }
                self.state = State::Size;
                self.digits = 0;
                self.size = 0;
                Byte::Ok
            }
            State::Trailer => {
                if line_end && self.empty_field {
                    return Byte::Done;
                }
                self.empty_field = line_end;
                Byte::Ok
            }
        }
    }

    fn pass_over_size_line(&mut self) {
        self.faults.bad_size = true;
        self.state = State::Extension;
    }

    fn size_complete(&mut self) -> Byte {
        if self.size == 0 {
            self.state = State::Trailer;
            self.empty_field = true;
        } else {
            self.state = State::Data;
        }
        Byte::Ok
    }
}
