//! The demonstration: real curl, real nginx, mmTLS between them, every claim checked.
//!
//! Refuses to claim what it did not see: each step fails the demo when it is not as stated.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mmtls_testkit::{
    Finished, Middle, Mmtls, MmtlsOptions, Nginx, NginxOptions, Testbed, TestbedError, files,
};

/// `xtask demo`
#[derive(clap::Args)]
pub struct DemoArgs {
    /// Size of the large download in megabytes.
    #[arg(long, default_value_t = 100)]
    megabytes: u64,
}

const PATTERN: &str = "this-download-is-forbidden";
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs it.
pub fn run(args: &DemoArgs) -> Result<(), String> {
    let bed = match Testbed::new(Middle::Empty) {
        Ok(bed) => bed,
        Err(TestbedError::Unavailable(reason)) => {
            return Err(format!("cannot make network namespaces here: {reason}"));
        }
        Err(error) => return Err(error.to_string()),
    };
    Demo::start(bed, args).and_then(|mut demo| demo.run()).map_err(|error| error.to_string())
}

struct Demo {
    nginx: Nginx,
    mmtls: Option<Mmtls>,
    megabytes: u64,
    // Last, so that it is taken away last.
    bed: Testbed,
}

impl Demo {
    fn start(bed: Testbed, args: &DemoArgs) -> Result<Self, TestbedError> {
        say("client ── middlebox ── server: three network namespaces, nothing else touched");
        let nginx = Nginx::start(&bed, NginxOptions::default())?;
        files::pattern(&nginx.root().join("large"), args.megabytes * 1_000_000, 1)?;
        let mut forbidden = files::pattern_bytes(200_000, 2);
        forbidden[150_000..150_000 + PATTERN.len()].copy_from_slice(PATTERN.as_bytes());
        let path = nginx.root().join("forbidden");
        fs::write(&path, forbidden).map_err(|source| TestbedError::Io { path, source })?;
        let patterns = bed.directory().join("patterns.txt");
        fs::write(&patterns, format!("{PATTERN}\n"))
            .map_err(|source| TestbedError::Io { path: patterns.clone(), source })?;
        let binaries = crate::binaries().unwrap_or_else(|_| PathBuf::from("target/release"));
        let options = MmtlsOptions {
            patterns: Some((patterns, "reset".to_owned())),
            ..MmtlsOptions::new(binaries)
        };
        let mmtls = Mmtls::start(&bed, &options)?;
        for line in mmtls.process.stderr_text().lines() {
            println!("    {line}");
        }
        Ok(Self { nginx, mmtls: Some(mmtls), megabytes: args.megabytes, bed })
    }

    fn run(&mut self) -> Result<(), TestbedError> {
        let Some(mut mmtls) = self.mmtls.take() else {
            return Ok(());
        };
        self.large_download(&mmtls)?;
        self.decrypted_request(&mmtls)?;
        self.forbidden_download(&mmtls)?;
        self.exempted(&mmtls)?;
        self.without_keys()?;

        say("the live summary (kill -USR1):");
        mmtls.process.signal("USR1");
        mmtls.process.wait_for_line("frames: ", Duration::from_secs(5))?;
        for line in mmtls.process.stderr_text().lines().skip_while(|it| !it.starts_with("flows")) {
            println!("    {line}");
        }
        let report = mmtls.stop()?;
        check(report.success, "mmtls ends with status 0", &report.stderr)?;
        for (name, least) in [("decrypted", 2), ("exempt", 1), ("missing key", 1), ("resets", 1)] {
            let seen = report.count(name);
            check(seen >= least, &format!("summary: {name}: {seen}"), "less than expected")?;
        }
        check(report.count("records failed") == 0, "no record failed to open", "see above")?;
        println!("\nDemo finished: everything was as stated.");
        Ok(())
    }

    fn large_download(&self, mmtls: &Mmtls) -> Result<(), TestbedError> {
        say(&format!("a {} MB download, keys shared by `mmtls exec -- curl …`", self.megabytes));
        let target = self.bed.directory().join("large.received");
        let curl = self.curl(mmtls.sharing(&self.bed, false, &[], "curl"), "large", &target);
        let done = self.bed.run("curl", curl, PATIENCE)?;
        check(done.status.success(), "curl ended with status 0", &done.stderr)?;
        println!("    {:.2} s, {} MB", done.elapsed.as_secs_f64(), self.megabytes);
        let sums = [self.nginx.root().join("large"), target].map(|path| sha256(&path));
        let [sent, received] = sums;
        let (sent, received) = (sent?, received?);
        println!("    SHA-256 {received}");
        check(sent == received, "the same SHA-256 on both sides", &sent)
    }

