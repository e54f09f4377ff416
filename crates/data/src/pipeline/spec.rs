//! How a feature is made from a value: the available options, and the processing of images.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::tensor::Tensor;
use crate::error::{DataError, DataErrorKind, DataPlace};
use crate::feature::{Feature, is_whole};
use crate::image::{self, Buffers, CenterCrop, DctMethod, RandomResizedCrop, Resize, Resizing, Window, resize};
use crate::random::{Draw, Purpose};
use crate::words::WordVectors;
use bf16scope_hlo::DType;

/// The source and the transforms of a feature: the `features` of `data`, by name.
///
/// Bytes are an encoded image, unless `raw` says otherwise: decoded to the feature's channels, cropped, resized to its
/// height and width, flipped, normalised. Whole numbers and floats are used unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FeatureSpec {
    /// The key in the records. Default: the feature's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Bytes are elements of this dtype, little-endian, as `tf.io.decode_raw` reads them; or `tensor`, the output of
    /// `tf.io.serialize_tensor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw: Option<RawType>,
    /// Bytes are text, encoded by a table of word vectors: as vectors, or as word numbers from 1 if the feature has
    /// integers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub word_vectors: Option<WordVectors>,
    /// JPEG images: how blocks become pixels. Default `integer_accurate`; TensorFlow's own default is `integer_fast`.
    #[serde(skip_serializing_if = "is_accurate")]
    pub dct_method: Option<DctMethod>,
    /// Images in training: a random window. Evaluation takes the centre, and so does training where no window is found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_resized_crop: Option<RandomResizedCrop>,
    /// Images: the centre crop, for evaluation. Default: the recipe's with `random_resized_crop`, otherwise the whole
    /// image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub center_crop: Option<CenterCrop>,
    /// Images: how the window is resized to the feature's height and width. Default: no resizing; the window must have
    /// that size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resize: Option<Resize>,
    /// For `resize`: whether pixels are sampled at their centres, as in TensorFlow 2 and not as in TensorFlow 1.
    /// Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub half_pixel_centers: bool,
    /// Images in training: half of them are mirrored left to right. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub random_flip: bool,
    /// Images: subtracted from each channel. Default 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mean: Vec<f32>,
    /// Images: divides each channel, after `mean` is subtracted. Default 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub std: Vec<f32>,
    /// Whole numbers: added to each. −1 turns labels from 1 to 1,000 into 0 to 999. Default 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub offset: i64,
    /// Text: the names of the classes, starting with class 0; a name becomes its number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// A whole number: it becomes a one-hot row. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub one_hot: bool,
}

/// The default is not recorded, so a run that began before the option existed can go on.
fn is_accurate(value: &Option<DctMethod>) -> bool {
    value.unwrap_or_default() == DctMethod::IntegerAccurate
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// The dtype of raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum RawType {
    U8,
    S8,
    U16,
    S16,
    S32,
    S64,
    F16,
    Bf16,
    F32,
    F64,
    /// The output of `tf.io.serialize_tensor`, which contains its dtype and dims.
    Tensor,
}

impl RawType {
    /// The dtype of the elements; `None` if the bytes are not a tensor.
    pub(super) fn dtype(self, bytes: &[u8]) -> Option<DType> {
        Some(match self {
            RawType::U8 => DType::U8,
            RawType::S8 => DType::S8,
            RawType::U16 => DType::U16,
            RawType::S16 => DType::S16,
            RawType::S32 => DType::S32,
            RawType::S64 => DType::S64,
            RawType::F16 => DType::F16,
            RawType::Bf16 => DType::BF16,
            RawType::F32 => DType::F32,
            RawType::F64 => DType::F64,
            RawType::Tensor => return Tensor::dtype_of(bytes),
        })
    }
}

impl FeatureSpec {
    /// The first option that does not fit this feature: the path of keys, the fault, and the accepted values.
    pub fn fault(&self, feature: &Feature) -> Option<(Vec<&'static str>, String, String)> {
        self.crop_fault()
            .or_else(|| self.word_vectors_fault(feature))
            .or_else(|| self.image_fault(feature))
            .or_else(|| self.channels_fault(feature))
            .or_else(|| self.classes_fault(feature))
            .or_else(|| self.size_fault(feature))
    }

    fn crop_fault(&self) -> Option<Fault> {
        let (option, measured, expected) = self.random_resized_crop.as_ref().and_then(RandomResizedCrop::fault)?;
        Some((vec!["random_resized_crop", option], format!("`{option}: {measured}`"), expected.to_string()))
    }

