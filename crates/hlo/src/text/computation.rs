//! The second pass over HLO text: builds the instructions of computations, resolving names and reading values.
//!
//! Text comes in parts, and a computation may begin in one and end in another. Only within a single part may
//! instructions be out of order: they are sorted so that operands come first.

use super::error::ParseErrorKind;
use super::forms::finished;
use super::lex::{Cursor, Fault, Read, Span};
use super::print::METADATA;
use super::syntax::{Attribute, Head, Piece, RawInstruction, TextPart};
use super::values::{ByName, Later, Names, PER_OPERAND, Values, operands};
use super::{number, op, read_common, sharding};
use crate::proto::order::dependencies_first;
use crate::unmodelled::may_have;
use crate::{CompId, Computation, DType, InstrId, Instruction, Metadata, Shape, Unmodelled};

/// The instructions of a computation so far, by name, with the dtypes of their results.
#[derive(Default)]
struct Known<'a> {
    position: ByName<'a>,
    dtypes: Vec<Option<DType>>,
}

impl<'a> Known<'a> {
    fn add(&mut self, instructions: &[RawInstruction<'a>]) -> Read<()> {
        for instr in instructions {
            if self.position.insert(instr.name, self.dtypes.len()).is_some() {
                let kind = ParseErrorKind::DuplicateName { what: "instruction", name: instr.name.to_string() };
                return Err(Fault::new(instr.offset, kind));
            }
            self.dtypes.push(instr.shape.dtype());
        }
        Ok(())
    }
}

/// A computation, all or some of whose instructions are built.
#[derive(Default)]
struct Built {
    instructions: Vec<Instruction>,
    /// The instruction marked `ROOT`.
    root: Option<InstrId>,
    /// The last instruction of the text.
    last: Option<InstrId>,
    attributes: Vec<(String, String)>,
    /// The computations that it calls.
    calls: Vec<CompId>,
    /// The instructions that call computations of [`Later`].
    call_later: Vec<usize>,
}

/// The computations so far.
#[derive(Default)]
pub(super) struct Computations<'a> {
    heads: Vec<Head<'a>>,
    comp_of: ByName<'a>,
    built: Vec<Built>,
    /// The instructions of the last computation that was built.
    known: Known<'a>,
    /// The highest number at the end of an instruction's name.
    highest: u32,
    later: Later,
    /// The most instructions for which room may be reserved before they are known to exist.
    room: usize,
}

