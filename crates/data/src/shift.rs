//! Random shifts of images, so that a network learns translation invariance.
//!
//! The shift is a function of seed, epoch and the example's number alone, like the order.

use super::random::SplitMix64;

/// The shift of an example's images in this epoch, by up to `max` pixels down and right; `None` for half of them, which
/// stay in place.
pub(super) fn offset(max: usize, seed: u64, epoch: u64, example: u64) -> Option<(isize, isize)> {
    // Mixed at each stage, so that neighbouring numbers give unrelated streams.
    let stream = SplitMix64(SplitMix64(seed).next() ^ SplitMix64(!epoch).next()).next();
    let mut random = SplitMix64(stream ^ example);
    if max == 0 || random.below(2) == 0 {
        return None;
    }
    let mut one = || random.below(2 * max as u64 + 1) as isize - max as isize;
    Some((one(), one()))
}

/// The copies that shift an image `[height, width, channels]`: runs of elements, each with its start in the image, its
/// start in the result and its length. Elements that no run covers are 0.
pub(super) fn runs(
    [height, width, channels]: [usize; 3],
    (down, right): (isize, isize),
) -> impl Iterator<Item = (usize, usize, usize)> {
    let n_columns = width.saturating_sub(right.unsigned_abs());
    let (from_column, to_column) = (right.min(0).unsigned_abs(), right.max(0).unsigned_abs());
    let start = move |row: usize, column: usize| (row * width + column) * channels;
    (0..height).filter(move |_| n_columns > 0).filter_map(move |row| {
        let from_row = row.checked_add_signed(-down).filter(|&from_row| from_row < height)?;
        Some((start(from_row, from_column), start(row, to_column), n_columns * channels))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const IMAGE: [f32; 12] = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0, 5.0, 50.0, 6.0, 60.0];

    fn moved(by: (isize, isize)) -> [f32; 12] {
        let mut out = [0.0; 12];
        for (from, to, len) in runs([2, 3, 2], by) {
            out[to..to + len].copy_from_slice(&IMAGE[from..from + len]);
        }
        out
    }

    #[test]
    fn pixels_move_with_their_channels_and_zeros_come_in() {
        assert_eq!(moved((0, 0)), IMAGE);
        assert_eq!(moved((1, 0)), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
        assert_eq!(moved((-1, 1)), [0.0, 0.0, 4.0, 40.0, 5.0, 50.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(moved((0, -5)), [0.0; 12]);
    }

    /// Expectations from a separate implementation in Python. If this changes, resumed runs see other images than
    /// before: do not bless it.
    #[test]
    fn shifts_never_change() {
        let first = |seed, epoch| [0, 1, 2, 3].map(|example| offset(2, seed, epoch, example));
        assert_eq!(first(0, 0), [Some((-2, -2)), None, Some((2, -1)), None]);
        assert_eq!(first(0, 1), [None, Some((-2, 0)), Some((0, -1)), Some((-2, -2))]);
        assert_eq!(first(1, 0), [Some((1, 2)), Some((1, -1)), Some((1, 0)), Some((-2, -2))]);
    }

    #[test]
    fn every_way_is_taken_and_half_stay() {
        let images = |seed, epoch| -> Vec<Vec<u32>> {
            let one = |example| {
                let out = offset(1, seed, epoch, example).map_or(IMAGE, moved);
                out.iter().map(|value| value.to_bits()).collect()
            };
            (0..900).map(one).collect()
        };
        let once = images(1, 2);
        assert_eq!(once, images(1, 2), "a function of seed, epoch and example");
        assert!(once != images(1, 3) && once != images(2, 2));
        assert_eq!(once.iter().collect::<BTreeSet<_>>().len(), 9, "nine ways, staying among them");
        // 1/2 + 1/18 stay: 500 of 900, with a standard deviation of 15.
        let unmoved: Vec<u32> = IMAGE.map(f32::to_bits).to_vec();
        let n_unmoved = once.iter().filter(|image| **image == unmoved).count();
        assert!((425..=575).contains(&n_unmoved), "{n_unmoved} of 900 stay");
    }
}
