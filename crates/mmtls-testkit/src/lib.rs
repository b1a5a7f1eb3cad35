//! The testbed of mmTLS: real TLS programs in network namespaces, for tests and benchmarks.
//!
//! Job: build `client – middlebox – server` out of namespaces and veth pairs, start real servers
//! in it, measure, and take everything away again. Nothing here ships: only dev-dependencies and
//! `xtask` may name this crate (`deny.toml`).
//!
//! Refuses: to touch interfaces, routes or processes outside the namespaces it made; to pass
//! silently where namespaces cannot be made (see [`require_testbed`]).
//!
//! ```no_run
//! use mmtls_testkit::{Middle, Nginx, NginxOptions, Testbed, files};
//! # fn main() -> Result<(), mmtls_testkit::TestbedError> {
//! let bed = Testbed::new(Middle::KernelBridge)?;
//! let server = Nginx::start(&bed, NginxOptions::default())?;
//! files::pattern(&server.root().join("hello.txt"), 1024, 7)?;
//! let mut curl = bed.client.command("curl");
//! curl.arg("--cacert").arg(&bed.pki().ca).args(bed.resolve_args());
//! curl.args(["-sS", "https://server.test/hello.txt"]);
//! let page = bed.run("curl", curl, std::time::Duration::from_secs(10))?;
//! assert!(page.status.success());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod browsers;
pub mod captures;
pub mod compromised;
pub mod dialogs;
pub mod ech;
pub mod files;
pub mod frames;
pub mod middlebox;
pub mod opening;
pub mod openssl;
pub mod pki;
pub mod proxies;
pub mod segments;
pub mod servers;
pub mod synthesis;
pub mod testbed;
pub mod wire;

pub use middlebox::{KEYS_PORT, Mmtls, MmtlsOptions, MmtlsReport};
pub use openssl::PrivateTagOpenssl;
pub use pki::{Identity, KeyType, Pki};
pub use proxies::{Proxy, ProxyKind, ProxyOptions};
pub use servers::{Nginx, NginxOptions, NginxSplit, OpensslServer, SplitOptions, may_have_workers};
pub use testbed::capture::Capture;
pub use testbed::cpu::machine_cpu;
pub use testbed::error::TestbedError;
pub use testbed::namespace::{Namespace, wait_until};
pub use testbed::process::{Background, Finished};
pub use testbed::skip::{
    require_browser, require_file, require_program, require_python, require_testbed, skip_unless,
    skipped_so_far,
};
pub use testbed::sweep::sweep;
pub use testbed::{Middle, Options, Testbed, address};
