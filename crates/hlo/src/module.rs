//! Modules, computations and instructions: the IR itself.
//!
//! Everything is public data. Operands are always defined earlier in the same computation; called computations are
//! named by id anywhere in the module, and calls do not cycle. The builder keeps these rules, importers restore them,
//! and the verifier (`hlo::verify`) checks them for every module.
//!
//! Source: `HloModuleProto`, `HloComputationProto`, `HloInstructionProto` in XLA's `hlo.proto`.

use super::ids::{CompId, InstrId};
use super::ops::{self, BinaryOp, Callees, Op, RuleError, Signature};
use super::{DType, Shape, Sharding, StackFrames};
use std::collections::HashMap;

/// A program: computations, one of them the entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// All computations, indexed by [`CompId`]. [`Module::rename_computation`] renames one.
    pub computations: Vec<Computation>,
    /// The computation where execution starts.
    pub entry: CompId,
    /// Which outputs may or must reuse which parameters' buffers.
    pub input_output_alias: Vec<Alias>,
    /// Parameters (number, index) whose buffers any output may reuse.
    pub buffer_donors: Vec<(i64, Vec<i64>)>,
    /// Layouts of the entry's parameters and result, if they differ from those of the instructions.
    pub entry_layout: Option<EntryLayout>,
    /// Whether the instructions are in their order of execution.
    pub is_scheduled: bool,
    /// The source positions of instructions whose metadata names a stack frame.
    pub stack_frames: StackFrames,
    /// `frontend_attributes` of the module.
    pub frontend_attributes: Vec<(String, String)>,
    /// Attributes and fields of the source that this type does not model.
    pub unmodelled: Unmodelled,
    /// The next number for a generated instruction name.
    pub next_name: u32,
    names: ComputationNames,
}

/// `entry_computation_layout`.
#[derive(Clone, Debug, PartialEq)]
pub struct EntryLayout {
    /// Shapes of the parameters, with layouts.
    pub parameters: Vec<Shape>,
    /// Shape of the result, with layouts.
    pub result: Shape,
}

/// One entry of `input_output_alias`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Index into the result tuple.
    pub output_index: Vec<i64>,
    /// Parameter number.
    pub parameter_number: i64,
    /// Index into that parameter, if it is a tuple.
    pub parameter_index: Vec<i64>,
    /// Whether the alias is allowed or required.
    pub kind: AliasKind,
}

/// How strong an alias is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AliasKind {
    /// `may-alias`: used if the caller donates the buffer.
    May,
    /// `must-alias`.
    Must,
}

/// Text attributes and proto fields of a foreign module that the IR does not model, preserved verbatim.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Unmodelled {
    /// `name=value` attributes of the text, verbatim, in order.
    pub attributes: Vec<(String, String)>,
    /// The proto message with only the unmodelled fields set, encoded; empty if there are none.
    pub proto: Vec<u8>,
}

/// A computation: parameters, instructions, a root.
#[derive(Clone, Debug, PartialEq)]
pub struct Computation {
    /// Its name, unique in the module.
    pub name: String,
    /// The instructions; operands come first.
    pub instructions: Vec<Instruction>,
    /// The result.
    pub root: InstrId,
    /// Attributes and fields of the source that this type does not model (`execution_thread`, …).
    pub unmodelled: Unmodelled,
}

/// An instruction: an op applied to operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// Its name, unique in the module.
    pub name: String,
    /// The op, with all attributes.
    pub op: Op,
    /// Its result's shape.
    pub shape: Shape,
    /// Operands, all defined earlier.
    pub operands: Vec<InstrId>,
    /// Where it was written.
    pub metadata: Metadata,
    /// How it is sharded over devices; boxed, as few instructions have a sharding.
    pub sharding: Option<Box<Sharding>>,
    /// `frontend_attributes={…}`.
    pub frontend_attributes: Vec<(String, String)>,
    /// Control predecessors: instructions that must run before this one, though it does not read them.
    pub control_predecessors: Vec<InstrId>,
    /// `backend_config`, verbatim: compilers put JSON here.
    pub backend_config: String,
    /// Attributes and fields of the source that this type does not model.
    pub unmodelled: Unmodelled,
}

