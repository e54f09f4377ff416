//! What is computed by functions that are denied, such as exponentials and logarithms, and what is computed with that.
//!
//! Roots are none of these functions, as what they give is as exact as what they are given.

use super::dataflow::{Dataflow, Node, NodeId};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::ops::decisions::is_map;
use bf16scope_hlo::ops::precision::Class;

/// For each node whether it is computed from such a function, with no product between, nor a node that `ends` it.
pub(super) fn of_functions(graph: &Dataflow<'_>, ends: impl Fn(NodeId) -> bool) -> Vec<bool> {
    let mut found = vec![false; graph.nodes.len()];
    for (node, of) in graph.nodes.iter().enumerate() {
        let op = &graph.instr(of).op;
        let is_root = matches!(op, Op::Unary(UnaryOp::Rsqrt | UnaryOp::Sqrt | UnaryOp::Cbrt));
        // Random bits that become numbers are none.
        let is_of_float = of.operands.iter().any(|&value| graph.value(value).is_f32());
        let is_function = matches!(of.class(), Some(Class::Deny { .. })) && is_map(op) && is_of_float && !is_root;
        let goes_on = of.class() != Some(Class::Allow) && !ends(node as NodeId);
        found[node] = is_function || goes_on && of.operands.iter().any(|&value| found[graph.producer(value) as usize]);
    }
    found
}

/// For each node whether what it gives meets a value of these, by ops of class infer and clear. What is computed from a
/// gradient that `is_sum` is none of these again.
pub(super) fn meets_functions(graph: &Dataflow<'_>, is_sum: impl Fn(NodeId) -> bool) -> Vec<bool> {
    let of_functions = of_functions(graph, is_sum);
    // For each node one that gives an operand of functions, and whether another gives one too.
    let functions_read = |of: &Node| {
        let mut makers = of.operands.iter().map(|&value| graph.producer(value));
        let first = makers.find(|&maker| of_functions[maker as usize])?;
        Some((first, makers.any(|maker| maker != first && of_functions[maker as usize])))
    };
    let read: Vec<Option<(NodeId, bool)>> = graph.nodes.iter().map(functions_read).collect();
    let mut found = vec![false; graph.nodes.len()];
    for node in (0..graph.nodes.len() as NodeId).rev() {
        let mut readers = graph.node(node).results().flat_map(|value| &graph.users[value as usize]);
        found[node as usize] = readers.any(|&reader| {
            let is_soft = matches!(graph.node(reader).class(), Some(Class::Infer | Class::Clear));
            let meets = read[reader as usize].is_some_and(|(first, has_other)| first != node || has_other);
            is_soft && (found[reader as usize] || meets)
        });
    }
    found
}
