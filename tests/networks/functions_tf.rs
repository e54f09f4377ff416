//! Compares activations, layers and losses with TensorFlow's: values and gradients.
//!
//! `tests/data/functions_tf` holds TensorFlow 2.21's results on a CPU for each case, in f32 and in f64, for inputs that are
//! exact in f32. Ours run in both dtypes.
//!
//! # The bound
//! Our f64 result and TensorFlow's f64 result, and each f32 result and TensorFlow's f64 result, may differ by
//! `2 · roundings · u · size`, where `u` is half an ulp of the dtype.
//! - `size` bounds how far a relative error of 1 in any intermediate value moves the result: the product of `1 + |input|`
//!   over the inputs (their largest; the cotangent is at most 1), times the largest result if that is above 1. Every
//!   function here is a sum of products of its inputs and of functions that are bounded by 1, or whose derivative,
//!   relative to its argument, is at most `1 + |x|`.
//! - `roundings` is written at each case. An operation rounds once and a function of the library by [`FUNCTION`]. A sum of
//!   `k` terms rounds `k` times (Higham 2002, 4.2) what is `k` terms large: `k²`.

use crate::run;

use bf16scope::graph::{Graph, Init, Scope, Tensor};
use bf16scope::hlo::{DType, Literal};
use bf16scope::nn::*;
use bf16scope::passes::grad;
use ndarray::ArrayD;
use ndarray_npy::{NpzReader, ReadableElement};
use std::collections::BTreeSet;
use std::fs::File;

/// Roundings that a library function is granted, in halves of an ulp. XLA states no bound; its polynomials are good to
/// 4 ulp, as in `tests/training/optim.rs`.
const FUNCTION: f64 = 8.0;

/// A function of a scope and of its arguments.
type Build = Box<dyn Fn(&Scope, &[Tensor]) -> Tensor>;

/// A function with its name in the recording.
struct Case {
    name: String,
    /// Inputs that are not variables, in the order in which `build` takes them.
    inputs: &'static [&'static str],
    roundings: f64,
    build: Build,
}

fn case(
    name: &'static str,
    inputs: &'static [&'static str],
    roundings: f64,
    build: fn(&Scope, &[Tensor]) -> Tensor,
) -> Case {
    Case { name: name.to_string(), inputs, roundings, build: Box::new(build) }
}

/// The largest sums of a softmax over 11 and of its gradient: 11 terms each; powers, logarithm, quotient.
const SOFTMAX: f64 = 2.0 * 11.0 * 11.0 + 3.0 * FUNCTION;
/// A convolution's longest sum is that of its kernel's gradient, over a batch of 2 and 7 · 6 places.
const PLACES: f64 = 84.0 * 84.0;
/// A loss is a mean of 6; its functions, forward and backward, and a few products.
const LOSS: f64 = 6.0 * 6.0 + 4.0 * FUNCTION + 8.0;
/// A focal loss has a factor too: a sigmoid (or softmax), a logarithm and gamma, at most 2, times an exponential, forward
/// and backward.
const FOCAL: f64 = LOSS + 2.0 * 4.0 * FUNCTION;
/// Three sums of 15 forward, three backward; a sigmoid, or a softmax over 5.
const DICE: f64 = 6.0 * 15.0 * 15.0 + 2.0 * 5.0 * 5.0 + 2.0 * FUNCTION + 8.0;
const WITH_LABELS: &[&str] = &["x", "labels"];

/// Each is recorded twice: on numbers at random, and as `NAME_edges` where a rule may go wrong.
const ACTIVATIONS: [(&str, f64, Activation); 16] = [
    ("relu", 0.0, Activation::Relu),
    ("relu6", 0.0, Activation::Relu6),
    ("leaky_relu", 2.0, Activation::LeakyRelu),
    ("elu", FUNCTION + 2.0, Activation::Elu),
    ("selu", FUNCTION + 4.0, Activation::Selu),
    ("gelu", 2.0 * FUNCTION + 12.0, Activation::Gelu),
    ("gelu_tanh", FUNCTION + 20.0, Activation::GeluTanh),
    ("silu", FUNCTION + 6.0, Activation::Silu),
    ("softplus", 2.0 * FUNCTION + 3.0, Activation::Softplus),
    ("softsign", 8.0, Activation::Softsign),
    ("sigmoid", FUNCTION + 3.0, Activation::Sigmoid),
    ("hard_sigmoid", 4.0, Activation::HardSigmoid),
    ("tanh", FUNCTION + 3.0, Activation::Tanh),
    ("exponential", FUNCTION + 1.0, Activation::Exponential),
    ("softmax", SOFTMAX, Activation::Softmax),
    ("log_softmax", SOFTMAX, Activation::LogSoftmax),
];

