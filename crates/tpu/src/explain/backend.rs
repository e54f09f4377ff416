//! The TPU compiler's fields in an instruction's `backend_config`, which is JSON: estimated cycles, results that take
//! operands' memory, scratch memory.
//!
//! The fields' names and meanings were inferred from modules of `libtpu` 0.0.51; the schema is not published. A missing
//! field is not an error.

use serde_json::Value;

use super::layout::HBM;
use crate::loops::Estimate;
use bf16scope_hlo::{Instruction, Module, Shape};

/// The back end that a module was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackEnd {
    /// A TPU: its arrays are tiled.
    Tpu,
    /// A CPU.
    Cpu,
    /// Another one, or an unrecognised one; not a TPU.
    Other,
}

/// Markers of XLA's CPU compiler: kernels of YNNPACK and oneDNN, and how a loop is split over threads.
const CPU_SIGNS: [&str; 3] = ["__ynn_fusion", "__onednn", "outer_dimension_partitions"];

impl BackEnd {
    /// Detects the back end from the compiler's fields in a module's instructions, and from layouts.
    pub fn detect(module: &Module) -> BackEnd {
        let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
        let is_tiled = |shape: &Shape| {
            let mut layouts = shape.leaves().into_iter().filter_map(|leaf| leaf.as_array()?.layout.as_ref());
            layouts.any(|layout| !layout.tiles.is_empty())
        };
        let says = |sign: &str| instructions().any(|instr| instr.backend_config.contains(sign));
        if says("scoped_memory_configs") || instructions().any(|instr| is_tiled(&instr.shape)) {
            BackEnd::Tpu
        } else if CPU_SIGNS.iter().any(|sign| says(sign)) {
            BackEnd::Cpu
        } else {
            BackEnd::Other
        }
    }
}

/// Which results take operands' memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aliasing {
    /// Pairs of operand and result; both count arrays, also within tuples.
    Pairs(Vec<(usize, usize)>),
    /// The fields are missing.
    Unsaid,
}

/// The results that take operands' memory, from `aliasing_operands` (lists of places that share memory: operands first,
/// then results), otherwise from `output_to_operand_aliasing`.
pub fn aliasing(instruction: &Instruction) -> Aliasing {
    let config = config(instruction);
    let lists = config.as_ref().and_then(|config| config.pointer("/aliasing_operands/lists")).and_then(Value::as_array);
    if let Some(lists) = lists {
        let n_operands = instruction.operands.len();
        let mut pairs = Vec::new();
        for list in lists {
            let indices = list.get("indices").and_then(Value::as_array);
            let indices: Vec<usize> = indices.into_iter().flatten().filter_map(number).map(|n| n as usize).collect();
            let operand = indices.iter().copied().find(|&index| index < n_operands);
            if let Some(operand) = operand {
                pairs.extend(indices.iter().filter(|&&index| index >= n_operands).map(|&i| (operand, i - n_operands)));
            }
        }
        return Aliasing::Pairs(pairs);
    }
    let attribute = instruction.unmodelled.attributes.iter().find(|(name, _)| name == "output_to_operand_aliasing");
    attribute.map_or(Aliasing::Unsaid, |(_, text)| Aliasing::Pairs(output_to_operand(text)))
}

/// `{{}: (0, {}), {1}: (2, {})}` as pairs of operand and result.
fn output_to_operand(text: &str) -> Vec<(usize, usize)> {
    let inside = text.trim().strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or("");
    let mut pairs = Vec::new();
    for entry in inside.split("{})") {
        let Some((output, operand)) = entry.split_once(": (") else { continue };
        let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
        if let Ok(operand) = digits(operand).parse() {
            pairs.push((operand, digits(output).parse().unwrap_or(0)));
        }
    }
    pairs
}

/// Bytes of HBM that the instruction needs only while it runs (`used_scoped_memory_configs`).
pub fn scratch_in_hbm(instruction: &Instruction) -> u64 {
    let Some(config) = config(instruction) else { return 0 };
    let configs = config.get("used_scoped_memory_configs").and_then(Value::as_array);
    let in_hbm = |config: &&Value| config.get("memory_space").and_then(number) == Some(HBM as u64);
    let sizes = configs.into_iter().flatten().filter(in_hbm).filter_map(|config| number(config.get("size")?));
    sizes.fold(0, u64::saturating_add)
}

/// Cycles by the compiler's estimate; `None` if it gives none.
pub fn estimated_cycles(instruction: &Instruction) -> Option<u64> {
    let config = config(instruction)?;
    let cycles = config.pointer("/window_config/estimated_cycles").and_then(number)?;
    // The largest int64 means that no estimate exists.
    (Estimate::new(cycles) != Estimate::Unknown).then_some(cycles)
}

fn config(instruction: &Instruction) -> Option<Value> {
    let text = &instruction.backend_config;
    if text.is_empty() { None } else { serde_json::from_str(text).ok() }
}

/// int64 is a string in protobuf's JSON.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}
