//! Converts literals to and from `LiteralProto`.
//!
//! A [`Literal`] is row-major; a message lists elements in the order of its layout, so other layouts are permuted.

use super::ProtoError;
use super::messages::LiteralProto;
use super::shape;
use crate::Element;
use crate::{ArrayShape, DType, Literal, Shape};

/// The most dimensions of a literal: printing recurses once per dimension.
const MAX_RANK: usize = 100;

/// A literal's message.
///
/// # Errors
/// The literal's bytes do not fit its shape.
pub fn encode(literal: &Literal, place: &str) -> Result<LiteralProto, ProtoError> {
    let mut proto = LiteralProto { shape: Some(shape::encode(&literal.shape())), ..LiteralProto::default() };
    match literal {
        Literal::Tuple(elements) => {
            proto.tuple_literals = elements.iter().map(|e| encode(e, place)).collect::<Result<_, _>>()?;
        }
        Literal::Token => {}
        Literal::Array { shape, bytes } => {
            if bytes.len() as i64 != shape.n_bytes() {
                let expected = shape.n_elements();
                return Err(ProtoError::literal_bytes(place, shape.to_string(), bytes.len(), shape.dtype, expected));
            }
            let mut physical = Vec::new();
            let bytes = match physical_order(shape, place)? {
                None => bytes,
                Some(order) => {
                    let width = shape.dtype.n_bytes();
                    physical.reserve(bytes.len());
                    order.for_each(|at| physical.extend_from_slice(&bytes[at * width..][..width]));
                    &physical
                }
            };
            write_elements(&mut proto, shape.dtype, bytes);
        }
    }
    Ok(proto)
}

/// A literal from its message.
///
/// # Errors
/// The message's elements do not fit its shape, or [`Literal`] cannot represent it.
pub fn decode(mut proto: LiteralProto, place: &str) -> Result<Literal, ProtoError> {
    let unsupported = |what: &str| ProtoError::Unsupported { place: place.to_string(), what: what.to_string() };
    if !proto.sparse_indices.is_empty() {
        return Err(unsupported("a sparse literal"));
    }
    if !proto.dynamic_sizes.is_empty() {
        return Err(unsupported("a literal with dynamic sizes"));
    }
    let declared = proto.shape.take().ok_or_else(|| ProtoError::missing(place, "literal.shape"))?;
    match shape::decode(&declared, place)? {
        Shape::Tuple(_) => {
            let elements = proto.tuple_literals.into_iter().map(|e| decode(e, place)).collect::<Result<_, _>>()?;
            Ok(Literal::Tuple(elements))
        }
        Shape::Token => Ok(Literal::Token),
        Shape::Opaque | Shape::Buffer(_) => Err(unsupported("an opaque literal")),
        Shape::Array(array) if array.rank() > MAX_RANK => Err(unsupported("a literal of more than 100 dimensions")),
        Shape::Array(array) => {
            let bytes = read_elements(&mut proto, array.dtype);
            let width = array.dtype.n_bytes();
            let expected = array.n_elements();
            if bytes.len() as i128 != expected as i128 * width as i128 || array.dims.iter().any(|&dim| dim < 0) {
                let n_elements = bytes.len() / width;
                let shape = array.to_string();
                return Err(ProtoError::LiteralSize { place: place.to_string(), shape, found: n_elements, expected });
            }
            let bytes = match physical_order(&array, place)? {
                None => bytes,
                Some(order) => {
                    let mut logical = vec![0; bytes.len()];
                    order.zip(bytes.chunks_exact(width)).for_each(|(at, element)| {
                        logical[at * width..][..width].copy_from_slice(element);
                    });
                    logical
                }
            };
            Ok(Literal::Array { shape: array, bytes })
        }
    }
}

/// For each element in the order of the layout its row-major index; `None` if both orders are the same.
fn physical_order(shape: &ArrayShape, place: &str) -> Result<Option<impl Iterator<Item = usize> + use<>>, ProtoError> {
    let rank = shape.rank();
    let Some(layout) = shape.layout.as_ref().filter(|l| !l.minor_to_major.iter().rev().copied().eq(0..rank as i64))
    else {
        return Ok(None);
    };
    let minor_to_major = &layout.minor_to_major;
    let mut axes = minor_to_major.clone();
    axes.sort_unstable();
    if !axes.into_iter().eq(0..rank as i64) {
        let list = minor_to_major.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let array = ArrayShape { layout: None, ..shape.clone() };
        return Err(ProtoError::BadLayout {
            place: place.to_string(),
            shape: array.to_string(),
            minor_to_major: list,
            rank,
        });
    }
    let mut strides = vec![1usize; rank];
    for axis in (1..rank).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape.dims[axis].max(0) as usize);
    }
    let walk: Vec<(usize, usize)> =
        minor_to_major.iter().map(|&axis| (shape.dims[axis as usize] as usize, strides[axis as usize])).collect();
    Ok(Some((0..shape.n_elements() as usize).map(move |mut linear| {
        let mut index = 0;
        for &(size, stride) in &walk {
            index += linear % size * stride;
            linear /= size;
        }
        index
    })))
}

