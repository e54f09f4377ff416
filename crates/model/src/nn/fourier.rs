//! Discrete Fourier transforms of axes of examples, as products with their matrices.
//!
//! HLO's `fft` needs complex arrays, which the IR carries and does not differentiate, and a matrix unit multiplies faster
//! than a TPU transforms an axis of up to some thousand elements (Lee-Thorp et al. 2021, FNet). A product has a gradient,
//! and compiles for every target.

use crate::graph::Tensor;
use bf16scope_hlo::ops::{DotDims, OperandPrecision, PrecisionConfig, RuleError};
use bf16scope_hlo::{DType, Op};
use std::f64::consts::TAU;

/// The longest axis: its two matrices have 128 MiB each.
const LONGEST: i64 = 5792;

/// The real and the imaginary part of an array; without the second it is real.
#[derive(Clone, Debug)]
pub struct Complex {
    /// The real part.
    pub real: Tensor,
    /// The imaginary part.
    pub imaginary: Option<Tensor>,
}

/// Which way a transform goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// `Σ x·exp(-2πi·jk/n)`.
    Forward,
    /// `1/n · Σ x·exp(2πi·jk/n)`.
    Inverse,
}

/// The discrete Fourier transform of x along axes, counting the batch; of the last of them only the first `n_bins`
/// frequencies, if that is said.
///
/// # Shapes
/// x `[…, n, …]` → the same, or `[…, n_bins, …]`.
///
/// # Types
/// f32, in any precision, as TensorFlow's transforms are complex64: bf16 and f16 are widened, the result is f32. Products
/// are of f32 on a TPU, too. Each axis is a sum of n products: its error is at most about n·2^-24 of the largest sum of
/// absolute values.
///
/// # Gradient
/// The gradient of the products. TensorFlow's gradients of `fft`, `rfft` and their inverses are the same sums.
///
/// # Errors
/// x not floating, or parts of different shapes; axes that x does not have, the batch's, one of them twice, or longer
/// than 5,792.
///
/// # Source
/// TensorFlow's `fft`, `fft2d`, `ifft` and, with `n_bins`, `rfft`.
#[track_caller]
pub fn fourier(x: &Complex, axes: &[i64], transform: Transform, n_bins: Option<i64>) -> Complex {
    let parts = || [&x.real].into_iter().chain(x.imaginary.as_ref());
    if let Some(poison) = parts().find(|part| part.is_poison()) {
        return Complex { real: poison.clone(), imaginary: Some(poison.clone()) };
    }
    let axes = match checked(x, axes) {
        Ok(axes) => axes,
        Err(error) => {
            let poison = x.real.graph().fail("fourier", &parts().collect::<Vec<_>>(), error);
            return Complex { real: poison.clone(), imaginary: Some(poison) };
        }
    };
    let mut y =
        Complex { real: x.real.cast(DType::F32), imaginary: x.imaginary.as_ref().map(|it| it.cast(DType::F32)) };
    for (at, &axis) in axes.iter().enumerate() {
        let n_bins = n_bins.filter(|_| at + 1 == axes.len());
        y = along(&y, axis, transform, n_bins);
    }
    y
}

/// The real array along the last of `axes` whose first frequencies x has, as [`fourier`] with `n_bins` gives them: of
/// `length` elements there. Along the other axes it is the inverse transform.
///
/// # Shapes
/// x `[…, length / 2 + 1, …]` → `[…, length, …]`.
///
/// # Types
/// As [`fourier`].
///
/// # Errors
/// As [`fourier`]; a number of frequencies that is not `length / 2 + 1`.
///
/// # Source
/// TensorFlow's `irfft`, `irfft2d`: the imaginary parts of the frequencies 0 and `length / 2` have no effect.
#[track_caller]
pub fn inverse_real_fourier(x: &Complex, axes: &[i64], length: Option<i64>) -> Tensor {
    let Some((&last, others)) = axes.split_last() else { return x.real.clone() };
    let y = fourier(x, others, Transform::Inverse, None);
    if let Err(error) = checked(&y, &[last]) {
        return y.real.graph().fail("fourier", &[&y.real], error);
    }
    if y.real.is_poison() {
        return y.real;
    }
    let axis = y.real.axis(last) as usize;
    let (graph, n_bins) = (y.real.graph(), y.real.dims()[axis]);
    let length = length.unwrap_or(2 * (n_bins - 1));
    if length / 2 + 1 != n_bins || length < 1 {
        let message = format!(
            "x {} has {n_bins} frequencies along axis {axis}, expected {} for a length of {length}",
            y.real.shape(),
            length / 2 + 1
        );
        let help = format!("{n_bins} frequencies are of {} or {} numbers", 2 * (n_bins - 1), 2 * n_bins - 1);
        return graph.fail("fourier", &[&y.real], RuleError::new("fourier/length", message).with_help(help));
    }
    // All frequencies but the first, and the middle one of an even length, stand for two.
    let frequency = graph.iota(DType::S32, &[n_bins, length], 0);
    let full = |value: i64| graph.full(DType::S32, &[n_bins, length], value as f64);
    let is_alone = frequency.equal(&full(0));
    let is_middle = (&frequency + &frequency).equal(&full(length));
    let share = |value: f64| graph.full(DType::F32, &[n_bins, length], value / length as f64);
    let weights = is_alone.select(&share(1.0), &is_middle.select(&share(1.0), &share(2.0)));
    let [cosines, sines] = matrices(&y.real, length, [n_bins, length]).map(|matrix| matrix * &weights);
    let real = product(&y.real.cast(DType::F32), &cosines, axis);
    match &y.imaginary {
        None => real,
        Some(imaginary) => real - product(&imaginary.cast(DType::F32), &sines, axis),
    }
}

