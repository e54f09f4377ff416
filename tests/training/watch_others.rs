//! Faults and healthy runs of networks, scales and optimizers beyond `watch_causes`: recurrent and separable layers,
//! norms over one number, other optimizers and losses. `cargo test` has a few; `ci/long` all.

use crate::watch_causes::{CNN, NORMED, NUMBERS, PLAN, Plan, THREE, check, records, short};
use bf16scope::graph::Precision;
use bf16scope::train::watch::{Role, WatchRecord};

const SEQUENCE: Plan = Plan { dims: &[6, 4], layers: "{lstm: 16, name: lstm}, {dense: 2, name: head}", ..PLAN };
const IMAGE: Plan = Plan { dims: &[6, 6, 1], layers: CNN, ..PLAN };
const TEN_TANHS: &str = "{dense: 16, activation: tanh, name: t1, kernel_initializer: {truncated_normal: 0.02}}, {dense: 16, activation: tanh, kernel_initializer: {truncated_normal: 0.02}}, {dense: 16, activation: tanh, kernel_initializer: {truncated_normal: 0.02}}, {dense: 16, activation: tanh, kernel_initializer: {truncated_normal: 0.02}}, {dense: 16, activation: tanh, kernel_initializer: {truncated_normal: 0.02}}, {dense: 16, activation: tanh, kernel_initializer: {truncated_normal: 0.02}}, {dense: 2, name: head}";

/// A normal distribution whose mean and logarithm of the deviation a network makes, and the negative logarithm of its density
/// at the labels, which are an input here.
const DENSITY: Plan = Plan {
    inputs: ", labels: {shape: [1], dtype: float32}",
    layers: "{dense: 32, activation: tanh, name: body, inputs: x}, {dense: 1, name: mu, inputs: body}, {dense: 1, name: log_sigma, inputs: body, dtype: float32}, {expression: '0.5 * square((labels - mu) * exp(-log_sigma)) + log_sigma', name: nll, dtype: float32}",
    loss: "value",
    labels: Some([0.0, 0.05]),
    ..PLAN
};

/// Residual blocks that normalise after the sum, as the first transformers do.
fn post_normed(n_blocks: usize) -> &'static str {
    let block = |k: usize| {
        let before = if k == 1 { "first".to_string() } else { format!("n{}", k - 1) };
        format!(
            "{{dense: 16, activation: gelu}}, {{dense: 16, name: b{k}}}, {{add: [{before}, b{k}]}}, {{layer_norm: , name: n{k}}}"
        )
    };
    let blocks: Vec<String> = (1..=n_blocks).map(block).collect();
    format!("{{dense: 16, name: first}}, {}, {{dense: 2, name: head}}", blocks.join(", ")).leak()
}

