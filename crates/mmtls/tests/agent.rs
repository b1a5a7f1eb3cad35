//! `mmtls agent`: programs that write key logs share their record keys, whatever TLS library they have.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::browsers::chromium;
use crate::common::{Family, Stage, can_run, patient};
use mmtls_testkit::{
    Background, Mmtls, NginxOptions, address, files, require_browser, require_python,
};

/// Starts an agent with a FIFO of its own.
fn agent(stage: &Stage, mmtls: &Mmtls, family: Family, keylog: &Path) -> Background {
    mmtls.agent(&stage.bed, family.is_v6(), keylog).unwrap()
}

/// Ends it, and returns what it says.
fn end(mut agent: Background) -> String {
    agent.signal("TERM");
    assert!(agent.wait(Duration::from_secs(10)).unwrap().success());
    agent.stderr_text()
}

/// Fetches a file by node's `https`.
const NODE: &str = r#"
const [host, path] = process.argv.slice(1);
require("https").get({host, path, rejectUnauthorized: false}, answer => {
    let size = 0;
    answer.on("data", it => size += it.length).on("end", () => console.log("size " + size));
}).on("error", error => { console.log(String(error)); process.exitCode = 1; });
"#;

/// The same by Python's `urllib`, whose default context writes a key log where the environment asks for it.
const PYTHON: &str = r#"
import ssl, sys, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
print("size", len(urllib.request.urlopen(f"https://{sys.argv[1]}{sys.argv[2]}", context=context).read()))
"#;

const SIZE: usize = 300_000;

/// A program in the client's namespace that fetches `/file` and writes a key log, by its documented way.
fn program(stage: &Stage, family: Family, name: &str, keylog: &Path) -> Command {
    let host = family.server();
    let url = format!("https://{host}/file");
    let bare = host.trim_matches(['[', ']']).to_owned();
    let mut command = stage.bed.client.command(name);
    command.env("SSLKEYLOGFILE", keylog);
    match name {
        "wget" => {
            command.args(["-q", "--tries=1", "--no-check-certificate", "-O", "/dev/null", &url])
        }
        "python3" => command.args(["-c", PYTHON, &host, "/file"]),
        "node" => {
            command.env_remove("SSLKEYLOGFILE");
            command.arg(format!("--tls-keylog={}", keylog.display()));
            command.args(["-e", NODE, "--", &bare, "/file"])
        }
        // It asks for nothing; the session is enough.
        "gnutls-cli" => command.args(["--insecure", "--port", "443", &bare]),
        _ => unreachable!("{name}"),
    };
    command
}

#[test]
fn programs_with_key_logs_are_decrypted() {
    if !can_run(&["nginx", "wget", "node", "gnutls-cli"]) || !require_python("ssl") {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", &files::pattern_bytes(SIZE, 1));
    for (number, family) in Family::all(&stage.bed).into_iter().enumerate() {
        let mmtls = stage.mmtls(&patient());
        let keylog = stage.bed.directory().join(format!("keys{number}"));
        let agent = agent(&stage, &mmtls, family, &keylog);
        let mut asked = 0;
        for name in ["wget", "python3", "node", "gnutls-cli"] {
            let done = stage.run(name, program(&stage, family, name, &keylog));
            assert!(done.status.success(), "{name}: {}{}", done.text(), done.stderr);
            let sized = ["python3", "node"].contains(&name);
            assert!(!sized || done.text().contains(&format!("size {SIZE}")), "{}", done.text());
            asked += 1;
        }
        // The control: nobody reads this one, and sessions without keys are reset.
        let unread = stage.bed.directory().join("unread");
        let done = stage.run("wget", program(&stage, family, "wget", &unread));
        assert!(!done.status.success(), "{}", done.text());
        let said = end(agent);
        assert!(!keylog.exists(), "the FIFO is gone");
        let report = mmtls.stop().unwrap();
        let all = format!("{:#?}\n{said}", report.summary);
        assert_eq!(report.count("decrypted"), asked, "{all}");
        let unread = report.count("TLS sessions") - asked;
        assert!(unread >= 1 && report.count("missing key") == unread, "{all}");
    }
}

/// Objects of the page, as in figure 19 of the paper.
const OBJECTS: usize = 100;
const OBJECT_BYTES: usize = 136 << 10;

/// A page that says how many of its objects came whole, and after how long.
fn page() -> String {
    let mut page = "<!DOCTYPE html><html><head><script>let whole = 0;</script>".to_owned();
    for number in 0..OBJECTS {
        page.push_str(&format!("<script async src=\"/object{number}.js\"></script>\n"));
    }
    page.push_str(
        "</head><body onload=\"document.body.append(
        `objects ${whole} after ${Math.round(performance.now())} ms`)\"></body></html>",
    );
    page
}

/// A script of this length, whose last bytes count it.
fn object(number: usize) -> Vec<u8> {
    const END: &str = "*/whole++;";
    let mut script = format!("/* {number} ").into_bytes();
    script.resize(OBJECT_BYTES - END.len(), b'x');
    script.extend_from_slice(END.as_bytes());
    script
}

#[test]
fn a_page_of_100_objects_in_chromium_is_decrypted() {
    if !can_run(&["nginx"]) || !require_browser("chromium") {
        return;
    }
    for http2 in [false, true] {
        let stage = Stage::with(NginxOptions { http2, ..NginxOptions::default() });
        stage.serve("page.html", page().as_bytes());
        for number in 0..OBJECTS {
            stage.serve(&format!("object{number}.js"), &object(number));
        }
        let mmtls = stage.mmtls(&patient());
        let keylog = stage.bed.directory().join("keys");
        let agent = agent(&stage, &mmtls, Family::V4, &keylog);
        let mut browser = chromium(&stage, &keylog, "page");
        browser.arg(format!("https://{}/page.html", address::SERVER_NAME));
        let dom = stage.run("chromium", browser).text();
        let said = end(agent);
        let report = mmtls.stop().unwrap();
        let all = format!("{:#?}\n{said}\n{dom}", report.summary);
        assert!(dom.contains(&format!("objects {OBJECTS} after")), "{all}");
        let sessions = report.count("TLS sessions");
        assert!(sessions >= 1 && report.count("decrypted") == sessions, "{all}");
        assert_eq!(report.count("missing key") + report.count("resets"), 0, "{all}");
        let objects =
            report.events("http").iter().filter(|it| it["http"]["length"] == OBJECT_BYTES).count();
        assert_eq!(objects, OBJECTS, "{all}");
        let last = dom.lines().rev().find(|line| line.contains("objects"));
        println!("http2 {http2}: {sessions} sessions, {}", last.unwrap_or_default());
    }
}