impl<'a> Computations<'a> {
    /// The computations of a module that may take `max_bytes` of memory.
    pub(super) fn within(max_bytes: usize) -> Computations<'a> {
        Computations { room: max_bytes / (4 * size_of::<Instruction>()), ..Computations::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Adds the computations that begin in a part, by name.
    pub(super) fn announce(&mut self, part: &TextPart<'a>) -> Read<()> {
        for head in part.pieces.iter().filter_map(|piece| piece.head) {
            if self.comp_of.insert(head.name, self.heads.len()).is_some() {
                let kind = ParseErrorKind::DuplicateName { what: "computation", name: head.name.to_string() };
                return Err(Fault::new(head.offset, kind));
            }
            self.heads.push(head);
        }
        Ok(())
    }

    /// The computation marked `ENTRY`; without a mark the only one.
    pub(super) fn entry(&self, cursor: Cursor<'_>) -> Read<CompId> {
        let marked: Vec<usize> = (0..self.heads.len()).filter(|&at| self.heads[at].is_entry).collect();
        match (marked.as_slice(), self.heads.len()) {
            (&[at], _) => Ok(CompId(at as u32)),
            (&[], 1) => Ok(CompId(0)),
            (marked, _) => {
                let offset = marked.get(1).map_or(cursor.end, |&second| self.heads[second].offset);
                Err(Fault::new(offset, ParseErrorKind::Entry { n: marked.len(), n_all: self.heads.len() }))
            }
        }
    }

    /// Builds the instructions of an announced part. The cursor is where the part ends.
    pub(super) fn build(&mut self, mut cursor: Cursor<'a>, part: &mut TextPart<'a>) -> Read<()> {
        let is_last = cursor.at_end();
        let TextPart { instructions, attributes, pieces } = part;
        for piece in pieces {
            let raw = &mut instructions[piece.instructions.clone()];
            if let Some(head) = piece.head {
                self.built.push(Built::default());
                self.known = Known::default();
                self.make_room(cursor, head, raw.len(), piece.is_whole());
            }
            let base = self.known.dtypes.len();
            self.known.add(raw)?;
            let Some(built) = self.built.last_mut() else { continue };
            if piece.attributes.is_some() && self.known.dtypes.is_empty() {
                let start = self.heads[self.built.len() - 1].offset;
                let span = Span { start, end: cursor.end };
                return Err(cursor.over(span).expected("a computation with instructions"));
            }
            let later = if is_last { None } else { Some(&self.later) };
            let names = Names { comp_of: &self.comp_of, later, position: &self.known.position, base };
            built.add(cursor, piece, raw, attributes, &self.known.dtypes, &names)?;
            let highest = raw.iter().filter_map(|instr| number_at_end(instr.name)).max();
            self.highest = self.highest.max(highest.unwrap_or(0));
        }
        Ok(())
    }

    /// Reserves room for the instructions of a computation, whose first part has `n`: lists of hundreds of megabytes
    /// should not be copied to grow.
    fn make_room(&mut self, cursor: Cursor<'_>, head: Head<'_>, n: usize, is_whole: bool) {
        let Some(built) = self.built.last_mut() else { return };
        let mut n_expected = n;
        if !is_whole {
            // As many as there are if the rest of the text is like this part; an instruction hardly ever takes less
            // than 64 bytes.
            let n_bytes_each = ((cursor.pos - head.offset) / n.max(1)).max(64);
            n_expected = ((cursor.end - head.offset) / n_bytes_each).min(self.room).max(n);
            self.room -= n_expected.min(self.room);
        }
        built.instructions.reserve_exact(n_expected);
        self.known.position.reserve(n_expected);
        self.known.dtypes.reserve(n_expected);
    }

    /// The computations, and the next number for a name.
    pub(super) fn finish(mut self, cursor: Cursor<'_>) -> Read<(Vec<Computation>, u32)> {
        for Built { instructions, call_later, .. } in &mut self.built {
            for &at in &*call_later {
                let mut result = Ok(());
                instructions[at].op.for_each_called_mut(&mut |comp| match self.later.resolve(
                    cursor,
                    &self.comp_of,
                    *comp,
                ) {
                    Ok(resolved) => *comp = resolved,
                    Err(fault) => result = Err(fault),
                });
                result?;
            }
        }
        let mut calls = Vec::with_capacity(self.built.len());
        for built in &self.built {
            let resolve = |&comp: &CompId| self.later.resolve(cursor, &self.comp_of, comp).map(CompId::idx);
            calls.push(built.calls.iter().map(resolve).collect::<Read<Vec<usize>>>()?);
        }
        dependencies_first(calls.len(), |at| calls[at].as_slice()).map_err(|member| {
            let Head { offset, name, .. } = self.heads[member];
            Fault::new(offset, ParseErrorKind::Cycle { what: "calls", name: name.to_string() })
        })?;
        for (head, built) in self.heads.iter().zip(&self.built) {
            built.check_result(cursor, head)?;
        }
        let finish = |(head, mut built): (Head<'_>, Built)| {
            built.instructions.shrink_to_fit();
            Computation {
                name: head.name.to_string(),
                root: built.root(),
                instructions: built.instructions,
                unmodelled: Unmodelled { attributes: built.attributes, ..Unmodelled::default() },
            }
        };
        Ok((self.heads.into_iter().zip(self.built).map(finish).collect(), self.highest.saturating_add(1)))
    }
}

impl Built {
    /// The marked instruction; without a mark, the last in the text.
    fn root(&self) -> InstrId {
        self.root.or(self.last).unwrap_or(InstrId(0))
    }

