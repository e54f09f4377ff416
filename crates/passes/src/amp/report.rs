//! The lowering report: the decision on each instruction and the inserted casts, for display and as JSON.
//!
//! A second look at the roundings that a policy asked for: those that are likely to hurt accuracy.
//!
//! The default policy leaves some values f32 for their consumers: a choice, a recurrence, a sine, a decomposition, a
//! cancellation. If another policy rounds one of these, or an f32 sum that one reads, the report names it, and how to
//! keep it f32.
//!
//! # Alternatives
//!
//! The other forms in which a value could be stored without an additional rounding.
//!
//! The rules infer from the form of a program what is materialised, and a compiler may do otherwise. So the search
//! over compiled forms may try others, if they cost no accuracy. An alternative never rounds a value that the rules
//! leave f32 for a consumer: a rounded value stays f32, or is rounded elsewhere on its way to consumers that all read
//! it rounded; and data movement may move rounded values before they are converted back to f32.

use super::assignment::Assignment;
use super::dataflow::{Dataflow, FrameId, Node, NodeId, NodeKind, ValueId};
use super::decided::StoredAs;
use super::decision::{Need, Rule};
use super::frame::Origin;
use super::loss::TakenLoss;
use super::policy::{Because, Boundary, Policy, Reach};
use crate::PassError;
use crate::name_pattern::bare;
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::{DType, InstrId, Module, Op, Shape};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The decision on one instruction of the original, for one copy of it in the lowered module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Decision {
    /// The computation of the lowered module that holds it.
    pub computation: String,
    /// Its name in the original.
    pub instruction: String,
    /// Its scoped name, if it has one.
    pub op_name: String,
    /// Its opcode.
    pub opcode: String,
    /// `allow`, `infer`, `clear`, `deny`, `island`; `source` for parameters, constants and conversions, `fixed` for an
    /// op that cannot be retyped.
    pub class: &'static str,
    /// The dtype of its first f32 array before.
    pub old: String,
    /// The dtype of that array now.
    pub new: String,
    /// Whether it computes in the narrow dtype now, or rounds its result to it. A product may compute so with an f32 result.
    pub is_lowered: bool,
    /// The reason, in words.
    pub rule: String,
    /// The instruction that the decision spread from.
    pub from: Option<String>,
    /// The other forms in which its value could be stored without an additional rounding.
    #[serde(skip)]
    pub alternatives: Vec<StoredAs>,
    /// Why a consumer needs its result in f32, and the name of that consumer.
    #[serde(skip)]
    pub(super) need: Option<(Need, String)>,
    /// Whether it reads the narrow dtype.
    #[serde(skip)]
    pub(super) reads_low: bool,
    /// Bytes of its result before.
    pub n_bytes_before: i64,
    /// The same now.
    pub n_bytes_after: i64,
}

/// A conversion that lowering inserted, or a constant or broadcast that it repeated in another dtype.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Cast {
    /// Its computation.
    pub computation: String,
    /// Its name.
    pub instruction: String,
    /// Its opcode: `convert`, or `constant` and `broadcast` where folding made one.
    pub opcode: String,
    /// The instruction whose value it has.
    pub of: String,
    /// The dtype of its result.
    pub to: String,
    /// Its number of elements.
    pub n_elements: i64,
    /// The first instruction that needed it.
    pub wanted_by: String,
}

/// Values that are rounded although a consumer amplifies the error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Hurt {
    /// The first of these instructions, by name.
    pub instruction: String,
    /// Its opcode.
    pub opcode: String,
    /// The number of such values with the same reason and consumer.
    pub n: usize,
    /// The consumer that amplifies the error, if it is a different instruction.
    pub read_by: Option<String>,
    /// The reason, in words that fit behind "although".
    pub why: String,
    /// How to keep them f32.
    pub remedy: String,
}

impl Hurt {
    /// The warning as text.
    pub fn sentence(&self) -> String {
        let Hurt { instruction, opcode, n, read_by, why, remedy } = self;
        let others = match n {
            1 => String::new(),
            2 => " and one more value".to_string(),
            n => format!(" and {} more values", n - 1),
        };
        let reader = read_by.as_ref().map(|reader| format!(" (%{reader})")).unwrap_or_default();
        format!("the policy rounds %{instruction} ({opcode}){others}, although {why}{reader}\nhelp: {remedy}")
    }
}

/// How many instructions of one opcode were lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Total {
    /// How many compute in the narrow dtype now.
    pub lowered: usize,
    /// How many stayed as they were.
    pub kept: usize,
}

