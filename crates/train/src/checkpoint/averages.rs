//! Averages of variables in a checkpoint: which arrays are averages, and where they replace their variables.

use super::{Array, Checkpoint, CheckpointError};
use bf16scope_hlo::ArrayShape;
use bf16scope_model::optim::Average;
use serde_json::Value;
use std::path::Path;

impl Checkpoint {
    /// Whether it holds averages of its variables (`train: {average: …}`), which evaluations and predictions then use.
    pub fn has_averages(&self) -> bool {
        self.settings.0.get("train").and_then(|train| train.get("average")).is_some_and(Value::is_object)
    }

    /// Whether the array of this name is an average of another.
    pub(super) fn is_average(&self, name: &str) -> bool {
        self.has_averages() && Average::variable_of(name).is_some_and(|variable| self.variables.contains_key(variable))
    }

    /// The same checkpoint without averages: evaluations and predictions then use the variables as the last step left
    /// them.
    #[must_use]
    pub fn without_averages(mut self) -> Checkpoint {
        let averages: Vec<String> = self.variables.keys().filter(|name| self.is_average(name)).cloned().collect();
        averages.iter().for_each(|name| drop(self.variables.remove(name)));
        if let Some(Value::Object(train)) = self.settings.0.get_mut("train") {
            train.remove("average");
        }
        self
    }

    /// The requested variables in the requested order, each replaced by its average if there is one.
    ///
    /// # Errors
    /// As [`Checkpoint::select`] with `exactly` false.
    pub(crate) fn exported<'a>(
        &'a self,
        path: &Path,
        wanted: impl Iterator<Item = (&'a str, ArrayShape)>,
    ) -> Result<Vec<&'a Array>, CheckpointError> {
        let has_averages = self.has_averages();
        let average_of = |name: &str| self.variables.get_key_value(&Average::name_of(name)).filter(|_| has_averages);
        let wanted =
            wanted.map(|(name, shape)| (average_of(name).map_or(name, |(average, _)| average.as_str()), shape));
        self.select(path, wanted, false)
    }

    /// All variables of a resumed run, in its order. An average that the checkpoint does not have starts from its
    /// variable; one that the run no longer takes is left out.
    ///
    /// # Errors
    /// As [`Checkpoint::select`] with `exactly` true.
    pub(crate) fn resumed(
        &self,
        path: &Path,
        wanted: &[(&str, ArrayShape)],
        average: Option<&Average>,
    ) -> Result<Vec<&Array>, CheckpointError> {
        let start = |(name, shape): &(&str, ArrayShape)| {
            let variable =
                Average::variable_of(name).filter(|_| average.is_some() && !self.variables.contains_key(*name))?;
            self.variables.get(variable).filter(|array| array.shape == *shape)
        };
        let starts: Vec<Option<&Array>> = wanted.iter().map(start).collect();
        let there = wanted.iter().zip(&starts).filter(|(_, start)| start.is_none());
        let mut there = self.select(path, there.map(|((name, shape), _)| (*name, shape.clone())), true)?.into_iter();
        Ok(starts.into_iter().filter_map(|start| start.or_else(|| there.next())).collect())
    }
}
