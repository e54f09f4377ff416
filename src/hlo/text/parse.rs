//! HLO text → `Module`, in both dialects.
//!
//! Names of instructions and computations may come before their definitions. Attributes that the IR does not model are
//! kept verbatim, in order, and opcodes it does not model become [`Op::Opaque`](crate::hlo::Op). Shapes are not checked
//! against the ops: that is `hlo::verify`. Time is linear in the text; nesting is bounded.

use super::error::{ParseError, ParseErrorKind};
use super::lex::{Cursor, Fault, Read, Span, nearest};
use super::print::METADATA;
use super::read::{Names, Values};
use super::syntax::{self, Attribute, RawComputation, RawInstruction, RawModule};
use super::{number, read, read_common};
use crate::hlo::proto::order::dependencies_first;
use crate::hlo::{
    Alias, AliasKind, CompId, Computation, EntryLayout, InstrId, Instruction, Metadata, Module, Shape, Unmodelled,
};
use std::collections::HashMap;

/// Reads a module. `path` is what errors call the text.
///
/// # Errors
/// The first thing that is not HLO text, with its line and column.
pub fn parse(text: &str, path: &str) -> Result<Module, ParseError> {
    let mut cursor = Cursor::new(text);
    syntax::module(&mut cursor)
        .and_then(|raw| build(cursor, raw))
        .map_err(|Fault { offset, kind }| ParseError::at(path, text, offset, kind))
}

fn build(cursor: Cursor<'_>, raw: RawModule<'_>) -> Read<Module> {
    let mut comp_of = HashMap::new();
    for (at, computation) in raw.computations.iter().enumerate() {
        if comp_of.insert(computation.name, at).is_some() {
            let kind = ParseErrorKind::DuplicateName { what: "computation", name: computation.name.to_string() };
            return Err(Fault { offset: computation.offset, kind });
        }
    }
    let entry = entry(cursor, &raw.computations)?;
    let mut computations = Vec::with_capacity(raw.computations.len());
    for computation in &raw.computations {
        computations.push(build_computation(cursor, computation, &comp_of)?);
    }
    refuse_recursion(&raw.computations, &computations)?;
    let mut module = Module::new(raw.name);
    module.next_name = next_name(&computations);
    module.computations = computations;
    module.entry = entry;
    for attribute in &raw.attributes {
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
            Err(Fault { offset, kind: ParseErrorKind::Entry { n: marked.len() } })
        }
    }
}