/// The report of lowering a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LoweringReport {
    /// The policy.
    pub policy: Policy,
    /// A decision on every instruction that reads or computes f32.
    pub decisions: Vec<Decision>,
    /// The inserted instructions.
    pub casts: Vec<Cast>,
    /// Totals by opcode.
    pub totals: BTreeMap<String, Total>,
    /// Bytes of all results except those of parameters, constants and tuples: what is computed, not what a compiler
    /// materialises.
    pub n_activation_bytes_before: i64,
    /// The same now, without the casts.
    pub n_activation_bytes_after: i64,
    /// Bytes of the casts' results.
    pub n_cast_bytes: i64,
    /// The results that are treated as losses.
    pub losses: Vec<TakenLoss>,
    /// Roundings that the policy asked for and that are likely to hurt accuracy.
    pub hurts: Vec<Hurt>,
    /// Further notes for the user.
    pub notes: Vec<String>,
}

impl LoweringReport {
    /// The decisions on the instruction of this name, in every copy of its computation.
    pub fn explain(&self, instruction: &str) -> Vec<&Decision> {
        let name = bare(instruction);
        self.decisions.iter().filter(|decision| decision.instruction == name).collect()
    }

    /// Casts of the value of the instruction of this name, those that it needed first, and the cast of that name.
    pub fn casts_about(&self, instruction: &str) -> Vec<&Cast> {
        let name = bare(instruction);
        let concerns = |cast: &&Cast| cast.of == name || cast.wanted_by == name || cast.instruction == name;
        self.casts.iter().filter(concerns).collect()
    }

    /// The number of instructions that compute in the narrow dtype now.
    pub fn n_lowered(&self) -> usize {
        self.totals.values().map(|total| total.lowered).sum()
    }
}

/// The decisions of one frame.
pub(super) fn decisions(
    graph: &Dataflow<'_>,
    assignment: &Assignment,
    frame: FrameId,
    policy: &Policy,
) -> Vec<Decision> {
    let frame_ref = &graph.frames[frame as usize];
    let nodes = frame_ref.nodes.iter().zip(0u32..);
    nodes.filter_map(|(node, idx)| decision(graph, assignment, (frame, InstrId(idx)), (*node)?, policy)).collect()
}

fn decision(
    graph: &Dataflow<'_>,
    assignment: &Assignment,
    (frame, id): (FrameId, InstrId),
    node: NodeId,
    policy: &Policy,
) -> Option<Decision> {
    let record = graph.node(node);
    if !record.operands.iter().copied().chain(record.results()).any(|value| graph.value(value).is_f32()) {
        return None;
    }
    let frame = &graph.frames[frame as usize];
    let (instr, values) = (graph.module.comp(frame.comp).instr(id), &frame.values[id.idx()]);
    let is_low = assignment.low[node as usize];
    let gives_low = |value: &ValueId| !record.gives_f32 && assignment.value_low[*value as usize];
    let new = instr.shape.with_dtype(DType::F32, graph.low, |leaf| values.get(leaf).is_some_and(gives_low));
    let leaves = instr.shape.leaves();
    let place = leaves.iter().position(|leaf| leaf.dtype() == Some(DType::F32)).unwrap_or(0);
    let dtype = |shape: &Shape| shape.leaves().get(place).and_then(|leaf| leaf.dtype());
    let (old_dtype, new_dtype) = (dtype(&instr.shape), dtype(&new));
    let in_words = |dtype: Option<DType>| dtype.map(|dtype| dtype.to_string()).unwrap_or_default();
    let mut rule = sentence(record, assignment.rule[node as usize]);
    if let Some(form) = record.decided {
        rule = decided_rule(rule, form, policy, &instr.name);
    }
    if record.gives_f32 && is_low {
        rule += "; it gives f32, as a partitioner sums over devices in the dtype that the op gives";
    }
    let name = |node: NodeId| graph.instr(graph.node(node)).name.clone();
    let from = assignment.from[node as usize];
    let need = match assignment.rule[node as usize] {
        Rule::Needed(need) => Some((need, from.unwrap_or(node))),
        _ => assignment.needed[node as usize],
    };
    Some(Decision {
        computation: String::new(),
        instruction: instr.name.clone(),
        op_name: instr.metadata.op_name.clone(),
        opcode: instr.op.opcode().into_owned(),
        class: match &record.kind {
            NodeKind::Op(class) => class.name(),
            NodeKind::Fixed(_) => "fixed",
            _ => "source",
        },
        is_lowered: new_dtype != old_dtype || is_low && old_dtype == Some(DType::F32),
        old: in_words(old_dtype),
        new: in_words(new_dtype),
        rule,
        from: from.map(name),
        alternatives: alternatives(graph, assignment, node),
        need: need.map(|(need, at)| (need, name(at))),
        reads_low: is_low,
        n_bytes_before: instr.shape.n_bytes(),
        n_bytes_after: new.n_bytes(),
    })
}

