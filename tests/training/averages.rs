//! Moving averages: beside TensorFlow's for 20 steps, and through everything that a session does with its state.

use super::bounded::{Bounded, check};
use crate::run::client;
use crate::{examples, run};

use bf16scope::data::Arrays;
use bf16scope::document;
use bf16scope::graph::{Graph, Init, Precision, Storage};
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::optim::{Average, LearningRate, LossScale, Optimizer, Update};
use bf16scope::train::checkpoint::{Array, Checkpoint, Place};
use bf16scope::train::{
    Data, Objective, Resumption, RunPlan, Session, Spec, StepsPerCall, TrainError, check_average, program,
};
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

type State = BTreeMap<String, Array>;

fn recorded(name: &str) -> Vec<f32> {
    let path = format!("{}/tests/data/optim_tf/optimizers.npz", env!("CARGO_MANIFEST_DIR"));
    let array: ArrayD<f32> = NpzReader::new(File::open(path).unwrap()).unwrap().by_name(name).unwrap();
    array.iter().copied().collect()
}

/// TensorFlow's `ExponentialMovingAverage(0.75)` of a variable under gradient descent. Its products are with powers of 2,
/// which are exact, so that a fused operation has the same bits: ours are TensorFlow's to the last one. With `num_updates`
/// the rate is rounded, and its product.
#[test]
fn averages_are_tensorflows() {
    const N_STEPS: usize = 20;
    for (case, num_updates) in [("average", false), ("average_num_updates", true)] {
        for (name, dims) in [("kernel", &[4, 3][..]), ("bias", &[3][..])] {
            let graph = Graph::training("averaged");
            let variable = graph.scope().variable(name, DType::F32, dims, Init::Zeros);
            let (step, count) = (graph.input("step", DType::S32, []), graph.input("count", DType::S32, []));
            let gradient = graph.input("gradient", DType::F32, dims);
            let learning_rate = LearningRate::Constant { value: 0.0625 };
            let update = Update { optimizer: Optimizer::SGD, learning_rate, ..Update::default() };
            update.emit(&graph, &step, &[(variable.number, gradient)]);
            Average { num_updates, ..Average::new(0.75) }.emit(&graph, 1, &count);
            let variables = graph.variables();
            assert_eq!(variables[1].name, format!("{name}/average"));
            let results: Vec<_> = variables.iter().map(|v| graph.tensor(v.update.unwrap())).collect();
            let results: Vec<_> = variables.iter().map(|v| v.name.as_str()).zip(&results).collect();
            let program = graph.finish(&results).unwrap();
            let compiled = run::Compiled::new(&program);
            let (gradients, theirs) = (recorded(&format!("gradient/{name}")), recorded(&format!("{case}/{name}")));
            let mut w = recorded(&format!("start/{name}"));
            let n = w.len();
            let mut average = w.clone();
            let mut last = w.clone();
            for step in 0..N_STEPS {
                let results = compiled.run(|input| match input {
                    // The recording's count is of the updates before.
                    "step" | "count" => Literal::from_elements([], &[step as i32]),
                    "gradient" => Literal::from_elements(dims, &gradients[step * n..][..n]),
                    input if input == name => Literal::from_elements(dims, &w),
                    _ => Literal::from_elements(dims, &average),
                });
                let before = average;
                (w, average) = (run::f32s(&results[0]), run::f32s(&results[1]));
                let theirs = &theirs[step * n..][..n];
                if !num_updates {
                    assert_eq!(average, theirs, "{name}, step {step}");
                    continue;
                }
                let count = Bounded::exact(step as f64);
                let ramp = (Bounded::exact(1.0) + count) / (Bounded::exact(10.0) + count);
                let decay = if ramp.value < 0.75 { ramp } else { Bounded::exact(0.75) };
                // Each from its own average before. A decay of another step is off by a hundredth of the distance.
                let moved = |previous: f32, at: usize| {
                    let (previous, w) = (Bounded::exact(previous.into()), Bounded::exact(w[at].into()));
                    previous - (previous - w) * (Bounded::exact(1.0) - decay)
                };
                for at in 0..n {
                    check(&format!("ours, {name}[{at}], step {step}"), average[at], moved(before[at], at));
                    check(&format!("TensorFlow's, {name}[{at}], step {step}"), theirs[at], moved(last[at], at));
                }
                last = theirs.to_vec();
            }
        }
    }
}

const COUNTED: Average = Average { decay: 0.75, num_updates: true, moving_statistics: true, evaluate: true };

const NETWORK: &str = "kind: layers
inputs: {images: [4]}
layers: [{dense: 4}, batch_norm, {dropout: 0.25}, {dense: 3, name: logits}]
loss: sparse_softmax_cross_entropy
";

