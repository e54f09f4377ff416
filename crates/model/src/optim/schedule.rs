//! The learning rate as a function of the step, computed on the device in f32.
//!
//! All lengths are in steps (updates), and step 0 is the first update.

use super::number;
use crate::graph::Tensor;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use serde::de::{self, Deserializer, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// A learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LearningRate {
    /// The rate `value` at every step.
    Constant {
        /// The rate.
        #[serde(deserialize_with = "number::not_negative")]
        value: f64,
    },
    /// `value · decay_rate^(step / decay_steps)`; with `staircase` the exponent is rounded down.
    ///
    /// # Source
    /// Keras' `ExponentialDecay(initial_learning_rate, decay_steps, decay_rate, staircase)`, in f32 as there. Keras
    /// rounds the quotient of two f32 down, here integers are divided: below step 2^24 both give the same, see the test.
    Exponential {
        /// The rate at step 0.
        #[serde(deserialize_with = "number::not_negative")]
        value: f64,
        /// The number of steps in which the rate falls by the factor `decay_rate`.
        decay_steps: NonZeroU32,
        /// The factor per `decay_steps` steps.
        #[serde(deserialize_with = "number::positive")]
        decay_rate: f64,
        /// Whether it falls every `decay_steps` steps at once, instead of a little at each step.
        #[serde(default)]
        staircase: bool,
    },
    /// `value · ((1 − alpha) · ½(1 + cos(π·f)) + alpha)`, where `f` is `min(step, decay_steps) / decay_steps`.
    ///
    /// # Source
    /// Loshchilov & Hutter 2017, without restarts; Keras' `CosineDecay`, operation for operation.
    Cosine {
        /// The rate at step 0.
        #[serde(deserialize_with = "number::not_negative")]
        value: f64,
        /// The step from which on the rate is `alpha · value`.
        decay_steps: NonZeroU32,
        /// The share of the rate that remains, from 0 to 1.
        #[serde(default, deserialize_with = "number::share")]
        alpha: f64,
    },
    /// `(value − end_value) · r^power + end_value`, where the remainder `r` is `1 − min(step, decay_steps) /
    /// decay_steps`.
    ///
    /// # Source
    /// Keras' `PolynomialDecay`. LARS' recipes have a power of 2. The remainder is computed without cancellation.
    Polynomial {
        /// The rate at step 0.
        #[serde(deserialize_with = "number::not_negative")]
        value: f64,
        /// The step from which on the rate is `end_value`.
        decay_steps: NonZeroU32,
        /// The final rate.
        #[serde(default, deserialize_with = "number::not_negative")]
        end_value: f64,
        /// The power.
        #[serde(deserialize_with = "number::positive")]
        power: f64,
    },
    /// Linear from `value` to `end_value`: [`LearningRate::Polynomial`] with a power of 1.
    ///
    /// # Source
    /// BERT's schedule after its warm-up.
    Linear {
        /// The rate at step 0.
        #[serde(deserialize_with = "number::not_negative")]
        value: f64,
        /// The step from which on the rate is `end_value`.
        decay_steps: NonZeroU32,
        /// The final rate.
        #[serde(default, deserialize_with = "number::not_negative")]
        end_value: f64,
    },
    /// `value`, and from the step of each change on, that change's value.
    ///
    /// # Source
    /// Keras' `PiecewiseConstantDecay`, whose boundary is the last step of a piece and not the first of the next: a change
    /// at step 101 is its boundary of 100.
    Piecewise {
        /// The initial rate.
        #[serde(deserialize_with = "number::not_negative")]
        value: f64,
        /// The later rates, in ascending order of steps.
        #[serde(deserialize_with = "ascending")]
        changes: Vec<RateChange>,
    },
    /// `value / √max(t, constant_until)`, where `t` is `first_step` at the first step, and counts steps.
    ///
    /// # Source
    /// With `value: 1` and `constant_until: 10000` it is T5's schedule: `truncated_rsqrt` in Mesh TensorFlow's
    /// `learning_rate_schedules.py`, `rsqrt(max(step, warmup_steps))`, whose first step is 0. With `first_step: 1` it
    /// is the "relative step size" of Shazeer & Stern 2018, `min(0.01, 1/√t)`, the default of Mesh TensorFlow's
    /// Adafactor.
    InverseSqrt {
        /// The numerator.
        #[serde(deserialize_with = "number::not_negative")]
        value: f64,
        /// The step until which the rate does not fall.
        constant_until: NonZeroU32,
        /// The number of the first step. Default 0, as elsewhere.
        #[serde(default)]
        first_step: u32,
    },
    /// One cycle: from `value / div_factor` up to `value` in the share `pct_start` of the steps, and from there down to
    /// `value / (div_factor · final_div_factor)` at the last, step `decay_steps − 1`.
    ///
    /// # Source
    /// Smith & Topin 2018; torch's `OneCycleLR(max_lr, total_steps, pct_start, anneal_strategy, div_factor,
    /// final_div_factor)`, whose peak is at step `pct_start · total_steps − 1`. It does not cycle the momentum.
    OneCycle {
        /// The highest rate.
        #[serde(deserialize_with = "number::not_negative")]
        value: f64,
        /// The number of steps.
        #[serde(deserialize_with = "several")]
        decay_steps: NonZeroU32,
        /// The share of the steps in which it rises.
        #[serde(default = "three_tenths", deserialize_with = "number::share")]
        pct_start: f64,
        /// The highest rate over the first.
        #[serde(default = "twenty_five", deserialize_with = "number::positive")]
        div_factor: f64,
        /// The first rate over the last.
        #[serde(default = "ten_thousand", deserialize_with = "number::positive")]
        final_div_factor: f64,
        /// The form of both slopes.
        #[serde(default)]
        anneal_strategy: Anneal,
    },
    /// Linear from 0 to `value` at step `warm_up`, then `value` until the first drop, then `value · multiplier` of the
    /// latest drop.
    ///
    /// # Source
    /// `learning_rate_schedule` of `resnet_main.py` of TensorFlow's TPU models; see [`LearningRate::resnet`].
    WarmUpStep {
        /// The rate after the warm-up.
        #[serde(deserialize_with = "number::not_negative")]
        value: f64,
        /// Steps of the warm-up; 0 is none.
        warm_up: u32,
        /// Multipliers from given steps on, in ascending order.
        #[serde(default, deserialize_with = "ascending")]
        drops: Vec<RateDrop>,
    },
}

