//! Custom VJPs in reverse mode: checks what a rule returned, and finds gradients that would be lost.

use super::{GradError, Place, passes_variation};
use bf16scope_hlo::{Computation, CustomVjp, Emitter, InstrId, Op, POISON, Shape};
use std::collections::BTreeSet;
use std::fmt;

/// Why a custom VJP gives no gradient.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum VjpProblem {
    /// The rule gave more or fewer cotangents than there are inputs.
    Count {
        /// How many it gave.
        found: usize,
        /// How many inputs there are.
        expected: usize,
    },
    /// The rule gave an id that names nothing: poison without an error, or one that the computation has not.
    NoValue {
        /// For which input.
        input: (usize, String),
        /// What it gave.
        found: InstrId,
    },
    /// The rule gave a cotangent of another shape than the input's.
    Shape {
        /// For which input.
        input: (usize, String),
        /// What it gave.
        found: Box<Shape>,
        /// The input's shape.
        expected: Box<Shape>,
    },
    /// What the rule gave is neither constant nor computed from the cotangent it was given.
    NotLinear {
        /// For which input.
        input: (usize, String),
    },
    /// The array depends on a variable by a way past the inputs.
    Lost {
        /// The variable.
        variable: Box<Place>,
    },
    /// The array is marked as having one, and the rule is not there.
    NoRule,
}

impl fmt::Display for VjpProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VjpProblem::Count { found, expected } => {
                write!(f, "its custom VJP gives {found} cotangents, expected {expected}: one for each input")
            }
            VjpProblem::NoValue { input: (idx, name), found } if *found == POISON => {
                write!(f, "its custom VJP gives POISON for input {idx}, {name}, expected a cotangent")
            }
            VjpProblem::NoValue { input: (idx, name), found } => write!(
                f,
                "its custom VJP gives instruction {} for input {idx}, {name}, which the computation has not\n  help: an \
                 id is one of the graph it was made in",
                found.0
            ),
            VjpProblem::Shape { input: (idx, name), found, expected } => write!(
                f,
                "its custom VJP gives {found} for input {idx}, {name}, expected {expected}\n  help: a cotangent has the \
                 dtype and dims of its input"
            ),
            VjpProblem::NotLinear { input: (idx, name) } => write!(
                f,
                "what its custom VJP gives for input {idx}, {name}, is not computed from the cotangent of the \
                 result\n  help: a VJP is linear in that cotangent; an id of another graph names some other instruction \
                 here"
            ),
            VjpProblem::Lost { variable } => write!(
                f,
                "it also depends on {variable}, which is not behind an input of its custom VJP: that gradient would be \
                 lost\n  help: make it an input; a rule may give zeros for it"
            ),
            VjpProblem::NoRule => write!(
                f,
                "it has a custom VJP, whose rule no module holds: the instructions that made it would give another \
                 gradient\n  help: take gradients in the graph, by passes::grad::gradients, before Graph::finish"
            ),
        }
    }
}

/// The cotangents of the inputs by the rule, in order; those that are wanted are checked.
pub(super) fn cotangents(
    e: &Emitter,
    result: InstrId,
    custom: &CustomVjp,
    g: InstrId,
    wanted: &[bool],
) -> Result<Vec<InstrId>, GradError> {
    let given = (custom.rule)(e, g, wanted);
    if let Some(error) = e.error() {
        return Err(GradError::Emit(Box::new(error)));
    }
    let found = check(e, custom, g, wanted, &given);
    match found {
        Some(problem) => {
            let at = e.with_module(|module| Place::of(module, e.comp(), result));
            Err(GradError::CustomVjp { at, problem })
        }
        None => Ok(given),
    }
}

fn check(e: &Emitter, custom: &CustomVjp, g: InstrId, wanted: &[bool], given: &[InstrId]) -> Option<VjpProblem> {
    let expected = custom.inputs.len();
    if given.len() != expected {
        return Some(VjpProblem::Count { found: given.len(), expected });
    }
    e.with_module(|module| {
        let computation = module.comp(e.comp());
        let all = custom.inputs.iter().zip(given).enumerate().zip(wanted);
        all.filter(|(_, wanted)| **wanted).find_map(|((idx, (&input, &found)), _)| {
            let name = || (idx, Place::of(module, e.comp(), input).to_string());
            let Some(instr) = computation.instructions.get(found.idx()) else {
                return Some(VjpProblem::NoValue { input: name(), found });
            };
            let expected = &computation.instr(input).shape;
            if !same_array(&instr.shape, expected) {
                let (found, expected) = (Box::new(instr.shape.clone()), Box::new(expected.clone()));
                return Some(VjpProblem::Shape { input: name(), found, expected });
            }
            let is_linear = depends_on(computation, found, g) || is_constant(computation, found);
            (!is_linear).then(|| VjpProblem::NotLinear { input: name() })
        })
    })
}

/// Whether both are of one dtype and dims.
fn same_array(a: &Shape, b: &Shape) -> bool {
    a.as_array().is_some() && a.dtype() == b.dtype() && a.dims() == b.dims()
}

/// Whether a value is computed from `g`.
fn depends_on(computation: &Computation, id: InstrId, g: InstrId) -> bool {
    let mut pending = BTreeSet::from([id]);
    while let Some(id) = pending.pop_last() {
        if id == g {
            return true;
        }
        pending.extend(computation.instr(id).operands.iter().filter(|operand| **operand >= g));
    }
    false
}

/// Whether a value is computed from constants alone.
fn is_constant(computation: &Computation, id: InstrId) -> bool {
    let mut pending = BTreeSet::from([id]);
    while let Some(id) = pending.pop_last() {
        let instr = computation.instr(id);
        if instr.operands.is_empty() && !matches!(instr.op, Op::Constant(_) | Op::Iota { .. }) {
            return false;
        }
        pending.extend(&instr.operands);
    }
    true
}

/// A variable that `result` depends on past the inputs of its custom VJP, by a way that has a gradient. `varied` says
/// for all that is before `result` whether it depends on a variable, and `inputs` what has a custom VJP.
pub(super) fn lost_variable(
    computation: &Computation,
    result: InstrId,
    varied: &[bool],
    wrt: &BTreeSet<InstrId>,
    inputs: &dyn Fn(InstrId) -> Option<Vec<InstrId>>,
) -> Option<InstrId> {
    let own: BTreeSet<InstrId> = inputs(result)?.into_iter().collect();
    let mut pending = BTreeSet::from([result]);
    while let Some(id) = pending.pop_last() {
        let instr = computation.instr(id);
        if id != result && wrt.contains(&id) {
            return Some(id);
        }
        let next = match inputs(id) {
            Some(inputs) if id != result => inputs,
            _ if !passes_variation(instr) => Vec::new(),
            _ => instr.operands.clone(),
        };
        pending.extend(next.into_iter().filter(|operand| varied[operand.idx()] && !own.contains(operand)));
    }
    None
}
