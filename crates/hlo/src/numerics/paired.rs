//! Statistics of few pairs of numbers, such as a metric of two ways to train at each of some seeds: whether one way is
//! better, and how many pairs would detect a given difference.
//!
//! The test is Fisher's sign-flip test on the differences of pairs: if the two ways are equivalent, each difference
//! might as well have the other sign, so the p-value is the share of all `2^n` choices of signs whose sum is at least
//! as far from zero as the observed one. It is exact for any number of pairs and assumes no normal distribution, which
//! four or five seeds cannot show; a t-test would. Its limit: with `n` pairs no p-value is under `2 / 2^n`, so that
//! five pairs never reach 5 %, and six do. The interval of the mean difference is Student's, and is only for display.
//!
//! Source: R. A. Fisher, "The Design of Experiments" (1935), section 21; quantiles of t from any table.

use serde::Serialize;

use super::power::n_to_tell;

/// Up to this number of pairs all choices of signs are counted; beyond it they are drawn.
const MAX_COUNTED: usize = 16;
/// The number of draws, from a fixed seed.
const N_DRAWN: u64 = 1 << 16;
/// The level of significance, two-sided.
pub const LEVEL: f64 = 0.05;
/// The quantile 0.975 of the normal distribution.
const Z: f64 = 1.959_964;
/// Quantiles 0.975 of Student's t for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Mean and standard deviation (of a sample, by `n − 1`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
}

impl Spread {
    /// The spread of two values or more.
    fn from_values(values: &[f64]) -> Spread {
        let n = values.len() as f64;
        // Relative to the first value, so that equal values have a deviation of exactly 0.
        let mean = values[0] + values.iter().map(|value| value - values[0]).sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Spread { mean, deviation: (squares / (n - 1.0)).sqrt() }
    }
}

/// The statistics of some pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Paired {
    /// The number of pairs.
    pub n: usize,
    /// The first values of the pairs.
    pub first: Spread,
    /// The second values of the pairs.
    pub second: Spread,
    /// The differences, first − second.
    pub difference: Spread,
    /// Half of the 95 % interval of the mean difference.
    pub half_interval: f64,
    /// The p-value of the sign-flip test, two-sided.
    pub p_value: f64,
}

impl Paired {
    /// The statistics of pairs; `None` for fewer than two pairs, or if a number is not finite.
    pub fn from_pairs(pairs: &[(f64, f64)]) -> Option<Paired> {
        let n = pairs.len();
        if n < 2 || pairs.iter().any(|(a, b)| !(a.is_finite() && b.is_finite())) {
            return None;
        }
        let (firsts, seconds): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let differences: Vec<f64> = pairs.iter().map(|(a, b)| a - b).collect();
        let difference = Spread::from_values(&differences);
        let t = T.get(n - 2).copied().unwrap_or(Z + 2.4 / (n - 1) as f64);
        Some(Paired {
            n,
            first: Spread::from_values(&firsts),
            second: Spread::from_values(&seconds),
            difference,
            half_interval: t * difference.deviation / (n as f64).sqrt(),
            p_value: p_value(&differences),
        })
    }

    /// Whether the difference is significant: chance explains it in fewer than one of twenty cases.
    pub fn tells(&self) -> bool {
        self.p_value <= LEVEL
    }

    /// The least p-value that this number of pairs can have.
    pub fn least_p_value(&self) -> f64 {
        2.0 * 0.5f64.powi(i32::try_from(self.n).unwrap_or(i32::MAX))
    }

    /// Whether the difference is significant among `n_scalars` that are tested together: its p-value times their
    /// number is 5 % at most (Bonferroni).
    pub fn tells_among(&self, n_scalars: usize) -> bool {
        self.p_value * n_scalars.max(1) as f64 <= LEVEL
    }

    /// How many pairs detect a mean difference of this size with a power of 80 %, at 5 % for `n_scalars` together. The
    /// spread of differences is estimated from these few pairs, which is accounted for: see [`power`](super::power).
    /// `None` for a difference of zero.
    pub fn n_to_tell(&self, difference: f64, n_scalars: usize) -> Option<u64> {
        if !(difference.abs() > 0.0 && difference.is_finite()) {
            return None;
        }
        let ratio = difference.abs() / self.difference.deviation;
        Some(n_to_tell(ratio, Some(self.n - 1), LEVEL / n_scalars.max(1) as f64))
    }
}

