use flate2::{Compress, Compression, FlushCompress};

use super::*;

/// A frame as its sender makes it.
pub(crate) fn frame(side: Side, first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x12, 0x34, 0x56, 0x78];
    let masked = u8::from(side == Side::Client) << 7;
    let mut frame = vec![first];
    match payload.len() {
        len @ 0..=125 => frame.push(masked | len as u8),
        len @ 126..=0xffff => {
            frame.push(masked | 126);
            frame.extend((len as u16).to_be_bytes());
        }
        len => {
            frame.push(masked | 127);
            frame.extend((len as u64).to_be_bytes());
        }
    }
    if side == Side::Client {
        frame.extend(mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    } else {
        frame.extend(payload);
    }
    frame
}

fn read(
    side: Side,
    extensions: &str,
    bytes: &[u8],
    cut: usize,
) -> (Vec<u8>, Option<(Fault, usize)>) {
    let fields = [(&b"Sec-WebSocket-Extensions"[..], extensions.as_bytes())];
    let extensions = Extensions::read(fields.into_iter());
    let mut reader = Reader::new(side, extensions, &MemoryBudget::default());
    let (mut out, mut fault) = (Vec::new(), None);
    for piece in bytes.chunks(cut) {
        reader.data(piece, &mut |read| match read {
            Ok(bytes) => out.extend_from_slice(bytes),
            // With how much was told before it.
            Err(found) => assert!(fault.replace((found, out.len())).is_none(), "told once"),
        });
    }
    (out, fault)
}

fn all(side: Side, extensions: &str, bytes: &[u8]) -> (Vec<u8>, Option<Fault>) {
    let whole = read(side, extensions, bytes, usize::MAX);
    for cut in [1, 3, 1000] {
        assert_eq!(read(side, extensions, bytes, cut), whole);
    }
    (whole.0, whole.1.map(|(fault, _)| fault))
}

fn deflate(state: &mut Compress, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 100);
    state.compress_vec(text, &mut out, FlushCompress::Sync).unwrap();
    out.truncate(out.len() - TAIL.len());
    out
}

#[test]
fn accepts_messages_of_either_side_over_frames() {
    for side in [Side::Client, Side::Server] {
        let long = vec![b'l'; 70_000];
        let frames = [
            frame(side, 1, b"one "),
            frame(side, 0x89, b"ping"),
            frame(side, 0, b""),
            frame(side, 0x80, b"message"),
            frame(side, 0x82, &[b'm'; 300]),
            frame(side, 0x82, &long),
            frame(side, 0x88, b""),
        ];
        let expected = [&b"one message"[..], &[b'm'; 300], &long].concat();
        assert_eq!(all(side, "", &frames.concat()), (expected, None));
    }
}

#[test]
fn accepts_compression_with_and_without_context() {
    let side = Side::Server;
    let mut state = Compress::new(Compression::default(), false);
    let (first, second) =
        (deflate(&mut state, b"hello hello"), deflate(&mut state, b"hello again"));
    let (start, rest) = first.split_at(4);
    let frames = [
        frame(side, 0x41, start),
        frame(side, 0x80, rest),
        frame(side, 0x81, b" plain "),
        frame(side, 0xc1, &second),
    ];
    let text = b"hello hello plain hello again".to_vec();
    assert_eq!(all(side, "permessage-deflate", &frames.concat()), (text, None));
    let each = |text: &[u8]| deflate(&mut Compress::new(Compression::default(), false), text);
    let frames = [frame(side, 0xc1, &each(b"hello")), frame(side, 0xc2, &each(b"hello"))].concat();
    let extensions = "permessage-deflate; server_no_context_takeover; client_max_window_bits=9";
    assert_eq!(all(side, extensions, &frames), (b"hellohello".to_vec(), None));
}

/// Chromium has what came before at hand, whatever was negotiated.
#[test]
fn accepts_references_to_earlier_messages_where_there_should_be_none() {
    let mut state = Compress::new(Compression::best(), false);
    let first = deflate(&mut state, b"EVIL is not in the second message");
    let second = deflate(&mut state, b"EVIL is not in the second message");
    assert!(second.len() < 8, "it refers to the first one");
    for (side, extensions) in [
        (Side::Server, "permessage-deflate; server_no_context_takeover"),
        (Side::Client, "permessage-deflate; client_no_context_takeover"),
    ] {
        let frames = [frame(side, 0xc1, &first), frame(side, 0xc1, &second)].concat();
        let text = b"EVIL is not in the second message".repeat(2);
        assert_eq!(all(side, extensions, &frames), (text, None));
    }
}

