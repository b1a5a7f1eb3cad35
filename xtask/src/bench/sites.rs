//! Part (l), as figure 21 of the paper: 1,000 sites with the TLS versions and suites that its text tells of 1,000 popular ones,
//! each of which is visited over a new connection, through the kernel's bridge, mmTLS and nginx as split-TLS proxy in turn; and
//! which suites the monitor says that it saw.
//!
//! The sites are made up from a fixed seed: names, sizes of objects, and which suite goes with which version, since the paper
//! tells these shares one by one. The client offers a site's one suite, so that the server has to choose it.
//!
//! Refuses a run in which a visit failed, a session was not decrypted, or the monitor saw other suites than were used.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use mmtls_testkit::{KeyType, NginxOptions, SplitOptions, address, files, machine_cpu};
use serde::Serialize;

use super::lane::{self, Tls};
use super::lanes::Directory;
use super::report::{Samples, table};
use super::sessions::output;
use super::setup::{Kind, Setup};
use crate::results::{Axis, Contender, Figure};

/// Sites, and how many of them have TLS 1.3, AES-GCM, and of those 128-bit keys: 81.7 %, 99.8 %, 72.1 % (section 5.6).
const SITES: usize = 1000;
const TLS_1_3: usize = 817;
const AES_GCM: usize = 998;
const AES_128_GCM: usize = 720;
const SEED: u64 = 21;

/// Sizes of objects in bytes, each as likely as the others: the paper tells none.
const SIZES: [u64; 8] =
    [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];

/// Which records a site has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Records {
    Aes128Gcm,
    Aes256Gcm,
    /// Of the two sites without AES-GCM the paper tells no more: another AEAD for TLS 1.3, CBC for TLS 1.2.
    Other,
}

/// A suite with its version: how the monitor and how OpenSSL call it.
struct Suite {
    is_1_3: bool,
    records: Records,
    name: &'static str,
    openssl: &'static str,
}

const fn tls_1_3(records: Records, name: &'static str) -> Suite {
    Suite { is_1_3: true, records, name, openssl: name }
}

const fn tls_1_2(records: Records, name: &'static str, openssl: &'static str) -> Suite {
    Suite { is_1_3: false, records, name, openssl }
}

const SUITES: [Suite; 6] = [
    tls_1_3(Records::Aes128Gcm, "TLS_AES_128_GCM_SHA256"),
    tls_1_3(Records::Aes256Gcm, "TLS_AES_256_GCM_SHA384"),
    tls_1_3(Records::Other, "TLS_CHACHA20_POLY1305_SHA256"),
    tls_1_2(
        Records::Aes128Gcm,
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
    ),
    tls_1_2(
        Records::Aes256Gcm,
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
    ),
    tls_1_2(Records::Other, "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
];

struct Site {
    number: usize,
    /// In [`SUITES`].
    suite: usize,
    bytes: u64,
}

/// The same ones every time.
fn sites() -> Vec<Site> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut versions: Vec<bool> = (0..SITES).map(|nth| nth < TLS_1_3).collect();
    let records = (0..SITES).map(|nth| match nth {
        0..AES_128_GCM => Records::Aes128Gcm,
        AES_128_GCM..AES_GCM => Records::Aes256Gcm,
        _ => Records::Other,
    });
    let mut records: Vec<Records> = records.collect();
    random.shuffle(&mut versions);
    random.shuffle(&mut records);
    let all = versions.into_iter().zip(records).enumerate();
    all.map(|(number, (is_1_3, records))| {
        let is_it = |suite: &Suite| (suite.is_1_3, suite.records) == (is_1_3, records);
        // There is one for each pair, as a test says.
        let suite = SUITES.iter().position(is_it).unwrap_or_default();
        Site { number, suite, bytes: SIZES[random.usize(..SIZES.len())] }
    })
    .collect()
}

/// What curl is to do, in its own language, site by site.
fn visits(sites: &[Site]) -> String {
    let mut text = String::new();
    for site in sites {
        let suite = &SUITES[site.suite];
        let tls = match suite.is_1_3 {
            true => format!("tlsv1.3\ntls13-ciphers = {:?}", suite.openssl),
            false => format!("tlsv1.2\ntls-max = \"1.2\"\nciphers = {:?}", suite.openssl),
        };
        let _ = write!(
            text,
            "{}url = \"https://site{}.test/{}\"\nconnect-to = \"::{}:443\"\n{tls}\n\
             output = \"/dev/null\"\nsilent\nshow-error\ninsecure\nhttp1.1\nmax-time = 20\n\
             write-out = \"%{{http_code}} %{{size_download}} %{{time_total}}\\n\"\n",
            if site.number == 0 { "" } else { "next\n" },
            site.number,
            site.bytes,
            address::SERVER_V4,
        );
    }
    text
}

