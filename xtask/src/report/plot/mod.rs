//! Figures as inline SVG, drawn by `plotters`: bars with whiskers ([`bars`]), lines over an axis, distributions ([`lines`]).
//!
//! Each is drawn twice, for a wide and for a narrow window, since text that is scaled down cannot be read. Colours are
//! those of a light page; the page's style sheet puts others in their place on a dark one ([`colours`]).
//!
//! Refuses figures without points.

mod bars;
mod lines;
mod scale;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::show;
use crate::results::{Figure, Kind, Scale, X};

/// Widths in pixels, and their classes in the style sheet.
pub const WIDTHS: [(&str, u32); 2] = [("wide", 720), ("narrow", 350)];

/// Up to how many places numbers are drawn as bars: a line needs more.
const FEW_PLACES: usize = 3;

/// Pixels of a letter, on average, for its size: of a wide typeface, so that what fits here fits everywhere.
const LETTER_WIDTH: f64 = 0.62;
/// What a wide letter has more than those.
const MORE_FOR_WIDE: f64 = 0.5;
const TEXT: f64 = 12.0;

/// As `plotters` has sizes, of which its SVG is a fraction.
const OF_SIZE: f64 = 1.24;

pub const INK: RGBColor = RGBColor(0x1a, 0x1a, 0x1a);
pub const GRID: RGBColor = RGBColor(0xd9, 0xd9, 0xd9);

/// For a light page, and for a dark one: told apart by people who do not see all colours, too.
const COLOURS: [(u32, u32); 8] = [
    (0x0072b2, 0x56b4e9),
    (0xc84e00, 0xff9a57),
    (0x007a5e, 0x3fc99a),
    (0xa03d88, 0xe39fd0),
    (0x8a6500, 0xe6b800),
    (0x5f6672, 0xa9b1bc),
    (0x4040a8, 0xa3a3ff),
    (0x7b2d26, 0xf08a80),
];

/// Lines differ in more than their colour.
const DASHES: [&str; 5] = ["none", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2"];

/// The colour of the nth subject. Beyond the last one they come again, a little different: the style sheet must know them.
fn colour(nth: usize) -> RGBColor {
    let (light, _) = COLOURS[nth % COLOURS.len()];
    let [_, red, green, blue] = light.to_be_bytes();
    RGBColor(red, green, blue.wrapping_add((nth / COLOURS.len()) as u8))
}

/// Subjects that are told apart at most.
const SUBJECTS: usize = 32;

/// Rules of the style sheet for all subjects: dashes, and the colours of dark pages.
pub fn colours() -> (String, String) {
    let (mut always, mut dark) = (String::new(), String::new());
    for nth in 0..SUBJECTS {
        let RGBColor(red, green, blue) = colour(nth);
        let light = format!("#{red:02X}{green:02X}{blue:02X}");
        let dashes = DASHES[nth % DASHES.len()];
        always +=
            &format!("svg [stroke=\"{light}\"][stroke-width=\"2\"]{{stroke-dasharray:{dashes}}}\n");
        let (_, other) = COLOURS[nth % COLOURS.len()];
        dark += &format!("svg [stroke=\"{light}\"]{{stroke:#{other:06x}}}\n");
        dark += &format!("svg [fill=\"{light}\"]{{fill:#{other:06x}}}\n");
    }
    (always, dark)
}

/// A plot in both widths, and its legend where lines need one; empty for a figure without points.
pub fn html(figure: &Figure, colour_of: &dyn Fn(&str) -> usize) -> Result<String, String> {
    let mut html = String::new();
    if figure.series.iter().all(|series| series.points.is_empty()) {
        return Ok(html);
    }
    let with_lines = figure.kind == Kind::Distribution || !with_bars(figure);
    for (class, width) in WIDTHS {
        let svg = match (figure.kind, with_lines) {
            (Kind::Distribution, _) => lines::distribution(figure, width, colour_of),
            (_, true) => lines::values(figure, width, colour_of),
            (_, false) => bars::draw(figure, width, colour_of),
        };
        let svg = svg.map_err(|error| format!("plot of figure {}: {error}", figure.name()))?;
        html += &labelled(&svg, class, width, &figure.title)?;
    }
    if with_lines {
        html += "<ul class=\"legend\">";
        for series in &figure.series {
            let swatch = swatch(colour_of(&series.subject), figure.kind == Kind::Values);
            html += &format!("<li>{swatch}{}</li>", show::escaped(&series.subject));
        }
        html += "</ul>\n";
    }
    Ok(html)
}

/// Whether bars show a figure best: names, or a few numbers.
fn with_bars(figure: &Figure) -> bool {
    figure.x.scale == Scale::Category || figure.xs().len() <= FEW_PLACES
}

/// The same picture as a part of a page that may scale it, with words for who does not see it.
fn labelled(svg: &str, class: &str, width: u32, title: &str) -> Result<String, String> {
    let (tag, rest) = svg.split_once('>').ok_or("no SVG was drawn")?;
    let view = tag.split_once("viewBox=\"").and_then(|(_, it)| it.split_once('"'));
    let (view, _) = view.ok_or("no SVG was drawn")?;
    Ok(format!(
        "<svg class=\"plot {class}\" viewBox=\"{view}\" style=\"max-width:{width}px\" role=\"img\" aria-label=\"{}\">{rest}",
        show::escaped(title)
    ))
}

fn swatch(nth: usize, with_marker: bool) -> String {
    let RGBColor(red, green, blue) = colour(nth);
    let colour = format!("#{red:02X}{green:02X}{blue:02X}");
    let marker = match marker_of(nth) {
        _ if !with_marker => String::new(),
        0 => format!("<circle cx=\"17\" cy=\"6\" r=\"4\" fill=\"{colour}\"/>"),
        1 => format!("<rect x=\"13\" y=\"2\" width=\"8\" height=\"8\" fill=\"{colour}\"/>"),
        2 => format!("<polygon points=\"17,1 22,10 12,10\" fill=\"{colour}\"/>"),
        _ => format!("<polygon points=\"17,1 22,6 17,11 12,6\" fill=\"{colour}\"/>"),
    };
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 34 12\" width=\"34\" height=\"12\" aria-hidden=\"true\">\
         <line x1=\"0\" y1=\"6\" x2=\"34\" y2=\"6\" stroke=\"{colour}\" stroke-width=\"2\"/>{marker}</svg>"
    )
}

