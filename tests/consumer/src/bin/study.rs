//! What a TPU makes of a small model and of a module, asked from outside of the crate: which batch fits, which slice to rent, what
//! each option saves, and f32 beside bf16. There is no TPU: Google's compiler says it.

use std::error::Error;
use std::num::NonZeroU32;
use std::path::Path;

use bf16scope::graph::Precision;
use bf16scope::hlo::text;
use bf16scope::passes::amp::Policy;
use bf16scope::pjrt::{Purpose, Setup, prepare_environment};
use bf16scope::study::{
    AS_GIVEN, Asking, Event, FitQuestion, FitSource, Form, LEVERS, LeversQuestion, ModelSubject, PlanQuestion,
    Programs, compare, explain_programs, fit, levers, plan,
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

fn main() -> Result<(), Box<dyn Error>> {
    // Before there is a second thread.
    prepare_environment(Purpose::Compile)?;
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
        ..PlanQuestion::new(ModelSubject { batch: Some(64), ..model.clone() })
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
    let explained = explain_programs(&programs, &v3, None, &asking, &mut |_| {})?;
    assert_eq!(explained.programs.len(), 2);

    // What each option saves.
    let question = LeversQuestion { subject: model, precision: Precision::F32, targets: vec![v3] };
    let pulled = levers(&question, &asking, &mut |_| {})?;
    // The plain program before them, and all together behind.
    assert_eq!(pulled.targets[0].levers.len(), LEVERS.len() + 2);
    println!("{n_rows} batches, {} slice, {} levers on {}", planned.rows.len(), LEVERS.len(), found.libtpu);
    Ok(())
}
