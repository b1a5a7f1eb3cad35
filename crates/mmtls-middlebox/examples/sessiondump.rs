//! Writes what was said in every session to two files, `DIRECTORY/SESSION-to_server` and
//! `-to_client`.
//!
//! `cargo run --example sessiondump -- DIRECTORY CAPTURE [KEYLOG]`

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use mmtls_middlebox::session::{EndReason, Handler, Record, Session};
use mmtls_middlebox::tls::{ContentType, Direction};

struct SessionDump {
    directory: PathBuf,
}

/// The session's files, opened when there is something to write.
#[derive(Default)]
struct Files {
    to_server: Option<BufWriter<File>>,
    to_client: Option<BufWriter<File>>,
}

impl SessionDump {
    fn write(
        &self,
        session: &Session<'_>,
        files: &mut Files,
        record: &mut Record<'_>,
    ) -> io::Result<()> {
        let direction = record.direction();
        let file = match direction {
            Direction::ClientToServer => &mut files.to_server,
            Direction::ServerToClient => &mut files.to_client,
        };
        let Ok(plaintext) = record.open() else { return Ok(()) };
        if plaintext.content_type != ContentType::APPLICATION_DATA {
            return Ok(());
        }
        if file.is_none() {
            let name = format!("{}-{direction}", session.info().id.0);
            *file = Some(BufWriter::new(File::create(self.directory.join(name))?));
        }
        file.as_mut().map_or(Ok(()), |file| file.write_all(plaintext.bytes))
    }
}

impl Handler for SessionDump {
    type State = Files;

    fn new_record(
        &mut self,
        session: &mut Session<'_>,
        files: &mut Files,
        record: &mut Record<'_>,
    ) {
        let direction = record.direction();
        if let Err(error) = self.write(session, files, record) {
            eprintln!("sessiondump: {error}");
            session.pause(direction, None);
        }
    }

    fn session_end(&mut self, _: &mut Session<'_>, files: &mut Files, _: EndReason) {
        for file in [&mut files.to_server, &mut files.to_client].into_iter().flatten() {
            if let Err(error) = file.flush() {
                eprintln!("sessiondump: {error}");
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, capture, keylog @ ..] = &arguments[..] else {
        return Err("usage: sessiondump DIRECTORY CAPTURE [KEYLOG]".into());
    };
    let dump = SessionDump { directory: directory.into() };
    mmtls_middlebox::offline::replay(Path::new(capture), keylog.first().map(Path::new), dump)?;
    Ok(())
}
