//! Tunings: the same variables under each, the same bits under exact ones, and checkpoints that move from one to
//! another.

use crate::{examples, run};

use bf16scope::document;
use bf16scope::graph::{Init, Precision, Program};
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::optim::{LearningRate, Optimizer, Update};
use bf16scope::train::{Objective, Resumption, Session, Spec, program};
use bf16scope::tuning::{CHOICES, Choice, Effect, Tune, Tuning};
use std::path::Path;

fn resnet() -> Model {
    document::from_str("resnet", "{kind: resnet, depth: 18, width: 4, input: [16, 16, 3], n_classes: 5}").unwrap()
}

fn transformer(n_layers: u32) -> Model {
    let sizes = "vocabulary: 5, length: 8, max_length: 8, features: 16, heads: 4, hidden: 32";
    document::from_str("transformer", &format!("{{kind: transformer, {sizes}, layers: {n_layers}}}")).unwrap()
}

/// With a rate of 1 and no momentum the new value is the old one minus the gradient.
fn objective(tuning: &Tuning) -> Objective {
    let update =
        Update { optimizer: Optimizer::SGD, learning_rate: LearningRate::Constant { value: 1.0 }, ..Update::default() };
    Objective { update, tuning: tuning.clone(), ..Objective::default() }
}

/// Names, dtypes and dims of the variables.
fn variables(program: &Program) -> Vec<(String, DType, Vec<i64>)> {
    program.variables.iter().map(|v| (v.name.clone(), v.dtype, v.dims.clone())).collect()
}

/// Named results of a step whose inputs depend on names alone.
fn results(program: &Program) -> Vec<(String, Literal)> {
    let value = |name: &str| {
        if let Some(variable) = program.variables.iter().find(|variable| variable.name == name) {
            return Literal::from_elements(variable.dims.clone(), &variable.init.values(7, name, &variable.dims));
        }
        let input = program.inputs.iter().find(|input| input.name == name).unwrap();
        let n = input.dims.iter().product();
        let values = Init::Uniform { limit: 2.49 }.values(7, name, &[n]);
        match input.dtype {
            DType::S32 if input.dims.is_empty() => Literal::from_elements(Vec::new(), &[0i32]),
            DType::S32 => {
                let classes: Vec<i32> = values.into_iter().map(|value| (value + 2.49) as i32).collect();
                Literal::from_elements(input.dims.clone(), &classes)
            }
            DType::BF16 => {
                let values: Vec<half::bf16> = values.into_iter().map(half::bf16::from_f32).collect();
                Literal::from_elements(input.dims.clone(), &values)
            }
            _ => Literal::from_elements(input.dims.clone(), &values),
        }
    };
    program.outputs.iter().cloned().zip(run::run(program, value)).collect()
}

/// Each choice alone, as YAML writes it; `BLOCK` is a pattern of the model's blocks.
const MADE: [(&str, &str); 13] = [
    ("stem", "space_to_depth"),
    ("stem", "pool_first"),
    ("pair_columns", "true"),
    ("norm_gradient", "per_feature"),
    ("softmax", "one_pass"),
    ("layer_remat", "{weights: all}"),
    ("layer_remat", "{attention: 1, values: 1, hidden: all}"),
    ("remat", "elementwise"),
    ("remat", "convolutional"),
    ("remat", "[BLOCK]"),
    ("cotangent_remat", "true"),
    ("pace", "true"),
    ("transpose_input", "true"),
];

/// `pair_columns` needs a batch of 128. A choice that a model cannot use changes nothing. [`super::remat`] compares
/// what a convolutional network rematerialises; here the transformer runs, with one value of each key.
#[test]
fn choices_keep_the_variables_and_exact_ones_every_bit() {
    keep_variables_and_bits(1, |value| !["{weights: all}", "elementwise"].contains(&value));
}

