//! Modules as XLA writes them today, in `tests/data/xla_today`: text and proto, before and after optimization, from JAX
//! and TensorFlow, for a CPU and for TPUs, alone and over eight devices.

use crate::run;

use bf16scope::hlo::proto::messages::{HloModuleProto, HloProto};
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text::{self, PrintOptions};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{ArrayShape, DType, Literal, Lost, Module, lost_in_text};
use bf16scope::pjrt::CompileOptions;
use flate2::read::GzDecoder;
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use prost::Message;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

/// The writers of modules, and the forms of each: `docs/FORMATS.md` has a row for each of these.
const WRITERS: [&str; 10] = [
    "jax_cpu_step",
    "jax_cpu_many",
    "jax_cpu_dump",
    "jax_cpu_sharded",
    "jax_cpu_gspmd",
    "jax_tpu_v2_step",
    "jax_tpu_v2_sharded",
    "jax_tpu_v3_step",
    "jax_tpu_v3_sharded",
    "tf_cpu_step",
];

fn bytes(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/xla_today").join(name);
    if path.exists() {
        return std::fs::read(&path).unwrap();
    }
    let packed = std::fs::read(path.with_file_name(format!("{name}.gz"))).unwrap_or_else(|_| panic!("{name}"));
    let mut bytes = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    bytes
}

fn stages() -> impl Iterator<Item = String> {
    let writers = WRITERS.into_iter().chain(["tf_cpu_dump"]);
    writers.flat_map(|writer| ["before", "after"].map(|stage| format!("{writer}.{stage}")))
}

fn text_of(stage: &str) -> String {
    String::from_utf8(bytes(&format!("{stage}.txt"))).unwrap()
}

fn proto_of(stage: &str) -> Vec<u8> {
    bytes(&format!("{stage}.pb"))
}

/// The dialect of a text: XLA's `Default` today, the same with operands' shapes, or `ShortParsable`.
fn dialect(text: &str) -> PrintOptions {
    let metadata = text.contains("metadata={");
    match (text.contains("ENTRY %"), text.contains("dot(f32[")) {
        (true, true) => PrintOptions::long(),
        (true, false) => PrintOptions::dump(),
        (false, _) => PrintOptions { metadata, ..PrintOptions::default() },
    }
}

fn assert_same_lines(actual: &str, expected: &str, stage: &str) {
    for (number, (actual, expected)) in actual.lines().zip(expected.lines()).enumerate() {
        assert_eq!(actual, expected, "{stage}:{}", number + 1);
    }
    assert!(actual == expected, "{stage}: one text is longer");
}

#[test]
fn texts_print_as_they_were() {
    for stage in stages() {
        let expected = text_of(&stage);
        let module = text::parse(&expected, &stage).unwrap_or_else(|error| panic!("{error}"));
        assert_same_lines(&text::print(&module, &dialect(&expected)), &expected, &stage);
    }
}

/// Attributes of the header that belong to the compile options, which are not in a module's proto.
const OF_OPTIONS: [&str; 5] = [
    "alias_passthrough_params",
    "allow_spmd_sharding_propagation_to_output",
    "allow_spmd_sharding_propagation_to_parameters",
    "num_partitions",
    "replica_count",
];

/// The module of a text without the parts that its proto does not have. A proto has the counts of devices of its
/// device assignment.
fn without_options(mut module: Module, proto: &Module) -> Module {
    let is_said = |attribute: &(String, String)| proto.unmodelled.attributes.contains(attribute);
    module.unmodelled.attributes.retain(|it| is_said(it) || !OF_OPTIONS.contains(&it.0.as_str()));
    without_configs(module)
}

/// A compiler's configs are JSON made of maps, whose order is another each time that XLA writes them.
fn without_configs(mut module: Module) -> Module {
    let instructions = module.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
    instructions.for_each(|instr| instr.backend_config.clear());
    module
}

#[test]
fn protos_print_as_xla_printed_them() {
    // TensorFlow's `optimized_hlo_proto_serialized` is of an earlier stage than its text: not fused, not scheduled.
    for stage in stages().filter(|stage| stage != "tf_cpu_step.after") {
        let module = decode::from_bytes(&proto_of(&stage)).unwrap_or_else(|error| panic!("{stage}: {error}"));
        let module = without_configs(module);
        let text = text_of(&stage);
        let expected = without_options(text::parse(&text, &stage).unwrap(), &module);
        let options = dialect(&text);
        // A text has computations in the module's order, a proto has them callees first, and sometimes further ones
        // without a caller.
        let blocks = text::print(&module, &options);
        let blocks: BTreeSet<&str> = blocks.split("\n\n").map(str::trim).collect();
        for block in text::print(&expected, &options).split("\n\n").map(str::trim) {
            assert!(blocks.contains(block), "{stage}: the proto has no\n{block}");
        }
    }
}

