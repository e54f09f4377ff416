//! Facts of a region's values that say which roundings would hurt, whatever the program computes.
//!
//! One sweep for each, over the whole graph of a region, with calls followed. `needs` says which nodes are f32 for what reads
//! them; the other facts are of single values.

use super::dataflow::{Dataflow, Node, NodeId, NodeKind, ValueId};
use super::moved::moved_from;
use super::narrow::largest;
use bf16scope_hlo::ops::decisions::{DotForm, device_sum, is_map, is_placement, list_names, precision_class};
use bf16scope_hlo::ops::precision::{Class, DeviceSum};
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{Literal, Op};
use std::collections::{BTreeMap, BTreeSet};

/// Why a node is f32 for what reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// A choice that the program computes on with is made by its value.
    Choice,
    /// A recurrence multiplies by it, or adds it up, again and again.
    Recurrence,
    /// A sine or cosine reads it, and an op in f32 made it.
    Angle,
    /// A decomposition of a matrix reads it.
    Decomposition,
    /// What it is added to cancels it, as in ‖a‖² + ‖b‖² − 2ab.
    Cancellation,
}

impl Need {
    /// A sentence that fits behind "because".
    pub(super) const fn why(self) -> &'static str {
        match self {
            Need::Choice => "a choice that the program computes on with is made by its value",
            Need::Recurrence => {
                "a recurrence multiplies by it or adds it up again and again, so that one rounding becomes one for each step"
            }
            Need::Angle => {
                "a sine or cosine reads it, and an op in f32 made it: the angle would lose its absolute precision"
            }
            Need::Decomposition => {
                "a decomposition reads the matrix that it belongs to, which a rounding may make indefinite or singular"
            }
            Need::Cancellation => {
                "it is taken from sums of its operands' own products, as in ‖a‖² + ‖b‖² − 2ab, and what is left is small"
            }
        }
    }

    /// Whether a product is f32 for it; where it is not, the product's f32 sum is rounded as any other.
    const fn is_of_products(self) -> bool {
        matches!(self, Need::Choice | Need::Decomposition | Need::Cancellation)
    }
}

/// For each node the need that it is f32 for, and the node that has the need.
pub(super) type Needs = Vec<Option<(Need, NodeId)>>;

/// The needs of a region in which choices are made by these nodes, and whose loops have recurrences that multiply by these
/// arrays of their state ([`factors`]).
pub(super) fn needs(
    graph: &Dataflow<'_>,
    choices: &[Option<NodeId>],
    factors_of_loops: &BTreeMap<NodeId, Vec<bool>>,
) -> Needs {
    let mut found = Found { graph, needs: choices.iter().map(|at| at.map(|at| (Need::Choice, at))).collect() };
    for (&node, is_factor) in factors_of_loops {
        for (leaf, &value) in graph.node(node).operands.iter().enumerate() {
            if is_factor.get(leaf) == Some(&true) {
                found.until_squashed(value, node);
            }
        }
    }
    let body = recurrences(graph);
    for (&node, factors) in &body {
        found.add(node, Need::Recurrence, node);
        for &value in factors {
            found.until_squashed(value, node);
        }
    }
    for node in scans(graph) {
        found.add(node, Need::Recurrence, node);
    }
    let of_denied = unrounded(graph);
    for node in 0..graph.nodes.len() as NodeId {
        let of = graph.node(node);
        match &graph.instr(of).op {
            Op::Unary(UnaryOp::Sin | UnaryOp::Cos) if of_denied[of.operands[0] as usize] => {
                found.needs[node as usize].get_or_insert((Need::Angle, node));
                found.back(of.operands[0], Need::Angle, node, &|maker| {
                    graph.node(maker).results().any(|value| of_denied[value as usize])
                });
            }
            op if decomposes(op) => {
                for &value in &of.operands {
                    found.back(value, Need::Decomposition, node, &|maker| {
                        let op = &graph.instr(graph.node(maker)).op;
                        is_map(op) || graph.node(maker).class() == Some(Class::Clear)
                    });
                }
            }
            Op::Binary(BinaryOp::Add | BinaryOp::Subtract) => {
                let Some((products, between)) = cancels(graph, node) else { continue };
                products.into_iter().chain(between).for_each(|at| found.add(at, Need::Cancellation, node));
            }
            _ => {}
        }
    }
    found.needs
}

