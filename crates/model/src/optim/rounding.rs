//! Stochastic rounding from f32 to bf16, with noise that is a function of key, step, name and element: the key is its
//! only state.
//!
//! ```text
//! a ← mix(mix(key₀) ^ step)          b ← mix(key₁ ^ a)                       once a step
//! r ← mix(mix(i ^ (a + n₀)) + (b ^ n₁)) >> 16                              of element i of a variable
//! bf16 ← the upper half of (the bits of x + r)
//! ```
//!
//! `n₀` and `n₁` are the first two words of the SHA-256 of the variable's name, `i` is the row-major index of the
//! element, `mix` the function [`mix`]. All of it is integer arithmetic, so every device, compiler and host gives the
//! same bits, however many steps a call makes; and since only the step counts up, a resumed run continues with the
//! noise of one that did not stop. The key is the variable `stochastic_rounding/key`, which is initialized from the
//! seed and never changes.
//!
//! # Why this is unbiased
//! bf16 is the upper half of f32. Adding a uniform 16-bit number to the lower half carries into the upper one with
//! probability `lower / 2^16`, exactly the distance from the neighbour below in ulps: the mean of the result is `x`.
//! This holds for subnormals too, and for negative numbers by symmetry.
//!
//! # Source
//! Gupta et al. 2015 for training with it; the mixing function is Chris Wellons' `lowbias32` (2018).

use crate::graph::{Graph, Init, Tensor, VariableShard};
use bf16scope_hlo::ops::{BinaryOp, Comparison};
use bf16scope_hlo::{DType, Op, Shape};
use half::bf16;
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The variable that holds the key of the noise, `u32[2]`.
pub const ROUNDING_KEY: &str = "stochastic_rounding/key";

/// The noise of one variable at one step, computed on the host as in a training program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundingNoise {
    of_index: u32,
    of_mixed: u32,
}

impl RoundingNoise {
    /// The noise of the variable called `name`, after `step` updates, with the run's key.
    pub fn new(key: [u32; 2], step: u32, name: &str) -> RoundingNoise {
        let a = mix(mix(key[0]) ^ step);
        let b = mix(key[1] ^ a);
        let [n0, n1] = words_of(name);
        RoundingNoise { of_index: a.wrapping_add(n0), of_mixed: b ^ n1 }
    }

    /// The noise of the element with this row-major index: 16 uniform bits.
    pub fn bits(self, element: u32) -> u16 {
        (mix(mix(element ^ self.of_index).wrapping_add(self.of_mixed)) >> 16) as u16
    }
}

/// `x` rounded to one of the two adjacent bf16: up if adding `noise` carries out of the bits that bf16 lacks. A bf16 is
/// unchanged. No finite number becomes infinite: above the largest finite bf16, the result is that one. NaN and
/// infinities stay.
pub fn round_stochastically(x: f32, noise: u16) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(u32::from(noise));
    let has_no_finite = |bits: u32| bits & EXPONENT == EXPONENT;
    if has_no_finite(bits) || has_no_finite(rounded) {
        // A NaN must keep a bit of its significand.
        let quiet = if x.is_nan() { QUIET } else { 0 };
        return bf16::from_bits((bits >> 16) as u16 | quiet as u16);
    }
    bf16::from_bits((rounded >> 16) as u16)
}

/// The exponent of f32: all ones in infinities and NaN.
const EXPONENT: u32 = 0x7F80_0000;

/// In a bf16, the bit that makes a NaN a quiet one.
const QUIET: u32 = 0x40;

/// `mix`: (shift right and exclusive or, then multiply), twice, then the last shift.
const ROUNDS: [(u32, u32); 2] = [(16, 0x7FEB_352D), (15, 0x846C_A68B)];
const LAST: u32 = 16;

/// A bijection of 32 bits in which every bit of the result depends on every bit of `x`.
fn mix(mut x: u32) -> u32 {
    for (shift, factor) in ROUNDS {
        x = (x ^ (x >> shift)).wrapping_mul(factor);
    }
    x ^ (x >> LAST)
}

/// Two words that distinguish names.
fn words_of(name: &str) -> [u32; 2] {
    let hash = Sha256::digest(name.as_bytes());
    [0, 4].map(|at| u32::from_le_bytes([hash[at], hash[at + 1], hash[at + 2], hash[at + 3]]))
}

/// Stochastic rounding in a program under construction.
#[derive(Debug)]
pub(super) struct Rounding {
    graph: Graph,
    /// `a` and `b` of this step.
    of_step: [Tensor; 2],
    elements: RefCell<Elements>,
}

/// Indices of the elements of arrays, by dims and, for a shard, by its axis and length.
type Elements = BTreeMap<(Vec<i64>, Option<(usize, i64)>), Tensor>;

