//! Sums of concatenations and of padded parts, written as sums of the parts.
//!
//! A back end materialises a concatenation for a product, and again for the f32 sum that is a bias's gradient, or
//! reads it again for that. The same holds for a sum of zero-padded parts, the gradient of an array that was sliced.
//! Such a sum equals a combination of the parts' sums, each of which fuses with the producer of its part. So it is
//! written part by part: the same numbers, in the same dtype.

use super::assignment::{Assignment, Parts};
use super::data_movement::is_sum_called;
use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::decision::Rule;
use super::policy::Classes;
use bf16scope_hlo::ops::{BinaryOp, PadDim};
use bf16scope_hlo::{InstrId, Op};
use std::collections::BTreeMap;

/// Finds the nodes of a region that sum, in f32, an array of narrow parts that a product reads, too.
pub(super) fn sums(graph: &Dataflow<'_>, assignment: &Assignment, classes: &Classes<'_>) -> BTreeMap<NodeId, Parts> {
    let sum = |node: NodeId| {
        let chain = moved(graph, node)?;
        let is_sum = chain.iter().all(|&value| assignment.low[graph.producer(value) as usize])
            && !assignment.low[node as usize]
            && is_sum_called(graph, classes, node, "reduce:add")
            && is_read_by_product(graph, assignment, *chain.last()?);
        let parts = is_sum.then(|| parts(graph, node, &chain))??;
        Some((node, parts))
    };
    graph.node_ids().filter_map(sum).collect()
}

/// Whether a product reads a value, directly or moved.
fn is_read_by_product(graph: &Dataflow<'_>, assignment: &Assignment, value: ValueId) -> bool {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        for &reader in &graph.users[value as usize] {
            if assignment.rule[reader as usize] == Rule::Allowed {
                return true;
            }
            if matches!(graph.op(reader), Op::Reshape | Op::Transpose { .. }) && graph.node(reader).is_clear() {
                open.extend(graph.node(reader).results());
            }
        }
    }
    false
}

/// The parts of a node's operand, the first value of the chain, if they lie along dimensions that the node does not
/// sum over.
fn parts(graph: &Dataflow<'_>, node: NodeId, chain: &[ValueId]) -> Option<Parts> {
    let whole = graph.producer(*chain.last()?);
    let &Op::Reduce { ref dimensions, to_apply } = graph.op(node) else { return None };
    let mut reduced = dimensions.clone();
    let mut moves = Vec::new();
    for (&after, &before) in chain.iter().zip(&chain[1..]) {
        let [move_, maker] = [after, before].map(|value| graph.instr(graph.node(graph.producer(value))));
        let (op, dims_before, dims) = (&move_.op, maker.shape.dims(), move_.shape.dims());
        let remaining = (0..).zip(dims).filter(|(axis, _)| !reduced.contains(axis));
        let (axes, remaining): (Vec<i64>, Vec<i64>) = remaining.map(|(axis, &n)| (axis, n)).unzip();
        let Op::Transpose { permutation } = op else {
            reduced = reduced_before(dims_before, dims, &reduced)?;
            moves.push((Op::Reshape, remaining));
            continue;
        };
        reduced.iter_mut().for_each(|axis| *axis = permutation[*axis as usize]);
        reduced.sort_unstable();
        let before = |axis: i64| axis - reduced.iter().filter(|&&other| other < axis).count() as i64;
        let permutation = axes.iter().map(|&axis| before(permutation[axis as usize])).collect();
        moves.push((Op::Transpose { permutation }, remaining));
    }
    moves.reverse();
    let instr = graph.instr(graph.node(whole));
    if let Op::Concatenate { dimension } = instr.op {
        let n_before = reduced.iter().filter(|&&axis| axis < dimension).count() as i64;
        let is_whole = !reduced.contains(&dimension);
        let parts = instr.operands.iter().map(|&part| (part, None)).collect();
        let sum = Op::Reduce { dimensions: reduced, to_apply };
        return is_whole.then_some(Parts { parts, sum, dimension: Some(dimension - n_before), moves });
    }
    let starts_at_zero = graph.node(node).operands.get(1).is_some_and(|&start| graph.value(start).is_zero);
    let mut parts = Vec::new();
    padded(graph, whole, &reduced, &mut parts)?;
    let sum = Op::Reduce { dimensions: reduced, to_apply };
    (starts_at_zero && parts.len() > 1).then_some(Parts { parts, sum, dimension: None, moves })
}

