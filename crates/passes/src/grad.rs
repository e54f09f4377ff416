//! Reverse-mode differentiation of HLO.
//!
//! [`gradients`] appends the gradients of a scalar to the computation that an [`Emitter`] writes; [`run`] does so for
//! the entry of a whole module. [`ops::decisions::gradient`](bf16scope_hlo::ops::decisions::gradient) holds the rule of
//! each op. This file walks the graph, sums cotangents, and reports what has no gradient.
//!
//! An array with a [custom VJP](bf16scope_hlo::CustomVjp) passes its cotangent to the inputs of the VJP, and the
//! instructions between are skipped. A mark of a custom VJP whose rule the emitter does not have is an error.
//!
//! The walk visits only instructions between a variable and the output: those that depend on a variable through
//! floating-point values and that the output uses. So the cost is linear in the instructions up to the output. Every
//! emitted instruction carries the source line of its primal, and the primal's name under `gradient/`.

use bf16scope_hlo::ops::decisions::gradient;
use bf16scope_hlo::ops::grad::{CalledGradient, Cotangent, Cotangents, Gradient, Vjp, Why};
use bf16scope_hlo::{CompId, DType, Emitter, InstrId, Instruction, Metadata, Module, Op, POISON, Shape, Value};
use std::collections::BTreeSet;

mod called;
mod custom;
mod inline;
mod residuals;
mod trips;
mod while_loop;

use crate::{PassError, PassErrorKind, Place};
use called::{Called, Written};
pub use while_loop::rematerialise_trips;

/// Appends the gradients of `output` with respect to each of `wrt`, and returns them in order: each has the dtype and
/// dims of its variable. A variable that the output does not depend on, or only through integers and functions that are
/// constant almost everywhere, gets zeros.
///
/// Values are given as ids or as `Tensor`s; a `Tensor` of another graph is an error. `wrt` may be parameters or values
/// computed from them. The emitter's metadata is restored.
///
/// # Errors
/// The output is not a floating-point scalar, a variable is not a floating-point array, or an instruction between them
/// has no gradient. Instructions may have been appended by then, but nothing uses them.
#[track_caller]
pub fn gradients<V: Value>(e: &Emitter, output: V, wrt: &[V]) -> Result<Vec<InstrId>, PassError> {
    Ok(gradients_reached(e, output, wrt)?.into_iter().map(|(gradient, _)| gradient).collect())
}

/// As [`gradients`], with whether a gradient reaches the variable: if not, the zeros mean nothing.
///
/// # Errors
/// As [`gradients`].
#[track_caller]
pub fn gradients_reached<V: Value>(e: &Emitter, output: V, wrt: &[V]) -> Result<Vec<(InstrId, bool)>, PassError> {
    Ok(gradients_observed(e, output, wrt, &[])?.0)
}

/// The gradients, each with whether it reaches its variable, and the cotangents of the observed values.
pub(crate) type Observed = (Vec<(InstrId, bool)>, Vec<Option<InstrId>>);

/// As [`gradients_reached`], with the cotangent of each of `observed`, values before the output; `None` for a value
/// that reverse mode does not visit. The emitted instructions are the same as without `observed`.
///
/// # Errors
/// As [`gradients`].
#[track_caller]
pub fn gradients_observed<V: Value>(
    e: &Emitter,
    output: V,
    wrt: &[V],
    observed: &[InstrId],
) -> Result<Observed, PassError> {
    let output = output.id_in(e);
    let mut wrt_ids = Vec::with_capacity(wrt.len());
    // A loop rather than a closure, so that an error names the caller's line.
    for value in wrt {
        wrt_ids.push(value.id_in(e));
    }
    let wrt: &[InstrId] = &wrt_ids;
    if let Some(error) = e.error() {
        return Err(PassError::from(Box::new(error)));
    }
    check(e, output, wrt)?;
    let outer_metadata = e.set_metadata(Metadata::default());
    let seed = Cotangent::Array(e.scalar(e.dtype(output), 1.0));
    let cotangents = reverse(e, output, seed, wrt, &Written::default());
    let result = cotangents.map(|cotangents| {
        let array_cotangent = |id: &InstrId| cotangents.get(id.idx()).cloned().unwrap_or_default().array();
        let or_zeros = |variable: &InstrId| match array_cotangent(variable) {
            Some(gradient) => (gradient, true),
            None => (e.zeros_like(*variable), false),
        };
        (wrt.iter().map(or_zeros).collect(), observed.iter().map(array_cotangent).collect())
    });
    e.set_metadata(outer_metadata);
    match e.error() {
        Some(error) => Err(PassError::from(Box::new(error))),
        None => result,
    }
}

