//! `bf16scope train`: trains an experiment on the CPU plugin or another device, with checkpoints.

mod record;

use std::io::IsTerminal;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Instant;

use anyhow::bail;
use indicatif::ProgressBar;
use serde::Serialize;
use signal_hook::consts::SIGTERM;

use self::record::{Recorder, Subject};
use super::child::client_of_all;
use super::progress::{bar, say};
use super::several::check_sums;
use super::tune::{TuneArg, target_of};
use super::{Context, Status, StdoutClosed, again, signals, values};
use crate::experiment::{Experiment, default_checkpoint};
use crate::graph::{Precision, Storage};
use crate::hlo::DType;
use crate::pjrt::{MAX_CPU_DEVICES, Platform};
use crate::report::grouped;
use crate::runs::{ABOUT, RunFolder};
use crate::study::MeshChoice;
use crate::tpu::read_narrow_sums;
use crate::train::checkpoint::{Checkpoint, Place};
use crate::train::resume::check_data;
use crate::train::{
    Data, EpochReport, Event, MAX_REPLICAS, Mesh, Resumption, Session, StateOf, SumOf, Summary, TrainError, check,
    check_average, run as train,
};
use crate::tuning::Tuning;

const EXAMPLES: &str = "\
Examples:
  bf16scope train examples/digits.yaml
          handwritten digits in bf16: cast on the host, the network in a bf16 scope, logits, loss and update in f32
  bf16scope train examples/digits.yaml --precision f32
          the same network through the same code, in f32
  bf16scope train examples/digits.yaml --resume --epochs 20
          go on where the checkpoint is, up to epoch 20
  bf16scope train examples/digits.yaml --tune tpu-v2
          on this CPU, the program that `compile --target tpu-v2` compiles
  tensorboard --logdir runs
          what `bf16scope curves` draws, in TensorBoard, while it trains

The first run installs the CPU plugin (63 MB) with pip. Ctrl-C saves a checkpoint and leaves with exit status 130 (SIGTERM:
143, SIGHUP: 129); --resume goes on from it to bitwise the same weights as if the run had not stopped. A reader of standard
output that leaves (`| head`) does not end the training.

On a slice of several hosts the same command runs on each (docs/CLOUD_TPU.md): host 0 reports and writes, and a signal to one
stops all, with exit status 143.";

/// Arguments of `train`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The experiment: a YAML file with `model`, `data` and `train`
    #[arg(value_name = "EXPERIMENT")]
    experiment: PathBuf,
    /// What the network computes in: bf16, f32 or f16. Loss and update are f32 in all of them, and variables, unless
    /// --variables or the experiment says otherwise
    #[arg(long, value_name = "PRECISION", default_value_t = Precision::Bf16)]
    precision: Precision,
    /// Passes over the data, those before a resumption included, instead of the experiment's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    epochs: Option<u32>,
    /// Examples in a batch, instead of the experiment's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    batch: Option<u32>,
    /// What variables are stored in, instead of the experiment's: f32, bf16_stochastic, bf16_compensated or bf16_nearest
    #[arg(long, value_name = "STORAGE")]
    variables: Option<Storage>,
    /// Seed of initial values and of the order of examples, instead of the experiment's
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Where checkpoints go [default: checkpoints/EXPERIMENT-PRECISION.safetensors]
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Go on from the checkpoint at its place, from that of the run that --run names, or from FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    resume: Option<Option<PathBuf>>,
    /// Go on although the checkpoint is of a network that computes something else, as long as its variables fit
    #[arg(long, requires = "resume")]
    other_function: bool,
    /// Where it runs: cpu, cpu:N (N devices), tpu, plugin:PATH (any PJRT plugin), or xla-cpu (with the feature xla)
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: Platform,
    /// Devices that share every batch, instead of the experiment's mesh [default: those of cpu:N]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_REPLICAS)))]
    devices: Option<u32>,
    #[command(flatten)]
    tune: TuneArg,
    #[command(flatten)]
    record: record::RecordArgs,
    /// Print one JSON object at the end, and no lines before
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Json<'a> {
    experiment: &'a Path,
    precision: Precision,
    platform: &'a str,
    /// The devices that shared each batch, and what they shared.
    mesh: Mesh,
    seed: u64,
    batch: u32,
    seconds: f64,
    run: Option<PathBuf>,
    #[serde(flatten)]
    summary: &'a Summary,
}

