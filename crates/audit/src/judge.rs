//! Decides which results are judged: not noise of f32, not unselected results, and not the signs of an optimizer's
//! first update.
//!
//! The f32 module also runs in f64 ([`widen`]), once. [`noise`](super::noise) determines which elements of a result are
//! noise, and the error of the others. State that is elementwise in another array, as an optimizer's moments and
//! variables are in a gradient, is noise where that array is: its *source* runs in f32 and in f64 too. Otherwise the
//! state of a run in bf16, which contains the noise of earlier steps, would make a gradient that is zero in theory look
//! significant. State is a result that aliases a parameter, or is elementwise in one of its size.
//!
//! The first update of Adam and similar optimizers is `g / |g|`: its size is the learning rate whatever the gradient,
//! and its sign the gradient's. A tiny gradient whose sign is uncertain in bf16 then moves a weight by twice that,
//! which adds no information to the gradient's own result (the first moment). Such an update is recognised by its form
//! and its values: a quotient whose denominator is a square root (plus a constant), with equal magnitudes in three
//! quarters of its nonzero elements, where the state under that root (a second moment) was zero: the update of a single
//! bias is of one size at any step. Results that are sums and products of one are judged only if nothing else is.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::noise::{Measured, Noise, decided, has_noise, measure, noisy};
use super::{AuditError, ResultRow, device, taps};
use bf16scope_hlo::element::floats;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{InstrId, Instruction, Literal, Module, Op, verify};
use bf16scope_passes::name_pattern;
use bf16scope_passes::widen;
use bf16scope_pjrt::Client;

/// Elements of a sign-like update have equal magnitudes: within a tenth of the largest.
const OF_ONE_SIZE: f64 = 0.9;
/// An element counts as zero below this share of the largest: a row that a lookup does not touch, a gradient below the
/// optimizer's epsilon.
const ZERO: f64 = 1.0 / 1024.0;
/// The share of nonzero elements that must have equal magnitudes.
const SHARE: f64 = 0.75;

/// Selects results by patterns of their names, of `outN`, or of the instructions that compute them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultChoice {
    /// Names of the results, in order, if known.
    pub names: Vec<String>,
    /// Only these; all if empty.
    pub only: Vec<String>,
    /// Not these.
    pub ignore: Vec<String>,
}

/// Whether a result is judged, with the reason if it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Judgement {
    /// It is judged.
    Judged,
    /// All its nonzero elements are noise in f32.
    Noise,
    /// It is all 0 in f32 and in f64, but not when lowered: the error has no scale.
    NoScale,
    /// An optimizer's first update, which has no information beyond its sign.
    SignLike,
    /// It was not selected.
    Ignored,
    /// It holds no floats.
    NotFloating,
}

/// Facts about the f32 module, from before anything is lowered.
#[derive(Debug)]
pub(super) struct Judge {
    /// The results in f64, or the reason why they could not be computed.
    exact: Result<Vec<Literal>, String>,
    /// Names for each array of the result; empty if unknown.
    names: Vec<String>,
    /// The scoped names of the instructions that compute them.
    op_names: Vec<String>,
    is_chosen: Vec<bool>,
    is_sign_like: Vec<bool>,
    /// For the arrays of the result, the elements whose source is noise.
    noisy: Masks,
    /// Names of an optimizer's first updates, and of the instructions from the root to the quotient; and of updates
    /// whose gradients are noise in part.
    updates: BTreeSet<String>,
}

