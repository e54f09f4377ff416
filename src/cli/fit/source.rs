//! Where the programs of a fit come from: a model, built at any batch, or a folder of modules exported at several.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};

use super::super::again;
use super::super::mesh::MeshArgs;
use super::super::module_file;
use super::super::program::Which;
use super::super::several;
use super::super::subjects::{CompareArgs, Form};
use super::super::tune::TuneArg;
use crate::experiment::Experiment;
use crate::graph::Precision;
use crate::hlo::Module;
use crate::study::{build, check_no_model_axis, read, unit};
use crate::tpu::Target;
use crate::train::Mesh;

/// `--batch-dim`: which axis of which parameter is the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BatchDim {
    /// A number, or a name.
    parameter: String,
    axis: usize,
}

impl FromStr for BatchDim {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchDim, String> {
        let parts = text.rsplit_once(':').and_then(|(parameter, axis)| Some((parameter, axis.parse().ok()?)));
        match parts {
            Some((parameter, axis)) if !parameter.is_empty() => Ok(BatchDim { parameter: parameter.to_string(), axis }),
            _ => Err("expected a parameter and an axis, such as 0:0 or images:0".to_string()),
        }
    }
}

/// Programs by precision and batch.
#[derive(Debug)]
pub(super) enum Source {
    /// A model, which has a program at any batch.
    Model { experiment: Box<Experiment>, which: Which, mesh: Mesh, precisions: Vec<String> },
    /// Modules, by the batch that they were exported at, in forms that are called so.
    Modules { files: BTreeMap<u32, PathBuf>, forms: Vec<Form>, precisions: Vec<String> },
}

impl Source {
    /// What a path holds.
    pub(super) fn open(
        path: &Path,
        which: Option<Which>,
        precisions: &[Precision],
        batch_dim: Option<&BatchDim>,
        compare: &CompareArgs,
        mesh: &MeshArgs,
    ) -> anyhow::Result<Source> {
        let shown = path.display();
        if path.is_dir() {
            if let Some(flag) = mesh.flag() {
                bail!("{flag} lays a model's batch over cores, and {shown} holds modules, which are of one");
            }
            ensure!(which.is_none(), "--program chooses among a model's programs, and {shown} holds modules");
            ensure!(
                precisions.is_empty(),
                "--precision chooses among a model's programs, and {shown} holds modules\nhelp: --compare puts them beside \
                 their lowered forms, and --policy says how they are lowered"
            );
            let files = modules(path, batch_dim)?;
            let forms = forms(&files, compare)?;
            let precisions = forms.iter().map(|form| form.label().to_string()).collect();
            return Ok(Source::Modules { files, forms, precisions });
        }
        ensure!(
            !module_file::is_module(path),
            "{shown} is one module, of one batch, and fit looks for a batch\nhelp: export it at several batches into a \
             folder, and name the folder; `bf16scope compile {}` says what this one takes",
            again::word(path)
        );
        compare.check_model(path)?;
        if let Some(BatchDim { parameter, axis }) = batch_dim {
            bail!("--batch-dim {parameter}:{axis} is for a folder of modules: a model knows its batch");
        }
        let experiment = Box::new(read(path)?);
        let which = which.unwrap_or(Which::Train);
        mesh.check(which)?;
        match mesh.choice().n_partitions(*experiment.mesh) {
            1 => {}
            _ if mesh.names_the_model_axis() => bail!(
                "fit lays a batch over replicas of one device each, and --mesh has a model axis\nhelp: leave it out; `bf16scope \
                 compile` with the same --mesh says what a step of so many partitions takes"
            ),
            _ => check_no_model_axis("fit", path, &experiment.mesh, experiment.train.batch)?,
        }
        if experiment.mesh.is_parallel() && mesh.flag().is_none() {
            tracing::warn!(
                "{shown}: the mesh has {} devices, and fit looks at one: a batch here is one device's part, and no sums over \
                 devices are in it\nhelp: --mesh data={} looks at one device's share of a step over all",
                experiment.mesh.data,
                experiment.mesh.data
            );
        }
        let precisions = if precisions.is_empty() { &[Precision::F32, Precision::Bf16] } else { precisions };
        let names: Vec<String> = precisions.iter().map(Precision::to_string).collect();
        // What else the replicas share is as the file says.
        let mesh = match mesh.flag() {
            Some(_) => mesh.choice().over(Mesh { model: NonZeroU32::MIN, ..*experiment.mesh })?,
            None => Mesh::default(),
        };
        Ok(Source::Model { experiment, which, mesh, precisions: super::without_repeats(&names) })
    }

