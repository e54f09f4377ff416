//! Which values a fusion makes and reads without storing them, so that rounding them would cost accuracy and save nothing.
//!
//! Back ends compute elementwise ops in f32 registers and store what several fusions read. A model written for bf16
//! therefore casts at the end of a norm, not after each of its ops, and sums what it multiplies in f32. A module written
//! in f32 has lost these places; they are found again by form, from two notions:
//! - a *stream* is an array that has to be stored: what a product, a parameter, a sum over windows or an op on streams
//!   gives, and a slice of one. What any other reduction gives or a broadcast repeats is none, nor is what is computed from
//!   those only; but what pairs numbers of two streams, each repeated along an axis of the other, is one.
//! - a *statistic* is no stream, and computed from a denied op, such as a mean over a row. It is none the more if a stream
//!   of no more numbers was applied to it, as the scale of a norm to the sum that is the gradient of its variance.
//!
//! An op of class infer stays in f32 where
//! 1. it applies a statistic, as in `x - mean`; or
//! 2. it goes on with such a value, or with that of a denied op: all streams that it reads are f32 and read by it alone,
//!    as in `(x - mean) · scale + bias`; or
//! 3. one op reads it, which computes in f32: a sum, a denied function, an op of these rules. But not for a sum of few, which
//!    is rounded, if it reads a stream that is repeated for the terms: what is repeated in f32 is stored so. And not behind a reshape that
//!    changes how many numbers lie along lanes, as that is a copy, which is stored. And not if it reads an f32
//!    value that a product reads too, or an op that is lowered for one, as that one is stored in the narrow dtype: so the
//!    gradient of a residual, which a gate scales for a product, ends at each norm that adds its parts to it. Nor if it adds
//!    another stored array of its size to a product that it alone reads, on the way to the next one: the product's fusion stores
//!    the sum, or both are kept; or
//! 4. it scales or adds up streams, all that read it compute in f32, and one of them computes an exponential of it, as a
//!    softmax reads its scores, for their maximum too. The streams are what is stored, and each of them computes it again. What
//!    is rounded of an exponent is an error of the exponential in proportion to the exponent's size, which is that of the
//!    largest term: a mask's or a bias's; or
//! 5. it multiplies two streams, sums in f32 are all that is computed of it, and one of them reads it through a reshape to
//!    other lanes, as the gradient of a group norm's variance does. That is a copy, which a compiler makes where this is
//!    computed, if it is f32, and of a statistic that it repeats and stores for it, if it is not.
//!
//! A sum of rows that was lowered between products (`moved`) is f32 after all where nothing of its rows was rounded since
//! the denied ops that they are computed from: it is a statistic, such as the sums of exponentials that a softmax over a
//! graph's edges divides by. What is gathered of it for the edges, of which there are more, is rounded as what is moved is.
//!
//! So an f32 value ends where it meets another stream, as when a branch is added, and where two ops read it. It ends even
//! where that other stream is f32, if either is what a statistic was applied to that was scaled and that several ops read:
//! the gradients of a batch norm's input by its mean, by its variance and as it is, which are rounded before they are added
//! in a network written for bf16.
//!
//! A stream of rule 1 or 2 that ends so, read by several ops of which one reads the narrow dtype and none goes on, is
//! stored. It is rounded once, by its maker, and all of them read that, as Flax casts at the end of a norm. Else a
//! compiler would store it in f32: it fuses a cast into each op that reads, however many there are. Even where one goes on,
//! if rows are put together there, each with zeros between its numbers: no reader does that again.

use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::moved::{changes_lanes, is_stored, moved_from};
use super::painted::{Painted, Rule};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::is_map;
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use std::collections::BTreeSet;

/// What is known of a value.
#[derive(Clone, Copy, Default)]
struct Facts {
    /// It has to be stored.
    is_stream: bool,
    /// It is f32, and computed from a denied op.
    is_denied: bool,
    /// A reduction gave it, or it was computed from one of as many numbers.
    is_reduced: bool,
    /// It is a stream, or would be if streams that were applied to a statistic made streams of it.
    has_stream: bool,
    /// It stays f32 for a statistic that streams were applied to and that several ops read.
    is_scaled: bool,
    /// It is f32 as are all that it is computed from, back to denied ops.
    is_unrounded: bool,
    /// At most one op reads it and what it moved from.
    has_one_reader: bool,
    /// It repeats a stream along these of its axes, a bit for each.
    repeats: u64,
}

