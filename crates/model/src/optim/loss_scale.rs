//! Loss scaling: keeps f16 gradients from vanishing below 2^-24, on the device.
//!
//! The loss is multiplied before it is differentiated and the gradients (f32 by then) are divided, so cotangents inside
//! the f16 network are larger and the update is not. The dynamic form, in the order of a step:
//!
//! ```text
//! gradients ← grad(scale · loss) / scale
//! if all gradients are finite:  update;              good ← good + 1; if good = period: scale ← factor · scale, good ← 0
//! else:                         keep all state;      scale ← max(scale / factor, minimum), good ← 0
//! ```
//!
//! Both branches are selects of the training program: the host neither learns of it nor waits. Skipped steps do not
//! count for the learning rate, nor for Adam's correction. bf16 needs no loss scale: it has f32's exponents.
//!
//! Source: Keras' `LossScaleOptimizer` (2^15, ×2 after 2000 finite steps, ÷2 and skip otherwise) and jmp's
//! `DynamicLossScale` (the minimum of 1; a scale that would overflow f32 stays).

use crate::graph::{Graph, Init, Precision, Tensor, VariableInfo};
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::BinaryOp;
use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a loss is scaled. As text: `none`, `static:1024`, `dynamic`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(into = "String")]
pub enum LossScale {
    /// No scaling.
    #[default]
    None,
    /// By a constant. A step with gradients that are not finite is not skipped.
    Static {
        /// The constant.
        scale: f64,
    },
    /// By a scale that grows while gradients are finite, and shrinks, skipping the step, when they are not.
    Dynamic {
        /// The initial scale.
        initial: f64,
        /// Finite steps before it grows.
        period: u32,
        /// The factor by which it grows and shrinks.
        factor: f64,
        /// The smallest scale.
        minimum: f64,
    },
}

impl LossScale {
    /// Keras' dynamic scaling.
    pub const DYNAMIC: LossScale = LossScale::Dynamic { initial: 32768.0, period: 2000, factor: 2.0, minimum: 1.0 };

    /// The default of a network that computes in this precision: dynamic scaling in f16, whose gradients underflow;
    /// none in bf16 and f32.
    pub const fn usual(precision: Precision) -> LossScale {
        match precision {
            Precision::F16 => LossScale::DYNAMIC,
            Precision::F32 | Precision::Bf16 => LossScale::None,
        }
    }

    /// The variable that counts skipped steps.
    pub const N_SKIPPED: &str = "loss_scale/n_skipped";

    /// Declares the scaling's state, under `loss_scale/`. `step` counts calls of the program.
    pub fn begin(&self, graph: &Graph, step: &Tensor) -> Scaling {
        let mut scaling = Scaling { rule: *self, scale: None, n_good: None, n_skipped: None, step: step.clone() };
        match *self {
            LossScale::None => {}
            LossScale::Static { scale } => scaling.scale = Some(graph.scalar(DType::F32, scale)),
            LossScale::Dynamic { initial, .. } => graph.scope().within("loss_scale", |s| {
                let state = |name: &str, dtype: DType, init: Init| {
                    let variable = s.state(name, dtype, [], init);
                    (variable.number, variable.value)
                };
                let scale = state("scale", DType::F32, Init::Constant(initial));
                let n_good = state("n_good", DType::S32, Init::Zeros);
                let n_skipped = state("n_skipped", DType::S32, Init::Zeros);
                scaling.step = step - &n_skipped.1;
                scaling.scale = Some(scale.1.clone());
                (scaling.n_good, scaling.n_skipped) = (Some((scale, n_good)), Some(n_skipped));
            }),
        }
        scaling
    }
}

/// A variable of the scaling: its number and its value before the step.
type State = (usize, Tensor);

/// The scaling of a training program under construction.
#[derive(Debug)]
pub struct Scaling {
    rule: LossScale,
    scale: Option<Tensor>,
    /// The dynamic scale, and the finite steps since its last change.
    n_good: Option<(State, State)>,
    n_skipped: Option<State>,
    step: Tensor,
}

impl Scaling {
    /// Updates before this step: calls of the program minus skipped ones. `s32[]`.
    pub fn step(&self) -> &Tensor {
        &self.step
    }

    /// The loss to differentiate, from the loss to report.
    pub fn scale(&self, loss: &Tensor) -> Tensor {
        match &self.scale {
            Some(scale) => loss * scale,
            None => loss.clone(),
        }
    }

    /// A gradient of the loss, from one of the scaled loss.
    pub fn unscale(&self, gradient: &Tensor) -> Tensor {
        match &self.scale {
            Some(scale) => gradient * &(gradient.graph().scalar(DType::F32, 1.0) / scale),
            None => gradient.clone(),
        }
    }

