//! Audits compare an f32 module with its lowered form: how large is the error, and which instructions introduce it?
//!
//! Both run on the CPU plugin over the same inputs, with excess precision off, which a probe verifies first
//! ([`Auditor::new`]). An audit compares **every** floating instruction that the two entry computations have in common,
//! by name, not only the results.
//!
//! ```
//! use bf16scope_audit::{Auditor, Config};
//! use bf16scope_hlo::{Literal, text};
//! use bf16scope_passes::amp::Policy;
//! use bf16scope_pjrt::Client;
//!
//! let module = text::parse(
//!     "HloModule scores
//!      ENTRY main {
//!        x = f32[1,2] parameter(0)
//!        w = f32[2,2] parameter(1)
//!        ROOT scores = f32[1,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//!      }",
//!     "scores.hlo",
//! )?;
//! let (x, w) = ([0.1_f32, 0.7], [0.3_f32, 0.9, 0.6, 0.2]);
//! let inputs = [Literal::from_elements([1, 2], &x), Literal::from_elements([2, 2], &w)];
//! let client = Client::cpu()?; // installs the plugin on first use
//! let audit = Auditor::new(&client, &module, &inputs, Config::default())?.audit(&Policy::default())?;
//! assert!(0.0 < audit.error() && audit.error() < 0.01); // for `x` and `w` are rounded to bf16
//! for row in audit.worst_first().into_iter().take(5) {
//!     println!("{row:?}"); // where the error is born
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The algorithm
//! Let `f(i)` be the value of instruction `i` in the f32 module, `l(i)` its value in the lowered module, and `b(i)` the
//! value of the *lowered form of that one instruction* on the f32 module's operand values, each rounded to the dtype in
//! which the lowered instruction reads it. Then
//!
//! - the difference of `l(i)` and `f(i)` is the error **at** `i`: inherited plus added error;
//! - the difference of `b(i)` and `f(i)` is the error **born** at `i`: the rounding of its operands, its computation
//!   and its result, with otherwise exact operands. `keep: [i]` removes it.
//!
//! An instruction may also enlarge inherited error without a rounding of its own; that is the error that it *grew*
//! (`growth`). Rows are sorted by the larger of the two ([`Audit::worst_first`]).
//!
//! Values are computed instruction by instruction: each is a separate program, whose operands are the values computed
//! before (`groups`, `walk`). So the result does not depend on fusion, and the cost is linear: one run for `f(i)`, one
//! for `l(i)` and one for `b(i)`, except that unlowered values are not recomputed. `l(i)` and `b(i)` are one program on
//! two sets of operands. Equal instructions of equal shapes share a program (`machine`), so a network of many equal
//! layers needs no more compiles than one of two.
//!
//! Only values that are alive in the two programs stay on the device. Rows are compared on other threads while the walk
//! continues, in slices, in program order, of at most [`Config::slice_bytes`] of values (a larger instruction is a
//! slice of its own).
//!
//! # What it does not see
//! Instructions inside called computations: a `while`, `call` or `fusion` is one row. Tuples and their elements, and
//! parameters and constants that have the same type in both modules, have no rows. Instructions that cannot be compared
//! are listed with the reason ([`Audit::skipped`]). In a normal compilation instructions are fused: the order of a sum
//! may differ, and a product may be added without a rounding in between. That difference is of f32's size, because
//! roundings to 16 bits are kept (excess precision is off), and the [`Audit::results`] are measured on the modules
//! compiled as a whole.
//!
//! This crate uses `hlo`, `passes`, `pjrt` and `numerics`, which defines the error measures
//! ([`bf16scope_hlo::numerics::compare`]). It does IO only through `pjrt` and prints nothing.

#![forbid(unsafe_code)]

mod decisions;
mod device;
mod error;
mod first_step;
mod flush;
mod groups;
mod growth;
mod host;
mod judge;
mod machine;
mod noise;
mod pairs;
mod search;
mod sharded;
mod steps;
mod taps;
mod walk;

