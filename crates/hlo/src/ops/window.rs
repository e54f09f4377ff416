//! Windows, and the ops that slide them: reduce-window, select-and-scatter.

pub mod grad;

use super::{Callees, RuleError, operands};
use crate::{ArrayShape, CompId, DType, Shape};

/// A window: one entry per dimension it covers.
pub type Window = Vec<WindowDim>;

/// One dimension of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowDim {
    /// Elements in the window.
    pub size: i64,
    /// Step between windows.
    pub stride: i64,
    /// Padding before (may be negative).
    pub padding_low: i64,
    /// Padding after (may be negative).
    pub padding_high: i64,
    /// Distance of neighbouring window elements (`rhs_dilate`).
    pub window_dilation: i64,
    /// Distance of neighbouring elements of the operand (`lhs_dilate`).
    pub base_dilation: i64,
    /// Whether the window is reversed (`rhs_reversal`).
    pub reversal: bool,
}

impl WindowDim {
    /// A dense window of this size, stride 1, no padding.
    pub const fn of_size(size: i64) -> WindowDim {
        WindowDim {
            size,
            stride: 1,
            padding_low: 0,
            padding_high: 0,
            window_dilation: 1,
            base_dilation: 1,
            reversal: false,
        }
    }

    /// Positions of this window over `n` elements: 0 if it does not fit.
    ///
    /// `floor((padded - dilated_window) / stride) + 1`, with `padded = dilated(n) + padding_low + padding_high`.
    pub fn n_positions(&self, n: i64) -> i64 {
        let dilated =
            |n: i64, dilation: i64| if n == 0 { 0 } else { (n - 1).saturating_mul(dilation).saturating_add(1) };
        let padded = dilated(n, self.base_dilation).saturating_add(self.padding_low).saturating_add(self.padding_high);
        let window = dilated(self.size, self.window_dilation);
        if padded < window || padded <= 0 { 0 } else { (padded - window) / self.stride + 1 }
    }
}

/// Reduces, around each position, the window's elements with `to_apply`, starting from `init`.
///
/// # Shapes
/// N arrays of equal dims, N scalars → one element per window position (a tuple if N > 1). Padding and the gaps of
/// base dilation hold `init`.
///
/// # Types
/// Each array, its init and its arguments of `to_apply` have one dtype. The back end chooses the order of application,
/// and rounds to that dtype as often as it likes between: widen bf16 around long sums.
///
/// # Source
/// `ShapeInference::InferReduceWindowShape`.
pub(super) fn reduce_window(
    callees: &dyn Callees,
    window: &[WindowDim],
    to_apply: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let op = "reduce-window";
    let (arrays, dtypes) = super::reduction::check_reduction(callees, op, to_apply, operands)?;
    check_no_reversal(op, window)?;
    operands::per_dimension(op, "window", window.len(), arrays[0])?;
    let sizes = positions(op, window, &arrays[0].dims)?;
    let result = |(array, dtype): (&&ArrayShape, DType)| {
        let mut result = operands::result(op, dtype, sizes.clone())?;
        result.dynamic = operands::dynamic_flags(sizes.len(), |axis| array.is_dynamic(axis));
        Ok(Shape::Array(result))
    };
    let results: Result<Vec<Shape>, RuleError> = arrays.iter().zip(dtypes).map(result).collect();
    results.map(operands::one_or_tuple)
}

