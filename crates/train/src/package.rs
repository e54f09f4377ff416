//! Packages: a folder that predicts without its experiment. It holds the program as HLO, the compiled executable, the
//! variables, and a manifest, `package.json`, with the names of everything and a SHA-256 of each file.
//!
//! An executable fits one version of one compiler and one kind of processor; the HLO beside it fits all. A program that
//! runs a package compares [`Built::compiler`] and [`Built::processor`] with its own, and compiles the HLO where they
//! differ.

mod write;

use super::mesh::MAX_REPLICAS;
use bf16scope_data::DataError;
use bf16scope_data::npz::is_member_name;
use bf16scope_data::table::Learnt;
use bf16scope_files::{self as files, hex};
use bf16scope_hlo::DType;
use bf16scope_pjrt::{Code, CompileOptions, Compiled, PjrtError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
pub use write::{Unwritten, check_folder};

/// The manifest's file.
pub const MANIFEST: &str = "package.json";
const PROGRAM: &str = "program.hlo.pb";
const VARIABLES: &str = "variables.npz";
const EXECUTABLE: &str = "executable.bin";
/// The experiment's file in a package.
pub const EXPERIMENT: &str = "experiment.yaml";

/// The version of the package format that is written and read here.
const FORMAT: u32 = 1;
/// The most bytes of a manifest: names of a hundred thousand variables.
const MAX_MANIFEST: u64 = 16 << 20;
/// The most bytes of any other file.
const MAX_BYTES: u64 = 64 << 30;

/// The contents of a package.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object with `format`, `program`, `variables`, `inputs`, `outputs` and more")]
#[non_exhaustive]
pub struct Manifest {
    /// The version of the format: 1.
    pub format: u32,
    /// The version of bf16scope that wrote it.
    pub bf16scope: String,
    /// The dtype that the network computes in: `bf16`, `f32`, `f16`.
    pub precision: String,
    /// Steps of training behind the variables.
    pub steps: u64,
    /// Devices that run the program at the same time, each on its own batch.
    pub n_devices: usize,
    /// Whether a TPU's compiler may omit roundings to bf16 between wider operations; other devices perform every
    /// rounding. Packages from before 2026-11-25 do not have it: no rounding was omitted.
    #[serde(default)]
    pub excess_precision: bool,
    /// The inputs of each device, in the order of the program's parameters after the variables.
    pub inputs: Vec<Signature>,
    /// The outputs of each device, in the order of the program's results.
    pub outputs: Vec<Signature>,
    /// The program: a serialized `HloModuleProto`, whose first parameters are the variables.
    pub program: PackageFile,
    /// The variables by name.
    pub variables: PackageFile,
    /// The compiled executable.
    pub executable: Option<Built>,
    /// The experiment, whose `data` describe how files become inputs. Packages from before 2026-11-28 do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<PackageFile>,
    /// The tokenizer that the experiment names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PackageFile>,
    /// Statistics and vocabularies that the run learnt for a table's columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learnt: Option<Learnt>,
    /// Class names of each label, from class 0 on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, Vec<String>>,
}

/// An input or output array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an array's `name`, `dtype` and `dims`")]
pub struct Signature {
    /// Its name.
    pub name: String,
    /// Its dtype, as HLO spells it.
    pub dtype: String,
    /// Its dims on each device; the first is the batch.
    pub dims: Vec<i64>,
}

/// A file of the package.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "a file's `file`, `n_bytes` and `sha256`")]
pub struct PackageFile {
    /// Its name in the folder.
    pub file: String,
    /// Its size.
    pub n_bytes: u64,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
}

/// An executable and the device that it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an executable's file and its `target`")]
pub struct Built {
    /// The file.
    #[serde(flatten)]
    pub part: PackageFile,
    /// The target: `cpu`, `tpu-v3:2x2`.
    pub target: String,
    /// The compiler's version, as it reports it.
    pub compiler: String,
    /// The processor that it was compiled on and for, if that is a CPU.
    pub processor: Option<String>,
}

/// Why a folder is not a package, or cannot become one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// The folder exists and is not empty.
    #[error("{}: is there already, and is not an empty folder\nhelp: name another folder, or remove it", folder.display())]
    Taken {
        /// The folder.
        folder: PathBuf,
    },
    /// A file cannot be written or read.
    #[error("{}: cannot be {done}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// `written` or `read`.
        done: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The variables cannot be written.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The manifest is invalid.
    #[error("{}: no manifest of a package: {what}\nhelp: make one with `bf16scope package`", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A file differs from its entry in the manifest.
    #[error(
        "{}: {measured}, expected {expected} as {MANIFEST} says: the file is damaged or not the package's\nhelp: copy the \
         package again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The file's size and hash.
        measured: String,
        /// The size and hash in the manifest.
        expected: String,
    },
}

impl Signature {
    fn new(name: &str, dtype: DType, dims: &[i64]) -> Signature {
        Signature { name: name.to_string(), dtype: dtype.name().to_string(), dims: dims.to_vec() }
    }
}

impl Built {
    /// An executable for `target`, compiled on this machine by this version of a compiler.
    pub fn here(target: &str, compiler: String) -> Built {
        let processor = (target == "cpu").then(processor);
        let part = PackageFile { file: EXECUTABLE.to_string(), n_bytes: 0, sha256: String::new() };
        Built { part, target: target.to_string(), compiler, processor }
    }

