//! Batches of a data set: shuffled for training, in order for evaluation, cast to what the program computes in.
//!
//! An epoch's order is a function of the seed and the epoch's number alone, so a run that resumes at any epoch and
//! step sees the batches it would have seen. Copying to a device is not done here.

use super::cast::{cast_bf16, cast_f16};
use super::dataset::Dataset;
use super::error::DataError;
use super::random::SplitMix64;
use super::shift::Shift;
use crate::hlo::DType;
use crate::numerics::bf16::Subnormals;

/// A way to cut a data set into batches of one size.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    dataset: &'a Dataset,
    batch: usize,
    seed: u64,
    dtype: DType,
    shift: Option<Shift>,
}

/// One batch, as bytes for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// `[batch, feature_dims...]`, row-major, in the type asked for, in the machine's byte order.
    pub features: Vec<u8>,
    /// The type asked for.
    pub dtype: DType,
    /// `[batch, feature_dims...]`.
    pub dims: Vec<i64>,
    /// `[batch]`.
    pub labels: Vec<i32>,
    /// How many examples are real; those after them are padding: zeros with label 0, for the caller to leave out.
    pub n_valid: usize,
}

impl<'a> Batches<'a> {
    /// Batches of `batch` examples, features in f32.
    pub fn new(dataset: &'a Dataset, batch: usize, seed: u64) -> Result<Batches<'a>, DataError> {
        if batch == 0 || batch > dataset.n_examples() {
            return Err(DataError::BatchSize { batch, n_examples: dataset.n_examples() });
        }
        Ok(Batches { dataset, batch, seed, dtype: DType::F32, shift: None })
    }

    /// The same batches with features cast to `dtype` on the host: f32, bf16 or f16.
    ///
    /// # Errors
    /// Another dtype; a feature that this one has only an infinity for.
    pub fn cast(self, dtype: DType) -> Result<Batches<'a>, DataError> {
        match dtype {
            DType::F32 | DType::BF16 | DType::F16 => {
                self.dataset.check_range(dtype)?;
                Ok(Batches { dtype, ..self })
            }
            dtype => Err(DataError::FeatureType { dtype }),
        }
    }

    /// The same batches, but in epochs of training images are shifted at random by up to `n_pixels` each way, half of
    /// them not at all; what comes in at the border is 0. For features `[height, width, channels]`.
    pub fn shifted(self, n_pixels: u32) -> Result<Batches<'a>, DataError> {
        if n_pixels == 0 {
            return Ok(Batches { shift: None, ..self });
        }
        let dims: Option<Vec<usize>> = self.dataset.feature_dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
        match dims.and_then(|dims| <[usize; 3]>::try_from(dims).ok()) {
            Some([height, width, _]) if n_pixels as usize >= height.min(width) => {
                Err(DataError::Shift { shift: n_pixels, height, width })
            }
            Some(dims) => Ok(Batches { shift: Some(Shift { max: n_pixels as usize, dims }), ..self }),
            None => Err(DataError::NotImages { dims: self.dataset.feature_dims.clone() }),
        }
    }

    /// How many whole batches an epoch has: what [`Batches::epoch`] yields.
    pub fn n_steps(&self) -> usize {
        self.dataset.n_examples() / self.batch
    }

    /// One epoch of training: every example at most once, shuffled. The examples that do not fill a last batch are
    /// left out; other epochs leave out others. To resume within an epoch, `skip` the steps already done; nothing is
    /// built for them if `nth` or `skip` is called on the iterator.
    pub fn epoch(&self, epoch: u64) -> impl ExactSizeIterator<Item = Batch> + use<'_, 'a> {
        let order = shuffled(self.dataset.n_examples(), self.seed, epoch);
        (0..self.n_steps()).map(move |step| {
            self.collect(&order[step * self.batch..(step + 1) * self.batch], |example, features| match &self.shift {
                Some(shift) => shift.push(self.seed, epoch, example, self.dataset.example(example), features),
                None => features.extend_from_slice(self.dataset.example(example)),
            })
        })
    }

    /// Every example once, in order, for evaluation; the last batch is padded and says how many are real.
    pub fn in_order(&self) -> impl ExactSizeIterator<Item = Batch> + use<'_, 'a> {
        let n_examples = self.dataset.n_examples();
        (0..n_examples.div_ceil(self.batch)).map(move |step| {
            let start = step * self.batch;
            let examples: Vec<usize> = (start..n_examples.min(start + self.batch)).collect();
            self.collect(&examples, |example, features| features.extend_from_slice(self.dataset.example(example)))
        })
    }

    /// A batch of `examples`, the features of each appended by `push`.
    fn collect(&self, examples: &[usize], push: impl Fn(usize, &mut Vec<f32>)) -> Batch {
        let mut features = Vec::with_capacity(self.batch * self.dataset.n_features());
        let mut labels = Vec::with_capacity(self.batch);
        for &example in examples {
            push(example, &mut features);
            labels.push(self.dataset.labels[example]);
        }
        features.resize(self.batch * self.dataset.n_features(), 0.0);
        labels.resize(self.batch, 0);
        let dims = [self.batch as i64].into_iter().chain(self.dataset.feature_dims.iter().copied()).collect();
        let (dtype, n_valid) = (self.dtype, examples.len());
        Batch { features: to_bytes(&features, dtype), dtype, dims, labels, n_valid }
    }
}

