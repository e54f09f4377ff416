//! Which arrays cross the border of a region's loops and branches in the narrow dtype: those that are materialised
//! there between products.
//!
//! `loops` says what each loop or branch does with its operands and results; the region around it says
//! where the operands come from, and where the results go.

use super::*;

impl Assigner<'_> {
    /// Decides which values cross the borders of the region's loops and branches in the narrow dtype.
    pub(super) fn narrow_crossings(&mut self, branches: &BTreeMap<NodeId, Vec<Branch>>) {
        let leads_to_product = self.graph.leads_to_product();
        for (&node, its_loop) in self.loops {
            if its_loop.has_product || leads_to_product[node as usize] {
                let state = self.narrow_state(node, its_loop);
                self.cross(node, Crossing { taken: state.clone(), given: state });
            }
        }
        for (&node, branches) in branches {
            let has_product = branches.iter().any(|branch| branch.of_product.contains(&true));
            if has_product || leads_to_product[node as usize] {
                let crossing = self.narrow_branches(node, branches, leads_to_product[node as usize]);
                self.cross(node, crossing);
            }
        }
    }

    fn cross(&mut self, node: NodeId, crossing: Crossing) {
        for (value, &is_narrow) in self.graph.node(node).results().zip(&crossing.given) {
            self.out.value_low[value as usize] |= is_narrow;
        }
        if crossing.taken.contains(&true) || crossing.given.contains(&true) {
            self.out.crossings.insert(node, crossing);
        }
    }

    /// For each array of a loop's state whether it is narrow.
    fn narrow_state(&self, node: NodeId, its_loop: &Loop) -> Vec<bool> {
        let (graph, record) = (self.graph, self.graph.node(node));
        if record.operands.len() != its_loop.uses.len() || its_loop.is_of_logarithms {
            return Vec::new();
        }
        let borders = record.operands.iter().copied().zip(record.results());
        let leaves: Vec<_> = borders.zip(its_loop.uses.iter().copied()).collect();
        let reads_narrow = |before: ValueId, after: ValueId| {
            let is_free = graph.users[after as usize].is_empty() && !self.ends.is_result[after as usize];
            let is_loop = self.loops.contains_key(&graph.producer(before));
            let is_narrow = self.is_stored_narrow(before) || self.is_of_product(before) && !is_loop;
            is_free && is_narrow && !self.needs.given[before as usize]
        };
        let reads_any_narrow = leaves
            .iter()
            .any(|&((before, after), its_use)| matches!(its_use, Use::Read { .. }) && reads_narrow(before, after));
        let is_over_layers = leaves.iter().any(|&((before, _), its_use)| self.is_layers(before, its_use));
        let is_narrow = |((before, after), its_use)| match its_use {
            Use::Read { .. } => reads_narrow(before, after),
            Use::Filled { is_of_product, is_of_read } => {
                let has_readers = !graph.users[after as usize].is_empty() || self.out.is_narrow_result(graph, after);
                let is_between = is_of_product || is_of_read && reads_any_narrow;
                is_between && has_readers && graph.value(before).is_exact && !self.is_kept(after)
            }
            Use::Carried { is_between } => {
                is_between
                    && (is_over_layers || self.policy.carried == Boundary::Lower)
                    && graph.value(before).is_f32_array()
                    && !graph.is_parameter(self.moved_whole_from(before))
                    && !self.is_kept(after)
            }
        };
        leaves.into_iter().map(is_narrow).collect()
    }

    /// Which operands and results of a `conditional` are narrow.
    fn narrow_branches(&self, node: NodeId, branches: &[Branch], leads_to_product: bool) -> Crossing {
        let (graph, record) = (self.graph, self.graph.node(node));
        let n_taken: usize = branches.iter().map(|branch| branch.n_taken).sum();
        if record.operands.len() != 1 + n_taken {
            return Crossing::default();
        }
        let is_array = |value: ValueId| graph.value(value).is_f32_array();
        let is_taken =
            |&value: &ValueId| is_array(value) && (self.is_stored_narrow(value) || self.is_of_product(value));
        let taken: Vec<bool> = record.operands.iter().map(is_taken).collect();
        // The first operand selects the branch.
        let mut of_branches = &taken[1..];
        let mut is_between = vec![false; record.n_results as usize];
        for branch in branches {
            let (of_branch, others) = of_branches.split_at(branch.n_taken);
            of_branches = others;
            let takes_narrow = of_branch.contains(&true);
            for (leaf, is_between) in is_between.iter_mut().enumerate() {
                *is_between |= branch.of_product[leaf] || takes_narrow && branch.of_taken[leaf];
            }
        }
        let is_given = |(value, is_between)| is_array(value) && is_between && leads_to_product && !self.is_kept(value);
        Crossing { taken, given: record.results().zip(is_between).map(is_given).collect() }
    }

    /// Whether a value is computed from a product, and no loss, result or choice is computed from it.
    fn is_of_product(&self, value: ValueId) -> bool {
        let maker = self.graph.producer(value);
        let idx = maker as usize;
        let is_score = self.needs.of_node[idx].is_some();
        let keeps = self.ends.leads_to_loss[idx] || self.ends.leads_to_result[idx] || is_score;
        (self.graph.node(maker).is_product() || self.below[idx].is_some()) && !keeps
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

    fn is_stored_narrow(&self, value: ValueId) -> bool {
        self.out.value_low[self.moved_whole_from(value) as usize]
    }

    /// The value whose elements, all of them, ops of class clear only moved to compute this one: as where an array
    /// that a loop filled is transposed for the next loop.
    fn moved_whole_from(&self, value: ValueId) -> ValueId {
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