/// The form of a slope, by torch's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Anneal {
    /// Half of a cosine's wave.
    #[default]
    Cos,
    /// A line.
    Linear,
}

fn three_tenths() -> f64 {
    0.3
}

fn twenty_five() -> f64 {
    25.0
}

fn ten_thousand() -> f64 {
    1e4
}

/// At least two steps: the first and the last.
fn several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NonZeroU32, D::Error> {
    let steps = NonZeroU32::deserialize(deserializer)?;
    match steps.get() {
        1 => Err(de::Error::invalid_value(Unexpected::Unsigned(1), &"at least 2 steps: the first and the last")),
        _ => Ok(steps),
    }
}

/// The slopes of [`LearningRate::OneCycle`].
struct Cycle {
    /// The rates at the first step, at the peak, and at the last step.
    rates: [f64; 3],
    /// The step of the peak, at least 0, and the last step.
    peak: f64,
    last: f64,
}

impl Cycle {
    fn new(value: f64, decay_steps: NonZeroU32, pct_start: f64, div_factor: f64, final_div_factor: f64) -> Cycle {
        let (first, last) = (value / div_factor, f64::from(decay_steps.get() - 1));
        let peak = (pct_start * f64::from(decay_steps.get()) - 1.0).clamp(0.0, last);
        Cycle { rates: [first, value, first / final_div_factor], peak, last }
    }
}

/// A constant rate.
impl From<f64> for LearningRate {
    fn from(value: f64) -> LearningRate {
        LearningRate::Constant { value }
    }
}

/// From `step` on, the rate is `multiplier` times the schedule's value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateDrop {
    /// The first step of the drop.
    pub step: u32,
    /// The factor on the schedule's value (not on the value after the previous drop).
    #[serde(deserialize_with = "number::not_negative")]
    pub multiplier: f64,
}

/// From `step` on, the rate is `value`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateChange {
    /// The first step of the value.
    pub step: u32,
    /// The rate.
    #[serde(deserialize_with = "number::not_negative")]
    pub value: f64,
}

/// A change of the rate at a step.
trait AtStep {
    const WHAT: &'static str;
    fn step(&self) -> u32;
}

