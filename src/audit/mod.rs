//! Audits: where do an f32 module and its lowered form part, and at which instruction does the error begin?
//!
//! The two are run on the CPU plugin over the same inputs, with excess precision off, and proven off by a probe before
//! anything else ([`Auditor::new`]). Compared is **every** floating instruction that the two entry computations have in
//! common, by name, not only the results.
//!
//! # The algorithm
//! Let `f(i)` be the value of instruction `i` in the f32 module, `l(i)` its value in the lowered module, and `b(i)` the
//! value of the *lowered form of that one instruction* on the f32 module's operand values, each rounded to the dtype in
//! which the lowered instruction reads it. Then
//!
//! - `l(i)` against `f(i)` is the error **at** `i`: what was handed down and what was added;
//! - `b(i)` against `f(i)` is the error **born** at `i`: the rounding of what it reads, of what it computes and of what it
//!   gives, on operands that are otherwise right. It is what `keep: [i]` takes away, so rows are sorted by it.
//!
//! `l` comes from the lowered module, `f` and `b` from one run of the f32 module to which the lowered forms are appended
//! (`born`). Values leave a module as extra results (`taps`). So that memory stays bounded, rows are taken in slices, in
//! program order, of at most [`Config::slice_bytes`] of values at a time (a single larger instruction is a slice of its
//! own); each slice is one compilation and one run of each module, which computes what the slice needs from the start.
//!
//! # What it does not see
//! Instructions inside called computations: a `while`, `call` or `fusion` is one row. Tuples and their elements, and
//! parameters and constants that have the same type in both modules, are no rows. What cannot be compared is listed with
//! the reason ([`Audit::skipped`]). Extra results hinder the compiler's fusion, so a sum may be added in another order
//! than in the program as it is; that difference is one of f32, and the [`Audit::results`] are measured without any.
//!
//! This room knows `hlo`, `passes`, `pjrt` and `numerics`, which holds the measures ([`crate::numerics::compare`]). It
//! does no IO but through `pjrt` and prints nothing.

mod born;
mod device;
mod error;
mod flush;
mod pairs;
mod search;
mod taps;

use serde::Serialize;

use crate::hlo::{Literal, Module, Op};
use crate::numerics::compare::{Comparison, Errors};
use crate::passes::amp::{self, Policy};
use crate::pjrt::{Buffer, Client};

pub use error::AuditError;
pub use search::Search;

use pairs::{Pair, Pairs};
use taps::Leaf;

/// How an audit runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of values held at once, for comparison; program, inputs and temporaries not counted.
    pub slice_bytes: i64,
    /// Whether conversions f32 → bf16 in the lowered module make zero of subnormal numbers, as a TPU's do.
    pub flush_subnormals: bool,
}

impl Default for Config {
    /// Slices of 256 MiB; subnormal numbers are kept.
    fn default() -> Config {
        Config { slice_bytes: 256 << 20, flush_subnormals: false }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Audit {
    /// The module's name.
    pub module: String,
    /// Floating instructions that both entries have, in the program's order.
    pub rows: Vec<Row>,
    /// The module's results.
    pub results: Vec<ResultRow>,
    /// The first instruction, in the program's order, with a NaN or infinity that f32 does not have there.
    pub first_not_finite: Option<String>,
    /// Floating instructions of the f32 module that are not compared.
    pub skipped: Vec<Skipped>,
    /// Slices that it took.
    pub n_slices: usize,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// Its place among the f32 module's instructions.
    pub position: usize,
    /// Its name.
    pub instruction: String,
    /// Its scoped name, if it has one.
    pub op_name: String,
    /// Its source, `file:line`, if it is known.
    pub source: String,
    /// Its opcode.
    pub opcode: String,
    /// Its shape in the f32 module.
    pub reference: String,
    /// Its shape in the lowered module.
    pub lowered: String,
    /// What was born at it.
    pub born: Errors,
    /// All of its error.
    pub errors: Errors,
}

/// One array of the module's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ResultRow {
    /// Its place among the arrays of the result, depth first.
    pub index: usize,
    /// The instruction of the f32 module that makes it.
    pub instruction: String,
    /// Its shape in the f32 module.
    pub shape: String,
    /// Its error; `None` for what is not floating.
    pub errors: Option<Errors>,
    /// Elements that differ, of a result that is not floating.
    pub n_differing: u64,
}

/// An instruction that is not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Its name.
    pub instruction: String,
    /// Why.
    pub why: String,
}

