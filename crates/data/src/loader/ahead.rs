//! Makes batches ahead of their consumer, in threads.
//!
//! A batch is cut into the places of its examples; each worker takes the next place and fills it. The content of a
//! place is a function of its example, so the number and order of the workers change nothing. While a batch is used,
//! only the next one is made, in the memory where it will be used: two batches are in memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Batch, Loader};
use crate::error::DataError;

/// A batch that takes fewer nanoseconds than this is made by one worker: starting another takes about as long.
const WORTH_A_WORKER: u64 = 100_000;
/// A worker takes enough examples at once to be busy for about this long, so that workers seldom wait for each other.
const WORTH_A_LOOK: u64 = 20_000;

/// A request for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// See [`Loader::steps`].
    Steps {
        /// The epoch.
        epoch: u64,
        /// The first batch, from 0.
        step: u64,
        /// How many consecutive batches to join into one.
        n: u32,
    },
    /// One of [`Loader::in_order`].
    InOrder {
        /// The batch's number, from 0.
        step: u64,
    },
}

/// Gives batches, or what `put` made of them, in the order of the requests; an item is an error as in
/// [`Loader::epoch`], or if `put` failed.
#[derive(Debug)]
pub struct Supply<'s, P = Batch, E = DataError> {
    from: Feed<'s, P, E>,
    waited: Duration,
}

enum Feed<'s, P, E> {
    /// Without read-ahead: the batch is made when it is taken.
    Here(&'s mut dyn FnMut() -> Option<Result<P, E>>),
    Threads(Receiver<Result<P, E>>),
}

impl<P, E> std::fmt::Debug for Feed<'_, P, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Feed::Here(_)) { "Here" } else { "Threads" })
    }
}

impl<P, E> Iterator for Supply<'_, P, E> {
    type Item = Result<P, E>;

    fn next(&mut self) -> Option<Result<P, E>> {
        let began = Instant::now();
        let batch = match &mut self.from {
            Feed::Here(make) => make(),
            Feed::Threads(receiver) => receiver.recv().ok(),
        };
        self.waited += began.elapsed();
        batch
    }
}

