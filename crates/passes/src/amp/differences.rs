//! Differences that may be small beside the rounding of a product before them: 1 − x, read by a function that is
//! singular where x is one, an array less itself, moved, and two arrays that are broadcast against each other.

use super::dataflow::{Dataflow, NodeId, ValueId};
use bf16scope_hlo::ops::decisions::{is_map, movement};
use bf16scope_hlo::ops::precision::Movement;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{Literal, Op};

/// How far a constant may be from one: `1 + 1e-6` is.
const NEAR_ONE: f32 = 1.0 / 256.0;

/// For each node whether it is 1 − x or x − 1 that a logarithm or root reads, or such a function of x itself.
pub(super) fn below_one(graph: &Dataflow<'_>) -> Vec<bool> {
    let is_root = |op: &Op| matches!(op, Op::Unary(UnaryOp::Log | UnaryOp::Log1p | UnaryOp::Sqrt | UnaryOp::Rsqrt));
    let leads = graph.leads(&[], |reader, leads| is_root(graph.op(reader)) || leads && scales_or_moves(graph, reader));
    let is_near = |value: ValueId, one: f32| graph.constant(value).is_some_and(|literal| is_near(literal, one));
    let is_negated = |value: ValueId| matches!(graph.op(graph.producer(value)), Op::Unary(UnaryOp::Negate));
    let is_below_one = |node: NodeId| match (graph.op(node), &graph.node(node).operands[..]) {
        (Op::Unary(UnaryOp::Acos | UnaryOp::Acosh | UnaryOp::Asin | UnaryOp::Atanh), _) => true,
        (Op::Unary(UnaryOp::Log1p), &[x]) => is_negated(x),
        (Op::Binary(BinaryOp::Subtract), &[a, b]) => leads[node as usize] && (is_near(a, 1.0) || is_near(b, 1.0)),
        (Op::Binary(BinaryOp::Add), &[a, b]) => {
            let adds = |one, x| is_near(one, -1.0) || is_near(one, 1.0) && is_negated(x);
            leads[node as usize] && (adds(a, b) || adds(b, a))
        }
        _ => false,
    };
    graph.node_ids().map(is_below_one).collect()
}

/// For each node whether it is the difference of an array and itself, moved: one that is squared or read by a root or
/// an exponential, as that of two points, or one of slices that overlap, as that of a time and the next.
pub(super) fn of_moved(graph: &Dataflow<'_>) -> Vec<bool> {
    let amplifies = |node: NodeId| match (graph.op(node), &graph.node(node).operands[..]) {
        (Op::Unary(UnaryOp::Abs | UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Exp), _) => true,
        (Op::Binary(BinaryOp::Power), _) => true,
        (Op::Binary(BinaryOp::Multiply) | Op::Dot { .. }, &[a, b]) => a == b,
        _ => false,
    };
    let leads = graph.leads(&[], |reader, leads| amplifies(reader) || leads && scales_or_moves(graph, reader));
    let moved_from = graph.derived([], |node, moved_from: &[Option<ValueId>]| {
        let (record, movement) = (graph.node(node), movement(graph.op(node)));
        let operand = *record.operands.first()?;
        // Every other element is a half of a scan, which has rules of its own (`recurrences`).
        let is_half = matches!(graph.op(node), Op::Slice(dims) if dims.iter().any(|dim| dim.stride > 1));
        let moves = matches!(movement, Movement::Places | Movement::Repeats | Movement::TakesPart) && !is_half;
        moves.then(|| moved_from[operand as usize].unwrap_or(operand))
    });
    let slice = |value: ValueId| match graph.op(graph.producer(value)) {
        Op::Slice(dims) => Some(dims),
        _ => None,
    };
    let overlaps = |a: ValueId, b: ValueId| {
        let (Some(a), Some(b)) = (slice(a), slice(b)) else { return false };
        a.iter().zip(b).all(|(a, b)| a.start < b.limit && b.start < a.limit)
    };
    let is_of_moved = |node: NodeId| match (graph.op(node), &graph.node(node).operands[..]) {
        (Op::Binary(BinaryOp::Subtract), &[a, b]) => {
            let source = |value: ValueId| moved_from[value as usize].unwrap_or(value);
            source(a) == source(b) && (leads[node as usize] || overlaps(a, b))
        }
        _ => false,
    };
    graph.node_ids().map(is_of_moved).collect()
}

