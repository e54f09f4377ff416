//! Checks of operands, attributes and called computations that the shape rules of all families share.
//!
//! Every function takes the opcode and the role of the value that it checks, and names both in its message. A rule in
//! this file has one name for all ops (`operands/arity`); rules of a single op are in that op's family. Shapes are not
//! trusted: negative and absurd sizes are rejected, so neither the arithmetic of the rules nor XLA's overflows.
//!
//! Source: XLA's `shape_inference.cc` and `shape_util.cc`.

use super::{Callees, RuleError, Signature};
use crate::{ArrayShape, CompId, DType, Shape};
use std::fmt::Display;

/// The operands as an array of `N`.
pub(super) fn arity<'a, const N: usize>(op: &str, operands: &[&'a Shape]) -> Result<[&'a Shape; N], RuleError> {
    operands.try_into().map_err(|_| arity_error(op, N, operands.len()))
}

/// The error for an op that takes `expected` operands.
pub(super) fn arity_error(op: &str, expected: usize, measured: usize) -> RuleError {
    let plural = if expected == 1 { "" } else { "s" };
    RuleError::new("operands/arity", format!("{op} takes {expected} operand{plural}, got {measured}"))
}

/// The operand as an array of a sane size: see [`check_size`].
pub(super) fn array<'a>(op: &str, role: impl Display, shape: &'a Shape) -> Result<&'a ArrayShape, RuleError> {
    let Shape::Array(array) = shape else {
        return Err(RuleError::new("operands/kind", format!("{op} {role} is {shape}, expected an array")));
    };
    check_size(op, role, array)?;
    Ok(array)
}

/// Every operand as an array; roles are `operand 0`, `operand 1`, …
pub(super) fn arrays<'a>(op: &str, operands: &[&'a Shape]) -> Result<Vec<&'a ArrayShape>, RuleError> {
    operands.iter().enumerate().map(|(i, shape)| array(op, format_args!("operand {i}"), shape)).collect()
}

/// A static array of sane size without a layout, for the result of a rule.
pub(super) fn result(op: &str, dtype: DType, dims: Vec<i64>) -> Result<ArrayShape, RuleError> {
    let shape = ArrayShape::new(dtype, dims);
    check_size(op, "result", &shape)?;
    Ok(shape)
}

/// The most bytes of an array: 2^56. XLA pads, widens and copies arrays with sizes in 64 bits and aborts the process
/// when one of them overflows (random bits of 2^61 bytes do); below this every op compiles, and it is more than any
/// machine has.
const MAX_BYTES: i64 = 1 << 56;

/// The most dimensions of an array. HLO has no bound; TensorFlow's is 254, and rules compare each axis with each.
const MAX_RANK: usize = 256;

/// No negative dim, not too many dims, and at most 2^56 bytes, also without the dims that are 0.
pub(crate) fn check_size(op: &str, role: impl Display, shape: &ArrayShape) -> Result<(), RuleError> {
    if shape.rank() > MAX_RANK {
        let message = format!("{op} {role} has {} dimensions, expected at most {MAX_RANK}", shape.rank());
        return Err(RuleError::new("operands/rank", message));
    }
    if shape.dims.iter().any(|&dim| dim < 0) {
        let message = format!("{op} {role} is {}, expected dims of 0 or more", show(shape));
        return Err(RuleError::new("operands/negative-dim", message));
    }
    let dims = shape.dims.iter().filter(|&&dim| dim > 0);
    let n_bytes = dims.fold(shape.dtype.n_bytes() as i64, |product, &dim| product.saturating_mul(dim));
    if n_bytes <= MAX_BYTES {
        return Ok(());
    }
    let message = format!("{op} {role} is {}, expected at most 2^56 bytes", show(shape));
    Err(RuleError::new("operands/size", message))
}

/// A shape of any kind whose arrays all have a sane size.
pub(super) fn sane(op: &str, role: impl Display, shape: &Shape) -> Result<(), RuleError> {
    shape.leaves().iter().filter_map(|leaf| leaf.stored()).try_for_each(|array| check_size(op, &role, array))
}

