//! Casts of values to the dtype that a reader wants, or their constants and broadcasts repeated in it.

use super::super::dataflow::{NodeKind, ValueId};
use super::super::narrow;
use super::{FrameWriter, Origin, plain};
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::{DType, InstrId, Instruction, Layout, Literal, Op, Shape};

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
                let op = match narrow::literal(constant, self.graph.low).filter(|_| to_low) {
                    Some(narrow) => Op::Constant(narrow),
                    None => instr.op.clone(),
                };
                let shape = self.other_shape(&instr.shape, to_low);
                self.repeat(instr, op, shape, Vec::new())
            }
            (Op::Broadcast { .. }, NodeKind::Op(_)) if is_here && depth < MAX_REPEATED => {
                let operand = instr.operands[0];
                let operand_value = self.values(operand)[0];
                let operand = if self.is_low(operand_value) == to_low {
                    self.written[operand.idx()]
                } else {
                    self.cast(operand, operand_value, depth + 1)
                };
                let shape = self.other_shape(&instr.shape, to_low);
                self.repeat(instr, instr.op.clone(), shape, vec![operand])
            }
            (Op::Convert, NodeKind::FromLow) if is_here && to_low => self.written[instr.operands[0].idx()],
            (Op::Convert, NodeKind::FromExact) if is_here => {
                let operands = instr.operands.iter().map(|operand| self.written[operand.idx()]).collect();
                let shape = self.other_shape(&instr.shape, to_low);
                self.repeat(instr, instr.op.clone(), shape, operands)
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
        n <= MAX_REPEATED_CONSTANT || !to_low && !narrow::is_exact(constant, self.graph.low)
    }

    /// The shape of an f32 array in the narrow dtype if `to_low`, else as it is.
    fn other_shape(&self, shape: &Shape, to_low: bool) -> Shape {
        narrow::shape(shape, self.graph.low, &mut |_| to_low)
    }

    fn repeat(&mut self, instr: &Instruction, op: Op, shape: Shape, operands: Vec<InstrId>) -> InstrId {
        let name = self.cast_name(instr, &shape);
        let origin = self.cast_origin(instr);
        let control_predecessors = self.predecessors(instr);
        self.push(Instruction { name, op, shape, operands, control_predecessors, ..instr.clone() }, origin)
    }

    /// Converts the result of instruction `written`, a value of `instr`, to the other dtype.
    pub(super) fn convert(&mut self, instr: &Instruction, value: ValueId, written: InstrId) -> InstrId {
        let mut shape = self.out.instr(written).shape.clone();
        if matches!(shape, Shape::Array(_)) && !self.is_low(value) {
            let within = self.within_range(instr, value, written);
            return self.convert_to(instr, self.other_shape(&shape, true), within);
        }
        if let Shape::Array(array) = &mut shape {
            array.dtype = DType::F32;
        }
        self.convert_to(instr, shape, written)
    }

    /// Clamps finite elements of an f32 value to the range of the narrow dtype, if some may be beyond it. `written` has
    /// the value of `instr`. Infinities and NaN stay.
    pub(super) fn within_range(&mut self, instr: &Instruction, value: ValueId, written: InstrId) -> InstrId {
        let shape = self.out.instr(written).shape.clone();
        let is_array = matches!(&shape, Shape::Array(array) if array.dtype == DType::F32);
        if !is_array || !self.assignment.beyond[value as usize] {
            return written;
        }
        let sharding = self.out.instr(written).sharding.clone();
        let largest = narrow::largest(self.graph.low);
        let mut push = |op: Op, shape: Shape, operands: Vec<InstrId>| {
            let sharding = sharding.clone().filter(|_| !operands.is_empty());
            let name = format!("{}.finite", instr.name);
            self.push(Instruction { name, op, shape, operands, sharding, ..plain(instr) }, Origin::Range)
        };
        let [least, most] = [-largest, largest]
            .map(|end| push(Op::Constant(Literal::scalar(end)), Shape::scalar(DType::F32), Vec::new()));
        let mut pred = shape.clone();
        if let Shape::Array(array) = &mut pred {
            array.dtype = DType::Pred;
            array.layout =
                array.layout.take().map(|layout| Layout { minor_to_major: layout.minor_to_major, ..Layout::default() });
        }
        let is_finite = push(Op::Unary(UnaryOp::IsFinite), pred, vec![written]);
        let within = push(Op::Clamp, shape.clone(), vec![least, written, most]);
        push(Op::Select, shape, vec![is_finite, within, written])
    }

    /// Converts the result of instruction `written`, a value of `instr`, to the dtype of `shape`.
    pub(super) fn convert_to(&mut self, instr: &Instruction, shape: Shape, written: InstrId) -> InstrId {
        let name = self.cast_name(instr, &shape);
        let sharding = self.out.instr(written).sharding.clone();
        let origin = self.cast_origin(instr);
        let convert = Instruction { name, op: Op::Convert, shape, operands: vec![written], sharding, ..plain(instr) };
        self.push(convert, origin)
    }

    /// The origin of a cast for the instruction that is being written; for the result it is the root.
    fn cast_origin(&self, instr: &Instruction) -> Origin {
        let reader = self.reader.unwrap_or(self.original.root);
        Origin::Cast { of: instr.name.clone(), wanted_by: self.original.instr(reader).name.clone() }
    }

    pub(super) fn cast_name(&self, instr: &Instruction, shape: &Shape) -> String {
        format!("{}.{}", instr.name, shape.dtype().unwrap_or(DType::F32))
    }
}