impl Audit {
    /// Greatest scaled error of a result: what a budget is about.
    pub fn error(&self) -> f64 {
        worst(&self.results)
    }

    /// How many elements of the floating results are a NaN or an infinity in f32 itself, which no error counts, and how
    /// many there are.
    pub fn n_not_finite(&self) -> (u64, u64) {
        let errors = self.results.iter().filter_map(|row| row.errors);
        errors.fold((0, 0), |(n_not_finite, n), errors| (n_not_finite + errors.n_not_finite, n + errors.n_elements))
    }

    /// Rows, those where most error is born first: by scaled error, then by mean error in bf16 ulp, then by place.
    pub fn by_born(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by(|a, b| {
            let key = |row: &Row| (row.born.scaled, row.born.mean_ulp);
            let ((a_scaled, a_ulp), (b_scaled, b_ulp)) = (key(a), key(b));
            b_scaled.total_cmp(&a_scaled).then(b_ulp.total_cmp(&a_ulp)).then(a.position.cmp(&b.position))
        });
        rows
    }
}

fn worst(results: &[ResultRow]) -> f64 {
    results.iter().filter_map(|row| Some(row.errors?.scaled)).fold(0.0, f64::max)
}

/// Audits one module on one set of inputs, under as many policies as wanted.
#[derive(Debug)]
pub struct Auditor<'m> {
    client: Client,
    module: &'m Module,
    inputs: &'m [Literal],
    buffers: Vec<Buffer>,
    config: Config,
    /// Results of the f32 module.
    results: Vec<Literal>,
}