impl Instruction {
    /// An instruction with only an op, a shape, operands and metadata.
    pub fn plain(name: String, op: Op, shape: Shape, operands: Vec<InstrId>, metadata: Metadata) -> Instruction {
        Instruction {
            name,
            op,
            shape,
            operands,
            metadata,
            sharding: None,
            frontend_attributes: Vec::new(),
            control_predecessors: Vec::new(),
            backend_config: String::new(),
            unmodelled: Unmodelled::default(),
        }
    }
}

/// `metadata={…}` of an instruction.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Metadata {
    /// The framework's op type, such as `Conv2D`, or [`Metadata::CUSTOM_VJP`].
    pub op_type: String,
    /// The scoped name, such as `resnet/block1/conv2/kernel`.
    pub op_name: String,
    /// The user's source file.
    pub source_file: String,
    /// The user's line; 0 = unknown.
    pub source_line: i32,
    /// Its frame in the module's [`StackFrames`], from 1; 0 = unknown. [`Module::source`] resolves it.
    pub stack_frame_id: i32,
}

impl Metadata {
    /// The op type that marks an array with a custom VJP, whose rule is not in the module.
    pub const CUSTOM_VJP: &str = "custom_vjp";

    /// Whether the instruction's array has a custom VJP.
    pub fn is_custom_vjp(&self) -> bool {
        self.op_type == Metadata::CUSTOM_VJP
    }
}

/// A cache of a module's computations by name, so that adding one does not search all others.
#[derive(Clone, Debug, Default)]
struct ComputationNames {
    comp_of: HashMap<String, CompId>,
    /// How many of the module's computations are in it.
    n_known: usize,
    /// The name of the last of them.
    last_known: String,
    /// For each name that was requested again the number to try next.
    next: HashMap<String, u64>,
}

/// All caches are equal: a module's value is that of its public fields.
impl PartialEq for ComputationNames {
    fn eq(&self, _: &ComputationNames) -> bool {
        true
    }
}

impl ComputationNames {
    fn catch_up(&mut self, computations: &[Computation]) {
        let last = self.n_known.checked_sub(1).map(|last| computations.get(last));
        // Removing a computation shifts those behind it, so the last one has another name then.
        if last.is_some_and(|last| last.is_none_or(|last| last.name != self.last_known)) {
            *self = ComputationNames::default();
        }
        for (idx, computation) in computations.iter().enumerate().skip(self.n_known) {
            self.comp_of.entry(computation.name.clone()).or_insert(CompId(idx as u32));
        }
        if self.n_known < computations.len() {
            self.last_known = computations.last().map(|computation| computation.name.clone()).unwrap_or_default();
            self.n_known = computations.len();
        }
    }

    fn find(&mut self, name: &str, computations: &[Computation]) -> Option<CompId> {
        self.catch_up(computations);
        let comp = self.comp_of.get(name).copied()?;
        if computations[comp.idx()].name != name {
            *self = ComputationNames::default();
            self.catch_up(computations);
        }
        self.comp_of.get(name).copied()
    }

    /// The name itself, or with the first number that makes it unique.
    fn unique(&mut self, name: &str, computations: &[Computation]) -> String {
        if self.find(name, computations).is_none() {
            return name.to_string();
        }
        let mut number = self.next.get(name).copied().unwrap_or(1);
        let unique = loop {
            let candidate = format!("{name}.{number}");
            if !self.comp_of.contains_key(&candidate) {
                break candidate;
            }
            number += 1;
        };
        self.next.insert(name.to_string(), number);
        unique
    }
}

impl Module {
    /// A module with an empty entry computation of the same name, to be filled with [`Module::push`].
    pub fn new(name: impl Into<String>) -> Module {
        let name = name.into();
        let entry = Computation::new(name.clone());
        Module {
            name,
            computations: vec![entry],
            entry: CompId(0),
            input_output_alias: Vec::new(),
            buffer_donors: Vec::new(),
            entry_layout: None,
            is_scheduled: false,
            stack_frames: StackFrames::default(),
            frontend_attributes: Vec::new(),
            unmodelled: Unmodelled::default(),
            next_name: 1,
            names: ComputationNames::default(),
        }
    }

