//! Searches for a smallest `keep` list that brings the results under a budget.
//!
//! The budget limits [`Audit::error`]: the largest scaled error (`max |x − r| / max |r|`) of a result. Candidates are
//! instructions in the order of their born error. The list first grows from the top (1, 2, 4, … until the budget holds,
//! then the smallest number by bisection), and is then pruned: groups of entries, halved down to one, are dropped where
//! the budget holds without them, until no single entry can be. So the list is *1-minimal*: dropping any one entry
//! breaks the budget. It need not be the smallest of all, which would take exponentially many runs: errors of different
//! sign cancel, and no rule orders the subsets.
//!
//! [`SearchLimits`] bound the number of lists, and the search ends if more groups are needed than instructions may be
//! kept: error that is born at many places is due to the precision, not to an instruction. A list that keeps less than
//! half of the bytes that lowering saves costs more than it buys, and the search says so ([`SearchEnd`]).
//!
//! If the budget would hold with f32's predicates in all comparisons, and fails because some flip
//! ([`decisions`](super::decisions)), there is no search: any list that changes a rounding before a comparison flips
//! others, so some list would hold the budget by chance. Only one list is tried, the instructions nearest to the
//! comparisons, and it is accepted only if no comparison then flips.
//!
//! Each list is lowered, compiled and run for the results alone. Instructions inside called computations are candidates
//! with their caller, because `keep` finds them by name; their own born error is unknown.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;

use super::{Audit, AuditError, Auditor, DecisionRow, Decisions, largest_error};
use bf16scope_hlo::{CompId, InstrId, Module};
use bf16scope_passes::amp::{self, Policy};

/// The limits of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchLimits {
    /// The most lists to try; each is a compile and a run.
    pub max_runs: usize,
    /// The most instructions in a list.
    pub max_kept: usize,
}

impl Default for SearchLimits {
    /// 40 runs, and 3 instructions: doubling and bisection take 2·log2(n) runs, 20 for a thousand candidates, which
    /// leaves as many for pruning.
    fn default() -> SearchLimits {
        SearchLimits { max_runs: 40, max_kept: 3 }
    }
}

/// The progress of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Searched {
    /// The number of lists tried.
    pub n_runs: usize,
    /// The most lists to try.
    pub max_runs: usize,
    /// The length of the last list.
    pub n_kept: usize,
    /// Its error.
    pub error: f64,
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SearchEnd {
    /// The list is 1-minimal.
    Minimal,
    /// The limit of lists was reached. The kept list holds the budget if it was reached, and may be longer than
    /// necessary.
    OutOfRuns,
    /// No list within the limit of instructions was found. The kept list holds the budget, and may be longer than
    /// necessary.
    TooMany,
    /// The list holds the budget, but gives up more than half of what lowering saves.
    CostsMoreThanItBuys,
    /// Comparisons flip ([`Search::decisions`]); with f32's predicates the budget would hold. Nothing is kept: a few
    /// instructions do not help.
    Decisions,
    /// The budget holds only without lowering.
    NothingLeft,
    /// The budget fails even with every candidate kept.
    NotReached,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Search {
    /// The budget.
    pub budget: f64,
    /// Whether a list that holds it was found.
    pub is_reached: bool,
    /// Why it ended.
    pub end: SearchEnd,
    /// Names added to the policy's `keep`: the list that was found, or the last one tried.
    pub keep: Vec<String>,
    /// The largest scaled error of a result with them.
    pub error: f64,
    /// The share of the bytes saved by lowering that is still saved with them.
    pub saved_share: f64,
    /// The comparisons that lowering flips with nothing kept, and the error with f32's predicates, if the budget did not hold.
    pub decisions: Option<Decisions>,
    /// The number of lists tried.
    pub n_runs: usize,
    /// The policy with this list.
    pub policy: Policy,
}

impl Auditor<'_> {
    /// Searches, starting from the policy and its audit.
    ///
    /// # Errors
    /// A policy that contradicts itself, or a plugin that fails.
    pub fn search(&self, policy: &Policy, audit: &Audit, budget: f64) -> Result<Search, AuditError> {
        self.search_with(policy, audit, budget, SearchLimits::default(), &mut |_| {})
    }

    /// The same within limits, with a progress report after each list.
    ///
    /// # Errors
    /// As [`search`](Self::search).
    pub fn search_with(
        &self,
        policy: &Policy,
        audit: &Audit,
        budget: f64,
        limits: SearchLimits,
        says: &mut dyn FnMut(Searched),
    ) -> Result<Search, AuditError> {
        let names = candidates(self.module, policy, audit)?;
        let n_saved = n_saved_bytes(self.module, policy)?.0;
        let SearchLimits { max_runs, max_kept } = limits;
        let mut trial = Trial {
            auditor: self,
            policy,
            names: &names,
            known: BTreeMap::new(),
            budget,
            n_saved,
            max_runs: max_runs.max(1),
            says,
        };
        let all: Vec<usize> = (0..names.len()).collect();
        let decisions = if trial.holds(&[])? == Some(false) { self.decisions(policy)? } else { None };
        let decided = decisions.as_ref().filter(|decisions| decisions.error <= budget);
        let first = match decided {
            Some(decisions) => Some(trial.decided(nearest(self.module, &decisions.rows, &names, max_kept))?),
            None => None,
        };
        let (mut list, mut end) = match first {
            Some(None) => (Vec::new(), SearchEnd::Decisions),
            Some(Some(list)) => trial.pruned(list, max_kept)?,
            None => match trial.shortest_prefix(&all)? {
                (list, None) => trial.pruned(list, max_kept)?,
                (list, Some(end)) => (list, end),
            },
        };
        if matches!(end, SearchEnd::OutOfRuns | SearchEnd::TooMany) {
            // The shortest list known to hold.
            let holding = trial.known.iter().filter(|(_, error)| **error <= budget).map(|(list, _)| list);
            list = holding.min_by_key(|list| list.len()).cloned().unwrap_or(list);
        }
        let error = trial.known.get(&list).copied().unwrap_or(f64::INFINITY);
        let is_reached = error <= budget;
        let (saved_share, n_lowered) = trial.saved_share(&list)?;
        if is_reached && list.len() > max_kept {
            end = SearchEnd::TooMany;
        } else if is_reached && n_lowered == 0 {
            end = SearchEnd::NothingLeft;
        } else if is_reached && saved_share < WORTH {
            end = SearchEnd::CostsMoreThanItBuys;
        }
        Ok(Search {
            budget,
            is_reached,
            end,
            error,
            saved_share,
            decisions,
            n_runs: trial.known.len(),
            policy: trial.policy(&list),
            keep: list.into_iter().map(|idx| names[idx].clone()).collect(),
        })
    }

    /// The largest scaled error of a result under a policy.
    fn error_under(&self, policy: &Policy) -> Result<f64, AuditError> {
        let lowered = self.lowered(policy)?;
        Ok(largest_error(&self.result_rows(&self.flushed(&lowered), &self.upload(&lowered)?)?))
    }
}

