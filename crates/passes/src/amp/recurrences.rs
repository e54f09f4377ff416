//! Recurrences: what a loop, or a scan by halves, multiplies or adds up at every step, so that one rounding becomes
//! one per step; and what is solved for again and again.

use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId, reached};
use super::surroundings::Known;
use super::terms::{adds, is_scaling, scales};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::{amplification, calls_regions, movement};
use bf16scope_hlo::ops::precision::{Amplification, Class, Movement};
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use std::collections::{BTreeMap, BTreeSet};

/// For each value whether it is computed from products, and from no result of a loop or a branch. `taken` says so of
/// the region's parameters.
pub(super) fn of_products_alone(graph: &Dataflow<'_>, taken: &[Known]) -> Vec<bool> {
    let mut is_of_product = vec![false; graph.values.len()];
    let mut is_of_region = vec![false; graph.values.len()];
    for (value, known) in graph.parameters().zip(taken) {
        is_of_product[value as usize] = known.is_of_products_alone;
    }
    for node in graph.nodes.iter().filter(|node| node.kind != NodeKind::Parameter) {
        let reads_product = node.is_product() || node.reads(&is_of_product);
        let reads_region = calls_regions(&graph.instr(node).op) || node.reads(&is_of_region);
        for value in node.results() {
            is_of_product[value as usize] = reads_product && !reads_region;
            is_of_region[value as usize] = reads_region;
        }
    }
    is_of_product
}

/// Nodes that multiply an array that a loop carries, with the factors. Two kinds of loops have such recurrences: those
/// that compute no product of the state, and those that do, but whose factor was computed from products before the
/// loop, as the decay of a gated delta rule. A network whose factors are computed from its state, such as an LSTM,
/// forgets its roundings.
pub(super) fn recurrences(graph: &Dataflow<'_>, taken: &[Known]) -> BTreeMap<NodeId, Vec<ValueId>> {
    let (mut recurrences, carried) = (BTreeMap::new(), carried(graph));
    if carried.is_empty() {
        return recurrences;
    }
    let state: Vec<ValueId> = graph.parameters().collect();
    let is_of_carried = {
        let is_carried = |leaf: usize| state[leaf] != graph.results[leaf] && graph.value(state[leaf]).is_f32();
        reached(graph, &state, |_| false, is_carried)
    };
    let reads_carried = |node: NodeId| {
        let record = graph.node(node);
        record.is_product() && record.reads(&is_of_carried)
    };
    let is_closed = reached(graph, &state, reads_carried, |_| false);
    let is_open = of_products_alone(graph, taken);
    for (before, after) in carried {
        let is_product_of_itself = is_closed[after as usize];
        for (node, factors) in factors_of(graph, before, after) {
            let is_from_outside = |&value: &ValueId| is_open[value as usize] && !is_closed[value as usize];
            if !is_product_of_itself || factors.iter().any(is_from_outside) {
                recurrences.insert(node, factors);
            }
        }
    }
    recurrences
}

/// The arrays of a loop's state that change, each with its next value.
fn carried(graph: &Dataflow<'_>) -> Vec<(ValueId, ValueId)> {
    let state: Vec<ValueId> = graph.parameters().collect();
    if state.len() != graph.results.len() {
        return Vec::new();
    }
    let changes = |&(before, after): &(ValueId, ValueId)| before != after && graph.value(before).is_f32_array();
    state.into_iter().zip(graph.results.iter().copied()).filter(changes).collect()
}

