//! The nearest word of an experiment for a layer's op, an optimizer or a network without one.

use super::symbols::is_variable;
use crate::graph::Graph;
use crate::node::Node;
use bf16scope_hlo::words;

/// Ops that no single layer stands for, and the words by which a layer is written.
const LAYERS: [(&str, &[&str]); 13] = [
    ("`permute`", &["Transpose"]),
    ("`reduce`", &["Sum", "Prod", "Max", "Min", "Mean"]),
    ("`slice`, or `take` of one index", &["StridedSlice", "Slice", "Split", "SplitV", "Unpack"]),
    ("`gather`", &["Gather", "GatherV2", "GatherNd"]),
    ("`dense` with `tied_to`, or `attention`", &["MatMul"]),
    ("`attention`, or `dot` of two layers", &["BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"]),
    ("`reshape`", &["Reshape", "Squeeze", "ExpandDims"]),
    ("`repeat_vector`", &["Tile"]),
    ("`conv3d`", &["Conv3D"]),
    ("`dilation_rate` of a convolution", &["SpaceToBatchND", "BatchToSpaceND"]),
    ("`conv_transpose`", &["Conv2DBackpropInput"]),
    ("`minimum`", &["Minimum"]),
    (
        "`expression`, a formula of layers",
        &[
            "Add",
            "AddV2",
            "Sub",
            "Mul",
            "RealDiv",
            "Pow",
            "Sqrt",
            "Rsqrt",
            "Square",
            "SquaredDifference",
            "Exp",
            "Log",
            "Abs",
            "Neg",
            "Sin",
            "Cos",
            "Erf",
            "Sigmoid",
            "Tanh",
            "Select",
            "SelectV2",
        ],
    ),
];

/// Kinds of layers that an op's name may be near to.
const KINDS: [&str; 14] = [
    "batch_norm",
    "concat",
    "conv_transpose",
    "depthwise_conv",
    "dropout",
    "embedding",
    "group_norm",
    "gru",
    "instance_norm",
    "layer_norm",
    "lstm",
    "one_hot",
    "upsample",
    "zero_padding",
];

const OPTIMIZERS: [&str; 12] =
    ["adadelta", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb", "lars", "momentum", "nadam", "rmsprop", "sgd"];

/// The nearest word for an op of a layer, as help.
pub(super) fn layer(op: &str) -> String {
    if let Some(help) = listed(op) {
        return help;
    }
    match words::nearest(&snake_case(op), KINDS) {
        Some(word) => format!("the nearest word is `{word}`"),
        None => "docs/EXPERIMENTS.md has the layers; no word is near".to_string(),
    }
}

/// Help for an op that some layer has in another form; `None` if no word is near.
pub(super) fn listed(op: &str) -> Option<String> {
    let (word, _) = LAYERS.into_iter().find(|(_, ops)| ops.contains(&op))?;
    Some(format!("the nearest word is {word}"))
}

/// The nearest word for the op of an optimizer, as help.
pub(super) fn optimizer(op: &str) -> String {
    let name = snake_case(op.trim_start_matches("Apply"));
    // `adam_with_amsgrad` has the word that it varies.
    let varied = OPTIMIZERS.into_iter().find(|word| name.split('_').any(|part| part == *word));
    match varied.or_else(|| words::nearest(&name, OPTIMIZERS)) {
        Some(word) => format!("the nearest word is `optimizer: {word}`, whose updates differ"),
        None => "docs/EXPERIMENTS.md has the optimizers; no word is near".to_string(),
    }
}

/// Help for a network whose parts have no words, by the names of its variables: BERT, cells in a loop, and variables in parts.
/// Empty for any other.
pub(super) fn network(graph: &Graph) -> &'static str {
    const BERT: &str = "BERT in words is examples/models/bert_pretraining.yaml, which takes this graph's checkpoints by the family \
                        `bert_tensorflow` (`weights --rules bert_tensorflow`)";
    const CELLS: &str = "cells of `tf.nn.dynamic_rnn` or `static_rnn` in words are `{lstm: UNITS, return_sequences: true}` and \
                         `gru`; their kernels have other parts and another order of gates, so checkpoints do not fit";
    const PARTS: &str = "its variables are parts of larger ones (`part_0`), by a `partitioner`: leave that out, so that each is one \
                         variable; TensorFlow's checkpoints hold it whole either way";
    let variables = graph.body.nodes.iter().filter(|node| is_variable(&node.op));
    let names: Vec<String> = variables.map(Node::variable_name).collect();
    let has = |part: &str| names.iter().any(|name| name.contains(part));
    match (has("attention/self/query"), has("lstm_cell/kernel") || has("gru_cell/gates/kernel")) {
        (true, _) => BERT,
        (false, true) => CELLS,
        (false, false) if names.iter().any(|name| name.ends_with("/part_1")) => PARTS,
        (false, false) => "",
    }
}

/// `CropAndResize` as `crop_and_resize`.
fn snake_case(op: &str) -> String {
    let mut text = String::new();
    for c in op.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests;
