//! Lowering guided by the TPU compiler: where a value could have another form without another rounding, both forms are
//! compiled, and the cheaper one is kept.
//!
//! The rules of `passes::amp` predict from a program what a compiler materialises; only the compiler knows what it does
//! materialise, and in which layout. A question is about a *region*: all instructions with one opcode and shape that
//! one rule decided, such as those in the layers of a network, and one other form for all of them ([`StoredAs`]).
//! Regions that only move data come first, because compilers materialise or copy moved values, while computed values
//! are mostly fused; within both groups, first those of scopes with a step that takes many of the cycles, then those
//! alive at the peak of memory, then in descending order of bytes. If one figure falls and the other rises, the region's
//! halves are tried, and so on down to single instructions.
//!
//! The result is, of all compiled programs that are worse in neither memory nor cycles than the policy alone by more
//! than a thousandth, the one with the smallest product of both; each accepted step reduces the product by more than a
//! thousandth. No result is less exact: a value that the policy leaves in f32 is rounded only if all its readers round
//! it anyway.
//!
//! The decisions become part of the policy, which then gives the same module without a compiler.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::iter::repeat;
use std::path::PathBuf;

use serde::Serialize;

use super::StudyError;
use super::ask::{Asking, Compiling, Event, ask};
use super::compare::read_back;
use super::module_file::check_uncompiled;
use super::subject::{lowered, placement};
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{Module, Op};
use bf16scope_passes::amp::{Decided, Decision, LoweringReport, Policy, StoredAs};
use bf16scope_tpu::explain::{explain, largest_live_buffers};
use bf16scope_tpu::{CompileOutcome, CompileReport, Compiled, Compiler, Target};

/// Values smaller than this fraction of the largest one are not tried.
const SMALL: i64 = 256;

/// The reciprocal of the tolerance: a thousandth of a figure.
const SLACK: u64 = 1000;

/// The number of largest values to consider among those alive at the peak.
const N_ALIVE: usize = 64;

/// A step is costly that takes this fraction of all cycles.
const COSTLY: u64 = 20;

/// The label of the first compile.
const AS_LOWERED: &str = "as the policy lowers it";

/// A question about the best lowering of a module for a target.
#[derive(Clone, Debug)]
pub struct LowerQuestion {
    /// The module, in f32.
    pub module: Module,
    /// Its file, for messages.
    pub path: PathBuf,
    /// The policy; its own decisions stay.
    pub policy: Policy,
    /// The TPU.
    pub target: Target,
    /// The largest number of compiles that are not cached.
    pub n_compiles: u32,
}

impl LowerQuestion {
    /// The default number of compiles.
    pub const N_COMPILES: u32 = 24;
}

/// The cost of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LoweredCost {
    /// Bytes of HBM, without code.
    pub n_bytes: i64,
    /// Estimated cycles.
    pub cycles: u64,
}

impl LoweredCost {
    fn from_report(report: &CompileReport) -> LoweredCost {
        LoweredCost { n_bytes: report.hbm.total - report.hbm.code, cycles: report.cycles }
    }

    fn product(self) -> f64 {
        self.n_bytes as f64 * self.cycles as f64
    }

    /// Judges a program of this cost: it is kept if neither figure exceeds `limit` by more than a thousandth, and its
    /// product is smaller than that of `best` by more than a thousandth.
    fn beside(self, best: LoweredCost, limit: Option<LoweredCost>) -> TrialEnd {
        let is_above = |limit: &LoweredCost| {
            let n_bytes = limit.n_bytes.saturating_add(limit.n_bytes / SLACK as i64);
            let cycles = limit.cycles.saturating_add(limit.cycles / SLACK);
            (self.n_bytes > n_bytes, self.cycles > cycles)
        };
        match (limit.as_ref().map_or((false, false), is_above), self.product() / best.product()) {
            ((true, _), _) => TrialEnd::MoreMemory,
            (_, ratio) if ratio >= 1.0 => TrialEnd::NoGain,
            ((_, true), _) => TrialEnd::MoreCycles,
            (_, ratio) if ratio > 1.0 - 1.0 / SLACK as f64 => TrialEnd::SmallGain,
            _ => TrialEnd::Kept,
        }
    }

