//! What of a graph has words here: its network as `kind: layers`, its loss, optimizer and schedule; what differs, what is
//! missing, and slips that its dtypes show.
//!
//! A graph says exactly what a script only suggests, and this reads nothing else. Where a pattern is not known, it is said to be
//! missing with its node, and never guessed.

mod blocks;
mod heads;
mod initial;
mod inline;
mod layers;
mod network;
mod norms;
mod rate;
mod region;
mod shapes;
mod slips;
mod symbols;
mod training;
mod yaml;

use std::collections::BTreeSet;

use super::graph::Graph;

pub use network::{HeadLine, LayerLine, NetworkPort};
pub use slips::{Slip, SlipKind, slips};
pub use training::TrainingPort;

/// What a graph becomes.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Ported {
    /// Its network.
    pub network: NetworkPort,
    /// How it is trained.
    pub training: TrainingPort,
    /// What is otherwise here, each with a number and the key that undoes it.
    pub differs: Vec<Note>,
    /// What has no word here.
    pub missing: Vec<Note>,
    /// What its dtypes show to be wrong.
    pub slips: Vec<Slip>,
    /// The experiment in YAML; `None` where the network has no words.
    pub experiment: Option<String>,
    /// The same with a line for each layer, where the experiment has blocks for parts that repeat.
    pub experiment_by_layer: Option<String>,
    /// Variables of the graph that the network's layers have, and those that they have not.
    pub variables: VariableCount,
}

/// Variables of a graph, as far as they are the network's own (not slots, counters or averages).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VariableCount {
    /// Variables that layers read.
    pub n_mapped: usize,
    /// Their elements.
    pub n_elements: i64,
    /// Names of the others.
    pub unmapped: Vec<String>,
}

/// Something about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The node; empty for the graph as a whole.
    pub node: String,
    /// Where it was written, if the graph says it.
    pub place: String,
    /// In words.
    pub text: String,
    /// What to do; may be empty.
    pub help: String,
}

impl Note {
    fn new(graph: &Graph, node: Option<usize>, text: impl Into<String>, help: impl Into<String>) -> Note {
        let node = node.map(|node| &graph.body.nodes[node]);
        Note {
            node: node.map(|node| node.name.clone()).unwrap_or_default(),
            place: node.and_then(|node| node.source()).unwrap_or_default().to_string(),
            text: text.into(),
            help: help.into(),
        }
    }
}

/// Reads what a graph has words for.
pub fn port(graph: &Graph) -> Ported {
    let slips = slips::slips(graph);
    let loss = region::loss(graph);
    let served = if loss.is_none() { inline::served(graph) } else { None };
    let graph = served.as_ref().unwrap_or(graph);
    let mut notes = Notes::default();
    let network = layers::network(graph, loss, &mut notes);
    let training = training::training(graph, &network, &mut notes);
    let used: BTreeSet<&String> = network.variables.keys().collect();
    let own = own_variables(graph);
    let unmapped: Vec<String> = own.into_iter().filter(|name| !used.contains(name)).collect();
    if !unmapped.is_empty() {
        let text = format!("{} variables are in no layer, such as `{}`", unmapped.len(), unmapped[0]);
        notes.missing.push(Note::new(
            graph,
            None,
            text,
            "see what reads them above; the step runs as HLO all the same",
        ));
    }
    let variables = VariableCount {
        n_mapped: network.variables.len(),
        n_elements: network.variables.values().map(|dims| dims.iter().product::<i64>()).sum(),
        unmapped,
    };
    let written = |has_blocks| yaml::experiment(graph, &network, &training, has_blocks);
    let has_words = !network.layers.is_empty();
    let (experiment, experiment_by_layer) = (has_words.then(|| written(true)), has_words.then(|| written(false)));
    let (differs, missing) = (notes.differs, notes.missing);
    Ported { network, training, differs, missing, slips, experiment, experiment_by_layer, variables }
}

/// What is said on the way.
#[derive(Debug, Default)]
struct Notes {
    differs: Vec<Note>,
    missing: Vec<Note>,
}

/// Variables that are neither slots nor counters: those that a network has.
fn own_variables(graph: &Graph) -> Vec<String> {
    let known: BTreeSet<&str> = graph.variables.iter().map(|variable| variable.name.as_str()).collect();
    let is_slot = |name: &str| {
        // `dense/kernel/Momentum` beside `dense/kernel`.
        name.rsplit_once('/').is_some_and(|(parent, _)| known.contains(parent))
            || name.rsplit_once('_').is_some_and(|(parent, tail)| {
                tail.bytes().all(|b| b.is_ascii_digit()) && {
                    parent.rsplit_once('/').is_some_and(|(parent, _)| known.contains(parent))
                }
            })
    };
    let shape_of = |name: &str| {
        let nodes = graph.body.nodes.iter().filter(|node| {
            matches!(node.op.as_str(), "VarHandleOp" | "VariableV2" | "Variable") && node.variable_name() == name
        });
        nodes.filter_map(|node| node.dims("shape")).next()
    };
    let names = graph.variables.iter().map(|variable| variable.name.clone());
    names.filter(|name| !is_slot(name) && shape_of(name).is_some_and(|dims| !dims.is_empty())).collect()
}
