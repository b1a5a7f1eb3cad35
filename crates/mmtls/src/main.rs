//! The `mmtls` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use mmtls::cli;
use signal_hook::consts::SIGUSR1;

fn main() -> ExitCode {
    // Before anything else: who asks for a report too early must not end the process.
    if let Err(error) = mmtls_agent::survive(SIGUSR1) {
        eprintln!("mmtls: signal handlers: {error}");
        return ExitCode::FAILURE;
    }
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("mmtls: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Help and version go to standard output as they are; everything else becomes one line.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed standard output is no reason to fail.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(2);
    }
    let text = error.to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or_default();
    let text = text.split("\n\nFor more information").next().unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    eprintln!("mmtls: {}", line.strip_prefix("error: ").unwrap_or(&line));
    ExitCode::from(2)
}
