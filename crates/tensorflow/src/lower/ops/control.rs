//! Ops that pass their inputs on, and the control-flow ops that `flow` lowers.
//!
//! Source: `control_flow_ops.cc`, `functional_ops.cc` of TensorFlow's kernels.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;

pub(super) const TABLE: Table = &[
    ("Identity", pass),
    ("RefIdentity", pass),
    ("IdentityN", pass_all),
    ("StopGradient", pass),
    ("PreventGradient", pass),
    ("Snapshot", pass),
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

fn condition(c: &mut Call<'_, '_>) -> Outputs {
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
