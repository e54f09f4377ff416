//! The lowering rules of TensorFlow's ops, in tables by family.
//!
//! Where TensorFlow's kernels and its XLA bridge differ (in sums of bf16, say), rules follow the bridge, since TPUs ran it.
//!
//! Source: TensorFlow's op registrations (`core/ops`) and the kernels of `compiler/tf2xla/kernels`.

mod array;
mod collective;
mod control;
mod convolution;
mod elementwise;
mod gradients;
mod index;
mod linear;
mod list;
mod logits;
mod normal;
mod optimizers;
mod pool;
mod random;
mod reduce;
mod resize;
mod shape;
mod variable;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::Call;
use super::call::Outputs;
use bf16scope_hlo::words;

/// A lowering rule.
pub(crate) type Rule = for<'a, 'b, 'g> fn(&'a mut Call<'b, 'g>) -> Outputs;

/// Rules by op.
pub(crate) type Table = &'static [(&'static str, Rule)];

const TABLES: [Table; 18] = [
    array::TABLE,
    collective::TABLE,
    control::TABLE,
    convolution::TABLE,
    elementwise::TABLE,
    gradients::TABLE,
    index::TABLE,
    linear::TABLE,
    list::TABLE,
    logits::TABLE,
    normal::TABLE,
    optimizers::TABLE,
    pool::TABLE,
    random::TABLE,
    reduce::TABLE,
    resize::TABLE,
    shape::TABLE,
    variable::TABLE,
];

/// The rule of an op.
pub(crate) fn rule(op: &str) -> Option<Rule> {
    static RULES: LazyLock<HashMap<&str, Rule>> =
        LazyLock::new(|| TABLES.iter().flat_map(|table| table.iter().copied()).collect());
    RULES.get(op).copied()
}

/// The ops that become HLO, in alphabetical order.
pub fn known_ops() -> Vec<&'static str> {
    let mut names: Vec<&str> = TABLES.iter().flat_map(|table| table.iter()).map(|(name, _)| *name).collect();
    names.sort_unstable();
    names
}

/// Whether an op draws random numbers from a generator with state.
pub(crate) fn is_random(op: &str) -> bool {
    random::STATEFUL.contains(&op)
}

/// Help for an unknown op: the reason, or a known op with a similar name.
pub(crate) fn nearest(op: &str) -> Option<String> {
    let host =
        ["Decode", "Parse", "Read", "String", "Regex", "Dataset", "Iterator", "Lookup", "Queue", "PyFunc", "Sparse"];
    if host.iter().any(|word| op.contains(word)) {
        return Some(
            "it runs on the host: name tensors behind it, so that what it gives is not needed, or save a graph that begins \
             behind its input pipeline"
                .to_string(),
        );
    }
    let near = words::nearest(op, known_ops())?;
    Some(format!("`{near}` becomes HLO; an op of your own becomes HLO where it is written with TensorFlow's ops"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_op_has_one_rule() {
        let names = known_ops();
        let mut once = names.clone();
        once.dedup();
        assert_eq!(names, once);
        assert!(names.len() > 200 && names.iter().all(|name| !crate::host::is_left_out(name)), "{}", names.len());
    }
}
