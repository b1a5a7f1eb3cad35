//! The command line: what each command takes, and what it prints.
//!
//! Refuses contradictions with one clear line and a non-zero exit status.

mod confine;
mod ctl;
mod doctor;
mod guard;
mod init;
mod key_server;
mod pki;
mod prepare;
mod progress;
mod read;
mod reload;
mod report;
mod rules;
mod run;
mod say;
mod service;
mod services;
mod signals;
mod stats;
mod take_over;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mmtls_agent::{AgentFile, AgentOptions, Channel, ExecOptions, Users};
use mmtls_inspect::detect::Search;
use mmtls_middlebox::Error;

/// What `--version` says: also by what patterns of rules are searched for.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!("{}\npatterns of rules: {}", env!("CARGO_PKG_VERSION"), Search::default())
});

/// The process that agents leave behind.
const EXEC_GUARD: &str = "exec-guard";

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
    Run(Box<run::RunArgs>),
    /// Read capture files (pcap or pcapng, also gzipped).
    Read(read::ReadArgs),
    /// Ask or tell a running monitor something.
    Ctl(ctl::CtlArgs),
    /// Ask for what a monitor needs, and write a checked configuration and certificates.
    Init(init::InitArgs),
    /// Look at this machine: does it suit a monitor, and what would help?
    Doctor(doctor::DoctorArgs),
    /// Forward in the kernel for as long as no monitor does: fail open.
    Guard(guard::GuardArgs),
    /// Look at rules in Suricata's language.
    Rules(rules::RulesArgs),
    /// Make certificates for the key channel: an authority's, the middlebox's and endpoints'.
    Pki(pki::PkiArgs),
    /// Take keys from endpoints in a middlebox's place, and steer them to its workers.
    KeyServer(key_server::KeyServerArgs),
    /// Run a program that uses OpenSSL, or writes a key log (SSLKEYLOGFILE), and share the keys of its TLS sessions.
    Exec(ExecArgs),
    /// Stay when programs outlive their agent.
    #[command(hide = true, name = EXEC_GUARD)]
    ExecGuard { agent: i32, directory: PathBuf },
    /// Share the keys of this user's programs: those that `mmtls exec` starts without --middlebox, and those that write
    /// a key log.
    Agent(AgentArgs),
}

/// The way to the middleboxes.
#[derive(Args)]
struct ChannelArgs {
    /// Send keys to this middlebox (repeatable); NAME is what its certificate must say.
    #[arg(long, value_name = "[NAME@]HOST:PORT", requires = "ca")]
    middlebox: Vec<String>,
    /// PEM file of the authorities that may certify the middlebox.
    #[arg(long, value_name = "FILE", requires = "middlebox")]
    ca: Option<PathBuf>,
    /// A key that the middlebox may have, by its hash (repeatable): others are refused, whoever certifies them.
    #[arg(long, value_name = "sha256/BASE64", requires = "middlebox")]
    pin: Vec<String>,
    /// Certificate to show to the middlebox, if it asks.
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

/// A direction of a session, as eve.json names it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Direction {
    /// What the client of TLS sends.
    Toserver,
    /// What the server sends.
    Toclient,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
struct AgentArgs {
    #[command(subcommand)]
    command: Option<AgentCommand>,
    /// Middleboxes, and rules for what stays private: a file as agent.toml shows it. Options win.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    channel: ChannelArgs,
    /// Directory of this user alone, where programs find the agent: `agent` is the preload library's socket, `keylog` a
    /// FIFO for key logs. Without it $XDG_RUNTIME_DIR/mmtls, for root /run/mmtls-agent.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Let the programs of all users connect (root's agent only; key logs stay root's): the directory is open to them.
    #[arg(long)]
    all_users: bool,
    /// Another file or FIFO that programs write their secrets to (repeatable). Where nothing is, a FIFO is made and removed at the end.
    #[arg(long, value_name = "PATH")]
    keylog: Vec<PathBuf>,
    /// Share handshake keys, too: the middlebox then sees certificates and the whole handshake.
    #[arg(long)]
    share_handshake: bool,
    /// Keep a direction private: the other one is shared, and this one passes unread.
    #[arg(long, value_name = "DIRECTION")]
    refuse: Option<Direction>,
    /// Note each session that was shared or not, without secrets, in this file: a line of JSON each, appended.
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
}

#[derive(Subcommand)]
enum AgentCommand {
    /// Say what the agent has shared, and whether its middleboxes are there.
    Status {
        /// Directory of the agent, if it is not the usual one.
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct ExecArgs {
    #[command(flatten)]
    channel: ChannelArgs,
    /// Directory of a running `mmtls agent`, through which keys are shared where no --middlebox is named.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["middlebox", "verbose"])]
    agent: Option<PathBuf>,
    /// Keep sessions with this server name (or *.domain) private: send null keys (repeatable).
    #[arg(long, value_name = "NAME")]
    exempt: Vec<String>,
    /// Keep a direction private: the other one is shared, and this one passes unread.
    #[arg(long, value_name = "DIRECTION", requires = "middlebox")]
    refuse: Option<Direction>,
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
    #[arg(short, long, requires = "middlebox")]
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
            Command::Ctl(args) => args.run(),
            Command::Init(args) => args.run(),
            Command::Doctor(args) => args.run(),
            Command::Guard(args) => args.run(),
            Command::Rules(args) => args.run(),
            Command::Pki(args) => args.run(),
            Command::KeyServer(args) => args.run(),
            Command::Exec(args) => args.run(),
            Command::Agent(args) => args.run(),
            Command::ExecGuard { agent, directory } => {
                let ended = mmtls_agent::guard(agent, &directory);
                ended.map(|()| ExitCode::SUCCESS).map_err(|error| Error::Usage(error.to_string()))
            }
        }
    }
}

impl From<Direction> for mmtls_agent::Direction {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Toserver => Self::ClientToServer,
            Direction::Toclient => Self::ServerToClient,
        }
    }
}

