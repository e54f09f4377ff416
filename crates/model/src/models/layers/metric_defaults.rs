//! Metrics that name no labels have those of the losses on the same output, and metrics of one name on several outputs are
//! told apart by the outputs, as in Keras.

use super::objective::default_labels;
use super::{Config, LossKind, Metric};

/// The label of a loss on pairs, which has none.
pub(super) const OF_PAIRS: &str = "0";

/// Fills in the labels and names that a file leaves out.
pub(super) fn fill_in(config: &mut Config) {
    for number in 0..config.metrics.len() {
        if config.metrics[number].options.labels.is_empty() {
            config.metrics[number].options.labels = labels_of(config, number);
        }
    }
    let names: Vec<String> = config.metrics.iter().map(Metric::name).collect();
    let outputs: Vec<Option<String>> = config.metrics.iter().map(|metric| metric.options.output.clone()).collect();
    for (number, metric) in config.metrics.iter_mut().enumerate() {
        let is_same = |other: usize| other != number && names[other] == names[number];
        let same: Vec<usize> = (0..names.len()).filter(|&other| is_same(other)).collect();
        let is_of_another = |&other: &usize| outputs[other].is_some() && outputs[other] != outputs[number];
        if let (Some(output), None) = (&outputs[number], &metric.options.name)
            && !same.is_empty()
            && same.iter().all(is_of_another)
        {
            metric.options.name = Some(format!("{output}_{}", names[number]));
        }
    }
}

fn labels_of(config: &Config, number: usize) -> String {
    let metric = &config.metrics[number];
    let judged = layer_of(config, metric.options.output.as_deref());
    let losses = config.loss.iter().filter(|loss| layer_of(config, loss.options.output.as_deref()) == judged);
    let mut labels: Vec<&String> = losses
        .filter(|loss| match loss.kind {
            LossKind::Value => false,
            LossKind::Matching(_) => metric.judges_pairs(),
            _ => true,
        })
        .map(|loss| &loss.options.labels)
        .collect();
    labels.dedup();
    match labels[..] {
        [only] => only.clone(),
        _ => default_labels(),
    }
}

/// The layer or input with the name of an output, or of the only output.
fn layer_of<'a>(config: &'a Config, output: Option<&'a str>) -> Option<&'a str> {
    let named = |name: &str| config.outputs.iter().find(|output| output.name == name);
    match output {
        Some(name) => Some(named(name).map_or(name, |output| output.layer.as_str())),
        None => config.outputs.first().filter(|_| config.outputs.len() == 1).map(|output| output.layer.as_str()),
    }
}
