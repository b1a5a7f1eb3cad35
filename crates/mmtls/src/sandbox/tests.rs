use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use seccompiler::sock_filter;

use super::calls::*;
use super::*;

const RUN: Jobs = MONITOR | KEY_CHANNEL | METRICS;
const ALLOW: u32 = 0x7fff_0000;
const fn errno(error: libc::c_int) -> u32 {
    0x0005_0000 | error.cast_unsigned()
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// What the kernel would do with a program of a filter.
fn run(program: &[sock_filter], number: i64, arguments: [u64; 6]) -> u32 {
    let mut data = vec![number as u32, ARCHITECTURE, 0, 0];
    data.extend(arguments.iter().flat_map(|it| [*it as u32, (*it >> 32) as u32]));
    let (mut at, mut value) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at].clone();
        at += 1;
        let jump = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            0x20 => value = data[k as usize / 4],
            0x54 => value &= k,
            0x05 => at += k as usize,
            0x15 => at += jump(value == k),
            0x25 => at += jump(value > k),
            0x35 => at += jump(value >= k),
            0x06 => return k,
            _ => panic!("instruction {code:#x}"),
        }
    }
}

/// The strictest answer of all programs.
fn answer(filter: &Filter, number: i64, arguments: [u64; 6]) -> u32 {
    filter
        .programs
        .iter()
        .map(|program| run(program, number, arguments))
        .min_by_key(|it| it.cast_signed())
        .unwrap()
}

#[test]
fn accepts_what_is_in_the_table_and_nothing_else() {
    for call in CALLS {
        assert!(call.why.len() > 4 && call.name.starts_with("SYS_"), "{}", call.name);
    }
    for jobs in [RUN, KEY_CHANNEL, METRICS, READ, KEY_SERVER | KEY_CHANNEL] {
        let filter = Filter::new(jobs, Seccomp::Errno).unwrap();
        let listed: BTreeSet<i64> =
            CALLS.iter().filter(|it| it.jobs & jobs != 0).map(|it| it.number).collect();
        // Whatever the arguments are: those that no alternative of a call takes.
        let odd = [u64::MAX; 6];
        for number in 0..1024 {
            let answer = answer(&filter, number, odd);
            let mine = |call: &&Call| call.number == number && call.jobs & jobs != 0;
            let any = CALLS.iter().filter(mine).any(|call| call.only.is_empty());
            let expected = match number {
                libc::SYS_clone3 => errno(libc::ENOSYS),
                _ if any => ALLOW,
                _ if OPEN.contains(&number) => errno(libc::EACCES),
                _ => errno(libc::EPERM),
            };
            assert_eq!(answer, expected, "{number} for jobs {jobs:#b}");
            assert!(answer != ALLOW || listed.contains(&number));
        }
        // The other system calls of the processor (x32), by the same numbers.
        assert_ne!(answer(&filter, libc::SYS_read | 0x4000_0000, [0; 6]), ALLOW);
    }
}

#[test]
fn refuses_what_opens_a_way_out() {
    let forbidden = [
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_kill,
        libc::SYS_tkill,
        libc::SYS_mount,
        libc::SYS_setns,
        libc::SYS_unshare,
        libc::SYS_setuid,
        libc::SYS_capset,
        libc::SYS_init_module,
        libc::SYS_perf_event_open,
        libc::SYS_io_uring_setup,
        libc::SYS_userfaultfd,
        libc::SYS_keyctl,
        libc::SYS_open_by_handle_at,
        libc::SYS_memfd_create,
        libc::SYS_fchmodat,
        libc::SYS_linkat,
        libc::SYS_symlinkat,
    ];
    for call in CALLS {
        assert!(!forbidden.contains(&call.number), "{}", call.name);
    }
    let run = Filter::new(RUN | EXPRESSIONS, Seccomp::Kill).unwrap();
    for number in forbidden.into_iter().chain([libc::SYS_socket, libc::SYS_connect, libc::SYS_bind])
    {
        assert_eq!(answer(&run, number, [0; 6]), 0x8000_0000, "{number}");
    }
}

