//! Maps arrays of a file to our variables: names by rules, shapes compared, every decision recorded. No values are read
//! here. A shape never selects an array; it only helps to describe a missing name.

mod class_order;
mod index;

use super::error::{Misfit, WeightNameError};
use super::further_names::with_further_names;
use super::layout::Layout;
use super::numbering::Numbering;
use super::rules::{Rules, SlotName};
use super::variable::{Given, Role, Scale, Wanted};
use bf16scope_hlo::DType;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

pub(super) use class_order::ClassOrder;
pub(super) use index::Index;

/// The source of each of our variables, and the arrays that are left over.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    /// The family of rules.
    pub family: String,
    /// The next best family and its number of matched variables, if families were compared.
    pub next_best: Option<(String, usize)>,
    /// In the program's order.
    pub variables: Vec<Mapped>,
    /// Names in the file that no variable takes, except those known to hold no weights.
    pub left_over: Vec<String>,
    /// The array with the number of updates.
    pub step: Option<String>,
    /// Names of optimizer state that no slot takes.
    pub state_left: Vec<String>,
    /// A note about slots: why existing ones were not matched, or which order matched them.
    pub about_slots: Option<String>,
    /// A dense kernel that seems to read flattened images, whose channel order may differ.
    pub about_images: Option<String>,
    /// Kernels that nothing but their order tells apart.
    pub about_order: Option<String>,
}

/// A variable and the source of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapped {
    /// The variable.
    pub wanted: Wanted,
    /// The source.
    pub found: Found,
}

/// The source of a variable's values.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// An array of the file.
    Taken {
        /// Its name.
        theirs: String,
        /// Its layout there.
        layout: Layout,
        /// How its numbers are converted.
        cast: Cast,
        /// The meaning of its numbers.
        scale: Scale,
    },
    /// Initial values, because it was excepted.
    Excepted,
    /// Initial values, as in any run.
    Fresh,
    /// No source: it should be in the file, and is missing or does not fit.
    Misfit(Misfit),
}

impl Found {
    /// The array's name, whether it fits or not.
    fn theirs(&self) -> Option<&str> {
        match self {
            Found::Taken { theirs, .. } => Some(theirs),
            Found::Misfit(misfit) => misfit.theirs(),
            Found::Excepted | Found::Fresh => None,
        }
    }
}

/// How numbers are converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cast {
    /// Unchanged.
    Same,
    /// Unchanged, in a wider dtype.
    Widened,
    /// Rounded to nearest.
    Rounded,
}

impl Cast {
    /// The conversion between two dtypes; `None` between a float and another kind.
    pub(super) fn between(from: DType, to: DType) -> Option<Cast> {
        let bits = |dtype: DType| match dtype {
            DType::BF16 => Some((8, 8)),
            DType::F16 => Some((5, 11)),
            DType::F32 => Some((8, 24)),
            DType::F64 => Some((11, 53)),
            _ => None,
        };
        match (bits(from), bits(to)) {
            _ if from == to => Some(Cast::Same),
            (Some((range, digits)), Some((to_range, to_digits))) if range <= to_range && digits <= to_digits => {
                Some(Cast::Widened)
            }
            (Some(_), Some(_)) => Some(Cast::Rounded),
            _ => None,
        }
    }
}

/// A mapping under construction.
#[derive(Default)]
struct Draft<'w> {
    /// For each array, the indices of the variables that take it.
    taken: BTreeMap<String, Vec<usize>>,
    /// For each weight, the array that it takes, and its layout.
    sources: BTreeMap<&'w str, (String, Layout)>,
    /// Indices of variables that may share an array.
    is_shared: BTreeSet<usize>,
    /// Arrays that exist, whether they are taken or not.
    passed: BTreeSet<String>,
}

