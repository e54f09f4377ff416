//! Gradients of reductions along whole dimensions, and of sorting.

use crate::ops::grad::{Combiner, Cotangent, Cotangents, Vjp, combiner, copy_computation, sum, sum_all};
use crate::ops::movement::grad::inverse;
use crate::ops::{BinaryOp, Comparison, PadDim, SliceDim, WindowDim};
use crate::{CompId, DType, Emitter, InstrId, Metadata, Module, Op, Shape};

/// Sums: `g` broadcast. Maxima and minima: `g` shared evenly by the elements that attain it, as in TensorFlow and JAX.
/// Products: `g` times the product of the other elements, without a division, so zeros are right.
pub(crate) fn reduce(vjp: &Vjp<'_>, dimensions: &[i64], to_apply: CompId) -> Cotangents {
    if vjp.operands.len() != 2 {
        return Err("a reduction of several arrays has no rule; reduce them one by one".into());
    }
    let op = match vjp.e.with_module(|module| combiner(module, to_apply)) {
        Combiner::Binary(op) => op,
        Combiner::Compare(_) | Combiner::Second | Combiner::Other => return Err(only().into()),
    };
    if vjp.wants(1) && op != BinaryOp::Add {
        return Err("the initial value has a rule in a sum only; make it a constant".into());
    }
    match op {
        BinaryOp::Add => {
            vjp.each(|idx| if idx == 0 { spread(vjp, vjp.g(), dimensions) } else { sum_all(vjp.e, vjp.g()) })
        }
        BinaryOp::Maximum | BinaryOp::Minimum => vjp.each(|_| shared_by_winners(vjp, dimensions)),
        BinaryOp::Multiply => vjp.each(|_| times_the_others(vjp, dimensions)),
        BinaryOp::And
        | BinaryOp::Atan2
        | BinaryOp::Complex
        | BinaryOp::Divide
        | BinaryOp::Or
        | BinaryOp::Power
        | BinaryOp::Remainder
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRightArithmetic
        | BinaryOp::ShiftRightLogical
        | BinaryOp::Subtract
        | BinaryOp::Xor => Err(only().into()),
    }
}

fn only() -> &'static str {
    "only sums, products, maxima and minima have rules"
}

/// `value`, of the result's dims, repeated along the reduced `dimensions`.
fn spread(vjp: &Vjp<'_>, value: InstrId, dimensions: &[i64]) -> InstrId {
    let dims = vjp.e.dims(vjp.operand(0));
    vjp.e.broadcast(value, &kept(dims.len(), dimensions), &dims)
}

/// The dimensions that are not reduced.
fn kept(rank: usize, dimensions: &[i64]) -> Vec<i64> {
    (0..rank as i64).filter(|axis| !dimensions.contains(axis)).collect()
}

fn shared_by_winners(vjp: &Vjp<'_>, dimensions: &[i64]) -> InstrId {
    let (e, g, x) = (vjp.e, vjp.g(), vjp.operand(0));
    let wins = e.compare(Comparison::Eq, x, spread(vjp, vjp.result, dimensions));
    let n_winners = sum(e, e.convert(wins, e.dtype(x)), dimensions);
    // Where the initial value won, no element is selected below, whatever the quotient with 0 winners is.
    let share = spread(vjp, e.div(g, n_winners), dimensions);
    e.select(wins, share, e.zeros_like(x))
}

/// The products of all elements before, times those of all after: two running products.
fn times_the_others(vjp: &Vjp<'_>, dimensions: &[i64]) -> InstrId {
    let (e, x) = (vjp.e, vjp.operand(0));
    let dims = e.dims(x);
    let order = [kept(dims.len(), dimensions), dimensions.to_vec()].concat();
    let ordered: Vec<i64> = order.iter().map(|&axis| dims[axis as usize]).collect();
    let n_kept = dims.len() - dimensions.len();
    let n_factors: i64 = ordered[n_kept..].iter().product();
    if ordered.contains(&0) {
        return e.zeros_like(x);
    }
    let flat: Vec<i64> = ordered[..n_kept].iter().copied().chain([n_factors]).collect();
    let factors = e.reshape(e.transpose(x, &order), &flat);
    let before = product_of_those_before(e, factors, &flat);
    let last = [n_kept as i64];
    let after = e.reverse(product_of_those_before(e, e.reverse(factors, &last), &flat), &last);
    let others = e.transpose(e.reshape(e.mul(before, after), &ordered), &inverse(&order));
    e.mul(spread(vjp, vjp.g(), dimensions), others)
}