    fn word_vectors_fault(&self, feature: &Feature) -> Option<Fault> {
        self.word_vectors.as_ref()?;
        if let Some(other) = self.of_other_values(self.one_hot.then_some("one_hot")) {
            return beside(other, "word_vectors", "`word_vectors` makes numbers of text");
        }
        let is_ids = is_whole(feature);
        if feature.dims.is_empty() || feature.dims.len() > if is_ids { 1 } else { 2 } {
            let kind = if is_ids { "[words]" } else { "[numbers] or [words, numbers]" };
            return for_other_dims("word_vectors", kind, feature);
        }
        None
    }

    fn image_fault(&self, feature: &Feature) -> Option<Fault> {
        let key = self.of_images()?;
        if !is_image(&feature.dims) {
            return for_other_dims(key, "an image, [height, width, 1 or 3]", feature);
        }
        if self.raw.is_some() {
            return beside("raw", key, "raw bytes are not an encoded image");
        }
        if self.offset != 0 || self.one_hot {
            return beside(if self.one_hot { "one_hot" } else { "offset" }, key, "an image is not an integer");
        }
        None
    }

    /// A fault of `mean` or `std`, which have a number for each channel.
    fn channels_fault(&self, feature: &Feature) -> Option<Fault> {
        let n_channels = feature.dims.last().copied().unwrap_or(1);
        let fault = |key: &'static str, numbers: &[f32], is_good: fn(f32) -> bool, expected: &str| {
            let is_right =
                numbers.is_empty() || numbers.len() as i64 == n_channels && numbers.iter().all(|&n| is_good(n));
            let expected = || format!("{expected}, one for each of {n_channels} channels");
            (!is_right).then(|| (vec![key], format!("`{key}: {numbers:?}`"), expected()))
        };
        fault("mean", &self.mean, f32::is_finite, "finite numbers")
            .or_else(|| fault("std", &self.std, |std| std.is_normal() && std > 0.0, "numbers above 0"))
    }

    fn classes_fault(&self, feature: &Feature) -> Option<Fault> {
        if self.classes.is_empty() {
            return None;
        }
        if let Some(other) = self.of_other_values(self.word_vectors.as_ref().map(|_| "word_vectors")) {
            return beside(other, "classes", "`classes` makes numbers of names");
        }
        let names: BTreeSet<&String> = self.classes.iter().collect();
        if names.len() < self.classes.len() {
            return Some((vec!["classes"], "one name twice in `classes`".to_string(), "each class once".to_string()));
        }
        if !(self.one_hot || is_whole(feature) && feature.dims.is_empty()) {
            return for_other_dims("classes", "one whole number", feature);
        }
        None
    }

    /// A fault of the size of what is resized, or of a one-hot row.
    fn size_fault(&self, feature: &Feature) -> Option<Fault> {
        if self.half_pixel_centers && self.resize.is_none() {
            let measured = "`half_pixel_centers` without `resize`".to_string();
            let expected = "it with `resize: bicubic` or `resize: bilinear`".to_string();
            return Some((vec!["half_pixel_centers"], measured, expected));
        }
        if self.one_hot && feature.dims.len() != 1 {
            return for_other_dims("one_hot", "a row, one number for each class", feature);
        }
        None
    }

    /// The first set option for values that are no text: images, raw bytes, `other`, numbers with an offset.
    fn of_other_values(&self, other: Option<&'static str>) -> Option<&'static str> {
        let raw = || self.raw.map(|_| "raw");
        self.of_images().or_else(raw).or(other).or((self.offset != 0).then_some("offset"))
    }

    /// The first set option that applies only to images.
    fn of_images(&self) -> Option<&'static str> {
        [
            ("dct_method", self.dct_method.is_some()),
            ("random_resized_crop", self.random_resized_crop.is_some()),
            ("center_crop", self.center_crop.is_some()),
            ("resize", self.resize.is_some()),
            ("random_flip", self.random_flip),
            ("mean", !self.mean.is_empty()),
            ("std", !self.std.is_empty()),
        ]
        .into_iter()
        .find_map(|(key, is_set)| is_set.then_some(key))
    }

    /// The image as the network takes it: `[height, width, channels]` in f32.
    ///
    /// # Errors
    /// An image that cannot be decoded, or that has another size and no `resize`.
    ///
    /// # Panics
    /// For dims that are not an image's.
    pub fn image(&self, bytes: &[u8], dims: &[i64], draw: Option<Draw>) -> Result<Vec<f32>, DataError> {
        let mut pixels = Vec::new();
        self.rows(bytes, dims, draw, &mut Scratch::default(), |row| {
            pixels.extend_from_slice(row);
            Ok(())
        })?;
        Ok(pixels)
    }

    /// The rows of [`image`](FeatureSpec::image), one after the other.
    pub(super) fn rows(
        &self,
        bytes: &[u8],
        dims: &[i64],
        draw: Option<Draw>,
        scratch: &mut Scratch,
        mut take: impl FnMut(&[f32]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let &[height, width, channels] = dims else { unreachable!("dims {dims:?}, which are not an image's") };
        let (size, channels) = ([height as usize, width as usize], channels as usize);
        let window_of = |whole: [usize; 2]| {
            let drawn = self.random_resized_crop.as_ref().zip(draw);
            let drawn = drawn.and_then(|(crop, draw)| crop.window(whole, draw));
            drawn.unwrap_or_else(|| match (&self.center_crop, &self.random_resized_crop) {
                (Some(crop), _) => crop.window(whole, size),
                (None, Some(_)) => CenterCrop::default().window(whole, size),
                (None, None) => Window::whole(whole[0], whole[1]),
            })
        };
        let Scratch { buffers, resize, mean, std, decoding } = scratch;
        let began = Instant::now();
        let (decoded, window) =
            image::decode_window(bytes, channels, self.dct_method.unwrap_or_default(), window_of, buffers)?;
        *decoding += began.elapsed();
        if self.resize.is_none() && [window.height, window.width] != size {
            let Window { height, width, .. } = window;
            let message = format!("an image of {height} × {width} pixels; expected {} × {}", size[0], size[1]);
            let help = "say how it is made so under `features`, with `resize: bicubic` or `resize: bilinear`; where `data` \
                        is in memory, make it that size";
            return Err(DataError::new(DataErrorKind::Mismatch, DataPlace::Nowhere, message).help(help));
        }
        let is_flipped = self.random_flip && draw.is_some_and(flips);
        let resizing = Resizing { how: self.resize, window, size, is_half_pixel: self.half_pixel_centers, is_flipped };
        let is_normalised = !self.mean.is_empty() || !self.std.is_empty();
        if is_normalised {
            // As long as a row, so that a whole row is normalised at once.
            let fill = |row: &mut Vec<f32>, numbers: &[f32], default| {
                row.clear();
                row.extend((0..size[1] * channels).map(|idx| numbers.get(idx % channels).copied().unwrap_or(default)));
            };
            fill(mean, &self.mean, 0.0);
            fill(std, &self.std, 1.0);
        }
        let done = resizing.rows(&decoded, resize, |row| {
            if is_normalised {
                for ((value, mean), std) in row.iter_mut().zip(&*mean).zip(&*std) {
                    *value = (*value - mean) / std;
                }
            }
            take(row)
        });
        buffers.pixels = decoded.pixels;
        done
    }
}

