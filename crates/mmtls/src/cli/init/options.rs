//! The answers that options give.
//!
//! Refuses nothing; questions check what is answered.

use std::path::PathBuf;

use clap::Args;
use mmtls_middlebox::Error;

/// Where the package's service looks.
pub(super) const DIRECTORY: &str = "/etc/mmtls";

#[derive(Args)]
pub struct InitArgs {
    /// Directory for mmtls.toml and keys/; it is made where there is none.
    #[arg(default_value = DIRECTORY)]
    pub(super) directory: PathBuf,
    /// The two interfaces to bridge.
    #[arg(long, value_name = "IF1:IF2")]
    pub(super) inline: Option<String>,
    /// Where endpoints share their keys.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(super) keys_listen: Option<String>,
    /// Name or address of this middlebox, as its certificate will say.
    #[arg(long, value_name = "NAME")]
    pub(super) middlebox: Option<String>,
    /// What to do with sessions whose keys do not come in time: forward or reset.
    #[arg(long, value_name = "POLICY")]
    pub(super) missing_keys: Option<String>,
    /// Directory of eve.json, or `none`.
    #[arg(short, long, value_name = "DIR")]
    pub(super) log_dir: Option<String>,
    /// The socket of `mmtls ctl`, or `none`.
    #[arg(long, value_name = "PATH")]
    pub(super) control: Option<String>,
    /// The user that will run it, whose group may read the files, or `none`.
    #[arg(long, value_name = "NAME")]
    pub(super) user: Option<String>,
    /// Ask nothing: take the defaults of what is not given.
    #[arg(short, long)]
    pub(super) yes: bool,
    /// Replace a configuration that is there.
    #[arg(long)]
    pub(super) force: bool,
}

pub(super) fn wrong(what: &dyn std::fmt::Display) -> Error {
    Error::Usage(format!("init: {what}"))
}
