//! `dot`: the generalised matrix product.

pub(crate) mod grad;

use std::cmp::Ordering;

use super::{RuleError, operands};
use crate::{ArrayShape, DType, Shape};

/// Dimension numbers of `dot`: batch dims come first in the result, then the free dims of lhs, then those of rhs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct DotDims {
    /// Batch dimensions of lhs.
    pub lhs_batch: Vec<i64>,
    /// Batch dimensions of rhs, in the same order.
    pub rhs_batch: Vec<i64>,
    /// Contracting dimensions of lhs.
    pub lhs_contracting: Vec<i64>,
    /// Contracting dimensions of rhs, in the same order.
    pub rhs_contracting: Vec<i64>,
}

super::elementwise::named! {
/// How precisely a back end must multiply f32 operands (`operand_precision`).
OperandPrecision {
    /// The back end's fastest: one bf16 pass on a TPU.
    Default = "default";
    /// Better: three bf16 passes on a TPU.
    High = "high";
    /// Full f32: six bf16 passes on a TPU.
    Highest = "highest";
}}

/// `operand_precision={…}, algorithm=…` of a dot or convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct PrecisionConfig {
    /// One per operand; empty = all default.
    pub operand_precision: Vec<OperandPrecision>,
    /// `PrecisionConfig.Algorithm` by name (`dot_bf16_bf16_f32`), if set.
    pub algorithm: Option<String>,
}

/// XLA's names of `PrecisionConfig.Algorithm`, in the order of its numbers; `unset` (0) is [`None`] here.
pub const ALGORITHMS: &[&str] = &[
    "unset",
    "dot_any_f8_any_f8_f32",
    "dot_any_f8_any_f8_f32_fast_accum",
    "dot_f16_f16_f16",
    "dot_f16_f16_f32",
    "dot_bf16_bf16_bf16",
    "dot_bf16_bf16_f32",
    "dot_bf16_bf16_f32_x3",
    "dot_bf16_bf16_f32_x6",
    "dot_tf32_tf32_f32",
    "dot_tf32_tf32_f32_x3",
    "dot_f32_f32_f32",
    "dot_f64_f64_f64",
    "dot_bf16_bf16_f32_x9",
];

const OP: &str = "dot";

/// `result[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, k, n]`, with any number of batch (b), free (m, n) and
/// contracting (k) dims, anywhere.
///
/// # Shapes
/// lhs `[b…, m…, k…]`, rhs `[b…, k…, n…]`, in any order → `[b…, m…, n…]`: batch dims in the order of `lhs_batch`, free
/// dims in the order of their operand. Every `k` and `b` has one size on both sides. An operand may be a scalar, as where
/// JAX differentiates `vdot`.
///
/// # Types
/// Operands may have two dtypes, as XLA allows (f32 by bf16, as JAX differentiates a product with
/// `preferred_element_type`; int8 weights by bf16): back ends convert both to the result's dtype first. The result has
/// the declared dtype (XLA's `preferred_element_type`), of the same class as the [`wider`] operand's and no narrower,
/// else that operand's. Products and sums are rounded as the back end accumulates (f32 for bf16 on a TPU's MXU), and
/// once to the result's dtype: declare f32 to keep the accumulator of a bf16 dot. The builder requires one dtype
/// (`graph::Tensor::dot`), as two are more often a forgotten cast.
///
/// # Source
/// `ShapeInference::InferDotOpShape`.
pub(super) fn dot(
    dims: &DotDims,
    precision: &PrecisionConfig,
    operands: &[&Shape],
    declared: Option<&Shape>,
) -> Result<Shape, RuleError> {
    let [lhs, rhs] = operands::arity(OP, operands)?;
    let lhs = operands::array(OP, "lhs", lhs)?;
    let rhs = operands::array(OP, "rhs", rhs)?;
    check_precision(OP, precision)?;
    if let Some(algorithm) = &precision.algorithm {
        check_algorithm(algorithm)?;
    }
    let operand_dtype = match wider(lhs.dtype, rhs.dtype) {
        Some(dtype) => dtype,
        None => {
            operands::same_dtype(OP, ("lhs", lhs), ("rhs", rhs))?;
            lhs.dtype
        }
    };
    check_pairs("contracting", (lhs, &dims.lhs_contracting), (rhs, &dims.rhs_contracting))?;
    check_pairs("batch", (lhs, &dims.lhs_batch), (rhs, &dims.rhs_batch))?;
    let batch = dims.lhs_batch.iter().map(|&axis| (lhs, axis as usize));
    let lhs_free = free_dims("lhs", lhs, &dims.lhs_batch, &dims.lhs_contracting)?;
    let rhs_free = free_dims("rhs", rhs, &dims.rhs_batch, &dims.rhs_contracting)?;
    let free_axes: Vec<(&ArrayShape, usize)> = batch.chain(lhs_free).chain(rhs_free).collect();
    let dtype = result_dtype(OP, operand_dtype, declared)?;
    let mut result = operands::result(OP, dtype, free_axes.iter().map(|&(array, axis)| array.dims[axis]).collect())?;
    result.dynamic = operands::dynamic_flags(free_axes.len(), |i| free_axes[i].0.is_dynamic(free_axes[i].1));
    Ok(Shape::Array(result))
}

/// One precision per operand, or none.
pub(super) fn check_precision(op: &str, precision: &PrecisionConfig) -> Result<(), RuleError> {
    match precision.operand_precision.len() {
        0 | 2 => Ok(()),
        n => {
            let message = format!("{op} takes 2 operand precisions, one per operand, or none, got {n}");
            Err(RuleError::new("dot/precision", message))
        }
    }
}

