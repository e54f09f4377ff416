//! The values of layers, losses and metrics on the CPU plugin, compared with references written here in f64.
//!
//! Tolerances: an f32 result of `n` operations on values of magnitude up to `m` is off by at most `n · m · 2^-24` in
//! rounding to nearest, plus 1e-6 of its magnitude for XLA's approximations of exp, log, tanh and rsqrt; `close` takes
//! `n · m` as its bound's factor. Where something is exact, so is the test.

use crate::run;

use bf16scope::graph::{Graph, Init, Program, Scope, Tensor};
use bf16scope::hlo::{DType, Element, Literal};
use bf16scope::nn::*;
use half::bf16;
use std::collections::BTreeMap;

/// Values that are neither small integers nor alike: a fixed sequence in `[-2, 2)`.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut next = || {
        // Knuth's MMIX generator; its high bits are what is used.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32) / (1u32 << 22) as f32 - 2.0
    };
    (0..n).map(|_| next()).collect()
}

fn array<T: Element>(dims: &[i64], elements: &[T]) -> Literal {
    Literal::from_elements(dims, elements)
}

/// Builds a program whose result is what `build` gives, and runs it: `inputs` by name, variables at their start unless
/// an input of that name is given.
fn eval(graph: &Graph, outputs: &[&Tensor], inputs: &BTreeMap<&str, Literal>) -> Vec<Literal> {
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|&tensor| ("", tensor)).collect();
    let program = graph.finish(&named).unwrap_or_else(|error| panic!("{error}"));
    run::run(&program, |name| inputs.get(name).cloned().unwrap_or_else(|| start(&program, name)))
}

/// The start value of a variable.
fn start(program: &Program, name: &str) -> Literal {
    let variable = program.variables.iter().find(|variable| variable.name == name);
    let variable = variable.unwrap_or_else(|| panic!("no value for {name}"));
    match variable.dtype {
        DType::F32 => array(&variable.dims, &variable.init.values(1, name, &variable.dims)),
        DType::U64 => array(&variable.dims, &variable.init.words(1, name, &variable.dims)),
        other => panic!("{name} is {other}"),
    }
}

/// One f32 input of `dims`, one output.
fn apply(dims: &[i64], values: &[f32], build: impl FnOnce(&Scope, &Tensor) -> Tensor) -> Vec<f32> {
    let g = Graph::new("test");
    let x = g.input("x", DType::F32, dims);
    let y = build(&g.scope(), &x);
    run::f32s(&eval(&g, &[&y], &BTreeMap::from([("x", array(dims, values))]))[0])
}

#[track_caller]
fn close(actual: &[f32], expected: &[f64], factor: f64) {
    assert_eq!(actual.len(), expected.len());
    for (at, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let bound = factor * 2f64.powi(-24) + expected.abs() * 1e-6;
        let difference = (f64::from(actual) - expected).abs();
        assert!(difference <= bound, "element {at}: {actual}, expected {expected} within {bound:e}");
    }
}

fn to_bf16(values: &[f32]) -> Vec<f32> {
    values.iter().map(|&value| bf16::from_f32(value).to_f32()).collect()
}

