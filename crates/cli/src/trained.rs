//! Arguments of commands that run a trained network: its checkpoint, precision and device.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::as_tpu::AsArg;
use super::child::client;
use super::tune::{TuneArg, target_of};
use super::{Context, checkpoints};
use bf16scope_model::graph::Precision;
use bf16scope_model::task::Task;
use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::{Client, Platform};
use bf16scope_train::Resumption;
use bf16scope_train::checkpoint::{Checkpoint, best_of};
use bf16scope_train::experiment::Experiment;
use bf16scope_train::run_folder::{ABOUT, About, EXPERIMENT, RunFolder};

/// Arguments for how `eval` and `predict` run a trained network.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) which: WhichArgs,
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
    /// Checks everything that can be checked before a file is read.
    ///
    /// # Errors
    /// Several devices; `--as` on a device other than a CPU.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.device.one_device()?;
        self.as_tpu.check(&self.device)
    }

    /// The device's client.
    pub(super) fn client(&self, context: &Context) -> anyhow::Result<Client> {
        Ok(self.as_tpu.client(client(&self.device, &context.setup())?))
    }

    /// The tuning for the device's target, from the experiment and the arguments.
    pub(super) fn tuning(&self, experiment: &Experiment) -> Tuning {
        self.tune.tuning(experiment, &target_of(&self.device))
    }
}

/// Arguments that choose a checkpoint of an experiment or a run.
#[derive(Debug, clap::Args)]
pub(super) struct WhichArgs {
    /// Precision of the network: bf16, f32 or f16 [default: bf16; for a run's folder the run's]
    #[arg(long, value_name = "PRECISION")]
    precision: Option<Precision>,
    /// The checkpoint [default: the last of the experiment's newest run; for a run's folder the run's last]
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Take the checkpoint of the best epoch, which `keep_best` saved, instead of the last
    #[arg(long, conflicts_with = "checkpoint")]
    best: bool,
}

/// A trained experiment.
pub(super) struct TrainedExperiment {
    pub(super) experiment: Experiment,
    /// The file that it was read from.
    pub(super) file: PathBuf,
    /// The original path of the experiment's file; for a run, the path where it was trained. Paths in the experiment
    /// are relative to its folder.
    pub(super) path: PathBuf,
    pub(super) precision: Precision,
    pub(super) checkpoint: PathBuf,
}

impl WhichArgs {
    /// Reads an experiment's file, or the folder of a run.
    ///
    /// # Errors
    /// A file that is not an experiment; a folder without a run, or with a run that has saved nothing.
    pub(super) fn read(&self, named: &Path) -> anyhow::Result<TrainedExperiment> {
        if !named.is_dir() {
            let precision = self.precision.unwrap_or(Precision::Bf16);
            let last = checkpoints::newest(named, precision);
            let checkpoint = match &self.checkpoint {
                Some(path) => path.clone(),
                None if self.best => best_of(&last),
                None => last,
            };
            let experiment = Experiment::read(named)?;
            let (file, path) = (named.to_path_buf(), named.to_path_buf());
            return Ok(TrainedExperiment { experiment, file, path, precision, checkpoint });
        }
        if !named.join(ABOUT).exists() {
            bail!(
                "{}: a folder without {ABOUT}, expected an experiment's YAML file or the folder of a run\n\
                 help: `bf16scope train EXPERIMENT` names the folder that it records a run in",
                named.display()
            );
        }
        let about = RunFolder::about(named)?;
        let file = named.join(EXPERIMENT);
        let experiment = Experiment::read(&file)?;
        let precision = match self.precision {
            Some(precision) => precision,
            None => {
                about.precision.parse().with_context(|| format!("{}: its precision", named.join(ABOUT).display()))?
            }
        };
        let checkpoint = match &self.checkpoint {
            Some(path) => path.clone(),
            None => checkpoint_of(named, &about, self.best)?,
        };
        Ok(TrainedExperiment { experiment, file, path: PathBuf::from(about.experiment), precision, checkpoint })
    }
}

