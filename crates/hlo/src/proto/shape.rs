//! Converts shapes and layouts to and from `ShapeProto` and `LayoutProto`.
//!
//! Layout fields that [`Layout`] keeps as text ([`Layout::extra`]) are translated here: `L(n)` tail padding, `#(t)`
//! and `*(t)` index and pointer types, `SC(d:i,j)` split configurations, `M(n)` dynamic-shape prefix; and for sparse
//! layouts, which XLA no longer has, `D(D,C+)` levels and `P(shape)` physical shape.

use super::ProtoError;
use super::messages::{LayoutProto, ProgramShapeProto, ShapeProto, SplitConfigProto, TileProto};
use crate::text::lex::Cursor;
use crate::{ArrayShape, DType, Layout, Shape, Tile};
use std::fmt::Write;

const TUPLE: i32 = 13;
const OPAQUE: i32 = 14;
const TOKEN: i32 = 17;
const BUFFER: i32 = 34;

const DTYPES: &str = "a PrimitiveType this build knows";

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
/// An element type that [`Shape`] does not have, or a layout that it cannot represent.
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
            let dtype = DType::from_xla(number)
                .ok_or_else(|| ProtoError::unknown(place, "shape.element_type", number.into(), DTYPES))?;
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
            "D" => {
                for level in values.split(',').map(str::trim) {
                    let at = LEVELS.iter().position(|name| level.starts_with(name)).unwrap_or(0);
                    proto.dim_level_types.push(at as i32);
                    proto.dim_unique.push(!level.contains('+'));
                    proto.dim_ordered.push(!level.contains('~'));
                }
            }
            "P" => {
                let shape = Cursor::new(values).shape().ok();
                proto.physical_shape = shape.map(|shape| Box::new(encode(&shape)));
            }
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

/// The text forms of a `DimLevelType`, by its number.
const LEVELS: [&str; 4] = ["D", "C", "S", "H"];

/// The `key(values)` pieces of [`Layout::extra`]; a piece without key repeats the one before.
fn extras(extra: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut key = "";
    let mut rest = extra;
    std::iter::from_fn(move || {
        let (piece_key, after) = rest.split_once('(')?;
        let piece_key = piece_key.trim();
        if !piece_key.is_empty() {
            key = piece_key;
        }
        let mut n_open = 1;
        let end = after.find(|c| {
            n_open += i32::from(c == '(') - i32::from(c == ')');
            n_open == 0
        })?;
        rest = &after[end + 1..];
        Some((key, &after[..end]))
    })
}

fn decode_layout(proto: &LayoutProto, place: &str) -> Result<Layout, ProtoError> {
    let mut extra = String::new();
    let mut put = |key: &str, value: &dyn std::fmt::Display| {
        write!(extra, "{key}({value})").expect("writing to a string cannot fail");
    };
    if let Some(levels) = decode_levels(proto, place)? {
        put("D", &levels);
    }
    if !matches!(proto.tail_padding_alignment_in_elements, 0 | 1) {
        put("L", &proto.tail_padding_alignment_in_elements);
    }
    for (key, number) in [("#", proto.index_primitive_type), ("*", proto.pointer_primitive_type)] {
        match DType::from_xla(number) {
            Some(dtype) => put(key, &dtype),
            None if number == 0 => {}
            None => return Err(ProtoError::unknown(place, "layout's primitive type", number.into(), DTYPES)),
        }
    }
    for (i, split) in proto.split_configs.iter().enumerate() {
        let indices = split.split_indices.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        put(if i == 0 { "SC" } else { "" }, &format_args!("{}:{indices}", split.dimension));
    }
    if let Some(physical) = &proto.physical_shape {
        put("P", &decode(physical, place)?.with_default_layout());
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

/// The levels of a layout in text form, including dense ones; `None` if it has none.
fn decode_levels(proto: &LayoutProto, place: &str) -> Result<Option<String>, ProtoError> {
    let LayoutProto { dim_level_types, dim_unique, dim_ordered, .. } = proto;
    let is_true = |flags: &[bool]| flags.iter().all(|&flag| flag);
    if dim_level_types.is_empty() && is_true(dim_unique) && is_true(dim_ordered) {
        return Ok(None);
    }
    if dim_level_types.is_empty() {
        let what = "a layout with flags of levels and no levels".to_string();
        return Err(ProtoError::Unsupported { place: place.to_string(), what });
    }
    let flag = |flags: &[bool], axis: usize, sign: &'static str| match flags.get(axis) {
        Some(false) => sign,
        Some(true) | None => "",
    };
    let level = |(axis, &number): (usize, &i32)| {
        let name = usize::try_from(number).ok().and_then(|number| LEVELS.get(number));
        let name = name.ok_or_else(|| ProtoError::unknown(place, "dim_level_types", number.into(), "0 to 3"))?;
        Ok(format!("{name}{}{}", flag(dim_unique, axis, "+"), flag(dim_ordered, axis, "~")))
    };
    let levels = dim_level_types.iter().enumerate().map(level).collect::<Result<Vec<_>, ProtoError>>()?;
    Ok(Some(levels.join(",")))
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
            extra: "D(D,C+,S~)L(1024)#(u32)*(u64)SC(1:8,16)(2:4)P((u32[3]{0}, s4[]))M(256)".to_string(),
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
    fn odd_layouts_are_errors() {
        let error = |layout| {
            let layout = Some(layout);
            let proto =
                ShapeProto { element_type: DType::F32.xla(), dimensions: vec![2], layout, ..Default::default() };
            decode(&proto, "main/x").unwrap_err().to_string()
        };
        assert_eq!(
            error(LayoutProto { dim_unique: vec![false], ..LayoutProto::default() }),
            "main/x: a layout with flags of levels and no levels is not supported"
        );
        assert_eq!(
            error(LayoutProto { dim_level_types: vec![7], ..LayoutProto::default() }),
            "main/x: dim_level_types is 7, expected 0 to 3"
        );
        assert_eq!(
            error(LayoutProto { index_primitive_type: 99, ..LayoutProto::default() }),
            "main/x: layout's primitive type is 99, expected a PrimitiveType this build knows"
        );
    }

    #[test]
    fn an_unknown_element_type_is_an_error() {
        let proto = ShapeProto { element_type: 99, ..ShapeProto::default() };
        let error = decode(&proto, "main/x").unwrap_err();
        assert_eq!(error.to_string(), "main/x: shape.element_type is 99, expected a PrimitiveType this build knows");
    }
}
