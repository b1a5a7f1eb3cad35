//! Seeds of the parsers: what each of them accepts, in every variety.

use std::io::Write;

use mmtls_keyshare::agent::{
    Datagram, Exempt, MAX_DATAGRAM_BYTES, Role, SecretKind, TrafficSecret,
};
use mmtls_keyshare::keylog::Label;
use mmtls_keyshare::message::{
    Direction, EchKeyRequest, EndpointOpened, Epoch, Greeting, KeyEntry, KeyRequest, Message,
    NullKeys, Reason, Refused, Relayed, SessionKeys, Steering, encode,
};
use mmtls_keyshare::{Flow, SecretBytes};
use mmtls_packet_io::capture::{PcapngWriter, SecretsKind};

use super::Add;

pub(super) fn record_open(add: Add<'_>) {
    // One honest record, changed and cut, and one that is nothing, per version and cipher.
    let mut seen = Vec::new();
    for (number, suite) in mmtls_record::suite::all().enumerate() {
        let kind = (suite.version(), suite.cipher(), suite.has_private_tag());
        if seen.contains(&kind) {
            continue;
        }
        seen.push(kind);
        let settings = 2 | (number as u8 & 1);
        let head = [number as u8, settings, 0, 0, 0, 9, 1, 3];
        let padding = if suite.cipher().is_cbc() || suite.version() == 0x0304 { 20 } else { 0 };
        let rest = [&[padding, 0, 9, 1, 0, 30, 0x80, 1, 3][..], b"content of a record"].concat();
        add("record_open", &format!("suite-{:04x}", suite.number()), [&head[..], &rest].concat());
        let head = [number as u8, 1, 0, 0, 0, 9, 0, 3, 0, 48, 3];
        add(
            "record_open",
            &format!("stranger-{:04x}", suite.number()),
            [&head[..], &[5; 48]].concat(),
        );
    }
}

