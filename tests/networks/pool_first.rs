//! Other forms of what surrounds a batch norm are the plain ones: the pool before it gives the same bits, and so do the
//! statistics; gradients, also those per feature, are the same function.

use crate::run;

use bf16scope::graph::{Graph, Scope, Tensor};
use bf16scope::hlo::text::{PrintOptions, print};
use bf16scope::hlo::{DType, Literal};
use bf16scope::nn::{
    Activation, BatchNorm, Conv2d, ConvNormPool, DataFormat, NormGradient, Padding, Pool, batch_norm, conv_norm_pool,
    conv2d, max_pool, relu,
};
use bf16scope::passes::grad::gradients;
use std::collections::BTreeMap;

/// Both signs, and both zeros.
const GAMMA: [f64; 5] = [1.5, -0.75, 0.0, 2.0, -0.0];
/// At 0 a window's elements are all the largest, and which of them has the gradient is a choice.
const NO_ZEROS: [f64; 5] = [1.5, -0.75, 0.5, 2.0, -1.0];

/// The four layers one after the other.
fn plain(s: &Scope, x: &Tensor, config: &ConvNormPool) -> Tensor {
    let features = conv2d(s, x, "conv", &config.conv);
    max_pool(&relu(&batch_norm(s, &features, "bn", &config.norm)), &config.pool)
}

fn config(format: DataFormat, gradient: NormGradient) -> ConvNormPool {
    let conv = Conv2d {
        filters: 5,
        kernel_size: [3, 3],
        strides: [1, 2],
        padding: Padding::Same,
        data_format: format,
        use_bias: false,
        ..Conv2d::default()
    };
    let norm = BatchNorm { axis: format.channels(), gradient: Some(gradient), ..BatchNorm::RESNET };
    let pool = Pool { pool_size: [3, 3], strides: Some([2, 2]), padding: Padding::Same, data_format: format };
    ConvNormPool { conv, pair_columns: true, norm, pool }
}

