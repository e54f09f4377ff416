//! Recurrences: what a loop, or a scan by halves, multiplies or adds up at every step, so that one rounding becomes
//! one per step; and what is solved for again and again.

use super::assignment::Known;
use super::dataflow::{Dataflow, Node, NodeId, ValueId};
use super::flow::closure;
use super::terms::{adds, is_linear, scales};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::{amplification, calls_regions, movement};
use bf16scope_hlo::ops::precision::{Amplification, Movement};
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use std::collections::{BTreeMap, BTreeSet};

/// For each value whether it is computed from products, and from no result of a loop or a branch. `taken` says so of
/// the region's parameters.
pub(super) fn of_products_alone(graph: &Dataflow<'_>, taken: &[Known]) -> Vec<bool> {
    let is_of_region =
        graph.derived([], |node, is_of_region| calls_regions(graph.op(node)) || graph.node(node).reads(is_of_region));
    graph.derived(taken.iter().map(|known| known.is_of_products_alone), |node, is_of_product| {
        let record = graph.node(node);
        (record.is_product() || record.reads(is_of_product)) && !record.gives(&is_of_region)
    })
}

/// Nodes that multiply an array that a loop carries, with the factors. Two kinds of loops have such recurrences: those
/// that compute no product of the state, and those that do, but whose factor was computed from products before the
/// loop, as the decay of a gated delta rule. A network whose factors are computed from its state, such as an LSTM,
/// forgets its roundings.
pub(super) fn recurrences(graph: &Dataflow<'_>, taken: &[Known]) -> BTreeMap<NodeId, Vec<ValueId>> {
    let carried = carried(graph);
    if carried.is_empty() {
        return BTreeMap::new();
    }
    let state: Vec<ValueId> = graph.parameters().collect();
    let is_carried = |leaf: usize| state[leaf] != graph.results[leaf] && graph.value(state[leaf]).is_f32();
    let is_of_carried = graph.reached_in_steps(&state, |_| false, is_carried);
    let reads_carried = |node: NodeId| graph.node(node).is_product() && graph.node(node).reads(&is_of_carried);
    let is_closed = graph.reached_in_steps(&state, reads_carried, |_| false);
    let is_open = of_products_alone(graph, taken);
    let is_from_outside = |&value: &ValueId| is_open[value as usize] && !is_closed[value as usize];
    let mut recurrences = BTreeMap::new();
    for (before, after) in carried {
        let is_recurrence = |factors: &[ValueId]| !is_closed[after as usize] || factors.iter().any(is_from_outside);
        recurrences.extend(factors_of(graph, before, after).into_iter().filter(|(_, factors)| is_recurrence(factors)));
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

/// For each value whether a triangular solve or a Cholesky decomposition gives it, moved or not: such arrays are large
/// where the matrix is nearly singular, and cancel in a product. Factors of a QR and eigenvectors are at most one.
pub(super) fn solutions(graph: &Dataflow<'_>) -> Vec<bool> {
    graph.derived([], |node, is_solution| {
        let (record, op) = (graph.node(node), graph.op(node));
        let name = match op {
            Op::Opaque(opaque) => &opaque.opcode,
            Op::CustomCall(call) => &call.target,
            _ => "",
        };
        let name = name.to_ascii_lowercase();
        let solves = ["cholesky", "potrf", "triangular", "trsm"].iter().any(|part| name.contains(part));
        solves || record.is_clear() && record.reads(is_solution)
    })
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
    let is_linear = |node: NodeId| is_linear(graph, node) || graph.node(node).is_product();
    let state = multiplied_by_itself(graph, |node| is_linear(node) || solves(node));
    let mut befores: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
    state.iter().for_each(|&(before, after)| befores.entry(after).or_default().push(before));
    let afters: BTreeMap<ValueId, ValueId> = state.into_iter().collect();
    let of_solution = closure(solutions, |value| {
        graph.next(value, &is_linear).chain(befores.get(&value).into_iter().flatten().copied())
    });
    let matrices = nodes().filter(|&node| solves(node)).flat_map(|node| graph.node(node).operands.iter().copied());
    let to_matrix = closure(matrices, |value| {
        let maker = Some(graph.producer(value)).filter(|&maker| is_linear(maker));
        let after = afters.get(&value).copied();
        maker.into_iter().flat_map(|maker| graph.node(maker).operands.iter().copied()).chain(after)
    });
    let is_between = |value: ValueId| of_solution.contains(&value) && to_matrix.contains(&value);
    nodes().filter(|&node| is_linear(node) && graph.node(node).results().any(is_between)).collect()
}

/// The arrays of a loop's state, each with its next value, that a product of a step multiplies on the way to that
/// value, through nodes that satisfy `passes`.
fn multiplied_by_itself(graph: &Dataflow<'_>, passes: impl Fn(NodeId) -> bool) -> Vec<(ValueId, ValueId)> {
    let carried = carried(graph);
    let of_any =
        |node: NodeId, bits: &[u64]| graph.node(node).operands.iter().fold(0, |all, &value| all | bits[value as usize]);
    // One bit for each of up to 64 arrays: which of them a value is computed from, and which through a product.
    let multiplied = carried.chunks(64).flat_map(|arrays| {
        let numbered: BTreeMap<ValueId, u64> =
            (0..).zip(arrays).map(|(nth, &(before, _))| (before, 1 << nth)).collect();
        let starts = graph.parameters().map(|value| numbered.get(&value).copied().unwrap_or_default());
        let of_array = graph.derived(starts, |node, bits| if passes(node) { of_any(node, bits) } else { 0 });
        let of_product = graph.derived([], |node, bits| {
            let multiplied = if graph.node(node).is_product() { of_any(node, &of_array) } else { 0 };
            multiplied | if passes(node) { of_any(node, bits) } else { 0 }
        });
        let is_multiplied =
            move |&(before, after): &(ValueId, ValueId)| of_product[after as usize] & numbered[&before] != 0;
        arrays.iter().copied().filter(is_multiplied).collect::<Vec<_>>()
    });
    multiplied.collect()
}

/// The multiplications on the way from an array of the state to its next value, through ops that are linear in it,
/// with their other operands, unless those are constants.
fn factors_of(graph: &Dataflow<'_>, before: ValueId, after: ValueId) -> Vec<(NodeId, Vec<ValueId>)> {
    let is_linear = |value: ValueId| {
        let (maker, op) = (graph.node(graph.producer(value)), graph.op(graph.producer(value)));
        adds(op) || scales(op) || matches!(op, Op::Unary(UnaryOp::Negate) | Op::Select) || maker.is_clear()
    };
    let sources = |value| if is_linear(value) { graph.sources(value) } else { &[] };
    let cone = closure([after], |value| sources(value).iter().copied());
    // A set, not a mark for each value: a loop may carry thousands of arrays, each with a short way to its next value.
    let mut of_before = BTreeSet::from([before]);
    for &value in &cone {
        if sources(value).iter().any(|source| of_before.contains(source)) {
            of_before.insert(value);
        }
    }
    if !of_before.contains(&after) {
        return Vec::new();
    }
    let factors = |&node: &NodeId| {
        let (state, others): (Vec<ValueId>, Vec<ValueId>) =
            graph.node(node).operands.iter().partition(|value| of_before.contains(value));
        let is_varied = others.iter().any(|&value| !graph.value(value).is_data);
        (!state.is_empty() && is_varied).then_some((node, others))
    };
    let scaling = cone.iter().map(|&value| graph.producer(value)).filter(|&node| scales(graph.op(node)));
    scaling.collect::<BTreeSet<NodeId>>().iter().filter_map(factors).collect()
}

/// Nodes of running sums and products that are written by halves, as by JAX's `associative_scan`: an op combines two
/// strided slices of one array, or multiples of them, its result is combined the same way, and the results are
/// interleaved by padding with zeros.
pub(super) fn scans(graph: &Dataflow<'_>) -> BTreeSet<NodeId> {
    let level =
        graph.derived([], |node, level: &[u32]| halved(graph, node).map_or(0, |value| 1 + level[value as usize]));
    let level = |node: NodeId| level[graph.node(node).first_result as usize];
    let later = graph.node_ids().filter(|&node| level(node) > 1);
    let sources: Vec<ValueId> =
        later.flat_map(|node| halved(graph, node).into_iter().chain(graph.node(node).results())).collect();
    let is_of_scan = |node: NodeId| {
        let op = graph.op(node);
        let is_op =
            matches!(op, Op::Select | Op::Binary(BinaryOp::Add | BinaryOp::Multiply)) || movement(op) != Movement::None;
        is_op && graph.node(node).is_soft()
    };
    let is_between =
        |maker: NodeId| matches!(graph.op(maker), Op::Pad(dims) if dims.iter().any(|dim| dim.interior > 0));
    let ends = graph.node_ids().map(|node| level(node) > 0 || graph.makers(node).any(is_between));
    let ends: Vec<bool> = ends.collect();
    let is_end = |node: NodeId| ends[node as usize];
    let reached = graph.reached(sources, is_of_scan);
    let leads = graph.leads(&[], |reader, leads| is_of_scan(reader) && (is_end(reader) || leads));
    let is_step = |&node: &NodeId| {
        let is_within = is_of_scan(node) && (is_end(node) || leads[node as usize]);
        is_within && graph.node(node).gives(&reached) || level(node) > 1
    };
    graph.node_ids().filter(is_step).collect()
}

/// The f32 array whose strided slices, or multiples of them, a node adds or multiplies.
fn halved(graph: &Dataflow<'_>, node: NodeId) -> Option<ValueId> {
    let (Op::Binary(BinaryOp::Add | BinaryOp::Multiply), &[a, b]) = (graph.op(node), &graph.node(node).operands[..])
    else {
        return None;
    };
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
    sources(a).into_iter().find(|source| of_b.contains(source)).filter(|&value| graph.value(value).is_f32())
}

/// Whether a node squashes its operand.
pub(super) fn squashes(graph: &Dataflow<'_>, record: &Node) -> bool {
    match &graph.instr(record).op {
        Op::Unary(UnaryOp::Logistic | UnaryOp::Tanh | UnaryOp::Erf) => true,
        // The last op of a sigmoid, 1 / (1 + e^x).
        Op::Binary(BinaryOp::Divide) => graph.value(record.operands[0]).is_data,
        _ => false,
    }
}

/// The f32 values that the factors of a recurrence are computed from, back to the ops that squash them (an exponential,
/// a sigmoid).
pub(super) fn until_squashed(
    graph: &Dataflow<'_>,
    factors: impl IntoIterator<Item = ValueId>,
) -> impl Iterator<Item = ValueId> {
    let is_f32 = |&value: &ValueId| graph.value(value).is_f32();
    let goes_on = |value: ValueId| {
        let maker = graph.node(graph.producer(value));
        is_f32(&value) && maker.is_soft() && !squashes(graph, maker)
    };
    graph.behind(factors, goes_on).into_iter().filter(is_f32)
}

/// For each array of a loop's state whether a recurrence of the body multiplies by it, with no squashing function
/// between.
pub(super) fn factors(body: &Dataflow<'_>, state: &[ValueId], taken: &[Known]) -> Vec<bool> {
    let reached: BTreeSet<ValueId> = until_squashed(body, recurrences(body, taken).into_values().flatten()).collect();
    state.iter().map(|value| reached.contains(value)).collect()
}
