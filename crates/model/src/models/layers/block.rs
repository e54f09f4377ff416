//! Layers that consist of several: `mb_conv` and `transformer_block`, repeated `repeats` times.

use super::layer_options::{Arity, LayerOptions};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use crate::nn::options::{
    above_zero, glorot_uniform, is_default, one, pair, relu, single, some_positive, unit_interval, yes,
};
use crate::nn::{self, Activation, Gelu, MaskKind};
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most blocks of one layer: as many as the deepest published networks have.
const MAX_REPEATS: i64 = 1000;
/// The approximate number of plain layers in a block, for counts of layers.
pub(super) const LAYERS_OF_A_BLOCK: i64 = 10;

pub(super) fn repeats<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    document::positive_up_to(deserializer, MAX_REPEATS)
}

/// The rates of dropping whole branches: of the first and of the last block, and linear in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DropRates(pub [f64; 2]);

impl DropRates {
    fn at_block(self, number: i64, n: i64) -> f64 {
        let [first, last] = self.0;
        if n > 1 { first + (last - first) * number as f64 / (n - 1) as f64 } else { first }
    }
}

impl<'de> Deserialize<'de> for DropRates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DropRates, D::Error> {
        struct OneOrTwo;
        impl<'de> Visitor<'de> for OneOrTwo {
            type Value = DropRates;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0 up to but not including 1, or one of the first block and one of the last")
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<DropRates, E> {
                match (0.0..1.0).contains(&value) {
                    true => Ok(DropRates([value; 2])),
                    false => Err(E::invalid_value(de::Unexpected::Float(value), &self)),
                }
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<DropRates, E> {
                self.visit_f64(value as f64)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<DropRates, E> {
                self.visit_f64(value as f64)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<DropRates, A::Error> {
                #[derive(Deserialize)]
                struct Rate(#[serde(deserialize_with = "document::fraction")] f64);
                let mut rates = Vec::new();
                while let Some(Rate(rate)) = elements.next_element()? {
                    rates.push(rate);
                }
                match rates[..] {
                    [first, last] => Ok(DropRates([first, last])),
                    _ => {
                        let measured = format!("{} rates", rates.len());
                        Err(de::Error::invalid_value(de::Unexpected::Other(&measured), &self))
                    }
                }
            }
        }
        deserializer.deserialize_any(OneOrTwo)
    }
}

/// Options of `mb_conv`, the inverted bottleneck of MobileNetV2, MnasNet and EfficientNet: a convolution of 1×1 that
/// expands the channels, a depthwise one, squeeze and excitation, and a convolution of 1×1 without an activation; after each
/// convolution a batch norm. Where the strides are 1 and the channels stay, the input is added.
///
/// Kernels start normal with a variance of `2 / (outputs · height · width)`, as in the models' code, but truncated at two
/// standard deviations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MbConv {
    /// Channels of the output.
    #[serde(deserialize_with = "document::positive")]
    pub filters: i64,
    /// Height and width of the depthwise kernels.
    #[serde(deserialize_with = "pair")]
    pub kernel_size: [i64; 2],
    /// Strides of the first block, down and right; those of the others are 1. Default 1.
    #[serde(default = "one", deserialize_with = "pair")]
    pub strides: [i64; 2],
    /// The factor by which a block expands its channels. Default 6.
    #[serde(default = "six", deserialize_with = "document::positive")]
    pub expand_ratio: i64,
    /// Units of the squeeze, as a share of the block's channels; 0 disables squeeze and excitation. Default 0.
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "unit_interval")]
    pub se_ratio: f64,
    /// The activation after the first two convolutions, and in the squeeze. Default `relu6`.
    #[serde(default = "relu6")]
    pub activation: Activation,
    /// The rate at which training drops a block that adds its input: a rate, or `[first, last]`. Default 0.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stochastic_depth: DropRates,
    /// Whether the input is added. Default true.
    #[serde(default = "yes")]
    pub residual: bool,
    /// The number of consecutive blocks. Default 1.
    #[serde(default = "single", deserialize_with = "repeats")]
    pub repeats: i64,
    /// Momentum of the batch norms. Default 0.99.
    #[serde(default = "momentum", deserialize_with = "document::fraction")]
    pub momentum: f64,
    /// Epsilon of the batch norms. Default 0.001.
    #[serde(default = "thousandth", deserialize_with = "above_zero")]
    pub epsilon: f64,
}

