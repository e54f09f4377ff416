//! Accepted messages, and the errors for broken ones.

use super::*;
use crate::ops::{BinaryOp, UnaryOp};
use crate::{DType, Op};

/// `entry(x, y) = call(f, x) + y`, `f(a) = negate(a)`.
fn sample() -> HloModuleProto {
    let mut module = Module::new("sample");
    let shape = Shape::array(DType::F32, [2]).with_default_layout();
    let callee = module.add_computation("f");
    let a = module.append(callee, Op::parameter(0), Vec::new(), shape.clone(), Metadata::default());
    module.append(callee, Op::Unary(UnaryOp::Negate), vec![a], shape.clone(), Metadata::default());
    let entry = module.entry;
    let x = module.append(entry, Op::parameter(0), Vec::new(), shape.clone(), Metadata::default());
    let y = module.append(entry, Op::parameter(1), Vec::new(), shape.clone(), Metadata::default());
    let called = module.append(entry, Op::Call { to_apply: callee }, vec![x], shape.clone(), Metadata::default());
    module.append(entry, Op::Binary(BinaryOp::Add), vec![called, y], shape, Metadata::default());
    encode::module(&module).unwrap()
}

fn error(change: impl FnOnce(&mut HloModuleProto)) -> String {
    let mut proto = sample();
    change(&mut proto);
    module(proto).unwrap_err().to_string()
}

#[test]
fn callees_go_first_and_any_order_comes_in() {
    let proto = sample();
    assert_eq!(proto.computations[0].name, "f");
    let ordered = module(proto.clone()).unwrap();
    let mut shuffled = proto;
    shuffled.computations.reverse();
    shuffled.computations[0].instructions.reverse();
    let module = module(shuffled).unwrap();
    assert_eq!(module.entry().result_shape(), ordered.entry().result_shape());
    assert_eq!(module.comp(CompId(0)), ordered.comp(CompId(0)));
    let names = |module: &Module| -> Vec<String> {
        module.entry().instructions.iter().map(|instr| instr.name.clone()).collect()
    };
    assert_eq!(names(&ordered), ["parameter.3", "parameter.4", "call.5", "add.6"]);
    assert_eq!(names(&module), ["parameter.3", "call.5", "parameter.4", "add.6"]);
    assert_eq!(module.next_name, 7);
}

/// XLA writes it for every convolution.
#[test]
fn an_empty_sparsity_says_nothing() {
    let with = |config: Vec<u8>| {
        let mut proto = sample();
        proto.computations[1].instructions[2].sparsity_config = Some(config);
        module(proto).unwrap().entry().instr(InstrId(2)).unmodelled.clone()
    };
    assert_eq!(with(Vec::new()), Unmodelled::default());
    assert_ne!(with(vec![8, 1]), Unmodelled::default());
}

#[test]
fn wrappers_are_opened() {
    let inner = sample();
    let wrapped = HloProto { hlo_module: Some(inner.clone()), buffer_assignment: Some(vec![8, 1]) };
    assert_eq!(from_bytes(&wrapped.encode_to_vec()), module(inner.clone()));
    let wrapped = HloModuleProtoWithConfig { hlo_module: Some(inner.clone()), config: Some(vec![8, 1]) };
    assert_eq!(from_bytes(&wrapped.encode_to_vec()), module(inner));
}

#[test]
fn unmodelled_ops_and_fields_go_out_as_they_came() {
    let mut proto = sample();
    proto.id = 12;
    proto.stack_frame_index = Some(StackFrameIndexProto { file_names: vec!["a.py".into()], ..Default::default() });
    proto.computations[0].is_fusion_computation = true;
    proto.computations[1].execution_thread = "host".to_string();
    let instr = &mut proto.computations[1].instructions[2];
    instr.opcode = "fusion".to_string();
    instr.fusion_kind = "kLoop".to_string();
    instr.backend_config = vec![0xff, 0xfe];
    instr.async_group_id = 3;
    instr.dot_sparsity = vec![vec![8, 1]];
    instr.metadata.as_mut().unwrap().stack_frame_id = 5;
    instr.statistics_viz.as_mut().unwrap().stat_index_to_visualize = 1;
    instr.result_accuracy = Some(ResultAccuracy { mode: Some(0), tolerance: None });
    instr.backend_config_payload = Some(vec![18, 0]);
    let module = module(proto.clone()).unwrap();
    assert_eq!(module.entry().instr(InstrId(2)).op.opcode(), "fusion");
    assert_eq!(module.entry().instr(InstrId(2)).op.called(), [CompId(0)]);
    // Piece by piece, with the fields in the same order.
    assert_eq!(encode::to_bytes(&module).unwrap(), proto.encode_to_vec());
    assert_eq!(encode::module(&module), Ok(proto));
}

