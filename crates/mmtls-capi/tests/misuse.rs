//! Misuse is answered by codes, under a sanitizer and under valgrind, which would see every byte too
//! much.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{can_compile, directory, pkg_config, replayed, succeed, text};
use mmtls_testkit::captures::{Conversation, http_exchange};
use mmtls_testkit::{files, require_program};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/misuse.c");

/// `misuse` and what it needs.
fn misuse(compile_with: &[&str], run_with: &[&str]) -> Option<Output> {
    let name = if compile_with.is_empty() { "plain" } else { "sanitized" };
    let program = directory().join(name);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_DEFAULT_SOURCE", "-g", "-Wall", "-Wextra", "-Werror"]);
    cc.args(compile_with).arg("-o").arg(&program).arg(SOURCE).args(pkg_config()).arg("-pthread");
    // Some compilers come without sanitizers.
    if !cc.output().unwrap().status.success() && !compile_with.is_empty() {
        return None;
    }
    succeed(&mut cc);

    let body = files::pattern_bytes(100_000, 3);
    let exchanges = [http_exchange("/a", &body), http_exchange("/b", &body[..5000])];
    let kind = |version, suite, v6| Conversation {
        version,
        suite,
        v6,
        record_len: 9000,
        ..Conversation::new(&exchanges)
    };
    let kinds = [
        kind(0x0304, 0x1301, false),
        kind(0x0303, 0xc030, true),
        kind(0x0304, 0x1303, true),
        kind(0x0303, 0xc02f, false),
        kind(0x0304, 0x1302, false),
    ];
    let config = replayed(name, &kinds);
    let damaged = replayed(&format!("{name}-damaged"), &kinds[..1]);
    damage(&damaged, |capture| {
        let middle = capture.len() / 2;
        capture[middle] ^= 1;
    });
    let truncated = replayed(&format!("{name}-truncated"), &kinds[..1]);
    damage(&truncated, |capture| capture.truncate(capture.len() / 2));

    let program = program.to_str().unwrap();
    let command = [run_with, &[program]].concat();
    let mut run = Command::new(command[0]);
    run.args(&command[1..]).args([&config, &damaged, &truncated]);
    Some(succeed(&mut run))
}

fn damage(config: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let path = config.with_extension("pcapng");
    let mut capture = fs::read(&path).unwrap();
    change(&mut capture);
    fs::write(&path, capture).unwrap();
}

#[track_caller]
fn assert_checked(output: &Output) {
    let printed = text(output);
    let (checks, wrong) = printed.trim().split_once(" checks, ").unwrap();
    eprintln!("{checks} checks");
    assert!(checks.parse::<u32>().unwrap() > 10_000 && wrong == "0 wrong", "{printed}");
}

#[test]
fn refuses_misuse_with_fixed_codes_under_a_sanitizer() {
    if !can_compile() {
        return;
    }
    match misuse(&["-fsanitize=address,undefined"], &[]) {
        Some(output) => assert_checked(&output),
        None => eprintln!("SKIP: this compiler has no AddressSanitizer; valgrind has to do"),
    }
}

/// It also sees what the library itself does, which has no sanitizer inside.
#[test]
fn refuses_misuse_with_fixed_codes_under_valgrind() {
    if can_compile() && require_program("valgrind") {
        let options = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full"];
        assert_checked(&misuse(&[], &options).unwrap());
    }
}

#[test]
fn accepts_a_fork_while_contexts_run() {
    if !can_compile() {
        return;
    }
    let source = Path::new(SOURCE).with_file_name("fork.c");
    let program = directory().join("fork");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_DEFAULT_SOURCE", "-g", "-Wall", "-Wextra", "-Werror"]);
    cc.arg("-o").arg(&program).arg(source).args(pkg_config()).arg("-pthread");
    succeed(&mut cc);
    let config = replayed("forked", &[Conversation::new(&[http_exchange("/a", b"body")])]);
    succeed(Command::new(program).arg(config));
}
