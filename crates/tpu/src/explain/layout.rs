//! The size of an array in a TPU's memory, including the padding of its tiles.
//!
//! A layout such as `{0,3,2,1:T(8,128)(2,1)}` orders the dimensions and cuts the most minor ones into tiles, each tile
//! into smaller ones; a dimension is padded to a multiple of its tile's. `T(8,128)(2,1)` packs pairs of rows of a
//! two-byte dtype into four-byte words, so it needs no more padding than `T(8,128)`.
//!
//! Source: "Tiled layout" in XLA's documentation, `LayoutProto` in `xla_data.proto`. The meaning of memory spaces (0 is
//! HBM; on the chip, 1 is VMEM and 6 is SMEM; 5 is the host's) was inferred from modules of `libtpu` 0.0.51.

use bf16scope_hlo::{ArrayShape, Shape, Tile};

/// The memory space of HBM.
pub const HBM: i64 = 0;

/// Whether an array is in HBM, and not in a memory on the chip or the host's.
pub fn is_in_hbm(shape: &ArrayShape) -> bool {
    shape.layout.as_ref().is_none_or(|layout| layout.memory_space == HBM)
}

/// Bits per stored element: the layout's, otherwise the dtype's.
fn element_bits(shape: &ArrayShape) -> u64 {
    match shape.layout.as_ref().map(|layout| layout.element_size_in_bits) {
        Some(n_bits) if n_bits > 0 => n_bits as u64,
        _ => shape.dtype.bits() as u64,
    }
}

/// Bytes of the elements alone.
pub fn unpadded_bytes(shape: &ArrayShape) -> u64 {
    bytes_of(shape, shape.dims.iter().copied())
}

/// Bytes including the padding of every tile: the memory that the array takes. Without a layout, or with one that is
/// not a permutation of the dimensions, it is [`unpadded_bytes`].
pub fn padded_bytes(shape: &ArrayShape) -> u64 {
    let Some(layout) = &shape.layout else { return unpadded_bytes(shape) };
    let in_order: Option<Vec<i64>> =
        layout.minor_to_major.iter().rev().map(|&axis| shape.dims.get(usize::try_from(axis).ok()?).copied()).collect();
    match in_order {
        Some(major_to_minor) if major_to_minor.len() == shape.dims.len() => {
            bytes_of(shape, layout.tiles.iter().fold(major_to_minor, |dims, tile| cut(&dims, tile)).into_iter())
        }
        Some(_) | None => unpadded_bytes(shape),
    }
}

/// Bytes of all arrays in a shape, including the padding of tiles.
pub fn padded_bytes_of_all(shape: &Shape) -> u64 {
    leaves(shape).into_iter().map(padded_bytes).fold(0, u64::saturating_add)
}

/// The arrays in a shape, in the order of their indices. Tokens are not arrays, and references to buffers have no
/// memory of their own.
pub fn leaves(shape: &Shape) -> Vec<&ArrayShape> {
    match shape {
        Shape::Array(array) => vec![array],
        Shape::Tuple(elements) => elements.iter().flat_map(leaves).collect(),
        Shape::Token | Shape::Opaque | Shape::Buffer(_) => Vec::new(),
    }
}

fn bytes_of(shape: &ArrayShape, dims: impl Iterator<Item = i64>) -> u64 {
    let n_elements = dims.fold(1u64, |product, dim| product.saturating_mul(dim.max(0) as u64));
    n_elements.saturating_mul(element_bits(shape)).div_ceil(8)
}

/// Dimensions, major to minor, after the last ones are cut into tiles: the number of tiles, then the tile.
fn cut(dims: &[i64], Tile(tile): &Tile) -> Vec<i64> {
    let n_missing = tile.len().saturating_sub(dims.len());
    let dims: Vec<i64> = std::iter::repeat_n(1, n_missing).chain(dims.iter().copied()).collect();
    let (outer, inner) = dims.split_at(dims.len() - tile.len());
    let mut out = outer.to_vec();
    let mut sizes = Vec::with_capacity(tile.len());
    // A combined dimension multiplies the next more minor one.
    let mut combined = 1i64;
    for (&dim, &size) in inner.iter().zip(tile) {
        if size == Tile::COMBINE {
            combined = combined.saturating_mul(dim);
            continue;
        }
        let size = size.max(1);
        let dim = dim.max(0).saturating_mul(std::mem::replace(&mut combined, 1));
        out.push(dim / size + i64::from(dim % size != 0));
        sizes.push(size);
    }
    out.extend(sizes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::text::parse;

    /// Unpadded and padded bytes of an array given as text.
    fn bytes(shape: &str) -> (u64, u64) {
        let module = parse(&format!("HloModule m\nENTRY m {{\n  ROOT x = {shape} parameter(0)\n}}\n"), "m").unwrap();
        let array = leaves(module.entry().result_shape())[0].clone();
        (unpadded_bytes(&array), padded_bytes(&array))
    }

    #[test]
    fn tiles_are_filled_up() {
        // A column: each of its 128 rows takes a row of a tile.
        assert_eq!(bytes("f32[128,1]{1,0:T(8,128)}"), (512, 128 * 128 * 4));
        // The same as a row.
        assert_eq!(bytes("f32[128,1]{0,1:T(8,128)}"), (512, 8 * 128 * 4));
        // Two rows of bf16 share a word.
        assert_eq!(bytes("bf16[128,2,2,64]{0,3,2,1:T(8,128)(2,1)}"), (65536, 65536));
        assert_eq!(bytes("bf16[3,3,1,32]{3,2,1,0:T(4,128)(2,1)}"), (576, 9 * 4 * 128 * 2));
        assert_eq!(bytes("bf16[10]{0:T(512)(128)(2,1)}"), (20, 1024));
        assert_eq!(bytes("pred[128,128]{1,0:T(8,128)(4,1)}"), (16384, 16384));
        // A tile may have more dimensions than the array, even for a scalar.
        assert_eq!(bytes("f32[]{:T(256)}"), (4, 1024));
        assert_eq!(bytes("f32[100]{0:T(8,128)}"), (400, 4096));
        // An empty array takes nothing, and one without tiles just its elements.
        assert_eq!(bytes("f32[0,3]{1,0:T(8,128)}"), (0, 0));
        assert_eq!(bytes("f32[5,7]{1,0}"), (140, 140));
        assert_eq!(bytes("f32[5,7]"), (140, 140));
        // Four-bit elements, and dimensions combined before they are cut: 5 * 7 = 35 to 40.
        assert_eq!(bytes("s4[8]{0:E(4)}"), (4, 4));
        assert_eq!(bytes("f32[5,7]{1,0:T(*,8)}"), (140, 160));
    }

    #[test]
    fn only_space_zero_is_hbm() {
        let place = |shape: &str| {
            let text = format!("HloModule m\nENTRY m {{\n  ROOT x = {shape} parameter(0)\n}}\n");
            is_in_hbm(leaves(parse(&text, "m").unwrap().entry().result_shape())[0])
        };
        assert!(place("f32[8]{0:T(256)}") && place("f32[8]"));
        assert!(!place("f32[8]{0:T(256)S(1)}") && !place("s32[]{:T(256)S(6)}"));
    }
}
