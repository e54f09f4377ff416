//! Finds the largest values of a program that does not fit at any batch.
//!
//! The compiler returns no optimized program if it does not fit, so there is nothing to explain. [`find`] compiles for
//! a TPU with more memory, whose layouts are similar, and explains that; if it does not fit there either, it lists the
//! largest values of the program itself.

use serde::Serialize;

use bf16scope_hlo::proto::{decode, encode};
use bf16scope_hlo::verify::verify_ids;
use bf16scope_hlo::{Module, Op, Shape};
use bf16scope_tpu::explain::{LiveBuffer, largest_live_buffers};
use bf16scope_tpu::{Compiler, Spec, Target};

/// The largest buffers or values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Large {
    /// The TPU that the program fits, to which the buffers belong; `None`: values of the program, without padding.
    pub on: Option<String>,
    /// Largest first.
    pub values: Vec<Value>,
}

/// A buffer, or a value of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Value {
    /// Bytes; for a buffer, including the padding of tiles.
    pub n_bytes: u64,
    /// The buffer's kind: `argument`, `temporary`, …; `value` for a value.
    pub kind: &'static str,
    /// Its dtype and dims; for a buffer, its layout.
    pub shape: String,
    /// Its scoped name, otherwise the instruction's.
    pub name: String,
    /// The user's file and line, if it is known.
    pub at: Option<String>,
}

/// The largest buffers or values in a program that does not fit a target.
pub(crate) fn find(compiler: &Compiler, target: &Target, module: &Module) -> Large {
    let roomy = Target::board(Spec::roomiest());
    let explained = if *target == roomy { None } else { buffers(compiler, &roomy, module) };
    match explained {
        Some(values) => Large { on: Some(roomy.to_string()), values },
        None => Large { on: None, values: values(module) },
    }
}

/// The largest buffers at the peak; `None` on any error, because there is a fallback.
fn buffers(compiler: &Compiler, target: &Target, module: &Module) -> Option<Vec<Value>> {
    let program = encode::to_bytes(module).ok()?;
    let (_, optimized) = compiler.compile_and_read(target, &program, 1).ok()?;
    let optimized = decode::from_bytes(&optimized).ok()?;
    verify_ids(&optimized).ok()?;
    let value = |LiveBuffer { n_bytes, kind, shape, origin, instruction, .. }: LiveBuffer| Value {
        n_bytes,
        kind,
        shape,
        name: if origin.op_name.is_empty() { format!("%{instruction}") } else { origin.op_name },
        at: (!origin.source.is_empty()).then_some(origin.source),
    };
    Some(largest_live_buffers(&optimized, N_VALUES).ok()?.into_iter().map(value).collect())
}

/// The number of values to list.
const N_VALUES: usize = 5;

/// The largest arrays that instructions of the entry computation create, largest first; one for each layer and shape.
fn values(module: &Module) -> Vec<Value> {
    let entry = module.entry();
    let mut values: Vec<Value> = Vec::new();
    // An optimizer's arithmetic has no layer, and the size of its variable, which has one.
    let has_layers = entry.instructions.iter().any(|instruction| instruction.metadata.op_name.contains('/'));
    for instruction in &entry.instructions {
        if has_layers && !instruction.metadata.op_name.contains('/') {
            continue;
        }
        // A tuple refers to existing arrays; a broadcast of a scalar is fused into its consumer.
        let is_made = !matches!(instruction.op, Op::Tuple | Op::Broadcast { .. });
        let Shape::Array(array) = &instruction.shape else { continue };
        if !is_made || array.has_dynamic() {
            continue;
        }
        let metadata = &instruction.metadata;
        let name = if metadata.op_name.is_empty() { &instruction.name } else { &metadata.op_name };
        let at = module.source(metadata).map(|(file, line)| format!("{file}:{line}"));
        let dims: Vec<String> = array.dims.iter().map(i64::to_string).collect();
        let shape = format!("{}[{}]", array.dtype, dims.join(","));
        let n_bytes = u64::try_from(array.n_bytes()).unwrap_or(u64::MAX);
        let value = Value { n_bytes, kind: "value", shape, name: name.clone(), at };
        if !values.iter().any(|other| other.name == value.name && other.shape == value.shape) {
            values.push(value);
        }
    }
    values.sort_by_key(|value| std::cmp::Reverse(value.n_bytes));
    values.truncate(N_VALUES);
    values
}
