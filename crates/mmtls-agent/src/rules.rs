//! What the user agrees to, session by session: rules by server name, program, user and port.
//!
//! ```toml
//! [[rules]]
//! name = "banks"
//! servers = ["*.bank"]
//! share = "nothing"
//! ```
//! The first rule counts all of whose conditions hold; without one everything is shared.
//!
//! Refuses conditions that can never hold, and unknown words. A condition on what is not known does not hold: a client may
//! send no name, and some libraries do not see the socket.

use std::path::{Path, PathBuf};

use mmtls_keyshare::policy::ServerNames;
use mmtls_record::Direction;
use nix::unistd::User;
use serde::Deserialize;

use crate::Error;

/// What of a session is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// Both directions.
    #[default]
    Everything,
    /// What the client sends.
    ToServer,
    /// What the server sends.
    ToClient,
    /// It stays private.
    Nothing,
}

impl Share {
    /// The direction that stays private where one is shared.
    #[must_use]
    pub fn refused(self) -> Option<Direction> {
        match self {
            Self::ToServer => Some(Direction::ServerToClient),
            Self::ToClient => Some(Direction::ClientToServer),
            Self::Everything | Self::Nothing => None,
        }
    }
}

/// What is known of a session when its first secret comes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// What the client has asked for; empty where it has not, or where it is not known.
    pub server_name: &'a [u8],
    /// The program's file.
    pub program: Option<&'a Path>,
    /// Whose process it is, by number.
    pub user: Option<u32>,
    /// The server's.
    pub port: Option<u16>,
}

/// `[[rules]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    name: String,
    #[serde(default)]
    servers: Option<Names>,
    #[serde(default)]
    programs: Option<Vec<PathBuf>>,
    #[serde(default)]
    users: Option<Vec<Login>>,
    #[serde(default)]
    ports: Option<Vec<u16>>,
    share: Share,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Vec<String>")]
struct Names(ServerNames);

impl TryFrom<Vec<String>> for Names {
    type Error = String;

    fn try_from(rules: Vec<String>) -> Result<Self, String> {
        let mut names = ServerNames::default();
        for rule in rules {
            names.add(&rule).map_err(|error| error.to_string())?;
        }
        Ok(Self(names))
    }
}

/// A user, by name or number in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Login(u32);

impl TryFrom<String> for Login {
    type Error = String;

    fn try_from(user: String) -> Result<Self, String> {
        if let Ok(number) = user.parse() {
            return Ok(Self(number));
        }
        match User::from_name(&user) {
            Ok(Some(found)) => Ok(Self(found.uid.as_raw())),
            Ok(None) => Err(format!("no user is named {user:?}")),
            Err(error) => Err(format!("user {user:?}: {error}")),
        }
    }
}

impl Rule {
    fn holds(&self, facts: &Facts<'_>) -> bool {
        // A name without directories is that of any file.
        let is = |of: &PathBuf, file: &Path| {
            of.as_path() == file || of.components().count() == 1 && file.ends_with(of)
        };
        self.servers.as_ref().is_none_or(|Names(names)| names.matches(facts.server_name))
            && self.programs.as_ref().is_none_or(|programs| {
                facts.program.is_some_and(|file| programs.iter().any(|of| is(of, file)))
            })
            && self
                .users
                .as_ref()
                .is_none_or(|users| facts.user.is_some_and(|user| users.contains(&Login(user))))
            && self
                .ports
                .as_ref()
                .is_none_or(|ports| facts.port.is_some_and(|port| ports.contains(&port)))
    }

    /// Why it can never hold.
    fn fault(&self) -> Option<&'static str> {
        let empty = self.servers.as_ref().is_some_and(|Names(names)| names.is_empty())
            || self.programs.as_ref().is_some_and(Vec::is_empty)
            || self.users.as_ref().is_some_and(Vec::is_empty)
            || self.ports.as_ref().is_some_and(Vec::is_empty);
        let relative = |file: &PathBuf| file.is_relative() && file.components().count() != 1;
        if empty {
            Some("has a condition without values")
        } else if self.programs.iter().flatten().any(relative) {
            Some("names a program by a relative path: use the whole path, or the file's name")
        } else {
            None
        }
    }
}

