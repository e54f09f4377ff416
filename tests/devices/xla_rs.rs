//! xla-rs: modules and arrays across the border without loss, XLA's own text parser as the judge of our printer, and
//! its in-process client as a device like the plugin's. With the feature `xla` only.
//!
//! The plugin and xla-rs's client are two versions of XLA, both loaded into this process.
use crate::support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text::{PrintOptions, parse, print};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{ArrayShape, DType, Literal, Module};
use bf16scope::interop::xla as interop;
use bf16scope::pjrt::{
    Arg, Buffer, Client, CompileOptions, OptionValue, Platform, Purpose, Setup, prepare_environment,
};
use support::Program;

/// The loader looks where the library was at build time, then into a folder whose name says what to run.
#[test]
fn a_program_whose_library_is_gone_says_what_to_run() {
    let (program, stand_ins) = (env!("CARGO_BIN_EXE_bf16scope"), env!("BF16SCOPE_STAND_INS"));
    let folders = format!("/lib:{stand_ins}\0");
    assert!(memchr::memmem::find(&fs::read(program).unwrap(), folders.as_bytes()).is_some(), "{folders}");
    // As if there was nothing in the folders before it.
    let output = Command::new(program).arg("--version").env("LD_LIBRARY_PATH", stand_ins).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("/XLA-IS-MISSING--RUN-ci-xla-extension/lib"), "{said}");
}

fn clients() -> [Client; 2] {
    [Platform::cpu(), Platform::XlaCpu].map(|platform| {
        Client::for_platform(&platform, &Setup::from_env()).unwrap_or_else(|error| panic!("{platform}: {error}"))
    })
}

fn xla_cpu() -> Client {
    Client::for_platform(&Platform::XlaCpu, &Setup::from_env()).unwrap()
}

/// Files of this folder whose names end so, at least `at_least` of them.
fn files(folder: &str, ending: &str, at_least: usize) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_str().unwrap().ends_with(ending));
    paths.sort();
    assert!(paths.len() >= at_least, "{} files {ending} in {}", paths.len(), folder.display());
    paths
}

/// The module with callees before callers, as XLA has them.
fn in_xlas_order(module: &Module) -> Module {
    decode::from_bytes(&encode::to_bytes(module).unwrap()).unwrap()
}

/// What the zoo emits, and what JAX and TensorFlow emitted.
fn modules() -> Vec<(String, Module)> {
    let goldens = files("hlo", ".txt", 12).into_iter().map(|path| {
        let name = path.display().to_string();
        let module = parse(&fs::read_to_string(&path).unwrap(), &name).unwrap_or_else(|error| panic!("{error}"));
        (name, in_xlas_order(&module))
    });
    let oracles = files("tests/data/oracle_jax", ".pb", 3).into_iter().chain(files("tests/data/oracle_tf", ".pb", 4));
    let oracles =
        oracles.map(|path| (path.display().to_string(), decode::from_bytes(&fs::read(&path).unwrap()).unwrap()));
    goldens.chain(oracles).collect()
}

/// Both dialects, everything whole.
fn dialects() -> [PrintOptions; 2] {
    [PrintOptions::default(), PrintOptions::long()]
}

/// XLA's parser reads the `-0` that its printer writes as the integer, which has no sign: of floats, only this is lost.
fn without_signs_of_zeros(text: &str) -> String {
    text.replace("(-0)", "(0)").replace("-0,", "0,").replace("-0}", "0}")
}

/// The first line in which two texts differ. XLA puts instructions in post order, an order that a module need not have
/// and that means nothing: lines are compared sorted. Names are unique, so no line can stand for another.
fn check_same(name: &str, measured: &str, expected: &str) {
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        lines.sort();
        lines
    };
    let (measured, expected) = (sorted(measured), sorted(expected));
    for (measured, expected) in measured.iter().zip(&expected) {
        assert_eq!(measured, expected, "{name}");
    }
    assert_eq!(measured.len(), expected.len(), "{name}");
}

#[test]
fn modules_come_back_from_xla_rs_as_they_went() {
    for (name, module) in modules() {
        let back = interop::module(&interop::computation(&module).unwrap()).unwrap();
        verify(&back).unwrap();
        check_same(&name, &print(&back, &PrintOptions::long()), &print(&module, &PrintOptions::long()));
    }
}

