//! Two monitors in a row, each with its own certificate, patterns and exempt names. The keys of the second one's sessions
//! come through the first.

use std::process::Command;
use std::time::Duration;

use crate::common::{Stage, can_run, find, patient, sessions, stat, url};
use crate::keys::{PATTERN, with_pattern};
use mmtls_testkit::{
    KEYS_PORT, Middle, Mmtls, MmtlsOptions, MmtlsReport, NginxOptions, address, files,
};

/// What only the second one looks for.
const OTHER: &[u8] = b"other-fruit-here";

struct Chain {
    stage: Stage,
    first: Mmtls,
    second: Mmtls,
}

/// Where the second one takes keys.
fn listen() -> String {
    format!("{}:{KEYS_PORT}", address::SERVER_KEYS_V4)
}

/// A monitor that resets sessions with a pattern, and leaves some names alone.
fn options(stage: &Stage, pattern: &[u8], policies: &str) -> MmtlsOptions {
    let name = format!("patterns-{}", String::from_utf8_lossy(pattern));
    let patterns = stage.bed.directory().join(name);
    std::fs::write(&patterns, pattern).unwrap();
    let mut options = MmtlsOptions { patterns: Some((patterns, "reset".to_owned())), ..patient() };
    options.config = options.config.map(|it| format!("{it}[policies]\n{policies}\n"));
    options
}

impl Chain {
    fn new(stage: Stage, exempt: &str) -> Self {
        // The first one is told where the second one takes keys: nobody shares those of that session.
        let next = format!("bypass = [\"{}\"]\nexempt_names = [{exempt}]", listen());
        let first = stage.mmtls(&options(&stage, PATTERN, &next));
        let second = Self::second(&stage);
        Self { stage, first, second }
    }

    fn second(stage: &Stage) -> Mmtls {
        let place = stage.bed.second.as_ref().unwrap();
        Mmtls::start_at(&stage.bed, place, &listen(), &options(stage, OTHER, "")).unwrap()
    }

    fn curl(&self) -> Command {
        let next = format!("{}@{}", address::MIDDLEBOX_NAME, listen());
        let options = ["--middlebox", next.as_str()];
        let mut curl = self.first.sharing_with(&self.stage.bed, false, &options, "curl");
        curl.arg("--cacert").arg(&self.stage.bed.pki().ca).args(self.stage.bed.resolve_args());
        curl.args(["-sS", "--http1.1", "--max-time", "30"]);
        curl
    }

    fn fetch(&self, name: &str) -> (bool, Vec<u8>) {
        let mut curl = self.curl();
        curl.arg(url(name));
        let page = self.stage.run("curl", curl);
        (page.status.success(), page.stdout)
    }

    fn stop(self) -> [MmtlsReport; 2] {
        [self.first, self.second].map(|it| it.stop().unwrap())
    }
}

fn chain(exempt: &str) -> Chain {
    let stage = Stage::around(Middle::Chain, NginxOptions::default());
    Chain::new(stage, exempt)
}

#[test]
fn each_monitor_of_a_chain_reads_and_resets_what_is_its_own() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let chain = chain("");
    let clean = files::pattern_bytes(500_000, 5);
    let mut other = clean.clone();
    other[400_000..][..OTHER.len()].copy_from_slice(OTHER);
    chain.stage.serve("clean", &clean);
    chain.stage.serve("file", &with_pattern(500_000, 400_000));
    chain.stage.serve("other", &other);
    let (whole, page) = chain.fetch("clean");
    assert!(whole && page == clean);
    for name in ["file", "other"] {
        let (whole, page) = chain.fetch(name);
        assert!(!whole && [PATTERN, OTHER].iter().all(|it| find(&page, it).is_none()), "{name}");
    }
    for report in chain.stop() {
        let all = format!("{:#?}", report.summary);
        assert_eq!((report.count("decrypted"), report.count("alerts")), (3, 1), "{all}");
    }
}

#[test]
fn a_name_that_one_monitor_of_a_chain_leaves_alone_is_read_by_the_other() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let chain = chain("\"server.test\"");
    let content = with_pattern(500_000, 400_000);
    chain.stage.serve("file", &content);
    let (whole, page) = chain.fetch("file");
    assert!(whole && page == content);
    let [first, second] = chain.stop();
    assert_eq!((first.count("exempt"), first.count("decrypted")), (1, 0), "{:#?}", first.summary);
    assert_eq!(
        (second.count("exempt"), second.count("decrypted")),
        (0, 1),
        "{:#?}",
        second.summary
    );
}

#[test]
fn a_monitor_of_a_chain_that_starts_again_goes_on_beside_the_other() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let mut chain = chain("");
    let mut content = files::pattern_bytes(20_000_000, 5);
    content[18_000_000..][..OTHER.len()].copy_from_slice(OTHER);
    chain.stage.serve("file", &content);
    let out = chain.stage.bed.directory().join("out");
    let mut curl = chain.curl();
    curl.args(["--limit-rate", "6M"]).arg("-o").arg(&out).arg(url("file"));
    let mut client = chain.stage.bed.background("curl", curl).unwrap();
    crate::restart::wait_for(&out, 1_000_000, &mut client);
    chain.second.process.signal("KILL");
    chain.second.process.wait(Duration::from_secs(5)).unwrap();
    chain.second = Chain::second(&chain.stage);
    assert!(!client.wait(Duration::from_secs(60)).unwrap().success());
    assert!(find(&std::fs::read(&out).unwrap(), OTHER).is_none());
    let [first, second] = chain.stop();
    let all = format!("{:#?} {:#?}", first.summary, second.summary);
    assert_eq!((first.count("decrypted"), first.count("alerts")), (1, 0), "{all}");
    assert_eq!((second.count("decrypted"), second.count("alerts")), (1, 1), "{all}");
    assert_eq!(stat(&second, "engine", "mid_stream_followed"), 1, "{all}");
    assert_eq!(sessions(&second).len(), 1, "{all}");
}
