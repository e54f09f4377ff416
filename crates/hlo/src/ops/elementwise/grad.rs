//! Gradients of elementwise ops.
//!
//! `g` is the cotangent of the result `y`. Formulas are those of TensorFlow's gradient kernels where it has one
//! (`TanhGrad`, `RsqrtGrad`, `SqrtGrad`, `SigmoidGrad`, `Pow`), so low-precision results round alike.
//!
//! Where a function has a kink, one rule holds everywhere: `abs` has gradient 0 at 0; `maximum` and `minimum` split
//! the cotangent of a tie evenly, as JAX does, except that a constant operand takes all of it, so `maximum(x, 0)` has
//! TensorFlow's ReLU gradient (0 at 0); `clamp` passes the cotangent of a value at a bound to the bound.

use super::{BinaryOp, Comparison, UnaryOp};
use crate::ops::grad::{Cotangents, Gradient, Vjp, constant_value, sum_all};
use crate::{Emitter, InstrId};

/// Emits the cotangent of `x` from `g`, `x` and `y`.
type Derivative = fn(e: &Emitter, g: InstrId, x: InstrId, y: InstrId) -> InstrId;

/// The rules of functions of one operand.
pub(crate) fn unary(op: UnaryOp) -> Gradient<'static> {
    const STEPS: &str = "it is constant between jumps";
    const NOT_FLOAT: &str = "its result is not a floating value";
    let derivative: Derivative = match op {
        UnaryOp::Abs => |e, g, x, _| e.mul(g, e.unary(UnaryOp::Sign, x)),
        UnaryOp::Acos => |e, g, x, _| e.neg(e.mul(g, e.unary(UnaryOp::Rsqrt, one_minus_square(e, x)))),
        UnaryOp::Acosh => |e, g, x, _| {
            let square_minus_one = e.mul(e.add_scalar(x, -1.0), e.add_scalar(x, 1.0));
            e.mul(g, e.unary(UnaryOp::Rsqrt, square_minus_one))
        },
        UnaryOp::Asin => |e, g, x, _| e.mul(g, e.unary(UnaryOp::Rsqrt, one_minus_square(e, x))),
        UnaryOp::Asinh => |e, g, x, _| e.mul(g, e.unary(UnaryOp::Rsqrt, e.add_scalar(e.mul(x, x), 1.0))),
        UnaryOp::Atanh => |e, g, x, _| e.div(g, one_minus_square(e, x)),
        UnaryOp::Cbrt => |e, g, _, y| e.div(g, e.mul_scalar(e.mul(y, y), 3.0)),
        UnaryOp::Copy => |_, g, _, _| g,
        UnaryOp::Cos => |e, g, x, _| e.neg(e.mul(g, e.unary(UnaryOp::Sin, x))),
        UnaryOp::Cosh => |e, g, x, _| e.mul(g, e.unary(UnaryOp::Sinh, x)),
        UnaryOp::Erf => |e, g, x, _| {
            let density = e.unary(UnaryOp::Exp, e.neg(e.mul(x, x)));
            e.mul(g, e.mul_scalar(density, std::f64::consts::FRAC_2_SQRT_PI))
        },
        UnaryOp::Exp => |e, g, _, y| e.mul(g, y),
        UnaryOp::Expm1 => |e, g, _, y| e.mul(g, e.add_scalar(y, 1.0)),
        UnaryOp::Log => |e, g, x, _| e.div(g, x),
        UnaryOp::Log1p => |e, g, x, _| e.div(g, e.add_scalar(x, 1.0)),
        UnaryOp::Logistic => |e, g, _, y| e.mul(e.mul(g, y), e.sub(e.ones_like(y), y)),
        UnaryOp::Negate => |e, g, _, _| e.neg(g),
        UnaryOp::Rsqrt => |e, g, _, y| e.mul(e.mul_scalar(g, -0.5), e.mul(y, e.mul(y, y))),
        UnaryOp::Sin => |e, g, x, _| e.mul(g, e.unary(UnaryOp::Cos, x)),
        UnaryOp::Sinh => |e, g, x, _| e.mul(g, e.unary(UnaryOp::Cosh, x)),
        UnaryOp::Sqrt => |e, g, _, y| e.div(e.mul_scalar(g, 0.5), y),
        UnaryOp::Tan => |e, g, _, y| e.mul(g, e.add_scalar(e.mul(y, y), 1.0)),
        UnaryOp::Tanh => |e, g, _, y| e.mul(g, e.sub(e.ones_like(y), e.mul(y, y))),
        UnaryOp::Ceil | UnaryOp::Floor | UnaryOp::RoundNearestAfz | UnaryOp::RoundNearestEven | UnaryOp::Sign => {
            return Gradient::Zero { why: STEPS };
        }
        UnaryOp::Clz | UnaryOp::IsFinite | UnaryOp::Not | UnaryOp::PopulationCount => {
            return Gradient::Zero { why: NOT_FLOAT };
        }
        UnaryOp::Imag | UnaryOp::Real => return Gradient::undefined(COMPLEX),
    };
    Gradient::vjp(move |vjp| vjp.each(|_| derivative(vjp.e, vjp.g(), vjp.operand(0), vjp.result)))
}

