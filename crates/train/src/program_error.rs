//! Why there may be no program.

use bf16scope_model::graph::BuildError;
use bf16scope_passes::PassError;

/// Why there is no program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The task cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The loss has no gradient, or what is to be split or rematerialised cannot be.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// Nothing that trains has a gradient.
    #[error(
        "the loss has no gradient for any variable that trains ({}): it depends on {}\nhelp: let the loss judge what the network makes of them, and through floats: a comparison or an index has no gradient",
        some_of(variables, "there is none"),
        some_of(depends_on, "constants alone")
    )]
    NoGradient {
        /// Variables that train.
        variables: Vec<String>,
        /// Inputs and variables that the loss is computed from.
        depends_on: Vec<String>,
    },
    /// A variable that a loss is to train, and does not depend on.
    #[error(
        "loss `{loss}` has no gradient for {}, which its `variables` name: it depends on {}\nhelp: name the variables that it depends on, or let it judge what they make",
        some_of(variables, "anything"),
        some_of(depends_on, "constants alone")
    )]
    NoGradientOf {
        /// The loss's name, or those of several whose sum it is.
        loss: String,
        /// Variables that it does not depend on.
        variables: Vec<String>,
        /// Inputs and variables that it is computed from.
        depends_on: Vec<String>,
    },
    /// A pattern of what trains that is for no variable.
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
    /// Micro-batches would differ in size.
    #[error("accumulate is {n}, which does not divide the batch of {batch}\nhelp: make the batch a multiple of it, such as {}", nearest_multiple(*.n, *.batch))]
    Accumulate {
        /// How many micro-batches were asked for.
        n: u32,
        /// Examples in the batch.
        batch: i64,
    },
    /// Replicas would have parts that differ in size.
    #[error("the mesh has {n} replicas, which do not divide the batch of {batch}\nhelp: the batch is that of all replicas: make it a multiple of {n}, such as {}", nearest_multiple(*.n, *.batch))]
    Replicas {
        /// Replicas.
        n: u32,
        /// Examples in the batch.
        batch: i64,
    },
    /// Groups of replicas that take statistics together would differ in size.
    #[error(
        "batch_norm takes statistics across {across} replicas, and the mesh has {n}\nhelp: make `across` a number that divides {n}"
    )]
    Statistics {
        /// Replicas in a group.
        across: u32,
        /// Replicas.
        n: u32,
    },
    /// A mesh without devices.
    #[error("0 replicas; expected 1 or more\nhelp: `replicas(1)` trains on one device")]
    NoReplicas,
    /// Something to split, and one device for each replica.
    #[error(
        "`split` says what the devices of a replica split, and a replica has one\nhelp: add `model: 2` to `mesh`, or leave `split` out"
    )]
    NoModelAxis,
    /// State sharded over replicas that are themselves split.
    #[error(
        "`state: sharded` spreads variables over replicas, and `model` splits them within one: both at once are not possible yet\nhelp: leave one of them out"
    )]
    ShardedParts,
    /// Images in one dimension for replicas that are themselves split.
    #[error(
        "`transpose_input` hands images over in one dimension, and `model` splits what a replica has: both at once are not possible\nhelp: leave one of them out"
    )]
    TransposedParts,
}

/// The first names, and how many more there are.
fn some_of(names: &[String], none: &str) -> String {
    const N_NAMED: usize = 6;
    match names.len().checked_sub(N_NAMED) {
        _ if names.is_empty() => none.to_string(),
        Some(n_more) if n_more > 0 => format!("{} and {n_more} more", names[..N_NAMED].join(", ")),
        _ => names.join(", "),
    }
}

/// The multiple of `n` nearest to `batch`, but not 0.
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
