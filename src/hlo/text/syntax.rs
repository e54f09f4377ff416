//! The first pass over HLO text: which computations and instructions there are, their names, shapes and opcodes, and
//! where their operands and attributes stand. Names are resolved and values read by the second pass (`parse`).

use super::lex::{Cursor, Read, Span};
use crate::hlo::{Computation, Instruction, Shape};

/// Bytes that a name takes beside itself: in the table of names, and in the order that is made of what has them.
const PER_NAME: usize = 160;

/// A module's header and computations. Attributes of everything stand in one list, which the [`Listed`] ranges cut up:
/// a list for each instruction would cost more than all the rest.
pub(super) struct RawModule<'a> {
    pub(super) name: &'a str,
    pub(super) attributes: Listed,
    /// Of the module, its computations and their instructions.
    pub(super) all_attributes: Vec<Attribute<'a>>,
    pub(super) computations: Vec<RawComputation<'a>>,
}

/// A computation.
pub(super) struct RawComputation<'a> {
    pub(super) name: &'a str,
    pub(super) offset: usize,
    pub(super) is_entry: bool,
    pub(super) instructions: Vec<RawInstruction<'a>>,
    /// Which instruction says `ROOT`; without one, the last.
    pub(super) root: Option<usize>,
    pub(super) attributes: Listed,
}

/// An instruction.
pub(super) struct RawInstruction<'a> {
    pub(super) name: &'a str,
    pub(super) offset: usize,
    pub(super) shape: Shape,
    pub(super) opcode: &'a str,
    pub(super) opcode_offset: usize,
    /// What stands between the parentheses after the opcode.
    pub(super) operands: Span,
    pub(super) attributes: Listed,
}

/// A range of [`RawModule::all_attributes`].
pub(super) type Listed = std::ops::Range<usize>;

/// `name=value`.
#[derive(Clone, Copy)]
pub(super) struct Attribute<'a> {
    pub(super) name: &'a str,
    pub(super) value: Span,
}

/// Reads a whole text.
pub(super) fn module<'a>(cursor: &mut Cursor<'a>) -> Read<RawModule<'a>> {
    if cursor.word_or_empty() != "HloModule" {
        cursor.pos = 0;
        return Err(cursor.expected("`HloModule`"));
    }
    let name = cursor.word("the module's name")?;
    let mut all_attributes = Vec::new();
    let attributes = attributes(cursor, &mut all_attributes)?;
    let mut computations = Vec::new();
    while !cursor.at_end() {
        computations.push(computation(cursor, &mut all_attributes)?);
    }
    Ok(RawModule { name, attributes, all_attributes, computations })
}

/// `, name=value` as often as it stands there.
fn attributes<'a>(cursor: &mut Cursor<'a>, all: &mut Vec<Attribute<'a>>) -> Read<Listed> {
    let start = all.len();
    while cursor.eat(",") {
        let name = cursor.word("an attribute's name")?;
        cursor.expect("=")?;
        let value = cursor.value()?;
        if value.start == value.end {
            return Err(cursor.expected(format!("a value of `{name}`")));
        }
        // Name and value become strings of their own where the IR does not model them.
        let n_bytes = name.len() + value.end - value.start + size_of::<(String, String)>();
        cursor.spend(2 * (size_of::<Attribute<'_>>() + n_bytes))?;
        all.push(Attribute { name, value });
    }
    Ok(start..all.len())
}

fn computation<'a>(cursor: &mut Cursor<'a>, all: &mut Vec<Attribute<'a>>) -> Read<RawComputation<'a>> {
    cursor.skip_blank();
    let mut offset = cursor.pos;
    let mut name = cursor.name("a computation")?;
    // A computation may itself be named ENTRY; then no name follows.
    let is_entry = name == "ENTRY" && !matches!(cursor.peek(), Some(b'{' | b'('));
    if is_entry {
        offset = cursor.pos;
        name = cursor.name("the entry computation's name")?;
    }
    if cursor.eat("(") {
        // The program shape repeats what the instructions say.
        cursor.until_closed(")")?;
        cursor.expect("->")?;
        cursor.pass_shape()?;
    }
    cursor.expect("{")?;
    cursor.spend(2 * (size_of::<RawComputation<'_>>() + size_of::<Computation>() + name.len()) + PER_NAME)?;
    let mut instructions = Vec::new();
    let mut root = None;
    while !cursor.eat("}") {
        let (instruction, is_root) = instruction(cursor, all)?;
        if is_root {
            root = Some(instructions.len());
        }
        instructions.push(instruction);
    }
    Ok(RawComputation { name, offset, is_entry, instructions, root, attributes: attributes(cursor, all)? })
}

fn instruction<'a>(cursor: &mut Cursor<'a>, all: &mut Vec<Attribute<'a>>) -> Read<(RawInstruction<'a>, bool)> {
    cursor.skip_blank();
    let mut offset = cursor.pos;
    let mut name = cursor.name("an instruction or `}`")?;
    let is_root = name == "ROOT" && cursor.peek() != Some(b'=');
    if is_root {
        offset = cursor.pos;
        name = cursor.name("the root instruction's name")?;
    }
    cursor.expect("=")?;
    let shape = cursor.shape()?;
    let opcode = cursor.word("an opcode")?;
    let opcode_offset = cursor.pos - opcode.len();
    // The instructions of a computation are counted before they are made, so their own list does not grow.
    cursor.spend(2 * size_of::<RawInstruction<'_>>() + size_of::<Instruction>() + name.len() + PER_NAME)?;
    cursor.expect("(")?;
    let operands = cursor.until_closed(")")?;
    let attributes = attributes(cursor, all)?;
    Ok((RawInstruction { name, offset, shape, opcode, opcode_offset, operands, attributes }, is_root))
}