/// For each node how many different numbers it holds at most, if it is the difference of two arrays that are broadcast
/// against each other, as the points of one set and those of another are, and that hold at most half as many each: what
/// they are computed from is small beside it. Points that each step of a loop compares with the same others are such
/// arrays, too. For any other node it is zero.
pub(super) fn of_pairs(graph: &Dataflow<'_>, extents: &[Extent]) -> Vec<i64> {
    let is_negative = graph.derived([], |node, is_negative: &[bool]| {
        let record = graph.node(node);
        let mut operands = record.operands.iter().map(|&value| is_negative[value as usize]);
        match graph.op(node) {
            Op::Constant(literal) if graph.value(record.first_result).n_elements == 1 => {
                literal.elements::<f32>().is_some_and(|numbers| numbers[0] < 0.0)
            }
            Op::Unary(UnaryOp::Negate) => operands.next() == Some(false),
            Op::Binary(BinaryOp::Multiply | BinaryOp::Divide) => operands.fold(false, |sign, factor| sign != factor),
            _ => record.is_clear() && operands.next() == Some(true),
        }
    });
    let of_pair = |node: NodeId| {
        let (record, op) = (graph.node(node), graph.op(node));
        let (&[a, b], Some(dims)) = (&record.operands[..], graph.dims(record)) else { return 0 };
        let is_one_negative = is_negative[a as usize] != is_negative[b as usize];
        let is_difference = match op {
            Op::Binary(BinaryOp::Subtract) => !is_one_negative,
            Op::Binary(BinaryOp::Add) => is_one_negative,
            _ => false,
        };
        let [a, b] = [a, b].map(|value| extents[value as usize]);
        let n = a.of_both(b, dims).n_numbers();
        let is_small = a.n_numbers().max(b.n_numbers()) <= n / 2;
        if is_difference && is_small { n } else { 0 }
    };
    graph.node_ids().map(of_pair).collect()
}

/// Whether a node moves an f32 array, scales it, or adds a constant to it.
fn scales_or_moves(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let record = graph.node(node);
    let is_soft = match graph.op(node) {
        Op::Binary(BinaryOp::Multiply | BinaryOp::Divide) | Op::Unary(UnaryOp::Negate) => true,
        Op::Binary(BinaryOp::Add) => record.operands.iter().any(|&value| graph.constant(value).is_some()),
        _ => record.is_clear(),
    };
    is_soft && graph.value(record.first_result).is_f32()
}

/// Whether all elements of a constant are near `one`.
fn is_near(literal: &Literal, one: f32) -> bool {
    let elements = literal.elements::<f32>().unwrap_or_default();
    !elements.is_empty() && elements.iter().all(|x| (x - one).abs() <= NEAR_ONE)
}

/// The extent of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// The axes along which it varies, one bit each.
    axes: u64,
    /// How many different numbers it holds at most, in one step of a loop.
    n: i64,
    /// Whether it changes from step to step.
    is_of_step: bool,
}

impl Extent {
    /// The extent of a single number.
    const ONE: Extent = Extent { axes: 0, n: 1, is_of_step: false };

    /// How many different numbers it holds at most; in two steps, if it changes from step to step.
    pub(super) fn n_numbers(self) -> i64 {
        self.n.saturating_mul(if self.is_of_step { 2 } else { 1 })
    }

    /// The extent of what is computed from two values, element by element, in an array of these sizes.
    pub(super) fn of_both(self, other: Extent, dims: &[i64]) -> Extent {
        let axes = self.axes | other.axes;
        let is_of_step = self.is_of_step || other.is_of_step;
        Extent { axes, n: size(axes, dims).min(self.n.saturating_mul(other.n)), is_of_step }
    }
}

