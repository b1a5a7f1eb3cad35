//! Files are made here, byte by byte, so that both byte orders and the odd corners are covered.

use std::io::Write;

use super::*;

const KEYS: &[u8] = b"CLIENT_RANDOM 00 11\n";

/// An item as a value, for comparing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Got {
    Packet(u64, Link, Vec<u8>, usize),
    Secrets(u32, Vec<u8>),
}

type Outcome<'a> = (Vec<Got>, Option<CaptureError>, Option<CaptureReader<&'a [u8]>>);

fn read_all(file: &[u8]) -> Outcome<'_> {
    let mut reader = match CaptureReader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error), None),
    };
    let mut got = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(Item::Packet { timestamp_ns, link, bytes, original_len })) => {
                got.push(Got::Packet(timestamp_ns, link, bytes.to_vec(), original_len));
            }
            Ok(Some(Item::Secrets { kind, bytes })) => {
                got.push(Got::Secrets(kind.0, bytes.to_vec()))
            }
            Ok(None) => return (got, None, Some(reader)),
            Err(error) => {
                assert!(matches!(reader.next(), Ok(None)), "an error must be the last word");
                return (got, Some(error), Some(reader));
            }
        }
    }
}

fn packet(timestamp_ns: u64, bytes: &[u8]) -> Got {
    Got::Packet(timestamp_ns, Link::Ethernet, bytes.to_vec(), bytes.len())
}

/// Writes numbers in one byte order.
#[derive(Default)]
struct Bytes {
    big_endian: bool,
    bytes: Vec<u8>,
}

impl Bytes {
    fn new(big_endian: bool) -> Self {
        Self { big_endian, bytes: Vec::new() }
    }

    fn half(&mut self, value: u16) -> &mut Self {
        let big_endian = self.big_endian;
        self.raw(&if big_endian { value.to_be_bytes() } else { value.to_le_bytes() })
    }

