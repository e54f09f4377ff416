//! Reductions, argmax and running sums, of exponentials too.
//!
//! Source: `reduction_ops.cc`, `index_ops.cc`, `l2loss_op.cc`, `scan_ops.cc`, `topk_op.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::{CompareKind, Comparison, WindowDim};
use bf16scope_hlo::{BinaryOp, CompId, DType, InstrId, Metadata, Op, Shape, UnaryOp};

pub(super) const TABLE: Table = &[
    ("Sum", |c| c.reduction(BinaryOp::Add)),
    ("Prod", |c| c.reduction(BinaryOp::Multiply)),
    ("Max", |c| c.reduction(BinaryOp::Maximum)),
    ("Min", |c| c.reduction(BinaryOp::Minimum)),
    ("Any", |c| c.reduction(BinaryOp::Or)),
    ("All", all),
    ("Mean", mean),
    ("EuclideanNorm", |c| {
        let (x, axes) = c.reduced()?;
        let (dtype, wide) = (c.dtype(x), c.e().convert(x, c.sums_in(c.dtype(x))));
        let sum = c.e().reduce_sum(c.e().mul(wide, wide), &axes);
        let norm = c.e().convert(c.e().unary(UnaryOp::Sqrt, sum), dtype);
        c.shaped(norm, x, &axes)
    }),
    ("L2Loss", |c| {
        let x = c.array(0)?;
        let axes: Vec<i64> = (0..c.dims(x).len() as i64).collect();
        let wide = c.e().convert(x, c.sums_in(c.dtype(x)));
        let sum = c.e().convert(c.e().reduce_sum(c.e().mul(wide, wide), &axes), c.dtype(x));
        c.one(c.e().div(sum, c.like(sum, 2.0)))
    }),
    ("ArgMax", |c| c.arg(Comparison::Ge, BinaryOp::Maximum)),
    ("ArgMin", |c| c.arg(Comparison::Le, BinaryOp::Minimum)),
    ("Cumsum", |c| c.running(|c, dtype| c.e().scalar_computation(BinaryOp::Add, dtype), 0.0)),
    ("Cumprod", |c| c.running(|c, dtype| c.e().scalar_computation(BinaryOp::Multiply, dtype), 1.0)),
    ("CumulativeLogsumexp", |c| c.running(|c, dtype| c.log_add_exp(dtype), f64::NEG_INFINITY)),
    ("TopKV2", top_k),
    ("InTopKV2", in_top_k),
    ("InTopK", in_top_k),
];

impl Call<'_, '_> {
    /// The first input, and the axes that the second one names.
    fn reduced(&mut self) -> Result<(InstrId, Vec<i64>), Problem> {
        let x = self.array(0)?;
        let axes = self.ints(1)?;
        let mut axes = self.axes(&axes, self.dims(x).len())?;
        axes.sort_unstable();
        axes.dedup();
        Ok((x, axes))
    }

    /// A reduction of `x`, with its axes kept as size 1 if `keep_dims` is set.
    fn shaped(&mut self, reduced: InstrId, x: InstrId, axes: &[i64]) -> Outputs {
        if !self.node.flag("keep_dims") {
            return self.one(reduced);
        }
        let mut dims = self.dims(x);
        axes.iter().for_each(|axis| dims[*axis as usize] = 1);
        self.one(self.e().reshape(reduced, &dims))
    }

    fn reduction(&mut self, op: BinaryOp) -> Outputs {
        let (x, axes) = self.reduced()?;
        let reduced = match op {
            BinaryOp::Add => self.sum(x, &axes),
            BinaryOp::Multiply => {
                let wide = self.e().convert(x, self.sums_in(self.dtype(x)));
                self.e().convert(self.e().reduce(op, wide, &axes), self.dtype(x))
            }
            _ => self.e().reduce(op, x, &axes),
        };
        self.shaped(reduced, x, &axes)
    }

    /// Argmax or argmin: the first of equal elements; the first NaN counts as best.
    fn arg(&mut self, direction: Comparison, op: BinaryOp) -> Outputs {
        let x = self.array(0)?;
        let axis = if self.inputs.len() > 1 { self.int(1)? } else { 0 };
        let dims = self.dims(x);
        let axis = self.axis(axis, dims.len())?;
        let dtype = match self.node.type_number("output_type") {
            Some(_) => self.dtype_of("output_type")?,
            None => DType::S64,
        };
        let first = self.first_best(x, axis, direction, op);
        self.one(self.e().convert(first, dtype))
    }

