//! Part (b): the same downloads over persistent connections through several middles: the kernel's bridge
//! (end to end, nothing added), mmTLS (keys shared by `mmtls exec`, every record opened, HTTP
//! followed, logs on), the same as a passive monitor beside the kernel's bridge, mmTLS with a bypassed server, which is
//! the kernel's to forward and then not, mmTLS that reads the first 64 KB of an object, and whose rest is the kernel's to forward and then not, a program that only forwards, and nginx, HAProxy, Squid and mitmproxy as split-TLS proxies; in rotating order, with processors of their own as far as there are enough
//! ([`super::places`]). Then bridge, mmTLS and nginx with TLS 1.2 and AES-256-CBC. [`super::lane`] has what is refused.

use mmtls_testkit::{MmtlsOptions, ProxyKind, address};
use serde::Serialize;

use super::h2load::{Http, Object};
use super::lane::{Load, Middlebox, Tls};
use super::lanes::{BRIDGE_NAME, Lanes, Variant, ratio};
use super::monitor::Monitored;
use super::report::{Samples, table};
use super::variants;
use crate::results::{Axis, Contender, Figure, Scale, Skipped};

const BRIDGE: usize = 0;
const MMTLS: usize = 1;
const SPLIT: usize = 2;
const PASSIVE: usize = 3;
const UNREAD: usize = 4;
const UNREAD_IN_USER_SPACE: usize = 5;
const LIMITED: usize = 6;
const LIMITED_IN_USER_SPACE: usize = 7;

/// Bytes of an object that two of the monitors read.
const LIMIT: u64 = 64 << 10;

/// Served files.
const OBJECTS: [Object; 5] = [
    Object { name: "1k", bytes: 1 << 10, http: Http::One },
    Object { name: "16k", bytes: 16 << 10, http: Http::One },
    Object { name: "64k", bytes: 64 << 10, http: Http::One },
    Object { name: "1m", bytes: 1 << 20, http: Http::One },
    Object { name: "4m", bytes: 4 << 20, http: Http::One },
];

/// What is served with TLS 1.2 and AES-256-CBC.
const CBC_OBJECTS: [Object; 2] = [OBJECTS[2], OBJECTS[3]];

/// Split-TLS proxies besides nginx, where they are installed.
const PROXIES: [(&str, ProxyKind); 3] = [
    ("HAProxy split TLS", ProxyKind::Haproxy),
    ("Squid split TLS (ssl-bump)", ProxyKind::Squid),
    ("mitmproxy", ProxyKind::Mitmproxy),
];

/// What the comparison is about.
#[derive(Debug, Serialize)]
struct Headline {
    object_bytes: u64,
    /// (split − bridge) / (mmTLS − bridge) of the medians of machine CPU per byte.
    ratio: f64,
    /// The same of each repetition.
    per_repetition: Samples,
    /// Of the passive monitor.
    passive_ratio: f64,
    /// The same of each repetition.
    passive_per_repetition: Samples,
    /// As `ratio`, of the processes' CPU: to be compared with, when the machine was not idle.
    processes_ratio: f64,
}

/// Part (b).
#[derive(Debug, Serialize)]
pub struct LiveResults {
    suite: &'static str,
    connections: u32,
    receive_steering: bool,
    /// Whether every leg used CUBIC.
    cubic: bool,
    /// Whether server, client and middlebox had places, or ran where the scheduler put them.
    placed: bool,
    variants: Vec<Variant>,
    headlines: Vec<Headline>,
    mmtls: Monitored,
    passive: Monitored,
    unread: Monitored,
    unread_in_user_space: Monitored,
    limited: Monitored,
    limited_in_user_space: Monitored,
    cbc: Vec<Variant>,
    cbc_mmtls: Monitored,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
    #[serde(skip)]
    note: String,
    #[serde(skip)]
    cbc_note: String,
    #[serde(skip)]
    skipped: Vec<Skipped>,
}

