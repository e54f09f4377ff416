//! Resizing of images (nearest, bilinear, by cubic splines, by areas) as products with constant matrices of weights.
//!
//! Source: `image_resizer_state.h`, `resize_bilinear_op.cc`, `resize_nearest_neighbor_op.cc`, `resize_bicubic_op.cc`,
//! `resize_area_op.cc` of TensorFlow's kernels.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::DotDims;
use bf16scope_hlo::{DType, InstrId, Literal};

pub(super) const TABLE: Table = &[
    ("ResizeNearestNeighbor", |c| c.resized(Method::Nearest, false)),
    ("ResizeBilinear", |c| c.resized(Method::Bilinear, false)),
    ("ResizeBicubic", |c| c.resized(Method::Bicubic, false)),
    ("ResizeArea", |c| c.resized(Method::Area, false)),
    ("ResizeNearestNeighborGrad", |c| c.resized(Method::Nearest, true)),
    ("ResizeBilinearGrad", |c| c.resized(Method::Bilinear, true)),
    ("ResizeBicubicGrad", |c| c.resized(Method::Bicubic, true)),
];

/// How pixels between those of the input are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Nearest,
    Bilinear,
    Bicubic,
    Area,
}

/// Where the pixels of a result are in the input, along one axis.
struct Axis {
    n_in: i64,
    n_out: i64,
    align: bool,
    half: bool,
}

impl Axis {
    fn scale(&self) -> f32 {
        match self.align && self.n_out > 1 {
            true => (self.n_in - 1) as f32 / (self.n_out - 1) as f32,
            false => self.n_in as f32 / self.n_out as f32,
        }
    }

    /// For each index of the result, indices and weights of elements of the input.
    fn weights(&self, method: Method) -> Vec<Vec<(i64, f32)>> {
        let (scale, last) = (self.scale(), self.n_in - 1);
        let weights = |at: f32| match method {
            Method::Nearest => {
                let place = if self.half { (at + 0.5) * scale } else { at * scale };
                let place = if self.align { place.round() } else { place.floor() };
                vec![((place as i64).clamp(0, last), 1.0)]
            }
            Method::Bilinear => {
                let place = if self.half { (at + 0.5) * scale - 0.5 } else { at * scale };
                let low = place.floor();
                let part = place - low;
                let [first, second] = [low, place.ceil()].map(|place| (place as i64).clamp(0, last));
                vec![(first, 1.0 - part), (second, part)]
            }
            Method::Bicubic => {
                cubic_weights(if self.half { (at + 0.5) * scale - 0.5 } else { at * scale }, last, self.half)
            }
            Method::Area => area_weights([at * scale, (at + 1.0) * scale], scale, last),
        };
        (0..self.n_out).map(|at| weights(at as f32)).collect()
    }
}

/// Weights of the four elements around a place. Those beyond the edge count as the edge's, or, with Keys' coefficient (which
/// `half_pixel_centers` takes), as none.
fn cubic_weights(place: f32, last: i64, is_keys: bool) -> Vec<(i64, f32)> {
    /// Parts of an element for which TensorFlow's kernel has coefficients.
    const N_PARTS: f32 = 1024.0;
    let a = if is_keys { -0.5 } else { -0.75 };
    let low = place.floor();
    let part = ((place - low) * N_PARTS).round_ties_even() / N_PARTS;
    let near = |x: f32| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    let taps = [(-1, far(1.0 + part)), (0, near(part)), (1, near(1.0 - part)), (2, far(2.0 - part))];
    let taps = taps.map(|(offset, weight)| (low as i64 + offset, weight));
    if !is_keys {
        return taps.map(|(at, weight)| (at.clamp(0, last), weight)).to_vec();
    }
    let inside = taps.into_iter().filter(|(at, _)| (0..=last).contains(at));
    let sum: f32 = inside.clone().map(|(_, weight)| weight).sum();
    let scale = if sum.abs() >= 1000.0 * f32::MIN_POSITIVE { 1.0 / sum } else { 1.0 };
    inside.map(|(at, weight)| (at, weight * scale)).collect()
}

