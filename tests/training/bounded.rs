//! Numbers in f64 that carry a bound of the f32 program's rounding error along.
//!
//! No tolerance is chosen (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3): half an ulp for each
//! operation. A fused multiply-add rounds less often than the bound allows for.

use std::ops::{Add, Div, Mul, Sub};

/// Half an ulp of f32, relative.
pub const U: f64 = 1.0 / (1u64 << 24) as f64;
/// XLA gives no bound for `exp`, `log`, `expm1` and `power` in f32; its polynomials are good to 4 ulp.
pub const FUNCTION: f64 = 8.0 * U;

/// A value, and how far the f32 program's may be from it.
#[derive(Clone, Copy, Debug)]
pub struct Bounded {
    pub value: f64,
    pub error: f64,
}

impl Bounded {
    /// A number that f32 holds exactly.
    pub fn exact(value: f64) -> Bounded {
        Bounded { value, error: 0.0 }
    }

    /// A constant that was rounded to f32.
    pub fn constant(value: f64) -> Bounded {
        Bounded::exact(value).rounded(U)
    }

    /// After a rounding of that relative size. Below f32's normal range an ulp is absolute.
    pub fn rounded(self, unit: f64) -> Bounded {
        let magnitude = self.value.abs() + self.error;
        Bounded { error: self.error + unit * magnitude + f64::from(f32::MIN_POSITIVE) * U, ..self }
    }

    /// `f` of this, where `slope` bounds its derivative nearby.
    pub fn map(self, f: impl Fn(f64) -> f64, slope: f64, unit: f64) -> Bounded {
        Bounded { value: f(self.value), error: slope * self.error }.rounded(unit)
    }

    pub fn sqrt(self) -> Bounded {
        let low = (self.value - self.error).max(f64::MIN_POSITIVE);
        self.map(f64::sqrt, 0.5 / low.sqrt(), U)
    }
}

impl Bounded {
    /// `old + (new − old)·(1 − share)`, the mean that forgets, computed in this form or as `share·old + (1 − share)·new`,
    /// with `1 − share` from f64 or from the share that was rounded to f32.
    pub fn moved(old: Bounded, new: Bounded, share: f64) -> Bounded {
        let rest = Bounded::exact(1.0) - Bounded::constant(share);
        let [one, other] = [old + (new - old) * rest, Bounded::constant(share) * old + rest * new];
        Bounded { error: one.error.max(other.error) + (one.value - other.value).abs(), ..one }
    }

    /// `base^exponent` of a base above 0 and a constant.
    pub fn power(self, exponent: f64) -> Bounded {
        let low = (self.value - self.error).max(f64::MIN_POSITIVE);
        let slope = exponent.abs() * low.powf(exponent - 1.0).max((self.value + self.error).powf(exponent - 1.0));
        let powered = self.map(|x| x.powf(exponent), slope, FUNCTION);
        // The exponent is rounded too: d/dp x^p = ln x · x^p.
        Bounded { error: powered.error + exponent.abs() * U * self.value.ln().abs() * powered.value, ..powered }
    }

    /// Between two numbers.
    pub fn clamp(self, low: f64, high: f64) -> Bounded {
        Bounded { value: self.value.clamp(low, high), ..self }
    }

    /// `√(Σ x²)`.
    pub fn norm(values: &[Bounded]) -> Bounded {
        Bounded::sum(values.iter().map(|&value| value * value)).sqrt()
    }

    /// A sum in any order: `n` terms round at most `n` times what is as large as all of them.
    pub fn sum(terms: impl IntoIterator<Item = Bounded>) -> Bounded {
        let terms: Vec<Bounded> = terms.into_iter().collect();
        let size: f64 = terms.iter().map(|term| term.value.abs() + term.error).sum();
        let error = terms.iter().map(|term| term.error).sum::<f64>() + terms.len() as f64 * U * size;
        Bounded { value: terms.iter().map(|term| term.value).sum(), error }
    }
}

macro_rules! bounded_operators {
    ($($trait:ident::$method:ident, $op:tt, $error:expr;)*) => {$(
        // Error bounds add up whatever the operator.
        #[allow(clippy::suspicious_arithmetic_impl)]
        impl $trait for Bounded {
            type Output = Bounded;
            fn $method(self, rhs: Bounded) -> Bounded {
                let error: fn(Bounded, Bounded) -> f64 = $error;
                Bounded { value: self.value $op rhs.value, error: error(self, rhs) }.rounded(U)
            }
        }
    )*};
}

bounded_operators! {
    Add::add, +, |a, b| a.error + b.error;
    Sub::sub, -, |a, b| a.error + b.error;
    Mul::mul, *, |a, b| a.value.abs() * b.error + b.value.abs() * a.error + a.error * b.error;
    Div::div, /, |a, b| {
        let least = b.value.abs() - b.error;
        assert!(least > 0.0, "the divisor's bound reaches zero");
        (a.error + (a.value / b.value).abs() * b.error) / least
    };
}

/// A measured number is within its bound.
#[track_caller]
pub fn check(what: &str, measured: f32, expected: Bounded) {
    let difference = (f64::from(measured) - expected.value).abs();
    assert!(difference <= expected.error, "{what}: {measured} is {difference:e} from {expected:?}");
}