/// Measures everything `repetitions` times.
pub fn measure(repetitions: u32, load: Load) -> Result<LiveResults, String> {
    let monitor = MmtlsOptions::new(crate::binaries()?);
    let passive = MmtlsOptions { passive: Some("left:right".to_owned()), ..monitor.clone() };
    let unread = |more: &str| {
        let config = format!("{more}[policies]\nbypass = [\"{}:443\"]\n", address::SERVER_V4);
        let options = MmtlsOptions { config: Some(config), ..monitor.clone() };
        Middlebox::Unread(Box::new(options))
    };
    let alone = unread("[inline]\nkernel_forwarding = \"always\"\n");
    let in_user_space = unread("[inline]\nkernel_forwarding = \"never\"\n");
    let limited = |forwarding: &str| {
        // nginx pads nothing.
        let config = format!(
            "[inspect]\nlimit_bytes = {LIMIT}\nlimit_trusts_padding = true\n\
             [inline]\nkernel_forwarding = {forwarding:?}\n"
        );
        let options = MmtlsOptions { config: Some(config), ..monitor.clone() };
        Middlebox::Monitor(Box::new(options))
    };
    let mut middles = vec![
        (BRIDGE_NAME, Middlebox::Bridge),
        ("mmTLS", Middlebox::Monitor(Box::new(monitor.clone()))),
        ("nginx split TLS", Middlebox::Split),
        ("mmTLS passive", Middlebox::Monitor(Box::new(passive))),
        ("mmTLS, a bypassed server", alone),
        ("the same in user space", in_user_space),
        ("mmTLS, 64 KB, kernel", limited("always")),
        ("mmTLS, first 64 KB", limited("never")),
        ("forwarding alone", Middlebox::Forward),
    ];
    let mut skipped = Vec::new();
    for (name, kind) in PROXIES {
        match kind.missing() {
            None => middles.push((name, Middlebox::Proxy(kind))),
            Some(missing) => {
                let why = format!("{missing} is not installed (scripts/setup bench)");
                println!("SKIP: {name}: {why}");
                skipped.push(Skipped { what: name.to_owned(), why });
            }
        }
    }
    let mut lanes = Lanes::start(middles, &OBJECTS, load)?;
    let (mut contenders, note) = (lanes.contenders(), lanes.note());
    let (mut variants, mut headlines) = (Vec::new(), Vec::new());
    for object in OBJECTS {
        // Where everything is within the limit, those that have one do what the others do.
        let is_wanted =
            |&at: &usize| object.bytes > LIMIT || !(LIMITED..=LIMITED_IN_USER_SPACE).contains(&at);
        let wanted: Vec<usize> = (0..lanes.lanes.len()).filter(is_wanted).collect();
        let measured = lanes.measure(repetitions, object, &wanted)?;
        headlines.push(headline(&measured));
        variants.extend(measured);
    }
    let mmtls = lanes.lanes[MMTLS].stop_monitor()?;
    let passive = lanes.lanes[PASSIVE].stop_monitor()?;
    let unread = lanes.lanes[UNREAD].stop_monitor()?;
    let unread_in_user_space = lanes.lanes[UNREAD_IN_USER_SPACE].stop_monitor()?;
    let limited = lanes.lanes[LIMITED].stop_monitor()?;
    let limited_in_user_space = lanes.lanes[LIMITED_IN_USER_SPACE].stop_monitor()?;
    let (receive_steering, cubic, placed) = (lanes.steering(), lanes.cubic(), lanes.placed());
    // Servers and proxies of one suite go before those of the next come.
    drop(lanes);
    let middles = vec![
        (BRIDGE_NAME, Middlebox::Bridge),
        ("mmTLS", Middlebox::Monitor(Box::new(monitor))),
        ("nginx split TLS", Middlebox::Split),
    ];
    let mut lanes = Lanes::start(middles, &CBC_OBJECTS, Load { tls: Tls::Cbc, ..load })?;
    let mut cbc = Vec::new();
    for object in CBC_OBJECTS {
        cbc.extend(lanes.measure(repetitions, object, &[BRIDGE, MMTLS, SPLIT])?);
    }
    let named = |it: Contender| Contender { name: format!("{}, TLS 1.2 CBC", it.name), ..it };
    contenders.extend(lanes.contenders().into_iter().map(named));
    let cbc_note = lanes.note();
    let cbc_mmtls = lanes.lanes[MMTLS].stop_monitor()?;
    Ok(LiveResults {
        suite: load.tls.suite(),
        connections: load.connections,
        receive_steering,
        cubic,
        placed,
        variants,
        headlines,
        mmtls,
        passive,
        unread,
        unread_in_user_space,
        limited,
        limited_in_user_space,
        cbc,
        cbc_mmtls,
        contenders,
        note,
        cbc_note,
        skipped,
    })
}

fn headline(variants: &[Variant]) -> Headline {
    let cpu = |variant: usize| &variants[variant].machine_cpu_s_per_gb;
    let each = |variant: usize| {
        let of = |it: usize, at: usize| cpu(it).samples[at];
        let all = 0..cpu(BRIDGE).samples.len();
        Samples::new(all.map(|at| ratio(of(BRIDGE, at), of(variant, at), of(SPLIT, at))).collect())
    };
    let median = |variant: usize| ratio(cpu(BRIDGE).median, cpu(variant).median, cpu(SPLIT).median);
    let processes = |variant: usize| variants[variant].processes_cpu_s_per_gb.median;
    Headline {
        processes_ratio: ratio(processes(BRIDGE), processes(MMTLS), processes(SPLIT)),
        object_bytes: variants[BRIDGE].object_bytes,
        ratio: median(MMTLS),
        per_repetition: each(MMTLS),
        passive_ratio: median(PASSIVE),
        passive_per_repetition: each(PASSIVE),
    }
}