/// Milliseconds of each visit, of what curl says.
fn times(text: &str, sites: &[Site]) -> Result<Vec<f64>, String> {
    let one = |(line, site): (&str, &Site)| {
        let mut words = line.split(' ');
        let good = words.next() == Some("200") && words.next()?.parse() == Ok(site.bytes);
        words.next()?.parse::<f64>().ok().filter(|_| good).map(|seconds| seconds * 1000.0)
    };
    let times: Vec<f64> = text.lines().zip(sites).map_while(one).collect();
    match times.len() == sites.len() {
        true => Ok(times),
        false => {
            let (at, said) = (times.len(), text.lines().nth(times.len()).unwrap_or_default());
            Err(format!("site{at}.test, {}: {said}", SUITES[sites[at].suite].name))
        }
    }
}

/// What one middle took for all sites, round by round.
#[derive(Debug, Default, Serialize)]
struct Visited {
    middle: &'static str,
    /// Milliseconds of the machine, and of the process in the middle, for each site.
    machine_ms: Vec<f64>,
    middle_ms: Vec<f64>,
    /// Median milliseconds of a visit, for each of [`SUITES`].
    visit_ms: Vec<Vec<f64>>,
}

/// Sessions with a suite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Seen {
    sessions: u64,
    decrypted: u64,
}

/// Part (l).
#[derive(Debug, Serialize)]
pub struct SiteResults {
    /// Of each of [`SUITES`], in all rounds together.
    seen: Vec<Seen>,
    /// Sessions of each suite, if each was there once a round.
    expected: Vec<u64>,
    rounds: u32,
    visited: Vec<Visited>,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
}

/// Visits all sites `repetitions` times through each middle.
pub fn measure(repetitions: u32) -> Result<SiteResults, String> {
    let sites = sites();
    let place = Directory::create("sites")?;
    for bytes in SIZES {
        let path = place.0.join(bytes.to_string());
        files::pattern(&path, bytes, 1).map_err(|error| error.to_string())?;
    }
    let config = place.0.join("visits");
    std::fs::write(&config, visits(&sites)).map_err(|it| format!("{}: {it}", config.display()))?;
    let kinds = [Kind::Bridge, Kind::Mmtls, Kind::Split(split_options())];
    let mut setups = Vec::new();
    for kind in kinds {
        setups.push(Setup::start(kind, server_options(&place.0))?);
    }
    let mut contenders: Vec<_> = setups.iter().map(|it| it.contender(it.name)).collect();
    contenders.extend(setups.first().map(Setup::server));
    let new = |setup: &Setup| Visited {
        middle: setup.name,
        visit_ms: vec![Vec::new(); SUITES.len()],
        ..Visited::default()
    };
    let mut visited: Vec<Visited> = setups.iter().map(new).collect();
    // The first round reads programs and files.
    for round in 0..=repetitions as usize {
        for turn in 0..setups.len() {
            let at = (turn + round) % setups.len();
            let mut warm_up = new(&setups[at]);
            let into = if round == 0 { &mut warm_up } else { &mut visited[at] };
            visit(&mut setups[at], &config, &sites, into)?;
        }
    }
    let of_suite = |suite| sites.iter().filter(|site| site.suite == suite).count() as u64;
    let expected: Vec<u64> =
        (0..SUITES.len()).map(|suite| of_suite(suite) * u64::from(repetitions + 1)).collect();
    let mut seen = Vec::new();
    for setup in setups {
        let report = setup.finish(expected.iter().sum())?;
        seen = report.map_or(seen, |report| by_suite(&report.sessions));
    }
    let sessions: Vec<u64> = seen.iter().map(|it| it.sessions).collect();
    if sessions != expected {
        return Err(format!("the monitor saw {sessions:?} sessions by suite, not {expected:?}"));
    }
    Ok(SiteResults { seen, expected, rounds: repetitions + 1, visited, contenders })
}

