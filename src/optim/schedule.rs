//! The learning rate as a function of the step, computed on the device in f32.
//!
//! All lengths are in steps (updates), and step 0 is the first update.

use super::number;
use crate::graph::Tensor;
use crate::hlo::DType;
use crate::hlo::ops::BinaryOp;
use serde::de::{self, Deserializer, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;

/// A learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LearningRate {
    /// `value`.
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
        /// The steps in which the rate falls by the factor `decay_rate`.
        decay_steps: NonZeroU32,
        /// The factor per `decay_steps` steps.
        #[serde(deserialize_with = "number::positive")]
        decay_rate: f64,
        /// Whether it falls at once every so many steps, or a little at each.
        #[serde(default)]
        staircase: bool,
    },
    /// `value / √max(t, constant_until)`, where `t` is 1 at the first step.
    ///
    /// # Source
    /// With `value: 1` and `constant_until: 10000` the "relative step size" of Shazeer & Stern 2018, `min(0.01, 1/√t)`, and
    /// T5's schedule.
    InverseSqrt {
        /// The numerator.
        #[serde(deserialize_with = "number::not_negative")]
        value: f64,
        /// The step until which the rate does not fall.
        constant_until: NonZeroU32,
    },
    /// From 0 in a straight line to `value` at step `warm_up`, then `value` until the first drop, then
    /// `value · multiplier` of the latest drop passed.
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

/// From `step` on, the rate is `multiplier` times the schedule's value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateDrop {
    /// The first step of the drop.
    pub step: u32,
    /// The factor on the schedule's value (not on what the drop before left).
    #[serde(deserialize_with = "number::not_negative")]
    pub multiplier: f64,
}

/// Drops whose steps ascend: the latest that was passed is the one that counts.
fn ascending<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RateDrop>, D::Error> {
    struct Ascending;
    impl<'de> Visitor<'de> for Ascending {
        type Value = Vec<RateDrop>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of drops")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<RateDrop>, A::Error> {
            let mut drops: Vec<RateDrop> = Vec::new();
            while let Some(drop) = elements.next_element::<RateDrop>()? {
                if let Some(last) = drops.last().filter(|last| last.step >= drop.step) {
                    let found = format!("a drop at step {} after one at step {}", drop.step, last.step);
                    return Err(de::Error::invalid_value(Unexpected::Other(&found), &"ascending steps"));
                }
                drops.push(drop);
            }
            Ok(drops)
        }
    }
    deserializer.deserialize_seq(Ascending)
}

impl Default for LearningRate {
    fn default() -> Self {
        LearningRate::Constant { value: 0.1 }
    }
}

impl LearningRate {
    /// `value` at every step.
    ///
    /// # Errors
    /// In words what a rate may be, where this is none.
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
            LearningRate::InverseSqrt { value, constant_until } => {
                let least = graph.scalar(DType::F32, f64::from(constant_until.get()));
                let t = (step.cast(DType::F32) + 1.0).maximum(&least);
                graph.scalar(DType::F32, *value) / t.sqrt()
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

    /// The rate at `step`, on the host: what [`LearningRate::emit`] emits, in f64.
    pub fn at(&self, step: u32) -> f64 {
        match self {
            LearningRate::Constant { value } => *value,
            LearningRate::Exponential { value, decay_steps, decay_rate, staircase } => {
                let exponent = f64::from(step) / f64::from(decay_steps.get());
                value * decay_rate.powf(if *staircase { exponent.floor() } else { exponent })
            }
            LearningRate::InverseSqrt { value, constant_until } => {
                value / (f64::from(step) + 1.0).max(f64::from(constant_until.get())).sqrt()
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
