//! Forty planted faults and forty healthy runs: the black box names the cause, the layer and a remedy of each fault, first, and
//! says nothing of a healthy run. `cargo test` has ten of the ones and eight of the others; `ci/long` all of them.

use crate::run;

use bf16scope::data::{ArrayInfo, Arrays};
use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::train::watch::{Anomaly, RULES, Watch, WatchRecord, anomalies};
use bf16scope::train::{Data, Event, Resumption, RunPlan, Session, run as train};
use bf16scope::tuning::Tuning;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

const N: usize = 128;
const EVERY: u32 = 4;

/// A run: a network, the size of its inputs, and changes of its initial values.
#[derive(Clone, Copy)]
pub struct Plan {
    pub name: &'static str,
    pub dims: &'static [i64],
    /// Inputs beside `x`, as YAML.
    pub inputs: &'static str,
    /// The size of the features, and of the first of them.
    pub scale: [f32; 2],
    pub layers: &'static str,
    pub loss: &'static str,
    /// Numeric labels: mean and deviation.
    pub labels: Option<[f32; 2]>,
    pub train: &'static str,
    pub precision: Precision,
    /// Suffixes of variables' names, with their changed values.
    pub change: &'static [(&'static str, Change)],
    /// The rule, a part of the layer's name and the start of the remedy; `None` for a healthy run.
    pub fault: Option<(&'static str, &'static str, &'static str)>,
    /// Epochs of eight steps, or one of 128 at a batch of 1.
    pub n_epochs: u64,
    pub is_short: bool,
}

/// A change of a number.
pub type Change = fn(f32) -> f32;

pub const PLAN: Plan = Plan {
    name: "",
    dims: &[16],
    inputs: "",
    scale: [1.0, 1.0],
    layers: "{dense: 32, activation: relu, name: first}, {dense: 2, name: head}",
    loss: "sparse_softmax_cross_entropy",
    labels: None,
    train: "optimizer: adam, learning_rate: 0.001",
    precision: Precision::Bf16,
    change: &[],
    fault: None,
    n_epochs: 3,
    is_short: false,
};

/// A regression.
pub const NUMBERS: Plan = Plan { layers: "{dense: 32, activation: relu, name: first}, {dense: 1, name: head}", ..PLAN };

const SIGMOIDS: &str = "{dense: 16, activation: sigmoid, name: s1}, {dense: 16, activation: sigmoid, name: s2}, {dense: 16, activation: sigmoid, name: s3}, {dense: 16, activation: sigmoid, name: s4}, {dense: 16, activation: sigmoid, name: s5}, {dense: 16, activation: sigmoid, name: s6}, {dense: 16, activation: sigmoid, name: s7}, {dense: 16, activation: sigmoid, name: s8}, {dense: 16, activation: sigmoid, name: s9}, {dense: 16, activation: sigmoid, name: s10}, {dense: 16, activation: sigmoid, name: s11}, {dense: 16, activation: sigmoid, name: s12}, {dense: 16, activation: sigmoid, name: s13}, {dense: 16, activation: sigmoid, name: s14}, {dense: 2, name: head}";
pub const THREE: &str =
    "{dense: 32, activation: relu, name: first}, {dense: 32, activation: relu, name: mid}, {dense: 2, name: head}";
const THREE_SIGMOIDS: &str = "{dense: 32, activation: sigmoid, name: first}, {dense: 32, activation: sigmoid, name: mid}, {dense: 32, activation: sigmoid, name: last}, {dense: 2, name: head}";
const THREE_TANHS: &str = "{dense: 32, activation: tanh, name: first}, {dense: 32, activation: tanh, name: mid}, {dense: 32, activation: tanh, name: last}, {dense: 2, name: head}";
pub const CNN: &str =
    "{conv: 8, kernel_size: 3, activation: relu, name: first}, global_avg_pool, {dense: 2, name: head}";
pub const NORMED: &str = "{dense: 32, use_bias: false, name: first}, {batch_norm: , momentum: 0.9, name: norm}, {activation: relu}, {dense: 2, name: head}";

const PIXELS: (&str, &str, &str) =
    ("unscaled_input", "x", "scale the feature to an rms of about 1: `data: {scale: 7e-3}`");