impl<'w> Draft<'w> {
    /// Finds all weights. Slots and averages come later: their names derive from those of their variables.
    fn weights(&mut self, index: &Index<'w>, arrays: &[Given], excepted: &dyn Fn(&str) -> bool) -> Vec<Mapped> {
        let rules = &index.rules.rules;
        let mut counts = ClassOrder::new(index, arrays);
        let mut variables = Vec::new();
        for (number, variable) in index.wanted.iter().enumerate() {
            let source = match &variable.role {
                Role::Own | Role::Slot { .. } | Role::Average { .. } => Found::Fresh,
                Role::Weight => {
                    let rule = index.rule_for(variable);
                    // A variable that is excepted counts too: the numbering of others does not depend on it.
                    let matched = match rule {
                        Some(rule) => {
                            let count = counts.count(index, variable, rule);
                            index.weight(variable, &rules[rule], count)
                        }
                        None => Found::Misfit(Misfit::NoRule),
                    };
                    if rule.is_some_and(|rule| rules[rule].shared) {
                        self.is_shared.insert(number);
                    }
                    self.passed.extend(matched.theirs().map(str::to_string));
                    if excepted(&variable.name) { Found::Excepted } else { matched }
                }
            };
            if let Found::Taken { theirs, layout, .. } = &source {
                self.taken.entry(theirs.clone()).or_default().push(number);
                self.sources.insert(&variable.name, (theirs.clone(), layout.clone()));
            }
            variables.push(Mapped { wanted: variable.clone(), found: source });
        }
        variables
    }

    /// Finds the slots and averages of the weights that were found.
    fn slots_and_averages(&mut self, index: &Index<'w>, numbering: &Numbering<'_>, variables: &mut [Mapped]) {
        let averages: Vec<SlotName> = index.rules.averages.iter().cloned().map(SlotName::from).collect();
        for (number, mapped) in variables.iter_mut().enumerate() {
            let (weight, source) = match &mapped.wanted.role {
                Role::Slot { of, slot } => {
                    (of, index.slot(&mapped.wanted, self.sources.get(of.as_str()), slot, numbering))
                }
                Role::Average { of } => {
                    (of, index.about(&mapped.wanted, self.sources.get(of.as_str()), &averages, &[]))
                }
                Role::Own | Role::Weight => continue,
            };
            if let Found::Taken { theirs, .. } = &source {
                self.taken.entry(theirs.clone()).or_default().push(number);
            }
            let weight = index.wanted.iter().position(|it| it.name == *weight);
            if weight.is_some_and(|weight| self.is_shared.contains(&weight)) {
                self.is_shared.insert(number);
            }
            mapped.found = source;
        }
    }

    /// Names of arrays that no variable takes: those unknown to the rules, and those of optimizer state.
    fn untaken(&self, rules: &Rules, arrays: &[Given], step: Option<&str>) -> (Vec<String>, Vec<String>) {
        let is_unused = |name: &str| rules.unused.iter().any(|pattern| pattern.matches(name));
        // Slots and averages have names below their variable's.
        let is_about = |name: &str| name.match_indices('/').any(|(at, _)| self.taken.contains_key(&name[..at]));
        let is_known = |name: &str| {
            self.taken.contains_key(name)
                || self.passed.contains(name)
                || is_unused(name)
                || is_about(name)
                || step == Some(name)
        };
        // An alias from the file's object graph may also show that an array holds no weights.
        let is_left = |array: &&Given| !is_known(&array.name) && !array.aliases.iter().any(|alias| is_unused(alias));
        let is_state = |name: &&String| {
            let is_numbered = rules.unused.iter().any(|pattern| pattern.is_of_optimizers() && pattern.matches(name));
            !self.taken.contains_key(*name) && step != Some(name.as_str()) && (is_about(name) || is_numbered)
        };
        let left_over = arrays.iter().filter(is_left).map(|array| array.name.clone()).collect();
        let state_left = arrays.iter().map(|array| &array.name).filter(is_state).cloned().collect();
        (left_over, state_left)
    }
}

