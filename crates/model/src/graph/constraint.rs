//! Constraints: what the new value of a variable is projected to after each update.
//!
//! An optimizer's storage of a variable applies it, in f32, before the value is rounded to what the variable is stored
//! in; so slots, averages and skipped steps see the projected value alone.

use super::{Graph, Tensor, VariableShard};
use bf16scope_hlo::ops::RuleError;
use serde::Serialize;

/// A projection of a variable's value.
///
/// # Source
/// Keras' `constraints`, operation for operation, with its epsilon of 1e-7; `clip` is the weight clipping of Arjovsky et
/// al. 2017.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Constraint {
    /// Negative numbers become 0.
    NonNeg,
    /// Every element is between `-value` and `value`.
    Clip {
        /// The bound.
        value: f64,
    },
    /// Norms along the axes become 1.
    UnitNorm {
        /// The axes, negative ones from the end: of a dense kernel 0, those of a unit's inputs.
        axis: Vec<i64>,
    },
    /// Norms along the axes are at most `max_value`.
    MaxNorm {
        /// The largest norm.
        max_value: f64,
        /// The axes.
        axis: Vec<i64>,
    },
    /// Norms along the axes move towards the range by `rate`; 1 is all the way.
    MinMaxNorm {
        /// The smallest norm.
        min_value: f64,
        /// The largest norm.
        max_value: f64,
        /// The share of the way.
        rate: f64,
        /// The axes.
        axis: Vec<i64>,
    },
}

/// Keras' `epsilon()`.
const EPSILON: f64 = 1e-7;

impl Constraint {
    /// The axes of its norms.
    fn axes(&self) -> &[i64] {
        match self {
            Constraint::NonNeg | Constraint::Clip { .. } => &[],
            Constraint::UnitNorm { axis } | Constraint::MaxNorm { axis, .. } | Constraint::MinMaxNorm { axis, .. } => {
                axis
            }
        }
    }

    /// The projection of `w`, a whole variable or a shard of one.
    #[track_caller]
    pub(crate) fn project(&self, w: &Tensor, part: Option<VariableShard>) -> Tensor {
        let g = w.graph();
        let full = |value: f64| g.full(w.dtype(), &w.dims(), value);
        let (least, most, rate) = match self {
            Constraint::NonNeg => return w.maximum(&full(0.0)),
            Constraint::Clip { value } => return w.maximum(&full(-value)).minimum(&full(*value)),
            Constraint::UnitNorm { .. } => (1.0, 1.0, 1.0),
            Constraint::MaxNorm { max_value, .. } => (0.0, *max_value, 1.0),
            Constraint::MinMaxNorm { min_value, max_value, rate, .. } => (*min_value, *max_value, *rate),
        };
        let axes = w.axes(self.axes());
        let rest: Vec<i64> = (0..w.rank() as i64).filter(|axis| !axes.contains(axis)).collect();
        let squares = match part.filter(|part| axes.contains(&(part.axis as i64))) {
            None => (w * w).sum(&axes),
            Some(part) => (w * w).without_padding(part).sum(&axes).sum_over_replicas(),
        };
        let norms = squares.sqrt();
        let bound = |value: f64| g.full(w.dtype(), &norms.dims(), value);
        let factor = match least == most {
            true => bound(least) / (&norms + EPSILON),
            false => {
                let within = norms.maximum(&bound(least)).minimum(&bound(most));
                let wanted = if rate == 1.0 { within } else { within * rate + &norms * (1.0 - rate) };
                wanted / (&norms + EPSILON)
            }
        };
        w * factor.broadcast_in_dim(&w.dims(), &rest)
    }
}

impl Graph {
    /// Has every update of variable number `variable` project its new value. A later call replaces an earlier one.
    ///
    /// # Errors
    /// Axes that the variable does not have, or one of them twice.
    #[track_caller]
    pub fn constrain(&self, variable: usize, constraint: Constraint) {
        let info = self.variable(variable);
        let rank = info.dims.len() as i64;
        let mut axes: Vec<i64> =
            constraint.axes().iter().map(|&axis| if axis < 0 { axis + rank } else { axis }).collect();
        axes.sort_unstable();
        let is_twice = axes.windows(2).any(|pair| pair[0] == pair[1]);
        if is_twice || axes.iter().any(|axis| !(0..rank).contains(axis)) {
            let shape = self.tensor(info.instr).shape();
            let named = constraint.axes();
            let message =
                format!("the norm is along the axes {named:?}, expected axes of {} {shape}, each once", info.name);
            let help = "count them from 0, without a batch: of a dense kernel 0, of an image's kernel [0, 1, 2]";
            let error = RuleError::new("constraint/axes", message).with_help(help);
            self.fail("constraint", &[], error);
            return;
        }
        self.inner.constraints.borrow_mut().insert(variable, constraint);
    }

    /// Whether updates of a variable, by number, are projected.
    pub fn is_constrained(&self, variable: usize) -> bool {
        self.inner.constraints.borrow().contains_key(&variable)
    }

    /// The constraint of a variable, by number.
    pub(crate) fn constraint(&self, variable: usize) -> Option<Constraint> {
        self.inner.constraints.borrow().get(&variable).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Init;
    use bf16scope_hlo::DType;

    #[test]
    fn a_norm_along_an_axis_that_is_not_there_is_refused() {
        for axis in [vec![2], vec![0, -2], vec![-3]] {
            let graph = Graph::training("g");
            let w = graph.scope().variable("w", DType::F32, [2, 3], Init::Ones);
            graph.constrain(w.number, Constraint::UnitNorm { axis: axis.clone() });
            let error = graph.finish(&[]).unwrap_err().to_string();
            let expected = format!("the norm is along the axes {axis:?}, expected axes of w f32[2,3], each once");
            assert!(error.contains(&expected), "{error}");
            let help = "help: count them from 0, without a batch: of a dense kernel 0, of an image's kernel [0, 1, 2]";
            assert!(error.ends_with(help), "{error}");
        }
    }
}