fn faults() -> Vec<Plan> {
    let fault = |name, (rule, layer), plan| Plan { name, fault: Some((rule, layer, "")), ..plan };
    vec![
        fault(
            "thousands into an LSTM",
            ("unscaled_input", "x"),
            Plan { scale: [4000.0; 2], is_short: true, ..SEQUENCE },
        ),
        fault(
            "pixels into a GRU behind a permutation",
            ("unscaled_input", "x"),
            Plan {
                scale: [255.0; 2],
                layers: "{permute: [2, 1]}, {gru: 16, name: gru}, {dense: 2, name: head}",
                ..SEQUENCE
            },
        ),
        fault(
            "pixels into separable convolutions under lion",
            ("unscaled_input", "x"),
            Plan {
                scale: [255.0; 2],
                layers: "{separable_conv: 8, kernel_size: 3, activation: relu, name: first}, global_avg_pool, {dense: 2, name: head}",
                train: "optimizer: lion, learning_rate: 0.0001",
                ..IMAGE
            },
        ),
        fault(
            "features of millionths",
            ("unscaled_input", "x"),
            Plan { scale: [1e-6; 2], train: "optimizer: momentum, learning_rate: 0.01", is_short: true, ..PLAN },
        ),
        fault(
            "an epsilon of 1 under nadam",
            ("large_epsilon", ""),
            Plan { train: "optimizer: {kind: nadam, epsilon: 1.0}, learning_rate: 0.001", ..PLAN },
        ),
        fault(
            "an epsilon of 1 under rmsprop, at a rate for 1e-3",
            ("large_epsilon", ""),
            Plan { train: "optimizer: {kind: rmsprop, epsilon: 1.0}, learning_rate: 0.001", layers: THREE, ..PLAN },
        ),
        fault(
            "a gamma of zeros",
            ("zero_kernel", "norm"),
            Plan {
                layers: "{dense: 32, name: first}, {layer_norm: , gamma_initializer: zeros, name: norm}, {activation: tanh}, {dense: 32, activation: tanh, kernel_initializer: zeros}, {dense: 2, name: head}",
                ..PLAN
            },
        ),
        fault(
            "a layer norm of one feature",
            ("norm_of_one", "norm"),
            Plan {
                layers: "{dense: 1, name: first}, {layer_norm: , name: norm}, {dense: 16, activation: tanh}, {dense: 2, name: head}",
                ..PLAN
            },
        ),
        fault(
            "an instance norm of one pixel",
            ("norm_of_one", "norm"),
            Plan {
                dims: &[3, 3, 2],
                layers: "{conv: 8, kernel_size: 3, name: first}, {instance_norm: , name: norm}, {activation: relu}, flatten, {dense: 2, name: head}",
                ..PLAN
            },
        ),
        fault(
            "a batch norm after a dead relu",
            ("dead", "first"),
            Plan {
                layers: "{dense: 32, activation: relu, name: first, bias_initializer: {constant: -50}}, {dense: 32, name: mid, bias_initializer: {random_normal: 0.1}}, {batch_norm: , momentum: 0.9, name: norm}, {activation: relu}, {dense: 2, name: head}",
                ..PLAN
            },
        ),
        fault(
            "six tanhs of small kernels",
            ("vanishing", "t1"),
            Plan { layers: TEN_TANHS, train: "optimizer: sgd, learning_rate: 0.01", ..PLAN },
        ),
        fault(
            "twelve blocks that normalise after, without a warm-up",
            ("vanishing", "first"),
            Plan {
                layers: post_normed(12),
                train: "optimizer: adam, learning_rate: 0.05",
                precision: Precision::F32,
                n_epochs: 6,
                ..PLAN
            },
        ),
        fault(
            "six transformer blocks that normalise after, without a warm-up",
            ("vanishing", "first"),
            Plan {
                dims: &[8, 4],
                layers: "{dense: 16, name: first}, {transformer_block: 2, intermediate_dim: 32, repeats: 6}, global_avg_pool, {dense: 2, name: head}",
                train: "optimizer: adam, learning_rate: 0.02",
                precision: Precision::F32,
                n_epochs: 6,
                is_short: true,
                ..PLAN
            },
        ),
        fault(
            "a hard sigmoid that is shut",
            ("saturated_activation", "mid"),
            Plan {
                layers: "{dense: 32, activation: tanh, name: first}, {dense: 32, activation: hard_sigmoid, name: mid, bias_initializer: {constant: 30}}, {dense: 2, name: head}",
                ..PLAN
            },
        ),
        fault(
            "a dead relu6 of a convolution",
            ("dead", "first"),
            Plan {
                layers: "{conv: 8, kernel_size: 3, activation: relu6, name: first, bias_initializer: {constant: -40}}, global_avg_pool, {dense: 2, name: head}",
                train: "optimizer: lion, learning_rate: 0.0001",
                ..IMAGE
            },
        ),
        fault(
            "a rate of 1e-13",
            ("stalled", ""),
            Plan { train: "optimizer: momentum, learning_rate: 1.0e-13", precision: Precision::F32, ..PLAN },
        ),
        fault(
            "an offset of a thousand",
            ("rescaled", "shift"),
            Plan {
                layers: "{conv: 8, kernel_size: 3, activation: tanh, name: first}, {rescaling: 1.0, offset: 1000, name: shift}, global_avg_pool, {dense: 2, name: head}",
                ..IMAGE
            },
        ),
        fault(
            "a decay that is a term of the loss",
            ("weight_decay", ""),
            Plan { train: "optimizer: sgd, learning_rate: 0.5, weight_decay: {value: 1}", ..PLAN },
        ),
        fault(
            "a decay of nine in a hundred, which leaves no kernel",
            ("weight_decay", ""),
            Plan {
                layers: THREE,
                train: "optimizer: sgd, learning_rate: 0.09, weight_decay: {value: 1}",
                n_epochs: 8,
                ..PLAN
            },
        ),
        fault(
            "quantiles of millions under momentum",
            ("label_scale", "labels"),
            Plan {
                loss: "mean_squared_error",
                labels: Some([3e6, 1e6]),
                train: "optimizer: momentum, learning_rate: 0.1",
                ..NUMBERS
            },
        ),
        fault(
            "absolute errors of prices, which no loss of a few steps shows",
            ("label_scale", "labels"),
            Plan {
                loss: "mean_absolute_error",
                labels: Some([400_000.0, 120_000.0]),
                n_epochs: 6,
                is_short: true,
                ..NUMBERS
            },
        ),
        fault(
            "Huber's loss of millions under adamw",
            ("label_scale", "labels"),
            Plan {
                loss: "{huber: , delta: 1.0}",
                labels: Some([0.0, 3e6]),
                train: "optimizer: adamw, learning_rate: 0.0005",
                n_epochs: 6,
                ..NUMBERS
            },
        ),
        fault(
            "kernels of a hundred before a tanh",
            ("saturated_activation", "first"),
            Plan {
                layers: "{dense: 24, activation: tanh, name: first, kernel_initializer: {truncated_normal: 100}}, {dense: 24, activation: tanh, name: mid}, {dense: 2, name: head}",
                train: "optimizer: sgd, learning_rate: 0.01",
                ..PLAN
            },
        ),
    ]
}