/// The least share of lowering's savings that a list must keep.
const WORTH: f64 = 0.5;

/// The bytes between instructions that a policy saves, and the number of instructions that it lowers.
fn n_saved_bytes(module: &Module, policy: &Policy) -> Result<(i64, usize), AuditError> {
    let (_, report) = amp::run(module, policy)?;
    Ok((report.n_activation_bytes_before - report.n_activation_bytes_after, report.n_lowered()))
}

/// Lists of candidates, by their indices, with their results.
struct Trial<'a, 'm> {
    auditor: &'a Auditor<'m>,
    policy: &'a Policy,
    names: &'a [String],
    known: BTreeMap<Vec<usize>, f64>,
    budget: f64,
    /// Bytes that the policy saves without a list.
    n_saved: i64,
    max_runs: usize,
    says: &'a mut dyn FnMut(Searched),
}

impl Trial<'_, '_> {
    fn policy(&self, list: &[usize]) -> Policy {
        let mut policy = self.policy.clone();
        policy.keep.extend(list.iter().map(|&idx| self.names[idx].clone()));
        policy
    }

    /// The share of the bytes still saved with a list, and the number of instructions still lowered.
    fn saved_share(&self, list: &[usize]) -> Result<(f64, usize), AuditError> {
        let (n_saved, n_lowered) = n_saved_bytes(self.auditor.module, &self.policy(list))?;
        // A policy that saves nothing has nothing to lose.
        Ok((if self.n_saved > 0 { n_saved as f64 / self.n_saved as f64 } else { 1.0 }, n_lowered))
    }

    /// Whether a list holds the budget; `None` if the limit of lists is reached.
    fn holds(&mut self, list: &[usize]) -> Result<Option<bool>, AuditError> {
        if let Some(&known) = self.known.get(list) {
            return Ok(Some(known <= self.budget));
        }
        if self.known.len() >= self.max_runs {
            return Ok(None);
        }
        let error = self.auditor.error_under(&self.policy(list))?;
        tracing::info!(kept = list.len(), error, "tried");
        self.known.insert(list.to_vec(), error);
        (self.says)(Searched { n_runs: self.known.len(), max_runs: self.max_runs, n_kept: list.len(), error });
        Ok(Some(error <= self.budget))
    }

