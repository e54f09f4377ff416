//! Expands a network's layer list before it is read: blocks that a file defines once and uses repeatedly, and layers
//! that are applied again.
//!
//! A network with neither stays as it is. Otherwise the result is a list in which each layer has a name: the names of a
//! block's layers begin with the name of its use, unless a `/` before a name says that it is the network's own. The last
//! layer of a block is a `linear` activation with the name of the use alone, which emits nothing. Every value keeps its
//! place, so an error shows the line in the block's definition.

mod definition;
mod share;

use super::Config;
use super::keras_options;
use super::kinds::{self, LayerKind, text};
use super::layer_options::Arity;
use super::parameters::{Replacer, Values};
use super::wiring::{MAX_LAYERS, Wiring};
use crate::document::{ConfigProblem, Key, Mark, Node, ReadError, Value, nearest};
use definition::{Block, blocks, is_reserved};
use serde::Deserialize;
use std::collections::BTreeSet;

/// The deepest nesting of blocks.
const MAX_DEPTH: usize = 32;

/// A layer as written, with parameters replaced.
struct Entry<'a> {
    /// Its kind, or a block.
    kind: EntryKind<'a>,
    /// The key or text that names the kind.
    key: Key,
    main: Option<Node>,
    options: Vec<(Key, Node)>,
    /// The layer before parameters are replaced: each repetition replaces them with its own `$index`.
    again: Option<Node>,
}

enum EntryKind<'a> {
    Layer(&'static str),
    Block(&'a Block<'a>),
    /// `{share: NAME}` without a kind.
    Share,
    /// An unknown kind, which is reported when the list is read.
    Unknown,
}

/// The context of a list of layers.
struct Frame<'a> {
    /// The prefix of its layers' names.
    prefix: &'a str,
    /// Other names of the layers that it reads.
    reads: Vec<(String, String)>,
    values: Values,
    depth: usize,
    /// The place that says that its layers do not train, if one does.
    frozen: Option<Mark>,
    /// The dtype that its layers compute in, if their use says one.
    dtype: Option<Node>,
}

/// The place where a block is used.
struct Used {
    name: String,
    reads: Vec<String>,
}

struct Expander<'a> {
    blocks: &'a [Block<'a>],
    /// The parameters of the whole model.
    parameters: Values,
    replacer: Replacer,
    /// Names and nodes of the layers so far.
    flat: Vec<(String, Node)>,
    used: Vec<Used>,
    /// The network's inputs.
    inputs: Vec<String>,
}

/// A network's node with its blocks expanded, and the configuration in it. A block's layers that nothing reads are
/// dropped if other layers of the same use are read, as in Keras: the last of several blocks often computes more than
/// is used.
///
/// # Errors
/// Invalid blocks, at their places; invalid values.
pub(super) fn read(model: &Node) -> Result<(Node, Config), ReadError> {
    let node = expanded(model)?;
    let config = Config::deserialize(&node).map_err(|error| as_parameter(model, error))?;
    if model.get("blocks").is_none() {
        return Ok((node, config));
    }
    let unused = Wiring::unused(&config);
    if unused.is_empty() {
        return Ok((node, config));
    }
    let (Value::Map(map), Some(layers)) = (&node.value, node.get("layers")) else { return Ok((node, config)) };
    let used = layers.children().enumerate().filter(|(number, _)| !unused.contains(number));
    let used = layers.replaced(Value::List(used.map(|(_, layer)| layer.clone()).collect()));
    let pair =
        |(key, value): &(Key, Node)| (key.clone(), if &**key == "layers" { used.clone() } else { value.clone() });
    let node = node.replaced(Value::Map(map.iter().map(pair).collect()));
    let config = Config::deserialize(&node)?;
    Ok((node, config))
}

/// Adds to the error of a value that is the name of a parameter how the parameter is written.
fn as_parameter(model: &Node, error: ReadError) -> ReadError {
    let ConfigProblem::WrongValue { found, .. } = &error.problem else { return error };
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<&str> = found.split(|c| !is_name(c)).collect();
    let blocks = model.get("blocks").into_iter().flat_map(Node::children);
    let parameters =
        blocks.chain([model]).filter_map(|node| node.get("parameters")).flat_map(|node| match &node.value {
            Value::Map(map) => map.iter().map(|(name, _)| name.to_string()).collect(),
            _ => node.children().chain([node]).filter_map(Node::text).map(str::to_string).collect::<Vec<String>>(),
        });
    // The first word is the kind of the value.
    let Some(name) = parameters.into_iter().find(|name| words.iter().skip(1).any(|word| word == name)) else {
        return error;
    };
    error.with_help(format!("`{name}` is a parameter: its value is `${name}`, and that of a formula `$(2 * {name})`"))
}

