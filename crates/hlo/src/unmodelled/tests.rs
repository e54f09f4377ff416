//! Attributes of ops without a model, from proto to text and back.

use super::*;
use crate::proto::messages::{
    CholeskyOptions, CollectiveDeviceListProto, DotDimensionNumbers, PrecisionConfig, RaggedDotDimensionNumbers,
    ReplicaGroup, SourceTarget, TriangularSolveOptions,
};
use crate::proto::{decode, encode};
use crate::text::parse;
use crate::verify;

/// Messages whose every field has a text, with that text.
fn samples() -> Vec<(&'static str, HloInstructionProto, &'static str)> {
    let proto_with = HloInstructionProto::default;
    let groups = CollectiveDeviceListProto {
        replica_groups: vec![ReplicaGroup { replica_ids: vec![0, 1] }, ReplicaGroup { replica_ids: vec![2, 3] }],
        ..Default::default()
    };
    let aliasing = OutputOperandAliasing { output_shape_index: vec![0], operand_index: 1, operand_shape_index: vec![] };
    let metadata = OpMetadata { source_end_line: 4, deduplicated_name: "a".into(), ..Default::default() };
    let triangular = TriangularSolveOptions { left_side: true, lower: true, unit_diagonal: true, transpose_a: 2 };
    vec![
        (
            "all-gather",
            HloInstructionProto {
                channel_id: 3,
                collective_device_list: Some(Box::new(groups)),
                constrain_layout: true,
                use_global_device_ids: true,
                dimensions: vec![1],
                ..proto_with()
            },
            "channel_id=3, replica_groups={{0,1},{2,3}}, constrain_layout=true, use_global_device_ids=true, \
                 dimensions={1}",
        ),
        ("all-to-all", proto_with(), "replica_groups={}"),
        (
            "collective-permute",
            HloInstructionProto { source_target_pairs: vec![SourceTarget { source: 0, target: 1 }], ..proto_with() },
            "source_target_pairs={{0,1}}",
        ),
        (
            "fusion",
            HloInstructionProto {
                fusion_kind: "kLoop".into(),
                output_operand_aliasing: vec![aliasing],
                metadata: Some(metadata),
                ..proto_with()
            },
            "output_to_operand_aliasing={{0}: (1, {})}, kind=kLoop, \
                 metadata=source_end_line=4 deduplicated_name=\"a\"",
        ),
        (
            "fft",
            HloInstructionProto { fft_type: 2, fft_length: vec![8], ..proto_with() },
            "fft_type=RFFT, fft_length={8}",
        ),
        (
            "triangular-solve",
            HloInstructionProto { triangular_solve_options: Some(triangular), ..proto_with() },
            "left_side=true, lower=true, unit_diagonal=true, transpose_a=TRANSPOSE",
        ),
        (
            "cholesky",
            HloInstructionProto { cholesky_options: Some(CholeskyOptions { lower: true }), ..proto_with() },
            "lower=true",
        ),
        ("topk", HloInstructionProto { k: 4, largest: true, ..proto_with() }, "k=4, largest=true"),
        ("infeed", HloInstructionProto { infeed_config: b"x\"".to_vec(), ..proto_with() }, "infeed_config=\"x\\\"\""),
        (
            "outfeed",
            HloInstructionProto {
                outfeed_shape: Some(Box::new(shape::encode(&Cursor::new("(f32[4,2]{0,1}, s32[])").shape().unwrap()))),
                outfeed_config: b"x".to_vec(),
                ..proto_with()
            },
            "outfeed_shape=(f32[4,2]{0,1}, s32[]), outfeed_config=\"x\"",
        ),
        (
            "send",
            HloInstructionProto { channel_id: 1, is_host_transfer: true, ..proto_with() },
            "channel_id=1, is_host_transfer=true",
        ),
        ("rng", HloInstructionProto { distribution: 1, ..proto_with() }, "distribution=rng_uniform"),
        (
            "ragged-dot",
            HloInstructionProto {
                ragged_dot_dimension_numbers: Some(Box::new(RaggedDotDimensionNumbers {
                    dot_dimension_numbers: Some(DotDimensionNumbers {
                        lhs_contracting_dimensions: vec![1],
                        rhs_contracting_dimensions: vec![2],
                        ..Default::default()
                    }),
                    lhs_ragged_dimensions: vec![0],
                    rhs_group_dimensions: vec![0],
                })),
                precision_config: Some(PrecisionConfig { operand_precision: vec![2, 0], ..Default::default() }),
                ..proto_with()
            },
            "lhs_contracting_dims={1}, rhs_contracting_dims={2}, lhs_ragged_dims={0}, rhs_group_dims={0}, \
                 operand_precision={highest,default}",
        ),
    ]
}

