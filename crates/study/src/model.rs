//! A model from a YAML file as what is compiled: one of its programs, at a batch, in a precision, over devices.

use std::fmt;
use std::path::{Path, PathBuf};

use super::StudyError;
use super::mesh::{MeshChoice, check_slice};
use super::tune::TuneChoice;
use bf16scope_hlo::Module;
use bf16scope_hlo::verify::verify;
use bf16scope_model::graph::{Precision, Program, Storage};
use bf16scope_model::task::{Feature, FeatureDType};
use bf16scope_passes::partition::Rule;
use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::Setup;
use bf16scope_tpu::Target;
use bf16scope_train::experiment::Experiment;
use bf16scope_train::{Mesh, Objective, over_model_axis, program};

/// Which program of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelProgram {
    /// One training step: state and a batch in, new state and loss out.
    #[default]
    Training,
    /// Predictions for a batch.
    Inference,
}

impl fmt::Display for ModelProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelProgram::Training => "training step",
            ModelProgram::Inference => "inference",
        })
    }
}

/// A model, and what is chosen instead of what its file says.
#[derive(Clone, Debug)]
pub struct ModelSubject {
    /// Its file, which errors name.
    pub path: PathBuf,
    /// What the file says.
    pub experiment: Experiment,
    /// Which of its programs.
    pub program: ModelProgram,
    /// Examples in a batch.
    pub batch: Option<u32>,
    /// What variables are stored in.
    pub variables: Option<Storage>,
    /// The devices of a training step.
    pub mesh: MeshChoice,
    /// What the devices of a replica split; empty: as the file says.
    pub split: Vec<Rule>,
    /// How its programs are tuned.
    pub tune: TuneChoice,
}

/// Reads a model's file, and counts its examples where it has data; what is made of them is kept where `setup` says.
///
/// # Errors
/// A file that is no model.
pub fn read(path: &Path, setup: &Setup) -> Result<Experiment, StudyError> {
    let mut experiment = Experiment::read(path)?;
    experiment.count_examples(path, setup)?;
    Ok(experiment)
}

impl ModelSubject {
    /// The training step of a model, as its file says it.
    ///
    /// # Errors
    /// A file that is no model.
    pub fn read(path: &Path, setup: &Setup) -> Result<ModelSubject, StudyError> {
        Ok(ModelSubject {
            path: path.to_path_buf(),
            experiment: read(path, setup)?,
            program: ModelProgram::default(),
            batch: None,
            variables: None,
            mesh: MeshChoice::default(),
            split: Vec::new(),
            tune: TuneChoice::default(),
        })
    }

    /// Examples in a batch.
    pub fn batch(&self) -> u32 {
        self.batch.unwrap_or(self.experiment.train.batch)
    }

    /// What variables are stored in.
    pub fn variables(&self) -> Storage {
        self.variables.unwrap_or(self.experiment.train.variables)
    }

    /// How programs for a target are tuned.
    pub fn tuning(&self, target: &Target) -> Tuning {
        self.tune.tuning(&self.experiment, target)
    }

    /// Builds and verifies the program, for a target.
    ///
    /// # Errors
    /// A program that cannot be built, or not over these devices.
    pub fn build(&self, precision: Precision, target: &Target) -> Result<Program, StudyError> {
        let of_file = self.experiment.mesh.mesh;
        let (mesh, n_partitions) = (self.mesh.over(of_file)?, self.mesh.n_partitions(of_file));
        match self.program {
            ModelProgram::Training => check_slice(mesh, n_partitions, target)?,
            ModelProgram::Inference if self.mesh != MeshChoice::OfFile => return Err(StudyError::MeshOfInference),
            ModelProgram::Inference => {}
        }
        let mut stored = self.experiment.clone();
        stored.train.variables = self.variables();
        let mut program = build(&stored, self.program, precision, self.batch(), mesh, self.tuning(target))
            .map_err(|error| self.cannot_be_built(error))?;
        program.module = self.over_partitions(program.module, n_partitions, mesh)?;
        Ok(program)
    }

    /// A program's error, with the model's line where one is to blame.
    fn cannot_be_built(&self, error: StudyError) -> StudyError {
        let source = match error {
            StudyError::Program(error) => self.experiment.with_its_line(error.into()).into(),
            other => other,
        };
        StudyError::Build { path: self.path.clone(), source: Box::new(source) }
    }

    fn over_partitions(&self, module: Module, n_partitions: u32, mesh: Mesh) -> Result<Module, StudyError> {
        if n_partitions == 1 {
            return match self.split.first() {
                Some(Rule { pattern, .. }) => Err(StudyError::NoModelAxis { pattern: pattern.clone() }),
                None => Ok(module),
            };
        }
        let rules = if self.split.is_empty() { &self.experiment.mesh.split } else { &self.split };
        let (module, report) = over_model_axis(module, n_partitions, rules, mesh.sum).map_err(StudyError::Partition)?;
        for (parameter, axis) in report.split {
            tracing::debug!("{parameter} is split along axis {axis}");
        }
        Ok(module)
    }

    /// What a batch is of: `images` or `examples`.
    pub fn unit(&self) -> &'static str {
        unit(&self.experiment)
    }
}

/// Builds and verifies a program of a model, tuned as said; a training step is that of each device of the mesh.
///
/// # Errors
/// A program that cannot be built.
pub fn build(
    experiment: &Experiment,
    which: ModelProgram,
    precision: Precision,
    batch: u32,
    mesh: Mesh,
    tuning: Tuning,
) -> Result<Program, StudyError> {
    let (task, batch) = (experiment.task(), i64::from(batch));
    let program = match which {
        ModelProgram::Training => {
            let objective = Objective { tuning, mesh, ..experiment.train.objective(precision)? };
            program::training(&*task, experiment.train.numbers(precision), batch, &objective)?
        }
        ModelProgram::Inference => program::prediction(&*task, experiment.train.numbers(precision), batch, &tuning)?,
    };
    let program = program.program;
    let _span = tracing::info_span!("verify").entered();
    verify(&program.module).map_err(StudyError::Emitted)?;
    Ok(program)
}

/// What a batch of a model is of.
pub fn unit(experiment: &Experiment) -> &'static str {
    let is_image = |feature: &Feature| feature.dtype == FeatureDType::Compute && feature.dims.len() == 3;
    if experiment.task().features().iter().any(is_image) { "images" } else { "examples" }
}
