//! Splits an entry computation into programs of one instruction each, and makes modules of such programs.
//!
//! The value of an instruction then depends on its operands alone: no neighbour is fused or folded into it, or changes
//! the order of its sums, and equal instructions of equal shapes share a program, whatever their names and positions.
//!
//! Some values cannot pass between programs: arrays of a dynamic size, tokens, opaque values, and values that depend on
//! layouts (`bitcast`) or on how their operand began (`…-done`, `…-update`). The instructions from where such a value
//! is computed to its last reader form one group, a program of several instructions.

use std::collections::{BTreeMap, BTreeSet};

use super::flush;
use bf16scope_hlo::{ArrayShape, CompId, DType, InstrId, Instruction, Metadata, Module, Op, Shape};

/// Instructions of an entry that run as one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// In the entry's order; a parameter is alone in its group.
    pub ids: Vec<InstrId>,
    /// The values from outside that they read, each once, in the order of reading.
    pub inputs: Vec<InstrId>,
}

/// Whether a value of this shape can leave a program: whether it consists of plain arrays.
fn can_leave(shape: &Shape) -> bool {
    shape.leaves().iter().all(|leaf| leaf_can_leave(leaf))
}

fn leaf_can_leave(leaf: &Shape) -> bool {
    matches!(leaf, Shape::Array(array) if !array.has_dynamic())
}

/// Whether an instruction must be in the same program as its operands, or as its readers.
fn is_bound(op: &Op) -> bool {
    let opcode = op.opcode();
    opcode == "bitcast" || opcode.ends_with("-done") || opcode.ends_with("-update")
}

/// The groups of an entry, each after the groups whose values it reads.
pub(super) fn groups(module: &Module) -> Vec<Group> {
    let entry = module.entry();
    let is_parameter = |id: InstrId| matches!(entry.instr(id).op, Op::Parameter { .. });
    // For each instruction the last one that must be in its program.
    let mut last: Vec<usize> = (0..entry.instructions.len()).collect();
    for id in entry.ids() {
        let instr = entry.instr(id);
        for &operand in &instr.operands {
            let producer = entry.instr(operand);
            let is_tied = is_bound(&instr.op) || is_bound(&producer.op) || !can_leave(&producer.shape);
            if is_tied && !is_parameter(operand) {
                last[operand.idx()] = last[operand.idx()].max(id.idx());
            }
        }
    }
    let (parameters, others): (Vec<InstrId>, Vec<InstrId>) = entry.ids().partition(|&id| is_parameter(id));
    let mut groups: Vec<Vec<InstrId>> = parameters.into_iter().map(|id| vec![id]).collect();
    let mut end = None;
    for id in others {
        match groups.last_mut() {
            Some(group) if end.is_some_and(|end| id.idx() <= end) => group.push(id),
            Some(_) | None => {
                groups.push(vec![id]);
                end = None;
            }
        }
        end = end.max(Some(last[id.idx()]));
    }
    let inputs_of = |ids: &[InstrId]| {
        let mut seen: BTreeSet<InstrId> = ids.iter().copied().collect();
        let operands = ids.iter().flat_map(|&id| &entry.instr(id).operands).copied();
        operands.filter(|&operand| seen.insert(operand)).collect()
    };
    groups.into_iter().map(|ids| Group { inputs: inputs_of(&ids), ids }).collect()
}

