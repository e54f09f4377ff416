//! Facts that follow the flow of values through a region: forward from operands to results, or backward from what reads
//! them.

use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use std::collections::BTreeSet;

impl Dataflow<'_> {
    /// For each value a fact that `rule` derives from those about the values before it. `taken` has the facts about the
    /// region's parameters, as far as they are known.
    pub(super) fn derived<F: Copy + Default>(
        &self,
        taken: impl IntoIterator<Item = F>,
        rule: impl Fn(NodeId, &[F]) -> F,
    ) -> Vec<F> {
        let mut facts = vec![F::default(); self.values.len()];
        self.parameters().zip(taken).for_each(|(value, fact)| facts[value as usize] = fact);
        for (node, record) in (0..).zip(&self.nodes).filter(|(_, record)| record.kind != NodeKind::Parameter) {
            let fact = rule(node, &facts);
            record.results().for_each(|value| facts[value as usize] = fact);
        }
        facts
    }

    /// For each node whether it computes one of `ends`, or one of its readers leads on: `leads_on` says so of a reader,
    /// given whether that leads itself.
    pub(super) fn leads(&self, ends: &[ValueId], leads_on: impl Fn(NodeId, bool) -> bool) -> Vec<bool> {
        let mut leads = vec![false; self.nodes.len()];
        ends.iter().for_each(|&value| leads[self.producer(value) as usize] = true);
        for node in self.node_ids().rev() {
            leads[node as usize] |= self.readers(node).any(|reader| leads_on(reader, leads[reader as usize]));
        }
        leads
    }

    /// The values in `open`, and those that they are computed from by the producers of values that satisfy `passes`.
    pub(super) fn behind(
        &self,
        open: impl IntoIterator<Item = ValueId>,
        passes: impl Fn(ValueId) -> bool,
    ) -> BTreeSet<ValueId> {
        closure(open, |value| {
            let goes_on = passes(value);
            self.node(self.producer(value)).operands.iter().copied().filter(move |_| goes_on)
        })
    }
}

/// The values in `open`, the values that are `next` to them, and so on.
pub(super) fn closure<I: IntoIterator<Item = ValueId>>(
    open: impl IntoIterator<Item = ValueId>,
    next: impl Fn(ValueId) -> I,
) -> BTreeSet<ValueId> {
    let mut open: Vec<ValueId> = open.into_iter().collect();
    let mut closed = BTreeSet::new();
    while let Some(value) = open.pop() {
        if closed.insert(value) {
            open.extend(next(value));
        }
    }
    closed
}
