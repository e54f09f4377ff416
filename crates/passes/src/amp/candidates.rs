//! Along which dimensions of scores the candidates of a choice lie, and what is the same for all of them.
//!
//! A code is the nearest one by ‖z‖² − 2 z·e + ‖e‖², where ‖z‖² is the same for each code. A number that is added to the
//! scores of all candidates alike changes none of their differences, so it may be rounded, whatever it is computed from:
//! what is the same for all is so rounded, too, as each of them reads one and the same number. The sums that the choice reads
//! are f32 as before. Their own roundings depend on the common number, but not on whether it was rounded itself: they are
//! 2^-24 of the sum in both programs.
//!
//! So scores are read *along* dimensions, those in which the candidates lie, if no choice changes where a number is added
//! that is the same along them. It is found from the choice back:
//! - what chooses by order alone (`sort`, `topk`, `argmax`) reads its operands along the dimension that it chooses in;
//! - sums, differences and negations read along the same dimensions, as the number is added to what they give, or taken
//!   from it;
//! - so does a product or quotient with a factor that is the same along them, of either sign: the number is scaled with
//!   the scores, and what it becomes is the same along them again. But the factor itself decides: near zero its rounding may
//!   turn its sign, and with it the order;
//! - what only places elements reads along the dimensions that they lie in before it.
//!
//! Anything else that scores are made by, or a second choice by what a first gives, reads them *exactly*, and so do loops
//! and branches. A maximum with a constant, a mask or an exponential changes with a number that is added before it.

use super::dataflow::{Dataflow, NodeId, ValueId};
use bf16scope_hlo::ops::{BinaryOp, Comparison, UnaryOp};
use bf16scope_hlo::{CompId, DType, InstrId, Module, Op};

/// Dimensions, one for each bit.
type Dimensions = u64;

/// How choices read a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Read {
    /// Not, or so that it may be any number.
    #[default]
    Not,
    /// As scores of candidates in these dimensions: a number that is the same along them may be added.
    Along(Dimensions),
    /// Each of its numbers counts.
    Exactly,
}

impl Read {
    pub(super) fn and(self, other: Read) -> Read {
        match (self, other) {
            (Read::Not, read) | (read, Read::Not) => read,
            (Read::Along(a), Read::Along(b)) => Read::Along(a | b),
            (Read::Exactly, _) | (_, Read::Exactly) => Read::Exactly,
        }
    }
}

/// What is the same along dimensions in a region.
pub(super) struct Candidates<'g, 'm> {
    graph: &'g Dataflow<'m>,
    /// For each value its sizes, unless they are too many or it is one of several behind a barrier.
    sizes: Vec<Option<&'m [i64]>>,
    /// For each value the dimensions along which all its elements are the same.
    same: Vec<Dimensions>,
}

impl<'g, 'm> Candidates<'g, 'm> {
    pub(super) fn of(graph: &'g Dataflow<'m>) -> Candidates<'g, 'm> {
        let mut found = Candidates { graph, sizes: sizes(graph), same: vec![0; graph.values.len()] };
        for node in 0..graph.nodes.len() as NodeId {
            let same = found.same_of(node);
            for value in graph.node(node).results() {
                let of_one = found.dims(value).map_or(0, |dims| bits(dims.iter().map(|&size| size == 1)));
                found.same[value as usize] = same | of_one;
            }
        }
        found
    }

    /// How a node that chooses reads one of its operands.
    pub(super) fn chosen(&self, node: NodeId, place: usize) -> Read {
        let of = self.graph.node(node);
        let module = self.graph.module;
        let value = of.operands[place];
        let dimensions = match &self.graph.instr(of).op {
            Op::Sort { dimension, to_apply, .. } => {
                only_orders(module, *to_apply, |number| number / 2).then(|| bit(*dimension))
            }
            Op::Reduce { dimensions, to_apply } => {
                let n = i64::from(of.n_results);
                only_orders(module, *to_apply, |number| number % n).then(|| dimensions.iter().map(|&d| bit(d)).sum())
            }
            // They choose in the last dimension.
            Op::Opaque(_) | Op::CustomCall(_) => self.dims(value).map(|dims| bit(dims.len() as i64 - 1)),
            _ => None,
        };
        self.read(value, dimensions)
    }

