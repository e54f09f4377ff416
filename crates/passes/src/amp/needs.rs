//! Values that have to be f32 for their consumers, whatever the program computes: where an op amplifies a rounding, or
//! turns it into another kind of error.
//!
//! | consumer | what is f32 for it |
//! | --- | --- |
//! | a discrete choice | the products that its scores are computed from, and all ops between (`discrete_choices`) |
//! | a recurrence | its factors, back to the squashing function that bounds them, and its steps (`recurrences`) |
//! | a sine or cosine | the angle, back through what was f32: sums, loops, products of data or of coordinates |
//! | a decomposition | the matrix, and the products that it is computed from elementwise, back to another's result |
//! | a sum in which a product cancels | that product and the ops between (`cancellation`) |
//! | an exponential | running sums, however they are written |
//! | a large power | its base, and the powers and factors of that (`powers`) |
//! | a sum with positions | a coordinate that positions are added to or subtracted from, back to products |

use super::cancellation::{Cancellations, cancellations};
use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::loops::Loop;
use super::loss;
use super::need::Need;
use super::powers::powers;
use super::recurrences::{recurrences, scans, solved_again, until_squashed};
use super::surroundings::{Known, RegionContext};
use super::terms::{adds, scales};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::WindowDim;
use bf16scope_hlo::ops::decisions::{amplification, calls_regions, is_map};
use bf16scope_hlo::ops::precision::{Amplification, Class};
use std::collections::{BTreeMap, BTreeSet};

/// The most columns of a product of coordinates, which is f32 for an angle even if the program trains or moves its
/// operands: places, times and directions have few, features have more.
const MAX_COORDINATES: i64 = 16;

/// The nodes and values that a region needs in f32.
#[derive(Debug)]
pub(super) struct Needs {
    /// For each node the need that makes it f32, and the consumer that has this need.
    pub of_node: Vec<Option<(Need, NodeId)>>,
    /// For each product whether its f32 sum is needed, though its operands are narrow.
    pub sums: Vec<bool>,
    /// For each value whether a loop or branch has to take it as an operand, or return it, in f32.
    pub given: Vec<bool>,
    /// For each product, loop, branch or running sum whose f32 result is needed the need, and the consumer that has it.
    pub of_result: Vec<Option<(Need, NodeId)>>,
    /// For each value whether it is data that the program was given, in f32, or computed from such data alone: from no
    /// product and from no weight that the program updates. What reads it in f32 reads what was given, moved or not.
    pub is_input: Vec<bool>,
}

impl Needs {
    /// The needs of discrete choices alone.
    pub(super) fn of_choices(graph: &Dataflow<'_>, choices: &[Option<NodeId>]) -> Needs {
        Needs {
            of_node: choices.iter().map(|at| at.map(|at| (Need::Choice, at))).collect(),
            sums: vec![false; graph.nodes.len()],
            given: vec![false; graph.values.len()],
            of_result: vec![None; graph.nodes.len()],
            is_input: vec![false; graph.values.len()],
        }
    }
}

/// The needs of a region. `choices` says for each node which choice depends on it, `loops` what the region's loops do
/// with their state, and `around` what is known of the region's parameters.
pub(super) fn needs(
    graph: &Dataflow<'_>,
    choices: &[Option<NodeId>],
    loops: &BTreeMap<NodeId, Loop>,
    around: &RegionContext,
) -> Needs {
    let mut finder = Finder { graph, needs: Needs::of_choices(graph, choices) };
    for (&node, its_loop) in loops {
        for (&value, _) in
            graph.node(node).operands.iter().zip(&its_loop.is_factor).filter(|(_, is_factor)| **is_factor)
        {
            finder.until_squashed(value, node);
        }
    }
    for (&node, factors) in &recurrences(graph, &around.operands) {
        finder.add(node, Need::Recurrence, node);
        for &value in factors {
            finder.until_squashed(value, node);
        }
    }
    for node in solved_again(graph) {
        finder.add_with_products(node, Need::Decomposition, node);
    }
    let steps = scans(graph);
    for &node in &steps {
        finder.add(node, Need::Recurrence, node);
    }
    for (node, exponentiations) in (0..).zip(powers(graph)) {
        exponentiations.into_iter().for_each(|exponentiations| finder.add(node, Need::Power, exponentiations));
    }
    finder.cancellations();
    let is_weighted = weighted(graph, &around.operands);
    let of_products = computed_from_products(graph, &around.operands, |_| false);
    finder.reads(&MadeInF32::new(graph, loops, &is_weighted, &of_products, &steps), loops);
    finder.coordinates(&is_weighted);
    // An operand of a loop or a branch may be a weight.
    if graph.frames[0].comp == graph.module.entry {
        finder.needs.is_input = is_weighted.into_iter().map(|is_weighted| !is_weighted).collect();
    }
    finder.needs
}

