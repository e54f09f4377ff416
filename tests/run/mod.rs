//! Runs a builder's program, for tests that judge what it computes: on the CPU plugin, or on the device that
//! `BF16SCOPE_TEST_DEVICE` names (`ci/xla-tests` runs these tests on `xla-cpu`).

#![allow(dead_code)] // Each test crate uses its part.

use bf16scope::graph::{Graph, Program, Tensor};
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Element, Literal};
use bf16scope::pjrt::{Arg, Client, CompileOptions, Executable, OptionValue, Platform, Setup};
use std::sync::OnceLock;

/// The one client of this process. It keeps programs: most of the tests' time is XLA's, and many tests begin with the
/// same one.
pub fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| quick(own_client()).keeping(KEPT))
}

/// The same for what asks for words about a run, and not for its bits: XLA leaves its fusion emitters out too, and takes half the time
/// again. What it makes then has last bits that depend on what is fused.
pub fn client_for_words() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| quickest(own_client()).keeping(KEPT))
}

/// The same for what runs longer than it is compiled, such as a whole training: its programs are optimized.
pub fn optimized_client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| own_client().keeping(KEPT))
}

/// This client, whose programs XLA compiles for a CPU without LLVM's optimizations, in half the time (docs/TESTING.md).
/// `BF16SCOPE_TEST_OPTIMIZED`, which `ci/long` sets, leaves a client as users have it.
pub fn quick(client: Client) -> Client {
    with_flags(client, &[OPTIMIZATIONS])
}

/// The same without XLA's fusion emitters.
pub fn quickest(client: Client) -> Client {
    with_flags(client, &[OPTIMIZATIONS, EMITTERS])
}

const OPTIMIZATIONS: (&str, OptionValue) = ("xla_backend_optimization_level", OptionValue::Int(0));
const EMITTERS: (&str, OptionValue) = ("xla_cpu_use_fusion_emitters", OptionValue::Bool(false));

fn with_flags(client: Client, flags: &[(&str, OptionValue)]) -> Client {
    let named = std::env::var("BF16SCOPE_TEST_DEVICE").is_ok_and(|name| name != "cpu");
    if named || std::env::var_os("BF16SCOPE_TEST_OPTIMIZED").is_some() {
        return client;
    }
    client.with_flags(flags.iter().map(|(name, value)| (name.to_string(), value.clone())))
}

/// That two programs of the same arithmetic give the same: to the bit as [`quick`] compiles, and where a compiler makes one rounding of
/// a product and a sum, as it does in one program and not in the other, as near as 200 roundings to f32 are.
pub fn assert_same(left: &[Literal], right: &[Literal], what: &str) {
    if !contracts() {
        assert_eq!(left, right, "{what}");
        return;
    }
    assert_eq!(left.len(), right.len(), "{what}");
    for (left, right) in left.iter().zip(right) {
        if let Some((left, right, scale)) = first_apart(&f32s(left), &f32s(right)) {
            panic!("{what}: {left}, {right} of {scale}");
        }
    }
}

/// Whether [`assert_same`] takes the values of two arrays for the same, whatever float dtypes they have.
pub fn is_same(left: &Literal, right: &Literal) -> bool {
    let (left, right) = (f32s(left), f32s(right));
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    bits(&left) == bits(&right) || contracts() && left.len() == right.len() && first_apart(&left, &right).is_none()
}

/// Whether the compiler makes one rounding of a product and a sum in one program and not in another.
fn contracts() -> bool {
    ["BF16SCOPE_TEST_DEVICE", "BF16SCOPE_TEST_OPTIMIZED"].iter().any(|name| std::env::var_os(name).is_some())
}

/// The first two values that are further apart than 200 roundings to f32, and the scale of all.
fn first_apart(left: &[f32], right: &[f32]) -> Option<(f32, f32, f32)> {
    let scale = right.iter().fold(0f32, |most, value| most.max(value.abs()));
    let is_near = |left: f32, right: f32| (left - right).abs() <= 200.0 * 2f32.powi(-24) * scale;
    left.iter().zip(right).find(|&(&left, &right)| !is_near(left, right)).map(|(&left, &right)| (left, right, scale))
}

/// Programs that a client of the tests keeps.
pub const KEPT: usize = 128;

/// A client of the CPU plugin, or of the device named, for one test alone: it compiles whatever it is given.
pub fn own_client() -> Client {
    let platform = std::env::var("BF16SCOPE_TEST_DEVICE").map_or(Platform::cpu(), |name| name.parse().unwrap());
    Client::for_platform(&platform, &Setup::from_env()).unwrap_or_else(|error| panic!("no client: {error}"))
}

