//! Dilated convolutions as TensorFlow writes them for a CPU: `SpaceToBatchND`, a convolution of neighbours, `BatchToSpaceND`.
//! The first deals positions out to as many images as the rate is, so neighbours there are as far apart as the rate says.

use std::collections::{HashMap, HashSet};

use super::symbols::{Symbols, constant, is_variable};
use crate::index_map::IndexMap;
use crate::node::{Edge, Node};

/// The rates of a convolution between the two ops, and how both pad.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dilated {
    /// Rates of rows and columns; a sequence's is the second.
    pub rates: [i64; 2],
    is_same: bool,
}

impl Dilated {
    /// The padding that all three ops have together, in TensorFlow's word.
    pub(super) fn padding(&self) -> &'static str {
        if self.is_same { "SAME" } else { "VALID" }
    }
}

/// The dilated convolutions among the forward nodes of a graph, by name, and the nodes around them.
pub(super) fn dilated(symbols: &Symbols<'_>, order: &[usize]) -> (HashMap<String, Dilated>, HashSet<usize>) {
    let (mut convolutions, mut around) = (HashMap::new(), HashSet::new());
    let mut n_readers: IndexMap<Edge, usize> = IndexMap::default();
    let inputs = order.iter().flat_map(|idx| &symbols.node(*idx).inputs);
    inputs.for_each(|edge| *n_readers.entry(*edge).or_default() += 1);
    for end in order.iter().copied().filter(|idx| symbols.node(*idx).op == "BatchToSpaceND") {
        if let Some((start, convolution, dilated)) = before(symbols, symbols.node(end), &n_readers) {
            convolutions.insert(convolution, dilated);
            around.extend([start, end]);
        }
    }
    (convolutions, around)
}

/// The `SpaceToBatchND` before a `BatchToSpaceND`, and the convolution between them.
fn before(symbols: &Symbols<'_>, end: &Node, n_readers: &IndexMap<Edge, usize>) -> Option<(usize, String, Dilated)> {
    let has_one_reader = |edge: &Edge| n_readers.get(edge) == Some(&1);
    // The first input, which nothing else reads.
    let first = |node: &Node| node.inputs.first().copied().filter(has_one_reader);
    let mut convolution = symbols.node(first(end)?.node);
    let is_sequence = convolution.op == "Squeeze";
    if is_sequence {
        convolution = symbols.node(first(convolution)?.node);
    }
    let is_plain = matches!(convolution.op.as_str(), "Conv2D" | "DepthwiseConv2dNative")
        && convolution.text("padding") == "VALID"
        && !convolution.text("data_format").starts_with("NC")
        && [convolution.ints("strides"), convolution.ints("dilations")].into_iter().flatten().all(|step| *step == 1);
    let mut edge = first(convolution).filter(|_| is_plain)?;
    if is_sequence {
        edge = Some(symbols.node(edge.node)).filter(|node| node.op == "ExpandDims").and_then(first)?;
    }
    let start = symbols.node(edge.node);
    let numbers = |node: &Node, number: usize| -> Option<Vec<i64>> {
        let (_, values) = constant(symbols.node(symbols.behind(*node.inputs.get(number)?).node))?;
        Some(values.into_iter().map(|value| value as i64).collect())
    };
    let (rates, pads, crops) = (numbers(start, 1)?, numbers(start, 2)?, numbers(end, 2)?);
    let n_spatial = if is_sequence { 1 } else { 2 };
    let is_pair = start.op == "SpaceToBatchND" && numbers(end, 1)? == rates && (1..=n_spatial).contains(&rates.len());
    if !is_pair || pads.len() != 2 * rates.len() || crops.len() != pads.len() {
        return None;
    }
    let sizes = kernel(symbols, convolution, is_sequence)?;
    let mut paddings = HashSet::new();
    for (at, (rate, size)) in rates.iter().zip(&sizes).enumerate() {
        let added = [0, 1].map(|side| pads[2 * at + side].saturating_sub(crops[2 * at + side]));
        let total = size.saturating_sub(1).saturating_mul(*rate);
        // A kernel of one position pads nothing by either word.
        match (total, added) {
            (_, _) if *rate < 1 || crops[2 * at] != 0 => return None,
            (0, [0, 0]) => {}
            (_, [0, 0]) => drop(paddings.insert(false)),
            (_, added) if added == [total / 2, total - total / 2] => drop(paddings.insert(true)),
            _ => return None,
        }
    }
    // An axis without a rate is not padded either.
    if sizes.iter().skip(rates.len()).any(|size| *size > 1) {
        paddings.insert(false);
    }
    let rates = match (is_sequence, &rates[..]) {
        (true, [rate]) => [1, *rate],
        (false, [rows]) => [*rows, 1],
        (false, [rows, columns]) => [*rows, *columns],
        _ => return None,
    };
    let is_same = paddings.contains(&true);
    (paddings.len() < 2).then(|| (edge.node, convolution.name.clone(), Dilated { rates, is_same }))
}

/// The spatial sizes of a convolution's kernel, a variable.
fn kernel(symbols: &Symbols<'_>, convolution: &Node, is_sequence: bool) -> Option<Vec<i64>> {
    let mut node = symbols.node(symbols.behind(*convolution.inputs.get(1)?).node);
    if is_sequence && node.op == "ExpandDims" {
        node = symbols.node(symbols.behind(*node.inputs.first()?).node);
    }
    let dims = node.dims("shape").filter(|_| is_variable(&node.op))?;
    Some(dims[..dims.len().checked_sub(2)?].to_vec())
}
