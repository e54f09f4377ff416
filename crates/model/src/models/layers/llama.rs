//! `llama_block`: Llama's decoder blocks, repeated `repeats` times.

use super::block::{LAYERS_OF_A_BLOCK, repeated, repeats, small};
use super::layer_options::{Arity, LayerOptions};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use crate::nn::options::{above_zero, glorot_uniform, is_default, single, some_positive};
use crate::nn::{self, Activation, MaskKind, Rope};
use serde::{Deserialize, Serialize};

/// Options of `llama_block`: causal attention with rotary positions and a gated feed-forward network, without biases;
/// each reads its input through an RMS norm, and is added to it. Names are those of `transformer_block`, defaults those
/// of KerasHub's `LlamaTransformerDecoder`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlamaBlock {
    /// Number of query heads.
    #[serde(deserialize_with = "document::positive")]
    pub num_heads: i64,
    /// Units of the gate, and of the projection that it multiplies.
    #[serde(deserialize_with = "document::positive")]
    pub intermediate_dim: i64,
    /// Number of key and value heads, each shared by several query heads. Default `num_heads`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub num_key_value_heads: Option<i64>,
    /// Features of a head. Default: those of the input, divided by the heads.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub head_dim: Option<i64>,
    /// The gate's activation. Default `silu`.
    #[serde(default = "silu")]
    pub activation: Activation,
    /// Dropout rate of each branch. Default 0.
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "document::fraction")]
    pub dropout: f64,
    /// Rotary positions. Default `{max_wavelength: 10000}`.
    #[serde(default)]
    pub rope: Rope,
    /// Sliding window: a position attends only to those at a smaller distance. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub window: Option<i64>,
    /// The meaning of the mask input. Default `padding`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mask: MaskKind,
    /// Dropout rate of attention weights. Default 0.
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "document::fraction")]
    pub attention_dropout: f64,
    /// Epsilon of the RMS norms. Default 1e-5.
    #[serde(default = "small", deserialize_with = "above_zero")]
    pub layer_norm_epsilon: f64,
    /// The kernel initializer. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub kernel_initializer: Init,
    /// The number of consecutive blocks. Default 1.
    #[serde(default = "single", deserialize_with = "repeats")]
    pub repeats: i64,
}

fn silu() -> Activation {
    Activation::Silu
}

impl LlamaBlock {
    /// `x + branch(norm(x))`.
    fn connected(&self, s: &Scope, x: &Tensor, name: &str, branch: impl Fn(&Scope, &Tensor) -> Tensor) -> Tensor {
        s.layer(name, |s| {
            let config = nn::RmsNorm { epsilon: self.layer_norm_epsilon, ..nn::RmsNorm::default() };
            let added = branch(s, &nn::rms_norm(s, x, "norm", &config));
            (x + nn::dropout(s, &added, "dropout", self.dropout)).named("add")
        })
    }

    /// `(activation(x · gate) * (x · up)) · down`.
    fn feed_forward(&self, s: &Scope, x: &Tensor) -> Tensor {
        let dense = |x: &Tensor, name: &str, units: i64| {
            let kernel_initializer = self.kernel_initializer;
            nn::dense(s, x, name, &nn::Dense { units, use_bias: false, kernel_initializer, ..nn::Dense::default() })
        };
        let gate = self.activation.apply(&dense(x, "gate", self.intermediate_dim));
        let up = dense(x, "up", self.intermediate_dim);
        dense(&(gate * up), "down", x.dims().last().copied().unwrap_or(1))
    }

    fn block(&self, s: &Scope, x: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let x = self.connected(s, x, "attention", |s, x| {
            let config = nn::Attention {
                num_heads: self.num_heads,
                num_key_value_heads: self.num_key_value_heads,
                head_dim: self.head_dim,
                use_bias: false,
                rope: Some(self.rope),
                use_causal_mask: true,
                window: self.window,
                mask: self.mask,
                dropout: self.attention_dropout,
                kernel_initializer: self.kernel_initializer,
                ..nn::Attention::default()
            };
            nn::attention_masked(s, x, x, mask, "heads", &config)
        });
        self.connected(s, &x, "feed_forward", |s, x| self.feed_forward(s, x))
    }
}

/// It reads a sequence, and optionally a mask.
impl LayerOptions for LlamaBlock {
    const ARITY: Arity = Arity::OneOrTwo;

    fn n_layers(&self) -> i64 {
        LAYERS_OF_A_BLOCK * self.repeats
    }

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        repeated(s, name, self.repeats, inputs[0], |s, x, _| self.block(s, x, inputs.get(1).copied()))
    }
}
