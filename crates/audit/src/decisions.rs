//! What lowering decides otherwise, and how far off the results are but for that.
//!
//! A comparison of floats gives another predicate where what it compares is closer than a rounding: a ReLU's mask where the
//! sum before it is nearly 0. Whatever such a predicate selects then jumps, in whole and not by a rounding, and so does
//! everything after it. How near to 0 the sum is depends on all that leads to it, so a few instructions in f32 do not decide
//! as f32 does: they only draw other predicates. The part of an error that comes from decisions is seen by giving the lowered
//! module those of f32.
//!
//! Comparisons in called computations are not seen: those of a `select-and-scatter`, of a sort, of a loop.

use serde::Serialize;

use super::pairs::Pairs;
use super::{AuditError, Auditor, device, largest_error, taps};
use bf16scope_hlo::{DType, InstrId, Literal, Module, Op};
use bf16scope_passes::amp::Policy;

/// What a comparison decides otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DecisionRow {
    /// The comparison.
    pub instruction: String,
    /// Its scoped name.
    pub op_name: String,
    /// Its source, `file:line`, if it is known.
    pub source: String,
    /// Elements that are decided otherwise.
    pub n_differing: u64,
    /// All.
    pub n_elements: u64,
}

/// A lowered module beside itself with the decisions of f32.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Decisions {
    /// Comparisons that decide otherwise than in f32, in the program's order.
    pub rows: Vec<DecisionRow>,
    /// The largest scaled error of a result where all comparisons decide as in f32.
    pub error: f64,
}

impl Auditor<'_> {
    /// What comparisons of floats decide otherwise under a policy, and the error that is left where they decide as f32 does;
    /// none where all decide as f32 does, and of a module that takes its arrays as a tuple.
    ///
    /// # Errors
    /// A policy that contradicts itself, or a plugin that fails.
    pub fn decisions(&self, policy: &Policy) -> Result<Option<Decisions>, AuditError> {
        let lowered = self.flushed(&self.lowered(policy)?);
        let pairs = Pairs::new(self.module, &lowered);
        let pairs: Vec<_> = comparisons(self.module).into_iter().filter_map(|id| pairs.of_reference(id)).collect();
        let entry = lowered.entry();
        // XLA takes the arrays of one tuple, and no more arrays beside it.
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
        // All of them: where the first decide as f32 does, others would differ that did not.
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
