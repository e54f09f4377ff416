//! Explains where a compiled program's memory and time go, from the TPU compiler's scheduled, optimized HLO.
//!
//! Plain functions over [`Module`]: [`explain`] does everything, and its parts are available separately. [`layout`]
//! computes the size of an array with tile padding, [`liveness`] the lifetime of each buffer, [`heap`] the memory they
//! need when packed, [`origin`] the layer and source line of an instruction, [`cost`] its cycles, flops and bytes,
//! [`why`] the reason why a buffer is f32, [`backend`] reads the compiler's own fields. Nothing here compiles or
//! prints.

use std::collections::BTreeMap;

use serde::Serialize;

use bf16scope_hlo::{ArrayShape, Module, Op};

pub mod backend;
pub mod cost;
pub mod heap;
pub mod layout;
pub mod liveness;
pub mod moments;
pub mod origin;
pub mod why;

pub use cost::{Bound, Cost, Rates};
pub use liveness::{BufferKind, Liveness, analyse};
pub use moments::{Moment, moments};
pub use origin::{Origin, Origins, Phase};
pub use why::Why;

/// Why a module cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// The order of execution is unknown.
    #[error(
        "module `{module}` is not scheduled: what is alive when depends on the order of execution\nhelp: give a module that the TPU compiler made (is_scheduled=true)"
    )]
    NotScheduled {
        /// Its name.
        module: String,
    },
    /// Expanding calls gives too many steps.
    #[error(
        "module `{module}` has more than {} steps with its calls written out: too many to explain",
        liveness::MAX_STEPS
    )]
    TooLong {
        /// Its name.
        module: String,
    },
    /// An inconsistent instruction.
    #[error("{place}: {what}")]
    Malformed {
        /// Computation and instruction.
        place: String,
        /// The inconsistency.
        what: String,
    },
}

/// The explanation of a program.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The module's name.
    pub module: String,
    /// Its memory.
    pub memory: Memory,
    /// The total cost.
    pub total: Cost,
    /// By layer, in descending order of cycles.
    pub layers: Vec<LayerCost>,
    /// By kind of op, in descending order of cycles.
    pub kinds: Vec<KindCost>,
    /// The number of steps with any cost.
    pub n_steps: usize,
    /// The most expensive steps, in descending order of cycles: at most 200.
    pub steps: Vec<StepCost>,
}

/// HBM over the schedule, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Arguments.
    pub arguments: u64,
    /// Outputs in memory of their own.
    pub outputs: u64,
    /// Constants.
    pub constants: u64,
    /// Temporaries at the peak.
    pub peak: u64,
    /// The heap for them: see [`heap::heap_bytes`].
    pub heap: u64,
    /// The step of the peak.
    pub peak_step: usize,
    /// The instruction of that step.
    pub peak_instruction: String,
    /// Where that instruction comes from.
    pub peak_origin: Origin,
    /// Bytes of temporaries at each step.
    pub timeline: Vec<u64>,
    /// Temporaries alive at the peak, largest first.
    pub live: Vec<LiveBuffer>,
    /// Bytes alive at the peak, by layer, in descending order.
    pub layers: Vec<(String, u64)>,
    /// Buffers in HBM, including arguments, in descending order of wasted tile padding; those without any are left out.
    pub padding: Vec<LiveBuffer>,
    /// Copies in another dtype that were alive together with their source, largest first.
    pub converts: Vec<Convert>,
    /// Copies of arguments in another dtype that are alive at the peak, together with the arguments themselves.
    pub copies_of_arguments: Copies,
    /// Copies in another dtype that are alive at the peak together with their source, including those of arguments.
    pub copies_at_the_peak: Copies,
}

/// Buffers that are copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// The number of copies.
    pub n: usize,
    /// Their bytes.
    pub n_bytes: u64,
}

/// A buffer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveBuffer {
    /// The instruction that made its value.
    pub instruction: String,
    /// Its kind of op.
    pub op: String,
    /// The buffer's kind: `temporary`, `argument`, …
    pub kind: &'static str,
    /// Its array: `bf16[64,56,56,256]{0,3,2,1:T(8,128)(2,1)}`.
    pub shape: String,
    /// The array's dtype.
    pub dtype: String,
    /// Bytes including tile padding.
    pub n_bytes: u64,
    /// Bytes of the elements.
    pub n_unpadded: u64,
    /// The origin of its value.
    pub origin: Origin,
    /// First step alive.
    pub first: usize,
    /// Last step alive.
    pub last: usize,
    /// Instructions that still read it after the peak, in order: name, and layer.
    pub waited_for_by: Vec<(String, String)>,
    /// Their number.
    pub n_waiting: usize,
    /// Why it is f32, if it is.
    pub why_f32: Option<Why>,
}

