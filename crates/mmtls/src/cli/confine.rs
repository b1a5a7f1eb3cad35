//! What each command may still open and do once it has started.
//!
//! Refuses to be asked later: a path that is not named here is closed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use mmtls::config::File;
use mmtls::eve::STANDARD_OUTPUT;
use mmtls::monitor::MonitorConfig;
use mmtls::sandbox::calls::{
    EXPRESSIONS, Jobs, KEY_CHANNEL, KEY_SENDER, KEY_SERVER, METRICS, MONITOR, NAMES, READ,
    TCP_OUTPUTS, UNIX_OUTPUTS,
};
use mmtls::sandbox::{Files, Sandbox, SandboxError, SandboxSection};
use mmtls_middlebox::Error;

use super::say::say;

/// For errors of commands.
pub fn usage(error: SandboxError) -> Error {
    Error::Usage(error.to_string())
}

/// `mmtls run`; `config` is its configuration file, `lists` are those that its rules name.
pub fn of_run(
    config: Option<&Path>,
    file: &File,
    monitor: &MonitorConfig,
    lists: &[PathBuf],
) -> Sandbox {
    let mut files = reports(monitor);
    config.into_iter().chain(file.inspect.patterns_file.as_deref()).for_each(|it| files.read(it));
    let keys = &file.keys;
    let certificates = [&keys.certificate_file, &keys.key_file, &keys.client_ca_file];
    certificates.into_iter().flatten().for_each(|it| files.read(it));
    file.inspect.rules_files.iter().chain(lists).for_each(|it| files.read(it));
    if let Some(log) = &keys.log_file {
        files.read_key_log(log);
    }
    if let Some(socket) = &file.control.socket {
        files.remove(socket);
    }
    let mut jobs = MONITOR | KEY_CHANNEL | METRICS | expressions(monitor);
    for output in &monitor.eve_outputs {
        match output.address() {
            Some(address) => {
                files.connect(address.port());
                jobs |= TCP_OUTPUTS;
            }
            None => jobs |= UNIX_OUTPUTS,
        }
    }
    Sandbox::new(file.sandbox.clone(), files, jobs)
}

/// `mmtls read`.
pub fn of_read(section: SandboxSection, monitor: &MonitorConfig) -> Sandbox {
    Sandbox::new(section, reports(monitor), READ | expressions(monitor))
}

fn expressions(monitor: &MonitorConfig) -> Jobs {
    if monitor.rules.is_some() { EXPRESSIONS } else { 0 }
}

/// What is written.
fn reports(monitor: &MonitorConfig) -> Files {
    let mut files = Files::default();
    let directory = monitor.eve_dir.as_deref().filter(|it| *it != Path::new(STANDARD_OUTPUT));
    if let Some(directory) = directory {
        files.write(&directory.join("eve.json"));
    }
    if let Some(directory) = &monitor.streams_dir {
        files.write_in(directory);
    }
    if let Some(file) = monitor.mirror.as_ref().and_then(|mirror| mirror.file.as_ref()) {
        files.write(file);
    }
    if let Some(file) = &monitor.capture.file {
        files.write(file);
    }
    files
}

/// What a thread does first that needs less than the process. Where that fails, nothing goes on: to run without it is
/// what the operator has not allowed.
pub fn thread(
    section: &SandboxSection,
    jobs: Jobs,
) -> Result<impl FnOnce() + Send + 'static, Error> {
    let filter = section.filter(jobs).map_err(usage)?;
    Ok(move || {
        if let Err(error) = filter.apply() {
            say(&error.to_string());
            std::process::exit(1);
        }
    })
}

/// `mmtls key-server`, and its way to `[NAME@]HOST:PORT`.
pub fn of_key_server<'a>(
    section: SandboxSection,
    certificates: impl Iterator<Item = &'a PathBuf>,
    middlebox: &str,
) -> Sandbox {
    let mut files = Files::default();
    certificates.for_each(|it| files.read(it));
    let address = middlebox.rsplit_once('@').map_or(middlebox, |(_, address)| address);
    if let Some(port) = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()) {
        files.connect(port);
    }
    let mut jobs = KEY_SERVER | KEY_CHANNEL | KEY_SENDER;
    if address.parse::<SocketAddr>().is_err() {
        jobs |= NAMES;
        // Where the C library looks for how names are looked up, and for its parts that do it.
        let places = ["/etc", "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/run/systemd/resolve"];
        places
            .map(Path::new)
            .into_iter()
            .filter(|it| it.exists())
            .for_each(|it| files.read_all(it));
        // Which somebody may have made elsewhere.
        files.read(Path::new("/etc/resolv.conf"));
        // A name server that is asked by TCP.
        files.connect(53);
    }
    Sandbox::new(section, files, jobs)
}
