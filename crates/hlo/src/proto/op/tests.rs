//! Every op through the proto and back.

use super::*;
use crate::DType;
use crate::ops::samples::all_ops;

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
    assert_eq!(error(proto_with("dot")), "main/x: dot_dimension_numbers is missing");
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
