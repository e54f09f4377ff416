//! How far one floating array is from another: the error measures of an audit.
//!
//! A [`Comparison`] takes pairs of arrays (a *reference* and the array that was *measured*) and computes their
//! [`Errors`]. The two may have different dtypes; every element is widened to f64, which is exact, and all sums are
//! f64. It has no thresholds: the caller judges the errors.
//!
//! Definitions:
//! - differences are taken between finite elements; an element that is not finite, and differs from its reference, is
//!   counted, and makes [`Errors::scaled`] infinite. Two NaNs are equal;
//! - the relative error of an element is `|x − r| / |r|`, and undefined if `r` is zero;
//! - an error *in bf16 ulp* is `|x − r|` over the distance of adjacent bf16 numbers at `r`, whatever the dtypes:
//!   rounding to bf16 once is at most half of it. It is undefined if `r` is zero, too: an ulp there is 2^-133.

use serde::Serialize;
use std::marker::PhantomData;

use crate::{DType, Float, FloatVisitor};

/// The errors of a comparison. JSON has no infinity: an infinite number is written as `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Errors {
    /// Elements compared; a complex one counts twice.
    pub n_elements: u64,
    /// Elements of the reference that are a NaN or an infinity; if the other array has the same one, the figures below
    /// do not count them.
    pub n_not_finite: u64,
    /// Largest `|x − r|`.
    pub max_abs: f64,
    /// Mean `|x − r|`.
    pub mean_abs: f64,
    /// Largest `|x − r| / |r|` where `r` is not zero.
    pub max_rel: f64,
    /// Mean of the same.
    pub mean_rel: f64,
    /// Largest error in bf16 ulp, where `r` is not zero.
    pub max_ulp: f64,
    /// Mean of the same.
    pub mean_ulp: f64,
    /// `Σxr / (‖x‖·‖r‖)`; 1 if both are zero, 0 if one is.
    pub cosine: f64,
    /// The *scaled error*: largest `|x − r|` over largest `|r|`. Infinite if an element is not finite and differs from
    /// its reference, or if all of `r` is zero and `x` is not.
    pub scaled: f64,
    /// Elements that are a NaN or an infinity that the reference does not have.
    pub n_introduced: u64,
    /// Share of elements that are infinite where the reference is finite.
    pub overflowed: f64,
    /// Share of elements that are subnormal in their dtype where the reference is not in its.
    pub subnormal: f64,
    /// Share of elements that are zero where the reference is not.
    pub flushed: f64,
}

/// Accumulates [`Errors`] over pairs of arrays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Comparison {
    n: u64,
    n_finite: u64,
    n_not_finite: u64,
    n_nonzero: u64,
    n_introduced: u64,
    n_lost: u64,
    n_overflowed: u64,
    n_subnormal: u64,
    n_flushed: u64,
    max_reference: f64,
    max_abs: f64,
    sum_abs: f64,
    max_rel: f64,
    sum_rel: f64,
    max_ulp: f64,
    sum_ulp: f64,
    product: f64,
    square_measured: f64,
    square_reference: f64,
}

/// The dtype, if it is one of the four supported ones; `None` for other dtypes, including floats of 8 bits and less.
fn kind(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Some(dtype),
        DType::C64 => Some(DType::F32),
        DType::C128 => Some(DType::F64),
        _ => None,
    }
}

/// Whether arrays of this dtype can be compared.
pub fn is_comparable(dtype: DType) -> bool {
    kind(dtype).is_some()
}

/// The distance of adjacent bf16 numbers at `value`, which is finite; below the normal range that of subnormal
/// numbers.
pub fn bf16_ulp(value: f64) -> f64 {
    power_of_two(ulp_exponent(value))
}

fn ulp_exponent(value: f64) -> i64 {
    let exponent = (value.to_bits() >> 52 & 0x7FF) as i64 - 1023;
    exponent.clamp(-126, 127) - 7
}

/// Whether a magnitude is finite; false for a NaN too.
fn is_finite(magnitude: f64) -> bool {
    magnitude < f64::INFINITY
}

/// The power of two with this exponent, which must be that of a normal f64.
fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// Two arrays, with the dtype of the first as a type parameter.
struct Reference<'a> {
    comparison: &'a mut Comparison,
    reference: &'a [u8],
    measured: (DType, &'a [u8]),
}

/// Two arrays, with the dtypes of both as type parameters.
struct Measured<'a, R> {
    comparison: &'a mut Comparison,
    reference: &'a [u8],
    measured: &'a [u8],
    reference_type: PhantomData<R>,
}

impl FloatVisitor for Reference<'_> {
    type Output = ();

    fn visit<R: Float>(self) {
        let Reference { comparison, reference, measured: (dtype, measured) } = self;
        let both = Measured { comparison, reference, measured, reference_type: PhantomData::<R> };
        dtype.visit_float(both).expect("comparable dtypes are of floats");
    }
}

impl<R: Float> FloatVisitor for Measured<'_, R> {
    type Output = ();

    fn visit<X: Float>(self) {
        self.comparison.add_pairs::<R, X>(self.reference, self.measured);
    }
}

