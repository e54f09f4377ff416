//! Resizing as TensorFlow 1 computes it, in f32 and in its order: rows first, then columns.
//!
//! TensorFlow's default, which `tf.image.resize_bicubic` of the recipes has, samples at `x · scale`, without the shift by
//! half a pixel that every other library makes; `half_pixel_centers` asks for that shift, as `tf.image.resize` of
//! TensorFlow 2 does (without its antialiasing). Bicubic has a table of 1,024 steps and Keys's kernel with A = −0.75, and
//! −0.5 with the shift; there weights beyond the border are left out, else the border's pixel counts for them. Results may
//! be below 0 and above 255: TensorFlow does not clamp them either.
//!
//! Source: TensorFlow's `resize_bicubic_op.cc`, `resize_bilinear_op.cc` and `image_resizer_state.h`.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{Image, Window};

/// How an image is made another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resize {
    /// A mean of four pixels, by distance.
    Bilinear,
    /// Of sixteen.
    Bicubic,
}

/// Steps between two pixels.
const STEPS: usize = 1 << 10;

/// The kernel at the distances `i / STEPS` and `1 + i / STEPS`.
type Table = Vec<[f32; 2]>;

static LEGACY: LazyLock<Table> = LazyLock::new(|| table(-0.75));
static KEYS: LazyLock<Table> = LazyLock::new(|| table(-0.5));

/// In f64 where TensorFlow's C++ is, and f32 where that is.
fn table(a: f64) -> Table {
    let entry = |i: usize| {
        let near = (i as f64 / STEPS as f64) as f32;
        let far = f64::from((f64::from(near) + 1.0) as f32);
        let near = f64::from(near);
        let of_near = ((a + 2.0) * near - (a + 3.0)) * near * near + 1.0;
        let of_far = ((a * far - 5.0 * a) * far + 8.0 * a) * far - 4.0 * a;
        [of_near as f32, of_far as f32]
    };
    (0..=STEPS).map(entry).collect()
}

/// The pixels that one of the result is made of, along an axis, with their weights.
#[derive(Clone, Copy, Debug)]
struct Taps {
    idx: [usize; 4],
    weights: [f32; 4],
}

/// Where a pixel of the result lies among those of the image.
fn position(idx: usize, scale: f32, is_half_pixel: bool) -> f32 {
    match is_half_pixel {
        true => (idx as f32 + 0.5) * scale - 0.5,
        false => idx as f32 * scale,
    }
}

fn cubic_taps(n_in: usize, n_out: usize, is_half_pixel: bool) -> Vec<Taps> {
    let scale = n_in as f32 / n_out as f32;
    let table = if is_half_pixel { &*KEYS } else { &*LEGACY };
    let taps = |idx: usize| {
        let at = position(idx, scale, is_half_pixel);
        let floor = at.floor();
        let step = ((at - floor) * STEPS as f32).round_ties_even() as usize;
        let ([near, far], [near_after, far_after]) = (table[step], table[STEPS - step]);
        let mut weights = [far, near, near_after, far_after];
        let wanted = [-1, 0, 1, 2].map(|offset| floor as i64 + offset);
        let idx = wanted.map(|wanted| wanted.clamp(0, n_in as i64 - 1) as usize);
        if is_half_pixel {
            for (weight, (idx, wanted)) in weights.iter_mut().zip(idx.iter().zip(wanted)) {
                if *idx as i64 != wanted {
                    *weight = 0.0;
                }
            }
            let sum = weights[0] + weights[1] + weights[2] + weights[3];
            if sum.abs() >= 1000.0 * f32::MIN_POSITIVE {
                let inverse = 1.0 / sum;
                weights = weights.map(|weight| weight * inverse);
            }
        }
        Taps { idx, weights }
    };
    (0..n_out).map(taps).collect()
}

/// The pixel below and above a place, and how far it is from the one below.
fn linear_taps(n_in: usize, n_out: usize, is_half_pixel: bool) -> Vec<(usize, usize, f32)> {
    let scale = n_in as f32 / n_out as f32;
    let taps = |idx: usize| {
        let at = position(idx, scale, is_half_pixel);
        let floor = at.floor();
        let above = if is_half_pixel { at.ceil() as i64 } else { floor as i64 + 1 };
        let lower = (floor as i64).clamp(0, n_in as i64 - 1) as usize;
        (lower, above.clamp(0, n_in as i64 - 1) as usize, at - floor)
    };
    (0..n_out).map(taps).collect()
}

impl Resize {
    /// A window of an image in `[height, width]` pixels: numbers in f32, `[height, width, channels]`.
    ///
    /// # Panics
    /// For a window that is not within the image, or no pixels; those are bugs of the caller.
    pub fn run(self, image: &Image, window: Window, [height, width]: [usize; 2], is_half_pixel: bool) -> Vec<f32> {
        let channels = image.channels;
        let row = |y: usize| {
            let start = ((window.y + y) * image.width + window.x) * channels;
            &image.pixels[start..][..window.width * channels]
        };
        let mut out = Vec::with_capacity(height * width * channels);
        // One row of the result before its columns are.
        let mut mixed = vec![0.0f32; window.width * channels];
        match self {
            Resize::Bicubic => {
                let columns = cubic_taps(window.width, width, is_half_pixel);
                for Taps { idx, weights: [w0, w1, w2, w3] } in cubic_taps(window.height, height, is_half_pixel) {
                    let [r0, r1, r2, r3] = idx.map(row);
                    for ((((mixed, p0), p1), p2), p3) in mixed.iter_mut().zip(r0).zip(r1).zip(r2).zip(r3) {
                        *mixed = f32::from(*p0) * w0 + f32::from(*p1) * w1 + f32::from(*p2) * w2 + f32::from(*p3) * w3;
                    }
                    for Taps { idx, weights: [w0, w1, w2, w3] } in &columns {
                        let [p0, p1, p2, p3] = idx.map(|x| &mixed[x * channels..][..channels]);
                        out.extend((0..channels).map(|c| p0[c] * w0 + p1[c] * w1 + p2[c] * w2 + p3[c] * w3));
                    }
                }
            }
            Resize::Bilinear => {
                let columns = linear_taps(window.width, width, is_half_pixel);
                for (upper, lower, down) in linear_taps(window.height, height, is_half_pixel) {
                    let (upper, lower) = (row(upper), row(lower));
                    for &(left, right, along) in &columns {
                        for c in 0..channels {
                            let between = |row: &[u8]| {
                                let (left, right) =
                                    (f32::from(row[left * channels + c]), f32::from(row[right * channels + c]));
                                left + (right - left) * along
                            };
                            let (top, bottom) = (between(upper), between(lower));
                            out.push(top + (bottom - top) * down);
                        }
                    }
                }
            }
        }
        out
    }
}

/// The pixels of a window as they are, in f32.
pub fn unchanged(image: &Image, window: Window) -> Vec<f32> {
    let rows = image.pixels.chunks_exact(image.width * image.channels).skip(window.y).take(window.height);
    rows.flat_map(|row| &row[window.x * image.channels..][..window.width * image.channels])
        .map(|&byte| f32::from(byte))
        .collect()
}
