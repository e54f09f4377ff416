//! What a TPU makes of a task of our own, of a model in YAML and of a module, asked from outside of the crate: which batch fits,
//! which slice to rent, what each option saves, and f32 beside bf16. There is no TPU: Google's compiler says it.

use std::error::Error;
use std::num::NonZeroU32;
use std::path::Path;

use bf16scope::hlo::text;
use bf16scope::passes::amp::Policy;
use bf16scope::pjrt::{Purpose, Setup, prepare_environment};
use bf16scope::prelude::*;
use bf16scope::study::{
    AS_GIVEN, Asking, Compare, Event, Explain, ExplainQuestion, ExplainSource, Fit, FitQuestion, FitSource, Form,
    LEVERS, Levers, LeversQuestion, ModelSubject, Plan, PlanQuestion, Programs, StudyError, compare, explain, fit,
    levers, plan,
};
use bf16scope::tpu::Target;
use bf16scope::train::Mesh;

const MODEL: &str = "model: {kind: mlp, input: [16], n_classes: 4, hidden: [32]}\ntrain: {batch: 16}\n";

const MODULE: &str = "HloModule scores
ENTRY main {
  x = f32[256,512] parameter(0)
  w = f32[512,1024] parameter(1)
  scores = f32[256,1024] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT y = f32[256,1024] tanh(scores)
}";

/// Scores of eight classes from 64 numbers.
#[derive(Debug)]
struct Scores;

impl Task for Scores {
    fn name(&self) -> &str {
        "scores"
    }

    fn features(&self) -> Vec<Feature> {
        vec![Feature::compute("x", [64]), Feature::exact("y", DType::S32, []).below(8).label()]
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        let logits = s.low_precision(|s| {
            let hidden = nn::dense(s, &features.get("x"), "hidden", &Dense { units: 256, ..Dense::default() });
            nn::dense(s, &nn::relu(&hidden), "logits", &Dense { units: 8, ..Dense::default() })
        });
        let logits = logits.cast(DType::F32);
        if mode == Mode::Predict {
            return Outputs::new().prediction("class", &nn::arg_max(&logits));
        }
        let losses = nn::sparse_softmax_cross_entropy_per_example(&logits, &features.get("y"), 0.0);
        Outputs::new().loss(Loss::weighted(&losses, &features.weight()))
    }
}

