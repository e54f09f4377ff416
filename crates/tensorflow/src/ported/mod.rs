//! Ports a TensorFlow graph to an experiment: its network as `kind: layers`, its loss, optimizer and schedule. It also reports
//! what differs, what is missing, and mistakes that the graph's dtypes show.
//!
//! Only the graph is read, since it is exact where a script is not. A pattern that is not known is reported as missing with its
//! node, and never guessed.

mod accumulation;
mod attentions;
mod blocks;
mod candidates;
mod cores;
mod dilated;
mod distances;
mod gelus;
mod heads;
mod initial;
mod inline;
mod layers;
mod loss_rows;
mod loss_search;
mod metrics;
mod nearest;
mod network;
mod norms;
mod numbers;
mod pipeline;
mod plain_adam;
mod rate;
mod region;
mod scale;
mod shapes;
mod slips;
mod symbols;
mod terms;
mod training;
mod updates;
mod written;
mod yaml;

use std::collections::BTreeSet;

use super::graph::Graph;
use super::node::Node;

pub use network::{HeadLine, LayerLine, NetworkPort};
pub use pipeline::PipelineStep;
pub use slips::{Slip, SlipKind, slips};
pub use training::TrainingPort;

/// A graph ported to an experiment.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Ported {
    /// Its network.
    pub network: NetworkPort,
    /// How it is trained.
    pub training: TrainingPort,
    /// The steps of its input pipeline, in order; empty if the graph has no datasets.
    pub pipeline: Vec<PipelineStep>,
    /// Differences from the graph, each with a number and the key that removes it.
    pub differs: Vec<Note>,
    /// Parts of the graph that an experiment cannot express.
    pub missing: Vec<Note>,
    /// Mistakes that its dtypes show.
    pub slips: Vec<Slip>,
    /// The experiment in YAML, with blocks for repeated parts; `None` if layers cannot express the network.
    pub experiment: Option<String>,
    /// The same experiment without blocks: a line for each layer.
    pub experiment_by_layer: Option<String>,
    /// The graph's variables, by whether a layer has them.
    pub variables: VariableCount,
}

/// Counts of a network's variables (without slots, counters and averages).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VariableCount {
    /// Variables that a layer reads.
    pub n_mapped: usize,
    /// Elements of these variables.
    pub n_elements: i64,
    /// Names of the variables that no layer reads.
    pub unmapped: Vec<String>,
}

/// A node of the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub node: String,
    /// The script's line that made it, if the graph records it.
    pub line: String,
    /// The lines that led to this one, innermost first.
    pub callers: Vec<String>,
}

impl Place {
    fn new(graph: &Graph, node: usize) -> Place {
        Place::of_node(&graph.body.nodes[node])
    }

    fn of_node(node: &Node) -> Place {
        let line = node.source().unwrap_or_default().to_string();
        Place { node: node.name.clone(), line, callers: node.callers().to_vec() }
    }
}

/// A remark on a node or on the whole graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The node; empty for the graph as a whole.
    pub node: String,
    /// The script's line that made the node, if the graph records it.
    pub place: String,
    /// The lines that led to this one, innermost first.
    pub callers: Vec<String>,
    /// The remark.
    pub text: String,
    /// The remedy; may be empty.
    pub help: String,
    /// Whether the step as HLO has what the remark is about, if the step becomes HLO.
    pub is_in_step: bool,
}

impl Note {
    fn new(graph: &Graph, node: Option<usize>, text: impl Into<String>, help: impl Into<String>) -> Note {
        let Place { node, line, callers } = node.map(|node| Place::new(graph, node)).unwrap_or_default();
        Note { node, place: line, callers, text: text.into(), help: help.into(), is_in_step: false }
    }

    /// The same remark, on something that the step as HLO has.
    fn in_step(self) -> Note {
        Note { is_in_step: true, ..self }
    }
}

/// Ports a graph to an experiment. Its batch is that of the graph's inputs, else that of its pipeline.
pub fn port(graph: &Graph) -> Ported {
    port_with_batch(graph, None)
}

/// Ports a graph to an experiment with this batch, one core's; without one as [`port`] does.
pub fn port_with_batch(graph: &Graph, batch: Option<i64>) -> Ported {
    let mut notes = Notes::default();
    updates::left_out_of_step(graph, &mut notes);
    let branched = inline::with_branches(graph);
    let graph = branched.as_ref().unwrap_or(graph);
    let mut slips = slips::slips(graph);
    let loss = region::loss(graph);
    let pipeline = pipeline::pipeline(graph, &mut notes);
    let trip = if loss.is_none() { inline::trip(graph) } else { None };
    let loss = trip.as_ref().map_or(loss, region::loss);
    let graph = trip.as_ref().unwrap_or(graph);
    let served = if loss.is_none() { inline::served(graph) } else { None };
    let graph = served.as_ref().unwrap_or(graph);
    if trip.is_some() || served.is_some() {
        let inside = slips::slips(graph);
        let is_new = |slip: &Slip| slips.iter().all(|known| known.kind != slip.kind);
        let inside: Vec<Slip> = inside.into_iter().filter(is_new).collect();
        slips.extend(inside);
        slips.sort_by_key(|slip| slip.kind);
    }
    let mut network = layers::network(graph, loss, &mut notes);
    network.batch = batch.or(network.batch).or_else(|| pipeline::batch(&pipeline));
    network.metrics = metrics::metrics(graph, &network, &mut notes);
    let (training, loss_factor) = training::training(graph, loss, &network, &mut notes);
    for head in network.heads.iter_mut().filter(|_| loss_factor != 1.0) {
        head.weight = symbols::shortest((head.weight * loss_factor) as f32);
    }
    let used: BTreeSet<&String> = network.variables.keys().collect();
    let unmapped: Vec<String> = network_variables(graph).into_iter().filter(|name| !used.contains(name)).collect();
    if !unmapped.is_empty() {
        let text = match &unmapped[..] {
            [one] => format!("the variable `{one}` is in no layer"),
            all => format!("{} variables are in no layer, such as `{}`", all.len(), all[0]),
        };
        let help = match nearest::network(graph) {
            "" => "see what reads them above",
            help => help,
        };
        notes.missing.push(Note::new(graph, None, text, help).in_step());
    }
    let variables = VariableCount {
        n_mapped: network.variables.len(),
        n_elements: network.variables.values().map(|dims| dims.iter().product::<i64>()).sum(),
        unmapped,
    };
    let written = |has_blocks| yaml::experiment(graph, &network, &training, has_blocks);
    let has_words = !network.layers.is_empty();
    if has_words && network.batch.is_none() {
        let text = format!("the graph leaves its batch open; here it is {}", yaml::batch(&network, &training));
        notes.differs.push(Note::new(graph, None, text, "give `--batch N`, or write `batch` under `train`"));
    }
    let (experiment, experiment_by_layer) = (has_words.then(|| written(true)), has_words.then(|| written(false)));
    let (differs, missing) = (notes.differs, notes.missing);
    Ported { network, training, pipeline, differs, missing, slips, experiment, experiment_by_layer, variables }
}

/// Remarks that are collected while a graph is ported.
#[derive(Debug, Default)]
struct Notes {
    differs: Vec<Note>,
    missing: Vec<Note>,
}

/// A network's variables: the graph's without slots and counters.
fn network_variables(graph: &Graph) -> Vec<String> {
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
