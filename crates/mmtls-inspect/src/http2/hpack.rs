//! HPACK (RFC 7541), the decoding half.
//!
//! Our own, since the crates that were looked at either panic where a block ends inside an integer or
//! build their Huffman table anew for every string, which lets a peer buy seconds with a megabyte.
//! Refuses tables beyond [`MAX_TABLE`].

use std::collections::VecDeque;

use super::huffman;

/// Largest dynamic table that is followed, whatever the endpoints agree on. Browsers use 64 KiB.
pub(super) const MAX_TABLE: usize = 256 << 10;
/// Before any SETTINGS_HEADER_TABLE_SIZE (RFC 9113, section 6.5.2).
const DEFAULT_TABLE: usize = 4096;
/// What an entry counts beside its text (RFC 7541, section 4.1).
const ENTRY: usize = 32;
/// Most bytes of names and values that a block stands for. The table lets one byte stand for a whole entry, and each use
/// costs a copy.
const MAX_DECODED: u64 = 1 << 20;
/// The same of all blocks together, for one byte that came: a browser that repeats a request with 16 KiB of cookies has 700.
const MAX_RATIO: u64 = 1100;
/// So many may come whatever went in.
const FREE_DECODED: u64 = 4 << 20;
/// What a block is counted for beside its bytes: its frame's header.
const FRAME: u64 = 9;
/// Most sizes of the table that a block sets. Encoders set two, the least and the last (section 4.2).
const MAX_SIZES: usize = 16;

/// Not HPACK, or beyond a cap: nothing behind it can be decoded either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Malformed,
    OverCap,
}

type Field = (Box<[u8]>, Box<[u8]>);

/// The decoder of one direction.
pub(super) struct Decoder {
    /// Newest first.
    table: VecDeque<Field>,
    size: usize,
    /// What the encoder has chosen.
    max: usize,
    /// What it may choose.
    allowed: usize,
    /// What the last block chose, in this order.
    pub(super) sizes: Vec<u32>,
    /// Bytes that went in, and of names and values.
    taken: u64,
    decoded: u64,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// Where a name comes from.
enum Name {
    Index(usize),
    Literal,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            table: VecDeque::new(),
            size: 0,
            max: DEFAULT_TABLE,
            allowed: DEFAULT_TABLE,
            sizes: Vec::new(),
            taken: 0,
            decoded: 0,
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// The peer allows a table of this size. When the encoder hears of it is not known, so that the
    /// largest ever allowed counts.
    pub(super) fn allow(&mut self, size: u32) {
        self.allowed = self.allowed.max(usize::try_from(size).unwrap_or(usize::MAX));
    }