/// Found by fuzzing: no groups came back as an empty list of them.
#[test]
fn an_opaque_collective_without_groups_gets_no_field_of_them() {
    for groups in [None, Some(Box::new(CollectiveDeviceListProto::default()))] {
        let mut proto = sample();
        let instr = &mut proto.computations[1].instructions[3];
        instr.opcode = "all-to-all".to_string();
        instr.collective_device_list = groups;
        let module = module(proto.clone()).unwrap();
        assert_eq!(module.entry().instr(InstrId(3)).unmodelled.attributes[0].1, "{}");
        assert_eq!(encode::module(&module), Ok(proto));
    }
}

/// XLA's parser found the groups twice in a message that was printed.
#[test]
fn an_all_reduce_of_a_message_is_printed_with_its_groups_once() {
    let text = "HloModule m, entry_computation_layout={(f32[2]{0})->f32[2]{0}}

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  x = f32[2]{0} parameter(0)
  ROOT y = f32[2]{0} all-reduce(x), replica_groups={{0}}, to_apply=add
}

";
    let of_text = crate::text::parse(text, "m.hlo").unwrap();
    let of_proto = module(encode::module(&of_text).unwrap()).unwrap();
    assert_eq!(crate::text::print(&of_proto, &Default::default()), text);
}

#[test]
fn a_fusion_crosses_text_and_proto() {
    let text = "HloModule m, is_scheduled=true, entry_computation_layout={(f32[2]{0})->f32[2]{0}}

fused {
  p = f32[2]{0} parameter(0)
  ROOT n = f32[2]{0} negate(p)
}, execution_thread=\"host\"

ENTRY e {
  x = f32[2]{0} parameter(0)
  ROOT y = f32[2]{0} fusion(x), kind=kLoop, calls=fused, metadata={op_name=\"n\" source_end_line=3}
}

";
    let options = crate::text::PrintOptions::default();
    let of_text = crate::text::parse(text, "m.hlo").unwrap();
    let proto = encode::module(&of_text).unwrap();
    assert_eq!(proto.schedule.as_ref().unwrap().sequences.len(), 1);
    assert_eq!(proto.computations[0].execution_thread, "host");
    let of_proto = module(proto.clone()).unwrap();
    assert_eq!(crate::text::print(&of_proto, &options), text);
    assert_eq!(encode::module(&of_proto), Ok(proto));
}

#[test]
fn schedules_order_instructions() {
    let mut proto = sample();
    let sequence = |computation: &HloComputationProto, order: &[usize]| {
        let instruction_ids = order.iter().map(|&at| computation.instructions[at].id).collect();
        (computation.id, InstructionSequence { instruction_ids })
    };
    let [callee, entry] = [sequence(&proto.computations[0], &[0, 1]), sequence(&proto.computations[1], &[1, 0, 2, 3])];
    proto.schedule = Some(HloScheduleProto { sequences: [callee, entry].into_iter().collect() });
    let module = module(proto.clone()).unwrap();
    assert!(module.is_scheduled);
    assert_eq!(module.entry().instr(InstrId(0)).name, "parameter.4");
    let again = encode::module(&module).unwrap();
    assert_eq!(again.schedule.unwrap().sequences[&2].instruction_ids, [3, 4, 5, 6]);

    let entry_id = proto.computations[1].id;
    proto.schedule.as_mut().unwrap().sequences.get_mut(&entry_id).unwrap().instruction_ids.swap(0, 3);
    let message = "sample: the schedule is not an order of all 4 instructions that puts operands first";
    assert_eq!(super::module(proto).unwrap_err().to_string(), message);
}

/// XlaBuilder's ids: the computation's number is above the low 32 bits of an instruction's, and missing from operands'.
#[test]
fn ids_with_and_without_their_computations_number_are_one() {
    let expected = module(sample()).unwrap();
    for in_operands in [false, true] {
        let mut proto = sample();
        for computation in &mut proto.computations {
            let numbered = |id: i64| id + (computation.id << 32);
            computation.root_id = numbered(computation.root_id);
            for instr in &mut computation.instructions {
                instr.id = numbered(instr.id);
                if in_operands {
                    instr.operand_ids.iter_mut().for_each(|id| *id = numbered(*id));
                }
            }
        }
        assert_eq!(module(proto).unwrap(), expected);
    }
}

#[test]
fn broken_modules_say_where() {
    assert_eq!(from_bytes(b"").unwrap_err().to_string(), "module ``: computations is missing");
    assert_eq!(
        error(|m| m.computations[1].instructions[3].operand_ids[1] = 77),
        "sample/add.6: operand_ids names id 77, which nothing in the computation has"
    );
    assert_eq!(
        error(|m| m.computations[1].instructions[2].operand_ids[0] = 6),
        "sample/call.5: operands form a cycle, so no order runs them"
    );
    assert_eq!(
        error(|m| {
            let call = m.computations[1].instructions[2].clone();
            m.computations[0].instructions[1] = HloInstructionProto { id: 2, operand_ids: vec![1], ..call };
            m.computations[0].instructions[1].called_computation_ids = vec![2];
        }),
        "f: calls form a cycle, so no order runs them"
    );
    assert_eq!(
        error(|m| m.computations[1].instructions[2].called_computation_ids.clear()),
        "sample/call.5: called_computation_ids is 0, expected 1 id"
    );
    assert_eq!(error(|m| m.computations[1].instructions[1].id = 3), "parameter.4: id 3 is taken by parameter.3");
    assert_eq!(
        error(|m| m.computations[1].root_id = 0),
        "sample: root_id names id 0, which nothing in the computation has"
    );
    assert_eq!(
        error(|m| m.computations[1].instructions[2].called_computation_ids = vec![9]),
        "sample/call.5: called_computation_ids names id 9, which nothing in the module has"
    );
    assert_eq!(
        error(|m| m.computations[1].instructions[2].control_predecessor_ids = vec![77]),
        "sample/call.5: control_predecessor_ids names id 77, which nothing in the computation has"
    );
    assert_eq!(
        error(|m| m.host_program_shape.as_mut().unwrap().result = None),
        "host_program_shape: result is missing"
    );
    assert_eq!(
        error(|m| {
            let alias = AliasEntryProto { kind: 3, ..AliasEntryProto::default() };
            m.input_output_alias.as_mut().unwrap().entries.push(alias);
        }),
        "sample: input_output_alias.kind is 3, expected 1 or 2"
    );
    assert_eq!(error(|m| m.computations[0].instructions[0].shape = None), "f/parameter.1: shape is missing");
    assert_eq!(error(|m| m.computations[0].instructions[0].opcode.clear()), "f/parameter.1: opcode is missing");
    assert_eq!(
        error(|m| m.computations[0].instructions[0].opcode = "batch-norm%\n".to_string()),
        "f/parameter.1: `batch-norm%\\n` is not an opcode: expected lower-case letters, digits and `-`"
    );
    assert_eq!(
        error(|m| {
            m.entry_computation_id = 9;
            m.entry_computation_name.clear();
        }),
        "sample: entry_computation_id names id 9, which nothing in the module has"
    );
    assert_eq!(
        from_bytes(b"HloModule text, entry_computation_layout={}\n").unwrap_err().to_string().split(':').next(),
        Some("not an HloModuleProto")
    );
}

#[test]
fn modules_whose_ids_name_nothing_have_no_message() {
    let refused = |change: fn(&mut Module)| {
        let mut whole = module(sample()).unwrap();
        change(&mut whole);
        encode::module(&whole).unwrap_err().to_string()
    };
    assert_eq!(refused(|m| m.entry = CompId(9)), "sample: entry_computation_id is missing");
    assert_eq!(refused(|m| m.computations[1].root = InstrId(9)), "sample: root_id is missing");
    assert_eq!(
        refused(|m| m.computations[0].instructions[1].op = Op::Call { to_apply: CompId(7) }),
        "f: called_computation_ids names id 7, which nothing in the module has"
    );
    assert_eq!(
        refused(|m| m.computations[0].instructions[1].op = Op::Call { to_apply: CompId(0) }),
        "f: calls form a cycle, so no order runs them"
    );
}

/// Every truncation and many single-byte changes result in a module or an error, and never in a panic.
#[test]
fn corrupt_bytes_do_not_panic() {
    let bytes = sample().encode_to_vec();
    for end in 0..bytes.len() {
        let _ = from_bytes(&bytes[..end]);
    }
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 4] {
            let mut changed = bytes.clone();
            changed[at] = value;
            if let Ok(module) = from_bytes(&changed) {
                let _ = encode::module(&module);
            }
        }
    }
}
