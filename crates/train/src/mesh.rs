//! The devices that share a step's work, as axes by name: `mesh: {data: 8}`.
//!
//! Along `data` are **replicas**, as in TPUEstimator: each holds the whole state, takes an equal part of every batch,
//! and computes batch norm statistics over its own part. The loss of a step is the mean over the whole batch: each
//! replica scales its own loss by 1/N, and gradients are summed over replicas in f32, after the cast from bf16. The
//! other keys choose what else replicas share.

use super::program_error::ProgramError;
use bf16scope_hlo::DType;
use bf16scope_model::document;
use bf16scope_model::graph::{Replicas, SumOrder, Tensor};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// The number of devices along each axis, and what replicas share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Replicas, each with an equal part of every batch.
    #[serde(deserialize_with = "replicas")]
    pub data: NonZeroU32,
    /// Devices that each replica is split over, as [`Objective::split`](super::Objective::split) says. Default 1.
    #[serde(default = "one", skip_serializing_if = "is_one", deserialize_with = "replicas")]
    pub model: NonZeroU32,
    /// The number of replicas over which batch norms take their statistics. Default each over its own part.
    #[serde(default, skip_serializing_if = "is_default")]
    pub batch_norm: Statistics,
    /// The dtype in which gradients are summed. Default f32.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sum: SumOf,
    /// How the state is placed. Default whole on each replica.
    #[serde(default, skip_serializing_if = "is_default")]
    pub state: StateOf,
}

/// The replicas over which batch norms take their statistics: `batch_norm: {across: 4}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statistics {
    /// The number of replicas in a group; a divisor of [`Mesh::data`].
    #[serde(deserialize_with = "replicas")]
    pub across: NonZeroU32,
}

impl Default for Statistics {
    /// Each replica alone.
    fn default() -> Self {
        Statistics { across: NonZeroU32::MIN }
    }
}

/// The dtype in which gradients are summed over replicas. How a replica computes its own gradient does not depend on
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumOf {
    /// f32, as TensorFlow's `CrossShardOptimizer`.
    #[default]
    F32,
    /// bf16, as XLA's partitioner sums gradients of bf16 weights: half the bytes between cores, and every addition
    /// rounds. On a CPU, whose all-reduce would sum in f32 and round once, it is [`SumOf::Bf16Ring`].
    Bf16,
    /// bf16 with explicit additions, one after the other by rank. For measuring.
    Bf16Ring,
    /// bf16 with explicit additions, in a binary tree. For measuring.
    Bf16Tree,
}

impl SumOf {
    /// The dtype.
    pub fn dtype(self) -> DType {
        match self {
            SumOf::F32 => DType::F32,
            SumOf::Bf16 | SumOf::Bf16Ring | SumOf::Bf16Tree => DType::BF16,
        }
    }
}

/// The placement of trainable variables and of the optimizer's slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateOf {
    /// Whole on each replica.
    #[default]
    Whole,
    /// Sharded over the replicas: each holds a shard, and updates it; values that the network reads are gathered, after
    /// the cast if it reads casts. Variables whose shards would save no memory stay whole.
    Sharded,
}

/// The number of cores of the largest slice, a v3-2048.
pub const MAX_REPLICAS: u32 = 2048;

fn replicas<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<NonZeroU32, D::Error> {
    let n = document::positive_up_to(deserializer, i64::from(MAX_REPLICAS))?;
    Ok(NonZeroU32::new(n as u32).unwrap_or(NonZeroU32::MIN))
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn is_one(n: &NonZeroU32) -> bool {
    *n == NonZeroU32::MIN
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for Mesh {
    /// One device.
    fn default() -> Self {
        Mesh::replicas(NonZeroU32::MIN)
    }
}

impl Mesh {
    /// `n` replicas that share nothing but the sums of gradients.
    pub fn replicas(n: NonZeroU32) -> Mesh {
        Mesh {
            data: n,
            model: one(),
            batch_norm: Statistics::default(),
            sum: SumOf::default(),
            state: StateOf::default(),
        }
    }

    /// The number of devices: replicas times the devices of each.
    pub fn n_devices(self) -> u32 {
        self.data.get().saturating_mul(self.model.get())
    }

    /// The same mesh with another number of replicas.
    #[must_use]
    pub fn of_replicas(self, n: NonZeroU32) -> Mesh {
        Mesh { data: n, ..self }
    }

    /// The replicas as programs see them.
    pub(super) fn of_program(self) -> Replicas {
        Replicas { n: self.data, statistics: self.batch_norm.across, in_parts: self.state == StateOf::Sharded }
    }

    /// Whether it has more than one device, along either axis.
    pub fn is_parallel(self) -> bool {
        self.n_devices() > 1
    }

    /// Whether several replicas share a batch.
    pub fn has_replicas(self) -> bool {
        self.data.get() > 1
    }

    /// The size of one replica's part of a batch.
    ///
    /// # Errors
    /// [`ProgramError::Replicas`] for a batch that does not split evenly, [`ProgramError::Statistics`] for replicas
    /// that do not split into groups evenly.
    pub fn part_of(self, batch: i64) -> Result<i64, ProgramError> {
        let (n, across) = (self.data.get(), self.batch_norm.across.get());
        if n % across != 0 {
            return Err(ProgramError::Statistics { across, n });
        }
        match batch % i64::from(n) {
            0 => Ok(batch / i64::from(n)),
            _ => Err(ProgramError::Replicas { n, batch }),
        }
    }

    /// A replica's share of a mean over all: x / N.
    pub(super) fn share(self, x: &Tensor) -> Tensor {
        match self.has_replicas() {
            true => x * (1.0 / f64::from(self.data.get())),
            false => x.clone(),
        }
    }

    /// The mesh for a device whose bf16 `all-reduce` sums in a wider dtype.
    pub(super) fn written_out(self) -> Mesh {
        match self.sum {
            SumOf::Bf16 => Mesh { sum: SumOf::Bf16Ring, ..self },
            SumOf::F32 | SumOf::Bf16Ring | SumOf::Bf16Tree => self,
        }
    }

    /// The sum of a gradient over replicas, as f32 whatever the dtype of the sum.
    pub(super) fn sum_gradient(self, x: &Tensor) -> Tensor {
        let in_bf16 = |order| x.rounded_sum_over_replicas(order);
        match self.sum {
            _ if !self.has_replicas() => x.clone(),
            SumOf::F32 => self.sum(x),
            SumOf::Bf16 => x.cast(DType::BF16).sum_over_replicas().cast(x.dtype()),
            SumOf::Bf16Ring => in_bf16(SumOrder::Ring),
            SumOf::Bf16Tree => in_bf16(SumOrder::Tree),
        }
    }

    /// The sum over replicas, at least in f32.
    pub(super) fn sum(self, x: &Tensor) -> Tensor {
        match (self.has_replicas(), x.dtype()) {
            (false, _) => x.clone(),
            (true, DType::BF16 | DType::F16) => x.cast(DType::F32).sum_over_replicas(),
            (true, _) => x.sum_over_replicas(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One replica over several devices used to count as one device.
    #[test]
    fn a_mesh_of_one_axis_is_parallel_whichever_it_is() {
        let n = |n| NonZeroU32::new(n).unwrap();
        for (data, model, is_parallel, has_replicas) in
            [(1, 1, false, false), (2, 1, true, true), (1, 2, true, false), (2, 2, true, true)]
        {
            let mesh = Mesh { model: n(model), ..Mesh::replicas(n(data)) };
            assert_eq!((mesh.is_parallel(), mesh.has_replicas()), (is_parallel, has_replicas), "{data}x{model}");
        }
    }
}
