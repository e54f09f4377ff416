//! First moments stored in bf16: the stored bits against an emulation on the host, the unchanged rest, the loss of a
//! second moment in bf16, a resumed run, and the memory of a TPU program.

use crate::{digits, examples, run};

use bf16scope::data::Arrays;
use bf16scope::graph::{Graph, Init, Precision, Program};
use bf16scope::hlo::DType;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::models::{Model, mlp};
use bf16scope::optim::{Adam, LearningRate, LossScale, Momentum, MomentumDtype, Optimizer, Update};
use bf16scope::pjrt::{Arg, Buffer, CompileOptions};
use bf16scope::tpu::{Target, compile};
use bf16scope::train::checkpoint::{Array, Checkpoint};
use bf16scope::train::{Objective, Resumption, Session, Spec, program};
use bf16scope::tuning::Tuning;
use half::bf16;
use std::collections::BTreeMap;

/// Few bits: a product with it is exact in f32 for a bf16 value, and a sum then rounds once, whether or not the back end
/// fuses the two. So the host's emulation has one answer.
const BETA: f32 = 0.875;
const RATE: f32 = 0.0625;
const N: usize = 64;
const N_STEPS: usize = 40;

fn momentum(momentum_dtype: MomentumDtype) -> Optimizer {
    Optimizer::Momentum(Momentum { momentum: f64::from(BETA), nesterov: false, momentum_dtype })
}

fn adam(momentum_dtype: MomentumDtype) -> Optimizer {
    Optimizer::Adam(Adam { beta1: f64::from(BETA), beta2: 0.999, epsilon: 1e-8, momentum_dtype, ..Adam::PAPER })
}

/// `w ← update(w, gradient)` with the gradient an input.
fn program_of(optimizer: Optimizer) -> Program {
    let graph = Graph::training("update");
    let w = graph.scope().variable("w", DType::F32, [N as i64], Init::Zeros);
    let gradient = graph.input("gradient", DType::F32, [N as i64]);
    let step = graph.input("step", DType::S32, []);
    let learning_rate = LearningRate::Constant { value: f64::from(RATE) };
    let update = Update { optimizer, learning_rate, ..Update::default() };
    update.emit(&graph, &step, &[(w.number, gradient)]);
    let results: Vec<_> = graph.variables().iter().map(|v| graph.tensor(v.update.unwrap())).collect();
    let results: Vec<_> = results.iter().map(|result| ("", result)).collect();
    graph.finish(&results).unwrap()
}

