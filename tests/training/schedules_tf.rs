//! Learning rates beside Keras', at every step of 1,000.
//!
//! `tests/data/optim_tf/schedules.npz` holds Keras' in f32. A reference in f64 carries a bound of f32's roundings along;
//! ours and Keras' must both be within it. Rates that are constants in pieces are compared bit for bit.

use super::bounded::{Bounded, FUNCTION, U, check};
use crate::run;

use bf16scope::graph::Graph;
use bf16scope::hlo::{DType, Literal};
use bf16scope::optim::{LearningRate, RateChange, Update, WarmUp};
use ndarray::Array1;
use ndarray_npy::NpzReader;
use std::fs::File;
use std::num::NonZeroU32;

const N_STEPS: u32 = 1000;
const VALUE: f64 = 0.3;
const END: f64 = 0.01;
const fn n(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("above 0")
}
const DECAY_STEPS: NonZeroU32 = n(700);
const WARM_UP: NonZeroU32 = n(90);

fn recorded(name: &str) -> Vec<f32> {
    let path = format!("{}/tests/data/optim_tf/schedules.npz", env!("CARGO_MANIFEST_DIR"));
    let array: Array1<f32> = NpzReader::new(File::open(path).unwrap()).unwrap().by_name(name).unwrap();
    array.to_vec()
}

/// The rate at every step, from the device.
fn ours(update: &Update) -> Vec<f32> {
    let graph = Graph::training("rate");
    let step = graph.input("step", DType::S32, []);
    let rate = update.emit(&graph, &step, &[]);
    let program = graph.finish(&[("rate", &rate)]).unwrap();
    let compiled = run::Compiled::new(&program);
    let at = |step: u32| run::f32s(&compiled.run(|_| Literal::from_elements([], &[step as i32]))[0])[0];
    (0..N_STEPS).map(at).collect()
}

fn of(learning_rate: LearningRate, warm_up: Option<WarmUp>) -> Update {
    Update { learning_rate, warm_up, ..Update::default() }
}

/// Ours and Keras' are both what `reference` says, and so is what the host computes.
fn follow(name: &str, update: &Update, reference: impl Fn(u32) -> Bounded) {
    for (step, (ours, theirs)) in (0..).zip(ours(update).into_iter().zip(recorded(name))) {
        let expected = reference(step);
        check(&format!("{name}, step {step}"), ours, expected);
        check(&format!("Keras' {name}, step {step}"), theirs, expected);
        let host = update.rate_at(step);
        assert!((host - expected.value).abs() < 1e-14, "{name}, step {step}: {host} on the host, {}", expected.value);
        // The bound must mean something.
        assert!(expected.error < 1e-4 * VALUE, "{name}, step {step}: the bound is {expected:?}");
    }
}

/// XLA may divide by multiplying with the rounded reciprocal: a rounding more.
fn share(step: u32, of: NonZeroU32) -> Bounded {
    (Bounded::exact(f64::from(step.min(of.get()))) / Bounded::exact(f64::from(of.get()))).rounded(U)
}

fn value() -> Bounded {
    Bounded::constant(VALUE)
}

/// From `start` to the value in the steps of the warm-up.
fn ramp(start: f64, step: u32) -> Bounded {
    // TensorFlow's BERT multiplies first: a rounding more.
    ((value() - Bounded::constant(start)) * share(step, WARM_UP)).rounded(U) + Bounded::constant(start)
}

fn exponential(exponent: Bounded) -> Bounded {
    let power = exponent.map(|x| 0.96f64.powf(x), 0.96f64.ln().abs(), FUNCTION);
    // The base is rounded too: x · r^(x-1) · r · U.
    Bounded { error: power.error + exponent.value * U, ..power } * value()
}

