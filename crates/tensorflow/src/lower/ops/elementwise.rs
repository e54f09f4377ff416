//! Elementwise ops: unary ops, binary ops with broadcasting, selects and casts.
//!
//! Source: `unary_ops.cc`, `binary_ops.cc`, `elu_op.cc`, `relu_op.cc`, `select_op.cc`, `cast_op.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::{BinaryOp, DType, InstrId, Op, UnaryOp};

pub(super) const TABLE: Table = &[
    ("Abs", |c| c.unary_op(UnaryOp::Abs)),
    ("Acos", acos),
    ("Acosh", acosh),
    ("Asin", asin),
    ("Asinh", asinh),
    ("Atanh", atanh),
    ("Ceil", |c| c.unary_op(UnaryOp::Ceil)),
    ("Cos", |c| c.unary_op(UnaryOp::Cos)),
    ("Cosh", |c| c.half_exponentials(BinaryOp::Add)),
    ("Erf", |c| c.unary_op(UnaryOp::Erf)),
    ("Exp", |c| c.unary_op(UnaryOp::Exp)),
    ("Expm1", |c| c.unary_op(UnaryOp::Expm1)),
    ("Floor", |c| c.unary_op(UnaryOp::Floor)),
    ("Invert", |c| c.unary_op(UnaryOp::Not)),
    ("IsFinite", |c| c.unary_op(UnaryOp::IsFinite)),
    ("Log", |c| c.unary_op(UnaryOp::Log)),
    ("Log1p", |c| c.unary_op(UnaryOp::Log1p)),
    ("LogicalNot", |c| c.unary_op(UnaryOp::Not)),
    ("Neg", |c| c.unary_op(UnaryOp::Negate)),
    ("Rint", |c| c.unary_op(UnaryOp::RoundNearestEven)),
    ("Round", round),
    ("Rsqrt", |c| c.unary_op(UnaryOp::Rsqrt)),
    ("Sigmoid", |c| c.unary_op(UnaryOp::Logistic)),
    ("Sign", |c| c.unary_op(UnaryOp::Sign)),
    ("Sin", |c| c.unary_op(UnaryOp::Sin)),
    ("Sinh", sinh),
    ("Sqrt", |c| c.unary_op(UnaryOp::Sqrt)),
    ("Tan", |c| c.unary_op(UnaryOp::Tan)),
    ("Tanh", |c| c.unary_op(UnaryOp::Tanh)),
    ("Inv", reciprocal),
    ("Reciprocal", reciprocal),
    ("Square", |c| {
        let x = c.array(0)?;
        c.one(c.e().mul(x, x))
    }),
    ("IsNan", |c| {
        let x = c.array(0)?;
        c.one(c.e().compare(Comparison::Ne, x, x))
    }),
    ("IsInf", |c| {
        let x = c.array(0)?;
        let size = c.e().unary(UnaryOp::Abs, x);
        c.one(c.e().compare(Comparison::Eq, size, c.like(x, f64::INFINITY)))
    }),
    ("Relu", |c| {
        let x = c.array(0)?;
        c.one(c.e().binary(BinaryOp::Maximum, c.like(x, 0.0), x))
    }),
    ("Relu6", |c| {
        let x = c.array(0)?;
        c.one(c.clamped(c.like(x, 0.0), x, c.like(x, 6.0)))
    }),
    ("LeakyRelu", |c| {
        let (x, alpha) = (c.array(0)?, c.alpha());
        let scaled = c.e().mul_scalar(x, alpha);
        c.one(c.e().select(c.is_positive(x), x, scaled))
    }),
    ("Elu", |c| {
        let x = c.array(0)?;
        c.one(c.e().select(c.is_positive(x), x, c.e().unary(UnaryOp::Expm1, x)))
    }),
    ("Selu", |c| {
        let x = c.array(0)?;
        let below = c.e().mul_scalar(c.e().unary(UnaryOp::Expm1, x), SELU_SCALE_ALPHA);
        c.one(c.e().select(c.is_positive(x), c.e().mul_scalar(x, SELU_SCALE), below))
    }),
    ("Softplus", softplus),
    ("Softsign", |c| {
        let x = c.array(0)?;
        let size = c.e().add_scalar(c.e().unary(UnaryOp::Abs, x), 1.0);
        c.one(c.e().div(x, size))
    }),
    ("Add", add),
    ("AddV2", add),
    ("Atan2", |c| c.binary_op(BinaryOp::Atan2)),
    ("BitwiseAnd", |c| c.binary_op(BinaryOp::And)),
    ("BitwiseOr", |c| c.binary_op(BinaryOp::Or)),
    ("BitwiseXor", |c| c.binary_op(BinaryOp::Xor)),
    ("Div", |c| c.binary_op(BinaryOp::Divide)),
    ("LeftShift", |c| c.binary_op(BinaryOp::ShiftLeft)),
    ("LogicalAnd", |c| c.binary_op(BinaryOp::And)),
    ("LogicalOr", |c| c.binary_op(BinaryOp::Or)),
    ("Maximum", |c| c.binary_op(BinaryOp::Maximum)),
    ("Minimum", |c| c.binary_op(BinaryOp::Minimum)),
    ("Mul", |c| c.binary_op(BinaryOp::Multiply)),
    ("Pow", |c| c.binary_op(BinaryOp::Power)),
    ("RealDiv", |c| c.binary_op(BinaryOp::Divide)),
    ("Sub", |c| c.binary_op(BinaryOp::Subtract)),
    ("TruncateDiv", |c| c.binary_op(BinaryOp::Divide)),
    ("TruncateMod", |c| c.binary_op(BinaryOp::Remainder)),
    ("RightShift", |c| {
        let x = c.array(0)?;
        let is_signed = matches!(c.dtype(x), DType::S8 | DType::S16 | DType::S32 | DType::S64);
        c.binary_op(if is_signed { BinaryOp::ShiftRightArithmetic } else { BinaryOp::ShiftRightLogical })
    }),
    ("Mod", |c| c.binary_op(BinaryOp::Remainder)),
    ("FloorMod", floor_mod),
    ("FloorDiv", floor_div),
    ("DivNoNan", |c| c.guarded(1, BinaryOp::Divide)),
    ("MulNoNan", |c| c.guarded(1, BinaryOp::Multiply)),
    ("Xdivy", |c| c.guarded(0, BinaryOp::Divide)),
    ("Xlogy", |c| c.x_times(UnaryOp::Log)),
    ("Xlog1py", |c| c.x_times(UnaryOp::Log1p)),
    ("SquaredDifference", |c| {
        let (x, y) = c.pair()?;
        let difference = c.e().sub(x, y);
        c.one(c.e().mul(difference, c.conjugate(difference)))
    }),
    ("Equal", |c| c.compared(Comparison::Eq)),
    ("NotEqual", |c| c.compared(Comparison::Ne)),
    ("Greater", |c| c.compared(Comparison::Gt)),
    ("GreaterEqual", |c| c.compared(Comparison::Ge)),
    ("Less", |c| c.compared(Comparison::Lt)),
    ("LessEqual", |c| c.compared(Comparison::Le)),
    ("ApproximateEqual", |c| {
        let (x, y) = c.pair()?;
        let tolerance = f64::from(c.node.float("tolerance").unwrap_or(1e-5));
        let difference = c.e().unary(UnaryOp::Abs, c.e().sub(x, y));
        c.one(c.e().compare(Comparison::Lt, difference, c.like(x, tolerance)))
    }),
    ("AddN", add_n),
    ("AccumulateNV2", add_n),
    ("ClipByValue", |c| {
        let x = c.array(0)?;
        let dims = c.dims(x);
        let (low, high) = (c.array(1)?, c.array(2)?);
        let (low, high) = (c.broadcast_to(low, &dims)?, c.broadcast_to(high, &dims)?);
        c.one(c.clamped(low, x, high))
    }),
    ("BiasAdd", |c| {
        let (x, bias) = (c.array(0)?, c.array(1)?);
        let dims = c.dims(x);
        let axis = c.channel_axis(dims.len());
        c.one(c.e().add(x, c.along(bias, axis, &dims)))
    }),
    ("BiasAddV1", |c| c.binary_op(BinaryOp::Add)),
    ("Select", select),
    ("SelectV2", |c| {
        let (pred, x, y) = (c.array(0)?, c.array(1)?, c.array(2)?);
        let dims = c.broadcast_dims(&c.broadcast_dims(&c.dims(pred), &c.dims(x))?, &c.dims(y))?;
        let (pred, x, y) = (c.broadcast_to(pred, &dims)?, c.broadcast_to(x, &dims)?, c.broadcast_to(y, &dims)?);
        c.one(c.e().select(pred, x, y))
    }),
    ("Cast", cast),
    ("Bitcast", bitcast),
];