fn six() -> i64 {
    6
}

fn relu6() -> Activation {
    Activation::Relu6
}

fn momentum() -> f64 {
    0.99
}

fn thousandth() -> f64 {
    0.001
}

/// The kernel initializer of the convolutions of [`MbConv`].
const FAN_OUT: Init = Init::HE_NORMAL_FAN_OUT;

impl MbConv {
    fn block(&self, s: &Scope, x: &Tensor, number: i64) -> Tensor {
        let Some(&channels) = x.dims().get(3) else {
            // The first convolution refuses inputs that are not images.
            return nn::conv2d(
                s,
                x,
                "expand",
                &nn::Conv2d { filters: 1, kernel_size: [1, 1], ..nn::Conv2d::default() },
            );
        };
        let norm = |x: &Tensor, name: &str| {
            let (momentum, epsilon) = (self.momentum, self.epsilon);
            nn::batch_norm(s, x, name, &nn::BatchNorm { momentum, epsilon, ..nn::BatchNorm::default() })
        };
        let pointwise = |x: &Tensor, name: &str, filters: i64| {
            let config = nn::Conv2d {
                filters,
                kernel_size: [1, 1],
                use_bias: false,
                kernel_initializer: FAN_OUT,
                ..nn::Conv2d::default()
            };
            nn::conv2d(s, x, name, &config)
        };
        let inner = channels.saturating_mul(self.expand_ratio);
        let expanded = match self.expand_ratio {
            1 => x.clone(),
            _ => self.activation.apply(&norm(&pointwise(x, "expand", inner), "expand_bn")),
        };
        let strides = if number == 0 { self.strides } else { [1, 1] };
        let config = nn::DepthwiseConv2d {
            kernel_size: self.kernel_size,
            strides,
            padding: nn::Padding::Same,
            use_bias: false,
            depthwise_initializer: FAN_OUT,
            ..nn::DepthwiseConv2d::default()
        };
        let y = nn::depthwise_conv2d(s, &expanded, "depthwise", &config);
        let mut y = self.activation.apply(&norm(&y, "depthwise_bn"));
        if self.se_ratio > 0.0 {
            let filters = ((channels as f64 * self.se_ratio) as i64).max(1);
            let config = nn::SqueezeExcite { filters, activation: self.activation, kernel_initializer: FAN_OUT };
            y = nn::squeeze_excite(s, &y, "squeeze_excite", &config);
        }
        let y = norm(&pointwise(&y, "project", self.filters), "project_bn");
        match self.residual && strides == [1, 1] && channels == self.filters {
            true => {
                let rate = self.stochastic_depth.at_block(number, self.repeats);
                (x + nn::stochastic_depth(s, &y, "stochastic_depth", rate)).named("add")
            }
            false => y,
        }
    }
}

impl LayerOptions for MbConv {
    fn n_layers(&self) -> i64 {
        LAYERS_OF_A_BLOCK * self.repeats
    }

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        repeated(s, name, self.repeats, inputs[0], |s, x, number| self.block(s, x, number))
    }
}

/// Consecutive blocks, `block1` and so on.
pub(super) fn repeated(
    s: &Scope,
    name: &str,
    n: i64,
    x: &Tensor,
    block: impl Fn(&Scope, &Tensor, i64) -> Tensor,
) -> Tensor {
    s.layer(name, |s| {
        (0..n).fold(x.clone(), |x, number| s.layer(&format!("block{}", number + 1), |s| block(s, &x, number)))
    })
}

