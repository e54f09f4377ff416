//! Two losses with variables of their own: a GAN's step beside TensorFlow's (`tests/data/gan_tf/make.py`), what it is with
//! micro-batches, a run that goes on, and what is said where losses and variables do not fit.

use crate::digits::digits;
use crate::run;

use bf16scope::data::{Arrays, Feature, Loader, Random};
use bf16scope::document;
use bf16scope::graph::Precision;
use bf16scope::hlo::{Array, DType, Literal};
use bf16scope::models::Model;
use bf16scope::optim::{LearningRate, LossScale, Momentum, MomentumDtype, Optimizer, Update};
use bf16scope::task::Task;
use bf16scope::train::{Event, Objective, TrainErrorKind, Trained, Trainer, program};
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn read(text: &str) -> Result<Arc<dyn Task>, String> {
    match document::from_str::<Model>("gan.yaml", text) {
        Ok(model) => Ok(model.task(0.0)),
        Err(error) => Err(error.to_string()),
    }
}

/// The slot `momentum` of a first step with this rule is the gradient, to the bit: `0·0 + g`. At a rate of 0 weights stay.
fn keeps_gradients(accumulate: u32, loss_scale: LossScale) -> Objective {
    let optimizer =
        Optimizer::Momentum(Momentum { momentum: 0.0, nesterov: false, momentum_dtype: MomentumDtype::F32 });
    let update = Update { optimizer, learning_rate: LearningRate::Constant { value: 0.0 }, ..Update::default() };
    let accumulate = NonZeroU32::new(accumulate).unwrap();
    Objective { update, accumulate, loss_scale, ..Objective::default() }
}

/// The results of a step by name; `argument` returns its arguments.
fn step(
    task: &dyn Task,
    batch: i64,
    objective: &Objective,
    argument: impl Fn(&str) -> Option<(Vec<i64>, Vec<f32>)>,
) -> BTreeMap<String, Vec<f32>> {
    let program =
        program::training(task, Precision::F32, batch, objective).unwrap_or_else(|error| panic!("{error}")).program;
    let variables: BTreeMap<&str, _> =
        program.variables.iter().map(|it| (it.name.as_str(), (it.dtype, &it.dims))).collect();
    let results = run::run(&program, |name| match (argument(name), variables.get(name)) {
        (Some((dims, values)), _) => Literal::from_elements(dims, &values),
        (None, Some((DType::F32, dims))) => {
            let n = dims.iter().product::<i64>() as usize;
            Literal::from_elements(dims.to_vec(), &vec![if name == "loss_scale" { 1024.0 } else { 0.0f32 }; n])
        }
        (None, Some((DType::S32, dims))) => Literal::from_elements(dims.to_vec(), &[0]),
        (None, _) if name == "step" => Literal::from_elements(vec![], &[0]),
        (None, other) => panic!("{name} {other:?}"),
    });
    let floats = |literal: &Literal| match literal {
        Literal::Array { shape, .. } if shape.dtype == DType::F32 => run::f32s(literal),
        _ => Vec::new(),
    };
    program.outputs.iter().cloned().zip(results.iter().map(floats)).collect()
}

const DCGAN: &str = "kind: layers
inputs: {images: [8, 8, 1], noise: {shape: [5], random: normal}}
blocks:
  generator:
    - {dense: 32, use_bias: false}
    - batch_norm
    - {leaky_relu: 0.3}
    - {reshape: [2, 2, 8]}
    - {conv_transpose: 4, kernel_size: 3, strides: 2, padding: same, use_bias: false}
    - batch_norm
    - {leaky_relu: 0.3}
    - {conv_transpose: 1, kernel_size: 3, strides: 2, padding: same, activation: tanh}
  discriminator:
    - {conv: 4, kernel_size: 3, strides: 2, padding: same}
    - {leaky_relu: 0.3}
    - {conv: 8, kernel_size: 3, strides: 2, padding: same, use_bias: false}
    - batch_norm
    - {leaky_relu: 0.3}
    - flatten
    - {dense: 1}
layers:
  - {generator: , inputs: noise}
  - {discriminator: , inputs: images}
  - {share: discriminator, inputs: generator, name: generated}
outputs: {images: generator}
loss:
  - {sigmoid_cross_entropy: , output: discriminator, labels: ones, variables: 'discriminator/**', name: discriminator_loss}
  - {sigmoid_cross_entropy: , output: generated, labels: 0, variables: 'discriminator/**', name: discriminator_loss}
  - {sigmoid_cross_entropy: , output: generated, labels: 1, variables: 'generator/**', name: generator_loss}
";