    /// How an operand of a node is read for what reads the node so.
    pub(super) fn operand(&self, node: NodeId, place: usize, read: Read) -> Read {
        let Read::Along(dimensions) = read else { return read };
        self.read(self.graph.node(node).operands[place], self.before(node, place, dimensions))
    }

    fn read(&self, value: ValueId, along: Option<Dimensions>) -> Read {
        match along.filter(|_| self.dims(value).is_some()) {
            // Where it is the same for all in any case, it needs not be.
            Some(dimensions) => match dimensions & !self.same[value as usize] {
                0 => Read::Not,
                dimensions => Read::Along(dimensions),
            },
            None => Read::Exactly,
        }
    }

    /// The dimensions of an operand such that what is the same along them adds what is the same along these to a node.
    fn before(&self, node: NodeId, place: usize, dimensions: Dimensions) -> Option<Dimensions> {
        let of = self.graph.node(node);
        let is_same = |place: usize| dimensions & !self.same[of.operands[place] as usize] == 0;
        let dims = || Some((self.dims(of.operands[place])?, self.dims(of.first_result)?));
        match &self.graph.instr(of).op {
            Op::Binary(BinaryOp::Add | BinaryOp::Subtract) | Op::Unary(UnaryOp::Negate | UnaryOp::Copy) => {
                Some(dimensions)
            }
            // What is the same already needs no more.
            Op::Binary(BinaryOp::Multiply) => is_same(1 - place).then_some(dimensions),
            Op::Binary(BinaryOp::Divide) => (place == 0 && is_same(1)).then_some(dimensions),
            Op::Broadcast { dimensions: places } => {
                Some(bits(places.iter().map(|&place| dimensions & bit(place) != 0)))
            }
            Op::Transpose { permutation } => {
                let lies_in = |&(place, _): &(usize, &i64)| dimensions & bit(place as i64) != 0;
                Some(permutation.iter().enumerate().filter(lies_in).map(|(_, &from)| bit(from)).sum())
            }
            Op::Reshape => {
                let (from, to) = dims()?;
                Some(reshaped(to, from, |group| dimensions & group != 0))
            }
            Op::Slice(_) => Some(dimensions),
            _ => None,
        }
    }

    /// The dimensions along which what a node gives is the same, but for those of one element.
    fn same_of(&self, node: NodeId) -> Dimensions {
        let of = self.graph.node(node);
        let same = |place: usize| of.operands.get(place).map_or(0, |&value| self.same[value as usize]);
        // A scalar is the same for all.
        let is_array = |value: &&ValueId| self.dims(**value).is_none_or(|dims| !dims.is_empty());
        let of_all =
            || of.operands.iter().filter(is_array).map(|&value| self.same[value as usize]).fold(!0, |a, b| a & b);
        match &self.graph.instr(of).op {
            Op::Unary(_) | Op::Binary(_) | Op::Compare { .. } | Op::Select | Op::Clamp | Op::Convert => of_all(),
            Op::Iota { dimension } => !bit(*dimension),
            Op::Broadcast { dimensions } => {
                let varies = dimensions.iter().enumerate().filter(|(from, _)| same(0) & bit(*from as i64) == 0);
                !varies.map(|(_, &to)| bit(to)).sum::<Dimensions>()
            }
            Op::Transpose { permutation } => bits(permutation.iter().map(|&from| same(0) & bit(from) != 0)),
            Op::Reshape => {
                match (of.operands.first().and_then(|&value| self.dims(value)), self.dims(of.first_result)) {
                    (Some(from), Some(to)) => reshaped(from, to, |group| same(0) & group == group),
                    _ => 0,
                }
            }
            _ => 0,
        }
    }

    fn dims(&self, value: ValueId) -> Option<&'m [i64]> {
        self.sizes[value as usize]
    }
}

