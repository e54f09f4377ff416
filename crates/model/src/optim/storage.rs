//! Writes a variable's new value to its storage: the counterpart of [`Storage`].
//!
//! An optimizer sees a variable as f32 (f64 where gradients are checked), whatever its storage: [`Updated`] reads it
//! before the rule and writes it afterwards.

use super::rounding::{Rounding, round_stochastically};
use super::slot_storage::{Moment, SlotStorage};
use crate::graph::{Graph, Init, Storage, Tensor, VariableInfo, VariableShard};
use bf16scope_hlo::{DType, Op};
use half::bf16;

/// The slot with the remainder of a bf16 variable, with [`Storage::Bf16Compensated`].
pub const LOW: &str = "low";

/// A variable that the program updates.
pub(super) struct Updated<'a> {
    graph: &'a Graph,
    number: usize,
    /// Its scoped name.
    pub name: String,
    /// The dtype in which the update is computed.
    pub dtype: DType,
    /// Its dims; for a sharded variable, a shard's.
    pub dims: Vec<i64>,
    /// Its sharding over replicas, if it is sharded.
    pub part: Option<VariableShard>,
    /// The value before the step, in `dtype`.
    pub value: Tensor,
    /// The number of the slot with its remainder.
    low: Option<usize>,
    rounding: Option<&'a Rounding>,
    slots: SlotStorage,
}

impl<'a> Updated<'a> {
    /// Variable `number`; `rounding` is needed if anything is rounded stochastically.
    #[track_caller]
    pub fn new(graph: &'a Graph, number: usize, rounding: Option<&'a Rounding>, slots: SlotStorage) -> Updated<'a> {
        let VariableInfo { name, dtype: stored, dims, part, instr, .. } = graph.variable(number);
        let is_low = stored == DType::BF16 && graph.storage() != Storage::F32;
        let dtype = if is_low { DType::F32 } else { stored };
        let mut value = graph.tensor(instr).cast(dtype);
        let mut low = None;
        if is_low && graph.storage() == Storage::Bf16Compensated {
            let whole = part.map_or(dims.clone(), |part| part.whole_dims(&dims));
            let slot = graph.scope().within(&name, |s| s.state_in_parts(LOW, DType::BF16, whole, Init::Zeros, part));
            value = value + slot.value.cast(dtype);
            low = Some(slot.number);
        }
        Updated { graph, number, name, dtype, dims, part, value, low, rounding, slots }
    }

    /// Dims of the whole.
    pub fn whole_dims(&self) -> Vec<i64> {
        self.part.map_or(self.dims.clone(), |part| part.whole_dims(&self.dims))
    }

    /// `√(Σ x²)`, a scalar, for an `x` with this variable's dims.
    #[track_caller]
    pub fn norm(&self, x: &Tensor) -> Tensor {
        (x * x).total(self.part).sqrt()
    }

    /// `√(mean x²)`, a scalar, for an `x` with this variable's dims.
    #[track_caller]
    pub fn rms(&self, x: &Tensor) -> Tensor {
        match self.part {
            None => {
                let axes: Vec<i64> = (0..x.rank() as i64).collect();
                (x * x).mean(&axes).sqrt()
            }
            Some(_) => {
                let n: i64 = self.whole_dims().iter().product();
                ((x * x).total(self.part) / n as f64).sqrt()
            }
        }
    }

    /// Sets the value after the step, projected if the variable is constrained.
    #[track_caller]
    pub fn store(&self, value: &Tensor) {
        let constraint = self.graph.constraint(self.number);
        let projected = constraint.map(|constraint| constraint.project(value, self.part));
        let value = projected.as_ref().unwrap_or(value);
        let stored = self.graph.variable(self.number).dtype;
        match (self.low, self.graph.storage(), self.rounding) {
            _ if stored == self.dtype => self.graph.set_update(self.number, value),
            (Some(low), _, _) => {
                // A cast and back would not do: a compiler that keeps excess precision may remove it, and the remainder
                // with it.
                let high = value.emit("reduce-precision", &[], |e| e.emit(Op::ROUND_TO_BF16, &[value.id], None));
                self.graph.set_update(self.number, &high.cast(stored));
                self.graph.set_update(low, &(value - high).cast(DType::BF16));
            }
            (None, Storage::Bf16Stochastic, Some(rounding)) => {
                self.graph.set_update(self.number, &rounding.round(&self.name, value, self.part));
            }
            (None, _, _) => self.graph.set_update(self.number, &value.cast(stored)),
        }
    }

    /// The dtype of a slot of this variable that holds `moment`.
    pub fn slot_dtype(&self, moment: Moment) -> DType {
        self.slots.dtype_for(moment, self.dtype)
    }

    /// The value to store in the slot called `full`, with dtype `stored`.
    #[track_caller]
    pub fn slot_value(&self, full: &str, value: &Tensor, stored: DType, part: Option<VariableShard>) -> Tensor {
        match (self.slots, self.rounding) {
            (SlotStorage::Bf16Stochastic, Some(rounding)) if stored == DType::BF16 => rounding.round(full, value, part),
            _ => value.cast(stored),
        }
    }
}

/// A number in a storage, on the host: computed like each element in a training program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// The value that the network reads.
    pub high: f32,
    /// The remainder in the slot of [`Storage::Bf16Compensated`]; 0 for other storages.
    pub low: f32,
}

impl Kept {
    /// Stores `value`; `noise` is the input of stochastic rounding from [`RoundingNoise`](super::RoundingNoise).
    pub fn new(storage: Storage, value: f32, noise: u16) -> Kept {
        let near = bf16::from_f32(value).to_f32();
        match storage {
            Storage::F32 => Kept { high: value, low: 0.0 },
            Storage::Bf16Nearest => Kept { high: near, low: 0.0 },
            Storage::Bf16Compensated => Kept { high: near, low: bf16::from_f32(value - near).to_f32() },
            Storage::Bf16Stochastic => Kept { high: round_stochastically(value, noise).to_f32(), low: 0.0 },
        }
    }

    /// The value from which the next update starts.
    pub fn value(self) -> f32 {
        self.high + self.low
    }
}
