//! What computes in f32, as a result is made of it, and is stored in the narrow dtype all the same.
//!
//! - What leads to a loss may be read by a layer, too, as where a loss compares the layers of two networks, or asks that
//!   what they give is small. It is stored in the narrow dtype for what is lowered of that, so the loss reads the same
//!   numbers, as in a network that was written for bf16. Where a norm reads it, it is read several times in f32, and stored
//!   all the same. Not so what is made of data alone, which an autoencoder's loss compares its result with. Nor what
//!   exponentials and logarithms are computed for, as a softmax or its logarithm: such a network casts that for the
//!   product, and its loss reads it before. A logarithm of −100 would be off by 0.2, and a likelihood that is computed of it
//!   by a fifth.
//! - What leads to a result, such as an update, may be read by a product, too, as where an optimizer orthogonalises a matrix by
//!   products. All read what is rounded for the product. Not so what is added up, as a weight over several steps.
//! - What becomes a loop's f32 state may be taken apart first, as the gates of a recurrent network are, which products gave.
//!   No fusion makes its parts one by one, so the whole is stored.

use super::assignment::{Assignment, RegionKind};
use super::dataflow::{Dataflow, NodeId, ValueId};
use super::decision::Rule;
use super::loss::{leads_to_loss_by_product, of_parameters};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::is_map;
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};

/// The nodes that compute in f32 for a result, and whose values are rounded once for all that reads them.
pub(super) fn materialised(graph: &Dataflow<'_>, assignment: &Assignment, kind: RegionKind) -> Vec<NodeId> {
    let of_function = of_functions(graph);
    let of_product = computed_from(graph, |class| class == Class::Allow);
    let is_read_narrow = read_by(graph, |reader| assignment.low[reader as usize]);
    let is_added_up = added_up(graph);
    let by_product = match kind {
        RegionKind::Entry => leads_to_loss_by_product(graph),
        _ => vec![false; graph.nodes.len()],
    };
    // Several ops of a layer, as a norm.
    let feeds_layer = |value: ValueId| {
        let is_layer =
            |&&reader: &&NodeId| by_product[reader as usize] && assignment.rule[reader as usize] != Rule::Loss;
        let is_soft = |&&reader: &&NodeId| matches!(graph.node(reader).class(), Some(Class::Infer | Class::Clear));
        let readers = || graph.users[value as usize].iter().filter(is_layer);
        readers().count() > 1 && readers().any(|reader| is_soft(&reader))
    };
    let is_found = |&node: &NodeId| {
        let of = graph.node(node);
        let value = graph.value(of.first_result);
        let is_array = of.n_results == 1 && value.is_f32() && value.n_elements > 1;
        is_array
            && match assignment.rule[node as usize] {
                Rule::Loss => {
                    let is_read = is_read_narrow[node as usize] || feeds_layer(of.first_result);
                    is_read && of_product[node as usize] && !of_function[node as usize]
                }
                Rule::Result if kind == RegionKind::Body => {
                    of_product[node as usize] && is_taken_apart(graph, of.first_result)
                }
                Rule::Result => {
                    is_read_narrow[node as usize]
                        && of_product[node as usize]
                        && !graph.is_result[of.first_result as usize]
                        && !is_added_up[node as usize]
                }
                _ => false,
            }
    };
    (0..graph.nodes.len() as NodeId).filter(is_found).collect()
}

/// For each node whether it is computed from a function that is denied, such as an exponential or a logarithm, with no product
/// between. A root is none, as what it gives is as exact as what it is given.
fn of_functions(graph: &Dataflow<'_>) -> Vec<bool> {
    let mut found = vec![false; graph.nodes.len()];
    for (node, of) in graph.nodes.iter().enumerate() {
        let op = &graph.instr(of).op;
        let is_root = matches!(op, Op::Unary(UnaryOp::Rsqrt | UnaryOp::Sqrt | UnaryOp::Cbrt));
        // Random bits that become numbers are none.
        let is_of_float = of.operands.iter().any(|&value| graph.value(value).is_f32());
        let is_function = matches!(of.class(), Some(Class::Deny { .. })) && is_map(op) && is_of_float && !is_root;
        let goes_on = of.class() != Some(Class::Allow);
        found[node] = is_function || goes_on && of.operands.iter().any(|&value| found[graph.producer(value) as usize]);
    }
    found
}

/// For each node whether it is of a class, or computed from one that is by ops of class infer and clear.
pub(super) fn computed_from(graph: &Dataflow<'_>, is_of: impl Fn(Class) -> bool) -> Vec<bool> {
    let mut found = vec![false; graph.nodes.len()];
    for (node, of) in graph.nodes.iter().enumerate() {
        let goes_on = matches!(of.class(), Some(Class::Infer | Class::Clear));
        let is_from_one = goes_on && of.operands.iter().any(|&value| found[graph.producer(value) as usize]);
        found[node] = of.class().is_some_and(&is_of) || is_from_one;
    }
    found
}

/// For each node whether one that `is_reader` reads what it gives, or what only moves that.
fn read_by(graph: &Dataflow<'_>, is_reader: impl Fn(NodeId) -> bool) -> Vec<bool> {
    let mut found = vec![false; graph.nodes.len()];
    for node in (0..graph.nodes.len()).rev() {
        let mut readers = graph.nodes[node].results().flat_map(|value| &graph.users[value as usize]);
        found[node] = readers.any(|&reader| {
            let moves_on = graph.node(reader).class() == Some(Class::Clear) && found[reader as usize];
            is_reader(reader) || moves_on
        });
    }
    found
}

/// For each node whether what it gives is a running sum, to which each step adds little: a parameter that steps of an optimizer
/// have updated, or what an add reads as it is. A parameter that was divided by its norm is none.
fn added_up(graph: &Dataflow<'_>) -> Vec<bool> {
    let of_sum = computed_from(graph, |class| matches!(class, Class::Deny { .. }));
    let op = |node: NodeId| &graph.instr(graph.node(node)).op;
    let of_parameter = of_parameters(
        graph,
        |_| true,
        |node| {
            let is_scaled = matches!(op(node), Op::Binary(BinaryOp::Multiply | BinaryOp::Divide));
            let mut makers = graph.node(node).operands.iter().map(|&value| graph.producer(value) as usize);
            !is_scaled || !makers.any(|maker| of_sum[maker] && matches!(op(maker as NodeId), Op::Broadcast { .. }))
        },
    );
    let adds = |node: NodeId| matches!(op(node), Op::Binary(BinaryOp::Add | BinaryOp::Subtract));
    let is_read = read_by(graph, adds);
    of_parameter.iter().zip(is_read).map(|(&is_parameter, is_read)| is_parameter || is_read).collect()
}

/// Whether all that reads a value takes a part of it, and more than one op does.
fn is_taken_apart(graph: &Dataflow<'_>, value: ValueId) -> bool {
    let is_part = |&reader: &NodeId| matches!(graph.instr(graph.node(reader)).op, Op::Slice(_));
    let readers = &graph.users[value as usize];
    readers.len() > 1 && readers.iter().all(is_part)
}
