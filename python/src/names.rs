//! Names of instructions in computations that are called. JAX names what a function holds without where it is called, which XLA's
//! compiler adds when it inlines calls.

use std::collections::BTreeSet;

use bf16scope::hlo::{CompId, Module, Op};

/// The name of an instruction within a call of this name. Older versions of JAX name what a function holds from the program on.
fn within(call: &str, name: &str) -> String {
    let root = |name: &str| name.split_once('/').map(|(root, _)| root.to_string());
    match (call, name) {
        ("", name) => name.to_string(),
        (call, "") => call.to_string(),
        (call, name) if root(name).is_some_and(|first| root(call) == Some(first)) => name.to_string(),
        (call, name) => format!("{call}/{name}"),
    }
}

/// The computations that a module runs, each after those that call it.
fn callers_first(module: &Module) -> Vec<usize> {
    let mut order = Vec::new();
    let mut is_open = vec![false; module.computations.len()];
    let mut stack = vec![(module.entry.0 as usize, false)];
    while let Some((place, is_left)) = stack.pop() {
        if is_left {
            order.push(place);
        } else if !std::mem::replace(&mut is_open[place], true) {
            stack.push((place, true));
            let called = module.computations[place].instructions.iter().flat_map(|instr| instr.op.called());
            stack.extend(called.map(|CompId(called)| (called as usize, false)));
        }
    }
    order.reverse();
    order
}

/// Names instructions by the one place that their computation is called from, or by all places where these have the same name.
pub(crate) fn add_callers(module: &mut Module) {
    // By computation, the names of the calls that it runs in.
    let mut callers: Vec<BTreeSet<String>> = vec![BTreeSet::new(); module.computations.len()];
    callers[module.entry.0 as usize].insert(String::new());
    for place in callers_first(module) {
        let call = match callers[place].len() {
            1 => callers[place].first().cloned().unwrap_or_default(),
            _ => String::new(),
        };
        for instr in &mut module.computations[place].instructions {
            instr.metadata.op_name = within(&call, &instr.metadata.op_name);
            let is_call = matches!(instr.op, Op::Call { .. });
            for CompId(called) in instr.op.called() {
                let name = if is_call { &instr.metadata.op_name } else { &call };
                callers[called as usize].insert(name.clone());
            }
        }
    }
}
