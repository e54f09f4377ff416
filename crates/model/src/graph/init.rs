//! Initial values of variables: recipes that the graph records, and the pure function from a seed to values.
//!
//! Values are a function of (seed, variable name, dims, recipe) alone: neither the order of variables nor other
//! variables matter.
//!
//! Source: Glorot & Bengio 2010; He et al. 2015; TensorFlow's `VarianceScaling` (a truncated normal keeps values within
//! two standard deviations and divides by 0.87962566103423978, the standard deviation that remains).

mod written;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The recipe of a variable's initial values. It is written as in Keras: by its name (a constant below), or with
/// arguments, as `{constant: -2}` and `{random_normal: {stddev: 0.02}}` (`written`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// All of one value.
    Constant(f64),
    /// Normal with mean 0.
    Normal {
        /// Its standard deviation.
        stddev: f64,
    },
    /// Normal around a mean, optionally truncated to two standard deviations.
    NormalAround {
        /// The mean.
        mean: f64,
        /// The standard deviation, before truncation.
        stddev: f64,
        /// Whether values farther away are redrawn.
        is_truncated: bool,
    },
    /// Uniform in `[-limit, limit)`.
    Uniform {
        /// The bound.
        limit: f64,
    },
    /// Uniform in `[minval, maxval)`.
    UniformBetween {
        /// The least value.
        minval: f64,
        /// The upper bound, exclusive.
        maxval: f64,
    },
    /// Variance `scale / fan`.
    VarianceScaling {
        /// The numerator.
        scale: f64,
        /// The denominator.
        mode: FanMode,
        /// The distribution.
        distribution: Distribution,
    },
    /// Orthonormal columns (or rows, if the matrix is wider than high); Saxe et al. 2014.
    Orthogonal,
    /// The identity matrix, or an orthogonal one, times a gain.
    Times {
        /// The gain.
        gain: f64,
        /// The matrix.
        matrix: Matrix,
    },
    /// Zeros, but for the second quarter, which is ones: the bias of an LSTM whose forget gate starts open.
    ForgetGate,
    /// Raw random bits: the state of a random number generator.
    RandomBits,
}

/// A matrix that [`Init::Times`] multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// Ones on the diagonal.
    Identity,
    /// As [`Init::Orthogonal`].
    Orthogonal,
}

/// The denominator of variance scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FanMode {
    /// Inputs per output.
    FanIn,
    /// Outputs per input.
    FanOut,
    /// Their mean.
    FanAvg,
}

/// The distribution of variance scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Normal, within two standard deviations.
    TruncatedNormal,
    /// Normal.
    UntruncatedNormal,
    /// Uniform.
    Uniform,
}

/// Standard deviation of the standard normal distribution truncated to ±2.
const TRUNCATED_STDDEV: f64 = 0.879_625_661_034_239_8;