struct Finder<'g, 'm> {
    graph: &'g Dataflow<'m>,
    needs: Needs,
}

impl Finder<'_, '_> {
    fn add(&mut self, node: NodeId, need: Need, at: NodeId) {
        if self.graph.node(node).is_soft() {
            self.needs.of_node[node as usize].get_or_insert((need, at));
        }
    }

    fn add_with_products(&mut self, node: NodeId, need: Need, at: NodeId) {
        if self.graph.node(node).is_product() {
            self.needs.of_node[node as usize].get_or_insert((need, at));
        }
        self.add(node, need, at);
    }

    /// The f32 sum of a product is needed.
    fn keep_sum(&mut self, product: NodeId, need: Need, at: NodeId) {
        self.needs.sums[product as usize] = true;
        self.needs.of_result[product as usize].get_or_insert((need, at));
    }

    /// A result of a loop or a branch is needed in f32.
    fn keep_result(&mut self, value: ValueId, need: Need, at: NodeId) {
        self.needs.given[value as usize] = true;
        self.needs.of_result[self.graph.producer(value) as usize].get_or_insert((need, at));
    }

    /// Goes backward from what sines, exponentials, decompositions and cancelling sums read, to what computed it.
    fn reads(&mut self, made_in_f32: &MadeInF32, loops: &BTreeMap<NodeId, Loop>) {
        let graph = self.graph;
        // For each value: the node that reads it as an angle, the one that reads it as a matrix to decompose, and
        // the exponential that reads it.
        let mut angle: Vec<Option<NodeId>> = vec![None; graph.values.len()];
        let (mut matrix, mut power) = (angle.clone(), angle.clone());
        for node in graph.node_ids().rev() {
            let record = graph.node(node);
            let op = &graph.instr(record).op;
            let origin = record.results().find_map(|value| made_in_f32.origins[value as usize]);
            let is_wanted = |by: &[Option<NodeId>]| record.results().find_map(|value| by[value as usize]);
            let (turns, decomposition, exponent) = (is_wanted(&angle), is_wanted(&matrix), is_wanted(&power));
            let absolute = turns.map(|at| (Need::Angle, at)).or(exponent.map(|at| (Need::Exponent, at)));
            if let Some((need, at)) = absolute {
                match origin {
                    Some(F32Origin::Summed) => self.keep_sum(node, need, at),
                    Some(F32Origin::ByLoop) => {
                        let is_read = |&value: &ValueId| angle[value as usize].or(power[value as usize]).is_some();
                        record.results().filter(is_read).for_each(|value| self.keep_result(value, need, at));
                    }
                    Some(F32Origin::Multiplied | F32Origin::Computed) | None => {}
                }
            }
            for (leaf, &value) in record.operands.iter().enumerate() {
                let is_angle = loops.get(&node).is_some_and(|its_loop| its_loop.is_angle.get(leaf) == Some(&true));
                if is_angle && made_in_f32.is_known(value) {
                    angle[value as usize] = Some(node);
                    self.needs.given[value as usize] = true;
                }
            }
            let is_turned = amplification(op) == Amplification::Angle;
            let reads_angle = match origin {
                _ if is_turned && made_in_f32.is_known(record.operands[0]) => Some(node),
                Some(F32Origin::Computed) => turns,
                _ => None,
            };
            if let Some(at) = reads_angle {
                if is_turned {
                    self.needs.of_node[node as usize].get_or_insert((Need::Angle, at));
                }
                self.add(node, Need::Angle, at);
                let known = record.operands.iter().filter(|&&value| made_in_f32.is_known(value));
                known.for_each(|&value| angle[value as usize] = Some(at));
            } else if let (Some(at), Some(F32Origin::Multiplied)) = (turns, origin) {
                self.add_with_products(node, Need::Angle, at);
                let moved = record.operands.iter().filter(|&&value| made_in_f32.is_moved[value as usize]);
                moved.for_each(|&value| angle[value as usize] = Some(at));
            }
            if let Some(at) = decomposition {
                self.add_with_products(node, Need::Decomposition, at);
            }
            let goes_on = !record.is_product() && (is_map(op) || record.is_clear());
            if let Some(at) =
                decomposition.filter(|_| goes_on).or((amplification(op) == Amplification::Matrix).then_some(node))
            {
                record.operands.iter().for_each(|&value| matrix[value as usize] = Some(at));
            }
            if amplification(op) == Amplification::Spectrum {
                record.operands.iter().for_each(|&value| self.transformed(value, node));
            }
            if exponent.is_some() && made_in_f32.is_of_running_sum[record.first_result as usize] {
                self.add(node, Need::Exponent, node);
            }
            // A short one would be lowered as a sum over a small window.
            if let Some((_, at)) = absolute.filter(|_| is_running_sum(graph, node)) {
                let need = if exponent.is_some() { Need::Exponent } else { Need::Angle };
                self.needs.of_node[node as usize].get_or_insert((need, node));
                self.needs.of_result[node as usize].get_or_insert((need, at));
            }
            let is_reduced = is_reduction(op) && made_in_f32.is_of_running_sum[record.first_result as usize];
            let is_raised = (amplification(op) == Amplification::Exponent).then_some(node);
            if let Some(at) = is_raised.or(exponent.filter(|_| record.is_soft() || is_reduced)) {
                record.operands.iter().for_each(|&value| power[value as usize] = Some(at));
            }
        }
    }

