//! Decisions that fit the layout of a TPU, whose tiles have 128 lanes: tables with narrow rows, large logits, and sums of
//! what consists of parts.
//!
//! # Tables with narrow rows
//!
//! A tile of a TPU's memory has 128 lanes. A table with narrower rows is stored transposed, as it would be padded
//! otherwise, and the whole table is copied to padded rows wherever rows are looked up or added. For an embedding of
//! 64 numbers such a copy takes twice the memory of the table. Two of these copies are avoided:
//! - A *lookup* reads its table behind an `opt-barrier` if an op other than a lookup, such as the update, reads the
//!   table, too. Without it the compiler keeps the copy for the lookup live until the update, over the whole step.
//! - A *sum of rows*, a `scatter` that adds rows to zeros, is computed in bf16 if the rows are bf16 already, as in a
//!   network written for bf16: the rows are padded in half the bytes. But only if several ops read the sum, as in
//!   Adagrad and Adam; for SGD the compiler adds to the table itself. And only if no more rows are added than the
//!   table has: a row's sum of n terms has up to n roundings, and with more rows, many sums are long.
//!
//! The first changes no bit. Both apply only if fewer rows are read or added than the table has; the copy of a smaller
//! table is small beside the looked-up rows.
//!
//! Behind the last product, values of the *rows* that are added to such a table are materialised, and padded, before
//! the addition. So they are rounded as between two products, whether the sum itself is bf16 or f32. A value that is
//! f32 all the same, because it comes from a sum or from the loss, is rounded once, as the rows themselves.
//!
//! # Logits that are at least as large as any parameter
//!
//! As a language model's over its vocabulary.
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
//!
//! # Sums of concatenations and of padded parts
//!
//! A back end materialises a concatenation for a product, and again for the f32 sum that is a bias's gradient, or
//! reads it again for that. The same holds for a sum of zero-padded parts, the gradient of an array that was sliced.
//! Such a sum combines the parts' sums, and each part's sum fuses with the producer of that part. So it is
//! written part by part: the same numbers, in the same dtype.

use super::assignment::{Assignment, Parts, RegionKind};
use super::data_movement::{is_sum_called, rows_into_zeros};
use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::decision::Rule;
use super::flow::closure;
use super::loops::Loop;
use super::materialised::of_products;
use super::policy::Classes;
use bf16scope_hlo::ops::decisions::precision_class;
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::ops::{BinaryOp, PadDim};
use bf16scope_hlo::{DType, InstrId, Op};
use std::collections::BTreeMap;

/// The lanes and rows of a tile of a TPU's memory, for f32: `T(8,128)` in layouts that its compiler prints.
const LANES: i64 = 128;
const SUBLANES: i64 = 8;

/// Finds the lookups whose table is read behind a barrier.
pub(super) fn lookups(graph: &Dataflow<'_>, assignment: &Assignment, kind: RegionKind) -> Vec<NodeId> {
    let is_gather = |node: NodeId| matches!(graph.op(node), Op::Gather(_));
    let is_lookup = |&node: &NodeId| {
        let record = graph.node(node);
        let Some(&table) = record.operands.first() else { return false };
        let takes_narrow = |user: NodeId| {
            assignment.low[user as usize] || graph.node(user).kind == NodeKind::ToLow && is_computed_with(graph, user)
        };
        kind == RegionKind::Entry
            && record.is_clear()
            && is_gather(node)
            && !assignment.value_low[table as usize]
            && graph.is_parameter(table)
            && graph.users[table as usize].iter().any(|&user| !is_gather(user))
            && has_narrow_rows(graph, node)
            && graph.value(record.first_result).n_elements <= graph.value(table).n_elements
            && graph.readers(node).next().is_some()
            && graph.readers(node).all(takes_narrow)
    };
    graph.node_ids().filter(is_lookup).collect()
}

/// Whether the readers of a cast compute with its narrow result, and never widen it again. A lookup with an f32 reader
/// is rounded without a barrier, and lowering a lowered program again must not change it.
fn is_computed_with(graph: &Dataflow<'_>, cast: NodeId) -> bool {
    let widens = |user: NodeId| graph.node(user).kind == NodeKind::FromLow;
    let moves = |user: NodeId| precision_class(graph.module, graph.op(user)) == Class::Clear && !widens(user);
    let values = closure(graph.node(cast).results(), |value| graph.next(value, &moves));
    let mut users = values.iter().flat_map(|&value| &graph.users[value as usize]);
    let is_result = values.iter().any(|&value| graph.is_result[value as usize]);
    users.clone().all(|&user| !widens(user)) && (is_result || users.any(|&user| !moves(user)))
}

/// Finds the sums of rows that are computed in bf16, and the ops that add several of them. If one stays f32, so do all
/// that are added to it.
pub(super) fn sums_of_rows(graph: &Dataflow<'_>, assignment: &Assignment, classes: &Classes<'_>) -> Vec<NodeId> {
    // The gradient of one table is a sum of rows, or the total of several: the sums, with the ops that add them, and the
    // number of elements of all rows; `None` if some are not narrow.
    let mut totals: BTreeMap<NodeId, (Vec<NodeId>, Option<i64>)> = BTreeMap::new();
    for (node, record) in (0..).zip(&graph.nodes) {
        if let Some(rows) = rows_into_zeros(graph, classes, node) {
            let is_narrow = assignment.value_low[rows as usize] && has_narrow_rows(graph, node);
            let n_elements = is_narrow.then(|| graph.value(rows).n_elements);
            totals.insert(node, (vec![node], n_elements));
        } else if *graph.op(node) == Op::Binary(BinaryOp::Add) && record.class() == Some(Class::Infer) {
            let makers: Vec<NodeId> = graph.makers(node).collect();
            let is_sum = |maker: &NodeId| graph.only_reader(*maker) == Some(node) && totals.contains_key(maker);
            if makers[0] != makers[1] && makers.iter().all(is_sum) {
                let sums: Vec<_> = makers.iter().filter_map(|maker| totals.remove(maker)).collect();
                let n_elements = sums.iter().try_fold(0_i64, |n, (_, rows)| Some(n.saturating_add((*rows)?)));
                let nodes = sums.into_iter().flat_map(|(nodes, _)| nodes).chain([node]).collect();
                totals.insert(node, (nodes, n_elements));
            }
        }
    }
    totals.retain(|&last, (_, n_elements)| {
        let n_in_table = graph.value(graph.node(last).first_result).n_elements;
        n_elements.is_some_and(|n| n <= n_in_table) && has_several_readers(graph, last)
    });
    totals.into_values().flat_map(|(nodes, _)| nodes).collect()
}

