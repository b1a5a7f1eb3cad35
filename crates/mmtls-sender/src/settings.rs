//! Where the agent is, and what is shared: from the environment, which the host may change later from any thread, so it is read
//! once. Refuses settings that make no sense, because a rule that cannot be read might have been an exemption.

use std::env;
use std::os::unix::ffi::OsStrExt;

use mmtls_keyshare::agent::{
    EXEMPT_VARIABLE, SHARE_HANDSHAKE_VARIABLE, SHARE_SERVER_VARIABLE, SOCKET_VARIABLE,
};
use mmtls_keyshare::policy::ServerNames;

use crate::agent::Address;

/// Whom to share with, and what.
pub struct Settings {
    /// The agent.
    pub agent: Address,
    /// What is shared with it.
    pub rules: Rules,
}

/// What is shared.
#[derive(Default)]
pub struct Rules {
    /// Server names whose sessions stay private.
    pub exempt: ServerNames,
    /// Whether to share sessions in which the host is the server, too.
    pub server: bool,
    /// Whether to share handshake keys, too: they show certificates.
    pub handshake: bool,
}

/// Why nothing can be shared: the caller's fault, or that of who made the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// No path is given, and the environment names none, or is not to be trusted (setuid programs).
    NoPath,
    /// The path is empty or too long for a socket.
    Path,
    /// The list of exempt names cannot be read.
    Names,
}

impl Settings {
    /// Reads the environment; a path that is given goes before its.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn read(path: Option<&[u8]>) -> Result<Self, SettingsError> {
        // SAFETY: no preconditions.
        let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        let variable = |name| if privileged { None } else { env::var_os(name) };
        let from_environment = variable(SOCKET_VARIABLE);
        let path = path.or(from_environment.as_ref().map(|path| path.as_bytes()));
        let agent = Address::new(path.ok_or(SettingsError::NoPath)?).ok_or(SettingsError::Path)?;
        let exempt = match variable(EXEMPT_VARIABLE) {
            Some(list) => list.to_str().and_then(|list| ServerNames::parse(list).ok()),
            None => Some(ServerNames::default()),
        };
        let is_set = |name| variable(name).is_some_and(|value| value == "1");
        let rules = Rules {
            exempt: exempt.ok_or(SettingsError::Names)?,
            server: is_set(SHARE_SERVER_VARIABLE),
            handshake: is_set(SHARE_HANDSHAKE_VARIABLE),
        };
        Ok(Self { agent, rules })
    }
}
