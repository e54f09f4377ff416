//! Factors repeated parts of a network into blocks: a segment of layers is written once, with parameters, and used wherever it
//! occurred.
//!
//! Two segments of the list are alike if their layers have the same kinds and the same options up to numbers, and read each
//! other in the same way. Their differences become parameters; numbers in names count (`conv2d_$(n + 1)`). A layer with
//! variables keeps the graph's name, marked by a leading `/` inside a block. Blocks contain blocks where uses repeat.

mod parameters;
mod search;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;

use super::network::NetworkPort;
use parameters::{Parameter, ParameterPart, Parameters};

pub(super) use parameters::escaped;

/// Reader of a network's results: a loss.
const OUTSIDE: usize = usize::MAX;

/// Names that a block may not have, since they are kinds of layers.
const BLOCKS_OF_THE_ZOO: [&str; 2] = ["transformer_block", "llama_block"];

/// Blocks of a network at most.
const MAX_BLOCKS: usize = 40;

/// A layer, or a use of a block.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub kind: String,
    /// The option written as the kind's own value.
    pub first: String,
    pub options: Vec<(String, String)>,
    pub reads: Vec<String>,
    /// The graph's name; for a block the name of its last layer.
    pub name: String,
    /// The layers of the flat list that it covers.
    range: Range<usize>,
    /// Whether it has variables, whose names begin with its name.
    has_variables: bool,
    pub block: Option<BlockUse>,
}

/// A use of a block.
#[derive(Clone, Debug)]
pub(super) struct BlockUse {
    /// Whether the block itself names its last layer.
    is_named_inside: bool,
    /// How many uses follow one another.
    pub repeats: usize,
    /// The part of a layer that each parameter sets; numbers in names may count.
    parts: Vec<ParameterPart>,
}

/// A network's layers with blocks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// The blocks' definitions: lines of YAML without indentation.
    pub definitions: Vec<Vec<String>>,
    pub lines: Vec<Line>,
    wires: Wires,
}

/// The position of each name in the flat list, and the layers that read it.
#[derive(Debug, Default)]
struct Wires {
    readers: HashMap<String, Vec<usize>>,
    positions: HashMap<String, usize>,
}

impl Wires {
    fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }

    /// Whether a layer outside of `range` reads a name.
    fn outside(&self, name: &str, range: &Range<usize>) -> bool {
        self.readers.get(name).is_some_and(|readers| readers.iter().any(|reader| !range.contains(reader)))
    }

    /// Whether a line has a reader other than the next line, or the next line also reads other lines.
    fn is_read_apart(&self, lines: &[Line], at: usize) -> bool {
        let line = &lines[at];
        let is_next = |reader: &usize| {
            lines.get(at + 1).is_some_and(|next| next.range.contains(reader) && next.reads == [line.name.clone()])
        };
        let is_apart = |reader: &usize| !line.range.contains(reader) && !is_next(reader);
        self.readers.get(&line.name).is_some_and(|readers| readers.iter().any(is_apart))
    }
}

/// Whether a kind's own value is the list of its inputs.
pub(super) fn is_merge(kind: &str) -> bool {
    matches!(kind, "concat" | "add" | "subtract" | "multiply" | "maximum")
}

