//! What of a graph is asked for: a function of a SavedModel, the op that trains, tensors by name, or what nothing reads.

use std::collections::{BTreeSet, HashMap};

use super::error::GraphError;
use super::graph::{Graph, Signature};
use super::host::is_host;
use super::node::Edge;
use bf16scope_hlo::words::nearest;
use bf16scope_hlo::{ArrayShape, DType};

/// The size of dimension `dim` of parameter `number`, where the graph does not say it.
pub type SizeOf<'a> = dyn Fn(usize, usize) -> Option<i64> + 'a;

/// What of a graph becomes a module.
pub struct Choice<'a> {
    /// A signature's name, or tensors and ops by name, with commas between; `None`: the graph's own choice.
    pub name: Option<String>,
    /// Sizes that the graph leaves open.
    pub size_of: &'a SizeOf<'a>,
}

/// What a module computes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    pub results: Vec<(String, Edge)>,
    pub effects: Vec<usize>,
    /// Names of inputs that a signature gives.
    pub inputs: HashMap<Edge, String>,
}

impl Choice<'_> {
    /// The nodes that are asked for. Without a name: of a SavedModel the signature `serving_default`, or the first; else the
    /// ops of the collection `train_op`, with the losses; else every tensor that nothing reads.
    pub(crate) fn targets(&self, graph: &Graph) -> Result<Targets, GraphError> {
        if let Some(name) = &self.name {
            return named(graph, name);
        }
        let offered = |name: &&String| !name.starts_with("__") && !graph.signatures[*name].outputs.is_empty();
        let signatures: Vec<&String> = graph.signatures.keys().filter(offered).collect();
        let signature = signatures.iter().find(|name| ***name == "serving_default").or(signatures.first());
        if let Some(name) = signature {
            return of_signature(graph, &graph.signatures[*name]);
        }
        let train = graph.collection("train_op");
        if !train.is_empty() {
            return Ok(training(graph, train));
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

    /// The dims of an input, with every size that is open settled.
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
        match settled.iter().try_fold(dtype.n_bytes() as i64, |n, dim| n.checked_mul(*dim)) {
            Some(_) => Ok(settled),
            None => Err(error(shape.to_string(), "its size is more than memory holds".to_string())),
        }
    }
}

fn named(graph: &Graph, name: &str) -> Result<Targets, GraphError> {
    if let Some(signature) = graph.signatures.get(name) {
        return of_signature(graph, signature);
    }
    let mut targets = Targets::default();
    for name in name.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let Some(edge) = graph.body.edge(name) else {
            let names =
                graph.signatures.keys().chain(graph.body.nodes.iter().map(|node| &node.name)).map(String::as_str);
            let near = nearest(name, names).map(|near| format!("`{near}` is one")).unwrap_or_default();
            let help =
                if near.is_empty() { "name a signature, a tensor or an op of the graph".to_string() } else { near };
            let message = format!("it has no signature, tensor or op `{name}`");
            return Err(GraphError::NoProgram { file: graph.file.clone(), message, help });
        };
        let op = &graph.body.nodes[edge.node].op;
        match op == "NoOp" || op.starts_with("Assign") || op.starts_with("ResourceApply") {
            true => targets.effects.push(edge.node),
            false => targets.results.push((name.to_string(), edge)),
        }
    }
    Ok(targets)
}

fn of_signature(graph: &Graph, signature: &Signature) -> Result<Targets, GraphError> {
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

/// The ops that train, and the losses: those of the collection, and what a summary calls loss.
fn training(graph: &Graph, train: &[String]) -> Targets {
    let effects: Vec<usize> = train.iter().filter_map(|name| Some(graph.body.edge(name)?.node)).collect();
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

/// Tensors that nothing reads.
fn sinks(graph: &Graph) -> Vec<(String, Edge)> {
    let nodes = &graph.body.nodes;
    let mut is_read = vec![false; nodes.len()];
    let mut is_awaited = vec![false; nodes.len()];
    nodes.iter().flat_map(|node| &node.controls).for_each(|from| is_awaited[*from] = true);
    // What a host op reads is not read by the program.
    let of_host: Vec<bool> = nodes.iter().map(|node| is_host(&node.op)).collect();
    for (idx, node) in nodes.iter().enumerate() {
        let reads = node.inputs.iter().map(|edge| edge.node).chain(node.controls.iter().copied());
        // What only waits, and is waited for, orders other nodes: what it reads is no result.
        let is_order = node.op == "NoOp" && is_awaited[idx];
        reads.filter(|_| is_order || !of_host[idx]).for_each(|from| is_read[from] = true);
    }
    let sinks = (0..nodes.len()).filter(|idx| !is_read[*idx] && !of_host[*idx] && !nodes[*idx].inputs.is_empty());
    sinks.map(|idx| (nodes[idx].name.clone(), Edge { node: idx, output: 0 })).collect()
}
