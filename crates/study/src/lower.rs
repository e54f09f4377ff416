//! Lowering that asks the TPU compiler: where a value could as well be in another form without another rounding, both forms
//! are compiled, and the cheaper one is kept.
//!
//! Rules of `passes::amp` say what a compiler stores from the form of a program; what it does store, and how it packs that,
//! it alone knows. A question is a *region*: all instructions of one opcode and shape for which one rule decided, as the
//! layers of a network have them, and one other form for all of them ([`StoredAs`]). Those that only move values are asked
//! about first, as compilers store or copy what is moved, where what is computed is mostly fused; of both those of what is
//! alive at the peak of memory before all others, and then from the one with the most bytes down. Where one of the two
//! figures falls and the other rises, its halves are asked about, and so on down to single instructions.
//!
//! What is kept: of all programs that were compiled and that are worse in neither memory nor cycles than what the policy makes
//! by itself, by more than a thousandth, the one with the smallest product of both, where each that is kept makes that smaller by more than a
//! thousandth. And none is less exact: no value is
//! rounded that the policy leaves in f32, unless all that read it read it rounded anyway.
//!
//! The decisions become a part of the policy, which then makes the same module without a compiler.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use serde::Serialize;

use super::StudyError;
use super::ask::{Asking, Compiling, Event, ask};
use super::compare::read_back;
use super::module_file::check_uncompiled;
use super::subject::{lowered, placement};
use bf16scope_hlo::Module;
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::proto::encode;
use bf16scope_passes::amp::{Decided, LoweringReport, Policy, StoredAs};
use bf16scope_tpu::explain::largest_live_buffers;
use bf16scope_tpu::{CompileOutcome, CompileReport, Compiled, Compiler, Target};

/// Values of less than this part of the largest one are not asked about.
const SMALL: i64 = 256;

/// What is as good as equal: a thousandth of a figure.
const SLACK: u64 = 1000;

/// Of what is alive at the peak so many of the largest are looked at.
const N_ALIVE: usize = 64;

/// What the first compile is of.
const AS_LOWERED: &str = "as the policy lowers it";

/// How a module is best lowered for a target.
#[derive(Clone, Debug)]
pub struct LowerQuestion {
    /// The module, in f32.
    pub module: Module,
    /// Its file, for messages.
    pub path: PathBuf,
    /// What may be lowered; what it decides by itself stays.
    pub policy: Policy,
    /// For which TPU.
    pub target: Target,
    /// At most so many programs are compiled that are not in the cache.
    pub n_compiles: u32,
}

impl LowerQuestion {
    /// Compiles, unless more or fewer are asked for.
    pub const N_COMPILES: u32 = 24;
}

/// What a program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LoweredCost {
    /// Bytes of HBM, without code.
    pub n_bytes: i64,
    /// Estimated cycles.
    pub cycles: u64,
}

impl LoweredCost {
    fn of(report: &CompileReport) -> LoweredCost {
        LoweredCost { n_bytes: report.hbm.total - report.hbm.code, cycles: report.cycles }
    }

    fn product(self) -> f64 {
        self.n_bytes as f64 * self.cycles as f64
    }

    /// What becomes of a program of this cost beside the one that is kept: it is kept itself if it is worse in neither than
    /// `limit`, but for a thousandth, and its product is smaller by more than that.
    fn beside(self, kept: LoweredCost, limit: Option<LoweredCost>) -> TrialEnd {
        let is_above = |limit: &LoweredCost| {
            let n_bytes = limit.n_bytes.saturating_add(limit.n_bytes / SLACK as i64);
            let cycles = limit.cycles.saturating_add(limit.cycles / SLACK);
            (self.n_bytes > n_bytes, self.cycles > cycles)
        };
        match (limit.as_ref().map_or((false, false), is_above), self.product() / kept.product()) {
            ((true, _), _) => TrialEnd::MoreMemory,
            (_, ratio) if ratio >= 1.0 => TrialEnd::NoGain,
            ((_, true), _) => TrialEnd::MoreCycles,
            (_, ratio) if ratio > 1.0 - 1.0 / SLACK as f64 => TrialEnd::SmallGain,
            _ => TrialEnd::Kept,
        }
    }

