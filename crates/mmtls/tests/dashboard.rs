//! `docs/grafana.json` and `docs/alerts.yml` over a live run: a real Prometheus scrapes it, answers every query of every panel,
//! and the panels are drawn as Grafana would lay them out, for people to look at (target/screenshots/dashboard-….png).
//!
//! Refuses to speak for Grafana, which is not run: what draws here is `dashboard.js`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mmtls_testkit::{Background, Mmtls, MmtlsOptions, NginxOptions, address, require_browser};
use serde_json::{Value, json};

use crate::common::{Family, LIMIT, Stage, can_run, patient, until, url};
use crate::web::{browse, pictures};

const PROMETHEUS: &str = "127.0.0.1:9090";
/// The one monitor by two names, so that there is more than one instance to choose from.
const INSTANCES: [&str; 2] = ["127.0.0.1:9600", "localhost:9600"];
/// Seconds between two scrapes: Grafana's "Scrape interval" of the data source.
const SCRAPE: u64 = 2;
/// How long there is traffic.
const RUN: Duration = Duration::from_secs(75);
/// Series beyond which nobody tells lines apart.
const MOST_SERIES: usize = 10;

/// Queries, by panel and legend, that may be 0 all the time in such a run, and why.
const QUIET: [(&str, &str, &str); 19] = [
    (
        "Received",
        "{{port}}, by the kernel",
        "veth pairs are no cards: off where nobody asks for it",
    ),
    ("Frames lost or not inspected", "{{port}}: not read in time", "a fault"),
    ("Frames lost or not inspected", "{{port}}: not sent", "a fault"),
    ("Frames lost or not inspected", "unfit", "a fault"),
    ("Frames lost or not inspected", "by the guard", "there is no guard"),
    ("Keys", "refused", "an attack, or a fault"),
    ("Keys", "expired", "an attack, or a fault"),
    ("Keys", "handshakes failed", "a fault"),
    ("Share of limits", "bytes", "kept for shorter than a scrape takes"),
    ("Share of limits", "held frames", "held for shorter than a scrape takes"),
    ("Frames held", "held frames", "held for shorter than a scrape takes"),
    ("Bytes kept by worker", "worker {{worker}}", "kept for shorter than a scrape takes"),
    ("Rules", "skipped", "a fault"),
    ("Rules", "failed reloads", "a fault"),
    ("Reports lost", "log", "a fault"),
    ("Reports lost", "outputs", "a fault"),
    ("Reports lost", "streams", "a fault"),
    ("Reports lost", "mirror", "a fault"),
    ("Reports lost", "capture", "a fault"),
];

const RULES: &str = r#"
alert http any any -> any any (msg:"alarm"; http.uri; content:"/alarm"; sid:1;)
drop http any any -> any any (msg:"forbidden"; http.uri; content:"/forbidden"; sid:2;)
"#;

fn docs(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).join(name)
}

fn dashboard() -> Value {
    serde_json::from_str(&std::fs::read_to_string(docs("grafana.json")).unwrap()).unwrap()
}

/// Every query: of which panel, and the query.
fn queries(dashboard: &Value) -> Vec<(&Value, &Value)> {
    let panels = dashboard["panels"].as_array().unwrap();
    let of = |panel: &'_ Value| panel["targets"].as_array().is_some();
    let with = panels.iter().filter(|panel| of(panel));
    with.flat_map(|panel| panel["targets"].as_array().unwrap().iter().map(move |it| (panel, it)))
        .collect()
}

/// By what its answer is found.
fn key((panel, query): (&Value, &Value)) -> String {
    format!("{}{}", panel["id"], query["refId"].as_str().unwrap())
}

/// A query with what Grafana puts in the place of its variables.
fn expand(query: &Value, instances: &[&str], range: u64) -> String {
    let quoted: Vec<_> = instances.iter().map(|it| it.replace('.', "\\\\.")).collect();
    let instance = match &quoted[..] {
        [one] => one.clone(),
        all => format!("({})", all.join("|")),
    };
    // The step is one scrape: the greater of two scrapes and four.
    let text = query["expr"].as_str().unwrap().replace("$instance", &instance);
    let text = text.replace("$__rate_interval", &format!("{}s", 4 * SCRAPE));
    let text = text.replace("$__range", &format!("{range}s"));
    assert!(!text.contains('$'), "a variable that is not known: {text}");
    text
}

