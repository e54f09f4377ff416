//! Several steps per call: unrolled, with the bits of as many calls; in a loop, reproducibly.

use crate::run::client;
use crate::{examples, run};

use bf16scope::data::{ArrayInfo, Arrays};
use bf16scope::graph::{Init, Precision, Scope};
use bf16scope::hlo::DType;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::models::{Model, cnn};
use bf16scope::optim::{LearningRate, LossScale, Optimizer, Update};
use bf16scope::task::{Feature, Features, Loss, Mode, Outputs, Task};
use bf16scope::tpu::{Target, compile};
use bf16scope::train::checkpoint::{Array, Checkpoint, Place};
use bf16scope::train::{
    Data, Event, Objective, Resumption, RunPlan, Session, Spec, StepsPerCall, TrainError, TrainErrorKind, program,
    several_steps,
};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};

type State = BTreeMap<String, Array>;
/// A step's number, its report, and its learning rate.
type Step = (u64, Vec<(String, f64)>, f64);

fn unrolled(n: u32) -> StepsPerCall {
    StepsPerCall::Unrolled(NonZeroU32::new(n).unwrap())
}

fn looped(n: u32) -> StepsPerCall {
    StepsPerCall::While(NonZeroU32::new(n).unwrap())
}

/// Adam with a rate that changes at every step, so that a miscounted step shows.
fn objective(precision: Precision) -> Objective {
    let learning_rate = LearningRate::WarmUpStep { value: 0.01, warm_up: 12, drops: Vec::new() };
    let update = Update { optimizer: Optimizer::ADAM, learning_rate, ..Update::default() };
    let loss_scale = if precision == Precision::F16 { LossScale::DYNAMIC } else { LossScale::None };
    Objective { update, loss_scale, ..Objective::default() }
}

/// Everything that carries state from step to step: batch norms, dropout, slots; and shifted images.
fn spec(precision: Precision) -> Spec {
    let model = cnn::Config { filters: vec![4], dropout: 0.25, ..cnn::Config::new([8, 8, 1], 10) };
    let task = Model::Cnn(model).task(0.1);
    Spec { precision, batch: 8, seed: 5, shift: 1, objective: objective(precision), ..Spec::new(task) }
}

/// 13 batches of eight, and three examples more.
fn images() -> &'static Arrays {
    static IMAGES: OnceLock<Arrays> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let n = 13 * 8 + 3;
        let pixels = (0..n * 64).map(|i| ((i * 37 + i / 11) % 16) as f32 / 16.0).collect();
        examples::images(pixels, &[8, 8, 1], (0..n).map(|i| i * 7 % 10).collect())
    })
}

fn data() -> Data<'static> {
    Data { training: images(), test: images() }
}

/// The report of each step, by number; and the state after two epochs.
fn trained(spec: Spec) -> (Vec<Step>, State) {
    let mut session = Session::new(client(), spec).unwrap();
    let mut steps = Vec::new();
    bf16scope::train::run(&mut session, data(), &RunPlan::new(2, None), &AtomicBool::new(false), &mut |event| {
        if let Event::Step { epoch, step, totals, learning_rate, .. } = event {
            steps.push((13 * (epoch - 1) + step, totals.to_values(), learning_rate));
        }
    })
    .unwrap();
    (steps, session.state().unwrap())
}

/// One step per call, in bf16.
static SINGLE: LazyLock<(Vec<Step>, State)> = LazyLock::new(|| trained(spec(Precision::Bf16)));

fn assert_same((steps, state): &(Vec<Step>, State), other: &(Vec<Step>, State)) {
    let differs: Vec<_> =
        state.iter().filter(|(name, array)| other.1.get(*name) != Some(array)).map(|it| it.0).collect();
    assert!(differs.is_empty() && state.len() == other.1.len(), "these differ: {differs:?}");
    assert_eq!(*steps, other.0);
}

#[test]
fn unrolled_steps_give_the_bits_of_single_ones() {
    let f16 = run::has_f16().then_some(Precision::F16);
    for precision in [Precision::F32, Precision::Bf16].into_iter().chain(f16) {
        let single = if precision == Precision::Bf16 { &*SINGLE } else { &trained(spec(precision)) };
        assert_eq!(single.0.iter().map(|step| step.0).collect::<Vec<_>>(), (1..=26).collect::<Vec<_>>());
        // 13 is not a multiple of 2: the last step of an epoch is a separate call.
        assert_same(single, &trained(Spec { steps_per_call: unrolled(2), ..spec(precision) }));
    }
}

