//! Reads a sample of examples in several threads, and processes the results in order.

use std::thread;

/// Examples that a thread reads before the results are taken: it bounds memory.
const N_EACH: usize = 8;

/// Calls `look` for up to `limit` of `n` numbers, from the first to the last in equal steps, in as many threads as
/// there are cores, and `take` with each result, in order.
pub(super) fn look<T: Send>(n: u64, limit: u64, look: impl Fn(u64) -> T + Sync, mut take: impl FnMut(T)) {
    let n_seen = limit.min(n);
    let index_of = |number: u64| match n_seen == n || n_seen == 1 {
        true => number,
        // In u128, because there may be 2^64 of them.
        false => (u128::from(number) * u128::from(n - 1) / u128::from(n_seen - 1)) as u64,
    };
    let n_threads = thread::available_parallelism().map_or(1, |n| n.get());
    let n_block = (n_threads * N_EACH) as u64;
    let mut first = 0;
    while first < n_seen {
        let numbers: Vec<u64> = (first..n_seen.min(first + n_block)).map(index_of).collect();
        let mut seen: Vec<Option<T>> = numbers.iter().map(|_| None).collect();
        thread::scope(|scope| {
            for (numbers, seen) in numbers.chunks(N_EACH).zip(seen.chunks_mut(N_EACH)) {
                let look = &look;
                scope.spawn(move || numbers.iter().zip(seen).for_each(|(index, seen)| *seen = Some(look(*index))));
            }
        });
        seen.into_iter().flatten().for_each(&mut take);
        first += n_block;
    }
}

/// Extends a range of least and greatest value by one value.
pub(super) fn widen<T: PartialOrd + Copy>(range: &mut Option<[T; 2]>, value: T) {
    let [least, greatest] = range.unwrap_or([value, value]);
    *range = Some([if value < least { value } else { least }, if value > greatest { value } else { greatest }]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_comes_in_order_and_from_the_first_to_the_last() {
        let seen = |n, limit| {
            let mut seen = Vec::new();
            look(n, limit, |index| index, |index| seen.push(index));
            seen
        };
        assert_eq!(seen(500, 1000), (0..500).collect::<Vec<_>>());
        assert_eq!(seen(1000, 3), [0, 499, 999]);
        assert_eq!((seen(7, 1), seen(0, 5)), (vec![0], vec![]));
        assert_eq!(seen(u64::MAX, 2), [0, u64::MAX - 1]);
    }
}