#[test]
fn xla_reads_what_we_print_and_reads_it_as_it_was() {
    for (name, module) in modules() {
        for options in dialects() {
            let text = print(&module, &options);
            let read = xla::HloModuleProto::parse_and_return_unverified_module(text.as_bytes());
            let read = read.unwrap_or_else(|error| panic!("{name}: {error}"));
            let read = print(&interop::module_of_proto(&read).unwrap(), &options);
            check_same(&name, &read, &without_signs_of_zeros(&text));
        }
    }
}

/// The texts are XLA's own, printed by the XLA inside JAX and inside TensorFlow: our reading of each and this XLA's are
/// one module.
#[test]
fn we_read_what_xla_printed_as_xla_reads_it() {
    for path in files("tests/data/oracle_jax", ".txt", 3).into_iter().chain(files("tests/data/oracle_tf", ".txt", 4)) {
        let (name, text) = (path.display().to_string(), fs::read_to_string(&path).unwrap());
        let ours = in_xlas_order(&parse(&text, &name).unwrap_or_else(|error| panic!("{error}")));
        let ours = without_signs_of_zeros(&print(&ours, &PrintOptions::long()));
        let theirs = xla::HloModuleProto::parse_and_return_unverified_module(text.as_bytes()).unwrap();
        let theirs = interop::module_of_proto(&theirs).unwrap();
        check_same(&name, &ours, &print(&theirs, &PrintOptions::long()));
    }
}

#[test]
fn a_graph_of_xla_builder_becomes_ours_and_goes_back() {
    prepare_environment(Purpose::Run).unwrap();
    let builder = xla::XlaBuilder::new("graph");
    let x = builder.parameter(0, xla::ElementType::F32, &[2, 3], "x").unwrap();
    let half = x.convert(xla::PrimitiveType::Bf16).unwrap();
    let doubled = half.add_(&half).unwrap().convert(xla::PrimitiveType::F32).unwrap();
    let computation = builder.tuple(&[doubled.clone(), x.clone()]).and_then(|root| builder.build(&root)).unwrap();
    let module = interop::module(&computation).unwrap();
    verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    let opcodes: Vec<_> = module.entry().instructions.iter().map(|instr| instr.op.opcode().into_owned()).collect();
    assert_eq!(opcodes, ["parameter", "convert", "add", "convert", "tuple"]);
    let input = interop::literal(&Literal::from_elements([2, 3], &[257f32, -1.0, 0.1, 3.5, 1e38, 0.0])).unwrap();
    let client = xla::PjRtClient::cpu().unwrap();
    let run = |computation: &xla::XlaComputation| -> Vec<Literal> {
        let outputs = client.compile(computation).unwrap().execute(&[&input]).unwrap();
        outputs[0].iter().map(|output| interop::from_buffer(output).unwrap()).collect()
    };
    let outputs = run(&computation);
    assert_eq!(outputs, run(&interop::computation(&module).unwrap()));
    let expected = [512f32, -2.0, 0.200_195_31, 7.0, 2.0 * half::bf16::from_f32(1e38).to_f32(), 0.0];
    assert_eq!(outputs[0].elements::<f32>().unwrap(), expected);
}

#[test]
fn a_module_that_breaks_a_rule_is_not_given_to_xla_rs() {
    let text = "HloModule m\n\nENTRY main {\n  x = f32[2]{0} parameter(0)\n  ROOT y = f32[3]{0} add(x, x)\n}\n";
    let module = parse(text, "m").unwrap();
    let Err(error) = interop::computation(&module) else { panic!("a module of wrong shapes went out") };
    assert!(error.to_string().starts_with("the module is not given to xla-rs: main/%y"), "{error}");
}

/// Some bytes for an array of any dtype: every value of the low byte, and no NaN of 16 bits or more.
fn bytes_of(dtype: DType, n_elements: usize) -> Vec<u8> {
    let element = |idx: usize| match dtype {
        DType::Pred => vec![(idx % 2) as u8],
        other => (0..other.n_bytes()).map(|place| if place == 0 { idx as u8 } else { 0x3c }).collect(),
    };
    (0..n_elements).flat_map(element).collect()
}

