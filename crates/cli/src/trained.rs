//! What `eval` and `predict` begin with: a checkpoint, and whether it is of the experiment's function.

use std::path::Path;

use anyhow::bail;

use bf16scope_model::task::Task;
use bf16scope_train::Resumption;
use bf16scope_train::checkpoint::Checkpoint;

/// What of a checkpoint `eval` and `predict` take.
#[derive(Debug, clap::Args)]
pub(super) struct TrainedArgs {
    /// Go on although the checkpoint is of a network that computes something else, as long as its variables fit
    #[arg(long)]
    other_function: bool,
    /// Take variables as the last step left them, although the checkpoint has averages of them
    #[arg(long)]
    without_averages: bool,
}

impl TrainedArgs {
    /// Reads a checkpoint that is of the task's function, or of another one where that was asked for. What has changed and
    /// may is a warning.
    ///
    /// # Errors
    /// A file that is no checkpoint; one of another function; one without averages where they were to be left out.
    pub fn read(&self, path: &Path, task: &dyn Task) -> anyhow::Result<Checkpoint> {
        let checkpoint = Checkpoint::read(path)?;
        for change in (Resumption { other_function: self.other_function }).check_task(path, &checkpoint, task)? {
            tracing::warn!("{}: {change}", path.display());
        }
        match (self.without_averages, checkpoint.has_averages()) {
            (false, _) => Ok(checkpoint),
            (true, true) => Ok(checkpoint.without_averages()),
            (true, false) => bail!(
                "{}: the checkpoint has no averages, which --without-averages leaves out\n\
                 help: leave the flag out; `train: {{average: …}}` makes averages",
                path.display()
            ),
        }
    }
}

/// `, by averages`, where a checkpoint has them: the end of a line.
pub(super) fn by_averages(checkpoint: &Checkpoint) -> &'static str {
    if checkpoint.has_averages() { ", by averages" } else { "" }
}
