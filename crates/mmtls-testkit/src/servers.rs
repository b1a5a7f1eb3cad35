//! Real TLS servers for the testbed: nginx, nginx as split proxy, `openssl s_server`.
//!
//! Each has its own configuration, PID file and directories, runs in the foreground and ends with
//! its handle. Refuses the system's nginx configuration and service.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::openssl::PrivateTagOpenssl;
use crate::pki::KeyType;
use crate::testbed::error::TestbedError;
use crate::testbed::namespace::{self, Namespace};
use crate::testbed::process::Background;
use crate::testbed::skip::find_program;
use crate::testbed::{Middle, Testbed, address};

/// How long a program may take to be ready, on a machine that does other things, too.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(30);

/// What nginx serves and how.
#[derive(Debug, Clone)]
pub struct NginxOptions {
    /// TLS 1.3 suites in OpenSSL's notation, separated by colons; empty for OpenSSL's default.
    pub ciphersuites: String,
    /// TLS 1.2 suites in OpenSSL's notation; empty for nginx's default.
    pub ciphers: String,
    /// Value of `ssl_protocols`.
    pub protocols: String,
    /// Value of `ssl_ecdh_curve`; empty for the default.
    pub groups: String,
    /// The server's key.
    pub key_type: KeyType,
    /// Directory to serve; `None` makes an empty one (see [`Nginx::root`]).
    pub root: Option<PathBuf>,
    /// Whether connections carry several requests.
    pub keepalive: bool,
    /// Whether HTTP/2 is offered.
    pub http2: bool,
    /// Whether sessions can be resumed (cache and tickets).
    pub resumption: bool,
    /// Value of `ssl_buffer_size`, the largest plaintext of a record, in bytes.
    pub record_bytes: u32,
    /// Lines added to the server block.
    pub extra: String,
    /// Another OpenSSL than the installed one.
    pub openssl: Option<PrivateTagOpenssl>,
    /// A program that starts it, with its arguments.
    pub through: Vec<OsString>,
}

impl Default for NginxOptions {
    fn default() -> Self {
        Self {
            ciphersuites: String::new(),
            ciphers: String::new(),
            protocols: "TLSv1.2 TLSv1.3".to_owned(),
            groups: String::new(),
            key_type: KeyType::Ecdsa,
            root: None,
            keepalive: true,
            http2: false,
            resumption: true,
            record_bytes: 16384,
            extra: String::new(),
            openssl: None,
            through: Vec::new(),
        }
    }
}

/// nginx in the server namespace, on port 443 of both address families.
#[derive(Debug)]
pub struct Nginx {
    /// The process, for its processor time and output.
    pub process: Background,
    root: PathBuf,
}

impl Nginx {
    /// Starts nginx and waits until it listens.
    ///
    /// # Errors
    /// [`TestbedError::Unavailable`] without nginx; else what it said.
    pub fn start(bed: &Testbed, options: NginxOptions) -> Result<Self, TestbedError> {
        let home = server_home(bed, "nginx")?;
        let root = match &options.root {
            Some(root) => root.clone(),
            None => make_directory(home.join("root"))?,
        };
        let identity = bed.pki().server_with(options.key_type);
        let http2 = if options.http2 { " http2" } else { "" };
        let listen = listeners(bed, "0.0.0.0", "[::]", http2);
        let tls = tls_settings(&TlsSettings {
            certificate: &identity.certificate,
            key: &identity.key,
            protocols: &options.protocols,
            ciphersuites: &options.ciphersuites,
            ciphers: &options.ciphers,
            groups: &options.groups,
            record_bytes: options.record_bytes,
            resumption: options.resumption,
        });
        let block = format!(
            "server {{\n{listen}{tls}root {};\nkeepalive_timeout {};\n{}\n}}\n",
            root.display(),
            if options.keepalive { "65s" } else { "0" },
            options.extra,
        );
        let start =
            Start { openssl: options.openssl.as_ref(), through: &options.through, workers: 1 };
        let process = start_nginx(bed, &bed.server, &home, &block, &start)?;
        Ok(Self { process, root })
    }

    /// The served directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// How the split proxy behaves.
#[derive(Debug, Clone)]
pub struct SplitOptions {
    /// TLS 1.3 suites on both sides; empty for OpenSSL's default.
    pub ciphersuites: String,
    /// TLS 1.2 suites on both sides, in OpenSSL's notation; empty for nginx's default.
    pub ciphers: String,
    /// `ssl_protocols` on both sides.
    pub protocols: String,
    /// The proxy's key towards clients.
    pub key_type: KeyType,
    /// Idle connections kept to the server; 0 for a new one per request.
    pub upstream_keepalive: u32,
    /// Whether the server's certificate is verified.
    pub verify: bool,
    /// Whether clients are offered HTTP/2; the server is asked over HTTP/1.1, as nginx does.
    pub http2: bool,
    /// Value of `worker_processes`. Several need rights ([`TestbedError::Unavailable`] without).
    pub workers: u32,
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self {
            ciphersuites: String::new(),
            ciphers: String::new(),
            protocols: "TLSv1.2 TLSv1.3".to_owned(),
            key_type: KeyType::Ecdsa,
            upstream_keepalive: 512,
            verify: true,
            http2: false,
            workers: 1,
        }
    }
}

