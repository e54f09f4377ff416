//! `bf16scope find-rate`: a short training with a growing learning rate, and the rates that its loss suggests.

use std::path::PathBuf;

use serde_json::json;

use super::child::client;
use super::whole::whole;
use super::{Context, Status, progress};
use crate::report::{Column, Table};
use bf16scope_model::graph::Precision;
use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::Platform;
use bf16scope_train::experiment::Experiment;
use bf16scope_train::find_rate;

const EXAMPLES: &str = "\
Examples:
  bf16scope find-rate examples/digits.yaml
          100 steps with rates from 1e-6 to 10: where the loss falls fastest, and a tenth of the rate with the least loss
  bf16scope find-rate examples/digits.yaml --from 1e-4 --to 1 --steps 300 --json
          other rates, and every step as JSON

It trains from scratch and keeps nothing; warm-up, schedule and `optimizers` are left out.";

/// Arguments of `find-rate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The experiment: a YAML file with `model`, `data` and `train`
    #[arg(value_name = "EXPERIMENT")]
    experiment: PathBuf,
    /// The least rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-6)]
    from: f64,
    /// The largest rate
    #[arg(long, value_name = "RATE", default_value_t = 10.0)]
    to: f64,
    /// Steps from one to the other
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole(2..=1_000_000u32), allow_negative_numbers = true)]
    steps: u32,
    /// Precision of the network: bf16, f32 or f16
    #[arg(long, value_name = "PRECISION", default_value_t = Precision::Bf16)]
    precision: Precision,
    /// Where it runs: cpu, tpu, plugin:PATH (any PJRT plugin), or xla-cpu (in builds with the feature xla)
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: Platform,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Steps in the table.
const N_SHOWN: usize = 20;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    args.device.one_device()?;
    let mut experiment = Experiment::read(&args.experiment)?;
    let examples = experiment.read_data(&args.experiment, &context.setup())?;
    experiment.train.n_train = Some(examples.training.n_examples());
    let spec = experiment.spec(args.precision, &Tuning::none()).map_err(|error| experiment.with_its_line(error))?;
    let client = client(&args.device, &context.setup())?;
    let bar = progress::bar(u64::from(args.steps), context.quiet);
    let rates = (args.from, args.to);
    let result = find_rate(&client, &spec, &*examples.training, rates, args.steps, |_| bar.inc(1))
        .map_err(|error| experiment.with_its_line(error))?;
    bar.finish_and_clear();
    if args.json {
        let mut object = json!(result);
        object["experiment"] = json!(args.experiment);
        context.print_json(&object)?;
        return Ok(Status::Ok);
    }
    let mut table = Table::new([Column::number("rate"), Column::number("loss"), Column::number("smoothed")]);
    let every = result.trials.len().div_ceil(N_SHOWN).max(1);
    for trial in result.trials.iter().step_by(every) {
        table.row([format!("{:.2e}", trial.rate), format!("{:.4}", trial.loss), format!("{:.4}", trial.smoothed)]);
    }
    let mut text = table.render(context.screen);
    text += &match (result.steepest, result.below_least) {
        (Some(steepest), Some(below)) => format!(
            "the loss falls fastest at {steepest:.1e}; a tenth of where it is least is {below:.1e}: try `learning_rate` \
             between them\n"
        ),
        _ => "the loss falls at no rate: look at the data, or begin lower with --from\n".to_string(),
    };
    context.print(&text)?;
    Ok(Status::Ok)
}