impl Default for Extent {
    /// A value whose extent is not known varies along all axes.
    fn default() -> Extent {
        Extent { axes: u64::MAX, n: i64::MAX, is_of_step: false }
    }
}

/// The extent of each value.
pub(super) fn extents(graph: &Dataflow<'_>) -> Vec<Extent> {
    let state = || graph.parameters().zip(&graph.results);
    let is_body = graph.frames[0].comp != graph.module.entry && graph.parameters().count() == graph.results.len();
    let changes = state().map(|(before, &after)| Extent { is_of_step: before != after, ..Extent::default() });
    let mut extents = graph.derived(changes.filter(|_| is_body), |node, extents: &[Extent]| {
        let (record, op) = (graph.node(node), graph.op(node));
        let is_of_step = record.operands.iter().any(|&value| extents[value as usize].is_of_step);
        let Some(dims) = graph.dims(record) else { return Extent { is_of_step, ..Extent::default() } };
        let extent_of = |&value: &ValueId| match (graph.value(value).n_elements, extents[value as usize].is_of_step) {
            (1, is_of_step) => Extent { is_of_step, ..Extent::ONE },
            _ => extents[value as usize],
        };
        let first = record.operands.first().map_or(Extent::default(), extent_of);
        let extent = match op {
            Op::Iota { dimension } => Extent { axes: bit(*dimension), ..Extent::default() },
            Op::Broadcast { dimensions } => {
                let along = (0..).zip(dimensions).filter(|&(axis, _)| first.axes & bit(axis) != 0);
                Extent { axes: along.fold(0, |axes, (_, &to)| axes | bit(to)), ..first }
            }
            _ if matches!(movement(op), Movement::Places | Movement::TakesPart) => Extent { axes: u64::MAX, ..first },
            _ if is_map(op) => {
                record.operands.iter().map(extent_of).reduce(|a, b| a.of_both(b, dims)).unwrap_or_default()
            }
            _ => Extent::default(),
        };
        Extent { n: extent.n.min(size(extent.axes, dims)), is_of_step, ..extent }
    });
    extents.iter_mut().zip(&graph.values).for_each(|(extent, value)| extent.n = extent.n.min(value.n_elements));
    extents
}

/// The bit of an axis. The last of them is that of all axes from the 64th on.
fn bit(axis: i64) -> u64 {
    1 << axis.min(63)
}

/// The number of elements along these axes of an array of these sizes.
fn size(axes: u64, dims: &[i64]) -> i64 {
    let along = (0..).zip(dims).filter(|&(axis, _)| axes & bit(axis) != 0);
    along.fold(1, |n: i64, (_, &size)| n.saturating_mul(size))
}

#[cfg(test)]
mod tests {
    use super::super::dataflow::CALL_ROOM;
    use super::super::policy::Classes;
    use super::*;
    use crate::amp::Policy;
    use bf16scope_hlo::{CompId, text};

    /// The names of the differences of pairs among these instructions, each with the most numbers that it holds.
    fn pairs(instructions: &str) -> Vec<(String, i64)> {
        let source = format!(
            "HloModule m\n\nENTRY main {{\n  x = f32[6,2] parameter(0)\n  y = f32[4,2] parameter(1)\n  \
             z = f32[6,4,2] parameter(2)\n  to = f32[6,4,2] broadcast(x), dimensions={{0,2}}\n  \
             from = f32[6,4,2] broadcast(y), dimensions={{1,2}}\n{instructions}  square = f32[6,4,2] multiply(d, d)\n  \
             ROOT all = (f32[6,4,2], f32[6,4,2]) tuple(square, z)\n}}\n"
        );
        let module = text::parse(&source, "m").unwrap();
        let policy = Policy::default();
        let graph = Dataflow::build(&Classes::new(&policy, &module), module.entry, CALL_ROOM);
        let pairs = graph.node_ids().zip(of_pairs(&graph, &extents(&graph))).filter(|(_, n)| *n > 0);
        pairs.map(|(node, n)| (graph.instr(graph.node(node)).name.clone(), n)).collect()
    }