/// A network's node with its blocks and shared layers expanded.
///
/// # Errors
/// Invalid blocks, at their places.
fn expanded(model: &Node) -> Result<Node, ReadError> {
    let Value::Map(map) = &model.value else { return Ok(model.clone()) };
    let Some(Value::List(layers)) = model.get("layers").map(|node| &node.value) else { return Ok(model.clone()) };
    let is_alone = |layer: &Node| layer.get("share").is_some() && is_share(layer);
    if model.get("blocks").is_none() && model.get("parameters").is_none() && !layers.iter().any(is_alone) {
        return Ok(model.clone());
    }
    let mut replacer = Replacer::default();
    let mut values = Values::default();
    if let Some(node) = model.get("parameters") {
        let Value::Map(map) = &node.value else { return Err(node.wrong("names and values, such as `{width: 64}`")) };
        for (name, node) in map {
            let value = replacer.replaced(node, &values)?;
            values.0.push((name.to_string(), value));
        }
    }
    let blocks = match model.get("blocks") {
        Some(node) => blocks(node)?,
        None => Vec::new(),
    };
    let mut rest = Vec::new();
    for (key, node) in map {
        if !matches!(&**key, "blocks" | "parameters" | "layers") {
            rest.push((key.clone(), replacer.replaced(node, &values)?));
        }
    }
    let inputs = rest.iter().find(|(key, _)| &**key == "inputs").map(|(_, node)| &node.value);
    let inputs = match inputs {
        Some(Value::Map(map)) => map.iter().map(|(name, _)| name.to_string()).collect(),
        _ => Vec::new(),
    };
    let mut expander =
        Expander { blocks: &blocks, parameters: values.clone(), replacer, flat: Vec::new(), used: Vec::new(), inputs };
    let frame = Frame { prefix: "", reads: Vec::new(), values, depth: 0, frozen: None, dtype: None };
    expander.layers(layers, &frame)?;
    let layers = expander.flat.into_iter().map(|(_, node)| node).collect();
    let (key, node) = map.iter().find(|(key, _)| &**key == "layers").expect("there is a list of layers");
    rest.push((key.clone(), node.replaced(Value::List(layers))));
    Ok(model.replaced(Value::Map(rest)))
}

/// Whether a layer only names the layer whose variables it shares.
fn is_share(layer: &Node) -> bool {
    let Value::Map(map) = &layer.value else { return false };
    map.iter().all(|(key, _)| matches!(&**key, "share" | "name" | "inputs" | "dtype" | "when" | "trainable"))
}

impl<'a> Expander<'a> {
    /// Expands a list of layers. Returns their qualified names.
    fn layers(&mut self, list: &[Node], frame: &Frame<'_>) -> Result<Vec<(String, String)>, ReadError> {
        let mut entries = Vec::new();
        for node in list {
            let counts = frame.prefix.is_empty() && node.get("repeats").is_some();
            let values = if counts { frame.values.counted(0, node.mark) } else { frame.values.clone() };
            let again = counts.then(|| node.clone());
            let node = self.replacer.replaced(node, &values)?;
            let mut entry = Entry { again, ..self.entry(&node)? };
            if let Some(at) = entry.options.iter().position(|(key, _)| &**key == "when") {
                let (_, when) = entry.options.remove(at);
                match when.value {
                    Value::Bool(false) | Value::Whole(0) => continue,
                    Value::Bool(true) | Value::Whole(1) => {}
                    _ => return Err(when.wrong("true or false, or a comparison such as `$(strides == 1)`")),
                }
            }
            entries.push((entry, node.mark));
        }
        let names = self.names(entries.iter().map(|(entry, _)| entry), frame);
        // `/conv2d_5` is the network's own name, wherever the layer stands.
        let local = |name: &str| match (name.strip_prefix('/'), frame.prefix) {
            (Some(name), _) => name.to_string(),
            (None, "") => name.to_string(),
            (None, prefix) => format!("{prefix}/{name}"),
        };
        let scope: Vec<(String, String)> = names.iter().map(|name| (name.clone(), local(name))).collect();
        let known: Vec<(String, String)> = scope.iter().chain(&frame.reads).cloned().collect();
        for (number, ((entry, mark), (_, name))) in entries.into_iter().zip(&scope).enumerate() {
            let first = frame.reads.first().filter(|_| number == 0).map(|(_, read)| read);
            self.layer(entry, mark, name, first, &known, frame)?;
        }
        Ok(scope)
    }

