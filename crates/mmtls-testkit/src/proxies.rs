//! Other split-TLS proxies than nginx in the middlebox's namespace: HAProxy, Squid (`ssl-bump`), mitmproxy.
//!
//! Each with one thread or process, connections kept on both sides, the server's certificate verified, no sessions resumed, nothing
//! logged or cached: what such a proxy needs not do to forward, it does not. Refuses another testbed than [`Middle::Routed`].

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::pki::{Identity, KeyType, make_ca};
use crate::testbed::error::TestbedError;
use crate::testbed::process::Background;
use crate::testbed::skip::is_installed;
use crate::testbed::sweep::ScratchDir;
use crate::testbed::{Middle, Testbed, address};

/// How long one may take to listen; mitmproxy is written in Python.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Where Squid gets what the kernel redirects.
const SQUID_PORT: u16 = 3130;
/// Whom Debian's Squid becomes: it refuses to stay root.
const SQUID_USER: &str = "proxy";
const CERTIFICATE_MAKER: &str = "/usr/lib/squid/security_file_certgen";

/// Which one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyKind {
    /// As a reverse proxy, with the server's certificate.
    Haproxy,
    /// As an interceptor that makes certificates by a CA of its own, which clients do not know: they ask the server's own address.
    Squid,
    /// As a reverse proxy, with the server's certificate.
    Mitmproxy,
}

impl ProxyKind {
    /// The program.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Haproxy => "haproxy",
            Self::Squid => "squid",
            Self::Mitmproxy => "mitmdump",
        }
    }

    /// A program that it needs and that is not installed.
    #[must_use]
    pub fn missing(self) -> Option<&'static str> {
        let needed: &[&str] = match self {
            Self::Squid => &["squid", "nft"],
            Self::Haproxy | Self::Mitmproxy => &[self.program()],
        };
        needed.iter().copied().find(|program| !is_installed(program))
    }

    /// The address that clients ask.
    #[must_use]
    pub fn server(self) -> &'static str {
        match self {
            Self::Squid => address::ORIGIN_V4,
            Self::Haproxy | Self::Mitmproxy => address::SERVER_V4,
        }
    }
}

/// What it speaks.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// Which one.
    pub kind: ProxyKind,
    /// TLS 1.3 suites on both sides, in OpenSSL's notation. mitmproxy's are OpenSSL's default.
    pub ciphersuites: String,
    /// TLS 1.2 suites on both sides, in OpenSSL's notation; empty for OpenSSL's default.
    pub ciphers: String,
    /// The only version: `1.2` or `1.3`.
    pub version: &'static str,
    /// The key towards clients.
    pub key_type: KeyType,
}

/// A running one.
#[derive(Debug)]
pub struct Proxy {
    /// Which one.
    pub kind: ProxyKind,
    /// The process, for its processor time and output.
    pub process: Background,
    /// Its configuration, or its arguments: what a reader of a benchmark wants to see.
    pub settings: String,
    _home: ScratchDir,
}

impl Proxy {
    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// [`TestbedError::Unavailable`] where the program is not there; [`TestbedError::Failed`] for another kind of testbed, or with
    /// what it said.
    pub fn start(bed: &Testbed, options: &ProxyOptions) -> Result<Self, TestbedError> {
        let failed = |detail: String| TestbedError::Failed { what: "proxy".to_owned(), detail };
        if bed.middle() != Middle::Routed {
            return Err(failed("needs a testbed with Middle::Routed".to_owned()));
        }
        if let Some(missing) = options.kind.missing() {
            return Err(TestbedError::Unavailable(format!("{missing} is not installed")));
        }
        let program = options.kind.program();
        let home = ScratchDir::create(program)?;
        let (settings, command, port) = match options.kind {
            ProxyKind::Haproxy => haproxy(bed, options, home.path())?,
            ProxyKind::Squid => squid(bed, options, home.path())?,
            ProxyKind::Mitmproxy => mitmproxy(bed, options, home.path())?,
        };
        let mut process = bed.background(program, command)?;
        process.wait_for_listen(port, START_LIMIT)?;
        Ok(Self { kind: options.kind, process, settings, _home: home })
    }
}

