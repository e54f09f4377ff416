//! `bf16scope predict`: a checkpoint's predictions for examples, as a table, `.npz`, CSV or JSON.

mod arrays;
mod complete;
mod pictures;
mod write;

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use serde_json::{Value, json};

use self::arrays::Collected;
use self::write::{Output, PredictionFormat};
use super::class_names::ByOutput;
use super::progress::Phase;
use super::trained::{RunArgs, TrainedExperiment, by_averages, seen_from_elsewhere};
use super::whole::whole;
use super::{Context, Status, class_names, emit, progress};
use crate::report::{Column, Screen, Table, grouped};
use bf16scope_data::{DataError, DataErrorKind, Loader, Source};
use bf16scope_model::task::Task;
use bf16scope_pjrt::Setup;
use bf16scope_train::checkpoint::Checkpoint;
use bf16scope_train::{Predictor, TrainError, predicted_from};

/// Examples in the table.
const N_SHOWN: usize = 20;

const EXAMPLES: &str = "\
Examples:
  bf16scope predict examples/digits.yaml
          the experiment's test data, with the checkpoint that `bf16scope train examples/digits.yaml` left
  bf16scope predict examples/digits.yaml --inputs new.csv -o predictions.npz
          other examples, without labels: a CSV file has the columns of the features alone
  bf16scope predict examples/digits.yaml --inputs new.npz --top 3 --json
          with the three best classes of each and their probabilities
  bf16scope predict pets.yaml --inputs photo.jpg
          one image, made what the network reads as the experiment's `features` say; a folder, TFRecords, tars and Parquet too
  bf16scope predict examples/gpt_bible.yaml --complete \"In the beginning\" --tokens 80
          continue a text with a decoder, by the most probable token each time; --temperature 0.8 --top-k 40 draws tokens

The experiment's `scale` and `arrays` apply to --inputs too. Predictions have the task's names, and the example is their first
dim. From `logits` come `classes` (the argmax; the first of equal ones) and `probabilities` (softmax
in f64); with --top also `top_classes` and `top_probabilities`, the best first. Of other outputs whose labels have names
they come as `NAME_classes`, and so on.";

/// Arguments of `predict`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The experiment: a YAML file with `model`, and with `data` where --inputs is not given; or the folder of a run
    #[arg(value_name = "EXPERIMENT|RUN")]
    experiment: PathBuf,
    /// The examples: an .npz, .csv or .csv.gz file of the task's features, without labels; where `data` says how features are
    /// made of records, an image, a folder of images, TFRecords, a .tar or a .parquet; images too where examples are bytes in
    /// memory, with `scale` [default: the experiment's test data]
    #[arg(short, long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// Add the K best classes of each example and their probabilities
    #[arg(long, value_name = "K", value_parser = whole(1..=u32::MAX), allow_negative_numbers = true)]
    top: Option<u32>,
    /// Where to write all predictions: .npz, .csv or .json; .png for predictions that are pictures
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    completion: complete::CompletionArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Print one JSON object: with the predictions, unless -o takes them
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The names of the first `n` examples, if each is a file.
    fn files(&self, source: &dyn Source, n: u64) -> Option<Vec<String>> {
        let inputs = self.inputs.as_ref().filter(|inputs| inputs.is_dir())?;
        let name = |index| {
            let place = source.place(index);
            Path::new(&place).strip_prefix(inputs).map_or(place.clone(), |name| name.display().to_string())
        };
        Some((0..source.n_examples().min(n)).map(name).collect())
    }
}

fn heading(trained: &TrainedExperiment, checkpoint: &Checkpoint, n_examples: u64) -> String {
    let count = grouped(i64::try_from(n_examples).unwrap_or(i64::MAX));
    let (shown, steps) = (trained.checkpoint.display(), grouped(checkpoint.position.step as i64));
    let averages = by_averages(checkpoint);
    let examples = if n_examples == 1 { "example" } else { "examples" };
    let precision = trained.precision;
    format!("{shown} in {precision}: predictions for {count} {examples}, after {steps} steps{averages}\n")
}

