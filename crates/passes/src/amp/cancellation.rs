//! Products that cancel against sums of their own operands: ‖a‖² + ‖b‖² − 2a·b, its gradient a·Σg − g·b, a covariance
//! xᵀx/n − μμᵀ, a Gram matrix beside its own diagonal. The difference is small, so a rounding of the product is large
//! beside it.

use super::dataflow::{Dataflow, Node, NodeId, ValueId};
use super::terms::{MAX_NODES, Terms, adds, is_scaling, is_sum};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::{is_map, movement};
use bf16scope_hlo::ops::precision::Movement;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use std::collections::{BTreeMap, BTreeSet};

/// The most sums that are followed below a sum.
const MAX_DEPTH: u32 = 4;

/// The products that cancel in a region.
pub(super) struct Cancellations {
    /// Products that cancel and the ops between, each with the sum in which it cancels.
    pub nodes: Vec<(NodeId, NodeId)>,
    /// The values that those products read, and those that were moved, negated or scaled to compute them or from them.
    pub read: Vec<ValueId>,
    /// Products whose entries cancel with each other: their f32 sum is enough.
    pub sums: Vec<NodeId>,
}

/// Finds all products of a region that cancel, and the ops between.
pub(super) fn cancellations(graph: &Dataflow<'_>) -> Cancellations {
    let mut finder = Finder {
        graph,
        source_of: sources(graph),
        sources: BTreeSet::new(),
        is_of_cancelled: vec![false; graph.values.len()],
        entries: BTreeMap::new(),
        sums: Vec::new(),
    };
    let mut nodes = Vec::new();
    for (sum, record) in (0..).zip(&graph.nodes) {
        let reads = finder.reads_cancelled(record);
        record.results().for_each(|value| finder.is_of_cancelled[value as usize] |= reads);
        if adds(graph.op(sum))
            && let Some(terms) = Terms::of_sum(graph, sum)
        {
            let moments = finder.moments(sum, &terms);
            finder.take(&moments);
            let products = finder.products(&terms);
            finder.take(&products);
            nodes.extend(products.into_iter().chain(moments).map(|node| (node, sum)));
        }
    }
    let is_read = |&value: &ValueId| finder.sources.contains(&finder.source_of[value as usize]);
    let read = (0..graph.values.len() as ValueId).filter(is_read).collect();
    Cancellations { nodes, read, sums: finder.sums }
}

/// Finds what cancels, sum by sum; `moments` has the rules for products that cancel against products.
pub(super) struct Finder<'g, 'm> {
    pub graph: &'g Dataflow<'m>,
    /// For each value the value that was moved, cast, negated or scaled to compute it.
    pub source_of: Vec<ValueId>,
    /// The operands of products that cancel.
    pub sources: BTreeSet<ValueId>,
    /// For each value whether it is computed from a product that cancels.
    is_of_cancelled: Vec<bool>,
    /// For each difference of entries of one product that product's value.
    pub entries: BTreeMap<ValueId, ValueId>,
    /// Products whose f32 sum is enough.
    pub sums: Vec<NodeId>,
}

impl Finder<'_, '_> {
    /// Whether a node reads an f32 value that is computed from a product that cancels.
    pub(super) fn reads_cancelled(&self, record: &Node) -> bool {
        let is_f32 = |&&value: &&ValueId| self.graph.value(value).is_f32();
        record.operands.iter().filter(is_f32).any(|&value| self.is_of_cancelled[value as usize])
    }

    /// Products that cancel against sums of their own operands, and the ops between; empty if none does.
    fn products(&self, terms: &Terms) -> Vec<NodeId> {
        let graph = self.graph;
        let summed: Vec<BTreeSet<ValueId>> =
            terms.others.iter().flat_map(|&other| sums_under(graph, &self.source_of, other)).collect();
        let cancels = |&&(product, is_whole): &&(NodeId, bool)| {
            let record = graph.node(product);
            let sources: BTreeSet<ValueId> =
                record.operands.iter().map(|&value| self.source_of[value as usize]).collect();
            // The product beside a part of itself: its diagonal, if both operands are one array.
            let meets_itself = is_whole && sources.len() == 1 && terms.products.contains(&(product, false));
            // The gradient of a product that cancels: it reads one operand of that product, and a value computed from
            // it.
            let is_gradient =
                !terms.others.is_empty() && !self.sources.is_disjoint(&sources) && record.reads(&self.is_of_cancelled);
            meets_itself || is_gradient || summed.iter().any(|leaves| leaves.is_subset(&sources))
        };
        let products: Vec<NodeId> = terms.products.iter().filter(cancels).map(|&(product, _)| product).collect();
        let between: &[NodeId] = if products.is_empty() { &[] } else { &terms.between };
        products.into_iter().chain(between.iter().copied()).collect()
    }

    /// Notes which nodes cancel, and what the products among them read.
    fn take(&mut self, cancelled: &[NodeId]) {
        for record in cancelled.iter().map(|&node| self.graph.node(node)) {
            record.results().for_each(|value| self.is_of_cancelled[value as usize] = true);
            if record.is_product() {
                let operand_sources = record.operands.iter().map(|&value| self.source_of[value as usize]);
                self.sources.extend(operand_sources.filter(|&value| !self.graph.value(value).is_data));
            }
        }
    }
}

/// For each value the value that was moved, cast, negated or scaled to compute it.
fn sources(graph: &Dataflow<'_>) -> Vec<ValueId> {
    let mut sources: Vec<ValueId> = (0..graph.values.len() as ValueId).collect();
    for record in &graph.nodes {
        let op = &graph.instr(record).op;
        let is_move = match op {
            Op::Convert | Op::Unary(UnaryOp::Copy | UnaryOp::Negate | UnaryOp::Abs) => true,
            _ if matches!(movement(op), Movement::Places | Movement::Repeats) => true,
            _ => record.is_clear() && record.operands.len() == 1 || is_scaling(graph, record),
        };
        let learned = record.operands.iter().find(|&&operand| !graph.value(operand).is_data);
        if let Some(&operand) = learned.filter(|_| is_move) {
            record.results().for_each(|value| sources[value as usize] = sources[operand as usize]);
        }
    }
    sources
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
