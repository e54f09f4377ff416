//! Which nodes of a region compute in the narrow dtype, which values are stored in it, and which rule decided.
//!
//! 1. Facts: the needs of each node's consumers (`needs`), the ends of the network (`ends`), the products around it,
//!    and the values that cross the borders of loops and branches (`crossings`).
//! 2. The decision on each node (`decision`), as if every result were materialised.
//! 3. Storage: which results a compiler keeps in registers (`fused`), and which of those that are f32 for the loss it
//!    materialises (`materialised`). Then the decision again.
//! 4. Data movement follows what is around it (`moves`).
//! 5. For a TPU's tiles: tables with narrow rows, logits that are as large as any parameter, and sums of concatenations
//!    (`tiles`).
//!
//! TensorFlow's `auto_mixed_precision` denies loss and optimizer ops outright. It has neither needs nor steps 3 and 5,
//! and in step 4 it lowers whatever is connected.

mod crossings;
mod fused;
mod moves;

use super::assignment::{Assignment, Crossing, RegionKind};
use super::data_movement::{is_sum_over_windows, merges_padded_windows, moved, moved_from};
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::decided::StoredAs;
use super::decision::{Decision, Facts, Need, Rule, decide};
use super::ends::Ends;
use super::loops::{Branch, Loop, Use, filled};
use super::materialised::{elementwise, materialised, shifted_exponents};
use super::needs::Needs;
use super::policy::{Accumulate, Because, Boundary, Classes, Policy, Reach};
use super::range::{beyond, is_guard};
use super::sums::keeps_sum;
use super::tiles;
use bf16scope_hlo::ops::decisions::{amplification, is_body_border, is_stored, is_stored_beside_sum};
use bf16scope_hlo::ops::precision::{Amplification, Class};
use bf16scope_hlo::{DType, Op};
use fused::fused;
use std::collections::BTreeMap;

/// Assigns dtypes to the nodes and values of a region.
///
/// `crossing` says which arrays of a loop's state are narrow, if the region is a loop's body or condition; `loops`
/// what the loops in the region do with their state; `needs` what is f32 for its consumers.
pub(super) fn assign(
    graph: &Dataflow<'_>,
    classes: &Classes<'_>,
    kind: RegionKind,
    crossing: &Crossing,
    loops: &BTreeMap<NodeId, Loop>,
    branches: &BTreeMap<NodeId, Vec<Branch>>,
    needs: &Needs,
) -> Assignment {
    let policy = classes.policy;
    let mut out = Assignment::new(graph.nodes.iter().map(source).collect(), graph.values.len(), beyond(graph));
    if kind == RegionKind::Entry && policy.parameters == Boundary::Lower {
        let floats = graph.parameters().filter(|&value| graph.value(value).is_f32());
        floats.for_each(|value| out.value_low[value as usize] = true);
    }
    let (is_result, is_narrow_read) = state(graph, crossing, &mut out);
    let gives_f32 = kind == RegionKind::Entry && policy.results == Boundary::Keep;
    let mut keeps_sum = keeps_sum(graph, classes, kind, &|value| gives_f32 && is_result[value as usize]);
    keeps_sum.iter_mut().zip(&needs.of_result).for_each(|(keeps, need)| *keeps |= need.is_some());
    let ends = Ends::find(graph, policy, kind, is_result, needs);
    out.differentiates = ends.differentiates && policy.reach != Reach::None;
    out.needed.clone_from(&needs.of_result);
    let (moved, below) = (moved(graph), Vec::new());
    let is_final = vec![false; graph.nodes.len()];
    let mut assigner =
        Assigner { graph, classes, policy, kind, loops, out, is_final, moved, ends, needs, keeps_sum, below };
    assigner.below = assigner.below(&is_narrow_read);
    if policy.loops == Boundary::Lower && policy.reach == Reach::Between {
        assigner.narrow_crossings(branches);
    }
    assigner.decide_all();
    if policy.reach != Reach::None {
        if policy.unstored == Boundary::Keep {
            assigner.find_storage();
        }
        assigner.decide_single();
        assigner.lower_clear();
        assigner.fit_tiles();
    }
    assigner.keep_borders();
    assigner.out
}

/// The rule of a node that `decide` is not asked about.
fn source(node: &Node) -> Rule {
    match node.kind {
        NodeKind::Op(_) | NodeKind::Fixed(_) => Rule::Fixed,
        _ => Rule::Source,
    }
}

