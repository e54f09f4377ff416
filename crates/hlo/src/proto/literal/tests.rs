//! Literals through the message and back, and those that are refused.

use super::*;
use crate::Layout;

#[test]
fn every_dtype_comes_back() {
    for &dtype in DType::ALL {
        let shape = ArrayShape { layout: Some(Layout::descending(2)), ..ArrayShape::new(dtype, [2, 1]) };
        let n_bytes = shape.n_bytes() as u8;
        let bytes = if dtype == DType::Pred { vec![0, 1] } else { (1..=n_bytes).collect() };
        let literal = Literal::Tuple(vec![Literal::Array { shape, bytes }, Literal::Token]);
        let proto = encode(&literal, "here").unwrap();
        assert_eq!(decode(proto, "here"), Ok(literal));
    }
}

#[test]
fn other_layouts_list_elements_in_their_own_order() {
    let mut shape = ArrayShape::new(DType::S32, [2, 3]);
    shape.layout = Some(Layout { minor_to_major: vec![0, 1], ..Layout::default() });
    let bytes = bytes_of(vec![0i32, 1, 2, 3, 4, 5]);
    let literal = Literal::Array { shape, bytes };
    let proto = encode(&literal, "here").unwrap();
    assert_eq!(proto.s32s, [0, 3, 1, 4, 2, 5]);
    assert_eq!(decode(proto, "here"), Ok(literal));
}

#[test]
fn literals_that_are_no_arrays_of_elements_are_refused() {
    let whole = || encode(&Literal::from_elements([1], &[1i32]), "here").unwrap();
    let of_shape = |shape: Shape| Some(shape::encode(&shape));
    for (proto, expected) in [
        (LiteralProto { sparse_indices: vec![0], ..whole() }, "a sparse literal is not supported"),
        (LiteralProto { dynamic_sizes: vec![1], ..whole() }, "a literal with dynamic sizes is not supported"),
        (LiteralProto { shape: None, ..whole() }, "literal.shape is missing"),
        (LiteralProto { shape: of_shape(Shape::Opaque), ..whole() }, "an opaque literal is not supported"),
        (
            LiteralProto { shape: of_shape(Shape::array(DType::S32, vec![1; 101])), ..whole() },
            "a literal of more than 100 dimensions is not supported",
        ),
    ] {
        assert_eq!(decode(proto, "main/c").unwrap_err().to_string(), format!("main/c: {expected}"));
    }
}

#[test]
fn too_few_elements_are_an_error() {
    let mut proto = encode(&Literal::from_elements([3], &[1i32, 2, 3]), "here").unwrap();
    proto.s32s.pop();
    let error = decode(proto, "main/c").unwrap_err();
    assert_eq!(error.to_string(), "main/c: literal of shape s32[3]{0} holds 2 elements, expected 3");
    let mut proto = encode(&Literal::from_elements([1], &[1i32]), "here").unwrap();
    proto.s32s.clear();
    assert_eq!(
        decode(proto, "main/c").unwrap_err().to_string(),
        "main/c: literal of shape s32[1]{0} holds 0 elements, expected 1; help: whoever wrote the module left the \
         constants' values out, as TensorFlow's stage `optimized_hlo_proto_serialized` does: ask for `hlo_serialized`"
    );
}
