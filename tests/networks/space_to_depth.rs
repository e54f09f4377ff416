//! Other forms of a convolution, by space to depth and two columns at a time, are the plain one: to the bit where sums are
//! exact, and the stem in a whole network with one checkpoint.

use crate::{examples, run};

use bf16scope::document;
use bf16scope::graph::{Graph, Init, Precision, Scope, Tensor};
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Literal, Op};
use bf16scope::models::Model;
use bf16scope::nn::{Conv2d, DataFormat, Padding, conv2d, conv2d_paired, conv2d_space_to_depth};
use bf16scope::optim::{LearningRate, Momentum, Optimizer, Update};
use bf16scope::passes::grad::gradients;
use bf16scope::pjrt::{Arg, Buffer, Client, CompileOptions};
use bf16scope::train::checkpoint::Array;
use bf16scope::train::{Objective, Resumption, Session, Spec, Totals};
use bf16scope::tuning::{Stem, Tuning};
use std::collections::BTreeMap;
use std::path::Path;

/// Multiples of `unit` between ±8·`unit`: sums of thousands of their products are exact in f32, in any order, so two
/// programs that compute the same function give the same bits.
fn exact(n: i64, salt: i64, unit: f64) -> Vec<f64> {
    (0..n).map(|i| ((i * 37 + i / 7 + salt) % 17 - 8) as f64 * unit).collect()
}

fn upload(client: &Client, values: &[f64], dtype: DType, dims: &[i64]) -> Buffer {
    let element = |&value: &f64| match Literal::scalar_of(dtype, value) {
        Some(Literal::Array { bytes, .. }) => bytes,
        other => panic!("{dtype}: {other:?}"),
    };
    let bytes: Vec<u8> = values.iter().flat_map(element).collect();
    client.buffer_from_host(&bytes, dtype, dims, 0).unwrap()
}

type Conv = fn(&Scope, &Tensor, &str, &Conv2d) -> Tensor;

/// The plain form and another: the result, and the gradients of its sum weighted by `weights` with respect to image and
/// kernel.
fn both_forms(other: Conv, dtype: DType, x_dims: &[i64; 4], config: &Conv2d) -> [Vec<Vec<u8>>; 2] {
    let client = run::client();
    let plain: Conv = conv2d;
    [plain, other].map(|conv| {
        let graph = Graph::new("stem");
        let x = graph.input("x", dtype, *x_dims);
        let y = conv(&graph.scope(), &x, "conv", config);
        let weights = graph.input("weights", dtype, y.dims());
        let loss = (&y * &weights).cast(DType::F32).sum(&[0, 1, 2, 3]);
        let kernel = &graph.variables()[0];
        let cotangents = gradients(graph.emitter(), loss.id, &[kernel.instr, x.id]).unwrap();
        let cotangents: Vec<_> = cotangents.into_iter().map(|cotangent| graph.tensor(cotangent)).collect();
        let program = graph.finish(&[("y", &y), ("of_kernel", &cotangents[0]), ("of_x", &cotangents[1])]).unwrap();
        verify(&program.module).unwrap();
        assert_eq!(program.variables.len(), 1);
        let executable =
            client.compile(&encode::to_bytes(&program.module).unwrap(), &CompileOptions::default()).unwrap();
        let n = |dims: &[i64]| dims.iter().product::<i64>();
        let kernel = &program.variables[0];
        let args = [
            upload(client, &exact(n(&kernel.dims), 3, 1.0 / 64.0), dtype, &kernel.dims),
            upload(client, &exact(n(x_dims), 0, 1.0 / 16.0), dtype, x_dims),
            upload(client, &exact(n(&program.inputs[1].dims), 5, 0.125), dtype, &program.inputs[1].dims),
        ];
        let results = executable.execute(args.iter().map(Arg::Keep).collect()).unwrap();
        results.iter().map(|result| result.to_host().unwrap()).collect()
    })
}

/// In bf16 one kernel, of even size.
#[test]
fn results_and_gradients_are_the_same_bits() {
    rearranged_are_the_same_bits(|dtype, size| dtype == DType::F32 || size == 4);
}

