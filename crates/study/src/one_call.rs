//! Questions about a task in one call: [`Fit`], [`Plan`], [`Levers`], [`Compare`], [`Explain`]. Each has defaults that
//! work, is run by `run`, and is a thin layer over the question of the same name.

use std::fmt;
use std::num::NonZeroU32;

use super::ask::{Asking, Event};
use super::compare::{Comparison, compare};
use super::explain::{ExplainQuestion, ExplainSource, Explanations, explain};
use super::fit::{FitAnswer, FitQuestion, FitSource, fit};
use super::levers::{LeversAnswer, LeversQuestion, levers};
use super::plan::{PlanAnswer, PlanQuestion, plan};
use super::{ModelProgram, ModelSubject, Programs, StudyError, TuneChoice, check_no_model_axis};
use bf16scope_model::graph::{Precision, Storage};
use bf16scope_model::task::Task;
use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::Setup;
use bf16scope_tpu::fit::MULTIPLE;
use bf16scope_tpu::{Spec, Target};
use bf16scope_train::{Mesh, Objective};

/// A question about a task under construction: the methods common to all questions.
///
/// The defaults: the training step for 32 examples on one device, with the default [`Objective`] and variables in f32,
/// tuned for its target, in f32 and in bf16, on a TPU v2. The compiler is found through the environment
/// ([`Setup::from_env`]), installed on first use, and its outcomes are cached on disk.
#[must_use = "`run` asks"]
pub struct Ask<'t, Q> {
    subject: ModelSubject<'t>,
    targets: Vec<Target>,
    precisions: Vec<Precision>,
    setup: Option<Setup>,
    asking: Asking,
    on_event: Box<dyn FnMut(&Event<'_>) + 't>,
    /// The first invalid argument.
    problem: Option<StudyError>,
    question: Q,
}

/// The batches of a task that fit a TPU, and the best one.
///
/// ```no_run
/// # use bf16scope_model::graph::Precision;
/// # use bf16scope_study::{Fit, StudyError};
/// # fn f(task: &dyn bf16scope_model::task::Task) -> Result<(), StudyError> {
/// let answer = Fit::new(task).target("tpu-v3").precision(Precision::Bf16).run()?;
/// println!("{answer}"); // `tpu-v3, bf16: batches up to 4096 fit; best is 512: …`
/// # Ok(()) }
/// ```
pub type Fit<'t> = Ask<'t, OfFit>;

/// The slice to rent for a task and a global batch.
pub type Plan<'t> = Ask<'t, OfPlan>;

/// The effect of each option that may save memory or time for a task.
pub type Levers<'t> = Ask<'t, OfLevers>;

/// The compiler's figures for a task's program in several precisions, and which to choose.
pub type Compare<'t> = Ask<'t, OfCompare>;

/// Where the memory and the time of a task's program go, by layer and by your source line.
pub type Explain<'t> = Ask<'t, OfExplain>;

/// The arguments of [`Fit`] beyond the common ones.
#[derive(Clone, Copy, Debug)]
pub struct OfFit {
    max_batch: u32,
    multiple: u32,
}

/// The arguments of [`Plan`].
#[derive(Clone, Debug, Default)]
pub struct OfPlan {
    devices: Option<Vec<NonZeroU32>>,
    n_compiles: Option<u32>,
}

/// The arguments of [`Levers`].
#[derive(Clone, Copy, Debug)]
pub struct OfLevers(());

/// The arguments of [`Compare`].
#[derive(Clone, Copy, Debug)]
pub struct OfCompare(());

/// The arguments of [`Explain`].
#[derive(Clone, Copy, Debug)]
pub struct OfExplain(());

impl<Q: fmt::Debug> fmt::Debug for Ask<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ask { subject, targets, precisions, setup, asking, problem, question, on_event: _ } = self;
        f.debug_struct("Ask")
            .field("question", question)
            .field("subject", subject)
            .field("targets", targets)
            .field("precisions", precisions)
            .field("setup", setup)
            .field("asking", asking)
            .field("problem", problem)
            .finish_non_exhaustive()
    }
}

impl<'t, Q> Ask<'t, Q> {
    fn begin(task: &'t dyn Task, question: Q) -> Ask<'t, Q> {
        Ask {
            subject: ModelSubject::new(task),
            targets: Vec::new(),
            precisions: Vec::new(),
            setup: None,
            asking: Asking::default(),
            on_event: Box::new(|_| {}),
            problem: None,
            question,
        }
    }

    /// Adds a TPU, such as `"tpu-v3"` (one board) or `"tpu-v3:4x4"` (a slice). Default `tpu-v2`; for a plan v2 and v3.
    pub fn target<T>(mut self, target: T) -> Self
    where
        T: TryInto<Target>,
        StudyError: From<T::Error>,
    {
        match target.try_into() {
            Ok(target) => self.targets.push(target),
            Err(error) => self.wrong(error.into()),
        }
        self
    }

    /// Adds a compute precision. Default f32 and bf16; for levers f32, for an explanation bf16.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precisions.push(precision);
        self
    }