impl Judge {
    /// Runs the module in f64.
    ///
    /// # Errors
    /// A pattern that matches no result.
    pub(super) fn new(
        client: &Client,
        module: &Module,
        inputs: &[Literal],
        choice: &ResultChoice,
    ) -> Result<Judge, AuditError> {
        let mut judge = Judge::choosing(module, choice)?;
        let quotients = quotients(module);
        let sources = Sources::of_results(module);
        let taps: Vec<InstrId> = quotients.iter().chain(&sources.arrays).copied().collect();
        let mut updates;
        (judge.exact, updates) = match in_f64(client, module, inputs, &taps) {
            Ok((exact, updates)) => (Ok(exact), updates),
            Err(why) => (Err(why), Vec::new()),
        };
        let exact_sources = updates.split_off(quotients.len().min(updates.len()));
        let mut in_noise = Vec::new();
        if judge.exact.is_ok() && !sources.arrays.is_empty() {
            (judge.noisy, in_noise) = sources.noisy(client, module, inputs, &exact_sources)?;
        }
        let is_update = |(id, values): &(&InstrId, Literal)| {
            let state = state_under_root(module, **id).into_iter();
            let state: Vec<Vec<f64>> = state.filter_map(|number| values_of(inputs.get(number)?)).collect();
            values_of(values).is_some_and(|values| is_sign_like(&values, &state))
        };
        let updates: BTreeSet<InstrId> = quotients.iter().zip(updates).filter(is_update).map(|(&id, _)| id).collect();
        let denominators = updates.iter().flat_map(|&id| module.entry().instr(id).operands.clone());
        let roots = denominators.flat_map(|id| root_path(module, id, FAR)).chain(updates.iter().copied());
        let is_of_noise = |id: &InstrId| sources.is_any(&Behind::of_result(module, *id), &in_noise);
        let of_noise = quotients.iter().copied().filter(is_of_noise);
        judge.updates = roots.chain(of_noise).map(|id| module.entry().instr(id).name.clone()).collect();
        let moved = moved_by(module, updates);
        judge.is_sign_like = taps::result_makers(module).iter().map(|maker| moved.contains(maker.as_str())).collect();
        Ok(judge)
    }

    /// The same, with results in f64 that another auditor computed, or the reason why they are missing. It does not
    /// detect an optimizer's first updates.
    ///
    /// # Errors
    /// A pattern that matches no result.
    pub(super) fn beside(
        module: &Module,
        choice: &ResultChoice,
        exact: Result<Vec<Literal>, String>,
    ) -> Result<Judge, AuditError> {
        Ok(Judge { exact, ..Judge::choosing(module, choice)? })
    }

    /// A judge that only selects results.
    fn choosing(module: &Module, choice: &ResultChoice) -> Result<Judge, AuditError> {
        let makers = taps::result_makers(module);
        let by_name: BTreeMap<&str, &Instruction> =
            module.entry().instructions.iter().map(|instr| (instr.name.as_str(), instr)).collect();
        let op_name =
            |maker: &String| by_name.get(maker.as_str()).map_or(String::new(), |instr| instr.metadata.op_name.clone());
        let op_names: Vec<String> = makers.iter().map(op_name).collect();
        let name_of = |index: usize| choice.names.get(index).cloned().unwrap_or_default();
        let names: Vec<String> = (0..makers.len()).map(name_of).collect();
        let matches = |pattern: &String, index: usize| {
            let out = format!("out{index}");
            let named = [&names[index], &op_names[index], &out].iter().any(|name| name_pattern::matches(pattern, name));
            named || name_pattern::matches(name_pattern::bare(pattern), &makers[index])
        };
        let everyone: Vec<usize> = (0..names.len()).collect();
        if let Some(pattern) = (choice.only.iter().chain(&choice.ignore))
            .find(|pattern| !everyone.iter().any(|&index| matches(pattern, index)))
        {
            let shown =
                |index: &usize| [&names[*index], &op_names[*index]].into_iter().find(|name| !name.is_empty()).cloned();
            let known = everyone.iter().take(8).map(|index| shown(index).unwrap_or(format!("out{index}")));
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(AuditError::NoResult { pattern: pattern.clone(), n_results: names.len(), known });
        }
        let is_chosen = everyone.iter().map(|&index| {
            let is_in = choice.only.is_empty() || choice.only.iter().any(|pattern| matches(pattern, index));
            is_in && !choice.ignore.iter().any(|pattern| matches(pattern, index))
        });
        let is_chosen = is_chosen.collect();
        Ok(Judge {
            exact: Err(String::new()),
            names,
            op_names,
            is_chosen,
            is_sign_like: Vec::new(),
            noisy: Vec::new(),
            updates: BTreeSet::new(),
        })
    }

