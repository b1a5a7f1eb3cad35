//! `mmtls exec` with real programs, a real TLS server and a real key server.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use mmtls_keyshare::message::{Direction, Epoch, KeyRequest, Message};
use mmtls_keyshare::server::Peer;
use mmtls_record::key_schedule::traffic_keys;

use crate::common::{Place, request, secrets, stderr, until};

#[test]
fn accepts_curl_and_shares_its_record_keys() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let server = place.tls_server("-www");
    let url = format!("https://localhost:{}/", server.port);
    for (n, (name, suite)) in [
        ("TLS_AES_128_GCM_SHA256", 0x1301),
        ("TLS_AES_256_GCM_SHA384", 0x1302),
        ("TLS_CHACHA20_POLY1305_SHA256", 0x1303),
    ]
    .into_iter()
    .enumerate()
    {
        let log = place.path(name);
        let output = place
            .exec(
                &middlebox.address(),
                &[
                    "curl",
                    "-sS",
                    "--noproxy",
                    "*",
                    "--cacert",
                    "ca.pem",
                    "--tls13-ciphers",
                    name,
                    "-o",
                    "page",
                    &url,
                ],
            )
            .env("SSLKEYLOGFILE", &log)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(stderr(&output).contains("1 sessions shared, 0 exempt"), "{output:?}");
        // The drain waits for the middlebox to have read everything.
        let keys = middlebox.keys();
        assert_eq!(keys.len(), 2 * (n + 1));
        for (label, direction) in [
            ("CLIENT_TRAFFIC_SECRET_0", Direction::ClientToServer),
            ("SERVER_TRAFFIC_SECRET_0", Direction::ServerToClient),
        ] {
            let expected = traffic_keys(suite, &secrets(&log, label)[0]).unwrap();
            assert!(keys.contains(&(
                direction,
                Epoch::APPLICATION,
                expected.key().to_vec(),
                expected.iv().to_vec()
            )));
        }
    }
}

#[test]
fn accepts_key_updates_and_requests() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let server = place.tls_server("");
    let connect = format!("127.0.0.1:{}", server.port);
    let mut agent = place
        .exec(
            &middlebox.address(),
            &[
                "openssl",
                "s_client",
                "-quiet",
                "-no_ign_eof",
                "-keylogfile",
                "log",
                "-connect",
                &connect,
            ],
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = agent.stdin.take().unwrap();
    until(|| middlebox.keys().len() == 2);
    let (peer, request) = {
        let messages = middlebox.inbox.0.lock().unwrap();
        let (peer, Message::SessionKeys(session)) = &messages[0] else {
            panic!("no keys");
        };
        let request = KeyRequest {
            client_random: session.client_random,
            server_random: session.server_random.unwrap(),
            version: session.version,
            cipher_suite: session.cipher_suite,
            direction: Direction::ServerToClient,
            epoch: Epoch::application(1).unwrap(),
        };
        assert_eq!(session.flow.unwrap().server().port(), server.port);
        (peer.clone(), request)
    };
    let suite = request.cipher_suite;
    let handle = middlebox.server.handle();
    handle.send_to(peer.connection, &Message::KeyRequest(request)).unwrap();
    until(|| middlebox.keys().len() == 3);
    assert_eq!(middlebox.keys()[2].1, Epoch(3));
    // s_client reads commands from the first byte of what it reads.
    std::thread::sleep(Duration::from_millis(100));
    input.write_all(b"k\n").unwrap();
    until(|| middlebox.keys().len() == 4);
    input.write_all(b"Q\n").unwrap();
    assert!(agent.wait().unwrap().success());
    let next = secrets(&place.path("log"), "CLIENT_TRAFFIC_SECRET_N");
    let expected = traffic_keys(suite, &next[0]).unwrap();
    let (direction, epoch, key, _) = &middlebox.keys()[3];
    assert_eq!((*direction, *epoch), (Direction::ClientToServer, Epoch(3)));
    assert_eq!(key, expected.key());
}