type Prepared = (String, std::process::Command, u16);

/// Certificate and key in one file.
fn combined(identity: &Identity, home: &Path) -> Result<PathBuf, TestbedError> {
    let mut text = Vec::new();
    for file in [&identity.certificate, &identity.key] {
        text.extend(fs::read(file).map_err(TestbedError::io(file))?);
    }
    write(home.join("identity.pem"), &text)
}

fn write(path: PathBuf, text: impl AsRef<[u8]>) -> Result<PathBuf, TestbedError> {
    fs::write(&path, text).map_err(TestbedError::io(&path))?;
    Ok(path)
}

/// As its management guide has it for a proxy that is to be fast: connections to servers shared, no tickets, no cache of sessions.
fn haproxy(bed: &Testbed, options: &ProxyOptions, home: &Path) -> Result<Prepared, TestbedError> {
    let identity = combined(bed.pki().server_with(options.key_type), home)?;
    let mut suites = String::new();
    for (name, value) in [("ciphersuites", &options.ciphersuites), ("ciphers", &options.ciphers)] {
        if !value.is_empty() {
            let _ = write!(suites, " {name} {value}");
        }
    }
    let version = options.version;
    let settings = format!(
        "global\n  nbthread 1\n  maxconn 8192\n  tune.ssl.cachesize 0\n  tune.ssl.default-dh-param 2048\n\
         defaults\n  mode http\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n  http-reuse always\n\
         frontend tls\n  bind {listen}:443 ssl crt {identity} ssl-min-ver TLSv{version} ssl-max-ver TLSv{version}{suites} \
         no-tls-tickets alpn h2,http/1.1\n  default_backend origin\n\
         backend origin\n  server origin {origin}:443 ssl verify required ca-file {ca} sni str({name}) \
         ssl-min-ver TLSv{version} ssl-max-ver TLSv{version}{suites} no-ssl-reuse alpn http/1.1\n",
        listen = address::SERVER_V4,
        identity = identity.display(),
        origin = address::ORIGIN_V4,
        ca = bed.pki().ca.display(),
        name = address::SERVER_NAME,
    );
    let file = write(home.join("haproxy.cfg"), &settings)?;
    let mut command = bed.middlebox.command("haproxy");
    command.arg("-db").arg("-f").arg(file);
    Ok((settings, command, 443))
}