/// Nodes between two decompositions or solves: products, sums and moves by which the result of one becomes the matrix
/// of another, or of the next step's, as the covariance of a Kalman filter does.
pub(super) fn solved_again(graph: &Dataflow<'_>) -> Vec<NodeId> {
    let nodes = || graph.node_ids();
    let solves = |node: NodeId| amplification(graph.op(node)) == Amplification::Matrix;
    let solutions: Vec<ValueId> =
        nodes().filter(|&node| solves(node)).flat_map(|node| graph.node(node).results()).collect();
    if solutions.is_empty() {
        return Vec::new();
    }
    let is_linear = |node: NodeId| {
        let record = graph.node(node);
        match graph.instr(record).op {
            Op::Binary(BinaryOp::Add | BinaryOp::Subtract) | Op::Unary(UnaryOp::Negate) => true,
            Op::Binary(BinaryOp::Maximum | BinaryOp::Minimum) | Op::Clamp => false,
            _ => matches!(record.class(), Some(Class::Allow | Class::Clear)) || is_scaling(graph, record),
        }
    };
    let state = multiplied_by_itself(graph, |node| is_linear(node) || solves(node));
    let mut open = solutions;
    let of_solution = loop {
        let of_solution = graph.reached(open.clone(), is_linear);
        let is_next = |before: ValueId, after: ValueId| of_solution[after as usize] && !of_solution[before as usize];
        let carried: Vec<ValueId> =
            state.iter().filter(|&&(before, after)| is_next(before, after)).map(|&(before, _)| before).collect();
        if carried.is_empty() {
            break of_solution;
        }
        open.extend(carried);
    };
    let mut to_matrix = vec![false; graph.values.len()];
    loop {
        for node in nodes().rev() {
            let record = graph.node(node);
            if solves(node) || is_linear(node) && record.gives(&to_matrix) {
                record.operands.iter().for_each(|&value| to_matrix[value as usize] = true);
            }
        }
        let is_next = |before: ValueId, after: ValueId| to_matrix[before as usize] && !to_matrix[after as usize];
        let carried = state.iter().filter(|&&(before, after)| is_next(before, after)).count();
        state.iter().for_each(|&(before, after)| to_matrix[after as usize] |= to_matrix[before as usize]);
        if carried == 0 {
            break;
        }
    }
    let is_between = |value: ValueId| of_solution[value as usize] && to_matrix[value as usize];
    nodes().filter(|&node| is_linear(node) && graph.node(node).results().any(is_between)).collect()
}

/// The arrays of a loop's state, each with its next value, that a product of a step multiplies on the way to that
/// value, through nodes that satisfy `passes`.
fn multiplied_by_itself(graph: &Dataflow<'_>, passes: impl Fn(NodeId) -> bool) -> Vec<(ValueId, ValueId)> {
    let multiplies = |&(before, after): &(ValueId, ValueId)| {
        let of_before = graph.reached(vec![before], &passes);
        let reads = |record: &&Node| record.is_product() && record.reads(&of_before);
        let products = graph.nodes.iter().filter(reads).flat_map(Node::results).collect();
        graph.reached(products, &passes)[after as usize]
    };
    carried(graph).into_iter().filter(multiplies).collect()
}

/// The multiplications on the way from an array of the state to its next value, through ops that are linear in it,
/// with their other operands, unless those are constants.
fn factors_of(graph: &Dataflow<'_>, before: ValueId, after: ValueId) -> Vec<(NodeId, Vec<ValueId>)> {
    let (mut cone, mut open) = (BTreeSet::new(), vec![after]);
    while let Some(value) = open.pop() {
        let maker = graph.producer(value);
        let record = graph.node(maker);
        let op = &graph.instr(record).op;
        let is_linear =
            adds(op) || scales(op) || matches!(op, Op::Unary(UnaryOp::Negate) | Op::Select) || record.is_clear();
        if is_linear && record.kind != NodeKind::Parameter && cone.insert(maker) {
            open.extend(&record.operands);
        }
    }
    let mut is_of_before: BTreeSet<ValueId> = [before].into();
    for &node in &cone {
        if graph.node(node).operands.iter().any(|value| is_of_before.contains(value)) {
            is_of_before.extend(graph.node(node).results());
        }
    }
    if !is_of_before.contains(&after) {
        return Vec::new();
    }
    let factors = |&node: &NodeId| {
        let record = graph.node(node);
        let (state, others): (Vec<ValueId>, Vec<ValueId>) =
            record.operands.iter().partition(|value| is_of_before.contains(value));
        let multiplies = scales(&graph.instr(record).op);
        let is_varied = others.iter().any(|&value| !graph.value(value).is_data);
        (multiplies && !state.is_empty() && is_varied).then_some((node, others))
    };
    cone.iter().filter_map(factors).collect()
}