/// `[b,h,w,c]` convolved with `[kh,kw,c/groups,f]`: the definition, in f64.
fn convolved(
    x: &[f32],
    dims: [usize; 4],
    kernel: &[f32],
    kdims: [usize; 4],
    config: &Conv2d,
) -> (Vec<f64>, [usize; 4]) {
    let Padding::Explicit(padding) = config.padding else { panic!("explicit padding only") };
    let [b, h, w, c] = dims;
    let [kh, kw, kc, f] = kdims;
    let out = |n: usize, k: usize, axis: usize| {
        let extent = (k - 1) * config.dilation_rate[axis] as usize + 1;
        (n + (padding[axis][0] + padding[axis][1]) as usize - extent) / config.strides[axis] as usize + 1
    };
    let (oh, ow) = (out(h, kh, 0), out(w, kw, 1));
    let filters_per_group = f / config.groups as usize;
    let mut y = vec![0.0; b * oh * ow * f];
    for (at, y) in y.iter_mut().enumerate() {
        let (filter, col, row, image) = (at % f, at / f % ow, at / f / ow % oh, at / f / ow / oh);
        for (i, j, k) in (0..kh * kw * kc).map(|n| (n / kc / kw, n / kc % kw, n % kc)) {
            let place = |out: usize, k: usize, axis: usize| {
                (out * config.strides[axis] as usize + k * config.dilation_rate[axis] as usize)
                    .checked_sub(padding[axis][0] as usize)
            };
            let (Some(from_row), Some(from_col)) = (place(row, i, 0), place(col, j, 1)) else { continue };
            if from_row < h && from_col < w {
                let channel = filter / filters_per_group * kc + k;
                let x = x[((image * h + from_row) * w + from_col) * c + channel];
                *y += f64::from(x) * f64::from(kernel[((i * kw + j) * kc + k) * f + filter]);
            }
        }
    }
    (y, [b, oh, ow, f])
}

#[test]
fn conv2d_is_its_definition_in_both_formats() {
    let (dims, kdims) = ([2, 7, 6, 4], [3, 2, 2, 6]);
    let config = Conv2d {
        filters: 6,
        kernel_size: [3, 2],
        strides: [2, 1],
        padding: Padding::Explicit([[1, 2], [0, 3]]),
        dilation_rate: [2, 3],
        groups: 2,
        use_bias: false,
        ..Conv2d::default()
    };
    let (x, kernel) = (numbers(2 * 7 * 6 * 4, 1), numbers(3 * 2 * 2 * 6, 2));
    let (expected, odims) = convolved(&x, dims, &kernel, kdims, &config);
    for format in [DataFormat::ChannelsLast, DataFormat::ChannelsFirst] {
        let g = Graph::new("test");
        let images = g.input("x", DType::F32, dims.map(|n| n as i64));
        let config = Conv2d { data_format: format, ..config };
        let y = match format {
            DataFormat::ChannelsLast => conv2d(&g.scope(), &images, "conv", &config),
            DataFormat::ChannelsFirst => {
                conv2d(&g.scope(), &images.transpose(&[0, 3, 1, 2]), "conv", &config).transpose(&[0, 2, 3, 1])
            }
        };
        assert_eq!(y.dims(), odims.map(|n| n as i64));
        let inputs = BTreeMap::from([
            ("x", array(&dims.map(|n| n as i64), &x)),
            ("conv/kernel", array(&kdims.map(|n| n as i64), &kernel)),
        ]);
        // 12 products of magnitude up to 4, and as many sums.
        close(&run::f32s(&eval(&g, &[&y], &inputs)[0]), &expected, 24.0 * 4.0);
    }
}

#[test]
fn dense_and_conv_biases_reach_every_place() {
    let g = Graph::new("test");
    let x = g.input("x", DType::F32, [2, 4, 4, 1]);
    let conv = Conv2d { filters: 2, kernel_size: [1, 1], bias_initializer: Init::Constant(0.5), ..Conv2d::default() };
    let y = conv2d(&g.scope(), &x, "conv", &conv);
    let z = dense(
        &g.scope(),
        &flatten(&y),
        "dense",
        &Dense { units: 3, bias_initializer: Init::Constant(-1.5), ..Dense::default() },
    );
    let results = eval(&g, &[&y, &z], &BTreeMap::from([("x", array(&[2, 4, 4, 1], &[0f32; 32]))]));
    assert_eq!(run::f32s(&results[0]), [0.5; 64]);
    // With x 0, y is 0.5 everywhere, and the dense layer sums its kernel's columns.
    let kernel = Dense::default().kernel_initializer.values(1, "dense/kernel", &[32, 3]);
    let column = |j: usize| (0..32).map(|i| f64::from(kernel[i * 3 + j]) * 0.5).sum::<f64>() - 1.5;
    close(&run::f32s(&results[1]), &[0, 1, 2, 0, 1, 2].map(column), 64.0);
}

