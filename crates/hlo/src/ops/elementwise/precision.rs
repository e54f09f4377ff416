//! Precision classes of elementwise functions.
//!
//! *Infer* if the result's relative error is that of the operands and one more rounding, or (`tanh`, `logistic`,
//! `erf`) its absolute error no more than theirs. *Deny* if an operand's relative error of 2^-9 may become an
//! arbitrarily greater one of the result: `exp(x)` has the absolute error of `x`, `log` that of its result near 1.

use super::{BinaryOp, UnaryOp};
use crate::ops::precision::{Amplification, Class};

/// The class of a function of one operand.
pub(crate) fn unary(op: UnaryOp) -> Class {
    match op {
        UnaryOp::Abs | UnaryOp::Copy | UnaryOp::Negate | UnaryOp::IsFinite => Class::Clear,
        UnaryOp::Cbrt
        | UnaryOp::Erf
        | UnaryOp::Logistic
        | UnaryOp::Rsqrt
        | UnaryOp::Sign
        | UnaryOp::Sqrt
        | UnaryOp::Tanh => Class::Infer,
        UnaryOp::Exp | UnaryOp::Expm1 | UnaryOp::Cosh | UnaryOp::Sinh => {
            Class::deny("it turns an absolute error of its operand into a relative one of its result")
        }
        UnaryOp::Log | UnaryOp::Log1p | UnaryOp::Acosh | UnaryOp::Asinh | UnaryOp::Atanh => {
            Class::deny("near its zero or its pole a rounded operand loses most of the result")
        }
        UnaryOp::Cos | UnaryOp::Sin => Class::deny(
            "angles need absolute precision, which a rounded one of many turns does not have; those that come of products \
             have lost it",
        ),
        UnaryOp::Acos | UnaryOp::Asin | UnaryOp::Tan => {
            Class::deny("angles need absolute precision, which a rounded one of many turns does not have")
        }
        UnaryOp::Ceil | UnaryOp::Floor | UnaryOp::RoundNearestAfz | UnaryOp::RoundNearestEven => {
            Class::island("a rounded operand may cross into the next integer, and integers past 256 are not all bf16")
        }
        UnaryOp::Imag | UnaryOp::Real => Class::deny("complex values have no low precision"),
        UnaryOp::Clz | UnaryOp::Not | UnaryOp::PopulationCount => Class::NotFloat,
    }
}

/// The amplification of a function of one operand.
pub(crate) fn amplified(op: UnaryOp) -> Amplification {
    match op {
        UnaryOp::Cos | UnaryOp::Sin => Amplification::Angle,
        UnaryOp::Exp => Amplification::Exponent,
        _ => Amplification::None,
    }
}

/// Whether a function gives integers of integers.
pub(crate) fn unary_is_exact_on_integers(op: UnaryOp) -> bool {
    use UnaryOp::{Abs, Ceil, Copy, Floor, Negate, RoundNearestAfz, RoundNearestEven, Sign};
    matches!(op, Abs | Ceil | Copy | Floor | Negate | RoundNearestAfz | RoundNearestEven | Sign)
}

/// The same of a function of two operands.
pub(crate) fn binary_is_exact_on_integers(op: BinaryOp) -> bool {
    use BinaryOp::{Add, Maximum, Minimum, Multiply, Subtract};
    matches!(op, Add | Maximum | Minimum | Multiply | Subtract)
}

/// The class of a function of two operands.
pub(crate) fn binary(op: BinaryOp) -> Class {
    match op {
        BinaryOp::Maximum | BinaryOp::Minimum => Class::Clear,
        BinaryOp::Add | BinaryOp::Divide | BinaryOp::Multiply | BinaryOp::Subtract => Class::Infer,
        BinaryOp::Power => Class::deny("the exponent multiplies the operand's relative error"),
        BinaryOp::Remainder => Class::deny("the remainder is what rounding its operand throws away"),
        BinaryOp::Atan2 => {
            Class::deny("angles need absolute precision, which a rounded one of many turns does not have")
        }
        BinaryOp::Complex => Class::deny("complex values have no low precision"),
        BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRightArithmetic
        | BinaryOp::ShiftRightLogical
        | BinaryOp::Xor => Class::NotFloat,
    }
}