    /// Expands one element of a list: a layer, a block, or a shared layer.
    fn layer(
        &mut self,
        mut entry: Entry<'a>,
        mark: Mark,
        name: &str,
        first: Option<&String>,
        known: &[(String, String)],
        frame: &Frame<'_>,
    ) -> Result<(), ReadError> {
        let qualified = |node: &Node| qualified(node, known);
        let reads = |arity| matches!(entry.kind, EntryKind::Layer(kind) if LayerKind::arity_of(kind) == arity);
        let (is_several, reads_nothing) = (reads(Arity::Several), reads(Arity::Nothing));
        let mut reads = None;
        for (key, node) in &mut entry.options {
            match &**key {
                "inputs" => {
                    *node = qualified(node);
                    reads = Some(node.clone());
                }
                "share" | "tied_to" | "initial_state" => *node = qualified(node),
                _ => {}
            }
        }
        if is_several {
            entry.main = entry.main.map(|main| qualified(&main));
        }
        if let (EntryKind::Layer("expression"), None) = (&entry.kind, &reads)
            && let Some(formula) = entry.main.as_ref().or_else(|| option(&entry.options, "expression"))
            && let Some(names) = super::arithmetic::names_of(formula)
        {
            // The formula keeps its own names; the qualified names are listed beside it.
            let before = first.or_else(|| self.flat.last().map(|(name, _)| name).or(self.inputs.first()));
            let named = |name: &str| qualified(&text(name, mark));
            if first.is_none() && names.iter().any(|name| name == "x") {
                self.is_no_mask(name, "expression", mark)?;
            }
            let names = names.into_iter().map(|name| match before {
                Some(before) if name == "x" => {
                    let is_known =
                        known.iter().any(|(local, _)| local == "x") || self.inputs.iter().any(|it| it == "x");
                    if is_known && named("x").value != text(before, mark).value {
                        let (message, help) = super::arithmetic::two_called_x(before);
                        return Err(ReadError::new(message).or_at(mark).with_help(help));
                    }
                    Ok(text(before, mark))
                }
                _ => Ok(named(&name)),
            });
            let names = names.collect::<Result<_, _>>()?;
            entry.options.push((Key::new("inputs", mark), Node::new(Value::List(names), mark)));
        } else if let (false, None, Some(first)) = (is_several || reads_nothing, &reads, first) {
            let first = text(first, mark);
            reads = Some(first.clone());
            entry.options.push((Key::new("inputs", mark), first));
        }
        match entry.kind {
            EntryKind::Block(block) => self.block(block, &entry, mark, name, reads.as_ref(), frame),
            EntryKind::Share => self.share(&entry, mark, name, reads.as_ref()),
            EntryKind::Layer(_) | EntryKind::Unknown => {
                entry.options.retain(|(key, _)| &**key != "name");
                let main = entry.main.unwrap_or_else(|| Node::new(Value::Null, mark));
                let mut map = vec![(entry.key, main)];
                map.extend(entry.options);
                map.push((Key::new("name", mark), text(name, mark)));
                // A layer that shares variables is as its owner is.
                if let (Some(frozen), None) = (frame.frozen, option(&map, "share")) {
                    map.retain(|(key, _)| &**key != "trainable");
                    map.push((Key::new("trainable", frozen), Node::scalar(Value::Bool(false), "false", frozen)));
                }
                if let (Some(dtype), None, None) = (&frame.dtype, option(&map, "dtype"), option(&map, "share")) {
                    map.push((Key::new("dtype", dtype.mark), dtype.clone()));
                }
                self.push(name, Node::new(Value::Map(map), mark))
            }
        }
    }

