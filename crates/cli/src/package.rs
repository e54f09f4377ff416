//! `bf16scope package`: writes a folder that predicts without its experiment, compiled ahead of time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::child::client_of_all;
use super::excess::Switch;
use super::trained::{TrainedArgs, TrainedExperiment, WhichArgs, by_averages, seen_from_elsewhere};
use super::tune::TuneArg;
use super::whole::whole;
use super::{Context, Status, progress};
use crate::report::grouped;
use bf16scope_files as files;
use bf16scope_model::document;
use bf16scope_pjrt::{Client, Compiled, Platform, Plugin, PluginSpec, Purpose, Setup, Source, Topology, locate};
use bf16scope_tpu::{Target, no_topology};
use bf16scope_train::MAX_REPLICAS;
use bf16scope_train::experiment::Experiment;
use bf16scope_train::package::{self, Built, Unwritten};

const EXAMPLES: &str = "\
Examples:
  bf16scope package examples/digits.yaml -o digits-package
          the checkpoint that `bf16scope train examples/digits.yaml` left, compiled for this CPU
  bf16scope run digits-package --inputs images.npz --outputs predictions.npz
          predict with the package: neither the experiment nor the checkpoint is needed
  bf16scope package examples/digits.yaml --target tpu-v3:4x4 --devices 32 --batch 64 -o digits-v3
          compiled here for a slice: each of its 32 cores predicts 64 examples at a time

The folder has program.hlo.pb (an HloModuleProto), variables.npz, executable.bin (the compiled program; the same version of
the compiler loads it, another one compiles program.hlo.pb again, and says so) and package.json: names, dtypes and dims of
inputs and outputs, and a SHA-256 of each file. An executable is machine code: run only packages that you trust.";

/// Arguments of `package`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The experiment: a YAML file with `model`, or the folder of a run
    #[arg(value_name = "EXPERIMENT|RUN")]
    experiment: PathBuf,
    /// The folder to write; it must not be there, or be empty
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    #[command(flatten)]
    which: WhichArgs,
    /// Examples that each device predicts at a time, instead of the file's batch
    #[arg(long, value_name = "N", value_parser = whole(1..=i32::MAX as u32), allow_negative_numbers = true)]
    batch: Option<u32>,
    /// The target to compile for: cpu, or tpu-v2, tpu-v3, … with a grid of chips if not one board: tpu-v3:4x4
    #[arg(long, default_value = "cpu")]
    target: Target,
    /// Devices that run it at once, each on its own batch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1..=MAX_REPLICAS), allow_negative_numbers = true)]
    devices: u32,
    #[command(flatten)]
    trained: TrainedArgs,
    #[command(flatten)]
    tune: TuneArg,
    /// Whether a TPU's compiler may leave out roundings to bf16 between wider operations, here and where it runs [default: off,
    /// as in `compile` for a model]
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    excess_precision: Option<Switch>,
    /// Print the manifest as one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    fn allows_excess_precision(&self) -> bool {
        self.excess_precision == Some(Switch::On)
    }

    /// The purpose for which it loads a plugin.
    pub(super) fn purpose(&self) -> Purpose {
        if self.target == Target::Cpu { Purpose::Run } else { Purpose::Compile }
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    // Checked before the work, not after it.
    package::check_folder(&args.output)?;
    ensure!(
        args.target != Target::Cpu || !args.allows_excess_precision(),
        "--excess-precision is on, and --target is cpu, on which every rounding is performed\nhelp: leave it out, or name a \
         TPU as --target"
    );
    let TrainedExperiment { experiment, file, path: experiment_path, precision, checkpoint: path } =
        args.which.read(&args.experiment)?;
    let task = experiment.task();
    let checkpoint = args.trained.read(&path, &*task)?;
    let tuning = args.tune.tuning(&experiment, &args.target);
    let batch = args.batch.unwrap_or(experiment.train.batch);
    let unwritten = Unwritten::new(&*task, precision, batch, &tuning, &path, &checkpoint)?;
    let unwritten = with_experiment(unwritten, &experiment, &file, &experiment_path)
        .map_err(|error| seen_from_elsewhere(error, &experiment_path))?;
    let spinner =
        progress::spinner(format!("compiling {} for {}", args.experiment.display(), args.target), context.quiet);
    let built = compile(args, &unwritten, context);
    spinner.finish_and_clear();
    let (executable, compiler) = built?;
    let built = executable.as_deref().map(|bytes| (bytes, Built::here(&args.target.to_string(), compiler.clone())));
    if built.is_none() {
        tracing::warn!(
            "{compiler} writes no executables: the package has the program alone, which is compiled when it runs"
        );
    }
    let manifest = unwritten.write(&args.output, args.devices as usize, args.allows_excess_precision(), built)?;
    if args.json {
        context.print_json(&json!(manifest))?;
        return Ok(Status::Ok);
    }
    let shown = args.output.display();
    let examples = if batch == 1 { "1 example".to_string() } else { format!("{batch} examples") };
    let devices = if args.devices == 1 { String::new() } else { format!(" on each of {} devices", args.devices) };
    let mut text = format!(
        "{shown}: {} after {} steps{}, in {}, {examples} at a time{devices}, for {}\n",
        args.experiment.display(),
        grouped(checkpoint.position.step as i64),
        by_averages(&checkpoint),
        precision,
        args.target,
    );
    for (what, signatures) in [("in", &manifest.inputs), ("out", &manifest.outputs)] {
        for signature in signatures {
            let dims: Vec<String> = signature.dims.iter().map(i64::to_string).collect();
            text += &format!("  {what}  {} {}[{}]\n", signature.name, signature.dtype, dims.join(","));
        }
    }
    let device = match (&args.target, args.devices) {
        (Target::Cpu, 1) => String::new(),
        (Target::Cpu, n) => format!(" --device cpu:{n}"),
        _ => " --device tpu".to_string(),
    };
    text += &format!("run it: `bf16scope run {shown}{device} --inputs in.npz --outputs out.npz`\n");
    context.print(&text)?;
    Ok(Status::Ok)
}