/// Dtypes that xla-rs has whole bytes of.
const SHARED: [DType; 18] = [
    DType::Pred,
    DType::S8,
    DType::S16,
    DType::S32,
    DType::S64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::C64,
    DType::C128,
    DType::F8E5M2,
    DType::F8E4M3FN,
    DType::F8E8M0FNU,
];

#[test]
fn literals_and_buffers_of_every_dtype_come_back_bit_for_bit() {
    let client = xla::PjRtClient::cpu().unwrap();
    for dtype in DType::ALL.iter().copied() {
        let literal = Literal::Array { shape: ArrayShape::new(dtype, [4, 64]), bytes: bytes_of(dtype, 256) };
        if !SHARED.contains(&dtype) {
            let expected = format!(
                "xla-cpu: unsupported: xla-rs 0.4.3 has no arrays of {dtype}\nhelp: use the device cpu, the plugin, which \
                 has it"
            );
            assert_eq!(interop::literal(&literal).err().unwrap().to_string(), expected);
            assert_eq!(interop::buffer(&client, None, &literal).err().unwrap().to_string(), expected);
            continue;
        }
        assert_eq!(interop::from_literal(interop::literal(&literal).unwrap()).unwrap(), literal);
        assert_eq!(interop::from_buffer(&interop::buffer(&client, None, &literal).unwrap()).unwrap(), literal);
        let tuple = Literal::Tuple(vec![literal.clone(), Literal::Tuple(vec![literal.clone()]), literal]);
        assert_eq!(interop::from_literal(interop::literal(&tuple).unwrap()).unwrap(), tuple);
        assert_eq!(
            interop::buffer(&client, None, &tuple).err().unwrap().to_string(),
            format!(
                "a buffer of xla-rs holds an array, not a literal of {}\nhelp: pass the tuple's arrays one by one",
                tuple.shape()
            )
        );
    }
    assert_eq!(interop::literal(&Literal::Token).err().unwrap().to_string(), "xla-rs 0.4.3 has no literals of tokens");
}

/// The suite that every device passes: what it checks of one it checks of the other, and their results are the same.
mod both {
    use super::*;

    fn upload(client: &Client, values: &[f32]) -> Buffer {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        client.buffer_from_host(&bytes, DType::F32, &[values.len() as i64], 0).unwrap()
    }

    fn f32s(buffer: &Buffer) -> Vec<f32> {
        let bytes = buffer.to_host().unwrap();
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    }

    /// Sum and product of two `f32[n]`; the first argument's memory may become the sum's.
    fn sum_and_product(n: i64) -> Vec<u8> {
        let mut program = Program::default();
        let x = program.parameter(DType::F32, &[n]);
        let y = program.parameter(DType::F32, &[n]);
        let sum = program.push("add", DType::F32, &[n], &[x, y]);
        let product = program.push("multiply", DType::F32, &[n], &[x, y]);
        program.alias(0, 0);
        program.finish(&[sum, product])
    }

    #[test]
    fn arrays_of_every_dtype_go_through_a_program() {
        for dtype in SHARED {
            let mut program = Program::default();
            let x = program.parameter(dtype, &[4, 64]);
            let program = program.finish(&[x]);
            for client in clients() {
                let bytes = bytes_of(dtype, 256);
                let buffer = client.buffer_from_host(&bytes, dtype, &[4, 64], 0).unwrap();
                assert_eq!((buffer.dtype().unwrap(), buffer.dims().unwrap()), (dtype, vec![4, 64]));
                let executable = client.compile(&program, &CompileOptions::default()).unwrap();
                let outputs = executable.execute(vec![Arg::Keep(&buffer)]).unwrap();
                assert!(outputs[0].to_host().unwrap() == bytes, "{dtype}");
                assert_eq!(outputs[0].dtype().unwrap(), dtype);
            }
        }
    }

