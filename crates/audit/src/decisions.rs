//! Comparisons that flip under lowering, and the error of the results if they did not.
//!
//! A comparison of floats gives another predicate where its operands are closer than one rounding, as a ReLU's mask does where
//! the sum before it is nearly 0. The selected values then change entirely, and so does everything computed from them. All
//! instructions before the comparison contribute to the sum, so a few of them in f32 do not restore f32's predicates: they only
//! flip others. Running the lowered module with f32's predicates shows how much of an error comes from flipped comparisons.
//!
//! Comparisons in called computations are not seen: those of a `select-and-scatter`, of a sort, of a loop.

use serde::Serialize;

use super::pairs::Pairs;
use super::{AuditError, Auditor, device, largest_error, taps};
use bf16scope_hlo::{DType, InstrId, Literal, Module, Op};
use bf16scope_passes::amp::Policy;

/// A comparison that gives other predicates than in f32.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DecisionRow {
    /// The comparison.
    pub instruction: String,
    /// Its scoped name.
    pub op_name: String,
    /// Its source, `file:line`, if it is known.
    pub source: String,
    /// Elements whose predicate differs.
    pub n_differing: u64,
    /// All elements.
    pub n_elements: u64,
}

/// The flipped comparisons of a lowered module, and its error with f32's predicates.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Decisions {
    /// Comparisons whose predicates differ from f32's, in the program's order.
    pub rows: Vec<DecisionRow>,
    /// The largest scaled error of a result if every comparison gives f32's predicates.
    pub error: f64,
}

impl Auditor<'_> {
    /// The comparisons of floats that a policy flips, and the error that remains with f32's predicates; `None` if no comparison
    /// flips, and for a module whose arguments are a tuple.
    ///
    /// # Errors
    /// A policy that contradicts itself, or a plugin that fails.
    pub fn decisions(&self, policy: &Policy) -> Result<Option<Decisions>, AuditError> {
        let lowered = self.flushed(&self.lowered(policy)?);
        let pairs = Pairs::new(self.module, &lowered);
        let pairs: Vec<_> = comparisons(self.module).into_iter().filter_map(|id| pairs.of_reference(id)).collect();
        let entry = lowered.entry();
        // XLA accepts a single tuple of arrays as the only argument.
        let is_tupled = entry.parameters().into_iter().any(|id| entry.instr(id).shape.as_array().is_none());
        if pairs.is_empty() || is_tupled {
            return Ok(None);
        }
        let inputs = self.upload(&lowered)?;
        let decided = |module: &Module, ids: &[InstrId], inputs: &[_]| {
            let outputs = device::run(&self.client, &taps::alone(module, ids), &device::buffers(inputs))?;
            outputs.iter().map(device::fetch).collect::<Result<Vec<Literal>, AuditError>>()
        };
        let [references, others]: [Vec<InstrId>; 2] =
            [pairs.iter().map(|pair| pair.reference).collect(), pairs.iter().map(|pair| pair.lowered).collect()];
        let in_f32 = decided(self.module, &references, &self.inputs)?;
        let in_bf16 = decided(&lowered, &others, &inputs)?;
        let mut rows = Vec::new();
        for ((pair, here), there) in pairs.iter().zip(&in_f32).zip(&in_bf16) {
            let (Literal::Array { bytes: here, .. }, Literal::Array { bytes: there, .. }) = (here, there) else {
                continue;
            };
            let n_differing = here.iter().zip(there).filter(|(here, there)| here != there).count() as u64;
            if n_differing > 0 {
                let instr = self.module.entry().instr(pair.reference);
                rows.push(DecisionRow {
                    instruction: instr.name.clone(),
                    op_name: instr.metadata.op_name.clone(),
                    source: self.module.source_text(&instr.metadata),
                    n_differing,
                    n_elements: here.len() as u64,
                });
            }
        }
        if rows.is_empty() {
            return Ok(None);
        }
        // All comparisons are replaced: correcting some of them would flip others.
        let mut inputs = inputs;
        let mut module = lowered;
        let n_given = inputs.len();
        let entry = &mut module.computations[module.entry.idx()];
        for (number, (id, values)) in others.into_iter().zip(&in_f32).enumerate() {
            let Literal::Array { shape, bytes } = values else { continue };
            let instr = &mut entry.instructions[id.idx()];
            instr.op = Op::parameter((n_given + number) as i64);
            instr.operands.clear();
            let buffer = self.client.buffer_from_host(bytes, shape.dtype, &shape.dims, 0)?;
            inputs.push(device::hold(buffer)?);
        }
        let rows_of_results = self.result_rows(&module, &inputs)?;
        Ok(Some(Decisions { rows, error: largest_error(&rows_of_results) }))
    }
}

/// Comparisons of floats in the entry.
fn comparisons(module: &Module) -> Vec<InstrId> {
    let entry = module.entry();
    let is_of_floats = |id: &InstrId| {
        let instr = entry.instr(*id);
        let operand = instr.operands.first().and_then(|&id| entry.instr(id).shape.as_array());
        let is_array = instr.shape.as_array().is_some_and(|shape| shape.dtype == DType::Pred && !shape.has_dynamic());
        matches!(instr.op, Op::Compare { .. }) && is_array && operand.is_some_and(|shape| shape.dtype.is_float())
    };
    entry.ids().filter(is_of_floats).collect()
}