/// Checks that ids exist, and that their shapes have gradients.
fn check(e: &Emitter, output: InstrId, wrt: &[InstrId]) -> Result<(), PassError> {
    let n_instructions = e.n_instructions();
    for &id in wrt.iter().chain([&output]) {
        if id == POISON || id.idx() >= n_instructions {
            let text = format!("instruction {} was asked for, but the computation has {n_instructions}", id.0);
            return Err(PassError::new(PassErrorKind::Request, text));
        }
    }
    let place = |id| e.with_module(|module| Place::new(module, e.comp(), id));
    let shape = e.shape(output);
    if !shape.is_scalar() || !shape.dtype().is_some_and(DType::is_float) {
        let text = format!("a gradient is that of a floating scalar, but this is {shape}");
        let error = PassError::new(PassErrorKind::Request, text).at(place(output));
        return Err(error.with_help("reduce it to a scalar loss first"));
    }
    for &id in wrt {
        let shape = e.shape(id);
        if !shape.dtype().is_some_and(DType::is_float) {
            let text = format!("gradients are with respect to floating arrays, but this is {shape}");
            return Err(PassError::new(PassErrorKind::Request, text).at(place(id)));
        }
    }
    Ok(())
}

/// The cotangents of all instructions up to `output`, by id, given that of `output`. They are complete for `wrt` and
/// for instructions between.
fn reverse(
    e: &Emitter,
    output: InstrId,
    seed: Cotangent,
    wrt: &[InstrId],
    written: &Written,
) -> Result<Vec<Cotangent>, PassError> {
    let active = active_instructions(e, output, wrt)?;
    let mut cotangents = vec![Cotangent::Zero; output.idx() + 1];
    cotangents[output.idx()] = seed;
    for id in (0..=output.0).rev().map(InstrId) {
        if !active.on_path[id.idx()] || cotangents[id.idx()].is_zero() {
            continue;
        }
        let (op, mut operands, metadata) = e.with_module(|module| {
            let instr = module.comp(e.comp()).instr(id);
            (instr.op.clone(), instr.operands.clone(), gradient_metadata(instr))
        });
        let custom = e.custom_vjp(id);
        if let Some(custom) = &custom {
            operands.clone_from(&custom.inputs);
        }
        if active.without_rule.contains(&id) {
            let at = e.with_module(|module| Place::new(module, e.comp(), id));
            return Err(custom::no_rule(at));
        }
        let wanted: Vec<bool> = operands.iter().map(|operand| active.varied[operand.idx()]).collect();
        if !wanted.contains(&true) {
            continue;
        }
        e.set_metadata(metadata);
        if let (Op::GetTupleElement { index }, None, None) = (&op, &custom, unsupported_shape(&e.shape(id))) {
            // Added to the element's place: a cotangent of the whole tuple per element would be quadratic in their
            // number.
            let (tuple, element) = (operands[0].idx(), cotangents[id.idx()].clone());
            cotangents[tuple] = std::mem::take(&mut cotangents[tuple]).add_element(*index as usize, element, e);
            continue;
        }
        let operand_cotangents = match (custom, cotangents[id.idx()].array()) {
            (Some(custom), Some(g)) => {
                custom::cotangents(e, id, &custom, g, &wanted)?.into_iter().map(Cotangent::Array).collect()
            }
            _ => apply_rule(e, (id, &op, &operands), &wanted, &cotangents[id.idx()], &active.varied, written)?,
        };
        if let Some(error) = e.error() {
            return Err(PassError::from(Box::new(error)));
        }
        for ((operand, wanted), cotangent) in operands.iter().zip(wanted).zip(operand_cotangents) {
            if wanted {
                let sum = std::mem::take(&mut cotangents[operand.idx()]);
                cotangents[operand.idx()] = sum.add(cotangent, e);
            }
        }
    }
    Ok(cotangents)
}

