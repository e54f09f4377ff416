//! The contents of an instruction's parentheses and the attributes behind them, as long as the op is not known: names,
//! operands, and attributes by name.

use super::error::ParseErrorKind;
use super::forms::{finished, named, window};
use super::lex::{Cursor, Fault, Read, Span};
use super::syntax::{Attribute, RawInstruction};
use crate::ops::{OperandPrecision, PrecisionConfig, Window};
use crate::words::nearest;
use crate::{CompId, Shape};
use std::cell::RefCell;
use std::collections::HashMap;

/// Bytes of memory per operand: in the edges of its computation, in the order of the instructions, in the instruction,
/// and in a tuple that a shape rule returns.
pub(super) const PER_OPERAND: usize = 4 * size_of::<usize>() + size_of::<Shape>();

/// How many of the preceding instructions are searched first for an operand.
const N_NEAR: usize = 4;

/// Positions by name. Every operand is looked up here, so the hash is a fast one.
pub(super) type ByName<'a> = HashMap<&'a str, usize, foldhash::fast::RandomState>;

/// The names that an instruction can refer to.
pub(super) struct Names<'a> {
    /// Computations of the module.
    pub(super) comp_of: &'a ByName<'a>,
    /// Records references to computations that may begin in a later part; `None` in the last part.
    pub(super) later: Option<&'a Later>,
    /// Instructions of the computation.
    pub(super) position: &'a ByName<'a>,
    /// The number of instructions of the computation in earlier parts of the text.
    pub(super) base: usize,
}

/// The attributes of an instruction. One that was read loses its name, which otherwise is never empty.
pub(super) struct Values<'a, 'l> {
    pub(super) cursor: Cursor<'a>,
    pub(super) raw: &'l RawInstruction<'a>,
    names: &'l Names<'l>,
    attributes: &'l mut [Attribute<'a>],
}

impl<'a, 'l> Values<'a, 'l> {
    pub(super) fn new(
        cursor: Cursor<'a>,
        raw: &'l RawInstruction<'a>,
        attributes: &'l mut [Attribute<'a>],
        names: &'l Names<'l>,
    ) -> Values<'a, 'l> {
        Values { cursor, raw, names, attributes }
    }

    /// The attributes that were not read, in order.
    pub(super) fn rest(&self) -> impl Iterator<Item = &Attribute<'a>> {
        self.attributes.iter().filter(|attribute| !attribute.name.is_empty())
    }

    pub(super) fn peek(&self, name: &str) -> Option<Cursor<'a>> {
        let attribute = self.attributes.iter().find(|attribute| attribute.name == name)?;
        Some(self.cursor.over(attribute.value))
    }

    /// Reads an attribute completely, if it is present.
    pub(super) fn maybe<T>(&mut self, name: &str, read: impl FnOnce(&mut Cursor<'a>) -> Read<T>) -> Read<Option<T>> {
        let Some(attribute) = self.attributes.iter_mut().find(|attribute| attribute.name == name) else {
            return Ok(None);
        };
        attribute.name = "";
        let mut value = self.cursor.over(attribute.value);
        let result = read(&mut value)?;
        finished(&mut value)?;
        Ok(Some(result))
    }

    /// Reads a required attribute.
    pub(super) fn need<T>(&mut self, name: &'static str, read: impl FnOnce(&mut Cursor<'a>) -> Read<T>) -> Read<T> {
        self.maybe(name, read)?.ok_or_else(|| {
            let kind = ParseErrorKind::MissingAttribute { opcode: self.raw.opcode.to_string(), attribute: name };
            Fault::new(self.raw.offset, kind)
        })
    }

    pub(super) fn ints(&mut self, name: &str) -> Read<Vec<i64>> {
        Ok(self.maybe(name, |value| value.ints("{", "}"))?.unwrap_or_default())
    }

    pub(super) fn flag(&mut self, name: &str) -> Read<bool> {
        Ok(self.maybe(name, |value| value.boolean())?.unwrap_or(false))
    }

    pub(super) fn int_or(&mut self, name: &str, default: i64) -> Read<i64> {
        Ok(self.maybe(name, |value| value.int())?.unwrap_or(default))
    }

    pub(super) fn called(&mut self, name: &'static str) -> Read<CompId> {
        let names = self.names;
        self.need(name, |value| names.computation(value))
    }

    /// `{f, g}` or `f`.
    pub(super) fn all_called(&mut self, name: &str) -> Read<Option<Vec<CompId>>> {
        let names = self.names;
        self.maybe(name, |value| {
            let mut comps = Vec::new();
            if value.peek() == Some(b'{') {
                value.sequence("{", "}", |value| {
                    value.spend(2 * size_of::<CompId>())?;
                    comps.push(names.computation(value)?);
                    Ok(())
                })?;
            } else {
                comps.push(names.computation(value)?);
            }
            Ok(comps)
        })
    }

    /// The only dimension of `dimensions={n}`.
    pub(super) fn only_dimension(&mut self) -> Read<i64> {
        self.need("dimensions", |value| {
            value.expect("{")?;
            let dimension = value.int()?;
            value.expect("}")?;
            Ok(dimension)
        })
    }

    pub(super) fn window(&mut self) -> Read<Window> {
        Ok(self.maybe("window", window)?.unwrap_or_default())
    }

    pub(super) fn precision(&mut self) -> Read<PrecisionConfig> {
        let operand_precision = self.maybe("operand_precision", |value| {
            let mut all = Vec::new();
            value.sequence("{", "}", |value| {
                value.spend(2 * size_of::<OperandPrecision>())?;
                all.push(named(value, OperandPrecision::ALL, |item| item.name())?);
                Ok(())
            })?;
            Ok(all)
        })?;
        let algorithms = &crate::ops::dot::ALGORITHMS;
        let algorithm = self.maybe("algorithm", |value| named(value, algorithms, |name| name))?;
        Ok(PrecisionConfig {
            // Text omits the precision if it is the default for all operands; XLA's parser fills it in too.
            operand_precision: operand_precision.unwrap_or(vec![OperandPrecision::Default; 2]),
            algorithm: algorithm.map(str::to_string),
        })
    }
}

