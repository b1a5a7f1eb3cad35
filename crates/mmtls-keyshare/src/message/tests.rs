//! Round trips, and everything that is not a message.

use super::*;

fn flow(v6: bool) -> Flow {
    let (client, server) = if v6 {
        ("[2001:db8::1]:40000", "[2001:db8::2]:443")
    } else {
        ("192.0.2.1:40000", "192.0.2.2:443")
    };
    Flow::new(client.parse().unwrap(), server.parse().unwrap()).unwrap()
}

fn entry(direction: Direction, epoch: Epoch, mac: usize) -> KeyEntry {
    KeyEntry {
        direction,
        epoch,
        key: SecretBytes::new(&[7; 32]).unwrap(),
        iv: SecretBytes::new(&[8; 12]).unwrap(),
        mac_key: SecretBytes::new(&vec![9; mac]).unwrap(),
    }
}

fn greeting() -> Greeting {
    Greeting { software: "mmtls/0.1.0 täst".into(), capabilities: 0x8000_0001 }
}

fn session(server_random: Option<Random>, flow: Option<Flow>, count: usize) -> Message {
    Message::SessionKeys(keys(server_random, flow, count))
}

fn keys(server_random: Option<Random>, flow: Option<Flow>, count: usize) -> SessionKeys {
    SessionKeys {
        client_random: [1; 32],
        server_random,
        version: 0x0304,
        cipher_suite: 0x1302,
        flow,
        keys: (0..count)
            .map(|n| {
                let direction = [Direction::ClientToServer, Direction::ServerToClient][n % 2];
                entry(direction, Epoch(n as u32), n * 4)
            })
            .collect(),
    }
}

fn null(client_random: Random, direction: Option<Direction>, flow: Option<Flow>) -> NullKeys {
    NullKeys { client_random, direction, flow }
}

fn request() -> KeyRequest {
    KeyRequest {
        client_random: [4; 32],
        server_random: [5; 32],
        version: 0x0304,
        cipher_suite: 0x1301,
        direction: Direction::ServerToClient,
        epoch: Epoch(u32::MAX),
    }
}

fn ech_request(flow: Option<Flow>, hello: usize) -> Message {
    let client_hello = vec![3; hello].into();
    Message::EchKeyRequest(EchKeyRequest { request: request(), flow, client_hello })
}

fn opened(address: &str) -> EndpointOpened {
    let address = address.parse().unwrap();
    EndpointOpened { endpoint: 7, address, capabilities: 3, authenticated: true }
}

fn relayed(message: Message) -> Message {
    Message::Relayed(Relayed { endpoint: 7, message: Box::new(message) })
}

fn samples() -> Vec<Message> {
    vec![
        Message::Hello(greeting()),
        Message::Welcome(greeting()),
        session(None, None, 1),
        session(Some([2; 32]), Some(flow(false)), 2),
        session(Some([2; 32]), Some(flow(true)), MAX_KEYS),
        Message::NullKeys(null([3; 32], None, Some(flow(true)))),
        Message::NullKeys(null([3; 32], Some(Direction::ClientToServer), None)),
        Message::NullKeys(null([3; 32], Some(Direction::ServerToClient), None)),
        Message::KeyRequest(request()),
        ech_request(Some(flow(true)), 100),
        ech_request(None, 0),
        Message::Refused(Refused { client_random: [7; 32], reason: Reason(999) }),
        Message::Ping(1),
        Message::Pong(u64::MAX),
        Message::LiveKeysRequest,
        Message::LiveKeys(keys(Some([2; 32]), Some(flow(false)), 2)),
        Message::EndpointOpened(opened("192.0.2.1:40000")),
        Message::EndpointOpened(opened("[2001:db8::1]:40000")),
        Message::EndpointClosed(7),
        Message::Steering(Steering { workers: 2, seed: 0xfeed_beef }),
        relayed(session(Some([2; 32]), Some(flow(true)), MAX_KEYS)),
        relayed(Message::LiveKeysRequest),
        relayed(ech_request(Some(flow(true)), 9)),
    ]
}