impl LiveBuffer {
    /// Bytes of wasted tile padding.
    pub fn n_wasted(&self) -> u64 {
        self.n_bytes.saturating_sub(self.n_unpadded)
    }
}

/// A convert whose result and operand are alive at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Convert {
    /// The instruction.
    pub instruction: String,
    /// The source's dtype.
    pub from: String,
    /// The result's array.
    pub to: String,
    /// Bytes of the result.
    pub n_bytes: u64,
    /// Its origin.
    pub origin: Origin,
    /// The first and the last step at which both are alive.
    pub both_alive: (usize, usize),
}

/// Cost of a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerCost {
    /// Its name.
    pub layer: String,
    /// The total cost.
    pub cost: Cost,
    /// The backward pass's share of the cycles.
    pub backward_cycles: u64,
    /// The bounding resource, if the rates are known.
    pub bound: Option<Bound>,
    /// See [`Cost::efficiency`].
    pub efficiency: Option<f64>,
}

/// Cost of a kind of op.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindCost {
    /// Its name.
    pub op: String,
    /// The number of steps.
    pub n_steps: usize,
    /// The total cost.
    pub cost: Cost,
    /// The bounding resource, if the rates are known.
    pub bound: Option<Bound>,
    /// See [`Cost::efficiency`].
    pub efficiency: Option<f64>,
}

/// Cost of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepCost {
    /// The instruction.
    pub instruction: String,
    /// Its kind of op.
    pub op: String,
    /// Its origin.
    pub origin: Origin,
    /// Its cost.
    pub cost: Cost,
    /// The bounding resource, if the rates are known.
    pub bound: Option<Bound>,
    /// See [`Cost::efficiency`].
    pub efficiency: Option<f64>,
}

/// Steps, padded buffers and converts that an [`Explanation`] lists.
const MAX_LISTED: usize = 200;
/// Readers that a buffer lists.
const MAX_READERS: usize = 4;

/// Explains a scheduled module with valid ids. `rates` are those of one core, if known.
///
/// # Errors
/// As [`analyse`].
pub fn explain(module: &Module, rates: Option<&Rates>) -> Result<Explanation, ExplainError> {
    let liveness = analyse(module)?;
    let origins = Origins::new(module);
    let costs = Costs::new(module, &liveness, &origins);
    let bound = |cost: &Cost| rates.filter(|_| cost.bytes > 0.0).map(|rates| cost.bound(rates));
    let efficiency = |cost: &Cost| rates.and_then(|rates| cost.efficiency(rates));
    let mut layers: Vec<LayerCost> = (costs.layers.into_iter())
        .map(|(layer, (cost, backward_cycles))| {
            let (bound, efficiency) = (bound(&cost), efficiency(&cost));
            LayerCost { layer, cost, backward_cycles, bound, efficiency }
        })
        .collect();
    layers.sort_by_key(|layer| std::cmp::Reverse(layer.cost.cycles));
    let mut kinds: Vec<KindCost> = (costs.kinds.into_iter())
        .map(|(op, (n_steps, cost))| KindCost { op, n_steps, cost, bound: bound(&cost), efficiency: efficiency(&cost) })
        .collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.cost.cycles));
    let mut steps = costs.steps;
    let n_steps = steps.len();
    steps.sort_by_key(|(_, cost)| std::cmp::Reverse(cost.cycles));
    steps.truncate(MAX_LISTED);
    let step_cost = |(step, cost): (usize, Cost)| {
        let instruction = liveness.instruction(module, step);
        StepCost {
            instruction: instruction.name.clone(),
            op: origin::op_kind(module, instruction),
            origin: origins.of_step(&liveness, step).clone(),
            cost,
            bound: bound(&cost),
            efficiency: efficiency(&cost),
        }
    };
    Ok(Explanation {
        module: module.name.clone(),
        memory: memory(module, &liveness, &origins),
        total: costs.total,
        layers,
        kinds,
        n_steps,
        steps: steps.into_iter().map(step_cost).collect(),
    })
}