    /// The index of the first best element along an axis, as s32.
    pub(super) fn first_best(&self, x: InstrId, axis: i64, direction: Comparison, op: BinaryOp) -> InstrId {
        let dims = self.dims(x);
        // The index of each element that is no worse than the best; one past the end for other elements.
        let best = self.e().reduce(op, x, &[axis]);
        let other_axes: Vec<i64> = (0..dims.len() as i64).filter(|other| *other != axis).collect();
        let best = self.e().broadcast(best, &other_axes, &dims);
        let is_best = self.e().compare(direction, x, best);
        let places = self.e().iota(DType::S32, &dims, axis);
        let n = self.like(places, dims.get(axis as usize).copied().unwrap_or(0) as f64);
        if !self.dtype(x).is_float() {
            let places = self.e().select(is_best, places, n);
            return self.e().reduce(BinaryOp::Minimum, places, &[axis]);
        }
        // A NaN comes before all others, and what XLA's CPU takes for the best may be none.
        let is_nan = self.e().compare(Comparison::Ne, x, x);
        let behind = self.e().add(places, n);
        let behind = self.e().select(is_best, behind, self.e().add(n, n));
        let places = self.e().select(is_nan, places, behind);
        let first = self.e().reduce(BinaryOp::Minimum, places, &[axis]);
        let n = self.like(first, dims.get(axis as usize).copied().unwrap_or(0) as f64);
        self.e().binary(BinaryOp::Remainder, first, n)
    }

    /// Cumulative values of a function of two scalars, which gets the dtype of sums, from its neutral element.
    fn running(&mut self, function: fn(&Call<'_, '_>, DType) -> CompId, neutral: f64) -> Outputs {
        let x = self.array(0)?;
        let axis = self.int(1)?;
        let dims = self.dims(x);
        let axis = self.axis(axis, dims.len())? as usize;
        let (n, is_exclusive) = (dims[axis], self.node.flag("exclusive"));
        let (before, after) = if is_exclusive { (n, -1) } else { (n - 1, 0) };
        let pads = if self.node.flag("reverse") { [after, before] } else { [before, after] };
        let dtype = self.dtype(x);
        let wide = self.e().convert(x, self.sums_in(dtype));
        let to_apply = function(self, self.dtype(wide));
        let scan = self.scanned(wide, &dims, axis, (pads, to_apply, neutral));
        self.one(self.e().convert(scan, dtype))
    }

    /// A function, from its neutral element, of as many elements as an axis has, with this padding before and after it.
    fn scanned(&self, x: InstrId, dims: &[i64], axis: usize, function: ([i64; 2], CompId, f64)) -> InstrId {
        let ([low, high], to_apply, neutral) = function;
        let mut window = vec![WindowDim::of_size(1); dims.len()];
        window[axis] = WindowDim { padding_low: low, padding_high: high, ..WindowDim::of_size(dims[axis]) };
        let init = self.e().scalar(self.dtype(x), neutral);
        self.e().emit(Op::ReduceWindow { window, to_apply }, &[x, init], None)
    }

    /// The computation `(x, y) -> log(eˣ + eʸ)` on scalars of floats.
    fn log_add_exp(&self, dtype: DType) -> CompId {
        self.e().with_module_mut(|module| {
            module.made_once(&format!("log_add_exp_{dtype}"), |module, comp| {
                let mut put = |op: Op, operands: &[InstrId], dtype: DType| {
                    module.append(comp, op, operands.to_vec(), Shape::scalar(dtype), Metadata::default())
                };
                let (x, y) = (put(Op::parameter(0), &[], dtype), put(Op::parameter(1), &[], dtype));
                let differ = put(Op::Compare { direction: Comparison::Ne, kind: None }, &[x, y], DType::Pred);
                let apart = put(Op::Binary(BinaryOp::Subtract), &[x, y], dtype);
                // Equal ones are 0 apart, infinities too.
                let zero = put(Op::Convert, &[differ], dtype);
                let apart = put(Op::Select, &[differ, apart, zero], dtype);
                let size = put(Op::Unary(UnaryOp::Abs), &[apart], dtype);
                let below = put(Op::Unary(UnaryOp::Negate), &[size], dtype);
                let share = put(Op::Unary(UnaryOp::Exp), &[below], dtype);
                let more = put(Op::Unary(UnaryOp::Log1p), &[share], dtype);
                let most = put(Op::Binary(BinaryOp::Maximum), &[x, y], dtype);
                put(Op::Binary(BinaryOp::Add), &[most, more], dtype);
            })
        })
    }

