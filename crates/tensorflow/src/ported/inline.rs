//! Inlines the calls of a SavedModel's function, and the body of a loop that takes batches: a network is then a single body.

use std::collections::{HashMap, HashSet};

use crate::graph::{Body, Function, Graph, Signature};
use crate::host::takes_batch;
use crate::node::{Edge, Node};

/// The deepest nesting of calls.
const MAX_DEPTH: usize = 32;

/// Nodes of the result at most, since a function may be called from many places.
const MAX_NODES: usize = 1 << 20;

/// The graph that a SavedModel serves, without calls; `None` if it has no signature, calls nothing, or is too large.
pub(super) fn served(graph: &Graph) -> Option<Graph> {
    let offered = |name: &&String| !name.starts_with("__") && !graph.signatures[*name].outputs.is_empty();
    let names: Vec<&String> = graph.signatures.keys().filter(offered).collect();
    let name = names.iter().find(|name| ***name == "serving_default").or(names.first())?;
    let signature = &graph.signatures[*name];
    let edges: Option<Vec<Edge>> = signature.outputs.values().map(|tensor| graph.body.edge(tensor)).collect();
    let mut inlined = Inlined { graph, nodes: Vec::new(), taken: HashSet::new(), inputs: inputs(graph, signature) };
    let results = inlined.body(&graph.body, &edges?, &[], 0)?;
    let has_calls = graph.body.nodes.iter().any(|node| called(graph, node).is_some());
    let outputs = signature.outputs.keys().zip(&results);
    let outputs =
        outputs.map(|(name, edge)| (name.clone(), format!("{}:{}", inlined.nodes[edge.node].name, edge.output)));
    let inputs = signature.inputs.keys().map(|name| (name.clone(), format!("{name}:0"))).collect();
    let signatures = [((*name).clone(), Signature { inputs, outputs: outputs.collect() })].into();
    let body = Body::new(inlined.nodes);
    has_calls.then(|| Graph {
        file: graph.file.clone(),
        body,
        functions: graph.functions.clone(),
        signatures,
        collections: graph.collections.clone(),
        variables: graph.variables.clone(),
        version: graph.version.clone(),
    })
}

/// The graph of one trip of a loop whose body's function takes batches; `None` if it has no such loop.
pub(super) fn trip(graph: &Graph) -> Option<Graph> {
    let body = |node: &Node| graph.functions.get(node.function("body")?);
    let (node, function) = graph.body.nodes.iter().find_map(|node| {
        let takes_batch = |function: &&Function| function.body.nodes.iter().any(|node| takes_batch(&node.op));
        Some((node, body(node).filter(takes_batch)?))
    })?;
    let mut inlined = Inlined { graph, nodes: Vec::new(), taken: HashSet::new(), inputs: HashMap::new() };
    // How many cores there are is beside the loop.
    let is_metadata = |idx: &usize| graph.body.nodes[*idx].op == "TPUReplicateMetadata";
    let first = |node: usize| Edge { node, output: 0 };
    let beside = (0..graph.body.nodes.len()).filter(is_metadata).map(first);
    let before: Vec<Edge> = node.inputs.iter().copied().chain(beside).collect();
    let arguments = inlined.body(&graph.body, &before, &[], 0)?;
    let effects = function.effects.iter().copied().map(first);
    let results: Vec<Edge> = function.returns.iter().copied().chain(effects).collect();
    inlined.body(&function.body, &results, &arguments, 1)?;
    Some(Graph { body: Body::new(inlined.nodes), ..graph.clone() })
}

/// The graph with the nodes of its branches of version 2 beside its own, as those of version 1 are; `None` if they update
/// nothing. Each function is added once, and what it returns is not followed.
pub(super) fn with_branches(graph: &Graph) -> Option<Graph> {
    let is_update = |node: &Node| ["Assign", "Apply", "ResourceApply"].iter().any(|op| node.op.starts_with(op));
    let updates = |function: &Function| function.body.nodes.iter().any(is_update);
    if !graph.functions.values().any(updates) {
        return None;
    }
    let mut nodes = graph.body.nodes.clone();
    let (mut at, mut seen, mut has_updates) = (0, HashSet::new(), false);
    while let Some(node) = nodes.get(at) {
        at += 1;
        if !matches!(node.op.as_str(), "If" | "StatelessIf") {
            continue;
        }
        let node = node.clone();
        for branch in ["then_branch", "else_branch"] {
            let Some(name) = node.function(branch).filter(|name| seen.insert(name.to_string())) else { continue };
            let Some(function) = graph.functions.get(name) else { continue };
            has_updates |= updates(function);
            let (first, arguments) = (nodes.len(), node.inputs.get(1..).unwrap_or_default());
            let argument = |number: usize| arguments.get(number).filter(|_| number < function.n_arguments);
            let edge = |edge: &Edge| {
                argument(edge.node).copied().unwrap_or(Edge { node: first + edge.node, output: edge.output })
            };
            nodes.extend(function.body.nodes.iter().map(|inner| Node {
                name: format!("{}/{branch}/{}", node.name, inner.name),
                inputs: inner.inputs.iter().map(edge).collect(),
                controls: inner.controls.iter().map(|control| first + control).collect(),
                ..inner.clone()
            }));
        }
    }
    has_updates.then(|| Graph { body: Body::new(nodes), ..graph.clone() })
}

