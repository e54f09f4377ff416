//! Adafactor against optax's, step by step, and on the digits.

use crate::{digits, run};

use bf16scope::graph::{Graph, Init, Precision};
use bf16scope::hlo::DType;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::optim::{Adafactor, LearningRate, Optimizer, Update, WeightDecay};
use bf16scope::pjrt::{Arg, Buffer, Client, CompileOptions};
use bf16scope::train::program;
use bf16scope::tuning::Tuning;
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use std::fs::File;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Half an ulp of f32, relative.
const U: f64 = 1.0 / (1u64 << 24) as f64;
const N_STEPS: usize = 20;
/// After more steps the bound of what sums of updates have gathered says nothing.
const N_STEPS_WITH_MOMENTUM: usize = 3;
const RATE: f64 = 0.01;
/// A name and dims.
type Named = (&'static str, &'static [i64]);
/// The variables of the fixture, with the slots each must have.
const VARIABLES: [(&str, &[i64], &[Named]); 7] = [
    ("matrix", &[10, 9], &[("adafactor_row", &[9]), ("adafactor_col", &[10])]),
    ("tall", &[8, 12], &[("adafactor_row", &[8]), ("adafactor_col", &[12])]),
    ("square", &[8, 8], &[("adafactor_row", &[8]), ("adafactor_col", &[8])]),
    ("small", &[7, 12], &[("adafactor_v", &[7, 12])]),
    ("kernel", &[3, 2, 8, 9], &[("adafactor_row", &[3, 2, 8]), ("adafactor_col", &[3, 2, 9])]),
    ("mixed", &[9, 2, 8], &[("adafactor_row", &[2, 8]), ("adafactor_col", &[9, 2])]),
    ("bias", &[9], &[("adafactor_v", &[9])]),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

struct Fixture(NpzReader<File>);

impl Fixture {
    fn array(&mut self, name: &str) -> Vec<f32> {
        let array: ArrayD<f32> = self.0.by_name(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        array.iter().copied().collect()
    }
}

fn upload(client: &Client, values: &[f32], dims: &[i64]) -> Buffer {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    client.buffer_from_host(&bytes, DType::F32, dims, 0).unwrap()
}

fn download(buffer: &Buffer) -> Vec<f32> {
    buffer.to_host().unwrap().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |largest, value| largest.max(value.abs()))
}

/// Values of all variables after each step, beside optax's, and how far apart they may be. Without momentum each step begins
/// where optax's variables are, with our slots, so that what is compared is one update, by what all steps have left.
fn follow(case: &str, optimizer: Adafactor) {
    let client = run::client();
    let mut fixture =
        Fixture(NpzReader::new(File::open(root().join("tests/data/adafactor/optax.npz")).unwrap()).unwrap());
    let graph = Graph::training("adafactor");
    let step = graph.input("step", DType::S32, []);
    let mut gradients = Vec::new();
    for (name, dims, _) in VARIABLES {
        let variable = graph.scope().variable(name, DType::F32, dims, Init::Zeros);
        gradients.push((variable.number, graph.input(&format!("{name}_gradient"), DType::F32, dims)));
    }
    let optimizer_kind = Optimizer::Adafactor(optimizer);
    let learning_rate = LearningRate::Constant { value: RATE };
    let update = Update { optimizer: optimizer_kind, learning_rate, ..Update::default() };
    update.emit(&graph, &step, &gradients);
    let variables = graph.variables();
    let results: Vec<_> = variables.iter().map(|v| graph.tensor(v.update.unwrap())).collect();
    let results: Vec<_> = results.iter().map(|result| ("", result)).collect();
    let program = graph.finish(&results).unwrap();
    verify(&program.module).unwrap();
    for (name, _, slots) in VARIABLES {
        let slots_of_variable: Vec<_> = variables.iter().filter(|v| v.name.starts_with(&format!("{name}/"))).collect();
        let slots_of_variable: Vec<_> =
            slots_of_variable.iter().map(|v| (v.name.rsplit('/').next().unwrap(), &v.dims[..])).collect();
        assert_eq!(
            slots_of_variable.iter().filter(|slot| slot.0 != "momentum").copied().collect::<Vec<_>>(),
            slots,
            "{name}"
        );
        assert_eq!(slots_of_variable.iter().any(|slot| slot.0 == "momentum"), optimizer.momentum.is_some());
    }
    let executable = client.compile(&encode::to_bytes(&program.module).unwrap(), &CompileOptions::default()).unwrap();
    let mut state: Vec<Buffer> = variables
        .iter()
        .map(|v| match VARIABLES.iter().find(|(name, ..)| *name == v.name) {
            Some((name, dims, _)) => upload(client, &fixture.array(&format!("start/{name}")), dims),
            None => upload(client, &vec![0.0; v.dims.iter().product::<i64>() as usize], &v.dims),
        })
        .collect();
    let mut expected: Vec<Vec<Vec<f32>>> =
        VARIABLES.iter().map(|(name, ..)| vec![fixture.array(&format!("start/{name}"))]).collect();
    let mut bounds = [0f64; VARIABLES.len()];
    let n_steps = if optimizer.momentum.is_some() { N_STEPS_WITH_MOMENTUM } else { N_STEPS };
    for step in 0..n_steps {
        let count = client.buffer_from_host(&(step as i32).to_le_bytes(), DType::S32, &[], 0).unwrap();
        let buffers: Vec<Buffer> = VARIABLES
            .iter()
            .map(|(name, dims, _)| upload(client, &fixture.array(&format!("gradient/{step}/{name}")), dims))
            .collect();
        let mut args: Vec<Arg<'_>> = state.drain(..).map(Arg::Donate).collect();
        args.push(Arg::Keep(&count));
        args.extend(buffers.iter().map(Arg::Keep));
        state = executable.execute(args).unwrap();
        for (at, (name, ..)) in VARIABLES.iter().enumerate() {
            let place = variables.iter().position(|v| v.name == *name).unwrap();
            let (measured, wanted) = (download(&state[place]), fixture.array(&format!("{case}/{step}/{name}")));
            expected[at].push(wanted.clone());
            bounds[at] = bound(&expected[at], optimizer, bounds[at]);
            let off = largest(measured.iter().zip(&wanted).map(|(a, b)| f64::from(a - b)));
            assert!(off <= bounds[at], "{case}, step {step}, {name}: {off:e} off, bound {:e}", bounds[at]);
            // The bound must be able to fail: a wrong constant or axis changes an update by tenths of it. The rounding of a
            // variable is not part of the update, and after large gradients it is as large as a small update.
            let moved = largest(wanted.iter().zip(&expected[at][step]).map(|(a, b)| f64::from(a - b)));
            let rounded = 2.0 * U * largest(expected[at][step..].iter().flatten().map(|&w| f64::from(w)));
            assert!(
                bounds[at] - rounded < moved / 20.0,
                "{case}, step {step}, {name}: bound {:e}, moved {moved:e}",
                bounds[at]
            );
            if optimizer.momentum.is_none() {
                (state[place], bounds[at]) = (upload(client, &wanted, VARIABLES[at].1), 0.0);
            }
        }
    }
}

/// How far apart two f32 implementations may be after the last of `values`, having been `before` apart.
///
/// All of `v`, its means and its roots are sums, products and quotients of positive numbers, so relative errors add up and
/// nothing cancels. A mean over at most `n` numbers is off by `n·U`, a power, a root or a quotient by 8·U, which is what
/// `tests/training/bounded.rs` grants XLA's functions; `1 − β`, which is t^-0.8, by 8·U / (1 − β).
fn bound(values: &[Vec<f32>], optimizer: Adafactor, before: f64) -> f64 {
    let n = values[0].len() as f64;
    let n_steps = values.len() as f64 - 1.0;
    // Each step moves v by a mean and three products with 1 − β and β.
    let v = n_steps * (n + 3.0 * 8.0 * n_steps.powf(0.8) + 8.0) * U;
    // Half of: a row, the mean of rows, a column. Then the clipping: the RMS of what is off by as much.
    let direction = 0.5 * (3.0 * v + n * U) + 3.0 * 8.0 * U;
    let clipped = 2.0 * direction + (0.5 * n + 24.0) * U;
    let [old, new] = [&values[values.len() - 2], &values[values.len() - 1]];
    let rms = (old.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>() / n).sqrt().max(optimizer.epsilon2);
    let scale = if optimizer.scale_by_parameter { before / rms + (0.5 * n + 16.0) * U } else { 0.0 };
    // The subtracted changes: with momentum, sums of at most all earlier updates, each off by as much.
    let mut of_steps = values.windows(2).map(|w| largest(w[0].iter().zip(&w[1]).map(|(a, b)| f64::from(a - b))));
    let moved = match optimizer.momentum {
        Some(_) => of_steps.sum::<f64>() / (1.0 - 0.9),
        None => of_steps.next_back().unwrap_or(0.0),
    };
    let size = largest(old.iter().chain(new).map(|&w| f64::from(w)));
    // Two implementations, each off by this much.
    before + 2.0 * (moved * (clipped + scale + 16.0 * U) + size * U)
}

fn of_fixture() -> Adafactor {
    Adafactor { min_dim_size_to_factor: NonZeroU32::new(8).unwrap(), ..Adafactor::default() }
}

#[test]
fn steps_are_optaxs() {
    follow("scaled", of_fixture());
}

#[test]
fn steps_without_clipping_and_scale_are_optaxs() {
    follow("plain", Adafactor { clipping_threshold: None, scale_by_parameter: false, ..of_fixture() });
}

#[test]
fn steps_with_momentum_are_optaxs() {
    follow("momentum", Adafactor { momentum: Some(0.9), ..of_fixture() });
}

/// Guessing among ten classes is right for 36 of the 360 images, with a standard deviation of 5.7: this many is not
/// guessing.
#[test]
fn the_digits_are_learnt() {
    learns_the_digits(digits::SHORT, 0.9);
}

fn learns_the_digits(n_epochs: u32, at_least: f64) {
    let mut spec = digits::recipe(n_epochs).spec(Precision::Bf16, &Tuning::none()).unwrap();
    // The network's dims are below 128: with this threshold most of its weights are in factored kernels.
    let adafactor = Adafactor { min_dim_size_to_factor: NonZeroU32::new(16).unwrap(), ..Adafactor::default() };
    let update = &mut spec.objective.update;
    update.optimizer = Optimizer::Adafactor(adafactor);
    update.weight_decay = WeightDecay::default();
    let LearningRate::WarmUpStep { value, .. } = &mut update.learning_rate else { panic!("another schedule") };
    *value = 0.03;
    let program = program::training(&*spec.task, spec.precision, 32, &spec.objective).unwrap().program;
    let rows = program.variables.iter().filter(|variable| variable.name.ends_with("adafactor_row"));
    assert_eq!(rows.count(), 2);
    let accuracy = digits::accuracy(spec, n_epochs);
    assert!(accuracy >= at_least, "{accuracy}");
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Trains all 25 epochs.
    #[cfg_attr(feature = "long-tests", test)]
    fn the_digits_are_learnt_as_well_as_with_momentum() {
        learns_the_digits(digits::WHOLE, 0.97);
    }
}