/// Trains.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let began = Instant::now();
    let mut experiment = Experiment::read(&args.experiment)?;
    let config = &mut experiment.train;
    config.epochs = args.epochs.unwrap_or(config.epochs);
    config.batch = args.batch.unwrap_or(config.batch);
    config.seed = args.seed.unwrap_or(config.seed);
    config.variables = args.variables.unwrap_or(config.variables);
    if let Some(n) = args.devices.or(args.device.n_devices()).and_then(NonZeroU32::new) {
        experiment.mesh.mesh = MeshChoice::Devices(n).over(experiment.mesh.mesh)?;
    }
    let examples = experiment.read_data(&args.experiment)?;
    experiment.train.n_train = Some(examples.training.n_examples());
    match experiment.check_schedule(&args.experiment) {
        // Whoever trains for another time than the file says need not see the whole schedule.
        Err(error) if args.epochs.is_some() || args.batch.is_some() => tracing::warn!("{error}"),
        checked => checked?,
    }
    if let Some(remark) = experiment.schedule_remark(&args.experiment) {
        tracing::warn!("{remark}");
    }
    let placed = |error: TrainError| experiment.with_its_line(&args.experiment, error);
    let wanted = args.wanted();
    let path = wanted.path.clone();
    if let Some(from) = &args.resume {
        wanted.check_there(from.as_ref().unwrap_or(&path))?;
    }
    let existed = path.exists();
    let begin = |is_first: bool| -> anyhow::Result<_> {
        // Before anything is read from there: another run could still be replacing it.
        let place = is_first.then(|| Place::claim(&path)).transpose()?;
        let resumed = args.resume.as_ref().map(|from| from.as_ref().unwrap_or(&path));
        Ok((place, resumed.map(|from| Ok::<_, anyhow::Error>((from, Checkpoint::read(from)?))).transpose()?))
    };
    // Of a slice's hosts the first writes, and which this is only its plugin knows.
    let begun = args.device.is_of_one_process().then(|| begin(true)).transpose()?;

    // Whatever can be judged is, before a plugin is installed or a minute spent on compiling.
    let mut spec = experiment.spec(args.precision, &Tuning::none()).map_err(placed)?;
    spec.objective.tuning = args.tune.tuning(&experiment, &target_of(&args.device));
    let data = examples.data();
    let resumption = Resumption { other_function: args.other_function };
    check(&spec, data).map_err(placed)?;
    check_average(&spec, data, u64::from(experiment.train.epochs)).map_err(placed)?;
    let check_resumed = |from: &Path, checkpoint: &Checkpoint| -> anyhow::Result<()> {
        resumption.check(from, checkpoint, &spec)?;
        Ok(checkpoint.data.as_ref().map_or(Ok(()), |before| check_data(from, before, &data.identity()))?)
    };
    if let Some((_, Some((from, checkpoint)))) = &begun {
        check_resumed(from, checkpoint)?;
    }
    let platform = args.platform(*experiment.mesh)?;
    let client = client_of_all(&platform, &context.setup())?;
    let (host, n_hosts) = client.processes().rank();
    let is_first = host == 0;
    let (place, resumed) = match begun {
        Some(begun) => begun,
        None => {
            let (place, resumed) = begin(is_first)?;
            if let Some((from, checkpoint)) = &resumed {
                check_resumed(from, checkpoint)?;
            }
            (place, resumed)
        }
    };
    let mut session = Session::new(&client, spec).map_err(placed)?;
    let rounded = match experiment.mesh.n_devices() > 1 && experiment.mesh.sum == SumOf::F32 {
        true => rounded_sums(&session, experiment.mesh.model.get())?,
        false => None,
    };
    let changes = match &resumed {
        Some((from, checkpoint)) => session.restore(from, checkpoint, resumption)?,
        None => Vec::new(),
    };
    let stop = stop_on_signals()?;
    let n_epochs = u64::from(experiment.train.epochs);
    let mut show = Show {
        context,
        json: args.json,
        is_first,
        n_epochs,
        bar: None,
        unwritten: None,
        record: None,
        unrecorded: None,
    };
    if !is_first {
        let replicas = session.replicas();
        show.say(&format!(
            "host {host} of {n_hosts}: replicas {} to {}; host 0 reports and writes",
            replicas.start,
            replicas.end - 1
        ));
    }
    if !args.json {
        show.print(&headline(args, (&experiment, &platform), &session, data));
    }
    if let Some(rounded) = &rounded {
        show.say(rounded);
    }
    if let Some((from, checkpoint)) = &resumed {
        for change in &changes {
            show.say(&change.to_string());
        }
        let n_done = session.step() / checkpoint.position.steps_per_epoch;
        show.say(&match n_done < n_epochs {
            true => format!("going on from {} after step {}", from.display(), session.step()),
            false => format!("{} has {n_done} epochs, --epochs {n_epochs} asks for no more", from.display()),
        });
    } else if existed && is_first {
        show.say(&format!(
            "{} will be replaced {}; --resume goes on from it instead, if it is whole",
            path.display(),
            match experiment.train.save_checkpoints_steps.or(experiment.train.save_checkpoints_secs) {
                None => "after the first epoch",
                Some(_) => "by the first checkpoint",
            }
        ));
    }
    let tune = args.tune.again();
    let subject = Subject {
        path: &args.experiment,
        experiment: &experiment,
        session: &session,
        client: &client,
        device: args.device.name(),
        tune: &tune,
        resumed: resumed.as_ref(),
    };
    if is_first {
        show.record = args.record.open(&subject, &mut |line| show.say(line))?;
    }
    let run = show.record.as_ref().map(|record| record.path().to_path_buf());
    let plan = experiment.train.plan(place);
    let result = train(&mut session, data, &plan, &stop.asked, &mut |event| show.event(event));
    show.clear();
    let summary = match (result, stop.signal.load(Ordering::Relaxed)) {
        (Err(error @ TrainError::Interrupted { .. }), signal) if signal != 0 => {
            return Err(signals::Stopped { signal, text: error.to_string() }.into());
        }
        // Another host of the slice was asked to: a slice that is preempted may tell one before the others.
        (Err(error @ TrainError::Interrupted { .. }), _) if n_hosts > 1 => {
            return Err(signals::Stopped {
                signal: SIGTERM,
                text: format!("another host of the slice was asked to stop: {error}"),
            }
            .into());
        }
        (result, _) => result?,
    };
    if !is_first {
        return Ok(Status::Ok);
    }
    if args.json {
        let config = &experiment.train;
        context.print_json(&Json {
            experiment: &args.experiment,
            precision: args.precision,
            platform: args.device.name(),
            mesh: *experiment.mesh,
            seed: config.seed,
            batch: config.batch,
            seconds: began.elapsed().as_secs_f64(),
            run,
            summary: &summary,
        })?;
    } else {
        show.print(&closing(args, &experiment, &summary));
        if let Some(run) = &run {
            let word = again::word(run);
            let run = run.display();
            show.print(&format!("recorded in {run}: `bf16scope curves {word}`, or `tensorboard --logdir {word}`\n"));
        }
    }
    show.unrecorded.or(show.unwritten).map_or(Ok(Status::Ok), Err)
}