/// For each array of a loop's state whether a recurrence of its body multiplies by it, with nothing between that squashes it.
pub(super) fn factors(body: &Dataflow<'_>, state: &[ValueId]) -> Vec<bool> {
    let mut found = Found { graph: body, needs: vec![None; body.nodes.len()] };
    let mut reached = BTreeSet::new();
    for (node, factors) in recurrences(body) {
        for value in factors {
            reached.extend(found.until_squashed(value, node));
        }
    }
    state.iter().map(|value| reached.contains(value)).collect()
}

struct Found<'g, 'm> {
    graph: &'g Dataflow<'m>,
    needs: Needs,
}

impl Found<'_, '_> {
    fn is_soft(&self, node: NodeId) -> bool {
        matches!(self.graph.node(node).class(), Some(Class::Infer | Class::Clear))
    }

    fn add(&mut self, node: NodeId, need: Need, at: NodeId) {
        let class = self.graph.node(node).class();
        if self.is_soft(node) || class == Some(Class::Allow) && need.is_of_products() {
            self.needs[node as usize].get_or_insert((need, at));
        }
    }

    /// Whatever a value is computed from, as far as products, or as nodes that it passes.
    fn back(&mut self, value: ValueId, need: Need, at: NodeId, passes: &dyn Fn(NodeId) -> bool) {
        let mut open = vec![value];
        let mut seen = BTreeSet::new();
        while let Some(value) = open.pop() {
            let maker = self.graph.producer(value);
            if !seen.insert(maker) {
                continue;
            }
            self.add(maker, need, at);
            if self.graph.node(maker).class() != Some(Class::Allow) && passes(maker) {
                open.extend(&self.graph.node(maker).operands);
            }
        }
    }

    /// The factor of a recurrence, and what it is computed from up to what squashes it: an exponential, a sigmoid. Gives the
    /// values that the region takes for it.
    fn until_squashed(&mut self, value: ValueId, at: NodeId) -> Vec<ValueId> {
        let (mut open, mut taken, mut seen) = (vec![value], Vec::new(), BTreeSet::new());
        while let Some(value) = open.pop() {
            let maker = self.graph.producer(value);
            let of = self.graph.node(maker);
            if !self.graph.value(value).is_f32() || !seen.insert(value) {
                continue;
            }
            if of.kind == NodeKind::Parameter {
                taken.push(value);
            }
            self.add(maker, Need::Recurrence, at);
            let op = &self.graph.instr(of).op;
            let is_squash = matches!(op, Op::Unary(UnaryOp::Logistic | UnaryOp::Tanh | UnaryOp::Erf))
                || is_reciprocal_of_sum(self.graph, of);
            if self.is_soft(maker) && !is_squash {
                open.extend(&of.operands);
            }
        }
        taken
    }
}

/// Whether a node is the last of a sigmoid's ops, 1 / (1 + e^x).
fn is_reciprocal_of_sum(graph: &Dataflow<'_>, of: &Node) -> bool {
    let is_division = matches!(graph.instr(of).op, Op::Binary(BinaryOp::Divide));
    is_division && of.operands.first().is_some_and(|&value| graph.value(value).is_data)
}

