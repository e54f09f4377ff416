//! Layers, losses and metrics on the graph, one family per file.
//!
//! A layer with variables takes a scope, its input, a name (a level in the names of its variables and instructions) and
//! a configuration with Keras' names and defaults, into which YAML (`kind: layers`) is read; a function without
//! variables takes tensors. Layers request variables in the dtype of their input, which is what makes a network bf16 in
//! a [`bf16_scope`](crate::graph::Graph::bf16_scope); layers that normalise request f32. Wrong arguments are errors of
//! the graph that name the layer and the user's line.
//!
//! Each layer computes what TensorFlow's layer of that name computes when XLA compiles it, with the same roundings in
//! the same places. Exceptions are documented at the layer.

mod activation;
mod attention;
mod batch_norm;
#[cfg(test)]
mod callers;
mod conv;
mod conv1d;
mod conv_lstm;
mod conv_nd;
mod count;
mod crf;
mod ctc;
mod dense;
mod depthwise;
mod distance_loss;
mod dropout;
mod embedding;
mod feed_forward;
mod focal;
mod fourier;
mod group_norm;
mod layer_norm;
mod log_sum_exp;
mod loss;
mod matching;
mod merge;
mod metric;
mod noise;
pub(crate) mod options;
mod order;
mod overlap;
mod paired;
mod pool;
mod pool_first;
mod pool_nd;
mod prelu;
mod ratio_loss;
mod recurrent;
mod reduce;
mod reshape;
mod rms_norm;
mod rotary;
mod select;
mod similarity;
mod sizes;
mod space_to_depth;
mod squeeze_excite;
mod token_loss;
mod upsample;
mod window;

pub use activation::{
    Activation, Gelu, elu, gelu, hard_sigmoid, leaky_relu, log_softmax, relu, relu6, selu, sigmoid, silu, softmax,
    softplus, softsign, tanh,
};
pub use attention::{Attention, AttentionRemat, MaskKind, RelativePositions, attention, attention_masked};
pub use batch_norm::{BatchNorm, batch_norm};
pub use conv::{Conv2d, conv2d};
pub use conv_lstm::{ConvLstm, conv_lstm};
pub use conv_nd::{Conv3d, ConvTranspose, SeparableConv, conv_transpose, conv3d, separable_conv};
pub use conv1d::{Conv1d, Padding1d, conv1d};
pub use count::{ClassCounts, above_thresholds, class_counts};
pub use crf::{crf_per_example, viterbi};
pub use ctc::{CtcLengths, ctc_per_example, ctc_with_lengths};
pub use dense::{Dense, dense, flatten, tied_dense};
pub use depthwise::{DepthwiseConv2d, depthwise_conv2d};
pub use distance_loss::{
    categorical_hinge_per_example, contrastive_per_example, cosine_per_example, hinge_per_example,
    log_cosh_per_example, quantile_per_example, squared_hinge_per_example, triplet_per_example,
};
pub use dropout::{alpha_dropout, dropout, spatial_dropout, stochastic_depth};
pub use embedding::{
    ClassToken, Embedding, FreeVariable, PositionEmbedding, class_token, embedding, free_variable, position_embedding,
};
pub use feed_forward::{FeedForward, feed_forward};
pub use focal::{
    Focal, sigmoid_focal_cross_entropy_per_example, softmax_focal_cross_entropy_per_example,
    sparse_softmax_focal_cross_entropy_per_example,
};
pub use fourier::{Complex, Transform, fourier, inverse_real_fourier};
pub use group_norm::{GroupNorm, InstanceNorm, group_norm, instance_norm};
pub use layer_norm::{LayerNorm, Variance, layer_norm};
pub use loss::{
    class_weights, huber_per_example, kl_divergence_per_example, mean_absolute_error_per_example, mean_squared_error,
    mean_squared_error_per_example, sigmoid_cross_entropy_per_example, softmax_cross_entropy,
    softmax_cross_entropy_per_example, sparse_softmax_cross_entropy, sparse_softmax_cross_entropy_per_example,
    value_per_example,
};
pub use matching::matching_per_example;
pub(crate) use matching::{among_real, pair_scores, products};
pub(crate) use merge::aligned;
pub use merge::{Merge, concat, merge};
pub use metric::{accuracy, arg_max, is_correct, is_in_top_k, is_on_side, sides, top_k_accuracy};
pub use noise::{gaussian_dropout, gaussian_noise};
pub(crate) use order::with_last;
pub use order::{arg_sort, cumsum, sort, top_k, top_k_indices};
pub use overlap::{sigmoid_dice_per_example, softmax_dice_per_example};
pub use paired::conv2d_paired;
pub use pool::{Pool, avg_pool, global_avg_pool, global_max_pool, masked_avg_pool, max_pool};
pub use pool_first::{ConvNormPool, conv_norm_pool};
pub use pool_nd::{PoolNd, avg_pool_nd, max_pool_nd};
pub use prelu::{Prelu, prelu};
pub use ratio_loss::{
    mean_absolute_percentage_error_per_example, mean_squared_logarithmic_error_per_example, poisson_per_example,
};
pub use recurrent::{
    Gru, Lstm, SimpleRnn, StepRemat, gru, gru_with_states, lstm, lstm_with_states, simple_rnn, simple_rnn_with_states,
};
pub use reduce::{Reduction, reduce};
pub use reshape::{crop, permute, reshape_example, slice, take, upsample, zero_padding};
pub use rms_norm::{RmsNorm, rms_norm};
pub use rotary::{Rope, RopeScaling};
pub use select::{gather_rows, one_hot};
pub use similarity::{dot_along, unit};
pub use sizes::Sizes;
pub use space_to_depth::conv2d_space_to_depth;
pub use squeeze_excite::{SqueezeExcite, squeeze_excite};
pub use token_loss::{TokenLoss, token_logits, token_loss};
pub use upsample::{Interpolation, pad_places, upsample_nd};
pub use window::{DataFormat, Padding};