    /// Examples in a global batch; a fit starts there. Default 32.
    pub fn batch(mut self, n: u32) -> Self {
        if n == 0 {
            self.wrong(StudyError::zero("a batch of 0 examples"));
        }
        self.subject.batch = n;
        self
    }

    /// How the loss is minimised: optimizer, schedule, clipping, loss scale, micro-batches, devices. A `tuning` other
    /// than [`Tuning::none`] applies on any target.
    pub fn objective(mut self, objective: Objective) -> Self {
        if objective.tuning != Tuning::none() {
            self.subject.tune_choice = TuneChoice::These(Box::new(objective.tuning.clone()));
        }
        self.subject.loss_scale = Some(objective.loss_scale);
        self.subject.objective = objective;
        self
    }

    /// The storage of variables. Default f32.
    pub fn variables(mut self, storage: Storage) -> Self {
        self.subject.variables = storage;
        self
    }

    /// The devices that share a step. Default one. A later [`Ask::objective`] replaces them.
    pub fn mesh(mut self, mesh: Mesh) -> Self {
        self.subject.objective.mesh = mesh;
        self
    }

    /// The tuning of programs. Default: what is beneficial on the target.
    pub fn tune(mut self, choice: TuneChoice) -> Self {
        self.subject.tune_choice = choice;
        self
    }

    /// Where to find the compiler, and where to cache its outcomes. Default: from the environment.
    pub fn setup(mut self, setup: &Setup) -> Self {
        self.setup = Some(setup.clone());
        self
    }

    /// How to call the compiler, including its set-up: in a child process, without the cache, with excess precision.
    pub fn asking(mut self, asking: &Asking) -> Self {
        self.setup = Some(asking.setup.clone());
        self.asking = asking.clone();
        self
    }

    /// Progress callback, called when a compile begins and ends. Default none.
    pub fn on_event(mut self, on_event: impl FnMut(&Event<'_>) + 't) -> Self {
        self.on_event = Box::new(on_event);
        self
    }

    /// Records the first invalid argument.
    fn wrong(&mut self, problem: StudyError) {
        self.problem.get_or_insert(problem);
    }

    /// Fills in the defaults.
    fn with_defaults(mut self, targets: &[&str], precisions: &[Precision]) -> Result<(Ask<'t, Q>, Asking), StudyError> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        if self.targets.is_empty() {
            self.targets = targets.iter().filter_map(|name| Spec::named(name)).map(Target::board).collect();
        }
        if self.precisions.is_empty() {
            self.precisions = precisions.to_vec();
        }
        let asking = Asking { setup: Setup::or_from_env(self.setup.take()), ..self.asking.clone() };
        self.problem = None;
        Ok((self, asking))
    }

    /// The target, for a question about a single one.
    fn one_target(&self, question: &str) -> Result<Target, StudyError> {
        match &self.targets[..] {
            [target] => Ok(target.clone()),
            targets => Err(StudyError::several(question, targets.len(), "targets")),
        }
    }

    /// Its programs in each precision.
    fn programs(&self, target: &Target) -> Result<Programs, StudyError> {
        Programs::of_model(&self.subject, &self.precisions, target)
    }
}

/// The default precisions of most questions.
const BOTH: [Precision; 2] = [Precision::F32, Precision::Bf16];

impl<'t> Fit<'t> {
    /// About a task, with batches up to [`FitQuestion::MAX_BATCH`].
    pub fn new(task: &'t dyn Task) -> Fit<'t> {
        Ask::begin(task, OfFit { max_batch: FitQuestion::MAX_BATCH, multiple: MULTIPLE })
    }

    /// The largest batch to try. Default [`FitQuestion::MAX_BATCH`].
    pub fn max_batch(mut self, n: u32) -> Fit<'t> {
        if n == 0 {
            self.wrong(StudyError::zero("batches of at most 0 examples"));
        }
        self.question.max_batch = n;
        self
    }

