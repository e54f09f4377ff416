//! Exponential moving averages of variables, which evaluations, predictions and exports use instead of the variables.
//!
//! ```text
//! decay   ← min(decay, (1 + n) / (10 + n))              with num_updates; n counts this update
//! average ← average − (1 − decay) · (average − variable)   after the update
//! ```
//!
//! An average is state of the training program, `<variable>/average`, f32 whatever the variable's storage, and starts
//! at its variable's initial value. It does not influence training.
//!
//! Source: TensorFlow's `ExponentialMovingAverage`, operation for operation; EfficientNet and MnasNet of its TPU models
//! average the moving statistics of batch norm too, and count the update that has just been made.

use super::number;
use crate::graph::{Graph, Tensor};
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Serialize};

/// The average of variables over steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Average {
    /// The share of the average that each update keeps, above 0 and below 1: it averages over about the last `1 / (1 −
    /// decay)`.
    #[serde(deserialize_with = "number::inner_fraction")]
    pub decay: f64,
    /// Whether the decay starts small, `(1 + n) / (10 + n)` after `n` updates, so that initial values are quickly
    /// forgotten.
    #[serde(default)]
    pub num_updates: bool,
    /// Whether moving statistics of batch norm are averaged in addition to trained variables.
    #[serde(default = "yes")]
    pub moving_statistics: bool,
    /// Whether evaluations during training read averages. `eval` and `predict` do by default.
    #[serde(default = "yes")]
    pub evaluate: bool,
}

fn yes() -> bool {
    true
}

impl Average {
    /// An average with this decay from the first update on, including moving statistics, and evaluated.
    pub fn new(decay: f64) -> Average {
        Average { decay, num_updates: false, moving_statistics: true, evaluate: true }
    }

    /// The name of a variable's average.
    pub fn name_of(variable: &str) -> String {
        format!("{variable}/{LEVEL}")
    }

    /// The variable whose average is named `name`, if it is the name of one.
    pub fn variable_of(name: &str) -> Option<&str> {
        name.strip_suffix(LEVEL)?.strip_suffix('/')
    }

    /// The share of initial values in an average after `n` updates; 1 is all of it.
    pub fn initial_share(&self, n: u64) -> f64 {
        // After this many steps the ramp exceeds any decay below 1 in f32.
        const RAMP: u64 = 1 << 28;
        if !self.num_updates {
            return self.decay.powf(n as f64);
        }
        let mut share = 1.0;
        for count in 1..=n.min(RAMP) {
            let ramp = (1.0 + count as f64) / (10.0 + count as f64);
            if ramp >= self.decay || share == 0.0 {
                return share * self.decay.powf((n - count + 1) as f64);
            }
            share *= ramp;
        }
        share
    }

    /// Emits the averages of the first `n_variables` variables of `graph`, those of its network, after their updates
    /// are set: of trainable variables, and of other floats with updates. `n_updates`, an s32 scalar, counts updates,
    /// including this one.
    ///
    /// # Errors
    /// A decay that is not above 0 and below 1, and a variable that has the name of an average, are errors of the graph.
    #[track_caller]
    pub fn emit(&self, graph: &Graph, n_variables: usize, n_updates: &Tensor) {
        if !number::is_inner_fraction(self.decay) {
            let message = format!("the decay of averages is {}, expected {}", self.decay, number::INNER_FRACTION);
            drop(graph.fail("average", &[n_updates], RuleError::new("average/decay", message)));
            return;
        }
        // As in TensorFlow: the decay is rounded first, and its distance from 1 is then exact.
        let decay = graph.scalar(DType::F32, self.decay);
        let decay = match self.num_updates {
            true => {
                let n = n_updates.cast(DType::F32);
                decay.minimum(&((&n + 1.0) / (&n + 10.0)))
            }
            false => decay,
        };
        let rate = graph.scalar(DType::F32, 1.0) - decay;
        let averaged = graph.variables().into_iter().take(n_variables).filter(|variable| {
            let is_moved = self.moving_statistics && variable.update.is_some();
            variable.dtype.is_float() && (variable.trainable || is_moved)
        });
        for variable in averaged {
            let dtype = if variable.dtype == DType::F64 { DType::F64 } else { DType::F32 };
            let value = graph.tensor(variable.update.unwrap_or(variable.instr)).cast(dtype);
            let (dims, part, init) = (variable.whole_dims(), variable.part, variable.init);
            let (number, moved) = graph.scope().within(&variable.name, |s| {
                let average = s.state_in_parts(LEVEL, dtype, dims, init, part);
                let distance = &average.value - &value;
                (average.number, &average.value - distance * &rate.cast(dtype))
            });
            graph.set_update(number, &moved);
        }
    }
}

/// The last level of an average's name.
const LEVEL: &str = "average";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        assert_eq!(Average::variable_of(&Average::name_of("dense/kernel")), Some("dense/kernel"));
        assert_eq!((Average::variable_of("dense/average_pool"), Average::variable_of("average")), (None, None));
        assert_eq!(Average::variable_of("dense/my_average"), None);
    }

    #[test]
    fn of_initial_values_the_ramp_leaves_little() {
        let plain = Average::new(0.9);
        assert!((plain.initial_share(10) - 0.9f64.powi(10)).abs() < 1e-15);
        let counted = Average { num_updates: true, ..plain };
        // 2/11 · 3/12 · 4/13.
        assert!((counted.initial_share(3) - 24.0 / 1716.0).abs() < 1e-15);
        assert_eq!((plain.initial_share(0), counted.initial_share(0)), (1.0, 1.0));
        assert!(counted.initial_share(u64::MAX) == 0.0);
        // (1 + 8) / (10 + 8) is 1/2: seven ramp factors first, then thirteen halves. About thirty roundings of 2^-53.
        let ramp: f64 = (1..=7).map(|count| (1.0 + f64::from(count)) / (10.0 + f64::from(count))).product();
        let halves = Average { decay: 0.5, ..counted };
        assert!(
            (halves.initial_share(20) / (ramp * 0.5f64.powi(13)) - 1.0).abs() < 1e-14,
            "{}",
            halves.initial_share(20)
        );
        let slow = Average { decay: 0.9999, ..counted };
        assert!(slow.initial_share(100) < 1e-6, "{}", slow.initial_share(100));
    }
}
