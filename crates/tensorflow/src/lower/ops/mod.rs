//! The lowering rules of TensorFlow's ops, in tables by family.
//!
//! Where TensorFlow's kernels and its XLA bridge differ (in sums of bf16, say), rules follow the bridge, since TPUs ran it.
//!
//! Source: TensorFlow's op registrations (`core/ops`) and the kernels of `compiler/tf2xla/kernels`.

mod array;
mod boxes;
mod candidates;
mod collective;
mod control;
mod convolution;
mod diagonal;
mod elementwise;
mod factors;
mod gradients;
mod image;
mod in_place;
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
mod space;
mod special;
mod variable;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::Call;
use super::call::Outputs;

/// A lowering rule.
pub(crate) type Rule = for<'a, 'b, 'g> fn(&'a mut Call<'b, 'g>) -> Outputs;

/// Rules by op.
pub(crate) type Table = &'static [(&'static str, Rule)];

const TABLES: [Table; 26] = [
    array::TABLE,
    boxes::TABLE,
    candidates::TABLE,
    collective::TABLE,
    control::TABLE,
    convolution::TABLE,
    diagonal::TABLE,
    elementwise::TABLE,
    factors::TABLE,
    gradients::TABLE,
    image::TABLE,
    in_place::TABLE,
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
    space::TABLE,
    special::TABLE,
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

/// Parts of names of ops without a rule, and what to write in their place. Of most, XLA would need to know before the program
/// runs how many elements they give.
const REFUSED: [(&str, &str); 13] = [
    ("Where", "how many places it gives is known only when it runs: choose by `tf.where(condition, x, y)`"),
    ("NonMaxSuppressionV2", BOXES),
    ("NonMaxSuppressionV3", BOXES),
    ("NonMaxSuppressionWithOverlaps", BOXES),
    ("UniqueV2", UNIQUE),
    ("UniqueWithCounts", UNIQUE),
    ("Bincount", "how many bins it has is known only when it runs: tf.math.unsorted_segment_sum of ones has a number"),
    (
        "UnigramCandidateSampler",
        "its classes have probabilities that a host counts: hand the sampled classes in as a feature",
    ),
    ("MatrixInverse", PIVOTS),
    ("MatrixSolve", PIVOTS),
    ("MatrixDeterminant", PIVOTS),
    ("MaxPoolGradGradWithArgmax", "the gradient of tf.nn.max_pool2d's gradient is no HLO: keep to first derivatives"),
    ("RandomGamma", "it draws until a number is accepted, as no TPU does: hand its numbers in as a feature"),
];
const BOXES: &str = "how many boxes it gives is known only when it runs: tf.image.non_max_suppression_padded with \
                     `pad_to_max_output_size` gives a number of them";
const PIVOTS: &str = "it chooses pivots, which no TPU does: where the matrix is symmetric and positive definite, write \
                      tf.linalg.cholesky and tf.linalg.cholesky_solve; its determinant is the square of the product of the \
                      factor's diagonal";
const UNIQUE: &str = "how many values it gives is known only when it runs: tf.math.unsorted_segment_sum has a number";

/// An op's name without the prefix of updates of resources and without its version.
fn stem(op: &str) -> &str {
    let op = op.strip_prefix("Resource").unwrap_or(op);
    match op.trim_end_matches(|c: char| c.is_ascii_digit()) {
        name if name.len() < op.len() => name.strip_suffix('V').unwrap_or(op),
        _ => op,
    }
}

/// Help for an unknown op: the reason, or a known op that differs only in its version or in what holds the variable.
pub(crate) fn nearest(op: &str) -> Option<String> {
    if let Some((_, why)) = REFUSED.iter().find(|(part, _)| op.contains(*part)) {
        return Some(why.to_string());
    }
    let host =
        ["Decode", "Parse", "Read", "String", "Regex", "Dataset", "Iterator", "Lookup", "Queue", "PyFunc", "Sparse"];
    if host.iter().any(|word| op.contains(word)) {
        return Some(
            "it runs on the host: name tensors behind it, so that what it gives is not needed, or save a graph that begins \
             behind its input pipeline"
                .to_string(),
        );
    }
    let near = known_ops().into_iter().find(|known| stem(known) == stem(op))?;
    Some(format!("`{near}` becomes HLO; an op of your own becomes HLO where it is written with TensorFlow's ops"))
}

#[cfg(test)]
mod tests;
