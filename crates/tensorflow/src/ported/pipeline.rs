//! The input pipeline of a graph: the datasets between its files and the iterator that its network reads, and the casts to bf16
//! of their functions.
//!
//! Source: the registrations of datasets in TensorFlow's `core/ops/dataset_ops.cc` and `experimental_dataset_ops.cc`.

use std::collections::BTreeSet;

use super::symbols::constant;
use super::{Note, Notes, Place, region};
use crate::graph::{Body, Graph};
use crate::host::dataset;
use crate::messages::AttrKind;
use crate::node::{Edge, Node, dims_of};
use bf16scope_hlo::DType;

/// A step of an input pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PipelineStep {
    /// The step in words: `batch 8, drop remainder`.
    pub text: String,
    /// The node that makes it.
    pub place: Place,
    /// The size of the batches that it makes, if it makes some and the graph has the number.
    pub batch: Option<i64>,
}

/// The cast that the host makes before features go to the device.
const CAST: &str = "cast bf16";

/// Datasets that are followed at most.
const MAX_DATASETS: usize = 64;

/// The steps of the pipeline that the graph's first iterator reads; a remark if the host hands f32 to a network in bf16.
pub(super) fn pipeline(graph: &Graph, notes: &mut Notes) -> Vec<PipelineStep> {
    let Some((body, last)) = last_dataset(graph) else { return Vec::new() };
    let mut steps: Vec<Vec<PipelineStep>> = Vec::new();
    let mut next = Some(last);
    while let Some(at) = next.filter(|_| steps.len() < MAX_DATASETS) {
        let node = &body.nodes[at];
        let Some(name) = dataset(&node.op) else { break };
        steps.push(steps_of(graph, body, node, name));
        let mut inputs = node.inputs.iter().map(|edge| behind(body, *edge));
        next = inputs.find(|input| dataset(&body.nodes[*input].op).is_some());
    }
    let mut steps: Vec<PipelineStep> = steps.into_iter().rev().flatten().collect();
    steps.extend(casts_of_host(graph).map(|node| step(CAST, node)));
    let has_cast = steps.iter().any(|step| step.text == CAST);
    if !has_cast && region::is_bf16_network(graph) {
        notes.differs.extend(uncast(graph));
    }
    steps
}

/// The size of the batches that a pipeline gives; `None` where a step behind takes them apart.
pub(super) fn batch(steps: &[PipelineStep]) -> Option<i64> {
    let groups = |step: &&PipelineStep| {
        ["batch", "flat map", "interleave", "window"].iter().any(|word| step.text.contains(word))
    };
    steps.iter().rev().find(groups)?.batch
}

/// The dataset that an iterator of the graph reads: the one that a `get_next` is of, else the first.
fn last_dataset(graph: &Graph) -> Option<(&Body, usize)> {
    let body = &graph.body;
    let of_maker = |maker: &Node| Some((body, behind(body, *maker.inputs.first()?)));
    let of_iterator = |iterator: usize| {
        let makes_it = |node: &&Node| {
            node.op == "MakeIterator" && node.inputs.get(1).is_some_and(|edge| behind(body, *edge) == iterator)
        };
        match body.nodes[iterator].function("dataset_factory") {
            Some(factory) => {
                let factory = graph.functions.get(factory)?;
                Some((&factory.body, behind(&factory.body, *factory.returns.first()?)))
            }
            None => body.nodes.iter().find(makes_it).and_then(of_maker),
        }
    };
    let read = body.nodes.iter().filter(|node| node.op.starts_with("IteratorGetNext"));
    let read = read.filter_map(|node| Some(behind(body, *node.inputs.first()?)));
    read.filter_map(of_iterator)
        .next()
        .or_else(|| body.nodes.iter().find(|node| node.op == "MakeIterator").and_then(of_maker))
}

/// The node behind identities and the entrances of loops.
fn behind(body: &Body, edge: Edge) -> usize {
    let mut at = edge.node;
    for _ in 0..8 {
        match (body.nodes[at].op.as_str(), body.nodes[at].inputs.first()) {
            ("Identity" | "Enter" | "RefEnter", Some(input)) => at = input.node,
            _ => break,
        }
    }
    at
}

fn step(text: impl Into<String>, node: &Node) -> PipelineStep {
    PipelineStep { text: text.into(), place: Place::of_node(node), batch: None }
}

/// The steps of a dataset with this name; none of those that say how a host works.
fn steps_of(graph: &Graph, body: &Body, node: &Node, name: &str) -> Vec<PipelineStep> {
    let number = |at: usize| number(body, *node.inputs.get(at)?);
    let counted = |word: &str, at: usize| match number(at) {
        Some(n) if n >= 0 => format!("{word} {n}"),
        _ => word.to_string(),
    };
    let last = node.inputs.len().saturating_sub(1);
    let batch = |word: &str, size: usize, has_remainder: bool| {
        let dropped = if has_remainder && number(last) == Some(1) { ", drop remainder" } else { "" };
        PipelineStep { batch: number(size).filter(|n| *n > 0), ..step(counted(word, size) + dropped, node) }
    };
    let is_first_version = node.op.ends_with("Dataset");
    match name {
        "Options" | "Model" | "Optimize" | "MaxIntraOpParallelism" | "PrivateThreadPool" | "AssertCardinality" => {
            Vec::new()
        }
        "Map" | "ParallelMap" => mapped(graph, node),
        "MapAndBatch" => {
            let mut steps = mapped(graph, node);
            steps.push(batch("batch", node.inputs.len().saturating_sub(3), true));
            steps
        }
        "Batch" => vec![batch("batch", 1, !is_first_version)],
        "ParallelBatch" => vec![batch("batch", 1, true)],
        "PaddedBatch" => vec![batch("padded batch", 1, !is_first_version)],
        "Shuffle" => vec![step(counted("shuffle", 1), node)],
        "ShuffleAndRepeat" => vec![step(counted("shuffle", 1), node), step("repeat", node)],
        "Repeat" | "Take" | "Skip" => vec![step(counted(&name.to_lowercase(), 1), node)],
        name => vec![step(in_words(name), node)],
    }
}

