//! The numbers behind orders, shifts and transforms: a generator whose stream is fixed for good.

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: the 64-bit generator with the
/// constants of its reference implementation.
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number from 0 up to but not including 1, of 24 random bits: as many as f32 has.
    pub(super) fn share(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// A number below `bound`. Its bias is below `bound / 2^64`, which no data set can show.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// What an example's transforms draw from: fixed by seed, epoch and the example's number, whoever asks, when and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw(u64);

/// What an example draws numbers for. They never change: a run that is resumed must draw what it would have drawn.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Crop = 1,
    Flip = 2,
    Mask = 3,
    Share = 4,
}

impl Draw {
    /// That of an example in an epoch.
    pub fn new(seed: u64, epoch: u64, example: u64) -> Draw {
        // Mixed at each stage, so that neighbouring numbers give unrelated streams; complemented, so that they are unrelated to
        // those of shifts too.
        let stream = SplitMix64(SplitMix64(!seed).next() ^ SplitMix64(!epoch).next()).next();
        Draw(SplitMix64(stream ^ SplitMix64(!example).next()).next())
    }

    /// A number from 0 up to but not including 1, of 53 random bits: for what is drawn once for an example.
    pub fn share(self) -> f64 {
        (self.stream(Purpose::Share).next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The numbers for one purpose, unrelated to those for others: how often a crop was tried changes no flip.
    pub(super) fn stream(self, purpose: Purpose) -> SplitMix64 {
        SplitMix64(SplitMix64(self.0 ^ purpose as u64).next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        // First outputs for seed 1234567, as given with the reference implementation.
        let mut random = SplitMix64(1_234_567);
        assert_eq!(
            [random.next(), random.next(), random.next()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }
}