    /// Whether one is less than in `other`.
    fn gains_somewhere(self, other: LoweredCost) -> bool {
        self.n_bytes < other.n_bytes || self.cycles < other.cycles
    }
}

/// What became of a region in its other form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TrialEnd {
    /// It is kept so.
    Kept,
    /// It does not fit, or the compiler refused it.
    DoesNotFit,
    /// It takes more memory than the policy alone.
    MoreMemory,
    /// It takes more cycles than the policy alone.
    MoreCycles,
    /// Memory times cycles are no less than without it.
    NoGain,
    /// They are, but by less than a thousandth.
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

/// A region that was asked about.
#[derive(Clone, Debug, Serialize)]
pub struct LowerTrial {
    /// What was tried, in words.
    pub what: String,
    /// Instructions of it.
    pub n: usize,
    /// What the program took; `None` where it did not fit, or the compiler refused it.
    pub cost: Option<LoweredCost>,
    /// Whether it was kept, or why not.
    pub end: TrialEnd,
}

/// How a module is best lowered.
#[derive(Clone, Debug, Serialize)]
pub struct LowerAnswer {
    /// For which TPU.
    pub target: Target,
    /// By which compiler.
    pub libtpu: String,
    /// Whether it might keep more precision than the programs say.
    pub excess_precision: bool,
    /// What the policy makes by itself; `None` where that does not fit.
    pub before: Option<LoweredCost>,
    /// What is kept.
    pub after: Option<LoweredCost>,
    /// What was tried, in order.
    pub trials: Vec<LowerTrial>,
    /// Regions that there was no compile left for.
    pub n_left: usize,
    /// The policy with what was decided.
    pub policy: Policy,
    /// The module by it.
    #[serde(skip)]
    pub module: Module,
    /// Every decision on it.
    #[serde(skip)]
    pub report: LoweringReport,
}

/// Lowers a module, asks about each region, and keeps what is cheaper.
///
/// # Errors
/// A module that cannot be lowered, or that the compiler refuses for another reason than memory; a compiler that cannot be had.
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
        kept: Kept { policy: question.policy.clone(), module, report, cost: None },
        limit: None,
        trials: Vec::new(),
    };
    let alive = search.first(on)?;
    let open = regions(&question.module, &search.kept.report, &alive);
    let n_left = search.go_through(open.into(), &compiler.libtpu()?, on)?;
    let Search { kept, limit, trials, .. } = search;
    Ok(LowerAnswer {
        target: question.target.clone(),
        libtpu: compiler.libtpu()?,
        excess_precision: asking.excess_precision,
        before: limit,
        after: kept.cost,
        trials,
        n_left,
        policy: kept.policy,
        module: kept.module,
        report: kept.report,
    })
}

/// Instructions that could all be in another form.
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

    /// Its halves; of a single instruction none.
    fn halves(self) -> Vec<Region> {
        if self.members.len() < 2 {
            return Vec::new();
        }
        let (first, second) = self.members.split_at(self.members.len() / 2);
        [first, second].map(|part| Region { members: part.to_vec(), ..self.clone() }).into()
    }
}

/// How many regions of a module could be in another form, of which a compiler may be asked.
pub fn n_in_doubt(module: &Module, report: &LoweringReport) -> usize {
    regions(module, report, &BTreeSet::new()).len()
}

/// What makes a region: whether it is computed and not moved, and not alive at the peak; its opcode and shape; the rule that
/// decided; its other form.
type Asked<'r> = (bool, bool, String, &'r str, StoredAs);

