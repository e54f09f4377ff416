//! Conversions f32 → bf16 as a TPU does them: a subnormal number becomes a zero of its sign.
//!
//! In front of each conversion stands `select(|x| < 2^-126, x · 0, x)`. A NaN compares false and passes. What a fusion or
//! a dot rounds by itself is not reached, nor is arithmetic on subnormal bf16 numbers.

use super::taps::{fresh_prefix, plain};
use crate::hlo::ops::{BinaryOp, Comparison, UnaryOp};
use crate::hlo::{ArrayShape, CompId, DType, InstrId, Instruction, Literal, Module, Op, Shape};

/// Rewrites all conversions f32 → bf16 of a module.
pub(super) fn everywhere(module: &mut Module) {
    let comps = (0..module.computations.len() as u32).map(CompId);
    rewrite(module, comps.map(|comp| (comp, 0)).collect());
}

/// Rewrites the conversions of these computations, each from an instruction on.
pub(super) fn rewrite(module: &mut Module, places: Vec<(CompId, usize)>) {
    let prefix = fresh_prefix(module, "flush");
    let mut next = 0;
    for (comp, from) in places {
        let computation = &mut module.computations[comp.idx()];
        let mut new_ids: Vec<InstrId> = Vec::with_capacity(computation.instructions.len());
        let mut written: Vec<Instruction> = Vec::with_capacity(computation.instructions.len());
        for (idx, mut instr) in std::mem::take(&mut computation.instructions).into_iter().enumerate() {
            let operands = instr.operands.iter_mut().chain(&mut instr.control_predecessors);
            operands.for_each(|id| *id = new_ids[id.idx()]);
            if idx >= from && instr.op == Op::Convert && instr.shape.dtype() == Some(DType::BF16) {
                let x = instr.operands[0];
                let array = written[x.idx()].shape.as_array().filter(|array| array.dtype == DType::F32).cloned();
                if let Some(array) = array {
                    instr.operands[0] = flushed(&mut written, &prefix, &mut next, x, &array);
                }
            }
            new_ids.push(InstrId(written.len() as u32));
            written.push(instr);
        }
        computation.root = new_ids[computation.root.idx()];
        computation.instructions = written;
    }
}

/// Appends what makes zero of subnormal elements of `x`.
fn flushed(written: &mut Vec<Instruction>, prefix: &str, next: &mut usize, x: InstrId, array: &ArrayShape) -> InstrId {
    let of = |dtype: DType| Shape::Array(ArrayShape { dtype, ..array.clone() });
    let mut push = |op: Op, shape: Shape, operands: Vec<InstrId>| {
        let id = InstrId(written.len() as u32);
        written.push(plain(format!("{prefix}.{next}"), op, shape, operands));
        *next += 1;
        id
    };
    let mut full = |value: f32| {
        let scalar = push(Op::Constant(Literal::scalar(value)), Shape::scalar(DType::F32), Vec::new());
        push(Op::Broadcast { dimensions: Vec::new() }, of(DType::F32), vec![scalar])
    };
    let (zero, least) = (full(0.0), full(f32::MIN_POSITIVE));
    let magnitude = push(Op::Unary(UnaryOp::Abs), of(DType::F32), vec![x]);
    let compare = Op::Compare { direction: Comparison::Lt, kind: None };
    let is_small = push(compare, of(DType::Pred), vec![magnitude, least]);
    let signed_zero = push(Op::Binary(BinaryOp::Multiply), of(DType::F32), vec![x, zero]);
    push(Op::Select, of(DType::F32), vec![is_small, signed_zero, x])
}