/// Batch norms, whose statistics move, dropout, which has a state that does not, and slots.
fn spec(average: Option<Average>) -> Spec {
    let learning_rate = LearningRate::Constant { value: 0.05 };
    let update = Update { optimizer: Optimizer::ADAM, learning_rate, ..Update::default() };
    let objective = Objective { update, average, ..Objective::default() };
    let model: Model = document::from_str("model.yaml", NETWORK).unwrap();
    Spec { precision: Precision::F32, batch: 4, seed: 5, objective, ..Spec::new(model.task(0.0)) }
}

/// Six batches of four.
fn images() -> &'static Arrays {
    static IMAGES: OnceLock<Arrays> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let pixels = (0..24 * 4).map(|i| ((i * 37 + i / 11) % 16) as f32 / 16.0).collect();
        examples::images(pixels, &[4], (0..24).map(|i| i * 7 % 3).collect())
    })
}

fn data() -> Data<'static> {
    Data { training: images(), test: images() }
}

fn session(spec: &Spec) -> Session {
    Session::new(client(), spec.clone()).unwrap()
}

fn train(session: &mut Session, plan: &RunPlan) -> Result<bf16scope::train::Summary, TrainError> {
    bf16scope::train::run(session, data(), plan, &AtomicBool::new(false), &mut |_| {})
}

fn saving(n_epochs: u64, path: &Path) -> RunPlan {
    RunPlan::new(n_epochs, Some(Place::claim(path).unwrap()))
}