impl AtStep for RateDrop {
    const WHAT: &'static str = "drop";
    fn step(&self) -> u32 {
        self.step
    }
}

impl AtStep for RateChange {
    const WHAT: &'static str = "change";
    fn step(&self) -> u32 {
        self.step
    }
}

/// Drops or changes in ascending order of steps, so that the latest one applies.
fn ascending<'de, D: Deserializer<'de>, T: AtStep + Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Ascending<T>(PhantomData<T>);
    impl<'de, T: AtStep + Deserialize<'de>> Visitor<'de> for Ascending<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of {}s", T::WHAT)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let mut drops: Vec<T> = Vec::new();
            while let Some(drop) = elements.next_element::<T>()? {
                if let Some(last) = drops.last().filter(|last| last.step() >= drop.step()) {
                    let measured = format!("a {} at step {} after one at step {}", T::WHAT, drop.step(), last.step());
                    return Err(de::Error::invalid_value(Unexpected::Other(&measured), &"ascending steps"));
                }
                drops.push(drop);
            }
            Ok(drops)
        }
    }
    deserializer.deserialize_seq(Ascending(PhantomData))
}

impl Default for LearningRate {
    fn default() -> Self {
        LearningRate::Constant { value: 0.1 }
    }
}

impl LearningRate {
    /// A constant rate.
    ///
    /// # Errors
    /// An invalid rate; the text describes valid ones.
    pub fn constant(value: f64) -> Result<LearningRate, &'static str> {
        match number::is_not_negative(value) {
            true => Ok(LearningRate::Constant { value }),
            false => Err(number::NOT_NEGATIVE),
        }
    }

    /// The ResNet-50 recipe: 0.1 per 256 examples of the batch, five epochs of warm-up, times 0.1, 0.01 and 0.001 from
    /// epochs 30, 60 and 80 of 90 on. Epochs scale with `epochs / 90`, rounded down.
    pub fn resnet(batch: u32, steps_per_epoch: u32, epochs: u32) -> LearningRate {
        let start = |epoch: u32| epoch * epochs / 90 * steps_per_epoch;
        LearningRate::WarmUpStep {
            value: 0.1 * f64::from(batch) / 256.0,
            warm_up: start(5),
            drops: [(0.1, 30), (0.01, 60), (0.001, 80)]
                .map(|(multiplier, epoch)| RateDrop { step: start(epoch), multiplier })
                .to_vec(),
        }
    }

    /// The rate at `step`, an s32 scalar, as an f32 scalar. Steps are exact in f32 up to 2^24.
    #[track_caller]
    pub fn emit(&self, step: &Tensor) -> Tensor {
        let graph = step.graph();
        match self {
            LearningRate::Constant { value } => graph.scalar(DType::F32, *value),
            LearningRate::Exponential { value, decay_steps, decay_rate, staircase } => {
                let decay_steps = f64::from(decay_steps.get());
                // The staircase divides integers: XLA may multiply by an f32 reciprocal, and the product may fall just
                // short of a whole number.
                let exponent = match staircase {
                    true => step.binary_scalar(BinaryOp::Divide, decay_steps).cast(DType::F32),
                    false => step.cast(DType::F32) / decay_steps,
                };
                graph.scalar(DType::F32, *decay_rate).power(&exponent) * *value
            }
            LearningRate::Cosine { value, decay_steps, alpha } => {
                let decay_steps = f64::from(decay_steps.get());
                let passed = step.cast(DType::F32).binary_scalar(BinaryOp::Minimum, decay_steps) / decay_steps;
                let half_wave = ((passed * PI).unary(UnaryOp::Cos) + 1.0) * 0.5;
                (half_wave * (1.0 - alpha) + *alpha) * *value
            }
            LearningRate::Polynomial { value, decay_steps, end_value, power } => {
                let remaining = remaining(step, *decay_steps);
                remaining.power(&graph.scalar(DType::F32, *power)) * (value - end_value) + *end_value
            }
            LearningRate::Linear { value, decay_steps, end_value } => {
                remaining(step, *decay_steps) * (value - end_value) + *end_value
            }
            LearningRate::Piecewise { value, changes } => {
                let constant = |value: f64| graph.scalar(DType::F32, value);
                changes.iter().fold(constant(*value), |rate, change| {
                    let step_of_change = f64::from(change.step.min(i32::MAX as u32));
                    step.less(&graph.scalar(DType::S32, step_of_change)).select(&rate, &constant(change.value))
                })
            }
            LearningRate::InverseSqrt { value, constant_until, first_step } => {
                let least = graph.scalar(DType::F32, f64::from(constant_until.get()));
                let step = step.cast(DType::F32);
                let t = if *first_step == 0 { step } else { step + f64::from(*first_step) }.maximum(&least);
                graph.scalar(DType::F32, *value) / t.sqrt()
            }
            LearningRate::OneCycle { value, decay_steps, pct_start, div_factor, final_div_factor, anneal_strategy } => {
                let Cycle { rates: [first, peak_rate, last_rate], peak, last } =
                    Cycle::new(*value, *decay_steps, *pct_start, *div_factor, *final_div_factor);
                let step = step.cast(DType::F32).binary_scalar(BinaryOp::Minimum, last);
                // From the end, where the rate is the smaller of the two, so that it is exact.
                let slope = |share: Tensor, from: f64, to: f64| {
                    let share = match anneal_strategy {
                        Anneal::Cos => ((share * PI).unary(UnaryOp::Cos) + 1.0) * 0.5,
                        Anneal::Linear => share * -1.0 + 1.0,
                    };
                    share * (from - to) + to
                };
                let down = || slope((&step - peak) / (last - peak), *value, last_rate);
                let up = || slope(&step / peak, first, peak_rate);
                match (peak > 0.0, peak < last) {
                    (true, true) => step.greater(&graph.scalar(DType::F32, peak)).select(&down(), &up()),
                    (true, false) => up(),
                    (false, _) => down(),
                }
            }
            LearningRate::WarmUpStep { value, warm_up, drops } => {
                let constant = |value: f64| graph.scalar(DType::F32, value);
                let before = |until: u32| step.less(&graph.scalar(DType::S32, f64::from(until.min(i32::MAX as u32))));
                let mut rate = constant(*value);
                if *warm_up > 0 {
                    let ramp = step.cast(DType::F32) * (value / f64::from(*warm_up));
                    rate = before(*warm_up).select(&ramp, &rate);
                }
                for drop in drops {
                    rate = before(drop.step).select(&rate, &constant(value * drop.multiplier));
                }
                rate
            }
        }
    }

    /// The part of the schedule that contains `step`, by the key that begins it: `decay`, then `end`; `value`, then
    /// `changes[0]`.
    pub fn phase_at(&self, step: u32) -> String {
        let latest = |steps: &mut dyn DoubleEndedIterator<Item = u32>, n: usize, key: &str| {
            let n_ahead = steps.rev().take_while(|&begin| begin > step).count();
            (n > n_ahead).then(|| format!("{key}[{}]", n - n_ahead - 1))
        };
        match self {
            LearningRate::Constant { .. } => "value".to_string(),
            LearningRate::Exponential { decay_steps, staircase: true, .. } => format!("stair {}", step / *decay_steps),
            LearningRate::Exponential { .. } => "decay".to_string(),
            LearningRate::Cosine { decay_steps, .. }
            | LearningRate::Polynomial { decay_steps, .. }
            | LearningRate::Linear { decay_steps, .. } => {
                if step < decay_steps.get() { "decay" } else { "end" }.to_string()
            }
            LearningRate::Piecewise { changes, .. } => {
                let mut steps = changes.iter().map(|change| change.step);
                latest(&mut steps, changes.len(), "changes").unwrap_or("value".to_string())
            }
            LearningRate::InverseSqrt { constant_until, first_step, .. } => {
                let is_constant = step.saturating_add(*first_step) <= constant_until.get();
                if is_constant { "constant" } else { "decay" }.to_string()
            }
            &LearningRate::OneCycle { value, decay_steps, pct_start, div_factor, final_div_factor, .. } => {
                let cycle = Cycle::new(value, decay_steps, pct_start, div_factor, final_div_factor);
                match f64::from(step) {
                    step if step > cycle.last => "end",
                    step if step > cycle.peak => "fall",
                    _ => "rise",
                }
                .to_string()
            }
            LearningRate::WarmUpStep { warm_up, drops, .. } => {
                let before = if step < *warm_up { "warm_up" } else { "value" };
                latest(&mut drops.iter().map(|drop| drop.step), drops.len(), "drops").unwrap_or(before.to_string())
            }
        }
    }

    /// The rate at `step` on the host: the function of [`LearningRate::emit`] in f64.
    pub fn at(&self, step: u32) -> f64 {
        match self {
            LearningRate::Constant { value } => *value,
            LearningRate::Exponential { value, decay_steps, decay_rate, staircase } => {
                let exponent = f64::from(step) / f64::from(decay_steps.get());
                value * decay_rate.powf(if *staircase { exponent.floor() } else { exponent })
            }
            LearningRate::Cosine { value, decay_steps, alpha } => {
                let passed = 1.0 - remaining_at(step, *decay_steps);
                value * ((1.0 - alpha) * 0.5 * (1.0 + (PI * passed).cos()) + alpha)
            }
            LearningRate::Polynomial { value, decay_steps, end_value, power } => {
                (value - end_value) * remaining_at(step, *decay_steps).powf(*power) + end_value
            }
            LearningRate::Linear { value, decay_steps, end_value } => {
                (value - end_value) * remaining_at(step, *decay_steps) + end_value
            }
            LearningRate::Piecewise { value, changes } => {
                changes.iter().rev().find(|change| step >= change.step).map_or(*value, |change| change.value)
            }
            LearningRate::InverseSqrt { value, constant_until, first_step } => {
                value / (f64::from(step) + f64::from(*first_step)).max(f64::from(constant_until.get())).sqrt()
            }
            &LearningRate::OneCycle {
                value,
                decay_steps,
                pct_start,
                div_factor,
                final_div_factor,
                anneal_strategy,
            } => {
                let Cycle { rates, peak, last } =
                    Cycle::new(value, decay_steps, pct_start, div_factor, final_div_factor);
                let step = f64::from(step).min(last);
                let (share, from, to) = match step > peak || peak == 0.0 {
                    true => ((step - peak) / (last - peak), rates[1], rates[2]),
                    false => (step / peak, rates[0], rates[1]),
                };
                match anneal_strategy {
                    Anneal::Cos => 0.5 * (1.0 + (PI * share).cos()) * (from - to) + to,
                    Anneal::Linear => (1.0 - share) * (from - to) + to,
                }
            }
            LearningRate::WarmUpStep { value, warm_up, drops } => {
                let passed = drops.iter().rev().find(|drop| step >= drop.step);
                match passed {
                    Some(drop) => value * drop.multiplier,
                    None if step < *warm_up => value * f64::from(step) / f64::from(*warm_up),
                    None => *value,
                }
            }
        }
    }
}

