//! Statistics of records: their features, kinds, sizes and classes, and which of them are broken.

use std::collections::BTreeMap;

use super::{Records, Value};
use crate::image;
use crate::look::{look, widen};
use crate::pipeline::Tensor;

/// Up to this many distinct whole numbers of a feature are counted; beyond that only the range is kept.
const MAX_DISTINCT: usize = 10_000;
/// At most this many broken records are listed by name.
const MAX_NAMED: usize = 20;

/// Statistics over some records.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Survey {
    /// Records in the data set.
    pub n_records: u64,
    /// Records that were read.
    pub n_read: u64,
    /// The statistics of each feature, by name.
    pub features: BTreeMap<String, Held>,
    /// How many records are broken.
    pub n_broken: u64,
    /// The errors of the first broken records, with their places.
    pub broken: Vec<String>,
}

/// Statistics of the values with one name.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Held {
    /// TensorFlow's name of each kind, with the number of records that have it: `bytes`, `int64` or `float`.
    pub kinds: BTreeMap<&'static str, u64>,
    /// The least and the largest number of values in a record.
    pub n_values: Option<[usize; 2]>,
    /// For bytes: the least and the largest length.
    pub n_bytes: Option<[usize; 2]>,
    /// For images: the number of images in each format.
    pub images: BTreeMap<&'static str, u64>,
    /// If there are images: how many values are neither JPEG nor PNG.
    pub n_no_image: u64,
    /// For images: the least and the largest height.
    pub heights: Option<[usize; 2]>,
    /// For images: the least and the largest width.
    pub widths: Option<[usize; 2]>,
    /// For tensors serialized by TensorFlow: dtype and dims, with their counts; only the first if there are many.
    pub tensors: BTreeMap<String, u64>,
    /// For numbers: the least and the largest.
    pub range: Option<[f64; 2]>,
    /// For a single whole number per record: how often each occurs; empty if there are too many.
    pub counts: BTreeMap<i64, u64>,
}

/// The statistics of one value, whether it is not an image, and its fault.
struct Seen {
    key: String,
    held: Held,
    is_none: bool,
    wrong: Option<String>,
}