/// A proto's text, written with everything, gives the same proto back, up to what `lost_in_text` says.
#[test]
fn protos_come_back_from_their_texts() {
    for stage in stages() {
        let module = decode::from_bytes(&proto_of(&stage)).unwrap();
        let written = text::print(&module, &PrintOptions::default());
        let back = text::parse(&written, &stage).unwrap_or_else(|error| panic!("{error}"));
        for Lost { place, opcode, fields } in lost_in_text(&module) {
            let has_text = |field: &u32| *field != METADATA && !NO_TEXT.contains(&(opcode.as_str(), *field));
            assert!(!fields.iter().any(has_text), "{stage}: {place}: {fields:?}");
        }
        let [expected, actual] = [&module, &back].map(|module| encode::module(module).unwrap());
        let [expected, actual] = [expected, actual].map(without_what_has_no_text);
        let expected = without_compilation(expected);
        for (expected, actual) in expected.computations.iter().zip(&actual.computations) {
            for (expected, actual) in expected.instructions.iter().zip(&actual.instructions) {
                // As bytes: a NaN is not equal to itself.
                assert!(expected.encode_to_vec() == actual.encode_to_vec(), "{stage}: {}", differing(expected, actual));
            }
        }
        assert!(expected.encode_to_vec() == actual.encode_to_vec(), "{stage}");
    }
}

/// The field of an instruction's metadata without a text form: sizes of code and working set, which the TPU compiler
/// writes.
const METADATA: u32 = 7;

/// Fields, by opcode, that a text never has: defaults that XLA writes and does not print.
const NO_TEXT: [(&str, u32); 1] = [("convolution", 98)];

/// The fields in which two messages differ.
fn differing(a: &impl std::fmt::Debug, b: &impl std::fmt::Debug) -> String {
    let [a, b] = [format!("{a:#?}"), format!("{b:#?}")];
    let differ = a.lines().zip(b.lines()).filter(|(a, b)| a != b);
    differ.take(9).map(|(a, b)| format!("{} / {}\n", a.trim(), b.trim())).collect()
}

fn without_what_has_no_text(mut module: HloModuleProto) -> HloModuleProto {
    for instr in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        if let Some(metadata) = &mut instr.metadata {
            metadata.size_of_generated_code_in_bytes = 0;
            metadata.size_of_memory_working_set_in_bytes = 0;
        }
        // A literal's layout is the instruction's, without its tiles.
        let layout = instr.literal.as_mut().and_then(|literal| literal.shape.as_mut()?.layout.as_mut());
        layout.into_iter().for_each(|layout| layout.tiles.clear());
        if instr.opcode == "custom-call" {
            let precisions = instr.precision_config.iter().flat_map(|config| &config.operand_precision);
            assert!(instr.feature_group_count <= 1 && instr.batch_group_count <= 1 && precisions.sum::<i32>() == 0);
            (instr.feature_group_count, instr.batch_group_count, instr.precision_config) = (0, 0, None);
        }
        if instr.opcode == "convolution" {
            assert!(instr.sparsity_config.iter().all(Vec::is_empty));
            instr.sparsity_config = None;
        }
    }
    module
}

/// A message without the parts that a compilation adds to a module, which text cannot represent.
fn without_compilation(module: HloModuleProto) -> HloModuleProto {
    HloModuleProto {
        id: 0,
        pjrt_id: None,
        is_dynamic: false,
        use_auto_spmd_partitioning: false,
        spmd_output_sharding: None,
        spmd_parameters_shardings: Vec::new(),
        profile_info: Vec::new(),
        // Text has the counts of several devices; these are the fields of one replica and one partition.
        device_assignment: module.device_assignment.filter(|bytes| !bytes.starts_with(&[8, 1, 16, 1])),
        device_type: String::new(),
        payloads: Vec::new(),
        cross_program_prefetches: Vec::new(),
        ..module
    }
}

/// A message that lacks a declared field would come back shorter. C++ writes maps in hash order, ours are sorted.
#[test]
fn messages_lose_no_byte() {
    for stage in stages() {
        let mut bytes = proto_of(&stage);
        // Dumps, and what TensorFlow returns, are wrapped.
        let mut encoded = match HloModuleProto::decode(bytes.as_slice()) {
            Ok(module) => module.encode_to_vec(),
            Err(_) => HloProto::decode(bytes.as_slice()).unwrap().encode_to_vec(),
        };
        bytes.sort_unstable();
        encoded.sort_unstable();
        assert!(encoded == bytes, "{stage}");
    }
}

/// Before optimization a module is a program: it passes the verifier.
#[test]
fn programs_verify() {
    for stage in stages().filter(|stage| stage.ends_with(".before")) {
        verify(&text::parse(&text_of(&stage), &stage).unwrap()).unwrap_or_else(|errors| panic!("{stage}: {errors}"));
    }
}

/// Each of JAX's instructions that names a frame has a line of the source that the script compiled.
#[test]
fn source_lines_come_from_the_tables() {
    let module = text::parse(&text_of("jax_cpu_dump.before"), "dump").unwrap();
    let source_of = |name: &str| {
        let instr = module.entry().instructions.iter().find(|instr| instr.name == name).unwrap();
        module.source_text(&instr.metadata)
    };
    assert_eq!(source_of("tanh.3"), "/src/model.py:7");
    assert_eq!(source_of("log.1"), "/src/model.py:13");
    assert_eq!(source_of("sub.27"), "/src/model.py:17");
    assert_eq!(source_of("constant.9"), "");
    assert_eq!(module.stack_frames, decode::from_bytes(&proto_of("jax_cpu_dump.before")).unwrap().stack_frames);
}