#[test]
fn max_pool_never_takes_padding() {
    let x: Vec<f32> = numbers(25, 3).iter().map(|v| v - 10.0).collect();
    let pool = Pool { pool_size: [3, 3], strides: Some([2, 2]), padding: Padding::Same, ..Pool::default() };
    let y = apply(&[1, 5, 5, 1], &x, |_, x| max_pool(x, &pool));
    let greatest = |rows: [usize; 2], cols: [usize; 2]| {
        let cells = (rows[0]..=rows[1]).flat_map(|r| (cols[0]..=cols[1]).map(move |c| r * 5 + c));
        cells.map(|at| x[at]).fold(f32::MIN, f32::max)
    };
    let spans = [[0, 1], [1, 3], [3, 4]];
    let expected: Vec<f32> = spans.iter().flat_map(|&rows| spans.map(|cols| greatest(rows, cols))).collect();
    assert_eq!(y, expected);
}

#[test]
fn avg_pool_counts_what_it_covers_and_rounds_once() {
    let x = to_bf16(&numbers(25, 4));
    let pool = Pool { pool_size: [3, 3], strides: Some([2, 2]), padding: Padding::Same, ..Pool::default() };
    let mean = |rows: [usize; 2], cols: [usize; 2]| {
        let cells: Vec<usize> = (rows[0]..=rows[1]).flat_map(|r| (cols[0]..=cols[1]).map(move |c| r * 5 + c)).collect();
        cells.iter().map(|&at| f64::from(x[at])).sum::<f64>() / cells.len() as f64
    };
    let spans = [[0, 1], [1, 3], [3, 4]];
    let expected: Vec<f64> = spans.iter().flat_map(|&rows| spans.map(|cols| mean(rows, cols))).collect();
    close(&apply(&[1, 5, 5, 1], &x, |_, x| avg_pool(x, &pool)), &expected, 9.0 * 2.0);
    // In bf16 the f32 mean is rounded, and nothing before it.
    let in_f32 = apply(&[1, 5, 5, 1], &x, |_, x| avg_pool(x, &pool));
    assert_eq!(apply(&[1, 5, 5, 1], &x, |_, x| avg_pool(&x.cast(DType::BF16), &pool)), to_bf16(&in_f32));
    let valid = Pool::default();
    let expected = [[0, 1], [2, 3]].map(|rows| [[0, 1], [2, 3]].map(|cols| mean(rows, cols)));
    close(&apply(&[1, 5, 5, 1], &x, |_, x| avg_pool(x, &valid)), expected.as_flattened(), 4.0 * 2.0);
    let all = x.iter().map(|&v| f64::from(v)).sum::<f64>() / 25.0;
    close(&apply(&[1, 5, 5, 1], &x, |_, x| global_avg_pool(x, DataFormat::ChannelsLast)), &[all], 25.0 * 2.0);
}

