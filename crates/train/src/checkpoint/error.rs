//! Errors of checkpoints and of the places where they are saved.

use super::VERSION;
use bf16scope_files as files;
use bf16scope_hlo::DType;
use half::bf16;
use std::path::PathBuf;
use std::{fmt, io};

/// Why a checkpoint cannot be used, or cannot be saved in its place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// There is no file.
    #[error("{}: no such checkpoint\nhelp: train first, or name one with --checkpoint", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{}: cannot read the checkpoint", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is larger than the machine's memory.
    #[error("{}: cannot read the checkpoint: it is {n_bytes} bytes, and this machine has {available} bytes of memory\nhelp: name a checkpoint that `bf16scope train` wrote", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        n_bytes: u64,
        /// The machine's memory.
        available: u128,
    },
    /// The file is truncated.
    #[error("{}: the checkpoint is cut off: {n_bytes} bytes, {expected}\nhelp: copy it again, or go on from an earlier one; this file is left as it is", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes of the file.
        n_bytes: u64,
        /// The expected length.
        expected: String,
    },
    /// The file has another format.
    #[error("{}: not a safetensors file: {why}\nhelp: name a checkpoint that `bf16scope train` wrote; `bf16scope weights FILE` shows other files of weights", path.display())]
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// The message of the safetensors reader.
        why: String,
    },
    /// A safetensors file without the metadata of a checkpoint.
    #[error("{}: not a bf16scope checkpoint: {why}\nhelp: name a checkpoint that `bf16scope train` wrote; `bf16scope weights FILE` shows other files of weights", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The fault in its metadata.
        why: String,
    },
    /// The bytes differ from those that were written.
    #[error("{}: the checkpoint is damaged: its sha256 is {measured}, it was written with {expected}\nhelp: copy it again, or go on from an earlier one; this file is left as it is", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The hash of its bytes.
        measured: String,
        /// The hash that the file holds.
        expected: String,
    },
    /// The file is intact, but no run has such a state.
    #[error("{}: not the checkpoint of a run: {fault}\nhelp: go on from an earlier one; this file is left as it is", path.display())]
    Unsound {
        /// The file.
        path: PathBuf,
        /// The fault.
        fault: Fault,
    },
    /// The state cannot be converted to the requested storage.
    #[error("{}: cannot be converted: {fault}\nhelp: go on with `variables` and `slots` as they were", path.display())]
    Converted {
        /// The file.
        path: PathBuf,
        /// The number that prevents it.
        fault: Fault,
    },
    /// A checkpoint of another format version.
    #[error("{}: checkpoint format {found}, this build reads format {VERSION}\nhelp: {}", path.display(), version_help(*found))]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A checkpoint of another model.
    #[error(
        "{}: the checkpoint is of another model{}:{mismatch}\nhelp: name the experiment it was made with, or {}",
        path.display(),
        if *is_resumed { " or optimizer" } else { "" },
        if *is_resumed { "leave --resume out to start again" } else { "another checkpoint (--checkpoint)" }
    )]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// How its variables differ.
        mismatch: Mismatch,
        /// Whether training was to resume from it.
        is_resumed: bool,
    },
    /// A state too broken to replace the previous checkpoint.
    #[error("{}: the checkpoint is not saved: {fault}\nhelp: what was there before is unchanged: go on from it", path.display())]
    Unsaved {
        /// The file.
        path: PathBuf,
        /// The fault.
        fault: Fault,
    },
    /// The file of the best checkpoint has been replaced by another checkpoint.
    #[error(
        "{}: the checkpoint is of step {step}, and the best epoch of this run ended with step {expected}\n\
         help: another run has written there: leave `restore_best` out, and go on from the last checkpoint",
        path.display()
    )]
    OtherStep {
        /// The file.
        path: PathBuf,
        /// Its step.
        step: u64,
        /// The step of the best epoch.
        expected: u64,
    },
    /// An array whose dtype safetensors does not have.
    #[error("{}: cannot save {name}: safetensors has no {dtype}", path.display())]
    Unsaveable {
        /// The file.
        path: PathBuf,
        /// The variable.
        name: String,
        /// Its dtype.
        dtype: DType,
    },
    /// Another run saves there.
    #[error("{}: {} saves its checkpoints there\nhelp: wait for it or stop it, or name another place with --checkpoint", path.display(), holder_name(*holder))]
    InUse {
        /// The file.
        path: PathBuf,
        /// The other run's process, if its lock says so.
        holder: Option<u32>,
    },
    /// The disk is full, the directory is not writable, …
    #[error("{}: cannot write the checkpoint: {doing}\nhelp: {} or name another place with --checkpoint; what was there before is unchanged", path.display(), files::room_for(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A fault in a state that no checkpoint may have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A number out of its range.
    Range {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        measured: u64,
        /// The least it may be.
        least: u64,
    },
    /// A variable that holds a NaN or an infinity.
    NotFinite {
        /// The variable.
        name: String,
        /// Index of the element, row-major.
        idx: usize,
        /// Its value as text.
        value: String,
    },
    /// A variable whose byte count does not match its shape.
    Bytes {
        /// The variable.
        name: String,
        /// Its bytes.
        measured: usize,
        /// The bytes of its shape.
        expected: u128,
    },
    /// A number that has no finite bf16 near it.
    TooLarge {
        /// The variable.
        name: String,
        /// Index of the element, row-major.
        idx: usize,
        /// Its value as text.
        value: String,
    },
    /// A variable's name that the format reserves.
    Name,
    /// Names and settings that exceed a reader's limit.
    Header {
        /// Their bytes.
        measured: usize,
        /// The most there may be.
        most: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Range { what, measured, least } => {
                write!(f, "{what} is {measured}, expected {least} to {}", i32::MAX)
            }
            Fault::NotFinite { name, idx, value } => write!(f, "{name} is not finite: element {idx} is {value}"),
            Fault::Bytes { name, measured, expected } => {
                write!(f, "{name} has {measured} bytes, its shape has {expected}")
            }
            Fault::TooLarge { name, idx, value } => {
                write!(f, "{name} is too large for bf16: element {idx} is {value}, expected at most {:e}", bf16::MAX)
            }
            Fault::Name => write!(f, "a variable is called `__metadata__`, which safetensors has for itself"),
            Fault::Header { measured, most } => {
                write!(f, "the names of its variables and its settings are {measured} bytes, expected at most {most}")
            }
        }
    }
}