impl Mapping {
    /// The mapping by the family that finds most variables of the network; the first on a tie.
    pub fn from_best_family(wanted: &[Wanted], arrays: &[Given], excepted: &dyn Fn(&str) -> bool) -> Mapping {
        let mut all: Vec<Mapping> =
            Rules::all().iter().map(|rules| Mapping::from_rules(rules, wanted, arrays, excepted)).collect();
        // A stable sort: the first of equals stays first. If two families know the same names, the one that also finds
        // the optimizer's state wins.
        all.sort_by_key(|mapping| std::cmp::Reverse((mapping.n_known(), mapping.n_slots())));
        let mut all = all.into_iter();
        let best = all.next().expect("there are families");
        let next = all.next().map(|next| (next.family.clone(), next.n_known()));
        Mapping { next_best: next, ..best }
    }

    /// The mapping by these rules.
    pub fn from_rules(rules: &Rules, wanted: &[Wanted], arrays: &[Given], excepted: &dyn Fn(&str) -> bool) -> Mapping {
        let arrays = with_further_names(&rules.also, arrays);
        let arrays: &[Given] = &arrays;
        let index = Index::new(rules, wanted, arrays);
        let mut draft = Draft::default();
        let mut variables = draft.weights(&index, arrays, excepted);
        let numbering = index.numbering(&draft.sources);
        draft.slots_and_averages(&index, &numbering, &mut variables);
        let about_slots = index.told_of_slots(&numbering, &mut variables, &mut draft.taken);
        not_twice(&mut variables, &draft.taken, &draft.is_shared);
        let about_images = flattened(&variables);
        let about_order = rules.by_order.then(|| alike(&variables)).flatten();
        let step = rules.step.iter().find_map(|name| index.by_name.get(name.as_str())).map(|array| array.name.clone());
        let (left_over, state_left) = draft.untaken(rules, arrays, step.as_deref());
        let mut mapping = Mapping {
            family: rules.family.clone(),
            next_best: None,
            variables,
            left_over,
            step,
            state_left,
            about_slots,
            about_images,
            about_order,
        };
        mapping.tell_near_misses(arrays);
        mapping
    }

    /// The number of the network's variables whose names are in the file, whether they fit or not.
    fn n_known(&self) -> usize {
        let known = self.variables.iter().filter(|it| it.wanted.role == Role::Weight && it.found.theirs().is_some());
        known.count()
    }

    /// The number of slots and averages in the file.
    fn n_slots(&self) -> usize {
        let about =
            self.variables.iter().filter(|it| matches!(it.wanted.role, Role::Slot { .. } | Role::Average { .. }));
        about.filter(|it| matches!(it.found, Found::Taken { .. })).count()
    }

    /// Checks that every variable of the network is in the file or was excepted.
    ///
    /// # Errors
    /// [`WeightNameError::Unfit`] with all others; `file` is named in it.
    pub fn check(&self, file: &str) -> Result<(), WeightNameError> {
        let misfits: Vec<(Wanted, Misfit)> = self
            .variables
            .iter()
            .filter_map(|it| match &it.found {
                Found::Misfit(misfit) => Some((it.wanted.clone(), misfit.clone())),
                _ => None,
            })
            .collect();
        if misfits.is_empty() {
            return Ok(());
        }
        let n_variables = self.variables.iter().filter(|it| it.wanted.role == Role::Weight).count();
        Err(WeightNameError::Unfit {
            file: file.to_string(),
            family: self.family.clone(),
            n_variables,
            misfits,
            left_over: self.left_over.clone(),
        })
    }