impl<'m> Auditor<'m> {
    /// Proves that excess precision is off, puts the inputs on the device and runs the f32 module as it is.
    ///
    /// # Errors
    /// A module that does not verify, draws random numbers or takes a tuple; inputs that do not fit its parameters; a
    /// plugin that keeps excess precision, or fails.
    pub fn new(
        client: &Client,
        module: &'m Module,
        inputs: &'m [Literal],
        config: Config,
    ) -> Result<Auditor<'m>, AuditError> {
        crate::hlo::verify(module).map_err(AuditError::Invalid)?;
        crate::hlo::alone::runs_alone(module)?;
        refuse_random(module)?;
        device::prove_rounding(client)?;
        let buffers = device::upload(client, module, inputs, false)?;
        let results = device::run(client, &taps::results(module), &buffers)?;
        let results = results.iter().map(device::fetch).collect::<Result<_, _>>()?;
        Ok(Auditor { client: client.clone(), module, inputs, buffers, config, results })
    }

    /// Lowers the module by this policy and compares.
    ///
    /// # Errors
    /// A policy that contradicts itself, or a plugin that fails.
    pub fn audit(&self, policy: &Policy) -> Result<Audit, AuditError> {
        let (plain, _) = amp::run(self.module, policy)?;
        let lowered = self.flushed(&plain);
        let buffers = device::upload(&self.client, &plain, self.inputs, self.config.flush_subnormals)?;
        let pairs = Pairs::new(self.module, &plain);
        let (rows, skipped) = comparable(self.module, &plain, &pairs);
        let mut audit = Audit {
            module: self.module.name.clone(),
            rows: Vec::with_capacity(rows.len()),
            results: self.result_rows(&lowered, &buffers)?,
            first_not_finite: None,
            skipped,
            n_slices: 0,
        };
        for slice in slices(self.module, &rows, self.config.slice_bytes) {
            let _span = tracing::info_span!("slice", n_rows = slice.len()).entered();
            audit.rows.extend(self.slice(slice, &plain, &pairs, (&lowered, &buffers))?);
            audit.n_slices += 1;
        }
        let first = audit.rows.iter().find(|row| row.errors.n_introduced > 0);
        audit.first_not_finite = first.map(|row| row.instruction.clone());
        Ok(audit)
    }

    /// The lowered module as it runs: with flushing conversions, if they are wanted.
    fn flushed(&self, lowered: &Module) -> Module {
        let mut module = lowered.clone();
        if self.config.flush_subnormals {
            flush::everywhere(&mut module);
        }
        module
    }

    /// Compares the rows of one slice.
    fn slice(
        &self,
        rows: &[Pair],
        plain: &Module,
        pairs: &Pairs,
        (lowered, buffers): (&Module, &[Buffer]),
    ) -> Result<Vec<Row>, AuditError> {
        let born = born::append(self.module, plain, pairs, rows, self.config.flush_subnormals);
        let reference_leaves = rows.iter().flat_map(|row| leaves(&born.module, row.reference));
        let born_leaves = rows.iter().zip(&born.ids).flat_map(|(_, &id)| leaves(&born.module, id));
        let taps: Vec<Leaf> = reference_leaves.chain(born_leaves).collect();
        let n_leaves = taps.len() / 2;
        let outputs = device::run(&self.client, &taps::tapped(&born.module, &taps), &self.buffers)?;
        let names: Vec<&str> = rows.iter().map(|row| plain.entry().instr(row.lowered).name.as_str()).collect();
        let taps: Vec<Leaf> = taps::find(lowered, &names).into_iter().flat_map(|id| leaves(lowered, id)).collect();
        let measured = device::run(&self.client, &taps::tapped(lowered, &taps), buffers)?;
        let mut leaf = 0;
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let (mut errors, mut own) = (Comparison::default(), Comparison::default());
            for _ in leaves(self.module, row.reference) {
                let reference = device::fetch(&outputs[leaf])?;
                add(&mut errors, &reference, &device::fetch(&measured[leaf])?);
                add(&mut own, &reference, &device::fetch(&outputs[n_leaves + leaf])?);
                leaf += 1;
            }
            let (instr, other) = (self.module.entry().instr(row.reference), plain.entry().instr(row.lowered));
            found.push(Row {
                position: row.reference.idx(),
                instruction: instr.name.clone(),
                op_name: instr.metadata.op_name.clone(),
                source: self.module.source_text(&instr.metadata),
                opcode: instr.op.opcode().into_owned(),
                reference: instr.shape.without_layout().to_string(),
                lowered: other.shape.without_layout().to_string(),
                born: own.errors(),
                errors: errors.errors(),
            });
        }
        Ok(found)
    }

    /// Runs a lowered module for its results alone.
    fn result_rows(&self, lowered: &Module, buffers: &[Buffer]) -> Result<Vec<ResultRow>, AuditError> {
        let outputs = device::run(&self.client, &taps::results(lowered), buffers)?;
        let makers = taps::result_makers(self.module);
        let mut rows = Vec::with_capacity(outputs.len());
        for (index, ((output, instruction), reference)) in outputs.iter().zip(makers).zip(&self.results).enumerate() {
            let measured = device::fetch(output)?;
            let Literal::Array { shape, bytes } = reference else { continue };
            let Literal::Array { shape: other, bytes: other_bytes } = &measured else { continue };
            let is_float = taps::is_floating(shape.dtype) && taps::is_floating(other.dtype);
            let errors = is_float.then(|| {
                let mut comparison = Comparison::default();
                add(&mut comparison, reference, &measured);
                comparison.errors()
            });
            let width = shape.dtype.n_bytes();
            let differs = |(a, b): (&[u8], &[u8])| a != b;
            let pairs = bytes.chunks_exact(width).zip(other_bytes.chunks_exact(width));
            let n_differing = if is_float { 0 } else { pairs.filter(|&pair| differs(pair)).count() as u64 };
            rows.push(ResultRow { index, instruction, shape: shape.to_string(), errors, n_differing });
        }
        Ok(rows)
    }
}

/// Adds a pair of fetched arrays.
fn add(comparison: &mut Comparison, reference: &Literal, measured: &Literal) {
    if let (Literal::Array { shape, bytes }, Literal::Array { shape: other, bytes: other_bytes }) =
        (reference, measured)
    {
        comparison.add((shape.dtype, bytes), (other.dtype, other_bytes));
    }
}

/// The comparable arrays of an instruction's value.
fn leaves(module: &Module, id: crate::hlo::InstrId) -> Vec<Leaf> {
    taps::floating_leaves(&module.entry().instr(id).shape, id)
}

