//! Sums of what was concatenated, part by part.
//!
//! A back end puts the parts of a concatenation along any axis but the last together anew for each op that reads it, as for
//! a product and for the sum in f32 that is a bias's gradient. Such a sum is a concatenation of the parts' sums, and each of
//! these is made with its part. So the sum is written part by part: it is of the same numbers, in the same dtype.

use super::graph::{Graph, NodeId, NodeKind, ValueId};
use super::moved::is_stored;
use super::painted::{Painted, Rule};
use super::policy::{Because, Classes};
use crate::hlo::ops::decisions::list_names;
use crate::hlo::ops::precision::{Class, DeviceSum};
use crate::hlo::{InstrId, Op};

/// A sum of a concatenation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// What concatenates, in the computation of the sum.
    pub concatenate: InstrId,
    /// The dimensions of each part that are summed over.
    pub reduced: Vec<i64>,
    /// The dimension along which the sums are concatenated.
    pub dimension: i64,
}

/// The nodes of a region that sum a narrow concatenation in f32, which a product reads too.
pub(super) fn sums(graph: &Graph<'_>, painted: &Painted, classes: &Classes<'_>) -> Vec<NodeId> {
    let is_sum = |&node: &NodeId| {
        let of = graph.node(node);
        let instr = graph.instr(of);
        let Some(chain) = concatenated(graph, node) else { return false };
        let is_narrow = chain.iter().all(|&value| painted.low[graph.producer(value) as usize]);
        let mut readers = chain.iter().flat_map(|&value| &graph.users[value as usize]);
        matches!(of.kind, NodeKind::Op(Class::Deny { .. }))
            && of.because == Because::Op
            && !painted.low[node as usize]
            && list_names(graph.module, &instr.op).iter().any(|name| name == "reduce:add")
            && classes.sum_in_f32(graph.module, &instr.op) == DeviceSum::Never
            && is_narrow
            && readers.any(|&reader| painted.rule[reader as usize] == Rule::Allowed)
            && of_node(graph, node).is_some()
    };
    (0..graph.nodes.len() as NodeId).filter(is_sum).collect()
}

/// What a node sums, if that is a concatenation or a reshape of one.
pub(super) fn of_node(graph: &Graph<'_>, node: NodeId) -> Option<Parts> {
    let chain = concatenated(graph, node)?;
    let shape = |value: &ValueId| &graph.instr(graph.node(graph.producer(*value))).shape;
    let Op::Reduce { dimensions, .. } = &graph.instr(graph.node(node)).op else { return None };
    let reduced = reduced_before(shape(chain.last()?).dims(), shape(chain.first()?).dims(), dimensions)?;
    let concatenates = graph.node(graph.producer(*chain.last()?));
    let Op::Concatenate { dimension } = graph.instr(concatenates).op else { return None };
    let n_before = reduced.iter().filter(|&&axis| axis < dimension).count() as i64;
    let is_kept = !reduced.contains(&dimension);
    is_kept.then(|| Parts { concatenate: concatenates.instr, reduced, dimension: dimension - n_before })
}

/// The value that a node of one operand and one start reduces, what it was reshaped from, and so on to a concatenation that
/// no back end stores; all of them made in the node's frame.
fn concatenated(graph: &Graph<'_>, node: NodeId) -> Option<Vec<ValueId>> {
    let reduces = graph.node(node);
    let (Op::Reduce { .. }, &[mut value, _]) = (&graph.instr(reduces).op, &reduces.operands[..]) else { return None };
    let mut chain = Vec::new();
    loop {
        let of = graph.node(graph.producer(value));
        if of.frame != reduces.frame || of.kind != NodeKind::Op(Class::Clear) {
            return None;
        }
        chain.push(value);
        match (&graph.instr(of).op, &of.operands[..]) {
            (Op::Concatenate { .. }, _) => return (!is_stored(graph.instr(of))).then_some(chain),
            (Op::Reshape, &[operand]) => value = operand,
            _ => return None,
        }
    }
}

/// The dims of an array of dims `before` that are reduced where those of it in `reduced` are, once it has dims `after`; none
/// if a dim would be reduced in part.
fn reduced_before(before: &[i64], after: &[i64], reduced: &[i64]) -> Option<Vec<i64>> {
    let mut found = Vec::new();
    let (mut at, mut at_after) = (0, 0);
    while at < before.len() && at_after < after.len() {
        let (first, first_after) = (at, at_after);
        let (mut n, mut n_after) = (before[at], after[at_after]);
        (at, at_after) = (at + 1, at_after + 1);
        // The fewest dims of both that have as many elements.
        while n != n_after {
            let (dims, next, product) =
                if n < n_after { (before, &mut at, &mut n) } else { (after, &mut at_after, &mut n_after) };
            *product = product.checked_mul(*dims.get(*next)?)?;
            *next += 1;
        }
        match (first_after..at_after).filter(|&axis| reduced.contains(&(axis as i64))).count() {
            0 => {}
            n_reduced if n_reduced == at_after - first_after => found.extend((first..at).map(|axis| axis as i64)),
            _ => return None,
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::reduced_before;

    #[test]
    fn dims_are_found_again_before_a_reshape() {
        let found = |before: &[i64], after: &[i64], reduced: &[i64]| reduced_before(before, after, reduced);
        assert_eq!(found(&[2, 3, 4, 5], &[2, 3, 4, 5], &[0, 3]), Some(vec![0, 3]));
        assert_eq!(found(&[2, 3, 4, 5], &[2, 3, 20], &[0, 1]), Some(vec![0, 1]));
        assert_eq!(found(&[2, 3, 4, 5], &[6, 4, 5], &[0]), Some(vec![0, 1]));
        assert_eq!(found(&[6, 20], &[2, 3, 4, 5], &[0, 1]), Some(vec![0]));
        // Of 6 only a factor of 3 would be summed.
        assert_eq!(found(&[6, 20], &[2, 3, 4, 5], &[1]), None);
        assert_eq!(found(&[4, 6], &[6, 4], &[0]), None);
        assert_eq!(found(&[0], &[3, 0], &[0]), None);
    }
}
