//! Selects the part of a graph to lower: a SavedModel's signature, the training op, named tensors, or the unread tensors.

use std::collections::{BTreeSet, HashMap};

use super::error::GraphError;
use super::graph::{Graph, Signature};
use super::host::is_host;
use super::node::Edge;
use super::tensor::n_elements;
use bf16scope_hlo::words::nearest;
use bf16scope_hlo::{ArrayShape, DType};

/// The size of dimension `dim` of parameter `number`, if the graph leaves it open.
pub type SizeOf<'a> = dyn Fn(usize, usize) -> Option<i64> + 'a;

/// The part of a graph that becomes a module.
pub struct Choice<'a> {
    /// A signature's name, a TPU program's (`cluster`), or the names of tensors and ops, separated by commas. `None` selects
    /// the signature `serving_default` or the first one; without signatures the collection `train_op` and the losses; else the
    /// graph's TPU program; else all unread tensors.
    pub name: Option<String>,
    /// Sizes that the graph leaves open.
    pub size_of: &'a SizeOf<'a>,
}

/// The results and effects of a module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    pub results: Vec<(String, Edge)>,
    pub effects: Vec<usize>,
    /// Input names from a signature.
    pub inputs: HashMap<Edge, String>,
}

impl Choice<'_> {
    /// The selected nodes, by [`Choice::name`].
    pub(crate) fn targets(&self, graph: &Graph) -> Result<Targets, GraphError> {
        if let Some(name) = &self.name {
            return named(graph, name);
        }
        let offered = |name: &&String| !name.starts_with("__") && !graph.signatures[*name].outputs.is_empty();
        let signatures: Vec<&String> = graph.signatures.keys().filter(offered).collect();
        let signature = signatures.iter().find(|name| ***name == "serving_default").or(signatures.first());
        if let Some(name) = signature {
            return from_signature(graph, &graph.signatures[*name]);
        }
        let train = graph.collection("train_op");
        if !train.is_empty() {
            return Ok(training(graph, train));
        }
        let clusters: Vec<&str> = graph.clusters().into_iter().collect();
        match clusters[..] {
            [] => {}
            [cluster] => return Ok(of_cluster(graph, cluster)),
            [first, ..] => {
                return Err(GraphError::NoProgram {
                    file: graph.file.clone(),
                    message: format!("it has {} TPU programs: {}", clusters.len(), clusters.join(", ")),
                    help: format!("name the one that is meant, `--fetch {first}`"),
                });
            }
        }
        let results = sinks(graph);
        match results.is_empty() {
            true => Err(GraphError::NoProgram {
                file: graph.file.clone(),
                message: "it has no signature, no op in the collection train_op, and no tensor that nothing reads"
                    .to_string(),
                help: "save it from the script that trains (a Saver writes .meta beside each checkpoint), or freeze it"
                    .to_string(),
            }),
            false => Ok(Targets { results, ..Targets::default() }),
        }
    }

    /// The dims of an input, with open sizes filled in by [`Choice::size_of`].
    pub(crate) fn settle(
        &self,
        file: &str,
        number: usize,
        name: &str,
        dtype: DType,
        dims: Option<Vec<i64>>,
    ) -> Result<Vec<i64>, GraphError> {
        let error = |shape: String, help: String| GraphError::Size {
            file: file.to_string(),
            name: name.to_string(),
            number,
            shape,
            help,
        };
        let Some(dims) = dims else {
            let help = "its rank is not known: set the placeholder's shape in the script, and save the graph again"
                .to_string();
            return Err(error(format!("{dtype}[…]"), help));
        };
        let settled: Vec<i64> = dims
            .iter()
            .enumerate()
            .map(|(at, dim)| if *dim >= 0 { *dim } else { (self.size_of)(number, at).unwrap_or(-1) })
            .collect();
        if let Some(open) = settled.iter().position(|dim| *dim < 0) {
            let sizes: Vec<String> =
                dims.iter().map(|dim| if *dim < 0 { "?".to_string() } else { dim.to_string() }).collect();
            let help = match open {
                0 => format!("give the batch, `--dim batch=8`, or this one alone, `--dim {number}:0=8`"),
                open => format!("give it, `--dim {number}:{open}=128`"),
            };
            return Err(error(format!("{dtype}[{}]", sizes.join(",")), help));
        }
        let shape = ArrayShape::new(dtype, settled.clone());
        match n_elements(&settled) {
            Some(_) => Ok(settled),
            None => Err(error(shape.to_string(), "its size is more than memory holds".to_string())),
        }
    }
}