macro_rules! named {
    ($($(#[$doc:meta])* $CONST:ident, $Name:ident = $init:expr;)*) => {
        impl Init {
            $($(#[$doc])* pub const $CONST: Init = $init;)*
        }

        /// The names of recipes.
        #[derive(Clone, Copy, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(super) enum Name {
            $($Name,)*
        }

        pub(super) const NAMED: &[(Name, Init)] = &[$((Name::$Name, $init)),*];

        impl From<Name> for Init {
            fn from(name: Name) -> Init {
                match name {
                    $(Name::$Name => $init,)*
                }
            }
        }
    };
}

named! {
    /// All zeros.
    ZEROS, Zeros = Init::Zeros;
    /// All ones.
    ONES, Ones = Init::Ones;
    /// Uniform, variance `2 / (inputs + outputs)`: Keras' default for kernels.
    GLOROT_UNIFORM, GlorotUniform = scaled(1.0, FanMode::FanAvg, Distribution::Uniform);
    /// Truncated normal, variance `2 / (inputs + outputs)`.
    GLOROT_NORMAL, GlorotNormal = scaled(1.0, FanMode::FanAvg, Distribution::TruncatedNormal);
    /// Uniform, variance `2 / inputs`.
    HE_UNIFORM, HeUniform = scaled(2.0, FanMode::FanIn, Distribution::Uniform);
    /// Truncated normal, variance `2 / inputs`: He et al.'s for relu networks.
    HE_NORMAL, HeNormal = scaled(2.0, FanMode::FanIn, Distribution::TruncatedNormal);
    /// Uniform, variance `1 / inputs`.
    LECUN_UNIFORM, LecunUniform = scaled(1.0, FanMode::FanIn, Distribution::Uniform);
    /// Truncated normal, variance `1 / inputs`: the default of TensorFlow's `variance_scaling_initializer()`.
    LECUN_NORMAL, LecunNormal = scaled(1.0, FanMode::FanIn, Distribution::TruncatedNormal);
    /// Truncated normal, variance `2 / outputs`.
    HE_NORMAL_FAN_OUT, HeNormalFanOut = scaled(2.0, FanMode::FanOut, Distribution::TruncatedNormal);
    /// Uniform, variance `1 / (3 · outputs)`: within `1 / √outputs`.
    LECUN_UNIFORM_FAN_OUT, LecunUniformFanOut = scaled(1.0 / 3.0, FanMode::FanOut, Distribution::Uniform);
    /// Normal, standard deviation 0.05.
    RANDOM_NORMAL, RandomNormal = Init::Normal { stddev: 0.05 };
    /// Normal, standard deviation 0.02, as BERT and GPT-2 start (BERT's is truncated at two standard deviations).
    BERT_NORMAL, BertNormal = Init::Normal { stddev: 0.02 };
    /// Orthonormal columns or rows: Keras' default for recurrent kernels.
    ORTHOGONAL, Orthogonal = Init::Orthogonal;
    /// Uniform within 0.05.
    RANDOM_UNIFORM, RandomUniform = Init::Uniform { limit: 0.05 };
    /// Normal, standard deviation 0.05, within two of them.
    TRUNCATED_NORMAL, TruncatedNormal = Init::NormalAround { mean: 0.0, stddev: 0.05, is_truncated: true };
    /// The identity matrix.
    IDENTITY, Identity = Init::Times { gain: 1.0, matrix: Matrix::Identity };
}

const fn scaled(scale: f64, mode: FanMode, distribution: Distribution) -> Init {
    Init::VarianceScaling { scale, mode, distribution }
}

impl Init {
    /// The initial values, row-major. The last dim counts as outputs, the one before as inputs, those before as the
    /// receptive field, as in HWIO kernels and `[in, out]` matrices.
    pub fn values(&self, seed: u64, name: &str, dims: &[i64]) -> Vec<f32> {
        let n = dims.iter().product::<i64>().max(0) as usize;
        let mut rng = generator(seed, name);
        match *self {
            Init::Zeros => vec![0.0; n],
            Init::Ones => vec![1.0; n],
            Init::Constant(value) => vec![value as f32; n],
            Init::Normal { stddev } => (0..n).map(|_| (stddev * normal(&mut rng)) as f32).collect(),
            Init::NormalAround { mean, stddev, is_truncated } => {
                let draw = if is_truncated { truncated_normal } else { normal };
                (0..n).map(|_| (mean + stddev * draw(&mut rng)) as f32).collect()
            }
            Init::Uniform { limit } => (0..n).map(|_| (limit * uniform(&mut rng)) as f32).collect(),
            Init::UniformBetween { minval, maxval } => {
                (0..n).map(|_| (minval + (maxval - minval) * rng.random::<f64>()) as f32).collect()
            }
            Init::VarianceScaling { scale, mode, distribution } => {
                let (fan_in, fan_out) = fans(dims);
                let fan = match mode {
                    FanMode::FanIn => fan_in,
                    FanMode::FanOut => fan_out,
                    FanMode::FanAvg => (fan_in + fan_out) / 2.0,
                };
                let variance = scale / fan.max(1.0);
                match distribution {
                    Distribution::Uniform => {
                        let limit = (3.0 * variance).sqrt();
                        (0..n).map(|_| (limit * uniform(&mut rng)) as f32).collect()
                    }
                    Distribution::TruncatedNormal => {
                        let stddev = variance.sqrt() / TRUNCATED_STDDEV;
                        (0..n).map(|_| (stddev * truncated_normal(&mut rng)) as f32).collect()
                    }
                    Distribution::UntruncatedNormal => {
                        let stddev = variance.sqrt();
                        (0..n).map(|_| (stddev * normal(&mut rng)) as f32).collect()
                    }
                }
            }
            Init::Orthogonal => orthogonal(&mut rng, dims),
            Init::Times { gain, matrix } => {
                let columns = dims.last().copied().unwrap_or(1).max(1) as usize;
                let values = match matrix {
                    Matrix::Orthogonal => orthogonal(&mut rng, dims),
                    Matrix::Identity => (0..n).map(|at| f32::from(u8::from(at / columns == at % columns))).collect(),
                };
                values.into_iter().map(|value| (gain * f64::from(value)) as f32).collect()
            }
            Init::ForgetGate => (0..n).map(|idx| if (n / 4..n / 2).contains(&idx) { 1.0 } else { 0.0 }).collect(),
            Init::RandomBits => (0..n).map(|_| rng.random::<f32>()).collect(),
        }
    }

    /// The initial values of an integer variable: random words for [`Init::RandomBits`], otherwise `values` truncated.
    pub fn words(&self, seed: u64, name: &str, dims: &[i64]) -> Vec<u64> {
        match self {
            Init::RandomBits => {
                let mut rng = generator(seed, name);
                (0..dims.iter().product::<i64>().max(0)).map(|_| rng.random()).collect()
            }
            Init::Zeros
            | Init::Ones
            | Init::Constant(_)
            | Init::Normal { .. }
            | Init::NormalAround { .. }
            | Init::Uniform { .. }
            | Init::UniformBetween { .. }
            | Init::Orthogonal
            | Init::Times { .. }
            | Init::ForgetGate
            | Init::VarianceScaling { .. } => self.values(seed, name, dims).into_iter().map(word).collect(),
        }
    }
}

/// A random matrix of all dims but the last by the last one, with orthonormal vectors along its shorter side.
fn orthogonal(rng: &mut StdRng, dims: &[i64]) -> Vec<f32> {
    let columns = dims.last().copied().unwrap_or(1).max(1) as usize;
    let rows = (dims.iter().product::<i64>().max(0) as usize) / columns;
    let (n, length) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(n);
    while vectors.len() < n {
        let mut vector: Vec<f64> = (0..length).map(|_| normal(rng)).collect();
        // Two passes are enough (Giraud et al. 2005): the second removes the rounding errors of the first.
        for _ in 0..2 {
            for other in &vectors {
                let shared: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
                vector.iter_mut().zip(other).for_each(|(a, b)| *a -= shared * b);
            }
        }
        let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
        // A vector of almost zero length is redrawn.
        if norm > 1e-6 {
            vectors.push(vector.into_iter().map(|value| value / norm).collect());
        }
    }
    let at = |row: usize, column: usize| if rows <= columns { vectors[row][column] } else { vectors[column][row] };
    (0..rows * columns).map(|idx| at(idx / columns, idx % columns) as f32).collect()
}

/// The word of a number; a negative one as a signed integer.
fn word(value: f32) -> u64 {
    if value < 0.0 { (value as i64).cast_unsigned() } else { value as u64 }
}

/// A generator seeded by a hash of seed and name.
fn generator(seed: u64, name: &str) -> StdRng {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(name.as_bytes());
    StdRng::from_seed(hash.finalize().into())
}

/// Inputs per output and outputs per input.
fn fans(dims: &[i64]) -> (f64, f64) {
    match dims {
        [] => (1.0, 1.0),
        [n] => (*n as f64, *n as f64),
        [field @ .., inputs, outputs] => {
            let field = field.iter().product::<i64>() as f64;
            (field * *inputs as f64, field * *outputs as f64)
        }
    }
}

/// Uniform in `[-1, 1)`.
fn uniform(rng: &mut StdRng) -> f64 {
    rng.random::<f64>() * 2.0 - 1.0
}

/// Standard normal (Box & Muller 1958).
fn normal(rng: &mut StdRng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// Standard normal within ±2, by rejection.
fn truncated_normal(rng: &mut StdRng) -> f64 {
    loop {
        let value = normal(rng);
        if value.abs() <= 2.0 {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_depend_on_seed_and_name_only() {
        let values = |seed, name| Init::GLOROT_UNIFORM.values(seed, name, &[3, 3, 8, 16]);
        assert_eq!(values(1, "a"), values(1, "a"));
        assert_ne!(values(1, "a"), values(2, "a"));
        assert_ne!(values(1, "a"), values(1, "b"));
    }

    #[test]
    fn orthogonal_vectors_are_at_right_angles() {
        for dims in [[16, 64], [64, 16], [8, 8], [1, 5], [5, 1]] {
            let values = Init::ORTHOGONAL.values(3, "w", &dims);
            let (rows, columns) = (dims[0] as usize, dims[1] as usize);
            let n = rows.min(columns);
            let at = |vector: usize, element: usize| match rows <= columns {
                true => f64::from(values[vector * columns + element]),
                false => f64::from(values[element * columns + vector]),
            };
            for (a, b) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))) {
                let product: f64 = (0..rows.max(columns)).map(|element| at(a, element) * at(b, element)).sum();
                // Elements of at most 1 are rounded to f32: 64 products, each off by at most 2^-23.
                assert!(
                    (product - if a == b { 1.0 } else { 0.0 }).abs() < 64.0 * 2f64.powi(-23),
                    "{dims:?} {a} {b}: {product}"
                );
            }
        }
    }

    #[test]
    fn variance_scaling_has_its_variance() {
        // 200,000 samples: the standard error of a variance is about variance * sqrt(2 / n) = 0.3 %; 2 % is six of it.
        for (init, expected) in [(Init::HE_NORMAL, 2.0 / 100.0), (Init::GLOROT_UNIFORM, 2.0 / 2100.0)] {
            let values = init.values(7, "w", &[100, 2000]);
            let variance = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / values.len() as f64;
            assert!((variance / expected - 1.0).abs() < 0.02, "{init:?}: {variance} is not near {expected}");
        }
    }
}
