//! Resizing as TensorFlow 1 computes it, in f32 and in its order: rows first, then columns.
//!
//! TensorFlow's default, which `tf.image.resize_bicubic` of the recipes uses, samples at `x · scale`, without the shift
//! by half a pixel that every other library makes; `half_pixel_centers` adds that shift, like `tf.image.resize` of
//! TensorFlow 2 (without its antialiasing). Bicubic uses a table of 1,024 steps and Keys's kernel with A = −0.75, and
//! −0.5 with the shift; with the shift, weights beyond the border are dropped, otherwise they go to the border's pixel.
//! Results may be below 0 and above 255: TensorFlow does not clamp them either.
//!
//! Source: TensorFlow's `resize_bicubic_op.cc`, `resize_bilinear_op.cc` and `image_resizer_state.h`.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{Image, Window};

/// The interpolation for resizing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resize {
    /// The weighted mean of four pixels, by distance.
    Bilinear,
    /// The weighted sum of sixteen.
    Bicubic,
}

/// Steps between two pixels.
const STEPS: usize = 1 << 10;

/// The kernel at the distances `i / STEPS` and `1 + i / STEPS`.
type Table = Vec<[f32; 2]>;

static LEGACY: LazyLock<Table> = LazyLock::new(|| table(-0.75));
static KEYS: LazyLock<Table> = LazyLock::new(|| table(-0.5));

/// In f64 and f32 exactly as TensorFlow's C++.
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

/// The source pixels of one result pixel along an axis, with their weights.
#[derive(Clone, Copy, Debug)]
struct Cubic {
    idx: [usize; 4],
    weights: [f32; 4],
}

/// The pixels below and above a place, and the distance from the one below.
#[derive(Clone, Copy, Debug)]
struct Linear {
    lower: usize,
    upper: usize,
    share: f32,
}

/// Where a pixel of the result lies among those of the image.
fn position(idx: usize, scale: f32, is_half_pixel: bool) -> f32 {
    match is_half_pixel {
        true => (idx as f32 + 0.5) * scale - 0.5,
        false => idx as f32 * scale,
    }
}

fn cubic_taps(n_in: usize, n_out: usize, is_half_pixel: bool) -> impl Iterator<Item = Cubic> {
    let scale = n_in as f32 / n_out as f32;
    let table = if is_half_pixel { &*KEYS } else { &*LEGACY };
    let taps = move |idx: usize| {
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
        Cubic { idx, weights }
    };
    (0..n_out).map(taps)
}

fn linear_taps(n_in: usize, n_out: usize, is_half_pixel: bool) -> impl Iterator<Item = Linear> {
    let scale = n_in as f32 / n_out as f32;
    let taps = move |idx: usize| {
        let at = position(idx, scale, is_half_pixel);
        let floor = at.floor();
        let above = if is_half_pixel { at.ceil() as i64 } else { floor as i64 + 1 };
        let lower = (floor as i64).clamp(0, n_in as i64 - 1) as usize;
        Linear { lower, upper: above.clamp(0, n_in as i64 - 1) as usize, share: at - floor }
    };
    (0..n_out).map(taps)
}

/// A window to resize, the resulting size, and the interpolation.
#[derive(Clone, Copy, Debug)]
pub struct Resizing {
    /// The interpolation; `None` keeps the window's pixels.
    pub how: Option<Resize>,
    /// The window in the image.
    pub window: Window,
    /// `[height, width]` of the result.
    pub size: [usize; 2],
    /// Whether pixels are sampled at their centres.
    pub is_half_pixel: bool,
    /// Whether the result is mirrored left to right.
    pub is_flipped: bool,
}

/// Working memory for resizing: reused from image to image, it is allocated once.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    cubic: Vec<Cubic>,
    linear: Vec<Linear>,
    /// The four source rows of the next result row, indexed by row number modulo four, and their row numbers.
    rows: [Vec<f32>; 4],
    held: [Option<usize>; 4],
    mixed: Vec<f32>,
    out: Vec<f32>,
}

/// Spare elements after a row, so that a pixel of three channels can be read and written as four numbers.
const SPARE: usize = 1;

