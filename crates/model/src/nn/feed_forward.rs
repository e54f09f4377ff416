//! A transformer's feed-forward network: the two dense layers after attention.

use super::activation::{gelu_again, of_gelu};
use super::dense::{self, Dense};
use super::{Gelu, gelu};
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::ops::DotDims;
use bf16scope_hlo::{DType, Emitter, InstrId};

/// Configuration of [`feed_forward`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeedForward {
    /// Units of the first layer.
    pub hidden: i64,
    /// Units of the second.
    pub units: i64,
    /// The form of the gelu in between.
    pub gelu: Gelu,
    /// The kernel initializer.
    pub kernel_initializer: Init,
    /// Whether the backward pass rematerialises the hidden layer, which repeats its product.
    pub remat_hidden: bool,
}

/// `gelu(x · kernel1 + bias1) · kernel2 + bias2`: [`dense`](super::dense), [`gelu`], [`dense`](super::dense).
///
/// # Shapes
/// x `[…, inputs]` → `[…, units]`; the variables of two dense layers, `dense1` and `dense2`.
///
/// # Types
/// As the layers that it consists of.
///
/// # Gradient
/// That of the layers. With [`FeedForward::remat_hidden`] the hidden layer is rematerialised with the same operations
/// when the cotangent is available: the values are the same, and `[…, hidden]` is not a residual.
///
/// # Errors
/// As [`dense`](super::dense).
#[track_caller]
pub fn feed_forward(s: &Scope, x: &Tensor, config: &FeedForward) -> Tensor {
    let _open = s.graph().open_layer();
    let with_units = |units| Dense { units, kernel_initializer: config.kernel_initializer, ..Dense::default() };
    let layers = dense::parts(s, x, "dense1", &with_units(config.hidden)).and_then(|first| {
        let second = dense::parts(s, &gelu(&first.result, config.gelu), "dense2", &with_units(config.units))?;
        Ok([first, second])
    });
    let [first, second] = match layers {
        Ok(layers) => layers,
        Err(poison) => return poison,
    };
    let (Some(bias1), Some(bias2), true) = (first.bias, second.bias, config.remat_hidden) else { return second.result };
    let kernels = [first.kernel.stored.id, first.kernel.value.id, second.kernel.value.id];
    let residuals = FeedForwardResiduals { x: x.id, kernels, bias1: bias1.value.id, gelu: config.gelu };
    let inputs = [x, &first.kernel.value, &bias1.value, &second.kernel.value, &bias2.value];
    second.result.with_layer_vjp(&inputs, move |e, g, _| of_layers(e, g, &residuals))
}

/// The residuals of [`feed_forward`].
struct FeedForwardResiduals {
    x: InstrId,
    /// The first kernel as stored and as read, the second as read.
    kernels: [InstrId; 3],
    bias1: InstrId,
    gelu: Gelu,
}

/// The cotangents of x, and of the kernel and bias of each layer.
fn of_layers(e: &Emitter, g: InstrId, residuals: &FeedForwardResiduals) -> Vec<InstrId> {
    let FeedForwardResiduals { x, kernels: [stored, kernel1, kernel2], bias1, gelu } = *residuals;
    let dtype = e.dtype(g);
    let last = e.dims(g).len() as i64 - 1;
    let leading: Vec<i64> = (0..last).collect();
    let dot = |lhs, rhs, lhs_contracting: &[i64], rhs_contracting: &[i64]| {
        let (lhs_contracting, rhs_contracting) = (lhs_contracting.to_vec(), rhs_contracting.to_vec());
        e.dot(lhs, rhs, DotDims { lhs_contracting, rhs_contracting, ..DotDims::default() })
    };
    let wide = if dtype.bits() < 32 { DType::F32 } else { dtype };
    let sum = |g| e.convert(e.reduce_sum(e.convert(g, wide), &leading), dtype);
    // The variable exists anyway. Without this barrier with the cotangent, the compiler would reuse and keep the
    // forward pass's product, or compute it too early.
    let [stored, late] = e.barrier([stored, g]);
    let again = e.convert(stored, e.dtype(kernel1));
    let product = dot(x, again, &[last], &[0]);
    let hidden = e.add(product, e.broadcast(bias1, &[last], &e.dims(product)));
    let of_hidden = of_gelu(e, dot(late, kernel2, &[last], &[1]), hidden, gelu);
    vec![
        dot(of_hidden, again, &[last], &[1]),
        dot(x, of_hidden, &leading, &leading),
        sum(of_hidden),
        dot(gelu_again(e, hidden, gelu), g, &leading, &leading),
        sum(g),
    ]
}
