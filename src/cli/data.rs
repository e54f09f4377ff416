//! `bf16scope data`: what is in data sets on disk, and how fast examples come out of them.

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::{Context, Status};
use crate::data::records::{Held, ImageFolder, Records, Survey, TfRecords};
use crate::data::{Ask, DataError, Loader, Source};
use crate::hlo::DType;
use crate::report::{Column, Table, grouped, percent};
use crate::train::Experiment;

const EXAMPLES: &str = "\
Examples:
  bf16scope data train-00000-of-01024
          what a TFRecord file holds: features, kinds, sizes of images, classes, broken records
  bf16scope data pictures/
          a folder of images with a folder for each class
  bf16scope data resnet50.yaml --bench
          the examples of an experiment as its network gets them, and how many a second this machine makes

Exit status 1 says that records are broken.";

/// Classes that are listed.
const MAX_CLASSES: usize = 12;
/// Seconds that each number of workers is measured for, at least.
const BENCH_SECS: f64 = 2.0;

/// Arguments of `data`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// TFRecord files or patterns of their names, a folder of images, or an experiment (.yaml)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,
    /// Look at so many records at most, from the first to the last in equal steps
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Of an experiment: measure examples a second, by the number of workers
    #[arg(long)]
    bench: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let is_experiment = |file: &String| file.ends_with(".yaml") || file.ends_with(".yml");
    match &args.files[..] {
        [file] if is_experiment(file) => experiment(Path::new(file), args, context),
        files if args.bench || files.iter().any(is_experiment) => anyhow::bail!(
            "{} is not one experiment; expected one (.yaml) for --bench, or data files\nhelp: name them under `data` of an experiment",
            files.join(" ")
        ),
        [folder] if Path::new(folder).is_dir() => {
            let records = ImageFolder::open(Path::new(folder)).map_err(DataError::from)?;
            show(&records, args, context)
        }
        files => {
            let files = TfRecords::files(Path::new(""), files).map_err(DataError::from)?;
            let cache = context.setup().cache_dir;
            let records = TfRecords::open(&files, cache.as_deref()).map_err(DataError::from)?;
            show(&records, args, context)
        }
    }
}

fn show(records: &dyn Records, args: &Args, context: &Context) -> anyhow::Result<Status> {
    let survey = Survey::of(records, args.limit);
    let status = if survey.n_broken == 0 { Status::Ok } else { Status::Failing };
    if args.json {
        context.print_json(&to_json(&survey, records.classes()))?;
        return Ok(status);
    }
    let read = if survey.n_read == survey.n_records { "all".to_string() } else { grouped(survey.n_read as i64) };
    let what = format!("{} records, {read} of them looked at\n", grouped(survey.n_records as i64));
    context.print(&what)?;
    let mut table = Table::new([
        Column::name("feature"),
        Column::number("kind"),
        Column::number("records"),
        Column::number("values").extra(1),
        Column::text("what"),
    ]);
    for (name, held) in &survey.features {
        let kinds: Vec<&str> = held.kinds.keys().copied().collect();
        let n: u64 = held.kinds.values().sum();
        let n_values = held.n_values.map(range).unwrap_or_default();
        table.row([name.clone(), kinds.join(", "), grouped(n as i64), n_values, words(held)]);
    }
    context.print(&table.render(context.screen))?;
    for (name, held) in survey.features.iter().filter(|(_, held)| held.counts.len() > 1) {
        context.print(&classes(name, held, records.classes()))?;
    }
    if survey.n_broken > 0 {
        context.print(&format!("{} broken:\n", grouped(survey.n_broken as i64)))?;
        for message in &survey.broken {
            context.print(&format!("  {}\n", message.replace('\n', "\n  ")))?;
        }
    }
    Ok(status)
}

fn range<T: PartialEq + ToString>([least, greatest]: [T; 2]) -> String {
    match least == greatest {
        true => least.to_string(),
        false => format!("{} to {}", least.to_string(), greatest.to_string()),
    }
}

/// What values are, in words.
fn words(held: &Held) -> String {
    let mut parts: Vec<String> = held.images.iter().map(|(format, n)| format!("{n} {format}")).collect();
    if let (Some(heights), Some(widths)) = (held.heights, held.widths) {
        parts.push(format!("{} × {} pixels", range(heights), range(widths)));
    }
    if let Some(n_bytes) = held.n_bytes {
        parts.push(format!("{} bytes", range(n_bytes)));
    }
    parts.extend(held.range.map(range));
    parts.join(", ")
}

