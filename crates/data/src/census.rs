//! Statistics of a source's examples as a program gets them: ranges, classes, and which examples are broken.

use std::collections::BTreeMap;

use super::cast::numbers;
use super::feature::Feature;
use super::loader::{Loader, NamedArray};
use super::look::{look, widen};
use super::source::Source;
use crate::error::DataError;
use bf16scope_hlo::DType;

/// Up to this many distinct whole numbers of a feature are counted; beyond that only the range is kept.
const MAX_DISTINCT: usize = 10_000;
/// At most this many broken examples are listed by name.
const MAX_NAMED: usize = 20;

/// Statistics over some examples of a source.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Census {
    /// Examples in the source.
    pub n_examples: u64,
    /// Examples that were read.
    pub n_read: u64,
    /// The statistics of each feature, in the order of the features.
    pub features: Vec<Figures>,
    /// Examples that cannot be read, or do not fit the features.
    pub n_broken: u64,
    /// The errors of the first broken examples, with their places.
    pub broken: Vec<String>,
}

/// Statistics of a feature's numbers, as its program gets them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Figures {
    /// The feature.
    pub name: String,
    /// Its dtype in the batch.
    pub dtype: DType,
    /// Dims of one example.
    pub dims: Vec<i64>,
    /// The smallest and the largest number; `None` for complex numbers and floats of 8 bits, which are not examined.
    pub range: Option<[f64; 2]>,
    /// Their mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// How often each class occurs, for a single whole number per example and for one-hot labels; empty if there are
    /// too many classes.
    pub counts: BTreeMap<i64, u64>,
}

/// Sums over the numbers of an example.
struct Sums {
    n: u64,
    /// The mean, and the sum of squared differences from it.
    mean: f64,
    squares: f64,
    range: Option<[f64; 2]>,
    class: Option<i64>,
}

impl Census {
    /// Reads up to `limit` examples of `source` in evaluation mode, from the first to the last in equal steps, with
    /// `compute` as the dtype of features that are cast.
    ///
    /// # Errors
    /// Those of [`Loader::new`]. A broken example is counted, not an error.
    pub fn compute(source: &dyn Source, features: &[Feature], compute: DType, limit: u64) -> Result<Census, DataError> {
        let loader = Loader::new(source, features, compute, 1, 0)?;
        let n_examples = source.n_examples();
        let mut census = Census { n_examples, n_read: limit.min(n_examples), ..Census::default() };
        let mut totals: Vec<(Figures, Sums)> = features.iter().map(|feature| empty(feature, compute)).collect();
        let sums = |index: u64| -> Result<Vec<Sums>, DataError> {
            let arrays = loader.example(index, None)?;
            Ok(features.iter().zip(&arrays).map(|(feature, array)| Sums::from_array(feature, array)).collect())
        };
        look(n_examples, limit, sums, |seen| match seen {
            Ok(sums) => totals.iter_mut().zip(sums).for_each(|((figures, total), sums)| {
                if let Some(class) = sums.class
                    && (figures.counts.len() <= MAX_DISTINCT || figures.counts.contains_key(&class))
                {
                    *figures.counts.entry(class).or_default() += 1;
                }
                total.add(&sums);
            }),
            Err(error) => {
                census.n_broken += 1;
                if census.broken.len() < MAX_NAMED {
                    census.broken.push(error.to_string());
                }
            }
        });
        census.features = totals.into_iter().map(|(figures, sums)| sums.figures(figures)).collect();
        Ok(census)
    }
}

fn empty(feature: &Feature, compute: DType) -> (Figures, Sums) {
    let (name, dims, dtype) = (feature.name.clone(), feature.dims.clone(), feature.dtype_in(compute));
    let figures = Figures { name, dtype, dims, range: None, mean: 0.0, deviation: 0.0, counts: BTreeMap::new() };
    (figures, Sums { n: 0, mean: 0.0, squares: 0.0, range: None, class: None })
}

