//! `{share: NAME}`: applies a layer, or a block, again with the same variables.

use super::super::kinds::LayerKind;
use super::{Entry, Expander, Used, option, text};
use crate::document::{Key, Mark, Node, ReadError, Value, nearest};

impl Expander<'_> {
    /// Expands a layer, or a block, that is applied again.
    pub(super) fn share(
        &mut self,
        entry: &Entry<'_>,
        mark: Mark,
        name: &str,
        reads: Option<&Node>,
    ) -> Result<(), ReadError> {
        let Some(Node { value: Value::Text(shared), mark: at, .. }) = option(&entry.options, "share") else {
            return Err(ReadError::new("`share` is the name of a layer or a block").or_at(mark));
        };
        let inside = format!("{shared}/");
        let used = self.used.iter().find(|used| used.name == *shared);
        let from: Vec<(String, Node)> = match used {
            Some(_) => {
                self.flat.iter().filter(|(name, _)| name == shared || name.starts_with(&inside)).cloned().collect()
            }
            None => self.flat.iter().filter(|(name, _)| name == shared).cloned().collect(),
        };
        if from.is_empty() {
            let names: Vec<String> =
                self.flat.iter().map(|(name, _)| name.clone()).filter(|it| !it.contains('/')).collect();
            let error = ReadError::new(format!("there is no layer and no block `{shared}` above")).or_at(*at);
            return Err(error.with_help(match nearest(shared, &names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "name the layer that has the variables with `name: …`".to_string(),
            }));
        }
        let reads: Option<Vec<Node>> = reads.map(|node| match &node.value {
            Value::List(list) => list.clone(),
            _ => vec![node.clone()],
        });
        let before = self.flat.last().map(|(name, _)| text(name, mark));
        let mut external: Vec<(String, Node)> = Vec::new();
        let own_reads = used.map(|used| used.reads.clone());
        if let Some(own_reads) = &own_reads {
            let new = reads.clone().or_else(|| before.map(|it| vec![it])).unwrap_or_default();
            if new.len() != own_reads.len() {
                let message = format!("`{name}` (share: {shared}) reads {}, expected {}", new.len(), own_reads.len());
                return Err(ReadError::new(message).or_at(mark));
            }
            external.extend(own_reads.iter().cloned().zip(new));
        }
        let renamed = |other: &str| match other == shared {
            true => Some(name.to_string()),
            false => other.strip_prefix(&inside).map(|rest| format!("{name}/{rest}")),
        };
        for (from, node) in from {
            let to = renamed(&from).expect("it is the shared one, or inside of it");
            let Value::Map(map) = &node.value else { continue };
            let mut copies = Vec::new();
            let mut is_shared = false;
            for (number, (key, value)) in map.iter().enumerate() {
                let value = match &**key {
                    "name" => continue,
                    "inputs" if own_reads.is_none() => continue,
                    // The owner of the variables stays the same.
                    "share" => {
                        is_shared = true;
                        value.clone()
                    }
                    "inputs" => replaced_names(value, &external, &renamed),
                    kind if number == 0 && own_reads.is_some() && LayerKind::is_several(kind) => {
                        replaced_names(value, &external, &renamed)
                    }
                    _ => value.clone(),
                };
                copies.push((key.clone(), value));
            }
            if own_reads.is_none()
                && let Some(reads) = &reads
            {
                copies.push((Key::new("inputs", mark), Node::new(Value::List(reads.clone()), mark)));
            }
            if !is_shared && !is_result(&node) {
                copies.push((Key::new("share", mark), text(&from, mark)));
            }
            copies.push((Key::new("name", mark), text(&to, mark)));
            self.push(&to, Node::new(Value::Map(copies), mark))?;
        }
        if let Some(own_reads) = own_reads {
            let reads = own_reads.iter().filter_map(|read| external.iter().find(|(old, _)| old == read));
            let reads = reads.map(|(_, node)| node.text().unwrap_or_default().to_string()).collect();
            self.used.push(Used { name: name.to_string(), reads });
        }
        Ok(())
    }
}

/// Whether a layer is the one that [`linear`] makes, or an equal one.
fn is_result(node: &Node) -> bool {
    node.get("activation").and_then(Node::text) == Some("linear")
}

/// Replaces names inside a block that is applied again.
fn replaced_names(node: &Node, external: &[(String, Node)], renamed: &dyn Fn(&str) -> Option<String>) -> Node {
    match &node.value {
        Value::List(list) => {
            node.replaced(Value::List(list.iter().map(|node| replaced_names(node, external, renamed)).collect()))
        }
        Value::Text(name) => match (external.iter().find(|(old, _)| old == name), renamed(name)) {
            (Some((_, new)), _) => new.clone(),
            (None, Some(new)) => text(&new, node.mark),
            (None, None) => node.clone(),
        },
        _ => node.clone(),
    }
}