/// How often each class comes: the first of them, and how even they are.
fn classes(name: &str, held: &Held, names: &[String]) -> String {
    let total: u64 = held.counts.values().sum();
    let class = |label: &i64| match usize::try_from(*label).ok().and_then(|label| names.get(label)) {
        Some(name) => format!("{label} ({name})"),
        None => label.to_string(),
    };
    let shown = held.counts.iter().take(MAX_CLASSES);
    let shown: Vec<String> =
        shown.map(|(label, n)| format!("{}: {}", class(label), percent(*n as i64, total as i64))).collect();
    let more = held.counts.len().saturating_sub(MAX_CLASSES);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let (least, greatest) = (held.counts.values().min(), held.counts.values().max());
    let counts = least.zip(greatest).map(|(least, greatest)| range([*least, *greatest])).unwrap_or_default();
    format!("{name}: {} values, {counts} records each: {}{more}\n", held.counts.len(), shown.join(", "))
}

fn to_json(survey: &Survey, names: &[String]) -> Json {
    let features: serde_json::Map<String, Json> = survey
        .features
        .iter()
        .map(|(name, held)| {
            let object = json!({
                "kinds": held.kinds, "n_values": held.n_values, "n_bytes": held.n_bytes, "images": held.images,
                "heights": held.heights, "widths": held.widths, "range": held.range, "counts": held.counts,
            });
            (name.clone(), object)
        })
        .collect();
    json!({
        "n_records": survey.n_records, "n_read": survey.n_read, "features": features, "classes": names,
        "n_broken": survey.n_broken, "broken": survey.broken,
    })
}

/// The examples of an experiment, as its network gets them.
fn experiment(path: &Path, args: &Args, context: &Context) -> anyhow::Result<Status> {
    let experiment = Experiment::read(path)?;
    let examples = experiment.read_data(path)?;
    let features = experiment.task().features();
    let batch = experiment.train.batch as usize;
    let mut object = json!({ "experiment": path });
    for (part, source) in [("training", &examples.training), ("test", &examples.test)] {
        let arrays = source.arrays();
        Loader::new(&**source, &features, DType::BF16, 1, 0)?.check().with_context(|| format!("{part} examples"))?;
        if !args.json {
            context.print(&format!("{part}: {} examples\n", grouped(source.n_examples() as i64)))?;
        }
        let rows: Vec<Json> = arrays
            .iter()
            .map(
                |info| json!({ "name": info.name, "dtype": info.dtype.name(), "dims": info.dims, "scale": info.scale }),
            )
            .collect();
        object[part] = json!({ "n_examples": source.n_examples(), "arrays": rows });
    }
    if !args.json {
        let mut table = Table::new([Column::name("feature"), Column::name("is read as"), Column::name("in the batch")]);
        for feature in &features {
            let info = examples.training.arrays().iter().find(|info| info.name == feature.name);
            let read = info.map(|info| format!("{} {:?}", info.dtype, info.dims)).unwrap_or_default();
            let cast = format!("{} {:?}", feature.dtype_in(DType::BF16), feature.dims);
            table.row([feature.name.clone(), read, cast]);
        }
        context.print(&table.render(context.screen))?;
    }
    if args.bench {
        let rates = bench(&*examples.training, &experiment, batch)?;
        if !args.json {
            let mut table =
                Table::new([Column::number("workers"), Column::number("examples/s"), Column::number("per worker")]);
            for (n_workers, rate) in &rates {
                let per_worker = rate / (*n_workers).max(1) as f64;
                table.row([n_workers.to_string(), grouped(*rate as i64), grouped(per_worker as i64)]);
            }
            context.print(&table.render(context.screen))?;
        }
        let rows = rates.iter().map(|(n, rate)| json!({ "n_workers": n, "examples_per_second": rate }));
        object["bench"] = rows.collect();
    }
    if args.json {
        context.print_json(&object)?;
    }
    Ok(Status::Ok)
}

/// Training examples a second, by one worker, two, four and so on, up to as many as there are cores.
fn bench(source: &dyn Source, experiment: &Experiment, batch: usize) -> anyhow::Result<Vec<(usize, f64)>> {
    let n_cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut counts: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < n_cores).collect();
    counts.push(n_cores);
    let features = experiment.task().features();
    let mut rates = Vec::new();
    for n_workers in counts {
        let loader = Loader::new(source, &features, DType::BF16, batch, experiment.train.seed)?.with_workers(n_workers);
        let n_steps = loader.n_steps();
        let asks = (0u64..).map(move |step| Ask::Steps { epoch: step / n_steps, step: step % n_steps, n: 1 });
        let rate = loader.ahead(asks, |batches| -> anyhow::Result<f64> {
            // The first one pays for what is done once.
            batches.next().context("an epoch has no batches")??;
            let (began, mut n_examples) = (Instant::now(), 0);
            while began.elapsed().as_secs_f64() < BENCH_SECS {
                n_examples += batches.next().context("an epoch has no batches")??.n_valid;
            }
            Ok(n_examples as f64 / began.elapsed().as_secs_f64())
        })?;
        rates.push((n_workers, rate));
    }
    Ok(rates)
}
