//! Writes a package: its files one by one, then its manifest.

use super::{
    Built, EXECUTABLE, EXPERIMENT, FORMAT, MANIFEST, Manifest, PROGRAM, PackageError, PackageFile, Signature, VARIABLES,
};
use super::{digest, measure};
use crate::checkpoint::{Array, Checkpoint};
use crate::device::shape_of;
use crate::error::TrainError;
use crate::program;
use bf16scope_data::npz::{Header, NpzWriter};
use bf16scope_data::table::Learnt;
use bf16scope_files as files;
use bf16scope_hlo::{ArrayShape, Module, proto, verify};
use bf16scope_model::graph::{Numbers, Precision, Program};
use bf16scope_model::task::Task;
use bf16scope_passes::tuning::Tuning;
use fs4::fs_std::FileExt as _;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Exists until the manifest is written: names, one per line, of the optional files of the unfinished package.
const UNFINISHED: &str = ".unfinished-package";
/// The most bytes of this file.
const MAX_NAMES: u64 = 1 << 16;

/// A prediction program with a checkpoint's variables, ready to be compiled and written.
#[derive(Debug)]
pub struct Unwritten {
    program: Program,
    bytes: Vec<u8>,
    outputs: Vec<ArrayShape>,
    variables: Vec<Array>,
    precision: Precision,
    steps: u64,
    classes: BTreeMap<String, Vec<String>>,
    experiment: Option<String>,
    tokenizer: Option<(String, Vec<u8>)>,
    learnt: Option<Learnt>,
}

impl Unwritten {
    /// The prediction program of a task for batches of `batch` examples on each device, with the variables of a
    /// checkpoint that was read from `path` (its averages, where it has any).
    ///
    /// # Errors
    /// A program that cannot be built; a checkpoint of another task.
    pub fn new(
        task: &dyn Task,
        numbers: impl Into<Numbers>,
        batch: u32,
        tuning: &Tuning,
        path: &Path,
        checkpoint: &Checkpoint,
    ) -> Result<Unwritten, TrainError> {
        let numbers = numbers.into();
        // Callers of a package have images in their usual layout.
        let tuning = tuning.clone().with(|tuning| tuning.transpose_input = false);
        let program = program::prediction(task, numbers, i64::from(batch), &tuning)?.program;
        verify::verify(&program.module)?;
        let wanted = || program.variables.iter().map(|variable| (variable.name.as_str(), shape_of(variable)));
        let read = checkpoint.read_as(wanted());
        let variables = read.exported(path, wanted())?.into_iter().cloned().collect();
        let entry = program.module.entry();
        let results = entry.instr(entry.root).operands.iter().map(|&id| &entry.instr(id).shape);
        let outputs =
            results.filter_map(|shape| Some(ArrayShape::new(shape.dtype()?, shape.dims().to_vec()))).collect();
        let bytes = proto::encode::to_bytes(&program.module)?;
        let (precision, steps) = (numbers.precision, checkpoint.position.step);
        let classes = checkpoint.data.as_ref().map(|data| data.classes.clone()).unwrap_or_default();
        let learnt = checkpoint.data.as_ref().and_then(|data| data.learnt.clone());
        let (experiment, tokenizer) = (None, None);
        Ok(Unwritten { program, bytes, outputs, variables, precision, steps, classes, experiment, tokenizer, learnt })
    }

    /// Adds the text of the experiment, and its tokenizer with its file name in the package.
    #[must_use]
    pub fn with_experiment(self, text: String, tokenizer: Option<(String, Vec<u8>)>) -> Unwritten {
        Unwritten { experiment: Some(text), tokenizer, ..self }
    }

    /// The program.
    pub fn module(&self) -> &Module {
        &self.program.module
    }

