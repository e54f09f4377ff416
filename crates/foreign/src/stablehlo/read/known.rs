//! Integers that are known while a program whose sizes are symbolic is read, and ops on them.

use super::Operation;
use super::attributes::Attributes;
use bf16scope_hlo::element::integers;
use bf16scope_hlo::{ArrayShape, DType, Literal, Shape};

/// Arrays of more elements are no shapes.
pub(super) const MAX_ELEMENTS: usize = 64;
/// Integers that are known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    pub dtype: DType,
    pub dims: Vec<i64>,
    pub values: Vec<i128>,
}

impl Known {
    pub(super) fn from_literal(literal: &Literal) -> Option<Known> {
        let Literal::Array { shape, bytes } = literal else { return None };
        if bytes.len() > MAX_ELEMENTS * shape.dtype.n_bytes() {
            return None;
        }
        let values = integers(shape.dtype, bytes)?.collect();
        Some(Known { dtype: shape.dtype, dims: shape.dims.clone(), values })
    }

    /// As a constant: what is too wide wraps, as it does where it is computed.
    pub(super) fn literal(&self) -> Literal {
        let n = self.dtype.n_bytes();
        let bytes = self.values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(n)).collect();
        Literal::Array { shape: ArrayShape::new(self.dtype, self.dims.clone()), bytes }
    }

    pub(super) fn ints(&self) -> Option<Vec<i64>> {
        self.values.iter().map(|value| i64::try_from(*value).ok()).collect()
    }
    /// An element. A scalar may stand for all elements, where the specification lets it.
    fn at(&self, i: usize) -> i128 {
        if self.dims.is_empty() { self.values[0] } else { self.values[i] }
    }
}

/// The value of an op on known integers, if it has one and its result is of these types.
pub(super) fn fold(operation: &Operation<'_>, known: &[Known], types: &[Shape]) -> Option<Known> {
    let short = operation.name.strip_prefix("stablehlo.")?;
    let [Shape::Array(to)] = types else { return None };
    let folded = match known {
        [one] => fold_one(short, one, operation.attributes.clone(), to)?,
        all => fold_several(short, all, operation.attributes.clone(), to)?,
    };
    // As wide as its type says.
    let folded = Known::from_literal(&folded.literal())?;
    let agrees = folded.dtype == to.dtype
        && folded.dims.len() == to.dims.len()
        && folded.dims.iter().zip(&to.dims).all(|(dim, declared)| *declared == super::UNKNOWN || dim == declared)
        && Some(folded.values.len()) == n_elements(&folded.dims);
    agrees.then_some(folded)
}

fn fold_one(op: &str, one: &Known, mut attributes: Attributes<'_>, to: &ArrayShape) -> Option<Known> {
    match op {
        "reshape" => Some(Known { dims: to.dims.clone(), ..one.clone() }),
        "broadcast_in_dim" if one.values.len() == 1 => {
            let n = n_elements(&to.dims).filter(|&n| n <= MAX_ELEMENTS)?;
            Some(Known { dtype: to.dtype, dims: to.dims.clone(), values: vec![one.values[0]; n] })
        }
        "concatenate" => concatenated(std::slice::from_ref(one), attributes.take_int("dimension")?),
        "slice" if one.dims.len() == 1 => sliced(one, attributes),
        _ => {
            let each = unary(op, one.dtype, to.dtype)?;
            let values = one.values.iter().map(|value| each(*value)).collect::<Option<_>>()?;
            Some(Known { dtype: to.dtype, dims: one.dims.clone(), values })
        }
    }
}