/// The network's layers, with repeated parts as blocks.
pub(super) fn blocks(network: &NetworkPort) -> Blocks {
    let owners: HashSet<&str> = network.names.values().filter_map(|name| Some(name.rsplit_once('/')?.0)).collect();
    let line = |(number, layer): (usize, &super::network::LayerLine)| Line {
        kind: layer.kind.to_string(),
        first: layer.first.clone(),
        options: layer.options.iter().map(|(option, value)| (option.to_string(), value.clone())).collect(),
        reads: layer.reads.clone(),
        name: layer.name.clone(),
        range: number..number + 1,
        has_variables: owners.contains(layer.name.as_str()) || matches!(layer.kind, "attention" | "batch_norm"),
        block: None,
    };
    let mut network_blocks =
        Blocks { lines: network.layers.iter().enumerate().map(line).collect(), ..Blocks::default() };
    for (number, layer) in network.layers.iter().enumerate() {
        layer.reads.iter().for_each(|read| network_blocks.wires.readers.entry(read.clone()).or_default().push(number));
        network_blocks.wires.positions.insert(layer.name.clone(), number);
    }
    // A single result needs no name if it is the last layer.
    let is_last = network.layers.last().is_some_and(|last| last.name == network.output);
    for head in network.heads.iter().filter(|_| network.heads.len() > 1 || !is_last) {
        network_blocks.wires.readers.entry(head.output.clone()).or_default().push(OUTSIDE);
    }
    let mut names: HashSet<String> = network.layers.iter().map(|layer| first_part(&layer.name).to_string()).collect();
    names.extend(network.inputs.iter().map(|(name, ..)| name.clone()));
    while network_blocks.definitions.len() < MAX_BLOCKS {
        let candidates = search::best(&network_blocks.lines, &network_blocks.wires);
        let blocks = candidates.iter().filter_map(|alike| network_blocks.block(alike, &names));
        let Some((name, starts, block)) = blocks.max_by_key(|(_, starts, block)| network_blocks.saved(starts, block))
        else {
            break;
        };
        if network_blocks.saved(&starts, &block) <= 0 {
            break;
        }
        names.insert(name);
        network_blocks.replace(&starts, block);
    }
    network_blocks.repeat();
    network_blocks
}

fn first_part(name: &str) -> &str {
    name.split('/').next().unwrap_or_default()
}

/// A block, and a line for each use.
struct NewBlock {
    definition: Vec<String>,
    uses: Vec<Line>,
    length: usize,
}

impl Blocks {
    /// The block for segments that are alike, if few enough parameters express their differences.
    fn block(&self, alike: &search::Alike, taken: &HashSet<String>) -> Option<(String, Vec<usize>, NewBlock)> {
        let segments: Vec<&[Line]> =
            alike.starts.iter().map(|start| &self.lines[*start..start + alike.length]).collect();
        let ranges: Vec<Range<usize>> = segments.iter().map(|lines| covered(lines)).collect();
        let last = alike.length - 1;
        // A line that one use needs by name is named in all uses.
        let is_outside = |at: usize| {
            at != last && segments.iter().zip(&ranges).any(|(lines, range)| self.wires.outside(&lines[at].name, range))
        };
        let is_absolute: Vec<bool> =
            (0..alike.length).map(|at| segments[0][at].has_variables || is_outside(at)).collect();
        let mut parameters = Parameters::default();
        let mut body = Vec::new();
        for at in 0..alike.length {
            let lines: Vec<&Line> = segments.iter().map(|segment| &segment[at]).collect();
            body.push(self.body_line(at, &lines, &segments, &is_absolute, &mut parameters)?);
        }
        let list = parameters.finished()?;
        let inputs: Vec<Vec<String>> = segments.iter().map(|lines| outside_reads(lines, &self.wires)).collect();
        let name = block_name(&segments, taken);
        let mut definition = vec![format!("{name}:")];
        if !list.is_empty() {
            let names: Vec<&str> = list.iter().map(|parameter| parameter.name.as_str()).collect();
            definition.push(format!("  parameters: [{}]", names.join(", ")));
        }
        if inputs[0].len() > 1 {
            let names: Vec<String> = (0..inputs[0].len()).map(input_name).collect();
            definition.push(format!("  inputs: [{}]", names.join(", ")));
        }
        definition.push("  layers:".to_string());
        definition.extend(body.into_iter().map(|line| format!("    - {line}")));
        let parts: Vec<ParameterPart> = list.iter().map(|parameter| parameter.part).collect();
        let is_named_inside =
            is_absolute[last] || { segments[0][last].block.as_ref().is_some_and(|block| block.is_named_inside) };
        // A result that is named inside is the block's too, which some layer must read: a loss reads the name.
        let is_for_loss_alone = |lines: &&[Line]| {
            let readers = self.wires.readers.get(&lines[last].name);
            readers.is_some_and(|readers| readers.iter().all(|reader| *reader == OUTSIDE))
        };
        if is_named_inside && segments.iter().any(is_for_loss_alone) {
            return None;
        }
        let one = |number: usize, reads: &Vec<String>| Line {
            kind: name.clone(),
            first: String::new(),
            options: list
                .iter()
                .map(|parameter: &Parameter| (parameter.name.clone(), parameter.values[number].clone()))
                .collect(),
            reads: reads.clone(),
            name: segments[number][last].name.clone(),
            range: ranges[number].clone(),
            has_variables: false,
            block: Some(BlockUse { is_named_inside, repeats: 1, parts: parts.clone() }),
        };
        let uses = inputs.iter().enumerate().map(|(number, reads)| one(number, reads)).collect();
        Some((name.clone(), alike.starts.clone(), NewBlock { definition, uses, length: alike.length }))
    }

