//! Which nodes of a region compute in the narrow dtype, and which rule decided it.
//!
//! The rules run in this order over the values of [`Dataflow`]:
//! 1. What reaches a result without passing an allowed op is denied, unless the policy lowers it. If the result is a
//!    scalar of the entry, the loss, every path counts, and the denial spreads; to other results of the region, only
//!    paths through ops of class infer and clear count. So losses and updates of parameters and optimizer state are
//!    f32, even where several steps were unrolled into one module.
//!    `loss` says which scalars are losses. And what `needs` says that its readers need stays f32: such as products whose
//!    results are scores of choices that the program computes on with, and what is computed from them up to the choice.
//! 2. *Deny* spreads, where the policy says so, and from the loss always: what is computed from a spreading denied op
//!    through ops of class infer and clear is denied too, up to the next allowed op. So a softmax is f32 from its
//!    exponential on, and so is its gradient, while the backward dots that read that gradient are lowered. It ends where it
//!    is added to what was computed from a product, as where a gradient that comes from the loss meets one that comes
//!    through layers; but not within the loss, as where the sum goes on through a softmax's gradient (`functions`). And it
//!    ends where what leads to the loss is applied to a product's array on the way to the next product, as a flow's scales.
//! 3. Ops of class *allow* are lowered.
//! 4. Ops of class *infer* that are not denied are lowered if they lie between two allowed ops: downstream of one and
//!    upstream of another, through ops that are not denied or denied without spreading. A loop counts as one for the
//!    arrays that it fills or reads slice by slice, or carries between products (`loops`, `crossings`), and so do rows that are
//!    added to a table with narrow rows (`tables`). What is moved and stored between two (`moved`) is lowered, too, and so
//!    are sines and cosines there, which are always f32 elsewhere, and sums over windows of few numbers; other sums of few
//!    are rounded there. Of the others, `unstored` takes back those whose values need not be stored, unless the policy lowers
//!    them; and `stored` rounds what is stored of what step 1 denied. Then single nodes get the forms that were decided for
//!    them.
//! 5. Ops of class *clear* commute with rounding, so they are lowered exactly where that adds no error: where all their
//!    readers read the narrow dtype (the cast moves up, unless that makes it larger), or where their operands are
//!    narrow already (the cast back moves down, unless that makes it larger). What is moved and stored is lowered where
//!    any reader reads the narrow dtype. A barrier that holds a parameter back is left.
//! 6. `tables` finds what becomes of tables with narrow rows, unless the policy keeps them: sums of rows are lowered, and
//!    lookups marked. What other lookups give is rounded, though all that reads it is f32, unless the policy keeps what is
//!    moved.
//! 7. `logits` finds logits that are as large as any parameter, unless the policy keeps them or a loop with products
//!    reads their gradient: they are rounded, and the sum that is their bias's gradient is lowered. What reads them reads f32 as
//!    before.
//! 8. `parts` finds sums in f32 of narrow concatenations, unless the policy keeps what is moved.
//!
//! TensorFlow's `auto_mixed_precision` lowers allowed ops before it spreads denial, which gives the same: neither rule
//! touches the other's ops. Nor does it need step 1, because it denies loss and optimizer ops outright; it has neither
//! choices, the second half of step 4 nor steps 6 to 8, and in step 5 it lowers whatever is connected.

mod casts;

use super::branches::Branch;
use super::crossings::Around;
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::decided::StoredAs;
use super::functions::meets_functions;
use super::loops::{Loop, filled};
use super::moved::{is_of_parameter, is_stored, is_sum_of_rows, is_sum_over_windows, moved, pads_windows, sums_of_few};
use super::need::Need;
use super::needs::Needs;
use super::painted::{Crossing, Ends, Painted, RegionKind, Rule};
use super::policy::{Accumulate, Because, Boundary, Classes, Policy, Reach};
use super::polynomials::polynomials;
use super::range::{beyond, is_guard};
use super::stored::stored;
use super::sums::keeps_sum;
use super::unstored::{Unstored, unstored};
use super::{logits, loss, parts, tables};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::is_body_border;
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use std::collections::BTreeMap;

