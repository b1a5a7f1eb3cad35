//! The page of a run: what it does, drawn in a browser. Its data are the answers of the control socket, the counters, and
//! what happened lately.
//!
//! ```text
//!  browser ─ http ─► Page ─┬─► assets                     to everybody who asks by an address
//!                         └─► with the token: control::Controls, stats::Snapshots, recent::Recent, History
//! ```
//! Refuses to change anything, to answer by a name that an attacker's name server could have given (DNS rebinding), and to
//! tell anything without the token. Everything comes from here, and nothing in it is made from text but text.

mod history;
mod numbers;
mod token;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::control::{Controls, Nothing, Of, Query, Request};
use crate::eve::Escaping;
use crate::http::{self, Answer};
use crate::recent::Recent;
use history::History;
pub use token::Token;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const SVG: &str = "image/svg+xml";
const JSON: &str = "application/json";

/// Everything from here, no inline script or style, no text that becomes elements; nobody frames it or learns of it.
const FIELDS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n\
    Cross-Origin-Opener-Policy: same-origin\r\n\
    Referrer-Policy: no-referrer\r\n\
    X-Frame-Options: DENY\r\n";

/// What answers.
pub struct Page {
    controls: Arc<Controls>,
    recent: Arc<Recent>,
    history: Arc<History>,
    token: Token,
}

impl Page {
    /// A page of a run.
    #[must_use]
    pub fn new(controls: Arc<Controls>, recent: Arc<Recent>, token: Token) -> Self {
        Self { controls, recent, history: Arc::default(), token }
    }

    /// Has a thread note what the run does each second. `prepare` is the first that it does.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start_history(&self, prepare: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.history.start(Arc::clone(&self.controls.snapshots), prepare)
    }

    /// The answer to a request.
    #[must_use]
    pub fn answer(&self, request: &http::Request) -> Answer {
        guarded(request, &self.token, |question| self.ask(question, &request.query)).with(FIELDS)
    }

    /// The answer to a question; `None` where there is no such one.
    fn ask(&self, question: &str, query: &str) -> Option<Result<Value, String>> {
        let of_control = |request| self.controls.answer(&request, None);
        let one = |name: &str| {
            let Parameter(found, value) = Parameter::all(query).next()?;
            (found == name).then(|| value.parse::<u64>().ok()).flatten()
        };
        Some(match question {
            "status" => of_control(Request::Status(Nothing {})),
            "policies" => of_control(Request::Policies(Nothing {})),
            "keys" => of_control(Request::Keys(Nothing {})),
            "rules" => of_control(Request::Rules(Nothing {})),
            "sessions" => sessions(query).and_then(|query| of_control(Request::Sessions(query))),
            "session" => match one("id") {
                Some(id) => of_control(Request::Session(Of { id })),
                None => Err("id=NUMBER is needed".to_owned()),
            },
            "history" => Ok(self.history.since(one("since").unwrap_or(0))),
            "numbers" => Ok(numbers::told(&self.controls.snapshots)),
            "recent" => Ok(self.recent.told()),
            _ => return None,
        })
    }
}

/// The answer to a request that may have it; `ask` answers questions.
fn guarded(
    request: &http::Request,
    token: &Token,
    ask: impl FnOnce(&str) -> Option<Result<Value, String>>,
) -> Answer {
    if let Some(refused) = refused_host(request) {
        return refused;
    }
    if let Some(asset) = asset(&request.path) {
        return asset;
    }
    let Some(question) = request.path.strip_prefix("/api/") else {
        return Answer::error("404 Not Found");
    };
    if !token.is_in(request.authorization.as_ref().map(|it| it.as_str())) {
        return Answer::error("401 Unauthorized");
    }
    match ask(question) {
        Some(Ok(answer)) => text(&answer),
        Some(Err(error)) => text(&json!({"ok": false, "error": error})),
        None => Answer::error("404 Not Found"),
    }
}

fn asset(path: &str) -> Option<Answer> {
    let (content_type, text) = match path {
        "/" => (HTML, include_str!("assets/index.html")),
        "/page.css" => (CSS, include_str!("assets/page.css")),
        "/page.js" => (SCRIPT, include_str!("assets/page.js")),
        "/tables.js" => (SCRIPT, include_str!("assets/tables.js")),
        "/plots.js" => (SCRIPT, include_str!("assets/plots.js")),
        "/icon.svg" => (SVG, include_str!("assets/icon.svg")),
        "/uplot.js" => (SCRIPT, include_str!("assets/uplot.js")),
        "/uplot.LICENSE" => (TEXT, include_str!("assets/uplot.LICENSE")),
        "/uplot.css" => (CSS, include_str!("assets/uplot.css")),
        _ => return None,
    };
    Some(Answer::ok(content_type, text))
}

/// As on the control socket, without characters that a terminal takes for a command.
fn text(answer: &Value) -> Answer {
    let mut bytes = Vec::new();
    // A vector takes everything, and keys are text.
    let _ = answer.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, Escaping));
    Answer::ok(JSON, String::from_utf8(bytes).unwrap_or_default())
}

/// The answer to a request by a name that others may give this machine (DNS rebinding): a web page elsewhere would read what it gets.
#[must_use]
pub fn refused_host(request: &http::Request) -> Option<Answer> {
    let is_meant = request.host.as_deref().is_some_and(is_this_host);
    (!is_meant).then(|| Answer::error("421 Misdirected Request"))
}

/// Whether a request came by an address, or by the one name that no name server gives away. Any port: it may have come
/// through a tunnel (`ssh -L`).
fn is_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_loopback = |it: IpAddr| it.to_canonical().is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

/// A parameter of a query. None needs an escape, so that none is known.
struct Parameter<'a>(&'a str, &'a str);

impl<'a> Parameter<'a> {
    fn all(query: &'a str) -> impl Iterator<Item = Self> {
        let parts = query.split('&').filter(|part| !part.is_empty());
        parts.map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Self(name, value)
        })
    }
}

/// Which sessions are meant.
fn sessions(query: &str) -> Result<Query, String> {
    fn named<T: DeserializeOwned>(value: &str) -> Result<Option<T>, String> {
        let read = serde_json::from_value(Value::String(value.to_owned()));
        read.map(Some).map_err(|error| error.to_string())
    }
    let mut meant = Query::default();
    for Parameter(name, value) in Parameter::all(query) {
        match name {
            "client" => meant.client = Some(value.to_owned()),
            "server" => meant.server = Some(value.to_owned()),
            "name" => meant.name = Some(value.to_owned()),
            "keys" => meant.keys = named(value)?,
            "sort" => meant.sort = named(value)?,
            "limit" => {
                let limit = value.parse().map_err(|_| "limit is no number".to_owned())?;
                meant.limit = Some(limit);
            }
            "all" => meant.all = true,
            _ => return Err(format!("no such parameter: {name}")),
        }
    }
    Ok(meant)
}

#[cfg(test)]
mod tests;