use serde::Serialize;

use bf16scope_hlo::devices::Placement;
use bf16scope_hlo::numerics::compare::{Comparison, Errors};
use bf16scope_hlo::{Literal, Module, Op};
use bf16scope_passes::amp::{self, Policy};
use bf16scope_passes::as_tpu::{self, TpuArithmetic};
use bf16scope_pjrt::Client;

pub use decisions::{DecisionRow, Decisions};
pub use error::AuditError;
pub use first_step::{FirstBeyond, StepError, first_step_beyond, most_audits};
pub use judge::{Judgement, ResultChoice};
pub use search::{Search, SearchEnd, SearchLimits, Searched};
pub use sharded::{ShardRow, ShardedAuditor};
pub use steps::after_steps;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use device::Held;
use host::{Bytes, Spare};
use judge::Judge;
use machine::Machine;
use pairs::{Pair, Pairs};
use walk::{RowValues, Walk};

/// How an audit runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of values held for comparison at the same time; program, inputs and temporaries not counted.
    pub slice_bytes: i64,
    /// Whether conversions f32 → bf16 in the lowered module flush subnormal numbers to zero, as on a TPU.
    pub flush_subnormals: bool,
    /// The TPU whose product arithmetic the lowered module uses ([`as_tpu`]); if `None`, the device's own.
    pub arithmetic: Option<TpuArithmetic>,
}

impl Default for Config {
    /// Slices of 256 MiB; subnormal numbers are kept, and products use the device's arithmetic.
    fn default() -> Config {
        Config { slice_bytes: 256 << 20, flush_subnormals: false, arithmetic: None }
    }
}

/// The progress of an audit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of computed instructions.
    pub n_rows_done: usize,
    /// The number of instructions to compare.
    pub n_rows: usize,
    /// Completed work: compiles and runs, weighted by their expected time, so it increases about linearly in time.
    pub work_done: u64,
    /// The total work.
    pub work: u64,
}

/// The result of an audit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Audit {
    /// The module's name.
    pub module: String,
    /// Floating instructions that both entries have, in the program's order.
    pub rows: Vec<AuditRow>,
    /// The module's results.
    pub results: Vec<ResultRow>,
    /// The first instruction, in the program's order, with a NaN or infinity that f32 does not have there.
    pub first_not_finite: Option<String>,
    /// Floating instructions of the f32 module that are not compared.
    pub skipped: Vec<Skipped>,
    /// The number of slices.
    pub n_slices: usize,
    /// Why the module could not run in f64; f32's own error is then unknown and noise is judged too.
    pub no_f64: Option<String>,
}

/// The comparison of one instruction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AuditRow {
    /// Its index among the f32 module's instructions.
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
    /// The error introduced at it.
    pub born: Errors,
    /// Its total error.
    pub errors: Errors,
    /// By how much its scaled error, at most 1, exceeds the sum of those of its operands and of the error born at it; 0
    /// if that is noise, a jump, a sign, or reaches no reader.
    pub grown: f64,
}

/// The comparison of one array of the module's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ResultRow {
    /// Its index among the arrays of the result, depth first.
    pub index: usize,
    /// Its name, if one was given ([`ResultChoice::names`]).
    pub name: String,
    /// The scoped name of the instruction that computes it.
    pub op_name: String,
    /// The instruction of the f32 module that computes it.
    pub instruction: String,
    /// Its shape in the f32 module.
    pub shape: String,
    /// The scaled error of its judged elements; `None` if none is judged.
    pub judged: Option<f64>,
    /// Whether it is judged, with the reason if it is not.
    pub judgement: Judgement,
    /// Elements that are noise in f32; for integers and predicates, those where f64 gives another value than f32.
    pub n_noise: u64,
    /// Elements that are NaN in f32.
    pub n_nan: u64,
    /// f32's own scaled error, compared with f64.
    pub f32_error: Option<f64>,
    /// Its error; `None` if it is not floating.
    pub errors: Option<Errors>,
    /// Its elements.
    pub n_elements: u64,
    /// For a result that is not floating, the number of elements that differ, without noise.
    pub n_differing: u64,
    /// For a module on several devices, the shard of each; empty for one device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardRow>,
}

