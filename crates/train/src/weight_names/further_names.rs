//! Further names of arrays: what a framework wraps around a layer's variables is left out of their names.

use super::pattern::{Pattern, Standing, Template};
use super::variable::Given;
use bf16scope_model::document::{Node, ReadError, Value};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// A further name of the arrays with a name of these patterns.
#[derive(Clone, Debug, PartialEq)]
pub struct FurtherName {
    /// Patterns of the names that arrays have.
    pub theirs: Vec<Pattern>,
    /// The further name.
    pub called: Template,
}

impl<'de> Deserialize<'de> for FurtherName {
    /// `{theirs: [PATTERN, …], as: TEMPLATE}`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FurtherName, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Named {
            #[serde(deserialize_with = "one_or_several")]
            theirs: Vec<Pattern>,
            #[serde(rename = "as")]
            called: Template,
        }
        Node::read(deserializer, |node| {
            let Named { theirs, called } = Named::deserialize(node)?;
            for pattern in &theirs {
                if let Some(name) = called.not_captured(pattern) {
                    let message = format!("`{called}` takes `{{{name}}}`, which `{pattern}` does not capture");
                    return Err(ReadError::new(message).or_at(node.mark));
                }
            }
            Ok(FurtherName { theirs, called })
        })
    }
}

impl FurtherName {
    fn names<'a>(&'a self, name: &'a str) -> impl Iterator<Item = String> + 'a {
        let captured = self.theirs.iter().filter_map(move |pattern| pattern.captures(name));
        captured.filter_map(move |captures| self.called.name(&captures, Standing::default()))
    }
}

/// The arrays, with the names that `also` adds to theirs.
pub(super) fn with_further_names<'a>(also: &[FurtherName], arrays: &'a [Given]) -> Cow<'a, [Given]> {
    if also.is_empty() {
        return Cow::Borrowed(arrays);
    }
    let named = |array: &Given| {
        let known = || std::iter::once(&array.name).chain(&array.aliases);
        let further = known().flat_map(|name| also.iter().flat_map(move |also| also.names(name)));
        let further: BTreeSet<String> = further.filter(|name| known().all(|other| other != name)).collect();
        Given { aliases: array.aliases.iter().cloned().chain(further).collect(), ..array.clone() }
    };
    Cow::Owned(arrays.iter().map(named).collect())
}

/// One name or a list of names, as patterns or templates.
pub(super) fn one_or_several<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Node::read(deserializer, |node| match &node.value {
        Value::Text(_) => Ok(vec![T::deserialize(node)?]),
        Value::List(list) if !list.is_empty() => Vec::deserialize(node),
        _ => Err(node.wrong("a name, or a list of names")),
    })
}

#[cfg(test)]
mod tests {
    use super::super::mapping::{Found, Mapping};
    use super::super::rules::Rules;
    use super::super::variable::{Role, Wanted};
    use super::*;
    use bf16scope_hlo::{ArrayShape, DType};

    fn wanted(name: &str, dims: &[i64]) -> Wanted {
        Wanted { name: name.to_string(), shape: ArrayShape::new(DType::F32, dims), role: Role::Weight }
    }

    /// An LSTM, a GRU in both directions and a dense layer.
    fn network() -> Vec<Wanted> {
        let mut all = Vec::new();
        let layers = [("first", 12, &[12][..]), ("both/forward", 6, &[2, 6]), ("both/backward", 6, &[2, 6])];
        for (layer, width, bias) in layers {
            all.push(wanted(&format!("{layer}/kernel"), &[5, width]));
            all.push(wanted(&format!("{layer}/recurrent_kernel"), &[3, width]));
            all.push(wanted(&format!("{layer}/bias"), bias));
        }
        all.push(wanted("head/kernel", &[4, 2]));
        all.push(wanted("head/bias", &[2]));
        all
    }

    /// A text and others: a name and its aliases, a family and the names of its arrays.
    type Names = (String, Vec<String>);

