//! The collectives of a program over several cores, read from the compiler's optimized program.
//!
//! The compiler combines the module's collectives, so there are fewer of them, and the dtypes are those on the wire.
//! Source: the ops' semantics in XLA's `operation_semantics.md`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::loops::{estimated_cycles, n_executions};
use bf16scope_hlo::DType;
use bf16scope_hlo::devices::{Devices, participants};
use bf16scope_hlo::proto::messages::{HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto};

/// Collectives of one kind, with the same group size and array dtype.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Collective {
    /// Its opcode, such as `all-reduce`.
    pub op: String,
    /// The operation of a reduction, as an opcode: `add`.
    pub reduction: Option<String>,
    /// The arrays' dtype.
    pub dtype: String,
    /// How many are executed in one run of the program, with the trip counts of loops if they are known.
    pub n: u64,
    /// The total bytes of one core's arrays: the operands, or for an all-gather the gathered result.
    pub n_bytes: u64,
    /// Devices in each group.
    pub participants: u64,
    /// The compiler's cycles for them; 0 if it gives none.
    pub cycles: u64,
    /// Their total seconds: from the compiler's cycles, or, if it gives none, from the model of
    /// [`Links`](super::Links). `None` on a TPU with unknown links.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// The origin of the largest one: the `op_name` of its metadata.
    pub origin: String,
}

impl Collective {
    /// One collective that adds arrays of a dtype across `participants` devices, with `n_bytes` per core.
    pub fn of_bytes(op: &str, dtype: &str, n_bytes: u64, participants: u64) -> Collective {
        Collective {
            op: op.to_string(),
            reduction: Some("add".to_string()),
            dtype: dtype.to_string(),
            n: 1,
            n_bytes,
            participants,
            cycles: 0,
            seconds: None,
            origin: String::new(),
        }
    }

    /// Whether it adds floats in a dtype of less than 32 bits.
    pub fn is_narrow_sum(&self) -> bool {
        let dtype = DType::from_name(&self.dtype);
        let is_narrow = dtype.is_some_and(|dtype| dtype.is_float() && dtype.bits() < 32);
        is_narrow && self.reduction.as_deref() == Some("add")
    }
}

/// Opcodes, without the suffix `-start` of asynchronous ones.
const COLLECTIVES: [&str; 7] = [
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
];

/// The key of a kind of collectives: opcode, reduction, dtype, group size.
type CollectiveKind = (&'static str, Option<String>, DType, u64);

/// The collectives of an optimized program, in descending order of bytes.
pub(super) fn collectives(optimized: &HloModuleProto, devices: Devices) -> Vec<Collective> {
    let n_executions = n_executions(optimized);
    let mut all: BTreeMap<CollectiveKind, (Collective, u64)> = BTreeMap::new();
    for computation in &optimized.computations {
        let n_runs = n_executions.get(&computation.id).copied().unwrap_or(1);
        for instr in &computation.instructions {
            let opcode = instr.opcode.strip_suffix("-start").unwrap_or(&instr.opcode);
            let Some(&op) = COLLECTIVES.iter().find(|&&op| op == opcode) else { continue };
            let participants = participants(instr, devices) as u64;
            // Small all-gathers become all-reduces of arrays that are zero except for a core's own part: nothing is
            // rounded.
            let name = instr.metadata.as_ref().map_or("", |metadata| metadata.op_name.as_str());
            let reduction = if is_gather(name) { None } else { reduction(optimized, instr) };
            for (dtype, n_bytes) in arrays(op, computation, instr) {
                let kind = (op, reduction.clone(), dtype, participants);
                let (collective, largest) = all.entry(kind).or_insert_with(|| {
                    let collective = Collective {
                        op: op.to_string(),
                        reduction: reduction.clone(),
                        dtype: dtype.to_string(),
                        n: 0,
                        n_bytes: 0,
                        participants,
                        cycles: 0,
                        seconds: None,
                        origin: String::new(),
                    };
                    (collective, 0)
                });
                collective.n = collective.n.saturating_add(n_runs);
                collective.n_bytes = collective.n_bytes.saturating_add(n_bytes.saturating_mul(n_runs));
                let cycles = estimated_cycles(&instr.backend_config).known().saturating_mul(n_runs);
                collective.cycles = collective.cycles.saturating_add(cycles);
                if n_bytes >= *largest {
                    *largest = n_bytes;
                    collective.origin = instr.metadata.as_ref().map_or(String::new(), |it| it.op_name.clone());
                }
            }
        }
    }
    let mut all: Vec<Collective> = all.into_values().map(|(collective, _)| collective).collect();
    all.sort_by_key(|collective| std::cmp::Reverse(collective.n_bytes));
    all
}

/// Whether it gathers, by the name of the op that it was written for, whatever the compiler turned it into.
pub(super) fn is_gather(op_name: &str) -> bool {
    ["all-gather", "all_gather"].contains(&op_name.rsplit('/').next().unwrap_or_default())
}

/// Bytes of one core's arrays, by dtype.
fn arrays(op: &str, computation: &HloComputationProto, instr: &HloInstructionProto) -> BTreeMap<DType, u64> {
    let mut arrays = BTreeMap::new();
    let mut add = |shape: &ShapeProto| {
        let Some(dtype) = DType::from_xla(shape.element_type) else { return };
        let n_elements =
            shape.dimensions.iter().fold(1u64, |n, &dim| n.saturating_mul(u64::try_from(dim).unwrap_or(0)));
        let n_bytes = arrays.entry(dtype).or_insert(0u64);
        *n_bytes = n_bytes.saturating_add(n_elements.saturating_mul(dtype.n_bytes() as u64));
    };
    if op == "all-gather" {
        // The start's result is a pair: inputs and outputs.
        let shape = instr.shape.as_ref();
        let result = if instr.opcode == op { shape } else { shape.and_then(|pair| pair.tuple_shapes.get(1)) };
        result.into_iter().flat_map(leaves).for_each(&mut add);
    } else {
        let operands = instr.operand_ids.iter();
        let operands = operands.filter_map(|id| computation.instructions.iter().find(|instr| instr.id == *id));
        operands.filter_map(|operand| operand.shape.as_ref()).flat_map(leaves).for_each(&mut add);
    }
    arrays
}

fn leaves(shape: &ShapeProto) -> Vec<&ShapeProto> {
    match shape.tuple_shapes.as_slice() {
        [] => vec![shape],
        elements => elements.iter().flat_map(leaves).collect(),
    }
}

/// The opcode of a reduction's computation.
fn reduction(module: &HloModuleProto, instr: &HloInstructionProto) -> Option<String> {
    let id = instr.called_computation_ids.first()?;
    let called = module.computations.iter().find(|computation| computation.id == *id)?;
    let root = called.instructions.iter().find(|instr| instr.id == called.root_id)?;
    Some(root.opcode.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gather_is_no_sum_whatever_it_became() {
        assert!(is_gather("mlp/logits/all-gather") && is_gather("jit(step)/all_gather"));
        assert!(!is_gather("mlp/logits/kernel/all-reduce") && !is_gather(""));
    }
}
