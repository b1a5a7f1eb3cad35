//! What a compromised monitor could do: a debugger makes threads of the running program call the kernel, with the sandbox,
//! with parts of it, and without.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use mmtls_testkit::{Mmtls, MmtlsOptions, skip_unless};

use crate::common::{Family, Stage, can_run, options, url};

/// Where strings for calls are put: below what the stopped thread uses of its stack.
const MEMORY: &str = "($sp - 4096)";

/// A system call: its number, its arguments as the debugger takes them, and the bytes at [`MEMORY`].
struct Call<'a>(&'a str, libc::c_long, &'a str, &'a [u8]);

/// What each call returned, and its error number where that is -1.
type Outcomes = BTreeMap<String, (i64, i32)>;

/// Has a thread of the monitor make these calls.
fn inject(stage: &Stage, mmtls: &Mmtls, thread: &str, calls: &[Call]) -> Outcomes {
    let mut script = String::from("set pagination off\nset confirm off\nset language c\n");
    writeln!(script, "python").unwrap();
    writeln!(script, "for t in gdb.selected_inferior().threads():").unwrap();
    writeln!(script, "  if t.name == '{thread}': t.switch(); print('found {thread}')").unwrap();
    writeln!(script, "end\nset scheduler-locking on").unwrap();
    for Call(name, number, arguments, bytes) in calls {
        let text: String = bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "\\{byte:03o}").unwrap();
            text
        });
        if !bytes.is_empty() {
            writeln!(script, "set {{char [{}]}} {MEMORY} = \"{text}\"", bytes.len() + 1).unwrap();
        }
        writeln!(script, "set $result = (long) syscall({number}, {arguments})").unwrap();
        writeln!(script, "set $error = *(int *) __errno_location()").unwrap();
        writeln!(script, "printf \"outcome {name} %ld %d\\n\", $result, $error").unwrap();
    }
    writeln!(script, "detach").unwrap();
    let file = stage.bed.directory().join("calls.gdb");
    std::fs::write(&file, script).unwrap();
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p"]);
    gdb.arg(mmtls.process.pid().to_string()).arg("-x").arg(&file);
    let told = stage.run("gdb", gdb);
    let text = told.text();
    let outcomes: Outcomes = text
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("outcome ")?.split(' ');
            let name = words.next()?.to_owned();
            Some((name, (words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
        })
        .collect();
    assert!(text.contains(&format!("found {thread}\n")), "{text}");
    assert_eq!(outcomes.len(), calls.len(), "{text}\n{}", told.stderr);
    outcomes
}

