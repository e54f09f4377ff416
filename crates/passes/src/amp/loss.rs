//! Which results of an entry are losses: those that the policy names, or else those that [`guess`] infers.
//!
//! A loss is a scalar, but not every scalar result is a loss: the bias of a layer with one output is a scalar, and so
//! are an optimizer's slots for it. Those are updates of a scalar parameter: the program computes the one from the
//! other element by element, or declares it by an alias; but an alias alone may only reuse the memory of a parameter
//! of the same shape.
//!
//! If a program returns several scalars, losses are those that gradients start from. A measure of gradients or
//! updates, such as a logged norm, is not a loss; nor is a measure taken on the way to a loss, such as the mean size
//! of an activation: gradients read no more of that than layers do.

use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use bf16scope_hlo::ops::decisions::is_map;
use bf16scope_hlo::{Op, Shape};
use serde::Serialize;
use std::collections::BTreeSet;

/// A result of the entry that is treated as a loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TakenLoss {
    /// The number of the result.
    pub result: usize,
    /// The instruction that computes it.
    pub instruction: String,
    /// Whether the policy names it; otherwise it is a guess.
    pub is_given: bool,
}

/// The losses, for the report.
pub(super) fn taken(graph: &Dataflow<'_>) -> Vec<TakenLoss> {
    // Several results may be the same value.
    let losses: BTreeSet<ValueId> = losses(graph).into_iter().collect();
    let taken = |(result, value): (usize, &ValueId)| {
        let instruction = graph.instr(graph.node(graph.producer(*value))).name.clone();
        losses.contains(value).then_some(TakenLoss { result, instruction, is_given: graph.losses.is_some() })
    };
    graph.results.iter().enumerate().filter_map(taken).collect()
}

/// The losses: the results that the policy names, or those that [`guess`] infers.
pub(super) fn losses(graph: &Dataflow<'_>) -> Vec<ValueId> {
    match &graph.losses {
        Some(numbers) => numbers.iter().filter_map(|&number| graph.results.get(number).copied()).collect(),
        None => guess(graph),
    }
}

/// Whether the program trains: it returns a loss, or has results in the place of parameters.
pub(super) fn trains(graph: &Dataflow<'_>) -> bool {
    !graph.module.input_output_alias.is_empty() || !losses(graph).is_empty()
}

/// Infers the losses from the form of the program.
fn guess(graph: &Dataflow<'_>) -> Vec<ValueId> {
    let is_number = |value: &ValueId| graph.value(*value).is_f32() && graph.value(*value).n_elements == 1;
    let is_aliased = aliased(graph);
    let scalars = || graph.results.iter().copied().zip(&is_aliased).filter(|(value, _)| is_number(value));
    if scalars().next().is_none() {
        return Vec::new();
    }
    let of_parameter = of_parameters(graph, |_| true, |_| true);
    let is_update = |value: ValueId| of_parameter[graph.producer(value) as usize];
    // A loss times a parameter that scales it looks like an update of that parameter, and may be the only form in
    // which the loss is returned.
    let is_new = |value: ValueId, is_aliased: bool| !is_aliased && !is_update(value);
    let is_computed = |value: ValueId, _: bool| !is_update(value);
    let has_memory = |_: ValueId, is_aliased: bool| !is_aliased;
    let rules: [&dyn Fn(ValueId, bool) -> bool; 3] = [&is_new, &is_computed, &has_memory];
    let matching = |is_loss: &dyn Fn(ValueId, bool) -> bool| -> Vec<ValueId> {
        scalars().filter(|&(value, &is_aliased)| is_loss(value, is_aliased)).map(|(value, _)| value).collect()
    };
    let losses = rules.iter().map(|rule| matching(rule)).find(|losses| !losses.is_empty()).unwrap_or_default();
    if losses.len() < 2 {
        return losses;
    }
    let updates = updates(graph);
    let is_of_updates = measures(graph, &updates);
    let losses = or_all(losses, |value| !is_of_updates[graph.producer(value) as usize]);
    let starts = starts(graph, &losses, &updates);
    or_all(losses, |value| starts[graph.producer(value) as usize])
}

