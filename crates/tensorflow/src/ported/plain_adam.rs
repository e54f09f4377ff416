//! Recognises BERT's `AdamWeightDecayOptimizer`, which is written with plain ops: `w ← w - rate · (m / (√v + ε) + decay · w)`
//! with the moments `m` and `v` as they are assigned, and without a correction. Every trained variable is updated so, with the
//! same numbers, or the optimizer is another one.

use std::collections::{BTreeMap, BTreeSet};

use super::region;
use super::symbols::{Symbols, is_variable, yaml_number};
use crate::node::{Edge, Node};

/// The update of all trained variables.
pub(super) struct PlainAdam {
    /// `{kind: adamw, bias_correction: false, …}`.
    pub optimizer: String,
    pub rate: Edge,
    /// The number by which variables decay, if any do.
    pub decay: Option<f64>,
    pub decayed: BTreeSet<String>,
    pub spared: BTreeSet<String>,
    pub gradients: Vec<(String, Edge)>,
}

/// The update of one variable.
#[derive(Clone, Copy)]
struct Update {
    /// β₁, β₂ and ε.
    numbers: [f64; 3],
    rate: Edge,
    decay: Option<f64>,
    gradient: Edge,
}

/// A training step: what it assigns to each variable.
struct Step<'s, 'g> {
    symbols: &'s Symbols<'g>,
    assigned: BTreeMap<String, Vec<Edge>>,
}

const SUMS: [&str; 2] = ["Add", "AddV2"];
const PRODUCTS: [&str; 1] = ["Mul"];
const RATIOS: [&str; 2] = ["RealDiv", "Div"];

/// The optimizer of a graph whose training operation has this form.
pub(super) fn plain_adam(symbols: &Symbols<'_>) -> Option<PlainAdam> {
    let step = Step { symbols, assigned: assigned(symbols) };
    let trained = symbols.graph.variables.iter().filter(|variable| variable.is_trainable);
    let updates = trained.map(|variable| Some((variable.name.clone(), step.update(&variable.name)?)));
    let updates: Vec<(String, Update)> = updates.collect::<Option<_>>()?;
    let first = updates.first()?.1;
    let decay = updates.iter().find_map(|(_, update)| update.decay);
    let is_like_first = |update: &Update| update.numbers == first.numbers && update.rate == first.rate;
    if !updates.iter().all(|(_, update)| is_like_first(update) && (update.decay.is_none() || update.decay == decay)) {
        return None;
    }
    let [beta1, beta2, epsilon] = first.numbers.map(yaml_number);
    let optimizer =
        format!("{{kind: adamw, bias_correction: false, beta1: {beta1}, beta2: {beta2}, epsilon: {epsilon}}}");
    let named = |has_decay: bool| {
        let chosen = updates.iter().filter(|(_, update)| update.decay.is_some() == has_decay);
        chosen.map(|(name, _)| name.clone()).collect()
    };
    let gradients = updates.iter().map(|(name, update)| (name.clone(), update.gradient)).collect();
    Some(PlainAdam { optimizer, rate: first.rate, decay, decayed: named(true), spared: named(false), gradients })
}

/// The values that the training operation assigns, by variable. An assignment of another kind is one of the node's own result.
fn assigned(symbols: &Symbols<'_>) -> BTreeMap<String, Vec<Edge>> {
    let graph = symbols.graph;
    let mut is_seen = vec![false; graph.body.nodes.len()];
    let mut pending: Vec<usize> =
        graph.collection("train_op").iter().filter_map(|name| graph.body.edge(name)).map(|edge| edge.node).collect();
    let mut assigned: BTreeMap<String, Vec<Edge>> = BTreeMap::new();
    while let Some(idx) = pending.pop() {
        if std::mem::replace(&mut is_seen[idx], true) {
            continue;
        }
        let node = symbols.node(idx);
        pending.extend(node.inputs.iter().map(|edge| edge.node).chain(node.controls.iter().copied()));
        let (Some(target), true) = (node.inputs.first(), node.op.starts_with("Assign")) else { continue };
        let target = symbols.node(target.node);
        let value = match (node.op.as_str(), node.inputs.get(1)) {
            ("Assign" | "AssignVariableOp", Some(value)) => plain(symbols, *value),
            _ => Edge { node: idx, output: 0 },
        };
        if is_variable(&target.op) {
            assigned.entry(target.variable_name()).or_default().push(value);
        }
    }
    assigned
}

/// The edge behind identities and reads: a cast rounds, so it is part of the form.
fn plain(symbols: &Symbols<'_>, mut edge: Edge) -> Edge {
    for _ in 0..64 {
        let node = symbols.node(edge.node);
        match (node.op.as_str(), node.inputs.first()) {
            ("Identity" | "ReadVariableOp", Some(input)) => edge = *input,
            _ => break,
        }
    }
    edge
}

