//! Products that ask for more precision than one pass, and lose nothing of it with operands in the narrow dtype.
//!
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

use super::dataflow::{Dataflow, NodeId, NodeKind, ValueId};
use super::loss::losses;
use super::policy::{Because, Classes};
use super::sums::sums_narrow;
use bf16scope_hlo::element::f64s;
use bf16scope_hlo::ops::precision::Class;
use bf16scope_hlo::ops::{BinaryOp, Comparison, OperandPrecision, PrecisionConfig, UnaryOp};
use bf16scope_hlo::{ArrayShape, CompId, DType, Literal, Op};
use std::collections::{BTreeMap, BTreeSet};

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
        let mut constants = Constants { graph, numbers: BTreeMap::new(), room: MAX_NUMBERS };
        exact_products.retain(|&node| {
            is_between[node as usize] && graph.node(node).operands.iter().any(|&value| constants.averages(value))
        });
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
    let n = graph.nodes.len();
    let is_product = |node: NodeId| graph.node(node).is_product();
    let passes = |node: NodeId| graph.node(node).passes();
    let mut leads_to_loss = vec![false; n];
    // A result of another region may be a loss outside.
    let ends = if is_entry { losses(graph) } else { graph.results.clone() };
    ends.into_iter().for_each(|value| leads_to_loss[graph.producer(value) as usize] = true);
    let mut leads_to_product = vec![false; n];
    for node in graph.node_ids().rev() {
        for user in graph.readers(node) {
            leads_to_loss[node as usize] |= leads_to_loss[user as usize] && !is_product(user);
            leads_to_product[node as usize] |= is_product(user) || leads_to_product[user as usize] && passes(user);
        }
    }
    let mut is_of_product = vec![false; n];
    for node in graph.node_ids() {
        let goes_on = |maker: NodeId| is_of_product[maker as usize] && !leads_to_loss[maker as usize] && passes(maker);
        is_of_product[node as usize] = graph.makers(node).any(|maker| is_product(maker) || goes_on(maker));
    }
    (0..n).map(|node| is_of_product[node] && leads_to_product[node] && !leads_to_loss[node]).collect()
}

/// The elements of an array, in row-major order; a predicate is 0 or 1.
struct Numbers {
    shape: ArrayShape,
    all: Vec<f64>,
}

/// Evaluates values that depend on no parameter.
struct Constants<'g> {
    graph: &'g Dataflow<'g>,
    /// The values that were evaluated; `None` where that is not possible.
    numbers: BTreeMap<ValueId, Option<Numbers>>,
    /// How many more elements may be evaluated.
    room: i64,
}

impl Constants<'_> {
    /// Whether a value is an averaging matrix that depends on no parameter, and whose elements the narrow dtype
    /// represents exactly.
    fn averages(&mut self, value: ValueId) -> bool {
        let mut needed = BTreeSet::new();
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            let record = self.graph.node(self.graph.producer(value));
            let is_computed = matches!(
                record.kind,
                NodeKind::Op(_) | NodeKind::Constant | NodeKind::FromExact | NodeKind::FromF32 | NodeKind::Fixed(_)
            );
            if !is_computed || matches!(self.numbers.get(&value), Some(None)) {
                self.numbers.insert(value, None);
                return false;
            }
            if !self.numbers.contains_key(&value) && needed.insert((self.graph.producer(value), value)) {
                open.extend(&record.operands);
            }
        }
        // In the order of the nodes: operands come first.
        for (node, value) in needed {
            let computed = self.compute(node);
            let is_known = computed.is_some();
            self.numbers.insert(value, computed);
            if !is_known {
                return false;
            }
        }
        let Some(Some(numbers)) = self.numbers.get(&value) else { return false };
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
        numbers.shape.dtype == DType::F32 && is_average && literal.is_exact_in(self.graph.low)
    }

    /// Evaluates a node whose operands are known.
    fn compute(&mut self, node: NodeId) -> Option<Numbers> {
        let record = self.graph.node(node);
        let instr = self.graph.instr(record);
        let shape = instr.shape.as_array().filter(|_| record.n_results == 1)?;
        let operands: Vec<&Numbers> =
            { record.operands.iter() }.map(|value| self.numbers.get(value)?.as_ref()).collect::<Option<_>>()?;
        let n_read = operands.iter().map(|operand| operand.shape.n_elements()).max().unwrap_or(0);
        self.room = self.room.saturating_sub(shape.n_elements().max(n_read));
        if self.room < 0 || shape.has_dynamic() {
            return None;
        }
        let all = apply(&instr.op, shape, &operands, self.graph.is_called(node, "reduce:add"))?;
        let all = all.into_iter().map(|x| rounded(x, shape.dtype)).collect::<Option<Vec<f64>>>()?;
        Some(Numbers { shape: shape.clone(), all })
    }
}

/// A number rounded to a dtype.
fn rounded(x: f64, dtype: DType) -> Option<f64> {
    match dtype {
        DType::F32 => Some(f64::from(x as f32)),
        DType::S32 => Some(x.trunc()).filter(|x| f64::from(i32::MIN) <= *x && *x <= f64::from(i32::MAX)),
        DType::Pred => Some(f64::from(u8::from(x != 0.0))),
        _ => None,
    }
}