    /// Why f32's own error is unknown.
    pub(super) fn why_no_f64(&self) -> Option<&str> {
        self.exact.as_ref().err().map(String::as_str)
    }

    /// Names of an optimizer's first updates and of the roots in them, and of updates of noise.
    pub(super) fn updates(&self) -> &BTreeSet<String> {
        &self.updates
    }

    /// The name of a result, and the scoped name of the instruction that computes it.
    pub(super) fn names(&self, index: usize) -> [String; 2] {
        [&self.names, &self.op_names].map(|names| names.get(index).cloned().unwrap_or_default())
    }

    /// Judges the rows of these results in f32 and lowered.
    pub(super) fn judge(&self, rows: &mut [ResultRow], results: &[Literal], lowered: &[Literal]) {
        for row in rows.iter_mut() {
            let index = row.index;
            let is_chosen = self.is_chosen.get(index).copied().unwrap_or(true);
            if !is_chosen {
                row.judgement = Judgement::Ignored;
                continue;
            }
            let Some(errors) = row.errors else {
                let exact = self.exact.as_ref().ok().and_then(|exact| exact.get(index));
                let sure = exact.and_then(|exact| decided([exact, &results[index], &lowered[index]]));
                (row.n_differing, row.n_noise) = sure.unwrap_or((row.n_differing, 0));
                continue;
            };
            let exact = self.exact.as_ref().ok().and_then(|exact| values_of(exact.get(index)?));
            let both = values_of(&results[index]).zip(values_of(&lowered[index]));
            row.n_nan = both.as_ref().map_or(0, |(x, _)| x.iter().filter(|x| x.is_nan()).count() as u64);
            let noisy = self.noisy.get(index).and_then(Option::as_deref);
            let is_sign_like = self.is_sign_like.get(index).copied().unwrap_or(false);
            let measured = match (exact, both) {
                (Some(exact), Some((x, y))) => measure(&exact, &x, &y, noisy),
                // Without f64, noise is unknown.
                _ => Measured { error: Ok(errors.scaled), n_noise: 0, f32_error: None },
            };
            (row.n_noise, row.f32_error) = (measured.n_noise, measured.f32_error);
            (row.judged, row.judgement) = match measured.error {
                Ok(error) if is_sign_like => (Some(error), Judgement::SignLike),
                Ok(error) => (Some(error), Judgement::Judged),
                Err(Noise::All) => (None, Judgement::Noise),
                Err(Noise::NoScale) => (None, Judgement::NoScale),
            };
        }
        let is = |row: &ResultRow, judgement| row.judgement == judgement;
        if !rows.iter().any(|row| is(row, Judgement::Judged)) {
            let first = rows.iter_mut().filter(|row| row.judgement == Judgement::SignLike);
            first.for_each(|row| row.judgement = Judgement::Judged);
        }
        rows.iter_mut().filter(|row| row.judgement != Judgement::Judged).for_each(|row| row.judged = None);
    }
}

/// Results and these instructions in f64, or the reason why they could not be computed.
fn in_f64(
    client: &Client,
    module: &Module,
    inputs: &[Literal],
    wanted: &[InstrId],
) -> Result<(Vec<Literal>, Vec<Literal>), String> {
    let (wide, _) = widen::run(module, &widen::Config).map_err(|error| error.to_string())?;
    // Names do not change.
    let by_name: BTreeMap<&str, InstrId> =
        wide.entry().ids().map(|id| (wide.entry().instr(id).name.as_str(), id)).collect();
    let name = |&id: &InstrId| module.entry().instr(id).name.as_str();
    let taps: Option<Vec<InstrId>> = wanted.iter().map(|id| by_name.get(name(id)).copied()).collect();
    let taps = taps.ok_or("an instruction has another name there")?;
    let program = taps::results_and(&wide, &taps);
    verify(&program).map_err(|errors| errors.to_string())?;
    let inputs: Vec<Literal> = inputs.iter().map(widen::widened_literal).collect();
    let run = || -> Result<Vec<Literal>, AuditError> {
        let inputs = device::upload(client, &program, &inputs, false, &[])?;
        device::run(client, &program, &device::buffers(&inputs))?.iter().map(device::fetch).collect()
    };
    let mut outputs = run().map_err(|error| error.to_string())?;
    let updates = outputs.split_off(outputs.len() - taps.len());
    Ok((outputs, updates))
}