#[test]
fn batch_norm_normalises_by_the_batch_and_moves_the_running_statistics() {
    let (n, c) = (24, 3);
    let x = to_bf16(&numbers(n * c, 5));
    let of_feature = |f: usize| (0..n).map(|i| f64::from(x[i * c + f])).collect::<Vec<f64>>();
    let (mut means, mut variances) = (vec![], vec![]);
    for feature in 0..c {
        let values = of_feature(feature);
        let mean = values.iter().sum::<f64>() / n as f64;
        means.push(mean);
        variances.push(values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64);
    }
    let g = Graph::training("test");
    let input = g.input("x", DType::F32, [2, 3, 4, 3]);
    let config = BatchNorm {
        momentum: 0.75,
        gamma_initializer: Init::Constant(2.0),
        beta_initializer: Init::Constant(-1.0),
        ..BatchNorm::RESNET
    };
    let in_f32 = batch_norm(&g.scope(), &input, "f32", &config);
    let in_bf16 = g.bf16_scope(|s| batch_norm(s, &input.cast(DType::BF16), "bf16", &config));
    let updates: Vec<Tensor> = g.variables().iter().filter_map(|v| v.update).map(|id| g.tensor(id)).collect();
    assert_eq!(updates.len(), 4);
    let results =
        eval(&g, &[&in_f32, &in_bf16, &updates[0], &updates[1]], &BTreeMap::from([("x", array(&[2, 3, 4, 3], &x))]));
    let normal = |at: usize| (f64::from(x[at]) - means[at % c]) / (variances[at % c] + 1e-5).sqrt() * 2.0 - 1.0;
    let expected: Vec<f64> = (0..n * c).map(normal).collect();
    // Two sums over 24 elements of magnitude up to 4, magnified by 2 / deviation < 4.
    close(&run::f32s(&results[0]), &expected, 2.0 * 24.0 * 4.0 * 4.0);
    assert_eq!(
        run::f32s(&results[1]),
        to_bf16(&run::f32s(&results[0])),
        "bf16 data is normalised in f32 and rounded once"
    );
    close(&run::f32s(&results[2]), &means.iter().map(|mean| mean * 0.25).collect::<Vec<f64>>(), 24.0 * 4.0);
    let unbiased = variances.iter().map(|v| 0.75 + 0.25 * v * n as f64 / (n - 1) as f64).collect::<Vec<f64>>();
    close(&run::f32s(&results[3]), &unbiased, 2.0 * 24.0 * 4.0);
}

#[test]
fn batch_norm_infers_with_the_running_statistics() {
    let x = numbers(12, 6);
    let g = Graph::new("test");
    let input = g.input("x", DType::F32, [4, 3]);
    let y = batch_norm(&g.scope(), &input, "bn", &BatchNorm::RESNET);
    let (mean, variance) = ([0.5f32, -1.0, 2.0], [4.0f32, 0.25, 1.0]);
    let inputs = BTreeMap::from([
        ("x", array(&[4, 3], &x)),
        ("bn/moving_mean", array(&[3], &mean)),
        ("bn/moving_variance", array(&[3], &variance)),
    ]);
    let normal = |at: usize| f64::from(x[at] - mean[at % 3]) / (f64::from(variance[at % 3]) + 1e-5).sqrt();
    close(&run::f32s(&eval(&g, &[&y], &inputs)[0]), &(0..12).map(normal).collect::<Vec<f64>>(), 4.0 * 8.0);
}

#[test]
fn layer_norm_normalises_each_row_in_f32() {
    let x = to_bf16(&numbers(4 * 16, 7));
    let rows: Vec<f64> = x
        .chunks(16)
        .flat_map(|row| {
            let row: Vec<f64> = row.iter().map(|&v| f64::from(v)).collect();
            let mean = row.iter().sum::<f64>() / 16.0;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 16.0;
            row.into_iter().map(move |v| (v - mean) / (variance + 1e-6).sqrt()).collect::<Vec<f64>>()
        })
        .collect();
    let in_f32 =
        apply(&[4, 16], &x, |s, x| layer_norm(s, x, "ln", &LayerNorm { epsilon: 1e-6, ..LayerNorm::default() }));
    close(&in_f32, &rows, 2.0 * 16.0 * 4.0);
    let in_bf16 = apply(&[4, 16], &x, |s, x| {
        let y = layer_norm(s, &x.cast(DType::BF16), "ln", &LayerNorm { epsilon: 1e-6, ..LayerNorm::default() });
        assert_eq!(y.dtype(), DType::BF16);
        y
    });
    assert_eq!(in_bf16, to_bf16(&in_f32));
}