/// Whether an op decomposes a matrix or solves by one. What other custom calls compute, such as a kernel, is not known to
/// amplify anything.
fn decomposes(op: &Op) -> bool {
    const NAMES: [&str; 15] = [
        "cholesky",
        "triangular",
        "trsm",
        "potrf",
        "getrf",
        "geqrf",
        "orgqr",
        "syevd",
        "heevd",
        "gesdd",
        "gesvd",
        "eigh",
        "qr",
        "lu",
        "geev",
    ];
    let names = |name: &str| {
        let name = name.to_ascii_lowercase();
        // A word of its own where it is short.
        NAMES.iter().any(|known| if known.len() > 2 { name.contains(known) } else { name == *known })
    };
    match op {
        Op::Opaque(opaque) => names(&opaque.opcode),
        Op::CustomCall(call) => {
            names(&call.target) || call.target == "LuDecomposition" || call.target == "QrDecomposition"
        }
        _ => false,
    }
}

/// For each value whether it is f32 as is all that it is computed from, back to ops of class deny, with no product between.
fn unrounded(graph: &Dataflow<'_>) -> Vec<bool> {
    let mut found = vec![false; graph.values.len()];
    for of in &graph.nodes {
        let is_source = matches!(of.class(), Some(Class::Deny { .. }))
            && of.operands.iter().any(|&value| graph.value(value).is_f32())
            && !matches!(graph.instr(of).op, Op::Unary(UnaryOp::Sin | UnaryOp::Cos));
        let goes_on = matches!(of.class(), Some(Class::Infer | Class::Clear));
        let is_found = is_source || goes_on && of.operands.iter().any(|&value| found[value as usize]);
        of.results().for_each(|value| found[value as usize] = is_found);
    }
    found
}

/// Nodes that add up or multiply what a loop carries, and by what each multiplies it: of recurrences whose steps compute no
/// product of what they carry. A network whose steps do, such as an LSTM, forgets its roundings as any network does.
fn recurrences(graph: &Dataflow<'_>) -> BTreeMap<NodeId, Vec<ValueId>> {
    let mut found = BTreeMap::new();
    let state: Vec<ValueId> = graph.parameters().collect();
    if state.len() != graph.results.len() {
        return found;
    }
    for (&before, &after) in state.iter().zip(&graph.results) {
        if before == after || !graph.value(before).is_f32() || graph.value(before).n_elements < 2 {
            continue;
        }
        // What the result is linear in, back to the state.
        let (mut cone, mut open) = (BTreeSet::new(), vec![after]);
        while let Some(value) = open.pop() {
            let maker = graph.producer(value);
            let of = graph.node(maker);
            let is_linear = match &graph.instr(of).op {
                Op::Binary(BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Multiply | BinaryOp::Divide)
                | Op::Unary(UnaryOp::Negate)
                | Op::Select => true,
                _ => of.class() == Some(Class::Clear),
            };
            if is_linear && of.kind != NodeKind::Parameter && cone.insert(maker) {
                open.extend(&of.operands);
            }
        }
        let mut of_before: BTreeSet<ValueId> = [before].into();
        for &node in &cone {
            if graph.node(node).operands.iter().any(|value| of_before.contains(value)) {
                of_before.extend(graph.node(node).results());
            }
        }
        if !of_before.contains(&after) {
            continue;
        }
        let mut of_state = Vec::new();
        for &node in &cone {
            let of = graph.node(node);
            let (ours, others): (Vec<ValueId>, Vec<ValueId>) =
                of.operands.iter().partition(|value| of_before.contains(value));
            let multiplies = matches!(graph.instr(of).op, Op::Binary(BinaryOp::Multiply | BinaryOp::Divide));
            let is_learned = |value: &&ValueId| !graph.value(**value).is_data;
            if multiplies && !ours.is_empty() && others.iter().any(|value| is_learned(&value)) {
                of_state.push((node, others));
            }
        }
        if !of_state.is_empty() && !computes_product_of(graph, &state, before, after) {
            found.extend(of_state);
        }
    }
    found
}

