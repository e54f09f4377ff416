//! Examples for testing that are among the training examples.

use super::Examples;
use super::reading::{Family, Reading};
use super::source::DataSource;
use bf16scope_data::{DataError, Source};
use bf16scope_model::document::{NodeError, Step};
use bf16scope_model::task::Feature;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The largest number of examples of each part that are compared, and of their bytes.
const MAX_EXAMPLES: u64 = 100_000;
const MAX_BYTES: u64 = 1 << 30;
/// The least number of examples whose share is significant, and of copies that are no coincidence.
const MIN_TESTED: usize = 20;
const MIN_COPIES: usize = 3;
/// The share of copies above which a result is doubtful.
const MOST_COPIES: f64 = 0.01;

/// Warnings of test and validation examples in memory that are copies of training examples.
pub(super) fn warnings(reading: &Reading<'_>, source: &DataSource, examples: &Examples) -> Vec<String> {
    if !matches!(source.source_key().family, Family::Memory | Family::Sets) {
        return Vec::new();
    }
    let hashed = |part: &dyn Source| hashes(part, reading.features).unwrap_or_default();
    let training = hashed(&*examples.training);
    let data = reading.data;
    let is_key = [
        ("test", data.test.is_some()),
        ("n_test", data.n_test.is_some()),
        ("validation", data.validation.is_some()),
        ("n_validation", data.n_validation.is_some()),
    ];
    let key = |keys: &[(&'static str, bool)]| keys.iter().find(|(_, is_set)| *is_set).map(|(key, _)| *key);
    let of_test = ("test", key(&is_key).unwrap_or(source.key()), Some(&*examples.test));
    let of_validation = ("validation", key(&is_key[2..]).unwrap_or(source.key()), examples.validation.as_deref());
    let parts = [of_test, of_validation].into_iter();
    let warnings = parts.filter_map(|(part, key, tested)| {
        let tested = hashed(tested?);
        let n_copies = copies(&training, &tested)?;
        let message = format!(
            "{n_copies} of {} {part} examples are among the training examples: accuracy on them says little",
            tested.len()
        );
        let way = vec![Step::Key("data".to_string()), Step::KeyItself(key.to_string())];
        let error = NodeError::new(way, message).with_help("leave them out of one of the two");
        Some(data.origin.error(reading.path, error).to_string())
    });
    warnings.collect()
}

/// Hashes of the first examples, features and labels.
fn hashes(source: &dyn Source, features: &[Feature]) -> Result<Vec<u64>, DataError> {
    let place = |feature: &Feature| source.arrays().iter().position(|array| array.name == feature.name);
    let places: Vec<usize> = features.iter().filter_map(place).collect();
    if places.is_empty() || source.n_examples() == 0 {
        return Ok(Vec::new());
    }
    let n_bytes = source.read(0)?.iter().map(|array| array.len() as u64).sum::<u64>().max(1);
    let n = source.n_examples().min(MAX_EXAMPLES).min(MAX_BYTES / n_bytes);
    let hash = |index: u64| -> Result<u64, DataError> {
        let example = source.read(index)?;
        let mut hasher = DefaultHasher::new();
        places.iter().for_each(|&place| example[place].hash(&mut hasher));
        Ok(hasher.finish())
    };
    (0..n).map(hash).collect()
}

/// The number of tested examples that are among the training examples, if it is significant. Training examples that
/// repeat each other, as rows of a few categories do, repeat in every part.
fn copies(training: &[u64], tested: &[u64]) -> Option<usize> {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    training.iter().for_each(|hash| *counts.entry(*hash).or_default() += 1);
    let n_copies = tested.iter().filter(|hash| counts.contains_key(hash)).count();
    let n_repeated: usize = counts.values().filter(|count| **count > 1).sum();
    let share = n_copies as f64 / tested.len().max(1) as f64;
    let repeated = n_repeated as f64 / training.len().max(1) as f64;
    let is_enough = tested.len() >= MIN_TESTED && n_copies >= MIN_COPIES;
    (is_enough && share > MOST_COPIES && share > 2.0 * repeated).then_some(n_copies)
}
