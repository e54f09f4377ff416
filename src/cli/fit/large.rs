//! The largest values of a program: what to look at when it does not fit at any batch.

use serde::Serialize;

use crate::hlo::{Module, Op, Shape};

/// A value of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Value {
    /// Bytes, without the padding of a TPU's layout.
    pub(super) n_bytes: i64,
    /// Its dtype and dims.
    pub(super) shape: String,
    /// The layer it belongs to, else the instruction's name.
    pub(super) name: String,
    /// The user's file and line, if it is known.
    pub(super) at: Option<String>,
}

/// How many are worth a look.
const N_VALUES: usize = 5;

/// The largest arrays that instructions of the entry computation make, largest first; of those of one layer and shape, one.
pub(super) fn values(module: &Module) -> Vec<Value> {
    let entry = module.entry();
    let mut values: Vec<Value> = Vec::new();
    // An optimizer's arithmetic has no layer, and as many bytes as the variable, which has.
    let has_layers = entry.instructions.iter().any(|instruction| instruction.metadata.op_name.contains('/'));
    for instruction in &entry.instructions {
        if has_layers && !instruction.metadata.op_name.contains('/') {
            continue;
        }
        // A tuple holds what others made; a broadcast of a scalar is made where it is used.
        let is_made = !matches!(instruction.op, Op::Tuple | Op::Broadcast { .. });
        let Shape::Array(array) = &instruction.shape else { continue };
        if !is_made || array.has_dynamic() {
            continue;
        }
        let metadata = &instruction.metadata;
        let name = if metadata.op_name.is_empty() { &instruction.name } else { &metadata.op_name };
        let at =
            (!metadata.source_file.is_empty()).then(|| format!("{}:{}", metadata.source_file, metadata.source_line));
        let dims: Vec<String> = array.dims.iter().map(i64::to_string).collect();
        let shape = format!("{}[{}]", array.dtype, dims.join(","));
        let value = Value { n_bytes: array.n_bytes(), shape, name: name.clone(), at };
        if !values.iter().any(|other| other.name == value.name && other.shape == value.shape) {
            values.push(value);
        }
    }
    values.sort_by_key(|value| std::cmp::Reverse(value.n_bytes));
    values.truncate(N_VALUES);
    values
}
