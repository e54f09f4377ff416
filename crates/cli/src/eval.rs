//! `bf16scope eval`: a checkpoint on its experiment's test data.

mod confusion;

pub(crate) use confusion::first_greatest;

use std::path::PathBuf;

use serde_json::json;

use super::progress::Phase;
use super::trained::{RunArgs, TrainedExperiment, by_averages};
use super::{Context, Status, values};
use crate::report::grouped;
use bf16scope_model::optim::Update;
use bf16scope_train::{Evaluator, Predictor, with_total};
use confusion::Confusion;

const EXAMPLES: &str = "\
Examples:
  bf16scope eval examples/digits.yaml
          the checkpoint that `bf16scope train examples/digits.yaml` left
  bf16scope eval examples/digits.yaml --checkpoint checkpoints/digits-bf16.safetensors --precision f32
          weights trained in bf16, evaluated in f32: variables are f32 in every precision
  bf16scope eval pets.yaml --inputs others/
          on other examples with labels, of the kinds that `predict --inputs` takes; a folder has a folder for each class";

/// Arguments of `eval`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The experiment: a YAML file with `model` and `data`, or the folder of a run
    #[arg(value_name = "EXPERIMENT|RUN")]
    experiment: PathBuf,
    /// Other examples, with labels [default: the experiment's test data]
    #[arg(short, long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
    /// Show the confusion matrix, or the most confused pairs of classes if it is too wide
    #[arg(long)]
    confusion: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Keys of `--json` that are not metrics. A metric may be called `precision`.
const OWN_KEYS: [&str; 11] = [
    "experiment",
    "checkpoint",
    "precision",
    "inputs",
    "steps",
    "same_test_data",
    "n_examples",
    "by_averages",
    "confusion",
    "metrics",
    "class_names",
];

/// Evaluates.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    args.run.check()?;
    let named = args.experiment.display();
    let phase = Phase::begin(format!("reading {named} and its data"), context.quiet);
    let TrainedExperiment { experiment, path: experiment_path, precision, checkpoint: path, .. } =
        args.run.which.read(&args.experiment)?;
    let task = experiment.task();
    let checkpoint = args.run.trained.read(&path, &*task)?;
    let experiment = experiment.as_learnt(&checkpoint);
    let classes = checkpoint.data.as_ref().map(|data| data.classes.clone()).unwrap_or_default();
    let (test, evaluated) = match &args.inputs {
        Some(file) => {
            let test = experiment.read_other_labelled(&experiment_path, file, &context.setup())?;
            let fingerprint = test.fingerprint();
            (test, fingerprint)
        }
        // A checkpoint records which examples of a data set were held out for validation.
        None => {
            let examples = experiment.read_data(&experiment_path, &context.setup())?;
            let fingerprint = examples.data().test.fingerprint();
            (examples.test, fingerprint)
        }
    };
    let same_test_data = checkpoint.data.as_ref().map(|data| data.test == evaluated);
    if same_test_data == Some(false) && args.inputs.is_none() {
        tracing::warn!(
            "{}: these test data are not those of its training: examples that it was trained on may be among them",
            path.display()
        );
    }
    drop(phase);
    let phase = Phase::begin(format!("compiling the evaluation of {named}"), context.quiet);
    let client = args.run.client(context)?;
    let tuning = args.run.tuning(&experiment);
    let batch = u32::try_from(test.n_examples()).map_or(experiment.train.batch, |n| n.min(experiment.train.batch));
    let evaluator = Evaluator::new(&client, &task, precision, batch, &tuning)?;
    drop(phase);
    let phase = Phase::begin(format!("evaluating {}", path.display()), context.quiet);
    let evaluation = evaluator.evaluate(&path, &checkpoint, &*test)?;
    let config = &experiment.train;
    let decay = Update { optimizer: config.optimizer, weight_decay: config.weight_decay.clone(), ..Update::default() };
    let l2 = evaluator.l2(&path, &checkpoint, &decay)?;
    let values = with_total(evaluation.totals.to_values(), l2);
    let confusion = match args.confusion {
        true => {
            let predictor = Predictor::new(&client, &*task, precision, batch, &tuning)?;
            Some(Confusion::compute(&*task, &predictor, (&path, &checkpoint), &*test, batch as usize)?)
        }
        false => None,
    };
    drop(phase);
    if args.json {
        let mut object = json!({
            "experiment": experiment_path, "checkpoint": path, "precision": precision.name(), "inputs": args.inputs,
            "steps": checkpoint.position.step,
            // Whether these are the test data of the training, as far as the checkpoint records it.
            "same_test_data": same_test_data, "n_examples": evaluation.n_examples,
            "by_averages": checkpoint.has_averages(),
        });
        // All metrics under `metrics`, whatever their names; at the top level only those that do not clash with our own
        // keys.
        object["metrics"] = values.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        for (name, value) in values.iter().filter(|(name, _)| !OWN_KEYS.contains(&name.as_str())) {
            object[name] = json!(value);
        }
        match confusion.as_deref() {
            None => {}
            Some([(_, only)]) => object["confusion"] = json!(only.rows()),
            Some(several) => {
                let of_label = |(label, confusion): &(String, Confusion)| (label.clone(), json!(confusion.rows()));
                object["confusion"] = several.iter().map(of_label).collect();
            }
        }
        if !classes.is_empty() {
            object["class_names"] = json!(classes);
        }
        context.print_json(&object)?;
    } else {
        context.print(&format!(
            "{} in {}: test {} over {} examples, after {} steps{}\n",
            path.display(),
            precision,
            values::list(&values),
            grouped(evaluation.n_examples as i64),
            grouped(checkpoint.position.step as i64),
            by_averages(&checkpoint)
        ))?;
        let confusion = confusion.unwrap_or_default();
        for (label, matrix) in &confusion {
            let title = if confusion.len() > 1 { format!("{label}:\n") } else { String::new() };
            let names = classes.get(label).map(Vec::as_slice).unwrap_or_default();
            context.print(&(title + &matrix.render(names, context.screen)))?;
        }
    }
    Ok(Status::Ok)
}
