//! How a program hands the secrets of its TLS sessions to the agent on its host: what the preload library and the C library
//! `libmmtls-share` have in common.
//!
//! * [`settings`]: where the agent is, and what is shared, by environment.
//! * [`agent`]: the connection to the agent.
//! * [`openssl`]: the functions of an OpenSSL that was found somewhere.
//! * [`keylog`]: a keylog callback of ours in front of the program's, and what it sends.
//! * [`host`]: the program's `errno`, its thread's cancelability, its sockets.
//! * [`lock`]: a lock that survives `fork`.
//!
//! It runs inside other people's programs, so losing a key is better than disturbing the host.
//! It refuses: to print, to change `errno`, to let a panic out of [`host::guarded`], to block (but for one millisecond while
//! the agent's socket is full, once until it drains, and a tenth of a second while another thread that is in it has no processor), to start a
//! thread, to talk to an agent of another user.

#[cfg(not(target_os = "linux"))]
compile_error!("the agent's socket is for Linux");

pub mod agent;
pub mod host;
pub mod keylog;
pub mod lock;
pub mod openssl;
pub mod settings;
