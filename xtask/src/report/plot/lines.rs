//! Lines of medians with a whisker at each point, and distributions: the share of events that took no longer.
//!
//! Refuses to draw a line to where there is no point.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::scale::{Positions, Ticked};
use super::{Area, Drawn, GRID, INK, colour, marker_of, style, text, width_of, x_number};
use crate::report::{show, value};
use crate::results::{Figure, Point, Scale, Series};

const HEIGHT: i32 = 320;
/// Above: what the upright axis shows.
const TITLE: i32 = 26;
/// Below: ticks, their labels, what they are.
const AXIS: i32 = 46;
/// From values to pixels.
type Place<'a> = dyn Fn(f64, f64) -> (i32, i32) + 'a;

/// Points of a distribution that a line has at most: a pixel each.
const STEPS: usize = 600;

pub fn values(
    figure: &Figure,
    width: u32,
    colour_of: &dyn Fn(&str) -> usize,
) -> Result<String, Box<dyn std::error::Error>> {
    let places: Vec<f64> = figure.xs().into_iter().map(x_number).collect();
    let x = Positions::of_places(figure.x.scale, &places);
    let all: Vec<f64> = figure
        .series
        .iter()
        .flat_map(|series| &series.points)
        .flat_map(|point| [point.summary().min, point.summary().max])
        .collect();
    let y = Positions::of_quantities(figure.y.scale, all.into_iter(), 5);
    let x_label = |value: f64| show::place(&value.into(), &figure.x);
    let titles = (show::axis(&figure.y), show::places(&figure.x));
    drawn(width, x, y, &x_label, &titles, &|root, at| {
        for series in &figure.series {
            line(root, series, colour_of(&series.subject), at)?;
        }
        Ok(())
    })
}

pub fn distribution(
    figure: &Figure,
    width: u32,
    colour_of: &dyn Fn(&str) -> usize,
) -> Result<String, Box<dyn std::error::Error>> {
    let samples = figure.series.iter().flat_map(|series| &series.points);
    let samples: Vec<f64> = samples.flat_map(|point| point.samples.iter().copied()).collect();
    let x = Positions::of_quantities(figure.y.scale, samples.into_iter(), 5);
    let y = Positions::of_quantities(Scale::Linear, [0.0, 100.0].into_iter(), 5);
    let titles = ("share of events, %".to_owned(), show::axis(&figure.y));
    drawn(width, x, y, &show::number, &titles, &|root, at| {
        for series in &figure.series {
            let path: Vec<_> = steps(series).into_iter().map(|(x, y)| at(x, y)).collect();
            let line = colour(colour_of(&series.subject)).stroke_width(2);
            root.draw(&PathElement::new(path, line))?;
        }
        Ok(())
    })
}

/// Draws axes, and what belongs between them.
fn drawn(
    width: u32,
    mut x: Positions,
    y: Positions,
    x_label: &dyn Fn(f64) -> String,
    (y_title, x_title): &(String, String),
    inside: &dyn Fn(&Area<'_>, &Place<'_>) -> Drawn,
) -> Result<String, Box<dyn std::error::Error>> {
    let labels = y.ticks.iter().map(|tick| width_of(&show::number(*tick)));
    let left = labels.max().unwrap_or(0) + 18;
    // Half of a label of the axis of x may stand out.
    let right = x.ticks.last().map_or(0, |tick| width_of(&x_label(*tick)) / 2 + 4);
    x.thin(width as i32 - left - right, |tick| width_of(&x_label(tick)));

    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width, HEIGHT as u32)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin_top(TITLE)
            .margin_right(right)
            .x_label_area_size(AXIS)
            .y_label_area_size(left)
            .build_cartesian_2d(Ticked::from(&x), Ticked::from(&y))?;
        chart
            .configure_mesh()
            .axis_style(INK)
            .bold_line_style(GRID)
            .label_style(style(HPos::Center, VPos::Top))
            .x_label_formatter(&|place| x.tick_at(*place).map_or_else(String::new, x_label))
            .y_label_formatter(&|place| y.tick_at(*place).map_or_else(String::new, show::number))
            .draw()?;
        text(&root, y_title, (2, 4), HPos::Left, VPos::Top)?;
        let middle = ((left + width as i32 - right) / 2, HEIGHT - 2);
        text(&root, x_title, middle, HPos::Center, VPos::Bottom)?;
        inside(&root, &|a, b| chart.backend_coord(&(x.at(a), y.at(b))))?;
        root.present()?;
    }
    Ok(svg)
}

fn line(root: &Area<'_>, series: &Series, subject: usize, at: &Place<'_>) -> Drawn {
    let mut points: Vec<&Point> = series.points.iter().collect();
    points.sort_by(|one, other| x_number(&one.x).total_cmp(&x_number(&other.x)));
    let paint = colour(subject);
    let middle = |point: &Point| at(x_number(&point.x), point.summary().median);
    let path: Vec<_> = points.iter().map(|point| middle(point)).collect();
    root.draw(&PathElement::new(path, paint.stroke_width(2)))?;
    for point in points {
        let (summary, place) = (point.summary(), x_number(&point.x));
        let (low, high) = (at(place, summary.min), at(place, summary.max));
        if low != high {
            let thin = paint.stroke_width(1);
            root.draw(&PathElement::new(vec![low, high], thin))?;
            for (x, y) in [low, high] {
                root.draw(&PathElement::new(vec![(x - 3, y), (x + 3, y)], thin))?;
            }
        }
        marker(root, subject, middle(point))?;
    }
    Ok(())
}

fn marker(root: &Area<'_>, subject: usize, (x, y): (i32, i32)) -> Drawn {
    let fill = colour(subject).filled();
    match marker_of(subject) {
        0 => root.draw(&Circle::new((x, y), 4, fill))?,
        1 => root.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], fill))?,
        2 => root.draw(&Polygon::new(vec![(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)], fill))?,
        _ => {
            let corners = vec![(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)];
            root.draw(&Polygon::new(corners, fill))?;
        }
    }
    Ok(())
}

/// Events of all runs of a subject: what each took, and the percentage that took no longer; as stairs.
fn steps(series: &Series) -> Vec<(f64, f64)> {
    let points: Vec<&Point> = series.points.iter().collect();
    let (events, all) = value::events(&points);
    let mut steps: Vec<(f64, f64)> = Vec::new();
    let (mut before, mut share) = (0, 0.0);
    for (at, (event, times)) in events.iter().enumerate() {
        before += u64::from(*times);
        // The same event of another run.
        if events.get(at + 1).is_some_and(|(next, _)| next == event) {
            continue;
        }
        let next = before as f64 / all.max(1) as f64 * 100.0;
        // What is less than a pixel higher waits for the next one.
        if next - share < 100.0 / STEPS as f64 && before < all {
            continue;
        }
        steps.extend([(*event, share), (*event, next)]);
        share = next;
    }
    steps
}