    /// Whether its programs are modules that bf16scope did not build.
    pub(super) fn is_foreign(&self) -> bool {
        match self {
            Source::Modules { .. } => true,
            Source::Model { .. } => false,
        }
    }

    /// In the order asked for.
    pub(super) fn precisions(&self) -> &[String] {
        match self {
            Source::Model { precisions, .. } | Source::Modules { precisions, .. } => precisions,
        }
    }

    /// The batches there are, smallest first; `None`: any.
    pub(super) fn batches(&self) -> Option<Vec<u32>> {
        match self {
            Source::Model { .. } => None,
            Source::Modules { files, .. } => Some(files.keys().copied().collect()),
        }
    }

    /// What every batch is a multiple of.
    pub(super) fn n_parts(&self) -> u32 {
        match self {
            Source::Model { experiment, which: Which::Train, .. } => experiment.train.accumulate.max(1),
            Source::Model { .. } | Source::Modules { .. } => 1,
        }
    }

    /// Where a search begins.
    pub(super) fn start(&self) -> u32 {
        match self {
            // The file's batch is that of all of its devices.
            Source::Model { experiment, mesh, .. } => (experiment.train.batch / mesh.data).max(1),
            Source::Modules { files, .. } => files.keys().next().copied().unwrap_or(1),
        }
    }

    /// The cores that a step of a model is over.
    pub(super) fn mesh(&self) -> Mesh {
        match self {
            Source::Model { mesh, .. } => *mesh,
            Source::Modules { .. } => Mesh::default(),
        }
    }

    /// The verified program of a precision and of a core's part of a batch, tuned for a target.
    pub(super) fn module(
        &self,
        precision: &str,
        batch: u32,
        target: &Target,
        tune: &TuneArg,
    ) -> anyhow::Result<Module> {
        match self {
            Source::Model { experiment, which, mesh, .. } => {
                let precision = precision.parse().map_err(anyhow::Error::msg)?;
                let Some(batch) = batch.checked_mul(mesh.data.get()).filter(|&batch| i32::try_from(batch).is_ok())
                else {
                    bail!("{} parts of {batch} are a batch of more than {}", mesh.data, i32::MAX);
                };
                Ok(build(experiment, (*which).into(), precision, batch, *mesh, tune.tuning(experiment, target))?.module)
            }
            Source::Modules { files, forms, .. } => {
                let path = files.get(&batch).with_context(|| format!("there is no module of batch {batch}"))?;
                let form = forms.iter().find(|form| form.label() == precision);
                let form = form.with_context(|| format!("there is no form {precision}"))?;
                let module = form.of(module_file::load(path)?, path)?;
                several::refuse(&module, path)?;
                Ok(module)
            }
        }
    }

    /// Which program.
    pub(super) fn program(&self) -> &'static str {
        match self {
            Source::Model { which: Which::Train, .. } => "training step",
            Source::Model { which: Which::Infer, .. } => "inference",
            Source::Modules { .. } => "",
        }
    }

    /// What a batch is of.
    pub(super) fn unit(&self) -> &'static str {
        match self {
            Source::Model { experiment, .. } => unit(experiment),
            Source::Modules { .. } => "examples",
        }
    }
}

