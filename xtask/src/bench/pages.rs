//! Part (m), as figure 19 of the paper: milliseconds until Chromium has a page of 10 to 200 objects over new connections, through the
//! kernel's bridge and through mmTLS, which gets the keys of the browser's key log from `mmtls agent`.
//!
//! Loads of one browser are alike and browsers differ, so that a round is a browser through each, in turn, and a sample the median of
//! one browser's loads of a page. What mmTLS adds is the difference of the two samples of a round.
//!
//! Refuses pages of which an object did not come whole, a run in which a session was not decrypted, and loads that shared connections.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mmtls_testkit::browsers::{self, counted_script};
use mmtls_testkit::{Background, NginxOptions};
use serde::Serialize;

use super::lanes::Directory;
use super::report::{Samples, table};
use super::setup::{Kind, Setup};
use crate::results::{Axis, Contender, Figure};

/// Objects of a page, and bytes of each, as in the paper.
const OBJECTS: [usize; 4] = [10, 50, 100, 200];
const OBJECT_BYTES: usize = 136 << 10;

/// Loads of each page by one browser; one more comes before them, which reads programs and files.
const LOADS: usize = 5;
/// For all of them, on a machine that is slow.
const LIMIT: Duration = Duration::from_secs(180);

const PROTOCOLS: [&str; 2] = ["HTTP/1.1", "HTTP/2"];

/// What a page is made of: it drives the browser itself.
const PAGE: &str = include_str!("pages/page.html");

/// One protocol through one middle.
struct Lane {
    http2: bool,
    setup: Setup,
    agent: Option<Background>,
    keylog: PathBuf,
    /// What pages told the server.
    told: PathBuf,
    /// For each page, its median of each round.
    rounds: Vec<[f64; OBJECTS.len()]>,
}

/// Milliseconds of one page with one protocol.
#[derive(Debug, Serialize)]
struct Loads {
    protocol: &'static str,
    objects: usize,
    bridge_ms: Samples,
    mmtls_ms: Samples,
    added_ms: Samples,
}

/// Part (m).
#[derive(Debug, Serialize)]
pub struct PageResults {
    loads: Vec<Loads>,
    /// TLS sessions through mmTLS.
    sessions: [u64; PROTOCOLS.len()],
    #[serde(skip)]
    pub contenders: Vec<Contender>,
}

/// Has so many browsers load all pages through each middle.
pub fn measure(browsers: u32) -> Result<PageResults, String> {
    let place = Directory::create("pages")?;
    write_pages(&place.0).map_err(|error| format!("{}: {error}", place.0.display()))?;
    let mut pairs = Vec::new();
    for http2 in [false, true] {
        pairs.push([
            Lane::start(Kind::Bridge, http2, &place.0)?,
            Lane::start(Kind::Mmtls, http2, &place.0)?,
        ]);
    }
    let of_first = pairs.first().into_iter().flatten().map(|it| it.setup.contender(it.setup.name));
    let mut contenders: Vec<Contender> = of_first.collect();
    contenders.extend(pairs.last().map(|[bridge, _]| bridge.setup.server()));
    for round in 0..browsers as usize {
        for pair in &mut pairs {
            for at in [round % 2, 1 - round % 2] {
                pair[at].round(round)?;
            }
        }
    }
    let mut loads = Vec::new();
    for (protocol, [bridge, mmtls]) in PROTOCOLS.into_iter().zip(&pairs) {
        for (page, objects) in OBJECTS.into_iter().enumerate() {
            let of = |lane: &Lane| lane.rounds.iter().map(|it| it[page]).collect::<Vec<f64>>();
            let (bridge_ms, mmtls_ms) = (of(bridge), of(mmtls));
            let added = mmtls_ms.iter().zip(&bridge_ms).map(|(mmtls, bridge)| mmtls - bridge);
            let added_ms = Samples::new(added.collect());
            let [bridge_ms, mmtls_ms] = [bridge_ms, mmtls_ms].map(Samples::new);
            loads.push(Loads { protocol, objects, bridge_ms, mmtls_ms, added_ms });
        }
    }
    let mut sessions = [0; PROTOCOLS.len()];
    for (sessions, lanes) in sessions.iter_mut().zip(pairs) {
        for lane in lanes {
            *sessions = lane.finish(u64::from(browsers))?.max(*sessions);
        }
    }
    Ok(PageResults { loads, sessions, contenders })
}