/// Nodes of running sums and products that are written by halves, as by JAX's `associative_scan`: an op combines two
/// strided slices of one array, or multiples of them, its result is combined the same way, and the results are
/// interleaved by padding with zeros.
pub(super) fn scans(graph: &Dataflow<'_>) -> BTreeSet<NodeId> {
    let n = graph.nodes.len();
    let mut level = vec![0_u32; n];
    let mut sources: Vec<ValueId> = Vec::new();
    for node in 0..n as NodeId {
        let record = graph.node(node);
        if let (Op::Binary(BinaryOp::Add | BinaryOp::Multiply), &[a, b]) =
            (&graph.instr(record).op, &record.operands[..])
            && let Some(halved) = halved(graph, a, b).filter(|&value| graph.value(value).is_f32())
        {
            level[node as usize] = 1 + level[graph.producer(halved) as usize];
            if level[node as usize] > 1 {
                sources.push(graph.node(graph.producer(halved)).first_result);
                sources.push(record.first_result);
            }
        }
    }
    if sources.is_empty() {
        return BTreeSet::new();
    }
    let is_of_scan = |node: NodeId| {
        let record = graph.node(node);
        let op = &graph.instr(record).op;
        let is_op =
            matches!(op, Op::Select | Op::Binary(BinaryOp::Add | BinaryOp::Multiply)) || movement(op) != Movement::None;
        is_op && record.is_soft()
    };
    let is_between = |value: ValueId| {
        let op = graph.op(graph.producer(value));
        matches!(op, Op::Pad(dims) if dims.iter().any(|dim| dim.interior > 0))
    };
    let reached = graph.reached(sources, is_of_scan);
    let mut ends = vec![false; n];
    for node in (0..n as NodeId).rev().filter(|&node| is_of_scan(node)) {
        let record = graph.node(node);
        let is_end = level[node as usize] > 0 || record.operands.iter().any(|&value| is_between(value));
        ends[node as usize] = is_end || graph.readers(node).any(|user| ends[user as usize]);
    }
    let is_step = |&node: &NodeId| {
        let is_reached = ends[node as usize] && graph.node(node).gives(&reached);
        is_reached || level[node as usize] > 1
    };
    (0..n as NodeId).filter(is_step).collect()
}

/// The array that both values are strided slices of, or multiples of such slices.
fn halved(graph: &Dataflow<'_>, a: ValueId, b: ValueId) -> Option<ValueId> {
    let sliced = |value: ValueId| {
        let record = graph.node(graph.producer(value));
        let is_strided = matches!(&graph.instr(record).op, Op::Slice(dims) if dims.iter().any(|dim| dim.stride > 1));
        (is_strided && record.is_clear()).then(|| record.operands[0])
    };
    let sources = |value: ValueId| {
        let record: &Node = graph.node(graph.producer(value));
        let factors =
            if matches!(graph.instr(record).op, Op::Binary(BinaryOp::Multiply)) { &record.operands[..] } else { &[] };
        [value].into_iter().chain(factors.iter().copied()).filter_map(sliced).collect::<Vec<ValueId>>()
    };
    let of_b = sources(b);
    sources(a).into_iter().find(|source| of_b.contains(source))
}

/// The nodes that compute the factor of a recurrence, back to the op that squashes it (an exponential, a sigmoid), and
/// the region's parameters that they read.
pub(super) fn until_squashed(graph: &Dataflow<'_>, value: ValueId) -> (Vec<NodeId>, Vec<ValueId>) {
    let (mut open, mut seen) = (vec![value], BTreeSet::new());
    let (mut nodes, mut taken) = (Vec::new(), Vec::new());
    while let Some(value) = open.pop() {
        let maker = graph.producer(value);
        let node = graph.node(maker);
        if !graph.value(value).is_f32() || !seen.insert(value) {
            continue;
        }
        if node.kind == NodeKind::Parameter {
            taken.push(value);
        }
        nodes.push(maker);
        let op = &graph.instr(node).op;
        let is_squash = matches!(op, Op::Unary(UnaryOp::Logistic | UnaryOp::Tanh | UnaryOp::Erf))
            || is_reciprocal_of_sum(graph, node);
        if node.is_soft() && !is_squash {
            open.extend(&node.operands);
        }
    }
    (nodes, taken)
}

/// Whether a node is the last op of a sigmoid, 1 / (1 + e^x).
fn is_reciprocal_of_sum(graph: &Dataflow<'_>, record: &Node) -> bool {
    let is_division = matches!(graph.instr(record).op, Op::Binary(BinaryOp::Divide));
    is_division && record.operands.first().is_some_and(|&value| graph.value(value).is_data)
}

/// For each array of a loop's state whether a recurrence of the body multiplies by it, with no squashing function
/// between.
pub(super) fn factors(body: &Dataflow<'_>, state: &[ValueId], taken: &[Known]) -> Vec<bool> {
    let factors = recurrences(body, taken).into_values().flatten();
    let reached: BTreeSet<ValueId> = factors.flat_map(|value| until_squashed(body, value).1).collect();
    state.iter().map(|value| reached.contains(value)).collect()
}
