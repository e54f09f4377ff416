//! How results look: tables that fit a [`Screen`], quantities in words, and pages for a browser ([`html`]) with plots
//! ([`plot`]); above these, a module for each kind of result has its screen and its page.
//!
//! Nothing here prints, asks the terminal or writes a file: everything is text, from values of the crates that made
//! them.
//!
//! ```
//! use bf16scope_report::{Column, Screen, Table, grouped, mib};
//!
//! let mut table = Table::new([Column::name("layer"), Column::number("elements"), Column::number("bytes")]);
//! table.row(["dense".to_string(), grouped(1_048_576), mib(4 << 20)]);
//! assert_eq!(table.render(Screen::with_width(80)).lines().count(), 5);
//! ```

#![forbid(unsafe_code)]

pub mod audit;
pub mod bits;
pub mod compile;
pub mod confusion;
mod curve;
pub mod curves;
pub mod data;
pub mod explain;
pub mod fit;
pub mod html;
pub mod levers;
pub mod lower;
mod outcome;
mod picture;
pub mod plan;
pub mod plot;
pub mod port;
pub mod schedule;
pub mod screen;
pub mod several;
pub mod summary;
mod table;
pub mod watch;

pub use curve::Canvas;
pub use outcome::{excess_note, no_room, one_line};
pub use picture::png;
pub use screen::Screen;
pub use table::{Column, Table};

/// Bytes in MiB, one decimal: `2594.0 MiB`; under a MiB in KiB.
pub fn mib(n_bytes: i64) -> String {
    match n_bytes {
        n if n.unsigned_abs() >= 1 << 20 || n == 0 => format!("{:.1} MiB", n as f64 / f64::from(1 << 20)),
        n => format!("{:.1} KiB", n as f64 / f64::from(1 << 10)),
    }
}

/// A whole number with thousands separated: `95,299,378`.
pub fn grouped(count: i64) -> String {
    let digits = count.unsigned_abs().to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if count < 0 { format!("-{out}") } else { out }
}

/// Three decimals and an exponent: `1.544e12`.
pub fn scientific(value: f64) -> String {
    format!("{value:.3e}")
}

/// `part / whole` in percent, one decimal; `-` if `whole` is 0.
pub fn percent(part: i64, whole: i64) -> String {
    if whole <= 0 { "-".to_string() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

/// `numerator / denominator`, three decimals; `-` if there is no quotient.
pub fn ratio(numerator: f64, denominator: f64) -> String {
    let quotient = numerator / denominator;
    if quotient.is_finite() { format!("{quotient:.3}") } else { "-".to_string() }
}

/// Seconds, in the unit that fits: `94.6 ms`, `1.50 s`, `870 us`, `210 ns`.
pub fn seconds(value: f64) -> String {
    match value {
        v if v >= 1.0 => format!("{v:.2} s"),
        v if v >= 1e-3 => format!("{:.1} ms", v * 1e3),
        v if v >= 1e-6 => format!("{:.0} us", v * 1e6),
        v => format!("{:.0} ns", v * 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_well() {
        assert_eq!(mib(8_034_172_928), "7662.0 MiB");
        assert_eq!(mib(1 << 19), "512.0 KiB");
        assert_eq!(mib(0), "0.0 MiB");
        assert_eq!(grouped(95_299_378), "95,299,378");
        assert_eq!(grouped(-1_000), "-1,000");
        assert_eq!(grouped(999), "999");
        assert_eq!(scientific(1.544e12), "1.544e12");
        assert_eq!(percent(1, 8), "12.5 %");
        assert_eq!(percent(1, 0), "-");
        assert_eq!(ratio(1.0, 0.0), "-");
        assert_eq!(seconds(0.0946), "94.6 ms");
        assert_eq!(seconds(1.5), "1.50 s");
        assert_eq!(seconds(2.1e-7), "210 ns");
    }
}