    #[test]
    fn several_outputs_come_back_as_several_buffers() {
        for client in clients() {
            let executable = client.compile(&sum_and_product(3), &CompileOptions::default()).unwrap();
            assert_eq!((executable.n_outputs(), executable.n_devices()), (2, 1));
            assert_eq!(executable.compiled().name().unwrap(), "small");
            let outputs = executable.compiled().outputs().unwrap();
            assert_eq!(outputs.iter().map(|output| output.to_string()).collect::<Vec<_>>(), ["f32[3]", "f32[3]"]);
            let (x, y) = (upload(&client, &[1.0, 2.0, 3.0]), upload(&client, &[4.0, 5.0, 6.0]));
            let results = executable.execute(vec![Arg::Keep(&x), Arg::Keep(&y)]).unwrap();
            assert_eq!(f32s(&results[0]), [5.0, 7.0, 9.0]);
            assert_eq!(f32s(&results[1]), [4.0, 10.0, 18.0]);
            // Kept, although the program may reuse its memory; so also the second time, and twice in one run.
            assert_eq!(f32s(&x), [1.0, 2.0, 3.0]);
            assert!(!x.is_deleted().unwrap());
            let results = executable.execute(vec![Arg::Keep(&x), Arg::Keep(&x)]).unwrap();
            assert_eq!(f32s(&results[0]), [2.0, 4.0, 6.0]);
            assert_eq!(f32s(&x), [1.0, 2.0, 3.0]);
        }
    }

    #[test]
    fn a_donated_argument_is_taken_step_after_step() {
        for client in clients() {
            let executable = client.compile(&sum_and_product(1024), &CompileOptions::default()).unwrap();
            let (mut state, one) = (upload(&client, &[0.0; 1024]), upload(&client, &[1.0; 1024]));
            for _ in 0..10 {
                state = executable.execute(vec![Arg::Donate(state), Arg::Keep(&one)]).unwrap().swap_remove(0);
            }
            assert_eq!(f32s(&state), [10.0; 1024]);
        }
    }

    #[test]
    fn errors_are_the_same_before_the_library_sees_them() {
        for client in clients() {
            let executable = client.compile(&sum_and_product(2), &CompileOptions::default()).unwrap();
            let (x, long) = (upload(&client, &[1.0, 2.0]), upload(&client, &[1.0, 2.0, 3.0]));
            let error = |args| executable.execute(args).unwrap_err().to_string();
            assert_eq!(error(vec![Arg::Keep(&x)]), "small: arguments: measured 1, expected 2");
            assert_eq!(
                error(vec![Arg::Keep(&x), Arg::Keep(&long)]),
                "small: argument 1: measured f32[3], expected f32[2]"
            );
            for other in clients() {
                let foreign = upload(&other, &[1.0, 2.0]);
                assert_eq!(
                    executable.execute(vec![Arg::Keep(&x), Arg::Keep(&foreign)]).unwrap_err().to_string(),
                    "small: argument 1 lives in another client\nhelp: upload it with the client that compiled the executable"
                );
            }
            let upload = |bytes: &[u8], device| client.buffer_from_host(bytes, DType::F32, &[2], device).unwrap_err();
            assert_eq!(upload(&[0; 7], 0).to_string(), "f32[2] on the host: measured 7 bytes, expected 8");
            let n_devices = client.devices().len();
            assert_eq!(
                upload(&[0; 8], 99).to_string(),
                format!("device 99: the client has {n_devices} devices, numbered from 0")
            );
            let error = client.compile(b"HloModule text", &CompileOptions::default()).unwrap_err().to_string();
            assert!(error.starts_with("the program is not an HloModuleProto: "), "{error}");
            client.compile(&[], &CompileOptions::default()).unwrap_err();
        }
    }

    /// One tuple in place of arrays: its arrays are the arguments, donated by their places in it.
    #[test]
    fn a_tuples_arrays_are_passed_one_by_one() {
        let text = "HloModule m, input_output_alias={ {1}: (0, {0}, may-alias) }\n\nENTRY main {\n  \
                    state = (f32[2], s32[2]) parameter(0)\n  x = f32[2] get-tuple-element(state), index=0\n  \
                    n = s32[2] get-tuple-element(state), index=1\n  y = f32[2] convert(n)\n  \
                    z = f32[2] subtract(y, x)\n  ROOT out = (s32[2], f32[2]) tuple(n, z)\n}\n";
        let module = parse(text, "m").unwrap();
        verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
        let program = encode::to_bytes(&module).unwrap();
        let options = CompileOptions { parameter_is_tupled: true, ..CompileOptions::default() };
        for client in clients() {
            let executable = client.compile(&program, &options).unwrap();
            let x = upload(&client, &[1.0, 2.0]);
            let n = Literal::from_elements([2], &[10i32, 20]);
            let Literal::Array { bytes, .. } = &n else { panic!("{n:?}") };
            let n = client.buffer_from_host(bytes, DType::S32, &[2], 0).unwrap();
            let outputs = executable.execute(vec![Arg::Keep(&x), Arg::Keep(&n)]).unwrap();
            assert_eq!(outputs[0].to_host().unwrap(), *bytes);
            assert_eq!((f32s(&outputs[1]), f32s(&x)), (vec![9.0, 18.0], vec![1.0, 2.0]));
            let outputs = executable.execute(vec![Arg::Donate(x), Arg::Keep(&n)]).unwrap();
            assert_eq!(f32s(&outputs[1]), [9.0, 18.0]);
            assert_eq!(
                executable.execute(vec![Arg::Keep(&n), Arg::Keep(&n)]).unwrap_err().to_string(),
                "m: argument 0: measured s32[2], expected f32[2]"
            );
            assert_eq!(
                executable.execute(vec![Arg::Keep(&n)]).unwrap_err().to_string(),
                "m: arguments: measured 1, expected 2"
            );
        }
    }

