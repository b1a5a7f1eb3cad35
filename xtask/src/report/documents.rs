//! What README.md (a table) and bench/figures.md (a sentence for each figure) take from files of results: a section of each,
//! between two comments, of which the first one names the files. Of a figure that several have, that of the last one counts.
//!
//! Refuses files that nobody measured, and those that the repository does not have.

use std::fs;
use std::path::{Path, PathBuf};

use super::catalogue::{Cell, Table, Texts};
use super::page::{self, Shown};
use super::show;
use crate::results::{Figure, Results};

/// A section that is written here.
struct Section {
    document: &'static str,
    /// What the comments call it.
    name: &'static str,
    make: fn(&[Named], &Texts) -> Result<String, String>,
}

/// A file of results and its path in the repository.
type Named = (String, Results);

const SECTIONS: [Section; 2] = [
    Section { document: "README.md", name: "performance", make: table },
    Section { document: "bench/figures.md", name: "figures", make: sentences },
];

/// What the first comment names before anything has been made.
const NO_FILE: &str = "no file yet";

/// Writes both sections; `root` is that of the repository.
pub fn write(root: &Path, files: &[PathBuf], texts: &Texts) -> Result<(), String> {
    for file in files {
        if file.components().count() != 3 || !file.starts_with("bench/results") {
            return Err(format!("{}: documents name files of bench/results only", file.display()));
        }
    }
    let named = files.iter().map(|file| file.display().to_string());
    let files = read_all(named, &|file| Results::read(&root.join(file)))?;
    // All or none.
    let mut written = Vec::new();
    for section in &SECTIONS {
        let path = root.join(section.document);
        let text = read(&path)?;
        let (before, _, _, behind) = section.parts(&text)?;
        written.push((path, format!("{before}{}{behind}", section.text(&files, texts)?)));
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

/// Files by their names, in the order in which they count.
fn read_all(
    names: impl Iterator<Item = String>,
    read: &dyn Fn(&PathBuf) -> Result<Results, String>,
) -> Result<Vec<Named>, String> {
    names.map(|name| read(&PathBuf::from(&name)).map(|results| (name, results))).collect()
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
    fn text(&self, files: &[Named], texts: &Texts) -> Result<String, String> {
        for (file, results) in files {
            if let Some(why) = results.unfit() {
                return Err(format!("{file}: {} takes no numbers of it: {why}", self.document));
            }
        }
        let made = (self.make)(files, texts)?;
        Ok(format!("{}{} -->\n{made}{}", self.begin(), names(files, " "), self.end()))
    }

    /// What stands before the section, the files that it names, the section, and what stands behind.
    fn parts<'a>(&self, text: &'a str) -> Result<(&'a str, &'a str, &'a str, &'a str), String> {
        let (begin, end) = (self.begin(), self.end());
        let missing = || format!("{}: no {begin:?} with {end:?} behind it", self.document);
        let start = text.find(&begin).ok_or_else(missing)?;
        let end = start + text[start..].find(&end).ok_or_else(missing)? + end.len();
        let named = &text[start + begin.len()..end];
        let (files, _) = named.split_once(" -->").ok_or_else(missing)?;
        Ok((&text[..start], files, &text[start..end], &text[end..]))
    }

    fn check(
        &self,
        text: &str,
        texts: &Texts,
        read: &dyn Fn(&PathBuf) -> Result<Results, String>,
    ) -> Result<(), String> {
        let (_, files, is, _) = self.parts(text)?;
        if files == NO_FILE {
            return Ok(());
        }
        let named = read_all(files.split(' ').map(str::to_owned), read)?;
        match self.text(&named, texts)? == is {
            true => Ok(()),
            false => Err(format!(
                "{}: the section {:?} is not that of {files}; write it with `cargo xtask report --documents {files}`",
                self.document, self.name
            )),
        }
    }
}

/// Of README.md.
fn table(files: &[Named], texts: &Texts) -> Result<String, String> {
    let mut shown = page::chosen(files);
    let figures: Vec<&Figure> = shown.iter().map(|it| it.figure).collect();
    let readme = &texts.catalogue.readme;
    let mut text = rows(readme, files, &figures, texts)?;
    shown.retain(|it| readme.rows.iter().any(|row| row.number == it.figure.number));
    let infinite =
        if text.contains('∞') { format!(" {}.", show::INFINITE) } else { String::new() };
    text += &format!(
        "\nMedians, with the range of repetitions: {}.{infinite}\n",
        sources(files, &shown, "")
    );
    Ok(text)
}

/// A table of either document.
fn rows(
    table: &Table,
    files: &[Named],
    figures: &[&Figure],
    texts: &Texts,
) -> Result<String, String> {
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
                        let files = names(files, ", ");
                        format!("{files}: no figure {} for {:?}", row.number, row.what)
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
fn sentences(files: &[Named], texts: &Texts) -> Result<String, String> {
    let shown = page::chosen(files);
    let figures: Vec<&Figure> = shown.iter().map(|it| it.figure).collect();
    let mut text = format!("{}.\n\n", sources(files, &shown, "bench/"));
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
    let lanes = rows(&cost.table, files, &figures, texts)?;
    let rest = texts.sentence(&figures, &cost.entry).0;
    text += &format!("## {}\n\n{lanes}\n{rest}\n\n", cost.entry.title);
    for missing in files.iter().flat_map(|(_, results)| &results.missing) {
        let (what, why) = page::lacking(missing);
        // What a program said besides is in the file.
        let why = why.lines().next().unwrap_or_default();
        text += &format!("Not in the file: {what}: {why}\n\n");
    }
    Ok(text.trim_end().to_owned() + "\n")
}

fn names(files: &[Named], between: &str) -> String {
    files.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>().join(between)
}

/// Which files these figures are of, with what was measured and where; of all but the first one with their numbers.
fn sources(files: &[Named], shown: &[Shown<'_>], root: &str) -> String {
    let mut all = Vec::new();
    for (file, results) in files {
        let its = shown.iter().filter(|it| it.file == file);
        let mut its: Vec<&str> = its.map(|it| it.figure.number.as_str()).collect();
        its.dedup();
        let which = match (all.is_empty(), its.is_empty()) {
            (false, true) => continue,
            (false, false) => format!("{}: ", its.join(", ")),
            (true, _) => String::new(),
        };
        let (machine, link) = (&results.machine, file.strip_prefix(root).unwrap_or(file));
        all.push(format!(
            "{which}[`{file}`]({link}), commit {}, {}, {} cores, {}",
            results.commit, machine.cpu, machine.cores, machine.kernel
        ));
    }
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::fixture;

    fn as_if_measured() -> Results {
        Results { fixture: None, ..fixture() }
    }

    fn named(results: Results) -> Named {
        (FILE.to_owned(), results)
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
            let made = section.text(&[named(as_if_measured())], &texts).unwrap();
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
        write(root, &[FILE.into()], &texts()).unwrap();
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
        let refused = write(place.path(), &["/tmp/results.json".into()], &texts()).unwrap_err();
        assert!(refused.contains("bench/results"), "{refused}");
        let section = &SECTIONS[0];
        let refused = section.text(&[named(fixture())], &texts()).unwrap_err();
        assert!(refused.contains("takes no numbers of it: Made up"), "{refused}");
        let quick = Results { quick: true, ..as_if_measured() };
        let refused = section.text(&[named(as_if_measured()), named(quick)], &texts());
        assert!(refused.unwrap_err().contains("a quick run"));
    }

    #[test]
    fn takes_a_figure_of_the_last_file_that_has_it() {
        let mut later = as_if_measured();
        later.figures.retain(|it| it.number == "M7" && it.panel == "time");
        later.commit = "1111111".to_owned();
        let point = &mut later.figures[0].series[0].points[0];
        point.samples = vec![77.7; point.samples.len()];
        let files = [named(as_if_measured()), ("bench/results/later.json".to_owned(), later)];
        let section = &SECTIONS[1];
        let text = section.text(&files, &texts()).unwrap();
        assert!(text.starts_with(&format!("<!-- figures: {FILE} bench/results/later.json -->\n")));
        assert!(
            text.contains("; M7: [`bench/results/later.json`](results/later.json), commit 1111111")
        );
        assert!(text.contains("77.7 s/GB"), "{text}");
        let read = |path: &PathBuf| {
            let (_, results) = files.iter().find(|(file, _)| path == Path::new(file)).unwrap();
            Ok(serde_json::from_value(serde_json::to_value(results).unwrap()).unwrap())
        };
        section.check(&text, &texts(), &read).unwrap();
    }
}
