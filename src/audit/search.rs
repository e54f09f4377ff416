//! The search for a smallest `keep` list that brings the results under a budget.
//!
//! The budget is on [`Audit::error`]: the greatest scaled error (`max |x − r| / max |r|`) of a result. Candidates are
//! instructions in the order in which error is born at them. The list is first made by taking candidates from the top
//! (1, 2, 4, … until the budget holds, then the least number by bisection), and then pruned: groups of entries, halved
//! down to one, are left out wherever the budget holds without them, until no single entry can be. So the list is
//! *1-minimal*: leaving out any one entry breaks the budget. It need not be the smallest of all, which would take
//! exponentially many runs: errors of different sign cancel, and no rule orders the subsets.
//!
//! Each list that is tried is lowered, compiled and run for the results alone. Instructions inside called computations
//! are candidates where their caller is, for `keep` reaches them by name; where their own error is born is not known.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Audit, AuditError, Auditor, worst};
use crate::hlo::{CompId, Module};
use crate::passes::amp::{self, Policy};

/// What a search found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Search {
    /// What was to be reached.
    pub budget: f64,
    /// Whether it was reached: not, where results are off with every candidate kept (their own dtype may be the reason).
    pub is_reached: bool,
    /// Names added to the policy's `keep`: those of a 1-minimal list, or all if the budget was not reached.
    pub keep: Vec<String>,
    /// The greatest scaled error of a result with them.
    pub error: f64,
    /// Lists that were tried.
    pub n_runs: usize,
    /// The policy with them.
    pub policy: Policy,
}

impl Auditor<'_> {
    /// Searches, from the policy and what its audit found.
    ///
    /// # Errors
    /// A policy that contradicts itself, or a plugin that fails.
    pub fn search(&self, policy: &Policy, audit: &Audit, budget: f64) -> Result<Search, AuditError> {
        self.search_with(policy, audit, budget, &mut |_| {})
    }

    /// The same, and says how many lists were tried after each.
    ///
    /// # Errors
    /// As [`search`](Self::search).
    pub fn search_with(
        &self,
        policy: &Policy,
        audit: &Audit,
        budget: f64,
        says: &mut dyn FnMut(usize),
    ) -> Result<Search, AuditError> {
        let names = candidates(self.module, policy, audit)?;
        let mut trial = Trial { auditor: self, policy, names: &names, known: BTreeMap::new(), budget, says };
        let all: Vec<usize> = (0..names.len()).collect();
        let list = trial.shortest_prefix(&all)?;
        let is_reached = trial.holds(&list)?;
        let list = if is_reached { trial.pruned(list)? } else { all };
        Ok(Search {
            budget,
            is_reached,
            error: trial.error(&list)?,
            n_runs: trial.known.len(),
            policy: trial.policy(&list),
            keep: list.into_iter().map(|idx| names[idx].clone()).collect(),
        })
    }

    /// The greatest scaled error of a result under a policy.
    fn error_under(&self, policy: &Policy) -> Result<f64, AuditError> {
        let lowered = self.lowered(policy)?;
        Ok(worst(&self.result_rows(&self.flushed(&lowered), &self.upload(&lowered)?)?))
    }
}

/// Lists of candidates, by their places, and what came of them.
struct Trial<'a, 'm> {
    auditor: &'a Auditor<'m>,
    policy: &'a Policy,
    names: &'a [String],
    known: BTreeMap<Vec<usize>, f64>,
    budget: f64,
    says: &'a mut dyn FnMut(usize),
}

impl Trial<'_, '_> {
    fn policy(&self, list: &[usize]) -> Policy {
        let mut policy = self.policy.clone();
        policy.keep.extend(list.iter().map(|&idx| self.names[idx].clone()));
        policy
    }

    fn error(&mut self, list: &[usize]) -> Result<f64, AuditError> {
        if let Some(&known) = self.known.get(list) {
            return Ok(known);
        }
        let error = self.auditor.error_under(&self.policy(list))?;
        tracing::info!(kept = list.len(), error, "tried");
        self.known.insert(list.to_vec(), error);
        (self.says)(self.known.len());
        Ok(error)
    }

    fn holds(&mut self, list: &[usize]) -> Result<bool, AuditError> {
        Ok(self.error(list)? <= self.budget)
    }

    /// The least prefix that doubling and bisection find to hold; all if none does.
    fn shortest_prefix(&mut self, all: &[usize]) -> Result<Vec<usize>, AuditError> {
        let (mut fails, mut holds) = (0, 0);
        while !self.holds(&all[..holds])? {
            if holds == all.len() {
                return Ok(all.to_vec());
            }
            fails = holds;
            holds = (2 * holds).max(1).min(all.len());
        }
        while holds > fails + 1 {
            let middle = fails.midpoint(holds);
            if self.holds(&all[..middle])? { holds = middle } else { fails = middle }
        }
        Ok(all[..holds].to_vec())
    }

    /// A list that holds without what it does not need: no single entry can be left out of it.
    fn pruned(&mut self, mut list: Vec<usize>) -> Result<Vec<usize>, AuditError> {
        let mut size = list.len().div_ceil(2);
        while size > 0 && !list.is_empty() {
            let mut changed = false;
            // Where least is born first.
            let mut end = list.len();
            while end > 0 {
                let start = end.saturating_sub(size);
                let without = [&list[..start], &list[end..]].concat();
                if self.holds(&without)? {
                    list = without;
                    changed = true;
                }
                end = start;
            }
            if size > 1 {
                size = size.div_ceil(2);
            } else if !changed {
                break;
            }
        }
        Ok(list)
    }
}

/// Names to keep, those where most error is born first.
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
