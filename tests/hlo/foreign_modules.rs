//! Modules from JAX and TensorFlow are read and written without a change.

use bf16scope::hlo::Op;
use bf16scope::hlo::proto::messages::HloModuleProto;
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text::{self, PrintOptions};
use prost::Message;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Every module in `tests/data/oracle_*` of this extension; there are seven.
fn oracles(extension: &str) -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths = Vec::new();
    for folder in ["oracle_jax", "oracle_tf"] {
        for entry in std::fs::read_dir(data.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.to_str().unwrap().ends_with(extension) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    assert_eq!(paths.len(), 7, "{paths:?}");
    paths
}

/// A field of a message that we did not declare would be missing from its bytes. JAX's modules have at most one entry
/// in each map and come back identical; in TensorFlow's, C++ wrote maps in hash order, where ours are sorted.
#[test]
fn messages_lose_no_byte() {
    for path in oracles(".hlo.pb") {
        let mut bytes = std::fs::read(&path).unwrap();
        let message = HloModuleProto::decode(bytes.as_slice()).unwrap();
        let mut encoded = message.encode_to_vec();
        if path.parent().unwrap().ends_with("oracle_tf") {
            bytes.sort_unstable();
            encoded.sort_unstable();
        }
        assert!(encoded == bytes, "{}: re-encoded bytes differ", path.display());
    }
}

/// Gives ids in the order in which things stand, as our encoder does: they are the one thing it may change.
fn renumber(module: &mut HloModuleProto) {
    let mut ids = HashMap::new();
    let mut comp_ids = HashMap::new();
    for (at, computation) in module.computations.iter_mut().enumerate() {
        comp_ids.insert(std::mem::replace(&mut computation.id, at as i64 + 1), at as i64 + 1);
        for instr in &mut computation.instructions {
            let next = ids.len() as i64 + 1;
            ids.insert(instr.id, next);
            instr.id = next;
        }
        computation.root_id = ids[&computation.root_id];
        for instr in &mut computation.instructions {
            instr.operand_ids.iter_mut().chain(&mut instr.control_predecessor_ids).for_each(|id| *id = ids[id]);
            instr.called_computation_ids.iter_mut().for_each(|id| *id = comp_ids[id]);
        }
    }
    module.entry_computation_id = comp_ids[&module.entry_computation_id];
}

#[test]
fn modules_come_back_whole_through_the_ir() {
    for path in oracles(".hlo.pb") {
        let bytes = std::fs::read(&path).unwrap();
        let mut message = HloModuleProto::decode(bytes.as_slice()).unwrap();
        let module = decode::from_bytes(&bytes).unwrap();
        for instr in module.computations.iter().flat_map(|computation| &computation.instructions) {
            assert!(!matches!(instr.op, Op::Opaque(_)), "{} is not modelled", instr.name);
            assert!(instr.unmodelled.proto.is_empty(), "{} has unmodelled fields", instr.name);
        }
        renumber(&mut message);
        let back = encode::module(&module).unwrap();
        for (before, after) in message.computations.iter().zip(&back.computations) {
            for (before, after) in before.instructions.iter().zip(&after.instructions) {
                assert!(before.encode_to_vec() == after.encode_to_vec(), "{before:#?}\n{after:#?}");
            }
        }
        assert!(message.encode_to_vec() == back.encode_to_vec(), "{}", path.display());
        assert_eq!(decode::from_bytes(&back.encode_to_vec()).unwrap(), module);
    }
}

/// JAX printed its modules without metadata, TensorFlow in the long dialect.
#[test]
fn modules_print_as_xla_printed_them() {
    for path in oracles(".hlo.pb") {
        let module = decode::from_bytes(&std::fs::read(&path).unwrap()).unwrap();
        let options = if path.parent().unwrap().ends_with("oracle_tf") {
            PrintOptions::long()
        } else {
            PrintOptions { metadata: false, ..PrintOptions::default() }
        };
        let expected = std::fs::read_to_string(path.with_extension("txt")).unwrap();
        let printed = text::print(&module, &options);
        for (number, (printed, expected)) in printed.lines().zip(expected.lines()).enumerate() {
            assert_eq!(printed, expected, "{}:{}", path.display(), number + 1);
        }
        assert!(printed == expected, "{}", path.display());
    }
}

/// Text and proto say the same, up to what the text leaves out: JAX's has no metadata.
#[test]
fn text_reads_back_to_the_module_of_the_proto() {
    for path in oracles(".hlo.txt") {
        let expected = std::fs::read_to_string(&path).unwrap();
        let module = text::parse(&expected, path.to_str().unwrap()).unwrap_or_else(|error| panic!("{error}"));
        let options = if path.parent().unwrap().ends_with("oracle_tf") {
            PrintOptions::long()
        } else {
            PrintOptions { metadata: false, ..PrintOptions::default() }
        };
        assert!(text::print(&module, &options) == expected, "{}", path.display());

        let bytes = std::fs::read(path.with_extension("pb")).unwrap();
        let mut of_proto = decode::from_bytes(&bytes).unwrap();
        of_proto.unmodelled = Default::default();
        if !options.metadata {
            for instr in of_proto.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
                instr.metadata = Default::default();
            }
        }
        for (computation, expected) in module.computations.iter().zip(&of_proto.computations) {
            for (instr, expected) in computation.instructions.iter().zip(&expected.instructions) {
                assert_eq!(instr, expected, "{}", path.display());
            }
        }
        assert!(module == of_proto, "{}", path.display());
    }
}