/// Everything that a site may have.
fn server_options(files: &Path) -> NginxOptions {
    NginxOptions {
        ciphersuites: String::new(),
        protocols: "TLSv1.2 TLSv1.3".to_owned(),
        key_type: KeyType::Rsa,
        ..lane::server_options(Tls::Gcm, files)
    }
}

/// A site is another server than the one before it: nothing is kept.
fn split_options() -> SplitOptions {
    SplitOptions { key_type: KeyType::Rsa, upstream_keepalive: 0, ..SplitOptions::default() }
}

fn visit(
    setup: &mut Setup,
    config: &Path,
    sites: &[Site],
    visited: &mut Visited,
) -> Result<(), String> {
    let mut curl = setup.client("curl");
    // `-q`: nobody's own settings.
    curl.arg("-q").arg("-K").arg(config);
    let before = setup.process().map_or(0.0, |it| it.cpu_seconds());
    let machine = machine_cpu();
    let text = output(curl).map_err(|error| format!("{}: curl: {error}", setup.name))?;
    let machine_s = machine_cpu() - machine;
    let middle_s = setup.process().map_or(0.0, |it| it.cpu_seconds()) - before;
    let times = times(&text, sites).map_err(|error| format!("{}: {error}", setup.name))?;
    let each = 1000.0 / sites.len() as f64;
    visited.machine_ms.push(machine_s * each);
    visited.middle_ms.push(middle_s * each);
    for (suite, visits) in visited.visit_ms.iter_mut().enumerate() {
        let of_suite = sites.iter().zip(&times).filter(|(site, _)| site.suite == suite);
        visits.push(Samples::new(of_suite.map(|(_, time)| *time).collect()).median);
    }
    eprintln!("  {}: {:.2} ms of the machine per site", setup.name, machine_s * each);
    Ok(())
}

/// What the monitor wrote of its sessions, for each of [`SUITES`].
fn by_suite(sessions: &[serde_json::Value]) -> Vec<Seen> {
    let mut seen: BTreeMap<&str, Seen> = BTreeMap::new();
    for session in sessions {
        let it = seen.entry(session["cipher_suite"].as_str().unwrap_or_default()).or_default();
        it.sessions += 1;
        it.decrypted += u64::from(session["outcome"] == "decrypted");
    }
    SUITES.iter().map(|suite| seen.get(suite.name).copied().unwrap_or_default()).collect()
}