    /// The product whose only consumer is a Fourier transform: it is computed in f32.
    fn transformed(&mut self, value: ValueId, at: NodeId) {
        let product = self.graph.producer(value);
        if self.graph.users[value as usize].len() == 1 && self.graph.node(product).is_product() {
            self.add_with_products(product, Need::Decomposition, at);
        }
    }

    /// Products that cancel, and their operands, back to the f32 sums of the products that those were computed from.
    fn cancellations(&mut self) {
        let Cancellations { nodes, mut is_read, sums } = cancellations(self.graph);
        sums.into_iter().for_each(|product| self.keep_sum(product, Need::Cancellation, product));
        let Some(&(first, _)) = nodes.first() else { return };
        nodes.into_iter().for_each(|(node, sum)| self.add_with_products(node, Need::Cancellation, sum));
        for node in self.graph.node_ids().rev() {
            let record = self.graph.node(node);
            if !record.gives(&is_read) {
                continue;
            }
            if record.is_product() {
                self.keep_sum(node, Need::Cancellation, first);
            }
            if record.is_soft() {
                self.add(node, Need::Cancellation, first);
                record.operands.iter().for_each(|&value| is_read[value as usize] = true);
            }
        }
    }

    /// Sums of positions, which count places, and of coordinates that the network computes: the difference of two numbers
    /// of hundreds is a part of a place. What the coordinates are added up from is f32 too, back to products.
    fn coordinates(&mut self, is_weighted: &[bool]) {
        let graph = self.graph;
        let is_position = positions(graph);
        let mut reader: Vec<Option<NodeId>> = vec![None; graph.values.len()];
        for node in graph.node_ids().rev() {
            let record = graph.node(node);
            let is_sum = adds(&graph.instr(record).op);
            let is_relative = is_sum && record.reads(&is_position) && record.reads(is_weighted);
            let wanted = record.results().find_map(|value| reader[value as usize]);
            let moves = record.is_clear();
            let Some(at) = wanted.filter(|_| is_sum || moves).or(is_relative.then_some(node)) else { continue };
            self.add(node, Need::Position, at);
            if record.is_soft() {
                record.operands.iter().for_each(|&value| reader[value as usize] = Some(at));
            }
        }
    }

