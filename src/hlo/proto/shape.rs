//! Shapes and layouts ↔ `ShapeProto` and `LayoutProto`.
//!
//! Layout fields that [`Layout`] keeps as text ([`Layout::extra`]) are translated here: `L(n)` tail padding, `#(t)` and
//! `*(t)` index and pointer types, `SC(d:i,j)` split configurations, `M(n)` dynamic-shape prefix.

use super::ProtoError;
use super::messages::{LayoutProto, ProgramShapeProto, ShapeProto, SplitConfigProto, TileProto};
use crate::hlo::{ArrayShape, DType, Layout, Shape, Tile};
use std::fmt::Write;

const TUPLE: i32 = 13;
const OPAQUE: i32 = 14;
const TOKEN: i32 = 17;
const BUFFER: i32 = 34;

/// A shape as XLA writes it: every array has a layout, row-major if it had none.
pub fn encode(shape: &Shape) -> ShapeProto {
    match shape {
        Shape::Array(array) => encode_array(array),
        Shape::Buffer(array) => {
            ShapeProto { element_type: BUFFER, tuple_shapes: vec![encode_array(array)], ..ShapeProto::default() }
        }
        Shape::Tuple(elements) => ShapeProto {
            element_type: TUPLE,
            tuple_shapes: elements.iter().map(encode).collect(),
            ..ShapeProto::default()
        },
        Shape::Token => ShapeProto { element_type: TOKEN, ..ShapeProto::default() },
        Shape::Opaque => ShapeProto { element_type: OPAQUE, ..ShapeProto::default() },
    }
}

fn encode_array(array: &ArrayShape) -> ShapeProto {
    let layout = match &array.layout {
        Some(layout) => encode_layout(layout),
        None => encode_layout(&Layout::descending(array.rank())),
    };
    ShapeProto {
        element_type: array.dtype.xla(),
        dimensions: array.dims.clone(),
        is_dynamic_dimension: (0..array.rank()).map(|axis| array.is_dynamic(axis)).collect(),
        layout: Some(layout),
        ..ShapeProto::default()
    }
}

/// A shape from its message.
///
/// # Errors
/// An element type that [`Shape`] does not have, or a layout it cannot hold.
pub fn decode(proto: &ShapeProto, place: &str) -> Result<Shape, ProtoError> {
    match proto.element_type {
        TUPLE => proto.tuple_shapes.iter().map(|s| decode(s, place)).collect::<Result<_, _>>().map(Shape::Tuple),
        TOKEN => Ok(Shape::Token),
        OPAQUE => Ok(Shape::Opaque),
        BUFFER => match proto.tuple_shapes.as_slice() {
            [element] if ![TUPLE, TOKEN, OPAQUE, BUFFER].contains(&element.element_type) => {
                decode(element, place).map(|shape| match shape {
                    Shape::Array(array) => Shape::Buffer(Box::new(array)),
                    other => other,
                })
            }
            _ => Err(ProtoError::missing(place, "shape.tuple_shapes (the one array of a buffer)")),
        },
        number => {
            let dtype = DType::from_xla(number).ok_or_else(|| {
                ProtoError::unknown(place, "shape.element_type", number.into(), "a PrimitiveType this build knows")
            })?;
            let any_dynamic = proto.is_dynamic_dimension.contains(&true);
            Ok(Shape::Array(ArrayShape {
                dtype,
                dims: proto.dimensions.clone(),
                dynamic: if any_dynamic { proto.is_dynamic_dimension.clone() } else { Vec::new() },
                // A scalar has one plain layout; text does not print it.
                layout: proto
                    .layout
                    .as_ref()
                    .map(|layout| decode_layout(layout, place))
                    .transpose()?
                    .filter(|layout| !proto.dimensions.is_empty() || *layout != Layout::default()),
            }))
        }
    }
}

/// A signature as XLA writes it.
pub fn encode_program(parameters: &[&Shape], result: &Shape, parameter_names: Vec<String>) -> ProgramShapeProto {
    ProgramShapeProto {
        parameters: parameters.iter().map(|shape| encode(shape)).collect(),
        result: Some(encode(result)),
        parameter_names,
    }
}

