//! The programs of a fit: a model, built at any batch, or a folder of modules exported at several.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::batch_dim::{BatchDim, BatchDimError};
use crate::module_file::{self, Converter};
use crate::subject::{Form, forms, refuse_several};
use crate::{ModelProgram, ModelSubject, StudyError};
use bf16scope_foreign::{ForeignError, Size};
use bf16scope_hlo::Module;
use bf16scope_model::graph::Precision;
use bf16scope_tpu::Target;
use bf16scope_train::Mesh;

/// Programs by precision and batch.
#[derive(Clone, Debug)]
pub enum FitSource<'t> {
    /// A model, which has a program for any batch.
    Model {
        /// The model, with its tuning.
        subject: Box<ModelSubject<'t>>,
        /// The replicas that share a step: a batch is one replica's part.
        mesh: Mesh,
        /// The precisions.
        precisions: Vec<Precision>,
    },
    /// Modules, by the batch at which they were exported.
    Modules {
        /// Their folder.
        folder: PathBuf,
        /// Each module's file.
        files: BTreeMap<u32, PathBuf>,
        /// The forms.
        forms: Vec<Form>,
        /// The converter for StableHLO.
        converter: Box<Converter>,
    },
    /// A module of `jax.export` with a symbolic batch, which gives a program for any batch.
    Symbolic {
        /// Its file.
        path: PathBuf,
        /// The batch's dimension: its name (`b`), or parameter and axis (`0:0`).
        batch_dim: String,
        /// The least power of two that the module accepts: it may require an even batch, or more than one.
        start: u32,
        /// The forms.
        forms: Vec<Form>,
        /// The converter for StableHLO, with the sizes of all other dimensions.
        converter: Box<Converter>,
    },
}

/// Whether the converter refused a module.
fn is_foreign(error: &StudyError) -> bool {
    error.inner().is_some_and(|error| error.is::<ForeignError>())
}

/// A symbolic module is tried at powers of two up to this.
const MAX_START: u32 = 1024;

