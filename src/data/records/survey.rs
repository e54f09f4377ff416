//! What records hold: their features, kinds, sizes and classes, and which of them are broken.

use std::collections::BTreeMap;

use super::{Records, Value};
use crate::data::image;

/// Distinct whole numbers that are counted of a feature; of more only the range is kept.
const MAX_DISTINCT: usize = 10_000;
/// Broken records that are kept by name.
const MAX_NAMED: usize = 20;

/// What some records hold.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Survey {
    /// Records that there are.
    pub n_records: u64,
    /// Records that were looked at.
    pub n_read: u64,
    /// What they hold, by name.
    pub features: BTreeMap<String, Held>,
    /// How many are broken.
    pub n_broken: u64,
    /// What is wrong with the first of them, with their places.
    pub broken: Vec<String>,
}

/// What records hold under one name.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Held {
    /// TensorFlow's name of each kind, with how many records have it: `bytes`, `int64` or `float`.
    pub kinds: BTreeMap<&'static str, u64>,
    /// The least and the greatest number of values in a record.
    pub n_values: Option<[usize; 2]>,
    /// Of bytes: the least and the greatest length.
    pub n_bytes: Option<[usize; 2]>,
    /// Of images: formats, with how many there are of each.
    pub images: BTreeMap<&'static str, u64>,
    /// Of images: the least and the greatest height.
    pub heights: Option<[usize; 2]>,
    /// Of images: the least and the greatest width.
    pub widths: Option<[usize; 2]>,
    /// Of numbers: the least and the greatest.
    pub range: Option<[f64; 2]>,
    /// Of whole numbers, one in each record: how often each comes; none where there are too many.
    pub counts: BTreeMap<i64, u64>,
}

impl Survey {
    /// Looks at up to `limit` records, from the first to the last in equal steps. Images are looked at up to their headers.
    pub fn of(records: &dyn Records, limit: u64) -> Survey {
        let n_records = records.n_records();
        let n = limit.min(n_records);
        let mut survey = Survey { n_records, n_read: n, ..Survey::default() };
        for number in 0..n {
            let index = match n == n_records || n == 1 {
                true => number,
                false => (u128::from(number) * u128::from(n_records - 1) / u128::from(n - 1)) as u64,
            };
            let values = match records.values(index, None) {
                Ok(values) => values,
                Err(error) => {
                    survey.add_broken(error.to_string());
                    continue;
                }
            };
            for (key, value) in values {
                let wrong = survey.features.entry(key.clone()).or_default().add(&value);
                if let Some(wrong) = wrong {
                    survey.add_broken(format!("{}: feature `{key}`: {wrong}", records.place(index)));
                }
            }
        }
        for held in survey.features.values_mut().filter(|held| held.counts.len() > MAX_DISTINCT) {
            held.counts.clear();
        }
        survey
    }

    fn add_broken(&mut self, message: String) {
        self.n_broken += 1;
        if self.broken.len() < MAX_NAMED {
            self.broken.push(message);
        }
    }
}

impl Held {
    /// Adds a value; says what is wrong with an image.
    fn add(&mut self, value: &Value) -> Option<String> {
        *self.kinds.entry(value.kind()).or_default() += 1;
        widen(&mut self.n_values, value.len());
        match value {
            Value::Ints(values) => {
                values.iter().for_each(|value| widen(&mut self.range, *value as f64));
                // One more than are kept says that there are too many.
                if let [value] = values[..]
                    && (self.counts.len() <= MAX_DISTINCT || self.counts.contains_key(&value))
                {
                    *self.counts.entry(value).or_default() += 1;
                }
                None
            }
            Value::Floats(values) => {
                values.iter().for_each(|value| widen(&mut self.range, f64::from(*value)));
                None
            }
            Value::Bytes(values) => {
                values.iter().for_each(|value| widen(&mut self.n_bytes, value.len()));
                let [bytes] = &values[..] else { return None };
                let format = image::format_name(bytes)?;
                *self.images.entry(format).or_default() += 1;
                match image::size(bytes) {
                    Ok([height, width, _]) => {
                        widen(&mut self.heights, height);
                        widen(&mut self.widths, width);
                        None
                    }
                    Err(error) => Some(error.to_string()),
                }
            }
        }
    }
}

fn widen<T: PartialOrd + Copy>(range: &mut Option<[T; 2]>, value: T) {
    let [least, greatest] = range.unwrap_or([value, value]);
    *range = Some([if value < least { value } else { least }, if value > greatest { value } else { greatest }]);
}

#[cfg(test)]
mod tests {
    use super::super::{RecordError, Values};
    use super::*;

    #[derive(Debug)]
    struct Fixed(Vec<Option<Values>>);

    impl Records for Fixed {
        fn n_records(&self) -> u64 {
            self.0.len() as u64
        }

        fn values(&self, index: u64, _keys: Option<&[&str]>) -> Result<Values, RecordError> {
            let broken = || RecordError::Example { place: self.place(index), found: "broken".to_string() };
            self.0[index as usize].clone().ok_or_else(broken)
        }

        fn place(&self, index: u64) -> String {
            format!("a, record {index}")
        }

        fn fingerprint(&self) -> &str {
            ""
        }
    }

    #[test]
    fn what_records_hold_is_counted() {
        let record = |label: i64, bytes: &[u8]| -> Option<Values> {
            let values = [
                ("label".to_string(), Value::Ints(vec![label])),
                ("box".to_string(), Value::Floats(vec![0.5; label as usize])),
                ("image".to_string(), Value::Bytes(vec![bytes.to_vec()])),
            ];
            Some(values.into())
        };
        let records = Fixed(vec![record(1, b"text"), None, record(2, b"\xff\xd8\xff"), record(1, b"")]);
        let survey = Survey::of(&records, 100);
        assert_eq!((survey.n_records, survey.n_read, survey.n_broken), (4, 4, 2));
        assert_eq!(survey.broken[0], "a, record 1: no tf.train.Example: broken");
        assert!(survey.broken[1].starts_with("a, record 2: feature `image`: the JPEG image cannot be decoded: "));
        let label = &survey.features["label"];
        assert_eq!((label.range, label.n_values), (Some([1.0, 2.0]), Some([1, 1])));
        assert_eq!(label.counts, [(1, 2), (2, 1)].into());
        assert_eq!(survey.features["box"].n_values, Some([1, 2]));
        let image = &survey.features["image"];
        assert_eq!((image.n_bytes, image.images.clone()), (Some([0, 4]), [("JPEG", 1)].into()));
        // Some of them: the first and the last are among them.
        let survey = Survey::of(&records, 2);
        assert_eq!((survey.n_read, survey.n_broken, survey.features["label"].counts.clone()), (2, 0, [(1, 2)].into()));
    }
}