    /// Called after the updates are emitted: keeps all state if a gradient is not finite, and adjusts the scale. The
    /// state of random number generators (u64) advances either way, so that a repeated step draws new numbers.
    pub fn finish(self, graph: &Graph, gradients: &[(usize, Tensor)]) {
        let LossScale::Dynamic { period, factor, minimum, .. } = self.rule else { return };
        let (Some(((scale_number, scale), (good_number, n_good))), Some((skipped_number, n_skipped))) =
            (self.n_good, self.n_skipped)
        else {
            return;
        };
        let finite = graph.scope().within("loss_scale", |_| all_finite(graph, gradients));
        for (number, variable) in graph.variables().iter().enumerate() {
            if let VariableInfo { dtype, instr, update: Some(update), .. } = variable
                && dtype.is_float()
            {
                let chosen = finite.select(&graph.tensor(*update), &graph.tensor(*instr));
                graph.set_update(number, &chosen);
            }
        }
        graph.scope().within("loss_scale", |_| {
            let zero = graph.scalar(DType::S32, 0.0);
            let one = graph.scalar(DType::S32, 1.0);
            let counted = &n_good + &one;
            let is_time = counted.greater_equal(&graph.scalar(DType::S32, f64::from(period.min(i32::MAX as u32))));
            let larger = &scale * factor;
            let grown = is_time.binary(BinaryOp::And, &larger.is_finite()).select(&larger, &scale);
            let shrunk = (&scale * (1.0 / factor)).maximum(&graph.scalar(DType::F32, minimum));
            graph.set_update(scale_number, &finite.select(&grown, &shrunk));
            graph.set_update(good_number, &finite.select(&is_time.select(&zero, &counted), &zero));
            graph.set_update(skipped_number, &finite.select(&n_skipped, &(&n_skipped + &one)));
        });
    }
}

/// Whether every element of every gradient is finite, `pred[]`. A maximum would not do: it may drop a NaN.
fn all_finite(graph: &Graph, gradients: &[(usize, Tensor)]) -> Tensor {
    let mut any_bad = graph.scalar(DType::Pred, 0.0);
    for (_, gradient) in gradients {
        let axes: Vec<i64> = (0..gradient.rank() as i64).collect();
        let bad = gradient.is_finite().not().reduce(BinaryOp::Or, &axes);
        any_bad = any_bad.binary(BinaryOp::Or, &bad);
    }
    any_bad.not()
}

const EXPECTED: &str = "none, dynamic, or static: and a number above 0 such as static:1024";

/// A text that is not a loss scale.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no loss scale `{0}`: expected {EXPECTED}")]
pub struct UnknownLossScale(pub String);

impl FromStr for LossScale {
    type Err = UnknownLossScale;

    fn from_str(text: &str) -> Result<LossScale, UnknownLossScale> {
        let unknown = || UnknownLossScale(text.to_string());
        match text.split_once(':') {
            None if text == "none" => Ok(LossScale::None),
            None if text == "dynamic" => Ok(LossScale::DYNAMIC),
            Some(("static", number)) => match number.parse::<f64>() {
                // The loss is multiplied by it and gradients by its inverse, both in f32: neither may round to 0.
                Ok(scale) if scale > 0.0 && [scale, 1.0 / scale].iter().all(|&factor| (factor as f32).is_normal()) => {
                    Ok(LossScale::Static { scale })
                }
                Ok(_) | Err(_) => Err(unknown()),
            },
            None | Some(_) => Err(unknown()),
        }
    }
}

impl fmt::Display for LossScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossScale::None => f.write_str("none"),
            LossScale::Static { scale } => write!(f, "static:{scale}"),
            LossScale::Dynamic { .. } => f.write_str("dynamic"),
        }
    }
}

/// Rejected inside the visitor, so that the error points at the value and not at its block.
impl<'de> Deserialize<'de> for LossScale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LossScale, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = LossScale;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<LossScale, E> {
                text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
            // A number alone is a static scale.
            fn visit_f64<E: de::Error>(self, scale: f64) -> Result<LossScale, E> {
                format!("static:{scale}").parse().map_err(|_| E::invalid_value(Unexpected::Float(scale), &self))
            }
            fn visit_u64<E: de::Error>(self, scale: u64) -> Result<LossScale, E> {
                self.visit_f64(scale as f64)
            }
            fn visit_i64<E: de::Error>(self, scale: i64) -> Result<LossScale, E> {
                self.visit_f64(scale as f64)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl From<LossScale> for String {
    fn from(loss_scale: LossScale) -> String {
        loss_scale.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for text in ["none", "static:1024", "static:0.5", "dynamic"] {
            assert_eq!(text.parse::<LossScale>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "Dynamic",
            "static",
            "static:0",
            "static:-1",
            "static:inf",
            "static:nan",
            "static:x",
            "static:1e-60",
            "static:3e38",
        ] {
            let expected = format!(
                "no loss scale `{text}`: expected none, dynamic, or static: and a number above 0 such as static:1024"
            );
            assert_eq!(text.parse::<LossScale>().unwrap_err().to_string(), expected);
        }
    }
}
