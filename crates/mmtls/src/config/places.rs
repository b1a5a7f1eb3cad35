//! Where each setting comes from, so that what is wrong with it can be told with a line number, or an option.
//!
//! Refuses nothing: what is not TOML has no places, and is refused where it is read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

/// Where settings come from.
#[derive(Clone, Debug, Default)]
pub struct Places {
    file: Option<PathBuf>,
    /// Lines of the file, by key with its section.
    lines: BTreeMap<String, usize>,
    /// Options of the command line, by the key that they stand for.
    options: BTreeMap<&'static str, &'static str>,
}

impl Places {
    /// The places in a configuration file.
    #[must_use]
    pub fn of(path: &Path, text: &str) -> Self {
        let mut places = Self { file: Some(path.to_owned()), ..Self::default() };
        if let Ok(table) = DeTable::parse(text) {
            places.note("", text, table.get_ref());
        }
        places
    }

    fn note(&mut self, section: &str, text: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = format!("{section}{}", key.get_ref());
            if let DeValue::Table(inner) = value.get_ref() {
                self.note(&format!("{name}."), text, inner);
            }
            self.lines.insert(name, line_of(text, key.span().start));
        }
    }

    /// An option was given that stands for a setting, and wins.
    pub fn option(&mut self, key: &'static str, option: &'static str) {
        self.options.insert(key, option);
    }

    /// A message about a setting, behind where that is set: `--inline: …`, `FILE: line 3: inline.interfaces: …`.
    #[must_use]
    pub fn about(&self, key: &str, message: &str) -> String {
        if let Some(option) = self.options.get(key) {
            return format!("{option}: {message}");
        }
        match (&self.file, self.lines.get(key)) {
            (Some(file), Some(line)) => {
                format!("{}: line {line}: {key}: {message}", file.display())
            }
            _ if key.is_empty() => message.to_owned(),
            _ => format!("{key}: {message}"),
        }
    }

    /// A message that names settings, behind where the first of them stands in the file.
    #[must_use]
    pub fn locate(&self, message: &str) -> String {
        let words = message.split(|it: char| !it.is_ascii_alphanumeric() && !"._".contains(it));
        let mut lines = words.filter(|word| !self.options.contains_key(word));
        match (&self.file, lines.find_map(|word| self.lines.get(word))) {
            (Some(file), Some(line)) => format!("{}: line {line}: {message}", file.display()),
            _ => message.to_owned(),
        }
    }
}

/// The number of the line in which a byte is.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.get(..at).unwrap_or_default().matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_settings_of_sections_and_of_the_command_line() {
        let text = "# none\n[keys]\nlisten = \"a\"\n\n[inspect]\nuninspected.gap = \"reset\"\n";
        let mut places = Places::of(Path::new("m.toml"), text);
        assert_eq!(places.about("keys.listen", "no"), "m.toml: line 3: keys.listen: no");
        assert_eq!(
            places.about("inspect.uninspected.gap", "no"),
            "m.toml: line 6: inspect.uninspected.gap: no"
        );
        assert_eq!(places.about("keys.key_file", "no"), "keys.key_file: no");
        assert_eq!(places.about("", "no"), "no");
        assert_eq!(places.locate("--listen, or keys.listen."), "--listen, or keys.listen.");
        assert_eq!(places.locate("see keys.listen"), "m.toml: line 3: see keys.listen");
        places.option("keys.listen", "--keys-listen");
        assert_eq!(places.about("keys.listen", "no"), "--keys-listen: no");
        assert_eq!(places.locate("see keys.listen"), "see keys.listen");
        assert_eq!(Places::of(Path::new("x"), "not toml at all").locate("inline"), "inline");
    }
}
