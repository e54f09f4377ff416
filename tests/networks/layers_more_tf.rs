//! Layers as YAML has them against Keras' and TensorFlow's functions (`tests/data/layers_tf/make_more.py`), with all gradients:
//! in f32 within rounding, in bf16 within that of bf16; and what they refuse.
//!
//! No sum here has more than 120 terms below 16, so a value is off by at most `120 · 120 · 16 · 2^-24 = 1.4e-2` if all roundings
//! pulled the same way, in practice by a hundredth of that at most. A wrong axis, padding, phase or mask is off by a tenth and
//! more. In bf16 each of at most eight operations in a row rounds by 2^-9, of sums of numbers up to 16.

use crate::run;
use bf16scope::document;
use bf16scope::graph::{Graph, Precision, Program, Tensor};
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::nn::{gaussian_dropout, gaussian_noise};
use bf16scope::passes::grad;
use bf16scope::task::{Features, Mode};
use ndarray::{ArrayD, Axis};
use ndarray_npy::{NpzReader, ReadableElement};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;

const TOLERANCE: f32 = 2e-4;

/// A case: its name, and the layer that makes its result of `x`, and `y` or a `mask`.
pub const CASES: &[(&str, &str)] = &[
    ("conv3d", "{conv3d: 4, kernel_size: [2, 3, 2], strides: [1, 2, 1], padding: same}"),
    ("conv3d_grouped", "{Conv3D: 4, kernel_size: 2, use_bias: false, activation: relu}"),
    ("conv_transpose_1d", "{Conv1DTranspose: 3, kernel_size: 4, strides: 2, padding: same}"),
    ("conv_transpose_1d_valid", "{conv_transpose: 3, kernel_size: 4, strides: 3}"),
    ("conv_transpose_2d", "{conv_transpose: 3, kernel_size: [3, 4], strides: [2, 3]}"),
    ("conv_transpose_2d_same", "{Conv2DTranspose: 3, kernel_size: 3, strides: 2, padding: same, activation: relu}"),
    ("conv_transpose_2d_short", "{conv_transpose: 3, kernel_size: 2, strides: 3}"),
    ("conv_transpose_2d_added", "{conv_transpose: 3, kernel_size: 3, strides: 2, padding: same, output_padding: 0}"),
    ("conv_transpose_3d", "{conv_transpose: 2, kernel_size: 3, strides: 2, padding: same}"),
    ("separable_1d", "{SeparableConv1D: 5, kernel_size: 3, depth_multiplier: 2, padding: same}"),
    ("separable_2d", "{separable_conv: 5, kernel_size: 3, strides: 2, padding: same, activation: relu}"),
    ("max_pool_1d", "{MaxPooling1D: 3, strides: 2, padding: same}"),
    ("max_pool_3d", "{max_pool: [2, 1, 2]}"),
    ("avg_pool_1d", "{avg_pool: 3, strides: 2, padding: same}"),
    ("avg_pool_3d", "{avg_pool: 2, padding: same}"),
    ("global_avg_3d", "global_avg_pool"),
    ("upsample_1d", "{upsample: 3}"),
    ("upsample_3d", "{upsample: [2, 1, 2]}"),
    ("upsample_lines", "{upsample: [2, 3], interpolation: bilinear}"),
    ("zero_padding_1d", "{zero_padding: [1, 2]}"),
    ("zero_padding_3d", "{zero_padding: [[1, 2], [0, 1], [3, 0]]}"),
    ("crop_1d", "{crop: [[1, 2]]}"),
    ("crop_3d", "{Cropping3D: 1}"),
    ("prelu", "{prelu: {shared_axes: [1, 2]}}"),
    ("softmax_axes", "{softmax: {axis: [1, 2]}}"),
    ("dot", "{dot: [x, y], axes: [2, 1]}"),
    ("cosine", "{cosine: [x, y], axes: 1}"),
    ("unit_norm", "unit_norm"),
    ("multiply", "{multiply: [x, y]}"),
    ("add_row", "{add: [x, y]}"),
    ("batch_norm_plain", "{batch_norm: {center: false, scale: false}}"),
    ("layer_norm_plain", "{layer_norm: {center: false}}"),
    ("gather", "{gather: [x, y]}"),
    ("expression", "{expression: 'x * sigmoid(y) + (x - y) ** 2 / 2 - maximum(x, 0.25)'}"),
    ("expression_where", "{expression: 'where(x > y, x * 2, 0)'}"),
    ("reduce_sum", "{reduce: sum, axis: [1, 2]}"),
    ("reduce_mean", "{reduce: mean, axis: [1, 2]}"),
    ("reduce_max", "{reduce: max, axis: [1, -2]}"),
    ("reduce_min", "{reduce: min, axis: [1, 2]}"),
    ("reduce_prod", "{reduce: prod, axis: [1, 2]}"),
    ("reduce_variance", "{reduce: variance, axis: [1, 2]}"),
    ("reduce_std", "{reduce: std, axis: [1, 2]}"),
    ("reduce_logsumexp", "{reduce: logsumexp, axis: [1, 2]}"),
    ("reduce_l2_norm", "{reduce: l2_norm, axis: 2, keepdims: true}"),
    ("lstm_started", "{lstm: 4, return_sequences: true, inputs: x, initial_state: [y, y]}"),
    ("gru_started", "{gru: 4, inputs: x, initial_state: y, remat: segments}"),
    (
        "lstm_started_both",
        "{lstm: 4, bidirectional: true, return_sequences: true, inputs: x, initial_state: [y, y, y, y]}",
    ),
    ("take_last", "{take: -1, axis: 2}"),
    ("attention_padding", "{attention: 2, inputs: [x, x, mask]}"),
    ("attention_segments", "{attention: 2, inputs: [x, x, mask], mask: segments}"),
    ("attention_window", "{attention: 2, use_causal_mask: true, window: 2}"),
    ("attention_cross", "{attention: 2, head_dim: 4, inputs: [x, y, mask]}"),
    ("fft_plane", "{fft: real, axis: [1, 2]}"),
    ("fft_imaginary", "{FFT: {part: imag}}"),
    ("fft_steps", "{fft: real, axis: 1, inputs: [x, y]}"),
    ("ifft_power", "{ifft: power, inputs: [x, y]}"),
    ("rfft_abs", "{rfft: abs}"),
    ("rfft_plane", "{rfft: imag, axis: [1, 2]}"),
    ("irfft_even", "{irfft: , inputs: [x, y]}"),
    ("irfft_odd", "{irfft: 7, inputs: [x, y]}"),
    ("irfft_plane", "{irfft: , axis: [1, 2], inputs: [x, y]}"),
    ("top_k_indices", "{top_k: 3, name: t}\n  - {cast: compute, inputs: t.indices, name: i}\n  - {multiply: [i, t]}"),
    ("sort_indices", "{sort: 1, name: s}\n  - {cast: compute, inputs: s.indices, name: i}\n  - {multiply: [i, x]}"),
    ("arg_max", "{arg_max: 1}\n  - {one_hot: 5}\n  - {permute: [2, 1], name: h}\n  - {multiply: [x, h]}"),
    ("arg_min", "arg_min\n  - {one_hot: 4, name: h}\n  - {multiply: [x, h]}"),
    ("constant", "{constant: [[1, 2.5, -3], [0, 1, 4]], name: c}\n  - {multiply: [x, c]}"),
    ("rescaling", "{rescaling: 0.25, offset: -1.5}"),
    ("rms_norm", "rms_norm"),
    ("position_embedding", "{position_embedding: 6}"),
    ("attention_windows", "{attention: 2, head_dim: 3, attention_axes: 2}"),
    ("attention_wider", "{attention: 2, head_dim: 3, inputs: [x, y]}"),
    ("attention_windows_masked", "{attention: 2, attention_axes: [-2], inputs: [x, x, mask]}"),
    ("dense", "{dense: 4, activation: relu}"),
    ("conv1d", "{conv1d: 6, kernel_size: 3, padding: causal, dilation_rate: 2}"),
    ("conv2d", "{conv: 4, kernel_size: 3, strides: 2, padding: same}"),
    ("depthwise", "{depthwise_conv: 3, padding: same, depth_multiplier: 2}"),
    ("group_norm", "{group_norm: 2}"),
    ("layer_norm", "layer_norm"),
    ("permute", "{permute: [2, 3, 1]}"),
    ("global_avg_1d", "global_avg_pool"),
    ("global_avg_2d", "global_avg_pool"),
    ("global_max_1d", "global_max_pool"),
    ("max_pool_2d", "{max_pool: 3, strides: 2, padding: same}"),
    ("avg_pool_2d", "{avg_pool: 2}"),
    ("crop_2d", "{crop: [[1, 2], [0, 3]]}"),
    ("upsample_2d", "{upsample: [2, 3]}"),
    ("softmax", "softmax"),
    ("repeat_vector", "{repeat_vector: 3}"),
    ("slice", "{slice: [1, -1]}"),
    ("one_hot", "{one_hot: 5}"),
    ("cast_compute", "{cast: compute}"),
    ("cast_int32", "{expression: x * 2}\n  - {cast: int32}\n  - {cast: compute}"),
    ("masking", "masking"),
    ("convlstm", "{ConvLSTM2D: 3, kernel_size: 3, padding: same, return_sequences: true}"),
    ("convlstm_last", "{conv_lstm: 2, kernel_size: [3, 2], strides: 2, use_bias: false}"),
    ("variable_scale", "{variable: [4], name: gamma}\n  - {multiply: [x, gamma]}"),
    ("variable_queries", "{add_weight: [2, 4], name: queries}\n  - {dot: [queries, x], axes: [2, 2]}"),
    ("variable_number", "{variable: [], name: t}\n  - {exponential: , name: e}\n  - {multiply: [x, e]}"),
    (
        "expression_more",
        "{expression: 'clip(x, -0.5, 0.75) * round(3 * y) + pow(y ** 2 + 1, 0.5) + x % 0.75 + y // 0.5 - where(x > y, 1, 0.5) \
         * sqrt(2)'}",
    ),
    ("activation_relu", "{activation: relu}"),
    ("activation_relu6", "{activation: relu6}"),
    ("activation_leaky_relu", "{activation: leaky_relu}"),
    ("activation_elu", "{activation: elu}"),
    ("activation_selu", "{activation: selu}"),
    ("activation_gelu", "{activation: gelu}"),
    ("activation_gelu_tanh", "{activation: gelu_tanh}"),
    ("activation_silu", "{activation: silu}"),
    ("activation_softplus", "{activation: softplus}"),
    ("activation_softsign", "{activation: softsign}"),
    ("activation_sigmoid", "{activation: sigmoid}"),
    ("activation_hard_sigmoid", "{activation: hard_sigmoid}"),
    ("activation_tanh", "{activation: tanh}"),
    ("activation_exponential", "{activation: exponential}"),
    ("activation_softmax", "{activation: softmax}"),
    ("activation_log_softmax", "{activation: log_softmax}"),
    ("activation_linear", "{activation: linear}"),
    ("leaky_relu", "{leaky_relu: 0.1}"),
    ("instance_norm", "instance_norm"),
    ("batch_norm", "batch_norm"),
    ("add", "{add: [x, y]}"),
    ("subtract", "{subtract: [x, y]}"),
    ("average", "{average: [x, y]}"),
    ("maximum", "{maximum: [x, y]}"),
    ("minimum", "{minimum: [x, y]}"),
    ("concat", "{concat: [x, y]}"),
    ("embedding", "{embedding: {input_dim: 6, output_dim: 3}}"),
    ("global_max_2d", "global_max_pool"),
    ("global_max_3d", "global_max_pool"),
    (
        "relative_positions",
        "{attention: 2, head_dim: 3, use_bias: false, relative_positions: {num_buckets: 8, max_distance: 20}}",
    ),
    (
        "relative_positions_causal",
        "{attention: 2, head_dim: 3, use_bias: false, use_causal_mask: true, \
         relative_positions: {num_buckets: 8, max_distance: 20}}",
    ),
    ("simple_rnn", "{simple_rnn: 4}"),
    ("simple_rnn_masked", "{simple_rnn: 4, return_sequences: true, inputs: [x, mask]}"),
    ("lstm_masked", "{lstm: 4, return_sequences: true, inputs: [x, mask]}"),
    ("gru_masked", "{gru: 4, return_sequences: true, inputs: [x, mask]}"),
    ("cumsum", "{cumsum: 1}"),
    ("cumsum_reverse", "{cumsum: -1, reverse: true}"),
    ("sort", "{sort: 1}"),
    ("sort_descending", "{sort: -1, direction: descending}"),
    ("top_k", "{top_k: 3}"),
    ("unit_norm_axis", "{unit_norm: 1}"),
];

