//! Records a training in the folder of its run: from events to scalars.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::whole::whole;
use bf16scope_files as files;
use bf16scope_model::document;
use bf16scope_model::graph::Storage;
use bf16scope_pjrt::Client;
use bf16scope_train::checkpoint::Checkpoint;
use bf16scope_train::experiment::{Experiment, TrainConfig, WatchConfig};
use bf16scope_train::run_folder::{About, Histogram, RunFolder, Saved, Start};
use bf16scope_train::watch::{Bins, WatchRecord, WatchRow};
use bf16scope_train::{Event, Session};

/// The largest number of recorded steps, unless `--log-every` sets the interval: a few megabytes.
const N_RECORDED: u64 = 10_000;
/// A step is recorded at least this often.
const AT_LEAST_EVERY: Duration = Duration::from_secs(10);

/// Where and how often a run is recorded.
#[derive(Debug, clap::Args)]
pub(super) struct RecordArgs {
    /// Where the run is recorded, for `curves` and TensorBoard, with its checkpoints unless --checkpoint names another place
    /// [default: runs/EXPERIMENT-PRECISION, with the suffix -2, -3 and so on for later runs; --resume continues in the folder
    /// of its checkpoint]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Record nothing
    #[arg(long, conflicts_with_all = ["run", "log_every"])]
    no_run: bool,
    /// Record every Nth step [default: at most 10,000 steps of a run; in any case one every ten seconds]
    #[arg(long, value_name = "N", value_parser = whole(1..=u64::MAX), allow_negative_numbers = true)]
    log_every: Option<u64>,
}

/// The training to record.
pub(super) struct Subject<'a> {
    pub(super) path: &'a Path,
    pub(super) experiment: &'a Experiment,
    pub(super) session: &'a Session,
    pub(super) client: &'a Client,
    pub(super) device: &'a str,
    /// The value of `--tune`.
    pub(super) tune: &'a str,
    pub(super) resumed: Option<&'a (PathBuf, Checkpoint)>,
    /// The folder that its checkpoint is in, if its name is a default one.
    pub(super) folder: Option<&'a Path>,
    /// The value of `--initialize-from`.
    pub(super) initialized_from: Option<&'a Path>,
}

/// Writes to the folder of the run.
pub(super) struct Recorder {
    folder: RunFolder,
    every: Option<u64>,
    n_epochs: u64,
    last: Option<Instant>,
}

impl RecordArgs {
    /// The folder in --run.
    pub(super) fn run(&self) -> Option<&Path> {
        self.run.as_deref()
    }

    /// Whether the run is recorded.
    pub(super) fn records(&self) -> bool {
        !self.no_run
    }

    /// Opens the folder, and reports remarks on it.
    pub(super) fn open(&self, subject: &Subject<'_>, say: &mut dyn FnMut(&str)) -> anyhow::Result<Option<Recorder>> {
        if self.no_run {
            return Ok(None);
        }
        let mut folder = self.folder(subject, say).context(
            "the run cannot be recorded\nhelp: name another folder with --run, or record nothing with --no-run",
        )?;
        let TrainConfig { epochs, watch, .. } = &subject.experiment.train;
        let n_epochs = u64::from(*epochs);
        folder.keep_watched(watch.as_ref().and_then(|watch| watch.keep).and_then(NonZeroU32::new));
        Ok(Some(Recorder { folder, every: self.log_every, n_epochs, last: None }))
    }

