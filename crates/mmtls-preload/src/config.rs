//! What the environment asks for, read once when the library is loaded. Refuses to share anything when it makes no sense.

use std::sync::OnceLock;

use mmtls_sender::settings::Settings;

static CONFIG: OnceLock<Option<Settings>> = OnceLock::new();

/// Reads the environment.
pub fn load() {
    get();
}

/// The configuration, or nothing when keys are not to be shared.
pub fn get() -> Option<&'static Settings> {
    // Another library's constructor may make a context before ours runs.
    CONFIG.get_or_init(|| Settings::read(None).ok()).as_ref()
}
