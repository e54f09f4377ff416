//! HLO text → `Module`, in both dialects.
//!
//! Names of instructions and computations may be used before their definitions. Attributes that the IR does not model
//! are preserved verbatim, in order, and opcodes it does not model become [`Op::Opaque`](crate::Op); an opcode that
//! HLO does not have is an error. Shapes are not checked against the ops: that is `hlo::verify`. Time is linear in the
//! text; nesting is bounded. A long text is read part by part.

use super::computation::Computations;
use super::error::ParseError;
use super::forms::finished;
use super::lex::{Cursor, Fault, Read};
use super::syntax::{self, Attribute, TextPart};
use super::{MAX_BYTES, frames, read_common};
use crate::{Alias, AliasKind, CompId, Computation, EntryLayout, InstrId, Module, Shape};
use std::cell::Cell;

/// The number of bytes of text that are read at a time: intermediate data stay in a core's cache, and their memory is
/// reused for the next part. A fuzzer's texts are short, and should be read in parts too.
pub(super) const PART: usize = if cfg!(fuzzing) { 64 } else { 64 << 10 };

/// Reads a module. `path` names the text in errors.
///
/// # Errors
/// The first error in the text, or a module that takes more than [`MAX_BYTES`] of memory; with line and column.
pub fn parse(text: &str, path: &str) -> Result<Module, ParseError> {
    parse_within(text, path, MAX_BYTES)
}

/// [`parse`] with another bound than [`MAX_BYTES`].
pub(super) fn parse_within(text: &str, path: &str, max_bytes: usize) -> Result<Module, ParseError> {
    // Only reading the whole text gives the right error.
    let in_parts = if text.len() > PART { read_module(text, max_bytes, PART).ok() } else { None };
    match in_parts {
        Some(module) => Ok(module),
        None => read_module(text, max_bytes, usize::MAX)
            .map_err(|Fault { offset, kind }| ParseError::at(path, text, offset, *kind)),
    }
}

/// Reads a module in parts of `n_bytes`: each part once for its instructions, then again for their contents.
///
/// Only a module whose operands come first, as XLA prints it, can be read in parts: otherwise reading fails. A part
/// that is the whole text does not have this restriction.
pub(super) fn read_module(text: &str, max_bytes: usize, n_bytes: usize) -> Read<Module> {
    let left = Cell::new(max_bytes.saturating_sub(text.len()));
    let mut cursor = Cursor::bounded(text, &left);
    let header = syntax::header(&mut cursor)?;
    let stack_frames = frames::read(&mut cursor)?;
    let mut part = TextPart::default();
    let mut computations = Computations::within(max_bytes);
    let mut entry = CompId(0);
    while !cursor.at_end() || computations.is_empty() {
        let stop = cursor.pos.saturating_add(n_bytes);
        part.read(&mut cursor, stop)?;
        computations.announce(&part)?;
        if cursor.at_end() {
            entry = computations.entry(cursor)?;
        }
        computations.build(cursor, &mut part)?;
    }
    let mut module = Module::new(header.name);
    (module.computations, module.next_name) = computations.finish(cursor)?;
    module.entry = entry;
    module.stack_frames = stack_frames;
    for attribute in &header.attributes {
        module_attribute(&mut module, cursor, attribute)?;
    }
    Ok(module)
}

fn module_attribute(module: &mut Module, cursor: Cursor<'_>, attribute: &Attribute<'_>) -> Read<()> {
    let mut value = cursor.over(attribute.value);
    match attribute.name {
        "is_scheduled" => module.is_scheduled = value.boolean()?,
        "input_output_alias" => value.sequence("{", "}", |value| {
            value.spend(2 * size_of::<Alias>())?;
            module.input_output_alias.push(alias(value)?);
            Ok(())
        })?,
        "buffer_donor" => value.sequence("{", "}", |value| {
            value.spend(2 * size_of::<(i64, Vec<i64>)>())?;
            value.expect("(")?;
            let number = value.int()?;
            value.expect(",")?;
            let index = value.ints("{", "}")?;
            value.expect(")")?;
            module.buffer_donors.push((number, index));
            Ok(())
        })?,
        "entry_computation_layout" => module.entry_layout = entry_layout(&mut value, module.entry())?,
        "frontend_attributes" => module.frontend_attributes = read_common::frontend_attributes(&mut value)?,
        name => {
            if ["replica_count", "num_partitions"].contains(&name) {
                value.skip_blank();
                let (start, count) = (value.pos, value.int()?);
                if i32::try_from(count).is_err() || count < 1 {
                    value.pos = start;
                    return Err(value.expected("a number of devices, from 1 to 2147483647"));
                }
                finished(&mut value)?;
            }
            let text = cursor.slice(attribute.value).to_string();
            module.unmodelled.attributes.push((name.to_string(), text));
            return Ok(());
        }
    }
    finished(&mut value)
}

/// `{0}: (1, {}, may-alias)`.
fn alias(value: &mut Cursor<'_>) -> Read<Alias> {
    let output_index = value.ints("{", "}")?;
    value.expect(":")?;
    value.expect("(")?;
    let parameter_number = value.int()?;
    value.expect(",")?;
    let parameter_index = value.ints("{", "}")?;
    let mut kind = AliasKind::May;
    if value.eat(",") {
        value.skip_blank();
        let start = value.pos;
        kind = match value.word_or_empty() {
            "may-alias" => AliasKind::May,
            "must-alias" => AliasKind::Must,
            _ => {
                value.pos = start;
                return Err(value.expected("`may-alias` or `must-alias`"));
            }
        };
    }
    value.expect(")")?;
    Ok(Alias { output_index, parameter_number, parameter_index, kind })
}

/// `{(f32[2]{0})->f32[]}`; `None` if it is that of the entry's instructions.
fn entry_layout(value: &mut Cursor<'_>, entry: &Computation) -> Read<Option<EntryLayout>> {
    value.expect("{")?;
    let mut parameters = Vec::new();
    value.sequence("(", ")", |value| {
        parameters.push(value.shape()?.with_default_layout());
        Ok(())
    })?;
    value.expect("->")?;
    let result = value.shape()?.with_default_layout();
    value.expect("}")?;
    let instruction_shape = |id: InstrId| entry.instr(id).shape.with_default_layout();
    let own_parameters: Vec<Shape> = entry.parameters().into_iter().map(instruction_shape).collect();
    let is_own = own_parameters == parameters && instruction_shape(entry.root) == result;
    Ok((!is_own).then_some(EntryLayout { parameters, result }))
}
