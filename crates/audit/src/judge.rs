//! What of a module's results is judged: not what f32 itself does not know, not what nobody asked about, and not the signs
//! of an optimizer's first update.
//!
//! The f32 module also runs in f64 ([`widen`]), once. Let `r` be an element of a result in f64, `x` in f32, `y` lowered, and
//! `s` the largest `|r|` of the array. Where `|x − r| > 2^-9 · s` the element is *noise*: f32 does not know it to half a unit
//! of bf16's last place at the array's scale, so that how far `y` is from `x` says nothing. It is counted and not judged:
//! the gradient of an attention's key bias is one, which is zero in theory. Of integers and predicates noise is what f64
//! decides otherwise than f32; any other element that differs is an error of which there is no size. Of the others the judged error is the largest
//! `|y − x|` over the largest `|x|`; for every one of them f32's own error is 2^-9 of the scale at most, so that this is
//! the scale's floor.
//!
//! The first update of Adam and its like is `g / |g|`: of the size of the learning rate whatever the gradient, with the
//! gradient's sign. A tiny gradient whose sign bf16 does not know then moves a weight by twice that, which says nothing that
//! the gradient's own result (the first moment) does not say better. Such an update is known by its form and its values: a
//! quotient whose denominator is a square root (and a constant), of which three quarters of the elements that are not zero
//! have one magnitude. Results that are sums and products of one are judged only where nothing else is.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{AuditError, ResultRow, device, taps};
use bf16scope_hlo::element::floats;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{InstrId, Instruction, Literal, Module, Op, verify};
use bf16scope_passes::name_pattern;
use bf16scope_passes::widen;
use bf16scope_pjrt::Client;

/// Half a unit in the last place of bf16, of a number of the array's scale.
const NOISE: f64 = 1.0 / 512.0;
/// Elements of a sign-like update are of one magnitude: within a tenth of the largest.
const OF_ONE_SIZE: f64 = 0.9;
/// Below this share of the largest an element counts as zero: a row that a lookup does not touch, a gradient below the
/// optimizer's epsilon.
const ZERO: f64 = 1.0 / 1024.0;
/// As many of those that are not zero are of one magnitude.
const SHARE: f64 = 0.75;

/// Which results are asked about: patterns of their names, of `outN`, or of the instructions that make them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultChoice {
    /// Names of the results, in order, where something knows them.
    pub names: Vec<String>,
    /// Only these; all if there are none.
    pub only: Vec<String>,
    /// Not these.
    pub ignore: Vec<String>,
}

/// Whether a result counts, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Judgement {
    /// It counts.
    Judged,
    /// All of it is noise in f32.
    Noise,
    /// An optimizer's first update, of which only the sign says anything.
    SignLike,
    /// Nobody asked about it.
    Ignored,
    /// It holds no floats.
    NotFloating,
}

/// What is known of the f32 module before anything is lowered.
#[derive(Debug)]
pub(super) struct Judge {
    /// The results in f64; why there are none.
    exact: Result<Vec<Literal>, String>,
    /// Names, for each array of the result; empty where none was given.
    names: Vec<String>,
    /// The scoped names of what makes them.
    op_names: Vec<String>,
    is_chosen: Vec<bool>,
    is_sign_like: Vec<bool>,
    /// Names of an optimizer's first updates, and of what leads from the root to the quotient.
    updates: BTreeSet<String>,
}

impl Judge {
    /// Runs the module in f64.
    ///
    /// # Errors
    /// A pattern that is the name of no result.
    pub(super) fn new(
        client: &Client,
        module: &Module,
        inputs: &[Literal],
        choice: &ResultChoice,
    ) -> Result<Judge, AuditError> {
        let mut judge = Judge::choosing(module, choice)?;
        let quotients = quotients(module);
        let updates;
        (judge.exact, updates) = match in_f64(client, module, inputs, &quotients) {
            Ok((exact, updates)) => (Ok(exact), updates),
            Err(why) => (Err(why), Vec::new()),
        };
        let is_update =
            |(_, values): &(&InstrId, Literal)| values_of(values).is_some_and(|values| is_sign_like(&values));
        let updates: BTreeSet<InstrId> = quotients.iter().zip(updates).filter(is_update).map(|(&id, _)| id).collect();
        let denominators = updates.iter().flat_map(|&id| module.entry().instr(id).operands.clone());
        let roots = denominators.flat_map(|id| root_path(module, id, FAR)).chain(updates.iter().copied());
        judge.updates = roots.map(|id| module.entry().instr(id).name.clone()).collect();
        let moved = moved_by(module, updates);
        judge.is_sign_like = taps::result_makers(module).iter().map(|maker| moved.contains(maker.as_str())).collect();
        Ok(judge)
    }

