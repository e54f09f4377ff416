//! Ops along whole dimensions: reduce, sort.
//!
//! Checks that windowed reductions share with `reduce` (operands, inits and the reduction's signature) are here too.
//!
//! Source: `ShapeInference::InferReduceShape`, `VerifyReducerShape`, `ShapeVerifier::HandleSort`.

pub(crate) mod grad;
pub(crate) mod precision;

use super::{Callees, RuleError, operands};
use crate::{ArrayShape, CompId, DType, Shape};

/// `result[i…] = to_apply over all j of x[i…, j…]`, starting from `init`.
///
/// # Shapes
/// N arrays of equal dims, N scalars → the dims not in `dimensions` (a tuple if N > 1).
///
/// # Types
/// Each array, its init and its arguments of `to_apply` have one dtype, which is the result's. The back end chooses
/// the order of application and where it rounds to that dtype: widen bf16 before a long sum.
///
/// # Source
/// `ShapeInference::InferReduceShape`.
pub(super) fn reduce(
    callees: &dyn Callees,
    dimensions: &[i64],
    to_apply: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let op = "reduce";
    let (arrays, dtypes) = check_reduction(callees, op, to_apply, operands)?;
    let reduced = operands::axes(op, "dimensions", dimensions, arrays[0].rank())?;
    let remaining: Vec<usize> = (0..arrays[0].rank()).filter(|axis| !reduced.contains(axis)).collect();
    let result = |(array, dtype): (&&ArrayShape, DType)| {
        let mut result = operands::result(op, dtype, remaining.iter().map(|&axis| array.dims[axis]).collect())?;
        result.dynamic = operands::dynamic_flags(remaining.len(), |i| array.is_dynamic(remaining[i]));
        Ok(Shape::Array(result))
    };
    let results: Result<Vec<Shape>, RuleError> = arrays.iter().zip(dtypes).map(result).collect();
    results.map(operands::one_or_tuple)
}

/// Sorts along `dimension`; all N arrays move as `to_apply` orders their elements.
///
/// # Shapes
/// N arrays of equal dims, rank 1 or more → the same (a tuple if N > 1).
///
/// # Types
/// Any, per array. `to_apply`: 2N scalars (left and right of the first array, then of the second, …) → `pred`: whether
/// left comes before right. It must be a strict weak order; the order of NaN is up to the comparator.
///
/// # Source
/// `ShapeVerifier::HandleSort`.
pub(super) fn sort(
    callees: &dyn Callees,
    dimension: i64,
    to_apply: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let op = "sort";
    if operands.is_empty() {
        return Err(RuleError::new("sort/arity", "sort takes 1 or more operands, got 0"));
    }
    let arrays = operands::arrays(op, operands)?;
    check_equal_dims(op, &arrays)?;
    operands::axis(op, "dimension", dimension, arrays[0].rank())?;
    let pairs = arrays.iter().flat_map(|array| [Shape::scalar(array.dtype), Shape::scalar(array.dtype)]);
    let parameters: Vec<Shape> = pairs.collect();
    let signature = operands::signature(callees, op, "to_apply", to_apply)?;
    operands::check_signature(op, "to_apply", &signature, &parameters, &Shape::scalar(DType::Pred))?;
    Ok(operands::one_or_tuple(arrays.into_iter().map(|array| Shape::Array(operands::show(array))).collect()))
}

/// The N arrays of a reduction and their dtypes: N arrays of equal dims, N inits of the same dtypes, and a reduction
/// of N such scalars.
pub(super) fn check_reduction<'a>(
    callees: &dyn Callees,
    op: &str,
    to_apply: CompId,
    operands: &[&'a Shape],
) -> Result<(Vec<&'a ArrayShape>, Vec<DType>), RuleError> {
    let n = operands.len() / 2;
    if n == 0 || !operands.len().is_multiple_of(2) {
        let message = format!("{op} takes as many arrays as inits, at least one, got {} in all", operands.len());
        return Err(RuleError::new("reduce/arity", message));
    }
    let arrays = operands::arrays(op, &operands[..n])?;
    check_equal_dims(op, &arrays)?;
    for (i, (array, init)) in arrays.iter().zip(&operands[n..]).enumerate() {
        let role = format!("init {i}");
        let init = operands::scalar(op, &role, init)?;
        operands::same_dtype(op, (format!("operand {i}"), array), (role, init))?;
    }
    let dtypes: Vec<DType> = arrays.iter().map(|array| array.dtype).collect();
    operands::reducer(callees, op, "to_apply", to_apply, &dtypes)?;
    Ok((arrays, dtypes))
}

