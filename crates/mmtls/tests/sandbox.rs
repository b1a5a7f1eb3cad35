//! What a compromised monitor could do: threads of the running program are made to call the kernel, with the sandbox,
//! with parts of it, and without.

use std::time::Duration;

use mmtls_testkit::{Mmtls, skip_unless};

use crate::confined::{ends_well, prepared, status, with_sandbox};
use crate::inject::Argument::{self, Memory, Number, Previous};
use crate::inject::{Call, Outcomes, inject};

/// What nobody should be able to make the monitor do. Those that need a capability fail without a sandbox, too, but not
/// before the kernel has looked at arguments that are wrong.
fn forbidden(outside: &str) -> Vec<Call> {
    let address = {
        let mut bytes = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        bytes.extend(mmtls_testkit::middlebox::KEYS_PORT.to_be_bytes());
        bytes.extend([127, 0, 0, 1]);
        bytes.resize(16, 0);
        bytes
    };
    let number = |it: i32| Number(it.into());
    let other = Number(std::process::id().into());
    let none = Number(0);
    let here = number(libc::AT_FDCWD);
    let call = |name, number, arguments: &[Argument], bytes: &[u8]| Call {
        name,
        number,
        arguments: arguments.to_vec(),
        bytes: bytes.to_vec(),
    };
    let outside = |name: &str| format!("{outside}/{name}").into_bytes();
    let create = [here, Memory, number(libc::O_WRONLY | libc::O_CREAT), Number(0o600)];
    let domain = |domain, kind| [number(domain), number(kind), none];
    let memory = [none, Number(4096), Number(7), Number(34), Number(-1), none];
    vec![
        call("read", libc::SYS_openat, &[here, Memory, none, none], b"/etc/passwd"),
        call("write", libc::SYS_openat, &create, &outside("new")),
        call("link", libc::SYS_symlinkat, &[Memory, here, Memory], &outside("link")),
        call("tcp", libc::SYS_socket, &domain(libc::AF_INET, libc::SOCK_STREAM), b""),
        // By the descriptor that the call before has opened, or none.
        call("connect", libc::SYS_connect, &[Previous, Memory, Number(16)], &address),
        call("udp", libc::SYS_socket, &domain(libc::AF_INET, libc::SOCK_DGRAM), b""),
        call("unix", libc::SYS_socket, &domain(libc::AF_UNIX, libc::SOCK_STREAM), b""),
        call("packet", libc::SYS_socket, &domain(libc::AF_PACKET, 99), b""),
        call("exec", libc::SYS_execve, &[Memory, none, none], b"/nowhere"),
        call("ptrace", libc::SYS_ptrace, &[Number(1), Number(999_999_999), none, none], b""),
        // BPF_PROG_LOAD, with a structure that is too long.
        call("bpf", libc::SYS_bpf, &[Number(5), Memory, Number(1 << 20)], &[0; 8]),
        call("mount", libc::SYS_mount, &[Memory, Memory, Memory, none, none], b"/nowhere"),
        call("setuid", libc::SYS_setuid, &[none], b""),
        call("kill", libc::SYS_kill, &[other, none], b""),
        call("namespace", libc::SYS_unshare, &[number(libc::CLONE_NEWUSER)], b""),
        call("code", libc::SYS_mmap, &memory, b""),
        call("memfd", libc::SYS_memfd_create, &[Memory, none], b"name"),
        call("process", libc::SYS_process_vm_readv, &[other, none, none, none, none, none], b""),
    ]
}

fn attempt(mmtls: &Mmtls, thread: &str) -> Outcomes {
    let outside = tempfile::tempdir().unwrap();
    let calls = forbidden(outside.path().to_str().unwrap());
    inject(&mmtls.process, thread, &calls).expect("it lives")
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
    for thread in ["mmtls", "mmtls-keyserver", "http", "web", "history", "eve-log"] {
        for (name, outcome) in attempt(&mmtls, thread) {
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
    let calls = [
        Call {
            name: "certificate",
            number: libc::SYS_openat,
            arguments: vec![Number(libc::AT_FDCWD.into()), Memory, Number(0), Number(0)],
            bytes: certificate.into_bytes(),
        },
        Call {
            name: "entry",
            number: libc::SYS_bpf,
            arguments: vec![Number(1), Number(0), Number(1 << 20)],
            bytes: Vec::new(),
        },
    ];
    let monitor = inject(&mmtls.process, "mmtls", &calls).unwrap();
    assert!(monitor["certificate"].0 >= 0, "{monitor:?}");
    assert_eq!(monitor["entry"], (-1, libc::E2BIG));
    let key_channel = inject(&mmtls.process, "mmtls-keyserver", &calls).unwrap();
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
    let outcomes = attempt(&mmtls, "mmtls");
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
    let outcomes = attempt(&mmtls, "mmtls");
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
fn ends_at_a_call_where_the_operator_wants_that() {
    let Some(stage) = prepared() else { return };
    let mut mmtls = stage.mmtls(&with_sandbox("seccomp = \"kill\""));
    let call = Call {
        name: "tcp",
        number: libc::SYS_socket,
        arguments: vec![Number(libc::AF_INET.into()), Number(libc::SOCK_STREAM.into()), Number(0)],
        bytes: Vec::new(),
    };
    // Not the first thread, whose end would be the process's: that is waited for behind this.
    assert_eq!(inject(&mmtls.process, "mmtls-keyserver", &[call]), None);
    let status = mmtls.process.wait(Duration::from_secs(10)).unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(libc::SIGSYS));
}