/// Gradients of every size and sign, not representable in few bits.
fn gradient(step: usize) -> Vec<f32> {
    let lane_gradient = |lane: usize| {
        let x = ((lane * 7919 + step * 104_729) % 1009) as f32 / 1009.0 - 0.5;
        x * 10f32.powi((lane % 9) as i32 - 4)
    };
    (0..N).map(lane_gradient).collect()
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn f32s(buffer: &Buffer) -> Vec<f32> {
    buffer.to_host().unwrap().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn bf16s(buffer: &Buffer) -> Vec<bf16> {
    buffer.to_host().unwrap().as_chunks::<2>().0.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect()
}

/// Runs the update for [`N_STEPS`] and hands every new state to `look`.
fn follow(optimizer: Optimizer, mut look: impl FnMut(usize, &[f32], &[Buffer])) {
    let client = run::client();
    let program = program_of(optimizer);
    verify(&program.module).unwrap();
    let bytes = encode::to_bytes(&program.module).unwrap();
    let executable = client.compile(&bytes, &CompileOptions::default()).unwrap();
    let zeros = |dtype: DType| client.buffer_from_host(&vec![0; N * dtype.n_bytes()], dtype, &[N as i64], 0).unwrap();
    let mut state: Vec<Buffer> = program.variables.iter().map(|variable| zeros(variable.dtype)).collect();
    for step in 0..N_STEPS {
        let gradient = gradient(step);
        let upload = client.buffer_from_host(&bytes_of(&gradient), DType::F32, &[N as i64], 0).unwrap();
        let count = client.buffer_from_host(&(step as i32).to_le_bytes(), DType::S32, &[], 0).unwrap();
        let mut args: Vec<Arg<'_>> = state.drain(..).map(Arg::Donate).collect();
        args.extend([Arg::Keep(&upload), Arg::Keep(&count)]);
        state = executable.execute(args).unwrap();
        look(step, &gradient, &state);
    }
}

#[test]
fn momentum_in_bf16_is_the_f32_update_rounded_once_to_the_bit() {
    let (mut w, mut slot) = (vec![0f32; N], vec![bf16::ZERO; N]);
    let mut n_rounded = 0;
    follow(momentum(MomentumDtype::Bf16), |step, gradient, state| {
        for lane in 0..N {
            let accumulated = slot[lane].to_f32() * BETA + gradient[lane];
            // The weights move by the unrounded value; the rate is a power of two, so the product is exact.
            w[lane] -= RATE * accumulated;
            slot[lane] = bf16::from_f32(accumulated);
            n_rounded += usize::from(slot[lane].to_f32() != accumulated);
        }
        assert_eq!(bf16s(&state[1]), slot, "step {step}");
        assert_eq!(f32s(&state[0]), w, "step {step}");
    });
    assert!(n_rounded > N * N_STEPS / 2, "only {n_rounded} values needed rounding");
}

#[test]
fn adams_first_moment_in_bf16_is_rounded_once_and_the_second_is_not_touched() {
    let mut v_in_f32 = Vec::new();
    let mut w_in_f32 = Vec::new();
    follow(adam(MomentumDtype::F32), |_, _, state| {
        w_in_f32.push(f32s(&state[0]));
        v_in_f32.push(state[2].to_host().unwrap());
    });
    let mut m = vec![bf16::ZERO; N];
    follow(adam(MomentumDtype::Bf16), |step, gradient, state| {
        for lane in 0..N {
            m[lane] = bf16::from_f32(m[lane].to_f32() * BETA + gradient[lane] * (1.0 - BETA));
        }
        assert_eq!(bf16s(&state[1]), m, "step {step}");
        assert_eq!(state[2].to_host().unwrap(), v_in_f32[step], "step {step}");
        // No moment was rounded before the first step, so its weights are those of f32; later ones are near them.
        if step == 0 {
            assert_eq!(f32s(&state[0]), w_in_f32[0]);
        }
    });
}

/// A second moment in bf16: `v ← bf16(0.999·v + 0.001·g²)`.
fn second_moment(mut v: f32, g2: f32, n_steps: usize) -> f32 {
    for _ in 0..n_steps {
        v = bf16::from_f32(0.999f32 * v + 0.001f32 * g2).to_f32();
    }
    v
}

#[test]
fn a_second_moment_in_bf16_would_stall_which_is_why_there_is_none() {
    for binade in 0..256u32 {
        let g2 = 1.0 + binade as f32 / 256.0;
        // From zero it stops at 0.20 to 0.34 of its limit, well before 5,000 steps.
        let stalled = second_moment(0.0, g2, 5_000);
        assert_eq!(second_moment(stalled, g2, 1), stalled);
        assert!((0.2..=0.34).contains(&(stalled / g2)), "{stalled} of {g2}");
        // A large one never falls: gradients of zero leave it unchanged.
        let large = bf16::from_f32(g2).to_f32();
        assert_eq!(second_moment(large, 0.0, 5_000), large);
    }
    // A first moment does neither. It rises until 0.1·(1 − m) is below half an ulp, 2^-9, which is above 0.98; and it
    // loses 10 % per step, down to 0.9^100 = 3e-5 after a hundred, each off by at most 2^-8: below 1e-4.
    let mut m = 0f32;
    for step in 0..200 {
        let g = if step < 100 { 1.0 } else { 0.0 };
        m = bf16::from_f32(0.9f32 * m + 0.1f32 * g).to_f32();
        if step == 99 {
            assert!((0.98..=1.0).contains(&m), "{m}");
        }
    }
    assert!(m < 1e-4, "{m}");
}

fn spec(optimizer: Optimizer, precision: Precision, loss_scale: LossScale) -> Spec {
    let learning_rate = LearningRate::Constant { value: 0.01 };
    let update = Update { optimizer, learning_rate, ..Update::default() };
    let objective = Objective { update, loss_scale, ..Objective::default() };
    let model = Model::Mlp(mlp::Config { hidden: vec![8], ..mlp::Config::new([4], 2) });
    Spec { precision, batch: 8, seed: 1, objective, ..Spec::new(model.task(0.0)) }
}

fn dataset() -> Arrays {
    let features = (0..64).map(|i| ((i * 37) % 16) as f32 / 16.0 - 0.5).collect();
    let labels = (0..16).map(|i| i % 2).collect();
    examples::images(features, &[4], labels)
}

fn train(session: &mut Session, steps: std::ops::Range<u64>) {
    let dataset = dataset();
    let spec = session.spec().clone();
    let loader = examples::loader(&dataset, &spec);
    for epoch in steps {
        session.train(&loader.epoch(epoch).next().unwrap().unwrap()).unwrap();
    }
}

#[test]
fn bf16_slots_go_through_a_checkpoint_to_the_bit_and_f32_ones_are_refused() {
    let client = run::client();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    for optimizer in [momentum(MomentumDtype::Bf16), adam(MomentumDtype::Bf16)] {
        let new = || Session::new(client, spec(optimizer, Precision::Bf16, LossScale::None)).unwrap();
        let mut whole = new();
        train(&mut whole, 0..6);
        let mut first = new();
        train(&mut first, 0..3);
        first.checkpoint(1).unwrap().write(&path).unwrap();
        let checkpoint = Checkpoint::read(&path).unwrap();
        let slots =
            checkpoint.variables.iter().filter(|(name, _)| name.ends_with("/momentum") || name.ends_with("/adam_m"));
        let dtypes: Vec<DType> = slots.map(|(_, array)| array.shape.dtype).collect();
        assert_eq!(dtypes, [DType::BF16; 4]);
        let mut second = new();
        second.restore(&path, &checkpoint, Resumption::default()).unwrap();
        train(&mut second, 3..6);
        assert_eq!(second.state().unwrap(), whole.state().unwrap());
    }
    let in_f32 = spec(adam(MomentumDtype::F32), Precision::Bf16, LossScale::None);
    let checkpoint = Checkpoint::read(&path).unwrap();
    let message = Session::new(client, in_f32).unwrap().restore(&path, &checkpoint, Resumption::default());
    let message = message.unwrap_err().to_string();
    assert!(message.contains("adam_m is bf16[8], not f32[8]"), "{message}");
}

#[test]
fn a_skipped_step_leaves_bf16_slots_alone() {
    if !run::has_f16() {
        return;
    }
    // The scale is far above what f16 cotangents can hold, so the first steps are skipped.
    let scale = LossScale::Dynamic { initial: 2f64.powi(30), period: 2000, factor: 2.0, minimum: 1.0 };
    let optimizer = adam(MomentumDtype::Bf16);
    let mut session = Session::new(run::client(), spec(optimizer, Precision::F16, scale)).unwrap();
    let variables = |session: &Session| -> BTreeMap<String, Array> {
        let state = session.state().unwrap();
        state.into_iter().filter(|(name, _)| !name.starts_with("loss_scale/")).collect()
    };
    let before = variables(&session);
    train(&mut session, 0..3);
    assert_eq!(variables(&session), before);
    train(&mut session, 3..40);
    let after = variables(&session);
    assert_ne!(after, before);
    for (name, array) in &after {
        let values = array.bytes.as_chunks::<2>().0.iter().map(|bytes| bf16::from_le_bytes(*bytes));
        assert!(array.shape.dtype != DType::BF16 || values.into_iter().all(bf16::is_finite), "{name}");
    }
}

#[test]
fn a_tpu_program_takes_two_bytes_less_for_each_element_of_a_slot() {
    let arguments = |optimizer: Optimizer| {
        // Dims divisible by the TPU's tiles, so that there is no padding.
        let model = Model::Mlp(mlp::Config { hidden: vec![1024], ..mlp::Config::new([1024], 1024) });
        let update = Update { optimizer, ..Update::default() };
        let objective = Objective { update, ..Objective::default() };
        let program = program::training(&*model.task(0.0), Precision::Bf16, 8, &objective).unwrap().program;
        verify(&program.module).unwrap();
        let target: Target = "tpu-v2".parse().unwrap();
        let report = compile(&target, &encode::to_bytes(&program.module).unwrap(), 8).unwrap();
        assert!(report.hbm.aliased > 0);
        report.hbm.arguments
    };
    let n_parameters = 2 * (1024 * 1024 + 1024);
    for optimizer in [momentum, adam] {
        let [f32, bf16] = [MomentumDtype::F32, MomentumDtype::Bf16].map(|dtype| arguments(optimizer(dtype)));
        assert_eq!(f32 - bf16, 2 * n_parameters, "{f32} and {bf16}");
    }
}

/// The digits, end to end: the rounding does not show.
#[test]
fn the_digits_are_learnt_with_bf16_momentum() {
    learns_the_digits(digits::SHORT, 0.95);
}

fn learns_the_digits(n_epochs: u32, at_least: f64) {
    let mut spec = digits::recipe(n_epochs).spec(Precision::Bf16, &Tuning::none()).unwrap();
    let Optimizer::Momentum(Momentum { momentum_dtype, .. }) = &mut spec.objective.update.optimizer else {
        panic!("the example has another optimizer")
    };
    *momentum_dtype = MomentumDtype::Bf16;
    let accuracy = digits::accuracy(spec, n_epochs);
    assert!(accuracy >= at_least, "{accuracy}");
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Trains all 25 epochs.
    #[cfg_attr(feature = "long-tests", test)]
    fn the_digits_are_learnt_as_well_with_bf16_momentum() {
        learns_the_digits(digits::WHOLE, 0.97);
    }
}
