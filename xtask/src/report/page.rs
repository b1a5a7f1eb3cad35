//! The page: a section for each number, with plots, what the paper states, a sentence, and all medians; then who was
//! compared, where, and what could not be measured.
//!
//! Refuses markup in texts of files, and scripts altogether.

use std::collections::{BTreeMap, BTreeSet};

use super::catalogue::{Entry, NotMeasured, Texts};
use super::show::{self, escaped};
use super::{plot, value};
use crate::bench::facts::BUSY;
use crate::results::{Figure, Kind, Missing, NoResult, Point, Results, Series};

const STYLE: &str = include_str!("style.css");

/// A figure, and the file that it is of.
pub struct Shown<'a> {
    pub figure: &'a Figure,
    pub file: &'a str,
}

/// The page of some files, which have names.
pub fn html(files: &[(String, Results)], texts: &Texts) -> Result<String, String> {
    let shown = chosen(files);
    let figures: Vec<&Figure> = shown.iter().map(|it| it.figure).collect();
    let (always, dark) = plot::colours();
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>mmTLS: evaluation</title>\n\
         <style>\n{STYLE}\n{always}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n</style>\n</head>\n<body>\n"
    );
    html += "<header>\n<h1>mmTLS: the paper's evaluation and ours</h1>\n";
    for (name, results) in files {
        if let Some(why) = results.unfit() {
            html += &format!(
                "<p class=\"warning\">{}: no results: {}</p>\n",
                escaped(name),
                escaped(why)
            );
        }
        html += &format!("<p>{}</p>\n", machine(name, results));
    }
    html += &format!(
        "<p>The paper: {}. {}</p>\n",
        escaped(&texts.paper.title),
        escaped(&texts.paper.setup)
    );
    html += "<p>Bars and points are medians, whiskers reach from the smallest to the largest repetition.</p>\n";
    html += &contents(&numbers(&figures, texts));
    html += "</header>\n<main>\n";
    for (number, entry) in numbers(&figures, texts) {
        html += &section(&number, entry, &shown, &figures, texts)?;
    }
    html += &not_measured(files, &figures, texts);
    html += &contenders(files);
    html += "</main>\n</body>\n</html>\n";
    Ok(html)
}

/// Every figure once.
pub fn chosen(files: &[(String, Results)]) -> Vec<Shown<'_>> {
    let mut shown: Vec<Shown<'_>> = Vec::new();
    for (file, results) in files {
        for figure in &results.figures {
            shown.retain(|it| it.figure.name() != figure.name());
            shown.push(Shown { figure, file });
        }
    }
    shown
}

/// Numbers that have figures, in the order of the catalogue, and those that it does not know.
pub fn numbers<'a>(figures: &[&Figure], texts: &'a Texts) -> Vec<(String, Option<&'a Entry>)> {
    let mut left: BTreeSet<&str> = figures.iter().map(|figure| &*figure.number).collect();
    let mut numbers = Vec::new();
    for entry in &texts.catalogue.figures {
        if left.remove(&*entry.number) {
            numbers.push((entry.number.clone(), Some(entry)));
        }
    }
    numbers.extend(left.into_iter().map(|number| (number.to_owned(), None)));
    numbers
}

/// A colour for each subject of a figure: that of the catalogue, the same in all figures, or one that the figure has left.
fn colours<'a>(figure: &'a Figure, known: &[String]) -> BTreeMap<&'a str, usize> {
    let place = |subject: &str| known.iter().position(|it| it == subject);
    let subjects: Vec<&str> = figure.series.iter().map(|series| &*series.subject).collect();
    let mut colours: BTreeMap<&str, usize> =
        subjects.iter().filter_map(|subject| Some((*subject, place(subject)?))).collect();
    for subject in subjects {
        if !colours.contains_key(subject) {
            let mut left = (0..).filter(|nth| !colours.values().any(|taken| taken == nth));
            colours.insert(subject, left.next().unwrap_or(0));
        }
    }
    colours
}

fn machine(name: &str, results: &Results) -> String {
    let machine = &results.machine;
    let programs: Vec<String> =
        results.programs.iter().map(|(name, version)| format!("{name}: {version}")).collect();
    let text = format!(
        "{name}: commit {}, {}, {}, {} cores, {} MB, {}; {}",
        results.commit,
        results.date,
        machine.cpu,
        machine.cores,
        machine.memory_mb,
        machine.kernel,
        programs.join("; ")
    );
    escaped(text.trim_end_matches([' ', ';']))
}

