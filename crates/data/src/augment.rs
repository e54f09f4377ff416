//! Augmentation: random changes of training examples; images with their masks, and mixing of two examples.
//!
//! Every random choice is drawn from the example's [`Draw`], a function of seed, epoch and index, so a resumed run sees
//! the same images as an uninterrupted one. Evaluation sees examples unchanged.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::f32::consts::PI;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::cast::numbers;
use super::feature::Feature;
use super::learnt::Learnt;
use super::random::{Draw, Purpose, SplitMix64};
use super::source::{ArrayInfo, ColumnSize, Elements, Fingerprint, Reading, Skipped, Source, Spent, Take};
use crate::error::{DataError, DataErrorKind, DataPlace};
use bf16scope_hlo::DType;

/// How examples are changed: first geometry, then colour, then erasing, then mixing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Augment {
    /// Arrays that are moved with the images by nearest-neighbour sampling: masks.
    pub masks: Vec<String>,
    /// Mirrors half of the images left to right.
    pub flip: bool,
    /// Mirrors half of the images top to bottom.
    pub flip_vertical: bool,
    /// The largest rotation in degrees, either way.
    pub rotation: f32,
    /// The largest translation, as a share of height and width, either way.
    pub translation: f32,
    /// The largest zoom in or out, as a share.
    pub zoom: f32,
    /// Pixels are multiplied by a factor drawn from `1 ± brightness`.
    pub brightness: f32,
    /// Differences from the image's mean are multiplied by a factor drawn from `1 ± contrast`.
    pub contrast: f32,
    /// Differences of a colour from its grey are multiplied by a factor drawn from `1 ± saturation`.
    pub saturation: f32,
    /// The share of images in which a random rectangle is set to 0.
    pub erasing: f32,
    /// The `α` of Beta(α, α), by which two examples and their labels are blended. 0 turns it off.
    pub mixup: f32,
    /// The `α` of Beta(α, α), which draws how large a rectangle of another example is pasted in, and its share of the
    /// label. 0 turns it off.
    pub cutmix: f32,
}

/// Random erasing: a rectangle of 2 % to a third of the image, up to 3.3 times as wide as high (Zhong et al. 2017).
const ERASED: [f32; 2] = [0.02, 0.33];
const ERASED_ASPECT: f32 = 3.3;

impl Augment {
    /// The first invalid option: the key, the value, and the values it accepts.
    pub fn fault(&self) -> Option<(&'static str, f32, &'static str)> {
        let shares = [
            ("translation", self.translation),
            ("zoom", self.zoom),
            ("brightness", self.brightness),
            ("contrast", self.contrast),
            ("saturation", self.saturation),
        ];
        let share = shares.into_iter().find(|(_, value)| !(0.0..1.0).contains(value));
        if let Some((key, value)) = share {
            return Some((key, value, "a share from 0 up to but not including 1"));
        }
        if !(0.0..=180.0).contains(&self.rotation) {
            return Some(("rotation", self.rotation, "degrees from 0 to 180"));
        }
        if !(0.0..=1.0).contains(&self.erasing) {
            return Some(("erasing", self.erasing, "a share of the images, from 0 to 1"));
        }
        let alphas = [("mixup", self.mixup), ("cutmix", self.cutmix)];
        let alpha = alphas.into_iter().find(|(_, value)| !(0.0..=100.0).contains(value));
        alpha.map(|(key, value)| (key, value, "a number from 0 to 100, such as 0.2"))
    }

    /// The first label that has the height and width of the images, and stays as it is while they are moved: most
    /// likely a mask that `masks` should name.
    pub fn left_behind<'f>(&self, features: &'f [Feature]) -> Option<&'f Feature> {
        let image = image_of(features).filter(|_| self.moves())?;
        let has_its_size = |dims: &[i64]| dims.len() > 1 && dims.get(..2) == image.dims.get(..2);
        features
            .iter()
            .find(|feature| feature.is_label && has_its_size(&feature.dims) && !self.masks.contains(&feature.name))
    }

    fn moves(&self) -> bool {
        self.flip || self.flip_vertical || self.rotation > 0.0 || self.translation > 0.0 || self.zoom > 0.0
    }

    fn mixes(&self) -> bool {
        self.mixup > 0.0 || self.cutmix > 0.0
    }
}

/// The role of an array in augmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Image,
    Mask,
    /// Labels, which are blended when examples are.
    Label,
    Other,
}