/// The values that `is_kept`, or all values if that selects nothing.
fn or_all(all: Vec<ValueId>, is_kept: impl Fn(ValueId) -> bool) -> Vec<ValueId> {
    let filtered: Vec<ValueId> = all.iter().copied().filter(|&value| is_kept(value)).collect();
    if filtered.is_empty() { all } else { filtered }
}

/// For each result whether it is aliased to a parameter.
fn aliased(graph: &Dataflow<'_>) -> Vec<bool> {
    let aliases: BTreeSet<&[i64]> =
        graph.module.input_output_alias.iter().map(|alias| &alias.output_index[..]).collect();
    let mut is_aliased = Vec::with_capacity(graph.results.len());
    if !aliases.is_empty() {
        mark_aliased(graph.module.entry().result_shape(), &mut Vec::new(), &aliases, &mut is_aliased);
    }
    is_aliased.resize(graph.results.len(), false);
    is_aliased
}

/// Appends for each leaf of a shape, depth first, whether `aliases` has its place. `path` is the place of the shape.
fn mark_aliased(shape: &Shape, path: &mut Vec<i64>, aliases: &BTreeSet<&[i64]>, is_aliased: &mut Vec<bool>) {
    let Some(elements) = shape.as_tuple() else {
        is_aliased.push(matches!(shape, Shape::Array(_)) && aliases.contains(&path[..]));
        return;
    };
    for (index, element) in (0..).zip(elements) {
        path.push(index);
        mark_aliased(element, path, aliases, is_aliased);
        path.pop();
    }
}

/// For each node whether it is a parameter that `is_open`, or is computed elementwise from one of its own dims,
/// through nodes that satisfy `passes`.
pub(super) fn of_parameters(
    graph: &Dataflow<'_>,
    is_open: impl Fn(NodeId) -> bool,
    passes: impl Fn(NodeId) -> bool,
) -> Vec<bool> {
    let mut is_of_parameter = vec![false; graph.nodes.len()];
    for (idx, node) in graph.nodes.iter().enumerate() {
        is_of_parameter[idx] = match node.kind {
            NodeKind::Parameter => is_open(idx as NodeId),
            _ => {
                elements(graph, node).any(|value| is_of_parameter[graph.producer(value) as usize])
                    && passes(idx as NodeId)
            }
        };
    }
    is_of_parameter
}

/// The f32 operands of an elementwise node that have the dims of its result.
fn elements<'g>(graph: &'g Dataflow<'_>, node: &'g Node) -> impl Iterator<Item = ValueId> + 'g {
    let op = &graph.instr(node).op;
    let is_open = node.kind != NodeKind::Parameter && is_map(op) && !matches!(op, Op::Broadcast { .. } | Op::Reshape);
    let wanted = graph.dims(node).filter(|_| is_open);
    let is_same = move |&value: &ValueId| {
        graph.value(value).is_f32() && wanted.is_some() && graph.dims(graph.node(graph.producer(value))) == wanted
    };
    node.operands.iter().copied().filter(is_same)
}

/// For each node whether it belongs to an update: its result is the new value of a parameter that a product, or
/// another op that is not elementwise, reads; or that value is computed from it elementwise, as from a gradient; or it
/// is a gradient that is a result itself.
fn updates(graph: &Dataflow<'_>) -> Vec<bool> {
    let leads_to_product = graph.leads_to_product();
    let is_no_map = |node: NodeId| !is_map(graph.op(node));
    let is_weight = |node: NodeId| leads_to_product[node as usize] || graph.readers(node).any(is_no_map);
    let of_weight = of_parameters(graph, is_weight, |_| true);
    let dims = |node: NodeId| graph.dims(graph.node(node));
    let parameters: BTreeSet<_> = graph.parameters().filter_map(|value| dims(graph.producer(value))).collect();
    let is_gradient = |&node: &NodeId| {
        let is_array = graph.node(node).results().all(|value| graph.value(value).n_elements > 1);
        is_array && !leads_to_product[node as usize] && dims(node).is_some_and(|dims| parameters.contains(dims))
    };
    let results = graph.results.iter().map(|&value| graph.producer(value));
    let mut open: Vec<NodeId> = results.filter(|node| of_weight[*node as usize] || is_gradient(node)).collect();
    let mut is_update = vec![false; graph.nodes.len()];
    while let Some(node) = open.pop() {
        let record = graph.node(node);
        if record.kind != NodeKind::Parameter && !std::mem::replace(&mut is_update[node as usize], true) {
            open.extend(elements(graph, record).map(|value| graph.producer(value)));
        }
    }
    is_update
}

