//! Every gradient rule against central differences, in f64, run through the CPU plugin.
//!
//! For an argument's element x, `(f(x + h) - f(x - h)) / 2h` differs from the derivative by at most
//! - `h² / 6 · max |f'''|` (the differences' own error). Over the ranges of the cases the largest third derivative of
//!   the loss in one element is that of `atanh` near 0.8, `(2 + 6x²) / (1 - x²)³ ≈ 125`, times a weight ≤ 1.5; with
//!   h = 2^-15 that is `1.6e-10 · 190 ≈ 3e-8`;
//! - `δ / h`, δ the rounding error of one loss. A loss sums at most n = 64 terms of size ≤ 4, each good to a few units
//!   in the last place: `δ ≤ n · 256 · 2^-53 ≈ 2e-12` if every rounding pulled the same way, so `δ / h ≤ 6e-8`.
//!
//! Together under 1e-7; gradients of size g add `g · 1e-7` for the relative accuracy of library functions. A wrong rule
//! is off by the order of the gradient itself.

use crate::run;

use crate::grad_cases;

use bf16scope::hlo::ops::{BinaryOp, Comparison, UnaryOp, WindowDim};
use bf16scope::hlo::{DType, Emitter, InstrId, Module, Op, Shape, proto, verify};
use bf16scope::passes::grad;
use bf16scope::pjrt::{Arg, Client, CompileOptions, Executable};
use grad_cases::Case;

const STEP: f64 = 1.0 / 32768.0;
const TOLERANCE: f64 = 1e-7;

/// Compiles a module of f64 arguments.
fn compile(client: &Client, module: &Module) -> Result<Executable, String> {
    let bytes = proto::encode::to_bytes(module).map_err(|error| error.to_string())?;
    client.compile(&bytes, &CompileOptions::default()).map_err(|error| error.to_string())
}

/// Runs it on f64 arrays.
fn run(client: &Client, executable: &Executable, dims: &[Vec<i64>], values: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let buffers: Vec<_> = (dims.iter().zip(values))
        .map(|(dims, values)| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            client.buffer_from_host(&bytes, DType::F64, dims, 0).unwrap()
        })
        .collect();
    let outputs = executable.execute(buffers.iter().map(Arg::Keep).collect()).unwrap();
    let read = |bytes: Vec<u8>| bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect();
    outputs.iter().map(|output| read(output.to_host().unwrap())).collect()
}