    /// A layer of a block, as YAML.
    fn body_line(
        &self,
        at: usize,
        lines: &[&Line],
        segments: &[&[Line]],
        is_absolute: &[bool],
        parameters: &mut Parameters,
    ) -> Option<String> {
        let first = lines[0];
        let mut text = format!("{{{}: ", first.kind);
        let reads = self.body_reads(at, segments, is_absolute, parameters);
        if is_merge(&first.kind) {
            let _ = write!(text, "[{}]", reads.join(", "));
        } else {
            let values: Vec<String> = lines.iter().map(|line| line.first.clone()).collect();
            text += &parameters.value(first_option(&first.kind), values);
        }
        for (number, (option, _)) in first.options.iter().enumerate() {
            let values = lines.iter().map(|line| line.options[number].1.clone()).collect();
            let value = match first.part(number) {
                ParameterPart::Value => parameters.value(option, values),
                part => parameters.names(option, values, part),
            };
            let _ = match number == 0 && first.has_main() {
                true => write!(text, "{value}"),
                false => write!(text, ", {option}: {value}"),
            };
        }
        let is_named_inside = first.block.as_ref().is_some_and(|block| block.is_named_inside);
        if is_absolute[at] && !is_named_inside {
            let name = parameters.name(lines.iter().map(|line| line.name.clone()).collect());
            let _ = write!(text, ", name: {}", in_quotes(&format!("/{name}")));
        } else if !is_named_inside && is_read_apart(segments[0], at) {
            let _ = write!(text, ", name: {}", local_name(segments[0], at));
        }
        let is_default = match at {
            0 => reads.len() == 1 && reads[0] == input_name(0),
            _ => first.reads == [segments[0][at - 1].name.clone()],
        };
        if !is_default && !is_merge(&first.kind) {
            match &reads[..] {
                [one] => drop(write!(text, ", inputs: {one}")),
                several => drop(write!(text, ", inputs: [{}]", several.join(", "))),
            }
        }
        Some(text + "}")
    }

    /// The names that a block's layer reads, as they are written inside the block.
    fn body_reads(
        &self,
        at: usize,
        segments: &[&[Line]],
        is_absolute: &[bool],
        parameters: &mut Parameters,
    ) -> Vec<String> {
        let outside = outside_reads(segments[0], &self.wires);
        let mut texts = Vec::new();
        for (number, read) in segments[0][at].reads.iter().enumerate() {
            let inside = segments[0][..at].iter().position(|line| line.name == *read);
            let is_by_name = |at: usize| {
                is_absolute[at] || segments[0][at].block.as_ref().is_some_and(|block| block.is_named_inside)
            };
            texts.push(match (inside, outside.iter().position(|other| other == read)) {
                (Some(other), _) if !is_by_name(other) => local_name(segments[0], other),
                (None, Some(input)) => input_name(input),
                _ => {
                    let names = segments.iter().map(|lines| lines[at].reads[number].clone()).collect();
                    in_quotes(&format!("/{}", parameters.name(names)))
                }
            });
        }
        texts
    }