const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
const SELU_SCALE_ALPHA: f64 = 1.758_099_340_847_376_9;

fn add(c: &mut Call<'_, '_>) -> Outputs {
    match c.sum_of_lists() {
        Some(sum) => sum,
        None => c.binary_op(BinaryOp::Add),
    }
}

fn add_n(c: &mut Call<'_, '_>) -> Outputs {
    if let Some(sum) = c.sum_of_lists() {
        return sum;
    }
    let all = c.arrays(0, c.inputs.len())?;
    let sum = all.iter().copied().reduce(|sum, x| c.e().add(sum, x));
    c.one(sum.ok_or_else(|| Problem::new("it has no inputs"))?)
}

impl Call<'_, '_> {
    fn unary_op(&mut self, op: UnaryOp) -> Outputs {
        let x = self.array(0)?;
        self.one(self.e().unary(op, x))
    }

    /// (e^x ± e^-x) / 2, with 1 / 2 inside the exponentials so that large x does not overflow too early.
    fn half_exponentials(&mut self, op: BinaryOp) -> Outputs {
        let x = self.array(0)?;
        let half = |x: InstrId| self.e().unary(UnaryOp::Exp, self.e().add_scalar(x, -std::f64::consts::LN_2));
        let (up, down) = (half(x), half(self.e().neg(x)));
        self.one(self.e().binary(op, up, down))
    }

