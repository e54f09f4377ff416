//! Reads experiments: a YAML file that describes a model, its data and its training.
//!
//! ```yaml
//! model: {kind: mlp, input: [8, 8, 1], n_classes: 10}
//! data: {csv: data/digits.csv.gz, scale: 0.0625, n_test: 360}
//! train:
//!   batch: 32
//!   epochs: 10
//!   optimizer: {kind: momentum, momentum: 0.9, nesterov: true}
//!   learning_rate: {kind: constant, value: 0.1}
//! ```
//!
//! [`DataConfig`] lists the keys of `data`. Paths in the file are relative to the file. The file has no precision: it
//! is a switch of the run.

pub mod data;
mod elsewhere;
mod groups;
mod lines;
mod mesh;
mod schedule;
mod train;
mod watch;

pub use data::{
    ClassNames, DataConfig, DataSource, Examples, NameList, PartSize, Patterns, Scale, Stratify, Tolerance,
};
pub use groups::OptimizerGroup;
pub use mesh::MeshConfig;
pub use schedule::{Schedule, Timed};
pub use train::TrainConfig;
pub use watch::WatchConfig;

use crate::InitializeFrom;
use crate::Objective;
use crate::Spec;
use crate::checkpoint::Checkpoint;
use crate::predicted_from;
use crate::weight_names::families;
use crate::{TrainError, TrainErrorKind};
use bf16scope_data::Source;
use bf16scope_data::table::Learnt;
use bf16scope_files as files;
use bf16scope_model::document::{self, Document, NodeError, Origin, Step};
use bf16scope_model::graph::Precision;
use bf16scope_model::models::Model;
use bf16scope_model::task::{Feature, Task};
use bf16scope_passes::tuning::{Tune, Tuning};
use bf16scope_pjrt::Setup;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An experiment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The network.
    pub model: Model,
    /// The training and test examples; compiling needs none.
    pub data: Option<DataConfig>,
    /// The training options.
    #[serde(default)]
    pub train: TrainConfig,
    /// The devices that share a step's work. Default one.
    #[serde(default)]
    pub mesh: MeshConfig,
    /// The optimisations for the target. Default `auto`.
    #[serde(default)]
    pub tune: Tune,
    /// The place of the document.
    #[serde(skip)]
    pub origin: Origin,
}

impl Experiment {
    /// Reads an experiment.
    ///
    /// # Errors
    /// A file that cannot be read, or is invalid: then with the line. A schedule that does not fit the number of
    /// examples is only reported by [`Experiment::check_schedule`], once they are counted.
    pub fn read(path: impl AsRef<Path>) -> Result<Experiment, TrainError> {
        let path = path.as_ref();
        let failed = |cause: std::io::Error| {
            let help = match cause.kind() {
                std::io::ErrorKind::NotFound => {
                    "name an experiment's YAML file, or the folder of a run; `bf16scope init` writes a file to begin with"
                }
                _ => "",
            };
            let error = TrainError::of_file(TrainErrorKind::Experiment, path, "cannot read the experiment");
            error.with_help(help).because(cause)
        };
        let text = files::read_text(path, document::MAX_BYTES as u64).map_err(failed)?;
        let mut included = |path: &Path| files::read_text(path, document::MAX_BYTES as u64);
        let document = Document::parse_with(&path.display().to_string(), &text, &mut included)?;
        let mut experiment: Experiment = document.read().map_err(elsewhere::with_its_block)?;
        if experiment.train.label_smoothing > 0.0 && !experiment.model.is_smoothed() {
            let way = vec![Step::Key("train".to_string()), Step::KeyItself("label_smoothing".to_string())];
            let error = NodeError::new(way, "no loss of `model` has label smoothing");
            return Err(document.error(error.with_help("leave it out: it is for cross entropies")).into());
        }
        if let Some(error) = experiment.train.misplaced() {
            return Err(document.error(error.within(Step::Key("train".to_string()))).into());
        }
        experiment.origin = Origin::from(document);
        if let Some(data) = &mut experiment.data {
            data.origin = experiment.origin.clone();
        }
        experiment.train.n_train = experiment.data.as_ref().and_then(|data| data.n_train);
        if experiment.train.n_train.is_some() {
            experiment.check_schedule(path)?;
        }
        Ok(experiment)
    }

