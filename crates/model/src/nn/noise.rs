//! Noise in training, from an explicit random state.

use super::dropout::random_bits;
use crate::graph::{Scope, Tensor};
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::{BinaryOp, RuleError};
use std::f64::consts::TAU;

/// In training, adds normal numbers of mean 0 and this standard deviation; otherwise returns x.
///
/// # Shapes
/// x any → the same; variable `state` as [`dropout`](super::dropout)'s.
///
/// # Types
/// Numbers are computed in f32 from 2 · 32 random bits each (Box & Muller 1958) and rounded to the dtype of x, in which
/// they are added.
///
/// # Errors
/// A standard deviation below 0, or not finite; x not floating.
///
/// # Source
/// Keras' `GaussianNoise`.
#[track_caller]
pub fn gaussian_noise(s: &Scope, x: &Tensor, name: &str, stddev: f64) -> Tensor {
    s.layer(name, |s| match drawn(s, x, "gaussian_noise", stddev) {
        Ok(Some(noise)) => x + (noise * stddev).cast(x.dtype()),
        Ok(None) => x.clone(),
        Err(poison) => poison,
    })
}

/// In training, multiplies by normal numbers of mean 1 and standard deviation `√(rate / (1 - rate))`; otherwise returns
/// x.
///
/// # Shapes, types
/// As [`gaussian_noise`].
///
/// # Errors
/// A rate outside `[0, 1)`; x not floating.
///
/// # Source
/// Keras' `GaussianDropout`; Srivastava et al. 2014.
#[track_caller]
pub fn gaussian_dropout(s: &Scope, x: &Tensor, name: &str, rate: f64) -> Tensor {
    let stddev = if (0.0..1.0).contains(&rate) { (rate / (1.0 - rate)).sqrt() } else { -1.0 };
    s.layer(name, |s| match drawn(s, x, "gaussian_dropout", stddev) {
        Ok(Some(noise)) => x * (noise * stddev + 1.0).cast(x.dtype()),
        Ok(None) => x.clone(),
        Err(poison) => poison,
    })
}

/// Standard normal numbers with x's dims, f32; `None` outside of training.
#[track_caller]
fn drawn(s: &Scope, x: &Tensor, what: &'static str, stddev: f64) -> Result<Option<Tensor>, Tensor> {
    if x.is_poison() {
        return Err(x.clone());
    }
    let fits = super::is_float("noise/dtype", "x", x).and_then(|()| match stddev >= 0.0 && stddev.is_finite() {
        true => Ok(()),
        false => Err(RuleError::new(
            "noise/stddev",
            format!("the noise's standard deviation is {stddev}, expected at least 0"),
        )),
    });
    if let Err(error) = fits {
        return Err(s.graph().fail(what, &[x], error));
    }
    if !s.is_training() || stddev == 0.0 {
        return Ok(None);
    }
    let dims = x.dims();
    let both = random_bits(s, &[&[2], &dims[..]].concat());
    // In (0, 1]: 24 bits, which f32 holds exactly, plus one.
    let uniform = ((both.binary(BinaryOp::ShiftRightLogical, &s.graph().full(DType::U32, &both.dims(), 8.0)))
        .cast(DType::F32)
        + 1.0)
        * 2f64.powi(-24);
    let half = |at: i64| {
        let mut slices: Vec<_> =
            uniform.dims().iter().map(|&limit| bf16scope_hlo::ops::SliceDim { start: 0, limit, stride: 1 }).collect();
        (slices[0].start, slices[0].limit) = (at, at + 1);
        uniform.slice(&slices).reshape(dims.clone())
    };
    let radius = (half(0).log() * -2.0).sqrt();
    Ok(Some(radius * (half(1) * TAU).cosine()))
}
