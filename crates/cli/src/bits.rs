//! `bf16scope bits`: a number in each format, and updates that get lost.
//!
//! Tables for eyes and JSON for programs; what they show is computed in [`bf16scope_hlo::numerics`].

mod storage;

use std::str::FromStr;

use anyhow::bail;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use super::whole::whole;
use super::{Context, Status};
use crate::report::{Column, Screen, Table};
use bf16scope_hlo::numerics::accumulate::exact_sum;
use bf16scope_hlo::numerics::{Accumulation, Class, Decimal, Format, Number, ParseNumberError, accumulate};

/// Significant digits of an error in a table.
const ERROR_DIGITS: usize = 4;

const EXAMPLES: &str = "\
Examples:
  bf16scope bits 1.12156456132
          bits, exact value, rounding error, neighbours and ulp in f32, bf16 and f16
  bf16scope bits 0.1 -2.5 --as bf16,f64 --json
          two numbers, two formats, one JSON object
  bf16scope bits --as f16 -- -2.5e-8 -inf
          after --, anything that starts with a dash is a number too
  bf16scope bits --accumulate 1.125 0.00041999 --steps 100 --as f32,bf16,f16
          a weight that takes the same update 100 times, kept in each format

Numbers are read exactly and rounded once, to nearest, ties to even.";

/// Arguments of `bits`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Decimal numbers of any length, inf or nan
    #[arg(
        value_name = "NUMBER",
        required_unless_present = "accumulate",
        conflicts_with = "accumulate",
        allow_negative_numbers = true
    )]
    numbers: Vec<TypedNumber>,
    /// Formats to show, separated by commas
    #[arg(
        long = "as",
        value_name = "FORMATS",
        value_delimiter = ',',
        default_value = "f32,bf16,f16",
        value_parser = format_parser()
    )]
    formats: Vec<Format>,
    /// Add UPDATE to START repeatedly, in each format, and show where the update is lost
    #[arg(long, num_args = 2, value_names = ["START", "UPDATE"], allow_hyphen_values = true)]
    accumulate: Option<Vec<TypedNumber>>,
    /// How many times the update is added
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        requires = "accumulate",
        conflicts_with = "numbers",
        value_parser = whole::<u32>(1..=100_000), allow_negative_numbers = true
    )]
    steps: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A number, and how it was typed.
#[derive(Clone, Debug)]
struct TypedNumber {
    text: String,
    number: Number,
}

impl FromStr for TypedNumber {
    type Err = ParseNumberError;

    fn from_str(text: &str) -> Result<TypedNumber, ParseNumberError> {
        Ok(TypedNumber { text: text.to_owned(), number: text.parse()? })
    }
}

fn format_parser() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::name))
        .map(|name| Format::from_name(&name).expect("clap lets only names of the table through"))
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    match &args.accumulate {
        Some(operands) => run_accumulate(args, operands, context)?,
        None => run_numbers(args, context)?,
    }
    Ok(Status::Ok)
}

/// A number in one format.
#[derive(Debug, Serialize)]
struct Encoded {
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
    fn new(number: &Number, format: Format) -> Encoded {
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

fn run_numbers(args: &Args, context: &Context) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct InFormats<'a> {
        input: &'a str,
        formats: Vec<Encoded>,
    }
    let numbers: Vec<InFormats<'_>> = args
        .numbers
        .iter()
        .map(|typed| InFormats {
            input: &typed.text,
            formats: args.formats.iter().map(|&format| Encoded::new(&typed.number, format)).collect(),
        })
        .collect();
    if args.json {
        return context.print_json(&serde_json::json!({ "numbers": numbers }));
    }
    let tables: Vec<String> =
        numbers.iter().map(|number| number_table(number.input, &number.formats, context.screen)).collect();
    context.print(&tables.join("\n"))
}

/// One row for each property, one column for each format.
fn number_table(input: &str, columns: &[Encoded], screen: Screen) -> String {
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
struct Accumulated {
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
    fn new(run: &Accumulation, exact: &Decimal) -> Accumulated {
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

fn run_accumulate(args: &Args, operands: &[TypedNumber], context: &Context) -> anyhow::Result<()> {
    let [start, update] = operands else {
        bail!("--accumulate takes two numbers, START and UPDATE; found {}", operands.len());
    };
    let (start, update) = (finite(start)?, finite(update)?);
    let n_steps = args.steps as usize;
    let exact = exact_sum(start, update, n_steps);
    let rows: Vec<Accumulated> = args
        .formats
        .iter()
        .map(|&format| Accumulated::new(&accumulate(format, start, update, n_steps), &exact))
        .collect();
    let has_bf16 = args.formats.iter().any(|format| format.name() == "bf16");
    let variables = has_bf16.then(|| storage::rows(start, update, n_steps, &exact));
    if args.json {
        return context.print_json(&serde_json::json!({
            "start": start.to_string(),
            "update": update.to_string(),
            "steps": n_steps,
            "exact": exact.to_string(),
            "formats": rows,
            "variables": variables,
        }));
    }
    let titles = ["kept in", "start", "update", "update lost from"].map(Column::text);
    let mut table =
        Table::new(titles.into_iter().chain([Column::text(format!("after {n_steps}")), Column::text("error")]));
    for row in &rows {
        let lost = row.first_lost_step.map_or("never".to_owned(), |step| format!("step {step}"));
        let error = row.short_error.as_deref().unwrap_or("-");
        table.row([row.format, &row.start, &row.update, &lost, &row.last, error]);
    }
    let mut text = format!("{start} + {n_steps} * {update} = {exact} exactly\n{}", table.render(context.screen));
    for sentence in rows.iter().filter_map(|row| row.sentence.as_deref()) {
        text += sentence;
        text.push('\n');
    }
    text += advice(&rows);
    if let Some(rows) = &variables {
        text += &storage::render(rows, n_steps, &exact, context.screen);
    }
    context.print(&text)
}

fn finite(typed: &TypedNumber) -> anyhow::Result<&Decimal> {
    match &typed.number {
        Number::Finite(decimal) => Ok(decimal),
        Number::Infinite { .. } | Number::Nan { .. } => {
            bail!("--accumulate adds finite numbers; found `{}`", typed.text)
        }
    }
}
