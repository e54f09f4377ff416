//! Finds mistakes that a graph shows (slips): places where a bf16 program computes or stores in bf16 what has to be f32, or does
//! not use bf16 at all, and inputs or terms of the loss that are not what is meant. Each is a fact of the graph; mistakes that
//! only a script shows are found by `read_script`.
//!
//! Source: the recipe of TensorFlow's TPU models: bf16 between the input pipeline's cast and the logits' cast back, f32
//! variables, statistics, loss, updates and sums over cores.

use std::collections::HashSet;

use super::symbols::{Symbols, constant, is_variable};
use super::{Place, cores, region, updates};
use crate::graph::Graph;
use crate::node::{Edge, Node};
use bf16scope_hlo::DType;

/// A mistake that the graph shows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Slip {
    /// The kind of mistake.
    pub kind: SlipKind,
    /// The first node that shows it.
    pub node: String,
    /// The script's line that made the node, if the graph records it.
    pub place: String,
    /// The lines that led to this one, innermost first.
    pub callers: Vec<String>,
    /// The number of nodes that show it.
    pub n_nodes: usize,
    /// The corrected line, in words or TensorFlow.
    pub mend: &'static str,
}

/// A kind of slip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SlipKind {
    /// A variable is bf16.
    Bf16Variable,
    /// A softmax or cross-entropy in bf16.
    Bf16Loss,
    /// Sums and means after the last layer in bf16.
    Bf16LossSum,
    /// A batch norm's statistics in bf16.
    Bf16Statistics,
    /// Moving statistics are assigned a value that was rounded to bf16.
    RoundedStatistics,
    /// An optimizer's update in bf16.
    Bf16Update,
    /// Gradients summed over cores in bf16.
    Bf16GradientSum,
    /// A norm of gradients in bf16, by which updates are scaled.
    Bf16GradientNorm,
    /// Gradients are summed over cores, not averaged.
    SumOverCores,
    /// A program for several cores sums no gradients over them.
    NoSumOverCores,
    /// Features arrive as f32 and are cast on the device.
    CastOnDevice,
    /// A step counter in bf16.
    Bf16Counter,
    /// The results of a comparison are counted or averaged in bf16, as an accuracy is.
    Bf16Count,
    /// float16 in a TPU program, which TPUs compute slowly or not.
    Float16,
    /// A loss reads the probabilities of a softmax or sigmoid as logits.
    ProbabilitiesAsLogits,
    /// A regulariser's term is in a collection, and in no loss whose gradient is taken.
    UnaddedRegulariser,
}

