//! Batches of named arrays: shuffled for training, in order for evaluation, cast to the program's compute dtype.
//!
//! The content of a batch is a function of seed, epoch and step alone, so a run that resumes anywhere sees the same
//! batches as an uninterrupted one. [`Loader::ahead`] makes them in threads, one batch ahead. The caller puts them on a
//! device.

mod ahead;
mod column;
mod example;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

pub use ahead::{Ask, Supply};

use super::feature::{Feature, FeatureDType};
use super::order::Order;
use super::random::{Draw, DrawVersion};
use super::shift;
use super::source::{Elements, Source};
use crate::error::{DataError, DataErrorKind, DataPlace};
use bf16scope_hlo::{ArrayError, ArrayShape, DType, Element, array};
use column::Column;
use smallvec::{SmallVec, smallvec};

/// Cuts a source into batches of one size.
#[derive(Clone, Debug)]
pub struct Loader<'a> {
    source: &'a dyn Source,
    columns: Vec<Column>,
    batch: usize,
    host: Host,
    seed: u64,
    draws: DrawVersion,
    /// The largest shift of images, in pixels.
    max_shift: usize,
    n_workers: usize,
    /// The time per example in the last batch, in nanoseconds; 0 before the first.
    example_nanos: Arc<AtomicU64>,
    /// Whether skipping examples is forbidden.
    is_strict: bool,
}

/// This host's number among the hosts that share a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    number: u64,
    n_hosts: u64,
}

/// Examples that are checked before training if reading each would take long.
const N_SAMPLED: u64 = 16;
/// Candidates tried to replace a skipped example: if this many in a row are bad, something else is wrong.
const MAX_TRIES: u64 = 1000;

/// One array of a batch, as bytes for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedArray {
    /// The feature's name.
    pub name: String,
    /// The dtype of the bytes.
    pub dtype: DType,
    /// `[batch, …]`, followed by the feature's dims.
    pub dims: Vec<i64>,
    /// Row-major, little-endian.
    pub bytes: Vec<u8>,
}

impl NamedArray {
    /// Its elements, row-major, like [`bf16scope_hlo::Array::to_vec`].
    ///
    /// # Errors
    /// The elements have another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, ArrayError> {
        array::elements(&ArrayShape::new(self.dtype, &self.dims[..]), &self.bytes)
    }
}

/// One batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// One for each feature, in the loader's order.
    pub arrays: Vec<NamedArray>,
    /// How many examples are real; the rest is padding with zeros, for the caller to ignore.
    pub n_valid: usize,
}

