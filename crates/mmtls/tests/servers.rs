//! Servers that share their sessions' keys: `keys.accept_from`.

use std::process::Command;

use crate::common::{can_run, options, patient, sessions, stat, url};
use crate::keys::{PATTERN, with_pattern};
use mmtls_testkit::{
    Middle, Mmtls, MmtlsOptions, MmtlsReport, Nginx, NginxOptions, Testbed, files,
};

/// A monitor that takes keys from there, and nginx that shares its sessions.
struct Adopter {
    bed: Testbed,
    nginx: Nginx,
    mmtls: Mmtls,
}

impl Adopter {
    fn new(accept_from: &str, protocols: &str) -> Self {
        Self::with(patient(), accept_from, protocols)
    }

    fn with(options: MmtlsOptions, accept_from: &str, protocols: &str) -> Self {
        let bed = Testbed::new(Middle::Empty).unwrap();
        let patterns = bed.directory().join("patterns.txt");
        std::fs::write(&patterns, PATTERN).unwrap();
        let mut options =
            MmtlsOptions { patterns: Some((patterns, "reset".to_owned())), ..options };
        let limits = options.config.unwrap_or_default();
        options.config = Some(format!("{limits}[keys]\naccept_from = {accept_from}\n"));
        let mmtls = Mmtls::start(&bed, &options).unwrap();
        let through = mmtls.sharing_server(&[]);
        let protocols = protocols.to_owned();
        let options = NginxOptions { through, protocols, ..NginxOptions::default() };
        let nginx = Nginx::start(&bed, options).unwrap();
        Self { bed, nginx, mmtls }
    }

    fn serve(&self, name: &str, content: &[u8]) {
        std::fs::write(self.nginx.root().join(name), content).unwrap();
    }

    /// One after the other in one connection, a second apart.
    fn fetch(&self, mut curl: Command, names: &[&str]) -> (bool, Vec<u8>) {
        curl.arg("--cacert").arg(&self.bed.pki().ca).args(self.bed.resolve_args());
        curl.args(["-sS", "--http1.1", "--max-time", "30", "--rate", "60/m"]);
        curl.args(names.iter().map(|name| url(name)));
        let page = self.bed.run("curl", curl, std::time::Duration::from_secs(60)).unwrap();
        eprintln!("curl: {}, {}", page.status, page.stderr);
        (page.status.success(), page.stdout)
    }

    fn stop(self) -> MmtlsReport {
        let report = self.mmtls.stop().unwrap();
        drop(self.nginx);
        report
    }
}

/// The client is a program that knows nothing of it.
#[test]
fn keys_of_a_server_open_the_sessions_of_its_clients() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let clean = files::pattern_bytes(500_000, 5);
    for protocols in ["TLSv1.3", "TLSv1.2"] {
        let stage = Adopter::new("[\"client\", \"server\"]", protocols);
        stage.serve("clean", &clean);
        stage.serve("file", &with_pattern(500_000, 400_000));
        let (whole, page) = stage.fetch(stage.bed.client.command("curl"), &["clean"]);
        assert!(whole && page == clean, "{protocols}");
        let (whole, _) = stage.fetch(stage.bed.client.command("curl"), &["file"]);
        assert!(!whole, "{protocols}");
        let report = stage.stop();
        let all = format!("{protocols}: {:#?}", report.summary);
        assert_eq!((report.count("decrypted"), report.count("alerts")), (2, 1), "{all}");
        assert_eq!(stat(&report, "engine", "keys_wrong_sender"), 0, "{all}");
    }
}

/// What the client refuses stays refused, and by default a server's keys are those of a stranger.
#[test]
fn keys_of_a_server_open_nothing_that_its_client_refuses() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let (first, second) = (files::pattern_bytes(100, 5), with_pattern(500_000, 400_000));
    for exempt in [true, false] {
        let stage = match exempt {
            true => Adopter::new("[\"server\", \"client\"]", "TLSv1.3"),
            // No keys will count: there is nothing to be patient for.
            false => Adopter::with(options(), "[\"client\"]", "TLSv1.3"),
        };
        stage.serve("first", &first);
        stage.serve("second", &second);
        let curl = match exempt {
            true => stage.mmtls.sharing(&stage.bed, false, &["server.test"], "curl"),
            false => stage.bed.client.command("curl"),
        };
        // The server's keys may come first, and what has been read stays read: the pattern leaves the client's refusal time.
        let (whole, page) =
            stage.fetch(curl, if exempt { &["first", "second"] } else { &["second"] });
        let report = stage.stop();
        let all = format!("{exempt}: {:#?}", report.summary);
        // Without keys that count policy `missing_keys` resets it.
        let expected = (exempt, exempt);
        assert_eq!((whole, page == [first.as_slice(), &second].concat()), expected, "{all}");
        assert_eq!(report.count("alerts"), 0, "{all}");
        assert_eq!(report.count(if exempt { "exempt" } else { "missing key" }), 1, "{all}");
        for session in sessions(&report) {
            let read = session["decrypted"]["bytes_toclient"].as_u64().unwrap();
            assert!(read < 400_000, "{session}");
        }
    }
}
