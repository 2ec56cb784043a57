//! Byte counts, rates and times as people write and read them.
//!
//! Read: `64MiB` is 2^26, `2GB` is 2·10^9, a bare number is bytes. Written: powers of ten throughout (1 GB = 10^9 bytes), so
//! that a size divided by its seconds is the rate beside it.

use bytesize::ByteSize;

/// Parses a size given on the command line, at least one byte.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let not_a_size = || format!("'{text}' is not a size; write for example 64MiB, 2GB or a number of bytes");
    let ByteSize(bytes) = text.trim().parse::<ByteSize>().map_err(|_| not_a_size())?;
    match i64::try_from(bytes) {
        Ok(0) => Err("a size of at least one byte is needed".to_owned()),
        Ok(_) => Ok(bytes),
        Err(_) => Err(format!("'{text}' is more than a file can hold")),
    }
}

/// A byte count with three significant digits: `999 B`, `1.50 kB`, `2.20 GB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    // 999.5 would be rounded to 1000 of the smaller unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// A rate in GB/s, `-` where no time was measured.
pub(crate) fn gb_per_s(count: u64, seconds: f64) -> String {
    if seconds > 0.0 { three_digits(count as f64 / seconds / 1e9) } else { "-".to_owned() }
}

/// Seconds with a millisecond's resolution below ten, as the measurement deserves.
pub(crate) fn seconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.3}") } else { format!("{value:.1}") }
}

/// A stage's time in the unit it needs: `0.4 ms`, `106 ms`, `1.250 s`.
pub(crate) fn duration(value: f64) -> String {
    match value * 1e3 {
        milliseconds if milliseconds < 9.95 => format!("{milliseconds:.1} ms"),
        milliseconds if milliseconds < 999.5 => format!("{milliseconds:.0} ms"),
        _ => format!("{} s", seconds(value)),
    }
}

/// A share of one, in percent. Only all of it is written `100%`, and only none of it `0%`.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        all if all >= 100.0 => "100%".to_owned(),
        none if none <= 0.0 => "0%".to_owned(),
        most if most > 99.9 => ">99.9%".to_owned(),
        hardly if hardly < 0.1 => "<0.1%".to_owned(),
        some => format!("{some:.1}%"),
    }
}

/// A count with its digits in groups of three: `100,000`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 file`, `2 files`.
pub(crate) fn plural(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("1GiB", 1 << 30),
            ("64MiB", 64 << 20),
            ("2GB", 2_000_000_000),
            ("1.5 KiB", 1536),
            ("4096", 4096),
            (" 512 B ", 512),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "0GB", "-1", "lots", "12 parsecs", "1e9x", "99999999999EiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn figures_keep_three_digits() {
        for (value, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (2_200_000_000, "2.20 GB"),
            (91_000_000, "91.0 MB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(gb_per_s(2_200_000_000, 1.25), "1.76");
        assert_eq!(gb_per_s(1, 0.0), "-");
        assert_eq!(duration(0.000_42), "0.4 ms");
        assert_eq!(duration(0.106), "106 ms");
        assert_eq!(duration(0.9999), "1.000 s");
        assert_eq!(count(100_000), "100,000");
        assert_eq!(count(999), "999");
        assert_eq!(plural(1, "file"), "1 file");
        assert_eq!(plural(0, "file"), "0 files");
    }

    #[test]
    fn percentages_are_never_rounded_to_all_or_nothing() {
        assert_eq!(percent(1.0), "100%");
        assert_eq!(percent(0.0), "0%");
        assert_eq!(percent(0.9999), ">99.9%");
        assert_eq!(percent(0.00001), "<0.1%");
        assert_eq!(percent(0.254), "25.4%");
    }
}