impl SlipKind {
    /// The mistake in words.
    pub fn what(self) -> &'static str {
        match self {
            SlipKind::Bf16Variable => "a variable is bf16",
            SlipKind::Bf16Loss => "softmax or cross-entropy in bf16",
            SlipKind::Bf16LossSum => "the loss is summed in bf16",
            SlipKind::Bf16Statistics => "batch-norm statistics in bf16",
            SlipKind::RoundedStatistics => "moving statistics are rounded to bf16 before they are assigned",
            SlipKind::Bf16Update => "an optimizer's update in bf16",
            SlipKind::Bf16GradientSum => "gradients are summed over cores in bf16",
            SlipKind::Bf16GradientNorm => "a norm of gradients in bf16, by which updates are scaled",
            SlipKind::SumOverCores => "gradients are summed over cores, not averaged",
            SlipKind::NoSumOverCores => "gradients of several cores, which nothing sums",
            SlipKind::CastOnDevice => "features come as f32 and are cast on the device",
            SlipKind::Bf16Counter => "a counter becomes bf16",
            SlipKind::Bf16Count => "a count or an accuracy in bf16",
            SlipKind::Float16 => "float16 on a TPU",
            SlipKind::ProbabilitiesAsLogits => "probabilities are given as logits",
            SlipKind::UnaddedRegulariser => "a regulariser whose loss is never added",
        }
    }

    /// Why it matters.
    pub fn why(self) -> &'static str {
        match self {
            SlipKind::Bf16Variable => "updates below 1/256 of a weight are lost; the scope keeps f32 and casts",
            SlipKind::Bf16Loss => "probabilities keep three digits, and their differences less",
            SlipKind::Bf16LossSum => "a sum of more than 256 terms in bf16 stops growing",
            SlipKind::Bf16Statistics => "means of many values keep three digits, and E(x²) - E(x)² none",
            SlipKind::RoundedStatistics => "a moving average with momentum 0.99 takes no change below 1/256 of itself",
            SlipKind::Bf16Update => "moments and steps keep three digits, and small ones are lost",
            SlipKind::Bf16GradientSum => "each addition rounds to three digits, once per core",
            SlipKind::Bf16GradientNorm => {
                "a sum of more than 256 squares in bf16 stops growing, and every update takes its error"
            }
            SlipKind::NoSumOverCores => {
                "each core trains by its own part of the batch, and variables differ from core to core"
            }
            SlipKind::SumOverCores => "the step is as many times too large as there are cores",
            SlipKind::CastOnDevice => "twice the bytes go to the device, and the host casts nothing",
            SlipKind::Bf16Counter => "whole numbers above 256 are rounded",
            SlipKind::Bf16Count => "a count above 256 is rounded, and an accuracy keeps three digits",
            SlipKind::Float16 => "a TPU computes f16 slowly or not, and f16 ends at 65504",
            SlipKind::ProbabilitiesAsLogits => {
                "the loss takes a softmax or sigmoid itself: of logits from 0 to 1 no class gets more than e times another's share"
            }
            SlipKind::UnaddedRegulariser => "it is kept in a collection, and changes nothing until the loss has it",
        }
    }

    /// The corrected line, in words or TensorFlow.
    pub(crate) fn mend(self) -> &'static str {
        match self {
            SlipKind::Bf16Variable => {
                "make it by tf.get_variable inside bfloat16_scope (tf.keras layers do not), or dtype=tf.float32 and a cast"
            }
            SlipKind::Bf16Loss => {
                "logits = tf.cast(logits, tf.float32), right after the scope (of Keras: dtype=\"float32\" on its last layer)"
            }
            SlipKind::Bf16LossSum => "cast the network's output to tf.float32 before the loss",
            SlipKind::Bf16Statistics => {
                "tf.nn.fused_batch_norm, or cast to tf.float32 before tf.nn.moments (a layer of Keras: dtype=\"float32\")"
            }
            SlipKind::RoundedStatistics => "keep batch norm's variables f32 and assign them f32 values",
            SlipKind::Bf16Update => "f32 variables, whose gradients come through the cast in f32",
            SlipKind::Bf16GradientSum => "cast gradients to tf.float32 before CrossShardOptimizer sums them",
            SlipKind::Bf16GradientNorm => "cast gradients to tf.float32 before tf.clip_by_global_norm or tf.norm",
            SlipKind::NoSumOverCores => "optimizer = tf.tpu.CrossShardOptimizer(optimizer), before minimize",
            SlipKind::SumOverCores => {
                "use optimizer.compute_gradients or minimize of CrossShardOptimizer, which scale the loss by 1/cores"
            }
            SlipKind::CastOnDevice => "images = tf.cast(images, tf.bfloat16) as the last step of input_fn",
            SlipKind::Bf16Counter => "tf.cast(global_step, tf.float32)",
            SlipKind::Bf16Count => "tf.reduce_mean(tf.cast(tf.equal(…), tf.float32))",
            SlipKind::Float16 => "tf.bfloat16",
            SlipKind::ProbabilitiesAsLogits => {
                "give the loss what is before the softmax or sigmoid (of Keras: classifier_activation=None)"
            }
            SlipKind::UnaddedRegulariser => "loss += tf.losses.get_regularization_loss()",
        }
    }
}

