//! What the fields of a head name as content codings.
//!
//! Refuses to take an unknown name for nothing: that there was one is told.

use super::fault::Fault;

/// Most codings of a body; curl's limit.
pub(super) const MAX_CODINGS: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// The codings of a body.
#[derive(Default, Debug)]
pub(crate) struct Codings {
    /// In the order of application; one more than the most shows that there are too many.
    pub(super) names: Vec<Coding>,
    /// Something else is named, or one of them in a way that not all clients understand.
    is_doubtful: bool,
    /// Some clients see the chunked coding, and nobody has taken it off.
    pub(super) may_be_chunked: bool,
}

impl Codings {
    /// Reads the values of all Content-Encoding fields in their order.
    pub(crate) fn read<'a>(fields: impl Iterator<Item = &'a [u8]>, may_be_chunked: bool) -> Self {
        let mut codings = Self { may_be_chunked, ..Self::default() };
        for name in fields.flat_map(|value| value.split(|&byte| byte == b',')) {
            let name = name.trim_ascii();
            match known(name) {
                Some(coding) => codings.add(coding),
                None => {
                    codings.is_doubtful = true;
                    codings.add_mentioned(name);
                }
            }
        }
        codings
    }

    /// Whether there is one, known or not: not all that is named is one.
    #[cfg(feature = "detect")]
    pub(crate) fn is_coded(&self) -> bool {
        !self.names.is_empty() || self.is_doubtful
    }

    /// What is wrong with them.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.is_doubtful.then_some(Fault::Unknown)
    }

    /// Those that the loosest clients find in something that is no name.
    fn add_mentioned(&mut self, text: &[u8]) {
        for word in text.split(|&byte| byte == b' ') {
            let word: Vec<u8> =
                word.iter().filter(|&&byte| byte != 0).map(u8::to_ascii_lowercase).collect();
            let has = |name: &[u8]| word.windows(name.len()).any(|part| part == name);
            let mentioned = if has(b"gzip") {
                Some(Some(Coding::Gzip))
            } else if has(b"deflate") {
                Some(Some(Coding::Deflate))
            } else {
                known(&word)
            };
            self.add(mentioned.flatten());
        }
    }

    fn add(&mut self, coding: Option<Coding>) {
        if self.names.len() <= MAX_CODINGS {
            self.names.extend(coding);
        }
    }
}

/// Whether this is the name of a coding that can be taken off.
pub(crate) fn is_coding(name: &[u8]) -> bool {
    known(name).flatten().is_some()
}

/// What a name stands for, which may be nothing; `None` where it is not known.
fn known(name: &[u8]) -> Option<Option<Coding>> {
    let is = |known: &[&str]| known.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes()));
    Some(match name {
        _ if name.is_empty() || is(&["identity", "none"]) => None,
        _ if is(&["gzip", "x-gzip"]) => Some(Coding::Gzip),
        _ if is(&["deflate"]) => Some(Coding::Deflate),
        _ if is(&["br"]) => Some(Coding::Brotli),
        _ if is(&["zstd"]) => Some(Coding::Zstd),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> (Vec<Coding>, bool) {
        let codings = Codings::read([value.as_bytes()].into_iter(), false);
        (codings.names, codings.is_doubtful)
    }

    #[test]
    fn accepts_names_and_finds_them_in_what_is_none() {
        assert_eq!(read("identity, X-GZip,br"), (vec![Coding::Gzip, Coding::Brotli], false));
        for text in ["gzip x", "x gzip", "gz\0ip", ": gzip", "gzip;", "\u{a0}gzip", "xgzip"] {
            assert_eq!(read(text), (vec![Coding::Gzip], true), "{text}");
        }
        assert_eq!(read("x-deflate"), (vec![Coding::Deflate], true));
    }

    #[test]
    #[cfg(feature = "detect")]
    fn accepts_names_of_no_coding() {
        let is_coded =
            |value: &str| Codings::read([value.as_bytes()].into_iter(), false).is_coded();
        for text in ["", "identity", "none", "identity, Identity", "identity,", ", none"] {
            assert!(!is_coded(text), "{text}");
        }
        assert!(is_coded("identity, gzip") && is_coded("compress"));
    }

    #[test]
    fn refuses_unknown_names_and_too_many() {
        assert_eq!(read("compress"), (vec![], true));
        assert_eq!(read(&"br,".repeat(99)).0.len(), MAX_CODINGS + 1);
    }
}
