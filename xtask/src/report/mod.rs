//! `xtask report`: a page with plots of result files, each beside what the paper states; and what README.md
//! and bench/figures.md take of one. The page is one file that needs nothing else and runs nothing.
//!
//! Refuses to type a number: those on the page and in the documents are computed of the files.

mod catalogue;
mod documents;
mod page;
mod plot;
mod show;
mod value;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use crate::results::Results;
use catalogue::Texts;

pub use documents::check as check_documents;

/// Where `figures.json` and `paper.json` are: benchmarks run where the repository is.
const TEXTS: &str = "bench";

#[derive(clap::Args)]
pub struct ReportArgs {
    /// Files of results; of a figure that several have, that of the last one counts.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where the page goes.
    #[arg(short, long, default_value = "out/report.html", value_name = "PATH")]
    output: PathBuf,
    /// Write the table of README.md and the figures of bench/figures.md, of committed files, instead of a page.
    #[arg(long)]
    documents: bool,
}

pub fn run(args: &ReportArgs) -> Result<(), String> {
    if args.documents {
        let texts = Texts::read(Path::new(TEXTS))?;
        return documents::write(Path::new("."), &args.files, &texts);
    }
    page(&args.files, &args.output)
}

/// Makes a page of result files.
pub fn page(paths: &[PathBuf], output: &Path) -> Result<(), String> {
    let texts = Texts::read(Path::new(TEXTS))?;
    let mut files = Vec::new();
    for path in paths {
        files.push((path.display().to_string(), Results::read(path)?));
    }
    let page = page::html(&files, &texts)?;
    let failed = |error: std::io::Error| format!("{}: {error}", output.display());
    if let Some(directory) = output.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    fs::write(output, page).map_err(failed)?;
    println!("page: {}", output.display());
    Ok(())
}

/// Where result files and texts are, for tests.
#[cfg(test)]
fn bench_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench")
}
