//! Values that are computed in f32, because a loss or a result is computed from them, but are stored in the narrow
//! dtype.
//!
//! - A layer may read a value that leads to a loss, as where a loss compares the layers of two networks, or penalises
//!   the size of their outputs. It is stored in the narrow dtype for the lowered ops that read it, so the loss reads
//!   the same numbers, as in a network written for bf16. A norm reads it several times in f32, and it is stored all
//!   the same. This does not hold for values computed from data alone, with which an autoencoder's loss compares its
//!   result; nor for the results of exponentials and logarithms, such as a softmax or its logarithm: a network written
//!   for bf16 casts these for the product, and its loss reads them before the cast. Rounding a logarithm of −100 is an
//!   error of 0.2, and of a fifth in the likelihood computed from it.
//! - A product may read a value that leads to a result, such as an update, as where an optimizer orthogonalises a
//!   matrix by products. All its consumers read the value that is rounded for the product. This does not hold for a
//!   running sum, such as a weight over several steps.
//! - The f32 state of a loop may be taken apart before it is computed, as the gates of a recurrent network are, which
//!   products computed. The parts are not fused one by one, so the whole is stored.

use super::assignment::{Assignment, RegionKind};
use super::dataflow::{Dataflow, NodeId, ValueId};
use super::decision::{Decision, Rule};
use super::loss::of_parameters;
use super::terms::{adds, scales};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::ops::decisions::is_map;
use bf16scope_hlo::ops::precision::Class;

/// Finds the nodes that compute in f32 for a loss or a result, and whose value is rounded once for all consumers.
/// `leads_by_product` marks the nodes from which a loss is computed through a product.
pub(super) fn materialised(
    graph: &Dataflow<'_>,
    assignment: &Assignment,
    kind: RegionKind,
    leads_by_product: &[bool],
) -> Vec<(NodeId, Decision)> {
    let is_of_function = of_functions(graph);
    let is_of_product = of_products(graph);
    let is_clear = |node: NodeId| graph.node(node).is_clear();
    let is_read_narrow = graph.read_by(|reader| assignment.low[reader as usize], is_clear);
    let is_added_up = added_up(graph);
    // Whether several ops of a layer read the value, as those of a norm.
    let feeds_layer = |value: ValueId| {
        let is_layer =
            |&&reader: &&NodeId| leads_by_product[reader as usize] && assignment.rule[reader as usize] != Rule::Loss;
        let is_soft = |&&reader: &&NodeId| graph.node(reader).is_soft();
        let readers = || graph.users[value as usize].iter().filter(is_layer);
        readers().count() > 1 && readers().any(|reader| is_soft(&reader))
    };
    let is_materialised = |&node: &NodeId| {
        let record = graph.node(node);
        let value = graph.value(record.first_result);
        let is_array = record.n_results == 1 && value.is_f32_array();
        is_array
            && record.class() == Some(Class::Infer)
            && match assignment.rule[node as usize] {
                Rule::Loss => {
                    let is_read = is_read_narrow[node as usize] || feeds_layer(record.first_result);
                    is_read && is_of_product[node as usize] && !is_of_function[node as usize]
                }
                Rule::Result if kind == RegionKind::Body => {
                    is_of_product[node as usize] && is_taken_apart(graph, record.first_result)
                }
                Rule::Result => {
                    is_read_narrow[node as usize]
                        && is_of_product[node as usize]
                        && !graph.is_result[record.first_result as usize]
                        && !is_added_up[node as usize]
                }
                _ => false,
            }
    };
    let rounded = |node: NodeId| (node, Decision::rounded(Rule::RoundedOnce, None));
    graph.node_ids().filter(is_materialised).map(rounded).collect()
}

/// For each node whether it is computed from a denied function, such as an exponential or a logarithm, with no product
/// between. A root does not count, as its result is as accurate as its operand.
fn of_functions(graph: &Dataflow<'_>) -> Vec<bool> {
    let is_function = |node: NodeId| {
        let (record, op) = (graph.node(node), graph.op(node));
        let is_root = matches!(op, Op::Unary(UnaryOp::Rsqrt | UnaryOp::Sqrt | UnaryOp::Cbrt));
        // Random bits that are converted to floats do not count.
        let is_of_float = record.operands.iter().any(|&value| graph.value(value).is_f32());
        matches!(record.class(), Some(Class::Deny { .. })) && is_map(op) && is_of_float && !is_root
    };
    graph.computed_from(is_function, |node| !graph.node(node).is_product())
}

/// For each node whether it is a product, or computed from one by ops of class infer and clear.
pub(super) fn of_products(graph: &Dataflow<'_>) -> Vec<bool> {
    graph.computed_from(|node| graph.node(node).is_product(), |node| graph.node(node).is_soft())
}

/// For each node whether its result is a running sum, to which each step adds little: a parameter that steps of an
/// optimizer updated, or a value that an add reads directly. A parameter that was divided by its norm does not count.
fn added_up(graph: &Dataflow<'_>) -> Vec<bool> {
    let is_denied = |node: NodeId| matches!(graph.node(node).class(), Some(Class::Deny { .. }));
    let of_sum = graph.computed_from(is_denied, |node| graph.node(node).is_soft());
    let of_parameter = of_parameters(
        graph,
        |_| true,
        |node| {
            let is_scaled = scales(graph.op(node));
            let is_of_sum = |maker: NodeId| of_sum[maker as usize] && matches!(graph.op(maker), Op::Broadcast { .. });
            !is_scaled || !graph.makers(node).any(is_of_sum)
        },
    );
    let is_read = graph.read_by(|reader| adds(graph.op(reader)), |node| graph.node(node).is_clear());
    of_parameter.iter().zip(is_read).map(|(&is_parameter, is_read)| is_parameter || is_read).collect()
}

/// Whether several ops read a value, and all of them take a part of it.
fn is_taken_apart(graph: &Dataflow<'_>, value: ValueId) -> bool {
    let is_part = |&reader: &NodeId| matches!(graph.op(reader), Op::Slice(_));
    let readers = &graph.users[value as usize];
    readers.len() > 1 && readers.iter().all(is_part)
}
