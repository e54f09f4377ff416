//! Training examples that all have one label: whatever is trained on them answers with it, and learns nothing else.

use super::Examples;
use super::reading::{Family, Reading};
use super::source::DataSource;
use bf16scope_data::{DataError, Source};
use bf16scope_model::document::{NodeError, Step};
use bf16scope_model::task::Feature;

/// Fewer examples may have one label by chance, or are a trial.
const MIN_EXAMPLES: u64 = 32;

/// Warns of class labels in memory where all training examples have the same one.
pub(super) fn warnings(reading: &Reading<'_>, source: &DataSource, examples: &Examples) -> Vec<String> {
    let training = &*examples.training;
    let is_in_memory = matches!(source.source_key().family, Family::Memory | Family::Sets);
    if !is_in_memory || training.n_examples() < MIN_EXAMPLES {
        return Vec::new();
    }
    let is_of_classes = |feature: &&Feature| {
        feature.is_label && !feature.is_weight && (feature.n_values.is_some() || feature.is_probability)
    };
    let warning = |feature: &Feature| {
        is_constant(training, &feature.name).unwrap_or(false).then(|| {
            let message = format!(
                "all {} training examples have the same `{}`: a network that always answers it is right, and learns nothing else",
                training.n_examples(),
                feature.name
            );
            let way = vec![Step::Key("data".to_string()), Step::KeyItself(source.key().to_string())];
            let error = NodeError::new(way, message).with_help(
                "if the examples are sorted by class, write `shuffle: true`, or `stratify: true`, before they are cut into \
                 parts; else look at where the labels come from",
            );
            reading.data.origin.error(reading.path, error).to_string()
        })
    };
    reading.features.iter().filter(is_of_classes).filter_map(warning).collect()
}

/// Whether an array of every example is that of the first one; it reads no further than to the first other one.
fn is_constant(source: &dyn Source, name: &str) -> Result<bool, DataError> {
    let Some(place) = source.arrays().iter().position(|array| array.name == *name) else { return Ok(false) };
    let first = source.read(0)?;
    for index in 1..source.n_examples() {
        if source.read(index)?[place] != first[place] {
            return Ok(false);
        }
    }
    Ok(true)
}