/// A line of the table for each; every object has a bridge.
fn rows<'a>(variants: &'a [Variant], tls: &'a str) -> impl Iterator<Item = Vec<String>> + 'a {
    variants.iter().map(move |it| {
        let machine = &it.machine_cpu_s_per_gb;
        let bridge = variants.iter().find(|other| other.object_bytes == it.object_bytes);
        let bridge = bridge.map_or(machine.median, |it| it.machine_cpu_s_per_gb.median);
        vec![
            format!("{} KB{tls}, {}", it.object_bytes >> 10, it.variant),
            format!("{:.1}", it.gbit_per_s.median),
            format!("{:.3}", machine.median),
            format!("{:.3}–{:.3}", machine.min, machine.max),
            format!("{:.3}", machine.median - bridge),
            format!("{:.3}", it.processes_cpu_s_per_gb.median),
            format!("{:.3}", it.middle_cpu_s_per_gb.median),
        ]
    })
}

impl LiveResults {
    /// Figure 10.
    pub fn figures(&self) -> Vec<Figure> {
        let x = |it: &Variant| it.object_bytes.into();
        let axis = Axis::log("object", "B");
        let what = "Downloads over persistent connections";
        let mut figures = variants::figures("10", what, &axis, &self.variants, x);
        // From objects of 1 KB to large ones, and from a bridge to mitmproxy, are powers of ten.
        figures.iter_mut().for_each(|figure| figure.y.scale = Scale::Log);
        let monitors = [
            ("mmTLS", &self.mmtls),
            ("mmTLS passive", &self.passive),
            ("mmTLS, a bypassed server", &self.unread),
            ("the same in user space", &self.unread_in_user_space),
            ("mmTLS, 64 KB, kernel", &self.limited),
            ("mmTLS, first 64 KB", &self.limited_in_user_space),
        ];
        if let Some(first) = figures.first_mut() {
            first.notes.push(format!("HTTP/1.1, {}", self.note));
            first.skipped.extend(self.skipped.iter().cloned());
            first.notes.extend(monitors.map(|(name, it)| it.line(name)));
        }
        let what = "Downloads with TLS 1.2 and AES-256-CBC";
        let cbc = variants::figures("10", what, &axis, &self.cbc, x).into_iter().next();
        figures.extend(cbc.map(|cbc| {
            Figure { panel: "cbc".to_owned(), ..cbc }
                .note(format!("HTTP/1.1, {}", self.cbc_note))
                .note(self.cbc_mmtls.line("mmTLS"))
        }));
        figures
    }

    /// Prints the tables.
    pub fn print(&self) {
        let rows: Vec<_> =
            rows(&self.variants, "").chain(rows(&self.cbc, ", TLS 1.2 CBC")).collect();
        table(
            &format!(
                "(b) h2load HTTP/1.1, {} persistent connections, {} but where another is named, {}; CPU-s/GB, medians",
                self.connections,
                self.suite,
                if self.placed { "everybody placed" } else { "nobody placed" }
            ),
            &["object, middle", "Gbit/s", "machine", "range", "added", "processes", "box alone"],
            &rows,
        );
        let rows: Vec<Vec<String>> = self
            .headlines
            .iter()
            .map(|it| {
                let (each, passive) = (&it.per_repetition, &it.passive_per_repetition);
                vec![
                    format!("{} KB", it.object_bytes >> 10),
                    format!("{:.1}", it.ratio),
                    format!("{:.1}–{:.1}", each.min, each.max),
                    format!("{:.1}", it.processes_ratio),
                    format!("{:.1}", it.passive_ratio),
                    format!("{:.1}–{:.1}", passive.min, passive.max),
                ]
            })
            .collect();
        let title = "(b) added machine CPU: (split − bridge) / (mmTLS − bridge)";
        let columns = ["object", "ratio", "range", "of processes", "passive", "range"];
        table(title, &columns, &rows);
        self.mmtls.print("mmTLS");
        self.passive.print("mmTLS passive");
        self.unread.print("mmTLS, a bypassed server");
        self.unread_in_user_space.print("the same in user space");
        self.limited.print("mmTLS, 64 KB, kernel");
        self.limited_in_user_space.print("mmTLS, first 64 KB");
        self.cbc_mmtls.print("mmTLS, TLS 1.2 CBC");
    }
}
