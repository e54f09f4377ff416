//! `bf16scope train`: trains an experiment on the CPU plugin or another device, with checkpoints.

pub(super) mod record;
mod show;
mod wanted;

use std::io::IsTerminal;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Instant;

use anyhow::bail;
use serde::Serialize;
use signal_hook::consts::SIGTERM;

use self::record::Subject;
use self::show::Show;
use self::wanted::{Claimed, Wanted};
use super::as_tpu::AsArg;
use super::child::client_of_all;
use super::progress::{Phase, say};
use super::tune::{TuneArg, target_of};
use super::whole::whole;
use super::{Context, Status, again, signals};
use bf16scope_model::graph::{Precision, Storage};
use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::{Client, MAX_CPU_DEVICES, Platform};
use bf16scope_study::MeshChoice;
use bf16scope_tpu::read_narrow_sums;
use bf16scope_train::checkpoint::Checkpoint;
use bf16scope_train::experiment::{Examples, Experiment, WatchConfig};
use bf16scope_train::resume::check_data;
use bf16scope_train::run_folder::read_watched;
use bf16scope_train::watch::WatchRecord;
use bf16scope_train::{
    Data, Initialization, MAX_REPLICAS, Mesh, Resumption, RunPlan, Session, Spec, SumOf, Summary, TrainError,
    TrainErrorKind, check, check_average, check_watch, run as train, with_total,
};

const EXAMPLES: &str = "\
Examples:
  bf16scope train examples/digits.yaml
          handwritten digits in bf16: cast on the host, the network in a bf16 scope, logits, loss and update in f32
  bf16scope train examples/digits.yaml --precision f32
          the same network through the same code, in f32
  bf16scope train examples/digits.yaml --resume --epochs 20
          continue from the checkpoint, up to epoch 20
  bf16scope train examples/digits.yaml --initialize-from runs/digits-f32/checkpoint.safetensors
          a fresh run that starts from those weights
  bf16scope train examples/digits.yaml --tune tpu-v2
          on this CPU, the program that `compile --target tpu-v2` compiles
  bf16scope train examples/digits.yaml --watch
          and check every layer's numbers every 50 steps: `bf16scope watch RUN` shows what went wrong first
  tensorboard --logdir runs
          the curves of `bf16scope curves` in TensorBoard, during training

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
    /// Precision of the network: bf16, f32 or f16. Loss and update are f32 in each of them, and so are variables, unless
    /// --variables or the experiment says otherwise
    #[arg(long, value_name = "PRECISION", default_value_t = Precision::Bf16)]
    precision: Precision,
    /// Passes over the data, those before a resumption included, instead of the experiment's; 0 saves the initial state
    #[arg(long, value_name = "N", value_parser = whole(0..=i32::MAX as u32), allow_negative_numbers = true)]
    epochs: Option<u32>,
    /// Examples in a batch, instead of the experiment's
    #[arg(long, value_name = "N", value_parser = whole(1..=i32::MAX as u32), allow_negative_numbers = true)]
    batch: Option<u32>,
    /// Storage of variables, instead of the experiment's: f32, bf16_stochastic, bf16_compensated or bf16_nearest
    #[arg(long, value_name = "STORAGE")]
    variables: Option<Storage>,
    /// Seed of initial values and of the order of examples, instead of the experiment's
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Where checkpoints go [default: checkpoint.safetensors in the folder of the run; with --no-run
    /// checkpoints/EXPERIMENT-PRECISION.safetensors]
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Replace an existing checkpoint other than the one that --resume continues from
    #[arg(long)]
    overwrite: bool,
    /// Continue from the checkpoint of the experiment's newest run, from that of the run that --run names, or from FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    resume: Option<Option<PathBuf>>,
    /// Start from these weights: a checkpoint, .npz, safetensors or another file that `bf16scope weights` reads, instead of the
    /// experiment's `initialize_from`
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    initialize_from: Option<PathBuf>,
    /// Accept a checkpoint of a network that computes something else, if its variables fit
    #[arg(long, requires = "resume")]
    other_function: bool,
    /// Where it runs: cpu, cpu:N (N devices), tpu, plugin:PATH (any PJRT plugin), or xla-cpu (with the feature xla)
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: Platform,
    /// Devices that share every batch, instead of the experiment's mesh [default: those of cpu:N]
    #[arg(long, value_name = "N", value_parser = whole(1..=MAX_REPLICAS), allow_negative_numbers = true)]
    devices: Option<u32>,
    #[command(flatten)]
    tune: TuneArg,
    #[command(flatten)]
    as_tpu: AsArg,
    /// Check the numbers of each layer every N steps [default: the experiment's, or 50], report anomalies and record all in
    /// the run's folder, for `bf16scope watch`; the weights have the same bits
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, value_parser = steps)]
    watch: Option<Option<u32>>,
    #[command(flatten)]
    record: record::RecordArgs,
    /// Print one JSON object at the end, and no lines before
    #[arg(long)]
    json: bool,
}

