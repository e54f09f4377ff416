//! TensorFlow's own HLO beside ours: functions of the same instructions give the same bits.

mod fixtures;
mod run;

use bf16scope_hlo::proto::decode;
use bf16scope_hlo::{InstrId, Literal, Module, verify};
use bf16scope_tensorflow::{Choice, Graph, lower};
use fixtures::unpacked;
use std::collections::BTreeMap;

/// How often the results need each op, by its result's shape. Ops that only move data do not count, and converts to their
/// operand's dtype.
fn arithmetic(module: &Module) -> BTreeMap<String, usize> {
    const MOVES: [&str; 6] = ["parameter", "constant", "tuple", "reshape", "broadcast", "transpose"];
    let entry = module.entry();
    let mut is_needed = vec![false; entry.instructions.len()];
    let mut pending = vec![entry.root];
    let mut counts = BTreeMap::new();
    while let Some(id) = pending.pop() {
        if std::mem::replace(&mut is_needed[id.idx()], true) {
            continue;
        }
        let instr = &entry.instructions[id.idx()];
        let (opcode, shape) = (instr.op.opcode(), instr.shape.without_layout());
        let is_same = |operand: &InstrId| entry.instructions[operand.idx()].shape.without_layout() == shape;
        let is_moved = MOVES.contains(&&*opcode) || opcode == "convert" && instr.operands.iter().all(is_same);
        if !is_moved {
            *counts.entry(format!("{opcode} {shape}")).or_default() += 1;
        }
        pending.extend(&instr.operands);
    }
    counts
}

#[test]
fn functions_of_the_same_instructions_give_the_same_bits() {
    for (name, n_results) in [("bridge_elementwise", 2), ("bridge_step", 5)] {
        let graph = Graph::read(&unpacked(&format!("{name}.pb")), name).unwrap();
        let results: Vec<String> = (0..n_results).map(|at| format!("out{at}")).collect();
        let lowered = lower(&graph, &Choice { name: Some(results.join(",")), size_of: &|_, _| None }).unwrap();
        verify(&lowered.module).unwrap();
        let theirs = decode::from_bytes(&unpacked(&format!("{name}.hlo.pb"))).unwrap();
        assert_eq!(arithmetic(&lowered.module), arithmetic(&theirs), "{name}");
        let input = |(seed, dims): (usize, &[i64])| {
            let n = dims.iter().product::<i64>() as usize;
            let values: Vec<f32> = (0..n).map(|at| ((at * 37 + seed * 11) % 64) as f32 / 16.3 - 1.97).collect();
            Literal::from_elements(dims, &values)
        };
        let dims = lowered.roles.inputs.iter().map(|input| &input.shape.dims[..]);
        let inputs: Vec<Literal> = dims.enumerate().map(input).collect();
        let [ours, theirs] = [&lowered.module, &theirs].map(|module| run::run(module, &inputs).unwrap());
        assert_eq!(ours.len(), n_results, "{name}");
        assert_eq!(ours, theirs, "{name}");
    }
}
