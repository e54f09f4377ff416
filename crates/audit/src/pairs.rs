//! Pairs instructions of the lowered entry with those of the f32 module: equal name, opcode and dims. A product that
//! was rewritten to a TPU's arithmetic is paired with the call in its place, and a sum that is written part by part
//! with the reshape of the whole.

use std::collections::BTreeMap;

use bf16scope_hlo::{InstrId, Module, Op, Shape};

/// An instruction in both entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// In the f32 module.
    pub reference: InstrId,
    /// In the lowered module.
    pub lowered: InstrId,
}

/// All pairs of the two entries.
#[derive(Clone, Debug)]
pub(super) struct Pairs {
    by_reference: BTreeMap<InstrId, InstrId>,
    by_lowered: BTreeMap<InstrId, InstrId>,
}

impl Pairs {
    pub(super) fn new(reference: &Module, lowered: &Module) -> Pairs {
        let named: BTreeMap<&str, InstrId> =
            lowered.entry().ids().map(|id| (lowered.entry().instr(id).name.as_str(), id)).collect();
        let mut pairs = Pairs { by_reference: BTreeMap::new(), by_lowered: BTreeMap::new() };
        for id in reference.entry().ids() {
            let instr = reference.entry().instr(id);
            let Some(&other_id) = named.get(instr.name.as_str()) else { continue };
            let other = lowered.entry().instr(other_id);
            let is_rewritten = instr.op.precision().is_some() && matches!(other.op, Op::Call { .. });
            // A sum over an array that was assembled from parts is assembled from sums.
            let is_of_parts = matches!((&instr.op, &other.op), (Op::Reduce { .. }, Op::Reshape));
            let is_same = is_rewritten || is_of_parts || instr.op.opcode() == other.op.opcode();
            if is_same && differ_in_floats_only(&instr.shape, &other.shape) {
                pairs.by_reference.insert(id, other_id);
                pairs.by_lowered.insert(other_id, id);
            }
        }
        pairs
    }

    /// The pair of an instruction of the f32 module.
    pub(super) fn of_reference(&self, reference: InstrId) -> Option<Pair> {
        self.by_reference.get(&reference).map(|&lowered| Pair { reference, lowered })
    }

    /// The f32 module's instruction for one of the lowered module.
    pub(super) fn reference(&self, lowered: InstrId) -> Option<InstrId> {
        self.by_lowered.get(&lowered).copied()
    }
}

/// Whether shapes differ only in their floating dtypes.
fn differ_in_floats_only(a: &Shape, b: &Shape) -> bool {
    match (a, b) {
        (Shape::Array(a), Shape::Array(b)) => {
            a.dims == b.dims && (a.dtype == b.dtype || a.dtype.is_float() && b.dtype.is_float())
        }
        (Shape::Tuple(a), Shape::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| differ_in_floats_only(a, b))
        }
        (Shape::Buffer(_), Shape::Buffer(_)) => a == b,
        (Shape::Token, Shape::Token) | (Shape::Opaque, Shape::Opaque) => true,
        (Shape::Array(_) | Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_), _) => false,
    }
}
