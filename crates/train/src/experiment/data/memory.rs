//! Arrays in memory, brought to the dims that features have.

use super::DataConfig;
use super::reading::Reading;
use super::settings::Scale;
use crate::TrainError;
use bf16scope_data::npz::NpzReader;
use bf16scope_data::{Arrays, Source};
use bf16scope_hlo::words::listed;
use bf16scope_model::task::{Feature, FeatureDType};
use std::path::Path;

/// The most names in a remark.
const MAX_NAMES: usize = 8;

impl DataConfig {
    /// A warning of arrays among the examples that no feature is named after, if the file is an `.npz` archive.
    pub(in crate::experiment) fn unused_of(&self, file: &Path, features: &[Feature]) -> Option<String> {
        let is_npz = file.extension().is_some_and(|extension| extension == "npz");
        let npz = if is_npz { NpzReader::open(file).ok()? } else { return None };
        let is_read = |name: &str| features.iter().any(|feature| self.array_of(feature) == name);
        let unused: Vec<String> = npz.names().filter(|name| !is_read(name)).map(str::to_string).collect();
        let names = listed(&unused, MAX_NAMES);
        (!unused.is_empty()).then(|| format!("{}: no feature is named {names}; not used", file.display()))
    }
}

/// The keys that every source in memory takes.
pub(super) const TAKES: &[&str] = &["scale"];

/// Reshapes the arrays to the dims of their features, and multiplies them by these factors.
pub(super) fn ready(arrays: Arrays, features: &[Feature], factors: &[(String, f32)]) -> Result<Arrays, TrainError> {
    let arrays = fit(arrays, features)?;
    factors.iter().try_fold(arrays, |arrays, (name, factor)| Ok(arrays.scaled(name, *factor)?))
}

/// The factors by which features are multiplied, if any.
pub(super) fn factors(reading: &Reading<'_>) -> Result<Vec<(String, f32)>, TrainError> {
    let computed = |feature: &&Feature| feature.dtype == FeatureDType::Compute && !feature.is_label;
    let names: Vec<String> = reading.features.iter().filter(computed).map(|feature| feature.name.clone()).collect();
    let all = |factor: f32| names.iter().map(|name| (name.clone(), factor)).collect();
    match &reading.data.scale {
        None => {
            let factor = reading.data.source.as_ref().and_then(|source| source.source_key().scale);
            Ok(factor.map(all).unwrap_or_default())
        }
        Some(Scale::All(factor)) => Ok(all(*factor)),
        Some(Scale::Of(factors)) => match factors.keys().find(|name| !names.contains(name)) {
            Some(other) => {
                let expected = format!("a feature that the network computes with: {}", names.join(", "));
                Err(reading.wrong(&["scale", other], &format!("`scale` of {other}"), &expected))
            }
            None => Ok(factors.clone().into_iter().collect()),
        },
    }
}

/// Reshapes arrays to the dims of features where only axes of size 1 differ, or where one of the two is flat: images
/// without a channel axis, or images that the network reads as rows. The loader refuses every other difference.
fn fit(mut arrays: Arrays, features: &[Feature]) -> Result<Arrays, TrainError> {
    let without_ones = |dims: &[i64]| dims.iter().copied().filter(|&dim| dim != 1).collect::<Vec<_>>();
    for feature in features {
        let Some(info) = arrays.arrays().iter().find(|info| info.name == feature.name) else { continue };
        let (dims, wanted) = (without_ones(&info.dims), without_ones(&feature.dims));
        let is_flat = dims.len() == 1 || wanted.len() == 1;
        let is_same = dims == wanted || (is_flat && dims.iter().product::<i64>() == wanted.iter().product::<i64>());
        if is_same && info.dims != feature.dims {
            arrays = arrays.reshaped(&feature.name, feature.dims.clone())?;
        }
    }
    Ok(arrays)
}
