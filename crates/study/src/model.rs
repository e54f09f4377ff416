//! The program of a task to compile: which one, its batch, precision and devices. A model in YAML is a task too.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::StudyError;
use super::mesh::{MeshChoice, check_slice};
use super::shell::word;
use super::tune::TuneChoice;
use bf16scope_hlo::Module;
use bf16scope_hlo::verify::verify;
use bf16scope_model::document::{NodeError, Step};
use bf16scope_model::graph::{Numbers, Precision, Program, Storage};
use bf16scope_model::optim::LossScale;
use bf16scope_model::task::{Feature, FeatureDType, Task};
use bf16scope_passes::partition::Rule;
use bf16scope_passes::tuning::{Tune, Tuning};
use bf16scope_pjrt::Setup;
use bf16scope_tpu::Target;
use bf16scope_train::experiment::{Experiment, MeshConfig};
use bf16scope_train::{Mesh, Objective, ProgramError, over_model_axis, program};

/// A program of a model.
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

/// The task of a subject: borrowed from the caller, or owned by a model's file.
#[derive(Clone, Debug)]
pub enum SubjectTask<'t> {
    /// The caller's.
    Borrowed(&'t dyn Task),
    /// A model's.
    Shared(Arc<dyn Task>),
}

impl SubjectTask<'_> {
    /// The task.
    pub fn get(&self) -> &dyn Task {
        match self {
            SubjectTask::Borrowed(task) => *task,
            SubjectTask::Shared(task) => &**task,
        }
    }
}

/// A task and how it is trained: the subject of the questions. A model's file is read into the same type.
///
/// ```
/// use bf16scope_model::graph::Storage;
/// use bf16scope_model::models::{Model, mlp};
/// use bf16scope_study::ModelSubject;
///
/// let task = Model::Mlp(mlp::Config::new([16], 4)).task(0.0); // any `Task`
/// let mut subject = ModelSubject::new(&*task);
/// subject.batch = 256;
/// subject.variables = Storage::Bf16Stochastic;
/// assert_eq!((subject.name.as_str(), subject.unit()), (task.name(), "examples"));
/// ```
#[derive(Clone, Debug)]
pub struct ModelSubject<'t> {
    /// Its name in answers and errors: its task's name, or its file.
    pub name: String,
    /// The task.
    pub task: SubjectTask<'t>,
    /// The program.
    pub program: ModelProgram,
    /// Examples in a batch.
    pub batch: u32,
    /// The storage of variables.
    pub variables: Storage,
    /// How the loss is minimised, and on which devices; `tuning` and `loss_scale` in it are replaced by the fields
    /// below.
    pub objective: Objective,
    /// The loss scale; `None`: the precision's default ([`LossScale::usual`]).
    pub loss_scale: Option<LossScale>,
    /// The tuning of its programs.
    pub tune: Tune,
    /// Overrides the tuning.
    pub tune_choice: TuneChoice,
    /// Overrides the devices of a training step in `objective`.
    pub mesh: MeshChoice,
    /// How the devices of a replica are partitioned; empty: as in `objective`.
    pub split: Vec<Rule>,
    /// The parsed file, for errors that show its lines; `None` for the caller's own task.
    pub experiment: Option<Arc<Experiment>>,
}

/// Reads a model's file, and counts its examples if it has data; `setup` gives the cache for derived data.
///
/// # Errors
/// The file is not a model.
pub fn read(path: &Path, setup: &Setup) -> Result<Experiment, StudyError> {
    let mut experiment = Experiment::read(path)?;
    experiment.count_examples(path, setup)?;
    Ok(experiment)
}

impl<'t> ModelSubject<'t> {
    /// The training step of a task, with defaults: a batch of 32 examples, one device, variables in f32, the default
    /// [`Objective`].
    pub fn new(task: &'t dyn Task) -> ModelSubject<'t> {
        ModelSubject::with(SubjectTask::Borrowed(task))
    }

    /// Like [`ModelSubject::new`], for a task that the subject owns.
    pub fn shared(task: Arc<dyn Task>) -> ModelSubject<'static> {
        ModelSubject::with(SubjectTask::Shared(task))
    }

    fn with(task: SubjectTask<'t>) -> ModelSubject<'t> {
        let objective = Objective::default();
        ModelSubject {
            name: task.get().name().to_string(),
            task,
            program: ModelProgram::default(),
            batch: 32,
            variables: Storage::F32,
            objective,
            loss_scale: None,
            tune: Tune::default(),
            tune_choice: TuneChoice::default(),
            mesh: MeshChoice::default(),
            split: Vec::new(),
            experiment: None,
        }
    }

    /// The training step of a model, with the settings of its file.
    ///
    /// # Errors
    /// The file is not a model.
    pub fn read(path: &Path, setup: &Setup) -> Result<ModelSubject<'static>, StudyError> {
        ModelSubject::of_experiment(path, read(path, setup)?)
    }

