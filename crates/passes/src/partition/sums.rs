//! The dtype of sums over partitions: the partitioner inserts an all-reduce in the dtype of a dot's or convolution's
//! result.

use std::collections::BTreeMap;

use bf16scope_hlo::ops::decisions::device_sum;
use bf16scope_hlo::ops::precision::DeviceSum;
use bf16scope_hlo::{ArrayShape, CompId, DType, InstrId, Instruction, Module, Op, Shape};

/// Rewrites dots and convolutions of a verified module whose results have less than 32 bits: they return f32, and a
/// convert behind them rounds to the original dtype. So partial results are summed in f32, and rounded once.
/// Reductions do not change: those of our layers are in f32 already. Also returns the rewritten instructions, by
/// computation and name.
pub(super) fn sum_in_f32(module: &Module) -> (Module, Vec<(String, String)>) {
    let mut wide = module.clone();
    let mut widened = Vec::new();
    for at in 0..module.computations.len() {
        let (comp, original) = (CompId(at as u32), &module.computations[at]);
        let is_narrow: Vec<bool> = original.instructions.iter().map(|instr| is_narrow_product(module, instr)).collect();
        if !is_narrow.contains(&true) {
            continue;
        }
        wide.computations[at].instructions.clear();
        let mut renamed: BTreeMap<InstrId, InstrId> = BTreeMap::new();
        for (index, instr) in original.instructions.iter().enumerate() {
            let mut instr = instr.clone();
            for id in instr.operands.iter_mut().chain(&mut instr.control_predecessors) {
                *id = renamed[id];
            }
            let shape = instr.shape.clone();
            let (metadata, sharding) = (instr.metadata.clone(), instr.sharding.clone());
            if is_narrow[index] {
                instr.shape = in_f32(&shape);
                widened.push((original.name.clone(), instr.name.clone()));
            }
            let instructions = &mut wide.computations[at].instructions;
            let mut new = InstrId(instructions.len() as u32);
            instructions.push(instr);
            if is_narrow[index] {
                new = wide.append(comp, Op::Convert, vec![new], shape, metadata);
                wide.computations[at].instructions[new.idx()].sharding = sharding;
            }
            renamed.insert(InstrId(index as u32), new);
        }
        wide.computations[at].root = renamed[&original.root];
    }
    (wide, widened)
}

fn is_narrow_product(module: &Module, instr: &Instruction) -> bool {
    let is_narrow = instr.shape.as_array().is_some_and(|shape| shape.dtype.is_float() && shape.dtype.bits() < 32);
    is_narrow && device_sum(module, &instr.op) == DeviceSum::Own
}

fn in_f32(shape: &Shape) -> Shape {
    match shape {
        Shape::Array(array) => Shape::Array(ArrayShape { dtype: DType::F32, ..array.clone() }),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::text::{self, PrintOptions, print};
    use bf16scope_hlo::verify::verify;

    #[test]
    fn products_give_f32_and_are_rounded_behind_and_nothing_else_is() {
        let text = r#"
HloModule m

ENTRY m {
  x = bf16[4,8]{1,0} parameter(0)
  w = bf16[8,6]{1,0} parameter(1)
  v = f32[6,2]{1,0} parameter(2)
  y = bf16[4,6]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="net/dot"}
  n = bf16[4,6]{1,0} negate(y)
  f = f32[4,6]{1,0} convert(n)
  ROOT z = f32[4,2]{1,0} dot(f, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"#;
        let module = text::parse(text, "m").unwrap();
        let (wide, widened) = sum_in_f32(&module);
        assert_eq!(widened, [("m".to_string(), "y".to_string())]);
        verify(&wide).unwrap();
        let printed = print(&wide, &PrintOptions::default());
        assert!(printed.contains("y = f32[4,6]{1,0} dot(x, w)"), "{printed}");
        assert!(printed.contains("= bf16[4,6]{1,0} convert(y), metadata={op_name=\"net/dot\"}"), "{printed}");
        assert_eq!(wide.entry().instructions.len(), module.entry().instructions.len() + 1, "{printed}");
        assert!(printed.contains("ROOT z = f32[4,2]{1,0} dot(f, v)"), "{printed}");
        // A result that is f32 already does not change.
        assert_eq!(sum_in_f32(&wide), (wide.clone(), Vec::new()));
    }

    #[test]
    fn a_product_that_is_the_result_is_rounded_last() {
        let text = "HloModule m\n\nENTRY m {\n  x = bf16[4,8]{1,0} parameter(0)\n  ROOT y = bf16[4,4]{1,0} dot(x, x), \
                    lhs_contracting_dims={1}, rhs_contracting_dims={1}\n}\n";
        let (wide, _) = sum_in_f32(&text::parse(text, "m").unwrap());
        verify(&wide).unwrap();
        assert_eq!(wide.entry().instr(wide.entry().root).op, Op::Convert);
    }
}
