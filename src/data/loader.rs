//! Batches of named arrays: shuffled for training, in order for evaluation, cast to what the program computes in.
//!
//! What a batch holds is a function of seed, epoch and step alone, so a run that resumes anywhere sees the batches it
//! would have seen. [`Loader::ahead`] makes them by threads, one batch ahead. Copying to a device is not done here.

mod ahead;
mod example;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

pub use ahead::{Ask, Supply};

use super::convert::{CASTABLE, Conversion, bounds, integer, is_whole, number};
use super::error::DataError;
use super::feature::{Feature, FeatureDType};
use super::order::Order;
use super::random::Draw;
use super::shift;
use super::source::{ArrayInfo, Source};
use crate::hlo::DType;
use half::{bf16, f16};

/// A way to cut a source into batches of one size.
#[derive(Clone, Debug)]
pub struct Loader<'a> {
    source: &'a dyn Source,
    columns: Vec<Column>,
    batch: usize,
    seed: u64,
    /// Pixels by which images are shifted at most.
    max_shift: usize,
    n_workers: usize,
    /// Whether the source may leave examples out.
    is_strict: bool,
}

/// Examples that are looked at before training where reading each would take long.
const N_SAMPLED: u64 = 16;
/// Examples that are tried in the place of one that is left out: where as many in a row are bad, something else is wrong.
const MAX_TRIES: u64 = 1000;

/// One array of a batch, as bytes for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedArray {
    /// The feature's name.
    pub name: String,
    /// What the bytes are.
    pub dtype: DType,
    /// `[batch, …]`, then the feature's dims.
    pub dims: Vec<i64>,
    /// Row-major, little-endian.
    pub bytes: Vec<u8>,
}

/// One batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// One for each feature, in the order in which the loader was given them.
    pub arrays: Vec<NamedArray>,
    /// How many examples are real; those after them are padding: zeros, for the caller to leave out.
    pub n_valid: usize,
}

/// A feature and the array that it is made of.
#[derive(Clone, Debug)]
struct Column {
    feature: Feature,
    /// Its index among the source's arrays.
    array: usize,
    /// The array's dtype and scale.
    from: DType,
    scale: f32,
    /// The dtype in the batch.
    to: DType,
    n_elements: usize,
    conversion: Conversion,
    /// Integers beyond are an error.
    range: Option<(i128, i128)>,
}

