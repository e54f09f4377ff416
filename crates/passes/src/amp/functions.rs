//! What is computed by functions that are denied, such as exponentials and logarithms, and what is computed with that.
//!
//! Roots are none of these functions, as what they give is as exact as what they are given.

use super::dataflow::Dataflow;
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::ops::decisions::is_map;
use bf16scope_hlo::ops::precision::Class;

/// For each node whether it is computed from such a function, with no product between.
pub(super) fn of_functions(graph: &Dataflow<'_>) -> Vec<bool> {
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