impl FitSource<'_> {
    /// The modules of a folder, exported at several batches, in their distinct forms.
    ///
    /// # Errors
    /// A folder without modules; modules whose batch is unknown, or equal to another's; forms that change nothing.
    pub fn of_folder(
        folder: &Path,
        batch_dim: Option<&BatchDim>,
        asked: &[Form],
        converter: &Converter,
    ) -> Result<FitSource<'static>, StudyError> {
        let files = modules(folder, batch_dim, converter)?;
        let forms = differing_forms(&files, asked, converter)?;
        Ok(FitSource::Modules { folder: folder.to_path_buf(), files, forms, converter: Box::new(converter.clone()) })
    }

    /// A module of `jax.export` whose batch is the symbolic dimension `batch_dim`, in its distinct forms.
    ///
    /// # Errors
    /// A module that cannot be read with a batch of 1, 2, 4 and so on up to 1024; forms that change nothing.
    pub fn of_symbolic(
        path: &Path,
        batch_dim: &str,
        asked: &[Form],
        converter: &Converter,
    ) -> Result<FitSource<'static>, StudyError> {
        let mut start = 1;
        let module = loop {
            match of_batch(path, batch_dim, start, converter) {
                // JAX's own error for a batch that is too small, or odd.
                Err(error) if start < MAX_START && is_foreign(&error) => start *= 2,
                read => break read,
            }
        };
        // If all fail, the error for the least batch is representative.
        let module = module.or_else(|_| of_batch(path, batch_dim, 1, converter))?;
        refuse_several(&module, path)?;
        let forms = forms(module, path, asked)?.into_iter().map(|(form, _)| form).collect();
        let (path, batch_dim, converter) = (path.to_path_buf(), batch_dim.to_string(), Box::new(converter.clone()));
        Ok(FitSource::Symbolic { path, batch_dim, start, forms, converter })
    }

    /// Its name in answers: the task's name, the model's or the module's file, or the folder.
    pub fn name(&self) -> String {
        match self {
            FitSource::Model { subject, .. } => subject.name.clone(),
            FitSource::Modules { folder: path, .. } | FitSource::Symbolic { path, .. } => path.display().to_string(),
        }
    }

    /// The labels of the programs compiled at each batch, in the requested order.
    pub fn labels(&self) -> Vec<String> {
        match self {
            FitSource::Model { precisions, .. } => {
                super::without_repeats(&precisions.iter().map(Precision::to_string).collect::<Vec<String>>())
            }
            FitSource::Modules { forms, .. } | FitSource::Symbolic { forms, .. } => {
                forms.iter().map(|form| form.label.clone()).collect()
            }
        }
    }

    /// The available batches, smallest first; `None`: any.
    pub(super) fn batches(&self) -> Option<Vec<u32>> {
        match self {
            FitSource::Model { .. } | FitSource::Symbolic { .. } => None,
            FitSource::Modules { files, .. } => Some(files.keys().copied().collect()),
        }
    }

    /// Every batch is a multiple of this.
    pub(super) fn n_parts(&self) -> u32 {
        match self {
            FitSource::Model { subject, .. } if subject.program == ModelProgram::Training => {
                subject.objective.accumulate.get()
            }
            FitSource::Symbolic { start, .. } => *start,
            FitSource::Model { .. } | FitSource::Modules { .. } => 1,
        }
    }

    /// The first batch of a search.
    pub(super) fn start(&self) -> u32 {
        match self {
            // The file's batch is global.
            FitSource::Model { subject, mesh, .. } => (subject.batch / mesh.data).max(1),
            FitSource::Modules { files, .. } => files.keys().next().copied().unwrap_or(1),
            FitSource::Symbolic { start, .. } => *start,
        }
    }

    /// The mesh of a model's step.
    pub(super) fn mesh(&self) -> Mesh {
        match self {
            FitSource::Model { mesh, .. } => *mesh,
            FitSource::Modules { .. } | FitSource::Symbolic { .. } => Mesh::default(),
        }
    }

    /// The verified program with this label, for a core's part of a batch, tuned for a target.
    pub(super) fn module(&self, label: &str, batch: u32, target: &Target) -> Result<Module, StudyError> {
        let unknown = || StudyError::no_program(label, batch);
        match self {
            FitSource::Model { subject, mesh, precisions } => {
                let precision = precisions.iter().find(|precision| precision.to_string() == label);
                let precision = *precision.ok_or_else(unknown)?;
                let whole = batch.checked_mul(mesh.data.get()).filter(|&batch| i32::try_from(batch).is_ok());
                let whole = whole.ok_or_else(|| StudyError::too_many_examples(mesh.data.get(), batch))?;
                let tuning = subject.tuning(target);
                Ok(subject.program_with(precision, whole, *mesh, tuning)?.module)
            }
            FitSource::Modules { files, forms, converter, .. } => {
                let path = files.get(&batch).ok_or_else(unknown)?;
                let form = forms.iter().find(|form| form.label == label).ok_or_else(unknown)?;
                let module = form.apply(module_file::load(path, converter)?, path)?;
                refuse_several(&module, path)?;
                Ok(module)
            }
            FitSource::Symbolic { path, batch_dim, forms, converter, .. } => {
                let form = forms.iter().find(|form| form.label == label).ok_or_else(unknown)?;
                form.apply(of_batch(path, batch_dim, batch, converter)?, path)
            }
        }
    }

    /// The program of a model.
    pub(super) fn program(&self) -> Option<ModelProgram> {
        match self {
            FitSource::Model { subject, .. } => Some(subject.program),
            FitSource::Modules { .. } | FitSource::Symbolic { .. } => None,
        }
    }

    /// The unit of a batch.
    pub(super) fn unit(&self) -> &'static str {
        match self {
            FitSource::Model { subject, .. } => subject.unit(),
            FitSource::Modules { .. } | FitSource::Symbolic { .. } => "examples",
        }
    }
}

/// A symbolic module at a batch.
fn of_batch(path: &Path, batch_dim: &str, batch: u32, converter: &Converter) -> Result<Module, StudyError> {
    let wrong =
        |message: String| StudyError::from(ForeignError::of_sizes(message, "name another dimension as --batch-dim"));
    let size = format!("{batch_dim}={batch}").parse::<Size>().map_err(wrong)?;
    let sizes = converter.sizes.and(size);
    let sizes = sizes.map_err(|dim| wrong(format!("`{dim}` is the batch, and has a size of its own already")))?;
    module_file::load(path, &Converter { sizes, ..converter.clone() })
}

/// The distinct forms of modules, judged by the least batch.
fn differing_forms(
    files: &BTreeMap<u32, PathBuf>,
    asked: &[Form],
    converter: &Converter,
) -> Result<Vec<Form>, StudyError> {
    let Some(path) = files.values().next().filter(|_| asked.len() > 1 || asked.iter().any(Form::is_asked)) else {
        return Ok(asked.to_vec());
    };
    let module = module_file::load(path, converter)?;
    refuse_several(&module, path)?;
    let forms = forms(module, path, asked)?;
    Ok(forms.into_iter().map(|(form, _)| form).collect())
}

