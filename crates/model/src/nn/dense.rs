//! The fully connected layer, and the flatten that usually precedes it.

use super::options::{glorot_uniform, is_default, yes, zeros};
use super::{Activation, at_least, is_float};
use crate::document;
use crate::graph::{Init, Scope, Tensor, Variable};
use bf16scope_hlo::ops::{DotDims, RuleError};
use serde::{Deserialize, Serialize};

/// Configuration of [`dense`]. The defaults are Keras'; `units` has none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// Size of the last axis of the output.
    #[serde(deserialize_with = "document::positive")]
    pub units: i64,
    /// The activation. Default `linear`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub activation: Activation,
    /// Whether there is a bias. Default true.
    #[serde(default = "yes")]
    pub use_bias: bool,
    /// The kernel initializer. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub kernel_initializer: Init,
    /// The bias initializer. Default `zeros`.
    #[serde(default = "zeros")]
    pub bias_initializer: Init,
}

impl Default for Dense {
    fn default() -> Dense {
        Dense {
            units: 0,
            activation: Activation::Linear,
            use_bias: true,
            kernel_initializer: Init::GLOROT_UNIFORM,
            bias_initializer: Init::Zeros,
        }
    }
}

/// `activation(x · kernel + bias)`.
///
/// # Shapes
/// x `[…, inputs]` → `[…, units]`; kernel `[inputs, units]`, bias `[units]`.
///
/// # Types
/// Everything in the dtype of x, in which variables are requested. The product is rounded to it once, and so is the
/// sum. The back end chooses the precision in which products are summed: f32 on TPU and on XLA's CPU.
///
/// # Errors
/// x of rank below 2 or not floating; `units` below 1.
///
/// # Source
/// TensorFlow's `MatMul` and `BiasAdd`.
#[track_caller]
pub fn dense(s: &Scope, x: &Tensor, name: &str, config: &Dense) -> Tensor {
    match parts(s, x, name, config) {
        Ok(parts) => config.activation.apply(&parts.result),
        Err(poison) => poison,
    }
}

/// A dense layer's output and variables, for layers whose gradient needs them.
#[derive(Debug)]
pub(super) struct Parts {
    pub result: Tensor,
    pub kernel: Variable,
    pub bias: Option<Variable>,
}

/// [`dense`] before its activation, with its variables; poison after an error.
#[track_caller]
pub(super) fn parts(s: &Scope, x: &Tensor, name: &str, config: &Dense) -> Result<Parts, Tensor> {
    s.layer(name, |s| {
        if x.is_poison() {
            return Err(x.clone());
        }
        if let Err(error) = check(x, config) {
            return Err(s.graph().fail("dense", &[x], error));
        }
        let (dims, dtype) = (x.dims(), x.dtype());
        let kernel = s.variable("kernel", dtype, [dims[dims.len() - 1], config.units], config.kernel_initializer);
        let product = x.matmul(&kernel.value);
        if !config.use_bias {
            return Ok(Parts { result: product, kernel, bias: None });
        }
        let bias = s.variable("bias", dtype, [config.units], config.bias_initializer);
        Ok(Parts { result: product + &bias.value, kernel, bias: Some(bias) })
    })
}

/// [`dense`] whose kernel is another layer's table, transposed: `activation(x · tableᵀ + bias)`, such as the last layer
/// of a language model that is tied to its embedding.
///
/// # Shapes
/// x `[…, features]`, table `[units, features]` → `[…, units]`; bias `[units]`.
///
/// # Types, source
/// As [`dense`]; Press & Wolf 2017. The table's gradient is the sum of those of all its readers.
///
/// # Errors
/// As [`dense`]; a table of other units or features, or of another dtype than x.
#[track_caller]
pub fn tied_dense(s: &Scope, x: &Tensor, name: &str, table: &Tensor, config: &Dense) -> Tensor {
    let y = s.layer(name, |s| {
        if let Some(poison) = [x, table].into_iter().find(|tensor| tensor.is_poison()) {
            return poison.clone();
        }
        let features = x.dims().last().copied().unwrap_or(1);
        let fits = check(x, config).and_then(|()| match table.dims() == [config.units, features] {
            true => Ok(()),
            false => {
                let message = format!(
                    "x {} and the table {} meet, expected [{}, {features}]",
                    x.shape(),
                    table.shape(),
                    config.units
                );
                let help =
                    "a tied layer has as many units as the table has rows, and reads as many features as a row has";
                Err(RuleError::new("dense/tied", message).with_help(help))
            }
        });
        if let Err(error) = fits {
            return s.graph().fail("dense", &[x, table], error);
        }
        let (lhs_contracting, rhs_contracting) = (vec![x.rank() as i64 - 1], vec![1]);
        let product = x.dot(table, DotDims { lhs_contracting, rhs_contracting, ..DotDims::default() });
        if !config.use_bias {
            return product;
        }
        product + s.variable("bias", x.dtype(), [config.units], config.bias_initializer).value
    });
    config.activation.apply(&y)
}

fn check(x: &Tensor, config: &Dense) -> Result<(), RuleError> {
    is_float("dense/dtype", "x", x)?;
    at_least("dense/units", "units", config.units, 1)?;
    if x.rank() >= 2 {
        return Ok(());
    }
    let message = format!("x {} has rank {}, expected at least 2: [batch, inputs]", x.shape(), x.rank());
    Err(RuleError::new("dense/rank", message))
}

/// Joins all axes but the first.
///
/// # Shapes
/// x `[batch, a, b, …]` → `[batch, a·b·…]`.
///
/// # Types
/// Any; nothing is computed.
#[track_caller]
pub fn flatten(x: &Tensor) -> Tensor {
    let dims = x.dims();
    match dims.split_first() {
        Some((&batch, rest)) => x.reshape([batch, rest.iter().product()]),
        None => {
            let message = format!("x {} has rank 0, expected at least 1: [batch, …]", x.shape());
            x.graph().fail("flatten", &[x], RuleError::new("flatten/rank", message))
        }
    }
}
