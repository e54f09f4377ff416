//! One array of the batches: checks and casts the bytes of examples into their place.

use std::fmt::Display;

use half::{bf16, f16};

use super::NamedArray;
use crate::cast::{CASTABLE, Conversion, bounds, is_whole, number};
use crate::error::{DataError, DataErrorKind};
use crate::feature::{Feature, FeatureDType, first_improbable, first_outside};
use crate::shift;
use crate::source::{ArrayInfo, Elements, Source};
use bf16scope_hlo::DType;
use bf16scope_hlo::element::{are_finite, f64s};

/// A feature and the array that it is read from.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub feature: Feature,
    /// Its index among the source's arrays; `None` for a drawn feature.
    pub array: Option<usize>,
    /// The array's dtype and scale.
    pub from: DType,
    scale: f32,
    /// The dtype in the batch.
    pub to: DType,
    pub n_elements: usize,
    pub conversion: Conversion,
    /// Integers outside this range are an error.
    range: Option<(i128, i128)>,
    /// Whether a number may become non-finite in the batch.
    can_be_lost: bool,
}

impl Column {
    pub fn new(source: &dyn Source, feature: &Feature, compute: DType) -> Result<Column, DataError> {
        let arrays = source.arrays();
        let array = arrays.iter().position(|info| info.name == feature.name);
        let info = match (array, feature.random) {
            (Some(array), _) => arrays[array].clone(),
            (None, Some(_)) => ArrayInfo::new(&feature.name, DType::F32, &feature.dims[..]),
            (None, None) => {
                let names: Vec<String> = arrays.iter().map(|info| info.name.clone()).collect();
                return Err(DataError::no_array(source.place(0), &feature.name, &names));
            }
        };
        let ArrayInfo { name, dtype: array_dtype, dims, scale } = info;
        let Some(n_elements) = feature.n_elements() else {
            return Err(DataError::dims(&feature.dims));
        };
        if dims != feature.dims {
            return Err(DataError::other_dims(source.place(0), &name, &dims, &feature.dims));
        }
        let to = feature.dtype_in(compute);
        let cannot = |expected: &str| {
            let message = format!("array `{name}` is {array_dtype}, which does not become {to}; expected {expected}");
            DataError::new(DataErrorKind::Mismatch, source.place(0), message).help(in_numpy(&name, array_dtype, to))
        };
        // An element of `pred` is a byte of 0 or 1, a number like others.
        let is_truth = array_dtype == DType::Pred && to != DType::Pred;
        let from = if is_truth { DType::U8 } else { array_dtype };
        let conversion = match feature.dtype {
            FeatureDType::Compute if !CASTABLE.contains(&from) => {
                return Err(cannot("pred, integers of 8 to 64 bits, f16, bf16, f32 or f64"));
            }
            FeatureDType::Compute if from == to && scale == 1.0 => Conversion::Copy,
            FeatureDType::Compute => Conversion::Cast { from, scale, to },
            FeatureDType::Exact(_) if scale != 1.0 => {
                let message = format!(
                    "array `{name}` is multiplied with {scale} where it is cast, and its feature is {to} as it stands; expected \
                     a feature that is cast, or no scale"
                );
                return Err(DataError::new(DataErrorKind::Request, source.place(0), message));
            }
            FeatureDType::Exact(_) if from == to => Conversion::Copy,
            FeatureDType::Exact(_) if is_whole(from) && is_whole(to) => Conversion::Integers { from, to },
            FeatureDType::Exact(DType::F32) if is_whole(from) || matches!(from, DType::F16 | DType::BF16) => {
                Conversion::Cast { from, scale, to }
            }
            FeatureDType::Exact(_) if is_whole(to) => return Err(cannot("pred or integers of 8 to 64 bits")),
            FeatureDType::Exact(DType::F32) => return Err(cannot("pred, integers of 8 to 64 bits, f16, bf16 or f32")),
            FeatureDType::Exact(_) => return Err(cannot(to.name())),
        };
        let range = range(feature, from, to)?;
        let range =
            if is_truth { Some(range.map_or((0, 1), |(least, greatest)| (least, greatest.min(1)))) } else { range };
        let can_be_lost = can_be_lost(from, scale, to);
        Ok(Column { feature: feature.clone(), array, from, scale, to, n_elements, conversion, range, can_be_lost })
    }

