//! Constant folding: values that are known at compile time, such as shapes, axes and paddings. They are computed from the
//! instructions written so far, in integers and f64; large arrays and other dtypes are not known.
//!
//! Source: the ops' semantics in XLA's `operation_semantics.md`.

use std::rc::Rc;

use crate::index_map::IndexMap;
use bf16scope_hlo::element::{f64s, integers};
use bf16scope_hlo::ops::SliceDim;
use bf16scope_hlo::{BinaryOp, CompId, Computation, DType, InstrId, Literal, Module, Op, UnaryOp};

/// Arrays of more elements are not computed.
const MAX_ELEMENTS: i64 = 4096;
/// Instructions between a value and its constants at most.
const MAX_DEPTH: usize = 256;

/// An array whose numbers are known at compile time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    pub dtype: DType,
    pub dims: Vec<i64>,
    pub values: Vec<Number>,
}

/// A number: an integer (also for `pred`), or a float.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) enum Number {
    Whole(i64),
    Real(f64),
}

impl Number {
    pub(crate) fn whole(self) -> Option<i64> {
        match self {
            Number::Whole(value) => Some(value),
            Number::Real(_) => None,
        }
    }

    pub(crate) fn real(self) -> f64 {
        match self {
            Number::Whole(value) => value as f64,
            Number::Real(value) => value,
        }
    }
}

/// A cache of the known values of instructions, by computation; `None` for an instruction whose value is not known.
#[derive(Debug, Default)]
pub(crate) struct Memory(IndexMap<(CompId, InstrId), Option<Rc<Known>>>);

impl Memory {
    /// The value of an instruction, if it is known.
    pub(crate) fn value(&mut self, module: &Module, comp: CompId, id: InstrId) -> Option<Rc<Known>> {
        self.at_depth(module, comp, id, 0)
    }

    /// Forgets computations from the `n_computations`th on.
    pub(crate) fn forget(&mut self, n_computations: usize) {
        self.0.retain(|(comp, _), _| comp.idx() < n_computations);
    }

    fn at_depth(&mut self, module: &Module, comp: CompId, id: InstrId, depth: usize) -> Option<Rc<Known>> {
        if let Some(known) = self.0.get(&(comp, id)) {
            return known.clone();
        }
        if depth > MAX_DEPTH {
            return None;
        }
        let instr = module.comp(comp).instructions.get(id.idx())?;
        let shape = instr.shape.as_array()?;
        let is_computed =
            shape.n_elements() <= MAX_ELEMENTS && (shape.dtype.is_integer() || is_known_dtype(shape.dtype));
        let value = if is_computed {
            let operands: Option<Vec<Rc<Known>>> =
                instr.operands.iter().map(|operand| self.at_depth(module, comp, *operand, depth + 1)).collect();
            operands.and_then(|operands| {
                let values = compute(module, &instr.op, &operands, &shape.dims, shape.dtype)?;
                let values = values.into_iter().map(|value| rounded(value, shape.dtype)).collect::<Option<Vec<_>>>()?;
                (values.len() as i64 == shape.n_elements())
                    .then(|| Rc::new(Known { dtype: shape.dtype, dims: shape.dims.clone(), values }))
            })
        } else {
            None
        };
        self.0.insert((comp, id), value.clone());
        value
    }
}

fn is_known_dtype(dtype: DType) -> bool {
    matches!(dtype, DType::Pred | DType::F32 | DType::F64)
}

/// A number rounded or wrapped to a dtype.
fn rounded(value: Number, dtype: DType) -> Option<Number> {
    Some(match (value, dtype) {
        (Number::Real(value), DType::F32) => Number::Real(f64::from(value as f32)),
        (Number::Real(value), DType::F64) => Number::Real(value),
        (Number::Whole(value), DType::Pred) => Number::Whole(i64::from(value != 0)),
        (Number::Whole(value), DType::S32) => Number::Whole(i64::from(value as i32)),
        (Number::Whole(value), DType::S64) => Number::Whole(value),
        (Number::Whole(value), DType::U8) => Number::Whole(i64::from(value as u8)),
        (Number::Whole(value), DType::U32) => Number::Whole(i64::from(value as u32)),
        (Number::Whole(value), DType::S8) => Number::Whole(i64::from(value as i8)),
        (Number::Whole(value), DType::S16) => Number::Whole(i64::from(value as i16)),
        (Number::Whole(value), DType::U16) => Number::Whole(i64::from(value as u16)),
        _ => return None,
    })
}

