//! The devices that share a step's work, as axes by name: `mesh: {data: 8}`.
//!
//! Along `data` are **replicas**, as TPUEstimator has them: each holds the whole state, takes an equal part of every batch,
//! and computes the statistics of a batch norm over its own part. The loss of a step is the mean over the whole batch: each
//! replica scales its own by 1/N, and gradients are summed over replicas in f32, after the cast from bf16.

use super::objective::ProgramError;
use crate::graph::Tensor;
use crate::hlo::DType;
use crate::models::yaml;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// How many devices there are along each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Mesh {
    /// Replicas, each with an equal part of every batch.
    #[serde(deserialize_with = "replicas")]
    pub data: NonZeroU32,
}

/// The cores of the largest slice, a v3-2048.
pub const MAX_REPLICAS: u32 = 2048;

fn replicas<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<NonZeroU32, D::Error> {
    let n = yaml::positive_up_to(deserializer, i64::from(MAX_REPLICAS))?;
    Ok(NonZeroU32::new(n as u32).unwrap_or(NonZeroU32::MIN))
}

impl Default for Mesh {
    /// One device.
    fn default() -> Self {
        Mesh { data: NonZeroU32::MIN }
    }
}

impl Mesh {
    /// So many replicas.
    pub fn replicas(n: NonZeroU32) -> Mesh {
        Mesh { data: n }
    }

    /// Whether it is more than one device.
    pub fn is_parallel(self) -> bool {
        self.data.get() > 1
    }

    /// One replica's part of a batch.
    ///
    /// # Errors
    /// [`ProgramError::Replicas`] for a batch that does not split evenly.
    pub fn part_of(self, batch: i64) -> Result<i64, ProgramError> {
        let n = self.data.get();
        match batch % i64::from(n) {
            0 => Ok(batch / i64::from(n)),
            _ => Err(ProgramError::Replicas { n, batch }),
        }
    }

    /// A replica's share of a mean over all: x / N.
    pub(super) fn share(self, x: &Tensor) -> Tensor {
        match self.is_parallel() {
            true => x * (1.0 / f64::from(self.data.get())),
            false => x.clone(),
        }
    }

    /// The sum over replicas, in f32 at least.
    pub(super) fn sum(self, x: &Tensor) -> Tensor {
        match (self.is_parallel(), x.dtype()) {
            (false, _) => x.clone(),
            (true, DType::BF16 | DType::F16) => x.cast(DType::F32).sum_over_replicas(),
            (true, _) => x.sum_over_replicas(),
        }
    }
}
