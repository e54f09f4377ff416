//! Random number ops. Stateful ops share a generator whose state is a parameter of the module and, after the step, a result;
//! stateless ops draw from their seed. The numbers differ from TensorFlow's.
//!
//! Source: `random_ops.cc`, `stateless_random_ops.cc` of `tf2xla/kernels`: how uniform bits become each distribution.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::{Comparison, RngAlgorithm};
use bf16scope_hlo::{BinaryOp, DType, InstrId, Literal, Op, Shape, UnaryOp};

/// Ops that draw from a generator with state.
pub(super) const STATEFUL: [&str; 9] = [
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "Multinomial",
    "RandomShuffle",
    "LogUniformCandidateSampler",
    "UniformCandidateSampler",
];

pub(super) const TABLE: Table = &[
    ("RandomUniform", |c| {
        let (dims, dtype) = (c.ints(0)?, c.dtype_of("dtype")?);
        c.stateful(&dims, |c, bits| c.uniform(bits, dtype))
    }),
    ("RandomUniformInt", |c| {
        let dims = c.ints(0)?;
        let (low, high) = (c.array(1)?, c.array(2)?);
        c.stateful(&dims, |c, bits| c.uniform_int(bits, low, high))
    }),
    ("RandomStandardNormal", |c| {
        let (dims, dtype) = (c.ints(0)?, c.dtype_of("dtype")?);
        c.stateful(&dims, |c, bits| c.normal(bits, dtype))
    }),
    ("TruncatedNormal", |c| {
        let (dims, dtype) = (c.ints(0)?, c.dtype_of("dtype")?);
        c.stateful(&dims, |c, bits| c.truncated(bits, dtype))
    }),
    ("Multinomial", |c| {
        let (logits, n) = (c.array(0)?, c.int(1)?);
        let (dims, dtype) = (c.draw_dims(logits, n)?, c.drawn_dtype()?);
        c.stateful(&dims, |c, bits| c.drawn(bits, logits, dtype))
    }),
    ("StatelessMultinomial", |c| {
        let (logits, n, seed) = (c.array(0)?, c.int(1)?, c.array(2)?);
        let (dims, dtype) = (c.draw_dims(logits, n)?, c.drawn_dtype()?);
        let (_, bits) = c.bits(c.e().convert(seed, DType::U64), &dims);
        c.one(c.drawn(bits, logits, dtype))
    }),
    ("RandomShuffle", |c| {
        let x = c.array(0)?;
        let Some(n) = c.dims(x).first().copied() else { return c.one(x) };
        // Rows in the order of random numbers.
        let order = c.stateful(&[n], |c, bits| c.sorted(bits).1)?;
        match order[..] {
            [Value::Array(order)] => c.gathered(x, order, 0, 0),
            _ => Ok(order),
        }
    }),
    ("StatelessRandomUniformInt", |c| {
        let (low, high) = (c.array(2)?, c.array(3)?);
        c.stateless(|c, bits, _| c.uniform_int(bits, low, high))
    }),
    ("StatelessRandomUniformIntV2", |c| {
        let (low, high) = (c.array(4)?, c.array(5)?);
        c.stateless(|c, bits, _| c.uniform_int(bits, low, high))
    }),
    ("StatelessRandomUniform", |c| c.stateless(|c, bits, dtype| c.uniform(bits, dtype))),
    ("StatelessRandomUniformV2", |c| c.stateless(|c, bits, dtype| c.uniform(bits, dtype))),
    ("StatelessRandomNormal", |c| c.stateless(|c, bits, dtype| c.normal(bits, dtype))),
    ("StatelessRandomNormalV2", |c| c.stateless(|c, bits, dtype| c.normal(bits, dtype))),
    ("StatelessTruncatedNormal", |c| c.stateless(|c, bits, dtype| c.truncated(bits, dtype))),
    ("StatelessTruncatedNormalV2", |c| c.stateless(|c, bits, dtype| c.truncated(bits, dtype))),
    ("StatelessRandomGetKeyCounter", |c| {
        let [key, counter] = c.key_and_counter()?;
        Ok(vec![Value::Array(key), Value::Array(counter)])
    }),
    ("StatelessRandomGetKeyCounterAlg", |c| {
        let [key, counter] = c.key_and_counter()?;
        Ok([key, counter, c.ints_constant(&[1], &[], DType::S32)].map(Value::Array).to_vec())
    }),
    ("StatelessRandomGetAlg", |c| c.one(c.ints_constant(&[1], &[], DType::S32))),
];

