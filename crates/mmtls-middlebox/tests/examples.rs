//! The examples, run on the capture of the tutorial and on synthetic ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mmtls_testkit::captures::{self, Conversation, http_exchange};
use mmtls_testkit::files;

/// Runs an example that cargo has built together with this test.
fn example(name: &str, arguments: &[&Path]) -> String {
    let here = std::env::current_exe().unwrap();
    let program = here.parent().unwrap().parent().unwrap().join("examples").join(name);
    let hint = "run `cargo test -p mmtls-middlebox` without `--test`, which builds it";
    assert!(program.exists(), "{} is missing: {hint}", program.display());
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("examples-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn tutorial() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/download.pcapng")
}

#[test]
fn accepts_block_download_as_the_tutorial_shows_it() {
    let printed = example("block_download", &[&tutorial(), Path::new("forbidden fruit")]);
    assert_eq!(printed, "session 0: found in the first 40960 bytes: reset\n");
    assert_eq!(example("block_download", &[&tutorial(), Path::new("another word")]), "");
}

#[test]
fn accepts_cipherstat() {
    let printed = example("cipherstat", &[&tutorial()]);
    assert_eq!(
        printed,
        "server name:server.test version:772 cipher:4865\n\
         TLS 1.3, cipher suite 0x1301: 1 sessions\n"
    );
}

#[test]
fn accepts_sessiondump_byte_for_byte() {
    let directory = directory("sessiondump");
    let capture = directory.join("capture.pcapng");
    let exchange = http_exchange("/", &files::pattern_bytes(70_000, 2));
    captures::write(&capture, &[Conversation::new(std::slice::from_ref(&exchange))]).unwrap();
    example("sessiondump", &[&directory, &capture]);
    assert!(fs::read(directory.join("0-to_server")).unwrap() == exchange.0);
    assert!(fs::read(directory.join("0-to_client")).unwrap() == exchange.1);
}

#[test]
fn accepts_ips_that_resets_on_a_match_within_its_limit() {
    let directory = directory("ips");
    let capture = directory.join("capture.pcapng");
    let patterns = directory.join("patterns");
    fs::write(&patterns, "nothing-like-this\nnot for you\n").unwrap();
    let with_word = |at: usize, len| {
        let mut body = files::pattern_bytes(len, 2);
        body[at..at + 11].copy_from_slice(b"not for you");
        http_exchange("/", &body)
    };
    let clean = http_exchange("/", &files::pattern_bytes(1 << 20, 2));
    captures::write(
        &capture,
        &[
            // Behind a megabyte that is skipped; behind the limit; over the edge of two records.
            Conversation::new(&[clean.clone(), with_word(100, 5000)]),
            Conversation::new(&[with_word(65_536, 100_000), clean]),
            Conversation::new(&[with_word(16_384 - 46, 20_000)]),
        ],
    )
    .unwrap();
    let printed = example("ips", &[&patterns, &capture]);
    assert!(
        printed.contains("server.test: \"not for you\" at body byte 111: reset\n"),
        "{printed}"
    );
    assert!(printed.ends_with("2 sessions reset\n"), "{printed}");
}
