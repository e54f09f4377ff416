//! Layers of sequences: `embedding`, `position_embedding`, `class_token`, `attention`.

use super::layer_options::{Arity, LayerOptions};
use super::options::{Initializer, above_zero, is_default, some_positive, yes};
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::nn;
use bf16scope_hlo::DType;
use serde::{Deserialize, Serialize};

/// Options of `embedding`, Keras' `Embedding`; see [`nn::embedding`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// Rows of the table: indices are below it.
    #[serde(deserialize_with = "document::positive")]
    pub input_dim: i64,
    /// Elements of a row.
    #[serde(deserialize_with = "document::positive")]
    pub output_dim: i64,
    /// How the table starts. Default `random_uniform`.
    #[serde(default = "Initializer::random_uniform")]
    pub embeddings_initializer: Initializer,
}

impl LayerOptions for Embedding {
    fn n_values(&self) -> Option<i64> {
        Some(self.input_dim)
    }

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let config = nn::Embedding {
            vocabulary: self.input_dim,
            features: self.output_dim,
            dtype: s.low_precision_dtype().unwrap_or(DType::F32),
            init: self.embeddings_initializer.init(),
        };
        nn::embedding(s, inputs[0], name, &config)
    }
}

/// Options of `position_embedding`, which adds learned positions; see [`nn::position_embedding`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PositionEmbedding {
    /// Rows of the table: the longest sequence.
    #[serde(deserialize_with = "document::positive")]
    pub max_length: i64,
    /// How the table starts. Default `random_uniform`.
    #[serde(default = "Initializer::random_uniform")]
    pub initializer: Initializer,
}

impl LayerOptions for PositionEmbedding {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let config = nn::PositionEmbedding { max_length: self.max_length, init: self.initializer.init() };
        nn::position_embedding(s, inputs[0], name, &config)
    }
}

/// Options of `class_token`, which puts a learned position before the others; see [`nn::class_token`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassToken {
    /// How the token starts. Default `zeros`, as in ViT.
    #[serde(default = "Initializer::zeros")]
    pub initializer: Initializer,
}

impl LayerOptions for ClassToken {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        nn::class_token(s, inputs[0], name, self.initializer.init())
    }
}

/// Rotary positions; see [`nn::Rotary`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// The base of the frequencies, Hugging Face's `rope_theta`. Default 10000.
    #[serde(default = "ten_thousand", deserialize_with = "above_zero")]
    pub max_wavelength: f64,
    /// Llama 3.1's scaling. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<RopeScaling>,
}

/// Hugging Face's `rope_scaling` of `rope_type: llama3`, by its names; see [`nn::RotaryScaling`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeScaling {
    /// So many times slower are slow rotations.
    #[serde(deserialize_with = "above_zero")]
    pub factor: f64,
    /// Below so many periods they are slow.
    #[serde(deserialize_with = "above_zero")]
    pub low_freq_factor: f64,
    /// Above so many they are as they were.
    #[serde(deserialize_with = "above_zero")]
    pub high_freq_factor: f64,
    /// In so many positions.
    #[serde(deserialize_with = "document::positive")]
    pub original_max_position_embeddings: i64,
}

fn ten_thousand() -> f64 {
    10_000.0
}

impl Default for Rope {
    fn default() -> Rope {
        Rope { max_wavelength: ten_thousand(), scaling: None }
    }
}

impl Rope {
    pub(super) fn rotary(&self) -> nn::Rotary {
        let scaling = self.scaling.map(|scaling| nn::RotaryScaling {
            factor: scaling.factor,
            low: scaling.low_freq_factor,
            high: scaling.high_freq_factor,
            original_length: scaling.original_max_position_embeddings as f64,
        });
        nn::Rotary { max_wavelength: self.max_wavelength, scaling }
    }
}

/// Options of `attention`, which reads queries and memory, or one layer that is both; see [`nn::attention`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Heads, which share the features evenly.
    #[serde(deserialize_with = "document::positive")]
    pub num_heads: i64,
    /// Heads of keys and values, each of which several heads of queries read. Default `num_heads`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub num_key_value_heads: Option<i64>,
    /// Features of a head. Default: those of the queries, divided by the heads.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub head_dim: Option<i64>,
    /// Whether the four dense layers have biases. Default true.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub use_bias: bool,
    /// Rotary positions; `{}` are those of a base of 10000. Default none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rope: Option<Rope>,
    /// Whether a position sees only itself and those before it. Default false.
    #[serde(default)]
    pub use_causal_mask: bool,
    /// How the kernels start. Default `glorot_uniform`.
    #[serde(default = "Initializer::glorot_uniform")]
    pub kernel_initializer: Initializer,
}

fn is_yes(value: &bool) -> bool {
    *value
}

impl LayerOptions for Attention {
    const ARITY: Arity = Arity::OneOrTwo;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let config = nn::Attention {
            n_heads: self.num_heads,
            n_key_value_heads: self.num_key_value_heads,
            head_size: self.head_dim,
            use_bias: self.use_bias,
            rotary: self.rope.as_ref().map(Rope::rotary),
            is_causal: self.use_causal_mask,
            kernel_init: self.kernel_initializer.init(),
            softmax: s.tuning().softmax,
            ..nn::Attention::default()
        };
        nn::attention(s, inputs[0], inputs[inputs.len() - 1], name, &config)
    }
}