    /// Checks that the schedule of an experiment that was read from `path` fits the number of examples. It passes if
    /// the number is unknown and all lengths are in steps.
    ///
    /// # Errors
    /// With the line: lengths in epochs when the steps of an epoch are unknown, or that are shorter than a step.
    pub fn check_schedule(&self, path: &Path) -> Result<(), TrainError> {
        match self.train.schedule_problem() {
            Some((way, error)) => Err(self.origin.read_error(path, &way, error).into()),
            None => Ok(()),
        }
    }

    /// A probable mistake in the schedule of an experiment that was read from `path`, with the line: a warm-up longer
    /// than the training, or a change of the rate after its end, as where a long recipe is tried for one epoch; a rate
    /// that is still high when training ends, or is 0 long before. `None` if the number of examples is unknown.
    pub fn schedule_remark(&self, path: &Path) -> Option<TrainError> {
        let (way, remark) = self.train.schedule_remark()?;
        Some(self.origin.read_error(path, &way, remark).into())
    }

    /// Counts the training examples if lengths are in epochs and the number is unknown; the experiment was read from
    /// `path`.
    ///
    /// # Errors
    /// Data that are missing or cannot be read.
    pub fn count_examples(&mut self, path: &Path, setup: &Setup) -> Result<(), TrainError> {
        if self.train.n_train.is_none() && self.train.is_by_epoch() && self.data.is_some() {
            self.train.n_train = Some(self.read_data(path, setup)?.training.n_examples());
        }
        if self.train.is_by_epoch() { self.check_schedule(path) } else { Ok(()) }
    }

    /// The task to train.
    pub fn task(&self) -> Arc<dyn Task> {
        self.model.task_written_at(self.origin.at("model"), self.train.label_smoothing)
    }

    /// Reads the training and test data of the experiment that was read from `path`. What is derived from the files
    /// once is kept in the cache of `setup`.
    ///
    /// # Errors
    /// No data, or an invalid file, with its place.
    pub fn read_data(&self, path: impl AsRef<Path>, setup: &Setup) -> Result<Examples, TrainError> {
        let path = path.as_ref();
        match &self.data_in(setup) {
            Some(data) => data.read(path, &of_files(&*self.task())).map_err(|error| lines::with_its_line(self, error)),
            None => {
                let text = "the experiment has no `data`, which training and evaluation need";
                let help = "add a `data:` block with `csv` and `n_test`, as in examples/digits.yaml";
                Err(TrainError::of_file(TrainErrorKind::Experiment, path, text).with_help(help))
            }
        }
    }

    /// Reads other examples for the experiment that was read from `path`, by the rules of its data (see
    /// [`DataConfig::read_other`]), without labels.
    ///
    /// # Errors
    /// An invalid file, with its place.
    pub fn read_other(&self, path: &Path, file: &Path, setup: &Setup) -> Result<Box<dyn Source>, TrainError> {
        let features = predicted_from(&*self.task());
        self.data_in(setup)
            .unwrap_or_else(|| DataConfig { cache: setup.cache(), ..DataConfig::default() })
            .read_other(path, file, &features)
    }

    /// As [`Experiment::read_other`], with labels.
    ///
    /// # Errors
    /// As [`Experiment::read_other`].
    pub fn read_other_labelled(&self, path: &Path, file: &Path, setup: &Setup) -> Result<Box<dyn Source>, TrainError> {
        self.data_in(setup).unwrap_or_else(|| DataConfig { cache: setup.cache(), ..DataConfig::default() }).read_other(
            path,
            file,
            &self.task().features(),
        )
    }

    /// The same experiment, with the statistics and vocabularies that the run of this checkpoint learnt.
    #[must_use]
    pub fn as_learnt(mut self, checkpoint: &Checkpoint) -> Experiment {
        if let (Some(data), Some(identity)) = (&mut self.data, &checkpoint.data) {
            data.learnt.clone_from(&identity.learnt);
        }
        self
    }

    /// The same experiment, with these statistics and vocabularies.
    #[must_use]
    pub fn with_learnt(mut self, learnt: Option<&Learnt>) -> Experiment {
        if let (Some(data), Some(learnt)) = (&mut self.data, learnt) {
            data.learnt = Some(learnt.clone());
        }
        self
    }