/// A source whose training examples are augmented.
#[derive(Debug)]
pub struct Augmented {
    source: Box<dyn Source>,
    augment: Augment,
    infos: Vec<ArrayInfo>,
    roles: Vec<Role>,
}

impl Augmented {
    /// Wraps a source so that its training examples are augmented. Images are features of `[height, width, channels]`
    /// that the network computes with.
    ///
    /// # Errors
    /// There is no image; a mask is missing, or has another height or width; examples are to be mixed and their labels
    /// are not distributions.
    pub fn new(source: Box<dyn Source>, features: &[Feature], augment: Augment) -> Result<Augmented, DataError> {
        let wrong = |message: String, help: &str| {
            Err(DataError::new(DataErrorKind::Request, DataPlace::Nowhere, message).help(help))
        };
        let feature = |name: &str| features.iter().find(|feature| feature.name == name);
        let role = |info: &ArrayInfo| match feature(&info.name) {
            _ if augment.masks.contains(&info.name) => Role::Mask,
            Some(feature) if !feature.is_label && feature.n_values.is_none() && is_image(&feature.dims) => Role::Image,
            Some(feature) if feature.is_label => Role::Label,
            _ => Role::Other,
        };
        let mut infos = source.arrays().to_vec();
        let roles: Vec<Role> = infos.iter().map(role).collect();
        let Some(image) = image_of(features).filter(|_| roles.contains(&Role::Image)) else {
            return wrong(
                "`augment` changes images, and no feature is `[height, width, channels]`".to_string(),
                "leave it out",
            );
        };
        for mask in &augment.masks {
            let dims = feature(mask).map(|feature| feature.dims.clone()).unwrap_or_default();
            if dims.get(..2) != image.dims.get(..2) {
                let message = format!("`{mask}` of `masks` is {dims:?}, and images are {:?}", image.dims);
                return wrong(message, "name features of the same height and width");
            }
        }
        for (info, role) in infos.iter_mut().zip(&roles) {
            let is_class = feature(&info.name).is_some_and(|feature| feature.n_values.is_some());
            if augment.mixes() && (*role == Role::Label && is_class || *role == Role::Mask) {
                let message = format!("`mixup` and `cutmix` blend labels, and `{}` is whole numbers", info.name);
                let help = "learn distributions: `softmax_cross_entropy`, with `one_hot: true` of the label";
                return wrong(message, help);
            }
            let is_changed = *role == Role::Image || augment.mixes() && *role == Role::Label;
            if is_changed {
                // Augmented pixels are numbers in f32.
                (info.dtype, info.scale) = (DType::F32, 1.0);
            }
        }
        Ok(Augmented { source, augment, infos, roles })
    }

    /// The arrays of an example: as f32 those that are augmented, as bytes the others.
    fn arrays_of(&self, index: u64, draw: Option<Draw>) -> Result<(Vec<Array>, Option<Spent>), DataError> {
        let source_arrays = self.source.arrays();
        let mut bytes: Vec<Vec<u8>> = vec![Vec::new(); source_arrays.len()];
        let mut values: Vec<Vec<f32>> = vec![Vec::new(); source_arrays.len()];
        let spent = self.source.give(index, draw, &mut |at, elements| {
            match elements {
                Elements::F32s(numbers) => values[at].extend_from_slice(numbers),
                Elements::Bytes(piece) => bytes[at].extend_from_slice(piece),
            }
            Ok(())
        })?;
        let array = |at: usize| {
            let is_changed =
                self.infos[at].dtype != source_arrays[at].dtype || self.infos[at].scale != source_arrays[at].scale;
            let is_f32 = source_arrays[at].dtype == DType::F32;
            if !values[at].is_empty() {
                return Array::F32(
                    std::mem::take(&mut values[at]).into_iter().map(|x| x * source_arrays[at].scale).collect(),
                );
            }
            match is_changed || is_f32 && self.roles[at] != Role::Other {
                true => {
                    Array::F32(f32s(source_arrays[at].dtype, &bytes[at]).map(|x| x * source_arrays[at].scale).collect())
                }
                false => Array::Bytes(std::mem::take(&mut bytes[at])),
            }
        };
        Ok(((0..source_arrays.len()).map(array).collect(), spent))
    }
}

/// An array of an example while it is augmented.
#[derive(Clone, Debug)]
enum Array {
    F32(Vec<f32>),
    Bytes(Vec<u8>),
}

impl Source for Augmented {
    fn n_examples(&self) -> u64 {
        self.source.n_examples()
    }

