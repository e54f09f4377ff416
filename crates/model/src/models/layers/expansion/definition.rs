//! The definitions of blocks in a file.

use super::super::kinds::LayerKind;
use crate::document::{Key, Node, ReadError, Value};

/// A block's definition in `blocks`.
pub(super) struct Block<'a> {
    pub name: &'a str,
    /// Names of its parameters, with default values for the optional ones.
    pub parameters: Vec<(&'a str, Option<&'a Node>)>,
    /// The names that its layers use for its inputs.
    pub inputs: Vec<&'a str>,
    pub layers: &'a [Node],
    /// The layer that is its output, if not the last.
    pub output: Option<&'a Node>,
}

pub(super) fn blocks(node: &Node) -> Result<Vec<Block<'_>>, ReadError> {
    let Value::Map(map) = &node.value else {
        return Err(node.wrong("names and blocks, such as `{norm_relu: [batch_norm, relu]}`"));
    };
    map.iter().map(|(name, node)| block(name, node)).collect()
}

fn block<'a>(name: &'a Key, node: &'a Node) -> Result<Block<'a>, ReadError> {
    const KEYS: [&str; 4] = ["layers", "parameters", "inputs", "output"];
    if let Some(kind) = LayerKind::known(name) {
        let error = ReadError::new(format!("a block is called `{}`, as a kind of layer (`{kind}`) is", &**name));
        return Err(error.or_at(name.mark).with_help("give the block another name"));
    }
    let plain = |layers| Block { name, parameters: Vec::new(), inputs: vec!["input"], layers, output: None };
    let map = match &node.value {
        Value::List(layers) if !layers.is_empty() => return Ok(plain(layers)),
        Value::Map(map) => map,
        _ => return Err(node.wrong("a list of layers, or {layers: […], parameters: {…}, inputs: […], output: NAME}")),
    };
    if let Some((key, _)) = map.iter().find(|(key, _)| !KEYS.contains(&&**key)) {
        let error = ReadError::new(format!("unknown key `{}`, expected one of {}", &**key, KEYS.join(", ")));
        let help = "a block's options are its parameters: `parameters: {filters: , strides: 1}`";
        return Err(error.or_at(key.mark).with_help(help));
    }
    let layers = match node.get("layers").map(|node| &node.value) {
        Some(Value::List(layers)) if !layers.is_empty() => layers,
        _ => return Err(node.get("layers").unwrap_or(node).wrong("`layers: […]`, at least one")),
    };
    let names = |node: &'a Node| -> Result<Vec<&'a str>, ReadError> {
        let name = |node: &'a Node| match &node.value {
            Value::Text(name) => Ok(name.as_str()),
            _ => Err(node.wrong("a name")),
        };
        match &node.value {
            Value::List(list) => list.iter().map(name).collect(),
            _ => name(node).map(|name| vec![name]),
        }
    };
    let parameters = match node.get("parameters") {
        None => Vec::new(),
        Some(Node { value: Value::Map(map), .. }) => {
            let value = |node: &'a Node| Some(node).filter(|node| node.value != Value::Null);
            map.iter().map(|(name, node)| (&**name, value(node))).collect()
        }
        Some(node) => names(node)?.into_iter().map(|name| (name, None)).collect(),
    };
    if let Some((name, _)) = parameters.iter().find(|(name, _)| is_reserved(name)) {
        let error = ReadError::new(format!("a parameter is called `{name}`, which every block has"));
        return Err(error.or_at(node.get("parameters").unwrap_or(node).mark));
    }
    let inputs = node.get("inputs").map_or(Ok(vec!["input"]), names)?;
    if inputs.is_empty() {
        return Err(node.wrong("`inputs: [NAME, …]`, at least one"));
    }
    Ok(Block { name, parameters, inputs, layers, output: node.get("output") })
}

/// Whether a key belongs to every use of a block, beside its parameters; `index` counts repetitions from 0.
pub(super) fn is_reserved(name: &str) -> bool {
    matches!(name, "name" | "inputs" | "repeats" | "when" | "share" | "dtype" | "index" | "trainable")
}