#[test]
fn rms_norm_divides_each_row_by_its_root_mean_square_in_f32() {
    let x = to_bf16(&numbers(4 * 16, 7));
    let scales = numbers(16, 9);
    let normalised = |row: &[f32]| {
        let square = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 16.0;
        row.iter().zip(&scales).map(|(&v, &scale)| f64::from(v) / (square + 0.5).sqrt() * f64::from(scale)).collect()
    };
    let rows: Vec<f64> = x.chunks(16).flat_map(|row| -> Vec<f64> { normalised(row) }).collect();
    let run = |dtype: DType| {
        let g = Graph::new("test");
        let input = g.input("x", DType::F32, [4, 16]);
        let config = RmsNorm { epsilon: 0.5, ..RmsNorm::default() };
        let y = rms_norm(&g.scope(), &input.cast(dtype), "norm", &config);
        assert_eq!(y.dtype(), dtype);
        let inputs = BTreeMap::from([("x", array(&[4, 16], &x)), ("norm/scale", array(&[16], &scales))]);
        run::f32s(&eval(&g, &[&y.cast(DType::F32)], &inputs)[0])
    };
    let in_f32 = run(DType::F32);
    close(&in_f32, &rows, 2.0 * 16.0 * 4.0);
    assert_eq!(run(DType::BF16), to_bf16(&in_f32));
}

#[test]
fn a_class_token_stands_before_each_sequence() {
    let (x, token) = (numbers(2 * 3 * 4, 5), numbers(4, 6));
    let g = Graph::new("test");
    let input = g.input("x", DType::F32, [2, 3, 4]);
    let y = class_token(&g.scope(), &input, "first", &ClassToken::default());
    let inputs = BTreeMap::from([("x", array(&[2, 3, 4], &x)), ("first/token", array(&[4], &token))]);
    let expected: Vec<f32> = x.chunks(12).flat_map(|sequence| [&token, sequence].concat()).collect();
    assert_eq!(run::f32s(&eval(&g, &[&y], &inputs)[0]), expected);
}

#[test]
fn activations_are_their_formulas() {
    let x = numbers(64, 8);
    let map = |f: fn(f64) -> f64| x.iter().map(|&v| f(f64::from(v))).collect::<Vec<f64>>();
    let run = |f: fn(&Tensor) -> Tensor| apply(&[64], &x, |_, x| f(x));
    close(&run(relu), &map(|v| v.max(0.0)), 0.0);
    assert!(apply(&[1], &[f32::NAN], |_, x| relu(x))[0].is_nan());
    close(&run(tanh), &map(f64::tanh), 4.0);
    close(&run(sigmoid), &map(|v| 1.0 / (1.0 + (-v).exp())), 4.0);
    let tanh_form =
        |v: f64| 0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3))).tanh());
    close(&run(|x| gelu(x, Gelu::Tanh)), &map(tanh_form), 16.0);
    // x·Φ(x) at a few points, from tables of the normal distribution.
    let points = [-1.0f32, 0.0, 0.5, 1.0, 2.0];
    let erf_form = apply(&[5], &points, |_, x| gelu(x, Gelu::Erf));
    // Where erf is -1 nothing is left but the sign; XLA's ends 1.5 ulp above it.
    let far = [-1e4f32, -1e30, -1000.0, -6.0];
    for element in apply(&[4], &far, |_, x| gelu(x, Gelu::Erf)) {
        assert_eq!(element.to_bits(), (-0.0f32).to_bits(), "{element}");
    }
    assert!(apply(&[1], &[f32::NAN], |_, x| gelu(x, Gelu::Erf))[0].is_nan());
    // Above -4√2 = -5.657 nothing is another: as the formula has it, to the bit.
    let near: Vec<f32> = (0..4096).map(|at| (at as f32 - 2048.0) / 363.0).chain([100.0, 1e30]).collect();
    let formula = |x: &Tensor| x * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0);
    let [ours, plain] = [|x: &Tensor| gelu(x, Gelu::Erf), formula].map(|f| apply(&[4098], &near, |_, x| f(x)));
    for ((x, ours), plain) in near.iter().zip(ours).zip(plain) {
        assert_eq!(ours.to_bits(), plain.to_bits(), "of {x}");
    }
    close(&erf_form, &[-0.158_655_253_9, 0.0, 0.345_731_230_6, 0.841_344_746_1, 1.954_499_736_1], 16.0);
}