impl SiteResults {
    /// Figure 21.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |panel: &str, title: &str, x: &str, y| {
            Figure::new("21", panel, title, Axis::category(x), y)
        };
        let percent = |name: &str| Axis::linear(name, "%");
        let mut share = figure(
            "share",
            "1,000 sites by version and suite, as the monitor saw them",
            "of which",
            percent("share of sites"),
        )
        .note("Made up from a fixed seed with the shares that the paper's text tells; which suite goes with which version it does not, nor what the two sites without AES-GCM have: ChaCha20-Poly1305 or AES-CBC here.");
        let all: u64 = self.seen.iter().map(|it| it.sessions).sum();
        let of = |is_it: &dyn Fn(&Suite) -> bool| -> u64 {
            let pairs = SUITES.iter().zip(&self.seen);
            pairs.filter(|(suite, _)| is_it(suite)).map(|(_, seen)| seen.sessions).sum()
        };
        let gcm = of(&|it| it.records != Records::Other);
        let parts = |part: u64, whole: u64| part as f64 / whole.max(1) as f64 * 100.0;
        for (what, part) in [
            ("TLS 1.3", parts(of(&|it| it.is_1_3), all)),
            ("AES-GCM", parts(gcm, all)),
            ("128-bit keys of AES-GCM", parts(of(&|it| it.records == Records::Aes128Gcm), gcm)),
        ] {
            share.add("mmTLS", what, &[part]);
        }
        let mut decrypted = figure(
            "decrypted",
            "Sessions that mmTLS decrypted",
            "suite",
            percent("share decrypted"),
        )
        .note(format!("{all} sessions in {} rounds.", self.rounds));
        for (suite, seen) in SUITES.iter().zip(&self.seen) {
            decrypted.add("mmTLS", suite.name, &[parts(seen.decrypted, seen.sessions)]);
        }
        let mut visit = figure(
            "visit",
            "Time of a visit: connection, handshake, object",
            "suite",
            Axis::linear("median of the sites", "ms"),
        )
        .note("curl, one site after the other, 1 KB to 128 KB, no session resumed; the proxy opens a new connection to the server for each.");
        let mut machine = figure(
            "machine",
            "Processor time of the whole machine",
            "sites",
            Axis::linear("busy time of all cores per site", "ms"),
        );
        let mut middle = figure(
            "box",
            "Processor time of the process in the middle",
            "sites",
            Axis::linear("user and system time per site", "ms"),
        );
        for it in &self.visited {
            machine.add(it.middle, "all", &it.machine_ms);
            if it.middle_ms.iter().any(|&ms| ms > 0.0) {
                middle.add(it.middle, "all", &it.middle_ms);
            }
            for (suite, times) in SUITES.iter().zip(&it.visit_ms) {
                visit.add(it.middle, suite.name, times);
            }
        }
        vec![share, decrypted, visit, machine, middle]
    }

    /// Prints the tables.
    pub fn print(&self) {
        let row = |(at, suite): (usize, &Suite)| {
            let seen = &self.seen[at];
            let mut row =
                vec![suite.name.to_owned(), seen.sessions.to_string(), seen.decrypted.to_string()];
            let median = |it: &Visited| Samples::new(it.visit_ms[at].clone()).median;
            row.extend(self.visited.iter().map(|it| format!("{:.2}", median(it))));
            row
        };
        let rows: Vec<Vec<String>> = SUITES.iter().enumerate().map(row).collect();
        let names = self.visited.iter().map(|it| it.middle);
        let header: Vec<&str> =
            ["suite", "sessions", "decrypted"].into_iter().chain(names).collect();
        table("(l) 1,000 sites: sessions of all rounds; visits, ms, medians", &header, &rows);
        for it in &self.visited {
            let median = |of: &[f64]| Samples::new(of.to_vec()).median;
            let (machine, middle) = (median(&it.machine_ms), median(&it.middle_ms));
            println!(
                "{}: {machine:.2} ms of the machine per site, {middle:.2} ms of the box",
                it.middle
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_have_the_shares_of_the_paper() {
        let sites = sites();
        let of = |is_it: &dyn Fn(&Suite) -> bool| {
            sites.iter().filter(|site| is_it(&SUITES[site.suite])).count()
        };
        assert_eq!(sites.len(), SITES);
        assert_eq!(of(&|it| it.is_1_3), TLS_1_3);
        assert_eq!(of(&|it| it.records != Records::Other), AES_GCM);
        assert_eq!(of(&|it| it.records == Records::Aes128Gcm), AES_128_GCM);
        let share = |part: usize, whole: usize| (part * 1000 / whole) as f64 / 10.0;
        assert_eq!((share(TLS_1_3, SITES), share(AES_GCM, SITES)), (81.7, 99.8));
        assert_eq!(share(AES_128_GCM, AES_GCM), 72.1);
    }

    #[test]
    fn there_is_one_suite_for_each_kind_of_site() {
        for is_1_3 in [true, false] {
            for records in [Records::Aes128Gcm, Records::Aes256Gcm, Records::Other] {
                let is_it = |it: &&Suite| (it.is_1_3, it.records) == (is_1_3, records);
                assert_eq!(SUITES.iter().filter(is_it).count(), 1);
            }
        }
    }

    #[test]
    fn accepts_what_curl_prints_and_refuses_failed_visits() {
        let sites: Vec<Site> = sites().into_iter().take(2).collect();
        let line = |at: usize| format!("200 {} 0.0125\n", sites[at].bytes);
        assert_eq!(times(&(line(0) + &line(1)), &sites), Ok(vec![12.5, 12.5]));
        for wrong in [line(0), line(0) + "000 0 0.1\n", "200 1 0.1\n".to_owned() + &line(1)] {
            assert!(times(&wrong, &sites).is_err(), "{wrong}");
        }
    }

    #[test]
    fn curl_asks_each_site_once_with_its_suite_alone() {
        let sites = sites();
        let text = visits(&sites);
        assert_eq!(text.matches("url = ").count(), SITES);
        assert_eq!(text.matches("next\n").count(), SITES - 1);
        assert_eq!(text.matches("tlsv1.3\n").count(), TLS_1_3);
    }
}