    /// Whether a figure is less than in `other`.
    fn gains_somewhere(self, other: LoweredCost) -> bool {
        self.n_bytes < other.n_bytes || self.cycles < other.cycles
    }
}

/// The result of trying a region in its other form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TrialEnd {
    /// The other form is kept.
    Kept,
    /// It does not fit, or the compiler refused it.
    DoesNotFit,
    /// It takes more memory than the policy alone.
    MoreMemory,
    /// It takes more cycles than the policy alone.
    MoreCycles,
    /// The product of memory and cycles is not smaller.
    NoGain,
    /// The product is smaller, but by less than a thousandth.
    SmallGain,
}

impl TrialEnd {
    /// In words, for a table.
    pub const fn words(self) -> &'static str {
        match self {
            TrialEnd::Kept => "kept",
            TrialEnd::DoesNotFit => "",
            TrialEnd::MoreMemory => "more HBM",
            TrialEnd::MoreCycles => "more cycles",
            TrialEnd::NoGain => "no gain",
            TrialEnd::SmallGain => "gain < 0.1 %",
        }
    }
}

/// A region that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct LowerTrial {
    /// A description of the region and the form.
    pub what: String,
    /// The number of its instructions.
    pub n: usize,
    /// The program's cost; `None` if it did not fit, or the compiler refused it.
    pub cost: Option<LoweredCost>,
    /// Whether it was kept, or why not.
    pub end: TrialEnd,
}

/// The best lowering of a module.
#[derive(Clone, Debug, Serialize)]
pub struct LowerAnswer {
    /// The TPU.
    pub target: Target,
    /// The compiler.
    pub libtpu: String,
    /// Whether the compiler was allowed to keep more precision than the programs specify.
    pub excess_precision: bool,
    /// The cost with the policy alone; `None` if that does not fit.
    pub before: Option<LoweredCost>,
    /// The cost of the result.
    pub after: Option<LoweredCost>,
    /// The trials, in order.
    pub trials: Vec<LowerTrial>,
    /// Regions that were not tried because no compiles were left.
    pub n_left: usize,
    /// The policy with the decisions.
    pub policy: Policy,
    /// The module lowered by it.
    #[serde(skip)]
    pub module: Module,
    /// Every decision on it.
    #[serde(skip)]
    pub report: LoweringReport,
}

