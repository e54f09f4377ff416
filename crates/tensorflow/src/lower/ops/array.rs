//! Constants, concatenation, splitting, slicing, padding and stacking of arrays.
//!
//! Source: `strided_slice_op.cc`, `slice_op.cc`, `pad_op.cc`, `mirror_pad_op.cc`, `concat_op.cc`, `split_op.cc`, `pack_op.cc`,
//! `unpack_op.cc`, `reverse_op.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use crate::tensor::{self, Constant};
use bf16scope_hlo::ops::{Comparison, PadDim, SliceDim};
use bf16scope_hlo::{DType, InstrId, Op};

pub(super) const TABLE: Table = &[
    ("Const", constant),
    ("Concat", |c| c.concatenated(0, 1)),
    ("ConcatV2", |c| {
        let last = c.inputs.len().saturating_sub(1);
        c.concatenated(last, 0)
    }),
    ("ConcatOffset", |c| {
        let axis = c.int(0)?;
        let mut at = 0;
        let mut out = Vec::new();
        for number in 1..c.inputs.len() {
            let dims = c.ints(number)?;
            let axis = c.axis(axis, dims.len())? as usize;
            let mut offset = vec![0; dims.len()];
            offset[axis] = at;
            at = i64::saturating_add(at, dims[axis]);
            let dims = c.array(number)?;
            out.push(Value::Array(c.ints_constant(&offset, &[offset.len() as i64], c.dtype(dims))));
        }
        Ok(out)
    }),
    ("Split", |c| {
        let axis = c.int(0)?;
        let x = c.array(1)?;
        let axis = c.axis(axis, c.dims(x).len())?;
        let n = c.node.int("num_split").unwrap_or(0);
        let size = c.dims(x)[axis as usize];
        if !(1..=MAX_PARTS).contains(&n) || size % n != 0 {
            return Err(Problem::new(format!("{size} elements are split into {n} parts")));
        }
        c.parts(x, axis, &vec![size / n; n as usize])
    }),
    ("SplitV", |c| {
        let x = c.array(0)?;
        let (mut sizes, axis) = (c.ints(1)?, c.int(2)?);
        let axis = c.axis(axis, c.dims(x).len())?;
        let n = c.dims(x)[axis as usize];
        if let Some(open) = sizes.iter().position(|size| *size == -1) {
            sizes[open] = n.saturating_sub(total(sizes.iter().filter(|size| **size != -1)));
        }
        if total(sizes.iter()) != n || sizes.iter().any(|size| *size < 0) {
            return Err(Problem::new(format!("{n} elements are split into parts of {sizes:?}")));
        }
        c.parts(x, axis, &sizes)
    }),
    ("Pack", |c| {
        let n = c.inputs.len();
        let all = c.arrays(0, n)?;
        let rank = all.first().map_or(0, |x| c.dims(*x).len());
        let axis = c.axis(c.node.int("axis").unwrap_or(0), rank + 1)?;
        let stacked: Vec<InstrId> = all
            .into_iter()
            .map(|x| {
                let mut dims = c.dims(x);
                dims.insert((axis as usize).min(dims.len()), 1);
                c.e().reshape(x, &dims)
            })
            .collect();
        c.one(c.e().concatenate(&stacked, axis))
    }),
    ("Unpack", |c| {
        let x = c.array(0)?;
        let mut dims = c.dims(x);
        let axis = c.axis(c.node.int("axis").unwrap_or(0), dims.len())?;
        let n = dims.remove(axis as usize);
        if n > MAX_PARTS {
            return Err(Problem::new(format!("it has {n} outputs, expected at most {MAX_PARTS}")));
        }
        Ok((0..n).map(|at| Value::Array(c.e().reshape(c.slice_axis(x, axis, at, 1), &dims))).collect())
    }),
    ("Slice", |c| {
        let x = c.array(0)?;
        let (dims, starts, sizes) = (c.dims(x), c.known_or_none(1)?, c.ints(2)?);
        match starts {
            Some(starts) if starts.len() == dims.len() && sizes.len() == dims.len() => {
                let end = |axis: usize| starts[axis].saturating_add(sizes[axis]);
                let limit = |axis: usize| if sizes[axis] == -1 { dims[axis] } else { end(axis) };
                let limits: Vec<i64> = (0..dims.len()).map(limit).collect();
                c.one(c.slice(x, &starts, &limits))
            }
            Some(starts) => Err(Problem::new(format!("it begins at {starts:?} of an array of rank {}", dims.len()))),
            None => {
                let start = c.array(1)?;
                let starts: Vec<InstrId> =
                    (0..dims.len() as i64).map(|axis| c.e().reshape(c.slice_axis(start, 0, axis, 1), &[])).collect();
                let operands = [vec![x], starts].concat();
                c.one(c.e().emit(Op::DynamicSlice { slice_sizes: sizes }, &operands, None))
            }
        }
    }),
    ("StridedSlice", |c| {
        let x = c.array(0)?;
        let range = c.ranges(&c.dims(x), 1)?;
        let picked = c.picked(x, &range);
        let sliced = c.strided(picked, &range);
        c.one(c.e().reshape(sliced, &range.result))
    }),
    ("StridedSliceGrad", |c| {
        let dims = c.ints(0)?;
        let range = c.ranges(&dims, 1)?;
        let dy = c.array(4)?;
        let mut x = c.e().reshape(dy, &range.sizes());
        let reversed: Vec<i64> = range.reversed();
        if !reversed.is_empty() {
            x = c.e().reverse(x, &reversed);
        }
        let pads: Vec<PadDim> = range
            .slices
            .iter()
            .zip(&range.dims)
            .map(|(slice, dim)| {
                let n = slice.count();
                let low = slice.lowest();
                let covered = if n == 0 { 0 } else { (n - 1) * slice.step.abs() + 1 };
                PadDim { low, high: dim - low - covered, interior: slice.step.abs() - 1 }
            })
            .collect();
        let zero = c.e().scalar(c.dtype(dy), 0.0);
        let padded = c.e().pad(x, zero, &pads);
        if range.picked.is_empty() {
            return c.one(padded);
        }
        let operands = [vec![c.e().full(c.dtype(dy), &dims, 0.0), padded], c.starts(&range)].concat();
        c.one(c.e().emit(Op::DynamicUpdateSlice, &operands, None))
    }),
    ("Pad", |c| {
        let x = c.array(0)?;
        let zero = c.e().scalar(c.dtype(x), 0.0);
        c.padded(x, zero)
    }),
    ("PadV2", |c| {
        let (x, value) = (c.array(0)?, c.array(2)?);
        c.padded(x, value)
    }),
    ("MirrorPad", mirrored),
    ("MirrorPadGrad", mirrored_back),
    ("Reverse", |c| {
        let x = c.array(0)?;
        let flags = c.ints(1)?;
        let axes: Vec<i64> = (0..flags.len() as i64).filter(|axis| flags[*axis as usize] != 0).collect();
        c.one(if axes.is_empty() { x } else { c.e().reverse(x, &axes) })
    }),
    ("ReverseV2", |c| {
        let x = c.array(0)?;
        let axes = c.ints(1)?;
        let axes = c.axes(&axes, c.dims(x).len())?;
        c.one(if axes.is_empty() { x } else { c.e().reverse(x, &axes) })
    }),
    ("Roll", |c| {
        let mut x = c.array(0)?;
        let (shifts, axes) = (c.ints(1)?, c.ints(2)?);
        for (shift, axis) in shifts.iter().zip(axes) {
            let axis = c.axis(axis, c.dims(x).len())?;
            let n = c.dims(x)[axis as usize];
            let shift = if n == 0 { 0 } else { shift.rem_euclid(n) };
            let (end, start) = (c.slice_axis(x, axis, n - shift, shift), c.slice_axis(x, axis, 0, n - shift));
            x = c.e().concatenate(&[end, start], axis);
        }
        c.one(x)
    }),
];

