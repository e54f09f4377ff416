//! The values of instructions that depend on no parameter, in f64: what an `iota`, constants and arithmetic compute.
//! Ops, dtypes and dynamic sizes that are not listed here are not known.
//!
//! Source: the ops' semantics in XLA's `operation_semantics.md`.

use bf16scope_hlo::element::f64s;
use bf16scope_hlo::ops::decisions::list_names;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{ArrayShape, DType, Instruction, Literal, Module, Op};

/// The elements of an array of f32, s32 or pred, in row-major order; a predicate is 0 or 1.
pub(crate) struct Numbers {
    pub shape: ArrayShape,
    pub all: Vec<f64>,
}

/// Evaluates an instruction of a verified module, given its operands.
pub(crate) fn evaluate(module: &Module, instr: &Instruction, operands: &[&Numbers]) -> Option<Numbers> {
    let shape = instr.shape.as_array().filter(|shape| !shape.has_dynamic())?;
    let all = apply(module, &instr.op, shape, operands)?;
    let all = all.into_iter().map(|x| rounded(x, shape.dtype)).collect::<Option<Vec<f64>>>()?;
    Some(Numbers { shape: shape.clone(), all })
}

/// A number rounded to a dtype.
fn rounded(x: f64, dtype: DType) -> Option<f64> {
    match dtype {
        DType::F32 => Some(f64::from(x as f32)),
        DType::S32 => Some(x.trunc()).filter(|x| f64::from(i32::MIN) <= *x && *x <= f64::from(i32::MAX)),
        DType::Pred => Some(f64::from(u8::from(x != 0.0))),
        _ => None,
    }
}

/// The elements of an op's result before rounding, for the ops that compute such weights. f32 arithmetic is f64
/// arithmetic, rounded.
fn apply(module: &Module, op: &Op, shape: &ArrayShape, operands: &[&Numbers]) -> Option<Vec<f64>> {
    let operand = |nth: usize| operands.get(nth).map(|operand| &operand.all);
    let each = |f: &dyn Fn(f64) -> f64| Some(operand(0)?.iter().map(|&x| f(x)).collect());
    let both =
        |f: &dyn Fn(f64, f64) -> f64| Some(operand(0)?.iter().zip(operand(1)?).map(|(&x, &y)| f(x, y)).collect());
    // One number for all places, or one for each.
    let at = |numbers: &[f64], place: usize| numbers[if numbers.len() == 1 { 0 } else { place }];
    let places = || 0..shape.n_elements() as usize;
    match op {
        // `rounded` says which dtypes are evaluated.
        Op::Constant(Literal::Array { bytes, .. }) if rounded(0.0, shape.dtype).is_some() => {
            Some(f64s(shape.dtype, bytes)?.collect())
        }
        Op::Iota { dimension } => {
            let along = *dimension as usize;
            let n_behind: i64 = shape.dims[along + 1..].iter().product();
            Some(places().map(|place| (place as i64 / n_behind % shape.dims[along]) as f64).collect())
        }
        Op::Reshape | Op::Convert => each(&|x| x),
        Op::Unary(UnaryOp::Abs) => each(&f64::abs),
        Op::Unary(UnaryOp::Negate) => each(&|x| -x),
        Op::Unary(UnaryOp::Floor) => each(&f64::floor),
        Op::Binary(BinaryOp::Add) => both(&|x, y| x + y),
        Op::Binary(BinaryOp::Subtract) => both(&|x, y| x - y),
        Op::Binary(BinaryOp::Multiply) => both(&|x, y| x * y),
        Op::Binary(BinaryOp::Divide) if shape.dtype == DType::F32 => both(&|x, y| x / y),
        Op::Binary(BinaryOp::Maximum) => both(&f64::max),
        Op::Binary(BinaryOp::Minimum) => both(&f64::min),
        Op::Binary(BinaryOp::And) if shape.dtype == DType::Pred => both(&|x, y| x * y),
        Op::Compare { direction, kind: None } => both(&|x, y| f64::from(u8::from(direction.holds(x, y)))),
        Op::Select => {
            let (choice, yes, no) = (operand(0)?, operand(1)?, operand(2)?);
            Some(places().map(|place| if at(choice, place) != 0.0 { yes[place] } else { no[place] }).collect())
        }
        Op::Broadcast { dimensions } => {
            let operand_strides = strides(&operands.first()?.shape.dims);
            let axis_stride = |axis: usize| {
                dimensions.iter().position(|&to| to as usize == axis).map_or(0, |nth| operand_strides[nth])
            };
            moved(shape, operand(0)?, &(0..shape.dims.len()).map(axis_stride).collect::<Vec<_>>())
        }
        Op::Transpose { permutation } => {
            let operand_strides = strides(&operands.first()?.shape.dims);
            let steps: Vec<usize> = permutation.iter().map(|&axis| operand_strides[axis as usize]).collect();
            moved(shape, operand(0)?, &steps)
        }
        Op::Reduce { dimensions, .. } if list_names(module, op).iter().any(|name| name == "reduce:add") => {
            let summed = &operands[0];
            let result_strides = strides(&shape.dims);
            let mut result_strides = result_strides.iter();
            let is_kept = |axis: usize| !dimensions.contains(&(axis as i64));
            let to: Vec<usize> = (0..summed.shape.dims.len())
                .map(|axis| if is_kept(axis) { result_strides.next().copied().unwrap_or(0) } else { 0 })
                .collect();
            let mut sums = vec![*operand(1)?.first()?; places().len()];
            for (place, &x) in summed.all.iter().enumerate() {
                let sum = &mut sums[flat(place, &summed.shape.dims, &to)];
                *sum = rounded(*sum + x, shape.dtype)?;
            }
            Some(sums)
        }
        _ => None,
    }
}

/// For each axis the distance between neighbours along it, in elements.
fn strides(dims: &[i64]) -> Vec<usize> {
    (0..dims.len()).map(|axis| dims[axis + 1..].iter().product::<i64>() as usize).collect()
}

/// The index into an array with these strides, for the element at `place` of an array of shape `dims`.
fn flat(mut place: usize, dims: &[i64], steps: &[usize]) -> usize {
    let mut index = 0;
    for (&size, step) in dims.iter().zip(steps).rev() {
        index += place % size as usize * step;
        place /= size as usize;
    }
    index
}

/// The array whose element at each place is read with these strides.
fn moved(shape: &ArrayShape, read: &[f64], steps: &[usize]) -> Option<Vec<f64>> {
    Some((0..shape.n_elements() as usize).map(|place| read[flat(place, &shape.dims, steps)]).collect())
}

#[cfg(test)]
mod tests;
