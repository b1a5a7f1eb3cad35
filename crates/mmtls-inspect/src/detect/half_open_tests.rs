//! What many connections take together whose messages do not come to their end.

use std::collections::BTreeSet;

use super::evasion_http2_tests::{CONTINUATION, HEADERS, client, frame};
use super::evasion_tests::{CLIENT, GET, SERVER, gzip, ok};
use super::rule_tests::{http, matcher};
use super::*;
use crate::event::{Event, Side};
use crate::uninspected::Uninspected::OverCap;
use crate::{AppBudget, AppLayer, MemoryBudget};

/// Connections that share budgets, each with a request that is answered in part.
struct Crowd {
    matcher: Matcher,
    window: MemoryBudget,
    decode: AppBudget,
    open: Vec<(AppLayer, FlowState)>,
    over_cap: BTreeSet<usize>,
}

impl Crowd {
    fn new(window: MemoryBudget, decode: AppBudget) -> Self {
        // What waits keeps the body.
        let matcher = matcher(&http(&["file.data; content:\"e\"; content:\"EVIL\"; distance:1;"]));
        Self { matcher, window, decode, open: Vec::new(), over_cap: BTreeSet::new() }
    }

    fn add(&mut self, parts: &[(Side, &[u8])]) {
        let number = self.open.len();
        let ends = ["10.0.0.1:40000", "192.0.2.7:443"].map(|text| text.parse().unwrap());
        let mut app = AppLayer::with_budget(&self.decode);
        let mut state = FlowState::new(number as u64, ends[0], ends[1]);
        let mut cx = Context {
            matcher: &self.matcher,
            shared: &Shared::default(),
            budget: &self.window,
            scratch: &mut Scratch::default(),
            now_ns: 0,
        };
        let over_cap = &mut self.over_cap;
        for (side, bytes) in parts {
            app.data(*side, bytes, &mut |event| {
                let is_over =
                    matches!(event, Event::Anomaly(_, it) if it.uninspected() == Some(OverCap));
                over_cap.extend(is_over.then_some(number));
                state.event(&mut cx, &event, &mut |detected| {
                    let is_over = matches!(detected, Detected::Uninspected(_, OverCap));
                    over_cap.extend(is_over.then_some(number));
                });
            });
        }
        self.open.push((app, state));
    }
}

/// Half of a response in gzip.
fn half_response(len: usize) -> Vec<u8> {
    let coded = gzip(&b"eta on shrdlu eta ".repeat(len / 18));
    let head = "Content-Encoding: gzip\r\nContent-Length: 1000000\r\n";
    ok(head, &coded[..coded.len() - 9])
}

#[test]
fn half_open_responses_stay_within_the_budgets_and_say_what_does_not() {
    let half = half_response(100_000);
    let parts: [(Side, &[u8]); 2] = [(CLIENT, GET.as_bytes()), (SERVER, &half)];
    for (window, decode) in [(1 << 20, 1 << 30), (1 << 30, 1 << 20)] {
        let (window_budget, decode_budget) =
            (MemoryBudget::new(window), AppBudget::new(decode, 1 << 30));
        let mut crowd = Crowd::new(window_budget.clone(), decode_budget);
        (0..100).for_each(|_| crowd.add(&parts));
        // The windows of some, or the decoders of 21, were all that fitted in.
        assert!(crowd.over_cap.len() >= 75, "{}", crowd.over_cap.len());
        assert!(crowd.over_cap.len() < 100, "{}", crowd.over_cap.len());
        assert!(window_budget.take(window).is_none());
        drop(crowd);
        assert!(window_budget.take(window).is_some(), "all of it comes back");
    }
}