fn only(input: &[u8]) -> Message {
    match decode(input) {
        Ok(Decoded::Message { message, consumed }) => {
            assert_eq!(consumed, input.len());
            message
        }
        Ok(_) => panic!("no message"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn accepts_what_it_encodes() {
    for message in samples() {
        let bytes = encode(&message).unwrap();
        assert_eq!(encode(&only(&bytes)).unwrap(), bytes);
    }
}

#[test]
fn accepts_the_documented_bytes() {
    let bytes = encode(&Message::NullKeys(null([0xAB; 32], None, Some(flow(false))))).unwrap();
    let mut expected = vec![1, 4, 0, 46];
    expected.extend([0xAB; 32]);
    expected.extend([2, 4, 192, 0, 2, 1, 0x9C, 0x40, 192, 0, 2, 2, 1, 0xBB]);
    assert_eq!(*bytes, expected);

    let bytes = encode(&session(Some([2; 32]), None, 1)).unwrap();
    let mut expected = vec![1, 3, 0, 0];
    expected.extend([1; 32]);
    expected.extend([3, 4, 0x13, 2, 32]);
    expected.extend([2; 32]);
    expected.extend([0, 1, 0, 0, 0, 0, 0, 32]);
    expected.extend([7; 32]);
    expected.push(12);
    expected.extend([8; 12]);
    expected.push(0);
    expected[3] = u8::try_from(expected.len() - 4).unwrap();
    assert_eq!(*bytes, expected);
}

#[test]
fn refuses_every_truncation() {
    for message in samples() {
        let bytes = encode(&message).unwrap();
        for length in 0..bytes.len() {
            // Cut in the stream: more is needed.
            match decode(&bytes[..length]) {
                Ok(Decoded::NeedMore { bytes: need }) => assert!(need > length),
                _ => panic!("a cut message of type {}", message.kind()),
            }
            // Cut in the message, with a header that agrees: malformed.
            if length >= HEADER_BYTES {
                let mut cut = bytes[..length].to_vec();
                cut[2..4].copy_from_slice(&((length - HEADER_BYTES) as u16).to_be_bytes());
                assert!(decode(&cut).is_err(), "type {}", message.kind());
            }
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        longer[2..4].copy_from_slice(&((bytes.len() - HEADER_BYTES + 1) as u16).to_be_bytes());
        assert_eq!(decode(&longer).err(), Some(DecodeError::Trailing(message.kind())));
    }
}

#[test]
fn refuses_or_re_encodes_every_byte_change() {
    for message in samples() {
        let bytes = encode(&message).unwrap();
        for index in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.to_vec();
                changed[index] = value;
                if let Ok(Decoded::Message { message, consumed }) = decode(&changed) {
                    // One message has one encoding.
                    assert_eq!(**encode(&message).unwrap(), changed[..consumed]);
                }
            }
        }
    }
}

#[test]
fn refuses_bad_frames() {
    assert_eq!(decode(&[2]).err(), Some(DecodeError::Version(2)));
    assert_eq!(decode(&[1, 3, 0xFF, 0xFF]).err(), Some(DecodeError::TooLong { bytes: 65539 }));
    let longest = (MAX_MESSAGE_BYTES - HEADER_BYTES) as u16;
    let [high, low] = longest.to_be_bytes();
    assert!(matches!(decode(&[1, 3, high, low]), Ok(Decoded::NeedMore { bytes: 4096 })));
    assert!(decode(&[1, 3, high, low + 1]).is_err());
    let mapped = {
        let mut bytes = vec![1, 4, 0, 70];
        bytes.extend([0; 32]);
        bytes.extend([2, 6]);
        for _ in 0..2 {
            bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1, 0, 1]);
        }
        bytes
    };
    let fault = DecodeError::Value { kind: 4, field: "flow" };
    assert_eq!(decode(&mapped).err(), Some(fault));
}

#[test]
fn accepts_unknown_types_by_skipping_them() {
    assert!(matches!(
        decode(&[1, 200, 0, 2, 9, 9, 1]),
        Ok(Decoded::Unknown { kind: 200, consumed: 6 })
    ));
    let mut decoder = Decoder::new();
    let mut count = 0;
    decoder
        .feed(&[1, 200, 0, 1, 9, 1, 7, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5], |m| {
            assert!(matches!(m, Message::Ping(5)));
            count += 1;
        })
        .unwrap();
    assert_eq!((count, decoder.skipped()), (1, 1));
}