impl<'a> Loader<'a> {
    /// Batches of `batch` examples, in which floats that are cast have dtype `compute`.
    ///
    /// Features are matched to the source's arrays by name; arrays without a feature are left out.
    ///
    /// # Types
    /// A feature that is cast takes floats of 16 to 64 bits and integers of 8 to 64: each number becomes an f32, is
    /// multiplied by the array's scale in f32, and becomes f32, bf16 or f16, each time rounded to nearest, ties to
    /// even; subnormals are kept. A feature of an exact dtype takes that dtype, or a dtype whose values it represents
    /// exactly: integers of any width for integers, integers up to 2²⁴ and floats of 16 bits for f32. `pred`, which is
    /// NumPy's bool, counts as 0 and 1 wherever a number is expected. Floats never become integers.
    ///
    /// # Errors
    /// A feature that the source lacks, with other dims, or with a dtype that cannot be converted; two features with
    /// the same name; an empty batch or one larger than the source; a `compute` other than f32, bf16 and f16.
    pub fn new(
        source: &'a dyn Source,
        features: &[Feature],
        compute: DType,
        batch: usize,
        seed: u64,
    ) -> Result<Loader<'a>, DataError> {
        if !matches!(compute, DType::F32 | DType::BF16 | DType::F16) {
            return Err(DataError::request(format!(
                "features cannot be cast to {compute} on the host; expected f32, bf16 or f16"
            )));
        }
        let n_examples = source.n_examples();
        if batch == 0 || batch as u64 > n_examples {
            return Err(DataError::batch(batch, n_examples));
        }
        for (idx, feature) in features.iter().enumerate() {
            if features[..idx].iter().any(|other| other.name == feature.name) {
                let message = format!("two features are named `{}`; expected a name for each", feature.name);
                return Err(DataError::request(message));
            }
        }
        let columns: Vec<Column> =
            features.iter().map(|feature| Column::new(source, feature, compute)).collect::<Result<_, _>>()?;
        for column in &columns {
            let is_small = batch.checked_mul(column.dst_bytes()).is_some_and(|n_bytes| n_bytes <= isize::MAX as usize);
            if !is_small {
                let Feature { name, dims, .. } = &column.feature;
                return Err(DataError::request(format!(
                    "{batch} examples of `{name}`, {dims:?} each, are more than memory holds; expected a smaller batch"
                )));
            }
        }
        let n_workers = source.reading().n_workers;
        let host = Host { number: 0, n_hosts: 1 };
        Ok(Loader {
            source,
            columns,
            batch,
            host,
            seed,
            draws: DrawVersion::default(),
            max_shift: 0,
            n_workers,
            example_nanos: Arc::default(),
            is_strict: false,
        })
    }

    /// The batches of host `number` of `n_hosts`, counted from 0. Hosts share an epoch: each reads only its own
    /// examples, and concatenating the batches of all hosts gives the batch that one host would make `n_hosts` times as
    /// large.
    ///
    /// # Errors
    /// `number` is not below `n_hosts`; the global batch is larger than the source.
    pub fn of_host(self, number: u32, n_hosts: u32) -> Result<Loader<'a>, DataError> {
        if number >= n_hosts {
            return Err(DataError::request(format!(
                "host {number} of {n_hosts}; expected a number below {n_hosts}: hosts are counted from 0"
            )));
        }
        let host = Host { number: number.into(), n_hosts: n_hosts.into() };
        let batch = self.batch.saturating_mul(n_hosts as usize);
        match batch as u64 > self.source.n_examples() {
            true => Err(DataError::batch(batch, self.source.n_examples())),
            false => Ok(Loader { host, ..self }),
        }
    }

    /// Examples of a global batch.
    fn batch_of_all(&self) -> u64 {
        self.batch as u64 * self.host.n_hosts
    }

    /// Where this host's examples begin in the global batch `step`.
    fn first(&self, step: u64) -> u64 {
        step * self.batch_of_all() + self.host.number * self.batch as u64
    }

    /// The same batches, made ahead by this many threads; with 0 the caller's own thread makes each when it is
    /// requested.
    pub fn with_workers(self, n_workers: usize) -> Self {
        Loader { n_workers, ..self }
    }

    /// Batches for a run that began with this version of draws.
    pub fn drawing(self, draws: DrawVersion) -> Self {
        Loader { draws, ..self }
    }

    /// The same batches, but a bad example is an error and not skipped: for callers that rely on the order, such as
    /// predictions.
    pub fn strict(self) -> Self {
        Loader { is_strict: true, ..self }
    }

    /// The same batches, but training epochs shift images at random by up to `n_pixels` each way; half of them stay in
    /// place. Pixels that enter at the border are 0. Images are the features that are cast and have dims `[height,
    /// width, channels]`; all images of an example are shifted alike.
    ///
    /// # Errors
    /// No feature is an image, or the shift is as large as an image.
    pub fn shifted(self, n_pixels: u32) -> Result<Loader<'a>, DataError> {
        let max_shift = n_pixels as usize;
        if max_shift == 0 {
            return Ok(Loader { max_shift, ..self });
        }
        let mut images = self.columns.iter().filter_map(Column::image).peekable();
        if images.peek().is_none() {
            let cast = self.columns.iter().filter(|column| column.feature.dtype == FeatureDType::Compute);
            let shown = cast.map(|column| format!("`{}` has dims {:?}", column.feature.name, column.feature.dims));
            let shown = shown.collect::<Vec<_>>().join(", ");
            let message = format!(
                "no feature can be shifted: {}; expected an image that is cast: [height, width, channels]",
                if shown.is_empty() { "there is none" } else { &shown }
            );
            return Err(DataError::new(DataErrorKind::Request, DataPlace::Argument("shift"), message));
        }
        match images.find(|[height, width, _]| max_shift >= *height.min(width)) {
            Some([height, width, _]) => {
                let message = format!(
                    "images of {height}×{width} pixels cannot be shifted by up to {n_pixels}: some would be all 0"
                );
                let help = format!("set `shift` to less than {}, or to 0", height.min(width));
                Err(DataError::new(DataErrorKind::Request, DataPlace::Argument("shift"), message).help(help))
            }
            None => Ok(Loader { max_shift, ..self }),
        }
    }

    /// The number of whole batches in an epoch: the length of [`Loader::epoch`].
    pub fn n_steps(&self) -> u64 {
        self.source.n_examples() / self.batch_of_all()
    }

    /// One epoch of training: every example at most once, in the epoch's [`Order`]. Examples that do not fill a last
    /// batch are left out, different ones in each epoch. To resume within an epoch, `skip` the steps already done:
    /// nothing is read for them.
    ///
    /// # Errors
    /// An item is an error if the source cannot read, or if integers or probabilities are out of range.
    pub fn epoch(&self, epoch: u64) -> impl ExactSizeIterator<Item = Result<Batch, DataError>> {
        let order = self.order(epoch);
        let build = move |step: u64| self.steps_of(epoch, &order, step, 1, &AtomicBool::new(false));
        Steps { range: 0..self.n_steps(), build }
    }

    /// `n` consecutive batches of an epoch as one, starting with batch `step`, counted from 0.
    ///
    /// # Errors
    /// Those of [`Loader::epoch`].
    ///
    /// # Panics
    /// If the epoch has fewer batches.
    pub fn steps(&self, epoch: u64, step: u64, n: u32) -> Result<Batch, DataError> {
        assert!(step + u64::from(n) <= self.n_steps(), "{n} batches from {step} on, of {}", self.n_steps());
        self.steps_of(epoch, &self.order(epoch), step, n, &AtomicBool::new(false))
    }

    fn order(&self, epoch: u64) -> Order {
        Order::new(self.source.n_examples(), self.seed, epoch)
    }

    fn steps_of(&self, epoch: u64, order: &Order, step: u64, n: u32, is_over: &AtomicBool) -> Result<Batch, DataError> {
        let (n_slots, batch) = (self.batch * n as usize, self.batch as u64);
        let position = |slot: u64| self.first(step + slot / batch) + slot % batch;
        self.collect(n_slots, n_slots, Some(epoch), |slot| order.at(position(slot)), is_over)
    }

    /// Every example once, in order, for evaluation; the last batch is padded with zeros and says how many are real.
    ///
    /// # Errors
    /// Those of [`Loader::epoch`].
    pub fn in_order(&self) -> impl ExactSizeIterator<Item = Result<Batch, DataError>> {
        let build = move |step: u64| self.in_order_of(step, &AtomicBool::new(false));
        Steps { range: 0..self.n_steps_in_order(), build }
    }

    fn n_steps_in_order(&self) -> u64 {
        self.source.n_examples().div_ceil(self.batch_of_all())
    }

    /// The requests to [`Loader::ahead`] for the batches of [`Loader::in_order`].
    pub fn asks_in_order(&self) -> impl Iterator<Item = Ask> + Send + use<> {
        (0..self.n_steps_in_order()).map(|step| Ask::InOrder { step })
    }

    fn in_order_of(&self, step: u64, is_over: &AtomicBool) -> Result<Batch, DataError> {
        let (n_examples, batch) = (self.source.n_examples(), self.batch as u64);
        let start = self.first(step);
        // A host may have no examples in the last batch.
        let n_valid = n_examples.saturating_sub(start).min(batch) as usize;
        self.collect(self.batch, n_valid, None, |slot| start + slot, is_over)
    }

    /// Checks every example once, or, if reading is costly, a sample from the first to the last, in evaluation mode.
    /// Every batch repeats these checks.
    ///
    /// # Errors
    /// The first example that cannot be read; integers and probabilities out of range; floats that are not finite, or
    /// that the cast makes infinite; bytes of `pred` other than 0 and 1. Floats of 8 bits and complex numbers are not
    /// checked.
    pub fn check(&self) -> Result<(), DataError> {
        let mut scratch: Vec<NamedArray> = self.columns.iter().map(|column| column.zeros(1)).collect();
        let mut place: Vec<&mut [u8]> = scratch.iter_mut().map(|array| &mut array.bytes[..]).collect();
        let n_examples = self.source.n_examples();
        let n = if self.source.reading().is_costly { n_examples.min(N_SAMPLED) } else { n_examples };
        for number in 0..n {
            // From the first to the last in equal steps; in u128, because there may be 2^64 examples.
            let index = match n == n_examples {
                true => number,
                false => (u128::from(number) * u128::from(n_examples - 1) / u128::from(n - 1)) as u64,
            };
            self.fill(index, None, &mut place).or_else(|error| self.skip(index, error))?;
        }
        Ok(())
    }

    /// A batch of `n_slots` that begins with the examples `index_of(0..n_valid)`, drawn and shifted as in `epoch` if
    /// given. In training, a skipped example is replaced by the next good one; otherwise its place is dropped.
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
        self.each(n_valid, places, is_over, |(slot, mut place)| {
            let mut index = index_of(slot as u64);
            let mut n_tries = 0;
            while let Err(error) = self.fill(index, epoch, &mut place) {
                // Clears the part of it that was already written.
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
            let present: Vec<usize> = (0..n_valid).filter(|slot| !missing.contains(slot)).collect();
            for (column, array) in self.columns.iter().zip(&mut arrays) {
                let n_bytes = column.dst_bytes();
                for (to, from) in present.iter().enumerate() {
                    array.bytes.copy_within(from * n_bytes..(from + 1) * n_bytes, to * n_bytes);
                }
                array.bytes[present.len() * n_bytes..].fill(0);
            }
        }
        Ok(Batch { arrays, n_valid: n_valid - missing.len() })
    }

    /// Reads an example into its place in a batch.
    fn fill(&self, index: u64, epoch: Option<u64>, into: &mut [&mut [u8]]) -> Result<(), DataError> {
        let draw = epoch.map(|epoch| Draw::of_version(self.draws, self.seed, epoch, index));
        let place = || self.source.place(index);
        let offset = epoch.and_then(|epoch| shift::offset(self.max_shift, self.seed, epoch, index));
        // The whole image, so that pixels shifted out are checked too and an example is valid or invalid in every
        // epoch.
        let moved = |column: &Column| offset.zip(column.image()).map(|_| vec![0; column.dst_bytes()]);
        let mut whole: SmallVec<[Option<Vec<u8>>; 8]> = self.columns.iter().map(moved).collect();
        // Elements of each array that have arrived.
        let mut done: SmallVec<[usize; 8]> = smallvec![0; self.columns.len()];
        self.source.give(index, draw, &mut |array, src| {
            let Some(number) = self.columns.iter().position(|column| column.array == Some(array)) else {
                return Ok(());
            };
            let (column, done) = (&self.columns[number], &mut done[number]);
            let (n_bytes, width) = (src.n_bytes(), column.from.n_bytes());
            let n_elements = n_bytes / width;
            if n_bytes % width > 0 || n_elements > column.n_elements - *done {
                return Err(column.wrong_bytes(*done * width + n_bytes, place));
            }
            let dst = whole[number].as_deref_mut().unwrap_or(&mut *into[number]);
            let width = column.to.n_bytes();
            column.fill(src, &mut dst[*done * width..][..n_elements * width], *done, place)?;
            *done += n_elements;
            Ok(())
        })?;
        // Without an epoch the draw is the same in every run.
        let draw = draw.unwrap_or_else(|| Draw::without_epoch(0, index));
        for (number, column) in self.columns.iter().enumerate() {
            if let (None, Some(random)) = (column.array, column.feature.random) {
                let numbers = draw.feature(&column.feature.name, random, column.n_elements);
                column.fill(Elements::F32s(&numbers), &mut *into[number], 0, place)?;
                done[number] = column.n_elements;
            }
        }
        if let Some((column, done)) = self.columns.iter().zip(&done).find(|(column, done)| **done < column.n_elements) {
            return Err(column.wrong_bytes(done * column.from.n_bytes(), place));
        }
        for ((column, whole), dst) in self.columns.iter().zip(&whole).zip(into.iter_mut()) {
            if let (Some(whole), Some((offset, dims))) = (whole, offset.zip(column.image())) {
                column.copy_moved(whole, dst, dims, offset);
            }
        }
        self.check_alignments(into, place)
    }

    /// Checks that the sequences of labels of an example fit the steps of the network's output.
    fn check_alignments(&self, example: &[&mut [u8]], place: impl Fn() -> String) -> Result<(), DataError> {
        let array_of = |name: &str| {
            let number = self.columns.iter().position(|column| column.feature.name == name)?;
            Some((self.columns[number].to, &*example[number]))
        };
        for column in self.columns.iter().filter(|column| !column.feature.alignments.is_empty()) {
            if let Some(misfit) = column.feature.first_misfit(1, array_of) {
                return Err(misfit.error(&column.feature.name, place()));
            }
        }
        Ok(())
    }

    /// Skips an example if the source allows it.
    fn skip(&self, index: u64, error: DataError) -> Result<(), DataError> {
        match self.source.skipped().filter(|_| !self.is_strict) {
            Some(skipped) => skipped.add(index, error),
            None => Err(error),
        }
    }
}

/// An iterator over steps that builds only those it yields: skipping is arithmetic.
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