/// The rule of an instruction on which the policy decides, with the rule of the pass if that agrees.
fn decided_rule(rule: String, form: StoredAs, policy: &Policy, instruction: &str) -> String {
    let because = policy.decided.iter().find(|decided| decided.instruction == instruction);
    let because = because.map(|decided| &decided.because[..]).filter(|because| !because.is_empty());
    let because = because.map(|because| format!(": {because}")).unwrap_or_default();
    let rule = if rule.is_empty() { rule } else { format!("{rule}; ") };
    format!("{rule}the policy decides its form, {}{because}", form.words())
}

/// The rule in words that fit behind "because".
fn sentence(record: &Node, rule: Rule) -> String {
    let class = match &record.because {
        Because::Op => "",
        Because::Exact => ", and rounds none of an operand that comes of no parameter",
        Because::Listed => " (the policy lists it)",
        Because::Policy(why) => return why.clone(),
    };
    let why = match (&record.kind, rule) {
        (NodeKind::Parameter, _) => "parameters keep their types, unless the policy lowers those of the entry",
        (NodeKind::Op(Class::Deny { why, .. }) | NodeKind::Fixed(why), Rule::Denied | Rule::Fixed) => why,
        _ => rule.why(),
    };
    let is_by_class = matches!(rule, Rule::Denied | Rule::Fixed | Rule::Allowed | Rule::Between | Rule::Reach);
    format!("{why}{}", if is_by_class { class } else { "" })
}

/// The reasons that a [`Decision::rule`] may begin with, by name of the rule, except those of ops that are always f32.
pub fn reasons() -> Vec<(String, String)> {
    let needs = Need::REASONS.iter().copied().map(Rule::Needed);
    let rules = Rule::REASONS.iter().copied().chain(needs);
    rules.map(|rule| (format!("{rule:?}"), rule.why().to_string())).collect()
}

/// The part of the report about one computation of the lowered module.
#[derive(Debug, Default)]
pub(super) struct ComputationReport {
    /// The decisions on instructions of the original.
    pub decisions: Vec<Decision>,
    /// The origin of each instruction; empty for a computation that did not change.
    pub origins: Vec<Origin>,
}

/// The report on a finished module; `parts` has one entry per computation.
pub(super) fn report(policy: &Policy, module: &Module, parts: Vec<ComputationReport>) -> LoweringReport {
    let mut report = LoweringReport { policy: policy.clone(), ..LoweringReport::default() };
    for (computation, part) in module.computations.iter().zip(parts) {
        for mut decision in part.decisions {
            decision.computation.clone_from(&computation.name);
            if !matches!(decision.opcode.as_str(), "parameter" | "constant") {
                let total = report.totals.entry(decision.opcode.clone()).or_default();
                total.lowered += usize::from(decision.is_lowered);
                total.kept += usize::from(!decision.is_lowered);
                report.n_activation_bytes_before += decision.n_bytes_before;
                report.n_activation_bytes_after += decision.n_bytes_after;
            }
            report.decisions.push(decision);
        }
        for (instr, origin) in computation.instructions.iter().zip(part.origins) {
            let Origin::Cast { of, wanted_by } = origin else { continue };
            let shape = instr.shape.as_array();
            if !matches!(instr.op, Op::Constant(_)) {
                report.n_cast_bytes += instr.shape.n_bytes();
            }
            report.casts.push(Cast {
                computation: computation.name.clone(),
                instruction: instr.name.clone(),
                opcode: instr.op.opcode().into_owned(),
                of,
                to: shape.map(|array| array.dtype.to_string()).unwrap_or_default(),
                n_elements: shape.map_or(0, |array| array.n_elements()),
                wanted_by,
            });
        }
    }
    report
}

