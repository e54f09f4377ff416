//! The order of an epoch: a permutation of the examples that takes no memory.
//!
//! The example at a position is computed, so a billion examples are shuffled as fully as a thousand, and a resumed run
//! continues at the position where it stopped.
//!
//! Source: Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", SIAM J. Comput.
//! 1988, for the balanced Feistel network; Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, for
//! cycle walking.

use super::random::SplitMix64;

/// The version of [`Order`]'s permutation: a checkpoint made under another version does not see the same batches again.
/// Version 1 was a Fisher-Yates shuffle.
pub const ORDER_VERSION: u32 = 2;

/// The largest number of rounds: for halves of one bit.
const MAX_ROUNDS: usize = 24;

/// The order of one epoch: a permutation of `0..n` that only seed and epoch decide.
///
/// It never changes within an [`ORDER_VERSION`]: a checkpoint that is resumed years later must see the same order.
#[derive(Clone, Debug)]
pub struct Order {
    n: u64,
    /// Bits of each half of a number in the network.
    half: u32,
    /// A key for each round.
    keys: [u64; MAX_ROUNDS],
    n_rounds: usize,
    /// 1 if the first two numbers are swapped before the network.
    swap: u64,
}

impl Order {
    /// The order of `n` examples.
    pub fn new(n: u64, seed: u64, epoch: u64) -> Order {
        // The least even number of bits that holds every index: the domain has at most four times as many numbers as
        // there are examples.
        let half = (u64::BITS - n.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
        // Four rounds are enough for halves of many bits. Short halves have few round functions to choose from, so
        // there are enough rounds to use at least 24 random bits.
        let n_rounds = MAX_ROUNDS.div_ceil(half as usize).max(8);
        // Mixed twice, so that neighbouring seeds and epochs give unrelated keys.
        let mut random = SplitMix64(SplitMix64(seed).next() ^ SplitMix64(!epoch).next());
        let mut keys = [0; MAX_ROUNDS];
        keys[..n_rounds].fill_with(|| random.next());
        // A round on halves of two bits or more is an even permutation, whatever its key: without a swap in half of all
        // cases, half of the orders of sixteen examples could never occur.
        let swap = random.next() & 1;
        Order { n, half, keys, n_rounds, swap }
    }

    /// The example at `position`.
    ///
    /// # Panics
    /// If `position` is not below `n`; that is a bug of the caller.
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.n, "position {position} of {} examples", self.n);
        let mut index = self.permute(position);
        // Cycle walking: numbers beyond the last example are mapped again until one is below `n`. The cycle of
        // `position` contains such a number, at the latest `position` itself.
        while index >= self.n {
            index = self.permute(index);
        }
        index
    }

    /// A permutation of the numbers of `2 * half` bits.
    fn permute(&self, number: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let number = if number < 2 { number ^ self.swap } else { number };
        let (mut left, mut right) = (number >> self.half, number & mask);
        for key in &self.keys[..self.n_rounds] {
            let mixed = SplitMix64(key ^ right).next() >> (u64::BITS - self.half);
            (left, right) = (right, left ^ mixed);
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests;