/// What nobody should be able to make the monitor do. Those that need a capability fail without a sandbox, too, but not
/// before the kernel has looked at arguments that are wrong.
fn forbidden(outside: &str) -> Vec<(&'static str, libc::c_long, String, Vec<u8>)> {
    let address = {
        let mut bytes = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        bytes.extend(mmtls_testkit::middlebox::KEYS_PORT.to_be_bytes());
        bytes.extend([127, 0, 0, 1]);
        bytes.resize(16, 0);
        bytes
    };
    let other = std::process::id();
    let at = |rest: &str| format!("{MEMORY}{rest}");
    let create = libc::O_WRONLY | libc::O_CREAT;
    vec![
        ("read", libc::SYS_openat, format!("-100, {MEMORY}, 0, 0"), b"/etc/passwd".to_vec()),
        (
            "write",
            libc::SYS_openat,
            format!("-100, {MEMORY}, {create}, 384"),
            format!("{outside}/new").into_bytes(),
        ),
        (
            "link",
            libc::SYS_symlinkat,
            format!("{MEMORY}, -100, {MEMORY}"),
            format!("{outside}/link").into_bytes(),
        ),
        ("tcp", libc::SYS_socket, "2, 1, 0".to_owned(), vec![]),
        // By the descriptor that the call before has opened, or none.
        ("connect", libc::SYS_connect, format!("$result, {MEMORY}, 16"), address),
        ("udp", libc::SYS_socket, "2, 2, 0".to_owned(), vec![]),
        ("unix", libc::SYS_socket, "1, 1, 0".to_owned(), vec![]),
        ("packet", libc::SYS_socket, "17, 99, 0".to_owned(), vec![]),
        ("exec", libc::SYS_execve, at(", 0, 0"), b"/nowhere".to_vec()),
        ("ptrace", libc::SYS_ptrace, "1, 999999999, 0, 0".to_owned(), vec![]),
        // BPF_PROG_LOAD, with a structure that is too long.
        ("bpf", libc::SYS_bpf, format!("5, {MEMORY}, 1048576"), vec![0; 8]),
        (
            "mount",
            libc::SYS_mount,
            format!("{MEMORY}, {MEMORY}, {MEMORY}, 0, 0"),
            b"/nowhere".to_vec(),
        ),
        ("setuid", libc::SYS_setuid, "0".to_owned(), vec![]),
        ("kill", libc::SYS_kill, format!("{other}, 0"), vec![]),
        ("namespace", libc::SYS_unshare, (libc::CLONE_NEWUSER).to_string(), vec![]),
        ("code", libc::SYS_mmap, "0, 4096, 7, 34, -1, 0".to_owned(), vec![]),
        ("memfd", libc::SYS_memfd_create, at(", 0"), b"name".to_vec()),
        ("process", libc::SYS_process_vm_readv, format!("{other}, 0, 0, 0, 0, 0"), vec![]),
    ]
}

fn with_sandbox(text: &str) -> MmtlsOptions {
    MmtlsOptions {
        config: Some(format!("[sandbox]\n{text}\n")),
        arguments: ["--metrics", "127.0.0.1:9600"].map(str::to_owned).to_vec(),
        ..options()
    }
}

fn attempt(stage: &Stage, mmtls: &Mmtls, thread: &str) -> Outcomes {
    let outside = tempfile::tempdir().unwrap();
    let calls = forbidden(outside.path().to_str().unwrap());
    let calls: Vec<Call> = calls
        .iter()
        .map(|(name, number, arguments, bytes)| Call(name, *number, arguments, bytes))
        .collect();
    inject(stage, mmtls, thread, &calls)
}

fn ends_well(stage: &Stage, mmtls: Mmtls) {
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.arg(url("small"));
    assert_eq!(stage.run("curl", curl).text(), "small", "traffic goes on");
    let report = mmtls.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
    assert_eq!(report.count("decrypted"), 1);
}

/// A field of `/proc/PID/status`.
fn status(mmtls: &Mmtls, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/status", mmtls.process.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

fn prepared() -> Option<Stage> {
    if !can_run(&["nginx", "curl", "gdb"]) {
        return None;
    }
    let stage = Stage::new();
    stage.serve("small", b"small");
    Some(stage)
}

#[test]
fn refuses_everything_that_is_not_needed() {
    let Some(stage) = prepared() else { return };
    let mmtls = stage.mmtls(&with_sandbox("seccomp = \"errno\""));
    for (field, value) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
        assert_eq!(status(&mmtls, field), value, "{field}");
    }
    for field in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"] {
        assert_eq!(status(&mmtls, field), "0000000000000000", "{field}");
    }
    for thread in ["mmtls", "mmtls-keyserver", "http", "eve-log"] {
        for (name, outcome) in attempt(&stage, &mmtls, thread) {
            let expected = match &*name {
                // Landlock's answer, or that of a thread without files.
                "read" | "write" => (-1, libc::EACCES),
                _ => (-1, libc::EPERM),
            };
            assert_eq!(outcome, expected, "{thread}: {name}");
        }
    }
    // What is allowed with other arguments, or to other threads.
    let certificate = stage.bed.pki().middlebox.certificate.to_string_lossy().into_owned();
    let open = format!("-100, {MEMORY}, 0, 0");
    let calls = [
        Call("certificate", libc::SYS_openat, &open, certificate.as_bytes()),
        Call("entry", libc::SYS_bpf, "1, 0, 1048576", b""),
    ];
    let monitor = inject(&stage, &mmtls, "mmtls", &calls);
    assert!(monitor["certificate"].0 >= 0, "{monitor:?}");
    assert_eq!(monitor["entry"], (-1, libc::E2BIG));
    let key_channel = inject(&stage, &mmtls, "mmtls-keyserver", &calls);
    assert_eq!(key_channel["certificate"], (-1, libc::EACCES));
    assert_eq!(key_channel["entry"], (-1, libc::EPERM));
    ends_well(&stage, mmtls);
}

