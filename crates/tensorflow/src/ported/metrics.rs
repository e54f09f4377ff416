//! Finds the metrics of an evaluation: the nodes of `tf.metrics`, whose last one is `NAME/update_op`.

use super::network::NetworkPort;
use super::symbols::Symbols;
use super::{Note, Notes};
use crate::graph::Graph;
use crate::node::Node;

/// The metrics in YAML. One that has no word, or none beside several losses, is noted as missing.
pub(super) fn metrics(graph: &Graph, network: &NetworkPort, notes: &mut Notes) -> Vec<String> {
    let symbols = Symbols::new(graph);
    let is_of_classes = network.heads.len() == 1 && network.loss.contains("softmax");
    let mut metrics = Vec::new();
    for (at, node) in graph.body.nodes.iter().enumerate() {
        let Some(name) = node.name.strip_suffix("/update_op") else { continue };
        let n_classes = network.layers.iter().find(|layer| layer.name == network.output);
        let n_classes = n_classes.and_then(|layer| layer.first.parse::<f64>().ok()).unwrap_or(f64::INFINITY);
        let word = metric(&symbols, name, n_classes);
        let is_known = match word.as_deref() {
            Some("mean_squared_error") => network.heads.len() == 1 && network.loss == "mean_squared_error",
            Some(_) => is_of_classes,
            None => false,
        };
        match word.filter(|_| is_known) {
            Some(word) if metrics.contains(&word) => {}
            Some(word) => metrics.push(word),
            None => {
                let text =
                    format!("the metric `{name}` is not known by its nodes, or not of this loss, and is left out");
                let help = "write it under `metrics` (docs/EXPERIMENTS.md has the metrics)";
                notes.missing.push(Note::new(graph, Some(at), text, help));
            }
        }
    }
    metrics
}

/// The word for the metric whose nodes are below a name.
fn metric(symbols: &Symbols<'_>, name: &str, n_classes: f64) -> Option<String> {
    let body = &symbols.graph.body;
    let part = |part: &str| body.find(&format!("{name}/{part}")).map(|at| symbols.node(at));
    let last = name.rsplit('/').next().unwrap_or(name);
    let behind = |node: &Node, number: usize| Some(symbols.node(symbols.behind(*node.inputs.get(number)?).node));
    // `total` takes the sum of the values of a batch, or of their products with weights, which have no word here.
    let values = behind(part("Sum")?, 0)?;
    match values.op.as_str() {
        "Equal" => {
            let is_choice = |number: usize| behind(values, number).is_some_and(|node| node.op == "ArgMax");
            (is_choice(0) || is_choice(1)).then(|| "accuracy".to_string())
        }
        "InTopKV2" | "InTopK" => {
            let k = symbols.scalar(values, 2).or_else(|| values.int("k").map(|k| k as f64))?;
            (k <= n_classes).then(|| format!("{{top_k: {k}}}"))
        }
        "SquaredDifference" if last.starts_with("mean_squared_error") => Some("mean_squared_error".to_string()),
        _ => None,
    }
}
