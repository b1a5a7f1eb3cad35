//! `mmtls rules`: what would become of a file of rules.
//!
//! Refuses to guess: a rule is active as a whole, or it is named with the cause.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use mmtls::rules::{LoadedRules, RulesConfig};
use mmtls_inspect::rules::{Cause, Rule};
use mmtls_middlebox::Error;

use super::report::rule_variables;

#[derive(Args)]
pub struct RulesArgs {
    #[command(subcommand)]
    command: RulesCommand,
}

#[derive(Subcommand)]
enum RulesCommand {
    /// Say which rules of files are not active, and why. Fails if one is faulty.
    Check(FilesArgs),
    /// List the rules of files that are active, in the order in which they are applied.
    List(FilesArgs),
}

#[derive(Args)]
struct FilesArgs {
    /// The files, in Suricata's language.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// A configuration file of `mmtls run`, whose inspect.address_groups and port_groups the rules may name.
    #[arg(short = 'c', long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl RulesArgs {
    /// Does what was asked for.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let (RulesCommand::Check(args) | RulesCommand::List(args)) = &self.command;
        let FilesArgs { files, config } = args;
        let config = RulesConfig { files: files.clone(), ..rule_variables(config.as_deref())? };
        let loaded = LoadedRules::load(&config).map_err(|error| Error::Usage(error.to_string()))?;
        let mut out = io::BufWriter::new(io::stdout().lock());
        let written = match &self.command {
            RulesCommand::Check(_) => report(&mut out, files, &loaded),
            RulesCommand::List(_) => list(&mut out, files, &loaded),
        };
        match written.and_then(|()| out.flush()) {
            // Who reads only the first lines has what was asked for.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(Error::Usage(format!("standard output: {error}")));
            }
            _ => {}
        }
        let faulty = loaded.skipped.iter().any(|skipped| skipped.cause.is_fault());
        let is_check = matches!(self.command, RulesCommand::Check(_));
        Ok(if faulty && is_check { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// The name of a file by its place.
fn name(files: &[PathBuf], text: u16) -> std::path::Display<'_> {
    files.get(usize::from(text)).map_or(Path::new(""), PathBuf::as_path).display()
}

/// One line for each active rule: where it stands, number, revision, action, protocol, message.
fn list(out: &mut impl Write, files: &[PathBuf], loaded: &LoadedRules) -> io::Result<()> {
    for rule in loaded.matcher.rules() {
        let Rule { text, line, id, revision, header, message, .. } = rule;
        writeln!(
            out,
            "{}:{line}: {}:{}:{revision} {} {} {}",
            name(files, *text),
            id.gid,
            id.sid,
            header.action.name(),
            header.protocol.name(),
            printable(message)
        )?;
    }
    Ok(())
}

/// One line for each rule that is not active; then how many of each protocol are, and the causes by
/// frequency.
fn report(out: &mut impl Write, files: &[PathBuf], loaded: &LoadedRules) -> io::Result<()> {
    let mut skipped: Vec<_> = loaded.skipped.iter().collect();
    skipped.sort_by_key(|it| (it.text, it.line));
    for it in skipped {
        write!(out, "{}:{}: ", name(files, it.text), it.line)?;
        match it.sid {
            Some(sid) => write!(out, "sid {sid}: ")?,
            None => write!(out, "no sid: ")?,
        }
        write!(out, "{}", printable(&it.cause.to_string()))?;
        match it.cause {
            Cause::Duplicate { text, .. } | Cause::Replaced { text, .. } if text != it.text => {
                write!(out, " of {}", name(files, text))?;
            }
            _ => {}
        }
        match &it.message {
            Some(message) => writeln!(out, " ({})", printable(message))?,
            None => writeln!(out)?,
        }
    }
    let mut protocols: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for rule in loaded.matcher.rules() {
        protocols.entry(rule.header.protocol.name()).or_default().0 += 1;
    }
    let mut causes: BTreeMap<String, usize> = BTreeMap::new();
    for it in &loaded.skipped {
        protocols.entry(it.protocol.as_deref().unwrap_or("none")).or_default().1 += 1;
        *causes.entry(it.cause.summary()).or_default() += 1;
    }
    let (active, skipped) = (loaded.matcher.len(), loaded.skipped.len());
    writeln!(out, "{active} active, {skipped} skipped, {} switched off", loaded.disabled)?;
    for (protocol, (active, skipped)) in protocols {
        let protocol = printable(protocol);
        writeln!(out, "  {protocol}: {active} of {} active", active + skipped)?;
    }
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by(|left, right| right.1.cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
    for (cause, count) in causes {
        writeln!(out, "{count:>7} {}", printable(&cause))?;
    }
    Ok(())
}

/// Rules come from others: nothing in them reaches the terminal as a command.
fn printable(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_rules_and_names_those_that_are_not_active() {
        let text = b"alert http any any -> any any (msg:\"a\"; sid:1;)\n\
            alert udp any any -> any any (msg:\"b\x1b[0m\"; sid:2;)\n\
            alert http any any -> any any (content:\"|4|\"; sid:3;)\n\
            # alert http any any -> any any (sid:4;)\n\
            alert";
        let dir = tempfile::tempdir().unwrap();
        let files = [dir.path().join("a.rules")];
        std::fs::write(&files[0], text).unwrap();
        let config = RulesConfig { files: files.to_vec(), ..RulesConfig::default() };
        let loaded = LoadedRules::load(&config).unwrap();
        let files = ["a.rules".into()];
        let mut out = Vec::new();
        list(&mut out, &files, &loaded).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a.rules:1: 1:1:0 alert http a\n");
        let mut out = Vec::new();
        report(&mut out, &files, &loaded).unwrap();
        let expected = "a.rules:2: sid 2: unsupported protocol udp (b\u{fffd}[0m)\n\
            a.rules:3: sid 3: syntax error at byte 31 (content): not hexadecimal\n\
            a.rules:5: no sid: syntax error at byte 5: protocol missing\n\
            1 active, 3 skipped, 1 switched off\n  \
            http: 1 of 2 active\n  \
            none: 0 of 1 active\n  \
            udp: 0 of 1 active\n      \
            2 syntax error\n      \
            1 unsupported protocol udp\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