/// An argument of the steps: sixty-fourths, as `computed.py` has them.
fn argument((n, dims): (usize, &[i64; 2])) -> Literal {
    let value = |at: i64| ((at * 7 + n as i64 * 3) % 23) as f32 / 64.0 - 0.15625;
    Literal::Array {
        shape: ArrayShape::new(DType::F32, dims.to_vec()),
        bytes: (0..dims[0] * dims[1]).flat_map(|at| value(at).to_le_bytes()).collect(),
    }
}

/// The steps, as text and as proto, compute what the framework that wrote them computed on another machine.
///
/// The bound: an argument reaches a result through sums of 16, 32 and five times 8 terms, at most 8 functions that are
/// right to 8 ulp, and under 40 roundings more, so through fewer than 192 roundings of 2^-24 each. No value on the way is
/// above 8, as arguments are below 0.21; it reaches a weight as 0.1 of a gradient.
#[test]
fn steps_compute_what_their_writers_did() {
    let arguments: Vec<Literal> = [[16, 32], [32, 8], [8, 16], [8, 8]].iter().enumerate().map(argument).collect();
    let loss_bound = 192.0 * 8.0 * 2f64.powi(-24);
    for (writer, recorded) in [
        ("jax_cpu_step", "jax"),
        ("jax_cpu_dump", "jax"),
        ("jax_tpu_v2_step", "jax"),
        ("jax_tpu_v3_step", "jax"),
        ("tf_cpu_step", "tf"),
        ("tf_cpu_dump", "tf"),
    ] {
        let stage = format!("{writer}.before");
        let of_text = encode::to_bytes(&text::parse(&text_of(&stage), &stage).unwrap()).unwrap();
        let of_proto = encode::to_bytes(&decode::from_bytes(&proto_of(&stage)).unwrap()).unwrap();
        let results = run::run_bytes(&of_text, &CompileOptions::default(), &arguments);
        assert!(
            results == run::run_bytes(&of_proto, &CompileOptions::default(), &arguments),
            "{stage}: text and proto"
        );
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/xla_today/computed_{recorded}.npz"));
        let mut computed = NpzReader::new(std::fs::File::open(path).unwrap()).unwrap();
        assert_eq!(results.len(), 3, "{stage}");
        for (n, (result, bound)) in results.iter().zip([0.1 * loss_bound, 0.1 * loss_bound, loss_bound]).enumerate() {
            let expected: ArrayD<f32> = computed.by_name(&format!("out{n}")).unwrap();
            let actual = run::f32s(result);
            assert_eq!(actual.len(), expected.len(), "{stage}: out{n}");
            for (at, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                let off = f64::from(actual - expected).abs();
                assert!(off <= bound, "{stage}: out{n}[{at}] is {actual}, {expected} was recorded; bound {bound:e}");
            }
        }
    }
}

/// Text may give a name once in each computation, as XLA's parser takes it. From a proto XLA takes no name twice, so that
/// all but the first are renamed there.
#[test]
fn a_name_may_stand_in_several_computations() {
    let text = "HloModule m\n\n\
        f {\n  x = f32[] parameter(0)\n  ROOT y = f32[] negate(x)\n}\n\n\
        g {\n  x = f32[] parameter(0)\n  ROOT y = f32[] exponential(x)\n}\n\n\
        ENTRY e {\n  x = f32[] parameter(0)\n  y = f32[] call(x), to_apply=f\n  x.1 = f32[] call(y), to_apply=g\n  \
        ROOT out = f32[] add(x.1, x)\n}\n";
    let module = text::parse(text, "m").unwrap();
    verify(&module).unwrap();
    let message = encode::module(&module).unwrap();
    let bytes = encode::to_bytes(&module).unwrap();
    assert!(bytes == message.encode_to_vec());
    let of_all = |message: &HloModuleProto| -> Vec<String> {
        let instructions = message.computations.iter().flat_map(|computation| &computation.instructions);
        instructions.map(|instr| instr.name.clone()).collect()
    };
    // Those of `f`, of `g` and of `e`: `x.1` is taken.
    assert_eq!(of_all(&message), ["x", "y", "x.2", "y.1", "x.3", "y.2", "x.1", "out"]);
    let results = run::run_bytes(&bytes, &CompileOptions::default(), &[Literal::scalar(0.0f32)]);
    assert_eq!(results, [Literal::scalar(1.0f32)]);
    // XLA's error if they are not renamed.
    for name in ["x", "y"] {
        let mut twice = message.clone();
        let instructions = twice.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
        instructions.filter(|instr| instr.name == format!("{name}.2")).for_each(|instr| instr.name = name.to_string());
        let error = run::client().compile(&twice.encode_to_vec(), &CompileOptions::default()).err().unwrap();
        assert!(error.to_string().contains(&format!("Instruction name is not unique: {name}")), "{error}");
    }
}