/// nginx as split-TLS proxy in the middlebox namespace: what mmTLS is compared with.
///
/// Every client connection is a full handshake (no session cache, no tickets). It holds a
/// certificate with the server's name, as such proxies must.
#[derive(Debug)]
pub struct NginxSplit {
    /// The process, for its processor time and output.
    pub process: Background,
}

impl NginxSplit {
    /// Starts the proxy and waits until it listens. The testbed must be [`Middle::Routed`].
    ///
    /// # Errors
    /// [`TestbedError::Failed`] for another kind of testbed; else as [`Nginx::start`].
    pub fn start(bed: &Testbed, options: SplitOptions) -> Result<Self, TestbedError> {
        if bed.middle() != Middle::Routed {
            return Err(TestbedError::Failed {
                what: "split proxy".to_owned(),
                detail: "needs a testbed with Middle::Routed".to_owned(),
            });
        }
        let home = server_home(bed, "split")?;
        let identity = bed.pki().server_with(options.key_type);
        let http2 = if options.http2 { " http2" } else { "" };
        let listen =
            listeners(bed, address::SERVER_V4, &format!("[{}]", address::SERVER_V6), http2);
        let tls = tls_settings(&TlsSettings {
            certificate: &identity.certificate,
            key: &identity.key,
            protocols: &options.protocols,
            ciphersuites: &options.ciphersuites,
            ciphers: &options.ciphers,
            groups: "",
            record_bytes: 16384,
            resumption: false,
        });
        let keepalive = match options.upstream_keepalive {
            0 => String::new(),
            n => format!("keepalive {n};\nkeepalive_requests 1000000000;\nkeepalive_time 1d;\n"),
        };
        let connection = if options.upstream_keepalive == 0 { "close" } else { "" };
        let mut suites = String::new();
        for (directive, list) in [
            ("proxy_ssl_conf_command Ciphersuites", &options.ciphersuites),
            ("proxy_ssl_ciphers", &options.ciphers),
        ] {
            if !list.is_empty() {
                suites.push_str(&format!("{directive} {list};\n"));
            }
        }
        let block = format!(
            "upstream origin {{\nserver {origin}:443;\n{keepalive}}}\n\
             server {{\n{listen}{tls}location / {{\n\
             proxy_pass https://origin;\nproxy_http_version 1.1;\n\
             proxy_set_header Connection \"{connection}\";\nproxy_set_header Host $host;\n\
             proxy_buffering off;\nproxy_request_buffering off;\nproxy_buffer_size 64k;\n\
             proxy_buffers 8 64k;\nproxy_busy_buffers_size 128k;\n\
             proxy_ssl_session_reuse off;\nproxy_ssl_server_name on;\nproxy_ssl_name {name};\n\
             proxy_ssl_protocols {protocols};\n{suites}\
             proxy_ssl_verify {verify};\nproxy_ssl_trusted_certificate {ca};\n}}\n}}\n",
            origin = address::ORIGIN_V4,
            name = address::SERVER_NAME,
            protocols = options.protocols,
            verify = if options.verify { "on" } else { "off" },
            ca = bed.pki().ca.display(),
        );
        let start = Start { openssl: None, through: &[], workers: options.workers };
        let process = start_nginx(bed, &bed.middlebox, &home, &block, &start)?;
        Ok(Self { process })
    }
}

/// `openssl s_server` in the server namespace, on port 443 of both address families.
#[derive(Debug)]
pub struct OpensslServer {
    /// The process, for its processor time and output.
    pub process: Background,
    root: PathBuf,
}

impl OpensslServer {
    /// Starts `s_server -WWW`, which serves the files of [`Self::root`], with more arguments:
    /// `-tls1_2`, `-cipher …`, `-ciphersuites …`, `-early_data`, `-keylogfile …`.
    ///
    /// # Errors
    /// [`TestbedError::Unavailable`] without openssl; else what it said.
    pub fn files(bed: &Testbed, arguments: &[&str]) -> Result<Self, TestbedError> {
        Self::start(bed, "-WWW", arguments)
    }

    /// Starts `s_server -www`, which answers every request with a page about the connection.
    ///
    /// # Errors
    /// As [`Self::files`].
    pub fn status_page(bed: &Testbed, arguments: &[&str]) -> Result<Self, TestbedError> {
        Self::start(bed, "-www", arguments)
    }

