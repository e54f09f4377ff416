//! Errors of building a program.

use bf16scope_model::graph::BuildError;
use bf16scope_passes::PassError;

/// Why a program cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The task cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The loss has no gradient, or the step cannot be split or rematerialised.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// No trainable variable has a gradient.
    #[error(
        "the loss has no gradient for any variable that trains ({}): it depends on {}\nhelp: let the loss judge what the network makes of them, and through floats: a comparison or an index has no gradient",
        some_of(variables, "there is none: layers or patterns freeze all of them"),
        some_of(depends_on, "constants alone")
    )]
    NoGradient {
        /// The trainable variables.
        variables: Vec<String>,
        /// Inputs and variables that the loss depends on.
        depends_on: Vec<String>,
    },
    /// A loss that does not depend on a variable that it is meant to train.
    #[error(
        "loss `{loss}` has no gradient for {}, which its `variables` name: it depends on {}\nhelp: name the variables that it depends on, or let it judge what they make",
        some_of(variables, "anything"),
        some_of(depends_on, "constants alone")
    )]
    NoGradientOf {
        /// The loss's name, or the names of the losses whose sum it is.
        loss: String,
        /// Variables that it does not depend on.
        variables: Vec<String>,
        /// Inputs and variables that it depends on.
        depends_on: Vec<String>,
    },
    /// A pattern of trainable variables that matches none.
    #[error(
        "`{pattern}` under `trainable` is the name of no variable that could train{}\nhelp: `*` is any text: `*/logits/*` is all of a layer `logits`",
        near.as_ref().map_or(String::new(), |near| format!(": did you mean `{near}`?"))
    )]
    Trainable {
        /// The pattern.
        pattern: String,
        /// A variable whose name is near.
        near: Option<String>,
    },
    /// Micro-batches of different sizes.
    #[error("accumulate is {n}, which does not divide the batch of {batch}\nhelp: make the batch a multiple of it, such as {}", nearest_multiple(*.n, *.batch))]
    Accumulate {
        /// The number of micro-batches.
        n: u32,
        /// The number of examples in the batch.
        batch: i64,
    },
    /// Replicas with parts of different sizes.
    #[error("the mesh has {n} replicas, which do not divide the batch of {batch}\nhelp: the batch is that of all replicas: make it a multiple of {n}, such as {}", nearest_multiple(*.n, *.batch))]
    Replicas {
        /// The number of replicas.
        n: u32,
        /// The number of examples in the batch.
        batch: i64,
    },
    /// Groups of replicas of different sizes for batch statistics.
    #[error(
        "batch_norm takes statistics across {across} replicas, and the mesh has {n}\nhelp: make `across` a number that divides {n}"
    )]
    Statistics {
        /// The number of replicas in a group.
        across: u32,
        /// The number of replicas.
        n: u32,
    },
    /// A mesh with no devices.
    #[error("0 replicas; expected 1 or more\nhelp: `replicas(1)` trains on one device")]
    NoReplicas,
    /// Parameters to split, with one device per replica.
    #[error(
        "`split` says what the devices of a replica split, and a replica has one\nhelp: add `model: 2` to `mesh`, or leave `split` out"
    )]
    NoModelAxis,
    /// Sharded state on replicas that are themselves partitioned.
    #[error(
        "`state: sharded` spreads variables over replicas, and `model` splits them within one: both at once are not possible yet\nhelp: leave one of them out"
    )]
    ShardedParts,
    /// Images in one dimension on replicas that are themselves partitioned.
    #[error(
        "`transpose_input` hands images over in one dimension, and `model` splits what a replica has: both at once are not possible\nhelp: leave one of them out"
    )]
    TransposedParts,
}

/// The first names, and the number of the others.
pub(super) fn some_of(names: &[String], none: &str) -> String {
    const N_NAMED: usize = 6;
    match names.len().checked_sub(N_NAMED) {
        _ if names.is_empty() => none.to_string(),
        Some(n_more) if n_more > 0 => format!("{} and {n_more} more", names[..N_NAMED].join(", ")),
        _ => names.join(", "),
    }
}

/// The positive multiple of `n` nearest to `batch`.
fn nearest_multiple(n: u32, batch: i64) -> i64 {
    let n = i64::from(n);
    ((batch + n / 2) / n).max(1).saturating_mul(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshes_that_cannot_be_say_what_to_leave_out() {
        assert_eq!(
            ProgramError::NoModelAxis.to_string(),
            "`split` says what the devices of a replica split, and a replica has one\nhelp: add `model: 2` to `mesh`, or \
             leave `split` out"
        );
        assert_eq!(
            ProgramError::ShardedParts.to_string(),
            "`state: sharded` spreads variables over replicas, and `model` splits them within one: both at once are not \
             possible yet\nhelp: leave one of them out"
        );
    }
}
