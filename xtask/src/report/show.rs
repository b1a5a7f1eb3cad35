//! Numbers and names as a reader sees them: in plots, tables and sentences alike.
//!
//! Refuses to show more digits than a measurement has.

use crate::results::{Axis, X};

/// What an infinite number says.
pub const INFINITE: &str = "∞ means that the denominator was not above zero";

/// A value with three digits, or all before the point, in groups.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return if value > 0.0 { "∞".to_owned() } else { "−".to_owned() };
    }
    let size = value.abs();
    let digits = match size {
        0.0 => 0,
        _ if size >= 100.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ => (2.0 - size.log10().floor()).clamp(0.0, 9.0) as usize,
    };
    let text = format!("{size:.digits$}");
    let text = match text.split_once('.') {
        Some((whole, part)) => match part.trim_end_matches('0') {
            "" => whole.to_owned(),
            part => format!("{whole}.{part}"),
        },
        None => grouped(&text),
    };
    // Of what rounding made nothing, there is no negative.
    if value < 0.0 && text != "0" { format!("−{text}") } else { text }
}

fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A value and its unit.
pub fn with_unit(value: f64, unit: &str) -> String {
    let number = number(value);
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

/// A place of the axis of x. Bytes are told in powers of 1024, as objects are made.
pub fn place(x: &X, axis: &Axis) -> String {
    match x {
        X::Category(name) => name.clone(),
        X::Number(bytes) if axis.unit == "B" => {
            let (mut size, mut units) = (*bytes, ["B", "KB", "MB", "GB"].into_iter());
            let mut unit = units.next();
            while size >= 1024.0
                && let Some(next) = units.next()
            {
                (size, unit) = (size / 1024.0, Some(next));
            }
            with_unit(size, unit.unwrap_or_default())
        }
        X::Number(value) => number(*value),
    }
}

/// What an axis shows, and in which unit.
pub fn axis(axis: &Axis) -> String {
    if axis.unit.is_empty() { axis.name.clone() } else { format!("{}, {}", axis.name, axis.unit) }
}

/// The same of the axis of x, whose places have their unit where it is bytes.
pub fn places(of: &Axis) -> String {
    if of.unit == "B" { of.name.clone() } else { axis(of) }
}

/// Text for a page.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_three_digits() {
        let shown = [0.0, 0.0413, 0.41, 1.0, 6.04, 41.23, 599_000.4, -3.456, 1e-12].map(number);
        assert_eq!(shown, ["0", "0.0413", "0.41", "1", "6.04", "41.2", "599,000", "−3.46", "0"]);
        assert_eq!(number(f64::INFINITY), "∞");
        assert_eq!(with_unit(2.5, "CPU-s/GB"), "2.5 CPU-s/GB");
    }

    #[test]
    fn shows_bytes_as_objects_are_made() {
        let axis = Axis::log("object", "B");
        let shown = [512_u64, 1024, 65_536, 4 << 20].map(|bytes| place(&bytes.into(), &axis));
        assert_eq!(shown, ["512 B", "1 KB", "64 KB", "4 MB"]);
        assert_eq!(place(&"name".into(), &axis), "name");
    }

    #[test]
    fn refuses_markup_in_text() {
        assert_eq!(escaped("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
