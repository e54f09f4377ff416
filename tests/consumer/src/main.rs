//! A task with two inputs and a loss and metric of its own, trained in bf16 from outside of the crate: stopped, resumed to the bit,
//! evaluated, used. What is learnt is `y = w·x + offset[kind]`, from examples that are made here.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

use bf16scope::data::Arrays;
use bf16scope::experiment::Experiment;
use bf16scope::pjrt::Setup;
use bf16scope::prelude::*;
use bf16scope::study::Fit;
use bf16scope::train::{Event, TrainErrorKind};

const N_FEATURES: usize = 4;
const N_KINDS: usize = 3;

#[derive(Debug)]
struct Offsets;

impl Task for Offsets {
    fn name(&self) -> &str {
        "offsets"
    }

    fn features(&self) -> Vec<Feature> {
        vec![
            Feature::compute("x", [N_FEATURES as i64]),
            Feature::exact("kind", DType::S32, []).below(N_KINDS as i64),
            Feature::exact("y", DType::F32, []).label(),
        ]
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        let (x, kind) = (features.get("x"), features.get("kind"));
        let y = s.low_precision(|s| {
            let table = Embedding { input_dim: N_KINDS as i64, output_dim: 1, ..Embedding::default() };
            nn::dense(s, &x, "dense", &Dense { units: 1, use_bias: false, ..Dense::default() })
                + nn::embedding(s, &kind, "offset", &table)
        });
        let y = y.cast(DType::F32).reshape([features.batch()]);
        if mode == Mode::Predict {
            return Outputs::new().prediction("y", &y);
        }
        let error = &y - features.get("y");
        let size = error.abs();
        Outputs::new()
            .loss(Loss::weighted(&(&error * &error), &features.weight()))
            .metric("mean_absolute_error", Metric::weighted(&size, &features.weight()))
            .scalar("largest_error", &size.max(&[0]))
    }
}

/// Examples whose numbers are multiples of 1/8, which bf16 holds.
fn examples(n: usize) -> Result<Arrays, Box<dyn Error>> {
    let x = |i: usize, feature: usize| ((i * 37 + feature * 11 + i / 5) % 17) as f32 / 8.0 - 1.0;
    let y = |i: usize| {
        let product: f32 = (0..N_FEATURES).map(|feature| (feature as f32 - 1.5) / 2.0 * x(i, feature)).sum();
        product + [0.5, -1.0, 0.25][i % N_KINDS]
    };
    let all_x: Vec<f32> = (0..n).flat_map(|i| (0..N_FEATURES).map(move |feature| x(i, feature))).collect();
    let kinds: Vec<i32> = (0..n).map(|i| (i % N_KINDS) as i32).collect();
    let all_y: Vec<f32> = (0..n).map(y).collect();
    let x = Array::from_vec(all_x, [-1, N_FEATURES as i64])?;
    Ok(Arrays::from_arrays([("x", x), ("kind", kinds.into()), ("y", all_y.into())])?)
}

/// What is behind a feature that is off here is refused by its name, at the key that asks for it.
fn features_are_named() -> Result<(), Box<dyn Error>> {
    let place = std::env::temp_dir().join(format!("consumer-features-{}", std::process::id()));
    std::fs::create_dir_all(&place)?;
    std::fs::write(place.join("rows.parquet"), "PAR1")?;
    std::fs::write(place.join("words.txt"), "one text")?;
    let rows = "model: {kind: mlp, input: [8, 8, 1], n_classes: 10}
data:
  parquet: rows.parquet
  n_test: 1
";
    let text = "model: {kind: transformer, vocabulary: 256, length: 4, layers: 1, features: 4, heads: 1, hidden: 8, causal: true}
data:
  text: words.txt
  n_test: 1
  tokens:
    tokenizer: vocab.txt
    window: 4
";
    for (name, data, line, feature) in [("rows", rows, 3, "records"), ("text", text, 6, "text")] {
        let path = place.join(name).with_extension("yaml");
        std::fs::write(&path, data)?;
        let error =
            Experiment::read(&path)?.read_data(&path, &Setup::from_env()).err().ok_or("it is refused")?.to_string();
        assert!(error.contains(&format!("{name}.yaml:{line}:")), "{error}");
        assert!(error.contains(&format!("build bf16scope with `--features {feature}`")), "{error}");
    }
    std::fs::remove_dir_all(&place)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if !cfg!(feature = "whole") {
        features_are_named()?;
    }
    let (training, test) = examples(660)?.split_tail(150)?;
    let folder = std::env::temp_dir().join(format!("consumer-{}", std::process::id()));
    let path = folder.join("offsets.safetensors");
    let trainer = || Trainer::new(Offsets).epochs(20).optimizer(Optimizer::ADAM).learning_rate(0.02);
    let whole = trainer().fit(&training, &test)?;
    let error = whole.summary().value("mean_absolute_error").ok_or("the task reports it")?;
    let session = whole.session().ok_or("it was trained here")?;
    let scalars = session.scalars()?;
    assert!(scalars[0].0 == "largest_error" && scalars[0].1 >= 0.0, "{scalars:?}");

    let stop = AtomicBool::new(false);
    let stopped = trainer().checkpoint(&path).stop(&stop).on_event(|event| {
        if let Event::Step { session, .. } = event {
            stop.store(session.step() == 100, Ordering::Relaxed);
        }
    });
    let stopped = stopped.fit(&training, &test);
    let stopped = stopped.unwrap_err();
    assert!(matches!(stopped.kind(), TrainErrorKind::Interrupted { step: 100, .. }), "{stopped}");
    let resumed = trainer().resume(&path).fit(&training, &test)?;
    std::fs::remove_dir_all(&folder)?;
    let resumed = resumed.session().ok_or("it was trained here")?;
    assert!(resumed.state()? == session.state()?, "resumed, it ends with the same bits");

    // 32 at a time: the last 22 fill up a batch whose padding counts for nothing.
    assert_eq!(whole.predict(&test)?.to_vec::<f32>("y")?.len(), 150);
    // Outputs of up to 4 in size are rounded to bf16 in two steps of 2^-8 of themselves each.
    println!("mean absolute error {error:.4}, resumed to the same bits");
    assert!(error < 4.0 * 2.0 / 256.0, "mean absolute error {error}");

    // The CPU's plugin has started threads, under which no variable can be set; a TPU's compiler is asked all the same.
    let fit = Fit::new(&Offsets).target("tpu-v2").batch(16).max_batch(16).run()?;
    assert!(fit.series.iter().all(|series| series.found.largest == Some(16)), "{fit}");
    Ok(())
}