    fn folder(&self, subject: &Subject<'_>, say: &mut dyn FnMut(&str)) -> anyhow::Result<RunFolder> {
        let spec = subject.session.spec();
        let step = subject.session.step();
        let about = About {
            experiment: subject.path.display().to_string(),
            precision: spec.precision.to_string(),
            seed: spec.seed,
            batch: u64::from(spec.batch),
            settings: serde_json::to_string(&subject.session.settings()).context("settings without a JSON form")?,
            starts: vec![Start::now(step, subject.device, plugin(subject.client))],
            saved: None,
            best: None,
        };
        let experiment = resolved(subject)?;
        let default = RunFolder::first_of(subject.path, spec.precision.name());
        let chosen = self.run.as_deref().or(subject.folder);
        let create = |about| match chosen {
            Some(path) => RunFolder::create(path, about, Some(&experiment)),
            None => RunFolder::create_next(&default, &about, Some(&experiment)),
        };
        let Some((from, _)) = subject.resumed else { return Ok(create(about)?) };
        let before = match chosen {
            Some(path) => RunFolder::holds_run(path).then(|| path.to_path_buf()),
            None => RunFolder::of_checkpoint(&default, &saved(from, step)),
        };
        let Some(before) = before else {
            let folder = create(about)?;
            say(&format!("no folder records the run up to step {step}: {} begins there", folder.path().display()));
            return Ok(folder);
        };
        let (folder, resumed) = RunFolder::resume(&before, step, about, Some(&experiment))?;
        if resumed.n_dropped > 0 {
            let (shown, n) = (before.display(), resumed.n_dropped);
            let (s, are) = if n == 1 { ("", "is") } else { ("s", "are") };
            say(&format!("{shown}: {n} record{s} of steps after {step} {are} dropped"));
        }
        Ok(folder)
    }
}

/// The record of a checkpoint that lies at a path.
fn saved(path: &Path, step: u64) -> Saved {
    let sha256 = Checkpoint::read_head(path).ok().map(|head| head.sha256);
    Saved { path: path.display().to_string(), step, sha256 }
}

/// The plugin's library, and its version.
pub(crate) fn plugin(client: &Client) -> String {
    let version = client.platform_version().unwrap_or_default();
    match client.plugin() {
        Some(plugin) => {
            let (major, minor) = plugin.api_version();
            format!("{} ({version}, PJRT C API {major}.{minor})", plugin.path().display())
        }
        None => version,
    }
}

/// The experiment with the command line's flags applied.
fn resolved(subject: &Subject<'_>) -> anyhow::Result<String> {
    let text = files::read_text(subject.path, document::MAX_BYTES as u64)
        .with_context(|| format!("{}: cannot read the experiment", subject.path.display()))?;
    let config = &subject.experiment.train;
    let numbers = [("batch", u64::from(config.batch)), ("epochs", u64::from(config.epochs)), ("seed", config.seed)]
        .map(|(key, value)| (key, value.to_string()));
    let mut keys: Vec<(Option<&str>, &str, &str)> =
        numbers.iter().map(|(key, value)| (Some("train"), *key, value.as_str())).collect();
    if config.variables != Storage::F32 {
        keys.push((Some("train"), "variables", config.variables.name()));
    }
    // The file's paths are relative to its folder, the flag's is not.
    let initialized_from = subject.initialized_from.map(|file| {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
        document::to_line(&file.display().to_string())
    });
    if let Some(file) = &initialized_from {
        keys.push((Some("train"), "initialize_from", file));
    }
    let watch = config.watch.as_ref().map(WatchConfig::to_line);
    if let Some(watch) = &watch {
        keys.push((Some("train"), "watch", watch));
    }
    // A target is combined with the file's tuning; `auto` and `none` replace it.
    let tune = subject.tune.trim_start_matches(" --tune ");
    if ["auto", "none"].contains(&tune) {
        keys.push((None, "tune", tune));
    }
    let folder = match subject.path.parent().map(Path::display) {
        Some(folder) if !folder.to_string().is_empty() => format!("the folder {folder}"),
        _ => "the folder that it was trained in".to_string(),
    };
    let precision = subject.session.spec().precision;
    Ok(format!(
        "# {}, as it was trained with --precision {precision} --device {}{}.\n# Paths are relative to {folder}.\n{}",
        subject.path.display(),
        subject.device,
        subject.tune,
        document::with(&text, &keys)?
    ))
}

