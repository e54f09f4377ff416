//! Writes a ported graph as an experiment in YAML: model and training. Missing keys are left to their defaults.

use std::fmt::Write as _;

use super::blocks::{self, Blocks, escaped, is_merge};
use super::network::{HeadLine, LayerLine, NetworkPort};
use super::symbols::{quoted, yaml_number};
use super::training::TrainingPort;
use crate::graph::Graph;

fn line(layer: &LayerLine, before: Option<&str>) -> String {
    let mut text = format!("    - {{{}: ", layer.kind);
    if is_merge(layer.kind) {
        let reads: Vec<String> = layer.reads.iter().map(|name| quoted(name)).collect();
        let _ = write!(text, "[{}]", reads.join(", "));
    } else {
        text.push_str(&layer.first);
    }
    for (option, value) in &layer.options {
        let _ = write!(text, ", {option}: {value}");
    }
    let _ = write!(text, ", name: {}", quoted(&layer.name));
    match &layer.reads[..] {
        _ if is_merge(layer.kind) => {}
        [one] if before == Some(one) => {}
        [one] => drop(write!(text, ", inputs: {}", quoted(one))),
        several => {
            let names: Vec<String> = several.iter().map(|name| quoted(name)).collect();
            let _ = write!(text, ", inputs: [{}]", names.join(", "));
        }
    }
    text + "}\n"
}

/// A use of a block, or a layer beside blocks.
fn line_with_blocks(blocks: &Blocks, at: usize, before: Option<&str>) -> String {
    let line = &blocks.lines[at];
    let name = |name: &String| quoted(&escaped(name));
    let mut text = format!("    - {{{}: ", line.kind);
    if is_merge(&line.kind) {
        let reads: Vec<String> = line.reads.iter().map(name).collect();
        let _ = write!(text, "[{}]", reads.join(", "));
    } else {
        text.push_str(&line.first);
    }
    for (number, (option, value)) in line.options.iter().enumerate() {
        let value = if line.is_name_part(number) { number_or_text(value) } else { value.clone() };
        let _ = match number == 0 && line.has_main() {
            true => write!(text, "{value}"),
            false => write!(text, ", {option}: {value}"),
        };
    }
    match &line.block {
        Some(block) if block.repeats > 1 => drop(write!(text, ", repeats: {}", block.repeats)),
        _ => {}
    }
    if blocks.is_named(at) {
        let _ = write!(text, ", name: {}", name(&line.name));
    }
    match &line.reads[..] {
        _ if is_merge(&line.kind) => {}
        [one] if before == Some(one) => {}
        [one] => drop(write!(text, ", inputs: {}", name(one))),
        several => {
            let names: Vec<String> = several.iter().map(name).collect();
            let _ = write!(text, ", inputs: [{}]", names.join(", "));
        }
    }
    text + "}\n"
}

/// The value of a parameter that is part of a name.
fn number_or_text(value: &str) -> String {
    let is_whole = value.bytes().all(|digit| digit.is_ascii_digit());
    let is_formula = value == "$index" || value.starts_with("$(") && value.find(')') == Some(value.len() - 1);
    if is_whole || is_formula { value.to_string() } else { quoted(value) }
}

/// The network's blocks, if it has any, then its layers.
pub(super) fn layers(network: &NetworkPort, has_blocks: bool) -> String {
    let mut text = String::new();
    let blocks = if has_blocks { blocks::blocks(network) } else { Blocks::default() };
    if !blocks.definitions.is_empty() {
        text.push_str("  blocks:\n");
    }
    for line in blocks.definitions.iter().flatten() {
        let _ = writeln!(text, "    {line}");
    }
    text.push_str("  layers:\n");
    // By default the first layer reads a single input.
    let mut before = match &network.inputs[..] {
        [(name, ..)] => Some(name.as_str()),
        _ => None,
    };
    if blocks.definitions.is_empty() {
        for layer in &network.layers {
            text.push_str(&line(layer, before));
            before = Some(&layer.name);
        }
    }
    for at in (0..blocks.lines.len()).filter(|_| !blocks.definitions.is_empty()) {
        text.push_str(&line_with_blocks(&blocks, at, before));
        before = Some(&blocks.lines[at].name);
    }
    text
}

/// The batch of all cores and micro-batches, for the graph's is one core's part; where that is open, 32 or the next number that
/// these share.
pub(super) fn batch(network: &NetworkPort, training: &TrainingPort) -> i64 {
    let n_parts = training.n_cores.unwrap_or(1).max(1).saturating_mul(training.accumulate.unwrap_or(1).max(1));
    network.batch.map_or(31_i64.saturating_add(n_parts) / n_parts * n_parts, |batch| batch.saturating_mul(n_parts))
}