/// Why a module's own f32 results are not a valid reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct F32Failure {
    /// Elements that are NaN.
    pub n_nan: u64,
    /// Elements that are noise.
    pub n_noise: u64,
    /// All elements.
    pub n_elements: u64,
}

/// An instruction that is not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Its name.
    pub instruction: String,
    /// The reason.
    pub why: String,
}

impl Audit {
    /// An audit without instruction rows, for the reason `why`; its results are added later.
    pub fn of_results(module: &Module, why: &str) -> Audit {
        let entry = module.entry();
        let root = Skipped { instruction: entry.instr(entry.root).name.clone(), why: why.to_string() };
        Audit {
            module: module.name.clone(),
            rows: Vec::new(),
            results: Vec::new(),
            first_not_finite: None,
            skipped: vec![root],
            n_slices: 0,
            no_f64: None,
        }
    }

    /// The same audit with these results, and the reason why they were not computed in f64.
    pub fn with_results(self, results: Vec<ResultRow>, no_f64: Option<String>) -> Audit {
        Audit { results, no_f64, ..self }
    }

    /// The largest scaled error of a judged result, which a budget limits.
    pub fn error(&self) -> f64 {
        largest_error(&self.results)
    }

    /// Whether the results are within a budget. `None` if that is unknown: if there is no budget and there is an error,
    /// if f32's own results are not a valid reference ([`f32_fails`](Self::f32_fails)), and if nothing is judged.
    pub fn is_right(&self, budget: Option<f64>) -> Option<bool> {
        let is_asked = |row: &&ResultRow| row.judgement != Judgement::Ignored;
        let is_any_floating = self.results.iter().filter(is_asked).any(|row| row.errors.is_some());
        if self.first_not_finite.is_some() || (self.is_judged_by_integers() && !self.differing().is_empty()) {
            return Some(false);
        }
        if self.f32_fails().is_some() || (is_any_floating && self.is_judged_by_integers()) {
            return None;
        }
        match (self.error(), budget) {
            (0.0, _) => Some(true),
            (error, Some(budget)) => Some(error <= budget),
            (_, None) => None,
        }
    }

    /// Why f32's own results are not a valid reference: more than half of the elements of the selected results are NaN
    /// or noise. `None` if they are valid.
    pub fn f32_fails(&self) -> Option<F32Failure> {
        let is_asked = |row: &&ResultRow| row.judgement != Judgement::Ignored;
        let rows = || self.results.iter().filter(is_asked).filter(|row| row.errors.is_some());
        let sum = |of_row: fn(&ResultRow) -> u64| rows().map(of_row).sum::<u64>();
        let (n_noise, n_nan, n_elements) = (sum(|row| row.n_noise), self.n_nan(), sum(|row| row.n_elements));
        (2 * (n_noise + n_nan) > n_elements).then_some(F32Failure { n_nan, n_noise, n_elements })
    }

    /// The number of elements of the selected results that are NaN in f32. The list of instructions does not explain
    /// them.
    pub fn n_nan(&self) -> u64 {
        self.results.iter().filter(|row| row.judgement != Judgement::Ignored).map(|row| row.n_nan).sum()
    }

    /// The first instruction with a NaN or an infinity in f32, if instructions are compared.
    pub fn first_not_finite_in_f32(&self) -> Option<&str> {
        self.rows.iter().find(|row| row.errors.n_not_finite > 0).map(|row| row.instruction.as_str())
    }

    /// Whether differing integers and predicates are a failure: if no floating result is judged. Beside judged floating
    /// results they may be counts, and are only reported.
    pub fn is_judged_by_integers(&self) -> bool {
        self.results.iter().all(|row| row.judged.is_none())
    }