impl From<ChannelArgs> for Channel {
    fn from(args: ChannelArgs) -> Self {
        Self {
            middleboxes: args.middlebox,
            ca_file: args.ca.unwrap_or_default(),
            pins: args.pin,
            client_certificate: args.client_cert.zip(args.client_key),
        }
    }
}

impl AgentArgs {
    fn run(self) -> Result<ExitCode, Error> {
        let usage = |error: mmtls_agent::Error| Error::Usage(error.to_string());
        if let Some(AgentCommand::Status { directory, json }) = self.command {
            let status = mmtls_agent::Status::read(directory.as_deref()).map_err(usage)?;
            let text = match json {
                true => {
                    serde_json::to_string(&status).map_err(|it| Error::Usage(it.to_string()))?
                        + "\n"
                }
                false => status.to_string(),
            };
            // A closed standard output is no reason to fail.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return Ok(ExitCode::SUCCESS);
        }
        let file = self.config.as_deref().map(AgentFile::load).transpose().map_err(usage)?;
        let file = file.unwrap_or_default();
        let mut channel = Channel::from(self.channel);
        if channel.middleboxes.is_empty() {
            channel.middleboxes.clone_from(&file.middleboxes);
            channel.ca_file = file.ca_file.clone().unwrap_or_default();
        }
        if channel.middleboxes.is_empty() {
            return Err(Error::Usage("no --middlebox to share keys with".to_owned()));
        }
        if channel.ca_file.as_os_str().is_empty() {
            return Err(Error::Usage("no --ca that certifies the middleboxes".to_owned()));
        }
        if channel.pins.is_empty() {
            channel.pins.clone_from(&file.pins);
        }
        let certificate = file.certificate_file.clone().zip(file.key_file.clone());
        channel.client_certificate = channel.client_certificate.or(certificate);
        mmtls_agent::serve(&AgentOptions {
            channel,
            rules: file.rules(),
            share_key_logs: file.shares_key_logs(),
            directory: self.directory.or(file.directory),
            users: if self.all_users || file.all_users { Users::All } else { Users::Own },
            key_logs: if self.keylog.is_empty() { file.key_logs } else { self.keylog },
            share_handshake: self.share_handshake || file.share_handshake,
            refused: self.refuse.map(Into::into),
            audit_log: self.audit_log.or(file.audit_log),
            guard: exec_guard(),
        })
        .map_err(usage)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// How the guard of an agent is started.
fn exec_guard() -> Vec<OsString> {
    vec!["/proc/self/exe".into(), EXEC_GUARD.into()]
}

impl ExecArgs {
    fn run(self) -> Result<ExitCode, Error> {
        let status = mmtls_agent::run(&ExecOptions {
            channel: self.channel.into(),
            agent: self.agent,
            exempt: self.exempt,
            refused: self.refuse.map(Into::into),
            share_server: self.share_server,
            share_handshake: self.share_handshake,
            preload_library: self.preload,
            report: self.verbose,
            java_agent: self.java_agent,
            guard: exec_guard(),
            program: self.program,
        })
        .map_err(|error| Error::Usage(error.to_string()))?;
        Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
    }
}
