//! HLO text → `Module`, in both dialects.
//!
//! Names of instructions and computations may come before their definitions. Attributes that the IR does not model are
//! kept verbatim, in order, and opcodes it does not model become [`Op::Opaque`](crate::hlo::Op); one that HLO does not have
//! at all is an error. Shapes are not checked against the ops: that is `hlo::verify`. Time is linear in the text; nesting is bounded.

use super::error::{ParseError, ParseErrorKind};
use super::lex::{Cursor, Fault, Read, Span, nearest};
use super::print::METADATA;
use super::read::{ByName, Names, Values};
use super::syntax::{self, Attribute, RawComputation, RawInstruction, RawModule};
use super::{MAX_BYTES, number, read, read_common};
use crate::hlo::proto::order::dependencies_first;
use crate::hlo::{
    Alias, AliasKind, CompId, Computation, EntryLayout, InstrId, Instruction, Metadata, Module, Shape, Unmodelled,
};
use std::cell::Cell;

/// Bytes that an operand takes in [`Edges`], in the order that is made of them, in the instruction, and where its shape
/// rule makes a tuple of it.
pub(super) const PER_OPERAND: usize = 4 * size_of::<usize>() + size_of::<Shape>();

/// How many of the instructions just above are looked at first for an operand.
const N_NEAR: usize = 4;

/// Reads a module. `path` is what errors call the text.
///
/// # Errors
/// The first thing that is not HLO text, or what takes more than [`MAX_BYTES`] of memory; with line and column.
pub fn parse(text: &str, path: &str) -> Result<Module, ParseError> {
    parse_within(text, path, MAX_BYTES)
}

/// [`parse`] with another bound than [`MAX_BYTES`].
pub(super) fn parse_within(text: &str, path: &str, max_bytes: usize) -> Result<Module, ParseError> {
    let left = Cell::new(max_bytes.saturating_sub(text.len()));
    let mut cursor = Cursor::bounded(text, &left);
    syntax::module(&mut cursor)
        .and_then(|raw| build(cursor, raw))
        .map_err(|Fault { offset, kind }| ParseError::at(path, text, offset, *kind))
}

fn build(cursor: Cursor<'_>, raw: RawModule<'_>) -> Read<Module> {
    let mut comp_of = ByName::default();
    for (at, computation) in raw.computations.iter().enumerate() {
        if comp_of.insert(computation.name, at).is_some() {
            let kind = ParseErrorKind::DuplicateName { what: "computation", name: computation.name.to_string() };
            return Err(Fault::new(computation.offset, kind));
        }
    }
    let entry = entry(cursor, &raw.computations)?;
    let mut computations = Vec::with_capacity(raw.computations.len());
    let mut all_attributes = raw.all_attributes;
    let places: Vec<(usize, &str)> = raw.computations.iter().map(|raw| (raw.offset, raw.name)).collect();
    let mut highest = 0;
    for computation in raw.computations {
        computations.push(build_computation(cursor, computation, &mut all_attributes, &comp_of, &mut highest)?);
    }
    refuse_recursion(&places, &computations)?;
    let mut module = Module::new(raw.name);
    module.next_name = highest.saturating_add(1);
    module.computations = computations;
    module.entry = entry;
    for attribute in &all_attributes[raw.attributes] {
        module_attribute(&mut module, cursor, attribute)?;
    }
    Ok(module)
}

/// The computation marked `ENTRY`; without a mark the only one.
fn entry(cursor: Cursor<'_>, computations: &[RawComputation<'_>]) -> Read<CompId> {
    let marked: Vec<usize> = (0..computations.len()).filter(|&at| computations[at].is_entry).collect();
    match (marked.as_slice(), computations.len()) {
        (&[at], _) => Ok(CompId(at as u32)),
        (&[], 1) => Ok(CompId(0)),
        (marked, _) => {
            let offset = marked.get(1).map_or(cursor.end, |&second| computations[second].offset);
            Err(Fault::new(offset, ParseErrorKind::Entry { n: marked.len() }))
        }
    }
}

/// `raw` has the place and name of each computation.
fn refuse_recursion(raw: &[(usize, &str)], computations: &[Computation]) -> Read<()> {
    let callees: Vec<Vec<usize>> = computations
        .iter()
        .map(|c| c.instructions.iter().flat_map(|instr| instr.op.called()).map(CompId::idx).collect())
        .collect();
    match dependencies_first(callees.len(), |at| callees[at].as_slice()) {
        Ok(_) => Ok(()),
        Err(member) => {
            let kind = ParseErrorKind::Cycle { what: "calls", name: raw[member].1.to_string() };
            Err(Fault::new(raw[member].0, kind))
        }
    }
}

/// The number after a name's last dot.
fn number_at_end(name: &str) -> Option<u32> {
    let n_digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (start, digits) = name.split_at(name.len() - n_digits);
    if start.ends_with('.') { digits.parse().ok() } else { None }
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
            let text = cursor.slice(attribute.value).to_string();
            module.unmodelled.attributes.push((name.to_string(), text));
            return Ok(());
        }
    }
    read::finished(&mut value)
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

/// `{(f32[2]{0})->f32[]}`; `None` if it says what the entry's instructions say.
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
    let own = |id: InstrId| entry.instr(id).shape.with_default_layout();
    let own_parameters: Vec<Shape> = entry.parameters().into_iter().map(own).collect();
    let is_own = own_parameters == parameters && own(entry.root) == result;
    Ok((!is_own).then_some(EntryLayout { parameters, result }))
}

