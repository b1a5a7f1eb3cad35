//! What `bench/README.md` says that an unanswered SYN costs: bytes that the engine has asked the allocator for. What
//! that adds to each block is not counted.

use std::alloc::System;
use std::net::SocketAddr;

use mmtls_engine::session::Handler;
use mmtls_engine::*;
use mmtls_testkit::segments::{Endpoints, flag};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// As many as there is room for. The index has just grown.
const SYNS: u32 = 60_000;

struct Nothing;

impl Handler for Nothing {
    type State = ();
}

/// Bytes allocated for each of these SYNs.
fn bytes_per_syn(client_of: impl Fn(u32) -> SocketAddr) -> usize {
    let region = Region::new(ALLOCATOR);
    let mut config = Config::new(Policy::Reset);
    config.limits.max_flows = SYNS as usize;
    let mut engine = Engine::new(config, Nothing);
    for number in 0..SYNS {
        let ep = Endpoints {
            client: client_of(number),
            server: "10.0.0.3:443".parse().unwrap(),
            initial: [1_000_000 + number, 2_000_000_000],
        };
        let bytes = ep.frame(tls::Direction::ClientToServer, -1, 0, flag::SYN, &[]);
        let input = FrameInput {
            port: PortId(0),
            link: Link::Ethernet,
            bytes: &bytes,
            memory: None,
            checksum_trusted: true,
        };
        assert_eq!(engine.handle_frame(u64::from(number), &input), Verdict::Forward);
    }
    assert_eq!(engine.flow_count(), SYNS as usize);
    let now = region.change();
    drop(engine);
    let left = region.change();
    // The thread that waits for this test may allocate a little, too.
    let left = left.bytes_allocated.saturating_sub(left.bytes_deallocated);
    assert!(left < 4096, "everything is given back, but for {left} bytes");
    (now.bytes_allocated - now.bytes_deallocated) / SYNS as usize
}

/// One test, since the allocator counts what all of them do.
#[test]
fn accepts_no_more_memory_for_a_syn_than_is_told() {
    let of_one = bytes_per_syn(|number| ([10, 0, 0, 2], 1024 + number as u16).into());
    let of_many = bytes_per_syn(|number| {
        let [_, a, b, c] = number.to_be_bytes();
        ([10, 1 + a, b, c], 40_000).into()
    });
    println!("{of_one} bytes for a SYN of one client, {of_many} for one of a client of its own");
    assert!(of_one <= 825, "{of_one}");
    assert!(of_many <= 1005, "{of_many}");
}