/// Weights of elements by how much of each is between two places, which are `scale` apart.
fn area_weights([start, end]: [f32; 2], scale: f32, last: i64) -> Vec<(i64, f32)> {
    let covered = |at: f32| match at < start && at + 1.0 > end {
        true => scale,
        false => (at + 1.0).min(end) - at.max(start),
    };
    let all = start.floor() as i64..end.ceil() as i64;
    all.map(|at| (at.clamp(0, last), covered(at as f32) / scale)).collect()
}

impl Call<'_, '_> {
    fn resized(&mut self, method: Method, is_gradient: bool) -> Outputs {
        let x = self.array(0)?;
        let dims = self.dims(x);
        let [_, height, width, _] = dims[..] else { return Err(Problem::new(format!("its input has dims {dims:?}"))) };
        // The sizes of the forward op's input and result.
        let (from, to) = if !is_gradient {
            let size = self.ints(1)?;
            ([height, width], [size.first().copied(), size.get(1).copied()].map(|size| size.unwrap_or(0)))
        } else if method != Method::Nearest {
            let original = self.array(1)?;
            let original = self.dims(original);
            ([original.get(1), original.get(2)].map(|size| size.copied().unwrap_or(0)), [height, width])
        } else {
            let size = self.ints(1)?;
            ([size.first(), size.get(1)].map(|size| size.copied().unwrap_or(0)), [height, width])
        };
        // The weights along an axis are a matrix.
        let is_bounded = |axis: usize| from[axis] * to[axis] <= 1 << 25;
        if from.iter().chain(&to).any(|size| *size < 1 || *size > 1 << 14) || ![0, 1].into_iter().all(is_bounded) {
            return Err(Problem::new(format!("it makes {to:?} pixels of {from:?}")));
        }
        let (align, half) = (self.node.flag("align_corners"), self.node.flag("half_pixel_centers"));
        if align && half {
            return Err(Problem::new("it has both `align_corners` and `half_pixel_centers`, expected at most one"));
        }
        // All but the nearest pixels give f32 for every image dtype.
        let dtype = self.dtype(x);
        let compute = self.sums_in(dtype);
        let compute = if method != Method::Nearest && !compute.is_float() { DType::F32 } else { compute };
        let mut y = self.e().convert(x, compute);
        for axis in [0, 1] {
            let sizes = Axis { n_in: from[axis], n_out: to[axis], align, half };
            let matrix = self.matrix(&sizes.weights(method), from[axis]);
            let matrix = self.e().convert(matrix, compute);
            y = self.along_axis(y, matrix, 1 + axis as i64, is_gradient);
        }
        let result = match (method, is_gradient) {
            (Method::Nearest, _) => dtype,
            (_, false) => DType::F32,
            (_, true) => self.dtype_of("T")?,
        };
        self.one(self.e().convert(y, result))
    }

    /// The matrix of interpolation weights, `[to, from]`.
    fn matrix(&self, weights: &[Vec<(i64, f32)>], from: i64) -> InstrId {
        let mut matrix = vec![0f32; weights.len() * from as usize];
        for (row, places) in matrix.chunks_mut(from as usize).zip(weights) {
            places.iter().for_each(|(place, weight)| row[*place as usize] += weight);
        }
        self.e().constant(Literal::from_elements([weights.len() as i64, from], &matrix))
    }

    /// A product with a matrix along an axis; the axis keeps its position.
    fn along_axis(&self, x: InstrId, matrix: InstrId, axis: i64, is_transposed: bool) -> InstrId {
        let dims = DotDims {
            lhs_contracting: vec![axis],
            rhs_contracting: vec![i64::from(!is_transposed)],
            ..DotDims::default()
        };
        let precision = bf16scope_hlo::ops::PrecisionConfig {
            operand_precision: vec![bf16scope_hlo::ops::OperandPrecision::Highest; 2],
            algorithm: None,
        };
        let product = self.e().emit(bf16scope_hlo::Op::Dot { dims, precision }, &[x, matrix], None);
        let rank = self.dims(x).len() as i64;
        let permutation: Vec<i64> = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
        self.e().transpose(product, &permutation)
    }
}
