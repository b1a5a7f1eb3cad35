//! Tests of the decoders, on what encoders and attackers make.

use std::io::Write;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use proptest::prelude::*;

use super::*;

const TEXT: &[u8] =
    b"It was a dark and stormy night; the rain fell in torrents. EVIL. The rain fell.";
/// [`TEXT`] as the reference encoder makes it.
const BROTLI: &[u8] = include_bytes!("text.br");
/// [`long_text`], likewise.
const LONG_BROTLI: &[u8] = include_bytes!("long.br");

/// More than a decoder gives at a time, for few bytes.
fn long_text() -> Vec<u8> {
    let mut text = TEXT.repeat(500);
    text.extend(TEXT.iter().rev());
    text
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zlib(text: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn raw(text: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    let mut out = vec![0; zstd_safe::compress_bound(text.len())];
    let len = zstd_safe::compress(&mut out[..], text, 3).unwrap();
    out.truncate(len);
    out
}

/// What comes out, by reading, and the faults.
fn decode_in(coding: &str, body: &[u8], most: usize) -> (Vec<Vec<u8>>, Vec<Fault>) {
    let codings = Codings::read([coding.as_bytes()].into_iter(), false);
    decode_as(&codings, body, most)
}

fn decode_as(codings: &Codings, body: &[u8], most: usize) -> (Vec<Vec<u8>>, Vec<Fault>) {
    let mut out = vec![Vec::new(); MAX_ALL_READINGS];
    let mut faults: Vec<_> = codings.fault().into_iter().collect();
    match Decoder::new(codings, &MemoryBudget::default()) {
        Ok(Some(mut decoder)) => {
            for piece in body.chunks(most) {
                let mut add = |reading: u8, bytes: &[u8]| {
                    assert!(!bytes.is_empty());
                    out[usize::from(reading)].extend_from_slice(bytes);
                };
                decoder.data(piece, &mut add, &mut |fault| faults.push(fault));
            }
            decoder.finish(&mut |fault| faults.push(fault));
        }
        Ok(None) => out[0] = body.to_vec(),
        Err(fault) => faults.push(fault),
    }
    out.retain(|reading| !reading.is_empty());
    (out, faults)
}

/// Whole and in pieces, which must agree.
fn decode(coding: &str, body: &[u8]) -> (Vec<Vec<u8>>, Vec<Fault>) {
    let whole = decode_in(coding, body, usize::MAX);
    for most in [1, 2, 3, 7, 64] {
        let pieces = decode_in(coding, body, most);
        let lens = [&pieces, &whole].map(|it| it.0.iter().map(Vec::len).collect::<Vec<_>>());
        assert!(pieces == whole, "{coding} in pieces of {most}: {lens:?}");
    }
    whole
}

fn text() -> Vec<Vec<u8>> {
    vec![TEXT.to_vec()]
}

#[test]
fn accepts_every_coding_and_stacks_of_them() {
    for (coding, body) in [
        ("gzip", gzip(TEXT)),
        ("X-GZip", gzip(TEXT)),
        ("gzip", zlib(TEXT)),
        ("deflate", zlib(TEXT)),
        ("deflate", raw(TEXT)),
        ("br", BROTLI.to_vec()),
        ("zstd", zstd(TEXT)),
        ("identity, , gzip", gzip(TEXT)),
        ("gzip, zstd", zstd(&gzip(TEXT))),
        ("deflate,gzip,deflate", raw(&gzip(&zlib(TEXT)))),
        ("br, gzip, gzip", gzip(&gzip(BROTLI))),
    ] {
        let (out, faults) = decode(coding, &body);
        // Of several codings, each is also taken for the only one.
        assert!(out[0] == TEXT && faults.is_empty(), "{coding}");
        assert!(out.len() == 1 || coding.contains(','), "{coding}");
    }
    assert_eq!(decode("identity", TEXT), (text(), vec![]));
}

#[test]
fn accepts_codings_that_were_named_and_not_applied() {
    for coding in ["gzip, gzip", "gzip, deflate", "deflate, gzip", "gzip x", "br, x gzip"] {
        let (out, _) = decode(coding, &gzip(TEXT));
        assert!(out.contains(&TEXT.to_vec()), "{coding}");
    }
    assert!(decode("deflate, gzip", &raw(TEXT)).0.contains(&TEXT.to_vec()));
}

#[test]
fn accepts_a_chunked_coding_that_only_some_see() {
    let chunked = |body: &[u8]| {
        let mut out = Vec::new();
        for piece in body.chunks(5) {
            out.extend(format!("{:x}\r\n", piece.len()).as_bytes());
            out.extend([piece, b"\r\n"].concat());
        }
        [&out[..], b"0\r\n\r\nmore"].concat()
    };
    for most in [usize::MAX, 1, 3] {
        let read = |coding: &str, body: &[u8]| {
            let codings = Codings::read([coding.as_bytes()].into_iter(), true);
            decode_as(&codings, body, most)
        };
        assert_eq!(read("", &chunked(TEXT)), (text(), vec![]));
        assert_eq!(read("gzip", &chunked(&gzip(TEXT))), (text(), vec![]));
        assert_eq!(read("gzip", &gzip(TEXT)), (text(), vec![]));
        assert_eq!(read("", TEXT), (vec![], vec![Fault::Malformed]));
    }
}

#[test]
fn accepts_optional_parts_of_gzip_headers() {
    let plain = gzip(TEXT);
    for flags in 0..32u8 {
        let mut body = vec![0x1f, 0x8b, 8, flags, 1, 2, 3, 4, 5, 6];
        for (bit, part) in [
            (EXTRA, &b"\x03\0abc"[..]),
            (NAME, b"name\0"),
            (COMMENT, b"a comment\0"),
            (HEADER_CHECK, b"\0\0"),
        ] {
            if flags & bit != 0 {
                body.extend_from_slice(part);
            }
        }
        body.extend_from_slice(&plain[10..]);
        assert_eq!(decode("gzip", &body), (text(), vec![]), "{flags}");
    }
}

#[test]
fn accepts_several_members_and_names_what_trails() {
    let twice = [TEXT, TEXT].concat();
    for (coding, one) in [("gzip", gzip(TEXT)), ("zstd", zstd(TEXT))] {
        let two = [&one[..], &one].concat();
        assert_eq!(decode(coding, &two), (vec![twice.clone()], vec![Fault::SeveralMembers]));
        for junk in [&b"\0\0\0"[..], b"\x1fjunk", b"EVIL"] {
            let body = [&one[..], junk].concat();
            assert_eq!(decode(coding, &body), (text(), vec![Fault::TrailingBytes]), "{coding}");
        }
    }
    // Python's reader goes over zeros.
    let apart = [&gzip(TEXT)[..], &[0; 9], &gzip(TEXT)].concat();
    let both = vec![Fault::TrailingBytes, Fault::SeveralMembers];
    assert_eq!(decode("gzip", &apart), (vec![twice], both));
    for (coding, one) in [("deflate", zlib(TEXT)), ("deflate", raw(TEXT)), ("br", BROTLI.to_vec())]
    {
        let body = [&one[..], b"junk"].concat();
        assert_eq!(decode(coding, &body), (text(), vec![Fault::TrailingBytes]), "{coding}");
    }
}

#[test]
fn refuses_cut_bodies_and_shows_what_there_was() {
    let long = long_text();
    for (coding, text, body) in [
        ("gzip", TEXT, gzip(TEXT)),
        ("deflate", TEXT, zlib(TEXT)),
        ("br", TEXT, BROTLI.to_vec()),
        ("zstd", TEXT, zstd(TEXT)),
        ("gzip", &long, gzip(&long)),
        ("br", &long, LONG_BROTLI.to_vec()),
        ("zstd", &long, zstd(&long)),
    ] {
        let mut most = 0;
        for len in 1..body.len() {
            let (out, faults) = decode(coding, &body[..len]);
            assert_eq!(faults, [Fault::Truncated], "{coding} {len}");
            assert!(out.iter().any(|out| text.starts_with(out)) || out.is_empty());
            most = most.max(out.iter().map(Vec::len).max().unwrap_or(0));
        }
        // zstd gives whole blocks.
        assert!(coding == "zstd" || most + 100 > text.len(), "{coding} {most}");
        assert_eq!(decode(coding, b""), (vec![], vec![]));
    }
}

/// A client may have delivered what comes before the fault.
#[test]
fn refuses_what_is_no_such_coding_behind_what_came_out() {
    for coding in ["gzip", "deflate", "br", "zstd"] {
        let (out, faults) = decode(coding, b"EVIL is not coded at all, is it");
        assert!(out.is_empty() && faults == [Fault::Malformed], "{coding} {out:?} {faults:?}");
    }
    // A stored block, and another whose length is not the complement of its complement.
    let length = [TEXT.len() as u8, 0, !(TEXT.len() as u8), 0xff];
    let mut body = [&gzip(b"")[..10], &[0], &length, TEXT, &[0, 5, 0, 5, 0]].concat();
    assert_eq!(decode("gzip", &body), (text(), vec![Fault::Malformed]));
    body.truncate(body.len() - 2);
    assert_eq!(decode("gzip", &body), (text(), vec![Fault::Truncated]));
    // A fault takes nothing away of what was ready, also where that is much.
    let long = TEXT.repeat(250);
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&long).unwrap();
    encoder.flush().unwrap();
    let mut body = encoder.get_ref().clone();
    // A block of a type that there is not.
    body.push(7);
    let (out, faults) = decode("deflate", &body);
    assert!(faults == [Fault::Malformed] && out.contains(&long), "{faults:?}");
    // Nor where it goes on in the middle of its window, over the end of that.
    let longer = long.repeat(2);
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&longer[..1000]).unwrap();
    encoder.flush().unwrap();
    let first = encoder.get_ref().len();
    encoder.write_all(&longer[1000..]).unwrap();
    encoder.flush().unwrap();
    let mut body = encoder.get_ref().clone();
    body.push(7);
    let codings = Codings::read([&b"deflate"[..]].into_iter(), false);
    let mut decoder = Decoder::new(&codings, &MemoryBudget::default()).unwrap().unwrap();
    let mut out = Vec::new();
    for piece in [&body[..first], &body[first..]] {
        decoder.data(piece, &mut |_, bytes: &[u8]| out.extend_from_slice(bytes), &mut |_| ());
    }
    assert!(out == longer, "{} of {}", out.len(), longer.len());
    // zstd gives whole blocks: the first of two is not lost with the second, also where the frame
    // says how long it is.
    let frame = b"\x28\xb5\x2f\xfd\x20\x08\x20\0\0EVIL\x25\0\0\xff\xff\xff\xff";
    assert_eq!(decode("zstd", frame), (vec![b"EVIL".to_vec()], vec![Fault::Malformed]));
}

