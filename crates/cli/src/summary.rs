//! `bf16scope summary`: the layers of a model, with shapes, parameters and bytes.

use std::path::PathBuf;

use serde_json::json;

use super::{Context, Status};
use crate::report::{Column, Table, grouped};
use bf16scope_model::graph::Precision;
use bf16scope_passes::tuning::Tuning;
use bf16scope_train::experiment::Experiment;
use bf16scope_train::{LayerSummary, NetworkSummary};

const EXAMPLES: &str = "\
Examples:
  bf16scope summary examples/digits.yaml
          every layer, with its output dims for one example, its parameters, and their bytes in f32 and bf16
  bf16scope summary examples/bert_base.yaml --json
          the same as one JSON object";

/// Arguments of `summary`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The experiment: a YAML file with `model`
    #[arg(value_name = "EXPERIMENT")]
    experiment: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Bytes of a number in f32 and in bf16.
const F32: u64 = 4;
const BF16: u64 = 2;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let mut experiment = Experiment::read(&args.experiment)?;
    // A schedule by epochs does not affect parameters, so the examples need not be counted.
    let train = &mut experiment.train;
    train.n_train = train.n_train.or(Some(u64::from(train.batch)));
    let objective = experiment.objective(Precision::F32, &Tuning::none())?;
    let numbers = experiment.train.numbers(Precision::F32);
    let task = experiment.task();
    let batch = i64::from(experiment.train.batch);
    let summary = NetworkSummary::new(&*task, numbers, batch, &objective)
        .map_err(|error| experiment.with_its_line(error.into()))?;
    let n_numbers = summary.n_parameters + summary.n_fixed;
    if args.json {
        let mut object = json!(summary);
        object["experiment"] = json!(args.experiment);
        object["n_bytes_f32"] = json!(F32 * n_numbers);
        object["n_bytes_bf16"] = json!(BF16 * n_numbers);
        object["optimizer"] = json!(experiment.train.optimizer.name());
        context.print_json(&object)?;
        return Ok(Status::Ok);
    }
    let count = |n: u64| grouped(i64::try_from(n).unwrap_or(i64::MAX));
    let columns = [
        Column::name("layer"),
        Column::text("op").extra(3),
        Column::number("output"),
        Column::number("parameters"),
        Column::number("f32 bytes").extra(2),
        Column::number("bf16 bytes").extra(1),
    ];
    let mut table = Table::new(columns);
    for LayerSummary { name, op, output, n_parameters, n_fixed } in &summary.layers {
        let n = n_parameters + n_fixed;
        let shown = |n: u64| if n == 0 { "·".to_string() } else { count(n) };
        table.row([name.clone(), op.clone(), dims(output), shown(n), shown(F32 * n), shown(BF16 * n)]);
    }
    let inputs: Vec<String> = summary.inputs.iter().map(|(name, of_one)| format!("{name} {}", dims(of_one))).collect();
    let mut text = format!("{}: {} of {}\n", args.experiment.display(), experiment.model.kind(), inputs.join(", "));
    text += &table.render(context.screen);
    let fixed = match summary.n_fixed {
        0 => String::new(),
        n => format!(" and {} numbers that do not train", count(n)),
    };
    text += &format!(
        "{} parameters{fixed}: {} bytes in f32, {} in bf16\ntraining keeps {} bytes between steps, with {}\n",
        count(summary.n_parameters),
        count(F32 * n_numbers),
        count(BF16 * n_numbers),
        count(summary.n_state_bytes),
        experiment.train.optimizer.name(),
    );
    context.print(&text)?;
    Ok(Status::Ok)
}

/// `[28, 28, 1]`; a scalar is `[]`.
fn dims(of_one: &[i64]) -> String {
    let dims: Vec<String> = of_one.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(", "))
}