/// Predicts.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    args.run.check()?;
    let named = args.experiment.display();
    let phase = Phase::begin(format!("reading {named} and its data"), context.quiet);
    let trained = args.run.which.read(&args.experiment)?;
    let TrainedExperiment { experiment, precision, checkpoint: path, .. } = &trained;
    let read = [Some(args.experiment.as_path()), args.inputs.as_deref(), Some(path.as_path())];
    emit::check_names(&[("-o", args.output.as_deref())], &read)?;
    let kind = args.output.as_deref().map(PredictionFormat::from_path).transpose()?;
    let task = experiment.task();
    let checkpoint = args.run.trained.read(path, &*task)?;
    let names = names_of(&checkpoint, &*task);
    if let Some(text) = &args.completion.complete {
        drop(phase);
        return complete::run(args, context, &trained, &checkpoint, text);
    }
    let source = source(args, &trained, &checkpoint, &context.setup())?;
    let n_examples = source.n_examples();
    let batch = u32::try_from(n_examples).map_or(experiment.train.batch, |n| n.min(experiment.train.batch));
    let features = predicted_from(&*task);
    let loader = Loader::new(&*source, &features, precision.compute(), batch as usize, 0)?;
    loader.check().map_err(|error| none_is_left_out(error.into()))?;
    // Checked before the work, not after it.
    let output = match (&args.output, kind) {
        (Some(path), Some(kind)) => Some(Output::begin(path, kind)?),
        _ => None,
    };
    drop(phase);
    let phase = Phase::begin(format!("compiling {named}"), context.quiet);
    let client = args.run.client(context)?;
    let predictor = Predictor::new(&client, &*task, *precision, batch, &args.run.tuning(experiment))?;
    drop(phase);
    let keep = if args.json || output.is_some() { usize::MAX } else { N_SHOWN };
    let top = args.top.map(|k| k as usize);
    let collected = Collected::new(n_examples, keep, top, task.independent_logits()).named(names);
    let collected = collect(&predictor, (path, &checkpoint), &*source, collected, context)?;
    let files = args.files(&*source, keep as u64);
    Predictions { args, trained: &trained, checkpoint: &checkpoint, n_examples, collected, files }.show(output, context)
}

/// Predicts all examples of a source from a checkpoint that was read from `path`.
fn collect(
    predictor: &Predictor,
    (path, checkpoint): (&Path, &Checkpoint),
    source: &dyn Source,
    mut collected: Collected,
    context: &Context,
) -> anyhow::Result<Collected> {
    let bar = progress::bar(source.n_examples(), context.quiet);
    bar.set_prefix("predicting");
    let predicted = predictor.predict(path, checkpoint, source, |batch| -> anyhow::Result<()> {
        bar.inc(batch.first().map_or(0, |array| array.dims[0].unsigned_abs()));
        collected.add(batch, |index| source.place(index))
    });
    predicted.map_err(none_is_left_out)?;
    bar.finish_and_clear();
    if collected.arrays.is_empty() {
        bail!("the task predicts nothing; expected predictions by name in Mode::Predict");
    }
    Ok(collected)
}

/// The predictions of a checkpoint.
struct Predictions<'a> {
    args: &'a Args,
    trained: &'a TrainedExperiment,
    checkpoint: &'a Checkpoint,
    n_examples: u64,
    collected: Collected,
    /// The names of the examples, if each is a file.
    files: Option<Vec<String>>,
}

