//! Which values a compiler fuses and never materialises, so that rounding them would cost accuracy and save no memory.
//!
//! Back ends compute elementwise ops in f32 registers and materialise a value that several fusions read. A model
//! written for bf16 therefore casts at the end of a norm, not after each of its ops, and sums products in f32. A
//! module written in f32 does not show these places; they are inferred from its form, by two notions:
//! - a *stream* is an array that has to be materialised: the result of a product, a parameter, or of an op on streams.
//!   The result of a reduction, a broadcast, and values computed from those alone are not streams.
//! - a *statistic* is not a stream, and is computed from a denied op, such as a mean over a row.
//!
//! An op of class infer stays in f32 where
//! 1. it applies a statistic, as in `x - mean`; or
//! 2. it continues such a value, or that of a denied op: all streams that it reads are f32 and read by it alone, as in
//!    `(x - mean) · scale + bias`; or it scales or shifts one by a smaller array, whatever else reads it, as the gradient
//!    of that scale does; or
//! 3. its only consumer computes in f32: a sum, a denied function, an op of these rules. But not behind a reshape that
//!    changes how many elements lie along lanes, as that is a copy, which is materialised. If it reads an f32 value, or a
//!    part of one, that a product reads too, or an op that is lowered for one, it reads what is stored of that value, in the
//!    narrow dtype; or
//! 4. it scales or adds streams, all its consumers compute in f32, and one of them computes an exponential of it, as a
//!    softmax reads its scores, for their maximum too. Only the streams are materialised, and each consumer recomputes
//!    it. A rounding error of an exponent makes an error of the exponential proportional to the exponent's size, which is
//!    that of the largest term: a mask's or a bias's; or
//! 5. it adds, and all that reads it adds on, as gradients of a residual stream are summed. The last of such a chain is
//!    rounded once. Not where it reads what was looked up, which is materialised for it; nor in a program for several devices: a partitioner sums and gathers what is f32 in f32.
//!
//! So an f32 value ends where it meets another stream, as where a residual is added, and where two ops read it.
//!
//! A stream of rule 1 or 2 is materialised if it ends so, is read by several ops, one of them in the narrow dtype, and
//! is not continued; a comparison does not continue it. It is rounded once, by its producer, for all of them, as Flax
//! casts at the end of a norm.
//! Otherwise a compiler would store it in f32: it fuses a cast into each consumer, however many there are.

use super::assignment::Assignment;
use super::data_movement::{changes_lanes, moved_from};
use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::decision::Rule;
use super::terms::{adds, scales};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::ops::decisions::is_map;
use bf16scope_hlo::ops::precision::Class;
use std::collections::BTreeSet;

/// The facts about a value.
#[derive(Clone, Copy, Default)]
struct Facts {
    /// It has to be materialised.
    is_stream: bool,
    /// It is f32, and computed from a denied op.
    is_denied: bool,
    /// It is the result of a reduction, or computed from one with as many elements.
    is_reduced: bool,
    /// It has one consumer, and so has the value that it was moved from.
    has_one_reader: bool,
}

/// A node that `decide` lowered, and that has to compute in f32.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fused {
    /// The node.
    pub node: NodeId,
    /// The node that this comes from.
    pub from: Option<NodeId>,
    /// The rule to report: `Fused`, or `RoundedOnce` if its result is materialised all the same, and rounded for that.
    pub rule: Rule,
}