    fn arrays(&self) -> &[ArrayInfo] {
        &self.infos
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        let (arrays, _) = self.arrays_of(index, None)?;
        let bytes = |array: Array| match array {
            Array::F32(numbers) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Array::Bytes(bytes) => bytes,
        };
        Ok(arrays.into_iter().map(|array| Cow::Owned(bytes(array))).collect())
    }

    fn give(&self, index: u64, draw: Option<Draw>, take: &mut Take<'_>) -> Result<Option<Spent>, DataError> {
        let (mut arrays, spent) = self.arrays_of(index, draw)?;
        if let Some(draw) = draw {
            self.change(&mut arrays, draw);
            if self.augment.mixes() {
                let mut random = draw.stream(Purpose::Mix);
                let partner = random.below(self.n_examples());
                let (mut others, _) = self.arrays_of(partner, Some(draw.of_partner()))?;
                self.change(&mut others, draw.of_partner());
                self.mix(&mut arrays, &others, &mut random);
            }
        }
        for (at, array) in arrays.iter().enumerate() {
            match array {
                Array::F32(numbers) => take(at, Elements::F32s(numbers))?,
                Array::Bytes(bytes) => take(at, Elements::Bytes(bytes))?,
            }
        }
        Ok(spent)
    }

    fn place(&self, index: u64) -> String {
        self.source.place(index)
    }

    /// Another augmentation gives another fingerprint.
    fn fingerprint(&self) -> Fingerprint {
        let mut fingerprint = self.source.fingerprint();
        let augment = serde_json::to_string(&self.augment).expect("numbers and names have a JSON form");
        for hash in fingerprint.arrays.values_mut() {
            *hash = bf16scope_files::hex(Sha256::new().chain_update(&*hash).chain_update(&augment).finalize());
        }
        fingerprint
    }

    fn reading(&self) -> Reading {
        self.source.reading()
    }

    fn classes(&self) -> BTreeMap<String, Vec<String>> {
        self.source.classes()
    }

    fn learnt(&self) -> Option<&Learnt> {
        self.source.learnt()
    }

    fn columns(&self, array: &str) -> Option<Vec<ColumnSize>> {
        self.source.columns(array)
    }

    fn skipped(&self) -> Option<&Skipped> {
        self.source.skipped()
    }
}

/// Where each pixel of a result comes from: `source = matrix · (pixel − centre) + centre + shift`.
#[derive(Clone, Copy)]
struct Geometry {
    matrix: [f32; 4],
    shift: [f32; 2],
}

impl Augmented {
    /// Moves, colours and erases an example's images, and moves its masks.
    fn change(&self, arrays: &mut [Array], draw: Draw) {
        let mut geometry = draw.stream(Purpose::Geometry);
        let mut colour = draw.stream(Purpose::Colour);
        let mut erase = draw.stream(Purpose::Erase);
        let geometry = self.augment.moves().then(|| self.geometry(&mut geometry));
        let mut jitter = |by: f32| 1.0 + by * (2.0 * colour.share() - 1.0);
        let augment = &self.augment;
        let (brightness, contrast, saturation) =
            (jitter(augment.brightness), jitter(augment.contrast), jitter(augment.saturation));
        let is_erased = erase.share() < augment.erasing;
        let rectangle = [erase.share(), erase.share(), erase.share(), erase.share()];
        for (at, array) in arrays.iter_mut().enumerate() {
            let dims = &self.infos[at].dims;
            let (role, Some(size)) = (self.roles[at], size_of(dims)) else { continue };
            if !matches!(role, Role::Image | Role::Mask) {
                continue;
            }
            if let Some(geometry) = geometry {
                match array {
                    Array::F32(pixels) if role == Role::Image => *pixels = geometry.bilinear(pixels, size),
                    Array::F32(pixels) => *pixels = geometry.nearest(pixels, size, size[2]),
                    Array::Bytes(bytes) => {
                        let n_bytes = bytes.len() / (size[0] * size[1]).max(1);
                        *bytes = geometry.nearest(bytes, size, n_bytes);
                    }
                }
            }
            let Array::F32(pixels) = array else { continue };
            if role != Role::Image {
                continue;
            }
            colours(pixels, size[2], (brightness, contrast, saturation));
            if is_erased {
                let [top, left, height, width] = erased(rectangle, size);
                for row in top..top + height {
                    pixels[(row * size[1] + left) * size[2]..][..width * size[2]].fill(0.0);
                }
            }
        }
    }