/// A map, and the casts of its function to bf16 as a step of their own.
fn mapped(graph: &Graph, node: &Node) -> Vec<PipelineStep> {
    let mut steps = vec![step("map", node)];
    let mut seen = BTreeSet::new();
    let mut pending: Vec<&str> = called(node);
    while let Some(name) = pending.pop() {
        let Some(function) = graph.functions.get(name).filter(|_| seen.insert(name)) else { continue };
        for node in &function.body.nodes {
            pending.extend(called(node));
            if is_cast(node) && steps.len() == 1 {
                steps.push(step(CAST, node));
            }
        }
    }
    steps
}

/// The functions that a node calls, or that its attributes name.
fn called(node: &Node) -> Vec<&str> {
    let of_attributes = node.attrs.values().filter_map(|attr| attr.value.as_ref()).flat_map(|kind| match kind {
        AttrKind::Func(func) => std::slice::from_ref(func),
        AttrKind::List(list) => list.func.as_slice(),
        _ => &[],
    });
    of_attributes.map(|func| func.name.as_str()).chain([node.op.as_str()]).collect()
}

fn is_cast(node: &Node) -> bool {
    node.op == "Cast" && node.dtype("DstT") == Some(DType::BF16)
}

/// Casts to bf16 of what an iterator gives, before a TPU program takes it.
fn casts_of_host(graph: &Graph) -> impl Iterator<Item = &Node> {
    let nodes = &graph.body.nodes;
    let has_cluster = nodes.iter().any(|node| !node.cluster().is_empty());
    let is_of_host = move |node: &&Node| {
        let source = node.inputs.first().map(|edge| &nodes[behind(&graph.body, *edge)]);
        let is_read = source.is_some_and(|source| source.op.starts_with("IteratorGetNext"));
        has_cluster && is_cast(node) && node.cluster().is_empty() && is_read
    };
    nodes.iter().filter(is_of_host).take(1)
}

/// A remark on the f32 arrays that an iterator hands to a network in bf16.
fn uncast(graph: &Graph) -> Option<Note> {
    let wide = |node: &Node| {
        let (types, shapes) = (node.list("output_types")?, node.list("output_shapes")?);
        let pairs = types.r#type.iter().zip(&shapes.shape);
        let floats = pairs.filter(|(ty, _)| crate::dtypes::hlo(**ty) == Some(DType::F32));
        // Labels and weights of examples have few dims.
        let is_array = |dims: &Option<Vec<i64>>| dims.as_ref().is_none_or(|dims| dims.len() > 1);
        let arrays: Vec<Option<Vec<i64>>> = floats.map(|(_, shape)| dims_of(shape)).filter(is_array).collect();
        (!arrays.is_empty()).then_some(arrays)
    };
    let nodes = graph.body.nodes.iter().enumerate().filter(|(_, node)| node.op.starts_with("IteratorGetNext"));
    let (at, arrays) = nodes.filter_map(|(at, node)| Some((at, wide(node)?))).next()?;
    let n_bytes = arrays.iter().try_fold(0i64, |sum, dims| {
        let dims = dims.as_ref().filter(|dims| dims.iter().all(|dim| *dim >= 0))?;
        let n = dims.iter().try_fold(4i64, |n, dim| n.checked_mul(*dim))?;
        sum.checked_add(n)
    });
    let bytes = match n_bytes {
        Some(n) => format!("{n} bytes a batch, and {} as bf16", n / 2),
        None => "twice the bytes of bf16".to_string(),
    };
    let text =
        format!("the host hands f32 features to a network in bf16, {bytes}; here the loader casts them on the host");
    let help = "nothing to write; in TensorFlow, images = tf.cast(images, tf.bfloat16) as the last step of input_fn";
    Some(Note::new(graph, Some(at), text, help))
}

/// The whole number of a constant; a truth value is 0 or 1.
fn number(body: &Body, edge: Edge) -> Option<i64> {
    let node = &body.nodes[behind(body, edge)];
    match constant(node).filter(|_| node.op == "Const")?.1[..] {
        [value] if value.fract() == 0.0 && value.abs() < 1e15 => Some(value as i64),
        _ => None,
    }
}

/// A name in small letters, a word for each capital: `tensor slice` of `TensorSlice`, `tfrecord` of `TFRecord`.
fn in_words(name: &str) -> String {
    let mut words = String::new();
    let mut was_small = false;
    for c in name.chars() {
        if c.is_ascii_uppercase() && was_small {
            words.push(' ');
        }
        was_small = c.is_ascii_lowercase() || c.is_ascii_digit();
        words.push(c.to_ascii_lowercase());
    }
    words
}
