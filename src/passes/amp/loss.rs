//! Which results of an entry are losses.
//!
//! A loss is one number, but not every number that a program gives is one: the bias of a layer with one output is one
//! number, too, and so are an optimizer's slots for it. They are updates, of a parameter that is the same number: the
//! program says so by an alias, or computes the one from the other element by element.

use super::graph::{Graph, NodeKind, ValueId};
use crate::hlo::ops::decisions::is_map;
use crate::hlo::{Op, Shape};

/// The results that are losses.
pub(super) fn losses(graph: &Graph<'_>) -> Vec<ValueId> {
    let is_aliased = aliased(graph);
    let numbers = graph.results.iter().zip(is_aliased).filter(|(value, _)| {
        let value = graph.value(**value);
        value.is_f32() && value.n_elements == 1
    });
    let others: Vec<ValueId> = numbers.filter(|(_, aliased)| !aliased).map(|(&value, _)| value).collect();
    let losses: Vec<ValueId> = others.iter().copied().filter(|&value| !updates_parameter(graph, value)).collect();
    // A loss times a parameter that scales it looks like an update of that, and may be all that is given of it.
    if losses.is_empty() { others } else { losses }
}

/// For each result whether it takes the place of a parameter.
fn aliased(graph: &Graph<'_>) -> Vec<bool> {
    let module = graph.module;
    let mut is_aliased = vec![false; graph.results.len()];
    for alias in &module.input_output_alias {
        let mut shape = module.entry().result_shape();
        let mut first = 0;
        for &index in &alias.output_index {
            let (Some(elements), Ok(index)) = (shape.as_tuple(), usize::try_from(index)) else { break };
            first += elements.iter().take(index).map(|element| element.leaves().len()).sum::<usize>();
            let Some(element) = elements.get(index) else { break };
            shape = element;
        }
        if let (Some(is_aliased), Shape::Array(_)) = (is_aliased.get_mut(first), shape) {
            *is_aliased = true;
        }
    }
    is_aliased
}

/// Whether a result is computed, element by element, from a parameter of its dims.
fn updates_parameter(graph: &Graph<'_>, result: ValueId) -> bool {
    let dims =
        |value: ValueId| graph.instr(graph.node(graph.producer(value))).shape.as_array().map(|array| &array.dims);
    let wanted = dims(result);
    let mut seen = vec![false; graph.nodes.len()];
    let mut pending = vec![result];
    while let Some(value) = pending.pop() {
        let node = graph.node(graph.producer(value));
        if std::mem::replace(&mut seen[graph.producer(value) as usize], true) || dims(value) != wanted {
            continue;
        }
        if node.kind == NodeKind::Parameter {
            return wanted.is_some();
        }
        let op = &graph.instr(node).op;
        if is_map(op) && !matches!(op, Op::Broadcast { .. } | Op::Reshape) {
            pending.extend(node.operands.iter().copied().filter(|&operand| graph.value(operand).is_f32()));
        }
    }
    false
}