    fn geometry(&self, random: &mut SplitMix64) -> Geometry {
        let augment = &self.augment;
        let mut either = |by: f32| by * (2.0 * random.share() - 1.0);
        let angle = either(augment.rotation) * PI / 180.0;
        let shift = [either(augment.translation), either(augment.translation)];
        let zoom = 1.0 + either(augment.zoom);
        let signs = [either(1.0) < 0.0 && augment.flip_vertical, either(1.0) < 0.0 && augment.flip];
        let [down, across] = signs.map(|is_flipped| if is_flipped { -1.0 / zoom } else { 1.0 / zoom });
        let (sin, cos) = angle.sin_cos();
        Geometry { matrix: [cos * down, -sin * across, sin * down, cos * across], shift }
    }

    /// Blends an example with another, or puts a rectangle of the other into it.
    fn mix(&self, arrays: &mut [Array], others: &[Array], random: &mut SplitMix64) {
        let augment = &self.augment;
        // With both mixup and cutmix, each is chosen with probability 1/2.
        let cuts = match (augment.mixup > 0.0, augment.cutmix > 0.0) {
            (true, true) => random.below(2) == 0,
            (_, cuts) => cuts,
        };
        let share = beta(if cuts { augment.cutmix } else { augment.mixup }, random);
        let place = [random.share(), random.share()];
        let mut stays = share;
        for at in 0..arrays.len() {
            let (Array::F32(pixels), Array::F32(other), Role::Image, Some(size)) =
                (&mut arrays[at], &others[at], self.roles[at], size_of(&self.infos[at].dims))
            else {
                continue;
            };
            if !cuts {
                pixels.iter_mut().zip(other).for_each(|(pixel, other)| *pixel = share * *pixel + (1.0 - share) * other);
                continue;
            }
            // A rectangle of 1 − share of the image, centred at a place that may be near the edge; only the part inside
            // the image counts.
            let side = (1.0 - share).sqrt();
            let [rows, columns] = [0, 1].map(|axis| {
                let (n, middle) = (size[axis] as f32, place[axis] * size[axis] as f32);
                let half = side * n / 2.0;
                (middle - half).round().max(0.0) as usize..((middle + half).round() as usize).min(size[axis])
            });
            for row in rows.clone() {
                let at = (row * size[1] + columns.start) * size[2];
                let n = columns.len() * size[2];
                pixels[at..at + n].copy_from_slice(&other[at..at + n]);
            }
            stays = 1.0 - (rows.len() * columns.len()) as f32 / (size[0] * size[1]) as f32;
        }
        for at in (0..arrays.len()).filter(|&at| self.roles[at] == Role::Label) {
            if let (Array::F32(labels), Array::F32(other)) = (&mut arrays[at], &others[at]) {
                labels.iter_mut().zip(other).for_each(|(label, other)| *label = stays * *label + (1.0 - stays) * other);
            }
        }
    }
}

impl Geometry {
    fn from(&self, row: usize, column: usize, [height, width, _]: [usize; 3]) -> [f32; 2] {
        let [middle_row, middle_column] = [(height as f32 - 1.0) / 2.0, (width as f32 - 1.0) / 2.0];
        let (y, x) = (row as f32 - middle_row, column as f32 - middle_column);
        let [a, b, c, d] = self.matrix;
        [
            a * y + b * x + middle_row + self.shift[0] * height as f32,
            c * y + d * x + middle_column + self.shift[1] * width as f32,
        ]
    }

    /// Bilinear interpolation of the four nearest pixels; 0 beyond the edge.
    fn bilinear(&self, pixels: &[f32], size: [usize; 3]) -> Vec<f32> {
        let [height, width, channels] = size;
        let at = |row: i64, column: i64, channel: usize| match (0..height as i64).contains(&row)
            && (0..width as i64).contains(&column)
        {
            true => pixels[(row as usize * width + column as usize) * channels + channel],
            false => 0.0,
        };
        let mut out = Vec::with_capacity(pixels.len());
        for row in 0..height {
            for column in 0..width {
                let [y, x] = self.from(row, column, size);
                let (top, left) = (y.floor(), x.floor());
                let (down, right) = (y - top, x - left);
                let (top, left) = (top as i64, left as i64);
                for channel in 0..channels {
                    let line = |row: i64| (1.0 - right) * at(row, left, channel) + right * at(row, left + 1, channel);
                    out.push((1.0 - down) * line(top) + down * line(top + 1));
                }
            }
        }
        out
    }

