//! What the clients tell: transfers that were whole, and errors.
//!
//! Refuses to keep more than the errors: of an hour's transfers sums are enough.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::tail::Tail;

/// A transfer, as `xtask/soak/client.py` tells it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Transfer {
    /// Of the client: `short`, `persistent`, …
    pub kind: String,
    /// Seconds since 1970, also of the connection, which may have been idle since.
    pub connected: f64,
    pub begun: f64,
    pub ended: f64,
    /// The client's address and port; port 0 where it had none yet.
    pub local: String,
    /// What was fetched or sent.
    pub what: String,
    /// What came of it.
    pub bytes: u64,
    /// Of TLS, or of HTTP where curl tells.
    #[serde(default)]
    pub version: Option<String>,
    pub error: Option<String>,
    /// Content that is not what was sent, or a program's own fault: what ends a connection explains neither.
    pub corrupt: bool,
}

/// Sums of a kind of client.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sum {
    pub transfers: u64,
    pub bytes: u64,
    /// The longest one in seconds.
    pub longest: f64,
}

/// All that was told.
#[derive(Serialize)]
pub struct Transfers {
    #[serde(skip)]
    tail: Tail,
    pub kinds: BTreeMap<String, Sum>,
    pub versions: BTreeMap<String, u64>,
    pub errors: Vec<Transfer>,
    /// Lines that are not what a client writes.
    pub bad_lines: u64,
}

impl Transfers {
    /// Of a file that clients append to.
    pub fn new(path: &Path) -> Self {
        Self {
            tail: Tail::new(path),
            kinds: BTreeMap::new(),
            versions: BTreeMap::new(),
            errors: Vec::new(),
            bad_lines: 0,
        }
    }

    /// Takes what has come since.
    pub fn read(&mut self) -> Result<(), String> {
        let Self { tail, kinds, versions, errors, bad_lines } = self;
        tail.read(|line| {
            let Ok(transfer) = serde_json::from_slice::<Transfer>(line) else {
                *bad_lines += 1;
                return;
            };
            if transfer.error.is_some() {
                errors.push(transfer);
                return;
            }
            let sum = kinds.entry(transfer.kind).or_default();
            sum.transfers += 1;
            sum.bytes += transfer.bytes;
            sum.longest = sum.longest.max(transfer.ended - transfer.begun);
            *versions.entry(transfer.version.unwrap_or_default()).or_default() += 1;
        })
    }

    /// Whole ones.
    pub fn count(&self) -> u64 {
        self.kinds.values().map(|sum| sum.transfers).sum()
    }

    /// Of whole ones.
    pub fn bytes(&self) -> u64 {
        self.kinds.values().map(|sum| sum.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};

    use serde_json::json;

    use super::*;

    /// Connections and curl answer what a test says, without a network.
    const FAKES: &str = r#"
import ssl, subprocess, sys
sys.path.insert(0, sys.argv[2])
import client

late = client.threading.Timer(60, lambda: client.os._exit(3))
late.daemon = True
late.start()
Connection = client.Connection

class Tls:
    def __init__(self, answers):
        self.answers = list(answers)
    def sendall(self, data):
        pass
    def recv(self, most):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer
    def version(self):
        return "TLSv1.3"

def connection(*answers):
    it = object.__new__(Connection)
    it.local, it.connected, it.held, it.tls = "127.0.0.1:4000", 0.0, b"", Tls(answers)
    return it

def told(action):
    try:
        action()
    except client.Failed as failed:
        failed.tell()

def curl(content, error):
    def run(command, **_):
        said = ""
        for at, word in enumerate(command):
            if word.startswith("https://"):
                if content is not None:
                    open(command[at - 1], "wb").write(content)
                said += client.json.dumps({"url": word, "errormsg": error, "local_port": 4000, "size_download": 1,
                                           "http_version": "2", "response_code": 200}) + "\n"
        return subprocess.CompletedProcess(command, 0, said, "")
    return run
"#;

    /// What a client tells that does this, and how it ends; `None` without Python.
    fn told(does: &str) -> Option<(Transfers, Output)> {
        let place = tempfile::tempdir().unwrap();
        let results = place.path().join("results.jsonl");
        std::fs::write(&results, "").unwrap();
        let settings = json!({
            "kind": "http2",
            "threads": 2,
            "source": "127.0.0.1",
            "server": "127.0.0.1",
            "ca": "",
            "stop": place.path().join("stop"),
            "results": results,
            "objects": {"1k": {"bytes": 1000, "sha256": "00", "weight": 1}},
            "pause": 0.0,
        });
        let mut command = Command::new("python3");
        command.args(["-B", "-c", &format!("{FAKES}\n{does}"), &settings.to_string()]);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/soak"));
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => {
                mmtls_testkit::skip_unless("MMTLS_REQUIRE_TESTBED", &format!("python3: {error}"));
                return None;
            }
        };
        let mut transfers = Transfers::new(&results);
        transfers.read().unwrap();
        assert_eq!(transfers.bad_lines, 0);
        Some((transfers, output))
    }