/// What a number is called.
pub fn heading(number: &str, entry: Option<&Entry>) -> String {
    let of_paper = number.starts_with(|it: char| it.is_ascii_digit());
    let kind = match () {
        () if of_paper => "Figure ",
        () if number.starts_with("Table") => "",
        () => "Ours, ",
    };
    let title = entry.map(|entry| format!(": {}", entry.title)).unwrap_or_default();
    format!("{kind}{number}{title}")
}

/// Figures that a file lacks, and why.
pub fn lacking(missing: &Missing) -> (String, String) {
    let outcome = match missing.outcome {
        NoResult::Failed => "failed",
        NoResult::Skipped => "skipped",
    };
    let what = format!("figure {}: {}", missing.figures.join(", "), missing.what);
    (what, format!("{outcome}: {}", missing.reason))
}

/// The name of a section in the page.
fn anchor(number: &str) -> String {
    escaped(&format!("figure-{}", number.replace(' ', "-")))
}

fn contents(numbers: &[(String, Option<&Entry>)]) -> String {
    let mut html = "<nav><ul>".to_owned();
    for (number, entry) in numbers {
        html += &format!(
            "<li><a href=\"#{}\">{}</a></li>",
            anchor(number),
            escaped(&heading(number, *entry))
        );
    }
    html += "<li><a href=\"#not-measured\">What was not measured</a></li>\
             <li><a href=\"#contenders\">Settings of the contenders</a></li></ul></nav>\n";
    html
}

fn section(
    number: &str,
    entry: Option<&Entry>,
    shown: &[Shown<'_>],
    figures: &[&Figure],
    texts: &Texts,
) -> Result<String, String> {
    let mut html = format!(
        "<section id=\"{}\">\n<h2>{}</h2>\n",
        anchor(number),
        escaped(&heading(number, entry))
    );
    if let Some(entry) = entry {
        let (sentence, _) = texts.sentence(figures, entry);
        html += &format!("<p class=\"sentence\">{}</p>\n", escaped(&sentence));
        for goal in &entry.goals {
            let goal = texts.goal(figures, entry, goal);
            html += &format!("<p class=\"goal\">{}</p>\n", escaped(&goal));
        }
    }
    let paper: Vec<&Figure> =
        texts.paper.figures.iter().filter(|figure| figure.number == number).collect();
    // One plot stands beside them, the others below.
    let mut beside = stated(&paper);
    for it in shown.iter().filter(|it| it.figure.number == number) {
        html += "<div class=\"pair\">\n<div>\n";
        html += &one(it, &texts.catalogue.subjects)?;
        html += &table(it.figure);
        html += "</div>\n";
        html += &std::mem::take(&mut beside);
        html += "</div>\n";
    }
    html += "</section>\n";
    Ok(html)
}

fn one(shown: &Shown<'_>, known: &[String]) -> Result<String, String> {
    let figure = shown.figure;
    let mut html = format!(
        "<figure data-figure=\"{}\">\n<figcaption>{}</figcaption>\n",
        escaped(&figure.name()),
        escaped(&figure.title)
    );
    let colours = colours(figure, known);
    html += &plot::html(figure, &|subject| colours.get(subject).copied().unwrap_or(0))?;
    for note in &figure.notes {
        html += &format!("<p class=\"note\">{}</p>\n", escaped(note));
    }
    for skipped in &figure.skipped {
        let (what, why) = (escaped(&skipped.what), escaped(&skipped.why));
        html += &format!("<p class=\"note\">Left out: {what}: {why}</p>\n");
    }
    if figure.busy_before > BUSY {
        html += "<p class=\"warning\">The machine was not idle: do not trust this figure.</p>\n";
    }
    let took = format!(
        "{}; part ({}) took {} s, {} % of all cores busy before: {}",
        shown.file,
        figure.part,
        show::number(figure.seconds),
        show::number(figure.busy_before * 100.0),
        figure.command
    );
    html += &format!("<p class=\"source\">{}</p>\n</figure>\n", escaped(&took));
    Ok(html)
}

/// What the paper says of a number.
fn stated(paper: &[&Figure]) -> String {
    if paper.is_empty() {
        return String::new();
    }
    let mut html = "<aside>\n<h3>The paper</h3>\n<table>\n".to_owned();
    for figure in paper {
        html += &format!("<tr><th colspan=\"2\">{}</th></tr>\n", escaped(&figure.title));
        for series in &figure.series {
            for point in &series.points {
                html += &statement(figure, series, point);
            }
        }
    }
    html += "</table>\n</aside>\n";
    html
}

fn statement(figure: &Figure, series: &Series, point: &Point) -> String {
    let place = show::place(&point.x, &figure.x);
    let place = if place.is_empty() { String::new() } else { format!(", {place}") };
    let unit = &figure.y.unit;
    let said = match &point.samples[..] {
        [low, high] => format!("{} to {}", show::number(*low), show::with_unit(*high, unit)),
        samples => {
            let samples: Vec<String> =
                samples.iter().map(|it| show::with_unit(*it, unit)).collect();
            samples.join(", ")
        }
    };
    let source = series.source.as_deref().unwrap_or_default();
    format!(
        "<tr><td>{}<br><small>{}</small></td><td class=\"number\">{}</td></tr>\n",
        escaped(&format!("{}{place}", series.subject)),
        escaped(source),
        escaped(&said)
    )
}

/// Every point of a figure. How many samples there are has a column only where that differs: wide tables are cut in print.
fn table(figure: &Figure) -> String {
    let (what, counted) = match figure.kind {
        Kind::Values => ("median, from least to most", "samples of each"),
        Kind::Distribution => ("median, 90 %, 99 %", "events of each"),
    };
    let counts = |series: &Series| {
        let counts = series.points.iter().map(Point::count);
        (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0))
    };
    let mut all = figure.series.iter().map(counts);
    let same = all.next().filter(|first| first.0 == first.1 && all.all(|it| it == *first));
    let told = same.map(|(count, _)| format!("; {count} {counted}")).unwrap_or_default();
    let mut html = format!(
        "<div class=\"scroll\"><table class=\"samples\">\n<caption>{}: {what}{told}</caption>\n<tr><th>{}</th>",
        escaped(&show::axis(&figure.y)),
        escaped(&show::places(&figure.x))
    );
    let places = figure.xs();
    for place in &places {
        html += &format!("<th class=\"number\">{}</th>", escaped(&show::place(place, &figure.x)));
    }
    if same.is_none() {
        html += &format!("<th class=\"number\">{counted}</th>");
    }
    html += "</tr>\n";
    for series in &figure.series {
        html += &format!("<tr><td>{}</td>", escaped(&series.subject));
        for place in &places {
            let cell = series.at(place).map(|point| cell(point, figure.kind)).unwrap_or_default();
            html += &format!("<td class=\"number\">{cell}</td>");
        }
        if same.is_none() {
            let (least, most) = counts(series);
            let told = if least == most { String::new() } else { format!("–{most}") };
            html += &format!("<td class=\"number\">{least}{told}</td>");
        }
        html += "</tr>\n";
    }
    html += "</table></div>\n";
    html
}

