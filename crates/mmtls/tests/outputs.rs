//! Events to others than the file: sockets, the system's log, Redis; consumers that come late, go, or read nothing; and
//! files that are kept under other names.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use mmtls_testkit::{Mmtls, MmtlsOptions, MmtlsReport};
use serde_json::Value;

use crate::common::{Family, LIMIT, Stage, can_run, patient, shell, until, url};

fn logging(more: &str) -> MmtlsOptions {
    let options = patient();
    let config = format!("{}\n[log]\n{more}\n", options.config.unwrap_or_default());
    MmtlsOptions { config: Some(config), ..options }
}

fn place(stage: &Stage, name: &str) -> PathBuf {
    stage.bed.directory().join(name)
}

fn fetch(stage: &Stage, mmtls: &Mmtls) {
    let mut curl = stage.sharing_curl(mmtls, Family::V4, &[]);
    curl.arg(url("small"));
    assert_eq!(stage.run("curl", curl).text(), "small");
}

fn requests(stage: &Stage, mmtls: &Mmtls, count: &str) {
    let mut load = mmtls.sharing(&stage.bed, false, &[], "h2load");
    load.args(["--h1", "-t", "1", "-c", "8", "-n", count]);
    load.arg(format!("https://{}/small", Family::V4.server()));
    let done = stage.run("h2load", load);
    assert!(done.text().contains(&format!("{count} succeeded")), "{}", done.text());
}

/// Lines, whatever their order.
fn set(lines: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let all: Vec<String> = lines.into_iter().collect();
    let set: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(set.len(), all.len(), "none comes twice");
    for line in &set {
        assert!(serde_json::from_str::<Value>(line).is_ok_and(|it| it.is_object()), "{line}");
    }
    set
}

/// Lines of the log file.
fn written(report: &MmtlsReport, directory: &Path) -> BTreeSet<String> {
    assert!(report.success, "{}", report.stderr);
    set(fs::read_to_string(directory.join("eve.json")).unwrap().lines().map(str::to_owned))
}

/// All datagrams until nothing more comes after the end.
fn datagrams(path: &Path, end: mpsc::Receiver<()>) -> thread::JoinHandle<Vec<String>> {
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    thread::spawn(move || {
        let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
        loop {
            match socket.recv(&mut buffer) {
                Ok(len) => all.push(String::from_utf8(buffer[..len].to_vec()).unwrap()),
                Err(_) if end.try_recv() == Err(mpsc::TryRecvError::Disconnected) => return all,
                Err(_) => {}
            }
        }
    })
}

