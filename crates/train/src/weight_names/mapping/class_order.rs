//! The number of a variable among those of its rule, and, in files where nothing else names layers, the number of its
//! layer among those of its class.
//!
//! Keras numbers a file's layers of a class in the order of `model.layers`, which is by depth: branches alternate. The
//! names that it gives layers are numbered in the order in which they were made, which is that of the program's text.
//! Where a file has these names, they tell which of its layers comes first.

use super::Index;
use crate::weight_names::pattern::Standing;
use crate::weight_names::rules::Rule;
use crate::weight_names::variable::{Given, Role, Wanted};
use std::collections::{BTreeMap, BTreeSet};

/// The counts of variables and of layers.
pub(in crate::weight_names) struct ClassOrder<'a> {
    /// For each rule: the number of its variables so far.
    of_rules: Vec<usize>,
    /// For each class: our layers, in the network's order.
    layers: BTreeMap<String, Vec<&'a str>>,
    /// For each class: the numbers of the file's layers, in the order in which they were made.
    numbers: BTreeMap<String, Vec<usize>>,
}

/// The class in a name such as `layers/conv2d/vars/0`: a layer's own variables.
fn class_of(index: &Index<'_>, variable: &Wanted, rule: &Rule) -> Option<String> {
    let template = rule.theirs.first().filter(|_| index.rules.by_order)?;
    let captures = rule.ours.iter().find_map(|pattern| pattern.captures(&variable.name))?;
    let name = template.name(&captures, Standing::default())?;
    match name.split('/').collect::<Vec<&str>>()[..] {
        ["layers", class, "vars", _] => Some(class.to_string()),
        _ => None,
    }
}

/// The layer of a variable.
fn layer_of(variable: &Wanted) -> &str {
    variable.name.rsplit_once('/').map_or("", |(layer, _)| layer)
}

/// The number in the name of a layer of a class: 0 of `conv2d`, 2 of `conv2d_2`.
fn number_of(name: &str, class: &str) -> Option<usize> {
    match name.strip_prefix(class)? {
        "" => Some(0),
        rest => rest.strip_prefix('_')?.parse().ok(),
    }
}

/// The number in the file of a layer of a class that has this array, and the number in the order of making.
fn numbers_of(array: &Given, class: &str) -> Option<(usize, Option<usize>)> {
    let name = array.name.strip_prefix("model_weights/").unwrap_or(&array.name);
    let levels: Vec<&str> = name.split('/').collect();
    match levels[..] {
        ["layers", layer, "vars", _] => {
            let created = |alias: &String| number_of(alias.split('/').next()?, class);
            Some((number_of(layer, class)?, array.aliases.iter().find_map(created)))
        }
        // Keras 2's files have the names alone.
        [layer, again, _] if layer == again => number_of(layer, class).map(|number| (number, Some(number))),
        _ => None,
    }
}

impl<'a> ClassOrder<'a> {
    pub(in crate::weight_names) fn new(index: &Index<'a>, arrays: &[Given]) -> ClassOrder<'a> {
        let mut layers: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let weights = index.wanted.iter().filter(|variable| variable.role == Role::Weight);
        for variable in weights {
            let rule = index.rule_for(variable).map(|rule| &index.rules.rules[rule]);
            if let Some(class) = rule.and_then(|rule| class_of(index, variable, rule)) {
                let layers = layers.entry(class).or_default();
                if !layers.contains(&layer_of(variable)) {
                    layers.push(layer_of(variable));
                }
            }
        }
        let in_order = |class: &String| {
            let all: BTreeSet<(usize, Option<usize>)> =
                arrays.iter().filter_map(|array| numbers_of(array, class)).collect();
            let mut created: Vec<(usize, usize)> =
                all.iter().map(|&(number, in_order)| Some((in_order?, number))).collect::<Option<_>>()?;
            created.sort_unstable();
            // Two layers of one number are no order.
            let is_order = created.windows(2).all(|pair| pair[0].0 != pair[1].0);
            is_order.then(|| (class.clone(), created.into_iter().map(|(_, number)| number).collect()))
        };
        let numbers = layers.keys().filter_map(in_order).collect();
        ClassOrder { of_rules: vec![0; index.rules.rules.len()], layers, numbers }
    }

    /// The number of a variable of this rule, which is the next of it.
    pub(in crate::weight_names) fn count(&mut self, index: &Index<'_>, variable: &Wanted, rule: usize) -> usize {
        let of_rule = self.of_rules[rule];
        self.of_rules[rule] += 1;
        let Some(class) = class_of(index, variable, &index.rules.rules[rule]) else { return of_rule };
        let place = self.layers.get(&class).and_then(|layers| layers.iter().position(|it| *it == layer_of(variable)));
        let place = place.unwrap_or(of_rule);
        self.numbers.get(&class).and_then(|numbers| numbers.get(place)).copied().unwrap_or(place)
    }
}