/// The buffers in HBM at the peak, including the caller's, largest first, at most `n`: for a program that is too large.
///
/// # Errors
/// Those of [`analyse`].
pub fn largest_live_buffers(module: &Module, n: usize) -> Result<Vec<LiveBuffer>, ExplainError> {
    let liveness = analyse(module)?;
    let origins = Origins::new(module);
    let is_held = |kind| matches!(kind, BufferKind::Argument | BufferKind::Output | BufferKind::Constant);
    let held = (0..liveness.buffers.len()).filter(|&id| is_held(liveness.buffers[id].kind));
    let mut alive: Vec<usize> = liveness.alive_at(liveness.peak).into_iter().chain(held).collect();
    alive.sort_by_key(|&id| (std::cmp::Reverse(liveness.buffers[id].n_bytes), id));
    alive.truncate(n);
    Ok(alive.into_iter().map(|id| live_buffer(module, &liveness, &origins, id, liveness.peak)).collect())
}

#[derive(Default)]
struct Costs {
    total: Cost,
    /// The cost, and the cycles of the backward pass.
    layers: BTreeMap<String, (Cost, u64)>,
    kinds: BTreeMap<String, (usize, Cost)>,
    steps: Vec<(usize, Cost)>,
}

impl Costs {
    fn new(module: &Module, liveness: &Liveness, origins: &Origins) -> Costs {
        let mut costs = Costs::default();
        let n_executions = cost::n_executions(module);
        for (at, step) in liveness.steps.iter().enumerate() {
            let comp = liveness.frames[step.frame].computation;
            let computation = module.comp(comp);
            let instruction = computation.instr(step.instruction);
            let cost = cost::of_instruction(module, computation, instruction).times(n_executions[comp.idx()]);
            if cost == Cost::default() {
                continue;
            }
            let origin = origins.of_step(liveness, at);
            costs.total.add(cost);
            let layer = costs.layers.entry(origin.layer.clone()).or_default();
            layer.0.add(cost);
            if origin.phase == Phase::Backward {
                layer.1 += cost.cycles;
            }
            let kind = costs.kinds.entry(origin::op_kind(module, instruction)).or_default();
            kind.0 += 1;
            kind.1.add(cost);
            costs.steps.push((at, cost));
        }
        costs
    }
}

fn memory(module: &Module, liveness: &Liveness, origins: &Origins) -> Memory {
    let peak_instruction = liveness.instruction(module, liveness.peak);
    let live: Vec<LiveBuffer> = liveness
        .alive_at(liveness.peak)
        .into_iter()
        .map(|id| live_buffer(module, liveness, origins, id, liveness.peak))
        .collect();
    let mut by_layer: BTreeMap<&str, u64> = BTreeMap::new();
    for buffer in &live {
        *by_layer.entry(&buffer.origin.layer).or_default() += buffer.n_bytes;
    }
    let mut layers: Vec<(String, u64)> = by_layer.into_iter().map(|(layer, n)| (layer.to_string(), n)).collect();
    layers.sort_by_key(|(_, n_bytes)| std::cmp::Reverse(*n_bytes));
    let wasted = |id: &usize| {
        let buffer = &liveness.buffers[*id];
        buffer.n_bytes.saturating_sub(buffer.n_unpadded)
    };
    let mut padded: Vec<usize> = (0..liveness.buffers.len())
        .filter(|id| liveness.buffers[*id].kind != BufferKind::Elsewhere && wasted(id) > 0)
        .collect();
    padded.sort_by_key(|id| std::cmp::Reverse(wasted(id)));
    padded.truncate(MAX_LISTED);
    let (converts, copies_of_arguments, copies_at_the_peak) = converts(module, liveness, origins);
    Memory {
        arguments: liveness.bytes_of(BufferKind::Argument),
        outputs: liveness.bytes_of(BufferKind::Output),
        constants: liveness.bytes_of(BufferKind::Constant),
        peak: liveness.peak_bytes(),
        heap: heap::heap_bytes(module, liveness),
        peak_step: liveness.peak,
        peak_instruction: peak_instruction.name.clone(),
        peak_origin: origins.of_step(liveness, liveness.peak).clone(),
        timeline: liveness.live.clone(),
        live,
        layers,
        padding: padded.into_iter().map(|id| live_buffer(module, liveness, origins, id, liveness.peak)).collect(),
        converts,
        copies_of_arguments,
        copies_at_the_peak,
    }
}