/// The mistakes that a graph shows, each kind once, in the order of [`SlipKind`].
pub fn slips(graph: &Graph) -> Vec<Slip> {
    let mut shown: Vec<(SlipKind, usize)> = Vec::new();
    let symbols = Symbols::new(graph);
    let nodes = &graph.body.nodes;
    let loss = region::loss(graph);
    let mut behind = loss.map(|loss| region::behind_layers(graph, loss)).unwrap_or_default();
    // A loss may read logits beside the probabilities that the network ends with, as Keras' does.
    behind.extend(last_probabilities(graph));
    let is_bf16_network = region::is_bf16_network(graph);
    // Beside a TPU program the host's casts are where they are meant to be.
    let has_host = nodes.iter().any(|node| !node.cluster().is_empty());
    let is_tpu = is_bf16_network || nodes.iter().any(|node| node.op.starts_with("TPU") || node.op == "CrossReplicaSum");
    for (idx, node) in nodes.iter().enumerate() {
        let is_on_device = !has_host || !node.cluster().is_empty();
        node_slips(&symbols, node, idx, &behind, is_bf16_network && is_on_device, &mut shown);
        let is_half = node.dtype("T") == Some(DType::F16) && region::is_weighted(&node.op);
        if is_half && is_tpu {
            shown.push((SlipKind::Float16, idx));
        }
        if reads_probabilities(&symbols, node) {
            shown.push((SlipKind::ProbabilitiesAsLogits, idx));
        }
    }
    let of_updates = [
        (SlipKind::SumOverCores, cores::summed_over_cores(&symbols, loss)),
        (SlipKind::NoSumOverCores, cores::not_summed_over_cores(&symbols)),
        (SlipKind::Bf16GradientNorm, cores::bf16_norm_of_gradients(&symbols)),
    ];
    shown.extend(of_updates.into_iter().filter_map(|(kind, at)| Some((kind, at?))));
    shown.extend(unadded_regularisers(&symbols, loss).into_iter().map(|term| (SlipKind::UnaddedRegulariser, term)));
    shown.sort();
    let mut slips: Vec<Slip> = Vec::new();
    for (kind, idx) in shown {
        match slips.last_mut() {
            Some(last) if last.kind == kind => last.n_nodes += 1,
            _ => {
                let Place { node, line, callers } = Place::new(graph, idx);
                slips.push(Slip { kind, node, place: line, callers, n_nodes: 1, mend: kind.mend() });
            }
        }
    }
    slips
}

fn node_slips(
    symbols: &Symbols<'_>,
    node: &Node,
    idx: usize,
    behind: &HashSet<usize>,
    is_in_bf16_network: bool,
    shown: &mut Vec<(SlipKind, usize)>,
) {
    let is_bf16 = |attribute: &str| node.dtype(attribute) == Some(DType::BF16);
    let graph = symbols.graph;
    let is_forward = !region::is_backward(&node.name);
    match node.op.as_str() {
        op if is_variable(op) && is_bf16("dtype") => shown.push((SlipKind::Bf16Variable, idx)),
        "Softmax" | "LogSoftmax" if is_bf16("T") && is_forward && behind.contains(&idx) => {
            shown.push((SlipKind::Bf16Loss, idx));
        }
        "SoftmaxCrossEntropyWithLogits" | "SparseSoftmaxCrossEntropyWithLogits" if is_bf16("T") => {
            shown.push((SlipKind::Bf16Loss, idx));
        }
        "Sum" | "Mean" if is_bf16("T") && is_forward && behind.contains(&idx) => {
            shown.push((SlipKind::Bf16LossSum, idx))
        }
        "Sum" | "Mean" if is_bf16("T") && is_forward && is_count(symbols, node) => {
            shown.push((SlipKind::Bf16Count, idx));
        }
        "Log" | "Log1p"
            if is_forward && behind.contains(&idx) && (is_bf16("T") || of_bf16_probabilities(symbols, node)) =>
        {
            shown.push((SlipKind::Bf16Loss, idx));
        }
        "FusedBatchNorm" if is_bf16("T") => shown.push((SlipKind::Bf16Statistics, idx)),
        "FusedBatchNormV2" | "FusedBatchNormV3" if is_bf16("U") => shown.push((SlipKind::Bf16Statistics, idx)),
        // tf.nn.moments: the variance is a mean of squared differences.
        "SquaredDifference" if is_bf16("T") && is_forward && node.name.contains("moments/") => {
            shown.push((SlipKind::Bf16Statistics, idx));
        }
        // A batch norm by hand: what is below the root.
        "Rsqrt" | "Sqrt" | "Pow" if is_forward && !behind.contains(&idx) => {
            shown.extend(bf16_variance(symbols, node).map(|mean| (SlipKind::Bf16Statistics, mean)));
        }
        "CrossReplicaSum" if is_bf16("T") => shown.push((SlipKind::Bf16GradientSum, idx)),
        op if (op.starts_with("Apply") || op.starts_with("ResourceApply")) && is_bf16("T") => {
            shown.push((SlipKind::Bf16Update, idx));
        }
        op if op.starts_with("Assign") && is_rounded_statistics(symbols, node) => {
            shown.push((SlipKind::RoundedStatistics, idx));
        }
        "Cast" if is_bf16("DstT") => {
            let from = node.dtype("SrcT");
            let source = node.inputs.first().map(|edge| symbols.behind(*edge).node);
            let source = source.map(|source| &graph.body.nodes[source]);
            let is_input = source.is_some_and(|source| {
                matches!(
                    source.op.as_str(),
                    "Placeholder" | "PlaceholderV2" | "IteratorGetNext" | "InfeedDequeueTuple" | "InfeedDequeue"
                )
            });
            // A graph that only predicts takes whatever dtype its caller has.
            // An input that only the loss reads is no feature.
            let is_feature = is_input && !behind.contains(&idx);
            if from == Some(DType::F32) && is_feature && is_in_bf16_network && !graph.collection("train_op").is_empty()
            {
                shown.push((SlipKind::CastOnDevice, idx));
            }
            let is_counter = source
                .is_some_and(|source| is_variable(&source.op) && source.dtype("dtype").is_some_and(DType::is_integer));
            if from.is_some_and(DType::is_integer) && is_counter {
                shown.push((SlipKind::Bf16Counter, idx));
            }
        }
        _ => {}
    }
}

