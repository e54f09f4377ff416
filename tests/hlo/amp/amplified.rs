//! Programs whose results an ordinary rounding would spoil: an op that reads the rounded value amplifies its error, or
//! makes it infinite.
//!
//! Each runs on the CPU in f32 and lowered by the default policy, excess precision off.

use super::oracle::{error_of_scale, run};
use bf16scope::hlo::text;
use bf16scope::passes::amp::{self, Policy};

fn bytes(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// The first result in f32, and lowered by the default policy.
fn both(source: &str, arguments: &[Vec<u8>]) -> [Vec<f32>; 2] {
    let module = text::parse(source, "source.hlo").unwrap_or_else(|error| panic!("{error}"));
    let (low, _) = amp::run(&module, &Policy::default()).unwrap_or_else(|error| panic!("{error}"));
    [module, low].map(|module| run(&module, arguments).remove(0).1)
}

/// Positions times frequencies, written as a `dot` that contracts nothing: angles of up to 2047 radians, whose nearest
/// bf16 may be 8 radians off.
#[test]
fn angles_by_an_outer_product_are_those_of_a_multiply() {
    let source = "HloModule angles
ENTRY main {
  pos = f32[2048] parameter(0)
  inv = f32[4] parameter(1)
  x = f32[2048,8] parameter(2)
  w = f32[8,8] parameter(3)
  angle = f32[2048,4] dot(pos, inv), lhs_contracting_dims={}, rhs_contracting_dims={}
  c = f32[2048,4] cosine(angle)
  s = f32[2048,4] sine(angle)
  cs = f32[2048,8] concatenate(c, s), dimensions={1}
  h = f32[2048,8] multiply(x, cs)
  ROOT y = f32[2048,8] dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}";
    let wave = |n: usize, step: f32| bytes((0..n).map(move |i| (i as f32 * step).sin()));
    let positions = bytes((0..2048).map(|i| i as f32));
    let frequencies = bytes([1.0, 0.1, 0.01, 0.001]);
    let [f32, low] = both(source, &[positions, frequencies, wave(2048 * 8, 0.7), wave(64, 0.3)]);
    // Each of 8 terms has two roundings of 2^-9 at most, and no term is larger than the largest result.
    let error = error_of_scale(&low, &f32);
    assert!(error < 8.0 * 2.0 * f64::powi(2.0, -9), "{error}");
}

/// A sum of 1829 ones, written as a product with a vector of ones: the nearest bf16 numbers are 1824 and 1832.
#[test]
fn counts_by_a_product_are_exact() {
    let source = "HloModule lengths
ENTRY main {
  mask = f32[4,2048] parameter(0)
  one = f32[] constant(1)
  ones = f32[2048] broadcast(one), dimensions={}
  ROOT n = f32[4] dot(mask, ones), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}";
    let lengths = [1829, 257, 2048, 1];
    let mask = lengths.iter().flat_map(|&n| (0..2048).map(move |i| f32::from(u8::from(i < n))));
    let [f32, low] = both(source, &[bytes(mask)]);
    assert_eq!(low, f32);
    assert_eq!(low, lengths.map(|n| n as f32));
}

/// A loss of CTC looks log-likelihoods up by a product with ones where a label is: rounded, one of −100 is 0.2 off, and so
/// is each sum that the loss makes of them.
#[test]
fn likelihoods_by_a_product_are_those_of_a_lookup() {
    let source = "HloModule likelihoods
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  scores = f32[16,32] parameter(0)
  e = f32[16,32] exponential(scores)
  zero = f32[] constant(0)
  sum = f32[16] reduce(e, zero), dimensions={1}, to_apply=add
  log = f32[16] log(sum)
  logs = f32[16,32] broadcast(log), dimensions={0}
  likelihoods = f32[16,32] subtract(scores, logs)
  labels = s32[5] constant({3, 31, 8, 8, 0})
  rows = s32[5,32] broadcast(labels), dimensions={0}
  places = s32[5,32] iota(), iota_dimension=1
  is_label = pred[5,32] compare(rows, places), direction=EQ
  one_hot = f32[5,32] convert(is_label)
  ROOT y = f32[16,5] dot(likelihoods, one_hot), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}";
    let [f32, low] = both(source, &[bytes((0..16 * 32).map(|i| 20.0 * (i as f32).sin()))]);
    assert_eq!(low, f32);
}