    /// Both inputs, broadcast to common dims.
    pub(super) fn pair(&mut self) -> Result<(InstrId, InstrId), Problem> {
        let (x, y) = (self.array(0)?, self.array(1)?);
        self.same(x, y)
    }

    fn binary_op(&mut self, op: BinaryOp) -> Outputs {
        let (x, y) = self.pair()?;
        self.one(self.e().binary(op, x, y))
    }

    fn compared(&mut self, direction: Comparison) -> Outputs {
        let (x, y) = self.pair()?;
        self.one(self.e().compare(direction, x, y))
    }

    /// The complex conjugate; real numbers themselves.
    pub(super) fn conjugate(&self, x: InstrId) -> InstrId {
        if !matches!(self.dtype(x), DType::C64 | DType::C128) {
            return x;
        }
        let (real, imaginary) = (self.e().unary(UnaryOp::Real, x), self.e().unary(UnaryOp::Imag, x));
        self.e().binary(BinaryOp::Complex, real, self.e().neg(imaginary))
    }

    /// A binary op that is 0 where input `zero` is 0.
    fn guarded(&mut self, zero: usize, op: BinaryOp) -> Outputs {
        let (x, y) = self.pair()?;
        let nought = self.like(x, 0.0);
        let is_zero = self.e().compare(Comparison::Eq, [x, y][zero], nought);
        self.one(self.e().select(is_zero, nought, self.e().binary(op, x, y)))
    }

    fn x_times(&mut self, op: UnaryOp) -> Outputs {
        let (x, y) = self.pair()?;
        let nought = self.like(x, 0.0);
        let is_zero = self.e().compare(Comparison::Eq, x, nought);
        self.one(self.e().select(is_zero, nought, self.e().mul(x, self.e().unary(op, y))))
    }

