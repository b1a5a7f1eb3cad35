//! `libmmtls-share`: a C program shares its sessions itself, without the preload library, and the middlebox reads them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{Stage, binaries, can_run, patient};
use mmtls_testkit::address;

/// The client of the library's own tests, compiled with it; `None` (a loud skip) where that is not possible.
fn client(stage: &Stage) -> Option<PathBuf> {
    let library = binaries().join("libmmtls_share.a");
    assert!(library.exists(), "{library:?} is missing: run `cargo build -p mmtls-share` first");
    let crate_of_it = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mmtls-share");
    let program = stage.bed.directory().join("client");
    // Statically where there is such an OpenSSL: that is where no preload library helps.
    let output = Command::new("cc").arg("-print-file-name=libssl.a").output().unwrap();
    let is_there = Path::new(String::from_utf8(output.stdout).unwrap().trim()).is_file();
    let openssl = if is_there {
        ["-DHEADERS", "-l:libssl.a", "-l:libcrypto.a"]
    } else {
        ["-UHEADERS", "-l:libssl.so.3", "-l:libcrypto.so.3"]
    };
    let mut cc = Command::new("cc");
    cc.args(["-pthread", "-I"]).arg(crate_of_it.join("include")).arg("-o").arg(&program);
    cc.arg(crate_of_it.join("tests/c/client.c")).args(openssl).arg(library);
    let output = cc.args(["-lgcc_s", "-lm", "-ldl"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        eprintln!("SKIP: no OpenSSL to link with: {errors}");
        return None;
    }
    Some(program)
}

#[test]
fn a_program_that_shares_by_itself_is_decrypted() {
    if !can_run(&["nginx", "cc"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("index.html", &[b'x'; 300_000]);
    let Some(program) = client(&stage) else {
        return;
    };
    let mmtls = stage.mmtls(&patient());
    let directory = stage.bed.directory().join("agent");
    let mut agent = mmtls.agent(&stage.bed, false, &directory, None).unwrap();
    let run = |how: &str, exempt: &str| {
        let mut command = stage.bed.client.command(&program);
        command.env("MMTLS_AGENT", directory.join("agent")).env_remove("LD_PRELOAD");
        command.args([how, &format!("{}:443", address::SERVER_V4), address::SERVER_NAME]);
        command.arg(stage.bed.directory().join("log")).args(["0", exempt]);
        let done = stage.run(how, command);
        assert!(done.status.success(), "{how}: {}{}", done.text(), done.stderr);
    };
    // One session each, two processes' four, and one that nobody may read.
    run("ctx", "");
    run("line", "");
    run("give", "");
    run("fork", "");
    run("ctx", address::SERVER_NAME);
    run("give", address::SERVER_NAME);
    agent.signal("TERM");
    assert!(agent.wait(Duration::from_secs(10)).unwrap().success());
    let report = mmtls.stop().unwrap();
    let all = format!("{:#?}\n{}", report.summary, agent.stderr_text());
    assert_eq!((report.count("decrypted"), report.count("exempt")), (7, 2), "{all}");
    assert_eq!((report.count("TLS sessions"), report.count("resets")), (9, 0), "{all}");
    let requests = report.events("http");
    assert_eq!(requests.len(), 7, "{requests:#?}");
}