/// Outputs of a node at most.
const MAX_PARTS: i64 = 1 << 16;

/// A sum of sizes, of whatever a graph holds.
fn total<'a>(sizes: impl Iterator<Item = &'a i64>) -> i64 {
    sizes.fold(0i64, |sum, size| sum.saturating_add(*size))
}

fn constant(c: &mut Call<'_, '_>) -> Outputs {
    let Some(value) = c.node.tensor("value") else { return Err(Problem::new("its attribute `value` is missing")) };
    if crate::dtypes::hlo(value.dtype).is_none() {
        // Strings are the host's.
        return Ok(vec![Value::Nothing]);
    }
    match tensor::constant(value)? {
        Constant::Dense(literal) => c.one(c.e().constant(literal)),
        Constant::Splat(scalar, dims) => {
            let scalar = c.e().constant(scalar);
            c.one(if dims.is_empty() { scalar } else { c.e().broadcast(scalar, &[], &dims) })
        }
    }
}

/// The slice of an axis of size `dim` between a begin and an end; where a mask is set, the axis' own.
fn axis_range(
    dim: i64,
    step: i64,
    [begin, end]: [Option<i64>; 2],
    [begins, ends]: [bool; 2],
) -> Result<AxisRange, Problem> {
    let unknown = || {
        Problem::new("where it begins or ends is computed when the program runs, and HLO needs it before")
            .with_help("take one element, or tf.slice with a size that is a constant")
    };
    let (least, most) = if step > 0 { (0, dim) } else { (-1, dim - 1) };
    let bound = |place: i64| (if place < 0 { place.saturating_add(dim) } else { place }).clamp(least, most);
    let start = match (begins, step > 0) {
        (false, _) => bound(begin.ok_or_else(unknown)?),
        (true, true) => 0,
        (true, false) => dim - 1,
    };
    let end = match (ends, step > 0) {
        (false, _) => bound(end.ok_or_else(unknown)?),
        (true, true) => dim,
        (true, false) => -1,
    };
    Ok(AxisRange { start, end, step })
}

