//! Products whose result is the f32 sum in which they accumulate.

use super::assignment::RegionKind;
use super::dataflow::{Dataflow, NodeId, ValueId};
use super::loss::of_parameters;
use super::policy::Classes;
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::BinaryOp;
use bf16scope_hlo::ops::decisions::{device_sum, is_placement, movement};
use bf16scope_hlo::ops::precision::{Class, DeviceSum, Movement};

/// For each node whether it is a product whose f32 sum is kept, as rounding it would save no memory: the program asked
/// for it, by operands in the narrow dtype, or all its consumers are results, calls in f32 and f32 sums over devices or
/// over the steps of a loop.
pub(super) fn keeps_sum(
    graph: &Dataflow<'_>,
    classes: &Classes<'_>,
    kind: RegionKind,
    is_result: &[bool],
) -> Vec<bool> {
    // Whether a node is a call, or moves data that only calls and results read, or is part of a sum over devices or
    // steps. A result may be a small part of a product; what the steps of a loop sum are all parts of it.
    let mut is_end = summed_over_devices(graph, classes);
    let is_body = kind == RegionKind::Body;
    if is_body {
        summed_over_steps(graph).for_each(|node| is_end[node as usize] = true);
    }
    let mut keeps = vec![false; graph.nodes.len()];
    for node in graph.node_ids().rev() {
        let record = graph.node(node);
        let op = &graph.instr(record).op;
        let is_call = matches!(op, Op::Opaque(_) | Op::CustomCall(_)) && !is_placement(op);
        let moves = match movement(op) {
            Movement::TakesPart => is_body,
            movement => movement == Movement::Places,
        };
        let ends = |value: ValueId| {
            let readers = &graph.users[value as usize];
            let is_read = is_result[value as usize] || !readers.is_empty();
            is_read && readers.iter().all(|&reader| is_end[reader as usize])
        };
        let all_end = record.results().all(ends);
        is_end[node as usize] |= is_call || moves && record.is_clear() && all_end;
        let is_narrow = |&value: &ValueId| graph.value(value).dtype == Some(graph.low);
        // The results of other ops that a policy allows have the dtype of their operands.
        let may_be_wider = record.is_product() && device_sum(graph.module, op) == DeviceSum::Own;
        keeps[node as usize] = may_be_wider && (all_end || record.operands.iter().all(is_narrow));
    }
    keeps
}

/// The adds of a loop's body by which the loop sums an f32 array of its state over its steps, as gradients of weights.
fn summed_over_steps(graph: &Dataflow<'_>) -> impl Iterator<Item = NodeId> {
    let state = graph.parameters().zip(graph.results.iter().copied());
    state.filter_map(|(before, after)| {
        let node = graph.producer(after);
        let is_read_alone = graph.users[before as usize] == [node] && graph.users[after as usize].is_empty();
        (is_read_alone && matches!(graph.op(node), Op::Binary(BinaryOp::Add))).then_some(node)
    })
}

/// For each node whether it is an explicit f32 sum over devices that no product reads on, as that of gradients in the
/// body of a `shard_map`, or all its consumers are such sums, and it adds, scales or moves what they sum.
fn summed_over_devices(graph: &Dataflow<'_>, classes: &Classes<'_>) -> Vec<bool> {
    let is_sum = |node: NodeId| {
        let (record, op) = (graph.node(node), graph.op(node));
        let is_f32 = matches!(op, Op::AllReduce(_)) && matches!(record.class(), Some(Class::Deny { .. }));
        is_f32 && classes.sum_in_f32(op) == DeviceSum::OfOperands
    };
    let mut is_summed = vec![false; graph.nodes.len()];
    if !graph.node_ids().any(is_sum) {
        return is_summed;
    }
    let to_product = graph.leads_to_product();
    let to_result = leads_to_result(graph);
    let is_number = |value: ValueId| {
        let record = graph.node(graph.producer(value));
        let is_broadcast = matches!(graph.instr(record).op, Op::Broadcast { .. });
        let value = record.operands.first().copied().filter(|_| is_broadcast).unwrap_or(value);
        graph.value(value).n_elements == 1
    };
    for node in graph.node_ids().rev() {
        let (idx, record) = (node as usize, graph.node(node));
        let op = &graph.instr(record).op;
        let is_linear = match (op, record.class()) {
            (Op::Binary(BinaryOp::Add | BinaryOp::Subtract), Some(Class::Infer)) => true,
            (Op::Binary(BinaryOp::Multiply), Some(Class::Infer)) => record.operands.iter().any(|&it| is_number(it)),
            (Op::Binary(BinaryOp::Divide), Some(Class::Infer)) => is_number(record.operands[1]),
            (_, Some(Class::Clear)) => movement(op) == Movement::Places,
            _ => false,
        };
        let mut users = graph.readers(node).peekable();
        let all_summed = users.peek().is_some() && users.all(|user| is_summed[user as usize]);
        let is_gradient = is_sum(node) && (!to_product[idx] || to_result[idx]);
        is_summed[idx] = is_gradient || is_linear && all_summed && !to_product[idx];
    }
    is_summed
}

/// The products whose partial results devices sum in the narrow dtype: a product reads the sum, and neither a result
/// nor a new value of a parameter is computed from it. A partitioner places such a sum as in a program written for
/// bf16.
pub(super) fn sums_narrow(graph: &Dataflow<'_>) -> Vec<NodeId> {
    let (to_product, to_result) = (graph.leads_to_product(), leads_to_result(graph));
    let narrow = |&node: &NodeId| graph.node(node).gives_f32 && to_product[node as usize] && !to_result[node as usize];
    graph.node_ids().filter(narrow).collect()
}

/// For each node whether a result or a new value of a parameter is computed from it, by ops that may be lowered.
fn leads_to_result(graph: &Dataflow<'_>) -> Vec<bool> {
    let is_of_parameter = of_parameters(graph, |_| true, |_| true);
    graph.leads(&graph.results, |reader, leads| {
        let record = graph.node(reader);
        record.is_soft() && leads || record.class() == Some(Class::Infer) && is_of_parameter[reader as usize]
    })
}