/// The largest excess of |gradient - difference| over the tolerance, with where it is; `None` if there is none.
fn check(client: &Client, case: &Case) -> Result<(), String> {
    let module = case.gradient_module().map_err(|error| error.to_string())?;
    let executable = compile(client, &module)?;
    let at = |values: &[Vec<f64>]| run(client, &executable, &case.dims, values);
    let gradients = &at(&case.values)[1..];
    let mut errors = Vec::new();
    for (argument, gradient) in gradients.iter().enumerate() {
        for (element, &measured) in gradient.iter().enumerate() {
            let moved = |by: f64| {
                let mut values = case.values.clone();
                values[argument][element] += by;
                at(&values)[0][0]
            };
            let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            // A NaN is no match either.
            let matches = (measured - expected).abs() <= TOLERANCE * (1.0 + expected.abs());
            if !matches {
                errors.push(format!("argument {argument}[{element}]: gradient {measured}, difference {expected}"));
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n  ")) }
}

#[test]
fn every_rule_agrees_with_central_differences() {
    let client = run::client();
    let failures: Vec<String> = grad_cases::all()
        .iter()
        .filter_map(|case| check(client, case).err().map(|error| format!("{}:\n  {error}", case.name)))
        .collect();
    assert!(failures.is_empty(), "{} cases fail:\n{}", failures.len(), failures.join("\n"));
}

/// A gradient by hand: arguments and the gradient of the plain sum of the results by each.
struct ByHand {
    name: &'static str,
    arguments: &'static [&'static [f64]],
    gradients: &'static [&'static [f64]],
    build: fn(&Emitter, &[InstrId]) -> InstrId,
}

/// Where a function has a kink, differences say nothing: what we give there is a choice, written down here.
const TIES: &[ByHand] = &[
    ByHand {
        name: "abs at 0 is flat",
        arguments: &[&[-2.0, 0.0, 3.0]],
        gradients: &[&[-1.0, 0.0, 1.0]],
        build: |e, args| e.unary(UnaryOp::Abs, args[0]),
    },
    ByHand {
        name: "a tie of maximum is shared",
        arguments: &[&[1.0, 2.0, 3.0], &[2.0, 2.0, 2.0]],
        gradients: &[&[0.0, 0.5, 1.0], &[1.0, 0.5, 0.0]],
        build: |e, args| e.binary(BinaryOp::Maximum, args[0], args[1]),
    },
    ByHand {
        name: "a tie of minimum is shared",
        arguments: &[&[1.0, 2.0, 3.0], &[2.0, 2.0, 2.0]],
        gradients: &[&[1.0, 0.5, 0.0], &[0.0, 0.5, 1.0]],
        build: |e, args| e.binary(BinaryOp::Minimum, args[0], args[1]),
    },
    ByHand {
        name: "a relu at 0 is flat, as TensorFlow's",
        arguments: &[&[-1.0, 0.0, 2.0]],
        gradients: &[&[0.0, 0.0, 1.0]],
        build: |e, args| e.binary(BinaryOp::Maximum, args[0], e.zeros_like(args[0])),
    },
    ByHand {
        name: "at a bound, clamp's cotangent is the bound's",
        arguments: &[&[0.0, 0.0, 0.0], &[0.0, 1.0, 0.5], &[1.0, 1.0, 1.0]],
        gradients: &[&[1.0, 0.0, 0.0], &[0.0, 0.0, 1.0], &[0.0, 1.0, 0.0]],
        build: |e, args| e.emit(Op::Clamp, args, None),
    },
    ByHand {
        name: "ties of a reduced maximum share evenly",
        arguments: &[&[3.0, 1.0, 3.0, 3.0]],
        gradients: &[&[1.0 / 3.0, 0.0, 1.0 / 3.0, 1.0 / 3.0]],
        build: |e, args| e.reduce(BinaryOp::Maximum, args[0], &[0]),
    },
    ByHand {
        name: "a tie in a pooling window goes to the first",
        arguments: &[&[1.0, 1.0, 0.0, 2.0, 2.0, 2.0]],
        gradients: &[&[1.0, 0.0, 0.0, 1.0, 1.0, 0.0]],
        build: |e, args| {
            let window = vec![WindowDim { stride: 2, ..WindowDim::of_size(2) }];
            let to_apply = e.scalar_computation(BinaryOp::Maximum, DType::F64);
            e.emit(Op::ReduceWindow { window, to_apply }, &[args[0], e.scalar(DType::F64, f64::NEG_INFINITY)], None)
        },
    },
    ByHand {
        name: "power of 0",
        arguments: &[&[0.0, 0.0, 0.0], &[2.0, 1.0, 0.0]],
        gradients: &[&[0.0, 1.0, 0.0], &[0.0, 0.0, 0.0]],
        build: |e, args| e.binary(BinaryOp::Power, args[0], args[1]),
    },
    ByHand {
        name: "rounding to fewer bits passes straight through",
        arguments: &[&[1.0, 1.0625, -3.3]],
        gradients: &[&[1.0, 1.0, 1.0]],
        build: |e, args| e.emit(Op::ReducePrecision { exponent_bits: 8, mantissa_bits: 2 }, args, None),
    },
    ByHand {
        name: "equal keys of a stable sort keep their places",
        arguments: &[&[2.0, 1.0, 2.0, 1.0]],
        // Sorted: elements 1, 3, 0, 2; weights are the positions.
        gradients: &[&[2.0, 0.0, 3.0, 1.0]],
        build: |e, args| {
            let to_apply = e.with_module_mut(|module| grad_cases::comparator(module, Comparison::Lt, 1));
            let sorted = e.emit(Op::Sort { dimension: 0, is_stable: true, to_apply }, args, None);
            e.mul(sorted, e.iota(DType::F64, &[4], 0))
        },
    },
];

/// The gradients, by every argument, of the sum of what `build` makes of f64 vectors; nothing else is in the module.
fn gradients_of_sum(
    client: &Client,
    arguments: &[Vec<f64>],
    build: impl Fn(&Emitter, &[InstrId]) -> InstrId,
) -> Vec<Vec<f64>> {
    let module = Module::new("by_hand");
    let e = Emitter::new(module.clone(), module.entry);
    let dims: Vec<Vec<i64>> = arguments.iter().map(|values| vec![values.len() as i64]).collect();
    let parameters: Vec<InstrId> =
        (0..).zip(&dims).map(|(number, dims)| e.parameter(number, &Shape::array(DType::F64, dims.clone()))).collect();
    let result = build(&e, &parameters);
    let all: Vec<i64> = (0..e.dims(result).len() as i64).collect();
    let gradients = grad::gradients(&e, e.reduce_sum(result, &all), &parameters).unwrap();
    e.tuple(&gradients);
    let module = e.finish().unwrap();
    verify::verify(&module).unwrap();
    run(client, &compile(client, &module).unwrap(), &dims, arguments)
}

#[test]
fn ties_are_resolved_as_documented() {
    let client = run::client();
    for tie in TIES {
        let arguments: Vec<Vec<f64>> = tie.arguments.iter().map(|values| values.to_vec()).collect();
        assert_eq!(gradients_of_sum(client, &arguments, tie.build), tie.gradients, "{}", tie.name);
    }
}

/// The plugin has no code for these three functions themselves; their gradients do not need them.
#[test]
fn inverse_hyperbolic_functions_agree_with_differences_on_the_host() {
    let client = run::client();
    type OnHost = fn(f64) -> f64;
    let functions: [(UnaryOp, OnHost, [f64; 4]); 3] = [
        (UnaryOp::Acosh, f64::acosh, [1.5, 1.9, 2.2, 3.0]),
        (UnaryOp::Asinh, f64::asinh, [-2.0, -0.3, 0.1, 1.7]),
        (UnaryOp::Atanh, f64::atanh, [-0.8, -0.2, 0.3, 0.7]),
    ];
    for (op, function, points) in functions {
        let gradients = gradients_of_sum(client, &[points.to_vec()], |e, args| e.unary(op, args[0]));
        for (x, gradient) in points.into_iter().zip(&gradients[0]) {
            let expected = (function(x + STEP) - function(x - STEP)) / (2.0 * STEP);
            assert!((gradient - expected).abs() <= TOLERANCE * (1.0 + expected.abs()), "{op:?} at {x}");
        }
    }
}
