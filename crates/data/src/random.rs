//! Random numbers for orders, shifts and transforms: a generator whose stream never changes.

use std::f64::consts::TAU;

use super::feature::Random;

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

    /// A number in [0, 1), of 24 random bits: f32's precision.
    pub(super) fn share(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// A number below `bound`. Its bias is below `bound / 2^64`, too small to show in any data set.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// How seed, epoch and example become the numbers that transforms draw. A checkpoint holds the version that its run
/// began with, and a resumed run keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DrawVersion {
    /// Seed and epoch were mixed alike: epoch 1 of seed 0 drew the same numbers as epoch 0 of seed 1.
    V1,
    /// Each is mixed into the previous state, so exchanging two of them changes the stream.
    #[default]
    V2,
}

/// The number of [`DrawVersion::V2`], with which this build begins runs. See also
/// [`ORDER_VERSION`](super::ORDER_VERSION).
pub const DRAW_VERSION: u32 = 2;

impl DrawVersion {
    /// The version with this number, if this build knows it.
    pub fn from_number(number: u32) -> Option<DrawVersion> {
        match number {
            1 => Some(DrawVersion::V1),
            DRAW_VERSION => Some(DrawVersion::V2),
            _ => None,
        }
    }

    /// Its number, as checkpoints hold it.
    pub fn number(self) -> u32 {
        match self {
            DrawVersion::V1 => 1,
            DrawVersion::V2 => DRAW_VERSION,
        }
    }
}

/// The random state of an example's transforms: it depends only on seed, epoch and the example's number, not on who
/// draws, when or how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw(u64);

/// Purposes for which an example draws numbers. Their values never change: a resumed run must draw the same numbers as
/// an uninterrupted one.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Crop = 1,
    Flip = 2,
    Mask = 3,
    Share = 4,
    Geometry = 5,
    Colour = 6,
    Erase = 7,
    Mix = 8,
    Partner = 9,
    Feature = 10,
}

/// The initial state of [`DrawVersion::V2`]: an arbitrary number that differs from those of orders and shifts.
const START: u64 = u64::from_le_bytes(*b"bf16draw");

impl Draw {
    /// The draw of an example in an epoch.
    pub fn new(seed: u64, epoch: u64, example: u64) -> Draw {
        Draw::of_version(DrawVersion::V2, seed, epoch, example)
    }

    /// Like [`new`](Draw::new), in a run that began with this version.
    pub fn of_version(version: DrawVersion, seed: u64, epoch: u64, example: u64) -> Draw {
        match version {
            DrawVersion::V1 => {
                let stream = SplitMix64(SplitMix64(!seed).next() ^ SplitMix64(!epoch).next()).next();
                Draw(SplitMix64(stream ^ SplitMix64(!example).next()).next())
            }
            DrawVersion::V2 => {
                Draw([seed, epoch, example].iter().fold(START, |state, number| SplitMix64(state ^ number).next()))
            }
        }
    }

    /// The draw outside of epochs: for an evaluated example or a generated token. The numbers are those of epoch 0 of
    /// the first version, which evaluations of older runs drew.
    pub fn without_epoch(seed: u64, example: u64) -> Draw {
        Draw::of_version(DrawVersion::V1, seed, 0, example)
    }

    /// A number in [0, 1), of 53 random bits: for choices made once per example.
    pub fn share(self) -> f64 {
        (self.stream(Purpose::Share).next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The draw that chooses the example to mix with.
    pub(super) fn of_partner(self) -> Draw {
        Draw(self.stream(Purpose::Partner).next())
    }

    /// The numbers of a feature, independent of those of other features. Normal ones use the Box-Muller transform
    /// (1958), in f64.
    pub(super) fn feature(self, name: &str, random: Random, n: usize) -> Vec<f32> {
        let start = self.stream(Purpose::Feature).next();
        let mut stream = SplitMix64(name.bytes().fold(start, |state, byte| SplitMix64(state ^ u64::from(byte)).next()));
        match random {
            Random::Uniform => (0..n).map(|_| 2.0 * stream.share() - 1.0).collect(),
            Random::Normal => {
                let mut share = || (stream.next() >> 11) as f64 * 2f64.powi(-53);
                // 1 less the share is above 0.
                (0..n).map(|_| ((-2.0 * (1.0 - share()).ln()).sqrt() * (TAU * share()).cos()) as f32).collect()
            }
        }
    }

    /// The stream for one purpose, independent of the others: the number of crop attempts does not change the flip.
    pub(super) fn stream(self, purpose: Purpose) -> SplitMix64 {
        SplitMix64(SplitMix64(self.0 ^ purpose as u64).next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The draws of each purpose never change within a version: a resumed run must draw the same numbers as an
    /// uninterrupted one. Expectations from a separate implementation in Python:
    ///
    /// ```python
    /// M, G = 2**64 - 1, 0x9E3779B97F4A7C15
    /// def mix(x):
    ///     x = (x + G) & M
    ///     x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & M
    ///     x = ((x ^ x >> 27) * 0x94D049BB133111EB) & M
    ///     return x ^ x >> 31
    /// def first(seed, epoch, example, purpose):
    ///     state = int.from_bytes(b"bf16draw", "little")
    ///     for number in (seed, epoch, example):
    ///         state = mix(state ^ number)
    ///     return mix(mix(state ^ purpose))
    /// def first_v1(seed, epoch, example, purpose):
    ///     state = mix(mix(mix(M ^ seed) ^ mix(M ^ epoch)) ^ mix(M ^ example))
    ///     return mix(mix(state ^ purpose))
    /// ```
    #[test]
    fn what_is_drawn_never_changes() {
        let first = |version| {
            let draw = Draw::of_version(version, 3, 5, 7);
            [Purpose::Crop, Purpose::Flip, Purpose::Mask, Purpose::Share].map(|purpose| draw.stream(purpose).next())
        };
        assert_eq!(
            first(DrawVersion::V2),
            [13733557080664892121, 5691442096398113341, 7023709548585139423, 17570542253215524842]
        );
        assert_eq!(
            first(DrawVersion::V1),
            [3329505755800151612, 9685908329650362527, 14955443534186708241, 10215839356686088167]
        );
        assert_eq!(Draw::new(3, 5, 7), Draw::of_version(DrawVersion::V2, 3, 5, 7));
        assert_eq!(Draw::without_epoch(3, 7), Draw::of_version(DrawVersion::V1, 3, 0, 7));
        for number in [1, 2] {
            assert_eq!(DrawVersion::from_number(number).unwrap().number(), number);
        }
        assert_eq!((DrawVersion::from_number(0), DrawVersion::from_number(3)), (None, None));
    }

    /// Before version 2, (0, 1, ·) drew the same as (1, 0, ·) and every (k, k, ·) was one stream, so three seeds shared
    /// their crops, flips and masks.
    #[test]
    fn seed_epoch_and_example_do_not_change_places() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..24 {
            for epoch in 0..24 {
                for example in 0..24 {
                    assert!(seen.insert(Draw::new(seed, epoch, example).0), "{seed} {epoch} {example}");
                }
            }
        }
    }

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
