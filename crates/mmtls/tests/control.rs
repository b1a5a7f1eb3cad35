//! The control socket of a live run: sessions are seen as they are, killed, bypassed and drained, and whatever is said to
//! the socket costs nothing but an error.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mmtls_testkit::{
    Background, Finished, Mmtls, MmtlsOptions, NginxOptions, address, files, wait_until,
};
use serde_json::Value;

use crate::common::{Family, LIMIT, Stage, can_run, mmtls_program, options, shell, url};

const BYTES: usize = 8 << 20;

/// A stage with a file that takes as long as it is let, and where the socket is.
pub struct Controlled {
    pub stage: Stage,
    pub content: Vec<u8>,
    pub socket: PathBuf,
}

impl Controlled {
    pub fn new() -> Self {
        // Clients may be slow.
        let extra = "send_timeout 10m;".to_owned();
        let stage = Stage::with(NginxOptions { extra, ..NginxOptions::default() });
        let content = files::pattern_bytes(BYTES, 5);
        stage.serve("file", &content);
        stage.serve("small", b"small");
        // A slow client's system would take the whole file at once.
        shell(&stage.bed.client, "sysctl -qw net.ipv4.tcp_rmem='4096 65536 262144'");
        let socket = stage.bed.directory().join("control.sock");
        Self { stage, content, socket }
    }

    pub fn start(&self, config: &str, options: MmtlsOptions) -> Mmtls {
        let mut options = MmtlsOptions { config: Some(config.to_owned()), ..options };
        options.arguments.extend(["--control".to_owned(), self.socket.display().to_string()]);
        self.stage.mmtls(&options)
    }

    /// Writes a file of rules, and has the run apply it.
    fn rules(&self, text: &str, with: &mut MmtlsOptions) -> PathBuf {
        let file = self.stage.bed.directory().join("it.rules");
        std::fs::write(&file, text).unwrap();
        with.arguments.extend(["-s".to_owned(), file.display().to_string()]);
        file
    }

    pub fn ctl(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(mmtls_program());
        command.arg("ctl").arg("--socket").arg(&self.socket).args(arguments);
        self.stage.run("ctl", command)
    }

    /// The answer, which must be none but ok.
    #[track_caller]
    pub fn ask(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(arguments);
        let done = self.ctl(&all);
        assert!(done.status.success(), "{arguments:?}: {}{}", done.text(), done.stderr);
        let answer: Value = serde_json::from_str(&done.text()).unwrap();
        assert_eq!(answer["ok"], true);
        answer
    }

    /// The only session of a listing, once there is one and it is as it should be.
    #[track_caller]
    pub fn only(&self, arguments: &[&str], is: impl Fn(&Value) -> bool) -> Value {
        let mut answer = Value::Null;
        let came = wait_until(LIMIT, || {
            answer = self.ask(arguments);
            matches!(&answer["sessions"].as_array().unwrap()[..], [session] if is(session))
        });
        assert!(came, "{arguments:?}: {answer}");
        answer["sessions"][0].clone()
    }

    /// A download that goes on for long, into a file.
    pub fn slowly(&self, name: &str, mut curl: Command) -> (Background, PathBuf) {
        let out = self.stage.bed.directory().join(name);
        curl.args(["--limit-rate", "1M", "-o"]).arg(&out).arg(url("file"));
        (self.stage.bed.background(name, curl).unwrap(), out)
    }
}

fn id(session: &Value) -> String {
    session["id"].as_u64().unwrap().to_string()
}

