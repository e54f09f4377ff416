//! The corners of every op on xla-rs: XLA's own parser reads them unchanged, and those that run on the plugin run on
//! xla-rs's client with the same bits.

use crate::verify::xla::corners;
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text::{PrintOptions, print};
use bf16scope::hlo::*;
use bf16scope::interop::xla as interop;
use bf16scope::pjrt::{Arg, Client, CompileOptions, PjrtError, PjrtErrorKind, Platform, Setup};

/// XLA puts instructions in post order, so lines are compared sorted; names are unique.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn xlas_parser_reads_the_corners_in_both_dialects() {
    let mut wrong = Vec::new();
    for (name, module) in corners() {
        let module = decode::from_bytes(&encode::to_bytes(&module).unwrap()).unwrap();
        for options in [PrintOptions::default(), PrintOptions::long()] {
            let text = print(&module, &options);
            match ::xla::HloModuleProto::parse_and_return_unverified_module(text.as_bytes()) {
                Err(error) => {
                    wrong.push(format!("{name}: {}", error.to_string().lines().take(4).collect::<Vec<_>>().join(" / ")))
                }
                Ok(read) => {
                    let read = print(&interop::module_of_proto(&read).unwrap(), &options);
                    if sorted(&read) != sorted(&text) {
                        wrong.push(format!("{name}: read as\n{read}\nexpected\n{text}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Small numbers in every dtype: 0, 1 and 2 in turn, which all dtypes except `pred` represent.
fn argument(shape: &ArrayShape) -> Vec<u8> {
    let n_elements = shape.dims.iter().product::<i64>();
    let mut bytes = Vec::new();
    for idx in 0..n_elements {
        let value = (idx % 3) as f64;
        match Literal::scalar_of(shape.dtype, value) {
            Some(Literal::Array { bytes: one, .. }) => bytes.extend(one),
            _ => bytes.extend(std::iter::repeat_n(0, shape.dtype.n_bytes())),
        }
    }
    bytes
}

/// The result's bytes; `None` if the device reports that it does not have the dtype or op.
fn run(client: &Client, module: &Module) -> Result<Vec<Vec<u8>>, PjrtError> {
    let executable = client.compile(&encode::to_bytes(module).unwrap(), &CompileOptions::default())?;
    let mut arguments = Vec::new();
    for id in module.entry().parameters() {
        let Shape::Array(shape) = &module.entry().instr(id).shape else { panic!("a parameter is no array") };
        arguments.push(client.buffer_from_host(&argument(shape), shape.dtype, &shape.dims, 0)?);
    }
    let outputs = executable.execute(arguments.iter().map(Arg::Keep).collect())?;
    outputs.iter().map(|output| output.to_host()).collect()
}

#[test]
fn xla_rs_gives_the_plugins_bits_in_the_corners() {
    let client = |platform| Client::for_platform(&platform, &Setup::from_env()).unwrap();
    let (plugin, xla_cpu) = (client(Platform::cpu()), client(Platform::XlaCpu));
    let (mut wrong, mut n_same, mut n_lacking) = (Vec::new(), 0, 0);
    for (name, module) in corners() {
        let entry = module.entry();
        if entry.parameters().iter().any(|id| !matches!(entry.instr(*id).shape, Shape::Array(_))) {
            continue;
        }
        match (run(&plugin, &module), run(&xla_cpu, &module)) {
            (Ok(expected), Ok(measured)) if measured == expected => n_same += 1,
            (Ok(expected), Ok(measured)) => wrong.push(format!("{name}: {measured:?}, expected {expected:?}")),
            (_, Err(ref error)) if error.kind() == PjrtErrorKind::Unsupported => n_lacking += 1,
            (Err(ref plugin), Err(ref xla_rs))
                if [plugin, xla_rs].iter().all(|error| error.kind() == PjrtErrorKind::Refused) =>
            {
                n_lacking += 1;
            }
            (plugin, xla_rs) => wrong.push(format!("{name}: plugin {plugin:?}, xla-rs {xla_rs:?}")),
        }
    }
    assert!(wrong.is_empty(), "{n_same} same, {n_lacking} lacking, {} wrong:\n{}", wrong.len(), wrong.join("\n"));
    // One is a dot of a dtype for which xla-rs has no arrays.
    assert_eq!((n_same, n_lacking), (123, 1));
}