/// Lowers a module, tries each region, and keeps the cheaper form.
///
/// # Errors
/// A module that cannot be lowered, or that the compiler refuses for a reason other than memory; a missing compiler.
pub fn lower_for(
    question: &LowerQuestion,
    asking: &Asking,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<LowerAnswer, StudyError> {
    check_uncompiled(&question.module, &question.path)?;
    let compiler = asking.compiler(placement(&question.module, &question.path)?);
    let (module, report) = lowered(&question.module, &question.policy, &question.path)?;
    let mut search = Search {
        question,
        compiler: &compiler,
        n_left: question.n_compiles,
        is_fresh: asking.fresh,
        lowered: lowered_names(&report),
        best: Best { policy: question.policy.clone(), module, report, cost: None },
        limit: None,
        trials: Vec::new(),
    };
    let focus = search.first(on)?;
    let open = regions(&question.module, &search.best.report, &focus);
    let n_left = search.go_through(open.into(), &compiler.libtpu()?, on)?;
    let Search { best, limit, trials, .. } = search;
    Ok(LowerAnswer {
        target: question.target.clone(),
        libtpu: compiler.libtpu()?,
        excess_precision: asking.excess_precision,
        before: limit,
        after: best.cost,
        trials,
        n_left,
        policy: best.policy,
        module: best.module,
        report: best.report,
    })
}

/// Instructions that could all have another form.
#[derive(Clone, Debug)]
struct Region {
    what: String,
    form: StoredAs,
    members: Vec<Decided>,
}

impl Region {
    fn words(&self) -> String {
        let plural = if self.members.len() == 1 { "" } else { "s" };
        format!("{} instruction{plural} `{}` {}", self.members.len(), self.what, self.form.words())
    }

    /// Its halves; empty for a single instruction.
    fn halves(self) -> Vec<Region> {
        if self.members.len() < 2 {
            return Vec::new();
        }
        let (first, second) = self.members.split_at(self.members.len() / 2);
        [first, second].map(|part| Region { members: part.to_vec(), ..self.clone() }).into()
    }
}

/// The number of regions in a module that could have another form, to be decided by compiling.
pub fn n_in_doubt(module: &Module, report: &LoweringReport) -> usize {
    regions(module, report, &Focus::default()).len()
}

/// The places of a compiled program that are asked about first.
#[derive(Debug, Default)]
struct Focus {
    /// The scopes of steps that are costly.
    costly: BTreeSet<String>,
    /// The scoped names of the values alive at the peak of memory.
    alive: BTreeSet<String>,
}

/// The scope of a scoped name.
fn scope(op_name: &str) -> &str {
    op_name.rsplit_once('/').map_or("", |(scope, _)| scope)
}

impl Focus {
    /// Reads a compiled module.
    fn of_compiled(module: &Module) -> Result<Focus, StudyError> {
        let explanation = explain(module, None)?;
        let is_costly = |cycles: u64| cycles >= (explanation.total.cycles / COSTLY).max(1);
        let costly = explanation.steps.iter().filter(|step| is_costly(step.cost.cycles));
        let costly = costly.map(|step| scope(&step.origin.op_name).to_string()).filter(|scope| !scope.is_empty());
        let alive = largest_live_buffers(module, N_ALIVE)?.into_iter().map(|buffer| buffer.origin.op_name);
        Ok(Focus { costly: costly.collect(), alive: alive.filter(|name| !name.is_empty()).collect() })
    }
}

/// The key of a region: whether it is computed (not moved), whether no step of its scope is costly, and whether it is
/// not alive at the peak; its opcode and shape; the rule that decided; its other form.
type Asked<'r> = (bool, bool, bool, String, &'r str, StoredAs);

/// The most callers whose scopes a computation has.
const MAX_CALLERS: usize = 8;

/// The scopes of the calls of each computation, as JAX names an instruction of a callee by its place in it.
fn scopes_of_calls(module: &Module) -> Vec<BTreeSet<String>> {
    let mut scopes = vec![BTreeSet::from([String::new()]); module.computations.len()];
    // Callees come first.
    for caller in (0..module.computations.len()).rev() {
        for instr in &module.computations[caller].instructions {
            let Op::Call { to_apply } = instr.op else { continue };
            let within = |scope: &String| within(scope, &instr.metadata.op_name);
            let of_call: Vec<String> = scopes[caller].iter().map(within).collect();
            let n_free = MAX_CALLERS.saturating_sub(scopes[to_apply.idx()].len());
            scopes[to_apply.idx()].extend(of_call.into_iter().take(n_free));
        }
    }
    scopes
}

/// A scoped name within a scope.
fn within(scope: &str, op_name: &str) -> String {
    if scope.is_empty() { op_name.to_string() } else { format!("{scope}/{op_name}") }
}