    /// The program, serialized.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes the package into a folder that is empty or does not exist. The manifest is written last: a folder without
    /// one is not a package.
    ///
    /// # Errors
    /// [`PackageError`].
    pub fn write(
        self,
        folder: &Path,
        n_devices: usize,
        excess_precision: bool,
        executable: Option<(&[u8], Built)>,
    ) -> Result<Manifest, PackageError> {
        let unfinished = UnfinishedFolder::begin(folder)?;
        if let Some((name, _)) = &self.tokenizer {
            unfinished.announce(name)?;
        }
        let part = |name: &str, bytes: &[u8]| unfinished.write(name, bytes);
        let built =
            |(bytes, built): (&[u8], Built)| Ok::<_, PackageError>(Built { part: part(EXECUTABLE, bytes)?, ..built });
        let inputs = self.program.inputs.iter();
        let outputs = self.program.outputs.iter().zip(&self.outputs);
        let manifest = Manifest {
            format: FORMAT,
            bf16scope: env!("CARGO_PKG_VERSION").to_string(),
            precision: self.precision.name().to_string(),
            steps: self.steps,
            n_devices,
            excess_precision,
            inputs: inputs.map(|input| Signature::new(&input.name, input.dtype, &input.dims)).collect(),
            outputs: outputs.map(|(name, shape)| Signature::new(name, shape.dtype, &shape.dims)).collect(),
            program: part(PROGRAM, &self.bytes)?,
            variables: self.write_variables(folder)?,
            executable: executable.map(built).transpose()?,
            experiment: self.experiment.as_ref().map(|text| part(EXPERIMENT, text.as_bytes())).transpose()?,
            tokenizer: self.tokenizer.as_ref().map(|(name, bytes)| part(name, bytes)).transpose()?,
            learnt: self.learnt,
            classes: self.classes,
        };
        unfinished.finish(&manifest)?;
        Ok(manifest)
    }

    fn write_variables(&self, folder: &Path) -> Result<PackageFile, PackageError> {
        let mut npz = NpzWriter::create(folder.join(VARIABLES))?;
        for (variable, Array { shape, bytes }) in self.program.variables.iter().zip(&self.variables) {
            npz.add(&variable.name, &Header::for_dtype(shape.dtype, shape.dims.clone()), bytes)?;
        }
        npz.finish()?;
        measure(folder, VARIABLES)
    }
}

/// A folder in which a package is being written. Until the manifest exists, a locked file marks the others as an
/// unfinished package.
struct UnfinishedFolder<'a> {
    folder: &'a Path,
    mark: PathBuf,
    lock: File,
}

impl UnfinishedFolder<'_> {
    /// Creates the folder, or removes what an interrupted writer left in it.
    fn begin(folder: &Path) -> Result<UnfinishedFolder<'_>, PackageError> {
        check_folder(folder)?;
        fs::create_dir_all(folder).map_err(not_written(folder))?;
        let mark = folder.join(UNFINISHED);
        let lock = files::open_lock(&mark).map_err(not_written(&mark))?;
        // On a file system without locks, the manifest's checksums detect a second writer.
        if lock.try_lock_exclusive().is_ok_and(|is_ours| !is_ours) {
            return Err(PackageError::Taken { folder: folder.to_path_buf() });
        }
        // Another writer may have finished since.
        check_folder(folder)?;
        for name in PARTS.map(String::from).into_iter().chain(marked(folder)) {
            let path = folder.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(not_written(&path)(error)),
                _ => {}
            }
        }
        files::sweep(folder).map_err(not_written(folder))?;
        Ok(UnfinishedFolder { folder, mark, lock })
    }

    /// Records that a file of this name belongs to the package, although not every package has one.
    fn announce(&self, name: &str) -> Result<(), PackageError> {
        writeln!(&self.lock, "{name}").map_err(not_written(&self.mark))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<PackageFile, PackageError> {
        let path = self.folder.join(name);
        files::replace(&path, bytes).map_err(not_written(&path))?;
        Ok(PackageFile { file: name.to_string(), n_bytes: bytes.len() as u64, sha256: digest(bytes) })
    }

    /// Writes the manifest and removes the mark.
    fn finish(self, manifest: &Manifest) -> Result<(), PackageError> {
        let text = serde_json::to_string_pretty(manifest).expect("names and numbers have a JSON form") + "\n";
        let path = self.folder.join(MANIFEST);
        files::replace(&path, text.as_bytes()).map_err(not_written(&path))?;
        fs::remove_file(&self.mark).map_err(not_written(&self.mark))
    }
}

