//! Every gradient rule against central differences, in f64, run through the CPU plugin.
//!
//! For an argument's element x, `(f(x + h) - f(x - h)) / 2h` differs from the derivative by at most
//! - `h² / 6 · max |f'''|` (the differences' own error). Over the ranges of the cases the greatest third derivative of
//!   the loss in one element is that of `atanh` near 0.8, `(2 + 6x²) / (1 - x²)³ ≈ 125`, times a weight ≤ 1.5; with
//!   h = 2^-15 that is `1.6e-10 · 190 ≈ 3e-8`;
//! - `δ / h`, δ the rounding error of one loss. A loss sums at most n = 64 terms of size ≤ 4, each good to a few units
//!   in the last place: `δ ≤ n · 256 · 2^-53 ≈ 2e-12` if every rounding pulled the same way, so `δ / h ≤ 6e-8`.
//!
//! Together under 1e-7; gradients of size g add `g · 1e-7` for the relative accuracy of library functions. A wrong rule
//! is off by the order of the gradient itself.

mod grad_cases;

use bf16scope::hlo::{DType, Module, proto};
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

/// The greatest excess of |gradient - difference| over the tolerance, with where it is; `None` if there is none.
fn check(client: &Client, case: &Case) -> Result<(), String> {
    let loss = compile(client, &case.loss_module())?;
    let gradient_module = case.gradient_module().map_err(|error| error.to_string())?;
    let gradients = &run(client, &compile(client, &gradient_module)?, &case.dims, &case.values)[1..];
    let mut errors = Vec::new();
    let loss_at = |values: &[Vec<f64>]| run(client, &loss, &case.dims, values)[0][0];
    for (argument, gradient) in gradients.iter().enumerate() {
        for (element, &measured) in gradient.iter().enumerate() {
            let moved = |by: f64| {
                let mut values = case.values.clone();
                values[argument][element] += by;
                loss_at(&values)
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
    let client = Client::cpu().unwrap();
    let failures: Vec<String> = grad_cases::all()
        .iter()
        .filter_map(|case| check(&client, case).err().map(|error| format!("{}:\n  {error}", case.name)))
        .collect();
    assert!(failures.is_empty(), "{} cases fail:\n{}", failures.len(), failures.join("\n"));
}
