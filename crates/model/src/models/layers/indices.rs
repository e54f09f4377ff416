//! Layers of indices and dtypes: `gather`, `one_hot`, `cast`, `masking`.

use super::layer_options::{Arity, LayerOptions};
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::nn;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Serialize};

/// `gather` has no options: it reads rows, then indices; see [`nn::gather_rows`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gather {}

impl LayerOptions for Gather {
    const ARITY: Arity = Arity::Several;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |s| match inputs {
            [x, indices] => nn::gather_rows(x, indices),
            _ => {
                let message = format!("it reads {}, expected two: rows, and indices", inputs.len());
                s.graph().fail("gather", inputs, RuleError::new("gather/inputs", message))
            }
        })
    }
}

/// Options of `one_hot`; see [`nn::one_hot`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneHot {
    /// The number of classes.
    #[serde(deserialize_with = "document::positive")]
    pub depth: i64,
}

impl LayerOptions for OneHot {
    fn n_values(&self) -> Option<i64> {
        Some(self.depth)
    }

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let dtype = s.low_precision_dtype().unwrap_or(DType::F32);
        s.layer(name, |_| nn::one_hot(inputs[0], self.depth, dtype))
    }
}

/// The dtype of a `cast`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CastTo {
    /// The network's compute dtype.
    Compute,
    /// s32, rounded towards zero.
    #[serde(alias = "s32")]
    Int32,
}

/// Options of `cast`. For a layer that computes in f32, use `dtype: float32` instead.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cast {
    /// The dtype.
    pub to: CastTo,
}

impl LayerOptions for Cast {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let dtype = match self.to {
            CastTo::Compute => s.low_precision_dtype().unwrap_or(DType::F32),
            CastTo::Int32 => DType::S32,
        };
        s.layer(name, |_| inputs[0].cast(dtype))
    }
}

/// Options of `masking`: 1 for each step of a sequence that counts and 0 for padding, as attention and recurrent layers
/// read it. For `[steps]`, or for `[steps, features]`, where all features of a padding step have the value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Masking {
    /// The value of padding. Default 0.
    #[serde(default)]
    pub mask_value: f64,
}

impl LayerOptions for Masking {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let x = inputs[0];
        s.layer(name, |s| {
            if x.is_poison() {
                return x.clone();
            }
            let dtype = s.low_precision_dtype().unwrap_or(DType::F32);
            let differs = x.not_equal(&s.graph().full(x.dtype(), &x.dims(), self.mask_value)).cast(DType::F32);
            match x.rank() {
                2 => differs.cast(dtype),
                3 => differs.max(&[2]).cast(dtype),
                rank => {
                    let message = format!(
                        "x {} has rank {rank}, expected 2 or 3: [batch, steps] or [batch, steps, features]",
                        x.shape()
                    );
                    s.graph().fail("masking", &[x], RuleError::new("masking/rank", message))
                }
            }
        })
    }
}

/// The error, and its remedy, of a layer that reads the layer before it, a mask of `masked`, and does not name it. Keras'
/// `Masking` passes on what it reads, and the mask beside it.
pub(super) fn unnamed_mask(reader: &str, kind: &str, (mask, masked): (&str, &str)) -> (String, String) {
    let message = format!(
        "layer `{reader}` names no `inputs`, and the layer before it is a mask: `{mask}` is 1 where `{masked}` counts, and 0 \
         elsewhere"
    );
    let written = match kind {
        "lstm" | "gru" | "simple_rnn" | "global_avg_pool" => format!("`inputs: [{masked}, {mask}]`"),
        "transformer_block" | "llama_block" => format!("`inputs: [{masked}, {mask}], mask: padding`"),
        "attention" => format!("`inputs: [{masked}, {masked}, {mask}], mask: padding`"),
        "expression" => format!("`{masked}` or `{mask}` in the place of `x`"),
        _ => {
            format!("`inputs: {masked}`, and `inputs: [NAME, {mask}]` at the `lstm` or `gru` that passes over padding")
        }
    };
    (message, format!("write {written}; Keras' `Masking` passes on what it reads, and its mask beside it"))
}