const THOUSANDS: (&str, &str, &str) =
    ("unscaled_input", "x", "scale the feature to an rms of about 1: `data: {scale: 4e-4}`");
const COLUMN: (&str, &str, &str) =
    ("unscaled_input", "x", "column 1 of x has an rms of 5.6e4: let a `batch_norm` be the first layer");
const BIASES: &str = "give its biases smaller initial values (`bias_initializer: zeros`)";
const RESCALING: &str = "look at what this layer multiplies by and adds: `{rescaling: 1.0}`";

fn faults() -> Vec<Plan> {
    let pixels = [255.0, 255.0];
    let jump = "optimizer: sgd, learning_rate: {kind: piecewise, value: 0.001, changes: [{step: 10, value: 100.0}]}";
    vec![
        Plan { name: "pixels", scale: pixels, fault: Some(PIXELS), ..PLAN },
        Plan { name: "thousands", scale: [4000.0; 2], fault: Some(THOUSANDS), ..PLAN },
        Plan { name: "pixels, cnn", dims: &[6, 6, 1], scale: pixels, layers: CNN, fault: Some(PIXELS), ..PLAN },
        Plan {
            name: "thousands, cnn",
            dims: &[6, 6, 1],
            scale: [4000.0; 2],
            layers: CNN,
            fault: Some(THOUSANDS),
            ..PLAN
        },
        Plan { name: "one column", scale: [1.0, 1e5], fault: Some(COLUMN), ..PLAN },
        Plan {
            name: "one column, regression",
            scale: [1.0, 1e5],
            loss: "mean_squared_error",
            labels: Some([0.0, 1.0]),
            fault: Some(COLUMN),
            ..NUMBERS
        },
        Plan { name: "pixels, sigmoids", scale: pixels, layers: THREE_SIGMOIDS, fault: Some(PIXELS), ..PLAN },
        Plan {
            name: "pixels, flattened",
            dims: &[4, 4],
            scale: pixels,
            layers: "flatten, {dense: 16, activation: tanh, name: first}, {dense: 2}",
            fault: Some(PIXELS),
            ..PLAN
        },
        Plan {
            name: "fourteen sigmoids",
            layers: SIGMOIDS,
            train: "optimizer: sgd, learning_rate: 0.1",
            fault: Some(("vanishing", "s1", "use `activation: relu` or `gelu`, or a `batch_norm`")),
            is_short: true,
            ..PLAN
        },
        Plan {
            name: "fourteen sigmoids in f32",
            layers: SIGMOIDS,
            precision: Precision::F32,
            fault: Some(("vanishing", "s1", "use `activation: relu` or `gelu`, or a `batch_norm`")),
            ..PLAN
        },
        Plan {
            name: "small kernels",
            layers: THREE_TANHS,
            change: &[("mid/kernel", |value| 1e-7 * value)],
            train: "optimizer: sgd, learning_rate: 1.0e-5",
            fault: Some(("vanishing", "mid", "give its kernel larger initial values")),
            ..PLAN
        },
        Plan {
            name: "a shut sigmoid",
            layers: THREE_SIGMOIDS,
            change: &[("mid/bias", |_| 60.0)],
            train: "optimizer: sgd, learning_rate: 0.1",
            fault: Some(("saturated_activation", "mid", BIASES)),
            is_short: true,
            ..PLAN
        },
        Plan {
            name: "a sigmoid shut below",
            layers: THREE_SIGMOIDS,
            change: &[("mid/bias", |_| -30.0)],
            precision: Precision::F32,
            fault: Some(("saturated_activation", "mid", BIASES)),
            ..PLAN
        },
        Plan {
            name: "a shut tanh",
            layers: THREE_TANHS,
            change: &[("mid/bias", |_| 60.0)],
            fault: Some(("saturated_activation", "mid", BIASES)),
            ..PLAN
        },
        Plan {
            name: "a last sigmoid shut by its bias",
            layers: THREE_SIGMOIDS,
            change: &[("last/bias", |_| 90.0)],
            fault: Some(("saturated_activation", "last", BIASES)),
            ..PLAN
        },
        Plan {
            name: "a dead relu",
            layers: THREE,
            change: &[("mid/bias", |_| -50.0)],
            train: "optimizer: sgd, learning_rate: 0.1",
            fault: Some(("dead", "mid", "give it other initial values (`bias_initializer: zeros`")),
            ..PLAN
        },
        Plan {
            name: "a first relu that is dead",
            layers: THREE,
            change: &[("first/bias", |_| -50.0)],
            fault: Some(("dead", "first", "give it other initial values (`bias_initializer: zeros`")),
            ..PLAN
        },
        Plan {
            name: "an offset below a relu",
            layers: "{dense: 32, name: first}, {rescaling: 1.0, offset: -1000, name: shift}, {activation: relu, name: cut}, {dense: 2, name: head}",
            fault: Some(("rescaled", "shift", RESCALING)),
            ..PLAN
        },
        Plan {
            name: "rescaled to nothing",
            layers: "{dense: 32, activation: tanh, name: first}, {rescaling: 1.0e-9, name: scaled}, {dense: 2, name: head}",
            fault: Some(("rescaled", "scaled", RESCALING)),
            is_short: true,
            ..PLAN
        },
        Plan {
            name: "rescaled to zeros",
            layers: "{dense: 32, activation: tanh, name: first}, {rescaling: 0.0, name: scaled}, {dense: 2, name: head}",
            fault: Some(("rescaled", "scaled", RESCALING)),
            ..PLAN
        },
        Plan {
            name: "rescaled to millions",
            layers: "{dense: 32, activation: tanh, name: first}, {rescaling: 1.0e6, name: scaled}, {dense: 2, name: head}",
            fault: Some(("rescaled", "scaled", RESCALING)),
            ..PLAN
        },
        Plan {
            name: "zero kernels",
            layers: "{dense: 32, activation: relu, name: first}, {dense: 32, activation: relu, name: mid, kernel_initializer: zeros}, {dense: 2, name: head, kernel_initializer: zeros}",
            fault: Some(("zero_kernel", "mid", "give it initial values: `kernel_initializer: glorot_uniform`")),
            is_short: true,
            ..PLAN
        },
        Plan {
            name: "zero kernels of tanhs",
            layers: "{dense: 32, activation: tanh, name: first, kernel_initializer: zeros}, {dense: 32, activation: tanh, name: mid, kernel_initializer: zeros}, {dense: 2, name: head}",
            fault: Some(("zero_kernel", "first", "give it initial values: `kernel_initializer: glorot_uniform`")),
            ..PLAN
        },
        Plan {
            name: "a batch norm of one",
            layers: NORMED,
            train: "batch: 1, optimizer: adam, learning_rate: 0.001",
            fault: Some(("norm_of_one", "norm", "`batch: 32`, a `layer_norm` in its place")),
            is_short: true,
            ..PLAN
        },
        Plan {
            name: "a batch norm of one, sgd",
            layers: NORMED,
            train: "batch: 1, optimizer: sgd, learning_rate: 0.01",
            fault: Some(("norm_of_one", "norm", "`batch: 32`, a `layer_norm` in its place")),
            ..PLAN
        },
        Plan {
            name: "a large loss scale",
            precision: Precision::F16,
            train: "optimizer: sgd, learning_rate: 0.01, loss_scale: 'static:1.0e9'",
            fault: Some(("loss_scale", "", "`loss_scale: dynamic`")),
            is_short: true,
            ..PLAN
        },
        Plan {
            name: "a small loss scale",
            precision: Precision::F16,
            train: "optimizer: sgd, learning_rate: 0.01, loss_scale: 'static:1.0e-7'",
            fault: Some(("flushed", "", "use `loss_scale: dynamic`")),
            ..PLAN
        },
        Plan {
            name: "an epsilon of 1",
            train: "optimizer: {kind: adam, epsilon: 1.0}, learning_rate: 0.001",
            fault: Some(("large_epsilon", "", "lower ε: `optimizer: {kind: adam, epsilon: 1.0e-8}`")),
            is_short: true,
            ..PLAN
        },
        Plan {
            name: "an epsilon of 1, adamw",
            layers: THREE,
            train: "optimizer: {kind: adamw, epsilon: 1.0}, learning_rate: 0.001",
            fault: Some(("large_epsilon", "", "lower ε: `optimizer: {kind: adamw, epsilon: 1.0e-8}`")),
            ..PLAN
        },
        Plan {
            name: "an epsilon of 10",
            train: "optimizer: {kind: adam, epsilon: 10.0}, learning_rate: 0.01",
            fault: Some(("large_epsilon", "", "lower ε: `optimizer: {kind: adam, epsilon: 1.0e-8}`")),
            ..PLAN
        },
        Plan {
            name: "features of 1e-15, and an epsilon that lets them",
            scale: [1e-15; 2],
            train: "optimizer: {kind: adam, epsilon: 1.0e-30}, learning_rate: 0.001",
            fault: Some(("unscaled_input", "x", "scale the feature to an rms of about 1: `data: {scale: 2e15}`")),
            ..PLAN
        },
        Plan {
            name: "three hundred times the rate of adam",
            layers: THREE,
            train: "optimizer: adam, learning_rate: 0.3",
            fault: Some(("large_rate", "", "lower the learning rate: at `learning_rate: 4e-4`")),
            n_epochs: 6,
            ..PLAN
        },
        Plan {
            name: "a rate of 0",
            train: "optimizer: sgd, learning_rate: 0",
            fault: Some(("zero_rate", "", "`learning_rate: 0.001`")),
            is_short: true,
            ..PLAN
        },
        Plan {
            name: "a rate of 0, adam",
            layers: NORMED,
            train: "optimizer: adam, learning_rate: 0",
            fault: Some(("zero_rate", "", "`learning_rate: 0.001`")),
            ..PLAN
        },
        Plan {
            name: "slow statistics",
            layers: "{dense: 32, name: first}, {batch_norm: , momentum: 0.9999, name: norm}, {activation: relu}, {dense: 2, name: head}",
            fault: Some(("slow_statistics", "norm", "lower the layer's momentum: `{batch_norm: , momentum: 0.99}`")),
            is_short: true,
            ..PLAN
        },
        Plan {
            name: "slow statistics, cnn",
            dims: &[6, 6, 1],
            layers: "{conv: 8, kernel_size: 3, name: first}, {batch_norm: , momentum: 0.99995, name: norm}, {activation: relu}, global_avg_pool, {dense: 2}",
            fault: Some(("slow_statistics", "norm", "lower the layer's momentum: `{batch_norm: , momentum: 0.99}`")),
            ..PLAN
        },
        Plan {
            name: "a rate that jumps",
            layers: THREE,
            train: jump,
            fault: Some(("rate_jump", "loss", "lower what `learning_rate` is from that step on")),
            is_short: true,
            ..PLAN
        },
        Plan {
            name: "a rate that jumps, cnn",
            dims: &[6, 6, 1],
            layers: CNN,
            train: "optimizer: momentum, learning_rate: {kind: piecewise, value: 0.001, changes: [{step: 10, value: 1000.0}]}",
            fault: Some(("rate_jump", "loss", "lower what `learning_rate` is from that step on")),
            ..PLAN
        },
        Plan {
            name: "a decay of all",
            train: "optimizer: adamw, learning_rate: 0.001, weight_decay: {value: 500, decoupled: true}",
            fault: Some(("weight_decay", "", "lower `weight_decay`")),
            ..PLAN
        },
        Plan {
            name: "bf16 weights that stall",
            train: "optimizer: sgd, learning_rate: 0.0001, variables: bf16_nearest",
            fault: Some(("stalled", "", "store variables as f32 (`variables: f32`)")),
            ..PLAN
        },
        Plan {
            name: "labels in ten thousands under sgd",
            loss: "mean_squared_error",
            labels: Some([30000.0, 10000.0]),
            train: "optimizer: sgd, learning_rate: 0.3",
            fault: Some((
                "label_scale",
                "labels",
                "train on labels less their mean, divided by their standard deviation",
            )),
            ..NUMBERS
        },
    ]
}

