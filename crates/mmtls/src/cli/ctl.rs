//! `mmtls ctl`: asks a running monitor, over its control socket.
//!
//! Refuses to show control characters that come from the network, and to wait for ever.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use mmtls::control::{DEFAULT_SOCKET, DrainTime, Keys, Nothing, Of, Query, Request, Sort};
use mmtls_middlebox::Error;
use serde_json::Value;

/// Longer than the monitor takes for anything.
const TIME: Duration = Duration::from_secs(60);

#[derive(Args)]
pub struct CtlArgs {
    /// The socket of the monitor (control.socket).
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, global = true)]
    socket: PathBuf,
    /// Print the answer as it comes: a line of JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What the monitor is doing.
    Status,
    /// Live sessions.
    Sessions(SessionsArgs),
    /// Everything about one session, and why it is not decrypted.
    Session(SessionArgs),
    /// The policies.
    Policies,
    /// Who is connected to share keys.
    Keys,
    /// The rules in force.
    Rules,
    /// Read configuration, rules, patterns and certificates again, and open eve.json anew: as SIGHUP.
    Reload,
    /// Open eve.json anew.
    LogRotate,
    /// Leave new sessions alone, wait for those that are there, and end the monitor.
    Drain {
        /// Cut what is left after so long.
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<u64>,
    },
}