/// Values that `are_run` have their bits compared, the others their variables alone.
fn keep_variables_and_bits(n_layers: u32, are_run: impl Fn(&str) -> bool) {
    let mut n_changed = 0;
    for (model, precision, batch) in [(resnet(), Precision::F32, 128), (transformer(n_layers), Precision::Bf16, 2)] {
        let step = |tuning: &Tuning| {
            program::training(&*model.task(0.0), precision, batch, &objective(tuning)).map(|step| step.program)
        };
        let untuned = step(&Tuning::none()).unwrap();
        let runs = model.kind() == "transformer";
        let expected = if runs { results(&untuned) } else { Vec::new() };
        for (key, value) in MADE {
            let case = format!("{}, {key}: {value}", model.kind());
            let is_run = runs && are_run(value);
            let value = value.replace("BLOCK", if model.kind() == "resnet" { "block*" } else { "layer*" });
            let tune: Tune = document::from_str("tune", &format!("{{base: none, {key}: {value}}}")).unwrap();
            let tuning = tune.tuning(&Tuning::tpu());
            let tuned = step(&tuning).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(variables(&tuned), variables(&untuned), "{case}");
            if tuned.module == untuned.module {
                continue;
            }
            n_changed += 1;
            if is_run && Choice::from_key(key).unwrap().effect == Effect::Exact {
                for ((name, measured), (_, expected)) in results(&tuned).iter().zip(&expected) {
                    assert_eq!(measured, expected, "{case}: {name}");
                }
            }
        }
        let all = step(&Tuning::tpu()).unwrap();
        assert_eq!(variables(&all), variables(&untuned), "{}", model.kind());
    }
    // ResNet: two stems, pairs, the norm, three remats and the input; transformer: the softmax, both layer remats, two
    // remats and the cotangent remat. Pace has nothing to wait for where nothing large is rematerialised.
    assert_eq!(n_changed, 14);
    assert!(CHOICES.iter().all(|choice| MADE.iter().any(|(key, _)| *key == choice.key)));
}

fn spec(model: Model, tuning: &Tuning) -> Spec {
    Spec { precision: Precision::F32, batch: 8, seed: 2, objective: objective(tuning), ..Spec::new(model.task(0.0)) }
}

#[test]
fn a_checkpoint_goes_from_one_tuning_to_another_and_what_it_does_to_bits_is_said() {
    let pixels = (0..8 * 16 * 16 * 3).map(|i| ((i * 37 + i / 5) % 16) as f32 / 16.0 - 0.5).collect();
    let data = examples::images(pixels, &[16, 16, 3], (0..8).map(|label| label % 5).collect());
    let client = run::client();
    let tpu = Tuning::tpu();
    let [mut none, mut tuned] =
        [&Tuning::none(), &tpu].map(|tuning| Session::new(client, spec(resnet(), tuning)).unwrap());
    let batch = examples::batches(&data, none.spec()).remove(0);
    none.train(&batch).unwrap();
    let checkpoint = none.checkpoint(1).unwrap();
    let changes = tuned.restore(Path::new("run"), &checkpoint, Resumption::default()).unwrap();
    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        changes,
        [
            "tune.cotangent_remat was false, is true now: the same bits",
            "tune.layer_remat.weights was 0, is all now: the same bits",
            "tune.norm_gradient was per_element, is per_feature now: the same function, with other last bits from here on",
            "tune.pace was false, is true now: the same bits",
            "tune.pair_columns was false, is true now: the same function, with other last bits from here on",
            "tune.remat was none, is convolutional now: the same bits",
            "tune.softmax was two_passes, is one_pass now: the same function, with other last bits from here on",
            "tune.stem was plain, is pool_first now: the same function, with other last bits from here on",
        ]
    );
    // It holds the same state, and both continue.
    assert_eq!(tuned.state().unwrap(), none.state().unwrap());
    let reports = [&mut none, &mut tuned].map(|session| session.train(&batch).unwrap());
    assert!(reports.iter().all(|report| report.loss().unwrap().is_finite()), "{reports:?}");
    assert_eq!(none.restore(Path::new("run"), &tuned.checkpoint(1).unwrap(), Resumption::default()).unwrap().len(), 8);
    assert_eq!(tuned.restore(Path::new("run"), &tuned.checkpoint(1).unwrap(), Resumption::default()).unwrap(), []);
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Compiles seven steps of two layers, half a minute of a core.
    #[cfg_attr(feature = "long-tests", test)]
    fn choices_keep_the_variables_of_two_layers_and_exact_ones_every_bit() {
        keep_variables_and_bits(2, |_| true);
    }
}