fn cell(point: &Point, kind: Kind) -> String {
    let (median, more) = match kind {
        Kind::Values => {
            let summary = point.summary();
            (summary.median, [summary.min, summary.max])
        }
        Kind::Distribution => {
            let of = |share| value::quantile(&[point], share).unwrap_or(f64::NAN);
            (of(0.5), [of(0.9), of(0.99)])
        }
    };
    let (median, more) = (show::number(median), more.map(show::number));
    let between = if kind == Kind::Values { "–" } else { ", " };
    format!("{median}<br><small>{}</small>", more.join(between))
}

fn not_measured(files: &[(String, Results)], figures: &[&Figure], texts: &Texts) -> String {
    let mut html =
        "<section id=\"not-measured\">\n<h2>What was not measured, and why</h2>\n<dl>\n".to_owned();
    let mut add = |what: &str, why: &str| {
        html += &format!("<dt>{}</dt><dd>{}</dd>\n", escaped(what), escaped(why));
    };
    for (file, results) in files {
        for missing in &results.missing {
            let (what, why) = lacking(missing);
            add(&format!("{file}, {what}"), &why);
        }
    }
    let is_there = |number: &str| figures.iter().any(|figure| figure.number == number);
    for NotMeasured { what, number, why } in &texts.catalogue.not_measured {
        if !number.as_deref().is_some_and(is_there) {
            add(what, why);
        }
    }
    // Whatever is known of a number that these files have not.
    let explained: Vec<&str> =
        texts.catalogue.not_measured.iter().filter_map(|it| it.number.as_deref()).collect();
    for entry in &texts.catalogue.figures {
        if !is_there(&entry.number) && !explained.contains(&&*entry.number) {
            add(&heading(&entry.number, Some(entry)), "These files have no such figure.");
        }
    }
    html += "</dl>\n</section>\n";
    html
}

fn contenders(files: &[(String, Results)]) -> String {
    let mut html = "<section id=\"contenders\">\n<h2>Settings of the contenders</h2>\n".to_owned();
    for (file, results) in files {
        for contender in &results.contenders {
            let title = format!("({}) {}, {file}", contender.part, contender.name);
            html += &format!(
                "<h3>{}</h3>\n<pre>{}</pre>\n",
                escaped(&title),
                escaped(&contender.settings)
            );
        }
    }
    html += "</section>\n";
    html
}
