//! Elementwise ops: unary, binary, compare, select, clamp.
//!
//! # Shapes
//! Operands have one shape; the result has that shape. A scalar stands in for an array only as the predicate of
//! `select` and the bounds of `clamp`: HLO broadcasts nothing by itself. `copy` takes tuples too. A dimension of the
//! result is dynamic if it is in any operand.
//!
//! # Types
//! Operands have one dtype, which is the result's, except: `compare` and `is-finite` return `pred`; `real`, `imag` and
//! `abs` return the part's dtype of a complex number; `complex` returns `c64` for `f32` and `c128` for `f64`.
//!
//! | ops | dtypes |
//! | --- | --- |
//! | `add` (or), `multiply` (and), `copy`, `compare`, `select` | any |
//! | `maximum`, `minimum`, `clamp` | not complex |
//! | `subtract`, `divide`, `power`, `negate` | integers, floats, complex |
//! | `remainder` | integers, floats |
//! | `and`, `or`, `xor`, `not` | integers (bitwise), `pred` (logical) |
//! | shifts, `count-leading-zeros`, `popcnt` | integers |
//! | `abs`, `sign` | signed integers, floats, complex |
//! | `cbrt`, `ceil`, `erf`, `floor`, `round-nearest-*`, `is-finite` | floats |
//! | `atan2`, `real`, `imag`, all other functions of one operand | floats, complex |
//!
//! # Values
//! A float result is rounded to its dtype, to nearest even where the back end computes it exactly (`add`, `subtract`,
//! `multiply`, `divide`, `sqrt`); transcendental functions are as accurate as the back end makes them. XLA's CPU computes
//! bf16 in f32 and rounds at the end. NaN gives NaN: `maximum` and `minimum` return NaN if either operand is, and so
//! does `clamp`; `sign` of NaN is NaN and of a zero that zero. `compare` orders floats as IEEE 754 does (NaN only `NE`)
//! unless its type is `TOTALORDER`. Integers wrap around; division by 0 gives all ones, remainder by 0 the dividend, the
//! least integer by -1 itself; a shift by the width or more gives 0 (the sign, if arithmetic).
//!
//! # Errors
//! `operands/*`, `complex/parts`, `compare/type`, `compare/complex`.
//!
//! # Source
//! XLA's operation semantics (element-wise functions); `InferUnaryOpShape`, `InferBinaryOpShape`, `InferSelectShape`
//! and `InferClampShape` of `shape_inference.cc`. An order of complex numbers (`compare`, `maximum`, `clamp`) passes
//! there without a specified meaning; shifts of floats and `remainder` of complex pass there and abort the CPU back
//! end: all of these are errors here.

pub(crate) mod grad;
pub(crate) mod precision;

use super::{RuleError, operands};
use crate::{ArrayShape, DType, DTypeClass, Shape};

