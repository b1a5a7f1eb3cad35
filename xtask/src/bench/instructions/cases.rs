//! What is counted: replays in memory, the same each time. They are prepared before the counting begins.
//!
//! Cryptography is a case of its own: in the frames of a download it would hide what the engine does.
//!
//! Refuses a replay that came out otherwise than meant.

use std::hint::black_box;

use mmtls_engine::tls::{ContentType, Direction, OpenError, OpenRecord, Opened, RECORD_HEADER_LEN};
use mmtls_inspect::detect::Search;
use mmtls_inspect::{AppLayer, Event, Side};
use mmtls_packet_io::capture::{CaptureReader, Item, PcapngWriter};
use mmtls_record::Tls13Opener;

use super::super::callgrind::counted;
use super::super::engine::{
    Application, Cut, Download, OpenAll, RECORD_CONTENT, deliver, engine_of, no_time, play, seal,
};
use super::super::rules::{Follower, Traffic, matcher, rule_text};
use super::super::synthetic::{self, Keys, SUITE};

/// Does a case's work.
pub(super) type Replay = fn() -> Result<(), String>;

/// Those that take longest come first.
pub(super) const CASES: [(&str, Replay); 7] = [
    ("rules", rules),
    ("sessions", sessions),
    ("segments", || download(Cut::Segments)),
    ("bulk", || download(Cut::Super)),
    ("records", records),
    ("http2", http2),
    ("capture", capture),
];

/// Passes over what fits into the memory of a moment.
const PASSES: usize = 4;

/// Records of 16,384 bytes, 4 MB.
const RECORDS: usize = 256;

/// The engine alone: a download in frames, whose records are taken for plaintext.
fn download(cut: Cut) -> Result<(), String> {
    let download = Download::prepare(&seal(1, RECORDS, RECORD_CONTENT)?, RECORDS as u64, cut);
    let download = download.opened_by(|_| Ok(Box::new(Bare)));
    counted(&mut || (0..PASSES).try_for_each(|_| download.pass(no_time).map(drop)))
}

/// Copies what it is given.
struct Bare;

