//! Rewrites conversions f32 → bf16 to flush subnormal numbers to signed zeros, as a TPU does.
//!
//! Each conversion is preceded by `select(|x| < 2^-126, x · 0, x)`. A NaN compares false and passes. It does not reach
//! roundings inside a fusion or a dot, nor arithmetic on subnormal bf16 numbers.

use super::taps::{fresh_prefix, plain};
use bf16scope_hlo::ops::{BinaryOp, Comparison, UnaryOp};
use bf16scope_hlo::{ArrayShape, DType, InstrId, Instruction, Literal, Module, Op, Shape};

/// Rewrites all conversions f32 → bf16 of a module.
pub(super) fn everywhere(module: &mut Module) {
    let prefix = fresh_prefix(module, "flush");
    let mut next = 0;
    for computation in &mut module.computations {
        let mut new_ids: Vec<InstrId> = Vec::with_capacity(computation.instructions.len());
        let mut written: Vec<Instruction> = Vec::with_capacity(computation.instructions.len());
        for mut instr in std::mem::take(&mut computation.instructions) {
            let operands = instr.operands.iter_mut().chain(&mut instr.control_predecessors);
            operands.for_each(|id| *id = new_ids[id.idx()]);
            if instr.op == Op::Convert && instr.shape.dtype() == Some(DType::BF16) {
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

/// Appends instructions that replace subnormal elements of `x` by zeros.
fn flushed(written: &mut Vec<Instruction>, prefix: &str, next: &mut usize, x: InstrId, array: &ArrayShape) -> InstrId {
    let of_dtype = |dtype: DType| Shape::Array(ArrayShape { dtype, ..array.clone() });
    let mut push = |op: Op, shape: Shape, operands: Vec<InstrId>| {
        let id = InstrId(written.len() as u32);
        written.push(plain(format!("{prefix}.{next}"), op, shape, operands));
        *next += 1;
        id
    };
    let mut full = |value: f32| {
        let scalar = push(Op::Constant(Literal::scalar(value)), Shape::scalar(DType::F32), Vec::new());
        push(Op::Broadcast { dimensions: Vec::new() }, of_dtype(DType::F32), vec![scalar])
    };
    let (zero, least) = (full(0.0), full(f32::MIN_POSITIVE));
    let magnitude = push(Op::Unary(UnaryOp::Abs), of_dtype(DType::F32), vec![x]);
    let compare = Op::Compare { direction: Comparison::Lt, kind: None };
    let is_small = push(compare, of_dtype(DType::Pred), vec![magnitude, least]);
    let signed_zero = push(Op::Binary(BinaryOp::Multiply), of_dtype(DType::F32), vec![x, zero]);
    push(Op::Select, of_dtype(DType::F32), vec![is_small, signed_zero, x])
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::{text, verify};

    const MODULE: &str = "HloModule m

callee {
  a = f32[2] parameter(0)
  ROOT narrow = bf16[2] convert(a)
}

ENTRY m {
  x = f32[2] parameter(0)
  first = bf16[2] convert(x)
  flush.0 = f32[2] convert(first)
  half = f16[2] convert(flush.0)
  called = bf16[2] call(flush.0), to_apply=callee
  ROOT sum = bf16[2] add(first, called)
}
";

    fn opcodes(module: &Module, comp: &str) -> Vec<String> {
        let comp = module.find_computation(comp).unwrap();
        module.comp(comp).instructions.iter().map(|instr| instr.op.opcode().into_owned()).collect()
    }

    const SEQUENCE: [&str; 9] =
        ["constant", "broadcast", "constant", "broadcast", "abs", "compare", "multiply", "select", "convert"];

    #[test]
    fn only_conversions_from_f32_to_bf16_are_rewritten() {
        let mut module = text::parse(MODULE, "m.txt").unwrap();
        everywhere(&mut module);
        verify(&module).unwrap();
        assert_eq!(opcodes(&module, "callee"), [&["parameter"][..], &SEQUENCE].concat());
        let entry = [&["parameter"][..], &SEQUENCE, &["convert", "convert", "call", "add"]].concat();
        assert_eq!(opcodes(&module, "m"), entry);
        assert_eq!(module.entry().instr(module.entry().root).name, "sum");
    }
}
