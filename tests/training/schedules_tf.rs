//! Learning rates beside Keras' and TensorFlow's, at every step of 1,000, alone and warmed up.
//!
//! `tests/data/optim_tf/schedules.npz` holds Keras' in f32. A reference in f64 carries a bound for f32's roundings;
//! ours and Keras' must both be within it. Rates that are piecewise constant are compared bit for bit.

use super::bounded::{Bounded, FUNCTION, U, check};
use crate::run;

use bf16scope::graph::Graph;
use bf16scope::hlo::{DType, Literal};
use bf16scope::optim::{Anneal, LearningRate, RateChange, RateDrop, Update, WarmUp};
use bf16scope::train::rates;
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

fn update_with(learning_rate: LearningRate, warm_up: Option<WarmUp>) -> Update {
    Update { learning_rate, warm_up, ..Update::default() }
}

/// Ours, Keras' and the host's rates all agree with `reference`.
fn follow(name: &str, update: &Update, reference: impl Fn(u32) -> Bounded) {
    for (step, (ours, theirs)) in (0..).zip(ours(update).into_iter().zip(recorded(name))) {
        let expected = reference(step);
        check(&format!("{name}, step {step}"), ours, expected);
        check(&format!("Keras' {name}, step {step}"), theirs, expected);
        let host = update.rate_at(step);
        assert!((host - expected.value).abs() < 1e-14, "{name}, step {step}: {host} on the host, {}", expected.value);
        // The bound must be tight.
        assert!(expected.error < 1e-4 * VALUE, "{name}, step {step}: the bound is {expected:?}");
    }
}