#[test]
fn accepts_any_segmentation() {
    let mut stream = Vec::new();
    for message in samples() {
        stream.extend_from_slice(&encode(&message).unwrap());
    }
    for step in [1, 2, 3, 5, 7, 64, 100, 1000, stream.len()] {
        let mut decoder = Decoder::new();
        let mut again = Vec::new();
        for chunk in stream.chunks(step) {
            decoder.feed(chunk, |m| again.extend_from_slice(&encode(&m).unwrap())).unwrap();
        }
        assert!(again == stream, "step {step}");
    }
}

#[test]
fn refuses_to_encode_beyond_the_limits() {
    for count in [0, MAX_KEYS + 1] {
        assert_eq!(encode(&session(None, None, count)).err(), Some(EncodeError::Keys));
    }
    let mut bad = greeting();
    bad.software = "a\n".into();
    assert_eq!(encode(&Message::Hello(bad)).err(), Some(EncodeError::Software));
    let mut long = greeting();
    long.software = "a".repeat(256);
    assert_eq!(encode(&Message::Hello(long)).err(), Some(EncodeError::Software));
    assert!(SecretBytes::<32>::new(&[0; 33]).is_none());
}

/// However it is asked, and relayed.
#[test]
fn accepts_a_client_hello_of_the_longest() {
    for flow in [Some(flow(true)), None] {
        for length in [MAX_CLIENT_HELLO_BYTES, MAX_CLIENT_HELLO_BYTES + 1] {
            let fits = length == MAX_CLIENT_HELLO_BYTES;
            for message in [ech_request(flow, length), relayed(ech_request(flow, length))] {
                let encoded = encode(&message);
                assert_eq!(encoded.as_ref().err(), (!fits).then_some(&EncodeError::ClientHello));
                if let Ok(bytes) = encoded {
                    assert_eq!(encode(&only(&bytes)).unwrap(), bytes);
                }
            }
        }
    }
    // As a peer could write it: then it could not be relayed.
    let mut bytes = encode(&ech_request(None, MAX_CLIENT_HELLO_BYTES)).unwrap().to_vec();
    bytes.push(3);
    let at = bytes.len() - MAX_CLIENT_HELLO_BYTES - 3;
    for field in [2, at] {
        let length = u16::from_be_bytes([bytes[field], bytes[field + 1]]) + 1;
        bytes[field..field + 2].copy_from_slice(&length.to_be_bytes());
    }
    assert_eq!(decode(&bytes).err(), Some(DecodeError::Value { kind: 14, field: "client_hello" }));
}

#[test]
fn accepts_mapped_addresses_as_ipv4() {
    let flow =
        Flow::new("[::ffff:192.0.2.1]:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap()).unwrap();
    assert!(flow.client().is_ipv4());
    assert!(Flow::new("[::1]:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap()).is_none());
}

#[test]
fn refuses_to_relay_what_is_of_the_channel_itself() {
    for message in [Message::Ping(1), Message::Hello(greeting()), relayed(Message::Ping(1))] {
        let inner = encode(&message).map(|bytes| bytes.to_vec());
        assert!(matches!(encode(&relayed(message)), Err(EncodeError::Relayed)));
        // As a peer could write it.
        let Ok(inner) = inner else { continue };
        let mut bytes = vec![VERSION, 13, 0, inner.len() as u8 + 4, 0, 0, 0, 7];
        bytes.extend(&inner);
        assert!(matches!(decode(&bytes), Err(DecodeError::Value { kind: 13, field: "message" })));
    }
    // Two messages, or half of one.
    let mut two = encode(&relayed(Message::LiveKeysRequest)).unwrap().to_vec();
    two.extend([VERSION, 9, 0, 0]);
    two[3] += 4;
    assert!(decode(&two).is_err());
    let half = [VERSION, 13, 0, 6, 0, 0, 0, 7, VERSION, 9];
    assert!(decode(&half).is_err());
}

#[test]
fn accepts_an_address_in_one_form_only() {
    let mapped = encode(&Message::EndpointOpened(opened("[::ffff:192.0.2.1]:40000"))).unwrap();
    assert_eq!(mapped, encode(&Message::EndpointOpened(opened("192.0.2.1:40000"))).unwrap());
    let mut six = encode(&Message::EndpointOpened(opened("[2001:db8::1]:40000"))).unwrap();
    six[9..25].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);
    assert!(matches!(decode(&six), Err(DecodeError::Value { kind: 11, field: "address" })));
}