impl OpenRecord for Bare {
    fn open(
        &self,
        _: u64,
        _: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError> {
        let len = self.content_len(fragment.len());
        let room = plaintext.get_mut(..len).ok_or(OpenError::Malformed)?;
        room.copy_from_slice(&fragment[..len]);
        Ok(Opened { content_type: ContentType::APPLICATION_DATA, len })
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// Whole sessions of 1 KB from SYN to the last acknowledgment, with keys and real protection.
fn sessions() -> Result<(), String> {
    const SESSIONS: u32 = 300;
    /// A request, two tickets, a response; and each side's alert.
    const RECORDS: u64 = 6;
    let body = mmtls_testkit::files::pattern_bytes(synthetic::BODY, 1);
    let sessions = (0..SESSIONS).map(|number| synthetic::session(number, &body));
    let sessions: Vec<_> = sessions.collect::<Result<_, _>>()?;
    let mut engine = engine_of(OpenAll::default());
    counted(&mut || {
        for (number, turns) in (0..).zip(&sessions) {
            for (way, frame) in turns.iter().flatten() {
                play(&mut engine, *way, frame, None)?;
                if core::mem::take(engine.handler_mut().keys_wanted()) > 0 {
                    deliver(&mut engine, number)?;
                }
            }
        }
        // What is closed goes when its time has come.
        OpenAll::pass_time(&mut engine, u64::MAX);
        Ok::<_, String>(())
    })?;
    let opened = engine.handler().opened();
    if opened != u64::from(SESSIONS) * RECORDS {
        return Err(format!("{opened} records were opened"));
    }
    Ok(())
}

/// Record protection alone: full records, and small ones.
fn records() -> Result<(), String> {
    const SMALL: u64 = 2_000;
    const SMALL_CONTENT: usize = 100;
    let keys = Keys::of(0, Direction::ServerToClient, Some(0));
    let opener =
        Tls13Opener::new(SUITE, &keys.key, &keys.iv).map_err(|error| format!("{error:?}"))?;
    let sealer = keys.sealer()?;
    let mut sealed = Vec::new();
    for sequence in 0..RECORDS as u64 / 4 + SMALL {
        let len = if sequence < SMALL { SMALL_CONTENT } else { RECORD_CONTENT };
        let record = sealer.seal(sequence, ContentType::APPLICATION_DATA, &vec![1; len], 0);
        sealed.push(record.ok_or("sealing failed")?);
    }
    let mut plaintext = vec![0; RECORD_CONTENT + 256];
    counted(&mut || {
        for (sequence, record) in (0..).zip(&sealed) {
            let (header, fragment) =
                record.split_first_chunk().ok_or("a record without a header")?;
            let opened = opener.open(sequence, *header, fragment, &mut plaintext);
            opened.map_err(|error| format!("{error:?}"))?;
            black_box(&plaintext);
        }
        Ok(())
    })
}

/// Bytes of HTTP/1.1, with 10,000 rules that do not match.
fn rules() -> Result<(), String> {
    const RULES: usize = 10_000;
    let matcher = matcher(&rule_text(RULES), RULES, Search::AhoCorasick)?;
    let traffic = Traffic::new();
    let small = traffic.small.get(..200).ok_or("too little traffic")?;
    let mut follower = Follower::new(&matcher);
    counted(&mut || {
        follower.connection(&traffic.http1)?;
        follower.connection(small)
    })
}

/// HTTP/2: many streams on a connection, with header compression.
fn http2() -> Result<(), String> {
    const CONNECTIONS: usize = 4;
    const STREAMS: u32 = 500;
    let connection = http2_connection(STREAMS);
    let heads = counted(&mut || {
        let mut heads = 0;
        for _ in 0..CONNECTIONS {
            let mut app = AppLayer::new();
            let mut sink = |event: Event<'_>| {
                heads += u32::from(matches!(event, Event::ResponseHead(..)));
            };
            for (side, bytes) in &connection {
                app.data(*side, bytes, &mut sink);
            }
            app.finish(&mut sink);
        }
        heads
    });
    if heads != STREAMS * CONNECTIONS as u32 {
        return Err(format!("{heads} responses"));
    }
    Ok(())
}

/// Each stream's request and response, in records. Header blocks are those of RFC 7541 C.4.1 and C.6.1: Huffman codes, and
/// names that go into the table each time.
fn http2_connection(streams: u32) -> Vec<(Side, Vec<u8>)> {
    const REQUEST: &[u8] = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
    const RESPONSE: &[u8] = b"\x48\x82\x64\x02\x58\x85\xae\xc3\x77\x1a\x4b\x61\x96\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\x95\x04\x0b\x81\x66\xe0\x82\xa6\x2d\x1b\xff\x6e\x91\x9d\x29\xad\x17\x18\x63\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xae\x43\xd3";
    const HEADERS: u8 = 1;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let settings = frame(4, 0, 0, &[]);
    let mut connection = vec![
        (Side::Client, [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat()),
        (Side::Server, settings),
    ];
    for stream in (1..).step_by(2).take(streams as usize) {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, stream, REQUEST);
        connection.push((Side::Client, request));
        let mut response = frame(HEADERS, END_HEADERS, stream, RESPONSE);
        response.extend(frame(0, END_STREAM, stream, &[b'x'; 500]));
        connection.push((Side::Server, response));
    }
    connection
}

/// A capture file's packets, large and small.
fn capture() -> Result<(), String> {
    const PACKETS: u64 = 3_000;
    let mut writer = PcapngWriter::new(Vec::new()).map_err(|error| error.to_string())?;
    let mut frames = Vec::new();
    let mut connection = synthetic::Connection::open(0, &mut frames);
    for _ in 0..PACKETS / 2 {
        connection.send(Direction::ServerToClient, &[1; 1448], 1448, &mut frames);
        frames.push((
            Direction::ClientToServer,
            connection.acknowledgment(Direction::ClientToServer),
        ));
    }
    for (time, (_, frame)) in (0..).zip(&frames) {
        writer.packet(time, frame, frame.len()).map_err(|error| error.to_string())?;
    }
    let file = writer.into_inner();
    let packets = counted(&mut || {
        let mut packets = 0;
        let mut reader = CaptureReader::new(&*file).map_err(|error| error.to_string())?;
        while let Some(item) = reader.next().map_err(|error| error.to_string())? {
            if let Item::Packet { bytes, .. } = item {
                packets += 1;
                black_box(bytes);
            }
        }
        Ok::<_, String>(packets)
    })?;
    if packets != frames.len() {
        return Err(format!("{packets} packets"));
    }
    Ok(())
}