    /// The results of integers and predicates that differ: each is another decision, which has no error size.
    pub fn differing(&self) -> Vec<&ResultRow> {
        self.results.iter().filter(|row| row.judgement == Judgement::NotFloating && row.n_differing > 0).collect()
    }

    /// The number of elements of the floating results that are NaN or infinite in f32 itself, which no error counts,
    /// and the number of all.
    pub fn n_not_finite(&self) -> (u64, u64) {
        let errors = self.results.iter().filter_map(|row| row.errors);
        errors.fold((0, 0), |(n_not_finite, n), errors| (n_not_finite + errors.n_not_finite, n + errors.n_elements))
    }

    /// Rows with the largest losses first: by the larger of born and grown error, then by mean error born in bf16 ulp,
    /// then by index.
    pub fn worst_first(&self) -> Vec<&AuditRow> {
        self.sorted(|row| row.born.scaled.max(row.grown))
    }

    /// Rows with the largest born error first: by scaled error, then by mean error in bf16 ulp, then by index.
    pub fn by_born(&self) -> Vec<&AuditRow> {
        self.sorted(|row| row.born.scaled)
    }

    fn sorted(&self, loss: impl Fn(&AuditRow) -> f64) -> Vec<&AuditRow> {
        let mut rows: Vec<&AuditRow> = self.rows.iter().collect();
        rows.sort_by(|a, b| {
            let by_ulp = || b.born.mean_ulp.total_cmp(&a.born.mean_ulp);
            loss(b).total_cmp(&loss(a)).then_with(by_ulp).then(a.position.cmp(&b.position))
        });
        rows
    }
}

/// The largest scaled error of the judged results; infinite if one is finite in f32 only, 0 if nothing is judged.
pub fn largest_error(results: &[ResultRow]) -> f64 {
    results.iter().filter_map(|row| row.judged).fold(0.0, f64::max)
}

/// Audits one module on one set of inputs, under any number of policies.
#[derive(Debug)]
pub struct Auditor<'m> {
    client: Client,
    module: &'m Module,
    literals: &'m [Literal],
    /// On the device, in the f32 module's dtypes.
    inputs: Vec<Arc<Held>>,
    config: Config,
    /// Results of the f32 module.
    results: Vec<Literal>,
    judge: Arc<Judge>,
}