    /// The nearest pixel, `n` values wide; 0, the background, beyond the edge.
    fn nearest<T: Copy + Default>(&self, values: &[T], size: [usize; 3], n: usize) -> Vec<T> {
        let [height, width, _] = size;
        let mut out = Vec::with_capacity(values.len());
        for row in 0..height {
            for column in 0..width {
                let [y, x] = self.from(row, column, size).map(f32::round);
                let is_inside = (0.0..height as f32).contains(&y) && (0.0..width as f32).contains(&x);
                match is_inside {
                    true => out.extend_from_slice(&values[(y as usize * width + x as usize) * n..][..n]),
                    false => out.resize(out.len() + n, T::default()),
                }
            }
        }
        out
    }
}

/// Scales pixels (brightness), their differences from the image's mean (contrast), and those from their grey
/// (saturation).
fn colours(pixels: &mut [f32], channels: usize, (brightness, contrast, saturation): (f32, f32, f32)) {
    if brightness != 1.0 {
        pixels.iter_mut().for_each(|pixel| *pixel *= brightness);
    }
    if contrast != 1.0 {
        let mean = (pixels.iter().map(|pixel| f64::from(*pixel)).sum::<f64>() / pixels.len().max(1) as f64) as f32;
        pixels.iter_mut().for_each(|pixel| *pixel = mean + (*pixel - mean) * contrast);
    }
    if saturation != 1.0 && channels == 3 {
        for pixel in pixels.chunks_exact_mut(3) {
            // The luma of ITU-R BT.601.
            let grey = 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2];
            pixel.iter_mut().for_each(|channel| *channel = grey + (*channel - grey) * saturation);
        }
    }
}

/// Top, left, height and width of the erased rectangle, from four shares.
fn erased([area, aspect, top, left]: [f32; 4], [height, width, _]: [usize; 3]) -> [usize; 4] {
    let area = (ERASED[0] + area * (ERASED[1] - ERASED[0])) * (height * width) as f32;
    let aspect = ERASED_ASPECT.powf(2.0 * aspect - 1.0);
    let side = |length: f32, most: usize| (length.round() as usize).clamp(1, most.max(1));
    let (tall, wide) = (side((area / aspect).sqrt(), height), side((area * aspect).sqrt(), width));
    let place = |share: f32, room: usize| ((share * (room + 1) as f32) as usize).min(room);
    [place(top, height - tall), place(left, width - wide), tall, wide]
}

/// A draw of Beta(α, α), by Jöhnk's method for α up to 1 and two gammas by Marsaglia and Tsang's above.
fn beta(alpha: f32, random: &mut SplitMix64) -> f32 {
    let alpha = f64::from(alpha);
    let mut share = || f64::from(random.share()).max(1e-12);
    if alpha <= 1.0 {
        // At most one try in four fails; a thousand failures in a row are a bug.
        for _ in 0..1000 {
            let (x, y) = (share().powf(1.0 / alpha), share().powf(1.0 / alpha));
            if x + y <= 1.0 && x + y > 0.0 {
                return (x / (x + y)) as f32;
            }
        }
        return 1.0;
    }
    let mut gamma = || {
        let d = alpha - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let (u, v) = (share(), share());
            let normal = (-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos();
            let cube = (1.0 + c * normal).powi(3);
            if cube > 0.0 && share().ln() < normal * normal / 2.0 + d - d * cube + d * cube.ln() {
                return d * cube;
            }
        }
    };
    let (x, y) = (gamma(), gamma());
    (x / (x + y)) as f32
}

/// Numbers as f32; empty for dtypes without numbers.
fn f32s(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = f32> {
    numbers(dtype, bytes).into_iter().flatten().map(|number| number as f32)
}

/// The first feature that is an image.
fn image_of(features: &[Feature]) -> Option<&Feature> {
    features.iter().find(|feature| !feature.is_label && feature.random.is_none() && is_image(&feature.dims))
}

fn is_image(dims: &[i64]) -> bool {
    matches!(dims, [height, width, channels] if *height > 1 && *width > 1 && *channels <= 4)
}

/// Height, width and channels; a mask without a channel axis has 1.
fn size_of(dims: &[i64]) -> Option<[usize; 3]> {
    match *dims {
        [height, width] => Some([height as usize, width as usize, 1]),
        [height, width, channels] => Some([height as usize, width as usize, channels as usize]),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