#[derive(Args)]
struct SessionsArgs {
    /// Of this client: an address, a network, or ADDRESS:PORT.
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// Of this server, the same.
    #[arg(long, value_name = "ADDRESS")]
    server: Option<String>,
    /// With this server name, or *.domain.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Whose keys are there: waiting, shared, exempt, missing, unusable, bypassed, left_alone, mid_stream, undecided, none.
    #[arg(long, value_name = "STATE", value_parser = keys)]
    keys: Option<Keys>,
    /// What comes first: bytes, age or held. Without it, the youngest.
    #[arg(long, value_name = "ORDER", value_parser = sort)]
    sort: Option<Sort>,
    /// How many at most, up to 10000.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Connections that are not known to carry TLS, too.
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
struct SessionArgs {
    /// Its flow_id in eve.json.
    id: Option<u64>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Reset it at both ends.
    Kill {
        /// Its flow_id in eve.json.
        id: u64,
    },
    /// Let it pass unread from now on.
    Bypass {
        /// Its flow_id in eve.json.
        id: u64,
    },
}

fn keys(name: &str) -> Result<Keys, String> {
    let known = Keys::NAMES.into_iter().find(|(of, _)| *of == name);
    known
        .map(|(_, keys)| keys)
        .ok_or_else(|| format!("expected one of {}", Keys::NAMES.map(|(name, _)| name).join(", ")))
}

fn sort(name: &str) -> Result<Sort, String> {
    match name {
        "bytes" => Ok(Sort::Bytes),
        "age" => Ok(Sort::Age),
        "held" => Ok(Sort::Held),
        _ => Err("expected bytes, age or held".to_owned()),
    }
}

impl CtlArgs {
    pub fn run(self) -> Result<ExitCode, Error> {
        let request = self.command.request()?;
        let line = ask(&self.socket, &request)?;
        let answer: Value = serde_json::from_str(&line)
            .map_err(|error| Error::Usage(format!("{}: {error}", self.socket.display())))?;
        let is_ok = answer["ok"] == true;
        let text = match (self.json, is_ok) {
            (true, _) => format!("{line}\n"),
            (false, true) => show(&request, &answer),
            (false, false) => {
                return Err(Error::Usage(plain(answer["error"].as_str().unwrap_or("no answer"))));
            }
        };
        // A closed standard output is no reason to fail.
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Command {
    fn request(self) -> Result<Request, Error> {
        Ok(match self {
            Self::Status => Request::Status(Nothing {}),
            Self::Sessions(args) => Request::Sessions(Query {
                client: args.client,
                server: args.server,
                name: args.name,
                keys: args.keys,
                sort: args.sort,
                limit: Some(args.limit),
                all: args.all,
            }),
            Self::Session(SessionArgs { id: Some(id), .. }) => Request::Session(Of { id }),
            Self::Session(SessionArgs { action: Some(Action::Kill { id }), .. }) => {
                Request::SessionKill(Of { id })
            }
            Self::Session(SessionArgs { action: Some(Action::Bypass { id }), .. }) => {
                Request::SessionBypass(Of { id })
            }
            Self::Session(SessionArgs { id: None, action: None }) => {
                return Err(Error::Usage("session needs an ID (flow_id in eve.json)".to_owned()));
            }
            Self::Policies => Request::Policies(Nothing {}),
            Self::Keys => Request::Keys(Nothing {}),
            Self::Rules => Request::Rules(Nothing {}),
            Self::Reload => Request::Reload(Nothing {}),
            Self::LogRotate => Request::LogRotate(Nothing {}),
            Self::Drain { timeout } => Request::Drain(DrainTime { timeout_seconds: timeout }),
        })
    }
}

/// The line that answers.
fn ask(path: &Path, request: &Request) -> Result<String, Error> {
    let system = |error: std::io::Error| {
        let hint = match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                " (does `mmtls run --control PATH` run?)"
            }
            std::io::ErrorKind::PermissionDenied => {
                " (its owner may, and with control.mode its group)"
            }
            _ => "",
        };
        Error::Usage(format!("{}: {error}{hint}", path.display()))
    };
    let mut stream = UnixStream::connect(path).map_err(system)?;
    stream.set_read_timeout(Some(TIME)).map_err(system)?;
    let mut line = serde_json::to_vec(request).map_err(|error| Error::Usage(error.to_string()))?;
    line.push(b'\n');
    match stream.write_all(&line) {
        // It has said why, and closed.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        result => result.map_err(system)?,
    }
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(system)?;
    if !answer.ends_with('\n') {
        return Err(Error::Usage(format!("{}: no answer", path.display())));
    }
    Ok(answer.trim_end().to_owned())
}

/// An answer for people.
fn show(request: &Request, answer: &Value) -> String {
    match request {
        Request::Status(_) | Request::Rules(_) => fields(answer),
        Request::Sessions(_) => sessions(answer),
        Request::Session(_) => {
            format!("{}{}\n", fields(&answer["session"]), word(&answer["why"]))
        }
        Request::SessionKill(Of { id }) => format!("session {id}: reset\n"),
        Request::SessionBypass(Of { id }) => format!("session {id}: passes unread from now on\n"),
        Request::Policies(_) => {
            let mut text = fields(&answer["policies"]);
            for rule in list(&answer["bypass"]) {
                let _ = writeln!(text, "left alone: {}", word(rule));
            }
            for exception in list(&answer["exceptions"]) {
                let _ = writeln!(text, "{}", word(exception));
            }
            text
        }
        Request::Keys(_) => {
            let columns = ["address", "since", "authenticated", "messages"];
            let agents = table(&columns, &list(&answer["agents"]).collect::<Vec<_>>());
            format!("{agents}{}", fields(&answer["counters"]))
        }
        Request::Reload(_) => {
            list(&answer["told"]).map(|line| format!("{}\n", word(line))).collect()
        }
        Request::LogRotate(_) => "eve.json: opened anew\n".to_owned(),
        Request::Drain(_) => format!("draining: {} sessions left\n", word(&answer["sessions"])),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn sessions(answer: &Value) -> String {
    let columns = [
        "id",
        "client",
        "server",
        "name",
        "version",
        "cipher_suite",
        "keys",
        "decrypted",
        "bytes_toserver",
        "bytes_toclient",
        "held_frames",
        "waits_milliseconds",
        "age_seconds",
    ];
    let mut text = table(&columns, &list(&answer["sessions"]).collect::<Vec<_>>());
    if answer["more"].as_u64().is_some_and(|more| more > 0) {
        let _ = writeln!(text, "and {} more (--limit)", answer["more"]);
    }
    text
}

/// Columns as wide as what is in them.
fn table(columns: &[&str], rows: &[&Value]) -> String {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|name| word(&row[*name])).collect()).collect();
    let heads: Vec<String> = columns.iter().map(|it| it.to_uppercase()).collect();
    let all = || std::iter::once(&heads).chain(&cells);
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| all().map(|row| row[at].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in all() {
        let line: String =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  ")).collect();
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// An object as lines, those of objects in it behind their name.
fn fields(value: &Value) -> String {
    fn write(text: &mut String, path: &str, value: &Value) {
        let within = |name: &dyn std::fmt::Display| match path {
            "" => name.to_string(),
            _ => format!("{path}.{name}"),
        };
        match value {
            Value::Object(object) => {
                for (name, value) in object.iter().filter(|(name, _)| *name != "ok") {
                    write(text, &within(name), value);
                }
            }
            Value::Array(all) if all.iter().any(Value::is_object) => {
                for (at, value) in all.iter().enumerate() {
                    write(text, &within(&at), value);
                }
            }
            other => {
                let _ = writeln!(text, "{path}: {}", word(other));
            }
        }
    }
    let mut text = String::new();
    write(&mut text, "", value);
    text
}

/// A value as one word, or a list of them.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => plain(text),
        Value::Array(all) => all.iter().map(word).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// Without what a terminal might obey.
fn plain(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { '\u{fffd}' } else { it }).collect()
}
