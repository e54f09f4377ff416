//! Pooling and its gradients.
//!
//! Averages do not count padding. The place of the first of equal maxima is given, as TensorFlow's CPU kernels give it.
//!
//! Source: `pooling_ops.cc` of `tf2xla/kernels` and XLA's `client/lib/pooling.cc`.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use super::convolution::{MAX_STEP, extent, padding};
use crate::error::Problem;
use bf16scope_hlo::ops::{Comparison, PadDim, SliceDim, WindowDim};
use bf16scope_hlo::{BinaryOp, DType, InstrId, Metadata, Op, Shape};

pub(super) const TABLE: Table = &[
    ("MaxPool", max_pool),
    ("MaxPool3D", max_pool),
    ("AvgPool", avg_pool),
    ("AvgPool3D", avg_pool),
    ("MaxPoolGrad", max_pool_grad),
    ("MaxPool3DGrad", max_pool_grad),
    ("MaxPoolWithArgmax", max_pool_with_places),
    ("MaxPoolGradWithArgmax", max_pool_grad_at_places),
    ("AvgPoolGrad", avg_pool_grad),
    ("AvgPool3DGrad", avg_pool_grad),
];

impl Call<'_, '_> {
    fn pool_window(&self, dims: &[i64]) -> Result<Vec<WindowDim>, Problem> {
        let (sizes, strides) = (self.node.ints("ksize"), self.node.ints("strides"));
        let pads = self.node.ints("explicit_paddings");
        if sizes.len() != dims.len() || strides.len() != dims.len() {
            return Err(Problem::new(format!("its window is {sizes:?} over dims {dims:?}")));
        }
        if sizes.iter().chain(strides).any(|n| !(1..=MAX_STEP).contains(n)) {
            return Err(Problem::new(format!(
                "its window is {sizes:?} in steps of {strides:?}, expected 1 to {MAX_STEP}"
            )));
        }
        let kind = self.node.text("padding");
        let dim = |axis: usize| {
            let explicit = pads.get(2 * axis).copied().zip(pads.get(2 * axis + 1).copied());
            let (low, high) = padding(kind, explicit, dims[axis], sizes[axis], strides[axis])?;
            Ok(WindowDim {
                stride: strides[axis],
                padding_low: low,
                padding_high: high,
                ..WindowDim::of_size(sizes[axis])
            })
        };
        (0..dims.len()).map(dim).collect()
    }

    fn windowed(&self, x: InstrId, op: BinaryOp, init: f64, window: Vec<WindowDim>) -> InstrId {
        let dtype = self.dtype(x);
        let to_apply = self.e().scalar_computation(op, dtype);
        self.e().emit(Op::ReduceWindow { window, to_apply }, &[x, self.e().scalar(dtype, init)], None)
    }

    /// The number of elements of each window that are not padding, in the dtype of `like`.
    fn counts(&self, like: InstrId, dims: &[i64], window: &[WindowDim]) -> InstrId {
        let is_padded = window.iter().any(|dim| (dim.padding_low, dim.padding_high) != (0, 0));
        if !is_padded {
            return self.like(like, window.iter().map(|dim| dim.size as f64).product());
        }
        // A pooling sum of ones counts them.
        let ones = self.e().full(self.dtype(like), dims, 1.0);
        self.windowed(ones, BinaryOp::Add, 0.0, window.to_vec())
    }
}

fn max_pool(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let window = c.pool_window(&c.dims(x))?;
    c.one(c.windowed(x, BinaryOp::Maximum, f64::NEG_INFINITY, window))
}

fn avg_pool(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let (dims, dtype) = (c.dims(x), c.dtype(x));
    let window = c.pool_window(&dims)?;
    let wide = c.e().convert(x, c.sums_in(dtype));
    let sum = c.windowed(wide, BinaryOp::Add, 0.0, window.clone());
    let mean = c.e().div(sum, c.counts(sum, &dims, &window));
    c.one(c.e().convert(mean, dtype))
}

/// Inputs: the input, the result, the cotangent.
fn max_pool_grad(c: &mut Call<'_, '_>) -> Outputs {
    let (x, dy) = (c.array(0)?, c.array(2)?);
    let window = c.pool_window(&c.dims(x))?;
    let dtype = c.dtype(x);
    let zero = c.e().scalar(dtype, 0.0);
    let scatter = c.e().scalar_computation(BinaryOp::Add, dtype);
    let select = c.e().with_module_mut(|module| {
        module.made_once(&format!("ge_{dtype}"), |module, comp| {
            let scalar = Shape::scalar(dtype);
            let ids = [0, 1].map(|number| {
                module.append(comp, Op::parameter(number), Vec::new(), scalar.clone(), Metadata::default())
            });
            let op = Op::Compare { direction: Comparison::Ge, kind: None };
            module.append(comp, op, ids.to_vec(), Shape::scalar(DType::Pred), Metadata::default());
        })
    });
    c.one(c.e().emit(Op::SelectAndScatter { window, select, scatter }, &[x, dy, zero], None))
}

/// The most elements of a window whose maximum's place is looked for: each is a slice of the input.
const MAX_LOOKED_AT: i64 = 1024;

