//! Rules applied to a connection.
//!
//! Claims: no rules and no traffic make it panic; what rules of HTTP find does not depend on how the
//! traffic was cut; a rule reports once for each side of a transaction at most; memory is given back.

use std::net::SocketAddr;

use mmtls_inspect::detect::{
    Context, Datasets, Detected, Facts, FlowState, Matcher, Scratch, Shared,
};
use mmtls_inspect::rules::header::Protocol;
use mmtls_inspect::rules::{Buffer, RuleSet, Variables};
use mmtls_inspect::{AppLayer, MemoryBudget, Side, Uninspected};

use crate::input::{Input, pieces};

/// Most bytes of rules: expressions take long to compile.
const MAX_RULES: usize = 1024;
/// What windows may take; little, so that it is used up.
const BUDGET: usize = 8 << 10;

struct Hello<'a>(&'a [u8], Option<u16>);

impl Facts for Hello<'_> {
    fn version(&self) -> Option<u16> {
        self.1
    }

    fn each(&self, buffer: Buffer, show: &mut dyn FnMut(&[u8])) {
        match buffer {
            Buffer::TlsAlpn | Buffer::TlsCerts => self.0.split(|it| *it == 0).for_each(show),
            _ => show(self.0),
        }
    }
}

/// Finds what rules say of a connection, in order: place of the rule, side, transaction.
fn run(matcher: &Matcher, budget: &MemoryBudget, traffic: &[u8], cut: &[u8]) -> (Vec<Found>, bool) {
    let ends: [SocketAddr; 2] = [([10, 0, 0, 1], 40_000).into(), ([192, 0, 2, 7], 443).into()];
    let mut state = FlowState::new(1, ends[0], ends[1]);
    let mut app = AppLayer::new();
    let (mut found, mut over_cap) = (Vec::new(), false);
    let (shared, mut scratch) = (Shared::default(), Scratch::default());
    let mut cx = Context { matcher, shared: &shared, budget, scratch: &mut scratch, now_ns: 1 };
    let mut sink = |it: Detected<'_>| match it {
        Detected::Match(it) => found.push(Found {
            sid: it.rule.id.sid,
            protocol: it.rule.header.protocol,
            is_client: it.side == Side::Client,
            transaction: it.transaction.and_then(|it| it.id),
        }),
        Detected::Uninspected(_, cause) => over_cap |= cause == Uninspected::OverCap,
    };
    let mut input = Input::new(traffic);
    while !input.is_empty() {
        let how = input.u8();
        let side = if how & 1 == 0 { Side::Client } else { Side::Server };
        let len = usize::from(input.u16() % 2048);
        let bytes = input.take(len);
        match how >> 1 & 31 {
            30 => {
                state.gap(side);
                app.gap(side, &mut |event| state.event(&mut cx, &event, &mut sink));
            }
            31 => {
                let hello = Hello(bytes, (how & 64 != 0).then_some(0x0304));
                state.handshake(&mut cx, side, &hello, how & 128 != 0, &mut sink);
            }
            _ => {
                for piece in pieces(bytes, cut) {
                    state.data(&mut cx, side, piece, &mut sink);
                    app.data(side, piece, &mut |event| state.event(&mut cx, &event, &mut sink));
                }
            }
        }
    }
    for side in [Side::Client, Side::Server] {
        app.close(side, &mut |event| state.event(&mut cx, &event, &mut sink));
    }
    app.finish(&mut |event| state.event(&mut cx, &event, &mut sink));
    (found, over_cap)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Found {
    sid: u32,
    protocol: Protocol,
    is_client: bool,
    transaction: Option<u64>,
}

/// Input: rules up to a zero byte, how to cut the traffic, traffic.
pub fn detect(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (rules, rest) = data.split_at(end);
    if rules.len() > MAX_RULES {
        return;
    }
    let set = RuleSet::read(rules, &Variables::suricata());
    let Ok((matcher, _)) = Matcher::new(set, &Datasets::default(), |_| true) else {
        return;
    };
    if matcher.is_empty() {
        return;
    }
    let mut input = Input::new(rest);
    input.u8();
    let pieces = usize::from(input.u8() % 8);
    let cut = input.take(pieces);
    let traffic = input.all();
    let budget = MemoryBudget::new(BUDGET);
    let (whole, tight) = run(&matcher, &budget, traffic, &[]);
    assert_eq!(budget.left(), BUDGET, "memory is not given back");
    let (cut, tight_too) = run(&matcher, &budget, traffic, cut);
    assert_eq!(budget.left(), BUDGET, "memory is not given back");
    // What rules of streams say belongs to pieces; bits and counts that they change may, too.
    let of_messages = |found: &[Found]| {
        let mut kept: Vec<Found> = found
            .iter()
            .filter(|it| matches!(it.protocol, Protocol::Http | Protocol::Http1 | Protocol::Http2))
            .copied()
            .collect();
        kept.sort_unstable();
        kept
    };
    let [whole, cut] = [of_messages(&whole), of_messages(&cut)];
    let has_memory = matcher.rules().any(|rule| {
        let counts = rule.threshold.is_some() || rule.detection_filter.is_some();
        counts || !rule.flow_bits.is_empty() || !rule.xbits.is_empty()
    });
    // Payload in a rule of HTTP is the stream as far as it has come; a pass ends what is behind it.
    let has_payload = matcher.looks_into(Buffer::Payload);
    let passes = matcher.rules().any(|rule| rule.header.action.name() == "pass");
    if !(tight || tight_too || has_memory || has_payload || passes) {
        assert_eq!(whole, cut, "depends on the cut");
    }
    let known = whole.iter().filter(|it| it.transaction.is_some());
    let known: Vec<_> = known.collect();
    assert!(known.windows(2).all(|pair| pair[0] != pair[1]), "twice in a transaction: {known:?}");
}