    /// Characters that a block saves, where consecutive uses are a single line.
    fn saved(&self, starts: &[usize], block: &NewBlock) -> i64 {
        let size = |line: &Line| {
            let options = line.options.iter().map(|(option, value)| option.len() + value.len() + 4);
            line.kind.len() + line.first.len() + options.sum::<usize>() + 24
        };
        let before: usize = starts
            .iter()
            .flat_map(|start| &self.lines[*start..start + block.length])
            .map(|line| size(line) + if line.block.is_none() { line.name.len() } else { 0 })
            .sum();
        let is_first = |number: usize| number == 0 || starts[number - 1] + block.length != starts[number];
        let uses: usize =
            block.uses.iter().enumerate().filter(|(number, _)| is_first(*number)).map(|(_, line)| size(line)).sum();
        let definition: usize = block.definition.iter().map(String::len).sum();
        before as i64 - uses as i64 - definition as i64
    }

    fn replace(&mut self, starts: &[usize], block: NewBlock) {
        let mut uses = block.uses.into_iter();
        let mut starts = starts.iter().copied().peekable();
        let mut lines = Vec::new();
        let mut at = 0;
        while at < self.lines.len() {
            if starts.peek() == Some(&at) {
                starts.next();
                lines.extend(uses.next());
                at += block.length;
            } else {
                lines.push(self.lines[at].clone());
                at += 1;
            }
        }
        self.lines = lines;
        self.definitions.push(block.definition);
    }

    /// Joins consecutive uses whose numbers in names count up.
    fn repeat(&mut self) {
        let mut lines: Vec<Line> = Vec::new();
        let mut at = 0;
        while at < self.lines.len() {
            let n = (1..self.lines.len() - at).take_while(|n| self.follows(at, *n)).count() + 1;
            let mut line = self.lines[at].clone();
            if let (Some(block), true) = (&mut line.block, n > 1) {
                block.repeats = n;
                for number in 0..line.options.len() {
                    let [first, second] = [at, at + 1].map(|at| self.lines[at].options[number].1.clone());
                    line.options[number].1 = parameters::counting(&first, &second).unwrap_or(first);
                }
                line.name.clone_from(&self.lines[at + n - 1].name);
                line.range.end = self.lines[at + n - 1].range.end;
            }
            lines.push(line);
            at += n;
        }
        self.lines = lines;
    }

    fn is_read_apart(&self, at: usize) -> bool {
        self.wires.is_read_apart(&self.lines, at)
    }

    /// Whether a line's name is written in it.
    pub fn is_named(&self, at: usize) -> bool {
        match &self.lines[at].block {
            None => true,
            Some(block) => !block.is_named_inside && self.is_read_apart(at),
        }
    }

    /// Whether line `at + n` is the repetition `n` of line `at`.
    fn follows(&self, at: usize, n: usize) -> bool {
        let [first, before, line] = [at, at + n - 1, at + n].map(|at| &self.lines[at]);
        let (Some(block), Some(_)) = (&first.block, &line.block) else { return false };
        let is_read_on = line.kind == first.kind
            && line.reads.first() == Some(&before.name)
            && line.reads[1..] == first.reads[1..]
            && (block.is_named_inside || !self.is_read_apart(at + n - 1));
        is_read_on
            && (0..line.options.len()).all(|number| {
                let [a, b, c] = [first, &self.lines[at + 1], line].map(|line| line.options[number].1.as_str());
                match block.parts[number] {
                    ParameterPart::Value => a == c,
                    ParameterPart::Name | ParameterPart::Scope => parameters::is_repetition(a, b, c, n),
                }
            })
    }
}

impl Line {
    /// Whether an option is part of a name.
    pub fn is_name_part(&self, number: usize) -> bool {
        self.part(number) != ParameterPart::Value
    }

    fn part(&self, number: usize) -> ParameterPart {
        self.block.as_ref().map_or(ParameterPart::Value, |block| block.parts[number])
    }

