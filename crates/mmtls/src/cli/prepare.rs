//! What `mmtls run` is started with: whether options and configuration file will do on this machine.
//!
//! Tells all that is wrong, not the first of it. Refuses to open or to make anything.

use mmtls::check::{self, Problem, Severity};
use mmtls::config::{File, Places};
use mmtls::monitor::MonitorConfig;
use mmtls::sandbox::parent;
use mmtls_engine::Cleartext;
use mmtls_middlebox::{Error, Settings};

use super::confine::usage;
use super::report::describe_rules;
use super::say::say;

/// Settings with which a start has a chance.
pub(super) struct Prepared {
    pub(super) file: File,
    pub(super) settings: Settings,
    pub(super) monitor: MonitorConfig,
}

/// Checks what was configured; `None` when something is wrong, which is told then. A fault that lets the monitor start keeps
/// `-T` from success only. `replaces`: a run that still listens where this one will.
pub(super) fn prepare(
    file: File,
    places: &Places,
    test_config: bool,
    replaces: bool,
    monitor_config: impl FnOnce(&File, &Settings) -> MonitorConfig,
) -> Option<Prepared> {
    let tell = |lines: Vec<String>| lines.iter().for_each(|line| say(line));
    let mut settings = settings(&file, places).map_err(tell).ok()?;
    let monitor = monitor_config(&file, &settings);
    settings.engine.tell_hellos = monitor.wants_hellos();

    let mut problems = if replaces {
        let (mut file, mut settings) = (file.clone(), settings.clone());
        // It listens there until it has ended; the rest has to be right before.
        file.control.socket = None;
        for listen in [&mut file.metrics.listen, &mut file.web.listen].into_iter().flatten() {
            listen.set_port(0);
        }
        settings.server.listen.set_port(0);
        settings.bridge.takes_over = true;
        check::machine(&file, &settings, places)
    } else {
        check::machine(&file, &settings, places)
    };
    let worst = |problems: &[Problem]| problems.iter().map(|problem| problem.severity).max();
    // A start reads them again: whoever will not start learns of all that is wrong.
    if test_config || worst(&problems) == Some(Severity::Fatal) {
        match check::inputs(&monitor) {
            Ok(Some(rules)) if test_config => {
                describe_rules(rules.matcher.len(), &rules.skipped, &mut say);
            }
            Ok(_) => {}
            Err(more) => problems.extend(more),
        }
    }
    let refuses = if test_config { Severity::Fault } else { Severity::Fatal };
    let told = |problem: &&Problem| test_config || !is_told_by_start(problem);
    problems.iter().filter(told).for_each(|problem| say(&problem.to_string()));
    match worst(&problems) {
        Some(worst) if worst >= refuses => None,
        _ => Some(Prepared { file, settings, monitor }),
    }
}

/// The start says it itself, when it has opened the interfaces.
fn is_told_by_start(problem: &Problem) -> bool {
    problem.severity == Severity::Warning && problem.is_of_interfaces
}

/// The settings, or all that makes no sense in them.
pub(super) fn settings(file: &File, places: &Places) -> Result<Settings, Vec<String>> {
    let located = |error: &Error| places.locate(&error.to_string());
    let mut mistakes: Vec<String> = Vec::new();
    mistakes.extend(file.check_inspection().err().as_ref().map(located));
    mistakes.extend(file.check_capture().err().as_ref().map(located));
    mistakes.extend(file.check_metrics().err().as_ref().map(located));
    mistakes.extend(file.check_web().err().as_ref().map(located));
    let sandbox = file.sandbox.check().map_err(usage);
    mistakes.extend(sandbox.err().as_ref().map(located));
    if let Some(log) = &file.keys.log_file
        && file.sandbox.enabled
        && !parent(log).is_dir()
    {
        let text = format!(
            "keys.log_file {}: its directory has to be there before the start (or: sandbox.enabled = false)",
            log.display()
        );
        mistakes.push(places.locate(&text));
    }
    let settings = Settings::read(&file.configuration());
    let settings = settings.map_err(|errors| mistakes.extend(errors.iter().map(located)));
    let mut settings = match settings {
        Ok(settings) if mistakes.is_empty() => settings,
        _ => return Err(mistakes),
    };
    if file.inspect.follows_plaintext() {
        settings.engine.cleartext = Cleartext::FromBeginning;
    }
    Ok(settings)
}