/// Sums in another order: along the longest way from the noise to a gradient and back some 1,000 numbers are added, so that
/// roundings come to `1,000 · 2^-24` of an array's largest number if all pull the same way; batch norms divide by deviations
/// of 0.1 at least, so ten times as much.
const TOLERANCE: f32 = 6e-4;

#[test]
fn a_step_of_a_dcgan_is_tensorflows_with_two_tapes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gan_tf/gan.npz");
    let mut npz = NpzReader::new(File::open(path).unwrap()).unwrap();
    let recorded: BTreeMap<String, ArrayD<f32>> = npz
        .names()
        .unwrap()
        .into_iter()
        .map(|name| {
            let array = npz.by_name(&name).unwrap();
            (name.trim_end_matches(".npy").to_string(), array)
        })
        .collect();
    let task = read(DCGAN).unwrap();
    for (accumulate, loss_scale) in [(1, LossScale::None), (1, LossScale::Static { scale: 1024.0 })] {
        let results = step(&*task, 6, &keeps_gradients(accumulate, loss_scale), |name| {
            let array = recorded.get(&format!("before/{name}")).or_else(|| recorded.get(name))?;
            Some((array.shape().iter().map(|&dim| dim as i64).collect(), array.iter().copied().collect()))
        });
        let mut n_compared = 0;
        for (name, expected) in &recorded {
            let ours = match name.split_once('/') {
                Some(("gradient", variable)) => &results[&format!("{variable}/momentum")],
                Some(("after", variable)) => &results[variable],
                _ if name.ends_with("_loss") => &results[name],
                _ => continue,
            };
            let largest = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
            assert_eq!(ours.len(), expected.len(), "{name}");
            for (ours, theirs) in ours.iter().zip(expected) {
                // For vectors Keras' variance is over 6 examples, and ours over 5; for images both are over 5.
                let is_of_vectors = name == "after/generator/batch_norm/moving_variance";
                let theirs = if is_of_vectors { 0.99 + (theirs - 0.99) * 6.0 / 5.0 } else { *theirs };
                let off = (ours - theirs).abs();
                assert!(off <= TOLERANCE * largest, "{name}: {ours}, {off:e} from {theirs} of {largest}");
            }
            n_compared += 1;
        }
        assert_eq!(n_compared, 15 + 6 + 2);
    }
}

/// Without batch norms, which see micro-batches.
const SMALL: &str = "kind: layers
inputs: {images: [8, 8, 1], noise: {shape: [4], random: uniform}}
blocks:
  drawn: [{dense: 16, activation: relu}, {dense: 64, activation: sigmoid}, {reshape: [8, 8, 1]}]
  judge: [flatten, {dense: 16, activation: relu}, {dense: 1}]
layers:
  - {drawn: , inputs: noise}
  - {judge: , inputs: images}
  - {share: judge, inputs: drawn, name: again}
outputs: {images: drawn}
loss:
  - {sigmoid_cross_entropy: , output: judge, labels: 0.9, variables: 'judge/*', name: judge_loss}
  - {sigmoid_cross_entropy: , output: again, labels: 0, variables: 'judge/*', name: judge_loss}
  - {sigmoid_cross_entropy: , output: again, labels: 1, name: drawn_loss}
";

fn numbers(name: &str, n: usize) -> Vec<f32> {
    let start = name.bytes().map(usize::from).sum::<usize>();
    (0..n).map(|at| ((at * 37 + start * 11) % 64) as f32 / 64.0 - 0.5).collect()
}

/// Means over micro-batches of 4, and over all 8: sums of at most 8 · 64 numbers in another order.
#[test]
fn gradients_of_micro_batches_are_those_of_the_batch_for_each_loss() {
    let task = read(SMALL).unwrap();
    let dims = |name: &str| -> Option<Vec<i64>> {
        Some(match name {
            "images" => vec![8, 8, 8, 1],
            "noise" => vec![8, 4],
            "drawn/dense/kernel" => vec![4, 16],
            "drawn/dense_1/kernel" => vec![16, 64],
            "judge/dense/kernel" => vec![64, 16],
            "judge/dense_1/kernel" => vec![16, 1],
            _ => return None,
        })
    };
    let state_after_step = |accumulate| {
        step(&*task, 8, &keeps_gradients(accumulate, LossScale::None), |name| {
            let dims = dims(name)?;
            let n = dims.iter().product::<i64>() as usize;
            Some((dims, numbers(name, n)))
        })
    };
    let (whole, parts) = (state_after_step(1), state_after_step(2));
    let gradients: Vec<&String> = whole.keys().filter(|name| name.ends_with("/momentum")).collect();
    assert_eq!(gradients.len(), 8);
    for name in gradients {
        let largest = whole[name].iter().fold(0f32, |most, value| most.max(value.abs()));
        assert!(largest > 0.0, "{name}");
        for (whole, part) in whole[name].iter().zip(&parts[name]) {
            assert!((whole - part).abs() <= 512.0 * 2f32.powi(-24) * largest, "{name}: {whole}, {part} of {largest}");
        }
    }
}

