//! What would keep a monitor from starting, or from doing what it is for, is told before it starts: all of it, with the
//! place and the remedy, by `-T` and by the start.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

use mmtls_testkit::{Middle, Testbed, skip_unless};
use rcgen::{CertificateParams, KeyPair};
use time::{Duration as Days, OffsetDateTime};

use crate::cli::{Place, Run, fails, mmtls};
use crate::common::{LIMIT, can_run, mmtls_program, shell};

/// Lines on standard error, after a look at the exit code.
#[track_caller]
fn told(output: &Output, code: i32) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text.lines().map(str::to_owned).collect()
}

#[track_caller]
fn says(lines: &[String], words: &[&str]) {
    let line = lines.iter().find(|line| words.iter().all(|word| line.contains(word)));
    assert!(line.is_some(), "no line with {words:?} in {lines:#?}");
    assert!(line.is_some_and(|line| line.starts_with("mmtls: ")), "{lines:#?}");
}

/// A certificate and its key, valid from so many days from now for so long.
fn certificate(place: &Place, name: &str, from: i64, until: i64) -> [String; 2] {
    let mut params = CertificateParams::new(vec!["middlebox.test".to_owned()]).unwrap();
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now + Days::days(from), now + Days::days(until));
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    [
        place.write(&format!("{name}.pem"), pem),
        place.write(&format!("{name}.key"), key.serialize_pem()),
    ]
}

