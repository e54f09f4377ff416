//! Pooling and its gradients.
//!
//! Averages do not count padding.
//!
//! Source: `pooling_ops.cc` of `tf2xla/kernels` and XLA's `client/lib/pooling.cc`.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use super::convolution::padding;
use crate::error::Problem;
use bf16scope_hlo::ops::{Comparison, WindowDim};
use bf16scope_hlo::{BinaryOp, InstrId, Metadata, Op, Shape};

pub(super) const TABLE: Table = &[
    ("MaxPool", max_pool),
    ("MaxPool3D", max_pool),
    ("AvgPool", avg_pool),
    ("AvgPool3D", avg_pool),
    ("MaxPoolGrad", max_pool_grad),
    ("MaxPool3DGrad", max_pool_grad),
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
        if sizes.iter().chain(strides).any(|n| *n < 1) {
            return Err(Problem::new(format!("its window is {sizes:?} in steps of {strides:?}, expected 1 or more")));
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
            return self.like(like, window.iter().map(|dim| dim.size).product::<i64>() as f64);
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
            module.append(comp, op, ids.to_vec(), Shape::scalar(bf16scope_hlo::DType::Pred), Metadata::default());
        })
    });
    c.one(c.e().emit(Op::SelectAndScatter { window, select, scatter }, &[x, dy, zero], None))
}

/// Inputs: the input's dims, the cotangent.
fn avg_pool_grad(c: &mut Call<'_, '_>) -> Outputs {
    let dims = c.ints(0)?;
    let dy = c.array(1)?;
    let window = c.pool_window(&dims)?;
    let dtype = c.dtype(dy);
    let wide = c.e().convert(dy, c.sums_in(dtype));
    let shares = c.e().div(wide, c.counts(wide, &dims, &window));
    // Each share goes to all elements of its window: a sum over the windows that hold an element.
    let dy_dims = c.dims(dy);
    let spread: Vec<WindowDim> = window
        .iter()
        .enumerate()
        .map(|(axis, dim)| {
            let dilated = if dy_dims[axis] == 0 { 0 } else { (dy_dims[axis] - 1) * dim.stride + 1 };
            let low = dim.size - 1 - dim.padding_low;
            WindowDim {
                base_dilation: dim.stride,
                padding_low: low,
                padding_high: dims[axis] + dim.size - 1 - dilated - low,
                ..WindowDim::of_size(dim.size)
            }
        })
        .collect();
    let sum = c.windowed(shares, BinaryOp::Add, 0.0, spread);
    c.one(c.e().convert(sum, dtype))
}
