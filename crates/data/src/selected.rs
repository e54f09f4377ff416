//! A subset of a source's examples in a chosen order: parts of a data set that was shuffled, or split class by class.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::learnt::Learnt;
use super::random::{Draw, SplitMix64};
use super::source::{ArrayInfo, ColumnSize, Fingerprint, Reading, Skipped, Source, Spent, Take};
use crate::error::DataError;
use sha2::{Digest, Sha256};

/// Some examples of a source, by their numbers there.
#[derive(Debug)]
pub struct Selected {
    source: Arc<dyn Source>,
    indices: Vec<u64>,
    /// Each part counts its own skipped examples.
    skipped: Option<Skipped>,
}

impl Selected {
    /// The examples with these numbers, in this order. Numbers beyond the source's last are errors when they are read.
    pub fn new(source: Arc<dyn Source>, indices: Vec<u64>) -> Selected {
        let skipped = source.skipped().map(|skipped| Skipped::new(skipped.limit()));
        Selected { source, indices, skipped }
    }

    /// The examples' numbers in the source.
    pub fn indices(&self) -> &[u64] {
        &self.indices
    }

    fn inner(&self, index: u64) -> u64 {
        // The source refuses a number that does not exist.
        self.indices.get(index as usize).copied().unwrap_or(u64::MAX)
    }
}

impl Source for Selected {
    fn n_examples(&self) -> u64 {
        self.indices.len() as u64
    }

    fn arrays(&self) -> &[ArrayInfo] {
        self.source.arrays()
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        self.source.read(self.inner(index))
    }

    fn give(&self, index: u64, draw: Option<Draw>, take: &mut Take<'_>) -> Result<Option<Spent>, DataError> {
        self.source.give(self.inner(index), draw, take)
    }

    fn place(&self, index: u64) -> String {
        self.source.place(self.inner(index))
    }

    fn fingerprint(&self) -> Fingerprint {
        let mut fingerprint = self.source.fingerprint();
        let numbers = self.indices.iter().fold(Sha256::new(), |hash, index| hash.chain_update(index.to_le_bytes()));
        let numbers = numbers.finalize();
        for hash in fingerprint.arrays.values_mut() {
            *hash = bf16scope_files::hex(Sha256::new().chain_update(&*hash).chain_update(numbers).finalize());
        }
        fingerprint.n_examples = self.n_examples();
        fingerprint
    }

    fn reading(&self) -> Reading {
        self.source.reading()
    }

    fn classes(&self) -> BTreeMap<String, Vec<String>> {
        self.source.classes()
    }

    fn learnt(&self) -> Option<&Learnt> {
        self.source.learnt()
    }

    fn columns(&self, array: &str) -> Option<Vec<ColumnSize>> {
        self.source.columns(array)
    }

    fn skipped(&self) -> Option<&Skipped> {
        self.skipped.as_ref()
    }
}

/// Cuts `0..n` into consecutive parts of `sizes` examples, the first of which is for training: in order, or shuffled by
/// a seed. With `classes`, one for each example, every part has each class's share as nearly as whole examples allow.
/// The numbers in each part are in ascending order unless they are shuffled.
///
/// The sizes add up to `n`.
pub fn parts(n: u64, sizes: &[u64], seed: Option<u64>, classes: Option<&[i64]>) -> Vec<Vec<u64>> {
    let mut order: Vec<u64> = (0..n).collect();
    if let Some(seed) = seed {
        shuffle(&mut order, seed);
    }
    let Some(classes) = classes else {
        let mut rest = order.into_iter();
        return sizes.iter().map(|&size| rest.by_ref().take(size as usize).collect()).collect();
    };
    // Each example goes to the part that is furthest behind its share of the class, or of the whole if classes tie.
    let mut members: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    order.iter().for_each(|&index| members.entry(classes[index as usize]).or_default().push(index));
    let mut part_of = vec![0usize; n as usize];
    let mut left = sizes.to_vec();
    let mut n_left = n;
    for of_class in members.values() {
        let shares = shares(of_class.len() as u64, &left, n_left);
        let mut rest = of_class.iter();
        for (part, share) in shares.iter().enumerate() {
            rest.by_ref().take(*share as usize).for_each(|&index| part_of[index as usize] = part);
            left[part] -= share;
        }
        n_left -= of_class.len() as u64;
    }
    let mut parts: Vec<Vec<u64>> = sizes.iter().map(|&size| Vec::with_capacity(size as usize)).collect();
    order.into_iter().for_each(|index| parts[part_of[index as usize]].push(index));
    parts
}

/// How many of `n` examples each part gets, given `left` free places of `n_left`: by largest remainder, so that nothing
/// is left over and no part exceeds its places.
fn shares(n: u64, left: &[u64], n_left: u64) -> Vec<u64> {
    let exact = |part: usize| u128::from(n) * u128::from(left[part]);
    let mut shares: Vec<u64> = (0..left.len()).map(|part| (exact(part) / u128::from(n_left.max(1))) as u64).collect();
    let mut by_remainder: Vec<usize> = (0..left.len()).collect();
    by_remainder.sort_by_key(|&part| std::cmp::Reverse(exact(part) % u128::from(n_left.max(1))));
    let mut missing = n - shares.iter().sum::<u64>();
    for part in by_remainder.iter().cycle() {
        if missing == 0 {
            break;
        }
        if shares[*part] < left[*part] {
            shares[*part] += 1;
            missing -= 1;
        }
    }
    shares
}

/// The initial state of a shuffle: an arbitrary number that differs from those of orders, shifts and draws.
const START: u64 = u64::from_le_bytes(*b"bf16part");

/// Fisher-Yates shuffle.
fn shuffle(order: &mut [u64], seed: u64) {
    let mut random = SplitMix64(SplitMix64(START ^ seed).next());
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_their_sizes_and_every_example_once() {
        let classes: Vec<i64> = (0..100).map(|i| i64::from(i % 10 == 0) + i64::from(i % 25 == 0)).collect();
        for (seed, classes) in [(None, None), (Some(3), None), (None, Some(&classes)), (Some(3), Some(&classes))] {
            let parts = parts(100, &[70, 13, 17], seed, classes.map(Vec::as_slice));
            assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [70, 13, 17]);
            let mut all: Vec<u64> = parts.concat();
            all.sort_unstable();
            assert_eq!(all, (0..100).collect::<Vec<_>>());
            if seed.is_none() {
                assert!(parts.iter().all(|part| part.is_sorted()));
            }
        }
    }

    #[test]
    fn each_part_has_each_classs_share() {
        // 90 of class 0, then 10 of class 1, as in a sorted file.
        let classes: Vec<i64> = (0..100).map(|i| i64::from(i >= 90)).collect();
        let parts = parts(100, &[80, 20], Some(0), Some(&classes));
        let n_ones = |part: &[u64]| part.iter().filter(|&&index| index >= 90).count();
        assert_eq!((n_ones(&parts[0]), n_ones(&parts[1])), (8, 2));
    }

    #[test]
    fn a_seed_gives_an_order_and_another_seed_another() {
        let order = |seed| parts(1000, &[1000], Some(seed), None).remove(0);
        assert_eq!(order(7), order(7));
        assert!(order(7) != order(8) && order(7) != (0..1000).collect::<Vec<_>>());
    }
}