#[test]
fn says_of_each_session_why_it_is_not_decrypted() {
    if !can_run(&["nginx", "curl", "python3"]) {
        return;
    }
    let it = Controlled::new();
    let bypass = format!("[policies]\nbypass = [\"{}:8443\"]\n", address::SERVER_V4);
    let mut with = MmtlsOptions { missing_keys: "forward".to_owned(), ..options() };
    with.arguments = ["--workers", "2"].map(str::to_owned).to_vec();
    let mmtls = it.start(&bypass, with);
    let mode = it.socket.metadata().unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);

    // Without keys first: nobody is there to share any.
    let mut keyless = it.slowly("keyless", it.stage.plain_curl(Family::V4));
    let why = |id: &str| it.ask(&["session", id])["why"].as_str().unwrap().to_owned();
    let session = it.only(&["sessions", "--keys", "missing"], |_| true);
    assert_eq!(session["name"], address::SERVER_NAME);
    assert_eq!(session["version"], "TLS 1.3");
    assert_eq!(
        why(&id(&session)),
        format!("No keys came within 50 ms; no agent of {} is connected.", address::CLIENT_V4)
    );
    let mut shared = it.slowly("shared", it.stage.sharing_curl(&mmtls, Family::V4, &[]));
    let session = it.only(&["sessions", "--keys", "shared"], |it| it["decrypted"] == true);
    assert_eq!(why(&id(&session)), "It is decrypted.");
    let detail = it.ask(&["session", &id(&session)]);
    assert!(detail["session"]["plaintext_toclient"].as_u64().unwrap() > 0, "{detail}");
    let exempting = it.stage.sharing_curl(&mmtls, Family::V4, &[address::SERVER_NAME]);
    let mut refused = it.slowly("refused", exempting);
    let session = it.only(&["sessions", "--keys", "exempt"], |_| true);
    assert_eq!(why(&id(&session)), "Its endpoint refuses to share its keys (null keys).");

    let serve = "import socket, time\n\
                 s = socket.create_server(('10.77.0.3', 8443))\n\
                 print('ready', flush=True)\n\
                 c = s.accept()[0]\n\
                 for _ in range(300): c.send(b'x'); time.sleep(0.1)";
    let mut server = it.stage.bed.server.command("python3");
    server.args(["-c", serve]);
    let mut server = it.stage.bed.background("bypassed-server", server).unwrap();
    server.wait_for_line("ready", LIMIT).unwrap();
    let mut client = it.stage.bed.client.command("python3");
    client.args([
        "-c",
        "import socket; c = socket.create_connection(('10.77.0.3', 8443))\nwhile c.recv(9): pass",
    ]);
    let client = it.stage.bed.background("bypassed-client", client).unwrap();
    let session = it.only(&["sessions", "--keys", "left_alone"], |_| true);
    assert_eq!(session["server"], "10.77.0.3:8443");
    assert_eq!(why(&id(&session)), "Its server is left alone by policies.bypass, 10.77.0.3:8443.");

    // All of them, in order, filtered and cut.
    let all = it.ask(&["sessions", "--sort", "age"]);
    let states: Vec<_> = all["sessions"].as_array().unwrap().iter().map(|it| &it["keys"]).collect();
    assert_eq!(states, ["missing", "shared", "exempt", "left_alone"], "{all}");
    let two = it.ask(&["sessions", "--limit", "2", "--name", "*.test"]);
    assert_eq!((&two["total"], &two["more"]), (&3.into(), &1.into()), "{two}");
    for (filter, count) in [
        (["--client", "10.77.0.2"], 4),
        (["--client", "10.77.0.0/24"], 4),
        (["--client", "10.77.0.3"], 0),
        (["--server", "10.77.0.3:443"], 3),
        (["--name", "other.test"], 0),
    ] {
        let found = it.ask(&["sessions", filter[0], filter[1]]);
        assert_eq!(found["total"], count, "{filter:?}");
    }
    let table = it.ctl(&["sessions"]).text();
    assert!(table.starts_with("ID ") && table.contains("server.test  TLS 1.3"), "{table}");

    let status = it.ask(&["status"]);
    assert_eq!(status["sessions"]["live"], 3, "{status}");
    assert_eq!((&status["mode"], &status["draining"]), (&"inline".into(), &false.into()));
    assert_eq!(status["workers"].as_array().unwrap().len(), 2);
    let keys = it.ask(&["keys"]);
    let agents = keys["agents"].as_array().unwrap();
    assert!(!agents.is_empty() && agents[0]["messages"].as_u64().unwrap() > 0, "{keys}");
    let policies = it.ask(&["policies"]);
    assert_eq!(policies["policies"]["missing_keys"], "forward");
    assert_eq!(policies["bypass"][0], "10.77.0.3:8443");

    drop((server, client));
    for (download, out) in [&mut keyless, &mut shared, &mut refused] {
        assert!(download.wait(LIMIT).unwrap().success());
        assert!(std::fs::read(out).unwrap() == it.content);
    }
    assert!(mmtls.stop().unwrap().success);
    assert!(!it.socket.exists());
}