pub struct Recorded {
    npz: RefCell<NpzReader<File>>,
    /// Whether only the first example of every case is read.
    is_first_alone: bool,
}

impl Recorded {
    pub fn open() -> Recorded {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/layers_tf/more.npz");
        Recorded { npz: RefCell::new(NpzReader::new(File::open(path).unwrap()).unwrap()), is_first_alone: false }
    }

    fn array<T: ReadableElement + Clone>(&self, name: &str) -> Option<ArrayD<T>> {
        let array: ArrayD<T> = self.npz.borrow_mut().by_name(name).ok()?;
        let is_cut = self.is_first_alone && name.split_once('/').is_some_and(|(_, name)| has_rows(name));
        Some(if is_cut { array.select(Axis(0), &[0]) } else { array })
    }

    fn floats(&self, name: &str) -> Option<ArrayD<f32>> {
        self.array(name)
    }

    fn integers(&self, name: &str) -> Option<ArrayD<i32>> {
        self.array(name)
    }

    /// The array as a program takes it, where `dtype` is what it computes in.
    pub fn literal(&self, name: &str, dtype: DType) -> Option<Literal> {
        fn dims<T>(array: &ArrayD<T>) -> Vec<i64> {
            array.shape().iter().map(|&dim| dim as i64).collect()
        }
        if let Some(array) = self.integers(name) {
            return Some(Literal::from_elements(dims(&array), &array.iter().copied().collect::<Vec<i32>>()));
        }
        let array = self.floats(name)?;
        let elements: Vec<f32> = array.iter().copied().collect();
        Some(match dtype {
            DType::BF16 => {
                let rounded: Vec<half::bf16> = elements.into_iter().map(half::bf16::from_f32).collect();
                Literal::from_elements(dims(&array), &rounded)
            }
            _ => Literal::from_elements(dims(&array), &elements),
        })
    }
}