impl<'a> Loader<'a> {
    /// Batches of `batch` examples, in which floats to be cast are `compute`.
    ///
    /// Features are matched to the source's arrays by name; arrays that no feature names are left out.
    ///
    /// # Types
    /// A feature that is cast takes floats of 16 to 64 bits and integers of 8 to 64: each number becomes an f32, is
    /// multiplied with the array's scale in f32, and becomes f32, bf16 or f16, each time rounded to nearest, ties to
    /// even; subnormals are kept. A feature of an exact dtype takes that dtype, or what has the same value in it:
    /// integers those of any width, f32 integers up to 2²⁴ and floats of 16 bits. `pred`, which is NumPy's bool, is 0 and
    /// 1 wherever a number is wanted. Floats never become integers.
    ///
    /// # Errors
    /// A feature that the source lacks, of other dims, or of a dtype that does not become the feature's; two features of
    /// one name; a batch of nothing or of more than there is; a `compute` that is neither f32, bf16 nor f16.
    pub fn new(
        source: &'a dyn Source,
        features: &[Feature],
        compute: DType,
        batch: usize,
        seed: u64,
    ) -> Result<Loader<'a>, DataError> {
        if !matches!(compute, DType::F32 | DType::BF16 | DType::F16) {
            return Err(DataError::FeatureType { dtype: compute });
        }
        let n_examples = source.n_examples();
        if batch == 0 || batch as u64 > n_examples {
            return Err(DataError::Batch { batch, n_examples });
        }
        for (idx, feature) in features.iter().enumerate() {
            if features[..idx].iter().any(|other| other.name == feature.name) {
                return Err(DataError::TwoFeatures { name: feature.name.clone() });
            }
        }
        let columns: Vec<Column> =
            features.iter().map(|feature| Column::new(source, feature, compute)).collect::<Result<_, _>>()?;
        for column in &columns {
            let is_small = batch.checked_mul(column.dst_bytes()).is_some_and(|n_bytes| n_bytes <= isize::MAX as usize);
            if !is_small {
                let Feature { name, dims, .. } = column.feature.clone();
                return Err(DataError::BatchBytes { batch, feature: name, dims });
            }
        }
        let n_workers = source.reading().n_workers;
        Ok(Loader { source, columns, batch, seed, max_shift: 0, n_workers, is_strict: false })
    }

    /// The same batches, made by so many threads ahead of who takes them; 0 is the caller's own, when it asks.
    pub fn with_workers(self, n_workers: usize) -> Self {
        Loader { n_workers, ..self }
    }

    /// The same batches, of which no example is left out: who counts on their order, as a prediction does, has an error
    /// instead.
    pub fn strict(self) -> Self {
        Loader { is_strict: true, ..self }
    }

    /// The same batches, but in epochs of training images are shifted at random by up to `n_pixels` each way, half of
    /// them not at all; what comes in at the border is 0. Images are the features that are cast and have dims
    /// `[height, width, channels]`; all those of an example are shifted alike.
    ///
    /// # Errors
    /// No feature is an image; one would be shifted out of itself.
    pub fn shifted(self, n_pixels: u32) -> Result<Loader<'a>, DataError> {
        let max_shift = n_pixels as usize;
        if max_shift == 0 {
            return Ok(Loader { max_shift, ..self });
        }
        let mut images = self.columns.iter().filter_map(Column::image).peekable();
        if images.peek().is_none() {
            let cast = self.columns.iter().filter(|column| column.feature.dtype == FeatureDType::Compute);
            let shown = cast.map(|column| format!("`{}` has dims {:?}", column.feature.name, column.feature.dims));
            return Err(DataError::NoImages { features: shown.collect::<Vec<_>>().join(", ") });
        }
        match images.find(|[height, width, _]| max_shift >= *height.min(width)) {
            Some([height, width, _]) => Err(DataError::Shift { shift: n_pixels, height, width }),
            None => Ok(Loader { max_shift, ..self }),
        }
    }

    /// How many whole batches an epoch has: what [`Loader::epoch`] yields.
    pub fn n_steps(&self) -> u64 {
        self.source.n_examples() / self.batch as u64
    }

    /// One epoch of training: every example at most once, in the epoch's [`Order`]. The examples that do not fill a last
    /// batch are left out; other epochs leave out others. To resume within an epoch, `skip` the steps already done:
    /// nothing is read for them.
    ///
    /// # Errors
    /// An item is an error where the source cannot read, or where integers or probabilities are beyond their range.
    pub fn epoch(&self, epoch: u64) -> impl ExactSizeIterator<Item = Result<Batch, DataError>> {
        let order = self.order(epoch);
        let build = move |step: u64| self.steps_of(epoch, &order, step, 1, &AtomicBool::new(false));
        Steps { range: 0..self.n_steps(), build }
    }

    /// `n` batches of an epoch as one, from the batch `step` on, counted from 0.
    ///
    /// # Errors
    /// As [`Loader::epoch`].
    ///
    /// # Panics
    /// Where the epoch has fewer batches.
    pub fn steps(&self, epoch: u64, step: u64, n: u32) -> Result<Batch, DataError> {
        assert!(step + u64::from(n) <= self.n_steps(), "{n} batches from {step} on, of {}", self.n_steps());
        self.steps_of(epoch, &self.order(epoch), step, n, &AtomicBool::new(false))
    }

    fn order(&self, epoch: u64) -> Order {
        Order::new(self.source.n_examples(), self.seed, epoch)
    }

    fn steps_of(&self, epoch: u64, order: &Order, step: u64, n: u32, is_over: &AtomicBool) -> Result<Batch, DataError> {
        let n_slots = self.batch * n as usize;
        let first = step * self.batch as u64;
        self.collect(n_slots, n_slots, Some(epoch), |slot| order.at(first + slot), is_over)
    }

    /// Every example once, in order, for evaluation; the last batch is padded with zeros and says how many are real.
    ///
    /// # Errors
    /// As [`Loader::epoch`].
    pub fn in_order(&self) -> impl ExactSizeIterator<Item = Result<Batch, DataError>> {
        let build = move |step: u64| self.in_order_of(step, &AtomicBool::new(false));
        Steps { range: 0..self.n_steps_in_order(), build }
    }

    fn n_steps_in_order(&self) -> u64 {
        self.source.n_examples().div_ceil(self.batch as u64)
    }

    /// What [`Loader::ahead`] is asked for the batches of [`Loader::in_order`].
    pub fn asks_in_order(&self) -> impl Iterator<Item = Ask> + Send + use<> {
        (0..self.n_steps_in_order()).map(|step| Ask::InOrder { step })
    }

    fn in_order_of(&self, step: u64, is_over: &AtomicBool) -> Result<Batch, DataError> {
        let (n_examples, batch) = (self.source.n_examples(), self.batch as u64);
        let start = step * batch;
        let n_valid = (n_examples - start).min(batch) as usize;
        self.collect(self.batch, n_valid, None, |slot| start + slot, is_over)
    }

    /// Reads every example once; of a source whose reading is costly some, from the first to the last, as evaluation does.
    ///
    /// # Errors
    /// The first that cannot be read; integers beyond their range, and probabilities beyond 0 and 1; floats that are no finite numbers, or that the cast
    /// makes infinite; bytes of `pred` other than 0 and 1. Floats of 8 bits and complex numbers are not looked at.
    pub fn check(&self) -> Result<(), DataError> {
        let mut scratch = Vec::new();
        let n_examples = self.source.n_examples();
        let n = if self.source.reading().is_costly { n_examples.min(N_SAMPLED) } else { n_examples };
        for number in 0..n {
            // From the first to the last, in equal steps; wide, for there may be 2^64 of them.
            let index = match n == n_examples {
                true => number,
                false => (u128::from(number) * u128::from(n_examples - 1) / u128::from(n - 1)) as u64,
            };
            let checked = self.source.read(index).and_then(|example| {
                let place = || self.source.place(index);
                self.columns.iter().try_for_each(|column| {
                    let src = column.bytes_of(&example, place)?;
                    column.check_range(src, place)?;
                    column.check_numbers(src, place, &mut scratch)
                })
            });
            checked.or_else(|error| self.skip(index, error))?;
        }
        Ok(())
    }

    /// A batch of `n_slots` that begins with the examples `index_of(0..n_valid)`, drawn and shifted as in `epoch` if there is
    /// one. In training an example that is left out is replaced by the next one that is not; else it is missing.
    fn collect(
        &self,
        n_slots: usize,
        n_valid: usize,
        epoch: Option<u64>,
        index_of: impl Fn(u64) -> u64 + Sync,
        is_over: &AtomicBool,
    ) -> Result<Batch, DataError> {
        let mut arrays: Vec<NamedArray> = self.columns.iter().map(|column| column.zeros(n_slots)).collect();
        let missing = Mutex::new(BTreeSet::new());
        let mut places: Vec<_> = self
            .columns
            .iter()
            .zip(&mut arrays)
            .map(|(column, array)| array.bytes.chunks_exact_mut(column.dst_bytes()))
            .collect();
        let places = (0..n_valid).map(|slot| {
            let place: Vec<&mut [u8]> = places.iter_mut().filter_map(Iterator::next).collect();
            (slot, place)
        });
        let n_examples = self.source.n_examples();
        self.each(places, is_over, |(slot, mut place)| {
            let mut index = index_of(slot as u64);
            let mut n_tries = 0;
            while let Err(error) = self.fill(index, epoch, &mut place) {
                // Whatever of it was there already.
                place.iter_mut().for_each(|bytes| bytes.fill(0));
                n_tries += 1;
                if n_tries >= n_examples.min(MAX_TRIES) {
                    return Err(error);
                }
                self.skip(index, error)?;
                if epoch.is_none() {
                    missing.lock().unwrap_or_else(PoisonError::into_inner).insert(slot);
                    break;
                }
                index = (index + 1) % n_examples;
            }
            Ok(())
        })?;
        let missing = missing.into_inner().unwrap_or_else(PoisonError::into_inner);
        if !missing.is_empty() {
            let kept: Vec<usize> = (0..n_valid).filter(|slot| !missing.contains(slot)).collect();
            for (column, array) in self.columns.iter().zip(&mut arrays) {
                let n_bytes = column.dst_bytes();
                for (to, from) in kept.iter().enumerate() {
                    array.bytes.copy_within(from * n_bytes..(from + 1) * n_bytes, to * n_bytes);
                }
                array.bytes[kept.len() * n_bytes..].fill(0);
            }
        }
        Ok(Batch { arrays, n_valid: n_valid - missing.len() })
    }

    /// Reads an example into its place in a batch.
    fn fill(&self, index: u64, epoch: Option<u64>, into: &mut [&mut [u8]]) -> Result<(), DataError> {
        let example = match epoch {
            Some(epoch) => self.source.draw(index, Draw::new(self.seed, epoch, index))?,
            None => self.source.read(index)?,
        };
        let place = || self.source.place(index);
        let offset = epoch.and_then(|epoch| shift::offset(self.max_shift, self.seed, epoch, index));
        for (column, dst) in self.columns.iter().zip(into) {
            let src = column.bytes_of(&example, place)?;
            column.check_range(src, place)?;
            match offset.zip(column.image()) {
                Some((offset, dims)) => column.convert_moved(src, dst, dims, offset),
                None => column.conversion.run(src, dst),
            }
        }
        Ok(())
    }

    /// Leaves an example out, if the source may.
    fn skip(&self, index: u64, error: DataError) -> Result<(), DataError> {
        match self.source.skipped().filter(|_| !self.is_strict) {
            Some(skipped) => skipped.add(index, error),
            None => Err(error),
        }
    }
}

