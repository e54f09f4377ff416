//! Which values a compiler fuses and never materialises, so that rounding them would cost accuracy and save no memory.
//!
//! Back ends compute elementwise ops in f32 registers and materialise a value that several fusions read. A model
//! written for bf16 therefore casts at the end of a norm, not after each of its ops, and sums products in f32. A
//! module written in f32 does not show these places; they are inferred from its form, by two notions:
//! - a *stream* is an array that has to be materialised: the result of a product, a parameter, or of an op on streams.
//!   The result of a reduction, a broadcast, and values computed from those alone are not streams.
//! - a *statistic* is not a stream, and is computed from a denied op, such as a mean over a row.
//!
//! The rules are those of section 5 of docs/HOW_PRECISION_IS_DECIDED.md: 1 to 4 of its list; chains of adds, here rule 5;
//! and ends. Besides:
//! - Rule 3 does not hold behind a reshape that changes how many elements lie along lanes, as that is a copy, which is
//!   materialised.
//! - By rule 4 only the streams are materialised, and each consumer recomputes the exponent. A rounding error of an
//!   exponent makes an error of the exponential proportional to the exponent's size, which is that of the largest term: a
//!   mask's or a bias's.
//! - Rule 5 does not hold where an add reads what was looked up, which is materialised for it.

use super::super::data_movement::{changes_lanes, moved_from};
use super::super::terms::{adds, scales};
use super::*;
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::ops::decisions::is_map;
use std::collections::BTreeSet;

/// The facts about the results of a node.
#[derive(Clone, Copy, Default)]
struct Facts {
    /// They have to be materialised.
    is_stream: bool,
    /// They are f32, and computed from a denied op.
    is_denied: bool,
    /// They are the result of a reduction, or computed from one with as many elements.
    is_reduced: bool,
    /// They have one consumer, and so has the value that they were moved from.
    has_one_reader: bool,
}

/// Finds the lowered nodes that have to compute in f32, and whether their result is rounded.
pub(super) fn fused(assigner: &Assigner<'_>) -> Vec<(NodeId, Decision)> {
    let graph = assigner.graph;
    let n = graph.nodes.len();
    let (facts, from) = (vec![Facts::default(); n], vec![None; n]);
    let mut finder = Finder { graph, assigner, facts, from, reads_stored: vec![false; n], is_end: vec![false; n] };
    for node in graph.node_ids() {
        finder.go_on(node);
    }
    let feeds_product = finder.feeds_product();
    if !assigner.classes.is_partitioned {
        finder.add_up();
    }
    for node in graph.node_ids().rev() {
        finder.look_back(node, &feeds_product);
    }
    finder.find_ends();
    let decision = |node: NodeId| {
        let from = Some(finder.from[node as usize]?);
        let is_end = finder.is_end[node as usize];
        Some((node, if is_end { Decision::rounded(Rule::RoundedOnce, from) } else { Decision::f32(Rule::Fused, from) }))
    };
    graph.node_ids().filter_map(decision).collect()
}

struct Finder<'g> {
    graph: &'g Dataflow<'g>,
    assigner: &'g Assigner<'g>,
    facts: Vec<Facts>,
    /// For each node that stays in f32 the node that this comes from.
    from: Vec<Option<NodeId>>,
    /// For each node that stays in f32 whether it reads what is stored in the narrow dtype.
    reads_stored: Vec<bool>,
    /// For each node whether it stays in f32 and its result, an end of the fusion, is materialised.
    is_end: Vec<bool>,
}