/// The axes, from 0.
fn checked(x: &Complex, axes: &[i64]) -> Result<Vec<i64>, RuleError> {
    let real = &x.real;
    super::is_float("fourier/dtype", "x", real)?;
    if let Some(imaginary) = &x.imaginary
        && (imaginary.shape() != real.shape())
    {
        let message =
            format!("the real part is {} and the imaginary {}, expected one shape", real.shape(), imaginary.shape());
        return Err(RuleError::new("fourier/parts", message));
    }
    let from_0 = real.axes(axes);
    let is_twice = (1..from_0.len()).any(|at| from_0[..at].contains(&from_0[at]));
    if is_twice || from_0.iter().any(|axis| !(1..real.rank() as i64).contains(axis)) {
        let message = format!("axes are {axes:?}, expected axes of {} after the batch, each once", real.shape());
        return Err(RuleError::new("fourier/axes", message));
    }
    match from_0.iter().find(|&&axis| real.dims()[axis as usize] > LONGEST) {
        None => Ok(from_0),
        Some(&axis) => {
            let n = real.dims()[axis as usize];
            let message = format!("axis {axis} of {} has {n} elements, expected at most {LONGEST}", real.shape());
            let help =
                "a transform is a product with an n×n matrix here: cut the axis into shorter windows, by `reshape`";
            Err(RuleError::new("fourier/length", message).with_help(help))
        }
    }
}

#[track_caller]
fn along(x: &Complex, axis: i64, transform: Transform, n_bins: Option<i64>) -> Complex {
    let n = x.real.dims()[axis as usize];
    let [cosines, sines] = matrices(&x.real, n, [n, n_bins.unwrap_or(n)]);
    let (cosines, sines) = match transform {
        Transform::Forward => (cosines, sines.negate()),
        Transform::Inverse => (cosines / n as f64, sines / n as f64),
    };
    let times = |x: &Tensor, matrix: &Tensor| product(x, matrix, axis as usize);
    let (real, imaginary) = (times(&x.real, &cosines), times(&x.real, &sines));
    let (real, imaginary) = match &x.imaginary {
        None => (real, imaginary),
        Some(other) => (real - times(other, &sines), imaginary + times(other, &cosines)),
    };
    Complex { real, imaginary: Some(imaginary) }
}

/// cos and sin of `2π·jk/n` for the rows j and columns k of a matrix with these dims. The product of j and k is taken
/// modulo n as whole numbers, so an angle is exact but for one rounding.
#[track_caller]
fn matrices(x: &Tensor, n: i64, dims: [i64; 2]) -> [Tensor; 2] {
    let graph = x.graph();
    let [j, k] = [0, 1].map(|axis| graph.iota(DType::S32, &dims, axis));
    let turns = (j * &k).binary_scalar(bf16scope_hlo::ops::BinaryOp::Remainder, n as f64);
    let angles = turns.cast(DType::F32) * (TAU / n as f64);
    [angles.cosine(), angles.sine()]
}

/// x by a matrix, along an axis, in f32 on a TPU too.
#[track_caller]
fn product(x: &Tensor, matrix: &Tensor, axis: usize) -> Tensor {
    let precision = PrecisionConfig { operand_precision: vec![OperandPrecision::Highest; 2], algorithm: None };
    let dims = DotDims { lhs_contracting: vec![axis as i64], rhs_contracting: vec![0], ..DotDims::default() };
    let product = x.emit("fourier", &[matrix], |e| e.emit(Op::Dot { dims, precision }, &[x.id, matrix.id], None));
    // The new axis is the last.
    let (rank, mut order) = (x.rank() as i64, Vec::new());
    order.extend(0..axis as i64);
    order.push(rank - 1);
    order.extend(axis as i64..rank - 1);
    product.transpose(&order)
}