/// A layer of images, whose axes are in the order of `format`: with channels first, the recorded images are transposed, and the result
/// is transposed back.
fn image_case(
    format: DataFormat,
    name: &'static str,
    roundings: f64,
    build: fn(&Scope, &Tensor, DataFormat) -> Tensor,
) -> Case {
    let build = move |s: &Scope, x: &[Tensor]| match format {
        DataFormat::ChannelsLast => build(s, &x[0], format),
        DataFormat::ChannelsFirst => {
            let y = build(s, &x[0].transpose(&[0, 3, 1, 2]), format);
            if y.rank() == 4 { y.transpose(&[0, 2, 3, 1]) } else { y }
        }
    };
    Case { name: name.to_string(), inputs: &["x"], roundings, build: Box::new(build) }
}

const POOL: Pool =
    Pool { pool_size: [3, 2], strides: Some([2, 1]), padding: Padding::Same, data_format: DataFormat::ChannelsLast };

fn image_layers(format: DataFormat) -> Vec<Case> {
    vec![
        image_case(format, "depthwise_same", PLACES, |s, x, data_format| {
            let (kernel_size, padding) = ([3, 2], Padding::Same);
            let config = DepthwiseConv2d { kernel_size, padding, data_format, ..DepthwiseConv2d::default() };
            depthwise_conv2d(s, x, "layer", &config)
        }),
        image_case(format, "depthwise_strided", PLACES, |s, x, data_format| {
            let (strides, padding) = ([2, 2], Padding::Same);
            let config = DepthwiseConv2d {
                kernel_size: [3, 3],
                strides,
                padding,
                depth_multiplier: 2,
                data_format,
                ..DepthwiseConv2d::default()
            };
            depthwise_conv2d(s, x, "layer", &config)
        }),
        image_case(format, "depthwise_dilated", PLACES, |s, x, data_format| {
            let config = DepthwiseConv2d {
                kernel_size: [3, 2],
                dilation_rate: [2, 2],
                depth_multiplier: 3,
                data_format,
                ..DepthwiseConv2d::default()
            };
            depthwise_conv2d(s, x, "layer", &config)
        }),
        image_case(format, "conv_grouped", PLACES, |s, x, data_format| {
            let config = Conv2d {
                filters: 6,
                kernel_size: [3, 3],
                strides: [2, 2],
                padding: Padding::Same,
                groups: 2,
                use_bias: true,
                data_format,
                ..Conv2d::default()
            };
            conv2d(s, x, "layer", &config)
        }),
        image_case(format, "conv_dilated", PLACES, |s, x, data_format| {
            let config = Conv2d {
                filters: 4,
                kernel_size: [3, 2],
                dilation_rate: [2, 2],
                padding: Padding::Valid,
                use_bias: true,
                data_format,
                ..Conv2d::default()
            };
            conv2d(s, x, "layer", &config)
        }),
        // The windows overlap: an element's gradient is a sum of at most 6.
        image_case(format, "max_pool", 6.0 * 6.0, |_, x, data_format| max_pool(x, &Pool { data_format, ..POOL })),
        image_case(format, "avg_pool", 6.0 * 6.0 + 2.0, |_, x, data_format| avg_pool(x, &Pool { data_format, ..POOL })),
        image_case(format, "global_max_pool", 0.0, |_, x, format| global_max_pool(x, format)),
        image_case(format, "global_avg_pool", 42.0 * 42.0 + 2.0, |_, x, format| global_avg_pool(x, format)),
        image_case(format, "zero_padding", 0.0, |_, x, format| zero_padding(x, [[1, 2], [0, 3]], format)),
        image_case(format, "upsample", 6.0 * 6.0, |_, x, format| upsample(x, [2, 3], format)),
    ]
}