fn trainer<'a>(precision: Precision) -> Trainer<'a> {
    Trainer::new(read(SMALL).unwrap())
        .on(run::client())
        .epochs(2)
        .batch(40)
        .seed(3)
        .precision(precision)
        .learning_rate(0.02)
}

fn fit(trainer: Trainer<'_>) -> Result<Trained, bf16scope::train::TrainError> {
    let data = digits().data();
    trainer.fit(data.training, data.test)
}

/// By seed, epoch and index in training, by index alone elsewhere, whatever the batch.
#[test]
fn what_no_file_has_is_drawn_on_the_host() {
    let index: Vec<f32> = (0..64).map(|n| n as f32).collect();
    let source = Arrays::from_arrays([("index", Array::from_vec(index, [-1, 1]).unwrap())]).unwrap();
    let features = |random| [Feature::compute("index", [1]), Feature::compute("noise", [100]).drawn(random)];
    // The numbers of each example, by its index.
    let drawn = |random, batch, seed, epoch: Option<u64>| -> BTreeMap<u32, Vec<f32>> {
        let loader = Loader::new(&source, &features(random), DType::F32, batch, seed).unwrap();
        let batches: Vec<_> = match epoch {
            Some(epoch) => loader.epoch(epoch).collect(),
            None => loader.in_order().collect(),
        };
        let rows = batches.into_iter().flat_map(|batch| {
            let arrays = batch.unwrap().arrays;
            let [index, noise] = [0, 1].map(|at| arrays[at].to_vec::<f32>().unwrap());
            index.into_iter().map(|index| index as u32).zip(noise.chunks(100).map(<[f32]>::to_vec).collect::<Vec<_>>())
        });
        rows.collect()
    };
    let first = drawn(Random::Normal, 8, 3, Some(0));
    assert_eq!(first, drawn(Random::Normal, 16, 3, Some(0)));
    for other in [drawn(Random::Normal, 8, 3, Some(1)), drawn(Random::Normal, 8, 4, Some(0))] {
        assert!(first.iter().all(|(index, numbers)| other[index] != *numbers));
    }
    let evaluated = drawn(Random::Normal, 8, 3, None);
    assert_eq!(evaluated, drawn(Random::Normal, 32, 4, None));
    let all: Vec<f64> = evaluated.into_values().flatten().map(f64::from).collect();
    let moment = |power: i32| all.iter().map(|number| number.powi(power)).sum::<f64>() / all.len() as f64;
    // Five standard deviations of a mean of 6,400 numbers: 5 · √(1, 2, 96) / 80.
    for (power, expected, spread) in [(1, 0.0, 1f64), (2, 1.0, 2.0), (4, 3.0, 96.0)] {
        assert!((moment(power) - expected).abs() < 5.0 * spread.sqrt() / 80.0, "{power}: {}", moment(power));
    }
    let uniform: Vec<f32> = drawn(Random::Uniform, 8, 3, None).into_values().flatten().collect();
    let (least, most) = uniform.iter().fold((0f32, 0f32), |(least, most), &x| (least.min(x), most.max(x)));
    assert!((-1.0..-0.99).contains(&least) && (0.99..1.0).contains(&most), "{least} {most}");
    // An array of its name is taken as it is.
    let noise = Array::from_vec(vec![7f32; 200], [-1, 100]).unwrap();
    let source = Arrays::from_arrays([("noise", noise)]).unwrap();
    let loader = Loader::new(&source, &features(Random::Normal)[1..], DType::F32, 2, 0).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.arrays[0].to_vec::<f32>().unwrap(), [7.0; 200]);
}