/// The modules of a folder by batch.
fn modules(
    folder: &Path,
    batch_dim: Option<&BatchDim>,
    converter: &Converter,
) -> Result<BTreeMap<u32, PathBuf>, StudyError> {
    let unread = |source| StudyError::read(folder, source);
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        if module_file::holds_module(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(StudyError::no_modules(folder));
    }
    let Some(batch_dim) = batch_dim else { return Err(no_batch_dim(folder, &paths, converter)?) };
    let mut files: BTreeMap<u32, PathBuf> = BTreeMap::new();
    for path in paths {
        let module = module_file::load(&path, converter)?;
        let batch = batch_of(&module, batch_dim).map_err(|source| StudyError::batch_dim(&path, source))?;
        if let Some(other) = files.insert(batch, path.clone()) {
            return Err(StudyError::same_batch(&other, &path, batch, batch_dim));
        }
    }
    Ok(files)
}

/// The error when the batch axis was not named; suggests an axis whose size differs from module to module, if there is
/// one.
fn no_batch_dim(folder: &Path, paths: &[PathBuf], converter: &Converter) -> Result<StudyError, StudyError> {
    let load = |path: &PathBuf| module_file::load(path, converter);
    let modules = paths.iter().map(load).collect::<Result<Vec<Module>, StudyError>>()?;
    let all: Vec<Vec<(String, Vec<i64>)>> = modules.iter().map(parameters).collect();
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
    Ok(StudyError::no_batch_dim(folder, help))
}

/// The first parameter axis whose size is different in each of several modules, and its sizes, least first.
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

/// Parameters, for a message: the first and the last if there are many, because inputs often come after variables.
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

/// The size of the batch axis.
fn batch_of(module: &Module, BatchDim { parameter, axis }: &BatchDim) -> Result<u32, BatchDimError> {
    let (parameters, axis) = (parameters(module), *axis);
    let numbered = parameter.parse::<usize>().ok().and_then(|number| parameters.get(number));
    let named =
        || parameters.iter().find(|(name, _)| name.trim_start_matches('%') == parameter.trim_start_matches('%'));
    let there = || listed(module);
    let Some((name, dims)) = numbered.or_else(named) else {
        return Err(BatchDimError::NoParameter { parameter: parameter.clone(), there: there() });
    };
    let parameter = name.clone();
    let Some(&size) = dims.get(axis) else {
        return Err(BatchDimError::NoAxis { parameter, rank: dims.len(), axis, there: there() });
    };
    u32::try_from(size).ok().filter(|batch| *batch > 0).ok_or(BatchDimError::NoBatch { parameter, size, axis })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_that_differs_from_module_to_module_is_suggested() {
        let module =
            |batch: i64, other: i64| vec![("%w".to_string(), vec![other, 8]), ("%x".to_string(), vec![3, batch])];
        assert_eq!(differing(&[module(16, 8), module(8, 8)]), Some(("x".to_string(), 1, vec![8, 16])));
        // Nothing differs, or not everywhere; a single module shows nothing.
        assert_eq!(differing(&[module(8, 8), module(8, 8)]), None);
        assert_eq!(differing(&[module(8, 8), module(16, 8), module(16, 8)]), None);
        assert_eq!(differing(&[module(8, 8)]), None);
        assert_eq!(differing(&[module(8, 8), Vec::new()]), None);
    }

    /// Two modules of one shape: no axis can be suggested, and the parameters of the first are listed.
    #[test]
    fn modules_that_differ_nowhere_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let text = "HloModule m\nENTRY m {\n  ROOT x = f32[4,2] parameter(0)\n}\n";
        let paths = ["a.hlo", "b.hlo"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| std::fs::write(path, text).unwrap());
        let error = no_batch_dim(folder.path(), &paths, &module_file::tests::converter()).unwrap().to_string();
        let expected = format!(
            "help: use --batch-dim PARAMETER:AXIS; no axis has another size in each module; {} has parameters 0 `x` [4,2]",
            paths[0].display()
        );
        assert!(error.ends_with(&expected), "{error}");
    }

    #[test]
    fn of_many_parameters_the_first_and_the_last_are_listed() {
        let text = |n: usize| {
            let mut text = "HloModule m\nENTRY m {\n".to_string();
            (0..n).for_each(|at| text += &format!("  p{at} = f32[{at},2] parameter({at})\n"));
            listed(&bf16scope_hlo::text::parse(&format!("{text}  ROOT t = () tuple()\n}}"), "m").unwrap())
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