fn healthy() -> Vec<Plan> {
    let of_numbers = |name, loss, labels| Plan { name, loss, labels: Some(labels), ..NUMBERS };
    let of_layers = |name, layers| Plan { name, layers, ..PLAN };
    let of_train = |name, train| Plan { name, train, ..PLAN };
    let huber = "{huber: , delta: 1.0}";
    vec![
        of_numbers("22 ± 9, squares", "mean_squared_error", [22.0, 9.0]),
        Plan { is_short: true, ..of_numbers("prices, absolute", "mean_absolute_error", [200_000.0, 80_000.0]) },
        of_numbers("prices, huber", huber, [200_000.0, 80_000.0]),
        of_numbers("prices, squares, adam", "mean_squared_error", [200_000.0, 80_000.0]),
        of_numbers("thousandths", "mean_squared_error", [0.0, 0.001]),
        of_numbers("units", "mean_absolute_error", [0.0, 1.0]),
        of_numbers("hundreds", huber, [300.0, 100.0]),
        of_numbers("millions", "mean_absolute_error", [5e6, 1e6]),
        Plan {
            train: "optimizer: adam, learning_rate: 0.1",
            ..of_numbers("prices, a large rate", "mean_absolute_error", [200_000.0, 80_000.0])
        },
        Plan { precision: Precision::F32, ..of_numbers("prices in f32", "mean_squared_error", [200_000.0, 80_000.0]) },
        Plan {
            dims: &[16],
            ..of_layers(
                "stochastic depth",
                "{dense: 16, activation: relu, name: a}, {dense: 16, activation: relu, name: b}, {stochastic_depth: 0.9, name: drop}, {add: [a, drop]}, {dense: 2, name: head}",
            )
        },
        Plan {
            train: "batch: 1, optimizer: sgd, learning_rate: 0.01",
            is_short: true,
            ..of_layers(
                "stochastic depth at a batch of 1",
                "{dense: 16, activation: tanh, name: a}, {dense: 16, activation: tanh, name: b}, {stochastic_depth: 0.8, name: drop}, {add: [a, drop]}, {dense: 2, name: head}",
            )
        },
        of_layers("dropout", "{dense: 32, activation: relu, name: a}, {dropout: 0.5}, {dense: 2, name: head}"),
        of_layers(
            "much dropout",
            "{dense: 64, activation: relu, name: a}, {dropout: 0.9}, {dense: 64, activation: relu}, {dropout: 0.9}, {dense: 2, name: head}",
        ),
        of_layers("three sigmoids", THREE_SIGMOIDS),
        of_layers("three tanhs", THREE_TANHS),
        Plan { is_short: true, ..of_layers("a batch norm", NORMED) },
        of_layers("a layer norm", "{dense: 32, name: a}, layer_norm, {activation: gelu}, {dense: 2, name: head}"),
        of_layers("an rms norm", "{dense: 32, name: a}, rms_norm, {activation: silu}, {dense: 2, name: head}"),
        Plan {
            is_short: true,
            ..of_layers(
                "a last layer of zeros",
                "{dense: 32, activation: relu, name: a}, {dense: 2, name: head, kernel_initializer: zeros}",
            )
        },
        of_layers(
            "a residual branch of zeros",
            "{dense: 16, name: a}, {dense: 16, activation: relu, name: b}, {dense: 16, name: c, kernel_initializer: zeros}, {add: [a, c]}, {dense: 2, name: head}",
        ),
        Plan {
            is_short: true,
            scale: [255.0, 255.0],
            ..of_layers(
                "pixels that a layer rescales",
                "{rescaling: 0.00392, name: scaled}, {dense: 32, activation: relu, name: a}, {dense: 2, name: head}",
            )
        },
        Plan {
            scale: [1e4, 1e4],
            ..of_layers(
                "ten thousands that a layer rescales",
                "{rescaling: 0.0001, name: scaled}, {dense: 32, activation: relu, name: a}, {dense: 2, name: head}",
            )
        },
        Plan {
            is_short: true,
            layers: "{dense: 32, activation: relu, name: first}, {dense: 1, name: head}, {rescaling: 100000, offset: 270000, name: price, dtype: float32}",
            n_epochs: 6,
            ..of_numbers("prices that a layer makes", "mean_squared_error", [270_000.0, 100_000.0])
        },
        Plan {
            scale: [1000.0, 1e5],
            ..of_layers(
                "columns that a batch norm scales",
                "{batch_norm: , name: norm}, {dense: 32, activation: relu, name: a}, {dense: 2, name: head}",
            )
        },
        Plan { dims: &[6, 6, 1], ..of_layers("a cnn", CNN) },
        Plan {
            dims: &[6, 6, 1],
            ..of_layers(
                "a cnn with pools",
                "{conv: 8, kernel_size: 3, padding: same, activation: relu, name: a}, {max_pool: 2}, {conv: 8, kernel_size: 3, padding: same, activation: relu}, global_avg_pool, {dense: 2}",
            )
        },
        Plan {
            is_short: true,
            dims: &[4, 8],
            train: "optimizer: adamw, learning_rate: 0.001, warm_up: {steps: 10}",
            ..of_layers("a transformer", "{transformer_block: 2, intermediate_dim: 16}, flatten, {dense: 2}")
        },
        Plan {
            dims: &[4, 8],
            ..of_layers(
                "a transformer that normalises before",
                "{transformer_block: 2, intermediate_dim: 16, normalize_first: true, repeats: 2}, layer_norm, flatten, {dense: 2}",
            )
        },
        Plan { dims: &[4, 8], ..of_layers("attention", "{attention: 2}, flatten, {dense: 2}") },
        of_train("sgd", "optimizer: sgd, learning_rate: 0.1"),
        of_train("momentum", "optimizer: momentum, learning_rate: 0.01"),
        of_train(
            "rmsprop with TensorFlow's epsilon",
            "optimizer: {kind: rmsprop, momentum: 0.9, epsilon: 0.001}, learning_rate: 0.001",
        ),
        of_train("lamb", "optimizer: lamb, learning_rate: 0.001"),
        of_train("adagrad", "optimizer: adagrad, learning_rate: 0.01"),
        of_train("a rate that begins at 0", "optimizer: adam, learning_rate: 0.001, warm_up: {steps: 12}"),
        of_train(
            "a rate that ends at 0",
            "optimizer: adam, learning_rate: {kind: linear, value: 0.001, decay_steps: 10}",
        ),
        of_train(
            "a rate that rises a little",
            "optimizer: sgd, learning_rate: {kind: piecewise, value: 0.01, changes: [{step: 10, value: 0.1}]}",
        ),
        of_train(
            "bf16 weights, rounded stochastically",
            "optimizer: adam, learning_rate: 0.001, variables: bf16_stochastic",
        ),
        of_train("bf16 weights, compensated", "optimizer: adam, learning_rate: 0.001, variables: bf16_compensated"),
        Plan { precision: Precision::F16, is_short: true, ..of_train("f16", "optimizer: adam, learning_rate: 0.001") },
        Plan {
            precision: Precision::F16,
            dims: &[6, 6, 1],
            layers: CNN,
            ..of_train("f16, a constant scale", "optimizer: sgd, learning_rate: 0.01, loss_scale: 'static:1024'")
        },
    ]
}

