//! Pooling over height and width.

use super::options::{is_default, pair, some_pair};
use super::window::{DataFormat, Padding, Sliding};
use super::{is_float, of_rank};
use crate::graph::Tensor;
use bf16scope_hlo::ops::{BinaryOp, RuleError, WindowDim};
use bf16scope_hlo::{DType, Op};
use serde::{Deserialize, Serialize};

/// Configuration of [`max_pool`] and [`avg_pool`]. The defaults are Keras': adjacent 2×2 windows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pool {
    /// Height and width of the window. Default 2.
    #[serde(deserialize_with = "pair")]
    pub pool_size: [i64; 2],
    /// Strides down and right. Default: those of adjacent windows.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "some_pair")]
    pub strides: Option<[i64; 2]>,
    /// The padding. Default `valid`.
    pub padding: Padding,
    /// The order of axes in x and in the output. Default `channels_last`.
    #[serde(skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { pool_size: [2, 2], strides: None, padding: Padding::Valid, data_format: DataFormat::ChannelsLast }
    }
}

/// The maximum of each window. Padding never wins: it counts as minus infinity.
///
/// # Shapes
/// x `[b, h, w, c]` (or `[b, c, h, w]`) → `[b, h', w', c]` (or `[b, c, h', w']`), sizes as in
/// [`conv2d`](super::conv2d).
///
/// # Types
/// In the dtype of x; nothing is rounded.
///
/// # Errors
/// x not of rank 4 or not floating; window or strides below 1; negative padding; a window larger than the padded image.
///
/// # Source
/// TensorFlow's `MaxPool`.
#[track_caller]
pub fn max_pool(x: &Tensor, config: &Pool) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    match windows(x, config) {
        Ok(window) => reduce_window(x, BinaryOp::Maximum, f64::NEG_INFINITY, window),
        Err(error) => x.graph().fail("max_pool", &[x], error),
    }
}

/// The mean of each window. Padding does not count: a window over the edge is divided by the number of elements that it
/// covers.
///
/// # Shapes
/// As [`max_pool`].
///
/// # Types
/// bf16 and f16 are summed and divided in f32 and the mean rounded once; f32 and f64 in their own dtype.
///
/// # Errors
/// As [`max_pool`].
///
/// # Source
/// TensorFlow's `AvgPool`, whose XLA kernel sums in `SumAccumulationType`.
#[track_caller]
pub fn avg_pool(x: &Tensor, config: &Pool) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let window = match windows(x, config) {
        Ok(window) => window,
        Err(error) => return x.graph().fail("avg_pool", &[x], error),
    };
    let dtype = match x.dtype() {
        DType::BF16 | DType::F16 => DType::F32,
        other => other,
    };
    let is_padded = window.iter().any(|dim| dim.padding_low != 0 || dim.padding_high != 0);
    let data = x.cast(dtype);
    let sum = reduce_window(&data, BinaryOp::Add, 0.0, window.clone());
    let mean = if is_padded {
        // The number of elements in each window: the same for every image and channel.
        let spatial = config.data_format.spatial();
        let [height, width] = spatial.map(|axis| axis as usize);
        let plane = x.graph().full(dtype, &[x.dims()[height], x.dims()[width]], 1.0);
        let counts = reduce_window(&plane, BinaryOp::Add, 0.0, vec![window[height], window[width]]);
        let counts = counts.broadcast_in_dim(&sum.dims(), &spatial);
        sum / counts
    } else {
        sum / (config.pool_size[0] as f64 * config.pool_size[1] as f64)
    };
    mean.cast(x.dtype())
}

/// The mean over height and width.
///
/// # Shapes
/// x `[b, h, w, c]` (or `[b, c, h, w]`), or a sequence `[b, length, c]` (or `[b, c, length]`) → `[b, c]`.
///
/// # Types
/// bf16 and f16 are summed and divided in f32 and the mean rounded once; f32 and f64 in their own dtype.
///
/// # Errors
/// x not of rank 3 or 4.
///
/// # Source
/// TensorFlow's `reduce_mean`, as ResNet uses it.
#[track_caller]
pub fn global_avg_pool(x: &Tensor, format: DataFormat) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    match places(x, format, "global_avg_pool/rank") {
        Ok(places) => x.mean(&places),
        Err(error) => x.graph().fail("global_avg_pool", &[x], error),
    }
}