/// A buffer at a step.
fn live_buffer(module: &Module, liveness: &Liveness, origins: &Origins, id: usize, step: usize) -> LiveBuffer {
    let buffer = &liveness.buffers[id];
    let value = match buffer.kind {
        // An argument is more informative than the output that overwrites it.
        BufferKind::Argument => buffer.values[0],
        _ => liveness.value_at(id, step.clamp(buffer.first, buffer.last)),
    };
    let value = &liveness.values[value];
    let instruction = liveness.instruction(module, value.made_at);
    let origin = origins.of_leaf(module, liveness, value.made_at, value.leaf);
    let mut readers: Vec<usize> = buffer.values.iter().flat_map(|&id| &liveness.values[id].read_at).copied().collect();
    readers.retain(|&reader| reader > step);
    readers.sort_unstable();
    readers.dedup();
    let reader = |&step: &usize| {
        let layer = origins.of_step(liveness, step).layer.clone();
        (liveness.instruction(module, step).name.clone(), layer)
    };
    LiveBuffer {
        instruction: instruction.name.clone(),
        op: origin::op_kind(module, instruction),
        kind: kind_name(buffer.kind),
        shape: shape_text(&value.shape),
        dtype: value.shape.dtype.to_string(),
        n_bytes: buffer.n_bytes,
        n_unpadded: buffer.n_unpadded,
        first: buffer.first,
        last: buffer.last,
        waited_for_by: readers.iter().take(MAX_READERS).map(reader).collect(),
        n_waiting: readers.len(),
        why_f32: why::why_f32(module, liveness, value, &origin),
        origin,
    }
}

fn kind_name(kind: BufferKind) -> &'static str {
    match kind {
        BufferKind::Argument => "argument",
        BufferKind::Output => "output",
        BufferKind::Constant => "constant",
        BufferKind::Temporary => "temporary",
        BufferKind::Elsewhere => "not in HBM",
    }
}

fn shape_text(shape: &ArrayShape) -> String {
    bf16scope_hlo::Shape::Array(shape.clone()).to_string()
}

/// Temporaries that are a convert of another buffer in HBM that is still used after the convert. Also those that are
/// copies of arguments and alive at the peak, and all that are alive there together with their operand.
fn converts(module: &Module, liveness: &Liveness, origins: &Origins) -> (Vec<Convert>, Copies, Copies) {
    let (mut found, mut copies, mut at_the_peak) = (Vec::new(), Copies::default(), Copies::default());
    for value in &liveness.values {
        let buffer = &liveness.buffers[value.buffer];
        let step = liveness.steps[value.made_at];
        let computation = module.comp(liveness.frames[step.frame].computation);
        let instruction = computation.instr(step.instruction);
        if buffer.kind != BufferKind::Temporary {
            continue;
        }
        let operand = match origin::leaf_root(module, instruction, value.leaf) {
            None if matches!(instruction.op, Op::Convert) => Some(0),
            // A fusion that only converts one of its operands.
            Some((comp, root)) if matches!(root.op, Op::Convert) => {
                let inside = module.comp(comp);
                match root.operands.first().map(|&id| &inside.instr(id).op) {
                    Some(Op::Parameter { number, .. }) => usize::try_from(*number).ok(),
                    _ => None,
                }
            }
            _ => None,
        };
        // Operands of fusions and converts are arrays, so an operand's index is its value's index.
        let source = operand.and_then(|operand| liveness.reads[value.made_at].get(operand));
        let Some(source) = source.map(|&source| &liveness.values[source]) else { continue };
        let last = liveness.buffers[source.buffer].last.min(buffer.last);
        if source.buffer != value.buffer && last > value.made_at {
            let is_argument = liveness.buffers[source.buffer].kind == BufferKind::Argument;
            if is_argument && (value.made_at..=buffer.last).contains(&liveness.peak) {
                copies.n += 1;
                copies.n_bytes += buffer.n_bytes;
            }
            if (value.made_at..=last).contains(&liveness.peak) {
                at_the_peak.n += 1;
                at_the_peak.n_bytes += buffer.n_bytes;
            }
            found.push(Convert {
                instruction: instruction.name.clone(),
                from: source.shape.dtype.to_string(),
                to: shape_text(&value.shape),
                n_bytes: buffer.n_bytes,
                origin: origins.of_leaf(module, liveness, value.made_at, value.leaf),
                both_alive: (value.made_at, last),
            });
        }
    }
    found.sort_by_key(|convert| std::cmp::Reverse(convert.n_bytes));
    found.truncate(MAX_LISTED);
    (found, copies, at_the_peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_steps_are_counted() {
        assert_eq!(
            ExplainError::TooLong { module: "step".to_string() }.to_string(),
            format!(
                "module `step` has more than {} steps with its calls written out: too many to explain",
                liveness::MAX_STEPS
            )
        );
    }
}