    pub fn dst_bytes(&self) -> usize {
        self.n_elements * self.to.n_bytes()
    }

    pub fn zeros(&self, batch: usize) -> NamedArray {
        NamedArray {
            name: self.feature.name.clone(),
            dtype: self.to,
            dims: [batch as i64].into_iter().chain(self.feature.dims.iter().copied()).collect(),
            bytes: vec![0; batch * self.dst_bytes()],
        }
    }

    /// Its dims, if it is an image that can be shifted.
    pub fn image(&self) -> Option<[usize; 3]> {
        let &[height, width, channels] = self.feature.dims.as_slice() else { return None };
        let is_cast = self.feature.dtype == FeatureDType::Compute && self.feature.random.is_none();
        is_cast.then_some([height as usize, width as usize, channels as usize])
    }

    pub fn wrong_bytes(&self, measured: usize, place: impl Fn() -> String) -> DataError {
        let expected = self.n_elements * self.from.n_bytes();
        let message = format!(
            "array `{}` came with {measured} bytes; expected {expected}, as its dims and dtype say",
            self.feature.name
        );
        DataError::new(DataErrorKind::Mismatch, place(), message)
    }

    /// A number times the scale, in words.
    fn scaled(&self, value: f64) -> String {
        match self.scale {
            1.0 => String::new(),
            scale => format!(", and {} times the scale {scale}", value as f32 * scale),
        }
    }

    /// Whether [`check_range`](Column::check_range) accepts every value of the array's dtype.
    fn takes_any(&self) -> bool {
        let Feature { is_probability, is_weight, .. } = self.feature;
        !is_probability && !is_weight && self.range.is_none() && self.from != DType::Pred
    }

    /// Checks whole elements that come after `n_before` others.
    fn check_range(&self, src: &[u8], n_before: usize, place: impl Fn() -> String) -> Result<(), DataError> {
        let fault = |element: usize, value: &dyn Display, why: &dyn Display| {
            Err(self.number_error(place(), n_before + element, value, why))
        };
        let numbers = || f64s(self.from, src).expect("what is cast to a float is a number").enumerate();
        let is_below = |value: f64| (value as f32 * self.scale) < 0.0;
        if self.feature.is_weight
            && let Some((element, value)) = numbers().find(|(_, value)| is_below(*value))
        {
            let why = format!(
                "{}; expected a weight, 0 or more: with one below 0 training makes the loss of that example as great as it can",
                self.scaled(value)
            );
            return fault(element, &value, &why);
        }
        if self.feature.is_probability
            && let Some((element, value)) = first_improbable(self.from, src, self.scale)
        {
            return fault(element, &value, &format!("{}; expected a probability, from 0 to 1", self.scaled(value)));
        }
        if let Some((least, greatest)) = self.range
            && let Some((element, value)) = first_outside(self.from, src, least..=greatest)
        {
            return fault(element, &value, &format!("; expected a whole number from {least} to {greatest}"));
        }
        if self.from == DType::Pred
            && let Some(element) = src.iter().position(|&byte| byte > 1)
        {
            return fault(element, &src[element], &"; expected 0 or 1, which `pred` has");
        }
        Ok(())
    }

    /// Checks whole elements that come after `n_before` others, casts them into their place, and checks the result.
    pub fn fill(
        &self,
        src: Elements<'_>,
        dst: &mut [u8],
        n_before: usize,
        place: impl Fn() -> String,
    ) -> Result<(), DataError> {
        let bytes;
        let src = match src {
            Elements::F32s(_) if self.from != DType::F32 => {
                // The source passed elements of another dtype than it declared.
                bytes = src.bytes();
                Elements::Bytes(&bytes)
            }
            src => src,
        };
        if !self.takes_any() {
            self.check_range(&src.bytes(), n_before, &place)?;
        }
        self.conversion.run(src, dst);
        // A non-finite number was non-finite before the cast, or became so by it: the batch's bytes show both.
        match self.can_be_lost && !are_finite(self.to, dst) {
            true => Err(self.lost(&src.bytes(), dst, n_before, place())),
            false => Ok(()),
        }
    }

