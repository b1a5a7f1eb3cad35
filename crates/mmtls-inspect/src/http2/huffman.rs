//! The Huffman code of HPACK (RFC 7541, appendix B). It is canonical: lengths say everything.
//!
//! Refuses strings with the end-of-string symbol and padding that is none.

/// Bits of each byte's code, and of the end of string's.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
const SHORTEST: usize = 5;
const LONGEST: usize = 30;
const END: u16 = 256;

/// Codes of one length are consecutive, and so are their symbols here.
struct Code {
    first: [u32; LONGEST + 1],
    count: [u32; LONGEST + 1],
    /// Where the symbols of a length begin.
    at: [usize; LONGEST + 1],
    symbols: [u16; 257],
}

const CODE: Code = {
    let mut code = Code {
        first: [0; LONGEST + 1],
        count: [0; LONGEST + 1],
        at: [0; LONGEST + 1],
        symbols: [0; 257],
    };
    let (mut length, mut next, mut filled) = (1, 0u32, 0);
    while length <= LONGEST {
        next <<= 1;
        code.first[length] = next;
        code.at[length] = filled;
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                code.symbols[filled] = symbol as u16;
                filled += 1;
                next += 1;
                code.count[length] += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    code
};

/// Appends what `coded` stands for; false when it is no such string.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> bool {
    static TABLE: Code = CODE;
    let (mut bits, mut held) = (0u64, 0usize);
    for &byte in coded {
        bits = bits << 8 | u64::from(byte);
        held += 8;
        'symbols: while held >= SHORTEST {
            for length in SHORTEST..=held.min(LONGEST) {
                // Within u32: at most 30 bits.
                let code = (bits >> (held - length)) as u32 & ((1 << length) - 1);
                let Some(nth) = code.checked_sub(TABLE.first[length]) else {
                    continue;
                };
                if nth < TABLE.count[length] {
                    match TABLE.symbols[TABLE.at[length] + nth as usize] {
                        END => return false,
                        symbol => out.push(symbol as u8),
                    }
                    held -= length;
                    continue 'symbols;
                }
            }
            break;
        }
    }
    // Padding is the start of the end of string, which is all ones, and less than a byte.
    held < 8 && bits & ((1 << held) - 1) == (1 << held) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_examples_of_the_specification() {
        for (coded, text) in [
            (&b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..], "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f", "custom-key"),
            (b"\x64\x02", "302"),
            (b"", ""),
        ] {
            let mut out = Vec::new();
            assert!(decode(coded, &mut out));
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn refuses_bad_padding_and_the_end_of_string() {
        for coded in [&b"\xff"[..], b"\0\0", b"\x07\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xfc"]
        {
            assert!(!decode(coded, &mut Vec::new()), "{coded:x?}");
        }
    }
}