    fn push(&mut self, name: &str, node: Node) -> Result<(), ReadError> {
        if self.flat.len() as i64 >= MAX_LAYERS {
            let message = format!("with its blocks written out the network has more than {MAX_LAYERS} layers");
            return Err(ReadError::new(message).or_at(node.mark));
        }
        self.flat.push((name.to_string(), node));
        Ok(())
    }

    /// Expands a block where it is used.
    fn block(
        &mut self,
        block: &'a Block<'a>,
        entry: &Entry<'_>,
        mark: Mark,
        name: &str,
        reads: Option<&Node>,
        frame: &Frame<'_>,
    ) -> Result<(), ReadError> {
        if frame.depth >= MAX_DEPTH {
            let message =
                format!("block `{}` is inside itself, or {MAX_DEPTH} blocks stand inside one another", block.name);
            return Err(ReadError::new(message).or_at(mark));
        }
        let mut reads = self.reads_of(block, name, reads, mark)?;
        let used = Used { name: name.to_string(), reads: reads.clone() };
        let repeats = match option(&entry.options, "repeats") {
            None => 1,
            Some(node) => crate::document::number(node, is_count, "a whole number from 1 to 1000")? as usize,
        };
        let first = self.values(block, entry, mark)?;
        let frozen = match option(&entry.options, "trainable").map(|node| (&node.value, node.mark)) {
            None | Some((Value::Bool(true), _)) => frame.frozen,
            Some((Value::Bool(false), mark)) => frame.frozen.or(Some(mark)),
            Some((_, mark)) => {
                let error = ReadError::new("`trainable` of a block, expected true or false").or_at(mark);
                return Err(error);
            }
        };
        let dtype = option(&entry.options, "dtype").or(frame.dtype.as_ref()).cloned();
        for index in 0..repeats {
            let prefix = if repeats == 1 { name.to_string() } else { format!("{name}/block{}", index + 1) };
            let values = match &entry.again {
                Some(node) if index > 0 => {
                    let node = self.replacer.replaced(node, &frame.values.counted(index, mark))?;
                    let entry = self.entry(&node)?;
                    self.values(block, &entry, mark)?
                }
                _ => first.clone(),
            };
            let values = values.counted(index, mark);
            let inner = Frame {
                prefix: &prefix,
                reads: block.inputs.iter().map(ToString::to_string).zip(reads.iter().cloned()).collect(),
                values,
                depth: frame.depth + 1,
                frozen,
                dtype: dtype.clone(),
            };
            let scope = self.layers(block.layers, &inner)?;
            let result = match block.output {
                None => scope.last().map(|(_, name)| name.clone()),
                Some(output) => {
                    let output = self.replacer.replaced(output, &inner.values)?;
                    let Value::Text(wanted) = &output.value else { return Err(output.wrong("a layer's name")) };
                    let known = scope.iter().find(|(local, _)| local == wanted).map(|(_, name)| name.clone());
                    Some(known.ok_or_else(|| {
                        let names: Vec<&str> = scope.iter().map(|(local, _)| local.as_str()).collect();
                        let message = format!(
                            "block `{}` has no layer `{wanted}`, expected one of {}",
                            block.name,
                            names.join(", ")
                        );
                        ReadError::new(message).or_at(output.mark)
                    })?)
                }
            };
            // If `when` drops all its layers, the block's result is its input.
            reads[0] = result.unwrap_or_else(|| reads[0].clone());
        }
        self.used.push(used);
        self.push(name, linear(name, &reads[0], mark))
    }

    /// Refuses that a block or a formula reads the layer before it, and does not name it, if that is a mask.
    fn is_no_mask(&self, reader: &str, kind: &str, mark: Mark) -> Result<(), ReadError> {
        let Some((mask, node)) = self.flat.last() else { return Ok(()) };
        let Value::Map(map) = &node.value else { return Ok(()) };
        if map.first().and_then(|(key, _)| LayerKind::known(key)) != Some("masking") {
            return Ok(());
        }
        let before = self.flat.iter().rev().nth(1).map(|(name, _)| name).or(self.inputs.first());
        let masked = option(map, "inputs").and_then(|node| node.children().chain([node]).find_map(Node::text));
        let masked = masked.or(before.map(String::as_str)).unwrap_or_default();
        let (message, help) = super::indices::unnamed_mask(reader, kind, (mask, masked));
        Err(ReadError::new(message).or_at(mark).with_help(help))
    }

