//! An order in which inputs come first, and reads of variables before assignments that nothing orders.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::Scope;
use super::frames::Frames;
use crate::graph::Body;

/// Ops that change a variable.
fn is_assignment(op: &str) -> bool {
    op.starts_with("Assign")
        || op.starts_with("ResourceApply")
        || op.starts_with("Apply")
        || op.starts_with("ScatterAdd")
        || op.starts_with("ScatterSub")
        || op.starts_with("ScatterUpdate")
        || op.starts_with("ResourceScatter")
        || op.starts_with("SparseApply")
        || op.starts_with("ResourceSparseApply")
}

/// The nodes that `targets` need and that are not done, in order; else one that needs itself.
pub(super) fn order(body: &Body, frames: &Frames, scope: &Scope, targets: &[usize]) -> Result<Vec<usize>, usize> {
    let mut needed: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut pending: Vec<usize> = targets.to_vec();
    while let Some(node) = pending.pop() {
        if needed.contains_key(&node) || scope.done.contains(&node) {
            continue;
        }
        let mut before = frames.before(body, node);
        before.retain(|node| !scope.done.contains(node));
        before.sort_unstable();
        before.dedup();
        pending.extend(&before);
        needed.insert(node, before);
    }
    let mut after: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut n_before: HashMap<usize, usize> = HashMap::with_capacity(needed.len());
    let mut ready = BinaryHeap::new();
    let key = |node: usize| Reverse((is_assignment(&body.nodes[node].op), node));
    for (node, before) in &needed {
        before.iter().for_each(|first| after.entry(*first).or_default().push(*node));
        n_before.insert(*node, before.len());
        if before.is_empty() {
            ready.push(key(*node));
        }
    }
    let mut order = Vec::with_capacity(needed.len());
    while let Some(Reverse((_, node))) = ready.pop() {
        order.push(node);
        for next in after.get(&node).into_iter().flatten() {
            let n = n_before.get_mut(next).expect("every needed node is counted");
            *n -= 1;
            if *n == 0 {
                ready.push(key(*next));
            }
        }
    }
    match order.len() == needed.len() {
        true => Ok(order),
        false => Err(n_before.into_iter().filter(|(_, n)| *n > 0).map(|(node, _)| node).min().unwrap_or_default()),
    }
}
