//! Values that have to be f32 for their consumers, whatever the program computes: where an op amplifies a rounding, or
//! turns it into another kind of error.
//!
//! | consumer | what is f32 for it |
//! | --- | --- |
//! | a discrete choice | the products that its scores are computed from, and all ops between (`discrete_choices`) |
//! | a recurrence | its factors, back to the squashing function that bounds them, and its steps (`recurrences`) |
//! | a sine, a cosine, a choice | an angle or place, back through f32: sums, loops, products of data or of coordinates |
//! | a product of what a solve gives | the product, as a matrix |
//! | a decomposition | the matrix, and the products that it is computed from elementwise, back to another's result |
//! | a sum in which a product cancels | that product and the ops between (`cancellation`) |
//! | a small difference | what is subtracted, back to the sums of products (`differences`) |
//! | an exponential | running sums, however they are written |
//! | a large power | its base, and the powers and factors of that (`powers`) |
//! | a sum with positions | a coordinate that positions are added to or subtracted from, back to products |

use super::assignment::RegionContext;
use super::cancellation::{Cancellations, cancellations};
use super::data_movement::moved_from;
use super::dataflow::{Dataflow, Node, NodeId, ValueId};
use super::decision::Need;
use super::differences::{below_one, extents, of_moved, of_pairs};
use super::loops::Loop;
use super::powers::powers;
use super::provenance::{F32Origin, Provenance, is_of_few_columns, is_reduction, is_running_sum, provenance};
use super::recurrences::{recurrences, scans, solutions, solved_again, squashes, until_squashed};
use super::terms::adds;
use bf16scope_hlo::ops::decisions::{amplification, is_map};
use bf16scope_hlo::ops::precision::Amplification;
use std::collections::BTreeMap;

/// The nodes and values that a region needs in f32.
#[derive(Debug)]
pub(super) struct Needs {
    /// For each node the need that makes it f32, and the consumer that has this need.
    pub of_node: Vec<Option<(Need, NodeId)>>,
    /// For each value whether a loop or branch has to take it as an operand, or return it, in f32.
    pub given: Vec<bool>,
    /// For each product, loop, branch or running sum whose f32 result is needed the need, and the consumer that has it.
    pub of_result: Vec<Option<(Need, NodeId)>>,
    /// For each parameter of the region the needs of its consumers, with no product between.
    pub of_parameters: Vec<Vec<Need>>,
    /// For each value whether it is data that the program was given, in f32, or computed from such data alone: from no
    /// product and from no weight that the program updates. What reads it in f32 reads what was given, moved or not.
    pub is_input: Vec<bool>,
}

