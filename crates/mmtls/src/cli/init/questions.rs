//! The questions, one line each: what options say is not asked, and what makes no sense is asked again.
//!
//! Refuses to guess what becomes of sessions without keys.

use std::fs;
use std::io::{BufRead, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use mmtls_middlebox::Error;
use mmtls_middlebox::config::address_and_port;
use mmtls_packet_io::Error as PortsError;
use mmtls_packet_io::af_packet::{self, BridgeConfig};

use super::super::pki::is_name;
use super::super::report::host_name;
use super::machine;
use super::options::{InitArgs, wrong};

/// Longest answer.
const MAX_ANSWER: u64 = 4096;

const KEYS_PORT: u16 = 4433;

/// Where there is to be none.
const NONE: &str = "none";

/// What has come of it.
#[derive(PartialEq, Eq, Debug)]
pub struct Answers {
    pub interfaces: [String; 2],
    pub listen: SocketAddr,
    /// Of the certificate that is to be made.
    pub name: Option<String>,
    pub missing_keys: String,
    pub log_directory: Option<PathBuf>,
    pub control: Option<PathBuf>,
    pub group: Option<Group>,
}

/// A user and its group, which may read what is written.
#[derive(PartialEq, Eq, Clone, Debug)]
pub struct Group {
    pub user: u32,
    pub id: u32,
}

/// One question.
struct Question<'a> {
    text: &'a str,
    option: &'a str,
    given: Option<&'a String>,
    default: Option<String>,
}

/// Who asks, and whom.
pub struct Questions<R, W> {
    answers: R,
    out: W,
    takes_defaults: bool,
}

impl<R: BufRead, W: Write> Questions<R, W> {
    pub fn new(answers: R, out: W, takes_defaults: bool) -> Self {
        Self { answers, out, takes_defaults }
    }

    /// Asks all of it.
    pub fn ask(&mut self, args: &InitArgs, needs_name: bool) -> Result<Answers, Error> {
        let found = machine::interfaces();
        if args.inline.is_none() && !self.takes_defaults {
            self.say("Interfaces of this machine:");
            for machine::Interface { name, about, .. } in &found {
                self.say(&format!("  {name}  {about}"));
            }
        }
        let free: Vec<_> = found.iter().filter(|it| it.is_free).map(|it| it.name.clone()).collect();
        let question = Question {
            text: "Interfaces to bridge, IF1:IF2",
            option: "--inline",
            given: args.inline.as_ref(),
            default: <[String; 2]>::try_from(free).ok().map(|two| two.join(":")),
        };
        let interfaces = self.answer(&question, interfaces)?;
        let own = machine::own_address();
        let question = Question {
            text: "Address and port where endpoints share their keys",
            option: "--keys-listen",
            given: args.keys_listen.as_ref(),
            default: own.map(|own| SocketAddr::new(own, KEYS_PORT).to_string()),
        };
        let listen = self.answer(&question, address_and_port)?;
        let question = Question {
            text: "Name or address of this middlebox, as its certificate will say",
            option: "--middlebox",
            given: args.middlebox.as_ref(),
            default: host_name()
                .filter(|name| is_name(name))
                .or_else(|| (!listen.ip().is_unspecified()).then(|| listen.ip().to_string())),
        };
        let name = needs_name.then(|| self.answer(&question, middlebox)).transpose()?;
        let question = Question {
            text: "Sessions whose keys do not come in time: forward or reset",
            option: "--missing-keys",
            given: args.missing_keys.as_ref(),
            default: None,
        };
        let missing_keys = self.answer(&question, policy)?;
        let question = Question {
            text: "Directory of eve.json, or none",
            option: "--log-dir",
            given: args.log_dir.as_ref(),
            default: Some("/var/log/mmtls".to_owned()),
        };
        let log_directory = self.answer(&question, path)?;
        let question = Question {
            text: "Socket of `mmtls ctl`, or none",
            option: "--control",
            given: args.control.as_ref(),
            default: Some(mmtls::control::DEFAULT_SOCKET.to_owned()),
        };
        let control = self.answer(&question, path)?;
        let question = Question {
            text: "User that will run it, or none for the one who starts it",
            option: "--user",
            given: args.user.as_ref(),
            default: Some(user("mmtls").map_or(NONE, |_| "mmtls").to_owned()),
        };
        let group = self.answer(&question, user)?;
        Ok(Answers { interfaces, listen, name, missing_keys, log_directory, control, group })
    }