    /// The computation with this id.
    pub fn comp(&self, comp: CompId) -> &Computation {
        &self.computations[comp.idx()]
    }

    /// The entry computation.
    pub fn entry(&self) -> &Computation {
        self.comp(self.entry)
    }

    /// The computation with this name.
    pub fn find_computation(&self, name: &str) -> Option<CompId> {
        self.computations.iter().position(|c| c.name == name).map(|i| CompId(i as u32))
    }

    /// Renames a computation. References are by id, so nothing else changes.
    pub fn rename_computation(&mut self, comp: CompId, name: impl Into<String>) {
        self.computations[comp.idx()].name = name.into();
        self.names = ComputationNames::default();
    }

    /// Adds an empty computation; `name` gets a number appended if it is taken.
    pub fn add_computation(&mut self, name: &str) -> CompId {
        let comp = CompId(self.computations.len() as u32);
        let unique = self.names.unique(name, &self.computations);
        self.computations.push(Computation::new(unique));
        comp
    }

    /// The computation that `write` fills, under `name` or, if another one has that name, with a number appended; an
    /// equal computation is reused.
    pub fn made_once(&mut self, name: &str, write: impl FnOnce(&mut Module, CompId)) -> CompId {
        let next_name = self.next_name;
        let added = self.add_computation(name);
        write(self, added);
        let names = std::iter::once(name.to_string()).chain((1u64..).map(|number| format!("{name}.{number}")));
        // Only computations from before it.
        let mut known = names.map_while(|name| self.names.comp_of.get(&name).copied());
        let Some(known) = known.find(|&known| self.comp(known).computes_as(self.comp(added))) else { return added };
        self.computations.truncate(added.idx());
        self.next_name = next_name;
        known
    }

    /// The computation `(x, y) -> op(x, y)` on scalars of `dtype`, as reductions apply; created once.
    pub fn scalar_computation(&mut self, op: BinaryOp, dtype: DType) -> CompId {
        self.made_once(&format!("{}_{dtype}", op.name()), |module, comp| {
            let scalar = Shape::scalar(dtype);
            let [x, y] = [0, 1].map(|number| {
                module.append(comp, Op::parameter(number), Vec::new(), scalar.clone(), Metadata::default())
            });
            module.append(comp, Op::Binary(op), vec![x, y], scalar.clone(), Metadata::default());
        })
    }

    /// Appends an instruction whose shape comes from the op's shape rule, and makes it the root.
    ///
    /// `declared` is the result shape for ops whose operands do not determine it: see [`ops::infer_shape`].
    ///
    /// # Errors
    /// The shape rule's error; nothing is appended then.
    pub fn push(
        &mut self,
        comp: CompId,
        op: Op,
        operands: &[InstrId],
        declared: Option<&Shape>,
        metadata: Metadata,
    ) -> Result<InstrId, RuleError> {
        let instructions = &self.comp(comp).instructions;
        let shapes: Vec<&Shape> = operands.iter().map(|id| &instructions[id.idx()].shape).collect();
        let shape = ops::infer_shape(self, &op, &shapes, declared)?;
        Ok(self.append(comp, op, operands.to_vec(), shape, metadata))
    }

    /// Appends an instruction of a given shape, unchecked, and makes it the root.
    pub fn append(
        &mut self,
        comp: CompId,
        op: Op,
        operands: Vec<InstrId>,
        shape: Shape,
        metadata: Metadata,
    ) -> InstrId {
        let instr = Instruction::plain(String::new(), op, shape, operands, metadata);
        self.append_copy(comp, instr)
    }

    /// Appends a copy of an instruction, under a generated name, and makes it the root. Passes copy instructions with
    /// this, so that no attribute is lost.
    pub fn append_copy(&mut self, comp: CompId, instr: Instruction) -> InstrId {
        let name = format!("{}.{}", instr.op.opcode(), self.next_name);
        self.next_name += 1;
        let computation = &mut self.computations[comp.idx()];
        let id = InstrId(computation.instructions.len() as u32);
        computation.instructions.push(Instruction { name, ..instr });
        computation.root = id;
        id
    }
}

