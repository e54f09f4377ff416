//! Where values come from: which have f32's precision, because no product between rounds them, and how it came about.

use super::assignment::Known;
use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::loops::Loop;
use super::loss;
use super::terms::{adds, is_linear, scales};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::WindowDim;
use bf16scope_hlo::ops::decisions::{amplification, calls_regions};
use bf16scope_hlo::ops::precision::{Amplification, Class};
use std::collections::{BTreeMap, BTreeSet};

/// The most columns of a product of coordinates, which is f32 for an angle even if the program trains or moves its
/// operands: places, times and directions have few, features have more.
const MAX_COORDINATES: i64 = 16;

/// How a value that has f32's precision was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum F32Origin {
    /// By an op of class deny, or by ops on values that have f32's precision.
    Computed,
    /// By a product whose operands come from no product and from no weight that the program updates: of positions and
    /// frequencies. Or by one of few columns, whose operands come from no product or are moved coordinates.
    Multiplied,
    /// By a product with constant data such as a triangle of ones: it adds up the other operand, in f32.
    Summed,
    /// By a loop that computes no product, such as a running sum.
    ByLoop,
}

/// The facts about where a value comes from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Provenance {
    /// Whether it is computed from a product.
    pub is_of_product: bool,
    /// Whether it is computed from a product, or from a weight that the program updates.
    pub is_weighted: bool,
    /// Whether it holds positions: places of an axis, scaled and moved.
    pub is_position: bool,
    /// Whether it is an array that the program was given, or computed from one (no row that is repeated, as a bias is).
    is_given: bool,
    /// Whether it holds coordinates that the network moves: the sum or product, element by element, of positions, of a given
    /// array or of coordinates in a frame, and of an array that comes from a product; or is computed from such.
    pub is_moved: bool,
    /// Whether it is a product of few coordinates: none of its operands is computed from any other product, or one holds
    /// coordinates, and the other the frame that they are turned to, as that of a camera. Or it was computed from such by
    /// moves, sums and scaling.
    pub is_in_frame: bool,
    /// How it was computed, if it has f32's precision.
    pub origin: Option<F32Origin>,
    /// Whether it is a running sum, by a product, a loop, windows or halves, or computed from one by ops of class infer
    /// and clear and by reductions.
    pub is_of_running_sum: bool,
}

/// The provenance of each value. `taken` says what is known of the region's parameters, `steps` are the steps of scans by
/// halves.
pub(super) fn provenance(
    graph: &Dataflow<'_>,
    loops: &BTreeMap<NodeId, Loop>,
    taken: &[Known],
    steps: &BTreeSet<NodeId>,
) -> Vec<Provenance> {
    graph.derived(parameters(graph, taken), |node, values: &[Provenance]| {
        let (record, op) = (graph.node(node), graph.op(node));
        let operands = || record.operands.iter().map(|&value| (graph.value(value), values[value as usize]));
        let any = |holds: fn(Provenance) -> bool| operands().any(|(_, operand)| holds(operand));
        // Precision is a fact about f32 alone.
        let any_f32 =
            |holds: fn(Provenance) -> bool| operands().any(|(value, operand)| value.is_f32() && holds(operand));
        let multiplies = graph.multiplies(record);
        let is_of_product = multiplies || any(|it| it.is_of_product);
        let has_data = operands().any(|(value, _)| value.is_data);
        let is_of_data = operands().all(|(value, _)| value.is_data);
        let moves = matches!(op, Op::Convert | Op::Broadcast { .. } | Op::Reshape | Op::Transpose { .. });
        let combines = matches!(op, Op::Concatenate { .. } | Op::Dot { .. });
        let is_place = (moves || adds(op) || scales(op) || combines) && any(|it| it.is_position) && is_of_data;
        // A ray is scaled by a depth that the network computes, as a place is moved.
        let is_displaced =
            (adds(op) || scales(op)) && is_of_product && any_f32(|it| it.is_given || it.is_position || it.is_in_frame);
        let n_elements = graph.value(record.first_result).n_elements;
        let repeats = matches!(op, Op::Broadcast { .. }) && operands().all(|(value, _)| value.n_elements < n_elements);
        let is_moved = record.is_soft() && (is_displaced || any_f32(|it| it.is_moved));
        let is_exact = || operands().all(|(_, it)| !it.is_weighted);
        let is_coordinate = |it: Provenance| !it.is_of_product || it.is_moved || it.is_in_frame;
        let is_of_coordinates = operands().all(|(_, it)| is_coordinate(it));
        let turns_coordinates = || any(|it| it.is_moved || it.is_in_frame || it.is_position);
        let multiplies_few = is_of_few_columns(graph, node);
        let is_in_frame = match record.is_product() {
            true => multiplies_few && (is_of_coordinates || turns_coordinates()),
            false => is_linear(graph, node) && is_of_coordinates && any(|it| it.is_in_frame),
        };
        let turns = amplification(op) == Amplification::Angle;
        let origin = match record.class() {
            Some(Class::Allow) if is_exact() => Some(F32Origin::Multiplied),
            Some(Class::Allow) if is_in_frame => Some(F32Origin::Multiplied),
            Some(Class::Allow) if has_data => Some(F32Origin::Summed),
            _ if calls_regions(op) => {
                let is_light = loops.get(&node).is_some_and(|its_loop| !its_loop.has_product);
                is_light.then_some(F32Origin::ByLoop)
            }
            Some(Class::Deny { .. }) if any_f32(|_| true) && !turns => Some(F32Origin::Computed),
            Some(Class::Infer | Class::Clear) if is_moved || any_f32(|it| it.origin.is_some()) => {
                Some(F32Origin::Computed)
            }
            _ => None,
        };
        Provenance {
            is_of_product,
            is_weighted: multiplies || any(|it| it.is_weighted),
            is_position: matches!(op, Op::Iota { .. }) || is_place,
            is_given: record.is_soft() && !is_of_product && !repeats && any_f32(|it| it.is_given),
            is_moved,
            is_in_frame,
            origin,
            is_of_running_sum: matches!(origin, Some(F32Origin::Summed | F32Origin::ByLoop))
                || origin == Some(F32Origin::Multiplied) && has_data
                || steps.contains(&node)
                || is_running_sum(graph, node)
                || (record.is_soft() || is_reduction(op)) && any_f32(|it| it.is_of_running_sum),
        }
    })
}

