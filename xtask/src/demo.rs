//! Placeholder while it is being written.
#[derive(clap::Args)]
pub struct DemoArgs {}
pub fn run(_: &DemoArgs) -> Result<(), String> {
    Err("not written yet".to_owned())
}
