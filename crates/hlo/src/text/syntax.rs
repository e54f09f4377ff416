//! The first pass over HLO text: finds the computations and instructions, their names, shapes and opcodes, and where
//! their operands and attributes are. The second pass (`computation`) resolves names and reads values.

use super::error::ParseErrorKind;
use super::lex::{Cursor, Fault, Read, Span};
use super::names::Names;
use crate::{Computation, Instruction, Shape};

/// Bytes of memory per name, besides the text: in the table of names, and in the order of the instructions.
const PER_NAME: usize = 160;

/// The text before the first computation.
pub(super) struct Header<'a> {
    pub(super) name: &'a str,
    pub(super) attributes: Vec<Attribute<'a>>,
}

/// A part of the text: consecutive computations; the first may begin in the part before, the last end in the next.
///
/// The instructions of all of them are in one list, the attributes of everything in another, and [`Listed`] ranges
/// refer to them: a list for each would cost more than all the rest.
#[derive(Default)]
pub(super) struct TextPart<'a> {
    pub(super) instructions: Vec<RawInstruction<'a>>,
    pub(super) attributes: Vec<Attribute<'a>>,
    pub(super) pieces: Vec<Piece<'a>>,
}

/// A computation, or its piece in one part.
pub(super) struct Piece<'a> {
    /// `None` if it began in the part before.
    pub(super) head: Option<Head<'a>>,
    /// Range of [`TextPart::instructions`].
    pub(super) instructions: Listed,
    /// Which of these instructions is marked `ROOT`.
    pub(super) root: Option<usize>,
    /// Range of [`TextPart::attributes`]; `None` if it continues in the next part.
    pub(super) attributes: Option<Listed>,
}

impl Piece<'_> {
    /// Whether the whole computation is in this part.
    pub(super) fn is_whole(&self) -> bool {
        self.head.is_some() && self.attributes.is_some()
    }
}

/// The text before a computation's instructions.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) name: &'a str,
    pub(super) offset: usize,
    pub(super) is_entry: bool,
    /// The shape after `->`, which repeats the root's.
    pub(super) result: Option<Span>,
}

/// An instruction.
pub(super) struct RawInstruction<'a> {
    pub(super) name: &'a str,
    pub(super) offset: usize,
    pub(super) shape: Shape,
    pub(super) opcode: &'a str,
    pub(super) opcode_offset: usize,
    /// The text between the parentheses after the opcode.
    pub(super) operands: Span,
    pub(super) attributes: Listed,
}

/// A range of a list of [`TextPart`].
pub(super) type Listed = std::ops::Range<usize>;

/// `name=value`.
#[derive(Clone, Copy)]
pub(super) struct Attribute<'a> {
    pub(super) name: &'a str,
    pub(super) value: Span,
}

/// Reads the module's header.
pub(super) fn header<'a>(cursor: &mut Cursor<'a>) -> Read<Header<'a>> {
    if cursor.word_or_empty() != "HloModule" {
        cursor.pos = 0;
        return Err(cursor.expected("`HloModule`"));
    }
    let name = cursor.word("the module's name")?;
    let mut list = Vec::new();
    attributes(cursor, &mut list)?;
    Ok(Header { name, attributes: list })
}

impl<'a> TextPart<'a> {
    /// Reads the next part, in place of this one: to the end of the text, or to the first place at or behind `stop`
    /// where an instruction can begin.
    pub(super) fn read(&mut self, cursor: &mut Cursor<'a>, stop: usize) -> Read<()> {
        let mut is_inside = self.is_open();
        self.instructions.clear();
        self.attributes.clear();
        self.pieces.clear();
        let mut head = None;
        while is_inside || !cursor.at_end() {
            if !is_inside {
                head = Some(computation(cursor)?);
            }
            is_inside = false;
            let start = self.instructions.len();
            let mut root = None;
            let attributes = loop {
                if !cursor.at_end() && cursor.pos >= stop {
                    break None;
                }
                if cursor.eat("}") {
                    break Some(attributes(cursor, &mut self.attributes)?);
                }
                let (instruction, is_root) = instruction(cursor, &mut self.attributes)?;
                if is_root && root.is_some() {
                    return Err(Fault::new(instruction.offset, ParseErrorKind::SecondRoot));
                }
                if is_root {
                    root = Some(self.instructions.len() - start);
                }
                self.instructions.push(instruction);
            };
            let is_open = attributes.is_none();
            self.pieces.push(Piece { head, instructions: start..self.instructions.len(), root, attributes });
            if is_open {
                break;
            }
        }
        Ok(())
    }

    /// Whether the last computation continues in the next part.
    pub(super) fn is_open(&self) -> bool {
        self.pieces.last().is_some_and(|piece| piece.attributes.is_none())
    }
}

/// Any number of `, name=value`, with unique names.
fn attributes<'a>(cursor: &mut Cursor<'a>, all: &mut Vec<Attribute<'a>>) -> Read<Listed> {
    let start = all.len();
    let mut names = Names::default();
    while cursor.eat(",") {
        cursor.skip_blank();
        let offset = cursor.pos;
        let name = cursor.word("an attribute's name")?;
        cursor.expect("=")?;
        let value = cursor.value()?;
        if value.start == value.end {
            return Err(cursor.expected(format!("a value of `{name}`")));
        }
        names.insert(name, "attribute", offset)?;
        // If the IR does not model it, name and value become strings.
        let n_bytes = name.len() + value.end - value.start + size_of::<(String, String)>();
        cursor.spend(2 * (size_of::<Attribute<'_>>() + n_bytes))?;
        all.push(Attribute { name, value });
    }
    Ok(start..all.len())
}

fn computation<'a>(cursor: &mut Cursor<'a>) -> Read<Head<'a>> {
    cursor.skip_blank();
    let mut offset = cursor.pos;
    let mut name = cursor.name("a computation")?;
    // A computation may itself be named ENTRY; then no name follows.
    let is_entry = name == "ENTRY" && !matches!(cursor.peek(), Some(b'{' | b'('));
    if is_entry {
        offset = cursor.pos;
        name = cursor.name("the entry computation's name")?;
    }
    let mut result = None;
    if cursor.eat("(") {
        // The parameters repeat the instructions' shapes.
        cursor.until_closed(")")?;
        cursor.expect("->")?;
        cursor.skip_blank();
        let start = cursor.pos;
        cursor.pass_shape()?;
        result = Some(Span { start, end: cursor.pos });
    }
    cursor.expect("{")?;
    cursor.spend(2 * (size_of::<Piece<'_>>() + size_of::<Computation>() + name.len()) + PER_NAME)?;
    Ok(Head { name, offset, is_entry, result })
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
    // The instructions of a computation are counted before they are created, so their list does not grow.
    cursor.spend(2 * size_of::<RawInstruction<'_>>() + size_of::<Instruction>() + name.len() + PER_NAME)?;
    cursor.expect("(")?;
    let operands = cursor.until_closed(")")?;
    let attributes = attributes(cursor, all)?;
    Ok((RawInstruction { name, offset, shape, opcode, opcode_offset, operands, attributes }, is_root))
}
