//! What `eval` and `predict` begin with: a checkpoint, and whether it is of the experiment's function.

use std::path::Path;

use crate::task::Task;
use crate::train::Resumption;
use crate::train::checkpoint::Checkpoint;

/// Reads a checkpoint that is of the task's function, or of another one where that was asked for. What has changed and may
/// is a warning.
///
/// # Errors
/// A file that is no checkpoint; one of another function.
pub(super) fn read(path: &Path, task: &dyn Task, other_function: bool) -> anyhow::Result<Checkpoint> {
    let checkpoint = Checkpoint::read(path)?;
    for change in (Resumption { other_function }).check_task(path, &checkpoint, task)? {
        tracing::warn!("{}: {change}", path.display());
    }
    Ok(checkpoint)
}
