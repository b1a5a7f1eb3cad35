//! `mmtls agent`: programs that write key logs share their record keys, whatever TLS library they have.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::browsers::chromium;
use crate::common::{Family, Stage, can_run, patient};
use serde_json::Value;

use mmtls_testkit::{
    Background, Middle, Mmtls, NginxOptions, address, files, require_browser, require_python,
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

/// A page that tells its server how many of its objects came whole, and after how many milliseconds.
fn page() -> String {
    let mut page = "<!DOCTYPE html><html><head><script>let whole = 0;</script>".to_owned();
    for number in 0..OBJECTS {
        page.push_str(&format!("<script async src=\"/object{number}.js\"></script>\n"));
    }
    page.push_str(
        "</head><body onload=\"fetch(
        `/done?whole=${whole}&ms=${Math.round(performance.now())}`)\"></body></html>",
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

/// Firefox, which writes a key log where the environment asks for it, on a page.
fn firefox(stage: &Stage, keylog: &Path) -> Command {
    let home = stage.bed.directory().join("firefox");
    std::fs::create_dir_all(&home).unwrap();
    let database = format!("sql:{}", home.display());
    let ca = stage.bed.pki().ca.display().to_string();
    for arguments in [
        &["-N", "-d", &database, "--empty-password"][..],
        &["-A", "-d", &database, "-n", "testbed", "-t", "C,,", "-i", &ca],
    ] {
        let mut certutil = Command::new("certutil");
        certutil.args(arguments);
        assert!(certutil.status().unwrap().success());
    }
    // What it asks for by itself would be sessions, too.
    let quiet = [
        "app.normandy.enabled",
        "browser.newtabpage.enabled",
        "browser.shell.checkDefaultBrowser",
        "datareporting.policy.dataSubmissionEnabled",
        "network.captive-portal-service.enabled",
        "network.connectivity-service.enabled",
    ];
    let prefs: String =
        quiet.iter().map(|name| format!("user_pref(\"{name}\", false);\n")).collect();
    std::fs::write(home.join("user.js"), prefs).unwrap();
    let mut firefox = stage.bed.client.command("firefox-esr");
    firefox.args(["--headless", "--no-remote", "--profile"]).arg(&home).env("HOME", &home);
    firefox.env("SSLKEYLOGFILE", keylog);
    firefox.arg(format!("https://{}/page.html", address::SERVER_V4));
    firefox
}

/// Shows the page in a browser, with an agent that reads its key log: every session is decrypted.
fn browse(name: &str, browser: impl Fn(&Stage, &Path) -> Command) {
    for http2 in [false, true] {
        let stage = Stage::with(NginxOptions { http2, ..NginxOptions::default() });
        stage.serve("page.html", page().as_bytes());
        stage.serve("done", b"");
        for number in 0..OBJECTS {
            stage.serve(&format!("object{number}.js"), &object(number));
        }
        let mmtls = stage.mmtls(&patient());
        let keylog = stage.bed.directory().join("keys");
        let agent = agent(&stage, &mmtls, Family::V4, &keylog);
        let mut browser = stage.bed.background(name, browser(&stage, &keylog)).unwrap();
        let done = |eve: &[Value]| {
            eve.iter()
                .any(|it| it["http"]["url"].as_str().is_some_and(|url| url.starts_with("/done")))
        };
        let waited = mmtls.wait_for_eve("the end of the page", Duration::from_secs(60), done);
        browser.signal("TERM");
        let _ = browser.wait(Duration::from_secs(10));
        let said = end(agent);
        let report = mmtls.stop().unwrap();
        let all = format!("{:#?}\n{said}\n{}", report.summary, browser.stderr_text());
        assert!(waited.is_ok(), "{all}");
        let requests = report.events("http");
        let url = requests.iter().filter_map(|it| it["http"]["url"].as_str());
        let done = url.clone().find(|it| it.starts_with("/done")).unwrap_or_default();
        assert!(done.contains(&format!("whole={OBJECTS}&")), "{done}\n{all}");
        let objects = requests.iter().filter(|it| it["http"]["length"] == OBJECT_BYTES).count();
        assert_eq!(objects, OBJECTS, "{all}");
        let sessions = report.count("TLS sessions");
        assert!(sessions >= 1 && report.count("decrypted") == sessions, "{all}");
        assert_eq!(report.count("missing key") + report.count("resets"), 0, "{all}");
        println!("{name}, HTTP/2 {http2}: {sessions} sessions, {done}");
    }
}

#[test]
fn a_page_of_100_objects_in_chromium_is_decrypted() {
    if can_run(&["nginx"]) && require_browser("chromium") {
        browse("chromium", |stage, keylog| {
            let mut browser = chromium(stage, keylog, "page");
            browser.arg(format!("https://{}/page.html", address::SERVER_NAME));
            browser
        });
    }
}

#[test]
fn a_page_of_100_objects_in_firefox_is_decrypted() {
    if can_run(&["nginx"]) && require_browser("firefox-esr") && require_browser("certutil") {
        browse("firefox-esr", firefox);
    }
}

/// Milliseconds until Chromium has the page, through the kernel's bridge and through mmTLS, in turn.
#[test]
#[ignore = "measures, and takes minutes"]
fn page_load_times() {
    const ROUNDS: usize = 15;
    if !can_run(&["nginx"]) || !require_browser("chromium") {
        return;
    }
    for http2 in [false, true] {
        let stages = [Middle::KernelBridge, Middle::Empty].map(|middle| {
            let log = std::env::temp_dir().join(format!("mmtls-{}-access", std::process::id()));
            let log = log.with_extension(format!("{http2}-{middle:?}"));
            let extra = format!("access_log {};\n", log.display());
            let options = NginxOptions { http2, extra, ..NginxOptions::default() };
            let stage = Stage::around(middle, options);
            stage.serve("page.html", page().as_bytes());
            stage.serve("done", b"");
            for number in 0..OBJECTS {
                stage.serve(&format!("object{number}.js"), &object(number));
            }
            (stage, log)
        });
        let mmtls = stages[1].0.mmtls(&patient());
        let keylogs = [0, 1].map(|it| stages[it].0.bed.directory().join("keys"));
        let agent = agent(&stages[1].0, &mmtls, Family::V4, &keylogs[1]);
        let mut times = [const { Vec::new() }; 2];
        for round in 0..=ROUNDS {
            for at in [round % 2, 1 - round % 2] {
                let (stage, log) = &stages[at];
                std::fs::write(log, b"").unwrap();
                let mut browser = chromium(stage, &keylogs[at], &format!("round{round}"));
                browser.arg(format!("https://{}/page.html", address::SERVER_NAME));
                stage.run("chromium", browser);
                let text = std::fs::read_to_string(log).unwrap();
                let done = text.split(' ').find(|it| it.starts_with("/done")).expect("a page");
                assert!(done.contains(&format!("whole={OBJECTS}&")), "{done}");
                // The first one reads programs and files.
                if round > 0 {
                    let ms = done.rsplit('=').next().unwrap().parse::<u64>().unwrap();
                    times[at].push(ms);
                }
            }
        }
        end(agent);
        let report = mmtls.stop().unwrap();
        assert_eq!(
            report.count("decrypted"),
            report.count("TLS sessions"),
            "{:#?}",
            report.summary
        );
        for ((_, log), (name, times)) in
            stages.iter().zip(["bridge", "mmTLS"].iter().zip(&mut times))
        {
            let _ = std::fs::remove_file(log);
            times.sort_unstable();
            println!("HTTP/2 {http2}, {name}: median {} ms of {times:?}", times[times.len() / 2]);
        }
    }
}
