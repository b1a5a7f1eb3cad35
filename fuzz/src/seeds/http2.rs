//! Seeds of HTTP/2 connections, as operations with frames.

use super::Add;

pub(super) fn http2(add: Add<'_>) {
    /// A frame of the client's (0) or the server's (1).
    fn frame(side: u8, kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        [&[5 << 1 | side, kind, flags, stream, payload.len() as u8], payload].concat()
    }
    let get = b"\x82\x87\x84\x41\x0fwww.example.com";
    let again = b"\x82\x87\x84\xbe\x58\x08no-cache";
    let coded = b"\x88\x5a\x83\x9b\xd9\xab";
    let settings = b"\0\x01\0\0\x20\0\0\x03\0\0\0\x64";
    let exchange = [
        frame(1, 4, 0, 0, settings),
        frame(0, 4, 0, 0, settings),
        frame(0, 4, 1, 0, b""),
        frame(0, 1, 5, 1, get),
        frame(0, 1, 4, 3, again),
        frame(0, 0, 9, 3, b"\x02body\0\0"),
        frame(1, 1, 4, 1, coded),
        frame(1, 1, 4, 3, b"\x88"),
        frame(1, 0, 0, 1, b"\x1f\x8b"),
        frame(1, 0, 1, 3, b"a body"),
        frame(1, 0, 1, 1, b"not gzip"),
    ];
    let continued = [
        frame(0, 1, 1, 1, &get[..3]),
        frame(0, 9, 0, 1, &get[3..9]),
        frame(0, 9, 4, 1, &get[9..]),
        frame(1, 1, 4, 1, b"\x08\x03103"),
        frame(1, 1, 0x2c, 1, b"\x01\0\0\0\0\x0f\x88\0"),
        frame(1, 1, 5, 1, b"\0\x0bgrpc-status\x010"),
    ];
    let others = [
        frame(0, 1, 5, 1, get),
        frame(1, 5, 4, 1, &[b"\0\0\0\x02", &again[..3], b"\x04\x02/p"].concat()),
        frame(1, 1, 5, 2, b"\x88"),
        frame(0, 8, 0, 0, b"\0\0\x40\0"),
        frame(0, 6, 0, 0, b"pingpong"),
        frame(0, 3, 0, 1, b"\0\0\0\x08"),
        frame(1, 0, 0, 1, b"late"),
        frame(1, 7, 0, 0, b"\0\0\0\x01\0\0\0\0"),
    ];
    let tables = [
        frame(1, 4, 0, 0, b"\0\x01\0\x01\0\0"),
        frame(0, 1, 5, 1, &[b"\x3f\xe1\x3f", &get[..]].concat()),
        frame(0, 1, 5, 3, &[b"\x20\x3f\x01", &again[..3]].concat()),
        frame(0, 1, 5, 5, b"\xff\xff"),
        vec![3 << 1, 4, b'E', b'V', b'I', b'L'],
    ];
    let broken = [frame(0, 1, 0, 1, get), frame(0, 0, 0, 1, b"x"), vec![2 << 1, 2 << 1 | 1]];
    let holes = [frame(0, 1, 5, 1, get), vec![1], vec![3, 9], frame(1, 1, 4, 1, b"\x88")];
    for (name, frames) in [
        ("exchange", &exchange[..]),
        ("continued", &continued),
        ("others", &others),
        ("tables", &tables),
        ("broken", &broken),
        ("holes", &holes),
    ] {
        let frames = frames.concat();
        add("http2", name, [&[3, 1, 50, 2, 0], &frames[..]].concat());
        add("http2", &format!("{name}-limit"), [&[2, 5, 1, 9, 1, 4], &frames[..]].concat());
    }
}
