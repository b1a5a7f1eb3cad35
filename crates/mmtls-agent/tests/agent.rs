//! `mmtls agent`: programs find it by its directory, through its death and the next one.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mmtls_agent::Status;
use mmtls_keyshare::message::Message;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use serde_json::Value;

use crate::common::{Middlebox, Place, library, request, stderr, until};

struct Agent {
    process: Child,
    directory: PathBuf,
}

impl Agent {
    fn start(place: &Place, middlebox: &Middlebox) -> Self {
        Self::start_with(place, middlebox, &[])
    }

    fn start_with(place: &Place, middlebox: &Middlebox, environment: &[(&str, &Path)]) -> Self {
        let directory = place.path("agent");
        let mut command = place.agent(&middlebox.address(), &directory);
        command.envs(environment.iter().copied());
        command.env("TEST_AUDIT", place.path("audit"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let process = command.spawn().unwrap();
        let agent = Self { process, directory };
        until(|| agent.status().is_some_and(|it| it.pid == agent.process.id()));
        until(|| agent.status().is_some_and(|it| it.middleboxes.values().all(Option::is_none)));
        agent
    }

    fn status(&self) -> Option<Status> {
        Status::read(Some(&self.directory)).ok()
    }

    /// Ends it in order; what it says.
    fn end(mut self) -> String {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.process.stderr.take().unwrap(), &mut text).unwrap();
        assert!(self.process.wait().unwrap().success(), "{text}");
        assert!(!self.directory.exists(), "{text}");
        text
    }
}

fn audit(place: &Place) -> Vec<Value> {
    let text = std::fs::read_to_string(place.path("audit")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// curl, by `mmtls exec` without a middlebox.
fn curl(place: &Place, agent: &Path, url: &str, exempt: &str) {
    let arguments = ["curl", "-sS", "--noproxy", "*", "--cacert", "ca.pem", "-o", "page", url];
    let output = place.exec_through(agent, &arguments).env("TEST_EXEMPT", exempt).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn accepts_programs_that_find_it() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let server = place.tls_server("-www");
    let url = format!("https://localhost:{}/", server.port);
    let agent = Agent::start(&place, &middlebox);
    curl(&place, &agent.directory, &url, "");
    until(|| middlebox.keys().len() == 2);
    curl(&place, &agent.directory, &url, "localhost");
    let is_null = || {
        let messages = middlebox.inbox.0.lock().unwrap();
        messages.iter().any(|it| matches!(it.1, Message::NullKeys(_)))
    };
    until(is_null);
    until(|| agent.status().is_some_and(|it| (it.sessions_shared, it.sessions_exempt) == (1, 1)));
    let lines = audit(&place);
    let decisions: Vec<&str> = lines.iter().filter_map(|it| it["decision"].as_str()).collect();
    assert_eq!(decisions, ["shared", "shared", "exempt"], "{lines:#?}");
    assert!(agent.end().contains("1 sessions shared, 1 exempt"));
}

/// The user that owns nothing.
const NOBODY: u32 = 65534;

/// curl of another user, with the library but without `mmtls exec`: the test program may be where others cannot look.
fn curl_of_nobody(place: &Place, agent: &Path, url: &str) -> bool {
    let preload = place.path("libmmtls_preload.so");
    std::fs::copy(library(), &preload).unwrap();
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--noproxy", "*", "-k", "-o", "/dev/null", url]).current_dir("/");
    curl.env("LD_PRELOAD", preload).env("MMTLS_AGENT", agent.join("agent"));
    match curl.uid(NOBODY).gid(NOBODY).output() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            true
        }
        Err(error) => {
            eprintln!("SKIP: no other user than this one: {error}");
            false
        }
    }
}

#[test]
fn accepts_programs_of_all_users_and_tells_them_apart() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let server = place.tls_server("-www");
    let url = format!("https://localhost:{}/", server.port);
    let rules = "[[rules]]\nname = \"nobody\"\nusers = [\"65534\"]\nshare = \"nothing\"\n";
    std::fs::write(place.path("rules"), rules).unwrap();
    let rules = place.path("rules");
    let environment = [("TEST_USERS", Path::new("all")), ("TEST_RULES", &rules)];
    let agent = Agent::start_with(&place, &middlebox, &environment);
    curl(&place, &agent.directory, &url, "");
    until(|| middlebox.keys().len() == 2);
    if curl_of_nobody(&place, &agent.directory, &url) {
        until(|| agent.status().is_some_and(|it| it.sessions_by_rule.get("nobody") == Some(&1)));
        until(|| agent.status().is_some_and(|it| it.sessions_exempt == 1));
        assert_eq!(middlebox.keys().len(), 2);
        let lines = audit(&place);
        assert_eq!(lines.last().unwrap()["rule"], "nobody", "{lines:#?}");
    }
    let key_log = agent.directory.join("keylog").metadata().unwrap();
    assert_eq!(key_log.permissions().mode() & 0o777, 0o600, "what others write there is nobody's");
    agent.end();
}

