//! Why a buffer is f32, and whether a bf16 scope would have halved it.
//!
//! The optimized program does not contain the reason; it is inferred from the instruction that made the array, its
//! operands, and its name. The first applicable reason is used.

use serde::Serialize;

use super::liveness::{Liveness, Value};
use super::origin::{self, Origin, Phase};
use bf16scope_hlo::{ArrayShape, Computation, DType, InstrId, Instruction, Module, Op};

/// Why a value is f32.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Why {
    /// In words.
    pub reason: String,
    /// Whether bf16 is acceptable by the rules of a bf16 scope: yes for activations and their gradients; no for
    /// variables, their gradients, optimizer slots, statistics and the loss.
    pub could_be_bf16: bool,
}

fn keep(reason: impl Into<String>) -> Option<Why> {
    Some(Why { reason: reason.into(), could_be_bf16: false })
}

fn halve(reason: impl Into<String>) -> Option<Why> {
    Some(Why { reason: reason.into(), could_be_bf16: true })
}

/// Why an f32 value is f32; `None` for other dtypes.
pub(super) fn why_f32(module: &Module, liveness: &Liveness, value: &Value, origin: &Origin) -> Option<Why> {
    if value.shape.dtype != DType::F32 {
        return None;
    }
    let step = liveness.steps[value.made_at];
    let computation = module.comp(liveness.frames[step.frame].computation);
    let instruction = computation.instr(step.instruction);
    if matches!(instruction.op, Op::Parameter { .. }) {
        return parameter(module, value, origin);
    }
    let (inside, maker) = match origin::leaf_root(module, instruction, value.leaf) {
        Some((comp, root)) => (module.comp(comp), root),
        None => (computation, instruction),
    };
    let layer = origin.layer.as_str();
    if layer == "loss" || layer.starts_with("loss/") || layer.starts_with("metric") {
        return keep("the loss is computed in f32");
    }
    if origin.phase == Phase::Backward
        && let Some(name) = variable_of_shape(module, &value.shape, layer)
    {
        return keep(format!("gradient of the f32 variable {name}"));
    }
    if value.shape.rank() <= 1 {
        return keep("a vector: statistics, a scale or an offset, kept in f32");
    }
    match &maker.op {
        Op::Convert if operand_dtype(inside, maker, 0) == Some(DType::BF16) => {
            return halve("a convert of a bf16 array to f32 is what is kept");
        }
        Op::Convolution(_) | Op::Dot { .. } => {
            let dtypes = [0, 1].map(|at| operand_dtype(inside, maker, at));
            return if dtypes.contains(&Some(DType::BF16)) {
                halve("the f32 result of a product of bf16 operands")
            } else {
                halve("a product of f32 operands")
            };
        }
        Op::Reduce { .. } => return keep("a reduction, kept in f32"),
        _ => {}
    }
    let wide =
        maker.operands.iter().map(|&id| inside.instr(id)).find(|operand| operand.shape.dtype() == Some(DType::F32));
    match wide.filter(|wide| !is_small(wide)) {
        Some(wide) => halve(format!("{} of the f32 {}", maker.op.opcode(), named(wide))),
        None => halve(format!("{} computes in f32", maker.op.opcode())),
    }
}

fn is_small(instruction: &Instruction) -> bool {
    matches!(instruction.op, Op::Broadcast { .. } | Op::Constant(_))
}

/// An instruction's scoped name, or its own if it has none.
fn named(instruction: &Instruction) -> String {
    match instruction.metadata.op_name.as_str() {
        "" => format!("%{}", instruction.name),
        name => name.to_string(),
    }
}

fn operand_dtype(computation: &Computation, instruction: &Instruction, at: usize) -> Option<DType> {
    let id: InstrId = *instruction.operands.get(at)?;
    computation.instr(id).shape.dtype()
}

fn parameter(module: &Module, value: &Value, origin: &Origin) -> Option<Why> {
    if let Some((variable, slot)) = origin.op_name.rsplit_once('/')
        && is_parameter(module, variable)
    {
        return keep(format!("the optimizer's state ({slot}), f32 unless the experiment says otherwise"));
    }
    let is_donated = module.input_output_alias.iter().any(|alias| {
        let entry = module.entry();
        let parameter = usize::try_from(alias.parameter_number).ok().and_then(|n| entry.parameters().get(n).copied());
        parameter.is_some_and(|id| entry.instr(id).shape.as_array() == Some(&value.shape))
    });
    if is_donated {
        keep("a variable: a bf16 scope keeps variables in f32")
    } else {
        halve("an f32 input of the program")
    }
}

/// Whether the program has a parameter with this name: a name below it is then an optimizer's slot.
fn is_parameter(module: &Module, name: &str) -> bool {
    let entry = module.entry();
    entry.parameters().into_iter().any(|id| entry.instr(id).metadata.op_name == name)
}

/// An f32 entry parameter in the layer with the same dims: a variable.
fn variable_of_shape(module: &Module, shape: &ArrayShape, layer: &str) -> Option<String> {
    let entry = module.entry();
    let is_variable = |instr: &&Instruction| {
        let array = instr.shape.as_array();
        matches!(instr.op, Op::Parameter { .. })
            && array.is_some_and(|array| array.dtype == DType::F32 && array.dims == shape.dims)
            && instr.metadata.op_name.starts_with(layer)
    };
    entry.instructions.iter().find(is_variable).map(|instr| instr.metadata.op_name.clone())
}