/// The forms of modules that differ, as those of the least batch do.
fn forms(files: &BTreeMap<u32, PathBuf>, compare: &CompareArgs) -> anyhow::Result<Vec<Form>> {
    if !compare.is_asked() {
        return Ok(vec![Form::Plain]);
    }
    let path = files.values().next().context("there are no modules")?;
    let module = module_file::load(path)?;
    several::refuse(&module, path)?;
    let forms = compare.forms(module, path)?;
    Ok(forms.into_iter().map(|(form, _)| form).collect())
}

/// The modules of a folder by batch.
fn modules(folder: &Path, batch_dim: Option<&BatchDim>) -> anyhow::Result<BTreeMap<u32, PathBuf>> {
    let shown = folder.display();
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {shown}"))? {
        let path = entry.with_context(|| format!("cannot read {shown}"))?.path();
        if module_file::holds_module(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    ensure!(
        !paths.is_empty(),
        "{shown} holds no modules, HLO or StableHLO\nhelp: export the program at several batches"
    );
    let Some(batch_dim) = batch_dim else { bail!(no_batch_dim(&shown.to_string(), &paths)?) };
    let mut files: BTreeMap<u32, PathBuf> = BTreeMap::new();
    for path in paths {
        let module = module_file::load(&path)?;
        let batch = batch_of(&module, batch_dim).with_context(|| format!("{}", path.display()))?;
        if let Some(other) = files.insert(batch, path.clone()) {
            bail!(
                "{} and {} both have batch {batch} in --batch-dim {}:{}\nhelp: keep one program at each batch in the \
                 folder, or name the axis that differs",
                other.display(),
                path.display(),
                batch_dim.parameter,
                batch_dim.axis
            );
        }
    }
    Ok(files)
}

/// What to say where it was not said which axis is the batch: one whose size differs from module to module, if there is
/// one.
fn no_batch_dim(shown: &str, paths: &[PathBuf]) -> anyhow::Result<String> {
    let modules = paths.iter().map(|path| module_file::load(path)).collect::<Result<Vec<Module>, _>>()?;
    let all: Vec<Vec<(String, Vec<i64>)>> = modules.iter().map(parameters).collect();
    let what = format!("{shown} holds modules, and which of their axes is the batch must be said");
    let help = match differing(&all) {
        Some((name, axis, sizes)) => {
            let sizes: Vec<String> = sizes.iter().map(i64::to_string).collect();
            format!("use --batch-dim {name}:{axis}, whose size differs from module to module: {}", sizes.join(", "))
        }
        None => format!(
            "use --batch-dim PARAMETER:AXIS; no axis has another size in each module; {} has {}",
            paths.first().map_or(String::new(), |path| path.display().to_string()),
            modules.first().map_or(String::new(), listed)
        ),
    };
    Ok(format!("{what}\nhelp: {help}"))
}

/// The first axis of a parameter that has another size in each of several modules, and its sizes, least first.
fn differing(all: &[Vec<(String, Vec<i64>)>]) -> Option<(String, usize, Vec<i64>)> {
    let [first, _, ..] = all else { return None };
    for (number, (name, dims)) in first.iter().enumerate() {
        for axis in 0..dims.len() {
            let size = |parameters: &Vec<(String, Vec<i64>)>| parameters.get(number)?.1.get(axis).copied();
            let Some(mut sizes) = all.iter().map(size).collect::<Option<Vec<i64>>>() else { continue };
            sizes.sort_unstable();
            sizes.dedup();
            if sizes.len() == all.len() {
                return Some((name.trim_start_matches('%').to_string(), axis, sizes));
            }
        }
    }
    None
}

/// Name and dims of each parameter.
fn parameters(module: &Module) -> Vec<(String, Vec<i64>)> {
    let entry = module.entry();
    let parameter = |id| (entry.instr(id).name.clone(), entry.instr(id).shape.dims().to_vec());
    entry.parameters().into_iter().map(parameter).collect()
}

/// Parameters, for a message: of many the first and the last, for inputs often come after variables.
fn listed(module: &Module) -> String {
    const N_SHOWN: usize = 8;
    let parameters = parameters(module);
    let shown = |(number, (name, dims)): (usize, &(String, Vec<i64>))| {
        let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
        format!("{number} `{name}` [{}]", dims.join(","))
    };
    let mut texts: Vec<String> = parameters.iter().enumerate().map(shown).collect();
    if let Some(n_left_out) = texts.len().checked_sub(N_SHOWN).filter(|n| *n > 0) {
        texts.splice(N_SHOWN / 2..N_SHOWN / 2 + n_left_out, [format!("{n_left_out} more")]);
    }
    format!("parameters {}", texts.join(", "))
}

/// The size of the axis that is the batch.
fn batch_of(module: &Module, BatchDim { parameter, axis }: &BatchDim) -> anyhow::Result<u32> {
    let parameters = parameters(module);
    let numbered = parameter.parse::<usize>().ok().and_then(|number| parameters.get(number));
    let named =
        || parameters.iter().find(|(name, _)| name.trim_start_matches('%') == parameter.trim_start_matches('%'));
    let Some((name, dims)) = numbered.or_else(named) else {
        bail!("no parameter `{parameter}`: it has {}", listed(module));
    };
    let Some(&size) = dims.get(*axis) else {
        bail!("parameter `{name}` has {} axes, and axis {axis} was named: it has {}", dims.len(), listed(module));
    };
    match u32::try_from(size) {
        Ok(batch) if batch > 0 => Ok(batch),
        _ => bail!("parameter `{name}` has size {size} on axis {axis}, which is no batch"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_that_differs_from_module_to_module_is_suggested() {
        let module =
            |batch: i64, other: i64| vec![("%w".to_string(), vec![other, 8]), ("%x".to_string(), vec![3, batch])];
        assert_eq!(differing(&[module(16, 8), module(8, 8)]), Some(("x".to_string(), 1, vec![8, 16])));
        // Nothing differs, or not everywhere; of one module nothing can be said.
        assert_eq!(differing(&[module(8, 8), module(8, 8)]), None);
        assert_eq!(differing(&[module(8, 8), module(16, 8), module(16, 8)]), None);
        assert_eq!(differing(&[module(8, 8)]), None);
        assert_eq!(differing(&[module(8, 8), Vec::new()]), None);
    }

    #[test]
    fn of_many_parameters_the_first_and_the_last_are_listed() {
        let text = |n: usize| {
            let mut text = "HloModule m\nENTRY m {\n".to_string();
            (0..n).for_each(|at| text += &format!("  p{at} = f32[{at},2] parameter({at})\n"));
            listed(&crate::hlo::text::parse(&format!("{text}  ROOT t = () tuple()\n}}"), "m").unwrap())
        };
        assert_eq!(text(2), "parameters 0 `p0` [0,2], 1 `p1` [1,2]");
        assert!(!text(8).contains("more"), "{}", text(8));
        let many = text(11);
        assert!(many.contains("3 `p3` [3,2], 3 more, 7 `p7` [7,2]") && many.ends_with("10 `p10` [10,2]"), "{many}");
    }

    #[test]
    fn a_batch_dim_is_a_parameter_and_an_axis() {
        let dim = |parameter: &str, axis| Ok(BatchDim { parameter: parameter.to_string(), axis });
        assert_eq!("0:0".parse(), dim("0", 0));
        assert_eq!("in:put:2".parse(), dim("in:put", 2));
        for text in ["", "0", ":0", "x:", "x:-1", "x:one"] {
            let error = "expected a parameter and an axis, such as 0:0 or images:0".to_string();
            assert_eq!(text.parse::<BatchDim>(), Err(error), "{text}");
        }
    }
}