/// The mean over those steps of a sequence where `mask` is 1; 0 where no step counts.
///
/// # Shapes
/// x `[b, length, c]` (or `[b, c, length]`), mask `[b, length]` → `[b, c]`.
///
/// # Types
/// bf16 and f16 are summed and divided in f32 and the mean rounded once; f32 and f64 in their own dtype.
///
/// # Errors
/// x not of rank 3; a mask with dims other than x's batch and length.
///
/// # Source
/// Keras' `GlobalAveragePooling1D` with a mask, which gives NaN where no step counts.
#[track_caller]
pub fn masked_avg_pool(x: &Tensor, mask: &Tensor, format: DataFormat) -> Tensor {
    if let Some(poison) = [x, mask].into_iter().find(|tensor| tensor.is_poison()) {
        return poison.clone();
    }
    let (dims, axis) = (x.dims(), if format == DataFormat::ChannelsLast { 1 } else { 2 });
    if dims.len() != 3 || mask.dims() != [dims[0], dims[axis]] {
        let message = format!("mask {} is not of x {}, expected [batch, steps] of a sequence", mask.shape(), x.shape());
        let error = RuleError::new("global_avg_pool/mask", message).with_help(super::STEPS_OF_A_MASK);
        return x.graph().fail("global_avg_pool", &[x, mask], error);
    }
    let dtype = match x.dtype() {
        DType::BF16 | DType::F16 => DType::F32,
        other => other,
    };
    let mask = mask.cast(dtype);
    let sum = (x.cast(dtype) * mask.broadcast_in_dim(&dims, &[0, axis as i64])).sum(&[axis as i64]);
    let count = mask.sum(&[1]);
    let (zeros, ones) = (x.graph().full(dtype, &[dims[0]], 0.0), x.graph().full(dtype, &[dims[0]], 1.0));
    let count = count.equal(&zeros).select(&ones, &count);
    let mean = &sum / count.broadcast_in_dim(&sum.dims(), &[0]);
    mean.cast(x.dtype())
}

/// The maximum over height and width.
///
/// # Shapes
/// x `[b, h, w, c]` (or `[b, c, h, w]`), or a sequence `[b, length, c]` (or `[b, c, length]`) → `[b, c]`.
///
/// # Types
/// In the dtype of x; nothing is rounded.
///
/// # Errors
/// x not of rank 3 or 4.
///
/// # Source
/// TensorFlow's `reduce_max`, as Keras' `GlobalMaxPooling2D`.
#[track_caller]
pub fn global_max_pool(x: &Tensor, format: DataFormat) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    match places(x, format, "global_max_pool/rank") {
        Ok(places) => x.max(&places),
        Err(error) => x.graph().fail("global_max_pool", &[x], error),
    }
}

/// The spatial axes: height and width, the length of a sequence, or depth, height and width.
fn places(x: &Tensor, format: DataFormat, rule: &'static str) -> Result<Vec<i64>, RuleError> {
    match (x.rank(), format) {
        (3, DataFormat::ChannelsLast) => Ok(vec![1]),
        (3, DataFormat::ChannelsFirst) => Ok(vec![2]),
        (4, _) => Ok(format.spatial().to_vec()),
        (5, DataFormat::ChannelsLast) => Ok(vec![1, 2, 3]),
        (5, DataFormat::ChannelsFirst) => Ok(vec![2, 3, 4]),
        (rank, _) => {
            let message = format!("x {} has rank {rank}, expected 4: {}, or 3 of a sequence", x.shape(), format.axes());
            Err(RuleError::new(rule, message))
        }
    }
}

/// A window for every axis of x.
pub(super) fn windows(x: &Tensor, config: &Pool) -> Result<Vec<WindowDim>, RuleError> {
    is_float("pool/dtype", "x", x)?;
    of_rank("pool/rank", "x", x, 4, config.data_format.axes())?;
    let (size, strides) = (config.pool_size, config.strides.unwrap_or(config.pool_size));
    let sliding = Sliding { size, strides, dilation: [1, 1], padding: config.padding, n_axes: 2 };
    let spatial = sliding.dims(&x.dims(), config.data_format)?;
    let mut window = vec![WindowDim::of_size(1); 4];
    for (axis, dim) in config.data_format.spatial().into_iter().zip(spatial) {
        window[axis as usize] = dim;
    }
    Ok(window)
}

#[track_caller]
pub(super) fn reduce_window(x: &Tensor, op: BinaryOp, init: f64, window: Vec<WindowDim>) -> Tensor {
    x.emit("reduce-window", &[], |e| {
        let dtype = e.dtype(x.id);
        let to_apply = e.scalar_computation(op, dtype);
        let init = e.scalar(dtype, init);
        e.emit(Op::ReduceWindow { window, to_apply }, &[x.id, init], None)
    })
}