#[test]
fn softmax_is_finite_where_exp_is_not() {
    let x = [1000.0f32, 999.0, -1000.0, 0.0, 1.0, 2.0];
    let expected = |row: [f64; 3]| {
        let greatest = row.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = row.iter().map(|v| (v - greatest).exp()).sum();
        row.map(|v| (v - greatest).exp() / sum)
    };
    let expected: Vec<f64> = [expected([1000.0, 999.0, -1000.0]), expected([0.0, 1.0, 2.0])].concat();
    close(&apply(&[2, 3], &x, |_, x| softmax(x, -1)), &expected, 8.0);
    let by_column = apply(&[2, 3], &x, |_, x| softmax(&x.transpose(&[1, 0]), 0).transpose(&[1, 0]));
    close(&by_column, &expected, 8.0);
    let logs = apply(&[2, 3], &x, |_, x| log_softmax(x, 1));
    // Underflow makes the third log -2000 + log(1.37): its probability is 0, its logarithm is not.
    close(&logs[..2], &[expected[0].ln(), expected[1].ln()], 8.0);
    assert!((f64::from(logs[2]) + 2_000.313_261_687_5).abs() < 2000.0 * 2f64.powi(-23));
}

#[test]
fn dropout_drops_as_many_as_it_says_and_repeats_its_masks() {
    let (n, rate) = (40_000, 0.3);
    let g = Graph::training("test");
    let x = g.input("x", DType::F32, [n]);
    let y = dropout(&g.scope(), &x, "drop", rate);
    let state = g.tensor(g.variables()[0].update.unwrap());
    let step = |state: Literal| {
        let inputs = BTreeMap::from([("x", array(&[n], &vec![1f32; n as usize])), ("drop/state", state)]);
        eval(&g, &[&y, &state_of(&g)], &inputs)
    };
    fn state_of(g: &Graph) -> Tensor {
        g.tensor(g.variables()[0].update.unwrap())
    }
    assert_eq!(state.dtype(), DType::U64);
    let first = step(array(&[2], &[7u64, 0]));
    let again = step(array(&[2], &[7u64, 0]));
    let second = step(first[1].clone());
    assert!(first == again, "one state gives one mask");
    assert!(first[0] != second[0] && first[1] != second[1], "the next state gives another mask");
    for mask in [&first[0], &second[0]] {
        let mask = run::f32s(mask);
        let scale = (1.0 / (1.0 - rate)) as f32;
        assert!(mask.iter().all(|&v| v == 0.0 || v == scale));
        let dropped = mask.iter().filter(|&&v| v == 0.0).count() as f64 / n as f64;
        // Six standard deviations of a binomial's mean: sqrt(0.3 · 0.7 / 40000) = 0.0023.
        assert!((dropped - rate).abs() < 6.0 * 0.0023, "{dropped} of the elements were dropped");
    }
}

#[test]
fn dropout_does_nothing_where_it_should_not() {
    let g = Graph::new("test");
    let x = g.input("x", DType::F32, [4]);
    assert_eq!(dropout(&g.scope(), &x, "drop", 0.5).id, x.id);
    let g = Graph::training("test");
    let x = g.input("x", DType::F32, [4]);
    assert_eq!(dropout(&g.scope(), &x, "drop", 0.0).id, x.id);
    assert!(g.variables().is_empty());
}

