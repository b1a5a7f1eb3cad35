//! What the environment asks for, read once when the library is loaded: later the host may change
//! its environment from any thread. Refuses to share anything when the environment makes no
//! sense, because a rule that cannot be read might have been an exemption.

use std::env;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use mmtls_keyshare::agent::{
    EXEMPT_VARIABLE, SHARE_HANDSHAKE_VARIABLE, SHARE_SERVER_VARIABLE, SOCKET_VARIABLE,
};
use mmtls_keyshare::policy::ServerNames;

/// What the environment asks for.
pub struct Config {
    /// Path of the agent's socket, as a C string fits it: no zero byte, not too long.
    pub agent: Vec<u8>,
    /// Server names whose sessions stay private.
    pub exempt: ServerNames,
    /// Whether to share sessions in which the host is the server, too.
    pub share_server: bool,
    /// Whether to share handshake keys, too: they show certificates.
    pub share_handshake: bool,
    /// The user when the library was loaded; the host may become another one.
    pub user: libc::uid_t,
}

static CONFIG: OnceLock<Option<Config>> = OnceLock::new();

/// Reads the environment.
pub fn load() {
    get();
}

/// The configuration, or nothing when keys are not to be shared.
pub fn get() -> Option<&'static Config> {
    // Another library's constructor may make a context before ours runs.
    CONFIG.get_or_init(read).as_ref()
}

fn read() -> Option<Config> {
    // SAFETY: no preconditions.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) };
    if privileged != 0 {
        return None;
    }
    let agent = env::var_os(SOCKET_VARIABLE)?.as_bytes().to_vec();
    if agent.is_empty() || agent.len() >= size_of::<libc::sockaddr_un>() - 2 {
        return None;
    }
    let exempt = match env::var_os(EXEMPT_VARIABLE) {
        Some(list) => ServerNames::parse(list.to_str()?).ok()?,
        None => ServerNames::default(),
    };
    let is_set = |variable| env::var_os(variable).is_some_and(|value| value == "1");
    let share_server = is_set(SHARE_SERVER_VARIABLE);
    let share_handshake = is_set(SHARE_HANDSHAKE_VARIABLE);
    // SAFETY: no preconditions.
    let user = unsafe { libc::getuid() };
    Some(Config { agent, exempt, share_server, share_handshake, user })
}