    /// Why it cannot run on a device whose compiler reports this version; `None` if it can.
    pub fn differs(&self, compiler: &str) -> Option<String> {
        if self.compiler != compiler {
            return Some(format!("it was compiled by {:?}, and here is {compiler:?}", self.compiler));
        }
        let here = processor();
        match &self.processor {
            Some(there) if *there != here => Some(format!("it was compiled for {there:?}, and here is {here:?}")),
            Some(_) | None => None,
        }
    }
}

impl Manifest {
    /// Reads a package's manifest, and verifies every file.
    ///
    /// # Errors
    /// [`PackageError`].
    pub fn read(folder: impl AsRef<Path>) -> Result<Manifest, PackageError> {
        let folder = folder.as_ref();
        let path = folder.join(MANIFEST);
        let text = files::read_text(&path, MAX_MANIFEST).map_err(|source| PackageError::Io {
            path: path.clone(),
            done: "read",
            source,
        })?;
        let wrong = |what: String| PackageError::Manifest { path: path.clone(), what };
        let manifest: Manifest = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if manifest.format != FORMAT {
            return Err(wrong(format!("its format is {}, and this version reads {FORMAT}", manifest.format)));
        }
        if !(1..=MAX_REPLICAS as usize).contains(&manifest.n_devices) {
            return Err(wrong(format!("n_devices is {}, expected 1 to {MAX_REPLICAS}", manifest.n_devices)));
        }
        // They become names of arrays in archives.
        let mut names = manifest.inputs.iter().chain(&manifest.outputs).map(|signature| &signature.name);
        if let Some(name) = names.find(|name| !is_member_name(name)) {
            return Err(wrong(format!(
                "{name:?} is not a name for an array: it would leave the archive that it is written to"
            )));
        }
        let executable = manifest.executable.iter().map(|built| &built.part);
        let others = executable.chain(&manifest.experiment).chain(&manifest.tokenizer);
        for part in [&manifest.program, &manifest.variables].into_iter().chain(others) {
            // Only files directly in the folder are read.
            if Path::new(&part.file).file_name().is_none_or(|name| name != part.file.as_str()) {
                return Err(wrong(format!("{:?} is not the name of a file in the folder", part.file)));
            }
            let measured = measure(folder, &part.file)?;
            let described = |part: &PackageFile| format!("{} bytes with SHA-256 {}", part.n_bytes, part.sha256);
            if measured != *part {
                return Err(PackageError::Damaged {
                    path: folder.join(&part.file),
                    measured: described(&measured),
                    expected: described(part),
                });
            }
        }
        Ok(manifest)
    }
}

/// Compile options of a package's program on `n_devices`: every rounding is performed, unless excess precision is
/// allowed.
pub fn options(n_devices: usize, excess_precision: bool) -> CompileOptions {
    CompileOptions { n_replicas: n_devices, allow_excess_precision: excess_precision, ..CompileOptions::default() }
}

/// The executable as bytes; `None` if the plugin cannot serialise.
///
/// # Errors
/// Other errors of the plugin.
pub fn serialized(compiled: &Compiled) -> Result<Option<Vec<u8>>, PjrtError> {
    match compiled.serialize() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.code() == Some(Code::Unimplemented) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Size and hash of a file.
fn measure(folder: &Path, name: &str) -> Result<PackageFile, PackageError> {
    let path = folder.join(name);
    let read = |source| PackageError::Io { path: path.clone(), done: "read", source };
    let mut file = files::open(&path).map_err(read)?;
    let mut sha = Sha256::new();
    let n_bytes = io::copy(&mut io::Read::take(&mut file, MAX_BYTES), &mut sha).map_err(read)?;
    Ok(PackageFile { file: name.to_string(), n_bytes, sha256: hex(sha.finalize()) })
}

fn digest(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}

/// This machine's processor: its name, and a hash of the features for which machine code is generated.
fn processor() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
        line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
    };
    let mut flags: Vec<&str> = field("flags").split_whitespace().collect();
    flags.sort_unstable();
    format!("{} ({})", field("model name"), &digest(flags.join(" ").as_bytes())[..12])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_precision_of_a_package_is_what_is_passed_to_the_compiler() {
        assert!(options(2, true).allow_excess_precision && !options(2, false).allow_excess_precision);
        // A package without the key was compiled without excess precision.
        let file = r#"{"file": "a", "n_bytes": 1, "sha256": ""}"#;
        let manifest = format!(
            r#"{{"format": 1, "bf16scope": "0.1.0", "precision": "bf16", "steps": 1, "n_devices": 2, "inputs": [], "outputs": [],
               "program": {file}, "variables": {file}, "executable": null}}"#
        );
        let manifest: Manifest = serde_json::from_str(&manifest).unwrap();
        assert!(!manifest.excess_precision);
        let on = Manifest { excess_precision: true, ..manifest };
        let read: Manifest = serde_json::from_str(&serde_json::to_string(&on).unwrap()).unwrap();
        assert!(read.excess_precision);
    }

    #[test]
    fn folders_that_are_no_packages_say_what_to_do() {
        let folder = PathBuf::from("a");
        assert_eq!(
            PackageError::Taken { folder: folder.clone() }.to_string(),
            "a: is there already, and is not an empty folder\nhelp: name another folder, or remove it"
        );
        assert_eq!(
            PackageError::Manifest { path: folder.clone(), what: "it is empty".to_string() }.to_string(),
            "a: no manifest of a package: it is empty\nhelp: make one with `bf16scope package`"
        );
        let (measured, expected) = ("3 bytes".to_string(), "4 bytes".to_string());
        assert_eq!(
            PackageError::Damaged { path: folder, measured, expected }.to_string(),
            "a: 3 bytes, expected 4 bytes as package.json says: the file is damaged or not the package's\nhelp: copy the \
             package again"
        );
    }
}
