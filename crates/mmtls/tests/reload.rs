//! A live run takes over what its configuration file says by now: sessions that are under way go on, later ones are under
//! the new settings, and where anything is wrong everything stays.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use mmtls_testkit::{Background, Mmtls, MmtlsOptions, address, files, require_python};

use crate::common::{Family, LIMIT, can_run, options, stat, until, url};
use crate::control::Controlled;
use crate::metrics::{measured, samples, scrape};

/// Downloads of each kind.
const DOWNLOADS: usize = 100;
const BYTES: usize = 1 << 20;

/// Downloads at a time, each over a connection of its own: 2 KB in a second, until a file is there. So they last for more than
/// eight minutes, in which keyless clients wait for their limit several times.
const SLOWLY: &str = r#"
import os, socket, ssl, sys, threading, time
host, go_on, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
bodies = []
def get():
    data = b""
    with context.wrap_socket(socket.create_connection((host, 443)), server_hostname="server.test") as tls:
        tls.sendall(b"GET /part HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n")
        while piece := tls.recv(65536 if os.path.exists(go_on) else 1024):
            data += piece
            if not os.path.exists(go_on):
                time.sleep(0.5)
    bodies.append(data.split(b"\r\n\r\n", 1)[1])
threads = [threading.Thread(target=get) for _ in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
part = open(sys.argv[4], "rb").read()
print(sum(body == part for body in bodies), "whole")
"#;

/// As the file of a run says, which is started without `--missing-keys`.
struct Reloaded {
    it: Controlled,
    certificate: PathBuf,
    mmtls: Mmtls,
}

impl Reloaded {
    fn start(config: &str) -> Self {
        let it = Controlled::new();
        it.stage.serve("part", &files::pattern_bytes(BYTES, 9));
        let certificate = it.stage.bed.directory().join("certificate.pem");
        std::fs::copy(&it.stage.bed.pki().middlebox.certificate, &certificate).unwrap();
        let with = MmtlsOptions {
            missing_keys: String::new(),
            certificate: Some(certificate.clone()),
            ..measured(options())
        };
        let mmtls = it.start(config, with);
        Self { it, certificate, mmtls }
    }

    fn write(&self, config: &str) {
        std::fs::write(self.mmtls.directory().join("mmtls.toml"), config).unwrap();
    }

    /// What was told; the reload must have worked.
    #[track_caller]
    fn reload(&self, config: &str) -> String {
        self.write(config);
        self.it.ask(&["reload"])["told"].to_string()
    }

    /// What was told; it must not have worked.
    #[track_caller]
    fn refused(&self, config: &str) -> String {
        self.write(config);
        let done = self.it.ctl(&["reload"]);
        assert!(!done.status.success(), "{}", done.text());
        assert!(done.stderr.contains("nothing was changed"), "{}", done.stderr);
        done.stderr
    }

    /// Whether a small download passes.
    fn passes(&self, mut curl: Command, name: &str) -> bool {
        curl.arg(url(name));
        let done = self.it.stage.run("curl", curl);
        done.status.success()
    }

    fn keyless(&self) -> Command {
        self.it.stage.plain_curl(Family::V4)
    }

    fn sharing(&self) -> Command {
        self.it.stage.sharing_curl(&self.mmtls, Family::V4, &[])
    }

    /// Many downloads that take until they are told to go on.
    fn many(&self, name: &str, mut python: Command) -> Many {
        let go_on = self.it.stage.bed.directory().join(format!("{name}-go-on"));
        python.args(["-c", SLOWLY, address::SERVER_V4]).arg(&go_on).arg(DOWNLOADS.to_string());
        python.arg(self.it.stage.nginx.root().join("part"));
        Many { python: self.it.stage.bed.background(name, python).unwrap(), go_on }
    }

    /// Waits until there are so many sessions.
    fn has_sessions(&self, count: u64) {
        until("so many sessions", || {
            let total = self.it.ask(&["sessions", "--limit", "1"])["total"].as_u64().unwrap();
            total >= count
        });
    }
}

struct Many {
    python: Background,
    go_on: PathBuf,
}

impl Many {
    #[track_caller]
    fn are_whole(mut self) {
        assert!(self.python.is_running(), "they outlive all of it");
        std::fs::write(&self.go_on, "").unwrap();
        let status = self.python.wait(Duration::from_secs(60)).unwrap();
        assert!(status.success(), "{}", self.python.stderr_text());
        let said = self.python.stdout_text();
        assert_eq!(said.trim(), format!("{DOWNLOADS} whole"));
    }
}

#[test]
fn two_hundred_sessions_outlive_changes_of_policies_rules_and_networks() {
    if !can_run(&["nginx", "curl", "python3"]) || !require_python("ssl") {
        return;
    }
    let rules = tempfile::NamedTempFile::new().unwrap();
    let rule = |sid: u32, action: &str, name: &str| {
        format!("{action} http any any -> any any (http.uri; content:\"/{name}\"; sid:{sid};)\n")
    };
    std::fs::write(rules.path(), rule(1, "alert", "nothing")).unwrap();
    let config = |policies: &str| {
        format!(
            "[policies]\n{policies}\n[inspect]\nrules_files = [{:?}]\n\
             [limits]\nstall_timeout_milliseconds = 10000\n",
            rules.path()
        )
    };
    let forward = config("missing_keys = \"forward\"");
    let run = Reloaded::start(&forward);
    let keyless = run.many("keyless", run.it.stage.bed.client.command("python3"));
    let sharing = run.mmtls.sharing(&run.it.stage.bed, false, &[], "python3");
    let shared = run.many("shared", sharing);
    run.has_sessions(2 * DOWNLOADS as u64);
    assert!(run.passes(run.keyless(), "small"));

    let told = run.reload(&config("missing_keys = \"reset\""));
    assert!(told.contains("changed: policies.missing_keys"), "{told}");
    assert!(told.contains("policies: missing_keys=reset"), "{told}");
    assert_eq!(run.it.ask(&["policies"])["policies"]["missing_keys"], "reset");
    assert!(!run.passes(run.keyless(), "small"), "it is reset by now");
    assert!(run.passes(run.sharing(), "small"));

    std::fs::write(rules.path(), rule(1, "alert", "nothing") + &rule(2, "drop", "small")).unwrap();
    assert!(run.reload(&config("missing_keys = \"reset\"")).contains("2 active"));
    assert!(!run.passes(run.sharing(), "small"), "a rule stops it");

    // From now on its network is left alone, but not what was read before.
    let network = "missing_keys = \"reset\"\nbypass = [\"10.77.0.0/24\"]";
    assert!(run.reload(&config(network)).contains("changed: policies.bypass"));
    assert!(run.passes(run.keyless(), "small"));
    let (mut left_alone, out) = run.it.slowly("left-alone", run.keyless());
    run.it.only(&["sessions", "--keys", "left_alone"], |_| true);
    let told = run.reload(&config("missing_keys = \"reset\""));
    assert!(told.contains("changed: policies.bypass"), "{told}");
    assert!(!run.passes(run.keyless(), "small"), "read again");

    keyless.are_whole();
    shared.are_whole();
    assert!(left_alone.wait(LIMIT).unwrap().success());
    assert!(std::fs::read(out).unwrap() == run.it.content);
    let report = run.mmtls.stop().unwrap();
    assert_eq!(report.count("decrypted"), DOWNLOADS as u64 + 2, "{:#?}", report.summary);
    assert_eq!(report.count("records failed"), 0, "{:#?}", report.summary);
    assert_eq!(report.count("resets"), 3, "{:#?}", report.summary);
}

#[test]
fn a_reload_with_anything_wrong_in_it_changes_nothing() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let good = "[policies]\nmissing_keys = \"forward\"\n";
    let mut run = Reloaded::start(good);
    let new = "[policies]\nmissing_keys = \"reset\"\n";
    let told = run.refused(&format!("{new}nothing = 1\n"));
    assert!(told.contains("mmtls.toml: line 3: unknown field `nothing`"), "{told}");
    let unchangeable = format!(
        "{new}[workers]\ncount = 2\n[limits]\nmax_flows = 1000\n[control]\nmode = \"0660\"\n\
         [log]\nhost = \"other\"\n"
    );
    let told = run.refused(&unchangeable);
    for line in [
        "mmtls.toml: line 4: workers.count cannot change while running: restart",
        "mmtls.toml: line 6: limits.max_flows can only grow while running: restart",
        "mmtls.toml: line 8: control.mode cannot change while running: restart",
        "mmtls.toml: line 10: log.host cannot change while running: restart",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    // By a signal the same is said, a third time; until then another one would be refused for that.
    run.mmtls.process.signal("HUP");
    until("a signal is answered", || {
        run.mmtls.process.stderr_text().matches("reload: nothing was changed").count() == 3
    });
    // A pattern file that is not there, and a rule of the file that is fine.
    let patterns = run.mmtls.directory().join("patterns");
    let searching = format!("{new}[inspect]\npatterns_file = {patterns:?}\n");
    let told = run.refused(&searching);
    assert!(told.contains("patterns: No such file"), "{told}");
    // A certificate that is none.
    let whole = std::fs::read(&run.certificate).unwrap();
    std::fs::write(&run.certificate, "no certificate").unwrap();
    let told = run.refused(new);
    assert!(told.contains(run.certificate.to_str().unwrap()), "{told}");
    std::fs::write(&run.certificate, whole).unwrap();
    assert_eq!(run.it.ask(&["policies"])["policies"]["missing_keys"], "forward");
    assert!(run.passes(run.keyless(), "small"), "as before");
    let text = scrape(&run.it.stage);
    let is = |name: &str, value: f64| {
        let now = samples(&text)[&*format!("mmtls_{name}")];
        assert_eq!(now, value, "{name}");
    };
    is("reloads_total", 5.0);
    is("reload_failures_total", 5.0);
    is("last_reload_successful", 0.0);
    let time = "mmtls_last_reload_success_time_seconds";
    is("last_reload_success_time_seconds", samples(&text)["mmtls_start_time_seconds"]);

    // And what is right is taken over all the same, under the sandbox: a file that is new, too.
    std::fs::write(&patterns, "small\n").unwrap();
    assert!(run.reload(&searching).contains("inspect.patterns_file"));
    let after = scrape(&run.it.stage);
    assert_eq!(samples(&after)["mmtls_last_reload_successful"], 1.0);
    assert!(samples(&after)[time] > samples(&text)[time]);
    assert!(!run.passes(run.keyless(), "small"));
    assert!(run.passes(run.sharing(), "small"));
    let report = run.mmtls.stop().unwrap();
    assert_eq!(report.count("alerts"), 1, "{:#?}", report.summary);
    let reloads = ["reloads", "reload_failures"].map(|it| stat(&report, "engine", it));
    assert_eq!(reloads, [6, 5]);
}

/// A network that the kernel forwards is shown again, and what was under way in it goes on.
#[test]
fn a_network_that_was_left_alone_from_the_start_is_read_again() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let config = |more: &str| {
        format!(
            "[policies]\nmissing_keys = \"reset\"\n{more}\n[inline]\nkernel_forwarding = \"always\"\n"
        )
    };
    let run = Reloaded::start(&config("bypass = [\"10.77.0.0/24\"]"));
    let (mut early, out) = run.it.slowly("early", run.keyless());
    crate::restart::wait_for(&out, 1 << 20, &mut early);
    assert_eq!(run.it.ask(&["sessions", "--all"])["total"], 0, "nobody sees it");
    let told = run.reload(&config(""));
    assert!(told.contains("changed: policies.bypass"), "{told}");
    assert!(!run.passes(run.keyless(), "small"));
    assert!(run.passes(run.sharing(), "small"));
    assert!(early.is_running());
    run.it.only(&["sessions", "--all", "--client", address::CLIENT_V4], |it| {
        it["keys"] == "mid_stream"
    });
    assert!(early.wait(LIMIT).unwrap().success(), "it goes on");
    assert!(std::fs::read(out).unwrap() == run.it.content);
    let report = run.mmtls.stop().unwrap();
    assert_eq!(report.count("decrypted"), 1, "{:#?}", report.summary);
    assert!(stat(&report, "engine", "mid_stream") > 0);
}
