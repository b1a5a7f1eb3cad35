//! The page of a live run in Chromium: it shows what has happened, takes text for nothing but text, looks right in a narrow
//! and in a wide window (target/screenshots/), and costs traffic nothing.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use mmtls_testkit::{Mmtls, MmtlsOptions, NginxOptions, address, require_browser, wait_until};
use serde_json::{Value, json};

use crate::common::{Family, LIMIT, Stage, binaries, can_run, options, url};

const ADDRESS: &str = "127.0.0.1:9700";

/// A rule's message, and what a client asks for: whoever takes it for elements runs a script.
const HOSTILE: &str =
    "<img/src=x/onerror=document.title='taken'><script>document.title='taken'</script>";

/// A monitor with the page, and a rule whose message is hostile.
fn shown(stage: &Stage) -> MmtlsOptions {
    let rules = stage.bed.directory().join("web.rules");
    let rule = format!(
        "alert http any any -> any any (msg:\"{}\"; http.uri; content:\"/alarm\"; sid:7;)\n",
        HOSTILE.replace(';', "\\;")
    );
    std::fs::write(&rules, rule).unwrap();
    let mut arguments = vec!["-S".to_owned(), rules.display().to_string()];
    arguments.extend(["--web", ADDRESS, "--workers", "2"].map(str::to_owned));
    let config = "[limits]\nstall_timeout_milliseconds = 10000\n";
    MmtlsOptions {
        missing_keys: "forward".to_owned(),
        arguments,
        config: Some(config.to_owned()),
        ..options()
    }
}

/// The address with the token, which was told once.
fn told_address(mmtls: &Mmtls) -> String {
    let told = mmtls.process.stderr_text();
    let mut lines = told.lines().filter_map(|line| line.strip_prefix("mmtls: page on "));
    let address = lines.next().unwrap_or_else(|| panic!("{told}")).to_owned();
    assert_eq!(lines.next(), None);
    address
}

/// An answer of the page's server, and its status.
fn ask(stage: &Stage, path: &str, token: &str) -> (String, String) {
    let mut curl = stage.bed.middlebox.command("curl");
    curl.args(["-sS", "--max-time", "25", "-w", "\n%{http_code}"]);
    curl.arg("-H").arg(format!("Authorization: Bearer {token}"));
    let text = stage
        .run("ask", {
            curl.arg(format!("http://{ADDRESS}{path}"));
            curl
        })
        .text();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (body.to_owned(), status.to_owned())
}

/// Asks until the answer is as it should be.
#[track_caller]
fn wait_for(stage: &Stage, path: &str, token: &str, is: impl Fn(&Value) -> bool) -> Value {
    let mut answer = Value::Null;
    let came = wait_until(LIMIT, || {
        let (body, status) = ask(stage, path, token);
        assert_eq!(status, "200", "{path}: {body}");
        answer = serde_json::from_str(&body).unwrap();
        is(&answer)
    });
    assert!(came, "{path}: {answer:#}");
    answer
}

