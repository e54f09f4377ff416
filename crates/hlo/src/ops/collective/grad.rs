//! Gradients of collectives.

use super::AllReduce;
use crate::Op;
use crate::ops::BinaryOp;
use crate::ops::grad::{Combiner, Cotangent, Cotangents, Vjp, combiner};

/// A sum over devices: every device's result depends equally on every device's operand, so cotangents are summed over
/// the same devices.
pub(crate) fn all_reduce(vjp: &Vjp<'_>, attributes: &AllReduce) -> Cotangents {
    let e = vjp.e;
    if e.with_module(|module| combiner(module, attributes.to_apply)) != Combiner::Binary(BinaryOp::Add) {
        return Err("only an all-reduce that adds has a rule".into());
    }
    let n_operands = vjp.operands.len();
    let cotangents: Vec<Cotangent> = (0..n_operands)
        .map(|idx| if n_operands == 1 { vjp.cotangent.clone() } else { vjp.cotangent.element(idx) })
        .map(|cotangent| {
            let Some(g) = cotangent.array() else { return Cotangent::Zero };
            // A channel identifies one communication of partitions: this is another one.
            let channel_id = attributes.channel_id.map(|_| e.with_module(next_channel_id));
            let to_apply = e.scalar_computation(BinaryOp::Add, e.dtype(g));
            let backward = AllReduce { channel_id, to_apply, ..attributes.clone() };
            Cotangent::Array(e.emit(Op::AllReduce(Box::new(backward)), &[g], None))
        })
        .collect();
    Ok(cotangents)
}

/// A channel id that no all-reduce of the module has.
fn next_channel_id(module: &crate::Module) -> i64 {
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let used = instructions.filter_map(|instr| match &instr.op {
        Op::AllReduce(all_reduce) => all_reduce.channel_id,
        _ => None,
    });
    used.max().unwrap_or(0) + 1
}