fn not_written(path: &Path) -> impl FnOnce(io::Error) -> PackageError {
    let path = path.to_path_buf();
    move |source| PackageError::Io { path, done: "written", source }
}

/// Files that packages have, except the manifest, which is written last.
const PARTS: [&str; 4] = [PROGRAM, VARIABLES, EXECUTABLE, EXPERIMENT];

/// Names of other files that an interrupted writer had begun.
fn marked(folder: &Path) -> Vec<String> {
    let text = files::read_text(&folder.join(UNFINISHED), MAX_NAMES).unwrap_or_default();
    let names = text.lines().filter(|name| Path::new(name).file_name().is_some_and(|last| last == *name));
    names.filter(|name| *name != MANIFEST).map(String::from).collect()
}

/// Refuses a folder with content that writing would lose: anything but the files of an interrupted writer of a package.
///
/// # Errors
/// [`PackageError::Taken`]; [`PackageError::Io`].
pub fn check_folder(folder: &Path) -> Result<(), PackageError> {
    files::check_output(folder).map_err(|error| PackageError::Io {
        path: folder.to_path_buf(),
        done: "written",
        source: error.into(),
    })?;
    match fs::read_dir(folder) {
        Ok(entries) => {
            let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
            // The files of an interrupted writer may be replaced, and no others.
            let marked = marked(folder);
            let is_known = |name: &str, is: fn(&str, &str) -> bool| {
                PARTS.into_iter().chain(marked.iter().map(String::as_str)).any(|part| is(name, part))
            };
            let is_part = |name: &OsString| {
                let Some(name) = name.to_str() else { return false };
                let hidden = name.strip_prefix('.');
                let is_hidden = |name: &str| is_known(name, |name, part| name.starts_with(part));
                name == UNFINISHED
                    || is_known(name, |name, part| name == part)
                    || hidden.is_some_and(|name| is_hidden(name) || name.starts_with(MANIFEST))
            };
            let is_left = names.iter().any(|name| name == UNFINISHED) && names.iter().all(is_part);
            match names.is_empty() || is_left {
                true => Ok(()),
                false => Err(PackageError::Taken { folder: folder.to_path_buf() }),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(PackageError::Taken { folder: folder.to_path_buf() })
        }
        Err(source) => Err(PackageError::Io { path: folder.to_path_buf(), done: "written", source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that an interrupted writer left used to be refused for ever.
    #[test]
    fn what_a_killed_writer_left_is_written_over_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let is_free = || check_folder(folder.path()).is_ok();
        let add = |name: &str| fs::write(folder.path().join(name), "x").unwrap();
        assert!(is_free());
        add(VARIABLES);
        assert!(!is_free(), "an archive of another program");
        for name in [UNFINISHED, PROGRAM, EXECUTABLE, ".variables.npz.writing-abcdef"] {
            add(name);
            assert!(is_free(), "{name}");
        }
        // A tokenizer keeps the file name that its user chose.
        add("words.json");
        assert!(!is_free());
        fs::write(folder.path().join(UNFINISHED), "words.json\n../package.json\npackage.json\n").unwrap();
        assert!(is_free());
        assert_eq!(marked(folder.path()), ["words.json"]);
        add("notes.txt");
        assert!(!is_free());
        fs::remove_file(folder.path().join("notes.txt")).unwrap();
        add(MANIFEST);
        assert!(!is_free(), "a package");
    }
}
