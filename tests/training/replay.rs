//! Any step of a run can be replayed to the bit: its loss, the state before it, its batch.

use crate::run::client;
use crate::{examples, replicas};

use bf16scope::data::{ArrayInfo, Arrays, DataError, Fingerprint, Reading, Source};
use bf16scope::graph::Precision;
use bf16scope::hlo::Literal;
use bf16scope::models::{Model, cnn};
use bf16scope::optim::{Average, LearningRate, Optimizer, Update};
use bf16scope::pjrt::{Arg, Client};
use bf16scope::train::checkpoint::{Array, Checkpoint, Place};
use bf16scope::train::replay::{ReplayFrom, newest_before, state_at};
use bf16scope::train::{
    Data, Event, InitializeFrom, Objective, Resumption, RunPlan, Session, Spec, StepInF32, StepsPerCall, TrainError,
    TrainErrorKind, run, step_in_f32,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

type State = BTreeMap<String, Array>;

/// Steps in an epoch: 11 batches of eight, and three examples more.
const STEPS_PER_EPOCH: u64 = 11;
const N_STEPS: u64 = 2 * STEPS_PER_EPOCH;

fn images() -> &'static Arrays {
    static IMAGES: OnceLock<Arrays> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let n = 11 * 8 + 3;
        let pixels = (0..n * 64).map(|i| ((i * 37 + i / 11) % 16) as f32 / 16.0).collect();
        examples::images(pixels, &[8, 8, 1], (0..n).map(|i| i * 7 % 10).collect())
    })
}

/// The same examples, read by worker threads.
#[derive(Debug)]
struct ByWorkers;

impl Source for ByWorkers {
    fn n_examples(&self) -> u64 {
        images().n_examples()
    }

    fn arrays(&self) -> &[ArrayInfo] {
        images().arrays()
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        images().read(index)
    }

    fn place(&self, index: u64) -> String {
        images().place(index)
    }

    fn fingerprint(&self) -> Fingerprint {
        images().fingerprint()
    }

    fn reading(&self) -> Reading {
        Reading { n_workers: 3, is_costly: true }
    }
}

fn data() -> Data<'static> {
    Data { training: images(), test: images() }
}

