//! `mmtls rules`: what would become of a file of rules.
//!
//! Refuses to guess: a rule is active as a whole, or it is named with the cause.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use mmtls_inspect::rules::{RuleSet, Variables};
use mmtls_middlebox::Error;

/// Largest file of rules in bytes.
const MAX_FILE_LEN: u64 = 256 << 20;

#[derive(Args)]
pub struct RulesArgs {
    #[command(subcommand)]
    command: RulesCommand,
}

#[derive(Subcommand)]
enum RulesCommand {
    /// Say which rules of a file are not active, and why. Fails if one is faulty.
    Check {
        /// The file, in Suricata's language.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

impl RulesArgs {
    /// Does what was asked for.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let RulesCommand::Check { file } = &self.command;
        let text = read_limited(file).map_err(|error| Error::File { path: file.clone(), error })?;
        let set = RuleSet::read(&text, &Variables::suricata());
        let mut out = io::BufWriter::new(io::stdout().lock());
        match report(&mut out, file, &set).and_then(|()| out.flush()) {
            // Who reads only the first lines has what was asked for.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(Error::Usage(format!("standard output: {error}")));
            }
            _ => {}
        }
        let faulty = set.skipped.iter().any(|skipped| skipped.cause.is_fault());
        Ok(if faulty { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_FILE_LEN + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE_LEN {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

/// One line for each rule that is not active; then how many of each protocol are, and the causes by
/// frequency.
fn report(out: &mut impl Write, file: &Path, set: &RuleSet) -> io::Result<()> {
    let mut skipped: Vec<_> = set.skipped.iter().collect();
    skipped.sort_by_key(|it| it.line);
    for it in skipped {
        write!(out, "{}:{}: ", file.display(), it.line)?;
        match it.sid {
            Some(sid) => write!(out, "sid {sid}: ")?,
            None => write!(out, "no sid: ")?,
        }
        write!(out, "{}", printable(&it.cause.to_string()))?;
        match &it.message {
            Some(message) => writeln!(out, " ({})", printable(message))?,
            None => writeln!(out)?,
        }
    }
    let mut protocols: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for rule in &set.rules {
        protocols.entry(rule.header.protocol.name()).or_default().0 += 1;
    }
    let mut causes: BTreeMap<String, usize> = BTreeMap::new();
    for it in &set.skipped {
        protocols.entry(it.protocol.as_deref().unwrap_or("none")).or_default().1 += 1;
        *causes.entry(it.cause.summary()).or_default() += 1;
    }
    let (active, skipped) = (set.rules.len(), set.skipped.len());
    writeln!(out, "{active} active, {skipped} skipped, {} switched off", set.disabled)?;
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
        let set = RuleSet::read(text, &Variables::suricata());
        let mut out = Vec::new();
        report(&mut out, Path::new("a.rules"), &set).unwrap();
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

    #[test]
    fn refuses_files_that_are_missing_or_endless() {
        assert!(read_limited(Path::new("/nonexistent")).is_err());
        assert!(read_limited(Path::new("/dev/null")).unwrap().is_empty());
    }
}