/// Finds the nodes that compute, in f32 and from products, rows that are added to a table with narrow rows: rounded
/// once, whatever they are computed from.
pub(super) fn rows(graph: &Dataflow<'_>, assignment: &Assignment, classes: &Classes<'_>) -> Vec<NodeId> {
    let is_of_product = of_products(graph);
    let makes_rows = |&node: &NodeId| {
        let record = graph.node(node);
        let is_row = |&user: &NodeId| adds_rows(graph, classes, user, record.first_result);
        let readers = &graph.users[record.first_result as usize];
        record.n_results == 1
            && record.passes()
            && is_of_product[record.first_result as usize]
            && !assignment.value_low[record.first_result as usize]
            && !readers.is_empty()
            && readers.iter().all(is_row)
    };
    graph.node_ids().filter(makes_rows).collect()
}

/// Whether a node adds this value to a table of zeros, as rows that are narrower than a tile.
pub(super) fn adds_rows(graph: &Dataflow<'_>, classes: &Classes<'_>, node: NodeId, value: ValueId) -> bool {
    rows_into_zeros(graph, classes, node) == Some(value) && has_narrow_rows(graph, node)
}

/// Whether several ops read the result of a node, or the total of several such.
fn has_several_readers(graph: &Dataflow<'_>, mut node: NodeId) -> bool {
    while let Some(reader) = graph.only_reader(node) {
        if !matches!(graph.op(reader), Op::Binary(BinaryOp::Add)) {
            return false;
        }
        node = reader;
    }
    graph.readers(node).next().is_some()
}

/// Whether the first operand of a node is a matrix, or a stack of matrices, that takes less memory transposed, as its
/// rows do not fill tiles.
fn has_narrow_rows(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let [.., n_rows, width] = graph.operand_dims(node, 0) else { return false };
    let padded = |rows: i64, lanes: i64| {
        let up = |size: i64, to: i64| size.saturating_add(to - 1) / to * to;
        up(rows, SUBLANES).saturating_mul(up(lanes, LANES))
    };
    padded(*n_rows, *width) > padded(*width, *n_rows)
}

/// Finds all logits of a region that are rounded: the op that adds the bias, and the sum that is the bias's gradient,
/// both computed in the narrow dtype. `loops` describes each loop of the region.
pub(super) fn logits(
    graph: &Dataflow<'_>,
    assignment: &Assignment,
    classes: &Classes<'_>,
    kind: RegionKind,
    loops: &BTreeMap<NodeId, Loop>,
) -> Vec<(NodeId, NodeId)> {
    // In f16 a sum over a batch may be infinite.
    if kind != RegionKind::Entry || graph.low != DType::BF16 {
        return Vec::new();
    }
    let is_product = |node: NodeId| assignment.rule[node as usize] == Rule::Allowed;
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
                && graph.users[graph.node(node).operands[0] as usize].iter().any(|&user| is_product(user))
        };
        Some((add, (add..graph.node_ids().end).find(is_sum)?))
    });
    logits.collect()
}

/// Whether a loop with products, or one that sums up logarithms, reads values that are computed from a node's result.
fn leads_to_loop(graph: &Dataflow<'_>, from: NodeId, loops: &BTreeMap<NodeId, Loop>) -> bool {
    let is_light =
        |node: NodeId| loops.get(&node).is_some_and(|its_loop| !its_loop.has_product && !its_loop.is_of_logarithms);
    let is_loop = |node: NodeId| matches!(graph.op(node), Op::While { .. }) && !is_light(node);
    graph.leads(&[], |reader, leads| leads || is_loop(reader))[from as usize]
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

/// Whether a node reduces an array of these dims over all of them but `axis`.
fn is_over_all_but(graph: &Dataflow<'_>, node: NodeId, dims: &[i64], axis: i64) -> bool {
    let Op::Reduce { dimensions, .. } = graph.op(node) else { return false };
    let mut reduced = dimensions.clone();
    reduced.sort_unstable();
    graph.operand_dims(node, 0) == dims && reduced.into_iter().eq((0..dims.len() as i64).filter(|&other| other != axis))
}

/// Finds the nodes of a region that sum, in f32, an array of narrow parts that a product reads, too.
pub(super) fn sums_of_parts(
    graph: &Dataflow<'_>,
    assignment: &Assignment,
    classes: &Classes<'_>,
) -> BTreeMap<NodeId, Parts> {
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
    let moves = |reader: NodeId| {
        matches!(graph.op(reader), Op::Reshape | Op::Transpose { .. }) && graph.node(reader).is_clear()
    };
    let moved = closure([value], |value| graph.next(value, &moves));
    let mut readers = moved.iter().flat_map(|&value| &graph.users[value as usize]);
    readers.any(|&reader| assignment.rule[reader as usize] == Rule::Allowed)
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
