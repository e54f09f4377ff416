//! Storage of what is computed in f32: elementwise functions of one array, which a compiler keeps in registers up to their
//! ends, and values that a loss or a result is computed from, but that it materialises.
//!
//! # Elementwise functions
//!
//! Such as GELU, a softplus, the polynomials that a framework computes `erfc` by, or rounding to the steps of a
//! quantization.
//!
//! A back end computes such a function in one fusion, whatever ops it is written with, and stores only its end. So
//! rounding within it saves no memory, and could make the result worse than its operand: JAX computes `erfc` in f32
//! for every dtype. So all ops on one array, element by element, are f32, up to an op that reads another array, a sum,
//! or a product. A single number, such as a learned step, is no array: it is kept in a register, as a constant is. A
//! value that is also read outside, as the gradient reads a function's terms, is an end.
//!
//! # Values for a loss or a result
//!
//! - A layer may read a value that leads to a loss, as where a loss compares the layers of two networks, or penalises
//!   the size of their outputs. It is stored in the narrow dtype for the lowered ops that read it, so the loss reads
//!   the same numbers, as in a network written for bf16. A norm reads it several times in f32, and it is stored all
//!   the same. This does not hold for values computed from data alone, with which an autoencoder's loss compares its
//!   result; nor for the results of exponentials and logarithms, such as a softmax or its logarithm: a network written
//!   for bf16 casts these for the product, and its loss reads them before the cast. Rounding a logarithm of −100 is an
//!   error of 0.2, and of a fifth in the likelihood computed from it.
//! - A product may read a value that leads to a result, such as an update, as where an optimizer orthogonalises a
//!   matrix by products. All its consumers read the value that is rounded for the product. This does not hold for a
//!   running sum, such as a weight over several steps.
//! - The f32 state of a loop may be taken apart before it is computed, as the gates of a recurrent network are, which
//!   products computed. The parts are not fused one by one, so the whole is stored.

use super::assignment::{Assignment, RegionKind};
use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::decision::{Decision, Need, Rule};
use super::loss::of_parameters;
use super::terms::{adds, scales};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::UnaryOp;
use bf16scope_hlo::ops::decisions::{amplification, is_map};
use bf16scope_hlo::ops::precision::{Amplification, Class};

/// Finds the nodes that compute in f32 for a loss or a result, and whose value is rounded once for all consumers.
/// `leads_by_product` marks the nodes from which a loss is computed through a product.
pub(super) fn materialised(
    graph: &Dataflow<'_>,
    assignment: &Assignment,
    kind: RegionKind,
    leads_by_product: &[bool],
) -> Vec<(NodeId, Decision)> {
    let (is_of_function, is_of_product, is_added_up) = (of_functions(graph), of_products(graph), added_up(graph));
    let is_read_narrow =
        graph.leads(&[], |reader, leads| assignment.low[reader as usize] || leads && graph.node(reader).is_clear());
    // Whether several ops of a layer read the value, as those of a norm.
    let feeds_layer = |value: ValueId| {
        let is_layer =
            |&&reader: &&NodeId| leads_by_product[reader as usize] && assignment.rule[reader as usize] != Rule::Loss;
        let is_soft = |&&reader: &&NodeId| graph.node(reader).is_soft();
        let readers = || graph.users[value as usize].iter().filter(is_layer);
        readers().count() > 1 && readers().any(|reader| is_soft(&reader))
    };
    let is_materialised = |&node: &NodeId| {
        let record = graph.node(node);
        let (value, at) = (record.first_result, record.first_result as usize);
        let is_array = record.n_results == 1 && graph.value(value).is_f32_array();
        let is_of_product = is_array && record.class() == Some(Class::Infer) && is_of_product[at];
        let is_read_narrow = is_read_narrow[node as usize];
        is_of_product
            && match assignment.rule[node as usize] {
                Rule::Loss => {
                    (is_read_narrow || feeds_layer(value)) && !is_of_function[at] && !feeds_wide(graph, value)
                }
                Rule::Result if kind == RegionKind::Body => is_taken_apart(graph, value),
                Rule::Result => is_read_narrow && !graph.is_result[at] && !is_added_up(node),
                _ => false,
            }
    };
    let rounded = |node: NodeId| (node, Decision::rounded(Rule::RoundedOnce, None));
    graph.node_ids().filter(is_materialised).map(rounded).collect()
}

