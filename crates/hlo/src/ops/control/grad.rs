//! Gradients of tuples, calls, branches and barriers.
//!
//! A called computation is differentiated as a separate computation, which recomputes the forward values: XLA inlines
//! calls and merges the common values, but a branch is evaluated twice.

use super::Conditional;
use crate::ops::grad::{Cotangent, Cotangents, Vjp, Why};
use crate::{CompId, DType, Emitter, InstrId, Metadata, Module, Op, Shape};

/// Each element has its own cotangent.
pub(crate) fn tuple(vjp: &Vjp<'_>) -> Cotangents {
    Ok((0..vjp.operands.len()).map(|idx| vjp.cotangent.element(idx)).collect())
}

/// The cotangent goes to one element of the tuple's.
pub(crate) fn get_tuple_element(vjp: &Vjp<'_>, index: i64) -> Cotangents {
    let mut elements = vec![Cotangent::Zero; index as usize + 1];
    elements[index as usize] = vjp.cotangent.clone();
    Ok(vec![Cotangent::Tuple(elements)])
}

/// The identity.
pub(crate) fn optimization_barrier(vjp: &Vjp<'_>) -> Cotangents {
    if vjp.operands.len() == 1 {
        return Ok(vec![vjp.cotangent.clone()]);
    }
    tuple(vjp)
}

/// Calls the callee's reverse.
pub(crate) fn call(vjp: &Vjp<'_>, to_apply: CompId) -> Cotangents {
    let e = vjp.e;
    let comp = vjp.called.vjp_computation(to_apply, vjp.wanted, vjp.cotangent)?;
    let operands = [vjp.operands, &arrays_of(vjp.cotangent)].concat();
    let results = e.emit(Op::Call { to_apply: comp }, &operands, None);
    let mut n_taken = 0;
    let cotangents = vjp.operands.iter().zip(vjp.wanted).map(|(&operand, &wanted)| {
        if wanted { take_leaves(e, results, &e.shape(operand), &mut n_taken) } else { Cotangent::Zero }
    });
    Ok(cotangents.collect())
}

/// The most results of all reversed branches of one conditional together. Their number grows with the square of the
/// branches.
const MAX_BRANCH_RESULTS: usize = 1 << 20;

/// A conditional over the branches' reverses: each returns the cotangents of its own argument, and zeros for those of
/// the others.
pub(crate) fn conditional(vjp: &Vjp<'_>, attributes: &Conditional) -> Cotangents {
    let e = vjp.e;
    let cotangent_arrays = arrays_of(vjp.cotangent);
    let arguments = &vjp.operands[1..];
    // The floating-point leaves of every wanted argument, branch by branch: the result of every reversed branch.
    let leaves: Vec<Vec<Shape>> = (arguments.iter().enumerate())
        .map(|(idx, &argument)| if vjp.wants(idx + 1) { float_leaves(&e.shape(argument)) } else { Vec::new() })
        .collect();
    let n_results = leaves.iter().map(Vec::len).sum::<usize>().saturating_mul(leaves.len());
    if n_results > MAX_BRANCH_RESULTS {
        let message = format!(
            "each of its {} branches would give cotangents for the arguments of all, {n_results} together, expected at most \
             {MAX_BRANCH_RESULTS}; give it fewer branches, or select among results",
            leaves.len()
        );
        return Err(message.into());
    }
    let mut branches = Vec::new();
    let mut operands = vec![vjp.operands[0]];
    for (idx, (&branch, &argument)) in attributes.branches.iter().zip(arguments).enumerate() {
        let comp = vjp.called.vjp_computation(branch, &[vjp.wants(idx + 1)], vjp.cotangent)?;
        let packed = e.tuple(&[&[argument], cotangent_arrays.as_slice()].concat());
        branches.push(reversed_branch(e, comp, packed, &leaves, idx)?);
        operands.push(packed);
    }
    let results = e.emit(Op::Conditional(Conditional { branches }), &operands, None);
    let mut n_taken = 0;
    let mut cotangents = vec![Cotangent::Zero];
    for (idx, &argument) in arguments.iter().enumerate() {
        let wanted = vjp.wants(idx + 1);
        let shape = e.shape(argument);
        cotangents.push(if wanted { take_leaves(e, results, &shape, &mut n_taken) } else { Cotangent::Zero });
    }
    Ok(cotangents)
}