    /// The factor of a recurrence, and what it is computed from, back to the squashing function.
    fn until_squashed(&mut self, value: ValueId, at: NodeId) {
        for node in until_squashed(self.graph, value).0 {
            self.add(node, Need::Recurrence, at);
        }
    }
}

/// How a value that has f32's precision was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum F32Origin {
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

/// For each value whether it is computed from a product, or from a weight that the program updates: in one that trains,
/// a parameter of several axes that a result has, too. (Positions have one axis, and a product never multiplies those
/// alone.) `taken` says of the region's parameters whether they are computed from products.
fn weighted(graph: &Dataflow<'_>, taken: &[Known]) -> Vec<bool> {
    let dims = |&value: &ValueId| graph.dims(graph.node(graph.producer(value)));
    let updated: BTreeSet<_> = graph.results.iter().filter_map(dims).collect();
    let trains = graph.frames[0].comp != graph.module.entry || loss::trains(graph);
    computed_from_products(graph, taken, |dims| trains && dims.len() > 1 && updated.contains(dims))
}

/// For each value whether it is computed from a product, or from a parameter whose dims are those of a weight. `taken`
/// says of the region's parameters whether they are computed from products.
fn computed_from_products(graph: &Dataflow<'_>, taken: &[Known], is_weight: impl Fn(&Vec<i64>) -> bool) -> Vec<bool> {
    let mut is_computed = vec![false; graph.values.len()];
    graph.parameters().zip(taken).for_each(|(value, known)| is_computed[value as usize] = known.is_learned);
    for node in &graph.nodes {
        if node.kind == NodeKind::Parameter {
            for (value, leaf) in node.results().zip(graph.instr(node).shape.leaves()) {
                let is_float = graph.value(value).is_f32();
                is_computed[value as usize] |= is_float && leaf.as_array().is_some_and(|array| is_weight(&array.dims));
            }
            continue;
        }
        let is_of_any = graph.multiplies(node) || node.reads(&is_computed);
        node.results().for_each(|value| is_computed[value as usize] = is_of_any);
    }
    is_computed
}

/// For each value whether it holds coordinates that the network moves: the sum of positions, or of an array that the
/// program was given (no row that is repeated, as a bias is), and of an array that comes from a product; or what is
/// computed from such a sum.
fn moved_coordinates(graph: &Dataflow<'_>, of_products: &[bool]) -> Vec<bool> {
    let mut is_moved = vec![false; graph.values.len()];
    let is_position = positions(graph);
    let mut is_array = vec![false; graph.values.len()];
    for record in &graph.nodes {
        if record.kind == NodeKind::Parameter {
            for value in record.results() {
                is_array[value as usize] = graph.value(value).is_f32_array() && !of_products[value as usize];
            }
        }
        if !record.is_soft() {
            continue;
        }
        let op = &graph.instr(record).op;
        let meets_product = record.reads(of_products);
        let is_displaced = adds(op) && (record.reads(&is_array) || record.reads(&is_position)) && meets_product;
        let moves = record.reads(&is_moved) || is_displaced;
        let n_read = record.operands.iter().map(|&value| graph.value(value).n_elements).max().unwrap_or(0);
        let repeats =
            matches!(op, Op::Broadcast { .. }) && record.results().any(|value| graph.value(value).n_elements > n_read);
        let is_given_array = record.reads(&is_array) && !meets_product && !repeats;
        for value in record.results().filter(|&value| graph.value(value).is_f32()) {
            (is_moved[value as usize], is_array[value as usize]) = (moves, is_given_array);
        }
    }
    is_moved
}

