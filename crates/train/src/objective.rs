//! The objective of a training program: update rule, loss scale, micro-batches, mesh.

use super::mesh::{Mesh, StateOf};
use super::program_error::ProgramError;
use bf16scope_model::optim::{Average, LossScale, Update};
use bf16scope_passes::partition::Rule;
use bf16scope_passes::tuning::Tuning;
use std::num::NonZeroU32;

/// How a training program minimises its task's loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// The update rule of variables.
    pub update: Update,
    /// How the loss is scaled before it is differentiated; the reported loss is unscaled.
    pub loss_scale: LossScale,
    /// The number of micro-batches of a batch, made one after the other before the update.
    pub accumulate: NonZeroU32,
    /// The devices that share a step.
    pub mesh: Mesh,
    /// The parameters that the devices of each replica split, if it has several.
    pub split: Vec<Rule>,
    /// The average of variables over steps; training does not depend on it.
    pub average: Option<Average>,
    /// Patterns of the trainable variables (`*` is any text, `?` any character); others are frozen. Without patterns
    /// all train.
    pub trainable: Vec<String>,
    /// The optimisations for the target.
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
    /// Checks that a batch splits over replicas and micro-batches. Returns the size of one replica's part.
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