impl Recorder {
    /// The folder.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps the look at a step, whatever its age.
    pub(super) fn mark(&mut self, step: u64) {
        self.folder.mark_watched(step);
    }

    /// Records an event, if it is due.
    pub(super) fn event(&mut self, event: &Event<'_>) -> anyhow::Result<()> {
        match event {
            Event::Saved { path, step } => {
                self.folder.saved(saved(path, *step))?;
            }
            Event::Best { path, step, .. } => {
                self.folder.best(saved(path, *step))?;
            }
            Event::Watched(record) => {
                let line = serde_json::to_string(record).context("a look without a JSON form")?;
                self.folder.watched(record.step, &line, &histograms(record))?;
            }
            Event::Step { steps_per_epoch, .. } => {
                let (step, scalars) = scalars(event);
                let n_steps = self.n_epochs.saturating_mul(*steps_per_epoch);
                let every = self.every.unwrap_or(n_steps.div_ceil(N_RECORDED)).max(1);
                if step % every == 0 || self.last.is_none_or(|last| last.elapsed() >= AT_LEAST_EVERY) {
                    self.last = Some(Instant::now());
                    self.folder.scalars(step, &scalars)?;
                }
            }
            Event::Epoch(_) => {
                let (step, scalars) = scalars(event);
                self.folder.scalars(step, &scalars)?;
            }
            Event::MadeAgain { .. } => {}
            _ => {}
        }
        Ok(())
    }
}

/// Histograms of each row's exponents for TensorBoard: log2 of the magnitudes. The first and the last bin, which are
/// unbounded, are as wide as the others.
fn histograms(record: &WatchRecord) -> Vec<(String, Histogram)> {
    let width = f64::from(Bins::WIDTH);
    let inner: Vec<f64> = Bins::bounds().map(f64::from).collect();
    let (first, last) = (f64::from(Bins::ENDS.0) - width, f64::from(Bins::ENDS.1) + width);
    let bounds: Vec<f64> = [first].into_iter().chain(inner).chain([last]).collect();
    let mut n_called: BTreeMap<String, u32> = BTreeMap::new();
    let histogram = |row: &WatchRow| {
        let name = format!("{}/{}", row.quantity, row.name());
        let n = n_called.entry(name.clone()).or_default();
        *n += 1;
        let name = if *n == 1 { name } else { format!("{name} {n}") };
        let counts = row.bins.iter().map(|share| (share * row.n as f64).round()).collect();
        (name, Histogram { bounds: bounds.clone(), counts })
    };
    record.rows.iter().map(histogram).collect()
}

/// The number of updates made, and an event's scalars.
fn scalars(event: &Event<'_>) -> (u64, Vec<(String, f64)>) {
    match event {
        Event::Step { epoch, step, steps_per_epoch, totals, learning_rate, examples_per_second, .. } => {
            let mut scalars = totals.to_values();
            scalars.push(("learning_rate".to_string(), *learning_rate));
            scalars.push(("examples_per_second".to_string(), *examples_per_second));
            ((epoch - 1) * steps_per_epoch + step, scalars)
        }
        Event::Epoch(report) => {
            let under = |of: &'static str| move |(name, value): &(String, f64)| (format!("{of}/{name}"), *value);
            let mut scalars: Vec<(String, f64)> = report.train.iter().map(under("train")).collect();
            scalars.extend(report.train_since_step.map(|step| ("train/since_step".to_string(), step as f64)));
            scalars.extend(report.test.iter().map(under(report.evaluated_on())));
            scalars.push(("train/examples_per_second".to_string(), report.examples_per_second));
            scalars.extend(report.waited_for_data.map(|share| ("train/waited_for_data".to_string(), share)));
            scalars.extend(report.n_skipped.map(|n| ("train/n_skipped".to_string(), n as f64)));
            (report.step, scalars)
        }
        Event::Watched(record) => (record.step, Vec::new()),
        Event::Saved { step, .. } | Event::MadeAgain { step, .. } => (*step, Vec::new()),
        _ => (0, Vec::new()),
    }
}
