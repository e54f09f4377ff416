//! What can be wrong with the folder of a run.

use std::io;
use std::path::{Path, PathBuf};

/// What is wrong with the folder of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A new run was to be recorded where another one is.
    #[error("{}: another run is recorded here\nhelp: name another folder, or go on with that run", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A new run was to be recorded among other files.
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
    /// There is no run.
    #[error("{}: {found}\nhelp: {help}", path.display())]
    NoRun {
        /// The path.
        path: PathBuf,
        /// What there is.
        found: String,
        /// What to name instead.
        help: String,
    },
    /// `run.json` cannot be understood.
    #[error("{}: {problem}\nhelp: without this file the folder's curves can be drawn all the same: move it elsewhere", path.display())]
    About {
        /// The file.
        path: PathBuf,
        /// In the JSON reader's words.
        problem: String,
    },
    /// A name that a scalar cannot have.
    #[error("a scalar is called `{name}`: {problem}\nhelp: give the metric another name")]
    Name {
        /// The name.
        name: String,
        /// Why not.
        problem: &'static str,
    },
    /// Steps that do not go up.
    #[error("step {step} was to be recorded after step {last}, expected a later one")]
    Order {
        /// The step.
        step: u64,
        /// The one before.
        last: u64,
    },
    /// What the system says.
    #[error("{}: cannot {doing}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl RunError {
    /// What to make of the system's answer.
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