/// A node that was lowered and had better compute in f32.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unstored {
    /// The node.
    pub node: NodeId,
    /// The node that this comes from.
    pub from: Option<NodeId>,
    /// The rule to name: `Unstored`; `Rounded` where what it makes is stored all the same, and rounded for that; `Statistic`.
    pub rule: Rule,
}

/// The nodes that were lowered and had better compute in f32. `stores_row` says which values a node stores in the narrow dtype
/// to add them as rows.
pub(super) fn unstored(
    graph: &Dataflow<'_>,
    painted: &Painted,
    stores_row: &dyn Fn(NodeId, ValueId) -> bool,
) -> Vec<Unstored> {
    let mut finder = Finder {
        graph,
        painted,
        facts: vec![Facts::default(); graph.values.len()],
        kept: vec![None; graph.nodes.len()],
        feeds_product: vec![false; graph.values.len()],
        leads_to_product: graph.leads_to_product(),
    };
    for node in 0..graph.nodes.len() as NodeId {
        finder.go_on(node);
    }
    for node in (0..graph.nodes.len() as NodeId).rev() {
        finder.mark_fed(node);
    }
    for node in 0..graph.nodes.len() as NodeId {
        finder.mark_parts(node);
    }
    for node in (0..graph.nodes.len() as NodeId).rev() {
        finder.look_back(node);
    }
    let ends = finder.ends(stores_row);
    let kept = finder.kept.iter().zip(0..);
    let unstored = |(from, node): (&Option<NodeId>, NodeId)| {
        let from = (*from)?;
        let rule = match (ends[node as usize], graph.node(node).class()) {
            (true, _) => Rule::Rounded,
            (false, Some(Class::Deny { .. })) => Rule::Statistic,
            (false, _) => Rule::Unstored,
        };
        Some(Unstored { node, from: (from != node).then_some(from), rule })
    };
    kept.filter_map(unstored).collect()
}

/// How ops read a value, or what moves it.
#[derive(Clone, Copy, Default)]
struct Readers {
    /// One reads the narrow dtype.
    is_read_narrow: bool,
    /// One stays in f32 by these rules.
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

struct Finder<'g> {
    graph: &'g Dataflow<'g>,
    painted: &'g Painted,
    facts: Vec<Facts>,
    /// For each node that stays in f32 the one that this comes from.
    kept: Vec<Option<NodeId>>,
    /// For each value whether a product reads it, or what moves it or is lowered for it.
    feeds_product: Vec<bool>,
    /// For each node whether a product is computed from what it gives.
    leads_to_product: Vec<bool>,
}