    /// The same, of results in f64 that somebody else computed, or why there are none. Which results are an optimizer's
    /// first update is not asked.
    ///
    /// # Errors
    /// A pattern that is the name of no result.
    pub(super) fn beside(
        module: &Module,
        choice: &ResultChoice,
        exact: Result<Vec<Literal>, String>,
    ) -> Result<Judge, AuditError> {
        Ok(Judge { exact, ..Judge::choosing(module, choice)? })
    }

    /// Which results are asked about; nothing is known of them yet.
    fn choosing(module: &Module, choice: &ResultChoice) -> Result<Judge, AuditError> {
        let makers = taps::result_makers(module);
        let by_name: BTreeMap<&str, &Instruction> =
            module.entry().instructions.iter().map(|instr| (instr.name.as_str(), instr)).collect();
        let op_name =
            |maker: &String| by_name.get(maker.as_str()).map_or(String::new(), |instr| instr.metadata.op_name.clone());
        let op_names: Vec<String> = makers.iter().map(op_name).collect();
        let given = |index: usize| choice.names.get(index).cloned().unwrap_or_default();
        let names: Vec<String> = (0..makers.len()).map(given).collect();
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
            updates: BTreeSet::new(),
        })
    }

    /// Why f32's own error is not known.
    pub(super) fn why_no_f64(&self) -> Option<&str> {
        self.exact.as_ref().err().map(String::as_str)
    }

    /// Names of an optimizer's first updates and of the roots in them.
    pub(super) fn updates(&self) -> &BTreeSet<String> {
        &self.updates
    }

    /// The name that was given to a result, and the scoped name of what makes it.
    pub(super) fn names(&self, index: usize) -> [String; 2] {
        [&self.names, &self.op_names].map(|names| names.get(index).cloned().unwrap_or_default())
    }

    /// Judges the rows, which are of these results in f32 and lowered.
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
            let (judged, n_noise, own) = match (exact, both) {
                (Some(exact), Some((x, y))) => scaled(&exact, &x, &y),
                _ => (Some(errors.scaled), 0, None),
            };
            row.n_noise = n_noise;
            row.f32_error = own;
            row.judged = judged;
            row.judgement = match judged {
                None => Judgement::Noise,
                Some(_) if self.is_sign_like.get(index).copied().unwrap_or(false) => Judgement::SignLike,
                Some(_) => Judgement::Judged,
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

/// Of what is not floating: the elements that differ between f32 and lowered where f64 decides as f32 does, and those where it
/// does not. Nothing of arrays of different types.
fn decided<'l>([exact, x, y]: [&'l Literal; 3]) -> Option<(u64, u64)> {
    let of = |literal: &'l Literal| match literal {
        Literal::Array { shape, bytes } => Some((shape.dtype, bytes)),
        Literal::Tuple(_) | Literal::Token => None,
    };
    let ((dtype, exact), (of_x, x), (of_y, y)) = (of(exact)?, of(x)?, of(y)?);
    let is_comparable = dtype == of_x && of_x == of_y && exact.len() == x.len() && x.len() == y.len();
    let n = is_comparable.then(|| dtype.n_bytes())?;
    let all = exact.chunks_exact(n).zip(x.chunks_exact(n)).zip(y.chunks_exact(n));
    Some(all.fold((0, 0), |(n_differing, n_noise), ((r, x), y)| match (r == x, x == y) {
        (false, _) => (n_differing, n_noise + 1),
        (true, is_same) => (n_differing + u64::from(!is_same), n_noise),
    }))
}