fn other_layers() -> Vec<Case> {
    vec![
        // Means of 8 forward and backward, each of terms with at most three factors x, a root; sums over 12 rows.
        case("layer_norm", &["x"], 5.0 * 8.0 * 8.0 + 12.0 * 12.0 + 2.0 * FUNCTION, |s, x| {
            layer_norm(s, &x[0], "layer", &LayerNorm::default())
        }),
        // The row that comes three times.
        case("embedding", &["indices"], 3.0 * 3.0, |s, x| {
            let dtype = if s.path().starts_with("f64") { DType::F64 } else { DType::F32 };
            let dtype = Some(dtype);
            let config = Embedding { input_dim: 7, output_dim: 3, dtype, embeddings_initializer: Init::Zeros };
            embedding(s, &x[0], "layer", &config)
        }),
        case("add", &["a", "b", "c"], 2.0, |_, x| merged(x, Merge::Add)),
        case("subtract", &["a", "b"], 1.0, |_, x| merged(x, Merge::Subtract)),
        case("multiply", &["a", "b", "c"], 3.0, |_, x| merged(x, Merge::Multiply)),
        case("average", &["a", "b", "c"], 3.0, |_, x| merged(x, Merge::Average)),
        case("maximum", &["a", "b", "c"], 0.0, |_, x| merged(x, Merge::Maximum)),
        case("minimum", &["a", "b", "c"], 0.0, |_, x| merged(x, Merge::Minimum)),
        case("concat", &["a", "b"], 0.0, |_, x| concat(&[&x[0], &x[1]], 1)),
    ]
}

fn losses() -> Vec<Case> {
    vec![
        case("mean_squared_error", WITH_LABELS, LOSS, |_, x| mean_squared_error_per_example(&x[0], &x[1])),
        case("mean_absolute_error", WITH_LABELS, LOSS, |_, x| mean_absolute_error_per_example(&x[0], &x[1])),
        case("sigmoid_cross_entropy", WITH_LABELS, LOSS, |_, x| sigmoid_cross_entropy_per_example(&x[0], &x[1], 0.0)),
        case("sigmoid_cross_entropy_smoothed", WITH_LABELS, LOSS, |_, x| {
            sigmoid_cross_entropy_per_example(&x[0], &x[1], 0.1)
        }),
        case("softmax_cross_entropy", WITH_LABELS, LOSS, |_, x| softmax_cross_entropy_per_example(&x[0], &x[1], 0.0)),
        case("softmax_cross_entropy_smoothed", WITH_LABELS, LOSS, |_, x| {
            softmax_cross_entropy_per_example(&x[0], &x[1], 0.1)
        }),
        case("sparse_softmax_cross_entropy", WITH_LABELS, LOSS, |_, x| {
            sparse_softmax_cross_entropy_per_example(&x[0], &x[1], 0.0)
        }),
        case("sparse_softmax_cross_entropy_smoothed", WITH_LABELS, LOSS, |_, x| {
            sparse_softmax_cross_entropy_per_example(&x[0], &x[1], 0.1)
        }),
        case("sigmoid_focal", WITH_LABELS, FOCAL, |_, x| {
            sigmoid_focal_cross_entropy_per_example(&x[0], &x[1], &Focal::default(), 0.0)
        }),
        case("sigmoid_focal_retinanet", WITH_LABELS, FOCAL, |_, x| {
            sigmoid_focal_cross_entropy_per_example(&x[0], &x[1], &Focal::default(), 0.0)
        }),
        case("sigmoid_focal_smoothed", WITH_LABELS, FOCAL, |_, x| {
            sigmoid_focal_cross_entropy_per_example(&x[0], &x[1], &Focal { gamma: 1.5, alpha: None }, 0.1)
        }),
        case("softmax_focal", WITH_LABELS, FOCAL, |_, x| {
            softmax_focal_cross_entropy_per_example(&x[0], &x[1], &Focal::default(), 0.0)
        }),
        case("softmax_focal_smoothed", WITH_LABELS, FOCAL, |_, x| {
            softmax_focal_cross_entropy_per_example(&x[0], &x[1], &Focal { gamma: 1.5, alpha: None }, 0.1)
        }),
        case("sparse_softmax_focal", WITH_LABELS, FOCAL, |_, x| {
            sparse_softmax_focal_cross_entropy_per_example(&x[0], &x[1], &Focal::default(), 0.0)
        }),
        case("huber", WITH_LABELS, LOSS, |_, x| huber_per_example(&x[0], &x[1], 1.0)),
        case("huber_delta", WITH_LABELS, LOSS, |_, x| huber_per_example(&x[0], &x[1], 0.125)),
        case("sigmoid_dice", WITH_LABELS, DICE, |_, x| sigmoid_dice_per_example(&x[0], &x[1])),
        case("softmax_dice", WITH_LABELS, DICE, |_, x| softmax_dice_per_example(&x[0], &x[1])),
        case("sparse_softmax_cross_entropy_weighted", WITH_LABELS, 3.0 * LOSS, |_, x| {
            let weights = class_weights(&x[1], &[1.0, 0.5, 2.0, 0.0, 0.25, 3.0]).cast(x[0].dtype());
            sparse_softmax_cross_entropy_per_example(&x[0], &x[1], 0.0) * weights
        }),
    ]
}

