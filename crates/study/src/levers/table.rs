//! The levers: one row of [`LEVERS`] each, with a name, a description, and a function that edits the subject as a user
//! would edit the YAML, or says why it does not apply. To add one, add a row.

use crate::{ModelProgram, ModelSubject};
use bf16scope_model::graph::{Precision, Program, Storage};
use bf16scope_model::optim::{Adafactor, FirstMoments, MomentumDtype, Optimizer, SlotStorage};
use bf16scope_passes::tuning::{Remat, Stem, Tune, Tuning};
use bf16scope_train::Mesh;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// The subject of a lever's edit.
#[derive(Clone, Debug)]
pub struct Setting<'t> {
    /// The training step, edited.
    pub subject: ModelSubject<'t>,
    /// The compute precision.
    pub precision: Precision,
}

/// An option that may save memory or time.
pub struct Lever {
    /// Its name.
    pub name: &'static str,
    /// Its spelling in the YAML or on the command line.
    pub option: &'static str,
    /// Its effect on the program, and whether it preserves gradients.
    pub about: &'static str,
    /// Edits the setting, or says why it does not apply.
    pub pull: fn(&mut Setting<'_>) -> Result<(), String>,
}

/// All levers.
pub const LEVERS: &[Lever] = &[
    Lever {
        name: "bf16 scope",
        option: "--precision bf16",
        about: "the network computes in bf16, its variables stay f32: gradients are rounded as bf16 rounds",
        pull: bf16_scope,
    },
    Lever {
        name: "bf16 first moments",
        option: "momentum_dtype: bf16",
        about: "the optimizer keeps first moments in bf16: the same gradients, updates rounded",
        pull: bf16_moments,
    },
    Lever {
        name: "bf16 weights",
        option: "variables: bf16_stochastic",
        about: "variables are stored in bf16, without f32 masters: the same gradients but for the rounding of the weights, \
                updates rounded up or down at random, without bias",
        pull: bf16_weights,
    },
    Lever {
        name: "bf16 slots",
        option: "slots: bf16_stochastic",
        about: "all of the optimizer's slots are stored in bf16: the same gradients, slots rounded up or down at random",
        pull: bf16_slots,
    },
    Lever {
        name: "adafactor for adam",
        option: "optimizer: {kind: adafactor}",
        about: "second moments of matrices are kept as means of rows and of columns: the same gradients, another rule of update",
        pull: adafactor,
    },
    Lever {
        name: "accumulate over 4",
        option: "accumulate: 4",
        about: "gradients are summed in f32 over four parts of the batch, one after the other: the same gradients but for \
                the order of sums; batch norm uses the statistics of each part",
        pull: accumulate,
    },
    Lever {
        name: "tuned for the target",
        option: "tune: auto",
        about: "all that pays off on the target: the same function; gradients differ in their last bits",
        pull: auto,
    },
    Lever {
        name: "remat elementwise",
        option: "tune: {remat: elementwise}",
        about: "the backward pass rematerialises functions of one or two kept arrays: the same bits",
        pull: remat_elementwise,
    },
    Lever {
        name: "remat blocks",
        option: "tune: {remat: [\"block*\"]}",
        about: "the backward pass rematerialises blocks (a transformer's layers: layer*) from their inputs: the same bits",
        pull: remat_blocks,
    },
    Lever {
        name: "space-to-depth stem",
        option: "tune: {stem: space_to_depth}",
        about: "ResNet's first convolution on squares of four pixels: the same function, summed in another order",
        pull: space_to_depth,
    },
];

/// The current tuning; levers are for TPUs only.
fn now(setting: &Setting<'_>) -> Tuning {
    setting.subject.tune.tuning(&Tuning::tpu())
}

fn auto(setting: &mut Setting<'_>) -> Result<(), String> {
    match &setting.subject.tune {
        Tune::None => setting.subject.tune = Tune::Auto,
        Tune::Auto => return Err("it is tuned for the target already".to_string()),
        Tune::Keys(_) => return Err("the file says what is tuned".to_string()),
    }
    Ok(())
}

fn remat_elementwise(setting: &mut Setting<'_>) -> Result<(), String> {
    pull_remat(setting, Remat::Elementwise)
}

fn remat_blocks(setting: &mut Setting<'_>) -> Result<(), String> {
    let program = plain_program(setting)?;
    let names: Vec<&str> = program.variables.iter().map(|variable| variable.name.as_str()).collect();
    let pattern = blocks(&names).ok_or("the model has no numbered blocks, such as block1 and block2")?;
    pull_remat(setting, Remat::Scopes(vec![format!("{pattern}*")]))
}

fn pull_remat(setting: &mut Setting<'_>, what: Remat) -> Result<(), String> {
    if now(setting).remat != Remat::None {
        return Err("the model rematerialises already".to_string());
    }
    let mut keys = setting.subject.tune.keys();
    keys.remat = Some(what);
    setting.subject.tune = keys.into();
    Ok(())
}

fn space_to_depth(setting: &mut Setting<'_>) -> Result<(), String> {
    match now(setting).stem {
        Stem::Plain => {}
        Stem::SpaceToDepth => return Err("the stem is space-to-depth already".to_string()),
        Stem::PoolFirst => return Err("the stem pools first".to_string()),
    }
    let plain = plain_program(setting)?;
    let mut pulled = setting.clone();
    let mut keys = pulled.subject.tune.keys();
    keys.stem = Some(Stem::SpaceToDepth);
    pulled.subject.tune = keys.into();
    if plain_program(&pulled)?.module == plain.module {
        return Err("the model has no stem that this changes".to_string());
    }
    *setting = pulled;
    Ok(())
}

/// The inference program for one example: small, and with the model's scopes.
fn plain_program(setting: &Setting<'_>) -> Result<Program, String> {
    let subject = ModelSubject { program: ModelProgram::Inference, ..setting.subject.clone() };
    subject.program_with(setting.precision, 1, Mesh::default(), now(setting)).map_err(|error| error.chain())
}

/// The common name of numbered scopes with similar contents: `block` for `cnn/block1/conv/kernel` and
/// `cnn/block2/conv/kernel`. Only scopes that contain several variables each count; the outermost is chosen.
fn blocks(variables: &[&str]) -> Option<String> {
    let mut n_variables: BTreeMap<(usize, &str), BTreeMap<&str, usize>> = BTreeMap::new();
    for variable in variables {
        let levels: Vec<&str> = variable.split('/').collect();
        for (depth, level) in levels[..levels.len() - 1].iter().enumerate() {
            let name = level.trim_end_matches(|c: char| c.is_ascii_digit());
            if name.len() < level.len() && !name.is_empty() {
                *n_variables.entry((depth, name)).or_default().entry(level).or_default() += 1;
            }
        }
    }
    let is_block = |scopes: &BTreeMap<&str, usize>| scopes.len() > 1 && scopes.values().all(|&n| n > 2);
    n_variables.into_iter().find(|(_, scopes)| is_block(scopes)).map(|((_, name), _)| name.to_string())
}

/// The number of parts for the lever of that name: fewer save little, more make each part too small for the TPU's
/// tiles.
const N_PARTS: NonZeroU32 = NonZeroU32::new(4).expect("4 is not 0");

fn accumulate(setting: &mut Setting<'_>) -> Result<(), String> {
    match setting.subject.objective.accumulate.get() {
        1 if !setting.subject.batch.is_multiple_of(N_PARTS.get()) => {
            Err(format!("batch {} is not a multiple of {N_PARTS}", setting.subject.batch))
        }
        1 => {
            setting.subject.objective.accumulate = N_PARTS;
            Ok(())
        }
        n => Err(format!("gradients are accumulated over {n} parts already")),
    }
}

fn bf16_scope(setting: &mut Setting<'_>) -> Result<(), String> {
    match setting.precision {
        Precision::F32 => setting.precision = Precision::Bf16,
        precision => return Err(format!("the network computes in {precision} already")),
    }
    Ok(())
}

fn bf16_moments(setting: &mut Setting<'_>) -> Result<(), String> {
    match setting.subject.objective.update.optimizer.first_moments() {
        FirstMoments::StoredAs(dtype @ MomentumDtype::F32) => {
            *dtype = MomentumDtype::Bf16;
            Ok(())
        }
        FirstMoments::StoredAs(MomentumDtype::Bf16) => Err("first moments are bf16 already".to_string()),
        FirstMoments::InF32 => Err("the optimizer keeps its moments in f32".to_string()),
        FirstMoments::None { why } => Err(why.to_string()),
    }
}

fn bf16_weights(setting: &mut Setting<'_>) -> Result<(), String> {
    match setting.subject.variables {
        Storage::F32 => setting.subject.variables = Storage::Bf16Stochastic,
        other => return Err(format!("variables are stored as {other} already")),
    }
    Ok(())
}

fn bf16_slots(setting: &mut Setting<'_>) -> Result<(), String> {
    let optimizer = setting.subject.objective.update.optimizer;
    match setting.subject.objective.update.slots {
        _ if !optimizer.keeps_slots() => Err(format!("{} keeps no slots", optimizer.name())),
        SlotStorage::F32 => {
            setting.subject.objective.update.slots = SlotStorage::Bf16Stochastic;
            Ok(())
        }
        other => Err(format!("slots are stored as {other} already")),
    }
}

fn adafactor(setting: &mut Setting<'_>) -> Result<(), String> {
    match &mut setting.subject.objective.update.optimizer {
        optimizer @ Optimizer::Adam(_) => {
            *optimizer = Optimizer::Adafactor(Adafactor::default());
            Ok(())
        }
        Optimizer::Adafactor(_) => Err("the optimizer is adafactor already".to_string()),
        _ => Err("the optimizer is not adam".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_model::models::{Model, mlp};
    use bf16scope_model::optim::Lars;

    fn setting(optimizer: Optimizer, precision: Precision) -> Setting<'static> {
        of_model(&Model::Mlp(mlp::Config::new([4], 2)), optimizer, precision)
    }

    fn of_model(model: &Model, optimizer: Optimizer, precision: Precision) -> Setting<'static> {
        let mut subject = ModelSubject { tune: Tune::None, batch: 8, ..ModelSubject::shared(model.task(0.0)) };
        subject.objective.update.optimizer = optimizer;
        Setting { subject, precision }
    }

    /// The parts of a setting that levers edit.
    fn edited(Setting { subject, precision }: &Setting<'_>) -> impl PartialEq + use<> {
        let ModelSubject { objective, variables, tune, batch, .. } = subject.clone();
        (objective, variables, tune, batch, *precision)
    }

    #[test]
    fn every_lever_changes_something_or_says_why_not() {
        let settings = [
            setting(Optimizer::default(), Precision::F32),
            setting(Optimizer::ADAM, Precision::Bf16),
            setting(Optimizer::SGD, Precision::F32),
        ];
        for lever in LEVERS {
            assert!(!lever.option.is_empty() && !lever.about.is_empty(), "{}", lever.name);
            for plain in &settings {
                let mut pulled = plain.clone();
                match (lever.pull)(&mut pulled) {
                    Ok(()) => {
                        assert!(edited(&pulled) != edited(plain), "{} changes nothing", lever.name);
                        assert!((lever.pull)(&mut pulled).is_err(), "{} applies twice", lever.name);
                    }
                    Err(why) => {
                        assert!(!why.is_empty() && edited(&pulled) == edited(plain), "{}", lever.name);
                    }
                }
            }
        }
    }

    #[test]
    fn levers_say_why_they_do_not_apply() {
        let sgd = &mut setting(Optimizer::SGD, Precision::Bf16);
        assert_eq!(bf16_moments(sgd), Err("sgd keeps no moments".to_string()));
        assert_eq!(bf16_scope(sgd), Err("the network computes in bf16 already".to_string()));
        let adam = &mut setting(Optimizer::ADAM, Precision::F32);
        assert_eq!((bf16_scope(adam), bf16_moments(adam)), (Ok(()), Ok(())));
        assert_eq!(bf16_moments(adam), Err("first moments are bf16 already".to_string()));
        assert_eq!(adafactor(sgd), Err("the optimizer is not adam".to_string()));
        assert_eq!((adafactor(adam), accumulate(adam)), (Ok(()), Ok(())));
        assert_eq!(adafactor(adam), Err("the optimizer is adafactor already".to_string()));
        assert_eq!(accumulate(adam), Err("gradients are accumulated over 4 parts already".to_string()));
        assert_eq!(remat_blocks(sgd), Err("the model has no numbered blocks, such as block1 and block2".to_string()));
        sgd.subject.batch = 10;
        assert_eq!(accumulate(sgd), Err("batch 10 is not a multiple of 4".to_string()));
    }

    #[test]
    fn a_lever_that_was_pulled_says_so() {
        let because = |text: &str| Err(text.to_string());
        let adam = &mut setting(Optimizer::ADAM, Precision::F32);
        assert_eq!((auto(adam), auto(adam)), (Ok(()), because("it is tuned for the target already")));
        assert_eq!(remat_elementwise(adam), because("the model rematerialises already"));
        assert_eq!(space_to_depth(adam), because("the stem pools first"));
        let stored = because("variables are stored as bf16_stochastic already");
        assert_eq!((bf16_weights(adam), bf16_weights(adam)), (Ok(()), stored));
        let stored = because("slots are stored as bf16_stochastic already");
        assert_eq!((bf16_slots(adam), bf16_slots(adam)), (Ok(()), stored));
        let lars = &mut setting(Optimizer::Lars(Lars::default()), Precision::F32);
        assert_eq!(bf16_moments(lars), because("the optimizer keeps its moments in f32"));
        let sgd = &mut setting(Optimizer::SGD, Precision::F32);
        assert_eq!(bf16_slots(sgd), because("sgd keeps no slots"));
        assert_eq!(space_to_depth(sgd), because("the model has no stem that this changes"));
        let mut keys = sgd.subject.tune.keys();
        keys.stem = Some(Stem::SpaceToDepth);
        sgd.subject.tune = keys.into();
        assert_eq!(space_to_depth(sgd), because("the stem is space-to-depth already"));
        assert_eq!(auto(sgd), because("the file says what is tuned"));
    }

    #[test]
    fn blocks_that_are_rematerialised_are_there_in_every_kind_of_model() {
        for model in [
            "{kind: cnn, input: [8, 8, 1], n_classes: 10, filters: [4, 8]}",
            "{kind: resnet, depth: 18, input: [32, 32, 3], n_classes: 10, width: 4}",
            "{kind: transformer, vocabulary: 16, length: 8, max_length: 8, layers: 2, features: 8, heads: 2, hidden: 8}",
        ] {
            let model_of_text: Model = bf16scope_model::document::from_str("model", model).unwrap();
            let mut setting = of_model(&model_of_text, Optimizer::SGD, Precision::F32);
            remat_blocks(&mut setting).unwrap();
            // A pattern that matches nothing is an error.
            let tuning = now(&setting);
            let program = setting.subject.program_with(setting.precision, 8, Mesh::default(), tuning).unwrap();
            let is_copy = |name: &str| name.contains("remat/");
            assert!(
                program.module.entry().instructions.iter().any(|instr| is_copy(&instr.metadata.op_name)),
                "{model}"
            );
        }
    }
}