/// The numbers of a literal of any dtype; [`rounded`] says which dtypes are known.
fn literal(literal: &Literal) -> Option<Vec<Number>> {
    let Literal::Array { shape, bytes } = literal else { return None };
    match integers(shape.dtype, bytes) {
        Some(values) => values.map(|value| i64::try_from(value).ok().map(Number::Whole)).collect(),
        None => Some(f64s(shape.dtype, bytes)?.map(Number::Real).collect()),
    }
}

/// The strides of a row-major array, in elements.
pub(crate) fn strides(dims: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

/// Every index of an array of these dims, in row-major order.
fn indices(dims: &[i64]) -> impl Iterator<Item = Vec<i64>> + '_ {
    let n: i64 = dims.iter().product();
    let strides = strides(dims);
    (0..n).map(move |at| dims.iter().zip(&strides).map(|(dim, stride)| at / stride % dim).collect())
}

fn at(known: &Known, index: impl IntoIterator<Item = i64>) -> Number {
    let place: i64 = strides(&known.dims).iter().zip(index).map(|(stride, index)| stride * index).sum();
    known.values[place as usize]
}

fn compute(module: &Module, op: &Op, operands: &[Rc<Known>], dims: &[i64], dtype: DType) -> Option<Vec<Number>> {
    Some(match (op, operands) {
        (Op::Constant(value), []) => literal(value)?,
        (Op::Iota { dimension }, []) => {
            let number = |index: Vec<i64>| match dtype.is_float() {
                true => Number::Real(index[*dimension as usize] as f64),
                false => Number::Whole(index[*dimension as usize]),
            };
            indices(dims).map(number).collect()
        }
        (Op::Reshape, [x]) => x.values.clone(),
        (Op::Convert, [x]) => x.values.iter().map(|value| converted(*value, dtype)).collect(),
        (Op::Broadcast { dimensions }, [x]) => {
            indices(dims).map(|index| at(x, dimensions.iter().map(|axis| index[*axis as usize]))).collect()
        }
        (Op::Transpose { permutation }, [x]) => indices(dims)
            .map(|index| {
                let mut from = vec![0; index.len()];
                permutation.iter().zip(&index).for_each(|(axis, index)| from[*axis as usize] = *index);
                at(x, from)
            })
            .collect(),
        (Op::Slice(slices), [x]) => {
            let from = |index: Vec<i64>| {
                let step = |(index, dim): (i64, &SliceDim)| dim.start + index * dim.stride;
                at(x, index.into_iter().zip(slices).map(step).collect::<Vec<_>>())
            };
            indices(dims).map(from).collect()
        }
        (Op::Reverse { dimensions }, [x]) => indices(dims)
            .map(|mut index| {
                dimensions
                    .iter()
                    .for_each(|axis| index[*axis as usize] = dims[*axis as usize] - 1 - index[*axis as usize]);
                at(x, index)
            })
            .collect(),
        (Op::Concatenate { dimension }, parts) => {
            indices(dims).map(|index| part_at(parts, *dimension as usize, index)).collect::<Option<_>>()?
        }
        (Op::Unary(op), [x]) => x.values.iter().map(|value| unary(*op, *value)).collect::<Option<_>>()?,
        (Op::Binary(op), [x, y]) => {
            x.values.iter().zip(&y.values).map(|(x, y)| binary(*op, *x, *y)).collect::<Option<_>>()?
        }
        (Op::Compare { direction, kind: None }, [x, y]) => {
            let holds = |(x, y): (&Number, &Number)| Number::Whole(i64::from(direction.holds(x, y)));
            x.values.iter().zip(&y.values).map(holds).collect()
        }
        (Op::Select, [pred, x, y]) => {
            let choose = |at: usize| match pred.values[if pred.values.len() == 1 { 0 } else { at }] {
                Number::Whole(0) => y.values[at],
                _ => x.values[at],
            };
            (0..x.values.len()).map(choose).collect()
        }
        (Op::Reduce { dimensions, to_apply }, [x, init]) => {
            reduced(module.comp(*to_apply), dimensions, x, *init.values.first()?, dims, dtype)?
        }
        _ => return None,
    })
}

