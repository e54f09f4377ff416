//! Reverse mode over called computations.

use super::reverse;
use crate::PassError;
use bf16scope_hlo::ops::control::grad::{arrays_of, float_leaves};
use bf16scope_hlo::ops::grad::{Cotangent, Why};
use bf16scope_hlo::{CompId, Emitter, InstrId, Module, Shape};
use std::cell::RefCell;
use std::collections::HashMap;

/// The reversed computations, by their keys: each is written once, however often it is called. (A chain of forty
/// computations, each calling the next twice, would otherwise become 2^40.)
pub(super) type Written = RefCell<HashMap<Key, CompId>>;

/// A reversed computation depends on the original, on which parameters are wanted, on which parts of the result have a
/// cotangent, and on the shapes of these.
pub(super) type Key = (CompId, Vec<bool>, String, Vec<Shape>);

/// Differentiates computations of the module that `e` writes.
pub(super) struct Called<'a> {
    pub(super) e: &'a Emitter,
    /// For each instruction of the computation that `e` writes whether it depends on a variable.
    pub(super) varied: &'a [bool],
    pub(super) written: &'a Written,
}

impl Called<'_> {
    /// As [`CalledGradient::vjp_computation`](bf16scope_hlo::ops::grad::CalledGradient::vjp_computation).
    pub(super) fn reversed(&self, comp: CompId, wanted: &[bool], cotangent: &Cotangent) -> Result<CompId, Why> {
        let seed_shapes: Vec<Shape> = arrays_of(cotangent).into_iter().map(|id| self.e.shape(id)).collect();
        let key = (comp, wanted.to_vec(), structure(cotangent), seed_shapes.clone());
        if let Some(&vjp) = self.written.borrow().get(&key) {
            return Ok(vjp);
        }
        let (vjp, ()) = write_copy(self.e, comp, |inner, parameters, root| {
            write(inner, comp, (parameters, root), wanted, cotangent, &seed_shapes, self.written)
        })?;
        self.written.borrow_mut().insert(key, vjp);
        Ok(vjp)
    }
}

/// Writes a computation that begins with the instructions of `comp`, with the same ids; `write` gets its parameters by
/// number and its root. It is removed again if `write` fails.
pub(super) fn write_copy<R>(
    e: &Emitter,
    comp: CompId,
    write: impl FnOnce(&Emitter, &[InstrId], InstrId) -> Result<R, Why>,
) -> Result<(CompId, R), Why> {
    let name = e.with_module(|module| format!("{}_gradient", module.comp(comp).name));
    within(e, &name, |inner| {
        let (parameters, root) = copy_body(inner, comp);
        write(inner, &parameters, root)
    })
}

/// Writes a new computation in the module that `e` writes. It is removed again if `write` fails.
pub(super) fn within<R>(
    e: &Emitter,
    name: &str,
    write: impl FnOnce(&Emitter) -> Result<R, Why>,
) -> Result<(CompId, R), Why> {
    let (n_computations, comp) = e.with_module_mut(|module| (module.computations.len(), module.add_computation(name)));
    match lend(e, comp, write) {
        Ok(result) => Ok((comp, result)),
        Err(why) => {
            e.with_module_mut(|module| module.computations.truncate(n_computations));
            Err(why)
        }
    }
}

/// Lends the module of `e` to an emitter that writes its computation `comp`.
pub(super) fn lend<R>(e: &Emitter, comp: CompId, write: impl FnOnce(&Emitter) -> Result<R, Why>) -> Result<R, Why> {
    let module = e.with_module_mut(|module| std::mem::replace(module, Module::new("")));
    let inner = Emitter::new(module, comp);
    let result = write(&inner);
    let error = inner.error();
    let module = inner.with_module_mut(|module| std::mem::replace(module, Module::new("")));
    e.with_module_mut(|lent| *lent = module);
    match error {
        Some(error) => Err(format!("in what it calls, {error}").into()),
        None => result,
    }
}

