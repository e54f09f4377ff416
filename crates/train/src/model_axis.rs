//! A training step over the model axis: what the devices of a replica split, and what they add up in.

use super::mesh::SumOf;
use bf16scope_hlo::Module;
use bf16scope_passes::partition::{PartitionError, PartitionReport, Rule, partition, sum_in_f32};

/// Lays a training step over the `n` devices of each replica, which sum as its replicas do.
///
/// # Errors
/// Rules that do not fit the step.
pub fn over_model_axis(
    module: Module,
    n: u32,
    rules: &[Rule],
    sum: SumOf,
) -> Result<(Module, PartitionReport), PartitionError> {
    let module = if sum == SumOf::F32 { sum_in_f32(&module) } else { module };
    partition(&module, n as usize, rules)
}
