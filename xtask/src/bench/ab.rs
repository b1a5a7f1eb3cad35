//! ApacheBench as client of nginx: requests over connections of their own, or over kept ones.
//!
//! Refuses to report requests of which one was not answered as it should have been.

use std::process::Command;

use mmtls_testkit::address;

use super::lanes::SUITE;

/// Connections at a time.
pub const CONCURRENCY: u32 = 32;

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Requests<'a> {
    /// The object's name.
    pub object: &'a str,
    pub bytes: u64,
    pub number: u32,
    /// Whether connections are kept.
    pub keep: bool,
}

impl Requests<'_> {
    /// Tells ab.
    pub fn ask(&self, ab: &mut Command) {
        if self.keep {
            ab.arg("-k");
        }
        ab.args(["-q", "-n", &self.number.to_string(), "-c", &CONCURRENCY.to_string()]);
        ab.arg(format!("https://{}/{}", address::SERVER_V4, self.object));
    }

    /// The seconds that they took, of what ab says.
    pub fn seconds(&self, text: &str) -> Result<f64, String> {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        let number = Some(f64::from(self.number));
        let complete = value("Complete requests:") == number
            && value("Failed requests:") == Some(0.0)
            && value("Document Length:") == Some(self.bytes as f64)
            && (!self.keep || value("Keep-Alive requests:") == number)
            && !text.contains("Non-2xx")
            && text.contains(SUITE);
        let seconds = value("Time taken for tests:").filter(|_| complete);
        seconds.ok_or_else(|| format!("ab: {}", text.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "SSL/TLS Protocol:       TLSv1.3,TLS_AES_256_GCM_SHA384,2048,256\n\
        Document Length:        1024 bytes\n\
        Time taken for tests:   0.750 seconds\nComplete requests:      500\nFailed requests:        0\n";
    const ASKED: Requests<'_> = Requests { object: "1k", bytes: 1024, number: 500, keep: false };

    #[test]
    fn accepts_what_ab_prints() {
        assert_eq!(ASKED.seconds(SAID), Ok(0.75));
        let kept = Requests { keep: true, ..ASKED };
        assert_eq!(kept.seconds(&format!("{SAID}Keep-Alive requests:    500\n")), Ok(0.75));
    }

    #[test]
    fn refuses_requests_that_failed() {
        for (from, to) in
            [("requests:        0", "requests:        1"), ("1024 b", "99 b"), ("256_G", "128_G")]
        {
            assert!(ASKED.seconds(&SAID.replace(from, to)).is_err(), "{to}");
        }
        // Connections were not kept.
        assert!(Requests { keep: true, ..ASKED }.seconds(SAID).is_err());
    }
}