    /// Whether the shape after `->` is the root's.
    fn check_result(&self, cursor: Cursor<'_>, head: &Head<'_>) -> Read<()> {
        let (Some(span), Some(root)) = (head.result, self.instructions.get(self.root().idx())) else { return Ok(()) };
        let stated = cursor.over(span).shape()?;
        if stated.is_compatible(&root.shape) {
            return Ok(());
        }
        let expected = format!("the shape of its root %{}, {}", root.name, root.shape.without_layout());
        let measured = stated.without_layout().to_string();
        Err(Fault::new(span.start, ParseErrorKind::Expected { found: measured, expected }))
    }

    /// Adds the next instructions: `raw`, the computation's piece in a part. `dtypes` are the results' dtypes of all
    /// so far.
    fn add<'a>(
        &mut self,
        cursor: Cursor<'a>,
        piece: &Piece<'a>,
        raw: &mut [RawInstruction<'a>],
        all_attributes: &mut [Attribute<'a>],
        dtypes: &[Option<DType>],
        names: &Names<'_>,
    ) -> Read<()> {
        if let (Some(_), Some(second)) = (self.root, piece.root) {
            return Err(Fault::new(raw[second].offset, ParseErrorKind::SecondRoot));
        }
        let edges = Edges::read(cursor, raw, all_attributes, names)?;
        let order = edges.order(raw, piece.is_whole(), names.base)?;
        let new_of = order.as_ref().map(|order| {
            let mut new_of = vec![InstrId(0); order.len()];
            order.iter().enumerate().for_each(|(new, &old)| new_of[old] = InstrId(new as u32));
            new_of
        });
        let renamed = |old: usize| new_of.as_ref().map_or(InstrId(old as u32), |new_of| new_of[old]);
        let all_renamed = |olds: &[usize]| olds.iter().map(|&old| renamed(old)).collect::<Vec<InstrId>>();
        self.root = piece.root.map(|root| renamed(names.base + root)).or(self.root);
        self.last = raw.len().checked_sub(1).map(|last| renamed(names.base + last)).or(self.last);
        for new in 0..raw.len() {
            let old = order.as_ref().map_or(new, |order| order[new]);
            let shape = std::mem::replace(&mut raw[old].shape, Shape::Token);
            let instr = &raw[old];
            let operands = edges.operands(old);
            let lhs = operands.first().and_then(|&lhs| dtypes[lhs]);
            let mut values = Values::new(cursor, instr, &mut all_attributes[instr.attributes.clone()], names);
            let op = op::op(&mut values, instr, &shape, lhs)?;
            let calls = op.called();
            if calls.iter().any(|comp| comp.0 >= Later::FIRST) {
                self.call_later.push(self.instructions.len());
            }
            self.calls.extend(calls);
            let (name, operands) = (instr.name.to_string(), all_renamed(operands));
            let control_predecessors = all_renamed(edges.control_predecessors(old));
            let plain = Instruction::plain(name, op, shape, operands, Metadata::default());
            self.instructions.push(Instruction { control_predecessors, ..plain });
            if let Some(instr) = self.instructions.last_mut() {
                other_attributes(cursor, &values, instr)?;
            }
        }
        for attribute in &all_attributes[piece.attributes.clone().unwrap_or_default()] {
            let text = cursor.slice(attribute.value).to_string();
            self.attributes.push((attribute.name.to_string(), text));
        }
        Ok(())
    }
}

/// The number after a name's last dot.
fn number_at_end(name: &str) -> Option<u32> {
    let n_digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (start, digits) = name.split_at(name.len() - n_digits);
    if start.ends_with('.') { digits.parse().ok() } else { None }
}

/// The instructions that must come before each instruction of a computation, by place in the text: operands, then
/// control predecessors, all in one list.
struct Edges {
    list: Vec<usize>,
    /// For each instruction where its operands begin, and where its control predecessors begin; then the end.
    starts: Vec<(usize, usize)>,
}

impl Edges {
    fn read(
        cursor: Cursor<'_>,
        raw: &[RawInstruction<'_>],
        all_attributes: &[Attribute<'_>],
        names: &Names<'_>,
    ) -> Read<Edges> {
        let mut edges = Edges { list: Vec::new(), starts: Vec::with_capacity(raw.len() + 1) };
        for (at, instr) in raw.iter().enumerate() {
            let before = &raw[..at];
            let start = edges.list.len();
            operands(cursor, instr, names, before, &mut edges.list)?;
            edges.starts.push((start, edges.list.len()));
            let attributes = &all_attributes[instr.attributes.clone()];
            if let Some(control) = attributes.iter().find(|attribute| attribute.name == "control-predecessors") {
                let mut value = cursor.over(control.value);
                value.sequence("{", "}", |value| {
                    value.spend(PER_OPERAND)?;
                    edges.list.push(names.instruction(value, before)?);
                    Ok(())
                })?;
            }
        }
        edges.starts.push((edges.list.len(), edges.list.len()));
        Ok(edges)
    }

    /// The order in which dependencies come first; `None` if that is the text's.
    ///
    /// If only a piece of the computation is known, any other order is as bad as a cycle.
    fn order(&self, raw: &[RawInstruction<'_>], is_whole: bool, base: usize) -> Read<Option<Vec<usize>>> {
        if (0..raw.len()).all(|at| self.all(at).iter().all(|&dependency| dependency < base + at)) {
            return Ok(None);
        }
        let order = if is_whole { dependencies_first(raw.len(), |at| self.all(at)) } else { Err(0) };
        order.map(Some).map_err(|member| {
            let instr = &raw[member];
            Fault::new(instr.offset, ParseErrorKind::Cycle { what: "operands", name: instr.name.to_string() })
        })
    }

    fn all(&self, at: usize) -> &[usize] {
        &self.list[self.starts[at].0..self.starts[at + 1].0]
    }

    fn operands(&self, at: usize) -> &[usize] {
        &self.list[self.starts[at].0..self.starts[at].1]
    }

    fn control_predecessors(&self, at: usize) -> &[usize] {
        &self.list[self.starts[at].1..self.starts[at + 1].0]
    }
}

/// The attributes that any instruction may have, and those that the IR does not model.
fn other_attributes(cursor: Cursor<'_>, values: &Values<'_, '_>, instr: &mut Instruction) -> Read<()> {
    for attribute in values.rest() {
        let mut value = cursor.over(attribute.value);
        match attribute.name {
            "sharding" => {
                instr.sharding = Some(Box::new(sharding::read(&mut value)?));
            }
            "frontend_attributes" => instr.frontend_attributes = read_common::frontend_attributes(&mut value)?,
            "control-predecessors" => continue,
            "metadata" => {
                let rest = read_common::metadata(&mut value, &mut instr.metadata)?;
                if !rest.is_empty() {
                    instr.unmodelled.attributes.push((METADATA.to_string(), rest.join(" ")));
                }
            }
            "backend_config" => {
                let text = cursor.slice(attribute.value);
                instr.backend_config = if number::is_json_dict(text) { text.to_string() } else { value.string()? };
                continue;
            }
            name if !may_have(&instr.op, name) => {
                let kind =
                    ParseErrorKind::NoAttribute { opcode: instr.op.opcode().into_owned(), attribute: name.to_string() };
                return Err(Fault::new(cursor.offset_of(name), kind));
            }
            name => {
                let text = cursor.slice(attribute.value).to_string();
                instr.unmodelled.attributes.push((name.to_string(), text));
                continue;
            }
        }
        finished(&mut value)?;
    }
    Ok(())
}