/// Kinds of markers on lines: another one where colours come again.
const MARKERS: usize = 4;

fn marker_of(nth: usize) -> usize {
    (nth + nth / COLOURS.len()) % MARKERS
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// What drawing fails with, which in memory is nothing.
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn style(horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    let font = ("sans-serif", TEXT * OF_SIZE).into_font().color(&INK);
    font.pos(Pos::new(horizontal, vertical))
}

fn text(area: &Area<'_>, words: &str, at: (i32, i32), horizontal: HPos, vertical: VPos) -> Drawn {
    area.draw(&Text::new(words.to_owned(), at, style(horizontal, vertical)))?;
    Ok(())
}

/// About how wide a text is. Short ones, such as "mmTLS", may have wide letters only.
fn width_of(words: &str) -> i32 {
    let wide = words.chars().filter(|it| it.is_uppercase() || matches!(it, 'm' | 'w')).count();
    let letters = words.chars().count() as f64 + wide as f64 * MORE_FOR_WIDE;
    (letters * TEXT * LETTER_WIDTH).ceil() as i32
}

/// A text in lines of at most so many pixels, broken between words.
fn wrapped(words: &str, width: i32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width_of(&format!("{line} {word}")) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The number of a place of the axis of x; names have none.
fn x_number(x: &X) -> f64 {
    match x {
        X::Number(number) => *number,
        X::Category(_) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Axis;

    #[test]
    fn draws_every_kind_in_both_widths() {
        let plain = |_: &str| 0;
        let mut bars =
            Figure::new("1", "a", "B<ars", Axis::category("x"), Axis::linear("cost", "s"));
        bars.add("mmTLS & co", "64 KB", &[1.0, 2.0]);
        bars.add("loses", "64 KB", &[-1.0]);
        let mut lines =
            Figure::new("2", "a", "Lines", Axis::log("object", "B"), Axis::log("rate", "1/s"));
        for (at, bytes) in [0_u64, 1024, 2048, 4096].into_iter().enumerate() {
            lines.add("mmTLS", bytes, &[10.0 * (at + 1) as f64, 500.0]);
        }
        let mut events =
            Figure::new("3", "a", "Events", Axis::category("run"), Axis::log("wait", "µs"));
        events.kind = Kind::Distribution;
        events.add_events("mmTLS", "1", [0.0, 0.0, 3.0, 900.0]);
        for (figure, legend) in [(&bars, false), (&lines, true), (&events, true)] {
            let html = html(figure, &plain).unwrap();
            assert_eq!(html.matches("<svg class=\"plot").count(), 2, "{html}");
            assert_eq!(html.contains("legend"), legend, "{html}");
        }
        let html = html(&bars, &plain).unwrap();
        assert!(html.contains("B&lt;ars") && html.contains("mmTLS &amp; co"), "{html}");
        let empty = Figure::new("4", "a", "", Axis::category("x"), Axis::linear("cost", "s"));
        assert_eq!(super::html(&empty, &plain).unwrap(), "");
    }

    #[test]
    fn one_point_or_nothing_but_zeros_can_be_drawn() {
        for value in [0.0, 5.0, -5.0] {
            for scale in [Axis::linear("y", "s"), Axis::log("y", "s")] {
                let mut figure = Figure::new("1", "a", "", Axis::log("x", ""), scale);
                for x in 0_u64..5 {
                    figure.add("mmTLS", x, &[value]);
                }
                html(&figure, &|_| 9).unwrap();
            }
        }
    }

    #[test]
    fn breaks_long_text_between_words() {
        let lines = wrapped("nginx split TLS, RSA-2048, upstream new", 150);
        assert_eq!(lines, ["nginx split TLS,", "RSA-2048, upstream", "new"]);
    }
}
