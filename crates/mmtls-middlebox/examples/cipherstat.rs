//! Logs the server name, version and cipher suite of every session (figure 22 of the paper), and
//! prints their distribution at the end. Needs no keys.
//!
//! `cargo run --example cipherstat -- CAPTURE`

use std::collections::BTreeMap;
use std::path::Path;

use mmtls_middlebox::session::{Handler, Session};
use mmtls_middlebox::tls::{CipherSuite, ProtocolVersion};

#[derive(Default)]
struct CipherStat {
    sessions: BTreeMap<(ProtocolVersion, CipherSuite), u64>,
}

impl Handler for CipherStat {
    type State = ();

    fn handshake_end(&mut self, session: &mut Session<'_>, (): &mut ()) {
        let info = session.info();
        let name = info.server_name.as_deref().unwrap_or_default();
        let (Some(version), Some(suite)) = (info.version, info.cipher_suite) else { return };
        println!("server name:{name} version:{} cipher:{}", version.0, suite.0);
        *self.sessions.entry((version, suite)).or_default() += 1;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let capture = std::env::args().nth(1).ok_or("usage: cipherstat CAPTURE")?;
    let seen = mmtls_middlebox::offline::replay(Path::new(&capture), None, CipherStat::default())?;
    for ((version, suite), count) in seen.sessions {
        println!("{version}, cipher suite {:#06x}: {count} sessions", suite.0);
    }
    Ok(())
}