#[test]
fn tells_calls_apart_by_their_arguments() {
    let filter = |jobs| Filter::new(jobs, Seccomp::Errno).unwrap();
    let refused = errno(libc::EPERM);
    let run = filter(RUN);
    let ask = |filter: &Filter, number, arguments: &[libc::c_int]| {
        let mut all = [0; 6];
        for (to, from) in all.iter_mut().zip(arguments) {
            // What is above an `int` does not count.
            *to = u64::from(from.cast_unsigned()) | 7 << 32;
        }
        answer(filter, number, all)
    };
    for command in 0..40 {
        let expected = if (1..=3).contains(&command) { ALLOW } else { refused };
        assert_eq!(ask(&run, libc::SYS_bpf, &[command]), expected, "bpf {command}");
        assert_eq!(ask(&filter(METRICS), libc::SYS_bpf, &[command]), refused);
    }
    let protection = |filter: &Filter, bits| ask(filter, libc::SYS_mmap, &[0, 0, bits]);
    assert_eq!(protection(&run, libc::PROT_READ | libc::PROT_WRITE), ALLOW);
    assert_eq!(protection(&run, libc::PROT_READ | libc::PROT_EXEC), refused);
    assert_eq!(protection(&filter(RUN | EXPRESSIONS), libc::PROT_EXEC), ALLOW);
    let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
    assert_eq!(ask(&run, libc::SYS_clone, &[thread | libc::CLONE_FS]), ALLOW);
    assert_eq!(ask(&run, libc::SYS_clone, &[thread | libc::CLONE_NEWUSER]), refused);
    assert_eq!(ask(&run, libc::SYS_clone, &[libc::SIGCHLD]), refused);
    let own = std::process::id().cast_signed();
    assert_eq!(ask(&run, libc::SYS_tgkill, &[own]), ALLOW);
    assert_eq!(ask(&run, libc::SYS_tgkill, &[own + 1]), refused);
    let option = |level, name| ask(&run, libc::SYS_setsockopt, &[3, level, name]);
    assert_eq!(option(libc::SOL_SOCKET, libc::SO_RCVTIMEO), ALLOW);
    assert_eq!(option(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER), refused);
    assert_eq!(option(libc::SOL_PACKET, libc::PACKET_FANOUT), refused);
    let limits = |new| answer(&run, libc::SYS_prlimit64, [0, 7, new, 0, 0, 0]);
    assert_eq!((limits(0), limits(1 << 32)), (ALLOW, refused));
    let server = filter(KEY_SERVER);
    let socket = |family, kind| ask(&server, libc::SYS_socket, &[family, kind]);
    assert_eq!(socket(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_CLOEXEC), ALLOW);
    assert_eq!(socket(libc::AF_INET, libc::SOCK_RAW), refused);
    assert_eq!(socket(libc::AF_PACKET, libc::SOCK_RAW), refused);
    assert_eq!(socket(libc::AF_ALG, libc::SOCK_SEQPACKET), refused);
    let outputs = filter(MONITOR | TCP_OUTPUTS);
    let stream =
        |protocol| ask(&outputs, libc::SYS_socket, &[libc::AF_INET, libc::SOCK_STREAM, protocol]);
    assert_eq!(stream(0), ALLOW);
    assert_eq!(stream(libc::IPPROTO_MPTCP), refused, "whose ports Landlock does not know");
    assert_eq!(stream(libc::IPPROTO_SCTP), refused);
}

/// A thread's restrictions are its own, and end with it.
#[test]
fn opens_what_is_named_and_what_replaces_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["rules", "logs", "elsewhere", "links"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("rules/a"), "a").unwrap();
    fs::write(at("elsewhere/target"), "t").unwrap();
    fs::write(at("secret"), "s").unwrap();
    std::os::unix::fs::symlink(at("elsewhere/target"), at("links/b")).unwrap();
    let mut files = Files::default();
    files.read(&at("rules/a"));
    files.read(&at("links/b"));
    files.write(&at("logs/eve.json"));
    let confined = std::thread::spawn(move || {
        let at = |name: &str| directory.path().join(name);
        let confined = files.confine().unwrap();
        if confined == Confined::Not {
            mmtls_testkit::skip_unless("MMTLS_REQUIRE_TESTBED", "this kernel has no Landlock");
            return;
        }
        assert_eq!(fs::read(at("rules/a")).unwrap(), b"a");
        assert_eq!(fs::read(at("links/b")).unwrap(), b"t");
        fs::write(at("logs/eve.json"), "x").unwrap();
        fs::rename(at("logs/eve.json"), at("logs/eve.json.1")).unwrap();
        fs::remove_file(at("logs/eve.json.1")).unwrap();
        for path in [at("secret"), at("logs/../secret"), PathBuf::from("/etc/passwd")] {
            let error = fs::read(&path).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{}", path.display());
        }
        fs::write(at("rules/a"), "x").unwrap_err();
        fs::write(at("new"), "x").unwrap_err();
        fs::rename(at("rules/a"), at("logs/a")).unwrap_err();
    });
    confined.join().unwrap();
}

/// The nearest directory that is there would open everything below it.
#[test]
fn refuses_places_that_are_not_there() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["none/keys.log", "none/of/these/keys.log"] {
        let mut files = Files::default();
        files.read_key_log(&directory.path().join(name));
        let error = files.confine().unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }
}