    /// Bisects to a multiple of this: a larger one saves compiles. Default [`MULTIPLE`].
    pub fn multiple(mut self, n: u32) -> Fit<'t> {
        self.question.multiple = n.max(1);
        self
    }

    /// The program. Default the training step.
    pub fn program(mut self, program: ModelProgram) -> Fit<'t> {
        self.subject.program = program;
        self
    }

    /// Runs the question: six to ten compiles for each target and precision.
    ///
    /// # Errors
    /// Those of [`fit`].
    pub fn run(self) -> Result<FitAnswer, StudyError> {
        let (ask, asking) = self.with_defaults(&["v2"], &BOTH)?;
        let Ask { subject, targets, precisions, mut on_event, question: OfFit { max_batch, multiple }, .. } = ask;
        check_no_model_axis("fit", &subject)?;
        let mesh = subject.objective.mesh;
        let source = FitSource::Model { subject: Box::new(subject), mesh, precisions };
        fit(&FitQuestion { source, targets, max_batch, multiple }, &asking, &mut *on_event)
    }
}

impl<'t> Plan<'t> {
    /// About a task, on slices of 8 to 2,048 cores, from at most twelve compiles.
    pub fn new(task: &'t dyn Task) -> Plan<'t> {
        Ask::begin(task, OfPlan::default())
    }

    /// Numbers of cores. Default 8, 32, 128, 512 and 2,048.
    pub fn devices(mut self, devices: &[u32]) -> Plan<'t> {
        match devices.iter().map(|&n| NonZeroU32::new(n)).collect::<Option<Vec<NonZeroU32>>>() {
            Some(devices) => self.question.devices = Some(devices),
            None => self.wrong(StudyError::zero("a slice of 0 cores")),
        }
        self
    }

    /// The largest number of compiles that are not cached. Default 12.
    pub fn compiles(mut self, n: u32) -> Plan<'t> {
        self.question.n_compiles = Some(n);
        self
    }

    /// Runs the question.
    ///
    /// # Errors
    /// Those of [`plan`].
    pub fn run(self) -> Result<PlanAnswer, StudyError> {
        let (ask, asking) = self.with_defaults(&["v2", "v3"], &BOTH)?;
        let Ask { subject, targets, precisions, mut on_event, question: OfPlan { devices, n_compiles }, .. } = ask;
        let usual = PlanQuestion::new(subject);
        let question = PlanQuestion {
            boards: targets,
            precisions,
            devices: devices.unwrap_or_else(|| usual.devices.clone()),
            n_compiles: n_compiles.unwrap_or(usual.n_compiles),
            ..usual
        };
        plan(&question, &asking, &mut *on_event)
    }
}

impl<'t> Levers<'t> {
    /// About a task.
    pub fn new(task: &'t dyn Task) -> Levers<'t> {
        Ask::begin(task, OfLevers(()))
    }

    /// Runs the question: a compile for each lever and target.
    ///
    /// # Errors
    /// Several precisions; those of [`levers`].
    pub fn run(self) -> Result<LeversAnswer, StudyError> {
        let (ask, asking) = self.with_defaults(&["v2"], &[Precision::F32])?;
        let Ask { subject, targets, precisions, mut on_event, .. } = ask;
        let [precision] = precisions[..] else {
            return Err(StudyError::several("levers", precisions.len(), "precisions"));
        };
        levers(&LeversQuestion { subject, precision, targets }, &asking, &mut *on_event)
    }
}

impl<'t> Compare<'t> {
    /// About a task.
    pub fn new(task: &'t dyn Task) -> Compare<'t> {
        Ask::begin(task, OfCompare(()))
    }

    /// The program. Default the training step.
    pub fn program(mut self, program: ModelProgram) -> Compare<'t> {
        self.subject.program = program;
        self
    }

    /// Runs the question: a compile for each precision.
    ///
    /// # Errors
    /// Several targets; those of [`compare`].
    pub fn run(self) -> Result<Comparison, StudyError> {
        let (mut ask, asking) = self.with_defaults(&["v2"], &BOTH)?;
        let target = ask.one_target("compare")?;
        compare(&ask.programs(&target)?, &target, &asking, &mut *ask.on_event)
    }
}

impl<'t> Explain<'t> {
    /// About a task.
    pub fn new(task: &'t dyn Task) -> Explain<'t> {
        Ask::begin(task, OfExplain(()))
    }

    /// The program. Default the training step.
    pub fn program(mut self, program: ModelProgram) -> Explain<'t> {
        self.subject.program = program;
        self
    }

    /// Runs the question: a compile for each precision.
    ///
    /// # Errors
    /// Several targets; those of [`explain`].
    pub fn run(self) -> Result<Explanations, StudyError> {
        let (mut ask, asking) = self.with_defaults(&["v2"], &[Precision::Bf16])?;
        let target = ask.one_target("explain")?;
        let source = ExplainSource::Programs(ask.programs(&target)?);
        explain(&ExplainQuestion { source, target, stretches: None }, &asking, &mut *ask.on_event)
    }
}

#[cfg(test)]
mod tests;
