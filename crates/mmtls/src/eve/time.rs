//! Timestamps as Suricata writes them, from nanoseconds since 1970. Refuses to read a clock.

use jiff::Timestamp;

/// Writes timestamps; the text of the current second is kept, since a calendar for each line would cost more than the
/// rest of it.
#[derive(Default)]
pub(super) struct Timestamps {
    second: Option<u64>,
    text: String,
}

impl Timestamps {
    /// Appends `2024-01-31T23:59:59.123456+0000`.
    pub(super) fn write(&mut self, out: &mut Vec<u8>, ns: u64) {
        let second = ns / 1_000_000_000;
        if self.second != Some(second) {
            self.text = format_second(second);
            self.second = Some(second);
        }
        out.extend_from_slice(self.text.as_bytes());
        let mut micros = (ns % 1_000_000_000) / 1000;
        let mut digits = *b".000000+0000";
        for at in (1..=6).rev() {
            digits[at] = b'0' + (micros % 10) as u8;
            micros /= 10;
        }
        out.extend_from_slice(&digits);
    }

    /// The same as text of its own.
    pub(super) fn text(&mut self, ns: u64) -> String {
        let mut out = Vec::with_capacity(31);
        self.write(&mut out, ns);
        String::from_utf8(out).unwrap_or_default()
    }
}

fn format_second(second: u64) -> String {
    // Nanoseconds in 64 bits end in 2554, and the calendar in 9999.
    let time = i64::try_from(second).ok().and_then(|it| Timestamp::from_second(it).ok());
    time.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_known_dates() {
        let mut times = Timestamps::default();
        for (second, text) in [
            (0, "1970-01-01T00:00:00.000000+0000"),
            (951_782_400, "2000-02-29T00:00:00.000000+0000"),
            (951_868_799, "2000-02-29T23:59:59.000000+0000"),
            (1_704_067_199, "2023-12-31T23:59:59.000000+0000"),
            (1_709_164_800, "2024-02-29T00:00:00.000000+0000"),
            (4_107_542_400, "2100-03-01T00:00:00.000000+0000"),
        ] {
            assert_eq!(times.text(second * 1_000_000_000), text);
        }
        assert_eq!(times.text(1_709_164_800_000_123_999), "2024-02-29T00:00:00.000123+0000");
        // The largest time there is.
        assert_eq!(times.text(u64::MAX), "2554-07-21T23:34:33.709551+0000");
    }

    #[test]
    fn accepts_every_day_that_there_is_in_order() {
        let mut times = Timestamps::default();
        let mut expected = (1970, 1, 1);
        let day_ns = 86_400 * 1_000_000_000;
        for days in 0..=u64::MAX / day_ns {
            let (year, month, day) = expected;
            let text = format!("{year:04}-{month:02}-{day:02}T00:00:00.000000+0000");
            assert_eq!(times.text(days * day_ns), text);
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            expected = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                _ if day == length => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
        }
    }
}
