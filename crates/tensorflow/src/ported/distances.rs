//! Losses of a prediction and its label that graphs write with plain ops, one number at a time: recognised by their values.
//!
//! The operand of a mean or sum is computed for some predictions and labels, and beside each loss of ours with the numbers that
//! the graph has. A loss is accepted only if it is alike for all of them.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::symbols::{Symbols, constant, is_variable, yaml_number};
use super::{numbers, region};
use crate::host::is_input;
use crate::node::{Edge, Node};

/// A loss of one prediction and one label, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Distance {
    Squared,
    Absolute,
    Percentage,
    Logarithmic,
    LogCosh,
    Hinge,
    SquaredHinge,
    Poisson,
    Sigmoid,
    Huber { delta: f64 },
    Quantile { tau: f64 },
}

/// A loss that was recognised.
pub(super) struct Recognised {
    /// The node of the losses.
    pub node: usize,
    pub logits: Edge,
    pub labels: Edge,
    /// Its name in YAML.
    pub loss: &'static str,
    pub options: Vec<(&'static str, String)>,
}

/// Predictions at which losses are compared.
const PREDICTIONS: [f64; 7] = [-2.5, -1.0, -0.3, 0.15, 0.6, 1.7, 4.0];
/// Labels of losses of numbers, and of losses of two classes.
const NUMBERS: [f64; 5] = [-1.5, 0.0, 0.25, 1.0, 3.0];
const CLASSES: [f64; 2] = [0.0, 1.0];
/// Keras' ε.
const EPSILON: f64 = 1e-7;
/// The graph's numbers are f32, and ours decimals.
const ROUNDINGS: f64 = 1e-5;
/// The numbers of nodes between a sum and its loss, between a loss and its operands, and of predictions, that are tried at most.
const MAX_NODES: usize = 64;
const MAX_BASES: usize = 16;
/// So many nodes of a graph are tried as losses, and so many of its numbers, the smallest first.
const MAX_FITS: usize = 256;
const MAX_CONSTANTS: usize = 16;

impl Distance {
    /// All losses with numbers of these.
    fn all(constants: &BTreeSet<u64>) -> Vec<Distance> {
        use Distance as D;
        let mut all = vec![D::Squared, D::Absolute, D::Percentage, D::Logarithmic, D::LogCosh];
        all.extend([D::Hinge, D::SquaredHinge, D::Poisson, D::Sigmoid]);
        let constants = constants.iter().map(|bits| f64::from_bits(*bits)).filter(|x| *x > 0.0);
        for number in constants.take(MAX_CONSTANTS) {
            all.push(D::Huber { delta: number });
            if number < 1.0 {
                all.push(D::Quantile { tau: number });
            }
        }
        all
    }

    fn labels(self) -> &'static [f64] {
        match self {
            Distance::Hinge | Distance::SquaredHinge | Distance::Sigmoid => &CLASSES,
            _ => &NUMBERS,
        }
    }

    fn value(self, x: f64, y: f64) -> f64 {
        let distance = (x - y).abs();
        let logarithm = |x: f64| x.max(EPSILON).ln_1p();
        let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        let hinge = (1.0 - (2.0 * y - 1.0) * x).max(0.0);
        match self {
            Distance::Squared => distance * distance,
            Distance::Absolute => distance,
            Distance::Percentage => 100.0 * distance / y.abs().max(EPSILON),
            Distance::Logarithmic => (logarithm(x) - logarithm(y)).powi(2),
            Distance::LogCosh => distance + softplus(-2.0 * distance) - std::f64::consts::LN_2,
            Distance::Hinge => hinge,
            Distance::SquaredHinge => hinge * hinge,
            Distance::Poisson => x - y * (x + EPSILON).ln(),
            Distance::Sigmoid => softplus(x) - x * y,
            Distance::Huber { delta } if distance <= delta => distance * distance / 2.0,
            Distance::Huber { delta } => delta * distance - delta * delta / 2.0,
            Distance::Quantile { tau } => (tau * (y - x)).max((tau - 1.0) * (y - x)),
        }
    }

    fn words(self) -> (&'static str, Vec<(&'static str, String)>) {
        match self {
            Distance::Squared => ("mean_squared_error", Vec::new()),
            Distance::Absolute => ("mean_absolute_error", Vec::new()),
            Distance::Percentage => ("mean_absolute_percentage_error", Vec::new()),
            Distance::Logarithmic => ("mean_squared_logarithmic_error", Vec::new()),
            Distance::LogCosh => ("log_cosh", Vec::new()),
            Distance::Hinge => ("hinge", Vec::new()),
            Distance::SquaredHinge => ("squared_hinge", Vec::new()),
            Distance::Poisson => ("poisson", Vec::new()),
            Distance::Sigmoid => ("sigmoid_cross_entropy", Vec::new()),
            Distance::Huber { delta } => ("huber", vec![("delta", yaml_number(delta))]),
            Distance::Quantile { tau } => ("quantile", vec![("tau", yaml_number(tau))]),
        }
    }
}