/// The declared shape, which this op needs.
pub(super) fn declared<'a>(op: &str, declared: Option<&'a Shape>) -> Result<&'a Shape, RuleError> {
    declared.ok_or_else(|| {
        RuleError::new("operands/declared", format!("{op} has no declared shape, expected one"))
            .with_help(format!("the operands of {op} do not fix its result: declare the result's shape"))
    })
}

/// The declared shape as an array of sane size.
pub(super) fn declared_array<'a>(op: &str, shape: Option<&'a Shape>) -> Result<&'a ArrayShape, RuleError> {
    array(op, "result", declared(op, shape)?)
}

/// Two arrays of one dtype.
pub(crate) fn same_dtype(
    op: &str,
    (lhs_role, lhs): (impl Display, &ArrayShape),
    (rhs_role, rhs): (impl Display, &ArrayShape),
) -> Result<(), RuleError> {
    if lhs.dtype == rhs.dtype {
        return Ok(());
    }
    let message = format!("{op} dtypes differ: {lhs_role} is {}, {rhs_role} is {}", show(lhs), show(rhs));
    Err(RuleError::new("operands/dtypes-differ", message).with_help(format!(
        "hlo converts nothing by itself: insert a `convert` of {rhs_role} to {} (or of {lhs_role} to {})",
        lhs.dtype, rhs.dtype
    )))
}

/// Two arrays of equal dims.
pub(super) fn same_dims(
    op: &str,
    (lhs_role, lhs): (impl Display, &ArrayShape),
    (rhs_role, rhs): (impl Display, &ArrayShape),
) -> Result<(), RuleError> {
    if lhs.dims == rhs.dims {
        return Ok(());
    }
    let message = format!("{op} dims differ: {lhs_role} is {}, {rhs_role} is {}", show(lhs), show(rhs));
    Err(RuleError::new("operands/dims-differ", message)
        .with_help("hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one"))
}

/// An array of rank 0.
pub(super) fn scalar<'a>(op: &str, role: impl Display, shape: &'a Shape) -> Result<&'a ArrayShape, RuleError> {
    let array = array(op, &role, shape)?;
    if array.dims.is_empty() {
        return Ok(array);
    }
    Err(RuleError::new("operands/scalar", format!("{op} {role} is {}, expected a scalar", show(array))))
}

/// An array of signed or unsigned integers.
pub(super) fn integers(op: &str, role: impl Display, array: &ArrayShape) -> Result<(), RuleError> {
    dtype(op, role, array, DType::is_integer, "an integer dtype")
}

/// An array of a dtype for which `accepts` holds; `expected` describes these dtypes.
pub(super) fn dtype(
    op: &str,
    role: impl Display,
    array: &ArrayShape,
    accepts: impl FnOnce(DType) -> bool,
    expected: &str,
) -> Result<(), RuleError> {
    if accepts(array.dtype) {
        return Ok(());
    }
    Err(RuleError::new("operands/dtype", format!("{op} {role} is {}, expected {expected}", show(array)))
        .with_help("insert a `convert` to such a dtype"))
}

/// An axis of an array of this rank, as an index.
pub(super) fn axis(op: &str, attribute: &str, axis: i64, rank: usize) -> Result<usize, RuleError> {
    usize::try_from(axis).ok().filter(|&axis| axis < rank).ok_or_else(|| {
        RuleError::new("operands/axis", format!("{op} {attribute} names axis {axis}, expected 0 <= axis < {rank}"))
    })
}

/// Axes of an array of this rank, as indices; none twice.
pub(super) fn axes(op: &str, attribute: &str, axes: &[i64], rank: usize) -> Result<Vec<usize>, RuleError> {
    let mut seen = vec![false; rank];
    let mut indices = Vec::with_capacity(axes.len());
    for &a in axes {
        let index = axis(op, attribute, a, rank)?;
        if std::mem::replace(&mut seen[index], true) {
            let message =
                format!("{op} {attribute}={} names axis {a} twice, expected each axis at most once", list(axes));
            return Err(RuleError::new("operands/axis-twice", message));
        }
        indices.push(index);
    }
    Ok(indices)
}

/// Axes as HLO's text shows them: `{1,0}`.
fn list(axes: &[i64]) -> String {
    let axes: Vec<String> = axes.iter().map(i64::to_string).collect();
    format!("{{{}}}", axes.join(","))
}

