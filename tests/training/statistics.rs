//! Batch norms with statistics over several replicas: gradients and running statistics of a step are those of the whole
//! batch on one device, within the rounding of both.

use super::bounded::{Bounded, U, check};
use super::replicas::{client, mesh};

use bf16scope::data::{Batch, NamedArray};
use bf16scope::document;
use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::models::Model;
use bf16scope::optim::{Optimizer, Update};
use bf16scope::train::checkpoint::Array;
use bf16scope::train::{Mesh, Objective, Resumption, Session, Spec, StateOf};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;

const N: usize = 16;
const INPUTS: usize = 3;
const FEATURES: usize = 4;
const NETWORK: &str = "{kind: layers, inputs: {x: [3]}, layers: [{dense: {units: 4}, name: a}, {batch_norm: {momentum: 0.9, epsilon: 1.0e-5}, name: bn}, \
                       {dense: {units: 1}, name: b}], loss: mean_squared_error}";

fn across(n: u32, across: u32) -> Mesh {
    let mut mesh = mesh(n);
    mesh.batch_norm.across = NonZeroU32::new(across).unwrap();
    mesh
}

fn spec(mesh: Mesh) -> Spec {
    let model: Model = document::from_str("model", NETWORK).unwrap();
    // After one step the slot is the gradient.
    let update = Update { optimizer: Optimizer::default(), ..Update::default() };
    let objective = Objective { update, mesh, ..Objective::default() };
    Spec { precision: Precision::F32, batch: N as u32, seed: 3, objective, ..Spec::new(model.task(0.0)) }
}

/// Features of one sign, each with another spread, and labels.
fn values() -> (Vec<f32>, Vec<f32>) {
    let x = (0..N * INPUTS).map(|i| ((i * 37 + i / 5 * 11) % 64) as f32 / 16.0 + (i % INPUTS) as f32).collect();
    (x, (0..N).map(|i| (i * 7 % 5) as f32 / 2.0).collect())
}