/// Without it the same calls are answered by the kernel.
#[test]
fn the_same_calls_work_without_a_sandbox() {
    let Some(stage) = prepared() else { return };
    let mmtls = stage.mmtls(&with_sandbox("enabled = false"));
    assert_eq!(status(&mmtls, "Seccomp"), "0");
    let outcomes = attempt(&stage, &mmtls, "mmtls");
    for name in
        ["read", "write", "link", "tcp", "connect", "udp", "unix", "setuid", "kill", "memfd"]
    {
        assert!(outcomes[name].0 >= 0, "{name}: {:?}", outcomes[name]);
    }
    assert!(outcomes["code"].0 > 0, "{outcomes:?}");
    for (name, error) in [
        ("exec", libc::ENOENT),
        ("mount", libc::ENOENT),
        ("ptrace", libc::ESRCH),
        ("bpf", libc::E2BIG),
        ("namespace", libc::EINVAL),
    ] {
        assert_eq!(outcomes[name], (-1, error), "{name}");
    }
    assert!(mmtls.process.stderr_text().contains("warning: no sandbox"));
    ends_well(&stage, mmtls);
}

/// Landlock alone.
#[test]
fn restricts_files_connections_and_signals_without_a_filter() {
    let Some(stage) = prepared() else { return };
    let mmtls = stage.mmtls(&with_sandbox("seccomp = \"off\""));
    if mmtls.process.stderr_text().contains("Landlock") {
        skip_unless("MMTLS_REQUIRE_TESTBED", &mmtls.process.stderr_text());
        return;
    }
    let outcomes = attempt(&stage, &mmtls, "mmtls");
    for (name, error) in [
        ("read", libc::EACCES),
        ("write", libc::EACCES),
        ("link", libc::EACCES),
        ("connect", libc::EACCES),
        ("exec", libc::ENOENT),
        ("kill", libc::EPERM),
    ] {
        assert_eq!(outcomes[name], (-1, error), "{name}");
    }
    ends_well(&stage, mmtls);
}

#[test]
fn keeps_memory_out_of_swap_where_that_is_wanted() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("small", b"small");
    let mmtls = match Mmtls::start(&stage.bed, &with_sandbox("lock_memory = true")) {
        Ok(mmtls) => mmtls,
        Err(error) if error.to_string().contains("LimitMEMLOCK") => {
            let reason = format!("memory cannot be locked here: {error}");
            skip_unless("MMTLS_REQUIRE_LOCKED_MEMORY", &reason);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let kibibytes = |field| -> u64 {
        let text = status(&mmtls, field);
        text.trim_end_matches(" kB").parse().unwrap()
    };
    assert!(kibibytes("VmLck") > 1024);
    ends_well(&stage, mmtls);
}

#[test]
fn ends_at_a_call_where_the_operator_wants_that() {
    let Some(stage) = prepared() else { return };
    let mut mmtls = stage.mmtls(&with_sandbox("seccomp = \"kill\""));
    let script = "(long) syscall";
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p"]);
    gdb.arg(mmtls.process.pid().to_string());
    gdb.args(["-ex", "set language c"]);
    gdb.args(["-ex", &format!("print {script}({}, 2, 1, 0)", libc::SYS_socket)]);
    let told = stage.run("gdb", gdb);
    let status = mmtls.process.wait(Duration::from_secs(10)).unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(libc::SIGSYS), "{} {}", told.text(), told.stderr);
}
