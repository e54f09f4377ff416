//! TensorFlow 2's names for the variables of a bundle: a graph of objects gives each variable's attribute path and full
//! name.
//!
//! A key is a path of attributes that leads to a variable, followed by `/.ATTRIBUTES/VARIABLE_VALUE`; a `.` in an
//! attribute is written `..`, a `/` is `.S`. Other paths may lead to the same variable.
//!
//! Source: TensorFlow's `trackable_object_graph.proto` and `python/checkpoint/trackable_view.py`.

use std::collections::{BTreeMap, VecDeque};

use super::proto::ObjectGraph;

/// The key of the graph.
pub(in crate::weights) const KEY: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";
/// Separates an object's path from the attribute that is saved.
const ATTRIBUTES: &str = "/.ATTRIBUTES/";
/// The saved attribute of a variable.
const VALUE: &str = "VARIABLE_VALUE";
/// The largest depth of a path; longer aliases are left out.
const MAX_DEPTH: usize = 32;
/// The largest total size of all paths; further ones are left out. A long name is repeated in every path through it.
const MAX_PATHS: usize = 16 << 20;

/// The path in a key, as a user writes it.
pub(super) fn path(key: &str) -> Option<String> {
    let (path, attribute) = key.rsplit_once(ATTRIBUTES)?;
    // A slot variable's path goes through the optimizer: its markers are kept.
    let path = path.split('/').map(unescaped).collect::<Vec<_>>().join("/");
    Some(if attribute == VALUE { path } else { format!("{path}/.{attribute}") })
}

fn unescaped(name: &str) -> String {
    if name.starts_with(".OPTIMIZER_SLOT") {
        return name.to_string();
    }
    let (mut out, mut chars) = (String::new(), name.chars());
    while let Some(char) = chars.next() {
        match (char, chars.as_str().chars().next()) {
            ('.', Some('.')) => {
                chars.next();
                out.push('.');
            }
            ('.', Some('S')) => {
                chars.next();
                out.push('/');
            }
            (char, _) => out.push(char),
        }
    }
    out
}

/// Whether a path contains a framework's private attribute, such as Keras' `_trainable_variables/0`.
pub(super) fn is_private(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with('_'))
}

/// The full name of each key's variable in TensorFlow.
pub(super) fn full_names(graph: &ObjectGraph) -> BTreeMap<&str, &str> {
    let attributes = graph.nodes.iter().flat_map(|node| &node.attributes);
    let named = attributes.filter(|attribute| !attribute.full_name.is_empty());
    named.map(|attribute| (&*attribute.checkpoint_key, &*attribute.full_name)).collect()
}

/// The full name and other paths of each key.
pub(super) fn aliases(graph: &ObjectGraph) -> BTreeMap<String, Vec<String>> {
    let mut paths: Vec<Vec<String>> = vec![Vec::new(); graph.nodes.len()];
    // The shortest path to each object, and the shortest path through each of its parents.
    let mut shortest: Vec<Option<(usize, String)>> = vec![None; graph.nodes.len()];
    let (mut waiting, mut room) = (VecDeque::new(), MAX_PATHS);
    if let Some(root) = shortest.first_mut() {
        *root = Some((0, String::new()));
        waiting.push_back(0);
    }
    while let Some(at) = waiting.pop_front() {
        let Some((depth, path)) = shortest[at].clone().filter(|(depth, _)| *depth < MAX_DEPTH) else { continue };
        for child in &graph.nodes[at].children {
            let Some(to) = usize::try_from(child.node_id).ok().filter(|&to| to < graph.nodes.len()) else { continue };
            let Some(left) = room.checked_sub(path.len() + 1 + child.local_name.len()) else {
                return named(graph, paths);
            };
            room = left;
            let path = if path.is_empty() { child.local_name.clone() } else { format!("{path}/{}", child.local_name) };
            if !graph.nodes[to].attributes.is_empty() {
                paths[to].push(path.clone());
            }
            if shortest[to].is_none() {
                shortest[to] = Some((depth + 1, path));
                waiting.push_back(to);
            }
        }
    }
    named(graph, paths)
}

fn named(graph: &ObjectGraph, paths: Vec<Vec<String>>) -> BTreeMap<String, Vec<String>> {
    let mut aliases: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (node, paths) in graph.nodes.iter().zip(paths) {
        for attribute in &node.attributes {
            let names = aliases.entry(attribute.checkpoint_key.clone()).or_default();
            if !attribute.full_name.is_empty() {
                names.push(attribute.full_name.clone());
            }
            if attribute.name == VALUE {
                names.extend(paths.iter().cloned());
            }
        }
    }
    aliases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_paths() {
        for (key, expected) in [
            ("model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE", Some("model/dense/kernel")),
            ("a..b/c.Sd/.ATTRIBUTES/VARIABLE_VALUE", Some("a.b/c/d")),
            ("v/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE", Some("v/.OPTIMIZER_SLOT/optimizer/m")),
            ("table/.ATTRIBUTES/table-keys", Some("table/.table-keys")),
            ("dense/kernel", None),
        ] {
            assert_eq!(path(key).as_deref(), expected);
        }
    }
}
