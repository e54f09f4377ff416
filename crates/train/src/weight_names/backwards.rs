//! Applies name rules in reverse: the arrays of another framework that hold our variables.

use super::error::WeightNameError;
use super::layout::{Layout, joined_parts};
use super::mapping::{ClassOrder, Index};
use super::rules::Rules;
use super::variable::{Role, Wanted};
use bf16scope_hlo::ArrayShape;
use std::collections::BTreeMap;

/// An array of another framework, and our variables that it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct TheirArray {
    /// Its name.
    pub name: String,
    /// Its dtype and dims.
    pub shape: ArrayShape,
    /// Our variables with their shapes: the array's parts in order, or a single one.
    pub parts: Vec<(String, ArrayShape)>,
    layout: Layout,
}

impl TheirArray {
    /// Its bytes, from those of its parts in order; `None` if the bytes do not fit the shapes.
    pub fn bytes(&self, parts: &[&[u8]]) -> Option<Vec<u8>> {
        let width = self.shape.dtype.n_bytes();
        let laid =
            parts.iter().zip(&self.parts).map(|(bytes, (_, shape))| self.layout.theirs(bytes, &shape.dims, width));
        let mut laid: Vec<Vec<u8>> = laid.collect::<Option<_>>()?;
        match self.layout.part {
            None => laid.pop(),
            Some(part) => {
                let dims = self.layout.their_part_dims(&self.parts.first()?.1.dims)?;
                Some(joined_parts(&laid, &dims, part.axis, width))
            }
        }
    }
}

/// The arrays that hold these variables in a checkpoint of the family, each under its first name. State that only our
/// runs have, such as random states, is left out.
///
/// # Errors
/// [`WeightNameError::Backwards`]: a variable without a rule; a part without the other parts of its array; two
/// variables with the same name.
pub fn their_arrays(rules: &Rules, variables: &[Wanted]) -> Result<Vec<TheirArray>, WeightNameError> {
    let index = Index::new(rules, variables, &[]);
    let failed = |ours: &str, why: String| WeightNameError::Backwards {
        family: rules.family.clone(),
        ours: ours.to_string(),
        why,
    };
    let mut counts = ClassOrder::new(&index, &[]);
    let mut places: BTreeMap<&str, (String, Layout, bool)> = BTreeMap::new();
    let mut arrays: BTreeMap<String, TheirArray> = BTreeMap::new();
    let mut parts: BTreeMap<String, BTreeMap<usize, (String, ArrayShape)>> = BTreeMap::new();
    for variable in variables {
        let place = match &variable.role {
            Role::Own => continue,
            Role::Weight => {
                let rule_idx = index.rule_for(variable);
                let named = rule_idx.and_then(|rule_idx| {
                    let count = counts.count(&index, variable, rule_idx);
                    let rule = &rules.rules[rule_idx];
                    Some((index.first_name(variable, rule, count)?, index.layout(variable, rule), rule.shared))
                });
                named.ok_or_else(|| failed(&variable.name, "no rule is for it".to_string()))?
            }
            Role::Slot { of, slot } => match index.first_about(places.get(of.as_str()), Some(slot)) {
                Some(place) => place,
                None => return Err(failed(&variable.name, format!("the family has no name for the slot {slot}"))),
            },
            Role::Average { of } => match index.first_about(places.get(of.as_str()), None) {
                Some(place) => place,
                None => return Err(failed(&variable.name, "the family has no name for averages".to_string())),
            },
        };
        let (name, layout, is_shared) = place.clone();
        places.insert(&variable.name, place);
        let dims = layout.their_dims(&variable.shape.dims);
        let dims = dims.ok_or_else(|| failed(&variable.name, format!("its rule is for other axes ({layout})")))?;
        let part = (variable.name.clone(), variable.shape.clone());
        let number = layout.part.map_or(0, |part| part.number);
        if let Some((other, _)) = parts.entry(name.clone()).or_default().get(&number) {
            match is_shared {
                true => continue,
                false => return Err(failed(&variable.name, format!("{other} is {name} too"))),
            }
        }
        parts.entry(name.clone()).or_default().insert(number, part);
        let dims = if layout.write_ones { layout.with_ones(dims) } else { dims };
        let shape = ArrayShape::new(variable.shape.dtype, dims);
        arrays.entry(name.clone()).or_insert(TheirArray { name, shape, parts: Vec::new(), layout });
    }
    for (name, array) in &mut arrays {
        let array_parts = parts.remove(name).unwrap_or_default();
        let n = array.layout.part.map_or(1, |part| part.of);
        if array_parts.len() != n {
            let ours = array_parts.into_values().next().map(|(name, _)| name).unwrap_or_default();
            return Err(failed(&ours, format!("{name} has {n} parts, and not all of them are in this model")));
        }
        array.parts = array_parts.into_values().collect();
    }
    Ok(arrays.into_values().collect())
}

#[cfg(test)]
mod tests;