/// `y = w·x`, learnt from whole numbers in halves: all values have fewer than 24 bits, in any order.
#[derive(Debug)]
struct Exact;

impl Task for Exact {
    fn name(&self) -> &str {
        "exact"
    }

    fn features(&self) -> Vec<Feature> {
        vec![Feature::compute("x", []), Feature::exact("y", DType::F32, []).label()]
    }

    fn call(&self, s: &Scope, features: &Features<'_>, _: Mode) -> Outputs {
        let w = s.variable("w", DType::F32, [], Init::Zeros).value;
        let error = w.broadcast_in_dim(&[features.batch()], &[]) * features.get("x") - features.get("y");
        let squared = &error * &error;
        Outputs::new().loss(Loss::weighted(&squared, &features.weight())).scalar("w", &w)
    }
}

/// A loop's body is compiled differently from an entry, so its last bits may differ if it rounds: here nothing rounds.
#[test]
fn a_loop_makes_the_same_steps() {
    let bytes = |values: &[i32]| values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect::<Vec<u8>>();
    let x = (ArrayInfo::new("x", DType::F32, []), bytes(&[1, -1, 0, 1, 1, 1, -1, 0, 1, -1]));
    let y = (ArrayInfo::new("y", DType::F32, []), bytes(&[3, -2, 1, 2, 4, 3, -3, 1, 2, -4]));
    let source = Arrays::new(Path::new("exact"), vec![x, y]).unwrap();
    let trained = |calls| {
        let update = Update {
            optimizer: Optimizer::SGD,
            learning_rate: LearningRate::Constant { value: 0.5 },
            ..Update::default()
        };
        let objective = Objective { update, ..Objective::default() };
        let spec = Spec { batch: 2, precision: Precision::F32, objective, ..Spec::new(Exact) };
        let mut session = Session::new(client(), Spec { steps_per_call: calls, ..spec }).unwrap();
        let (mut steps, mut scalars) = (Vec::new(), Vec::new());
        let data = Data { training: &source, test: &source };
        bf16scope::train::run(&mut session, data, &RunPlan::new(1, None), &AtomicBool::new(false), &mut |event| {
            if let Event::Step { session, step, totals, .. } = event {
                steps.push(totals.to_values());
                scalars.push((step, session.scalars().unwrap()));
            }
        })
        .unwrap();
        (steps, scalars, session.state().unwrap())
    };
    let (steps, scalars, state) = trained(StepsPerCall::default());
    assert_eq!((steps.len(), scalars.len()), (5, 5));
    for calls in [looped(4), unrolled(4), looped(5)] {
        let in_calls = trained(calls);
        assert_eq!((&in_calls.0, &in_calls.2), (&steps, &state), "{calls}");
        // Scalars are those of a call's last step.
        let at_end = |step: u64| calls.n().get() as u64 == step || step == 5;
        let ends = scalars.iter().zip(&in_calls.1).filter(|(single, _)| at_end(single.0));
        assert!(ends.clone().count() > 0 && ends.into_iter().all(|(single, of_call)| single == of_call), "{calls}");
    }
}

/// Stops in the middle of a call; returns the checkpoint.
fn stopped(spec: &Spec, folder: &Path) -> (PathBuf, Checkpoint) {
    let path = folder.join("run.safetensors");
    let mut session = Session::new(client(), spec.clone()).unwrap();
    let stop = AtomicBool::new(false);
    let place = Place::claim(&path).unwrap();
    let plan = RunPlan { save_checkpoints_steps: NonZeroU32::new(3), ..RunPlan::new(2, Some(place)) };
    let mut saved = Vec::new();
    let result = bf16scope::train::run(&mut session, data(), &plan, &stop, &mut |event| match event {
        // In the second epoch's second call.
        Event::Step { epoch: 2, step: 6, .. } => stop.store(true, Ordering::Relaxed),
        Event::Saved { step, .. } => saved.push(step),
        _ => {}
    });
    assert_eq!(result.unwrap_err().kind(), &TrainErrorKind::Interrupted { step: 21, epoch: 2 });
    // After a call that passes a multiple of 3, at the epoch's end, and where it stopped.
    assert_eq!(saved, [4, 8, 12, 13, 17, 21]);
    let checkpoint = Checkpoint::read(&path).unwrap();
    (path, checkpoint)
}