fn steps(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(steps) if steps > 0 && i32::try_from(steps).is_ok() => Ok(steps),
        Ok(_) | Err(_) => {
            Err("expected a number of steps, 1 or more, such as 50; without --watch no step is looked at".to_string())
        }
    }
}

/// The output of `--json`.
#[derive(Serialize)]
struct Json<'a> {
    experiment: &'a Path,
    precision: Precision,
    platform: &'a str,
    /// The devices that shared each batch, and how.
    mesh: Mesh,
    seed: u64,
    batch: u32,
    seconds: f64,
    run: Option<PathBuf>,
    #[serde(flatten)]
    summary: &'a Summary,
}

/// A session on its devices, and where it saves checkpoints.
struct Opened {
    platform: Platform,
    client: Client,
    session: Session,
    begun: Begun,
    initialization: Option<Initialization>,
    host: usize,
    n_hosts: usize,
}

impl Args {
    /// Claims the checkpoint's path and opens the session; errors that need little work come first.
    fn open(
        &self,
        (experiment, data): (&Experiment, Data<'_>),
        wanted: &Wanted,
        context: &Context,
    ) -> anyhow::Result<Opened> {
        // In a slice only the first host writes, and only the plugin knows which host this is.
        let begun = self.device.is_of_one_process().then(|| Begun::new(self, wanted, true)).transpose()?;
        let spec = self.checked_spec(experiment, data)?;
        if let Some(begun) = &begun {
            begun.check(self.resumption(), &spec, data)?;
        }
        let initialization = self.initialization(experiment, &spec)?;
        let platform = self.platform(experiment.mesh.mesh)?;
        let client = self.as_tpu.client(client_of_all(&platform, &context.setup())?);
        let (host, n_hosts) = client.processes().rank();
        let begun = match begun {
            Some(begun) => begun,
            None => {
                let begun = Begun::new(self, wanted, host == 0)?;
                begun.check(self.resumption(), &spec, data)?;
                begun
            }
        };
        let placed = |error: TrainError| experiment.with_its_line(error);
        if experiment.train.watch.is_some() {
            check_watch(&spec, u32::try_from(n_hosts).unwrap_or(u32::MAX)).map_err(placed)?;
        }
        let session = Session::new(&client, spec).map_err(placed)?;
        Ok(Opened { platform, client, session, begun, initialization, host, n_hosts })
    }

    /// Opens the run's folder, and shows anomalies from before the run was resumed.
    fn open_record(
        &self,
        (experiment, session, client): (&Experiment, &Session, &Client),
        (resumed, folder): (Option<&(PathBuf, Checkpoint)>, Option<&Path>),
        show: &mut Show<'_>,
    ) -> anyhow::Result<()> {
        let subject = Subject {
            path: &self.experiment,
            experiment,
            session,
            client,
            device: &format!("{}{}", self.device.name(), self.as_tpu.again()),
            tune: &self.tune.again(),
            resumed,
            folder,
            initialized_from: self.initialized_from(),
        };
        show.record = self.record.open(&subject, &mut |line| show.say(line))?;
        if let (Some(record), true) = (&show.record, experiment.train.watch.is_some() && resumed.is_some()) {
            let (looks, _) = read_watched::<WatchRecord>(record.path())?;
            show.seen(looks);
        }
        Ok(())
    }
}

/// Trains.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let began = Instant::now();
    args.as_tpu.check(&args.device)?;
    let wanted = args.wanted()?;
    // Before the data are read; in a slice, whose other hosts write nothing, after the plugin has identified this host.
    if args.device.is_of_one_process() {
        wanted.check_free(args)?;
    }
    let phase = Phase::begin(format!("reading {} and its data", args.experiment.display()), context.quiet);
    let (experiment, examples) = args.read_experiment(context)?;
    drop(phase);
    wanted.check_best_free(args, &experiment)?;
    if let Some(from) = &args.resume {
        wanted.check_there(from.as_ref().unwrap_or(&wanted.path))?;
    }
    let existed = wanted.path.exists();
    let data = examples.data();
    let phase = Phase::begin(format!("compiling the training step of {}", args.experiment.display()), context.quiet);
    let opened = args.open((&experiment, data), &wanted, context)?;
    let Opened { platform, client, mut session, begun, initialization, host, n_hosts } = opened;
    let (Begun { claimed: Claimed { place, folder, left: _left }, resumed }, is_first) = (begun, host == 0);
    let mesh = experiment.mesh.mesh;
    let rounded = match mesh.n_devices() > 1 && mesh.sum == SumOf::F32 {
        true => rounded_sums(&session, mesh.model.get())?,
        false => None,
    };
    let start = begin(&mut session, resumed.as_ref(), args.resumption(), initialization)?;
    drop(phase);
    let stop = stop_on_signals()?;
    let is_watched = experiment.train.watch.is_some();
    let mut show = Show::new(context, args.json, is_first, u64::from(experiment.train.epochs), is_watched);
    show.start(args, (&experiment, &platform), &session, &examples, rounded.as_deref());
    start.iter().for_each(|line| show.say(line));
    match &resumed {
        Some((from, checkpoint)) => show.resumed(args, &experiment.train, from, checkpoint, session.step()),
        None if existed && is_first => show.replaced(&wanted.path, &experiment.train),
        None => {}
    }
    if is_first {
        args.open_record((&experiment, &session, &client), (resumed.as_ref(), folder.as_deref()), &mut show)?;
    }
    let run = show.record.as_ref().map(|record| record.path().to_path_buf());
    let plan = RunPlan { is_validated: examples.validation.is_some(), ..experiment.train.plan(place) };
    let result = train(&mut session, data, &plan, &stop.asked, &mut |event| show.event(event));
    show.clear();
    if let (Err(error), Some(run)) = (&result, &run)
        && matches!(error.kind(), TrainErrorKind::Diverged { .. })
        && read_watched::<WatchRecord>(run).is_ok_and(|(looks, _)| !looks.is_empty())
    {
        show.say(&format!("what the numbers were before it: `bf16scope watch {}`", again::word(run)));
    }
    let mut summary = stop.judge(result, n_hosts)?;
    if examples.validation.is_some() {
        let batch =
            u32::try_from(examples.test.n_examples()).map_or(experiment.train.batch, |n| n.min(experiment.train.batch));
        let test = session.evaluate(&session.evaluator(batch)?, &*examples.test)?;
        summary.test = with_total(test.totals.to_values(), session.l2()?);
    }
    if !is_first {
        return Ok(Status::Ok);
    }
    match args.json {
        true => context.print_json(&args.as_json(&experiment, began, run, &summary))?,
        false => show.end(args, &experiment, &summary, run.as_deref()),
    }
    show.unrecorded.or(show.unwritten).map_or(Ok(Status::Ok), Err)
}