/// What devices that were asked for f32 sum in less, in a warning; what the plugin does not say is not known.
///
/// # Errors
/// Replicas that do.
fn rounded_sums(session: &Session, n_partitions: u32) -> anyhow::Result<Option<String>> {
    let optimized = session.optimized_program().map_err(|error| error.to_string());
    match optimized.and_then(|optimized| read_narrow_sums(&optimized)) {
        Ok(narrow) => check_sums(&narrow, n_partitions),
        Err(error) => {
            tracing::debug!("what the devices sum in is not known: {error}");
            Ok(None)
        }
    }
}

/// Where checkpoints go.
struct Wanted {
    path: PathBuf,
    /// Why there, unless the user says so.
    why: Option<String>,
}

impl Args {
    /// The device named; of `cpu` as many as the mesh has.
    fn platform(&self, mesh: Mesh) -> anyhow::Result<Platform> {
        let n = mesh.n_devices();
        match n > 1 && self.device == Platform::cpu() {
            true if n > MAX_CPU_DEVICES => bail!(
                "the mesh has {n} devices, and a CPU can be 1 to {MAX_CPU_DEVICES} devices\nhelp: train on fewer, with \
                 --devices or `mesh`; `bf16scope compile` takes a slice of any size"
            ),
            true => Ok(Platform::cpu_devices(n)?),
            false => Ok(self.device.clone()),
        }
    }

    /// Where --checkpoint says; to go on with the run that --run names, where its last checkpoint is; else the default.
    fn wanted(&self) -> Wanted {
        if let Some(path) = &self.checkpoint {
            return Wanted { path: path.clone(), why: None };
        }
        let default = default_checkpoint(&self.experiment, self.precision);
        let Some(run) = self.record.run().filter(|run| self.resume == Some(None) && run.exists()) else {
            return Wanted { path: default, why: Some("that is the default place".to_string()) };
        };
        let about = run.join(ABOUT);
        match RunFolder::last_checkpoint(run) {
            Some(saved) => {
                let why = format!("{} names it as the last of its run", about.display());
                Wanted { path: PathBuf::from(saved.path), why: Some(why) }
            }
            None => {
                let why = format!("that is the default place, and {} names no other", about.display());
                Wanted { path: default, why: Some(why) }
            }
        }
    }
}