    fn word(&mut self, value: u32) -> &mut Self {
        let big_endian = self.big_endian;
        self.raw(&if big_endian { value.to_be_bytes() } else { value.to_le_bytes() })
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn pcap_header(&mut self, magic: u32, link_type: u32) -> &mut Self {
        self.word(magic).half(2).half(4).word(0).word(0).word(65535).word(link_type)
    }

    fn pcap_record(
        &mut self,
        seconds: u32,
        fraction: u32,
        data: &[u8],
        original: u32,
    ) -> &mut Self {
        self.word(seconds).word(fraction).word(data.len() as u32).word(original).raw(data)
    }

    fn block(&mut self, kind: u32, content: impl FnOnce(&mut Self)) -> &mut Self {
        let mut inner = Self::new(self.big_endian);
        content(&mut inner);
        inner.bytes.resize(inner.bytes.len().next_multiple_of(4), 0);
        let total = inner.bytes.len() as u32 + 12;
        self.word(kind).word(total).raw(&inner.bytes).word(total)
    }

    fn section(&mut self) -> &mut Self {
        self.block(0x0a0d_0d0a, |b| {
            b.word(0x1a2b_3c4d).half(1).half(0).raw(&[0xff; 8]);
        })
    }

    fn interface(
        &mut self,
        link_type: u16,
        snap: u32,
        options: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.block(1, |b| {
            b.half(link_type).half(0).word(snap);
            options(b);
        })
    }

    fn enhanced(&mut self, interface: u32, units: u64, data: &[u8]) -> &mut Self {
        self.block(6, |b| {
            b.word(interface).word((units >> 32) as u32).word(units as u32);
            b.word(data.len() as u32).word(data.len() as u32).raw(data);
        })
    }
}

fn no_options(_: &mut Bytes) {}

fn gzip(file: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(file).and_then(|()| encoder.finish()).unwrap_or_default()
}

/// One of everything.
fn rich_pcapng(big_endian: bool) -> Vec<u8> {
    let mut file = Bytes::new(big_endian);
    file.section()
        .interface(1, 0, |b| {
            b.half(9).half(1).raw(&[9, 0, 0, 0]).half(0).half(0);
        })
        .interface(1, 6, |b| {
            // if_tsresol 2^-10, if_tsoffset 100 s.
            b.half(9).half(1).raw(&[0x8a, 0, 0, 0]).half(14).half(8);
            b.raw(&if big_endian { 100i64.to_be_bytes() } else { 100i64.to_le_bytes() });
            b.half(0).half(0);
        })
        .interface(1, 0, no_options)
        .block(0xa, |b| {
            b.word(0x544c_534b).word(KEYS.len() as u32).raw(KEYS);
        })
        .enhanced(0, 0x1_0000_0005, b"nanoseconds")
        .enhanced(1, 1536, b"binary")
        .enhanced(2, 42, b"default")
        .block(5, |b| {
            b.word(0).word(0).word(0);
        })
        .block(2, |b| {
            b.half(2).half(7).word(0).word(43).word(3).word(9).raw(b"old");
        })
        .block(0x7777, |b| {
            b.raw(b"unknown");
        });
    file.bytes
}

fn rich_pcapng_content() -> Vec<Got> {
    vec![
        Got::Secrets(0x544c_534b, KEYS.to_vec()),
        packet(0x1_0000_0005, b"nanoseconds"),
        packet(101_500_000_000, b"binary"),
        packet(42_000, b"default"),
        Got::Packet(43_000, Link::Ethernet, b"old".to_vec(), 9),
    ]
}

#[test]
fn accepts_pcap_of_both_byte_orders_and_resolutions() {
    for big_endian in [false, true] {
        for (magic, fraction) in [(0xa1b2_c3d4, 5_000), (0xa1b2_3c4d, 5)] {
            let mut file = Bytes::new(big_endian);
            // The upper bits of the link type tell of an FCS.
            file.pcap_header(magic, 0x1400_0001)
                .pcap_record(3, 5, b"first", 5)
                .pcap_record(4, 0, b"cut", 99);
            let (got, error, reader) = read_all(&file.bytes);
            let cut = Got::Packet(4_000_000_000, Link::Ethernet, b"cut".to_vec(), 99);
            assert_eq!(got, [packet(3_000_000_000 + fraction, b"first"), cut]);
            assert!(error.is_none());
            let warnings = reader.map(|reader| reader.warnings());
            assert_eq!(warnings, Some(vec![CaptureWarning::CutPackets { packets: 1 }]));
        }
    }
}

#[test]
fn accepts_modified_pcap() {
    let mut file = Bytes::new(false);
    file.pcap_header(0xa1b2_cd34, 1).word(1).word(2).word(4).word(4).raw(&[0; 8]).raw(b"data");
    let (got, error, _) = read_all(&file.bytes);
    assert_eq!(got, [packet(1_000_002_000, b"data")]);
    assert!(error.is_none());
}

#[test]
fn accepts_pcapng_of_both_byte_orders() {
    for big_endian in [false, true] {
        let (got, error, _) = read_all(&rich_pcapng(big_endian));
        assert_eq!(got, rich_pcapng_content());
        assert!(error.is_none(), "{error:?}");
    }
}

#[test]
fn accepts_sections_of_different_byte_order() {
    let file = [rich_pcapng(false), rich_pcapng(true), rich_pcapng(false)].concat();
    let (got, error, _) = read_all(&file);
    assert_eq!(got, [rich_pcapng_content(), rich_pcapng_content(), rich_pcapng_content()].concat());
    assert!(error.is_none());
}

#[test]
fn accepts_simple_packets_cut_by_snap_length() {
    let mut file = Bytes::new(true);
    file.section().interface(1, 6, no_options).enhanced(0, 7, b"timed").block(3, |b| {
        b.word(11).raw(b"simple");
    });
    let (got, error, _) = read_all(&file.bytes);
    let simple = Got::Packet(7_000, Link::Ethernet, b"simple".to_vec(), 11);
    assert_eq!(got, [packet(7_000, b"timed"), simple]);
    assert!(error.is_none());
}

#[test]
fn accepts_gzip_also_in_members() {
    let file = rich_pcapng(false);
    let (got, error, _) = read_all(&gzip(&file));
    assert_eq!(got, rich_pcapng_content());
    assert!(error.is_none());
    let (first, second) = file.split_at(file.len() / 2);
    let (got, error, _) = read_all(&[gzip(first), gzip(second)].concat());
    assert_eq!(got, rich_pcapng_content());
    assert!(error.is_none());
}

#[test]
fn accepts_large_packets_from_readers_that_give_little() {
    struct Trickle<'a>(&'a [u8]);
    impl Read for Trickle<'_> {
        fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
            let room_length = room.len().min(1_000);
            self.0.read(room.get_mut(..room_length).unwrap_or_default())
        }
    }
    let large = vec![7; 900_000];
    let mut file = Bytes::new(false);
    file.pcap_header(0xa1b2_c3d4, 1);
    for second in 0..4 {
        file.pcap_record(second, 0, b"small", 5).pcap_record(second, 1, &large, 900_000);
    }
    let Ok(mut reader) = CaptureReader::new(Trickle(&file.bytes)) else { panic!("not opened") };
    let mut sizes = Vec::new();
    while let Ok(Some(Item::Packet { bytes, .. })) = reader.next() {
        assert!(bytes == b"small" || bytes == large);
        sizes.push(bytes.len());
    }
    assert_eq!(sizes, [5, 900_000].repeat(4));
}

