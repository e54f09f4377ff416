//! The lost-update experiment: a weight in one format that takes the same small update many times.
//!
//! This is why mixed-precision training keeps f32 master weights. The module has the experiment and its per-step bits,
//! so that the same sums can be run elsewhere (through PJRT, say) and compared; `cli` displays it.

use super::decimal::Decimal;
use super::formats::Format;

/// One weight, stored in one format through all its updates.
#[derive(Clone, Debug, PartialEq)]
pub struct Accumulation {
    /// The format the weight, the update and each sum are rounded to.
    pub format: Format,
    /// Bits of the weight before the first step.
    pub start: u64,
    /// Bits of the update.
    pub update: u64,
    /// Bits of the weight after each step: `steps[0]` is after the first.
    pub steps: Vec<u64>,
    /// The first step, counted from 1, that left the weight unchanged although the requested update is not zero. Every
    /// further step computes the same sum, so it has no effect either.
    pub first_lost: Option<usize>,
}

impl Accumulation {
    /// Bits of the weight after the last step.
    pub fn last(&self) -> u64 {
        self.steps.last().copied().unwrap_or(self.start)
    }
}

/// Adds `update` to `start` `n_steps` times in `format`: both are rounded to it, and so is every sum (to nearest,
/// ties to even, once).
pub fn accumulate(format: Format, start: &Decimal, update: &Decimal, n_steps: usize) -> Accumulation {
    let update_is_zero = update.is_zero();
    let start = format.encode_decimal(start);
    let update = format.encode_decimal(update);
    let mut weight = start;
    let mut steps = Vec::with_capacity(n_steps);
    let mut first_lost = None;
    for step in 1..=n_steps {
        let sum = add(format, weight, update);
        if sum == weight && !update_is_zero && first_lost.is_none() {
            first_lost = Some(step);
        }
        weight = sum;
        steps.push(weight);
    }
    Accumulation { format, start, update, steps, first_lost }
}

/// `start + n_steps * update`, with no rounding.
pub fn exact_sum(start: &Decimal, update: &Decimal, n_steps: usize) -> Decimal {
    start.add(&update.times(n_steps as u64))
}

/// The sum of two numbers of a format, rounded to it once.
///
/// For the 16-bit formats the sum is taken in f64, where it is exact unless one operand is 2^29 times the other or
/// more; then it is correctly rounded, which is harmless as f64 has more than twice the precision plus two bits
/// (Figueroa, "When is double rounding innocuous?", 1995). The same holds for f32.
pub fn add(format: Format, lhs: u64, rhs: u64) -> u64 {
    format.encode_f64(format.decode_f64(lhs) + format.decode_f64(rhs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::Number;
    use half::{bf16, f16};
    use proptest::prelude::*;

    fn decimal(text: &str) -> Decimal {
        match text.parse() {
            Ok(Number::Finite(decimal)) => decimal,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn run(format: Format, start: &str, update: &str, n_steps: usize) -> (Option<usize>, String) {
        let run = accumulate(format, &decimal(start), &decimal(update), n_steps);
        assert_eq!(run.steps.len(), n_steps);
        (run.first_lost, format.exact(run.last()).unwrap().to_string())
    }

    #[test]
    fn the_update_is_lost_in_sixteen_bits() {
        let (start, update) = ("1.125", "0.00041999");
        assert_eq!(run(Format::F16, start, update, 100), (Some(1), "1.125".to_owned()));
        assert_eq!(run(Format::BF16, start, update, 100), (Some(1), "1.125".to_owned()));
        let (lost, last) = run(Format::F32, start, update, 100);
        assert_eq!(lost, None);
        assert_eq!(&last[..6], "1.1669");
        assert_eq!(exact_sum(&decimal(start), &decimal(update), 100).to_string(), "1.166999");
    }

    #[test]
    fn one_large_update() {
        let (start, update) = ("1.125", "0.12457275390625");
        assert_eq!(run(Format::F16, start, update, 1), (None, "1.25".to_owned()));
        assert_eq!(run(Format::F32, start, update, 1), (None, "1.24957275390625".to_owned()));
    }

    #[test]
    fn an_update_can_be_lost_later() {
        // bf16 has whole numbers up to 256; 256 + 1 ties to even, which is 256.
        assert_eq!(run(Format::BF16, "250", "1", 20), (Some(7), "256".to_owned()));
        assert_eq!(run(Format::F16, "2040", "1", 20), (Some(9), "2048".to_owned()));
    }

    #[test]
    fn a_zero_update_is_not_a_lost_one() {
        assert_eq!(run(Format::F32, "1", "0", 3), (None, "1".to_owned()));
        assert_eq!(run(Format::F16, "0", "1e-8", 3), (Some(1), "0".to_owned()), "rounds to zero");
        assert_eq!(accumulate(Format::F32, &decimal("1"), &decimal("2"), 0).last(), 0x3F80_0000);
    }

    proptest! {
        #[test]
        fn sums_agree_with_half(lhs: u16, rhs: u16) {
            let (sum, expected) = (add(Format::BF16, lhs.into(), rhs.into()), bf16::from_bits(lhs) + bf16::from_bits(rhs));
            prop_assert!(sum == u64::from(expected.to_bits()) || expected.is_nan());
            let (sum, expected) = (add(Format::F16, lhs.into(), rhs.into()), f16::from_bits(lhs) + f16::from_bits(rhs));
            prop_assert!(sum == u64::from(expected.to_bits()) || expected.is_nan());
        }

        #[test]
        fn sums_agree_with_the_processor(lhs: f32, rhs: f32) {
            let sum = add(Format::F32, lhs.to_bits().into(), rhs.to_bits().into());
            prop_assert_eq!(sum, u64::from((lhs + rhs).to_bits()));
        }
    }
}
