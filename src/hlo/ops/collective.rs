//! Ops over devices: all-reduce.

pub(crate) mod grad;

use super::{RuleError, operands};
use crate::hlo::{CompId, Module, Shape};

const OP: &str = "all-reduce";

/// Attributes of `all-reduce`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllReduce {
    /// The reduction.
    pub to_apply: CompId,
    /// Which replicas reduce together; empty = all.
    pub replica_groups: ReplicaGroups,
    /// `channel_id`, if set: partitions take part.
    pub channel_id: Option<i64>,
    /// `use_global_device_ids`.
    pub use_global_device_ids: bool,
    /// `constrain_layout`.
    pub constrain_layout: bool,
}

/// `replica_groups`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaGroups {
    /// `{{0,1},{2,3}}`.
    List(Vec<Vec<i64>>),
    /// `[2,2]<=[4]` or `[2,2]<=[2,2]T(1,0)`.
    Iota {
        /// Number of groups, size of a group.
        dims: Vec<i64>,
        /// Dims the iota is reshaped to.
        reshape_dims: Vec<i64>,
        /// The transpose that follows; empty = none.
        transpose_perm: Vec<i64>,
    },
}

/// Every replica (or device) of a group gets the reduction of the group's values.
///
/// # Shapes
/// N arrays → the same (a tuple if N > 1), N ≥ 1.
///
/// # Types
/// Any array. `to_apply`: two scalars of one dtype of the operands' class → that scalar (compilers widen bf16's).
///
/// # Errors
/// Groups that are empty or do not name each of 0, 1, …, n-1 exactly once; `use_global_device_ids` without groups or
/// without a channel. How many replicas there are is the compile options' affair and not checked.
///
/// # Source
/// `ShapeVerifier::HandleAllReduce`, `CheckReplicaGroups`, `GetCollectiveOpGroupMode`.
pub(super) fn all_reduce(module: &Module, all_reduce: &AllReduce, operands: &[&Shape]) -> Result<Shape, RuleError> {
    if operands.is_empty() {
        return Err(RuleError::new("all-reduce/arity", "all-reduce has 0 operands, expected 1 or more"));
    }
    let arrays = operands::arrays(OP, operands)?;
    check_mode(all_reduce)?;
    check_groups(&all_reduce.replica_groups)?;
    let signature = operands::signature(module, OP, "to_apply", all_reduce.to_apply)?;
    let dtype = match signature.result.dtype() {
        Some(dtype) if arrays.iter().all(|array| array.dtype.class() == dtype.class()) => dtype,
        Some(_) | None => arrays[0].dtype,
    };
    operands::reducer(module, OP, "to_apply", all_reduce.to_apply, &[dtype])?;
    Ok(operands::one_or_tuple(arrays.into_iter().map(|array| operands::show(array).into()).collect()))
}

impl ReplicaGroups {
    /// Whether no group is named: all take part in one.
    pub fn is_all(&self) -> bool {
        match self {
            ReplicaGroups::List(groups) => groups.is_empty(),
            ReplicaGroups::Iota { .. } => false,
        }
    }
}

fn check_mode(all_reduce: &AllReduce) -> Result<(), RuleError> {
    if let Some(channel) = all_reduce.channel_id.filter(|&channel| channel < 1) {
        let message = format!("channel_id is {channel}, expected 1 or more, or none");
        return Err(RuleError::new("all-reduce/channel", message));
    }
    let help = if !all_reduce.use_global_device_ids {
        return Ok(());
    } else if all_reduce.channel_id.is_none() {
        "set channel_id, so that partitions take part"
    } else if all_reduce.replica_groups.is_all() {
        "list the groups by global device id"
    } else {
        return Ok(());
    };
    let message = "use_global_device_ids is true, expected also a channel_id and replica_groups";
    Err(RuleError::new("all-reduce/mode", message).with_help(help))
}

/// Groups name each of 0, 1, …, n-1 once.
fn check_groups(groups: &ReplicaGroups) -> Result<(), RuleError> {
    let error = |message: String| Err(RuleError::new("all-reduce/groups", message));
    match groups {
        ReplicaGroups::List(groups) => {
            if let Some(i) = groups.iter().position(Vec::is_empty) {
                return error(format!("replica_groups[{i}] is empty, expected 1 or more ids"));
            }
            let mut ids: Vec<i64> = groups.iter().flatten().copied().collect();
            ids.sort_unstable();
            match ids.iter().zip(0i64..).find(|&(&id, expected)| id != expected) {
                Some((id, expected)) => error(format!(
                    "replica_groups={groups:?} has {id} where {expected} comes next, expected each of 0 to {} once",
                    ids.len() - 1
                )),
                None => Ok(()),
            }
        }
        ReplicaGroups::Iota { dims, reshape_dims, transpose_perm } => {
            let product = |dims: &[i64]| {
                let in_range = dims.iter().all(|&dim| dim >= 1);
                dims.iter().try_fold(1i64, |product, &dim| product.checked_mul(dim)).filter(|_| in_range)
            };
            if dims.len() != 2 || product(dims).is_none() || product(dims) != product(reshape_dims) {
                return error(format!(
                    "replica_groups={dims:?}<={reshape_dims:?}, expected [groups, size of a group] and as many ids on both sides"
                ));
            }
            if transpose_perm.is_empty() {
                return Ok(());
            }
            if transpose_perm.len() != reshape_dims.len() {
                return error(format!(
                    "replica_groups transposes {reshape_dims:?} by {transpose_perm:?}, expected a permutation of its dims"
                ));
            }
            operands::axes(OP, "replica_groups transpose", transpose_perm, reshape_dims.len()).map(|_| ())
        }
    }
}
