//! Resizing of images, nearest and bilinear, as products with constant matrices of interpolation weights.
//!
//! Source: `image_resizer_state.h`, `resize_bilinear_op.cc`, `resize_nearest_neighbor_op.cc` of TensorFlow's kernels.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::DotDims;
use bf16scope_hlo::{InstrId, Literal};

pub(super) const TABLE: Table = &[
    ("ResizeNearestNeighbor", |c| c.resized(false, false)),
    ("ResizeBilinear", |c| c.resized(true, false)),
    ("ResizeNearestNeighborGrad", |c| c.resized(false, true)),
    ("ResizeBilinearGrad", |c| c.resized(true, true)),
];

/// For each index of the result, the indices and weights of two elements of the input.
fn weights(n_in: i64, n_out: i64, is_bilinear: bool, align: bool, half: bool) -> Vec<[(i64, f32); 2]> {
    let scale = if align && n_out > 1 { (n_in - 1) as f32 / (n_out - 1) as f32 } else { n_in as f32 / n_out as f32 };
    let last = n_in - 1;
    (0..n_out)
        .map(|at| {
            let at = at as f32;
            if !is_bilinear {
                let place = if half { (at + 0.5) * scale } else { at * scale };
                let place = if align { place.round() } else { place.floor() };
                return [((place as i64).clamp(0, last), 1.0), (0, 0.0)];
            }
            let place = if half { (at + 0.5) * scale - 0.5 } else { at * scale };
            let low = place.floor();
            let part = place - low;
            let [first, second] = [low, place.ceil()].map(|place| (place as i64).clamp(0, last));
            [(first, 1.0 - part), (second, part)]
        })
        .collect()
}

impl Call<'_, '_> {
    fn resized(&mut self, is_bilinear: bool, is_gradient: bool) -> Outputs {
        let x = self.array(0)?;
        let dims = self.dims(x);
        let [_, height, width, _] = dims[..] else { return Err(Problem::new(format!("its input has dims {dims:?}"))) };
        // The sizes of the forward op's input and result.
        let (from, to) = if !is_gradient {
            let size = self.ints(1)?;
            ([height, width], [size.first().copied(), size.get(1).copied()].map(|size| size.unwrap_or(0)))
        } else if is_bilinear {
            let original = self.array(1)?;
            let original = self.dims(original);
            ([original.get(1), original.get(2)].map(|size| size.copied().unwrap_or(0)), [height, width])
        } else {
            let size = self.ints(1)?;
            ([size.first(), size.get(1)].map(|size| size.copied().unwrap_or(0)), [height, width])
        };
        if from.iter().chain(&to).any(|size| *size < 1 || *size > 1 << 14) {
            return Err(Problem::new(format!("it makes {to:?} pixels of {from:?}")));
        }
        let (align, half) = (self.node.flag("align_corners"), self.node.flag("half_pixel_centers"));
        // Bilinear resizing gives f32 for every image dtype.
        let dtype = self.dtype(x);
        let compute = self.sums_in(dtype);
        let compute = if is_bilinear && !compute.is_float() { bf16scope_hlo::DType::F32 } else { compute };
        let mut y = self.e().convert(x, compute);
        for axis in [0, 1] {
            let matrix = self.matrix(&weights(from[axis], to[axis], is_bilinear, align, half), from[axis]);
            let matrix = self.e().convert(matrix, compute);
            y = self.along_axis(y, matrix, 1 + axis as i64, is_gradient);
        }
        let result = match (is_bilinear, is_gradient) {
            (true, false) => bf16scope_hlo::DType::F32,
            (true, true) => self.dtype_of("T")?,
            (false, _) => dtype,
        };
        self.one(self.e().convert(y, result))
    }

    /// The matrix of interpolation weights, `[to, from]`.
    fn matrix(&self, weights: &[[(i64, f32); 2]], from: i64) -> InstrId {
        let mut matrix = vec![0f32; weights.len() * from as usize];
        for (row, pair) in matrix.chunks_mut(from as usize).zip(weights) {
            pair.iter().for_each(|(place, weight)| row[*place as usize] += weight);
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
