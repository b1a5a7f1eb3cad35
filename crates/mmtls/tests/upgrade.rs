//! A new process in the place of a running one: how long nothing passes, and that sessions are followed on.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use mmtls_testkit::{Mmtls, MmtlsOptions, NginxOptions, require_python, wait_until};

use crate::cli::{Run, fails};
use crate::common::probe::Probe;
use crate::common::{LIMIT, Stage, can_run, options, stat};
use crate::keys::{PATTERN, resetting, with_pattern};
use crate::restart::{client_of_library, wait_for};

/// Of the download.
const LENGTH: usize = 120_000_000;

/// On a machine that is busy something else may take longer than what is measured.
const TRIES: usize = 3;

/// What this comes to, and the longest silence in milliseconds while it happens.
fn during<T>(stage: &Stage, happens: impl FnOnce() -> T) -> (f64, T) {
    let probe = Probe::start(stage);
    probe.passes(200);
    let it = happens();
    probe.passes(200);
    (probe.stop().silence_ms, it)
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
    let (mut taken, second) = during(&stage, || stage.mmtls(&taking));
    assert!(first.process.wait(LIMIT).unwrap().success(), "{}", first.process.stderr_text());
    // What is told of that session: a pattern in its last bytes stops it.
    let _ = client.wait(Duration::from_secs(60)).unwrap();
    let got = std::fs::read(&out).unwrap();
    assert!(got.len() < LENGTH && crate::common::find(&got, PATTERN).is_none());
    let told = second.process.stderr_text();
    assert!(told.contains("the run there has ended"), "{told}");

    // The control: one ends, and another starts.
    let (mut restarted, (report, mut third)) =
        during(&stage, || (second.stop().unwrap(), stage.mmtls(&options)));
    assert_eq!(stat(&report, "engine", "mid_stream_followed"), 1, "{:#?}", report.summary);
    assert_eq!(report.count("alerts"), 1, "{:#?}", report.summary);
    for number in 1.. {
        eprintln!(
            "longest silence: {taken:.1} ms with --take-over, {restarted:.1} ms by a restart"
        );
        if taken < restarted {
            break;
        }
        assert!(number < TRIES, "{taken} and {restarted}");
        let (again, next) = during(&stage, || stage.mmtls(&taking));
        assert!(third.process.wait(LIMIT).unwrap().success(), "{}", third.process.stderr_text());
        taken = again;
        (restarted, third) = during(&stage, || {
            next.stop().unwrap();
            stage.mmtls(&options)
        });
    }
    third.stop().unwrap();

    // Nobody is there.
    let fourth: Mmtls = stage.mmtls(&taking);
    assert!(fourth.process.stderr_text().contains("nobody runs there"));
    assert!(fourth.stop().unwrap().success);
}

/// Somebody else listens where the new run is to.
#[test]
fn a_run_is_not_ended_by_one_that_cannot_start() {
    if !can_run(&["nginx", "curl", "python3", "timeout"]) {
        return;
    }
    let stage = Stage::new();
    let socket = stage.bed.directory().join("control.sock");
    let at = socket.display().to_string();
    let mut python = stage.bed.middlebox.command("python3");
    let listen = "import socket, time\n\
                  it = socket.create_server(('127.0.0.1', 9601))\n\
                  print('listening', flush=True)\n\
                  time.sleep(600)";
    python.args(["-c", listen]);
    let mut other = stage.bed.background("other", python).unwrap();
    let has_begun = wait_until(LIMIT, || other.stdout_text().contains("listening"));
    assert!(has_begun && other.is_running(), "{}", other.stderr_text());
    let new = |metrics: &str| {
        let run = Run::new(&stage.bed).with("--take-over", &at).with("--control", &at);
        let output = run.with("--metrics", metrics).command().output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let arguments = ["--control", &at].map(str::to_owned).to_vec();
    let mut mmtls = stage.mmtls(&MmtlsOptions { arguments, ..options() });
    let (code, told) = new("127.0.0.1:9601");
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("metrics on 127.0.0.1:9601: Address already in use"), "{told}");
    assert!(told.contains("not by the run there"), "{told}");
    assert!(mmtls.process.is_running() && !told.contains("has ended"), "{told}");
    for arguments in [&[][..], &["-T"]] {
        let run = Run::new(&stage.bed).with("--keys-listen", "[::]:4434");
        let run = arguments.iter().fold(run, |run, it| run.flag(it));
        fails(run.command(), &["left is bridged already", "--take-over"]);
    }
    // Nor does it end somebody else's, whose interfaces these are not.
    let none = stage.bed.directory().join("none.sock").display().to_string();
    let other = Run::new(&stage.bed).with("--take-over", &none).with("--keys-listen", "[::]:4434");
    fails(other.command(), &["left is bridged already", "none.sock"]);
    assert!(mmtls.stop().unwrap().success);

    // One that says it were its address, and ends.
    let listener = UnixListener::bind(&socket).unwrap();
    let fake = std::thread::spawn(move || {
        for answer in ["{\"ok\":true,\"listens\":[\"0.0.0.0:9601\"]}\n", "{\"ok\":true}\n"] {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let (code, told) = new("127.0.0.1:9601");
    fake.join().unwrap();
    assert_eq!(code, Some(1), "{told}");
    let vacant = "the run there has ended, and this one does not start: nothing is forwarded";
    assert!(told.contains(vacant) && told.contains("metrics on 127.0.0.1:9601"), "{told}");
}
