//! Computations that reductions, scatters and sorts apply to scalars: may they be retyped, and their retyped copies.

use crate::hlo::{CompId, Computation, DType, Literal, Module, Op};

use super::literal;

/// Whether every f32 of a computation may become narrow at once: it only moves, combines, compares and selects scalars.
pub(super) fn is_retypable(module: &Module, comp: CompId) -> bool {
    module.comp(comp).instructions.iter().all(|instr| match &instr.op {
        Op::Parameter { .. } | Op::Unary(_) | Op::Binary(_) | Op::Compare { .. } | Op::Select | Op::Clamp => true,
        Op::Constant(literal) => matches!(literal, Literal::Array { .. }),
        Op::Tuple | Op::GetTupleElement { .. } => true,
        Op::Iota { .. }
        | Op::RngBitGenerator(_)
        | Op::Convert
        | Op::BitcastConvert
        | Op::ReducePrecision { .. }
        | Op::Broadcast { .. }
        | Op::Reshape
        | Op::Transpose { .. }
        | Op::Slice(_)
        | Op::Pad(_)
        | Op::Concatenate { .. }
        | Op::Reverse { .. }
        | Op::DynamicSlice { .. }
        | Op::DynamicUpdateSlice
        | Op::Gather(_)
        | Op::Scatter { .. }
        | Op::Dot { .. }
        | Op::Convolution(_)
        | Op::Reduce { .. }
        | Op::ReduceWindow { .. }
        | Op::SelectAndScatter { .. }
        | Op::BatchNormTraining(_)
        | Op::BatchNormInference(_)
        | Op::BatchNormGrad(_)
        | Op::Sort { .. }
        | Op::Call { .. }
        | Op::While { .. }
        | Op::Conditional(_)
        | Op::CustomCall(_)
        | Op::AllReduce(_)
        | Op::OptimizationBarrier
        | Op::Opaque(_) => false,
    })
}

/// A retypable computation with every f32 made `low`.
pub(super) fn retyped(computation: &Computation, low: DType) -> Computation {
    let mut copy = computation.clone();
    for instr in &mut copy.instructions {
        instr.shape = super::rewrite::narrow_shape(&instr.shape, low, &mut |_| true);
        if let Op::Constant(constant) = &mut instr.op
            && let Some(narrow) = literal::narrow(constant, low)
        {
            *constant = narrow;
        }
    }
    copy
}