/// A program that never stops sending.
fn flood(socket: &Path, until: Instant) {
    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
    let program = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    connect(&program, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    while Instant::now() < until && send(&program, &[0; 8], SendFlags::NOSIGNAL).is_ok() {}
}

#[test]
fn accepts_its_end_while_programs_send() {
    // While one is read the others send again.
    const FLOODS: usize = 32;
    let place = Place::new();
    let middlebox = place.middlebox();
    let agent = Agent::start(&place, &middlebox);
    let socket = agent.directory.join("agent");
    let begun = Instant::now();
    std::thread::scope(|threads| {
        for _ in 0..FLOODS {
            threads.spawn(|| flood(&socket, begun + Duration::from_secs(20)));
        }
        std::thread::sleep(Duration::from_millis(300));
        let said = agent.end();
        assert!(begun.elapsed() < Duration::from_secs(15), "{said}");
    });
}

/// The control: the agent of one user does not hear others.
#[test]
fn refuses_programs_of_other_users_where_it_is_for_one() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let server = place.tls_server("-www");
    let url = format!("https://localhost:{}/", server.port);
    let agent = Agent::start(&place, &middlebox);
    if curl_of_nobody(&place, &agent.directory, &url) {
        curl(&place, &agent.directory, &url, "");
        until(|| middlebox.keys().len() == 2);
        until(|| agent.status().is_some_and(|it| it.sessions_shared == 1));
    }
    agent.end();
}

#[test]
fn refuses_a_second_one_and_programs_without_one() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let missing = place.path("agent");
    let output = place.exec_through(&missing, &["true"]).output().unwrap();
    assert!(stderr(&output).contains("no agent at"), "{output:?}");
    let agent = Agent::start(&place, &middlebox);
    let output = place.agent(&middlebox.address(), &agent.directory).output().unwrap();
    assert_eq!(output.status.code(), Some(99));
    assert!(stderr(&output).contains("another agent reads it"), "{output:?}");
    // The first one is still found.
    let output = place.exec_through(&agent.directory, &["false"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = place.exec_through(&agent.directory, &["/nonexistent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    agent.end();
}

/// A program that has its key log open sees neither that the agent is killed nor the next one.
#[test]
fn accepts_the_next_one_where_the_last_was_killed() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let mut agent = Agent::start(&place, &middlebox);
    let mut log = std::fs::OpenOptions::new();
    let mut log = log.append(true).open(agent.directory.join("keylog")).unwrap();
    let mut line = |number: u8| {
        let (random, secret) = (format!("{number:02x}").repeat(32), "07".repeat(32));
        writeln!(log, "SERVER_TRAFFIC_SECRET_0 {random} {secret}").unwrap();
    };
    let ask = |number: u8| {
        let peer = middlebox.inbox.1.lock().unwrap().clone().unwrap();
        let request = request([number; 32]);
        let handle = middlebox.server.handle();
        handle.send_to(peer.connection, &Message::KeyRequest(request)).unwrap();
    };
    line(1);
    ask(1);
    until(|| middlebox.keys().len() == 1);
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
    // More than a FIFO holds: the guard takes it, and nobody else.
    for _ in 0..1000 {
        line(2);
    }
    let agent = Agent::start(&place, &middlebox);
    line(3);
    ask(3);
    until(|| middlebox.keys().len() == 2);
    assert_eq!(audit(&place).len(), 2, "of two agents");
    agent.end();
    // Nobody reads any more, but the guard, which leaves alone what is there when it ends.
    let agent = Agent::start(&place, &middlebox);
    line(4);
    drop(log);
    std::thread::sleep(Duration::from_millis(300));
    assert!(agent.directory.join("keylog").exists());
    let output = place.exec_through(&agent.directory, &["true"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    agent.end();
}