    /// The list, if it holds and no comparison flips with it.
    fn decided(&mut self, list: Vec<usize>) -> Result<Option<Vec<usize>>, AuditError> {
        let is_mended = !list.is_empty()
            && self.holds(&list)? == Some(true)
            && self.auditor.decisions(&self.policy(&list))?.is_none();
        Ok(is_mended.then_some(list))
    }

    /// The shortest prefix found by doubling and bisection; and why the search ends with it, if it does.
    fn shortest_prefix(&mut self, all: &[usize]) -> Result<(Vec<usize>, Option<SearchEnd>), AuditError> {
        let (mut fails, mut holds) = (0, 0);
        loop {
            let list = &all[..holds];
            match self.holds(list)? {
                Some(true) => break,
                None => return Ok((all[..fails].to_vec(), Some(SearchEnd::OutOfRuns))),
                Some(false) if holds == all.len() => return Ok((list.to_vec(), Some(SearchEnd::NotReached))),
                Some(false) => {}
            }
            fails = holds;
            holds = (2 * holds).max(1).min(all.len());
        }
        while holds > fails + 1 {
            let middle = fails.midpoint(holds);
            match self.holds(&all[..middle])? {
                Some(true) => holds = middle,
                Some(false) => fails = middle,
                None => return Ok((all[..holds].to_vec(), Some(SearchEnd::OutOfRuns))),
            }
        }
        Ok((all[..holds].to_vec(), None))
    }

    /// Prunes a list until no single entry can be dropped. Each group that cannot be dropped has a needed entry, so
    /// there may be no more such groups than the list may have entries.
    fn pruned(&mut self, mut list: Vec<usize>, max_kept: usize) -> Result<(Vec<usize>, SearchEnd), AuditError> {
        let mut size = list.len().div_ceil(2);
        while size > 0 && !list.is_empty() {
            let (mut changed, mut n_needed) = (false, 0);
            // The smallest born error first.
            let mut end = list.len();
            while end > 0 {
                let start = end.saturating_sub(size);
                let without = [&list[..start], &list[end..]].concat();
                match self.holds(&without)? {
                    Some(true) => {
                        list = without;
                        changed = true;
                    }
                    Some(false) if n_needed == max_kept => return Ok((list, SearchEnd::TooMany)),
                    Some(false) => n_needed += 1,
                    None => return Ok((list, SearchEnd::OutOfRuns)),
                }
                end = start;
            }
            if size > 1 {
                size = size.div_ceil(2);
            } else if !changed {
                break;
            }
        }
        Ok((list, SearchEnd::Minimal))
    }
}

/// The indices of at most `n` candidates, nearest before these comparisons first.
fn nearest(module: &Module, rows: &[DecisionRow], names: &[String], n: usize) -> Vec<usize> {
    let entry = module.entry();
    let places: BTreeMap<&str, usize> = names.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let compared: BTreeSet<&str> = rows.iter().map(|row| row.instruction.as_str()).collect();
    let mut pending: VecDeque<InstrId> =
        entry.ids().filter(|&id| compared.contains(entry.instr(id).name.as_str())).collect();
    let (mut reached, mut list): (BTreeSet<InstrId>, _) = (pending.iter().copied().collect(), Vec::new());
    while let Some(id) = pending.pop_front() {
        let instr = entry.instr(id);
        list.extend(places.get(instr.name.as_str()));
        if list.len() >= n {
            break;
        }
        pending.extend(instr.operands.iter().copied().filter(|&operand| reached.insert(operand)));
    }
    list.truncate(n);
    list
}

/// Names to keep, those with the largest born error first.
fn candidates(module: &Module, policy: &Policy, audit: &Audit) -> Result<Vec<String>, AuditError> {
    let (_, report) = amp::run(module, policy)?;
    let decided = report.decisions.iter().filter(|decision| decision.is_lowered);
    let lowered: BTreeSet<&str> = decided.map(|decision| decision.instruction.as_str()).collect();
    let mut names = Vec::new();
    let mut seen = BTreeSet::new();
    for row in audit.by_born() {
        let is_changed = row.born.scaled > 0.0 || lowered.contains(row.instruction.as_str());
        if is_changed && seen.insert(row.instruction.clone()) {
            names.push(row.instruction.clone());
        }
        let mut pending = module.entry().instructions[row.position].op.called();
        let mut reached: BTreeSet<CompId> = pending.iter().copied().collect();
        while let Some(comp) = pending.pop() {
            for instr in &module.comp(comp).instructions {
                if lowered.contains(instr.name.as_str()) && seen.insert(instr.name.clone()) {
                    names.push(instr.name.clone());
                }
                pending.extend(instr.op.called().into_iter().filter(|&callee| reached.insert(callee)));
            }
        }
    }
    Ok(names)
}