    /// The tokenizer file that `data` of the experiment that was read from `path` names.
    pub fn tokenizer_file(&self, path: &Path) -> Option<PathBuf> {
        let tokens = self.data.as_ref()?.tokens.as_ref()?;
        let folder = path.parent().unwrap_or(Path::new(""));
        (tokens.tokenizer != "bytes").then(|| folder.join(&tokens.tokenizer))
    }

    /// Its data, with the cache of `setup`.
    fn data_in(&self, setup: &Setup) -> Option<DataConfig> {
        self.data.clone().map(|data| DataConfig { cache: setup.cache(), ..data })
    }

    /// The same experiment with any number of broken examples on disk skipped, for callers that count them.
    pub fn leaving_out_broken(mut self) -> Experiment {
        if let Some(data) = self.data.as_mut().filter(|data| data.is_on_disk()) {
            data.on_error = Tolerance::Skip(u64::MAX);
        }
        self
    }

    /// The objective of the training program in this precision, for a target whose tuning is `auto`.
    ///
    /// # Errors
    /// As [`TrainConfig::update`].
    pub fn objective(&self, precision: Precision, auto: &Tuning) -> Result<Objective, TrainError> {
        let MeshConfig { mesh, split } = self.mesh.clone();
        Ok(Objective { tuning: self.tune.tuning(auto), mesh, split, ..self.train.objective(precision)? })
    }

    /// The spec that a session trains on a device whose tuning is `auto`; on a CPU that is [`Tuning::none`].
    ///
    /// # Errors
    /// As [`TrainConfig::update`].
    pub fn spec(&self, precision: Precision, auto: &Tuning) -> Result<Spec, TrainError> {
        Ok(Spec {
            task: self.task(),
            precision,
            variables: self.train.variables,
            batch: self.train.batch,
            seed: self.train.seed,
            shift: self.train.shift,
            objective: self.objective(precision, auto)?,
            steps_per_call: self.train.steps_per_call,
        })
    }

    /// The weights that a fresh run of the experiment, which was read from `path`, starts from; `file` replaces the
    /// experiment's.
    ///
    /// # Errors
    /// `except` or `rules` without weights to start from, with the line.
    pub fn initialize_from(&self, path: &Path, file: Option<&Path>) -> Result<Option<InitializeFrom>, TrainError> {
        let TrainConfig { initialize_from, except, rules, .. } = &self.train;
        let folder = path.parent().unwrap_or(Path::new(""));
        let beside = |file: &PathBuf| folder.join(file);
        let Some(file) = file.map(Path::to_path_buf).or_else(|| initialize_from.as_ref().map(beside)) else {
            let key = if !except.is_empty() { "except" } else { "rules" };
            if except.is_empty() && rules.is_none() {
                return Ok(None);
            }
            let way = vec![Step::Key("train".to_string()), Step::KeyItself(key.to_string())];
            let error =
                NodeError::new(way, format!("`{key}` is about the weights that a run starts from, and there are none"));
            let help = "add `initialize_from: FILE` beside it, or --initialize-from, or leave it out";
            return Err(self.origin.error(path, error.with_help(help)).into());
        };
        let is_family = |rules: &PathBuf| families().iter().any(|family| Path::new(family) == rules);
        let rules = rules.as_ref().map(|rules| if is_family(rules) { rules.clone() } else { beside(rules) });
        Ok(Some(InitializeFrom { file, except: except.clone(), rules }))
    }

    /// An error in the experiment that was read from `path`, with the line that the error's steps lead to.
    pub fn error(&self, path: &Path, error: NodeError) -> TrainError {
        self.origin.error(path, error).into()
    }

    /// The error with the line of the key that it is about, if it is about a key of the experiment.
    #[must_use]
    pub fn with_its_line(&self, error: TrainError) -> TrainError {
        lines::with_its_line(self, error)
    }
}

/// The features that files hold for a task: all but those that the host draws.
fn of_files(task: &dyn Task) -> Vec<Feature> {
    task.features().into_iter().filter(|feature| feature.random.is_none()).collect()
}

/// The default checkpoint of the experiment at `path`: `checkpoints/NAME-PRECISION.safetensors` in the current
/// directory.
pub fn default_checkpoint(path: &Path, precision: Precision) -> PathBuf {
    // The name byte by byte: two names that are displayed alike (`\xff` and `\xfe`) are two experiments.
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{precision}.safetensors"));
    Path::new("checkpoints").join(name)
}

#[cfg(test)]
mod tests;