macro_rules! named {
    ($(#[$outer:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal;)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them, in the order of the table.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// HLO's spelling.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The one with this spelling.
            pub fn from_name(name: &str) -> Option<$name> {
                match name {
                    $($text => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use named;

named! {
/// Functions of one operand.
UnaryOp {
    /// Magnitude, |x|.
    Abs = "abs";
    /// Arc cosine.
    Acos = "acos";
    /// Inverse hyperbolic cosine.
    Acosh = "acosh";
    /// Arc sine.
    Asin = "asin";
    /// Inverse hyperbolic sine.
    Asinh = "asinh";
    /// Inverse hyperbolic tangent.
    Atanh = "atanh";
    /// Cube root.
    Cbrt = "cbrt";
    /// Least integer not below x.
    Ceil = "ceil";
    /// Zero bits before the first one.
    Clz = "count-leading-zeros";
    /// A copy, in possibly another layout.
    Copy = "copy";
    /// Cosine.
    Cos = "cosine";
    /// Hyperbolic cosine.
    Cosh = "cosh";
    /// Error function.
    Erf = "erf";
    /// E^x.
    Exp = "exponential";
    /// E^x - 1, exact near 0.
    Expm1 = "exponential-minus-one";
    /// Largest integer not above x.
    Floor = "floor";
    /// Imaginary part.
    Imag = "imag";
    /// Neither infinite nor NaN, as pred.
    IsFinite = "is-finite";
    /// Natural logarithm.
    Log = "log";
    /// Log(1 + x), exact near 0.
    Log1p = "log-plus-one";
    /// 1 / (1 + e^-x).
    Logistic = "logistic";
    /// -x.
    Negate = "negate";
    /// Bitwise (integers) or logical (pred) not.
    Not = "not";
    /// One bits.
    PopulationCount = "popcnt";
    /// Real part.
    Real = "real";
    /// Nearest integer, ties away from zero.
    RoundNearestAfz = "round-nearest-afz";
    /// Nearest integer, ties to even.
    RoundNearestEven = "round-nearest-even";
    /// 1 / sqrt(x).
    Rsqrt = "rsqrt";
    /// -1, 0 or 1; NaN stays.
    Sign = "sign";
    /// Sine.
    Sin = "sine";
    /// Hyperbolic sine.
    Sinh = "sinh";
    /// Square root.
    Sqrt = "sqrt";
    /// Tangent.
    Tan = "tan";
    /// Hyperbolic tangent.
    Tanh = "tanh";
}}

named! {
/// Functions of two operands.
BinaryOp {
    /// Sum (logical or on pred).
    Add = "add";
    /// Angle of the point (rhs, lhs).
    Atan2 = "atan2";
    /// Bitwise or logical and.
    And = "and";
    /// Complex number from its parts.
    Complex = "complex";
    /// Quotient; integers truncate.
    Divide = "divide";
    /// Greater of two; NaN wins.
    Maximum = "maximum";
    /// Lesser of two; NaN wins.
    Minimum = "minimum";
    /// Product.
    Multiply = "multiply";
    /// Bitwise or logical or.
    Or = "or";
    /// Lhs to the rhs.
    Power = "power";
    /// Remainder with the sign of lhs.
    Remainder = "remainder";
    /// Lhs << rhs.
    ShiftLeft = "shift-left";
    /// Lhs >> rhs, copying the sign.
    ShiftRightArithmetic = "shift-right-arithmetic";
    /// Lhs >> rhs, filling zeros.
    ShiftRightLogical = "shift-right-logical";
    /// Difference.
    Subtract = "subtract";
    /// Bitwise or logical exclusive or.
    Xor = "xor";
}}

named! {
/// Directions of `compare`.
Comparison {
    /// Equal.
    Eq = "EQ";
    /// Not equal.
    Ne = "NE";
    /// Greater or equal.
    Ge = "GE";
    /// Greater.
    Gt = "GT";
    /// Less or equal.
    Le = "LE";
    /// Less.
    Lt = "LT";
}}

named! {
/// Orders `compare` can use.
CompareKind {
    /// IEEE order: NaN is unordered.
    Float = "FLOAT";
    /// `-NaN < -inf < … < -0 < +0 < … < inf < NaN`.
    TotalOrder = "TOTALORDER";
    /// Signed integers.
    Signed = "SIGNED";
    /// Unsigned integers and `pred`.
    Unsigned = "UNSIGNED";
}}

impl Comparison {
    /// The direction `d` for which `b d a` is `a self b`.
    pub const fn mirrored(self) -> Comparison {
        match self {
            Comparison::Lt => Comparison::Gt,
            Comparison::Le => Comparison::Ge,
            Comparison::Gt => Comparison::Lt,
            Comparison::Ge => Comparison::Le,
            Comparison::Eq => Comparison::Eq,
            Comparison::Ne => Comparison::Ne,
        }
    }

    /// Whether `a self b` holds; only `Ne` holds for numbers without order, as NaN.
    pub fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            Comparison::Lt => a < b,
            Comparison::Le => a <= b,
            Comparison::Gt => a > b,
            Comparison::Ge => a >= b,
            Comparison::Eq => a == b,
            Comparison::Ne => a != b,
        }
    }
}

impl CompareKind {
    /// The order that `compare` uses for a dtype by default.
    pub const fn default_of(dtype: DType) -> CompareKind {
        match dtype.class() {
            DTypeClass::Float | DTypeClass::Complex => CompareKind::Float,
            DTypeClass::Signed => CompareKind::Signed,
            DTypeClass::Unsigned | DTypeClass::Pred => CompareKind::Unsigned,
        }
    }
}

/// The dtypes for which a function is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Domain {
    Float,
    FloatOrComplex,
    Integer,
    IntegerOrPred,
    SignedOrComplex,
    Arithmetic,
    ArithmeticNotComplex,
    Ordered,
    Any,
}

impl Domain {
    fn accepts(self, dtype: DType) -> bool {
        match self {
            Domain::Float => dtype.is_float(),
            Domain::FloatOrComplex => dtype.is_float() || dtype.is_complex(),
            Domain::Integer => dtype.is_integer(),
            Domain::IntegerOrPred => dtype.is_integer() || dtype == DType::Pred,
            Domain::SignedOrComplex => dtype.is_signed(),
            Domain::Arithmetic => dtype != DType::Pred,
            Domain::ArithmeticNotComplex => dtype.is_integer() || dtype.is_float(),
            Domain::Ordered => !dtype.is_complex(),
            Domain::Any => true,
        }
    }

    const fn expected(self) -> &'static str {
        match self {
            Domain::Float => "a float dtype",
            Domain::FloatOrComplex => "a float or complex dtype",
            Domain::Integer => "an integer dtype",
            Domain::IntegerOrPred => "an integer dtype or pred",
            Domain::SignedOrComplex => "a signed integer, float or complex dtype",
            Domain::Arithmetic => "an integer, float or complex dtype",
            Domain::ArithmeticNotComplex => "an integer or float dtype",
            Domain::Ordered => "a dtype that is not complex",
            Domain::Any => "any dtype",
        }
    }

    fn check(self, op: &str, role: &str, array: &ArrayShape) -> Result<(), RuleError> {
        operands::dtype(op, role, array, |dtype| self.accepts(dtype), self.expected())
    }

    const fn of_unary(op: UnaryOp) -> Domain {
        match op {
            UnaryOp::Copy => Domain::Any,
            UnaryOp::Clz | UnaryOp::PopulationCount => Domain::Integer,
            UnaryOp::Not => Domain::IntegerOrPred,
            UnaryOp::Negate => Domain::Arithmetic,
            UnaryOp::Abs | UnaryOp::Sign => Domain::SignedOrComplex,
            UnaryOp::Cbrt
            | UnaryOp::Ceil
            | UnaryOp::Erf
            | UnaryOp::Floor
            | UnaryOp::IsFinite
            | UnaryOp::RoundNearestAfz
            | UnaryOp::RoundNearestEven => Domain::Float,
            UnaryOp::Acos
            | UnaryOp::Acosh
            | UnaryOp::Asin
            | UnaryOp::Asinh
            | UnaryOp::Atanh
            | UnaryOp::Cos
            | UnaryOp::Cosh
            | UnaryOp::Exp
            | UnaryOp::Expm1
            | UnaryOp::Imag
            | UnaryOp::Log
            | UnaryOp::Log1p
            | UnaryOp::Logistic
            | UnaryOp::Real
            | UnaryOp::Rsqrt
            | UnaryOp::Sin
            | UnaryOp::Sinh
            | UnaryOp::Sqrt
            | UnaryOp::Tan
            | UnaryOp::Tanh => Domain::FloatOrComplex,
        }
    }

    const fn of_binary(op: BinaryOp) -> Domain {
        match op {
            BinaryOp::Add | BinaryOp::Multiply => Domain::Any,
            BinaryOp::Maximum | BinaryOp::Minimum => Domain::Ordered,
            BinaryOp::Divide | BinaryOp::Power | BinaryOp::Subtract => Domain::Arithmetic,
            BinaryOp::Remainder => Domain::ArithmeticNotComplex,
            BinaryOp::Atan2 => Domain::FloatOrComplex,
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => Domain::IntegerOrPred,
            BinaryOp::ShiftLeft | BinaryOp::ShiftRightArithmetic | BinaryOp::ShiftRightLogical => Domain::Integer,
            BinaryOp::Complex => Domain::Float,
        }
    }
}

/// `[…]`, of a dtype that the function accepts → the same shape (`pred` for `is-finite`, the part's dtype for `real`
/// and `imag`, and for `abs` of complex). `copy` accepts tuples too.
pub(super) fn unary(op: UnaryOp, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let name = op.name();
    let [shape] = operands::arity(name, operands)?;
    if op == UnaryOp::Copy {
        operands::sane(name, "operand", shape)?;
        return Ok(shape.without_layout());
    }
    let operand = operands::array(name, "operand", shape)?;
    Domain::of_unary(op).check(name, "operand", operand)?;
    let dtype = match op {
        UnaryOp::IsFinite => DType::Pred,
        UnaryOp::Abs | UnaryOp::Real | UnaryOp::Imag => part_of(operand.dtype),
        _ => operand.dtype,
    };
    Ok(operands::like(operand, dtype).into())
}

/// The dtype of a complex number's parts; the dtype itself otherwise.
const fn part_of(dtype: DType) -> DType {
    match dtype {
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        other => other,
    }
}

/// Two of one shape → that shape (`complex`: two floats → complex).
pub(super) fn binary(op: BinaryOp, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let name = op.name();
    let (lhs, rhs) = two_alike(name, operands)?;
    Domain::of_binary(op).check(name, "lhs", lhs)?;
    let dtype = match (op, lhs.dtype) {
        (BinaryOp::Complex, DType::F32) => DType::C64,
        (BinaryOp::Complex, DType::F64) => DType::C128,
        (BinaryOp::Complex, _) => {
            let message = format!("complex parts are {}, expected f32 or f64", operands::show(lhs));
            return Err(RuleError::new("complex/parts", message).with_help("insert a `convert` of both parts to f32"));
        }
        (_, dtype) => dtype,
    };
    Ok(merged(lhs, rhs, dtype))
}

/// Two of one shape → `pred` of that shape.
pub(super) fn compare(
    direction: Comparison,
    kind: Option<CompareKind>,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let (lhs, rhs) = two_alike("compare", operands)?;
    let kinds: &[CompareKind] = match lhs.dtype.class() {
        DTypeClass::Float => &[CompareKind::Float, CompareKind::TotalOrder],
        DTypeClass::Complex => &[CompareKind::Float],
        DTypeClass::Signed => &[CompareKind::Signed],
        DTypeClass::Unsigned | DTypeClass::Pred => &[CompareKind::Unsigned],
    };
    if let Some(kind) = kind.filter(|kind| !kinds.contains(kind)) {
        let expected: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        let message = format!("compare type of {} is {}, expected {}", lhs.dtype, kind.name(), expected.join(" or "));
        return Err(
            RuleError::new("compare/type", message).with_help("leave the type out to use the dtype's own order")
        );
    }
    if lhs.dtype.is_complex() && !matches!(direction, Comparison::Eq | Comparison::Ne) {
        let message = format!("compare direction of {} is {}, expected EQ or NE", lhs.dtype, direction.name());
        return Err(RuleError::new("compare/complex", message)
            .with_help("complex numbers have no order: compare their `real`, `imag` or `abs`"));
    }
    Ok(merged(lhs, rhs, DType::Pred))
}

/// `pred` (scalar or of the shape), two of one shape → that shape.
pub(super) fn select(operands: &[&Shape]) -> Result<Shape, RuleError> {
    let [pred, on_true, on_false] = operands::arity("select", operands)?;
    let pred = operands::array("select", "pred", pred)?;
    operands::dtype("select", "pred", pred, |dtype| dtype == DType::Pred, "pred")?;
    let on_true = operands::array("select", "on_true", on_true)?;
    let on_false = operands::array("select", "on_false", on_false)?;
    operands::same_dtype("select", ("on_true", on_true), ("on_false", on_false))?;
    operands::same_dims("select", ("on_true", on_true), ("on_false", on_false))?;
    scalar_or_same_dims("select", ("pred", pred), ("on_true", on_true))?;
    let dynamic = operands::dynamic_flags(on_true.rank(), |axis| {
        pred.is_dynamic(axis) || on_true.is_dynamic(axis) || on_false.is_dynamic(axis)
    });
    Ok(ArrayShape { dynamic, ..operands::like(on_true, on_true.dtype) }.into())
}

/// `low` (scalar or of the shape), `x`, `high` → the shape of `x`.
pub(super) fn clamp(operands: &[&Shape]) -> Result<Shape, RuleError> {
    let [low, x, high] = operands::arity("clamp", operands)?;
    let x = operands::array("clamp", "operand", x)?;
    Domain::Ordered.check("clamp", "operand", x)?;
    for (role, bound) in [("low", low), ("high", high)] {
        let bound = operands::array("clamp", role, bound)?;
        operands::same_dtype("clamp", ("operand", x), (role, bound))?;
        scalar_or_same_dims("clamp", (role, bound), ("operand", x))?;
    }
    Ok(operands::like(x, x.dtype).into())
}

/// Exactly two arrays of one dtype and dims.
fn two_alike<'a>(op: &str, operands: &[&'a Shape]) -> Result<(&'a ArrayShape, &'a ArrayShape), RuleError> {
    let [lhs, rhs] = operands::arity(op, operands)?;
    let lhs = operands::array(op, "lhs", lhs)?;
    let rhs = operands::array(op, "rhs", rhs)?;
    operands::same_dtype(op, ("lhs", lhs), ("rhs", rhs))?;
    operands::same_dims(op, ("lhs", lhs), ("rhs", rhs))?;
    Ok((lhs, rhs))
}

/// A scalar, or an array of the dims of another.
fn scalar_or_same_dims(op: &str, small: (&str, &ArrayShape), whole: (&str, &ArrayShape)) -> Result<(), RuleError> {
    if small.1.dims.is_empty() { Ok(()) } else { operands::same_dims(op, small, whole) }
}

/// The shape of two arrays of equal dims, where a dimension is dynamic if it is in either.
fn merged(lhs: &ArrayShape, rhs: &ArrayShape, dtype: DType) -> Shape {
    let dynamic = operands::dynamic_flags(lhs.rank(), |axis| lhs.is_dynamic(axis) || rhs.is_dynamic(axis));
    ArrayShape { dynamic, ..operands::like(lhs, dtype) }.into()
}

#[cfg(test)]
mod tests;