fn named(graph: &Graph, name: &str) -> Result<Targets, GraphError> {
    if let Some(signature) = graph.signatures.get(name) {
        return from_signature(graph, signature);
    }
    if graph.body.find(name).is_none() && graph.clusters().contains(name) {
        return Ok(of_cluster(graph, name));
    }
    let mut targets = Targets::default();
    for name in name.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let Some(edge) = graph.body.edge(name) else {
            let names = graph.signatures.keys().chain(graph.body.nodes.iter().map(|node| &node.name));
            let names = names.map(String::as_str).chain(graph.clusters());
            let near = nearest(name, names).map(|near| format!("`{near}` is one")).unwrap_or_default();
            let programs = graph.clusters().into_iter().collect::<Vec<&str>>().join(", ");
            let help = match (near.is_empty(), programs.is_empty()) {
                (false, _) => near,
                (true, true) => "name a signature, a tensor or an op of the graph".to_string(),
                (true, false) => {
                    format!("name a signature, a tensor or an op of the graph, or a TPU program: {programs}")
                }
            };
            let message = format!("it has no signature, tensor or op `{name}`");
            return Err(GraphError::NoProgram { file: graph.file.clone(), message, help });
        };
        let op = &graph.body.nodes[edge.node].op;
        let effects = ["Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter"];
        match op == "NoOp" || effects.iter().any(|prefix| op.starts_with(*prefix)) {
            true => targets.effects.push(edge.node),
            false => targets.results.push((name.to_string(), edge)),
        }
    }
    Ok(targets)
}

fn from_signature(graph: &Graph, signature: &Signature) -> Result<Targets, GraphError> {
    let edge = |tensor: &String| {
        graph.body.edge(tensor).ok_or_else(|| GraphError::Damaged {
            file: graph.file.clone(),
            message: format!("a signature names `{tensor}`, and the graph has no such node"),
        })
    };
    let results = signature.outputs.iter().map(|(name, tensor)| Ok((name.clone(), edge(tensor)?)));
    let inputs = signature.inputs.iter().map(|(name, tensor)| Ok((edge(tensor)?, name.clone())));
    Ok(Targets {
        results: results.collect::<Result<_, _>>()?,
        effects: Vec::new(),
        inputs: inputs.collect::<Result<_, _>>()?,
    })
}

/// The nodes that a training step runs, and what they read; `None` if the graph has no training op.
pub(crate) fn nodes_of_step(graph: &Graph) -> Option<Vec<bool>> {
    let train = graph.collection("train_op");
    let targets = Some(training(graph, train)).filter(|targets| !targets.effects.is_empty())?;
    let mut is_run = vec![false; graph.body.nodes.len()];
    let mut pending = targets.effects;
    pending.extend(targets.results.iter().map(|(_, edge)| edge.node));
    while let Some(idx) = pending.pop() {
        if !std::mem::replace(&mut is_run[idx], true) {
            let node = &graph.body.nodes[idx];
            pending.extend(node.inputs.iter().map(|edge| edge.node).chain(node.controls.iter().copied()));
        }
    }
    Some(is_run)
}

/// The assignments that wait for training ops, or that a group of ops runs with them: averages of variables, for example.
fn after(graph: &Graph, train: &[usize]) -> Vec<usize> {
    let nodes = &graph.body.nodes;
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (idx, node) in nodes.iter().enumerate() {
        let reads = node.inputs.iter().map(|edge| edge.node).chain(node.controls.iter().copied());
        reads.for_each(|from| readers[from].push(idx));
    }
    let mut waits = vec![false; nodes.len()];
    let mut pending = train.to_vec();
    while let Some(idx) = pending.pop() {
        if !std::mem::replace(&mut waits[idx], true) {
            pending.extend(&readers[idx]);
        }
    }
    // A group with a training op runs in one step: all its members belong to that step.
    let mut groups: Vec<usize> = (0..nodes.len()).filter(|idx| waits[*idx] && nodes[*idx].op == "NoOp").collect();
    let mut is_grouped = vec![false; nodes.len()];
    while let Some(idx) = groups.pop() {
        if !std::mem::replace(&mut is_grouped[idx], true) && nodes[idx].op == "NoOp" {
            groups.extend(&nodes[idx].controls);
        }
    }
    let is_after = |idx: &usize| nodes[*idx].op.starts_with("Assign") && (waits[*idx] || is_grouped[*idx]);
    (0..nodes.len()).filter(|idx| is_after(idx) && !train.contains(idx)).collect()
}