/// Debian's libzstd reads the formats of before version 0.8, also behind a frame.
#[test]
fn refuses_frames_of_older_formats_of_zstd() {
    let legacy = b"\x27\xb5\x2f\xfd\0\x38\x40\0\x0a<script>EV\x40\0\x0bIL</script>\xc0\0\0";
    let hello = b"\x28\xb5\x2f\xfd\x20\x06\x31\0\0hello ";
    let body = |first: u8, frames: &[u8]| [frames, &[first], &legacy[1..]].concat();
    let behind = |first: u8, frames: &[u8]| decode("zstd", &body(first, frames));
    let shown = vec![b"hello ".to_vec()];
    let skipped = [&hello[..], b"\x50\x2a\x4d\x18\x02\0\0\0xx"].concat();
    for first in [0x22, 0x25, 0x27] {
        assert_eq!(behind(first, hello), (shown.clone(), vec![Fault::Malformed]), "{first:x}");
        for most in [1, usize::MAX] {
            let (_, faults) = decode_in("zstd", &body(first, &skipped), most);
            assert!(faults.contains(&Fault::Malformed), "{first:x}");
        }
        assert_eq!(behind(first, b""), (vec![], vec![Fault::Malformed]), "{first:x}");
    }
    // An unknown name hides nothing of that: who passes over it reads on.
    let (_, faults) = decode("zstd, x", &body(0x27, hello));
    assert_eq!(faults, [Fault::Unknown, Fault::Malformed]);
    // Other junk is as it was, however much it looks like that.
    let junk = vec![Fault::TrailingBytes];
    for first in [0x1e, 0x21] {
        assert_eq!(behind(first, hello), (shown.clone(), junk.clone()));
    }
    for text in [&b"\x27\xb5\x2f\xfc"[..], b"\x27EVIL", b"x\x27\xb5\x2f\xfd"] {
        let body = [&hello[..], text].concat();
        assert_eq!(decode("zstd", &body), (shown.clone(), junk.clone()), "{text:x?}");
    }
    let cut = [&hello[..], &legacy[..3]].concat();
    assert_eq!(decode("zstd", &cut), (shown, vec![Fault::Truncated]));
}

