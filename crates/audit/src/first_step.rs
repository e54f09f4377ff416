//! The first step of a run whose error grows beyond what it was: a search that says before it begins how long it may be.

use serde::Serialize;

/// The error of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StepError {
    /// Counted from 1.
    pub step: u64,
    /// What was measured; in JSON `null` if it is not finite.
    pub error: f64,
}

/// What a search for the first step beyond found ([`first_step_beyond`]).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FirstBeyond {
    /// Times the error of step 1.
    pub ratio: f64,
    /// The step; `null` where none that was audited is beyond.
    pub step: Option<u64>,
    /// All that was measured, in the order of the search.
    pub measured: Vec<StepError>,
}

impl FirstBeyond {
    /// The error that was measured at a step, if it was.
    pub fn error_at(&self, step: u64) -> Option<f64> {
        self.measured.iter().find(|measured| measured.step == step).map(|measured| measured.error)
    }
}

/// Errors that [`first_step_beyond`] asks for at most in a run of `last` steps: that of step 1, those of steps twice as late
/// until one is beyond, and one for each halving between that one and the one before.
pub fn most_audits(last: u64) -> u64 {
    let before = [1].into_iter().chain(doublings(last));
    let halvings = |(before, beyond): (u64, u64)| match beyond.saturating_sub(before) {
        0 => 0,
        gap => u64::from(u64::BITS - (gap - 1).leading_zeros()),
    };
    before.zip(doublings(last)).zip(2..).map(|(gap, n)| n + halvings(gap)).max().unwrap_or(1)
}

/// Step 2, 4, 8 and so on, and the last.
fn doublings(last: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(2u64), |step| step.checked_mul(2)).take_while(move |step| *step < last).chain([last])
}

/// The first step of a run of `last` steps whose error is over `ratio` times that of step 1; what is not a number is beyond
/// everything. Asked for are the errors of steps twice as late each until one is beyond, then of those in the middle
/// between the last that is not and the first that is: where errors go up and down, an earlier step may be beyond too. A run
/// of one step has nothing to compare, and its only step is what is measured.
///
/// # Errors
/// What `error_of` says.
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
    fn found(last: u64, first: u64) -> FirstBeyond {
        let error_of = |step| Ok::<f64, Infallible>(if step >= first { 10.0 } else { 1.0 });
        first_step_beyond(last, 2.0, error_of).unwrap()
    }

    #[test]
    fn the_first_step_beyond_is_found_in_as_many_audits_as_are_said() {
        for last in 2..300u64 {
            let n = |first: u64| {
                let found = found(last, first);
                assert_eq!(found.step, Some(first), "of {last}");
                found.measured.len() as u64
            };
            assert_eq!((2..=last).map(n).max(), Some(most_audits(last)), "{last}");
        }
    }

    #[test]
    fn where_no_step_is_beyond_there_is_none() {
        let none = found(44, 45);
        assert_eq!((none.step, none.measured.len()), (None, 7));
        assert_eq!(none.error_at(44), Some(1.0));
        assert_eq!(none.error_at(43), None);
        // A run of one step has nothing to compare.
        assert_eq!((found(1, 2).step, found(1, 2).measured.len()), (None, 1));
    }

    #[test]
    fn what_is_not_a_number_is_beyond_everything() {
        let error_of = |step| Ok::<f64, Infallible>(if step == 5 { f64::NAN } else { 0.0 });
        let found = first_step_beyond(8, 1e9, error_of).unwrap();
        // Step 8 is not beyond, and 5 is not asked for: one that is late enough is.
        assert_eq!(found.step, None);
        let error_of = |step| Ok::<f64, Infallible>(if step >= 5 { f64::NAN } else { 0.0 });
        assert_eq!(first_step_beyond(8, 1e9, error_of).unwrap().step, Some(5));
    }

    #[test]
    fn an_error_ends_the_search() {
        let error_of = |step| if step < 4 { Ok(0.0) } else { Err(step) };
        assert_eq!(first_step_beyond(44, 1.0, error_of), Err(4));
    }
}