/// Whether an array of a case has a row for each example.
fn has_rows(name: &str) -> bool {
    matches!(name, "x" | "y" | "mask" | "cotangent" | "result" | "gradient_x" | "gradient_y")
}

/// The network of one layer, its result and the gradients of its product with the cotangent by inputs and variables.
pub fn program(case: &str, layer: &str, recorded: &Recorded, precision: Precision) -> Program {
    let mut inputs = String::new();
    for name in ["x", "y", "mask"] {
        if let Some(literal) = recorded.literal(&format!("{case}/{name}"), DType::F32) {
            let dtype = if literal.shape().dtype() == Some(DType::S32) { ", dtype: int32" } else { "" };
            inputs += &format!("  {name}: {{shape: {:?}{dtype}}}\n", &literal.shape().dims()[1..]);
        }
    }
    let text = format!("kind: layers\ninputs:\n{inputs}layers:\n  - {layer}\nloss: mean_squared_error\n");
    let model: Model = document::from_str(case, &text).unwrap_or_else(|error| panic!("{error}"));
    let task = model.task(0.0);
    let g = Graph::training(case).computing_in(precision);
    let described = task.features();
    let batch = recorded.literal(&format!("{case}/x"), DType::F32).unwrap().shape().dims()[0];
    let features = Features::new(&g, &described, batch, Mode::Predict);
    let outputs = task.call(&g.scope(), &features, Mode::Predict);
    let y = outputs.predictions[0].1.clone();
    let cotangent = g.input("cotangent", DType::F32, y.dims());
    let axes: Vec<i64> = (0..y.rank() as i64).collect();
    let loss = (&y * &cotangent).sum(&axes);
    let floats: Vec<Tensor> = ["x", "y"]
        .into_iter()
        .filter(|name| inputs.contains(&format!("  {name}:")))
        .map(|name| features.get(name))
        .collect();
    let floats: Vec<(String, Tensor)> =
        ["x", "y"].map(str::to_string).into_iter().zip(floats).filter(|(_, t)| t.dtype().is_float()).collect();
    let variables = g.variables();
    let of_variables = variables.iter().enumerate().filter(|(_, variable)| variable.trainable);
    let named: Vec<(String, _)> = floats
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor.id))
        .chain(of_variables.map(|(number, variable)| {
            let name = variable.name.split_once('/').map_or(variable.name.as_str(), |(_, name)| name);
            (name.to_string(), g.differentiable(number))
        }))
        .collect();
    let wrt: Vec<_> = named.iter().map(|(_, id)| *id).collect();
    let gradients = grad::gradients(g.emitter(), loss.id, &wrt).unwrap();
    let gradients: Vec<(String, Tensor)> =
        named.iter().zip(gradients).map(|((name, _), id)| (format!("gradient_{name}"), g.tensor(id))).collect();
    let mut outputs = vec![("result", &y)];
    outputs.extend(gradients.iter().map(|(name, tensor)| (name.as_str(), tensor)));
    g.finish(&outputs).unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// The argument of a case's program of this name.