/// Why complex values have no rules.
pub(crate) const COMPLEX: &str = "gradients of complex values are not defined here; work on real and imaginary parts";

/// `(1 - x)(1 + x)`, which is accurate near 1, where `1 - x²` cancels.
fn one_minus_square(e: &Emitter, x: InstrId) -> InstrId {
    let one = e.ones_like(x);
    e.mul(e.sub(one, x), e.add(one, x))
}

/// The rules of `op(a, b)`.
pub(crate) fn binary(op: BinaryOp) -> Gradient<'static> {
    let rule: fn(&Vjp<'_>) -> Cotangents = match op {
        BinaryOp::Add => |vjp| vjp.each(|_| vjp.g()),
        BinaryOp::Subtract => |vjp| vjp.each(|idx| if idx == 0 { vjp.g() } else { vjp.e.neg(vjp.g()) }),
        BinaryOp::Multiply => |vjp| vjp.each(|idx| vjp.e.mul(vjp.g(), vjp.operand(1 - idx))),
        BinaryOp::Divide => divide,
        BinaryOp::Maximum => |vjp| extremum(vjp, Comparison::Gt),
        BinaryOp::Minimum => |vjp| extremum(vjp, Comparison::Lt),
        BinaryOp::Power => power,
        BinaryOp::Remainder => remainder,
        BinaryOp::Atan2 => atan2,
        BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRightArithmetic
        | BinaryOp::ShiftRightLogical
        | BinaryOp::Xor => return Gradient::Zero { why: "it works on integers and pred" },
        BinaryOp::Complex => return Gradient::undefined(COMPLEX),
    };
    Gradient::vjp(rule)
}

/// `y = a / b`: `g / b` and `-(g / b) y`.
fn divide(vjp: &Vjp<'_>) -> Cotangents {
    let e = vjp.e;
    let quotient = e.div(vjp.g(), vjp.operand(1));
    vjp.each(|idx| if idx == 0 { quotient } else { e.neg(e.mul(quotient, vjp.result)) })
}

/// `y = max(a, b)` (`wins` = GT) or `min(a, b)` (LT). In HLO NaN wins over everything; its gradient is 0.
fn extremum(vjp: &Vjp<'_>, wins: Comparison) -> Cotangents {
    let (e, g) = (vjp.e, vjp.g());
    let zeros = e.zeros_like(g);
    let constant = [0, 1].map(|idx| constant_value(e, vjp.operand(idx)).is_some());
    vjp.each(|idx| {
        let (this, other) = (vjp.operand(idx), vjp.operand(1 - idx));
        if constant[1 - idx] {
            // The result is equivalent to the operand here, and is kept anyway: a relu's next layer reads it.
            return e.select(e.compare(wins, vjp.result, other), g, zeros);
        }
        let tie = e.compare(Comparison::Eq, this, other);
        let at_tie = e.select(tie, e.mul_scalar(g, 0.5), zeros);
        e.select(e.compare(wins, this, other), g, at_tie)
    })
}