impl Needs {
    /// The needs of discrete choices alone.
    pub(super) fn of_choices(graph: &Dataflow<'_>, choices: &[Option<NodeId>]) -> Needs {
        Needs {
            of_node: choices.iter().map(|at| at.map(|at| (Need::Choice, at))).collect(),
            given: vec![false; graph.values.len()],
            of_result: vec![None; graph.nodes.len()],
            of_parameters: graph.parameters().map(|_| Vec::new()).collect(),
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
    let steps = scans(graph);
    let provenance = provenance(graph, loops, &around.operands, &steps);
    let needs = Needs::of_choices(graph, choices);
    let (is_solution, turned) = (solutions(graph), BTreeMap::new());
    let mut finder = Finder { graph, loops, provenance, is_solution, turned, needs };
    for (&node, its_loop) in loops {
        let operands = graph.node(node).operands.iter().copied().zip(&its_loop.is_factor);
        finder.factors(operands.filter(|(_, is_factor)| **is_factor).map(|(value, _)| value), node);
    }
    for (node, factors) in recurrences(graph, &around.operands) {
        finder.add(node, Need::Recurrence, node);
        finder.factors(factors, node);
    }
    for node in solved_again(graph) {
        finder.add_with_products(node, Need::Decomposition, node);
    }
    for node in steps {
        finder.add(node, Need::Recurrence, node);
    }
    for (node, exponentiation) in powers(graph) {
        finder.add(node, Need::Power, exponentiation);
    }
    finder.cancellations();
    let turns = |node: NodeId| amplification(graph.op(node)) == Amplification::Angle;
    let chooses = |node: NodeId| graph.makers(node).any(|maker| choices[maker as usize] == Some(node));
    finder.search(Need::Angle, |finder, node, wanted| finder.digits(Need::Angle, turns, node, wanted));
    finder.search(Need::Choice, |finder, node, wanted| finder.digits(Need::Choice, chooses, node, wanted));
    finder.gradients_of_coordinates();
    finder.search(Need::Decomposition, Finder::matrices);
    finder.search(Need::Exponent, Finder::exponents);
    finder.search(Need::Position, Finder::coordinates);
    finder.differences(&below_one(graph), |record| squashes(graph, record), |_, _| true);
    finder.differences(&of_moved(graph), |_| false, |_, _| true);
    let extents = extents(graph);
    let pairs = of_pairs(graph, &extents);
    // A loop has compared what its steps need, and they take slices of what it reads.
    let is_small = |at: NodeId, value: ValueId| {
        loops.contains_key(&at)
            || graph.is_parameter(value)
            || extents[value as usize].n_numbers() <= pairs[at as usize] / 2
    };
    finder.differences(&pairs.iter().map(|&n| n > 0).collect::<Vec<_>>(), |_| false, is_small);
    // An operand of a loop or a branch may be a weight.
    if graph.frames[0].comp == graph.module.entry {
        finder.needs.is_input = finder.provenance.iter().map(|value| !value.is_weighted).collect();
    }
    finder.needs
}

struct Finder<'g, 'm> {
    graph: &'g Dataflow<'m>,
    loops: &'g BTreeMap<NodeId, Loop>,
    provenance: Vec<Provenance>,
    /// For each value whether a solve gives it ([`solutions`]).
    is_solution: Vec<bool>,
    /// The arrays, before they were moved, that products of coordinates which the network computes read, each with a need for
    /// digits of these products and its consumer.
    turned: BTreeMap<ValueId, (Need, NodeId)>,
    needs: Needs,
}

/// For each value the consumer for which a search wants it.
type Wanted = [Option<NodeId>];

/// The consumer for which a search goes on to operands of a node, and those operands.
type Reads = Option<(NodeId, Vec<ValueId>)>;

impl Finder<'_, '_> {
    fn add(&mut self, node: NodeId, need: Need, at: NodeId) {
        if !self.graph.node(node).is_product() {
            self.add_with_products(node, need, at);
        }
    }

    fn add_with_products(&mut self, node: NodeId, need: Need, at: NodeId) {
        let record = self.graph.node(node);
        if record.is_soft() || record.is_product() {
            self.needs.of_node[node as usize].get_or_insert((need, at));
        }
    }

    /// The f32 result of a node is needed, whatever its operands are.
    fn add_result(&mut self, node: NodeId, need: Need, at: NodeId) {
        self.needs.of_result[node as usize].get_or_insert((need, at));
    }

    /// The factors of a recurrence, and what they are computed from, back to the squashing function.
    fn factors(&mut self, factors: impl IntoIterator<Item = ValueId>, at: NodeId) {
        for value in until_squashed(self.graph, factors) {
            self.add(self.graph.producer(value), Need::Recurrence, at);
        }
    }

    /// Products that cancel, and their operands, back to the f32 sums of the products that those were computed from.
    fn cancellations(&mut self) {
        let graph = self.graph;
        let Cancellations { nodes, read, sums } = cancellations(graph);
        sums.into_iter().for_each(|product| self.add_result(product, Need::Cancellation, product));
        let Some(&(first, _)) = nodes.first() else { return };
        nodes.into_iter().for_each(|(node, sum)| self.add_with_products(node, Need::Cancellation, sum));
        for value in graph.behind(read, |value| graph.node(graph.producer(value)).is_soft()) {
            let maker = graph.producer(value);
            match graph.node(maker).is_product() {
                true => self.add_result(maker, Need::Cancellation, first),
                false => self.add(maker, Need::Cancellation, first),
            }
        }
    }

    /// Searches back from consumers that have a need. `step` notes what they need of a node, and says where the search
    /// goes on. A loop takes in f32 what its steps need.
    fn search(&mut self, need: Need, step: impl Fn(&mut Self, NodeId, &Wanted) -> Reads) {
        let graph = self.graph;
        let mut wanted = vec![None; graph.values.len()];
        for node in graph.node_ids().rev() {
            if let Some((at, values)) = step(self, node, &wanted) {
                values.into_iter().for_each(|value| wanted[value as usize] = Some(at));
            }
            let Some(its_loop) = self.loops.get(&node) else { continue };
            let operands = graph.node(node).operands.iter().zip(&its_loop.needs);
            for (&value, _) in operands.filter(|(_, needs)| needs.contains(&need)) {
                if self.regards(need, value) {
                    self.needs.given[value as usize] = true;
                    wanted[value as usize] = Some(node);
                }
            }
        }
        for (value, needs) in graph.parameters().zip(&mut self.needs.of_parameters) {
            needs.extend(wanted[value as usize].map(|_| need));
        }
    }

    /// Whether a need of a loop's steps concerns an operand of the loop.
    fn regards(&self, need: Need, value: ValueId) -> bool {
        let provenance = self.provenance[value as usize];
        let is_regarded = match need {
            Need::Angle => provenance.origin.is_some(),
            Need::Exponent => provenance.is_of_running_sum,
            _ => provenance.is_of_product,
        };
        is_regarded && self.graph.value(value).is_f32()
    }

    /// Small differences, and what they are computed from, as far as a difference `reads` it, back to the f32 sums of
    /// products, or to what `ends` the search.
    fn differences(
        &mut self,
        is_difference: &[bool],
        ends: impl Fn(&Node) -> bool,
        reads: impl Fn(NodeId, ValueId) -> bool,
    ) {
        let graph = self.graph;
        self.search(Need::Cancellation, |finder, node, wanted| {
            let record = graph.node(node);
            let is_difference = is_difference[node as usize];
            let at = wanted_by(record, wanted).or(is_difference.then_some(node))?;
            if record.is_product() {
                finder.add_result(node, Need::Cancellation, at);
                return None;
            }
            let is_read = |&value: &ValueId| {
                graph.value(value).is_f32() && finder.provenance[value as usize].is_of_product && reads(at, value)
            };
            let operands: Vec<ValueId> = record.operands.iter().copied().filter(is_read).collect();
            if record.passes() && !operands.is_empty() {
                finder.needs.of_node[node as usize].get_or_insert((Need::Cancellation, at));
            }
            let goes_on = record.is_soft() && !ends(record);
            (is_difference || goes_on).then_some((at, operands))
        });
    }

    /// How a value was computed, if it has f32's precision.
    fn origin(&self, value: ValueId) -> Option<F32Origin> {
        self.provenance[value as usize].origin.filter(|_| self.graph.value(value).is_f32())
    }

    /// A step back from nodes that need all digits of what was computed in f32: sines and cosines of an angle, and choices
    /// of a place, such as a pixel's.
    fn digits(&mut self, need: Need, begins: impl Fn(NodeId) -> bool, node: NodeId, wanted: &Wanted) -> Reads {
        let record = self.graph.node(node);
        let at = wanted_by(record, wanted);
        self.needs_sum(node, need, wanted);
        let begins = begins(node) && record.operands.iter().any(|&value| self.origin(value).is_some());
        let is_framed = record.is_product() && self.provenance[record.first_result as usize].is_in_frame;
        let (at, reads_all) = match record.results().find_map(|value| self.origin(value)) {
            _ if begins => (node, false),
            Some(F32Origin::Computed) => (at?, false),
            Some(F32Origin::Multiplied) => (at?, is_framed),
            // The matrix that moves coordinates, back to the products that the network computes it by.
            None if record.is_product() => {
                self.add_result(node, need, at?);
                return None;
            }
            None if record.is_soft() => (at?, true),
            Some(F32Origin::Summed | F32Origin::ByLoop) | None => return None,
        };
        if begins {
            self.needs.of_node[node as usize].get_or_insert((need, at));
        }
        self.add_with_products(node, need, at);
        let is_of_product = |value: ValueId| self.provenance[value as usize].is_of_product;
        if record.is_product() && record.operands.iter().any(|&value| is_of_product(value)) {
            let arrays = record.operands.iter().map(|&value| moved_from(self.graph, value));
            self.turned.extend(arrays.map(|array| (array, (need, at))));
        }
        let is_read = |&value: &ValueId| match self.origin(value) {
            Some(_) if record.is_product() => is_framed && is_of_product(value),
            Some(_) => true,
            None => reads_all && self.graph.value(value).is_f32() && is_of_product(value),
        };
        Some((at, record.operands.iter().copied().filter(is_read).collect()))
    }

    /// Products of few columns that read what a product of coordinates reads: their gradients and tangents. Depth along a
    /// ray moves a pixel by a difference of such gradients.
    fn gradients_of_coordinates(&mut self) {
        for node in self.graph.node_ids().filter(|&node| is_of_few_columns(self.graph, node)) {
            let arrays = self.graph.node(node).operands.iter().map(|&value| moved_from(self.graph, value));
            let turned: Vec<_> = arrays.filter_map(|array| self.turned.get(&array).copied()).collect();
            turned.into_iter().for_each(|(need, at)| self.add_with_products(node, need, at));
        }
    }

    /// A step back from decompositions and products of what a solve gives, and from Fourier transforms to a product
    /// that nothing else reads.
    fn matrices(&mut self, node: NodeId, wanted: &Wanted) -> Reads {
        let (graph, record, op) = (self.graph, self.graph.node(node), self.graph.op(node));
        let at = wanted_by(record, wanted);
        at.into_iter().for_each(|at| self.add_with_products(node, Need::Decomposition, at));
        let is_own_product =
            |&value: &ValueId| graph.users[value as usize].len() == 1 && graph.node(graph.producer(value)).is_product();
        match amplification(op) {
            Amplification::Matrix => Some((node, record.operands.clone())),
            _ if record.is_product() && record.reads(&self.is_solution) => {
                self.add_with_products(node, Need::Decomposition, node);
                Some((node, record.operands.clone()))
            }
            Amplification::Spectrum => Some((node, record.operands.iter().copied().filter(is_own_product).collect())),
            _ if record.is_clear() || is_map(op) && !record.is_product() => Some((at?, record.operands.clone())),
            _ => None,
        }
    }

    /// A step back from exponentials to running sums.
    fn exponents(&mut self, node: NodeId, wanted: &Wanted) -> Reads {
        let (graph, record, op) = (self.graph, self.graph.node(node), self.graph.op(node));
        let at = wanted_by(record, wanted);
        let is_f32 = graph.value(record.first_result).is_f32();
        let is_of_sum = is_f32 && self.provenance[record.first_result as usize].is_of_running_sum;
        self.needs_sum(node, Need::Exponent, wanted);
        if at.is_some() && is_of_sum {
            self.add(node, Need::Exponent, node);
        }
        match amplification(op) {
            Amplification::Exponent => Some((node, record.operands.clone())),
            _ if record.is_soft() || is_reduction(op) && is_of_sum => Some((at?, record.operands.clone())),
            _ => None,
        }
    }

    /// Notes that the f32 sum behind a wanted value is needed: that of a product, of a loop, or of windows.
    fn needs_sum(&mut self, node: NodeId, need: Need, wanted: &Wanted) {
        let record = self.graph.node(node);
        let Some(at) = wanted_by(record, wanted) else { return };
        let origin = record.results().find_map(|value| self.origin(value));
        // A product of what the program was given and a constant sums it, too.
        let is_multiplied =
            origin == Some(F32Origin::Multiplied) && self.provenance[record.first_result as usize].is_of_running_sum;
        let (is_by_loop, is_by_windows) = (origin == Some(F32Origin::ByLoop), is_running_sum(self.graph, node));
        for value in record.results().filter(|&value| is_by_loop && wanted[value as usize].is_some()) {
            self.needs.given[value as usize] = true;
        }
        if is_by_windows {
            // A short one would be lowered as a sum over a small window.
            self.needs.of_node[node as usize].get_or_insert((need, node));
        }
        if origin == Some(F32Origin::Summed) || is_multiplied || is_by_loop || is_by_windows {
            self.add_result(node, need, at);
        }
    }

    /// A step back from sums of positions, which count places, and of coordinates that the network computes: the
    /// difference of two numbers of hundreds is a part of a place. What the coordinates are added up from is f32 too,
    /// back to products.
    fn coordinates(&mut self, node: NodeId, wanted: &Wanted) -> Reads {
        let record = self.graph.node(node);
        let reads =
            |holds: fn(Provenance) -> bool| record.operands.iter().any(|&value| holds(self.provenance[value as usize]));
        let is_sum = adds(self.graph.op(node));
        let is_relative = is_sum && reads(|it| it.is_position) && reads(|it| it.is_weighted);
        let wanted = wanted_by(record, wanted).filter(|_| is_sum || record.is_clear());
        let at = wanted.or(is_relative.then_some(node))?;
        self.add(node, Need::Position, at);
        record.is_soft().then(|| (at, record.operands.clone()))
    }
}

/// The consumer for which a search wants a result of a node.
fn wanted_by(record: &Node, wanted: &Wanted) -> Option<NodeId> {
    record.results().find_map(|value| wanted[value as usize])
}