#[test]
fn every_output_gets_the_lines_of_the_file() {
    if !can_run(&["nginx", "curl", "redis-server", "redis-cli"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("small", b"small");
    let [stream, dgram, syslog, socket, password] =
        ["stream", "dgram", "syslog", "redis", "password"].map(|name| place(&stage, name));
    fs::write(&password, "correct horse\n").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();

    let mut redis = stage.bed.middlebox.command("redis-server");
    redis.args(["--bind", "127.0.0.1", "--port", "6379", "--save", "", "--appendonly", "no"]);
    redis.args(["--requirepass", "correct horse", "--unixsocket"]).arg(&socket);
    redis.arg("--dir").arg(stage.bed.directory());
    let mut redis = stage.bed.background("redis", redis).unwrap();
    redis.wait_for_listen(6379, LIMIT).unwrap();
    let ask = |question: &str| {
        shell(
            &stage.bed.middlebox,
            &format!("redis-cli --no-auth-warning -a 'correct horse' {question}"),
        )
    };
    let mut subscriber = stage.bed.middlebox.command("redis-cli");
    subscriber.args(["--no-auth-warning", "-a", "correct horse", "SUBSCRIBE", "channel"]);
    let subscriber = stage.bed.background("subscriber", subscriber).unwrap();
    until("subscribed", || ask("PUBSUB NUMSUB channel").contains('1'));

    let listener = UnixListener::bind(&stream).unwrap();
    let streamed = thread::spawn(move || {
        let (peer, _) = listener.accept().unwrap();
        BufReader::new(peer).lines().map(Result::unwrap).collect::<Vec<_>>()
    });
    let (over, end) = mpsc::channel();
    let dgrams = datagrams(&dgram, end);
    let (syslog_over, end) = mpsc::channel();
    let syslogged = datagrams(&syslog, end);

    let [stream, dgram, syslog, socket, password] =
        [&stream, &dgram, &syslog, &socket, &password].map(|path| path.display().to_string());
    let mmtls = stage.mmtls(&logging(&format!(
        r#"outputs = [
    {{ filetype = "unix_stream", filename = "{stream}" }},
    {{ filetype = "unix_dgram", filename = "{dgram}" }},
    {{ filetype = "syslog", filename = "{syslog}", types = ["tls", "http"], facility = "local3", level = "Notice" }},
    {{ filetype = "redis", redis = {{ password_file = "{password}", key = "list", mode = "rpush" }} }},
    {{ filetype = "redis", redis = {{ password_file = "{password}", key = "stack", mode = "list", batch_size = 3 }} }},
    {{ filetype = "redis", redis = {{ password_file = "{password}", key = "channel", mode = "channel" }} }},
    {{ filetype = "redis", redis = {{ server = "{socket}", password_file = "{password}", key = "stream", mode = "stream", stream_maxlen = 100000 }} }},
]"#
    )));
    for _ in 0..5 {
        fetch(&stage, &mmtls);
    }
    let directory = mmtls.directory().to_owned();
    let report = mmtls.stop().unwrap();
    let expected = written(&report, &directory);
    assert_eq!(report.count("lines to outputs lost"), 0);

    assert_eq!(set(streamed.join().unwrap()), expected, "unix_stream");
    drop((over, syslog_over));
    let dgrams = dgrams.join().unwrap();
    assert!(dgrams.iter().all(|it| it.ends_with('\n')));
    assert_eq!(set(dgrams.iter().map(|it| it.trim_end().to_owned())), expected, "unix_dgram");
    // local3 is 19, notice 5 (RFC 5424, section 6.2.1).
    let messages = syslogged.join().unwrap();
    let bodies = messages.iter().map(|message| {
        let (head, body) = message.split_once(": ").unwrap();
        assert!(head.starts_with("<157>mmtls[") && head.ends_with(']'), "{head}");
        body.to_owned()
    });
    let asked = |line: &&String| {
        let kind = serde_json::from_str::<Value>(line).unwrap()["event_type"].clone();
        kind == "tls" || kind == "http"
    };
    assert_eq!(set(bodies), set(expected.iter().filter(asked).cloned()), "syslog");
    let lines = |text: String| set(text.lines().map(str::to_owned));
    assert_eq!(lines(ask("LRANGE list 0 -1")), expected, "rpush");
    assert_eq!(lines(ask("LRANGE stack 0 -1")), expected, "lpush");
    let first = |name: &str, at: &str| ask(&format!("LINDEX {name} {at}")).trim().to_owned();
    assert_eq!(first("list", "0"), first("stack", "-1"), "one from the head, one from the tail");
    let entries = ask("XRANGE stream - +");
    let of_stream = entries.lines().filter(|line| line.starts_with('{')).map(str::to_owned);
    assert_eq!(set(of_stream), expected, "xadd");
    let published = || {
        let text = subscriber.stdout_text();
        text.lines().filter(|line| line.starts_with('{')).map(str::to_owned).collect::<Vec<_>>()
    };
    until("published", || published().len() >= expected.len());
    assert_eq!(set(published()), expected, "publish");
}

#[test]
fn a_consumer_that_comes_late_and_comes_back_gets_what_waited() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("small", b"small");
    let socket = place(&stage, "late");
    let output = format!(
        "outputs = [{{ filetype = \"unix_stream\", filename = \"{}\" }}]",
        socket.display()
    );
    let mmtls = stage.mmtls(&logging(&output));
    fetch(&stage, &mmtls);
    let told = |what: &str| mmtls.process.stderr_text().matches(what).count();
    until("it is told", || told("late: No such file") == 1);
    let serve = |listener: UnixListener, most: usize| {
        let (peer, _) = listener.accept().unwrap();
        BufReader::new(peer).lines().map_while(Result::ok).take(most).collect::<Vec<_>>()
    };
    let listener = UnixListener::bind(&socket).unwrap();
    // It goes after two lines.
    let first = thread::spawn(move || serve(listener, 2));
    let first = first.join().unwrap();
    fs::remove_file(&socket).unwrap();
    until("it is told again", || {
        fetch(&stage, &mmtls);
        // Which of the two depends on what it had not read.
        told("late: Broken pipe") + told("late: Connection reset by peer") == 1
    });
    let listener = UnixListener::bind(&socket).unwrap();
    let second = thread::spawn(move || serve(listener, usize::MAX));
    until("it takes lines again", || told("takes lines again") == 2);
    let directory = mmtls.directory().to_owned();
    let report = mmtls.stop().unwrap();
    let expected = written(&report, &directory);
    let second = second.join().unwrap();
    assert_eq!(first.len(), 2);
    let flow = |line: &String| serde_json::from_str::<Value>(line).unwrap()["flow_id"].as_u64();
    let begun = first.iter().find_map(flow);
    let second: BTreeSet<String> = second.into_iter().collect();
    // What the kernel had taken for the first one went with it; of sessions that came later nothing did.
    let waited = expected.iter().filter(|it| flow(it).is_some_and(|it| Some(it) != begun));
    let waited: BTreeSet<String> = waited.cloned().collect();
    assert!(!waited.is_empty() && waited.is_subset(&second), "{waited:#?} {second:#?}");
    let got: BTreeSet<String> = first.into_iter().chain(second).collect();
    assert!(got.is_subset(&expected), "{got:#?}");
    assert_eq!(report.count("lines to outputs lost"), 0);
}