/// Pages, their objects, and what they tell.
fn write_pages(directory: &Path) -> std::io::Result<()> {
    for objects in OBJECTS {
        fs::write(directory.join(format!("page{objects}.html")), page(objects))?;
    }
    for number in 0..OBJECTS.into_iter().max().unwrap_or(0) {
        fs::write(
            directory.join(format!("object{number}.js")),
            counted_script(number, OBJECT_BYTES),
        )?;
    }
    fs::write(directory.join("done"), "")
}

fn page(objects: usize) -> String {
    let script = |number| format!("<script async src=\"/object{number}.js\"></script>\n");
    let scripts: String = (0..objects).map(script).collect();
    let text = PAGE.replace("COUNT", &objects.to_string());
    text.replace("PAGES", &format!("{OBJECTS:?}")).replace("OBJECTS", &scripts)
}

/// Loads by one browser: each page so many times, and one before.
fn loads_of_browser() -> usize {
    OBJECTS.len() * LOADS + 1
}

/// Milliseconds of what pages told the server: the objects of each page, and how long it took.
fn told(log: &str) -> Result<Vec<(usize, f64)>, String> {
    let one = |line: &str| {
        let query = line.split(' ').find_map(|word| word.strip_prefix("/done?objects="));
        let wrong = || format!("a page did not come whole: {line}");
        let query = query.ok_or_else(wrong)?;
        let (objects, rest) = query.split_once("&whole=").ok_or_else(wrong)?;
        let (whole, ms) = rest.split_once("&ms=").ok_or_else(wrong)?;
        match (objects.parse(), ms.parse()) {
            (Ok(number), Ok(ms)) if whole == objects => Ok((number, ms)),
            _ => Err(wrong()),
        }
    };
    // The last line may not be there as a whole yet.
    log.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(one).collect()
}

impl Lane {
    fn start(kind: Kind, http2: bool, files: &Path) -> Result<Self, String> {
        let failed = |error: mmtls_testkit::TestbedError| error.to_string();
        let is_mmtls = matches!(kind, Kind::Mmtls);
        let name = format!("told-{http2}-{is_mmtls}");
        let told = files.join(name);
        let extra = format!("location = /done {{ access_log {}; }}\n", told.display());
        let root = Some(files.to_owned());
        let server = NginxOptions { http2, root, extra, ..NginxOptions::default() };
        let setup = Setup::start(kind, server)?;
        let directory = setup.bed.directory().join("agent");
        let agent = match setup.mmtls() {
            Some(mmtls) => Some(mmtls.agent(&setup.bed, false, &directory, None).map_err(failed)?),
            None => None,
        };
        // It is the agent's.
        fs::create_dir_all(&directory).map_err(|it| format!("{}: {it}", directory.display()))?;
        let keylog = directory.join("keylog");
        Ok(Self { http2, setup, agent, keylog, told, rounds: Vec::new() })
    }

    /// One browser.
    fn round(&mut self, round: usize) -> Result<(), String> {
        let failed = |error: mmtls_testkit::TestbedError| error.to_string();
        fs::write(&self.told, "").map_err(|it| format!("{}: {it}", self.told.display()))?;
        let profile = format!("round{round}");
        let mut chromium =
            browsers::chromium(&self.setup.bed, &self.keylog, &profile).map_err(failed)?;
        let (name, left) = (mmtls_testkit::address::SERVER_NAME, loads_of_browser() - 1);
        chromium.arg(format!("https://{name}/page{}.html?{left}", OBJECTS[left % OBJECTS.len()]));
        let mut chromium = self.setup.bed.background("chromium", chromium).map_err(failed)?;
        let end = Instant::now() + LIMIT;
        let loads = loop {
            std::thread::sleep(Duration::from_millis(50));
            let text = fs::read_to_string(&self.told).unwrap_or_default();
            let loads = told(&text)?;
            if loads.len() == loads_of_browser() {
                break loads;
            }
            if Instant::now() > end || !chromium.is_running() {
                let (name, said) = (self.setup.name, chromium.stderr_text());
                return Err(format!("{name}: chromium loaded {} pages: {said}", loads.len()));
            }
        };
        chromium.signal("TERM");
        let _ = chromium.wait(Duration::from_secs(10));
        let median = |objects: usize| {
            let of_page = loads.iter().skip(1).filter(|(it, _)| *it == objects);
            Samples::new(of_page.map(|(_, ms)| *ms).collect()).median
        };
        let medians = OBJECTS.map(median);
        eprintln!(
            "  {}, {}: {medians:.0?} ms for {OBJECTS:?} objects",
            PROTOCOLS[usize::from(self.http2)],
            self.setup.name
        );
        self.rounds.push(medians);
        Ok(())
    }

