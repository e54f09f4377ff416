//! `bf16scope eval`: a checkpoint on its experiment's test data.

mod confusion;

pub(crate) use confusion::first_greatest;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::progress::Phase;
use super::trained::{RunArgs, TrainedExperiment, by_averages, seen_from_elsewhere};
use super::{Context, Status, values};
use crate::report::confusion::Confusion;
use crate::report::{Screen, grouped};
use bf16scope_data::Source;
use bf16scope_model::optim::Update;
use bf16scope_pjrt::Setup;
use bf16scope_train::checkpoint::Checkpoint;
use bf16scope_train::{Evaluator, Predictor, with_total};
use confusion::confusions;

const EXAMPLES: &str = "\
Examples:
  bf16scope eval examples/digits.yaml
          the checkpoint that `bf16scope train examples/digits.yaml` left
  bf16scope eval examples/digits.yaml --checkpoint runs/digits-bf16/checkpoint.safetensors --precision f32
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
    let evaluated = evaluate(args, context)?;
    match args.json {
        true => context.print_json(&evaluated.as_json(args))?,
        false => context.print(&evaluated.render(context.screen))?,
    }
    Ok(Status::Ok)
}

/// An evaluated checkpoint.
struct Evaluated {
    trained: TrainedExperiment,
    checkpoint: Checkpoint,
    /// Whether these are the test data of the training, as far as the checkpoint records it.
    same_test_data: Option<bool>,
    n_examples: u64,
    /// The losses and the metrics.
    values: Vec<(String, f64)>,
    /// A matrix for each label, if they were asked for.
    confusion: Option<Vec<(String, Confusion)>>,
}

fn evaluate(args: &Args, context: &Context) -> anyhow::Result<Evaluated> {
    args.run.check()?;
    let named = args.experiment.display();
    let phase = Phase::begin(format!("reading {named} and its data"), context.quiet);
    let mut trained = args.run.which.read(&args.experiment)?;
    let task = trained.experiment.task();
    let checkpoint = args.run.trained.read(&trained.checkpoint, &*task)?;
    trained.experiment = trained.experiment.as_learnt(&checkpoint);
    let (test, same_test_data) = test_data(args, &trained, &checkpoint, &context.setup())?;
    let TrainedExperiment { experiment, precision, checkpoint: path, .. } = &trained;
    drop(phase);
    let phase = Phase::begin(format!("compiling the evaluation of {named}"), context.quiet);
    let client = args.run.client(context)?;
    let tuning = args.run.tuning(experiment);
    let config = &experiment.train;
    let batch = u32::try_from(test.n_examples()).map_or(config.batch, |n| n.min(config.batch));
    let evaluator = Evaluator::new(&client, &task, *precision, batch, &tuning)?;
    drop(phase);
    let phase = Phase::begin(format!("evaluating {}", path.display()), context.quiet);
    let evaluation = evaluator.evaluate(path, &checkpoint, &*test)?;
    let decay = Update { optimizer: config.optimizer, weight_decay: config.weight_decay.clone(), ..Update::default() };
    let l2 = evaluator.l2(path, &checkpoint, &decay)?;
    let confusion = match args.confusion {
        true => {
            let predictor = Predictor::new(&client, &*task, *precision, batch, &tuning)?;
            Some(confusions(&*task, &predictor, (path, &checkpoint), &*test, batch as usize)?)
        }
        false => None,
    };
    drop(phase);
    let (n_examples, values) = (evaluation.n_examples, with_total(evaluation.totals.to_values(), l2));
    Ok(Evaluated { trained, checkpoint, same_test_data, n_examples, values, confusion })
}

/// The examples to evaluate, and whether they are the test data of the training, as far as the checkpoint records it.
fn test_data(
    args: &Args,
    TrainedExperiment { experiment, path, checkpoint: checkpoint_path, .. }: &TrainedExperiment,
    checkpoint: &Checkpoint,
    setup: &Setup,
) -> anyhow::Result<(Box<dyn Source>, Option<bool>)> {
    let (test, fingerprint) = match &args.inputs {
        Some(file) => {
            let test = experiment.read_other_labelled(path, file, setup)?;
            let fingerprint = test.fingerprint();
            (test, fingerprint)
        }
        // A checkpoint records which examples of a data set were held out for validation.
        None => {
            let examples = experiment.read_data(path, setup).map_err(|error| seen_from_elsewhere(error, path))?;
            let fingerprint = examples.data().test.fingerprint();
            (examples.test, fingerprint)
        }
    };
    let same_test_data = checkpoint.data.as_ref().map(|data| data.test == fingerprint);
    if same_test_data == Some(false) && args.inputs.is_none() {
        tracing::warn!(
            "{}: these test data are not those of its training: examples that it was trained on may be among them",
            checkpoint_path.display()
        );
    }
    Ok((test, same_test_data))
}

impl Evaluated {
    /// The names of each label's classes, if the checkpoint records any.
    fn class_names(&self) -> Option<&BTreeMap<String, Vec<String>>> {
        self.checkpoint.data.as_ref().map(|data| &data.classes).filter(|classes| !classes.is_empty())
    }

    fn as_json(&self, args: &Args) -> Value {
        let TrainedExperiment { path, precision, checkpoint: checkpoint_path, .. } = &self.trained;
        let mut object = json!({
            "experiment": path, "checkpoint": checkpoint_path, "precision": precision.name(), "inputs": args.inputs,
            "steps": self.checkpoint.position.step, "same_test_data": self.same_test_data,
            "n_examples": self.n_examples, "by_averages": self.checkpoint.has_averages(),
        });
        // All metrics under `metrics`, whatever their names; at the top level only those that do not clash with our own
        // keys.
        object["metrics"] = self.values.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        for (name, value) in self.values.iter().filter(|(name, _)| !OWN_KEYS.contains(&name.as_str())) {
            object[name] = json!(value);
        }
        match self.confusion.as_deref() {
            None => {}
            Some([(_, only)]) => object["confusion"] = json!(only.rows()),
            Some(several) => {
                let named = |(label, confusion): &(String, Confusion)| (label.clone(), json!(confusion.rows()));
                object["confusion"] = several.iter().map(named).collect();
            }
        }
        if let Some(names) = self.class_names() {
            object["class_names"] = json!(names);
        }
        object
    }

    /// A line, then the matrices.
    fn render(&self, screen: Screen) -> String {
        let mut text = format!(
            "{} in {}: test {} over {} examples, after {} steps{}\n",
            self.trained.checkpoint.display(),
            self.trained.precision,
            values::list(&self.values),
            grouped(self.n_examples as i64),
            grouped(self.checkpoint.position.step as i64),
            by_averages(&self.checkpoint)
        );
        let matrices = self.confusion.as_deref().unwrap_or_default();
        for (label, matrix) in matrices {
            if matrices.len() > 1 {
                text += &format!("{label}:\n");
            }
            let names = self.class_names().and_then(|names| names.get(label)).map(Vec::as_slice).unwrap_or_default();
            text += &matrix.render(names, screen);
        }
        text
    }
}