impl Finder<'_> {
    /// Whether lowering was decided for this op, and may be taken back.
    fn is_open(&self, node: NodeId) -> bool {
        self.painted.low[node as usize] && self.graph.node(node).class() == Some(Class::Infer)
    }

    fn floats(&self, values: impl Iterator<Item = ValueId>) -> impl Iterator<Item = ValueId> {
        values.filter(|&value| self.graph.value(value).is_f32())
    }

    /// The only node that reads what a node makes.
    fn only_reader(&self, node: NodeId) -> Option<NodeId> {
        let mut readers = self.graph.node(node).results().flat_map(|value| &self.graph.users[value as usize]);
        let first = *readers.next()?;
        readers.all(|&reader| reader == first).then_some(first)
    }

    /// Whether several nodes read what a node makes, or what a barrier gives that holds it back.
    fn has_many_readers(&self, mut node: NodeId) -> bool {
        while let Some(reader) = self.only_reader(node) {
            if self.graph.instr(self.graph.node(reader)).op != Op::OptimizationBarrier {
                return false;
            }
            node = reader;
        }
        true
    }

    /// Rules 1 and 2, and the facts of what a node makes.
    fn go_on(&mut self, node: NodeId) {
        let of = self.graph.node(node);
        let operands: Vec<Facts> = self.floats(of.operands.iter().copied()).map(|v| self.facts[v as usize]).collect();
        let goes_on = |is_stream: fn(&Facts) -> bool| {
            let mut streams = operands.iter().filter(|v| is_stream(v)).peekable();
            streams.peek().is_some() && streams.all(|v| v.is_denied && v.has_one_reader)
        };
        let applies = |is_stream: fn(&Facts) -> bool| operands.iter().any(|v| v.is_denied && !is_stream(v));
        let keeps = |is_stream: fn(&Facts) -> bool| applies(is_stream) || goes_on(is_stream);
        let n_streams = operands.iter().filter(|value| value.is_stream).count();
        let is_met = n_streams > 1 && operands.iter().any(|value| value.is_stream && value.is_scaled);
        let is_kept = keeps(|value| value.is_stream) && !is_met;
        if self.is_open(node) && is_kept || self.is_statistic(node, &operands) {
            let producers = of.operands.iter().filter(|&&value| self.facts[value as usize].is_denied);
            let from = producers.map(|&value| self.graph.producer(value)).next();
            self.kept[node as usize] = Some(from.unwrap_or(node));
        }
        let is_scaled = operands.iter().any(|v| v.is_scaled) || is_kept && !keeps(|value| value.has_stream);
        let facts = self.facts_of(node, &operands, is_scaled);
        of.results().for_each(|value| self.facts[value as usize] = facts);
    }

    /// Whether a sum of rows that was lowered adds what nothing was rounded of.
    fn is_statistic(&self, node: NodeId, operands: &[Facts]) -> bool {
        let is_sum = self.painted.rule[node as usize] == Rule::MovedSum;
        is_sum && operands.last().is_some_and(|rows| rows.is_unrounded)
    }

    /// The facts of what a node makes of `operands`.
    fn facts_of(&self, node: NodeId, operands: &[Facts], is_scaled: bool) -> Facts {
        let of = self.graph.node(node);
        let facts = self.facts_without_repeats(node, operands, is_scaled);
        if facts.is_stream {
            return facts;
        }
        let instr = self.graph.instr(of);
        match (&instr.op, of.class()) {
            (Op::Broadcast { dimensions }, Some(Class::Clear)) => {
                let is_of_stream = operands.iter().any(|value| value.is_stream && !value.is_reduced);
                let axes = (0..instr.shape.dims().len().min(64) as i64).filter(|axis| !dimensions.contains(axis));
                let repeats = axes.filter(|_| is_of_stream).fold(0, |all, axis| all | 1 << axis);
                Facts { repeats, ..facts }
            }
            (op, Some(Class::Infer | Class::Deny { .. })) if is_map(op) => {
                let of_streams = operands.iter().map(|value| value.repeats).filter(|&axes| axes != 0);
                match of_streams.reduce(|all, axes| all & axes) {
                    None => facts,
                    Some(0) => Facts { is_stream: true, has_stream: true, ..facts },
                    Some(repeats) => Facts { repeats, ..facts },
                }
            }
            _ => facts,
        }
    }

    /// Of these facts all but what a node repeats.
    fn facts_without_repeats(&self, node: NodeId, operands: &[Facts], is_scaled: bool) -> Facts {
        let of = self.graph.node(node);
        let op = &self.graph.instr(of).op;
        let elements = |values: &mut dyn Iterator<Item = ValueId>| {
            self.floats(values).map(|value| self.graph.value(value).n_elements).max().unwrap_or(0)
        };
        let (before, after) = (elements(&mut of.operands.iter().copied()), elements(&mut of.results()));
        let any = |property: fn(&Facts) -> bool| operands.iter().any(property);
        let (reads_stream, reads_one) = (any(|v| v.is_stream), any(|v| v.has_stream));
        let (reads_denied, reads_reduced) = (any(|v| v.is_denied), any(|v| v.is_reduced));
        let is_low = self.painted.low[node as usize] && self.kept[node as usize].is_none();
        // Constants are neither.
        let is_unrounded =
            !is_low && any(|v| v.is_unrounded) && !any(|v| (v.is_stream || v.is_denied) && !v.is_unrounded);
        let has_one_reader = self.only_reader(node).is_some();
        let stored = Facts { is_stream: true, has_stream: true, has_one_reader, ..Facts::default() };
        match &of.kind {
            NodeKind::Op(Class::Allow) | NodeKind::Parameter | NodeKind::Fixed(_) => stored,
            // A sum that is lowered between products, or what is moved there: both are stored.
            NodeKind::Op(Class::Deny { .. } | Class::Clear) if is_low => stored,
            NodeKind::Op(Class::Deny { .. }) if self.painted.rule[node as usize] == Rule::FewTerms => stored,
            NodeKind::Op(Class::Deny { .. }) => {
                // A sum over windows is stored: no reader computes it again, as each of its numbers reads many.
                let is_of_windows = matches!(op, Op::ReduceWindow { .. });
                let is_sum_of_rows = self.kept[node as usize].is_some();
                let is_reduced = is_sum_of_rows || !is_of_windows && (after < before || reads_reduced);
                let is_stream = reads_stream && !is_reduced;
                let has_stream = reads_one && (is_of_windows || after >= before);
                let is_unrounded = !is_of_windows;
                let known = Facts { is_stream, has_stream, is_denied: true, is_reduced, ..Facts::default() };
                Facts { is_scaled, is_unrounded, has_one_reader, ..known }
            }
            NodeKind::Op(Class::Infer) => {
                let is_f32 = !is_low;
                let is_reduced = is_f32 && reads_reduced;
                let is_stream = reads_stream && !is_reduced;
                let (is_denied, is_scaled) = (reads_denied && is_f32, is_scaled && is_f32);
                let known = Facts { is_stream, has_stream: reads_one, is_denied, is_reduced, ..Facts::default() };
                Facts { is_scaled, is_unrounded, has_one_reader, ..known }
            }
            NodeKind::Op(Class::Clear) => {
                let repeats = matches!(op, Op::Broadcast { .. }) && after > before;
                // A part of what is stored is, too, as when a concatenation is split in the backward pass.
                let is_whole =
                    !repeats && (matches!(op, Op::Slice(_)) || is_stored(self.graph.instr(of)) || after >= before);
                let is_reduced = reads_reduced && after <= before;
                let mut streams = operands.iter().filter(|v| v.is_stream);
                let moved = !(reads_stream && is_whole) || streams.all(|v| v.has_one_reader);
                let is_stream = reads_stream && is_whole && !is_reduced;
                let (has_stream, has_one_reader) = (reads_one && is_whole, has_one_reader && moved);
                let is_denied = reads_denied;
                let known = Facts { is_stream, has_stream, is_denied, is_reduced, ..Facts::default() };
                Facts { is_scaled, is_unrounded, has_one_reader, ..known }
            }
            NodeKind::Op(Class::NotFloat)
            | NodeKind::Constant
            | NodeKind::FromLow
            | NodeKind::FromExact
            | NodeKind::ToLow
            | NodeKind::FromF32 => Facts { is_stream: reads_stream, has_stream: reads_one, ..stored },
        }
    }

    /// For each node whether it stays in f32 and what it makes is stored and ends there.
    fn ends(&self, stores_row: &dyn Fn(NodeId, ValueId) -> bool) -> Vec<bool> {
        let mut readers = vec![Readers::default(); self.graph.values.len()];
        let mut ends = vec![false; self.graph.nodes.len()];
        for node in (0..self.graph.nodes.len() as NodeId).rev() {
            let of = self.graph.node(node);
            let is_kept = self.kept[node as usize].is_some();
            let of_results = of.results().map(|value| readers[value as usize]).fold(Readers::default(), Readers::or);
            let is_stream = of.results().all(|value| self.facts[value as usize].is_stream);
            let has_many_readers = self.has_many_readers(node);
            ends[node as usize] = is_kept
                && of.n_results == 1
                && is_stream
                && has_many_readers
                && of_results.is_read_narrow
                && (!of_results.is_gone_on_with || self.puts_together(node));
            let reads = match of.kind {
                NodeKind::Op(Class::Clear) if !self.painted.low[node as usize] => of_results,
                _ => Readers {
                    is_read_narrow: of.kind == NodeKind::ToLow || (self.painted.low[node as usize] && !is_kept),
                    is_gone_on_with: is_kept,
                },
            };
            for &value in &of.operands {
                let is_stored = self.painted.is_narrow_state(node, value) || stores_row(node, value);
                let reads = Readers { is_read_narrow: reads.is_read_narrow || is_stored, ..reads };
                readers[value as usize] = readers[value as usize].or(reads);
            }
        }
        ends
    }

    /// Whether a node puts together two parts of rows, with zeros around or between their numbers, as the gradient of a
    /// rotation of every second number does.
    fn puts_together(&self, node: NodeId) -> bool {
        let of = self.graph.node(node);
        let is_part = |&value: &ValueId| match &self.graph.instr(self.graph.node(self.graph.producer(value))).op {
            Op::Pad(padding) => padding.last().is_some_and(|dim| (dim.low, dim.high, dim.interior) != (0, 0, 0)),
            _ => false,
        };
        matches!(self.graph.instr(of).op, Op::Binary(BinaryOp::Add)) && of.operands.iter().all(is_part)
    }

    /// What a product reads, or what moves it or is lowered for it. Not so an exponential that is lowered for it, as nothing
    /// of it was rounded.
    fn mark_fed(&mut self, node: NodeId) {
        let of = self.graph.node(node);
        let feeds_product = of.results().any(|value| self.feeds_product[value as usize]);
        let is_lowered = self.is_open(node) && self.kept[node as usize].is_none();
        let is_move = of.class() == Some(Class::Clear);
        for &value in &of.operands {
            let passes_on = feeds_product && (is_move || is_lowered && !self.facts[value as usize].is_unrounded);
            self.feeds_product[value as usize] |= of.class() == Some(Class::Allow) || passes_on;
        }
    }

    /// A part of what a product reads another part of, as both are of what is stored.
    fn mark_parts(&mut self, node: NodeId) {
        let of = self.graph.node(node);
        let is_part = self.moves_wide(node) && matches!(self.graph.instr(of).op, Op::Slice(_));
        if is_part && of.operands.iter().any(|&value| self.feeds_product[value as usize]) {
            of.results().for_each(|value| self.feeds_product[value as usize] = true);
        }
    }

    /// Rule 3.
    fn look_back(&mut self, node: NodeId) {
        let of = self.graph.node(node);
        if !self.is_open(node) || self.kept[node as usize].is_some() {
            return;
        }
        let reads_stored = of.operands.iter().any(|&value| {
            let facts = self.facts[value as usize];
            facts.is_stream && facts.is_denied && self.feeds_product[value as usize]
        });
        let exponential = self.exponential(node);
        if exponential.is_none() && self.joins_products(node) {
            return;
        }
        let reader = self.only_reader(node).and_then(|reader| self.past_moves(reader));
        let reader = reader.filter(|&reader| self.computes_wide(reader) && !self.repeats_for_few(node, reader));
        let reader = reader.or(exponential).or_else(|| self.sum_of_copy(node));
        if let Some(reader) = reader.filter(|_| !reads_stored) {
            self.kept[node as usize] = Some(reader);
        }
    }

    /// Whether a sum of few, which is rounded, reads what a node computes of a stream that it repeats for the terms.
    fn repeats_for_few(&self, node: NodeId, reader: NodeId) -> bool {
        let repeats = |&value: &ValueId| self.facts[value as usize].repeats != 0;
        self.painted.rule[reader as usize] == Rule::FewTerms && self.graph.node(node).operands.iter().any(repeats)
    }

    /// Whether a node adds to a product that it alone reads another stored array of its size, as attention adds what it
    /// computes of positions to its scores.
    fn joins_products(&self, node: NodeId) -> bool {
        let of = self.graph.node(node);
        let is_sum = matches!(self.graph.instr(of).op, Op::Binary(BinaryOp::Add | BinaryOp::Subtract));
        let n_elements = self.graph.value(of.first_result).n_elements;
        let is_stored = |&value: &ValueId| {
            self.painted.value_low[moved_from(self.graph, value) as usize]
                && self.facts[value as usize].is_stream
                && self.graph.value(value).n_elements == n_elements
        };
        let is_product = |&value: &ValueId| {
            let maker = self.graph.producer(value);
            self.graph.node(maker).class() == Some(Class::Allow) && self.only_reader(maker) == Some(node)
        };
        is_sum
            && self.leads_to_product[node as usize]
            && of.operands[0] != of.operands[1]
            && of.operands.iter().all(is_stored)
            && of.operands.iter().any(is_product)
    }

    /// Rule 4: an exponential that is computed of what scales one stream, if all that read it compute in f32.
    fn exponential(&self, node: NodeId) -> Option<NodeId> {
        let of = self.graph.node(node);
        let is_linear = matches!(
            self.graph.instr(of).op,
            Op::Binary(BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Add | BinaryOp::Subtract)
        );
        if !is_linear {
            return None;
        }
        let (mut found, mut open) = (None, vec![node]);
        while let Some(next) = open.pop() {
            let readers = self.graph.node(next).results().flat_map(|value| &self.graph.users[value as usize]);
            for &reader in readers {
                if self.moves_wide(reader) {
                    open.push(reader);
                } else if !self.computes_wide(reader) {
                    return None;
                } else {
                    found = found.or_else(|| self.exponential_behind(reader));
                }
            }
        }
        found
    }

    /// Rule 5: a sum in f32, where such sums are all that is computed of a product of two streams, and one of them reads a
    /// copy to other lanes.
    fn sum_of_copy(&self, node: NodeId) -> Option<NodeId> {
        let of = self.graph.node(node);
        let is_product = matches!(self.graph.instr(of).op, Op::Binary(BinaryOp::Multiply));
        if !is_product || !of.operands.iter().all(|&value| self.facts[value as usize].is_stream) {
            return None;
        }
        let (mut found, mut is_copied) = (None, false);
        let (mut seen, mut open) = (BTreeSet::new(), vec![node]);
        while let Some(next) = open.pop() {
            let mut readers = self.graph.node(next).results().flat_map(|value| &self.graph.users[value as usize]);
            let first = readers.next()?;
            for &reader in [first].into_iter().chain(readers) {
                let op = &self.graph.instr(self.graph.node(reader)).op;
                let is_wide = self.computes_wide(reader);
                if is_wide && matches!(op, Op::Reduce { .. }) {
                    found = Some(reader);
                } else if is_wide && is_map(op) || next != node && self.moves_wide(reader) {
                    is_copied |= changes_lanes(self.graph, reader);
                    if seen.insert(reader) {
                        open.push(reader);
                    }
                } else {
                    return None;
                }
            }
        }
        found.filter(|_| is_copied)
    }

    /// The first exponential of the maps that go on with what a node gives.
    fn exponential_behind(&self, node: NodeId) -> Option<NodeId> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![node]);
        while let Some(next) = open.pop() {
            let op = &self.graph.instr(self.graph.node(next)).op;
            if matches!(op, Op::Unary(UnaryOp::Exp)) {
                return Some(next);
            }
            if is_map(op) && self.computes_wide(next) && seen.insert(next) {
                let readers = self.graph.node(next).results().flat_map(|value| &self.graph.users[value as usize]);
                open.extend(readers);
            }
        }
        None
    }

    /// Whether a node moves f32 values and is no end of a fusion.
    fn moves_wide(&self, node: NodeId) -> bool {
        self.graph.node(node).class() == Some(Class::Clear) && !self.painted.low[node as usize]
    }

    /// The first op behind `node` that does more than move values, where it is the only one and nothing before it is stored.
    fn past_moves(&self, mut node: NodeId) -> Option<NodeId> {
        while self.moves_wide(node) {
            if changes_lanes(self.graph, node) {
                return None;
            }
            node = self.only_reader(node)?;
        }
        Some(node)
    }

    /// Whether an op reads f32 whatever it is given, without having it stored. A product does that makes scores of a choice.
    fn computes_wide(&self, node: NodeId) -> bool {
        let op = &self.graph.instr(self.graph.node(node)).op;
        let class = self.graph.node(node).class();
        let fuses =
            is_map(op) || matches!(op, Op::Reduce { .. } | Op::ReduceWindow { .. }) || class == Some(Class::Allow);
        let is_wide = match class {
            Some(Class::Deny { .. }) => true,
            Some(Class::Allow) => !self.painted.low[node as usize],
            Some(Class::Infer) => self.kept[node as usize].is_some() || !self.painted.low[node as usize],
            _ => false,
        };
        fuses && is_wide
    }
}