/// The last checkpoint of a run, or its best.
fn checkpoint_of(run: &Path, about: &About, is_best: bool) -> anyhow::Result<PathBuf> {
    let saved = if is_best { &about.best } else { &about.saved };
    let Some(saved) = saved else {
        let (what, help) = match is_best {
            true => ("no best checkpoint", "write `keep_best: METRIC` under `train`, or leave --best out"),
            false => ("no checkpoint", "name one with --checkpoint"),
        };
        bail!("{}: the run has saved {what}\nhelp: {help}", run.display())
    };
    let place = checkpoints::of_run(run, about, saved)?;
    if place.is_relative() && !place.exists() {
        bail!(
            "{}: no such checkpoint: {} names it{}\nhelp: name the file with --checkpoint, or go to the folder that it was \
             trained in",
            place.display(),
            run.join(ABOUT).display(),
            seen_from_here(&place)
        );
    }
    Ok(place)
}

/// `, seen from FOLDER` for a relative path that is not there.
pub(super) fn seen_from_here(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(folder) if path.is_relative() => format!(", seen from {}", folder.display()),
        _ => String::new(),
    }
}

/// An error about a file that a run's experiment names, with where relative paths begin, if the command seems to run in
/// another folder than the training did: `path`, the experiment's as the run recorded it, is not there.
pub(super) fn seen_from_elsewhere(error: impl Into<anyhow::Error>, path: &Path) -> anyhow::Error {
    let error = error.into();
    if path.is_absolute() || path.exists() {
        return error;
    }
    error.context(format!(
        "{}: the experiment that was trained is not there{}, and relative paths in it begin in its folder\n\
         help: go to the folder that it was trained in",
        path.display(),
        seen_from_here(path)
    ))
}

/// Arguments that choose the variables of a checkpoint for `eval` and `predict`.
#[derive(Debug, clap::Args)]
pub(super) struct TrainedArgs {
    /// Accept a checkpoint of a network that computes something else, if its variables fit
    #[arg(long)]
    other_function: bool,
    /// Take the variables of the last step, even if the checkpoint has averages of them
    #[arg(long)]
    without_averages: bool,
}

impl TrainedArgs {
    /// Reads a checkpoint of the task's function, or of another one if allowed. Warns of permitted changes.
    ///
    /// # Errors
    /// A file that is not a checkpoint; one of another function; one without averages although these were to be
    /// ignored.
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

/// `, by averages` if a checkpoint has them: the end of a line.
pub(super) fn by_averages(checkpoint: &Checkpoint) -> &'static str {
    if checkpoint.has_averages() { ", by averages" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_train::run_folder::Saved;

    #[test]
    fn a_run_that_is_seen_from_another_folder_says_where_its_paths_begin() {
        let run = tempfile::tempdir().unwrap();
        let (shown, here) = (run.path().display(), std::env::current_dir().unwrap());
        let saved = Saved { path: "nowhere/mlp.safetensors".to_string(), step: 1, sha256: None };
        let about = About { saved: Some(saved), ..About::default() };
        assert_eq!(
            checkpoint_of(run.path(), &about, false).unwrap_err().to_string(),
            format!(
                "nowhere/mlp.safetensors: no such checkpoint: {shown}/run.json names it, seen from {}\n\
                 help: name the file with --checkpoint, or go to the folder that it was trained in",
                here.display()
            )
        );
        // In the run's folder if it was moved with that.
        std::fs::write(run.path().join("mlp.safetensors"), "").unwrap();
        assert_eq!(checkpoint_of(run.path(), &about, false).unwrap(), run.path().join("mlp.safetensors"));
        let error = |path: &Path| seen_from_elsewhere(anyhow::anyhow!("rows.csv: cannot open the data file"), path);
        assert_eq!(
            error(Path::new("nowhere/mlp.yaml")).to_string(),
            format!(
                "nowhere/mlp.yaml: the experiment that was trained is not there, seen from {}, and relative paths in it \
                 begin in its folder\nhelp: go to the folder that it was trained in",
                here.display()
            )
        );
        for path in [run.path(), Path::new(".")] {
            assert_eq!(error(path).to_string(), "rows.csv: cannot open the data file");
        }
    }
}
