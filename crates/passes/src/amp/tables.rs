//! Tables with narrow rows: lookups of their rows, and sums of the lookups' gradients.
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

use super::assignment::{Assignment, RegionKind};
use super::data_movement::rows_into_zeros;
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::materialised::of_products;
use super::policy::Classes;
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::BinaryOp;
use bf16scope_hlo::ops::decisions::precision_class;
use bf16scope_hlo::ops::precision::Class;
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
    let mut is_read = false;
    let mut open: Vec<ValueId> = graph.node(cast).results().collect();
    while let Some(value) = open.pop() {
        is_read |= graph.is_result[value as usize];
        for record in graph.users[value as usize].iter().map(|&user| graph.node(user)) {
            match record.kind {
                NodeKind::FromLow => return false,
                _ if precision_class(graph.module, &graph.instr(record).op) == Class::Clear => {
                    open.extend(record.results())
                }
                _ => is_read = true,
            }
        }
    }
    is_read
}

/// The gradient of one table: a sum of rows, or the total of several.
struct Sum {
    /// The sums, and the ops that add them.
    nodes: Vec<NodeId>,
    /// The number of elements of all rows; `None` if some are not narrow.
    n_elements: Option<i64>,
}

/// Finds the sums of rows that are computed in bf16, and the ops that add several of them. If one stays f32, so do all
/// that are added to it.
pub(super) fn sums(graph: &Dataflow<'_>, assignment: &Assignment, classes: &Classes<'_>) -> Vec<NodeId> {
    let mut totals: BTreeMap<NodeId, Sum> = BTreeMap::new();
    for (node, record) in (0..).zip(&graph.nodes) {
        if let Some(rows) = rows_into_zeros(graph, classes, node) {
            let is_narrow = assignment.value_low[rows as usize] && has_narrow_rows(graph, node);
            let n_elements = is_narrow.then(|| graph.value(rows).n_elements);
            totals.insert(node, Sum { nodes: vec![node], n_elements });
        } else if *graph.op(node) == Op::Binary(BinaryOp::Add) && record.class() == Some(Class::Infer) {
            let is_read_here = |&value: &ValueId| graph.users[value as usize].len() == 1;
            let is_sum = |&value: &ValueId| is_read_here(&value) && totals.contains_key(&graph.producer(value));
            if !record.operands.iter().all(is_sum) {
                continue;
            }
            let mut sums = record.operands.iter().filter_map(|&value| totals.remove(&graph.producer(value)));
            if let (Some(mut sum), Some(other)) = (sums.next(), sums.next()) {
                sum.nodes.extend(other.nodes.into_iter().chain([node]));
                sum.n_elements = sum.n_elements.zip(other.n_elements).map(|(n, other)| n.saturating_add(other));
                totals.insert(node, sum);
            }
        }
    }
    totals.retain(|&last, sum| {
        let n_in_table = graph.value(graph.node(last).first_result).n_elements;
        sum.n_elements.is_some_and(|n| n <= n_in_table) && has_several_readers(graph, graph.node(last))
    });
    totals.into_values().flat_map(|sum| sum.nodes).collect()
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
            && is_of_product[node as usize]
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
fn has_several_readers(graph: &Dataflow<'_>, node: &Node) -> bool {
    let mut value = node.first_result;
    loop {
        let readers = &graph.users[value as usize];
        let Some(&first) = readers.first() else { return false };
        if readers.iter().any(|&reader| reader != first) {
            return true;
        }
        let record = graph.node(first);
        if !matches!(graph.instr(record).op, Op::Binary(BinaryOp::Add)) {
            return false;
        }
        value = record.first_result;
    }
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