fn f32s(array: &Array) -> Vec<f32> {
    array.bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn averages(state: &State) -> State {
    let all = state.iter().filter(|(name, _)| Average::variable_of(name).is_some());
    all.map(|(name, array)| (name.clone(), array.clone())).collect()
}

/// The state after a number of steps that depends on the spec alone, as trained in one go.
fn after_an_epoch(spec: &Spec) -> State {
    let mut session = session(spec);
    train(&mut session, &RunPlan::new(1, None)).unwrap();
    session.state().unwrap()
}

#[test]
fn the_first_step_moves_averages_from_where_variables_start() {
    let mut session = session(&spec(Some(COUNTED)));
    let before = session.state().unwrap();
    session.train(&examples::loader(images(), session.spec()).epoch(0).next().unwrap().unwrap()).unwrap();
    let after = session.state().unwrap();
    let averaged: Vec<&str> = averages(&after)
        .keys()
        .map(|name| Average::variable_of(name).unwrap())
        .map(|name| {
            // Borrowed from `after`, which lives longer.
            after.get_key_value(name).unwrap().0.as_str()
        })
        .collect();
    for part in ["dense/kernel", "moving_mean", "moving_variance"] {
        assert!(averaged.iter().any(|name| name.contains(part)), "{part}: {averaged:?}");
    }
    // Slots and the state of random numbers are no variables of the network, or no floats.
    assert!(!averaged.iter().any(|name| name.contains("adam") || name.contains("dropout")), "{averaged:?}");
    for name in averaged {
        let average = Average::name_of(name);
        assert_eq!(before[name], before[&average], "{name}: an average starts where its variable does");
        let (start, moved, measured) = (f32s(&before[name]), f32s(&after[name]), f32s(&after[&average]));
        // As in TensorFlow's TPU models the count has this update: the decay is 2/11.
        let decay = Bounded::exact(2.0) / Bounded::exact(11.0);
        for ((start, moved), measured) in start.into_iter().zip(moved).zip(measured) {
            let (start, moved) = (Bounded::exact(start.into()), Bounded::exact(moved.into()));
            check(name, measured, start - (start - moved) * (Bounded::exact(1.0) - decay));
        }
    }
    // Without the statistics, the same of what trains.
    let trained = spec(Some(Average { moving_statistics: false, ..COUNTED }));
    let program = program::training(&*trained.task, trained.precision, 4, &trained.objective).unwrap().program;
    let names: Vec<&str> = program.variables.iter().filter_map(|v| Average::variable_of(&v.name)).collect();
    assert!(!names.is_empty() && !names.iter().any(|name| name.contains("moving_")), "{names:?}");
}

/// Several steps in a call, a rematerialising backward pass, micro-batches, and a kill in between: the same averages.
#[test]
fn averages_compose_with_what_a_program_may_be() {
    let spec = spec(Some(COUNTED));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut whole = session(&spec);
    let batches: Vec<_> = examples::loader(images(), &spec).epoch(0).map(Result::unwrap).collect();
    batches[..4].iter().for_each(|batch| drop(whole.train(batch).unwrap()));
    whole.checkpoint(6).unwrap().write(&path).unwrap();
    batches[4..].iter().for_each(|batch| drop(whole.train(batch).unwrap()));
    let whole = whole.state().unwrap();
    assert!(!averages(&whole).is_empty());
    let mut resumed = session(&spec);
    resumed.restore(&path, &Checkpoint::read(&path).unwrap(), Resumption::default()).unwrap();
    batches[4..].iter().for_each(|batch| drop(resumed.train(batch).unwrap()));
    assert!(resumed.state().unwrap() == whole, "resumed after four of six steps");
    let unrolled = StepsPerCall::Unrolled(NonZeroU32::new(3).unwrap());
    assert!(after_an_epoch(&Spec { steps_per_call: unrolled, ..spec.clone() }) == whole, "three steps in a call");
    // Micro-batches train otherwise, but averages are of their variables: one for each update.
    let mut accumulated = spec.clone();
    accumulated.objective.accumulate = NonZeroU32::new(2).unwrap();
    let mut session = session(&accumulated);
    let before = session.state().unwrap();
    session.train(&batches[0]).unwrap();
    let after = session.state().unwrap();
    let decay = Bounded::exact(2.0) / Bounded::exact(11.0);
    for (average, array) in &averages(&after) {
        let name = Average::variable_of(average).unwrap();
        for ((start, moved), measured) in f32s(&before[name]).into_iter().zip(f32s(&after[name])).zip(f32s(array)) {
            let (start, moved) = (Bounded::exact(start.into()), Bounded::exact(moved.into()));
            check(average, measured, start - (start - moved) * (Bounded::exact(1.0) - decay));
        }
    }
}

/// The bits of a step that is left out are those before it; and it is not counted, so that the next one's decay is 2/11.
#[test]
fn a_step_that_is_skipped_leaves_averages() {
    if !run::has_f16() {
        return;
    }
    let mut spec = Spec { precision: Precision::F16, ..spec(Some(COUNTED)) };
    // So large that a gradient overflows f16, and a step later small enough.
    spec.objective.loss_scale =
        LossScale::Dynamic { initial: 2f64.powi(40), period: 100, factor: 2f64.powi(36), minimum: 1.0 };
    let mut session = session(&spec);
    let before = session.state().unwrap();
    let batch = examples::loader(images(), &spec).epoch(0).next().unwrap().unwrap();
    session.train(&batch).unwrap();
    assert_eq!(session.n_skipped().unwrap(), Some(1));
    assert!(averages(&session.state().unwrap()) == averages(&before));
    session.train(&batch).unwrap();
    assert_eq!(session.n_skipped().unwrap(), Some(1));
    let after = session.state().unwrap();
    let decay = Bounded::exact(2.0) / Bounded::exact(11.0);
    for (average, array) in &averages(&after) {
        let name = Average::variable_of(average).unwrap();
        for ((start, moved), measured) in f32s(&before[name]).into_iter().zip(f32s(&after[name])).zip(f32s(array)) {
            let (start, moved) = (Bounded::exact(start.into()), Bounded::exact(moved.into()));
            check(average, measured, start - (start - moved) * (Bounded::exact(1.0) - decay));
        }
    }
}

/// A checkpoint whose variables are the averages of `checkpoint`, and which has none.
fn by_hand(checkpoint: &Checkpoint) -> Checkpoint {
    let mut swapped = checkpoint.clone().without_averages();
    for (name, array) in &checkpoint.variables {
        if let Some(variable) = Average::variable_of(name) {
            swapped.variables.insert(variable.to_string(), array.clone());
        }
    }
    swapped
}

#[test]
fn averages_are_evaluated_on_predicted_with_and_left_out_when_asked() {
    are_used_unless_asked(Storage::F32);
}

/// Averages are f32, whatever their variables are stored in.
#[test]
fn averages_of_bf16_variables_are_used_too() {
    are_used_unless_asked(Storage::Bf16Stochastic);
}

fn are_used_unless_asked(variables: Storage) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let spec = |average| Spec { variables, ..spec(average) };
    let mut trained = session(&spec(Some(COUNTED)));
    let summary = train(&mut trained, &saving(1, &path)).unwrap();
    let checkpoint = Checkpoint::read(&path).unwrap();
    assert!(checkpoint.has_averages());
    let plain = checkpoint.clone().without_averages();
    assert!(!plain.has_averages() && averages(&plain.variables).is_empty());
    let evaluator = trained.evaluator(4).unwrap();
    let test = |checkpoint: &Checkpoint| evaluator.evaluate(&path, checkpoint, images()).unwrap().totals.to_values();
    let of_averages = test(&by_hand(&checkpoint));
    assert_eq!(test(&checkpoint), of_averages);
    assert_ne!(test(&plain), of_averages);
    // During training too, and of the session.
    assert_eq!(summary.test, of_averages);
    assert_eq!(trained.evaluate(&evaluator, images()).unwrap().totals.to_values(), of_averages);
    // Unless its experiment says otherwise; what is learnt is the same.
    let mut blind = session(&spec(Some(Average { evaluate: false, ..COUNTED })));
    blind.restore(&path, &checkpoint, Resumption::default()).unwrap();
    let reads_variables = blind.evaluator(4).unwrap();
    assert_eq!(blind.evaluate(&reads_variables, images()).unwrap().totals.to_values(), test(&plain));
    let predictor = trained.predictor(4).unwrap();
    let predicted = |checkpoint: &Checkpoint| {
        let mut all = Vec::new();
        predictor
            .predict::<TrainError>(&path, checkpoint, images(), |batch| {
                all.extend(batch[0].bytes.clone());
                Ok(())
            })
            .unwrap();
        all
    };
    assert!(predicted(&checkpoint) == predicted(&by_hand(&checkpoint)));
    assert!(predicted(&checkpoint) != predicted(&plain));
    let mut of_session = Vec::new();
    trained
        .predict::<TrainError>(&predictor, images(), |batch| {
            of_session.extend(batch[0].bytes.clone());
            Ok(())
        })
        .unwrap();
    assert!(of_session == predicted(&checkpoint));
}

