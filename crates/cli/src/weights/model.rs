//! `weights --model`: converts a file of weights to a checkpoint of an experiment, or a checkpoint to a file for
//! another framework.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::check::{self, Checked};
use crate::report::{Column, Table};
use crate::{Context, Status, again};
use bf16scope_data::weights::{self, WrittenArray, WrittenFormat};
use bf16scope_hlo::Literal;
use bf16scope_model::graph::Precision;
use bf16scope_passes::tuning::Tuning;
use bf16scope_train::checkpoint::Checkpoint;
use bf16scope_train::experiment::Experiment;
use bf16scope_train::weight_names::{
    Cast, Found, Mapped, Mapping, Role, Rules, Scale, TheirArray, families, their_arrays,
};
use bf16scope_train::{Imported, InitializeFrom, Spec, wanted_of};

/// Arguments about a model.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArgs {
    /// The experiment whose model the weights are for: -o is then its checkpoint; with --format, FILE is its checkpoint and -o
    /// a file for another framework
    #[arg(long, value_name = "EXPERIMENT")]
    pub(super) model: Option<PathBuf>,
    /// The naming of the other framework's arrays: a family (names, tensorflow, keras, torch, bert_tensorflow, bert, gpt2,
    /// resnet, vit) or a file of rules [default: the experiment's `rules`, or the family that knows most of the names]
    #[arg(long, value_name = "RULES", requires = "model")]
    rules: Option<PathBuf>,
    /// Precision of a training that continues from the checkpoint, as in `train --precision`: bf16, f32 or f16
    #[arg(long, value_name = "PRECISION", requires = "model", default_value_t = Precision::Bf16)]
    precision: Precision,
    /// Run the model on the inputs of this .npz, and compare with its outputs: arrays by the names of features and predictions,
    /// and `NAME_bf16` for the other framework's results in bf16
    #[arg(long, value_name = "FILE", requires = "model", conflicts_with = "format")]
    check: Option<PathBuf>,
}

impl ModelArgs {
    /// Converts a file to a checkpoint.
    pub(super) fn import(
        &self,
        file: &Path,
        output: Option<&Path>,
        in_json: bool,
        context: &Context,
    ) -> anyhow::Result<Status> {
        let (path, experiment, spec) = self.read_model()?;
        if output.is_none() && self.check.is_none() {
            bail!(
                "--model makes a checkpoint\nhelp: say where with -o CHECKPOINT, or compare outputs with --check ARRAYS.npz"
            );
        }
        let from = experiment.initialize_from(path, Some(file))?.context("--model without a file")?;
        let from = InitializeFrom { rules: self.rules.clone().or(from.rules), ..from };
        let steps_per_epoch = match (experiment.train.steps_per_epoch(), &experiment.data) {
            (Some(steps), _) => Ok(u64::from(steps)),
            (None, Some(_)) => match experiment.read_data(path, &context.setup()) {
                Ok(examples) => Ok(examples.training.n_examples() / u64::from(spec.batch.max(1))),
                Err(error) => Err(format!("{error:#}")),
            },
            (None, None) => Err(format!("{}: there is no `data`", path.display())),
        };
        let n_steps = *steps_per_epoch.as_ref().unwrap_or(&1);
        let mut imported = from.import(&spec, n_steps).map_err(|error| experiment.with_its_line(error))?;
        if let (Err(why), true) = (steps_per_epoch, imported.has_slots) {
            // A resumed run continues at an epoch and a step of its data.
            imported.has_slots = false;
            imported.mapping.about_slots = Some(format!(
                "no training goes on from the optimizer's slots, for how many steps an epoch has is not known ({why}): name the data, and \
                 make the checkpoint again"
            ));
        }
        let checked = self.check.as_ref().map(|arrays| {
            check::compare(arrays, &experiment, (file, &imported.checkpoint), context)
                .with_context(|| format!("cannot compare with {}", arrays.display()))
        });
        let checked = checked.transpose()?.unwrap_or_default();
        if let Some(output) = output {
            imported.checkpoint.write(output)?;
        }
        match in_json {
            true => context.print_json(&as_json(file, output, &imported, &checked))?,
            false => context.print(&as_text(file, (path, output), &imported, &checked, context))?,
        }
        Ok(if checked.iter().all(Checked::is_same_function) { Status::Ok } else { Status::Failing })
    }

    /// Writes one of our checkpoints with a family's names.
    pub(super) fn export(
        &self,
        file: &Path,
        output: &Path,
        format: WrittenFormat,
        context: &Context,
    ) -> anyhow::Result<Status> {
        let (_, experiment, spec) = self.read_model()?;
        let checkpoint = Checkpoint::read(file)?;
        let rules = self.rules.clone().or_else(|| experiment.train.rules.clone());
        let Some(rules) = rules else {
            bail!("whose names are to be written?\nhelp: --rules with one of {}, or a file", families().join(", "))
        };
        let rules = Rules::read(&rules)?;
        let mut wanted = wanted_of(&spec)?;
        // Slots and averages that the checkpoint lacks are not written.
        wanted.retain(|wanted| wanted.role == Role::Weight || checkpoint.variables.contains_key(&wanted.name));
        if let Some(missing) = wanted.iter().find(|wanted| !checkpoint.variables.contains_key(&wanted.name)) {
            bail!(
                "{}: the checkpoint is of another model: it has no {}\nhelp: name the experiment it was made with",
                file.display(),
                missing.name
            );
        }
        let arrays = their_arrays(&rules, &wanted)?;
        let written: Vec<WrittenArray> =
            arrays.iter().map(|array| WrittenArray { name: array.name.clone(), shape: array.shape.clone() }).collect();
        let mut read = |number: usize| literal(&checkpoint, &arrays[number]);
        weights::write_each(output, format, &written, &mut read)
            .with_context(|| format!("cannot write {}", output.display()))?;
        let n = arrays.len();
        context.print(&format!("{n} arrays by the rules of {}, written to {}\n", rules.family, output.display()))?;
        Ok(Status::Ok)
    }