/// All regions of a module in the order in which they are asked about; `alive` are the scoped names of what is alive at the
/// peak of memory.
fn regions(module: &Module, report: &LoweringReport, alive: &BTreeSet<String>) -> Vec<Region> {
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let by_name: BTreeMap<&str, _> = instructions.map(|instr| (&instr.name[..], instr)).collect();
    let largest = report.decisions.iter().map(|decision| decision.n_bytes_before).max().unwrap_or(0);
    let mut found: BTreeMap<Asked<'_>, (i64, Region)> = BTreeMap::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for decision in report.decisions.iter().filter(|decision| decision.n_bytes_before >= largest / SMALL) {
        // Of a computation that was copied, one decision is on all copies.
        let Some(&instr) = by_name.get(&decision.instruction[..]) else { continue };
        if !seen.insert(&decision.instruction) {
            continue;
        }
        for &form in &decision.alternatives {
            let decided = Decided::new(instr, form, "");
            let (is_computed, is_dead) = (decision.class != Class::Clear.name(), !alive.contains(&decision.op_name));
            let key = (is_computed, is_dead, decided.of.clone(), &decision.rule[..], form);
            let region = Region { what: decided.of.clone(), form, members: Vec::new() };
            let (n_bytes, region) = found.entry(key).or_insert((0, region));
            *n_bytes += decision.n_bytes_before;
            region.members.push(decided);
        }
    }
    let mut all: Vec<_> = found.into_iter().collect();
    all.sort_by_key(|((is_computed, is_dead, ..), (n_bytes, _))| (*is_computed, *is_dead, -n_bytes));
    all.into_iter().map(|(_, (_, region))| region).collect()
}

/// Instructions that compute or give something narrow.
fn lowered_names(report: &LoweringReport) -> BTreeSet<String> {
    let decisions = report.decisions.iter();
    decisions.filter(|decision| decision.is_lowered).map(|decision| decision.instruction.clone()).collect()
}

fn cost(outcome: &CompileOutcome) -> Option<LoweredCost> {
    outcome.report().map(LoweredCost::of)
}

/// The best so far.
struct Kept {
    policy: Policy,
    module: Module,
    report: LoweringReport,
    cost: Option<LoweredCost>,
}

struct Search<'q> {
    question: &'q LowerQuestion,
    compiler: &'q Compiler,
    n_left: u32,
    /// Whether even what is kept is compiled.
    is_fresh: bool,
    /// What the policy lowers by itself.
    lowered: BTreeSet<String>,
    kept: Kept,
    /// What the policy makes by itself.
    limit: Option<LoweredCost>,
    trials: Vec<LowerTrial>,
}