/// The instructions to differentiate, by [`InstrId`], up to the output.
struct Active {
    /// Whether it depends on a variable through floating-point values.
    varied: Vec<bool>,
    /// Whether it is `varied`, and the output depends on it through floating-point values.
    on_path: Vec<bool>,
    /// Instructions with the mark of a custom VJP whose rule is missing.
    without_rule: BTreeSet<InstrId>,
}

fn active_instructions(e: &Emitter, output: InstrId, wrt: &[InstrId]) -> Result<Active, PassError> {
    e.with_module(|module| {
        let computation = module.comp(e.comp());
        let n_instructions = output.idx() + 1;
        let mut varied = vec![false; n_instructions];
        for id in wrt.iter().filter(|id| id.idx() < n_instructions) {
            varied[id.idx()] = true;
        }
        // An array with a custom VJP is a function of that VJP's inputs.
        let inputs = |id: InstrId| e.custom_vjp(id).map(|custom| custom.inputs);
        // Through any op, even one without a gradient: a custom VJP may have one although its instructions have none.
        let mut depends = varied.clone();
        let wrt: BTreeSet<InstrId> = wrt.iter().copied().collect();
        let (mut without_rule, mut lost) = (BTreeSet::new(), Vec::new());
        for (idx, instr) in computation.instructions[..n_instructions].iter().enumerate() {
            let id = InstrId(idx as u32);
            let is_fed = instr.operands.iter().any(|operand| depends[operand.idx()]);
            depends[idx] |= is_fed;
            varied[idx] |= match inputs(id) {
                Some(vjp_inputs) => {
                    let variable = custom::lost_variable(computation, id, &varied, &wrt, &inputs);
                    lost.extend(variable.map(|variable| (id, variable)));
                    variable.is_some() || vjp_inputs.iter().any(|input| varied[input.idx()])
                }
                None if instr.metadata.is_custom_vjp() && is_fed => without_rule.insert(id),
                None => instr.operands.iter().any(|operand| varied[operand.idx()]) && passes_variation(instr),
            };
        }
        let mut on_path = vec![false; n_instructions];
        on_path[output.idx()] = varied[output.idx()];
        for idx in (0..n_instructions).rev().filter(|&idx| varied[idx]) {
            if on_path[idx] {
                for operand in inputs(InstrId(idx as u32)).as_ref().unwrap_or(&computation.instructions[idx].operands) {
                    on_path[operand.idx()] |= varied[operand.idx()];
                }
            }
        }
        match lost.into_iter().find(|(id, _)| on_path[id.idx()]) {
            Some((id, variable)) => {
                let place = |id| Place::new(module, e.comp(), id);
                Err(custom::lost(place(id), &place(variable)))
            }
            None => Ok(Active { varied, on_path, without_rule }),
        }
    })
}

/// Whether an instruction with a varied operand varies: not if it has no floating-point (or complex) values, or is
/// constant almost everywhere.
fn passes_variation(instr: &Instruction) -> bool {
    let varies = |leaf: &&Shape| leaf.dtype().is_some_and(|dtype| dtype.is_float() || dtype.is_complex());
    instr.shape.leaves().iter().any(varies) && !matches!(gradient(&instr.op), Gradient::Zero { .. })
}

/// Applies the rule of one instruction.
fn apply_rule(
    e: &Emitter,
    (id, op, operands): (InstrId, &Op, &[InstrId]),
    wanted: &[bool],
    cotangent: &Cotangent,
    varied: &[bool],
    written: &Written,
) -> Result<Vec<Cotangent>, PassError> {
    let undefined = |why: &str| {
        let at = e.with_module(|module| Place::new(module, e.comp(), id));
        let text = format!("{} has no gradient: {why}", at.opcode);
        PassError::new(PassErrorKind::NoGradient, text).at(at)
    };
    if let Some(why) = unsupported_shape(&e.shape(id)) {
        return Err(undefined(why));
    }
    let called = Called { e, varied, written };
    let vjp = Vjp { e, operands, result: id, wanted, cotangent, called: &called };
    match gradient(op) {
        Gradient::Vjp(rule) => rule(&vjp).map_err(|why| undefined(&why)),
        Gradient::Zero { .. } => Ok(vec![Cotangent::Zero; operands.len()]),
        Gradient::Undefined { why } => Err(undefined(&why)),
    }
}