    pub(super) fn is_positive(&self, x: InstrId) -> InstrId {
        self.e().compare(Comparison::Gt, x, self.like(x, 0.0))
    }

    pub(super) fn alpha(&self) -> f64 {
        f64::from(self.node.float("alpha").unwrap_or(0.2))
    }

    pub(super) fn clamped(&self, low: InstrId, x: InstrId, high: InstrId) -> InstrId {
        self.e().emit(Op::Clamp, &[low, x, high], None)
    }

    /// The axis of channels, by `data_format`.
    pub(super) fn channel_axis(&self, rank: usize) -> i64 {
        match self.node.text("data_format") {
            format if format.starts_with("NC") => 1,
            _ => rank as i64 - 1,
        }
    }
}

/// Inverse functions are written out as in XLA's client library, since back ends do not have them as instructions.
fn acos(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let e = c.e();
    let root = e.unary(UnaryOp::Sqrt, e.sub(c.like(x, 1.0), e.mul(x, x)));
    let angle = e.mul_scalar(e.binary(BinaryOp::Atan2, root, e.add_scalar(x, 1.0)), 2.0);
    let is_inside = e.compare(Comparison::Ne, x, c.like(x, -1.0));
    c.one(e.select(is_inside, angle, c.like(x, std::f64::consts::PI)))
}

fn asin(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let e = c.e();
    let root = e.unary(UnaryOp::Sqrt, e.sub(c.like(x, 1.0), e.mul(x, x)));
    c.one(e.mul_scalar(e.binary(BinaryOp::Atan2, x, e.add_scalar(root, 1.0)), 2.0))
}

fn atanh(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let e = c.e();
    let difference = e.sub(e.unary(UnaryOp::Log1p, x), e.unary(UnaryOp::Log1p, e.neg(x)));
    c.one(e.mul_scalar(difference, 0.5))
}

/// log(2x) for large x, whose square would overflow.
fn asinh(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let e = c.e();
    let size = e.unary(UnaryOp::Abs, x);
    let square = e.mul(size, size);
    let root = e.add_scalar(e.unary(UnaryOp::Sqrt, e.add_scalar(square, 1.0)), 1.0);
    let near = e.unary(UnaryOp::Log1p, e.add(size, e.div(square, root)));
    let far = e.add_scalar(e.unary(UnaryOp::Log, size), std::f64::consts::LN_2);
    let is_far = e.compare(Comparison::Gt, size, c.like(x, 1e18));
    c.one(e.mul(e.unary(UnaryOp::Sign, x), e.select(is_far, far, near)))
}

fn acosh(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let e = c.e();
    let root = e.unary(UnaryOp::Sqrt, e.mul(e.add_scalar(x, 1.0), e.add_scalar(x, -1.0)));
    let near = e.unary(UnaryOp::Log, e.add(x, root));
    let far = e.add_scalar(e.unary(UnaryOp::Log, x), std::f64::consts::LN_2);
    c.one(e.select(e.compare(Comparison::Gt, x, c.like(x, 1e18)), far, near))
}

/// Computed from e^x - 1 near 0, which does not cancel.
fn sinh(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let far = c.half_exponentials(BinaryOp::Subtract)?;
    let [Value::Array(far)] = far[..] else { return Ok(far) };
    let e = c.e();
    let expm1 = e.unary(UnaryOp::Expm1, x);
    let near = e.mul_scalar(e.add(expm1, e.div(expm1, e.add_scalar(expm1, 1.0))), 0.5);
    let is_near = e.compare(Comparison::Lt, e.unary(UnaryOp::Abs, x), c.like(x, 1.0));
    c.one(e.select(is_near, near, far))
}

fn reciprocal(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    c.one(c.e().div(c.like(x, 1.0), x))
}

fn round(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    c.one(if c.dtype(x).is_float() { c.e().unary(UnaryOp::RoundNearestEven, x) } else { x })
}