/// The share of choices of signs whose sum is at least as far from zero.
pub(super) fn p_value(differences: &[f64]) -> f64 {
    let magnitudes: f64 = differences.iter().map(|difference| difference.abs()).sum();
    // Sums in another order may round differently.
    let seen = differences.iter().sum::<f64>().abs() - 1e-12 * magnitudes;
    let is_as_far = |signs: &dyn Fn(usize) -> bool| {
        let signed = |(place, difference): (usize, &f64)| if signs(place) { -difference } else { *difference };
        differences.iter().enumerate().map(signed).sum::<f64>().abs() >= seen
    };
    let n = differences.len();
    if n <= MAX_COUNTED {
        let n_all = 1u64 << n;
        let n_far = (0..n_all).filter(|choice| is_as_far(&|place| choice >> place & 1 == 1)).count();
        return n_far as f64 / n_all as f64;
    }
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let n_far = (0..N_DRAWN).filter(|_| {
        let choice: Vec<u64> = (0..n.div_ceil(64)).map(|_| next()).collect();
        is_as_far(&|place| choice[place / 64] >> (place % 64) & 1 == 1)
    });
    // The observed choice is one of them.
    (n_far.count() as f64 + 1.0) / (N_DRAWN as f64 + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_of_one_sign_tell_and_five_do_not() {
        let pairs = |n: usize| (0..n).map(|i| (1.0 + i as f64, i as f64 + 0.5)).collect::<Vec<_>>();
        let (five, six) = (Paired::from_pairs(&pairs(5)).unwrap(), Paired::from_pairs(&pairs(6)).unwrap());
        assert_eq!((five.p_value, five.tells()), (2.0 / 32.0, false));
        assert_eq!((six.p_value, six.tells(), six.least_p_value()), (2.0 / 64.0, true, 2.0 / 64.0));
        assert_eq!((six.difference.mean, six.difference.deviation, six.n_to_tell(0.5, 1)), (0.5, 0.0, Some(6)));
        // For two scalars one of six signs is no longer rare, and seven pairs are the fewest.
        assert_eq!((six.tells_among(1), six.tells_among(2), six.n_to_tell(0.5, 2)), (true, false, Some(7)));
    }

    /// Differences 3, −1, 1: of the eight choices of signs, those with a sum of 3 or more in magnitude are ±5 (two), ±3 (four).
    #[test]
    fn signs_are_counted() {
        let paired = Paired::from_pairs(&[(3.0, 0.0), (0.0, 1.0), (1.0, 0.0)]).unwrap();
        assert_eq!(paired.p_value, 6.0 / 8.0);
        assert_eq!((paired.difference.mean, paired.difference.deviation), (1.0, 2.0));
        assert!((paired.half_interval - 4.303 * 2.0 / 3f64.sqrt()).abs() < 1e-9);
        // (2.80 · 2 / 1)² is 31.4 for a known spread; for one that is estimated from three pairs, several times as
        // many.
        let n = paired.n_to_tell(1.0, 1).unwrap();
        assert!((60..200).contains(&n), "{n}");
        assert_eq!(paired.n_to_tell(0.0, 1), None);
    }

    #[test]
    fn too_few_pairs_and_numbers_that_are_none_say_nothing() {
        assert_eq!(Paired::from_pairs(&[(1.0, 2.0)]), None);
        assert_eq!(Paired::from_pairs(&[(1.0, 2.0), (f64::NAN, 1.0)]), None);
    }

    /// Many pairs: signs are drawn, and a clear difference is significant.
    #[test]
    fn many_pairs_are_drawn() {
        let pairs = |shift: f64| (0..30).map(|i| (shift + f64::from(i % 7), f64::from(i % 5))).collect::<Vec<_>>();
        assert!(Paired::from_pairs(&pairs(9.0)).unwrap().p_value < 1e-3);
        assert!(Paired::from_pairs(&pairs(-1.0)).unwrap().p_value > 0.5);
    }
}