/// Whether the steps of a loop compute a product of an array of the state that becomes that array again.
fn computes_product_of(graph: &Dataflow<'_>, state: &[ValueId], before: ValueId, after: ValueId) -> bool {
    let reached = |mut open: Vec<ValueId>, mut products: Option<&mut Vec<NodeId>>| {
        let mut seen = BTreeSet::new();
        while let Some(value) = open.pop() {
            if !seen.insert(value) {
                continue;
            }
            for &user in &graph.users[value as usize] {
                let of = graph.node(user);
                match &mut products {
                    Some(products) if of.class() == Some(Class::Allow) => products.push(user),
                    _ => open.extend(of.results()),
                }
            }
            let becomes = graph.results.iter().zip(state).filter(|(result, _)| **result == value);
            open.extend(becomes.map(|(_, &next)| next));
        }
        seen
    };
    let mut products = Vec::new();
    reached(vec![before], Some(&mut products));
    let of_products = products.iter().flat_map(|&node| graph.node(node).results()).collect();
    reached(of_products, None).contains(&after)
}

/// Nodes of running sums and products that are spelled by halves, as JAX's `associative_scan` spells them: an op combines two
/// strided slices of one array, what it gives is combined so again, and what comes of that is put together between zeros.
fn scans(graph: &Dataflow<'_>) -> BTreeSet<NodeId> {
    let n = graph.nodes.len();
    let mut level = vec![0_u32; n];
    let sliced = |value: ValueId| {
        let of = graph.node(graph.producer(value));
        let is_strided = matches!(&graph.instr(of).op, Op::Slice(dims) if dims.iter().any(|dim| dim.stride > 1));
        (is_strided && of.class() == Some(Class::Clear)).then(|| of.operands[0])
    };
    let mut sources: Vec<ValueId> = Vec::new();
    for node in 0..n as NodeId {
        let of = graph.node(node);
        if let (Op::Binary(BinaryOp::Add | BinaryOp::Multiply), &[a, b]) = (&graph.instr(of).op, &of.operands[..])
            && let (Some(a), Some(b)) = (sliced(a), sliced(b))
            && a == b
            && graph.value(a).is_f32()
        {
            level[node as usize] = 1 + level[graph.producer(a) as usize];
            if level[node as usize] > 1 {
                sources.push(graph.node(graph.producer(a)).first_result);
                sources.push(of.first_result);
            }
        }
    }
    if sources.is_empty() {
        return BTreeSet::new();
    }
    let is_of_scan = |node: NodeId| {
        let of = graph.node(node);
        let op = &graph.instr(of).op;
        let is_op = matches!(
            op,
            Op::Slice(_)
                | Op::Pad(_)
                | Op::Concatenate { .. }
                | Op::Reshape
                | Op::Transpose { .. }
                | Op::Broadcast { .. }
                | Op::Select
                | Op::Binary(BinaryOp::Add | BinaryOp::Multiply)
        );
        is_op && matches!(of.class(), Some(Class::Infer | Class::Clear))
    };
    let is_between = |value: ValueId| {
        let op = &graph.instr(graph.node(graph.producer(value))).op;
        matches!(op, Op::Pad(dims) if dims.iter().any(|dim| dim.interior > 0))
    };
    let mut of_source = vec![false; n];
    let reached = graph.reached(sources, is_of_scan);
    for node in 0..n as NodeId {
        let of = graph.node(node);
        of_source[node as usize] = is_of_scan(node) && of.results().any(|value| reached[value as usize]);
    }
    let mut ends = vec![false; n];
    for node in (0..n as NodeId).rev().filter(|&node| is_of_scan(node)) {
        let of = graph.node(node);
        let is_end = level[node as usize] > 0 || of.operands.iter().any(|&value| is_between(value));
        let mut users = of.results().flat_map(|value| &graph.users[value as usize]);
        ends[node as usize] = is_end || users.any(|&user| ends[user as usize]);
    }
    let level_nodes = (0..n as NodeId).filter(|&node| level[node as usize] > 1);
    (0..n as NodeId).filter(|&node| of_source[node as usize] && ends[node as usize]).chain(level_nodes).collect()
}

