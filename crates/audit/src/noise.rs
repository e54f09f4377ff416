//! Noise: the elements of an array that f32 does not determine; and the error of the other elements.
//!
//! Let `r` be an element of an array in f64, `x` in f32, `y` lowered, and `s` the largest `|r|` of the array. If `|x −
//! r| > 2^-9 · s`, the element is *noise*: f32 does not determine it to half a unit in bf16's last place at the array's
//! scale, so the distance of `y` from `x` is meaningless. Noise is counted and not judged: an example is the gradient
//! of an attention's key bias, which is zero in theory. Integers and predicates are noise where f64 gives another value
//! than f32; any other element that differs is an error without a size.
//!
//! The error of the others is the largest `|y − x|` over the largest `|x|` of the *whole* array: the scale includes
//! noise. If cancellation leaves an exact 0 in f32 but not in f64, or the other way round, this 0 is within `2^-9 · s`
//! too, and means no more than its neighbours. So an array is noise as a whole if some of it is and no other element
//! reaches 2^-9 of the scale. An array of zeros in f32 and in f64 has no scale: its error is reported and not judged.

use bf16scope_hlo::Literal;

/// Half a unit in the last place of bf16, of a number of the array's scale.
const NOISE: f64 = 1.0 / 512.0;

/// The error of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    /// The scaled error without noise, or the reason why it is not judged.
    pub error: Result<f64, Noise>,
    /// Elements that are noise.
    pub n_noise: u64,
    /// f32's own scaled error.
    pub f32_error: Option<f64>,
}

/// Why an array is not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noise {
    /// All its nonzero elements are noise.
    All,
    /// It is 0 in f32 and in f64.
    NoScale,
}

fn largest(values: &[f64]) -> f64 {
    values.iter().map(|value| value.abs()).filter(|size| size.is_finite()).fold(0.0, f64::max)
}

/// Compares an array with f64; `noisy` are elements that are noise for another reason.
pub(super) fn measure(exact: &[f64], x: &[f64], y: &[f64], noisy: Option<&[bool]>) -> Measured {
    let (scale, size) = (largest(exact), largest(x));
    let (mut n_noise, mut n_finite, mut error, mut f32_distance, mut is_any_known) = (0, 0, 0.0, 0.0, false);
    for (at, ((&r, &x), &y)) in exact.iter().zip(x).zip(y).enumerate() {
        if !x.is_finite() || !y.is_finite() {
            if x != y && !(x.is_nan() && y.is_nan()) {
                error = f64::INFINITY;
            }
            continue;
        }
        n_finite += 1;
        if r.is_finite() {
            f32_distance = f64::max(f32_distance, (x - r).abs());
        }
        // Values that f64 cannot hold either tell nothing about f32.
        let is_noise = r.is_finite() && (x - r).abs() > NOISE * scale;
        let is_of_noise = noisy.is_some_and(|noisy| noisy.get(at) == Some(&true));
        // An equal element was not affected by its source.
        if is_noise || is_of_noise && y != x {
            n_noise += 1;
            continue;
        }
        is_any_known |= x.abs() > NOISE * size && !is_of_noise;
        error = f64::max(error, (y - x).abs());
    }
    let f32_error = Some(if f32_distance > 0.0 { f32_distance / scale } else { 0.0 });
    let error = match error {
        error if error.is_infinite() => Ok(error),
        _ if n_noise > 0 && !is_any_known => {
            return Measured { error: Err(Noise::All), n_noise: n_finite, f32_error };
        }
        0.0 => Ok(0.0),
        _ if size == 0.0 => Err(Noise::NoScale),
        error => Ok(error / size),
    };
    Measured { error, n_noise, f32_error }
}

