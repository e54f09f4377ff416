//! Products that cancel against sums of their own operands: ‖a‖² + ‖b‖² − 2a·b, its gradient a·Σg − g·b, a covariance
//! xᵀx/n − μμᵀ, a Gram matrix beside its own diagonal. The difference is small, so a rounding of the product is large
//! beside it.

use super::dataflow::{Dataflow, Node, NodeId, ValueId};
use super::moments;
use super::terms::{MAX_NODES, Terms, adds, is_scaling, is_sum};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::{is_map, movement};
use bf16scope_hlo::ops::precision::{Class, Movement};
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use std::collections::{BTreeMap, BTreeSet};

/// The most nodes with the same operands that are compared with each other.
const MAX_ALIKE: usize = 8;

/// The most sums that are followed below a sum.
const MAX_DEPTH: u32 = 4;

/// The products that cancel in a region.
#[derive(Default)]
pub(super) struct Cancellations {
    /// Products that cancel and the ops between, each with the sum in which it cancels.
    pub nodes: Vec<(NodeId, NodeId)>,
    /// For each value whether those products read it, or an equal value.
    pub is_read: Vec<bool>,
    /// Products whose entries cancel with each other: their f32 sum is enough.
    pub sums: Vec<NodeId>,
}

/// Finds all products of a region that cancel, and the ops between.
pub(super) fn cancellations(graph: &Dataflow<'_>) -> Cancellations {
    let (source_of, sources) = (sources(graph), BTreeSet::new());
    let mut finder = Finder { graph, source_of: &source_of, sources, is_of_cancelled: vec![false; graph.values.len()] };
    let mut cancelling = Cancellations::default();
    let mut moments = moments::Finder::new(graph, &source_of);
    for (sum, record) in (0..).zip(&graph.nodes) {
        let is_of_one = |&value: &ValueId| graph.value(value).is_f32() && finder.is_of_cancelled[value as usize];
        let reads = record.operands.iter().any(is_of_one);
        record.results().for_each(|value| finder.is_of_cancelled[value as usize] |= reads);
        if adds(&graph.instr(record).op) {
            let Some(terms) = Terms::of_sum(graph, sum) else { continue };
            let moments = moments.find(sum, &terms, &finder.sources, &finder.is_of_cancelled);
            finder.take(&moments.nodes);
            let nodes = finder.cancels(terms).into_iter().chain(moments.nodes);
            cancelling.nodes.extend(nodes.map(|node| (node, sum)));
            cancelling.sums.extend(moments.sums);
        }
    }
    cancelling.is_read = source_of.iter().map(|source| finder.sources.contains(source)).collect();
    cancelling
}

struct Finder<'g, 'm> {
    graph: &'g Dataflow<'m>,
    /// For each value the value that was moved, cast, negated or scaled to compute it.
    source_of: &'g [ValueId],
    /// The operands of products that cancel.
    sources: BTreeSet<ValueId>,
    /// For each value whether it is computed from a product that cancels.
    is_of_cancelled: Vec<bool>,
}

impl Finder<'_, '_> {
    /// Products that cancel within a sum, and the ops between; empty if none cancels.
    fn cancels(&mut self, terms: Terms) -> Vec<NodeId> {
        let graph = self.graph;
        let summed: Vec<BTreeSet<ValueId>> =
            terms.others.iter().flat_map(|&other| sums_under(graph, self.source_of, other)).collect();
        let cancels = |&&(product, is_whole): &&(NodeId, bool)| {
            let operands = &graph.node(product).operands;
            let sources: BTreeSet<ValueId> = operands.iter().map(|&value| self.source_of[value as usize]).collect();
            // The product beside a part of itself: its diagonal, if both operands are one array.
            let is_gram = sources.len() == 1;
            let meets_itself = is_whole && is_gram && terms.products.contains(&(product, false));
            // The gradient of a product that cancels: it reads one operand of that product, and a value computed from
            // it.
            let is_of_one = |&value: &ValueId| self.is_of_cancelled[value as usize];
            let is_gradient =
                !terms.others.is_empty() && !self.sources.is_disjoint(&sources) && operands.iter().any(is_of_one);
            meets_itself || is_gradient || summed.iter().any(|leaves| leaves.is_subset(&sources))
        };
        let products: Vec<NodeId> = terms.products.iter().filter(cancels).map(|&(product, _)| product).collect();
        if products.is_empty() {
            return products;
        }
        let cancelled: Vec<NodeId> = products.into_iter().chain(terms.between).collect();
        self.take(&cancelled);
        cancelled
    }