/// XLA may divide by multiplying with the rounded reciprocal: a rounding more.
fn share(step: u32, n_steps: NonZeroU32) -> Bounded {
    (Bounded::exact(f64::from(step.min(n_steps.get()))) / Bounded::exact(f64::from(n_steps.get()))).rounded(U)
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

/// [`follow`] for a schedule alone and after a warm-up, as `warmed` says: `NAME_warm_up` starts the schedule after it,
/// and in `NAME_overlapped` the schedule counts its steps too.
fn follow_warmed(name: &str, schedule: &LearningRate, warmed: [bool; 2], reference: impl Fn(u32) -> Bounded) {
    follow(name, &update_with(schedule.clone(), None), &reference);
    let composed = [("warm_up", false), ("overlapped", true)].into_iter().zip(warmed);
    for ((how, overlap), _) in composed.filter(|(_, is_recorded)| *is_recorded) {
        let update = update_with(schedule.clone(), Some(WarmUp { steps: WARM_UP, start: 0.0, overlap }));
        follow(&format!("{name}_{how}"), &update, |step| match step.checked_sub(WARM_UP.get()) {
            None => ramp(0.0, step),
            Some(after) => reference(if overlap { step } else { after }),
        });
    }
}

#[test]
fn a_constant_rate() {
    let schedule = LearningRate::Constant { value: VALUE };
    follow_warmed("constant", &schedule, [true, false], |_| value());
    assert_eq!(ours(&update_with(schedule, None)), recorded("constant"));
}

#[test]
fn exponential_decay() {
    let schedule =
        |staircase| LearningRate::Exponential { value: VALUE, decay_steps: n(41), decay_rate: 0.96, staircase };
    let exponent = |step: u32| (Bounded::exact(f64::from(step)) / Bounded::exact(41.0)).rounded(U);
    let stairs = |step: u32| exponential(Bounded::exact(f64::from(step / 41)));
    follow_warmed("exponential", &schedule(false), [true, false], |step| exponential(exponent(step)));
    follow("exponential_staircase", &update_with(schedule(true), None), stairs);
    let overlapped = update_with(schedule(true), Some(WarmUp { steps: WARM_UP, start: 0.0, overlap: true }));
    follow("exponential_overlapped", &overlapped, |step| if step < 90 { ramp(0.0, step) } else { stairs(step) });
}

/// In f32, 41 · (1/41) and its multiples do not all come out whole; the stairs, halves here, are exact.
#[test]
fn a_staircase_falls_at_its_steps_and_not_before() {
    let schedule = LearningRate::Exponential { value: 1.0, decay_steps: n(41), decay_rate: 0.5, staircase: true };
    for (step, measured) in (0..).zip(ours(&update_with(schedule, None))) {
        check(&format!("step {step}"), measured, Bounded::exact(0.5f64.powi(step / 41)).rounded(FUNCTION));
    }
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
    follow_warmed("cosine", &schedule(0.0), [true, true], |step| rate(step, 0.0));
    follow("cosine_alpha", &update_with(schedule(0.05), None), |step| rate(step, 0.05));
    let from = update_with(schedule(0.0), Some(WarmUp { steps: WARM_UP, start: 0.1, overlap: false }));
    follow("cosine_warm_up_from", &from, |step| if step < 90 { ramp(0.1, step) } else { rate(step - 90, 0.0) });
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
    for (name, power, warmed) in [("polynomial", 2.0, true), ("polynomial_root", 0.5, false)] {
        let schedule = LearningRate::Polynomial { value, decay_steps, end_value: END, power };
        follow_warmed(name, &schedule, [warmed; 2], |step| rate(step, END, power));
    }
    let linear = |end_value| LearningRate::Linear { value, decay_steps, end_value };
    follow_warmed("linear", &linear(END), [true, false], |step| rate(step, END, 1.0));
    let overlapped = update_with(linear(0.0), Some(WarmUp { steps: WARM_UP, start: 0.0, overlap: true }));
    follow("linear_overlapped", &overlapped, |step| if step < 90 { ramp(0.0, step) } else { rate(step, 0.0, 1.0) });
}

/// On the device as on the host, whose rates are torch's (`one_cycle_is_torchs`).
#[test]
fn one_cycle() {
    for (pct_start, anneal_strategy) in
        [(0.3, Anneal::Cos), (0.45, Anneal::Linear), (0.0, Anneal::Cos), (1.0, Anneal::Linear)]
    {
        let (div_factor, final_div_factor) = (25.0, 1e4);
        let schedule = LearningRate::OneCycle {
            value: VALUE,
            decay_steps: DECAY_STEPS,
            pct_start,
            div_factor,
            final_div_factor,
            anneal_strategy,
        };
        // The share has at most four roundings, the angle two more; the wave's error is absolute, and the rates are at most
        // the value.
        let bound = (6.0 * U * std::f64::consts::PI + FUNCTION + 4.0 * U) * VALUE;
        for (step, measured) in (0..).zip(ours(&update_with(schedule.clone(), None))) {
            check(&format!("{schedule:?}, step {step}"), measured, Bounded { value: schedule.at(step), error: bound });
        }
    }
}

#[test]
fn inverse_root() {
    let rate = |numerator: Bounded, step: u32| {
        (numerator / Bounded::exact(f64::from((step + 1).max(90))).sqrt()).rounded(FUNCTION)
    };
    let schedule = |value| LearningRate::InverseSqrt { value, constant_until: WARM_UP, first_step: 1 };
    follow("inverse_sqrt", &update_with(schedule(VALUE), None), |step| rate(value(), step));
    // Such a numerator that the rate starts at the value, where the warm-up ends.
    let scaled = VALUE * 90f64.sqrt();
    for (name, overlap) in [("inverse_sqrt_warm_up", false), ("inverse_sqrt_overlapped", true)] {
        let update = update_with(schedule(scaled), Some(WarmUp { steps: WARM_UP, start: 0.0, overlap }));
        // TensorFlow multiplies with a root in f32: two roundings more.
        let numerator = Bounded::constant(scaled).rounded(2.0 * U);
        follow(name, &update, |step| match step.checked_sub(90) {
            None => ramp(0.0, step),
            Some(after) => rate(numerator, if overlap { step } else { after }),
        });
    }
}

/// From step 90 on, where a warm-up has ended, these rates are constants: bit for bit.
#[test]
fn pieces_are_bit_for_bit() {
    let changes = [(101, 0.1), (251, 0.05), (252, 0.02)].map(|(step, value)| RateChange { step, value }).to_vec();
    let piecewise = LearningRate::Piecewise { value: VALUE, changes };
    let drops =
        [(300, 0.1), (600, 0.01), (800, 0.001)].map(|(step, multiplier)| RateDrop { step, multiplier }).to_vec();
    let resnet = LearningRate::WarmUpStep { value: VALUE, warm_up: 90, drops };
    let warm_up = |overlap| Some(WarmUp { steps: WARM_UP, start: 0.0, overlap });
    let plain = update_with(piecewise.clone(), None);
    assert_eq!(ours(&plain)[..90], recorded("piecewise")[..90]);
    for (name, update) in [
        ("piecewise", plain),
        ("piecewise_warm_up", update_with(piecewise.clone(), warm_up(false))),
        ("piecewise_overlapped", update_with(piecewise, warm_up(true))),
        ("warm_up_step", update_with(resnet, None)),
    ] {
        let (ours, theirs) = (ours(&update), recorded(name));
        assert_eq!(ours[90..], theirs[90..], "{name}");
        let host = (0..N_STEPS).map(|step| update.rate_at(step) as f32).collect::<Vec<_>>();
        assert_eq!(host[90..], theirs[90..], "{name}");
        for (step, (ours, theirs)) in (0..90).zip(ours.into_iter().zip(theirs)).filter(|_| name != "piecewise") {
            check(&format!("{name}, step {step}"), ours, ramp(0.0, step));
            check(&format!("TensorFlow's {name}, step {step}"), theirs, ramp(0.0, step));
        }
    }
}

/// Beyond the recordings, up to a million steps, the device computes what the host does.
#[test]
fn rates_far_out() {
    let far = |schedule: &LearningRate, steps: &[u32], bound: f64| {
        let client = run::client();
        for (step, measured) in steps.iter().zip(rates(client, &update_with(schedule.clone(), None), steps).unwrap()) {
            let expected = schedule.at(*step);
            check(
                &format!("{schedule:?}, step {step}"),
                measured,
                Bounded { value: expected, error: bound * expected },
            );
        }
    };
    far(&LearningRate::Constant { value: VALUE }, &[1 << 30], U);
    // The exponent, which has at most three roundings, times ln 0.96; the base's rounding as often as the exponent; a product.
    let bound = 122.0 * (3.0 * 0.041 + 1.0) * U + FUNCTION + 2.0 * U;
    let schedule = LearningRate::Exponential { value: VALUE, decay_steps: n(41), decay_rate: 0.96, staircase: false };
    far(&schedule, &[1_000, 5_000], bound);
    let schedule = LearningRate::InverseSqrt { value: VALUE, constant_until: WARM_UP, first_step: 1 };
    far(&schedule, &[1_000, 1_000_000], FUNCTION + 4.0 * U);
    let drops = vec![RateDrop { step: 60, multiplier: 0.01 }];
    far(&LearningRate::WarmUpStep { value: VALUE, warm_up: 5, drops }, &[1_000_000], U);
}
