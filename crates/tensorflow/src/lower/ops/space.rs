//! Blocks of pixels: space to depth and to batch (which dilated convolutions are made of) and back, and patches of images.
//!
//! Source: `depthtospace_op.cc`, `spacetobatch_op.cc`, `batchtospace_op.cc`, `extract_image_patches_op.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use super::convolution::padding;
use crate::error::Problem;
use bf16scope_hlo::InstrId;
use bf16scope_hlo::ops::{PadDim, SliceDim};

pub(super) const TABLE: Table = &[
    ("SpaceToDepth", |c| c.blocks(true)),
    ("DepthToSpace", |c| c.blocks(false)),
    ("SpaceToBatch", space_to_batch),
    ("SpaceToBatchND", space_to_batch),
    ("BatchToSpace", batch_to_space),
    ("BatchToSpaceND", batch_to_space),
    ("ExtractImagePatches", patches),
];

/// Elements of a patch at most.
const MAX_PATCH: i64 = 1 << 12;

/// The sizes of blocks, and the padding before and after each axis that is cut into blocks.
struct Blocks {
    sizes: Vec<i64>,
    pads: Vec<[i64; 2]>,
}

impl Call<'_, '_> {
    /// An array, and the blocks of its axes from the second on, by the inputs or by `block_size`.
    fn blocks_of_axes(&mut self) -> Result<(InstrId, Blocks), Problem> {
        let x = self.array(0)?;
        let (sizes, pads) = match self.node.int("block_size") {
            Some(size) => (vec![size; 2], self.ints(1)?),
            None => (self.ints(1)?, self.ints(2)?),
        };
        let rank = self.dims(x).len();
        let fits = rank > sizes.len() && pads.len() == 2 * sizes.len();
        let is_in = |value: &i64, least: i64| (least..1 << 32).contains(value);
        if !fits || !sizes.iter().all(|size| is_in(size, 1)) || !pads.iter().all(|pad| is_in(pad, 0)) {
            let message = format!("blocks of {sizes:?} with edges {pads:?} do not fit an array of rank {rank}");
            return Err(Problem::new(message));
        }
        Ok((x, Blocks { sizes, pads: pads.chunks(2).map(|pad| [pad[0], pad[1]]).collect() }))
    }

    /// Space to depth (blocks of pixels become channels), or depth to space.
    fn blocks(&mut self, to_depth: bool) -> Outputs {
        let mut x = self.array(0)?;
        let block = self.node.int("block_size").unwrap_or(1).clamp(1, 1 << 15);
        let is_nchw = match self.node.text("data_format") {
            "NCHW" => true,
            "" | "NHWC" => false,
            other => return Err(Problem::new(format!("its data_format is {other}, expected NHWC or NCHW"))),
        };
        if is_nchw {
            x = self.e().transpose(x, &[0, 2, 3, 1]);
        }
        let dims = self.dims(x);
        let [n, h, w, channels] = dims[..] else { return Err(Problem::new(format!("its input has dims {dims:?}"))) };
        x = match to_depth {
            true => {
                let split = self.e().reshape(x, &[n, h / block, block, w / block, block, channels]);
                let moved = self.e().transpose(split, &[0, 1, 3, 2, 4, 5]);
                self.e().reshape(moved, &[n, h / block, w / block, channels.saturating_mul(block * block)])
            }
            false => {
                let inner = channels / (block * block);
                let split = self.e().reshape(x, &[n, h, w, block, block, inner]);
                let moved = self.e().transpose(split, &[0, 1, 3, 2, 4, 5]);
                self.e().reshape(moved, &[n, h.saturating_mul(block), w.saturating_mul(block), inner])
            }
        };
        if is_nchw {
            x = self.e().transpose(x, &[0, 3, 1, 2]);
        }
        self.one(x)
    }
}

fn space_to_batch(c: &mut Call<'_, '_>) -> Outputs {
    let (x, blocks) = c.blocks_of_axes()?;
    let n_axes = blocks.sizes.len();
    let edge = |axis: usize| axis.checked_sub(1).and_then(|at| blocks.pads.get(at)).copied().unwrap_or([0, 0]);
    let pads: Vec<PadDim> =
        (0..c.dims(x).len()).map(edge).map(|[low, high]| PadDim { low, high, interior: 0 }).collect();
    let dims: Vec<i64> = c.dims(x).iter().zip(&pads).map(|(dim, pad)| dim.saturating_add(pad.low + pad.high)).collect();
    c.check_dims(&dims)?;
    let padded = c.e().pad(x, c.e().scalar(c.dtype(x), 0.0), &pads);
    if let Some(at) = (0..n_axes).find(|at| dims[at + 1] % blocks.sizes[*at] != 0) {
        let (n, size) = (dims[at + 1], blocks.sizes[at]);
        return Err(Problem::new(format!("axis {} has {n} elements with its padding, in blocks of {size}", at + 1)));
    }
    let rest = &dims[n_axes + 1..];
    // [n, a·block, …] as [n, a, block, …].
    let inner = (0..n_axes).flat_map(|at| [dims[at + 1] / blocks.sizes[at], blocks.sizes[at]]);
    let split: Vec<i64> = [dims[0]].into_iter().chain(inner).chain(rest.iter().copied()).collect();
    let n = n_axes as i64;
    let permutation: Vec<i64> = (0..n)
        .map(|at| 2 * at + 2)
        .chain([0])
        .chain((0..n).map(|at| 2 * at + 1))
        .chain(2 * n + 1..split.len() as i64)
        .collect();
    let moved = c.e().transpose(c.e().reshape(padded, &split), &permutation);
    let batch = blocks.sizes.iter().fold(dims[0], |product, size| product.saturating_mul(*size));
    let cut = (0..n_axes).map(|at| dims[at + 1] / blocks.sizes[at]);
    let result: Vec<i64> = [batch].into_iter().chain(cut).chain(rest.iter().copied()).collect();
    c.one(c.e().reshape(moved, &result))
}