/// For each node whether it is computed from updates, and from products only through them.
fn measures(graph: &Dataflow<'_>, updates: &[bool]) -> Vec<bool> {
    let mut is_of_update = updates.to_vec();
    let mut is_of_product = vec![false; graph.nodes.len()];
    for (idx, node) in graph.nodes.iter().enumerate().filter(|(idx, _)| !updates[*idx]) {
        let reads_marked = |marked: &[bool]| node.operands.iter().any(|&value| marked[graph.producer(value) as usize]);
        is_of_update[idx] = reads_marked(&is_of_update);
        is_of_product[idx] = graph.multiplies(node) || reads_marked(&is_of_product);
    }
    is_of_update
        .iter()
        .zip(is_of_product)
        .map(|(&is_of_update, is_of_product)| is_of_update && !is_of_product)
        .collect()
}

/// For each node which ways lead from it to a loss, other than through updates.
struct Ways {
    /// Whether a way without a product does.
    within: Vec<bool>,
    /// Whether a way through a product does.
    by_product: Vec<bool>,
}

fn ways(graph: &Dataflow<'_>, losses: &[ValueId], updates: &[bool]) -> Ways {
    let mut within = vec![false; graph.nodes.len()];
    let mut by_product = within.clone();
    losses.iter().for_each(|&value| within[graph.producer(value) as usize] = true);
    for (idx, node) in graph.nodes.iter().enumerate().rev() {
        let users = || node.results().flat_map(|value| &graph.users[value as usize]).map(|&user| user as usize);
        for user in users().filter(|&user| !updates[user]) {
            let is_product = graph.multiplies(graph.node(user as NodeId));
            within[idx] |= !is_product && within[user];
            by_product[idx] |= by_product[user] || is_product && within[user];
        }
    }
    Ways { within, by_product }
}

/// For each node whether one of `losses` is computed from its result through a product.
pub(super) fn leads_by_product(graph: &Dataflow<'_>, losses: &[ValueId]) -> Vec<bool> {
    if losses.is_empty() { vec![false; graph.nodes.len()] } else { ways(graph, losses, &updates(graph)).by_product }
}

/// For each node whether a gradient starts from a value that it is computed from since the last product: from a value
/// with no way to a loss through a product (other than through updates), as the values of a layer have, but which
/// another op on the way to a product reads.
fn starts(graph: &Dataflow<'_>, losses: &[ValueId], updates: &[bool]) -> Vec<bool> {
    let leads_to_product = graph.leads_to_product();
    let Ways { within, by_product } = ways(graph, losses, updates);
    let mut starts = vec![false; graph.nodes.len()];
    for (idx, node) in graph.nodes.iter().enumerate() {
        let mut users = node.results().flat_map(|value| &graph.users[value as usize]).map(|&user| user as usize);
        let is_gradient =
            |user: usize| graph.multiplies(graph.node(user as NodeId)) || leads_to_product[user] && !within[user];
        let is_op = !matches!(node.kind, NodeKind::Parameter | NodeKind::Constant);
        starts[idx] = is_op && !by_product[idx] && users.any(is_gradient);
        if !graph.multiplies(node) {
            starts[idx] |= node.operands.iter().any(|&value| starts[graph.producer(value) as usize]);
        }
    }
    starts
}