#[test]
fn refuses_to_share_exempt_sessions() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let server = place.tls_server("-www");
    let url = format!("https://localhost:{}/", server.port);
    let output = place
        .exec(
            &middlebox.address(),
            &["curl", "-sS", "--noproxy", "*", "--cacert", "ca.pem", "-o", "page", &url],
        )
        .env("TEST_EXEMPT", "other.example LocalHost")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let messages = middlebox.inbox.0.lock().unwrap();
    assert_eq!(messages.len(), 1);
    assert!(matches!(messages[0].1, Message::NullKeys(_)));
}

#[test]
fn accepts_every_exit_status() {
    let place = Place::new();
    let middlebox = place.middlebox();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill $$", 143)] {
        let output = place.exec(&middlebox.address(), &["sh", "-c", script]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{script}: {output:?}");
    }
}

#[test]
fn accepts_signals_and_passes_them_on() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut agent = place
        .exec(&middlebox.address(), &["sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = agent.stdout.take().unwrap();
    let mut text = String::new();
    while !text.contains("ready") {
        let mut buffer = [0; 64];
        let length = output.read(&mut buffer).unwrap();
        assert_ne!(length, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    let id = agent.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(agent.wait().unwrap().code(), Some(5));
    output.read_to_string(&mut text).unwrap();
    assert!(text.contains("caught"), "{text}");
}

#[test]
fn accepts_a_middlebox_that_is_away() {
    let place = Place::new();
    let server = place.tls_server("-www");
    let url = format!("https://localhost:{}/", server.port);
    let output = place
        .exec(
            "127.0.0.1:1",
            &["curl", "-sS", "--noproxy", "*", "--cacert", "ca.pem", "-o", "page", &url],
        )
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(place.path("page").exists());
    let text = stderr(&output);
    assert!(text.contains("127.0.0.1:1 gets no keys yet"), "{text}");
    assert!(text.contains("were not delivered"), "{text}");
}

#[test]
fn refuses_what_cannot_work() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let address = middlebox.address();
    let ends = |mut command: Command, code: i32, words: &str| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(stderr(&output).contains(words), "{output:?}");
    };
    ends(place.exec(&address, &["/nonexistent/program"]), 127, "/nonexistent/program");
    ends(place.exec(&address, &["/dev/null"]), 126, "/dev/null");
    let fails = |command: Command, words: &str| ends(command, 99, words);
    fails(place.exec("nonsense", &["true"]), "nonsense");
    let with = |name: &str, value: &str| {
        let mut command = place.exec(&address, &["true"]);
        command.env(name, value);
        command
    };
    fails(with("TEST_CA", "/nonexistent.pem"), "/nonexistent.pem");
    fails(with("TEST_CA", "key.pem"), "no certificate");
    fails(with("TEST_EXEMPT", "*"), "--exempt");
    fails(with("TEST_LIBRARY", "/nonexistent.so"), "/nonexistent.so");
}

#[test]
fn accepts_signals_that_are_ignored_and_leaves_them_so() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let exec = place
        .exec(&middlebox.server.local_addr().to_string(), &["grep", "SigIgn", "/proc/self/status"]);
    for (trap, bits) in [("trap '' HUP INT", 0b11), ("trap - HUP INT", 0)] {
        // As nohup and background jobs do; this process may be one, which a shell could not undo.
        let mut shell = place.command("env");
        shell.args(["--default-signal=HUP,INT", "sh", "-c"]);
        shell.args([&format!("{trap}; exec \"$@\""), "sh"]);
        shell.arg(exec.get_program()).args(exec.get_args());
        for (name, value) in exec.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let output = shell.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        // On one processor the harness writes the test's name in front.
        let mask = text.lines().find_map(|line| line.split_once("SigIgn:")).unwrap().1;
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        assert_eq!(mask & 0b11, bits, "{trap}: {text}");
    }
}