impl Wanted {
    /// The error of a checkpoint that is to be gone on from, and is not there.
    fn check_there(&self, from: &Path) -> anyhow::Result<()> {
        let Some(why) = self.why.as_ref().filter(|_| *from == self.path && !from.exists()) else { return Ok(()) };
        let (mut seen, mut help) = (String::new(), "");
        if let (true, Ok(folder)) = (from.is_relative(), std::env::current_dir()) {
            seen = format!(", seen from {}", folder.display());
            help = ", go to the folder that it was trained in";
        }
        bail!(
            "{}: no such checkpoint: {why}{seen}\nhelp: name the file with --resume=FILE{help}, or leave --resume out to \
             start",
            from.display()
        )
    }
}

/// What is trained, on what, where.
fn headline(
    args: &Args,
    (experiment, platform): (&Experiment, &Platform),
    session: &Session,
    data: Data<'_>,
) -> String {
    let batch = session.spec().batch;
    let parts = match (experiment.mesh.data.get(), experiment.mesh.state) {
        (1, _) if experiment.mesh.model.get() > 1 => format!(": split over {} devices", experiment.mesh.model),
        (1, _) => String::new(),
        (n, state) => {
            let state = if state == StateOf::Sharded { ", state in parts" } else { "" };
            let of = match experiment.mesh.model.get() {
                1 => "devices".to_string(),
                model => format!("replicas of {model} devices"),
            };
            let hosts = match session.host().1 {
                1 => String::new(),
                n_hosts => format!(" of {n_hosts} hosts"),
            };
            format!(
                ": {} on each of {n} {of}{hosts}, gradients summed in {}{state}",
                batch / n,
                experiment.mesh.sum.dtype()
            )
        }
    };
    let masters = match experiment.train.variables {
        Storage::F32 if args.precision == Precision::F32 => String::new(),
        Storage::F32 => format!(", {} master weights", DType::F32),
        other => format!(", weights stored as {other}"),
    };
    let scope = match args.precision {
        Precision::F32 => format!("in f32{masters}"),
        Precision::F16 => format!("in an f16 scope{masters}"),
        low => format!("in a {low} scope{masters}"),
    };
    format!(
        "{}: {} with {} parameters ({} bytes of state), {scope}, on {}\n\
         {} training and {} test examples, batches of {batch}{parts}\n",
        args.experiment.display(),
        experiment.model.kind(),
        grouped(session.n_parameters() as i64),
        grouped(session.n_state_bytes() as i64),
        platform,
        grouped(data.training.n_examples() as i64),
        grouped(data.test.n_examples() as i64),
    )
}

/// How it ended, and how to go on.
fn closing(args: &Args, experiment: &Experiment, summary: &Summary) -> String {
    let mut text = format!("test {} after {} steps\n", values::list(&summary.test), grouped(summary.steps as i64));
    if let Some(path) = &summary.checkpoint {
        let precision = match args.precision {
            Precision::Bf16 => String::new(),
            other => format!(" --precision {other}"),
        };
        let device = match args.device == Platform::default() {
            true => String::new(),
            false => format!(" --device {}", args.device),
        };
        // An evaluation runs on one device.
        let of_one = if args.device.n_devices().is_some() { "" } else { &device };
        let is_default = *path == default_checkpoint(&args.experiment, args.precision);
        let place = again::option("--checkpoint", (!is_default).then_some(path));
        let (name, tune) = (again::word(&args.experiment), args.tune.again());
        let run = again::option("--run", args.record.run());
        let number = |flag: &str, value: Option<u64>| value.map_or(String::new(), |value| format!(" {flag} {value}"));
        let (batch, seed) = (number("--batch", args.batch.map(u64::from)), number("--seed", args.seed));
        let devices = number("--devices", args.devices.map(u64::from));
        let variables = args.variables.map_or(String::new(), |variables| format!(" --variables {variables}"));
        text += &format!(
            "checkpoint {}\nnext: `bf16scope eval {name}{precision}{of_one}{tune}{place}`, or train on with \
             `bf16scope train {name}{precision}{device}{devices}{tune}{batch}{seed}{variables}{place}{run} --resume --epochs {}`\n",
            path.display(),
            2 * u64::from(experiment.train.epochs)
        );
    }
    text
}