#[test]
fn exponential_decay() {
    let schedule =
        |staircase| LearningRate::Exponential { value: VALUE, decay_steps: n(41), decay_rate: 0.96, staircase };
    let exponent = |step: u32| (Bounded::exact(f64::from(step)) / Bounded::exact(41.0)).rounded(U);
    let stairs = |step: u32| exponential(Bounded::exact(f64::from(step / 41)));
    follow("exponential", &of(schedule(false), None), |step| exponential(exponent(step)));
    follow("exponential_staircase", &of(schedule(true), None), stairs);
    let overlapped = of(schedule(true), Some(WarmUp { steps: WARM_UP, start: 0.0, overlap: true }));
    follow("exponential_overlapped", &overlapped, |step| if step < 90 { ramp(0.0, step) } else { stairs(step) });
}

#[test]
fn cosine() {
    let schedule = |alpha| LearningRate::Cosine { value: VALUE, decay_steps: DECAY_STEPS, alpha };
    let rate = |step: u32, alpha: f64| {
        // Near the wave's zero the angle's reduction is off by as much as elsewhere: absolute.
        let angle = share(step, DECAY_STEPS) * Bounded::constant(std::f64::consts::PI);
        let wave = Bounded { value: angle.value.cos(), error: angle.error + FUNCTION };
        let half = (wave + Bounded::exact(1.0)) * Bounded::exact(0.5);
        (half * Bounded::constant(1.0 - alpha) + Bounded::constant(alpha)) * value()
    };
    follow("cosine", &of(schedule(0.0), None), |step| rate(step, 0.0));
    follow("cosine_alpha", &of(schedule(0.05), None), |step| rate(step, 0.05));
    for (name, start) in [("cosine_warm_up", 0.0), ("cosine_warm_up_from", 0.1)] {
        let update = of(schedule(0.0), Some(WarmUp { steps: WARM_UP, start, overlap: false }));
        follow(name, &update, |step| if step < 90 { ramp(start, step) } else { rate(step - 90, 0.0) });
    }
}

#[test]
fn polynomials() {
    let rate = |step: u32, end: f64, power: f64| {
        let remaining = match step < DECAY_STEPS.get() {
            true => Bounded::exact(1.0) - share(step, DECAY_STEPS),
            false => return Bounded::constant(end).rounded(U),
        };
        let powered = if power == 1.0 { remaining.rounded(FUNCTION) } else { remaining.power(power) };
        powered * (value() - Bounded::constant(end)) + Bounded::constant(end)
    };
    let (value, decay_steps) = (VALUE, DECAY_STEPS);
    for (name, power) in [("polynomial", 2.0), ("polynomial_root", 0.5)] {
        let schedule = LearningRate::Polynomial { value, decay_steps, end_value: END, power };
        follow(name, &of(schedule, None), |step| rate(step, END, power));
    }
    let linear = |end_value| LearningRate::Linear { value, decay_steps, end_value };
    follow("linear", &of(linear(END), None), |step| rate(step, END, 1.0));
    let overlapped = of(linear(0.0), Some(WarmUp { steps: WARM_UP, start: 0.0, overlap: true }));
    follow("linear_overlapped", &overlapped, |step| if step < 90 { ramp(0.0, step) } else { rate(step, 0.0, 1.0) });
}

#[test]
fn inverse_root() {
    let schedule = LearningRate::InverseSqrt { value: VALUE, constant_until: WARM_UP };
    follow("inverse_sqrt", &of(schedule, None), |step| {
        (value() / Bounded::exact(f64::from((step + 1).max(90))).sqrt()).rounded(FUNCTION)
    });
}

#[test]
fn pieces_are_bit_for_bit() {
    let changes = [(101, 0.1), (251, 0.05), (252, 0.02)].map(|(step, value)| RateChange { step, value }).to_vec();
    let schedule = LearningRate::Piecewise { value: VALUE, changes };
    let plain = of(schedule.clone(), None);
    assert_eq!(ours(&plain), recorded("piecewise"));
    let host = (0..N_STEPS).map(|step| plain.rate_at(step) as f32).collect::<Vec<_>>();
    assert_eq!(host, recorded("piecewise"));
    let overlapped = of(schedule, Some(WarmUp { steps: WARM_UP, start: 0.0, overlap: true }));
    assert_eq!(ours(&overlapped)[90..], recorded("piecewise_overlapped")[90..]);
}
