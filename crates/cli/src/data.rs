//! `bf16scope data`: the contents of data sets on disk, pages of examples, and the speed of reading them.

mod bench;

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::whole::whole;
use super::{Context, Status, emit};
use crate::report::data::{Extent, census_text, page_of_experiment, page_of_records, survey_text};
use bf16scope_data::records::{self, Records, Survey};
use bf16scope_data::{Census, Loader, Source};
use bf16scope_hlo::DType;
use bf16scope_pjrt::Purpose;
use bf16scope_train::experiment::{Experiment, Tolerance};

const EXAMPLES: &str = "\
Examples:
  bf16scope data train-00000-of-01024
          what a TFRecord file holds: features, kinds, sizes of images, classes, broken records
  bf16scope data pictures/
          a folder of images with a folder for each class
  bf16scope data pets-*.tar
          WebDataset's tar files
  bf16scope data 'pets-*.parquet'
          Parquet files, as Hugging Face keeps data sets
  bf16scope data 'gs://bucket/train-*'
          objects of a store, downloaded to the cache first: gs://, s3://, http(s)://, in a build with the feature object-store
  bf16scope data resnet50.yaml --html page.html
          the examples of an experiment as its network gets them, and a page with some of them
  bf16scope data resnet50.yaml --bench
          how many examples a second this machine makes
  bf16scope data resnet50.yaml --bench --target tpu-v2
          and how many a board of TPU v2 consumes

Exit status 1: some records are broken.";

/// Arguments of `data`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// TFRecord, .tar or .parquet files, URLs or patterns of their names, a folder of images, or an experiment (.yaml)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,
    /// Look at this many records at most, evenly spaced from the first to the last
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = whole(1..=u64::MAX), allow_negative_numbers = true)]
    limit: u64,
    #[command(flatten)]
    bench: bench::Args,
    /// Write a page with examples; for an experiment those of training, as its network gets them in several epochs
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Examples on the page
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole::<u64>(1..=1000), allow_negative_numbers = true)]
    examples: u64,
    /// Epochs in which each example on the page is shown
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole::<u64>(0..=100), allow_negative_numbers = true)]
    epochs: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The purpose for which it loads a plugin.
    pub(super) fn purpose(&self) -> Purpose {
        self.bench.purpose()
    }

    fn extent(&self) -> Extent {
        Extent { n_examples: self.examples, n_epochs: self.epochs }
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let read: Vec<Option<&Path>> = args.files.iter().map(|file| Some(Path::new(file))).collect();
    emit::check_names(&[("--html", args.html.as_deref())], &read)?;
    let is_experiment = |file: &String| file.ends_with(".yaml") || file.ends_with(".yml");
    match &args.files[..] {
        [file] if is_experiment(file) => experiment(Path::new(file), args, context),
        files if args.bench.bench || files.iter().any(is_experiment) => anyhow::bail!(
            "{} is not one experiment; expected one (.yaml) for --bench, or data files\nhelp: name them under `data` of an experiment",
            files.join(" ")
        ),
        files => {
            let records = records::open_in(Path::new(""), files, &context.setup().cache())?;
            show(&*records, args, context)
        }
    }
}

fn show(records: &dyn Records, args: &Args, context: &Context) -> anyhow::Result<Status> {
    let survey = Survey::compute(records, args.limit);
    let status = if survey.n_broken == 0 { Status::Ok } else { Status::Failing };
    if let Some(html) = &args.html {
        let page = page_of_records(&args.files.join(" "), records, args.extent());
        emit::replace(html, page.render().as_bytes())?;
    }
    if args.json {
        context.print_json(&to_json(&survey, records.classes()))?;
        return Ok(status);
    }
    context.print(&survey_text(&survey, records.classes(), context.screen))?;
    Ok(status)
}

fn to_json(survey: &Survey, names: &[String]) -> Json {
    let features: serde_json::Map<String, Json> = survey
        .features
        .iter()
        .map(|(name, held)| {
            let object = json!({
                "kinds": held.kinds, "n_values": held.n_values, "n_bytes": held.n_bytes, "images": held.images, "tensors": held.tensors,
                "n_no_image": held.n_no_image,
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

/// The examples of an experiment, in the form its network gets them.
fn experiment(path: &Path, args: &Args, context: &Context) -> anyhow::Result<Status> {
    let experiment = Experiment::read(path)?;
    let is_stop = experiment.data.as_ref().is_some_and(|data| data.is_on_disk() && data.on_error == Tolerance::Stop);
    let experiment = experiment.leaving_out_broken();
    let examples = experiment.read_data(path, &context.setup())?;
    let features = experiment.task().features();
    let mut object = json!({ "experiment": path });
    let mut status = Status::Ok;
    let validation = examples.validation.as_ref().map(|validation| ("validation", validation));
    let parts = [("training", &examples.training)].into_iter().chain(validation).chain([("test", &examples.test)]);
    for (part, source) in parts {
        let census = Census::compute(&**source, &features, DType::BF16, args.limit)?;
        if census.n_broken > 0 {
            status = Status::Failing;
        }
        if args.json {
            object[part] = census_json(&census, &**source);
        } else {
            context.print(&census_text(part, &census, is_stop, context.screen))?;
        }
    }
    if let Some(html) = &args.html {
        let loader = Loader::new(&*examples.training, &features, DType::BF16, 1, experiment.train.seed)?;
        let loader = loader.shifted(experiment.train.shift)?;
        let page = page_of_experiment(path, &*examples.training, &features, &loader, args.extent());
        emit::replace(html, page.render().as_bytes())?;
    }
    if args.bench.bench {
        let (text, measured) = bench::run(&args.bench, &*examples.training, (&experiment, path), context)?;
        if !args.json {
            context.print(&text)?;
        }
        object["bench"] = measured;
    }
    if args.json {
        context.print_json(&object)?;
    }
    Ok(status)
}

fn census_json(census: &Census, source: &dyn Source) -> Json {
    let features = census.features.iter().map(|figures| {
        let object = json!({
            "dtype": figures.dtype.name(), "dims": figures.dims, "range": figures.range, "mean": figures.mean,
            "deviation": figures.deviation, "counts": figures.counts,
        });
        (figures.name.clone(), object)
    });
    let arrays: Vec<Json> = (source.arrays().iter())
        .map(|info| json!({ "name": info.name, "dtype": info.dtype.name(), "dims": info.dims, "scale": info.scale }))
        .collect();
    json!({
        "n_examples": census.n_examples, "n_read": census.n_read, "arrays": arrays,
        "features": features.collect::<serde_json::Map<_, _>>(), "n_broken": census.n_broken, "broken": census.broken,
    })
}
