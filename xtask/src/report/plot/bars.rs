//! Bars that lie, each with its name, its median and a whisker from the smallest to the largest sample; a group for each
//! place of the axis. Names stand beside bars, or above them where the window is narrow: so none is ever turned or cut.
//!
//! Refuses logarithmic axes: a bar's length is its value.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::scale::{Positions, Ticked};
use super::{Area, Drawn, GRID, INK, OF_SIZE, TEXT, colour, style, text, width_of, wrapped};
use crate::bench::report::Samples;
use crate::report::show;
use crate::results::{Figure, Scale};

const LINE: i32 = 16;
const BAR: i32 = 13;
const GAP: i32 = 7;
const HEADING: i32 = 24;
/// Below the bars: ticks, their labels, what they are.
const AXIS: i32 = 44;
/// Between names and bars.
const SPACE: i32 = 8;

/// A bar and the lines of its name, from the top.
struct Bar {
    top: i32,
    name: Vec<String>,
    subject: usize,
    summary: Samples,
}

/// Where everything goes.
struct Layout {
    headings: Vec<(i32, String)>,
    bars: Vec<Bar>,
    height: i32,
    /// Width of the names beside the bars; 0 where they stand above.
    names: i32,
}

pub fn draw(
    figure: &Figure,
    width: u32,
    colour_of: &dyn Fn(&str) -> usize,
) -> Result<String, Box<dyn std::error::Error>> {
    let width = width as i32;
    let layout = Layout::new(figure, width, colour_of);
    let values = layout.bars.iter().flat_map(|bar| [bar.summary.min, bar.summary.max]);
    let mut scale =
        Positions::of_quantities(Scale::Linear, values, if width > 500 { 5 } else { 3 });
    let longest = layout.bars.iter().map(|bar| width_of(&show::number(bar.summary.median))).max();
    // Above the bars, names leave no room for half of the first tick's label.
    let half = width_of(&show::number(scale.from)) / 2 + 4;
    let left = if layout.names > 0 { layout.names + SPACE } else { half };
    // A label of the last tick is as wide as one of a value.
    let right = longest.unwrap_or(0) + SPACE;
    scale.thin(width - left - right, |tick| width_of(&show::number(tick)));

    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width as u32, layout.height as u32));
        let root = root.into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin_left(left)
            .margin_right(right)
            .x_label_area_size(AXIS)
            .build_cartesian_2d(Ticked::from(&scale), 0.0..1.0)?;
        chart
            .configure_mesh()
            .disable_y_axis()
            .disable_y_mesh()
            .axis_style(INK)
            .bold_line_style(GRID)
            .label_style(style(HPos::Center, VPos::Top))
            .x_label_formatter(&|value| show::number(*value))
            .draw()?;
        let x = |value: f64| chart.backend_coord(&(value, 0.0)).0;
        for (top, heading) in &layout.headings {
            let bold = ("sans-serif", TEXT * OF_SIZE, FontStyle::Bold).into_font().color(&INK);
            root.draw(&Text::new(heading.clone(), (2, *top), bold))?;
        }
        for bar in &layout.bars {
            one(&root, bar, layout.names, &x)?;
        }
        let what = show::axis(&figure.y);
        let middle = ((left + width - right) / 2, layout.height - 2);
        text(&root, &what, middle, HPos::Center, VPos::Bottom)?;
        root.present()?;
    }
    Ok(svg)
}

fn one(root: &Area<'_>, bar: &Bar, names: i32, x: &dyn Fn(f64) -> i32) -> Drawn {
    let Samples { median, min, max, .. } = bar.summary;
    let lines = bar.name.len() as i32;
    let beside = names > 0;
    let top = if beside { bar.top + (lines - 1) * LINE / 2 } else { bar.top + lines * LINE };
    for (line, name) in (0..).zip(&bar.name) {
        let at = bar.top + line * LINE;
        match beside {
            true => text(root, name, (names, at), HPos::Right, VPos::Top)?,
            false => text(root, name, (2, at), HPos::Left, VPos::Top)?,
        }
    }
    let (from, to) = (x(0.0).min(x(median)), x(0.0).max(x(median)));
    let fill = colour(bar.subject).filled();
    root.draw(&Rectangle::new([(from, top), (to.max(from + 1), top + BAR)], fill))?;
    let middle = top + BAR / 2;
    let ink = INK.stroke_width(1);
    if max > min {
        root.draw(&PathElement::new(vec![(x(min), middle), (x(max), middle)], ink))?;
        for end in [x(min), x(max)] {
            root.draw(&PathElement::new(vec![(end, middle - 3), (end, middle + 3)], ink))?;
        }
    }
    let end = to.max(x(max)) + 5;
    // Its box is a little higher than the bar.
    text(root, &show::number(median), (end, top - 1), HPos::Left, VPos::Top)
}

impl Layout {
    fn new(figure: &Figure, width: i32, colour_of: &dyn Fn(&str) -> usize) -> Self {
        let longest = figure.series.iter().map(|series| width_of(&series.subject)).max();
        // Beside the bars as far as that leaves more than half of the width to them.
        let names = if width > 500 { longest.unwrap_or(0).min(width * 2 / 5) } else { 0 };
        let name_width = if names > 0 { names } else { width - 4 };
        let places = figure.xs();
        let mut layout = Self { headings: Vec::new(), bars: Vec::new(), height: 2, names };
        for place in &places {
            let mut heading = show::place(place, &figure.x);
            if figure.x.scale != Scale::Category && figure.x.unit != "B" {
                heading = format!("{}: {heading}", show::axis(&figure.x));
            }
            // Bold text is wider.
            for line in wrapped(&heading, (width - 4) * 7 / 8) {
                layout.headings.push((layout.height + 4, line));
                layout.height += HEADING;
            }
            for series in &figure.series {
                let Some(point) = series.at(place) else { continue };
                let name = wrapped(&series.subject, name_width);
                let lines = name.len() as i32;
                let top = layout.height;
                layout.height += match names > 0 {
                    true => (lines * LINE).max(BAR) + GAP,
                    false => lines * LINE + BAR + GAP,
                };
                let subject = colour_of(&series.subject);
                layout.bars.push(Bar { top, name, subject, summary: point.summary() });
            }
        }
        layout.height += AXIS;
        layout
    }
}