fn healthy() -> Vec<Plan> {
    let of_layers = |name, layers| Plan { name, layers, ..PLAN };
    let of_train = |name, train| Plan { name, train, ..PLAN };
    let of_images = |name, layers| Plan { name, layers, ..IMAGE };
    let of_numbers = |name, loss, labels| Plan { name, loss, labels: Some(labels), ..NUMBERS };
    vec![
        Plan { name: "an LSTM", ..SEQUENCE },
        Plan { name: "a GRU of both directions", layers: "{gru: 8, bidirectional: true}, {dense: 2}", ..SEQUENCE },
        Plan {
            is_short: true,
            ..of_layers(
                "ids looked up",
                "{rescaling: 50.0, offset: 50.0}, {cast: int32}, {embedding: 101, output_dim: 8}, flatten, {dense: 2}",
            )
        },
        Plan {
            scale: [5000.0; 2],
            ..of_layers(
                "thousands that are looked up",
                "{expression: \"abs(x)\", name: whole}, {cast: int32}, {embedding: 5121, output_dim: 8}, flatten, {dense: 2}",
            )
        },
        of_images(
            "inverted residuals with squeezed gates",
            "{conv: 8, kernel_size: 3, padding: same}, {batch_norm: , momentum: 0.9}, {activation: relu6}, {mb_conv: 8, kernel_size: 3, expand_ratio: 4, se_ratio: 0.25}, global_avg_pool, {dense: 2}",
        ),
        of_images(
            "a group norm",
            "{conv: 8, kernel_size: 3, name: a}, {group_norm: 4}, {activation: silu}, {depthwise_conv: 3}, global_avg_pool, {dense: 2}",
        ),
        Plan {
            is_short: true,
            ..of_images(
                "an instance norm",
                "{conv: 8, kernel_size: 3}, instance_norm, {activation: elu}, flatten, {dense: 2}",
            )
        },
        Plan {
            name: "a density, whose loss falls below 0",
            train: "optimizer: adam, learning_rate: 0.02",
            n_epochs: 6,
            is_short: true,
            ..DENSITY
        },
        Plan { name: "a density of hundreds", labels: Some([300.0, 100.0]), ..DENSITY },
        of_layers(
            "selus",
            "{dense: 32, activation: selu, kernel_initializer: lecun_normal}, {dense: 32, activation: selu, kernel_initializer: lecun_normal}, {dense: 32, activation: selu, kernel_initializer: lecun_normal}, {dense: 2}",
        ),
        of_layers(
            "a gate",
            "{dense: 16, name: a}, {dense: 16, activation: sigmoid, name: gate, inputs: x}, {multiply: [a, gate]}, {dense: 2}",
        ),
        of_layers(
            "a bottleneck",
            "{dense: 32, activation: tanh}, {dense: 2, activation: tanh}, {dense: 32, activation: tanh}, {dense: 2}",
        ),
        of_layers(
            "a layer norm of unscaled columns",
            "{layer_norm: , name: norm}, {dense: 32, activation: relu}, {dense: 2}",
        ),
        Plan { is_short: true, ..of_train("lion", "optimizer: lion, learning_rate: 0.0003") },
        of_train("nadam", "optimizer: nadam, learning_rate: 0.001"),
        of_train("adafactor", "optimizer: adafactor, learning_rate: 0.01"),
        of_train("adadelta", "optimizer: adadelta, learning_rate: 1.0"),
        of_train("lars", "optimizer: lars, learning_rate: 0.1"),
        of_train("ftrl", "optimizer: ftrl, learning_rate: 0.1"),
        of_train("rmsprop of Inception", "optimizer: {kind: rmsprop, momentum: 0.9, epsilon: 1.0}, learning_rate: 0.5"),
        of_train(
            "a norm of gradients that is cut",
            "optimizer: momentum, learning_rate: 0.1, clip: {kind: global_norm, value: 0.1}",
        ),
        of_train(
            "a cosine",
            "optimizer: adamw, learning_rate: {kind: cosine, value: 0.003, decay_steps: 24}, weight_decay: {value: 0.1, decoupled: true}",
        ),
        Plan {
            precision: Precision::F16,
            layers: NORMED,
            ..of_train("f16, a batch norm, a dynamic scale", "optimizer: adam, learning_rate: 0.001")
        },
        of_numbers("ten thousands, log cosh", "log_cosh", [1e4, 3e3]),
        of_numbers("thousandths, quantiles", "{quantile: , tau: 0.9}", [0.002, 0.001]),
        Plan {
            train: "optimizer: rmsprop, learning_rate: 0.001, variables: bf16_stochastic",
            ..of_numbers("negative hundreds in bf16 weights", "mean_absolute_error", [-300.0, 100.0])
        },
        Plan { n_epochs: 6, ..of_numbers("absolute errors of hundreds", "mean_absolute_error", [300.0, 100.0]) },
        Plan {
            train: "optimizer: sgd, learning_rate: 0.0001",
            n_epochs: 6,
            ..of_numbers("squares of thousands", "mean_squared_error", [0.0, 1000.0])
        },
        Plan {
            train: "optimizer: adam, learning_rate: 0.3",
            n_epochs: 6,
            ..of_numbers("prices at a rate that reaches them", "mean_absolute_error", [400_000.0, 120_000.0])
        },
    ]
}