/// Terms of a sum that are looked through for what cancels.
const MAX_TERMS: usize = 32;

/// Products that are added to sums of products of their own operands, and the ops between: ‖a‖² + ‖b‖² − 2ab, and its gradient
/// a·Σg − g·b.
fn cancels(graph: &Dataflow<'_>, sum: NodeId) -> Option<(Vec<NodeId>, Vec<NodeId>)> {
    let source = |value: ValueId| moved_or_cast_from(graph, value);
    let scales = |of: &Node| {
        let is_scaling = matches!(graph.instr(of).op, Op::Binary(BinaryOp::Multiply | BinaryOp::Divide));
        is_scaling && of.operands.iter().any(|&value| graph.value(value).is_data)
    };
    let (mut between, mut products, mut others) = (vec![sum], Vec::new(), Vec::new());
    let mut open: Vec<ValueId> = graph.node(sum).operands.clone();
    while let Some(value) = open.pop() {
        if between.len() + products.len() + others.len() > MAX_TERMS {
            return None;
        }
        let maker = graph.producer(value);
        let of = graph.node(maker);
        match &graph.instr(of).op {
            Op::Dot { .. } if of.class() == Some(Class::Allow) => products.push(maker),
            Op::Binary(BinaryOp::Add | BinaryOp::Subtract) | Op::Unary(UnaryOp::Negate) => {
                between.push(maker);
                open.extend(&of.operands);
            }
            _ if scales(of) || of.class() == Some(Class::Clear) => {
                between.push(maker);
                open.extend(of.operands.iter().filter(|&&value| !graph.value(value).is_data));
            }
            _ => others.push(maker),
        }
    }
    if products.is_empty() || others.is_empty() {
        return None;
    }
    // Arrays that are summed up in what the products are added to.
    let mut summed: BTreeSet<ValueId> = BTreeSet::new();
    for &other in &others {
        let of = graph.node(other);
        let sums = match &graph.instr(of).op {
            Op::Binary(BinaryOp::Multiply) => of.operands.iter().map(|&value| graph.producer(source(value))).collect(),
            _ => vec![other],
        };
        for sum in sums {
            let of = graph.node(sum);
            let op = &graph.instr(of).op;
            let is_sum = list_names(graph.module, op).iter().any(|name| name == "reduce:add")
                || graph.dot_form(sum) == DotForm::Sum;
            // One number for all rows cancels no row's product.
            if !is_sum || graph.instr(of).shape.dims().is_empty() {
                continue;
            }
            for &value in &of.operands {
                let value = source(value);
                let maker = graph.node(graph.producer(value));
                if matches!(graph.instr(maker).op, Op::Binary(BinaryOp::Multiply)) {
                    summed.extend(maker.operands.iter().map(|&value| source(value)));
                }
                summed.insert(value);
            }
        }
    }
    let is_data = |value: ValueId| graph.value(value).is_data;
    products.retain(|&product| {
        graph.node(product).operands.iter().any(|&value| !is_data(value) && summed.contains(&source(value)))
    });
    (!products.is_empty()).then_some((products, between))
}

/// What ops moved, and casts rounded or widened, to make a value, whatever its dtype.
fn moved_or_cast_from(graph: &Dataflow<'_>, mut value: ValueId) -> ValueId {
    loop {
        value = moved_from(graph, value);
        let maker = graph.node(graph.producer(value));
        let moves = matches!(
            graph.instr(maker).op,
            Op::Convert
                | Op::Transpose { .. }
                | Op::Reshape
                | Op::Broadcast { .. }
                | Op::Slice(_)
                | Op::Unary(UnaryOp::Copy)
        );
        match maker.operands.first() {
            Some(&operand) if moves => value = operand,
            _ => return value,
        }
    }
}