/// Has Chromium do these steps in the middlebox's namespace.
#[track_caller]
pub fn browse(stage: &Stage, steps: &Value) -> Value {
    let profile = stage.bed.directory().join("web-profile");
    std::fs::create_dir_all(&profile).unwrap();
    let mut python = stage.bed.middlebox.command("python3");
    python.args(["-c", include_str!("chromium.py")]).arg(profile);
    python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = python.spawn().unwrap();
    child.stdin.take().unwrap().write_all(steps.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Where pictures go, for people to look at.
pub fn pictures() -> PathBuf {
    let target = binaries().parent().unwrap().to_owned();
    let directory = target.join("screenshots");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Requests of each kind.
fn traffic(stage: &Stage, mmtls: &Mmtls) {
    let run = |name: &str, mut curl: Command, path: &str| {
        curl.arg(url(path));
        let done = stage.run(name, curl);
        assert!(done.status.success(), "{name}: {}", done.stderr);
    };
    // Before an agent is connected, so that nobody waits for it.
    run("keyless", stage.plain_curl(Family::V4), "small");
    for _ in 0..3 {
        run("shared", stage.sharing_curl(mmtls, Family::V4, &[]), "small");
    }
    let mut alarm = stage.sharing_curl(mmtls, Family::V4, &[]);
    alarm.args(["--request-target", &format!("/alarm?{HOSTILE}")]);
    run("alarm", alarm, "alarm");
    run("exempt", stage.sharing_curl(mmtls, Family::V4, &[address::SERVER_NAME]), "small");
}

#[test]
fn shows_a_run_in_chromium() {
    if !can_run(&["nginx", "curl", "openssl", "python3"]) || !require_browser("chromium") {
        return;
    }
    // One client will ask nothing.
    let extra = "client_header_timeout 10m;".to_owned();
    let stage = Stage::with(NginxOptions { extra, ..NginxOptions::default() });
    stage.serve("small", &[b'x'; 1000]);
    stage.serve("alarm", b"alarm");
    stage.serve("large", &vec![b'x'; 64 << 20]);
    let mmtls = stage.mmtls(&shown(&stage));
    let address = told_address(&mmtls);
    let token = address.split_once("/#").unwrap().1.to_owned();
    traffic(&stage, &mmtls);
    // A session without keys that stays, and a name that is none: the engine takes no such characters.
    let server = format!("{}:443", address::SERVER_V4);
    let mut hostile = stage.bed.client.command("openssl");
    hostile.args(["s_client", "-connect", &server, "-servername", HOSTILE, "-quiet"]);
    let mut hostile = stage.bed.background("hostile", hostile).unwrap();
    let mut slow = stage.sharing_curl(&mmtls, Family::V4, &[]);
    slow.args(["--limit-rate", "500k", "--max-time", "200", "-o", "/dev/null"]).arg(url("large"));
    let slow = stage.bed.background("slow", slow).unwrap();

    let recent = wait_for(&stage, "/api/recent", &token, |it| {
        it["ended"].as_array().unwrap().len() >= 6 && it["alerts"].as_array().unwrap().len() == 1
    });
    assert_eq!(recent["alerts"][0]["signature"], HOSTILE);
    assert_eq!(recent["alerts"][0]["url"], format!("/alarm?{HOSTILE}"));
    assert_eq!(recent["clients"]["rows"][0]["name"], address::CLIENT_V4);
    assert_eq!(recent["clients"]["rows"][0]["sessions"]["decrypted"], 4);
    assert_eq!(recent["clients"]["rows"][0]["sessions"]["missing_key"], 1);
    assert_eq!(recent["clients"]["rows"][0]["sessions"]["exempt"], 1);
    let ja4 = recent["programs"]["rows"][0]["name"].as_str().unwrap();
    assert!(ja4.starts_with("t13d"), "{ja4}");
    let live = wait_for(&stage, "/api/sessions?limit=10", &token, |it| it["total"] == 2);
    let names: Vec<_> = live["sessions"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert!(names.contains(&&address::SERVER_NAME.into()), "{live:#}");
    wait_for(&stage, "/api/history", &token, |it| {
        it["samples"].as_array().unwrap().iter().any(|it| it[2].as_u64().unwrap() > 1_000_000)
    });
    // So that there is a minute to draw.
    wait_for(&stage, "/api/history", &token, |it| it["samples"].as_array().unwrap().len() >= 10);

    let text = |id: &str| format!("document.getElementById('{id}').innerText");
    let picture = |name: &str| json!({"shot": pictures().join(name).display().to_string()});
    let overflow = "document.documentElement.scrollWidth <= innerWidth";
    let seen = "document.getElementById('tiles').innerText.includes('66 %')";
    let open = "[...document.querySelectorAll('#sessions tbody tr')].find((row) => !row.innerText.includes('server.test')).querySelector('button').click()";
    let steps = json!([
        {"view": [1400, 900, "light"]},
        {"open": address},
        {"wait": seen},
        {"wait": "document.querySelectorAll('#sessions tbody tr').length === 2"},
        {"wait": "document.querySelectorAll('figure canvas').length === 4"},
        {"eval": "document.title"},
        {"eval": "location.href"},
        {"eval": text("alerts")},
        {"eval": "document.querySelectorAll('main img, main script').length"},
        {"eval": text("clients")},
        {"eval": text("totals")},
        {"eval": open},
        {"wait": "document.getElementById('why').innerText.includes('an agent is connected and has not sent them')"},
        {"eval": text("detail")},
        {"eval": overflow},
        picture("wide-light.png"),
        {"view": [1400, 900, "dark"]},
        {"wait": "matchMedia('(prefers-color-scheme: dark)').matches"},
        picture("wide-dark.png"),
        {"view": [400, 800, "dark"]},
        {"wait": "document.querySelector('figure canvas').clientWidth < 400"},
        {"eval": overflow},
        picture("narrow-dark.png"),
        {"view": [400, 800, "light"]},
        {"eval": "document.querySelector('input[value=ended]').click()"},
        {"wait": format!("{}.includes('missing key')", text("sessions"))},
        picture("narrow-light.png"),
        // The sandboxed page again: the history is the server's, the token this tab's.
        {"open": format!("http://{ADDRESS}/")},
        {"wait": seen},
        {"open": format!("http://localhost:{}/#wrong-token", ADDRESS.rsplit(':').next().unwrap())},
        {"wait": format!("{}.includes('not the one')", text("refused"))},
        picture("login.png"),
        {"eval": "document.getElementById('main').hidden"},
        {"eval": "document.title"},
    ]);
    let told = browse(&stage, &steps);
    let values = told["values"].as_array().unwrap();
    let [title, href, alerts, elements, clients, totals, _, detail, wide, narrow, _, hidden, last] =
        &values[..]
    else {
        panic!("{told:#}");
    };
    assert_eq!((title, last), (&"mmTLS".into(), &"mmTLS".into()), "text from the network has run");
    assert_eq!(href, &format!("http://{ADDRESS}/"), "the token is not in the address any more");
    assert_eq!(alerts.as_str().unwrap().matches(HOSTILE).count(), 2, "{alerts}");
    assert_eq!(elements, 0);
    let clients = clients.as_str().unwrap();
    assert!(clients.contains(address::CLIENT_V4) && clients.contains("66 %"), "{clients}");
    let totals = totals.as_str().unwrap();
    assert!(totals.contains("decrypted 4") && totals.contains("missing key 1"), "{totals}");
    let detail = detail.as_str().unwrap();
    assert!(detail.contains("TLS 1.3") && detail.contains("10.77.0.2:"), "{detail}");
    assert_eq!((wide, narrow), (&true.into(), &true.into()), "the page is wider than its window");
    assert_eq!(hidden, &true);
    // Nothing is refused by the policy but the token that is wrong.
    let faults: Vec<_> =
        told["faults"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(faults.iter().all(|fault| fault.contains("401")), "{faults:#?}");

    hostile.signal("TERM");
    drop((hostile, slow));
    let report = mmtls.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
    assert!(!report.stderr.contains("token is"), "{}", report.stderr);
    // Fingerprints are made for the page, and not written.
    assert!(report.events("tls").iter().all(|it| it["tls"]["ja4"].is_null()));
}