    /// Decodes a whole block. Refuses one that stands for more than caps allow.
    pub(super) fn decode(
        &mut self,
        mut block: &[u8],
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Fault> {
        self.sizes.clear();
        self.taken += block.len() as u64 + FRAME;
        let most = FREE_DECODED.saturating_add(self.taken.saturating_mul(MAX_RATIO));
        let most = most.min(self.decoded + MAX_DECODED);
        let mut decoded = self.decoded;
        let mut field = |name: &[u8], value: &[u8]| {
            field(name, value);
            decoded += (name.len() + value.len()) as u64;
            if decoded > most { Err(Fault::OverCap) } else { Ok(()) }
        };
        while let Some(&first) = block.first() {
            match first {
                // Section 6.1.
                0x80.. => {
                    let index = integer(&mut block, 7)?;
                    let (name, value) = self.entry(index)?;
                    field(name, value)?;
                }
                // Section 6.2.1.
                0x40.. => {
                    self.literal(&mut block, 6)?;
                    field(&self.name, &self.value)?;
                    self.insert();
                }
                // Section 6.3.
                0x20.. => {
                    let size = integer(&mut block, 5)?;
                    if size > self.allowed {
                        return Err(Fault::Malformed);
                    }
                    if size > MAX_TABLE || self.sizes.len() == MAX_SIZES {
                        return Err(Fault::OverCap);
                    }
                    self.sizes.push(u32::try_from(size).unwrap_or(u32::MAX));
                    self.max = size;
                    self.evict();
                }
                // Sections 6.2.2 and 6.2.3.
                _ => {
                    self.literal(&mut block, 4)?;
                    field(&self.name, &self.value)?;
                }
            }
        }
        self.decoded = decoded;
        Ok(())
    }

    /// Reads a literal field into `name` and `value`.
    fn literal(&mut self, block: &mut &[u8], prefix: u8) -> Result<(), Fault> {
        let name = match integer(block, prefix)? {
            0 => Name::Literal,
            index => Name::Index(index),
        };
        let mut text = core::mem::take(&mut self.name);
        text.clear();
        let read = match name {
            Name::Literal => string(block, &mut text),
            Name::Index(index) => self.entry(index).map(|(name, _)| text.extend_from_slice(name)),
        };
        self.name = text;
        read?;
        self.value.clear();
        string(block, &mut self.value)
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), Fault> {
        let index = index.checked_sub(1).ok_or(Fault::Malformed)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let (name, value) = self.table.get(index - STATIC.len()).ok_or(Fault::Malformed)?;
        Ok((name, value))
    }

    /// Adds the field that was read last (section 4.4).
    fn insert(&mut self) {
        let size = self.name.len() + self.value.len() + ENTRY;
        if size > self.max {
            self.table.clear();
            self.size = 0;
            return;
        }
        self.table.push_front((self.name.as_slice().into(), self.value.as_slice().into()));
        self.size += size;
        self.evict();
    }

    fn evict(&mut self) {
        while self.size > self.max
            && let Some((name, value)) = self.table.pop_back()
        {
            self.size -= name.len() + value.len() + ENTRY;
        }
    }
}

/// An integer with a prefix of so many bits (section 5.1), at most 2^28.
fn integer(block: &mut &[u8], prefix: u8) -> Result<usize, Fault> {
    let (&first, mut rest) = block.split_first().ok_or(Fault::Malformed)?;
    let mask = (1usize << prefix) - 1;
    let mut value = usize::from(first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (&byte, behind) = rest.split_first().ok_or(Fault::Malformed)?;
            rest = behind;
            if shift > 21 {
                // Leading zeros in more bytes say nothing; a larger number is beyond every table.
                return Err(Fault::Malformed);
            }
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *block = rest;
    Ok(value)
}

/// A string (section 5.2).
fn string(block: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
    let coded = block.first().is_some_and(|first| first & 0x80 != 0);
    let len = integer(block, 7)?;
    if len > block.len() {
        return Err(Fault::Malformed);
    }
    let (text, rest) = block.split_at(len);
    *block = rest;
    if !coded {
        out.extend_from_slice(text);
    } else if !huffman::decode(text, out) {
        return Err(Fault::Malformed);
    }
    Ok(())
}

/// Appendix A.
#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|it| it.to_digit(16)).collect();
        digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    }

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<String>, Fault> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder
            .decode(block, &mut |name, value| {
                fields.push(format!("{}: {}", text(name), text(value)));
            })
            .map(|()| fields)
    }

    /// RFC 7541, appendix C.3 and C.4: three requests, plain and with the Huffman code.
    #[test]
    fn accepts_the_requests_of_the_specification() {
        let get = [":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"];
        let third = [
            ":method: GET",
            ":scheme: https",
            ":path: /index.html",
            ":authority: www.example.com",
            "custom-key: custom-value",
        ];
        for blocks in [
            [
                "828684410f7777772e6578616d706c652e636f6d",
                "828684be58086e6f2d6361636865",
                "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
            ],
            [
                "828684418cf1e3c2e5f23a6ba0ab90f4ff",
                "828684be5886a8eb10649cbf",
                "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
            ],
        ] {
            let mut decoder = Decoder::new();
            assert_eq!(decode(&mut decoder, &hex(blocks[0])).unwrap(), get);
            assert_eq!(decoder.size, 57);
            let second = decode(&mut decoder, &hex(blocks[1])).unwrap();
            assert_eq!(
                (&second[..4], &*second[4]),
                (&get.map(str::to_owned)[..], "cache-control: no-cache")
            );
            assert_eq!(decoder.size, 110);
            assert_eq!(decode(&mut decoder, &hex(blocks[2])).unwrap(), third);
            assert_eq!((decoder.size, decoder.table.len()), (164, 3));
        }
    }