impl<'m> Auditor<'m> {
    /// Verifies that excess precision is off, uploads the inputs and runs the f32 module as a whole.
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
        Auditor::of_results(client, module, inputs, config, &ResultChoice::default())
    }

    /// The same, judging only the selected results.
    ///
    /// # Errors
    /// As [`new`](Self::new), and a pattern that matches no result.
    pub fn of_results(
        client: &Client,
        module: &'m Module,
        inputs: &'m [Literal],
        config: Config,
        choice: &ResultChoice,
    ) -> Result<Auditor<'m>, AuditError> {
        bf16scope_hlo::verify(module).map_err(AuditError::Invalid)?;
        bf16scope_hlo::alone::runs_alone(module)?;
        refuse_random(module)?;
        device::prove_rounding(client)?;
        let literals = inputs;
        let inputs = device::upload(client, module, literals, false, &[])?;
        let results = device::run(client, &taps::results(module), &device::buffers(&inputs))?;
        let results = results.iter().map(device::fetch).collect::<Result<_, _>>()?;
        let judge = Arc::new(Judge::new(client, module, literals, choice)?);
        Ok(Auditor { client: client.clone(), module, literals, inputs, config, results, judge })
    }

    /// An auditor of `module` over several devices, where this auditor's module is the same without shardings. It
    /// reuses this auditor's results in f64.
    ///
    /// # Errors
    /// As [`ShardedAuditor::new`].
    pub fn over_devices<'n>(
        &self,
        module: &'n Module,
        placement: &Placement,
        inputs: &'n [Literal],
    ) -> Result<ShardedAuditor<'n>, AuditError> {
        ShardedAuditor::judged_by(&self.client, module, placement, inputs, self.config, |_| Ok(Arc::clone(&self.judge)))
    }

    /// Lowers the module by this policy and compares every instruction.
    ///
    /// # Errors
    /// A policy that contradicts itself, or a plugin that fails.
    pub fn audit(&self, policy: &Policy) -> Result<Audit, AuditError> {
        self.audit_with(policy, &mut |_| {})
    }

    /// The same, with frequent progress reports.
    ///
    /// # Errors
    /// As [`audit`](Self::audit).
    pub fn audit_with(&self, policy: &Policy, says: &mut dyn FnMut(Progress)) -> Result<Audit, AuditError> {
        self.compare_with(&self.lowered(policy)?, says)
    }

    /// Lowers the module by this policy and compares only the results: a compile and a run.
    ///
    /// # Errors
    /// A policy that contradicts itself, or a plugin that fails.
    pub fn results(&self, policy: &Policy) -> Result<Vec<ResultRow>, AuditError> {
        let lowered = self.lowered(policy)?;
        let inputs = self.upload(&lowered)?;
        self.result_rows(&self.flushed(&lowered), &inputs)
    }

    /// Compares the f32 module with itself in a TPU's arithmetic: what f32 loses there without any lowering.
    ///
    /// # Errors
    /// A plugin that fails.
    pub fn audit_f32_as(&self, arithmetic: TpuArithmetic, says: &mut dyn FnMut(Progress)) -> Result<Audit, AuditError> {
        self.compare_with(&as_tpu::run(self.module, &arithmetic)?.0, says)
    }

    /// The lowered module, with the configured arithmetic.
    fn lowered(&self, policy: &Policy) -> Result<Module, AuditError> {
        let (lowered, _) = amp::run(self.module, policy)?;
        Ok(match self.config.arithmetic {
            Some(arithmetic) => as_tpu::run(&lowered, &arithmetic)?.0,
            None => lowered,
        })
    }

    /// Compares the f32 module with another form of it.
    fn compare_with(&self, lowered: &Module, says: &mut dyn FnMut(Progress)) -> Result<Audit, AuditError> {
        let inputs = self.upload(lowered)?;
        let pairs = Pairs::new(self.module, lowered);
        let (rows, skipped) = comparable(self.module, lowered, &pairs);
        let mut audit = Audit {
            module: self.module.name.clone(),
            rows: Vec::with_capacity(rows.len()),
            results: self.result_rows(&self.flushed(lowered), &inputs)?,
            first_not_finite: None,
            skipped,
            n_slices: 0,
            no_f64: self.judge.why_no_f64().map(str::to_string),
        };
        let flush = self.config.flush_subnormals;
        let machine = Machine::new(&self.client, flush);
        let walk = Walk::new((self.module, &self.inputs), (lowered, &inputs), &pairs, &rows, flush, machine)?;
        self.rows(walk, &rows, lowered, &mut audit, says)?;
        growth::measure(self.module, self.judge.updates(), &mut audit.rows);
        let first = audit.rows.iter().find(|row| row.errors.n_introduced > 0);
        audit.first_not_finite = first.map(|row| row.instruction.clone());
        Ok(audit)
    }

    /// Uploads the inputs of a lowered module; inputs with the f32 module's dtypes are reused.
    fn upload(&self, lowered: &Module) -> Result<Vec<Arc<Held>>, AuditError> {
        device::upload(&self.client, lowered, self.literals, self.config.flush_subnormals, &self.inputs)
    }

    /// The lowered module, with flushing conversions if configured.
    fn flushed(&self, lowered: &Module) -> Module {
        let mut module = lowered.clone();
        if self.config.flush_subnormals {
            flush::everywhere(&mut module);
        }
        module
    }

    /// Walks the modules, and compares on other threads meanwhile.
    fn rows(
        &self,
        mut walk: Walk<'_, '_>,
        rows: &[Pair],
        lowered: &Module,
        audit: &mut Audit,
        says: &mut dyn FnMut(Progress),
    ) -> Result<(), AuditError> {
        let mut progress = Progress { n_rows: rows.len(), work: walk.work(), ..Progress::default() };
        let n_threads = thread::available_parallelism().map_or(1, usize::from);
        let spare = Arc::new(Spare::default());
        thread::scope(|scope| -> Result<(), AuditError> {
            let mut compared: VecDeque<(Pair, ScopedJoinHandle<'_, [Errors; 2]>)> = VecDeque::new();
            let take = |(row, handle): (Pair, ScopedJoinHandle<'_, [Errors; 2]>), audit: &mut Audit| {
                let errors = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                audit.rows.push(self.row(row, lowered, errors));
            };
            for slice in slices(self.module, rows, self.config.slice_bytes) {
                for (place, &row) in slice.iter().enumerate() {
                    let values = walk.row(row)?;
                    progress.n_rows_done += 1;
                    progress.work_done = progress.work_done.saturating_add(values.work);
                    says(progress);
                    let n_waiting = if place == 0 { 0 } else { n_threads };
                    while compared.len() > n_waiting {
                        compared.drain(..1).for_each(|first| take(first, audit));
                    }
                    match triples(self.module, row, &values, &spare)? {
                        Some(triples) => compared.push_back((row, scope.spawn(move || compare(&triples)))),
                        None => audit.skipped.push(Skipped {
                            instruction: self.module.entry().instr(row.reference).name.clone(),
                            why: "it is computed together with what cannot leave a program".to_string(),
                        }),
                    }
                }
                audit.n_slices += 1;
            }
            compared.into_iter().for_each(|last| take(last, audit));
            Ok(())
        })?;
        tracing::info!(compiles = walk.machine.n_compiles, runs = walk.machine.n_runs, "compared");
        Ok(())
    }

    fn row(&self, row: Pair, lowered: &Module, [errors, born]: [Errors; 2]) -> AuditRow {
        let (instr, other) = (self.module.entry().instr(row.reference), lowered.entry().instr(row.lowered));
        AuditRow {
            position: row.reference.idx(),
            instruction: instr.name.clone(),
            op_name: instr.metadata.op_name.clone(),
            source: self.module.source_text(&instr.metadata),
            opcode: instr.op.opcode().into_owned(),
            reference: instr.shape.without_layout().to_string(),
            lowered: other.shape.without_layout().to_string(),
            born,
            errors,
            grown: 0.0,
        }
    }

    /// Runs a lowered module as a whole for its results.
    fn result_rows(&self, lowered: &Module, inputs: &[Arc<Held>]) -> Result<Vec<ResultRow>, AuditError> {
        let outputs = device::run(&self.client, &taps::results(lowered), &device::buffers(inputs))?;
        let makers = taps::result_makers(self.module);
        let outputs = outputs.iter().map(device::fetch).collect::<Result<Vec<Literal>, _>>()?;
        let mut rows = result_rows(&self.judge, makers, &self.results, &outputs);
        self.judge.judge(&mut rows, &self.results, &outputs);
        Ok(rows)
    }
}