/// Scores are 0, and values and outputs the identity, so the result is the weights. The share of those that are dropped
/// has a standard deviation of sqrt(0.25 · 0.75 / 40960) = 0.0022.
#[test]
fn attention_drops_as_many_of_its_weights_as_it_says_and_none_in_evaluation() {
    let (n, batch, rate) = (64i64, 10i64, 0.25);
    let identity: Vec<f32> = (0..n * n).map(|at| f32::from(u8::from(at / n == at % n))).collect();
    let weights = |g: &Graph, state: u64| {
        let x = g.input("x", DType::F32, [batch, n, n]);
        let config = Attention { use_bias: false, dropout: rate, ..Attention::default() };
        let y = attention(&g.scope(), &x, &x, "a", &config);
        let (zeros, heads) = (vec![0f32; identity.len()], [n, 1, n]);
        let inputs = BTreeMap::from([
            ("x", array(&[batch, n, n], &identity.repeat(batch as usize))),
            ("a/query/kernel", array(&heads, &zeros)),
            ("a/key/kernel", array(&heads, &zeros)),
            ("a/value/kernel", array(&heads, &identity)),
            ("a/out/kernel", array(&[1, n, n], &identity)),
            ("a/dropout/state", array(&[2], &[state, 0])),
        ]);
        run::f32s(&eval(g, &[&y], &inputs)[0])
    };
    let trained = |state: u64| weights(&Graph::training("test"), state);
    let (first, second) = (trained(7), trained(8));
    assert!(first == trained(7) && first != second, "a state gives one mask, and another state another");
    let remaining = (1.0 / (1.0 - rate)) as f32 / n as f32;
    for weights in [first, second] {
        assert!(weights.iter().all(|&weight| weight == 0.0 || (weight / remaining - 1.0).abs() < 1e-5));
        let dropped = weights.iter().filter(|&&weight| weight == 0.0).count() as f64 / weights.len() as f64;
        assert!((dropped - rate).abs() < 6.0 * 0.0022, "{dropped} of the weights were dropped");
    }
    assert!(weights(&Graph::new("test"), 7).iter().all(|&weight| (weight * n as f32 - 1.0).abs() < 1e-5));
}

#[test]
fn embedding_takes_rows_and_clamps() {
    let table = numbers(5 * 2, 9);
    let g = Graph::new("test");
    let indices = g.input("indices", DType::S32, [2, 3]);
    let config = Embedding { input_dim: 5, output_dim: 2, dtype: Some(DType::BF16), ..Embedding::default() };
    let y = g.bf16_scope(|s| embedding(s, &indices, "words", &config));
    assert_eq!((y.dtype(), y.dims()), (DType::BF16, vec![2, 3, 2]));
    let inputs = BTreeMap::from([
        ("indices", array(&[2, 3], &[4i32, 0, 2, 2, -1, 5])),
        ("words/embeddings", array(&[5, 2], &table)),
    ]);
    let row = |at: usize| to_bf16(&table[at * 2..at * 2 + 2]);
    assert_eq!(run::f32s(&eval(&g, &[&y], &inputs)[0]), [4, 0, 2, 2, 0, 4].map(row).concat());
}

/// `-Σ p log softmax(logits)` of one row.
fn cross_entropy(logits: &[f32], p: impl Fn(usize) -> f64) -> f64 {
    let logits: Vec<f64> = logits.iter().map(|&v| f64::from(v)).collect();
    let greatest = logits.iter().copied().fold(f64::MIN, f64::max);
    let log_sum = logits.iter().map(|v| (v - greatest).exp()).sum::<f64>().ln() + greatest;
    (0..logits.len()).map(|class| p(class) * (log_sum - logits[class])).sum()
}

#[test]
fn cross_entropy_is_its_definition() {
    let (n, n_classes) = (6, 5);
    let logits = numbers(n * n_classes, 10);
    let labels = [4i32, 0, 1, 3, 2, 2];
    let g = Graph::new("test");
    let x = g.input("logits", DType::F32, [6, 5]);
    let y = g.input("labels", DType::S32, [6]);
    let dense_labels = g.input("dense", DType::F32, [6, 5]);
    let one_hot: Vec<f32> = labels.iter().flat_map(|&l| (0..5).map(move |c| (c == l) as u8 as f32)).collect();
    let outputs = [
        sparse_softmax_cross_entropy_per_example(&x, &y, 0.0),
        sparse_softmax_cross_entropy(&x, &y, 0.1),
        softmax_cross_entropy(&x, &dense_labels, 0.1),
    ];
    let inputs = BTreeMap::from([
        ("logits", array(&[6, 5], &logits)),
        ("labels", array(&[6], &labels)),
        ("dense", array(&[6, 5], &one_hot)),
    ]);
    let results = eval(&g, &outputs.iter().collect::<Vec<_>>(), &inputs);
    let rows = || logits.chunks(n_classes).zip(labels);
    let plain: Vec<f64> = rows().map(|(row, label)| cross_entropy(row, |c| (c as i32 == label) as u8 as f64)).collect();
    close(&run::f32s(&results[0]), &plain, 16.0 * 4.0);
    let smooth = rows().map(|(row, label)| cross_entropy(row, |c| if c as i32 == label { 0.92 } else { 0.02 }));
    let smooth = smooth.sum::<f64>() / n as f64;
    close(&run::f32s(&results[1]), &[smooth], 16.0 * 4.0);
    assert_eq!(results[1], results[2], "sparse and dense labels give the same loss");
}