/// In its second epoch, of 35 steps; evaluations draw the same noise each time.
#[test]
fn a_gan_that_is_stopped_and_resumed_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gan.safetensors");
    let whole = fit(trainer(Precision::Bf16)).unwrap();
    let stop = AtomicBool::new(false);
    let stopped = fit(trainer(Precision::Bf16).checkpoint(&path).stop(&stop).on_event(|event| {
        if let Event::Step { session, .. } = event {
            stop.store(session.step() == 52, Ordering::Relaxed);
        }
    }));
    assert_eq!(stopped.unwrap_err().kind(), &TrainErrorKind::Interrupted { step: 52, epoch: 2 });
    let resumed = fit(trainer(Precision::Bf16).checkpoint(&path).resume(&path)).unwrap();
    assert!(resumed.session().unwrap().state().unwrap() == whole.session().unwrap().state().unwrap());
    let test = digits().data().test;
    let loaded = trainer(Precision::Bf16).load(&path).unwrap();
    assert_eq!(loaded.evaluate(test).unwrap(), whole.evaluate(test).unwrap());
    let pictures = loaded.predict(test).unwrap();
    assert_eq!(pictures, whole.predict(test).unwrap());
    let images = pictures.to_vec::<f32>("images").unwrap();
    assert_eq!(images.len(), 360 * 64);
    assert!(images[..64] != images[64..128], "each example has noise of its own");
    let values = whole.summary().test.clone();
    let names: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["loss", "judge_loss", "drawn_loss"]);
    assert!((values[0].1 - values[1].1 - values[2].1).abs() < 1e-3, "{values:?}");
}

/// Each loss, and what is said of it.
#[test]
fn losses_and_variables_that_do_not_fit_are_named() {
    let error = |from: &str, to: &str| {
        assert!(SMALL.contains(from), "{from}");
        read(&SMALL.replacen(from, to, 1)).err().unwrap_or_else(|| "none".to_string())
    };
    let message = |text: String| text.split_once("\n  ").map_or(text.clone(), |(message, _)| message.to_string());
    let of_pattern = error(
        "variables: 'judge/*', name: judge_loss}\n  - {sigmoid_cross_entropy: , output: again, labels: 0, variables: 'judge/*'",
        "variables: judges, name: judge_loss}\n  - {sigmoid_cross_entropy: , output: again, labels: 0, variables: 'judge/*'",
    );
    assert!(of_pattern.starts_with("gan.yaml:12:"), "{of_pattern}");
    assert!(message(of_pattern.clone()).ends_with("`judges` is the name of no variable that trains"), "{of_pattern}");
    let of_layer = error("labels: 0.9, variables: 'judge/*'", "labels: 0.9, variables: judge");
    assert!(of_layer.contains("help: write 'judge/*', all of a layer or block"), "{of_layer}");
    for none in ["''", "false", "[]"] {
        let none = error("labels: 1, name", &format!("labels: 1, variables: {none}, name"));
        assert!(none.contains("help: leave the key out, or give patterns, such as 'generator/*'"), "{none}");
    }
    let twice = error("labels: 1, name", "labels: 1, variables: '*', name");
    assert!(
        twice
            .contains("losses `judge_loss` and `drawn_loss` both train `judge/dense/kernel`, by different `variables`")
            && twice.contains("write the same `variables` in both, whose sum then trains them"),
        "{twice}"
    );
    let untrained = error("labels: 1, name", "labels: 1, variables: 'drawn/dense_1/*', name");
    assert!(
        untrained.contains("no loss trains `drawn/dense/kernel`: the `variables` of each loss leave it and 1 more out")
            && untrained.contains("add 'drawn/*' to the `variables` of a loss"),
        "{untrained}"
    );
    let all = SMALL.replace("'judge/*'", "'*'");
    let left = read(&all).err().unwrap();
    assert!(left.contains("loss `drawn_loss` trains no variable: other losses name all of them"), "{left}");
    let improbable = error("labels: 0.9", "labels: 1.5");
    assert!(improbable.contains("the label of every example is 1.5, expected a number from 0 to 1"), "{improbable}");
    let whole = error("random: uniform", "random: uniform, dtype: int32");
    assert!(whole.contains("input `noise` is whole numbers, and what is drawn are floats"), "{whole}");
    // The discriminator's loss of pictures does not depend on the generator.
    let apart = SMALL
        .replacen(
            "output: judge, labels: 0.9, variables: 'judge/*', name: judge_loss",
            "output: judge, labels: 0.9, variables: 'drawn/*'",
            1,
        )
        .replacen("  - {sigmoid_cross_entropy: , output: again, labels: 1, name: drawn_loss}\n", "", 1);
    let error =
        program::training(&*read(&apart).unwrap(), Precision::F32, 4, &Objective::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        "loss `sigmoid_cross_entropy` has no gradient for drawn/dense/kernel, drawn/dense/bias, drawn/dense_1/kernel, drawn/dense_1/bias, \
         which its `variables` name: it depends on images, judge/dense/kernel, judge/dense/bias, judge/dense_1/kernel, \
         judge/dense_1/bias\nhelp: name the variables that it depends on, or let it judge what they make"
    );
}