    /// The inputs of a block: the layers it names, or the layer before it.
    fn reads_of(
        &self,
        block: &Block<'_>,
        name: &str,
        reads: Option<&Node>,
        mark: Mark,
    ) -> Result<Vec<String>, ReadError> {
        let reads: Vec<String> = match reads.map(|node| &node.value) {
            Some(Value::List(list)) => list.iter().map(|node| node.text().unwrap_or_default().to_string()).collect(),
            Some(Value::Text(name)) => vec![name.clone()],
            Some(_) => return Err(ReadError::new("`inputs` is a name, or a list of names").or_at(mark)),
            None => match (self.flat.last(), &self.inputs[..]) {
                (Some((last, _)), _) => {
                    self.is_no_mask(name, block.name, mark)?;
                    vec![last.clone()]
                }
                (None, [input]) => vec![input.clone()],
                (None, inputs) => {
                    let message = format!("block `{name}` is the first, and there are {} inputs", inputs.len());
                    let help =
                        format!("say which it reads: `inputs: {}`", inputs.first().map_or("NAME", String::as_str));
                    return Err(ReadError::new(message).or_at(mark).with_help(help));
                }
            },
        };
        if reads.len() == block.inputs.len() {
            return Ok(reads);
        }
        let (n, expected) = (reads.len(), block.inputs.len());
        let error = ReadError::new(format!("`{name}` (block `{}`) reads {n}, expected {expected}", block.name));
        Err(error.or_at(mark).with_help(format!("name them: `inputs: [{}]`", block.inputs.join(", "))))
    }

    /// The parameters of a block's use.
    fn values(&mut self, block: &Block<'_>, entry: &Entry<'_>, mark: Mark) -> Result<Values, ReadError> {
        let names: Vec<&str> = block.parameters.iter().map(|(name, _)| *name).collect();
        if let Some((key, _)) = entry.options.iter().find(|(key, _)| !is_reserved(key) && !names.contains(&&**key)) {
            let all: Vec<String> = names.iter().map(ToString::to_string).collect();
            let listed = [&names[..], &["repeats", "name", "inputs", "when", "dtype", "trainable"]].concat().join(", ");
            let message = format!("unknown key `{}` of block `{}`, expected one of {listed}", &**key, block.name);
            let error = ReadError::new(message).or_at(key.mark);
            return Err(match nearest(key, &all) {
                Some(near) => error.with_help(format!("did you mean `{near}`?")),
                None => error,
            });
        }
        let mut values = self.parameters.clone();
        for (number, (name, default)) in block.parameters.iter().enumerate() {
            let main = entry.main.as_ref().filter(|_| number == 0);
            let value = match (main.or_else(|| option(&entry.options, name)), default) {
                (Some(value), _) => value.clone(),
                (None, Some(default)) => self.replacer.replaced(default, &values)?,
                (None, None) => {
                    let error = ReadError::new(format!("block `{}` is used without `{name}`", block.name));
                    let help =
                        format!("write `{{{}: , {name}: …}}`, or give it a value under `parameters`", block.name);
                    return Err(error.or_at(mark).with_help(help));
                }
            };
            values.0.push((name.to_string(), value));
        }
        if let (Some(main), true) = (&entry.main, block.parameters.is_empty()) {
            return Err(main.wrong(&format!("nothing: block `{}` has no parameters", block.name)));
        }
        Ok(values)
    }

