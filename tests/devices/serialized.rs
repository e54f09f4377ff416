//! Compiled programs as bytes: written by a plugin, loaded by another process, the same results.

use std::collections::BTreeMap;

use bf16scope::hlo::DType;
use bf16scope::pjrt::{Arg, ChildSpec, Client, CompileOptions, Executable, PjrtErrorKind, Platform, Setup, Topology};

use crate::support::Program;

fn program() -> Vec<u8> {
    let mut program = Program::default();
    let x = program.parameter(DType::F32, &[2, 2]);
    let y = program.dot(DType::F32, &[2, 2], x, x);
    program.finish(&[y])
}

fn child() -> Client {
    let spec = ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope"));
    Client::in_child(&Platform::cpu(), &Setup::from_env(), &spec).unwrap()
}

fn results(client: &Client, executable: &Executable) -> Vec<u8> {
    let x: Vec<u8> = [1.5f32, 0.25, -3.0, 7.125].iter().flat_map(|value| value.to_le_bytes()).collect();
    let x = client.buffer_from_host(&x, DType::F32, &[2, 2], 0).unwrap();
    executable.execute(vec![Arg::Keep(&x)]).unwrap()[0].to_host().unwrap()
}

#[test]
fn what_one_process_compiled_another_runs() {
    let options = CompileOptions::default();
    let here = Client::cpu().unwrap();
    let compiled = here.compile(&program(), &options).unwrap();
    let expected = results(&here, &compiled);
    let bytes = compiled.compiled().serialize().unwrap();
    let there = child();
    let loaded = there.load(&bytes, &program(), &options, None).unwrap();
    assert_eq!(loaded.compiled().n_outputs().unwrap(), 1);
    assert_eq!(results(&there, &loaded), expected);
    // A child writes them too.
    let again = there.compile(&program(), &options).unwrap();
    assert!(!again.compiled().serialize().unwrap().is_empty());
    // In this process nobody vouches for them.
    let refused = here.load(&bytes, &program(), &options, None).unwrap_err();
    assert_eq!(refused.kind(), PjrtErrorKind::ForeignCode);
    assert_eq!(
        refused.to_string(),
        "an executable is not loaded into this process: it is machine code, and nobody vouches for what it does\nhelp: load it \
         in a child process (Client::in_child), or give a ForeignCode"
    );
}

#[test]
fn what_is_no_executable_ends_a_child_at_most() {
    let client = child();
    for bytes in [&b""[..], b"no executable"] {
        let error = client.load(bytes, &program(), &CompileOptions::default(), None).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn the_tpu_compiler_writes_what_it_compiled() {
    let topology = Topology::tpu("v3:2x2", &BTreeMap::new()).unwrap();
    let compiled = topology.compile(&program(), &CompileOptions::default()).unwrap();
    let bytes = compiled.serialize().unwrap();
    assert!(bytes.len() > 1000, "{}", bytes.len());
}