#[test]
fn cross_entropy_of_what_is_no_class_is_nan_and_of_an_impossible_class_infinite() {
    let g = Graph::new("test");
    let x = g.input("logits", DType::F32, [4, 3]);
    let y = g.input("labels", DType::S32, [4]);
    let loss = sparse_softmax_cross_entropy_per_example(&x, &y, 0.0);
    let low = f32::NEG_INFINITY;
    let logits = [0.0f32, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, low, 0.0, 0.0, low];
    let inputs = BTreeMap::from([("logits", array(&[4, 3], &logits)), ("labels", array(&[4], &[3i32, -1, 0, 2]))]);
    let losses = run::f32s(&eval(&g, &[&loss], &inputs)[0]);
    assert!(losses[0].is_nan() && losses[1].is_nan(), "{losses:?}");
    close(&losses[2..3], &[2f64.ln()], 8.0);
    assert_eq!(losses[3], f32::INFINITY);
}

#[test]
fn squared_errors_are_summed_in_f32() {
    let (a, b) = (numbers(10, 11), numbers(10, 12));
    let g = Graph::new("test");
    let (x, y) = (g.input("a", DType::F32, [10]), g.input("b", DType::F32, [10]));
    let mse = mean_squared_error(&x, &y);
    let inputs = BTreeMap::from([("a", array(&[10], &a)), ("b", array(&[10], &b))]);
    let results = eval(&g, &[&mse], &inputs);
    let squares = a.iter().zip(&b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
    close(&run::f32s(&results[0]), &[squares.sum::<f64>() / 10.0], 20.0 * 16.0);
}

#[test]
fn metrics_settle_ties_and_nan() {
    let nan = f32::NAN;
    #[rustfmt::skip]
    let logits = [
        1.0f32, 3.0, 3.0, 0.0, // the first of two equals wins
        1.0, 3.0, 3.0, 0.0,
        nan, 1.0, 0.0, 0.0, // a row with NaN is wrong
        5.0, 4.0, 3.0, 2.0,
        5.0, 4.0, 3.0, 2.0, // no such class
    ];
    let labels = [1i32, 2, 1, 2, 4];
    let g = Graph::new("test");
    let x = g.input("logits", DType::F32, [5, 4]);
    let y = g.input("labels", DType::S32, [5]);
    let top = [1, 2, 3].map(|k| is_in_top_k(&x, &y, k).cast(DType::F32));
    let correct = is_correct(&x, &y).cast(DType::F32);
    let (accuracy, top_3) = (accuracy(&x, &y), top_k_accuracy(&x, &y, 3));
    let inputs = BTreeMap::from([("logits", array(&[5, 4], &logits)), ("labels", array(&[5], &labels))]);
    let results = eval(&g, &[&correct, &accuracy, &top[0], &top[1], &top[2], &top_3], &inputs);
    let results: Vec<Vec<f32>> = results.iter().map(run::f32s).collect();
    assert_eq!(results[0], [1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(results[1], [0.2]);
    // Both of the tie are on top; NaN is above nothing and its row's label has only finite logits above it.
    assert_eq!(results[2], [1.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(results[3], [1.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(results[4], [1.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!(results[5], [0.8]);
}
