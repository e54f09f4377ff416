//! The size of the heap for a program's temporaries when they are packed as the TPU compiler packs them.
//!
//! The bytes alive at once are fewer than the heap that holds them: memory is allocated in granules, holes between
//! long-lived buffers stay empty, and each step that makes several arrays has a tuple table. Here buffers are placed in
//! the order of the schedule, each into the smallest hole that holds it, otherwise at the end; a table takes a granule
//! and keeps it.
//!
//! Source: `LazyBestFitHeap` in XLA's `heap_simulator.cc` for the placing. The granules of 16 KiB and the permanence of
//! tables were found by comparing with the heaps of `libtpu` 0.0.51 for v2 and v3, each a multiple of a granule. Of 136
//! programs whose heap is over a MiB (libtpu 0.0.52, docs/TEST_RUNS.md) 104 are within 0.5 % of it, and all within 10
//! %. `GlobalDecreasingSizeBestFitHeap` in the same file is less accurate: off by 5.9 % on average (`kSpatial`) or 4.2
//! % (`kTemporal`), compared with 0.9 % here.

use std::collections::{BTreeMap, BTreeSet};

use super::liveness::{BufferKind, Liveness, Step};
use bf16scope_hlo::{Module, Op};

/// The TPU compiler's heap allocates multiples of this many bytes.
pub const GRANULE: u64 = 16 << 10;

/// Bytes of the heap for a program's temporaries.
pub fn heap_bytes(module: &Module, liveness: &Liveness) -> u64 {
    let mut heap = Heap::default();
    // Buffers are placed in the order in which they become alive; dying ones wait here until the following step.
    let mut dying: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
    for buffer in liveness.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Temporary) {
        while let Some(entry) = dying.first_entry().filter(|entry| *entry.key() < buffer.first) {
            entry.remove().into_iter().for_each(|(offset, n_bytes)| heap.free(offset, n_bytes));
        }
        let n_bytes = buffer.n_bytes.div_ceil(GRANULE).saturating_mul(GRANULE);
        if n_bytes > 0 {
            let offset = heap.place(n_bytes);
            dying.entry(buffer.last).or_default().push((offset, n_bytes));
        }
    }
    let makes_table = |step: &&Step| {
        let instruction = module.comp(liveness.frames[step.frame].computation).instr(step.instruction);
        instruction.shape.as_tuple().is_some() && !matches!(instruction.op, Op::Tuple | Op::Parameter { .. })
    };
    let n_tables = liveness.steps.iter().filter(makes_table).count() as u64;
    heap.end.saturating_add(n_tables.saturating_mul(GRANULE))
}

/// Memory with holes. No two holes touch.
#[derive(Default)]
struct Heap {
    /// Where it ends.
    end: u64,
    /// Holes: offset and size.
    holes: BTreeMap<u64, u64>,
    /// The same by size.
    by_size: BTreeSet<(u64, u64)>,
}

impl Heap {
    /// The offset of a new block.
    fn place(&mut self, n_bytes: u64) -> u64 {
        if let Some(&(size, offset)) = self.by_size.range((n_bytes, 0)..).next() {
            self.fill(offset, size);
            if size > n_bytes {
                self.dig(offset + n_bytes, size - n_bytes);
            }
            return offset;
        }
        // A hole at the end is extended.
        let last = self.holes.last_key_value().map(|(&offset, &size)| (offset, size));
        let offset = match last.filter(|(offset, size)| offset + size == self.end) {
            Some((offset, size)) => {
                self.fill(offset, size);
                offset
            }
            None => self.end,
        };
        self.end = offset.saturating_add(n_bytes);
        offset
    }

    fn free(&mut self, offset: u64, n_bytes: u64) {
        let (mut offset, mut n_bytes) = (offset, n_bytes);
        if let Some((&before, &size)) = self.holes.range(..offset).next_back()
            && before + size == offset
        {
            self.fill(before, size);
            (offset, n_bytes) = (before, n_bytes + size);
        }
        if let Some(&size) = self.holes.get(&offset.saturating_add(n_bytes)) {
            self.fill(offset + n_bytes, size);
            n_bytes += size;
        }
        self.dig(offset, n_bytes);
    }

    fn dig(&mut self, offset: u64, size: u64) {
        self.holes.insert(offset, size);
        self.by_size.insert((size, offset));
    }

    fn fill(&mut self, offset: u64, size: u64) {
        self.holes.remove(&offset);
        self.by_size.remove(&(size, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_hole_that_fits_is_filled() {
        let mut heap = Heap::default();
        let blocks: Vec<u64> = [4, 1, 2, 1, 8].into_iter().map(|size| heap.place(size)).collect();
        assert_eq!((blocks, heap.end), (vec![0, 4, 5, 7, 8], 16));
        heap.free(0, 4);
        heap.free(5, 2);
        assert_eq!(heap.place(2), 5);
        assert_eq!(heap.place(3), 0);
        // One byte of the first hole is left; freeing its neighbours makes it whole again.
        heap.free(0, 3);
        heap.free(4, 1);
        assert_eq!((heap.holes.clone(), heap.end), (BTreeMap::from([(0, 5)]), 16));
        // A hole at the end grows.
        heap.free(8, 8);
        assert_eq!((heap.place(10), heap.end), (8, 18));
    }

    #[test]
    fn small_buffers_take_granules_and_tables_keep_theirs() {
        let text = "HloModule m, is_scheduled=true
ENTRY m {
  x = f32[1024]{0:T(256)} parameter(0)
  a = f32[1024]{0:T(256)} negate(x)
  b = (f32[1024]{0:T(256)}, f32[1024]{0:T(256)}) custom-call(a), custom_call_target=\"two\"
  c = f32[1024]{0:T(256)} get-tuple-element(b), index=0
  d = f32[1024]{0:T(256)} get-tuple-element(b), index=1
  ROOT e = f32[1024]{0:T(256)} add(c, d)
}";
        let module = bf16scope_hlo::text::parse(text, "m").unwrap();
        let liveness = super::super::analyse(&module).unwrap();
        // `a` and both results of `b` are alive at once, and a table.
        assert_eq!((liveness.peak_bytes(), heap_bytes(&module, &liveness)), (3 * 4096, 4 * GRANULE));
    }
}
