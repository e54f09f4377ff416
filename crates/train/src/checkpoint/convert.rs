//! Converts the state in a checkpoint to the storage that another run uses.

use super::{Array, Checkpoint, CheckpointError, Fault};
use bf16scope_hlo::element::f32s;
use bf16scope_hlo::{ArrayShape, DType};
use bf16scope_model::graph::VariableInfo;
use bf16scope_model::optim::{Average, LOW, ROUNDING_KEY};
use half::bf16;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

impl Checkpoint {
    /// This checkpoint, read from `path`, with the state that a run with the variables `wanted` goes on from: f32 arrays
    /// rounded to nearest where that run stores bf16, the remainder in `<variable>/low` where it keeps one; bf16 arrays
    /// exactly in f32, with their remainder; and a key of stochastic rounding, from `seed`, where it needs one.
    ///
    /// [`Checkpoint::select`] reports every other difference.
    ///
    /// # Errors
    /// [`CheckpointError::Converted`] for a finite f32 that rounds to an infinite bf16.
    pub(crate) fn stored_as(
        &self,
        path: &Path,
        wanted: &[VariableInfo],
        seed: u64,
    ) -> Result<Checkpoint, CheckpointError> {
        let wanted: BTreeMap<&str, &VariableInfo> = wanted.iter().map(|it| (it.name.as_str(), it)).collect();
        let mut variables = BTreeMap::new();
        for (name, array) in &self.variables {
            let is_of_storage =
                name == ROUNDING_KEY || variable_of_low(name).is_some_and(|variable| wanted.contains_key(variable));
            let target = wanted.get(name.as_str());
            let Some(variable) = target else {
                if !is_of_storage {
                    variables.insert(name.clone(), array.clone());
                }
                continue;
            };
            let low = self.variables.get(&low_of(name));
            let low_is_kept = wanted.contains_key(low_of(name).as_str());
            let converted = match (array.shape.dtype, variable.dtype) {
                (DType::F32, DType::BF16) => {
                    let (high, rest) = split(array).map_err(|(idx, value)| CheckpointError::Converted {
                        path: path.to_path_buf(),
                        fault: Fault::TooLarge { name: name.clone(), idx, value: format!("{value:e}") },
                    })?;
                    if low_is_kept {
                        variables.insert(low_of(name), rest);
                    }
                    high
                }
                (DType::BF16, DType::F32) => widened(array, low.filter(|low| low.shape == array.shape)),
                _ => array.clone(),
            };
            variables.entry(name.clone()).or_insert(converted);
        }
        for (name, variable) in wanted {
            let is_new = !variables.contains_key(name);
            if is_new && name == ROUNDING_KEY {
                let words = variable.init.words(seed, name, &variable.dims);
                let bytes = words.iter().flat_map(|word| word.to_le_bytes().into_iter().take(4)).collect();
                variables.insert(name.to_string(), Array { shape: shape_of(variable), bytes });
            } else if is_new && variable_of_low(name).is_some_and(|variable| variables.contains_key(variable)) {
                let shape = shape_of(variable);
                let bytes = vec![0; shape.n_elements() as usize * shape.dtype.n_bytes()];
                variables.insert(name.to_string(), Array { shape, bytes });
            }
        }
        Ok(self.holding(variables))
    }

    /// A variable as evaluations use it: its average if there is one; bf16 with its remainder as f32.
    pub(crate) fn as_trained(&self, name: &str) -> Option<Cow<'_, Array>> {
        let average = self.variables.get(&Average::name_of(name)).filter(|_| self.has_averages());
        let array = average.or_else(|| self.variables.get(name))?;
        let low = self.variables.get(&low_of(name)).filter(|low| low.shape == array.shape);
        Some(match (array.shape.dtype, low) {
            (DType::BF16, Some(low)) => Cow::Owned(widened(array, Some(low))),
            _ => Cow::Borrowed(array),
        })
    }

    /// This checkpoint for a program that reads some of its bf16 arrays as f32 with the same values.
    pub(crate) fn read_as<'a>(&self, wanted: impl Iterator<Item = (&'a str, ArrayShape)>) -> Cow<'_, Checkpoint> {
        let is_narrow = |(name, shape): &(&str, ArrayShape)| {
            let dtype = self.variables.get(*name).map(|array| array.shape.dtype);
            shape.dtype == DType::F32 && dtype == Some(DType::BF16)
        };
        let wanted: Vec<(&str, ArrayShape)> = wanted.collect();
        if !wanted.iter().any(is_narrow) {
            return Cow::Borrowed(self);
        }
        let read = |(name, shape): &(&str, ArrayShape)| {
            let array = self.variables.get(*name)?;
            let read = if is_narrow(&(*name, shape.clone())) { widened(array, None) } else { array.clone() };
            Some((name.to_string(), read))
        };
        // Averages are f32 already, and replace their variables later.
        let average = |(name, _): &(&str, ArrayShape)| {
            let (name, array) = self.variables.get_key_value(&Average::name_of(name))?;
            Some((name.clone(), array.clone()))
        };
        let variables = wanted.iter().filter_map(read).chain(wanted.iter().filter_map(average)).collect();
        Cow::Owned(self.holding(variables))
    }

    /// The same checkpoint with `variables` instead of its own.
    pub(crate) fn holding(&self, variables: BTreeMap<String, Array>) -> Checkpoint {
        let Checkpoint { position, settings, function, data, callbacks, variables: _ } = self;
        let (position, settings) = (position.clone(), settings.clone());
        let (function, data, callbacks) = (function.clone(), data.clone(), callbacks.clone());
        Checkpoint { position, settings, function, data, callbacks, variables }
    }
}

/// `<variable>/low`.
fn low_of(name: &str) -> String {
    format!("{name}/{LOW}")
}

fn variable_of_low(name: &str) -> Option<&str> {
    name.strip_suffix(LOW)?.strip_suffix('/')
}

fn shape_of(variable: &VariableInfo) -> ArrayShape {
    ArrayShape::new(variable.dtype, variable.whole_dims())
}

/// The bf16 nearest to each f32, and the bf16 nearest to the remainder; or the first number that is too large, with its
/// index.
fn split(array: &Array) -> Result<(Array, Array), (usize, f32)> {
    let shape = ArrayShape::new(DType::BF16, array.shape.dims.clone());
    let (mut high, mut low) = (Vec::new(), Vec::new());
    for (idx, value) in f32s(DType::F32, &array.bytes).into_iter().flatten().enumerate() {
        let near = bf16::from_f32(value);
        if value.is_finite() && !near.is_finite() {
            return Err((idx, value));
        }
        high.extend(near.to_le_bytes());
        low.extend(bf16::from_f32(value - near.to_f32()).to_le_bytes());
    }
    Ok((Array { shape: shape.clone(), bytes: high }, Array { shape, bytes: low }))
}

/// Each bf16 as an f32, plus its remainder if that is stored.
fn widened(array: &Array, low: Option<&Array>) -> Array {
    let high = f32s(DType::BF16, &array.bytes).into_iter().flatten();
    let bytes = match low.and_then(|low| f32s(DType::BF16, &low.bytes)) {
        Some(low) => high.zip(low).flat_map(|(high, low)| (high + low).to_le_bytes()).collect(),
        None => high.flat_map(f32::to_le_bytes).collect(),
    };
    Array { shape: ArrayShape::new(DType::F32, array.shape.dims.clone()), bytes }
}
