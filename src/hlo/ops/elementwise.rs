//! Elementwise ops: unary, binary, compare, select, clamp.
//!
//! Operands have one shape; the result has that shape (`compare` and `is-finite` give `pred`). A scalar stands in for
//! an array only as the predicate of `select` and the bounds of `clamp`; there is no implicit broadcasting in HLO.

use super::RuleError;
use crate::hlo::Shape;

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
                $name::ALL.iter().copied().find(|item| item.name() == name)
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
    /// Greatest integer not above x.
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

/// `[…]`, of a dtype that the function takes → the same shape (`pred` for `is-finite`, the part's dtype for `real` and
/// `imag`, and for `abs` of complex).
pub(super) fn unary(op: UnaryOp, operands: &[&Shape]) -> Result<Shape, RuleError> {
    todo!("{op:?} {operands:?}")
}

/// Two of one shape → that shape (`complex`: two floats → complex).
pub(super) fn binary(op: BinaryOp, operands: &[&Shape]) -> Result<Shape, RuleError> {
    todo!("{op:?} {operands:?}")
}

/// Two of one shape → `pred` of that shape.
pub(super) fn compare(
    direction: Comparison,
    kind: Option<CompareKind>,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    todo!("{direction:?} {kind:?} {operands:?}")
}

/// `pred` (scalar or of the shape), two of one shape → that shape.
pub(super) fn select(operands: &[&Shape]) -> Result<Shape, RuleError> {
    todo!("{operands:?}")
}

/// `low` (scalar or of the shape), `x`, `high` → the shape of `x`.
pub(super) fn clamp(operands: &[&Shape]) -> Result<Shape, RuleError> {
    todo!("{operands:?}")
}
