//! `mmtls init`: what it writes is what `mmtls run` takes, whoever answers, and nothing that is there is lost.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use mmtls_testkit::{Middle, Testbed};

use crate::cli::{Place, fails, mode};
use crate::common::{LIMIT, can_run, mmtls_program};

fn init(bed: &Testbed, directory: &Path, arguments: &[&str]) -> Command {
    let mut command = bed.middlebox.command(mmtls_program());
    command.arg("init").arg(directory).args(arguments).stdin(Stdio::null());
    command
}

fn answering(mut command: Command, lines: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn what_was_answered_is_a_configuration_with_which_a_monitor_runs() {
    if !can_run(&["sh"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("init-asks");
    let directory = place.path("etc");
    let [logs, socket] = ["logs", "control.sock"].map(|it| place.path(it));
    // One that is not there, and one that says nothing.
    let lines = format!(
        "left:nosuch0\nleft:right\n127.0.0.1\n127.0.0.1:4433\nbox.test\n\nreset\n{}\n{}\nnone\n",
        logs.display(),
        socket.display()
    );
    let made = answering(init(&bed, &directory, &[]), &lines);
    let told = said(&made);
    assert!(made.status.success(), "{told}");
    for words in [
        "Interfaces of this machine:\n",
        "left",
        "there is no interface \"nosuch0\"",
        "\"127.0.0.1\" has no port",
        "The configuration is valid",
        "mmtls exec --middlebox box.test@127.0.0.1:4433 --ca ca.pem -- PROGRAM",
        "keys/ca.key can certify more",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let file = directory.join("mmtls.toml");
    assert_eq!([mode(&file), mode(&directory.join("keys/middlebox.key"))], [0o600; 2]);
    let mut run = bed.middlebox.command(mmtls_program());
    run.arg("run").arg("-c").arg(&file);
    let mut run = bed.background("run", run).unwrap();
    run.wait_for_line("bridging left and right, keys on 127.0.0.1:4433", LIMIT).unwrap();
    run.signal("TERM");
    assert!(run.wait(LIMIT).unwrap().success());
    assert!(logs.join("eve.json").exists());

    // There is one by now, and its certificates are trusted.
    let text = fs::read_to_string(&file).unwrap();
    let given = [
        "--inline",
        "left:right",
        "--keys-listen",
        "127.0.0.1:4434",
        "--missing-keys",
        "forward",
        "--yes",
    ];
    fails(init(&bed, &directory, &given), &["mmtls.toml is there already", "--force"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    let certificate = fs::read(directory.join("keys/middlebox.pem")).unwrap();
    let log = logs.display().to_string();
    let forced =
        [&given[..], &["--force", "-l", &log, "--control", "none", "--user", "none"]].concat();
    let made = init(&bed, &directory, &forced).output().unwrap();
    assert!(
        made.status.success() && said(&made).contains("certificates are there and stay"),
        "{}",
        said(&made)
    );
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("127.0.0.1:4434") && !text.contains("[control]"), "{text}");
    assert_eq!(fs::read(directory.join("keys/middlebox.pem")).unwrap(), certificate);
}

#[test]
fn refuses_to_guess_to_write_where_others_may_and_to_leave_half_of_it() {
    if !can_run(&["sh"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("init-refuses");
    let directory = place.path("etc");
    let given = ["--yes", "--inline", "left:right", "--keys-listen", "127.0.0.1:4433"];
    fails(init(&bed, &directory, &given), &["--missing-keys is needed"]);
    let but = |more: &[&str]| {
        init(&bed, &directory, &[&given[..], &["--missing-keys", "reset"], more].concat())
    };
    fails(but(&["--user", "nobody-of-this-name"]), &["--user", "no user"]);
    fails(but(&["--log-dir", "logs"]), &["--log-dir", "does not begin with /"]);
    let cut = answering(init(&bed, &directory, &[]), "left:right\n");
    assert!(
        !cut.status.success() && said(&cut).contains("no answer: --keys-listen"),
        "{}",
        said(&cut)
    );
    assert!(!directory.exists(), "nothing was written");
    let open = place.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    fails(init(&bed, &open, &given), &["open: others may write there"]);

    // What the check finds is told, and what was written stays: an interface that is down.
    bed.middlebox.ip("link set right down\n").unwrap();
    let log = place.path("logs").display().to_string();
    let made = but(&["-l", &log, "--control", "none", "--user", "none", "--middlebox", "box.test"])
        .output()
        .unwrap();
    assert!(!made.status.success(), "{}", said(&made));
    assert!(
        said(&made).contains("right is down") && said(&made).contains("left to do"),
        "{}",
        said(&made)
    );
    assert!(directory.join("mmtls.toml").exists());
}
