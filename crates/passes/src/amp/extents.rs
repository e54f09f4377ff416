//! The extent of values: along which axes they vary, and how many different numbers they hold at most. A row that is
//! broadcast over a matrix varies along columns alone, and has as many numbers as the row. In a loop's body a value that
//! changes from step to step has as many again, at least.

use super::dataflow::{Dataflow, ValueId};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::{is_map, movement};
use bf16scope_hlo::ops::precision::Movement;

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
