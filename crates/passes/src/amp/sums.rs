//! Products whose result is the f32 sum in which they accumulate, and those that ask for more precision than one pass.
//!
//! A product that asks for more precision may lose nothing of it with operands in the narrow dtype.
//! `operand_precision={highest}` asks that f32 operands be multiplied in full precision, at three to six times the
//! cost. `jax.image.resize` asks for it, with weights that it computes from an `iota`: they depend on no parameter, so
//! they are known here. Each element of its result is an average, with weights that are not negative and sum to one.
//! If the narrow dtype represents each weight exactly, as where sizes grow by a power of two, they lose nothing; and
//! the array that is averaged is rounded as any array between two products is. So between two products such a product
//! is treated as any other, and so is that of its gradient.
//!
//! It stays f32 if a weight would be rounded, and where it leads to a loss, to a result of a loop or a branch, or to a
//! choice. Full precision matters for products that are not averages, even with exact operands: a running sum by a
//! matrix of ones is larger than its terms, and an exponential of differences of such sums would be off by their
//! rounding.

use super::assignment::RegionKind;
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::discrete_choices;
use super::loss::{losses, of_parameters};
use super::policy::{Because, Classes};
use super::provenance::n_columns;
use super::terms::adds;
use crate::evaluate::{Numbers, evaluate};
use bf16scope_hlo::ops::decisions::{device_sum, is_placement, movement};
use bf16scope_hlo::ops::precision::{Class, DeviceSum, Movement};
use bf16scope_hlo::ops::{BinaryOp, OperandPrecision, PrecisionConfig};
use bf16scope_hlo::{CompId, DType, Literal, Op};
use std::collections::BTreeMap;

/// For each node whether it is a product whose f32 sum is kept, as rounding it would save no memory: the program asked
/// for it, by operands in the narrow dtype, or all its consumers are results, calls in f32 and f32 sums over devices or
/// over the steps of a loop.
pub(super) fn keeps_sum(
    graph: &Dataflow<'_>,
    classes: &Classes<'_>,
    kind: RegionKind,
    is_result: &dyn Fn(ValueId) -> bool,
) -> Vec<bool> {
    // Whether a node is a call, or moves data that only calls and results read, or is part of a sum over devices or
    // steps. A result may be a small part of a product; what the steps of a loop sum are all parts of it.
    let mut is_end = summed_over_devices(graph, classes);
    let is_body = kind == RegionKind::Body;
    if is_body {
        summed_over_steps(graph).for_each(|node| is_end[node as usize] = true);
    }
    let mut keeps = vec![false; graph.nodes.len()];
    for node in graph.node_ids().rev() {
        let record = graph.node(node);
        let op = &graph.instr(record).op;
        let is_call = matches!(op, Op::Opaque(_) | Op::CustomCall(_)) && !is_placement(op);
        let moves = match movement(op) {
            Movement::TakesPart => is_body,
            movement => movement == Movement::Places,
        };
        let ends = |value: ValueId| {
            let readers = &graph.users[value as usize];
            let is_read = is_result(value) || !readers.is_empty();
            is_read && readers.iter().all(|&reader| is_end[reader as usize])
        };
        let all_end = record.results().all(ends);
        is_end[node as usize] |= is_call || moves && record.is_clear() && all_end;
        let is_narrow = |&value: &ValueId| graph.value(value).dtype == Some(graph.low);
        // The results of other ops that a policy allows have the dtype of their operands.
        let may_be_wider = record.is_product() && device_sum(graph.module, op) == DeviceSum::Own;
        let is_wide = all_end || is_thin(graph, node) || record.operands.iter().all(is_narrow);
        keeps[node as usize] = may_be_wider && is_wide;
    }
    keeps
}

/// The fewest numbers that each element of a thin product adds up: in f32 it takes a sixteenth of its operand at most.
const MIN_TERMS: i64 = 32;

/// Whether a product multiplies a matrix by one column, so that its result is negligible beside the matrix: a gate, an
/// energy, the value of a state.
fn is_thin(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let Some(n_terms) = n_columns(graph, node).filter(|&n| n >= MIN_TERMS) else { return false };
    let record = graph.node(node);
    let n_elements = |value: ValueId| graph.value(value).n_elements;
    let is_matrix = |&value: &ValueId| n_elements(value) == n_elements(record.first_result).saturating_mul(n_terms);
    record.operands.iter().any(is_matrix)
}

/// The adds of a loop's body by which the loop sums an f32 array of its state over its steps, as gradients of weights.
fn summed_over_steps(graph: &Dataflow<'_>) -> impl Iterator<Item = NodeId> {
    let state = graph.parameters().zip(graph.results.iter().copied());
    state.filter_map(|(before, after)| {
        let node = graph.producer(after);
        let is_read_alone = graph.users[before as usize] == [node] && graph.users[after as usize].is_empty();
        (is_read_alone && matches!(graph.op(node), Op::Binary(BinaryOp::Add))).then_some(node)
    })
}

