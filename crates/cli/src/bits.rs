//! `bf16scope bits`: a number in each format, and updates that get lost.
//!
//! Tables for eyes and JSON for programs; what they show is computed in [`bf16scope_hlo::numerics`].

use std::str::FromStr;

use anyhow::bail;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use super::whole::whole;
use super::{Context, Status};
use crate::report::bits::{Accumulated, Accumulations, Encoded, number_table, storage_rows};
use bf16scope_hlo::numerics::accumulate::exact_sum;
use bf16scope_hlo::numerics::{Decimal, Format, Number, ParseNumberError, accumulate};

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
    let variables = has_bf16.then(|| storage_rows(start, update, n_steps, &exact));
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
    let run = Accumulations { start, update, n_steps, exact: &exact, rows: &rows, variables: variables.as_deref() };
    context.print(&run.render(context.screen))
}

fn finite(typed: &TypedNumber) -> anyhow::Result<&Decimal> {
    match &typed.number {
        Number::Finite(decimal) => Ok(decimal),
        Number::Infinite { .. } | Number::Nan { .. } => {
            bail!("--accumulate adds finite numbers; found `{}`", typed.text)
        }
    }
}