fn rearranged_are_the_same_bits(is_meant: impl Fn(DType, i64) -> bool) {
    let explicit = Padding::Explicit([[0, 3], [1, 2]]);
    for dtype in [DType::F32, DType::BF16] {
        for (size, padding) in
            [(7, Padding::Same), (7, Padding::fixed(7)), (7, explicit), (3, Padding::Same), (4, Padding::Valid)]
        {
            if !is_meant(dtype, size) {
                continue;
            }
            // The other order of axes, where it could matter.
            let formats = if size == 7 {
                &[DataFormat::ChannelsLast, DataFormat::ChannelsFirst][..]
            } else {
                &[DataFormat::ChannelsLast]
            };
            for &format in formats {
                let dims = match format {
                    DataFormat::ChannelsLast => [2, 12, 16, 3],
                    DataFormat::ChannelsFirst => [2, 3, 12, 16],
                };
                let config = Conv2d {
                    filters: 4,
                    kernel_size: [size; 2],
                    strides: [2, 2],
                    padding,
                    data_format: format,
                    use_bias: false,
                    kernel_initializer: Init::Zeros,
                    ..Conv2d::default()
                };
                let [plain, rearranged] = both_forms(conv2d_space_to_depth, dtype, &dims, &config);
                assert!(plain.iter().all(|array| array.iter().any(|&byte| byte != 0)));
                for (what, (plain, rearranged)) in
                    ["y", "of_kernel", "of_x"].into_iter().zip(plain.iter().zip(&rearranged))
                {
                    assert_eq!(plain, rearranged, "{what}: {dtype}, {size}, {padding:?}, {format:?}");
                }
            }
        }
    }
}

/// The features of the convolution that a layer of these settings emits; the plain one has `filters`.
fn features(batch: i64, width: i64, config: &Conv2d) -> i64 {
    let graph = Graph::new("conv");
    let x = graph.input("x", DType::F32, [batch, 6, width, 3]);
    let y = conv2d_paired(&graph.scope(), &x, "conv", config);
    let module = graph.finish(&[("y", &y)]).unwrap().module;
    let convolution = module.entry().instructions.iter().find(|instr| matches!(instr.op, Op::Convolution(_))).unwrap();
    *convolution.shape.dims().last().unwrap()
}

/// In bf16 one kernel, of odd size.
#[test]
fn two_columns_at_a_time_are_the_same_bits() {
    paired_are_the_same_bits(|dtype, kernel_size| dtype == DType::F32 || kernel_size == [7, 7]);
}

fn paired_are_the_same_bits(is_meant: impl Fn(DType, [i64; 2]) -> bool) {
    let padded = Padding::Explicit([[0, 3], [1, 2]]);
    for dtype in [DType::F32, DType::BF16] {
        for (kernel_size, strides, padding) in [
            ([7, 7], [2, 2], Padding::Same),
            ([3, 3], [1, 1], Padding::Same),
            ([1, 4], [2, 3], padded),
            ([3, 2], [1, 2], Padding::Valid),
        ] {
            if !is_meant(dtype, kernel_size) {
                continue;
            }
            let config = Conv2d { filters: 4, kernel_size, strides, padding, use_bias: false, ..Conv2d::default() };
            assert_eq!(features(128, 12, &config), 8, "{config:?}");
            let [plain, paired] = both_forms(conv2d_paired, dtype, &[128, 6, 12, 3], &config);
            assert!(plain.iter().all(|array| array.iter().any(|&byte| byte != 0)));
            for (what, (plain, paired)) in ["y", "of_kernel", "of_x"].into_iter().zip(plain.iter().zip(&paired)) {
                assert_eq!(plain, paired, "{what}: {dtype}, {config:?}");
            }
        }
    }
}

#[test]
fn columns_are_paired_only_where_it_saves_work() {
    let config = Conv2d { filters: 64, kernel_size: [3, 3], padding: Padding::Same, ..Conv2d::default() };
    assert_eq!(features(128, 12, &config), 128);
    for (why, batch, width, other) in [
        ("a batch that fills half a tile", 64, 12, config),
        ("an odd number of columns", 128, 11, config),
        ("more filters", 128, 12, Conv2d { filters: 65, ..config }),
        ("a kernel of width 1", 128, 12, Conv2d { kernel_size: [3, 1], ..config }),
        ("dilation", 128, 12, Conv2d { dilation_rate: [1, 2], ..config }),
        // 48 numbers of 128 for one column, 384 of 384 for the two.
        ("a stride wider than the kernel", 128, 24, Conv2d { kernel_size: [8, 2], strides: [1, 14], ..config }),
        // 48 numbers of 128 for one column, 168 of 256 for the two: as many blocks as two convolutions have.
        ("a pair that takes twice the blocks", 128, 20, Conv2d { kernel_size: [8, 2], strides: [1, 5], ..config }),
    ] {
        assert_eq!(features(batch, width, &other), other.filters, "{why}");
    }
}

