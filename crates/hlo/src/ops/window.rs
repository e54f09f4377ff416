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
mod tests {
    use super::super::testing::{computation, expect_in};
    use super::super::{BinaryOp, Op};
    use super::*;
    use crate::Module;
    use expect_test::expect as text;

    fn window(sizes: &[i64]) -> Window {
        sizes.iter().map(|&size| WindowDim::of_size(size)).collect()
    }

    #[test]
    fn positions_are_those_of_the_formula() {
        for n in 0..9i64 {
            for (size, stride, low, high, window_dilation, base_dilation) in
                [(1, 1, 0, 0, 1, 1), (2, 3, 1, -1, 1, 1), (3, 2, 0, 2, 2, 1), (2, 1, -1, 4, 1, 3), (5, 4, 0, 0, 1, 1)]
            {
                let dim = WindowDim {
                    size,
                    stride,
                    padding_low: low,
                    padding_high: high,
                    window_dilation,
                    base_dilation,
                    reversal: false,
                };
                let padded = if n == 0 { 0 } else { (n - 1) * base_dilation + 1 } + low + high;
                let covered = (size - 1) * window_dilation + 1;
                // Counted one by one: starts 0, stride, … whose last element lies within.
                let expected = (0..).map(|i| i * stride).take_while(|start| start + covered <= padded).count() as i64;
                assert_eq!(dim.n_positions(n), expected, "{dim:?} over {n}");
            }
        }
    }