impl Predictions<'_> {
    /// Writes them to the output, and prints them or where they are.
    fn show(&self, output: Option<Output>, context: &Context) -> anyhow::Result<Status> {
        let mut head = self.head();
        let is_written = output.is_some();
        if let Some(output) = output {
            output.finish(&head, &self.collected.arrays)?;
        }
        if self.args.json {
            match is_written {
                true => head["output"] = json!(self.args.output),
                false => head["predictions"] = write::as_json(&self.collected.arrays)?,
            }
            context.print_json(&head)?;
            return Ok(Status::Ok);
        }
        let text = match &self.args.output {
            Some(output) => format!("{}: {}\n", output.display(), self.collected.described()),
            None => table(&self.collected, self.files.as_deref(), self.n_examples, context.screen)?,
        };
        context.print(&(heading(self.trained, self.checkpoint, self.n_examples) + &text))?;
        Ok(Status::Ok)
    }

    /// How they were computed, as JSON.
    fn head(&self) -> Value {
        let TrainedExperiment { path, precision, checkpoint: checkpoint_path, .. } = self.trained;
        let mut head = json!({
            "experiment": path, "checkpoint": checkpoint_path, "precision": precision.name(),
            "steps": self.checkpoint.position.step, "inputs": self.args.inputs, "n_examples": self.n_examples,
            "by_averages": self.checkpoint.has_averages(),
        });
        if let Some(files) = &self.files {
            head["files"] = json!(files);
        }
        let names = self.collected.class_names();
        if !names.is_empty() {
            head["class_names"] = json!(ByOutput(&names));
        }
        head
    }
}

/// Adds advice to the error for an unreadable example: `predict` skips none.
fn none_is_left_out(error: anyhow::Error) -> anyhow::Error {
    let of_train = error.downcast_ref().and_then(TrainError::cause::<DataError>);
    match of_train.or_else(|| error.downcast_ref()).and_then(DataError::stopped) {
        Some(source) => {
            anyhow!("{source}\nhelp: take it out: a prediction is for every example, and leaves out none")
        }
        _ => error,
    }
}

/// The class names of each output.
fn names_of(checkpoint: &Checkpoint, task: &dyn Task) -> class_names::Names {
    checkpoint.data.as_ref().map_or_else(Vec::new, |data| class_names::of_outputs(task, &data.classes))
}

/// The requested examples.
fn source(
    args: &Args,
    trained: &TrainedExperiment,
    checkpoint: &Checkpoint,
    setup: &Setup,
) -> anyhow::Result<Box<dyn Source>> {
    let (experiment, path) = (trained.experiment.clone().as_learnt(checkpoint), &trained.path);
    let Some(file) = &args.inputs else {
        let examples = experiment.read_data(path, setup).map_err(|error| seen_from_elsewhere(error, path))?;
        return Ok(examples.test);
    };
    match experiment.read_other(path, file, setup) {
        Err(error) if error.cause().map(DataError::kind) == Some(&DataErrorKind::Columns) => {
            bail!("{error}\nhelp: examples to predict have no labels: leave those columns out")
        }
        other => Ok(other?),
    }
}

/// The first examples, for people.
fn table(collected: &Collected, files: Option<&[String]>, n_examples: u64, screen: Screen) -> anyhow::Result<String> {
    let (mut columns, mut rows) = collected.rows()?;
    if let Some(files) = files {
        columns[0] = "file".to_string();
        rows.iter_mut().zip(files).for_each(|(row, file)| row[0].clone_from(file));
    }
    let numbers = |title: &String| match title.as_str() {
        "best" => Column::text(title),
        "file" => Column::name(title),
        _ => Column::number(title),
    };
    let mut table = Table::new(columns.iter().map(numbers));
    let n_rows = rows.len() as u64;
    rows.into_iter().for_each(|row| table.row(row));
    let mut text = table.render(screen);
    if n_rows < n_examples {
        let rest = i64::try_from(n_examples - n_rows).unwrap_or(i64::MAX);
        text += &format!("{} more: -o FILE.npz, .csv or .json, or --json, has them all\n", grouped(rest));
    }
    Ok(text)
}
