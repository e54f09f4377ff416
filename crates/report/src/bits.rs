//! Numbers in each format, and updates of weights that are lost: tables, and what they mean.

mod storage;

use serde::Serialize;

use crate::{Column, Screen, Table};
use bf16scope_hlo::numerics::{Accumulation, Class, Decimal, Format, Number};

pub use storage::{StorageRow, rows as storage_rows};

/// Significant digits of an error in a table.
const ERROR_DIGITS: usize = 4;

/// A number in one format.
#[derive(Debug, Serialize)]
pub struct Encoded {
    format: &'static str,
    /// Hexadecimal.
    bits: String,
    class: &'static str,
    sign: u8,
    /// Binary.
    exponent_bits: String,
    /// Without bias; `None` for infinities and NaN.
    exponent: Option<i32>,
    /// Binary.
    fraction_bits: String,
    /// Exactly, every digit.
    value: String,
    /// `|value - input|`, exactly; `None` if either is not finite.
    absolute_error: Option<String>,
    /// `absolute_error / |input|`, a few digits; `None` if that is not a number.
    relative_error: Option<String>,
    below: Option<String>,
    above: Option<String>,
    /// The power of two.
    ulp_exponent: Option<i32>,
    /// Exactly.
    ulp: Option<String>,
    /// `absolute_error`, a few digits, for the table.
    #[serde(skip)]
    short_error: Option<String>,
}

impl Encoded {
    /// A number, rounded to a format.
    pub fn new(number: &Number, format: Format) -> Encoded {
        let bits = format.encode(number);
        let fields = format.fields(bits);
        let errors = match (number, format.exact(bits)) {
            (Number::Finite(input), Some(value)) => {
                let absolute = value.subtract(input).abs();
                let relative = absolute.ratio(input, ERROR_DIGITS as u32);
                Some((absolute, relative))
            }
            _ => None,
        };
        let ulp_exponent = format.ulp_exponent(bits);
        Encoded {
            format: format.name(),
            bits: hex(format, bits),
            class: format.class(bits).name(),
            sign: fields.negative.into(),
            exponent_bits: format!("{:0width$b}", fields.exponent, width = format.exponent_bits as usize),
            exponent: match format.class(bits) {
                Class::Normal => Some(fields.exponent as i32 - format.bias()),
                Class::Zero | Class::Subnormal => Some(format.min_exponent()),
                Class::Infinite | Class::Nan => None,
            },
            fraction_bits: format!("{:0width$b}", fields.fraction, width = format.fraction_bits as usize),
            value: value_text(format, bits),
            absolute_error: errors.as_ref().map(|(absolute, _)| absolute.to_string()),
            relative_error: errors
                .as_ref()
                .and_then(|(_, relative)| relative.as_ref())
                .map(|relative| relative.to_scientific(ERROR_DIGITS)),
            below: format.below(bits).map(|below| value_text(format, below)),
            above: format.above(bits).map(|above| value_text(format, above)),
            ulp_exponent,
            ulp: ulp_exponent.map(|exponent| Decimal::from_binary(false, 1, exponent).to_string()),
            short_error: errors.as_ref().map(|(absolute, _)| absolute.to_scientific(ERROR_DIGITS)),
        }
    }
}

fn hex(format: Format, bits: u64) -> String {
    format!("0x{bits:0width$x}", width = format.width() as usize / 4)
}

/// The exact value, or the name of what is not finite.
fn value_text(format: Format, bits: u64) -> String {
    match format.exact(bits) {
        Some(value) => value.to_string(),
        None => {
            let sign = if format.fields(bits).negative { "-" } else { "" };
            let name = if format.class(bits) == Class::Nan { "nan" } else { "inf" };
            format!("{sign}{name}")
        }
    }
}

/// One row for each property, one column for each format.
pub fn number_table(input: &str, columns: &[Encoded], screen: Screen) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let formats = columns.iter().map(|column| Column::text(column.format));
    let mut table = Table::new(std::iter::once(Column::name(input)).chain(formats));
    let mut row = |name: &str, cell: &dyn Fn(&Encoded) -> String| {
        table.row(std::iter::once(name.to_owned()).chain(columns.iter().map(cell)));
    };
    row("bits", &|column| column.bits.clone());
    row("sign", &|column| format!("{} ({})", column.sign, if column.sign == 0 { "+" } else { "-" }));
    row("exponent", &|column| match column.exponent {
        Some(exponent) => format!("{} (2^{exponent})", column.exponent_bits),
        None => column.exponent_bits.clone(),
    });
    row("fraction", &|column| column.fraction_bits.clone());
    row("class", &|column| column.class.to_owned());
    row("exact value", &|column| column.value.clone());
    row("absolute error", &|column| or_dash(&column.short_error));
    row("relative error", &|column| or_dash(&column.relative_error));
    row("next below", &|column| or_dash(&column.below));
    row("next above", &|column| or_dash(&column.above));
    row("ulp", &|column| match (&column.ulp, column.ulp_exponent) {
        (Some(ulp), Some(exponent)) => format!("2^{exponent} = {ulp}"),
        _ => "-".to_owned(),
    });
    table.render(screen)
}

