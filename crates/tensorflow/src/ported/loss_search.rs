//! Losses that graphs write with plain ops, recognised by their values.
//!
//! The operand of a mean or sum is computed for some predictions and labels, and beside each loss of ours with the numbers that
//! the graph has. A loss is accepted only if it is alike for all of them.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::distances::{Distance, Labels, focal_options};
use super::loss_rows::{self, RowValue};
use super::region;
use super::symbols::{Symbols, constant, is_variable};
use crate::host::is_input;
use crate::node::{Edge, Node};

/// A loss that was recognised.
pub(super) struct Recognised {
    /// The node of the losses.
    pub node: usize,
    pub logits: Edge,
    pub labels: Edge,
    /// Its name in YAML.
    pub loss: &'static str,
    pub options: Vec<(&'static str, String)>,
    /// The node's losses are so many times ours.
    pub unit: f64,
    /// The node's losses are so much above ours.
    pub offset: f64,
    /// The nodes that it is computed by.
    pub inside: HashSet<usize>,
}

/// The graph's numbers are f32, and ours decimals.
const ROUNDINGS: f64 = 1e-5;
/// The numbers of nodes between a sum and its loss, between a loss and its operands, and of predictions, that are tried at most.
const MAX_NODES: usize = 64;
const MAX_BASES: usize = 16;
/// So many nodes of a graph are tried as losses.
const MAX_FITS: usize = 256;

/// The losses of numbers and of rows among the nodes that lead to the loss, without those in `known`.
pub(super) fn recognised(
    symbols: &Symbols<'_>,
    readers: &HashMap<usize, Vec<usize>>,
    before: &[usize],
    loss: usize,
    known: &[usize],
) -> Vec<Recognised> {
    searched(symbols, readers, before, loss, known, &Distance::all)
}

/// The losses that have another one inside: focal ones have a cross-entropy, and one of logarithms has a squared difference.
pub(super) fn outer(
    symbols: &Symbols<'_>,
    readers: &HashMap<usize, Vec<usize>>,
    before: &[usize],
    loss: usize,
) -> Vec<Recognised> {
    searched(symbols, readers, before, loss, &[], &|constants| {
        let mut all = Distance::focal(constants);
        all.push(Distance::Logarithmic);
        all
    })
}

fn searched(
    symbols: &Symbols<'_>,
    readers: &HashMap<usize, Vec<usize>>,
    before: &[usize],
    loss: usize,
    known: &[usize],
    forms: &dyn Fn(&BTreeSet<u64>) -> Vec<Distance>,
) -> Vec<Recognised> {
    let behind = region::behind_layers(symbols.graph, loss);
    let search = Search::new(symbols, readers, before, &behind, known);
    let mut all: Vec<Recognised> = Vec::new();
    for edge in summed(symbols, before, &behind) {
        let one = search.loss_of(edge, forms);
        all.extend(one.filter(|one| all.iter().all(|other| other.node != one.node)));
    }
    all
}

/// The operands of the means and sums behind the layers.
fn summed(symbols: &Symbols<'_>, before: &[usize], behind: &HashSet<usize>) -> Vec<Edge> {
    let is_sum = |at: &&usize| behind.contains(*at) && matches!(symbols.node(**at).op.as_str(), "Mean" | "Sum");
    before.iter().filter(is_sum).filter_map(|at| symbols.node(*at).inputs.first().copied()).collect()
}

/// The focal loss that is computed from the losses of a cross-entropy, given by its node and name: `(1 - exp(-e))^γ · e`, times a
/// number or not. Its node, and its options.
pub(super) fn focal_of(
    symbols: &Symbols<'_>,
    before: &[usize],
    loss: usize,
    (node, name): (usize, &str),
) -> Option<(usize, Vec<(&'static str, String)>)> {
    const ENTROPIES: [f64; 4] = [0.05, 0.3, 1.0, 2.5];
    let is_known = matches!(name, "sparse_softmax_cross_entropy" | "sigmoid_cross_entropy");
    let entropy = Edge { node, output: 0 };
    let behind = region::behind_layers(symbols.graph, loss);
    let roots = summed(symbols, before, &behind).into_iter().filter(|edge| is_known && edge.node != node);
    roots.into_iter().find_map(|root| {
        let mut pending = VecDeque::from([root]);
        for _ in 0..MAX_NODES {
            let edge = pending.pop_front().filter(|edge| *edge != entropy)?;
            let curve = ENTROPIES.map(|x| {
                let mut known = HashMap::from([(entropy, Some(RowValue::Number(x)))]);
                match loss_rows::value(symbols, edge, None, &mut known, 0) {
                    Some(RowValue::Number(value)) => value,
                    _ => f64::NAN,
                }
            });
            let mut constants = BTreeSet::new();
            let (mut seen, mut inside) = (HashSet::from([node]), vec![edge.node]);
            while let Some(at) = inside.pop().filter(|_| seen.len() < MAX_NODES) {
                if seen.insert(at) {
                    constants
                        .extend(constant(symbols.node(at)).and_then(|(_, all)| all.first().copied()).map(f64::to_bits));
                    inside.extend(symbols.node(at).inputs.iter().map(|edge| edge.node));
                }
            }
            let is_like = |form: &Distance| match *form {
                // Its alpha of two classes depends on the label.
                Distance::SoftmaxFocal { gamma, alpha } => ENTROPIES.iter().zip(curve).all(|(x, value)| {
                    let is_whole = alpha.is_none() || name.starts_with("sparse");
                    let expected = alpha.unwrap_or(1.0) * (1.0 - (-x).exp()).powf(gamma) * x;
                    is_whole && (value - expected).abs() <= ROUNDINGS * expected
                }),
                _ => false,
            };
            let form = Distance::focal(&constants).into_iter().find(is_like);
            if let Some(Distance::SoftmaxFocal { gamma, alpha }) = form {
                return Some((edge.node, focal_options(gamma, alpha)));
            }
            pending.extend(symbols.node(edge.node).inputs.iter().copied());
        }
        None
    })
}

struct Search<'s, 'g> {
    symbols: &'s Symbols<'g>,
    /// Nodes computed from variables, and those computed from inputs.
    from_variables: HashSet<usize>,
    from_inputs: HashSet<usize>,
    /// Nodes of numbers that read a label, and a prediction.
    mixed: HashSet<usize>,
    known: &'s [usize],
    n_fits: Cell<usize>,
}

fn reached(readers: &HashMap<usize, Vec<usize>>, from: Vec<usize>, passes: impl Fn(usize) -> bool) -> HashSet<usize> {
    let (mut reached, mut pending) = (HashSet::new(), from);
    while let Some(at) = pending.pop() {
        if reached.insert(at) {
            pending.extend(readers.get(&at).into_iter().flatten().copied().filter(|reader| passes(*reader)));
        }
    }
    reached
}

impl<'s, 'g> Search<'s, 'g> {
    fn new(
        symbols: &'s Symbols<'g>,
        readers: &HashMap<usize, Vec<usize>>,
        before: &[usize],
        behind: &HashSet<usize>,
        known: &'s [usize],
    ) -> Search<'s, 'g> {
        let node = |at: usize| symbols.node(at);
        let those =
            |is: &dyn Fn(&Node) -> bool| -> Vec<usize> { before.iter().copied().filter(|at| is(node(*at))).collect() };
        let is_weight =
            |node: &Node| is_variable(&node.op) && node.dtype("dtype").is_some_and(|dtype| dtype.is_float());
        let from_variables = reached(readers, those(&is_weight), |_| true);
        let from_inputs = reached(readers, those(&|node| is_input(&node.op)), |_| true);
        let is_of_numbers = |at: usize| behind.contains(&at) && loss_rows::is_known(node(at));
        let reads_both = |at: &usize| {
            let inputs = || node(*at).inputs.iter().map(|edge| edge.node);
            is_of_numbers(*at)
                && inputs().any(|at| from_variables.contains(&at))
                && inputs().any(|at| from_inputs.contains(&at) && !from_variables.contains(&at))
        };
        let start = before.iter().copied().filter(reads_both).collect();
        let mixed = reached(readers, start, is_of_numbers);
        Search { symbols, from_variables, from_inputs, mixed, known, n_fits: Cell::new(0) }
    }

    /// The loss that a sum reads: itself, or what is multiplied or added behind it.
    fn loss_of(&self, edge: Edge, forms: &dyn Fn(&BTreeSet<u64>) -> Vec<Distance>) -> Option<Recognised> {
        let (mut seen, mut pending) = (HashSet::new(), VecDeque::from([edge.node]));
        while let Some(at) = pending.pop_front() {
            if self.known.contains(&at) || seen.len() == MAX_NODES {
                return None;
            }
            if self.mixed.contains(&at) && seen.insert(at) {
                if let Some(one) = self.fit(at, forms) {
                    return Some(one);
                }
                pending.extend(self.terms(at));
            }
        }
        None
    }

    /// The operands of a node that are its terms, or that it multiplies by a number or a weight.
    fn terms(&self, at: usize) -> Vec<usize> {
        let node = self.symbols.node(at);
        let inputs: Vec<usize> = node.inputs.iter().map(|edge| edge.node).collect();
        let n_trained = inputs.iter().filter(|input| self.from_variables.contains(input)).count();
        match node.op.as_str() {
            "Add" | "AddV2" | "AddN" | "Sub" | "Identity" | "Cast" | "Reshape" | "Squeeze" | "ExpandDims" => inputs,
            "Mul" => {
                if n_trained == 1 {
                    inputs
                } else {
                    Vec::new()
                }
            }
            "RealDiv" | "Div" | "DivNoNan" if n_trained == 1 => inputs.into_iter().take(1).collect(),
            _ => Vec::new(),
        }
    }

    /// The loss of ours that a node computes.
    fn fit(&self, at: usize, forms: &dyn Fn(&BTreeSet<u64>) -> Vec<Distance>) -> Option<Recognised> {
        if self.n_fits.replace(self.n_fits.get() + 1) >= MAX_FITS {
            return None;
        }
        let (mut predictions, mut labels, mut constants) = (Vec::new(), Vec::new(), BTreeSet::new());
        let (mut seen, mut pending) = (HashSet::new(), vec![at]);
        while let Some(at) = pending.pop() {
            if !seen.insert(at) {
                continue;
            }
            for edge in &self.symbols.node(at).inputs {
                match (self.mixed.contains(&edge.node), self.from_variables.contains(&edge.node)) {
                    (true, _) => pending.push(edge.node),
                    (_, true) => predictions.push(*edge),
                    _ if self.from_inputs.contains(&edge.node) => labels.push(*edge),
                    _ => constants.extend(self.symbols.value(*edge).map(f64::to_bits)),
                }
            }
            if seen.len() > MAX_NODES {
                return None;
            }
        }
        if seen.iter().any(|at| self.known.contains(at)) {
            return None;
        }
        if predictions.iter().any(|edge| self.known.contains(&edge.node)) {
            return None;
        }
        let label = self.only_source(&labels, &mut constants)?;
        let bases = self.bases(&predictions, &mut constants);
        let all = forms(&constants);
        bases.into_iter().find_map(|base| {
            let distance = self.like(at, base, label, &all)?;
            let ((loss, options), logits) = (distance.words(), self.symbols.behind(base));
            let (unit, offset, inside) = (1.0 / distance.factor(), distance.offset(), seen.clone());
            Some(Recognised { node: at, logits, labels: label, loss, options, unit, offset, inside })
        })
    }

    /// The number of axes of rows of labels and predictions, if one of both tells it.
    fn rank(&self, base: Edge, label: Edge) -> Option<usize> {
        let node = |edge: Edge| self.symbols.node(self.symbols.behind(edge).node);
        let input = |node: &Node| node.inputs.first().map(|edge| self.symbols.node(self.symbols.behind(*edge).node));
        let is_matrix = |node: &Node| node.op == "MatMul";
        let of_label = || Some(node(label)).filter(|node| is_input(&node.op))?.dims("shape").map(|dims| dims.len());
        let end = node(base);
        let is_product = is_matrix(end) || input(end).is_some_and(is_matrix);
        if is_product { Some(2) } else { of_label().filter(|rank| *rank > 0) }
    }

    /// The tensor that all labels are computed from, if it is one; and the numbers that they are computed with.
    fn only_source(&self, labels: &[Edge], constants: &mut BTreeSet<u64>) -> Option<Edge> {
        let mut sources: BTreeSet<(usize, usize)> = BTreeSet::new();
        let (mut seen, mut pending) = (HashSet::new(), labels.to_vec());
        while let Some(edge) = pending.pop() {
            if !seen.insert(edge.node) || seen.len() > MAX_NODES {
                continue;
            }
            let node = self.symbols.node(edge.node);
            if !loss_rows::is_known(node) {
                sources.insert((edge.node, edge.output));
                continue;
            }
            for input in &node.inputs {
                match self.from_inputs.contains(&input.node) {
                    true => pending.push(*input),
                    false => constants.extend(self.symbols.value(*input).map(f64::to_bits)),
                }
            }
        }
        let (node, output) = sources.pop_first().filter(|_| sources.is_empty())?;
        Some(Edge { node, output })
    }

    /// The tensors that predictions may be computed from, the nearest first; and the numbers that they are computed with.
    fn bases(&self, predictions: &[Edge], constants: &mut BTreeSet<u64>) -> Vec<Edge> {
        let mut bases: Vec<Edge> = Vec::new();
        let mut pending: VecDeque<Edge> = predictions.iter().copied().collect();
        while let Some(edge) = pending.pop_front().filter(|_| bases.len() < MAX_BASES) {
            if bases.contains(&edge) {
                continue;
            }
            bases.push(edge);
            let node = self.symbols.node(edge.node);
            if loss_rows::is_known(node) {
                let (trained, others): (Vec<Edge>, Vec<Edge>) =
                    node.inputs.iter().partition(|input| self.from_variables.contains(&input.node));
                pending.extend(trained);
                constants.extend(others.into_iter().filter_map(|edge| self.symbols.value(edge)).map(f64::to_bits));
            }
        }
        bases
    }

    /// The first of some losses that a node computes of a prediction and a label, at all that are tried.
    fn like(&self, at: usize, base: Edge, label: Edge, all: &[Distance]) -> Option<Distance> {
        // Keras makes -1 and 1 of 0 and 1 in a condition.
        let op = self.symbols.node(label.node).op.as_str();
        let is_converted = op.contains("If") || op == "Merge";
        Labels::ALL.into_iter().find_map(|labels| {
            let of_labels = || all.iter().filter(move |distance| distance.labels() == labels);
            of_labels().next()?;
            let cases = labels.cases();
            let rank = self.rank(base, label);
            [false, true].into_iter().filter(|converts| !converts || is_converted).find_map(|converts| {
                let curve: Option<Vec<f64>> = cases
                    .iter()
                    .map(|(x, y)| {
                        let y: Vec<f64> = y.iter().map(|y| if converts { 2.0 * y - 1.0 } else { *y }).collect();
                        self.single(at, [(base, x), (label, &y)], labels.is_of_rows(), rank)
                    })
                    .collect();
                let curve = curve?;
                of_labels()
                    .filter(|distance| converts == (is_converted && distance.may_convert()))
                    .find(|distance| {
                        let mut n_known = 0;
                        let is_near = cases.iter().zip(&curve).all(|((x, y), value)| {
                            let expected = distance.value(x, y);
                            n_known += usize::from(expected.is_finite());
                            let near = ROUNDINGS * expected.abs().max(if labels.is_of_rows() { 0.1 } else { 1e-3 });
                            value.is_nan() && expected.is_nan() || (value - expected).abs() <= near
                        });
                        is_near && 2 * n_known >= cases.len()
                    })
                    .copied()
            })
        })
    }

    /// The value of a node for one example, if it is one number for it.
    fn single(&self, at: usize, tensors: [(Edge, &Vec<f64>); 2], is_row: bool, rank: Option<usize>) -> Option<f64> {
        let row = |values: &Vec<f64>| match is_row {
            true => Some(RowValue::All(values.clone())),
            false => values.first().copied().map(RowValue::Number),
        };
        let mut known = loss_rows::Known::new();
        for (edge, values) in tensors {
            known.insert(edge, Some(row(values)?));
        }
        match (is_row, loss_rows::value(self.symbols, Edge { node: at, output: 0 }, rank, &mut known, 0)?) {
            (false, RowValue::Number(value)) | (true, RowValue::Each(value) | RowValue::Kept(value)) => Some(value),
            _ => None,
        }
    }
}