/// f32's least number as a mask of scores, and a row of padding only: bf16 rounds that number to −∞, and a softmax of
/// only −∞ is NaN.
#[test]
fn a_mask_of_the_least_finite_number_stays_finite() {
    let source = "HloModule masked
max {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}
add {
  a2 = f32[] parameter(0)
  b2 = f32[] parameter(1)
  ROOT c2 = f32[] add(a2, b2)
}
ENTRY main {
  q = f32[8,16] parameter(0)
  k = f32[8,16] parameter(1)
  v = f32[8,16] parameter(2)
  mask = f32[8,8] parameter(3)
  scores = f32[8,8] dot(q, k), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  masked = f32[8,8] add(scores, mask)
  low = f32[] constant(-inf)
  most = f32[8] reduce(masked, low), dimensions={1}, to_apply=max
  mosts = f32[8,8] broadcast(most), dimensions={0}
  shifted = f32[8,8] subtract(masked, mosts)
  e = f32[8,8] exponential(shifted)
  zero = f32[] constant(0)
  sum = f32[8] reduce(e, zero), dimensions={1}, to_apply=add
  sums = f32[8,8] broadcast(sum), dimensions={0}
  p = f32[8,8] divide(e, sums)
  ROOT y = f32[8,16] dot(p, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}";
    let wave = |step: f32| bytes((0..128).map(move |i| (i as f32 * step).sin()));
    // The last row is padding alone.
    let mask = (0..64).map(|i| if i / 8 == 7 || i % 8 > i / 8 { f32::MIN } else { 0.0 });
    let [f32, low] = both(source, &[wave(0.3), wave(0.5), wave(0.9), bytes(mask)]);
    assert!(low.iter().all(|x| x.is_finite()), "{low:?}");
    // A weighted mean of numbers below one: weights, numbers and scores have a rounding of 2^-9 each, and the exponential of a
    // score below 16 that is 2^-9 off relatively is 16 × 2^-9 off.
    let error = error_of_scale(&low, &f32);
    assert!(error < (2.0 + 16.0) * f64::powi(2.0, -9), "{error}");
}

/// Scores whose bias is up to 500, as ALiBi's over long sequences: the nearest bf16 to a score is up to one off, which
/// is a factor of e in its exponential.
#[test]
fn what_is_added_to_an_exponent_is_not_rounded() {
    let source = "HloModule biased
max {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}
add {
  a2 = f32[] parameter(0)
  b2 = f32[] parameter(1)
  ROOT c2 = f32[] add(a2, b2)
}
ENTRY main {
  q = f32[32,16] parameter(0)
  k = f32[32,16] parameter(1)
  v = f32[32,16] parameter(2)
  bias = f32[32,32] parameter(3)
  products = f32[32,32] dot(q, k), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  eighth = f32[] constant(0.125)
  eighths = f32[32,32] broadcast(eighth), dimensions={}
  scaled = f32[32,32] multiply(products, eighths)
  scores = f32[32,32] add(scaled, bias)
  low = f32[] constant(-inf)
  most = f32[32] reduce(scores, low), dimensions={1}, to_apply=max
  mosts = f32[32,32] broadcast(most), dimensions={0}
  shifted = f32[32,32] subtract(scores, mosts)
  e = f32[32,32] exponential(shifted)
  zero = f32[] constant(0)
  sum = f32[32] reduce(e, zero), dimensions={1}, to_apply=add
  sums = f32[32,32] broadcast(sum), dimensions={0}
  p = f32[32,32] divide(e, sums)
  ROOT y = f32[32,16] dot(p, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}";
    let wave = |n: usize, step: f32| bytes((0..n).map(move |i| (i as f32 * step).sin()));
    // Neighbours are 0.3 apart, so that no row is decided by one score.
    let bias = (0..32 * 32).map(|i| 500.0 - 0.3 * ((i / 32) as f32 - (i % 32) as f32).abs());
    let [f32, low] = both(source, &[wave(512, 0.3), wave(512, 0.5), wave(512, 0.9), bytes(bias)]);
    // A score's 16 products of numbers below one are 2^-8 off each, an eighth of which is summed: 2^-7 of each weight. A weight
    // and a number are rounded as well; a mean of numbers below one is within that of the largest of all, which is at least 1/8.
    let error = error_of_scale(&low, &f32);
    assert!(error < 8.0 * (f64::powi(2.0, -7) + f64::powi(2.0, -8)), "{error}");
}

/// A product of bf16 operands whose f32 sum was asked for (`preferred_element_type`): its sum stays f32.
#[test]
fn an_f32_sum_that_was_asked_for_stays() {
    let source = "HloModule asked
ENTRY main {
  x = f32[8,64] parameter(0)
  y = f32[64,8] parameter(1)
  low_x = bf16[8,64] convert(x)
  low_y = bf16[64,8] convert(y)
  ROOT z = f32[8,8] dot(low_x, low_y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}";
    let wave = |step: f32| bytes((0..512).map(move |i| (i as f32 * step).sin()));
    let [f32, low] = both(source, &[wave(0.3), wave(0.7)]);
    assert_eq!(low, f32);
}