impl Sums {
    fn from_array(feature: &Feature, array: &NamedArray) -> Sums {
        let numbers: Vec<f64> = numbers(array.dtype, &array.bytes).into_iter().flatten().collect();
        let n = numbers.len() as u64;
        let mean = if n == 0 { 0.0 } else { numbers.iter().sum::<f64>() / n as f64 };
        let mut sums = Sums { n, mean, squares: 0.0, range: None, class: None };
        for value in &numbers {
            sums.squares += (value - mean).powi(2);
            widen(&mut sums.range, *value);
        }
        sums.class = match &numbers[..] {
            [value] if array.dtype.is_integer() => Some(*value as i64),
            row if feature.is_probability && row.len() > 1 && feature.dims.len() == 1 => {
                let is_one_hot = row.iter().all(|value| [0.0, 1.0].contains(value)) && row.iter().sum::<f64>() == 1.0;
                let place = row.iter().position(|value| *value == 1.0).filter(|_| is_one_hot);
                place.map(|place| place as i64)
            }
            _ => None,
        };
        sums
    }

    /// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    fn add(&mut self, other: &Sums) {
        let (n, m) = (self.n as f64, other.n as f64);
        if other.n > 0 {
            let distance = other.mean - self.mean;
            self.mean += distance * m / (n + m);
            self.squares += other.squares + distance * distance * n * m / (n + m);
            self.n += other.n;
        }
        other.range.iter().flatten().for_each(|value| widen(&mut self.range, *value));
    }

    fn figures(self, mut figures: Figures) -> Figures {
        if figures.counts.len() > MAX_DISTINCT {
            figures.counts.clear();
        }
        let deviation = (self.squares / self.n.max(1) as f64).sqrt();
        Figures { range: self.range, mean: self.mean, deviation, ..figures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArrayInfo, Arrays};

    #[test]
    fn examples_are_counted_as_a_program_gets_them() {
        let x = (ArrayInfo::new("x", DType::U8, [2]), vec![0, 1, 2, 3, 4, 5, 200, 255]);
        let y = (ArrayInfo::new("y", DType::U8, []), vec![1, 0, 7, 1]);
        let rows: Vec<f32> = vec![0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
        let z = (ArrayInfo::new("z", DType::F32, [2]), rows.iter().flat_map(|value| value.to_le_bytes()).collect());
        let source = Arrays::new("a", vec![x, y, z]).unwrap().scaled("x", 0.5).unwrap();
        let features = [
            Feature::compute("x", [2]),
            Feature::exact("y", DType::S32, []).label().below(2),
            Feature::exact("z", DType::F32, [2]).label().probability(),
        ];
        let census = Census::compute(&source, &features, DType::BF16, 100).unwrap();
        // The third example has a class out of range, and is counted only as broken.
        assert_eq!((census.n_examples, census.n_read, census.n_broken), (4, 4, 1));
        assert_eq!(census.broken, ["a, example 2: number 0 of `y` is 7; expected a whole number from 0 to 1"]);
        let [x, y, z] = &census.features[..] else { panic!("{census:?}") };
        // 127.5 is 255 / 2: eight binary digits, as many as bf16 has.
        assert_eq!((x.dtype, x.range), (DType::BF16, Some([0.0, 127.5])));
        let values = [0.0, 0.5, 1.0, 1.5, 100.0, 127.5];
        let mean = values.iter().sum::<f64>() / 6.0;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        // Numbers up to 2^14 are squared and added a few times, each with a rounding of 2^-53.
        assert!((x.mean - mean).abs() < 1e-12 && (x.deviation - (squares / 6.0).sqrt()).abs() < 1e-10, "{x:?}");
        assert_eq!((y.counts.clone(), z.counts.clone()), ([(0, 1), (1, 2)].into(), [(0, 1), (1, 2)].into()));
        assert_eq!(x.counts, [].into());
        assert_eq!(Census::compute(&source, &features, DType::BF16, 2).unwrap().n_broken, 0, "the first and the last");
    }
}