/// All regions of a module in the order in which they are tried.
fn regions(module: &Module, report: &LoweringReport, focus: &Focus) -> Vec<Region> {
    let has_another = report.decisions.iter().filter(|decision| !decision.alternatives.is_empty());
    // The tuple of a loop's state has none.
    let largest = has_another.clone().map(|decision| decision.n_bytes_before).max().unwrap_or(0);
    let decisions: Vec<&Decision> = has_another.filter(|decision| decision.n_bytes_before >= largest / SMALL).collect();
    if decisions.is_empty() {
        return Vec::new();
    }
    let scopes = scopes_of_calls(module);
    let placed = module.computations.iter().zip(&scopes);
    let instructions = placed.flat_map(|(computation, scopes)| computation.instructions.iter().zip(repeat(scopes)));
    let by_name: HashMap<&str, _> = instructions.map(|it| (&it.0.name[..], it)).collect();
    let mut by_key: BTreeMap<Asked<'_>, (i64, Region)> = BTreeMap::new();
    let mut seen: HashSet<&str> = HashSet::with_capacity(decisions.len());
    for decision in decisions {
        // A decision on a computation that was copied applies to all copies.
        let Some(&(instr, scopes)) = by_name.get(&decision.instruction[..]) else { continue };
        if !seen.insert(&decision.instruction) {
            continue;
        }
        let names: Vec<String> = scopes.iter().map(|scope| within(scope, &decision.op_name)).collect();
        let is_computed = decision.class != Class::Clear.name();
        let is_cheap = !names.iter().any(|name| focus.costly.contains(scope(name)));
        let is_dead = !names.iter().any(|name| focus.alive.contains(name));
        for &form in &decision.alternatives {
            let decided = Decided::new(instr, form, "");
            let key = (is_computed, is_cheap, is_dead, decided.of.clone(), &decision.rule[..], form);
            let region = Region { what: decided.of.clone(), form, members: Vec::new() };
            let (n_bytes, region) = by_key.entry(key).or_insert((0, region));
            *n_bytes += decision.n_bytes_before;
            region.members.push(decided);
        }
    }
    let mut all: Vec<_> = by_key.into_iter().collect();
    all.sort_by_key(|((is_computed, is_cheap, is_dead, ..), (n_bytes, _))| {
        (*is_computed, *is_cheap, *is_dead, -n_bytes)
    });
    all.into_iter().map(|(_, (_, region))| region).collect()
}

/// Instructions that compute or return a narrow dtype.
fn lowered_names(report: &LoweringReport) -> BTreeSet<String> {
    let decisions = report.decisions.iter();
    decisions.filter(|decision| decision.is_lowered).map(|decision| decision.instruction.clone()).collect()
}

fn cost(outcome: &CompileOutcome) -> Option<LoweredCost> {
    outcome.report().map(LoweredCost::from_report)
}

/// The best program so far.
struct Best {
    policy: Policy,
    module: Module,
    report: LoweringReport,
    cost: Option<LoweredCost>,
}

struct Search<'q> {
    question: &'q LowerQuestion,
    compiler: &'q Compiler,
    n_left: u32,
    /// Whether to compile even what is cached.
    is_fresh: bool,
    /// The instructions that the policy alone lowers.
    lowered: BTreeSet<String>,
    best: Best,
    /// The cost with the policy alone.
    limit: Option<LoweredCost>,
    trials: Vec<LowerTrial>,
}