/// For each node whether it is an explicit f32 sum over devices that no product reads on, as that of gradients in the
/// body of a `shard_map`, or all its consumers are such sums, and it adds, scales or moves what they sum.
fn summed_over_devices(graph: &Dataflow<'_>, classes: &Classes<'_>) -> Vec<bool> {
    let is_sum = |node: NodeId| {
        let (record, op) = (graph.node(node), graph.op(node));
        let is_f32 = matches!(op, Op::AllReduce(_)) && matches!(record.class(), Some(Class::Deny { .. }));
        is_f32 && classes.sum_in_f32(op) == DeviceSum::OfOperands
    };
    let mut is_summed = vec![false; graph.nodes.len()];
    let (to_product, to_result) = (graph.leads_to_product(), leads_to_result(graph));
    let repeats = |maker: &Node, _| matches!(graph.instr(maker).op, Op::Broadcast { .. });
    let is_number = |&value: &ValueId| graph.value(graph.origin(value, repeats)).n_elements == 1;
    for node in graph.node_ids().rev() {
        let (idx, record) = (node as usize, graph.node(node));
        let op = &graph.instr(record).op;
        let is_linear = match (op, record.class()) {
            (Op::Binary(BinaryOp::Multiply), Some(Class::Infer)) => record.operands.iter().any(is_number),
            (Op::Binary(BinaryOp::Divide), Some(Class::Infer)) => is_number(&record.operands[1]),
            (op, Some(Class::Infer)) => adds(op),
            (_, class) => class == Some(Class::Clear) && movement(op) == Movement::Places,
        };
        let mut users = graph.readers(node).peekable();
        let all_summed = users.peek().is_some() && users.all(|user| is_summed[user as usize]);
        let is_gradient = is_sum(node) && (!to_product[idx] || to_result[idx]);
        is_summed[idx] = is_gradient || is_linear && all_summed && !to_product[idx];
    }
    is_summed
}

/// The products whose partial results devices sum in the narrow dtype: a product reads the sum, and neither a result
/// nor a new value of a parameter is computed from it. A partitioner places such a sum as in a program written for
/// bf16.
pub(super) fn sums_narrow(graph: &Dataflow<'_>) -> Vec<NodeId> {
    let (to_product, to_result) = (graph.leads_to_product(), leads_to_result(graph));
    let narrow = |&node: &NodeId| graph.node(node).gives_f32 && to_product[node as usize] && !to_result[node as usize];
    graph.node_ids().filter(narrow).collect()
}

/// For each node whether a result or a new value of a parameter is computed from it, by ops that may be lowered.
fn leads_to_result(graph: &Dataflow<'_>) -> Vec<bool> {
    let is_of_parameter = of_parameters(graph, |_| true);
    graph.leads(&graph.results, |reader, leads| {
        let record = graph.node(reader);
        record.is_soft() && leads
            || record.class() == Some(Class::Infer) && is_of_parameter[record.first_result as usize]
    })
}

/// The most elements that are evaluated for one region. Interpolation weights from 512 to 1,024 are half a million,
/// computed in some twenty steps.
const MAX_NUMBERS: i64 = 1 << 24;

/// Builds the graph of a region of a verified module, to which calls may add `room`; products that are exact in the
/// narrow dtype are of class allow.
pub(super) fn graph<'m>(classes: &Classes<'m>, comp: CompId, room: usize) -> Dataflow<'m> {
    let mut graph = Dataflow::build(classes, comp, room);
    for product in products(&graph, comp == classes.module.entry) {
        let node = &mut graph.nodes[product as usize];
        (node.kind, node.because) = (NodeKind::Op(Class::Allow), Because::Exact);
    }
    for product in sums_narrow(&graph) {
        graph.nodes[product as usize].gives_f32 = false;
    }
    graph
}

fn products(graph: &Dataflow<'_>, is_entry: bool) -> Vec<NodeId> {
    let asks = |&node: &NodeId| {
        let is_asked = matches!(graph.op(node), Op::Dot { precision, .. } if asks_for_digits(precision));
        is_asked && graph.node(node).is_denied_by_op()
    };
    let mut exact_products: Vec<NodeId> = graph.node_ids().filter(asks).collect();
    if !exact_products.is_empty() {
        let is_between = between(graph, is_entry);
        exact_products.retain(|&node| is_between[node as usize]);
        let operands = |node: NodeId| graph.node(node).operands.iter();
        let numbers = evaluated(graph, exact_products.iter().flat_map(|&node| operands(node)).copied());
        let is_average = |value| numbers.get(value).is_some_and(|numbers| averages(numbers, graph.low));
        exact_products.retain(|&node| operands(node).any(is_average));
    }
    exact_products
}