    /// Adds the probable meaning to missing names: similar names that nothing takes, or the only array of the shape.
    fn tell_near_misses(&mut self, arrays: &[Given]) {
        let left: Vec<&Given> = arrays.iter().filter(|array| self.left_over.contains(&array.name)).collect();
        for mapped in &mut self.variables {
            let Found::Misfit(Misfit::Missing { expected, dims, near }) = &mut mapped.found else { continue };
            let close = left.iter().map(|array| (strsim::normalized_damerau_levenshtein(expected, &array.name), array));
            let close = close.filter(|(similarity, _)| *similarity >= NEAR).max_by(|a, b| a.0.total_cmp(&b.0));
            let mut same = left.iter().filter(|array| array.dims == *dims);
            *near = match (close, same.next(), same.next()) {
                (Some((_, array)), _, _) => Some(format!("did you mean {}?", array.name)),
                (None, Some(only), None) => Some(format!("only {} has that shape, and nothing takes it", only.name)),
                _ => None,
            };
        }
    }
}

/// The first dense kernel after convolutions whose kernels have channels first in the file, if it has several rows per
/// channel: the file does not show whether its input was flattened channels first.
fn flattened(variables: &[Mapped]) -> Option<String> {
    let taken = variables.iter().filter_map(|mapped| match &mapped.found {
        Found::Taken { layout, .. } if mapped.wanted.role == Role::Weight => Some((&mapped.wanted, layout)),
        _ => None,
    });
    let mut channels = None;
    for (wanted, layout) in taken {
        match (&wanted.shape.dims[..], channels) {
            ([_, _, _, n], _) => channels = layout.transpose.is_some().then_some(*n),
            ([inputs, _], Some(n)) => {
                let is_flat = *inputs > n && inputs % n == 0 && layout.channels_first.is_none();
                let text = format!(
                    "{} has {} numbers for each of {n} channels: if it reads images that were flattened there channels first, as by \
                     PyTorch's `flatten`, its rule needs `channels_first: [{n}, height, width]`",
                    wanted.name,
                    inputs / n
                );
                return is_flat.then_some(text);
            }
            _ => {}
        }
    }
    None
}

/// Kernels that have the shape of another of the same class: the path in the file is the same but for numbers.
fn alike(variables: &[Mapped]) -> Option<String> {
    let mut classes: BTreeMap<(String, &[i64]), Vec<&str>> = BTreeMap::new();
    for Mapped { wanted, found } in variables {
        if let (Role::Weight, [_, _, ..], Some(theirs)) = (&wanted.role, &wanted.shape.dims[..], found.theirs()) {
            let class = theirs.chars().filter(|c| !c.is_ascii_digit() && *c != '_').collect();
            classes.entry((class, &wanted.shape.dims)).or_default().push(&wanted.name);
        }
    }
    let alike: Vec<&Vec<&str>> = classes.values().filter(|names| names.len() > 1).collect();
    let first = alike.first()?;
    let n: usize = alike.iter().map(|names| names.len()).sum();
    Some(format!(
        "nothing but the order of layers tells {n} kernels of one class and shape apart, as {} and {}: where branches may be in another \
         order, compare results with `--check`",
        first[0], first[1]
    ))
}

/// The similarity of a near name: four letters of five.
const NEAR: f64 = 0.8;

/// Makes misfits of variables that take the same array as another, unless their rule allows it.
fn not_twice(variables: &mut [Mapped], taken: &BTreeMap<String, Vec<usize>>, is_shared: &BTreeSet<usize>) {
    for (theirs, numbers) in taken {
        for (at, &number) in numbers.iter().enumerate() {
            let layout = |number: usize| match &variables[number].found {
                Found::Taken { layout, .. } => layout.part,
                _ => None,
            };
            let other = numbers[..at].iter().copied().find(|&other| layout(other) == layout(number));
            let Some(other) = other.filter(|other| !is_shared.contains(&number) && !is_shared.contains(other)) else {
                continue;
            };
            let with = variables[other].wanted.name.clone();
            variables[number].found = Found::Misfit(Misfit::Twice { theirs: vec![theirs.clone()], with: Some(with) });
        }
    }
}
