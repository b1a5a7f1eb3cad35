//! What `mmtls run` is started with: options, the configuration file, and whether they will do on this machine.
//!
//! Tells all that is wrong, not the first of it. Refuses to open or to make anything.

use std::path::{Path, PathBuf};

use mmtls::check::{self, Problem, Severity};
use mmtls::config::{self, File, Places};
use mmtls::eve::STANDARD_OUTPUT;
use mmtls::monitor::MonitorConfig;
use mmtls_engine::{Cleartext, Policy};
use mmtls_middlebox::Settings;
use mmtls_middlebox::config::PolicyName;

use super::report::describe_rules;
use super::run::{RunArgs, monitor_config, say};

/// Settings with which a start has a chance.
pub(super) struct Prepared {
    pub(super) file: File,
    pub(super) settings: Settings,
    pub(super) monitor: MonitorConfig,
}

/// Puts options and file together and checks them; `None` when something is wrong, which is told then. A fault that lets
/// the monitor start keeps `-T` from success only.
pub(super) fn prepare(args: &RunArgs) -> Option<Prepared> {
    let tell = |lines: Vec<String>| lines.iter().for_each(|line| say(line));
    let (mut file, mut places) = match &args.config {
        Some(path) => config::load(path).map_err(tell).ok()?,
        None => (File::default(), Places::default()),
    };
    let settings = settings(args, &mut file, &mut places).map_err(tell).ok()?;
    let monitor = monitor_config(&file, &settings, args.report.profile_rules);
    let settings = {
        let mut settings = settings;
        settings.engine.tell_hellos = monitor.wants_hellos();
        settings
    };

    let mut problems = check::machine(&file, &settings, &places);
    let worst = |problems: &[Problem]| problems.iter().map(|problem| problem.severity).max();
    // A start reads them again: whoever will not start learns of all that is wrong.
    if args.test_config || worst(&problems) == Some(Severity::Fatal) {
        match check::inputs(&monitor) {
            Ok(Some(rules)) if args.test_config => {
                describe_rules(rules.matcher.len(), &rules.skipped, &mut say);
            }
            Ok(_) => {}
            Err(more) => problems.extend(more),
        }
    }
    let refuses = if args.test_config { Severity::Fault } else { Severity::Fatal };
    let told = |problem: &&Problem| args.test_config || !is_told_by_start(problem);
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
fn settings(args: &RunArgs, file: &mut File, places: &mut Places) -> Result<Settings, Vec<String>> {
    let mut mistakes: Vec<String> = Vec::new();
    apply(args, file, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    note_options(args, places);
    if let Err(error) = file.check_inspection() {
        mistakes.push(places.locate(&error.to_string()));
    }
    let settings = Settings::read(&file.configuration());
    let settings = settings.map_err(|errors| {
        mistakes.extend(errors.iter().map(|error| places.locate(&error.to_string())));
    });
    let mut settings = match settings {
        Ok(settings) if mistakes.is_empty() => settings,
        _ => return Err(mistakes),
    };
    if file.inspect.follows_plaintext() {
        settings.engine.cleartext = Cleartext::FromBeginning;
    }
    Ok(settings)
}

/// Which settings come from the command line.
fn note_options(args: &RunArgs, places: &mut Places) {
    let RunArgs { inline, passive, keys_listen, key_cert, key_key, report, .. } = args;
    for (is_given, key, option) in [
        (inline.is_some(), "inline.interfaces", "--inline"),
        (passive.is_some(), "passive.interfaces", "--passive"),
        (keys_listen.is_some(), "keys.listen", "--keys-listen"),
        (key_cert.is_some(), "keys.certificate_file", "--key-cert"),
        (key_key.is_some(), "keys.key_file", "--key-key"),
        (args.keys_client_ca.is_some(), "keys.client_ca_file", "--keys-client-ca"),
        (args.keylog.is_some(), "keys.log_file", "--keylog"),
        (args.missing_keys.is_some(), "policies.missing_keys", "--missing-keys"),
        (args.workers.is_some(), "workers.count", "--workers"),
        (report.log_dir.is_some(), "log.directory", "--log-dir"),
        (report.streams.is_some(), "log.streams_directory", "--streams"),
        (report.patterns.is_some(), "inspect.patterns_file", "--patterns"),
        (report.pattern_action.is_some(), "inspect.pattern_action", "--pattern-action"),
        (report.plaintext.is_some(), "inspect.plaintext", "--plaintext"),
        (!report.only_rules.is_empty(), "inspect.rules_files", "--only-rules"),
    ] {
        if is_given {
            places.option(key, option);
        }
    }
}

/// Lets options win over the file.
fn apply(args: &RunArgs, file: &mut File, mistakes: &mut Vec<String>) {
    if let Some(names) = &args.passive {
        file.inline.interfaces = None;
        let names: Vec<String> = names.split(':').map(str::to_owned).collect();
        if names.len() > 2 || names.iter().any(String::is_empty) {
            mistakes.push("--passive takes one interface name or two: IF1[:IF2]".to_owned());
        }
        file.passive.interfaces = Some(names);
    }
    if let Some(pair) = &args.inline {
        file.passive.interfaces = None;
        file.inline.interfaces = match pair.split_once(':') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => {
                Some([left.to_owned(), right.to_owned()])
            }
            _ => {
                mistakes.push("--inline takes two interface names: IF1:IF2".to_owned());
                None
            }
        };
    }
    if let Some(count) = args.workers {
        file.workers.count = count;
    }
    if let Some(name) = &args.missing_keys {
        file.policies.missing_keys = Policy::from_name(name).map(PolicyName);
    }
    file.keys.listen = args.keys_listen.or(file.keys.listen);
    let or = |option: &Option<PathBuf>, place: &mut Option<PathBuf>| {
        if option.is_some() {
            place.clone_from(option);
        }
    };
    or(&args.key_cert, &mut file.keys.certificate_file);
    or(&args.key_key, &mut file.keys.key_file);
    or(&args.keys_client_ca, &mut file.keys.client_ca_file);
    or(&args.keylog, &mut file.keys.log_file);
    file.log.fileinfo |= args.report.fileinfo;
    or(&args.report.log_dir, &mut file.log.directory);
    if file.log.directory.as_deref() == Some(Path::new(STANDARD_OUTPUT)) {
        mistakes.push(
            "log.directory (-l): standard output is for `mmtls read`; name a directory".to_owned(),
        );
    }
    or(&args.report.streams, &mut file.log.streams_directory);
    or(&args.report.patterns, &mut file.inspect.patterns_file);
    if !args.report.only_rules.is_empty() {
        file.inspect.rules_files.clone_from(&args.report.only_rules);
    }
    file.inspect.rules_files.extend_from_slice(&args.report.rules);
    file.inspect.plaintext = args.report.plaintext.or(file.inspect.plaintext);
    file.inspect.pattern_action = args.report.pattern_action.unwrap_or(file.inspect.pattern_action);
}
