//! Which results of an entry are losses: those that the policy names, or else those that [`guess`] infers.
//!
//! A loss is a scalar, but not every scalar result is a loss: the bias of a layer with one output is a scalar, and so
//! are an optimizer's slots for it. Those are updates of a scalar parameter: the program computes the one from the
//! other element by element, or declares it by an alias; but an alias alone may only reuse the memory of a parameter
//! of the same shape.
//!
//! If a program returns several scalars, losses are those that gradients start from, but that are no gradient of another,
//! as that of a learned step or temperature is. A measure of gradients or updates, such as a logged norm, is not a loss;
//! nor is a measure taken on the way to a loss, such as the mean size of an activation: gradients read no more of that
//! than layers do.

use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::flow::closure;
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
    let of_parameter = of_parameters(graph, |_| true);
    // A loss times a parameter that scales it looks like an update of that parameter, and may be the only form in
    // which the loss is returned.
    let matching = |(may_be_update, may_be_aliased): (bool, bool)| -> Vec<ValueId> {
        let is_loss = |&(value, &is_aliased): &(ValueId, &bool)| {
            (may_be_update || !of_parameter[value as usize]) && (may_be_aliased || !is_aliased)
        };
        scalars().filter(is_loss).map(|(value, _)| value).collect()
    };
    let losses = [(false, false), (false, true), (true, false)].map(matching);
    let losses = losses.into_iter().find(|losses| !losses.is_empty()).unwrap_or_default();
    if losses.len() < 2 {
        return losses;
    }
    let updates = updates(graph);
    let is_of_updates = measures(graph, &updates);
    let losses = or_all(losses, |value| !is_of_updates[value as usize]);
    let losses = without_gradients(graph, losses, &updates);
    let starts = starts(graph, &losses, &updates);
    or_all(losses, |value| starts[value as usize])
}

/// For each node whether a product, or a loop or branch that may compute some, is computed from its result.
fn leads_to_product(graph: &Dataflow<'_>) -> Vec<bool> {
    graph.leads(&[], |reader, leads| leads || graph.multiplies(graph.node(reader)))
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
    let mut open = vec![(Vec::new(), graph.module.entry().result_shape())];
    while let Some((path, shape)) = open.pop() {
        if let Some(elements) = shape.as_tuple() {
            let inner = elements.iter().enumerate().rev();
            open.extend(inner.map(|(index, element)| ([&path[..], &[index as i64]].concat(), element)));
        } else {
            is_aliased.push(matches!(shape, Shape::Array(_)) && aliases.contains(&path[..]));
        }
    }
    is_aliased
}

/// For each value whether it is a parameter, or is computed elementwise from one of its own dims, as far as the nodes
/// satisfy `passes`.
pub(super) fn of_parameters(graph: &Dataflow<'_>, passes: impl Fn(NodeId) -> bool) -> Vec<bool> {
    graph.derived(graph.parameters().map(|value| passes(graph.producer(value))), |node, is_of_parameter| {
        elements(graph, graph.node(node)).any(|value| is_of_parameter[value as usize]) && passes(node)
    })
}

/// The f32 operands of an elementwise node that have the dims of its result.
fn elements<'g>(graph: &'g Dataflow<'_>, node: &'g Node) -> impl Iterator<Item = ValueId> + 'g {
    let op = &graph.instr(node).op;
    let is_open = is_map(op) && !matches!(op, Op::Broadcast { .. } | Op::Reshape);
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
    let leads_to_product = leads_to_product(graph);
    let is_no_map = |node: NodeId| !is_map(graph.op(node));
    let is_weight = |node: NodeId| leads_to_product[node as usize] || graph.readers(node).any(is_no_map);
    let of_weight = of_parameters(graph, |node| graph.node(node).kind != NodeKind::Parameter || is_weight(node));
    let dims = |node: NodeId| graph.dims(graph.node(node));
    let parameters: BTreeSet<_> = graph.parameters().filter_map(|value| dims(graph.producer(value))).collect();
    let is_gradient = |node: NodeId| {
        let is_array = graph.node(node).results().all(|value| graph.value(value).n_elements > 1);
        is_array && !leads_to_product[node as usize] && dims(node).is_some_and(|dims| parameters.contains(dims))
    };
    let begins = |value: &ValueId| of_weight[*value as usize] || is_gradient(graph.producer(*value));
    let mut is_update = vec![false; graph.nodes.len()];
    let results = graph.results.iter().copied().filter(begins);
    for value in closure(results, |value| elements(graph, graph.node(graph.producer(value)))) {
        is_update[graph.producer(value) as usize] = !graph.is_parameter(value);
    }
    is_update
}

/// For each value whether it is computed from updates, and from products only through them.
fn measures(graph: &Dataflow<'_>, updates: &[bool]) -> Vec<bool> {
    let is_of_update = graph.derived([], |node, is_of| updates[node as usize] || graph.node(node).reads(is_of));
    let is_of_product = graph.derived([], |node, is_of| {
        let record = graph.node(node);
        !updates[node as usize] && (graph.multiplies(record) || record.reads(is_of))
    });
    is_of_update.into_iter().zip(is_of_product).map(|(of_update, of_product)| of_update && !of_product).collect()
}