    /// For each of a vector's `n` elements the sum up to it.
    pub(super) fn running_sums(&self, x: InstrId, n: i64) -> InstrId {
        let to_apply = self.e().scalar_computation(BinaryOp::Add, self.dtype(x));
        self.scanned(x, &[n], 0, ([n - 1, 0], to_apply, 0.0))
    }

    /// Values and indices sorted along the last axis, greatest first; equal values keep their order. Floats are in their total
    /// order, as in the bridge: a NaN is the largest, or with a minus the smallest.
    pub(super) fn sorted(&self, x: InstrId) -> (InstrId, InstrId) {
        let dims = self.dims(x);
        let axis = dims.len() as i64 - 1;
        let dtype = self.dtype(x);
        let places = self.e().iota(DType::S32, &dims, axis);
        let to_apply = self.e().with_module_mut(|module| {
            module.made_once(&format!("greater_{dtype}_with_place"), |module, comp| {
                let ids: Vec<InstrId> = [(0, dtype), (1, dtype), (2, DType::S32), (3, DType::S32)]
                    .map(|(number, dtype)| {
                        let shape = Shape::scalar(dtype);
                        module.append(comp, Op::parameter(number), Vec::new(), shape, Metadata::default())
                    })
                    .to_vec();
                let kind = dtype.is_float().then_some(CompareKind::TotalOrder);
                let op = Op::Compare { direction: Comparison::Gt, kind };
                module.append(comp, op, ids[..2].to_vec(), Shape::scalar(DType::Pred), Metadata::default());
            })
        });
        let sort = self.e().emit(Op::Sort { dimension: axis, is_stable: true, to_apply }, &[x, places], None);
        (self.e().get_tuple_element(sort, 0), self.e().get_tuple_element(sort, 1))
    }
}

fn all(c: &mut Call<'_, '_>) -> Outputs {
    // All elements hold if not any element fails.
    let (x, axes) = c.reduced()?;
    let is_not = c.e().unary(UnaryOp::Not, x);
    let any = c.e().reduce(BinaryOp::Or, is_not, &axes);
    let all = c.e().unary(UnaryOp::Not, any);
    c.shaped(all, x, &axes)
}

fn mean(c: &mut Call<'_, '_>) -> Outputs {
    let (x, axes) = c.reduced()?;
    let dims = c.dims(x);
    let n: i64 = axes.iter().map(|axis| dims[*axis as usize]).product();
    let dtype = c.dtype(x);
    let wide = c.e().convert(x, c.sums_in(dtype));
    let sum = c.e().reduce_sum(wide, &axes);
    let mean = match axes.is_empty() {
        true => sum,
        false => c.e().div(sum, c.like(sum, n as f64)),
    };
    let mean = c.e().convert(mean, dtype);
    c.shaped(mean, x, &axes)
}

fn top_k(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let k = c.int(1)?;
    let axis = c.axis(-1, c.dims(x).len())?;
    let n = c.dims(x).last().copied().unwrap_or(0);
    if !(0..=n).contains(&k) {
        return Err(Problem::new(format!("it takes {k} of {n} elements")));
    }
    let (values, places) = c.sorted(x);
    let places = c.e().convert(c.slice_axis(places, axis, 0, k), c.node.dtype("index_type").unwrap_or(DType::S32));
    Ok(vec![Value::Array(c.slice_axis(values, axis, 0, k)), Value::Array(places)])
}

/// Whether fewer than k predictions are greater than the target class's prediction.
fn in_top_k(c: &mut Call<'_, '_>) -> Outputs {
    let (predictions, targets) = (c.array(0)?, c.array(1)?);
    let k = match c.node.int("k") {
        Some(k) => k,
        None => c.int(2)?,
    };
    let dims = c.dims(predictions);
    let classes = c.e().iota(c.dtype(targets), &dims, 1);
    let is_target = c.e().compare(Comparison::Eq, classes, c.along(targets, 0, &dims));
    let masked = c.e().select(is_target, predictions, c.like(predictions, 0.0));
    let target = c.e().reduce_sum(masked, &[1]);
    let is_greater = c.e().compare(Comparison::Gt, predictions, c.along(target, 0, &dims));
    let n_greater = c.e().reduce_sum(c.e().convert(is_greater, DType::S32), &[1]);
    let is_in = c.e().compare(Comparison::Lt, n_greater, c.like(n_greater, k as f64));
    let is_finite = c.e().unary(UnaryOp::IsFinite, target);
    c.one(c.e().binary(BinaryOp::And, is_in, is_finite))
}
