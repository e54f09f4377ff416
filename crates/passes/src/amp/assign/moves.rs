//! Ops of class clear commute with rounding, so they are lowered exactly where that adds no error. If all consumers
//! read the narrow dtype, the cast moves above the op, unless that makes the cast larger; if the operands are narrow
//! already, the cast back moves below it, unless that makes the cast larger; where a `pad` does, the padded array is
//! still half as large. An op whose result a compiler materialises is lowered if any consumer reads the narrow dtype. A
//! barrier on a parameter is left as it is.

use super::*;
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::movement;
use bf16scope_hlo::ops::precision::Movement;

impl Assigner<'_> {
    /// Lowers data movement until nothing changes. Every change lowers a node, so the loop ends.
    pub(super) fn lower_clear(&mut self) {
        loop {
            let mut changed = false;
            for node in self.graph.node_ids().rev() {
                changed |= self.lower_where_read_narrow(node);
            }
            for node in self.graph.node_ids() {
                changed |= self.lower_where_of_narrow(node);
            }
            if !changed {
                return;
            }
        }
    }

    /// Whether `user` reads the value in the narrow dtype.
    fn takes_narrow(&self, value: ValueId, user: NodeId) -> bool {
        let kind = &self.graph.node(user).kind;
        self.out.low[user as usize] || *kind == NodeKind::ToLow || self.out.is_narrow_state(self.graph, user, value)
    }

    pub(super) fn lower_where_read_narrow(&mut self, node: NodeId) -> bool {
        let (idx, graph) = (node as usize, self.graph);
        let record = graph.node(node);
        let floats = || record.results().filter(|&value| graph.value(value).is_f32());
        let users = || floats().flat_map(|value| graph.users[value as usize].iter().map(move |&user| (value, user)));
        if floats().all(|value| self.out.value_low[value as usize]) {
            return false;
        }
        let takes_narrow = |(value, user): (ValueId, NodeId)| self.takes_narrow(value, user);
        let is_read_narrow = || users().any(takes_narrow);
        let is_given_narrow = || floats().any(|value| self.out.is_narrow_result(graph, value));
        let is_result = || floats().any(|value| self.ends.is_result[value as usize]);
        let any_narrow = || (is_read_narrow() || is_given_narrow()) && !is_result();
        let bears = |(value, user)| takes_narrow((value, user)) || self.compares_with_zero(user, node);
        let all_narrow = || any_narrow() && users().all(bears);
        let is_lowered = match &record.kind {
            // A narrow result of a product, or the source of a conversion, is available to every consumer. An f32 sum
            // that the program or a need asked for is not.
            NodeKind::Op(Class::Allow) if self.keeps_sum[idx] => self.out.low[idx] && all_narrow(),
            NodeKind::Op(Class::Allow) => self.out.low[idx] && is_read_narrow(),
            NodeKind::FromLow => is_read_narrow(),
            NodeKind::FromExact | NodeKind::Constant => all_narrow(),
            NodeKind::Op(Class::Clear) => {
                let (is_read_narrow, all_narrow) = (any_narrow(), all_narrow());
                let from = users().next().map(|(_, user)| user);
                self.lower_move(node, is_read_narrow, all_narrow, from)
            }
            _ => false,
        };
        if is_lowered {
            self.lower_results(node);
        }
        is_lowered
    }

    /// Lowers an op of class clear that some or all of its consumers read narrow, unless that makes a cast larger;
    /// returns whether it does.
    fn lower_move(&mut self, node: NodeId, is_read_narrow: bool, all_narrow: bool, from: Option<NodeId>) -> bool {
        let idx = node as usize;
        if self.out.rule[idx] == Rule::Fused || self.is_needed(node) || is_guard(self.graph, node) {
            return false;
        }
        if self.holds_parameter(node) {
            self.out.rule[idx] = Rule::Held;
            return false;
        }
        let makes_cast_larger = self.makes_cast_larger(node);
        let is_lowered = if all_narrow { !makes_cast_larger } else { is_read_narrow && self.is_moved(node) };
        if is_lowered {
            debug_assert!(!self.is_final[idx], "{node} is decided a third time");
            // An op that takes a small part of its operand rounds only that part.
            self.out.low[idx] = !makes_cast_larger;
            self.out.rule[idx] = if all_narrow { Rule::ReadNarrow } else { Rule::Moved };
            self.out.from[idx] = from;
        }
        is_lowered
    }

    /// Whether a need other than a discrete choice keeps the node's data in f32.
    pub(super) fn is_needed(&self, node: NodeId) -> bool {
        self.needs.of_node[node as usize].is_some_and(|(need, _)| need != Need::Choice)
    }

    /// Whether a node is a barrier on a parameter, as before a rematerialised layer of a backward pass. The parameter
    /// is stored as it is; a cast before the barrier would be stored beside it.
    fn holds_parameter(&self, node: NodeId) -> bool {
        let record = self.graph.node(node);
        let is_parameter = |&value: &ValueId| self.graph.is_parameter(value) && !self.out.value_low[value as usize];
        *self.graph.op(node) == Op::OptimizationBarrier && record.operands.iter().all(is_parameter)
    }

    fn lower_where_of_narrow(&mut self, node: NodeId) -> bool {
        let graph = self.graph;
        let record = graph.node(node);
        let is_open = record.is_clear() && self.out.rule[node as usize] != Rule::Fused;
        if self.out.low[node as usize] || !is_open {
            return false;
        }
        let is_float = |v: &ValueId| graph.value(*v).is_f32();
        let is_low = |v: &ValueId| self.out.value_low[*v as usize];
        let mut floats = record.operands.iter().filter(|v| is_float(v));
        let all_free = floats.clone().all(|v| is_low(v) || graph.value(*v).is_exact);
        // A slice of what is padded is often all that is read of it, as in a causal convolution by shifts.
        let pads = matches!(graph.op(node), Op::Pad(_));
        let grows = !pads && self.elements(record.results()) > self.elements(record.operands.iter().copied());
        let Some(&narrow) = floats.find(|v| is_low(v)).filter(|_| all_free && !grows) else { return false };
        let read_narrow =
            |value: ValueId| graph.users[value as usize].iter().any(|&user| self.takes_narrow(value, user));
        if merges_padded_windows(graph, node) && !record.results().any(read_narrow) {
            return false;
        }
        debug_assert!(!self.is_final[node as usize], "{node} is decided a third time");
        self.out.from[node as usize] = Some(graph.producer(narrow));
        self.store_narrow(node, true, Rule::OfNarrow);
        true
    }

    /// Whether `user` only compares the result of `node` with zero. Rounding to bf16 keeps the sign of every normal
    /// f32; f16 flushes magnitudes below 2^-25 to zero, here as everywhere.
    fn compares_with_zero(&self, user: NodeId, node: NodeId) -> bool {
        let record = self.graph.node(user);
        let is_zero = |v: &ValueId| self.graph.producer(*v) == node || self.graph.value(*v).is_zero;
        matches!(self.graph.op(user), Op::Compare { .. }) && record.is_clear() && record.operands.iter().all(is_zero)
    }

    /// Whether a node moves data and a TPU's compiler materialises its result, unless a loss, a result or a choice is
    /// computed from that, or it moves what the program was given: of that, a reader in f32 sees all digits.
    pub(super) fn is_moved(&self, node: NodeId) -> bool {
        let (idx, value) = (node as usize, self.graph.node(node).first_result as usize);
        self.policy.moved == Boundary::Lower
            && !self.ends.leads_to_loss[idx]
            && !self.ends.leads_to_result[idx]
            && self.needs.of_node[idx].is_none()
            && !self.needs.is_input[value]
            && self.moved[value]
    }

    /// Whether casting a node's operands is more work than casting its result: for ops that take a part.
    fn makes_cast_larger(&self, node: NodeId) -> bool {
        let record = self.graph.node(node);
        let to_cast = record.operands.iter().copied().filter(|&value| !self.out.value_low[value as usize]);
        let takes_a_part = movement(self.graph.op(node)) == Movement::TakesPart;
        takes_a_part && self.elements(to_cast) > self.elements(record.results())
    }

    /// The number of elements of all f32 arrays among these.
    fn elements(&self, values: impl Iterator<Item = ValueId>) -> i64 {
        let floats = values.filter(|&v| self.graph.value(v).is_f32());
        floats.map(|v| self.graph.value(v).n_elements).fold(0, i64::saturating_add)
    }
}
