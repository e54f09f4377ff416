//! The f32 module with the lowered form of some of its instructions appended, each on the f32 module's operand values.
//!
//! What lowering inserted (instructions without a pair) is looked through: a cast of a value is the f32 module's value in
//! the cast's dtype, whatever dtype the lowered module has it in, so that the rounding where the value was made stays
//! there. Other insertions (constants repeated in another dtype, tuples taken apart) are copied.

use std::collections::BTreeMap;

use super::flush;
use super::pairs::{Pair, Pairs};
use super::taps::{forget_boundary, fresh_prefix, plain};
use crate::hlo::{CompId, DType, InstrId, Instruction, Module, Op, Shape};

/// The extended module.
pub(super) struct Born {
    pub module: Module,
    /// For each row the instruction that is its lowered form.
    pub ids: Vec<InstrId>,
}

/// Appends the lowered forms of `rows`. Ids of the f32 module stay as they are.
pub(super) fn append(
    reference: &Module,
    lowered: &Module,
    pairs: &Pairs,
    rows: &[Pair],
    flush_subnormals: bool,
) -> Born {
    let mut module = reference.clone();
    forget_boundary(&mut module);
    let (n_own, n_own_comps) = (reference.entry().instructions.len(), reference.computations.len());
    let prefix = fresh_prefix(reference, "born");
    let mut writer = Writer {
        reference,
        lowered,
        pairs,
        module,
        prefix,
        wide: BTreeMap::new(),
        read: BTreeMap::new(),
        imported: BTreeMap::new(),
        same: BTreeMap::new(),
        flush_subnormals,
    };
    let mut ids: Vec<InstrId> = rows.iter().map(|row| writer.row(row)).collect();
    let mut module = writer.module;
    if flush_subnormals {
        // Conversions get instructions in front of them, so what comes after the f32 module's own moves.
        let names: Vec<String> = ids.iter().map(|id| module.entry().instr(*id).name.clone()).collect();
        let imported = (n_own_comps..module.computations.len()).map(|comp| (CompId(comp as u32), 0));
        let places = imported.chain([(module.entry, n_own)]).collect();
        flush::rewrite(&mut module, places);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        ids = super::taps::find(&module, &names);
    }
    Born { module, ids }
}

struct Writer<'m> {
    reference: &'m Module,
    lowered: &'m Module,
    pairs: &'m Pairs,
    module: Module,
    prefix: String,
    /// For instructions of the lowered entry: their value in the f32 module, in the dtype it has there.
    wide: BTreeMap<InstrId, InstrId>,
    /// The same in the dtype of the lowered instruction.
    read: BTreeMap<InstrId, InstrId>,
    /// Computations of the lowered module.
    imported: BTreeMap<CompId, CompId>,
    /// Whether two computations, one of each module, are the same.
    same: BTreeMap<(CompId, CompId), bool>,
    /// Whether conversions to bf16 will flush, and so differ from the f32 module's.
    flush_subnormals: bool,
}