    /// Whether a block's first parameter is written as its kind's own value: a parameter of values, not of names.
    pub fn has_main(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.parts.first() == Some(&ParameterPart::Value))
    }
}

fn covered(lines: &[Line]) -> Range<usize> {
    lines[0].range.start..lines[lines.len() - 1].range.end
}

/// The names before a segment that the segment reads, in order.
fn outside_reads(lines: &[Line], wires: &Wires) -> Vec<String> {
    let mut outside: Vec<String> = Vec::new();
    let is_outside = |read: &&String| wires.position(read).is_none_or(|flat| flat < lines[0].range.start);
    for read in lines.iter().flat_map(|line| &line.reads).filter(is_outside) {
        if !outside.contains(read) {
            outside.push(read.clone());
        }
    }
    outside
}

fn input_name(number: usize) -> String {
    if number == 0 { "input".to_string() } else { format!("input_{}", number + 1) }
}

/// Whether a line of a segment has a reader in it other than the next line, or the next line also reads other lines.
fn is_read_apart(lines: &[Line], at: usize) -> bool {
    let name = &lines[at].name;
    let reads = |line: &Line| line.reads.contains(name);
    lines.get(at + 1).is_some_and(|next| reads(next) && next.reads.len() > 1) || lines.iter().skip(at + 2).any(reads)
}

/// A name inside a block: the kind and a number.
fn local_name(lines: &[Line], at: usize) -> String {
    let kind = |line: &Line| match line.kind.as_str() {
        "activation" => line.first.clone(),
        _ if line.block.is_some() => "part".to_string(),
        kind => kind.to_string(),
    };
    let wanted = kind(&lines[at]);
    match lines[..at].iter().filter(|line| kind(line) == wanted).count() {
        0 => format!("{wanted}_1"),
        n => format!("{wanted}_{}", n + 1),
    }
}

/// The name of the option that is written as a kind's own value.
fn first_option(kind: &str) -> &str {
    match kind {
        "conv" | "conv_transpose" => "filters",
        "attention" => "num_heads",
        "dense" => "units",
        "depthwise_conv" => "kernel_size",
        "max_pool" | "avg_pool" => "pool_size",
        "zero_padding" => "padding",
        "upsample" => "size",
        "rescaling" => "scale",
        "dropout" => "rate",
        "reshape" => "target_shape",
        "position_embedding" => "max_length",
        "take" => "index",
        "slice" => "bounds",
        _ => "value",
    }
}

/// The name of a block: the part of its layers' names that all uses share up to numbers.
fn block_name(segments: &[&[Line]], taken: &HashSet<String>) -> String {
    let scope = |line: &Line| {
        let (scope, _) = line.name.rsplit_once('/')?;
        let last = scope.rsplit('/').next()?;
        Some(last.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_' || c == '-').to_string())
    };
    let scopes: HashSet<Option<String>> =
        segments.iter().flat_map(|lines| lines.iter().filter(|line| line.has_variables).map(scope)).collect();
    let word_of = |scope: String| {
        // `mnas_blocks_3` is a `mnas_block`.
        let stem = scope.trim_end_matches("blocks").trim_end_matches("block").trim_end_matches(['_', '-']);
        if stem.is_empty() { "block".to_string() } else { format!("{stem}_block") }
    };
    let is_word = |word: &String| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let one = match scopes.into_iter().collect::<Vec<_>>() {
        one if one.len() == 1 => one.into_iter().next().flatten().filter(is_word),
        _ => None,
    };
    let word = one.map_or_else(|| "block".to_string(), word_of);
    let names = std::iter::once(word.clone()).chain((2..).map(|n| format!("{word}_{n}")));
    let is_free = |name: &String| !taken.contains(name) && !BLOCKS_OF_THE_ZOO.contains(&name.as_str());
    names.into_iter().find(is_free).unwrap_or(word)
}

pub(super) fn in_quotes(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.' | '-' | '$');
    if text.chars().all(is_plain) { text.to_string() } else { format!("{text:?}") }
}

#[cfg(test)]
mod tests;