pub fn argument(case: &str, name: &str, program: &Program, recorded: &Recorded, precision: Precision) -> Literal {
    let compute = if precision == Precision::Bf16 { DType::BF16 } else { DType::F32 };
    let is_input = matches!(name, "x" | "y" | "mask");
    let short =
        if is_input || name == "cotangent" { name } else { name.split_once('/').map_or(name, |(_, name)| name) };
    let literal = recorded.literal(&format!("{case}/{short}"), if is_input { compute } else { DType::F32 });
    let literal = literal.or_else(|| {
        // Running statistics, which the result of a training program does not read.
        name.contains("moving").then(|| Literal::from_elements([5], &[1.0f32; 5]))
    });
    let literal = literal.unwrap_or_else(|| panic!("{case} has no {name}"));
    // Biases of heads have one axis here, and two in Keras.
    let variable = program.variables.iter().find(|variable| variable.name == name);
    match variable {
        Some(variable) => Literal::from_elements(variable.dims.clone(), &run::f32s(&literal)),
        None => literal,
    }
}

/// Runs a case on what is recorded; how far each result is from the recorded one, over 1 and the largest recorded value. Of the first
/// example alone, the arrays that have a row for it.
fn distances_from(recorded: &Recorded, case: &str, layer: &str, precision: Precision) -> Vec<(String, f32)> {
    let program = program(case, layer, recorded, precision);
    let results = run::run(&program, |name| argument(case, name, &program, recorded, precision));
    let mut distances = Vec::new();
    for (name, result) in program.outputs.iter().zip(&results) {
        if recorded.is_first_alone && !has_rows(name) {
            continue;
        }
        let expected = recorded.floats(&format!("{case}/{name}")).unwrap_or_else(|| panic!("{case} has no {name}"));
        let result = run::f32s(result);
        assert_eq!(result.len(), expected.len(), "{case}: {name}");
        let largest = expected.iter().fold(1.0f32, |largest, value| largest.max(value.abs()));
        let distance = result.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
        assert!(result.iter().all(|value| value.is_finite()), "{case}: {name} is not finite");
        distances.push((name.clone(), distance / largest));
    }
    distances
}