/// A path of keys, what is wrong there, and the accepted values.
type Fault = (Vec<&'static str>, String, String);

/// The fault of an option that excludes another.
fn beside(key: &'static str, other: &str, reason: &str) -> Option<Fault> {
    Some((vec![key], format!("`{key}` with `{other}`"), format!("one of them: {reason}")))
}

/// The fault of an option that applies only to features of other dims.
fn for_other_dims(key: &'static str, dims: &str, feature: &Feature) -> Option<Fault> {
    let expected = format!("it of {dims}: `{}` has dims {:?}", feature.name, feature.dims);
    Some((vec![key], format!("`{key}`"), expected))
}

/// Whether to flip an image: true for half of them.
fn flips(draw: Draw) -> bool {
    draw.stream(Purpose::Flip).below(2) == 0
}

/// Working memory for an image, which a pipeline reuses for the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub buffers: Buffers,
    pub resize: resize::Scratch,
    pub mean: Vec<f32>,
    pub std: Vec<f32>,
    /// The total decoding time.
    pub decoding: Duration,
}

/// Whether an array of these dims is an image: `[height, width, channels]`.
pub(super) fn is_image(dims: &[i64]) -> bool {
    matches!(*dims, [height, width, 1 | 3] if height > 0 && width > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expectations from a separate implementation in Python. If this changes, resumed runs see other images than
    /// before: do not bless it.
    #[test]
    fn flips_never_change() {
        let first = |seed, epoch| -> String {
            (0..32).map(|example| if flips(Draw::new(seed, epoch, example)) { '1' } else { '0' }).collect()
        };
        assert_eq!(first(0, 0), "11111100010111101011101000001011");
        assert_eq!(first(0, 1), "11100001110001010110101110011001");
        assert_eq!(first(1, 0), "00011111011110101100100011110101");
    }
}