    /// The training step of an experiment that was read from `path`.
    ///
    /// # Errors
    /// Lengths in epochs without a known number of steps per epoch.
    pub fn of_experiment(path: &Path, experiment: Experiment) -> Result<ModelSubject<'static>, StudyError> {
        let MeshConfig { mesh, split } = experiment.mesh.clone();
        // Only the loss scale depends on the precision.
        let objective = Objective { mesh, split, ..experiment.train.objective(Precision::F32)? };
        let subject = ModelSubject {
            name: path.display().to_string(),
            batch: experiment.train.batch,
            variables: experiment.train.variables,
            objective,
            loss_scale: experiment.train.loss_scale,
            tune: experiment.tune.clone(),
            ..ModelSubject::shared(experiment.task())
        };
        Ok(ModelSubject { experiment: Some(Arc::new(experiment)), ..subject })
    }

    /// The tuning of programs for a target.
    pub fn tuning(&self, target: &Target) -> Tuning {
        self.tune_choice.tuning(&self.tune, target)
    }

    /// Builds and verifies the program, for a target.
    ///
    /// # Errors
    /// The program cannot be built, or not for these devices.
    pub fn build(&self, precision: Precision, target: &Target) -> Result<Program, StudyError> {
        let of_task = self.objective.mesh;
        let (mesh, n_partitions) = (self.mesh.over(of_task)?, self.mesh.n_partitions(of_task));
        match self.program {
            ModelProgram::Training => check_slice(mesh, n_partitions, target)?,
            ModelProgram::Inference if self.mesh != MeshChoice::OfFile => return Err(StudyError::mesh_of_inference()),
            ModelProgram::Inference => {}
        }
        let mut program = self
            .program_with(precision, self.batch, mesh, self.tuning(target))
            .map_err(|error| self.cannot_be_built(error))?;
        program.module = self.over_partitions(program.module, n_partitions, mesh)?;
        Ok(program)
    }

    /// Builds and verifies the program of a batch, over a mesh, with this tuning; a training step is one device's of
    /// the mesh, before a replica is partitioned.
    ///
    /// # Errors
    /// The program cannot be built.
    pub fn program_with(
        &self,
        precision: Precision,
        batch: u32,
        mesh: Mesh,
        tuning: Tuning,
    ) -> Result<Program, StudyError> {
        let numbers = Numbers { precision, variables: self.variables };
        let (task, batch) = (self.task.get(), i64::from(batch));
        let program = match self.program {
            ModelProgram::Training => {
                let loss_scale = self.loss_scale.unwrap_or(LossScale::usual(precision));
                let split = Vec::new();
                let objective = Objective { loss_scale, mesh, split, tuning, ..self.objective.clone() };
                program::training(task, numbers, batch, &objective)?
            }
            ModelProgram::Inference => program::prediction(task, numbers, batch, &tuning)?,
        };
        let program = program.program;
        let _span = tracing::info_span!("verify").entered();
        verify(&program.module).map_err(StudyError::emitted)?;
        Ok(program)
    }

    /// Adds to a program's error the responsible line of the model's file.
    fn cannot_be_built(&self, error: StudyError) -> StudyError {
        let source = match &self.experiment {
            Some(experiment) => match error.passed::<ProgramError>() {
                Ok(error) => experiment.with_its_line(error.into()).into(),
                Err(other) => other,
            },
            None => error,
        };
        StudyError::build(&self.name, source)
    }

    fn over_partitions(&self, module: Module, n_partitions: u32, mesh: Mesh) -> Result<Module, StudyError> {
        if n_partitions == 1 {
            return match self.split.first() {
                Some(Rule { pattern, .. }) => Err(StudyError::no_model_axis(pattern)),
                None => Ok(module),
            };
        }
        let rules = if self.split.is_empty() { &self.objective.split } else { &self.split };
        let (module, report) =
            over_model_axis(&module, n_partitions, rules, mesh.sum).map_err(StudyError::partition)?;
        for (parameter, axis) in report.split {
            tracing::debug!("{parameter} is split along axis {axis}");
        }
        Ok(module)
    }

    /// The unit of a batch: `images` or `examples`.
    pub fn unit(&self) -> &'static str {
        unit(self.task.get())
    }
}

/// The unit of a task's batch.
pub fn unit(task: &dyn Task) -> &'static str {
    let is_image = |feature: &Feature| feature.dtype == FeatureDType::Compute && feature.dims.len() == 3;
    if task.features().iter().any(is_image) { "images" } else { "examples" }
}

/// Refuses a model axis, with the line of its file, in a question that places single-device replicas.
///
/// # Errors
/// The subject has a model axis.
pub fn check_no_model_axis(command: &str, subject: &ModelSubject<'_>) -> Result<(), StudyError> {
    let (path, batch) = (Path::new(&subject.name), subject.batch);
    let model = subject.objective.mesh.model.get();
    if model == 1 {
        return Ok(());
    }
    let problem =
        format!("{command} lays a batch over replicas of one device each, and here each replica is split over {model}");
    let Some(experiment) = &subject.experiment else { return Err(StudyError::model_axis(&subject.name, &problem)) };
    let key = |name: &str| Step::Key(name.to_string());
    let error = NodeError::new(vec![key("mesh"), key("model")], problem);
    let data = (32 / model).max(1);
    let help = format!(
        "leave `model` and `split` out for {command}; what a step with them takes on a slice of 32 cores says `bf16scope compile \
         {} --target tpu-v3:4x4 --mesh data={data},model={model} --batch {}`",
        word(path),
        // A batch that its replicas share equally.
        batch.next_multiple_of(data)
    );
    Err(experiment.error(path, error.with_help(help)).into())
}