/// Features and labels that can be learnt: the class depends on the sum of a few features.
fn data(plan: &Plan) -> Arrays {
    let size = plan.dims.iter().product::<i64>() as usize;
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let (mut x, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..N {
        let values: Vec<f32> = (0..size).map(|_| next()).collect();
        let sum: f32 = values.iter().take(4).sum();
        x.extend(values.iter().enumerate().map(|(at, value)| value * plan.scale[usize::from(at == 0)]));
        match plan.labels {
            None => labels.extend(i32::from(sum > 0.0).to_le_bytes()),
            Some([mean, deviation]) => labels.extend((mean + deviation * sum).to_le_bytes()),
        }
    }
    let x = x.into_iter().flat_map(f32::to_le_bytes).collect();
    let labelled = match plan.labels {
        None => ArrayInfo::new("labels", DType::S32, []),
        Some(_) => ArrayInfo::new("labels", DType::F32, [1]),
    };
    Arrays::new(Path::new("examples"), vec![(ArrayInfo::new("x", DType::F32, plan.dims), x), (labelled, labels)])
        .unwrap()
}

fn experiment(layers: &str, inputs: &str, loss: &str, train: &str) -> Experiment {
    let text = format!(
        "model:\n  kind: layers\n  inputs: {{{inputs}}}\n  layers: [{layers}]\n  loss: {loss}\ntrain: {{epochs: 3, {train}}}\n"
    );
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), &text).unwrap();
    Experiment::read(file.path()).unwrap_or_else(|error| panic!("{text}{error}"))
}

