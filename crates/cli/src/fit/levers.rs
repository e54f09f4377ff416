//! `fit --levers`: the effect of each option that may save memory or time, compiled beside the plain program.

use anyhow::ensure;

use super::super::compiling::CompileProgress;
use super::super::emit::replace;
use super::super::{Context, Status, module_file};
use super::Args;
use crate::report;
use bf16scope_model::graph::Precision;
use bf16scope_study::{LeversQuestion, ModelSubject, Pulled, levers};

/// Runs `fit --levers`.
pub(super) fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let shown = args.model.display();
    ensure!(
        !args.model.is_dir() && !module_file::is_module(&args.model),
        "--levers edits a model's YAML file, and {shown} is not one"
    );
    let mut precisions: Vec<Precision> = Vec::new();
    args.precision.iter().for_each(|precision| {
        if !precisions.contains(precision) {
            precisions.push(*precision)
        }
    });
    ensure!(
        precisions.len() < 2,
        "--levers compiles beside one plain program, and {} precisions were named\nhelp: name one, such as --precision f32",
        precisions.len()
    );
    let subject = ModelSubject::read(&args.model, &context.setup())?;
    let question = LeversQuestion {
        subject: ModelSubject { batch: args.batch.unwrap_or(subject.batch), ..subject },
        precision: precisions.first().copied().unwrap_or(Precision::F32),
        targets: args.target.clone(),
    };
    let mut progress = CompileProgress::new(context.quiet, args.target.len());
    progress.keep_what_is_compiled()?;
    let asking = args.excess.asking(args.limits.asking(args.fresh, false, context), false);
    let answer = levers(&question, &asking, &mut |event| progress.on(event))?;
    progress.finish();
    if args.json {
        context.print_json(&serde_json::to_value(&answer)?)?;
    } else {
        context.print(&report::levers::render(&answer, context.screen))?;
    }
    if let Some(path) = &args.html {
        replace(path, report::levers::page(&answer).render().as_bytes())?;
    }
    let fits = |levers: &[Pulled]| levers.iter().any(|pulled| pulled.report().is_some());
    Ok(if answer.targets.iter().all(|on| fits(&on.levers)) { Status::Ok } else { Status::Failing })
}
