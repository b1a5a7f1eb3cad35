//! Part (g): what rules cost, in memory: decrypted bytes in, matches out, one thread.
//!
//! 1 MB objects in records of 16,384 bytes, over HTTP/1.1 and HTTP/2, and transactions without a body,
//! against 0, 100, 1,000 and 10,000 rules in the shape of a public set; also how long those take to
//! be read and made ready, and what their searches take of memory: by each search that was built in (the
//! feature `hyperscan` adds one). Contenders take turns in every round.
//!
//! Refuses a run in which a rule matched: none is meant to.

use std::fmt::Write as _;
use std::time::Instant;

use mmtls_inspect::detect::{
    Context, Datasets, Detected, FlowState, Matcher, Scratch, Search, Shared,
};
use mmtls_inspect::rules::{RuleSet, Variables};
use mmtls_inspect::{AppLayer, MemoryBudget, Side};
use serde::Serialize;

use super::engine::{repeat, thread_time};
use super::report::{Samples, table};
use crate::results::{Axis, Figure};

/// How many rules.
const COUNTS: [usize; 4] = [0, 100, 1_000, 10_000];
/// Bytes of an object, and of a record.
const OBJECT: usize = 1 << 20;
const RECORD: usize = 16_384;
/// Transactions without a body on a connection.
const TRANSACTIONS: usize = 1_000;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct RuleResults {
    rows: Vec<Row>,
}

/// With so many rules.
#[derive(Clone, Debug, Serialize)]
struct Row {
    rules: usize,
    /// What searches for their patterns.
    search: String,
    /// Seconds from text to ready rules.
    ready_s: f64,
    /// Bytes that the searches take.
    search_bytes: usize,
    /// Gigabytes of body a second.
    http1_gb_s: Samples,
    http2_gb_s: Samples,
    /// Microseconds for a request and a response without a body.
    transaction_us: Samples,
}

/// Connections: decrypted bytes of either side in the order in which they come.
pub(super) struct Traffic {
    pub(super) http1: Vec<(Side, Vec<u8>)>,
    http2: Vec<(Side, Vec<u8>)>,
    pub(super) small: Vec<(Side, Vec<u8>)>,
}

pub fn measure(rounds: u32, seconds: f64) -> Result<RuleResults, String> {
    let traffic = Traffic::new();
    let mut contenders = Vec::new();
    for (count, &search) in COUNTS.iter().flat_map(|it| Search::ALL.iter().map(|by| (*it, by))) {
        let text = rule_text(count);
        let start = Instant::now();
        let matcher = matcher(&text, count, search)?;
        let what = (count, search, start.elapsed());
        contenders.push((what, matcher, Vec::new(), Vec::new(), Vec::new()));
    }
    for _ in 0..rounds {
        for (_, matcher, http1, http2, small) in &mut contenders {
            for (connection, samples) in [(&traffic.http1, http1), (&traffic.http2, http2)] {
                let time = pass(matcher, connection, seconds)?;
                samples.push(OBJECT as f64 / time / 1e9);
            }
            small.push(pass(matcher, &traffic.small, seconds)? / TRANSACTIONS as f64 * 1e6);
        }
    }
    let rows = contenders.into_iter().map(|(what, matcher, http1, http2, small)| {
        let (rules, search, ready) = what;
        Row {
            rules,
            search: search.to_string(),
            ready_s: ready.as_secs_f64(),
            search_bytes: matcher.search_memory(),
            http1_gb_s: Samples::new(http1),
            http2_gb_s: Samples::new(http2),
            transaction_us: Samples::new(small),
        }
    });
    Ok(RuleResults { rows: rows.collect() })
}

/// All of the rules, ready.
pub(super) fn matcher(text: &str, count: usize, search: Search) -> Result<Matcher, String> {
    let set = RuleSet::read(text.as_bytes(), &Variables::suricata());
    let (matcher, skipped) = Matcher::with_search(search, set, &Datasets::default(), |_| true)
        .map_err(|error| error.to_string())?;
    if matcher.len() != count {
        return Err(format!("{} of {count} rules: {:?}", matcher.len(), skipped.first()));
    }
    Ok(matcher)
}

/// Seconds of processor time for one connection.
fn pass(matcher: &Matcher, traffic: &[(Side, Vec<u8>)], seconds: f64) -> Result<f64, String> {
    let mut follower = Follower::new(matcher);
    repeat(seconds, || {
        let start = thread_time();
        follower.connection(traffic)?;
        Ok(thread_time() - start)
    })
}

