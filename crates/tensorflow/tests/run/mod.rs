//! Runs a module on the CPU plugin.

#![allow(dead_code)] // Each test crate uses its part.

use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{Array, ArrayShape, Literal, Module};
use bf16scope_pjrt::{Arg, Client, CompileOptions, OptionValue, Platform, Setup};
use std::sync::OnceLock;

/// The one client of this process. XLA compiles for it without LLVM's optimizations, in half the time.
fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let client = Client::for_platform(&Platform::cpu(), &Setup::from_env())
            .unwrap_or_else(|error| panic!("no client: {error}"));
        client.with_flags([("xla_backend_optimization_level".to_string(), OptionValue::Int(0))])
    })
}

/// The results of a module on arguments in order.
pub fn run(module: &Module, arguments: &[Literal]) -> Result<Vec<Literal>, String> {
    let bytes = encode::to_bytes(module).unwrap();
    let executable = client().compile(&bytes, &CompileOptions::default()).map_err(|error| error.to_string())?;
    let buffer = |literal: &Literal| {
        let Literal::Array { shape, bytes } = literal else { panic!("no array: {literal:?}") };
        client().buffer_from_host(bytes, shape.dtype, &shape.dims, 0).unwrap()
    };
    let buffers: Vec<_> = arguments.iter().map(buffer).collect();
    let outputs = executable.execute(buffers.iter().map(Arg::Keep).collect()).map_err(|error| error.to_string())?;
    let literal = |buffer: &bf16scope_pjrt::Buffer| Literal::Array {
        shape: ArrayShape::new(buffer.dtype().unwrap(), buffer.dims().unwrap()),
        bytes: buffer.to_host().unwrap(),
    };
    Ok(outputs.iter().map(literal).collect())
}

/// The elements of an array of f32, bf16 or f16.
pub fn f32s(literal: &Literal) -> Vec<f64> {
    let Literal::Array { shape, bytes } = literal else { panic!("no array: {literal:?}") };
    let array = Array { shape: shape.clone(), bytes: bytes.clone() };
    array.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
}