/// Which elements of an array are noise; `None` if no element is. For what divides an element `by_itself`, as an
/// optimizer does, the array's scale does not count, and a zero has none: of a bias of queries, keys and values in one
/// array, the keys' third is noise. An array of zeros in f32 and in f64 is all noise, because an error of it has no
/// scale.
pub(super) fn noisy(exact: &[f64], x: &[f64], by_itself: bool) -> Option<Vec<bool>> {
    let (scale, size) = (largest(exact), largest(x));
    let is_beyond = |r: f64, distance: f64| match by_itself {
        true => distance > NOISE * r.abs() || r == 0.0,
        false => distance > NOISE * scale,
    };
    let is_noise = |r: f64, x: f64| r.is_finite() && x.is_finite() && is_beyond(r, (x - r).abs());
    let mut noisy: Vec<bool> = exact.iter().zip(x).map(|(&r, &x)| is_noise(r, x)).collect();
    let is_any_known = noisy.iter().zip(x).any(|(is_noise, x)| !is_noise && x.abs() > NOISE * size);
    let is_any_noise = noisy.contains(&true) || (scale == 0.0 && size == 0.0 && !x.is_empty());
    if is_any_noise && !is_any_known {
        noisy.fill(true);
    }
    is_any_noise.then_some(noisy)
}

/// Whether an element is noise by its own size. Zeros in f32 and in f64 are none: rows that a lookup does not touch.
pub(super) fn has_noise(exact: &[f64], x: &[f64]) -> bool {
    let is_noise = |(r, x): (&f64, &f64)| r.is_finite() && x.is_finite() && (x - r).abs() > NOISE * r.abs();
    exact.iter().zip(x).any(is_noise)
}