impl Resizing {
    /// Passes the rows of the result to `take`, from the first to the last: numbers in f32, `[width, channels]`.
    ///
    /// # Errors
    /// Those of `take`.
    ///
    /// # Panics
    /// For a window outside the image or, without interpolation, not of `size`; and for an empty image. These are bugs
    /// of the caller.
    pub fn rows<E>(
        &self,
        image: &Image,
        scratch: &mut Scratch,
        mut take: impl FnMut(&mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (window, [height, width], channels) = (self.window, self.size, image.channels);
        let row = |y: usize| {
            let start = ((window.y + y) * image.width + window.x) * channels;
            &image.pixels[start..][..window.width * channels]
        };
        let Scratch { cubic, linear, rows, held, mixed, out } = scratch;
        out.clear();
        out.resize(width * channels + SPARE, 0.0);
        mixed.clear();
        mixed.resize(window.width * channels + SPARE, 0.0);
        *held = [None; 4];
        match self.how {
            Some(Resize::Bicubic) => {
                cubic.clear();
                cubic.extend(cubic_taps(window.width, width, self.is_half_pixel));
                if self.is_flipped {
                    cubic.reverse();
                }
                for Cubic { idx, weights } in cubic_taps(window.height, height, self.is_half_pixel) {
                    for y in idx {
                        if held[y % 4] != Some(y) {
                            held[y % 4] = Some(y);
                            rows[y % 4].clear();
                            rows[y % 4].extend(row(y).iter().map(|&byte| f32::from(byte)));
                        }
                    }
                    mix(idx.map(|y| &rows[y % 4][..]), weights, mixed);
                    match channels {
                        3 => across_three(cubic, mixed, out),
                        _ => across(cubic, mixed, out, channels),
                    }
                    take(&mut out[..width * channels])?;
                }
            }
            Some(Resize::Bilinear) => {
                linear.clear();
                linear.extend(linear_taps(window.width, width, self.is_half_pixel));
                if self.is_flipped {
                    linear.reverse();
                }
                for Linear { lower, upper, share } in linear_taps(window.height, height, self.is_half_pixel) {
                    for y in [lower, upper] {
                        if held[y % 4] != Some(y) {
                            held[y % 4] = Some(y);
                            between(linear, row(y), &mut rows[y % 4], channels);
                        }
                    }
                    for ((out, top), bottom) in out.iter_mut().zip(&rows[lower % 4]).zip(&rows[upper % 4]) {
                        *out = top + (bottom - top) * share;
                    }
                    take(&mut out[..width * channels])?;
                }
            }
            None => {
                assert_eq!([window.height, window.width], self.size, "a window that nothing resizes");
                for y in 0..height {
                    for (x, pixel) in row(y).chunks_exact(channels).enumerate() {
                        let x = if self.is_flipped { width - 1 - x } else { x };
                        for (out, &byte) in out[x * channels..].iter_mut().zip(pixel) {
                            *out = f32::from(byte);
                        }
                    }
                    take(&mut out[..width * channels])?;
                }
            }
        }
        Ok(())
    }
}

/// One row of the result before interpolating columns: a weighted sum of four rows.
fn mix(rows: [&[f32]; 4], [w0, w1, w2, w3]: [f32; 4], mixed: &mut [f32]) {
    let [r0, r1, r2, r3] = rows;
    for ((((mixed, p0), p1), p2), p3) in mixed.iter_mut().zip(r0).zip(r1).zip(r2).zip(r3) {
        *mixed = p0 * w0 + p1 * w1 + p2 * w2 + p3 * w3;
    }
}

/// The columns of a row of pixels of three channels, each read and written together with one neighbouring number: four
/// numbers are one instruction. The extra number is overwritten by the next pixel.
fn across_three(columns: &[Cubic], mixed: &[f32], out: &mut [f32]) {
    for (number, Cubic { idx, weights: [w0, w1, w2, w3] }) in columns.iter().enumerate() {
        let four = |x: usize| mixed[3 * x..].first_chunk::<4>().expect("a row has a number to spare");
        let [p0, p1, p2, p3] = [four(idx[0]), four(idx[1]), four(idx[2]), four(idx[3])];
        let pixel = std::array::from_fn(|c| p0[c] * w0 + p1[c] * w1 + p2[c] * w2 + p3[c] * w3);
        *out[3 * number..].first_chunk_mut::<4>().expect("so has the result") = pixel;
    }
}

fn across(columns: &[Cubic], mixed: &[f32], out: &mut [f32], channels: usize) {
    for (out, Cubic { idx, weights: [w0, w1, w2, w3] }) in out.chunks_exact_mut(channels).zip(columns) {
        let [p0, p1, p2, p3] = idx.map(|x| &mixed[x * channels..][..channels]);
        for (c, out) in out.iter_mut().enumerate() {
            *out = p0[c] * w0 + p1[c] * w1 + p2[c] * w2 + p3[c] * w3;
        }
    }
}

/// Interpolates a row's numbers between its pixels.
fn between(columns: &[Linear], row: &[u8], out: &mut Vec<f32>, channels: usize) {
    out.clear();
    for &Linear { lower, upper, share } in columns {
        let (left, right) = (&row[lower * channels..][..channels], &row[upper * channels..][..channels]);
        out.extend(left.iter().zip(right).map(|(&left, &right)| {
            let (left, right) = (f32::from(left), f32::from(right));
            left + (right - left) * share
        }));
    }
}

impl Resize {
    /// A window of an image in `[height, width]` pixels: numbers in f32, `[height, width, channels]`.
    ///
    /// # Panics
    /// For a window that is not within the image, or no pixels; those are bugs of the caller.
    pub fn run(self, image: &Image, window: Window, size: [usize; 2], is_half_pixel: bool) -> Vec<f32> {
        let resizing = Resizing { how: Some(self), window, size, is_half_pixel, is_flipped: false };
        let mut out = Vec::with_capacity(size[0] * size[1] * image.channels);
        let take = |row: &mut [f32]| {
            out.extend_from_slice(row);
            Ok::<(), std::convert::Infallible>(())
        };
        match resizing.rows(image, &mut Scratch::default(), take) {
            Ok(()) => out,
            Err(never) => match never {},
        }
    }
}
