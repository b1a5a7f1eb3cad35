//! Seeds of `websocket`: messages over frames, compressed and not, with control frames between.

use std::io::Write;

use super::Add;

fn frame(side: u8, first: u8, payload: &[u8]) -> Vec<u8> {
    [&[4 | side, first, payload.len() as u8], payload].concat()
}

pub(super) fn websocket(add: Add<'_>) {
    let mut encoder =
        flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    // In memory nothing fails.
    let coded = encoder
        .write_all(b"hello hello")
        .and_then(|()| encoder.flush())
        .map(|()| encoder.get_ref().clone())
        .unwrap_or_default();
    let coded = coded.get(..coded.len().saturating_sub(4)).unwrap_or_default();
    let plain = [
        frame(0, 1, b"so "),
        frame(1, 0x82, b"answer"),
        frame(0, 0x89, b"ping"),
        frame(0, 0x80, b"long"),
        frame(1, 0x88, b"\x03\xe8bye"),
    ];
    let compressed =
        [frame(1, 0xc1, coded), frame(0, 0x41, &coded[..3]), frame(0, 0x80, &coded[3..])];
    let faulty = [frame(1, 0x83, b"x"), frame(0, 0x80, b"x"), vec![2, 3, 0x81, 0x7e, 0]];
    for (name, extensions, frames) in [
        ("plain", 0, plain.concat()),
        ("compressed", 1, compressed.concat()),
        ("no-takeover", 2, compressed.concat()),
        ("unknown", 3, plain.concat()),
        ("faulty", 0, faulty.concat()),
        ("gap", 1, [&compressed[0][..], &[0], &compressed[0]].concat()),
    ] {
        add("websocket", name, [&[extensions, 1, 2, 3, 4][..], &frames].concat());
    }
}