/// Transparent interception, as its wiki has it: the kernel redirects, Squid looks at the ClientHello, bumps, and makes a certificate.
fn squid(bed: &Testbed, options: &ProxyOptions, home: &Path) -> Result<Prepared, TestbedError> {
    // Certificates are made for its CA's own key, whose type is then theirs.
    let ca = make_ca(home, options.key_type)?;
    let origin = home.join("origin.pem");
    fs::copy(&bed.pki().ca, &origin).map_err(TestbedError::io(&origin))?;
    let version = options.version;
    // Squid names protocols that it leaves out.
    let others = match version {
        "1.2" => "NO_SSLv3:NO_TLSv1:NO_TLSv1_1:NO_TLSv1_3",
        _ => "NO_SSLv3:NO_TLSv1:NO_TLSv1_1:NO_TLSv1_2",
    };
    let suites = match options.ciphers.as_str() {
        "" => String::new(),
        ciphers => format!(" cipher={ciphers}"),
    };
    let place = home.display();
    let settings = format!(
        "https_port {SQUID_PORT} intercept ssl-bump tls-cert={ca} tls-key={place}/ca.key generate-host-certificates=on \
         dynamic_cert_mem_cache_size=16MB options={others}:NO_TICKET{suites}\n\
         http_port 127.0.0.1:3128\n\
         sslcrtd_program {CERTIFICATE_MAKER} -s {place}/certificates -M 16MB\nsslcrtd_children 1\n\
         sslproxy_session_cache_size 0\n\
         tls_outgoing_options cafile={origin} options={others}{suites}\n\
         acl hello at_step SslBump1\nssl_bump peek hello\nssl_bump bump all\n\
         http_access allow all\ncache deny all\ncache_mem 0 MB\nmemory_pools on\n\
         client_persistent_connections on\nserver_persistent_connections on\nclient_lifetime 1 day\n\
         pconn_timeout 1 hour\nclient_idle_pconn_timeout 1 hour\nserver_idle_pconn_timeout 1 hour\n\
         read_ahead_gap 64 KB\nhost_verify_strict off\nvia off\nforwarded_for delete\nbuffered_logs on\n\
         access_log none\ncache_log stdio:{place}/cache.log\ncache_store_log none\nlogfile_rotate 0\nnetdb_filename none\n\
         hosts_file {place}/hosts\ndns_nameservers 127.0.0.1\npinger_enable off\nworkers 1\nshutdown_lifetime 0 seconds\nmax_filedescriptors 16384\n\
         pid_filename {place}/squid.pid\ncoredump_dir {place}\ncache_effective_user {SQUID_USER}\nvisible_hostname middlebox.test\n",
        ca = ca.display(),
        origin = origin.display(),
    );
    let file = write(home.join("squid.conf"), &settings)?;
    write(home.join("cache.log"), "")?;
    // It checks that the name that was asked for has the address that was.
    let hosts = format!("{} {}\n", address::ORIGIN_V4, address::SERVER_NAME);
    write(home.join("hosts"), hosts)?;
    let script = format!(
        "{CERTIFICATE_MAKER} -c -s {place}/certificates -M 16MB >/dev/null; chown -R {SQUID_USER} {place}; \
         nft add table ip squid; \
         nft 'add chain ip squid redirected {{ type nat hook prerouting priority -100; }}'; \
         nft add rule ip squid redirected iifname left tcp dport 443 redirect to :{SQUID_PORT}"
    );
    bed.middlebox.shell(&script)?;
    bed.client.ip(&format!(
        "route replace {}/32 via {} dev eth0\n",
        address::ORIGIN_V4,
        address::SERVER_V4
    ))?;
    let mut command = bed.middlebox.command("squid");
    command.arg("-N").arg("-f").arg(file);
    Ok((settings, command, SQUID_PORT))
}

/// Bodies streamed from their first byte on, no flow kept: what is left is what it does in Python.
fn mitmproxy(bed: &Testbed, options: &ProxyOptions, home: &Path) -> Result<Prepared, TestbedError> {
    let identity = combined(bed.pki().server_with(options.key_type), home)?;
    let version = format!("TLS{}", options.version.replace('.', "_"));
    let mut arguments = [
        "--quiet",
        "--mode",
        &format!("reverse:https://{}:443", address::ORIGIN_V4),
        "--listen-host",
        address::SERVER_V4,
        "--listen-port",
        "443",
        "--certs",
        &format!("*={}", identity.display()),
    ]
    .map(str::to_owned)
    .to_vec();
    let mut set = |name: &str, value: &str| {
        arguments.extend(["--set".to_owned(), format!("{name}={value}")]);
    };
    set("confdir", &home.display().to_string());
    set("ssl_verify_upstream_trusted_ca", &bed.pki().ca.display().to_string());
    set("stream_large_bodies", "1");
    set("flow_detail", "0");
    for side in ["client", "server"] {
        set(&format!("tls_version_{side}_min"), &version);
        set(&format!("tls_version_{side}_max"), &version);
        if !options.ciphers.is_empty() {
            set(&format!("ciphers_{side}"), &options.ciphers);
        }
    }
    let mut command = bed.middlebox.command("mitmdump");
    command.args(&arguments);
    Ok((arguments.join(" "), command, 443))
}
