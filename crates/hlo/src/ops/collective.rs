//! Ops over devices: all-reduce.

pub(crate) mod grad;

use super::{Callees, RuleError, operands};
use crate::{CompId, Shape};

const OP: &str = "all-reduce";

/// Attributes of `all-reduce`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllReduce {
    /// The reduction.
    pub to_apply: CompId,
    /// The groups of replicas that reduce together; empty = all.
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
        /// Dims to which the iota is reshaped.
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
/// without a channel. The number of replicas belongs to the compile options and is not checked.
///
/// # Source
/// `ShapeVerifier::HandleAllReduce`, `CheckReplicaGroups`, `GetCollectiveOpGroupMode`.
pub(super) fn all_reduce(
    callees: &dyn Callees,
    all_reduce: &AllReduce,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    if operands.is_empty() {
        return Err(RuleError::new("all-reduce/arity", "all-reduce takes 1 or more operands, got 0"));
    }
    let arrays = operands::arrays(OP, operands)?;
    check_mode(all_reduce)?;
    check_groups("all-reduce/groups", &all_reduce.replica_groups)?;
    let signature = operands::signature(callees, OP, "to_apply", all_reduce.to_apply)?;
    let dtype = match signature.result.dtype() {
        Some(dtype) if arrays.iter().all(|array| array.dtype.class() == dtype.class()) => dtype,
        Some(_) | None => arrays[0].dtype,
    };
    operands::reducer(callees, OP, "to_apply", all_reduce.to_apply, &[dtype])?;
    Ok(operands::one_or_tuple(arrays.into_iter().map(|array| operands::show(array).into()).collect()))
}