/// A mirrored padding's low and high padding of each axis, and the number of elements at an edge that are not repeated.
fn mirror_pads(c: &mut Call<'_, '_>) -> Result<(InstrId, Vec<i64>, i64), Problem> {
    let x = c.array(0)?;
    let pads = c.ints(1)?;
    let skip = match c.node.text("mode") {
        "REFLECT" => 1,
        "SYMMETRIC" => 0,
        other => return Err(Problem::new(format!("its mode is `{other}`, expected REFLECT or SYMMETRIC"))),
    };
    match pads.len() == 2 * c.dims(x).len() && pads.iter().all(|pad| (0..1 << 32).contains(pad)) {
        true => Ok((x, pads, skip)),
        false => Err(Problem::new(format!("an array of dims {:?} is mirrored by {pads:?}", c.dims(x)))),
    }
}

fn mirrored(c: &mut Call<'_, '_>) -> Outputs {
    let (mut x, pads, skip) = mirror_pads(c)?;
    for (axis, (pad, n)) in pads.chunks(2).zip(c.dims(x)).enumerate() {
        let axis = axis as i64;
        if pad.iter().any(|pad| *pad > n - skip) {
            return Err(Problem::new(format!("{n} elements are mirrored by {pad:?}")));
        }
        let low = c.e().reverse(c.slice_axis(x, axis, skip, pad[0]), &[axis]);
        let high = c.e().reverse(c.slice_axis(x, axis, n - skip - pad[1], pad[1]), &[axis]);
        x = c.e().concatenate(&[low, x, high], axis);
    }
    c.one(x)
}

/// The gradient of a mirrored padding: each edge is added to the elements that it repeats.
fn mirrored_back(c: &mut Call<'_, '_>) -> Outputs {
    let (mut x, pads, skip) = mirror_pads(c)?;
    let (zero, dims) = (c.e().scalar(c.dtype(x), 0.0), c.dims(x));
    for (axis, pad) in pads.chunks(2).enumerate().filter(|(_, pad)| pad.iter().any(|pad| *pad != 0)) {
        if c.e().error().is_some() {
            break;
        }
        let n = dims[axis] - pad[0] - pad[1];
        if pad.iter().any(|pad| *pad > n - skip) {
            return Err(Problem::new(format!("{n} elements are mirrored by {pad:?}")));
        }
        let at = axis as i64;
        let edge = |start: i64, n_edge: i64, low: i64| {
            let mut place = vec![PadDim { low: 0, high: 0, interior: 0 }; dims.len()];
            place[axis] = PadDim { low, high: n - low - n_edge, interior: 0 };
            let reversed = c.e().reverse(c.slice_axis(x, at, start, n_edge), &[at]);
            c.e().pad(reversed, zero, &place)
        };
        let edges = c.e().add(edge(0, pad[0], skip), edge(pad[0] + n, pad[1], n - skip - pad[1]));
        x = c.e().add(c.slice_axis(x, at, pad[0], n), edges);
    }
    c.one(x)
}

/// A slice of one axis, with a step that may be negative.
#[derive(Clone, Copy, Debug)]
struct AxisRange {
    start: i64,
    end: i64,
    step: i64,
}

impl AxisRange {
    fn count(self) -> i64 {
        let distance = if self.step > 0 { self.end - self.start } else { self.start - self.end };
        if distance <= 0 { 0 } else { (distance - 1) / self.step.abs() + 1 }
    }

