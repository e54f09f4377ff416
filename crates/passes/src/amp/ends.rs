//! The ends of a network: nodes that are f32 because the loss, an update or another result is computed from them, or
//! because they are computed from the loss.
//!
//! - *The loss*: from a loss of the entry (`loss`) back through any op to the last products, every op of class infer
//!   is f32.
//! - *Results*: from any other f32 result of the region back through ops of class infer and clear only. So updates of
//!   parameters and of optimizers' state are f32, even where several steps were unrolled into one module.
//! - *The way back*: ops of class infer and clear on values that come from the loss are f32 up to the next product.
//!   This ends at an addition to a value that came through a product, as where a gradient of the loss meets one that
//!   comes through layers. A value of the layers that a loss reads too, such as a mask or a gate, is not on this way.
//!   Denied ops of a policy spread in the same way.

use super::assignment::RegionKind;
use super::dataflow::{Dataflow, NodeId, ValueId};
use super::decision::Rule;
use super::loss;
use super::needs::Needs;
use super::policy::{Boundary, Policy};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::BinaryOp;
use bf16scope_hlo::ops::precision::Class;

/// Which ends of the network the nodes and values of a region lead to.
#[derive(Debug)]
pub(super) struct Ends {
    /// For each value whether the region returns it in its own dtype.
    pub is_result: Vec<bool>,
    /// For each node whether a loss is computed from it without an allowed op between.
    pub leads_to_loss: Vec<bool>,
    /// For each node whether a loss is computed from it through a product, as from the values of layers.
    pub leads_to_loss_by_product: Vec<bool>,
    /// For each node whether a result is computed from it by ops of class infer and clear.
    pub leads_to_result: Vec<bool>,
    /// For each node of class allow or infer why it is f32 (a need or an end), and the node that this comes from.
    pub wide: Vec<Option<(Rule, NodeId)>>,
    /// For each node whether every way between products is interrupted here: it is f32 and not lowered.
    pub blocked: Vec<bool>,
    /// Whether there is a backward pass: an allowed op reads values that are computed from the loss.
    pub differentiates: bool,
}

impl Ends {
    /// Finds the ends of a region. `is_result` marks the values that it returns in their own dtype.
    pub(super) fn find(
        graph: &Dataflow<'_>,
        policy: &Policy,
        kind: RegionKind,
        is_result: Vec<bool>,
        needs: &Needs,
    ) -> Ends {
        let class = |node: NodeId| graph.node(node).class();
        let is_kept = policy.loss == Boundary::Keep;
        let losses = if is_kept && kind == RegionKind::Entry { loss::losses(graph) } else { Vec::new() };
        let is_wide = |&value: &ValueId| is_kept && graph.value(value).is_f32() && is_result[value as usize];
        let results: Vec<ValueId> = graph.results.iter().copied().filter(is_wide).collect();
        let to_loss = leads_to(graph, &losses, |user| class(user) != Some(Class::Allow));
        let to_result = leads_to(graph, &results, |user| graph.node(user).is_soft());
        let leads_to_loss_by_product = loss::leads_by_product(graph, &losses);
        let (mut wide, mut blocked, mut spreads) = (Vec::new(), Vec::new(), Vec::new());
        for node in graph.node_ids() {
            let (idx, class) = (node as usize, class(node));
            let end = to_loss[idx].map(|loss| (Rule::Loss, loss));
            let end = end.or(to_result[idx].map(|result| (Rule::Result, result)));
            let needed = needs.of_node[idx].map(|(need, at)| (Rule::Needed(need), at));
            wide.push(needed.or(end.filter(|_| class == Some(Class::Infer))));
            let is_denied = matches!(class, Some(Class::Deny { spreads: true, .. }));
            let is_of_loss = to_loss[idx].is_some() && matches!(class, Some(Class::Infer | Class::Deny { .. }));
            let is_wide = wide[idx].is_some() && matches!(class, Some(Class::Allow | Class::Infer));
            spreads.push(is_denied || is_of_loss && !leads_to_loss_by_product[idx]);
            blocked.push(is_denied || is_of_loss || is_wide);
        }
        let leads_to_loss: Vec<bool> = to_loss.iter().map(Option::is_some).collect();
        let differentiates = differentiates(graph, &leads_to_loss, &spreads);
        let leads_to_result = to_result.iter().map(Option::is_some).collect();
        let mut ends =
            Ends { is_result, leads_to_loss, leads_to_loss_by_product, leads_to_result, wide, blocked, differentiates };
        ends.spread(graph, policy, &spreads);
        ends
    }

    /// Makes f32 what is computed from nodes that spread.
    fn spread(&mut self, graph: &Dataflow<'_>, policy: &Policy, spreads: &[bool]) {
        let is_of_product = self.of_products(graph);
        let mut origin: Vec<Option<NodeId>> = vec![None; graph.nodes.len()];
        for node in graph.node_ids() {
            let (idx, record) = (node as usize, graph.node(node));
            let is_add = matches!(graph.instr(record).op, Op::Binary(BinaryOp::Add));
            let is_end = !policy.deny_spreads && is_add && is_of_product[idx];
            if is_end || !record.is_soft() {
                continue;
            }
            let mut makers = record.operands.iter().map(|&value| graph.producer(value) as usize);
            origin[idx] = makers.find_map(|maker| if spreads[maker] { Some(maker as NodeId) } else { origin[maker] });
            if let (Some(from), Some(Class::Infer), None) = (origin[idx], record.class(), self.wide[idx]) {
                self.wide[idx] = Some((Rule::Spread, from));
                self.blocked[idx] = true;
            }
        }
    }

    /// For each node whether it reads an array, as large as its own, that comes from a lowered product.
    fn of_products(&self, graph: &Dataflow<'_>) -> Vec<bool> {
        graph.of_arrays(|node| {
            let idx = node as usize;
            match graph.node(node).class() {
                Some(Class::Allow) => self.wide[idx].is_none().then_some(true),
                Some(Class::Infer | Class::Clear) if !self.blocked[idx] => Some(false),
                _ => None,
            }
        })
    }
}

/// For each node which producer of `values`, itself included, is computed from it through nodes that satisfy `passes`.
fn leads_to(graph: &Dataflow<'_>, values: &[ValueId], passes: impl Fn(NodeId) -> bool) -> Vec<Option<NodeId>> {
    let mut leads = vec![None; graph.nodes.len()];
    values.iter().map(|&value| graph.producer(value)).for_each(|node| leads[node as usize] = Some(node));
    for node in (0..graph.nodes.len()).rev() {
        let mut users = graph.nodes[node].results().flat_map(|value| &graph.users[value as usize]);
        let end = leads[node].or_else(|| users.find_map(|&user| leads[user as usize].filter(|_| passes(user))));
        leads[node] = end;
    }
    leads
}

/// Whether there is a backward pass: an allowed op reads values that are computed from the loss.
fn differentiates(graph: &Dataflow<'_>, leads_to_loss: &[bool], spreads: &[bool]) -> bool {
    let is_of_loss = graph.derived([], |node, is_of_loss| {
        leads_to_loss[node as usize] && spreads[node as usize] || graph.node(node).reads(is_of_loss)
    });
    graph.nodes.iter().any(|node| node.is_product() && node.reads(&is_of_loss))
}