/// For each window position, `select` picks an element of the array (keeping the first for which it returns true), and
/// `source`'s element of that position is added there with `scatter`, starting from `init`.
///
/// # Shapes
/// Array, source (one element per window position), init (scalar) → the dims of the array.
///
/// # Types
/// One dtype for all. `select`: two scalars → `pred`; `scatter`: two scalars → scalar.
///
/// # Errors
/// Dilations other than 1 are rejected: StableHLO's op has none, and XLA's back ends do not implement them.
///
/// # Source
/// `ShapeInference::InferSelectAndScatterShape`.
pub(super) fn select_and_scatter(
    callees: &dyn Callees,
    window: &[WindowDim],
    select: CompId,
    scatter: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let op = "select-and-scatter";
    let [array, source, init] = operands::arity(op, operands)?;
    let array = operands::array(op, "operand", array)?;
    let source = operands::array(op, "source", source)?;
    let init = operands::scalar(op, "init", init)?;
    operands::same_dtype(op, ("operand", array), ("source", source))?;
    operands::same_dtype(op, ("operand", array), ("init", init))?;
    let element = Shape::scalar(array.dtype);
    let signature = operands::signature(callees, op, "select", select)?;
    let parameters = [element.clone(), element];
    operands::check_signature(op, "select", &signature, &parameters, &Shape::scalar(DType::Pred))?;
    operands::reducer(callees, op, "scatter", scatter, &[array.dtype])?;
    check_no_reversal(op, window)?;
    check_no_dilation(op, window)?;
    operands::per_dimension(op, "window", window.len(), array)?;
    let expected = positions(op, window, &array.dims)?;
    if source.dims != expected {
        let message = format!(
            "select-and-scatter source is {}, expected {}, one element per window position",
            operands::show(source),
            ArrayShape::new(source.dtype, expected)
        );
        return Err(RuleError::new("window/source", message));
    }
    Ok(Shape::Array(operands::show(array)))
}

/// Positions of the window along each dim, and the checks that all windowed ops share.
pub(super) fn positions(op: &str, window: &[WindowDim], dims: &[i64]) -> Result<Vec<i64>, RuleError> {
    window.iter().zip(dims).enumerate().map(|(axis, (dim, &n))| positions_along(op, axis, dim, n)).collect()
}

fn positions_along(op: &str, axis: usize, dim: &WindowDim, n: i64) -> Result<i64, RuleError> {
    let attributes = [
        ("size", dim.size),
        ("stride", dim.stride),
        ("window dilation", dim.window_dilation),
        ("base dilation", dim.base_dilation),
    ];
    if let Some((name, value)) = attributes.into_iter().find(|&(_, value)| value < 1) {
        let message = format!("{op} window has {name} {value} in dimension {axis}, expected 1 or more");
        return Err(RuleError::new("window/attribute", message));
    }
    // XLA computes these in 64 bits, and aborts if the padded size is negative.
    let dilated = |n: i64, dilation: i64| if n == 0 { 0 } else { (i128::from(n) - 1) * i128::from(dilation) + 1 };
    let base = dilated(n, dim.base_dilation);
    let padded_low = base + i128::from(dim.padding_low);
    let padded = padded_low + i128::from(dim.padding_high);
    let covered = dilated(dim.size, dim.window_dilation);
    let fits = |size: i128| i64::try_from(size).is_ok();
    if !fits(base) || !fits(padded_low) || !fits(padded) || padded < 0 {
        let message = format!(
            "{op} pads dimension {axis} of size {n} (base dilation {}) by {} and {} to {padded}, expected 0 to 2^63 - 1",
            dim.base_dilation, dim.padding_low, dim.padding_high
        );
        return Err(RuleError::new("window/padded-size", message));
    }
    if !fits(covered) {
        let message = format!(
            "{op} window of size {} and dilation {} covers {covered} elements in dimension {axis}, expected at most 2^63 - 1",
            dim.size, dim.window_dilation
        );
        return Err(RuleError::new("window/covered-size", message));
    }
    Ok(dim.n_positions(n))
}

fn check_no_reversal(op: &str, window: &[WindowDim]) -> Result<(), RuleError> {
    match window.iter().position(|dim| dim.reversal) {
        Some(axis) => {
            let message = format!("{op} window is reversed in dimension {axis}, expected no reversal");
            Err(RuleError::new("window/reversal", message).with_help("only convolution reverses its window"))
        }
        None => Ok(()),
    }
}

fn check_no_dilation(op: &str, window: &[WindowDim]) -> Result<(), RuleError> {
    match window.iter().enumerate().find(|(_, dim)| dim.window_dilation != 1 || dim.base_dilation != 1) {
        Some((axis, dim)) => {
            let message = format!(
                "{op} window has window dilation {} and base dilation {} in dimension {axis}, expected 1",
                dim.window_dilation, dim.base_dilation
            );
            Err(RuleError::new("window/dilation", message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
