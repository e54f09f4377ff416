//! `bf16scope watch`: the looks at a watched run, its anomalies, and where to look closer.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::audit::{Asked, Maker};
use super::tune::TuneArg;
use super::whole::whole;
use super::{Context, Status, again, emit};
use crate::report::watch::{self, WatchedRun};
use bf16scope_files as files;
use bf16scope_model::document;
use bf16scope_pjrt::Platform;
use bf16scope_train::run_folder::{EXPERIMENT, read_watched};
use bf16scope_train::watch::{Anomaly, WatchRecord, anomalies};
use bf16scope_train::{Narrowed, interval_of};

const EXAMPLES: &str = "\
Examples:
  bf16scope train examples/digits.yaml --watch
          check the numbers of each layer every 50 steps, and record them in the run's folder
  bf16scope watch runs/digits-bf16
          what was wrong first, with its step, layer and remedy; and the last look, layer by layer
  bf16scope watch runs/digits-bf16 --narrow
          replay the steps between two looks: the step at which it began, and the setting that changed there
  bf16scope watch runs/digits-bf16 --html watch.html
          heat maps of layers against steps: magnitudes, zeros, lost updates, exponents

The run need not be over. watch.jsonl in its folder has every look, a JSON object on each line.

Exit status: 0 nothing is wrong; 1 something is; 2 could not run.";

/// Arguments of `watch`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder of a run that was trained with --watch
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Write a page for the browser: layers against steps as heat maps
    #[arg(short = 'o', long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show the look before this step, or the last one before that [default: the last look]
    #[arg(long, value_name = "STEP", value_parser = whole(1..=u64::MAX), allow_negative_numbers = true)]
    step: Option<u64>,
    /// Show this many rows of the look
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole(1..=u32::MAX), allow_negative_numbers = true)]
    top: u32,
    /// Show all rows of the look
    #[arg(long, conflicts_with = "top")]
    all: bool,
    /// Replay the run before the look that first shows an anomaly, from the newest checkpoint before it or from its beginning,
    /// and check each step: the first wrong step, and the settings that changed there
    #[arg(long)]
    narrow: bool,
    /// The run's checkpoint [default: the one that its folder names]
    #[arg(long, value_name = "FILE", requires = "narrow")]
    checkpoint: Option<PathBuf>,
    /// Where steps are replayed
    #[arg(long, value_name = "DEVICE", requires = "narrow", default_value_t)]
    device: Platform,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    emit::check_names(&[("--html", args.html.as_deref())], &[])?;
    let (records, remarks) = read_watched::<WatchRecord>(&args.run)?;
    remarks.iter().for_each(|remark| tracing::warn!("{}: {remark}", args.run.display()));
    let narrowed = match args.narrow {
        true => narrowed(args, &records, context)?,
        false => None,
    };
    let (Some(first), Some(last)) = (records.first(), records.last()) else {
        bail!(
            "{}: the run was not watched: there is no look in its folder\nhelp: train with --watch, or with `watch: 50` under \
             `train`",
            args.run.display()
        );
    };
    // Looks within the interval count, too.
    let finer = narrowed.as_ref().map_or(&[][..], |narrowed| &narrowed.records);
    let mut all: Vec<&WatchRecord> = finer.iter().chain(&records).collect();
    all.sort_by_key(|record| record.step);
    let look = match args.step {
        None => finer.last().unwrap_or(last),
        Some(step) => match all.iter().rfind(|record| record.step <= step) {
            Some(look) => look,
            None => bail!(
                "--step {step} is before the first look, which is of step {}\nhelp: name a later step",
                first.step
            ),
        },
    };
    let anomalies = anomalies(&records);
    let audit = |anomaly: &Anomaly| {
        format!("bf16scope audit {} --at {}{}", again::word(&args.run), anomaly.step, tune(&args.run))
    };
    let first_wrong = narrowed.as_ref().and_then(|narrowed| narrowed.anomalies.first()).or(anomalies.first());
    let outcome = WatchedRun {
        run: &args.run,
        n_looks: records.len(),
        steps: [first.step, last.step],
        audit: first_wrong.map(audit),
        narrowed: narrowed.as_ref(),
        anomalies,
        look,
        remarks: &remarks,
    };
    if let Some(path) = &args.html {
        emit::replace(path, watch::page(&outcome, &records).render().as_bytes())?;
    }
    match args.json {
        true => context.print_json(&outcome)?,
        false => context.print(&watch::render(
            &outcome,
            if args.all { usize::MAX } else { args.top as usize },
            context.screen,
        ))?,
    }
    Ok(if outcome.anomalies.is_empty() { Status::Ok } else { Status::Failing })
}

/// Looks at the steps between the looks that first show an anomaly.
fn narrowed(args: &Args, records: &[WatchRecord], context: &Context) -> anyhow::Result<Option<Narrowed>> {
    if interval_of(records).is_none() {
        return Ok(None);
    }
    let choice = tuned(&args.run).map(|choice| choice.parse());
    let choice = choice.transpose().map_err(|error| {
        anyhow::anyhow!(
            "{}: its first line names a tuning that is not known: {error}",
            args.run.join(EXPERIMENT).display()
        )
    })?;
    let tune = TuneArg::recorded(choice);
    let checkpoint = args.checkpoint.as_deref();
    let (run, precision, limits, gives_gradients) = (None, None, None, false);
    let asked = Asked {
        file: &args.run,
        run,
        checkpoint,
        precision,
        tune: &tune,
        device: &args.device,
        limits,
        gives_gradients,
    };
    Maker::new(&asked, context)?.narrow(records)
}

/// The target for which a flag tuned a run, from the first line of its experiment.
fn tuned(run: &Path) -> Option<String> {
    let text = files::read_text(&run.join(EXPERIMENT), document::MAX_BYTES as u64).unwrap_or_default();
    let first = text.lines().next().unwrap_or_default().trim_end_matches('.');
    first.split_once(" --tune ").map(|(_, choice)| choice.to_string())
}

/// The same as a flag.
fn tune(run: &Path) -> String {
    tuned(run).map_or(String::new(), |choice| format!(" --tune {choice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_that_tuned_a_run_is_in_its_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let says = |text: &str| {
            std::fs::write(folder.path().join(EXPERIMENT), text).unwrap();
            tune(folder.path())
        };
        assert_eq!(
            says("# e.yaml, as it was trained with --precision bf16 --device cpu --tune tpu-v2.\n"),
            " --tune tpu-v2"
        );
        assert_eq!(says("# e.yaml, as it was trained with --precision bf16 --device cpu.\nmodel: {}\n"), "");
    }
}