impl Computation {
    /// An empty computation.
    pub fn new(name: impl Into<String>) -> Computation {
        Computation { name: name.into(), instructions: Vec::new(), root: InstrId(0), unmodelled: Unmodelled::default() }
    }

    /// Whether both have the same instructions, regardless of names and metadata.
    fn computes_as(&self, other: &Computation) -> bool {
        let same = |a: &Instruction, b: &Instruction| {
            a.op == b.op && a.shape.is_compatible(&b.shape) && a.operands == b.operands
        };
        self.root == other.root
            && self.instructions.len() == other.instructions.len()
            && self.instructions.iter().zip(&other.instructions).all(|(a, b)| same(a, b))
    }

    /// The instruction with this id.
    pub fn instr(&self, id: InstrId) -> &Instruction {
        &self.instructions[id.idx()]
    }

    /// Ids of all instructions in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = InstrId> + ExactSizeIterator + use<> {
        (0..self.instructions.len() as u32).map(InstrId)
    }

    /// The parameters, ordered by number.
    pub fn parameters(&self) -> Vec<InstrId> {
        let mut parameters: Vec<(i64, InstrId)> = self
            .ids()
            .filter_map(|id| match &self.instr(id).op {
                Op::Parameter { number, .. } => Some((*number, id)),
                _ => None,
            })
            .collect();
        parameters.sort();
        parameters.into_iter().map(|(_, id)| id).collect()
    }

    /// Shape of the result. The computation must not be empty.
    pub fn result_shape(&self) -> &Shape {
        &self.instr(self.root).shape
    }
}

impl Module {
    /// The user's file and line of an instruction with this metadata: its own, or those of its stack frame. `None` if
    /// neither has a file; line 0 is unknown.
    pub fn source<'a>(&'a self, metadata: &'a Metadata) -> Option<(&'a str, i32)> {
        match metadata.source_file.as_str() {
            "" => self.stack_frames.source(metadata.stack_frame_id).filter(|(file, _)| !file.is_empty()),
            file => Some((file, metadata.source_line)),
        }
    }

    /// The same as `file:line`, or `file` if no line is known; empty if there is no file.
    pub fn source_text(&self, metadata: &Metadata) -> String {
        match self.source(metadata) {
            None => String::new(),
            Some((file, 0)) => file.to_string(),
            Some((file, line)) => format!("{file}:{line}"),
        }
    }
}

impl Callees for Module {
    fn signature(&self, comp: CompId) -> Option<Signature<'_>> {
        let computation = self.computations.get(comp.idx())?;
        let root = computation.instructions.get(computation.root.idx())?;
        let parameters = computation.parameters().iter().map(|&id| &computation.instr(id).shape).collect();
        Some(Signature { parameters, result: &root.shape })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_computations_are_found_whatever_becomes_of_them() {
        let mut module = Module::new("m");
        let [a, b] = ["a", "b"].map(|name| module.add_computation(name));
        // A new name is taken, and the old one is free again.
        module.rename_computation(a, "c");
        assert_eq!(["a", "b", "c"].map(|name| module.find_computation(name)), [None, Some(b), Some(a)]);
        let names = ["c", "a"].map(|name| {
            let comp = module.add_computation(name);
            module.comp(comp).name.clone()
        });
        assert_eq!(names, ["c.1", "a"]);
        // The same holds when computations are renamed or removed in place: those behind have other ids then.
        module.computations[b.idx()].name = "d".to_string();
        let comp = module.add_computation("b");
        assert_eq!(module.comp(comp).name, "b");
        module.computations.remove(a.idx());
        let again = ["c", "d"].map(|name| {
            let comp = module.add_computation(name);
            module.comp(comp).name.clone()
        });
        assert_eq!(again, ["c", "d.1"]);
        // The cache of names is not part of a module's value.
        let mut same = module.clone();
        same.rename_computation(CompId(0), "m");
        assert_eq!(module, same);
    }
}