/// For each node the bits of the losses that are computed from it, other than through updates: by a way without a product,
/// and by a way through one. Losses that share a bit are one question.
fn ways(
    graph: &Dataflow<'_>,
    losses: impl IntoIterator<Item = (ValueId, u64)>,
    updates: &[bool],
) -> (Vec<u64>, Vec<u64>) {
    let multiplies = |reader: NodeId| graph.multiplies(graph.node(reader));
    let unless = |is_end: bool, bits: u64| if is_end { 0 } else { bits };
    let within = graph.bits_led(losses, |reader, led| unless(updates[reader as usize] || multiplies(reader), led));
    let by_product = graph.bits_led([], |reader, led| {
        unless(updates[reader as usize], led | unless(!multiplies(reader), within[reader as usize]))
    });
    (within, by_product)
}

/// For each node whether one of `losses` is computed from its result through a product.
pub(super) fn leads_by_product(graph: &Dataflow<'_>, losses: &[ValueId]) -> Vec<bool> {
    if losses.is_empty() {
        return vec![false; graph.nodes.len()];
    }
    let (_, by_product) = ways(graph, losses.iter().map(|&loss| (loss, 1)), &updates(graph));
    by_product.into_iter().map(|bits| bits != 0).collect()
}

/// More scalars than any program has losses and parameters of one number; what leads from each to each takes their square.
const MAX_SCALARS: usize = 4_096;

/// The scalars that are no gradient of another one, as that of a learned step or temperature is: a gradient that starts from
/// an earlier result leads to it, and none leads back.
fn without_gradients(graph: &Dataflow<'_>, scalars: Vec<ValueId>, updates: &[bool]) -> Vec<ValueId> {
    if scalars.len() > MAX_SCALARS {
        return scalars;
    }
    // For each 64 scalars, and each scalar: the bits of those whose gradients lead to it.
    let led: Vec<Vec<u64>> = scalars.chunks(64).map(|losses| gradients_to(graph, losses, &scalars, updates)).collect();
    let leads = |from: usize, to: usize| led[from / 64][to] >> (from % 64) & 1 == 1;
    let is_gradient = |nth: usize| {
        let chunks = led.iter().enumerate().filter(|(_, led)| led[nth] != 0);
        let mut earlier = chunks.flat_map(|(chunk, _)| chunk * 64..nth.min(chunk * 64 + 64));
        earlier.any(|from| leads(from, nth) && !leads(nth, from))
    };
    (0..scalars.len()).filter(|&nth| !is_gradient(nth)).map(|nth| scalars[nth]).collect()
}

/// For each of `scalars` the bits of those of up to 64 `losses` from which a gradient that leads to it starts.
fn gradients_to(graph: &Dataflow<'_>, losses: &[ValueId], scalars: &[ValueId], updates: &[bool]) -> Vec<u64> {
    let leads_to_product = leads_to_product(graph);
    let (within, by_product) = ways(graph, losses.iter().enumerate().map(|(nth, &loss)| (loss, 1 << nth)), updates);
    let end = |value: ValueId| {
        let node = graph.producer(value);
        if graph.node(node).kind == NodeKind::Constant { 0 } else { within[node as usize] & !by_product[node as usize] }
    };
    let of_any = |node: NodeId, bits: &dyn Fn(ValueId) -> u64| {
        graph.node(node).operands.iter().fold(0, |all, &value| all | bits(value))
    };
    let reached = graph.derived([], |node, reached: &[u64]| {
        let multiplies = graph.multiplies(graph.node(node));
        let no_gradient = match leads_to_product[node as usize] {
            _ if multiplies => 0,
            true => within[node as usize],
            false => u64::MAX,
        };
        let starts = of_any(node, &end) & !no_gradient;
        if updates[node as usize] { 0 } else { starts | of_any(node, &|value| reached[value as usize]) }
    });
    scalars.iter().map(|&scalar| reached[scalar as usize]).collect()
}

/// For each value whether a gradient starts from a value that it is computed from since the last product: from a value
/// with no way to a loss through a product (other than through updates), as the values of a layer have, but which
/// another op on the way to a product reads.
fn starts(graph: &Dataflow<'_>, losses: &[ValueId], updates: &[bool]) -> Vec<bool> {
    let leads_to_product = leads_to_product(graph);
    let (within, by_product) = ways(graph, losses.iter().map(|&loss| (loss, 1)), updates);
    let is_gradient = |user: NodeId| {
        graph.multiplies(graph.node(user)) || leads_to_product[user as usize] && within[user as usize] == 0
    };
    graph.derived([], |node, starts| {
        let record = graph.node(node);
        let begins = record.kind != NodeKind::Constant && by_product[node as usize] == 0;
        begins && graph.readers(node).any(is_gradient) || !graph.multiplies(record) && record.reads(starts)
    })
}
