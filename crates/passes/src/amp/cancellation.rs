//! Products that cancel against sums of their own operands: ‖a‖² + ‖b‖² − 2a·b, its gradient a·Σg − g·b, a covariance
//! xᵀx/n − μμᵀ, a Gram matrix beside its own diagonal. The difference is small, so a rounding of the product is large
//! beside it.

use super::dataflow::{Dataflow, Node, NodeId, ValueId};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::{DotForm, is_map, list_names, movement};
use bf16scope_hlo::ops::precision::{Class, Movement};
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use std::collections::{BTreeMap, BTreeSet};

/// The most ops that are searched from one sum, and from one of its terms.
const MAX_NODES: usize = 48;

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
}

/// Finds all products of a region that cancel, and the ops between.
pub(super) fn cancellations(graph: &Dataflow<'_>) -> Cancellations {
    let (source_of, sources) = (sources(graph), BTreeSet::new());
    let mut finder = Finder { graph, source_of, sources, is_of_cancelled: vec![false; graph.values.len()] };
    let mut cancelling = Cancellations::default();
    for (sum, record) in (0..).zip(&graph.nodes) {
        let is_of_one = |&value: &ValueId| graph.value(value).is_f32() && finder.is_of_cancelled[value as usize];
        let reads = record.operands.iter().any(is_of_one);
        record.results().for_each(|value| finder.is_of_cancelled[value as usize] |= reads);
        if matches!(graph.instr(record).op, Op::Binary(BinaryOp::Add | BinaryOp::Subtract)) {
            cancelling.nodes.extend(finder.cancels(sum).into_iter().map(|node| (node, sum)));
        }
    }
    cancelling.is_read = finder.source_of.iter().map(|source| finder.sources.contains(source)).collect();
    cancelling
}

struct Finder<'g, 'm> {
    graph: &'g Dataflow<'m>,
    /// For each value the value that was moved, cast, negated or scaled to compute it.
    source_of: Vec<ValueId>,
    /// The operands of products that cancel.
    sources: BTreeSet<ValueId>,
    /// For each value whether it is computed from a product that cancels.
    is_of_cancelled: Vec<bool>,
}

impl Finder<'_, '_> {
    /// Products that cancel within a sum, and the ops between; empty if none cancels.
    fn cancels(&mut self, sum: NodeId) -> Vec<NodeId> {
        let graph = self.graph;
        let Some(terms) = Terms::of_sum(graph, sum) else { return Vec::new() };
        let summed: Vec<BTreeSet<ValueId>> =
            terms.others.iter().flat_map(|&other| sums_under(graph, &self.source_of, other)).collect();
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
        let operands = products.iter().flat_map(|&product| &graph.node(product).operands);
        let operand_sources = operands.map(|&value| self.source_of[value as usize]);
        self.sources.extend(operand_sources.filter(|&value| !graph.value(value).is_data));
        let cancelled: Vec<NodeId> = products.into_iter().chain(terms.between).collect();
        for value in cancelled.iter().flat_map(|&node| graph.node(node).results()) {
            self.is_of_cancelled[value as usize] = true;
        }
        cancelled
    }
}

/// The terms of a sum.
#[derive(Default)]
struct Terms {
    between: Vec<NodeId>,
    /// Products, and whether all their elements are added.
    products: Vec<(NodeId, bool)>,
    others: Vec<NodeId>,
}

impl Terms {
    /// The terms of a sum, and of sums that are added to it; `None` if they are too many.
    fn of_sum(graph: &Dataflow<'_>, sum: NodeId) -> Option<Terms> {
        let mut terms = Terms { between: vec![sum], ..Terms::default() };
        let mut open: Vec<(ValueId, bool)> = graph.node(sum).operands.iter().map(|&value| (value, true)).collect();
        while let Some((value, is_whole)) = open.pop() {
            if terms.between.len() + terms.products.len() + terms.others.len() > MAX_NODES {
                return None;
            }
            let maker = graph.producer(value);
            let record = graph.node(maker);
            let op = &graph.instr(record).op;
            match op {
                Op::Dot { .. } if record.class() == Some(Class::Allow) => terms.products.push((maker, is_whole)),
                Op::Binary(BinaryOp::Add | BinaryOp::Subtract) | Op::Unary(UnaryOp::Negate) => {
                    terms.between.push(maker);
                    open.extend(record.operands.iter().map(|&value| (value, is_whole)));
                }
                _ if is_scaling(graph, record) || record.class() == Some(Class::Clear) => {
                    terms.between.push(maker);
                    let is_whole = is_whole && movement(op) != Movement::TakesPart;
                    let learned = record.operands.iter().filter(|&&value| !graph.value(value).is_data);
                    open.extend(learned.map(|&value| (value, is_whole)));
                }
                _ => terms.others.push(maker),
            }
        }
        Some(terms)
    }
}

/// Whether a node scales its operand by numbers that are the same in every run.
fn is_scaling(graph: &Dataflow<'_>, record: &Node) -> bool {
    let scales = matches!(graph.instr(record).op, Op::Binary(BinaryOp::Multiply | BinaryOp::Divide));
    scales && record.operands.iter().any(|&value| graph.value(value).is_data)
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
            _ => record.class() == Some(Class::Clear) && record.operands.len() == 1 || is_scaling(graph, record),
        };
        let first = record.first_result;
        let learned = record.operands.iter().find(|&&operand| !graph.value(operand).is_data);
        if let Some(&operand) = learned.filter(|_| is_move) {
            record.results().for_each(|value| sources[value as usize] = sources[operand as usize]);
        } else if record.n_results == 1 && is_repeated(record) {
            let operands = record.operands.iter().map(|&value| sources[value as usize]).collect();
            let others = alike.entry(operands).or_default();
            let same = others.iter().find(|&&other| graph.instr(graph.node(other)).op == *op);
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
        } else if is_map(&graph.instr(record).op) || record.class() == Some(Class::Clear) {
            open.extend(record.operands.iter().map(|&value| graph.producer(value)));
        }
    }
    sums.retain(|leaves| !leaves.is_empty());
    sums
}

/// Whether a node sums along an axis. A single number for all rows does not cancel the product of one row.
fn is_sum(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let op = &graph.instr(graph.node(node)).op;
    let sums =
        list_names(graph.module, op).iter().any(|name| name == "reduce:add") || graph.dot_form(node) == DotForm::Sum;
    sums && !graph.instr(graph.node(node)).shape.dims().is_empty()
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
