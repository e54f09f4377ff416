//! Shape queries, reshapes, broadcasts, tiling and transposes.
//!
//! Source: `shape_op.cc`, `reshape_op.cc`, `bcast_ops.cc`, `tile_ops.cc`, `transpose_op.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use crate::tensor::n_elements;
use bf16scope_hlo::{DType, InstrId};

pub(super) const TABLE: Table = &[
    ("Shape", |c| {
        let x = c.array(0)?;
        let dims = c.dims(x);
        c.shape_constant(&dims)
    }),
    ("ShapeN", |c| {
        let n = c.inputs.len();
        let all = c.arrays(0, n)?;
        all.into_iter().map(|x| Ok(c.shape_constant(&c.dims(x))?.remove(0))).collect()
    }),
    ("VariableShape", |c| {
        let x = c.array(0)?;
        let dims = c.dims(x);
        c.shape_constant(&dims)
    }),
    ("Size", |c| {
        let x = c.array(0)?;
        let n = c.dims(x).iter().product();
        c.one(c.ints_constant(&[n], &[], c.out_type()))
    }),
    ("Rank", |c| {
        let x = c.array(0)?;
        c.one(c.ints_constant(&[c.dims(x).len() as i64], &[], DType::S32))
    }),
    ("Reshape", reshape),
    ("EnsureShape", |c| {
        let x = c.array(0)?;
        let (dims, expected) = (c.dims(x), c.node.dims("shape"));
        let fits = |(dim, expected): (&i64, &i64)| dim == expected || *expected < 0;
        match expected.filter(|sizes| sizes.len() != dims.len() || !dims.iter().zip(sizes).all(fits)) {
            Some(sizes) => Err(Problem::new(format!("its input has dims {dims:?}, and its `shape` is {sizes:?}"))),
            None => c.one(x),
        }
    }),
    ("ExpandDims", |c| {
        let x = c.array(0)?;
        let mut dims = c.dims(x);
        let axis = c.int(1)?;
        let axis = c.axis(axis, dims.len() + 1)?;
        dims.insert(axis as usize, 1);
        c.one(c.e().reshape(x, &dims))
    }),
    ("Squeeze", squeeze),
    ("Transpose", |c| {
        let x = c.array(0)?;
        c.transposed(x)
    }),
    ("ConjugateTranspose", |c| {
        let x = c.array(0)?;
        c.transposed(c.conjugate(x))
    }),
    ("InvertPermutation", |c| {
        let permutation = c.ints(0)?;
        let mut inverse = vec![0; permutation.len()];
        for (to, &from) in permutation.iter().enumerate() {
            let from = c.axis(from, permutation.len())?;
            inverse[from as usize] = to as i64;
        }
        let x = c.array(0)?;
        c.one(c.ints_constant(&inverse, &[inverse.len() as i64], c.dtype(x)))
    }),
    ("BroadcastTo", |c| {
        let x = c.array(0)?;
        let dims = c.ints(1)?;
        c.one(c.broadcast_to(x, &dims)?)
    }),
    ("BroadcastArgs", |c| {
        let (a, b) = (c.ints(0)?, c.ints(1)?);
        let dims = c.broadcast_dims(&a, &b)?;
        let x = c.array(0)?;
        c.one(c.ints_constant(&dims, &[dims.len() as i64], c.dtype(x)))
    }),
    ("BroadcastGradientArgs", broadcast_gradient),
    ("Fill", |c| {
        let dims = c.ints(0)?;
        let value = c.array(1)?;
        c.check_dims(&dims)?;
        c.one(c.e().broadcast(value, &[], &dims))
    }),
    ("Empty", |c| {
        let (dims, dtype) = (c.ints(0)?, c.dtype_of("dtype")?);
        c.check_dims(&dims)?;
        c.one(c.e().full(dtype, &dims, 0.0))
    }),
    ("ZerosLike", |c| {
        if let Some(zeros) = c.zeros_like_list() {
            return zeros;
        }
        let x = c.array(0)?;
        c.one(c.like(x, 0.0))
    }),
    ("OnesLike", |c| {
        let x = c.array(0)?;
        c.one(c.like(x, 1.0))
    }),
    ("Tile", tile),
    ("Range", |c| {
        let (start, limit, step) = (c.number(0)?, c.number(1)?, c.number(2)?);
        let dtype = {
            let x = c.array(0)?;
            c.dtype(x)
        };
        // TensorFlow divides in the dtype: in f32, 0.3 is three steps of 0.1.
        let n = match dtype {
            DType::F32 => f64::from((limit as f32 - start as f32) / step as f32),
            _ => (limit - start) / step,
        };
        let n = n.ceil().max(0.0);
        if !n.is_finite() || n > f64::from(i32::MAX) {
            return Err(Problem::new(format!("it goes from {start} to {limit} in steps of {step}")));
        }
        let places = c.e().iota(dtype, &[n as i64], 0);
        c.one(c.e().add_scalar(c.e().mul_scalar(places, step), start))
    }),
    ("LinSpace", |c| {
        let (start, stop, n) = (c.number(0)?, c.number(1)?, c.int(2)?);
        let dtype = {
            let x = c.array(0)?;
            c.dtype(x)
        };
        c.check_dims(&[n])?;
        let step = if n > 1 { (stop - start) / (n - 1) as f64 } else { 0.0 };
        let places = c.e().iota(dtype, &[n], 0);
        c.one(c.e().add_scalar(c.e().mul_scalar(places, step), start))
    }),
];

