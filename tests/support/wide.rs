//! Modules and arrays with f64 where they have f32.
//!
//! XLA's CPU code sums in an order that depends on the processor. In f64 that moves a result by some 2^-50 of it, so what
//! is compared in f64 is the same on every processor: no rounding to f32, no relu and no maximum falls the other way,
//! unless it is that close to its kink.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use bf16scope::hlo::text::{self, PrintOptions};
use bf16scope::hlo::{DType, Literal, Module};

/// The module with f64 where it has f32. Its constants are read in f64 from their shortest decimal text.
pub fn module(module: &Module) -> Module {
    let text = text::print(module, &PrintOptions::long()).replace("f32[", "f64[");
    let wide = text::parse(&text, "widened").unwrap_or_else(|error| panic!("{error}"));
    assert!(!wide.computations.iter().flat_map(|it| &it.instructions).any(|it| it.shape.dtype() == Some(DType::F32)));
    wide
}

/// The array in f64 if it is f32, else as it is.
pub fn literal(literal: &Literal) -> Literal {
    match (literal, literal.elements::<f32>()) {
        (Literal::Array { shape, .. }, Some(values)) => {
            Literal::from_elements(shape.dims.clone(), &values.into_iter().map(f64::from).collect::<Vec<f64>>())
        }
        _ => literal.clone(),
    }
}

/// The elements of an array of f32 or f64.
pub fn f64s(literal: &Literal) -> Vec<f64> {
    literal
        .elements::<f64>()
        .or_else(|| Some(literal.elements::<f32>()?.into_iter().map(f64::from).collect()))
        .unwrap_or_else(|| panic!("neither f32 nor f64"))
}