/// `y = a^b`: `g b a^(b-1)`, 0 where b is 0 (also at a = 0); `g y ln a`, 0 where a is not positive, as TensorFlow.
fn power(vjp: &Vjp<'_>) -> Cotangents {
    let (e, g, base, exponent) = (vjp.e, vjp.g(), vjp.operand(0), vjp.operand(1));
    let zeros = e.zeros_like(g);
    vjp.each(|idx| {
        if idx == 0 {
            let is_zero = e.compare(Comparison::Eq, exponent, zeros);
            let less_one = e.select(is_zero, e.ones_like(g), e.add_scalar(exponent, -1.0));
            let slope = e.mul(exponent, e.binary(BinaryOp::Power, base, less_one));
            e.mul(g, e.select(is_zero, zeros, slope))
        } else {
            let positive = e.compare(Comparison::Gt, base, zeros);
            let log = e.unary(UnaryOp::Log, e.select(positive, base, e.ones_like(g)));
            e.mul(g, e.mul(vjp.result, log))
        }
    })
}

/// `y = a - b trunc(a / b)`: `g` and `-g trunc(a / b)`, the truncated quotient recovered as `round((a - y) / b)`, which
/// does not jump where `a / b` rounds up to an integer.
fn remainder(vjp: &Vjp<'_>) -> Cotangents {
    let (e, g) = (vjp.e, vjp.g());
    vjp.each(|idx| {
        if idx == 0 {
            return g;
        }
        let quotient = e.div(e.sub(vjp.operand(0), vjp.result), vjp.operand(1));
        e.neg(e.mul(g, e.unary(UnaryOp::RoundNearestEven, quotient)))
    })
}

/// Angle of the point (b, a): `g b / (a² + b²)` and `-g a / (a² + b²)`.
fn atan2(vjp: &Vjp<'_>) -> Cotangents {
    let (e, lhs, rhs) = (vjp.e, vjp.operand(0), vjp.operand(1));
    let scaled = e.div(vjp.g(), e.add(e.mul(lhs, lhs), e.mul(rhs, rhs)));
    vjp.each(|idx| if idx == 0 { e.mul(scaled, rhs) } else { e.neg(e.mul(scaled, lhs)) })
}

/// Each branch gets the cotangent where it was taken.
pub(crate) fn select(vjp: &Vjp<'_>) -> Cotangents {
    let (e, g, pred) = (vjp.e, vjp.g(), vjp.operand(0));
    let zeros = e.zeros_like(g);
    vjp.each(|idx| if idx == 1 { e.select(pred, g, zeros) } else { e.select(pred, zeros, g) })
}

/// `min(max(low, x), high)`: `high` gets `g` where the rest is not below it, else `low` where x is not above it, else
/// x. A scalar bound gets the sum.
pub(crate) fn clamp(vjp: &Vjp<'_>) -> Cotangents {
    let (e, g, x) = (vjp.e, vjp.g(), vjp.operand(1));
    let dims = e.dims(x);
    let full = |bound: InstrId| if e.dims(bound).is_empty() { e.broadcast(bound, &[], &dims) } else { bound };
    let (low, high) = (full(vjp.operand(0)), full(vjp.operand(2)));
    let zeros = e.zeros_like(g);
    let raised = e.binary(BinaryOp::Maximum, low, x);
    let below_high = e.compare(Comparison::Lt, raised, high);
    let above_low = e.compare(Comparison::Gt, x, low);
    let to_bound = |cotangent: InstrId, bound: InstrId| {
        if e.dims(bound).is_empty() { sum_all(e, cotangent) } else { cotangent }
    };
    vjp.each(|idx| match idx {
        0 => to_bound(e.select(below_high, e.select(above_low, zeros, g), zeros), vjp.operand(0)),
        1 => e.select(below_high, e.select(above_low, g, zeros), zeros),
        _ => to_bound(e.select(below_high, zeros, g), vjp.operand(2)),
    })
}