impl Writer<'_> {
    /// The lowered form of a row; the row itself where lowering did not change it.
    fn row(&mut self, row: &Pair) -> InstrId {
        let (reference, lowered) = (self.reference, self.lowered);
        let (before, now) = (reference.entry().instr(row.reference), lowered.entry().instr(row.lowered));
        let reads_same = |(&operand, &other): (&InstrId, &InstrId)| {
            self.pairs.reference(other) == Some(operand)
                && (reference.entry().instr(operand).shape).is_compatible(&lowered.entry().instr(other).shape)
        };
        let is_same = before.shape.is_compatible(&now.shape)
            && before.operands.len() == now.operands.len()
            && before.operands.iter().zip(&now.operands).all(reads_same)
            && !self.will_flush(now);
        if is_same && self.is_same_op(&before.op, &now.op) {
            return row.reference;
        }
        // What a parameter is read as is a conversion of it here; the caller converts it in the lowered module.
        if matches!(now.op, Op::Parameter { .. }) {
            return self.in_dtypes(row.reference, &now.shape);
        }
        let operands = now.operands.iter().map(|&operand| self.operand(operand)).collect();
        self.copy(now, operands)
    }

    /// Whether an instruction is a conversion that flushing changes.
    fn will_flush(&self, instr: &Instruction) -> bool {
        self.flush_subnormals && instr.op == Op::Convert && instr.shape.dtype() == Some(DType::BF16)
    }

    fn push(&mut self, instr: Instruction) -> InstrId {
        let entry = &mut self.module.computations[self.reference.entry.idx()];
        let id = InstrId(entry.instructions.len() as u32);
        entry.instructions.push(Instruction { name: format!("{}.{}", self.prefix, id.0), ..instr });
        id
    }

    /// An instruction of the lowered entry on other operands.
    fn copy(&mut self, instr: &Instruction, operands: Vec<InstrId>) -> InstrId {
        let mut op = instr.op.clone();
        op.for_each_called_mut(&mut |callee| *callee = self.import(*callee));
        let control_predecessors = Vec::new();
        self.push(Instruction { op, operands, control_predecessors, sharding: None, ..instr.clone() })
    }

    /// What an instruction of the lowered entry reads as this operand.
    fn operand(&mut self, id: InstrId) -> InstrId {
        if let Some(&done) = self.read.get(&id) {
            return done;
        }
        let wide = self.wide(id);
        let lowered = self.lowered;
        let read = self.in_dtypes(wide, &lowered.entry().instr(id).shape);
        self.read.insert(id, read);
        read
    }

    /// The f32 module's value for an instruction of the lowered entry.
    fn wide(&mut self, id: InstrId) -> InstrId {
        if let Some(&done) = self.wide.get(&id) {
            return done;
        }
        let lowered = self.lowered;
        let instr = lowered.entry().instr(id);
        let wide = match (self.pairs.reference(id), &instr.op) {
            (Some(reference), _) => reference,
            (None, Op::Convert) => self.wide(instr.operands[0]),
            (None, Op::GetTupleElement { index }) => {
                let tuple = self.wide(instr.operands[0]);
                self.element(tuple, *index)
            }
            (None, Op::Tuple) => {
                let elements = instr.operands.iter().map(|&element| self.wide(element)).collect();
                self.tuple(elements)
            }
            (None, _) => {
                let operands = instr.operands.iter().map(|&operand| self.operand(operand)).collect();
                self.copy(instr, operands)
            }
        };
        self.wide.insert(id, wide);
        wide
    }

    fn shape(&self, id: InstrId) -> &Shape {
        &self.module.entry().instr(id).shape
    }

    fn element(&mut self, tuple: InstrId, index: i64) -> InstrId {
        let shape = self.shape(tuple).as_tuple().and_then(|elements| elements.get(index as usize)).cloned();
        let shape = shape.expect("the lowered module is verified, and the tuple has its structure");
        self.push(plain(String::new(), Op::GetTupleElement { index }, shape, vec![tuple]))
    }

    fn tuple(&mut self, elements: Vec<InstrId>) -> InstrId {
        let shape = Shape::Tuple(elements.iter().map(|&element| self.shape(element).clone()).collect());
        self.push(plain(String::new(), Op::Tuple, shape, elements))
    }

    /// A value with its arrays converted to the dtypes of a shape.
    fn in_dtypes(&mut self, id: InstrId, wanted: &Shape) -> InstrId {
        let shape = self.shape(id).clone();
        if shape.is_compatible(wanted) {
            return id;
        }
        match wanted {
            Shape::Array(_) => self.push(plain(String::new(), Op::Convert, wanted.clone(), vec![id])),
            Shape::Tuple(parts) => {
                let mut elements = Vec::with_capacity(parts.len());
                for (index, part) in parts.iter().enumerate() {
                    let element = self.element(id, index as i64);
                    elements.push(self.in_dtypes(element, part));
                }
                self.tuple(elements)
            }
            Shape::Token | Shape::Opaque | Shape::Buffer(_) => id,
        }
    }

    /// A computation of the lowered module, and what it calls, in the extended one.
    fn import(&mut self, comp: CompId) -> CompId {
        if let Some(&done) = self.imported.get(&comp) {
            return done;
        }
        let mut copy = self.lowered.comp(comp).clone();
        for instr in &mut copy.instructions {
            instr.op.for_each_called_mut(&mut |callee| *callee = self.import(*callee));
        }
        copy.name = format!("{}.{}", self.prefix, copy.name);
        for instr in &mut copy.instructions {
            instr.name = format!("{}.{}.{}", self.prefix, comp.0, instr.name);
        }
        let id = CompId(self.module.computations.len() as u32);
        self.module.computations.push(copy);
        self.imported.insert(comp, id);
        id
    }

    /// Whether an op of the f32 module and one of the lowered are the same, with all they call.
    fn is_same_op(&mut self, before: &Op, now: &Op) -> bool {
        let without_ids = |op: &Op| {
            let mut op = op.clone();
            op.for_each_called_mut(&mut |callee| *callee = CompId(0));
            op
        };
        let (called, now_called) = (before.called(), now.called());
        called.len() == now_called.len()
            && without_ids(before) == without_ids(now)
            && called.into_iter().zip(now_called).all(|(before, now)| self.is_same_comp(before, now))
    }

    fn is_same_comp(&mut self, before: CompId, now: CompId) -> bool {
        if let Some(&known) = self.same.get(&(before, now)) {
            return known;
        }
        let (a, b) = (self.reference.comp(before), self.lowered.comp(now));
        let mut is_same = a.root == b.root && a.instructions.len() == b.instructions.len();
        for (a, b) in a.instructions.iter().zip(&b.instructions) {
            is_same = is_same
                && a.operands == b.operands
                && a.shape.is_compatible(&b.shape)
                && !self.will_flush(b)
                && self.is_same_op(&a.op, &b.op);
        }
        self.same.insert((before, now), is_same);
        is_same
    }
}