impl Call<'_, '_> {
    fn bits(&self, state: InstrId, dims: &[i64]) -> (InstrId, InstrId) {
        let shape = Shape::Tuple(vec![Shape::array(DType::U64, [2]), Shape::array(DType::U32, dims)]);
        let drawn = self.e().emit(Op::RngBitGenerator(RngAlgorithm::ThreeFry), &[state], Some(&shape));
        (self.e().get_tuple_element(drawn, 0), self.e().get_tuple_element(drawn, 1))
    }

    /// Draws bits from the generator and advances its state; `distribution` turns them into numbers.
    fn stateful(&mut self, dims: &[i64], distribution: impl FnOnce(&Self, InstrId) -> InstrId) -> Outputs {
        let bits = self.next_bits(dims)?;
        self.one(distribution(self, bits))
    }

    /// Bits from the generator, whose state advances.
    pub(super) fn next_bits(&mut self, dims: &[i64]) -> Result<InstrId, Problem> {
        self.check_dims(dims)?;
        let random = self.lowering.random.expect("a graph that lowers one of the `STATEFUL` ops has a state");
        let state = self.lowering.read(random)?;
        let (next, bits) = self.bits(state, dims);
        // The state advances in a branch that is not taken too, which only changes later numbers.
        self.lowering.variables[random].value = Some(next);
        self.lowering.variables[random].is_assigned = true;
        Ok(bits)
    }

    /// Draws bits by the seed (input 1), or by the key and counter (inputs 1 and 2); `distribution` turns them into numbers.
    fn stateless(&mut self, distribution: impl FnOnce(&Self, InstrId, DType) -> InstrId) -> Outputs {
        let dims = self.ints(0)?;
        self.check_dims(&dims)?;
        // A SavedModel leaves out what is an attribute's default.
        let dtype = match self.node.type_number("dtype") {
            Some(_) => self.dtype_of("dtype")?,
            None => DType::F32,
        };
        let key = self.array(1)?;
        let key = self.e().convert(key, DType::U64);
        let state = match self.dims(key)[..] {
            [2] => key,
            _ => {
                let counter = self.array(2)?;
                let counter = self.e().convert(counter, DType::U64);
                self.e().concatenate(&[key, self.slice_axis(counter, 0, 0, 1)], 0)
            }
        };
        let (_, bits) = self.bits(state, &dims);
        self.one(distribution(self, bits, dtype))
    }

    /// The key, which is the first number of a seed, and the counter: the second, and 0.
    fn key_and_counter(&mut self) -> Result<[InstrId; 2], Problem> {
        let seed = self.array(0)?;
        if self.dims(seed) != [2] {
            return Err(Problem::new(format!("its seed has dims {:?}, expected [2]", self.dims(seed))));
        }
        let seed = self.e().convert(seed, DType::U64);
        let zero = self.e().full(DType::U64, &[1], 0.0);
        Ok([self.slice_axis(seed, 0, 0, 1), self.e().concatenate(&[self.slice_axis(seed, 0, 1, 1), zero], 0)])
    }

    /// The dims of the numbers by which `n` classes are drawn for each row of logits.
    fn draw_dims(&self, logits: InstrId, n: i64) -> Result<Vec<i64>, Problem> {
        let dims = match self.dims(logits)[..] {
            [batch, classes] => vec![batch, n, classes],
            _ => return Err(Problem::new(format!("its logits have dims {:?}, expected 2", self.dims(logits)))),
        };
        self.check_dims(&dims)?;
        Ok(dims)
    }

    fn drawn_dtype(&self) -> Result<DType, Problem> {
        match self.node.type_number("output_dtype") {
            Some(_) => self.dtype_of("output_dtype"),
            None => Ok(DType::S64),
        }
    }

    /// Classes by the probabilities that logits give: where logits with Gumbel noise are greatest.
    fn drawn(&self, bits: InstrId, logits: InstrId, dtype: DType) -> InstrId {
        let e = self.e();
        let exponential = |x: InstrId| e.neg(e.unary(UnaryOp::Log, x));
        let noise = exponential(exponential(self.uniform(bits, DType::F32)));
        let wide = e.broadcast(e.convert(logits, DType::F32), &[0, 2], &self.dims(bits));
        let best = self.first_best(e.add(wide, noise), 2, Comparison::Ge, BinaryOp::Maximum);
        e.convert(best, dtype)
    }

