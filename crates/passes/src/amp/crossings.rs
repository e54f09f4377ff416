//! Which arrays cross the border of a region's loops and branches in the narrow dtype: those that are materialised
//! there between products.
//!
//! `loops` and `branches` say what each loop or branch does with its operands and results; the region around it says
//! where the operands come from, and where the results go.

use super::assignment::{Assignment, Crossing};
use super::branches::Branch;
use super::data_movement::moved_from;
use super::dataflow::{Dataflow, NodeId, ValueId};
use super::ends::Ends;
use super::loops::{Loop, Use};
use super::needs::Needs;
use super::policy::Boundary;
use std::collections::BTreeMap;

/// The region around loops and branches.
pub(super) struct Around<'a> {
    pub graph: &'a Dataflow<'a>,
    pub ends: &'a Ends,
    /// For each node the product that it is computed from, unless a denied op is between.
    pub below: &'a [Option<NodeId>],
    pub needs: &'a Needs,
    /// For each node whether a product is computed from its result.
    pub leads_to_product: Vec<bool>,
    /// Whether every loop carries its state between products in the narrow dtype (`Boundary::Lower`), or only loops
    /// over layers.
    pub carried: Boundary,
}

impl Around<'_> {
    /// Decides which arrays of the state of the region's loops are narrow.
    pub(super) fn narrow_loops(&self, loops: &BTreeMap<NodeId, Loop>, out: &mut Assignment) {
        let graph = self.graph;
        for (&node, its_loop) in loops {
            let record = graph.node(node);
            let is_between = its_loop.has_product || self.leads_to_product[node as usize];
            if record.operands.len() != its_loop.uses.len() || its_loop.is_of_logarithms || !is_between {
                continue;
            }
            let mut state = vec![false; its_loop.uses.len()];
            let leaves = || record.operands.iter().copied().zip(record.results()).zip(&its_loop.uses).enumerate();
            for (leaf, ((before, after), its_use)) in leaves() {
                let is_free = graph.users[after as usize].is_empty() && !self.ends.is_result[after as usize];
                let is_loop = loops.contains_key(&graph.producer(before));
                let is_narrow = self.is_stored_narrow(before, out) || self.is_of_product(before) && !is_loop;
                let is_needed = self.needs.given[before as usize];
                state[leaf] = matches!(its_use, Use::Read { .. }) && is_free && is_narrow && !is_needed;
            }
            let reads_narrow = state.contains(&true);
            for (leaf, ((before, after), its_use)) in leaves() {
                let &Use::Filled { is_of_product, is_of_read } = its_use else { continue };
                let is_between = is_of_product || is_of_read && reads_narrow;
                let has_readers = !graph.users[after as usize].is_empty() || out.is_narrow_result(graph, after);
                state[leaf] = is_between && has_readers && graph.value(before).is_exact && !self.is_kept(after);
                out.value_low[after as usize] |= state[leaf];
            }
            let is_over_layers = leaves().any(|(_, ((before, _), its_use))| self.is_layers(before, *its_use));
            for (leaf, ((before, after), its_use)) in leaves() {
                let &Use::Carried { is_between } = its_use else { continue };
                let is_narrow = is_between && (is_over_layers || self.carried == Boundary::Lower);
                state[leaf] |= is_narrow
                    && graph.value(before).is_f32_array()
                    && !graph.is_parameter(self.moved_from(before))
                    && !self.is_kept(after);
            }
            if state.contains(&true) {
                for (after, _) in record.results().zip(&state).filter(|(_, is_narrow)| **is_narrow) {
                    out.value_low[after as usize] = true;
                }
                out.crossings.insert(node, Crossing { taken: state.clone(), given: state });
            }
        }
    }

    /// Decides which operands and results of the region's `conditional`s are narrow.
    pub(super) fn narrow_branches(&self, branches: &BTreeMap<NodeId, Vec<Branch>>, out: &mut Assignment) {
        let graph = self.graph;
        for (&node, branches) in branches {
            let record = graph.node(node);
            let n_taken: usize = branches.iter().map(|branch| branch.n_taken).sum();
            let has_product = branches.iter().any(|branch| branch.of_product.contains(&true));
            if record.operands.len() != 1 + n_taken || !(has_product || self.leads_to_product[node as usize]) {
                continue;
            }
            let is_array = |value: ValueId| graph.value(value).is_f32_array();
            let taken: Vec<bool> = (record.operands.iter())
                .map(|&value| is_array(value) && (self.is_stored_narrow(value, out) || self.is_of_product(value)))
                .collect();
            let mut first = 1;
            let takes_narrow = |branch: &Branch| {
                let of_branch = &taken[first..first + branch.n_taken];
                first += branch.n_taken;
                of_branch.contains(&true)
            };
            let take_narrow: Vec<bool> = branches.iter().map(takes_narrow).collect();
            let results_narrow: Vec<bool> = (record.results().enumerate())
                .map(|(leaf, value)| {
                    let is_narrow = |(branch, &takes_narrow): (&Branch, &bool)| {
                        branch.of_product[leaf] || takes_narrow && branch.of_taken[leaf]
                    };
                    let is_between = branches.iter().zip(&take_narrow).any(is_narrow);
                    is_array(value) && is_between && self.leads_to_product[node as usize] && !self.is_kept(value)
                })
                .collect();
            for (value, _) in record.results().zip(&results_narrow).filter(|(_, is_narrow)| **is_narrow) {
                out.value_low[value as usize] = true;
            }
            if taken.contains(&true) || results_narrow.contains(&true) {
                out.crossings.insert(node, Crossing { taken, given: results_narrow });
            }
        }
    }

    /// Whether a value is computed from a product, and no loss, result or choice is computed from it.
    fn is_of_product(&self, value: ValueId) -> bool {
        let maker = self.graph.producer(value);
        let is_product = self.graph.node(maker).is_product();
        let is_score = self.needs.of_node[maker as usize].is_some();
        let keeps = self.ends.leads_to_loss[maker as usize] || self.ends.leads_to_result[maker as usize] || is_score;
        (is_product || self.below[maker as usize].is_some()) && !keeps
    }

    /// Whether a loop reads weights of its layers here: slices of a parameter that the program updates, too, or whose
    /// gradient it returns. Data that the steps of an optimizer read are not weights.
    fn is_layers(&self, before: ValueId, its_use: Use) -> bool {
        let graph = self.graph;
        let is_update = |&result: &ValueId| {
            let is_as_large = graph.value(result).n_elements == graph.value(before).n_elements;
            graph.value(result).is_f32() && is_as_large && !graph.is_parameter(result)
        };
        its_use == Use::Read { is_layers: true }
            && graph.is_parameter(moved_from(graph, before))
            && graph.results.iter().any(is_update)
    }

    fn is_stored_narrow(&self, value: ValueId, out: &Assignment) -> bool {
        out.value_low[self.moved_from(value) as usize]
    }

    /// The value whose elements, all of them, ops of class clear only moved to compute this one: as where an array
    /// that a loop filled is transposed for the next loop.
    fn moved_from(&self, value: ValueId) -> ValueId {
        let n_elements = self.graph.value(value).n_elements;
        self.graph.origin(value, |maker, operand| {
            maker.is_clear() && maker.operands.len() == 1 && self.graph.value(operand).n_elements == n_elements
        })
    }

    /// Whether a loss or a result of the region is computed from a value (step 1 of `assign`), or it is needed in f32.
    fn is_kept(&self, value: ValueId) -> bool {
        let leads = |&user: &NodeId| {
            let reader = self.graph.node(user);
            let to_loss = self.ends.leads_to_loss[user as usize] && !reader.is_product();
            to_loss || self.ends.leads_to_result[user as usize] && reader.is_soft()
        };
        let is_needed = self.needs.given[value as usize];
        is_needed || self.ends.is_result[value as usize] || self.graph.users[value as usize].iter().any(leads)
    }
}