/// Loads into a session the checkpoint to resume, or the initial weights; and reports remarks on it.
fn begin(
    session: &mut Session,
    resumed: Option<&(PathBuf, Checkpoint)>,
    resumption: Resumption,
    initialization: Option<Initialization>,
) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    if let Some(read) = initialization {
        lines.push(format!("starting from {}: {}", read.file().display(), read.summary()));
        session.initialize(read)?;
    }
    if let Some((from, checkpoint)) = resumed {
        let changes = session.restore(from, checkpoint, resumption)?;
        lines.extend(changes.iter().map(ToString::to_string));
    }
    Ok(lines)
}

/// The start of a run on this host.
struct Begun {
    /// Where it saves, on the first host.
    claimed: Claimed,
    /// The checkpoint to resume.
    resumed: Option<(PathBuf, Checkpoint)>,
}

impl Begun {
    fn new(args: &Args, wanted: &Wanted, is_first: bool) -> anyhow::Result<Begun> {
        // Claimed before anything is read from there: another run could still be replacing it.
        let claimed = match is_first {
            true => wanted.claim()?,
            false => Claimed::default(),
        };
        if is_first {
            wanted.check_free(args)?;
        }
        let from = args.resume.as_ref().map(|from| from.clone().unwrap_or_else(|| wanted.path.clone()));
        let resumed = from.map(|from| Checkpoint::read(&from).map(|checkpoint| (from, checkpoint))).transpose()?;
        Ok(Begun { claimed, resumed })
    }

    /// Checks that a run of `spec` on `data` may resume its checkpoint.
    fn check(&self, resumption: Resumption, spec: &Spec, data: Data<'_>) -> anyhow::Result<()> {
        let Some((from, checkpoint)) = &self.resumed else { return Ok(()) };
        resumption.check(from, checkpoint, spec)?;
        Ok(checkpoint.data.as_ref().map_or(Ok(()), |before| check_data(from, before, &data.identity()))?)
    }
}

/// A warning if devices that were asked to sum in f32 sum in less; `None` if the plugin does not show it.
///
/// # Errors
/// Replicas do so.
fn rounded_sums(session: &Session, n_partitions: u32) -> anyhow::Result<Option<String>> {
    let optimized = session.optimized_program().map_err(|error| error.to_string());
    match optimized.and_then(|optimized| read_narrow_sums(&optimized)) {
        Ok(narrow) => Ok(bf16scope_study::check_sums(&narrow, n_partitions)?),
        Err(error) => {
            tracing::debug!("what the devices sum in is not known: {error}");
            Ok(None)
        }
    }
}