    /// The family of such a file, and the array that each variable is taken from: `name_of` gives the name and the
    /// aliases of a variable of a layer, by its name there and its place among the layer's.
    fn taken(name_of: &dyn Fn(&str, &str, usize) -> Names) -> Names {
        let arrays: Vec<Given> = network()
            .iter()
            .enumerate()
            .map(|(number, variable)| {
                let (layer, name) = variable.name.rsplit_once('/').unwrap();
                // The first layers have three each.
                let (name, aliases) = name_of(layer, name, number % 3);
                let (dtype, dims) = (Some(DType::F32), variable.shape.dims.to_vec());
                Given { name, aliases, dtype, dims, place: None }
            })
            .collect();
        let mapping = Mapping::from_best_family(&network(), &arrays, &|_| false);
        mapping.check("a file").unwrap();
        assert_eq!(mapping.left_over, [""; 0]);
        let taken = mapping.variables.iter().zip(&arrays).map(|(variable, array)| match &variable.found {
            Found::Taken { theirs, .. } => {
                assert_eq!(*theirs, array.name, "{}", variable.wanted.name);
                theirs.clone()
            }
            other => panic!("{}: {other:?}", variable.wanted.name),
        });
        (mapping.family.clone(), taken.collect())
    }

    /// The names are those of files that Keras 2.15 and 3 and TensorFlow 2.15 wrote.
    #[test]
    fn cells_of_keras_recurrent_layers_are_read_by_name() {
        let cell = |layer: &str, number: &str| match layer {
            "first" => format!("first/lstm_cell{number}"),
            "head" => "head".to_string(),
            _ => format!("both/{}_gru{number}/gru_cell{number}", layer.trim_start_matches("both/")),
        };
        for number in ["", "_3"] {
            for prefix in ["", "model_weights/"] {
                let (family, names) = taken(&|layer, name, _| {
                    let outer = layer.split('/').next().unwrap();
                    (format!("{prefix}{outer}/{}/{name}:0", cell(layer, number)), Vec::new())
                });
                assert_eq!((family.as_str(), names.len()), ("keras", 11), "{prefix}{number}");
            }
        }
        let (family, _) =
            taken(&|layer, name, _| (format!("variables/{layer}/{name}"), vec![format!("{}/{name}", cell(layer, ""))]));
        assert_eq!(family, "keras");
        // Keras 3 names layers beside their numbers.
        let (family, _) = taken(&|layer, _, place| {
            (format!("arrays/{layer}/{place}"), vec![format!("{}/vars/{place}", cell(layer, ""))])
        });
        assert_eq!(family, "keras");
    }

    #[test]
    fn cells_of_keras_recurrent_layers_are_read_by_the_order_of_layers() {
        let (family, names) = taken(&|layer, _, place| {
            let layer = match layer {
                "first" => "lstm/cell".to_string(),
                "head" => "dense".to_string(),
                _ => format!("bidirectional/{}_layer/cell", layer.trim_start_matches("both/")),
            };
            (format!("layers/{layer}/vars/{place}"), Vec::new())
        });
        assert_eq!((family.as_str(), names.len()), ("keras_numbered", 11));
    }

    /// Two dense layers of one shape, by Keras' numbers and by names of the same layers.
    #[test]
    fn kernels_that_only_their_order_tells_apart_are_counted() {
        let wanted = [wanted("left/kernel", &[4, 4]), wanted("right/kernel", &[4, 4]), wanted("head/kernel", &[4, 2])];
        let mapping = |names: [&str; 3]| {
            let array = |(name, wanted): (&str, &Wanted)| Given {
                name: name.to_string(),
                aliases: Vec::new(),
                dtype: Some(DType::F32),
                dims: wanted.shape.dims.to_vec(),
                place: None,
            };
            let arrays: Vec<Given> = names.into_iter().zip(&wanted).map(array).collect();
            Mapping::from_best_family(&wanted, &arrays, &|_| false)
        };
        let by_order = mapping(["layers/dense/vars/0", "layers/dense_1/vars/0", "layers/dense_2/vars/0"]);
        assert_eq!(by_order.family, "keras_numbered");
        let text = "nothing but the order of layers tells 2 kernels of one class and shape apart, as left/kernel and right/kernel: \
                    where branches may be in another order, compare results with `--check`";
        assert_eq!(by_order.about_order.as_deref(), Some(text));
        assert!(by_order.summary().to_string().ends_with(text), "{}", by_order.summary());
        assert_eq!(mapping(["left/kernel", "right/kernel", "head/kernel"]).about_order, None);
    }

