//! Converts a graph's constants to HLO literals. A single value that fills an array stays a scalar, so a message of a few bytes
//! never becomes an array of gigabytes.
//!
//! Source: `TensorProto` in `tensor.proto`: if there are too few values the last is repeated; without values all are zero.

use half::{bf16, f16};

use super::dtypes;
use super::error::Problem;
use super::messages::TensorProto;
use super::node::dims_of;
use bf16scope_hlo::{ArrayShape, DType, Literal};

/// Bytes of an array whose last value is repeated, at most.
const MAX_BYTES: i64 = 1 << 30;

/// A constant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Constant {
    /// Every element.
    Dense(Literal),
    /// A scalar that fills these dims.
    Splat(Literal, Vec<i64>),
}

/// The number of elements of an array of these dims, if memory could hold one. An empty axis counts as one of size 1, so that
/// products of any of the dims are numbers too.
pub(crate) fn n_elements(dims: &[i64]) -> Option<i64> {
    let is_bounded = |n: &i64| *n < 1 << 48;
    let most = dims.iter().try_fold(1i64, |n, dim| n.checked_mul((*dim).max(1)).filter(is_bounded))?;
    match dims.iter().copied().min() {
        Some(least) if least < 0 => None,
        Some(0) => Some(0),
        _ => Some(most),
    }
}

/// The constant that a message holds.
pub(crate) fn constant(tensor: &TensorProto) -> Result<Constant, Problem> {
    let dtype = dtypes::hlo(tensor.dtype)
        .ok_or_else(|| Problem::new(format!("it is of {}, which HLO does not have", dtypes::name(tensor.dtype))))?;
    let dims = tensor.tensor_shape.as_ref().map_or(Some(Vec::new()), dims_of).filter(|dims| !dims.contains(&-1));
    let dims = dims.ok_or_else(|| Problem::new("the shape of its value is not known"))?;
    let n_elements =
        n_elements(&dims).ok_or_else(|| Problem::new(format!("its dims are {dims:?}, more than memory holds")))?;
    let n_bytes = dtype.n_bytes();
    let (bytes, is_content) = match tensor.tensor_content.is_empty() {
        true => (values(tensor, dtype)?, false),
        false => (tensor.tensor_content.clone(), true),
    };
    let n_values = (bytes.len() / n_bytes) as i64;
    if n_values == n_elements && bytes.len() % n_bytes == 0 {
        return Ok(Constant::Dense(Literal::Array { shape: ArrayShape::new(dtype, dims), bytes: whole(bytes, dtype) }));
    }
    if is_content || n_values > n_elements {
        return Err(Problem::new(format!(
            "its value holds {} bytes, expected {n_elements} elements of {dtype}",
            bytes.len()
        )));
    }
    let last = match n_values {
        0 => vec![0; n_bytes],
        _ => bytes[bytes.len() - n_bytes..].to_vec(),
    };
    if n_values <= 1 {
        let scalar = Literal::Array { shape: ArrayShape::new(dtype, []), bytes: whole(last, dtype) };
        return Ok(Constant::Splat(scalar, dims));
    }
    if n_elements.saturating_mul(n_bytes as i64) > MAX_BYTES {
        return Err(Problem::new(format!("its value has dims {dims:?}, more than {MAX_BYTES} bytes")));
    }
    let mut all = bytes;
    for _ in n_values..n_elements {
        all.extend_from_slice(&last);
    }
    Ok(Constant::Dense(Literal::Array { shape: ArrayShape::new(dtype, dims), bytes: whole(all, dtype) }))
}

/// The same bytes, with every `true` as 1.
fn whole(mut bytes: Vec<u8>, dtype: DType) -> Vec<u8> {
    if dtype == DType::Pred {
        bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    }
    bytes
}

/// The values of a message's `*_val` lists, as little-endian bytes.
fn values(tensor: &TensorProto, dtype: DType) -> Result<Vec<u8>, Problem> {
    let ints = || tensor.int_val.iter();
    Ok(match dtype {
        DType::F32 => tensor.float_val.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F64 => tensor.double_val.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::S32 => ints().flat_map(|value| value.to_le_bytes()).collect(),
        DType::S16 | DType::U16 => ints().flat_map(|value| (*value as u16).to_le_bytes()).collect(),
        DType::S8 | DType::U8 => ints().map(|value| *value as u8).collect(),
        DType::S64 => tensor.int64_val.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::U32 => tensor.uint32_val.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::U64 => tensor.uint64_val.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::Pred => tensor.bool_val.iter().map(|value| u8::from(*value)).collect(),
        DType::F16 => tensor.half_val.iter().flat_map(|value| f16::from_bits(*value as u16).to_le_bytes()).collect(),
        DType::BF16 => tensor.half_val.iter().flat_map(|value| bf16::from_bits(*value as u16).to_le_bytes()).collect(),
        _ if tensor.tensor_shape.is_none() => vec![0; dtype.n_bytes()],
        _ => return Err(Problem::new(format!("a constant of {dtype} in a list is not read"))),
    })
}

#[cfg(test)]
mod tests;
