//! Metrics, the page and the control socket of a run: opened while there are still privileges for that, served once there are none.
//!
//! Refuses nothing by itself.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mmtls::config::File;
use mmtls::control::{ControlSocket, Controls, RunFacts, SocketFile};
use mmtls::http::{Answer, HttpServer, Request};
use mmtls::recent::Recent;
use mmtls::sandbox::SandboxSection;
use mmtls::sandbox::calls::METRICS;
use mmtls::stats::{Snapshots, metrics};
use mmtls::web::{Page, Token, refused_host};
use mmtls_middlebox::{Error, Middlebox, Settings};
use mmtls_packet_io::af_packet::{Offloading, Warning};

use super::confine;
use super::say::say;

/// The page, and where its token was told: in a file, or on standard error.
struct Web {
    server: HttpServer,
    token: Token,
    token_file: Option<PathBuf>,
}

/// What listens and answers nobody yet.
pub struct Services {
    control: Option<ControlSocket>,
    /// And whether others than this host's may ask.
    metrics: Option<(HttpServer, bool)>,
    web: Option<Web>,
    sandbox: SandboxSection,
}

impl Services {
    /// Listens where the configuration says.
    pub fn open(file: &File) -> Result<Self, Error> {
        let control = file.control.socket.as_deref();
        let control = control.map(|path| ControlSocket::bind(path, file.control.mode)).transpose();
        let bind = |what: &str, address: SocketAddr| {
            HttpServer::bind(address)
                .map_err(|error| Error::Usage(format!("{what} on {address}: {error}")))
        };
        let web = |address| -> Result<Web, Error> {
            let token_file = file.web.token_file.clone();
            let token = token_file.as_deref().map_or_else(Token::random, Token::of_file);
            let token = token.map_err(|error| {
                let of = token_file.as_ref().map_or(Path::new(""), PathBuf::as_path);
                Error::Usage(format!("web.token_file {}: {error}", of.display()))
            })?;
            Ok(Web { server: bind("page", address)?, token, token_file })
        };
        Ok(Self {
            control: control.map_err(|error| Error::Usage(error.to_string()))?,
            metrics: file
                .metrics
                .listen
                .map(|it| Ok::<_, Error>((bind("metrics", it)?, file.metrics.allow_remote)))
                .transpose()?,
            web: file.web.listen.map(web).transpose()?,
            sandbox: file.sandbox.clone(),
        })
    }

    /// Has threads answer, from what workers have put down. What is returned is the socket's file.
    pub fn start(
        self,
        snapshots: Arc<Snapshots>,
        controls: Controls,
        recent: Option<Arc<Recent>>,
    ) -> Result<Option<SocketFile>, Error> {
        let system =
            |error| Error::System { what: "the threads for metrics, page and control", error };
        if let Some((server, allows_remote)) = self.metrics {
            say(&format!("metrics on http://{}/metrics", server.address().map_err(system)?));
            let answer = move |request: &Request| {
                let text = || Answer::ok(metrics::CONTENT_TYPE, metrics::text(&snapshots));
                let refused = if allows_remote { None } else { refused_host(request) };
                refused.or_else(|| (request.path == "/metrics").then(text))
            };
            let confine = confine::thread(&self.sandbox, METRICS)?;
            server.start("http", confine, answer).map_err(system)?;
        }
        let controls = Arc::new(controls);
        if let (Some(Web { server, token, token_file }), Some(recent)) = (self.web, recent) {
            let address = server.address().map_err(system)?;
            match token_file {
                Some(file) => say(&format!(
                    "page on http://{address}/, which asks for the token in {}",
                    file.display()
                )),
                // Behind #, which browsers send to nobody.
                None => say(&format!("page on http://{address}/#{}", token.text())),
            }
            let page = Page::new(Arc::clone(&controls), recent, token);
            let confine = || confine::thread(&self.sandbox, METRICS);
            page.start_history(confine()?).map_err(system)?;
            server
                .start("web", confine()?, move |request: &Request| Some(page.answer(request)))
                .map_err(system)?;
        }
        self.control.map(|socket| socket.start(controls).map_err(system)).transpose()
    }
}

/// What a run is started with, for who asks; some of it is known once the middlebox is open.
pub fn run_facts(file: &File, settings: &Settings, exceptions: Vec<String>) -> RunFacts {
    let (bridge, engine) = (&settings.bridge, &settings.engine);
    let milliseconds = |ns: u64| ns / 1_000_000;
    let limits = &engine.limits;
    let stall = limits.stall_timeout_ns;
    RunFacts {
        mode: if bridge.passive { "passive" } else { "inline" },
        interfaces: [Some(&bridge.left), bridge.right.as_ref()]
            .into_iter()
            .flatten()
            .cloned()
            .collect(),
        listens: [Some(settings.server.listen), file.metrics.listen, file.web.listen]
            .into_iter()
            .flatten()
            .collect(),
        kernel_forwarding: match (bridge.passive, bridge.offload) {
            (true, _) => "off: a passive monitor forwards nothing".to_owned(),
            (false, Offloading::Off) => "off: inline.kernel_forwarding = \"never\"".to_owned(),
            (false, _) => "on".to_owned(),
        },
        when_down: if bridge.passive || bridge.fails_open { "open" } else { "closed" },
        policies: engine.policies,
        exceptions,
        bypass: engine.bypass.clone(),
        exempt_names: engine.exempt_names.clone(),
        can_reset: !bridge.passive || bridge.reset_interface.is_some(),
        stall_milliseconds: [stall, limits.unshared_stall_timeout_ns.min(stall)].map(milliseconds),
        has_key_log: settings.key_log.is_some(),
    }
}

/// Why the kernel forwards nothing, where it was to.
pub fn why_not_forwarded(middlebox: &Middlebox) -> Option<String> {
    middlebox.warnings().find_map(|warning| match warning {
        Warning::NoOffload { reason } => Some(format!("off: {reason}")),
        _ => None,
    })
}