/// The epochs of a plan, with a record every four steps.
fn watched(plan: &Plan) -> Vec<WatchRecord> {
    let batch = if plan.train.contains("batch:") { "" } else { "batch: 16, " };
    let inputs = format!("x: {:?}{}", plan.dims, plan.inputs);
    let mut experiment = experiment(plan.layers, &inputs, plan.loss, &format!("{batch}{}", plan.train));
    experiment.train.n_train = Some(N as u64);
    let spec =
        experiment.spec(plan.precision, &Tuning::none()).unwrap_or_else(|error| panic!("{}: {error}", plan.name));
    let mut session =
        Session::new(run::client_for_words(), spec).unwrap_or_else(|error| panic!("{}: {error}", plan.name));
    if !plan.change.is_empty() {
        let mut checkpoint = session.checkpoint(8).unwrap();
        for (name, value) in plan.change {
            let mut arrays = checkpoint.variables.iter_mut().filter(|(variable, _)| variable.ends_with(name));
            let (_, array) = arrays.next().unwrap_or_else(|| panic!("{}: no {name}", plan.name));
            let values = array.bytes.as_chunks::<4>().0.iter().map(|bytes| value(f32::from_le_bytes(*bytes)));
            array.bytes = values.flat_map(f32::to_le_bytes).collect();
        }
        session.restore(Path::new("changed"), &checkpoint, Resumption::default()).unwrap();
    }
    let arrays = data(plan);
    let mut records = Vec::new();
    let watch = NonZeroU32::new(EVERY).map(|every| Watch { every });
    let n_epochs = if plan.train.contains("batch: 1,") { 1 } else { plan.n_epochs };
    let run_plan = RunPlan { watch, ..RunPlan::new(n_epochs, None) };
    let data = Data { training: &arrays, test: &arrays };
    let result = train(&mut session, data, &run_plan, &AtomicBool::new(false), &mut |event| {
        if let Event::Watched(record) = event {
            records.push(record.clone());
        }
    });
    assert!(result.is_ok() || plan.fault.is_some(), "{}: {result:?}", plan.name);
    records.sort_by_key(|record: &WatchRecord| record.step);
    records
}

