//! What ab says of its requests.
//!
//! Refuses a run in which a request failed, or got something else than the object over the one suite.

use super::lane::Tls;

/// The seconds that a run of so many requests took, each of which got an object of so many bytes.
pub fn seconds(text: &str, requests: u64, bytes: u64) -> Result<f64, String> {
    let is_whole = value(text, "Complete requests:") == Some(requests as f64)
        && value(text, "Failed requests:") == Some(0.0)
        && value(text, "Document Length:") == Some(bytes as f64)
        && !text.contains("Non-2xx")
        && text.contains(Tls::Gcm.suite());
    let seconds = value(text, "Time taken for tests:").filter(|_| is_whole);
    seconds.ok_or_else(|| format!("ab: {}", text.trim()))
}

/// A number that ab prints.
pub fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The time of the middle request in milliseconds, of the file that `-e` names: its line for N % is that of the
/// request N/100 · `requests` + 0.5, rounded down and counted from 0.
pub fn median_ms(csv: &str, requests: u64) -> Option<f64> {
    let lines = csv.lines().filter_map(|line| {
        let (percent, time) = line.split_once(',')?;
        Some((percent.parse::<f64>().ok()?, time.parse::<f64>().ok()?))
    });
    let middle = (requests / 2) as f64;
    let at = |percent: f64| (0.5 + requests as f64 * percent / 100.0).floor();
    let mut lines = lines.skip_while(|(percent, _)| at(*percent) < middle);
    lines.next().map(|(_, time)| time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "SSL/TLS Protocol:       TLSv1.3,TLS_AES_256_GCM_SHA384,256,256\n\
        Document Length:        1024 bytes\nTime taken for tests:   0.125 seconds\n\
        Complete requests:      40\nFailed requests:        0\n";

    #[test]
    fn accepts_whole_runs() {
        assert_eq!(seconds(TEXT, 40, 1024), Ok(0.125));
    }

    #[test]
    fn refuses_requests_that_failed() {
        assert!(seconds(TEXT, 41, 1024).is_err());
        assert!(seconds(TEXT, 40, 1025).is_err());
        assert!(seconds(&(TEXT.to_owned() + "Non-2xx responses:      40\n"), 40, 1024).is_err());
        assert!(seconds(&TEXT.replace("256_GCM", "128_GCM"), 40, 1024).is_err());
    }

    #[test]
    fn accepts_the_middle_of_few_and_many_requests() {
        let csv = |requests: u64| {
            let at = |percent: u64| (0.5 + (requests * percent) as f64 / 100.0) as u64;
            let lines = (0..100).map(|percent| format!("{percent},{}.000\n", at(percent)));
            "Percentage served,Time in ms\n".to_owned() + &lines.collect::<String>()
        };
        for (requests, middle) in [(3, 1.0), (5, 2.0), (99, 49.0), (1000, 500.0)] {
            assert_eq!(median_ms(&csv(requests), requests), Some(middle), "{requests}");
        }
        assert_eq!(median_ms("", 3), None);
    }
}
