//! Collectives between the cores of a slice, and the ops that mark a TPU program.
//!
//! Source: `cross_replica_ops.cc` and `tpu_replicated_input_op` of TensorFlow's TPU kernels.

use super::super::Value;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::{AllReduce, ReplicaGroups};
use bf16scope_hlo::{BinaryOp, Op};

pub(super) const TABLE: Table = &[
    ("CrossReplicaSum", |c| {
        let x = c.array(0)?;
        // Groups of replicas, one a row; without groups all replicas sum together.
        let groups = match c.inputs.len() {
            0 | 1 => Vec::new(),
            _ => {
                let known = c.known(1)?;
                let size = known.dims.last().copied().unwrap_or(1).max(1) as usize;
                let ids = c.ints(1)?;
                ids.chunks(size).map(<[i64]>::to_vec).collect()
            }
        };
        let to_apply = c.e().scalar_computation(BinaryOp::Add, c.dtype(x));
        let all_reduce = AllReduce {
            to_apply,
            replica_groups: ReplicaGroups::List(groups),
            channel_id: None,
            use_global_device_ids: false,
            constrain_layout: false,
        };
        c.one(c.e().emit(Op::AllReduce(Box::new(all_reduce)), &[x], None))
    }),
    ("TPUReplicatedInput", |c| Ok(vec![c.input(0)?.clone()])),
    ("TPUReplicatedOutput", |c| {
        let value = c.input(0)?.clone();
        let n = c.node.int("num_replicas").unwrap_or(1);
        match (1..=1 << 16).contains(&n) {
            true => Ok(vec![value; n as usize]),
            false => Err(Problem::new(format!("it is for {n} replicas"))),
        }
    }),
    ("TPUReplicateMetadata", |_| Ok(vec![Value::Nothing])),
    ("TPUCompilationResult", |_| Ok(vec![Value::Nothing])),
];
