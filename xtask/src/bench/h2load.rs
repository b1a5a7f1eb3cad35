//! h2load, the client of persistent connections: what it is asked for, and what it says at its end.
//!
//! Refuses text that lacks a line.

use serde::Serialize;

/// How an object is fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Http {
    /// HTTP/1.1, one request at a time.
    #[serde(rename = "HTTP/1.1")]
    One,
    /// HTTP/2 with up to so many requests at a time on a connection. The split proxy speaks HTTP/1.1 to the server.
    #[serde(rename = "HTTP/2")]
    Two { streams: u32 },
}

impl Http {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "HTTP/1.1",
            Self::Two { .. } => "HTTP/2",
        }
    }
}

/// A file that is fetched, over and over.
#[derive(Clone, Copy)]
pub struct Object {
    pub name: &'static str,
    pub bytes: u64,
    pub http: Http,
}

/// Whether h2load says that it negotiated just this suite: those with the private tag have names
/// that end like others.
pub fn negotiated(text: &str, suite: &str) -> bool {
    text.lines().any(|line| line.trim().strip_prefix("Cipher: ") == Some(suite))
}

/// What h2load says at its end.
pub struct Done {
    /// Requests that were answered as they should be.
    pub succeeded: u64,
    /// How long it took.
    pub seconds: f64,
    /// Bytes of the objects.
    pub bytes: u64,
}

impl Done {
    /// Reads its last lines.
    pub fn parse(text: &str) -> Option<Self> {
        let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        let time = line("finished in ")?.split(',').next()?;
        let seconds = match time.strip_suffix("ms") {
            Some(milliseconds) => milliseconds.parse::<f64>().ok()? / 1000.0,
            None => time.strip_suffix('s')?.parse().ok()?,
        };
        let requests = line("requests: ")?;
        let succeeded = requests.split(", ").find_map(|part| part.strip_suffix(" succeeded"))?;
        let data = line("traffic: ")?.strip_suffix(") data")?.rsplit_once('(')?.1;
        Some(Self { succeeded: succeeded.parse().ok()?, seconds, bytes: data.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_h2load_prints() {
        let text = "finished in 812.33ms, 100.00 req/s, 6.27MB/s\n\
            requests: 400 total, 400 started, 400 done, 399 succeeded, 1 failed, 0 errored, 0 timeout\n\
            status codes: 400 2xx, 0 3xx, 0 4xx, 0 5xx\n\
            traffic: 25.11MB (26330000) total, 93.75KB (96000) headers (space savings 0.00%), 25.00MB (26214400) data\n";
        let done = Done::parse(text).unwrap();
        assert_eq!((done.succeeded, done.bytes), (399, 26_214_400));
        assert!((done.seconds - 0.81233).abs() < 1e-9);
    }
}
