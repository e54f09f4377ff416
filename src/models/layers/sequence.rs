//! Layers of sequences: `embedding`, `position_embedding`, `attention`.

use super::layer_options::{Arity, LayerOptions};
use super::options::Initializer;
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::hlo::DType;
use crate::nn;
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

/// Options of `attention`, which reads queries and memory, or one layer that is both; see [`nn::attention`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Heads, which share the features evenly.
    #[serde(deserialize_with = "document::positive")]
    pub num_heads: i64,
    /// Whether a position sees only itself and those before it. Default false.
    #[serde(default)]
    pub use_causal_mask: bool,
    /// How the kernels start. Default `glorot_uniform`.
    #[serde(default = "Initializer::glorot_uniform")]
    pub kernel_initializer: Initializer,
}

impl LayerOptions for Attention {
    const ARITY: Arity = Arity::OneOrTwo;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let config = nn::Attention {
            n_heads: self.num_heads,
            is_causal: self.use_causal_mask,
            kernel_init: self.kernel_initializer.init(),
            softmax: s.tuning().softmax,
            ..nn::Attention::default()
        };
        nn::attention(s, inputs[0], inputs[inputs.len() - 1], name, &config)
    }
}