/// For each value whether it is computed from a denied function, such as an exponential or a logarithm, with no product
/// between. A root does not count, as its result is as accurate as its operand.
fn of_functions(graph: &Dataflow<'_>) -> Vec<bool> {
    graph.derived([], |node, is_of_function: &[bool]| {
        let (record, op) = (graph.node(node), graph.op(node));
        let is_root = matches!(op, Op::Unary(UnaryOp::Rsqrt | UnaryOp::Sqrt | UnaryOp::Cbrt));
        // Random bits that are converted to floats do not count.
        let is_of_float = record.operands.iter().any(|&value| graph.value(value).is_f32());
        let is_function = matches!(record.class(), Some(Class::Deny { .. })) && is_map(op) && is_of_float && !is_root;
        is_function || !record.is_product() && record.reads(is_of_function)
    })
}

/// For each value whether it is the result of a node that `begins`, or computed from one by ops of class infer and clear.
fn softly_of(graph: &Dataflow<'_>, begins: impl Fn(&Node) -> bool) -> Vec<bool> {
    graph.derived([], |node, is_of: &[bool]| {
        let record = graph.node(node);
        begins(record) || record.is_soft() && record.reads(is_of)
    })
}

/// For each value whether a product computes it, or it is computed from one by ops of class infer and clear.
pub(super) fn of_products(graph: &Dataflow<'_>) -> Vec<bool> {
    softly_of(graph, Node::is_product)
}

/// How many times as many numbers a product gives, or reads besides, for an array that it reads to be negligible.
const MIN_WIDENING: i64 = 16;

/// Whether products read an array, moved or not, and it is negligible beside what each gives, or reads besides, as the three
/// coordinates of a point are: rounding it would save nothing, and the loss measures places by it.
fn feeds_wide(graph: &Dataflow<'_>, value: ValueId) -> bool {
    let n_elements = |value: ValueId| graph.value(value).n_elements;
    let (mut open, mut products) = (vec![value], 0);
    while let Some(next) = open.pop() {
        for &reader in &graph.users[next as usize] {
            let record = graph.node(reader);
            let n_results = n_elements(record.first_result);
            let largest = record.operands.iter().map(|&operand| n_elements(operand)).fold(n_results, i64::max);
            match record.is_product() {
                true if largest < n_elements(value).saturating_mul(MIN_WIDENING) => return false,
                true => products += 1,
                false if record.is_clear() && n_results == n_elements(value) => open.extend(record.results()),
                false => {}
            }
        }
    }
    products > 0
}

/// Whether a node's result is a running sum, to which each step adds little: a parameter that steps of an optimizer
/// updated, or a value that an add reads directly. A parameter that was divided by its norm does not count.
fn added_up(graph: &Dataflow<'_>) -> impl Fn(NodeId) -> bool {
    let of_sum = softly_of(graph, |record| matches!(record.class(), Some(Class::Deny { .. })));
    let of_parameter = of_parameters(graph, |node| {
        let is_norm = |&value: &ValueId| {
            of_sum[value as usize] && matches!(graph.op(graph.producer(value)), Op::Broadcast { .. })
        };
        !scales(graph.op(node)) || !graph.node(node).operands.iter().any(is_norm)
    });
    let is_added = graph.leads(&[], |reader, leads| adds(graph.op(reader)) || leads && graph.node(reader).is_clear());
    move |node| of_parameter[graph.node(node).first_result as usize] || is_added[node as usize]
}

/// Whether several ops read a value, and all of them take a part of it.
fn is_taken_apart(graph: &Dataflow<'_>, value: ValueId) -> bool {
    let is_part = |&reader: &NodeId| matches!(graph.op(reader), Op::Slice(_));
    let readers = &graph.users[value as usize];
    readers.len() > 1 && readers.iter().all(is_part)
}