/// The signature's input names, by placeholder.
fn inputs(graph: &Graph, signature: &Signature) -> HashMap<String, String> {
    let named = |(name, tensor): (&String, &String)| {
        let edge = graph.body.edge(tensor)?;
        Some((graph.body.nodes[edge.node].name.clone(), name.clone()))
    };
    signature.inputs.iter().filter_map(named).collect()
}

/// The function that a node calls.
fn called<'g>(graph: &'g Graph, node: &Node) -> Option<&'g Function> {
    match node.op.as_str() {
        "PartitionedCall" | "StatefulPartitionedCall" => graph.functions.get(node.function("f")?),
        op => graph.functions.get(op),
    }
}

/// The body that is being written.
struct Inlined<'g> {
    graph: &'g Graph,
    nodes: Vec<Node>,
    taken: HashSet<String>,
    inputs: HashMap<String, String>,
}

impl Inlined<'_> {
    /// Adds the nodes that `wanted` edges of a body need, and returns those edges in the result.
    fn body(&mut self, body: &Body, wanted: &[Edge], arguments: &[Edge], depth: usize) -> Option<Vec<Edge>> {
        let mut outputs: HashMap<usize, Vec<Edge>> = HashMap::new();
        let mut is_seen = vec![false; body.nodes.len()];
        let mut pending: Vec<(usize, bool)> = wanted.iter().rev().map(|edge| (edge.node, false)).collect();
        while let Some((idx, is_done)) = pending.pop() {
            if !is_done {
                if !std::mem::replace(&mut is_seen[idx], true) {
                    pending.push((idx, true));
                    pending.extend(body.nodes[idx].inputs.iter().rev().map(|edge| (edge.node, false)));
                }
                continue;
            }
            let node = &body.nodes[idx];
            // A loop of control flow v1 reads a node that comes later, which has no edge yet.
            let reads: Option<Vec<Edge>> = node.inputs.iter().map(|edge| edge_in(&outputs, *edge)).collect();
            let edges = match (node.op.as_str(), called(self.graph, node)) {
                ("_Arg", _) => vec![*arguments.get(idx)?],
                (_, Some(function)) if depth < MAX_DEPTH => {
                    self.body(&function.body, &function.returns, &reads?, depth + 1)?
                }
                _ => vec![self.push(node, reads?)?],
            };
            outputs.insert(idx, edges);
        }
        wanted.iter().map(|edge| edge_in(&outputs, *edge)).collect()
    }

    fn push(&mut self, node: &Node, inputs: Vec<Edge>) -> Option<Edge> {
        if self.nodes.len() >= MAX_NODES {
            return None;
        }
        let wanted = self.inputs.get(&node.name).filter(|_| node.op.starts_with("Placeholder")).unwrap_or(&node.name);
        let mut name = wanted.clone();
        let mut number = 0;
        while !self.taken.insert(name.clone()) {
            number += 1;
            name = format!("{wanted}_{number}");
        }
        self.nodes.push(Node { name, inputs, controls: Vec::new(), ..node.clone() });
        Some(Edge { node: self.nodes.len() - 1, output: 0 })
    }
}

/// The edge of the result for an edge of a body: a call's result, or the same output of a copied node.
fn edge_in(outputs: &HashMap<usize, Vec<Edge>>, edge: Edge) -> Option<Edge> {
    let edges = outputs.get(&edge.node)?;
    match edges[..] {
        [one] if edge.output > 0 => Some(Edge { output: one.output + edge.output, ..one }),
        _ => edges.get(edge.output).copied(),
    }
}
