//! Where the programs of a fit come from: a model, built at any batch, or a folder of modules exported at several.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};

use super::super::module_file;
use super::super::policy::lower_if_asked;
use super::super::program::{Which, build, read};
use crate::graph::Precision;
use crate::hlo::Module;
use crate::train::Experiment;

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
    Model { experiment: Box<Experiment>, which: Which, precisions: Vec<String> },
    /// Modules, by the batch that they were exported at.
    Modules { files: BTreeMap<u32, PathBuf>, precisions: Vec<String> },
}

/// A module has whatever precision it has.
const AS_GIVEN: &str = "as given";

impl Source {
    /// What a path holds.
    pub(super) fn open(
        path: &Path,
        which: Option<Which>,
        precisions: &[Precision],
        batch_dim: Option<&BatchDim>,
    ) -> anyhow::Result<Source> {
        let shown = path.display();
        if path.is_dir() {
            ensure!(which.is_none(), "--program chooses among a model's programs, and {shown} holds modules");
            ensure!(
                precisions.is_empty(),
                "--precision chooses among a model's programs, and {shown} holds modules\nhelp: lower them first, with \
                 `bf16scope lower`, into another folder"
            );
            let files = modules(path, batch_dim)?;
            return Ok(Source::Modules { files, precisions: vec![AS_GIVEN.to_string()] });
        }
        ensure!(
            !module_file::is_module(path),
            "{shown} is one module, of one batch, and fit looks for a batch\nhelp: export it at several batches into a \
             folder, and name the folder; `bf16scope compile {shown}` says what this one takes"
        );
        if let Some(BatchDim { parameter, axis }) = batch_dim {
            bail!("--batch-dim {parameter}:{axis} is for a folder of modules: a model knows its batch");
        }
        let experiment = Box::new(read(path)?);
        let precisions = if precisions.is_empty() { &[Precision::F32, Precision::Bf16] } else { precisions };
        let names: Vec<String> = precisions.iter().map(Precision::to_string).collect();
        Ok(Source::Model {
            experiment,
            which: which.unwrap_or(Which::Train),
            precisions: super::without_repeats(&names),
        })
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
            Source::Model { experiment, .. } => experiment.train.batch,
            Source::Modules { files, .. } => files.keys().next().copied().unwrap_or(1),
        }
    }

    /// The verified program of a precision and batch.
    pub(super) fn module(&self, precision: &str, batch: u32) -> anyhow::Result<Module> {
        match self {
            Source::Model { experiment, which, .. } => {
                let precision = precision.parse().map_err(anyhow::Error::msg)?;
                Ok(build(experiment, *which, precision, batch)?.module)
            }
            Source::Modules { files, .. } => {
                let path = files.get(&batch).with_context(|| format!("there is no module of batch {batch}"))?;
                lower_if_asked(module_file::load(path)?, path)
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
            Source::Model { experiment, .. } if experiment.model.input().len() == 3 => "images",
            Source::Model { .. } | Source::Modules { .. } => "examples",
        }
    }
}

/// The modules of a folder by batch.
fn modules(folder: &Path, batch_dim: Option<&BatchDim>) -> anyhow::Result<BTreeMap<u32, PathBuf>> {
    let shown = folder.display();
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {shown}"))? {
        let path = entry.with_context(|| format!("cannot read {shown}"))?.path();
        if module_file::is_module(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    ensure!(
        !paths.is_empty(),
        "{shown} holds no modules (.pb, .txt or .hlo)\nhelp: export the program at several batches"
    );
    let mut files: BTreeMap<u32, PathBuf> = BTreeMap::new();
    for path in paths {
        let module = module_file::load(&path)?;
        let Some(batch_dim) = batch_dim else {
            bail!(
                "{shown} holds modules, and which of their axes is the batch must be said\nhelp: use --batch-dim \
                 PARAMETER:AXIS, such as {}:0; {} has {}",
                parameters(&module).first().map_or("0", |(name, _)| name.as_str()),
                path.display(),
                listed(&module)
            );
        };
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

/// Name and dims of each parameter.
fn parameters(module: &Module) -> Vec<(String, Vec<i64>)> {
    let entry = module.entry();
    let parameter = |id| (entry.instr(id).name.clone(), entry.instr(id).shape.dims().to_vec());
    entry.parameters().into_iter().map(parameter).collect()
}

/// The first parameters, for a message.
fn listed(module: &Module) -> String {
    const N_SHOWN: usize = 8;
    let parameters = parameters(module);
    let shown = parameters.iter().take(N_SHOWN).enumerate().map(|(number, (name, dims))| {
        let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
        format!("{number} `{name}` [{}]", dims.join(","))
    });
    let rest = match parameters.len().saturating_sub(N_SHOWN) {
        0 => String::new(),
        n => format!(", and {n} more"),
    };
    format!("parameters {}{rest}", shown.collect::<Vec<String>>().join(", "))
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