/// The same, which must also ascend.
pub(super) fn sorted_axes(op: &str, attribute: &str, axes_: &[i64], rank: usize) -> Result<Vec<usize>, RuleError> {
    let indices = axes(op, attribute, axes_, rank)?;
    if indices.is_sorted() {
        return Ok(indices);
    }
    let message = format!("{op} {attribute}={} is not in order, expected ascending axes", list(axes_));
    Err(RuleError::new("operands/axes-order", message))
}

/// An attribute that has one entry per dimension.
pub(super) fn per_dimension(
    op: &str,
    attribute: &str,
    n_entries: usize,
    operand: &ArrayShape,
) -> Result<(), RuleError> {
    if n_entries == operand.rank() {
        return Ok(());
    }
    let message = format!(
        "{op} {attribute} has {n_entries} entries, expected {}, one per dimension of {}",
        operand.rank(),
        show(operand)
    );
    Err(RuleError::new("operands/per-dimension", message))
}

/// The signature of a called computation that exists and is not empty.
pub(super) fn signature<'m>(
    callees: &'m dyn Callees,
    op: &str,
    attribute: &str,
    comp: CompId,
) -> Result<Signature<'m>, RuleError> {
    callees.signature(comp).ok_or_else(|| {
        let message = format!("{op} {attribute} is computation {}, expected one that exists and has a root", comp.0);
        RuleError::new("operands/computation", message)
    })
}

/// A reduction of N values: 2N scalars (N accumulated, N new) → N scalars (a tuple if N > 1).
pub(super) fn reducer(
    callees: &dyn Callees,
    op: &str,
    attribute: &str,
    comp: CompId,
    dtypes: &[DType],
) -> Result<(), RuleError> {
    let signature = signature(callees, op, attribute, comp)?;
    let scalars: Vec<Shape> = dtypes.iter().map(|&dtype| Shape::scalar(dtype)).collect();
    let parameters: Vec<Shape> = scalars.iter().chain(&scalars).cloned().collect();
    let result = one_or_tuple(scalars);
    check_signature(op, attribute, &signature, &parameters, &result)
}

/// A called computation has exactly these parameters and this result, up to layout.
pub(super) fn check_signature(
    op: &str,
    attribute: &str,
    signature: &Signature<'_>,
    parameters: &[Shape],
    result: &Shape,
) -> Result<(), RuleError> {
    let fits = signature.parameters.len() == parameters.len()
        && signature.parameters.iter().zip(parameters).all(|(measured, expected)| measured.is_compatible(expected))
        && signature.result.is_compatible(result);
    if fits {
        return Ok(());
    }
    let tuple = |shapes: &[Shape]| Shape::Tuple(shapes.to_vec()).to_string();
    let measured: Vec<Shape> = signature.parameters.iter().map(|shape| shape.without_layout()).collect();
    let message = format!(
        "{op} {attribute} is {} -> {}, expected {} -> {result}",
        tuple(&measured),
        signature.result.without_layout(),
        tuple(parameters)
    );
    Err(RuleError::new("operands/signature", message))
}

/// This array's dims and dynamic flags with another dtype and no layout: the result of an elementwise rule.
pub(super) fn like(array: &ArrayShape, dtype: DType) -> ArrayShape {
    ArrayShape { dtype, layout: None, ..array.clone() }
}

/// The flags of a result whose dimension `i` is dynamic if `is_dynamic(i)`; empty if none is.
pub(super) fn dynamic_flags(rank: usize, is_dynamic: impl FnMut(usize) -> bool) -> Vec<bool> {
    let flags: Vec<bool> = (0..rank).map(is_dynamic).collect();
    if flags.contains(&true) { flags } else { Vec::new() }
}

/// The result of an op with N results: the only one, or a tuple.
pub(super) fn one_or_tuple(mut shapes: Vec<Shape>) -> Shape {
    if shapes.len() == 1 { shapes.remove(0) } else { Shape::Tuple(shapes) }
}

/// An array's shape as messages show it, without layout.
pub(super) fn show(array: &ArrayShape) -> ArrayShape {
    ArrayShape { layout: None, ..array.clone() }
}
