//! The other forms in which a value could be stored without an additional rounding.
//!
//! The rules infer from the form of a program what is materialised, and a compiler may do otherwise. So the search
//! over compiled forms may try others, if they cost no accuracy. An alternative never rounds a value that the rules
//! leave f32 for a consumer: a rounded value stays f32, or is rounded elsewhere on its way to consumers that all read
//! it rounded; and data movement may move rounded values before they are converted back to f32.

use super::assignment::Assignment;
use super::dataflow::{Dataflow, NodeId, NodeKind};
use super::decided::StoredAs;
use super::policy::Because;
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::precision::Class;

/// The other forms in which a node's result could be stored without an additional rounding.
pub(super) fn alternatives(graph: &Dataflow<'_>, assignment: &Assignment, node: NodeId) -> Vec<StoredAs> {
    let record = graph.node(node);
    let value = record.first_result;
    let readers = &graph.users[value as usize];
    let is_open = record.n_results == 1
        && graph.value(value).is_f32()
        && !readers.is_empty()
        && record.decided.is_none()
        && matches!(record.because, Because::Op)
        && !matches!(graph.op(node), Op::Broadcast { .. } | Op::Reshape);
    let NodeKind::Op(class) = record.kind else { return Vec::new() };
    if !is_open || record.gives_f32 {
        return Vec::new();
    }
    let (is_low, is_narrow) = (assignment.low[node as usize], assignment.value_low[value as usize]);
    let is_soft = matches!(class, Class::Infer | Class::Clear);
    let mut forms = Vec::new();
    if is_narrow && class != Class::Allow {
        forms.push(StoredAs::F32);
    }
    if is_narrow {
        forms.push(StoredAs::Barrier);
    }
    let takes_narrow = |&reader: &NodeId| {
        let is_cast = graph.node(reader).kind == NodeKind::ToLow;
        is_cast || assignment.low[reader as usize] || assignment.is_narrow_state(graph, reader, value)
    };
    let is_read_narrow = readers.iter().all(takes_narrow) && !graph.is_result[value as usize];
    let floats = || record.operands.iter().filter(|&&operand| graph.value(operand).is_f32());
    let is_rounded = |&operand: &u32| assignment.value_low[operand as usize];
    let moves_rounded = class == Class::Clear
        && floats().any(is_rounded)
        && floats().all(|operand| is_rounded(operand) || graph.value(*operand).is_exact);
    if is_soft && !is_low && !is_narrow && (is_read_narrow || moves_rounded) {
        // Rounding commutes with an op of class clear, so the cast moves above the op, or below it.
        forms.push(if class == Class::Clear { StoredAs::Narrow } else { StoredAs::Rounded });
    }
    forms
}