fn check_equal_dims(op: &str, arrays: &[&ArrayShape]) -> Result<(), RuleError> {
    for (i, array) in arrays.iter().enumerate().skip(1) {
        operands::same_dims(op, ("operand 0", arrays[0]), (format!("operand {i}"), array))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{computation, expect_in};
    use super::super::{BinaryOp, Op};
    use super::*;
    use crate::Module;
    use expect_test::expect as text;

    #[test]
    fn reduce() {
        let mut module = Module::new("test");
        let add = module.scalar_computation(BinaryOp::Add, DType::F32);
        let argmax = computation(&mut module, &["f32[]", "s32[]", "f32[]", "s32[]"], "(f32[], s32[])");
        let op = |dimensions: &[i64], to_apply| Op::Reduce { dimensions: dimensions.to_vec(), to_apply };
        expect_in(&module, &op(&[2, 0], add), &["f32[2,<=3,5]", "f32[]"], "", text!["f32[<=3]"]);
        expect_in(&module, &op(&[], add), &["f32[2,3]", "f32[]"], "", text!["f32[2,3]"]);
        expect_in(
            &module,
            &op(&[1], argmax),
            &["f32[2,3]", "s32[2,3]", "f32[]", "s32[]"],
            "",
            text!["(f32[2], s32[2])"],
        );
        expect_in(
            &module,
            &op(&[2], add),
            &["f32[2,3]", "f32[]"],
            "",
            text!["operands/axis: reduce dimensions names axis 2, expected 0 <= axis < 2"],
        );
        expect_in(
            &module,
            &op(&[1, 1], add),
            &["f32[2,3]", "f32[]"],
            "",
            text!["operands/axis-twice: reduce dimensions={1,1} names axis 1 twice, expected each axis at most once"],
        );
        expect_in(
            &module,
            &op(&[1], add),
            &["bf16[2,3]", "bf16[]"],
            "",
            text![[r#"
                operands/signature: reduce to_apply is (f32[], f32[]) -> f32[], expected (bf16[], bf16[]) -> bf16[]"#]],
        );
        expect_in(
            &module,
            &op(&[1], add),
            &["bf16[2,3]", "f32[]"],
            "",
            text![[r#"
            operands/dtypes-differ: reduce dtypes differ: operand 0 is bf16[2,3], init 0 is f32[]
              help: hlo converts nothing by itself: insert a `convert` of init 0 to bf16 (or of operand 0 to f32)"#]],
        );
        expect_in(
            &module,
            &op(&[1], add),
            &["f32[2,3]", "(f32[])"],
            "",
            text!["operands/kind: reduce init 0 is (f32[]), expected an array"],
        );
        expect_in(
            &module,
            &op(&[1], add),
            &["f32[2,3]", "f32[2,3]", "f32[]"],
            "",
            text!["reduce/arity: reduce takes as many arrays as inits, at least one, got 3 in all"],
        );
        expect_in(
            &module,
            &op(&[1], argmax),
            &["f32[2,3]", "s32[3,2]", "f32[]", "s32[]"],
            "",
            text![[r#"
            operands/dims-differ: reduce dims differ: operand 0 is f32[2,3], operand 1 is s32[3,2]
              help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one"#]],
        );
    }

    #[test]
    fn sort() {
        let mut module = Module::new("test");
        let less = computation(&mut module, &["f32[]", "f32[]"], "pred[]");
        let by_key = computation(&mut module, &["f32[]", "f32[]", "s32[]", "s32[]"], "pred[]");
        let op = |dimension, to_apply| Op::Sort { dimension, is_stable: true, to_apply };
        expect_in(&module, &op(1, less), &["f32[2,<=3]"], "", text!["f32[2,<=3]"]);
        expect_in(&module, &op(0, by_key), &["f32[2,3]", "s32[2,3]"], "", text!["(f32[2,3], s32[2,3])"]);
        expect_in(
            &module,
            &op(0, by_key),
            &["f32[2,3]", "s32[2]"],
            "",
            text![[r#"
            operands/dims-differ: sort dims differ: operand 0 is f32[2,3], operand 1 is s32[2]
              help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one"#]],
        );
        expect_in(
            &module,
            &op(0, less),
            &["f32[2,3]", "s32[2,3]"],
            "",
            text![[r#"
                operands/signature: sort to_apply is (f32[], f32[]) -> pred[], expected (f32[], f32[], s32[], s32[]) -> pred[]"#]],
        );
        expect_in(
            &module,
            &op(-1, less),
            &["f32[2]"],
            "",
            text!["operands/axis: sort dimension names axis -1, expected 0 <= axis < 1"],
        );
        expect_in(
            &module,
            &op(0, less),
            &["f32[]"],
            "",
            text!["operands/axis: sort dimension names axis 0, expected 0 <= axis < 0"],
        );
        expect_in(&module, &op(0, less), &[], "", text!["sort/arity: sort takes 1 or more operands, got 0"]);
    }
}
