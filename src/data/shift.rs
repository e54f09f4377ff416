//! Shifting images at random, so that a network learns what does not depend on where exactly a thing stands.
//!
//! Which way an example is shifted is a function of seed, epoch and the example's number alone, as the order is.

use super::random::SplitMix64;

/// Random shifts of images `[height, width, channels]` by up to `max` pixels each way, in half of all cases; what
/// comes in at the border is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shift {
    pub(super) max: usize,
    pub(super) dims: [usize; 3],
}

impl Shift {
    /// Appends `image`, shifted as it is in this epoch.
    pub(super) fn push(&self, seed: u64, epoch: u64, example: usize, image: &[f32], out: &mut Vec<f32>) {
        // Mixed at each stage, so that neighbouring numbers give unrelated streams.
        let stream = SplitMix64(SplitMix64(seed).next() ^ SplitMix64(!epoch).next()).next();
        let mut random = SplitMix64(stream ^ example as u64);
        if self.max == 0 || random.below(2) == 0 {
            out.extend_from_slice(image);
            return;
        }
        let mut offset = || random.below(2 * self.max as u64 + 1) as isize - self.max as isize;
        let (down, right) = (offset(), offset());
        self.push_moved(image, down, right, out);
    }

    fn push_moved(&self, image: &[f32], down: isize, right: isize, out: &mut Vec<f32>) {
        let [height, width, channels] = self.dims;
        for row in 0..height {
            for column in 0..width {
                let source = row.checked_add_signed(-down).zip(column.checked_add_signed(-right));
                match source.filter(|&(row, column)| row < height && column < width) {
                    Some((row, column)) => {
                        let start = (row * width + column) * channels;
                        out.extend_from_slice(&image[start..start + channels]);
                    }
                    None => out.resize(out.len() + channels, 0.0),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const IMAGE: [f32; 12] = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0, 5.0, 50.0, 6.0, 60.0];

    fn shift(max: usize) -> Shift {
        Shift { max, dims: [2, 3, 2] }
    }

    #[test]
    fn pixels_move_with_their_channels_and_zeros_come_in() {
        let moved = |down, right| {
            let mut out = Vec::new();
            shift(1).push_moved(&IMAGE, down, right, &mut out);
            out
        };
        assert_eq!(moved(0, 0), IMAGE);
        assert_eq!(moved(1, 0), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
        assert_eq!(moved(-1, 1), [0.0, 0.0, 4.0, 40.0, 5.0, 50.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(moved(0, -5), [0.0; 12]);
    }

    #[test]
    fn every_way_is_taken_and_half_stay() {
        let images = |seed, epoch| -> Vec<Vec<u32>> {
            let one = |example| {
                let mut out = Vec::new();
                shift(1).push(seed, epoch, example, &IMAGE, &mut out);
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