/// For each node whether it is a product whose f32 sum is kept, as rounding it would save nothing: it was asked for, of operands
/// in the narrow dtype, or it is all that results and calls in f32 read.
pub(super) fn keeps_sum(graph: &Dataflow<'_>, is_result: &[bool]) -> Vec<bool> {
    let mut is_end = vec![false; graph.nodes.len()];
    let mut goes_to_call = vec![false; graph.nodes.len()];
    let mut found = vec![false; graph.nodes.len()];
    for node in (0..graph.nodes.len() as NodeId).rev() {
        let of = graph.node(node);
        let op = &graph.instr(of).op;
        let is_call = matches!(op, Op::Opaque(_) | Op::CustomCall(_)) && !is_placement(op);
        let ends = |value: ValueId| {
            let mut readers = graph.users[value as usize].iter();
            let is_read = is_result[value as usize] || readers.len() > 0;
            is_read && readers.all(|&reader| is_end[reader as usize])
        };
        let all_end = of.results().all(ends);
        let moves = matches!(op, Op::Reshape | Op::Transpose { .. }) || is_placement(op);
        let mut users = of.results().flat_map(|value| &graph.users[value as usize]);
        goes_to_call[node as usize] = is_call || users.any(|&user| goes_to_call[user as usize]);
        is_end[node as usize] = is_call || moves && of.class() == Some(Class::Clear) && all_end;
        let is_narrow = |&value: &ValueId| graph.value(value).dtype == Some(graph.low);
        // Where all of it is written out, but for what a call reads, only what is counted or averaged gains.
        let is_of_data = of.operands.iter().any(|&value| graph.value(value).is_data);
        let is_kept = all_end
            && (is_of_data || of.results().all(|value| !is_result[value as usize] && goes_to_call[node as usize]));
        // Ops that a policy allows besides products give what they read.
        let may_be_wider = of.class() == Some(Class::Allow) && device_sum(graph.module, op) == DeviceSum::Own;
        found[node as usize] = may_be_wider && (is_kept || of.operands.iter().all(is_narrow));
    }
    found
}

/// For each product whose value devices sum whether they do so in the narrow dtype: a product reads it on, and no result nor a
/// new value of a parameter is made of it. A partitioner places such a sum as it would in a program written for it.
pub(super) fn sums_narrow(graph: &Dataflow<'_>) -> Vec<NodeId> {
    let n = graph.nodes.len();
    let of_parameter = super::loss::of_parameters(graph, |_| true);
    let (mut to_result, mut to_product) = (vec![false; n], vec![false; n]);
    graph.results.iter().for_each(|&value| to_result[graph.producer(value) as usize] = true);
    for node in (0..n as NodeId).rev() {
        for &user in graph.node(node).results().flat_map(|value| &graph.users[value as usize]) {
            let class = graph.node(user).class();
            to_product[node as usize] |= class == Some(Class::Allow) || to_product[user as usize];
            let is_soft = matches!(class, Some(Class::Infer | Class::Clear));
            let is_update = class == Some(Class::Infer) && of_parameter[user as usize];
            to_result[node as usize] |= is_soft && to_result[user as usize] || is_update;
        }
    }
    let narrow = |&node: &NodeId| graph.node(node).gives_f32 && to_product[node as usize] && !to_result[node as usize];
    (0..n as NodeId).filter(narrow).collect()
}

