//! Splits a data set into training, validation and test examples.

use super::reading::{Family, Opened, Reading};
use super::source::DataSource;
use super::{DataConfig, Examples, Made, Maker, Stratify, disk};
use crate::TrainError;
use bf16scope_data::selected::parts;
use bf16scope_data::{Loader, Selected, Source};
use bf16scope_hlo::DType;
use bf16scope_model::task::{Feature, FeatureDType};
use std::sync::Arc;

/// Examples to split, and the class of each one for a stratified split.
struct Cutting<'a> {
    config: &'a DataConfig,
    classes: Option<Vec<i64>>,
}

impl DataConfig {
    /// Opens the files and splits their examples.
    pub(super) fn parts(
        &self,
        reading: &Reading<'_>,
        source: &DataSource,
        maker: &Maker,
    ) -> Result<Examples, TrainError> {
        if let Some(columns) = &self.columns {
            return self.table_parts(reading, source, columns);
        }
        let stratified = self.stratify.as_ref().map(|stratify| self.label(reading, stratify)).transpose()?;
        let (whole, test) = match source.open(reading)? {
            Opened::Sets(training, test) => {
                let examples = |arrays| maker.make(reading, Opened::Arrays { arrays, is_scaled: false });
                (examples(training)?, Some(examples(test)?))
            }
            opened => (maker.make(reading, opened)?, None),
        };
        let beside = |key: &'static str, named: &Option<DataSource>| match named {
            None => Ok(None),
            Some(named) => {
                let of_key = Reading { keys: vec!["data", key, named.key()], ..reading.clone() };
                maker.make_beside(&of_key, &whole, named.open(&of_key)?).map(Some)
            }
        };
        let test = match beside("test", &self.test)? {
            Some(test) => Some(test),
            None => test,
        };
        let validation = beside("validation", &self.validation)?;
        let classes = stratified.map(|label| self.classes(reading, source, &whole, &label)).transpose()?;
        Cutting { config: self, classes }.cut(whole, test, validation)
    }

    /// The label by which the split is stratified.
    pub(super) fn label(&self, reading: &Reading<'_>, stratify: &Stratify) -> Result<Feature, TrainError> {
        // The labels of triplets are whole numbers that nothing bounds.
        let is_whole = |feature: &Feature| {
            feature.n_values.is_some() || matches!(feature.dtype, FeatureDType::Exact(dtype) if dtype.is_integer())
        };
        let is_class = |feature: &&Feature| feature.is_label && is_whole(feature) && feature.dims.is_empty();
        let labels: Vec<&Feature> = reading.features.iter().filter(is_class).collect();
        let names: Vec<String> = labels.iter().map(|feature| format!("`{}`", feature.name)).collect();
        let label = match (stratify, &labels[..]) {
            (Stratify::Only, [only]) => Some(*only),
            (Stratify::Only, _) => None,
            (Stratify::Label(name), _) => labels.iter().find(|feature| feature.name == *name).copied(),
        };
        label.cloned().ok_or_else(|| {
            let measured = match stratify {
                Stratify::Only => format!("`stratify: true` and {} labels of classes", labels.len()),
                Stratify::Label(name) => format!("`stratify: {name}`"),
            };
            let expected = match names.is_empty() {
                true => "a model that learns one class of each example".to_string(),
                false => format!("the name of a label of classes: {}", names.join(", ")),
            };
            reading.wrong(&["stratify"], &measured, &expected)
        })
    }

    /// The class of every example. For records on disk only the label is read.
    fn classes(
        &self,
        reading: &Reading<'_>,
        source: &DataSource,
        whole: &Made,
        label: &Feature,
    ) -> Result<Vec<i64>, TrainError> {
        let wanted = [Feature { dtype: FeatureDType::Exact(DType::S64), ..label.clone() }];
        let only: Box<dyn Source>;
        let examples: &dyn Source = match (whole, source.source_key().family) {
            (Made::Records(_), Family::Disk) => {
                let Opened::Records(records) = source.open(reading)? else { unreachable!("it is on the disk") };
                only = Box::new(disk::pipeline(&Reading { features: &wanted, ..reading.clone() }, records)?);
                &*only
            }
            _ => whole.as_source(),
        };
        let batch = examples.n_examples().clamp(1, 1024) as usize;
        let mut classes = Vec::with_capacity(examples.n_examples() as usize);
        for batch in Loader::new(examples, &wanted, DType::F32, batch, 0)?.strict().in_order() {
            let batch = batch?;
            let words = batch.arrays[0].bytes.as_chunks::<8>().0;
            classes.extend(words[..batch.n_valid].iter().map(|word| i64::from_le_bytes(*word)));
        }
        Ok(classes)
    }
}

impl Cutting<'_> {
    fn cut(self, whole: Made, test: Option<Made>, validation: Option<Made>) -> Result<Examples, TrainError> {
        let Cutting { config, classes } = self;
        let n = whole.as_source().n_examples();
        let size = |part: Option<super::PartSize>| part.map_or(0, |part| part.of_examples(n));
        let (n_test, n_validation) = (size(config.n_test), size(config.n_validation));
        let source = |made: Option<Made>| made.map(Made::source);
        if config.shuffle.is_none() && classes.is_none() {
            let (whole, test) = match config.n_test {
                Some(_) => {
                    let (rest, test) = whole.split_tail(n_test)?;
                    (rest, Some(test))
                }
                None => (whole, test),
            };
            let (training, validation) = match config.n_validation {
                Some(_) => {
                    let (rest, validation) = whole.split_tail(n_validation)?;
                    (rest, Some(validation))
                }
                None => (whole, validation),
            };
            return Ok(examples(training.source(), source(validation), source(test)));
        }
        // A count that is too large gives the same error as without a shuffle.
        let n_kept = n_test.saturating_add(n_validation);
        if n_kept >= n || [config.n_test.map(|_| n_test), config.n_validation.map(|_| n_validation)].contains(&Some(0))
        {
            let least = if n_kept >= n { n_kept } else { 0 };
            whole.split_tail(least)?;
            unreachable!("there are no examples to train on, or to keep")
        }
        let whole: Arc<dyn Source> = Arc::from(whole.source());
        let mut cut = parts(n, &[n - n_kept, n_validation, n_test], config.shuffle, classes.as_deref()).into_iter();
        let mut next =
            || -> Box<dyn Source> { Box::new(Selected::new(Arc::clone(&whole), cut.next().unwrap_or_default())) };
        let (training, of_validation, of_test) = (next(), next(), next());
        let validation = if config.n_validation.is_some() { Some(of_validation) } else { source(validation) };
        let test = if config.n_test.is_some() { Some(of_test) } else { source(test) };
        Ok(examples(training, validation, test))
    }
}

/// The parts as sources. If there are no separate test examples, those evaluated after each epoch are the test
/// examples.
pub(super) fn examples(
    training: Box<dyn Source>,
    validation: Option<Box<dyn Source>>,
    test: Option<Box<dyn Source>>,
) -> Examples {
    match test {
        Some(test) => Examples { training, test, validation },
        None => Examples { training, test: validation.expect("something is for testing"), validation: None },
    }
}
