//! `xtask corpus`: what must hold of every session that `xtask interop` recorded, beyond being
//! decrypted.
//!
//! * [`disorder`]: any segmentation, order and repetition gives the same; a loss is told of.
//! * [`tamper`]: no changed byte is ever shown.
//! * [`tshark`]: an independent program finds the same plaintext.
//!
//! Captures that mmTLS does not follow from end to end are named by `interop` and left out here,
//! with a count. Refuses to pass on an empty corpus.

mod disorder;
mod recorder;
mod tamper;
mod trace;
mod tshark;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::progress::Progress;

use recorder::Recorder;
use tamper::Tampered;
use trace::Trace;

#[derive(clap::Args)]
pub struct CorpusArgs {
    /// What `xtask interop` left.
    #[arg(long, default_value = "out/interop/corpus.json", value_name = "FILE")]
    corpus: PathBuf,
    /// Networks that each connection is played over.
    #[arg(long, default_value_t = 3, value_name = "N")]
    networks: u64,
    /// Changed bytes over the whole corpus, at least.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    tampered: u64,
    /// Compare with tshark, too.
    #[arg(long)]
    tshark: bool,
    /// Seed of all choices.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Write the result to this file.
    #[arg(long, default_value = "out/corpus.json", value_name = "FILE")]
    json: PathBuf,
}

/// An entry of the manifest, as far as it matters here.
#[derive(Deserialize)]
struct Entry {
    id: String,
    capture: PathBuf,
    keylog: PathBuf,
    verdict: String,
    client_randoms: Vec<String>,
    sessions: Vec<Plaintext>,
}

/// Files with what the programs sent.
#[derive(Deserialize)]
struct Plaintext {
    client: PathBuf,
    server: PathBuf,
}

/// What was found.
#[derive(Default, Serialize)]
struct Results {
    captures: u64,
    left_out: u64,
    connections: u64,
    plaintext_bytes: u64,
    networks: u64,
    losses: u64,
    tampered: Tampered,
    tshark_connections: u64,
    /// Connections in which tshark finds other bytes than the programs sent; mmTLS does not.
    tshark_differs: BTreeMap<String, String>,
    failures: Vec<String>,
}

pub fn run(args: &CorpusArgs) -> Result<(), String> {
    let text = fs::read_to_string(&args.corpus)
        .map_err(|error| format!("{}: {error} (xtask interop makes it)", args.corpus.display()))?;
    let entries: Vec<Entry> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let followed: Vec<&Entry> = entries.iter().filter(|entry| entry.verdict == "ok").collect();
    if followed.is_empty() {
        return Err("the corpus is empty".to_owned());
    }
    let mut results = Results {
        captures: followed.len() as u64,
        left_out: (entries.len() - followed.len()) as u64,
        ..Results::default()
    };
    let each = args.tampered.div_ceil(followed.len() as u64);
    let mut progress = Progress::new("captures checked", followed.len());
    for (number, entry) in followed.iter().enumerate() {
        progress.step();
        let seed = args.seed.wrapping_mul(1 << 32).wrapping_add(number as u64 * 10_000);
        if let Err(error) = check(args, entry, seed, each, &mut results) {
            results.failures.push(format!("{}: {error}", entry.id));
        }
    }
    // What tshark cannot read is told one by one. Where it agrees on little, it was not asked right.
    let differing = results.tshark_differs.len() as u64;
    if args.tshark && differing * 10 > results.tshark_connections {
        results.failures.push("tshark differs in more than a tenth of the connections".to_owned());
    }
    results.print();
    results.write(&args.json)?;
    match results.failures.len() {
        0 => Ok(()),
        count => Err(format!("{count} captures of the corpus failed")),
    }
}

fn check(
    args: &CorpusArgs,
    entry: &Entry,
    seed: u64,
    tampered: u64,
    results: &mut Results,
) -> Result<(), String> {
    let keys =
        fs::read(&entry.keylog).map_err(|error| format!("{}: {error}", entry.keylog.display()))?;
    let mut traces = Trace::load(&entry.capture)?;
    // A browser opens connections that it does not use.
    traces.retain(|trace| entry.client_randoms.contains(&trace.client_random()));
    if traces.len() != entry.sessions.len() {
        return Err(format!("{} connections of {}", traces.len(), entry.sessions.len()));
    }
    let opinions = match args.tshark {
        true => Some(tshark::streams(&entry.capture, &entry.keylog, &traces)?),
        false => None,
    };
    for (number, (trace, sent)) in traces.iter().zip(&entry.sessions).enumerate() {
        let seed = seed + number as u64 * 1_000;
        let sent = [read(&sent.client)?, read(&sent.server)?];
        let whole = Recorder::watch(&keys, &trace.frames(&trace.pieces(), |_, _| {}));
        if whole.plaintext != sent {
            return Err(format!("connection {number}: not what the programs sent"));
        }
        results.connections += 1;
        results.plaintext_bytes += sent.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        for network in 0..args.networks {
            disorder::check(&keys, trace, &whole, seed + network)?;
            disorder::check_loss(&keys, trace, &whole, seed + network)?;
            results.networks += 1;
            results.losses += 1;
        }
        for case in 0..tampered.div_ceil(traces.len() as u64) {
            tamper::check(&keys, trace, &whole, seed + case, &mut results.tampered)?;
        }
        if let Some(opinions) = &opinions {
            results.tshark_connections += 1;
            if opinions[number] != sent {
                let lengths = |streams: &[Vec<u8>; 2]| streams.each_ref().map(Vec::len);
                let text =
                    format!("{:?} bytes of {:?}", lengths(&opinions[number]), lengths(&sent));
                results.tshark_differs.insert(format!("{} #{number}", entry.id), text);
            }
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

impl Results {
    fn print(&self) {
        println!(
            "corpus: {} captures, {} connections, {} bytes of plaintext; {} captures left out",
            self.captures, self.connections, self.plaintext_bytes, self.left_out
        );
        println!("the same over {} networks, and after {} losses", self.networks, self.losses);
        let t = &self.tampered;
        println!(
            "{} changed bytes, {} of them in records with keys: {} errors, {} sessions not \
             decrypted, {} where no keys reach; none was shown",
            t.cases, t.in_records, t.errors, t.not_decrypted, t.beyond_the_keys
        );
        if self.tshark_connections > 0 {
            println!(
                "tshark finds the same in {} of {} connections",
                self.tshark_connections - self.tshark_differs.len() as u64,
                self.tshark_connections
            );
            for (name, text) in &self.tshark_differs {
                println!("  {name}: {text}");
            }
        }
        for failure in &self.failures {
            println!("FAILED {failure}");
        }
    }

    fn write(&self, path: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        fs::write(path, text + "\n").map_err(failed)
    }
}