impl Call<'_, '_> {
    fn out_type(&self) -> DType {
        self.node.dtype("out_type").unwrap_or(DType::S32)
    }

    fn shape_constant(&self, dims: &[i64]) -> Outputs {
        self.one(self.ints_constant(dims, &[dims.len() as i64], self.out_type()))
    }

    /// Checks that computed dims are valid for an array.
    pub(super) fn check_dims(&self, dims: &[i64]) -> Result<(), Problem> {
        match n_elements(dims) {
            Some(_) => Ok(()),
            None => Err(Problem::new(format!("its result would have dims {dims:?}"))),
        }
    }

    fn transposed(&mut self, x: InstrId) -> Outputs {
        let permutation = self.ints(1)?;
        let permutation = self.axes(&permutation, self.dims(x).len())?;
        self.one(self.e().transpose(x, &permutation))
    }
}

fn reshape(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let mut dims = c.ints(1)?;
    let n: i64 = c.dims(x).iter().product();
    let known: i64 = dims.iter().filter(|dim| **dim != -1).try_fold(1i64, |n, dim| n.checked_mul(*dim)).unwrap_or(-1);
    if let Some(open) = dims.iter().position(|dim| *dim == -1) {
        if known <= 0 || n % known != 0 {
            return Err(Problem::new(format!("{n} elements do not become dims {dims:?}")));
        }
        dims[open] = n / known;
    }
    c.one(c.e().reshape(x, &dims))
}

fn squeeze(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let dims = c.dims(x);
    let named = [c.node.ints("squeeze_dims"), c.node.ints("axis")].concat();
    let axes = c.axes(&named, dims.len())?;
    let is_left = |axis: usize| if axes.is_empty() { dims[axis] != 1 } else { !axes.contains(&(axis as i64)) };
    let squeezed: Vec<i64> = (0..dims.len()).filter(|axis| is_left(*axis)).map(|axis| dims[axis]).collect();
    c.one(c.e().reshape(x, &squeezed))
}

/// The axes over which the gradients of two broadcast arrays are summed.
fn broadcast_gradient(c: &mut Call<'_, '_>) -> Outputs {
    let (a, b) = (c.ints(0)?, c.ints(1)?);
    let dims = c.broadcast_dims(&a, &b)?;
    let x = c.array(0)?;
    let dtype = c.dtype(x);
    // The axes where an array has size 1 or no axis. (A sum over an axis of size 1 changes nothing, so both may have it.)
    let summed = |sizes: &[i64]| -> Vec<i64> {
        let size = |axis: &usize| (axis + sizes.len()).checked_sub(dims.len()).map_or(1, |axis| sizes[axis]);
        (0..dims.len()).filter(|axis| size(axis) == 1).map(|axis| axis as i64).collect()
    };
    let both = [summed(&a), summed(&b)];
    Ok(both.map(|axes| Value::Array(c.ints_constant(&axes, &[axes.len() as i64], dtype))).to_vec())
}

fn tile(c: &mut Call<'_, '_>) -> Outputs {
    let mut x = c.array(0)?;
    let times = c.ints(1)?;
    let dims = c.dims(x);
    if times.len() != dims.len() {
        return Err(Problem::new(format!("an array of rank {} is repeated {times:?} times", dims.len())));
    }
    let repeated: Vec<i64> = dims.iter().zip(&times).map(|(dim, times)| dim.saturating_mul(*times)).collect();
    c.check_dims(&repeated)?;
    if times.iter().any(|times| *times != 1) {
        // [a, b] to [times, a, times, b], where each dim repeats along a new axis before it.
        let wide: Vec<i64> = times.iter().zip(&dims).flat_map(|(times, dim)| [*times, *dim]).collect();
        let places: Vec<i64> = (0..dims.len() as i64).map(|axis| 2 * axis + 1).collect();
        let all: InstrId = c.e().broadcast(x, &places, &wide);
        x = c.e().reshape(all, &repeated);
    }
    c.one(x)
}
