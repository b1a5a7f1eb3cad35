//! A client random is any 32 bytes, zeros too.

use crate::harness::attack::{C, S};
use crate::harness::{SUITE, config, keys};
use mmtls_engine::session::{EndReason, Handler, Record, Session};
use mmtls_engine::tls::{CipherSuite, ContentType, KeyEpoch};
use mmtls_engine::{Engine, FrameInput, Link, Policy, PortId, SharedKeys};
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::{ScriptBuilder, side};

#[derive(Default)]
struct Opened {
    records: usize,
    hello_at_end: Option<bool>,
}

impl Handler for Opened {
    type State = ();

    fn new_record(&mut self, _: &mut Session<'_>, (): &mut (), record: &mut Record<'_>) {
        self.records += usize::from(record.open().is_ok());
    }

    fn session_end(&mut self, session: &mut Session<'_>, (): &mut (), _: EndReason) {
        self.hello_at_end = Some(session.info().client_hello);
    }
}

#[test]
fn keys_of_a_random_of_zeros_are_found() {
    for early in [false, true] {
        let mut engine = Engine::new(config(Policy::Reset), Opened::default());
        let endpoints = Endpoints {
            client: "10.0.0.2:40000".parse().unwrap(),
            server: "10.0.0.3:443".parse().unwrap(),
            initial: [1, 2],
        };
        let mut builder =
            ScriptBuilder::new([0; 32], SUITE, false, &[1000], keys as crate::harness::Keys);
        for direction in [C, S] {
            builder.record(direction, ContentType::APPLICATION_DATA, &[7; 500], 0);
        }
        let mut now = 0;
        let mut send =
            |engine: &mut Engine<Opened>, direction, at: i64, ack, flags, data: &[u8]| {
                now += 1000;
                let bytes = endpoints.frame(direction, at, ack, flags, data);
                let port = PortId(side(direction) as u8);
                let memory = None;
                let link = Link::Ethernet;
                let frame =
                    FrameInput { port, link, bytes: &bytes, memory, checksum_trusted: true };
                let _ = engine.handle_frame(now, &frame);
            };
        let deliver = |engine: &mut Engine<Opened>| {
            let epoch = KeyEpoch::Application(0);
            let keys = [C, S].map(|it| (it, epoch, Box::new(keys(it, epoch)) as Box<_>)).into();
            let shared = SharedKeys {
                sender: Some(endpoints.client.ip()),
                source: 0,
                client_random: [0; 32],
                server_random: None,
                cipher_suite: CipherSuite(SUITE),
                keys,
            };
            assert_eq!(engine.handle_keys(1, shared), Ok(!early));
        };
        if early {
            deliver(&mut engine);
        }
        send(&mut engine, C, -1, 0, flag::SYN, &[]);
        send(&mut engine, S, -1, 0, flag::SYN | flag::ACK, &[]);
        send(&mut engine, C, 0, 0, flag::ACK, &[]);
        let mut at = [0u64; 2];
        for turn in &builder.build().turns {
            let s = side(turn.direction);
            send(&mut engine, turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
            at[s] += turn.bytes.len() as u64;
        }
        if !early {
            deliver(&mut engine);
        }
        engine.finish();
        assert_eq!(engine.handler().records, 2, "early {early}");
        assert_eq!(engine.handler().hello_at_end, Some(true));
    }
}