/// The maxima, and their places in an example, or in the batch if `include_batch_in_index` is set.
fn max_pool_with_places(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let (dims, dtype) = (c.dims(x), c.dtype(x));
    let window = c.pool_window(&dims)?;
    let place_dtype = match c.node.type_number("Targmax") {
        Some(_) => c.dtype_of("Targmax")?,
        None => DType::S64,
    };
    let n_looked_at = window.iter().try_fold(1i64, |n, dim| n.checked_mul(dim.size));
    let n_looked_at = n_looked_at.filter(|n| *n <= MAX_LOOKED_AT).ok_or_else(|| {
        Problem::new(format!("its window has more than {MAX_LOOKED_AT} elements"))
            .with_help("tf.nn.max_pool2d has windows of any size")
    })?;
    // Places are numbers in row-major order, and -1 in the padding.
    let first_axis = usize::from(!c.node.flag("include_batch_in_index"));
    let mut places = c.e().full(place_dtype, &dims, 0.0);
    for axis in first_axis..dims.len() {
        let stride: i64 = dims[axis + 1..].iter().product();
        let along = c.e().iota(place_dtype, &dims, axis as i64);
        places = c.e().add(places, c.e().mul_scalar(along, stride as f64));
    }
    let pads: Vec<PadDim> =
        window.iter().map(|dim| PadDim { low: dim.padding_low, high: dim.padding_high, interior: 0 }).collect();
    let x = c.e().pad(x, c.e().scalar(dtype, 0.0), &pads);
    let places = c.e().pad(places, c.e().scalar(place_dtype, -1.0), &pads);
    let padded = c.dims(x);
    if padded.len() != window.len() || padded.iter().zip(&window).any(|(n, dim)| *n < dim.size) {
        return Err(Problem::new(format!("its window is larger than its input of dims {dims:?}")));
    }
    let at = |array: InstrId, mut number: i64| {
        let mut slices = Vec::new();
        for (axis, dim) in window.iter().enumerate().rev() {
            let start = number % dim.size;
            number /= dim.size;
            let n_steps = (padded[axis] - dim.size) / dim.stride;
            slices.insert(0, SliceDim { start, limit: start + n_steps * dim.stride + 1, stride: dim.stride });
        }
        c.e().slice(array, &slices)
    };
    let (mut best, mut place) = (at(x, 0), at(places, 0));
    for number in 1..n_looked_at {
        let (other, other_place) = (at(x, number), at(places, number));
        let is_there = c.e().compare(Comparison::Ge, other_place, c.like(other_place, 0.0));
        let is_first = c.e().compare(Comparison::Lt, place, c.like(place, 0.0));
        let is_more = c.e().compare(Comparison::Gt, other, best);
        let is_taken = c.e().binary(BinaryOp::And, is_there, c.e().binary(BinaryOp::Or, is_first, is_more));
        best = c.e().select(is_taken, other, best);
        place = c.e().select(is_taken, other_place, place);
    }
    Ok(vec![Value::Array(best), Value::Array(place)])
}

/// Inputs: the input, the cotangent, the places of the maxima.
fn max_pool_grad_at_places(c: &mut Call<'_, '_>) -> Outputs {
    let (x, dy, places) = (c.array(0)?, c.array(1)?, c.array(2)?);
    let (dims, dtype, n) = (c.dims(x), c.dtype(dy), c.dims(dy).iter().product::<i64>());
    if c.dims(places) != c.dims(dy) || dims.is_empty() {
        let (wrong, expected) = (c.dims(places), c.dims(dy));
        return Err(Problem::new(format!("its places have dims {wrong:?}, expected {expected:?} of its cotangent")));
    }
    let n_all: i64 = dims.iter().product();
    let mut places = c.e().convert(places, DType::S64);
    if !c.node.flag("include_batch_in_index") {
        let example = c.e().iota(DType::S64, &c.dims(dy), 0);
        let size: i64 = dims[1..].iter().product();
        places = c.e().add(places, c.e().mul_scalar(example, size as f64));
    }
    let wide = c.sums_in(dtype);
    let shares = c.e().reshape(c.e().convert(dy, wide), &[n]);
    let zeros = c.e().full(wide, &[n_all], 0.0);
    let sums = c.scattered(zeros, c.e().reshape(places, &[n]), shares, 0, Some(BinaryOp::Add));
    c.one(c.e().reshape(c.e().convert(sums, dtype), &dims))
}

/// Inputs: the input's dims, the cotangent.
fn avg_pool_grad(c: &mut Call<'_, '_>) -> Outputs {
    let dims = c.ints(0)?;
    let dy = c.array(1)?;
    let dy_dims = c.check_cotangent(&dims, dy)?;
    let window = c.pool_window(&dims)?;
    let dtype = c.dtype(dy);
    let wide = c.e().convert(dy, c.sums_in(dtype));
    let shares = c.e().div(wide, c.counts(wide, &dims, &window));
    // Each share goes to all elements of its window: a sum over the windows that hold an element.
    let spread: Vec<WindowDim> = window
        .iter()
        .enumerate()
        .map(|(axis, dim)| {
            let low = dim.size - 1 - dim.padding_low;
            WindowDim {
                base_dilation: dim.stride,
                padding_low: low,
                padding_high: (dims[axis] + dim.size - 1 - low).saturating_sub(extent(dy_dims[axis], dim.stride)),
                ..WindowDim::of_size(dim.size)
            }
        })
        .collect();
    let sum = c.windowed(shares, BinaryOp::Add, 0.0, spread);
    c.one(c.e().convert(sum, dtype))
}
