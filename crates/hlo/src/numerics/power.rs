//! The number of pairs with which the sign-flip test of [`paired`](super::paired) detects a difference, with a power
//! of 80 %.
//!
//! Let differences be normal with mean `d · σ`. If σ is known, the power of a number of pairs is computed by drawing
//! them, up to 12, where the test is discrete (six pairs are significant at 5 % only if all have one sign), and is
//! that of Student's t beyond. If σ is itself estimated from the differences of a few pairs, with ν degrees of
//! freedom, the number of pairs that follows from the estimate is too small half of the time, and power falls with its
//! square root: the estimate is multiplied by the `c` for which the power *on average over estimates* is 80 %, `E
//! Φ((z_α + z_β) · c · s/σ − z_α) = 0.8` with `s/σ` as `√(χ²_ν / ν)`.
//!
//! Source: W. C. Guenther, "Sample size formulas for normal theory t tests", The American Statistician 35(4), 1981; the
//! correction is that of S. A. Julious and R. J. Owen, "Sample size calculations for clinical studies allowing for uncertainty
//! about the variance", Pharmaceutical Statistics 5(1), 2006, solved by quadrature.

/// The required power.
pub const POWER: f64 = 0.8;
/// Up to this number of pairs power is computed by drawing.
const MAX_DRAWN: usize = 12;
/// The number of draws: a power of 0.8 is then known to 0.013 (one standard error).
const N_DRAWS: usize = 1000;

/// The fewest pairs that detect a mean difference of `ratio` standard deviations at `level`, two-sided, with this
/// power. The standard deviation is known, or estimated with `degrees` degrees of freedom.
pub fn n_to_tell(ratio: f64, degrees: Option<usize>, level: f64) -> u64 {
    let ratio = ratio / degrees.map_or(1.0, |degrees| inflation(degrees, level));
    // With n pairs no p-value is under 2 / 2^n.
    let fewest = (2..64).find(|&n: &i32| 2.0 * 0.5f64.powi(n) <= level).unwrap_or(64) as usize;
    let (alpha, beta) = (quantile(1.0 - level / 2.0), quantile(POWER));
    let guess = ((alpha + beta) / ratio).powi(2) + alpha * alpha / 2.0;
    let is_few = guess <= MAX_DRAWN as f64 + 2.0;
    if let Some(n) = (fewest..=MAX_DRAWN.max(fewest)).find(|&n| is_few && power(n, ratio, level) >= POWER) {
        return n as u64;
    }
    if guess > 1e15 { u64::MAX } else { (guess.ceil() as u64).max(MAX_DRAWN.max(fewest) as u64 + 1) }
}

/// The power of `n` pairs for a mean difference of `ratio` standard deviations at `level`.
pub fn power(n: usize, ratio: f64, level: f64) -> f64 {
    if ratio.is_infinite() {
        return if 2.0 * 0.5f64.powi(n as i32) <= level { 1.0 } else { 0.0 };
    }
    if n > MAX_DRAWN {
        // Student's t with n − 1 degrees of freedom, by its normal approximation.
        let (freedom, alpha) = ((n - 1) as f64, quantile(1.0 - level / 2.0));
        let t = alpha + (alpha.powi(3) + alpha) / (4.0 * freedom);
        return normal((ratio * (n as f64).sqrt() - t) / (1.0 + t * t / (2.0 * freedom)).sqrt());
    }
    let mut normals = Normals(0x2545_F491_4F6C_DD1D);
    let tells = (0..N_DRAWS).filter(|_| {
        let differences: Vec<f64> = (0..n).map(|_| ratio + normals.next()).collect();
        tells(&differences, level)
    });
    tells.count() as f64 / N_DRAWS as f64
}

/// Whether the sign-flip test is significant, for few differences: all choices of signs at once, by doubling.
fn tells(differences: &[f64], level: f64) -> bool {
    // A choice and its opposite are as far from 0, so the first sign is always plus.
    let mut sums = vec![differences.first().copied().unwrap_or(0.0)];
    for difference in differences.iter().skip(1) {
        for at in 0..sums.len() {
            let sum = sums[at];
            sums[at] = sum + difference;
            sums.push(sum - difference);
        }
    }
    let magnitudes: f64 = differences.iter().map(|difference| difference.abs()).sum();
    let seen = differences.iter().sum::<f64>().abs() - 1e-12 * magnitudes;
    let n_far = sums.iter().filter(|sum| sum.abs() >= seen).count();
    n_far as f64 <= level * sums.len() as f64
}