/// The element of parts that are joined along an axis.
fn part_at(parts: &[Rc<Known>], axis: usize, mut index: Vec<i64>) -> Option<Number> {
    let mut parts = parts.iter();
    let mut part = parts.next()?;
    while index[axis] >= part.dims[axis] {
        index[axis] -= part.dims[axis];
        part = parts.next()?;
    }
    Some(at(part, index))
}

/// A reduction of some dimensions by a computation of one op, from a first value.
fn reduced(
    comp: &Computation,
    dimensions: &[i64],
    x: &Known,
    init: Number,
    dims: &[i64],
    dtype: DType,
) -> Option<Vec<Number>> {
    let Op::Binary(op) = comp.instr(comp.root).op else { return None };
    let mut out = vec![init; dims.iter().product::<i64>() as usize];
    let axes: Vec<usize> = (0..x.dims.len()).filter(|axis| !dimensions.contains(&(*axis as i64))).collect();
    let strides = strides(dims);
    for (index, value) in indices(&x.dims).zip(&x.values) {
        let place: i64 = axes.iter().zip(&strides).map(|(axis, stride)| index[*axis] * stride).sum();
        out[place as usize] = rounded(binary(op, out[place as usize], *value)?, dtype)?;
    }
    Some(out)
}

fn converted(value: Number, dtype: DType) -> Number {
    match (value, dtype.is_float()) {
        (Number::Whole(value), true) => Number::Real(value as f64),
        (Number::Real(value), false) if dtype == DType::Pred => Number::Whole(i64::from(value != 0.0)),
        // Towards zero, as XLA does.
        (Number::Real(value), false) => Number::Whole(value as i64),
        (value, _) => value,
    }
}

fn unary(op: UnaryOp, value: Number) -> Option<Number> {
    Some(match (op, value) {
        (UnaryOp::Negate, Number::Whole(value)) => Number::Whole(value.wrapping_neg()),
        (UnaryOp::Negate, Number::Real(value)) => Number::Real(-value),
        (UnaryOp::Abs, Number::Whole(value)) => Number::Whole(value.wrapping_abs()),
        (UnaryOp::Abs, Number::Real(value)) => Number::Real(value.abs()),
        (UnaryOp::Sign, Number::Whole(value)) => Number::Whole(value.signum()),
        (UnaryOp::Not, Number::Whole(value @ (0 | 1))) => Number::Whole(1 - value),
        (UnaryOp::Floor, Number::Real(value)) => Number::Real(value.floor()),
        (UnaryOp::Ceil, Number::Real(value)) => Number::Real(value.ceil()),
        (UnaryOp::RoundNearestEven, Number::Real(value)) => Number::Real(value.round_ties_even()),
        (UnaryOp::Sqrt, Number::Real(value)) => Number::Real(value.sqrt()),
        _ => return None,
    })
}

fn binary(op: BinaryOp, x: Number, y: Number) -> Option<Number> {
    Some(match (x, y) {
        (Number::Whole(x), Number::Whole(y)) => Number::Whole(match op {
            BinaryOp::Add => x.wrapping_add(y),
            BinaryOp::Subtract => x.wrapping_sub(y),
            BinaryOp::Multiply => x.wrapping_mul(y),
            BinaryOp::Divide if y != 0 => x.wrapping_div(y),
            BinaryOp::Remainder if y != 0 => x.wrapping_rem(y),
            BinaryOp::Maximum => x.max(y),
            BinaryOp::Minimum => x.min(y),
            BinaryOp::And => x & y,
            BinaryOp::Or => x | y,
            BinaryOp::Xor => x ^ y,
            _ => return None,
        }),
        (Number::Real(x), Number::Real(y)) => Number::Real(match op {
            BinaryOp::Add => x + y,
            BinaryOp::Subtract => x - y,
            BinaryOp::Multiply => x * y,
            BinaryOp::Divide => x / y,
            BinaryOp::Maximum => x.max(y),
            BinaryOp::Minimum => x.min(y),
            _ => return None,
        }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
