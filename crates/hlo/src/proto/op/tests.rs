//! Every op through the proto and back.

use super::*;
use crate::DType;
use crate::ops::samples::all_ops;
use crate::proto::messages::PrecisionConfig;

#[test]
fn every_op_comes_back_and_leaves_nothing_over() {
    let lhs = Shape::array(DType::F32, [2]);
    for op in all_ops() {
        let mut proto = HloInstructionProto::default();
        encode(&op, Some(&lhs), &mut proto, "here").unwrap();
        proto.opcode = op.opcode().into_owned();
        let context = Context { place: "here", called: called(&op), lhs: Some(&lhs) };
        assert_eq!(decode(&mut proto, context), Ok(op));
        assert_eq!(proto, HloInstructionProto::default());
    }
}

#[test]
fn a_collective_over_mesh_axes_stays_opaque() {
    let mut proto = HloInstructionProto {
        opcode: "all-reduce".to_string(),
        channel_id: 1,
        mesh_axes_replica_group_list: Some(Box::default()),
        ..HloInstructionProto::default()
    };
    let before = proto.clone();
    let op = decode(&mut proto, Context { place: "here", called: vec![CompId(0)], lhs: None }).unwrap();
    assert!(matches!(&op, Op::Opaque(opaque) if opaque.opcode == "all-reduce"));
    assert_eq!(HloInstructionProto { opcode: "all-reduce".to_string(), ..proto }, before);
}

#[test]
fn bad_attributes_say_what_is_expected() {
    let error = |proto: HloInstructionProto| {
        decode(&mut proto.clone(), Context { place: "main/x", called: Vec::new(), lhs: None }).unwrap_err().to_string()
    };
    let proto_with =
        |opcode: &str| HloInstructionProto { opcode: opcode.to_string(), ..HloInstructionProto::default() };
    let calling = |opcode: &str, n: usize| {
        let context = Context { place: "main/x", called: vec![CompId(0); n], lhs: None };
        decode(&mut proto_with(opcode), context).unwrap_err().to_string()
    };
    for (opcode, n_called, field) in [
        ("constant", 0, "literal"),
        ("gather", 0, "gather_dimension_numbers"),
        ("scatter", 1, "scatter_dimension_numbers"),
        ("dot", 0, "dot_dimension_numbers"),
        ("convolution", 0, "convolution_dimension_numbers"),
        ("reduce-window", 1, "window"),
    ] {
        assert_eq!(calling(opcode, n_called), format!("main/x: {field} is missing"));
    }
    assert_eq!(calling("while", 1), "main/x: called_computation_ids is 1, expected 2 ids");
    for (config, expected) in [
        (PrecisionConfig { algorithm: 99, ..Default::default() }, "algorithm is 99, expected 0 to 13"),
        (
            PrecisionConfig { operand_precision: vec![7], ..Default::default() },
            "operand_precision is 7, expected 0, 1 or 2",
        ),
    ] {
        let dot = HloInstructionProto {
            dot_dimension_numbers: Some(Box::default()),
            precision_config: Some(config),
            ..proto_with("dot")
        };
        assert_eq!(error(dot), format!("main/x: precision_config.{expected}"));
    }
    let precision = crate::ops::PrecisionConfig { algorithm: Some("dot_f8".to_string()), ..Default::default() };
    let unknown = attributes::encode_precision(&precision, "main/x").unwrap_err().to_string();
    let begin = "main/x: precision_config.algorithm is `dot_f8`, expected one of unset, dot_any_f8_any_f8_f32, ";
    assert!(unknown.starts_with(begin), "{unknown}");
    assert_eq!(error(proto_with("iota")), "main/x: dimensions (exactly one) is missing");
    assert_eq!(
        error(HloInstructionProto { comparison_direction: "UP".to_string(), ..proto_with("compare") }),
        "main/x: comparison_direction is `UP`, expected one of EQ, NE, GE, GT, LE, LT"
    );
    assert_eq!(
        error(HloInstructionProto { rng_algorithm: -1, ..proto_with("rng-bit-generator") }),
        "main/x: rng_algorithm is -1, expected 0, 1 or 2"
    );
}