    /// The lowest index that it takes.
    fn lowest(self) -> i64 {
        match self.count() {
            0 => 0,
            _ if self.step > 0 => self.start,
            n => self.start + (n - 1) * self.step,
        }
    }
}

/// A strided slice: its range on each axis, and the dims of its result.
struct Ranges {
    slices: Vec<AxisRange>,
    result: Vec<i64>,
    /// Axes on which a single element is taken, with its index computed at run time.
    picked: Vec<(usize, InstrId)>,
    /// The array's dims, with 1 for the axes of `picked`.
    dims: Vec<i64>,
}

impl Ranges {
    fn sizes(&self) -> Vec<i64> {
        self.slices.iter().map(|slice| slice.count()).collect()
    }

    fn reversed(&self) -> Vec<i64> {
        (0..self.slices.len() as i64).filter(|axis| self.slices[*axis as usize].step < 0).collect()
    }
}

impl Call<'_, '_> {
    fn known_or_none(&mut self, number: usize) -> Result<Option<Vec<i64>>, Problem> {
        let id = self.array(number)?;
        Ok(self.lowering.known(id).and_then(|known| known.values.iter().map(|value| value.whole()).collect()))
    }

    fn concatenated(&mut self, axis: usize, first: usize) -> Outputs {
        let n = self.inputs.len().saturating_sub(1);
        let axis = self.int(axis)?;
        let all = self.arrays(first, n)?;
        let Some(one) = all.first() else { return Err(Problem::new("it joins no arrays")) };
        let axis = self.axis(axis, self.dims(*one).len())?;
        self.one(match all[..] {
            [one] => one,
            _ => self.e().concatenate(&all, axis),
        })
    }

    fn parts(&self, x: InstrId, axis: i64, sizes: &[i64]) -> Outputs {
        let mut at = 0;
        let part = |size: &i64| {
            at += size;
            Value::Array(self.slice_axis(x, axis, at - size, *size))
        };
        Ok(sizes.iter().map(part).collect())
    }

    fn padded(&mut self, x: InstrId, value: InstrId) -> Outputs {
        let pads = self.ints(1)?;
        let dims: Vec<PadDim> = pads
            .chunks(2)
            .map(|pad| PadDim { low: pad[0], high: pad.get(1).copied().unwrap_or(0), interior: 0 })
            .collect();
        if pads.iter().any(|pad| *pad < 0) {
            return Err(Problem::new(format!("it pads by {pads:?}, expected 0 or more")));
        }
        self.one(self.e().pad(x, value, &dims))
    }

    /// The strided slice of an array of these dims that inputs `first`, … (begin, end, strides) and the masks describe.
    fn ranges(&mut self, dims: &[i64], first: usize) -> Result<Ranges, Problem> {
        let (begin, end, steps) = (self.elements(first)?, self.elements(first + 1)?, self.ints(first + 2)?);
        let places = self.array(first)?;
        let mut picked = Vec::new();
        if end.len() != begin.len() || steps.len() != begin.len() {
            return Err(Problem::new("its begin, end and strides differ in length"));
        }
        let node = self.node;
        let has = |mask: &str, at: usize| node.int(mask).unwrap_or(0) >> at.min(62) & 1 == 1;
        let n_new = (0..begin.len()).filter(|at| has("new_axis_mask", *at) && !has("ellipsis_mask", *at)).count();
        let n_ellipses = (0..begin.len()).filter(|at| has("ellipsis_mask", *at)).count();
        if n_ellipses > 1 {
            return Err(Problem::new(format!("it has {n_ellipses} ellipses, expected at most 1")));
        }
        let has_ellipsis = n_ellipses == 1;
        let n_named = begin.len() - n_new - usize::from(has_ellipsis);
        let n_rest = dims
            .len()
            .checked_sub(n_named)
            .ok_or_else(|| Problem::new(format!("it slices {n_named} axes of an array of rank {}", dims.len())))?;
        let (mut slices, mut result) = (Vec::new(), Vec::new());
        let whole = |slices: &mut Vec<AxisRange>, result: &mut Vec<i64>, n: usize| {
            for _ in 0..n {
                let dim = dims[slices.len()];
                slices.push(AxisRange { start: 0, end: dim, step: 1 });
                result.push(dim);
            }
        };
        for at in 0..begin.len() {
            if has("ellipsis_mask", at) {
                whole(&mut slices, &mut result, n_rest);
            } else if has("new_axis_mask", at) {
                result.push(1);
            } else {
                let dim = dims[slices.len()];
                let step = steps[at];
                if step == 0 || step == i64::MIN {
                    return Err(Problem::new(format!("one of its strides is {step}")));
                }
                let from_start = |place: i64| if place < 0 { place.saturating_add(dim) } else { place };
                if has("shrink_axis_mask", at) {
                    let Some(begin) = begin[at] else {
                        picked.push((slices.len(), self.picked_place(places, at, dim)));
                        slices.push(AxisRange { start: 0, end: 1, step: 1 });
                        continue;
                    };
                    let start = from_start(begin);
                    if !(0..dim).contains(&start) {
                        return Err(Problem::new(format!("element {begin} is none of {dim}")));
                    }
                    slices.push(AxisRange { start, end: start + 1, step: 1 });
                    continue;
                }
                let masks = [has("begin_mask", at), has("end_mask", at)];
                let slice = axis_range(dim, step, [begin[at], end[at]], masks)?;
                result.push(slice.count());
                slices.push(slice);
            }
        }
        if !has_ellipsis {
            whole(&mut slices, &mut result, n_rest);
        }
        let is_picked = |axis: &usize| picked.iter().any(|(at, _)| at == axis);
        let dims = (0..dims.len()).map(|axis| if is_picked(&axis) { 1 } else { dims[axis] }).collect();
        Ok(Ranges { slices, result, picked, dims })
    }