/// The factor for an estimate of the standard deviation with `degrees` degrees of freedom, with which the average
/// power over estimates is the required one.
pub fn inflation(degrees: usize, level: f64) -> f64 {
    let (alpha, beta) = (quantile(1.0 - level / 2.0), quantile(POWER));
    let freedom = degrees.max(1) as f64;
    // The density of s/σ up to a factor, at the middles of equal intervals of 0 to 6.
    const N: usize = 500;
    let parts: Vec<(f64, f64)> = (0..N)
        .map(|part| {
            let x = 6.0 * (part as f64 + 0.5) / N as f64;
            (x, ((freedom - 1.0) * x.ln() - freedom * x * x / 2.0 + freedom / 2.0).exp())
        })
        .collect();
    let whole: f64 = parts.iter().map(|(_, weight)| weight).sum();
    let average =
        |c: f64| parts.iter().map(|(x, weight)| weight * normal((alpha + beta) * c * x - alpha)).sum::<f64>() / whole;
    let (mut low, mut high) = (1.0, 64.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if average(middle) < POWER { low = middle } else { high = middle }
    }
    high
}

/// Standard normal numbers, the same on every run: xorshift and Box–Muller.
struct Normals(u64);

impl Normals {
    fn next(&mut self) -> f64 {
        let mut uniform = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), 2.0 * std::f64::consts::PI * uniform());
        radius * angle.cos()
    }
}

/// Φ, to 1e-7: Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.2.17.
fn normal(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let tail = series.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let above = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * tail;
    if x >= 0.0 { 1.0 - above } else { above }
}

/// The inverse of Φ, by halving.
fn quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if normal(middle) < share { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::super::paired::p_value;
    use super::*;

    #[test]
    fn quantiles_are_those_of_any_table() {
        for (share, expected) in [(0.975, 1.959_964), (0.8, 0.841_621), (0.995, 2.575_829)] {
            assert!((quantile(share) - expected).abs() < 1e-5, "{share}");
        }
    }

    /// All of six pairs must have one sign: Φ(d)^6 + Φ(−d)^6, within four standard errors of 1,000 draws.
    #[test]
    fn six_pairs_tell_if_all_have_one_sign() {
        for ratio in [0.5, 1.0, 1.4, 2.0] {
            let expected = normal(ratio).powi(6) + normal(-ratio).powi(6);
            let error = (expected * (1.0 - expected) / N_DRAWS as f64).sqrt();
            assert!((power(6, ratio, 0.05) - expected).abs() <= 4.0 * error, "{ratio}");
        }
        // An earlier version claimed a power of 80 % for six.
        assert!(power(6, 1.4, 0.05) < 0.7);
    }

    #[test]
    fn all_choices_of_signs_at_once_are_those_one_by_one() {
        let mut normals = Normals(5);
        for n in 2..10 {
            let differences: Vec<f64> = (0..n).map(|_| 0.8 + normals.next()).collect();
            for level in [0.01, 0.05, 0.3] {
                assert_eq!(tells(&differences, level), p_value(&differences) <= level, "{differences:?}");
            }
        }
    }

    /// A known spread: drawn again with other numbers, the computed number of pairs has a power of 80 %.
    #[test]
    fn as_many_as_are_said_tell_in_four_of_five_times() {
        let mut normals = Normals(77);
        for ratio in [2.5, 1.5, 1.1] {
            let n = n_to_tell(ratio, None, 0.05) as usize;
            let tells = (0..600).filter(|_| {
                let differences: Vec<f64> = (0..n).map(|_| ratio + normals.next()).collect();
                if n <= MAX_DRAWN { tells(&differences, 0.05) } else { p_value(&differences) <= 0.05 }
            });
            let share = tells.count() as f64 / 600.0;
            // Three standard errors of 600 draws.
            assert!(share >= POWER - 3.0 * (0.8f64 * 0.2 / 600.0).sqrt(), "{ratio}: {n} pairs, {share}");
        }
    }

    /// An estimated spread: pilots of three to six pairs each compute a number of pairs, and those numbers have a
    /// power of 80 % on average. Without the factor they would have less.
    #[test]
    fn an_estimated_spread_is_counted_in() {
        let ratio = 0.25;
        let mut normals = Normals(1234);
        for n_pilot in [3usize, 4, 6] {
            let (mut careful, mut plain) = (0.0, 0.0);
            const N_PILOTS: usize = 300;
            for _ in 0..N_PILOTS {
                let pilot: Vec<f64> = (0..n_pilot).map(|_| normals.next()).collect();
                let mean = pilot.iter().sum::<f64>() / n_pilot as f64;
                let deviation = (pilot.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n_pilot - 1) as f64).sqrt();
                // The power of this number of pairs for the true difference.
                let true_power = |n: u64| power(usize::try_from(n).unwrap_or(usize::MAX), ratio, 0.05);
                careful += true_power(n_to_tell(ratio / deviation, Some(n_pilot - 1), 0.05));
                plain += true_power(n_to_tell(ratio / deviation, None, 0.05));
            }
            let (careful, plain) = (careful / N_PILOTS as f64, plain / N_PILOTS as f64);
            // Powers spread over 0 to 1, by 0.5 at most: three standard errors of 300 of them.
            let error = 3.0 * 0.5 / (N_PILOTS as f64).sqrt();
            assert!((careful - POWER).abs() <= error && plain < careful, "{n_pilot}: {careful} and {plain}");
            println!("a pilot of {n_pilot} pairs: {careful:.2}, and {plain:.2} by its estimate alone");
        }
    }
}