/// Whether the device's compiler rounds to f16. XLA's CPU plugin does not where the processor has no F16C, or where
/// `XLA_FLAGS` hides it (`ci/isa`): what rounds to f16, or to f8 by way of it, has nothing to run there, and the error
/// says so. Anywhere else a program in f16 that does not compile is a failure.
pub fn has_f16() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let graph = Graph::new("rounds");
        let x = graph.input("x", DType::F32, [2]);
        let program = graph.finish(&[("value", &x.cast(DType::F16))]).unwrap();
        let bytes = encode::to_bytes(&program.module).unwrap();
        let Err(error) = client().compile(&bytes, &CompileOptions::default()) else { return true };
        let hidden = std::env::var("XLA_FLAGS").is_ok_and(|flags| flags.contains("--xla_cpu_max_isa=SSE4_2"));
        assert!(hidden || !std::arch::is_x86_feature_detected!("f16c"), "{error}");
        assert!(error.to_string().contains("needs F16C, which comes with AVX"), "{error}");
        println!("without F16C: what rounds to f16 is not run");
        false
    })
}

/// Runs a program on arguments given by name and returns its outputs as literals, in order. Excess precision is off.
pub fn run(program: &Program, argument: impl Fn(&str) -> Literal) -> Vec<Literal> {
    run_with(program, &CompileOptions::default(), argument)
}

/// [`run`] with other options.
pub fn run_with(program: &Program, options: &CompileOptions, argument: impl Fn(&str) -> Literal) -> Vec<Literal> {
    Compiled::with(program, options).run(argument)
}

/// A compiled program, to run more than once.
pub struct Compiled<'a> {
    program: &'a Program,
    executable: Executable,
}

impl<'a> Compiled<'a> {
    /// Verifies and compiles. Excess precision is off.
    pub fn new(program: &'a Program) -> Compiled<'a> {
        Compiled::with(program, &CompileOptions::default())
    }

    fn with(program: &'a Program, options: &CompileOptions) -> Compiled<'a> {
        verify(&program.module).unwrap_or_else(|errors| panic!("{errors}"));
        let bytes = encode::to_bytes(&program.module).unwrap();
        Compiled { program, executable: compile(&bytes, options) }
    }

    /// Runs it on arguments given by name.
    pub fn run(&self, argument: impl Fn(&str) -> Literal) -> Vec<Literal> {
        execute(&self.executable, &arguments(self.program, argument))
    }
}

/// A program's arguments in order, from those given by name.
pub fn arguments(program: &Program, argument: impl Fn(&str) -> Literal) -> Vec<Literal> {
    let variables = program.variables.iter().map(|variable| (&variable.name, variable.dtype, &variable.dims));
    let inputs = program.inputs.iter().map(|input| (&input.name, input.dtype, &input.dims));
    variables
        .chain(inputs)
        .map(|(name, dtype, dims)| {
            let literal = argument(name);
            let Literal::Array { shape, .. } = &literal else { panic!("{name} is not an array") };
            assert_eq!((shape.dtype, &shape.dims), (dtype, dims), "argument {name}");
            literal
        })
        .collect()
}

/// Runs an `HloModuleProto`'s bytes on arguments in order.
pub fn run_bytes(bytes: &[u8], options: &CompileOptions, arguments: &[Literal]) -> Vec<Literal> {
    execute(&compile(bytes, options), arguments)
}

fn compile(bytes: &[u8], options: &CompileOptions) -> Executable {
    client().compile(bytes, options).unwrap_or_else(|error| panic!("{error}"))
}

pub fn execute(executable: &Executable, arguments: &[Literal]) -> Vec<Literal> {
    let buffers: Vec<_> = arguments
        .iter()
        .map(|literal| {
            let Literal::Array { shape, bytes } = literal else { panic!("no array: {literal:?}") };
            client().buffer_from_host(bytes, shape.dtype, &shape.dims, 0).unwrap()
        })
        .collect();
    let outputs = executable.execute(buffers.iter().map(Arg::Keep).collect()).unwrap();
    outputs
        .iter()
        .map(|buffer| {
            let shape = bf16scope::hlo::ArrayShape::new(buffer.dtype().unwrap(), buffer.dims().unwrap());
            Literal::Array { shape, bytes: buffer.to_host().unwrap() }
        })
        .collect()
}

/// Finishes `graph` with one output and runs it; no arguments.
pub fn value(graph: &Graph, output: &Tensor) -> Literal {
    let program = graph.finish(&[("value", output)]).unwrap_or_else(|error| panic!("{error}"));
    run(&program, |name| panic!("no argument {name}")).remove(0)
}

/// The elements of an array as f32, from f32, bf16 or f16.
pub fn f32s(literal: &Literal) -> Vec<f32> {
    let Literal::Array { shape, bytes } = literal else { panic!("no array: {literal:?}") };
    match shape.dtype {
        DType::F32 => bytes.chunks_exact(4).map(f32::read).collect(),
        DType::BF16 => bytes.chunks_exact(2).map(|b| half::bf16::read(b).to_f32()).collect(),
        DType::F16 => bytes.chunks_exact(2).map(|b| half::f16::read(b).to_f32()).collect(),
        other => panic!("{other} is not read as f32"),
    }
}

/// The elements of an f64 array.
pub fn f64s(literal: &Literal) -> Vec<f64> {
    let Literal::Array { shape, bytes } = literal else { panic!("no array: {literal:?}") };
    assert_eq!(shape.dtype, DType::F64);
    bytes.chunks_exact(8).map(f64::read).collect()
}