    /// The elements of a vector; `None` for each that is not known.
    fn elements(&mut self, number: usize) -> Result<Vec<Option<i64>>, Problem> {
        let id = self.array(number)?;
        let n = self.dims(id).iter().product::<i64>().clamp(0, 64) as usize;
        let one = |this: &Self, id: InstrId| this.lowering.known(id);
        if let Some(known) = one(self, id) {
            return Ok(known.values.iter().map(|value| value.whole()).collect());
        }
        // A concatenation of known and unknown parts.
        let parts = self.e().with_module(|module| {
            let instr = module.comp(self.e().comp()).instr(id);
            matches!(instr.op, Op::Concatenate { .. }).then(|| instr.operands.clone())
        });
        let mut elements = Vec::new();
        for part in parts.unwrap_or_else(|| vec![id]) {
            let n = self.dims(part).iter().product::<i64>().clamp(0, 64) as usize;
            match one(self, part) {
                Some(known) => elements.extend(known.values.iter().map(|value| value.whole())),
                None => elements.extend(std::iter::repeat_n(None, n)),
            }
        }
        elements.resize(n, None);
        Ok(elements)
    }

    /// Element `at` of `places` as an index on an axis of size `dim`; a negative one counts from the end.
    fn picked_place(&self, places: InstrId, at: usize, dim: i64) -> InstrId {
        let place = self.e().reshape(self.slice_axis(places, 0, at as i64, 1), &[]);
        let from_end = self.e().add_scalar(place, dim as f64);
        let is_negative = self.e().compare(Comparison::Lt, place, self.like(place, 0.0));
        self.e().select(is_negative, from_end, place)
    }

    /// The start indices of a dynamic slice at the picked elements.
    fn starts(&self, ranges: &Ranges) -> Vec<InstrId> {
        let dtype = ranges.picked.first().map_or(DType::S32, |(_, place)| self.dtype(*place));
        let zero = self.e().scalar(dtype, 0.0);
        let place = |axis: usize| ranges.picked.iter().find(|(at, _)| *at == axis).map_or(zero, |(_, place)| *place);
        (0..ranges.dims.len()).map(place).collect()
    }

    /// The dynamic slice of an array at the picked elements.
    fn picked(&self, x: InstrId, ranges: &Ranges) -> InstrId {
        if ranges.picked.is_empty() {
            return x;
        }
        let operands = [vec![x], self.starts(ranges)].concat();
        self.e().emit(Op::DynamicSlice { slice_sizes: ranges.dims.clone() }, &operands, None)
    }

    fn strided(&self, x: InstrId, ranges: &Ranges) -> InstrId {
        let slices: Vec<SliceDim> = ranges
            .slices
            .iter()
            .map(|slice| match slice.count() {
                0 => SliceDim { start: 0, limit: 0, stride: 1 },
                n => {
                    let (low, step) = (slice.lowest(), slice.step.abs());
                    SliceDim { start: low, limit: low + (n - 1) * step + 1, stride: step }
                }
            })
            .collect();
        let sliced = self.e().slice(x, &slices);
        match ranges.reversed() {
            axes if axes.is_empty() => sliced,
            axes => self.e().reverse(sliced, &axes),
        }
    }
}