    /// The error for the first non-finite number in the batch.
    fn lost(&self, src: &[u8], dst: &[u8], n_before: usize, place: String) -> DataError {
        let width = self.to.n_bytes();
        let element = dst.chunks_exact(width).position(|bytes| !are_finite(self.to, bytes)).unwrap_or_default();
        let value = number(self.from, src, element).expect("what is cast to a float is a number");
        let element = n_before + element;
        if !value.is_finite() {
            return self.number_error(place, element, value, "; expected a finite number");
        }
        let (scaled, in_f32) = (
            if self.scale == 1.0 { String::new() } else { format!(", times the scale {},", self.scale) },
            if self.to == DType::F32 { "" } else { ", or train in f32 (--precision f32)" },
        );
        let greatest = greatest(self.to);
        let why = format!(", which{scaled} the cast to {} makes infinite: expected at most {greatest:e}", self.to);
        let help = format!("scale the features (`scale` under `data`){in_f32}");
        self.number_error(place, element, format_args!("{value:e}"), why).help(help)
    }

    /// The error for a number that the feature does not accept, at an element index from 0, row-major; `why` follows
    /// the number.
    fn number_error(&self, place: String, element: usize, value: impl Display, why: impl Display) -> DataError {
        let (feature, value) = (self.feature.name.clone(), value.to_string());
        let message = format!("number {element} of `{feature}` is {value}{why}");
        DataError::new(DataErrorKind::Value { feature, value }, place, message)
    }

    /// Copies an image of the batch's dtype into `dst`, which is zeros, shifted by this many pixels.
    pub fn copy_moved(&self, whole: &[u8], dst: &mut [u8], dims: [usize; 3], offset: (isize, isize)) {
        let width = self.to.n_bytes();
        for (from, to, len) in shift::runs(dims, offset) {
            dst[to * width..][..len * width].copy_from_slice(&whole[from * width..][..len * width]);
        }
    }
}

/// The largest finite number of a float dtype, in f32.
fn greatest(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => bf16::MAX.to_f32(),
        DType::F16 => f16::MAX.to_f32(),
        _ => f32::MAX,
    }
}

/// Whether casting a number of `from` may give a non-finite one, for dtypes whose finiteness is checked: floats of 16
/// to 64 bits, and integers whose extremes overflow in the cast. Rounding is monotone: if the extremes stay finite, all
/// values do.
fn can_be_lost(from: DType, scale: f32, to: DType) -> bool {
    if !matches!(to, DType::BF16 | DType::F16 | DType::F32 | DType::F64) {
        return false;
    }
    let (least, most) = bounds(from);
    !(is_whole(from) && [least, most].iter().all(|&value| (value as f32 * scale).abs() <= greatest(to)))
}

/// The integers that a feature accepts, if its array may hold others.
fn range(feature: &Feature, from: DType, to: DType) -> Result<Option<(i128, i128)>, DataError> {
    let (mut least, mut greatest) = bounds(to);
    if let Some(n) = feature.n_values {
        if !is_whole(to) || feature.dtype == FeatureDType::Compute || n <= 0 {
            return Err(DataError::request(format!(
                "feature `{}` is {to} below {n}; expected integers of 8 to 64 bits, and a positive bound",
                feature.name
            )));
        }
        least = 0;
        greatest = greatest.min(i128::from(n) - 1);
    }
    let (from_least, from_greatest) = bounds(from);
    if to == DType::F32 {
        // Every integer up to this one is exact in f32.
        (least, greatest) = (-(1 << 24), 1 << 24);
    }
    let is_needed = (is_whole(to) || to == DType::F32) && is_whole(from) && feature.dtype != FeatureDType::Compute;
    Ok((is_needed && (from_least < least || from_greatest > greatest)).then_some((least, greatest)))
}

/// How to convert an array of `from` to `wanted` in NumPy before saving it, if NumPy has that dtype.
fn in_numpy(name: &str, from: DType, wanted: DType) -> String {
    if matches!(from, DType::C64 | DType::C128) {
        return format!("save the part that is meant: in NumPy, `{name}.real`, `{name}.imag` or `abs({name})`");
    }
    let name_of = match wanted {
        DType::S8 | DType::S16 | DType::S32 | DType::S64 => format!("int{}", wanted.bits()),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => format!("uint{}", wanted.bits()),
        DType::F16 | DType::F32 | DType::F64 => format!("float{}", wanted.bits()),
        _ => return String::new(),
    };
    let only = if wanted.is_integer() { ", if these are whole numbers" } else { "" };
    format!("save it as {name_of}{only}: in NumPy, `{name}.astype('{name_of}')`")
}
