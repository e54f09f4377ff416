//! Optimizer state that is numbered instead of named: the number of each variable, and of each of its slots.
//!
//! PyTorch and Keras 3 number trainable variables in the order of the model. The order in the file is used if there is
//! one; otherwise this model's own order, which must then be the same, and the report says so.

use super::pattern::{Captures, Pattern, Standing, Template};
use super::variable::{Given, Scale};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The form of state that a family stores by array number within an optimizer, as Keras 3 does.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexed {
    /// Names of the arrays: templates of `{index}`; the first that matches any array counts.
    pub theirs: Vec<Template>,
    /// How many arrays may precede the first slot, such as a count of updates and a learning rate.
    pub before: Vec<usize>,
    /// The order of slots, depending on which slots there are.
    pub orders: Vec<SlotOrder>,
}

/// The order of an optimizer's slots.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotOrder {
    /// Our slots, in their order.
    pub slots: Vec<String>,
    /// The outer order: all slots of a variable together, or all variables of a slot.
    pub by: SlotsBy,
    /// Further slots, which follow after all of these: each of all variables.
    #[serde(default)]
    pub then: Vec<String>,
    /// Slots that hold steps where ours hold gradients: minus the learning rate times ours.
    #[serde(default)]
    pub steps: Vec<String>,
}

impl SlotOrder {
    fn all(&self) -> impl Iterator<Item = &String> {
        self.slots.iter().chain(&self.then)
    }

    fn n_slots(&self) -> usize {
        self.slots.len() + self.then.len()
    }
}

/// The outer order of a [`SlotOrder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotsBy {
    /// The first variable's slots, then the second's.
    Variable,
    /// The first slot of all variables, then the second.
    Slot,
}

/// The numbers of the trainable variables.
pub(super) struct Numbering<'a> {
    numbers: BTreeMap<String, usize>,
    indexed: Option<(&'a Template, usize, &'a SlotOrder)>,
    /// Why numbered slots cannot be found, if there are any.
    pub problem: Option<String>,
    /// Whether the order is this model's own, not the file's.
    pub is_own_order: bool,
}

impl<'a> Numbering<'a> {
    /// Numbers the arrays of variables with slots, which are in this model's order; `slots` are the slots of one
    /// variable.
    pub(super) fn new(
        trained: &[String],
        slots: &BTreeSet<&str>,
        (indexed, by_name): (Option<&'a Indexed>, &[Pattern]),
        given: &BTreeMap<&str, &Given>,
    ) -> Numbering<'a> {
        let (numbers, is_own_order) = numbers(trained, by_name, given);
        let mut numbering = Numbering { numbers, indexed: None, problem: None, is_own_order };
        let Some(indexed) = indexed else { return numbering };
        let named = |template: &Template, index: usize| {
            let captures = Captures::from([("index".to_string(), index.to_string())]);
            template.name(&captures, Standing::default()).filter(|name| given.contains_key(name.as_str()))
        };
        let count = |template: &Template| (0..).take_while(|&index| named(template, index).is_some()).count();
        let Some((template, n)) = indexed.theirs.iter().map(|it| (it, count(it))).find(|(_, n)| *n > 0) else {
            return numbering;
        };
        let order = indexed
            .orders
            .iter()
            .find(|order| order.n_slots() == slots.len() && order.all().all(|slot| slots.contains(slot.as_str())));
        let Some(order) = order else {
            let slots = slots.iter().copied().collect::<Vec<_>>().join(", ");
            numbering.problem =
                Some(format!("its optimizer's state is numbered, and no rule numbers the slots {slots}"));
            return numbering;
        };
        let n_slots = trained.len() * order.n_slots();
        match n.checked_sub(n_slots).filter(|before| indexed.before.contains(before)) {
            Some(before) => numbering.indexed = Some((template, before, order)),
            None => {
                let expected: Vec<String> =
                    indexed.before.iter().map(|before| (before + n_slots).to_string()).collect();
                numbering.problem = Some(format!(
                    "its optimizer has {n} arrays, expected {} of {} variables that train with the slots {}",
                    expected.join(" or "),
                    trained.len(),
                    order.all().map(String::as_str).collect::<Vec<_>>().join(", ")
                ));
            }
        }
        numbering
    }

    /// Whether slots have a number but no name.
    pub(super) fn is_indexed(&self) -> bool {
        self.indexed.is_some()
    }

    /// The number of the variable that is taken from this array.
    pub(super) fn number(&self, theirs: &str) -> Option<usize> {
        self.numbers.get(theirs).copied()
    }

    /// The name of a slot that is found by its number, and the meaning of its values.
    pub(super) fn slot(&self, theirs: &str, slot: &str) -> Option<(String, Scale)> {
        let (template, before, order) = self.indexed?;
        let (number, place) = (self.number(theirs)?, order.all().position(|it| it == slot)?);
        let index = match order.by {
            _ if place >= order.slots.len() => place * self.numbers.len() + number,
            SlotsBy::Variable => number * order.slots.len() + place,
            SlotsBy::Slot => place * self.numbers.len() + number,
        };
        let captures = Captures::from([("index".to_string(), (before + index).to_string())]);
        let scale = if order.steps.iter().any(|it| it == slot) { Scale::Step } else { Scale::Same };
        Some((template.name(&captures, Standing::default())?, scale))
    }
}