#[test]
fn a_consumer_that_reads_nothing_stops_neither_traffic_nor_the_end() {
    if !can_run(&["nginx", "h2load"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("small", b"small");
    let socket = place(&stage, "stuck");
    let listener = UnixListener::bind(&socket).unwrap();
    let mmtls = stage.mmtls(&logging(&format!(
        "outputs = [{{ filetype = \"unix_stream\", filename = \"{}\", max_buffered_bytes = 65536 }}]",
        socket.display()
    )));
    requests(&stage, &mmtls, "5000");
    let begun = Instant::now();
    let report = mmtls.stop().unwrap();
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    assert_eq!(report.count("log lines lost"), 0, "the file has all");
    assert!(report.count("lines to outputs lost") > 1000, "{:#?}", report.summary);
    assert!(!report.success && report.stderr.contains("does not keep up"), "{}", report.stderr);
    // Once for each time that there was room again meanwhile.
    assert!(report.stderr.matches("does not keep up").count() < 10, "{}", report.stderr);
    drop(listener);
}

#[test]
fn a_log_that_is_large_goes_on_in_another_file() {
    if !can_run(&["nginx", "h2load"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("small", b"small");
    let options = MmtlsOptions { check: None, ..logging("max_file_bytes = 500000\nmax_files = 3") };
    let mmtls = stage.mmtls(&options);
    requests(&stage, &mmtls, "5000");
    let directory = mmtls.directory().to_owned();
    let report = mmtls.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
    assert_eq!(report.count("log lines lost"), 0);
    for name in ["eve.json", "eve.json.1", "eve.json.2"] {
        let text = fs::read_to_string(directory.join(name)).unwrap();
        assert!(text.len() < 600_000 && text.ends_with('\n'), "{name}: {}", text.len());
        set(text.lines().map(str::to_owned));
    }
    assert!(!directory.join("eve.json.3").exists());
}