impl<P, E> Supply<'_, P, E> {
    /// The total time spent waiting for batches.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl Loader<'_> {
    /// Runs `take` with the batches of `asks`. If the source wants workers, they make the next batch while `take` works
    /// on one; otherwise each batch is made when it is taken.
    pub fn ahead<T>(
        &self,
        asks: impl IntoIterator<Item = Ask, IntoIter: Send>,
        take: impl FnOnce(&mut Supply<'_>) -> T,
    ) -> T {
        self.put_ahead(asks, |_, batch| Ok(batch), take)
    }

    /// Like [`Loader::ahead`], but `take` gets the result of `put` for each batch, such as its buffer on a device;
    /// `put` runs ahead too.
    pub fn put_ahead<P: Send, E: Send + std::convert::From<DataError>, T>(
        &self,
        asks: impl IntoIterator<Item = Ask, IntoIter: Send>,
        put: impl Fn(Ask, Batch) -> Result<P, E> + Send,
        take: impl FnOnce(&mut Supply<'_, P, E>) -> T,
    ) -> T {
        let mut asks = asks.into_iter();
        let waited = Duration::ZERO;
        if self.n_workers == 0 {
            let go = AtomicBool::new(false);
            let mut make = || asks.next().map(|ask| put(ask, self.make(ask, &go)?));
            return take(&mut Supply { from: Feed::Here(&mut make), waited });
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // A channel without capacity: the finished batch waits with its producer.
            let (sender, receiver) = sync_channel(0);
            let flag = &is_over;
            let _over = Over(flag);
            scope.spawn(move || {
                for ask in asks {
                    let result = self.make(ask, flag).map_err(E::from).and_then(|batch| put(ask, batch));
                    if sender.send(result).is_err() {
                        break;
                    }
                }
            });
            take(&mut Supply { from: Feed::Threads(receiver), waited })
        })
    }

    fn make(&self, ask: Ask, is_over: &AtomicBool) -> Result<Batch, DataError> {
        match ask {
            Ask::Steps { epoch, step, n } => self.steps_of(epoch, &self.order(epoch), step, n, is_over),
            Ask::InOrder { step } => self.in_order_of(step, is_over),
        }
    }

    /// Calls `fill` for each of `n` items, on this thread or on this many workers if starting them is worth it. Of
    /// several errors, the first item's is returned.
    pub(super) fn each<I: Send>(
        &self,
        n: usize,
        items: impl Iterator<Item = I> + Send,
        is_over: &AtomicBool,
        fill: impl Fn(I) -> Result<(), DataError> + Sync,
    ) -> Result<(), DataError> {
        let item = self.example_nanos.load(Ordering::Relaxed);
        let all = item.saturating_mul(n as u64);
        if self.n_workers < 2 || (item > 0 && all < WORTH_A_WORKER) {
            let (mut items, began) = (items, Instant::now());
            let filled = items.try_for_each(fill);
            self.example_nanos.store((nanos(began) / n.max(1) as u64).max(1), Ordering::Relaxed);
            return filled;
        }
        let n_at_once = WORTH_A_LOOK.checked_div(item).unwrap_or(1).clamp(1, 64) as usize;
        let queue = Mutex::new(items.enumerate());
        let failed: Mutex<Option<(usize, DataError)>> = Mutex::new(None);
        let spent = AtomicU64::new(0);
        let work = || {
            let began = Instant::now();
            let mut taken = Vec::with_capacity(n_at_once);
            loop {
                taken.extend(queue.lock().unwrap_or_else(PoisonError::into_inner).by_ref().take(n_at_once));
                if taken.is_empty() {
                    break;
                }
                for (idx, item) in taken.drain(..) {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Err(error) = fill(item) {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        // Items are taken in order, so every item before this one is already being filled.
                        if failed.as_ref().is_none_or(|(other, _)| idx < *other) {
                            *failed = Some((idx, error));
                        }
                        return;
                    }
                }
            }
            spent.fetch_add(nanos(began), Ordering::Relaxed);
        };
        thread::scope(|scope| {
            for _ in 1..self.n_workers {
                scope.spawn(work);
            }
            work();
        });
        self.example_nanos.store((spent.into_inner() / n.max(1) as u64).max(1), Ordering::Relaxed);
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

fn nanos(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Signals when dropped, even by a panic, that no more batches will be taken.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{ArrayInfo, Fingerprint, Reading, Skipped, Source};
    use crate::{Arrays, Feature};
    use bf16scope_hlo::DType;
    use std::borrow::Cow;
    use std::path::Path;
    use std::sync::mpsc::{Sender, channel};

    /// Examples that record when they are read; 3 and 7 cannot be read if skipping is allowed.
    #[derive(Debug)]
    struct Recorded {
        arrays: Arrays,
        reads: Mutex<Sender<u64>>,
        n_workers: usize,
        skipped: Skipped,
    }

    fn recorded(n_workers: usize, limit: u64) -> (Recorded, Receiver<u64>) {
        let (sender, receiver) = channel();
        let array = (ArrayInfo::new("x", DType::U8, []), (0..12).collect());
        let arrays = Arrays::new(Path::new("a"), vec![array]).unwrap();
        (Recorded { arrays, reads: Mutex::new(sender), n_workers, skipped: Skipped::new(limit) }, receiver)
    }

    impl Source for Recorded {
        fn n_examples(&self) -> u64 {
            self.arrays.n_examples()
        }

        fn arrays(&self) -> &[ArrayInfo] {
            self.arrays.arrays()
        }

        fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
            self.reads.lock().unwrap().send(index).ok();
            match index {
                3 | 7 if self.skipped.limit() > 0 => Err(DataError::unreadable(self.place(index), "broken")),
                _ => self.arrays.read(index),
            }
        }

        fn place(&self, index: u64) -> String {
            self.arrays.place(index)
        }

        fn fingerprint(&self) -> Fingerprint {
            self.arrays.fingerprint()
        }

        fn reading(&self) -> Reading {
            Reading { n_workers: self.n_workers, is_costly: false }
        }

        fn skipped(&self) -> Option<&Skipped> {
            Some(&self.skipped)
        }
    }

    fn loader(source: &Recorded) -> Loader<'_> {
        Loader::new(source, &[Feature::exact("x", DType::U8, [])], DType::F32, 2, 0).unwrap()
    }

    #[test]
    fn the_next_batch_is_made_while_one_is_used_and_no_other() {
        for n_workers in [1, 2, 5] {
            let (source, reads) = recorded(n_workers, 0);
            let loader = loader(&source);
            loader.ahead(loader.asks_in_order(), |batches| {
                let mut n_read = 0;
                for step in 0..6 {
                    batches.next().unwrap().unwrap();
                    // Meanwhile no other batch is requested.
                    while n_read < 12.min(2 * (step + 2)) {
                        reads.recv_timeout(Duration::from_secs(120)).expect("the next batch is read by now");
                        n_read += 1;
                    }
                    assert!(reads.try_recv().is_err(), "one batch ahead, and not two");
                }
                assert!(batches.next().is_none());
            });
        }
    }

    #[test]
    fn without_workers_nothing_is_read_before_it_is_asked_for() {
        let (source, reads) = recorded(0, 0);
        let loader = loader(&source);
        loader.ahead(loader.asks_in_order(), |batches| {
            batches.next().unwrap().unwrap();
            assert_eq!(reads.try_iter().collect::<Vec<_>>(), [0, 1]);
        });
    }

    #[test]
    fn examples_that_are_left_out_are_replaced_or_missing_and_counted_once() {
        for n_workers in [0, 3] {
            let (source, _reads) = recorded(n_workers, 2);
            let loader = loader(&source);
            for epoch in 0..3 {
                let mut all: Vec<u8> =
                    loader.epoch(epoch).flat_map(|batch| batch.unwrap().arrays[0].bytes.clone()).collect();
                all.sort_unstable();
                assert_eq!(all, [0, 1, 2, 4, 4, 5, 6, 8, 8, 9, 10, 11], "the next one takes the place");
            }
            let batches: Vec<Batch> = loader.in_order().map(Result::unwrap).collect();
            let all: Vec<&[u8]> = batches.iter().map(|batch| &batch.arrays[0].bytes[..batch.n_valid]).collect();
            assert_eq!(all.concat(), [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]);
            assert_eq!(batches[3].arrays[0].bytes, [6, 0], "padding is zeros");
            assert_eq!(source.skipped.n(), 2);
            let strict = loader.strict();
            let error = strict.in_order().find_map(Result::err).unwrap();
            assert_eq!(error.to_string(), "a, example 3: the example cannot be read");

            let (source, _reads) = recorded(n_workers, 1);
            let error = self::loader(&source).in_order().find_map(Result::err).unwrap().to_string();
            assert_eq!(
                error,
                "more than 1 examples could not be used; the last of them: a, example 7: the example cannot be read\n\
                 help: raise `on_error: {skip: 1}` under `data` if so many may be left out"
            );
        }
    }
}