/// For each array which of its elements are noise, if any.
type Masks = Vec<Option<Vec<bool>>>;

/// The sources of state in the result, in which the state is elementwise: gradients of moments and variables.
struct Sources {
    /// The arrays, each once.
    arrays: Vec<InstrId>,
    /// For each array of the result, the indices of its sources, and whether it divides them by themselves.
    of_results: Vec<(Vec<usize>, bool)>,
}

impl Sources {
    /// Goes from each result that is state back through elementwise instructions to products, sums and the like.
    fn of_results(module: &Module) -> Sources {
        let entry = module.entry();
        let by_name: BTreeMap<&str, InstrId> = entry.ids().map(|id| (entry.instr(id).name.as_str(), id)).collect();
        let mut sources = Sources { arrays: Vec::new(), of_results: Vec::new() };
        for (maker, is_state) in taps::result_makers(module).into_iter().zip(taps::is_state(module)) {
            let behind = by_name.get(maker.as_str()).map(|&id| Behind::of_result(module, id));
            let behind = behind.filter(|behind| is_state || behind.is_of_parameter).unwrap_or_default();
            let places = behind.arrays.into_iter().map(|id| {
                sources.arrays.iter().position(|&other| other == id).unwrap_or_else(|| {
                    sources.arrays.push(id);
                    sources.arrays.len() - 1
                })
            });
            let places = places.collect();
            sources.of_results.push((places, behind.divides_by_itself));
        }
        sources
    }

    /// Whether any of the sources behind an array is one of these.
    fn is_any(&self, behind: &Behind, these: &[bool]) -> bool {
        let place = |array: &InstrId| self.arrays.iter().position(|other| other == array);
        behind.arrays.iter().filter_map(place).any(|place| these.get(place) == Some(&true))
    }

    /// Which elements of each result have a source that is noise, and which sources have such elements.
    fn noisy(
        &self,
        client: &Client,
        module: &Module,
        inputs: &[Literal],
        exact: &[Literal],
    ) -> Result<(Masks, Vec<bool>), AuditError> {
        let program = taps::alone(module, &self.arrays);
        let inputs = device::upload(client, &program, inputs, false, &[])?;
        let outputs = device::run(client, &program, &device::buffers(&inputs))?;
        let mut of_sources = Vec::with_capacity(self.arrays.len());
        let mut in_noise = Vec::with_capacity(self.arrays.len());
        for (exact, output) in exact.iter().zip(&outputs) {
            let both = values_of(exact).zip(values_of(&device::fetch(output)?));
            let both = both.as_ref();
            in_noise.push(both.is_some_and(|(exact, x)| has_noise(exact, x)));
            of_sources.push([false, true].map(|by_itself| both.and_then(|(exact, x)| noisy(exact, x, by_itself))));
        }
        let any = |(places, by_itself): &(Vec<usize>, bool)| {
            let masks = places.iter().filter_map(|&place| of_sources.get(place)?[usize::from(*by_itself)].clone());
            masks.reduce(|one, other| one.iter().zip(&other).map(|(one, other)| *one || *other).collect())
        };
        Ok((self.of_results.iter().map(any).collect(), in_noise))
    }
}

/// The most instructions between a gradient and a variable: LAMB with clipping and decay has forty.
const LONGEST_UPDATE: usize = 256;

/// The arrays of floats of a result's size in which it is elementwise.
#[derive(Default)]
struct Behind {
    /// Not the result itself, and no parameters.
    arrays: Vec<InstrId>,
    /// Whether a parameter is one, too, as the state before is of the state after.
    is_of_parameter: bool,
    /// Whether a root or a sign is between, as in an update that has the learning rate's size whatever the gradient.
    divides_by_itself: bool,
}

