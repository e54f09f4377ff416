//! The digits learnt on xla-rs's client as on the plugin, but for the order of sums. With the feature `xla` only.
use crate::examples;
use bf16scope::data::{Batch, NamedArray};
use bf16scope::experiment::{Examples, Experiment};
use bf16scope::graph::Precision;
use bf16scope::models::Model;
use bf16scope::pjrt::{Client, Platform, Setup};
use bf16scope::train::Session;
use bf16scope::tuning::Tuning;
use std::path::Path;

const EPOCHS: u64 = 4;

/// The order of a batch's examples: `order[i]` comes at place `i`.
type Order = fn(usize) -> Vec<usize>;

fn as_it_is(n: usize) -> Vec<usize> {
    (0..n).collect()
}

/// Orders that are not the first.
const ORDERS: [Order; 4] = [
    |n| (0..n).rev().collect(),
    |n| (0..n).map(|i| (i + 1) % n).collect(),
    |n| (0..n).map(|i| (i + n / 2) % n).collect(),
    |n| (0..n).step_by(2).chain((1..n).step_by(2)).collect(),
];

fn ordered(batch: &Batch, order: Order) -> Batch {
    let reordered = |array: &NamedArray| {
        let order = order(array.dims[0] as usize);
        let n_bytes = array.bytes.len() / order.len();
        let bytes = order.iter().flat_map(|&idx| array.bytes[idx * n_bytes..][..n_bytes].iter().copied()).collect();
        NamedArray { bytes, ..array.clone() }
    };
    Batch { arrays: batch.arrays.iter().map(reordered).collect(), ..batch.clone() }
}

/// The mean training loss of each epoch, and the share of the test set that is right at the end.
fn learn(client: &Client, experiment: &Experiment, data: &Examples, order: Order) -> (Vec<f64>, f64) {
    let spec = experiment.spec(Precision::F32, &Tuning::none()).unwrap();
    let mut session = Session::new(client, spec.clone()).unwrap();
    let loader = examples::loader(&*data.training, &spec).shifted(spec.shift).unwrap();
    let mut losses = Vec::new();
    for epoch in 0..EPOCHS {
        let mut totals = session.no_totals();
        for batch in loader.epoch(epoch) {
            totals.merge(&session.train(&ordered(&batch.unwrap(), order)).unwrap());
        }
        losses.push(totals.loss().unwrap());
    }
    let evaluator = session.evaluator(spec.batch).unwrap();
    (losses, session.evaluate(&evaluator, &*data.test).unwrap().totals.value("accuracy").unwrap())
}

/// What reordering sums does to a curve is measured: the plugin learns from the same batches with their examples in other
/// orders, which changes nothing but the order in which a batch's terms are added. xla-rs's curve may leave the plugin's
/// by twice the farthest of those in any epoch up to the one compared: were it a fifth draw from what the other four
/// are drawn from, it would stay below. Dropout is off, for its masks go by place in the batch.
#[test]
fn the_digits_are_learnt_as_on_the_plugin_but_for_the_order_of_sums() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.yaml");
    let mut experiment = Experiment::read(&path).unwrap();
    let data = experiment.read_data(&path, &Setup::from_env()).unwrap();
    let Model::Cnn(config) = &mut experiment.model else { panic!("the digits' model is a cnn") };
    config.dropout = 0.0;
    let [plugin, xla_cpu] =
        [Platform::cpu(), Platform::XlaCpu].map(|it| Client::for_platform(&it, &Setup::from_env()).unwrap());
    let (plain, plain_accuracy) = learn(&plugin, &experiment, &data, as_it_is);
    let others: Vec<(Vec<f64>, f64)> = ORDERS.map(|order| learn(&plugin, &experiment, &data, order)).to_vec();
    let (xla_rs, accuracy) = learn(&xla_cpu, &experiment, &data, as_it_is);
    println!("plain {plain:?} {plain_accuracy}\nxla-rs {xla_rs:?} {accuracy}");
    let mut farthest = 0.0f64;
    for (epoch, (&expected, &measured)) in plain.iter().zip(&xla_rs).enumerate() {
        let spread = others.iter().map(|(losses, _)| (losses[epoch] - expected).abs()).fold(0.0, f64::max);
        farthest = farthest.max(spread);
        println!("epoch {epoch}: reordered {spread:.3e}, xla-rs {:.3e}", (measured - expected).abs());
        assert!(farthest > 0.0, "another order changed nothing, so it measures nothing");
        assert!(
            (measured - expected).abs() <= 2.0 * farthest,
            "epoch {epoch}: {measured} on xla-rs, {expected} on the plugin, which other orders move by {farthest}"
        );
    }
    let spread = others.iter().map(|(_, accuracy)| (accuracy - plain_accuracy).abs()).fold(0.0, f64::max);
    println!("accuracies: reordered {spread}, xla-rs {}", (accuracy - plain_accuracy).abs());
    assert!((accuracy - plain_accuracy).abs() <= 2.0 * spread.max(1.0 / data.test.n_examples() as f64));
}