/// The finding of a function in two operands, in either order.
fn either<T>([x, y]: [Edge; 2], find: impl Fn(Edge, Edge) -> Option<T>) -> Option<T> {
    find(x, y).or_else(|| find(y, x))
}

impl<'g> Step<'_, 'g> {
    fn node(&self, edge: Edge) -> &'g Node {
        self.symbols.node(plain(self.symbols, edge).node)
    }

    /// The operands of one of some ops of two.
    fn operands(&self, edge: Edge, ops: &[&str]) -> Option<[Edge; 2]> {
        let node = self.node(edge);
        match node.inputs[..] {
            [x, y] if ops.contains(&node.op.as_str()) => Some([x, y]),
            _ => None,
        }
    }

    /// The variable that an edge reads.
    fn variable(&self, edge: Edge) -> Option<String> {
        let node = self.node(edge);
        is_variable(&node.op).then(|| node.variable_name())
    }

    /// A number, and what is found in what it multiplies.
    fn multiple<T>(&self, edge: Edge, find: impl Fn(Edge) -> Option<T>) -> Option<(f64, T)> {
        let operands = self.operands(edge, &PRODUCTS)?;
        either(operands, |number, rest| Some((self.symbols.value(number)?, find(rest)?)))
    }

    /// `β · slot + (1 - β) · new`, as it is assigned to the slot and nowhere else: the slot, β and what is found in `new`.
    fn moment(&self, edge: Edge, find: impl Fn(Edge) -> Option<Edge>) -> Option<(String, f64, Edge)> {
        let operands = self.operands(edge, &SUMS)?;
        let (slot, kept, new) = either(operands, |old, new| {
            let (kept, slot) = self.multiple(old, |edge| self.variable(edge))?;
            let (share, new) = self.multiple(new, &find)?;
            ((kept + share - 1.0).abs() < 1e-6).then_some((slot, kept, new))
        })?;
        let is_assigned = self.assigned.get(&slot).is_some_and(|values| values[..] == [plain(self.symbols, edge)]);
        is_assigned.then_some((slot, kept, new))
    }

    /// The operand of a square.
    fn squared(&self, edge: Edge) -> Option<Edge> {
        let node = self.node(edge);
        let inputs: Vec<Edge> = node.inputs.iter().map(|input| plain(self.symbols, *input)).collect();
        match (node.op.as_str(), &inputs[..]) {
            ("Square", [x]) => Some(*x),
            ("Mul", [x, y]) if x == y => Some(*x),
            _ => None,
        }
    }

    /// The update of a variable that is assigned once.
    fn update(&self, name: &str) -> Option<Update> {
        let [value] = self.assigned.get(name)?[..] else { return None };
        let [old, step] = self.operands(value, &["Sub"])?;
        if self.variable(old)? != name {
            return None;
        }
        let operands = self.operands(step, &PRODUCTS)?;
        either(operands, |rate, direction| {
            let (numbers, decay, gradient) = self.direction(direction, name)?;
            Some(Update { numbers, rate: plain(self.symbols, rate), decay, gradient })
        })
    }

    /// `m / (√v + ε)`, plus the variable times its decay or not: β₁, β₂ and ε, the decay, and the gradient.
    fn direction(&self, edge: Edge, name: &str) -> Option<([f64; 3], Option<f64>, Edge)> {
        let decayed = self.operands(edge, &SUMS).and_then(|operands| {
            either(operands, |ratio, term| {
                let (decay, variable) = self.multiple(term, |edge| self.variable(edge))?;
                (variable == name).then_some((ratio, Some(decay)))
            })
        });
        let (ratio, decay) = decayed.unwrap_or((edge, None));
        let [mean, root] = self.operands(ratio, &RATIOS)?;
        let (square, epsilon) = either(self.operands(root, &SUMS)?, |root, epsilon| {
            let root = Some(self.node(root)).filter(|node| node.op == "Sqrt")?;
            Some((*root.inputs.first()?, self.symbols.value(epsilon)?))
        })?;
        let (m, beta1, gradient) = self.moment(mean, |edge| Some(plain(self.symbols, edge)))?;
        let (v, beta2, squared) = self.moment(square, |edge| self.squared(edge))?;
        let graph = self.symbols.graph;
        let is_gradient = || {
            let before = region::ancestors(graph, [gradient.node]);
            before.iter().any(|idx| region::is_backward(&graph.body.nodes[*idx].name))
        };
        let are_slots = m != v && m != name && v != name && gradient == squared;
        (are_slots && is_gradient()).then_some(([beta1, beta2, epsilon], decay, gradient))
    }
}
