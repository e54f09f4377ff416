//! The cost of each step: the compiler's cycles, flops and bytes counted from shapes, and which of the two bounds it.
//!
//! Flops count two for each product of a `dot` or `convolution` (window positions in the padding or between dilated
//! elements do not count), one for each input of a reduction and each result of an elementwise op; data movement counts
//! nothing. Bytes are those of operands and results in HBM, including the padding of tiles: the least that a step must
//! move if it reads all its operands. A loop's body counts as often as its trip count says, if that is known
//! ([`n_executions`]), otherwise once.
//!
//! The figures of a chip are Google's: Cloud TPU documentation, pages "TPU v2" (46 TFLOP/s in bf16, 700 GB/s) and "TPU
//! v3" (123 TFLOP/s, 900 GB/s); sources differ by a tenth; a core has half. Clocks of 700 and 940 MHz follow from them:
//! 2 flops × 128 × 128 × 2 MXUs × 0.7e9 = 45.9e12, and with 4 MXUs × 0.94e9 = 123.2e12.

use std::collections::BTreeMap;

use serde::Serialize;

use super::backend;
use super::layout::{is_in_hbm, leaves, padded_bytes};
use super::origin::fused;
use crate::Target;
use bf16scope_hlo::ops::{Convolution, WindowDim};
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{Computation, Instruction, Module, Op, Shape};

/// The performance of one core per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Flops of bf16 products.
    pub flops: f64,
    /// Bytes to and from HBM.
    pub bytes: f64,
    /// Cycles.
    pub cycles: f64,
}

impl Rates {
    /// The rates of one core of a target; `None` if they are unknown.
    pub fn for_target(target: &Target) -> Option<Rates> {
        let Target::Tpu { version, .. } = target else { return None };
        let (figures, n_cores) = (version.figures.as_ref()?, f64::from(version.cores_per_chip));
        Some(Rates {
            flops: f64::from(figures.bf16_tflops) * 1e12 / n_cores,
            bytes: f64::from(figures.hbm_gbytes) * 1e9 / n_cores,
            cycles: f64::from(figures.clock_mhz) * 1e6,
        })
    }
}

/// The resource that bounds a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Its flops take longer than its bytes.
    Compute,
    /// Its bytes take longer than its flops.
    Memory,
}

/// The cost of one step, or of several.
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

    /// The cost of `n_times` executions.
    pub fn times(self, n_times: u64) -> Cost {
        let Cost { cycles, flops, bytes } = self;
        Cost { cycles: cycles.saturating_mul(n_times), flops: flops * n_times as f64, bytes: bytes * n_times as f64 }
    }

    /// The bounding resource, by the rates of a core.
    pub fn bound(&self, rates: &Rates) -> Bound {
        if self.flops / rates.flops > self.bytes / rates.bytes { Bound::Compute } else { Bound::Memory }
    }

    /// The least share of the estimated time that the bounding resource must be busy; `None` without cycles. Above 1,
    /// the estimate is below the least possible time.
    pub fn efficiency(&self, rates: &Rates) -> Option<f64> {
        let least = (self.flops / rates.flops).max(self.bytes / rates.bytes);
        (self.cycles > 0).then(|| least / (self.cycles as f64 / rates.cycles))
    }
}

/// How often each computation is executed in one run of the program, if trip counts are known; otherwise 1.
pub fn n_executions(module: &Module) -> Vec<u64> {
    let has_loop =
        |computation: &Computation| computation.instructions.iter().any(|instr| matches!(instr.op, Op::While { .. }));
    let mut n_executions = vec![1; module.computations.len()];
    if !module.computations.iter().any(has_loop) {
        return n_executions;
    }
    // Loops are counted on the proto, as for the figures of a report; a module that cannot be encoded has no counts.
    let Ok(proto) = encode::module(module) else { return n_executions };
    let by_id = crate::loops::n_executions(&proto);
    let by_name: BTreeMap<&str, u64> = (proto.computations.iter())
        .filter_map(|computation| Some((computation.name.as_str(), *by_id.get(&computation.id)?)))
        .collect();
    for (n_executions, computation) in n_executions.iter_mut().zip(&module.computations) {
        *n_executions = by_name.get(computation.name.as_str()).copied().unwrap_or(1);
    }
    n_executions
}

/// The cost of one execution of an instruction. Instructions that only name or hold values cost nothing; a call has the
/// cost of its computation.
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
    let bytes = operands.chain([&instruction.shape]).map(bytes_in_hbm).fold(0.0, std::ops::Add::add);
    Cost {
        cycles: backend::estimated_cycles(instruction).unwrap_or(0),
        flops: flops(module, computation, instruction),
        bytes,
    }
}

