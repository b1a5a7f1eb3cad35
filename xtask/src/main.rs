//! Development tasks of mmTLS.
#![forbid(unsafe_code)]

mod bench;
mod corpus;
mod demo;
mod evade;
mod fuzz;
mod impair;
mod interop;
mod man;
mod netns;
mod progress;
mod report;
mod results;
mod soak;
mod suricata_verify;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Development tasks of mmTLS")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check what house style makes mechanical: unsafe code, test programs, file sizes.
    Tree,
    /// Run every fuzz target for a while, on the committed seeds and beyond.
    Fuzz(fuzz::FuzzArgs),
    /// Measure, print tables, write a file of results.
    Bench(bench::BenchArgs),
    /// Make a page with plots of files of results, or the performance table of README.md.
    Report(report::ReportArgs),
    /// Count the instructions of fixed work, and compare with the committed baseline.
    Instructions(bench::instructions::InstructionsArgs),
    /// Check that every recorded session survives disorder, loss and changes, and compare with tshark.
    Corpus(corpus::CorpusArgs),
    /// Let real TLS stacks talk to each other, and check that mmTLS follows.
    Interop(interop::InteropArgs),
    /// Attack the inspection, live: every attack that works without mmTLS must fail with it.
    Evade(evade::EvadeArgs),
    /// Run for an hour at load, over bad links, with reloads and kills, and look for what was cut or leaks.
    Soak(soak::SoakArgs),
    /// Run the tests of Suricata's own verification suite that are about what is inspected here.
    SuricataVerify(suricata_verify::VerifyArgs),
    /// Write man pages and shell completion of `mmtls` into a directory.
    Man(man::ManArgs),
    /// Show the whole thing on real traffic.
    Demo(demo::DemoArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Tree => tree::run(),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Report(args) => report::run(&args),
        Task::Instructions(args) => bench::instructions::run(&args),
        Task::Corpus(args) => corpus::run(&args),
        Task::Interop(args) => interop::run(&args),
        Task::Evade(args) => evade::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::SuricataVerify(args) => suricata_verify::run(&args),
        Task::Man(args) => man::run(&args),
        Task::Demo(args) => demo::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Directory of the binaries that were built together with this one.
fn binaries() -> Result<PathBuf, String> {
    let me = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    me.parent().map(PathBuf::from).ok_or_else(|| "own path has no directory".to_owned())
}
