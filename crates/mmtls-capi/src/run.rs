//! Running contexts: a capture, or interfaces.
//!
//! Refuses to let a context end without saying so: whoever waits for it would wait for ever.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use mmtls_middlebox::config::{Configuration, OfflineSection};
use mmtls_middlebox::keylog::KeyLog;
use mmtls_middlebox::offline::{self, Replay};
use mmtls_middlebox::{Error, Middlebox, Settings, harden};

use crate::application::Application;
use crate::context_end::End;
use crate::messages::Messages;

/// Set to end the contexts; all a signal handler touches. Only the end of what it was meant for
/// clears it: a signal that comes while `init` runs, or before, must not be lost.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);

/// A context that is to run.
pub(crate) struct Start {
    pub(crate) number: usize,
    pub(crate) application: Application,
    /// Which of the CPUs that this process may use.
    pub(crate) cpu: usize,
    pub(crate) end: Arc<End>,
}

/// What [`start`] would find missing in the configuration.
pub(crate) fn check(configuration: &Configuration) -> Result<(), String> {
    match configuration.offline.capture_file {
        Some(_) => Ok(()),
        None => {
            Settings::from_configuration(configuration).map(drop).map_err(|error| error.to_string())
        }
    }
}

/// Starts these contexts.
pub(crate) fn start(
    configuration: &Configuration,
    contexts: Vec<Start>,
    messages: Messages,
) -> Vec<JoinHandle<()>> {
    if configuration.offline.capture_file.is_none() {
        let ends = contexts.iter().map(|context| Arc::clone(&context.end)).collect();
        let configuration = configuration.clone();
        return spawn("mmtls", ends, move || bridge(&configuration, contexts, messages))
            .into_iter()
            .collect();
    }
    let mut captures = Some(configuration.offline.clone());
    let threads = contexts.into_iter().filter_map(|context| {
        let name = format!("mmtls-{}", context.cpu);
        // The first context replays, the others have nothing to do.
        let capture = captures.take().unwrap_or_default();
        let ends = vec![Arc::clone(&context.end)];
        spawn(&name, ends, move || replay(context, &capture, messages))
    });
    threads.collect()
}

/// Runs `work` on a thread, and tells its end whatever happens.
fn spawn(
    name: &str,
    ends: Vec<Arc<End>>,
    work: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Option<JoinHandle<()>> {
    let waiting = ends.clone();
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let result = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err("internal error: a panic".to_owned()),
        };
        ends.iter().for_each(|end| end.tell(result.clone()));
    });
    match thread {
        Ok(thread) => Some(thread),
        Err(error) => {
            waiting.iter().for_each(|end| end.tell(Err(format!("a thread: {error}"))));
            None
        }
    }
}

/// Bridges interfaces, one worker for each context.
fn bridge(
    configuration: &Configuration,
    contexts: Vec<Start>,
    messages: Messages,
) -> Result<(), Error> {
    let mut settings = Settings::from_configuration(configuration)?;
    settings.workers = u32::try_from(contexts.len()).unwrap_or(u32::MAX);
    let allowed = harden::allowed_cpus()?;
    settings.cpus = contexts.iter().filter_map(|context| nth(&allowed, context.cpu)).collect();
    let first = contexts.first().map_or(0, |context| context.number);
    let middlebox = Middlebox::open(settings)?;
    let (applications, ends): (Vec<_>, Vec<_>) =
        contexts.into_iter().map(|context| (context.application, context.end)).unzip();
    // Interfaces and key log are the same for all of them.
    let tell = |line: &str| messages.tell(first, line);
    middlebox.warnings().for_each(|warning| tell(&format!("warning: {warning}")));
    let keys = middlebox.key_meter();
    let finished = middlebox.run(applications, &STOP, |number, worker| {
        if let Some(end) = ends.get(number) {
            end.count(*worker.engine().counters());
        }
        if number == 0 {
            worker.take_message().iter().for_each(|line| tell(line));
            if let Some(error) = keys.take_key_log_error() {
                tell(&format!("the key log cannot be read: {error}; going on when it can"));
            }
        }
    });
    for ((_, status), end) in finished.workers.iter().zip(&ends) {
        end.count(status.engine);
    }
    finished.result
}

/// Replays a capture, or nothing.
fn replay(context: Start, capture: &OfflineSection, messages: Messages) -> Result<(), Error> {
    harden::forbid_dumps()?;
    if let Some(cpu) = nth(&harden::allowed_cpus()?, context.cpu) {
        harden::bind_to_cpu(cpu)?;
    }
    let keys = match &capture.keylog_file {
        Some(keylog) => offline::load_keylog(keylog)?,
        None => KeyLog::new(),
    };
    let file = match &capture.capture_file {
        Some(path) => {
            let error = |error| Error::File { path: path.clone(), error };
            Some((path, File::open(path).map_err(error)?))
        }
        None => None,
    };
    // A capture is what an attacker sent.
    harden::drop_capabilities()?;
    let mut replay: Replay<Application> = Replay::new(offline::config(), keys, context.application);
    let result = match file {
        Some((path, file)) => {
            let goes_on = |_: &mut _| !STOP.load(Ordering::Relaxed);
            replay.run_file(path, file, goes_on).map(|warnings| {
                for warning in warnings {
                    messages.tell(context.number, &format!("warning: {warning}"));
                }
            })
        }
        None => Ok(()),
    };
    replay.end();
    context.end.count(*replay.engine().counters());
    result
}

/// The processor of the context with this number: more of them than processors share them.
fn nth(allowed: &[usize], cpu: usize) -> Option<usize> {
    allowed.get(cpu.checked_rem(allowed.len())?).copied()
}
