//! Man pages and shell completion of `mmtls`, made from its command line, so that the shipped program holds neither.
//!
//! Refuses to describe hidden commands.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

/// Which pages say more than the command line does, and what, in roff.
const MORE: &[(&str, &str)] = &[
    (
        "mmtls",
        ".SH \"EXIT STATUS\"\n0, or 1 for what went wrong, 2 for a command line that cannot be.\n\
         .SH \"SEE ALSO\"\n.BR mmtls\\-run (1),\n.BR mmtls\\-read (1),\n.BR mmtls\\-ctl (1),\n.BR mmtls\\-doctor (1),\n.BR mmtls\\-guard (1),\n.BR mmtls\\-exec (1),\n.BR mmtls\\-agent (1)\n",
    ),
    (
        "mmtls-run",
        ".SH SIGNALS\n.TP\nSIGTERM, SIGINT\nEnd, with the summary.\n.TP\nSIGHUP\nOpen eve.json anew; read rules and the key \
         channel's certificates again.\n.TP\nSIGUSR1\nPrint the summary.\n.SH \"EXIT STATUS\"\n0; 1 where it did not start, \
         where \\fB\\-T\\fR found something, and where outputs lack something at the end; 2 for a command line that cannot \
         be.\n.SH FILES\n.TP\n/etc/mmtls/mmtls.toml\nThe service's settings; each is explained there.\n",
    ),
    (
        "mmtls-exec",
        ".SH \"EXIT STATUS\"\nThe program's; 128 and the signal that ended it; 127 where it is not there, 126 where it cannot \
         be started; 1 where keys could not be shared.\n",
    ),
];

#[derive(Args)]
pub struct ManArgs {
    /// Directory for them; it is made where there is none.
    directory: PathBuf,
}

/// Writes all of them.
///
/// # Errors
/// What could not be written.
pub fn run(args: &ManArgs) -> Result<(), String> {
    let directory = &args.directory;
    let failed = |error| format!("{}: {error}", directory.display());
    fs::create_dir_all(directory).map_err(failed)?;
    let mut command = mmtls::cli::Cli::command().name("mmtls");
    command.build();
    pages(&command, "mmtls", directory).map_err(failed)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut command = mmtls::cli::Cli::command().name("mmtls");
        clap_complete::generate_to(shell, &mut command, "mmtls", directory).map_err(failed)?;
    }
    Ok(())
}

/// The page of a command, and those of its commands.
fn pages(command: &Command, name: &str, directory: &Path) -> std::io::Result<()> {
    let mut page = Vec::new();
    let described = command.clone().display_name(name.to_owned()).bin_name(name.replace('-', " "));
    // The version's second line is for those who ask the program.
    let described = described.version(env!("CARGO_PKG_VERSION")).long_version(None);
    Man::new(described.disable_help_subcommand(true))
        .title(name.to_uppercase())
        .render(&mut page)?;
    let more = MORE.iter().filter(|(of, _)| *of == name);
    more.for_each(|(_, text)| page.extend_from_slice(text.as_bytes()));
    fs::write(directory.join(format!("{name}.1")), page)?;
    let inner = command.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help");
    for inner in inner {
        pages(inner, &format!("{name}-{}", inner.get_name()), directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use super::*;

    #[test]
    fn pages_are_ones_that_man_and_shells_take() {
        let place = tempfile::tempdir().unwrap();
        run(&ManArgs { directory: place.path().to_owned() }).unwrap();
        for name in [
            "mmtls",
            "mmtls-run",
            "mmtls-read",
            "mmtls-ctl",
            "mmtls-ctl-session-kill",
            "mmtls-doctor",
            "mmtls-guard-install",
            "mmtls-exec",
            "mmtls-agent-status",
            "mmtls-rules-check",
        ] {
            let page = fs::read_to_string(place.path().join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH DESCRIPTION"), "{name}");
            assert!(!page.contains("exec-guard") && !page.contains("exec\\-guard"), "{name}");
        }
        let run_page = fs::read_to_string(place.path().join("mmtls-run.1")).unwrap();
        assert!(run_page.contains("\\-\\-missing\\-keys") && run_page.contains(".SH SIGNALS"));
        let pages = fs::read_dir(place.path()).unwrap().map(|it| it.unwrap().path());
        for page in pages.filter(|it| it.extension().is_some_and(|it| it == "1")) {
            let mut man = Process::new("man");
            man.args(["--warnings=w", "-E", "UTF-8", "-l"]).arg(&page).env("MANROFFSEQ", "");
            match man.output() {
                Ok(output) => {
                    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}")
                }
                Err(error) => {
                    mmtls_testkit::skip_unless("MMTLS_REQUIRE_MAN", &format!("man: {error}"));
                }
            }
        }
        let mut bash = Process::new("bash");
        let output = bash.arg("-n").arg(place.path().join("mmtls.bash")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(place.path().join("_mmtls").exists() && place.path().join("mmtls.fish").exists());
    }
}