impl Behind {
    fn of_result(module: &Module, id: InstrId) -> Behind {
        let entry = module.entry();
        let dims = entry.instr(id).shape.dims();
        let (mut pending, mut seen, mut ends) = (vec![id], BTreeSet::from([id]), BTreeSet::new());
        let (mut is_of_parameter, mut divides_by_itself) = (false, false);
        while let Some(next) = pending.pop() {
            let instr = entry.instr(next);
            let is_array = instr.shape.as_array().is_some_and(|array| taps::is_floating(array.dtype));
            if !is_array || instr.shape.dims() != dims {
                continue;
            }
            divides_by_itself |= matches!(instr.op, Op::Unary(UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Sign));
            match instr.op {
                Op::Parameter { .. } => is_of_parameter = true,
                // A broadcast scalar is not such an array.
                Op::Constant(_) | Op::Broadcast { .. } => {}
                Op::Unary(_) | Op::Binary(_) | Op::Clamp | Op::Convert | Op::Select => {
                    if seen.len() < LONGEST_UPDATE {
                        pending.extend(instr.operands.iter().filter(|&&operand| seen.insert(operand)));
                    }
                }
                _ => {
                    ends.insert(next);
                }
            }
        }
        ends.remove(&id);
        Behind { arrays: ends.into_iter().collect(), is_of_parameter, divides_by_itself }
    }
}

/// Quotients by a square root, or by a square root plus a constant; and products with a reciprocal of these.
fn quotients(module: &Module) -> Vec<InstrId> {
    let entry = module.entry();
    let is_quotient = |instr: &Instruction| match &instr.op {
        Op::Binary(BinaryOp::Divide) => !root_path(module, instr.operands[1], FAR).is_empty(),
        Op::Binary(BinaryOp::Multiply) => {
            instr.operands.iter().any(|&id| matches!(entry.instr(id).op, Op::Unary(UnaryOp::Rsqrt)))
        }
        _ => false,
    };
    entry.ids().filter(|&id| is_quotient(entry.instr(id)) && entry.instr(id).shape.as_array().is_some()).collect()
}

/// The most instructions between a quotient and its root: sums, conversions, and broadcasts of optimizers are few.
const FAR: usize = 6;

/// The path from a value back to the square root that it moves, repeats or shifts; empty without such a path.
fn root_path(module: &Module, id: InstrId, n_more: usize) -> Vec<InstrId> {
    let instr = module.entry().instr(id);
    let through = match &instr.op {
        Op::Unary(UnaryOp::Sqrt | UnaryOp::Rsqrt) => return vec![id],
        Op::Binary(BinaryOp::Add | BinaryOp::Maximum) => &instr.operands[..],
        Op::Convert | Op::Broadcast { .. } | Op::Reshape => &instr.operands[..1],
        _ => return Vec::new(),
    };
    let more = n_more.checked_sub(1);
    let paths = through.iter().filter_map(|&id| Some(root_path(module, id, more?)));
    let mut path = paths.into_iter().find(|path| !path.is_empty()).unwrap_or_default();
    if !path.is_empty() {
        path.push(id);
    }
    path
}

/// The numbers of the parameters that are summed under a quotient's root, whole or times a decay: state such as second
/// moments. A gradient is squared there, and so is not part of it.
fn state_under_root(module: &Module, quotient: InstrId) -> BTreeSet<usize> {
    let entry = module.entry();
    let instr = entry.instr(quotient);
    let denominators = if matches!(instr.op, Op::Binary(BinaryOp::Divide)) { 1.. } else { 0.. };
    let roots = instr.operands[denominators].iter().filter_map(|&id| root_path(module, id, FAR).first().copied());
    let mut pending: Vec<InstrId> = roots.flat_map(|root| entry.instr(root).operands.clone()).collect();
    let is_decay = |id: InstrId| matches!(entry.instr(id).op, Op::Broadcast { .. } | Op::Constant(_));
    let (mut seen, mut state) = (BTreeSet::new(), BTreeSet::new());
    while let Some(id) = pending.pop() {
        let instr = entry.instr(id);
        let is_array = instr.shape.as_array().is_some_and(|array| taps::is_floating(array.dtype));
        if !is_array || seen.len() >= LONGEST_UPDATE || !seen.insert(id) {
            continue;
        }
        match &instr.op {
            Op::Parameter { number, .. } => state.extend(usize::try_from(*number).ok()),
            Op::Binary(BinaryOp::Multiply) if instr.operands.iter().any(|&id| is_decay(id)) => {
                pending.extend(&instr.operands);
            }
            Op::Binary(BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Maximum) => pending.extend(&instr.operands),
            Op::Binary(BinaryOp::Divide) | Op::Convert | Op::Reshape => pending.push(instr.operands[0]),
            Op::Select => pending.extend(&instr.operands[1..]),
            _ => {}
        }
    }
    state
}