    fn decrypted_request(&self, mmtls: &Mmtls) -> Result<(), TestbedError> {
        say("what the middlebox saw of it (eve.json):");
        let is_http =
            |it: &serde_json::Value| it["event_type"] == "http" && it["http"]["url"] == "/large";
        let records = mmtls
            .wait_for_eve("the request", Duration::from_secs(5), |all| all.iter().any(is_http))?;
        let is_session =
            |it: &serde_json::Value| it["event_type"] == "tls" || it["event_type"] == "mmtls";
        for record in records.iter().filter(|it| is_http(it) || is_session(it)) {
            println!("    {record}");
        }
        Ok(())
    }

    fn forbidden_download(&self, mmtls: &Mmtls) -> Result<(), TestbedError> {
        say(&format!("a download that contains \"{PATTERN}\" at byte 150,000"));
        let target = self.bed.directory().join("forbidden.received");
        let curl = self.curl(mmtls.sharing(&self.bed, false, &[], "curl"), "forbidden", &target);
        let done = self.bed.run("curl", curl, PATIENCE)?;
        println!("    curl: {}", done.stderr.trim());
        check(!done.status.success(), "curl was cut off", "it got the whole file")?;
        let received = fs::read(&target).unwrap_or_default();
        println!("    it had received {} of 200,000 bytes", received.len());
        // The pattern's record never became complete at the client.
        check(received.len() <= 150_000, "nothing of the pattern's record arrived", "it did")?;
        let is_alert = |it: &serde_json::Value| it["event_type"] == "alert";
        let records = mmtls
            .wait_for_eve("the alert", Duration::from_secs(5), |all| all.iter().any(is_alert))?;
        for record in records.iter().filter(|it| is_alert(it)) {
            println!("    {record}");
        }
        Ok(())
    }

    fn exempted(&self, mmtls: &Mmtls) -> Result<(), TestbedError> {
        say("the same file with the server's name exempted (null keys)");
        let target = self.bed.directory().join("exempt.received");
        let sharing = mmtls.sharing(&self.bed, false, &["server.test"], "curl");
        let curl = self.curl(sharing, "forbidden", &target);
        let done = self.bed.run("curl", curl, PATIENCE)?;
        check(done.status.success(), "curl ended with status 0", &done.stderr)?;
        let received = fs::read(&target).unwrap_or_default().len();
        check(received == 200_000, "all 200,000 bytes arrived, unread by the middlebox", "fewer")
    }

    fn without_keys(&self) -> Result<(), TestbedError> {
        say("a program that shares nothing: --missing-keys reset");
        let target = self.bed.directory().join("nokeys.received");
        let curl = self.curl(self.bed.client.command("curl"), "large", &target);
        let done: Finished = self.bed.run("curl", curl, PATIENCE)?;
        println!("    curl: {}", done.stderr.trim());
        check(!done.status.success(), "curl was reset", "it got the file")?;
        let received = fs::metadata(&target).map_or(0, |it| it.len());
        check(received == 0, "it had received nothing", &received.to_string())
    }

    fn curl(&self, mut curl: Command, file: &str, target: &Path) -> Command {
        curl.arg("--cacert").arg(&self.bed.pki().ca).args(self.bed.resolve_args());
        curl.args(["--http1.1", "-sS", "-o"]).arg(target);
        curl.arg(format!("https://server.test/{file}"));
        curl
    }
}

fn say(text: &str) {
    println!("\n== {text}");
}

fn check(holds: bool, claim: &str, otherwise: &str) -> Result<(), TestbedError> {
    if holds {
        println!("    ok: {claim}");
        Ok(())
    } else {
        Err(TestbedError::Failed { what: claim.to_owned(), detail: otherwise.trim().to_owned() })
    }
}

fn sha256(path: &Path) -> Result<String, TestbedError> {
    let output = Command::new("sha256sum")
        .arg(path)
        .output()
        .map_err(|source| TestbedError::Io { path: path.to_owned(), source })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.split_once(' ') {
        Some((sum, _)) if output.status.success() => Ok(sum.to_owned()),
        _ => Err(TestbedError::Failed {
            what: format!("sha256sum {}", path.display()),
            detail: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        }),
    }
}
