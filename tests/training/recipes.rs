//! The recipes of `examples/recipes`: each one builds, and its small twin learns.

use crate::{examples, run};

use bf16scope::data::Loader;
use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::hlo::verify::verify;
use bf16scope::models::{Model, resnet};
use bf16scope::optim::{Momentum, Optimizer, Update, WeightDecay};
use bf16scope::train::checkpoint::Array;
use bf16scope::train::program::training;
use bf16scope::train::{Session, Spec, rates};
use bf16scope::tuning::Tuning;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn recipes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/recipes")
}

/// The files of the recipes, and each has a twin.
fn names() -> Vec<String> {
    let in_folder = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.filter(|name| name.ends_with(".yaml")).collect();
        names.sort();
        names
    };
    let names = in_folder(recipes());
    assert_eq!(names, in_folder(recipes().join("small")));
    names
}

#[test]
fn every_recipe_builds() {
    let names = names();
    assert_eq!(names.len(), 6);
    for name in names {
        let experiment = Experiment::read(recipes().join(&name)).unwrap_or_else(|error| panic!("{error}"));
        let update = experiment.train.update().unwrap();
        // The rate of a whole training is known, and ends low.
        let n_steps = experiment.train.steps_per_epoch().unwrap() * experiment.train.epochs;
        let greatest = (0..n_steps).step_by(97).map(|step| update.rate_at(step)).fold(0.0, f64::max);
        assert!(update.rate_at(n_steps - 1) < 0.11 * greatest, "{name}");
        let objective = experiment.objective(Precision::Bf16, &Tuning::none()).unwrap();
        let step =
            training(&*experiment.task(), Precision::Bf16, 2, &objective).unwrap_or_else(|e| panic!("{name}: {e}"));
        verify(&step.program.module).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    }
}

/// By hand, from the sources that the files name.
#[test]
fn resnets_recipe_is_that_of_the_tpu_models() {
    let experiment = Experiment::read(recipes().join("resnet50.yaml")).unwrap();
    assert_eq!(experiment.train.steps_per_epoch(), Some(1251));
    let update = experiment.train.update().unwrap();
    assert_eq!(update.learning_rate, bf16scope::optim::LearningRate::resnet(1024, 1251, 90));
    let lars = Experiment::read(recipes().join("resnet50_lars.yaml")).unwrap().train.update().unwrap();
    assert_eq!(lars.warm_up.unwrap().steps.get(), 14 * 39);
    assert_eq!((lars.rate_at(14 * 39), lars.rate_at(90 * 39)), (32.0, 0.0));
}

/// By the sources that the files name.
#[test]
fn rates_are_those_of_their_sources() {
    let per_256 = |rate: f64, batch: f64| rate * batch / 256.0;
    let highest = [
        ("bert_finetune.yaml", 2e-5),
        ("efficientnet_b0.yaml", per_256(0.016, 2048.0)),
        ("gpt2_small.yaml", 6e-4),
        ("mnasnet_a1.yaml", per_256(0.016, 1024.0)),
        ("resnet50.yaml", per_256(0.1, 1024.0)),
        ("resnet50_lars.yaml", 32.0),
    ];
    assert_eq!(highest.map(|(name, _)| name), names()[..]);
    for (name, of_source) in highest {
        let experiment = Experiment::read(recipes().join(name)).unwrap();
        let update = experiment.train.update().unwrap();
        let n_steps = experiment.train.steps_per_epoch().unwrap() * experiment.train.epochs;
        let largest_rate = (0..n_steps).map(|step| update.rate_at(step)).fold(0.0, f64::max);
        // If a decay begins with the warm-up, it has begun when that ends: the highest rate is the warm-up's last, one
        // step before.
        let overlapping = update.warm_up.filter(|warm_up| warm_up.overlap);
        let least = overlapping.map_or(1.0, |warm_up| 1.0 - 1.0 / f64::from(warm_up.steps.get()));
        let share = largest_rate / of_source;
        assert!((least - 1e-12..=1.0 + 1e-12).contains(&share), "{name}: {largest_rate}, by its source {of_source}");
    }
}