/// Along the last dimension, for each element the product of those before it.
fn product_of_those_before(e: &Emitter, factors: InstrId, dims: &[i64]) -> InstrId {
    let dtype = e.dtype(factors);
    let one = e.scalar(dtype, 1.0);
    let last = dims.len() - 1;
    let n_factors = dims[last];
    // Shift right by one, filling with 1, then multiply up.
    let mut all_but_last: Vec<SliceDim> =
        dims.iter().map(|&size| SliceDim { start: 0, limit: size, stride: 1 }).collect();
    all_but_last[last].limit = n_factors - 1;
    let mut shift = vec![PadDim::default(); dims.len()];
    shift[last].low = 1;
    let shifted = e.pad(e.slice(factors, &all_but_last), one, &shift);
    let mut window = vec![WindowDim::of_size(1); dims.len()];
    window[last] = WindowDim { padding_low: n_factors - 1, ..WindowDim::of_size(n_factors) };
    let to_apply = e.scalar_computation(BinaryOp::Multiply, dtype);
    e.emit(Op::ReduceWindow { window, to_apply }, &[shifted, one], None)
}

/// Cotangents move back along the permutation, which is recovered by sorting a counter along with the operands.
pub(crate) fn sort(vjp: &Vjp<'_>, dimension: i64, is_stable: bool, to_apply: CompId) -> Cotangents {
    let (e, n_operands) = (vjp.e, vjp.operands.len());
    if n_operands > 1 && !is_stable {
        return Err("an unstable sort of several arrays may order equal keys anew each time; make it stable".into());
    }
    let counter = e.iota(DType::S32, &e.dims(vjp.operand(0)), dimension);
    let with_counter = e.with_module_mut(|module| comparator_with_counter(module, to_apply, n_operands as i64));
    let operands = [vjp.operands, &[counter]].concat();
    let sorted = e.emit(Op::Sort { dimension, is_stable, to_apply: with_counter }, &operands, None);
    let origin = e.get_tuple_element(sorted, n_operands);

    let cotangent_of = |idx: usize| if n_operands == 1 { vjp.cotangent.clone() } else { vjp.cotangent.element(idx) };
    let moved: Vec<(usize, InstrId)> = (0..n_operands)
        .filter(|&idx| vjp.wants(idx))
        .filter_map(|idx| cotangent_of(idx).array().map(|id| (idx, id)))
        .collect();
    // Sorted by origin, every cotangent is at the place of its element.
    let keyed: Vec<InstrId> = [origin].into_iter().chain(moved.iter().map(|(_, id)| *id)).collect();
    let dtypes: Vec<DType> = keyed.iter().map(|&id| e.dtype(id)).collect();
    let by_origin = e.with_module_mut(|module| origin_comparator(module, &dtypes));
    let back = e.emit(Op::Sort { dimension, is_stable: false, to_apply: by_origin }, &keyed, None);
    let mut cotangents = vec![Cotangent::Zero; n_operands];
    for (place, (idx, _)) in moved.iter().enumerate() {
        cotangents[*idx] = Cotangent::Array(e.get_tuple_element(back, place + 1));
    }
    Ok(cotangents)
}

/// A copy of a comparator of `n_operands` pairs that takes one more pair, of s32, and ignores it.
fn comparator_with_counter(module: &mut Module, comparator: CompId, n_operands: i64) -> CompId {
    let comp = copy_computation(module, comparator, "sort_with_counter");
    let root = module.comp(comp).root;
    for number in [2 * n_operands, 2 * n_operands + 1] {
        let scalar = Shape::scalar(DType::S32);
        module.append(comp, Op::parameter(number), Vec::new(), scalar, Metadata::default());
    }
    module.computations[comp.idx()].root = root;
    comp
}

/// The comparator `(i, j, …) -> i < j` over pairs of `dtypes`, of which the first is s32.
fn origin_comparator(module: &mut Module, dtypes: &[DType]) -> CompId {
    let comp = module.add_computation("sort_by_origin");
    let parameters: Vec<InstrId> = (0..2 * dtypes.len())
        .map(|number| {
            let scalar = Shape::scalar(dtypes[number / 2]);
            module.append(comp, Op::parameter(number as i64), Vec::new(), scalar, Metadata::default())
        })
        .collect();
    let op = Op::Compare { direction: Comparison::Lt, kind: None };
    module.append(comp, op, parameters[..2].to_vec(), Shape::scalar(DType::Pred), Metadata::default());
    comp
}
