//! Finds the layers whose values are summed across cores in floats of less than 32 bits.
//!
//! The compiler combines collectives, and a combined one carries the metadata of one of its parts. Each part still has
//! its own reader, the `get-tuple-element` that takes its result, with the metadata of the summed op; without one, the
//! producer of the operand is used.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::collectives::is_gather;
use super::explain::{Origin, Origins};
use bf16scope_hlo::proto::decode;
use bf16scope_hlo::verify::verify_ids;
use bf16scope_hlo::{CompId, Computation, DType, InstrId, Instruction, Module, Op};

/// A value that is summed across cores in less than 32 bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NarrowSum {
    /// The collective's opcode, such as `all-reduce`.
    pub op: String,
    /// The dtype of the sum.
    pub dtype: String,
    /// The scoped name of the summed value, such as `bert/layer0/dense2/dot`; empty if unknown.
    pub op_name: String,
    /// The user's file and line, `net.py:12`; empty if unknown.
    pub source: String,
    /// Bytes of one core's arrays, each counted once.
    pub n_bytes: u64,
}

/// The narrow sums of an optimized program with valid ids, in descending order of bytes. Sums of one op and line are
/// merged.
pub fn narrow_sums(optimized: &Module) -> Vec<NarrowSum> {
    let mut origins = None;
    let mut all: BTreeMap<(String, String, String), NarrowSum> = BTreeMap::new();
    for (at, computation) in optimized.computations.iter().enumerate() {
        let ids = (0..computation.instructions.len()).map(|index| InstrId(index as u32));
        for id in ids.filter(|&id| is_sum(optimized, computation.instr(id))) {
            let instr = computation.instr(id);
            let op = instr.op.opcode().trim_end_matches("-start").to_string();
            for (place, &operand) in instr.operands.iter().enumerate() {
                let Some(shape) = computation.instr(operand).shape.as_array().filter(|shape| is_narrow(shape.dtype))
                else {
                    continue;
                };
                let origins = origins.get_or_insert_with(|| Origins::new(optimized));
                let Origin { op_name, source, .. } = summed(origins, CompId(at as u32), computation, id, place);
                let dtype = shape.dtype.to_string();
                let sum = all.entry((dtype.clone(), op_name.clone(), source.clone())).or_insert_with(|| NarrowSum {
                    op: op.clone(),
                    dtype,
                    op_name: op_name.clone(),
                    source: source.clone(),
                    n_bytes: 0,
                });
                let n_elements: u64 = shape.dims.iter().map(|&dim| u64::try_from(dim).unwrap_or(0)).product();
                sum.n_bytes = sum.n_bytes.saturating_add(n_elements.saturating_mul(shape.dtype.n_bytes() as u64));
            }
        }
    }
    let mut all: Vec<NarrowSum> = all.into_values().collect();
    all.sort_by_key(|sum| std::cmp::Reverse(sum.n_bytes));
    all
}

/// The same for the compiler's output: a serialized `HloModuleProto`.
///
/// # Errors
/// The bytes are not a module; the error is a sentence.
pub fn read_narrow_sums(optimized: &[u8]) -> Result<Vec<NarrowSum>, String> {
    let module = decode::from_bytes(optimized).map_err(|error| error.to_string())?;
    verify_ids(&module).map_err(|errors| errors.to_string())?;
    Ok(narrow_sums(&module))
}

fn is_narrow(dtype: DType) -> bool {
    dtype.is_float() && dtype.bits() < 32
}

/// Whether a collective adds.
fn is_sum(module: &Module, instr: &Instruction) -> bool {
    let is_reduction = ["all-reduce", "all-reduce-start", "reduce-scatter"].contains(&&*instr.op.opcode());
    let adds = |comp: &CompId| {
        let called = module.comp(*comp);
        called.instr(called.root).op.opcode() == "add"
    };
    is_reduction && !is_gather(&instr.metadata.op_name) && instr.op.called().first().is_some_and(adds)
}

/// The origin of one operand of a collective.
fn summed<'o>(origins: &'o Origins, comp: CompId, computation: &Computation, id: InstrId, place: usize) -> &'o Origin {
    if let [_] = computation.instr(id).operands[..] {
        return origins.of_instr(comp, id);
    }
    let takes = |reader: &Instruction| match reader.op {
        Op::GetTupleElement { index } => reader.operands[0] == id && index == place as i64,
        _ => false,
    };
    let part = computation.instructions.iter().position(takes).map(|index| InstrId(index as u32));
    let part = part.filter(|&part| !computation.instr(part).metadata.op_name.is_empty());
    origins.of_instr(comp, part.unwrap_or(computation.instr(id).operands[place]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::text;

    const SUMS: &str = r#"
HloModule step, is_scheduled=true, replica_count=8

add {
  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT c = bf16[] add(a, b)
}

wide {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY step {
  x = bf16[4,8]{1,0} parameter(0), metadata={op_name="x"}
  y = bf16[2,8]{1,0} parameter(1), metadata={op_name="net/a/y" source_file="net.py" source_line=3}
  z = f32[4]{0} parameter(2), metadata={op_name="z"}
  pair = (bf16[4,8]{1,0}, bf16[2,8]{1,0}) all-reduce(x, y), replica_groups={}, to_apply=add, metadata={op_name="net/b/dot"}
  first = bf16[4,8]{1,0} get-tuple-element(pair), index=0, metadata={op_name="net/b/dot" source_file="net.py" source_line=9}
  second = bf16[2,8]{1,0} get-tuple-element(pair), index=1
  whole = f32[4]{0} all-reduce(z), replica_groups={}, to_apply=wide, metadata={op_name="net/c/dot"}
  whole.2 = bf16[4,8]{1,0} all-reduce(first), replica_groups={}, to_apply=add, metadata={op_name="net/d/all-gather"}
  whole.3 = bf16[2,8]{1,0} all-reduce(second), replica_groups={}, to_apply=add, metadata={op_name="net/e/dot" source_file="net.py" source_line=12}
  ROOT t = (f32[4]{0}, bf16[4,8]{1,0}, bf16[2,8]{1,0}) tuple(whole, whole.2, whole.3)
}
"#;

    #[test]
    fn every_narrow_sum_has_its_layer_and_line_and_wide_ones_and_gathers_have_none() {
        let module = text::parse(SUMS, "m").unwrap();
        let described = |it: &NarrowSum| format!("{} {} {} {} {}", it.op, it.dtype, it.op_name, it.source, it.n_bytes);
        let sums: Vec<String> = narrow_sums(&module).iter().map(described).collect();
        assert_eq!(
            sums,
            [
                "all-reduce bf16 net/b/dot net.py:9 64",
                "all-reduce bf16 net/a/y net.py:3 32",
                "all-reduce bf16 net/e/dot net.py:12 32"
            ]
        );
    }
}