fn batch_to_space(c: &mut Call<'_, '_>) -> Outputs {
    let (x, blocks) = c.blocks_of_axes()?;
    let (dims, n_axes) = (c.dims(x), blocks.sizes.len());
    let product = blocks.sizes.iter().fold(1i64, |product, size| product.saturating_mul(*size));
    if dims[0] % product != 0 {
        return Err(Problem::new(format!("{} examples are in blocks of {:?}", dims[0], blocks.sizes)));
    }
    let split: Vec<i64> = [&blocks.sizes[..], &[dims[0] / product], &dims[1..]].concat();
    let n = n_axes as i64;
    // [block, …, n, a, …] as [n, a, block, …].
    let permutation: Vec<i64> =
        [n].into_iter().chain((0..n).flat_map(|at| [n + 1 + at, at])).chain(2 * n + 1..split.len() as i64).collect();
    let moved = c.e().transpose(c.e().reshape(x, &split), &permutation);
    let joined = (0..n_axes).map(|at| dims[at + 1].saturating_mul(blocks.sizes[at]));
    let whole: Vec<i64> =
        [dims[0] / product].into_iter().chain(joined).chain(dims[n_axes + 1..].iter().copied()).collect();
    c.check_dims(&whole)?;
    let crop = |axis: usize| axis.checked_sub(1).and_then(|at| blocks.pads.get(at)).copied().unwrap_or([0, 0]);
    if let Some(axis) = (0..whole.len()).find(|axis| crop(*axis)[0].saturating_add(crop(*axis)[1]) > whole[*axis]) {
        return Err(Problem::new(format!("{:?} are cropped from {} elements", crop(axis), whole[axis])));
    }
    let starts: Vec<i64> = (0..whole.len()).map(|axis| crop(axis)[0]).collect();
    let limits: Vec<i64> = (0..whole.len()).map(|axis| whole[axis] - crop(axis)[1]).collect();
    let joined = c.e().reshape(moved, &whole);
    c.one(c.slice(joined, &starts, &limits))
}

/// The pixels of each window as channels: by row, then column, then channel.
fn patches(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let dims = c.dims(x);
    let [n, height, width, channels] = dims[..] else {
        return Err(Problem::new(format!("its input has dims {dims:?}, expected images")));
    };
    let number = |name: &str, axis: usize| c.node.ints(name).get(axis).copied().unwrap_or(1);
    let [sizes, steps, rates] = ["ksizes", "strides", "rates"].map(|name| [number(name, 1), number(name, 2)]);
    let is_in = |value: &i64| (1..1 << 15).contains(value);
    if ![sizes, steps, rates].iter().flatten().all(is_in) || sizes[0] * sizes[1] > MAX_PATCH {
        let message = format!("its windows are {sizes:?} in steps of {steps:?} at rates {rates:?}");
        return Err(Problem::new(message).with_help(format!("take at most {MAX_PATCH} pixels a window")));
    }
    let mut pads = vec![PadDim { low: 0, high: 0, interior: 0 }; 4];
    let mut n_windows = [0, 0];
    for (at, size) in [height, width].into_iter().enumerate() {
        let reach = (sizes[at] - 1) * rates[at] + 1;
        let (low, high) = padding(c.node.text("padding"), None, size, reach, steps[at])?;
        pads[at + 1] = PadDim { low, high, interior: 0 };
        n_windows[at] = (size + low + high - reach).div_euclid(steps[at]) + 1;
    }
    if n_windows.iter().any(|n| *n < 1) {
        return Err(Problem::new(format!("no window of {sizes:?} fits an image of {height} x {width}")));
    }
    let padded = c.e().pad(x, c.e().scalar(c.dtype(x), 0.0), &pads);
    let axis = |at: usize, place: i64| {
        let start = place * rates[at];
        SliceDim { start, limit: start + (n_windows[at] - 1) * steps[at] + 1, stride: steps[at] }
    };
    let whole = |n: i64| SliceDim { start: 0, limit: n, stride: 1 };
    let places = (0..sizes[0]).flat_map(|row| (0..sizes[1]).map(move |column| (row, column)));
    let pixels: Vec<InstrId> = places
        .map(|(row, column)| c.e().slice(padded, &[whole(n), axis(0, row), axis(1, column), whole(channels)]))
        .collect();
    c.one(c.e().concatenate(&pixels, 3))
}
