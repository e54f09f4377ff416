//! Facts that follow the flow of values through a region: forward from operands to results, or backward from what reads
//! them.

use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;

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

    /// For each node a fact: that of `ends` about the value that it computes, or the first that `rule` derives from one
    /// of its readers and the fact about that.
    pub(super) fn led<F: Copy + Default + PartialEq>(
        &self,
        ends: impl IntoIterator<Item = (ValueId, F)>,
        rule: impl Fn(NodeId, F) -> F,
    ) -> Vec<F> {
        let mut facts = vec![F::default(); self.nodes.len()];
        ends.into_iter().for_each(|(value, fact)| facts[self.producer(value) as usize] = fact);
        for node in self.node_ids().rev() {
            if facts[node as usize] == F::default() {
                let fact = self
                    .readers(node)
                    .map(|reader| rule(reader, facts[reader as usize]))
                    .find(|fact| *fact != F::default());
                facts[node as usize] = fact.unwrap_or_default();
            }
        }
        facts
    }

    /// For each node the bits that `ends` has for the values that it computes, and those that `rule` derives from the bits
    /// of any reader: up to 64 questions about what is led to, answered together.
    pub(super) fn bits_led(
        &self,
        ends: impl IntoIterator<Item = (ValueId, u64)>,
        rule: impl Fn(NodeId, u64) -> u64,
    ) -> Vec<u64> {
        let mut bits = vec![0; self.nodes.len()];
        ends.into_iter().for_each(|(value, end)| bits[self.producer(value) as usize] |= end);
        for node in self.node_ids().rev() {
            bits[node as usize] |= self.readers(node).fold(0, |led, reader| led | rule(reader, bits[reader as usize]));
        }
        bits
    }

    /// For each node whether it computes one of `ends`, or one of its readers leads on: `leads_on` says so of a reader,
    /// given whether that leads itself.
    pub(super) fn leads(&self, ends: &[ValueId], leads_on: impl Fn(NodeId, bool) -> bool) -> Vec<bool> {
        self.led(ends.iter().map(|&value| (value, true)), leads_on)
    }

    /// For each node whether a product is computed from its result.
    pub(super) fn leads_to_product(&self) -> Vec<bool> {
        self.leads(&[], |reader, leads| leads || self.node(reader).is_product())
    }

    /// For each value whether it comes from a node that `begins`, through arrays at least as large as the result of each
    /// node, so that nothing was summed between. `begins` returns `Some(true)` for a node that begins, `Some(false)` for
    /// one that passes such an array on, and `None` for one that ends it.
    pub(super) fn of_arrays(&self, begins: impl Fn(NodeId) -> Option<bool>) -> Vec<bool> {
        let n_elements = |value: ValueId| self.value(value).n_elements;
        self.derived([], |node, is_passed_on: &[bool]| {
            let n_results = self.node(node).results().map(n_elements).max().unwrap_or(0);
            let is_whole = |&value: &ValueId| is_passed_on[value as usize] && n_elements(value) >= n_results;
            begins(node).is_some_and(|begins| begins || self.node(node).operands.iter().any(is_whole))
        })
    }

    /// The results of the nodes that read a value and satisfy `passes`.
    pub(super) fn next<'s>(
        &'s self,
        value: ValueId,
        passes: &'s impl Fn(NodeId) -> bool,
    ) -> impl Iterator<Item = ValueId> + 's {
        let users = self.users[value as usize].iter().filter(|&&user| passes(user));
        users.flat_map(|&user| self.node(user).results())
    }

    /// For each value whether it is in `open`, or is computed from such a value through nodes that satisfy `passes`.
    pub(super) fn reached(&self, open: Vec<ValueId>, passes: impl Fn(NodeId) -> bool) -> Vec<bool> {
        self.reached_by(open, passes, |_| &[])
    }

    /// The same, where a value also becomes those that `becomes` names. A node of many operands and results is passed once,
    /// not once for each operand.
    fn reached_by<'b>(
        &self,
        mut open: Vec<ValueId>,
        passes: impl Fn(NodeId) -> bool,
        becomes: impl Fn(ValueId) -> &'b [ValueId],
    ) -> Vec<bool> {
        let (mut is_reached, mut is_passed) = (vec![false; self.values.len()], vec![false; self.nodes.len()]);
        while let Some(value) = open.pop() {
            if replace(&mut is_reached[value as usize], true) {
                continue;
            }
            open.extend(becomes(value));
            for &user in &self.users[value as usize] {
                if !is_passed[user as usize] && passes(user) {
                    is_passed[user as usize] = true;
                    open.extend(self.node(user).results());
                }
            }
        }
        is_reached
    }

    /// For each value of a loop's body whether it is computed from a result of a node that `begins`, or from an array of
    /// the state that `is_source`, in the same step or in an earlier one.
    pub(super) fn reached_in_steps(
        &self,
        state: &[ValueId],
        begins: impl Fn(NodeId) -> bool,
        is_source: impl Fn(usize) -> bool,
    ) -> Vec<bool> {
        // Results of the body, with the arrays of the next step's state that each becomes.
        let mut becomes: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
        for (&before, &after) in state.iter().zip(&self.results).filter(|(before, _)| self.value(**before).is_f32()) {
            becomes.entry(after).or_default().push(before);
        }
        let open = self.node_ids().filter(|&node| begins(node)).flat_map(|node| self.node(node).results());
        let open = open.chain((0..).zip(state).filter(|(leaf, _)| is_source(*leaf)).map(|(_, &value)| value));
        self.reached_by(open.collect(), |_| true, |value| becomes.get(&value).map_or(&[], Vec::as_slice))
    }

    /// The operands that a value is computed from. A node that moves several arrays, as a sort does, gives each in its place.
    pub(super) fn sources(&self, value: ValueId) -> &[ValueId] {
        let record = self.node(self.producer(value));
        let is_each_moved = record.is_clear() && record.n_results as usize == record.operands.len();
        let place = (value - record.first_result) as usize;
        if is_each_moved { &record.operands[place..=place] } else { &record.operands }
    }

    /// The values in `open`, and those that they are computed from by the producers of values that satisfy `passes`.
    pub(super) fn behind(
        &self,
        open: impl IntoIterator<Item = ValueId>,
        passes: impl Fn(ValueId) -> bool,
    ) -> BTreeSet<ValueId> {
        closure(open, |value| {
            let operands = passes(value).then(|| self.node(self.producer(value)).operands.iter().copied());
            operands.into_iter().flatten()
        })
    }
}

/// The ids in `open`, the ids that are `next` to them, and so on: of values, or of computations.
pub(super) fn closure<I: IntoIterator<Item = u32>>(
    open: impl IntoIterator<Item = u32>,
    next: impl Fn(u32) -> I,
) -> BTreeSet<u32> {
    let (mut closed, mut open) = (BTreeSet::new(), open.into_iter().collect::<Vec<u32>>());
    while let Some(id) = open.pop() {
        if closed.insert(id) {
            open.extend(next(id));
        }
    }
    closed
}
