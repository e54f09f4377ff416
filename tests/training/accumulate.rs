//! Gradient accumulation: k micro-batches in the program's loop, to the bit what k programs of one micro-batch give; and
//! within a derived bound what one program of the whole batch gives.

use crate::{examples, replicas, run};

use bf16scope::data::{Arrays, Source};
use bf16scope::document;
use bf16scope::graph::{Graph, Operand, Precision};
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Op};
use bf16scope::models::{Model, cnn, mlp};
use bf16scope::optim::{LearningRate, LossScale, Momentum, MomentumDtype, Optimizer, Update};
use bf16scope::tpu::{Target, compile};
use bf16scope::train::checkpoint::Array;
use bf16scope::train::{Objective, Session, Spec, program};
use half::bf16;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

type State = BTreeMap<String, Array>;

/// The slot `momentum` of a first step with this rule is the gradient, to the bit: `0·0 + g`.
const KEEPS_GRADIENT: Optimizer =
    Optimizer::Momentum(Momentum { momentum: 0.0, nesterov: false, momentum_dtype: MomentumDtype::F32 });

fn spec(model: &Model, precision: Precision, batch: u32, accumulate: u32, rate: f64, loss_scale: LossScale) -> Spec {
    let learning_rate = LearningRate::Constant { value: rate };
    let update = Update { optimizer: KEEPS_GRADIENT, learning_rate, ..Update::default() };
    let accumulate = NonZeroU32::new(accumulate).unwrap();
    let objective = Objective { update, loss_scale, accumulate, ..Objective::default() };
    Spec { precision, batch, seed: 5, objective, ..Spec::new(model.task(0.0)) }
}

/// `n` examples of small exact features, in ten classes.
fn dataset(n: usize, dims: &[i64]) -> Arrays {
    let n_features: usize = dims.iter().product::<i64>() as usize;
    let features = (0..n * n_features).map(|i| ((i * 37 + i / 11) % 16) as f32 / 16.0 - 0.5).collect();
    let labels = (0..n as i32).map(|i| i * 7 % 10).collect();
    examples::images(features, dims, labels)
}

