//! Imports weights of other frameworks as a checkpoint of a task, which can be evaluated, predicted with and packaged;
//! with the optimizer's slots, training can resume from it.

use super::checkpoint::{Array, Checkpoint, Position};
use super::device::{initial_bytes, shape_of};
use super::error::TrainError;
use super::initialize::{InitializeFrom, mapping, open, variables_of};
use super::resume::{INITIALIZED, function_of, settings};
use super::spec::Spec;
use crate::weight_names::{self, Arrays, Found, Mapping, Role, Scale, Wanted, WeightNameError};
use bf16scope_data::{DrawVersion, ORDER_VERSION};
use bf16scope_hlo::element::f64s;
use bf16scope_model::graph::Storage;
use bf16scope_model::optim::{LearningRate, SlotStorage};
use std::collections::BTreeMap;

/// A checkpoint made from a file of weights.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The checkpoint: of step 0 without slots, or of the step that the file gives with them.
    pub checkpoint: Checkpoint,
    /// The source of every variable.
    pub mapping: Mapping,
    /// Whether training can resume from it: all slots of the optimizer are in the file.
    pub has_slots: bool,
}

impl InitializeFrom {
    /// The checkpoint that a run of `spec` with `steps_per_epoch` would have written with these weights, stored in f32.
    ///
    /// # Errors
    /// As [`InitializeFrom::read`].
    pub fn import(&self, spec: &Spec, steps_per_epoch: u64) -> Result<Imported, TrainError> {
        let (infos, wanted): (Vec<_>, Vec<Wanted>) = variables_of(spec)?.into_iter().unzip();
        let is_excepted = self.excepted(&wanted)?;
        let arrays = open(&self.file)?;
        let mut mapping = mapping(self.rules.as_deref(), &wanted, &*arrays, &is_excepted)?;
        mapping.check(&arrays.name())?;
        let step = mapping.step.clone().map(|name| step(&*arrays, &name)).transpose()?;
        let has_slots = keeps_slots(&mut mapping, spec, step);
        let step = step.filter(|_| has_slots).unwrap_or_default();
        let rate = spec.objective.update.rate_at(u32::try_from(step).unwrap_or(u32::MAX));
        let mut values = weight_names::values(&*arrays, &mapping, rate)?;
        for (info, mapped) in infos.iter().zip(&mapping.variables) {
            let starts = match mapped.found {
                Found::Excepted => true,
                Found::Fresh => has_slots && mapped.wanted.role == Role::Own,
                Found::Taken { .. } | Found::Misfit(_) => false,
            };
            if starts {
                values.insert(info.name.clone(), (shape_of(info), initial_bytes(info, &info.name, spec.seed)?));
            }
        }
        let mut stored = spec.clone();
        stored.variables = Storage::F32;
        stored.objective.update.slots = SlotStorage::F32;
        let mut settings = settings(&stored);
        settings.0["train"][INITIALIZED] = self.record(&mapping, &values);
        let Spec { batch, seed, precision, .. } = stored;
        let (order, draws) = (ORDER_VERSION, DrawVersion::default().number());
        let position = Position { step, steps_per_epoch: steps_per_epoch.max(1), batch, seed, precision, order, draws };
        let variables = values.into_iter().map(|(name, (shape, bytes))| (name, Array { shape, bytes }));
        let (function, variables) = (function_of(&*spec.task), variables.collect::<BTreeMap<_, _>>());
        let checkpoint = Checkpoint { position, settings, function, data: None, callbacks: None, variables };
        Ok(Imported { checkpoint, mapping, has_slots })
    }
}