/// The small twins keep the rates at which they were seen to learn: with a rate ten times off, some would still learn.
#[test]
fn rates_of_small_twins_are_those_that_were_tried() {
    let tried = [
        ("bert_finetune.yaml", 1e-3),
        ("efficientnet_b0.yaml", 8e-3),
        ("gpt2_small.yaml", 3e-3),
        ("mnasnet_a1.yaml", 8e-3),
        ("resnet50.yaml", 0.1),
        ("resnet50_lars.yaml", 8.0),
    ];
    assert_eq!(tried.map(|(name, _)| name), names()[..]);
    for (name, value) in tried {
        let mut experiment = Experiment::read(recipes().join("small").join(name)).unwrap();
        // The length of an epoch moves no rate's value.
        experiment.train.n_train = Some(1000);
        let rate = serde_json::to_value(experiment.train.update().unwrap().learning_rate).unwrap();
        let of_kind = rate.as_object().and_then(|kinds| kinds.values().next()).unwrap();
        assert_eq!(of_kind["value"], value, "{name}: {rate}");
    }
}

fn floats(array: &Array) -> Vec<f64> {
    array.bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word).into()).collect()
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The trainable variables before and after a step: checks that they moved as far as the rate says, by AdamW's moments:
/// `rate · (m / (√v + ε) + λw)` without bias correction. A rate ten times off moves them ten times as far.
fn moved_as_its_rate_says(
    update: &Update,
    rate: f64,
    trainable: &[String],
    before: &BTreeMap<String, Array>,
    after: &BTreeMap<String, Array>,
) {
    let Optimizer::AdamW(adamw) = &update.optimizer else { panic!("{:?}", update.optimizer) };
    assert!(!adamw.bias_correction && rate > 0.0, "{adamw:?}, {rate}");
    for name in trainable {
        let [m, v] = ["adam_m", "adam_v"].map(|slot| floats(&after[&format!("{name}/{slot}")]));
        let (from, to) = (floats(&before[name]), floats(&after[name]));
        let decay = if update.weight_decay.applies_to(name) { update.weight_decay.value } else { 0.0 };
        let step: Vec<f64> = m.iter().zip(&v).map(|(m, v)| rate * m / (v.sqrt() + adamw.epsilon)).collect();
        let decayed: Vec<f64> = from.iter().map(|w| rate * decay * w).collect();
        let unexplained: Vec<f64> = (0..from.len()).map(|i| (from[i] - to[i]) - step[i] - decayed[i]).collect();
        // A weight is rounded once, to half an ulp (2^-24 of it); a step by its quotient, root, sums, products and the rate.
        let bound = 2f64.powi(-24) * norm(&to) + 16.0 * 2f64.powi(-24) * (norm(&step) + norm(&decayed));
        assert!(norm(&unexplained) <= bound, "{name}: {} of {}, at most {bound}", norm(&unexplained), norm(&step));
    }
}

/// State before and after step `idx`, the first whose rate is not 0: until then variables keep their initial values.
fn first_step(spec: Spec, batches: &[bf16scope::data::Batch]) -> [BTreeMap<String, Array>; 2] {
    let mut session = Session::new(run::client(), spec).unwrap();
    let (last, before) = batches.split_last().unwrap();
    before.iter().for_each(|batch| drop(session.train(batch).unwrap()));
    let state = session.state().unwrap();
    drop(session.train(last).unwrap());
    [state, session.state().unwrap()]
}