#[test]
fn kills_and_bypasses_sessions_and_the_log_says_so() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let it = Controlled::new();
    let mmtls = it.start("", options());
    let (mut killed, _) = it.slowly("killed", it.stage.sharing_curl(&mmtls, Family::V4, &[]));
    let session = it.only(&["sessions"], |it| it["decrypted"] == true);
    let first = id(&session);
    it.ask(&["session", "kill", &first]);
    assert!(!killed.wait(LIMIT).unwrap().success(), "{}", killed.stderr_text());
    assert!(killed.stderr_text().contains("reset"), "{}", killed.stderr_text());
    let again = it.ctl(&["session", "kill", &first]);
    assert!(!again.status.success() && again.stderr.contains("it is over"), "{}", again.stderr);

    let (mut bypassed, out) = it.slowly("bypassed", it.stage.sharing_curl(&mmtls, Family::V4, &[]));
    let session = it.only(&["sessions"], |it| it["decrypted"] == true);
    let second = id(&session);
    it.ask(&["session", "bypass", &second]);
    let detail = it.ask(&["session", &second]);
    assert_eq!(detail["session"]["keys"], "bypassed");
    assert_eq!(detail["why"], "An operator lets it pass unread (session bypass).");
    assert!(!it.ctl(&["session", "bypass", &second]).status.success(), "once");
    assert!(bypassed.wait(LIMIT).unwrap().success(), "{}", bypassed.stderr_text());
    assert!(std::fs::read(&out).unwrap() == it.content);
    let unknown = it.ctl(&["session", "12345"]);
    assert!(unknown.stderr.contains("there is none"), "{}", unknown.stderr);

    let report = mmtls.stop().unwrap();
    let control = report.events("control");
    let of = |id: &str, action: &str| {
        control.iter().any(|line| {
            line["flow_id"].as_u64() == id.parse().ok()
                && line["control"]["action"] == action
                && line["control"]["uid"].is_u64()
        })
    };
    assert!(of(&first, "kill") && of(&second, "bypass") && control.len() == 2, "{control:?}");
    let ends = report.events("mmtls");
    let end = |id: &str| {
        &ends.iter().find(|line| line["flow_id"].as_u64() == id.parse().ok()).unwrap()["mmtls"]
    };
    assert_eq!(end(&first)["end_reason"], "reset_by_operator");
    assert_eq!(end(&second)["end_reason"], "closed");
    let read = end(&second)["decrypted"]["bytes_toclient"].as_u64().unwrap();
    assert!(read > 0 && read < BYTES as u64, "{read}");
}

#[test]
fn reloads_rotates_and_drains() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let it = Controlled::new();
    let rule = "alert http any any -> any any (msg:\"m\"; content:\"never\"; sid:1;)\n";
    let mut with = options();
    let rules = it.rules(rule, &mut with);
    let mut mmtls = it.start("", with);
    assert_eq!(it.ask(&["rules"])["active"], 1);
    std::fs::write(&rules, format!("{rule}{}", rule.replace("sid:1", "sid:2"))).unwrap();
    let told = it.ask(&["reload"])["told"].to_string();
    assert!(told.contains("2 active") && told.contains("certificates"), "{told}");
    std::fs::write(&rules, "alert http any any -> any any (sid:nothing;)\n").unwrap();
    let failed = it.ctl(&["reload"]);
    assert!(!failed.status.success(), "{}", failed.text());
    assert!(
        failed.stderr.contains("it.rules") && failed.stderr.contains("stay"),
        "{}",
        failed.stderr
    );
    let now = it.ask(&["rules"]);
    assert_eq!((&now["active"], &now["failed_reloads"]), (&2.into(), &1.into()), "{now}");

    let log = mmtls.directory().join("eve.json");
    std::fs::rename(&log, mmtls.directory().join("eve.json.1")).unwrap();
    it.ask(&["log-rotate"]);
    let begun = Instant::now();
    while !log.exists() {
        assert!(begun.elapsed() < LIMIT, "no new log");
        std::thread::sleep(Duration::from_millis(20));
    }

    let (mut before, out) = it.slowly("before", it.stage.sharing_curl(&mmtls, Family::V4, &[]));
    it.only(&["sessions"], |it| it["decrypted"] == true);
    let forever = it.ctl(&["drain", "--timeout", &u64::MAX.to_string()]);
    assert!(forever.stderr.contains("too long"), "{}", forever.stderr);
    let drained = it.ask(&["drain", "--timeout", "60"]);
    assert_eq!(drained["sessions"], 1);
    assert!(!it.ctl(&["drain"]).status.success(), "once");
    // It shares nothing, and would be reset.
    let mut after = it.stage.plain_curl(Family::V4);
    after.arg(url("small"));
    assert_eq!(it.stage.run("after", after).text(), "small");
    assert!(mmtls.process.is_running());
    assert!(before.wait(LIMIT).unwrap().success());
    assert!(std::fs::read(&out).unwrap() == it.content);
    let ended = mmtls.process.wait(Duration::from_secs(5)).unwrap();
    assert!(ended.success(), "by itself: {}", mmtls.process.stderr_text());
    let told = mmtls.process.stderr_text();
    assert!(told.contains("drained: no session is left"), "{told}");
    let eve = mmtls.eve();
    let stats = eve.iter().rev().find(|it| it["event_type"] == "stats").unwrap();
    assert!(stats["stats"]["engine"]["drained"].as_u64().unwrap() >= 1, "{stats}");
    assert_eq!(stats["stats"]["monitor"]["decrypted"], 1);
}

