//! Replays the committed seeds, and inputs that once found something, through every target.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use mmtls_fuzz::{TARGETS, seeds};

fn files(under: &str) -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(under);
    let mut files = Vec::new();
    for (target, _) in TARGETS {
        let Ok(entries) = fs::read_dir(root.join(target)) else {
            continue;
        };
        files.extend(entries.map(|entry| (target.to_owned(), entry.unwrap().path())));
    }
    files.sort();
    files
}

fn replay(target: &str, path: &Path) -> Result<(), String> {
    let bytes = fs::read(path).unwrap();
    let (_, body) = TARGETS.into_iter().find(|(name, _)| *name == target).unwrap();
    catch_unwind(AssertUnwindSafe(|| body(&bytes))).map_err(|_| path.display().to_string())
}

#[test]
fn accepts_every_seed_and_regression() {
    let files = [files("seeds"), files("regressions")].concat();
    let failed: Vec<String> =
        files.iter().filter_map(|(target, path)| replay(target, path).err()).collect();
    assert!(failed.is_empty(), "failed: {failed:#?}");
    assert!(files.len() > 100, "the seeds are missing");
}

#[test]
fn accepts_nothing_and_single_bytes() {
    for (_, body) in TARGETS {
        body(&[]);
        for byte in 0..=255 {
            body(&[byte]);
        }
    }
}

#[test]
fn accepts_seeds_with_a_byte_changed_or_missing() {
    // A deterministic shadow of fuzzing, for machines without a C++ compiler.
    let (even, odd) =
        files("seeds").into_iter().enumerate().partition::<Vec<_>, _>(|it| it.0 % 2 == 0);
    std::thread::scope(|scope| {
        for half in [even, odd] {
            scope.spawn(|| half.into_iter().for_each(|(_, (target, path))| change(&target, &path)));
        }
    });
}

fn change(target: &str, path: &Path) {
    let bytes = fs::read(path).unwrap();
    let (_, body) = TARGETS.into_iter().find(|(name, _)| *name == target).unwrap();
    let step = (bytes.len() / 12).max(1);
    for at in (0..bytes.len()).step_by(step) {
        for change in [1u8, 0x10, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            body(&changed);
        }
        body(&bytes[..at]);
        body(&[&bytes[..at], &bytes[at + 1..]].concat());
    }
}

#[test]
fn accepts_committed_seeds_that_are_the_generated_ones() {
    let generated: BTreeSet<(String, String)> =
        seeds::all().iter().map(|it| (it.target.to_owned(), it.name.clone())).collect();
    let committed: BTreeSet<(String, String)> = files("seeds")
        .into_iter()
        .map(|(target, path)| (target, path.file_name().unwrap().to_str().unwrap().to_owned()))
        .collect();
    assert_eq!(generated, committed, "run `cargo run --bin seeds`");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let mut total = 0;
    for seed in seeds::all() {
        let bytes = fs::read(root.join(seed.target).join(&seed.name)).unwrap();
        assert!(bytes == seed.bytes, "{}/{}: run `cargo run --bin seeds`", seed.target, seed.name);
        total += bytes.len();
    }
    assert!(total < 200_000, "{total} bytes of seeds");
}