/// What Prometheus answers.
#[track_caller]
fn ask(stage: &Stage, path: &str, parameters: &[(&str, &str)]) -> Value {
    let mut curl = stage.bed.middlebox.command("curl");
    curl.args(["-sS", "--max-time", "20", "-G", &format!("http://{PROMETHEUS}/api/v1/{path}")]);
    for (name, value) in parameters {
        curl.args(["--data-urlencode", &format!("{name}={value}")]);
    }
    let text = stage.run("ask", curl).text();
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}"));
    assert_eq!(answer["status"], "success", "{path} {parameters:?}: {answer}");
    answer["data"].clone()
}

/// Prometheus over the run, with our alerts.
fn prometheus(stage: &Stage) -> Background {
    let place = stage.bed.directory().join("prometheus");
    std::fs::create_dir(&place).unwrap();
    let config = json!({
        "global": {"scrape_interval": format!("{SCRAPE}s"), "evaluation_interval": format!("{SCRAPE}s")},
        "rule_files": [docs("alerts.yml").canonicalize().unwrap()],
        "scrape_configs": [{"job_name": "mmtls", "static_configs": [{"targets": INSTANCES}]}],
    });
    // JSON is YAML.
    std::fs::write(place.join("prometheus.yml"), config.to_string()).unwrap();
    let mut command = stage.bed.middlebox.command("prometheus");
    command.arg(format!("--config.file={}", place.join("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", place.join("data").display()));
    command.arg(format!("--web.listen-address={PROMETHEUS}"));
    let mut process = stage.bed.background("prometheus", command).unwrap();
    process.wait_for_listen(9090, LIMIT).unwrap();
    process
}

/// Requests of each kind, round after round, and in the middle an agent that comes and goes.
fn traffic(stage: &Stage, mmtls: &Mmtls, goes_on: impl Fn() -> bool) -> usize {
    let sharing = |name: &str, exempt: &[&str]| {
        let mut curl = stage.sharing_curl(mmtls, Family::V4, exempt);
        curl.args(["-o", "/dev/null"]).arg(url(name));
        stage.run(name, curl).status.success()
    };
    let mut rounds = 0;
    while goes_on() {
        assert!(sharing("small", &[]) && sharing("large", &[]) && sharing("alarm", &[]));
        assert!(!sharing("forbidden", &[]), "a rule drops it");
        assert!(sharing("coded", &[]) && sharing("small", &[address::SERVER_NAME]));
        // Those without keys are not many, and wait for them.
        if rounds % 3 == 0 {
            let mut keyless = stage.plain_curl(Family::V4);
            keyless.arg(url("small"));
            assert!(!stage.run("keyless", keyless).status.success(), "no keys, no session");
        }
        rounds += 1;
    }
    rounds
}

/// What each query gives over the time, as Prometheus tells it, by panel and query.
fn answers(stage: &Stage, dashboard: &Value, instances: &[&str], from: u64, to: u64) -> Value {
    let mut all = json!({});
    let (start, end, step) = (from.to_string(), to.to_string(), SCRAPE.to_string());
    for (panel, query) in queries(dashboard) {
        let text = expand(query, instances, to - from);
        let data = if query["instant"] == true {
            ask(stage, "query", &[("query", &text), ("time", &end)])
        } else {
            let time = [("query", &*text), ("start", &start), ("end", &end), ("step", &step)];
            ask(stage, "query_range", &time)
        };
        all[key((panel, query))] = data["result"].clone();
    }
    all
}

/// The page with all that it needs.
fn page(dashboard: &Value, answers: &Value, from: u64, to: u64) -> String {
    let data = json!({"dashboard": dashboard, "answers": answers, "from": from, "to": to});
    // Text of a script must not end it.
    let data = data.to_string().replace("</", "<\\/");
    let css = include_str!("../src/web/assets/uplot.css");
    let uplot = include_str!("../src/web/assets/uplot.js");
    let draw = include_str!("dashboard.js");
    format!(
        "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'><title>dashboard</title>\
         <style>{css}</style><body><script>{uplot}</script><script>const DATA = {data};\n{draw}</script>"
    )
}

/// Whether some sample is a number other than 0.
fn has_data(series: &[Value]) -> bool {
    let is = |sample: &Value| {
        sample[1]
            .as_str()
            .is_some_and(|it| it.parse::<f64>().is_ok_and(|it| it.is_finite() && it != 0.0))
    };
    series.iter().any(|it| {
        is(&it["value"]) || it["values"].as_array().is_some_and(|values| values.iter().any(is))
    })
}

#[test]
#[ignore = "takes two minutes, and draws for people to look at"]
fn dashboard_shows_a_run() {
    if !can_run(&["nginx", "curl", "python3", "prometheus"]) || !require_browser("chromium") {
        return;
    }
    let extra = "location /coded { add_header Content-Encoding unheard-of; }".to_owned();
    let stage = Stage::with(NginxOptions { extra, ..NginxOptions::default() });
    for name in ["small", "alarm", "forbidden", "coded"] {
        stage.serve(name, &[b'x'; 1000]);
    }
    stage.serve("large", &vec![b'x'; 8 << 20]);
    let rules = stage.bed.directory().join("dashboard.rules");
    std::fs::write(&rules, RULES).unwrap();
    let mut options: MmtlsOptions = patient();
    let more = ["--metrics", INSTANCES[0], "--workers", "2", "-S", rules.to_str().unwrap()];
    options.arguments = more.map(str::to_owned).to_vec();
    // Patient with keys, and not so patient that those without them fill the run.
    let config = "[limits]\nstall_timeout_milliseconds = 5000\n\
                  unshared_stall_timeout_milliseconds = 2000\n";
    options.config = Some(config.to_owned());
    let mmtls = stage.mmtls(&options);
    let prometheus = prometheus(&stage);
    until("both are scraped", || {
        ask(&stage, "query", &[("query", "sum(up)")])["result"][0]["value"][1] == "2"
    });
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let from = now();
    let over = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| traffic(&stage, &mmtls, || !over.load(Ordering::Relaxed)));
        std::thread::sleep(RUN / 3);
        let directory = stage.bed.directory().join("agent");
        let agent = mmtls.agent(&stage.bed, false, &directory, None);
        std::thread::sleep(RUN / 3);
        drop(agent);
        std::thread::sleep(RUN / 3);
        over.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    });
    let asked = 6 * rounds + rounds.div_ceil(3);
    let begun = format!("min(mmtls_monitor_tls_sessions_total) >= {asked}");
    until("the last session is scraped", || {
        !ask(&stage, "query", &[("query", &begun)])["result"].as_array().unwrap().is_empty()
    });
    let to = now();

    let dashboard = dashboard();
    let known = ask(&stage, "label/instance/values", &[("match[]", "mmtls_build_info")]);
    assert_eq!(known, json!(INSTANCES), "what the variable `instance` offers");
    let one = answers(&stage, &dashboard, &INSTANCES[..1], from, to);
    let all = answers(&stage, &dashboard, &INSTANCES, from, to);
    look_at(&stage, &dashboard, [&one, &all], from, to);

    // Each query has something to show, or is expected to have nothing.
    let (mut unexpected, mut widths) = (Vec::new(), BTreeMap::<&str, usize>::new());
    for (panel, query) in queries(&dashboard) {
        let [title, legend] =
            [&panel["title"], &query["legendFormat"]].map(|it| it.as_str().unwrap());
        let series = one[key((panel, query))].as_array().unwrap();
        let is_quiet = QUIET.iter().any(|(at, of, _)| (*at, *of) == (title, legend));
        println!("{title} | {legend} | {} series | {}", series.len(), has_data(series));
        if series.is_empty() || !(has_data(series) || is_quiet) {
            unexpected.push(format!("{title}: {legend}: {} series", series.len()));
        }
        if panel["type"] == "timeseries" {
            *widths.entry(title).or_default() += all[key((panel, query))].as_array().unwrap().len();
        }
    }
    for (title, legend, _) in QUIET {
        let is = |(panel, query): &(&Value, &Value)| {
            (&panel["title"], &query["legendFormat"]) == (&title.into(), &legend.into())
        };
        assert!(queries(&dashboard).iter().any(is), "{title}: {legend}");
    }
    assert!(unexpected.is_empty(), "nothing to show: {unexpected:#?}");
    assert!(widths.values().all(|series| *series <= MOST_SERIES), "{widths:#?}");
    // Alerts are read without a fault, and a run that is well raises none but what is meant to be seen in it.
    let groups = ask(&stage, "rules", &[]);
    let rules = groups["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 10 && rules.iter().all(|it| it["health"] == "ok"), "{groups:#}");
    let firing: Vec<_> = rules.iter().filter(|it| it["state"] == "firing").collect();
    assert!(firing.is_empty(), "{firing:#?}");

    drop(prometheus);
    let report = mmtls.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
}

/// Draws both in a wide window, and the first one in a narrow one.
fn look_at(stage: &Stage, dashboard: &Value, answers: [&Value; 2], from: u64, to: u64) {
    let file = |name: &str| pictures().join(name).display().to_string();
    let [one, all] = ["dashboard.html", "dashboard-all.html"].map(file);
    std::fs::write(&one, page(dashboard, answers[0], from, to)).unwrap();
    std::fs::write(&all, page(dashboard, answers[1], from, to)).unwrap();
    let mut steps = Vec::new();
    for (page, width, name) in [(&one, 1600, "wide"), (&one, 480, "narrow"), (&all, 1600, "all")] {
        steps.push(json!({"view": [width, 900, "dark"]}));
        steps.push(json!({"open": format!("file://{page}")}));
        steps.push(json!({"wait": format!("window.drawn === {width}")}));
        steps.push(json!({"eval": "clipped()"}));
        steps.push(json!({"shot": file(&format!("dashboard-{name}.png"))}));
    }
    let told = browse(stage, &json!(steps));
    assert_eq!(told["faults"], json!([]));
    assert_eq!(told["values"], json!([[], [], []]), "titles, values and legends that do not fit");
}

/// Prometheus' own reader takes the alerts, and the dashboard's queries as if they were rules.
#[test]
fn prometheus_reads_alerts_and_queries() {
    if !can_run(&["promtool"]) {
        return;
    }
    let dashboard = dashboard();
    let rules: Vec<_> = queries(&dashboard)
        .iter()
        .enumerate()
        // Promtool does not take two of a name.
        .map(|(at, (_, query))| json!({"record": format!("query{at}"), "expr": expand(query, &INSTANCES, 60)}))
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    let rules = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    file.as_file().write_all(rules.to_string().as_bytes()).unwrap();
    promtool(&["check", "rules", file.path().to_str().unwrap()]);
    promtool(&["check", "rules", docs("alerts.yml").to_str().unwrap()]);
}

/// Of an instance that has everything, of one that is well, and of one to which something happened once.
#[test]
fn alerts_fire_for_what_they_name_and_for_nothing_else() {
    if !can_run(&["promtool"]) {
        return;
    }
    let tests = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/alerts.yml"));
    promtool(&["test", "rules", tests.to_str().unwrap()]);
    let names = |text: String, before: &str| -> BTreeSet<String> {
        let words =
            text.split(before).skip(1).map(|it| it.split(|c: char| !c.is_alphanumeric()).next());
        words.map(|it| it.unwrap().to_owned()).collect()
    };
    let alerts = names(std::fs::read_to_string(docs("alerts.yml")).unwrap(), "alert: ");
    let tested = names(std::fs::read_to_string(tests).unwrap(), "alertname=\"");
    assert!(!alerts.is_empty());
    assert_eq!(alerts, tested);
}

#[track_caller]
fn promtool(arguments: &[&str]) {
    let mut command = std::process::Command::new("promtool");
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    let [told, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{arguments:?}: {told}{errors}");
}