fn sizes<'m>(graph: &Dataflow<'m>) -> Vec<Option<&'m [i64]>> {
    let mut sizes = vec![None; graph.values.len()];
    for of in graph.nodes.iter() {
        let shape = &graph.instr(of).shape;
        // A barrier has a node for each of its values.
        if of.n_results == 1 && shape.as_tuple().is_some_and(|elements| elements.len() > 1) {
            continue;
        }
        let leaves = shape.leaves();
        for (value, leaf) in of.results().zip(&leaves).filter(|_| leaves.len() == of.n_results as usize) {
            let dims = leaf.as_array().map(|array| &array.dims[..]);
            sizes[value as usize] = dims.filter(|dims| dims.len() < Dimensions::BITS as usize);
        }
    }
    sizes
}

fn bit(dimension: i64) -> Dimensions {
    Dimensions::try_from(dimension).ok().and_then(|place| 1_u64.checked_shl(place as u32)).unwrap_or(0)
}

fn bits(are: impl Iterator<Item = bool>) -> Dimensions {
    are.enumerate().filter(|(_, is)| *is).map(|(place, _)| bit(place as i64)).sum()
}

/// The dimensions of an array that is reshaped of those of the array before of which `holds` is true. What becomes several
/// dimensions, or is made of several, is one group.
fn reshaped(from: &[i64], to: &[i64], holds: impl Fn(Dimensions) -> bool) -> Dimensions {
    let (mut before, mut after, mut found) = (0, 0, 0);
    while before < from.len() || after < to.len() {
        let first = (before, after);
        let (mut n_before, mut n_after) = (1_i64, 1_i64);
        loop {
            if before < from.len() && (n_before <= n_after || after == to.len()) {
                n_before = n_before.saturating_mul(from[before]);
                before += 1;
            } else if after < to.len() {
                n_after = n_after.saturating_mul(to[after]);
                after += 1;
            } else {
                break;
            }
            if n_before == n_after {
                break;
            }
        }
        let group = |first: usize, end: usize| (first..end).map(|place| bit(place as i64)).sum::<Dimensions>();
        if holds(group(first.0, before)) {
            found |= group(first.1, after);
        }
    }
    found
}

/// Whether a computation does no more with the floats that it is given than to compare the two of a pair, and to pass one
/// of them on. `pair` says which parameters are one.
///
/// A number may be replaced where it is compared for equality with another, as zero is, whose sign does not count, or a NaN.
fn only_orders(module: &Module, comp: CompId, pair: impl Fn(i64) -> i64) -> bool {
    let comp = module.comp(comp);
    // For each instruction the parameter that it is, or that was passed on, if that is a float.
    let mut passed: Vec<Option<i64>> = Vec::with_capacity(comp.instructions.len());
    for id in comp.ids() {
        let instr = comp.instr(id);
        let of = |id: InstrId| passed[id.idx()];
        let is_one_pair = |a: InstrId, b: InstrId| of(a).map(&pair) == of(b).map(&pair);
        let is_constant = |id: InstrId| matches!(comp.instr(id).op, Op::Constant(_));
        let replaces = |is: InstrId, by: InstrId, value: InstrId| {
            let is = comp.instr(is);
            let is_equality = matches!(is.op, Op::Compare { direction: Comparison::Eq | Comparison::Ne, .. });
            is_constant(by) && is_equality && of(is.operands[0]) == of(value)
        };
        let made = match (&instr.op, &instr.operands[..]) {
            (Op::Parameter { number, .. }, _) => instr.shape.dtype().is_some_and(DType::is_float).then_some(*number),
            (Op::Compare { .. }, &[a, b]) if is_one_pair(a, b) => None,
            (Op::Compare { direction: Comparison::Eq | Comparison::Ne, .. }, &[_, b]) if is_constant(b) => None,
            (Op::Select, &[_, a, b]) if is_one_pair(a, b) => of(a),
            (Op::Select, &[is, a, b]) if replaces(is, a, b) => of(b),
            (Op::Select, &[is, a, b]) if replaces(is, b, a) => of(a),
            (Op::Tuple, _) => None,
            (_, operands) if operands.iter().all(|&operand| of(operand).is_none()) => None,
            _ => return false,
        };
        passed.push(made);
    }
    true
}