/// Follows connections with rules, one after the other.
pub(super) struct Follower<'a> {
    matcher: &'a Matcher,
    shared: Shared,
    budget: MemoryBudget,
    scratch: Scratch,
}

impl<'a> Follower<'a> {
    pub(super) fn new(matcher: &'a Matcher) -> Self {
        let (shared, budget) = (Shared::default(), MemoryBudget::default());
        Self { matcher, shared, budget, scratch: Scratch::default() }
    }

    /// One connection, from its first byte to its end.
    pub(super) fn connection(&mut self, traffic: &[(Side, Vec<u8>)]) -> Result<(), String> {
        let Self { matcher, shared, budget, scratch } = self;
        let mut found = 0usize;
        let ends = (([10, 0, 0, 1], 40_000).into(), ([192, 0, 2, 7], 443).into());
        let mut state = FlowState::new(1, ends.0, ends.1);
        let mut app = AppLayer::new();
        let mut cx = Context { matcher, shared, budget, scratch, now_ns: 0 };
        let mut sink = |_: Detected<'_>| found += 1;
        for (side, bytes) in traffic {
            state.data(&mut cx, *side, bytes, &mut sink);
            app.data(*side, bytes, &mut |event| state.event(&mut cx, &event, &mut sink));
        }
        app.finish(&mut |event| state.event(&mut cx, &event, &mut sink));
        if found > 0 {
            return Err(format!("{found} rules matched"));
        }
        Ok(())
    }
}