/// Appends the positions of the operands: `x, %y, f32[2]{0} %z`. `before` are the instructions above.
pub(super) fn operands(
    cursor: Cursor<'_>,
    raw: &RawInstruction<'_>,
    names: &Names<'_>,
    before: &[RawInstruction<'_>],
    operands: &mut Vec<usize>,
) -> Read<()> {
    if matches!(raw.opcode, "parameter" | "constant") {
        return Ok(());
    }
    let mut value = cursor.over(raw.operands);
    while !value.at_end() {
        skip_operand_shape(&mut value)?;
        value.spend(PER_OPERAND)?;
        operands.push(names.instruction(&mut value, before)?);
        if !value.eat(",") {
            finished(&mut value)?;
        }
    }
    Ok(())
}

/// Skips the shape that the long dialect puts before an operand.
fn skip_operand_shape(value: &mut Cursor<'_>) -> Read<()> {
    let before = *value;
    let is_shape = match value.peek() {
        Some(b'(') => true,
        Some(b'%') => false,
        _ => {
            value.word_or_empty();
            value.text[value.pos..value.end].starts_with('[')
        }
    };
    *value = before;
    if is_shape { value.pass_shape() } else { Ok(()) }
}

impl Names<'_> {
    /// The instruction named here; `before` are those above it.
    pub(super) fn instruction(&self, cursor: &mut Cursor<'_>, before: &[RawInstruction<'_>]) -> Read<usize> {
        cursor.skip_blank();
        let offset = cursor.pos;
        let name = cursor.name("an instruction's name")?;
        // Most operands are defined a few lines above, and searching these is cheaper than a lookup in a large table.
        let near = &before[before.len().saturating_sub(N_NEAR)..];
        if let Some(at) = near.iter().rposition(|instr| instr.name == name) {
            return Ok(self.base + before.len() - near.len() + at);
        }
        self.position.get(name).copied().ok_or_else(|| {
            let nearest = nearest(name, self.position.keys().copied()).map(str::to_string);
            let what = "instruction of this computation";
            Fault::new(offset, ParseErrorKind::UnknownName { what, name: name.to_string(), nearest })
        })
    }

    /// The computation named here.
    pub(super) fn computation(&self, cursor: &mut Cursor<'_>) -> Read<CompId> {
        cursor.skip_blank();
        let offset = cursor.pos;
        let name = cursor.name("a computation's name")?;
        match (self.comp_of.get(name), self.later) {
            (Some(&at), _) => Ok(CompId(at as u32)),
            (None, Some(later)) => {
                cursor.spend(2 * size_of::<Span>())?;
                Ok(later.add(Span { start: cursor.pos - name.len(), end: cursor.pos }))
            }
            (None, None) => Err(unknown_computation(self.comp_of, name, offset)),
        }
    }
}

fn unknown_computation(comp_of: &ByName<'_>, name: &str, offset: usize) -> Fault {
    let nearest = nearest(name, comp_of.keys().copied()).map(str::to_string);
    Fault::new(offset, ParseErrorKind::UnknownName { what: "computation", name: name.to_string(), nearest })
}

/// Computations that were referenced in the parts so far, and do not begin in any of them. Each reference gets a
/// separate id until all parts are read.
#[derive(Default)]
pub(super) struct Later(RefCell<Vec<Span>>);

impl Later {
    /// The first of these ids; as memory is bounded, a module cannot have as many computations.
    pub(super) const FIRST: u32 = 1 << 31;

    fn add(&self, name: Span) -> CompId {
        let mut names = self.0.borrow_mut();
        names.push(name);
        CompId(Later::FIRST + (names.len() - 1) as u32)
    }

    /// The final id of the computation.
    pub(super) fn resolve(&self, cursor: Cursor<'_>, comp_of: &ByName<'_>, comp: CompId) -> Read<CompId> {
        let Some(at) = comp.0.checked_sub(Later::FIRST) else { return Ok(comp) };
        let span = self.0.borrow()[at as usize];
        let name = cursor.slice(span);
        match comp_of.get(name) {
            Some(&at) => Ok(CompId(at as u32)),
            None => Err(unknown_computation(comp_of, name, span.start)),
        }
    }
}