impl Search<'_> {
    /// Compiles the policy's own form; returns what is asked about first.
    fn first(&mut self, on: &mut dyn FnMut(&Event<'_>)) -> Result<Focus, StudyError> {
        let target = &self.question.target;
        let program = encode::to_bytes(&self.best.module).map_err(StudyError::encode)?;
        let is_cached = !self.is_fresh && self.compiler.remembers(target, &program)?;
        self.n_left = self.n_left.saturating_sub(u32::from(!is_cached));
        let compiling =
            Compiling { target: target.clone(), what: AS_LOWERED.to_string(), batch: None, n_more: self.n_left };
        on(&Event::Begins(&compiling));
        let (outcome, focus) = match self.compiler.compile_and_read(target, &program, 1) {
            Ok((compiled, optimized)) => (compiled.outcome, Focus::of_compiled(&read_back(&optimized)?)?),
            Err(error) => (CompileOutcome::of_error(error)?, Focus::default()),
        };
        on(&Event::Ends { compiling: &compiling, is_cached, outcome: &outcome });
        self.best.cost = cost(&outcome);
        self.limit = self.best.cost;
        Ok(focus)
    }

    /// Tries regions while compiles are left; returns the number of regions left over.
    fn go_through(
        &mut self,
        mut open: VecDeque<Region>,
        libtpu: &str,
        on: &mut dyn FnMut(&Event<'_>),
    ) -> Result<usize, StudyError> {
        while let Some(region) = open.pop_front() {
            let policy = self.with(&region);
            let (module, report) = lowered(&self.question.module, &policy, &self.question.path)?;
            if module == self.best.module || !self.is_as_exact(&report, &policy) {
                continue;
            }
            let Some(outcome) = self.compile(&module, region.words(), open.len(), on)? else {
                return Ok(open.len() + 1);
            };
            let cost = cost(&outcome);
            let end = match (cost, self.best.cost) {
                (Some(cost), Some(kept)) => cost.beside(kept, self.limit),
                (Some(_), None) => TrialEnd::Kept,
                (None, _) => TrialEnd::DoesNotFit,
            };
            self.trials.push(LowerTrial { what: region.words(), n: region.members.len(), cost, end });
            if end == TrialEnd::Kept {
                let policy = self.because(policy, &region, cost, libtpu);
                // Lowers again, because the report contains the reasons of the decisions.
                let (module, report) = lowered(&self.question.module, &policy, &self.question.path)?;
                self.best = Best { policy, module, report, cost };
            } else if end != TrialEnd::SmallGain
                && cost.zip(self.best.cost).is_some_and(|(cost, kept)| cost.gains_somewhere(kept))
            {
                open.extend(region.halves());
            }
        }
        Ok(0)
    }

    /// The best policy so far, with a region in its other form.
    fn with(&self, region: &Region) -> Policy {
        let mut policy = self.best.policy.clone();
        let members = || region.members.iter();
        policy.decided.retain(|decided| members().all(|member| member.instruction != decided.instruction));
        policy.decided.extend(members().cloned());
        policy
    }

    /// Whether a policy lowers nothing that the original policy leaves in f32, except values that all their readers
    /// round.
    fn is_as_exact(&self, report: &LoweringReport, policy: &Policy) -> bool {
        let rounds = |decided: &&Decided| matches!(decided.form, StoredAs::Rounded | StoredAs::Narrow);
        let rounded: BTreeSet<&str> =
            policy.decided.iter().filter(rounds).map(|decided| &decided.instruction[..]).collect();
        let mut lowered = report.decisions.iter().filter(|decision| decision.is_lowered);
        lowered.all(|it| self.lowered.contains(&it.instruction) || rounded.contains(&it.instruction[..]))
    }

    /// A policy whose decisions on a region state their reason.
    fn because(&self, mut policy: Policy, region: &Region, cost: Option<LoweredCost>, libtpu: &str) -> Policy {
        let mib = |n_bytes: i64| format!("{:.1} MiB", n_bytes as f64 / f64::from(1 << 20));
        let because = match (self.best.cost, cost) {
            (Some(before), Some(after)) => format!(
                "for {} by libtpu {libtpu}, with the {} of its region, {} of HBM and {} cycles, and {} and {} without",
                self.question.target,
                region.members.len(),
                mib(after.n_bytes),
                after.cycles,
                mib(before.n_bytes),
                before.cycles
            ),
            _ => format!("for {} by libtpu {libtpu}, it fits with it, and does not without", self.question.target),
        };
        for member in &region.members {
            let decided = policy.decided.iter_mut().filter(|decided| decided.instruction == member.instruction);
            decided.for_each(|decided| decided.because.clone_from(&because));
        }
        policy
    }

    /// The cost of a module; `None` if no compile is left.
    fn compile(
        &mut self,
        module: &Module,
        what: String,
        n_open: usize,
        on: &mut dyn FnMut(&Event<'_>),
    ) -> Result<Option<CompileOutcome>, StudyError> {
        let target = &self.question.target;
        let program = encode::to_bytes(module).map_err(StudyError::encode)?;
        let is_cached = !self.is_fresh && self.compiler.remembers(target, &program)?;
        if is_cached {
            return Ok(Some(ask(self.compiler, target, &program, 1)?.outcome));
        }
        let Some(n_left) = self.n_left.checked_sub(1) else { return Ok(None) };
        self.n_left = n_left;
        let n_more = n_left.min(u32::try_from(n_open).unwrap_or(u32::MAX));
        let compiling = Compiling { target: target.clone(), what, batch: None, n_more };
        on(&Event::Begins(&compiling));
        let Compiled { outcome, is_cached } = ask(self.compiler, target, &program, 1)?;
        on(&Event::Ends { compiling: &compiling, is_cached, outcome: &outcome });
        Ok(Some(outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::text;
    use bf16scope_passes::amp;

    /// The sum has more bytes than the transpose, and is tried after it; of what is computed, that of a costly scope comes
    /// first, and then what is alive at the peak.
    #[test]
    fn what_is_moved_is_asked_about_first_and_then_what_is_costly_or_alive() {
        let source = "HloModule order
ENTRY main {
  x = f32[8,8] parameter(0)
  w = f32[8,32] parameter(1)
  v = f32[32,8] parameter(2)
  small = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"small\"}
  turned = f32[8,8] transpose(small), dimensions={1,0}, metadata={op_name=\"turned\"}
  wide = f32[8,32] dot(turned, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"layer/wide\"}
  sum = f32[8,32] add(wide, wide), metadata={op_name=\"sum\"}
  ROOT out = f32[8,8] dot(sum, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"out\"}
}
";
        let module = text::parse(source, "order.hlo").unwrap();
        let (_, report) = amp::run(&module, &Policy::default()).unwrap();
        let asked = |costly: &[&str], alive: &[&str]| {
            let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
            let focus = Focus { costly: set(costly), alive: set(alive) };
            let mut names: Vec<String> = Vec::new();
            for region in regions(&module, &report, &focus) {
                let name = &region.members[0].instruction;
                if names.last() != Some(name) {
                    names.push(name.clone());
                }
            }
            names
        };
        assert_eq!(asked(&[], &[]), ["turned", "sum", "wide", "small"]);
        assert_eq!(asked(&[], &["small"]), ["turned", "small", "sum", "wide"]);
        assert_eq!(asked(&["layer"], &["small"]), ["turned", "wide", "small", "sum"]);
    }

    /// JAX names an instruction of a callee by its place there, and a compiled program by the whole way.
    #[test]
    fn an_instruction_of_a_callee_is_within_the_scope_of_its_call() {
        let source = "HloModule calls
read {
  x = f32[8] parameter(0)
  ROOT y = f32[8] tanh(x), metadata={op_name=\"tanh\"}
}
layer {
  x.1 = f32[8] parameter(0)
  ROOT z = f32[8] call(x.1), to_apply=read, metadata={op_name=\"read\"}
}
ENTRY main {
  x.2 = f32[8] parameter(0)
  a = f32[8] call(x.2), to_apply=layer, metadata={op_name=\"step/a\"}
  ROOT b = f32[8] call(a), to_apply=layer, metadata={op_name=\"step/b\"}
}
";
        let scopes = scopes_of_calls(&text::parse(source, "calls.hlo").unwrap());
        let of_read: Vec<&str> = scopes[0].iter().map(String::as_str).collect();
        assert_eq!(of_read, ["", "read", "step/a/read", "step/b/read"]);
        assert_eq!(scope(&within("step/a/read", "tanh")), "step/a/read");
    }

    /// Gains of a ten-thousandth used to be kept, although no table shows them.
    #[test]
    fn what_is_not_kept_says_why() {
        let cost = |n_bytes, cycles| LoweredCost { n_bytes, cycles };
        let (kept, limit) = (cost(100_000, 100_000), cost(101_000, 100_000));
        let end = |n_bytes, cycles| cost(n_bytes, cycles).beside(kept, Some(limit)).words();
        assert_eq!(
            [end(102_000, 10), end(90_000, 100_200), end(100_000, 100_000)],
            ["more HBM", "more cycles", "no gain"]
        );
        assert_eq!(
            [end(100_000, 99_990), end(100_000, 99_890), end(101_050, 98_000)],
            ["gain < 0.1 %", "kept", "kept"]
        );
        assert_eq!(cost(200_000, 40_000).beside(kept, None), TrialEnd::Kept);
    }
}
