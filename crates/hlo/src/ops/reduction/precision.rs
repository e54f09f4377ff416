//! Precision classes of reductions and scatters, by their combiners.

use crate::ops::BinaryOp;
use crate::ops::grad::{Combiner, combiner};
use crate::ops::precision::Class;
use crate::{CompId, Module};

/// The class of `reduce` and `reduce-window`, by `to_apply`.
pub(crate) fn reduce(module: &Module, to_apply: CompId) -> Class {
    match combiner(module, to_apply) {
        Combiner::Binary(op) => combined(op),
        Combiner::Compare(_) | Combiner::Second => Class::Clear,
        Combiner::Other => Class::deny("its reduction does more than one op"),
    }
}

/// The class of `scatter`, by `to_apply`.
pub(crate) fn scatter(module: &Module, to_apply: CompId) -> Class {
    match combiner(module, to_apply) {
        Combiner::Second => Class::Clear,
        Combiner::Binary(op) => combined(op),
        Combiner::Compare(_) | Combiner::Other => Class::deny("its combination does more than one op"),
    }
}

pub(crate) fn combined(op: BinaryOp) -> Class {
    match op {
        BinaryOp::Maximum | BinaryOp::Minimum => Class::Clear,
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => Class::NotFloat,
        BinaryOp::Add | BinaryOp::Subtract => {
            Class::deny("a sum of many values loses what is under 2^-9 of it, and reduce has no f32 accumulator")
        }
        BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Power => {
            Class::deny("a product of many values gathers the rounding errors of all")
        }
        BinaryOp::Atan2
        | BinaryOp::Complex
        | BinaryOp::Remainder
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRightArithmetic
        | BinaryOp::ShiftRightLogical => Class::deny("nobody has shown that reducing by it bears rounding"),
    }
}
