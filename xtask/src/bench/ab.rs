//! ab as client of nginx: requests over connections of their own, or over kept ones.
//!
//! Refuses to report requests of which one was not answered as it should have been.

use std::process::Command;

use mmtls_testkit::address;

use super::lane::Tls;

/// Connections at a time, where a proxy or a server is to be busy.
pub const CONCURRENCY: u32 = 32;

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Requests<'a> {
    /// The object's name.
    pub object: &'a str,
    pub bytes: u64,
    pub number: u32,
    /// At a time.
    pub concurrency: u32,
    /// Whether connections are kept.
    pub keep: bool,
}

impl Requests<'_> {
    /// Tells ab.
    pub fn ask(&self, ab: &mut Command) {
        if self.keep {
            ab.arg("-k");
        }
        ab.args(["-q", "-n", &self.number.to_string(), "-c", &self.concurrency.to_string()]);
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
            && text.contains(Tls::Gcm.suite());
        let seconds = value("Time taken for tests:").filter(|_| complete);
        seconds.ok_or_else(|| format!("ab: {}", text.trim()))
    }
}

/// The time of the middle request in milliseconds, of the file that `-e` names: its line for N % is that of the
/// request N/100 · `requests` + 0.5, rounded down and counted from 0.
pub fn median_ms(csv: &str, requests: u32) -> Option<f64> {
    let lines = csv.lines().filter_map(|line| {
        let (percent, time) = line.split_once(',')?;
        Some((percent.parse::<f64>().ok()?, time.parse::<f64>().ok()?))
    });
    let middle = f64::from(requests / 2);
    let at = |percent: f64| (0.5 + f64::from(requests) * percent / 100.0).floor();
    let mut lines = lines.skip_while(|(percent, _)| at(*percent) < middle);
    lines.next().map(|(_, time)| time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "SSL/TLS Protocol:       TLSv1.3,TLS_AES_256_GCM_SHA384,2048,256\n\
        Document Length:        1024 bytes\n\
        Time taken for tests:   0.750 seconds\nComplete requests:      500\nFailed requests:        0\n";
    const ASKED: Requests<'_> =
        Requests { object: "1k", bytes: 1024, number: 500, concurrency: 1, keep: false };

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

    #[test]
    fn accepts_the_middle_of_few_and_many_requests() {
        let csv = |requests: u32| {
            let at = |percent: u32| (0.5 + f64::from(requests * percent) / 100.0) as u64;
            let lines = (0..100).map(|percent| format!("{percent},{}.000\n", at(percent)));
            "Percentage served,Time in ms\n".to_owned() + &lines.collect::<String>()
        };
        for (requests, middle) in [(3, 1.0), (5, 2.0), (99, 49.0), (1000, 500.0)] {
            assert_eq!(median_ms(&csv(requests), requests), Some(middle), "{requests}");
        }
        assert_eq!(median_ms("", 3), None);
    }
}