    fn read_model(&self) -> anyhow::Result<(&Path, Experiment, Spec)> {
        let path = self.model.as_deref().context("--model is needed")?;
        let experiment = Experiment::read(path)?;
        let spec = experiment.spec(self.precision, &Tuning::none());
        let spec = spec.map_err(|error| experiment.with_its_line(error))?;
        Ok((path, experiment, spec))
    }
}

/// One of the framework's arrays, from the variables of a checkpoint.
fn literal(checkpoint: &Checkpoint, array: &TheirArray) -> anyhow::Result<Literal> {
    let part = |(name, shape): &(String, bf16scope_hlo::ArrayShape)| {
        let part = &checkpoint.variables[name];
        match part.shape.dims == shape.dims && part.shape.dtype == array.shape.dtype {
            true => Ok(part.bytes.as_slice()),
            false => bail!(
                "{name} is {}, expected {} {:?}\nhelp: name the experiment that the checkpoint was made with, and train it with \
                 `variables: f32`",
                part.shape,
                array.shape.dtype,
                shape.dims
            ),
        }
    };
    let parts = array.parts.iter().map(part).collect::<anyhow::Result<Vec<_>>>()?;
    let bytes = array.bytes(&parts).context("a rule that was checked lays out any shape")?;
    Ok(Literal::Array { shape: array.shape.clone(), bytes })
}

/// How a framework's array becomes a variable, in a few words.
fn how(mapped: &Mapped) -> (String, String) {
    match &mapped.found {
        Found::Taken { theirs, layout, cast, scale } => {
            let laid = layout.to_string();
            let cast = match cast {
                Cast::Same => "",
                Cast::Widened => "widened",
                Cast::Rounded => "rounded",
            };
            let words: Vec<&str> =
                [laid.as_str(), cast, if *scale == Scale::Step { "divided by the negative learning rate" } else { "" }]
                    .into_iter()
                    .filter(|word| !word.is_empty())
                    .collect();
            (theirs.clone(), if words.is_empty() { "taken".to_string() } else { words.join("; ") })
        }
        Found::Excepted => (String::new(), "starts afresh: except".to_string()),
        Found::Fresh => (String::new(), "starts afresh".to_string()),
        Found::Misfit(misfit) => (String::new(), misfit.to_string()),
    }
}

fn shown(mapping: &Mapping) -> impl Iterator<Item = &Mapped> {
    let is_shown = |mapped: &&Mapped| mapped.wanted.role != Role::Own && mapped.found != Found::Fresh;
    mapping.variables.iter().filter(is_shown)
}

fn as_text(
    file: &Path,
    (experiment, output): (&Path, Option<&Path>),
    imported: &Imported,
    checked: &[Checked],
    context: &Context,
) -> String {
    let Imported { checkpoint, mapping, has_slots } = imported;
    let mut table =
        Table::new([Column::name("variable"), Column::text("shape"), Column::name("from"), Column::text("how")]);
    for mapped in shown(mapping) {
        let (theirs, how) = how(mapped);
        table.row([mapped.wanted.name.clone(), mapped.wanted.shape.to_string(), theirs, how]);
    }
    let mut text = format!("{}: {}\n{}", file.display(), mapping.summary(), table.render(context.screen));
    for name in &mapping.left_over {
        text += &format!("left over: {name}\n");
    }
    text += &check::table(checked, context.screen);
    if let Some(output) = output {
        let (experiment, place) = (again::word(experiment), again::word(output));
        text += &format!("checkpoint {}, of step {}\n", output.display(), checkpoint.position.step);
        text += &match has_slots {
            true => format!(
                "next: `bf16scope train {experiment} --precision {} --resume={place}`, or `bf16scope predict {experiment} --checkpoint {place}`\n",
                checkpoint.position.precision
            ),
            false => format!(
                "next: `bf16scope predict {experiment} --checkpoint {place}`, or `bf16scope train {experiment} \
                 --initialize-from {place}`\n"
            ),
        };
    }
    text
}

fn as_json(file: &Path, output: Option<&Path>, imported: &Imported, checked: &[Checked]) -> Value {
    let Imported { checkpoint, mapping, has_slots } = imported;
    let variables = shown(mapping).map(|mapped| {
        let (theirs, how) = how(mapped);
        json!({"variable": mapped.wanted.name, "shape": mapped.wanted.shape.to_string(), "from": theirs, "how": how})
    });
    json!({
        "file": file, "output": output, "rules": mapping.family, "step": checkpoint.position.step, "has_slots": has_slots,
        "variables": variables.collect::<Vec<_>>(), "left_over": mapping.left_over, "about_slots": mapping.about_slots, "about_images": mapping.about_images,
        "about_order": mapping.about_order, "checked": checked,
    })
}
