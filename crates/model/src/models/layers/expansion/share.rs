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
        if let Some((key, _)) = entry.options.iter().find(|(key, _)| &**key == "trainable") {
            let message = format!("`trainable` of a layer that shares the variables of `{shared}`");
            let help = format!(
                "write it at `{shared}`, which has the variables; a loss that trains only some names them: `variables: \
                 'NAME/*'`"
            );
            return Err(ReadError::new(message).or_at(key.mark).with_help(help));
        }
        let originals = self.originals(shared);
        if originals.is_empty() {
            return Err(self.no_original(shared).or_at(*at));
        }
        let reads: Option<Vec<Node>> = reads.map(|node| match &node.value {
            Value::List(list) => list.clone(),
            _ => vec![node.clone()],
        });
        let again = Again { shared, name, mark, external: self.external(shared, name, mark, reads.as_ref())?, reads };
        for (from, node) in originals {
            let Value::Map(options) = &node.value else { continue };
            let to = again.renamed(&from).expect("it is the shared one, or inside of it");
            let mut options = again.options(options);
            if !options.iter().any(|(key, _)| &**key == "share") && !is_result(&node) {
                options.push((Key::new("share", mark), text(&from, mark)));
            }
            options.push((Key::new("name", mark), text(&to, mark)));
            self.push(&to, Node::new(Value::Map(options), mark))?;
        }
        if let Some(external) = &again.external {
            let read = |old: &str| again.external_read(old).and_then(Node::text).unwrap_or_default().to_string();
            let reads = external.iter().map(|(old, _)| read(old)).collect();
            self.used.push(Used { name: name.to_string(), reads });
        }
        Ok(())
    }

    /// The layer of this name, or the layers of the block.
    fn originals(&self, shared: &str) -> Vec<(String, Node)> {
        let is_block = self.used.iter().any(|used| used.name == *shared);
        let inside = format!("{shared}/");
        let is_original = |name: &str| name == shared || is_block && name.starts_with(&inside);
        self.flat.iter().filter(|(name, _)| is_original(name)).cloned().collect()
    }

    fn no_original(&self, shared: &str) -> ReadError {
        let names: Vec<String> =
            self.flat.iter().map(|(name, _)| name.clone()).filter(|name| !name.contains('/')).collect();
        ReadError::new(format!("there is no layer and no block `{shared}` above")).with_help(
            match nearest(shared, &names) {
                _ if self.blocks.iter().any(|block| block.name == shared) => {
                    format!("`{shared}` is a block: name one of its uses with `name: …`, and share that name")
                }
                Some(near) => format!("did you mean `{near}`?"),
                None => "name the layer that has the variables with `name: …`".to_string(),
            },
        )
    }

    /// The outside inputs of a block, each with its replacement where the block is applied again; `None` for a layer.
    fn external(
        &self,
        shared: &str,
        name: &str,
        mark: Mark,
        reads: Option<&Vec<Node>>,
    ) -> Result<Option<Vec<(String, Node)>>, ReadError> {
        let Some(Used { reads: old, .. }) = self.used.iter().find(|used| used.name == *shared) else { return Ok(None) };
        let before = || self.flat.last().map(|(name, _)| vec![text(name, mark)]);
        let new = reads.cloned().or_else(before).unwrap_or_default();
        if new.len() != old.len() {
            let message = format!("`{name}` (share: {shared}) reads {}, expected {}", new.len(), old.len());
            return Err(ReadError::new(message).or_at(mark));
        }
        Ok(Some(old.iter().cloned().zip(new).collect()))
    }
}

/// A layer, or a block, that is applied again.
struct Again<'a> {
    /// Its name where it was applied first.
    shared: &'a str,
    /// Its name where it is applied again.
    name: &'a str,
    mark: Mark,
    /// The outside inputs of a block, each with its replacement; `None` for a layer.
    external: Option<Vec<(String, Node)>>,
    /// The inputs that replace a layer's, if the sharing layer names them.
    reads: Option<Vec<Node>>,
}

impl Again<'_> {
    /// The new name of a layer; `None` for one that is not applied again.
    fn renamed(&self, layer: &str) -> Option<String> {
        let inside = layer.strip_prefix(self.shared)?;
        (inside.is_empty() || inside.starts_with('/')).then(|| format!("{}{inside}", self.name))
    }

    /// The inputs that replace the block's inputs `old`.
    fn external_read(&self, old: &str) -> Option<&Node> {
        self.external.as_ref()?.iter().find(|(name, _)| name == old).map(|(_, new)| new)
    }

    /// The options of a layer, except its name, with what it reads now. The owner of the variables stays the same.
    fn options(&self, options: &[(Key, Node)]) -> Vec<(Key, Node)> {
        let is_block = self.external.is_some();
        let reads_here = |number: usize, key: &str| key == "inputs" || number == 0 && LayerKind::is_several(key);
        let mut copies = Vec::new();
        for (number, (key, value)) in options.iter().enumerate() {
            let value = match &**key {
                "name" => continue,
                "inputs" if !is_block => continue,
                key if is_block && reads_here(number, key) => self.with_new_names(value),
                _ => value.clone(),
            };
            copies.push((key.clone(), value));
        }
        if let (false, Some(reads)) = (is_block, &self.reads) {
            copies.push((Key::new("inputs", self.mark), Node::new(Value::List(reads.clone()), self.mark)));
        }
        copies
    }

    /// A value with the new names in the place of the old ones.
    fn with_new_names(&self, node: &Node) -> Node {
        match &node.value {
            Value::List(list) => {
                node.replaced(Value::List(list.iter().map(|node| self.with_new_names(node)).collect()))
            }
            Value::Text(name) => match (self.external_read(name), self.renamed(name)) {
                (Some(new), _) => new.clone(),
                (None, Some(new)) => text(&new, node.mark),
                (None, None) => node.clone(),
            },
            _ => node.clone(),
        }
    }
}

/// Whether a layer is the one that [`linear`] makes, or an equal one.
fn is_result(node: &Node) -> bool {
    node.get("activation").and_then(Node::text) == Some("linear")
}
