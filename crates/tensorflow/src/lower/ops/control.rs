//! Ops that pass their inputs on, and the control-flow ops that `flow` lowers.
//!
//! Source: `control_flow_ops.cc`, `functional_ops.cc` of TensorFlow's kernels.

use std::rc::Rc;

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::super::list::{List, ListKind};
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::Comparison;

pub(super) const TABLE: Table = &[
    ("Identity", pass),
    ("RefIdentity", pass),
    ("IdentityN", pass_all),
    ("StopGradient", pass),
    ("PreventGradient", pass),
    ("Snapshot", pass),
    ("GuaranteeConst", pass),
    ("CheckNumerics", pass),
    ("CheckNumericsV2", pass),
    ("PlaceholderWithDefault", pass),
    ("Print", pass),
    ("OptimizationBarrier", pass_all),
    ("Enter", pass),
    ("RefEnter", pass),
    ("NextIteration", pass),
    ("RefNextIteration", pass),
    ("LoopCond", pass),
    ("_Arg", pass),
    ("_Retval", pass),
    ("Switch", both),
    ("RefSwitch", both),
    ("NoOp", |_| Ok(Vec::new())),
    ("ControlTrigger", |_| Ok(Vec::new())),
    ("PartitionedCall", |c| c.inline("f", 0)),
    ("StatefulPartitionedCall", |c| c.inline("f", 0)),
    ("RemoteCall", |c| c.inline("f", 1)),
    ("While", |c| c.while_loop()),
    ("StatelessWhile", |c| c.while_loop()),
    ("If", condition),
    ("StatelessIf", condition),
    ("Case", case),
    ("StatelessCase", case),
    ("FakeParam", fake),
];

fn pass(c: &mut Call<'_, '_>) -> Outputs {
    Ok(vec![c.input(0)?.clone()])
}

fn pass_all(c: &mut Call<'_, '_>) -> Outputs {
    Ok(c.inputs.clone())
}

/// The switch of a loop whose body is being lowered: both outputs have the value, since the loop continues.
fn both(c: &mut Call<'_, '_>) -> Outputs {
    let data: Value = c.input(0)?.clone();
    Ok(vec![data.clone(), data])
}

/// A residual of another branch, which nothing reads: zeros.
fn fake(c: &mut Call<'_, '_>) -> Outputs {
    let Ok(dtype) = c.dtype_of("dtype") else {
        return Ok(vec![Value::List(Rc::new(List::zeros(ListKind::zeros(0, None))))]);
    };
    let dims = c.node.dims("shape").filter(|dims| dims.iter().all(|dim| *dim >= 0));
    let dims = dims.ok_or_else(|| {
        Problem::new("its `shape` is not known, and HLO needs it before the program runs")
            .with_help("give the inputs of the branches shapes that are known, the batch's size too")
    })?;
    c.check_dims(&dims)?;
    c.one(c.e().full(dtype, &dims, 0.0))
}

/// A condition of numbers holds where it is not 0.
fn condition(c: &mut Call<'_, '_>) -> Outputs {
    let selector = c.array(0)?;
    if c.dtype(selector) != DType::Pred {
        c.inputs[0] = Value::Array(c.e().compare(Comparison::Ne, selector, c.like(selector, 0.0)));
    }
    let name = |name: &str| c.node.function(name).map(str::to_string);
    match (name("then_branch"), name("else_branch")) {
        (Some(on_true), Some(on_false)) => c.branches(&[on_true, on_false]),
        _ => Err(Problem::new("it has no `then_branch` and `else_branch`")),
    }
}

fn case(c: &mut Call<'_, '_>) -> Outputs {
    let list = c.node.list("branches").map(|list| list.func.iter().map(|func| func.name.clone()).collect::<Vec<_>>());
    match list {
        Some(names) if !names.is_empty() => c.branches(&names),
        _ => Err(Problem::new("it has no `branches`")),
    }
}