fn layers_and_losses() -> Vec<Case> {
    [image_layers(DataFormat::ChannelsLast), other_layers(), losses()].into_iter().flatten().collect()
}

fn merged(x: &[Tensor], how: Merge) -> Tensor {
    merge(&x.iter().collect::<Vec<_>>(), how)
}

struct Recording(NpzReader<File>);

impl Recording {
    fn open() -> Recording {
        let path = format!("{}/tests/data/functions_tf/functions.npz", env!("CARGO_MANIFEST_DIR"));
        Recording(NpzReader::new(File::open(path).unwrap()).unwrap())
    }

    fn names(&mut self) -> Vec<String> {
        self.0.names().unwrap().iter().map(|name| name.trim_end_matches(".npy").to_string()).collect()
    }

    fn array<T: ReadableElement + Copy>(&mut self, name: &str) -> Option<(Vec<i64>, Vec<T>)> {
        let array: ArrayD<T> = self.0.by_name(name).ok()?;
        Some((array.shape().iter().map(|&dim| dim as i64).collect(), array.iter().copied().collect()))
    }

    /// An array of f32 or f64.
    fn f64s(&mut self, name: &str) -> (Vec<i64>, Vec<f64>) {
        let narrow = |(dims, values): (Vec<i64>, Vec<f32>)| (dims, values.into_iter().map(f64::from).collect());
        self.array(name).or_else(|| self.array(name).map(narrow)).unwrap_or_else(|| panic!("no floats called {name}"))
    }

    /// An input in `dtype`, or integers.
    fn input(&mut self, name: &str, dtype: DType) -> Literal {
        if let Some((dims, values)) = self.array::<i32>(name) {
            return Literal::from_elements(dims, &values);
        }
        let (dims, values) = self.array::<f32>(name).unwrap_or_else(|| panic!("no input called {name}"));
        match dtype {
            DType::F64 => Literal::from_elements(dims, &values.into_iter().map(f64::from).collect::<Vec<f64>>()),
            _ => Literal::from_elements(dims, &values),
        }
    }
}

/// A result by the recording's name without the dtype: `CASE/value`, `CASE/gradient/NAME`.
type Results = Vec<(String, Vec<f64>)>;

/// Values of all cases, and gradients by all inputs for which TensorFlow has one: one program.
fn ours(dtype: DType, cases: &[Case]) -> Results {
    let mut recording = Recording::open();
    let names = recording.names();
    let graph = Graph::training("functions");
    let level = if dtype == DType::F64 { "f64" } else { "f32" };
    let mut results: Vec<(String, Tensor)> = vec![];
    for case in cases {
        let inputs: Vec<Tensor> = (case.inputs.iter())
            .map(|input| {
                let literal = recording.input(&format!("{}/in/{input}", case.name), dtype);
                let Literal::Array { shape, .. } = literal else { panic!("{input} is no array") };
                graph.input(&format!("{}.{input}", case.name), shape.dtype, shape.dims)
            })
            .collect();
        let n_before = graph.variables().len();
        let value = graph.scope().within(level, |s| s.within(&case.name, |s| (case.build)(s, &inputs)));
        let cotangent = graph.input(&format!("{}.cotangent", case.name), dtype, value.dims());
        let axes: Vec<i64> = (0..value.rank() as i64).collect();
        let sum = (&value * &cotangent).sum(&axes);
        let variables: Vec<_> = graph.variables().split_off(n_before);
        let variables = variables.iter().map(|v| (v.name.rsplit('/').next().unwrap(), v.instr));
        let by_name: Vec<_> =
            case.inputs.iter().copied().zip(inputs.iter().map(|x| x.id)).chain(variables.clone()).collect();
        let known = |name: &str| {
            match name {
                "embeddings" => "table",
                _ => name,
            }
            .to_string()
        };
        let wrt: Vec<_> = (by_name.iter())
            .map(|(name, instr)| (format!("{}/gradient/{}", case.name, known(name)), *instr))
            .filter(|(key, _)| names.contains(&key.replace("/gradient", "/float64/gradient")))
            .collect();
        let gradients =
            grad::gradients(graph.emitter(), sum.id, &wrt.iter().map(|(_, id)| *id).collect::<Vec<_>>()).unwrap();
        results.push((format!("{}/value", case.name), value));
        results.extend(wrt.into_iter().zip(gradients).map(|((key, _), id)| (key, graph.tensor(id))));
    }
    let outputs: Vec<(&str, &Tensor)> = results.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let program = graph.finish(&outputs).unwrap();
    let recording = std::cell::RefCell::new(recording);
    let values = run::run(&program, |name| {
        let mut recording = recording.borrow_mut();
        let key = match name.split_once('.') {
            Some((case, "cotangent")) => format!("{case}/cotangent"),
            Some((case, input)) => format!("{case}/in/{input}"),
            None => name.split_once('/').unwrap().1.replace("/layer/", "/in/").replace("/embeddings", "/table"),
        };
        recording.input(&key, dtype)
    });
    let as_f64s = |literal: &Literal| match dtype {
        DType::F64 => run::f64s(literal),
        _ => run::f32s(literal).into_iter().map(f64::from).collect(),
    };
    results.iter().zip(&values).map(|((name, _), literal)| (name.clone(), as_f64s(literal))).collect()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |largest, value| largest.max(value.abs()))
}