impl Comparison {
    /// Compares two arrays of the same dims, each dense and little-endian.
    ///
    /// # Panics
    /// If a dtype is not [`is_comparable`] or the arrays have different numbers of elements: a bug of the caller.
    pub fn add(&mut self, reference: (DType, &[u8]), measured: (DType, &[u8])) {
        let [reference_kind, measured_kind] =
            [reference.0, measured.0].map(|dtype| kind(dtype).expect("the caller compares comparable dtypes"));
        let pair = Reference { comparison: self, reference: reference.1, measured: (measured_kind, measured.1) };
        reference_kind.visit_float(pair).expect("comparable dtypes are of floats");
    }

    /// The loop over elements is compiled for each pair of types, and written so that even a debug build, where calls
    /// are not inlined, makes few calls per element.
    fn add_pairs<R: Float, X: Float>(&mut self, reference: &[u8], measured: &[u8]) {
        let (references, measures) = (R::chunks(reference), X::chunks(measured));
        assert_eq!(measures.len(), references.len(), "arrays of one shape have the same number of elements");
        if R::DTYPE == X::DTYPE && reference == measured {
            for &r in references {
                self.same_element(R::from_le(r).to_f64());
            }
            return;
        }
        for (&r, &x) in references.iter().zip(measures) {
            self.element(R::from_le(r).to_f64(), X::from_le(x).to_f64(), R::MIN_NORMAL, X::MIN_NORMAL);
        }
    }

    /// As [`element`](Self::element), for an element that equals its reference.
    fn same_element(&mut self, r: f64) {
        self.n += 1;
        let magnitude = r.abs();
        if !is_finite(magnitude) {
            self.n_not_finite += 1;
            return;
        }
        self.n_finite += 1;
        if magnitude > self.max_reference {
            self.max_reference = magnitude;
        }
        if magnitude > 0.0 {
            self.n_nonzero += 1;
        }
        let square = r * r;
        self.product += square;
        self.square_measured += square;
        self.square_reference += square;
    }

    fn element(&mut self, r: f64, x: f64, r_normal: f64, x_normal: f64) {
        self.n += 1;
        let (scale, magnitude) = (r.abs(), x.abs());
        if !(is_finite(scale) && is_finite(magnitude)) {
            self.not_finite(r, x);
            return;
        }
        self.n_finite += 1;
        if magnitude < x_normal {
            let r_is_subnormal = scale != 0.0 && scale < r_normal;
            self.n_subnormal += u64::from(magnitude != 0.0 && !r_is_subnormal);
            self.n_flushed += u64::from(magnitude == 0.0 && scale != 0.0);
        }
        let error = (x - r).abs();
        if scale > self.max_reference {
            self.max_reference = scale;
        }
        if error > self.max_abs {
            self.max_abs = error;
        }
        self.sum_abs += error;
        if scale > 0.0 {
            self.n_nonzero += 1;
            if error > 0.0 {
                self.relative(error, scale);
            }
        }
        self.product += x * r;
        self.square_measured += x * x;
        self.square_reference += r * r;
    }

    /// Adds an error at a magnitude that is not zero.
    fn relative(&mut self, error: f64, scale: f64) {
        let relative = error / scale;
        if relative > self.max_rel {
            self.max_rel = relative;
        }
        self.sum_rel += relative;
        // Exact, as a division by the ulp would be.
        let in_ulp = error * power_of_two(-ulp_exponent(scale));
        if in_ulp > self.max_ulp {
            self.max_ulp = in_ulp;
        }
        self.sum_ulp += in_ulp;
    }

    /// Adds a pair with a NaN or an infinity.
    fn not_finite(&mut self, r: f64, x: f64) {
        let same = r == x || r.is_nan() && x.is_nan();
        self.n_not_finite += u64::from(!r.is_finite());
        self.n_introduced += u64::from(!same && !x.is_finite());
        self.n_lost += u64::from(!same && x.is_finite());
        self.n_overflowed += u64::from(r.is_finite() && x.is_infinite());
    }