/// Who goes on with what came before is still in that block, who begins anew is not.
#[test]
fn refuses_messages_that_end_within_a_block_where_each_is_compressed_alone() {
    let side = Side::Server;
    let alone = "permessage-deflate; server_no_context_takeover";
    let stored = b"\0\x64\0\x9b\xffits content".to_vec();
    let text = b"its content\0\0\xff\xff".to_vec();
    let bytes = frame(side, 0xc1, &stored);
    assert_eq!(all(side, alone, &bytes), (text.clone(), Some(Fault::Malformed)));
    assert_eq!(all(side, "permessage-deflate", &bytes), (text, None));
    let whole = deflate(&mut Compress::new(Compression::default(), false), b"hello hello hello");
    for len in 0..whole.len() {
        let bytes = frame(side, 0xc1, &whole[..len]);
        assert_eq!(all(side, alone, &bytes).1, Some(Fault::Malformed), "{len}");
    }
    // Within the header of a stored block, from its first bit to its last byte.
    for len in 0..5 {
        let bytes = frame(side, 0xc1, &b"\0\0\0\xff\xff"[..len]);
        let fault = (len != 1).then_some(Fault::Malformed);
        assert_eq!(all(side, alone, &bytes), (Vec::new(), fault), "{len}");
    }
    // A last block is an end, too, with a byte that the next one begins with (RFC 7692, section 7.2.3.4).
    let mut last = Vec::with_capacity(100);
    let mut state = Compress::new(Compression::default(), false);
    state.compress_vec(b"hello", &mut last, FlushCompress::Finish).unwrap();
    last.push(0);
    let bytes = [frame(side, 0xc1, &last), frame(side, 0xc1, &last)].concat();
    for extensions in [alone, "permessage-deflate"] {
        assert_eq!(all(side, extensions, &bytes), (b"hellohello".to_vec(), None));
    }
}

/// Who begins anew behind a last block is in another place than who goes on, if nothing follows it.
#[test]
fn refuses_messages_that_end_with_a_last_block() {
    let side = Side::Server;
    let evil = deflate(&mut Compress::new(Compression::default(), false), b"EVIL");
    let hidden = frame(side, 0xc1, &[&b"\0\0\0\xff\xff"[..], &evil].concat());
    let last = b"\x01\0\0\xff\xff";
    for extensions in ["permessage-deflate", "permessage-deflate; server_no_context_takeover"] {
        let bytes = [frame(side, 0xc1, last), hidden.clone()].concat();
        assert_eq!(all(side, extensions, &bytes).1, Some(Fault::Malformed));
        let bytes = [frame(side, 0xc1, &[&last[..], b"\0"].concat()), hidden.clone()].concat();
        assert_eq!(all(side, extensions, &bytes), (b"EVIL".to_vec(), None));
        // From then on each message is looked at.
        let bytes = [&bytes, &frame(side, 0xc1, b"\0\x01")[..]].concat();
        assert_eq!(all(side, extensions, &bytes).1, Some(Fault::Malformed));
    }
}

#[test]
fn refuses_what_endpoints_close_the_connection_for() {
    let server = Side::Server;
    for faulty in [
        frame(Side::Client, 0x81, b"x"),
        frame(server, 0x83, b"x"),
        frame(server, 0xc1, b"x"),
        frame(server, 0xa1, b"x"),
        frame(server, 0x80, b"x"),
        frame(server, 0x09, b"x"),
        frame(server, 0x89, &[b'x'; 126]),
        [frame(server, 1, b"a"), frame(server, 0x81, b"b")].concat(),
        b"\x81\x7e\0\x05abcde".to_vec(),
        b"\x81\x7f\0\0\0\0\0\0\0\x05abcde".to_vec(),
    ] {
        let (_, fault) = all(server, "", &faulty);
        assert_eq!(fault, Some(Fault::Malformed), "{}", faulty.escape_ascii());
    }
    assert_eq!(all(Side::Client, "", &frame(server, 0x81, b"x")).1, Some(Fault::Malformed));
    let junk = frame(server, 0xc1, b"\xff\xff\xff");
    assert_eq!(all(server, "permessage-deflate", &junk).1, Some(Fault::Malformed));
    // What follows is shown as it is sent.
    let bytes = [frame(server, 0x83, b""), b"as it is".to_vec()].concat();
    assert!(read(server, "", &bytes, usize::MAX).0.ends_with(b"as it is"));
}

#[test]
fn refuses_bombs() {
    let mut state = Compress::new(Compression::best(), false);
    let bomb = deflate(&mut state, &vec![0; 40 << 20]);
    let (out, fault) = all(Side::Server, "permessage-deflate", &frame(Side::Server, 0xc2, &bomb));
    assert!(fault.is_none() && out.len() == 40 << 20, "within the ratio that deflate has");
    // An empty last block, over and over.
    let ends = frame(Side::Server, 0xc2, &b"\x03\0".repeat(100));
    let over_cap = read(Side::Server, "permessage-deflate", &ends, 7).1;
    assert_eq!(over_cap.unwrap().0, Fault::OverCap);
    let budget = MemoryBudget::new(INFLATE_MEMORY);
    let extensions = Extensions { deflate: true, ..Extensions::default() };
    let first = Reader::new(Side::Server, extensions, &budget);
    let second = Reader::new(Side::Server, extensions, &budget);
    assert!(first.inflate.is_some() && second.inflate.is_none());
    drop(first);
    assert_eq!(budget.left(), INFLATE_MEMORY);
    let twice = Extensions { no_takeover: [true; 2], ..extensions };
    assert!(Reader::new(Side::Server, twice, &budget).inflate.is_none());
}

#[test]
fn accepts_and_refuses_extensions() {
    let read = |text: &str| {
        Extensions::read([(&b"SEC-WebSocket-Extensions"[..], text.as_bytes())].into_iter())
    };
    assert_eq!(read(" ,"), Extensions::default());
    assert!(read("PerMessage-Deflate").deflate && !read("permessage-deflate").has_unknown);
    assert!(read("x-other, permessage-deflate; client_no_context_takeover").has_unknown);
    assert_eq!(read("permessage-deflate;client_no_context_takeover").no_takeover, [true, false]);
}