#[test]
fn accepts_other_link_types_as_ip_or_counts_them() {
    let ip = [0x60; 40];
    let mut cooked = vec![0; 14];
    cooked.extend([0x86, 0xdd]);
    cooked.extend(ip);
    let mut file = Bytes::new(false);
    file.section()
        .interface(113, 0, no_options)
        .interface(101, 0, no_options)
        .interface(127, 0, no_options)
        .enhanced(0, 1, &cooked)
        .enhanced(1, 2, &ip)
        .enhanced(2, 3, b"radio")
        .enhanced(2, 3, b"radio")
        .enhanced(1, 4, b"\x12not IP");
    let (got, error, reader) = read_all(&file.bytes);
    let expected = [1_000, 2_000].map(|time| Got::Packet(time, Link::Ip, ip.to_vec(), 40));
    assert_eq!(got, expected);
    assert!(error.is_none());
    let Some(reader) = reader else { panic!("not opened") };
    let counters = CaptureCounters {
        packets: 2,
        unsupported_link: 2,
        not_ip: 1,
        ..CaptureCounters::default()
    };
    assert_eq!(reader.counters(), counters);
    let text: Vec<_> = reader.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        ["2 packets skipped: link type 127 (IEEE 802.11 with radiotap header) is not supported"]
    );
}

#[test]
fn accepts_what_the_writer_wrote() -> std::io::Result<()> {
    let mut writer = PcapngWriter::new(Vec::new())?;
    writer.secrets(SecretsKind::TLS_KEY_LOG, KEYS)?;
    let mut expected = vec![Got::Secrets(0x544c_534b, KEYS.to_vec())];
    for length in [0, 1, 2, 3, 4, 60, 1514, 65_549] {
        let time = 1_700_000_000_123_456_789 + length as u64;
        let bytes = vec![length as u8; length];
        writer.packet(time, &bytes, length + 8)?;
        expected.push(Got::Packet(time, Link::Ethernet, bytes.clone(), length + 8));
        writer.commented_packet(time, &bytes, &"why".repeat(length))?;
        expected.push(Got::Packet(time, Link::Ethernet, bytes, length));
    }
    let (got, error, _) = read_all(&writer.into_inner());
    assert_eq!(got, expected);
    assert!(error.is_none());
    Ok(())
}

#[test]
fn refuses_to_write_what_it_would_not_read() -> std::io::Result<()> {
    let mut writer = PcapngWriter::new(Vec::new())?;
    let huge = vec![0; MAX_BLOCK_BYTES - 31];
    assert!(writer.packet(0, &huge, 0).is_err());
    writer.packet(0, &huge[1..], 0)?;
    let (got, error, _) = read_all(&writer.into_inner());
    assert_eq!(got.len(), 1);
    assert!(error.is_none());
    Ok(())
}

#[test]
fn refuses_files_of_other_formats() {
    for file in [&b""[..], b"\x0a", b"hello, this is no capture file at all", b"\xd4\xc3\xb2"] {
        let (_, error, _) = read_all(file);
        assert!(matches!(error, Some(CaptureError::NotACapture { .. })), "{file:?}: {error:?}");
    }
    let (_, error, _) = read_all(&gzip(b"compressed text, nothing more than that"));
    assert!(matches!(error, Some(CaptureError::NotACapture { .. })), "{error:?}");
}