/// Paints a region.
///
/// `crossing` says which arrays of a loop's state are narrow, where the region is its body or condition; `loops` what the
/// loops of the region do with theirs; `decides` which nodes make scores of choices.
pub(super) fn paint(
    graph: &Dataflow<'_>,
    classes: &Classes<'_>,
    kind: RegionKind,
    crossing: &Crossing,
    loops: &BTreeMap<NodeId, Loop>,
    branches: &BTreeMap<NodeId, Vec<Branch>>,
    needs: &Needs,
) -> Painted {
    let policy = classes.policy();
    let n = graph.nodes.len();
    let spreads_of = |node: &Node| matches!(node.class(), Some(Class::Deny { spreads: true, .. }));
    let spreads: Vec<bool> = graph.nodes.iter().map(spreads_of).collect();
    let mut painter = Painter {
        graph,
        classes,
        policy,
        kind,
        out: Painted::new(graph.nodes.iter().map(initial_rule).collect(), graph.values.len(), beyond(graph)),
        loops,
        branches,
        is_narrow_read: vec![false; graph.values.len()],
        moved: moved(graph),
        blocked: spreads.clone(),
        spreads,
        ends: Ends {
            is_result: graph.is_result.clone(),
            leads_to_loss: vec![false; n],
            leads_to_result: vec![false; n],
        },
        decides: needs.of_node.iter().map(|need| need.map(|(_, at)| at)).collect(),
        needs,
        keeps_sum: Vec::new(),
    };
    painter.parameters();
    painter.state(crossing);
    painter.keeps_sum = match (kind, policy.results) {
        (RegionKind::Entry, Boundary::Keep) => keeps_sum(graph, &painter.ends.is_result),
        _ => keeps_sum(graph, &vec![false; graph.values.len()]),
    };
    painter.keeps_sum.iter_mut().zip(&needs.sums).for_each(|(keeps, &is_needed)| *keeps |= is_needed);
    if policy.reach == Reach::None {
        for (rule, node) in painter.out.rule.iter_mut().zip(&graph.nodes) {
            if matches!(node.class(), Some(Class::Allow | Class::Infer | Class::Clear)) {
                *rule = Rule::Off;
            }
        }
    } else {
        painter.keep_what_leads_to_results();
        painter.keep_what_decides();
        painter.spread_denial();
        painter.lower_products();
        painter.lower_between();
        if policy.unstored == Boundary::Keep {
            for found in polynomials(graph, &painter.out) {
                painter.keep(found);
            }
            let stores_row = |node: NodeId, value: ValueId| {
                policy.tables == Boundary::Lower && tables::adds_rows(graph, classes, node, value)
            };
            for found in unstored(graph, &painter.out, &stores_row) {
                painter.keep(found);
            }
            for node in stored(graph, &painter.out, kind) {
                painter.out.rule[node as usize] = Rule::Stored;
                painter.lower_results(node);
            }
        }
        painter.decide();
        painter.lower_clear();
        if policy.tables == Boundary::Lower {
            painter.tables();
        }
        if policy.moved == Boundary::Lower {
            painter.lookups();
        }
        if policy.logits == Boundary::Lower {
            painter.logits();
        }
        if policy.moved == Boundary::Lower {
            for node in parts::sums(graph, &painter.out, classes) {
                painter.out.rule[node as usize] = Rule::SumOfParts;
            }
        }
    }
    painter.borders();
    painter.out
}

fn initial_rule(node: &Node) -> Rule {
    match &node.kind {
        NodeKind::Op(Class::Allow | Class::Infer) => Rule::OutOfReach,
        NodeKind::Op(Class::Clear) => Rule::WouldRound,
        NodeKind::Op(Class::Deny { .. }) => Rule::Denied,
        NodeKind::Op(Class::NotFloat) | NodeKind::Fixed(_) => Rule::Fixed,
        NodeKind::Constant
        | NodeKind::FromLow
        | NodeKind::FromExact
        | NodeKind::ToLow
        | NodeKind::FromF32
        | NodeKind::Parameter => Rule::Source,
    }
}

struct Painter<'g> {
    graph: &'g Dataflow<'g>,
    classes: &'g Classes<'g>,
    policy: &'g Policy,
    kind: RegionKind,
    out: Painted,
    /// What the region's loops do with their state.
    loops: &'g BTreeMap<NodeId, Loop>,
    branches: &'g BTreeMap<NodeId, Vec<Branch>>,
    /// For each node whether it moves values that are stored.
    moved: Vec<bool>,
    /// Values of the region's own state that are narrow, and read slice by slice.
    is_narrow_read: Vec<bool>,
    /// Denied, and so is what is computed from it.
    spreads: Vec<bool>,
    /// Neither lowered nor a way from one allowed op to another.
    blocked: Vec<bool>,
    ends: Ends,
    /// For each node the one whose need it is f32 for, such as a discrete choice that it makes scores for.
    decides: Vec<Option<NodeId>>,
    /// What is f32 for what reads it.
    needs: &'g Needs,
    /// For each node whether it is a product whose f32 sum is kept.
    keeps_sum: Vec<bool>,
}

