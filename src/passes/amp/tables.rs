//! Tables of narrow rows: where their rows are looked up, and where the gradients of lookups are summed.
//!
//! A tile of a TPU's memory has 128 lanes. A table whose rows are narrower is kept transposed, as it would be padded
//! otherwise, and copied whole to padded rows wherever rows are looked up or added. For an embedding of 64 numbers such a
//! copy takes twice the table. Two of them are avoided:
//! - A *lookup* reads its table behind an `opt-barrier`, where an op that is no lookup reads the table, too, such as its
//!   update. Without it the compiler keeps the copy that it made for the lookup until the update, over the whole step.
//! - A *sum of rows*, a `scatter` that adds rows to zeros, is computed in bf16 where the rows are bf16 already, as in a
//!   network that was written for bf16: the rows are padded in half the bytes. But only where several ops read the sum,
//!   as Adagrad's and Adam's do; for the one of SGD the compiler adds to the table. And only where no more rows are added
//!   than the table has. A row's sum of n terms has up to n roundings, and where there are more, many rows have long sums.
//!
//! The first changes no bit. Both ask for fewer rows than the table has; of a smaller table, the copy is small beside
//! what is looked up.
//!
//! Behind the last product, what is computed of the *rows* that are added to such a table is stored, and padded, before they
//! are: so it is rounded as between two products, whether the sum itself is bf16 or f32.

use super::graph::{Graph, Node, NodeId, NodeKind, ValueId};
use super::moved::rows_into_zeros;
use super::painted::{Painted, RegionKind};
use super::policy::Classes;
use crate::hlo::ops::BinaryOp;
use crate::hlo::ops::precision::Class;
use crate::hlo::{InstrId, Op};

/// Lanes of a tile of a TPU's memory, and its rows: `T(8,128)` in layouts that its compiler prints, for f32.
const LANES: i64 = 128;
const SUBLANES: i64 = 8;

/// Lookups whose table is read behind a barrier.
pub(super) fn lookups(graph: &Graph<'_>, painted: &Painted, kind: RegionKind) -> Vec<NodeId> {
    let is_lookup = |&node: &NodeId| {
        let of = graph.node(node);
        let Some(&table) = of.operands.first() else { return false };
        let is_gather = |of: &Node| matches!(graph.instr(of).op, Op::Gather(_));
        let users = |value: u32| graph.users[value as usize].iter();
        let takes_narrow = |&user: &NodeId| painted.low[user as usize] || graph.node(user).kind == NodeKind::ToLow;
        kind == RegionKind::Entry
            && of.kind == NodeKind::Op(Class::Clear)
            && is_gather(of)
            && !painted.value_low[table as usize]
            && graph.node(graph.producer(table)).kind == NodeKind::Parameter
            && has_narrow_rows(graph, of, graph.instr(of).operands[0])
            && graph.value(of.first_result).n_elements <= graph.value(table).n_elements
            && !users(of.first_result).as_slice().is_empty()
            && users(of.first_result).all(takes_narrow)
            && users(table).any(|&user| !is_gather(graph.node(user)))
    };
    (0..graph.nodes.len() as NodeId).filter(is_lookup).collect()
}

/// Sums of rows that are computed in bf16.
pub(super) fn sums(graph: &Graph<'_>, painted: &Painted, classes: &Classes<'_>) -> Vec<NodeId> {
    let is_sum = |&node: &NodeId| {
        let Some((table, rows)) = rows_into_zeros(graph, classes, node) else { return false };
        let of = graph.node(node);
        painted.value_low[rows as usize]
            && has_several_readers(graph, of)
            && has_narrow_rows(graph, of, graph.instr(of).operands[0])
            && graph.value(rows).n_elements <= graph.value(table).n_elements
    };
    (0..graph.nodes.len() as NodeId).filter(is_sum).collect()
}

/// Whether a node adds what this value holds to a table of zeros, as rows that are narrower than a tile.
pub(super) fn adds_rows(graph: &Graph<'_>, classes: &Classes<'_>, node: NodeId, value: ValueId) -> bool {
    let of = graph.node(node);
    rows_into_zeros(graph, classes, node).is_some_and(|(_, rows)| rows == value)
        && has_narrow_rows(graph, of, graph.instr(of).operands[0])
}

/// Whether more than one op reads what a node makes, or the sum of several such.
fn has_several_readers(graph: &Graph<'_>, node: &Node) -> bool {
    let mut value = node.first_result;
    loop {
        let readers = &graph.users[value as usize];
        let Some(&first) = readers.first() else { return false };
        if readers.iter().any(|&reader| reader != first) {
            return true;
        }
        let of = graph.node(first);
        if !matches!(graph.instr(of).op, Op::Binary(BinaryOp::Add)) {
            return false;
        }
        value = of.first_result;
    }
}

/// Whether an operand of a node is a matrix, or a stack of some, that takes less memory transposed, as its rows do not fill
/// tiles.
fn has_narrow_rows(graph: &Graph<'_>, node: &Node, operand: InstrId) -> bool {
    let computation = graph.module.comp(graph.frames[node.frame as usize].comp);
    let Some([.., n_rows, width]) = computation.instr(operand).shape.as_array().map(|array| &array.dims[..]) else {
        return false;
    };
    let padded = |rows: i64, lanes: i64| {
        let up = |size: i64, to: i64| size.saturating_add(to - 1) / to * to;
        up(rows, SUBLANES).saturating_mul(up(lanes, LANES))
    };
    padded(*n_rows, *width) > padded(*width, *n_rows)
}