/// The scalar losses among the nodes that lead to the loss, without those in `known`.
pub(super) fn recognised(
    symbols: &Symbols<'_>,
    readers: &HashMap<usize, Vec<usize>>,
    before: &[usize],
    loss: usize,
    known: &[usize],
) -> Vec<Recognised> {
    let behind = region::behind_layers(symbols.graph, loss);
    let search = Search::new(symbols, readers, before, &behind, known);
    let mut all: Vec<Recognised> = Vec::new();
    let sums =
        before.iter().filter(|at| behind.contains(at) && matches!(symbols.node(**at).op.as_str(), "Mean" | "Sum"));
    for sum in sums {
        let one = symbols.node(*sum).inputs.first().and_then(|edge| search.loss_of(*edge));
        all.extend(one.filter(|one| all.iter().all(|other| other.node != one.node)));
    }
    all
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
        let is_of_numbers = |at: usize| behind.contains(&at) && numbers::is_known(node(at));
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
    fn loss_of(&self, edge: Edge) -> Option<Recognised> {
        let (mut seen, mut pending) = (HashSet::new(), VecDeque::from([edge.node]));
        while let Some(at) = pending.pop_front() {
            if self.known.contains(&at) || seen.len() == MAX_NODES {
                return None;
            }
            if self.mixed.contains(&at) && seen.insert(at) {
                if let Some(one) = self.fit(at) {
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
    fn fit(&self, at: usize) -> Option<Recognised> {
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
        let label = self.only_source(&labels)?;
        let bases = self.bases(&predictions);
        let all = Distance::all(&constants);
        bases.into_iter().find_map(|base| {
            let distance = *all.iter().find(|distance| self.is_like(at, base, label, **distance))?;
            let (loss, options) = distance.words();
            Some(Recognised { node: at, logits: self.symbols.behind(base), labels: label, loss, options })
        })
    }

    /// The tensor that all labels are computed from, if it is one.
    fn only_source(&self, labels: &[Edge]) -> Option<Edge> {
        let mut sources: BTreeSet<(usize, usize)> = BTreeSet::new();
        let (mut seen, mut pending) = (HashSet::new(), labels.to_vec());
        while let Some(edge) = pending.pop() {
            if !seen.insert(edge.node) || seen.len() > MAX_NODES {
                continue;
            }
            let node = self.symbols.node(edge.node);
            let numbers = node.inputs.iter().filter(|input| self.from_inputs.contains(&input.node));
            match numbers::is_known(node) {
                true => pending.extend(numbers),
                false => drop(sources.insert((edge.node, edge.output))),
            }
        }
        let (node, output) = sources.pop_first().filter(|_| sources.is_empty())?;
        Some(Edge { node, output })
    }

    /// The tensors that predictions may be computed from, the nearest first.
    fn bases(&self, predictions: &[Edge]) -> Vec<Edge> {
        let mut bases: Vec<Edge> = Vec::new();
        let mut pending: VecDeque<Edge> = predictions.iter().copied().collect();
        while let Some(edge) = pending.pop_front().filter(|_| bases.len() < MAX_BASES) {
            if bases.contains(&edge) {
                continue;
            }
            bases.push(edge);
            let node = self.symbols.node(edge.node);
            if numbers::is_known(node) {
                pending.extend(node.inputs.iter().filter(|input| self.from_variables.contains(&input.node)));
            }
        }
        bases
    }

    /// Whether a node is a loss of a prediction and a label, at all that are tried.
    fn is_like(&self, at: usize, base: Edge, label: Edge, distance: Distance) -> bool {
        // Keras makes -1 and 1 of 0 and 1 in a condition.
        let is_converted =
            self.symbols.node(label.node).op.contains("If") || self.symbols.node(label.node).op == "Merge";
        let is_class = distance.labels() == CLASSES && distance != Distance::Sigmoid;
        let mut n_known = 0;
        let is_near = PREDICTIONS.iter().all(|x| {
            distance.labels().iter().all(|y| {
                let in_graph = if is_converted && is_class { 2.0 * y - 1.0 } else { *y };
                let mut known = HashMap::from([(base, *x), (label, in_graph)]);
                let Some(value) = self.value(Edge { node: at, output: 0 }, &mut known, 0) else { return false };
                let expected = distance.value(*x, *y);
                n_known += usize::from(expected.is_finite());
                value.is_nan() && expected.is_nan() || (value - expected).abs() <= ROUNDINGS * expected.abs().max(1e-3)
            })
        });
        is_near && 2 * n_known >= PREDICTIONS.len() * distance.labels().len()
    }

    fn value(&self, edge: Edge, known: &mut HashMap<Edge, f64>, depth: usize) -> Option<f64> {
        if let Some(value) = known.get(&edge) {
            return Some(*value);
        }
        let node = self.symbols.node(edge.node);
        let value = match depth < MAX_NODES {
            true => match constant(node) {
                Some((_, values)) => values.first().copied().filter(|first| values.iter().all(|x| x == first)),
                None => numbers::result(node, edge.output, |x| x, &mut |input| self.value(input, known, depth + 1)),
            },
            false => None,
        }?;
        known.insert(edge, value);
        Some(value)
    }
}