    /// The errors so far.
    pub fn errors(&self) -> Errors {
        let per = |sum: f64, n: u64| if n == 0 { 0.0 } else { sum / n as f64 };
        let norms = self.square_measured.sqrt() * self.square_reference.sqrt();
        let cosine = match norms {
            n if n > 0.0 => self.product / n,
            _ if self.square_measured == self.square_reference => 1.0,
            _ => 0.0,
        };
        let scaled = match self.max_abs {
            _ if self.n_introduced + self.n_lost > 0 => f64::INFINITY,
            0.0 => 0.0,
            max if self.max_reference > 0.0 => max / self.max_reference,
            _ => f64::INFINITY,
        };
        Errors {
            n_elements: self.n,
            n_not_finite: self.n_not_finite,
            max_abs: self.max_abs,
            mean_abs: per(self.sum_abs, self.n_finite),
            max_rel: self.max_rel,
            mean_rel: per(self.sum_rel, self.n_nonzero),
            max_ulp: self.max_ulp,
            mean_ulp: per(self.sum_ulp, self.n_nonzero),
            cosine,
            scaled,
            n_introduced: self.n_introduced,
            overflowed: per(self.n_overflowed as f64, self.n),
            subnormal: per(self.n_subnormal as f64, self.n),
            flushed: per(self.n_flushed as f64, self.n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Literal;
    use half::bf16;

    fn compare(reference: &[f32], measured: &[f32]) -> Errors {
        let bytes = |values: &[f32]| match Literal::from_elements([values.len() as i64], values) {
            Literal::Array { bytes, .. } => bytes,
            Literal::Tuple(_) | Literal::Token => unreachable!(),
        };
        let mut comparison = Comparison::default();
        comparison.add((DType::F32, &bytes(reference)), (DType::F32, &bytes(measured)));
        comparison.errors()
    }

    #[test]
    fn measures_of_finite_numbers() {
        let errors = compare(&[257.0, -2.0, 0.0, 4.0], &[256.0, -2.0, 1.0, 5.0]);
        assert_eq!((errors.n_elements, errors.max_abs, errors.mean_abs), (4, 1.0, 0.75));
        assert_eq!((errors.max_rel, errors.mean_rel), (0.25, (1.0 / 257.0 + 0.25) / 3.0));
        assert_eq!(errors.scaled, 1.0 / 257.0);
        // At 257 bf16 counts by 2, at 4 by 2^-5.
        assert_eq!((errors.max_ulp, errors.mean_ulp), (32.0, (0.5 + 32.0) / 3.0));
        assert_eq!((errors.n_introduced, errors.overflowed, errors.flushed), (0, 0.0, 0.0));
    }

    #[test]
    fn numbers_that_are_not_finite() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let same = compare(&[inf, nan, -inf, 1.0], &[inf, nan, -inf, 1.0]);
        assert_eq!((same.scaled, same.n_introduced, same.cosine), (0.0, 0, 1.0));
        let errors = compare(&[1.0, 2.0, inf, 1.0], &[inf, nan, nan, 1.0]);
        assert_eq!((errors.n_introduced, errors.overflowed, errors.scaled), (3, 0.25, f64::INFINITY));
        assert_eq!(errors.max_abs, 0.0);
        // An infinity that disappeared is an error, though it was not introduced.
        let lost = compare(&[-inf], &[-88.0]);
        assert_eq!((lost.n_introduced, lost.scaled), (0, f64::INFINITY));
    }

    #[test]
    fn small_numbers() {
        let errors = compare(&[1e-30, f32::MIN_POSITIVE, 0.0], &[0.0, f32::MIN_POSITIVE / 2.0, 0.0]);
        assert_eq!((errors.flushed, errors.subnormal), (1.0 / 3.0, 1.0 / 3.0));
        let zeros = compare(&[0.0], &[0.0]);
        assert_eq!((zeros.scaled, zeros.cosine), (0.0, 1.0));
        let from_zero = compare(&[0.0], &[1.0]);
        assert_eq!((from_zero.scaled, from_zero.cosine, from_zero.max_rel), (f64::INFINITY, 0.0, 0.0));
    }

    #[test]
    fn dtypes_may_differ() {
        let mut comparison = Comparison::default();
        comparison.add((DType::F32, &0.1f32.to_le_bytes()), (DType::BF16, &bf16::from_f32(0.1).to_le_bytes()));
        let errors = comparison.errors();
        assert_eq!(errors.max_abs, bf16::from_f32(0.1).to_f64() - f64::from(0.1f32));
        assert!(errors.max_ulp <= 0.5);
        assert!(!is_comparable(DType::S32) && !is_comparable(DType::F8E5M2) && is_comparable(DType::C64));
    }

    /// Equal arrays take a fast path; its figures are those of comparing every pair, which a last different pair
    /// enforces.
    #[test]
    fn equal_arrays_have_the_figures_of_their_elements() {
        let values = [1.5f32, -0.0, 0.0, f32::NAN, f32::INFINITY, 1e-40, -3e38, 0.1, 7.0];
        let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let (mut at_once, mut by_pairs) = (Comparison::default(), Comparison::default());
        at_once.add((DType::F32, &bytes(&values)), (DType::F32, &bytes(&values)));
        at_once.add((DType::F32, &bytes(&[2.0])), (DType::F32, &bytes(&[3.0])));
        let (r, x) = (bytes(&[&values[..], &[2.0]].concat()), bytes(&[&values[..], &[3.0]].concat()));
        by_pairs.add((DType::F32, &r), (DType::F32, &x));
        assert_eq!(at_once.errors(), by_pairs.errors());
        assert_eq!((at_once.errors().n_not_finite, at_once.errors().max_abs), (2, 1.0));
    }

    #[test]
    fn ulps_are_those_of_the_format() {
        use crate::numerics::Format;
        for bits in 0..Format::BF16.infinity(false) {
            let step = 2f64.powi(Format::BF16.ulp_exponent(bits).unwrap());
            assert_eq!(bf16_ulp(Format::BF16.decode_f64(bits)), step, "{bits:#06x}");
        }
    }
}