/// The state at the end of a run that resumes from a checkpoint.
fn resumed(spec: Spec, path: &Path, checkpoint: &Checkpoint) -> Result<State, TrainError> {
    let mut session = Session::new(client(), spec).unwrap();
    assert_eq!(session.restore(path, checkpoint, Resumption::default())?, []);
    bf16scope::train::run(&mut session, data(), &RunPlan::new(2, None), &AtomicBool::new(false), &mut |_| {})?;
    session.state()
}

#[test]
fn an_unrolled_run_goes_on_with_any_number_of_steps_a_call() {
    let folder = tempfile::tempdir().unwrap();
    let (path, checkpoint) = stopped(&Spec { steps_per_call: unrolled(4), ..spec(Precision::Bf16) }, folder.path());
    assert_eq!(resumed(spec(Precision::Bf16), &path, &checkpoint).unwrap(), SINGLE.1);
}

#[test]
fn a_looped_run_goes_on_as_it_began_and_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let looped = Spec { steps_per_call: looped(4), ..spec(Precision::Bf16) };
    let (path, checkpoint) = stopped(&looped, folder.path());
    assert_eq!(resumed(looped.clone(), &path, &checkpoint).unwrap(), trained(looped).1);
    let error = resumed(spec(Precision::Bf16), &path, &checkpoint).unwrap_err().to_string();
    assert!(error.contains("train.steps_per_call was while:4, is not set now"), "{error}");
}

#[test]
fn a_text_that_counts_no_steps_is_refused() {
    for text in ["0", "-1", "while", "while:0", "2147483648"] {
        assert_eq!(
            text.parse::<StepsPerCall>().unwrap_err().to_string(),
            format!("{text:?} is not how many steps a call makes, expected a whole number from 1 up, or `while:N`")
        );
    }
}

#[test]
fn calls_longer_than_an_epoch_are_refused() {
    let mut session = Session::new(client(), Spec { steps_per_call: looped(14), ..spec(Precision::Bf16) }).unwrap();
    let error =
        bf16scope::train::run(&mut session, data(), &RunPlan::new(1, None), &AtomicBool::new(false), &mut |_| {});
    assert_eq!(
        error.unwrap_err().to_string(),
        "steps_per_call is while:14, and an epoch has 13 steps\n\
         help: at most that many; a number that divides it needs no second program"
    );
    let many = Spec { steps_per_call: unrolled(100_000), ..spec(Precision::Bf16) };
    let error = Session::new(client(), many).unwrap_err().to_string();
    assert!(error.contains("100000 copies of") && error.contains("`while` loop"), "{error}");
}

#[test]
fn a_step_that_is_not_finite_is_named_within_its_call() {
    let mut spec = Spec { steps_per_call: unrolled(4), ..spec(Precision::F32) };
    // The second step's update overflows: the third's loss shows it.
    spec.objective.update.optimizer = Optimizer::SGD;
    spec.objective.update.learning_rate = LearningRate::Constant { value: 1e38 };
    let mut session = Session::new(client(), spec).unwrap();
    let error =
        bf16scope::train::run(&mut session, data(), &RunPlan::new(1, None), &AtomicBool::new(false), &mut |_| {});
    let error = error.unwrap_err();
    let &TrainErrorKind::Diverged { step: step @ (2 | 3), epoch: 1, .. } = error.kind() else { panic!("{error}") };
    // It was replayed up to there, to find the origin.
    assert_eq!(session.step(), step - 1);
}

#[test]
fn a_tpu_runs_several_steps_in_the_memory_of_one() {
    let spec = spec(Precision::Bf16);
    let compiled = |calls: StepsPerCall| {
        let step = program::training(&*spec.task, spec.precision, 1024, &spec.objective).unwrap();
        let program = several_steps(step, calls).unwrap().program;
        verify(&program.module).unwrap();
        let target: Target = "tpu-v3".parse().unwrap();
        compile(&target, &encode::to_bytes(&program.module).unwrap(), 1024).unwrap()
    };
    let single = compiled(StepsPerCall::default());
    for calls in [unrolled(3), looped(3)] {
        let several = compiled(calls);
        let case = format!("{calls}: {several:?}\n1: {single:?}");
        // The activations of three steps are not alive at the same time.
        assert!(several.hbm.temporaries < 2 * single.hbm.temporaries, "{case}");
        assert!(several.cycles > 2 * single.cycles, "{case}");
    }
}