/// The training ops, what waits for them, and the losses: those in the collection `losses`, and scalar summaries called `loss`.
fn training(graph: &Graph, train: &[String]) -> Targets {
    let mut effects: Vec<usize> = train.iter().filter_map(|name| Some(graph.body.edge(name)?.node)).collect();
    effects.extend(after(graph, &effects));
    let listed = graph.collection("losses").iter().filter_map(|name| graph.body.edge(name));
    let is_loss = |name: &str| name.rsplit('/').next().is_some_and(|last| last == "loss" || last.starts_with("loss_"));
    let summaries = graph.body.nodes.iter().filter(|node| node.op == "ScalarSummary" && is_loss(&node.name));
    let summed = summaries.filter_map(|node| node.inputs.get(1).copied());
    let mut seen = BTreeSet::new();
    let results = listed
        .chain(summed)
        .filter(|edge| seen.insert(*edge))
        .map(|edge| (graph.body.nodes[edge.node].name.clone(), edge))
        .collect();
    Targets { results, effects, inputs: HashMap::new() }
}

/// A TPU program: the tensors that the host reads or that go to its outfeed, and the nodes that the host waits for.
fn of_cluster(graph: &Graph, cluster: &str) -> Targets {
    let nodes = &graph.body.nodes;
    let is_inside: Vec<bool> = nodes.iter().map(|node| node.cluster() == cluster).collect();
    let mut targets = Targets::default();
    let mut seen = BTreeSet::new();
    let mut waits = BTreeSet::new();
    for (idx, node) in nodes.iter().enumerate() {
        if is_inside[idx] && !node.op.starts_with("OutfeedEnqueue") {
            continue;
        }
        for edge in node.inputs.iter().filter(|edge| is_inside[edge.node] && seen.insert(**edge)) {
            let name = &nodes[edge.node].name;
            let name = if edge.output == 0 { name.clone() } else { format!("{name}:{}", edge.output) };
            targets.results.push((name, *edge));
        }
        if !is_inside[idx] {
            let is_waited = |from: &&usize| is_inside[**from] && nodes[**from].op != "TPUReplicateMetadata";
            waits.extend(node.controls.iter().filter(is_waited).copied());
        }
    }
    targets.effects.extend(waits);
    targets
}

/// Unread tensors.
pub(crate) fn sinks(graph: &Graph) -> Vec<(String, Edge)> {
    let nodes = &graph.body.nodes;
    let mut is_read = vec![false; nodes.len()];
    let mut is_awaited = vec![false; nodes.len()];
    nodes.iter().flat_map(|node| &node.controls).for_each(|from| is_awaited[*from] = true);
    // A read by a host op is not a read by the program.
    let is_host_op: Vec<bool> = nodes.iter().map(|node| is_host(&node.op)).collect();
    for (idx, node) in nodes.iter().enumerate() {
        let reads = node.inputs.iter().map(|edge| edge.node).chain(node.controls.iter().copied());
        // A `NoOp` that others wait for only orders nodes, so the nodes that it waits for are not results.
        let is_order = node.op == "NoOp" && is_awaited[idx];
        reads.filter(|_| is_order || !is_host_op[idx]).for_each(|from| is_read[from] = true);
    }
    let sinks = (0..nodes.len()).filter(|idx| !is_read[*idx] && !is_host_op[*idx] && !nodes[*idx].inputs.is_empty());
    sinks.map(|idx| (nodes[idx].name.clone(), Edge { node: idx, output: 0 })).collect()
}