/// Lowers the narrow arrays of the region's own state: its parameters, its results, and the nodes that write these.
/// Returns for each value whether it is a result in its own dtype, and whether it is a narrow array that the region
/// reads.
fn state(graph: &Dataflow<'_>, crossing: &Crossing, out: &mut Assignment) -> (Vec<bool>, Vec<bool>) {
    let (mut is_result, mut is_read) = (graph.is_result.clone(), vec![false; graph.values.len()]);
    let Crossing { taken, given: state } = crossing;
    for (value, _) in graph.parameters().zip(taken).filter(|(_, is_narrow)| **is_narrow) {
        out.value_low[value as usize] = true;
        is_read[value as usize] = true;
    }
    // The condition of a loop does not return the state.
    if state.len() != graph.results.len() {
        return (is_result, is_read);
    }
    out.narrow_results.clone_from(state);
    for (&result, _) in graph.results.iter().zip(state).filter(|(_, is_narrow)| **is_narrow) {
        is_result[result as usize] = false;
        if filled(graph, result).is_some() {
            let node = graph.producer(result);
            is_read[graph.node(node).operands[0] as usize] = false;
            out.low[node as usize] = true;
            out.rule[node as usize] = Rule::Filled;
            out.value_low[result as usize] = true;
        }
    }
    for (&result, _) in graph.results.iter().zip(state).filter(|(_, is_narrow)| !**is_narrow) {
        is_result[result as usize] = true;
    }
    (is_result, is_read)
}

struct Assigner<'g> {
    graph: &'g Dataflow<'g>,
    classes: &'g Classes<'g>,
    policy: &'g Policy,
    kind: RegionKind,
    loops: &'g BTreeMap<NodeId, Loop>,
    out: Assignment,
    /// For each node whether its dtypes were decided again by where values are stored. These change once, towards f32
    /// operands, and no movement changes them after that; a debug build asserts it.
    is_final: Vec<bool>,
    /// For each value whether data that a compiler materialises were moved to compute it.
    moved: Vec<bool>,
    ends: Ends,
    needs: &'g Needs,
    /// For each node whether it is a product whose f32 sum is kept.
    keeps_sum: Vec<bool>,
    /// For each node a product that it is computed from, with no denied op between, or the node itself if it reads a
    /// narrow array of the region's state.
    below: Vec<Option<NodeId>>,
}

