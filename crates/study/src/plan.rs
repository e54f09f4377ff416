//! Which slice to rent for a model and a global batch: some settings are compiled, the others predicted by
//! [`tpu::plan`](bf16scope_tpu::plan).

use std::num::NonZeroU32;
use std::path::Path;

use serde::Serialize;

use super::ask::{Asking, Compiling, Event, ask};
use super::model::check_no_model_axis;
use super::subject::placement;
use super::{ModelProgram, ModelSubject, StudyError};
use bf16scope_hlo::Module;
use bf16scope_hlo::devices::Placement;
use bf16scope_hlo::proto::encode;
use bf16scope_model::graph::Precision;
use bf16scope_passes::tuning::{LayerRemat, Remat, Tuning};
use bf16scope_tpu::plan::{Fit, Point, Series, Setting, SliceRow, accumulated, next, plan as rows_of};
use bf16scope_tpu::{CompileOutcome, Compiled, Links, Spec, Target, TpuError};
use bf16scope_train::{Mesh, StateOf};

/// A question about which slice to rent.
#[derive(Clone, Debug)]
pub struct PlanQuestion<'t> {
    /// The model, whose training step is planned; its batch is the global one.
    pub subject: ModelSubject<'t>,
    /// The TPUs, each without a grid: the sizes of their slices are the question.
    pub boards: Vec<Target>,
    /// Numbers of cores; those without a slice of a TPU are left out.
    pub devices: Vec<NonZeroU32>,
    /// The compute precisions.
    pub precisions: Vec<Precision>,
    /// Whether the backward pass rematerialises according to the target's tuning and the file: `[true, false]` tries
    /// both.
    pub remats: Vec<bool>,
    /// Whether the state is sharded over all cores.
    pub sharded: Vec<bool>,
    /// The largest number of compiles that are not cached.
    pub n_compiles: u32,
}

impl<'t> PlanQuestion<'t> {
    /// In f32 and bf16 on v2 and v3 with 8 to 2,048 cores, from at most twelve compiles.
    pub fn new(subject: ModelSubject<'t>) -> PlanQuestion<'t> {
        let board = |name| Spec::named(name).map(Target::board);
        PlanQuestion {
            subject,
            boards: ["v2", "v3"].into_iter().filter_map(board).collect(),
            devices: [8, 32, 128, 512, 2048].into_iter().filter_map(NonZeroU32::new).collect(),
            precisions: vec![Precision::F32, Precision::Bf16],
            remats: vec![true],
            sharded: vec![false],
            n_compiles: 12,
        }
    }
}

/// The speed of a TPU's links.
#[derive(Clone, Debug, Serialize)]
pub struct TpuLinks {
    /// One board of the TPU.
    pub tpu: Target,
    /// Its links.
    pub links: Option<Links>,
}

/// A plan, with its subject.
#[derive(Clone, Debug, Serialize)]
pub struct PlanAnswer {
    /// The task's name, or the model's file.
    pub model: String,
    /// Examples in a global batch.
    pub batch: u32,
    /// The unit of a batch: `images` or `examples`.
    pub unit: &'static str,
    /// The compiler.
    pub libtpu: String,
    /// Whether the compiler was allowed to keep more precision than the programs specify.
    pub excess_precision: bool,
    /// The speed of collectives, by TPU.
    pub links: Vec<TpuLinks>,
    /// The figures of each setting.
    pub rows: Vec<SliceRow>,
    /// Sentences on the settings that were left out.
    pub left_out: Vec<String>,
}

impl PlanAnswer {
    /// Whether any setting fits.
    pub fn fits(&self) -> bool {
        self.rows.iter().any(|row| row.fits == Fit::Yes)
    }
}

/// Compiles the most informative settings, and predicts the rest.
///
/// # Errors
/// A question without any possible setting; a missing compiler. A setting that the compiler refuses is left out.
pub fn plan(
    question: &PlanQuestion<'_>,
    asking: &Asking,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<PlanAnswer, StudyError> {
    let subject = &question.subject;
    let batch = subject.batch;
    check_no_model_axis("plan", subject)?;
    let (settings, mut left_out) = settings(question, batch)?;
    let rows = compiled(question, settings, &mut left_out, asking, on)?;
    let mut boards: Vec<&Target> = rows.iter().map(|row| &row.setting.series.board).collect();
    boards.dedup();
    Ok(PlanAnswer {
        model: subject.name.clone(),
        batch,
        unit: subject.unit(),
        libtpu: asking.libtpu()?,
        excess_precision: asking.excess_precision,
        links: boards.into_iter().map(|tpu| TpuLinks { tpu: tpu.clone(), links: Links::for_target(tpu) }).collect(),
        rows,
        left_out,
    })
}

/// The settings to plan, and sentences on those that are impossible.
fn settings(question: &PlanQuestion<'_>, batch: u32) -> Result<(Vec<Setting>, Vec<String>), StudyError> {
    let mut left_out = Vec::new();
    let accumulate = question.subject.objective.accumulate.get();
    if accumulate > 1 {
        let says = if question.subject.experiment.is_some() { "file" } else { "objective" };
        left_out.push(format!(
            "The {says} accumulates gradients over {accumulate} micro-batches; here it does so only where a batch does not fit without."
        ));
    }
    let mut settings = Vec::new();
    for board in &question.boards {
        let Target::Tpu { version, .. } = board else { return Err(TpuError::NotATpu(board.clone()).into()) };
        if *board != Target::board(version) {
            return Err(StudyError::one_slice(board, &Target::board(version)));
        }
        if Links::for_target(board).is_none() {
            return Err(StudyError::no_links(board));
        }
        for n_cores in question.devices.iter().map(|n| n.get()) {
            let Some(target) = slice(version, n_cores) else {
                left_out.push(format!("{board} has no slice of {n_cores} cores."));
                continue;
            };
            if !batch.is_multiple_of(n_cores) {
                left_out.push(format!("A batch of {batch} does not split over the {n_cores} cores of {target}."));
                continue;
            }
            for series in all_series(question, board) {
                let setting = Setting { series, target: target.clone(), n_cores, batch, accumulate: 1 };
                if !settings.contains(&setting) {
                    settings.push(setting);
                }
            }
        }
    }
    match settings.is_empty() {
        true => Err(StudyError::nothing_to_plan(&left_out)),
        false => Ok((settings, left_out)),
    }
}

fn all_series(question: &PlanQuestion<'_>, board: &Target) -> Vec<Series> {
    let mut all = Vec::new();
    for precision in &question.precisions {
        for &remat in &question.remats {
            for &in_parts in &question.sharded {
                all.push(Series { board: board.clone(), precision: precision.to_string(), remat, in_parts });
            }
        }
    }
    all
}

/// The slice with exactly this many cores.
pub fn slice(version: &'static Spec, n_cores: u32) -> Option<Target> {
    version.slice_of(n_cores as usize).filter(|slice| slice.n_cores() == Some(u64::from(n_cores)))
}

/// Compiles settings while compiles are left.
struct Asker<'q> {
    subject: &'q ModelSubject<'q>,
    asking: &'q Asking,
    n_left: u32,
    on: &'q mut dyn FnMut(&Event<'_>),
}