fn holder_name(holder: Option<u32>) -> String {
    holder.map_or("another run".to_string(), |process| format!("another run (process {process})"))
}

/// Format 1 had no hash, no settings and no fingerprint of the data; format 2 had no task.
fn version_help(version: u32) -> &'static str {
    match version < VERSION {
        true => {
            "it is of an older build, with other settings and another order of examples: go on with that build, or \
             train again; any reader of safetensors still reads its arrays"
        }
        false => "use the build of bf16scope that wrote it",
    }
}

/// How the variables of a checkpoint differ from those of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// Variables that the program has and the checkpoint does not.
    pub missing: Vec<String>,
    /// Variables that the checkpoint has and the program does not.
    pub unexpected: Vec<String>,
    /// Name, shape in the checkpoint, shape in the program.
    pub different: Vec<(String, String, String)>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let different =
            self.different.iter().map(|(name, actual, expected)| format!("{name} is {actual}, not {expected}"));
        list(f, "different", different.collect())?;
        list(f, "missing", self.missing.clone())?;
        list(f, "unexpected", self.unexpected.clone())
    }
}

/// An error names up to this many variables of a kind.
const N_NAMED: usize = 4;

fn list(f: &mut fmt::Formatter<'_>, kind: &str, names: Vec<String>) -> fmt::Result {
    if names.is_empty() {
        return Ok(());
    }
    write!(f, "\n  {kind}: {}", names[..names.len().min(N_NAMED)].join(", "))?;
    match names.len().checked_sub(N_NAMED) {
        Some(n) if n > 0 => write!(f, " and {n} more"),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_differences_of_a_kind_are_named_and_the_rest_counted() {
        let names = |n: usize| (1..=n).map(|number| format!("v{number}")).collect::<Vec<String>>();
        let check = |missing: usize, expected: &str| {
            let mismatch = Mismatch { missing: names(missing), ..Mismatch::default() };
            assert_eq!(mismatch.to_string(), expected);
        };
        check(0, "");
        check(1, "\n  missing: v1");
        check(4, "\n  missing: v1, v2, v3, v4");
        check(5, "\n  missing: v1, v2, v3, v4 and 1 more");
        check(14, "\n  missing: v1, v2, v3, v4 and 10 more");
        let different = vec![("w".to_string(), "f32[2]".to_string(), "bf16[2]".to_string())];
        let all = Mismatch { missing: names(1), unexpected: names(2), different };
        assert_eq!(all.to_string(), "\n  different: w is f32[2], not bf16[2]\n  missing: v1\n  unexpected: v1, v2");
    }

    #[test]
    fn the_run_that_saves_there_is_named_where_it_is_known() {
        let message = |holder| CheckpointError::InUse { path: PathBuf::from("a"), holder }.to_string();
        assert!(
            message(Some(7)).starts_with("a: another run (process 7) saves its checkpoints there\n"),
            "{}",
            message(Some(7))
        );
        assert!(message(None).starts_with("a: another run saves its checkpoints there\n"), "{}", message(None));
    }

    #[test]
    fn another_model_and_a_dtype_without_a_form_are_named() {
        let mismatch = Mismatch { missing: vec!["w".to_string()], ..Mismatch::default() };
        let error = |is_resumed| CheckpointError::OtherModel {
            path: PathBuf::from("a"),
            mismatch: mismatch.clone(),
            is_resumed,
        };
        assert_eq!(
            error(false).to_string(),
            "a: the checkpoint is of another model:\n  missing: w\nhelp: name the experiment it was made with, or another \
             checkpoint (--checkpoint)"
        );
        assert_eq!(
            error(true).to_string(),
            "a: the checkpoint is of another model or optimizer:\n  missing: w\nhelp: name the experiment it was made with, \
             or leave --resume out to start again"
        );
        let other = CheckpointError::OtherStep { path: PathBuf::from("a"), step: 8, expected: 4 };
        assert_eq!(
            other.to_string(),
            "a: the checkpoint is of step 8, and the best epoch of this run ended with step 4\n\
             help: another run has written there: leave `restore_best` out, and go on from the last checkpoint"
        );
        let path = PathBuf::from("a");
        let unsaveable = CheckpointError::Unsaveable { path, name: "w".to_string(), dtype: DType::S4 };
        assert_eq!(unsaveable.to_string(), "a: cannot save w: safetensors has no s4");
        let fault = Fault::Header { measured: 101, most: 100 };
        assert_eq!(
            CheckpointError::Unsaved { path: PathBuf::from("a"), fault }.to_string(),
            "a: the checkpoint is not saved: the names of its variables and its settings are 101 bytes, expected at most 100\n\
             help: what was there before is unchanged: go on from it"
        );
    }
}