/// `1 − min(step, decay_steps) / decay_steps`, computed from the remaining steps.
#[track_caller]
fn remaining(step: &Tensor, decay_steps: NonZeroU32) -> Tensor {
    let n = f64::from(decay_steps.get().min(i32::MAX as u32));
    let left = step.graph().scalar(DType::S32, n) - step.binary_scalar(BinaryOp::Minimum, n);
    left.cast(DType::F32) / n
}

fn remaining_at(step: u32, decay_steps: NonZeroU32) -> f64 {
    f64::from(decay_steps.get() - step.min(decay_steps.get())) / f64::from(decay_steps.get())
}

/// A linear rise of the learning rate to the start of a schedule.
///
/// Before step `steps` the rate is `start + (target − start) · step / steps`, where `target` is the schedule's rate at its
/// step 0.
///
/// # Source
/// Keras' `CosineDecay(start, warmup_target=…, warmup_steps=steps)`; overlapping, BERT's `optimization.py` and
/// EfficientNet's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmUp {
    /// The number of steps.
    pub steps: NonZeroU32,
    /// The rate at step 0. Default 0.
    #[serde(default, deserialize_with = "number::not_negative")]
    pub start: f64,
    /// Whether the schedule counts these steps too: it then continues at its step `steps` instead of its step 0.
    /// Default false.
    #[serde(default)]
    pub overlap: bool,
}

