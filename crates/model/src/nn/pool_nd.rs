//! Pooling of sequences, images and volumes with one configuration.

use super::conv_nd::{forward, n_places};
use super::pool::{self, Pool, reduce_window};
use super::sizes::Sizes;
use super::window::{DataFormat, Padding};
use crate::graph::Tensor;
use crate::nn::options::{is_default, some_windows};
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::{BinaryOp, RuleError, WindowDim};
use serde::{Deserialize, Serialize};

/// Configuration of [`max_pool_nd`] and [`avg_pool_nd`]. The defaults are Keras': adjacent windows of 2.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolNd {
    /// Sizes of the window. Default 2.
    pub pool_size: Sizes,
    /// The stride along each axis. Default: those of adjacent windows.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "some_windows")]
    pub strides: Option<Sizes>,
    /// The padding. Default `valid`.
    pub padding: Padding,
    /// The order of axes in an image. Default `channels_last`.
    #[serde(skip_serializing_if = "is_default")]
    pub data_format: DataFormat,
}

impl Default for PoolNd {
    fn default() -> PoolNd {
        PoolNd {
            pool_size: Sizes::from(2),
            strides: None,
            padding: Padding::Valid,
            data_format: DataFormat::ChannelsLast,
        }
    }
}

impl PoolNd {
    /// The configuration as one of 2-D pools.
    fn image(&self) -> Result<Pool, RuleError> {
        let pair = |sizes: &Sizes, what| sizes.of_axes("pool/sizes", what, 2).map(|sizes| [sizes[0], sizes[1]]);
        let strides = self.strides.as_ref().map(|strides| pair(strides, "strides")).transpose()?;
        let pool_size = pair(&self.pool_size, "pool_size")?;
        Ok(Pool { pool_size, strides, padding: self.padding, data_format: self.data_format })
    }

    /// A window for every axis of a sequence or a volume.
    fn windows(&self, x: &Tensor) -> Result<Vec<WindowDim>, RuleError> {
        let n = n_places("pool/rank", x, 1..=3)?;
        if self.data_format != DataFormat::ChannelsLast {
            return Err(RuleError::new("pool/format", "`channels_first` is for images, expected `channels_last`"));
        }
        let size = self.pool_size.of_axes("pool/sizes", "pool_size", n)?;
        let strides = match &self.strides {
            Some(strides) => strides.of_axes("pool/sizes", "strides", n)?,
            None => size.clone(),
        };
        let places = forward(x, &size, &strides, &vec![1; n], self.padding)?;
        let one = WindowDim::of_size(1);
        Ok([one].into_iter().chain(places).chain([one]).collect())
    }
}

/// The maximum of each window of a sequence, an image or a volume; as [`max_pool`](super::max_pool).
///
/// # Source
/// Keras' `MaxPooling1D`, `MaxPooling2D` and `MaxPooling3D`.
#[track_caller]
pub fn max_pool_nd(x: &Tensor, config: &PoolNd) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let wrong = |error| x.graph().fail("max_pool", &[x], error);
    match x.rank() {
        4 => config.image().map_or_else(wrong, |pool| pool::max_pool(x, &pool)),
        _ => match config.windows(x) {
            Ok(window) => reduce_window(x, BinaryOp::Maximum, f64::NEG_INFINITY, window),
            Err(error) => wrong(error),
        },
    }
}

/// The mean of each window of a sequence, an image or a volume, over the elements that it covers; as
/// [`avg_pool`](super::avg_pool).
///
/// # Source
/// Keras' `AveragePooling1D`, `AveragePooling2D` and `AveragePooling3D`.
#[track_caller]
pub fn avg_pool_nd(x: &Tensor, config: &PoolNd) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let wrong = |error| x.graph().fail("avg_pool", &[x], error);
    if x.rank() == 4 {
        return config.image().map_or_else(wrong, |pool| pool::avg_pool(x, &pool));
    }
    let window = match config.windows(x) {
        Ok(window) => window,
        Err(error) => return wrong(error),
    };
    let dtype = if x.dtype().bits() < 32 { DType::F32 } else { x.dtype() };
    let sum = reduce_window(&x.cast(dtype), BinaryOp::Add, 0.0, window.clone());
    // The number of elements in each window: the same for every example and channel.
    let (last, dims) = (window.len() - 1, x.dims());
    let places = x.graph().full(dtype, &dims[1..last], 1.0);
    let counts = reduce_window(&places, BinaryOp::Add, 0.0, window[1..last].to_vec());
    let axes: Vec<i64> = (1..last as i64).collect();
    (&sum / counts.broadcast_in_dim(&sum.dims(), &axes)).cast(x.dtype())
}
