//! The order of examples in every epoch.

use super::*;

fn order(n: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let order = Order::new(n, seed, epoch);
    (0..n).map(|position| order.at(position)).collect()
}

/// A statistic of chi-square with `df` degrees of freedom is above this with a probability below `e^-x`.
///
/// Source: Laurent and Massart, "Adaptive estimation of a quadratic functional by model selection", Annals of
/// Statistics 2000, lemma 1. The tests' seeds are fixed, so they pass or fail for good; with x = 20 a fair order
/// fails one of a thousand such statistics with a probability of 2e-6.
fn chi_square_limit(df: f64) -> f64 {
    const X: f64 = 20.0;
    df + 2.0 * (df * X).sqrt() + 2.0 * X
}

/// Expectations from a separate implementation. If this changes, resumed runs see other batches than before: do not
/// bless it.
///
/// ```python
/// M = 2**64 - 1
/// G = 0x9E3779B97F4A7C15
/// def mix(x):
///     x = (x + G) & M
///     x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & M
///     x = ((x ^ x >> 27) * 0x94D049BB133111EB) & M
///     return x ^ x >> 31
/// def order(n, seed, epoch):
///     half = max(1, ((n - 1).bit_length() + 1) // 2)
///     state = mix(seed) ^ mix(M ^ epoch)
///     n_rounds = max(8, -(-24 // half))
///     keys = [mix((state + i * G) & M) for i in range(n_rounds + 1)]
///     def once(x):
///         if x < 2: x ^= keys[-1] & 1
///         left, right = x >> half, x & (1 << half) - 1
///         for key in keys[:-1]:
///             left, right = right, left ^ mix(key ^ right) >> 64 - half
///         return left << half | right
///     def at(position):
///         x = once(position)
///         while x >= n:
///             x = once(x)
///         return x
///     return at
/// ```
#[test]
fn the_order_never_changes() {
    assert_eq!(order(10, 0, 0), [3, 0, 4, 2, 5, 1, 7, 8, 9, 6]);
    assert_eq!(order(10, 0, 1), [5, 9, 8, 6, 0, 4, 1, 2, 3, 7]);
    assert_eq!(order(10, 1, 0), [8, 6, 5, 3, 7, 9, 2, 4, 1, 0]);
    let first = |n, seed, epoch| {
        let order = Order::new(n, seed, epoch);
        [0, 1, 2, 3].map(|position| order.at(position))
    };
    assert_eq!(first(1797, 0, 0), [1500, 823, 180, 1278]);
    assert_eq!(first(60_000, 42, 3), [27035, 14781, 36902, 50055]);
    assert_eq!(first((1 << 40) + 1, 5, 9), [489354998899, 525412964006, 809700579481, 1034062421363]);
    let huge = [14710145521408609296, 7483680957340791727, 7840403202992732630, 9712497058052264449];
    assert_eq!(first(u64::MAX, 1, 1), huge);
}

#[test]
fn every_order_is_a_permutation() {
    let powers = (1..=13).flat_map(|bits| [(1u64 << bits) - 1, 1 << bits, (1 << bits) + 1]);
    for n in [1, 2, 3, 5, 6, 7, 10, 100, 1797, 60_000].into_iter().chain(powers) {
        for (seed, epoch) in [(0, 0), (0, 1), (1, 0), (u64::MAX, 17)] {
            let mut seen = vec![false; n as usize];
            for index in order(n, seed, epoch) {
                assert!(!std::mem::replace(&mut seen[index as usize], true), "{index} twice of {n}");
            }
        }
    }
}

#[test]
fn seed_and_epoch_decide() {
    for n in [10, 64, 1797] {
        let base = order(n, 7, 3);
        assert_eq!(base, order(n, 7, 3));
        // Two orders of ten are the same by chance once in 3.6 million.
        assert!(base != order(n, 8, 3) && base != order(n, 7, 4) && base != order(n, 3, 7), "{n}");
    }
}

/// Over many seeds each example comes to each position as often as to any other. The counts of one position over
/// `n` examples are chi-square with `n - 1` degrees of freedom.
#[test]
fn positions_are_uniform() {
    const N_SEEDS: u64 = 6000;
    for n in [2u64, 3, 4, 5, 8, 10, 16, 17, 33] {
        let mut counts = vec![0u64; (n * n) as usize];
        for seed in 0..N_SEEDS {
            // Half of the orders differ in their seed, half in their epoch.
            let order = if seed % 2 == 0 { order(n, seed, 0) } else { order(n, 0, seed) };
            for (position, index) in order.into_iter().enumerate() {
                counts[position * n as usize + index as usize] += 1;
            }
        }
        let expected = N_SEEDS as f64 / n as f64;
        for (position, counts) in counts.chunks(n as usize).enumerate() {
            let statistic: f64 = counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
            let limit = chi_square_limit((n - 1) as f64);
            assert!(statistic < limit, "{n} examples, position {position}: {statistic} >= {limit}");
        }
    }
}

/// For few examples every order occurs equally often: 6 orders of three, 720 of six.
#[test]
fn whole_orders_are_uniform() {
    const N_SEEDS: u64 = 12_000;
    for (n, n_orders) in [(3u64, 6usize), (4, 24), (5, 120), (6, 720)] {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..N_SEEDS {
            *counts.entry(order(n, seed, 1)).or_insert(0u64) += 1;
        }
        assert_eq!(counts.len(), n_orders);
        let expected = N_SEEDS as f64 / n_orders as f64;
        let statistic: f64 = counts.values().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
        let limit = chi_square_limit((n_orders - 1) as f64);
        assert!(statistic < limit, "{n} examples: {statistic} >= {limit}");
    }
}

/// The places of examples in two independent orders have a correlation with mean 0 and variance 1/(n-1) (Spearman).
/// The mean of `n_pairs` is within six standard deviations, which a normal variable exceeds with a probability of
/// 2e-9. Likewise for neighbouring examples within an epoch, whose correlation has mean -1/(n-1), far within the
/// bound, and a variance of no more than twice that.
#[test]
fn epochs_and_neighbours_are_uncorrelated() {
    for n in [1024u64, 1797] {
        const N_EPOCHS: u64 = 200;
        let mean = (n - 1) as f64 / 2.0;
        let variance = ((n * n - 1) as f64) / 12.0;
        let correlation = |a: &[u64], b: &[u64]| -> f64 {
            let products = a.iter().zip(b).map(|(&a, &b)| (a as f64 - mean) * (b as f64 - mean));
            products.sum::<f64>() / a.len() as f64 / variance
        };
        let epochs: Vec<Vec<u64>> = (0..=N_EPOCHS).map(|epoch| order(n, 11, epoch)).collect();
        let seeds: Vec<Vec<u64>> = (0..=N_EPOCHS).map(|seed| order(n, seed, 5)).collect();
        let limit = 6.0 / ((n - 1) as f64 * N_EPOCHS as f64).sqrt();
        for orders in [&epochs, &seeds] {
            let average: f64 =
                orders.windows(2).map(|pair| correlation(&pair[0], &pair[1])).sum::<f64>() / N_EPOCHS as f64;
            assert!(average.abs() < limit, "{n}: {average}, limit {limit}");
        }
        let neighbours: f64 =
            epochs[1..].iter().map(|order| correlation(&order[1..], &order[..order.len() - 1])).sum::<f64>()
                / N_EPOCHS as f64;
        assert!(neighbours.abs() < 2f64.sqrt() * limit, "{n}: {neighbours}, limit {limit}");
    }
}
