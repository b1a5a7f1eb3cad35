//! The committed seeds, made from code: what a fuzzer would take long to come by itself.
//!
//! `cargo run --manifest-path fuzz/Cargo.toml --bin seeds` writes them to `fuzz/seeds`, a test
//! compares. Refuses to be random.

mod codings;
mod detect;
mod engine;
mod http2;
mod openings;
mod parsers;
mod rules;
mod websocket;
mod worker;

/// One seed: target, name, bytes.
pub struct Seed {
    /// Which target it is for.
    pub target: &'static str,
    /// Its file name.
    pub name: String,
    /// The input.
    pub bytes: Vec<u8>,
}

/// Every seed.
#[must_use]
pub fn all() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, bytes| {
        seeds.push(Seed { target, name: name.to_owned(), bytes });
    };
    engine::packet_path(&mut add);
    openings::openings(&mut add);
    worker::worker(&mut add);
    engine::session(&mut add);
    engine::tls_deframer(&mut add);
    engine::recognition(&mut add);
    parsers::record_open(&mut add);
    parsers::http1(&mut add);
    http2::http2(&mut add);
    websocket::websocket(&mut add);
    codings::codings(&mut add);
    parsers::literal(&mut add);
    rules::rules(&mut add);
    detect::detect(&mut add);
    parsers::key_message(&mut add);
    parsers::agent_datagram(&mut add);
    parsers::capture_reader(&mut add);
    parsers::keylog(&mut add);
    parsers::keylog_line(&mut add);
    seeds
}

/// Takes target, name and bytes of a seed.
type Add<'a> = &'a mut dyn FnMut(&'static str, &str, Vec<u8>);
