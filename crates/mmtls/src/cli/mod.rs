//! The command line: what each command takes, and what it prints.
//!
//! Refuses contradictions with one clear line and a non-zero exit status.

mod pki;
mod read;
mod report;
mod rules;
mod run;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand};
use mmtls_agent::{AgentOptions, Channel, ExecOptions};
use mmtls_inspect::detect::Search;
use mmtls_middlebox::Error;

/// What `--version` says: also by what patterns of rules are searched for.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!("{}\npatterns of rules: {}", env!("CARGO_PKG_VERSION"), Search::default())
});

/// The process that `mmtls exec` leaves behind.
const GUARD: &str = "exec-guard";

/// Read-only inline TLS monitor: forwards packets, never terminates TLS.
#[derive(Parser)]
#[command(version, long_version = VERSION.as_str(), arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bridge two interfaces and monitor the TLS sessions that cross them.
    Run(run::RunArgs),
    /// Read a capture file (pcap or pcapng, also gzipped).
    Read(read::ReadArgs),
    /// Look at rules in Suricata's language.
    Rules(rules::RulesArgs),
    /// Make certificates for the key channel: an authority's, the middlebox's and endpoints'.
    Pki(pki::PkiArgs),
    /// Run a program that uses OpenSSL, or writes a key log (SSLKEYLOGFILE), and share the keys of its TLS sessions.
    Exec(ExecArgs),
    /// Stay when a program outlives `mmtls exec`.
    #[command(hide = true, name = GUARD)]
    Guard { agent: i32, directory: PathBuf },
    /// Share the keys of programs that write a key log (SSLKEYLOGFILE): browsers, Node.js, curl, Python.
    Agent(AgentArgs),
}

/// The way to the middleboxes.
#[derive(Args)]
struct ChannelArgs {
    /// Send keys to this middlebox (repeatable); NAME is what its certificate must say.
    #[arg(long, value_name = "[NAME@]HOST:PORT", required = true)]
    middlebox: Vec<String>,
    /// PEM file of the authorities that may certify the middlebox.
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// Certificate to show to the middlebox, if it asks.
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

#[derive(Args)]
struct AgentArgs {
    #[command(flatten)]
    channel: ChannelArgs,
    /// File or FIFO that programs write their secrets to (repeatable). Where nothing is, a FIFO is made and removed at the end.
    #[arg(long, value_name = "PATH", required = true)]
    keylog: Vec<PathBuf>,
    /// Share handshake keys, too: the middlebox then sees certificates and the whole handshake.
    #[arg(long)]
    share_handshake: bool,
}

#[derive(Args)]
struct ExecArgs {
    #[command(flatten)]
    channel: ChannelArgs,
    /// Keep sessions with this server name (or *.domain) private: send null keys (repeatable).
    #[arg(long, value_name = "NAME")]
    exempt: Vec<String>,
    /// Share sessions in which the program is the server, too.
    #[arg(long)]
    share_server: bool,
    /// Share handshake keys, too: the middlebox then sees certificates and the whole handshake.
    #[arg(long)]
    share_handshake: bool,
    /// The preload library, when it is not beside the executable or in ../lib.
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
    /// Agent for Java programs that writes their key log: they are started with -javaagent:JAR=PATH.
    #[arg(long, value_name = "JAR")]
    java_agent: Option<PathBuf>,
    /// Say at the end what was shared.
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl Cli {
    /// Does what was asked for.
    pub fn run(self) -> Result<ExitCode, Error> {
        match self.command {
            Command::Run(args) => run::run(&args),
            Command::Read(args) => read::run(&args),
            Command::Rules(args) => args.run(),
            Command::Pki(args) => args.run(),
            Command::Exec(args) => args.run(),
            Command::Agent(args) => args.run(),
            Command::Guard { agent, directory } => {
                let ended = mmtls_agent::guard(agent, &directory);
                ended.map(|()| ExitCode::SUCCESS).map_err(|error| Error::Usage(error.to_string()))
            }
        }
    }
}

impl From<ChannelArgs> for Channel {
    fn from(args: ChannelArgs) -> Self {
        Self {
            middleboxes: args.middlebox,
            ca_file: args.ca,
            client_certificate: args.client_cert.zip(args.client_key),
        }
    }
}

impl AgentArgs {
    fn run(self) -> Result<ExitCode, Error> {
        mmtls_agent::serve(&AgentOptions {
            channel: self.channel.into(),
            key_logs: self.keylog,
            share_handshake: self.share_handshake,
        })
        .map_err(|error| Error::Usage(error.to_string()))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl ExecArgs {
    fn run(self) -> Result<ExitCode, Error> {
        let status = mmtls_agent::run(&ExecOptions {
            channel: self.channel.into(),
            exempt: self.exempt,
            share_server: self.share_server,
            share_handshake: self.share_handshake,
            preload_library: self.preload,
            report: self.verbose,
            java_agent: self.java_agent,
            guard: vec!["/proc/self/exe".into(), GUARD.into()],
            program: self.program,
        })
        .map_err(|error| Error::Usage(error.to_string()))?;
        Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
    }
}