#[test]
fn attributes_cross_both_ways() {
    for (opcode, proto, text) in samples() {
        let attributes = to_text(opcode, &proto);
        let joined: Vec<String> = attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(joined.join(", "), text);
        let mut back = HloInstructionProto::default();
        assert_eq!(to_proto(opcode, &attributes, &mut back), Ok(()));
        assert_eq!(back, proto, "{opcode}");
    }
}

#[test]
fn what_came_from_a_proto_is_not_said_twice() {
    for (opcode, proto, _) in samples() {
        let unmodelled = Unmodelled { attributes: to_text(opcode, &proto), proto: proto.encode_to_vec() };
        assert_eq!(message(opcode, &unmodelled).unwrap(), proto, "{opcode}");
    }
}

#[test]
fn a_permutation_of_a_proto_verifies_as_that_of_its_text() {
    let text = "HloModule m, num_partitions=2\n\nENTRY main {\n  x = f32[4]{0} parameter(0)\n  ROOT y = f32[4]{0} \
                    collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,0}}\n}\n";
    let module = parse(text, "m.hlo").unwrap();
    let decoded = decode::from_bytes(&encode::to_bytes(&module).unwrap()).unwrap();
    assert_eq!([&module, &decoded].map(verify), [Ok(()), Ok(())]);
}

#[test]
fn windows_and_labels_of_a_custom_call_cross_both_ways() {
    let attribute_text = "window={size=2x2 stride=1x2 pad=0_1x0_0}, dim_labels=b01f_01io->b01f, feature_group_count=2";
    let text = format!(
        "HloModule m\n\nENTRY main {{\n  x = f32[1,4,4,2]{{3,2,1,0}} parameter(0)\n  ROOT y = f32[4]{{0}} custom-call(x, x), \
             {attribute_text}, custom_call_target=\"f\"\n}}\n"
    );
    let module = parse(&text, "m.hlo").unwrap();
    let decoded = decode::from_bytes(&encode::to_bytes(&module).unwrap()).unwrap();
    let printed = crate::text::print(&decoded, &crate::text::PrintOptions::default());
    assert!(printed.contains(&format!("custom-call(x, x), {attribute_text}, custom_call_target=\"f\"")), "{printed}");
}

#[test]
fn a_short_form_of_text_has_no_proto() {
    let text = "HloModule m\n\nENTRY main {\n  x = f32[4]{0} parameter(0)\n  s = ((f32[4]{0}), f32[2]{0}, s32[]) \
                    slice-start(x), slice={[0:2]}\n  ROOT d = f32[2]{0} slice-done(s)\n}\n";
    let module = parse(text, "m.hlo").unwrap();
    let error = encode::to_bytes(&module).unwrap_err().to_string();
    assert!(
        error.starts_with("main/s: `slice-start`, text's short form of an `async-start` around `slice` (a proto has"),
        "{error}"
    );
    assert!(error.ends_with("give XLA's proto of the module), is not supported"), "{error}");
}

#[test]
fn an_attribute_without_a_field_has_no_proto() {
    for (of_instruction, of_computation, place) in [(", foo=1", "", "main/y"), ("", ", foo=1", "main")] {
        let text = format!(
            "HloModule m\n\nENTRY main {{\n  x = f32[4]{{0}} parameter(0)\n  ROOT y = f32[4]{{0}} \
             domain(x){of_instruction}\n}}{of_computation}\n"
        );
        let error = encode::to_bytes(&parse(&text, "m.hlo").unwrap()).unwrap_err().to_string();
        assert_eq!(error, format!("{place}: a proto for the text attribute foo is not supported"));
    }
}

/// Without `outfeed_shape` an outfeed has its operand's layout, and the message states it.
#[test]
fn an_outfeed_crosses_both_ways() {
    let text = |attributes: &str| {
        format!(
            "HloModule o\n\nENTRY main {{\n  x = f32[4]{{0}} parameter(0)\n  t = token[] after-all()\n  ROOT o = token[] \
                 outfeed(x, t){attributes}\n}}\n"
        )
    };
    for attributes in ["", ", outfeed_shape=f32[4]{0}"] {
        let module = parse(&text(attributes), "o.hlo").unwrap();
        let decoded = decode::from_bytes(&encode::to_bytes(&module).unwrap()).unwrap();
        let printed = crate::text::print(&decoded, &crate::text::PrintOptions::default());
        assert!(printed.contains("outfeed(x, t), outfeed_shape=f32[4]{0}\n"), "{printed}");
    }
}

#[test]
fn an_attribute_without_a_field_is_named() {
    let attributes = [("brand_new".to_string(), "1".to_string())];
    let error = to_proto("fusion", &attributes, &mut HloInstructionProto::default());
    assert_eq!(error, Err("brand_new".to_string()));
}