/// The number of each array, and whether it comes from this model's order.
fn numbers(
    trained: &[String],
    by_name: &[Pattern],
    arrays: &BTreeMap<&str, &Given>,
) -> (BTreeMap<String, usize>, bool) {
    let array_of = |theirs: &String| arrays.get(theirs.as_str());
    let number_in_names = |theirs: &String| {
        let array = array_of(theirs)?;
        let names = std::iter::once(&array.name).chain(&array.aliases);
        let numbers = names.flat_map(|name| by_name.iter().filter_map(|pattern| pattern.captures(name)));
        numbers.filter_map(|captures| captures.get("number")?.parse::<usize>().ok()).next()
    };
    if let Some(numbers) = trained.iter().map(|theirs| Some((theirs.clone(), number_in_names(theirs)?))).collect() {
        return (numbers, false);
    }
    let places: Option<Vec<(usize, &String)>> =
        trained.iter().map(|theirs| Some((array_of(theirs)?.place?, theirs))).collect();
    let is_own_order = places.is_none();
    let mut in_order = places.unwrap_or_else(|| trained.iter().enumerate().collect());
    in_order.sort();
    let numbers = in_order.into_iter().enumerate().map(|(number, (_, theirs))| (theirs.clone(), number));
    (numbers.collect(), is_own_order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::DType;

    fn entry(name: &str, place: Option<usize>, alias: &str) -> Given {
        Given { name: name.to_string(), aliases: vec![alias.to_string()], dtype: Some(DType::F32), dims: vec![], place }
    }

    type Slots = Vec<Option<(String, Scale)>>;

    fn slots(arrays: &[Given], slots: &[&str]) -> (Slots, Option<String>, bool) {
        let indexed: Indexed = serde_yaml::from_str(
            "{theirs: ['o/{index}'], before: [1, 2], orders: [{slots: [m, v], by: variable}, {slots: [a, b, c], by: slot, steps: [c]}]}",
        )
        .unwrap();
        let by_name = [Pattern::parse("trained/{number}").unwrap()];
        let entries: BTreeMap<&str, &Given> = arrays.iter().map(|array| (array.name.as_str(), array)).collect();
        let trained = ["x".to_string(), "y".to_string()];
        let wanted: BTreeSet<&str> = slots.iter().copied().collect();
        let numbering = Numbering::new(&trained, &wanted, (Some(&indexed), &by_name), &entries);
        let slots = trained.iter().flat_map(|theirs| slots.iter().map(|slot| numbering.slot(theirs, slot))).collect();
        (slots, numbering.problem, numbering.is_own_order)
    }

    fn arrays(n: usize, x: (Option<usize>, &str), y: (Option<usize>, &str)) -> Vec<Given> {
        let state = (0..n).map(|index| entry(&format!("o/{index}"), None, ""));
        state.chain([entry("x", x.0, x.1), entry("y", y.0, y.1)]).collect()
    }

    fn at(index: usize) -> Option<(String, Scale)> {
        Some((format!("o/{index}"), Scale::Same))
    }

    #[test]
    fn slots_are_counted_by_variable_or_by_slot() {
        let (none, m_v) = ((None, ""), ["m", "v"]);
        // By this model's order, by the file's order, by the numbers in names.
        assert_eq!(slots(&arrays(6, none, none), &m_v), (vec![at(2), at(3), at(4), at(5)], None, true));
        assert_eq!(
            slots(&arrays(5, (Some(7), ""), (Some(3), "")), &m_v),
            (vec![at(3), at(4), at(1), at(2)], None, false)
        );
        assert_eq!(
            slots(&arrays(5, (Some(3), "trained/1"), (Some(7), "trained/0")), &m_v),
            (vec![at(3), at(4), at(1), at(2)], None, false)
        );
        let c = |index| Some((format!("o/{index}"), Scale::Step));
        assert_eq!(slots(&arrays(7, none, none), &["a", "b", "c"]).0, [at(1), at(3), c(5), at(2), at(4), c(6)]);
    }

    #[test]
    fn what_cannot_be_counted_says_why() {
        let none = (None, "");
        let problem = |n: usize, slot_names: &[&str]| slots(&arrays(n, none, none), slot_names).1;
        assert_eq!(
            problem(7, &["m", "v"]).unwrap(),
            "its optimizer has 7 arrays, expected 5 or 6 of 2 variables that train with the slots m, v"
        );
        assert_eq!(problem(6, &["m"]).unwrap(), "its optimizer's state is numbered, and no rule numbers the slots m");
        assert_eq!(problem(0, &["m"]), None);
    }
}