/// The experiment, with repeated parts as blocks or with a line for each layer.
pub(super) fn experiment(graph: &Graph, network: &NetworkPort, training: &TrainingPort, has_blocks: bool) -> String {
    let file = graph.file.rsplit('/').next().unwrap_or_default();
    let mut text = format!("# From {file}, by `bf16scope port`.\nmodel:\n  kind: layers\n  inputs:\n");
    for (name, dims, is_whole) in &network.inputs {
        let _ = match is_whole {
            true => writeln!(text, "    {}: {{shape: {dims:?}, dtype: int32}}", quoted(name)),
            false => writeln!(text, "    {}: {dims:?}", quoted(name)),
        };
    }
    text.push_str(&layers(network, has_blocks));
    match &network.heads[..] {
        [_] | [] => one_loss(network, &mut text),
        heads => losses(heads, &mut text),
    }
    let rows = network.weights.iter().filter(|(_, dims)| !dims.is_empty());
    let rows: Vec<String> = rows.map(|(name, dims)| format!("{}: {dims:?}", quoted(name))).collect();
    if !rows.is_empty() {
        let _ = writeln!(text, "  labels: {{{}}}", rows.join(", "));
    }
    metrics(network, &mut text);
    text.push_str("train:\n");
    let _ = writeln!(text, "  batch: {}", batch(network, training));
    let pairs = [
        ("optimizer", &training.optimizer),
        ("learning_rate", &training.learning_rate),
        ("learning_rate_floor", &training.learning_rate_floor),
        ("warm_up", &training.warm_up),
        ("weight_decay", &training.weight_decay),
        ("clip", &training.clip),
        ("average", &training.average),
        ("trainable", &training.trainable),
    ];
    for (key, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "  {key}: {value}");
    }
    if let Some(n) = training.accumulate {
        let _ = writeln!(text, "  accumulate: {n}");
    }
    if network.label_smoothing > 0.0 {
        let _ = writeln!(text, "  label_smoothing: {:?}", network.label_smoothing);
    }
    if let Some(n_cores) = training.n_cores.filter(|n_cores| *n_cores > 1) {
        let _ = writeln!(text, "mesh: {{data: {n_cores}}}");
    }
    text
}

fn one_loss(network: &NetworkPort, text: &mut String) {
    if network.layers.last().is_some_and(|last| last.name != network.output) {
        let _ = writeln!(text, "  outputs: {{logits: {}}}", quoted(&network.output));
    }
    let loss = if network.loss.is_empty() { "sparse_softmax_cross_entropy" } else { &network.loss };
    let options = network.heads.first().map(|head| options_of(head) + &weight_of(head)).unwrap_or_default();
    let _ = match options.is_empty() {
        true => writeln!(text, "  loss: {loss}"),
        false => writeln!(text, "  loss: {{{loss}: {options}}}"),
    };
}

/// The metrics that the graph has, or the usual one of classes.
fn metrics(network: &NetworkPort, text: &mut String) {
    let is_of_classes = matches!(network.loss.as_str(), "" | "sparse_softmax_cross_entropy") && network.heads.len() < 2;
    let metrics = match &network.metrics[..] {
        [] if is_of_classes => "accuracy".to_string(),
        metrics => metrics.join(", "),
    };
    if !metrics.is_empty() {
        let _ = writeln!(text, "  metrics: [{metrics}]");
    }
}

/// A loss's own options, each behind a comma.
fn options_of(head: &HeadLine) -> String {
    head.options.iter().map(|(option, value)| format!(", {option}: {value}")).collect()
}

/// The weight of a loss, behind a comma; nothing for 1.
fn weight_of(head: &HeadLine) -> String {
    match head.weight {
        1.0 => String::new(),
        weight => format!(", weight: {}", yaml_number(weight)),
    }
}

/// The keys `outputs` and `loss` of a network with several losses.
fn losses(heads: &[HeadLine], text: &mut String) {
    let names: Vec<String> = match heads.iter().all(|head| head.output.contains('/')) {
        true => (0..heads.len()).map(|n| if n == 0 { "logits".to_string() } else { format!("logits_{n}") }).collect(),
        false => heads.iter().map(|head| head.output.replace('/', "_")).collect(),
    };
    let outputs = heads.iter().zip(&names).map(|(head, name)| format!("{}: {}", quoted(name), quoted(&head.output)));
    let _ = writeln!(text, "  outputs: {{{}}}\n  loss:", outputs.collect::<Vec<_>>().join(", "));
    for (head, name) in heads.iter().zip(&names) {
        let is_number = head.labels.parse::<f64>().is_ok();
        let labels = if is_number { head.labels.clone() } else { quoted(&head.labels) };
        let loss = &head.loss;
        let (options, weight) = (options_of(head), weight_of(head));
        let _ = writeln!(text, "    - {{{loss}: {options}, output: {}, labels: {labels}{weight}}}", quoted(name));
    }
}
