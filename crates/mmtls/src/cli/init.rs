//! `mmtls init`: asks what a monitor needs to know, and writes its configuration and certificates, which it checks as `mmtls run -T`
//! does.
//!
//! Refuses to overwrite a configuration without `--force`, and certificates at all: endpoints trust those that are there.

mod machine;
mod options;
mod questions;

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{
    DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown,
};
use std::path::Path;
use std::process::ExitCode;

use mmtls::config;
use mmtls_middlebox::Error;

use super::pki::PkiArgs;
use super::prepare::prepare;
use super::run::monitor_config;
use super::say::say;
pub use options::InitArgs;
use options::{DIRECTORY, wrong};
use questions::{Answers, Group, Questions};

impl InitArgs {
    /// Asks, writes, checks.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let directory = std::path::absolute(&self.directory).map_err(about(&self.directory))?;
        let file = directory.join("mmtls.toml");
        if file.symlink_metadata().is_ok() && !self.force {
            let text = format!("{} is there already; --force replaces it", file.display());
            return Err(wrong(&text));
        }
        check_directory(&directory)?;
        let keys = directory.join("keys");
        let [certificate, key, ca] =
            ["middlebox.pem", "middlebox.key", "ca.pem"].map(|it| keys.join(it));
        let has_certificates = certificate.exists() && key.exists();
        let (stdin, stdout) = (io::stdin().lock(), io::stdout().lock());
        let answers = Questions::new(stdin, stdout, self.yes).ask(self, !has_certificates)?;

        // Nothing was written so far.
        make_directory(&directory, answers.group.as_ref())?;
        match &answers.name {
            Some(name) => {
                PkiArgs::of_middlebox(keys, name.clone()).make()?;
                if let Some(group) = &answers.group {
                    let_group_read(&key, group)?;
                }
            }
            None => tell(&format!("{}: certificates are there and stay", keys.display())),
        }
        if let Some(log) = &answers.log_directory
            && !log.exists()
        {
            // It writes there without capabilities, and may have to make files anew.
            fs::DirBuilder::new().mode(0o750).create(log).map_err(about(log))?;
            if let Some(group) = &answers.group {
                lchown(log, Some(group.user), Some(group.id)).map_err(about(log))?;
            }
        }
        write(&file, &text(&answers, &certificate, &key), answers.group.as_ref())?;
        tell(&format!("{}: written", file.display()));
        if !is_valid(&file) {
            say(&format!(
                "init: what is told above is left to do; mmtls run -T -c {} checks again",
                file.display()
            ));
            return Ok(ExitCode::FAILURE);
        }
        tell(&next_steps(&answers, &directory, &file, &ca));
        Ok(ExitCode::SUCCESS)
    }
}

fn about(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    |error| wrong(&format!("{}: {error}", path.display()))
}

/// For who reads standard output; where nobody does, nothing is lost.
fn tell(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Finds a directory in which somebody else could replace what is written.
fn check_directory(directory: &Path) -> Result<(), Error> {
    let found = match directory.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(about(directory))?,
    };
    if !found.is_dir() {
        return Err(wrong(&format!("{}: not a directory", directory.display())));
    }
    let own = rustix::process::geteuid().as_raw();
    if found.mode() & 0o022 != 0 || ![0, own].contains(&found.uid()) {
        return Err(wrong(&format!(
            "{}: others may write there; chown it to root, chmod go-w, or name another directory",
            directory.display()
        )));
    }
    Ok(())
}

fn make_directory(directory: &Path, group: Option<&Group>) -> Result<(), Error> {
    if directory.is_dir() {
        return Ok(());
    }
    // The files in it say themselves who may read them.
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o755).create(directory).map_err(about(directory))?;
    if let Some(group) = group {
        fs::set_permissions(directory, Permissions::from_mode(0o750)).map_err(about(directory))?;
        chown(directory, None, Some(group.id)).map_err(about(directory))?;
    }
    Ok(())
}

fn let_group_read(file: &Path, group: &Group) -> Result<(), Error> {
    // In this order, so that no other group ever may.
    chown(file, None, Some(group.id)).map_err(about(file))?;
    fs::set_permissions(file, Permissions::from_mode(0o640)).map_err(about(file))
}

/// Writes the file beside its place, and puts it there whole.
fn write(file: &Path, text: &str, group: Option<&Group>) -> Result<(), Error> {
    let new = file.with_extension(format!("toml.{}", std::process::id()));
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(&new);
    let mut opened = opened.map_err(about(&new))?;
    let written = opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all());
    let written = written.map_err(about(&new));
    let written = written.and_then(|()| group.map_or(Ok(()), |group| let_group_read(&new, group)));
    let placed = written.and_then(|()| fs::rename(&new, file).map_err(about(file)));
    placed.inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// The configuration: what differs from the defaults.
fn text(answers: &Answers, certificate: &Path, key: &Path) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let path = |path: &Path| quoted(&path.to_string_lossy());
    let [left, right] = answers.interfaces.each_ref().map(|it| quoted(it));
    let mut text = format!(
        "# Written by `mmtls init`: what differs from the defaults. /usr/share/doc/mmtls/examples/mmtls.toml has all settings;\n\
         # `mmtls run -T -c FILE` checks them, and SIGHUP (`systemctl reload mmtls`) has a run take most of them over.\n\n\
         [inline]\n# The two interfaces that are bridged.\ninterfaces = [{left}, {right}]\n\n\
         [keys]\n# Where endpoints share their keys, and the certificate that they verify.\nlisten = {}\n\
         certificate_file = {}\nkey_file = {}\n\n\
         [policies]\n# Sessions whose keys do not come in time: forward or reset.\nmissing_keys = {}\n",
        quoted(&answers.listen.to_string()),
        path(certificate),
        path(key),
        quoted(&answers.missing_keys),
    );
    if let Some(log) = &answers.log_directory {
        text += &format!("\n[log]\n# Directory of eve.json.\ndirectory = {}\n", path(log));
    }
    if let Some(control) = &answers.control {
        text +=
            &format!("\n[control]\n# Where `mmtls ctl` reaches it.\nsocket = {}\n", path(control));
    }
    text
}

/// As `mmtls run -T`.
fn is_valid(file: &Path) -> bool {
    let (settings, places) = match config::load(file) {
        Ok(loaded) => loaded,
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| say(mistake));
            return false;
        }
    };
    prepare(settings, &places, true, false, |file, settings| monitor_config(file, settings, false))
        .is_some()
}

fn next_steps(answers: &Answers, directory: &Path, file: &Path, ca: &Path) -> String {
    let start = match directory == Path::new(DIRECTORY) && Path::new("/run/systemd/system").exists()
    {
        true => "systemctl enable --now mmtls".to_owned(),
        false => format!("mmtls run -c {}", file.display()),
    };
    let middlebox = match (&answers.name, answers.listen) {
        (Some(name), SocketAddr::V4(listen)) if *name != listen.ip().to_string() => {
            format!("{name}@{listen}")
        }
        (Some(name), SocketAddr::V6(listen)) if *name != listen.ip().to_string() => {
            format!("{name}@{listen}")
        }
        (_, listen) => listen.to_string(),
    };
    let key = ca.with_extension("key");
    format!(
        "The configuration is valid. What is next:\n  {start}\n\
         On endpoints, with a copy of {ca}:\n  mmtls exec --middlebox {middlebox} --ca ca.pem -- PROGRAM\n\
         {key} can certify more of them: keep it away from this machine.",
        ca = ca.display(),
        key = key.display(),
    )
}
