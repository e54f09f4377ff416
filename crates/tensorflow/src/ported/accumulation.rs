//! Recognises gradients that variables sum over several steps before they update the network: gradient accumulation.

use std::collections::{BTreeSet, HashSet};

use super::symbols::{Symbols, shortest};
use super::{Note, region, updates};
use crate::node::{Edge, Node};

/// Sums of gradients that an update reads.
struct Accumulation {
    /// The node that adds to the first sum, and the variable that has it.
    at: usize,
    variable: String,
    /// How many steps are summed, if a condition counts them by a constant.
    n_steps: Option<f64>,
    /// Whether the sum, or the loss, is divided by that number.
    is_mean: bool,
    /// How many times the graph's loss the mean's is.
    factor: f64,
}

/// The remark on gradients that are summed over steps, if these are; over how many, and what their loss is multiplied by here,
/// where a mean is taken. `gradients` are those that updates read.
pub(super) fn note(
    symbols: &Symbols<'_>,
    loss: Option<usize>,
    gradients: &[(String, Edge)],
) -> Option<(Note, Option<(i64, f64)>)> {
    let Accumulation { at, variable, n_steps, is_mean, factor } = accumulation(symbols, loss, gradients)?;
    let text = format!(
        "gradients are summed over {} steps, in variables such as `{variable}`, before they update (gradient accumulation)",
        n_steps.map_or("several".to_string(), |n| n.to_string())
    );
    let (text, help) = match n_steps {
        None => (
            text,
            "`accumulate: N` under `train`, with a batch N times as large, updates by the mean of N micro-batches"
                .to_string(),
        ),
        Some(n) => (
            format!("{text}; here `accumulate: {n}` of a batch {n} times as large, and a step is an update"),
            match is_mean {
                true => format!("steps of a schedule that counts micro-batches are {n} times as many there"),
                false => format!("the graph's update takes their sum, so that the loss counts {n} times here"),
            },
        ),
    };
    Some((Note::new(symbols.graph, Some(at), text, help).in_step(), n_steps.map(|n| (n as i64, factor))))
}

fn accumulation(symbols: &Symbols<'_>, loss: Option<usize>, gradients: &[(String, Edge)]) -> Option<Accumulation> {
    let nodes = &symbols.graph.body.nodes;
    let updated: HashSet<&str> = gradients.iter().map(|(name, _)| name.as_str()).collect();
    let sums = nodes.iter().enumerate().filter_map(|(at, node)| {
        let variable = updates::variable(symbols, *node.inputs.first()?)?;
        (!updated.contains(variable.as_str()) && adds_gradient(symbols, node, &variable)).then_some((at, variable))
    });
    let sums: Vec<(usize, String)> = sums.collect();
    if sums.is_empty() {
        return None;
    }
    let between = behind_update(symbols, gradients.iter().map(|(_, gradient)| *gradient));
    let is_read = |name: &String| between.iter().any(|at| updates::is_read_of(nodes, *at, name));
    let (at, variable) = sums.into_iter().find(|(_, name)| is_read(name))?;
    let n_steps = counted_steps(symbols);
    let is_share = |at: &usize| n_steps.is_some_and(|n| is_divided(symbols, symbols.node(*at), n));
    let is_divided = between.iter().any(is_share);
    let is_mean = is_divided || region::ancestors(symbols.graph, loss).iter().any(is_share);
    let factor = if is_divided { 1.0 } else { n_steps.unwrap_or(1.0) };
    Some(Accumulation { at, variable, n_steps, is_mean, factor })
}

/// Whether a node adds a gradient, times a number or not, to a variable.
fn adds_gradient(symbols: &Symbols<'_>, node: &Node, variable: &str) -> bool {
    let Some(value) = node.inputs.get(1).copied() else { return false };
    match node.op.as_str() {
        "AssignAdd" | "AssignAddVariableOp" => is_of_gradient(symbols, value),
        "Assign" | "AssignVariableOp" => {
            let sum = symbols.node(symbols.behind(value).node);
            let is_old = |edge: &Edge| updates::variable(symbols, *edge).as_deref() == Some(variable);
            matches!(sum.op.as_str(), "Add" | "AddV2")
                && sum.inputs.iter().any(is_old)
                && sum.inputs.iter().any(|edge| is_of_gradient(symbols, *edge))
        }
        _ => false,
    }
}

/// Whether a tensor is a gradient, times a number or not.
fn is_of_gradient(symbols: &Symbols<'_>, mut edge: Edge) -> bool {
    for _ in 0..64 {
        let node = symbols.node(edge.node);
        let number = |number: usize| symbols.scalar(node, number).is_some();
        edge = match (node.op.as_str(), &node.inputs[..]) {
            _ if updates::is_gradient(node) => return true,
            ("Mul" | "RealDiv" | "Div", [x, _]) if number(1) => *x,
            ("Mul", [_, y]) if number(0) => *y,
            (
                "Identity" | "Cast" | "StopGradient" | "Reshape" | "Switch" | "CrossReplicaSum" | "CheckNumerics",
                [x, ..],
            ) => *x,
            _ => return false,
        };
    }
    false
}

/// The nodes between gradients, or what keeps them, and updates.
fn behind_update(symbols: &Symbols<'_>, gradients: impl Iterator<Item = Edge>) -> HashSet<usize> {
    let (mut seen, mut pending) = (HashSet::new(), gradients.map(|edge| edge.node).collect::<Vec<usize>>());
    while let Some(at) = pending.pop() {
        let node = symbols.node(at);
        if !updates::is_gradient(node) && seen.insert(at) {
            pending.extend(node.inputs.iter().map(|edge| edge.node));
        }
    }
    seen
}

/// The divisor of a remainder on which a branch depends, if there is one such number.
fn counted_steps(symbols: &Symbols<'_>) -> Option<f64> {
    let nodes = &symbols.graph.body.nodes;
    let conditions = nodes.iter().filter_map(|node| match node.op.as_str() {
        "If" | "StatelessIf" => node.inputs.first(),
        "Switch" | "RefSwitch" => node.inputs.get(1),
        _ => None,
    });
    let before = region::ancestors(symbols.graph, conditions.map(|edge| edge.node).collect::<BTreeSet<usize>>());
    let divisor = |at: &usize| {
        let node = symbols.node(*at);
        symbols.scalar(node, 1).filter(|n| matches!(node.op.as_str(), "FloorMod" | "Mod" | "TruncateMod") && *n >= 2.0)
    };
    let mut divisors = before.iter().filter_map(divisor);
    let first = divisors.next()?;
    divisors.all(|n| n == first).then_some(first)
}

/// Whether a node divides by a number of steps.
fn is_divided(symbols: &Symbols<'_>, node: &Node, n_steps: f64) -> bool {
    match node.op.as_str() {
        "RealDiv" | "Div" => symbols.scalar(node, 1) == Some(n_steps),
        "Mul" => [0, 1].iter().any(|number| symbols.scalar(node, *number) == Some(shortest((1.0 / n_steps) as f32))),
        _ => false,
    }
}
