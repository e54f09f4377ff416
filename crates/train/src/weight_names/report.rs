//! Summarises a mapping in counts and sentences.

use super::mapping::{Cast, Found, Mapping};
use super::variable::Role;
use std::fmt;

/// The number of variables that were taken, by conversion; those that start afresh; the arrays that are left over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingSummary {
    family: String,
    next_best: Option<(String, usize)>,
    n_variables: usize,
    n_taken: usize,
    n_relaid: usize,
    n_widened: usize,
    n_rounded: usize,
    n_about: usize,
    excepted: Vec<String>,
    left_over: Vec<String>,
    about_slots: Option<String>,
    about_images: Option<String>,
    about_order: Option<String>,
}

impl Mapping {
    /// The counts of the mapping.
    pub fn summary(&self) -> MappingSummary {
        let weights = || self.variables.iter().filter(|it| it.wanted.role == Role::Weight);
        let taken = |is_counted: &dyn Fn(bool, Cast) -> bool| {
            let is = |source: &Found| match source {
                Found::Taken { layout, cast, .. } => is_counted(*layout != super::Layout::default(), *cast),
                _ => false,
            };
            weights().filter(|it| is(&it.found)).count()
        };
        let excepted = weights().filter(|it| it.found == Found::Excepted);
        let is_about = |role: &Role| matches!(role, Role::Slot { .. } | Role::Average { .. });
        let about = self.variables.iter().filter(|it| is_about(&it.wanted.role));
        MappingSummary {
            family: self.family.clone(),
            next_best: self.next_best.clone(),
            n_variables: weights().count(),
            n_taken: taken(&|_, _| true),
            n_relaid: taken(&|is_relaid, _| is_relaid),
            n_widened: taken(&|_, cast| cast == Cast::Widened),
            n_rounded: taken(&|_, cast| cast == Cast::Rounded),
            n_about: about.filter(|it| matches!(it.found, Found::Taken { .. })).count(),
            excepted: excepted.map(|it| it.wanted.name.clone()).collect(),
            left_over: self.left_over.clone(),
            about_slots: self.about_slots.clone(),
            about_images: self.about_images.clone(),
            about_order: self.about_order.clone(),
        }
    }
}

/// At most this many names are listed.
const N_NAMED: usize = 4;

fn list(names: &[String]) -> String {
    match names.len().checked_sub(N_NAMED) {
        Some(n) if n > 0 => format!("{} and {n} more", names[..N_NAMED].join(", ")),
        _ => names.join(", "),
    }
}

impl fmt::Display for MappingSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MappingSummary { family, n_variables, n_taken, n_relaid, n_widened, n_rounded, n_about, .. } = self;
        let by = if family == "names" { "by their own names".to_string() } else { format!("by the rules of {family}") };
        write!(f, "{n_taken} of {n_variables} variables taken {by}")?;
        if let Some((next, n)) = self.next_best.as_ref().filter(|(_, n)| *n > 0 && family != "names") {
            write!(f, " (by those of {next} {n})")?;
        }
        let counted = [(n_relaid, "laid out otherwise"), (n_widened, "widened"), (n_rounded, "rounded")];
        for (n, what) in counted.into_iter().filter(|(n, _)| **n > 0) {
            write!(f, ", {n} {what}")?;
        }
        if *n_about > 0 {
            write!(f, "; {n_about} slots and averages")?;
        }
        if !self.excepted.is_empty() {
            write!(f, "; start afresh: {}", list(&self.excepted))?;
        }
        if !self.left_over.is_empty() {
            write!(f, "; left over: {}", list(&self.left_over))?;
        }
        let about = [&self.about_slots, &self.about_images, &self.about_order];
        about.into_iter().flatten().try_for_each(|about| write!(f, "; {about}"))
    }
}