/// The values that a policy rounds though the default leaves them f32 for a consumer, in the order of the module.
///
/// # Errors
/// The errors of lowering by the default policy.
pub(super) fn hurts(module: &Module, policy: &Policy, report: &LoweringReport) -> Result<Vec<Hurt>, PassError> {
    let Policy { dtype, keep, losses, data, decided, min_elements, sums, .. } = policy.clone();
    let usual = Policy { dtype, keep, losses, data, decided, min_elements, sums, ..Policy::default() };
    if usual == *policy || policy.reach == Reach::None || report.n_lowered() == 0 {
        return Ok(Vec::new());
    }
    let (_, usual) = super::lowered(module, &usual)?;
    let needed = usual.decisions.iter().filter(|decision| decision.need.is_some() && decision.new == decision.old);
    let needed: BTreeMap<&str, &Decision> = needed.map(|decision| (&decision.instruction[..], decision)).collect();
    let (readers, usual_readers) = (low_readers(report), low_readers(&usual));
    let mut hurts: Vec<Hurt> = Vec::new();
    for decision in &report.decisions {
        let Some(usual) = needed.get(&decision.instruction[..]) else { continue };
        let Some((need, reader)) = &usual.need else { continue };
        let is_rounded = decision.new != decision.old || decision.is_lowered && !usual.is_lowered;
        // A loop or a branch keeps the types at its border, whatever is rounded within and behind.
        let runs_regions = matches!(&decision.opcode[..], "while" | "conditional");
        let is_read_low = runs_regions && readers.contains(&reader[..]) && !usual_readers.contains(&reader[..]);
        if !(is_rounded || is_read_low) {
            continue;
        }
        let read_by = Some(reader.clone()).filter(|reader| *reader != decision.instruction);
        let why = need.why();
        if let Some(hurt) = hurts.iter_mut().find(|hurt| hurt.why == why && hurt.read_by == read_by) {
            hurt.n += 1;
            continue;
        }
        hurts.push(Hurt {
            instruction: decision.instruction.clone(),
            opcode: decision.opcode.clone(),
            n: 1,
            read_by,
            why: why.to_string(),
            remedy: remedy(*need, policy, decision, is_rounded),
        });
    }
    Ok(hurts)
}

/// The names of instructions that read the narrow dtype.
fn low_readers(report: &LoweringReport) -> BTreeSet<&str> {
    let readers = report.decisions.iter().filter(|decision| decision.reads_low);
    readers.map(|decision| &decision.instruction[..]).collect()
}

/// How to keep such a value f32.
fn remedy(need: Need, policy: &Policy, decision: &Decision, is_rounded: bool) -> String {
    let name = &decision.instruction;
    if need == Need::Choice && policy.choices == Boundary::Lower {
        format!("`choices: keep` in a policy leaves all scores f32, --keep '{name}' this one")
    } else if is_rounded {
        format!("--keep '{name}' leaves it f32; the policy `default` leaves all such values")
    } else {
        "the policy `default` leaves all such values f32, and the steps that add them up".to_string()
    }
}

/// The other forms in which a node's result could be stored without an additional rounding.
pub(super) fn alternatives(graph: &Dataflow<'_>, assignment: &Assignment, node: NodeId) -> Vec<StoredAs> {
    let record = graph.node(node);
    let (value, class) = (record.first_result, record.class());
    let readers = &graph.users[value as usize];
    let is_open = record.n_results == 1
        && class.is_some()
        && !record.gives_f32
        && graph.value(value).is_f32()
        && !readers.is_empty()
        && record.decided.is_none()
        && record.because == Because::Op
        && !matches!(graph.op(node), Op::Broadcast { .. });
    if !is_open {
        return Vec::new();
    }
    let is_rounded = |&operand: &ValueId| assignment.value_low[operand as usize];
    if *graph.op(node) == Op::Reshape {
        // The slice that a step of a loop reads: a compiler lays it out as the step's own ops want it, with the dimension
        // of size 1 along the lanes, unless a barrier is behind the reshape.
        let is_slice = graph.makers(node).all(|maker| matches!(graph.op(maker), Op::DynamicSlice { .. }));
        return if is_slice && is_rounded(&value) { vec![StoredAs::Barrier] } else { Vec::new() };
    }
    if is_rounded(&value) {
        let wide = Some(StoredAs::F32).filter(|_| !record.is_product());
        return wide.into_iter().chain([StoredAs::Barrier]).collect();
    }
    let takes_narrow = |&reader: &NodeId| {
        let is_cast = graph.node(reader).kind == NodeKind::ToLow;
        is_cast || assignment.low[reader as usize] || assignment.is_narrow_state(graph, reader, value)
    };
    let is_read_narrow = readers.iter().all(takes_narrow) && !graph.is_result[value as usize];
    let floats = || record.operands.iter().filter(|&&operand| graph.value(operand).is_f32());
    let moves_rounded = record.is_clear()
        && floats().any(is_rounded)
        && floats().all(|operand| is_rounded(operand) || graph.value(*operand).is_exact);
    // Rounding commutes with an op of class clear, so the cast moves above the op, or below it.
    let form = if record.is_clear() { StoredAs::Narrow } else { StoredAs::Rounded };
    let is_other = record.is_soft() && !assignment.low[node as usize] && (is_read_narrow || moves_rounded);
    Some(form).filter(|_| is_other).into_iter().collect()
}
