//! Rules of files, ready to be applied, and how they are exchanged while sessions are open.
//!
//! Refuses to leave a rule out in silence.

mod live;

use std::collections::hash_map::{Entry, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use mmtls_inspect::detect::{Datasets, Matcher, SearchError};
use mmtls_inspect::rules::header::Action;
use mmtls_inspect::rules::rule::Check;
use mmtls_inspect::rules::{RuleSet, Skipped, VariableError, Variables};
use thiserror::Error;

pub use live::{LiveRules, Reloader, RulesInForce, SessionRules};

/// Largest file of rules, or of a list, in bytes.
const MAX_FILE_LEN: u64 = 256 << 20;

/// Which rules.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RulesConfig {
    /// The files, in Suricata's language.
    pub files: Vec<PathBuf>,
    /// Names and groups of addresses that rules may name, besides those that Suricata's own
    /// configuration defines or instead of them.
    pub address_groups: Vec<(String, String)>,
    /// Names and groups of ports.
    pub port_groups: Vec<(String, String)>,
    /// Rules that drop are an error: nothing can be dropped where they are applied.
    pub refuses_drop: bool,
    /// So are those that reject: nothing can be sent.
    pub refuses_reject: bool,
    /// A faulty rule is an error, not only skipped.
    pub refuses_faulty: bool,
    /// Count what each rule costs.
    pub counts_costs: bool,
}

/// Rules of files.
pub struct LoadedRules {
    /// Those that are applied.
    pub matcher: Matcher,
    /// Those that are not.
    pub skipped: Vec<Skipped>,
    /// How many are switched off.
    pub disabled: usize,
    /// The files with lists that they name.
    pub lists: Vec<PathBuf>,
}

impl LoadedRules {
    /// Reads the files and compiles the rules.
    ///
    /// # Errors
    /// [`RulesError`]; rules that are left out are none.
    pub fn load(config: &RulesConfig) -> Result<Self, RulesError> {
        let variables = variables(config)?;
        let mut set = RuleSet::default();
        for file in &config.files {
            let text = read_limited(file).map_err(|error| RulesError::File(file.clone(), error))?;
            set.add(&text, &variables);
        }
        let (datasets, lists) = load_lists(config, &set)?;
        let disabled = set.disabled;
        for rule in &set.rules {
            let needs = match rule.header.action {
                Action::Drop if config.refuses_drop => "drop needs --inline",
                Action::Reject(_) if config.refuses_reject => {
                    "reject needs --inline, or passive.reset_interface"
                }
                _ => continue,
            };
            let why = format!("sid {}: {needs}", rule.id.sid);
            return Err(config.refused(rule.text, rule.line, why));
        }
        let (mut matcher, skipped) =
            Matcher::new(set, &datasets, |_| true).map_err(RulesError::Search)?;
        let faulty = skipped.iter().filter(|it| config.refuses_faulty && it.cause.is_fault());
        if let Some(faulty) = faulty.min_by_key(|it| (it.text, it.line)) {
            let (text, line, why) = (faulty.text, faulty.line, faulty.cause.to_string());
            return Err(config.refused(text, line, why));
        }
        if config.counts_costs {
            matcher.count_costs();
        }
        Ok(Self { matcher, skipped, disabled, lists })
    }
}

impl RulesConfig {
    fn refused(&self, text: u16, line: u32, why: String) -> RulesError {
        let file = self.files.get(usize::from(text)).cloned().unwrap_or_default();
        RulesError::Refused { file, line, why }
    }
}

/// The variables: Suricata's own, and over them the configured ones.
fn variables(config: &RulesConfig) -> Result<Variables, RulesError> {
    fn pairs(groups: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
        groups.iter().map(|(name, group)| (&**name, &**group))
    }
    Variables::over_suricata(pairs(&config.address_groups), pairs(&config.port_groups))
        .map_err(RulesError::Variable)
}

