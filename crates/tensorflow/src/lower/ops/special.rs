//! Special functions that HLO does not have as instructions.
//!
//! Source: `lgamma`, `digamma`, `erfc` and `erf_inv` of XLA's `client/lib/math.cc`; its coefficients are Cephes' and Lanczos'.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::{BinaryOp, InstrId, UnaryOp};

pub(super) const TABLE: Table = &[
    ("Atan", |c| {
        let x = c.array(0)?;
        c.one(c.e().binary(BinaryOp::Atan2, x, c.like(x, 1.0)))
    }),
    ("Erfc", |c| c.in_f32(erfc)),
    ("Erfinv", |c| c.in_f32(erf_inverse)),
    ("Ndtri", |c| {
        c.in_f32(|c, x| {
            let centred = c.e().add_scalar(c.e().mul_scalar(x, 2.0), -1.0);
            c.e().mul_scalar(erf_inverse(c, centred), std::f64::consts::SQRT_2)
        })
    }),
    ("Lgamma", |c| c.in_f32(log_gamma)),
    ("Digamma", |c| c.in_f32(digamma)),
];

/// Lanczos' approximation of the gamma function: g, the constant term, and the coefficients of 1 / (z + 1), 1 / (z + 2), …
const LANCZOS: f64 = 7.0;
const LANCZOS_BASE: f64 = 0.999_999_999_999_809_9;
const LANCZOS_TERMS: [f64; 8] = [
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_1,
    -176.615_029_162_140_6,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_572e-6,
    1.505_632_735_149_311_6e-7,
];

impl Call<'_, '_> {
    /// A function of the first input, computed in f32 for 16-bit dtypes.
    fn in_f32(&mut self, function: impl Fn(&Self, InstrId) -> InstrId) -> Outputs {
        let x = self.array(0)?;
        let dtype = self.dtype(x);
        let wide = self.e().convert(x, self.sums_in(dtype));
        self.one(self.e().convert(function(self, wide), dtype))
    }

    /// A polynomial by its coefficients, highest power first.
    fn polynomial(&self, x: InstrId, coefficients: &[f64]) -> InstrId {
        let e = self.e();
        let first = self.like(x, coefficients[0]);
        coefficients[1..].iter().fold(first, |sum, coefficient| e.add_scalar(e.mul(sum, x), *coefficient))
    }
}

/// 1 - erf(x) without cancellation: beyond 1 from e^(-x²) / x and a polynomial of 1 / x².
fn erfc(c: &Call<'_, '_>, x: InstrId) -> InstrId {
    const NEAR: [f64; 9] = [
        2.326_819_970_068_386e-2,
        -1.387_039_388_740_657e-1,
        3.687_424_674_597_105e-1,
        -5.824_733_027_278_666e-1,
        6.210_004_621_745_983e-1,
        -4.944_515_323_274_145e-1,
        3.404_879_937_665_872e-1,
        -2.741_127_028_184_656e-1,
        5.638_259_427_386_472e-1,
    ];
    const FAR: [f64; 8] = [
        -1.047_766_399_936_249e1,
        1.297_719_955_372_516e1,
        -7.495_518_717_768_503,
        2.921_019_019_210_786,
        -1.015_265_279_202_7,
        4.218_463_358_204_948e-1,
        -2.820_767_439_740_514e-1,
        5.641_895_067_754_075e-1,
    ];
    let e = c.e();
    let near_zero = e.sub(c.like(x, 1.0), e.unary(UnaryOp::Erf, x));
    let size = e.unary(UnaryOp::Abs, x);
    let inverse = e.div(c.like(x, 1.0), size);
    let square = e.mul(inverse, inverse);
    let is_near = e.compare(Comparison::Lt, size, c.like(x, 2.0));
    let factor = e.select(is_near, c.polynomial(square, &NEAR), c.polynomial(square, &FAR));
    let tail = e.mul(e.mul(e.unary(UnaryOp::Exp, e.neg(e.mul(x, x))), inverse), factor);
    let is_negative = e.compare(Comparison::Lt, x, c.like(x, 0.0));
    let far = e.select(is_negative, e.sub(c.like(x, 2.0), tail), tail);
    e.select(e.compare(Comparison::Lt, size, c.like(x, 1.0)), near_zero, far)
}