/// A task of our own is asked about as a model in YAML is.
fn our_own_task() -> Result<(), StudyError> {
    let mut n_events = 0;
    let fit = Fit::new(&Scores).target("tpu-v3").batch(16).max_batch(32).on_event(|_| n_events += 1).run()?;
    // Two batches begin and end in each precision, and each search ends.
    assert_eq!(n_events, 2 * (2 * 2 + 1), "{fit}");
    assert_eq!((fit.model.as_str(), fit.series[1].found.largest), ("scores", Some(32)));
    assert!(fit.to_string().contains("tpu-v3, bf16: batches up to 32 fit"), "{fit}");
    let (report, _) = fit.series[0].at(32).expect("it fits");
    assert!(
        report.examples_per_second.is_some_and(|rate| rate > 0.0),
        "examples a second of a batch of 32: {report:?}"
    );

    let plan =
        Plan::new(&Scores).target("tpu-v3").devices(&[8]).precision(Precision::Bf16).batch(64).compiles(1).run()?;
    assert!(plan.fits() && plan.batch == 64 && plan.rows.len() == 1, "{plan:?}");

    let compared = Compare::new(&Scores).target("tpu-v3").batch(64).run()?;
    assert!(compared.verdict.is_some() && compared.batch == Some(64), "{compared:?}");
    assert!(compared.to_string().starts_with("tpu-v3, f32: fits, "), "{compared}");

    let explained = Explain::new(&Scores).target("tpu-v3").batch(64).run()?;
    let explanation = &explained.programs[0].explanation;
    let layers: Vec<&str> = explanation.layers.iter().map(|layer| layer.layer.as_str()).collect();
    assert!(layers.contains(&"hidden") && layers.contains(&"logits"), "{layers:?}");
    assert!(explained.to_string().contains("% of the cycles: "), "{explained}");
    let sources: Vec<&str> = explanation.steps.iter().map(|step| step.origin.source.as_str()).collect();
    assert!(sources.iter().any(|source| source.contains("study.rs:")), "the lines above: {sources:?}");

    let levers = Levers::new(&Scores).target("tpu-v3").batch(64).run()?;
    assert!(levers.targets[0].levers[1].report().is_some(), "bf16 applies: {levers:?}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // Before there is a second thread.
    prepare_environment(Purpose::Compile)?;
    our_own_task()?;
    let setup = Setup::from_env();
    let asking = Asking::new(&setup);
    let folder = std::env::temp_dir().join(format!("consumer-study-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("model.yaml");
    std::fs::write(&path, MODEL)?;
    let model = ModelSubject::read(&path, &setup)?;
    std::fs::remove_dir_all(&folder)?;
    let v3: Target = "tpu-v3".parse()?;

    // Which batch fits: every one that may be tried, each of them told while it is compiled.
    let source = FitSource::Model {
        subject: Box::new(model.clone()),
        mesh: Mesh::default(),
        precisions: vec![Precision::F32, Precision::Bf16],
    };
    let question = FitQuestion { max_batch: 32, ..FitQuestion::new(source, vec![v3.clone()]) };
    let (mut n_begun, mut n_ended) = (0, 0);
    let found = fit(&question, &asking, &mut |event| match event {
        Event::Begins(compiling) => {
            assert!(compiling.batch.is_some_and(|batch| batch <= 32), "{compiling:?}");
            n_begun += 1;
        }
        Event::Ends { .. } => n_ended += 1,
        _ => {}
    })?;
    let largest: Vec<Option<u32>> = found.series.iter().map(|series| series.found.largest).collect();
    assert_eq!(largest, [Some(32), Some(32)]);
    let n_rows: usize = found.series.iter().map(|series| series.rows.len()).sum();
    assert!(n_begun == n_rows && n_ended == n_rows, "{n_begun} begun, {n_ended} ended, {n_rows} rows");
    assert_eq!(serde_json::to_value(&found)?["series"][1]["precision"], "bf16");

    // Which slice: eight cores, in bf16.
    let question = PlanQuestion {
        boards: vec![v3.clone()],
        devices: [8].into_iter().filter_map(NonZeroU32::new).collect(),
        precisions: vec![Precision::Bf16],
        n_compiles: 1,
        ..PlanQuestion::new(ModelSubject { batch: 64, ..model.clone() })
    };
    let planned = plan(&question, &asking, &mut |_| {})?;
    assert!(planned.fits() && planned.rows.len() == 1, "{planned:?}");
    assert_eq!(serde_json::to_value(&planned)?["rows"][0]["known"]["by"], "compiled");

    // f32 beside bf16: a model in two precisions, a module beside its lowered form, and where their memory goes.
    let programs = Programs::of_model(&model, &[Precision::F32, Precision::Bf16], &v3)?;
    let compared = compare(&programs, &v3, &asking, &mut |_| {})?;
    assert!(compared.verdict.is_some() && compared.reports.iter().all(|one| one.outcome.report().is_some()));
    let module = text::parse(MODULE, "scores.hlo")?;
    let forms = [Form::as_given(), Form::lowered("default", Policy::default())];
    let programs = Programs::of_module(module, Path::new("scores.hlo"), &forms)?;
    let compared = compare(&programs, &v3, &asking, &mut |_| {})?;
    let labels: Vec<&str> = compared.reports.iter().map(|one| one.label.as_str()).collect();
    assert_eq!(labels, [AS_GIVEN, "default"]);
    let choice = compared.verdict.and_then(|verdict| verdict.choice).ok_or("both fit, so one is chosen")?;
    assert!(labels.contains(&choice.as_str()), "{choice}");
    let source = ExplainSource::Programs(programs);
    let question = ExplainQuestion { source, target: v3.clone(), stretches: None };
    let explained = explain(&question, &asking, &mut |_| {})?;
    assert_eq!(explained.programs.len(), 2);

    // What each option saves.
    let question = LeversQuestion { subject: model, precision: Precision::F32, targets: vec![v3] };
    let pulled = levers(&question, &asking, &mut |_| {})?;
    // The plain program before them, and all together behind.
    assert_eq!(pulled.targets[0].levers.len(), LEVERS.len() + 2);
    println!("{n_rows} batches, {} slice, {} levers on {}", planned.rows.len(), LEVERS.len(), found.libtpu);
    Ok(())
}