/// Which parts of a value have a cotangent: `0` for none, `a` for an array, and parentheses around a tuple's elements.
fn structure(cotangent: &Cotangent) -> String {
    match cotangent {
        Cotangent::Zero => "0".to_string(),
        Cotangent::Array(_) => "a".to_string(),
        Cotangent::Tuple(elements) => format!("({})", elements.iter().map(structure).collect::<String>()),
    }
}

/// Writes the reverse of `comp` into the computation of `e`.
fn write(
    e: &Emitter,
    comp: CompId,
    (parameters, root): (&[InstrId], InstrId),
    wanted: &[bool],
    cotangent: &Cotangent,
    seed_shapes: &[Shape],
    written: &Written,
) -> Result<(), Why> {
    let n_parameters = parameters.len() as i64;
    let mut arrays = (0..).zip(seed_shapes).map(|(idx, shape)| e.parameter(n_parameters + idx, shape));
    let seed = with_arrays(cotangent, &mut arrays);
    let wrt: Vec<InstrId> =
        parameters.iter().zip(wanted).filter(|(_, wanted)| **wanted).map(|(&parameter, _)| parameter).collect();
    let cotangents = reverse(e, root, seed, &wrt, written)
        .map_err(|error| Why::from(format!("in what it calls, {}", in_original(e, comp, error))))?;
    let mut leaves = Vec::new();
    for &parameter in &wrt {
        let cotangent = cotangents.get(parameter.idx()).cloned().unwrap_or_default();
        push_leaves(e, &e.shape(parameter), &cotangent, &mut leaves);
    }
    e.tuple(&leaves);
    Ok(())
}

/// The same error, with the place of the instruction of `comp` instead of its copy.
pub(super) fn in_original(e: &Emitter, comp: CompId, mut error: PassError) -> PassError {
    error.correct_place(|at| {
        e.with_module(|module| {
            let copies = &module.comp(e.comp()).instructions;
            let original = module.comp(comp);
            let idx = copies.iter().position(|copy| copy.name == at.instruction);
            if let Some(instr) = idx.and_then(|idx| original.instructions.get(idx)) {
                at.computation.clone_from(&original.name);
                at.instruction.clone_from(&instr.name);
            }
        });
    });
    error
}

/// Copies the instructions of `comp`; returns its parameters by number and its root in the copy.
fn copy_body(e: &Emitter, comp: CompId) -> (Vec<InstrId>, InstrId) {
    e.with_module_mut(|module| {
        let original = module.comp(comp).clone();
        let (parameters, root) = (original.parameters(), original.root);
        for instr in original.instructions {
            // The ids stay the same, as the copy starts empty.
            module.append_copy(e.comp(), instr);
        }
        (parameters, root)
    })
}

/// `cotangent` with its arrays replaced, depth first.
fn with_arrays(cotangent: &Cotangent, arrays: &mut dyn Iterator<Item = InstrId>) -> Cotangent {
    match cotangent {
        Cotangent::Zero => Cotangent::Zero,
        Cotangent::Array(_) => arrays.next().map_or(Cotangent::Zero, Cotangent::Array),
        Cotangent::Tuple(elements) => {
            Cotangent::Tuple(elements.iter().map(|element| with_arrays(element, arrays)).collect())
        }
    }
}

/// One array per floating leaf of `shape`: the cotangent's, or zeros.
fn push_leaves(e: &Emitter, shape: &Shape, cotangent: &Cotangent, leaves: &mut Vec<InstrId>) {
    match (shape, cotangent) {
        (Shape::Tuple(elements), cotangent) => {
            for (idx, element) in elements.iter().enumerate() {
                push_leaves(e, element, &cotangent.element(idx), leaves);
            }
        }
        (shape, Cotangent::Array(id)) if !float_leaves(shape).is_empty() => leaves.push(*id),
        (shape, Cotangent::Zero | Cotangent::Array(_) | Cotangent::Tuple(_)) => {
            for leaf in float_leaves(shape) {
                let dtype = leaf.dtype().expect("a floating leaf is an array");
                leaves.push(e.full(dtype, leaf.dims(), 0.0));
            }
        }
    }
}