impl Search<'_> {
    /// Asks about what the policy makes by itself; gives the scoped names of what is alive at its peak of memory.
    fn first(&mut self, on: &mut dyn FnMut(&Event<'_>)) -> Result<BTreeSet<String>, StudyError> {
        let target = &self.question.target;
        let program = encode::to_bytes(&self.kept.module).map_err(StudyError::encode)?;
        let is_kept = !self.is_fresh && self.compiler.remembers(target, &program)?;
        self.n_left = self.n_left.saturating_sub(u32::from(!is_kept));
        let compiling =
            Compiling { target: target.clone(), what: AS_LOWERED.to_string(), batch: None, n_more: self.n_left };
        on(&Event::Begins(&compiling));
        let (outcome, alive) = match self.compiler.compile_and_read(target, &program, 1) {
            Ok((compiled, optimized)) => {
                let alive = largest_live_buffers(&read_back(&optimized)?, N_ALIVE)?;
                let names = alive.into_iter().map(|buffer| buffer.origin.op_name).filter(|name| !name.is_empty());
                (compiled.outcome, names.collect())
            }
            Err(error) => (CompileOutcome::of_error(error)?, BTreeSet::new()),
        };
        on(&Event::Ends { compiling: &compiling, is_cached: is_kept, outcome: &outcome });
        self.kept.cost = cost(&outcome);
        self.limit = self.kept.cost;
        Ok(alive)
    }

    /// Asks about regions while compiles are left; gives how many there was none left for.
    fn go_through(
        &mut self,
        mut open: VecDeque<Region>,
        libtpu: &str,
        on: &mut dyn FnMut(&Event<'_>),
    ) -> Result<usize, StudyError> {
        while let Some(region) = open.pop_front() {
            let policy = self.with(&region);
            let (module, report) = lowered(&self.question.module, &policy, &self.question.path)?;
            if module == self.kept.module || !self.is_as_exact(&report, &policy) {
                continue;
            }
            let Some(outcome) = self.compile(&module, region.words(), open.len(), on)? else {
                return Ok(open.len() + 1);
            };
            let cost = cost(&outcome);
            let end = match (cost, self.kept.cost) {
                (Some(cost), Some(kept)) => cost.beside(kept, self.limit),
                (Some(_), None) => TrialEnd::Kept,
                (None, _) => TrialEnd::DoesNotFit,
            };
            self.trials.push(LowerTrial { what: region.words(), n: region.members.len(), cost, end });
            if end == TrialEnd::Kept {
                let policy = self.because(policy, &region, cost, libtpu);
                // The same again, as what is said of a decision is in the report.
                let (module, report) = lowered(&self.question.module, &policy, &self.question.path)?;
                self.kept = Kept { policy, module, report, cost };
            } else if end != TrialEnd::SmallGain
                && cost.zip(self.kept.cost).is_some_and(|(cost, kept)| cost.gains_somewhere(kept))
            {
                open.extend(region.halves());
            }
        }
        Ok(0)
    }

    /// What is kept, and a region in its other form.
    fn with(&self, region: &Region) -> Policy {
        let mut policy = self.kept.policy.clone();
        let members = || region.members.iter();
        policy.decided.retain(|decided| members().all(|member| member.instruction != decided.instruction));
        policy.decided.extend(members().cloned());
        policy
    }

    /// Whether nothing is lowered that the policy by itself leaves in f32, but what a decision rounds for readers that round.
    fn is_as_exact(&self, report: &LoweringReport, policy: &Policy) -> bool {
        let rounds = |decided: &&Decided| matches!(decided.form, StoredAs::Rounded | StoredAs::Narrow);
        let rounded: BTreeSet<&str> =
            policy.decided.iter().filter(rounds).map(|decided| &decided.instruction[..]).collect();
        let mut lowered = report.decisions.iter().filter(|decision| decision.is_lowered);
        lowered.all(|it| self.lowered.contains(&it.instruction) || rounded.contains(&it.instruction[..]))
    }

    /// A policy whose decisions on a region say why.
    fn because(&self, mut policy: Policy, region: &Region, cost: Option<LoweredCost>, libtpu: &str) -> Policy {
        let mib = |n_bytes: i64| format!("{:.1} MiB", n_bytes as f64 / f64::from(1 << 20));
        let because = match (self.kept.cost, cost) {
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

    /// What the compiler says of a module; `None` where no compile is left.
    fn compile(
        &mut self,
        module: &Module,
        what: String,
        n_open: usize,
        on: &mut dyn FnMut(&Event<'_>),
    ) -> Result<Option<CompileOutcome>, StudyError> {
        let target = &self.question.target;
        let program = encode::to_bytes(module).map_err(StudyError::encode)?;
        let is_kept = !self.is_fresh && self.compiler.remembers(target, &program)?;
        if is_kept {
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

    /// The sum has more bytes than the transpose, and is asked about behind it, unless only it is alive at the peak: then
    /// it is the first of what is computed.
    #[test]
    fn what_is_moved_is_asked_about_first_and_then_what_is_alive() {
        let source = "HloModule order
ENTRY main {
  x = f32[8,8] parameter(0)
  w = f32[8,32] parameter(1)
  v = f32[32,8] parameter(2)
  small = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"small\"}
  turned = f32[8,8] transpose(small), dimensions={1,0}, metadata={op_name=\"turned\"}
  wide = f32[8,32] dot(turned, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"wide\"}
  sum = f32[8,32] add(wide, wide), metadata={op_name=\"sum\"}
  ROOT out = f32[8,8] dot(sum, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"out\"}
}
";
        let module = text::parse(source, "order.hlo").unwrap();
        let (_, report) = amp::run(&module, &Policy::default()).unwrap();
        let asked = |alive: &[&str]| {
            let alive = alive.iter().map(ToString::to_string).collect();
            let mut names: Vec<String> = Vec::new();
            for region in regions(&module, &report, &alive) {
                let name = &region.members[0].instruction;
                if names.last() != Some(name) {
                    names.push(name.clone());
                }
            }
            names
        };
        assert_eq!(asked(&[]), ["turned", "sum", "wide", "small"]);
        assert_eq!(asked(&["small"]), ["turned", "small", "sum", "wide"]);
    }

    /// Gains of a ten-thousandth were kept, which no table shows.
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