#[test]
fn keeps_a_version_of_the_rules_only_for_transactions_that_go_by_it() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let it = Controlled::new();
    let mut with = MmtlsOptions { missing_keys: "forward".to_owned(), ..options() };
    it.rules("alert http any any -> any any (file.data; content:\"never\"; sid:1;)\n", &mut with);
    let mmtls = it.start("", with);
    let versions = || it.ask(&["rules"])["versions"].as_u64().unwrap();
    // Rules have looked at its handshake, and will look at nothing more.
    let (mut keyless, _) = it.slowly("keyless", it.stage.plain_curl(Family::V4));
    it.only(&["sessions", "--keys", "missing"], |_| true);
    it.ask(&["reload"]);
    assert!(wait_until(LIMIT, || versions() == 1), "{}", versions());
    assert!(keyless.is_running());

    let (_sharing, _) = it.slowly("sharing", it.stage.sharing_curl(&mmtls, Family::V4, &[]));
    let under_way = |it: &Value| it["bytes_toclient"].as_u64() > Some(100_000);
    let sharing = it.only(&["sessions", "--keys", "shared"], under_way);
    it.ask(&["reload"]);
    assert_eq!(versions(), 2, "of a download under way");
    // What it was about ends with the session, and the engine keeps the flow for longer.
    it.ask(&["session", "kill", &id(&sharing)]);
    assert!(wait_until(LIMIT, || versions() == 1), "{}", versions());
}

/// What a connection answers to these bytes, before it is closed or for a while.
fn say(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let _ = stream.write_all(bytes);
    let mut line = String::new();
    let _ = BufReader::new(&stream).read_line(&mut line);
    line
}

#[test]
fn goes_on_whatever_is_said() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let it = Controlled::new();
    let mmtls = it.start("", options());
    for (bytes, error) in [
        (&b"\n"[..], "no such request"),
        (b"not json\n", "no such request"),
        (b"{\"command\":\"stop\"}\n", "no such request"),
        (b"{\"command\":\"session\",\"id\":0}\n", "there is none"),
        (b"{\"command\":\"session\",\"id\":18446744073709551615}\n", "there is none"),
        (b"{\"command\":\"sessions\",\"limit\":0}\n", "limit must be 1 to 10000"),
        (b"{\"command\":\"sessions\",\"client\":\"\\u001b[2J\"}\n", "is not ADDRESS"),
        (&[b'['; 4096], "at most 4096 bytes"),
        (&[0; 100_000], "at most 4096 bytes"),
    ] {
        let answer: Value = serde_json::from_str(&say(&it.socket, bytes)).unwrap();
        assert_eq!(answer["ok"], false);
        assert!(answer["error"].as_str().unwrap().contains(error), "{answer}");
    }
    // Several in one, and one in pieces.
    let mut stream = UnixStream::connect(&it.socket).unwrap();
    stream.write_all(b"{\"command\":\"rules\"}\n{\"command\":\"policies\"}\n{\"comm").unwrap();
    stream.write_all(b"and\":\"status\"}\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let answers: Vec<Value> = text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|it| it["ok"] == true) && answers[2]["pid"].is_u64());
    // More than there are places for, none of which says anything.
    let mut silent = Vec::new();
    let begun = Instant::now();
    // The places of those before are free once their threads have seen that they are gone.
    loop {
        silent.extend((0..20).map(|_| UnixStream::connect(&it.socket).unwrap()));
        let busy = it.ctl(&["status"]);
        if busy.stderr.contains("too many connections") {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{}", busy.stderr);
    }
    let mut curl = it.stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.arg(url("small"));
    assert_eq!(it.stage.run("curl", curl).text(), "small");
    drop(silent);
    // Each place is free once its thread has seen that.
    let begun = Instant::now();
    while !it.ctl(&["status"]).status.success() {
        assert!(begun.elapsed() < LIMIT, "places stay taken");
        std::thread::sleep(Duration::from_millis(20));
    }

    // Another run must not take it over, nor may it be taken for one.
    let mut second = it.stage.bed.middlebox.command(mmtls_program());
    second.args(["run", "--inline", "left:right", "--missing-keys", "reset", "--control"]);
    second.arg(&it.socket);
    let pki = it.stage.bed.pki();
    second.arg("--key-cert").arg(&pki.middlebox.certificate);
    second.arg("--key-key").arg(&pki.middlebox.key).args(["--keys-listen", "127.0.0.1:0"]);
    let second = it.stage.run("second", second);
    assert!(!second.status.success());
    assert!(second.stderr.contains("another mmtls listens there"), "{}", second.stderr);
    it.ask(&["status"]);

    // What a run leaves that was killed is replaced.
    let mut mmtls = mmtls;
    mmtls.process.signal("KILL");
    let _ = mmtls.process.wait(LIMIT);
    assert!(it.socket.symlink_metadata().unwrap().file_type().is_socket());
    assert!(it.ctl(&["status"]).stderr.contains("does `mmtls run --control PATH` run?"));
    let mmtls = it.start("", MmtlsOptions { log: false, ..options() });
    it.ask(&["status"]);
    assert!(mmtls.stop().unwrap().success);
}