fn fold_several(op: &str, all: &[Known], mut attributes: Attributes<'_>, to: &ArrayShape) -> Option<Known> {
    let pairs = |a: &Known, b: &Known, each: &dyn Fn(i128, i128) -> Option<i128>| {
        let values = a.values.iter().zip(&b.values).map(|(a, b)| each(*a, *b)).collect::<Option<_>>()?;
        Some(Known { dtype: to.dtype, dims: a.dims.clone(), values })
    };
    match (op, all) {
        ("concatenate", all) => concatenated(all, attributes.take_int("dimension")?),
        ("compare", [a, b]) if a.dims == b.dims => {
            let direction = attributes.take_word("comparison_direction")?;
            pairs(a, b, &|a, b| compare(direction, a, b))
        }
        ("select", [which, a, b]) if a.dims == b.dims && (which.dims.is_empty() || which.dims == a.dims) => {
            let chosen = |i: usize| if which.at(i) != 0 { a.values[i] } else { b.values[i] };
            Some(Known { values: (0..a.values.len()).map(chosen).collect(), ..a.clone() })
        }
        ("clamp", [low, one, high])
            if [low, high].iter().all(|bound| bound.dims.is_empty() || bound.dims == one.dims) =>
        {
            let clamped = |i: usize| one.values[i].max(low.at(i)).min(high.at(i));
            Some(Known { values: (0..one.values.len()).map(clamped).collect(), ..one.clone() })
        }
        (op, [a, b]) if a.dims == b.dims && a.dtype == b.dtype => pairs(a, b, &|a, b| binary(op, a, b)),
        _ => None,
    }
}

/// An op on single integers.
fn unary(op: &str, from: DType, to: DType) -> Option<fn(i128) -> Option<i128>> {
    let each: fn(i128) -> Option<i128> = match op {
        "convert" if to == DType::Pred => |value| Some(i128::from(value != 0)),
        "convert" if !to.is_float() && !to.is_complex() => Some,
        "negate" => i128::checked_neg,
        "abs" => i128::checked_abs,
        "sign" => |value| Some(value.signum()),
        "not" if from == DType::Pred => |value| Some(1 - value),
        _ => return None,
    };
    Some(each)
}

fn compare(direction: &str, a: i128, b: i128) -> Option<i128> {
    Some(i128::from(match direction {
        "EQ" => a == b,
        "NE" => a != b,
        "LT" => a < b,
        "LE" => a <= b,
        "GT" => a > b,
        "GE" => a >= b,
        _ => return None,
    }))
}

fn sliced(one: &Known, mut attributes: Attributes<'_>) -> Option<Known> {
    let mut single = |name| attributes.take_ints(name).filter(|list| list.len() == 1).map(|list| list[0]);
    let (start, limit, stride) = (single("start_indices")?, single("limit_indices")?, single("strides")?);
    let (start, limit) = (usize::try_from(start).ok()?, usize::try_from(limit).ok()?);
    let stride = usize::try_from(stride).ok().filter(|stride| *stride > 0)?;
    let values: Vec<i128> = one.values.get(start..limit)?.iter().step_by(stride).copied().collect();
    Some(Known { dims: vec![values.len() as i64], values, ..one.clone() })
}

fn binary(op: &str, a: i128, b: i128) -> Option<i128> {
    Some(match op {
        "add" => a + b,
        "subtract" => a - b,
        "multiply" => a.checked_mul(b)?,
        "divide" if b != 0 => a / b,
        "remainder" if b != 0 => a % b,
        "maximum" => a.max(b),
        "minimum" => a.min(b),
        "and" => a & b,
        "or" => a | b,
        "xor" => a ^ b,
        _ => return None,
    })
}

/// How many elements such an array has; none where the dims are those of no array.
pub(super) fn n_elements(dims: &[i64]) -> Option<usize> {
    dims.iter().try_fold(1usize, |n, dim| n.checked_mul(usize::try_from(*dim).ok()?))
}

fn concatenated(all: &[Known], dimension: i64) -> Option<Known> {
    let first = all.first()?;
    let axis = usize::try_from(dimension).ok().filter(|axis| *axis < first.dims.len())?;
    let but = |known: &Known| [&known.dims[..axis], &known.dims[axis + 1..]].concat();
    if all.iter().any(|known| known.dims.len() != first.dims.len() || but(known) != but(first)) {
        return None;
    }
    let chunk = |known: &Known| n_elements(&known.dims[axis..]);
    let n_outer = n_elements(&first.dims[..axis]).filter(|n| *n <= MAX_ELEMENTS)?;
    let mut values = Vec::new();
    for outer in 0..n_outer {
        for known in all {
            let n = chunk(known)?;
            values.extend_from_slice(known.values.get(outer * n..(outer + 1) * n)?);
        }
    }
    let mut dims = first.dims.clone();
    dims[axis] = all.iter().try_fold(0i64, |sum, known| sum.checked_add(known.dims[axis]))?;
    Some(Known { dtype: first.dtype, dims, values })
}