/// Numbers without a pattern between -1 and 1, in the dtype.
fn numbers(dtype: DType, dims: &[i64], salt: u64) -> Literal {
    let n = dims.iter().product::<i64>() as u64;
    let at = |i: u64| {
        let mixed = (i + 1 + 1000 * salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    literal(dtype, dims, &(0..n).map(at).collect::<Vec<f64>>())
}

/// Halves between -1 and 1: convolutions of 27 of them, and sums of hundreds of squares of those, are exact in f32, in any
/// order.
fn halves(dtype: DType, dims: &[i64], salt: i64) -> Literal {
    let n = dims.iter().product::<i64>();
    let at = |i: i64| ((i * 37 + i / 7 + salt) % 5 - 2) as f64 / 2.0;
    literal(dtype, dims, &(0..n).map(at).collect::<Vec<f64>>())
}

fn literal(dtype: DType, dims: &[i64], values: &[f64]) -> Literal {
    match dtype {
        DType::F64 => Literal::from_elements(dims, values),
        DType::F32 => Literal::from_elements(dims, &values.iter().map(|&v| v as f32).collect::<Vec<f32>>()),
        DType::BF16 => {
            Literal::from_elements(dims, &values.iter().map(|&v| half::bf16::from_f64(v)).collect::<Vec<half::bf16>>())
        }
        other => panic!("{other}"),
    }
}

/// By name, of inputs whose sums are exact or of others: the result, the updated statistics, and in training the gradients of the result's weighted sum.
fn results(
    form: fn(&Scope, &Tensor, &ConvNormPool) -> Tensor,
    dtype: DType,
    batch: i64,
    is_training: bool,
    config: &ConvNormPool,
    is_exact: bool,
) -> BTreeMap<String, Literal> {
    let g = if is_training { Graph::training("stem") } else { Graph::new("stem") };
    let dims = match config.conv.data_format {
        DataFormat::ChannelsLast => [batch, 7, 8, 3],
        DataFormat::ChannelsFirst => [batch, 3, 7, 8],
    };
    let x = g.input("x", dtype, dims);
    let y = form(&g.scope(), &x, config);
    let mut outputs = vec![("y".to_string(), y.clone())];
    if is_training {
        let weights = g.input("weights", dtype, y.dims());
        let loss = (&y * &weights).sum(&[0, 1, 2, 3]);
        let variables = g.variables();
        let trainable = variables.iter().filter(|variable| variable.trainable);
        let (mut names, mut sources): (Vec<String>, Vec<_>) = trainable.map(|v| (v.name.clone(), v.instr)).unzip();
        names.push("x".to_string());
        sources.push(x.id);
        let cotangents = gradients(g.emitter(), loss.id, &sources).unwrap();
        outputs.extend(names.iter().zip(cotangents).map(|(name, id)| (format!("gradient of {name}"), g.tensor(id))));
        let updates = variables.iter().filter_map(|v| Some((format!("new {}", v.name), g.tensor(v.update?))));
        outputs.extend(updates);
    }
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let program = g.finish(&named).unwrap();
    let of_norm = if dtype == DType::BF16 { DType::F32 } else { dtype };
    let argument = |name: &str| match name {
        "x" if is_exact => halves(dtype, &dims, 0),
        "x" => numbers(dtype, &dims, 0),
        "conv/kernel" if is_exact => halves(dtype, &[3, 3, 3, 5], 1),
        "conv/kernel" => numbers(dtype, &[3, 3, 3, 5], 1),
        "bn/gamma" => literal(of_norm, &[5], if is_exact { &GAMMA } else { &NO_ZEROS }),
        "bn/beta" => literal(of_norm, &[5], &[0.25, -0.125, 0.5, -1.0, 0.0]),
        "bn/moving_mean" => numbers(of_norm, &[5], 2),
        "bn/moving_variance" => literal(of_norm, &[5], &[0.5, 1.0, 2.0, 0.25, 4.0]),
        "weights" => numbers(dtype, &program.inputs[1].dims, 3),
        other => panic!("{other}"),
    };
    let literals = run::run(&program, argument);
    outputs.into_iter().map(|(name, _)| name).zip(literals).collect()
}

#[test]
fn the_pool_first_gives_the_same_bits_and_the_same_statistics() {
    let mut n_compared = 0;
    for dtype in [DType::BF16, DType::F32, DType::F64] {
        for (format, is_training) in
            [(DataFormat::ChannelsLast, true), (DataFormat::ChannelsLast, false), (DataFormat::ChannelsFirst, true)]
        {
            let config = config(format, NormGradient::PerElement);
            let expected = results(plain, dtype, 2, is_training, &config, true);
            let actual = results(conv_norm_pool, dtype, 2, is_training, &config, true);
            assert_eq!(expected.keys().collect::<Vec<_>>(), actual.keys().collect::<Vec<_>>());
            for (name, expected) in expected.iter().filter(|(name, _)| !name.starts_with("gradient")) {
                assert_eq!(expected, &actual[name], "{name}: {dtype}, {format:?}, training: {is_training}");
                n_compared += 1;
            }
        }
    }
    // In training the result and two statistics.
    assert_eq!(n_compared, 3 * (3 + 1 + 3));
}

/// Gradients in f64 are sums of fewer than 2^12 numbers, each of fewer than 2^4 roundings and at most 2^10 times as large
/// as the largest of the gradient: rounding moves them by at most 2^(12 + 4 + 10 - 53) of that.
#[test]
fn gradients_are_the_same_function() {
    let bound = (-27f64).exp2();
    let expected_of = |format| results(plain, DType::F64, 2, true, &config(format, NormGradient::PerElement), false);
    for format in [DataFormat::ChannelsLast, DataFormat::ChannelsFirst] {
        let expected = expected_of(format);
        let per_feature = config(format, NormGradient::PerFeature);
        for (form, actual) in [
            ("per feature", results(plain, DType::F64, 2, true, &per_feature, false)),
            ("pool first", results(conv_norm_pool, DType::F64, 2, true, &per_feature, false)),
        ] {
            let is_gradient = |name: &&String| name.starts_with("gradient");
            assert_eq!(expected.keys().filter(is_gradient).count(), 4);
            for name in expected.keys().filter(is_gradient) {
                let (expected, actual) = (run::f64s(&expected[name]), run::f64s(&actual[name]));
                let scale = expected.iter().fold(0.0, |scale: f64, value| scale.max(value.abs()));
                assert!(scale > 0.0, "{name}");
                for (idx, (expected, actual)) in expected.iter().zip(&actual).enumerate() {
                    let error = (expected - actual).abs() / scale;
                    assert!(error <= bound, "{form}, {format:?}: {name}[{idx}] is {actual}, expected {expected}");
                }
            }
        }
    }
}

#[test]
fn two_columns_at_a_time_are_the_same_function() {
    let paired = config(DataFormat::ChannelsLast, NormGradient::PerFeature);
    let plain = ConvNormPool { pair_columns: false, ..paired };
    let [paired, plain] = [paired, plain].map(|config| results(conv_norm_pool, DType::F64, 128, true, &config, false));
    for (name, plain) in &plain {
        let (plain, paired) = (run::f64s(plain), run::f64s(&paired[name]));
        let scale = plain.iter().fold(0.0, |scale: f64, value| scale.max(value.abs()));
        // As above, with 64 times as many numbers.
        let close = plain.iter().zip(&paired).all(|(a, b)| (a - b).abs() <= (-21f64).exp2() * scale);
        assert!(close, "{name}");
    }
}

#[test]
fn a_bias_and_a_norm_of_other_axes_are_refused() {
    let error = |config: ConvNormPool| {
        let g = Graph::new("stem");
        let x = g.input("x", DType::F32, [1, 8, 8, 3]);
        let y = conv_norm_pool(&g.scope(), &x, &config);
        g.finish(&[("y", &y)]).unwrap_err().to_string()
    };
    let plain = config(DataFormat::ChannelsLast, NormGradient::PerElement);
    let bias = error(ConvNormPool { conv: Conv2d { use_bias: true, ..plain.conv }, ..plain });
    assert!(bias.contains("the convolution has a bias, expected none"), "{bias}");
    assert!(bias.contains("tests/networks/pool_first.rs"), "{bias}");
    let help = "help: the norm subtracts the mean, and the bias with it: set use_bias to false";
    assert!(bias.ends_with(help), "{bias}");
    let active = error(ConvNormPool { conv: Conv2d { activation: Activation::Relu, ..plain.conv }, ..plain });
    assert!(active.contains("the convolution has an activation, expected linear"), "{active}");
    assert!(active.ends_with("help: relu follows the norm: leave `activation` out"), "{active}");
    let axis = error(ConvNormPool { norm: BatchNorm { axis: 1, ..plain.norm }, ..plain });
    assert!(axis.contains("the norm's axis is 1, expected 3, that of the features"), "{axis}");
    let momentum = error(ConvNormPool { norm: BatchNorm { momentum: 2.0, ..plain.norm }, ..plain });
    assert!(momentum.contains("momentum is 2, expected 0 to 1"), "{momentum}");
}

#[test]
fn an_axis_from_the_end_is_that_of_the_features() {
    let text = |format: DataFormat, axis: i64| {
        let g = Graph::new("stem");
        let x = g.input("x", DType::F32, [1, 8, 8, 8]);
        let plain = config(format, NormGradient::PerElement);
        let y = conv_norm_pool(&g.scope(), &x, &ConvNormPool { norm: BatchNorm { axis, ..plain.norm }, ..plain });
        print(&g.finish(&[("y", &y)]).unwrap().module, &PrintOptions::default())
    };
    assert_eq!(text(DataFormat::ChannelsLast, -1), text(DataFormat::ChannelsLast, 3));
    assert_eq!(text(DataFormat::ChannelsFirst, -3), text(DataFormat::ChannelsFirst, 1));
}
