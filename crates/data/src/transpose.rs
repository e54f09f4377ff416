//! Batches with the examples last, as TensorFlow's `transpose_input` hands images to a TPU: HWCN.

/// The block size in elements of each side: such a block stays in the first-level cache.
const BLOCK: usize = 32;

/// Transposes `n` consecutive examples: the first elements of all examples, then the second ones, and so on.
///
/// # Shapes
/// `[n, m]` to `[m, n]`; elements of `width` bytes.
///
/// # Panics
/// If `bytes` are not `n` examples of whole elements; that is a bug of the caller.
pub fn examples_last(bytes: &[u8], n: usize, width: usize) -> Vec<u8> {
    assert!(n > 0 && bytes.len().is_multiple_of(n * width), "{} bytes of {n} examples", bytes.len());
    let mut out = vec![0; bytes.len()];
    match width {
        1 => blocks::<1>(bytes, n, &mut out),
        2 => blocks::<2>(bytes, n, &mut out),
        4 => blocks::<4>(bytes, n, &mut out),
        8 => blocks::<8>(bytes, n, &mut out),
        _ => unreachable!("no dtype has elements of {width} bytes"),
    }
    out
}

fn blocks<const WIDTH: usize>(src: &[u8], n: usize, dst: &mut [u8]) {
    let (src, dst) = (src.as_chunks::<WIDTH>().0, dst.as_chunks_mut::<WIDTH>().0);
    let m = src.len() / n;
    for (number, rows) in dst.chunks_mut(BLOCK * n).enumerate() {
        let first = number * BLOCK;
        for start in (0..n).step_by(BLOCK) {
            let examples = start..n.min(start + BLOCK);
            for (element, row) in rows.chunks_exact_mut(n).enumerate() {
                for (example, place) in examples.clone().zip(&mut row[examples.clone()]) {
                    *place = src[example * m + first + element];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_finds_its_place() {
        for width in [1, 2, 4, 8] {
            for (n, m) in [(1, 1), (1, 70), (3, 2), (33, 65), (64, 32), (2, 100)] {
                let bytes: Vec<u8> = (0..n * m * width).map(|i| (i * 31 + i / 251) as u8).collect();
                let out = examples_last(&bytes, n, width);
                for (example, element) in (0..n).flat_map(|example| (0..m).map(move |element| (example, element))) {
                    let (from, to) = (example * m + element, element * n + example);
                    assert_eq!(out[to * width..][..width], bytes[from * width..][..width], "{n} of {m}, {width} bytes");
                }
            }
        }
        assert!(examples_last(&[], 3, 4).is_empty());
    }
}