/// Whether a sum is of what a comparison gives.
fn is_count(symbols: &Symbols<'_>, sum: &Node) -> bool {
    const COMPARISONS: [&str; 8] =
        ["Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "InTopK", "InTopKV2"];
    sum.inputs.first().is_some_and(|edge| COMPARISONS.contains(&symbols.node(symbols.behind(*edge).node).op.as_str()))
}

/// The probabilities in bf16 that no layer reads: the network ends with them.
fn last_probabilities(graph: &Graph) -> Vec<usize> {
    let nodes = &graph.body.nodes;
    let is_bf16 = |node: &Node| node.dtype("T") == Some(DType::BF16) && !updates::is_gradient(node);
    let is_one = |node: &Node| matches!(node.op.as_str(), "Softmax" | "LogSoftmax") && is_bf16(node);
    let ends: Vec<usize> = (0..nodes.len()).filter(|idx| is_one(&nodes[*idx])).collect();
    if ends.is_empty() {
        return ends;
    }
    let is_layer = |node: &Node| region::is_weighted(&node.op) && !updates::is_gradient(node);
    let before = region::ancestors(graph, (0..nodes.len()).filter(|idx| is_layer(&nodes[*idx])));
    ends.into_iter().filter(|idx| !before.contains(idx)).collect()
}

/// Whether a logarithm is of a softmax or sigmoid that was rounded to bf16, clipped and cast or not.
fn of_bf16_probabilities(symbols: &Symbols<'_>, logarithm: &Node) -> bool {
    const MAX_NODES: usize = 32;
    let (mut seen, mut pending) = (HashSet::new(), logarithm.inputs.clone());
    while let Some(edge) = pending.pop() {
        let at = symbols.behind(edge).node;
        let node = symbols.node(at);
        match node.op.as_str() {
            "Softmax" | "Sigmoid" if node.dtype("T") == Some(DType::BF16) => return true,
            "Maximum" | "Minimum" | "ClipByValue" | "Add" | "AddV2" | "Sub" | "RealDiv" | "Mul"
                if seen.len() < MAX_NODES && seen.insert(at) =>
            {
                pending.extend(&node.inputs);
            }
            _ => {}
        }
    }
    false
}

/// Whether a cross-entropy's logits are the result of a softmax or sigmoid. TensorFlow writes the one of sigmoids with
/// `log1p(exp(select(logits >= 0, -logits, logits)))`.
fn reads_probabilities(symbols: &Symbols<'_>, node: &Node) -> bool {
    let producer =
        |node: &Node, number: usize| node.inputs.get(number).map(|edge| symbols.node(symbols.behind(*edge).node));
    let logits = match node.op.as_str() {
        "SoftmaxCrossEntropyWithLogits" | "SparseSoftmaxCrossEntropyWithLogits" => producer(node, 0),
        "Log1p" if !region::is_backward(&node.name) => producer(node, 0)
            .filter(|exp| exp.op == "Exp")
            .and_then(|exp| producer(exp, 0))
            .filter(|select| matches!(select.op.as_str(), "Select" | "SelectV2"))
            .and_then(|select| producer(select, 2)),
        _ => None,
    };
    logits.is_some_and(|logits| matches!(logits.op.as_str(), "Softmax" | "Sigmoid"))
}

/// The bf16 mean of squares over the batch below a root: a batch norm's variance, written by hand as a mean of squared
/// differences or as E(x²) - E(x)².
fn bf16_variance(symbols: &Symbols<'_>, root: &Node) -> Option<usize> {
    let producer = |edge: &Edge| {
        let mut idx = symbols.behind(*edge).node;
        for _ in 0..4 {
            let node = symbols.node(idx);
            match (node.op.as_str(), node.inputs.first()) {
                ("Squeeze" | "ExpandDims", Some(input)) => idx = symbols.behind(*input).node,
                _ => break,
            }
        }
        idx
    };
    let is_square = |idx: usize| {
        let node = symbols.node(idx);
        matches!(node.op.as_str(), "Square" | "SquaredDifference")
            || node.op == "Mul" && !node.inputs.is_empty() && node.inputs.first() == node.inputs.get(1)
    };
    let is_variance = |idx: &usize| {
        let node = symbols.node(*idx);
        let axes = || constant(symbols.node(symbols.behind(*node.inputs.get(1)?).node));
        node.op == "Mean"
            && node.dtype("T") == Some(DType::BF16)
            // `tf.nn.moments` is shown by its squared difference.
            && !node.name.contains("moments/")
            && node.inputs.first().is_some_and(|edge| is_square(producer(edge)))
            && axes().is_some_and(|(_, axes)| axes.contains(&0.0))
    };
    let sum = symbols.node(producer(root.inputs.first()?));
    if !matches!(sum.op.as_str(), "Add" | "AddV2") {
        return None;
    }
    let terms = sum.inputs.iter().map(producer);
    let mut means = terms.flat_map(|idx| match symbols.node(idx).op.as_str() {
        "Sub" => symbols.node(idx).inputs.iter().map(producer).collect::<Vec<usize>>(),
        _ => vec![idx],
    });
    means.find(is_variance)
}

/// Whether a node assigns moving statistics a value that was rounded to bf16.
fn is_rounded_statistics(symbols: &Symbols<'_>, node: &Node) -> bool {
    let variable = node.inputs.first().map(|edge| symbols.node(symbols.behind(*edge).node));
    let is_statistics = variable.is_some_and(|variable| {
        let name = variable.variable_name();
        is_variable(&variable.op) && (name.contains("moving_mean") || name.contains("moving_var"))
    });
    let mut edge = node.inputs.get(1).copied();
    for _ in 0..4 {
        let Some(at) = edge else { return false };
        let value = symbols.node(at.node);
        if is_statistics && value.op == "Cast" && value.dtype("SrcT") == Some(DType::BF16) {
            return true;
        }
        edge = match value.op.as_str() {
            "Mul" | "Sub" | "Cast" | "Identity" => value.inputs.first().copied(),
            _ => return false,
        };
    }
    false
}

/// The terms of the collection of regularisers that no loss has. A variable that another term in the loss decays is not missed.
fn unadded_regularisers(symbols: &Symbols<'_>, loss: Option<usize>) -> Vec<usize> {
    let graph = symbols.graph;
    let nodes = &graph.body.nodes;
    let listed = graph.collection("regularization_losses");
    if listed.is_empty() || !nodes.iter().any(|node| region::is_backward(&node.name)) {
        return Vec::new();
    }
    let in_loss = region::in_loss(graph, loss);
    let decayed: HashSet<String> = in_loss.iter().filter_map(|idx| symbols.decayed_variable(&nodes[*idx])).collect();
    let is_missed = |term: &usize| {
        let parts = region::ancestors(graph, [*term]);
        let mut variables = parts.iter().map(|idx| &nodes[*idx]).filter(|node| is_variable(&node.op));
        !in_loss.contains(term) && variables.any(|variable| !decayed.contains(&variable.variable_name()))
    };
    let terms = listed.iter().filter_map(|name| graph.body.edge(name)).map(|edge| edge.node);
    terms.filter(is_missed).collect()
}
