//! `audit EXPERIMENT --first-beyond RATIO`: the first step of a run whose error exceeds a multiple of its first step's.

use anyhow::ensure;

use super::made::Maker;
use super::{Args, choice_of, config};
use crate::progress::{self, say};
use crate::report::audit::{first_beyond_line, number};
use crate::{Context, Status};
use bf16scope_audit::{Auditor, FirstBeyond, first_step_beyond, largest_error, most_audits};
use bf16scope_passes::amp::Policy;

/// Searches for the first step beyond: doubles the step, then bisects between the last step that is not beyond and the
/// first that is.
///
/// # Errors
/// A run of one step; errors of repeating and auditing a step.
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

/// Reports that no step is beyond.
pub(super) fn say_none(args: &Args, result: &FirstBeyond, context: &Context) -> anyhow::Result<Status> {
    match args.json {
        true => context.print_json(&serde_json::json!({ "file": args.module, "first_beyond": result }))?,
        false => context.print(&format!("{}\n", first_beyond_line(result)))?,
    }
    Ok(Status::Ok)
}
