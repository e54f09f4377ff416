//! Dropout, from an explicit random state.

use crate::graph::{Init, Scope, Tensor};
use crate::hlo::ops::{Comparison, RngAlgorithm, RuleError};
use crate::hlo::{DType, Op, Shape};

/// In a program that trains, zeroes each element with probability `rate` and multiplies the others by `1 / (1 - rate)`;
/// otherwise, and at rate 0, gives x.
///
/// The mask comes from `rng-bit-generator` (three-fry, so that every back end makes the same one) and the layer's own
/// variable `state`, which each call replaces: a run that is resumed from a checkpoint sees the masks that it would
/// have seen without stopping.
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
        let state = s.state("state", DType::U64, [2], Init::RandomBits);
        let declared = Shape::Tuple(vec![Shape::array(DType::U64, [2]), Shape::array(DType::U32, x.dims())]);
        let op = Op::RngBitGenerator(RngAlgorithm::ThreeFry);
        let both = state.value.emit("rng-bit-generator", &[], |e| e.emit(op, &[state.value.id], Some(&declared)));
        s.graph().set_update(state.number, &both.get_tuple_element(0));
        let bits = both.get_tuple_element(1);
        let threshold = s.graph().full(DType::U32, &x.dims(), (rate * 2f64.powi(32)).floor());
        let is_kept = bits.compare(Comparison::Ge, &threshold);
        let zeros = s.graph().full(x.dtype(), &x.dims(), 0.0);
        is_kept.select(&(x * (1.0 / (1.0 - rate))), &zeros)
    })
}

fn check(x: &Tensor, rate: f64) -> Result<(), RuleError> {
    super::is_float("dropout/dtype", "x", x)?;
    if (0.0..1.0).contains(&rate) {
        return Ok(());
    }
    Err(RuleError::new("dropout/rate", format!("rate is {rate}, expected 0 up to but not including 1")))
}