/// Whether a product asks for more precision of its operands, but for no algorithm.
fn asks_for_digits(precision: &PrecisionConfig) -> bool {
    let asks = |asked: &OperandPrecision| *asked != OperandPrecision::Default;
    precision.algorithm.is_none() && precision.operand_precision.iter().any(asks)
}

/// For each node whether it lies between two ordinary products, and every way to a loss goes through a product.
fn between(graph: &Dataflow<'_>, is_entry: bool) -> Vec<bool> {
    let is_product = |node: NodeId| graph.node(node).is_product();
    let passes = |node: NodeId| graph.node(node).passes();
    // A result of another region may be a loss outside.
    let ends = if is_entry { losses(graph) } else { graph.results.clone() };
    let leads_to_loss = graph.leads(&ends, |reader, leads| leads && !is_product(reader));
    let leads_to_product = graph.leads(&[], |reader, leads| is_product(reader) || leads && passes(reader));
    let goes_on = graph.derived([], |node, goes_on| {
        is_product(node) || passes(node) && !leads_to_loss[node as usize] && graph.node(node).reads(goes_on)
    });
    let is_between = |node: NodeId| {
        graph.node(node).reads(&goes_on) && leads_to_product[node as usize] && !leads_to_loss[node as usize]
    };
    graph.node_ids().map(is_between).collect()
}

/// The values in `wanted` that depend on no parameter, and those that they are computed from, evaluated.
fn evaluated(graph: &Dataflow<'_>, wanted: impl Iterator<Item = ValueId>) -> BTreeMap<ValueId, Numbers> {
    let is_constant = discrete_choices::constants(graph, &[]);
    let mut numbers = BTreeMap::new();
    let mut room = MAX_NUMBERS;
    // Operands come first.
    for value in graph.behind(wanted.filter(|&value| is_constant[value as usize]), |_| true) {
        let record = graph.node(graph.producer(value));
        let operands: Option<Vec<&Numbers>> = record.operands.iter().map(|operand| numbers.get(operand)).collect();
        let (Some(operands), Some(shape)) = (operands, graph.instr(record).shape.as_array()) else { continue };
        let read = operands.iter().map(|operand| operand.shape.n_elements());
        room = room.saturating_sub(read.fold(shape.n_elements(), i64::max));
        if room >= 0
            && let Some(evaluated) = evaluate(graph.module, graph.instr(record), &operands)
        {
            numbers.insert(value, evaluated);
        }
    }
    numbers
}

/// Whether numbers are an averaging matrix whose elements `low` represents exactly.
fn averages(numbers: &Numbers, low: DType) -> bool {
    let &[n_rows, n_columns] = &numbers.shape.dims[..] else { return false };
    let sum_to_one = |n: i64, step: i64, places: i64, stride: i64| {
        (0..n).all(|nth| {
            let sum: f64 = (0..places).map(|place| numbers.all[(nth * step + place * stride) as usize]).sum();
            sum == 1.0 || sum == 0.0
        })
    };
    let is_average = numbers.all.iter().all(|&x| x >= 0.0)
        && (sum_to_one(n_rows, n_columns, n_columns, 1) || sum_to_one(n_columns, 1, n_rows, n_columns));
    let elements: Vec<f32> = numbers.all.iter().map(|&x| x as f32).collect();
    let literal = Literal::from_elements(numbers.shape.dims.clone(), &elements);
    numbers.shape.dtype == DType::F32 && is_average && literal.is_exact_in(low)
}

#[cfg(test)]
mod tests {
    use crate::amp::{self, Policy};
    use bf16scope_hlo::{DType, text};

    #[test]
    fn a_product_of_one_column_gives_its_f32_sum() {
        let dtype = |n_terms: i64, n_columns: i64| {
            let source = format!(
                "HloModule m\n\nENTRY main {{\n  x = f32[64,{n_terms}] parameter(0)\n  \
                 w = f32[{n_terms},{n_columns}] parameter(1)\n  v = f32[{n_columns},64] parameter(2)\n  \
                 y = f32[64,{n_columns}] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
                 gate = f32[64,{n_columns}] tanh(y)\n  \
                 ROOT z = f32[64,64] dot(gate, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n}}\n"
            );
            let (lowered, _) = amp::run(&text::parse(&source, "m").unwrap(), &Policy::default()).unwrap();
            lowered.entry().instructions.iter().find(|instr| instr.name == "y").and_then(|instr| instr.shape.dtype())
        };
        assert_eq!(dtype(32, 1), Some(DType::F32));
        assert_eq!(dtype(32, 2), Some(DType::BF16));
        assert_eq!(dtype(16, 1), Some(DType::BF16));
    }
}