/// The error of what is not noise, how many elements are, and f32's own scaled error.
fn scaled(exact: &[f64], x: &[f64], y: &[f64]) -> (Option<f64>, u64, Option<f64>) {
    let greatest = |values: &[f64]| values.iter().map(|v| v.abs()).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let scale = greatest(exact);
    let (mut n_noise, mut error, mut size, mut own) = (0, 0.0, 0.0, 0.0);
    for ((&r, &x), &y) in exact.iter().zip(x).zip(y) {
        if !x.is_finite() || !y.is_finite() {
            if x != y && !(x.is_nan() && y.is_nan()) {
                error = f64::INFINITY;
            }
            continue;
        }
        if r.is_finite() {
            own = f64::max(own, (x - r).abs());
        }
        // What f64 cannot hold either says nothing of f32.
        if r.is_finite() && (x - r).abs() > NOISE * scale {
            n_noise += 1;
            continue;
        }
        (error, size) = (f64::max(error, (y - x).abs()), f64::max(size, x.abs()));
    }
    let own = if own > 0.0 { own / scale } else { 0.0 };
    if n_noise as usize == x.len() && n_noise > 0 {
        return (None, n_noise, Some(own));
    }
    let judged = match (error, size) {
        (error, _) if error.is_infinite() => error,
        (0.0, _) => 0.0,
        (_, 0.0) => f64::INFINITY,
        (error, size) => error / size,
    };
    (Some(judged), n_noise, Some(own))
}

/// Results and quotients in f64, or why there are none.
fn in_f64(
    client: &Client,
    module: &Module,
    inputs: &[Literal],
    quotients: &[InstrId],
) -> Result<(Vec<Literal>, Vec<Literal>), String> {
    // Names stay, and with them the quotients.
    let names: BTreeSet<&str> = quotients.iter().map(|&id| module.entry().instr(id).name.as_str()).collect();
    let (wide, _) = widen::run(module, &widen::Config).map_err(|error| error.to_string())?;
    let taps: Vec<InstrId> =
        wide.entry().ids().filter(|&id| names.contains(wide.entry().instr(id).name.as_str())).collect();
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

/// Quotients by a square root, or by one and a constant; and products with a reciprocal one.
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

/// A root is found through as many instructions: sums, conversions, and broadcasts of optimizers are few.
const FAR: usize = 6;

/// From a value back to the square root that it is, moved, repeated or shifted; empty if it is none.
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

/// Whether what is not zero is of one magnitude.
fn is_sign_like(values: &[f64]) -> bool {
    let greatest = values.iter().map(|v| v.abs()).fold(0.0, f64::max);
    let count = |least: f64| values.iter().filter(|v| v.abs() >= least * greatest).count() as f64;
    greatest > 0.0 && greatest.is_finite() && count(OF_ONE_SIZE) >= SHARE * count(ZERO)
}

/// Names of what is made of these by sums, products and moves alone.
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
    fn noise_is_counted_and_not_judged() {
        // f32 knows the first to 2^-10 of the scale, the second not to 2^-9.
        let (judged, n_noise, own) = scaled(&[1.0, 0.0], &[1.0 + 1.0 / 1024.0, 0.01], &[1.25, 9.0]);
        assert_eq!((judged.unwrap(), n_noise), ((0.25 - 1.0 / 1024.0) / (1.0 + 1.0 / 1024.0), 1));
        assert_eq!(own, Some(0.01));
        assert_eq!(scaled(&[0.0, 1e-20], &[1e-9, -1e-9], &[1e-3, 0.0]).0, None);
        assert_eq!(scaled(&[0.0], &[0.0], &[0.0]), (Some(0.0), 0, Some(0.0)));
        // A number that f32 knows, and that is lost.
        assert_eq!(scaled(&[1.0], &[1.0], &[f64::NAN]).0, Some(f64::INFINITY));
    }

    #[test]
    fn what_f64_decides_otherwise_is_noise_and_the_rest_differs_or_not() {
        let of = |values: [i32; 4]| Literal::from_elements([4], &values);
        assert_eq!(decided([&of([1, 2, 3, 4]), &of([1, 2, 9, 9]), &of([1, 0, 9, 0])]), Some((1, 2)));
        assert_eq!(decided([&of([1; 4]), &of([1; 4]), &Literal::from_elements([4], &[1u8; 4])]), None);
    }

    #[test]
    fn updates_of_one_size_are_sign_like() {
        assert!(is_sign_like(&[1.0, -0.99, 1.0, 0.0, 0.0, 0.0, 1e-5]));
        assert!(!is_sign_like(&[1.0, -0.5, 0.3, 0.8]));
        assert!(!is_sign_like(&[0.0, 0.0]));
    }
}