/// The differences larger than [the bound](self), one per line.
fn compare(cases: &[Case]) -> Vec<String> {
    let [narrow, wide] = [DType::F32, DType::F64].map(|dtype| ours(dtype, cases));
    let mut recording = Recording::open();
    let mut wrong = vec![];
    for ((name, narrow), (_, wide)) in narrow.iter().zip(&wide) {
        let (case_name, rest) = name.split_once('/').unwrap();
        let case = cases.iter().find(|case| case.name == case_name).unwrap();
        let [theirs_narrow, theirs] =
            ["float32", "float64"].map(|dtype| recording.f64s(&format!("{case_name}/{dtype}/{rest}")).1);
        let inputs = recording.names().into_iter().filter(|key| key.starts_with(&format!("{case_name}/in/")));
        let inputs: Vec<_> = inputs.filter(|key| recording.array::<i32>(key).is_none()).collect();
        let size: f64 = inputs.iter().map(|key| 1.0 + largest(&recording.f64s(key).1)).product();
        let size = size * largest(&theirs).max(1.0);
        for (what, values, unit) in [
            ("ours in f64", wide, 2f64.powi(-53)),
            ("ours in f32", narrow, 2f64.powi(-24)),
            ("TensorFlow's in f32", &theirs_narrow, 2f64.powi(-24)),
        ] {
            assert_eq!(values.len(), theirs.len(), "{name}");
            let bound = 2.0 * case.roundings * unit * size;
            for (at, (value, theirs)) in values.iter().zip(&theirs).enumerate() {
                let off = (value - theirs).abs();
                if off.is_nan() || off > bound {
                    wrong.push(format!(
                        "{name}[{at}], {what}: {value:e}, expected {theirs:e}, off by {off:e} > {bound:e}"
                    ));
                }
            }
        }
    }
    wrong
}

/// The activations, on numbers at random or where a rule may go wrong.
fn activations(suffix: &str) -> Vec<Case> {
    let case = |&(name, roundings, activation): &(&str, f64, Activation)| {
        let build = move |_: &Scope, x: &[Tensor]| activation.apply(&x[0]);
        Case { name: format!("{name}{suffix}"), inputs: &["x"], roundings, build: Box::new(build) }
    };
    ACTIVATIONS.iter().map(case).collect()
}

fn check(cases: &[Case]) {
    let wrong = compare(cases);
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn activations_are_tensorflows() {
    check(&activations(""));
}

#[test]
fn activations_at_their_edges_are_tensorflows() {
    check(&activations("_edges"));
}

#[test]
fn layers_and_losses_are_tensorflows() {
    check(&layers_and_losses());
}

/// The same recording, transposed.
#[test]
fn layers_of_images_with_channels_first_are_tensorflows_transposed() {
    check(&image_layers(DataFormat::ChannelsFirst));
}

/// Everything that the script recorded is compared.
#[test]
fn nothing_recorded_is_left_out() {
    let cases = [activations(""), activations("_edges"), layers_and_losses()].into_iter().flatten();
    let compared: BTreeSet<String> = cases.map(|case| case.name).collect();
    let recorded = Recording::open().names();
    let recorded: BTreeSet<&str> = recorded.iter().filter_map(|key| key.strip_suffix("/float64/value")).collect();
    assert_eq!(compared.iter().map(String::as_str).collect::<BTreeSet<_>>(), recorded);
}

/// The bound is tight enough to detect a constant that is off by a millionth.
#[test]
fn a_slope_that_is_a_little_wrong_is_noticed() {
    let build = |_: &Scope, x: &[Tensor]| leaky_relu(&x[0], 0.2 + 2e-7);
    let wrong =
        compare(&[Case { name: "leaky_relu".to_string(), inputs: &["x"], roundings: 2.0, build: Box::new(build) }]);
    assert!(wrong.iter().any(|line| line.contains("ours in f64")), "{wrong:?}");
}
