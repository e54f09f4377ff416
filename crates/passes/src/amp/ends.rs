//! The ends of a network: nodes that are f32 because the loss, an update or another result is computed from them, or
//! because they are computed from the loss.
//!
//! Section 2 of docs/HOW_PRECISION_IS_DECIDED.md has the rules. Denied ops of a policy spread as the loss does on its way
//! back.

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
        let is_wide = |&&value: &&ValueId| is_kept && graph.value(value).is_f32() && is_result[value as usize];
        // Each end leads to itself.
        let end = |&value: &ValueId| (value, Some(graph.producer(value)));
        let is_no_product = |user: NodeId| class(user) != Some(Class::Allow);
        let to_loss = graph.led(losses.iter().map(end), |user, loss| loss.filter(|_| is_no_product(user)));
        let results = graph.results.iter().filter(is_wide).map(end);
        let to_result = graph.led(results, |user, result| result.filter(|_| graph.node(user).is_soft()));
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
        let is_of_loss = graph.derived([], |node, is_of_loss: &[bool]| {
            to_loss[node as usize].is_some() && spreads[node as usize] || graph.node(node).reads(is_of_loss)
        });
        let differentiates = graph.nodes.iter().any(|node| node.is_product() && node.reads(&is_of_loss));
        // Arrays, as large as what they came from, of lowered products.
        let is_of_product = graph.of_arrays(|node| match class(node) {
            Some(Class::Allow) => wide[node as usize].is_none().then_some(true),
            Some(Class::Infer | Class::Clear) => (!blocked[node as usize]).then_some(false),
            _ => None,
        });
        let spread_from = graph.derived([], |node, spread_from: &[Option<NodeId>]| {
            let record = graph.node(node);
            let is_add = matches!(graph.op(node), Op::Binary(BinaryOp::Add));
            let is_end = !policy.deny_spreads && is_add && is_of_product[record.first_result as usize];
            let from = |&value: &ValueId| {
                let maker = Some(graph.producer(value)).filter(|&maker| spreads[maker as usize]);
                maker.or(spread_from[value as usize])
            };
            record.operands.iter().find_map(from).filter(|_| record.is_soft() && !is_end)
        });
        for (node, record) in graph.nodes.iter().enumerate().filter(|(_, record)| record.class() == Some(Class::Infer))
        {
            if let (Some(from), None) = (spread_from[record.first_result as usize], wide[node]) {
                wide[node] = Some((Rule::Spread, from));
                blocked[node] = true;
            }
        }
        let [leads_to_loss, leads_to_result] = [to_loss, to_result].map(|to| to.iter().map(Option::is_some).collect());
        Ends { is_result, leads_to_loss, leads_to_loss_by_product, leads_to_result, wide, blocked, differentiates }
    }
}
