//! Arguments of commands that run a trained network: its checkpoint, precision and device.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::Context;
use super::as_tpu::AsArg;
use super::child::client;
use super::tune::{TuneArg, target_of};
use bf16scope_model::graph::Precision;
use bf16scope_model::task::Task;
use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::{Client, Platform};
use bf16scope_train::Resumption;
use bf16scope_train::checkpoint::Checkpoint;
use bf16scope_train::experiment::{Experiment, default_checkpoint};

/// How `eval` and `predict` run a trained network.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// What the network computes in: bf16, f32 or f16
    #[arg(long, value_name = "PRECISION", default_value_t = Precision::Bf16)]
    pub(super) precision: Precision,
    /// The checkpoint [default: checkpoints/EXPERIMENT-PRECISION.safetensors]
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    #[command(flatten)]
    pub(super) trained: TrainedArgs,
    /// Where it runs: cpu, tpu, plugin:PATH (any PJRT plugin), or xla-cpu (in builds with the feature xla)
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: Platform,
    #[command(flatten)]
    tune: TuneArg,
    #[command(flatten)]
    as_tpu: AsArg,
}

impl RunArgs {
    /// Checks what can be checked before any file is read.
    ///
    /// # Errors
    /// A device of several; `--as` on a device that is not a CPU.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.device.one_device()?;
        self.as_tpu.check(&self.device)
    }

    /// The path of the checkpoint: the one given, or the experiment's.
    pub(super) fn checkpoint(&self, experiment: &Path) -> PathBuf {
        self.checkpoint.clone().unwrap_or_else(|| default_checkpoint(experiment, self.precision))
    }

    /// The client of the device.
    pub(super) fn client(&self, context: &Context) -> anyhow::Result<Client> {
        Ok(self.as_tpu.client(client(&self.device, &context.setup())?))
    }

    /// Settings of the device's target, as the experiment and the arguments have them.
    pub(super) fn tuning(&self, experiment: &Experiment) -> Tuning {
        self.tune.tuning(experiment, &target_of(&self.device))
    }
}

/// What of a checkpoint `eval` and `predict` take.
#[derive(Debug, clap::Args)]
pub(super) struct TrainedArgs {
    /// Go on although the checkpoint is of a network that computes something else, as long as its variables fit
    #[arg(long)]
    other_function: bool,
    /// Take variables as the last step left them, although the checkpoint has averages of them
    #[arg(long)]
    without_averages: bool,
}

impl TrainedArgs {
    /// Reads a checkpoint that is of the task's function, or of another one where that was asked for. What has changed and
    /// may is a warning.
    ///
    /// # Errors
    /// A file that is no checkpoint; one of another function; one without averages where they were to be left out.
    pub fn read(&self, path: &Path, task: &dyn Task) -> anyhow::Result<Checkpoint> {
        let checkpoint = Checkpoint::read(path)?;
        for change in (Resumption { other_function: self.other_function }).check_task(path, &checkpoint, task)? {
            tracing::warn!("{}: {change}", path.display());
        }
        match (self.without_averages, checkpoint.has_averages()) {
            (false, _) => Ok(checkpoint),
            (true, true) => Ok(checkpoint.without_averages()),
            (true, false) => bail!(
                "{}: the checkpoint has no averages, which --without-averages leaves out\n\
                 help: leave the flag out; `train: {{average: …}}` makes averages",
                path.display()
            ),
        }
    }
}

/// `, by averages`, where a checkpoint has them: the end of a line.
pub(super) fn by_averages(checkpoint: &Checkpoint) -> &'static str {
    if checkpoint.has_averages() { ", by averages" } else { "" }
}