fn model() -> Model {
    let text = "kind: resnet\ndepth: 18\nwidth: 8\ninput: [32, 32, 3]\nn_classes: 10\n";
    document::from_str("resnet.yaml", text).unwrap()
}

/// A session whose step keeps gradients in the slots: `0·0 + g`.
fn session(stem: Stem, precision: Precision) -> Session {
    let optimizer = Optimizer::Momentum(Momentum { momentum: 0.0, ..Momentum::default() });
    let learning_rate = LearningRate::Constant { value: 0.125 };
    let update = Update { optimizer, learning_rate, ..Update::default() };
    let tuning = Tuning::none().with(|tuning| tuning.stem = stem);
    let objective = Objective { update, tuning, ..Objective::default() };
    let spec = Spec { precision, batch: 8, seed: 2, objective, ..Spec::new(model().task(0.0)) };
    Session::new(run::client(), spec).unwrap()
}

#[test]
fn a_network_goes_on_from_the_other_stems_checkpoint_with_the_same_results() {
    goes_on(Precision::Bf16);
}

fn goes_on(precision: Precision) {
    const STEM: &str = "resnet/stem/conv/kernel";
    let pixels = (0..8 * 32 * 32 * 3).map(|i| ((i * 37 + i / 5) % 16) as f32 / 16.0 - 0.5).collect();
    let data = examples::images(pixels, &[32, 32, 3], (0..8).collect());
    let mut plain = session(Stem::Plain, precision);
    let batch = examples::batches(&data, plain.spec()).remove(0);
    let mut checkpoint = plain.checkpoint(1).unwrap();
    // Multiples of 2^-8, images of 2^-4: the stem's sums are exact, and what follows is the same program.
    let kernel = checkpoint.variables.get_mut(STEM).unwrap();
    assert_eq!(kernel.shape.dims, [7, 7, 3, 8]);
    let rounded = kernel.bytes.as_chunks::<4>().0.iter().map(|&bytes| {
        let value = f32::from_le_bytes(bytes);
        (value * 256.0).round() / 256.0
    });
    kernel.bytes = rounded.collect::<Vec<f32>>().iter().flat_map(|value| value.to_le_bytes()).collect();
    let step = |session: &mut Session| -> (Totals, BTreeMap<String, Array>) {
        session.restore(Path::new("stem"), &checkpoint, Resumption::default()).unwrap();
        (session.train(&batch).unwrap(), session.state().unwrap())
    };
    let (plain, rearranged) = (step(&mut plain), step(&mut session(Stem::SpaceToDepth, precision)));
    assert_eq!(plain.0, rearranged.0, "{precision}");
    let differ: Vec<&String> =
        plain.1.iter().filter(|(name, array)| rearranged.1[*name] != **array).map(|(name, _)| name).collect();
    // The gradient of the stem's own kernel sums what is not exact, in another order.
    assert!(differ.iter().all(|name| name.starts_with(STEM)), "{precision}: {differ:?}");
}

#[test]
fn an_image_of_odd_size_and_other_strides_are_refused() {
    let error = |dims: [i64; 4], strides: [i64; 2]| {
        let graph = Graph::new("stem");
        let x = graph.input("x", DType::F32, dims);
        let config = Conv2d { filters: 4, kernel_size: [7, 7], strides, padding: Padding::Same, ..Conv2d::default() };
        let y = conv2d_space_to_depth(&graph.scope(), &x, "conv", &config);
        graph.finish(&[("y", &y)]).unwrap_err().to_string()
    };
    let odd = error([1, 15, 16, 3], [2, 2]);
    assert!(odd.contains("the image is 15x16, expected an even height and width"), "{odd}");
    assert!(odd.contains("help: use the plain convolution"), "{odd}");
    let stride = error([1, 16, 16, 3], [1, 1]);
    assert!(stride.contains("strides are [1, 1], dilation [1, 1], groups 1"), "{stride}");
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// In bf16 the kernels that the short forms leave out.
    #[cfg_attr(feature = "long-tests", test)]
    fn other_kernels_give_the_same_bits_in_bf16() {
        rearranged_are_the_same_bits(|dtype, size| dtype == DType::BF16 && size != 4);
        paired_are_the_same_bits(|dtype, kernel_size| dtype == DType::BF16 && kernel_size != [7, 7]);
    }

    /// Compiles two ResNets.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_network_in_f32_goes_on_from_the_other_stems_checkpoint_with_the_same_results() {
        goes_on(Precision::F32);
    }
}
