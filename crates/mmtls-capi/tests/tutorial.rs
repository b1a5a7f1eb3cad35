//! `docs/writing-a-middlebox.md`, read and done: every file is written, every command run, and what it
//! prints is what the page says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{can_compile, directory, installed, root, succeed, text};
use mmtls_testkit::captures::{self, Conversation, http_exchange};
use mmtls_testkit::{
    Middle, Nginx, NginxOptions, Testbed, address, files, require_program, require_testbed,
};

/// One fenced block.
struct Block {
    /// What stands behind the fence.
    info: String,
    text: String,
}

fn page() -> Vec<Block> {
    let page = fs::read_to_string(root().join("docs/writing-a-middlebox.md")).unwrap();
    let parts: Vec<&str> = page.split("```").collect();
    assert!(parts.len() % 2 == 1, "a fence without its end");
    let blocks = parts.iter().skip(1).step_by(2).map(|block| {
        let (info, text) = block.split_once('\n').unwrap();
        Block { info: info.to_owned(), text: text.to_owned() }
    });
    blocks.collect()
}

fn download() -> Vec<u8> {
    let mut body = files::pattern_bytes(120_000, 8);
    body[40_000..40_015].copy_from_slice(b"forbidden fruit");
    body
}

/// The capture next to the page.
fn sample(path: &Path) {
    let exchange = http_exchange("/download", &download());
    let conversation = Conversation { record_len: 8192, ..Conversation::new(&[exchange]) };
    captures::write(path, &[conversation]).unwrap();
}

/// A shell's command in the reader's place.
fn shell(place: &Path, command: &str) -> Command {
    let prefix = installed();
    let mut shell = Command::new("sh");
    let path = format!("{}:{}", prefix.join("bin").display(), std::env::var("PATH").unwrap());
    shell.args(["-c", command]).current_dir(place).env("PATH", path);
    shell.env("LD_LIBRARY_PATH", prefix.join("lib"));
    shell.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    shell
}

/// Does what the page says, in a directory of its own.
fn follow(name: &str) -> PathBuf {
    let place = directory().join(name);
    fs::create_dir_all(&place).unwrap();
    fs::copy(root().join("docs/download.pcapng"), place.join("download.pcapng")).unwrap();
    for Block { info, text: content } in page() {
        match info.split_once(" file=") {
            // It is an example of the crate `mmtls-middlebox`, and built with it.
            Some(("rust", name)) => {
                let example = root().join("crates/mmtls-middlebox/examples").join(name);
                assert!(fs::read_to_string(&example).unwrap() == content, "not {example:?}");
            }
            Some((_, name)) => fs::write(place.join(name), content).unwrap(),
            None if info == "console" => {
                for step in content.split("$ ").filter(|step| !step.is_empty()) {
                    // A dollar inside a command is followed by a parenthesis.
                    let (command, expected) = step.split_once('\n').unwrap();
                    let printed = text(&succeed(&mut shell(&place, command)));
                    assert_eq!(printed, expected, "$ {command}");
                }
            }
            None => assert_eq!(info, "text", "what kind of block is this?"),
        }
    }
    place
}

#[test]
fn accepts_the_sample_that_the_sources_give() {
    let generated = directory().join("download.pcapng");
    sample(&generated);
    let committed = root().join("docs/download.pcapng");
    if std::env::var_os("MMTLS_UPDATE_HEADER").is_some() {
        fs::copy(&generated, &committed).unwrap();
    }
    let same = fs::read(&generated).unwrap() == fs::read(&committed).unwrap_or_default();
    assert!(same, "{committed:?}: run this with MMTLS_UPDATE_HEADER=1");
}

#[test]
fn accepts_every_file_and_command_of_the_tutorial() {
    if can_compile() && require_program("openssl") {
        follow("reader");
    }
}

#[test]
fn accepts_the_end_of_the_tutorial_a_blocked_download() {
    if !can_compile()
        || !require_testbed()
        || !["openssl", "nginx", "curl"].iter().all(|program| require_program(program))
    {
        return;
    }
    let place = follow("live");
    let bed = Testbed::new(Middle::Empty).unwrap();
    let nginx = Nginx::start(&bed, NginxOptions::default()).unwrap();
    fs::write(nginx.root().join("download"), download()).unwrap();
    let clean = files::pattern_bytes(120_000, 8);
    fs::write(nginx.root().join("clean"), &clean).unwrap();

    let as_page = |namespace: &mmtls_testkit::Namespace, line: &str| {
        let mut command = namespace.command("sh");
        let shell = shell(&place, line);
        command.args(shell.get_args()).current_dir(&place);
        command.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    let start = "exec ./block live.toml 'forbidden fruit'";
    let mut block = bed.background("block", as_page(&bed.middlebox, start)).unwrap();
    block.wait_for_listen(4433, Duration::from_secs(10)).unwrap();
    let fetch = |name: &str| {
        let line = format!(
            "mmtls exec --middlebox middlebox.test@{}:4433 --ca middlebox.pem -- \
             curl -sS --http1.1 --max-time 20 --cacert {} {} -o saved https://{}/{name}",
            address::KEYS_V4,
            bed.pki().ca.display(),
            bed.resolve_args().join(" "),
            address::SERVER_NAME
        );
        let _ = fs::remove_file(place.join("saved"));
        bed.run("curl", as_page(&bed.client, &line), Duration::from_secs(30)).unwrap()
    };
    let done = fetch("clean");
    assert!(done.status.success(), "{}", done.stderr);
    assert!(fs::read(place.join("saved")).unwrap() == clean);
    let done = fetch("download");
    assert!(!done.status.success(), "it was not blocked: {}", block.stderr_text());
    assert!(done.stderr.contains("reset by peer"), "{}", done.stderr);
    let saved = fs::read(place.join("saved")).unwrap_or_default();
    assert!(!saved.windows(15).any(|window| window == b"forbidden fruit"));
    block.signal("TERM");
    assert!(block.wait(Duration::from_secs(10)).unwrap().success());
    assert!(block.stdout_text().contains("\"forbidden fruit\" in the first"), "{block:?}");
}