    #[test]
    fn two_arrays_that_are_broadcast_against_each_other_are_a_pair_however_it_is_spelled() {
        let pair = vec![("d".to_string(), 48)];
        assert_eq!(pairs("  d = f32[6,4,2] subtract(to, from)\n"), pair);
        assert_eq!(pairs("  n = f32[6,4,2] negate(from)\n  d = f32[6,4,2] add(n, to)\n"), pair);
        let scaled = "  h = f32[] constant(-0.5)\n  hs = f32[6,4,2] broadcast(h), dimensions={}\n  \
                      a = f32[6,4,2] multiply(hs, to)\n  d = f32[6,4,2] add(a, from)\n";
        assert_eq!(pairs(scaled), pair);
        let tiled = "  t = f32[24,2] reshape(to)\n  f = f32[24,2] reshape(from)\n  e = f32[24,2] subtract(t, f)\n  \
                     d = f32[6,4,2] reshape(e)\n";
        assert_eq!(pairs(tiled), vec![("e".to_string(), 48)]);
    }

    #[test]
    fn what_each_step_of_a_loop_compares_with_the_same_array_is_a_pair() {
        let pairs = |row: &str, after: &str| {
            let source = format!(
                "HloModule m\n\nbody {{\n  s = (s32[], f32[6,2], f32[4,2], f32[4,2]) parameter(0)\n  \
                 i = s32[] get-tuple-element(s), index=0\n  x = f32[6,2] get-tuple-element(s), index=1\n  \
                 y = f32[4,2] get-tuple-element(s), index=2\n  last = f32[4,2] get-tuple-element(s), index=3\n  \
                 zero = s32[] constant(0)\n  slice = f32[1,2] dynamic-slice(x, {row}, zero), dynamic_slice_sizes={{1,2}}\n  \
                 point = f32[2] reshape(slice)\n  to = f32[4,2] broadcast(point), dimensions={{1}}\n  \
                 d = f32[4,2] subtract(to, y)\n  one = s32[] constant(1)\n  j = s32[] add(i, one)\n  \
                 ROOT r = (s32[], f32[6,2], f32[4,2], f32[4,2]) tuple(j, x, {after}, d)\n}}\n\n\
                 goes_on {{\n  t = (s32[], f32[6,2], f32[4,2], f32[4,2]) parameter(0)\n  \
                 k = s32[] get-tuple-element(t), index=0\n  six = s32[] constant(6)\n  \
                 ROOT less = pred[] compare(k, six), direction=LT\n}}\n\n\
                 ENTRY main {{\n  u = (s32[], f32[6,2], f32[4,2], f32[4,2]) parameter(0)\n  \
                 ROOT w = (s32[], f32[6,2], f32[4,2], f32[4,2]) while(u), condition=goes_on, body=body\n}}\n"
            );
            let module = text::parse(&source, "m").unwrap();
            let policy = Policy::default();
            let body = module.computations.iter().position(|comp| comp.name == "body").unwrap();
            let graph = Dataflow::build(&Classes::new(&policy, &module), CompId(body as u32), CALL_ROOM);
            of_pairs(&graph, &extents(&graph)).into_iter().max()
        };
        assert_eq!(pairs("i", "y"), Some(16));
        assert_eq!(pairs("zero", "y"), Some(0));
        assert_eq!(pairs("i", "last"), Some(0));
    }

    #[test]
    fn an_array_as_large_as_the_difference_is_no_part_of_a_pair() {
        assert_eq!(pairs("  d = f32[6,4,2] subtract(z, from)\n"), vec![]);
        assert_eq!(pairs("  d = f32[6,4,2] add(to, from)\n"), vec![]);
        // Two rows, repeated alike.
        let alike = "  s = f32[4,2] slice(x), slice={[0:4], [0:2]}\n  r = f32[6,4,2] broadcast(s), dimensions={1,2}\n  \
                     d = f32[6,4,2] subtract(from, r)\n";
        assert_eq!(pairs(alike), vec![]);
    }
}