/// Adds to the package its experiment, which defines how it accepts users' files, and the tokenizer that it names.
fn with_experiment(
    unwritten: Unwritten,
    experiment: &Experiment,
    file: &Path,
    path: &Path,
) -> anyhow::Result<Unwritten> {
    if experiment.data.is_none() {
        return Ok(unwritten);
    }
    let text = files::read_text(file, document::MAX_BYTES as u64)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let tokenizer = match experiment.tokenizer_file(path) {
        None => None,
        Some(tokenizer) => {
            let bytes = files::read(&tokenizer, MAX_TOKENIZER);
            let bytes = bytes.with_context(|| format!("cannot read {}", tokenizer.display()))?;
            let name = tokenizer.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Some((name, bytes))
        }
    };
    Ok(match &tokenizer {
        // In the package it is beside the experiment.
        Some((name, _)) => {
            let text = with_tokenizer(&text, experiment, name);
            unwritten.with_experiment(text, tokenizer)
        }
        None => unwritten.with_experiment(text, None),
    })
}

/// The experiment's text with a new name for the tokenizer's file.
fn with_tokenizer(text: &str, experiment: &Experiment, name: &str) -> String {
    let tokens = experiment.data.as_ref().and_then(|data| data.tokens.as_ref());
    tokens.map_or(text.to_string(), |tokens| text.replace(&tokens.tokenizer, name))
}

/// The largest size of a tokenizer's file.
const MAX_TOKENIZER: u64 = 256 << 20;

/// Identifies the compiler of an executable: its pinned version, or its own description.
pub(super) fn compiler_of(platform: &Platform, client: &Client, setup: &Setup) -> anyhow::Result<String> {
    let version = client.platform_version()?;
    let Some((spec, artifact)) = platform.spec().and_then(|spec| Some((spec, spec.artifact?))) else {
        return Ok(version);
    };
    let located = locate(spec, setup)?;
    Ok(match located.source {
        Source::Cache | Source::Installed if *platform != Platform::tpu() => {
            format!("{} {}", artifact.package, artifact.version)
        }
        // libtpu reports its build; other plugins are identified by their file.
        _ if *platform == Platform::tpu() => version,
        _ => format!("{} ({version})", located.path.display()),
    })
}

/// The executable from the target's compiler, and the compiler's version.
fn compile(args: &Args, unwritten: &Unwritten, context: &Context) -> anyhow::Result<(Option<Vec<u8>>, String)> {
    let n_devices = args.devices as usize;
    let mut options = package::options(n_devices, args.allows_excess_precision());
    let serialized = |compiled: &Compiled| Ok::<_, anyhow::Error>(package::serialized(compiled)?);
    if let Some(name) = args.target.topology() {
        let plugin = Plugin::for_spec(PluginSpec::tpu(), &context.setup(), Purpose::Compile)?;
        let topology =
            Topology::new(plugin, &name, &BTreeMap::new()).map_err(|error| no_topology(&args.target, error))?;
        let devices = topology.devices();
        ensure!(
            devices.len() >= n_devices,
            "--devices is {n_devices}, and {} has {} cores\nhelp: name a larger grid of chips, or fewer devices",
            args.target,
            devices.len()
        );
        if n_devices > 1 {
            options.device_ids = devices.iter().take(n_devices).map(|device| device.id).collect();
        }
        let compiled = topology.compile(unwritten.bytes(), &options);
        let compiled = compiled.with_context(|| format!("it cannot be compiled for {}", args.target))?;
        return Ok((serialized(&compiled)?, topology.platform_version()?));
    }
    let platform = match n_devices {
        1 => Platform::cpu(),
        n => Platform::cpu_devices(n as u32)?,
    };
    let client = client_of_all(&platform, &context.setup())?;
    let executable = client.compile(unwritten.bytes(), &options).context("it cannot be compiled")?;
    Ok((serialized(executable.compiled())?, compiler_of(&platform, &client, &context.setup())?))
}
