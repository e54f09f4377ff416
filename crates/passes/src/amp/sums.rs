//! Products whose result is the f32 sum in which they accumulate.

use super::dataflow::{Dataflow, NodeId, ValueId};
use super::loss::of_parameters;
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::{device_sum, is_placement, movement};
use bf16scope_hlo::ops::precision::{Class, DeviceSum, Movement};

/// For each node whether it is a product whose f32 sum is kept, as rounding it would save no memory: the program asked
/// for it, by operands in the narrow dtype, or all its consumers are results and calls in f32.
pub(super) fn keeps_sum(graph: &Dataflow<'_>, is_result: &[bool]) -> Vec<bool> {
    // Whether a node is a call, or moves data that only calls and results read.
    let mut is_end = vec![false; graph.nodes.len()];
    let mut keeps = vec![false; graph.nodes.len()];
    for node in (0..graph.nodes.len() as NodeId).rev() {
        let record = graph.node(node);
        let op = &graph.instr(record).op;
        let is_call = matches!(op, Op::Opaque(_) | Op::CustomCall(_)) && !is_placement(op);
        let moves = movement(op) == Movement::Places;
        let ends = |value: ValueId| {
            let readers = &graph.users[value as usize];
            let is_read = is_result[value as usize] || !readers.is_empty();
            is_read && readers.iter().all(|&reader| is_end[reader as usize])
        };
        let all_end = record.results().all(ends);
        is_end[node as usize] = is_call || moves && record.class() == Some(Class::Clear) && all_end;
        let is_narrow = |&value: &ValueId| graph.value(value).dtype == Some(graph.low);
        // The results of other ops that a policy allows have the dtype of their operands.
        let may_be_wider = record.class() == Some(Class::Allow) && device_sum(graph.module, op) == DeviceSum::Own;
        keeps[node as usize] = may_be_wider && (all_end || record.operands.iter().all(is_narrow));
    }
    keeps
}

/// The products whose partial results devices sum in the narrow dtype: a product reads the sum, and neither a result
/// nor a new value of a parameter is computed from it. A partitioner places such a sum as in a program written for
/// bf16.
pub(super) fn sums_narrow(graph: &Dataflow<'_>) -> Vec<NodeId> {
    let n = graph.nodes.len();
    let is_of_parameter = of_parameters(graph, |_| true, |_| true);
    let (mut to_result, mut to_product) = (vec![false; n], vec![false; n]);
    graph.results.iter().for_each(|&value| to_result[graph.producer(value) as usize] = true);
    for node in (0..n as NodeId).rev() {
        for &user in graph.node(node).results().flat_map(|value| &graph.users[value as usize]) {
            let class = graph.node(user).class();
            to_product[node as usize] |= class == Some(Class::Allow) || to_product[user as usize];
            let is_soft = matches!(class, Some(Class::Infer | Class::Clear));
            let is_update = class == Some(Class::Infer) && is_of_parameter[user as usize];
            to_result[node as usize] |= is_soft && to_result[user as usize] || is_update;
        }
    }
    let narrow = |&node: &NodeId| graph.node(node).gives_f32 && to_product[node as usize] && !to_result[node as usize];
    (0..n as NodeId).filter(narrow).collect()
}
