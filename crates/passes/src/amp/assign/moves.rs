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
        let graph = self.graph;
        let record = graph.node(node);
        let floats = || record.results().filter(|&value| graph.value(value).is_f32());
        let users = || floats().flat_map(|value| graph.users[value as usize].iter().map(move |&user| (value, user)));
        let is_done = floats().next().is_none() || floats().all(|value| self.out.value_low[value as usize]);
        if is_done {
            return false;
        }
        let is_result = || floats().any(|value| self.ends.is_result[value as usize]);
        let takes_narrow = |(value, user): (ValueId, NodeId)| self.takes_narrow(value, user);
        let bears =
            |(value, user): (ValueId, NodeId)| takes_narrow((value, user)) || self.compares_with_zero(user, node);
        let is_given_narrow = || floats().any(|value| self.out.is_narrow_result(graph, value));
        let any_narrow = || (users().any(takes_narrow) || is_given_narrow()) && !is_result();
        let all_narrow = || any_narrow() && users().all(bears);
        match &record.kind {
            // A narrow result of a product, or the source of a conversion, is available to every consumer. An f32 sum
            // that the program or a need asked for is not.
            NodeKind::Op(Class::Allow) if self.out.low[node as usize] => {
                let is_read = if self.keeps_sum[node as usize] { all_narrow() } else { users().any(takes_narrow) };
                if !is_read {
                    return false;
                }
            }
            NodeKind::FromLow if users().any(takes_narrow) => {}
            NodeKind::FromExact | NodeKind::Constant if all_narrow() => {}
            NodeKind::Op(Class::Clear) if self.out.rule[node as usize] == Rule::Fused => return false,
            NodeKind::Op(Class::Clear) if self.is_needed(node) || is_guard(graph, node) => return false,
            NodeKind::Op(Class::Clear) if self.holds_parameter(node) => {
                self.out.rule[node as usize] = Rule::Held;
                return false;
            }
            NodeKind::Op(Class::Clear) => {
                let (all_narrow, makes_cast_larger) = (all_narrow(), self.makes_cast_larger(node));
                let is_moved = self.is_moved(node) && any_narrow();
                if !(is_moved || all_narrow) || makes_cast_larger && all_narrow {
                    return false;
                }
                // An op that takes a small part of its operand rounds only that part.
                self.out.low[node as usize] = !makes_cast_larger;
                self.out.rule[node as usize] = if all_narrow { Rule::ReadNarrow } else { Rule::Moved };
                self.out.from[node as usize] = users().next().map(|(_, user)| user);
            }
            _ => return false,
        }
        self.lower_results(node);
        true
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
        let idx = node as usize;
        self.policy.moved == Boundary::Lower
            && !self.ends.leads_to_loss[idx]
            && !self.ends.leads_to_result[idx]
            && self.needs.of_node[idx].is_none()
            && !self.needs.is_input[self.graph.node(node).first_result as usize]
            && self.moved[idx]
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
