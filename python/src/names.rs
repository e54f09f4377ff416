//! Names of instructions in computations that are called. JAX names what a function holds without where it is called, which XLA's
//! compiler adds when it inlines calls.

use std::collections::BTreeSet;

use bf16scope::hlo::{CompId, Module, Op};

/// The name of an instruction within a call of this name.
fn within(call: &str, name: &str) -> String {
    match (call, name) {
        ("", name) => name.to_string(),
        (call, "") => call.to_string(),
        (call, name) => format!("{call}/{name}"),
    }
}

/// Names instructions by the one place that their computation is called from, or by all places where these have the same name.
pub(crate) fn add_callers(module: &mut Module) {
    // By computation, the names of the calls that it runs in. Callers come last.
    let mut callers: Vec<BTreeSet<String>> = vec![BTreeSet::new(); module.computations.len()];
    let entry = module.entry.0 as usize;
    callers[entry].insert(String::new());
    for place in (0..module.computations.len()).rev() {
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