fn distances(case: &str, layer: &str, precision: Precision) -> Vec<(String, f32)> {
    distances_from(&Recorded::open(), case, layer, precision)
}

#[test]
fn layers_of_yaml_compute_what_keras_does() {
    for (case, layer) in CASES {
        for (name, distance) in distances(case, layer, Precision::F32) {
            assert!(distance <= TOLERANCE, "{case}: {name} is off by {distance}");
        }
    }
}

/// A batch of one. Batch normalisation is left out: its statistics are those of the batch.
#[test]
fn the_first_example_alone_has_its_row_of_keras_results() {
    let recorded = Recorded { is_first_alone: true, ..Recorded::open() };
    for (case, layer) in CASES.iter().filter(|(case, _)| !case.starts_with("batch_norm")) {
        for (name, distance) in distances_from(&recorded, case, layer, Precision::F32) {
            assert!(distance <= TOLERANCE, "{case}: {name} is off by {distance}");
        }
    }
}

/// How many rows the input of a case has, of as many numbers as its last axis.
fn n_rows(case: &str) -> f32 {
    let x = Recorded::open().literal(&format!("{case}/x"), DType::F32).unwrap();
    let shape = x.shape();
    let rows: i64 = shape.dims().iter().rev().skip(1).product();
    rows as f32
}

/// Sixteen roundings of 2^-9 in a row, of the largest value, all the same way: inputs and weights are rounded before, once each,
/// and attention rounds four products, their sums with biases and the weights between them. A gradient comes back through as
/// many again. A weight's gradient is a sum over all rows, whose roundings grow with the root of their number; the gradient of
/// attention's input is a sum of three, for queries, keys and values. The gradient of the keys' bias is zero in theory, since a
/// softmax does not change if all its scores grow by the same number: its measured value consists of a sum's roundings only.
///
/// The first case of each kind of layer.
#[test]
fn in_bf16_they_are_off_by_roundings_of_bf16() {
    let mut kinds = BTreeSet::new();
    are_off_by_roundings(|case| kinds.insert(case.split('_').next()));
    assert!(kinds.len() >= 15, "{kinds:?}");
}

