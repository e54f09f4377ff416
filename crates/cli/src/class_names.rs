//! Names of classes by output: those of the label that an output is of.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use bf16scope_model::task::{Feature, Task};

/// Names by output: of its classes, or of the class of each example.
pub(crate) type Names = Vec<(String, Vec<String>)>;

/// The names of the classes of each output whose label has names.
pub(crate) fn of_outputs(task: &dyn Task, labels: &BTreeMap<String, Vec<String>>) -> Names {
    let known = task.class_labels();
    if known.is_empty() {
        // Where the task says nothing, the only label of classes with names is that of `logits`.
        let is_of_classes = |feature: &Feature| feature.is_label && feature.n_values.is_some();
        let features = task.features().into_iter().filter(is_of_classes);
        let mut named = features.filter_map(|feature| labels.get(&feature.name).cloned());
        return match (named.next(), named.next()) {
            (Some(only), None) => vec![("logits".to_string(), only)],
            _ => Vec::new(),
        };
    }
    known.into_iter().filter_map(|(output, label)| Some((output, labels.get(&label)?.clone()))).collect()
}

/// As JSON: a list for one output, lists by name for several.
pub(crate) struct ByOutput<'a>(pub &'a [(String, Vec<String>)]);

impl Serialize for ByOutput<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let [(_, only)] = self.0 {
            return only.serialize(serializer);
        }
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (output, names) in self.0 {
            map.serialize_entry(output, names)?;
        }
        map.end()
    }
}

/// For a field of an answer.
pub(crate) fn serialize<S: Serializer>(names: &[(String, Vec<String>)], serializer: S) -> Result<S::Ok, S::Error> {
    ByOutput(names).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_output_is_a_list_and_several_are_by_name() {
        let names = |output: &str, classes: &[&str]| {
            (output.to_string(), classes.iter().map(|class| class.to_string()).collect::<Vec<_>>())
        };
        let (kind, size) = (names("kind", &["cat", "dog"]), names("size", &["small"]));
        assert_eq!(json!(ByOutput(std::slice::from_ref(&kind))), json!(["cat", "dog"]));
        assert_eq!(json!(ByOutput(&[kind, size])), json!({"kind": ["cat", "dog"], "size": ["small"]}));
    }
}