    /// Notes which nodes cancel, and what the products among them read.
    fn take(&mut self, cancelled: &[NodeId]) {
        let graph = self.graph;
        let products = cancelled.iter().filter(|&&node| graph.node(node).is_product());
        let operands = products.flat_map(|&product| &graph.node(product).operands);
        let operand_sources = operands.map(|&value| self.source_of[value as usize]);
        self.sources.extend(operand_sources.filter(|&value| !graph.value(value).is_data));
        for value in cancelled.iter().flat_map(|&node| graph.node(node).results()) {
            self.is_of_cancelled[value as usize] = true;
        }
    }
}

/// For each value the value that was moved, cast, negated or scaled to compute it; equal values share the first of
/// them.
fn sources(graph: &Dataflow<'_>) -> Vec<ValueId> {
    let mut sources: Vec<ValueId> = (0..graph.values.len() as ValueId).collect();
    let mut alike: BTreeMap<Vec<ValueId>, Vec<NodeId>> = BTreeMap::new();
    for (node, record) in (0..).zip(&graph.nodes) {
        let op = &graph.instr(record).op;
        let is_move = match op {
            Op::Convert | Op::Unary(UnaryOp::Copy | UnaryOp::Negate | UnaryOp::Abs) => true,
            _ if matches!(movement(op), Movement::Places | Movement::Repeats) => true,
            _ => record.is_clear() && record.operands.len() == 1 || is_scaling(graph, record),
        };
        let first = record.first_result;
        let learned = record.operands.iter().find(|&&operand| !graph.value(operand).is_data);
        if let Some(&operand) = learned.filter(|_| is_move) {
            record.results().for_each(|value| sources[value as usize] = sources[operand as usize]);
        } else if record.n_results == 1 && is_repeated(record) {
            let operands = record.operands.iter().map(|&value| sources[value as usize]).collect();
            let others = alike.entry(operands).or_default();
            let same = others.iter().find(|&&other| graph.op(other) == op);
            match same {
                Some(&same) => sources[first as usize] = graph.node(same).first_result,
                None if others.len() < MAX_ALIKE => others.push(node),
                None => {}
            }
        }
    }
    sources
}

/// Whether a second node with the same op and operands computes the same value.
fn is_repeated(record: &Node) -> bool {
    matches!(record.class(), Some(Class::Allow | Class::Infer | Class::Clear)) && !record.operands.is_empty()
}

/// For each sum along some of the axes that `node` computes on elementwise, the arrays that are summed.
fn sums_under(graph: &Dataflow<'_>, sources: &[ValueId], node: NodeId) -> Vec<BTreeSet<ValueId>> {
    let (mut seen, mut open, mut sums) = (BTreeSet::new(), vec![node], Vec::new());
    while let Some(node) = open.pop() {
        if !seen.insert(node) || seen.len() > MAX_NODES {
            continue;
        }
        let record = graph.node(node);
        if is_sum(graph, node) {
            sums.push(leaves(graph, sources, node));
        } else if is_map(&graph.instr(record).op) || record.is_clear() {
            open.extend(graph.makers(node));
        }
    }
    sums.retain(|leaves| !leaves.is_empty());
    sums
}

/// The arrays that a sum adds up, or whose squares it adds up: behind other sums, and one multiplication.
fn leaves(graph: &Dataflow<'_>, sources: &[ValueId], sum: NodeId) -> BTreeSet<ValueId> {
    let mut leaves = BTreeSet::new();
    let mut open: Vec<(ValueId, u32)> = graph.node(sum).operands.iter().map(|&value| (value, 0)).collect();
    while let Some((value, depth)) = open.pop() {
        let value = sources[value as usize];
        let maker = graph.node(graph.producer(value));
        let multiplies = matches!(graph.instr(maker).op, Op::Binary(BinaryOp::Multiply));
        if depth < MAX_DEPTH && (multiplies || is_sum(graph, graph.producer(value))) {
            let depth = if multiplies { MAX_DEPTH } else { depth + 1 };
            open.extend(maker.operands.iter().map(|&value| (value, depth)));
        } else if !graph.value(value).is_data {
            leaves.insert(value);
        }
    }
    leaves
}