    /// The answer to one question, once it makes sense.
    fn answer<T>(
        &mut self,
        question: &Question<'_>,
        accept: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Error> {
        let Question { text, option, given, default } = question;
        let told = |why: String| wrong(&format!("{option}: {why}"));
        if let Some(given) = given {
            return accept(given).map_err(told);
        }
        if self.takes_defaults {
            let none = || wrong(&format!("{option} is needed: --yes has no default for it"));
            return accept(default.as_ref().ok_or_else(none)?).map_err(told);
        }
        loop {
            let shown = default.as_ref().map_or(String::new(), |it| format!(" [{it}]"));
            // Where nobody reads it, an answer may come all the same.
            let _ = write!(self.out, "{text}{shown}: ").and_then(|()| self.out.flush());
            let mut line = String::new();
            let read = self.answers.by_ref().take(MAX_ANSWER).read_line(&mut line);
            let read = read.map_err(|error| wrong(&format!("standard input: {error}")))?;
            let line = line.trim();
            let chosen = if line.is_empty() { default.as_deref() } else { Some(line) };
            match chosen {
                _ if read == 0 => {
                    self.say("");
                    return Err(wrong(&format!(
                        "no answer: {option} gives it, and --yes takes defaults"
                    )));
                }
                None => {}
                Some(chosen) => match accept(chosen) {
                    Ok(answer) => return Ok(answer),
                    Err(why) => self.say(&why),
                },
            }
        }
    }

    fn say(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
    }
}

fn interfaces(text: &str) -> Result<[String; 2], String> {
    let names = match text.split_once(':') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() => [left, right],
        _ => return Err(format!("{text:?} is not two interface names: IF1:IF2")),
    };
    let [left, right] = names;
    let found = af_packet::check(&BridgeConfig::new(left, right));
    // Others may be put right until the start, and are told by the check at the end.
    let is_wrong = |it: &&PortsError| {
        matches!(it, PortsError::NoSuchInterface { .. } | PortsError::NotEthernet { .. })
    };
    match found.errors.iter().find(is_wrong) {
        _ if left == right => Err("two different interfaces are needed".to_owned()),
        Some(error) => Err(error.to_string()),
        None => Ok(names.map(str::to_owned)),
    }
}

fn middlebox(text: &str) -> Result<String, String> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is neither a host name nor an address")),
    }
}

fn policy(text: &str) -> Result<String, String> {
    match text {
        "forward" | "reset" => Ok(text.to_owned()),
        _ => {
            Err(format!("{text:?} is neither forward (let them pass unread) nor reset (end them)"))
        }
    }
}

fn path(text: &str) -> Result<Option<PathBuf>, String> {
    if text == NONE {
        return Ok(None);
    }
    let path = PathBuf::from(text);
    match path.is_absolute() && !text.chars().any(char::is_control) {
        true => Ok(Some(path)),
        false => Err(format!("{text:?} does not begin with /, as in /var/log/mmtls")),
    }
}

fn user(name: &str) -> Result<Option<Group>, String> {
    if name == NONE {
        return Ok(None);
    }
    let table = fs::read_to_string("/etc/passwd").map_err(|it| format!("/etc/passwd: {it}"))?;
    let found = find_user(&table, name);
    found.map(Some).ok_or_else(|| format!("no user {name:?} in /etc/passwd"))
}

fn find_user(table: &str, name: &str) -> Option<Group> {
    let of = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then_some(())?;
        let mut number = |skipped| fields.nth(skipped)?.parse().ok();
        Some(Group { user: number(1)?, id: number(0)? })
    };
    table.lines().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(
        lines: &str,
        default: Option<&str>,
        given: Option<&str>,
        yes: bool,
    ) -> (Result<String, String>, String) {
        let mut out = Vec::new();
        let given = given.map(str::to_owned);
        let default = default.map(str::to_owned);
        let question = Question { text: "What", option: "--what", given: given.as_ref(), default };
        let mut questions = Questions::new(lines.as_bytes(), &mut out, yes);
        let answer = questions.answer(&question, policy).map_err(|it| it.to_string());
        (answer, String::from_utf8(out).unwrap())
    }

    #[test]
    fn accepts_answers_defaults_and_options() {
        let ok = |answer: &str| Ok(answer.to_owned());
        assert_eq!(asked("reset\n", None, None, false), (ok("reset"), "What: ".to_owned()));
        assert_eq!(asked("\n", Some("forward"), None, false).0, ok("forward"));
        assert_eq!(asked("", Some("forward"), None, true), (ok("forward"), String::new()));
        assert_eq!(asked("", None, Some("reset"), false), (ok("reset"), String::new()));
        let (answer, said) = asked("\nmaybe\n reset \n", None, None, false);
        assert_eq!(answer, ok("reset"));
        assert_eq!(said.matches("What: ").count(), 3);
        assert!(said.contains("\"maybe\" is neither forward"), "{said}");
    }

    #[test]
    fn refuses_silence_wrong_options_and_what_has_no_default() {
        let error = |it: (Result<String, String>, String)| it.0.unwrap_err();
        assert!(error(asked("", None, None, false)).contains("no answer: --what gives it"));
        assert!(error(asked("", None, None, true)).contains("--what is needed"));
        assert!(
            error(asked("reset\n", None, Some("x"), false)).contains("--what: \"x\" is neither")
        );
        // A line without an end is read in pieces, and ends.
        assert!(error(asked(&"x".repeat(100_000), None, None, false)).contains("no answer"));
    }

    #[test]
    fn refuses_names_and_paths_that_are_none() {
        assert!(interfaces("eth1").is_err() && interfaces("eth1:").is_err());
        assert!(interfaces("nosuch0:nosuch1").is_err());
        assert!(path("logs").is_err() && path("/a\nb").is_err() && path(NONE) == Ok(None));
        assert!(middlebox("a b").is_err() && middlebox("box.test").is_ok());
        let table = "root:x:0:0:root:/root:/bin/sh\nmmtls:x:998:997::/:/bin/false\nbad:x:a:b\n";
        assert_eq!(find_user(table, "mmtls"), Some(Group { user: 998, id: 997 }));
        assert_eq!(find_user(table, "bad"), None);
        assert_eq!(find_user(table, "roo"), None);
    }
}
