//! Finds the first step of a run whose error exceeds a multiple of the error at step 1, with a known maximum of audits.

use serde::Serialize;

/// The error of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StepError {
    /// Counted from 1.
    pub step: u64,
    /// The error; in JSON `null` if it is not finite.
    pub error: f64,
}

/// The result of a search for the first step with a larger error ([`first_step_beyond`]).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FirstBeyond {
    /// The allowed multiple of the error of step 1.
    pub ratio: f64,
    /// The step; `null` if no audited step exceeds it.
    pub step: Option<u64>,
    /// All measured errors, in the order of the search.
    pub measured: Vec<StepError>,
}

impl FirstBeyond {
    /// The measured error of a step, if it was audited.
    pub fn error_at(&self, step: u64) -> Option<f64> {
        self.measured.iter().find(|measured| measured.step == step).map(|measured| measured.error)
    }
}

/// The most audits of [`first_step_beyond`] in a run of `last` steps: step 1, steps that double until one exceeds the
/// limit, and one for each bisection between that and the previous one.
pub fn most_audits(last: u64) -> u64 {
    let before = [1].into_iter().chain(doublings(last));
    let halvings = |(before, beyond): (u64, u64)| match beyond.saturating_sub(before) {
        0 => 0,
        gap => u64::from(u64::BITS - (gap - 1).leading_zeros()),
    };
    before.zip(doublings(last)).zip(2..).map(|(gap, n)| n + halvings(gap)).max().unwrap_or(1)
}

/// The steps 2, 4, 8 and so on, and the last.
fn doublings(last: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(2u64), |step| step.checked_mul(2)).take_while(move |step| *step < last).chain([last])
}

/// The first step of a run of `last` steps whose error exceeds `ratio` times that of step 1; NaN exceeds everything. It
/// measures steps that double until one exceeds the limit, then bisects between the last that does not and the first
/// that does: if errors go up and down, an earlier step may exceed it too. A run of one step has nothing to compare
/// with, and only that step is measured.
///
/// # Errors
/// Errors of `error_of`.
pub fn first_step_beyond<E>(
    last: u64,
    ratio: f64,
    mut error_of: impl FnMut(u64) -> Result<f64, E>,
) -> Result<FirstBeyond, E> {
    let mut measured: Vec<StepError> = Vec::new();
    let mut measure = |step: u64| {
        let error = error_of(step)?;
        measured.push(StepError { step, error });
        Ok(error)
    };
    let limit = ratio * measure(1)?;
    let is_beyond = |error: f64| error > limit || error.is_nan();
    let (mut before, mut beyond) = (1, None);
    for step in doublings(last).filter(|step| *step > 1) {
        if is_beyond(measure(step)?) {
            beyond = Some(step);
            break;
        }
        before = step;
    }
    if let Some(beyond) = &mut beyond {
        while *beyond - before > 1 {
            let middle = before + (*beyond - before) / 2;
            match is_beyond(measure(middle)?) {
                true => *beyond = middle,
                false => before = middle,
            }
        }
    }
    Ok(FirstBeyond { ratio, step: beyond, measured })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A search in a run whose steps from `first` on have 10 times the error of those before.
    fn search(last: u64, first: u64) -> FirstBeyond {
        let error_of = |step| Ok::<f64, Infallible>(if step >= first { 10.0 } else { 1.0 });
        first_step_beyond(last, 2.0, error_of).unwrap()
    }

    #[test]
    fn the_first_step_beyond_is_found_in_as_many_audits_as_are_said() {
        for last in 2..300u64 {
            let n = |first: u64| {
                let result = search(last, first);
                assert_eq!(result.step, Some(first), "of {last}");
                result.measured.len() as u64
            };
            assert_eq!((2..=last).map(n).max(), Some(most_audits(last)), "{last}");
        }
    }

    #[test]
    fn where_no_step_is_beyond_there_is_none() {
        let none = search(44, 45);
        assert_eq!((none.step, none.measured.len()), (None, 7));
        assert_eq!(none.error_at(44), Some(1.0));
        assert_eq!(none.error_at(43), None);
        // A run of one step has nothing to compare.
        assert_eq!((search(1, 2).step, search(1, 2).measured.len()), (None, 1));
    }

    #[test]
    fn what_is_not_a_number_is_beyond_everything() {
        let error_of = |step| Ok::<f64, Infallible>(if step == 5 { f64::NAN } else { 0.0 });
        let result = first_step_beyond(8, 1e9, error_of).unwrap();
        // Step 8 does not exceed the limit, so 5 is not measured, although it would.
        assert_eq!(result.step, None);
        let error_of = |step| Ok::<f64, Infallible>(if step >= 5 { f64::NAN } else { 0.0 });
        assert_eq!(first_step_beyond(8, 1e9, error_of).unwrap().step, Some(5));
    }

    #[test]
    fn an_error_ends_the_search() {
        let error_of = |step| if step < 4 { Ok(0.0) } else { Err(step) };
        assert_eq!(first_step_beyond(44, 1.0, error_of), Err(4));
    }
}