/// Rows of results, by the instructions that compute them: f32 and another form, not judged yet.
fn result_rows(judge: &Judge, makers: Vec<String>, results: &[Literal], measured: &[Literal]) -> Vec<ResultRow> {
    let mut rows = Vec::with_capacity(measured.len());
    for (index, ((measured, instruction), reference)) in measured.iter().zip(makers).zip(results).enumerate() {
        let Literal::Array { shape, .. } = reference else { continue };
        let (errors, n_differing) = difference(reference, measured);
        let [name, op_name] = judge.names(index);
        rows.push(ResultRow {
            index,
            name,
            op_name,
            instruction,
            shape: shape.to_string(),
            n_elements: shape.n_elements().unsigned_abs(),
            judged: None,
            judgement: Judgement::NotFloating,
            n_noise: 0,
            n_nan: 0,
            f32_error: None,
            errors,
            n_differing,
            shards: Vec::new(),
        });
    }
    rows
}

/// The errors of floating arrays; for others, the number of elements that differ.
fn difference(reference: &Literal, measured: &Literal) -> (Option<Errors>, u64) {
    let (Literal::Array { shape, bytes }, Literal::Array { shape: other, bytes: other_bytes }) = (reference, measured)
    else {
        return (None, 0);
    };
    if taps::is_floating(shape.dtype) && taps::is_floating(other.dtype) {
        let mut comparison = Comparison::default();
        add(&mut comparison, reference, measured);
        return (Some(comparison.errors()), 0);
    }
    let width = shape.dtype.n_bytes();
    let pairs = bytes.chunks_exact(width).zip(other_bytes.chunks_exact(width));
    (None, pairs.filter(|(a, b)| a != b).count() as u64)
}