    /// RFC 7541, appendix C.5 and C.6: responses that evict from a table of 256 bytes.
    #[test]
    fn accepts_the_responses_of_the_specification() {
        let date = "date: Mon, 21 Oct 2013 20:13:21 GMT";
        let first =
            [":status: 302", "cache-control: private", date, "location: https://www.example.com"];
        let cookie = "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
        let third = [
            ":status: 200",
            "cache-control: private",
            "date: Mon, 21 Oct 2013 20:13:22 GMT",
            "location: https://www.example.com",
            "content-encoding: gzip",
            cookie,
        ];
        for blocks in [
            [
                "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a3231\
                 20474d546e1768747470733a2f2f7777772e6578616d706c652e636f6d",
                "4803333037c1c0bf",
                "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a697077\
                 38666f6f3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d616765\
                 3d333630303b2076657273696f6e3d31",
            ],
            [
                "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad17\
                 1863c78f0b97c8e9ae82ae43d3",
                "4883640effc1c0bf",
                "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6\
                 c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
            ],
        ] {
            let mut decoder = Decoder::new();
            assert_eq!(decode(&mut decoder, b"\x3f\xe1\x01").unwrap().len(), 0);
            assert_eq!(decoder.max, 256);
            assert_eq!(decode(&mut decoder, &hex(blocks[0])).unwrap(), first);
            assert_eq!(decoder.size, 222);
            let second = decode(&mut decoder, &hex(blocks[1])).unwrap();
            assert_eq!((&*second[0], decoder.size), (":status: 307", 222));
            assert_eq!(decode(&mut decoder, &hex(blocks[2])).unwrap(), third);
            assert_eq!((decoder.size, decoder.table.len()), (215, 3));
        }
    }

    #[test]
    fn accepts_sizes_that_were_allowed_and_no_others() {
        let mut decoder = Decoder::new();
        let update = |decoder: &mut Decoder, block: &str| decode(decoder, &hex(block)).err();
        // 4097.
        assert_eq!(update(&mut decoder, "3fe21f"), Some(Fault::Malformed));
        decoder.allow(65_536);
        decoder.allow(100);
        assert_eq!(update(&mut decoder, "3fe1ff03"), None);
        assert_eq!(decoder.max, 65_536);
        decoder.allow(u32::MAX);
        // 268,435,455 is allowed and more than is followed.
        assert_eq!(update(&mut decoder, "3fe0ffff7f"), Some(Fault::OverCap));
        // An entry larger than the table empties it.
        assert_eq!(update(&mut decoder, "3f01"), None);
        assert_eq!(update(&mut decoder, "400161017a"), None);
        assert_eq!((decoder.size, decoder.table.len()), (0, 0));
    }

    #[test]
    fn refuses_what_is_cut_or_points_nowhere() {
        for block in [
            "80",
            "be",
            "ff",
            "ffffffff7f",
            "ff80808080808080",
            "40",
            "4001",
            "400161",
            "0f",
            "008161",
            "7f",
        ] {
            let result = decode(&mut Decoder::new(), &hex(block));
            assert_eq!(result.err(), Some(Fault::Malformed), "{block}");
        }
    }

    /// A table lets a few bytes stand for many, in one block or in many.
    #[test]
    fn refuses_few_bytes_that_stand_for_many() {
        let entry = [&[0x40, 1, b'a', 0x7f, 0x81, 0x1e][..], &[b'x'; 3968]].concat();
        let fill = |decoder: &mut Decoder| decode(decoder, &entry).map(|fields| fields.len());
        let mut decoder = Decoder::new();
        assert_eq!(fill(&mut decoder), Ok(1));
        let length = decode(&mut decoder, &[0xbe; 250]).map(|fields| fields.len());
        assert_eq!(length, Ok(250));
        assert_eq!(decode(&mut decoder, &[0xbe; 300]), Err(Fault::OverCap));
        let mut decoder = Decoder::new();
        assert_eq!(fill(&mut decoder), Ok(1));
        let blocks = (0..1000).take_while(|_| decode(&mut decoder, &[0xbe; 20]).is_ok()).count();
        assert!((100..400).contains(&blocks), "{blocks}");
        // As a browser does that repeats itself with many cookies.
        let mut decoder = Decoder::new();
        assert_eq!(fill(&mut decoder), Ok(1));
        let usual = [&[0x82, 0x84, 0x87][..], &[0x90; 12], &[0xbe]].concat();
        assert!((0..10_000).all(|_| decode(&mut decoder, &usual).is_ok()));
    }

    proptest! {
        #[test]
        fn accepts_any_bytes(blocks in proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 0..60), 0..6)) {
            let mut decoder = Decoder::new();
            for block in blocks {
                let _ = decode(&mut decoder, &block);
                prop_assert!(decoder.size <= decoder.max);
            }
        }
    }
}