pub(super) fn http1(add: Add<'_>) {
    const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
    let post = "POST /a?b HTTP/1.1\r\nHost: h\r\nUser-Agent: c\r\nContent-Type: t\r\n\
                Content-Length: 3\r\n\r\nabc";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4;x=\"y\"\r\nWiki\r\n\
                   0A \r\n0123456789\r\n000\r\nTrailer: t\r\n\r\nHTTP/1.1 204 No\r\n\r\n";
    let connect = "CONNECT h:1 HTTP/1.1\r\nContent-Length: 5\r\n\r\n";
    let upgrade = "GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n";
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    let both = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    let lengths = "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd";
    let bad_chunk = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\nxy\r\n";
    for (name, client, server) in [
        (
            "post",
            post,
            "HTTP/1.1 201 Created\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nok",
        ),
        ("chunked", GET, chunked),
        ("old", "GET / HTTP/1.0\n\n", "HTTP/1.0 200 OK\n\nuntil close\r\n\r\nmore"),
        ("head", "HEAD / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", ok),
        ("connect", connect, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nxxGET"),
        ("connect-refused", connect, "HTTP/1.1 407 No\r\nContent-Length: 1\r\n\r\nx"),
        ("upgrade", upgrade, "HTTP/1.1 101 Switching\r\n\r\n\x01\x02"),
        ("interim", GET, interim),
        ("both-lengths", GET, both),
        ("two-lengths", lengths, "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n"),
        ("bad-chunk", GET, bad_chunk),
        ("bad-head", GET, "HTTP/1.1 200 OK\r\nbad header\r\n\r\nsecret"),
        ("http2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\0\0\x12\x04"),
        ("other", "\x16\x03\x01", "220 smtp"),
    ] {
        let mut bytes = vec![3, 1, 50, 2];
        for (side, text) in [(0, client), (1, server), (0, GET), (1, ok)] {
            bytes.extend([side | 4 << 1, text.len() as u8]);
            bytes.extend_from_slice(text.as_bytes());
        }
        add("http1", name, bytes.clone());
        bytes.extend([1 << 1, 2, 0, 3 << 1, 0, 0, 1, 0, 1, 2 << 1]);
        add("http1", &format!("{name}-gap"), bytes);
    }
}

pub(super) fn literal(add: Add<'_>) {
    let file = |text: &str| [&[0], text.as_bytes()].concat();
    add("literal", "file", file("# comment\r\n\n  secret \r\nHT|54 50|/|31|\n|20|\n|ff00|x|7C|\n"));
    add("literal", "file-bad", file("ok\n|4|\n"));
    let search = |patterns: &[&[u8]], text: &[u8]| {
        let mut bytes =
            vec![1, 3, 1, 7, patterns.len().min(255) as u8 - u8::from(patterns.len() <= 40)];
        for pattern in patterns {
            bytes.push(pattern.len() as u8 - 1);
            bytes.extend_from_slice(pattern);
        }
        bytes.extend_from_slice(text);
        bytes
    };
    add("literal", "one", search(&[b"needle"], b"needneedleneedleedle".repeat(6).as_slice()));
    let nested: [&[u8]; 4] = [b"abcdefgh", b"de", b"cde", b"e"];
    add("literal", "nested", search(&nested, b"xabcdefghabcabcdabcde".repeat(8).as_slice()));
    for count in [40u16, 220, 300] {
        let names: Vec<Vec<u8>> =
            (0..count).map(|it| [&it.to_be_bytes()[..], b"zz"].concat()).collect();
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let text: Vec<u8> = (0..300u16).flat_map(|it| [0, it as u8, b'z', b'z', b'y']).collect();
        add("literal", &format!("many-{count}"), search(&names, &text));
    }
}

fn flow(v6: bool) -> Option<Flow> {
    let (client, server) = if v6 {
        ("[2001:db8::1]:40000", "[2001:db8::2]:443")
    } else {
        ("10.0.0.1:40000", "10.0.0.2:443")
    };
    Flow::new(client.parse().ok()?, server.parse().ok()?)
}

fn entry(direction: Direction, epoch: u32, key: &[u8], mac_key: &[u8]) -> KeyEntry {
    KeyEntry {
        direction,
        epoch: Epoch(epoch),
        key: SecretBytes::new(key).expect("short enough"),
        iv: SecretBytes::new(&[4; 12]).expect("short enough"),
        mac_key: SecretBytes::new(mac_key).expect("short enough"),
    }
}

pub(super) fn key_message(add: Add<'_>) {
    let greeting = || Greeting { software: "mmtls 0.1".to_owned(), capabilities: 3 };
    let messages = [
        ("hello", Message::Hello(greeting())),
        ("welcome", Message::Welcome(greeting())),
        (
            "session-keys",
            Message::SessionKeys(SessionKeys {
                client_random: [1; 32],
                server_random: Some([2; 32]),
                version: 0x0304,
                cipher_suite: 0x1301,
                flow: flow(false),
                keys: vec![
                    entry(Direction::ClientToServer, 2, &[3; 16], &[]),
                    entry(Direction::ServerToClient, 2, &[5; 16], &[]),
                ],
            }),
        ),
        (
            "session-keys-1.2",
            Message::SessionKeys(SessionKeys {
                client_random: [1; 32],
                server_random: None,
                version: 0x0303,
                cipher_suite: 0xc028,
                flow: flow(true),
                keys: vec![entry(Direction::ServerToClient, 7, &[3; 32], &[6; 48])],
            }),
        ),
        (
            "null-keys",
            Message::NullKeys(NullKeys { client_random: [1; 32], direction: None, flow: None }),
        ),
        (
            "null-keys-of-a-direction",
            Message::NullKeys(NullKeys {
                client_random: [1; 32],
                direction: Some(Direction::ClientToServer),
                flow: None,
            }),
        ),
        (
            "key-request",
            Message::KeyRequest(KeyRequest {
                client_random: [1; 32],
                server_random: [2; 32],
                version: 0x0304,
                cipher_suite: 0x1303,
                direction: Direction::ClientToServer,
                epoch: Epoch(3),
            }),
        ),
        (
            "ech-key-request",
            Message::EchKeyRequest(EchKeyRequest {
                request: KeyRequest {
                    client_random: [1; 32],
                    server_random: [2; 32],
                    version: 0x0304,
                    cipher_suite: 0x1303,
                    direction: Direction::ClientToServer,
                    epoch: Epoch(2),
                },
                flow: flow(true),
                client_hello: vec![3; 70].into(),
            }),
        ),
        ("refused", Message::Refused(Refused { client_random: [1; 32], reason: Reason(3) })),
        ("live-keys-request", Message::LiveKeysRequest),
        (
            "live-keys",
            Message::LiveKeys(SessionKeys {
                client_random: [1; 32],
                server_random: Some([2; 32]),
                version: 0x0304,
                cipher_suite: 0x1302,
                flow: None,
                keys: vec![entry(Direction::ServerToClient, 3, &[5; 32], &[])],
            }),
        ),
        (
            "endpoint-opened",
            Message::EndpointOpened(EndpointOpened {
                endpoint: 7,
                address: "10.0.0.1:40000".parse().expect("an address"),
                capabilities: 3,
                authenticated: true,
            }),
        ),
        ("endpoint-closed", Message::EndpointClosed(7)),
        ("steering", Message::Steering(Steering { workers: 2, seed: 7 })),
        (
            "relayed",
            Message::Relayed(Relayed {
                endpoint: 7,
                message: Box::new(Message::NullKeys(NullKeys {
                    client_random: [1; 32],
                    direction: None,
                    flow: flow(true),
                })),
            }),
        ),
        ("ping", Message::Ping(7)),
        ("pong", Message::Pong(7)),
    ];
    let mut together = vec![9, 1, 200, 3];
    for (name, message) in &messages {
        let frame = encode(message).expect("a legal message");
        add("key_message", name, [&[2, 1, 40, 9], &frame[..]].concat());
        together.extend_from_slice(&frame);
    }
    together.extend([1, 99, 0, 2, 0, 0, 1, 8, 0, 9]);
    add("key_message", "together", together);
}

pub(super) fn agent_datagram(add: Add<'_>) {
    let kinds = [
        "CLIENT_EARLY_TRAFFIC_SECRET",
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
        "SERVER_HANDSHAKE_TRAFFIC_SECRET",
        "CLIENT_TRAFFIC_SECRET_0",
        "SERVER_TRAFFIC_SECRET_0",
        "CLIENT_TRAFFIC_SECRET_N",
        "SERVER_TRAFFIC_SECRET_N",
        "CLIENT_RANDOM",
    ];
    let mut encoded = |name: &str, datagram: &Datagram<'_>| {
        let mut out = [0; MAX_DATAGRAM_BYTES];
        let len = datagram.encode(&mut out).expect("a legal datagram");
        add("agent_datagram", name, out[..len].to_vec());
    };
    let exempt = Exempt { client_random: &[1; 32], flow: flow(true) };
    encoded("exempt", &Datagram::Exempt(exempt));
    for (number, label) in kinds.iter().enumerate() {
        let secret = TrafficSecret {
            kind: Label::parse(label.as_bytes())
                .and_then(SecretKind::from_label)
                .expect("a known label"),
            role: if number & 1 == 0 { Role::Client } else { Role::Server },
            client_random: &[1; 32],
            server_random: &[2; 32],
            version: 0x0304,
            cipher_suite: 0x1302,
            secret: if number & 2 == 0 { b"*.example.org,a.test" } else { &[7; 48] },
            server_name: b"www.example.org",
            flow: if number < 4 { flow(number & 1 == 0) } else { None },
        };
        encoded(label, &Datagram::TrafficSecret(secret));
    }
}

