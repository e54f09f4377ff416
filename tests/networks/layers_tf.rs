//! Layers against Keras' (`tests/data/layers_tf/make_layers.py`), with all gradients, in f32; and what they refuse.
//!
//! No sum here has more than 60 terms below 10, so a value is off by at most `60 · 60 · 10 · 2^-24 = 2e-3` if all roundings pulled
//! the same way, and in practice by a hundredth of that. A wrong axis, padding or group is off by a tenth and more.

use crate::run;
use bf16scope::graph::{Graph, Scope, Tensor};
use bf16scope::hlo::{DType, Literal};
use bf16scope::nn::*;
use bf16scope::passes::grad;
use ndarray::{ArrayD, Axis};
use ndarray_npy::NpzReader;
use std::fs::File;

const TOLERANCE: f32 = 2e-5;

fn recorded(name: &str) -> ArrayD<f32> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/layers_tf/layers.npz");
    let mut npz = NpzReader::new(File::open(path).unwrap()).unwrap();
    npz.by_name(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn dims(array: &ArrayD<f32>) -> Vec<i64> {
    array.shape().iter().map(|&dim| dim as i64).collect()
}

type Build = fn(&Scope, &Tensor) -> Tensor;

const LAST: DataFormat = DataFormat::ChannelsLast;

const CASES: &[(&str, Build)] = &[
    ("conv1d_valid", |s, x| conv1d(s, x, "", &Conv1d { filters: 6, kernel_size: 3, strides: 2, ..Conv1d::default() })),
    ("conv1d_same", |s, x| {
        let (padding, activation) = (Padding1d::Same, Activation::Relu);
        conv1d(s, x, "", &Conv1d { filters: 6, kernel_size: 4, groups: 2, padding, activation, ..Conv1d::default() })
    }),
    ("conv1d_causal", |s, x| {
        let (padding, use_bias) = (Padding1d::Causal, false);
        conv1d(
            s,
            x,
            "",
            &Conv1d { filters: 6, kernel_size: 3, dilation_rate: 2, padding, use_bias, ..Conv1d::default() },
        )
    }),
    ("group_norm", |s, x| group_norm(s, x, "", &GroupNorm { groups: 2, ..GroupNorm::default() })),
    ("group_norm_instance", |s, x| {
        group_norm(s, x, "", &GroupNorm { groups: -1, center: false, scale: false, ..GroupNorm::default() })
    }),
    ("global_avg_pool", |_, x| global_avg_pool(x, LAST)),
    ("global_max_pool", |_, x| global_max_pool(x, LAST)),
    ("permute", |_, x| permute(x, &[2, 3, 1])),
    ("crop", |_, x| crop(x, [[1, 2], [0, 3]], LAST)),
];

/// Compares a case with its recording; or the first example alone with its row of every array that has one.
fn check(case: &str, build: Build, is_first_alone: bool) {
    let has_rows = |name: &str| matches!(name, "x" | "y" | "cotangent" | "gradient_x");
    let recorded_array = |name: &str| {
        let array = recorded(&format!("{case}/{name}"));
        if is_first_alone && has_rows(name) { array.select(Axis(0), &[0]) } else { array }
    };
    let g = Graph::training(case);
    let x = g.input("x", DType::F32, dims(&recorded_array("x")));
    let y = build(&g.scope(), &x);
    let cotangent = g.input("cotangent", DType::F32, dims(&recorded_array("cotangent")));
    let axes: Vec<i64> = (0..y.rank() as i64).collect();
    let loss = (&y * &cotangent).sum(&axes);
    let variables = g.variables();
    let wrt = (0..variables.len()).map(|number| g.differentiable(number));
    let wrt: Vec<_> = [x.id].into_iter().chain(wrt).collect();
    let gradients = grad::gradients(g.emitter(), loss.id, &wrt).unwrap();
    let names = ["gradient_x".to_string()].into_iter();
    let names = names.chain(variables.iter().map(|variable| format!("gradient_{}", variable.name)));
    let named: Vec<(String, Tensor)> = names.zip(gradients.into_iter().map(|id| g.tensor(id))).collect();
    let mut outputs = vec![("y", &y)];
    outputs.extend(named.iter().map(|(name, tensor)| (name.as_str(), tensor)));
    let program = g.finish(&outputs).unwrap();
    let results = run::run(&program, |name| {
        let array = recorded_array(name);
        Literal::from_elements(dims(&array), &array.iter().copied().collect::<Vec<f32>>())
    });
    let compared = program.outputs.iter().zip(&results).filter(|(name, _)| !is_first_alone || has_rows(name));
    for (name, result) in compared {
        let (result, expected) = (run::f32s(result), recorded_array(name));
        assert_eq!(result.len(), expected.len(), "{case}: {name}");
        for (idx, (result, expected)) in result.iter().zip(&expected).enumerate() {
            let error = (result - expected).abs();
            assert!(error <= TOLERANCE * (1.0 + expected.abs()), "{case}: {name}[{idx}] {result}, {expected}");
        }
    }
}

#[test]
fn layers_compute_what_keras_does() {
    for &(case, build) in CASES {
        check(case, build, false);
    }
}

#[test]
fn the_first_example_alone_has_its_row_of_keras_results() {
    for &(case, build) in CASES {
        check(case, build, true);
    }
}

/// Keras has these on a CPU with channels last only: the same recording, transposed.
#[test]
fn layers_with_channels_first_compute_what_keras_does_transposed() {
    const FIRST: DataFormat = DataFormat::ChannelsFirst;
    check("global_avg_pool", |_, x| global_avg_pool(&x.transpose(&[0, 2, 1]), FIRST), false);
    check("global_max_pool", |_, x| global_max_pool(&x.transpose(&[0, 2, 1]), FIRST), false);
    let cropped =
        |_: &Scope, x: &Tensor| crop(&x.transpose(&[0, 3, 1, 2]), [[1, 2], [0, 3]], FIRST).transpose(&[0, 2, 3, 1]);
    check("crop", cropped, false);
}

#[test]
fn layers_say_what_is_wrong() {
    let error = |dims: &[i64], build: &dyn Fn(&Scope, &Tensor) -> Tensor| {
        let g = Graph::new("wrong");
        let x = g.input("x", DType::F32, dims);
        let y = build(&g.scope(), &x);
        g.finish(&[("y", &y)]).unwrap_err().to_string()
    };
    let has = |error: String, expected: &str| assert!(error.contains(expected), "{error}");
    let conv = Conv1d { filters: 4, kernel_size: 3, ..Conv1d::default() };
    has(
        error(&[2, 8], &|s, x| conv1d(s, x, "c", &conv)),
        "x f32[2,8] has rank 2, expected 3: [batch, length, channels]",
    );
    has(
        error(&[2, 8, 3], &|s, x| conv1d(s, x, "c", &Conv1d { groups: 2, ..conv })),
        "3 channels do not split in 2 groups, expected a multiple",
    );
    has(error(&[2, 2, 3], &|s, x| conv1d(s, x, "c", &conv)), "window");
    let norm = GroupNorm { groups: 4, ..GroupNorm::default() };
    has(error(&[2, 8, 6], &|s, x| group_norm(s, x, "n", &norm)), "6 channels do not split in 4 groups");
    has(
        error(&[2, 8, 6], &|s, x| group_norm(s, x, "n", &GroupNorm { groups: 2, epsilon: 0.0, ..norm })),
        "epsilon is 0, expected more than 0",
    );
    has(
        error(&[2, 8, 6], &|_, x| permute(x, &[1, 3])),
        "the order of axes is [1, 3], expected each of 1 to 2 once, of f32[2,8,6]",
    );
    has(
        error(&[2, 4, 4, 1], &|_, x| crop(x, [[2, 2], [0, 0]], LAST)),
        "2 and 2 of axis 1 of f32[2,4,4,1] leave nothing",
    );
    has(
        error(&[2, 4], &|_, x| global_avg_pool(x, LAST)),
        "x f32[2,4] has rank 2, expected 4: [batch, height, width, channels], or 3 of a sequence",
    );
}
