//! Errors of the packet back ends. Frames that merely could not be sent are counted, they are not errors.

use std::io;

use thiserror::Error;

use crate::Port;
use crate::guard::GuardError;

/// Why a pair of ports could not be opened or cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration asks for something senseless. Caller's fault.
    #[error("bridge configuration: {reason}")]
    InvalidConfig {
        /// What is wrong.
        reason: &'static str,
    },
    /// Both ports name the same interface. Caller's fault.
    #[error("both interfaces are {interface}")]
    SameInterface {
        /// The interface.
        interface: String,
    },
    /// No interface of this name in this network namespace. Caller's fault.
    #[error("there is no interface {interface:?} in this network namespace")]
    NoSuchInterface {
        /// The name as given.
        interface: String,
    },
    /// Loopback, tunnels and the like cannot be bridged. Caller's fault.
    #[error("{interface} is not an Ethernet interface (hardware type {hardware})")]
    NotEthernet {
        /// The interface.
        interface: String,
        /// Its ARPHRD number.
        hardware: u16,
    },
    /// A bridge or bond of the kernel has it, and takes its frames. Caller's fault.
    #[error(
        "{interface} is a port of {master}, which takes its frames (ip link set {interface} nomaster)"
    )]
    Enslaved {
        /// The interface.
        interface: String,
        /// Whose port it is.
        master: String,
    },
    /// Another bridge has it. Caller's fault.
    #[error(
        "{interface} is bridged already ({processes}): end that first (mmtls run: --take-over)"
    )]
    Bridged {
        /// The interface.
        interface: String,
        /// Who has the sockets, as far as this user may see.
        processes: String,
    },
    /// A frame to inject is shorter than an Ethernet header or longer than a GSO frame. Caller's fault.
    #[error("a frame of {length} bytes cannot be injected")]
    InvalidFrame {
        /// Its length in bytes.
        length: usize,
    },
    /// The interface is down: at opening, or it went down since. After it came up again, the ports go on.
    #[error("{interface} is down")]
    InterfaceDown {
        /// The interface.
        interface: String,
    },
    /// The interface is up, and nobody is at the other end: no cable, or the other end of a veth pair is down. What is sent there
    /// is lost, and nothing says so.
    #[error("{interface} has no carrier")]
    NoCarrier {
        /// The interface.
        interface: String,
    },
    /// The interface was deleted, or moved to another namespace. The ports must be opened anew.
    #[error("{interface} ({port} port) does not exist any more")]
    InterfaceGone {
        /// The interface.
        interface: String,
        /// The port that it was.
        port: Port,
    },
    /// The guard is not as the configuration needs it, or somebody else's.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// CAP_NET_RAW is missing.
    #[error("not permitted to open a packet socket (CAP_NET_RAW is needed)")]
    NotPermitted,
    /// The kernel is too old or built without this.
    #[error("this kernel does not support {option}")]
    Unsupported {
        /// What is missing.
        option: &'static str,
    },
    /// Any other failure of a system call.
    #[error("{call}{}: {error}", on(interface))]
    System {
        /// The call or socket option.
        call: &'static str,
        /// The interface, where one is concerned.
        interface: String,
        /// The kernel's answer.
        #[source]
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn system(call: &'static str, interface: &str, error: io::Error) -> Self {
        Self::System { call, interface: interface.to_owned(), error }
    }
}

fn on(interface: &str) -> String {
    if interface.is_empty() { String::new() } else { format!(" on {interface}") }
}