    /// Uniform numbers in [0, 1): from as many bits as the significand of f32 holds.
    pub(super) fn uniform(&self, bits: InstrId, dtype: DType) -> InstrId {
        let dims = self.dims(bits);
        let shift = self.like(bits, 9.0);
        let fraction = self.e().binary(BinaryOp::ShiftRightLogical, bits, shift);
        let one = self.e().constant(Literal::scalar(1f32.to_bits()));
        let one = self.e().broadcast(one, &[], &dims);
        let between = self.e().binary(BinaryOp::Or, fraction, one);
        let shape = Shape::array(DType::F32, &dims[..]);
        let float = self.e().emit(Op::BitcastConvert, &[between], Some(&shape));
        let uniform = self.e().add_scalar(float, -1.0);
        match dtype {
            DType::F32 => uniform,
            // Few enough bits that a 16-bit float never rounds to 1.
            DType::BF16 | DType::F16 => {
                let n_bits = if dtype == DType::BF16 { 8 } else { 11 };
                let scale = 2f64.powi(n_bits);
                let cut = self.e().unary(UnaryOp::Floor, self.e().mul_scalar(uniform, scale));
                self.e().convert(self.e().mul_scalar(cut, 1.0 / scale), dtype)
            }
            dtype => self.e().convert(uniform, dtype),
        }
    }

    pub(super) fn uniform_int(&self, bits: InstrId, low: InstrId, high: InstrId) -> InstrId {
        let dims = self.dims(bits);
        let dtype = self.dtype(low);
        let [low, high] = [low, high].map(|x| self.e().broadcast(x, &[], &dims));
        let wide = self.e().convert(bits, DType::U64);
        let range = self.e().convert(self.e().sub(high, low), DType::U64);
        let offset = self.e().convert(self.e().binary(BinaryOp::Remainder, wide, range), dtype);
        self.e().add(low, offset)
    }

    /// Standard normal numbers, by the inverse of their distribution function.
    fn normal(&self, bits: InstrId, dtype: DType) -> InstrId {
        let uniform = self.uniform(bits, DType::F32);
        // In the open interval from -1 to 1.
        let tiny = f64::from(f32::EPSILON) / 2.0;
        let centred = self.e().add_scalar(self.e().mul_scalar(uniform, 2.0 - 2.0 * tiny), -1.0 + tiny);
        let normal = self.e().mul_scalar(self.erf_inverse(centred), std::f64::consts::SQRT_2);
        self.e().convert(normal, dtype)
    }

    /// Standard normal numbers truncated to between -2 and 2.
    fn truncated(&self, bits: InstrId, dtype: DType) -> InstrId {
        let uniform = self.uniform(bits, DType::F32);
        // erf(2 / sqrt 2).
        const INSIDE: f64 = 0.954_499_736_103_641_6;
        let centred = self.e().add_scalar(self.e().mul_scalar(uniform, 2.0 * INSIDE), -INSIDE);
        let normal = self.e().mul_scalar(self.erf_inverse(centred), std::f64::consts::SQRT_2);
        self.e().convert(normal, dtype)
    }

    /// The inverse of the error function in f32. Source: M. Giles, "Approximating the erfinv function" (2010), single
    /// precision.
    pub(super) fn erf_inverse(&self, x: InstrId) -> InstrId {
        const NEAR: [f64; 9] = [
            2.810_226_36e-8,
            3.432_739_39e-7,
            -3.523_387_7e-6,
            -4.391_506_54e-6,
            0.000_218_580_87,
            -0.001_253_725_03,
            -0.004_177_681_64,
            0.246_640_727,
            1.501_409_41,
        ];
        const FAR: [f64; 9] = [
            -0.000_200_214_257,
            0.000_100_950_558,
            0.001_349_343_22,
            -0.003_673_428_44,
            0.005_739_507_73,
            -0.007_622_461_3,
            0.009_438_870_47,
            1.001_674_06,
            2.832_976_82,
        ];
        let e = self.e();
        let w = e.neg(e.unary(UnaryOp::Log1p, e.neg(e.mul(x, x))));
        let is_near = e.compare(Comparison::Lt, w, self.like(w, 5.0));
        let polynomial = |w: InstrId, coefficients: &[f64; 9]| {
            let first = self.like(w, coefficients[0]);
            coefficients[1..].iter().fold(first, |sum, coefficient| e.add_scalar(e.mul(sum, w), *coefficient))
        };
        let near = polynomial(e.add_scalar(w, -2.5), &NEAR);
        let far = polynomial(e.add_scalar(e.unary(UnaryOp::Sqrt, w), -3.0), &FAR);
        e.mul(e.select(is_near, near, far), x)
    }
}