impl Traffic {
    pub(super) fn new() -> Self {
        let mut random = fastrand::Rng::with_seed(1);
        let mut body = Vec::with_capacity(OBJECT);
        while body.len() < OBJECT {
            let word = (0..random.usize(2..10)).map(|_| random.lowercase() as u8);
            body.extend(word);
            body.push(b" \n<>=\"/"[random.usize(..7)]);
        }
        body.truncate(OBJECT);
        let get = b"GET /index.html?a=1 HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\n\r\n".to_vec();
        let head = |len: usize| {
            format!("HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: text/html\r\nContent-Length: {len}\r\n\r\n")
                .into_bytes()
        };
        let cut = |bytes: &[u8]| -> Vec<(Side, Vec<u8>)> {
            bytes.chunks(RECORD).map(|it| (Side::Server, it.to_vec())).collect()
        };
        let mut http1 = vec![(Side::Client, get.clone())];
        http1.extend(cut(&[head(OBJECT), body.clone()].concat()));
        let frame = |kind: u8, flags: u8, payload: &[u8]| {
            let len = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
            [&len[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
        };
        let preface = [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..],
            &frame(1, 5, b"\x82\x87\x84\x01\x0bexample.org"),
        ]
        .concat();
        let mut answer = [&b"\0\0\0\x04\0\0\0\0\0"[..], &frame(1, 4, b"\x88")].concat();
        for piece in body.chunks(RECORD) {
            answer.extend(frame(0, 0, piece));
        }
        let mut http2 = vec![(Side::Client, preface)];
        http2.extend(cut(&answer));
        let small =
            (0..TRANSACTIONS).flat_map(|_| [(Side::Client, get.clone()), (Side::Server, head(0))]);
        Self { http1, http2, small: small.collect() }
    }
}

/// Rules in the shape of a public set: three contents in each, of 5 to 15 bytes mostly, an eighth of
/// them with hexadecimal, a fifth of the rules with an expression, and its shares of buffers.
pub fn rule_text(count: usize) -> String {
    let mut random = fastrand::Rng::with_seed(7);
    let mut text = String::new();
    for sid in 1..=count {
        let shares = random.usize(..100);
        let (flow, buffers): (&str, &[&str]) = match shares {
            0..40 => ("to_server", &["http.method", "http.uri"]),
            40..55 => ("to_server", &["http.uri", "http.host"]),
            55..67 => ("to_server", &["http.host"]),
            67..80 => ("to_server", &["http.method", "http.request_body"]),
            80..84 => ("to_server", &["http.user_agent"]),
            84..87 => ("to_server", &["http.header_names", "http.uri"]),
            _ => ("to_client", &["http.stat_code", "file.data"]),
        };
        let mut options = String::new();
        for buffer in buffers {
            let _ = write!(options, "{buffer}; ");
            match *buffer {
                "http.method" => options.push_str("content:\"POST\"; "),
                "http.stat_code" => options.push_str("content:\"200\"; "),
                "http.header_names" => options.push_str("content:!\"Referer\"; "),
                _ => {
                    let mut content = |least| {
                        let text = content(&mut random, least);
                        if *buffer == "http.host" { text.to_ascii_lowercase() } else { text }
                    };
                    let _ = write!(options, "content:\"{}\"; ", content(8));
                    let (relative, negated) = (content(4), content(4));
                    if sid % 8 < 5 {
                        let distance = sid % 7;
                        let _ = write!(options, "content:\"{relative}\"; distance:{distance}; ");
                    }
                    if sid % 6 == 0 {
                        let _ = write!(options, "content:!\"{negated}\"; ");
                    }
                }
            }
        }
        if random.u8(..) < 52 {
            let word = content(&mut random, 0).replace(|it: char| !it.is_ascii_alphanumeric(), "x");
            let _ = write!(options, "pcre:\"/{word}[a-z0-9]{{4,16}}\\.(php|exe)/\"; ");
        }
        let _ = writeln!(
            text,
            "alert http any any -> any any (msg:\"rule {sid}\"; flow:established,{flow}; {options}\
             classtype:trojan-activity; sid:{sid}; rev:1;)"
        );
    }
    text
}

/// A content of `least` bytes and more, that no text of this benchmark has.
fn content(random: &mut fastrand::Rng, least: usize) -> String {
    let mut text: String =
        (0..least.max(3) + random.usize(..8)).map(|_| random.alphanumeric()).collect();
    // Common starts are what makes a search slow.
    if random.u8(..) < 64 {
        text.insert_str(0, ["/index", "<script", "http", "user="][random.usize(..4)]);
    }
    text.push_str(if random.u8(..) < 32 { "|00 ff|" } else { "~" });
    text
}

impl RuleResults {
    /// Figure 20, as far as the search in memory is a part of it.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |panel: &str, title: &str, y| {
            Figure::new("20", panel, title, Axis::log("rules", ""), y)
        };
        let mut body = figure(
            "memory",
            "Decrypted bodies through the application layer and the rules, in memory",
            Axis::log("body", "GB/s"),
        )
        .note("1 MB objects in records of 16,384 bytes; one thread's processor time; no rule matches.");
        let mut transaction = figure(
            "transaction",
            "A request and a response without body through the rules, in memory",
            Axis::linear("processor time", "µs"),
        );
        let mut ready = figure(
            "ready",
            "From the rules' text to rules that search",
            Axis::linear("time on the wall", "s"),
        );
        let mut search = figure("search", "Memory of the searches", Axis::linear("memory", "MB"));
        for row in &self.rows {
            let x = row.rules as u64;
            let by = |what: &str| format!("{what}{}", row.search);
            body.add(&by("HTTP/1.1, "), x, &row.http1_gb_s.samples);
            body.add(&by("HTTP/2, "), x, &row.http2_gb_s.samples);
            transaction.add(&by(""), x, &row.transaction_us.samples);
            ready.add(&by(""), x, &[row.ready_s]);
            search.add(&by(""), x, &[row.search_bytes as f64 / 1e6]);
        }
        vec![body, transaction, ready, search]
    }

    /// Prints a table.
    pub fn print(&self) {
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                let samples =
                    |it: &Samples| format!("{:.2} ({:.2}-{:.2})", it.median, it.min, it.max);
                vec![
                    row.rules.to_string(),
                    row.search.clone(),
                    format!("{:.2}", row.ready_s),
                    format!("{:.1}", row.search_bytes as f64 / 1e6),
                    samples(&row.http1_gb_s),
                    samples(&row.http2_gb_s),
                    samples(&row.transaction_us),
                ]
            })
            .collect();
        let header = [
            "rules",
            "search",
            "ready, s",
            "searches, MB",
            "HTTP/1.1, GB/s",
            "HTTP/2, GB/s",
            "transaction, µs",
        ];
        table("(g) rules in memory, one thread", &header, &rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_its_own_rules_and_matches_nothing() {
        let results = measure(1, 0.001).unwrap();
        assert_eq!(results.rows.len(), COUNTS.len() * Search::ALL.len());
    }
}
