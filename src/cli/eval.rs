//! `bf16scope eval`: a checkpoint on its experiment's test data.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::child::client;
use super::tune::{TuneArg, target_of};
use super::{Context, Status};
use crate::data::Fingerprint;
use crate::graph::Precision;
use crate::pjrt::Platform;
use crate::report::grouped;
use crate::train::checkpoint::Checkpoint;
use crate::train::resume::model_changes;
use crate::train::{Evaluation, Evaluator, Experiment, check_data, default_checkpoint};

const EXAMPLES: &str = "\
Examples:
  bf16scope eval examples/digits.yaml
          the checkpoint that `bf16scope train examples/digits.yaml` left
  bf16scope eval examples/digits.yaml --checkpoint checkpoints/digits-bf16.safetensors --precision f32
          weights trained in bf16, evaluated in f32: variables are f32 in every precision";

/// Arguments of `eval`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The experiment: a YAML file with `model` and `data`
    #[arg(value_name = "EXPERIMENT")]
    experiment: PathBuf,
    /// What the network computes in: bf16, f32 or f16
    #[arg(long, value_name = "PRECISION", default_value_t = Precision::Bf16)]
    precision: Precision,
    /// The checkpoint [default: checkpoints/EXPERIMENT-PRECISION.safetensors]
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Where it runs: cpu, tpu, plugin:PATH (any PJRT plugin), or xla-cpu (in builds with the feature xla)
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: Platform,
    #[command(flatten)]
    tune: TuneArg,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Json<'a> {
    experiment: &'a Path,
    checkpoint: &'a Path,
    precision: Precision,
    steps: u64,
    /// Whether these are the test data of its training, as far as the checkpoint says.
    same_test_data: Option<bool>,
    accuracy: f64,
    #[serde(flatten)]
    evaluation: Evaluation,
}

/// Evaluates.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let experiment = Experiment::read(&args.experiment)?;
    let path = args.checkpoint.clone().unwrap_or_else(|| default_checkpoint(&args.experiment, args.precision));
    let checkpoint = Checkpoint::read(&path)?;
    let (_, test) = experiment.read_data(&args.experiment)?;
    check_data(&experiment.model, &test)?;
    for change in model_changes(&checkpoint, &experiment.model) {
        tracing::warn!("{}: {change}: the weights were not trained for this", path.display());
    }
    let same_test_data = checkpoint.data.as_ref().map(|data| data.test == Fingerprint::of(&test));
    if same_test_data == Some(false) {
        tracing::warn!(
            "{}: these test data are not those of its training: examples that it was trained on may be among them",
            path.display()
        );
    }
    let client = client(&args.device, &context.setup())?;
    let tuning = args.tune.tuning(&experiment, &target_of(&args.device));
    let batch = experiment.train.batch.min(test.n_examples() as u32);
    let evaluator = Evaluator::new(&client, &experiment.model, args.precision, batch, &tuning)?;
    let evaluation = evaluator.evaluate(&path, &checkpoint, &test)?;
    if args.json {
        context.print_json(&Json {
            experiment: &args.experiment,
            checkpoint: &path,
            precision: args.precision,
            steps: checkpoint.position.step,
            same_test_data,
            accuracy: evaluation.accuracy(),
            evaluation,
        })?;
    } else {
        context.print(&format!(
            "{} in {}: test accuracy {:.2} % ({} of {}), loss {:.4}, after {} steps\n",
            path.display(),
            args.precision,
            100.0 * evaluation.accuracy(),
            grouped(evaluation.n_correct as i64),
            grouped(evaluation.n_examples as i64),
            evaluation.loss,
            grouped(checkpoint.position.step as i64)
        ))?;
    }
    Ok(Status::Ok)
}