fn erf_inverse(c: &Call<'_, '_>, x: InstrId) -> InstrId {
    let e = c.e();
    let is_end = e.compare(Comparison::Eq, e.unary(UnaryOp::Abs, x), c.like(x, 1.0));
    e.select(is_end, e.mul_scalar(x, f64::INFINITY), c.erf_inverse(x))
}

/// Lanczos' sum at z, the sum of the terms' derivatives, and log(z + g + 1 / 2).
fn lanczos(c: &Call<'_, '_>, z: InstrId) -> [InstrId; 3] {
    let e = c.e();
    let (mut sum, mut slope) = (c.like(z, LANCZOS_BASE), c.like(z, 0.0));
    for (at, coefficient) in LANCZOS_TERMS.iter().enumerate() {
        let place = e.add_scalar(z, at as f64 + 1.0);
        let term = e.div(c.like(z, *coefficient), place);
        sum = e.add(sum, term);
        slope = e.sub(slope, e.div(term, place));
    }
    let shift = LANCZOS + 0.5;
    let log = e.add_scalar(e.unary(UnaryOp::Log1p, e.mul_scalar(z, 1.0 / shift)), shift.ln());
    [sum, slope, log]
}

/// Whether x is below 1 / 2, where functions of it come from those of 1 - x, and the z of the gamma function of z + 1.
fn reflected(c: &Call<'_, '_>, x: InstrId) -> (InstrId, InstrId) {
    let e = c.e();
    let is_low = e.compare(Comparison::Lt, x, c.like(x, 0.5));
    (is_low, e.select(is_low, e.neg(x), e.add_scalar(x, -1.0)))
}

fn log_gamma(c: &Call<'_, '_>, x: InstrId) -> InstrId {
    let e = c.e();
    let (is_low, z) = reflected(c, x);
    let [sum, _, log] = lanczos(c, z);
    // (z + 1/2) log t - t with t = z + g + 1/2, in a form that does not overflow.
    let t = e.add_scalar(z, LANCZOS + 0.5);
    let power = e.mul(e.sub(e.add_scalar(z, 0.5), e.div(t, log)), log);
    let high = e.add(e.add_scalar(power, std::f64::consts::TAU.ln() / 2.0), e.unary(UnaryOp::Log, sum));
    // log(pi / sin(pi x)) by the distance to the nearest whole number.
    let size = e.unary(UnaryOp::Abs, x);
    let part = e.sub(size, e.unary(UnaryOp::Floor, size));
    let is_upper = e.compare(Comparison::Gt, part, c.like(x, 0.5));
    let distance = e.select(is_upper, e.sub(c.like(x, 1.0), part), part);
    let log_sine = e.unary(UnaryOp::Log, e.unary(UnaryOp::Sin, e.mul_scalar(distance, std::f64::consts::PI)));
    let low = e.sub(e.sub(c.like(x, std::f64::consts::PI.ln()), log_sine), high);
    // A pole.
    let low = e.select(e.unary(UnaryOp::IsFinite, log_sine), low, e.neg(log_sine));
    let is_infinite = e.compare(Comparison::Eq, size, c.like(x, f64::INFINITY));
    e.select(is_infinite, c.like(x, f64::INFINITY), e.select(is_low, low, high))
}

fn digamma(c: &Call<'_, '_>, x: InstrId) -> InstrId {
    let e = c.e();
    let (is_low, z) = reflected(c, x);
    let [sum, slope, log] = lanczos(c, z);
    let t = e.add_scalar(z, LANCZOS + 0.5);
    let high = e.sub(e.add(log, e.div(slope, sum)), e.div(c.like(x, LANCZOS), t));
    // pi / tan(pi x) by the distance to the nearest whole number, which loses nothing far from 0.
    let nearest = e.unary(UnaryOp::Floor, e.add_scalar(x, 0.5));
    let angle = e.mul_scalar(e.sub(x, nearest), std::f64::consts::PI);
    let low = e.sub(high, e.div(c.like(x, std::f64::consts::PI), e.unary(UnaryOp::Tan, angle)));
    let is_pole = e.compare(Comparison::Eq, x, e.unary(UnaryOp::Floor, x));
    let low = e.select(is_pole, c.like(x, f64::NAN), low);
    e.select(is_low, low, high)
}