fn refuse_recursion(raw: &[RawComputation<'_>], computations: &[Computation]) -> Read<()> {
    let callees: Vec<Vec<usize>> = computations
        .iter()
        .map(|c| c.instructions.iter().flat_map(|instr| instr.op.called()).map(CompId::idx).collect())
        .collect();
    match dependencies_first(callees.len(), |at| callees[at].as_slice()) {
        Ok(_) => Ok(()),
        Err(member) => {
            let kind = ParseErrorKind::Cycle { what: "calls", name: raw[member].name.to_string() };
            Err(Fault { offset: raw[member].offset, kind })
        }
    }
}

fn next_name(computations: &[Computation]) -> u32 {
    let names = computations.iter().flat_map(|computation| &computation.instructions).map(|instr| &instr.name);
    names.filter_map(|name| name.rsplit_once('.')?.1.parse::<u32>().ok()).max().unwrap_or(0).saturating_add(1)
}

fn module_attribute(module: &mut Module, cursor: Cursor<'_>, attribute: &Attribute<'_>) -> Read<()> {
    let mut value = cursor.over(attribute.value);
    match attribute.name {
        "is_scheduled" => module.is_scheduled = value.boolean()?,
        "input_output_alias" => value.sequence("{", "}", |value| {
            module.input_output_alias.push(alias(value)?);
            Ok(())
        })?,
        "buffer_donor" => value.sequence("{", "}", |value| {
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

fn build_computation(
    cursor: Cursor<'_>,
    raw: &RawComputation<'_>,
    comp_of: &HashMap<&str, usize>,
) -> Read<Computation> {
    let mut position = HashMap::with_capacity(raw.instructions.len());
    for (at, instr) in raw.instructions.iter().enumerate() {
        if position.insert(instr.name, at).is_some() {
            let kind = ParseErrorKind::DuplicateName { what: "instruction", name: instr.name.to_string() };
            return Err(Fault { offset: instr.offset, kind });
        }
    }
    if raw.instructions.is_empty() {
        return Err(cursor
            .over(Span { start: raw.offset, end: cursor.end })
            .expected("a computation with instructions"));
    }
    let names = Names { comp_of, position: &position };
    // Operands first, then control predecessors.
    let mut operands = Vec::with_capacity(raw.instructions.len());
    let mut before = Vec::with_capacity(raw.instructions.len());
    for instr in &raw.instructions {
        let own = read::operands(cursor, instr, &names)?;
        let mut all = own.clone();
        let control = instr.attributes.iter().find(|attribute| attribute.name == "control-predecessors");
        if let Some(control) = control {
            let mut value = cursor.over(control.value);
            value.sequence("{", "}", |value| {
                all.push(names.instruction(value)?);
                Ok(())
            })?;
        }
        operands.push(own);
        before.push(all);
    }
    let order = dependencies_first(before.len(), |at| before[at].as_slice()).map_err(|member| {
        let instr = &raw.instructions[member];
        Fault { offset: instr.offset, kind: ParseErrorKind::Cycle { what: "operands", name: instr.name.to_string() } }
    })?;
    let mut new_of = vec![InstrId(0); order.len()];
    order.iter().enumerate().for_each(|(new, &old)| new_of[old] = InstrId(new as u32));
    let mut computation = Computation::new(raw.name);
    computation.instructions.reserve(order.len());
    for &old in &order {
        let renamed = |olds: &[usize]| olds.iter().map(|&old| new_of[old]).collect::<Vec<InstrId>>();
        let own = renamed(&operands[old]);
        let control_predecessors = renamed(&before[old][own.len()..]);
        let lhs = own.first().map(|lhs| computation.instr(*lhs).shape.clone());
        let mut instr = build_instruction(cursor, &raw.instructions[old], &names, lhs.as_ref())?;
        instr.operands = own;
        instr.control_predecessors = control_predecessors;
        computation.instructions.push(instr);
    }
    computation.root = new_of[raw.root.unwrap_or(raw.instructions.len() - 1)];
    for attribute in &raw.attributes {
        let text = cursor.slice(attribute.value).to_string();
        computation.unmodelled.attributes.push((attribute.name.to_string(), text));
    }
    Ok(computation)
}

/// Everything but operands and control predecessors.
fn build_instruction(
    cursor: Cursor<'_>,
    raw: &RawInstruction<'_>,
    names: &Names<'_>,
    lhs: Option<&Shape>,
) -> Read<Instruction> {
    let mut values = Values::new(cursor, raw, names);
    let op = read::op(&mut values, raw, lhs)?;
    let mut instr = Instruction {
        name: raw.name.to_string(),
        op,
        shape: raw.shape.clone(),
        operands: Vec::new(),
        metadata: Metadata::default(),
        sharding: None,
        frontend_attributes: Vec::new(),
        control_predecessors: Vec::new(),
        backend_config: String::new(),
        unmodelled: Unmodelled::default(),
    };
    for attribute in values.rest() {
        let mut value = cursor.over(attribute.value);
        match attribute.name {
            "sharding" => {
                instr.sharding = Some(read_common::sharding(&mut value)?);
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
    Ok(instr)
}

impl Names<'_> {
    /// The instruction named here.
    pub(super) fn instruction(&self, cursor: &mut Cursor<'_>) -> Read<usize> {
        cursor.skip_blank();
        let offset = cursor.pos;
        let name = cursor.name("an instruction's name")?;
        self.position.get(name).copied().ok_or_else(|| {
            let nearest = nearest(name, self.position.keys().copied());
            Fault {
                offset,
                kind: ParseErrorKind::UnknownName {
                    what: "instruction of this computation",
                    name: name.to_string(),
                    nearest,
                },
            }
        })
    }

    /// The computation named here.
    pub(super) fn computation(&self, cursor: &mut Cursor<'_>) -> Read<CompId> {
        cursor.skip_blank();
        let offset = cursor.pos;
        let name = cursor.name("a computation's name")?;
        self.comp_of.get(name).map(|&at| CompId(at as u32)).ok_or_else(|| {
            let nearest = nearest(name, self.comp_of.keys().copied());
            Fault { offset, kind: ParseErrorKind::UnknownName { what: "computation", name: name.to_string(), nearest } }
        })
    }
}
