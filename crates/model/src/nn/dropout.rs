//! Dropout, of elements or of whole examples, from an explicit random state.

use super::activation::{SELU_ALPHA, SELU_SCALE};
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::ops::{Comparison, RngAlgorithm, RuleError};
use bf16scope_hlo::{DType, Op, Shape};

/// In training, zeroes each element with probability `rate` and multiplies the others by `1 / (1 - rate)`; otherwise,
/// and at rate 0, returns x.
///
/// The mask comes from `rng-bit-generator` (three-fry, so that every back end computes the same) and the layer's own
/// variable `state`, which each call replaces: a resumed run has the masks of one that did not stop.
///
/// # Shapes
/// x any → the same; variable `state` `u64[2]`, not trainable.
///
/// # Types
/// In the dtype of x; `1 / (1 - rate)` and the product are rounded to it. An element is kept where 32 random bits are at
/// least `rate · 2^32`, so the probability is exact to 2^-32.
///
/// # Errors
/// A rate outside `[0, 1)`; x not floating.
///
/// # Source
/// Srivastava et al. 2014, inverted as TensorFlow's `nn.dropout`.
#[track_caller]
pub fn dropout(s: &Scope, x: &Tensor, name: &str, rate: f64) -> Tensor {
    dropped(s, x, name, rate, (&axes(x), 0.0))
}

/// [`dropout`] that keeps the mean of 0 and the variance of 1 that `selu` gives: a dropped element is its least value.
///
/// # Shapes, types, errors
/// As [`dropout`].
///
/// # Source
/// Klambauer et al. 2017; Keras' `AlphaDropout`.
#[track_caller]
pub fn alpha_dropout(s: &Scope, x: &Tensor, name: &str, rate: f64) -> Tensor {
    dropped(s, x, name, rate, (&axes(x), -SELU_SCALE * SELU_ALPHA))
}

fn axes(x: &Tensor) -> Vec<i64> {
    (0..x.rank() as i64).collect()
}

/// [`dropout`] of whole channels of each example: neighbouring elements are alike, and would reveal dropped ones.
///
/// # Shapes
/// x `[batch, …, channels]` → the same; variable `state` as [`dropout`]'s.
///
/// # Types
/// As [`dropout`].
///
/// # Errors
/// As [`dropout`]; x of a rank below 3.
///
/// # Source
/// Tompson et al. 2015; Keras' `SpatialDropout1D` to `SpatialDropout3D`.
#[track_caller]
pub fn spatial_dropout(s: &Scope, x: &Tensor, name: &str, rate: f64) -> Tensor {
    if x.rank() < 3 && !x.is_poison() {
        let message = format!("x {} has rank {}, expected 3 or more: [batch, …, channels]", x.shape(), x.rank());
        let error = RuleError::new("spatial_dropout/rank", message).with_help("write `dropout` for vectors");
        return s.graph().fail("spatial_dropout", &[x], error);
    }
    dropped(s, x, name, rate, (&[0, x.rank() as i64 - 1], 0.0))
}

/// Stochastic depth: in training, zeroes each example with probability `rate` and multiplies the others by `1 / (1 -
/// rate)`; otherwise, and at rate 0, returns x. Applied to the branch of a residual connection, it drops the branch.
///
/// # Shapes
/// x `[batch, …]` → the same; variable `state` as [`dropout`]'s.
///
/// # Types
/// As [`dropout`].
///
/// # Errors
/// As [`dropout`]; x of rank 0.
///
/// # Source
/// Huang et al. 2016; TensorFlow's TPU models call it `drop_connect`.
#[track_caller]
pub fn stochastic_depth(s: &Scope, x: &Tensor, name: &str, rate: f64) -> Tensor {
    match x.dims().first() {
        Some(_) => dropped(s, x, name, rate, (&[0], 0.0)),
        None if x.is_poison() => x.clone(),
        None => {
            let error = RuleError::new("stochastic_depth/rank", "x is a scalar, expected [batch, …]");
            s.graph().fail("stochastic_depth", &[x], error)
        }
    }
}

/// [`dropout`] that drops all elements along these axes together, to `least`. If that is not 0, all are scaled and
/// shifted then, to the mean and variance that they had.
#[track_caller]
fn dropped(s: &Scope, x: &Tensor, name: &str, rate: f64, (axes, least): (&[i64], f64)) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        if let Err(error) = check(x, rate) {
            return s.graph().fail("dropout", &[x], error);
        }
        if !s.is_training() || rate == 0.0 {
            return x.clone();
        }
        let dims: Vec<i64> = axes.iter().map(|&axis| x.dims()[axis as usize]).collect();
        let bits = random_bits(s, &dims);
        let threshold = s.graph().full(DType::U32, &dims, (rate * 2f64.powi(32)).floor());
        let is_kept = bits.compare(Comparison::Ge, &threshold);
        let is_kept = match axes.len() == x.rank() {
            true => is_kept,
            false => is_kept.broadcast_in_dim(&x.dims(), axes),
        };
        if least == 0.0 {
            let zeros = s.graph().full(x.dtype(), &x.dims(), 0.0);
            return is_kept.select(&(x * (1.0 / (1.0 - rate))), &zeros);
        }
        let factor = ((1.0 - rate) * (1.0 + rate * least * least)).sqrt().recip();
        let offset = -factor * least * rate;
        let values = s.graph().full(x.dtype(), &x.dims(), factor * least + offset);
        is_kept.select(&(x * factor + offset), &values)
    })
}

/// Random words of these dims, from the variable `state`, which each call replaces.
#[track_caller]
pub(super) fn random_bits(s: &Scope, dims: &[i64]) -> Tensor {
    let state = s.state("state", DType::U64, [2], Init::RandomBits);
    let declared = Shape::Tuple(vec![Shape::array(DType::U64, [2]), Shape::array(DType::U32, dims)]);
    let op = Op::RngBitGenerator(RngAlgorithm::ThreeFry);
    let both = state.value.emit("rng-bit-generator", &[], |e| e.emit(op, &[state.value.id], Some(&declared)));
    s.graph().set_update(state.number, &both.get_tuple_element(0));
    both.get_tuple_element(1)
}

fn check(x: &Tensor, rate: f64) -> Result<(), RuleError> {
    super::is_float("dropout/dtype", "x", x)?;
    if (0.0..1.0).contains(&rate) {
        return Ok(());
    }
    Err(RuleError::new("dropout/rate", format!("rate is {rate}, expected 0 up to but not including 1")))
}