/// Whether training can resume from the slots in the file: all are there, and so is the number of updates if the
/// optimizer's rule reads it. Otherwise slots start afresh, and the mapping records that.
fn keeps_slots(mapping: &mut Mapping, spec: &Spec, step: Option<u64>) -> bool {
    let optimizer = &spec.objective.update.optimizer;
    let is_slot = |wanted: &Wanted| matches!(wanted.role, Role::Slot { .. });
    let is_taken = |found: &Found| matches!(found, Found::Taken { .. });
    let slots = || mapping.variables.iter().filter(|it| is_slot(&it.wanted));
    let (n, n_taken) = (slots().count(), slots().filter(|it| is_taken(&it.found)).count());
    let reads_step = optimizer.reads_step();
    let why = match step {
        _ if n == 0 => return false,
        _ if n_taken < n && n_taken > 0 => {
            let missing = slots().find(|it| !is_taken(&it.found)).map(|it| it.wanted.name.clone()).unwrap_or_default();
            format!(
                "{n_taken} of {n} slots of {} are in the file, and all start afresh: {missing} is not there",
                optimizer.name()
            )
        }
        _ if n_taken < n => {
            if let (Some(some), None) = (mapping.state_left.first(), &mapping.about_slots) {
                mapping.about_slots = Some(format!(
                    "the file has state of an optimizer, such as {some}, and no slots of {}: its start afresh",
                    optimizer.name()
                ));
            } else if let Some(problem) = &mut mapping.about_slots {
                *problem += ": its slots start afresh";
            }
            return false;
        }
        None if reads_step => format!(
            "all slots of {} are in the file, and not the number of updates, which its rule reads: they start afresh",
            optimizer.name()
        ),
        Some(_) | None => {
            let has_steps = slots().any(|it| matches!(it.found, Found::Taken { scale: Scale::Step, .. }));
            if has_steps && !matches!(spec.objective.update.learning_rate, LearningRate::Constant { .. }) {
                mapping.about_slots = Some(
                    "momentum has the learning rate in it there and not here, so the two go on differently where the rate changes"
                        .to_string(),
                );
            }
            if step.is_none() && mapping.about_slots.is_none() {
                let about = "the file says no number of updates: the run goes on from step 0, and so do schedules";
                mapping.about_slots = Some(about.to_string());
            }
            return true;
        }
    };
    mapping.about_slots = Some(why);
    for mapped in mapping.variables.iter_mut().filter(|it| is_slot(&it.wanted)) {
        mapped.found = Found::Fresh;
    }
    false
}

/// The number of updates: an integer scalar, or a float with an integral value, which is how PyTorch counts.
fn step(arrays: &dyn Arrays, name: &str) -> Result<u64, TrainError> {
    let failed = |source| WeightNameError::Read { file: arrays.name(), theirs: name.to_string(), source };
    let bytes = arrays.read(name).map_err(failed)?;
    let dtype = arrays.given().into_iter().find(|given| given.name == name).and_then(|given| given.dtype);
    let number = dtype.and_then(|dtype| f64s(dtype, &bytes)?.next());
    let is_step = |step: &f64| step.fract() == 0.0 && (0.0..=f64::from(i32::MAX)).contains(step);
    let step = number.filter(is_step).map(|step| step as u64);
    Ok(step.ok_or_else(|| failed("it is not a number of steps from 0 to 2147483647".into()))?)
}

/// The variables of a run of `spec` and their roles, for writing a checkpoint by a family's rules.
///
/// # Errors
/// A task that cannot be built.
pub fn wanted_of(spec: &Spec) -> Result<Vec<Wanted>, TrainError> {
    Ok(variables_of(spec)?.into_iter().map(|(_, wanted)| wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight_names::Given;
    use bf16scope_hlo::DType;
    use std::error::Error;

    /// A file of one number.
    struct Number(f32);

    impl Arrays for Number {
        fn name(&self) -> String {
            "a.npz".to_string()
        }

        fn given(&self) -> Vec<Given> {
            let (name, dtype) = ("step".to_string(), Some(DType::F32));
            vec![Given { name, aliases: Vec::new(), dtype, dims: Vec::new(), place: None }]
        }

        fn read(&self, _name: &str) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
            Ok(self.0.to_le_bytes().to_vec())
        }
    }

    #[test]
    fn a_number_of_updates_is_whole_and_not_negative() {
        assert_eq!(step(&Number(3.0), "step").unwrap(), 3);
        for number in [1.5, -1.0, 4e9, f32::NAN] {
            let error = step(&Number(number), "step").unwrap_err();
            assert_eq!(error.to_string(), "a.npz: step cannot be read");
            let source = error.source().map(ToString::to_string);
            assert_eq!(source.as_deref(), Some("it is not a number of steps from 0 to 2147483647"));
        }
    }
}