/// Options of `transformer_block`: self-attention and a feed-forward network, each added to its input. Names and
/// defaults are those of KerasHub's `TransformerEncoder`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerBlock {
    /// Number of heads, which share the features evenly.
    #[serde(deserialize_with = "document::positive")]
    pub num_heads: i64,
    /// Units between the two layers of the feed-forward network.
    #[serde(deserialize_with = "document::positive")]
    pub intermediate_dim: i64,
    /// The activation between them. Default `relu`.
    #[serde(default = "relu")]
    pub activation: Activation,
    /// Dropout rate of each branch. Default 0.
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "document::fraction")]
    pub dropout: f64,
    /// Whether layer norms precede the branches, as in GPT-2, or follow the additions, as in BERT. Default false: they
    /// follow.
    #[serde(default)]
    pub normalize_first: bool,
    /// Whether a position attends only to itself and those before it. Default false.
    #[serde(default)]
    pub use_causal_mask: bool,
    /// Sliding window: a position attends only to those at a smaller distance. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_positive")]
    pub window: Option<i64>,
    /// The meaning of the mask input. Default `padding`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mask: MaskKind,
    /// Dropout rate of attention weights. Default 0.
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "document::fraction")]
    pub attention_dropout: f64,
    /// Epsilon of the layer norms. Default 1e-5.
    #[serde(default = "small", deserialize_with = "above_zero")]
    pub layer_norm_epsilon: f64,
    /// The kernel initializer. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub kernel_initializer: Init,
    /// The number of consecutive blocks. Default 1.
    #[serde(default = "single", deserialize_with = "repeats")]
    pub repeats: i64,
}

pub(super) fn small() -> f64 {
    1e-5
}

impl TransformerBlock {
    fn connected(&self, s: &Scope, x: &Tensor, name: &str, branch: impl Fn(&Scope, &Tensor) -> Tensor) -> Tensor {
        s.layer(name, |s| {
            let norm = |x: &Tensor| {
                let config = nn::LayerNorm { epsilon: self.layer_norm_epsilon, ..nn::LayerNorm::default() };
                nn::layer_norm(s, x, "norm", &config)
            };
            let read = if self.normalize_first { norm(x) } else { x.clone() };
            let sum = (x + nn::dropout(s, &branch(s, &read), "dropout", self.dropout)).named("add");
            if self.normalize_first { sum } else { norm(&sum) }
        })
    }

    fn feed_forward(&self, s: &Scope, x: &Tensor) -> Tensor {
        let (hidden, units) = (self.intermediate_dim, x.dims().last().copied().unwrap_or(1));
        let kernel_initializer = self.kernel_initializer;
        let gelu = match self.activation {
            Activation::Gelu => Gelu::Erf,
            Activation::GeluTanh => Gelu::Tanh,
            other => {
                let with_units = |units| nn::Dense { units, kernel_initializer, ..nn::Dense::default() };
                return nn::dense(
                    s,
                    &other.apply(&nn::dense(s, x, "dense1", &with_units(hidden))),
                    "dense2",
                    &with_units(units),
                );
            }
        };
        nn::feed_forward(s, x, &nn::FeedForward { hidden, units, gelu, kernel_initializer, remat_hidden: false })
    }

    fn block(&self, s: &Scope, x: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let x = self.connected(s, x, "attention", |s, x| {
            let config = nn::Attention {
                num_heads: self.num_heads,
                use_causal_mask: self.use_causal_mask,
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
impl LayerOptions for TransformerBlock {
    const ARITY: Arity = Arity::OneOrTwo;

    fn n_layers(&self) -> i64 {
        LAYERS_OF_A_BLOCK * self.repeats
    }

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        repeated(s, name, self.repeats, inputs[0], |s, x, _| self.block(s, x, inputs.get(1).copied()))
    }
}