    fn corrupt(transfers: &Transfers) -> Vec<bool> {
        transfers.errors.iter().map(|it| it.corrupt).collect()
    }

    #[test]
    fn other_content_and_records_that_do_not_verify_are_corrupt_and_a_reset_is_not() {
        let told = told(
            r#"
ok = b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n"
told(lambda: client.get(connection(ok, b"a" * 64), "1k"))
told(lambda: client.post(connection(ok, b"a" * 64), 1000))
upgraded = connection(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"\x82\x03abc")
client.Connection = lambda: upgraded
told(client.websocket)
damaged = ssl.SSLError(1, "[SSL: SSLV3_ALERT_BAD_RECORD_MAC] sslv3 alert bad record mac (_ssl.c:2548)")
told(lambda: client.get(connection(ok, damaged), "1k"))
client.subprocess.run = curl(b"other", None)
client.http2()
print(len(open(client.settings["results"]).readlines()))
told(lambda: client.get(connection(ok, ConnectionResetError(104, "Connection reset by peer")), "1k"))
told(lambda: client.get(connection(ok, b""), "1k"))
told(lambda: client.post(connection(TimeoutError("timed out")), 1000))
"#,
        );
        let Some((transfers, output)) = told else { return };
        assert!(output.status.success(), "{output:?}");
        let count: usize = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        assert!(count > 4, "{count}");
        let told = corrupt(&transfers);
        assert_eq!(told.len(), count + 3, "{:?}", transfers.errors);
        assert!(told[..count].iter().all(|it| *it), "{:?}", transfers.errors);
        assert!(told[count..].iter().all(|it| !it), "{:?}", transfers.errors);
    }

    #[test]
    fn what_curl_says_of_damage_is_corrupt_and_what_it_says_of_a_reset_is_not() {
        for (error, expected) in [
            (
                "OpenSSL SSL_read: error:0A000119:SSL routines::decryption failed or bad record mac",
                true,
            ),
            ("Recv failure: Connection reset by peer", false),
        ] {
            let told =
                told(&format!("client.subprocess.run = curl(None, {error:?})\nclient.http2()"));
            let Some((transfers, output)) = told else { return };
            assert!(output.status.success(), "{output:?}");
            assert!(transfers.errors.len() >= 2, "{output:?}");
            assert!(corrupt(&transfers).iter().all(|it| *it == expected), "{error}");
        }
    }

    #[test]
    fn a_fault_of_the_program_itself_is_told_and_ends_all_its_threads() {
        // No error, and no file.
        let Some((transfers, output)) =
            told("client.subprocess.run = curl(None, None)\nclient.main()")
        else {
            return;
        };
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("FileNotFoundError"),
            "{output:?}"
        );
        assert!(!transfers.errors.is_empty());
        assert!(transfers.errors.iter().all(|it| it.corrupt && it.what == "program"));
    }
}