impl Finder<'_> {
    fn is_low(&self, node: NodeId) -> bool {
        self.assigner.out.low[node as usize]
    }

    /// Whether this op was lowered, and may compute in f32 after all.
    fn is_open(&self, node: NodeId) -> bool {
        let is_infer = self.graph.node(node).class() == Some(Class::Infer);
        is_infer && self.is_low(node) && self.from[node as usize].is_none()
    }

    fn facts(&self, value: ValueId) -> Facts {
        self.facts[self.graph.producer(value) as usize]
    }

    /// Rules 1 and 2, and the facts about a node's results.
    fn go_on(&mut self, node: NodeId) {
        let (graph, record) = (self.graph, self.graph.node(node));
        let is_float = |value: &ValueId| graph.value(*value).is_f32();
        let floats = || record.operands.iter().copied().filter(is_float);
        let operands: Vec<Facts> = floats().map(|value| self.facts(value)).collect();
        let any = |property: fn(&Facts) -> bool| operands.iter().any(property);
        let (reads_stream, reads_denied) = (any(|v| v.is_stream), any(|v| v.is_denied));
        let reads_reduced = any(|v| v.is_reduced);
        let streams = || operands.iter().filter(|v| v.is_stream);
        // Scaled or shifted along rows or columns, as a norm is by what is learned.
        let is_scaled = is_linear(graph.op(node)) && any(|v| !v.is_stream);
        let goes_on = reads_stream && streams().all(|v| v.is_denied && (v.has_one_reader || is_scaled));
        if self.is_open(node) && (any(|v| v.is_denied && !v.is_stream) || goes_on) {
            let denied = record.operands.iter().find(|&&value| self.facts(value).is_denied);
            self.from[node as usize] = Some(denied.map_or(node, |&value| graph.producer(value)));
        }
        let n_elements = |value: ValueId| graph.value(value).n_elements;
        let before = floats().map(n_elements).max().unwrap_or(0);
        let after = record.results().filter(is_float).map(n_elements).max().unwrap_or(0);
        let is_low = self.is_low(node) && self.from[node as usize].is_none();
        let mut are_read_here = true;
        let (is_stream, is_denied, is_reduced) = match &record.kind {
            NodeKind::Op(Class::Allow) | NodeKind::Parameter | NodeKind::Fixed(_) => (true, false, false),
            // A sum or data movement that is lowered between products: its result is materialised.
            NodeKind::Op(Class::Deny { .. } | Class::Clear) if is_low => (true, false, false),
            // A sum over windows or of scattered rows is not recomputed by its consumers, as each of its elements reads many.
            NodeKind::Op(Class::Deny { .. }) => {
                let is_stored = matches!(graph.op(node), Op::ReduceWindow { .. } | Op::Scatter { .. });
                (reads_stream, true, !is_stored && (after < before || reads_reduced))
            }
            NodeKind::Op(Class::Infer) => (reads_stream, reads_denied && !is_low, reads_reduced && !is_low),
            NodeKind::Op(Class::Clear) => {
                are_read_here = streams().all(|v| v.has_one_reader);
                let repeats = matches!(graph.op(node), Op::Broadcast { .. }) && after > before;
                (reads_stream && !repeats, reads_denied, reads_reduced && after <= before)
            }
            _ => (reads_stream, false, false),
        };
        let has_one_reader = are_read_here && graph.only_reader(node).is_some();
        self.facts[node as usize] =
            Facts { is_stream: is_stream && !is_reduced, is_denied, is_reduced, has_one_reader };
    }

    /// For each value whether a product reads it, directly or through ops that move it or are lowered for the product.
    fn feeds_product(&self) -> Vec<bool> {
        let mut feeds = vec![false; self.graph.values.len()];
        for node in self.graph.node_ids().rev() {
            let record = self.graph.node(node);
            let goes_on = record.is_clear() || self.is_open(node);
            if record.is_product() || goes_on && record.gives(&feeds) {
                record.operands.iter().for_each(|&value| feeds[value as usize] = true);
            }
        }
        feeds
    }

    /// Rule 5. A chain of sums reads what is stored.
    fn add_up(&mut self) {
        let graph = self.graph;
        let is_sum = |node: NodeId| {
            let reads_moved = || graph.makers(node).any(|maker| self.assigner.is_moved(maker));
            let is_free = || self.is_shift(node) && self.in_exponents(node).is_some();
            self.is_open(node) && adds(graph.op(node)) && !reads_moved() && !is_free()
        };
        let reader = |node: NodeId| graph.only_reader(node).filter(|&reader| is_sum(node) && is_sum(reader));
        let links: Vec<(NodeId, NodeId)> = graph.node_ids().filter_map(|node| Some((node, reader(node)?))).collect();
        for (node, reader) in links {
            for (node, is_last) in [(node, false), (reader, true)] {
                self.from[node as usize] = Some(reader);
                self.reads_stored[node as usize] = true;
                self.is_end[node as usize] = is_last;
            }
        }
    }

    /// Rules 3 and 4.
    fn look_back(&mut self, node: NodeId, feeds_product: &[bool]) {
        if !self.is_open(node) {
            return;
        }
        let reads_stored = self.graph.node(node).operands.iter().any(|&value| {
            let facts = self.facts(value);
            facts.is_stream && facts.is_denied && feeds_product[moved_from(self.graph, value) as usize]
        });
        if let Some(pad) = self.padded_to_be_added(node) {
            (self.from[node as usize], self.is_end[node as usize]) = (Some(pad), true);
            return;
        }
        let reader = self.graph.only_reader(node).and_then(|reader| self.past_moves(reader));
        let reader = reader.filter(|&reader| self.computes_wide(reader));
        self.from[node as usize] = reader.or_else(|| self.in_exponents(node).filter(|_| !reads_stored));
        self.reads_stored[node as usize] = reads_stored && self.from[node as usize].is_some();
    }

    /// Finds the ends of fusions that are no sums: what several ops read, one of them in the narrow dtype, and none of
    /// them goes on with.
    fn find_ends(&mut self) {
        let n_values = self.graph.values.len();
        // For each value how its consumers read it, directly or moved.
        let (mut is_read_narrow, mut is_gone_on_with) = (vec![false; n_values], vec![false; n_values]);
        for node in self.graph.node_ids().rev() {
            let (idx, record) = (node as usize, self.graph.node(node));
            let is_kept = self.from[idx].is_some();
            let mut reads_narrow = record.gives(&is_read_narrow);
            let mut goes_on = record.gives(&is_gone_on_with);
            self.is_end[idx] |= is_kept
                && record.n_results == 1
                && self.facts[idx].is_stream
                && self.graph.only_reader(node).is_none()
                && reads_narrow
                && !goes_on;
            if matches!(self.graph.op(node), Op::Compare { .. }) {
                // The readers of a mask do not read the values that are compared.
                (reads_narrow, goes_on) = (false, false);
            } else if !self.moves_wide(node) {
                let reads_f32 = is_kept && !self.reads_stored[idx];
                reads_narrow = record.kind == NodeKind::ToLow || self.is_low(node) && !reads_f32;
                goes_on = reads_f32;
            }
            for &value in &record.operands {
                let is_stored = || {
                    self.assigner.out.is_narrow_state(self.graph, node, value) || self.assigner.adds_rows(node, value)
                };
                is_read_narrow[value as usize] |= reads_narrow || is_stored();
                is_gone_on_with[value as usize] |= goes_on;
            }
        }
    }

    /// Whether a node adds one constant number to all that it reads.
    fn is_shift(&self, node: NodeId) -> bool {
        let adds_number =
            |&value: &ValueId| self.graph.constant(value).is_some_and(|number| number.shape().dims().is_empty());
        adds(self.graph.op(node)) && self.graph.node(node).operands.iter().any(adds_number)
    }

    /// Rule 4: an exponential that is computed from the node's result, or any consumer if the node adds a number, if all
    /// its consumers compute in f32.
    fn in_exponents(&self, node: NodeId) -> Option<NodeId> {
        if !is_linear(self.graph.op(node)) {
            return None;
        }
        let is_shift = self.is_shift(node);
        let (mut exponential, mut open) = (None, vec![node]);
        while let Some(next) = open.pop() {
            // A comparison is fused, too, and gives truth values.
            let is_comparison = |reader: NodeId| matches!(self.graph.op(reader), Op::Compare { .. });
            for reader in self.graph.readers(next).filter(|&reader| !is_comparison(reader)) {
                if self.moves_wide(reader) {
                    open.push(reader);
                } else if !self.computes_wide(reader) {
                    return None;
                } else {
                    let behind = || Some(reader).filter(|_| is_shift).or_else(|| self.exponential_behind(reader));
                    exponential = exponential.or_else(behind);
                }
            }
        }
        exponential
    }

    /// The first exponential among the elementwise ops that continue a node's result.
    fn exponential_behind(&self, node: NodeId) -> Option<NodeId> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![node]);
        while let Some(next) = open.pop() {
            let op = self.graph.op(next);
            if matches!(op, Op::Unary(UnaryOp::Exp)) {
                return Some(next);
            }
            if is_map(op) && self.computes_wide(next) && seen.insert(next) {
                open.extend(self.graph.readers(next));
            }
        }
        None
    }

    /// Whether a node moves f32 values and is not an end of a fusion.
    fn moves_wide(&self, node: NodeId) -> bool {
        self.graph.node(node).is_clear() && !self.is_low(node)
    }

    /// The first op from `node` on that does more than move data, if each op before it has one consumer and is not
    /// materialised.
    fn past_moves(&self, mut node: NodeId) -> Option<NodeId> {
        while self.moves_wide(node) {
            if changes_lanes(self.graph, node) {
                return None;
            }
            node = self.graph.only_reader(node)?;
        }
        Some(node)
    }

    /// The `pad` by which a node's result is moved, if that has no other reader and what is moved is added: a compiler
    /// materialises it. So the gradients of shifted slices are added.
    fn padded_to_be_added(&self, node: NodeId) -> Option<NodeId> {
        let mut pad = None;
        let mut reader = self.graph.only_reader(node)?;
        while self.moves_wide(reader) {
            pad = pad.or_else(|| matches!(self.graph.op(reader), Op::Pad(_)).then_some(reader));
            reader = self.graph.only_reader(reader)?;
        }
        pad.filter(|_| adds(self.graph.op(reader)))
    }

    /// Whether an op reads f32 in any case, without having it materialised. A product that computes the scores of a
    /// choice does.
    fn computes_wide(&self, node: NodeId) -> bool {
        let op = self.graph.op(node);
        let class = self.graph.node(node).class();
        let fuses =
            is_map(op) || matches!(op, Op::Reduce { .. } | Op::ReduceWindow { .. }) || class == Some(Class::Allow);
        let is_wide = match class {
            Some(Class::Deny { .. }) => true,
            Some(Class::Allow) => !self.is_low(node),
            Some(Class::Infer) => !self.is_open(node),
            _ => false,
        };
        fuses && is_wide
    }
}