    /// Results laid out column by column inside are row-major outside.
    #[test]
    fn layouts_of_results_do_not_show() {
        let text = "HloModule m, entry_computation_layout={(f32[2,3]{0,1})->f32[3,2]{0,1}}\n\nENTRY main {\n  x = \
                    f32[2,3]{0,1} parameter(0)\n  ROOT y = f32[3,2]{0,1} transpose(x), dimensions={1,0}\n}\n";
        let module = parse(text, "m").unwrap();
        let program = encode::to_bytes(&module).unwrap();
        let bytes: Vec<u8> = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let client = xla_cpu();
        let x = client.buffer_from_host(&bytes, DType::F32, &[2, 3], 0).unwrap();
        let executable = client.compile(&program, &CompileOptions::default()).unwrap();
        let outputs = executable.execute(vec![Arg::Keep(&x)]).unwrap();
        assert_eq!(f32s(&outputs[0]), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }

    #[test]
    fn what_xla_rs_has_not_is_refused_by_name() {
        let client = xla_cpu();
        assert!(client.plugin().is_none());
        assert_eq!(client.platform_name().unwrap(), "cpu");
        assert_eq!(client.devices().len(), 1);
        let program = sum_and_product(2);
        let executable = client.compile(&program, &CompileOptions::default()).unwrap();
        let x = upload(&client, &[1.0]);
        let default = CompileOptions::default;
        let flag = ("xla_cpu_enable_fast_math".to_string(), OptionValue::Bool(true));
        let compile = |options| client.compile(&program, &options).unwrap_err();
        let compiled = executable.compiled();
        let refusals = [
            (client.devices()[0].memory().unwrap_err(), "memory statistics of a device"),
            (compiled.memory_stats().unwrap_err(), "memory statistics of a program"),
            (compiled.cost_analysis().unwrap_err(), "cost analysis of a program"),
            (compiled.optimized_program().unwrap_err(), "way to read an optimized program"),
            (compiled.fingerprint().unwrap_err(), "fingerprint of a program"),
            (x.address().unwrap_err(), "address of a buffer"),
            (x.n_device_bytes().unwrap_err(), "size of a buffer on its device"),
            (compile(CompileOptions { n_replicas: 2, ..default() }), "way to compile for several devices"),
            (compile(CompileOptions { n_partitions: 2, ..default() }), "way to compile for several devices"),
            (compile(CompileOptions { flags: [flag].into(), ..default() }), "way to set XLA's flags for one program"),
        ];
        for (error, what) in refusals {
            let expected = format!(
                "xla-cpu: unsupported: xla-rs 0.4.3 has no {what}\nhelp: use the device cpu, the plugin, which has it"
            );
            assert_eq!(error.to_string(), expected);
        }
    }

    /// The client measured it: with XLA's own default a sum in bf16 would keep bits that bf16 has not.
    #[test]
    fn excess_precision_is_off_in_this_process_and_cannot_be_asked_for() {
        let options = CompileOptions { allow_excess_precision: true, ..CompileOptions::default() };
        assert_eq!(
            xla_cpu().compile(&sum_and_product(1), &options).unwrap_err().to_string(),
            "xla-cpu: excess precision is off in this process, the options want it on, and xla-rs 0.4.3 sets it for whole \
             processes only\nhelp: start the process with XLA_FLAGS=--xla_allow_excess_precision=true"
        );
    }
}
