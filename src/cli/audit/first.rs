//! `audit EXPERIMENT --first-beyond RATIO`: the first step of a run whose error is so many times that of its first step.

use anyhow::ensure;

use super::made::Maker;
use super::screen::number;
use super::{Args, choice_of, config};
use crate::audit::{Auditor, FirstBeyond, first_step_beyond, largest_error, most_audits};
use crate::cli::progress::{self, say};
use crate::cli::{Context, Status};
use crate::passes::amp::Policy;

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
    let (most, mut n) = (most_audits(last), 0);
    if !context.quiet {
        say(&format!(
            "looking for the first of {last} steps whose error, the largest of a judged result beside f32, is over {ratio} times \
             that of step 1: {most} audits of results at most"
        ));
    }
    first_step_beyond(last, ratio, |step| {
        let (in_f32, _) = maker.make(step)?;
        let spinner = progress::spinner(format!("auditing the results of step {step}"), context.quiet);
        let choice = choice_of(args, in_f32.results);
        let auditor = Auditor::of_results(maker.client(), &in_f32.module, &in_f32.inputs, config(args), &choice)?;
        let error = largest_error(&auditor.results(policy)?);
        spinner.finish_and_clear();
        n += 1;
        if !context.quiet {
            say(&format!("audit {n} of {most} at most: step {step} is {} off", number(error)));
        }
        Ok(error)
    })
}

/// What was found, in a line.
pub(super) fn found_line(found: &FirstBeyond) -> String {
    let of = |step: u64| number(found.error_at(step).unwrap_or(f64::NAN));
    let (n, ratio) = (found.measured.len(), found.ratio);
    match found.step {
        Some(step) => format!(
            "step {step} is over {ratio} times the error of step 1 ({} against {}), and step {} is not ({}): found in {n} audits, of \
             steps twice as late each and then by halving; where errors go up and down, an earlier one may be over it too",
            of(step),
            of(1),
            step - 1,
            of(step - 1),
        ),
        None => format!(
            "none of the {n} steps that were audited is over {ratio} times the error of step 1, which is {}; the largest is {}\n\
             help: --at STEP audits another one, a smaller RATIO asks for less",
            of(1),
            number(found.measured.iter().map(|measured| measured.error).fold(0.0, f64::max)),
        ),
    }
}

/// Says that no step is beyond.
pub(super) fn say_none(args: &Args, found: &FirstBeyond, context: &Context) -> anyhow::Result<Status> {
    match args.json {
        true => context.print_json(&serde_json::json!({ "file": args.module, "first_beyond": found }))?,
        false => context.print(&format!("{}\n", found_line(found)))?,
    }
    Ok(Status::Ok)
}
