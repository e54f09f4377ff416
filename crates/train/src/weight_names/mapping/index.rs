//! The tables in which rules look up names: what a rule finds for a variable in the arrays of a file.

use super::{Cast, Found, Mapped};
use crate::weight_names::error::Misfit;
use crate::weight_names::layout::Layout;
use crate::weight_names::numbering::Numbering;
use crate::weight_names::pattern::{Standing, Template};
use crate::weight_names::rules::{Beside, Rule, Rules, SlotName};
use crate::weight_names::variable::{Given, Role, Scale, Wanted};
use std::collections::{BTreeMap, BTreeSet};

/// The tables in which rules look up names.
pub(in crate::weight_names) struct Index<'a> {
    pub rules: &'a Rules,
    pub wanted: &'a [Wanted],
    pub by_name: BTreeMap<&'a str, &'a Given>,
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
    pub(in crate::weight_names) fn new(rules: &'a Rules, wanted: &'a [Wanted], arrays: &'a [Given]) -> Index<'a> {
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
    pub(in crate::weight_names) fn rule_for(&self, variable: &Wanted) -> Option<usize> {
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
    pub(in crate::weight_names) fn layout(&self, variable: &Wanted, rule: &Rule) -> Layout {
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
    pub(in crate::weight_names) fn first_name(&self, variable: &Wanted, rule: &Rule, count: usize) -> Option<String> {
        let captures = rule.ours.iter().find_map(|pattern| pattern.captures(&variable.name))?;
        let name = rule.theirs.iter().find_map(|template| template.name(&captures, self.standing(variable, count)))?;
        Some(format!("{}{name}", self.prefixes(rule).first().map_or("", String::as_str)))
    }

    /// The first name of a variable's slot, or of its average if no slot is given.
    pub(in crate::weight_names) fn first_about(
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
    pub(in crate::weight_names) fn weight(&self, variable: &Wanted, rule: &Rule, count: usize) -> Found {
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
    pub(in crate::weight_names) fn numbering(&self, sources: &BTreeMap<&str, (String, Layout)>) -> Numbering<'a> {
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
    pub(in crate::weight_names) fn slot(
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
    pub(in crate::weight_names) fn told_of_slots(
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
    pub(in crate::weight_names) fn about(
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