    #[test]
    fn reduce_window() {
        let mut module = Module::new("test");
        let to_apply = module.scalar_computation(BinaryOp::Maximum, DType::BF16);
        let argmax = computation(&mut module, &["f32[]", "s32[]", "f32[]", "s32[]"], "(f32[], s32[])");
        let op = |window: Window| Op::ReduceWindow { window, to_apply };
        let pool = || window(&[1, 2, 2, 1]);
        let operands = ["bf16[8,28,28,<=4]", "bf16[]"];
        expect_in(&module, &op(pool()), &operands, "", text!["bf16[8,27,27,<=4]"]);
        let pair = Op::ReduceWindow { window: window(&[3, 1]), to_apply: argmax };
        expect_in(&module, &pair, &["f32[5,2]", "s32[5,2]", "f32[]", "s32[]"], "", text!["(f32[3,2], s32[3,2])"]);
        expect_in(
            &module,
            &pair,
            &["f32[5,2]", "s32[5,3]", "f32[]", "s32[]"],
            "",
            text![[r#"
            operands/dims-differ: reduce-window dims differ: operand 0 is f32[5,2], operand 1 is s32[5,3]
              help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one"#]],
        );
        expect_in(
            &module,
            &pair,
            &["f32[5,2]", "f32[5,2]", "f32[]", "f32[]"],
            "",
            text![[r#"
                operands/signature: reduce-window to_apply is (f32[], s32[], f32[], s32[]) -> (f32[], s32[]), expected (f32[], f32[], f32[], f32[]) -> (f32[], f32[])"#]],
        );
        expect_in(
            &module,
            &op(pool()),
            &["bf16[8,28,28,4]", "f32[]"],
            "",
            text![[r#"
            operands/dtypes-differ: reduce-window dtypes differ: operand 0 is bf16[8,28,28,4], init 0 is f32[]
              help: hlo converts nothing by itself: insert a `convert` of init 0 to bf16 (or of operand 0 to f32)"#]],
        );
        expect_in(
            &module,
            &op(pool()),
            &["bf16[8,28,28,4]", "bf16[1]"],
            "",
            text!["operands/scalar: reduce-window init 0 is bf16[1], expected a scalar"],
        );
        expect_in(
            &module,
            &op(pool()),
            &["bf16[8,28,28,4]"],
            "",
            text!["reduce/arity: reduce-window takes as many arrays as inits, at least one, got 1 in all"],
        );
        expect_in(
            &module,
            &op(pool()),
            &[],
            "",
            text!["reduce/arity: reduce-window takes as many arrays as inits, at least one, got 0 in all"],
        );
        expect_in(
            &module,
            &op(window(&[2, 2])),
            &operands,
            "",
            text![[r#"
                operands/per-dimension: reduce-window window has 2 entries, expected 4, one per dimension of bf16[8,28,28,<=4]"#]],
        );
        expect_in(
            &module,
            &op(window(&[1, 0, 2, 1])),
            &operands,
            "",
            text!["window/attribute: reduce-window window has size 0 in dimension 1, expected 1 or more"],
        );
        let reversed = vec![WindowDim { reversal: true, ..WindowDim::of_size(1) }; 4];
        expect_in(
            &module,
            &op(reversed),
            &operands,
            "",
            text![[r#"
            window/reversal: reduce-window window is reversed in dimension 0, expected no reversal
              help: only convolution reverses its window"#]],
        );
        let padded = vec![WindowDim { padding_low: i64::MAX, padding_high: i64::MIN, ..WindowDim::of_size(1) }; 4];
        expect_in(
            &module,
            &op(padded),
            &operands,
            "",
            text![[r#"
                window/padded-size: reduce-window pads dimension 0 of size 8 (base dilation 1) by 9223372036854775807 and -9223372036854775808 to 7, expected 0 to 2^63 - 1"#]],
        );
        let missing = Op::ReduceWindow { window: pool(), to_apply: CompId(99) };
        expect_in(
            &module,
            &missing,
            &operands,
            "",
            text![[r#"
                operands/computation: reduce-window to_apply is computation 99, expected one that exists and has a root"#]],
        );
    }

    #[test]
    fn select_and_scatter() {
        let mut module = Module::new("test");
        let select = computation(&mut module, &["f32[]", "f32[]"], "pred[]");
        let scatter = module.scalar_computation(BinaryOp::Add, DType::F32);
        let op = |window: Window, select| Op::SelectAndScatter { window, select, scatter };
        let strided = || vec![WindowDim { stride: 2, ..WindowDim::of_size(2) }; 2];
        expect_in(&module, &op(strided(), select), &["f32[8,<=6]", "f32[4,3]", "f32[]"], "", text!["f32[8,<=6]"]);
        expect_in(
            &module,
            &op(strided(), select),
            &["f32[8,6]", "f32[4,4]", "f32[]"],
            "",
            text![[r#"
                window/source: select-and-scatter source is f32[4,4], expected f32[4,3], one element per window position"#]],
        );
        expect_in(
            &module,
            &op(strided(), scatter),
            &["f32[8,6]", "f32[4,3]", "f32[]"],
            "",
            text![[r#"
                operands/signature: select-and-scatter select is (f32[], f32[]) -> f32[], expected (f32[], f32[]) -> pred[]"#]],
        );
        expect_in(
            &module,
            &op(strided(), select),
            &["f32[8,6]", "bf16[4,3]", "f32[]"],
            "",
            text![[r#"
            operands/dtypes-differ: select-and-scatter dtypes differ: operand is f32[8,6], source is bf16[4,3]
              help: hlo converts nothing by itself: insert a `convert` of source to f32 (or of operand to bf16)"#]],
        );
        expect_in(
            &module,
            &op(strided(), select),
            &["f32[8,6]", "f32[4,3]", "f32[2]"],
            "",
            text!["operands/scalar: select-and-scatter init is f32[2], expected a scalar"],
        );
        expect_in(
            &module,
            &op(strided(), select),
            &["bf16[8,6]", "bf16[4,3]", "bf16[]"],
            "",
            text![[r#"
                operands/signature: select-and-scatter select is (f32[], f32[]) -> pred[], expected (bf16[], bf16[]) -> pred[]"#]],
        );
        let dilated = vec![WindowDim { window_dilation: 2, ..WindowDim::of_size(2) }; 2];
        expect_in(
            &module,
            &op(dilated, select),
            &["f32[8,6]", "f32[4,3]", "f32[]"],
            "",
            text![[r#"
                window/dilation: select-and-scatter window has window dilation 2 and base dilation 1 in dimension 0, expected 1"#]],
        );
    }
}