#[test]
fn averaging_begins_ends_and_changes_where_a_run_goes_on() {
    let path = Path::new("before.safetensors");
    let changes = |session: &mut Session, checkpoint: &Checkpoint| {
        let changes = session.restore(path, checkpoint, Resumption::default()).unwrap();
        (changes.iter().map(ToString::to_string).collect::<Vec<_>>(), session.state().unwrap())
    };
    let mut averaging = session(&spec(Some(COUNTED)));
    let mut plain = session(&spec(None));
    let checkpoint_after_step = |session: &mut Session| {
        session.train(&examples::loader(images(), session.spec()).epoch(0).next().unwrap().unwrap()).unwrap();
        session.checkpoint(6).unwrap()
    };
    let (with, without) = (checkpoint_after_step(&mut averaging), checkpoint_after_step(&mut plain));
    let (said, state) = changes(&mut averaging, &without);
    let shown = "{decay: 0.75, evaluate: true, moving_statistics: true, num_updates: true}";
    let begin = "averages begin where the checkpoint's variables are";
    assert_eq!(said, [format!("train.average was not set, is {shown} now: {begin}")]);
    for (name, array) in averages(&state) {
        assert_eq!(array, without.variables[Average::variable_of(&name).unwrap()], "{name}");
    }
    let (said, state) = changes(&mut plain, &with);
    let end = "the checkpoint's averages are left out";
    assert_eq!(said, [format!("train.average was {shown}, is not set now: {end}")]);
    assert!(state == with.clone().without_averages().variables);
    let mut other = session(&spec(Some(Average { decay: 0.5, moving_statistics: false, ..COUNTED })));
    let (said, state) = changes(&mut other, &with);
    let expected =
        ["train.average.decay was 0.75, is 0.5 now", "train.average.moving_statistics was true, is false now"];
    assert_eq!(said, expected);
    assert!(state.iter().all(|(name, array)| with.variables[name] == *array));
    // An array that is not an average of the checkpoint's own variable belongs to another model.
    let mut foreign = without;
    foreign.variables.insert("logits/kernel/average".to_string(), foreign.variables["logits/kernel"].clone());
    let error = plain.restore(path, &foreign, Resumption::default()).unwrap_err().to_string();
    assert!(error.contains("logits/kernel/average"), "{error}");
}

#[test]
fn an_average_that_comes_to_nothing_or_is_never_used_is_refused() {
    let slow = spec(Some(Average::new(0.9999)));
    let message = check_average(&slow, data(), 2).unwrap_err().to_string();
    let expected = "train.average: after all 12 steps an average of decay 0.9999 is still 100 % the initial values\n\
                    help: write `average: {decay: 0.9999, num_updates: true}`, a decay such as 0.5, or train longer";
    assert_eq!(message, expected);
    let error = train(&mut session(&slow), &RunPlan::new(2, None)).unwrap_err();
    assert_eq!(error.to_string(), expected);
    assert!(check_average(&slow, data(), 2000).is_ok());
    let counted = spec(Some(Average { num_updates: true, ..Average::new(0.9999) }));
    assert!(check_average(&counted, data(), 1).is_ok());
    let unused = spec(Some(Average { evaluate: false, ..COUNTED }));
    let error = train(&mut session(&unused), &RunPlan::new(1, None)).unwrap_err().to_string();
    assert_eq!(
        error,
        "train.average is never used: `evaluate` is false and there is no checkpoint\nhelp: leave `average` out, write \
         `evaluate: true`, or give the run a place for its checkpoints"
    );
    let mut nothing = spec(Some(Average { decay: 1.0, ..COUNTED }));
    nothing.precision = Precision::F32;
    let error = Session::new(client(), nothing).unwrap_err().to_string();
    assert!(error.contains("the decay of averages is 1, expected a number above 0 and below 1"), "{error}");
}