/// log(1 + e^x), which is x where e^x is large, and e^x where it is small. As `unary_ops.cc` of `tf2xla/kernels` does, the bound
/// log(ε) + 2 is computed in the dtype, rounding by rounding: numbers of 16 bits lie on its other side otherwise.
fn softplus(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let dtype = c.dtype(x);
    let epsilon = match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => f64::from(f32::EPSILON),
    };
    let dims = c.dims(x);
    let e = c.e();
    let logarithm = e.unary(UnaryOp::Log, e.scalar(dtype, epsilon));
    let threshold = e.add(logarithm, e.scalar(dtype, 2.0));
    let is_large = e.compare(Comparison::Gt, x, e.broadcast(e.neg(threshold), &[], &dims));
    let is_small = e.compare(Comparison::Lt, x, e.broadcast(threshold, &[], &dims));
    let exp = e.unary(UnaryOp::Exp, x);
    let between = e.unary(UnaryOp::Log1p, exp);
    c.one(e.select(is_large, x, e.select(is_small, exp, between)))
}

/// The remainder with the sign of the divisor.
fn floor_mod(c: &mut Call<'_, '_>) -> Outputs {
    let (x, y) = c.pair()?;
    let remainder = c.e().binary(BinaryOp::Remainder, x, y);
    let zero = c.like(x, 0.0);
    let is_off = c.e().compare(Comparison::Ne, remainder, zero);
    let signs = [remainder, y].map(|x| c.e().compare(Comparison::Lt, x, zero));
    let differ = c.e().compare(Comparison::Ne, signs[0], signs[1]);
    let is_moved = c.e().binary(BinaryOp::And, is_off, differ);
    c.one(c.e().select(is_moved, c.e().add(remainder, y), remainder))
}

/// The quotient rounded down.
fn floor_div(c: &mut Call<'_, '_>) -> Outputs {
    let (x, y) = c.pair()?;
    let quotient = c.e().div(x, y);
    if c.dtype(x).is_float() {
        return c.one(c.e().unary(UnaryOp::Floor, quotient));
    }
    let zero = c.like(x, 0.0);
    let remainder = c.e().binary(BinaryOp::Remainder, x, y);
    let is_off = c.e().compare(Comparison::Ne, remainder, zero);
    let signs = [x, y].map(|x| c.e().compare(Comparison::Lt, x, zero));
    let differ = c.e().compare(Comparison::Ne, signs[0], signs[1]);
    let is_lower = c.e().binary(BinaryOp::And, is_off, differ);
    c.one(c.e().select(is_lower, c.e().sub(quotient, c.like(x, 1.0)), quotient))
}

/// A select by a predicate for each element, for each row, or for the whole array.
fn select(c: &mut Call<'_, '_>) -> Outputs {
    let (pred, x, y) = (c.array(0)?, c.array(1)?, c.array(2)?);
    let dims = c.dims(x);
    let pred = match c.dims(pred).len() {
        1 if dims.len() > 1 => c.along(pred, 0, &dims),
        _ => c.broadcast_to(pred, &dims)?,
    };
    c.one(c.e().select(pred, x, y))
}

fn cast(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let dtype = c.dtype_of("DstT")?;
    let wide = c.dtype(x);
    if c.node.flag("Truncate") && wide.is_float() && dtype.is_float() && dtype.bits() < wide.bits() {
        return Err(Problem::new(format!("it cuts {wide} off to {dtype} (`Truncate`), which HLO's convert does not"))
            .with_help("cast without `Truncate`, which rounds to nearest"));
    }
    if dtype == DType::Pred && c.dtype(x) != DType::Pred {
        return c.one(c.e().compare(Comparison::Ne, x, c.like(x, 0.0)));
    }
    c.one(c.e().convert(x, dtype))
}

fn bitcast(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let dtype = c.dtype_of("type")?;
    if c.dtype(x).bits() != dtype.bits() {
        return Err(Problem::new(format!("it makes {dtype} of {}, which is not as wide", c.dtype(x))));
    }
    let shape = bf16scope_hlo::Shape::array(dtype, c.dims(x));
    c.one(c.e().emit(Op::BitcastConvert, &[x], Some(&shape)))
}
