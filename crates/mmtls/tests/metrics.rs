//! Metrics of a live run: true, readable by Prometheus' own parser, and of no consequence to traffic whatever is asked.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;

use mmtls_testkit::{MmtlsOptions, wait_until};

use crate::common::{Family, LIMIT, Stage, can_run, options, patient, stat, url};

const ADDRESS: &str = "127.0.0.1:9600";

pub fn measured(options: MmtlsOptions) -> MmtlsOptions {
    MmtlsOptions { arguments: ["--metrics", ADDRESS].map(str::to_owned).to_vec(), ..options }
}

pub fn scrape(stage: &Stage) -> String {
    let mut curl = stage.bed.middlebox.command("curl");
    curl.args(["-sS", "--fail", "--max-time", "10"]).arg(format!("http://{ADDRESS}/metrics"));
    let answer = stage.run("scrape", curl);
    assert!(answer.status.success(), "{}", answer.stderr);
    answer.text()
}

/// Samples by name and labels.
pub fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name, value.parse().unwrap())
        })
        .collect()
}

/// Scrapes until a sample has a value, or says which it has.
#[track_caller]
fn wait_for(stage: &Stage, name: &str, value: f64) -> String {
    let (mut text, mut now) = (String::new(), None);
    let came = wait_until(LIMIT, || {
        text = scrape(stage);
        now = samples(&text).get(name).copied();
        now == Some(value)
    });
    assert!(came, "{name} is {now:?}");
    text
}