fn compiled(
    question: &PlanQuestion<'_>,
    mut settings: Vec<Setting>,
    left_out: &mut Vec<String>,
    asking: &Asking,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<Vec<SliceRow>, StudyError> {
    let mut asker = Asker { subject: &question.subject, asking, n_left: question.n_compiles, on };
    let mut points = asker.cached_points(&settings)?;
    while let Some(at) = next(&settings, &points) {
        match asker.ask(&settings[at])? {
            Some(CompileOutcome::Failed(text)) => left_out.push(refusal(&settings.remove(at), &text)),
            Some(outcome) => points.push(Point { setting: settings[at].clone(), outcome }),
            // Cached outcomes are free, and are visited in the same order.
            None => break,
        }
    }
    let mut with_accumulation = Vec::new();
    for setting in &settings {
        with_accumulation.push(setting.clone());
        let Some(setting) = accumulated(setting, &points) else { continue };
        match asker.ask(&setting)? {
            Some(CompileOutcome::Failed(text)) => {
                left_out.push(refusal(&setting, &text));
                continue;
            }
            Some(outcome) => points.push(Point { setting: setting.clone(), outcome }),
            None => {}
        }
        with_accumulation.push(setting);
    }
    (asker.on)(&Event::SeriesEnds);
    Ok(rows_of(&with_accumulation, &points))
}

fn refusal(setting: &Setting, message: &str) -> String {
    let Setting { series: Series { precision, in_parts, .. }, target, .. } = setting;
    let state = if *in_parts { ", sharded state" } else { "" };
    format!("{target} in {precision}{state}: the compiler refused: {}.", message.lines().next().unwrap_or_default())
}

impl Asker<'_> {
    /// Cached outcomes for a single core with a setting's part of the batch, as `fit` compiles it.
    fn cached_points(&self, settings: &[Setting]) -> Result<Vec<Point>, StudyError> {
        let mut points: Vec<Point> = Vec::new();
        for setting in settings.iter().filter(|setting| !setting.series.in_parts) {
            let (series, part) = (&setting.series, setting.part());
            let target = series.board.clone();
            let alone =
                Setting { series: series.clone(), target: target.clone(), n_cores: 1, batch: part, accumulate: 1 };
            if self.asking.fresh || points.iter().any(|point| point.setting == alone) {
                continue;
            }
            // A program that cannot be built for a single core gives no point, and is not an error: it was not
            // requested.
            let Ok(module) = program(self.subject, &alone) else { continue };
            let compiler = self.asking.compiler(Placement::default());
            let program = encode::to_bytes(&module).map_err(StudyError::encode)?;
            if !compiler.remembers(&target, &program)? {
                continue;
            }
            match ask(&compiler, &target, &program, part)?.outcome {
                CompileOutcome::Failed(_) => {}
                outcome => points.push(Point { setting: alone, outcome }),
            }
        }
        Ok(points)
    }

    /// The outcome for a setting; `None` if no compile is left for it.
    fn ask(&mut self, setting: &Setting) -> Result<Option<CompileOutcome>, StudyError> {
        let Setting { target, batch, .. } = setting;
        let module = match program(self.subject, setting) {
            Ok(module) => module,
            Err(error) => return Ok(Some(CompileOutcome::Failed(error.chain()))),
        };
        let placement = placement(&module, Path::new(&self.subject.name))?;
        let compiler = self.asking.compiler(placement);
        let program = encode::to_bytes(&module).map_err(StudyError::encode)?;
        let is_kept = !self.asking.fresh && compiler.remembers(target, &program)?;
        if !is_kept && self.n_left == 0 {
            return Ok(None);
        }
        let compiling = compiling(setting, self.n_left.saturating_sub(1));
        if !is_kept {
            self.n_left -= 1;
            (self.on)(&Event::Begins(&compiling));
        }
        let Compiled { outcome, is_cached } = ask(&compiler, target, &program, *batch)?;
        if !is_kept && !matches!(outcome, CompileOutcome::Failed(_)) {
            (self.on)(&Event::Ends { compiling: &compiling, is_cached, outcome: &outcome });
        }
        Ok(Some(outcome))
    }
}