#[test]
fn tells_all_that_is_wrong_at_once_and_leaves_nothing() {
    if !can_run(&["timeout"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("check");
    let [expired, key] = certificate(&place, "expired", -20, -2);
    let [patterns, rules] = ["patterns", "rules"].map(|name| place.path(name));
    let file = place.write("file", "");
    let config = place.write(
        "m.toml",
        format!(
            "[inline]\ninterfaces = [\"left\", \"nosuch0\"]\n\n[keys]\nlisten = \"192.0.2.1:4433\"\n\
             certificate_file = {expired:?}\nkey_file = {key:?}\nlog_file = \"/tmp\"\n\n[workers]\ncpus = [1023]\n\n\
             [log]\ndirectory = \"{file}/logs\"\nstreams_directory = \"{file}\"\n[inspect]\n\
             patterns_file = {patterns:?}\nrules_files = [{rules:?}]\n"
        ),
    );
    let run = || {
        let run = Run::new(&bed).without("--inline").without("--keys-listen");
        run.without("--key-cert").without("--key-key").with("-c", &config)
    };
    for run in [run().flag("-T"), run()] {
        let output = run.command().output().unwrap();
        let lines = told(&output, 1);
        for (line, words) in [
            (2, vec!["inline.interfaces: ", "no interface \"nosuch0\"", "`ip link`"]),
            (5, vec!["keys.listen: ", "192.0.2.1:4433", "assign requested address"]),
            (6, vec!["keys.certificate_file: ", &expired, "expired at 20", "`mmtls pki`"]),
            (8, vec!["keys.log_file: ", "/tmp", "irectory"]),
            (11, vec!["workers.cpus: ", "processor 1023"]),
            (14, vec!["log.directory: ", &file, "ot a directory"]),
            (15, vec!["log.streams_directory: ", &file, "ot a directory"]),
        ] {
            let place = format!("{config}: line {line}: ");
            says(&lines, &[&[place.as_str()], &words[..]].concat());
        }
        says(&lines, &[patterns.to_str().unwrap(), "No such file"]);
        says(&lines, &["rules: ", rules.to_str().unwrap(), "No such file"]);
        assert_eq!(lines.len(), 9, "{lines:#?}");
        assert_eq!(output.stdout, b"");
    }
    let left: Vec<_> = fs::read_dir(place.path("")).unwrap().collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn refuses_interfaces_that_cannot_be_bridged() {
    if !can_run(&["timeout", "setpriv"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("interfaces");
    let run = || Run::new(&bed).flag("-T");
    let one = |run: Run, words: &[&str]| {
        let lines = told(&run.command().output().unwrap(), 1);
        says(&lines, words);
        assert_eq!(lines.len(), 1, "{lines:#?}");
    };
    one(run().with("--inline", "left:left"), &["--inline: both interfaces are left"]);
    one(run().with("--inline", "left:lo"), &["--inline: lo is not an Ethernet interface"]);
    let lines = told(&run().with("--inline", "nosuch0:nosuch1").command().output().unwrap(), 1);
    says(&lines, &["nosuch0"]);
    says(&lines, &["nosuch1"]);
    bed.middlebox.ip("link set left down\n").unwrap();
    one(run(), &["--inline: left is down (ip link set left up)"]);
    bed.middlebox
        .ip("link set left up\nlink add br0 type bridge\nlink set left master br0\n")
        .unwrap();
    let words = ["--inline: left is a port of br0", "ip link set left nomaster"];
    one(run(), &words);
    fails(Run::new(&bed).command(), &words);
    // Of what a bridge forwards a passive monitor is shown a copy.
    let passive = || run().without("--inline").without("--missing-keys");
    let output = passive().with("--passive", "left:right").command().output().unwrap();
    assert_eq!(told(&output, 0), [""; 0]);
    let resets = place.write("r.toml", "[passive]\nreset_interface = \"nosuch2\"\n");
    let where_resets = format!("{resets}: line 2: passive.reset_interface: ");
    one(passive().with("--passive", "left").with("-c", &resets), &[&where_resets, "nosuch2"]);
    bed.middlebox.ip("link set left nomaster\n").unwrap();

    // Addresses are only suspicious.
    bed.middlebox.ip("address add 192.0.2.9/24 dev right\n").unwrap();
    let output = run().command().output().unwrap();
    says(&told(&output, 0), &["warning: right has the address 192.0.2.9"]);

    // Without CAP_NET_RAW, the rest is found all the same.
    let inner = run().with("--inline", "left:nosuch0").command();
    let mut arguments = inner.get_args().skip_while(|it| *it != mmtls_program().as_os_str());
    let mut command = bed.middlebox.command("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all"]);
    command.arg(arguments.next().unwrap()).args(arguments);
    let lines = told(&command.output().unwrap(), 1);
    says(&lines, &["CAP_NET_RAW", "AmbientCapabilities"]);
    says(&lines, &["--inline", "nosuch0"]);
}

#[test]
fn refuses_addresses_and_certificates_that_endpoints_cannot_use() {
    if !can_run(&["timeout", "openssl"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("certificates");
    let check = |run: Run, code| told(&run.flag("-T").command().output().unwrap(), code);
    let run = |name: &str, from, until| {
        let [certificate, key] = certificate(&place, name, from, until);
        Run::new(&bed).with("--key-cert", certificate).with("--key-key", key)
    };
    assert_eq!(check(run("good", -1, 100), 0), [""; 0]);
    says(&check(run("expired", -2, -1), 1), &["--key-cert: ", "expired.pem: expired at 20"]);
    says(&check(run("early", 1, 9), 1), &["--key-cert: ", "not valid before 20", "clock"]);
    says(&check(run("late", -50, 3), 0), &["warning: --key-cert: ", "in 2 days"]);
    let mixed = run("good", -1, 100).with("--key-key", place.path("late.key"));
    let words = ["late.key: not the key of the first certificate in", "good.pem"];
    says(&check(mixed, 1), &words);
    let authority = run("good", -1, 100).with("--keys-client-ca", place.path("expired.pem"));
    says(&check(authority, 1), &["--keys-client-ca: ", "expired at 20"]);

    // What crosses the bridge needs no certificate: a start says it, and goes on.
    let mut started = bed.background("expired", run("expired", -2, -1).command()).unwrap();
    started.wait_for_line("--key-cert: ", LIMIT).unwrap();
    started.wait_for_line("bridging left and right", LIMIT).unwrap();

    // Its port is in use now.
    let lines = check(Run::new(&bed), 1);
    says(&lines, &["--keys-listen: key server on [::]:4433: ", "in use"]);
    started.stop();
    assert_eq!(check(Run::new(&bed), 0), [""; 0], "nobody listens any more");

    for (address, words) in [
        ("192.0.2.1", "has no port: ADDRESS:PORT is expected, as in 192.0.2.1:4433"),
        ("middlebox:4433", "no names"),
    ] {
        let output = Run::new(&bed).with("--keys-listen", address).command().output().unwrap();
        says(&told(&output, 2), &["--keys-listen", words]);
        let config = place.write("l.toml", format!("[keys]\nlisten = {address:?}\n"));
        let output = Run::new(&bed).with("-c", &config).command().output().unwrap();
        says(&told(&output, 1), &[&format!("{config}: line 2: "), words]);
    }
}

#[test]
fn refuses_directories_that_it_could_not_use_and_makes_none() {
    if !can_run(&["timeout"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("directories");
    let check = |run: Run, code| told(&run.flag("-T").command().output().unwrap(), code);
    let new = place.path("new/logs");
    assert_eq!(check(Run::new(&bed).with("-l", &new).with("--streams", &new), 0), [""; 0]);
    assert!(!place.path("new").exists());
    let closed = place.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    let lines = check(Run::new(&bed).with("--streams", &closed), 1);
    says(&lines, &["--streams: streams directory ", "ermission denied", "let this user own it"]);
    // Root opens the log first, and cannot again when it is rotated.
    let lines = check(Run::new(&bed).with("-l", &closed), 0);
    says(&lines, &["warning: --log-dir: ", "SIGHUP"]);
    let taken = place.path("taken");
    fs::create_dir_all(taken.join("eve.json")).unwrap();
    says(&check(Run::new(&bed).with("-l", &taken), 1), &["--log-dir", "eve.json: is a directory"]);
    says(&check(Run::new(&bed).with("-l", "-"), 1), &["-l", "`mmtls read`"]);
}

#[test]
fn refuses_places_where_it_could_not_answer_or_mirror() {
    if !can_run(&["timeout"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    bed.middlebox.ip("link set lo up\n").unwrap();
    let place = Place::new("outputs");
    let socket = place.path("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let file = place.path("none/mirror.pcapng");
    let config = place.write(
        "m.toml",
        format!(
            "[metrics]\nlisten = \"192.0.2.1:9600\"\nallow_remote = true\n[control]\nsocket = {socket:?}\n[mirror]\n\
             file = {file:?}\ninterface = \"nosuch0\"\n"
        ),
    );
    for run in [Run::new(&bed).flag("-T"), Run::new(&bed)] {
        let lines = told(&run.with("-c", &config).command().output().unwrap(), 1);
        for (line, words) in [
            (2, ["metrics.listen: metrics on 192.0.2.1:9600: ", "assign requested address"]),
            (5, ["control.socket: ", "another mmtls listens there; end it"]),
            (7, ["mirror.file: mirror file ", "o such file"]),
            (
                8,
                [
                    "mirror.interface: ",
                    "no interface \"nosuch0\" in this network namespace (`ip link`",
                ],
            ),
        ] {
            let place = format!("{config}: line {line}: ");
            says(&lines, &[&[place.as_str()], &words[..]].concat());
        }
        assert_eq!(lines.len(), 4, "{lines:#?}");
    }
    drop(listener);

    let check = |run: Run, code| told(&run.flag("-T").command().output().unwrap(), code);
    let one = |name, value: &str, words: &[&str]| {
        let lines = check(Run::new(&bed).with(name, value), 1);
        says(&lines, words);
        assert_eq!(lines.len(), 1, "{lines:#?}");
    };
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let remote =
        ["metrics.listen (--metrics) [::]:9600 is not on loopback", "metrics.allow_remote"];
    one("--metrics", "[::]:9600", &remote);
    let text = place.write("remote.toml", "[metrics]\nlisten = \"[::]:9600\"\n");
    one("-c", &text, &[&format!("{text}: line 2: metrics.listen (--metrics) [::]:9600 is not on")]);
    let keys = Run::new(&bed).with("--keys-listen", "127.0.0.1:9").with("--metrics", "127.0.0.1:9");
    says(&check(keys, 1), &["--metrics: metrics on 127.0.0.1:9: keys are taken", "keys.listen"]);
    one("--web", "192.0.2.1:9700", &["web.listen (--web) 192.0.2.1:9700", "ssh -L 9700:"]);
    let web = |key, at| Run::new(&bed).with(key, at).with("--web", at);
    for (key, words) in [("--keys-listen", "keys are taken"), ("--metrics", "metrics are served")] {
        says(&check(web(key, "127.0.0.1:9"), 1), &["--web: page on 127.0.0.1:9: ", words]);
    }
    let token = place.write("token", "a-token-that-others-can-read\n");
    let text = format!("[web]\nlisten = \"127.0.0.1:9700\"\ntoken_file = {token:?}\n");
    let config = place.write("web.toml", &text);
    one("-c", &config, &["line 3: web.token_file: token file ", "others may read it: chmod 600"]);
    fs::remove_file(&token).unwrap();
    assert_eq!(check(Run::new(&bed).with("-c", &config), 0), [""; 0], "it will be made");
    place.write("web.toml", text.replace("/token", "/none/token"));
    one("-c", &config, &["line 3: web.token_file: token file ", "o such file"]);
    one(
        "--control",
        &path("none/none/s"),
        &["--control: control socket ", "mkdir -p ", "none/none"],
    );
    one(
        "--control",
        &path("m.toml"),
        &["--control: control socket ", "m.toml: that is there and no socket"],
    );
    one("--control", &path("m.toml/s"), &["--control: control socket ", "ot a directory"]);
    one("--mirror", "left", &["--mirror: mirror interface is left, which carries the traffic"]);
    one("-w", &path(""), &["--write: mirror file ", "is a directory"]);
    let closed = place.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    one(
        "-w",
        &path("closed/m"),
        &["--write: mirror file ", "ermission denied", "own the directory"],
    );

    // What will do, the remains of a killed run included.
    let run = Run::new(&bed).with("--metrics", "127.0.0.1:9600").with("--control", &socket);
    bed.middlebox.ip("link add mirror0 type veth peer name tap0\nlink set mirror0 up\n").unwrap();
    let run = run.with("-w", path("m.pcapng")).with("--mirror", "mirror0");
    assert_eq!(check(run, 0), [""; 0]);
    assert_eq!(check(Run::new(&bed).with("--control", path("new/s")), 0), [""; 0]);
    let mut left: Vec<_> =
        fs::read_dir(place.path("")).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["closed", "control.sock", "m.toml", "remote.toml", "web.toml"]);
}

#[test]
fn tells_every_setting_that_is_missing_or_makes_no_sense() {
    let place = Place::new("settings-all");
    let output = mmtls(&["run", "-T"]).output().unwrap();
    let lines = told(&output, 1);
    for option in ["--inline", "--missing-keys", "--keys-listen", "--key-cert", "--key-key"] {
        says(&lines, &[option, "is needed"]);
    }
    assert_eq!(lines.len(), 5, "{lines:#?}");
    let text = "[limits]\nmax_flows = 0\nmax_held_frames = 0\n[workers]\ncount = 1000\n";
    let config = place.write("bad.toml", text);
    let lines = told(&mmtls(&["run", "-T", "-c", &config]).output().unwrap(), 1);
    for (line, key) in
        [(2, "limits.max_flows"), (3, "limits.max_held_frames"), (5, "workers.count")]
    {
        says(&lines, &[&format!("{config}: line {line}: {key} must ")]);
    }
    assert_eq!(lines.len(), 3, "{lines:#?}");
    // Also what only both together tell.
    let config = place.write("bad.toml", "[policies]\nmissing_keys = \"drop\"\n");
    let lines = told(&mmtls(&["run", "-T", "-c", &config]).output().unwrap(), 1);
    says(&lines, &[&format!("{config}: line 2: policies.missing_keys must be forward or reset")]);
}

/// What programs that start others say with their exit status.
#[test]
fn exec_ends_as_its_program_does() {
    if !can_run(&[]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("exec");
    let plain = place.write("plain", "no program");
    let exec = |program: &[&str]| {
        let mut command = bed.client.command(mmtls_program());
        command.args(["exec", "--middlebox", "127.0.0.1:1", "--ca"]).arg(&bed.pki().ca);
        command.arg("--").args(program).output().unwrap().status.code()
    };
    assert_eq!(exec(&["/nonexistent/program"]), Some(127));
    assert_eq!(exec(&[&plain]), Some(126));
    assert_eq!(exec(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(exec(&["sh", "-c", "kill -TERM $$"]), Some(128 + 15));
    assert_eq!(exec(&["sh", "-c", "kill -USR1 $$"]), Some(128 + 10), "not ignored by inheritance");
}

#[test]
fn a_check_listens_at_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let run = || {
        let mut command = Command::new(mmtls_program());
        command.args(["run", "-T", "--passive", "nosuch0", "--keys-listen", &address.to_string()]);
        let output = command.args(["--key-cert", "/c", "--key-key", "/k"]).output().unwrap();
        told(&output, 1)
    };
    says(&run(), &[&address.to_string(), "in use"]);
    drop(taken);
    let lines = run();
    assert!(lines.iter().all(|line| !line.contains("in use")), "{lines:#?}");
    TcpListener::bind(address).unwrap();
}

/// It is read later, and only what is beside it can be.
#[test]
fn refuses_a_key_log_without_a_directory() {
    if !can_run(&["timeout"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let run = Run::new(&bed).with("--keylog", "/nosuchdir/a/keys.log").flag("-T");
    says(
        &told(&run.command().output().unwrap(), 1),
        &["keys.log_file", "its directory has to be there before the start"],
    );
}

#[test]
fn warns_of_super_frames_that_are_too_large() {
    if !can_run(&["timeout"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    if bed.middlebox.ip("link set left gro_max_size 131072\n").is_err() {
        skip_unless("MMTLS_REQUIRE_TESTBED", "this kernel, or ip(8), has no gro_max_size");
        return;
    }
    assert!(shell(&bed.middlebox, "ip -d link show left").contains("gro_max_size 131072"));
    let output = Run::new(&bed).flag("-T").command().output().unwrap();
    let words = ["warning: left: super-frames may have 131072 bytes", "gro_max_size 65536"];
    says(&told(&output, 0), &words);
}

#[test]
fn doctor_tells_each_thing_with_its_remedy() {
    if !can_run(&["setpriv"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let doctor = |arguments: &[&str], code| {
        let mut command = bed.middlebox.command(mmtls_program());
        let output = command.arg("doctor").args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        let is_line =
            |line: &str| ["ok    ", "warn  ", "fail  "].iter().any(|it| line.starts_with(it));
        assert!(text.lines().all(is_line) && output.stderr.is_empty(), "{output:?}");
        text
    };
    let text = doctor(&["left", "right"], 0);
    assert!(text.contains("ok    left and right: Ethernet, up"), "{text}");
    assert!(text.contains("ok    CAP_NET_RAW") && text.contains(" Linux "), "{text}");
    let text = doctor(&["left", "nosuch0"], 1);
    assert!(text.contains("fail  there is no interface \"nosuch0\""), "{text}");
    bed.middlebox.ip("address add 192.0.2.9/24 dev right\n").unwrap();
    let text = doctor(&["left", "right"], 0);
    assert!(text.contains("warn  right has the address 192.0.2.9"), "{text}");
    let place = Place::new("doctor");
    let [expired, key] = certificate(&place, "expired", -9, -1);
    let text = format!(
        "[inline]\ninterfaces = [\"left\", \"right\"]\n[policies]\nmissing_keys = \"reset\"\n[keys]\nlisten = \"[::]:4433\"\n\
         certificate_file = {expired:?}\nkey_file = {key:?}\n"
    );
    let config = place.write("m.toml", text);
    let text = doctor(&["-c", &config], 1);
    assert!(text.contains(&format!("fail  {config}: line 7: keys.certificate_file: ")), "{text}");
    let mut command = bed.middlebox.command("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(mmtls_program()).arg("doctor");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && text.contains("fail  CAP_NET_RAW is missing"), "{text}");
}
