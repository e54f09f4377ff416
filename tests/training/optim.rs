//! Optimizers and schedules, run through PJRT over several steps and compared with the same formulas in f64, within
//! bounds that the references carry along ([`bounded`](super::bounded)).

use super::bounded::{Bounded, FUNCTION, U, check};
use crate::run;

use bf16scope::graph::{Graph, Init, Program};
use bf16scope::hlo::{DType, proto, verify};
use bf16scope::optim::{LearningRate, MomentumDtype, Optimizer, RateDrop, Update, WeightDecay};
use bf16scope::pjrt::{Arg, Buffer, Client, CompileOptions, Executable};
use std::num::NonZeroU32;

fn compile(client: &Client, program: &Program) -> Executable {
    verify::verify(&program.module).unwrap();
    let bytes = proto::encode::to_bytes(&program.module).unwrap();
    client.compile(&bytes, &CompileOptions::default()).unwrap()
}

fn upload(client: &Client, values: &[f32], dims: &[i64]) -> Buffer {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    client.buffer_from_host(&bytes, DType::F32, dims, 0).unwrap()
}

fn upload_step(client: &Client, step: i32) -> Buffer {
    client.buffer_from_host(&step.to_le_bytes(), DType::S32, &[], 0).unwrap()
}

fn download(buffer: &Buffer) -> Vec<f32> {
    buffer.to_host().unwrap().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The start of the weights, and what their gradient is multiplied with: the loss is `Σ ½·curvature·w²`.
const WEIGHTS: [f32; 4] = [1.0, -2.5, 0.125, 3e2];
const CURVATURES: [f32; 4] = [0.5, 2.0, -1.0, 0.25];
const N_STEPS: usize = 12;
/// f32 holds these exactly, so the reference starts where the program does.
const RATE: f64 = 0.0625;
const DECAY: f64 = 0.03125;

/// The program `w ← update(w, curvature·w)`; its results are all variables in order.
fn quadratic(optimizer: Optimizer, weight_decay: WeightDecay) -> Program {
    let graph = Graph::training("quadratic");
    let w = graph.scope().variable("w", DType::F32, [4], Init::Zeros);
    let curvature = graph.input("curvature", DType::F32, [4]);
    let step = graph.input("step", DType::S32, []);
    let update =
        Update { optimizer, learning_rate: LearningRate::Constant { value: RATE }, weight_decay, ..Update::default() };
    update.emit(&graph, &step, &[(w.number, &curvature * &w.stored)]);
    let results: Vec<_> = graph.variables().iter().map(|v| graph.tensor(v.update.unwrap())).collect();
    let results: Vec<_> = results.iter().map(|result| ("", result)).collect();
    graph.finish(&results).unwrap()
}

/// Runs the program and `reference(w, gradient, slots, step)` side by side, and compares every variable at every step.
fn follow(
    optimizer: Optimizer,
    weight_decay: WeightDecay,
    reference: impl Fn(Bounded, Bounded, &mut [Bounded], usize) -> Bounded,
) {
    let client = run::cpu().unwrap();
    let program = quadratic(optimizer, weight_decay.clone());
    let executable = compile(&client, &program);
    let n_slots = program.variables.len() - 1;
    let curvature = upload(&client, &CURVATURES, &[4]);
    let mut state = vec![upload(&client, &WEIGHTS, &[4])];
    state.extend((0..n_slots).map(|_| upload(&client, &[0.0; 4], &[4])));
    let mut expected: Vec<Vec<Bounded>> = vec![WEIGHTS.map(|w| Bounded::exact(f64::from(w))).to_vec()];
    expected.extend((0..n_slots).map(|_| vec![Bounded::exact(0.0); 4]));
    for step in 0..N_STEPS {
        let step_buffer = upload_step(&client, step as i32);
        let mut args: Vec<Arg<'_>> = state.drain(..).map(Arg::Donate).collect();
        args.extend([Arg::Keep(&curvature), Arg::Keep(&step_buffer)]);
        state = executable.execute(args).unwrap();
        for lane in 0..4 {
            let w = expected[0][lane];
            let mut gradient = Bounded::exact(f64::from(CURVATURES[lane])) * w;
            if weight_decay.value != 0.0 {
                gradient = gradient + w * Bounded::exact(weight_decay.value);
            }
            let mut slots: Vec<Bounded> = expected[1..].iter().map(|slot| slot[lane]).collect();
            expected[0][lane] = reference(w, gradient, &mut slots, step);
            for (all, slot) in expected[1..].iter_mut().zip(slots) {
                all[lane] = slot;
            }
        }
        for (variable, (buffer, expected)) in state.iter().zip(&expected).enumerate() {
            for (lane, value) in download(buffer).into_iter().enumerate() {
                check(&format!("step {step}, variable {variable}, lane {lane}"), value, expected[lane]);
            }
        }
    }
    // The bound must mean something: it has stayed far below the value it bounds.
    for w in &expected[0] {
        assert!(w.error < 1e-3 * w.value.abs().max(1e-2), "the bound grew to {w:?}");
    }
}

fn rate() -> Bounded {
    Bounded::exact(RATE)
}

#[test]
fn sgd() {
    follow(Optimizer::Sgd {}, WeightDecay::default(), |w, g, _, _| w - rate() * g);
}

#[test]
fn sgd_with_weight_decay() {
    let decay = WeightDecay { value: DECAY, except: Vec::new(), decoupled: false };
    follow(Optimizer::Sgd {}, decay, |w, g, _, _| w - rate() * g);
}

#[test]
fn momentum() {
    let optimizer = Optimizer::Momentum { momentum: 0.9, nesterov: false, momentum_dtype: MomentumDtype::F32 };
    follow(optimizer, WeightDecay::default(), |w, g, slots, _| {
        slots[0] = Bounded::constant(0.9) * slots[0] + g;
        w - rate() * slots[0]
    });
}

#[test]
fn nesterov_momentum() {
    let optimizer = Optimizer::Momentum { momentum: 0.9, nesterov: true, momentum_dtype: MomentumDtype::F32 };
    follow(optimizer, WeightDecay::default(), |w, g, slots, _| {
        slots[0] = Bounded::constant(0.9) * slots[0] + g;
        w - rate() * (g + Bounded::constant(0.9) * slots[0])
    });
}

#[test]
fn adam() {
    follow(Optimizer::ADAM, WeightDecay::default(), |w, g, slots, step| {
        slots[0] = Bounded::constant(0.9) * slots[0] + g * Bounded::constant(1.0 - 0.9);
        slots[1] = Bounded::constant(0.999) * slots[1] + g * g * Bounded::constant(1.0 - 0.999);
        let correction = |beta: f64| {
            let exponent = Bounded::exact(step as f64 + 1.0) * Bounded::constant(beta.ln());
            // The derivative of 1 - e^x is below 1 in size where x < 0.
            exponent.map(|x| -x.exp_m1(), 1.0, FUNCTION)
        };
        let (m, v) = (slots[0] / correction(0.9), slots[1] / correction(0.999));
        w - rate() * (m / (v.sqrt() + Bounded::constant(1e-8)))
    });
}

/// Not a power of two: its reciprocal is rounded.
const EVERY: NonZeroU32 = NonZeroU32::new(41).unwrap();

/// The rate at each of `steps`, from the device.
fn rates(schedule: &LearningRate, steps: &[i32]) -> Vec<f32> {
    let client = run::cpu().unwrap();
    let graph = Graph::training("rate");
    let step = graph.input("step", DType::S32, []);
    let rate = schedule.emit(&step);
    let executable = compile(&client, &graph.finish(&[("rate", &rate)]).unwrap());
    let at = |&step: &i32| {
        let step = upload_step(&client, step);
        download(&executable.execute(vec![Arg::Keep(&step)]).unwrap()[0])[0]
    };
    steps.iter().map(at).collect()
}

#[test]
fn a_constant_rate() {
    assert_eq!(rates(&LearningRate::Constant { value: 0.3 }, &[0, 1, 1 << 30]), [0.3; 3]);
}

#[test]
fn exponential_decay() {
    let schedule = LearningRate::Exponential { value: 0.1, decay_steps: EVERY, decay_rate: 0.96, staircase: false };
    let steps = [0, 1, 40, 41, 42, 1000, 5000];
    for (step, measured) in steps.into_iter().zip(rates(&schedule, &steps)) {
        // XLA may divide by multiplying with the rounded reciprocal: one rounding more.
        let exponent = Bounded::exact(f64::from(step)) * Bounded::constant(1.0 / 41.0);
        // d/dx r^x = ln r · r^x, at most |ln r| here; the base is rounded too: x · r^(x-1) · U.
        let base_error = exponent.value * U;
        let mut power = exponent.map(|x| 0.96f64.powf(x), 0.96f64.ln().abs(), FUNCTION);
        power.error += base_error;
        let expected = power * Bounded::constant(0.1);
        check(&format!("step {step}"), measured, expected);
        assert!((schedule.at(step as u32) - expected.value).abs() < 1e-15);
    }
}

#[test]
fn a_staircase_falls_at_its_steps_and_not_before() {
    // In f32, 41 · (1/41) and its multiples do not all come out whole; the stairs must.
    let schedule = LearningRate::Exponential { value: 1.0, decay_steps: EVERY, decay_rate: 0.5, staircase: true };
    let steps: Vec<i32> = (0..20).flat_map(|stair| [41 * stair, 41 * stair + 1, 41 * stair + 40]).collect();
    for (step, measured) in steps.iter().zip(rates(&schedule, &steps)) {
        let expected = schedule.at(*step as u32);
        check(&format!("step {step}"), measured, Bounded::exact(expected).rounded(FUNCTION));
    }
}

#[test]
fn an_inverse_root_falls_after_its_constant_part() {
    let schedule = LearningRate::InverseSqrt { value: 1.0, constant_until: NonZeroU32::new(100).unwrap() };
    let steps = [0, 1, 98, 99, 100, 399, 1_000_000];
    for (step, measured) in steps.into_iter().zip(rates(&schedule, &steps)) {
        let t = Bounded::exact(f64::from(step + 1).max(100.0));
        let expected = Bounded::exact(1.0) / t.sqrt();
        check(&format!("step {step}"), measured, expected);
        assert!((schedule.at(step as u32) - expected.value).abs() < 1e-15);
    }
}

#[test]
fn warm_up_and_drops() {
    let drops = vec![RateDrop { step: 30, multiplier: 0.1 }, RateDrop { step: 60, multiplier: 0.01 }];
    let schedule = LearningRate::WarmUpStep { value: 0.4, warm_up: 5, drops };
    let steps = [0, 1, 2, 4, 5, 29, 30, 59, 60, 1_000_000];
    let measured = rates(&schedule, &steps);
    assert_eq!(measured[0], 0.0);
    assert_eq!(measured[4..], [0.4, 0.4, 0.04, 0.04, 0.004, 0.004]);
    for (step, measured) in [(1, measured[1]), (2, measured[2]), (4, measured[3])] {
        let expected = Bounded::exact(f64::from(step)) * Bounded::constant(0.4 / 5.0);
        check(&format!("step {step}"), measured, expected);
        assert!((schedule.at(step as u32) - expected.value).abs() < 1e-15);
    }
}