const IPV4: [u8; 20] = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 3];

pub(super) fn capture_reader(add: Add<'_>) {
    let ethernet = [&[2; 12][..], &[8, 0], &IPV4].concat();
    let cooked = [&[0; 14][..], &[8, 0], &IPV4].concat();
    let cooked2 = [&[8, 0][..], &[0; 18], &IPV4].concat();
    let loopback = [&[2, 0, 0, 0][..], &IPV4].concat();
    let links: [(u32, &[u8]); 7] = [
        (1, &ethernet),
        (101, &IPV4),
        (113, &cooked),
        (276, &cooked2),
        (0, &loopback),
        (108, &loopback),
        (127, &ethernet),
    ];
    let mut ng = PcapngWriter::new(Vec::new()).expect("memory does not fail");
    ng.secrets(SecretsKind::TLS_KEY_LOG, b"# keys\n").expect("memory does not fail");
    ng.packet(1_700_000_000_123_456_789, &ethernet, 1500).expect("memory does not fail");
    let ng = ng.into_inner();
    for pieces in [0, 5] {
        let with = |file: &[u8]| [&[pieces], file].concat();
        add("capture_reader", &format!("pcapng-{pieces}"), with(&ng));
        for (link, packet) in links {
            for (name, magic) in
                [("le", 0xa1b2_c3d4), ("ns", 0xa1b2_3c4d), ("modified", 0xa1b2_cd34_u32)]
            {
                let file = pcap(magic, false, link, packet);
                // All formats of Ethernet, one of each other link.
                if link == 1 || name == "le" {
                    add("capture_reader", &format!("pcap-{name}-{link}-{pieces}"), with(&file));
                }
            }
        }
        let big_endian = pcap(0xa1b2_c3d4, true, 1, &ethernet);
        add("capture_reader", &format!("pcap-be-{pieces}"), with(&big_endian));
        add("capture_reader", &format!("blocks-le-{pieces}"), with(&blocks(false, &ethernet)));
        add("capture_reader", &format!("blocks-be-{pieces}"), with(&blocks(true, &ethernet)));
        add("capture_reader", &format!("gzip-{pieces}"), with(&gzip(&ng)));
        let twice = [gzip(&ng[..48]), gzip(&ng[48..])].concat();
        add("capture_reader", &format!("gzip-members-{pieces}"), with(&twice));
        add("capture_reader", &format!("cut-{pieces}"), with(&ng[..ng.len() - 3]));
    }
}

fn word(big_endian: bool, value: u32) -> [u8; 4] {
    if big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
}

