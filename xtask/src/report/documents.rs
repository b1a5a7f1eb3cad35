//! What README.md (a table) and bench/figures.md (a sentence for each figure) take from a file of results: a section of each,
//! between two comments, of which the first one names the file.
//!
//! Refuses files that nobody measured, and those that the repository does not have.

use std::fs;
use std::path::{Path, PathBuf};

use super::catalogue::{Cell, Table, Texts};
use super::{page, show};
use crate::results::{Figure, Results};

/// A section that is written here.
struct Section {
    document: &'static str,
    /// What the comments call it.
    name: &'static str,
    make: fn(&str, &Results, &Texts) -> Result<String, String>,
}

const SECTIONS: [Section; 2] = [
    Section { document: "README.md", name: "performance", make: table },
    Section { document: "bench/figures.md", name: "figures", make: sentences },
];

/// What the first comment names before anything has been made.
const NO_FILE: &str = "no file yet";

/// Writes both sections; `root` is that of the repository.
pub fn write(root: &Path, file: &Path, texts: &Texts) -> Result<(), String> {
    if file.components().count() != 3 || !file.starts_with("bench/results") {
        return Err(format!("{}: documents name files of bench/results only", file.display()));
    }
    let results = Results::read(&root.join(file))?;
    let file = file.display().to_string();
    // All or none.
    let mut written = Vec::new();
    for section in &SECTIONS {
        let path = root.join(section.document);
        let text = read(&path)?;
        let (before, _, _, behind) = section.parts(&text)?;
        written.push((path, format!("{before}{}{behind}", section.text(&file, &results, texts)?)));
    }
    for (path, text) in written {
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Whether each section is that of the file that it names; `root` is that of the repository.
///
/// # Errors
/// What is wrong, in a line for each with the remedy.
pub fn check(root: &Path) -> Vec<String> {
    let texts = match Texts::read(&root.join("bench")) {
        Ok(texts) => texts,
        Err(error) => return vec![error],
    };
    let check = |section: &Section| {
        let text = read(&root.join(section.document))?;
        section.check(&text, &texts, &|file| Results::read(&root.join(file)))
    };
    SECTIONS.iter().filter_map(|section| check(section).err()).collect()
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

impl Section {
    fn begin(&self) -> String {
        format!("<!-- {}: ", self.name)
    }

    fn end(&self) -> String {
        format!("<!-- end of {} -->", self.name)
    }

    /// The section, comments included.
    fn text(&self, file: &str, results: &Results, texts: &Texts) -> Result<String, String> {
        if let Some(why) = results.unfit() {
            return Err(format!("{file}: {} takes no numbers of it: {why}", self.document));
        }
        let made = (self.make)(file, results, texts)?;
        Ok(format!("{}{file} -->\n{made}{}", self.begin(), self.end()))
    }

    /// What stands before the section, the file that it names, the section, and what stands behind.
    fn parts<'a>(&self, text: &'a str) -> Result<(&'a str, &'a str, &'a str, &'a str), String> {
        let (begin, end) = (self.begin(), self.end());
        let missing = || format!("{}: no {begin:?} with {end:?} behind it", self.document);
        let start = text.find(&begin).ok_or_else(missing)?;
        let end = start + text[start..].find(&end).ok_or_else(missing)? + end.len();
        let named = &text[start + begin.len()..end];
        let (file, _) = named.split_once(" -->").ok_or_else(missing)?;
        Ok((&text[..start], file, &text[start..end], &text[end..]))
    }

    fn check(
        &self,
        text: &str,
        texts: &Texts,
        read: &dyn Fn(&PathBuf) -> Result<Results, String>,
    ) -> Result<(), String> {
        let (_, file, is, _) = self.parts(text)?;
        if file == NO_FILE {
            return Ok(());
        }
        let results = read(&PathBuf::from(file))?;
        match self.text(file, &results, texts)? == is {
            true => Ok(()),
            false => Err(format!(
                "{}: the section {:?} is not that of {file}; write it with `cargo xtask report --documents {file}`",
                self.document, self.name
            )),
        }
    }
}

/// Of README.md.
fn table(file: &str, results: &Results, texts: &Texts) -> Result<String, String> {
    let figures: Vec<&Figure> = results.figures.iter().collect();
    let mut text = rows(&texts.catalogue.readme, file, &figures, texts)?;
    let infinite =
        if text.contains('∞') { format!(" {}.", show::INFINITE) } else { String::new() };
    text += &format!(
        "\nMedians, with the range of repetitions: [`{file}`]({file}), {}.{infinite}\n",
        of(results)
    );
    Ok(text)
}

/// A table of either document.
fn rows(table: &Table, file: &str, figures: &[&Figure], texts: &Texts) -> Result<String, String> {
    let rule = "---|".repeat(table.columns.len() + 1);
    let mut text = format!("| | {} |\n|{rule}\n", table.columns.join(" | "));
    for row in &table.rows {
        let mut cells = vec![row.what.clone()];
        for cell in &row.cells {
            cells.push(match cell {
                Cell::Text(text) => text.clone(),
                Cell::Value(value) => {
                    let computed = texts.compute(figures, &row.number, value);
                    let computed = computed.ok_or_else(|| {
                        format!("{file}: no figure {} for {:?}", row.number, row.what)
                    })?;
                    computed.show()
                }
            });
        }
        text += &format!("| {} |\n", cells.join(" | "));
    }
    Ok(text)
}

/// Of bench/figures.md: a sentence for each figure, and what the parts of the monitor cost.
fn sentences(file: &str, results: &Results, texts: &Texts) -> Result<String, String> {
    let figures: Vec<&Figure> = results.figures.iter().collect();
    let link = file.strip_prefix("bench/").unwrap_or(file);
    let mut text = format!("[`{file}`]({link}), {}.\n\n", of(results));
    for (number, entry) in page::numbers(&figures, texts) {
        text += &format!("## {}\n\n", page::heading(&number, entry));
        let Some(entry) = entry else { continue };
        text += &format!("{}\n\n", texts.sentence(&figures, entry).0);
        for goal in &entry.goals {
            text += &format!("* {}\n", texts.goal(&figures, entry, goal));
        }
        if !entry.goals.is_empty() {
            text.push('\n');
        }
    }
    let cost = &texts.catalogue.cost;
    let lanes = rows(&cost.table, file, &figures, texts)?;
    let rest = texts.sentence(&figures, &cost.entry).0;
    text += &format!("## {}\n\n{lanes}\n{rest}\n\n", cost.entry.title);
    for missing in &results.missing {
        let (what, why) = page::lacking(missing);
        // What a program said besides is in the file.
        let why = why.lines().next().unwrap_or_default();
        text += &format!("Not in the file: {what}: {why}\n\n");
    }
    Ok(text.trim_end().to_owned() + "\n")
}

fn of(results: &Results) -> String {
    let machine = &results.machine;
    format!(
        "commit {}, {}, {} cores, {}",
        results.commit, machine.cpu, machine.cores, machine.kernel
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::fixture;

    fn as_if_measured() -> Results {
        Results { fixture: None, ..fixture() }
    }

    const FILE: &str = "bench/results/2026-01-02-0000000.json";

    fn texts() -> Texts {
        Texts::read(&crate::report::bench_directory()).unwrap()
    }

    #[test]
    fn documents_have_what_is_in_the_files_that_they_name() {
        let wrong = check(&crate::report::bench_directory().join(".."));
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn refuses_sections_that_are_not_the_files() {
        let (texts, read) = (texts(), |_: &PathBuf| Ok(as_if_measured()));
        for section in &SECTIONS {
            let made = section.text(FILE, &as_if_measured(), &texts).unwrap();
            let text = format!("# mmTLS\n\n{made}\n\nmore\n");
            section.check(&text, &texts, &read).unwrap();
            let changed = text.replacen("CPU-s/GB", "CPU-s/TB", 1);
            assert_ne!(changed, text);
            let refused = section.check(&changed, &texts, &read).unwrap_err();
            assert!(refused.contains("report --documents bench/results/"), "{refused}");
            assert!(section.check("# mmTLS\n", &texts, &read).is_err());
            let none = format!("{}{NO_FILE} -->\nanything\n{}\n", section.begin(), section.end());
            section.check(&none, &texts, &read).unwrap();
        }
    }

    #[test]
    fn writes_between_the_comments() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        fs::create_dir_all(root.join("bench/results")).unwrap();
        let file = serde_json::to_string(&as_if_measured()).unwrap();
        fs::write(root.join(FILE), file).unwrap();
        for section in &SECTIONS {
            let (begin, end) = (section.begin(), section.end());
            let text = format!("before\n{begin}{NO_FILE} -->\nwhat was there\n{end}\nbehind\n");
            fs::write(root.join(section.document), text).unwrap();
        }
        write(root, Path::new(FILE), &texts()).unwrap();
        for section in &SECTIONS {
            let text = read(&root.join(section.document)).unwrap();
            let (before, file, _, behind) = section.parts(&text).unwrap();
            assert_eq!((before, file, behind), ("before\n", FILE, "\nbehind\n"));
            assert!(!text.contains("what was there"), "{text}");
        }
    }

    #[test]
    fn refuses_files_that_nobody_measured() {
        let place = tempfile::tempdir().unwrap();
        let refused = write(place.path(), Path::new("/tmp/results.json"), &texts()).unwrap_err();
        assert!(refused.contains("bench/results"), "{refused}");
        let section = &SECTIONS[0];
        let refused = section.text(FILE, &fixture(), &texts()).unwrap_err();
        assert!(refused.contains("takes no numbers of it: Made up"), "{refused}");
        let quick = Results { quick: true, ..as_if_measured() };
        assert!(section.text(FILE, &quick, &texts()).unwrap_err().contains("a quick run"));
    }
}
