//! Errors and defaults before anything is compiled.

use super::*;
use bf16scope_model::models::{Model, mlp};
use bf16scope_passes::tuning::Tune;
use std::sync::Arc;

fn task() -> Arc<dyn Task> {
    Model::Mlp(mlp::Config::new([16], 4)).task(0.0)
}

fn error<A: fmt::Debug>(answer: Result<A, StudyError>) -> String {
    answer.unwrap_err().to_string()
}

/// Everything but the objective is set, and is used.
#[test]
fn what_is_said_is_asked_and_the_rest_has_defaults() {
    let task = task();
    let (ask, asking) = Fit::new(&*task).setup(&Setup::default()).with_defaults(&["v2"], &BOTH).unwrap();
    let targets_of = |ask: &Fit<'_>| ask.targets.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!((targets_of(&ask), &ask.precisions[..]), (vec!["tpu-v2".to_string()], &BOTH[..]));
    assert_eq!((ask.subject.batch, ask.subject.variables), (32, Storage::F32));
    assert_eq!(ask.subject.tuning(&ask.targets[0]), Tuning::tpu());
    assert_eq!((ask.subject.name.as_str(), asking), (task.name(), Asking::default()));

    let fresh = Asking { fresh: true, ..Asking::default() };
    let v3: Target = "tpu-v3".parse().unwrap();
    let fit = Fit::new(&*task).target("tpu-v2:4x4").target(v3).precision(Precision::F16).batch(7);
    let fit = fit.variables(Storage::Bf16Stochastic).tune(TuneChoice::None).max_batch(9).multiple(0).asking(&fresh);
    let (ask, asking) = fit.with_defaults(&["v2"], &BOTH).unwrap();
    assert_eq!(
        (targets_of(&ask), ask.precisions),
        (vec!["tpu-v2:4x4".to_string(), "tpu-v3".to_string()], vec![Precision::F16])
    );
    assert_eq!((ask.subject.batch, ask.subject.variables, asking), (7, Storage::Bf16Stochastic, fresh));
    assert_eq!(ask.subject.tuning(&ask.targets[1]), Tuning::none());
    assert_eq!((ask.question.max_batch, ask.question.multiple), (9, 1));
}

#[test]
fn a_tuning_of_the_objective_is_that_of_the_programs() {
    let (task, v2) = (task(), Target::board(&Spec::ALL[0]));
    let paced = Tuning::none().with(|tuning| tuning.pace = true);
    let ask =
        |tuning: &Tuning| Fit::new(&*task).objective(Objective { tuning: tuning.clone(), ..Objective::default() });
    assert_eq!(ask(&paced).subject.tuning(&v2), paced);
    assert_eq!(ask(&Tuning::none()).subject.tuning(&v2), Tuning::tpu());
    assert_eq!(ask(&paced).tune(TuneChoice::Auto).subject.tuning(&v2), Tuning::tpu());
    assert_eq!(TuneChoice::These(Box::new(paced.clone())).tuning(&Tune::Auto, &Target::Cpu), paced);
}

/// The first of several invalid arguments is the error, before anything is compiled.
#[test]
fn what_cannot_be_asked_is_an_error() {
    let task = task();
    let fit = || Fit::new(&*task).setup(&Setup::default());
    let name = error(fit().target("tpu-v9").batch(0).run());
    assert!(name.starts_with("no target `tpu-v9`: expected tpu-v2"), "{name}");
    assert_eq!(error(fit().batch(0).run()), "a batch of 0 examples: expected 1 or more");
    assert_eq!(error(fit().max_batch(0).run()), "batches of at most 0 examples: expected 1 or more");
    let plan = Plan::new(&*task).devices(&[8, 0]).setup(&Setup::default());
    assert_eq!(error(plan.run()), "a slice of 0 cores: expected 1 or more");
    let cpu = error(fit().target(Target::Cpu).run());
    assert!(cpu.starts_with("target cpu: the report needs the TPU compiler"), "{cpu}");

    let two = Compare::new(&*task).target("tpu-v2").target("tpu-v3").setup(&Setup::default());
    let help = "help: name one, or ask once for each";
    assert_eq!(error(two.run()), format!("compare is about one of the targets, and there are 2\n{help}"));
    let two = Explain::new(&*task).target("tpu-v2").target("tpu-v3").setup(&Setup::default());
    assert_eq!(error(two.run()), format!("explain is about one of the targets, and there are 2\n{help}"));
    let two = Levers::new(&*task).precision(Precision::F32).precision(Precision::Bf16).setup(&Setup::default());
    assert_eq!(error(two.run()), format!("levers is about one of the precisions, and there are 2\n{help}"));
}

/// Like the error for a file, but without its line.
#[test]
fn a_model_axis_is_refused_where_a_batch_is_laid_over_replicas() {
    let task = task();
    let n = |n| NonZeroU32::new(n).unwrap();
    let mesh = Mesh { model: n(2), ..Mesh::replicas(n(4)) };
    let expected = format!(
        "{}: fit lays a batch over replicas of one device each, and here each replica is split over 2\nhelp: leave \
         the model axis out of the objective's mesh; `Compare` takes a step with one",
        task.name()
    );
    assert_eq!(error(Fit::new(&*task).mesh(mesh).setup(&Setup::default()).run()), expected);
    let plan = error(Plan::new(&*task).mesh(mesh).setup(&Setup::default()).run());
    assert_eq!(plan, expected.replace("fit lays", "plan lays"));
}
