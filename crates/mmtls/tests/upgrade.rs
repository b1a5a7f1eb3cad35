//! A new process in the place of a running one: how long nothing passes, and that sessions are followed on.

use std::path::PathBuf;
use std::time::Duration;

use mmtls_testkit::{Background, Mmtls, MmtlsOptions, NginxOptions, address, require_python};

use crate::common::{LIMIT, Stage, can_run, stat};
use crate::keys::{PATTERN, resetting, with_pattern};
use crate::restart::{client_of_library, wait_for};

/// Of the download.
const LENGTH: usize = 120_000_000;

/// A datagram in each millisecond, with its number, until a file is there.
const SEND: &str = "import os, socket, sys, time\n\
    out, end, number = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), sys.argv[2], 0\n\
    out.connect((sys.argv[1], 9999))\n\
    begun = time.monotonic()\n\
    while not os.path.exists(end):\n\
    \x20   try: out.send(b'%d' % number)\n\
    \x20   except OSError: pass\n\
    \x20   number += 1\n\
    \x20   time.sleep(max(0, begun + number / 1000 - time.monotonic()))";

/// The longest silence in microseconds, and how many have come, until one says so.
const RECEIVE: &str = "import socket, sys, time\n\
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
    s.bind((sys.argv[1], 9999))\n\
    print('ready', flush=True)\n\
    s.recv(99)\n\
    last, longest, count = time.monotonic(), 0, 1\n\
    s.settimeout(30)\n\
    while True:\n\
    \x20   data = s.recv(99)\n\
    \x20   now = time.monotonic()\n\
    \x20   longest, last = max(longest, now - last), now\n\
    \x20   count += 1\n\
    \x20   if data == b'end': break\n\
    print('silence', int(longest * 1e6), count, flush=True)";

/// What crosses the bridge a thousand times in a second.
struct Stream {
    sender: Background,
    receiver: Background,
    end: PathBuf,
}

impl Stream {
    fn start(stage: &Stage, name: &str) -> Self {
        let end = stage.bed.directory().join(format!("{name}-end"));
        let mut command = stage.bed.server.command("python3");
        command.args(["-c", RECEIVE, address::SERVER_V4]);
        let mut receiver = stage.bed.background(&format!("receive-{name}"), command).unwrap();
        receiver.wait_for_line("ready", LIMIT).unwrap();
        let mut command = stage.bed.client.command("python3");
        command.args(["-c", SEND, address::SERVER_V4]).arg(&end);
        let sender = stage.bed.background(&format!("send-{name}"), command).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        Self { sender, receiver, end }
    }

    /// The longest silence in milliseconds.
    fn longest_silence(mut self, stage: &Stage) -> f64 {
        std::thread::sleep(Duration::from_secs(1));
        std::fs::write(&self.end, "").unwrap();
        assert!(self.sender.wait(LIMIT).unwrap().success());
        let script = format!(
            "python3 -c \"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'end', ('{}', 9999))\"",
            address::SERVER_V4
        );
        stage.bed.client.shell(&script).unwrap();
        self.receiver.wait_for_line("silence", LIMIT).unwrap();
        let text = self.receiver.stdout_text();
        let line = text.lines().find_map(|line| line.strip_prefix("silence ")).unwrap();
        line.split(' ').next().unwrap().parse::<f64>().unwrap() / 1000.0
    }
}

/// The figures are printed, and stand in docs/operations.md.
#[test]
fn sessions_are_followed_on_by_a_run_that_takes_over_and_the_gap_is_short() {
    if !can_run(&["nginx", "python3"]) || !require_python("ssl") {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    // More than a quarter of a minute long: rules are read meanwhile, on a busy machine.
    stage.serve("file", &with_pattern(LENGTH, LENGTH - 2_000_000));
    let socket = stage.bed.directory().join("control.sock");
    // Some that take a while to read.
    let rule = |sid| {
        format!(
            "alert http any any -> any any (http.uri; content:\"/no{sid}\"; pcre:\"/no{sid}[a-z]+x/\"; sid:{sid};)\n"
        )
    };
    let rules = stage.bed.directory().join("many.rules");
    std::fs::write(&rules, (1..=20_000).map(rule).collect::<String>()).unwrap();
    let [at, with] = [&socket, &rules].map(|it| it.display().to_string());
    let control = ["--control".to_owned(), at.clone(), "-s".to_owned(), with];
    let options = MmtlsOptions { arguments: control.to_vec(), ..resetting(&stage) };
    let taking = [&control[..], &["--take-over".to_owned(), at]].concat();
    let taking = MmtlsOptions { arguments: taking, ..options.clone() };

    let mut first = stage.mmtls(&options);
    let directory = stage.bed.directory().join("agent-upgrade");
    let _agent = first.agent(&stage.bed, false, &directory, None).unwrap();
    let out = stage.bed.directory().join("out-upgrade");
    let mut client = client_of_library(&stage, &first, &directory, &out);
    wait_for(&out, 1_000_000, &mut client);
    let stream = Stream::start(&stage, "take-over");
    let second = stage.mmtls(&taking);
    let taken = stream.longest_silence(&stage);
    assert!(first.process.wait(LIMIT).unwrap().success(), "{}", first.process.stderr_text());
    // What is told of that session: a pattern in its last bytes stops it.
    let _ = client.wait(Duration::from_secs(60)).unwrap();
    let got = std::fs::read(&out).unwrap();
    assert!(got.len() < LENGTH && crate::common::find(&got, PATTERN).is_none());
    let told = second.process.stderr_text();
    assert!(told.contains("the run there has ended"), "{told}");

    // The control: one ends, and another starts.
    let stream = Stream::start(&stage, "restart");
    let report = second.stop().unwrap();
    assert_eq!(stat(&report, "engine", "mid_stream_followed"), 1, "{:#?}", report.summary);
    assert_eq!(report.count("alerts"), 1, "{:#?}", report.summary);
    let third = stage.mmtls(&options);
    let restarted = stream.longest_silence(&stage);
    eprintln!("longest silence: {taken:.1} ms with --take-over, {restarted:.1} ms by a restart");
    assert!(taken < 10_000.0, "{taken}");
    drop(third.stop().unwrap());

    // Nobody is there.
    let fourth: Mmtls = stage.mmtls(&taking);
    assert!(fourth.process.stderr_text().contains("nobody runs there"));
    assert!(fourth.stop().unwrap().success);
}