fn to_bytes(features: &[f32], dtype: DType) -> Vec<u8> {
    let mut bytes = vec![0; features.len() * dtype.n_bytes()];
    match dtype {
        DType::BF16 => cast_bf16(features, &mut bytes, Subnormals::Keep),
        DType::F16 => cast_f16(features, &mut bytes),
        DType::F32 => {
            for (value, bytes) in features.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *bytes = value.to_ne_bytes();
            }
        }
        dtype => unreachable!("Batches::cast refuses {dtype}"),
    }
    bytes
}

/// The numbers from 0 to `n`, in an order that only `seed` and `epoch` decide: Fisher and Yates's shuffle.
///
/// The generator is written out here, not taken from a crate, because its numbers must never change: a checkpoint
/// resumed years later must see the order it saw.
fn shuffled(n: usize, seed: u64, epoch: u64) -> Vec<usize> {
    // Mixed twice, so that neighbouring seeds and epochs give unrelated streams.
    let mut random = SplitMix64(SplitMix64(seed).next() ^ SplitMix64(!epoch).next());
    let mut order: Vec<usize> = (0..n).collect();
    for last in (1..n).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::bf16::{bf16_from_f32, f16_from_f32};

    /// Ten examples of two features, which tell the example: `[idx, -idx / 3]`, label `idx % 5`.
    fn dataset() -> Dataset {
        Dataset {
            features: (0..10).flat_map(|idx| [idx as f32, -(idx as f32) / 3.0]).collect(),
            feature_dims: vec![2],
            labels: (0..10).map(|idx| idx % 5).collect(),
            n_classes: 5,
        }
    }

    fn floats(batch: &Batch) -> Vec<f32> {
        batch.features.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }

    fn examples(batches: &Batches<'_>, epoch: u64) -> Vec<usize> {
        batches.epoch(epoch).flat_map(|batch| floats(&batch)).step_by(2).map(|value| value as usize).collect()
    }

    /// Expectations from a separate implementation in another language. If this changes, resumed runs see other batches than they saw: do not bless it.
    #[test]
    fn the_order_never_changes() {
        assert_eq!(shuffled(10, 0, 0), [3, 7, 0, 6, 5, 9, 8, 1, 4, 2]);
        assert_eq!(shuffled(10, 0, 1), [5, 3, 9, 1, 4, 2, 8, 6, 0, 7]);
        assert_eq!(shuffled(10, 1, 0), [9, 4, 2, 1, 3, 0, 7, 6, 8, 5]);
    }

    #[test]
    fn an_epoch_is_a_permutation_without_the_remainder() {
        let dataset = dataset();
        let batches = Batches::new(&dataset, 3, 7).unwrap();
        assert_eq!(batches.n_steps(), 3);
        let mut left_out = [0; 10];
        for epoch in 0..200 {
            let mut seen = examples(&batches, epoch);
            assert_eq!(seen, examples(&batches, epoch), "an epoch repeats itself");
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), 9, "each example at most once");
            let missing = (0..10).find(|idx| !seen.contains(idx)).unwrap();
            left_out[missing] += 1;
        }
        assert!(left_out.iter().all(|&n| n > 0), "every example is left out at times: {left_out:?}");
    }

    #[test]
    fn labels_stay_with_their_features() {
        let dataset = dataset();
        for batch in Batches::new(&dataset, 4, 1).unwrap().epoch(5) {
            assert_eq!((batch.n_valid, batch.labels.len()), (4, 4));
            for (features, label) in floats(&batch).as_chunks::<2>().0.iter().zip(&batch.labels) {
                assert_eq!(features[1], -features[0] / 3.0);
                assert_eq!(features[0] as i32 % 5, *label);
            }
        }
    }

    #[test]
    fn a_skipped_epoch_goes_on_where_it_was() {
        let dataset = dataset();
        let batches = Batches::new(&dataset, 2, 3).unwrap();
        let all: Vec<Batch> = batches.epoch(9).collect();
        let rest: Vec<Batch> = batches.epoch(9).skip(3).collect();
        assert_eq!(all[3..], rest);
    }

    #[test]
    fn epochs_are_shifted_and_evaluations_are_not() {
        let dataset = Dataset {
            features: (0..10 * 12).map(|idx| idx as f32 + 1.0).collect(),
            feature_dims: vec![3, 4, 1],
            labels: vec![0; 10],
            n_classes: 1,
        };
        let plain = Batches::new(&dataset, 2, 3).unwrap();
        let shifted = plain.clone().shifted(1).unwrap();
        let all = |batches: &Batches<'_>, epoch| batches.epoch(epoch).collect::<Vec<_>>();
        assert_ne!(all(&plain, 0), all(&shifted, 0));
        assert_eq!(all(&shifted, 1)[2..], shifted.epoch(1).skip(2).collect::<Vec<_>>());
        assert!(plain.in_order().eq(shifted.in_order()));
        assert_eq!(all(&plain, 0), all(&shifted.shifted(0).unwrap(), 0));
    }

    #[test]
    fn only_images_can_be_shifted() {
        let dataset = dataset();
        assert_eq!(
            Batches::new(&dataset, 1, 0).unwrap().shifted(1).unwrap_err().to_string(),
            "examples of dims [2] cannot be shifted; expected images: [height, width, channels]"
        );
    }

    #[test]
    fn evaluation_pads_its_last_batch() {
        let dataset = dataset();
        let batches: Vec<Batch> = Batches::new(&dataset, 4, 0).unwrap().in_order().collect();
        assert_eq!(batches.iter().map(|batch| batch.n_valid).collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(floats(&batches[1])[..2], *dataset.example(4));
        assert_eq!(floats(&batches[2])[4..], [0.0; 4]);
        assert_eq!(batches[2].labels, [3, 4, 0, 0]);
        let whole: Vec<Batch> = Batches::new(&dataset, 5, 0).unwrap().in_order().collect();
        assert_eq!(whole.iter().map(|batch| batch.n_valid).collect::<Vec<_>>(), [5, 5]);
    }

    #[test]
    fn features_are_cast() {
        let dataset = dataset();
        let first = |dtype| Batches::new(&dataset, 10, 0).unwrap().cast(dtype).unwrap().in_order().next().unwrap();
        let bytes = |convert: fn(f32) -> u16| -> Vec<u8> {
            dataset.features.iter().flat_map(|&value| convert(value).to_ne_bytes()).collect()
        };
        assert_eq!(floats(&first(DType::F32)), dataset.features);
        assert_eq!(first(DType::BF16).features, bytes(bf16_from_f32));
        assert_eq!(first(DType::F16).features, bytes(f16_from_f32));
    }

    #[test]
    fn impossible_batches_are_refused() {
        let dataset = dataset();
        for batch in [0, 11] {
            assert_eq!(
                Batches::new(&dataset, batch, 0).unwrap_err().to_string(),
                format!("a batch of {batch} does not fit: expected 1 to 10, as many as there are examples")
            );
        }
        assert_eq!(
            Batches::new(&dataset, 1, 0).unwrap().cast(DType::S32).unwrap_err().to_string(),
            "features cannot be cast to s32 on the host; expected f32, bf16 or f16"
        );
    }
}