/// Whether an op scales or adds.
fn is_linear(op: &Op) -> bool {
    scales(op) || adds(op)
}

#[cfg(test)]
mod tests {
    use crate::amp::{self, Policy};
    use bf16scope_hlo::{DType, text};

    #[test]
    fn a_number_is_added_where_statistics_read_the_sum() {
        let dtype = |number: &str| {
            let source = format!(
                "HloModule m\n\nsum {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
                 ROOT c = f32[] add(a, b)\n}}\n\nENTRY main {{\n  x = f32[32,64] parameter(0)\n  \
                 w = f32[64,16] parameter(1)\n  b = f32[16] parameter(2)\n  v = f32[16,8] parameter(3)\n  \
                 y = f32[32,16] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
                 bs = f32[32,16] broadcast(b), dimensions={{1}}\n  h = f32[32,16] add(y, bs)\n{number}  \
                 s = f32[32,16] add(h, ns)\n  zero = f32[] constant(0)\n  \
                 total = f32[16] reduce(s, zero), dimensions={{0}}, to_apply=sum\n  \
                 n = f32[] constant(0.03125)\n  nb = f32[16] broadcast(n), dimensions={{}}\n  \
                 mean = f32[16] multiply(total, nb)\n  means = f32[32,16] broadcast(mean), dimensions={{1}}\n  \
                 d = f32[32,16] subtract(s, means)\n  \
                 ROOT z = f32[32,8] dot(d, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n}}\n"
            );
            let (lowered, _) = amp::run(&text::parse(&source, "m").unwrap(), &Policy::default()).unwrap();
            let named = |name: &str| lowered.entry().instructions.iter().find(|instr| instr.name == name);
            ["h", "s.bf16", "s"].map(|name| named(name).and_then(|instr| instr.shape.dtype()))
        };
        let ten = "  ten = f32[] constant(10)\n  ns = f32[32,16] broadcast(ten), dimensions={}\n";
        assert_eq!(dtype(ten), [Some(DType::F32), None, Some(DType::F32)]);
        let of_columns = "  more = f32[16] parameter(4)\n  ns = f32[32,16] broadcast(more), dimensions={1}\n";
        assert_eq!(dtype(of_columns), [Some(DType::F32), Some(DType::BF16), Some(DType::F32)]);
    }
}