/// For each value whether a finite number of it may be beyond the largest of the narrow dtype, so that a cast must saturate:
/// f32's least number, which programs use for "minus infinity, but no NaN".
///
/// Known to be within are what products, exponentials and other functions give, whose numbers are as large only where f32's
/// own overflow is near; constants, which are rounded here; parameters that are weights or biases: those that only products
/// read, those of one axis, and those that the program gives new values of. An array that is added to something is not known.
pub(super) fn beyond(graph: &Dataflow<'_>) -> Vec<bool> {
    let largest = largest(graph.low);
    let is_beyond = |literal: &Literal| {
        let elements = literal.elements::<f32>();
        elements.is_some_and(|all| all.iter().any(|x| x.is_finite() && x.abs() > largest))
    };
    let is_added = added(graph);
    let dims = |of: &Node| graph.instr(of).shape.as_array().map(|array| &array.dims);
    let results: BTreeSet<_> = graph.results.iter().map(|&value| dims(graph.node(graph.producer(value)))).collect();
    // How many ops that compute may still follow: one behind a parameter, and as many as there are behind a constant.
    let mut room = vec![0_u8; graph.values.len()];
    for (node, of) in (0..).zip(&graph.nodes) {
        let op = &graph.instr(of).op;
        let floats = of.operands.iter().filter(|&&value| graph.value(value).is_f32());
        let most = floats.map(|&value| room[value as usize]).max().unwrap_or(0);
        let is_bounded =
            matches!(op, Op::Unary(UnaryOp::Tanh | UnaryOp::Logistic | UnaryOp::Erf | UnaryOp::Sign | UnaryOp::Sqrt));
        let found = match (&of.kind, op) {
            (NodeKind::Constant, Op::Constant(literal)) if is_beyond(literal) => u8::MAX,
            (NodeKind::Parameter, _) if dims(of).is_some_and(|dims| dims.len() > 1) && !results.contains(&dims(of)) => {
                2
            }
            (NodeKind::Op(Class::Clear), _) if !is_guard(graph, node) => most,
            (NodeKind::Op(Class::Infer), _) if !is_bounded && most < u8::MAX => most.saturating_sub(1),
            (NodeKind::Op(Class::Infer), _) if !is_bounded => most,
            _ => 0,
        };
        for value in of.results() {
            let is_open = graph.value(value).is_f32() && (of.kind != NodeKind::Parameter || is_added[value as usize]);
            room[value as usize] = if is_open { found } else { 0 };
        }
    }
    room.into_iter().map(|room| room > 0).collect()
}

/// Whether a node keeps finite numbers within the narrow dtype's range, as is written before a cast: a clamp to its ends, or
/// what selects that for a finite number, and else the number. A cast before it would come too early.
pub(super) fn is_guard(graph: &Dataflow<'_>, node: NodeId) -> bool {
    let of = graph.node(node);
    let maker = |value: ValueId| graph.node(graph.producer(value));
    let is_end = |value: ValueId| match &graph.instr(maker(value)).op {
        Op::Constant(literal) => {
            literal.elements::<f32>().is_some_and(|all| all.iter().all(|x| x.abs() == largest(graph.low)))
        }
        _ => false,
    };
    match (&graph.instr(of).op, &of.operands[..]) {
        (Op::Clamp, &[least, _, most]) => is_end(least) && is_end(most),
        (Op::Select, &[asked, within, number]) => {
            let (asks, within) = (maker(asked), graph.producer(within));
            let is_finite = matches!(graph.instr(asks).op, Op::Unary(UnaryOp::IsFinite));
            is_finite && asks.operands.first() == Some(&number) && is_guard(graph, within)
        }
        _ => false,
    }
}

/// For each value whether it, or what moves it, is added to something or compared in size with it.
fn added(graph: &Dataflow<'_>) -> Vec<bool> {
    let mut found = vec![false; graph.values.len()];
    for of in graph.nodes.iter().rev() {
        let is_sum = matches!(
            graph.instr(of).op,
            Op::Binary(BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Maximum | BinaryOp::Minimum)
        );
        // What is looked up is of a table that was learned.
        let moves = of.class() == Some(Class::Clear) && !matches!(graph.instr(of).op, Op::Gather(_))
            || precision_class(graph.module, &graph.instr(of).op) == Class::Clear && of.class().is_none();
        let moves_on = moves && of.results().any(|value| found[value as usize]);
        if is_sum || moves_on {
            of.operands.iter().for_each(|&value| found[value as usize] = true);
        }
    }
    found
}
