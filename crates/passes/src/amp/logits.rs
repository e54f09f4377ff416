//! Logits that are at least as large as any parameter, as a language model's over its vocabulary.
//!
//! They are a product plus a bias, and the loss reads them: it reduces them, and looks up one per row. So they belong
//! to the loss and would be f32, and so would the gradient of the bias, which is a sum over all rows. A network
//! written for bf16 rounds both, since it casts to f32 behind its last layer.
//!
//! For a TPU this decides when the compiler materialises the f32 array that the loss looks up, the largest of the
//! program: beside all that is kept for the backward pass, or behind it. It chooses the latter only if logits and sum
//! are as in a network written for bf16 (benches/tpu/policy.md lists what else was tried). So if there is such a sum,
//! both are bf16 here, as close to f32 as in that form. The lookup still reads f32. (On a v6e an add in f32 that is
//! rounded takes 1.19 of the memory of one in bf16.)
//!
//! This is not done if a loop with products reads values that are computed from the logits, as in a recurrent
//! network's backward pass: most of the memory is the loop's operands, which live until it ends, so values computed
//! behind it are no cheaper, and logits that wait for it are live, too. Nor is it done if a loop sums up logarithms,
//! as in a loss.

use super::assignment::{Assignment, RegionKind};
use super::data_movement::is_sum_called;
use super::dataflow::{Dataflow, NodeId, ValueId};
use super::decision::Rule;
use super::loops::Loop;
use super::policy::Classes;
use bf16scope_hlo::{DType, Op};
use std::collections::BTreeMap;

/// The nodes of logits that are rounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logits {
    /// The op that adds the bias: computed in the narrow dtype.
    pub add: NodeId,
    /// The sum that is the bias's gradient: computed in the narrow dtype.
    pub sum: NodeId,
}

/// Finds all logits of a region that are rounded. `loops` describes each of its loops.
pub(super) fn logits(
    graph: &Dataflow<'_>,
    assignment: &Assignment,
    classes: &Classes<'_>,
    kind: RegionKind,
    loops: &BTreeMap<NodeId, Loop>,
) -> Vec<Logits> {
    // In f16 a sum over a batch may be infinite.
    if kind != RegionKind::Entry || graph.low != DType::BF16 {
        return Vec::new();
    }
    let largest = graph.parameters().map(|value| graph.value(value).n_elements).max().unwrap_or(0);
    let logits = graph.node_ids().filter_map(|add| {
        let axis = bias_axis(graph, assignment, add)?;
        let sum_value = graph.node(add).first_result;
        let is_looked_up = graph.users[sum_value as usize].iter().any(|&user| {
            let record = graph.node(user);
            record.is_clear() && matches!(graph.op(user), Op::Gather(_)) && record.operands[0] == sum_value
        });
        let n_elements = graph.value(sum_value).n_elements;
        if n_elements < largest || !is_looked_up || leads_to_loop(graph, add, loops) {
            return None;
        }
        let dims = graph.instr(graph.node(add)).shape.dims();
        let is_sum = |&node: &NodeId| {
            is_over_all_but(graph, node, dims, axis)
                && is_sum_called(graph, classes, node, "reduce:add")
                && is_read_by_product(graph, assignment, graph.node(node).operands[0])
        };
        Some(Logits { add, sum: (add..graph.node_ids().end).find(is_sum)? })
    });
    logits.collect()
}

/// Whether a loop with products, or one that sums up logarithms, reads values that are computed from a node's result.
fn leads_to_loop(graph: &Dataflow<'_>, from: NodeId, loops: &BTreeMap<NodeId, Loop>) -> bool {
    let is_light =
        |node: NodeId| loops.get(&node).is_some_and(|its_loop| !its_loop.has_product && !its_loop.is_of_logarithms);
    let reached = graph.computed_from(|node| node == from, |_| true);
    let is_loop = |node: NodeId| matches!(graph.op(node), Op::While { .. }) && !is_light(node);
    graph.node_ids().any(|node| reached[node as usize] && is_loop(node))
}

/// The axis along which the bias lies, if `add` adds a bias to a product for the loss.
fn bias_axis(graph: &Dataflow<'_>, assignment: &Assignment, add: NodeId) -> Option<i64> {
    let &[left, right] = &graph.node(add).operands[..] else { return None };
    let is_product = |value: ValueId| assignment.rule[graph.producer(value) as usize] == Rule::Allowed;
    let bias = match (is_product(left), is_product(right)) {
        (true, false) => right,
        (false, true) => left,
        _ => return None,
    };
    let Op::Broadcast { dimensions } = graph.op(graph.producer(bias)) else { return None };
    let &[axis] = &dimensions[..] else { return None };
    let source = graph.origin(bias, |maker, _| maker.is_clear() && maker.operands.len() == 1);
    let is_for_loss = assignment.rule[add as usize] == Rule::Loss && graph.is_called(add, "add");
    (is_for_loss && graph.is_parameter(source)).then_some(axis)
}

/// Whether a product reads a value.
fn is_read_by_product(graph: &Dataflow<'_>, assignment: &Assignment, value: ValueId) -> bool {
    graph.users[value as usize].iter().any(|&user| assignment.rule[user as usize] == Rule::Allowed)
}

/// Whether a node reduces an array of these dims over all of them but `axis`.
fn is_over_all_but(graph: &Dataflow<'_>, node: NodeId, dims: &[i64], axis: i64) -> bool {
    let Op::Reduce { dimensions, .. } = graph.op(node) else { return false };
    let mut reduced = dimensions.clone();
    reduced.sort_unstable();
    graph.operand_dims(node, 0) == dims && reduced.into_iter().eq((0..dims.len() as i64).filter(|&other| other != axis))
}