/// Adds a pair of fetched arrays.
fn add(comparison: &mut Comparison, reference: &Literal, measured: &Literal) {
    if let (Literal::Array { shape, bytes }, Literal::Array { shape: other, bytes: other_bytes }) =
        (reference, measured)
    {
        comparison.add((shape.dtype, bytes), (other.dtype, other_bytes));
    }
}

/// An array of the f32 module, of the lowered module, and the born value.
type Triple = [Arc<Bytes>; 3];

/// The comparable arrays of a row, on the host; empty if there is no born value.
fn triples(
    module: &Module,
    row: Pair,
    row_values: &RowValues,
    spare: &Arc<Spare>,
) -> Result<Option<Vec<Triple>>, AuditError> {
    let fetch = |array| Bytes::fetch(array, spare).map(Arc::new);
    let Some(born) = &row_values.born else { return Ok(None) };
    let values = [row_values.reference.arrays(), row_values.lowered.arrays(), born.arrays()];
    let places = taps::floating_places(&module.entry().instr(row.reference).shape);
    let mut triples = Vec::with_capacity(places.len());
    for place in places {
        let [reference, lowered, born] = [0, 1, 2].map(|which| values[which][place]);
        let first = fetch(reference)?;
        let second = if Arc::ptr_eq(lowered, reference) { Arc::clone(&first) } else { fetch(lowered)? };
        let third = match born {
            born if Arc::ptr_eq(born, reference) => Arc::clone(&first),
            born if Arc::ptr_eq(born, lowered) => Arc::clone(&second),
            born => fetch(born)?,
        };
        triples.push([first, second, third]);
    }
    Ok(Some(triples))
}

/// The total error, and the born error.
fn compare(triples: &[Triple]) -> [Errors; 2] {
    let errors_of = |which: usize| {
        let mut comparison = Comparison::default();
        for triple in triples {
            let (reference, measured) = (&triple[0], &triple[which]);
            comparison.add((reference.dtype, reference.bytes()), (measured.dtype, measured.bytes()));
        }
        comparison.errors()
    };
    let errors = errors_of(1);
    let is_all_born = triples.iter().all(|[_, lowered, born]| Arc::ptr_eq(lowered, born));
    [errors, if is_all_born { errors } else { errors_of(2) }]
}

/// Bytes needed to compare a row: the reference, and up to as much each for the lowered and the born value.
fn n_row_bytes(module: &Module, row: &Pair) -> i64 {
    let shape = &module.entry().instr(row.reference).shape;
    let n_bytes: i64 = taps::floating_arrays(shape).iter().map(|array| array.n_bytes()).sum();
    n_bytes.saturating_mul(3)
}

/// Splits rows into slices of at most `n_bytes`, but at least one row.
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

/// The rows of an audit, and the instructions that cannot be compared.
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

/// Opcodes that give different values in every run. (`rng-bit-generator` has its state as an operand.)
const RANDOM: [&str; 2] = ["rng", "rng-get-and-update-state"];

/// Refuses a module that draws random numbers in every run: two runs cannot be compared.
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
    use bf16scope_hlo::{InstrId, text};

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