fn encode_layout(layout: &Layout) -> LayoutProto {
    let mut proto = LayoutProto {
        minor_to_major: layout.minor_to_major.clone(),
        tiles: layout.tiles.iter().map(|tile| TileProto { dimensions: tile.0.clone() }).collect(),
        tail_padding_alignment_in_elements: 1,
        element_size_in_bits: layout.element_size_in_bits,
        memory_space: layout.memory_space,
        ..LayoutProto::default()
    };
    for (key, values) in extras(&layout.extra) {
        let number = |text: &str| text.parse::<i64>().unwrap_or(0);
        let dtype = |text: &str| DType::from_name(text).map_or(0, DType::xla);
        match key {
            "L" => proto.tail_padding_alignment_in_elements = number(values),
            "#" => proto.index_primitive_type = dtype(values),
            "*" => proto.pointer_primitive_type = dtype(values),
            "M" => proto.dynamic_shape_metadata_prefix_bytes = number(values),
            "SC" => {
                let (dimension, indices) = values.split_once(':').unwrap_or((values, ""));
                let split_indices = indices.split(',').filter(|i| !i.is_empty()).map(number).collect();
                proto.split_configs.push(SplitConfigProto { dimension: number(dimension), split_indices });
            }
            _ => {}
        }
    }
    proto
}

/// The `key(values)` pieces of [`Layout::extra`]; a piece without key repeats the one before.
fn extras(extra: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut key = "";
    extra.split_terminator(')').filter_map(move |piece| {
        let (own, values) = piece.split_once('(')?;
        if !own.is_empty() {
            key = own;
        }
        Some((key, values))
    })
}

fn decode_layout(proto: &LayoutProto, place: &str) -> Result<Layout, ProtoError> {
    let sparse = proto.dim_level_types.iter().any(|&level| level != 0) || proto.physical_shape.is_some();
    if sparse {
        return Err(ProtoError::Unsupported { place: place.to_string(), what: "a sparse layout".to_string() });
    }
    let mut extra = String::new();
    let mut put = |key: &str, value: &dyn std::fmt::Display| {
        write!(extra, "{key}({value})").expect("writing to a string cannot fail");
    };
    if proto.tail_padding_alignment_in_elements > 1 {
        put("L", &proto.tail_padding_alignment_in_elements);
    }
    for (key, number) in [("#", proto.index_primitive_type), ("*", proto.pointer_primitive_type)] {
        if let Some(dtype) = DType::from_xla(number) {
            put(key, &dtype);
        }
    }
    for (i, split) in proto.split_configs.iter().enumerate() {
        let indices = split.split_indices.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        put(if i == 0 { "SC" } else { "" }, &format_args!("{}:{indices}", split.dimension));
    }
    if proto.dynamic_shape_metadata_prefix_bytes != 0 {
        put("M", &proto.dynamic_shape_metadata_prefix_bytes);
    }
    Ok(Layout {
        minor_to_major: proto.minor_to_major.clone(),
        tiles: proto.tiles.iter().map(|tile| Tile(tile.dimensions.clone())).collect(),
        element_size_in_bits: proto.element_size_in_bits,
        memory_space: proto.memory_space,
        extra,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_comes_back() {
        let layout = Layout {
            minor_to_major: vec![0, 2, 1],
            tiles: vec![Tile(vec![8, 128]), Tile(vec![Tile::COMBINE, 2])],
            element_size_in_bits: 4,
            memory_space: 5,
            extra: "L(1024)#(u32)*(u64)SC(1:8,16)(2:4)M(256)".to_string(),
        };
        let array = ArrayShape {
            dtype: DType::S4,
            dims: vec![2, 3, 4],
            dynamic: vec![false, true, false],
            layout: Some(layout),
        };
        let buffer = Shape::Buffer(Box::new(array.clone()));
        let shape = Shape::Tuple(vec![array.into(), Shape::Token, Shape::Opaque, buffer, Shape::Tuple(Vec::new())]);
        assert_eq!(decode(&encode(&shape), "here"), Ok(shape));
    }

    #[test]
    fn an_unknown_element_type_is_an_error() {
        let proto = ShapeProto { element_type: 99, ..ShapeProto::default() };
        let error = decode(&proto, "main/x").unwrap_err();
        assert_eq!(error.to_string(), "main/x: shape.element_type is 99, expected a PrimitiveType this build knows");
    }
}