/// Firefox goes over to raw deflate where zlib's fails, with what came last.
#[test]
fn refuses_raw_deflate_that_begins_as_zlib() {
    let evil = b"\xb3\x29\x4e\x2e\xca\x2c\x28\xb1\xd3\xd7\x72\x0d\xf3\xf4\xd1\xd2\xb7\xd1\x87\x0a\0\0\x6a\x89\x08\x30";
    let content = [&evil[..], &[b'A'; 231]].concat();
    let body = [&b"\x78\x01\x01\xfe\xfe"[..], &content, b"\x03\0"].concat();
    assert_eq!(decode("deflate", &body), (vec![content.clone()], vec![Fault::Malformed]));
    let (out, faults) = decode("deflate, gzip", &gzip(&body));
    assert!(out.contains(&content) && faults == [Fault::Malformed], "{faults:?}");
    // Firefox passes over names that it does not know; otherwise they say enough.
    assert_eq!(decode("deflate, x", &body).1, [Fault::Unknown, Fault::Malformed]);
    for other in [&b"none"[..], &raw(TEXT)[..9]] {
        assert_eq!(decode("deflate, x", other).1, [Fault::Unknown]);
    }
    // Stored blocks as encoders make them, and each stack of what is honest.
    let stored = |first: u8| [&[first, 1, 1, 0xfe, 0xfe][..], &content, b"\x03\0"].concat();
    assert_eq!(decode("deflate", &stored(0)), (vec![content.clone()], vec![]));
    // No header of zlib's: its check is another one.
    assert_eq!(decode("deflate", &stored(0x08)), (vec![content], vec![]));
    for body in [zlib(&raw(TEXT)), zlib(&zlib(TEXT)), raw(&raw(TEXT)), raw(&zlib(TEXT))] {
        let (out, faults) = decode("deflate, deflate", &body);
        assert!(out.contains(&TEXT.to_vec()) && faults.is_empty(), "{faults:?}");
    }
}