/// The change of a variable in one step at this rate by the documented rule of `update`, from the gradient `g`, which
/// contains the loss's weight decay, and the state around the step.
fn taken(update: &Update, rate: f64, name: &str, g: &[f64], state: &[BTreeMap<String, Array>; 2]) -> Vec<f64> {
    let [before, after] = state;
    let slot = |state: &BTreeMap<String, Array>, slot: &str| floats(&state[&format!("{name}/{slot}")]);
    let old = slot(before, "momentum");
    match &update.optimizer {
        Optimizer::Momentum(it) => {
            let new = slot(after, "momentum");
            let ahead = |i: usize| if it.nesterov { g[i] + it.momentum * new[i] } else { new[i] };
            (0..g.len()).map(|i| rate * ahead(i)).collect()
        }
        Optimizer::RmsProp(it) => {
            let square = slot(after, "rms");
            (0..g.len()).map(|i| it.momentum * old[i] + rate * g[i] / (square[i] + it.epsilon).sqrt()).collect()
        }
        Optimizer::Lars(it) => {
            let w = floats(&before[name]);
            let decay = update.weight_decay.value;
            let step: Vec<f64> = match update.weight_decay.applies_to(name) {
                true => {
                    let ratio = it.trust_coefficient * norm(&w) / (norm(g) + decay * norm(&w) + it.epsilon);
                    // A branch whose last gamma is 0 has no gradient yet.
                    let trust = if norm(&w) == 0.0 || norm(g) == 0.0 { 1.0 } else { ratio };
                    (0..g.len()).map(|i| rate * trust * (g[i] + decay * w[i])).collect()
                }
                false => g.iter().map(|g| rate * g).collect(),
            };
            (0..g.len()).map(|i| it.momentum * old[i] + step[i]).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// The distance of a small twin's first step from its rule's step at `times` its rate, relative to that step. The
/// gradients come from a run of the same network with the same values: a momentum of 0 leaves them in its slot.
fn distances(name: &str, change: fn(&mut Experiment), times: &[f64]) -> Vec<f64> {
    let path = recipes().join("small").join(name);
    let mut experiment = Experiment::read(&path).unwrap_or_else(|error| panic!("{error}"));
    change(&mut experiment);
    let data = experiment.read_data(&path, &bf16scope::pjrt::Setup::from_env()).unwrap();
    experiment.train.n_train = Some(data.training.n_examples());
    experiment.check_schedule(&path).unwrap();
    let spec = experiment.spec(Precision::F32, &Tuning::none()).unwrap();
    let update = spec.objective.update.clone();
    let n_steps = (0..).find(|step| update.rate_at(*step) != 0.0).unwrap() as usize + 1;
    let rate = update.rate_at(n_steps as u32 - 1);
    let loader: Loader<'_> = examples::loader(&*data.training, &spec);
    let batches: Vec<_> = loader.epoch(0).take(n_steps).map(Result::unwrap).collect();
    let mut twin = spec.clone();
    let of_gradient = &mut twin.objective.update;
    of_gradient.optimizer = Optimizer::Momentum(Momentum { momentum: 0.0, ..Momentum::default() });
    if matches!(update.optimizer, Optimizer::Lars(_)) {
        of_gradient.weight_decay = WeightDecay::default(); // which is in the rule
    }
    let gradients = &first_step(twin, &batches)[1];
    let trainable: Vec<String> =
        Session::new(run::client(), spec.clone()).unwrap().trainable().into_iter().map(str::to_string).collect();
    let state = first_step(spec, &batches);
    let distance = |times: f64| {
        let (mut off, mut all) = (Vec::new(), Vec::new());
        for name in &trainable {
            let g = floats(&gradients[&format!("{name}/momentum")]);
            let expected = taken(&update, times * rate, name, &g, &state);
            let (from, to) = (floats(&state[0][name]), floats(&state[1][name]));
            off.extend((0..from.len()).map(|i| from[i] - to[i] - expected[i]));
            all.extend(expected);
        }
        norm(&off) / norm(&all)
    };
    times.iter().map(|times| distance(*times)).collect()
}

/// The rate of the first step with a change is the recipe's, not ten times as large nor a tenth.
///
/// In f32 two programs of one network differ by the order of sums: of a gradient of n terms by at most n · 2^-24 of the sum of
/// their sizes, and here n is at most 64 · 8 · 8. That is 2^-12, and 2^-6 leaves room for terms that cancel: their sizes may add
/// up to 64 times the gradient. At ten times the rate the distance is 0.9, at a tenth 9.
#[test]
fn a_rate_ten_times_off_is_told_apart() {
    // The rule is the same in a network of fewer layers, which is compiled sooner.
    tells_rates_apart(&["resnet50_lars.yaml"], |experiment| {
        let Model::Resnet(config) = &mut experiment.model else { panic!("another network") };
        config.depth = resnet::Depth::D18;
    });
}

fn tells_rates_apart(names: &[&str], change: fn(&mut Experiment)) {
    for name in names {
        let measured = distances(name, change, &[1.0, 10.0, 0.1]);
        assert!(measured[0] < 2f64.powi(-6), "{name}: {measured:?}");
        assert!(measured[1] > 0.5 && measured[2] > 0.5, "{name}: {measured:?}");
    }
}

/// Checks that the loss of the last batches is less than that of the first, in `n_steps`; if the rule is AdamW's
/// without bias correction, also that the last step has the size of its rate; for other rules
/// `a_rate_ten_times_off_is_told_apart` checks the first step.
fn learns(name: &str, n_steps: usize) {
    let path = recipes().join("small").join(name);
    let mut experiment = Experiment::read(&path).unwrap_or_else(|error| panic!("{error}"));
    let data = experiment.read_data(&path, &bf16scope::pjrt::Setup::from_env()).unwrap();
    experiment.train.n_train = Some(data.training.n_examples());
    experiment.check_schedule(&path).unwrap();
    let client = run::client();
    let mut session = Session::new(client, experiment.spec(Precision::Bf16, &Tuning::none()).unwrap()).unwrap();
    let loader: Loader<'_> = examples::loader(&*data.training, session.spec());
    let batches: Vec<_> = (0..).flat_map(|epoch| loader.epoch(epoch).collect::<Vec<_>>()).take(n_steps).collect();
    let mut losses = Vec::new();
    let mut before = BTreeMap::new();
    for (number, batch) in batches.into_iter().enumerate() {
        if number + 1 == n_steps {
            before = session.state().unwrap();
        }
        losses.push(session.train(&batch.unwrap()).unwrap().loss().unwrap());
    }
    let update = &session.spec().objective.update;
    if matches!(&update.optimizer, Optimizer::AdamW(adamw) if !adamw.bias_correction) {
        let trainable: Vec<String> = session.trainable().into_iter().map(str::to_string).collect();
        let rate = update.rate_at(n_steps as u32 - 1);
        moved_as_its_rate_says(update, rate, &trainable, &before, &session.state().unwrap());
    } else {
        assert_ne!(name, "bert_finetune.yaml", "what asks it is there");
    }
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let part = n_steps / 5;
    let (first, last) = (mean(&losses[..part]), mean(&losses[n_steps - part..]));
    assert!(last < first, "{name}: {first} at first, {last} at last: {losses:?}");
}

#[test]
fn a_small_twin_learns() {
    learns("bert_finetune.yaml", 30);
}

/// `rates` gives the values of the training program's own instructions, which are compiled among all others.
#[test]
fn rates_are_those_of_the_training_program() {
    use bf16scope::graph::{Graph, Init};
    use bf16scope::hlo::{DType, Literal};
    use bf16scope::optim::{LearningRate, WarmUp};
    use std::num::NonZeroU32;
    let n = |n: u32| NonZeroU32::new(n).unwrap();
    let schedules = [
        LearningRate::Cosine { value: 0.3, decay_steps: n(700), alpha: 0.05 },
        LearningRate::Polynomial { value: 0.3, decay_steps: n(700), end_value: 0.01, power: 2.0 },
        LearningRate::Exponential { value: 0.3, decay_steps: n(41), decay_rate: 0.96, staircase: false },
        LearningRate::InverseSqrt { value: 0.3, constant_until: n(90), first_step: 1 },
    ];
    let client = run::client();
    let steps: Vec<u32> = (0..1000).step_by(13).collect();
    for learning_rate in schedules {
        let warm_up = Some(WarmUp { steps: n(90), start: 0.01, overlap: false });
        let update = Update { learning_rate, warm_up, optimizer: Optimizer::ADAM, ..Update::default() };
        let program_rates = rates(client, &update, &steps).unwrap();
        // A step of one weight: Adam with it, and the rate among the results.
        let graph = Graph::training("step");
        let w = graph.scope().variable("w", DType::F32, [3], Init::Ones);
        let step = graph.input("step", DType::S32, []);
        let rate = update.emit(&graph, &step, &[(w.number, graph.tensor(graph.variables()[0].instr) * 0.5)]);
        let mut results = vec![("rate", rate)];
        let variables = graph.variables();
        results.extend(variables.iter().map(|v| (v.name.as_str(), graph.tensor(v.update.unwrap()))));
        let results: Vec<_> = results.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let program = graph.finish(&results).unwrap();
        let compiled = run::Compiled::new(&program);
        for (step, program_rate) in steps.iter().zip(program_rates) {
            let results = compiled.run(|name| match name {
                "step" => Literal::from_elements([], &[*step as i32]),
                _ => Literal::from_elements([3], &[1f32, 2.0, 3.0]),
            });
            assert_eq!(
                run::f32s(&results[0])[0].to_bits(),
                program_rate.to_bits(),
                "step {step} of {:?}",
                update.learning_rate
            );
        }
    }
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// `a_rate_ten_times_off_is_told_apart` asks the third, of fewer layers.
    #[cfg_attr(feature = "long-tests", test)]
    fn rates_ten_times_off_are_told_apart() {
        tells_rates_apart(&["resnet50.yaml", "efficientnet_b0.yaml", "resnet50_lars.yaml"], |_| {});
    }

    /// `a_small_twin_learns` asks one of the six.
    #[cfg_attr(feature = "long-tests", test)]
    fn every_small_twin_learns() {
        for name in names() {
            learns(&name, 60);
        }
    }
}