fn pcap(magic: u32, big_endian: bool, link: u32, packet: &[u8]) -> Vec<u8> {
    let word = |value| word(big_endian, value);
    let version = if big_endian { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
    let mut file = word(magic).to_vec();
    file.extend(version);
    for value in [0, 0, 65535, link] {
        file.extend(word(value));
    }
    for seconds in 0..2 {
        for value in [seconds, 999_999, packet.len() as u32, packet.len() as u32 + 7] {
            file.extend(word(value));
        }
        if magic == 0xa1b2_cd34 {
            file.extend([0; 8]);
        }
        file.extend_from_slice(packet);
    }
    file
}

/// A section with every kind of block, and an interface with options.
fn blocks(big_endian: bool, packet: &[u8]) -> Vec<u8> {
    let word = |value| word(big_endian, value);
    let half = |value: u16| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let padding = body.len().wrapping_neg() & 3;
        let total = word((12 + body.len() + padding) as u32);
        file.extend(word(kind));
        file.extend(total);
        file.extend_from_slice(body);
        file.extend_from_slice(&[0; 3][..padding]);
        file.extend(total);
    };
    block(0x0a0d_0d0a, &[&word(0x1a2b_3c4d)[..], &half(1), &half(0), &[0xff; 8]].concat());
    let options = [
        &half(9)[..],
        &half(1),
        &[9, 0, 0, 0],
        &half(14),
        &half(8),
        &[0, 0, 0, 1, 0, 0, 0, 0],
        &half(0),
        &half(0),
    ]
    .concat();
    block(1, &[&half(1)[..], &half(0), &word(96), &options].concat());
    block(1, &[&half(101)[..], &half(0), &word(0)].concat());
    let len = packet.len() as u32;
    let fields =
        |first: [u8; 4]| [first, word(0x0001_0000), word(5), word(len), word(len + 100)].concat();
    block(6, &[&fields(word(0))[..], packet].concat());
    block(6, &[&fields(word(1))[..], packet].concat());
    let both = [half(0), half(3)].concat();
    block(2, &[&fields([both[0], both[1], both[2], both[3]])[..], packet].concat());
    block(3, &[&word(len)[..], packet].concat());
    block(10, &[&word(0x544c_534b)[..], &word(5), b"# key"].concat());
    block(5, &[0; 12]);
    block(0x0bad, b"custom");
    file
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).expect("memory does not fail");
    encoder.finish().expect("memory does not fail")
}

pub(super) fn keylog(add: Add<'_>) {
    let random = "11".repeat(32);
    let line = |label: &str, len: usize| format!("{label} {random} {}\n", "ab".repeat(len));
    let mut all = String::from("# comment\r\n\n");
    for label in [
        "CLIENT_EARLY_TRAFFIC_SECRET",
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
        "SERVER_HANDSHAKE_TRAFFIC_SECRET",
        "CLIENT_TRAFFIC_SECRET_0",
        "SERVER_TRAFFIC_SECRET_0",
        "EXPORTER_SECRET",
        "ECH_SECRET",
        "ECH_CONFIG",
    ] {
        all.push_str(&line(label, 32));
    }
    add("keylog", "all", [&[3, 0], all.as_bytes()].concat());
    let longer = line("CLIENT_TRAFFIC_SECRET_0", 48) + &line("CLIENT_TRAFFIC_SECRET_2", 48);
    add("keylog", "sha384", [&[0, 5], longer.as_bytes()].concat());
    let again =
        all.replace("ab", "cd") + &all + "CLIENT_RANDOM x y\nbad\n CLIENT_TRAFFIC_SECRET_0 \n";
    add("keylog", "again-and-bad", [&[255, 1], again.trim_end().as_bytes()].concat());
    let ech = mmtls_testkit::ech::lines().concat();
    add("keylog", "ech", [&[9, 0], ech.as_bytes(), &mmtls_testkit::ech::hello()].concat());
    let long = format!("{}\n{}", "x".repeat(4100), line("SERVER_TRAFFIC_SECRET_0", 32));
    add("keylog", "long-line", [&[100, 0], long.as_bytes()].concat());
}

pub(super) fn keylog_line(add: Add<'_>) {
    let random = "0b".repeat(32);
    for (name, label, len) in [
        ("master", "CLIENT_RANDOM", 48),
        ("traffic", "SERVER_TRAFFIC_SECRET_1", 32),
        ("next", "CLIENT_TRAFFIC_SECRET_N", 32),
        ("ech-secret", "ECH_SECRET", 64),
        ("ech-config", "ECH_CONFIG", 66),
    ] {
        add("keylog_line", name, format!("{label} {random} {}\n", "cd".repeat(len)).into_bytes());
    }
    add("keylog_line", "rsa", format!("RSA {} {}", &random[..16], "ef".repeat(48)).into_bytes());
    add("keylog_line", "comment", b"# written by nobody".to_vec());
}
