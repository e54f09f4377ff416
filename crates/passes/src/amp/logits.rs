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
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::decision::Rule;
use super::loops::Loop;
use super::policy::{Because, Classes};
use bf16scope_hlo::ops::decisions::list_names;
use bf16scope_hlo::ops::precision::{Class, DeviceSum};
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
    let parameters = graph.nodes.iter().filter(|node| node.kind == NodeKind::Parameter);
    let largest = parameters.flat_map(Node::results).map(|value| graph.value(value).n_elements).max().unwrap_or(0);
    let logits = (0..graph.nodes.len() as NodeId).filter_map(|add| {
        let axis = bias_axis(graph, assignment, add)?;
        let sum_value = graph.node(add).first_result;
        let is_looked_up = graph.users[sum_value as usize].iter().any(|&user| {
            let record = graph.node(user);
            record.kind == NodeKind::Op(Class::Clear)
                && matches!(graph.instr(record).op, Op::Gather(_))
                && record.operands[0] == sum_value
        });
        let n_elements = graph.value(sum_value).n_elements;
        if n_elements < largest || !is_looked_up || leads_to_loop(graph, add, loops) {
            return None;
        }
        let dims = graph.instr(graph.node(add)).shape.dims();
        let is_sum = |&node: &NodeId| is_sum_of(graph, assignment, classes, node, dims, axis);
        Some(Logits { add, sum: (add..graph.nodes.len() as NodeId).find(is_sum)? })
    });
    logits.collect()
}

/// Whether a loop with products, or one that sums up logarithms, reads values that are computed from a node's result.
fn leads_to_loop(graph: &Dataflow<'_>, from: NodeId, loops: &BTreeMap<NodeId, Loop>) -> bool {
    let is_light =
        |node: NodeId| loops.get(&node).is_some_and(|its_loop| !its_loop.has_product && !its_loop.is_of_logarithms);
    let mut reached = vec![false; graph.nodes.len()];
    reached[from as usize] = true;
    (from..graph.nodes.len() as NodeId).any(|node| {
        let record = graph.node(node);
        reached[node as usize] |= record.operands.iter().any(|&value| reached[graph.producer(value) as usize]);
        reached[node as usize] && matches!(graph.instr(record).op, Op::While { .. }) && !is_light(node)
    })
}

/// The axis along which the bias lies, if `add` adds a bias to a product for the loss.
fn bias_axis(graph: &Dataflow<'_>, assignment: &Assignment, add: NodeId) -> Option<i64> {
    let record = graph.node(add);
    let &[left, right] = &record.operands[..] else { return None };
    let is_add = assignment.rule[add as usize] == Rule::Loss
        && list_names(graph.module, &graph.instr(record).op).iter().any(|name| name == "add");
    let is_product = |value: ValueId| assignment.rule[graph.producer(value) as usize] == Rule::Allowed;
    let bias = match (is_product(left), is_product(right)) {
        (true, false) => right,
        (false, true) => left,
        _ => return None,
    };
    let Op::Broadcast { dimensions } = &graph.instr(graph.node(graph.producer(bias))).op else { return None };
    let &[axis] = &dimensions[..] else { return None };
    let mut value = bias;
    loop {
        let maker = graph.node(graph.producer(value));
        match (&maker.kind, &maker.operands[..]) {
            (NodeKind::Parameter, _) => return is_add.then_some(axis),
            (NodeKind::Op(Class::Clear), &[operand]) => value = operand,
            _ => return None,
        }
    }
}

/// Whether a node sums an array of these dims, which a product reads too, over all axes but `axis`.
fn is_sum_of(
    graph: &Dataflow<'_>,
    assignment: &Assignment,
    classes: &Classes<'_>,
    node: NodeId,
    dims: &[i64],
    axis: i64,
) -> bool {
    let record = graph.node(node);
    let instr = graph.instr(record);
    let Some(&summed) = record.operands.first() else { return false };
    matches!(record.kind, NodeKind::Op(Class::Deny { .. }))
        && record.because == Because::Op
        && record.operands.len() == 2
        && list_names(graph.module, &instr.op).iter().any(|name| name == "reduce:add")
        && classes.sum_in_f32(graph.module, &instr.op) == DeviceSum::Never
        && is_over_all_but(graph, record, dims, axis)
        && graph.users[summed as usize].iter().any(|&user| assignment.rule[user as usize] == Rule::Allowed)
}

/// Whether the operand of a reduction has these dims, and all of them but `axis` are reduced.
fn is_over_all_but(graph: &Dataflow<'_>, reduction: &Node, dims: &[i64], axis: i64) -> bool {
    let instr = graph.instr(reduction);
    let Op::Reduce { dimensions, .. } = &instr.op else { return false };
    let operand = &graph.module.comp(graph.frames[reduction.frame as usize].comp).instr(instr.operands[0]).shape;
    let mut reduced = dimensions.clone();
    reduced.sort_unstable();
    operand.dims() == dims && reduced.into_iter().eq((0..dims.len() as i64).filter(|&other| other != axis))
}
