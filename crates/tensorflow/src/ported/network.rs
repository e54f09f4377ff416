//! A ported network: lines of `kind: layers`. Also the decays of its moving averages.

use std::collections::{BTreeMap, HashMap};

use super::symbols::{Symbols, shortest};
use crate::graph::Graph;
use crate::node::Node;

/// A network as lines of `kind: layers`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct NetworkPort {
    /// Inputs: name, dims without the batch, and whether they are integers.
    pub inputs: Vec<(String, Vec<i64>, bool)>,
    /// Layers, in order.
    pub layers: Vec<LayerLine>,
    /// The losses, by decreasing weight.
    pub heads: Vec<HeadLine>,
    /// The layer that the first loss reads.
    pub output: String,
    /// The first loss's name in YAML; empty if YAML has none for it.
    pub loss: String,
    /// Label smoothing.
    pub label_smoothing: f64,
    /// Metrics in YAML, as `tf.metrics` has them in the graph.
    pub metrics: Vec<String>,
    /// The batch of one core: the one asked for, else that of the graph's inputs or of its pipeline.
    pub batch: Option<i64>,
    /// Features that weigh examples, with their dims without the batch.
    pub weights: Vec<(String, Vec<i64>)>,
    /// The layers' names of variables, by the graph's names.
    pub names: BTreeMap<String, String>,
    /// How variables of other dims lie in the graph's, as a rule of `weights` writes it, by the graph's names.
    pub layouts: BTreeMap<String, String>,
    /// Dims of the variables that layers have, by the graph's names.
    pub variables: BTreeMap<String, Vec<i64>>,
}

/// A loss.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HeadLine {
    /// The layer that it reads.
    pub output: String,
    /// Its name in YAML.
    pub loss: String,
    /// Its options in YAML.
    pub options: Vec<(&'static str, String)>,
    /// The input that holds its labels.
    pub labels: String,
    /// Its weight.
    pub weight: f64,
    /// The graph's node.
    pub node: String,
    /// The script's line that made the node, if the graph records it.
    pub place: String,
    /// The lines that led to this one, innermost first.
    pub callers: Vec<String>,
}

/// A layer: its kind and options as in YAML.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerLine {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// The option written as the kind's own value; may be empty.
    pub first: String,
    /// Further options.
    pub options: Vec<(&'static str, String)>,
    /// Its inputs.
    pub reads: Vec<String>,
    /// The graph's node.
    pub node: String,
}

/// Decays of batch norms' moving averages, by variable: 1 minus the constant that multiplies the update.
pub(super) fn momenta(graph: &Graph) -> HashMap<String, f64> {
    let symbols = Symbols::new(graph);
    let momentum = |update: &Node| {
        let variable = symbols.node(symbols.behind(*update.inputs.first()?).node).variable_name();
        if variable != "moving_mean" && !variable.ends_with("/moving_mean") {
            return None;
        }
        let product = symbols.node(symbols.behind(*update.inputs.get(1)?).node);
        let rate = (0..product.inputs.len()).find_map(|number| symbols.scalar(product, number))?;
        Some((variable, shortest((1.0 - rate) as f32)))
    };
    graph.body.nodes.iter().filter(|node| node.op.starts_with("AssignSub")).filter_map(momentum).collect()
}