/// The sum in one format.
#[derive(Debug, Serialize)]
pub struct Accumulated {
    format: &'static str,
    /// Rounded to the format, exactly.
    start: String,
    update: String,
    /// Counted from 1.
    first_lost_step: Option<usize>,
    #[serde(rename = "final")]
    last: String,
    /// `|final - exact|`, exactly; `None` after an overflow.
    error: Option<String>,
    /// The weight's bits after each step.
    bits: Vec<String>,
    #[serde(skip)]
    short_error: Option<String>,
    #[serde(skip)]
    sentence: Option<String>,
}

impl Accumulated {
    /// A sum in its format, beside the exact one.
    pub fn new(run: &Accumulation, exact: &Decimal) -> Accumulated {
        let format = run.format;
        let error = format.exact(run.last()).map(|last| last.subtract(exact).abs());
        Accumulated {
            format: format.name(),
            start: value_text(format, run.start),
            update: value_text(format, run.update),
            first_lost_step: run.first_lost,
            last: value_text(format, run.last()),
            error: error.as_ref().map(Decimal::to_string),
            bits: run.steps.iter().map(|&bits| hex(format, bits)).collect(),
            short_error: error.as_ref().map(|error| error.to_scientific(ERROR_DIGITS)),
            sentence: run.first_lost.map(|step| lost_sentence(run, step)),
        }
    }
}

/// Why the sum at `step` equals the previous weight.
fn lost_sentence(run: &Accumulation, step: usize) -> String {
    let format = run.format;
    if format.class(run.update) == Class::Zero {
        return format!("{} has no number as small as the update: it is rounded to 0.", format.name());
    }
    // The step changed nothing, so this is the weight before and after it.
    let weight = run.steps[step - 1];
    let towards = if format.fields(run.update).negative { format.below(weight) } else { format.above(weight) };
    let gap = towards.and_then(|next| format.exact(next)).zip(format.exact(weight));
    match gap {
        Some((next, value)) => format!(
            "{} loses the update from step {step} on: the next number is {} away from {value}, and the update \
             ({}) is no more than half of that, so the sum rounds back.",
            format.name(),
            next.subtract(&value).abs(),
            value_text(format, run.update),
        ),
        None => format!(
            "{} has overflowed to {} before step {step}, and no update brings it back.",
            format.name(),
            value_text(format, weight),
        ),
    }
}

const MASTER_COPY: &str = "\
This is why mixed-precision training keeps an f32 master copy of every weight: the network reads it cast to 16 bits, \
and the update, often thousands of times smaller than the weight, is added in f32, where it is not rounded away.\n";

const NONE_LOST: &str = "\
No update is lost here: beside this weight it is large enough to move it in every one of these formats.\n";

/// The conclusion from the rows: if a 16-bit format loses updates, why a master copy is needed. An overflow leads to
/// neither.
fn advice(rows: &[Accumulated]) -> &'static str {
    let loses = |row: &Accumulated| row.first_lost_step.is_some();
    match rows.iter().any(|row| loses(row) && row.error.is_some()) {
        true => MASTER_COPY,
        false if rows.iter().any(|row| loses(row) || row.error.is_none()) => "",
        false => NONE_LOST,
    }
}

/// A weight that takes the same update again and again.
#[derive(Clone, Copy, Debug)]
pub struct Accumulations<'a> {
    /// The weight.
    pub start: &'a Decimal,
    /// The update.
    pub update: &'a Decimal,
    /// How often it is added.
    pub n_steps: usize,
    /// The sum without rounding.
    pub exact: &'a Decimal,
    /// The sum in each format.
    pub rows: &'a [Accumulated],
    /// The same weight without a master copy.
    pub variables: Option<&'a [StorageRow]>,
}

impl Accumulations<'_> {
    /// Tables, and where the update is lost.
    pub fn render(&self, screen: Screen) -> String {
        let Accumulations { start, update, n_steps, exact, rows, variables } = *self;
        let titles = ["kept in", "start", "update", "update lost from"].map(Column::text);
        let mut table =
            Table::new(titles.into_iter().chain([Column::text(format!("after {n_steps}")), Column::text("error")]));
        for row in rows {
            let lost = row.first_lost_step.map_or("never".to_owned(), |step| format!("step {step}"));
            let error = row.short_error.as_deref().unwrap_or("-");
            table.row([row.format, &row.start, &row.update, &lost, &row.last, error]);
        }
        let mut text = format!("{start} + {n_steps} * {update} = {exact} exactly\n{}", table.render(screen));
        for sentence in rows.iter().filter_map(|row| row.sentence.as_deref()) {
            text += sentence;
            text.push('\n');
        }
        text += advice(rows);
        if let Some(rows) = variables {
            text += &storage::render(rows, n_steps, exact, screen);
        }
        text
    }
}