impl Args {
    /// The experiment with these arguments applied, and its data.
    fn read_experiment(&self, context: &Context) -> anyhow::Result<(Experiment, Examples)> {
        let mut experiment = Experiment::read(&self.experiment)?;
        let config = &mut experiment.train;
        config.epochs = self.epochs.unwrap_or(config.epochs);
        config.batch = self.batch.unwrap_or(config.batch);
        config.seed = self.seed.unwrap_or(config.seed);
        config.variables = self.variables.unwrap_or(config.variables);
        if let Some(every) = self.watch {
            let of_file = config.watch.take().unwrap_or_default();
            config.watch = Some(WatchConfig { every: every.unwrap_or(of_file.every), ..of_file });
        }
        if let Some(n) = self.devices.or(self.device.n_devices()).and_then(NonZeroU32::new) {
            experiment.mesh.mesh = MeshChoice::Devices(n).over(experiment.mesh.mesh)?;
        }
        let examples = experiment.read_data(&self.experiment, &context.setup())?;
        experiment.train.n_train = Some(examples.training.n_examples());
        experiment.check_schedule(&self.experiment)?;
        if let Some(remark) = experiment.schedule_remark(&self.experiment) {
            tracing::warn!("{remark}");
        }
        Ok((experiment, examples))
    }

    /// The specification of the training. Everything that can be checked is, before a plugin is installed or a minute
    /// is spent on compiling.
    fn checked_spec(&self, experiment: &Experiment, data: Data<'_>) -> anyhow::Result<Spec> {
        let placed = |error: TrainError| experiment.with_its_line(error);
        let mut spec = experiment.spec(self.precision, &Tuning::none()).map_err(placed)?;
        spec.objective.tuning = self.tune.tuning(experiment, &target_of(&self.device));
        if experiment.train.watch.is_some() {
            check_watch(&spec, 1).map_err(placed)?;
        }
        check(&spec, data).map_err(placed)?;
        check_average(&spec, data, u64::from(experiment.train.epochs)).map_err(placed)?;
        experiment.train.callbacks().check(&spec, 1).map_err(placed)?;
        Ok(spec)
    }

    /// The initial weights of a fresh run, if they are not its own; a resumed run has started already.
    fn initialization(&self, experiment: &Experiment, spec: &Spec) -> anyhow::Result<Option<Initialization>> {
        if self.resume.is_some() {
            return Ok(None);
        }
        let from = experiment.initialize_from(&self.experiment, self.initialize_from.as_deref())?;
        let read = from.map(|from| from.read(spec)).transpose();
        Ok(read.map_err(|error| experiment.with_its_line(error))?)
    }

    /// The file that --initialize-from names.
    fn initialized_from(&self) -> Option<&Path> {
        self.initialize_from.as_deref()
    }

    fn resumption(&self) -> Resumption {
        Resumption { other_function: self.other_function }
    }

    fn as_json<'a>(
        &'a self,
        experiment: &Experiment,
        began: Instant,
        run: Option<PathBuf>,
        summary: &'a Summary,
    ) -> Json<'a> {
        Json {
            experiment: &self.experiment,
            precision: self.precision,
            platform: self.device.name(),
            mesh: experiment.mesh.mesh,
            seed: experiment.train.seed,
            batch: experiment.train.batch,
            seconds: began.elapsed().as_secs_f64(),
            run,
            summary,
        }
    }

    /// The given device; `cpu` gets as many devices as the mesh has.
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
}

/// The state after the first signal to stop.
struct Stop {
    asked: AtomicBool,
    /// The signal; 0 before.
    signal: AtomicI32,
}

impl Stop {
    /// The outcome of a run, or why it ended; for a run that was asked to stop, the signal.
    fn judge(&self, result: Result<Summary, TrainError>, n_hosts: usize) -> anyhow::Result<Summary> {
        let error = match result {
            Err(error) if matches!(error.kind(), TrainErrorKind::Interrupted { .. }) => error,
            result => return Ok(result?),
        };
        match self.signal.load(Ordering::Relaxed) {
            // Another host of the slice was asked to stop: a preempted slice may notify one host before the others.
            0 if n_hosts > 1 => {
                let text = format!("another host of the slice was asked to stop: {error}");
                Err(signals::Stopped { signal: SIGTERM, text }.into())
            }
            0 => Err(error.into()),
            signal => Err(signals::Stopped { signal, text: error.to_string() }.into()),
        }
    }
}

/// Passes the first signal to stop on to the training loop; the second ends the process.
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
