//! A sum over all trips of a loop that is made behind it, of stacks.

use bf16scope_hlo::{InstrId, Op, Shape};
use std::collections::BTreeMap;

/// A stack.
#[derive(Clone, Copy)]
pub(super) enum Factor {
    /// The stack of the residual with this number.
    Residual(usize),
    /// The cotangents of the rows of this element of the state.
    Rows(usize),
    /// The stack of the value of [`StackSums::stacked`] with this number.
    Stacked(usize),
}

/// A sum over all trips.
pub(super) enum Sum {
    /// A product of two stacks; the shape is its result's.
    Product(Op, [Factor; 2], Shape),
    /// A stack summed over its trips and these axes of it.
    Rows(Factor, Vec<i64>),
    /// Another form of a sum: a reshape, a transpose or a pad with zeros; the shape is its result's.
    Form(Op, Box<Sum>, Shape),
    /// Two sums added.
    Both([Box<Sum>; 2]),
}

/// The sums that are made behind a loop.
pub(super) struct StackSums {
    /// By element of the state.
    pub sums: BTreeMap<usize, Sum>,
    /// Values of the backward trip that get a stack for them.
    pub stacked: Vec<InstrId>,
}

impl StackSums {
    /// Whether the sum of the cotangents of element `idx` is made behind the loop, so that no trip adds to it.
    pub(super) fn contains(&self, idx: usize) -> bool {
        self.sums.contains_key(&idx)
    }
}