#[test]
fn counts_what_has_happened() {
    if !can_run(&["nginx", "curl", "promtool"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("small", &[b'x'; 1000]);
    let mut options = measured(patient());
    options.arguments.extend(["--workers", "2"].map(str::to_owned));
    options.config = None;
    let mmtls = stage.mmtls(&options);
    for _ in 0..3 {
        let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
        curl.arg(url("small"));
        assert_eq!(stage.run("curl", curl).stdout.len(), 1000);
    }
    let mut exempt = stage.sharing_curl(&mmtls, Family::V4, &["server.test"]);
    exempt.arg(url("small"));
    assert!(stage.run("exempt", exempt).status.success());
    let mut keyless = stage.plain_curl(Family::V4);
    keyless.arg(url("small"));
    assert!(!stage.run("keyless", keyless).status.success(), "no keys, no session");

    let of = |outcome: &str| format!("mmtls_monitor_sessions_total{{outcome=\"{outcome}\"}}");
    wait_for(&stage, &of("decrypted"), 3.0);
    wait_for(&stage, &of("exempt"), 1.0);
    let text = wait_for(&stage, &of("missing_key"), 1.0);
    let samples = samples(&text);
    let workers = |name: &str| -> f64 {
        (0..2).map(|at| samples[&*format!("{name}{{worker=\"{at}\"}}")]).sum()
    };
    assert_eq!(samples["mmtls_monitor_tls_sessions_total"], 5.0);
    assert_eq!(samples["mmtls_monitor_resets_total"], 1.0);
    assert_eq!(workers("mmtls_engine_sessions_total"), 5.0);
    assert!(samples["mmtls_monitor_plaintext_bytes_total"] >= 3000.0);
    assert_eq!(samples["mmtls_key_connections_total"], 4.0);
    // Its records waited for the whole time that is given to clients without an agent.
    let limit = "mmtls_engine_stalls_ended_total";
    let by_limit: f64 =
        (0..2).map(|at| samples[&*format!("{limit}{{worker=\"{at}\",by=\"limit\"}}")]).sum();
    assert_eq!(by_limit, 1.0);
    let beyond = |name: &str, le: &str| -> f64 {
        let below = |at: u32| samples[&*format!("{name}_bucket{{worker=\"{at}\",le=\"{le}\"}}")];
        workers(&format!("{name}_count")) - below(0) - below(1)
    };
    assert!(beyond("mmtls_stall_duration_seconds", "0.025") >= 1.0);
    assert!(beyond("mmtls_held_frame_duration_seconds", "0.025") >= 1.0);
    let held = |name: &str| workers(&format!("mmtls_{name}"));
    assert_eq!(held("held_frame_duration_seconds_count"), held("engine_held_total"));
    assert_eq!(held("worker_held_frames_now"), 0.0);

    let mut check = stage.bed.middlebox.command("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped());
    check.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = check.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{told}");

    let report = mmtls.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
    assert_eq!(report.count("decrypted"), 3);
}

/// The monitor's own interface stays up, and takes what is sent.
#[test]
fn tells_of_a_cable_that_is_pulled() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    let mut options = measured(patient());
    options.arguments.extend(["--workers", "2"].map(str::to_owned));
    let mut mmtls = stage.mmtls(&options);
    let up = |port: &str| format!("mmtls_port_up{{port=\"{port}\"}}");
    wait_for(&stage, &up("left"), 1.0);
    stage.bed.client.ip("link set eth0 down\n").unwrap();
    mmtls.process.wait_for_line("mmtls: left has no carrier; going on", LIMIT).unwrap();
    let text = wait_for(&stage, &up("left"), 0.0);
    assert_eq!(samples(&text)[&*up("right")], 1.0);
    assert_eq!(samples(&text)["mmtls_interface_downs_total"], 1.0);
    stage.bed.client.ip("link set eth0 up\n").unwrap();
    mmtls.process.wait_for_line("mmtls: left is up again", LIMIT).unwrap();
    wait_for(&stage, &up("left"), 1.0);
    let report = mmtls.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
    assert_eq!(stat(&report, "engine", "interface_downs"), 1);
    assert_eq!(stat(&report, "engine", "left_up"), 1);
}

/// A web page elsewhere whose name leads to this host reads nothing.
#[test]
fn answers_by_names_of_this_host_alone_unless_others_may_ask() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    let status_of = |host: &str| {
        let mut curl = stage.bed.middlebox.command("curl");
        curl.args(["-sS", "--max-time", "10", "-o", "/dev/null", "-w", "%{http_code}", "-H"]);
        curl.arg(format!("Host: {host}")).arg(format!("http://{ADDRESS}/metrics"));
        stage.run("curl", curl).text()
    };
    for allows_remote in [false, true] {
        let options = MmtlsOptions {
            config: Some(format!("[metrics]\nallow_remote = {allows_remote}\n")),
            ..options()
        };
        let mmtls = stage.mmtls(&measured(options));
        for host in [ADDRESS, "localhost:9", "[::1]:9600"] {
            assert_eq!(status_of(host), "200", "{host}");
        }
        for host in ["rebound.test:9600", "192.0.2.1:9600"] {
            let expected = if allows_remote { "200" } else { "421" };
            assert_eq!(status_of(host), expected, "{host}");
        }
        assert!(mmtls.stop().unwrap().success);
    }
}

/// Whatever comes to the port, packets go on and the next one who asks properly is answered.
#[test]
fn goes_on_whatever_is_asked() {
    if !can_run(&["nginx", "curl", "python3"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("small", b"small");
    let mmtls = stage.mmtls(&measured(options()));
    let abuse = r"
import socket, time
def connect():
    it = socket.create_connection(('127.0.0.1', 9600), 5)
    it.settimeout(10)
    return it
def answer(request):
    it = connect()
    try:
        it.sendall(request)
    except OSError:
        pass
    try:
        return it.recv(100)[9:12].decode()
    except OSError as error:
        return str(error)
print(answer(b'GET /metrics HTTP/1.1\r\nX: ' + b'x' * 1000000 + b'\r\n\r\n'))
print(answer(b'POST /metrics HTTP/1.1\r\n\r\n'))
print(answer(b'GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n'))
print(answer(b'GET /metrics HTTP/1.1\r\n\r\n'))
print(answer(bytes(range(256)) * 64))
many = []
for _ in range(200):
    it = connect()
    many.append(it)
    it.sendall(b'G')
print(answer(b'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n'))
begun = time.time()
while answer(b'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n') != '200':
    assert time.time() - begun < 20
    time.sleep(0.1)
print('again')
";
    let mut python = stage.bed.middlebox.command("python3");
    python.args(["-c", abuse]);
    let told = std::thread::scope(|scope| {
        let abuse = scope.spawn(|| stage.run("abuse", python));
        for _ in 0..10 {
            let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
            curl.arg(url("small"));
            assert_eq!(stage.run("curl", curl).text(), "small");
        }
        abuse.join().unwrap()
    });
    let text = told.text();
    let answers: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(answers, ["431", "405", "404", "421", "400", "503", "again"], "{}", told.stderr);
    let report = mmtls.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
    assert_eq!(report.count("decrypted"), 10);
}
