//! The page of a file that nobody measured, in Chromium: every plot is there, no text of one lies on another or leaves it, in a
//! wide and a narrow window. Pictures go to target/screenshots/, for people to look at.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::catalogue::Texts;
use super::{bench_directory, page};
use crate::results::Results;

/// Made up.
pub fn fixture() -> Results {
    let results: Results = serde_json::from_str(include_str!("fixture.json")).unwrap();
    assert!(results.fixture.is_some(), "nobody may take these numbers for measured ones");
    results
}

fn page_of_fixture() -> String {
    let texts = Texts::read(&bench_directory()).unwrap();
    page::html(&[("fixture.json".to_owned(), fixture())], &texts).unwrap()
}

/// What is wrong with the plots that are to be seen: in lines.
const FAULTS: &str = r#"(() => {
  const faults = [];
  for (const figure of document.querySelectorAll('figure[data-figure]')) {
    const plots = [...figure.querySelectorAll('svg.plot')].filter((it) => it.getBoundingClientRect().width > 0);
    if (plots.length !== 1) faults.push(`${figure.dataset.figure}: ${plots.length} plots`);
    for (const plot of plots) {
      const frame = plot.getBoundingClientRect();
      if (frame.height < 50) faults.push(`${figure.dataset.figure}: ${frame.height} pixels high`);
      const texts = [...plot.querySelectorAll('text')].map((it) => [it.textContent.trim(), it.getBoundingClientRect()]);
      if (texts.length < 3) faults.push(`${figure.dataset.figure}: ${texts.length} texts`);
      for (const [words, box] of texts) {
        if (box.left < frame.left - 0.5 || box.right > frame.right + 0.5 || box.top < frame.top - 0.5 || box.bottom > frame.bottom + 0.5)
          faults.push(`${figure.dataset.figure}: "${words}" leaves its plot`);
        if (box.height < 9) faults.push(`${figure.dataset.figure}: "${words}" is ${box.height} pixels high`);
      }
      texts.forEach(([words, one], at) => {
        for (const [others, other] of texts.slice(at + 1)) {
          const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
          const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
          if (across > 1 && down > 1) faults.push(`${figure.dataset.figure}: "${words}" lies on "${others}"`);
        }
      });
    }
  }
  return faults.join('\n');
})()"#;

/// Has Chromium do these steps.
fn browse(steps: &Value) -> Value {
    let profile = tempfile::tempdir().unwrap();
    let driver = include_str!("../../../crates/mmtls/tests/chromium.py");
    let mut python = Command::new("python3");
    python.args(["-c", driver]).arg(profile.path());
    python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = python.spawn().unwrap();
    child.stdin.take().unwrap().write_all(steps.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn pictures() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    // target/debug/deps/…
    let directory = me.ancestors().nth(3).unwrap().join("screenshots");
    fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn plots_are_legible_in_chromium() {
    if !mmtls_testkit::require_program("python3") || !mmtls_testkit::require_browser("chromium") {
        return;
    }
    let page = page_of_fixture();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("report.html");
    fs::write(&file, &page).unwrap();
    let shot = |name: &str| json!({"shot": pictures().join(name).display().to_string()});
    let mut steps = vec![json!({"view": [1200, 900, "light"]})];
    steps.push(json!({"open": format!("file://{}", file.display())}));
    steps.push(json!({"wait": "document.readyState === 'complete'"}));
    steps.push(json!({"wait": "document.querySelectorAll('figure svg.plot').length > 0"}));
    let views = [(1200, "light"), (1200, "dark"), (700, "light"), (390, "dark"), (390, "light")];
    for (width, scheme) in views {
        steps.push(json!({"view": [width, 900, scheme]}));
        steps.push(json!({"wait": format!("innerWidth === {width}")}));
        steps.push(
            json!({"wait": format!("matchMedia('(prefers-color-scheme: {scheme})').matches")}),
        );
        steps.push(json!({"eval": FAULTS}));
        steps.push(json!({"eval": "document.documentElement.scrollWidth - innerWidth"}));
        steps.push(
            json!({"eval": "getComputedStyle(document.querySelector('svg.plot text')).fill"}),
        );
        steps.push(shot(&format!("report-{width}-{scheme}.png")));
    }
    steps.push(json!({"eval": "document.querySelectorAll('figure[data-figure]').length"}));
    steps.push(json!({"eval": "document.querySelectorAll('script, link, img, figure b').length"}));
    let told = browse(&json!(steps));
    let values = told["values"].as_array().unwrap();
    let (of_views, of_page) = values.split_at(values.len() - 2);
    for ((width, scheme), values) in views.iter().zip(of_views.chunks(3)) {
        let view = format!("{width} pixels, {scheme}");
        assert_eq!(values[0], "", "{view}:\n{}", values[0].as_str().unwrap_or_default());
        assert!(values[1].as_i64().unwrap() <= 0, "{view}: the page is wider than its window");
        let ink = if *scheme == "dark" { "rgb(232, 232, 232)" } else { "rgb(26, 26, 26)" };
        assert_eq!(values[2], ink, "{view}");
    }
    assert_eq!(of_page[0], fixture().figures.len(), "a plot for each figure");
    assert_eq!(of_page[1], 0, "the page needs nothing else, and text of files stays text");
    assert_eq!(told["faults"].as_array().unwrap().len(), 0, "{told}");
}

#[test]
fn tells_what_was_measured_and_what_not() {
    let page = page_of_fixture();
    for text in [
        // Of the fixture, of the paper, of both.
        "fixture.json: no results: Made up for the tests",
        "2.7 to 4.6",
        "Figure 10: downloads over persistent connections",
        "failed: 1 of 4096 records were opened &lt;made up&gt;",
        "It needs the public Internet",
        "proxy_buffering off;",
        "These files have no such figure.",
        "Left out: Hyperscan: not built in",
    ] {
        assert!(page.contains(text), "{text}");
    }
    // What only a network could bring, besides the name of SVG.
    let addresses = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!addresses.contains("http://") && !addresses.contains("https://"));
    assert!(!page.contains("url("));
    // A number of the catalogue without figure, and one that is not explained.
    assert!(!page.contains("id=\"figure-M2\"") && page.contains("Ours, M2: what a pause saves"));
}

#[test]
fn of_several_files_the_last_one_counts() {
    let texts = Texts::read(&bench_directory()).unwrap();
    let (first, mut second) = (fixture(), fixture());
    second.figures.retain(|figure| figure.number == "15");
    second.figures[0].title = "Another title".to_owned();
    let count = |page: &str| page.matches("data-figure=\"15 memory\"").count();
    let files = [("a.json".to_owned(), first), ("b.json".to_owned(), second)];
    let page = page::html(&files, &texts).unwrap();
    assert_eq!(count(&page), 1);
    assert!(page.contains("Another title") && page.contains("b.json; part (f)"));
}
