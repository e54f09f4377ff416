//! Errors of loading weights into a model, each with advice.

use super::rules::RulesError;
use super::variable::{Role, Wanted};
use bf16scope_data::weights::WeightsError;
use std::error::Error;
use std::fmt;

/// Why weights cannot be loaded into a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightNameError {
    /// Rules that cannot be read.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// A weights file that cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Variables that are missing from the file, or do not fit.
    #[error("{file} does not fit the model{}{}\nhelp: {}", by_family(family), problems(misfits, *n_variables), help(family, misfits, *n_variables, left_over))]
    Unfit {
        /// The file.
        file: String,
        /// The rules.
        family: String,
        /// The number of variables that the network reads.
        n_variables: usize,
        /// The misfit of each variable.
        misfits: Vec<(Wanted, Misfit)>,
        /// Names in the file that no variable takes.
        left_over: Vec<String>,
    },
    /// A number that is none.
    #[error(
        "{file}: {theirs} is not finite: element {idx} of {ours} would be {value}\nhelp: it is of a training that went wrong: \
         take an earlier checkpoint of it{}",
        if *is_rounded { ", or `variables: f32` if the number is only too large for what it is stored in" } else { "" }
    )]
    NotFinite {
        /// The file.
        file: String,
        /// The array.
        theirs: String,
        /// The variable.
        ours: String,
        /// Index of the element in the variable, row-major.
        idx: usize,
        /// Its value.
        value: String,
        /// Whether the array's own number is finite, so that rounding made it infinite.
        is_rounded: bool,
    },
    /// A pattern of `except` that matches no variable.
    #[error(
        "`{pattern}` under `except` is the name of no variable{}\nhelp: `*` is any text: `*/logits/*` is all of a layer `logits`",
        near.as_ref().map_or(String::new(), |near| format!(": did you mean `{near}`?"))
    )]
    Idle {
        /// The pattern.
        pattern: String,
        /// A variable whose name is near.
        near: Option<String>,
    },
    /// A variable that the family's rules cannot write.
    #[error(
        "{ours} cannot be written by the rules of {family}: {why}\nhelp: write our own names (`--rules names`), or name a file of rules"
    )]
    Backwards {
        /// The rules.
        family: String,
        /// The variable.
        ours: String,
        /// The reason.
        why: String,
    },
    /// An array cannot be read.
    #[error("{file}: {theirs} cannot be read")]
    Read {
        /// The file.
        file: String,
        /// The array.
        theirs: String,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Why a variable has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfit {
    /// No rule matches it.
    NoRule,
    /// The file lacks the name that a rule gives.
    Missing {
        /// That name.
        expected: String,
        /// The dims it would have.
        dims: Vec<i64>,
        /// A similar name.
        near: Option<String>,
    },
    /// Several arrays match, or one that another variable takes.
    Twice {
        /// The arrays.
        theirs: Vec<String>,
        /// The other variable.
        with: Option<String>,
    },
    /// The rule is for another number of axes.
    Rank {
        /// The array.
        theirs: String,
        /// The rule's layout.
        layout: String,
    },
    /// The same axes in another order.
    Transposed {
        /// The array.
        theirs: String,
        /// Its dims.
        dims: Vec<i64>,
        /// The expected dims.
        expected: Vec<i64>,
    },
    /// One axis has another length.
    Size {
        /// The array.
        theirs: String,
        /// Its dims.
        dims: Vec<i64>,
        /// The expected dims.
        expected: Vec<i64>,
        /// The axis.
        axis: usize,
    },
    /// Other dims.
    Shape {
        /// The array.
        theirs: String,
        /// Its dims.
        dims: Vec<i64>,
        /// The expected dims.
        expected: Vec<i64>,
    },
    /// A dtype that cannot be converted to the variable's.
    Dtype {
        /// The array.
        theirs: String,
        /// Its dtype.
        dtype: String,
    },
}

impl Misfit {
    pub(super) fn of_shape(theirs: String, dims: &[i64], expected: &[i64]) -> Misfit {
        let sorted = |dims: &[i64]| {
            let mut dims = dims.to_vec();
            dims.sort_unstable();
            dims
        };
        let (dims, expected) = (dims.to_vec(), expected.to_vec());
        let others = || dims.iter().zip(&expected).enumerate().filter(|(_, (given, expected))| given != expected);
        match others().next() {
            _ if dims.len() > 1 && sorted(&dims) == sorted(&expected) => Misfit::Transposed { theirs, dims, expected },
            Some((axis, _)) if dims.len() == expected.len() && others().count() == 1 => {
                Misfit::Size { theirs, dims, expected, axis }
            }
            _ => Misfit::Shape { theirs, dims, expected },
        }
    }

    /// The only array that does not fit, if there is exactly one.
    pub(super) fn theirs(&self) -> Option<&str> {
        match self {
            Misfit::NoRule | Misfit::Missing { .. } => None,
            Misfit::Twice { theirs, .. } => theirs.first().map(String::as_str),
            Misfit::Rank { theirs, .. }
            | Misfit::Transposed { theirs, .. }
            | Misfit::Size { theirs, .. }
            | Misfit::Shape { theirs, .. }
            | Misfit::Dtype { theirs, .. } => Some(theirs),
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::NoRule => write!(f, "is named by no rule"),
            Misfit::Missing { expected, near, .. } => {
                write!(f, "is missing: there is no {expected}")?;
                near.as_ref().map_or(Ok(()), |near| write!(f, "; {near}"))
            }
            Misfit::Twice { theirs, with: None } => write!(f, "could be any of {}", theirs.join(", ")),
            Misfit::Twice { theirs, with: Some(with) } => write!(f, "would be {}, as {with} is", theirs.join(", ")),
            Misfit::Rank { theirs, layout } => {
                write!(f, "has other axes than the rule for {theirs} is for ({layout})")
            }
            Misfit::Transposed { theirs, dims, expected } => {
                write!(f, "fits transposed only: {theirs} is {dims:?}, expected {expected:?}")
            }
            Misfit::Size { theirs, dims, expected, axis } => write!(
                f,
                "is {} along axis {axis}, expected {}: {theirs} is {dims:?}, expected {expected:?}",
                dims[*axis], expected[*axis]
            ),
            Misfit::Shape { theirs, dims, expected } => {
                write!(f, "has another shape: {theirs} is {dims:?}, expected {expected:?}")
            }
            Misfit::Dtype { theirs, dtype } => write!(f, "cannot be made of {theirs}, which is {dtype}"),
        }
    }
}

fn by_family(family: &str) -> String {
    if family == "names" { String::new() } else { format!(", by the rules of {family}") }
}

/// At most this many variables are named.
const N_NAMED: usize = 6;

fn problems(misfits: &[(Wanted, Misfit)], n_variables: usize) -> String {
    let mut text = format!(": {} of its {n_variables} variables", misfits.len());
    for (wanted, misfit) in misfits.iter().take(N_NAMED) {
        text += &format!("\n  {} {misfit}", wanted.name);
    }
    match misfits.len().checked_sub(N_NAMED) {
        Some(n) if n > 0 => text + &format!("\n  and {n} more"),
        _ => text,
    }
}

/// The advice, by the most frequent misfit.
fn help(family: &str, misfits: &[(Wanted, Misfit)], n_variables: usize, left_over: &[String]) -> String {
    let n = |is: fn(&Misfit) -> bool| misfits.iter().filter(|(_, misfit)| is(misfit)).count();
    let n_absent = n(|misfit| matches!(misfit, Misfit::NoRule | Misfit::Missing { .. }));
    let n_left = left_over.len();
    if n_absent * 2 > n_variables {
        let some: Vec<&str> = left_over.iter().take(3).map(String::as_str).collect();
        let has = if some.is_empty() { String::new() } else { format!(", which has {}", some.join(", ")) };
        return format!(
            "it is of another model, or its names are of another family{has}: `rules` under `train`, or \
             `--rules` of `weights`, takes {}, or a file",
            super::families().join(", ")
        );
    }
    let first = &misfits[0];
    match &first.1 {
        Misfit::Transposed { dims, .. } => format!(
            "a rule with `transpose: {:?}` reads it: name a file of rules with `rules` under `train`, or `--rules` of `weights`",
            (0..dims.len()).rev().collect::<Vec<_>>()
        ),
        Misfit::Twice { .. } => {
            "name a file of rules in which each variable has one name (`rules` under `train`, or `--rules` of `weights`), with `shared: true` where \
             two variables have the same values"
                .to_string()
        }
        Misfit::Size { .. } | Misfit::Shape { .. } | Misfit::Rank { .. } | Misfit::Missing { .. } | Misfit::NoRule
            if first.1 != Misfit::NoRule || family != "names" =>
        {
            let sized = if matches!(first.1, Misfit::Size { .. }) { "for another number of classes, " } else { "" };
            let left = if n_left > 0 { "; what is left over may be meant: see `bf16scope weights FILE`" } else { "" };
            format!("{sized}start them afresh: `except: [{}]` under `train`{left}", excepting(misfits))
        }
        _ => "name rules for these names with `rules` under `train`, or `--rules` of `weights`".to_string(),
    }
}

/// Patterns that except all of these variables: a layer's, if several of its variables are among them.
fn excepting(misfits: &[(Wanted, Misfit)]) -> String {
    let mut patterns: Vec<String> = Vec::new();
    let weights = || misfits.iter().map(|(wanted, _)| wanted).filter(|wanted| wanted.role == Role::Weight);
    let layer = |name: &str| name.rsplit_once('/').map(|(layer, _)| layer.to_string());
    for wanted in weights() {
        let of_layer = weights().filter(|other| layer(&other.name) == layer(&wanted.name)).count();
        let pattern = match layer(&wanted.name) {
            Some(layer) if of_layer > 1 => format!("{layer}/*"),
            _ => wanted.name.clone(),
        };
        // Quoted: an unquoted star begins an alias in YAML.
        let pattern = format!("'{pattern}'");
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    patterns.join(", ")
}

#[cfg(test)]
mod tests;
