//! Metrics with arrays of sums: they add up over micro-batches, and are reported step by step.

use crate::{examples, run};

use bf16scope::data::{Arrays, Loader};
use bf16scope::document;
use bf16scope::graph::Precision;
use bf16scope::models::Model;
use bf16scope::train::{Objective, Session, Spec, StepsPerCall};
use std::num::NonZeroU32;

const MODEL: &str = "kind: layers
inputs: {images: [4]}
layers: [{dense: 3}]
loss: sparse_softmax_cross_entropy
metrics: [accuracy, mean_per_class_accuracy, mean_iou, perplexity]
";

fn images() -> Arrays {
    let pixels = (0..24 * 4).map(|i| ((i * 37 + i / 11) % 16) as f32 / 16.0).collect();
    examples::images(pixels, &[4], (0..24).map(|i| i * 7 % 3).collect())
}

fn session(accumulate: u32, steps_per_call: StepsPerCall) -> Session {
    let model: Model = document::from_str("model.yaml", MODEL).unwrap();
    let objective = Objective { accumulate: NonZeroU32::new(accumulate).unwrap(), ..Objective::default() };
    let spec = Spec { precision: Precision::F32, batch: 8, objective, steps_per_call, ..Spec::new(model.task(0.0)) };
    Session::new(run::client(), spec).unwrap()
}

#[test]
fn sums_that_are_arrays_add_up_over_micro_batches_and_steps() {
    let images = images();
    let mut whole = session(1, StepsPerCall::default());
    let spec = whole.spec().clone();
    let features = spec.task.features();
    let loader = Loader::new(&images, &features, spec.precision.compute(), 8, spec.seed).unwrap();
    let steps: Vec<_> = (0..2).map(|step| whole.train(&loader.steps(0, step, 1).unwrap()).unwrap()).collect();
    let names: Vec<&str> = steps[0].values().map(|(name, _)| name).collect();
    assert_eq!(names, ["loss", "accuracy", "mean_per_class_accuracy", "mean_iou", "perplexity"]);
    assert!(steps[0].values().all(|(_, value)| value.is_finite()), "{:?}", steps[0].to_values());
    // Means of the micro-batches' means would differ, because their classes differ.
    let parts = session(4, StepsPerCall::default()).train(&loader.steps(0, 0, 1).unwrap()).unwrap();
    for name in ["accuracy", "mean_per_class_accuracy", "mean_iou"] {
        assert_eq!(parts.value(name), steps[0].value(name), "{name}");
    }
    // The mean of eight cross-entropies, of at most 4 each, in another order: 8 roundings, and 16 in each of them.
    let (ours, expected) = (parts.value("perplexity").unwrap(), steps[0].value("perplexity").unwrap());
    assert!((ours / expected - 1.0).abs() < 24.0 * 4.0 / f64::from(1 << 24), "{ours}, expected {expected}");
    let unrolled = StepsPerCall::Unrolled(NonZeroU32::new(2).unwrap());
    let called = session(1, unrolled).train_call(&loader.steps(0, 0, 2).unwrap()).unwrap();
    assert_eq!(called, steps);
    // And over the steps of an epoch.
    let mut epoch = whole.no_totals();
    called.iter().for_each(|step| epoch.merge(step));
    let accuracy = epoch.value("accuracy").unwrap();
    let mean = steps.iter().map(|step| step.value("accuracy").unwrap()).sum::<f64>() / 2.0;
    assert_eq!(accuracy, mean);
    assert!(epoch.value("mean_iou").unwrap().is_finite());
}