/// Progress: a bar on a terminal, a line for each epoch everywhere.
struct Show<'a> {
    context: &'a Context,
    json: bool,
    /// Whether this host is the one that reports.
    is_first: bool,
    n_epochs: u64,
    bar: Option<ProgressBar>,
    /// Why standard output takes nothing more.
    unwritten: Option<anyhow::Error>,
    /// What happens goes there too.
    record: Option<Recorder>,
    /// Why it does not any more.
    unrecorded: Option<anyhow::Error>,
}

impl Show<'_> {
    fn event(&mut self, event: Event<'_>) {
        if let Some(Err(error)) = self.record.as_mut().map(|record| record.event(&event)) {
            self.say(&format!("{error:#}; the training goes on, and is not recorded any more"));
            (self.record, self.unrecorded) = (None, Some(error));
        }
        match event {
            Event::Step { epoch, step, steps_per_epoch, totals, examples_per_second, .. } if self.is_first => {
                let (quiet, n_epochs) = (self.context.quiet, self.n_epochs);
                let bar = self.bar.get_or_insert_with(|| bar(steps_per_epoch, quiet));
                bar.set_prefix(format!("epoch {epoch}/{n_epochs}"));
                let loss = totals.loss().unwrap_or(f64::NAN);
                bar.set_message(format!("loss {loss:.4} {examples_per_second:.0} examples/s"));
                bar.set_position(step);
            }
            Event::Epoch(report) => {
                self.clear();
                if !self.json {
                    self.print(&epoch_line(report, self.n_epochs));
                }
            }
            Event::Step { .. } => {}
            Event::Saved { path, step } => {
                tracing::info!("{} saved after step {step}", path.display());
            }
        }
    }

    /// Lines on standard output, as long as it takes them. That nobody reads any more (`| head`) or that a disk is full is
    /// no wish to end an hour's training: it goes on, and how it ends says so.
    fn print(&mut self, text: &str) {
        if self.unwritten.is_some() || !self.is_first {
            return;
        }
        if let Err(error) = self.context.print(text) {
            if !error.is::<StdoutClosed>() {
                self.say(&format!("{error:#}; the training goes on"));
            }
            self.unwritten = Some(error);
        }
    }

    /// A remark on standard error.
    fn say(&self, line: &str) {
        if !self.context.quiet {
            say(line);
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// The training loss, and of the first metric, or else of the loss, what it is in training and on the test data.
fn epoch_line(report: &EpochReport, n_epochs: u64) -> String {
    let width = n_epochs.to_string().len();
    let value = |values: &[(String, f64)], name: &str| values.iter().find(|(other, _)| other == name).map(|it| it.1);
    let is_metric = |name: &&String| *name != "loss" && value(&report.train, name).is_some();
    let metric = report.test.iter().map(|(name, _)| name).find(is_metric).map_or("loss", String::as_str);
    let loss = value(&report.train, "loss").filter(|_| metric != "loss");
    let loss = loss.map_or(String::new(), |loss| format!("  {}", values::named("loss", loss)));
    let shown = |values| value(values, metric).map(|value| values::shown(metric, value));
    let of_test = shown(&report.test).map(|test| format!("(test {test})"));
    let both: Vec<String> = shown(&report.train).into_iter().chain(of_test).collect();
    let skipped =
        report.n_skipped.filter(|n| *n > 0).map_or(String::new(), |n| format!("  {n} updates left out so far"));
    // A tenth is no bottleneck.
    let waited = report.waited_for_data.filter(|share| *share > 0.1);
    let waited = waited.map_or(String::new(), |share| format!("  {:.0} % waiting for data", 100.0 * share));
    format!(
        "epoch {:>width$}/{n_epochs}{loss}  {} {}  {} examples/s{waited}{skipped}\n",
        report.epoch,
        metric.replace('_', " "),
        both.join(" "),
        grouped(report.examples_per_second as i64)
    )
}

/// What the first signal to stop leaves.
struct Stop {
    asked: AtomicBool,
    /// Which it was; 0 before.
    signal: AtomicI32,
}

/// The first signal to stop is noted for the training loop; the second ends the process.
fn stop_on_signals() -> anyhow::Result<Arc<Stop>> {
    let stop = Arc::new(Stop { asked: AtomicBool::new(false), signal: AtomicI32::new(0) });
    let noted = Arc::clone(&stop);
    signals::on_stop(move |signal| {
        if noted.asked.load(Ordering::Relaxed) {
            signals::leave(signal);
        }
        noted.signal.store(signal, Ordering::Relaxed);
        noted.asked.store(true, Ordering::Relaxed);
        let again = if std::io::stderr().is_terminal() { "; Ctrl-C again leaves at once" } else { "" };
        say(&format!("stopping after this step{again}"));
    })?;
    Ok(stop)
}