/// Finds the nodes of elementwise functions of one array: they compute in f32. `is_input` says which values are data
/// that the program was given, or are computed from those alone: an end of such a function is not rounded for all that
/// read it.
pub(super) fn elementwise(graph: &Dataflow<'_>, assignment: &Assignment, is_input: &[bool]) -> Vec<(NodeId, Decision)> {
    let sources = sources(graph);
    // A value that is not a function of another is its own source.
    let source =
        |node: NodeId| sources[graph.node(node).first_result as usize].filter(|&value| graph.producer(value) != node);
    // A node whose result only the function itself reads.
    let is_inside = |&node: &NodeId| {
        let mut users = graph.readers(node).peekable();
        users.peek().is_some() && source(node).is_some() && users.all(|user| source(user) == source(node))
    };
    let mut is_within = vec![false; graph.nodes.len()];
    for node in graph.node_ids().filter(is_inside) {
        is_within[node as usize] = true;
        graph.readers(node).for_each(|end| is_within[end as usize] = true);
    }
    let is_outside = |node: NodeId| !is_within[node as usize];
    let is_read_narrow = graph.leads(&[], |user, leads| {
        is_outside(user) && (assignment.low[user as usize] || leads && graph.node(user).is_clear())
    });
    let is_open = |&node: &NodeId| {
        let record = graph.node(node);
        let is_open = match record.class() {
            Some(Class::Infer) => assignment.low[node as usize],
            Some(Class::Clear) => graph.value(record.first_result).is_f32(),
            _ => false,
        };
        is_within[node as usize] && is_open
    };
    let unstored = |node: NodeId| {
        // A gradient finds the maximum's operand by equality; if only one side were rounded, neither would be equal.
        let compares = |user: NodeId| matches!(graph.op(user), Op::Compare { .. }) && source(user) == source(node);
        let is_compared = graph.readers(node).any(compares);
        let is_given = is_input[graph.node(node).first_result as usize];
        let is_stored = is_read_narrow[node as usize] && graph.readers(node).count() > 1 && !is_compared && !is_given;
        (node, if is_stored { Decision::rounded(Rule::RoundedOnce, None) } else { Decision::f32(Rule::Fused, None) })
    };
    graph.node_ids().filter(is_open).map(unstored).collect()
}

/// Finds sums of a product and a smaller array, such as a bias of −5 before a softplus, that are lowered, and that only
/// ops in f32 read, one of them an exponential, or a sigmoid that a recurrence needs. The sum is as large as the bias,
/// and its rounding is an error of the exponential; a back end adds the bias in each fusion that reads the product.
pub(super) fn shifted_exponents(graph: &Dataflow<'_>, assignment: &Assignment) -> Vec<(NodeId, Decision)> {
    let is_wide = |node: NodeId| {
        let is_decided = match graph.node(node).class() {
            Some(Class::Infer | Class::Deny { .. }) => true,
            Some(Class::Clear) => assignment.rule[node as usize] == Rule::Fused,
            _ => false,
        };
        is_decided && !assignment.low[node as usize] && is_map(graph.op(node))
    };
    let is_exponential = |node: NodeId| {
        let squashes = assignment.rule[node as usize] == Rule::Needed(Need::Recurrence);
        // The exponential of a sigmoid is of class infer.
        let is_denied = matches!(graph.node(node).class(), Some(Class::Deny { .. }));
        is_wide(node) && (squashes || is_denied && amplification(graph.op(node)) == Amplification::Exponent)
    };
    let leads = graph.leads(&[], |reader, leads| is_exponential(reader) || leads && is_wide(reader));
    let is_smaller = |node: NodeId| {
        let n_elements = |node: NodeId| graph.value(graph.node(node).first_result).n_elements;
        matches!(graph.op(node), Op::Broadcast { .. })
            && graph.makers(node).all(|maker| n_elements(maker) < n_elements(node))
    };
    let is_shifted = |&node: &NodeId| {
        let (record, idx) = (graph.node(node), node as usize);
        let [a, b] = record.operands[..] else { return false };
        let [a, b] = [a, b].map(|value| graph.producer(value));
        let shifts = |product: NodeId, bias: NodeId| graph.node(product).is_product() && is_smaller(bias);
        let is_read = |reader: NodeId| is_wide(reader) || matches!(graph.op(reader), Op::Compare { .. });
        leads[idx]
            && assignment.low[idx]
            && record.class() == Some(Class::Infer)
            && adds(graph.op(node))
            && (shifts(a, b) || shifts(b, a))
            && graph.readers(node).all(is_read)
    };
    graph.node_ids().filter(is_shifted).map(|node| (node, Decision::f32(Rule::Fused, None))).collect()
}