/// The dtype of a product of two dtypes: a complex number wins over others, a float over integers, of two floats the
/// one with more range, or with equal ranges the more precise one; of two integers the wider one, or the signed one of
/// equal widths. [`None`] where XLA aborts, as neither is preferred.
///
/// # Source
/// `primitive_util::HigherPrecisionType`.
pub(super) fn wider(lhs: DType, rhs: DType) -> Option<DType> {
    let rank = |dtype: DType| (dtype.is_complex(), range_and_precision(dtype), dtype.bits(), dtype.is_signed());
    match rank(lhs).cmp(&rank(rhs)) {
        Ordering::Greater => Some(lhs),
        Ordering::Less => Some(rhs),
        Ordering::Equal => (lhs == rhs).then_some(lhs),
    }
}

/// The power of two at which a float overflows, and its significant bits; for a complex number those of its parts.
pub(super) fn range_and_precision(dtype: DType) -> Option<(u16, u8)> {
    match dtype {
        DType::F64 | DType::C128 => Some((1024, 53)),
        DType::F32 | DType::C64 => Some((128, 24)),
        DType::BF16 => Some((128, 8)),
        DType::F8E8M0FNU => Some((128, 1)),
        DType::F16 => Some((16, 11)),
        DType::F8E5M2 | DType::F8E5M2FNUZ => Some((16, 3)),
        DType::F8E4M3FN => Some((9, 4)),
        DType::F8E4M3 | DType::F8E4M3FNUZ => Some((8, 4)),
        DType::F8E4M3B11FNUZ => Some((5, 4)),
        DType::F6E3M2FN => Some((5, 3)),
        DType::F8E3M4 => Some((4, 5)),
        DType::F6E2M3FN => Some((3, 4)),
        DType::F4E2M1FN => Some((3, 2)),
        _ => None,
    }
}

/// The dtype of a product of operands of `dtype`: the declared one if it is of the same class and no narrower.
pub(super) fn result_dtype(op: &str, dtype: DType, declared: Option<&Shape>) -> Result<DType, RuleError> {
    let Some(declared) = declared else {
        return Ok(dtype);
    };
    let preferred = operands::array(op, "result", declared)?.dtype;
    if preferred.class() == dtype.class() && preferred.bits() >= dtype.bits() {
        return Ok(preferred);
    }
    let message =
        format!("{op} declares {preferred} for operands of {dtype}, expected {dtype} or a wider dtype like it");
    Err(RuleError::new("dot/declared-dtype", message)
        .with_help(format!("let {op} give {dtype} and `convert` its result to {preferred}")))
}

fn check_algorithm(algorithm: &str) -> Result<(), RuleError> {
    let names = &ALGORITHMS[1..];
    if names.contains(&algorithm) {
        return Ok(());
    }
    let message = format!("dot algorithm is `{algorithm}`, expected one of {}", names.join(", "));
    Err(RuleError::new("dot/algorithm", message))
}

/// Checks contracting or batch dims: as many on both sides, in range, without duplicates, of equal sizes.
fn check_pairs(kind: &str, lhs: (&ArrayShape, &[i64]), rhs: (&ArrayShape, &[i64])) -> Result<(), RuleError> {
    let ((lhs, lhs_axes), (rhs, rhs_axes)) = (lhs, rhs);
    if lhs_axes.len() != rhs_axes.len() {
        let message = format!("{kind} dims differ in number: lhs_{kind}={lhs_axes:?}, rhs_{kind}={rhs_axes:?}");
        return Err(RuleError::new("dot/pairs", message).with_help("name one dim of rhs for each of lhs, in order"));
    }
    operands::axes(OP, &format!("lhs_{kind}"), lhs_axes, lhs.rank())?;
    operands::axes(OP, &format!("rhs_{kind}"), rhs_axes, rhs.rank())?;
    for (&l, &r) in lhs_axes.iter().zip(rhs_axes) {
        let (lhs_size, rhs_size) = (lhs.dims[l as usize], rhs.dims[r as usize]);
        if lhs_size != rhs_size {
            let message = format!("{kind} sizes differ: lhs[{l}]={lhs_size}, rhs[{r}]={rhs_size}");
            let error = RuleError::new("dot/sizes", message);
            return Err(match rhs.dims.iter().position(|&size| size == lhs_size) {
                Some(axis) => error.with_help(format!("transpose rhs or set rhs_{kind}=[{axis}]")),
                None => error,
            });
        }
    }
    Ok(())
}

/// The dims that are neither batch nor contracting; a dim may not be both.
fn free_dims<'a>(
    role: &str,
    array: &'a ArrayShape,
    batch: &[i64],
    contracting: &[i64],
) -> Result<Vec<(&'a ArrayShape, usize)>, RuleError> {
    if let Some(axis) = batch.iter().find(|axis| contracting.contains(axis)) {
        let message = format!(
            "{role} dim {axis} is in {role}_batch={batch:?} and {role}_contracting={contracting:?}, expected in one"
        );
        return Err(RuleError::new("dot/dim-twice", message));
    }
    let is_free = |axis: &usize| !batch.contains(&(*axis as i64)) && !contracting.contains(&(*axis as i64));
    Ok((0..array.rank()).filter(is_free).map(|axis| (array, axis)).collect())
}

#[cfg(test)]
mod tests;