/// Bytes that comparing a row holds: the reference, and up to as much each for what was measured and born.
fn n_row_bytes(module: &Module, row: &Pair) -> i64 {
    let shape = &module.entry().instr(row.reference).shape;
    let n_bytes: i64 = taps::floating_arrays(shape).iter().map(|array| array.n_bytes()).sum();
    n_bytes.saturating_mul(3)
}

/// Rows in slices of at most `n_bytes`, but of one row at least.
fn slices<'r>(module: &Module, rows: &'r [Pair], n_bytes: i64) -> Vec<&'r [Pair]> {
    let mut slices = Vec::new();
    let (mut start, mut held) = (0, 0i64);
    for (idx, row) in rows.iter().enumerate() {
        let n_row = n_row_bytes(module, row);
        if idx > start && held.saturating_add(n_row) > n_bytes {
            slices.push(&rows[start..idx]);
            (start, held) = (idx, 0);
        }
        held = held.saturating_add(n_row);
    }
    if start < rows.len() {
        slices.push(&rows[start..]);
    }
    slices
}

/// The rows of an audit, and what cannot be one.
fn comparable(module: &Module, lowered: &Module, pairs: &Pairs) -> (Vec<Pair>, Vec<Skipped>) {
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    for id in module.entry().ids() {
        let instr = module.entry().instr(id);
        let is_floating =
            instr.shape.leaves().iter().any(|leaf| leaf.dtype().is_some_and(|d| d.is_float() || d.is_complex()));
        if !is_floating || matches!(instr.op, Op::Tuple | Op::GetTupleElement { .. }) {
            continue;
        }
        let pair = pairs.of_reference(id);
        let is_same = |pair: &Pair| lowered.entry().instr(pair.lowered).shape.is_compatible(&instr.shape);
        let why = match &pair {
            None => Some("the lowered module has no instruction like it".to_string()),
            Some(pair) if matches!(instr.op, Op::Parameter { .. } | Op::Constant(_)) && is_same(pair) => continue,
            Some(_) => taps::why_not(&instr.shape),
        };
        match (pair, why) {
            (Some(pair), None) => rows.push(pair),
            (_, why) => skipped.push(Skipped { instruction: instr.name.clone(), why: why.unwrap_or_default() }),
        }
    }
    (rows, skipped)
}

/// Opcodes that give other values in every run. (`rng-bit-generator` has its state as an operand.)
const RANDOM: [&str; 2] = ["rng", "rng-get-and-update-state"];

/// Two runs of a module that draws anew in every run cannot be compared.
fn refuse_random(module: &Module) -> Result<(), AuditError> {
    let random = module
        .computations
        .iter()
        .flat_map(|computation| &computation.instructions)
        .find(|instr| matches!(&instr.op, Op::Opaque(opaque) if RANDOM.contains(&opaque.opcode.as_str())));
    match random {
        Some(instr) => {
            let opcode = instr.op.opcode().into_owned();
            Err(AuditError::Random { instruction: instr.name.clone(), opcode })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::{InstrId, text};

    /// Rows of 4, 8 and 4 KiB, each held three times.
    #[test]
    fn slices_hold_no_more_than_they_may() {
        let module = text::parse(
            "HloModule m\n\nENTRY m {\n  a = f32[1024] parameter(0)\n  b = f32[2048] concatenate(a, a), dimensions={0}\n  \
             ROOT c = f32[1024] negate(a)\n}\n",
            "m.txt",
        );
        let module = module.unwrap();
        let rows = [0, 1, 2].map(|id| Pair { reference: InstrId(id), lowered: InstrId(id) });
        let lengths = |n_bytes| slices(&module, &rows, n_bytes).into_iter().map(<[Pair]>::len).collect::<Vec<usize>>();
        assert_eq!(lengths(48 << 10), [3]);
        assert_eq!(lengths((48 << 10) - 1), [2, 1]);
        assert_eq!(lengths(36 << 10), [2, 1]);
        assert_eq!(lengths((36 << 10) - 1), [1, 1, 1]);
        assert_eq!(lengths(0), [1, 1, 1]);
        assert!(slices(&module, &[], 0).is_empty());
    }
}
