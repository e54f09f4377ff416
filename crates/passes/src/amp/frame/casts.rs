//! Casts of values to the dtype that a reader wants, or their constants and broadcasts repeated in it.

use super::super::dataflow::{NodeKind, ValueId};
use super::super::range::largest;
use super::{FrameWriter, Origin};
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::{DType, InstrId, Instruction, Literal, Op, Shape};

/// The longest chain of broadcasts that is repeated in the other dtype rather than cast.
const MAX_REPEATED: u32 = 8;

/// The most elements of a constant that is repeated in the other dtype rather than cast.
const MAX_REPEATED_CONSTANT: i64 = 256;

impl FrameWriter<'_, '_> {
    /// The value of an original array in the other dtype than that in which it is computed.
    pub(super) fn cast(&mut self, id: InstrId, value: ValueId, depth: u32) -> InstrId {
        if let Some(&cast) = self.casts.get(&value) {
            return cast;
        }
        let producer = self.graph.producer(value);
        let node = self.graph.node(producer);
        // The instruction that computes the value, or an equal one, if that is in this frame; `id` may only be an
        // alias of it.
        let makes = self.node(id) == Some(producer);
        let source = if node.frame == self.frame { node.instr } else { id };
        let is_here = (makes || node.frame == self.frame) && self.original.instr(source).shape.as_array().is_some();
        let source = if is_here { source } else { id };
        let instr = self.original.instr(source);
        let to_low = !self.is_low(value);
        let cast = match (&instr.op, &node.kind) {
            (Op::Constant(constant), _) if is_here && self.repeats_constant(value, constant, to_low) => {
                let narrow = constant.saturated_to(self.graph.low).filter(|_| to_low);
                self.repeat(instr, narrow.map_or(instr.op.clone(), Op::Constant), Vec::new(), to_low)
            }
            (Op::Broadcast { .. }, NodeKind::Op(_)) if is_here && depth < MAX_REPEATED => {
                let operand = instr.operands[0];
                let operand_value = self.values(operand)[0];
                let operand = if self.is_low(operand_value) == to_low {
                    self.written[operand.idx()]
                } else {
                    self.cast(operand, operand_value, depth + 1)
                };
                self.repeat(instr, instr.op.clone(), vec![operand], to_low)
            }
            (Op::Convert, NodeKind::FromLow) if is_here && to_low => self.written[instr.operands[0].idx()],
            (Op::Convert, NodeKind::FromExact) if is_here => {
                let operands = instr.operands.iter().map(|operand| self.written[operand.idx()]).collect();
                self.repeat(instr, instr.op.clone(), operands, to_low)
            }
            _ => {
                let written = self.written[source.idx()];
                self.convert(instr, value, written)
            }
        };
        self.casts.insert(value, cast);
        cast
    }

    /// The instruction with the narrow value that `id`, if it is such a conversion, converts to f32.
    pub(super) fn came_from_low(&self, id: InstrId) -> Option<InstrId> {
        let is_of_low = self.graph.node(self.node(id)?).kind == NodeKind::FromLow;
        is_of_low.then(|| self.written[self.original.instr(id).operands[0].idx()])
    }

    /// Whether a constant is repeated rather than cast: if it is small, or if the cast would start from rounded
    /// elements.
    fn repeats_constant(&self, value: ValueId, constant: &Literal, to_low: bool) -> bool {
        let n = self.graph.value(value).n_elements;
        n <= MAX_REPEATED_CONSTANT || !to_low && !constant.is_exact_in(self.graph.low)
    }

    /// Writes a constant, broadcast or conversion once more, in the narrow dtype if `to_low`.
    fn repeat(&mut self, instr: &Instruction, op: Op, operands: Vec<InstrId>, to_low: bool) -> InstrId {
        let shape = instr.shape.with_dtype(DType::F32, self.graph.low, |_| to_low);
        let name = cast_name(instr, &shape);
        let origin = Origin::Cast { of: instr.name.clone(), wanted_by: self.original.instr(self.reader).name.clone() };
        let control_predecessors = self.predecessors(instr);
        self.push(Instruction { name, op, shape, operands, control_predecessors, ..instr.clone() }, origin)
    }

    /// Converts the result of instruction `written`, a value of `instr`, to the other dtype.
    pub(super) fn convert(&mut self, instr: &Instruction, value: ValueId, written: InstrId) -> InstrId {
        let low = self.graph.low;
        let (from, to) = if self.is_low(value) { (low, DType::F32) } else { (DType::F32, low) };
        let within = self.within_range(instr, value, written);
        let shape = self.out.instr(within).shape.with_dtype(from, to, |_| true);
        self.convert_to(instr, shape, within, &self.original.instr(self.reader).name)
    }

    /// Clamps finite elements of an f32 value to the range of the narrow dtype, if some may be beyond it. `written` has
    /// the value of `instr`. Infinities and NaN stay.
    pub(super) fn within_range(&mut self, instr: &Instruction, value: ValueId, written: InstrId) -> InstrId {
        let shape = self.out.instr(written).shape.clone();
        if shape.dtype() != Some(DType::F32) || !self.assignment.beyond[value as usize] {
            return written;
        }
        let largest = largest(self.graph.low);
        let mut add = |op: Op, shape: Shape, operands: Vec<InstrId>| {
            self.add(instr, format!("{}.finite", instr.name), op, operands, shape, Origin::Added)
        };
        let [least, most] = [-largest, largest]
            .map(|end| add(Op::Constant(Literal::scalar(end)), Shape::scalar(DType::F32), Vec::new()));
        let pred = shape.with_dtype(DType::F32, DType::Pred, |_| true);
        let is_finite = add(Op::Unary(UnaryOp::IsFinite), pred, vec![written]);
        let within = add(Op::Clamp, shape.clone(), vec![least, written, most]);
        add(Op::Select, shape, vec![is_finite, within, written])
    }

    /// Converts the result of instruction `written`, a value of `instr`, to the dtype of `shape`, for the original
    /// instruction of this name.
    pub(super) fn convert_to(
        &mut self,
        instr: &Instruction,
        shape: Shape,
        written: InstrId,
        wanted_by: &str,
    ) -> InstrId {
        let origin = Origin::Cast { of: instr.name.clone(), wanted_by: wanted_by.to_string() };
        self.add(instr, cast_name(instr, &shape), Op::Convert, vec![written], shape, origin)
    }
}

fn cast_name(instr: &Instruction, shape: &Shape) -> String {
    format!("{}.{}", instr.name, shape.dtype().unwrap_or(DType::F32))
}
