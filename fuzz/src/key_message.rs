//! Messages of the key channel: what a peer that got through the TLS handshake can send.
//!
//! Claims: what decodes is encoded to the same bytes, and however the stream is cut, the decoder
//! gives the same messages and the same error.

use mmtls_keyshare::message::{
    Decoded, Decoder, Greeting, MAX_MESSAGE_BYTES, Message, decode, encode,
};

use crate::input::{Input, pieces};

/// Input: four lengths of pieces, then a stream.
pub fn key_message(data: &[u8]) {
    let mut input = Input::new(data);
    let lengths = input.take(4);
    let stream = input.all();

    let (messages, end) = decode_all(stream);
    for cut in [&[][..], &[1], lengths] {
        let mut decoder = Decoder::new();
        let mut seen = Vec::new();
        let mut outcome = Ok(());
        for piece in pieces(stream, cut) {
            outcome = decoder.feed(piece, |message| seen.push(encoded(&message)));
            if outcome.is_err() {
                break;
            }
        }
        assert_eq!(seen, messages, "the same messages in every cut");
        assert_eq!(outcome.err(), end.error, "the same error in every cut");
        assert_eq!(decoder.skipped(), end.skipped, "the same messages of unknown types");
    }
}

struct End {
    skipped: u64,
    error: Option<mmtls_keyshare::message::DecodeError>,
}

/// Decodes message by message, and checks each on the way.
fn decode_all(stream: &[u8]) -> (Vec<Vec<u8>>, End) {
    let mut rest = stream;
    let mut messages = Vec::new();
    let mut end = End { skipped: 0, error: None };
    loop {
        match decode(rest) {
            Ok(Decoded::NeedMore { bytes }) => {
                assert!(rest.len() < bytes && bytes <= MAX_MESSAGE_BYTES);
                return (messages, end);
            }
            Ok(Decoded::Unknown { kind, consumed }) => {
                assert!(!(1..=15).contains(&kind), "type {kind} is known");
                end.skipped += 1;
                rest = &rest[consumed..];
            }
            Ok(Decoded::Message { message, consumed }) => {
                if let Message::Hello(Greeting { software, .. }) = &message {
                    assert!(!software.chars().any(char::is_control), "for people's eyes");
                }
                let again = encoded(&message);
                assert_eq!(again, rest[..consumed], "one message has one encoding");
                messages.push(again);
                rest = &rest[consumed..];
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                end.error = Some(error);
                return (messages, end);
            }
        }
    }
}

fn encoded(message: &Message) -> Vec<u8> {
    encode(message).expect("what was decoded can be encoded").to_vec()
}
