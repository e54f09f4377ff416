//! A network as lines of `kind: layers`, and what is known of a graph's variables before they are read.

use std::collections::{BTreeMap, HashMap};

use super::symbols::{Symbols, shortest};
use crate::graph::Graph;
use crate::node::Node;

/// A network in lines.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct NetworkPort {
    /// Inputs: name, dims without the batch, and whether they are whole numbers.
    pub inputs: Vec<(String, Vec<i64>, bool)>,
    /// Layers, in order.
    pub layers: Vec<LayerLine>,
    /// The losses, those that weigh most first.
    pub heads: Vec<HeadLine>,
    /// The layer that the first loss reads.
    pub output: String,
    /// The loss, as YAML calls it; empty where it has no word.
    pub loss: String,
    /// Label smoothing.
    pub label_smoothing: f64,
    /// The batch, where the graph says it.
    pub batch: Option<i64>,
    /// Names of variables here, by the graph's names; batch norm statistics keep theirs.
    pub names: BTreeMap<String, String>,
    /// The variables that layers have, by the graph's names, with their dims.
    pub variables: BTreeMap<String, Vec<i64>>,
}

/// A loss.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HeadLine {
    /// The layer that it reads.
    pub output: String,
    /// As YAML calls it.
    pub loss: String,
    /// The input that its labels come from.
    pub labels: String,
    /// Its weight.
    pub weight: f64,
}

/// A layer: its kind and options, as YAML has them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerLine {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// The options behind the kind; may be empty.
    pub first: String,
    /// Further options.
    pub options: Vec<(&'static str, String)>,
    /// Its inputs.
    pub reads: Vec<String>,
    /// The graph's node.
    pub node: String,
}

/// Decays of moving averages: 1 minus the constant that multiplies their updates.
pub(super) fn momenta(graph: &Graph) -> HashMap<String, f64> {
    let symbols = Symbols::new(graph);
    let momentum = |update: &Node| {
        let variable = symbols.node(symbols.behind(*update.inputs.first()?).node).variable_name();
        if !variable.ends_with("/moving_mean") {
            return None;
        }
        let product = symbols.node(symbols.behind(*update.inputs.get(1)?).node);
        let rate = (0..product.inputs.len()).find_map(|number| symbols.scalar(product, number))?;
        Some((variable, shortest((1.0 - rate) as f32)))
    };
    graph.body.nodes.iter().filter(|node| node.op.starts_with("AssignSub")).filter_map(momentum).collect()
}
