//! Writes the committed seeds to `seeds/` beside this package's manifest, and removes others.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let seeds = mmtls_fuzz::seeds::all();
    let mut bytes = 0;
    for seed in &seeds {
        let directory = root.join(seed.target);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(&seed.name), &seed.bytes)?;
        bytes += seed.bytes.len();
    }
    println!("{} seeds, {bytes} bytes", seeds.len());
    Ok(())
}
