//! Batches of named arrays: shuffled for training, in order for evaluation, cast to what the program computes in.
//!
//! What a batch holds is a function of seed, epoch and step alone, so a run that resumes anywhere sees the batches it
//! would have seen. [`Loader::ahead`] makes them by threads, one batch ahead. What puts them on a device is its caller's.

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

/// A way to cut a source into batches of one size.
#[derive(Clone, Debug)]
pub struct Loader<'a> {
    source: &'a dyn Source,
    columns: Vec<Column>,
    batch: usize,
    host: Host,
    seed: u64,
    draws: DrawVersion,
    /// Pixels by which images are shifted at most.
    max_shift: usize,
    n_workers: usize,
    /// What an example took in the last batch, in nanoseconds; 0 before the first.
    example_nanos: Arc<AtomicU64>,
    /// Whether the source may leave examples out.
    is_strict: bool,
}

/// Which of the hosts that share a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    number: u64,
    n_hosts: u64,
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

impl NamedArray {
    /// Its elements, row-major, as [`bf16scope_hlo::Array::to_vec`] gives them.
    ///
    /// # Errors
    /// Elements of another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, ArrayError> {
        array::elements(&ArrayShape::new(self.dtype, &self.dims[..]), &self.bytes)
    }
}

/// One batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// One for each feature, in the order in which the loader was given them.
    pub arrays: Vec<NamedArray>,
    /// How many examples are real; those after them are padding: zeros, for the caller to leave out.
    pub n_valid: usize,
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
                let found = format!("two features are named `{}`; expected a name for each", feature.name);
                return Err(DataError::request(found));
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

    /// The batches of host `number` of `n_hosts`, counted from 0, which share an epoch: each reads its own examples and no
    /// others, and the batches of all of them, one after the other, are those that one host makes `n_hosts` times as large.
    ///
    /// # Errors
    /// A number that is not below `n_hosts`; a batch of all hosts that is of more examples than there are.
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

    /// Examples of a batch of all hosts.
    fn batch_of_all(&self) -> u64 {
        self.batch as u64 * self.host.n_hosts
    }

    /// Where the examples of this host begin in the batch `step` of all hosts.
    fn first(&self, step: u64) -> u64 {
        step * self.batch_of_all() + self.host.number * self.batch as u64
    }

    /// The same batches, made by so many threads ahead of who takes them; 0 is the caller's own, when it asks.
    pub fn with_workers(self, n_workers: usize) -> Self {
        Loader { n_workers, ..self }
    }

    /// Batches of a run that began with this version of draws.
    pub fn drawing(self, draws: DrawVersion) -> Self {
        Loader { draws, ..self }
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
            let shown = shown.collect::<Vec<_>>().join(", ");
            let found = format!(
                "no feature can be shifted: {}; expected an image that is cast: [height, width, channels]",
                if shown.is_empty() { "there is none" } else { &shown }
            );
            return Err(DataError::new(DataErrorKind::Request, DataPlace::Argument("shift"), found));
        }
        match images.find(|[height, width, _]| max_shift >= *height.min(width)) {
            Some([height, width, _]) => {
                let found = format!(
                    "images of {height}×{width} pixels cannot be shifted by up to {n_pixels}: some would be all 0"
                );
                let help = format!("set `shift` to less than {}, or to 0", height.min(width));
                Err(DataError::new(DataErrorKind::Request, DataPlace::Argument("shift"), found).help(help))
            }
            None => Ok(Loader { max_shift, ..self }),
        }
    }

    /// How many whole batches an epoch has: what [`Loader::epoch`] yields.
    pub fn n_steps(&self) -> u64 {
        self.source.n_examples() / self.batch_of_all()
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
        let (n_slots, batch) = (self.batch * n as usize, self.batch as u64);
        let position = |slot: u64| self.first(step + slot / batch) + slot % batch;
        self.collect(n_slots, n_slots, Some(epoch), |slot| order.at(position(slot)), is_over)
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
        self.source.n_examples().div_ceil(self.batch_of_all())
    }

    /// What [`Loader::ahead`] is asked for the batches of [`Loader::in_order`].
    pub fn asks_in_order(&self) -> impl Iterator<Item = Ask> + Send + use<> {
        (0..self.n_steps_in_order()).map(|step| Ask::InOrder { step })
    }

    fn in_order_of(&self, step: u64, is_over: &AtomicBool) -> Result<Batch, DataError> {
        let (n_examples, batch) = (self.source.n_examples(), self.batch as u64);
        let start = self.first(step);
        // Of the last batch of all, a host may have none.
        let n_valid = n_examples.saturating_sub(start).min(batch) as usize;
        self.collect(self.batch, n_valid, None, |slot| start + slot, is_over)
    }

    /// Reads every example once; of a source whose reading is costly some, from the first to the last, as evaluation does. What
    /// is looked at here is looked at again in every batch.
    ///
    /// # Errors
    /// The first that cannot be read; integers beyond their range, and probabilities beyond 0 and 1; floats that are no finite numbers, or that the cast
    /// makes infinite; bytes of `pred` other than 0 and 1. Floats of 8 bits and complex numbers are not looked at.
    pub fn check(&self) -> Result<(), DataError> {
        let mut scratch: Vec<NamedArray> = self.columns.iter().map(|column| column.zeros(1)).collect();
        let mut place: Vec<&mut [u8]> = scratch.iter_mut().map(|array| &mut array.bytes[..]).collect();
        let n_examples = self.source.n_examples();
        let n = if self.source.reading().is_costly { n_examples.min(N_SAMPLED) } else { n_examples };
        for number in 0..n {
            // From the first to the last, in equal steps; wide, for there may be 2^64 of them.
            let index = match n == n_examples {
                true => number,
                false => (u128::from(number) * u128::from(n_examples - 1) / u128::from(n - 1)) as u64,
            };
            self.fill(index, None, &mut place).or_else(|error| self.skip(index, error))?;
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
        self.each(n_valid, places, is_over, |(slot, mut place)| {
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
        let draw = epoch.map(|epoch| Draw::of_version(self.draws, self.seed, epoch, index));
        let place = || self.source.place(index);
        let offset = epoch.and_then(|epoch| shift::offset(self.max_shift, self.seed, epoch, index));
        // Whole: what is moved out is looked at too, so that an example is right or wrong in every epoch.
        let moved = |column: &Column| offset.zip(column.image()).map(|_| vec![0; column.dst_bytes()]);
        let mut whole: SmallVec<[Option<Vec<u8>>; 8]> = self.columns.iter().map(moved).collect();
        // Elements of each array that are there.
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
        // What has no epochs draws the same in every run.
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
        for ((column, whole), dst) in self.columns.iter().zip(&whole).zip(into) {
            if let (Some(whole), Some((offset, dims))) = (whole, offset.zip(column.image())) {
                column.copy_moved(whole, dst, dims, offset);
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
