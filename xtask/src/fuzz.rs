//! Placeholder while it is being written.
#[derive(clap::Args)]
pub struct FuzzArgs {}
pub fn run(_: &FuzzArgs) -> Result<(), String> {
    Err("not written yet".to_owned())
}
