//! Seeds of coded bodies: whole, cut, with more behind them, and stacked.

use std::io::Write;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

use super::Add;

const TEXT: &[u8] = b"the night, the night, EVIL";
/// [`TEXT`] as the reference encoders make it.
const BROTLI: &[u8] =
    b"\x1b\x19\x00\xf8\x8d\x54\xb5\xbf\x04\x41\xa3\x2b\x96\xb2\x14\x64\x14\x68\x32\x00\x1a\x5c\xea\xea\x30\x8a\x01";
const ZSTD: &[u8] =
    b"\x28\xb5\x2f\xfd\x20\x1a\xad\x00\x00\x78\x74\x68\x65\x20\x6e\x69\x67\x68\x74\x2c\x20\x45\x56\x49\x4c\x01\x00\x36\x8a\x17";

pub(super) fn codings(add: Add<'_>) {
    let gzip = |text: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).expect("a vector takes everything");
        encoder.finish().expect("a vector takes everything")
    };
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    zlib.write_all(TEXT).expect("a vector takes everything");
    let zlib = zlib.finish().expect("a vector takes everything");
    let mut raw = DeflateEncoder::new(Vec::new(), Compression::default());
    raw.write_all(TEXT).expect("a vector takes everything");
    let raw = raw.finish().expect("a vector takes everything");
    let gz = gzip(TEXT);
    for (name, which, body) in [
        ("gzip", 0, gz.clone()),
        ("gzip-cut", 0, gz[..gz.len() - 10].to_vec()),
        ("gzip-two", 0, [&gz[..], &gz].concat()),
        ("gzip-junk", 0, [&gz[..], b"junk"].concat()),
        ("gzip-zlib", 0, zlib.clone()),
        ("zlib", 1, zlib),
        ("raw", 1, raw),
        ("br", 2, BROTLI.to_vec()),
        ("zstd", 3, ZSTD.to_vec()),
        ("zstd-two", 3, [ZSTD, ZSTD, b"x"].concat()),
        ("gzip-gzip", 4, gzip(&gz)),
        ("gzip-br", 8, gzip(ZSTD)),
        ("unknown", 10, TEXT.to_vec()),
    ] {
        add("codings", name, [&[which, 1, 7, 3, 60], &body[..]].concat());
    }
}