impl Rounding {
    /// Declares the key; `step` is an s32 scalar, the number of updates before this one.
    #[track_caller]
    pub fn begin(graph: &Graph, step: &Tensor) -> Rounding {
        let of_step = graph.scope().within("stochastic_rounding", |s| {
            let key = s.state("key", DType::U32, [2], Init::RandomBits).value;
            let word = |at: i64| key.slice(&[slice_of(at)]).reshape([]);
            let a = mixed(&(mixed(&word(0)).xor(&step.cast(DType::U32))));
            let b = mixed(&word(1).xor(&a));
            [a, b]
        });
        Rounding { graph: graph.clone(), of_step, elements: RefCell::default() }
    }

    /// Rounds `x`, f32, to bf16 with the noise of the variable called `name`.
    #[track_caller]
    pub fn round(&self, name: &str, x: &Tensor, part: Option<VariableShard>) -> Tensor {
        if x.is_poison() {
            return x.clone();
        }
        let graph = &self.graph;
        let word = |value: u32| graph.scalar(DType::U32, f64::from(value));
        let full = |value: u32| word(value).broadcast_to(&x.dims());
        let [a, b] = &self.of_step;
        let [n0, n1] = words_of(name).map(word);
        let dims = x.dims();
        let (of_index, of_mixed) = ((a + &n0).broadcast_to(&dims), b.xor(&n1).broadcast_to(&dims));
        let noise = mixed(&(mixed(&self.elements(&dims, part).xor(&of_index)) + of_mixed)).shifted(16);
        let bits = bits_of(x, DType::U32);
        let rounded = &bits + noise;
        let has_no_finite = |bits: &Tensor| bits.and(&full(EXPONENT)).equal(&full(EXPONENT));
        let is_special = has_no_finite(&bits).binary(BinaryOp::Or, &has_no_finite(&rounded));
        let quiet = x.compare(Comparison::Ne, x).select(&full(QUIET), &full(0));
        let magnitude = bits.shifted(16).binary(BinaryOp::Or, &quiet);
        let upper = is_special.select(&magnitude, &rounded.shifted(16));
        bits_of(&upper.cast(DType::U16), DType::BF16)
    }

    /// The row-major index of each element.
    #[track_caller]
    fn elements(&self, dims: &[i64], part: Option<VariableShard>) -> Tensor {
        let key = (dims.to_vec(), part.map(|part| (part.axis, part.whole)));
        if let Some(elements) = self.elements.borrow().get(&key) {
            return elements.clone();
        }
        // Not one iota that is reshaped: sums of iotas are fused into their readers.
        let whole = part.map_or(dims.to_vec(), |part| part.whole_dims(dims));
        let mut stride = 1u32;
        let mut sum: Option<Tensor> = None;
        for (axis, &dim) in dims.iter().enumerate().rev() {
            let split = part.filter(|part| part.axis == axis);
            if dim != 1 || split.is_some() {
                let iota = self.graph.iota(DType::U32, dims, axis as i64);
                let place = split.map_or(iota.clone(), |part| iota + self.graph.start_of_part(part).broadcast_to(dims));
                let of_axis = if stride == 1 { place } else { place * f64::from(stride) };
                sum = Some(sum.map_or(of_axis.clone(), |sum| sum + of_axis));
            }
            stride = stride.wrapping_mul(whole[axis] as u32);
        }
        let elements = sum.unwrap_or_else(|| self.graph.full(DType::U32, dims, 0.0));
        self.elements.borrow_mut().insert(key, elements.clone());
        elements
    }
}

/// Applies [`mix`] to every element.
#[track_caller]
fn mixed(x: &Tensor) -> Tensor {
    let mut x = x.clone();
    for (shift, factor) in ROUNDS {
        x = x.xor(&x.shifted(shift)) * f64::from(factor);
    }
    x.xor(&x.shifted(LAST))
}

/// Reads the bits of `x` as another dtype of the same width.
#[track_caller]
fn bits_of(x: &Tensor, dtype: DType) -> Tensor {
    let declared = Shape::array(dtype, x.dims());
    x.emit("bitcast-convert", &[], |e| e.emit(Op::BitcastConvert, &[x.id], Some(&declared)))
}

fn slice_of(at: i64) -> bf16scope_hlo::ops::SliceDim {
    bf16scope_hlo::ops::SliceDim { start: at, limit: at + 1, stride: 1 }
}

/// Operations on unsigned words.
trait Words {
    fn xor(&self, other: &Tensor) -> Tensor;
    fn and(&self, other: &Tensor) -> Tensor;
    fn shifted(&self, n: u32) -> Tensor;
}

impl Words for Tensor {
    #[track_caller]
    fn xor(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryOp::Xor, other)
    }

    #[track_caller]
    fn and(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryOp::And, other)
    }

    #[track_caller]
    fn shifted(&self, n: u32) -> Tensor {
        self.binary_scalar(BinaryOp::ShiftRightLogical, f64::from(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other words would change the noise of resumed runs.
    #[test]
    fn the_words_of_a_name_are_the_first_of_its_sha256() {
        assert_eq!(words_of("a"), [0x1281_97ca, 0xcabd_1bca]);
    }
}
