//! What a training program minimises, and how.

use super::mesh::{Mesh, StateOf};
use super::program_error::ProgramError;
use bf16scope_model::optim::{Average, LossScale, Update};
use bf16scope_passes::partition::Rule;
use bf16scope_passes::tuning::Tuning;
use std::num::NonZeroU32;

/// How a training program minimises the loss of its task.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// How variables change.
    pub update: Update,
    /// How the loss is scaled before it is differentiated; the loss reported is not.
    pub loss_scale: LossScale,
    /// In how many micro-batches a batch is gone through, one after the other, before the update. 1 is all at once.
    pub accumulate: NonZeroU32,
    /// The devices that share a step.
    pub mesh: Mesh,
    /// What the devices of each replica split, where it has several.
    pub split: Vec<Rule>,
    /// How variables are averaged over steps; what is learnt does not depend on it.
    pub average: Option<Average>,
    /// Patterns of the variables that train (`*` is any text, `?` any character); others are frozen. Of none all train.
    pub trainable: Vec<String>,
    /// How the program is made cheaper on its target.
    pub tuning: Tuning,
}

impl Default for Objective {
    fn default() -> Self {
        let (update, loss_scale) = (Update::default(), LossScale::default());
        Objective {
            update,
            loss_scale,
            accumulate: NonZeroU32::MIN,
            mesh: Mesh::default(),
            split: Vec::new(),
            average: None,
            trainable: Vec::new(),
            tuning: Tuning::none(),
        }
    }
}

impl Objective {
    /// Whether a batch of so many examples can be gone through so. Gives one replica's part of it.
    ///
    /// # Errors
    /// A batch that does not split in equal parts for the replicas, or theirs in equal micro-batches.
    pub fn check_batch(&self, batch: i64) -> Result<i64, ProgramError> {
        if self.mesh.model.get() == 1 && !self.split.is_empty() {
            return Err(ProgramError::NoModelAxis);
        }
        if self.mesh.model.get() > 1 && self.mesh.state == StateOf::Sharded {
            return Err(ProgramError::ShardedParts);
        }
        if self.mesh.model.get() > 1 && self.tuning.transpose_input {
            return Err(ProgramError::TransposedParts);
        }
        let part = self.mesh.part_of(batch)?;
        let n = self.accumulate.get();
        match part % i64::from(n) {
            0 => Ok(part),
            _ => Err(ProgramError::Accumulate { n, batch: part }),
        }
    }
}