fn are_off_by_roundings(mut is_meant: impl FnMut(&'static str) -> bool) {
    // Where x and y differ by less than their roundings, another is chosen, and slopes at the corner of a relu are others; what the
    // corner gives is not. A choice by `where` or of an integer is a step.
    let corners = ["relu", "max_pool", "MaxPooling", "max,", "min,", "maximum", "minimum"];
    let has_corner = |case: &str, layer: &str| corners.iter().any(|it| layer.contains(it)) && case != "prelu";
    let is_step = |layer: &str| layer.contains("where") || layer.contains("int32");
    // Layers that only move elements round nothing.
    let moves = ["crop", "zero_padding", "upsample_1d", "upsample_3d", "gather", "conv_transpose_1d", "add_row"];
    for (case, layer) in CASES.iter().filter(|&&(case, layer)| !is_step(layer) && is_meant(case)) {
        let is_result_alone = has_corner(case, layer) || moves.iter().any(|it| case.starts_with(it));
        for (name, distance) in distances(case, layer, Precision::Bf16) {
            if name == "gradient_key/bias" || is_result_alone && name != "result" {
                continue;
            }
            let n_roundings = if name.starts_with("gradient") { 32.0 } else { 16.0 };
            let n_summed = match name.as_str() {
                name if name.contains('/') => n_rows(case).sqrt(),
                "gradient_x" if case.starts_with("attention") => 3.0,
                _ => 1.0,
            };
            let bound = n_roundings * n_summed * 2f32.powi(-9);
            assert!(distance <= bound, "{case}: {name} is off by {distance}");
        }
    }
}

/// The shares of 65,536 numbers below -2, -1, 0, 1 and 2 standard deviations of the noise: as of the normal distribution, and as
/// Keras' noise has them, within five standard deviations of a share, or of two.
#[test]
fn noise_is_distributed_as_keras_noise() {
    const N: f32 = 65536.0;
    const NORMAL: [f32; 5] = [0.022_75, 0.158_655, 0.5, 0.841_345, 0.977_25];
    for (case, mean, deviation) in [("gaussian_noise", 2f32, 0.5f32), ("gaussian_dropout", 2.0, 1.0)] {
        let g = Graph::training(case);
        let x = g.full(DType::F32, &[64, 1024], 2.0);
        let y = match case {
            "gaussian_noise" => gaussian_noise(&g.scope(), &x, "noise", 0.5),
            _ => gaussian_dropout(&g.scope(), &x, "noise", 0.2),
        };
        let program = g.finish(&[("y", &y)]).unwrap();
        let results = run::run(&program, |name| {
            let state = program.variables.iter().find(|variable| variable.name == name).unwrap();
            let n: i64 = state.dims.iter().product();
            Literal::from_elements(state.dims.clone(), &(0..n as u64).map(|it| it + 17).collect::<Vec<u64>>())
        });
        let noise: Vec<f32> = run::f32s(&results[0]).iter().map(|value| (value - mean) / deviation).collect();
        let keras = Recorded::open().floats(&format!("{case}/below")).unwrap();
        for ((at, normal), keras) in [-2f32, -1.0, 0.0, 1.0, 2.0].into_iter().zip(NORMAL).zip(&keras) {
            let share = noise.iter().filter(|&&value| value < at).count() as f32 / N;
            let spread = (normal * (1.0 - normal) / N).sqrt();
            assert!((share - normal).abs() <= 5.0 * spread, "{case}: {share} are below {at}, expected {normal}");
            let off = (share - keras).abs();
            assert!(off <= 5.0 * 2f32.sqrt() * spread, "{case}: {share} are below {at}, in Keras {keras}");
        }
    }
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// `in_bf16_they_are_off_by_roundings_of_bf16` asks one of each kind.
    #[cfg_attr(feature = "long-tests", test)]
    fn in_bf16_all_are_off_by_roundings_of_bf16() {
        are_off_by_roundings(|_| true);
    }
}