/// The records of a plan: where several tests ask about one, it is trained once.
pub fn records(plan: &Plan) -> Arc<Vec<WatchRecord>> {
    type Kept = BTreeMap<[&'static str; 3], Arc<OnceLock<Arc<Vec<WatchRecord>>>>>;
    static KEPT: Mutex<Kept> = Mutex::new(BTreeMap::new());
    let records = Arc::clone(KEPT.lock().unwrap().entry([plan.name, plan.layers, plan.train]).or_default());
    Arc::clone(records.get_or_init(|| Arc::new(watched(plan))))
}

/// The error if the anomalies differ from those of the plan.
fn verdict(plan: &Plan) -> Option<String> {
    if plan.precision == Precision::F16 && !run::has_f16() {
        return None;
    }
    let anomalies_found = anomalies(&records(plan));
    let is_right = match (plan.fault, anomalies_found.first()) {
        (None, None) => true,
        (Some((rule, layer, remedy)), Some(first)) => {
            first.rule == rule && first.layer.contains(layer) && first.remedy.starts_with(remedy)
        }
        _ => false,
    };
    let describe = |Anomaly { step, rule, layer, found, remedy, .. }: &Anomaly| {
        format!("step {step}: {rule} of {layer}: {found}\nhelp: {remedy}")
    };
    println!("{}: {:?}", plan.name, anomalies_found.first().map(describe));
    (!is_right).then(|| {
        format!(
            "{}: expected {:?}, found {:#?}",
            plan.name,
            plan.fault,
            anomalies_found.iter().map(describe).collect::<Vec<_>>()
        )
    })
}

pub fn check(plans: &[Plan], n_wrong: usize) {
    let wrong: Vec<String> = plans.iter().filter_map(verdict).collect();
    assert!(wrong.len() <= n_wrong, "{} of {}:\n{}", wrong.len(), plans.len(), wrong.join("\n"));
}

pub fn short(plans: Vec<Plan>) -> Vec<Plan> {
    plans.into_iter().filter(|plan| plan.is_short).collect()
}

/// `unscaled_input` and `dead` are in `watch`, and the first in `watch_others`.
#[test]
fn faults_are_named_by_cause_layer_and_remedy() {
    assert!(faults().iter().all(|plan| plan.fault.is_some_and(|(.., remedy)| !remedy.is_empty())));
    let plans = short(faults());
    assert!(plans.len() >= 10);
    check(&plans, 0);
}

#[test]
fn healthy_runs_raise_no_alarm() {
    let plans = short(healthy());
    assert!(plans.len() >= 8);
    check(&plans, 0);
}

/// A rate that changes between two records is named by its own step.
#[test]
fn a_setting_that_changed_is_named_by_its_step() {
    let plan = faults().into_iter().find(|plan| plan.name == "a rate that jumps").unwrap();
    let anomalies_found = anomalies(&records(&plan));
    // Step 10 is the eleventh: records are before steps 9 and 13.
    assert_eq!((anomalies_found[0].rule, anomalies_found[0].step), ("rate_jump", 11), "{anomalies_found:?}");
    assert!(
        anomalies_found[0].found.starts_with("the learning rate rises from 1.000e-3 to 1.000e2 at step 11"),
        "{anomalies_found:?}"
    );
}

/// Weights that a static scale made NaN have zero cotangents, which used to be reported as `flushed`.
#[test]
fn what_a_loss_scale_explains_is_left_out() {
    if !run::has_f16() {
        return;
    }
    let plan = faults().into_iter().find(|plan| plan.name == "a large loss scale").unwrap();
    let anomalies_found = anomalies(&records(&plan));
    assert!(anomalies_found.iter().all(|anomaly| anomaly.rule == "loss_scale"), "{anomalies_found:?}");
}

/// Each remedy that names keys of an experiment names valid ones.
#[test]
fn remedies_are_what_an_experiment_takes() {
    let body = |layers: &str, train: &str| experiment(layers, "x: [8]", "mean_squared_error", train);
    let mut n_read = 0;
    let quoted = RULES.iter().flat_map(|rule| rule.remedy.split('`').skip(1).step_by(2));
    for text in quoted {
        let text = text.replace('\n', " ");
        match text.split_once(':').map(|(key, _)| key.trim_start_matches('{')) {
            Some("data") => {
                let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
                let data = text.replace("data: {", "data: {csv: a.csv, n_test: 1, ");
                let model = "model: {kind: layers, inputs: {x: [8]}, layers: [{dense: 1}], loss: mean_squared_error}";
                std::fs::write(file.path(), format!("{model}\n{data}\n")).unwrap();
                Experiment::read(file.path()).unwrap_or_else(|error| panic!("{text}: {error}"));
            }
            Some("kernel_initializer" | "bias_initializer" | "kernel_constraint" | "activation" | "dtype") => {
                drop(body(&format!("{{dense: 1, {text}}}"), ""))
            }
            Some("recurrent_initializer") => {
                drop(body(&format!("{{reshape: [4, 2]}}, {{lstm: 4, {text}}}, {{dense: 1}}"), ""))
            }
            Some("rescaling" | "batch_norm") if text.starts_with('{') => {
                drop(body(&format!("{text}, {{dense: 1}}"), ""))
            }
            Some("batch_norm") => {
                let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
                let model = "model: {kind: layers, inputs: {x: [8]}, layers: [{dense: 1}], loss: mean_squared_error}";
                std::fs::write(file.path(), format!("{model}\nmesh: {{data: 8, {text}}}\n")).unwrap();
                Experiment::read(file.path()).unwrap_or_else(|error| panic!("{text}: {error}"));
            }
            Some("add") => drop(body(
                &format!("{{dense: 4, name: a}}, {{dense: 4, name: b, inputs: x}}, {text}, {{dense: 1}}"),
                "",
            )),
            Some("huber") => drop(experiment("{dense: 1}", "x: [8]", &text, "")),
            Some("optimizer" | "learning_rate" | "loss_scale" | "clip" | "warm_up" | "variables" | "batch") => {
                drop(body("{dense: 1}", &text))
            }
            Some(other) => panic!("{other}: {text}"),
            // A layer, a loss, a command or a value.
            None => continue,
        }
        n_read += 1;
    }
    assert!(n_read >= 15, "{n_read}");
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// `faults_are_named_by_cause_layer_and_remedy` is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn forty_faults_are_named() {
        let plans = faults();
        assert!(plans.len() >= 40);
        check(&plans, 4);
    }

    /// `healthy_runs_raise_no_alarm` is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn forty_healthy_runs_raise_no_alarm() {
        let plans = healthy();
        assert!(plans.len() >= 40);
        check(&plans, 0);
    }
}
