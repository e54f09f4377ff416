//! StableHLO's text to HLO: what JAX writes (`lowered.as_text()`), in a small part of the time that XLA's converter takes.
//!
//! Only what is certain is read: ops that the IR has, as MLIR prints them, without locations. Anything else, and whatever
//! is not as it should be, gives nothing; then XLA's converter reads the text, or says what is wrong with it. So StableHLO
//! has one meaning here, XLA's, and every error is XLA's. Tests compare what both make of the same programs.
//!
//! `cursor` walks through the text; `types` reads types and constants, `attributes` what is said of ops, `operation` one
//! op in either form, `forms` the short forms, `program` functions and regions. `build` makes computations of these, `ops`
//! an instruction of an op.
//!
//! Source: the StableHLO specification, version 1.0; `StablehloOps.td` and `AssemblyFormat.cpp` for the short forms; MLIR's
//! language reference.

mod attributes;
mod build;
mod cursor;
mod forms;
mod operation;
mod ops;
mod program;
#[cfg(test)]
mod tests;
mod types;

use self::attributes::Attributes;
use crate::hlo::{Module, Shape};

/// Longer texts are XLA's, in a child whose memory is bounded. A byte of text may become twenty of an op.
const MAX_BYTES: usize = 32 << 20;

/// A module from StableHLO's text, not verified; `None` where only XLA's converter can tell what it is. Its lines are
/// located in a file of this name.
pub fn read(text: &str, name: &str) -> Option<Module> {
    if text.len() > MAX_BYTES {
        return None;
    }
    build::module(program::read(text)?, name)
}

/// A value where it is used: `%3`, or of several results one, `%3#1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Use<'t> {
    name: &'t str,
    result: u32,
}

/// An op with what was said of it; the short forms say it in the words of the generic one.
#[derive(Debug)]
struct Operation<'t> {
    name: &'t str,
    /// Names, and how many values each stands for.
    results: Vec<(&'t str, u32)>,
    operands: Vec<Use<'t>>,
    attributes: Attributes<'t>,
    regions: Vec<Region<'t>>,
    operand_types: Vec<Shape>,
    result_types: Vec<Shape>,
    line: u32,
}

/// One block of ops, the last of which returns.
#[derive(Debug, Default)]
struct Region<'t> {
    parameters: Vec<(&'t str, Shape)>,
    operations: Vec<Operation<'t>>,
    /// Values of outside that are used inside.
    captures: Vec<Use<'t>>,
}

/// A function.
#[derive(Debug)]
struct Function<'t> {
    name: &'t str,
    body: Region<'t>,
    /// What is said of each parameter.
    parameters: Vec<Attributes<'t>>,
    results: Vec<Shape>,
}

/// A module of functions.
#[derive(Debug)]
struct Program<'t> {
    name: &'t str,
    functions: Vec<Function<'t>>,
}