fn batch() -> Batch {
    let (x, y) = values();
    let array = |name: &str, dims: Vec<i64>, values: Vec<f32>| NamedArray {
        name: name.to_string(),
        dtype: DType::F32,
        dims,
        bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    let arrays = vec![array("x", vec![N as i64, INPUTS as i64], x), array("labels", vec![N as i64, 1], y)];
    Batch { arrays, n_valid: N }
}

/// The state before and after a step.
fn step(mesh: Mesh) -> [BTreeMap<String, Array>; 2] {
    let mut session = Session::new(client(), spec(mesh)).unwrap();
    let before = session.state().unwrap();
    session.train(&batch()).unwrap();
    [before, session.state().unwrap()]
}

fn floats(array: &Array) -> Vec<f32> {
    array.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// A product or sum whose factors may be in another order, or with one more rounding.
fn loose(x: Bounded) -> Bounded {
    x.rounded(4.0 * U)
}

/// Mean and variance of each feature, combined from parts of `size` rows. For a variance both formulas are allowed: the
/// mean of squared distances, and the mean of squares minus the squared mean.
fn statistics(rows: &[Vec<Bounded>], feature: usize, size: usize) -> [Bounded; 2] {
    let mean = |values: &[Bounded]| loose(Bounded::sum(values.iter().copied()) / Bounded::exact(values.len() as f64));
    let of_part = |rows: &[Vec<Bounded>]| {
        let x: Vec<Bounded> = rows.iter().map(|row| row[feature]).collect();
        let centre = mean(&x);
        let squared =
            |values: &[Bounded], centre| mean(&values.iter().map(|&x| (x - centre) * (x - centre)).collect::<Vec<_>>());
        let [one, other] = [squared(&x, centre), squared(&x, Bounded::exact(0.0)) - centre * centre];
        (centre, Bounded { error: one.error.max(other.error) + (one.value - other.value).abs(), ..one })
    };
    let parts: Vec<(Bounded, Bounded)> = rows.chunks(size).map(of_part).collect();
    let centre = mean(&parts.iter().map(|(mean, _)| *mean).collect::<Vec<_>>());
    let around = |&(mean, variance): &(Bounded, Bounded)| variance + (mean - centre) * (mean - centre);
    [centre, mean(&parts.iter().map(around).collect::<Vec<_>>())]
}

/// Every gradient and running statistic after a step, with statistics combined from parts of `size` rows.
fn expected(before: &BTreeMap<String, Array>, size: usize) -> BTreeMap<&'static str, Vec<Bounded>> {
    let exact = |values: &[f32]| values.iter().map(|&value| Bounded::exact(f64::from(value))).collect::<Vec<_>>();
    let (x, y) = values();
    let (x, y) = (exact(&x), exact(&y));
    let variable = |name: &str| exact(&floats(&before[name]));
    let (kernel, bias, out) = (variable("a/kernel"), variable("a/bias"), variable("b/kernel"));
    let of_row = |x: &[Bounded]| {
        let unit = |unit: usize| Bounded::sum((0..INPUTS).map(|i| x[i] * kernel[i * FEATURES + unit])) + bias[unit];
        (0..FEATURES).map(unit).collect::<Vec<_>>()
    };
    let hidden: Vec<Vec<Bounded>> = x.chunks(INPUTS).map(of_row).collect();
    let statistics: Vec<[Bounded; 2]> = (0..FEATURES).map(|feature| statistics(&hidden, feature, size)).collect();
    let (gamma_before, beta_before) = (variable("bn/gamma"), variable("bn/beta"));
    let inverse: Vec<Bounded> = statistics
        .iter()
        .map(|[_, variance]| loose(Bounded::exact(1.0) / (*variance + Bounded::constant(1e-5)).sqrt()))
        .collect();
    let normal: Vec<Vec<Bounded>> = hidden
        .iter()
        .map(|row| (0..FEATURES).map(|c| loose((row[c] - statistics[c][0]) * inverse[c])).collect())
        .collect();
    let shifted: Vec<Vec<Bounded>> = normal
        .iter()
        .map(|row| (0..FEATURES).map(|c| loose(row[c] * gamma_before[c] + beta_before[c])).collect())
        .collect();
    let slope = |(row, y): (&Vec<Bounded>, &Bounded)| {
        let predicted = Bounded::sum((0..FEATURES).map(|c| row[c] * out[c])) + variable("b/bias")[0];
        loose((predicted - *y) * Bounded::exact(2.0 / N as f64))
    };
    let slopes: Vec<Bounded> = shifted.iter().zip(&y).map(slope).collect();
    let along = |element: &dyn Fn(usize) -> Bounded| Bounded::sum((0..N).map(element));
    let of_features = |element: &dyn Fn(usize) -> Bounded| (0..FEATURES).map(element).collect::<Vec<_>>();
    let gamma = of_features(&|c| along(&|i| slopes[i] * out[c] * normal[i][c]));
    let beta = of_features(&|c| along(&|i| slopes[i] * out[c]));
    let n = Bounded::exact(N as f64);
    let to_hidden = |i: usize, c: usize| {
        let along = loose(gamma[c] / n * normal[i][c]);
        loose((slopes[i] * out[c] - beta[c] / n - along) * inverse[c] * gamma_before[c])
    };
    let to_kernel =
        (0..INPUTS * FEATURES).map(|at| along(&|i| x[i * INPUTS + at / FEATURES] * to_hidden(i, at % FEATURES)));
    let moved = |name: &str, element: &dyn Fn(usize) -> Bounded| {
        let start = variable(name);
        of_features(&|c| Bounded::moved(start[c], element(c), 0.9))
    };
    let unbiased = Bounded::constant(N as f64 / (N - 1) as f64);
    let mut expected = BTreeMap::from([
        ("a/kernel/momentum", to_kernel.collect::<Vec<_>>()),
        ("a/bias/momentum", of_features(&|c| along(&|i| to_hidden(i, c)))),
        ("bn/gamma/momentum", gamma.clone()),
        ("bn/beta/momentum", beta.clone()),
        ("b/kernel/momentum", of_features(&|c| along(&|i| slopes[i] * shifted[i][c]))),
        ("b/bias/momentum", vec![along(&|i| slopes[i])]),
        ("bn/moving_mean", moved("bn/moving_mean", &|c| statistics[c][0])),
        ("bn/moving_variance", moved("bn/moving_variance", &|c| statistics[c][1] * unbiased)),
    ]);
    for (name, gradient) in expected.iter_mut().filter(|(name, _)| name.ends_with("/momentum")) {
        for (gradient, slot) in gradient.iter_mut().zip(variable(name)) {
            *gradient = loose(Bounded::constant(0.9) * slot + *gradient);
        }
    }
    expected
}

/// A run that resumes on fewer devices starts with a step on the whole batch, from the state of the others.
#[test]
fn a_run_that_goes_on_with_fewer_replicas_makes_the_step_of_the_whole_batch() {
    let mut checkpoint = {
        let mut session = Session::new(client(), spec(across(8, 8))).unwrap();
        session.train(&batch()).unwrap();
        session.checkpoint(4).unwrap()
    };
    for n in [4, 1] {
        let mut session = Session::new(client(), spec(across(n, n))).unwrap();
        session.restore(Path::new("run"), &checkpoint, Resumption::default()).unwrap();
        let before = session.state().unwrap();
        assert!(before == checkpoint.variables);
        session.train(&batch()).unwrap();
        let after = session.state().unwrap();
        for (name, expected) in expected(&before, N) {
            for (at, (measured, expected)) in floats(&after[name]).into_iter().zip(expected).enumerate() {
                check(&format!("{n} replicas, {name} {at}"), measured, expected);
            }
        }
        // The next one resumes from here.
        checkpoint = session.checkpoint(4).unwrap();
    }
}

#[test]
fn statistics_across_all_replicas_are_those_of_the_whole_batch() {
    // Four and two parts, and the whole.
    for (mesh, size) in [(across(4, 4), N / 4), (across(2, 2), N / 2), (across(1, 1), N)] {
        let [before, after] = step(mesh);
        for (name, expected) in expected(&before, size) {
            let measured = floats(&after[name]);
            assert_eq!(measured.len(), expected.len(), "{name}");
            for (at, (measured, expected)) in measured.into_iter().zip(expected).enumerate() {
                check(&format!("{} replicas, {name} {at}", mesh.data), measured, expected);
            }
        }
    }
    // The bound distinguishes this from statistics of parts.
    let [before, after] = step(mesh(4));
    let (mean, expected) = (floats(&after["bn/moving_mean"]), &expected(&before, N)["bn/moving_mean"]);
    let is_off = |(mean, expected): (&f32, &Bounded)| (f64::from(*mean) - expected.value).abs() > expected.error;
    assert!(mean.iter().zip(expected).all(is_off));
}

/// Groups of two out of four: each half of the batch has the statistics of two replicas with half the batch.
#[test]
fn groups_take_statistics_of_their_own() {
    let module = |mesh: Mesh| {
        let spec = spec(mesh);
        let program = bf16scope::train::program::training(&*spec.task, spec.numbers(), N as i64, &spec.objective);
        bf16scope::hlo::text::print(&program.unwrap().program.module, &bf16scope::hlo::text::PrintOptions::default())
    };
    let (of_two, of_all) = (module(across(4, 2)), module(across(4, 4)));
    let n_groups = |text: &str| text.matches("replica_groups={{0,1},{2,3}}").count();
    // Means, variances, and both sums of the gradient.
    assert_eq!((n_groups(&of_two), n_groups(&of_all)), (4, 0));
    let [_, after] = step(across(4, 2));
    let [before, of_whole] = step(across(4, 4));
    let (x, _) = values();
    let first = expected(&before, N);
    // The first group's mean is kept: that of the first half.
    let half: Vec<f32> = floats(&after["bn/moving_mean"]);
    let (whole, expected_of_half) = (floats(&of_whole["bn/moving_mean"]), half_mean(&before, &x[..N / 2 * INPUTS]));
    for (at, (mean, expected)) in half.iter().zip(expected_of_half).enumerate() {
        check(&format!("half {at}"), *mean, expected);
        check(&format!("whole {at}"), whole[at], first["bn/moving_mean"][at]);
    }
}

/// The running mean after a step on these rows, from 0.
fn half_mean(before: &BTreeMap<String, Array>, x: &[f32]) -> Vec<Bounded> {
    let (kernel, bias) = (floats(&before["a/kernel"]), floats(&before["a/bias"]));
    let exact = |value: f32| Bounded::exact(f64::from(value));
    let n = x.len() / INPUTS;
    let hidden = |row: &[f32], c: usize| {
        Bounded::sum((0..INPUTS).map(|i| exact(row[i]) * exact(kernel[i * FEATURES + c]))) + exact(bias[c])
    };
    let mean = |c: usize| loose(Bounded::sum(x.chunks(INPUTS).map(|row| hidden(row, c))) / Bounded::exact(n as f64));
    (0..FEATURES).map(|c| Bounded::moved(Bounded::exact(0.0), loose(mean(c)), 0.9)).collect()
}

#[test]
fn groups_that_do_not_divide_the_replicas_are_refused_with_the_line() {
    let message = Session::new(client(), spec(across(4, 3))).map(drop).unwrap_err().to_string();
    assert_eq!(
        message,
        "batch_norm takes statistics across 3 replicas, and the mesh has 4\nhelp: make `across` a number that divides 4"
    );
}

#[test]
fn a_mesh_that_is_written_wrong_is_told_how_to_write_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.yaml");
    let read = |mesh: &str| {
        std::fs::write(&path, format!("model: {NETWORK}\nmesh: {mesh}\n")).unwrap();
        Experiment::read(&path)
    };
    let message = read("4").unwrap_err().to_string();
    assert!(
        message.contains(":2:7: ") && message.contains("help: write `mesh: {data: 4}` for 4 replicas"),
        "{message}"
    );
    let message = read("{data: 4, batch_norm: {across: 0}}").unwrap_err().to_string();
    assert!(message.contains("m.yaml:2:") && message.contains("a whole number from 1 to 2048"), "{message}");
    // Only the number of replicas decides whether groups divide them, and a flag may set it.
    let experiment = read("{data: 4, state: sharded, batch_norm: {across: 3}}").unwrap();
    assert_eq!(experiment.mesh.mesh.state, StateOf::Sharded);
    let error = Session::new(client(), spec(experiment.mesh.mesh)).map(drop).unwrap_err();
    let placed = experiment.with_its_line(error).to_string();
    assert!(placed.contains("m.yaml:2:") && placed.contains("across: 3"), "{placed}");
}