/// The provenance of the region's parameters. One is a weight, in a program that trains, if it has several axes and a
/// result has the same. (Positions have one axis, and a product never multiplies those alone.)
fn parameters(graph: &Dataflow<'_>, taken: &[Known]) -> impl Iterator<Item = Provenance> {
    let dims = |&value: &ValueId| graph.dims(graph.node(graph.producer(value)));
    let updated: BTreeSet<_> = graph.results.iter().filter_map(dims).collect();
    let trains = graph.frames[0].comp != graph.module.entry || loss::trains(graph);
    let nodes = graph.nodes.iter().filter(|node| node.kind == NodeKind::Parameter);
    let leaves = nodes.flat_map(|node| node.results().zip(graph.instr(node).shape.leaves()));
    let taken = taken.iter().map(|known| known.is_learned).chain(std::iter::repeat(false));
    leaves.zip(taken).map(move |((value, leaf), is_of_product)| {
        let is_weight = |dims: &Vec<i64>| trains && dims.len() > 1 && updated.contains(dims);
        let is_updated = graph.value(value).is_f32() && leaf.as_array().is_some_and(|array| is_weight(&array.dims));
        Provenance {
            is_of_product,
            is_weighted: is_of_product || is_updated,
            is_given: graph.value(value).is_f32_array() && !is_of_product,
            ..Provenance::default()
        }
    })
}

/// Whether a product is one of coordinates by its size.
pub(super) fn is_of_few_columns(graph: &Dataflow<'_>, node: NodeId) -> bool {
    graph.node(node).is_product() && n_columns(graph, node).is_some_and(|n| n <= MAX_COORDINATES)
}

/// The number of products that each element of a product's result adds up.
pub(super) fn n_columns(graph: &Dataflow<'_>, node: NodeId) -> Option<i64> {
    match graph.op(node) {
        Op::Dot { dims, .. } => {
            let sizes = graph.operand_dims(node, 0);
            Some(dims.lhs_contracting.iter().map(|&axis| sizes[axis as usize]).product())
        }
        Op::Convolution(convolution) => {
            let sizes = (0..).zip(graph.operand_dims(node, 1));
            let summed = sizes.filter(|&(axis, _)| axis != convolution.dims.kernel_output_feature);
            Some(summed.map(|(_, &size)| size).product())
        }
        _ => None,
    }
}

/// Whether an op reduces an array: its result has the absolute errors of what it reduces, by maxima, by sums, and by
/// logarithms of sums of exponentials.
pub(super) fn is_reduction(op: &Op) -> bool {
    matches!(op, Op::Reduce { .. } | Op::ReduceWindow { .. })
}

/// Whether a node is a running sum by windows: along an axis, each of several windows reaches as far as the array.
pub(super) fn is_running_sum(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let Op::ReduceWindow { window, .. } = graph.op(node) else { return false };
    let runs = |(along, &size): (&WindowDim, &i64)| size > 1 && along.size >= size && along.n_positions(size) > 1;
    window.iter().zip(graph.operand_dims(node, 0)).any(runs) && graph.is_called(node, "reduce-window:add")
}
