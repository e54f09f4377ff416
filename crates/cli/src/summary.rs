//! `bf16scope summary`: the layers of a model, with shapes, parameters and bytes.

use std::path::PathBuf;

use serde_json::json;

use super::{Context, Status};
use crate::report::summary::{BF16, F32, SummaryLines};
use bf16scope_model::graph::Precision;
use bf16scope_passes::tuning::Tuning;
use bf16scope_train::NetworkSummary;
use bf16scope_train::experiment::Experiment;

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
    let about = SummaryLines {
        experiment: &args.experiment,
        kind: experiment.model.kind(),
        optimizer: experiment.train.optimizer.name(),
    };
    context.print(&about.render(&summary, context.screen))?;
    Ok(Status::Ok)
}