/// A group as a module: its parameters are the arrays of the group's inputs, its results those of `gives`, each depth
/// first. `None` if one of them cannot pass between programs.
pub(super) fn alone(module: &Module, group: &Group, gives: &[InstrId], flush_subnormals: bool) -> Option<Module> {
    let entry = module.entry();
    let mut writer = Writer { module: Module::new("alone"), number: 0, imported: BTreeMap::new() };
    let mut copies: BTreeMap<InstrId, InstrId> = BTreeMap::new();
    for &id in &group.inputs {
        copies.insert(id, writer.value(&entry.instr(id).shape)?);
    }
    for &id in &group.ids {
        let instr = entry.instr(id);
        let mut op = instr.op.clone();
        op.for_each_called_mut(&mut |callee| *callee = writer.import(module, *callee));
        let operands = instr.operands.iter().map(|operand| copies[operand]).collect();
        let before = instr.control_predecessors.iter().filter_map(|id| copies.get(id)).copied().collect();
        let (metadata, sharding) = (Metadata::default(), None);
        let copy = Instruction { op, operands, control_predecessors: before, metadata, sharding, ..instr.clone() };
        let main = writer.module.entry;
        copies.insert(id, writer.module.append_copy(main, copy));
    }
    let mut results = Vec::new();
    for id in gives {
        writer.arrays(copies[id], &mut results)?;
    }
    writer.tuple(results);
    let mut module = writer.module;
    if flush_subnormals {
        flush::everywhere(&mut module);
    }
    Some(module)
}

/// A conversion of an array as a module.
pub(super) fn conversion(array: &ArrayShape, to: DType, flush_subnormals: bool) -> Module {
    let mut writer = Writer { module: Module::new("alone"), number: 0, imported: BTreeMap::new() };
    let operand = writer.parameter(&Shape::Array(array.clone()));
    let narrow = Shape::Array(ArrayShape { dtype: to, layout: None, ..array.clone() });
    let converted = writer.push(Op::Convert, vec![operand], narrow);
    writer.tuple(vec![converted]);
    if flush_subnormals {
        flush::everywhere(&mut writer.module);
    }
    writer.module
}

struct Writer {
    module: Module,
    /// The number of parameters so far.
    number: i64,
    imported: BTreeMap<CompId, CompId>,
}

impl Writer {
    fn push(&mut self, op: Op, operands: Vec<InstrId>, shape: Shape) -> InstrId {
        let entry = self.module.entry;
        self.module.append(entry, op, operands, shape, Metadata::default())
    }

    /// Between programs every array is row-major.
    fn parameter(&mut self, array: &Shape) -> InstrId {
        let number = self.number;
        self.number += 1;
        self.push(Op::parameter(number), Vec::new(), array.without_layout())
    }

    fn tuple(&mut self, elements: Vec<InstrId>) -> InstrId {
        let instructions = &self.module.entry().instructions;
        let shapes = elements.iter().map(|id| instructions[id.idx()].shape.without_layout()).collect();
        self.push(Op::Tuple, elements, Shape::Tuple(shapes))
    }

    /// A value of this shape, made of parameters.
    fn value(&mut self, shape: &Shape) -> Option<InstrId> {
        match shape {
            Shape::Tuple(parts) => {
                let elements = parts.iter().map(|part| self.value(part)).collect::<Option<_>>()?;
                Some(self.tuple(elements))
            }
            leaf => leaf_can_leave(leaf).then(|| self.parameter(leaf)),
        }
    }

    /// The arrays of a value.
    fn arrays(&mut self, id: InstrId, out: &mut Vec<InstrId>) -> Option<()> {
        match self.module.entry().instr(id).shape.clone() {
            Shape::Tuple(parts) => {
                for (index, part) in parts.into_iter().enumerate() {
                    let element = self.push(Op::GetTupleElement { index: index as i64 }, vec![id], part);
                    self.arrays(element, out)?;
                }
            }
            leaf if leaf_can_leave(&leaf) => out.push(id),
            _ => return None,
        }
        Some(())
    }