pub use bf16scope_passes::tuning::{NormGradient, Softmax};

use crate::graph::Tensor;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::RuleError;

/// An error unless `value` is at least `least`.
fn at_least(rule: &'static str, what: &str, value: i64, least: i64) -> Result<(), RuleError> {
    if value >= least {
        return Ok(());
    }
    Err(RuleError::new(rule, format!("{what} is {value}, expected at least {least}")))
}

/// An error unless `x` has `expected`'s rank; `axes` names them, such as `[batch, height, width, channels]`.
fn of_rank(rule: &'static str, what: &str, x: &Tensor, expected: usize, axes: &str) -> Result<(), RuleError> {
    if x.rank() == expected {
        return Ok(());
    }
    Err(RuleError::new(rule, format!("{what} {} has rank {}, expected {expected}: {axes}", x.shape(), x.rank())))
}

/// The advice for a mask of other dims than a sequence's steps.
const STEPS_OF_A_MASK: &str = "a mask has one number for each step: an input of `[steps]`, or what `masking` gives";

/// An error unless `x` has a floating dtype.
fn is_float(rule: &'static str, what: &str, x: &Tensor) -> Result<(), RuleError> {
    if x.dtype().is_float() {
        return Ok(());
    }
    let message = format!("{what} is {}, expected a floating dtype", x.shape());
    Err(RuleError::new(rule, message)
        .with_help("cast it with .cast(DType::F32), or in YAML with the layer `cast: compute`"))
}

/// The dtype of parameters and statistics of a layer that normalises `x`: f32 for bf16 and f16, else that of `x`, as
/// Keras' `_param_dtype`.
fn normalising_dtype(x: &Tensor) -> DType {
    match x.dtype() {
        DType::BF16 | DType::F16 => DType::F32,
        other => other,
    }
}