#[test]
fn refuses_unknown_codings_and_too_many() {
    assert_eq!(decode("compress", b"x").1, [Fault::Unknown]);
    assert_eq!(decode("gzip, aes128gcm", b"x").1, [Fault::Unknown]);
    assert_eq!(decode("gzip,gzip,gzip,gzip,gzip,gzip", b"x").1, [Fault::OverCap]);
    assert_eq!(decode("deflate,deflate,deflate", b"x").1, [Fault::OverCap]);
}

#[test]
fn refuses_bombs() {
    // A ratio that deflate cannot have, and more than any body may come to.
    let zeros = vec![0; 16 << 20];
    let (out, faults) = decode_in("zstd", &zstd(&zeros), 64);
    assert_eq!(faults, [Fault::OverCap]);
    assert!(out[0].len() as u64 <= FREE_DECODED + PIECE_SLACK);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..8 {
        encoder.write_all(&zeros).unwrap();
    }
    let (out, faults) = decode_in("gzip", &encoder.finish().unwrap(), 16 << 10);
    assert_eq!(faults, [Fault::OverCap]);
    assert!(out[0].len() as u64 <= MAX_DECODED);
}

/// What the inner codings make never comes out: a file's name without an end.
#[test]
fn refuses_bombs_of_which_nothing_comes_out() {
    let mut endless = b"\x1f\x8b\x08\x08\0\0\0\0\0\xff".to_vec();
    endless.resize(FREE_DECODED as usize + (1 << 20), b'a');
    let (out, faults) = decode_in("gzip, zstd", &zstd(&endless), 16 << 10);
    assert!(faults.contains(&Fault::OverCap), "{faults:?}");
    // That is zstd alone.
    assert_eq!(out.iter().map(Vec::len).collect::<Vec<_>>(), [FREE_DECODED as usize]);
    // As long as the cap, and no longer.
    endless.truncate(FREE_DECODED as usize);
    let (_, faults) = decode_in("gzip, zstd", &zstd(&endless), 16 << 10);
    assert_eq!(faults, [Fault::Truncated]);
}

