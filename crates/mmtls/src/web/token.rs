//! The token with which a browser may look: random, or the operator's own in a file.
//!
//! Refuses tokens that could be guessed, and files that others can read.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::rand;
use base64ct::{Base64UrlUnpadded, Encoding};
use zeroize::Zeroizing;

use crate::secret_file;

/// Of a token that is made.
const RANDOM_BYTES: usize = 32;

/// Characters of one that somebody else has made.
const MIN_CHARACTERS: usize = 22;
const MAX_CHARACTERS: usize = 256;

/// The token.
pub struct Token(Zeroizing<String>);

impl Token {
    /// A new one.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut bytes = Zeroizing::new([0; RANDOM_BYTES]);
        rand::fill(&mut *bytes).map_err(|_| io::Error::other("no random bytes"))?;
        Ok(Self(Zeroizing::new(Base64UrlUnpadded::encode_string(&*bytes))))
    }

    /// That of a file, which is made with a new one where it is not there.
    ///
    /// # Errors
    /// Those of the system; what is wrong with the file.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        match Self::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        let token = Self::random()?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let written = file.write_all(token.0.as_bytes()).and_then(|()| file.write_all(b"\n"));
        // Half a token would be refused at the next start.
        written.inspect_err(|_| drop(std::fs::remove_file(path)))?;
        Ok(token)
    }

    /// That of a file.
    ///
    /// # Errors
    /// As [`Self::of_file`].
    pub fn read(path: &Path) -> io::Result<Self> {
        let text = secret_file::read(path, MAX_CHARACTERS + 2)?;
        let token = text.trim_end();
        let is_known = |it: u8| it.is_ascii_alphanumeric() || b"-._~".contains(&it);
        if !(MIN_CHARACTERS..=MAX_CHARACTERS).contains(&token.len()) || !token.bytes().all(is_known)
        {
            let text = format!(
                "a token has {MIN_CHARACTERS} to {MAX_CHARACTERS} letters, digits, and characters of -._~: remove the file, and a \
                 token is made"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Self(Zeroizing::new(token.to_owned())))
    }

    /// Whether a request has it, which takes as long for any other of its length.
    #[must_use]
    pub fn is_in(&self, authorization: Option<&str>) -> bool {
        let scheme = "Bearer ";
        let given = authorization.filter(|it| it.is_char_boundary(scheme.len()));
        let given = given.filter(|it| it[..scheme.len()].eq_ignore_ascii_case(scheme));
        given.is_some_and(|it| {
            verify_slices_are_equal(&it.as_bytes()[scheme.len()..], self.0.as_bytes()).is_ok()
        })
    }

    /// For the operator.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn accepts_its_own_text_and_refuses_every_other() {
        let token = Token::random().unwrap();
        assert_eq!(token.text().len(), 43);
        assert_ne!(token.text(), Token::random().unwrap().text());
        let bearer = format!("Bearer {}", token.text());
        assert!(token.is_in(Some(&bearer)) && token.is_in(Some(&bearer.replacen("Be", "be", 1))));
        let short = &bearer[..bearer.len() - 1];
        let long = format!("{bearer}A");
        for other in ["", "Bearer ", "Bearer", "Beareré", token.text(), short, &long] {
            assert!(!token.is_in(Some(other)), "{other}");
        }
        assert!(!token.is_in(None));
    }

    #[test]
    fn accepts_files_that_only_the_owner_reads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = Token::of_file(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Token::of_file(&path).unwrap().text(), token.text(), "it stays");
        for (text, mode) in [
            ("", 0o600),
            ("short\n", 0o600),
            ("with space and long enough\n", 0o600),
            (&*"x".repeat(MAX_CHARACTERS + 1), 0o600),
            ("long-enough-for-a-token\n", 0o640),
        ] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(Token::of_file(&path).is_err(), "{text:?} {mode:o}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(Token::of_file(&path).unwrap().text(), "long-enough-for-a-token");
        assert!(Token::of_file(directory.path()).is_err());
    }
}