/// Finds the lowered nodes that have to compute in f32. `stores_row` says which values a node stores in the narrow
/// dtype to add them as rows, `is_moved` which nodes give moved data that is materialised.
pub(super) fn fused(
    graph: &Dataflow<'_>,
    assignment: &Assignment,
    is_partitioned: bool,
    is_moved: &dyn Fn(NodeId) -> bool,
    stores_row: &dyn Fn(NodeId, ValueId) -> bool,
) -> Vec<Fused> {
    let facts = vec![Facts::default(); graph.values.len()];
    let feeds_product = vec![false; graph.values.len()];
    let n = graph.nodes.len();
    let mut finder = Finder {
        graph,
        assignment,
        facts,
        from: vec![None; n],
        adds: vec![None; n],
        reads_stored: vec![false; n],
        feeds_product,
    };
    for node in graph.node_ids() {
        finder.go_on(node);
    }
    for node in graph.node_ids().rev() {
        finder.mark_fed(node);
    }
    if !is_partitioned {
        finder.add_up(is_moved);
    }
    for node in graph.node_ids().rev() {
        finder.look_back(node);
    }
    let ends = finder.ends(stores_row);
    let unstored = |(from, node): (&Option<NodeId>, NodeId)| {
        let from = (*from)?;
        let rule = if ends[node as usize] { Rule::RoundedOnce } else { Rule::Fused };
        Some(Fused { node, from: (from != node).then_some(from), rule })
    };
    finder.from.iter().zip(0..).filter_map(unstored).collect()
}

/// How the consumers of a value read it, directly or moved.
#[derive(Clone, Copy, Default)]
struct Readers {
    /// One of them reads the narrow dtype.
    is_read_narrow: bool,
    /// One of them stays in f32 by these rules.
    is_gone_on_with: bool,
}

impl Readers {
    fn or(self, other: Readers) -> Readers {
        Readers {
            is_read_narrow: self.is_read_narrow || other.is_read_narrow,
            is_gone_on_with: self.is_gone_on_with || other.is_gone_on_with,
        }
    }
}

/// The place of a node in a chain of sums.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sum {
    Inner,
    Last,
}

struct Finder<'g> {
    graph: &'g Dataflow<'g>,
    assignment: &'g Assignment,
    facts: Vec<Facts>,
    /// For each node that stays in f32 the node that this comes from.
    from: Vec<Option<NodeId>>,
    /// For each node of a chain of sums its place there.
    adds: Vec<Option<Sum>>,
    /// For each node that stays in f32 whether it reads what is stored in the narrow dtype.
    reads_stored: Vec<bool>,
    /// For each value whether a product reads it, directly or through ops that move it or are lowered for the product.
    feeds_product: Vec<bool>,
}