/// The rules, in order.
#[derive(Clone, Debug, Default)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is shared of a session, and the number of the rule that says so.
    #[must_use]
    pub fn decide(&self, facts: &Facts<'_>) -> (Share, Option<usize>) {
        match self.0.iter().position(|rule| rule.holds(facts)) {
            Some(at) => (self.0[at].share, Some(at)),
            None => (Share::Everything, None),
        }
    }

    /// The name of a rule.
    #[must_use]
    pub fn name(&self, rule: usize) -> Option<&str> {
        self.0.get(rule).map(|rule| rule.name.as_str())
    }
}

/// `agent.toml`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentFile {
    /// As `--middlebox`.
    pub middleboxes: Vec<String>,
    /// As `--ca`.
    pub ca_file: Option<PathBuf>,
    /// As `--pin`.
    pub pins: Vec<String>,
    /// As `--client-cert`.
    pub certificate_file: Option<PathBuf>,
    /// As `--client-key`.
    pub key_file: Option<PathBuf>,
    /// As `--directory`.
    pub directory: Option<PathBuf>,
    /// As `--keylog`.
    pub key_logs: Vec<PathBuf>,
    /// As `--all-users`.
    pub all_users: bool,
    /// As `--audit-log`.
    pub audit_log: Option<PathBuf>,
    /// As `--share-handshake`.
    pub share_handshake: bool,
    /// Whether sessions of key logs are shared, which tell no name, program, user or port: all of them, or by default none where
    /// there are rules.
    pub share_key_logs: Option<bool>,
    rules: Vec<Rule>,
}