impl ReplicaGroups {
    /// Whether no group is named, so that all devices form one.
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

/// Checks that groups name each of 0, 1, …, n-1 once.
pub(crate) fn check_groups(rule: &'static str, groups: &ReplicaGroups) -> Result<(), RuleError> {
    let error = |message: String| Err(RuleError::new(rule, message));
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

#[cfg(test)]
mod tests {
    use super::super::testing::expect_in;
    use super::super::{BinaryOp, Op};
    use super::*;
    use crate::DType;
    use crate::Module;
    use expect_test::expect as text;

    fn op(to_apply: CompId, change: impl FnOnce(&mut AllReduce)) -> Op {
        let mut all_reduce = AllReduce {
            to_apply,
            replica_groups: ReplicaGroups::List(Vec::new()),
            channel_id: None,
            use_global_device_ids: false,
            constrain_layout: false,
        };
        change(&mut all_reduce);
        Op::AllReduce(Box::new(all_reduce))
    }

    fn iota(dims: &[i64], reshape_dims: &[i64], transpose_perm: &[i64]) -> ReplicaGroups {
        ReplicaGroups::Iota {
            dims: dims.to_vec(),
            reshape_dims: reshape_dims.to_vec(),
            transpose_perm: transpose_perm.to_vec(),
        }
    }

    #[test]
    fn accepts() {
        let mut module = Module::new("test");
        let add = module.scalar_computation(BinaryOp::Add, DType::F32);
        expect_in(&module, &op(add, |_| ()), &["f32[2]"], "", text!["f32[2]"]);
        expect_in(&module, &op(add, |_| ()), &["f32[2]", "bf16[3,<=4]"], "", text!["(f32[2], bf16[3,<=4])"]);
        let groups = ReplicaGroups::List(vec![vec![0, 3], vec![2, 1]]);
        expect_in(&module, &op(add, |a| a.replica_groups = groups), &["f32[2]"], "", text!["f32[2]"]);
        let global = |a: &mut AllReduce| {
            (a.channel_id, a.use_global_device_ids, a.replica_groups) =
                (Some(1), true, iota(&[2, 4], &[4, 2], &[1, 0]));
        };
        expect_in(&module, &op(add, global), &["f32[2]"], "", text!["f32[2]"]);
    }

    #[test]
    fn rejects() {
        let mut module = Module::new("test");
        let add = module.scalar_computation(BinaryOp::Add, DType::F32);
        let groups = |groups: &[&[i64]]| {
            let groups = groups.iter().map(|group| group.to_vec()).collect();
            op(add, |a| a.replica_groups = ReplicaGroups::List(groups))
        };
        let iota = |a: &[i64], b: &[i64], c: &[i64]| op(add, |op| op.replica_groups = iota(a, b, c));
        expect_in(
            &module,
            &op(add, |_| ()),
            &[],
            "",
            text!["all-reduce/arity: all-reduce takes 1 or more operands, got 0"],
        );
        expect_in(
            &module,
            &op(add, |_| ()),
            &["token[]"],
            "",
            text!["operands/kind: all-reduce operand 0 is token[], expected an array"],
        );
        expect_in(
            &module,
            &op(add, |_| ()),
            &["s32[2]"],
            "",
            text![[r#"
                operands/signature: all-reduce to_apply is (f32[], f32[]) -> f32[], expected (s32[], s32[]) -> s32[]"#]],
        );
        expect_in(
            &module,
            &op(add, |a| a.channel_id = Some(0)),
            &["f32[2]"],
            "",
            text!["all-reduce/channel: channel_id is 0, expected 1 or more, or none"],
        );
        expect_in(
            &module,
            &op(add, |a| a.use_global_device_ids = true),
            &["f32[2]"],
            "",
            text![[r#"
            all-reduce/mode: use_global_device_ids is true, expected also a channel_id and replica_groups
              help: set channel_id, so that partitions take part"#]],
        );
        let global = |a: &mut AllReduce| (a.channel_id, a.use_global_device_ids) = (Some(1), true);
        expect_in(
            &module,
            &op(add, global),
            &["f32[2]"],
            "",
            text![[r#"
            all-reduce/mode: use_global_device_ids is true, expected also a channel_id and replica_groups
              help: list the groups by global device id"#]],
        );
        expect_in(
            &module,
            &groups(&[&[0], &[]]),
            &["f32[2]"],
            "",
            text!["all-reduce/groups: replica_groups[1] is empty, expected 1 or more ids"],
        );
        expect_in(
            &module,
            &groups(&[&[0, 1], &[1]]),
            &["f32[2]"],
            "",
            text![[r#"
                all-reduce/groups: replica_groups=[[0, 1], [1]] has 1 where 2 comes next, expected each of 0 to 2 once"#]],
        );
        expect_in(
            &module,
            &groups(&[&[0, i64::MAX]]),
            &["f32[2]"],
            "",
            text![[r#"
                all-reduce/groups: replica_groups=[[0, 9223372036854775807]] has 9223372036854775807 where 1 comes next, expected each of 0 to 1 once"#]],
        );
        expect_in(
            &module,
            &groups(&[&[-1, 0]]),
            &["f32[2]"],
            "",
            text![[r#"
                all-reduce/groups: replica_groups=[[-1, 0]] has -1 where 0 comes next, expected each of 0 to 1 once"#]],
        );
        expect_in(
            &module,
            &iota(&[2, 2], &[8], &[]),
            &["f32[2]"],
            "",
            text![[r#"
                all-reduce/groups: replica_groups=[2, 2]<=[8], expected [groups, size of a group] and as many ids on both sides"#]],
        );
        expect_in(
            &module,
            &iota(&[i64::MAX, 2], &[i64::MAX, 2], &[]),
            &["f32[2]"],
            "",
            text![[r#"
                all-reduce/groups: replica_groups=[9223372036854775807, 2]<=[9223372036854775807, 2], expected [groups, size of a group] and as many ids on both sides"#]],
        );
        expect_in(
            &module,
            &iota(&[2, 2], &[2, 2], &[0]),
            &["f32[2]"],
            "",
            text!["all-reduce/groups: replica_groups transposes [2, 2] by [0], expected a permutation of its dims"],
        );
        expect_in(
            &module,
            &iota(&[2, 2], &[2, 2], &[1, 1]),
            &["f32[2]"],
            "",
            text![[r#"
                operands/axis-twice: all-reduce replica_groups transpose={1,1} names axis 1 twice, expected each axis at most once"#]],
        );
    }
}