    /// Copies a called computation, and all that it calls.
    fn import(&mut self, from: &Module, comp: CompId) -> CompId {
        let mut pending = vec![comp];
        let mut fresh = Vec::new();
        while let Some(comp) = pending.pop() {
            if !self.imported.contains_key(&comp) {
                self.imported.insert(comp, self.module.add_computation("called"));
                fresh.push(comp);
                pending.extend(from.comp(comp).instructions.iter().flat_map(|instr| instr.op.called()));
            }
        }
        for comp in fresh {
            let (source, made) = (from.comp(comp), self.imported[&comp]);
            for instr in &source.instructions {
                let mut op = instr.op.clone();
                op.for_each_called_mut(&mut |callee| *callee = self.imported[callee]);
                let copy = Instruction { op, metadata: Metadata::default(), sharding: None, ..instr.clone() };
                self.module.append_copy(made, copy);
            }
            let computation = &mut self.module.computations[made.idx()];
            computation.root = source.root;
            computation.unmodelled = source.unmodelled.clone();
        }
        self.imported[&comp]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::proto::encode;
    use bf16scope_hlo::{text, verify};

    fn parse(body: &str) -> Module {
        text::parse(&format!("HloModule m\n\n{body}"), "m.txt").unwrap_or_else(|error| panic!("{error}"))
    }

    fn names(module: &Module) -> Vec<Vec<&str>> {
        let name = |id: &InstrId| module.entry().instr(*id).name.as_str();
        groups(module).iter().map(|group| group.ids.iter().map(name).collect()).collect()
    }

    #[test]
    fn equal_instructions_are_one_program() {
        let module = parse(
            "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\n\
             plus {\n  c = f32[] parameter(0)\n  d = f32[] parameter(1)\n  ROOT t = f32[] add(c, d)\n}\n\n\
             ENTRY m {\n  x = f32[4] parameter(0)\n  zero = f32[] constant(0)\n  y = f32[4] negate(x)\n  \
             z = f32[4] negate(y), metadata={op_name=\"else\"}\n  r = f32[] reduce(y, zero), dimensions={0}, to_apply=sum\n  \
             q = f32[] reduce(z, zero), dimensions={0}, to_apply=plus\n  ROOT p = f32[] add(r, q)\n}\n",
        );
        let bytes: Vec<Vec<u8>> = (groups(&module).iter())
            .map(|group| {
                let alone = alone(&module, group, &group.ids, false).unwrap();
                verify(&alone).unwrap_or_else(|error| panic!("{error}"));
                encode::to_bytes(&alone).unwrap()
            })
            .collect();
        assert_eq!(names(&module), [["x"], ["zero"], ["y"], ["z"], ["r"], ["q"], ["p"]]);
        assert!(bytes[2] == bytes[3] && bytes[4] == bytes[5]);
        assert_eq!(bytes.iter().collect::<BTreeSet<_>>().len(), 5);
    }

    /// A token and the bitcast of a product tie the instructions in between; parameters stay outside.
    #[test]
    fn what_cannot_leave_a_program_is_not_parted() {
        let module = parse(
            "ENTRY m {\n  x = f32[4] parameter(0)\n  a = f32[4] negate(x)\n  t = token[] after-all()\n  b = f32[4] add(a, x)\n  \
             y = f32[4] parameter(1)\n  u = token[] after-all(t)\n  c = f32[4] multiply(b, y)\n  d = f32[2,2] bitcast(c)\n  \
             e = f32[2,2] negate(d)\n  ROOT f = f32[2,2] add(e, e)\n}\n",
        );
        assert_eq!(names(&module), [&["x"][..], &["y"], &["a"], &["t", "b", "u"], &["c", "d", "e"], &["f"]]);
        let groups = groups(&module);
        assert_eq!(groups[4].inputs.iter().map(|id| id.0).collect::<Vec<u32>>(), [3, 4]);
        let products = alone(&module, &groups[4], &groups[4].ids[..2], false).unwrap();
        verify(&products).unwrap();
        assert_eq!(products.entry().result_shape().to_string(), "(f32[4], f32[2,2])");
        assert!(alone(&module, &groups[3], &groups[3].ids, false).is_none());
        assert!(alone(&module, &groups[3], &groups[3].ids[1..2], false).is_some());
    }
}
