//! Common parts of convolution and pooling: the order of an image's axes, and sliding windows.

use super::at_least;
use bf16scope_hlo::ops::{RuleError, WindowDim};
use serde::{Deserialize, Serialize};

/// The order of axes in a batch of images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// `[batch, height, width, channels]`.
    #[default]
    ChannelsLast,
    /// `[batch, channels, height, width]`.
    ChannelsFirst,
}

impl DataFormat {
    /// The axis of channels.
    pub fn channels(self) -> i64 {
        match self {
            DataFormat::ChannelsLast => 3,
            DataFormat::ChannelsFirst => 1,
        }
    }

    /// The axes of height and width.
    pub fn spatial(self) -> [i64; 2] {
        match self {
            DataFormat::ChannelsLast => [1, 2],
            DataFormat::ChannelsFirst => [2, 3],
        }
    }

    /// The axes in words.
    pub(super) fn axes(self) -> &'static str {
        match self {
            DataFormat::ChannelsLast => "[batch, height, width, channels]",
            DataFormat::ChannelsFirst => "[batch, channels, height, width]",
        }
    }
}

/// The padding of an image for sliding windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// No padding.
    #[default]
    Valid,
    /// As much as gives `ceil(size / stride)` positions; an odd one is at the end. Depends on the image's size.
    Same,
    /// `[[above, below], [left, right]]`; not in YAML.
    #[serde(skip_deserializing)]
    Explicit([[i64; 2]; 2]),
}

impl Padding {
    /// TensorFlow's *fixed padding* of a square window of `size`: SAME for stride 1, independent of the image's size.
    pub fn fixed(size: i64) -> Padding {
        let before = (size - 1) / 2;
        Padding::Explicit([[before, size - 1 - before]; 2])
    }
}

/// A window that slides over height and width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sliding {
    pub size: [i64; 2],
    pub strides: [i64; 2],
    pub dilation: [i64; 2],
    pub padding: Padding,
    /// The number of spatial axes before it became an image: 1 for a sequence.
    pub n_axes: usize,
}

impl Sliding {
    /// The window over an image of `dims` in `format`.
    pub fn dims(&self, dims: &[i64], format: DataFormat) -> Result<[WindowDim; 2], RuleError> {
        for (name, values) in [("window", self.size), ("strides", self.strides), ("dilation", self.dilation)] {
            for value in values {
                at_least("window/positive", &format!("{name} {values:?}: one"), value, 1)?;
            }
        }
        let [height, width] = format.spatial().map(|axis| dims[axis as usize]);
        Ok([self.dim(0, height)?, self.dim(1, width)?])
    }

    /// The window along spatial axis `axis` of `n` elements.
    fn dim(&self, axis: usize, n: i64) -> Result<WindowDim, RuleError> {
        along(n, (self.size[axis], self.strides[axis], self.dilation[axis]), self.padding, (axis, self.n_axes))
    }
}

/// The name of axis `axis` of `n_axes`.
fn axis_name(axis: usize, n_axes: usize) -> &'static str {
    match n_axes {
        1 => "the sequence",
        2 => ["height", "width"][axis],
        _ => ["depth", "height", "width"][axis],
    }
}

/// The window along axis `axis` of `n_axes`, which has `n` elements.
pub(super) fn along(
    n: i64,
    (size, stride, window_dilation): (i64, i64, i64),
    padding: Padding,
    (axis, n_axes): (usize, usize),
) -> Result<WindowDim, RuleError> {
    let extent = (size - 1).saturating_mul(window_dilation).saturating_add(1);
    let [padding_low, padding_high] = match padding {
        Padding::Same => {
            let n_positions = n.saturating_add(stride - 1) / stride;
            let total = ((n_positions - 1).saturating_mul(stride)).saturating_add(extent).saturating_sub(n).max(0);
            [total / 2, total - total / 2]
        }
        Padding::Valid => [0, 0],
        Padding::Explicit(padding) => {
            let Some(&sides) = padding.get(axis) else {
                let message = format!("padding {padding:?} is of an image, expected `same` or `valid`");
                return Err(RuleError::new("window/padding", message));
            };
            for value in sides {
                at_least("window/padding", &format!("padding {padding:?}: one"), value, 0)?;
            }
            sides
        }
    };
    let window = WindowDim { stride, padding_low, padding_high, window_dilation, ..WindowDim::of_size(size) };
    if window.n_positions(n) == 0 {
        let axis = axis_name(axis, n_axes);
        let message =
            format!("window covers {extent} along {axis}, which is {n} with padding {padding_low}_{padding_high}");
        return Err(
            RuleError::new("window/fit", message).with_help("pad with `padding: same`, or make the window smaller")
        );
    }
    Ok(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TensorFlow's own windows, from `tests/data/oracle_tf/resnet_block_bf16.hlo.txt`, and the cases that differ.
    #[test]
    fn same_pads_as_tensorflow() {
        for (n, size, stride, dilation, expected) in [
            (32, 7, 2, 1, (2, 3, 16)),
            (16, 3, 2, 1, (0, 1, 8)),
            (8, 1, 2, 1, (0, 0, 4)),
            (224, 7, 2, 1, (2, 3, 112)),
            (225, 7, 2, 1, (3, 3, 113)),
            (10, 3, 1, 2, (2, 2, 10)),
            (2, 1, 5, 1, (0, 0, 1)),
        ] {
            let sliding = Sliding {
                size: [size; 2],
                strides: [stride; 2],
                dilation: [dilation; 2],
                padding: Padding::Same,
                n_axes: 2,
            };
            let dim = sliding.dim(0, n).unwrap();
            assert_eq!((dim.padding_low, dim.padding_high, dim.n_positions(n)), expected, "{n} {size} {stride}");
        }
    }

    #[test]
    fn fixed_padding_ignores_the_size() {
        assert_eq!(Padding::fixed(7), Padding::Explicit([[3, 3], [3, 3]]));
        assert_eq!(Padding::fixed(2), Padding::Explicit([[0, 1], [0, 1]]));
    }
}