impl Column {
    fn new(source: &dyn Source, feature: &Feature, compute: DType) -> Result<Column, DataError> {
        let arrays = source.arrays();
        let Some(array) = arrays.iter().position(|info| info.name == feature.name) else {
            let names = arrays.iter().map(|info| info.name.clone()).collect();
            return Err(DataError::no_array(source.place(0), &feature.name, names));
        };
        let ArrayInfo { name, dtype: given, dims, scale } = arrays[array].clone();
        let Some(n_elements) = feature.n_elements() else {
            return Err(DataError::FeatureDims { dims: feature.dims.clone() });
        };
        if dims != feature.dims {
            let expected = feature.dims.clone();
            return Err(DataError::Dims { place: source.place(0), name, measured: dims, expected });
        }
        let to = feature.dtype_in(compute);
        let cannot = |expected| DataError::Cast {
            place: source.place(0),
            name: name.clone(),
            dtype: given,
            wanted: to,
            expected,
        };
        // One of `pred` is a byte of 0 or 1, a number like others.
        let is_truth = given == DType::Pred && to != DType::Pred;
        let from = if is_truth { DType::U8 } else { given };
        let conversion = match feature.dtype {
            FeatureDType::Compute if !CASTABLE.contains(&from) => {
                return Err(cannot("pred, integers of 8 to 64 bits, f16, bf16, f32 or f64"));
            }
            FeatureDType::Compute if from == to && scale == 1.0 => Conversion::Copy,
            FeatureDType::Compute => Conversion::Cast { from, scale, to },
            FeatureDType::Exact(_) if scale != 1.0 => {
                return Err(DataError::ScaledExact { place: source.place(0), name, scale, dtype: to });
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
        Ok(Column { feature: feature.clone(), array, from, scale, to, n_elements, conversion, range })
    }

    fn dst_bytes(&self) -> usize {
        self.n_elements * self.to.n_bytes()
    }

    fn zeros(&self, batch: usize) -> NamedArray {
        NamedArray {
            name: self.feature.name.clone(),
            dtype: self.to,
            dims: [batch as i64].into_iter().chain(self.feature.dims.iter().copied()).collect(),
            bytes: vec![0; batch * self.dst_bytes()],
        }
    }

    /// Its dims, if it can be shifted.
    fn image(&self) -> Option<[usize; 3]> {
        let &[height, width, channels] = self.feature.dims.as_slice() else { return None };
        let is_cast = self.feature.dtype == FeatureDType::Compute;
        is_cast.then_some([height as usize, width as usize, channels as usize])
    }

    /// Its bytes of an example, as many as they should be.
    fn bytes_of<'e>(&self, example: &'e [Cow<'_, [u8]>], place: impl Fn() -> String) -> Result<&'e [u8], DataError> {
        let expected = self.n_elements * self.from.n_bytes();
        let bytes = example.get(self.array).map_or(&[][..], |bytes| bytes);
        if bytes.len() != expected {
            let name = self.feature.name.clone();
            return Err(DataError::ExampleBytes { place: place(), name, measured: bytes.len(), expected });
        }
        Ok(bytes)
    }

    fn check_range(&self, src: &[u8], place: impl Fn() -> String) -> Result<(), DataError> {
        if self.feature.is_probability {
            for element in 0..self.n_elements {
                let value = number(self.from, src, element).expect("what is cast to a float is a number");
                if !(0.0..=1.0).contains(&(value as f32 * self.scale)) {
                    let (feature, scale) = (self.feature.name.clone(), self.scale);
                    return Err(DataError::Probability { place: place(), feature, element, value, scale });
                }
            }
        }
        let Some((least, greatest)) = self.range else { return Ok(()) };
        for element in 0..self.n_elements {
            let value = integer(self.from, src, element).expect("ranges are of integers");
            if value < least || value > greatest {
                let feature = self.feature.name.clone();
                return Err(DataError::Integer { place: place(), feature, element, value, least, greatest });
            }
        }
        Ok(())
    }

    /// Refuses what is no finite number, before the cast or after it.
    fn check_numbers(&self, src: &[u8], place: impl Fn() -> String, scratch: &mut Vec<u8>) -> Result<(), DataError> {
        let feature = || self.feature.name.clone();
        if self.from == DType::Pred {
            return match src.iter().position(|&byte| byte > 1) {
                Some(element) => {
                    let value = src[element];
                    Err(DataError::NotPred { place: place(), feature: feature(), element, value })
                }
                None => Ok(()),
            };
        }
        if !CASTABLE.contains(&self.from) || !self.from.is_float() && self.feature.dtype != FeatureDType::Compute {
            return Ok(());
        }
        // An exact feature is not multiplied, and f64 is not to become f32 there.
        if self.from == DType::F64 && self.feature.dtype != FeatureDType::Compute {
            let is_finite = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes).is_finite();
            return match src.as_chunks().0.iter().position(|bytes| !is_finite(bytes)) {
                Some(element) => Err(self.not_finite(src, element, place())),
                None => Ok(()),
            };
        }
        let (greatest, is_finite): (f32, fn(f32) -> bool) = match self.to {
            DType::BF16 => (bf16::MAX.to_f32(), |value| bf16::from_f32(value).is_finite()),
            DType::F16 => (f16::MAX.to_f32(), |value| f16::from_f32(value).is_finite()),
            _ => (f32::MAX, f32::is_finite),
        };
        // Rounding is monotone: where the outermost integers stay, all do.
        let (least, most) = bounds(self.from);
        if is_whole(self.from) && [least, most].iter().all(|&value| (value as f32 * self.scale).abs() <= greatest) {
            return Ok(());
        }
        scratch.resize(4 * self.n_elements, 0);
        Conversion::Cast { from: self.from, scale: self.scale, to: DType::F32 }.run(src, scratch);
        // Only what is beyond the greatest can round to an infinity.
        let is_lost = |bytes: &[u8; 4]| {
            let value = f32::from_le_bytes(*bytes);
            // NaN is not below the greatest either.
            !(value.abs() <= greatest || is_finite(value))
        };
        let Some(element) = scratch.as_chunks().0.iter().position(is_lost) else { return Ok(()) };
        let value = number(self.from, src, element).expect("these are numbers");
        if !value.is_finite() {
            return Err(self.not_finite(src, element, place()));
        }
        let (scale, dtype) = (self.scale, self.to);
        Err(DataError::BeyondRange { place: place(), feature: feature(), element, value, scale, dtype, greatest })
    }

    fn not_finite(&self, src: &[u8], element: usize, place: String) -> DataError {
        let value = number(self.from, src, element).expect("these are numbers");
        DataError::NotFinite { place, feature: self.feature.name.clone(), element, value }
    }

    /// Converts an image into `dst`, which is zeros, moved by so many pixels.
    fn convert_moved(&self, src: &[u8], dst: &mut [u8], dims: [usize; 3], offset: (isize, isize)) {
        let (from_width, to_width) = (self.from.n_bytes(), self.to.n_bytes());
        for (from, to, len) in shift::runs(dims, offset) {
            let src = &src[from * from_width..][..len * from_width];
            self.conversion.run(src, &mut dst[to * to_width..][..len * to_width]);
        }
    }
}

/// Which integers a feature takes, where its array may hold others.
fn range(feature: &Feature, from: DType, to: DType) -> Result<Option<(i128, i128)>, DataError> {
    let (mut least, mut greatest) = bounds(to);
    if let Some(n) = feature.n_values {
        if !is_whole(to) || feature.dtype == FeatureDType::Compute || n <= 0 {
            return Err(DataError::Range { feature: feature.name.clone(), dtype: to, n });
        }
        least = 0;
        greatest = greatest.min(i128::from(n) - 1);
    }
    let (from_least, from_greatest) = bounds(from);
    if to == DType::F32 {
        // Integers up to here are f32 numbers, each of them.
        (least, greatest) = (-(1 << 24), 1 << 24);
    }
    let is_needed = (is_whole(to) || to == DType::F32) && is_whole(from) && feature.dtype != FeatureDType::Compute;
    Ok((is_needed && (from_least < least || from_greatest > greatest)).then_some((least, greatest)))
}

/// An iterator over steps that builds only those it yields: what is skipped is arithmetic.
struct Steps<F> {
    range: Range<u64>,
    build: F,
}

impl<T, F: Fn(u64) -> T> Iterator for Steps<F> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.range.next().map(&self.build)
    }

    fn nth(&mut self, n: usize) -> Option<T> {
        self.range.nth(n).map(&self.build)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }
}

impl<T, F: Fn(u64) -> T> ExactSizeIterator for Steps<F> {}

#[cfg(test)]
mod tests;
