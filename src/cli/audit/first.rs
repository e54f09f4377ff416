//! `audit EXPERIMENT --first-beyond RATIO`: the first step of a run whose error is so many times that of its first step.

use anyhow::ensure;
use serde::Serialize;

use super::made::Maker;
use super::screen::number;
use super::{Args, choice_of, config};
use crate::audit::{Auditor, ResultRow};
use crate::cli::progress::{self, say};
use crate::cli::{Context, Status};
use crate::passes::amp::Policy;

/// The error of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct StepError {
    pub step: u64,
    /// The largest scaled error of a result that is judged, of the lowered step beside the f32 step, on the run's state and
    /// batch; `null` if one is not finite.
    pub error: f64,
}

/// What a search for the first step beyond found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FirstBeyond {
    /// Times the error of step 1.
    pub ratio: f64,
    /// The step; `null` where none that was audited is beyond.
    pub step: Option<u64>,
    /// All that was measured, in the order of the search.
    pub measured: Vec<StepError>,
}

/// Audits of results that it takes at most, of a run of so many steps: of step 1, of those twice as late until one is
/// beyond, and one for each halving between that one and the one before.
fn n_audits(last: u64) -> u64 {
    let before = [1].into_iter().chain(doublings(last));
    let halvings = |(before, beyond): (u64, u64)| u64::from((beyond - before).next_power_of_two().ilog2());
    before.zip(doublings(last)).zip(2..).map(|(gap, n)| n + halvings(gap)).max().unwrap_or(1)
}

/// Step 2, 4, 8 and so on, and the last.
fn doublings(last: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(2u64), |step| step.checked_mul(2)).take_while(move |step| *step < last).chain([last])
}

/// Looks for the first step beyond: at steps twice as late each, then by halving between the last that is not beyond and the
/// first that is.
///
/// # Errors
/// A run of one step; whatever making and auditing a step says.
pub(super) fn first_beyond(
    args: &Args,
    policy: &Policy,
    maker: &mut Maker<'_>,
    ratio: f64,
    context: &Context,
) -> anyhow::Result<FirstBeyond> {
    let last = maker.last();
    ensure!(
        last > 1,
        "--first-beyond compares steps of a run, and this one has {last}\nhelp: --at 1 audits its first step"
    );
    let most = n_audits(last);
    if !context.quiet {
        say(&format!(
            "looking for the first of {last} steps whose error, the largest of a judged result beside f32, is over {ratio} times \
             that of step 1: {most} audits of results at most"
        ));
    }
    let mut measured: Vec<StepError> = Vec::new();
    let mut error_of = |step: u64| -> anyhow::Result<f64> {
        let (in_f32, _) = maker.make(step)?;
        let spinner = progress::spinner(format!("auditing the results of step {step}"), context.quiet);
        let choice = choice_of(args, in_f32.results);
        let auditor = Auditor::of_results(maker.client(), &in_f32.module, &in_f32.inputs, config(args), &choice)?;
        let error = largest(&auditor.results(policy)?);
        spinner.finish_and_clear();
        measured.push(StepError { step, error });
        if !context.quiet {
            say(&format!("audit {} of {most} at most: step {step} is {} off", measured.len(), number(error)));
        }
        Ok(error)
    };
    let limit = ratio * error_of(1)?;
    // What is not finite is beyond everything.
    let is_beyond = |error: f64| error > limit || error.is_nan();
    let (mut before, mut beyond) = (1, None);
    for step in doublings(last) {
        if is_beyond(error_of(step)?) {
            beyond = Some(step);
            break;
        }
        before = step;
    }
    if let Some(beyond) = &mut beyond {
        while *beyond - before > 1 {
            let middle = before + (*beyond - before) / 2;
            match is_beyond(error_of(middle)?) {
                true => *beyond = middle,
                false => before = middle,
            }
        }
    }
    Ok(FirstBeyond { ratio, step: beyond, measured })
}

fn largest(rows: &[ResultRow]) -> f64 {
    rows.iter().filter_map(|row| row.judged).fold(0.0, f64::max)
}

impl FirstBeyond {
    /// What was found, in a line.
    pub(super) fn line(&self) -> String {
        let of =
            |step: u64| self.measured.iter().find(|other| other.step == step).map_or(f64::NAN, |found| found.error);
        let n = self.measured.len();
        match self.step {
            Some(step) => format!(
                "step {step} is over {} times the error of step 1 ({} against {}), and step {} is not ({}): found in {n} audits, of \
                 steps twice as late each and then by halving; where errors go up and down, an earlier one may be over it too",
                self.ratio,
                number(of(step)),
                number(of(1)),
                step - 1,
                number(of(step - 1)),
            ),
            None => format!(
                "none of the {n} steps that were audited is over {} times the error of step 1, which is {}; the largest is {}\n\
                 help: --at STEP audits another one, a smaller RATIO asks for less",
                self.ratio,
                number(of(1)),
                number(self.measured.iter().map(|measured| measured.error).fold(0.0, f64::max)),
            ),
        }
    }
}

/// Says that no step is beyond.
pub(super) fn say_none(args: &Args, found: &FirstBeyond, context: &Context) -> anyhow::Result<Status> {
    match args.json {
        true => context.print_json(&serde_json::json!({ "file": args.module, "first_beyond": found }))?,
        false => context.print(&format!("{}\n", found.line()))?,
    }
    Ok(Status::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The search of [`first_beyond`], counted, for every answer there is.
    #[test]
    fn no_search_takes_more_audits_than_it_says() {
        for last in 2..300u64 {
            let count = |answer: u64| {
                let steps: Vec<u64> = doublings(last).collect();
                let place = steps.iter().position(|step| *step >= answer).unwrap();
                let (mut before, mut beyond) = (if place == 0 { 1 } else { steps[place - 1] }, steps[place]);
                let mut n = 2 + place as u64;
                while beyond - before > 1 {
                    let middle = before + (beyond - before) / 2;
                    n += 1;
                    if middle >= answer { beyond = middle } else { before = middle }
                }
                assert_eq!(beyond, answer);
                n
            };
            let (most, said) = ((2..=last).map(count).max().unwrap(), n_audits(last));
            assert_eq!(most, said, "{last}");
        }
    }
}