/// The lists that rules name, each from its file: beside the file of rules, where it is not absolute.
fn load_lists(config: &RulesConfig, set: &RuleSet) -> Result<(Datasets, Vec<PathBuf>), RulesError> {
    let mut lists = Vec::new();
    let mut datasets = Datasets::default();
    let mut known: HashMap<_, PathBuf> = HashMap::new();
    for rule in &set.rules {
        for check in rule.buffers.iter().flat_map(|group| &group.checks) {
            let Check::Dataset(dataset) = check else { continue };
            let (Some(load), Some(kind)) = (&dataset.load, dataset.kind) else { continue };
            let beside = config.files.get(usize::from(rule.text)).and_then(|file| file.parent());
            let path = beside.unwrap_or(Path::new("")).join(&**load);
            // A rule must not look into another list than the one that it names.
            match known.entry(dataset.name.clone()) {
                Entry::Occupied(first) if *first.get() == path => continue,
                Entry::Occupied(first) => {
                    let why =
                        format!("dataset {} is {} already", dataset.name, first.get().display());
                    return Err(RulesError::List(path, why));
                }
                Entry::Vacant(place) => place.insert(path.clone()),
            };
            let text =
                read_limited(&path).map_err(|error| RulesError::File(path.clone(), error))?;
            datasets
                .add(&dataset.name, kind, &text)
                .map_err(|fault| RulesError::List(path.clone(), fault.to_string()))?;
            lists.push(path);
        }
    }
    Ok((datasets, lists))
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_FILE_LEN + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE_LEN {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

/// Why there are no rules.
#[derive(Debug, Error)]
pub enum RulesError {
    /// A file cannot be read.
    #[error("rules: {path}: {1}", path = .0.display())]
    File(PathBuf, io::Error),
    /// A list is faulty.
    #[error("rules: {path}: {1}", path = .0.display())]
    List(PathBuf, String),
    /// A variable is faulty.
    #[error("rules: {0}")]
    Variable(VariableError),
    /// Their patterns cannot be searched for.
    #[error("rules: {0}")]
    Search(SearchError),
    /// A rule is faulty, or cannot be obeyed.
    #[error("rules: {} line {line}: {why}", .file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// The line.
        line: u32,
        /// Why.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eve::tests::TempDir;

    fn config(dir: &TempDir, files: &[(&str, &str)]) -> RulesConfig {
        std::fs::create_dir_all(&dir.0).unwrap();
        let mut config = RulesConfig::default();
        for (name, text) in files {
            std::fs::write(dir.0.join(name), text).unwrap();
            if name.ends_with(".rules") {
                config.files.push(dir.0.join(name));
            }
        }
        config
    }

    #[test]
    fn refuses_one_name_for_two_lists() {
        let dir = TempDir::new("rules-lists");
        let rule = |list: &str, sid: u8| {
            format!(
                "alert http any any -> any any (http.host; dataset:isset,hosts,type string,load {list}; sid:{sid};)\n"
            )
        };
        let two = |second: &str| {
            let (a, b) = (rule("a.lst", 1), rule(second, 2));
            config(
                &dir,
                &[("a.rules", &a), ("b.rules", &b), ("a.lst", "YQ==\n"), ("b.lst", "Yg==\n")],
            )
        };
        assert_eq!(LoadedRules::load(&two("a.lst")).unwrap().lists.len(), 1);
        let refused = LoadedRules::load(&two("b.lst")).err().unwrap().to_string();
        assert!(
            refused.contains("b.lst: dataset hosts is") && refused.contains("a.lst already"),
            "{refused}"
        );
    }

    #[test]
    fn accepts_several_files_variables_and_lists() {
        let dir = TempDir::new("rules-files");
        let mut config = config(
            &dir,
            &[
                (
                    "a.rules",
                    "alert http $OFFICE any -> any $ALT (http.method; content:\"A\"; sid:1;)\n",
                ),
                (
                    "b.rules",
                    "alert http any any -> any any (http.host; dataset:isset,hosts,type string,load hosts.lst; sid:2;)\n\
                     alert http any any -> any any (sid:1;)\n\
                     alert dns any any -> any any (content:\"a\"; sid:3;)\n",
                ),
                ("hosts.lst", "ZXhhbXBsZS5vcmc=\n"),
            ],
        );
        config.address_groups = vec![("OFFICE".into(), "$HOME_NET".into())];
        config.port_groups = vec![("ALT".into(), "[8080,$HTTP_PORTS]".into())];
        let loaded = LoadedRules::load(&config).unwrap();
        assert_eq!(loaded.matcher.len(), 2);
        let skipped: Vec<_> = loaded.skipped.iter().map(|it| (it.text, it.line)).collect();
        assert_eq!(skipped, [(1, 2), (1, 3)]);
    }

    #[test]
    fn refuses_faulty_rules_and_those_that_stop_where_it_is_told_to() {
        let dir = TempDir::new("rules-refused");
        let text = "alert http any any -> any any (sid:1;)\nalert http any any -> any any (x:1; sid:2;)\n\
            alert http any any -> any any (content:\"|4|\"; sid:3;)\ndrop http any any -> any any (sid:4;)\n";
        let config = config(&dir, &[("a.rules", text)]);
        let loaded = LoadedRules::load(&config).unwrap();
        assert_eq!((loaded.matcher.len(), loaded.skipped.len()), (2, 2));
        let faulty = RulesConfig { refuses_faulty: true, ..config.clone() };
        let error = LoadedRules::load(&faulty).err().unwrap().to_string();
        assert!(
            error.ends_with("a.rules line 3: syntax error at byte 31 (content): not hexadecimal")
        );
        let passive = RulesConfig { refuses_drop: true, ..config };
        let error = LoadedRules::load(&passive).err().unwrap().to_string();
        assert!(error.ends_with("a.rules line 4: sid 4: drop needs --inline"), "{error}");
    }

    #[test]
    fn refuses_missing_files_lists_and_variables_by_name() {
        let dir = TempDir::new("rules-missing");
        let error = |config: &RulesConfig| LoadedRules::load(config).err().unwrap().to_string();
        let none = RulesConfig { files: vec!["/nonexistent".into()], ..RulesConfig::default() };
        assert!(error(&none).starts_with("rules: /nonexistent: "));
        let list = "alert http any any -> any any (http.host; dataset:isset,h,type md5,load h.lst; sid:2;)\n";
        assert!(error(&config(&dir, &[("a.rules", list)])).contains("h.lst: "));
        let faulty = config(&dir, &[("a.rules", list), ("h.lst", "nothing\n")]);
        assert!(error(&faulty).contains("h.lst: "));
        let variable = RulesConfig {
            address_groups: vec![("A".into(), "$B".into())],
            ..RulesConfig::default()
        };
        assert!(error(&variable).contains('A'));
    }
}
