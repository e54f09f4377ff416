//! Images in memory, and batches of them as a session takes them.

#![allow(dead_code)] // Each test crate uses its part.

use bf16scope::data::{ArrayInfo, Arrays, Batch, Loader, Source};
use bf16scope::hlo::DType;
use bf16scope::train::Spec;
use std::path::Path;

/// Images of these dims, example after example, and their labels.
pub fn images(features: Vec<f32>, dims: &[i64], labels: Vec<i32>) -> Arrays {
    let features = features.iter().flat_map(|value| value.to_le_bytes()).collect();
    let labels = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
    let images = ArrayInfo::new("images", DType::F32, dims);
    let arrays = vec![(images, features), (ArrayInfo::new("labels", DType::S32, []), labels)];
    Arrays::new(Path::new("examples"), arrays).unwrap()
}

/// What makes batches as a session of `spec` takes them, without shifting.
pub fn loader<'a>(source: &'a dyn Source, spec: &Spec) -> Loader<'a> {
    let (features, compute) = (spec.task.features(), spec.precision.compute());
    Loader::new(source, &features, compute, spec.batch as usize, spec.seed).unwrap()
}

/// Batches in the order of the source.
pub fn batches(source: &dyn Source, spec: &Spec) -> Vec<Batch> {
    loader(source, spec).in_order().map(Result::unwrap).collect()
}

/// The labels of a source of images.
pub fn labels(source: &dyn Source) -> Vec<i32> {
    let at = source.arrays().iter().position(|array| array.name == "labels").unwrap();
    let label = |index| i32::from_le_bytes(source.read(index).unwrap()[at][..4].try_into().unwrap());
    (0..source.n_examples()).map(label).collect()
}
