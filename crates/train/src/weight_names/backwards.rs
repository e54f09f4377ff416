//! Applies name rules in reverse: the arrays of another framework that hold our variables.

use super::error::WeightNameError;
use super::layout::{Layout, joined_parts};
use super::mapping::Index;
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
    let mut counts = vec![0; rules.rules.len()];
    let mut places: BTreeMap<&str, (String, Layout, bool)> = BTreeMap::new();
    let mut arrays: BTreeMap<String, TheirArray> = BTreeMap::new();
    let mut parts: BTreeMap<String, BTreeMap<usize, (String, ArrayShape)>> = BTreeMap::new();
    for variable in variables {
        let place = match &variable.role {
            Role::Own => continue,
            Role::Weight => {
                let rule_idx = index.rule_for(variable);
                let named = rule_idx.and_then(|rule_idx| {
                    let count = counts[rule_idx];
                    counts[rule_idx] += 1;
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
mod tests {
    use super::super::{Arrays, Found, Given, Mapping, values};
    use super::*;
    use bf16scope_hlo::DType;
    use std::error::Error;

    struct Written(Vec<(TheirArray, Vec<u8>)>);

    impl Arrays for Written {
        fn name(&self) -> String {
            "written".to_string()
        }

        fn given(&self) -> Vec<Given> {
            let entry = |(array, _): &(TheirArray, Vec<u8>)| Given {
                name: array.name.clone(),
                aliases: Vec::new(),
                dtype: Some(array.shape.dtype),
                dims: array.shape.dims.clone(),
                place: None,
            };
            self.0.iter().map(entry).collect()
        }

        fn read(&self, name: &str) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
            let array = self.0.iter().find(|(array, _)| array.name == name);
            array.map(|(_, bytes)| bytes.clone()).ok_or_else(|| name.into())
        }
    }

    fn wanted(name: &str, dims: &[i64]) -> Wanted {
        let shape = ArrayShape::new(DType::F32, dims);
        match name.strip_suffix("/momentum") {
            Some(of) => Wanted {
                name: name.to_string(),
                shape,
                role: Role::Slot { of: of.to_string(), slot: "momentum".to_string() },
            },
            None => Wanted { name: name.to_string(), shape, role: Role::Weight },
        }
    }

    /// A transformer block with its surroundings, and an image network.
    fn networks() -> [Vec<Wanted>; 2] {
        let mut block = vec![wanted("tokens/embeddings", &[7, 4]), wanted("positions/embeddings", &[6, 4])];
        for part in ["query", "key", "value"] {
            block.push(wanted(&format!("net/block1/attention/heads/{part}/kernel"), &[4, 2, 2]));
            block.push(wanted(&format!("net/block1/attention/heads/{part}/bias"), &[4]));
        }
        block.push(wanted("net/block1/attention/heads/out/kernel", &[2, 2, 4]));
        block.push(wanted("net/block1/attention/heads/out/bias", &[4]));
        for (name, dims) in
            [("dense1/kernel", &[4, 8][..]), ("dense1/bias", &[8]), ("dense2/kernel", &[8, 4]), ("dense2/bias", &[4])]
        {
            block.push(wanted(&format!("net/block1/feed_forward/{name}"), dims));
        }
        for norm in ["net/block1/attention", "net/block1/feed_forward"] {
            block.push(wanted(&format!("{norm}/norm/gamma"), &[4]));
            block.push(wanted(&format!("{norm}/norm/beta"), &[4]));
        }
        let mut images = vec![wanted("resnet/stem/conv/kernel", &[3, 3, 2, 4])];
        for name in ["gamma", "beta", "moving_mean", "moving_variance"] {
            images.push(wanted(&format!("resnet/stem/bn/{name}"), &[4]));
        }
        images.push(wanted("resnet/stage1/block2/conv3/kernel", &[1, 1, 4, 4]));
        images.push(wanted("resnet/logits/kernel", &[4, 3]));
        images.push(wanted("resnet/logits/bias", &[3]));
        images.push(wanted("resnet/logits/bias/momentum", &[3]));
        [block, images]
    }

    #[test]
    fn what_is_written_by_rules_is_read_by_them() {
        let [block, images] = networks();
        let networks = [
            ("names", &block),
            ("names", &images),
            ("gpt2", &block),
            ("bert", &block),
            ("bert_tensorflow", &block),
            ("tensorflow", &images),
            ("resnet", &images),
        ];
        for (family, network) in networks {
            let rules = Rules::all().into_iter().find(|rules| rules.family == family).unwrap();
            let has_slots = rules.slots.contains_key("momentum") || rules.slots.contains_key("*");
            let network: Vec<Wanted> =
                network.iter().filter(|it| it.role == Role::Weight || has_slots).cloned().collect();
            let mut next = 0;
            let ours: BTreeMap<&str, Vec<u8>> = network
                .iter()
                .map(|it| {
                    let n = it.shape.n_elements();
                    next += n;
                    (it.name.as_str(), (next - n..next).flat_map(|i| (i as f32).to_le_bytes()).collect())
                })
                .collect();
            let arrays = their_arrays(&rules, &network).unwrap();
            let written = arrays.into_iter().map(|array| {
                let parts: Vec<&[u8]> = array.parts.iter().map(|(name, _)| ours[name.as_str()].as_slice()).collect();
                let bytes = array.bytes(&parts).unwrap();
                (array, bytes)
            });
            let written = Written(written.collect());
            let mapping = Mapping::from_rules(&rules, &network, &written.given(), &|_| false);
            mapping.check("written").unwrap();
            assert_eq!(mapping.left_over, [""; 0], "{family}");
            assert!(mapping.variables.iter().all(|it| matches!(it.found, Found::Taken { .. })), "{family}");
            for (name, (_, bytes)) in values(&written, &mapping, 1.0).unwrap() {
                assert_eq!(bytes, ours[name.as_str()], "{family} {name}");
            }
            // The family is recognised without being named.
            assert_eq!(Mapping::from_best_family(&network, &written.given(), &|_| false).family, family);
        }
    }

    #[test]
    fn what_has_no_place_says_so() {
        let rules = Rules::all().into_iter().find(|rules| rules.family == "gpt2").unwrap();
        let error = |network: &[Wanted]| their_arrays(&rules, network).unwrap_err().to_string();
        let help = "\nhelp: write our own names (`--rules names`), or name a file of rules";
        assert_eq!(
            error(&[wanted("a/other", &[2])]),
            format!("a/other cannot be written by the rules of gpt2: no rule is for it{help}")
        );
        let query = "block1/attention/heads/query/bias";
        assert_eq!(
            error(&[wanted(query, &[2])]),
            format!(
                "{query} cannot be written by the rules of gpt2: transformer.h.0.attn.c_attn.bias has 3 parts, and not all of them are \
                 in this model{help}"
            )
        );
        let both = [wanted("a_norm/gamma", &[2]), wanted("b_norm/gamma", &[2])];
        assert_eq!(
            error(&both),
            format!(
                "b_norm/gamma cannot be written by the rules of gpt2: a_norm/gamma is transformer.ln_f.weight too{help}"
            )
        );
    }
}
