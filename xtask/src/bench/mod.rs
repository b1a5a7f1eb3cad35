//! Placeholder while it is being written.
#[derive(clap::Args)]
pub struct BenchArgs {}
pub fn run(_: &BenchArgs) -> Result<(), String> {
    Err("not written yet".to_owned())
}