impl CalledGradient for Called<'_> {
    fn vjp_computation(&self, comp: CompId, wanted: &[bool], cotangent: &Cotangent) -> Result<CompId, Why> {
        self.reversed(comp, wanted, cotangent)
    }

    fn while_loop(&self, vjp: &Vjp<'_>, condition: CompId, body: CompId) -> Cotangents {
        while_loop::cotangents(self, vjp, condition, body)
    }
}

/// Why values of this shape have no cotangents.
fn unsupported_shape(shape: &Shape) -> Option<&'static str> {
    let arrays: Vec<_> = shape.leaves().into_iter().filter_map(Shape::as_array).collect();
    if arrays.iter().any(|array| array.dtype.is_complex()) {
        return Some("gradients of complex values are not defined here; work on real and imaginary parts");
    }
    if arrays.iter().any(|array| array.has_dynamic()) {
        return Some("a dimension's size is known at run time only; make it static");
    }
    None
}

/// The primal's metadata, with its name under `gradient/`.
fn gradient_metadata(instr: &Instruction) -> Metadata {
    let name = if instr.metadata.op_name.is_empty() { &instr.name } else { &instr.metadata.op_name };
    let op_type = if instr.metadata.is_custom_vjp() { String::new() } else { instr.metadata.op_type.clone() };
    Metadata { op_name: format!("gradient/{name}"), op_type, ..instr.metadata.clone() }
}

/// The loss and the variables of a whole module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The element of the entry's result tuple that is the loss; 0 if the result is not a tuple.
    pub loss: usize,
    /// The entry's parameters to differentiate with respect to, by number.
    pub wrt: Vec<i64>,
}

/// The report of [`run`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GradReport {
    /// For each parameter of [`Config::wrt`] its number and the index of its gradient in the result tuple.
    pub gradients: Vec<(i64, usize)>,
    /// Number of instructions of the entry before.
    pub n_instructions_before: usize,
    /// The same after.
    pub n_instructions_after: usize,
}

/// Differentiates a module: its result becomes the tuple of the original results followed by the gradients of the
/// loss. The entry layout is dropped, as it is that of another result.
///
/// # Errors
/// As [`gradients`]; or a result or parameter does not exist.
pub fn run(module: &Module, config: &Config) -> Result<(Module, GradReport), PassError> {
    let entry = module.entry();
    let root = entry.root;
    let is_tuple = entry.result_shape().as_tuple().is_some();
    let n_results = entry.result_shape().as_tuple().map_or(1, <[Shape]>::len);
    if config.loss >= n_results {
        let text = format!("result {} was asked for, but the module has {n_results}", config.loss);
        return Err(PassError::new(PassErrorKind::Request, text));
    }
    let parameters = entry.parameters();
    let find = |&number: &i64| {
        let place = usize::try_from(number).ok().and_then(|number| parameters.get(number));
        place.copied().ok_or_else(|| {
            let text = format!("parameter {number} was asked for, but the entry has {}", parameters.len());
            PassError::new(PassErrorKind::Request, text)
        })
    };
    let wrt = config.wrt.iter().map(find).collect::<Result<Vec<InstrId>, PassError>>()?;
    let n_instructions_before = entry.instructions.len();

    let mut copy = module.clone();
    copy.entry_layout = None;
    copy.is_scheduled = false;
    if !is_tuple {
        // The only result becomes element 0.
        copy.input_output_alias.iter_mut().for_each(|alias| alias.output_index = vec![0]);
    }
    let e = Emitter::new(copy, module.entry);
    let results: Vec<InstrId> = match &entry.instr(root).op {
        Op::Tuple => entry.instr(root).operands.clone(),
        _ if is_tuple => (0..n_results).map(|index| e.get_tuple_element(root, index)).collect(),
        _ => vec![root],
    };
    let gradients = gradients(&e, results[config.loss], &wrt)?;
    e.tuple(&[results.as_slice(), &gradients].concat());
    let module = e.finish().map_err(PassError::from)?;
    let report = GradReport {
        gradients: config.wrt.iter().enumerate().map(|(idx, &number)| (number, n_results + idx)).collect(),
        n_instructions_before,
        n_instructions_after: module.entry().instructions.len(),
    };
    Ok((module, report))
}