    fn start(bed: &Testbed, mode: &str, arguments: &[&str]) -> Result<Self, TestbedError> {
        let home = server_home(bed, "openssl")?;
        let mut command = bed.server.command("openssl");
        command.current_dir(&home).args(["s_server", mode]);
        command.args(["-accept", "443"]);
        if !arguments.contains(&"-cert") {
            let identity = &bed.pki().server;
            command.arg("-cert").arg(&identity.certificate);
            command.arg("-key").arg(&identity.key);
        }
        command.args(arguments);
        let mut process = bed.background("s_server", command)?;
        process.wait_for_listen(443, START_LIMIT)?;
        Ok(Self { process, root: home })
    }

    /// The served directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
}

struct TlsSettings<'a> {
    certificate: &'a Path,
    key: &'a Path,
    protocols: &'a str,
    ciphersuites: &'a str,
    ciphers: &'a str,
    groups: &'a str,
    record_bytes: u32,
    resumption: bool,
}

fn tls_settings(settings: &TlsSettings<'_>) -> String {
    let mut text = format!(
        "ssl_certificate {};\nssl_certificate_key {};\nssl_protocols {};\nssl_buffer_size {};\n",
        settings.certificate.display(),
        settings.key.display(),
        settings.protocols,
        settings.record_bytes,
    );
    let mut add = |directive: &str, value: &str| {
        if !value.is_empty() {
            text.push_str(&format!("{directive} {value};\n"));
        }
    };
    add("ssl_conf_command Ciphersuites", settings.ciphersuites);
    add("ssl_ciphers", settings.ciphers);
    add("ssl_ecdh_curve", settings.groups);
    if settings.resumption {
        add("ssl_session_cache", "shared:tls:4m");
        add("ssl_session_tickets", "on");
    } else {
        add("ssl_session_cache", "off");
        add("ssl_session_tickets", "off");
    }
    text
}

fn listeners(bed: &Testbed, v4: &str, v6: &str, flags: &str) -> String {
    let mut text = format!("listen {v4}:443 ssl{flags} backlog=4096;\n");
    if bed.has_ipv6() {
        text.push_str(&format!("listen {v6}:443 ssl{flags} backlog=4096 ipv6only=on;\n"));
    }
    text
}

/// Whether nginx may have several workers: one that cannot change its groups does everything in one process.
#[must_use]
pub fn may_have_workers() -> bool {
    !namespace::groups_are_denied()
}

/// How it is started.
struct Start<'a> {
    openssl: Option<&'a PrivateTagOpenssl>,
    through: &'a [OsString],
    workers: u32,
}

fn start_nginx(
    bed: &Testbed,
    place: &Namespace,
    home: &Path,
    block: &str,
    start: &Start<'_>,
) -> Result<Background, TestbedError> {
    if find_program("nginx").is_none() {
        return Err(TestbedError::Unavailable("nginx is not installed".to_owned()));
    }
    let dir = home.display();
    // In a user namespace without other groups a worker's initgroups fails and would end it:
    // there, one process does everything. With rights, master and one worker as usual.
    let processes = match may_have_workers() {
        true => format!("worker_processes {};", start.workers),
        false if start.workers == 1 => "master_process off;".to_owned(),
        false => {
            let why = "nginx may have one process only, which cannot change its groups";
            return Err(TestbedError::Unavailable(why.to_owned()));
        }
    };
    let configuration = format!(
        "daemon off;\nuser root;\n{processes}\npid {dir}/nginx.pid;\nerror_log stderr warn;\n\
         worker_rlimit_nofile 20000;\nevents {{ worker_connections 8192; }}\n\
         http {{\naccess_log off;\nserver_tokens off;\nsendfile on;\ntcp_nopush on;\n\
         keepalive_requests 1000000000;\nkeepalive_time 1d;\n\
         types {{ text/plain txt; text/html html; }}\ndefault_type application/octet-stream;\n\
         client_body_temp_path {dir}/body;\nproxy_temp_path {dir}/proxy;\n\
         fastcgi_temp_path {dir}/fastcgi;\nuwsgi_temp_path {dir}/uwsgi;\n\
         scgi_temp_path {dir}/scgi;\n{block}}}\n"
    );
    let path = home.join("nginx.conf");
    fs::write(&path, configuration).map_err(TestbedError::io(&path))?;
    let mut command = match start.through {
        [] => place.command("nginx"),
        [program, arguments @ ..] => {
            let mut command = place.command(program);
            command.args(arguments).arg("nginx");
            command
        }
    };
    if let Some(openssl) = start.openssl {
        openssl.lend(&mut command);
    }
    command.arg("-p").arg(home).arg("-c").arg(&path);
    command.args(["-e", "stderr"]);
    let mut process = bed.background("nginx", command)?;
    process.wait_for_listen(443, START_LIMIT)?;
    Ok(process)
}

fn server_home(bed: &Testbed, name: &str) -> Result<PathBuf, TestbedError> {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    make_directory(bed.directory().join(format!("{name}-{count}")))
}

fn make_directory(path: PathBuf) -> Result<PathBuf, TestbedError> {
    fs::create_dir_all(&path).map_err(TestbedError::io(&path))?;
    Ok(path)
}