    /// Two branches of two convolutions, the second of each with a bias, as Keras' `model.layers` has them: by depth. Their names
    /// are numbered as they were made.
    #[test]
    fn layers_of_a_class_are_in_the_order_in_which_they_were_made() {
        let layer = |name: &str, is_biased: bool| {
            let bias = is_biased.then(|| wanted(&format!("{name}/bias"), &[4]));
            std::iter::once(wanted(&format!("{name}/kernel"), &[3, 3, 4, 4])).chain(bias)
        };
        let ours: Vec<Wanted> = [("a1", false), ("a2", true), ("b1", false), ("b2", true)]
            .into_iter()
            .flat_map(|it| layer(it.0, it.1))
            .collect();
        let array = |name: String, alias: Option<String>, dims: &[i64]| Given {
            name,
            aliases: alias.into_iter().collect(),
            dtype: Some(DType::F32),
            dims: dims.to_vec(),
            place: None,
        };
        // The number in the file, that in order of creation, whether it has a bias.
        let layers = [(0, 5, false), (1, 7, false), (2, 6, true), (3, 8, true)];
        let suffix = |n: usize| if n == 0 { String::new() } else { format!("_{n}") };
        let arrays = |name: &dyn Fn(usize, usize, usize) -> (String, Option<String>)| -> Vec<Given> {
            let of_layer = |(there, created, is_biased): (usize, usize, bool)| {
                let all = [&[3, 3, 4, 4][..], &[4]];
                let n = if is_biased { 2 } else { 1 };
                (0..n).map(|place| (name(there, created, place), all[place])).collect::<Vec<_>>()
            };
            let all = layers.into_iter().flat_map(of_layer);
            all.map(|((name, alias), dims)| array(name, alias, dims)).collect()
        };
        let mapped = |arrays: &[Given]| -> Vec<String> {
            let mapping = Mapping::from_best_family(&ours, arrays, &|_| false);
            assert_eq!((mapping.family.as_str(), &mapping.left_over[..]), ("keras_numbered", &[][..]));
            let theirs = mapping.variables.iter().map(|variable| match &variable.found {
                Found::Taken { theirs, .. } => theirs.clone(),
                other => panic!("{}: {other:?}", variable.wanted.name),
            });
            theirs.collect()
        };
        let numbered = |there: usize, place: usize| format!("layers/conv2d{}/vars/{place}", suffix(there));
        let named =
            arrays(&|there, created, place| (numbered(there, place), Some(format!("conv2d_{created}/vars/{place}"))));
        let expected = [(0, 0), (2, 0), (2, 1), (1, 0), (3, 0), (3, 1)].map(|(there, place)| numbered(there, place));
        assert_eq!(mapped(&named), expected);
        // An old file has the names alone, and a process that made other layers before does not begin at 0.
        let old =
            |created: usize, place: usize| format!("conv2d_{created}/conv2d_{created}/{}:0", ["kernel", "bias"][place]);
        let expected = [(5, 0), (6, 0), (6, 1), (7, 0), (8, 0), (8, 1)].map(|(created, place)| old(created, place));
        assert_eq!(mapped(&arrays(&|_, created, place| (old(created, place), None))), expected);
    }

    #[test]
    fn a_further_name_that_takes_what_is_not_captured_has_its_line() {
        let text =
            "family: mine\nabout: a test\nrules: []\nalso:\n  - {theirs: '{*layer}/cell/*', as: '{layer}/{name}'}\n";
        let error = bf16scope_model::document::from_str::<Rules>("mine.yaml", text).unwrap_err().to_string();
        let expected = "`{layer}/{name}` takes `{name}`, which `{*layer}/cell/*` does not capture";
        assert!(error.starts_with("mine.yaml:5:") && error.contains(expected), "{error}");
    }
}
