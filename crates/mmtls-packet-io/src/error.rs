//! Errors of the packet back ends. Frames that merely could not be sent are counted, they are not errors.

use std::fmt;
use std::io;

use crate::Port;

/// Why a pair of ports could not be opened or cannot go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The configuration asks for something senseless. Caller's fault.
    InvalidConfig {
        /// What is wrong.
        reason: &'static str,
    },
    /// Both ports name the same interface. Caller's fault.
    SameInterface {
        /// The interface.
        interface: String,
    },
    /// No interface of this name in this network namespace. Caller's fault.
    NoSuchInterface {
        /// The name as given.
        interface: String,
    },
    /// Loopback, tunnels and the like cannot be bridged. Caller's fault.
    NotEthernet {
        /// The interface.
        interface: String,
        /// Its ARPHRD number.
        hardware: u16,
    },
    /// A frame to inject is shorter than an Ethernet header or longer than a GSO frame. Caller's fault.
    InvalidFrame {
        /// Its length in bytes.
        length: usize,
    },
    /// The interface is down: at opening, or it went down since. After it came up again, the ports go on.
    InterfaceDown {
        /// The interface.
        interface: String,
    },
    /// The interface was deleted, or moved to another namespace. The ports must be opened anew.
    InterfaceGone {
        /// The interface.
        interface: String,
        /// The port that it was.
        port: Port,
    },
    /// CAP_NET_RAW is missing.
    NotPermitted,
    /// The kernel is too old or built without this.
    Unsupported {
        /// What is missing.
        option: &'static str,
    },
    /// Any other failure of a system call.
    System {
        /// The call or socket option.
        call: &'static str,
        /// The interface, where one is concerned.
        interface: String,
        /// The kernel's answer.
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn system(call: &'static str, interface: &str, error: io::Error) -> Self {
        Self::System { call, interface: interface.to_owned(), error }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidConfig { reason } => write!(f, "bridge configuration: {reason}"),
            Self::SameInterface { interface } => {
                write!(f, "both interfaces are {interface}")
            }
            Self::NoSuchInterface { interface } => {
                write!(f, "there is no interface {interface:?} in this network namespace")
            }
            Self::NotEthernet { interface, hardware } => {
                write!(f, "{interface} is not an Ethernet interface (hardware type {hardware})")
            }
            Self::InvalidFrame { length } => {
                write!(f, "a frame of {length} bytes cannot be injected")
            }
            Self::InterfaceDown { interface } => write!(f, "{interface} is down"),
            Self::InterfaceGone { interface, port } => {
                write!(f, "{interface} ({port} port) does not exist any more")
            }
            Self::NotPermitted => {
                f.write_str("not permitted to open a packet socket (CAP_NET_RAW is needed)")
            }
            Self::Unsupported { option } => write!(f, "this kernel does not support {option}"),
            Self::System { call, interface, error } if interface.is_empty() => {
                write!(f, "{call}: {error}")
            }
            Self::System { call, interface, error } => write!(f, "{call} on {interface}: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System { error, .. } => Some(error),
            _ => None,
        }
    }
}