    /// Ends it, and returns the sessions that a monitor saw: at least one for each load.
    fn finish(self, browsers: u64) -> Result<u64, String> {
        if let Some(mut agent) = self.agent {
            agent.signal("TERM");
            agent.wait(Duration::from_secs(10)).map_err(|error| error.to_string())?;
        }
        let report = self.setup.finish(browsers * loads_of_browser() as u64)?;
        Ok(report.map_or(0, |report| report.count("TLS sessions")))
    }
}

impl PageResults {
    /// Figure 19.
    pub fn figures(&self) -> Vec<Figure> {
        let axis = || Axis::linear("objects of the page", "");
        let mut figures = Vec::new();
        let mut extra = Figure::new(
            "19",
            "extra",
            "What mmTLS adds to the time of a page load",
            axis(),
            Axis::linear("more time", "ms"),
        )
        .note("Of each round, the difference of two browsers' medians; browsers differ by more than this, with and without mmTLS.");
        for (at, protocol) in PROTOCOLS.into_iter().enumerate() {
            let mut load = Figure::new(
                "19",
                if at == 0 { "http1" } else { "http2" },
                &format!("Page loads of Chromium, {protocol}"),
                axis(),
                Axis::linear("time until the page is loaded", "ms"),
            )
            .note(format!(
                "Objects of {} KB, each load over new connections; a sample is the median of {LOADS} loads by one browser. {} TLS sessions, all decrypted.",
                OBJECT_BYTES >> 10,
                self.sessions[at]
            ));
            for it in self.loads.iter().filter(|it| it.protocol == protocol) {
                let x = it.objects as u64;
                load.add("kernel bridge", x, &it.bridge_ms.samples);
                load.add("mmTLS", x, &it.mmtls_ms.samples);
                extra.add(&format!("mmTLS, {protocol}"), x, &it.added_ms.samples);
            }
            figures.push(load);
        }
        figures.push(extra);
        figures
    }

    /// Prints a table.
    pub fn print(&self) {
        let row = |it: &Loads| {
            let added = &it.added_ms;
            vec![
                format!("{} objects, {}", it.objects, it.protocol),
                format!("{:.1}", it.bridge_ms.median),
                format!("{:.1}", it.mmtls_ms.median),
                format!("{:.1}", added.median),
                format!("{:.1}–{:.1}", added.min, added.max),
            ]
        };
        let rows: Vec<Vec<String>> = self.loads.iter().map(row).collect();
        let header = ["page", "bridge", "mmTLS", "added", "range"];
        table("(m) page loads of Chromium, ms, medians of browsers", &header, &rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_ask_for_their_objects() {
        let page = page(50);
        assert_eq!(page.matches("<script async").count(), 50);
        assert!(page.contains("const pages = [10, 50, 100, 200];"), "{page}");
        assert!(page.contains("objects=50&whole="));
        let object = counted_script(7, OBJECT_BYTES);
        assert_eq!(object.len(), OBJECT_BYTES);
        assert!(object.ends_with(b"*/whole++;"));
    }

    #[test]
    fn accepts_whole_pages_and_refuses_others() {
        let line = |whole: &str| {
            format!(
                "10.77.0.2 - - [date] \"GET /done?objects=10&whole={whole}&ms=81.5 HTTP/1.1\" 200 0\n"
            )
        };
        assert_eq!(told(&line("10")), Ok(vec![(10, 81.5)]));
        // What is being written.
        assert_eq!(told(&(line("10") + "10.77.0.2 - - ")), Ok(vec![(10, 81.5)]));
        assert!(told(&line("9")).is_err());
        assert!(told("GET / HTTP/1.1\n").is_err());
    }

    #[test]
    fn a_browser_loads_each_page_as_often() {
        let lefts = 0..loads_of_browser() - 1;
        for page in 0..OBJECTS.len() {
            assert_eq!(lefts.clone().filter(|left| left % OBJECTS.len() == page).count(), LOADS);
        }
    }
}