/// A program in the background, with its key log open, goes on when the agent has ended, however that was.
#[test]
fn accepts_programs_that_outlive_it() {
    let script = "exec 9>>$SSLKEYLOGFILE; (echo $SSLKEYLOGFILE >log; until [ -e go ]; do sleep 0.02; done; echo x >&9; echo wrote >written) >/dev/null 2>&1 &";
    for (killed, guarded) in [(false, true), (true, true), (true, false)] {
        let place = Place::new();
        let middlebox = place.middlebox();
        let waits = if killed { " wait" } else { "" };
        let mut command =
            place.exec(&middlebox.address(), &["sh", "-c", &format!("{script}{waits}")]);
        if !guarded {
            command.env_remove("TEST_GUARD");
        }
        let mut agent = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until(|| std::fs::read_to_string(place.path("log")).is_ok_and(|it| it.ends_with('\n')));
        let log = std::fs::read_to_string(place.path("log")).unwrap();
        let directory = Path::new(log.trim()).parent().unwrap().to_owned();
        if killed {
            // A guard that is not there yet would not be one.
            std::thread::sleep(Duration::from_millis(300));
            agent.kill().unwrap();
        }
        assert_eq!(agent.wait().unwrap().success(), !killed);
        std::fs::write(place.path("go"), "").unwrap();
        if guarded {
            until(|| place.path("written").exists());
            until(|| !directory.exists());
        } else {
            // The control.
            std::thread::sleep(Duration::from_millis(300));
            assert!(!place.path("written").exists(), "it ends with SIGPIPE");
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }
}

/// A key log of another agent's has no names, so none can be exempt in it.
#[test]
fn refuses_key_logs_of_other_agents_where_names_are_exempt() {
    let place = Place::new();
    let middlebox = place.middlebox();
    let fifo = place.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let script = "echo \"[$SSLKEYLOGFILE] [$NODE_OPTIONS] [$JAVA_TOOL_OPTIONS]\"";
    for exempt in ["", "bank.example"] {
        let mut command = place.exec(&middlebox.address(), &["sh", "-c", script]);
        command.env("TEST_EXEMPT", exempt).env("SSLKEYLOGFILE", &fifo);
        command.env("NODE_OPTIONS", format!("--no-warnings --tls-keylog={}", fifo.display()));
        command.env("JAVA_TOOL_OPTIONS", format!("-javaagent:a.jar={} -Xmx1g", fifo.display()));
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_there = exempt.is_empty();
        assert_eq!(text.contains("fifo"), is_there, "{text}");
        assert!(text.contains("--no-warnings") && text.contains("-Xmx1g"), "{text}");
        assert!(is_there || text.contains("[] [--no-warnings] [-Xmx1g]"), "{text}");
    }
}

/// Sessions of libraries that the preload library does not know.
#[test]
fn accepts_key_logs_and_answers_from_them() {
    let place = Place::new();
    let line = format!("SERVER_TRAFFIC_SECRET_0 {} {}", "0b".repeat(32), "07".repeat(32));
    let script = format!("echo {line} >>$SSLKEYLOGFILE; echo $NODE_OPTIONS; read end");
    // Names are in no line, and a key log of somebody else's is theirs.
    for (exempt, theirs) in [("", ""), ("bank.example", ""), ("", "theirs")] {
        let middlebox = place.middlebox();
        let mut command = place.exec(&middlebox.address(), &["sh", "-c", &script]);
        command.env("TEST_EXEMPT", exempt).env("SSLKEYLOGFILE", theirs);
        command.env("NODE_OPTIONS", "--no-warnings");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let agent = command.spawn().unwrap();
        let peer = || middlebox.inbox.1.lock().unwrap().clone();
        until(|| peer().is_some());
        let peer = peer().unwrap();
        let shares = exempt.is_empty() && theirs.is_empty();
        assert_eq!(peer.capabilities != 0, shares);
        let request = request([11; 32]);
        let handle = middlebox.server.handle();
        handle.send_to(peer.connection, &Message::KeyRequest(request)).unwrap();
        if shares {
            until(|| middlebox.keys().len() == 1);
            let expected = traffic_keys(0x1301, &[7; 32]).unwrap();
            assert_eq!(middlebox.keys()[0].2, expected.key());
        } else {
            let is_refused = |it: &(Peer, Message)| matches!(it.1, Message::Refused(_));
            until(|| middlebox.inbox.0.lock().unwrap().iter().any(is_refused));
        }
        // Its standard input ends.
        let output = agent.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("--no-warnings"), "{text}");
        assert_eq!(text.contains("--no-warnings --tls-keylog=/"), shares, "{text}");
        assert_eq!(place.path("theirs").exists(), !theirs.is_empty());
        assert_eq!(stderr(&output).contains("no TLS session was shared"), !shares, "{output:?}");
    }
}
