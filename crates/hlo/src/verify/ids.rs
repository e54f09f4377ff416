//! Step one: every id refers to something that exists and comes earlier, calls do not cycle, nothing nests too deep.
//!
//! Nothing here recurses, or indexes without a check: the module is as an importer or a fuzzer left it.

use super::{Errors, MAX_CALL_DEPTH, MAX_TUPLE_DEPTH};
use crate::ops::RuleError;
use crate::{CompId, Instruction, Literal, Module, Op, Shape};

pub(super) fn check(module: &Module, errors: &mut Errors<'_>) {
    let n_computations = module.computations.len();
    if module.entry.idx() >= n_computations {
        let message = format!("entry is computation {}, expected one of {n_computations} computations", module.entry.0);
        errors.module(RuleError::new("ids/entry", message));
    }
    for (comp, computation) in comps(module) {
        let n_instructions = computation.instructions.len();
        if n_instructions == 0 {
            let message = "the computation has 0 instructions, expected 1 or more";
            errors.computation(comp, RuleError::new("ids/empty", message));
        } else if computation.root.idx() >= n_instructions {
            let message = format!("root is instruction {}, expected one of {n_instructions}", computation.root.0);
            errors.computation(comp, RuleError::new("ids/root", message));
        }
        for id in computation.ids() {
            if errors.is_full() {
                return;
            }
            let instruction = computation.instr(id);
            for error in broken_ids(module, instruction, id.0) {
                errors.instruction(comp, id, error);
            }
        }
    }
    if let Some(layout) = &module.entry_layout
        && layout.parameters.iter().chain([&layout.result]).any(nests_too_deep)
    {
        errors.module(too_deep("entry_computation_layout"));
    }
    if errors.list.is_empty() {
        check_calls(module, errors);
    }
}

/// All computations with their ids.
pub(super) fn comps(module: &Module) -> impl Iterator<Item = (CompId, &crate::Computation)> {
    (0u32..).map(CompId).zip(&module.computations)
}

/// Whether tuples nest deeper than [`MAX_TUPLE_DEPTH`].
pub(super) fn nests_too_deep(shape: &Shape) -> bool {
    let mut open = vec![(shape, 0)];
    while let Some((shape, depth)) = open.pop() {
        if let Shape::Tuple(elements) = shape {
            if depth == MAX_TUPLE_DEPTH {
                return true;
            }
            open.extend(elements.iter().map(|element| (element, depth + 1)));
        }
    }
    false
}

fn literal_nests_too_deep(literal: &Literal) -> bool {
    let mut open = vec![(literal, 0)];
    while let Some((literal, depth)) = open.pop() {
        if let Literal::Tuple(elements) = literal {
            if depth == MAX_TUPLE_DEPTH {
                return true;
            }
            open.extend(elements.iter().map(|element| (element, depth + 1)));
        }
    }
    false
}

fn too_deep(role: &str) -> RuleError {
    let message = format!("{role} nests tuples deeper than {MAX_TUPLE_DEPTH}, expected at most {MAX_TUPLE_DEPTH}");
    RuleError::new("ids/tuple-depth", message)
}

fn broken_ids(module: &Module, instruction: &Instruction, id: u32) -> Vec<RuleError> {
    let mut broken = Vec::new();
    for (i, operand) in instruction.operands.iter().enumerate().filter(|(_, operand)| operand.0 >= id) {
        let message = format!("operand {i} is instruction {}, expected one before this, which is {id}", operand.0);
        broken.push(RuleError::new("ids/operand", message));
    }
    for predecessor in instruction.control_predecessors.iter().filter(|predecessor| predecessor.0 >= id) {
        let message =
            format!("control predecessor is instruction {}, expected one before this, which is {id}", predecessor.0);
        broken.push(RuleError::new("ids/control-predecessor", message));
    }
    let n_computations = module.computations.len();
    for called in instruction.op.called().into_iter().filter(|called| called.idx() >= n_computations) {
        let message = format!("calls computation {}, expected one of {n_computations} computations", called.0);
        broken.push(RuleError::new("ids/called", message));
    }
    if nests_too_deep(&instruction.shape) {
        broken.push(too_deep("shape"));
    }
    match &instruction.op {
        Op::Constant(literal) if literal_nests_too_deep(literal) => {
            broken.push(too_deep("literal"));
        }
        Op::CustomCall(call) if call.operand_layouts.iter().any(nests_too_deep) => {
            broken.push(too_deep("operand_layout_constraints"));
        }
        _ => {}
    }
    broken
}

/// Which computations each computation calls, each once.
fn call_graph(module: &Module) -> Vec<Vec<usize>> {
    let callees = |computation: &crate::Computation| {
        let mut callees: Vec<usize> =
            computation.instructions.iter().flat_map(|i| i.op.called()).map(CompId::idx).collect();
        callees.sort_unstable();
        callees.dedup();
        callees
    };
    module.computations.iter().map(callees).collect()
}

/// Checks that there are no cycles, no calls of the entry, no chains longer than [`MAX_CALL_DEPTH`]. All ids exist.
fn check_calls(module: &Module, errors: &mut Errors<'_>) {
    let graph = call_graph(module);
    for (comp, callees) in (0u32..).map(CompId).zip(&graph) {
        if callees.contains(&module.entry.idx()) {
            let message = format!("calls the entry computation {}, expected any other", module.entry().name);
            errors.computation(comp, RuleError::new("ids/entry-called", message));
        }
    }
    /// The state of a computation in the depth-first walk.
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        /// Finished, with the length of the longest chain of calls below it, itself included.
        Done(usize),
    }
    let mut marks = vec![Mark::New; graph.len()];
    let mut deepest = (0, 0);
    for start in 0..graph.len() {
        if marks[start] != Mark::New {
            continue;
        }
        marks[start] = Mark::Open;
        let mut path = vec![(start, 0)];
        while let Some((comp, next)) = path.last_mut() {
            let Some(&callee) = graph[*comp].get(*next) else {
                let below = graph[*comp].iter().map(|&callee| match marks[callee] {
                    Mark::Done(depth) => depth,
                    Mark::New | Mark::Open => 0,
                });
                marks[*comp] = Mark::Done(below.max().unwrap_or(0) + 1);
                path.pop();
                continue;
            };
            *next += 1;
            match marks[callee] {
                Mark::Done(_) => {}
                Mark::New => {
                    marks[callee] = Mark::Open;
                    path.push((callee, 0));
                }
                Mark::Open => {
                    let from = path.iter().position(|&(comp, _)| comp == callee).unwrap_or(0);
                    let cycle = path[from..].iter().map(|&(comp, _)| comp).chain([callee]);
                    let names: Vec<&str> = cycle.map(|comp| module.computations[comp].name.as_str()).collect();
                    let message = format!("calls cycle: {}", names.join(" -> "));
                    errors.computation(CompId(callee as u32), RuleError::new("ids/call-cycle", message));
                }
            }
        }
        if let Mark::Done(depth) = marks[start] {
            deepest = deepest.max((depth, start));
        }
    }
    let (depth, start) = deepest;
    if depth > MAX_CALL_DEPTH {
        let message = format!("calls nest {depth} deep, expected at most {MAX_CALL_DEPTH}");
        errors.computation(CompId(start as u32), RuleError::new("ids/call-depth", message));
    }
}