impl Finder<'_> {
    /// Whether this op was lowered, and may compute in f32 after all.
    fn is_open(&self, node: NodeId) -> bool {
        self.assignment.low[node as usize] && self.graph.node(node).class() == Some(Class::Infer)
    }

    fn floats(&self, values: impl Iterator<Item = ValueId>) -> impl Iterator<Item = ValueId> {
        values.filter(|&value| self.graph.value(value).is_f32())
    }

    /// Rules 1 and 2, and the facts about a node's result.
    fn go_on(&mut self, node: NodeId) {
        let record = self.graph.node(node);
        let operands: Vec<Facts> =
            self.floats(record.operands.iter().copied()).map(|v| self.facts[v as usize]).collect();
        let applies_statistic = operands.iter().any(|v| v.is_denied && !v.is_stream);
        let mut streams = operands.iter().filter(|v| v.is_stream).peekable();
        // Scaled or shifted along rows or columns, as a norm is by what is learned.
        let is_scaled = is_linear(&self.graph.instr(record).op) && operands.iter().any(|v| !v.is_stream);
        let goes_on = streams.peek().is_some() && streams.all(|v| v.is_denied && (v.has_one_reader || is_scaled));
        if self.is_open(node) && (applies_statistic || goes_on) {
            let mut denied = record.operands.iter().filter(|&&value| self.facts[value as usize].is_denied);
            self.from[node as usize] = Some(denied.next().map_or(node, |&value| self.graph.producer(value)));
        }
        let facts = self.facts_of(node, &operands);
        record.results().for_each(|value| self.facts[value as usize] = facts);
    }

    /// The facts about a node's result, from those about its operands.
    fn facts_of(&self, node: NodeId, operands: &[Facts]) -> Facts {
        let record = self.graph.node(node);
        let op = &self.graph.instr(record).op;
        let elements = |values: &mut dyn Iterator<Item = ValueId>| {
            self.floats(values).map(|value| self.graph.value(value).n_elements).max().unwrap_or(0)
        };
        let (before, after) = (elements(&mut record.operands.iter().copied()), elements(&mut record.results()));
        let any = |property: fn(&Facts) -> bool| operands.iter().any(property);
        let (reads_stream, reads_denied) = (any(|v| v.is_stream), any(|v| v.is_denied));
        let reads_reduced = any(|v| v.is_reduced);
        let is_low = self.assignment.low[node as usize] && self.from[node as usize].is_none();
        let has_one_reader = self.graph.only_reader(node).is_some();
        let facts = |is_stream: bool, is_denied: bool, is_reduced: bool| Facts {
            is_stream: is_stream && !is_reduced,
            is_denied,
            is_reduced,
            has_one_reader,
        };
        match &record.kind {
            NodeKind::Op(Class::Allow) | NodeKind::Parameter | NodeKind::Fixed(_) => facts(true, false, false),
            // A sum or data movement that is lowered between products: its result is materialised.
            NodeKind::Op(Class::Deny { .. } | Class::Clear) if is_low => facts(true, false, false),
            // A sum over windows or of scattered rows is not recomputed by its consumers, as each of its elements reads many.
            NodeKind::Op(Class::Deny { .. }) => {
                let is_stored = matches!(op, Op::ReduceWindow { .. } | Op::Scatter { .. });
                let is_reduced = !is_stored && (after < before || reads_reduced);
                facts(reads_stream, true, is_reduced)
            }
            NodeKind::Op(Class::Infer) => facts(reads_stream, reads_denied && !is_low, reads_reduced && !is_low),
            NodeKind::Op(Class::Clear) => {
                let repeats = matches!(op, Op::Broadcast { .. }) && after > before;
                let moved = facts(reads_stream && !repeats, reads_denied, reads_reduced && after <= before);
                let are_read_here = operands.iter().filter(|v| v.is_stream).all(|v| v.has_one_reader);
                Facts { has_one_reader: has_one_reader && are_read_here, ..moved }
            }
            NodeKind::Op(Class::NotFloat)
            | NodeKind::Constant
            | NodeKind::FromLow
            | NodeKind::FromExact
            | NodeKind::ToLow
            | NodeKind::FromF32 => facts(reads_stream, false, false),
        }
    }

    /// For each node whether it stays in f32 and its result, an end of the fusion, is materialised.
    fn ends(&self, stores_row: &dyn Fn(NodeId, ValueId) -> bool) -> Vec<bool> {
        let mut readers = vec![Readers::default(); self.graph.values.len()];
        let mut ends = vec![false; self.graph.nodes.len()];
        for node in self.graph.node_ids().rev() {
            let record = self.graph.node(node);
            let is_kept = self.from[node as usize].is_some();
            let result_readers =
                record.results().map(|value| readers[value as usize]).fold(Readers::default(), Readers::or);
            let is_stream = record.results().all(|value| self.facts[value as usize].is_stream);
            let adds = self.adds[node as usize];
            let reads_stored = adds.is_some() || self.reads_stored[node as usize];
            ends[node as usize] = adds == Some(Sum::Last);
            ends[node as usize] |= is_kept
                && adds.is_none()
                && record.n_results == 1
                && is_stream
                && self.graph.only_reader(node).is_none()
                && result_readers.is_read_narrow
                && !result_readers.is_gone_on_with;
            let reads = match record.kind {
                // The readers of a mask do not read the values that are compared.
                NodeKind::Op(Class::Clear) if matches!(self.graph.op(node), Op::Compare { .. }) => Readers::default(),
                NodeKind::Op(Class::Clear) if !self.assignment.low[node as usize] => result_readers,
                // A chain of sums reads what is stored.
                _ => Readers {
                    is_read_narrow: record.kind == NodeKind::ToLow
                        || (self.assignment.low[node as usize] && (!is_kept || reads_stored)),
                    is_gone_on_with: is_kept && !reads_stored,
                },
            };
            for &value in &record.operands {
                let is_stored = self.assignment.is_narrow_state(self.graph, node, value) || stores_row(node, value);
                let reads = Readers { is_read_narrow: reads.is_read_narrow || is_stored, ..reads };
                readers[value as usize] = readers[value as usize].or(reads);
            }
        }
        ends
    }

    /// Marks the values that a product reads, directly or through ops that move them or are lowered for it.
    fn mark_fed(&mut self, node: NodeId) {
        let record = self.graph.node(node);
        let is_lowered = self.is_open(node) && self.from[node as usize].is_none();
        let goes_on = record.is_clear() || is_lowered;
        let feeds = goes_on && record.gives(&self.feeds_product);
        if feeds || record.is_product() {
            record.operands.iter().for_each(|&value| self.feeds_product[value as usize] = true);
        }
    }

    /// Rule 5.
    fn add_up(&mut self, is_moved: &dyn Fn(NodeId) -> bool) {
        let is_sum = |node: NodeId| {
            let is_open = self.is_open(node) && self.from[node as usize].is_none();
            is_open && adds(self.graph.op(node)) && !self.graph.makers(node).any(is_moved)
        };
        let nodes = self.graph.node_ids();
        let reader = |node: NodeId| self.graph.only_reader(node).filter(|&reader| is_sum(node) && is_sum(reader));
        let links: Vec<(NodeId, NodeId)> = nodes.filter_map(|node| Some((node, reader(node)?))).collect();
        for (node, reader) in links {
            (self.adds[node as usize], self.from[node as usize]) = (Some(Sum::Inner), Some(reader));
            (self.adds[reader as usize], self.from[reader as usize]) = (Some(Sum::Last), Some(reader));
        }
    }

    /// Rules 3 and 4.
    fn look_back(&mut self, node: NodeId) {
        let reads_stored = self.graph.node(node).operands.iter().any(|&value| {
            let facts = self.facts[value as usize];
            facts.is_stream && facts.is_denied && self.feeds_product[moved_from(self.graph, value) as usize]
        });
        if !self.is_open(node) || self.from[node as usize].is_some() {
            return;
        }
        let reader = self.graph.only_reader(node).and_then(|reader| self.past_moves(reader));
        let reader = reader.filter(|&reader| self.computes_wide(reader));
        self.from[node as usize] = reader.or_else(|| self.exponential(node).filter(|_| !reads_stored));
        self.reads_stored[node as usize] = reads_stored && self.from[node as usize].is_some();
    }

    /// Rule 4: an exponential that is computed from the node's result, if all its consumers compute in f32.
    fn exponential(&self, node: NodeId) -> Option<NodeId> {
        let record = self.graph.node(node);
        if !is_linear(&self.graph.instr(record).op) {
            return None;
        }
        let (mut exponential, mut open) = (None, vec![node]);
        while let Some(next) = open.pop() {
            for reader in self.graph.readers(next) {
                if self.moves_wide(reader) {
                    open.push(reader);
                } else if !self.computes_wide(reader) {
                    return None;
                } else {
                    exponential = exponential.or_else(|| self.exponential_behind(reader));
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
        self.graph.node(node).is_clear() && !self.assignment.low[node as usize]
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

    /// Whether an op reads f32 in any case, without having it materialised. A product that computes the scores of a
    /// choice does.
    fn computes_wide(&self, node: NodeId) -> bool {
        let op = self.graph.op(node);
        let class = self.graph.node(node).class();
        let fuses =
            is_map(op) || matches!(op, Op::Reduce { .. } | Op::ReduceWindow { .. }) || class == Some(Class::Allow);
        let is_wide = match class {
            Some(Class::Deny { .. }) => true,
            Some(Class::Allow) => !self.assignment.low[node as usize],
            Some(Class::Infer) => self.from[node as usize].is_some() || !self.assignment.low[node as usize],
            _ => false,
        };
        fuses && is_wide
    }
}

/// Whether an op scales or adds.
fn is_linear(op: &Op) -> bool {
    scales(op) || adds(op)
}