fn n(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

/// Everything that carries state from step to step: batch norms, dropout, slots, averages, a changing rate; and shifted
/// images.
fn spec(precision: Precision) -> Spec {
    let model = cnn::Config { filters: vec![4], dropout: 0.25, ..cnn::Config::new([8, 8, 1], 10) };
    let learning_rate = LearningRate::WarmUpStep { value: 0.01, warm_up: 12, drops: Vec::new() };
    let update = Update { optimizer: Optimizer::ADAM, learning_rate, ..Update::default() };
    let objective = Objective { update, average: Some(Average::new(0.75)), ..Objective::default() };
    Spec { precision, batch: 8, seed: 5, shift: 1, objective, ..Spec::new(Model::Cnn(model).task(0.1)) }
}

/// A recorded run: the loss of each step, and the state before it if calls have one step.
struct Recorded {
    losses: Vec<u64>,
    states: Vec<State>,
}

/// Trains two epochs, with checkpoints after every fifth step and at ends of epochs, all of which are kept; stops once
/// in the second epoch, and resumes in another session.
fn record(client: &Client, spec: &Spec, data: Data<'_>, place: &Path) -> Recorded {
    let mut recorded = Recorded { losses: Vec::new(), states: Vec::new() };
    for is_second in [false, true] {
        let mut session = Session::new(client, spec.clone()).unwrap();
        recorded.states.extend((!is_second).then(|| session.state().unwrap()));
        if is_second {
            let checkpoint = Checkpoint::read(place).unwrap();
            session.restore(place, &checkpoint, Resumption::default()).unwrap();
        }
        let plan = RunPlan {
            save_checkpoints_steps: Some(n(5)),
            keep_checkpoint_max: n(10),
            ..RunPlan::new(2, Some(Place::claim(place).unwrap()))
        };
        let stop = AtomicBool::new(false);
        let result = run(&mut session, data, &plan, &stop, &mut |event| {
            if let Event::Step { session, totals, epoch, step, .. } = event {
                recorded.losses.push(totals.loss().unwrap().to_bits());
                recorded.states.push(session.state().unwrap());
                stop.store(!is_second && (epoch, step) == (2, 3), Ordering::Relaxed);
            }
        });
        match is_second {
            false => {
                let error = result.unwrap_err();
                assert!(matches!(error.kind(), TrainErrorKind::Interrupted { .. }), "{error:?}");
            }
            true => drop(result.unwrap()),
        }
    }
    assert_eq!(recorded.losses.len() as u64, N_STEPS);
    recorded
}

/// Replays these steps, from the newest checkpoint before each and from the start, in one session.
fn check(client: &Client, spec: &Spec, data: Data<'_>, steps: &[u64]) {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("run.safetensors");
    let recorded = record(client, spec, data, &place);
    let mut session = Session::new(client, spec.clone()).unwrap();
    for &step in steps {
        let (newest, from_step) = newest_before(&place, step);
        assert!(from_step < step && step - from_step <= 6, "step {step} from {from_step}");
        for from in [newest, ReplayFrom::Start] {
            let mut on_the_way = Vec::new();
            let replayed = state_at(&mut session, data, &from, step, |step, totals| {
                on_the_way.push((step, totals.loss().unwrap().to_bits()));
                Ok::<_, TrainError>(())
            })
            .unwrap();
            let before: Vec<_> =
                (replayed.from_step + 1..step).map(|step| (step, recorded.losses[step as usize - 1])).collect();
            assert_eq!(on_the_way, before, "step {step} from {from:?}");
            if spec.steps_per_call == StepsPerCall::default() {
                assert_eq!(session.state().unwrap(), recorded.states[step as usize - 1], "step {step} from {from:?}");
            }
            assert!(replayed.is_exact);
            let in_f32 = step_in_f32(&session, data).unwrap();
            if spec.precision == Precision::F32 {
                // The same program on the same numbers.
                assert_eq!(
                    loss_of(client, &in_f32).to_bits(),
                    recorded.losses[step as usize - 1],
                    "step {step} in f32"
                );
            }
            assert_eq!((replayed.step, replayed.epoch), (step, (step - 1) / STEPS_PER_EPOCH + 1));
            let loss = session.train(&replayed.batch).unwrap().loss().unwrap();
            assert_eq!(loss.to_bits(), recorded.losses[step as usize - 1], "step {step} from {from:?}");
        }
    }
}

/// The loss of a step's module.
fn loss_of(client: &Client, step: &StepInF32) -> f64 {
    let executable = bf16scope::train::compile(client, &step.module).unwrap();
    let buffer = |input: &Literal| {
        let Literal::Array { shape, bytes } = input else { unreachable!("parameters of a step are arrays") };
        Arg::Donate(client.buffer_from_host(bytes, shape.dtype, &shape.dims, 0).unwrap())
    };
    let results = executable.execute(step.inputs.iter().map(buffer).collect()).unwrap();
    let place = step.results.iter().position(|name| name == "loss").unwrap();
    f64::from(f32::from_le_bytes(results[place].to_host().unwrap().try_into().unwrap()))
}

#[test]
fn steps_of_a_run_that_was_stopped_are_made_again_to_the_bit() {
    check(client(), &spec(Precision::Bf16), data(), &[1, 6, 11, 12, 15, 22]);
    check(client(), &spec(Precision::F32), data(), &[2, 13, 21]);
}

#[test]
fn so_are_those_in_the_middle_of_calls() {
    let spec = Spec { steps_per_call: StepsPerCall::Unrolled(n(3)), ..spec(Precision::Bf16) };
    check(client(), &spec, data(), &[2, 3, 9, 11, 14, 20]);
}

#[test]
fn so_are_those_that_workers_read_and_replicas_share() {
    let mut spec = spec(Precision::Bf16);
    spec.objective.mesh = replicas::mesh(2);
    check(replicas::client(), &spec, Data { training: &ByWorkers, test: images() }, &[1, 8, 12, 19]);
}

/// Steps of a loop have the bits of its calls; the state within one comes from single steps, and is reported as not
/// exact.
#[test]
fn the_state_in_the_middle_of_a_loop_is_said_not_to_be_exact() {
    let spec = Spec { steps_per_call: StepsPerCall::While(n(3)), ..spec(Precision::F32) };
    let mut session = Session::new(client(), spec).unwrap();
    for (step, is_exact) in [(1, true), (2, false), (4, true), (10, true), (11, true), (12, true), (14, false)] {
        let replayed =
            state_at(&mut session, data(), &ReplayFrom::Start, step, |_, _| Ok::<_, TrainError>(())).unwrap();
        assert_eq!(replayed.is_exact, is_exact, "step {step}");
    }
}

#[test]
fn a_run_from_weights_is_made_again_from_the_same_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("weights.safetensors");
    let mut other = Session::new(client(), Spec { seed: 9, ..spec(Precision::F32) }).unwrap();
    other.checkpoint(STEPS_PER_EPOCH).unwrap().write(&weights).unwrap();
    let spec = spec(Precision::F32);
    let mut session = Session::new(client(), spec.clone()).unwrap();
    session.initialize(InitializeFrom::new(&weights).read(&spec).unwrap()).unwrap();
    let (initial, settings) = (session.state().unwrap(), session.settings());
    let mut losses = Vec::new();
    run(&mut session, data(), &RunPlan::new(1, None), &AtomicBool::new(false), &mut |event| {
        if let Event::Step { totals, .. } = event {
            losses.push(totals.loss().unwrap());
        }
    })
    .unwrap();
    let at = |session: &mut Session, step| {
        state_at(session, data(), &ReplayFrom::Start, step, |_, _| Ok::<_, TrainError>(()))
    };
    let replayed = at(&mut session, 4).unwrap();
    assert_eq!(session.train(&replayed.batch).unwrap().loss(), Some(losses[3]));
    at(&mut session, 1).unwrap();
    assert_eq!((session.state().unwrap(), session.settings()), (initial, settings));
    // Other weights under the same name.
    let replayed = at(&mut other, 1).unwrap();
    other.train(&replayed.batch).unwrap();
    other.checkpoint(STEPS_PER_EPOCH).unwrap().write(&weights).unwrap();
    let refused = at(&mut session, 1).unwrap_err().to_string();
    assert!(refused.contains("train.initialize_from.sha256 was "), "{refused}");
    at(&mut session, 1).unwrap_err();
}

#[test]
fn a_step_that_cannot_be_made_again_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut session = Session::new(client(), spec(Precision::F32)).unwrap();
    let mut at = |from: &ReplayFrom, step| {
        let replayed = state_at(&mut session, data(), from, step, |_, _| Ok::<_, TrainError>(()));
        replayed.map(|_| session.checkpoint(STEPS_PER_EPOCH).unwrap()).map_err(|error| error.to_string())
    };
    assert_eq!(
        at(&ReplayFrom::Start, 0).unwrap_err(),
        "step 0 cannot be made again from the beginning of the run: steps are counted from 1\n\
         help: ask for step 1 or a later one"
    );
    at(&ReplayFrom::Start, 4).unwrap().write(&path).unwrap();
    assert_eq!(newest_before(&path, 4), (ReplayFrom::Checkpoint(path.clone()), 3));
    assert_eq!(newest_before(&path, 3), (ReplayFrom::Start, 0));
    assert_eq!(
        at(&ReplayFrom::Checkpoint(path.clone()), 3).unwrap_err(),
        format!(
            "step 3 cannot be made again from {}, which is after step 3\n\
             help: make it again from a checkpoint before the step, or from the beginning",
            path.display()
        )
    );
}
