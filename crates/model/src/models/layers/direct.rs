//! Layers of [`nn`] with their own configuration: a struct of `nn`, or one number.

use super::layer_options::{Arity, LayerOptions};
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::nn::options::is_default;
use crate::nn::{self, DataFormat, PoolNd};
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Serialize};

macro_rules! direct {
    ($($function:ident: $Config:ty;)*) => {$(
        impl LayerOptions for $Config {
            fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
                nn::$function(s, inputs[0], name, self)
            }
        }
    )*};
}

direct! {
    conv2d: nn::Conv2d;
    conv1d: nn::Conv1d;
    conv3d: nn::Conv3d;
    conv_transpose: nn::ConvTranspose;
    separable_conv: nn::SeparableConv;
    conv_lstm: nn::ConvLstm;
    depthwise_conv2d: nn::DepthwiseConv2d;
    prelu: nn::Prelu;
    group_norm: nn::GroupNorm;
    instance_norm: nn::InstanceNorm;
    batch_norm: nn::BatchNorm;
    layer_norm: nn::LayerNorm;
    rms_norm: nn::RmsNorm;
    position_embedding: nn::PositionEmbedding;
    class_token: nn::ClassToken;
    squeeze_excite: nn::SqueezeExcite;
}

impl LayerOptions for nn::Dense {
    /// Keras applies a dense layer to the last axis of any input. An image is refused here: a forgotten `flatten` is
    /// more likely than a 1×1 convolution.
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let x = inputs[0];
        if x.rank() > 3 {
            let message = format!("x {} has rank {}, expected 2 or 3: [batch, …, inputs]", x.shape(), x.rank());
            let help = "put `flatten` or `global_avg_pool` before it, or write a dense layer for each pixel as \
                        `{conv: UNITS, kernel_size: 1}`";
            return s.graph().fail("dense", &[x], RuleError::new("dense/rank", message).with_help(help));
        }
        nn::dense(s, x, name, self)
    }
}

/// It reads no layer: `wiring` names an input for the size of the batch.
impl LayerOptions for nn::FreeVariable {
    const ARITY: Arity = Arity::Nothing;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        nn::free_variable(s, inputs[0], name, self)
    }
}

impl LayerOptions for nn::Embedding {
    fn n_values(&self) -> Option<i64> {
        Some(self.input_dim)
    }

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        nn::embedding(s, inputs[0], name, self)
    }
}

/// It reads queries and memory, or one layer that is both, and an optional mask as the third input.
impl LayerOptions for nn::Attention {
    const ARITY: Arity = Arity::UpToThree;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let memory = inputs.get(1).unwrap_or(&inputs[0]);
        nn::attention_masked(s, inputs[0], memory, inputs.get(2).copied(), name, self)
    }
}

/// They read a sequence, and optionally a mask.
macro_rules! recurrent {
    ($($function:ident: $Config:ty;)*) => {$(
        impl LayerOptions for $Config {
            const ARITY: Arity = Arity::OneOrTwo;

            fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
                nn::$function(s, inputs[0], inputs.get(1).copied(), name, self)
            }
        }
    )*};
}

recurrent! {
    lstm: nn::Lstm;
    gru: nn::Gru;
    simple_rnn: nn::SimpleRnn;
}

/// Options of `max_pool`; see [`nn::max_pool`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MaxPool(pub PoolNd);

impl LayerOptions for MaxPool {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::max_pool_nd(inputs[0], &self.0))
    }
}

/// Options of `avg_pool`; see [`nn::avg_pool`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AvgPool(pub PoolNd);

impl LayerOptions for AvgPool {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::avg_pool_nd(inputs[0], &self.0))
    }
}

macro_rules! global_pools {
    ($($(#[$doc:meta])* $Pool:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $Pool {
            /// The position of the channels. Default `channels_last`.
            #[serde(default, skip_serializing_if = "is_default")]
            pub data_format: DataFormat,
        }
    )*};
}

global_pools! {
    /// Options of `global_max_pool`; see [`nn::global_max_pool`].
    GlobalMaxPool;
    /// Options of `global_avg_pool`; see [`nn::global_avg_pool`], and with a mask [`nn::masked_avg_pool`].
    GlobalAvgPool;
}

impl LayerOptions for GlobalMaxPool {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::global_max_pool(inputs[0], self.data_format))
    }
}

/// It reads a sequence and a mask, or one layer of any kind.
impl LayerOptions for GlobalAvgPool {
    const ARITY: Arity = Arity::OneOrTwo;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| match inputs.get(1) {
            Some(mask) => nn::masked_avg_pool(inputs[0], mask, self.data_format),
            None => nn::global_avg_pool(inputs[0], self.data_format),
        })
    }
}

macro_rules! rates {
    ($($(#[$doc:meta])* $Layer:ident = $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $Layer {
            /// The share that training sets to 0.
            #[serde(deserialize_with = "document::fraction")]
            pub rate: f64,
        }

        impl LayerOptions for $Layer {
            fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
                nn::$function(s, inputs[0], name, self.rate)
            }
        }
    )*};
}

rates! {
    /// Options of `dropout`; see [`nn::dropout`].
    Dropout = dropout;
    /// Options of `spatial_dropout`; see [`nn::spatial_dropout`].
    SpatialDropout = spatial_dropout;
    /// Options of `gaussian_dropout`; see [`nn::gaussian_dropout`].
    GaussianDropout = gaussian_dropout;
    /// Options of `alpha_dropout`; see [`nn::alpha_dropout`].
    AlphaDropout = alpha_dropout;
    /// Options of `stochastic_depth`; see [`nn::stochastic_depth`].
    StochasticDepth = stochastic_depth;
}