#[test]
fn refuses_excessive_lengths_without_reading_on() {
    let mut file = Bytes::new(false);
    file.pcap_header(0xa1b2_c3d4, 1).word(0).word(0).word(0xffff_fff0).word(0);
    let (_, error, _) = read_all(&file.bytes);
    assert!(matches!(error, Some(CaptureError::TooLarge { offset: 24, .. })), "{error:?}");
    for (kind, length) in [(6, 0xffff_fffc), (1, 0x0020_0000), (0x7777, 0x0100_0004)] {
        let mut file = Bytes::new(false);
        file.section().word(kind).word(length).raw(&[0; 64]);
        let (_, error, _) = read_all(&file.bytes);
        assert!(matches!(error, Some(CaptureError::TooLarge { offset: 28, .. })), "{error:?}");
    }
}

#[test]
fn refuses_contradictory_blocks_and_names_the_place() {
    let place = |file: &mut Bytes| match read_all(&file.bytes).1 {
        Some(
            CaptureError::Malformed { offset, .. } | CaptureError::UnknownInterface { offset, .. },
        ) => offset,
        other => panic!("{other:?}"),
    };
    let start = || {
        let mut file = Bytes::new(false);
        file.section();
        file
    };
    assert_eq!(place(start().enhanced(0, 0, b"no interface")), 28);
    assert_eq!(place(start().word(6).word(8).raw(&[0; 8])), 28);
    assert_eq!(place(start().word(6).word(13).raw(&[0; 8])), 28);
    assert_eq!(place(start().word(9).word(12).word(16)), 28);
    let exceeding = |b: &mut Bytes| {
        b.word(0).word(0).word(0).word(5).word(5).raw(b"four");
    };
    assert_eq!(place(start().interface(1, 0, no_options).block(6, exceeding)), 48);
    let secrets = |b: &mut Bytes| {
        b.word(0x544c_534b).word(0xffff_ffff);
    };
    assert_eq!(place(start().block(10, secrets)), 28);
    let version_2 = |b: &mut Bytes| {
        b.word(0x1a2b_3c4d).half(2).half(0).raw(&[0xff; 8]);
    };
    assert_eq!(place(start().block(0x0a0d_0d0a, version_2)), 28);
}

#[test]
fn refuses_every_cut_after_delivering_what_was_whole() {
    let mut pcap = Bytes::new(true);
    pcap.pcap_header(0xa1b2_c3d4, 1).pcap_record(1, 0, b"one", 3).pcap_record(2, 0, b"two", 3);
    for file in [pcap.bytes, rich_pcapng(false), rich_pcapng(true)] {
        let (whole, _, _) = read_all(&file);
        for length in 0..file.len() {
            let (got, error, _) = read_all(&file[..length]);
            assert!(whole.starts_with(&got), "{length}");
            // Between two blocks a cut cannot be noticed.
            let clean = error.is_none() && length > 0;
            let expected = matches!(
                error,
                Some(CaptureError::Truncated { .. } | CaptureError::NotACapture { .. })
            );
            assert!(clean || expected, "{length}: {error:?}");
        }
        let zipped = gzip(&file);
        for length in 0..zipped.len() {
            let (got, error, _) = read_all(&zipped[..length]);
            assert!(whole.starts_with(&got), "{length}");
            assert!(error.is_some(), "{length}");
        }
    }
}

#[test]
fn refuses_or_accepts_any_changed_byte_without_panic() {
    for file in [rich_pcapng(false), rich_pcapng(true)] {
        for at in 0..file.len() {
            for value in [0, 1, 3, 0x7f, 0x80, 0xff, file[at] ^ 4] {
                let mut changed = file.clone();
                changed[at] = value;
                let _ = read_all(&changed);
            }
        }
    }
    // A generator of numbers that need not be good.
    let mut state = 1u64;
    for _ in 0..2_000 {
        let mut noise = rich_pcapng(false)[..28].to_vec();
        for _ in 0..40 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let word = (state >> 33) as u32;
            noise.extend((word >> (word & 31)).to_le_bytes());
        }
        let _ = read_all(&noise);
    }
}
