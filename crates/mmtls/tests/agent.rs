//! `mmtls agent`: programs that write key logs share their record keys, whatever TLS library they have.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::browsers::ONE_PAGE;
use crate::common::{Family, Stage, can_run, patient};
use serde_json::Value;

use mmtls_testkit::{
    Background, Mmtls, NginxOptions, address,
    browsers::{chromium, counted_script},
    files, require_browser, require_file, require_program, require_python,
};

/// Starts an agent with this directory.
fn agent(stage: &Stage, mmtls: &Mmtls, family: Family, directory: &Path) -> Background {
    mmtls.agent(&stage.bed, family.is_v6(), directory, None).unwrap()
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
    answer.resume().on("end", () => console.log("done"));
}).on("error", error => { console.log(String(error)); process.exitCode = 1; });
"#;

/// The same by Python's `urllib`, whose default context writes a key log where the environment asks for it.
const PYTHON: &str = r#"
import ssl, sys, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
urllib.request.urlopen(sys.argv[1], context=context).read()
"#;

/// In Go it is the program that opens its key log.
const GO: &str = r#"package main

import ("crypto/tls"; "io"; "net/http"; "os")

func main() {
	log, err := os.OpenFile(os.Getenv("SSLKEYLOGFILE"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil { panic(err) }
	config := &tls.Config{InsecureSkipVerify: true, KeyLogWriter: log}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	answer, err := client.Get(os.Args[1])
	if err != nil { panic(err) }
	io.Copy(io.Discard, answer.Body)
}
"#;

const JAVA: &str = r#"
import java.net.URL;
import java.security.cert.X509Certificate;
import javax.net.ssl.*;

class Fetch {
    public static void main(String[] arguments) throws Exception {
        TrustManager any = new X509TrustManager() {
            public void checkClientTrusted(X509Certificate[] chain, String type) {}
            public void checkServerTrusted(X509Certificate[] chain, String type) {}
            public X509Certificate[] getAcceptedIssuers() { return new X509Certificate[0]; }
        };
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, new TrustManager[] {any}, null);
        HttpsURLConnection.setDefaultSSLSocketFactory(context.getSocketFactory());
        HttpsURLConnection.setDefaultHostnameVerifier((host, session) -> true);
        new URL(arguments[0]).openStream().readAllBytes();
    }
}
"#;

/// What makes Java write key logs (`scripts/setup` fetches it).
const JAVA_AGENT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/java/extract-tls-secrets-4.0.0.jar");

/// Programs that are tried, which TLS library they have, and by what they write a key log.
const PROGRAMS: [[&str; 3]; 8] = [
    ["wget", "GnuTLS", "SSLKEYLOGFILE"],
    ["git", "GnuTLS", "SSLKEYLOGFILE"],
    ["gnutls-cli", "GnuTLS", "SSLKEYLOGFILE"],
    ["curl", "OpenSSL", "SSLKEYLOGFILE"],
    ["python3", "OpenSSL", "SSLKEYLOGFILE"],
    ["node", "OpenSSL, built in", "--tls-keylog, NODE_OPTIONS"],
    ["go", "Go", "KeyLogWriter"],
    ["java", "JSSE", "-javaagent, JAVA_TOOL_OPTIONS"],
];

/// Whether a program is there, which is built or copied where it has to be.
fn prepare(stage: &Stage, name: &str) -> bool {
    let directory = stage.bed.directory();
    match name {
        "python3" => require_python("ssl"),
        "go" => {
            std::fs::write(directory.join("fetch.go"), GO).unwrap();
            let build = || {
                let mut build = Command::new("go");
                build.current_dir(directory).args(["build", "-o", "fetch", "fetch.go"]);
                let built = build.output().unwrap();
                assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            };
            require_program("go").then(build).is_some()
        }
        "java" => {
            std::fs::write(directory.join("Fetch.java"), JAVA).unwrap();
            let compile = || {
                let mut compile = Command::new("javac");
                compile.current_dir(directory).arg("Fetch.java");
                assert!(compile.status().unwrap().success());
            };
            (require_browser("javac") && require_file(JAVA_AGENT)).then(compile).is_some()
        }
        name => require_program(name),
    }
}

/// A program that fetches `/file?NAME` from the server.
fn fetch(
    stage: &Stage,
    family: Family,
    name: &str,
    start: impl Fn(&[&str], &Path) -> Command,
) -> Command {
    let host = family.server();
    let url = format!("https://{host}/file?{name}");
    let bare = host.trim_matches(['[', ']']).to_owned();
    let path = format!("/file?{name}");
    let arguments: &[&str] = match name {
        "wget" => &["-q", "--tries=1", "--no-check-certificate", "-O", "/dev/null", &url],
        // There is no repository; the request for it is enough.
        "git" => &["-c", "http.sslVerify=false", "ls-remote", &url],
        // It asks for nothing; the session is enough.
        "gnutls-cli" => &["--insecure", "--port", "443", &bare],
        "curl" => &["-skS", "-o", "/dev/null", &url],
        "python3" => &["-c", PYTHON, &url],
        "node" => &["-e", NODE, "--", &bare, &path],
        "go" => &[&url],
        "java" => &["-XX:TieredStopAtLevel=1", "-cp", ".", "Fetch", &url],
        _ => unreachable!("{name}"),
    };
    let program = if name == "go" { stage.bed.directory().join("fetch") } else { name.into() };
    let mut command =
        start(if name == "java" { &["--java-agent", JAVA_AGENT] } else { &[] }, &program);
    command.args(arguments).current_dir(stage.bed.directory());
    command
}

/// What `mmtls exec` sets for a program, for one that is started without it.
fn set_key_log(command: &mut Command, keylog: &Path) {
    let keylog = keylog.display();
    command.env("SSLKEYLOGFILE", keylog.to_string());
    command.env("NODE_OPTIONS", format!("--tls-keylog={keylog}"));
    command.env("JAVA_TOOL_OPTIONS", format!("-javaagent:{JAVA_AGENT}={keylog}"));
}

/// Each program, with an agent that reads its key log and run by `mmtls exec`: a table of what was decrypted.
#[test]
fn programs_with_key_logs_are_decrypted() {
    if !can_run(&["nginx"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", &files::pattern_bytes(300_000, 1));
    let there: Vec<&str> =
        PROGRAMS.map(|row| row[0]).into_iter().filter(|name| prepare(&stage, name)).collect();
    let mut decrypted: Vec<[String; 2]> = vec![Default::default(); PROGRAMS.len()];
    for (number, family) in Family::all(&stage.bed).into_iter().enumerate() {
        for by_exec in [false, true] {
            let mmtls = stage.mmtls(&patient());
            let directory = stage.bed.directory().join(format!("agent{number}"));
            let keylog = directory.join("keylog");
            // By `mmtls exec` with an agent of its own, and through one.
            let own = by_exec && !family.is_v6();
            let agent = (!own).then(|| agent(&stage, &mmtls, family, &directory));
            for name in &there {
                let command = fetch(&stage, family, name, |options, program| {
                    if own {
                        return mmtls.sharing_with(&stage.bed, false, options, program);
                    } else if by_exec {
                        return mmtls.sharing_through(&stage.bed, &directory, options, program);
                    }
                    let mut command = stage.bed.client.command(program);
                    set_key_log(&mut command, &keylog);
                    command
                });
                let done = stage.run(name, command);
                assert!(
                    done.status.success() || *name == "git",
                    "{name}: {}{}",
                    done.text(),
                    done.stderr
                );
            }
            // The control: nobody reads this one, and sessions without keys are reset.
            let unread = stage.bed.directory().join("unread");
            let command = fetch(&stage, family, "wget", |_, program| {
                let mut command = stage.bed.client.command(program);
                set_key_log(&mut command, &unread);
                command
            });
            let done = stage.run("wget", command);
            assert!(!done.status.success(), "{}", done.text());
            let said = agent.map(end).unwrap_or_default();
            assert!(!directory.exists(), "the FIFO is gone");
            let report = mmtls.stop().unwrap();
            let all = format!("{:#?}\n{said}", report.summary);
            assert_eq!(report.count("decrypted"), there.len() as u64, "by exec: {by_exec}, {all}");
            let unread = report.count("TLS sessions") - there.len() as u64;
            assert!(unread >= 1 && report.count("missing key") == unread, "{all}");
            let requests = report.events("http");
            for (row, [name, ..]) in decrypted.iter_mut().zip(PROGRAMS) {
                let asks = |it: &Value| {
                    let url = it["http"]["url"].as_str().unwrap_or_default();
                    url.strip_prefix("/file?").is_some_and(|it| it.starts_with(name))
                };
                let answers = requests.iter().filter(|it| asks(it)).count();
                let is_there = there.contains(&name);
                assert!(
                    answers == usize::from(is_there && name != "gnutls-cli"),
                    "{name}: {requests:#?}"
                );
                let text = if is_there { "decrypted" } else { "not installed" };
                row[usize::from(by_exec)] = text.to_owned();
            }
        }
    }
    println!(
        "| program | TLS library | key log by | with `mmtls agent` | by `mmtls exec` |\n|---|---|---|---|---|"
    );
    for ([name, library, way], [agent, exec]) in PROGRAMS.iter().zip(decrypted) {
        println!("| {name} | {library} | {way} | {agent} | {exec} |");
    }
}

/// A session begins while no agent is connected: its keys are asked for when one is.
#[test]
fn keys_are_asked_for_again_when_an_agent_connects() {
    if !can_run(&["nginx", "wget"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", b"content");
    let mmtls = stage.mmtls(&patient());
    let keylog = stage.bed.directory().join("keys");
    std::fs::write(&keylog, "").unwrap();
    let command = fetch(&stage, Family::V4, "wget", |_, program| {
        let mut command = stage.bed.client.command(program);
        set_key_log(&mut command, &keylog);
        command
    });
    let mut wget = stage.bed.background("wget", command).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::fs::metadata(&keylog).unwrap().len() == 0 {
        assert!(Instant::now() < deadline, "no handshake");
        std::thread::sleep(Duration::from_millis(1));
    }
    // What is asked now is asked of nobody.
    std::thread::sleep(Duration::from_millis(300));
    let directory = stage.bed.directory().join("agent");
    let agent = mmtls.agent(&stage.bed, false, &directory, Some(&keylog)).unwrap();
    let status = wget.wait(Duration::from_secs(20)).unwrap();
    let said = end(agent);
    let report = mmtls.stop().unwrap();
    let all = format!("{:#?}\n{said}", report.summary);
    assert!(status.success(), "{all}");
    assert_eq!((report.count("decrypted"), report.count("resets")), (1, 0), "{all}");
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
        "</head><body onload=\"done()\"><script>async function done() {
            await fetch(`/done?whole=${whole}&ms=${performance.now().toFixed(1)}`);
        }</script></body></html>",
    );
    page
}

/// Firefox, which writes a key log where the environment asks for it, on a page.
fn firefox(stage: &Stage, mut firefox: Command) -> Command {
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
    firefox.args(["--headless", "--no-remote", "--profile"]).arg(&home).env("HOME", &home);
    firefox.arg(format!("https://{}/page.html", address::SERVER_V4));
    firefox
}

/// Shows the page in a browser, with an agent that reads this key log, if it is still to be started: every session is
/// decrypted.
fn browse(name: &str, by_exec: bool, browser: impl Fn(&Stage, &Mmtls, &Path) -> Command) {
    for http2 in [false, true] {
        let stage = Stage::with(NginxOptions { http2, ..NginxOptions::default() });
        stage.serve("page.html", page().as_bytes());
        stage.serve("done", b"");
        for number in 0..OBJECTS {
            stage.serve(&format!("object{number}.js"), &counted_script(number, OBJECT_BYTES));
        }
        let mmtls = stage.mmtls(&patient());
        let directory = stage.bed.directory().join("agent");
        let keylog = directory.join("keylog");
        let agent = (!by_exec).then(|| agent(&stage, &mmtls, Family::V4, &directory));
        let mut browser = stage.bed.background(name, browser(&stage, &mmtls, &keylog)).unwrap();
        let done = |eve: &[Value]| {
            eve.iter()
                .any(|it| it["http"]["url"].as_str().is_some_and(|url| url.starts_with("/done")))
        };
        let waited = mmtls.wait_for_eve("the end of the page", Duration::from_secs(60), done);
        browser.signal("TERM");
        let _ = browser.wait(Duration::from_secs(10));
        let said = agent.map(end).unwrap_or_default();
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
        browse("chromium", false, |stage, _, keylog| {
            let mut browser = chromium(&stage.bed, keylog, "page").unwrap();
            browser.args(ONE_PAGE).arg(format!("https://{}/page.html", address::SERVER_NAME));
            browser
        });
    }
}

#[test]
fn a_page_of_100_objects_in_firefox_is_decrypted() {
    if can_run(&["nginx"]) && require_browser("firefox-esr") && require_browser("certutil") {
        browse("firefox-esr", false, |stage, _, keylog| {
            let mut command = stage.bed.client.command("firefox-esr");
            command.env("SSLKEYLOGFILE", keylog);
            firefox(stage, command)
        });
        browse("firefox-esr", true, |stage, mmtls, _| {
            firefox(stage, mmtls.sharing(&stage.bed, false, &[], "firefox-esr"))
        });
    }
}

/// Rules by name, program and port: what of a session reaches the monitor, and who is told of it.
#[test]
fn rules_decide_what_is_shared() {
    if !can_run(&["nginx", "curl", "python3"]) || !require_python("ssl") {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", &files::pattern_bytes(300_000, 1));
    let mmtls = stage.mmtls(&patient());
    let (directory, audit) =
        (stage.bed.directory().join("agent"), stage.bed.directory().join("audit"));
    let file = stage.bed.directory().join("agent.toml");
    let middlebox =
        format!("{}@{}:{}", address::MIDDLEBOX_NAME, address::KEYS_V4, mmtls_testkit::KEYS_PORT);
    std::fs::write(
        &file,
        format!(
            "middleboxes = [{middlebox:?}]\nca_file = {:?}\ndirectory = {directory:?}\n\
             audit_log = {audit:?}\n\
             [[rules]]\nname = \"private\"\nservers = [\"*.bank\"]\nshare = \"nothing\"\n\
             [[rules]]\nname = \"own data\"\nprograms = [\"curl\"]\nshare = \"toclient\"\n\
             [[rules]]\nname = \"elsewhere\"\nports = [8443]\nshare = \"nothing\"\n",
            stage.bed.pki().ca
        ),
    )
    .unwrap();
    let mut command = stage.bed.client.command(crate::common::mmtls_program());
    command.args(["agent", "-c"]).arg(&file);
    let mut agent = stage.bed.background("agent", command).unwrap();
    agent.wait_for_line("connected to", Duration::from_secs(10)).unwrap();
    // By a rule for its name, by one for the program, and by none.
    let host = address::SERVER_V4;
    let curl = |name: &str| {
        let mut curl = mmtls.sharing_through(&stage.bed, &directory, &[], "curl");
        curl.args(["-ksS", "--resolve", &format!("{name}:443:{host}"), "-o", "/dev/null"]);
        curl.arg(format!("https://{name}/file"));
        curl
    };
    let mut python = mmtls.sharing_through(&stage.bed, &directory, &[], "python3");
    python.args(["-c", PYTHON, &format!("https://{host}/file")]);
    for command in [curl("my.bank"), curl("server.test"), python] {
        let done = stage.run("program", command);
        assert!(done.status.success(), "{}", done.stderr);
    }
    let status = || {
        let mut command = stage.bed.client.command(crate::common::mmtls_program());
        command.args(["agent", "status", "--json", "--directory"]).arg(&directory);
        serde_json::from_str::<Value>(&stage.run("status", command).text()).unwrap_or_default()
    };
    let by_rule = serde_json::json!({ "private": 1, "own data": 1 });
    let end = Instant::now() + Duration::from_secs(5);
    while status()["sessions_by_rule"] != by_rule {
        assert!(Instant::now() < end, "{}", status());
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = self::end(agent);
    assert!(said.contains("sessions of key logs stay private"), "{said}");
    let report = mmtls.stop().unwrap();
    let all = format!("{:#?}\n{said}", report.summary);
    assert_eq!((report.count("exempt"), report.count("decrypted")), (1, 2), "{all}");
    let read = |session: &Value| {
        let of = |direction: &str| {
            session["decrypted"][format!("records_{direction}")].as_u64().unwrap() > 0
        };
        [of("toserver"), of("toclient")]
    };
    let sessions = crate::common::sessions(&report);
    let found: Vec<_> = sessions.iter().map(|it| read(it)).collect();
    assert_eq!(found, [[false, false], [false, true], [true, true]], "{all}");
    let lines = std::fs::read_to_string(&audit).unwrap();
    let lines: Vec<Value> = lines.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let of = |rule: &str| lines.iter().filter(|it| it["rule"] == rule).collect::<Vec<_>>();
    assert_eq!(of("private").len(), 1, "{lines:#?}");
    assert_eq!(of("private")[0]["decision"], "exempt");
    assert!(of("own data").iter().any(|it| it["decision"] == "shared"), "{lines:#?}");
    assert!(lines.iter().any(|it| it["rule"].is_null() && it["decision"] == "shared"));
}