impl AgentFile {
    /// Reads it.
    ///
    /// # Errors
    /// [`Error::File`], and [`Error::Usage`] with what is wrong and where.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
        let of = |what: String| Error::Usage(format!("{}: {what}", path.display()));
        let file: Self = toml::from_str(&text).map_err(|error| of(error.to_string()))?;
        for (at, rule) in file.rules.iter().enumerate() {
            if let Some(fault) = rule.fault() {
                return Err(of(format!("rule {:?} {fault}", rule.name)));
            }
            if file.rules[..at].iter().any(|it| it.name == rule.name) {
                return Err(of(format!("two rules are named {:?}", rule.name)));
            }
        }
        Ok(file)
    }

    /// Its rules.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules(self.rules.clone())
    }

    /// Whether sessions of key logs are shared.
    #[must_use]
    pub fn shares_key_logs(&self) -> bool {
        self.share_key_logs.unwrap_or(self.rules.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<AgentFile, String> {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), text).unwrap();
        AgentFile::load(path.path()).map_err(|error| error.to_string())
    }

    const RULES: &str = r#"
        [[rules]]
        name = "banks"
        servers = ["*.bank", "bank.example"]
        share = "nothing"
        [[rules]]
        name = "own data"
        programs = ["curl", "/opt/browser/browser"]
        ports = [443, 8443]
        share = "toclient"
        [[rules]]
        name = "mail"
        ports = [993]
        share = "toserver"
    "#;

    #[test]
    fn accepts_the_first_rule_whose_conditions_hold() {
        let rules = file(RULES).unwrap().rules();
        let decide = |server_name: &str, program: &str, port| {
            let program = (!program.is_empty()).then_some(Path::new(program));
            let server_name = server_name.as_bytes();
            let facts = Facts { server_name, program, user: None, port };
            let (share, rule) = rules.decide(&facts);
            (share, rule.and_then(|it| rules.name(it)).unwrap_or("none").to_owned())
        };
        for (server, program, port, share, rule) in [
            ("www.my.bank", "/usr/bin/curl", Some(443), Share::Nothing, "banks"),
            ("BANK.example.", "", None, Share::Nothing, "banks"),
            ("bank", "/usr/bin/curl", Some(443), Share::ToClient, "own data"),
            ("", "/usr/bin/curl", Some(8443), Share::ToClient, "own data"),
            ("", "/opt/browser/browser", Some(443), Share::ToClient, "own data"),
            // What is not known does not hold.
            ("", "/usr/bin/curl", None, Share::Everything, "none"),
            ("", "", Some(443), Share::Everything, "none"),
            ("", "/usr/browser", Some(443), Share::Everything, "none"),
            ("", "/tmp/curl2", Some(993), Share::ToServer, "mail"),
        ] {
            assert_eq!(
                decide(server, program, port),
                (share, rule.to_owned()),
                "{server} {program}"
            );
        }
        assert_eq!(Share::ToClient.refused(), Some(Direction::ClientToServer));
        assert_eq!(Share::ToServer.refused(), Some(Direction::ServerToClient));
    }

    #[test]
    fn accepts_users_by_name_and_number() {
        let rule = r#"
            [[rules]]
            name = "system"
            users = ["root", "4294967294"]
            share = "nothing"
        "#;
        let rules = file(rule).unwrap().rules();
        let decide = |user| rules.decide(&Facts { user, ..Facts::default() }).0;
        assert_eq!(decide(Some(0)), Share::Nothing);
        assert_eq!(decide(Some(4_294_967_294)), Share::Nothing);
        assert_eq!(decide(Some(1)), Share::Everything);
        assert_eq!(decide(None), Share::Everything);
    }

    #[test]
    fn accepts_the_sample_and_its_examples() {
        let sample = include_str!("../../mmtls/agent.toml");
        let plain = file(sample).unwrap();
        assert!(plain.rules().is_empty() && plain.shares_key_logs());
        // Without the sentences, and with everything that is commented out.
        let examples: String = sample
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(it) if it.starts_with("[[") || it.contains(" = ") => it,
                _ if line.starts_with('#') => "",
                _ => line,
            })
            .map(|line| format!("{line}\n"))
            .collect();
        let (head, rules) = examples.split_once("[[rules]]").unwrap();
        let all = file(&format!("{head}[[rules]]{rules}")).unwrap();
        assert_eq!(all.rules().0.len(), 4);
        assert!(!all.middleboxes.is_empty() && all.audit_log.is_some());
    }

    #[test]
    fn refuses_to_share_key_logs_beside_rules_unless_told_to() {
        assert!(file("").unwrap().shares_key_logs());
        assert!(!file(RULES).unwrap().shares_key_logs());
        assert!(file(&format!("share_key_logs = true\n{RULES}")).unwrap().shares_key_logs());
    }

    #[test]
    fn refuses_what_it_does_not_understand() {
        let rule =
            |text: &str| file(&format!("[[rules]]\nname = \"a\"\nshare = \"nothing\"\n{text}"));
        for (found, words) in [
            (file("midleboxes = []"), "midleboxes"),
            (rule("servers = [\"a*.example\"]"), "not a server name"),
            (rule("servers = []"), "without values"),
            (rule("ports = []"), "without values"),
            (rule("programs = [\"bin/curl\"]"), "relative path"),
            (rule("ports = [70000]"), "70000"),
            (rule("users = [\"nobody-of-that-name\"]"), "no user is named"),
            (rule("users = [\"-1\"]"), "no user is named"),
            (rule("users = []"), "without values"),
            (rule("user = \"alice\""), "user"),
            (rule("[[rules]]\nname = \"a\"\nshare = \"nothing\""), "two rules"),
            (file("[[rules]]\nname = \"a\"\nshare = \"half\""), "half"),
        ] {
            let error = found.map(|_| ()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
