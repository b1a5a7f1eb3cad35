//! The performance table of README.md, between two comments, of a file of results that the first one names.
//!
//! Refuses files that nobody measured, and those that the repository does not have.

use std::fs;
use std::path::{Path, PathBuf};

use super::catalogue::{Cell, Texts};
use crate::results::{Figure, Results};

/// Before and behind the table. Without a file, nothing has been made yet.
const BEGIN: &str = "<!-- performance: ";
const NO_FILE: &str = "no file yet";
const END: &str = "<!-- end of performance -->";

/// Writes the table.
pub fn write(readme: &Path, file: &Path, texts: &Texts) -> Result<(), String> {
    if file.components().count() != 3 || !file.starts_with("bench/results") {
        return Err(format!("{}: README.md names files of bench/results only", file.display()));
    }
    let failed = |error: std::io::Error| format!("{}: {error}", readme.display());
    let text = fs::read_to_string(readme).map_err(failed)?;
    let results = Results::read(file)?;
    let made = section(&file.display().to_string(), &results, texts)?;
    let (before, _, _, behind) = parts(&text)?;
    fs::write(readme, format!("{before}{made}{behind}")).map_err(failed)?;
    println!("{}", readme.display());
    Ok(())
}

/// Whether the table is that of the file that it names; `root` is that of the repository.
///
/// # Errors
/// What is wrong, in one line with the remedy.
pub fn check(root: &Path) -> Result<(), String> {
    let text =
        fs::read_to_string(root.join("README.md")).map_err(|it| format!("README.md: {it}"))?;
    let texts = Texts::read(&root.join("bench"))?;
    check_text(&text, &texts, &|file| Results::read(&root.join(file)))
}

fn check_text(
    text: &str,
    texts: &Texts,
    read: &dyn Fn(&PathBuf) -> Result<Results, String>,
) -> Result<(), String> {
    let (_, file, is, _) = parts(text)?;
    if file == NO_FILE {
        return Ok(());
    }
    let results = read(&PathBuf::from(file))?;
    match section(file, &results, texts)? == is {
        true => Ok(()),
        false => Err(format!(
            "README.md: the performance table is not that of {file}; write it with `cargo xtask report --readme {file}`"
        )),
    }
}

/// What stands before the section, the file that it names, the section, and what stands behind.
fn parts(text: &str) -> Result<(&str, &str, &str, &str), String> {
    let missing = || format!("README.md: no {BEGIN:?} with {END:?} behind it");
    let start = text.find(BEGIN).ok_or_else(missing)?;
    let end = start + text[start..].find(END).ok_or_else(missing)? + END.len();
    let (file, _) = text[start + BEGIN.len()..end].split_once(" -->").ok_or_else(missing)?;
    Ok((&text[..start], file, &text[start..end], &text[end..]))
}

fn section(file: &str, results: &Results, texts: &Texts) -> Result<String, String> {
    if let Some(why) = results.unfit() {
        return Err(format!("{file}: README.md takes no numbers of it: {why}"));
    }
    let figures: Vec<&Figure> = results.figures.iter().collect();
    let table = &texts.catalogue.readme;
    let mut text = format!("{BEGIN}{file} -->\n");
    let rule = "---|".repeat(table.columns.len() + 1);
    text += &format!("| | {} |\n|{rule}\n", table.columns.join(" | "));
    for row in &table.rows {
        let mut cells = vec![row.what.clone()];
        for cell in &row.cells {
            cells.push(match cell {
                Cell::Text(text) => text.clone(),
                Cell::Value(value) => {
                    let computed = texts.compute(&figures, &row.number, value);
                    let computed = computed.ok_or_else(|| {
                        format!("{file}: no figure {} for {:?} of README.md", row.number, row.what)
                    })?;
                    computed.show()
                }
            });
        }
        text += &format!("| {} |\n", cells.join(" | "));
    }
    let machine = &results.machine;
    text += &format!(
        "\nMedians, with the range of repetitions: [`{file}`]({file}), commit {}, {}, {} cores, {}.\n{END}",
        results.commit, machine.cpu, machine.cores, machine.kernel
    );
    Ok(text)
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
    fn readme_has_the_table_of_the_file_that_it_names() {
        check(&crate::report::bench_directory().join("..")).unwrap();
    }

    #[test]
    fn refuses_a_table_that_is_not_the_files() {
        let (texts, read) = (texts(), |_: &PathBuf| Ok(as_if_measured()));
        let made = section(FILE, &as_if_measured(), &texts).unwrap();
        let text = format!("# mmTLS\n\n{made}\n\nmore\n");
        check_text(&text, &texts, &read).unwrap();
        let changed = text.replacen("CPU-s/GB", "CPU-s/TB", 1);
        assert_ne!(changed, text);
        let refused = check_text(&changed, &texts, &read).unwrap_err();
        assert!(refused.contains("cargo xtask report --readme bench/results/"), "{refused}");
        assert!(check_text("# mmTLS\n", &texts, &read).is_err());
        let none = format!("{BEGIN}{NO_FILE} -->\nanything\n{END}\n");
        check_text(&none, &texts, &read).unwrap();
    }

    #[test]
    fn writes_between_the_comments() {
        let made = section(FILE, &as_if_measured(), &texts()).unwrap();
        let text = format!("before\n{BEGIN}{NO_FILE} -->\nold\n{END}\nbehind\n");
        let (before, _, _, behind) = parts(&text).unwrap();
        let text = format!("{before}{made}{behind}");
        assert!(text.starts_with("before\n<!-- performance: bench/results/"), "{text}");
        assert!(text.ends_with("<!-- end of performance -->\nbehind\n") && !text.contains("old"));
        let (_, file, section, _) = parts(&text).unwrap();
        assert_eq!((file, section), (FILE, &*made));
    }

    #[test]
    fn refuses_files_that_nobody_measured() {
        let place = tempfile::tempdir().unwrap();
        let readme = place.path().join("README.md");
        fs::write(&readme, format!("{BEGIN}{NO_FILE} -->\n{END}\n")).unwrap();
        let refused = write(&readme, Path::new("/tmp/results.json"), &texts()).unwrap_err();
        assert!(refused.contains("bench/results"), "{refused}");
        let refused = section(FILE, &fixture(), &texts()).unwrap_err();
        assert!(refused.contains("takes no numbers of it: Made up"), "{refused}");
        let quick = Results { quick: true, ..as_if_measured() };
        assert!(section(FILE, &quick, &texts()).unwrap_err().contains("a quick run"));
    }
}