impl WarmUp {
    /// The rate at `step`, an s32 scalar, as an f32 scalar: the warm-up, then `schedule`.
    #[track_caller]
    pub fn emit(&self, schedule: &LearningRate, step: &Tensor) -> Tensor {
        let steps = f64::from(self.steps.get().min(i32::MAX as u32));
        let ramp = step.cast(DType::F32) / steps * (schedule.at(0) - self.start) + self.start;
        let after = match self.overlap {
            true => schedule.emit(step),
            false => schedule.emit(&step.binary_scalar(BinaryOp::Subtract, steps)),
        };
        step.less(&step.graph().scalar(DType::S32, steps)).select(&ramp, &after)
    }

    /// The part of the schedule that contains `step`: `warm_up`, then [`LearningRate::phase_at`].
    pub fn phase_at(&self, schedule: &LearningRate, step: u32) -> String {
        match step.checked_sub(self.steps.get()) {
            None => "warm_up".to_string(),
            Some(after) => schedule.phase_at(if self.overlap { step } else { after }),
        }
    }

    /// The rate at `step`, on the host, in f64.
    pub fn at(&self, schedule: &LearningRate, step: u32) -> f64 {
        let steps = self.steps.get();
        if step < steps {
            return self.start + (schedule.at(0) - self.start) * f64::from(step) / f64::from(steps);
        }
        schedule.at(if self.overlap { step } else { step - steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resnet_recipe_warms_up_and_drops() {
        let schedule = LearningRate::resnet(1024, 1251, 90);
        let at = |epoch: u32| schedule.at(epoch * 1251);
        assert_eq!((at(0), at(5), at(29)), (0.0, 0.4, 0.4));
        assert_eq!((at(30), at(60), at(80), at(90)), (0.4 * 0.1, 0.4 * 0.01, 0.4 * 0.001, 0.4 * 0.001));
        assert_eq!(schedule.at(5 * 1251 / 2), 0.4 * 3127.0 / 6255.0);
    }

    #[test]
    fn phases_are_named_by_the_keys_that_begin_them() {
        let read = |text: &str| serde_yaml::from_str::<LearningRate>(text).unwrap();
        let phases = |rate: &LearningRate, steps: [u32; 4]| steps.map(|step| rate.phase_at(step));
        let pieces = read("!piecewise {value: 1, changes: [{step: 10, value: 2}, {step: 20, value: 3}]}");
        assert_eq!(phases(&pieces, [9, 10, 19, 20]), ["value", "changes[0]", "changes[0]", "changes[1]"]);
        let resnet = LearningRate::resnet(1024, 1251, 90);
        let at = [5 * 1251 - 1, 5 * 1251, 30 * 1251, 80 * 1251];
        assert_eq!(phases(&resnet, at), ["warm_up", "value", "drops[0]", "drops[2]"]);
        let stairs = read("!exponential {value: 1, decay_steps: 10, decay_rate: 0.5, staircase: true}");
        assert_eq!(phases(&stairs, [0, 9, 10, 25]), ["stair 0", "stair 0", "stair 1", "stair 2"]);
        let line = read("!linear {value: 1, decay_steps: 10}");
        assert_eq!(phases(&line, [0, 9, 10, 11]), ["decay", "decay", "end", "end"]);
        let root = read("!inverse_sqrt {value: 1, constant_until: 10, first_step: 1}");
        assert_eq!(phases(&root, [0, 9, 10, 11]), ["constant", "constant", "decay", "decay"]);
        let warm_up = |overlap| WarmUp { steps: NonZeroU32::new(5).unwrap(), start: 0.0, overlap };
        let of_line = |overlap| [4, 5, 10, 15].map(|step| warm_up(overlap).phase_at(&line, step));
        assert_eq!(of_line(false), ["warm_up", "decay", "decay", "end"]);
        assert_eq!(of_line(true), ["warm_up", "decay", "end", "end"]);
    }

    /// Torch's class gives these in ten steps: with its defaults, and along lines.
    #[test]
    fn one_cycle_is_torchs() {
        let read = |text: &str| serde_yaml::from_str::<LearningRate>(text).unwrap();
        let waves = read("!one_cycle {value: 0.3, decay_steps: 10}");
        let lines = read(
            "!one_cycle {value: 0.3, decay_steps: 10, pct_start: 0.45, div_factor: 10, final_div_factor: 100, \
             anneal_strategy: linear}",
        );
        let [of_waves, of_lines] = [
            [0.012, 0.156, 0.3, 0.28514539, 0.243523696, 0.183378607, 0.116622593, 0.056477504, 0.01485581, 1.2e-06],
            [
                0.03,
                0.107142857,
                0.184285714,
                0.261428571,
                0.272754545,
                0.218263636,
                0.163772727,
                0.109281818,
                0.054790909,
                0.0003,
            ],
        ];
        for (rate, expected) in [(&waves, of_waves), (&lines, of_lines)] {
            for (step, expected) in (0..).zip(expected) {
                assert!((rate.at(step) - expected).abs() < 1e-9, "{rate:?} at {step}: {}", rate.at(step));
            }
            assert_eq!(rate.at(1000), rate.at(9), "torch refuses further steps");
        }
        let phases = [0, 2, 3, 9, 10].map(|step| waves.phase_at(step));
        assert_eq!(phases, ["rise", "rise", "fall", "fall", "end"]);
        // Without a rise, and without a fall.
        let edge = |share: f64| read(&format!("!one_cycle {{value: 1, decay_steps: 5, pct_start: {share}}}"));
        assert_eq!((edge(0.0).at(0), edge(1.0).at(4)), (1.0, 1.0));
        for wrong in [
            "decay_steps: 1",
            "decay_steps: 9, pct_start: 1.5",
            "decay_steps: 9, div_factor: 0",
            "decay_steps: 9, anneal_strategy: sine",
        ] {
            let text = format!("!one_cycle {{value: 1, {wrong}}}");
            let error = serde_yaml::from_str::<LearningRate>(&text).unwrap_err().to_string();
            let expected = match wrong {
                "decay_steps: 1" => "at least 2 steps: the first and the last",
                wrong if wrong.ends_with("1.5") => "a number from 0 to 1",
                wrong if wrong.ends_with('0') => "a finite number above 0",
                _ => "unknown variant `sine`, expected `cos` or `linear`",
            };
            assert!(error.contains(expected), "{error}");
        }
    }

    /// Step 10000 is the last at which T5's rate is 0.01: `rsqrt(max(10000, 10000))`. The paper's is 1/√10001 there.
    #[test]
    fn the_inverse_root_counts_as_t5_does() {
        let read = |text: &str| serde_yaml::from_str::<LearningRate>(text).unwrap();
        let t5 = read("!inverse_sqrt {value: 1, constant_until: 10000}");
        assert_eq!([t5.at(0), t5.at(9_999), t5.at(10_000)], [0.01; 3]);
        assert_eq!(t5.at(40_000), 0.005);
        let paper = read("!inverse_sqrt {value: 1, constant_until: 10000, first_step: 1}");
        assert_eq!([paper.at(9_999), paper.at(10_000), paper.at(39_999)], [0.01, 1.0 / 10_001f64.sqrt(), 0.005]);
        // Checkpoints store `first_step`, so a run that began before the key existed reports the change.
        assert!(serde_yaml::to_string(&t5).unwrap().contains("first_step: 0"));
    }

    #[test]
    fn its_epochs_scale_with_the_length_of_training() {
        let expected = LearningRate::WarmUpStep {
            value: 0.1,
            warm_up: 0,
            drops: [(50, 0.1), (100, 0.01), (130, 0.001)]
                .map(|(step, multiplier)| RateDrop { step, multiplier })
                .to_vec(),
        };
        assert_eq!(LearningRate::resnet(256, 10, 15), expected);
    }

    /// Keras floors the quotient of two f32. Below 2^24 both are exact, and their quotient, which misses a whole number
    /// `q` by at least `1 / decay_steps > q · 2^-24`, does not round up to it: half an ulp below `q` is at most that.
    #[test]
    fn the_staircase_is_keras() {
        for decay_steps in [3u32, 7, 41, 1000, 4095, 99_991] {
            let stairs = (1..(1 << 24) / decay_steps).step_by(7);
            for step in stairs.flat_map(|stair| [stair * decay_steps - 1, stair * decay_steps]) {
                assert_eq!((step as f32 / decay_steps as f32).floor(), (step / decay_steps) as f32, "{step}");
            }
        }
    }

    #[test]
    fn the_serde_form_round_trips_and_refuses_unknown_keys() {
        let schedule = LearningRate::resnet(256, 100, 90);
        let yaml = serde_yaml::to_string(&schedule).unwrap();
        assert!(yaml.starts_with("!warm_up_step"), "{yaml}");
        assert_eq!(serde_yaml::from_str::<LearningRate>(&yaml).unwrap(), schedule);
        let error = serde_yaml::from_str::<LearningRate>("!constant {value: 0.1, velue: 1}").unwrap_err();
        assert_eq!(error.to_string(), "unknown field `velue`, expected `value` at line 1 column 24");
    }
}