fn bytes_in_hbm(shape: &Shape) -> f64 {
    leaves(shape).into_iter().filter(|leaf| is_in_hbm(leaf)).fold(0.0, |sum, leaf| sum + padded_bytes(leaf) as f64)
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

/// Windows with more positions in one dimension are counted as if none were in the padding.
const MAX_PLACES: i64 = 1 << 16;

/// Pairs of a window position and an input element under it, along one dimension.
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

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::text::parse;

    /// The cost of the root of an entry, after the computations and instructions given.
    fn cost(computations: &str, body: &str) -> Cost {
        let module =
            parse(&format!("HloModule m, is_scheduled=true\n{computations}\nENTRY m {{\n{body}\n}}"), "m").unwrap();
        let entry = module.entry();
        of_instruction(&module, entry, entry.instr(entry.root))
    }

    #[test]
    fn products_are_counted_and_padding_is_not() {
        let dot = "x = f32[4,6] parameter(0)\n y = f32[6,5] parameter(1)\n ROOT d = f32[4,5] dot(x, y), \
                   lhs_contracting_dims={1}, rhs_contracting_dims={0}";
        assert_eq!(cost("", dot).flops, 2.0 * 4.0 * 6.0 * 5.0);
        // 3 positions for 8 outputs, less one at each edge: 22 products.
        let convolution = "x = f32[2,8,3] parameter(0)\n k = f32[3,3,5] parameter(1)\n ROOT c = f32[2,8,5] convolution(x, k), \
                           window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f";
        assert_eq!(cost("", convolution).flops, 2.0 * 22.0 * 2.0 * 3.0 * 5.0);
        // Operands and result, each padded to a tile of 4 KiB.
        let add = "x = f32[8,1]{1,0:T(8,128)} parameter(0)\n ROOT y = f32[8,1]{1,0:T(8,128)} add(x, x)";
        assert_eq!(cost("", add), Cost { cycles: 0, flops: 8.0, bytes: 3.0 * 4096.0 });
        // An instruction that only names a value costs nothing.
        let bitcast = "x = f32[8]{0:T(256)} parameter(0)\n ROOT y = f32[8,1]{0,1:T(256)} bitcast(x)";
        assert_eq!(cost("", bitcast), Cost::default());
    }

    #[test]
    fn windows_over_dilated_and_strided_dimensions_count_real_elements() {
        let window = |size, stride, low, window_dilation, base_dilation| WindowDim {
            stride,
            padding_low: low,
            window_dilation,
            base_dilation,
            ..WindowDim::of_size(size)
        };
        // Stride 2 without padding: all positions are on elements.
        assert_eq!(pairs(&window(2, 2, 0, 1, 1), 8, 4), 8.0);
        // In a base dilated by 2, every other position is a gap: elements at 0, 2, 4, 6 under windows of 3 at -1 to 6.
        assert_eq!(pairs(&window(3, 1, 1, 1, 2), 4, 8), 12.0 - 1.0);
        // A window of -2, 0, 2 around each output: two positions are outside at each end.
        assert_eq!(pairs(&window(3, 1, 2, 2, 1), 5, 5), 15.0 - 4.0);
    }

    #[test]
    fn compute_or_memory_bounds_by_the_rates_of_a_core() {
        let v3 = Rates::for_target(&"tpu-v3".parse().unwrap()).unwrap();
        // A core's ridge is 61.5e12 / 450e9 = 136.7 flops a byte.
        let cost = |flops| Cost { cycles: 940, flops, bytes: 1e5 };
        assert_eq!((cost(1.36e7).bound(&v3), cost(1.37e7).bound(&v3)), (Bound::Memory, Bound::Compute));
        // 1e5 bytes take 0.222 us, and 940 cycles take 1 us.
        assert_eq!((100.0 * cost(0.0).efficiency(&v3).unwrap()).round(), 22.0);
        assert_eq!(Rates::for_target(&"tpu-v5e".parse().unwrap()), None);
    }

    #[test]
    fn a_loop_that_counts_multiplies_its_body() {
        let text = "HloModule m, is_scheduled=true
body {
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[4] get-tuple-element(s), index=1
  ROOT new = (s32[], f32[4]) tuple(next, x)
}
condition {
  s.1 = (s32[], f32[4]) parameter(0)
  i.1 = s32[] get-tuple-element(s.1), index=0
  end = s32[] constant(8)
  ROOT less = pred[] compare(i.1, end), direction=LT
}
ENTRY main {
  x.1 = f32[4] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[4]) tuple(zero, x.1)
  ROOT last = (s32[], f32[4]) while(init), condition=condition, body=body
}";
        let module = parse(text, "m").unwrap();
        let n_executions = n_executions(&module);
        let n_of = |name: &str| n_executions[module.find_computation(name).unwrap().idx()];
        assert_eq!((n_of("body"), n_of("main")), (8, 1));
    }
}