impl Painter<'_> {
    fn is(&self, node: NodeId, class: Class) -> bool {
        self.graph.node(node).class() == Some(class)
    }

    fn is_soft(&self, node: NodeId) -> bool {
        matches!(self.graph.node(node).class(), Some(Class::Infer | Class::Clear))
    }

    fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        0..self.graph.nodes.len() as NodeId
    }

    fn users(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        self.graph.node(node).results().flat_map(|value| self.graph.users[value as usize].iter().copied())
    }

    /// The nodes that make what a node reads.
    fn producers(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        self.graph.node(node).operands.iter().map(|&value| self.graph.producer(value))
    }

    fn parameters(&mut self) {
        if self.kind == RegionKind::Entry && self.policy.parameters == Boundary::Lower {
            for node in self.graph.nodes.iter().filter(|node| node.kind == NodeKind::Parameter) {
                for value in node.results().filter(|&value| self.graph.value(value).is_f32()) {
                    self.out.value_low[value as usize] = true;
                }
            }
        }
    }

    /// Which arrays of the region's own state are narrow: its parameters, its results, and what writes these.
    fn state(&mut self, crossing: &Crossing) {
        let graph = self.graph;
        let Crossing { taken, given: state } = crossing;
        let Some(parameter) = graph.nodes.iter().find(|node| node.kind == NodeKind::Parameter) else { return };
        for (value, _) in parameter.results().zip(taken).filter(|(_, is_narrow)| **is_narrow) {
            self.out.value_low[value as usize] = true;
            self.is_narrow_read[value as usize] = true;
        }
        // A condition gives no state.
        if state.len() != graph.results.len() {
            return;
        }
        self.out.give(&graph.results, state);
        for (&result, _) in graph.results.iter().zip(state).filter(|(_, is_narrow)| **is_narrow) {
            self.ends.is_result[result as usize] = false;
            if filled(graph, result).is_some() {
                let node = graph.producer(result);
                self.is_narrow_read[graph.node(node).operands[0] as usize] = false;
                self.out.low[node as usize] = true;
                self.out.rule[node as usize] = Rule::Filled;
                self.out.value_low[result as usize] = true;
            }
        }
        for (&result, _) in graph.results.iter().zip(state).filter(|(_, is_narrow)| !**is_narrow) {
            self.ends.is_result[result as usize] = true;
        }
    }

    /// Step 1, before step 2: what the loss denies spreads.
    fn keep_what_leads_to_results(&mut self) {
        if self.policy.loss == Boundary::Lower {
            return;
        }
        let graph = self.graph;
        // From a scalar result backwards by any way, and from any result by soft nodes; up to allowed ops.
        let mut to_loss: Vec<Option<NodeId>> = vec![None; graph.nodes.len()];
        let mut to_result: Vec<Option<NodeId>> = vec![None; graph.nodes.len()];
        if self.kind == RegionKind::Entry {
            for node in loss::losses(graph).into_iter().map(|value| graph.producer(value)) {
                to_loss[node as usize].get_or_insert(node);
            }
        }
        let is_wide = |value: &&ValueId| graph.value(**value).is_f32() && self.ends.is_result[**value as usize];
        for &value in graph.results.iter().filter(is_wide) {
            let node = graph.producer(value);
            to_result[node as usize].get_or_insert(node);
        }
        for node in self.nodes().rev() {
            for user in self.users(node) {
                if self.is(user, Class::Allow) {
                    continue;
                }
                if to_loss[node as usize].is_none() {
                    to_loss[node as usize] = to_loss[user as usize];
                }
                if to_result[node as usize].is_none() && self.is_soft(user) {
                    to_result[node as usize] = to_result[user as usize];
                }
            }
        }
        for node in self.nodes() {
            let idx = node as usize;
            self.ends.leads_to_result[idx] = to_result[idx].is_some();
            if let Some(result) = to_loss[idx] {
                self.ends.leads_to_loss[idx] = true;
                match graph.node(node).class() {
                    Some(Class::Infer) => self.deny(node, Rule::Loss, result),
                    Some(Class::Deny { .. }) => {}
                    Some(Class::Allow | Class::Clear | Class::NotFloat) | None => continue,
                }
                self.spreads[idx] = true;
                self.blocked[idx] = true;
            } else if let (Some(result), true) = (to_result[idx], self.is(node, Class::Infer)) {
                self.deny(node, Rule::Result, result);
            }
        }
        // A backward pass is what allowed ops compute from the loss.
        let mut of_loss = vec![false; graph.nodes.len()];
        for node in self.nodes() {
            let reads = self
                .producers(node)
                .any(|p| of_loss[p as usize] || (to_loss[p as usize].is_some() && self.spreads[p as usize]));
            of_loss[node as usize] = reads;
            self.out.differentiates |= reads && self.is(node, Class::Allow);
        }
    }

    fn deny(&mut self, node: NodeId, rule: Rule, from: NodeId) {
        self.out.rule[node as usize] = rule;
        self.out.from[node as usize] = (from != node).then_some(from);
        self.blocked[node as usize] = true;
    }

    /// Step 1, of choices.
    fn keep_what_decides(&mut self) {
        for node in self.nodes() {
            let Some((need, at)) = self.needs.of_node[node as usize] else { continue };
            if matches!(self.graph.node(node).class(), Some(Class::Allow | Class::Infer)) {
                self.deny(node, Rule::Needed(need), at);
            }
        }
    }

    /// Step 2.
    fn spread_denial(&mut self) {
        let graph = self.graph;
        let n = graph.nodes.len();
        let mut origin: Vec<Option<NodeId>> = vec![None; n];
        let mut ends = vec![false; n];
        if !self.policy.deny_spreads {
            let of_product = self.of_products();
            let is_add = |node: NodeId| matches!(graph.instr(graph.node(node)).op, Op::Binary(BinaryOp::Add));
            let sums: Vec<bool> = self.nodes().map(|node| is_add(node) && of_product[node as usize]).collect();
            let meets_functions = meets_functions(graph, |node| sums[node as usize]);
            let feeds_layer = match self.kind {
                RegionKind::Entry => loss::leads_to_loss_by_product(graph),
                _ => vec![false; n],
            };
            let is_end = |node: usize| of_product[node] && feeds_layer[node] || sums[node] && !meets_functions[node];
            ends = (0..n).map(is_end).collect();
        }
        for node in self.nodes() {
            if ends[node as usize] {
                continue;
            }
            let reached = self.producers(node).find_map(|p| match self.spreads[p as usize] {
                true => Some(p),
                false => origin[p as usize],
            });
            let Some(from) = reached.filter(|_| self.is_soft(node)) else { continue };
            origin[node as usize] = Some(from);
            if self.is(node, Class::Infer) && self.out.rule[node as usize] == Rule::OutOfReach {
                self.deny(node, Rule::Spread, from);
            }
        }
    }

    /// For each node whether it computes on with an array, as large as its own, of a product.
    fn of_products(&self) -> Vec<bool> {
        let graph = self.graph;
        // From a product that is as large, by soft nodes.
        let mut of_product = vec![false; graph.nodes.len()];
        for node in self.nodes() {
            let goes_on = self.is_soft(node) && !self.blocked[node as usize];
            let is_product = self.is(node, Class::Allow) && self.decides[node as usize].is_none();
            of_product[node as usize] = is_product || goes_on && self.reads_whole(node, &of_product);
        }
        of_product
    }

    /// Whether a node reads something as large as what it gives that one of these nodes makes.
    fn reads_whole(&self, node: NodeId, makers: &[bool]) -> bool {
        let (graph, of) = (self.graph, self.graph.node(node));
        let n_elements = |value: ValueId| graph.value(value).n_elements;
        let n_given = of.results().map(n_elements).max().unwrap_or(0);
        of.operands.iter().any(|&value| makers[graph.producer(value) as usize] && n_elements(value) >= n_given)
    }

    /// Step 3. Products' results are narrow, but for those that step 5 decides. Of those that devices may sum, too, step 5
    /// decides, so that a gradient is not rounded behind its sum for nobody. What the loss is computed from is rounded
    /// there, because it is stored for the backward pass.
    fn lower_products(&mut self) {
        for node in self.nodes() {
            if !self.is(node, Class::Allow) || self.decides[node as usize].is_some() {
                continue;
            }
            self.out.low[node as usize] = true;
            self.out.rule[node as usize] = Rule::Allowed;
            let rounds = !self.graph.node(node).gives_f32 || self.ends.leads_to_loss[node as usize];
            if self.policy.accumulate == Accumulate::Compute && rounds && !self.keeps_sum[node as usize] {
                self.lower_results(node);
            }
        }
    }

    fn lower_results(&mut self, node: NodeId) {
        for value in self.graph.node(node).results() {
            self.out.value_low[value as usize] |= self.graph.value(value).is_f32();
        }
    }

    /// Step 4.
    fn lower_between(&mut self) {
        let graph = self.graph;
        let blocked = self.blocked.clone();
        let passes = |node: NodeId| {
            let class = graph.node(node).class();
            matches!(class, Some(Class::Infer | Class::Clear | Class::Deny { .. })) && !blocked[node as usize]
        };
        let allow = |node: NodeId| (graph.node(node).class() == Some(Class::Allow)).then_some(node);
        let mut below: Vec<Option<NodeId>> = vec![None; graph.nodes.len()];
        for node in self.nodes() {
            let found = self.producers(node).find_map(|p| allow(p).or(below[p as usize].filter(|_| passes(p))));
            let of_state = graph.node(node).operands.iter().any(|&value| self.is_narrow_read[value as usize]);
            below[node as usize] = found.or(of_state.then_some(node));
        }
        if self.policy.loops == Boundary::Lower && self.policy.reach == Reach::Between {
            let around = Around {
                graph,
                ends: &self.ends,
                below: &below,
                decides: &self.decides,
                leads_to_product: graph.leads_to_product(),
                is_needed: &self.needs.given,
                carried: self.policy.carried,
            };
            around.narrow_loops(self.loops, &mut self.out);
            around.narrow_branches(self.branches, &mut self.out);
        }
        let stores = |node: NodeId, value: ValueId| {
            let is_filled = self.out.rule[node as usize] == Rule::Filled;
            let is_state = self.out.is_narrow_state(node, value);
            let is_row = self.policy.tables == Boundary::Lower && tables::adds_rows(graph, self.classes, node, value);
            (is_filled || is_state || is_row).then_some(node)
        };
        // What a branch gives narrow, which is stored for whoever calls.
        let mut is_given = vec![false; graph.values.len()];
        for (&value, _) in graph.results.iter().zip(&self.out.narrow_results).filter(|(_, is_narrow)| **is_narrow) {
            is_given[value as usize] = filled(graph, value).is_none();
        }
        let mut above: Vec<Option<NodeId>> = vec![None; graph.nodes.len()];
        for node in self.nodes().rev() {
            let reads = graph
                .node(node)
                .results()
                .flat_map(|value| graph.users[value as usize].iter().map(move |&user| (value, user)));
            let found = { reads }.find_map(|(value, u)| {
                allow(u).or_else(|| stores(u, value)).or(above[u as usize].filter(|_| passes(u)))
            });
            let is_given = graph.node(node).results().any(|value| is_given[value as usize]);
            above[node as usize] = found.or(is_given.then_some(node));
        }
        // Of a product, by as large arrays and sums of few, so that it is no statistic.
        let mut of_array = vec![false; graph.nodes.len()];
        let sums_of_few = sums_of_few(graph, self.classes);
        for node in self.nodes() {
            let idx = node as usize;
            let is_windowed = is_sum_over_windows(graph, self.classes, node);
            let is_few = is_windowed || sums_of_few[idx];
            let goes_on = (self.is_soft(node) || is_few) && self.reads_whole(node, &of_array);
            let is_padded = pads_windows(graph, node) && self.producers(node).any(|maker| of_array[maker as usize]);
            of_array[idx] = self.is(node, Class::Allow) || goes_on || is_padded;
            let is_sum = self.policy.moved == Boundary::Lower
                && below[idx].is_some()
                && !self.ends.leads_to_loss[idx]
                && !self.ends.leads_to_result[idx]
                && is_sum_of_rows(graph, self.classes, node, above[idx].is_some());
            let is_between = below[idx].is_some() && above[idx].is_some();
            let is_move = is_between && self.is(node, Class::Clear) && is_stored(graph.instr(graph.node(node)));
            if is_move && self.is_moved(node) && !is_of_parameter(graph, node) {
                self.out.low[idx] = true;
                self.out.rule[idx] = Rule::Moved;
                self.out.from[idx] = above[idx];
                self.lower_results(node);
            }
            if is_sum {
                self.out.low[idx] = true;
                self.out.rule[idx] = Rule::MovedSum;
                self.out.from[idx] = below[idx];
                self.lower_results(node);
            }
            let is_stored_sum = self.policy.moved == Boundary::Lower
                && is_few
                && of_array[idx]
                && is_between
                && !self.ends.leads_to_loss[idx]
                && !self.ends.leads_to_result[idx];
            if is_stored_sum {
                self.out.low[idx] = is_windowed;
                self.out.rule[idx] = if is_windowed { Rule::WindowSum } else { Rule::FewTerms };
                self.out.from[idx] = below[idx];
                self.lower_results(node);
            }
            let is_angle =
                is_between && !self.is_needed(node) && self.policy.reach == Reach::Between && self.is_angle(node);
            if !(self.is(node, Class::Infer) || is_angle) || self.blocked[idx] {
                continue;
            }
            let rule = match self.policy.reach {
                Reach::None | Reach::Dots => continue,
                Reach::Between if below[idx].is_some() && above[idx].is_some() => Rule::Between,
                Reach::Between => continue,
                Reach::All => Rule::Reach,
            };
            self.out.low[idx] = true;
            self.out.rule[idx] = rule;
            self.out.from[idx] = if rule == Rule::Between { below[idx] } else { None };
            self.lower_results(node);
        }
    }

    /// Whether a node takes the sine or cosine of an angle. One that comes of a product has no absolute precision to lose, and
    /// in f32 a TPU reduces it to one turn at several times the product's cost.
    fn is_angle(&self, node: NodeId) -> bool {
        let of = self.graph.node(node);
        let is_open = matches!(of.kind, NodeKind::Op(Class::Deny { .. })) && of.because == Because::Op;
        is_open && matches!(self.graph.instr(of).op, Op::Unary(UnaryOp::Sin | UnaryOp::Cos))
    }

    /// Takes back what step 4 did; a value that is stored stays narrow.
    fn keep(&mut self, Unstored { node, from, rule }: Unstored) {
        self.out.low[node as usize] = false;
        self.out.rule[node as usize] = rule;
        self.out.from[node as usize] = from;
        let narrow = &mut self.out.value_low;
        self.graph.node(node).results().for_each(|value| narrow[value as usize] = rule == Rule::Rounded);
    }

    /// What was decided for single nodes, whatever steps 1 to 4 say of them.
    fn decide(&mut self) {
        let graph = self.graph;
        for node in self.nodes() {
            let of = graph.node(node);
            let is_open = of.n_results == 1 && graph.value(of.first_result).is_f32();
            let is_soft = matches!(of.class(), Some(Class::Infer | Class::Clear));
            let is_low = match of.decided {
                Some(StoredAs::Narrow) if is_open && is_soft => true,
                Some(StoredAs::Rounded) if is_open && is_soft => false,
                _ => continue,
            };
            self.out.low[node as usize] = is_low;
            self.out.rule[node as usize] = Rule::Decided;
            self.out.from[node as usize] = None;
            self.lower_results(node);
        }
    }

    /// Step 5, until nothing changes. Every change lowers something, so it ends.
    fn lower_clear(&mut self) {
        loop {
            let mut changed = false;
            for node in self.nodes().rev() {
                changed |= self.lower_where_read_narrow(node);
            }
            for node in self.nodes() {
                changed |= self.lower_where_of_narrow(node);
            }
            if !changed {
                return;
            }
        }
    }

    /// After steps 5 and 6: what is looked up of a parameter on its way to a product is stored, so it is rounded once where
    /// all that reads it is f32, too, as a norm. But not of a table that is read behind a barrier.
    fn lookups(&mut self) {
        let graph = self.graph;
        let leads_to_product = graph.leads_to_product();
        let is_lookup = |node: &NodeId| {
            let of = graph.node(*node);
            leads_to_product[*node as usize]
                && self.is(*node, Class::Clear)
                && matches!(graph.instr(of).op, Op::Gather(_))
                && of.decided.is_none()
                && self.out.rule[*node as usize] != Rule::Lookup
                && self.is_moved(*node)
                && is_of_parameter(graph, *node)
                && self.is_read_wide(of.first_result)
        };
        let found: Vec<NodeId> = self.nodes().filter(is_lookup).collect();
        for &node in &found {
            let takes_a_part = self.makes_cast_larger(node);
            self.out.low[node as usize] = !takes_a_part;
            self.out.rule[node as usize] = if takes_a_part { Rule::MovedPart } else { Rule::Moved };
            self.lower_results(node);
        }
        if !found.is_empty() {
            self.lower_clear();
        }
    }

    /// Whether a value is f32 for all that reads it, and for all that reads what moves it on.
    fn is_read_wide(&self, value: ValueId) -> bool {
        let graph = self.graph;
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            if self.out.value_low[value as usize] {
                return false;
            }
            for &user in &graph.users[value as usize] {
                if self.takes_narrow(value, user) {
                    return false;
                }
                if self.is(user, Class::Clear) && self.moved[user as usize] {
                    open.extend(graph.node(user).results().filter(|&value| graph.value(value).is_f32()));
                }
            }
        }
        true
    }

    /// Step 7, after all others, as no lookup is lowered for it.
    fn logits(&mut self) {
        for found in logits::logits(self.graph, &self.out, self.classes, self.kind, self.loops) {
            self.out.rule[found.add as usize] = Rule::Logits;
            self.lower_results(found.add);
            self.out.low[found.sum as usize] = true;
            self.out.rule[found.sum as usize] = Rule::Bias;
            self.lower_results(found.sum);
        }
    }

    /// After all steps: what leaves a body that each device runs on its part is f32 where it is made, as its border takes f32
    /// and no cast may stand before that.
    fn borders(&mut self) {
        let graph = self.graph;
        let borders = graph.nodes.iter().filter(|of| is_body_border(&graph.instr(of).op));
        for &value in borders.flat_map(|of| &of.operands) {
            let node = graph.producer(value);
            if !graph.value(value).is_f32() || !self.out.value_low[value as usize] {
                continue;
            }
            self.out.value_low[value as usize] = false;
            if matches!(graph.node(node).class(), Some(Class::Infer | Class::Clear | Class::Deny { .. })) {
                self.out.low[node as usize] = false;
                self.out.rule[node as usize] = Rule::Result;
            }
        }
    }

    /// Step 6.
    fn tables(&mut self) {
        for node in tables::rows(self.graph, &self.out, self.classes) {
            self.out.rule[node as usize] = Rule::Row;
            self.lower_results(node);
        }
        for node in tables::sums(self.graph, &self.out, self.classes) {
            self.out.low[node as usize] = true;
            self.out.rule[node as usize] = Rule::Rows;
            self.lower_results(node);
        }
        self.lower_clear();
        for node in tables::lookups(self.graph, &self.out, self.kind) {
            self.out.rule[node as usize] = Rule::Lookup;
        }
    }

    /// Whether a reader of a value takes it in the narrow dtype.
    fn takes_narrow(&self, value: ValueId, user: NodeId) -> bool {
        let of = self.graph.node(user);
        self.out.low[user as usize] || of.kind == NodeKind::ToLow || self.out.is_narrow_state(user, value)
    }

    fn lower_where_read_narrow(&mut self, node: NodeId) -> bool {
        let graph = self.graph;
        let of = graph.node(node);
        let floats = || of.results().filter(|&value| graph.value(value).is_f32());
        let users = || floats().flat_map(|value| graph.users[value as usize].iter().map(move |&user| (value, user)));
        let is_done = floats().next().is_none() || floats().all(|value| self.out.value_low[value as usize]);
        if is_done {
            return false;
        }
        let is_result = || floats().any(|value| self.ends.is_result[value as usize]);
        // What takes a part of what is moved rounds it all the same.
        let is_moved = self.is_moved(node);
        let rounds_part = |user: NodeId| is_moved && self.rounds_part(user);
        let takes_narrow = |(value, user): (ValueId, NodeId)| self.takes_narrow(value, user) || rounds_part(user);
        let bears =
            |(value, user): (ValueId, NodeId)| takes_narrow((value, user)) || self.compares_with_zero(user, node);
        let is_given_narrow = || floats().any(|value| self.out.is_narrow_result(value));
        let any_narrow = || (users().any(takes_narrow) || is_given_narrow()) && !is_result();
        let all_narrow = || any_narrow() && users().all(bears);
        match &of.kind {
            // A narrow result of a product, or the source of a conversion, is there for whoever wants it.
            // Not so the f32 result that was asked for.
            NodeKind::Op(Class::Allow) if self.out.low[node as usize] => {
                let is_read = if self.keeps_sum[node as usize] { all_narrow() } else { users().any(takes_narrow) };
                if !is_read {
                    return false;
                }
            }
            NodeKind::FromLow => {
                if !users().any(takes_narrow) {
                    return false;
                }
            }
            NodeKind::FromExact | NodeKind::Constant => {
                if !all_narrow() {
                    return false;
                }
            }
            NodeKind::Op(Class::Clear) if self.out.rule[node as usize] == Rule::Polynomial => return false,
            NodeKind::Op(Class::Clear) if self.is_needed(node) || is_guard(graph, node) => return false,
            NodeKind::Op(Class::Clear) => {
                if self.holds_parameter(node) {
                    self.out.rule[node as usize] = Rule::Held;
                    return false;
                }
                let is_moved = is_moved && any_narrow();
                let makes_cast_larger = self.makes_cast_larger(node);
                if !(is_moved || all_narrow()) || makes_cast_larger && all_narrow() {
                    return false;
                }
                let rule = match (all_narrow(), makes_cast_larger) {
                    (_, true) => Rule::MovedPart,
                    (true, false) => Rule::ReadNarrow,
                    (false, false) => Rule::Moved,
                };
                let from = users().next().map(|(_, user)| user);
                // What takes a part of much rounds what it takes.
                self.out.low[node as usize] = !makes_cast_larger;
                self.out.rule[node as usize] = rule;
                self.out.from[node as usize] = from;
            }
            NodeKind::Op(_) | NodeKind::ToLow | NodeKind::FromF32 | NodeKind::Parameter | NodeKind::Fixed(_) => {
                return false;
            }
        }
        self.lower_results(node);
        true
    }

    /// Whether something that is no choice needs what a node moves in f32.
    fn is_needed(&self, node: NodeId) -> bool {
        self.needs.of_node[node as usize].is_some_and(|(need, _)| need != Need::Choice)
    }

    /// Whether a node holds a parameter back, as for a backward pass that computes a layer again. That is stored as it is; a
    /// cast before would be kept for it, too.
    fn holds_parameter(&self, node: NodeId) -> bool {
        let of = self.graph.node(node);
        let is_parameter = |&value: &ValueId| {
            let is_narrow = self.out.value_low[value as usize];
            !is_narrow && self.graph.node(self.graph.producer(value)).kind == NodeKind::Parameter
        };
        self.graph.instr(of).op == Op::OptimizationBarrier && of.operands.iter().all(is_parameter)
    }

    /// Whether a node takes a part of what it reads, and that part is rounded behind it or by all that read it.
    fn rounds_part(&self, node: NodeId) -> bool {
        let results = || self.graph.node(node).results();
        let mut readers =
            results().flat_map(|value| self.graph.users[value as usize].iter().map(move |&user| (value, user)));
        let is_read = results().any(|value| !self.graph.users[value as usize].is_empty());
        let is_rounded =
            self.makes_cast_larger(node) && is_read && readers.all(|(value, user)| self.takes_narrow(value, user));
        self.out.rule[node as usize] == Rule::MovedPart || is_rounded
    }

    fn lower_where_of_narrow(&mut self, node: NodeId) -> bool {
        let graph = self.graph;
        let of = graph.node(node);
        let is_open = of.kind == NodeKind::Op(Class::Clear) && self.out.rule[node as usize] != Rule::Polynomial;
        if self.out.low[node as usize] || !is_open {
            return false;
        }
        let is_float = |v: &ValueId| graph.value(*v).is_f32();
        let is_low = |v: &ValueId| self.out.value_low[*v as usize];
        let mut floats = of.operands.iter().filter(|v| is_float(v));
        let all_free = floats.clone().all(|v| is_low(v) || graph.value(*v).is_exact);
        let grows = !self.is_moved(node) && self.elements(of.results()) > self.elements(of.operands.iter().copied());
        let Some(&narrow) = floats.find(|v| is_low(v)).filter(|_| all_free && !grows) else { return false };
        self.out.low[node as usize] = true;
        self.out.rule[node as usize] = Rule::OfNarrow;
        self.out.from[node as usize] = Some(graph.producer(narrow));
        self.lower_results(node);
        true
    }
}