/// `highest` becomes the highest number at the end of a name.
fn build_computation<'a>(
    cursor: Cursor<'a>,
    mut raw: RawComputation<'a>,
    all_attributes: &mut [Attribute<'a>],
    comp_of: &ByName<'_>,
    highest: &mut u32,
) -> Read<Computation> {
    let mut position = ByName::with_capacity_and_hasher(raw.instructions.len(), Default::default());
    for (at, instr) in raw.instructions.iter().enumerate() {
        *highest = number_at_end(instr.name).unwrap_or(0).max(*highest);
        if position.insert(instr.name, at).is_some() {
            let kind = ParseErrorKind::DuplicateName { what: "instruction", name: instr.name.to_string() };
            return Err(Fault::new(instr.offset, kind));
        }
    }
    if raw.instructions.is_empty() {
        return Err(cursor
            .over(Span { start: raw.offset, end: cursor.end })
            .expected("a computation with instructions"));
    }
    let names = Names { comp_of, position: &position };
    let edges = Edges::read(cursor, &raw, all_attributes, &names)?;
    let order = dependencies_first(raw.instructions.len(), |at| edges.all(at)).map_err(|member| {
        let instr = &raw.instructions[member];
        Fault::new(instr.offset, ParseErrorKind::Cycle { what: "operands", name: instr.name.to_string() })
    })?;
    let mut new_of = vec![InstrId(0); order.len()];
    order.iter().enumerate().for_each(|(new, &old)| new_of[old] = InstrId(new as u32));
    let renamed = |olds: &[usize]| olds.iter().map(|&old| new_of[old]).collect::<Vec<InstrId>>();
    let mut computation = Computation::new(raw.name);
    computation.instructions.reserve_exact(order.len());
    for &old in &order {
        let shape = std::mem::replace(&mut raw.instructions[old].shape, Shape::Token);
        let instr = &raw.instructions[old];
        let operands = renamed(edges.operands(old));
        let lhs = operands.first().map(|lhs| &computation.instr(*lhs).shape);
        let mut values = Values::new(cursor, instr, &mut all_attributes[instr.attributes.clone()], &names);
        let op = read::op(&mut values, instr, &shape, lhs)?;
        computation.instructions.push(Instruction {
            name: instr.name.to_string(),
            op,
            shape,
            operands,
            metadata: Metadata::default(),
            sharding: None,
            frontend_attributes: Vec::new(),
            control_predecessors: renamed(edges.control_predecessors(old)),
            backend_config: String::new(),
            unmodelled: Unmodelled::default(),
        });
        if let Some(instr) = computation.instructions.last_mut() {
            other_attributes(cursor, &values, instr)?;
        }
    }
    computation.root = new_of[raw.root.unwrap_or(raw.instructions.len() - 1)];
    for attribute in &all_attributes[raw.attributes] {
        let text = cursor.slice(attribute.value).to_string();
        computation.unmodelled.attributes.push((attribute.name.to_string(), text));
    }
    Ok(computation)
}

/// What must come before each instruction of a computation, by its place in the text: operands, then control
/// predecessors, all in one list.
struct Edges {
    list: Vec<usize>,
    /// For each instruction where its operands begin, and where its control predecessors do; then the end.
    starts: Vec<(usize, usize)>,
}

impl Edges {
    fn read(
        cursor: Cursor<'_>,
        raw: &RawComputation<'_>,
        all_attributes: &[Attribute<'_>],
        names: &Names<'_>,
    ) -> Read<Edges> {
        let mut edges = Edges { list: Vec::new(), starts: Vec::with_capacity(raw.instructions.len() + 1) };
        for (at, instr) in raw.instructions.iter().enumerate() {
            let before = &raw.instructions[..at];
            let start = edges.list.len();
            read::operands(cursor, instr, names, before, &mut edges.list)?;
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
                instr.sharding = Some(Box::new(read_common::sharding(&mut value)?));
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
            name => {
                let text = cursor.slice(attribute.value).to_string();
                instr.unmodelled.attributes.push((name.to_string(), text));
                continue;
            }
        }
        read::finished(&mut value)?;
    }
    Ok(())
}

impl Names<'_> {
    /// The instruction named here; `before` are those above it.
    pub(super) fn instruction(&self, cursor: &mut Cursor<'_>, before: &[RawInstruction<'_>]) -> Read<usize> {
        cursor.skip_blank();
        let offset = cursor.pos;
        let name = cursor.name("an instruction's name")?;
        // Most operands stand a few lines above, and a look there is cheaper than one into a large table.
        let near = &before[before.len().saturating_sub(N_NEAR)..];
        if let Some(at) = near.iter().rposition(|instr| instr.name == name) {
            return Ok(before.len() - near.len() + at);
        }
        self.position.get(name).copied().ok_or_else(|| {
            let nearest = nearest(name, self.position.keys().copied());
            let what = "instruction of this computation";
            Fault::new(offset, ParseErrorKind::UnknownName { what, name: name.to_string(), nearest })
        })
    }

    /// The computation named here.
    pub(super) fn computation(&self, cursor: &mut Cursor<'_>) -> Read<CompId> {
        cursor.skip_blank();
        let offset = cursor.pos;
        let name = cursor.name("a computation's name")?;
        self.comp_of.get(name).map(|&at| CompId(at as u32)).ok_or_else(|| {
            let nearest = nearest(name, self.comp_of.keys().copied());
            Fault::new(offset, ParseErrorKind::UnknownName { what: "computation", name: name.to_string(), nearest })
        })
    }
}