/// For each value the array that it is computed from elementwise, with constants and single numbers; `None` if it is
/// computed from those alone.
fn sources(graph: &Dataflow<'_>) -> Vec<Option<ValueId>> {
    let is_number = |value: ValueId| graph.value(value).is_f32() && graph.value(value).n_elements == 1;
    let initial = |value| Some(value).filter(|_| !is_number(value));
    let mut sources: Vec<Option<ValueId>> = (0..graph.values.len() as ValueId).map(initial).collect();
    for record in &graph.nodes {
        let mut varying = record.operands.iter().filter_map(|&value| sources[value as usize]);
        let op = &graph.instr(record).op;
        let source = match (&record.kind, varying.next()) {
            _ if matches!(op, Op::Constant(_)) => Some(None),
            // The same numbers, which each computation that reads them may convert for itself.
            (NodeKind::FromLow, Some(first)) => Some(Some(first)),
            (NodeKind::Op(_) | NodeKind::Fixed(_), None) if !record.operands.is_empty() => Some(None),
            (NodeKind::Op(_) | NodeKind::Fixed(_), Some(first)) => {
                let is_placing = matches!(op, Op::Broadcast { .. } | Op::Reshape);
                let is_of_one = is_map(op) && !is_placing && varying.all(|source| source == first);
                is_of_one.then_some(Some(first))
            }
            _ => None,
        };
        if let Some(source) = source {
            record.results().filter(|&value| !is_number(value)).for_each(|value| sources[value as usize] = source);
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use crate::amp::{self, Policy};
    use bf16scope_hlo::{DType, text};

    /// The program's loss is the size of `p`, which `n` outputs of a layer read, too.
    #[test]
    fn the_loss_reads_few_coordinates_unrounded() {
        let dtype = |n: i64| {
            let source = format!(
                "HloModule m\n\nsum {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
                 ROOT c = f32[] add(a, b)\n}}\n\nENTRY main {{\n  o = f32[32,3] parameter(0)\n  \
                 x = f32[32,64] parameter(1)\n  w = f32[64,3] parameter(2)\n  v = f32[3,{n}] parameter(3)\n  \
                 y = f32[32,3] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
                 p = f32[32,3] add(o, y)\n  \
                 h = f32[32,{n}] dot(p, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
                 t = f32[32,{n}] tanh(h)\n  \
                 dv = f32[3,{n}] dot(p, t), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}\n  \
                 q = f32[32,3] multiply(p, p)\n  zero = f32[] constant(0)\n  \
                 loss = f32[] reduce(q, zero), dimensions={{0,1}}, to_apply=sum\n  \
                 ROOT all = (f32[], f32[32,{n}], f32[3,{n}]) tuple(loss, t, dv)\n}}\n"
            );
            let policy = Policy { losses: Some(vec![0]), ..Policy::default() };
            let (lowered, _) = amp::run(&text::parse(&source, "m").unwrap(), &policy).unwrap();
            let comp = lowered.entry();
            let reads = comp.instructions.iter().find(|instr| instr.name == "q").map(|instr| instr.operands[0]);
            let read = comp.instr(reads.unwrap());
            let source = if read.name == "p" { read } else { comp.instr(read.operands[0]) };
            source.shape.dtype()
        };
        assert_eq!(dtype(48), Some(DType::F32));
        assert_eq!(dtype(32), Some(DType::BF16));
    }
}
