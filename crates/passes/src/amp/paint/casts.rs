//! What a painter asks of casts: whether one would be larger than what it saves, and what a node moves.

use super::*;

impl Painter<'_> {
    /// Whether a reader of what `node` makes only compares it with zero. Rounding to bf16 keeps the sign of every normal f32;
    /// f16 makes zero of
    /// what is under 2^-25, here as everywhere.
    pub(super) fn compares_with_zero(&self, user: NodeId, node: NodeId) -> bool {
        let of = self.graph.node(user);
        let is_zero = |v: &ValueId| self.graph.producer(*v) == node || self.graph.value(*v).is_zero;
        let is_compare = matches!(self.graph.instr(of).op, Op::Compare { .. }) && of.kind == NodeKind::Op(Class::Clear);
        is_compare && of.operands.iter().all(is_zero)
    }

    /// Whether a node moves what it reads, and a TPU's compiler stores what it gives; but nothing that a loss, a result or a
    /// choice is made of.
    pub(super) fn is_moved(&self, node: NodeId) -> bool {
        let idx = node as usize;
        self.policy.moved == Boundary::Lower
            && !self.ends.leads_to_loss[idx]
            && !self.ends.leads_to_result[idx]
            && self.decides[idx].is_none()
            && self.moved[idx]
    }

    /// Whether casting what a node reads is more than casting what it gives: for ops that take a part.
    pub(super) fn makes_cast_larger(&self, node: NodeId) -> bool {
        let of = self.graph.node(node);
        let takes_a_part = matches!(self.graph.instr(of).op, Op::Slice(_) | Op::DynamicSlice { .. } | Op::Gather(_));
        takes_a_part && self.elements_to_cast(node) > self.elements(of.results())
    }

    /// Elements of what a node reads and is f32 now.
    pub(super) fn elements_to_cast(&self, node: NodeId) -> i64 {
        let is_wide = |v: &&ValueId| !self.out.value_low[**v as usize] && self.graph.value(**v).is_f32();
        let operands = self.graph.node(node).operands.iter().filter(is_wide);
        operands.map(|&v| self.graph.value(v).n_elements).fold(0, i64::saturating_add)
    }

    pub(super) fn elements(&self, values: impl Iterator<Item = ValueId>) -> i64 {
        let floats = values.filter(|&v| self.graph.value(v).is_f32());
        floats.map(|v| self.graph.value(v).n_elements).fold(0, i64::saturating_add)
    }
}