#[test]
fn other_faults_are_named_by_cause_and_layer() {
    check(&short(faults()), 0);
}

#[test]
fn other_healthy_runs_raise_no_alarm() {
    check(&short(healthy()), 0);
}

/// The loss of a density falls below 0, and what only the loss reads is a label.
#[test]
fn a_loss_has_its_sign_and_what_it_alone_reads_is_a_label() {
    let plan = healthy().into_iter().find(|plan| plan.name == "a density, whose loss falls below 0").unwrap();
    let records = records(&plan);
    let [first, last] = [&records[0], &records[records.len() - 1]].map(|record| record.loss().unwrap());
    assert!(first > 0.0 && last < -0.5, "{first} {last}");
    let roles = |record: &WatchRecord| record.rows.iter().map(|row| (row.layer.clone(), row.role)).collect::<Vec<_>>();
    let roles = roles(&records[0]);
    assert!(roles.contains(&("labels".to_string(), Some(Role::Label))), "{roles:?}");
    assert!(roles.contains(&("x".to_string(), Some(Role::Input))), "{roles:?}");
    // The formula is a part of the loss.
    assert!(!roles.iter().any(|(layer, _)| layer.contains("nll")), "{roles:?}");
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// `other_faults_are_named_by_cause_and_layer` is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn sixteen_other_faults_are_named() {
        assert!(faults().len() >= 15);
        check(&faults(), 0);
    }

    /// `other_healthy_runs_raise_no_alarm` is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn twenty_other_healthy_runs_raise_no_alarm() {
        assert!(healthy().len() >= 20);
        check(&healthy(), 0);
    }
}