#[test]
fn heads_under_way_stay_within_the_budget_and_say_what_does_not() {
    let head = ok(&format!("X: {}", "x".repeat(60_000)), "")[..60_000].to_vec();
    let post = format!("POST / HTTP/1.1\r\nX: {}", "x".repeat(60_000)).into_bytes();
    let trailers = format!("Transfer-Encoding: chunked\r\n\r\n0\r\nX: {}", "x".repeat(30_000));
    let trailers = ok(&trailers, "");
    let trailers = &trailers[..trailers.len() - 2];
    let get = (CLIENT, GET.as_bytes());
    for (parts, fit) in [
        (&[get, (SERVER, &head[..])][..], 16),
        (&[(CLIENT, &post)], 16),
        (&[get, (SERVER, trailers)], 32),
    ] {
        let budget = AppBudget::new(1 << 30, 1 << 20);
        let mut crowd = Crowd::new(MemoryBudget::default(), budget.clone());
        // Heads that are short cost nothing.
        (0..50).for_each(|_| crowd.add(&[get, (SERVER, b"HTTP/1.1 200 OK\r\nX: y")]));
        (0..50).for_each(|_| crowd.add(parts));
        assert_eq!(crowd.over_cap, (50 + fit..100).collect());
        assert_eq!(budget.heads.left(), 0);
        drop(crowd);
        assert_eq!(budget.heads.left(), 1 << 20, "all of it comes back");
        // Complete ones, whole and in pieces, give it back at once.
        let mut whole = Crowd::new(MemoryBudget::default(), budget.clone());
        let rest = b"\r\nContent-Length: 0\r\n\r\n";
        for _ in 0..50 {
            let (side, start) = parts[parts.len() - 1];
            whole.add(&[parts[0], (side, start), (side, rest)][usize::from(parts.len() == 1)..]);
        }
        assert!(whole.over_cap.is_empty() && budget.heads.left() == 1 << 20);
    }
}

/// A name, what each connection carries, and most MiB for all of them.
type Row<'a> = (&'a str, &'a [(Side, &'a [u8])], usize);

/// Resident memory in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// `cargo test -p mmtls-inspect -- --ignored --nocapture --test-threads 1 resident`
#[test]
#[ignore = "takes 1 GiB"]
fn resident_memory_of_ten_thousand_half_open_messages() {
    let half = half_response(100_000);
    let small = half_response(2000);
    let get = (CLIENT, GET.as_bytes());
    let head = ok(&format!("X: {}", "x".repeat(60_000)), "")[..60_000].to_vec();
    let (_, mut block) = client(&[frame(HEADERS, 0, 1, &[0; 16_000])]);
    (0..14).for_each(|_| block.extend(frame(CONTINUATION, 0, 1, &[0; 16_000])));
    let rows: [Row<'_>; 5] = [
        ("only requests", &[get], 60),
        ("responses of 2 kB in gzip", &[get, (SERVER, &small)], 500),
        // Those for which there is no room are looked into as bodies, in windows.
        ("heads of 60 kB", &[get, (SERVER, &head)], 800),
        ("responses of 100 kB in gzip", &[get, (SERVER, &half)], 1000),
        ("blocks of 240 kB in HTTP/2", &[(CLIENT, &block)], 1000),
    ];
    // Memory is not given back between rows, of which each takes more than those before it.
    let before = resident();
    for (name, parts, most_mib) in rows {
        let mut crowd = Crowd::new(MemoryBudget::default(), AppBudget::default());
        (0..10_000).for_each(|_| crowd.add(parts));
        let used = resident().saturating_sub(before) >> 10;
        println!("10,000 {name}: {used} MiB, {} over a cap", crowd.over_cap.len());
        assert!(used < most_mib, "{name}: {used} MiB");
    }
    let bomb = gzip(&gzip(&vec![0; 200 << 20]));
    let bomb = ok("Content-Encoding: gzip, gzip\r\n", bomb);
    let before = resident();
    let mut crowd = Crowd::new(MemoryBudget::default(), AppBudget::default());
    (0..100).for_each(|_| crowd.add(&[get, (SERVER, &bomb)]));
    let used = resident().saturating_sub(before) >> 10;
    println!("100 bombs of {} bytes: {used} MiB, {} over a cap", bomb.len(), crowd.over_cap.len());
    assert!(used < 500 && crowd.over_cap.len() == 100, "{used} MiB");
}
