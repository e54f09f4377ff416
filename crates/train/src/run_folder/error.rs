//! Errors of run folders.

use std::io;
use std::path::{Path, PathBuf};

/// Why a run folder cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The folder already holds a run.
    #[error("{}: another run is recorded here\nhelp: name another folder, or go on with that run", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// The folder for a new run holds other files.
    #[error("{}: the folder holds {found}, and is not a run's\nhelp: name another one, which need not be there", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
        /// One of the files.
        found: String,
    },
    /// Another process records there.
    #[error("{}: another process is recording a run here\nhelp: wait for its end, or name another folder", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// The path is not a run.
    #[error("{}: {found}\nhelp: {help}", path.display())]
    NoRun {
        /// The path.
        path: PathBuf,
        /// The content that was found instead.
        found: String,
        /// Which path to name instead.
        help: String,
    },
    /// `run.json` is invalid.
    #[error("{}: {problem}\nhelp: without this file the folder's curves can be drawn all the same: move it elsewhere", path.display())]
    About {
        /// The file.
        path: PathBuf,
        /// The message of the JSON parser.
        problem: String,
    },
    /// A name that a scalar may not have.
    #[error("a scalar is called `{name}`: {problem}\nhelp: give the metric another name")]
    Name {
        /// The name.
        name: String,
        /// Why not.
        problem: &'static str,
    },
    /// Steps that do not increase.
    #[error("step {step} was to be recorded after step {last}, expected a later one")]
    Order {
        /// The step.
        step: u64,
        /// The previous step.
        last: u64,
    },
    /// An error of the system.
    #[error("{}: cannot {doing}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl RunError {
    /// Wraps an error of the system.
    pub(super) fn io<'a>(path: &'a Path, doing: &'static str) -> impl FnOnce(io::Error) -> RunError + 'a {
        move |source| RunError::Io { path: path.to_path_buf(), doing, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_another_process_records_in_is_named() {
        assert_eq!(
            RunError::Busy { path: PathBuf::from("runs/a") }.to_string(),
            "runs/a: another process is recording a run here\nhelp: wait for its end, or name another folder"
        );
    }
}