impl Assigner<'_> {
    /// Decides for every op, as if every result were materialised, except those that are decided by what crosses the
    /// region's borders.
    fn decide_all(&mut self) {
        let graph = self.graph;
        let above = self.above();
        let is_of_products = graph.of_arrays(|node| match graph.node(node).class() {
            Some(Class::Allow) => Some(true),
            Some(Class::Infer | Class::Clear) => Some(false),
            _ => is_sum_over_windows(graph, self.classes, node).then_some(false),
        });
        for node in graph.node_ids() {
            let (idx, record) = (node as usize, graph.node(node));
            let Some(class) = record.class().filter(|_| self.out.rule[idx] != Rule::Filled) else { continue };
            // A product that devices may sum keeps f32 unless a consumer casts it, so that a gradient is not rounded
            // for no consumer. Operands of the loss are rounded, because they are stored for the backward pass.
            let rounds = !record.gives_f32 || self.ends.leads_to_loss[idx];
            let facts = Facts {
                class,
                reach: self.policy.reach,
                wide: self.ends.wide[idx],
                is_blocked: self.ends.blocked[idx],
                below: self.below[idx],
                above: above[idx],
                stored: self.stored(node, above[idx], is_of_products[record.first_result as usize]),
                keeps_sum: self.policy.accumulate == Accumulate::F32 || !rounds || self.keeps_sum[idx],
                is_number: graph.value(record.first_result).n_elements == 1,
            };
            self.assign(node, decide(&facts));
        }
    }

    /// Whether a way between two products may go through a node.
    fn passes(&self, node: NodeId) -> bool {
        self.graph.node(node).passes() && !self.ends.blocked[node as usize]
    }

    fn below(&self, is_narrow_read: &[bool]) -> Vec<Option<NodeId>> {
        let graph = self.graph;
        let mut below: Vec<Option<NodeId>> = vec![None; graph.nodes.len()];
        for (node, record) in (0..).zip(&graph.nodes) {
            let product = graph.makers(node).find_map(|maker| {
                let before = below[maker as usize].filter(|_| self.passes(maker));
                if graph.node(maker).is_product() { Some(maker) } else { before }
            });
            let reads_state = record.reads(is_narrow_read);
            below[node as usize] = product.or(reads_state.then_some(node));
        }
        below
    }

    /// For each node a product that is computed from it, or the node that stores it in the narrow dtype.
    fn above(&self) -> Vec<Option<NodeId>> {
        let graph = self.graph;
        let stores = |node: NodeId, value: ValueId| {
            let is_filled = self.out.rule[node as usize] == Rule::Filled;
            is_filled || self.out.is_narrow_state(graph, node, value) || self.adds_rows(node, value)
        };
        // A narrow result of a branch is materialised for its caller.
        let is_given = |value: ValueId| self.out.is_narrow_result(graph, value) && filled(graph, value).is_none();
        let mut above: Vec<Option<NodeId>> = vec![None; graph.nodes.len()];
        for node in self.graph.node_ids().rev() {
            let results = || graph.node(node).results();
            let mut reads =
                results().flat_map(|value| graph.users[value as usize].iter().map(move |&user| (value, user)));
            let product = reads.find_map(|(value, user)| {
                let behind = above[user as usize].filter(|_| self.passes(user));
                if graph.node(user).is_product() || stores(user, value) { Some(user) } else { behind }
            });
            above[node as usize] = product.or(results().any(is_given).then_some(node));
        }
        above
    }

    /// Whether a node adds the rows in `value` to a table with narrow rows.
    fn adds_rows(&self, node: NodeId, value: ValueId) -> bool {
        self.policy.tables == Boundary::Lower && tiles::adds_rows(self.graph, self.classes, node, value)
    }

    /// The decision on an op of class deny or clear between two products, if a compiler materialises its result.
    fn stored(&self, node: NodeId, above: Option<NodeId>, is_of_products: bool) -> Option<Decision> {
        let (idx, record) = (node as usize, self.graph.node(node));
        let below = self.below[idx];
        let leads_to_end = self.ends.leads_to_loss[idx] || self.ends.leads_to_result[idx];
        let is_free = !self.is_needed(node);
        let is_sum = self.policy.moved == Boundary::Lower && is_of_products && !leads_to_end;
        // The angle that a product computed has no absolute precision to lose.
        let is_turn = amplification(self.graph.op(node)) == Amplification::Angle
            && record.because == Because::Op
            && self.policy.reach == Reach::Between;
        let is_windowed = || is_sum_over_windows(self.graph, self.classes, node);
        match record.class()? {
            Class::Clear if is_stored(self.graph.instr(record)) && self.is_moved(node) => {
                Some(Decision::narrow(Rule::Moved, above))
            }
            Class::Deny { .. } if is_free && is_sum && is_windowed() => Some(Decision::narrow(Rule::Summed, below)),
            Class::Deny { .. } if is_free && is_turn => Some(Decision::narrow(Rule::Between, below)),
            Class::Deny { .. } if self.is_summand(node) => Some(Decision::rounded(Rule::RoundedOnce, below)),
            _ => None,
        }
    }

    /// Whether a sum and another op read a node's result, so that a compiler materialises it. In f16 it may be
    /// infinite.
    fn is_summand(&self, node: NodeId) -> bool {
        let (graph, record) = (self.graph, self.graph.node(node));
        let readers = &graph.users[record.first_result as usize];
        is_stored_beside_sum(graph.op(node))
            && self.policy.moved == Boundary::Lower
            && graph.low == DType::BF16
            && record.because == Because::Op
            && self.needs.of_node[node as usize].is_none()
            && readers.len() > 1
            && readers.iter().any(|&reader| matches!(graph.op(reader), Op::Reduce { .. }))
    }

    fn assign(&mut self, node: NodeId, decision: Decision) {
        let Decision { is_low, is_narrow, rule, from } = decision;
        self.out.low[node as usize] = is_low;
        self.out.rule[node as usize] = rule;
        self.out.from[node as usize] = from.filter(|&from| from != node);
        for value in self.graph.node(node).results() {
            self.out.value_low[value as usize] = is_narrow && self.graph.value(value).is_f32();
        }
    }

    /// Finds where lowered values, and those that are f32 for the loss, are stored, and decides again for these.
    fn find_storage(&mut self) {
        self.assign_all(fused(self));
        self.assign_all(elementwise(self.graph, &self.out, &self.needs.is_input));
        self.assign_all(shifted_exponents(self.graph, &self.out));
        self.assign_all(materialised(self.graph, &self.out, self.kind, &self.ends.leads_to_loss_by_product));
    }

    fn assign_all(&mut self, decisions: Vec<(NodeId, Decision)>) {
        for (node, decision) in decisions {
            let before = self.dtypes(node);
            self.assign(node, decision);
            debug_assert!(!decision.is_low, "{node} computes in the narrow dtype for where it is stored");
            let is_changed = self.dtypes(node) != before;
            debug_assert!(!is_changed || !self.is_final[node as usize], "{node} is decided a third time");
            self.is_final[node as usize] |= is_changed;
        }
    }

    /// Whether a node's operands are narrow, and its first result.
    fn dtypes(&self, node: NodeId) -> [bool; 2] {
        let first = self.graph.node(node).first_result as usize;
        [self.out.low[node as usize], self.out.value_low[first]]
    }

    /// Applies the policy's decisions on single nodes, whatever surrounds them.
    fn decide_single(&mut self) {
        for (node, record) in (0..).zip(&self.graph.nodes) {
            let is_one = record.n_results == 1 && self.graph.value(record.first_result).is_f32();
            let decision = match record.decided.filter(|_| is_one && record.is_soft()) {
                Some(StoredAs::Narrow) => Decision::narrow(Rule::Decided, None),
                Some(StoredAs::Rounded) => Decision::rounded(Rule::Decided, None),
                _ => continue,
            };
            self.assign(node, decision);
        }
    }

    /// Applies the rules for the memory layout of a TPU.
    fn fit_tiles(&mut self) {
        let (graph, classes) = (self.graph, self.classes);
        if self.policy.tables == Boundary::Lower {
            for node in tiles::rows(graph, &self.out, classes) {
                self.store_narrow(node, false, Rule::RoundedOnce);
            }
            for node in tiles::sums_of_rows(graph, &self.out, classes) {
                self.store_narrow(node, true, Rule::Summed);
            }
            self.lower_clear();
            for node in tiles::lookups(graph, &self.out, self.kind) {
                self.out.rule[node as usize] = Rule::Lookup;
            }
        }
        if self.policy.logits == Boundary::Lower {
            for (add, sum) in tiles::logits(graph, &self.out, classes, self.kind, self.loops) {
                self.store_narrow(add, true, Rule::Logits);
                self.store_narrow(sum, true, Rule::Summed);
                // The bias is broadcast for it.
                for &value in &graph.node(add).operands {
                    let mut maker = graph.producer(value);
                    while self.lower_where_read_narrow(maker)
                        && let Some(&operand) = graph.node(maker).operands.first()
                    {
                        maker = graph.producer(operand);
                    }
                }
            }
        }
        if self.policy.moved == Boundary::Lower {
            self.out.parts = tiles::sums_of_parts(graph, &self.out, classes);
            self.out.parts.keys().for_each(|&node| self.out.rule[node as usize] = Rule::SumOfParts);
        }
    }

    /// Stores a node's result in the narrow dtype, computed in it or in f32.
    fn store_narrow(&mut self, node: NodeId, is_low: bool, rule: Rule) {
        self.out.rule[node as usize] = rule;
        self.out.low[node as usize] |= is_low;
        self.lower_results(node);
    }

    fn lower_results(&mut self, node: NodeId) {
        for value in self.graph.node(node).results() {
            self.out.value_low[value as usize] |= self.graph.value(value).is_f32();
        }
    }

    /// The last step: operands of the border of a body that runs on each device (`shard_map`) are f32 where they are
    /// computed, because the border takes f32 and no cast may stand before it.
    fn keep_borders(&mut self) {
        let graph = self.graph;
        let borders = graph.nodes.iter().filter(|border| is_body_border(&graph.instr(border).op));
        for &value in borders.flat_map(|border| &border.operands) {
            let node = graph.producer(value);
            if !graph.value(value).is_f32() || !self.out.value_low[value as usize] {
                continue;
            }
            self.out.value_low[value as usize] = false;
            if graph.node(node).passes() {
                self.out.low[node as usize] = false;
                self.out.rule[node as usize] = Rule::Result;
            }
        }
    }
}
