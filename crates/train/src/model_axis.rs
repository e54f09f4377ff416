//! Partitions a training step over the model axis, the devices of each replica.

use super::mesh::SumOf;
use bf16scope_hlo::Module;
use bf16scope_passes::PassError;
use bf16scope_passes::partition::{self, PartitionReport, Rule};

/// Partitions a training step over the `n` devices of each replica, which sum in the dtype of the replicas' sums.
///
/// # Errors
/// Rules that do not fit the step.
pub fn over_model_axis(
    module: &Module,
    n: u32,
    rules: &[Rule],
    sum: SumOf,
) -> Result<(Module, PartitionReport), PassError> {
    let config = partition::Config { sum_in_f32: sum == SumOf::F32, ..partition::Config::new(n as usize, rules) };
    partition::run(module, &config)
}