fn f32s(array: &Array) -> Vec<f32> {
    array.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn is_gradient(name: &str) -> bool {
    name.ends_with("/momentum")
}

/// The state after one step on the first batch of `data`, and the loss.
fn one_step(spec: Spec, data: &Arrays) -> (State, f64) {
    let client = if spec.objective.mesh.is_parallel() { replicas::client().clone() } else { run::client().clone() };
    let mut session = Session::new(&client, spec.clone()).unwrap();
    let loss = session.train(&examples::batches(data, &spec)[0]).unwrap().loss().unwrap();
    (session.state().unwrap(), loss)
}

/// A network of everything that has state: batch norms and a dropout.
fn cnn() -> Model {
    Model::Cnn(cnn::Config { filters: vec![4], dropout: 0.25, ..cnn::Config::new([8, 8, 1], 10) })
}

#[test]
fn the_loop_does_what_its_micro_batches_do_one_after_the_other_to_the_bit() {
    let mlp = Model::Mlp(mlp::Config { hidden: vec![32], dropout: 0.5, ..mlp::Config::new([8, 8, 1], 10) });
    for precision in [Precision::F32, Precision::Bf16] {
        assert_eq!(one_after_the_other(&mlp, precision), (4, 0));
        let state = |part: &str| cnn_state().into_iter().any(|name| name.contains(part));
        assert!(state("moving_variance") && state("dropout"));
        assert_eq!(one_after_the_other(&cnn(), precision), (3, 2));
    }
}

fn cnn_state() -> Vec<String> {
    let program = program::training(&*cnn().task(0.0), Precision::F32, 8, &Objective::default()).unwrap().program;
    program.variables.into_iter().map(|variable| variable.name).collect()
}

/// How many gradients are compared to the bit, and how many are summed in another order.
fn one_after_the_other(model: &Model, precision: Precision) -> (u32, u32) {
    const N: u32 = 4;
    const PART: u32 = 8;
    let (mut n_to_the_bit, mut n_in_another_order) = (0, 0);
    let data = dataset((N * PART) as usize, &[8, 8, 1]);
    let (accumulated, loss) = one_step(spec(model, precision, N * PART, N, 0.0, LossScale::None), &data);
    // At a rate of 0 weights stay, so a session that makes a step for each part has the same weights in all of them,
    // the gradient of each in its slot, and statistics and generators that move on.
    let mut parts = Session::new(run::client(), spec(model, precision, PART, 1, 0.0, LossScale::None)).unwrap();
    let (mut sums, mut sum_of_losses) = (BTreeMap::<String, Vec<f32>>::new(), 0f32);
    for part in &examples::batches(&data, &parts.spec().clone()) {
        sum_of_losses += parts.train(part).unwrap().loss().unwrap() as f32;
        for (name, array) in parts.state().unwrap().into_iter().filter(|(name, _)| is_gradient(name)) {
            let sum = sums.entry(name).or_insert_with(|| vec![0.0; f32s(&array).len()]);
            sum.iter_mut().zip(f32s(&array)).for_each(|(sum, value)| *sum += value);
        }
    }
    assert_eq!(loss as f32, sum_of_losses / N as f32, "{precision}");
    let parts = parts.state().unwrap();
    assert_eq!(accumulated.keys().collect::<Vec<_>>(), parts.keys().collect::<Vec<_>>());
    for (name, array) in &accumulated {
        if let Some(sum) = sums.get(name) {
            let means: Vec<f32> = sum.iter().map(|sum| sum / N as f32).collect();
            assert!(means.iter().any(|&mean| mean != 0.0), "{name}");
            // In the loop XLA's CPU back end sums batch norm's reductions in another order, and what is computed from
            // them is the convolution's gradient: their bits may differ. All others must not.
            if name.contains("/bn/gamma") || name.contains("/conv/kernel") {
                n_in_another_order += 1;
            } else {
                assert_eq!(f32s(array), means, "{precision}: {name}");
                n_to_the_bit += 1;
            }
        } else {
            assert_eq!(array, &parts[name], "{precision}: {name}");
        }
    }
    (n_to_the_bit, n_in_another_order)
}

/// Half an ulp of f32 and of bf16, relative.
const U: f64 = 1.0 / (1u64 << 24) as f64;
const U_BF16: f64 = 1.0 / 256.0;

/// `n` roundings one after the other (Higham, section 3.1).
fn gamma(n: usize) -> f64 {
    n as f64 * U / (1.0 - n as f64 * U)
}

/// The features of an example.
fn image(data: &Arrays, index: u64) -> Vec<f64> {
    let bytes = &data.read(index).unwrap()[0];
    bytes.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
}

/// The gradient of the mean cross-entropy of `x·w + b` with respect to `w`, in f64, and how far from it a program may be
/// that sums in f32 in any order and, in bf16, rounds every product, sum and cotangent to bf16 once.
fn reference(data: &Arrays, w: &[f64], b: &[f64], low: bool) -> (Vec<f64>, Vec<f64>) {
    let labels = examples::labels(data);
    let (n, n_classes) = (labels.len(), b.len());
    let images: Vec<Vec<f64>> = (0..n as u64).map(|index| image(data, index)).collect();
    let n_features = images[0].len();
    let rounding = if low { U_BF16 } else { U };
    let (mut gradient, mut magnitude) = (vec![0.0; w.len()], vec![0.0; w.len()]);
    let mut error = vec![0.0; w.len()];
    for (x, &label) in images.iter().zip(&labels) {
        let (mut z, mut z_error) = (b.to_vec(), 0f64);
        for (class, z) in z.iter_mut().enumerate() {
            let products = (0..n_features).map(|feature| x[feature] * w[feature * n_classes + class]);
            let size: f64 = products.clone().map(f64::abs).sum();
            let product: f64 = products.sum();
            *z += product;
            // The product is rounded once more where it is stored, and so is its sum with the bias.
            let of_product = gamma(n_features) * size + rounding * (product.abs() + gamma(n_features) * size);
            z_error = z_error.max(of_product + rounding * (z.abs() + of_product));
        }
        // exp(z − max − log Σ exp(z − max)): the argument is off by twice the error of a logit and a few roundings of
        // values of at most 2·max|z| + log n; functions are good to 8 half ulps, as in tests/training/optim.rs.
        let largest = z.iter().fold(0f64, |largest, z| largest.max(z.abs()));
        let sum: f64 = z.iter().map(|z| z.exp()).sum();
        let relative = (2.0 * z_error + U * (8.0 * largest + 2.0 * (n_classes as f64).ln() + 16.0)).exp_m1()
            + gamma(n_classes + 16);
        for (class, z) in z.iter().enumerate() {
            let p = z.exp() / sum;
            let target = if class as i32 == label { 1.0 } else { 0.0 };
            let cotangent = (p - target) / n as f64;
            let mut of_cotangent = (p * relative + 4.0 * U) / n as f64;
            of_cotangent += rounding * (cotangent.abs() + of_cotangent);
            for (feature, x) in x.iter().enumerate() {
                let at = feature * n_classes + class;
                gradient[at] += x * cotangent;
                magnitude[at] += (x * cotangent).abs();
                error[at] += x.abs() * of_cotangent;
            }
        }
    }
    // Sums over the batch in any order, in parts or not, and each part rounded when it is stored.
    let bounds = error.iter().zip(magnitude).map(|(e, m)| e + (gamma(2 * n) + rounding) * (e + m)).collect();
    (gradient, bounds)
}

#[test]
fn the_gradients_are_those_of_the_whole_batch_but_for_the_order_of_sums() {
    const BATCH: u32 = 32;
    let model = Model::Mlp(mlp::Config { hidden: Vec::new(), ..mlp::Config::new([16], 10) });
    let data = dataset(BATCH as usize, &[16]);
    for precision in [Precision::F32, Precision::Bf16] {
        let low = precision == Precision::Bf16;
        let start = Session::new(run::client(), spec(&model, precision, BATCH, 1, 0.0, LossScale::None));
        let start = start.unwrap().state().unwrap();
        let read = |end: &str| -> Vec<f64> {
            let (_, array) = start.iter().find(|(name, _)| name.ends_with(end)).unwrap();
            // The value of a variable as a bf16 network reads it.
            let read = |x: f32| f64::from(if low { bf16::from_f32(x).to_f32() } else { x });
            f32s(array).into_iter().map(read).collect()
        };
        let (expected, bounds) = reference(&data, &read("kernel"), &read("bias"), low);
        let mut different = false;
        // Micro-batches one after the other, and replicas beside each other; their numbers are powers of two, by which a
        // loss is divided exactly.
        let cases = [(1, 1), (2, 1), (4, 1), (8, 1), (32, 1), (1, 2), (1, 8), (2, 4)];
        let gradients = cases.map(|(n, n_replicas)| {
            let mut spec = spec(&model, precision, BATCH, n, 0.0, LossScale::None);
            spec.objective.mesh = replicas::mesh(n_replicas);
            let (state, _) = one_step(spec, &data);
            let (_, array) = state.iter().find(|(name, _)| name.ends_with("kernel/momentum")).unwrap();
            f32s(array)
        });
        for (gradient, n) in gradients.iter().zip(cases) {
            for (at, &value) in gradient.iter().enumerate() {
                let off = (f64::from(value) - expected[at]).abs();
                assert!(off <= bounds[at], "{precision}, {n:?}: {value} is {off:e} from {}", expected[at]);
            }
            different |= gradient != &gradients[0];
        }
        assert!(different, "{precision}: in another order some sum rounds differently");
        // The bound must mean something: it is far below what leaving out one micro-batch of eight would do.
        let (size, bound) = (expected.iter().map(|g| g.abs()).sum::<f64>(), bounds.iter().sum::<f64>());
        assert!(bound < size / 8.0, "{precision}: bounds add up to {bound:e}, gradients to {size:e}");
    }
}

#[test]
fn a_static_scale_of_a_power_of_two_changes_no_bit() {
    let data = dataset(32, &[8, 8, 1]);
    let run = |loss_scale| one_step(spec(&cnn(), Precision::F32, 32, 4, 0.0625, loss_scale), &data);
    assert_eq!(run(LossScale::Static { scale: 1024.0 }), run(LossScale::None));
}

#[test]
fn an_overflow_in_one_micro_batch_skips_the_step_of_all() {
    if !run::has_f16() {
        return;
    }
    // Cotangents of a logit are at most 1/8 in a micro-batch of eight: 2^30 times that is beyond f16's 65504.
    let scale = LossScale::Dynamic { initial: 2f64.powi(30), period: 2000, factor: 2.0, minimum: 1.0 };
    let data = dataset(32, &[8, 8, 1]);
    let mut session = Session::new(run::client(), spec(&cnn(), Precision::F16, 32, 4, 0.1, scale)).unwrap();
    let state = |session: &Session| -> State {
        let state = session.state().unwrap();
        // Generators go on, so that a step that is tried again is not the same one.
        state.into_iter().filter(|(name, _)| !name.starts_with("loss_scale/") && !name.contains("dropout")).collect()
    };
    let before = state(&session);
    let batch = &examples::batches(&data, &session.spec().clone())[0];
    let loss = session.train(batch).unwrap().loss().unwrap();
    assert!(loss.is_finite(), "the loss that is reported is not scaled");
    assert_eq!(state(&session), before);
    for _ in 0..40 {
        session.train(batch).unwrap();
    }
    assert_ne!(state(&session), before);
    assert!(state(&session).values().all(|array| f32s(array).iter().all(|value| value.is_finite())));
}

#[test]
fn a_batch_that_does_not_split_is_refused_with_one_that_does() {
    let objective = |n| Objective { accumulate: NonZeroU32::new(n).unwrap(), ..Objective::default() };
    let message =
        |batch, n| program::training(&*cnn().task(0.0), Precision::F32, batch, &objective(n)).unwrap_err().to_string();
    assert_eq!(
        message(32, 3),
        "accumulate is 3, which does not divide the batch of 32\nhelp: make the batch a multiple of it, such as 33"
    );
    assert_eq!(
        message(2, 8),
        "accumulate is 8, which does not divide the batch of 2\nhelp: make the batch a multiple of it, such as 8"
    );
}

#[test]
fn a_program_that_accumulates_has_the_same_signature_and_one_loop() {
    let objective = |n| Objective { accumulate: NonZeroU32::new(n).unwrap(), ..Objective::default() };
    let task = cnn().task(0.0);
    let [plain, accumulated] =
        [1, 4].map(|n| program::training(&*task, Precision::Bf16, 32, &objective(n)).unwrap().program);
    verify(&accumulated.module).unwrap();
    let names = |program: &bf16scope::graph::Program| {
        let variables = program.variables.iter().map(|v| (v.name.clone(), v.dtype, v.dims.clone(), v.init));
        let inputs = program.inputs.iter().map(|i| (i.name.clone(), i.dtype, i.dims.clone()));
        (variables.collect::<Vec<_>>(), inputs.collect::<Vec<_>>(), program.outputs.clone())
    };
    assert_eq!(names(&accumulated), names(&plain));
    assert_eq!(accumulated.module.input_output_alias, plain.module.input_output_alias);
    let loops = accumulated.module.entry().instructions.iter().filter(|instr| matches!(instr.op, Op::While { .. }));
    assert_eq!(loops.count(), 1);
    // An error or a profile names the layer that made a variable, with micro-batches too.
    let made_by = |program: &bf16scope::graph::Program| {
        let entry = program.module.entry();
        program.variables.iter().map(|v| entry.instr(v.instr).metadata.clone()).collect::<Vec<_>>()
    };
    let n_of_model = plain.variables.iter().filter(|v| !is_gradient(&v.name)).count();
    assert_eq!(made_by(&accumulated)[..n_of_model], made_by(&plain)[..n_of_model]);
}

#[test]
fn a_scan_refuses_a_body_that_does_not_fit() {
    let body = Graph::new("body");
    let (sum, part) = (body.input("sum", DType::F32, [3]), body.input("part", DType::F32, [2, 3]));
    let body = body.finish(&[("sum", &(&sum + part.sum(&[0])))]).unwrap();
    let error = |n: u32, rows: i64, carried: DType| {
        let g = Graph::new("g");
        let (zeros, x) = (g.full(carried, &[3], 0.0), g.input("x", DType::F32, [rows, 3]));
        let sums = g.scan(n, &body.module, &[Operand::Carried(&zeros), Operand::Split(&x)]);
        g.finish(&[("sums", &sums[0])]).unwrap_err().to_string()
    };
    for (message, expected) in [
        (error(0, 8, DType::F32), "a scan has a trip count of 0, expected at least 1"),
        (error(3, 8, DType::F32), "f32[8,3] does not split in 3 equal parts along its first dimension"),
        (error(2, 8, DType::F32), "the body takes (f32[3], f32[2,3]), expected (f32[3], f32[4,3])"),
        (error(4, 8, DType::BF16), "the body takes (f32[3], f32[2,3]), expected (bf16[3], f32[2,3])"),
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_scan_refuses_what_it_cannot_count_carry_or_copy() {
    let body = Graph::new("body");
    let x = body.input("x", DType::F32, [3]);
    let good = body.finish(&[("x", &(&x + &x))]).unwrap().module;
    let body = Graph::new("body");
    let x = body.input("x", DType::F32, [3]);
    let narrow = body.finish(&[("x", &x.cast(DType::BF16))]).unwrap().module;
    let g = Graph::new("g");
    let zeros = g.full(DType::F32, &[3], 0.0);
    g.scan(2, &good, &[Operand::Counted(&zeros)]);
    let error = g.finish(&[]).unwrap_err().to_string();
    assert!(error.contains("f32[3] is counted, expected a scalar of integers"), "{error}");
    let g = Graph::new("g");
    g.scan(2, &narrow, &[Operand::Carried(&g.full(DType::F32, &[3], 0.0))]);
    let error = g.finish(&[]).unwrap_err().to_string();
    assert!(error.contains("the body gives (bf16[3]), expected (f32[3]) and then any arrays"), "{error}");
    let (g, n) = (Graph::new("g"), 1 << 20);
    g.scan_unrolled(n, &good, &[Operand::Carried(&g.full(DType::F32, &[3], 0.0))]);
    let error = g.finish(&[]).unwrap_err().to_string();
    let n_instructions = good.entry().instructions.len();
    let expected = format!("{n} copies of {n_instructions} instructions are more than 1048576 instructions\n");
    assert!(error.contains(&expected), "{error}");
    assert!(error.contains("help: make fewer trips, or a `while` loop"), "{error}");
}

#[test]
fn a_tpu_program_holds_the_activations_of_one_micro_batch() {
    holds_one_micro_batch("kind: cnn\ninput: [32, 32, 3]\nn_classes: 10\nfilters: [16]\n");
}

/// For a model that takes images of 32x32x3.
fn holds_one_micro_batch(text: &str) {
    let model: Model = document::from_str("model.yaml", text).unwrap();
    let report = |batch: i64, n: u32| {
        let objective = Objective { accumulate: NonZeroU32::new(n).unwrap(), ..Objective::default() };
        let program = program::training(&*model.task(0.0), Precision::Bf16, batch, &objective).unwrap().program;
        verify(&program.module).unwrap();
        let target: Target = "tpu-v2".parse().unwrap();
        compile(&target, &encode::to_bytes(&program.module).unwrap(), batch as usize).unwrap()
    };
    // Parts of 256, which tiles divide.
    let (whole, part, accumulated) = (report(1024, 1), report(256, 1), report(1024, 4));
    let case = format!("{whole:?}\n{part:?}\n{accumulated:?}");
    assert!(2 * accumulated.hbm.temporaries < whole.hbm.temporaries, "{case}");
    // Beside one part's activations there are the images once more, in the layout that the convolution wants, and sums.
    let n_parameters = accumulated.hbm.aliased / 4;
    let images = 2 * 1024 * 32 * 32 * 3;
    let expected = part.hbm.temporaries + images + 4 * n_parameters;
    assert!(accumulated.hbm.temporaries < expected, "{expected}: {case}");
    // The loop's turns are counted: four parts cost at least what their convolutions do, which the update is no part of.
    assert!(accumulated.cycles > 3 * part.cycles && accumulated.cycles < 2 * whole.cycles, "{case}");
    assert!(accumulated.flops > 3.0 * part.flops && accumulated.optimal_seconds > 3.0 * part.optimal_seconds, "{case}");
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Three compiles of a ResNet for a TPU.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_tpu_program_of_a_resnet_holds_the_activations_of_one_micro_batch() {
        holds_one_micro_batch("kind: resnet\ndepth: 18\nwidth: 16\ninput: [32, 32, 3]\nn_classes: 10\n");
    }
}