    /// A layer's kind and options, in any of their forms.
    fn entry(&self, node: &Node) -> Result<Entry<'a>, ReadError> {
        if is_share(node) && node.get("share").is_some() {
            let Value::Map(map) = &node.value else { return Err(node.wrong("keys")) };
            return Ok(Entry {
                kind: EntryKind::Share,
                key: Key::new("share", node.mark),
                main: None,
                options: map.clone(),
                again: None,
            });
        }
        let parameters = |name: &str| {
            let block = self.blocks.iter().find(|block| block.name == name)?;
            Some(block.parameters.iter().map(|(name, _)| name.to_string()).collect::<Vec<String>>())
        };
        let (name, key, main, options) = kinds::parts(node, &parameters)?;
        let kind = match self.blocks.iter().find(|block| block.name == name) {
            Some(block) => EntryKind::Block(block),
            None => LayerKind::known(&name).map_or(EntryKind::Unknown, EntryKind::Layer),
        };
        if let EntryKind::Unknown = kind {
            if let Some(help) = keras_options::elsewhere(&name) {
                let error = ReadError::new(format!("there is no layer and no block `{name}`")).or_at(key.mark);
                return Err(error.with_help(help));
            }
            let names: Vec<String> = self.blocks.iter().map(|block| block.name.to_string()).collect();
            if let Some(near) = nearest(&name, &names) {
                let error = ReadError::new(format!("there is no layer and no block `{name}`")).or_at(key.mark);
                return Err(error.with_help(format!("did you mean `{near}`?")));
            }
        }
        Ok(Entry { kind, key, main, options, again: None })
    }

    /// The names of a list's layers: explicit ones, or the kind's with a number from the second on.
    fn names<'b>(&self, entries: impl Iterator<Item = &'b Entry<'a>> + Clone, frame: &Frame<'_>) -> Vec<String>
    where
        'a: 'b,
    {
        let inputs = if frame.prefix.is_empty() { self.inputs.clone() } else { Vec::new() };
        let mut taken: BTreeSet<String> = inputs.into_iter().collect();
        taken.extend(frame.reads.iter().map(|(name, _)| name.clone()));
        let explicit =
            |entry: &Entry<'_>| option(&entry.options, "name").and_then(|name| Some(name.text()?.to_string()));
        taken.extend(entries.clone().filter_map(explicit));
        let mut n_of_kind = std::collections::BTreeMap::<String, usize>::new();
        entries
            .map(|entry| {
                if let Some(name) = explicit(entry) {
                    return name;
                }
                let kind = match &entry.kind {
                    EntryKind::Layer(kind) => kind.to_string(),
                    EntryKind::Block(block) => block.name.to_string(),
                    EntryKind::Share => {
                        option(&entry.options, "share").and_then(Node::text).unwrap_or("share").to_string()
                    }
                    EntryKind::Unknown => entry.key.name.clone(),
                };
                let count = n_of_kind.entry(kind.clone()).or_default();
                loop {
                    let name = if *count == 0 { kind.clone() } else { format!("{kind}_{count}") };
                    *count += 1;
                    if taken.insert(name.clone()) {
                        return name;
                    }
                }
            })
            .collect()
    }
}

fn is_count(n: f64) -> bool {
    n.fract() == 0.0 && (1.0..=1000.0).contains(&n)
}

fn option<'b>(options: &'b [(Key, Node)], name: &str) -> Option<&'b Node> {
    options.iter().find(|(key, _)| &**key == name).map(|(_, node)| node)
}

/// A layer that returns its input, under a block's name.
fn linear(name: &str, reads: &str, mark: Mark) -> Node {
    let pairs = [("activation", "linear"), ("inputs", reads), ("name", name)];
    Node::new(Value::Map(pairs.map(|(key, value)| (Key::new(key, mark), text(value, mark))).to_vec()), mark)
}

/// Replaces local names by qualified ones.
fn qualified(node: &Node, known: &[(String, String)]) -> Node {
    match &node.value {
        Value::List(list) => node.replaced(Value::List(list.iter().map(|node| qualified(node, known)).collect())),
        Value::Text(name) => match known.iter().find(|(local, _)| local == name) {
            Some((_, name)) => text(name, node.mark),
            None => match (name.strip_prefix('/'), state_of(name, known)) {
                (Some(name), _) => text(name, node.mark),
                (None, Some(name)) => text(&name, node.mark),
                (None, None) => node.clone(),
            },
        },
        _ => node.clone(),
    }
}

/// The qualified name of a layer's state, such as `encoder.h`.
fn state_of(name: &str, known: &[(String, String)]) -> Option<String> {
    let (layer, state) = name.rsplit_once('.')?;
    let (_, qualified) = known.iter().find(|(local, _)| local == layer)?;
    Some(format!("{qualified}.{state}"))
}

#[cfg(test)]
mod tests;