/// For integers and predicates: the number of elements that differ between f32 and lowered where f64 agrees with f32,
/// and where it does not. `None` for arrays of different types.
pub(super) fn decided<'l>([exact, x, y]: [&'l Literal; 3]) -> Option<(u64, u64)> {
    let array = |literal: &'l Literal| match literal {
        Literal::Array { shape, bytes } => Some((shape.dtype, bytes)),
        Literal::Tuple(_) | Literal::Token => None,
    };
    let ((dtype, exact), (x_dtype, x), (y_dtype, y)) = (array(exact)?, array(x)?, array(y)?);
    let is_comparable = dtype == x_dtype && x_dtype == y_dtype && exact.len() == x.len() && x.len() == y.len();
    let n = is_comparable.then(|| dtype.n_bytes())?;
    let all = exact.chunks_exact(n).zip(x.chunks_exact(n)).zip(y.chunks_exact(n));
    Some(all.fold((0, 0), |(n_differing, n_noise), ((r, x), y)| match (r == x, x == y) {
        (false, _) => (n_differing, n_noise + 1),
        (true, is_same) => (n_differing + u64::from(!is_same), n_noise),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(exact: &[f64], x: &[f64], y: &[f64]) -> Result<f64, Noise> {
        measure(exact, x, y, None).error
    }

    #[test]
    fn noise_is_counted_and_not_judged() {
        // f32 has the first to 2^-10 of the scale, the second not to 2^-9.
        let measured = measure(&[1.0, 0.0], &[1.0 + 1.0 / 1024.0, 0.01], &[1.25, 9.0], None);
        let expected = (0.25 - 1.0 / 1024.0) / (1.0 + 1.0 / 1024.0);
        assert_eq!(measured, Measured { error: Ok(expected), n_noise: 1, f32_error: Some(0.01) });
        assert_eq!(error(&[0.0, 1e-20], &[1e-9, -1e-9], &[1e-3, 0.0]), Err(Noise::All));
        assert_eq!(
            measure(&[0.0], &[0.0], &[0.0], None),
            Measured { error: Ok(0.0), n_noise: 0, f32_error: Some(0.0) }
        );
        // A significant number that is lost.
        assert_eq!(error(&[1.0], &[1.0], &[f64::NAN]), Ok(f64::INFINITY));
    }

    /// Cancellation leaves f32 exact zeros: the error of such an element used to be infinite.
    #[test]
    fn noise_with_zeros_is_noise() {
        let measured = measure(&[1e-18, -3e-19, 1e-21], &[1e-9, 0.0, 0.0], &[1e-3, 2e-3, -1e-3], None);
        assert_eq!((measured.error, measured.n_noise), (Err(Noise::All), 3));
        // Zeros only in f64, and zeros only in f32.
        assert_eq!(error(&[0.0, 0.0], &[0.0, 3e-9], &[1e-3, 1e-3]), Err(Noise::All));
        assert_eq!(error(&[2e-19, 1e-22], &[0.0, 0.0], &[1e-3, 1e-3]), Err(Noise::All));
        // One significant element, at 2^-8 of the scale, is judged by the scale of all.
        assert_eq!(error(&[1.0 / 256.0, 0.0], &[1.0 / 256.0, 1.0], &[0.0, 1.0]), Ok(1.0 / 256.0));
    }

    /// Zeros in both have no scale, and an infinity is one whatever the scale is.
    #[test]
    fn zeros_have_no_scale() {
        assert_eq!(error(&[0.0, 0.0], &[0.0, 0.0], &[0.0, 1e-3]), Err(Noise::NoScale));
        assert_eq!(error(&[0.0, 0.0], &[0.0, 0.0], &[0.0, f64::INFINITY]), Ok(f64::INFINITY));
    }

    #[test]
    fn what_is_computed_of_noise_is_noise() {
        let noise = noisy(&[1e-18, 1e-19], &[0.0, 1e-9], false).unwrap();
        assert_eq!(noise, [true, true]);
        let moment = measure(&[0.9, 0.45], &[0.9, 0.45], &[1.0, 0.5], Some(&noise));
        assert_eq!((moment.error, moment.n_noise), (Err(Noise::All), 2));
        assert_eq!(noisy(&[1.0, 2.0], &[1.0, 2.0], true), None);
        // A third of an array that is zero in theory, and a variable that it moved by as much as the others.
        let [gradient, in_f32] = [[0.25, 1e-19, -0.5], [0.25, 1e-9, -0.5]];
        assert_eq!(noisy(&gradient, &in_f32, false), None);
        let third = noisy(&gradient, &in_f32, true).unwrap();
        assert_eq!(third, [false, true, false]);
        assert_eq!(noisy(&[0.25, 0.0, -0.5], &[0.25, 0.0, -0.5], true), Some(third.clone()));
        assert!(has_noise(&gradient, &in_f32) && !has_noise(&[0.25, 0.0], &[0.25, 0.0]));
        let variable = measure(&[0.9, 0.002, 0.45], &[0.9, 0.002, 0.45], &[0.9, -0.001, 0.45], Some(&third));
        assert_eq!((variable.error, variable.n_noise), (Ok(0.0), 1));
        // Exact zeros, as of a softmax over one position; a variable that did not move is still right.
        let zeros = noisy(&[0.0, 0.0], &[0.0, 0.0], false).unwrap();
        assert_eq!(measure(&[0.9, 0.5], &[0.9, 0.5], &[0.901, 0.499], Some(&zeros)).error, Err(Noise::All));
        // An element that is noise and equal in both says nothing about the rest.
        assert_eq!(measure(&[1.0, 0.0], &[1.0, 0.01], &[1.0, 9.0], Some(&[true, true])).error, Err(Noise::All));
        let same = measure(&[0.9, 0.5], &[0.9, 0.5], &[0.9, 0.5], Some(&zeros));
        assert_eq!((same.error, same.n_noise), (Ok(0.0), 0));
    }

    #[test]
    fn what_f64_decides_otherwise_is_noise_and_the_rest_differs_or_not() {
        let array = |values: [i32; 4]| Literal::from_elements([4], &values);
        assert_eq!(decided([&array([1, 2, 3, 4]), &array([1, 2, 9, 9]), &array([1, 0, 9, 0])]), Some((1, 2)));
        assert_eq!(decided([&array([1; 4]), &array([1; 4]), &Literal::from_elements([4], &[1u8; 4])]), None);
    }
}