/// The number of products that each element of a product's result adds up.
fn n_columns(graph: &Dataflow<'_>, node: NodeId) -> Option<i64> {
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
fn is_reduction(op: &Op) -> bool {
    matches!(op, Op::Reduce { .. } | Op::ReduceWindow { .. })
}

/// Whether a node is a running sum by windows: along an axis, each of several windows reaches as far as the array.
fn is_running_sum(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let Op::ReduceWindow { window, .. } = graph.op(node) else { return false };
    let runs = |(along, &size): (&WindowDim, &i64)| size > 1 && along.size >= size && along.n_positions(size) > 1;
    window.iter().zip(graph.operand_dims(node, 0)).any(runs) && graph.is_called(node, "reduce-window:add")
}

/// For each value whether it holds positions: places of an axis, scaled and moved.
fn positions(graph: &Dataflow<'_>) -> Vec<bool> {
    let mut is_position = vec![false; graph.values.len()];
    for record in &graph.nodes {
        let op = &graph.instr(record).op;
        let moves = matches!(op, Op::Convert | Op::Broadcast { .. } | Op::Reshape | Op::Transpose { .. });
        let keeps = moves || adds(op) || scales(op);
        let holds = matches!(op, Op::Iota { .. })
            || keeps && record.reads(&is_position) && record.operands.iter().all(|&value| graph.value(value).is_data);
        record.results().for_each(|value| is_position[value as usize] = holds);
    }
    is_position
}

/// The values that have f32's precision: no product between rounds them.
struct MadeInF32 {
    origins: Vec<Option<F32Origin>>,
    /// For each value whether it is a running sum, by a product, a loop, windows or halves, or computed from one by ops
    /// of class infer and clear and by reductions.
    is_of_running_sum: Vec<bool>,
    /// For each value whether it holds coordinates that the network moves.
    is_moved: Vec<bool>,
}

impl MadeInF32 {
    fn new(
        graph: &Dataflow<'_>,
        loops: &BTreeMap<NodeId, Loop>,
        is_weighted: &[bool],
        of_products: &[bool],
        steps: &BTreeSet<NodeId>,
    ) -> MadeInF32 {
        let is_moved = moved_coordinates(graph, of_products);
        let mut origins = vec![None; graph.values.len()];
        let mut is_of_running_sum = vec![false; graph.values.len()];
        for (idx, record) in (0..).zip(&graph.nodes) {
            let op = &graph.instr(record).op;
            let reads_f32 = record.operands.iter().any(|&value| graph.value(value).is_f32());
            let is_exact = |value: &ValueId| !is_weighted[*value as usize];
            let is_coordinate = |&value: &ValueId| !of_products[value as usize] || is_moved[value as usize];
            let multiplies_few = || n_columns(graph, idx).is_some_and(|n| n <= MAX_COORDINATES);
            let has_data = record.operands.iter().any(|&value| graph.value(value).is_data);
            let is_angle = amplification(op) == Amplification::Angle;
            let origin = match record.class() {
                Some(Class::Allow) if record.operands.iter().all(is_exact) => Some(F32Origin::Multiplied),
                Some(Class::Allow) if record.operands.iter().all(is_coordinate) && multiplies_few() => {
                    Some(F32Origin::Multiplied)
                }
                Some(Class::Allow) if has_data => Some(F32Origin::Summed),
                _ if calls_regions(op) => {
                    let is_light = loops.get(&idx).is_some_and(|its_loop: &Loop| !its_loop.has_product);
                    is_light.then_some(F32Origin::ByLoop)
                }
                Some(Class::Deny { .. }) if reads_f32 && !is_angle => Some(F32Origin::Computed),
                Some(Class::Infer | Class::Clear)
                    if record.gives(&is_moved)
                        || record.operands.iter().any(|&value| origins[value as usize].is_some()) =>
                {
                    Some(F32Origin::Computed)
                }
                _ => None,
            };
            let keeps_errors = record.is_soft() || is_reduction(op);
            let is_of_sum = matches!(origin, Some(F32Origin::Summed | F32Origin::ByLoop))
                || steps.contains(&idx)
                || is_running_sum(graph, idx)
                || keeps_errors && record.reads(&is_of_running_sum);
            for value in record.results().filter(|&value| graph.value(value).is_f32()) {
                (origins[value as usize], is_of_running_sum[value as usize]) = (origin, is_of_sum);
            }
        }
        MadeInF32 { origins, is_of_running_sum, is_moved }
    }

    fn is_known(&self, value: ValueId) -> bool {
        self.origins[value as usize].is_some()
    }
}
