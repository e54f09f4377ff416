//! StableHLO's text to HLO: what JAX writes (`lowered.as_text()`), in a small part of the time that XLA's converter takes.
//!
//! Only what is certain is read: ops that the IR has, as MLIR prints them. Anything else, and whatever
//! is not as it should be, gives nothing; then XLA's converter reads the text, or says what is wrong with it. So StableHLO
//! has one meaning here, XLA's, and every error is XLA's. Tests compare what both make of the same programs.
//!
//! `cursor` walks through the text; `types` reads types and constants, `attributes` what is said of ops, `operation` one
//! op in either form, `forms` the short forms, `names` locations, `program` functions and regions. `build` makes computations of these, `ops`
//! an instruction of an op.
//!
//! Source: the StableHLO specification, version 1.0; `StablehloOps.td` and `AssemblyFormat.cpp` for the short forms; MLIR's
//! language reference.

mod attributes;
mod build;
mod cursor;
mod forms;
mod known;
mod names;
mod operation;
mod ops;
mod program;
mod symbolic;
#[cfg(test)]
mod tests;
mod types;

use self::attributes::Attributes;
use crate::ForeignError;
use crate::sizes::{Sizes, UNKNOWN};
use bf16scope_hlo::{Module, Shape};

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

/// As [`read`], of a text with its locations: instructions have the names that XLA's converter gives them, and no lines.
pub fn read_named(text: &str) -> Option<Module> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let (aliases, program) = names::aliases(text)?;
    let (program, locations) = program::read_located(program)?;
    build::named(program, locations.names(&aliases)?)
}

/// As [`read`], of a program whose sizes are symbolic, with these sizes. Locations may be in it. Nothing else reads such a
/// program, so what is not read here is an error.
///
/// # Errors
/// Dimensions without a size; an assertion about shapes that does not hold; an op that is not read with sizes, with its line.
pub fn read_symbolic(text: &str, name: &str, sizes: &Sizes) -> Result<Module, ForeignError> {
    let text = without_locations(text);
    check_length(text.len(), name)?;
    let unread = |line: u32| {
        let words = text.lines().nth((line as usize).saturating_sub(1)).unwrap_or_default();
        let mut words = words.split([' ', '"', '(']).filter(|word| word.contains("hlo.") || word.starts_with('@'));
        let op = words.next().map_or("what stands there".to_string(), |op| format!("`{op}`"));
        ForeignError::Unsized { name: name.to_string(), line, op }
    };
    let mut program = program::read_symbolic(&text).map_err(unread)?;
    if let Some(main) = program.functions.iter_mut().find(|function| function.name == "main") {
        let parameters = &mut main.body.parameters;
        let mut dims: Vec<Vec<i64>> = parameters.iter().map(|(_, shape)| shape.dims().to_vec()).collect();
        sizes.settle(&mut dims, &text, name)?;
        for ((_, shape), dims) in parameters.iter_mut().zip(dims) {
            if let Shape::Array(array) = shape {
                array.dims = dims;
            }
        }
    }
    build::symbolic(program, name).map_err(|(line, broken)| match broken {
        Some(said) => {
            let help = "these are the words of jax.export; give other sizes with --dim";
            ForeignError::of_sizes(format!("{name}: {said}"), help)
        }
        None => unread(line),
    })
}

fn check_length(n_bytes: usize, name: &str) -> Result<(), ForeignError> {
    match n_bytes > MAX_BYTES {
        true => Err(ForeignError::of_sizes(
            format!("{name}: the text is {} MiB without its locations, expected at most 32", n_bytes >> 20),
            "export it with its sizes, or hand large constants over as arguments",
        )),
        false => Ok(()),
    }
}

/// A text without its locations, each line where it was.
fn without_locations(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let bytes = line.as_bytes();
        let (mut kept, mut at, mut in_text) = (0, 0, false);
        // Aliases of locations; other aliases are nothing that is read here.
        let mut end = if line.starts_with("#loc") { 0 } else { bytes.len() };
        let mut depth = 0;
        while at < end {
            match bytes[at] {
                b'\\' if in_text => at += 1,
                b'"' => in_text = !in_text,
                b' ' if !in_text && depth == 0 && bytes[at..].starts_with(b" loc(") => {
                    out.push_str(&line[kept..at]);
                    depth = 1;
                    at += 4;
                }
                b'(' if !in_text && depth > 0 => depth += 1,
                b')' if !in_text && depth > 0 => {
                    depth -= 1;
                    kept = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        if depth > 0 {
            end = kept;
        }
        out.push_str(&line[kept.min(end)..end]);
        out.push('\n');
    }
    out
}

/// A value where it is used: `%3`, or of several results one, `%3#1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Use<'t> {
    name: &'t str,
    result: u32,
}

/// An op with what was said of it; the short forms say it in the words of the generic one.
#[derive(Clone, Debug)]
struct Operation<'t> {
    name: &'t str,
    /// Names, and how many values each stands for.
    results: Vec<(&'t str, u32)>,
    operands: Vec<Use<'t>>,
    attributes: Attributes<'t>,
    regions: Vec<Region<'t>>,
    operand_types: Vec<Shape>,
    result_types: Vec<Shape>,
    /// The number of its location, if locations are read.
    line: u32,
}

/// One block of ops, the last of which returns.
#[derive(Clone, Debug, Default)]
struct Region<'t> {
    parameters: Vec<(&'t str, Shape)>,
    operations: Vec<Operation<'t>>,
    /// Values of outside that are used inside.
    captures: Vec<Use<'t>>,
}

/// A function.
#[derive(Clone, Debug)]
struct Function<'t> {
    name: &'t str,
    body: Region<'t>,
    /// The attributes of each parameter.
    parameters: Vec<Attributes<'t>>,
    /// The numbers of their locations.
    places: Vec<u32>,
    results: Vec<Shape>,
}

/// A module of functions.
#[derive(Debug)]
struct Program<'t> {
    name: &'t str,
    functions: Vec<Function<'t>>,
}
