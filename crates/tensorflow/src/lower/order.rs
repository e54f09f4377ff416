//! A topological order of nodes, with reads of variables before assignments that the graph does not order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Scope;
use super::frames::Frames;
use crate::dtypes;
use crate::graph::Body;
use crate::index_map::IndexMap;
use crate::node::Node;

/// Ops that change a variable.
fn is_assignment(op: &str) -> bool {
    op.starts_with("Assign")
        || op.starts_with("ResourceApply")
        || op.starts_with("Apply")
        || op.starts_with("Scatter") && op != "ScatterNd"
        || op.starts_with("ResourceScatter")
        || op.starts_with("SparseApply")
        || op.starts_with("ResourceSparseApply")
}

/// A node's priority among those that are ready: reads come before assignments. A stack that loops push on another stack for
/// their gradients is pushed last, since the push saves its contents at that time.
fn priority(node: &Node) -> u8 {
    match node.op.as_str() {
        "StackPushV2" if node.type_number("T") == Some(dtypes::RESOURCE) => 2,
        op => u8::from(is_assignment(op)),
    }
}

/// The nodes that `targets` need and that are not done, in order; the error is a node that depends on itself.
pub(super) fn order(body: &Body, frames: &Frames, scope: &Scope, targets: &[usize]) -> Result<Vec<usize>, usize> {
    let mut number_of: IndexMap<usize, usize> = IndexMap::default();
    let mut needed: Vec<usize> = Vec::new();
    // A node and the number of its reader, once for each read.
    let mut reads: Vec<(usize, usize)> = Vec::new();
    let mut pending: Vec<usize> = targets.to_vec();
    let mut before = Vec::new();
    while let Some(node) = pending.pop() {
        if scope.done.contains(&node) || number_of.contains_key(&node) {
            continue;
        }
        let number = needed.len();
        number_of.insert(node, number);
        needed.push(node);
        before.clear();
        frames.before(body, node, &mut before);
        before.retain(|node| !scope.done.contains(node));
        reads.extend(before.iter().map(|node| (*node, number)));
        pending.extend(&before);
    }
    let mut n_before = vec![0; needed.len()];
    // The readers of all nodes in one vector: those of number `n` begin at `first_reader[n]`.
    let mut first_reader = vec![0; needed.len() + 1];
    for (node, reader) in &mut reads {
        *node = number_of[node];
        n_before[*reader] += 1;
        first_reader[*node + 1] += 1;
    }
    for number in 1..first_reader.len() {
        first_reader[number] += first_reader[number - 1];
    }
    let mut readers = vec![0; reads.len()];
    let mut next_reader = first_reader.clone();
    for (number, reader) in reads {
        readers[next_reader[number]] = reader;
        next_reader[number] += 1;
    }
    let key = |number: usize| Reverse((priority(&body.nodes[needed[number]]), needed[number], number));
    let mut ready: BinaryHeap<_> = (0..needed.len()).filter(|number| n_before[*number] == 0).map(key).collect();
    let mut order = Vec::with_capacity(needed.len());
    while let Some(Reverse((_, node, number))) = ready.pop() {
        order.push(node);
        for &reader in &readers[first_reader[number]..first_reader[number + 1]] {
            n_before[reader] -= 1;
            if n_before[reader] == 0 {
                ready.push(key(reader));
            }
        }
    }
    match order.len() == needed.len() {
        true => Ok(order),
        false => {
            let waiting = needed.iter().zip(&n_before).filter(|(_, n)| **n > 0);
            Err(waiting.map(|(node, _)| *node).min().unwrap_or_default())
        }
    }
}