/// Elements of one dtype from little-endian bytes.
fn numbers<T: Element>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(T::DTYPE.n_bytes()).map(T::read).collect()
}

/// Little-endian bytes of elements of one dtype.
fn bytes_of<T: Element>(elements: Vec<T>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements.len() * T::DTYPE.n_bytes());
    elements.into_iter().for_each(|element| element.write(&mut bytes));
    bytes
}

/// The field of a dtype that XLA stores as bytes; `None` for those it stores as numbers.
fn bytes_field(proto: &mut LiteralProto, dtype: DType) -> Option<&mut Vec<u8>> {
    Some(match dtype {
        DType::S1 => &mut proto.s1s,
        DType::S2 => &mut proto.s2s,
        DType::S4 => &mut proto.s4s,
        DType::S8 => &mut proto.s8s,
        DType::S16 => &mut proto.s16s,
        DType::U1 => &mut proto.u1s,
        DType::U2 => &mut proto.u2s,
        DType::U4 => &mut proto.u4s,
        DType::U8 => &mut proto.u8s,
        DType::U16 => &mut proto.u16s,
        DType::F16 => &mut proto.f16s,
        DType::BF16 => &mut proto.bf16s,
        DType::F4E2M1FN => &mut proto.f4e2m1fns,
        DType::F8E3M4 => &mut proto.f8e3m4s,
        DType::F8E4M3B11FNUZ => &mut proto.f8e4m3b11fnuzs,
        DType::F8E4M3FN => &mut proto.f8e4m3fns,
        DType::F8E4M3FNUZ => &mut proto.f8e4m3fnuzs,
        DType::F8E4M3 => &mut proto.f8e4m3s,
        DType::F8E5M2FNUZ => &mut proto.f8e5m2fnuzs,
        DType::F8E5M2 => &mut proto.f8e5m2s,
        DType::F8E8M0FNU => &mut proto.f8e8m0fnus,
        DType::F6E3M2FN => &mut proto.f6e3m2fns,
        DType::F6E2M3FN => &mut proto.f6e2m3fns,
        DType::Pred
        | DType::S32
        | DType::S64
        | DType::U32
        | DType::U64
        | DType::F32
        | DType::F64
        | DType::C64
        | DType::C128 => return None,
    })
}

fn write_elements(proto: &mut LiteralProto, dtype: DType, bytes: &[u8]) {
    if let Some(field) = bytes_field(proto, dtype) {
        *field = bytes.to_vec();
        return;
    }
    match dtype {
        DType::Pred => proto.preds = numbers(bytes),
        DType::S32 => proto.s32s = numbers(bytes),
        DType::S64 => proto.s64s = numbers(bytes),
        DType::U32 => proto.u32s = numbers(bytes),
        DType::U64 => proto.u64s = numbers(bytes),
        DType::F32 => proto.f32s = numbers(bytes),
        DType::F64 => proto.f64s = numbers(bytes),
        DType::C64 => proto.c64s = numbers(bytes),
        DType::C128 => proto.c128s = numbers(bytes),
        _ => unreachable!("every other dtype has a bytes field"),
    }
}

fn read_elements(proto: &mut LiteralProto, dtype: DType) -> Vec<u8> {
    if let Some(field) = bytes_field(proto, dtype) {
        return std::mem::take(field);
    }
    match dtype {
        DType::Pred => bytes_of(std::mem::take(&mut proto.preds)),
        DType::S32 => bytes_of(std::mem::take(&mut proto.s32s)),
        DType::S64 => bytes_of(std::mem::take(&mut proto.s64s)),
        DType::U32 => bytes_of(std::mem::take(&mut proto.u32s)),
        DType::U64 => bytes_of(std::mem::take(&mut proto.u64s)),
        DType::F32 => bytes_of(std::mem::take(&mut proto.f32s)),
        DType::F64 => bytes_of(std::mem::take(&mut proto.f64s)),
        DType::C64 => bytes_of(std::mem::take(&mut proto.c64s)),
        DType::C128 => bytes_of(std::mem::take(&mut proto.c128s)),
        _ => unreachable!("every other dtype has a bytes field"),
    }
}

#[cfg(test)]
mod tests;
