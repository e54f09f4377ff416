//! What each step costs: the compiler's cycles, flops and bytes counted from shapes, and which of the two bounds it.
//!
//! Flops count two for each product of a `dot` or `convolution` (places where a window lies in the padding or between
//! dilated elements do not count), one for each input of a reduction and each result of an elementwise op; data movement
//! counts nothing. Bytes are those of operands and results in HBM, tiles filled up: what a step must move at least once,
//! if it reads everything it is given. Nothing is counted for the loop trips that the text does not tell.
//!
//! The figures of a chip are Google's: Cloud TPU documentation, pages "TPU v2" (46 TFLOP/s in bf16, 700 GB/s) and "TPU
//! v3" (123 TFLOP/s, 900 GB/s), sources differ by a tenth; a core has half. Clocks of 700 and 940 MHz follow from them:
//! 2 flops × 128 × 128 × 2 MXUs × 0.7e9 = 45.9e12, and with 4 MXUs × 0.94e9 = 123.2e12.

use serde::Serialize;

use super::backend;
use super::layout::{is_in_hbm, leaves, padded_bytes};
use super::origin::fused;
use crate::hlo::ops::{Convolution, WindowDim};
use crate::hlo::{Computation, Instruction, Module, Op, Shape};
use crate::tpu::{Target, Version};

/// What one core can do in a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Flops, products in bf16.
    pub flops: f64,
    /// Bytes to and from HBM.
    pub bytes: f64,
    /// Cycles.
    pub cycles: f64,
}

impl Rates {
    /// Of one core of a target; none for those whose figures are not known here.
    pub fn of(target: &Target) -> Option<Rates> {
        match target {
            Target::Tpu { version: Version::V2, .. } => {
                Some(Rates { flops: 46e12 / 2.0, bytes: 700e9 / 2.0, cycles: 0.7e9 })
            }
            Target::Tpu { version: Version::V3, .. } => {
                Some(Rates { flops: 123e12 / 2.0, bytes: 900e9 / 2.0, cycles: 0.94e9 })
            }
            Target::Tpu { .. } | Target::Cpu => None,
        }
    }
}

/// What bounds a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Its flops take longer than its bytes.
    Compute,
    /// Its bytes take longer than its flops.
    Memory,
}

/// What one step, or several, cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// The compiler's estimate.
    pub cycles: u64,
    /// Counted from shapes.
    pub flops: f64,
    /// Bytes in HBM of operands and results.
    pub bytes: f64,
}

impl Cost {
    /// Adds another.
    pub fn add(&mut self, other: Cost) {
        self.cycles = self.cycles.saturating_add(other.cycles);
        self.flops += other.flops;
        self.bytes += other.bytes;
    }

    /// What bounds it, by the rates of a core.
    pub fn bound(&self, rates: &Rates) -> Bound {
        if self.flops / rates.flops > self.bytes / rates.bytes { Bound::Compute } else { Bound::Memory }
    }

    /// The least share of the estimated time that the bounding resource must be busy; none without cycles. Above 1 the
    /// estimate is less than the least time.
    pub fn efficiency(&self, rates: &Rates) -> Option<f64> {
        let least = (self.flops / rates.flops).max(self.bytes / rates.bytes);
        (self.cycles > 0).then(|| least / (self.cycles as f64 / rates.cycles))
    }
}

/// What an instruction costs each time it is executed. What only names or holds values costs nothing, and a call what is
/// called.
pub fn of_instruction(module: &Module, computation: &Computation, instruction: &Instruction) -> Cost {
    let is_free = match &instruction.op {
        Op::Parameter { .. } | Op::Constant(_) | Op::Tuple | Op::GetTupleElement { .. } | Op::OptimizationBarrier => {
            true
        }
        Op::While { .. } | Op::Call { .. } | Op::Conditional(_) => true,
        Op::Opaque(opaque) => {
            opaque.opcode == "bitcast" || (opaque.opcode.ends_with("-done") || opaque.opcode.ends_with("-update"))
        }
        _ => false,
    };
    if is_free {
        return Cost::default();
    }
    let operands = instruction.operands.iter().map(|id| &computation.instr(*id).shape);
    let bytes = operands.chain([&instruction.shape]).map(bytes_in_hbm).sum();
    Cost {
        cycles: backend::estimated_cycles(instruction).unwrap_or(0),
        flops: flops(module, computation, instruction),
        bytes,
    }
}