const PIECE_SLACK: u64 = 2_000_000;

#[test]
fn refuses_memory_beyond_the_budget_and_gives_it_back() {
    let budget = MemoryBudget::new(100 << 10);
    let codings = |name: &'static [u8]| Codings::read([name].into_iter(), false);
    let new = || Decoder::new(&codings(b"gzip"), &budget);
    let (one, two) = (new().unwrap(), new().unwrap());
    assert_eq!(new().err(), Some(Fault::OverCap));
    drop((one, two));
    assert!(new().is_ok());
    let zstd_budget = MemoryBudget::new(300 << 10);
    let mut decoder = Decoder::new(&codings(b"zstd"), &zstd_budget).unwrap().unwrap();
    let mut faults = Vec::new();
    decoder.data(&zstd(&[7; 100_000]), &mut |_, _| {}, &mut |fault| faults.push(fault));
    assert_eq!(faults, [Fault::OverCap]);
    drop(decoder);
    assert_eq!(zstd_budget.left(), 300 << 10);
}

/// zstd says how large its window is; RFC 9659 allows 8 MiB.
#[test]
fn refuses_windows_beyond_the_specification() {
    let frame = |window: u8| [&b"\x28\xb5\x2f\xfd\0"[..], &[window], b"\x01\0\0"].concat();
    assert_eq!(decode("zstd", &frame(13 << 3)).1, []);
    assert_eq!(decode("zstd", &frame(14 << 3)).1, [Fault::Malformed]);
}

const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const HEADER_CHECK: u8 = 2;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// However a coded body is cut, the same comes out; a change makes no panic.
    #[test]
    fn accepts_any_chunking(
        text in proptest::collection::vec(b'a'..b'f', 0..3000),
        coding in 0usize..3,
        cut in 1usize..300,
        change in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let coded = [gzip(&text), zlib(&text), zstd(&text)];
        let mut body = coded[coding].clone();
        let name = ["gzip", "deflate", "zstd"][coding];
        if let Some((at, value)) = change {
            let at = at.index(body.len());
            body[at] = value;
        } else {
            prop_assert_eq!(decode_in(name, &body, usize::MAX).0.concat(), &text[..]);
        }
        let (whole, in_pieces) = (decode_in(name, &body, usize::MAX), decode_in(name, &body, cut));
        prop_assert_eq!(&whole.1, &in_pieces.1);
        let [all, parts] = [whole.0.concat(), in_pieces.0.concat()];
        // A block of zstd with a fault may be shown up to it or not.
        let is_cut_off = name == "zstd" && whole.1 == [Fault::Malformed];
        let is_prefix = all.starts_with(&parts) || parts.starts_with(&all);
        prop_assert!(all == parts || is_cut_off && is_prefix, "{} and {}", all.len(), parts.len());
    }

    #[test]
    fn accepts_any_bytes(
        body in proptest::collection::vec(any::<u8>(), 0..500),
        coding in prop::sample::select(vec!["gzip", "deflate", "br", "zstd", "br,gzip"]),
    ) {
        decode_in(coding, &body, usize::MAX);
        decode_in(coding, &body, 1);
    }
}