/// Whether the nonzero elements have equal magnitudes, which they must have where all `state` of theirs is zero. One
/// element alone always has; it is a first update only if there is state that says so.
fn is_sign_like(values: &[f64], state: &[Vec<f64>]) -> bool {
    let state: Vec<&Vec<f64>> = state.iter().filter(|state| state.len() == values.len()).collect();
    let is_fresh = |at: usize| state.iter().all(|state| state[at] == 0.0);
    let greatest = values.iter().map(|v| v.abs()).fold(0.0, f64::max);
    let of_one_size = |&(at, v): &(usize, &f64)| v.abs() >= OF_ONE_SIZE * greatest && is_fresh(at);
    let n_of_one_size = values.iter().enumerate().filter(of_one_size).count() as f64;
    let n_nonzero = values.iter().filter(|v| v.abs() >= ZERO * greatest).count() as f64;
    let is_comparable = values.len() > 1 || !state.is_empty();
    greatest > 0.0 && greatest.is_finite() && is_comparable && n_of_one_size >= SHARE * n_nonzero
}

/// Names of values made of these by sums, products and moves alone.
fn moved_by(module: &Module, updates: BTreeSet<InstrId>) -> BTreeSet<&str> {
    let entry = module.entry();
    let mut moved = updates;
    for id in entry.ids() {
        let instr = entry.instr(id);
        let is_linear = matches!(
            instr.op,
            Op::Binary(BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Multiply)
                | Op::Unary(UnaryOp::Negate)
                | Op::Convert
                | Op::Reshape
                | Op::Select
        );
        if is_linear && instr.operands.iter().any(|operand| moved.contains(operand)) {
            moved.insert(id);
        }
    }
    moved.into_iter().map(|id| entry.instr(id).name.as_str()).collect()
}

/// The elements of an array of floats, as f64.
fn values_of(literal: &Literal) -> Option<Vec<f64>> {
    let Literal::Array { shape, bytes } = literal else { return None };
    floats(shape.dtype, bytes).map(Iterator::collect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_of_one_size_are_sign_like() {
        assert!(is_sign_like(&[1.0, -0.99, 1.0, 0.0, 0.0, 0.0, 1e-5], &[]));
        assert!(!is_sign_like(&[1.0, -0.5, 0.3, 0.8], &[]));
        assert!(!is_sign_like(&[0.0, 0.0], &[]));
    }

    /// The bias of two classes has gradients `g` and `-g`, and the bias of one output has one, at every step.
    #[test]
    fn updates_of_one_size_with_state_are_no_first_updates() {
        assert!(is_sign_like(&[1.0, -1.0], &[vec![0.0, 0.0]]));
        assert!(!is_sign_like(&[0.3, -0.3], &[vec![1e-9, 1e-9]]));
        assert!(is_sign_like(&[1.0], &[vec![0.0]]));
        assert!(!is_sign_like(&[0.3], &[vec![1e-9]]) && !is_sign_like(&[0.3], &[]));
        // State of another size, such as a count, says nothing.
        assert!(is_sign_like(&[1.0, -1.0], &[vec![7.0]]));
        // Rows of a table: most were never looked up before, or most were.
        assert!(is_sign_like(&[1.0, -1.0, 1.0, 1.0, 0.0], &[vec![0.0, 0.0, 0.0, 0.5, 0.5]]));
        assert!(!is_sign_like(&[1.0, -1.0, 1.0, 1.0, 0.0], &[vec![0.0, 0.0, 0.5, 0.5, 0.5]]));
    }
}