/// The parts of a sum of arrays that zeros pad along dimensions that are not `reduced`.
fn padded(
    graph: &Dataflow<'_>,
    node: NodeId,
    reduced: &[i64],
    parts: &mut Vec<(InstrId, Option<Vec<PadDim>>)>,
) -> Option<()> {
    let record = graph.node(node);
    let instr = graph.instr(record);
    match (&instr.op, &record.operands[..]) {
        (Op::Binary(BinaryOp::Add), &[left, right]) => {
            for value in [left, right] {
                let part = graph.producer(value);
                // An intermediate sum with several consumers may be materialised.
                let is_here = graph.node(part).frame == record.frame && graph.users[value as usize].len() == 1;
                is_here.then_some(())?;
                padded(graph, part, reduced, parts)?;
            }
            Some(())
        }
        (Op::Pad(dims), &[_, zero]) if graph.value(zero).is_zero => {
            let is_apart = |(axis, dim): (i64, &PadDim)| reduced.contains(&axis) && *dim != PadDim::default();
            if (0..).zip(dims).any(is_apart) {
                return None;
            }
            let remaining = (0..).zip(dims).filter(|(axis, _)| !reduced.contains(axis)).map(|(_, dim)| *dim).collect();
            parts.push((instr.operands[0], Some(remaining)));
            Some(())
        }
        _ => None,
    }
}

/// The operand of a reduction, then the value that it was reshaped or transposed from, and so on; `None` if one of
/// them is in another frame or cannot be retyped.
fn moved(graph: &Dataflow<'_>, node: NodeId) -> Option<Vec<ValueId>> {
    let reduces = graph.node(node);
    let (Op::Reduce { .. }, &[mut value, _]) = (graph.op(node), &reduces.operands[..]) else { return None };
    let mut chain = Vec::new();
    loop {
        let record = graph.node(graph.producer(value));
        if record.frame != reduces.frame || !matches!(record.kind, NodeKind::Op(_)) {
            return None;
        }
        chain.push(value);
        match (&graph.instr(record).op, &record.operands[..]) {
            (Op::Reshape | Op::Transpose { .. }, &[operand]) => value = operand,
            _ => return Some(chain),
        }
    }
}

/// The dims of an array of dims `before` that are reduced if those in `reduced` are, after a reshape to dims `after`;
/// `None` if a dim would be reduced in part.
fn reduced_before(before: &[i64], after: &[i64], reduced: &[i64]) -> Option<Vec<i64>> {
    let mut reduced_dims = Vec::new();
    let (mut at, mut at_after) = (0, 0);
    while at < before.len() && at_after < after.len() {
        let (first, first_after) = (at, at_after);
        let (mut n, mut n_after) = (before[at], after[at_after]);
        (at, at_after) = (at + 1, at_after + 1);
        // The shortest runs of dims in both with equally many elements.
        while n != n_after {
            let (dims, next, product) =
                if n < n_after { (before, &mut at, &mut n) } else { (after, &mut at_after, &mut n_after) };
            *product = product.checked_mul(*dims.get(*next)?)?;
            *next += 1;
        }
        match (first_after..at_after).filter(|&axis| reduced.contains(&(axis as i64))).count() {
            0 => {}
            n_reduced if n_reduced == at_after - first_after => {
                reduced_dims.extend((first..at).map(|axis| axis as i64))
            }
            _ => return None,
        }
    }
    Some(reduced_dims)
}

#[cfg(test)]
mod tests {
    use super::reduced_before;

    #[test]
    fn dims_are_found_again_before_a_reshape() {
        let dims = |before: &[i64], after: &[i64], reduced: &[i64]| reduced_before(before, after, reduced);
        assert_eq!(dims(&[2, 3, 4, 5], &[2, 3, 4, 5], &[0, 3]), Some(vec![0, 3]));
        assert_eq!(dims(&[2, 3, 4, 5], &[2, 3, 20], &[0, 1]), Some(vec![0, 1]));
        assert_eq!(dims(&[2, 3, 4, 5], &[6, 4, 5], &[0]), Some(vec![0, 1]));
        assert_eq!(dims(&[6, 20], &[2, 3, 4, 5], &[0, 1]), Some(vec![0]));
        // Only a factor of 3 of the dim of 6 would be summed.
        assert_eq!(dims(&[6, 20], &[2, 3, 4, 5], &[1]), None);
        assert_eq!(dims(&[4, 6], &[6, 4], &[0]), None);
        assert_eq!(dims(&[0], &[3, 0], &[0]), None);
    }
}