/// The branch `(argument, cotangents…) -> (…zeros, comp(argument, cotangents…)…, zeros…)`.
fn reversed_branch(
    e: &Emitter,
    comp: CompId,
    packed: InstrId,
    leaves: &[Vec<Shape>],
    own: usize,
) -> Result<CompId, Why> {
    let parameter_shape = e.shape(packed);
    let Some(elements) = parameter_shape.as_tuple().map(<[Shape]>::to_vec) else {
        return Err("an earlier error".into());
    };
    e.with_module_mut(|module| {
        let branch = module.add_computation("reversed_branch");
        let push = |module: &mut Module, op, operands: Vec<InstrId>, shape: Shape| {
            module.append(branch, op, operands, shape, Metadata::default())
        };
        let parameter = push(module, Op::parameter(0), Vec::new(), parameter_shape);
        let arguments: Vec<InstrId> = (elements.into_iter().enumerate())
            .map(|(index, shape)| push(module, Op::GetTupleElement { index: index as i64 }, vec![parameter], shape))
            .collect();
        let result_shape = module.comp(comp).result_shape().clone();
        let called = push(module, Op::Call { to_apply: comp }, arguments, result_shape);
        let mut results = Vec::new();
        for (idx, shapes) in leaves.iter().enumerate() {
            for (index, shape) in shapes.iter().enumerate() {
                results.push(if idx == own {
                    push(module, Op::GetTupleElement { index: index as i64 }, vec![called], shape.clone())
                } else {
                    push_zeros(module, branch, shape)?
                });
            }
        }
        let shape = Shape::Tuple(leaves.iter().flatten().cloned().collect());
        push(module, Op::Tuple, results, shape);
        Ok(branch)
    })
}

/// Zeros of an array shape, appended to `comp`.
fn push_zeros(module: &mut Module, comp: CompId, shape: &Shape) -> Result<InstrId, Why> {
    let dtype = shape.dtype().unwrap_or(DType::F32);
    let zero = crate::Literal::scalar_of(dtype, 0.0)
        .ok_or_else(|| Why::from(format!("zeros of {dtype} have no literal rule")))?;
    let scalar = module.append(comp, Op::Constant(zero), Vec::new(), Shape::scalar(dtype), Metadata::default());
    if shape.is_scalar() {
        return Ok(scalar);
    }
    let op = Op::Broadcast { dimensions: Vec::new() };
    Ok(module.append(comp, op, vec![scalar], shape.without_layout(), Metadata::default()))
}

/// The arrays of a cotangent, depth first.
pub fn arrays_of(cotangent: &Cotangent) -> Vec<InstrId> {
    match cotangent {
        Cotangent::Zero => Vec::new(),
        Cotangent::Array(id) => vec![*id],
        Cotangent::Tuple(elements) => elements.iter().flat_map(arrays_of).collect(),
    }
}

/// The floating-point arrays of a shape, depth first, without layouts.
pub fn float_leaves(shape: &Shape) -> Vec<Shape> {
    let leaves = shape.leaves();
    leaves.into_iter().filter(|leaf| leaf.dtype().is_some_and(DType::is_float)).map(Shape::without_layout).collect()
}

/// A cotangent of a value of `shape` whose floating-point leaves are the elements of tuple `results` from `n_taken`
/// on.
fn take_leaves(e: &Emitter, results: InstrId, shape: &Shape, n_taken: &mut usize) -> Cotangent {
    match shape {
        Shape::Array(array) if array.dtype.is_float() => {
            let leaf = e.get_tuple_element(results, *n_taken);
            *n_taken += 1;
            Cotangent::Array(leaf)
        }
        Shape::Tuple(elements) => {
            Cotangent::Tuple(elements.iter().map(|element| take_leaves(e, results, element, n_taken)).collect())
        }
        Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => Cotangent::Zero,
    }
}