fn bytes_in_hbm(shape: &Shape) -> f64 {
    leaves(shape).into_iter().filter(|leaf| is_in_hbm(leaf)).map(|leaf| padded_bytes(leaf) as f64).sum()
}

/// Floating-point operations of an instruction; of a fusion, of all that is in it.
fn flops(module: &Module, computation: &Computation, instruction: &Instruction) -> f64 {
    let elements = |shape: &Shape| leaves(shape).into_iter().map(|leaf| leaf.n_elements() as f64).sum::<f64>();
    let operand = |at: usize| instruction.operands.get(at).map(|id| &computation.instr(*id).shape);
    match &instruction.op {
        Op::Dot { dims, .. } => {
            let lhs = operand(0).map_or(&[][..], Shape::dims);
            let size =
                |axis: &i64| usize::try_from(*axis).ok().and_then(|axis| lhs.get(axis)).copied().unwrap_or(1) as f64;
            2.0 * elements(&instruction.shape) * dims.lhs_contracting.iter().map(size).product::<f64>()
        }
        Op::Convolution(convolution) => convolution_flops(convolution, operand(0), operand(1), &instruction.shape),
        Op::Unary(_) | Op::Binary(_) | Op::Compare { .. } | Op::Select | Op::Clamp => elements(&instruction.shape),
        Op::Reduce { .. } => operand(0).map_or(0.0, elements),
        Op::ReduceWindow { window, .. } => {
            elements(&instruction.shape) * window.iter().map(|dim| dim.size as f64).product::<f64>()
        }
        Op::SelectAndScatter { window, .. } => {
            operand(1).map_or(0.0, elements) * window.iter().map(|dim| dim.size as f64).product::<f64>()
        }
        Op::Opaque(_) => match fused(instruction).map(|comp| module.comp(comp)) {
            Some(inside) => inside.instructions.iter().map(|inner| flops(module, inside, inner)).sum(),
            None => 0.0,
        },
        _ => 0.0,
    }
}

/// Two for each product of an element of the input and one of the kernel.
fn convolution_flops(convolution: &Convolution, input: Option<&Shape>, kernel: Option<&Shape>, result: &Shape) -> f64 {
    let size = |shape: Option<&Shape>, axis: i64| {
        let dims = shape.map_or(&[][..], Shape::dims);
        usize::try_from(axis).ok().and_then(|axis| dims.get(axis)).copied().unwrap_or(1)
    };
    let dims = &convolution.dims;
    let mut products = size(kernel, dims.kernel_input_feature) as f64
        * size(Some(result), dims.output_batch) as f64
        * size(Some(result), dims.output_feature) as f64;
    for (at, window) in convolution.window.iter().enumerate() {
        let axis = |axes: &[i64]| axes.get(at).copied().unwrap_or(-1);
        let n_in = size(input, axis(&dims.input_spatial));
        let n_out = size(Some(result), axis(&dims.output_spatial));
        products *= pairs(window, n_in, n_out);
    }
    2.0 * products
}

/// Beyond this many places of a window in one dimension they are counted as if none lay in the padding.
const MAX_PLACES: i64 = 1 << 16;

/// Pairs of a place of the window and an element of the input that it lies on, along one dimension.
fn pairs(window: &WindowDim, n_in: i64, n_out: i64) -> f64 {
    if window.size > MAX_PLACES || n_out > MAX_PLACES || window.size.saturating_mul(n_out) > 16 * MAX_PLACES {
        return window.size as f64 * n_out as f64;
    }
    let base = window.base_dilation.max(1);
    let lies_on_element = |out: i64, place: i64| {
        let (start, offset) = (out.saturating_mul(window.stride), place.saturating_mul(window.window_dilation));
        let at = start.saturating_add(offset).saturating_sub(window.padding_low);
        at >= 0 && at % base == 0 && at / base < n_in
    };
    let count = (0..n_out).map(|out| (0..window.size).filter(|&place| lies_on_element(out, place)).count());
    count.sum::<usize>() as f64
}
