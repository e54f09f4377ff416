//! Sequences of labels that have to fit into the steps of a network's output, as those of CTC.

use crate::error::{DataError, DataErrorKind};

/// The steps in which a sequence of labels is to be said. Each label takes a step of its own, and a blank stands
/// between two that are equal. With fewer steps there is no alignment: the probability is 0, and the loss infinite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// The steps of the output.
    pub n_steps: i64,
    /// The class that is no label: it ends a sequence whose length is not known, and separates equal labels.
    pub blank: i64,
    /// The feature with the number of labels of each example. Default: those before the first blank.
    pub label_lengths: Option<String>,
    /// The feature with the number of steps of each example. Default: all.
    pub logit_lengths: Option<String>,
}

/// A sequence of labels that needs more steps than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The example, from 0.
    pub example: usize,
    /// Its labels.
    pub n_labels: usize,
    /// Those that need a blank before them.
    pub n_separated: usize,
    /// Its steps.
    pub n_steps: i128,
}

impl Misfit {
    /// The labels, and the steps that they need.
    pub fn in_words(&self) -> String {
        let counted = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
        let separated = match self.n_separated {
            0 => String::new(),
            n => format!(" and {} between equal ones", counted(n, "blank")),
        };
        let needed = self.n_labels + self.n_separated;
        format!("{}{separated}, which need {needed} steps of the output", counted(self.n_labels, "label"))
    }

    /// The error of an example at `place`.
    pub(crate) fn error(&self, feature: &str, place: String) -> DataError {
        let message = format!("`{feature}` has {}; expected at most {}", self.in_words(), self.n_steps);
        DataError::new(DataErrorKind::Mismatch, place, message)
            .help("leave such examples out, or let the network keep more steps: with smaller strides, or longer inputs")
    }
}

impl Alignment {
    /// The misfit of an example's labels, if they have one.
    pub(crate) fn misfit(
        &self,
        example: usize,
        labels: &[i128],
        n_labels: Option<i128>,
        n_steps: Option<i128>,
    ) -> Option<Misfit> {
        let blank = i128::from(self.blank);
        let n_labels = match n_labels {
            Some(n) => usize::try_from(n).unwrap_or(0).min(labels.len()),
            None => labels.iter().position(|&label| label == blank).unwrap_or(labels.len()),
        };
        // A blank among the labels is passed as one between them is.
        let is_separated = |pair: &&[i128]| pair[0] == pair[1] || pair[1] == blank;
        let n_separated = labels[..n_labels].windows(2).filter(is_separated).count();
        let n_steps = n_steps.unwrap_or(i128::from(self.n_steps)).min(i128::from(self.n_steps));
        let fits = (n_labels + n_separated) as i128 <= n_steps;
        (!fits).then_some(Misfit { example, n_labels, n_separated, n_steps })
    }
}