impl Survey {
    /// Reads up to `limit` records, from the first to the last in equal steps, and decodes images. In a feature with
    /// images, a value that is neither JPEG nor PNG is broken.
    pub fn compute(records: &dyn Records, limit: u64) -> Survey {
        let n_records = records.n_records();
        let mut survey = Survey { n_records, n_read: limit.min(n_records), ..Survey::default() };
        let seen = |index: u64| -> Result<Vec<Seen>, String> {
            let values = records.values(index, None).map_err(|error| error.to_string())?;
            let seen = |(key, value): (String, Value)| {
                let (held, wrong) = Held::from_value(&value);
                let message = wrong.map(|wrong| format!("{}: feature `{key}`: {wrong}", records.place(index)));
                let is_none = message.is_some() && held.images.is_empty();
                Seen { key, held, is_none, wrong: message }
            };
            Ok(values.into_iter().map(seen).collect())
        };
        // A value that is not an image is broken only if other values are images, which is known at the end.
        let mut others: BTreeMap<String, (u64, Vec<String>)> = BTreeMap::new();
        look(n_records, limit, seen, |seen| match seen {
            Err(error) => survey.add_broken(error),
            Ok(seen) => {
                for Seen { key, held, is_none, wrong } in seen {
                    survey.features.entry(key.clone()).or_default().merge(&held);
                    match wrong {
                        Some(wrong) if is_none => {
                            let (n, messages) = others.entry(key).or_default();
                            *n += 1;
                            if messages.len() < MAX_NAMED {
                                messages.push(wrong);
                            }
                        }
                        Some(wrong) => survey.add_broken(wrong),
                        None => {}
                    }
                }
            }
        });
        for (key, (n, messages)) in others {
            let held = survey.features.entry(key.clone()).or_default();
            if records.is_image(&key) || !held.images.is_empty() {
                held.n_no_image = n;
                survey.n_broken += n;
                survey.broken.extend(messages);
            }
        }
        survey.broken.truncate(MAX_NAMED);
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
    /// The statistics of a value, and its fault as an image.
    fn from_value(value: &Value) -> (Held, Option<String>) {
        let mut held = Held { kinds: [(value.kind(), 1)].into(), ..Held::default() };
        widen(&mut held.n_values, value.len());
        match value {
            Value::Ints(values) => {
                values.iter().for_each(|value| widen(&mut held.range, *value as f64));
                if let [value] = values[..] {
                    held.counts = [(value, 1)].into();
                }
            }
            Value::Floats(values) => values.iter().for_each(|value| widen(&mut held.range, f64::from(*value))),
            Value::Bytes(values) => {
                values.iter().for_each(|value| widen(&mut held.n_bytes, value.len()));
                let [bytes] = &values[..] else { return (held, None) };
                if let Ok(tensor) = Tensor::read(bytes) {
                    held.tensors = [(tensor.to_string(), 1)].into();
                    return (held, None);
                }
                if let Some(format) = image::format_name(bytes) {
                    held.images = [(format, 1)].into();
                }
                match image::decode(bytes, 3, image::DctMethod::default()) {
                    Ok(image) => {
                        widen(&mut held.heights, image.height);
                        widen(&mut held.widths, image.width);
                    }
                    Err(error) => return (held, Some(error.to_string())),
                }
            }
        }
        (held, None)
    }

    fn merge(&mut self, other: &Held) {
        fn both<T: PartialOrd + Copy>(range: &mut Option<[T; 2]>, other: Option<[T; 2]>) {
            other.into_iter().flatten().for_each(|value| widen(range, value));
        }
        other.kinds.iter().for_each(|(kind, n)| *self.kinds.entry(kind).or_default() += n);
        other.images.iter().for_each(|(format, n)| *self.images.entry(format).or_default() += n);
        for (tensor, n) in &other.tensors {
            if self.tensors.len() < MAX_NAMED || self.tensors.contains_key(tensor) {
                *self.tensors.entry(tensor.clone()).or_default() += n;
            }
        }
        both(&mut self.n_values, other.n_values);
        both(&mut self.n_bytes, other.n_bytes);
        both(&mut self.heights, other.heights);
        both(&mut self.widths, other.widths);
        both(&mut self.range, other.range);
        for (value, n) in &other.counts {
            // One more than the limit shows that there are too many.
            if self.counts.len() <= MAX_DISTINCT || self.counts.contains_key(value) {
                *self.counts.entry(*value).or_default() += n;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Values;
    use super::*;
    use crate::DataError;

    #[derive(Debug)]
    struct Fixed(Vec<Option<Values>>);

    impl Records for Fixed {
        fn n_records(&self) -> u64 {
            self.0.len() as u64
        }

        fn values(&self, index: u64, _keys: Option<&[&str]>) -> Result<Values, DataError> {
            let broken = || DataError::unreadable(self.place(index), "broken");
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
        let survey = Survey::compute(&records, 100);
        // As soon as one value is an image, the others must be images too.
        assert_eq!((survey.n_records, survey.n_read, survey.n_broken), (4, 4, 4));
        assert_eq!(
            survey.broken[2..],
            [
                "a, record 0: feature `image`: 4 bytes, 74 65 78 74; expected a JPEG or PNG image",
                "a, record 3: feature `image`: no bytes; expected a JPEG or PNG image"
            ]
        );
        assert_eq!(survey.broken[0], "a, record 1: the example cannot be read");
        assert!(survey.broken[1].starts_with("a, record 2: feature `image`: the JPEG image cannot be decoded: "));
        let label = &survey.features["label"];
        assert_eq!((label.range, label.n_values), (Some([1.0, 2.0]), Some([1, 1])));
        assert_eq!(label.counts, [(1, 2), (2, 1)].into());
        assert_eq!(survey.features["box"].n_values, Some([1, 2]));
        let image = &survey.features["image"];
        assert_eq!((image.n_bytes, image.images.clone()), (Some([0, 4]), [("JPEG", 1)].into()));
        assert_eq!(image.n_no_image, 2);
        // A sample includes the first and the last record.
        let survey = Survey::compute(&records, 2);
        assert_eq!((survey.n_read, survey.n_broken, survey.features["label"].counts.clone()), (2, 0, [(1, 2)].into()));
        assert_eq!(survey.features["image"].n_no_image, 0, "text is not a broken image");
    }
}
