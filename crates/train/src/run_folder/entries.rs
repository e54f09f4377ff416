//! Whether a folder holds a run, the checkpoints of one that starts, or other files.

use super::{ABOUT, CHECKPOINT, METRICS, RunError};
use std::fs;
use std::io;
use std::path::Path;

/// Whether a run is recorded there.
pub(super) fn holds_run(path: &Path) -> bool {
    [ABOUT, METRICS].iter().any(|name| path.join(name).exists())
}

/// Whether nothing is there, or a folder with no more than the lock of a run that starts.
pub(super) fn is_free(path: &Path) -> bool {
    let is_lock = |name: &str| name == format!(".{CHECKPOINT}.lock");
    fs::symlink_metadata(path).is_err() || matches!(first(path, is_lock), Ok(None))
}

/// Refuses a folder that holds anything but the checkpoints of the run that is to be recorded there.
pub(super) fn check_empty(path: &Path) -> Result<(), RunError> {
    if holds_run(path) {
        return Err(RunError::Exists { path: path.to_path_buf() });
    }
    let is_checkpoint = |name: &str| {
        let is_beside = name.strip_prefix("checkpoint-").is_some_and(|rest| rest.ends_with(".safetensors"));
        is_beside || name == CHECKPOINT || name.strip_prefix('.').is_some_and(|rest| rest.starts_with(CHECKPOINT))
    };
    match first(path, is_checkpoint).map_err(RunError::io(path, "list the folder"))? {
        None => Ok(()),
        Some(entry) => Err(RunError::Taken { path: path.to_path_buf(), found: entry }),
    }
}

/// The name of one of a folder's entries, but for those that are left out.
fn first(path: &Path, is_left_out: impl Fn(&str) -> bool) -> io::Result<Option<String>> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !is_left_out(&name) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}
