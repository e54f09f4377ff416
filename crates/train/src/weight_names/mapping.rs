//! Maps arrays of a file to our variables: names by rules, shapes compared, every decision recorded. No values are read
//! here. A shape never selects an array; it only helps to describe a missing name.

use super::error::{Misfit, WeightNameError};
use super::layout::Layout;
use super::numbering::Numbering;
use super::pattern::{Standing, Template};
use super::rules::{Beside, Rule, Rules, SlotName};
use super::variable::{Given, Role, Scale, Wanted};
use bf16scope_hlo::DType;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

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
    fn between(from: DType, to: DType) -> Option<Cast> {
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
    fn weights(&mut self, index: &Index<'w>, excepted: &dyn Fn(&str) -> bool) -> Vec<Mapped> {
        let rules = &index.rules.rules;
        let mut counts = vec![0; rules.len()];
        let mut variables = Vec::new();
        for (number, variable) in index.wanted.iter().enumerate() {
            let source = match &variable.role {
                Role::Own | Role::Slot { .. } | Role::Average { .. } => Found::Fresh,
                Role::Weight => {
                    let rule = index.rule_for(variable);
                    // A variable that is excepted counts too: the numbering of others does not depend on it.
                    let matched = match rule {
                        Some(rule) => {
                            let count = counts[rule];
                            counts[rule] += 1;
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
        let index = Index::new(rules, wanted, arrays);
        let mut draft = Draft::default();
        let mut variables = draft.weights(&index, excepted);
        let numbering = index.numbering(&draft.sources);
        draft.slots_and_averages(&index, &numbering, &mut variables);
        let about_slots = index.told_of_slots(&numbering, &mut variables, &mut draft.taken);
        not_twice(&mut variables, &draft.taken, &draft.is_shared);
        let about_images = flattened(&variables);
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

/// The tables in which rules look up names.
pub(super) struct Index<'a> {
    rules: &'a Rules,
    wanted: &'a [Wanted],
    by_name: BTreeMap<&'a str, &'a Given>,
    /// The position of each variable of the network within its layer.
    places: BTreeMap<&'a str, usize>,
}

/// The layer of a variable, and its name in the layer.
fn in_layer(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

/// Whether dims have this rank and this last axis, where those are given.
fn is_shaped(dims: &[i64], rank: Option<usize>, last: Option<i64>) -> bool {
    rank.is_none_or(|rank| rank == dims.len()) && last.is_none_or(|last| dims.last() == Some(&last))
}

impl<'a> Index<'a> {
    pub(super) fn new(rules: &'a Rules, wanted: &'a [Wanted], arrays: &'a [Given]) -> Index<'a> {
        let mut aliases: BTreeMap<&str, Vec<&Given>> = BTreeMap::new();
        for array in arrays {
            array.aliases.iter().for_each(|alias| aliases.entry(alias).or_default().push(array));
        }
        // Keras saves an exported variable under a public and a private attribute.
        let is_public = |array: &&&Given| !array.name.starts_with('_');
        let only = |(alias, arrays): (&'a str, Vec<&'a Given>)| match arrays[..] {
            [one] => Some((alias, one)),
            _ => {
                let mut public = arrays.iter().filter(is_public);
                public.next().filter(|_| public.next().is_none()).map(|one| (alias, *one))
            }
        };
        let aliases = aliases.into_iter().filter_map(only);
        // An array's own name takes precedence over another array's alias.
        let by_name = aliases.chain(arrays.iter().map(|array| (array.name.as_str(), array))).collect();
        let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
        let weights = wanted.iter().filter(|variable| variable.role == Role::Weight);
        let places = weights.map(|variable| {
            let n = sizes.entry(in_layer(&variable.name).0).or_default();
            *n += 1;
            (variable.name.as_str(), *n - 1)
        });
        Index { rules, wanted, by_name, places: places.collect() }
    }

    /// The index of the first rule for a variable.
    pub(super) fn rule_for(&self, variable: &Wanted) -> Option<usize> {
        let is_for = |rule: &Rule| {
            is_shaped(&variable.shape.dims, rule.rank, rule.last)
                && rule.ours.iter().any(|pattern| pattern.matches(&variable.name))
                && rule.beside.as_ref().is_none_or(|beside| self.has_beside(&variable.name, beside))
        };
        self.rules.rules.iter().position(is_for)
    }

    /// Whether the variable's layer also has the variable `beside`.
    fn has_beside(&self, name: &str, beside: &Beside) -> bool {
        let is_it = |other: &Wanted| {
            in_layer(&other.name) == (in_layer(name).0, beside.name.as_str())
                && is_shaped(&other.shape.dims, beside.rank, beside.last)
        };
        self.wanted.iter().any(is_it)
    }

    /// The layout of a variable by a rule.
    pub(super) fn layout(&self, variable: &Wanted, rule: &Rule) -> Layout {
        // The shortest run of last axes with as many elements.
        let dims = rule.axes_of.as_deref().and_then(|other| {
            let is_it = |it: &&Wanted| in_layer(&it.name) == (in_layer(&variable.name).0, other);
            let (other, n) = (&self.wanted.iter().find(is_it)?.shape.dims, variable.shape.dims.iter().product::<i64>());
            let mut last = (0..other.len()).rev().map(|axis| &other[axis..]);
            last.find(|dims| dims.iter().product::<i64>() == n).map(<[i64]>::to_vec)
        });
        Layout::from_rule(rule, dims)
    }

    /// The position of a variable that is `count` variables after the first of its rule.
    fn standing(&self, variable: &Wanted, count: usize) -> Standing {
        Standing { count, place: self.places.get(variable.name.as_str()).copied().unwrap_or_default() }
    }

    /// The prefixes of a rule's names.
    fn prefixes(&self, rule: &Rule) -> &[String] {
        match rule.bare {
            true => &self.rules.prefixes[..0],
            false => &self.rules.prefixes,
        }
    }

    /// The first name that a rule gives a variable.
    pub(super) fn first_name(&self, variable: &Wanted, rule: &Rule, count: usize) -> Option<String> {
        let captures = rule.ours.iter().find_map(|pattern| pattern.captures(&variable.name))?;
        let name = rule.theirs.iter().find_map(|template| template.name(&captures, self.standing(variable, count)))?;
        Some(format!("{}{name}", self.prefixes(rule).first().map_or("", String::as_str)))
    }

    /// The first name of a variable's slot, or of its average if no slot is given.
    pub(super) fn first_about(
        &self,
        of: Option<&(String, Layout, bool)>,
        slot: Option<&str>,
    ) -> Option<(String, Layout, bool)> {
        let (theirs, layout, is_shared) = of?;
        let first = match slot {
            Some(slot) => self.slot_names(slot).first().map(|name| &name.theirs),
            None => self.rules.averages.first(),
        };
        let captures = [("theirs", theirs.as_str()), ("slot", slot.unwrap_or_default())];
        let captures = captures.map(|(name, text)| (name.to_string(), text.to_string())).into();
        Some((first?.name(&captures, Standing::default())?, layout.clone(), *is_shared))
    }

    /// Looks up a variable of the network by a rule, `count` variables after the rule's first.
    fn weight(&self, variable: &Wanted, rule: &Rule, count: usize) -> Found {
        let layout = self.layout(variable, rule);
        let expected = layout.their_dims(&variable.shape.dims);
        let standing = self.standing(variable, count);
        let mut first = None;
        for pattern in &rule.ours {
            let Some(captures) = pattern.captures(&variable.name) else { continue };
            for template in &rule.theirs {
                let Some(name) = template.name(&captures, standing) else { continue };
                let bare = rule.bare.then(|| name.clone());
                let with_prefix = self.prefixes(rule).iter().map(|prefix| format!("{prefix}{name}")).chain(bare);
                let mut there: Vec<String> = with_prefix
                    .filter_map(|name| self.by_name.get(name.as_str()))
                    .map(|array| array.name.clone())
                    .collect();
                there.dedup();
                match there.len() {
                    0 => drop(first.get_or_insert(name)),
                    1 => return self.fits(variable, &there[0], layout, expected),
                    _ => return Found::Misfit(Misfit::Twice { theirs: there, with: None }),
                }
            }
        }
        match first {
            Some(expected_name) => Found::Misfit(Misfit::Missing {
                expected: expected_name,
                dims: expected.unwrap_or_default(),
                near: None,
            }),
            None => Found::Misfit(Misfit::NoRule),
        }
    }

    /// The numbering of the variables that have slots, and of the slots.
    fn numbering(&self, sources: &BTreeMap<&str, (String, Layout)>) -> Numbering<'a> {
        let (mut trained, mut slots) = (Vec::new(), BTreeSet::new());
        for variable in self.wanted {
            let Role::Slot { of, slot } = &variable.role else { continue };
            slots.insert(slot.as_str());
            if let Some((theirs, _)) = sources.get(of.as_str()).filter(|(theirs, _)| !trained.contains(theirs)) {
                trained.push(theirs.clone());
            }
        }
        Numbering::new(&trained, &slots, (self.rules.indexed.as_ref(), &self.rules.numbers), &self.by_name)
    }

    /// The possible names of a slot.
    fn slot_names(&self, slot: &str) -> &[SlotName] {
        self.rules.slots.get(slot).or_else(|| self.rules.slots.get("*")).map_or(&[], Vec::as_slice)
    }

    /// Finds a slot, by name or by number.
    fn slot(
        &self,
        variable: &Wanted,
        source: Option<&(String, Layout)>,
        slot: &str,
        numbering: &Numbering<'_>,
    ) -> Found {
        let Some((theirs, layout)) = source else { return Found::Fresh };
        let number = numbering.number(theirs).map(|number| number.to_string()).unwrap_or_default();
        let captures = [("slot", slot), ("number", &number)];
        let named = self.about(variable, source, self.slot_names(slot), &captures);
        let numbered = numbering.slot(theirs, slot).filter(|(name, _)| self.by_name.contains_key(name.as_str()));
        match (named, numbered) {
            (Found::Fresh, Some((name, scale))) => {
                self.scaled(variable, self.by_name[name.as_str()].name.as_str(), layout, scale)
            }
            (named, _) => named,
        }
    }

    /// A note about numbered slots. If one has another shape, the numbering does not fit: all start afresh.
    fn told_of_slots(
        &self,
        numbering: &Numbering<'_>,
        variables: &mut [Mapped],
        taken: &mut BTreeMap<String, Vec<usize>>,
    ) -> Option<String> {
        let is_slot = |mapped: &Mapped| matches!(mapped.wanted.role, Role::Slot { .. });
        let mut slots = variables.iter().filter(|mapped| is_slot(mapped));
        let is_numbered =
            numbering.is_indexed() || self.rules.slots.values().flatten().any(|it| it.theirs.takes("number"));
        let wrong = slots.clone().find_map(|mapped| match &mapped.found {
            Found::Misfit(misfit) if is_numbered => Some(format!("{} {misfit}", mapped.wanted.name)),
            _ => None,
        });
        if let Some(wrong) = wrong {
            for mapped in variables.iter_mut().filter(|mapped| is_slot(mapped)) {
                if let Found::Taken { theirs, .. } = &mapped.found {
                    taken.remove(theirs);
                }
                mapped.found = Found::Fresh;
            }
            return Some(format!(
                "its optimizer's state is of other variables, or of the same in another order: {wrong}"
            ));
        }
        let is_taken = slots.any(|mapped| matches!(mapped.found, Found::Taken { .. }));
        match &numbering.problem {
            Some(problem) if !is_taken => Some(problem.clone()),
            _ if is_taken && is_numbered && numbering.is_own_order => {
                Some("slots are numbered there, and are taken in the order of this model's variables".to_string())
            }
            _ => None,
        }
    }

    /// Finds a slot or an average of a variable whose source is known; it starts afresh if it is not in the file. Its
    /// name derives from any name of the variable.
    fn about(
        &self,
        variable: &Wanted,
        source: Option<&(String, Layout)>,
        called: &[SlotName],
        more: &[(&str, &str)],
    ) -> Found {
        let Some((theirs, layout)) = source else { return Found::Fresh };
        let names =
            std::iter::once(theirs).chain(self.by_name.get(theirs.as_str()).into_iter().flat_map(|it| &it.aliases));
        let mut there = names.flat_map(|theirs| {
            let captures = more.iter().copied().chain([("theirs", theirs.as_str())]);
            let captures = captures.map(|(name, text)| (name.to_string(), text.to_string()));
            let captures = captures.chain(self.rules.path_of(theirs)).collect();
            let name = |template: &Template| template.name(&captures, Standing::default());
            let is_there =
                |template: &Template| name(template).is_some_and(|it| self.by_name.contains_key(it.as_str()));
            let possible = called.iter().filter(|called| called.with.as_ref().is_none_or(is_there));
            possible.filter_map(|called| Some((name(&called.theirs)?, called.scale))).collect::<Vec<_>>()
        });
        let matched = there.find_map(|(name, scale)| Some((self.by_name.get(name.as_str())?.name.clone(), scale)));
        let Some((name, scale)) = matched else { return Found::Fresh };
        self.scaled(variable, &name, layout, scale)
    }

    /// The source of a slot or an average, which has its variable's layout.
    fn scaled(&self, variable: &Wanted, theirs: &str, layout: &Layout, scale: Scale) -> Found {
        match self.fits(variable, theirs, layout.clone(), layout.their_dims(&variable.shape.dims)) {
            Found::Taken { theirs, layout, cast, .. } => Found::Taken { theirs, layout, cast, scale },
            other => other,
        }
    }

    fn fits(&self, variable: &Wanted, theirs: &str, layout: Layout, expected: Option<Vec<i64>>) -> Found {
        let array = self.by_name[theirs];
        let theirs = theirs.to_string();
        let Some(expected) = expected else {
            return Found::Misfit(Misfit::Rank { theirs, layout: layout.to_string() });
        };
        let cast = array.dtype.and_then(|dtype| Cast::between(dtype, variable.shape.dtype));
        let is_shaped = array.dims == expected || array.dims == layout.with_ones(expected.clone());
        let layout = layout.of_dims(&array.dims, &expected);
        match cast {
            _ if !is_shaped => Found::Misfit(Misfit::of_shape(theirs, &array.dims, &expected)),
            Some(cast) => Found::Taken { theirs, layout, cast, scale: Scale::Same },
            None => {
                let dtype = array.dtype.map_or("no array of numbers".to_string(), |dtype| dtype.to_string());
                Found::Misfit(Misfit::Dtype { theirs, dtype })
            }
        }
    }
}