fn compiling(setting: &Setting, n_more: u32) -> Compiling {
    let Setting { series: Series { precision, in_parts, .. }, target, .. } = setting;
    let state = if *in_parts { ", sharded state" } else { "" };
    Compiling { target: target.clone(), what: format!("{precision}{state}"), batch: Some(setting.part()), n_more }
}

/// The training step of a setting.
fn program(subject: &ModelSubject<'_>, setting: &Setting) -> Result<Module, StudyError> {
    let Setting { series, target, n_cores, batch, accumulate } = setting;
    let mut step = ModelSubject { program: ModelProgram::Training, ..subject.clone() };
    step.objective.accumulate = NonZeroU32::new(*accumulate).unwrap_or(NonZeroU32::MIN);
    let tuning = subject.tuning(target);
    let tuning = if series.remat { tuning } else { without_remat(tuning) };
    let precision = series.precision.parse().map_err(|_| StudyError::no_program(&series.precision, *batch))?;
    // The rest of the mesh is as in the file or the objective.
    let replicas = NonZeroU32::new(*n_cores).filter(|n| n.get() > 1);
    let mut mesh = replicas.map_or(Mesh::default(), |n| subject.objective.mesh.of_replicas(n));
    mesh.state = if series.in_parts { StateOf::Sharded } else { StateOf::Whole };
    Ok(step.program_with(precision, *batch, mesh, tuning)?.module)
}

fn without_remat(tuning: Tuning) -> Tuning {
    tuning.with(|tuning| {
        tuning.remat = Remat::None;
        tuning.layer_remat = LayerRemat::default();
        tuning.cotangent_remat = false;
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_model::models::{Model, mlp};

    #[test]
    fn what_cannot_be_planned_is_left_out_with_the_reason() {
        let task = Model::Mlp(mlp::Config::new([16], 4)).task(0.0);
        let mut question = PlanQuestion::new(ModelSubject::new(&*task));
        question.boards.truncate(1);
        question.devices = [8, 9, 32].into_iter().filter_map(NonZeroU32::new).collect();
        question.subject.objective.accumulate = NonZeroU32::new(2).unwrap();
        let (settings, left_out) = settings(&question, 24).unwrap();
        assert!(settings.iter().all(|setting| setting.n_cores == 8) && !settings.is_empty());
        let expected = [
            "The objective accumulates gradients over 2 micro-batches; here it does so only where a batch does not fit without.",
            "tpu-v2 has no slice of 9 cores.",
            "A batch of 24 does not split over the 32 cores of tpu-v2:4x4.",
        ];
        assert_eq!(left_out, expected);
    }
}