/// The elements of an op's result before rounding, for the ops that compute such weights. f32 arithmetic is f64
/// arithmetic, rounded.
fn apply(op: &Op, shape: &ArrayShape, operands: &[&Numbers], is_sum: bool) -> Option<Vec<f64>> {
    let operand = |nth: usize| operands.get(nth).map(|operand| &operand.all);
    let each = |f: &dyn Fn(f64) -> f64| Some(operand(0)?.iter().map(|&x| f(x)).collect());
    let both =
        |f: &dyn Fn(f64, f64) -> f64| Some(operand(0)?.iter().zip(operand(1)?).map(|(&x, &y)| f(x, y)).collect());
    // One number for all places, or one for each.
    let at = |numbers: &[f64], place: usize| numbers[if numbers.len() == 1 { 0 } else { place }];
    let places = || 0..shape.n_elements() as usize;
    match op {
        // `rounded` says which dtypes are evaluated.
        Op::Constant(Literal::Array { bytes, .. }) if rounded(0.0, shape.dtype).is_some() => {
            Some(f64s(shape.dtype, bytes)?.collect())
        }
        Op::Iota { dimension } => {
            let along = *dimension as usize;
            let n_behind: i64 = shape.dims[along + 1..].iter().product();
            Some(places().map(|place| (place as i64 / n_behind % shape.dims[along]) as f64).collect())
        }
        Op::Reshape | Op::Convert => each(&|x| x),
        Op::Unary(UnaryOp::Abs) => each(&f64::abs),
        Op::Unary(UnaryOp::Negate) => each(&|x| -x),
        Op::Unary(UnaryOp::Floor) => each(&f64::floor),
        Op::Binary(BinaryOp::Add) => both(&|x, y| x + y),
        Op::Binary(BinaryOp::Subtract) => both(&|x, y| x - y),
        Op::Binary(BinaryOp::Multiply) => both(&|x, y| x * y),
        Op::Binary(BinaryOp::Divide) if shape.dtype == DType::F32 => both(&|x, y| x / y),
        Op::Binary(BinaryOp::Maximum) => both(&f64::max),
        Op::Binary(BinaryOp::Minimum) => both(&f64::min),
        Op::Binary(BinaryOp::And) if shape.dtype == DType::Pred => both(&|x, y| x * y),
        Op::Compare { direction, kind: None } => both(&|x, y| {
            f64::from(u8::from(match direction {
                Comparison::Eq => x == y,
                Comparison::Ne => x != y,
                Comparison::Lt => x < y,
                Comparison::Le => x <= y,
                Comparison::Gt => x > y,
                Comparison::Ge => x >= y,
            }))
        }),
        Op::Select => {
            let (choice, yes, no) = (operand(0)?, operand(1)?, operand(2)?);
            Some(places().map(|place| if at(choice, place) != 0.0 { yes[place] } else { no[place] }).collect())
        }
        Op::Broadcast { dimensions } => {
            let operand_strides = strides(&operands.first()?.shape.dims);
            let axis_stride = |axis: usize| {
                dimensions.iter().position(|&to| to as usize == axis).map_or(0, |nth| operand_strides[nth])
            };
            moved(shape, operand(0)?, &(0..shape.dims.len()).map(axis_stride).collect::<Vec<_>>())
        }
        Op::Transpose { permutation } => {
            let operand_strides = strides(&operands.first()?.shape.dims);
            let steps: Vec<usize> = permutation.iter().map(|&axis| operand_strides[axis as usize]).collect();
            moved(shape, operand(0)?, &steps)
        }
        Op::Reduce { dimensions, .. } if is_sum && operands.len() == 2 => {
            let summed = &operands[0];
            let result_strides = strides(&shape.dims);
            let mut result_strides = result_strides.iter();
            let is_kept = |axis: usize| !dimensions.contains(&(axis as i64));
            let to: Vec<usize> = (0..summed.shape.dims.len())
                .map(|axis| if is_kept(axis) { result_strides.next().copied().unwrap_or(0) } else { 0 })
                .collect();
            let mut sums = vec![*operand(1)?.first()?; places().len()];
            for (place, &x) in summed.all.iter().enumerate() {
                let sum = &mut sums[flat(place, &summed.shape.dims, &to)];
                *sum = rounded(*sum + x, shape.dtype)?;
            }
            Some(sums)
        }
        _ => None,
    }
}

/// For each axis the distance between neighbours along it, in elements.
fn strides(dims: &[i64]) -> Vec<usize> {
    (0..dims.len()).map(|axis| dims[axis + 1..].iter().product::<i64>() as usize).collect()
}

/// The index into an array with these strides, for the element at `place` of an array of shape `dims`.
fn flat(mut place: usize, dims: &[i64], steps: &[usize]) -> usize {
    let mut index = 0;
    for (&size, step) in dims.iter().zip(steps).rev() {
        index += place % size as usize * step;
        place /= size as usize;
    }
    index
}

/// The array whose element at each place is read with these strides.
fn moved(shape: &ArrayShape, read: &[f64], steps: &[usize]) -> Option<Vec<f64>> {
    Some((0..shape.n_elements() as usize).map(|place| read[flat(place, &shape.dims, steps)]).collect())
}
