//! Gathers, scatters, one-hot encodings, buckets and matrix bands: ops with indices that are computed at run time.
//!
//! TensorFlow's CPU kernels refuse an index out of range; its XLA bridge clamps it (gathers) or skips it (scatters), as here.
//!
//! Source: `gather_op.cc`, `scatter_nd_op.cc`, `segment_reduction_ops.cc`, `reverse_sequence_op.cc`,
//! `one_hot_op.cc`, `matrix_band_part_op.cc`, `dynamic_stitch_op.cc` of `tf2xla/kernels`.

use super::super::Call;
use super::super::Value;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use crate::graph::Graph;
use crate::node::{Edge, Node};
use bf16scope_hlo::ops::{Comparison, GatherDims, ScatterDims};
use bf16scope_hlo::{BinaryOp, CompId, DType, InstrId, Literal, Metadata, Op, Shape, UnaryOp};

pub(super) const TABLE: Table = &[
    ("Gather", |c| {
        let (x, indices) = (c.array(0)?, c.array(1)?);
        c.gathered(x, indices, 0, 0)
    }),
    ("GatherV2", |c| {
        let (x, indices) = (c.array(0)?, c.array(1)?);
        let axis = c.int(2)?;
        let axis = c.axis(axis, c.dims(x).len())?;
        let n_batch = c.node.int("batch_dims").unwrap_or(0);
        let n_batch = if n_batch < 0 { n_batch + c.dims(indices).len() as i64 } else { n_batch };
        c.gathered(x, indices, axis, n_batch)
    }),
    ("ResourceGather", |c| {
        let (x, indices) = (c.array(0)?, c.array(1)?);
        let n_batch = c.node.int("batch_dims").unwrap_or(0);
        c.gathered(x, indices, n_batch, n_batch)
    }),
    ("GatherNd", gathered_nd),
    ("ResourceGatherNd", gathered_nd),
    ("ReverseSequence", reversed_sequences),
    ("ScatterNd", |c| {
        let (indices, updates) = (c.array(0)?, c.array(1)?);
        let dims = c.ints(2)?;
        c.check_dims(&dims)?;
        let zeros = c.e().full(c.dtype(updates), &dims, 0.0);
        c.one(c.scattered_nd(zeros, indices, updates, Some(BinaryOp::Add))?)
    }),
    ("TensorScatterAdd", |c| c.tensor_scattered(Some(BinaryOp::Add))),
    ("TensorScatterMax", |c| c.tensor_scattered(Some(BinaryOp::Maximum))),
    ("TensorScatterMin", |c| c.tensor_scattered(Some(BinaryOp::Minimum))),
    ("TensorScatterSub", |c| {
        let (x, indices, updates) = (c.array(0)?, c.array(1)?, c.array(2)?);
        c.one(c.scattered_nd(x, indices, c.e().neg(updates), Some(BinaryOp::Add))?)
    }),
    ("TensorScatterUpdate", |c| c.tensor_scattered(None)),
    ("SparseToDense", sparse_to_dense),
    ("UnsortedSegmentSum", |c| {
        let n = c.int(2)?;
        c.segments(n, BinaryOp::Add)
    }),
    ("UnsortedSegmentProd", |c| {
        let n = c.int(2)?;
        c.segments(n, BinaryOp::Multiply)
    }),
    ("UnsortedSegmentMax", |c| {
        let n = c.int(2)?;
        c.segments(n, BinaryOp::Maximum)
    }),
    ("UnsortedSegmentMin", |c| {
        let n = c.int(2)?;
        c.segments(n, BinaryOp::Minimum)
    }),
    ("SegmentSum", |c| {
        let n = c.n_segments()?;
        c.segments(n, BinaryOp::Add)
    }),
    ("SegmentProd", |c| {
        let n = c.n_segments()?;
        c.segments(n, BinaryOp::Multiply)
    }),
    ("SegmentMax", |c| c.segments_or_zero(BinaryOp::Maximum)),
    ("SegmentMin", |c| c.segments_or_zero(BinaryOp::Minimum)),
    ("SegmentMean", |c| c.segments_or_zero(BinaryOp::Add)),
    ("Unique", unique),
    ("OneHot", one_hot),
    ("Bucketize", bucketize),
    ("MatrixBandPart", |c| {
        let x = c.array(0)?;
        let (low, high) = (c.int(1)?, c.int(2)?);
        let dims = c.dims(x);
        let rank = dims.len() as i64;
        if rank < 2 {
            return Err(Problem::new(format!("its input has rank {rank}, expected 2 or more")));
        }
        let (row, column) = (c.e().iota(DType::S64, &dims, rank - 2), c.e().iota(DType::S64, &dims, rank - 1));
        let below = c.e().sub(row, column);
        let limit = |n: i64| if n < 0 { i64::from(i32::MAX) as f64 } else { n as f64 };
        let is_low = c.e().compare(Comparison::Le, below, c.like(below, limit(low)));
        let is_high = c.e().compare(Comparison::Ge, below, c.like(below, -limit(high)));
        let is_in = c.e().binary(BinaryOp::And, is_low, is_high);
        c.one(c.e().select(is_in, x, c.like(x, 0.0)))
    }),
    ("DynamicStitch", stitch),
    ("ParallelDynamicStitch", stitch),
    ("DynamicPartition", partition),
];

impl<'g> Call<'_, 'g> {
    /// A node that reads an output of this one though `is_allowed` does not hold for the output and the reader's op; this node
    /// itself if a function returns one.
    pub(super) fn reader_beyond(&self, is_allowed: impl Fn(usize, &str) -> bool) -> Option<&'g Node> {
        let (graph, node): (&'g Graph, &'g Node) = (self.lowering.graph, self.node);
        let bodies = graph.functions.values().map(|function| (&function.body, &function.returns[..]));
        let none: &[Edge] = &[];
        let mut bodies = [(&graph.body, none)].into_iter().chain(bodies);
        let place = bodies.find_map(|(body, returns)| {
            let idx = body.find(&node.name).filter(|idx| std::ptr::eq(&body.nodes[*idx], node))?;
            (!returns.iter().any(|edge| edge.node == idx)).then_some((body, idx))
        });
        let Some((body, idx)) = place else { return Some(node) };
        let is_stranger =
            |reader: &&Node| reader.inputs.iter().any(|edge| edge.node == idx && !is_allowed(edge.output, &reader.op));
        body.nodes.iter().find(is_stranger)
    }

    /// Slices of `x` at `indices` along `axis`; the first `n_batch` dims of both are batch dims.
    pub(super) fn gathered(&mut self, x: InstrId, indices: InstrId, axis: i64, n_batch: i64) -> Outputs {
        let (dims, index_dims) = (self.dims(x), self.dims(indices));
        let rank = index_dims.len() as i64;
        if n_batch < 0 || n_batch > rank || n_batch > axis || axis as usize >= dims.len() {
            return Err(Problem::new(format!(
                "its batch_dims are {n_batch}, its axis is {axis}, its indices have rank {rank}"
            )));
        }
        // Known indices into a known array become slices, which later rules can fold.
        let known = self.lowering.known(indices);
        if let (Some(known), true) = (known, self.lowering.known(x).is_some() && n_batch == 0) {
            let n = dims[axis as usize];
            let place = |value: &super::super::constant::Number| value.whole().map(|place| place.clamp(0, n - 1));
            if let (Some(places), true) = (known.values.iter().map(place).collect::<Option<Vec<i64>>>(), n > 0) {
                let rows: Vec<InstrId> = places.iter().map(|place| self.slice_axis(x, axis, *place, 1)).collect();
                let result: Vec<i64> = [&dims[..axis as usize], &index_dims[..], &dims[axis as usize + 1..]].concat();
                if !rows.is_empty() {
                    let joined = self.e().concatenate(&rows, axis);
                    return self.one(self.e().reshape(joined, &result));
                }
            }
        }
        let batch: Vec<i64> = (0..n_batch).collect();
        let n_outer = axis - n_batch;
        let n_looked = rank - n_batch;
        // The result's dims are batch dims, dims before the axis, dims of the indices, dims after the axis.
        let offset_dims =
            (n_batch..n_batch + n_outer).chain(axis + n_looked..dims.len() as i64 - 1 + n_looked).collect();
        let slice_sizes =
            (0..dims.len() as i64).map(|at| if at < n_batch || at == axis { 1 } else { dims[at as usize] }).collect();
        let gather = GatherDims {
            offset_dims,
            collapsed_slice_dims: vec![axis],
            start_index_map: vec![axis],
            operand_batching_dims: batch.clone(),
            start_indices_batching_dims: batch,
            index_vector_dim: rank,
            slice_sizes,
            ..GatherDims::default()
        };
        self.one(self.e().emit(Op::Gather(gather), &[x, indices], None))
    }

    /// Slices of `x` at index vectors.
    pub(super) fn gathered_at(&self, x: InstrId, indices: InstrId) -> Result<InstrId, Problem> {
        let (dims, index_dims) = (self.dims(x), self.dims(indices));
        let Some((n_indexed, outer)) = index_dims.split_last() else {
            return Err(Problem::new("its indices are a scalar, expected vectors"));
        };
        check_index_vector(*n_indexed, &dims)?;
        let n_indexed = *n_indexed as usize;
        let slice_sizes = (0..dims.len()).map(|axis| if axis < n_indexed { 1 } else { dims[axis] }).collect();
        let gather = GatherDims {
            offset_dims: (0..dims.len().saturating_sub(n_indexed)).map(|axis| (outer.len() + axis) as i64).collect(),
            collapsed_slice_dims: (0..n_indexed as i64).collect(),
            start_index_map: (0..n_indexed as i64).collect(),
            index_vector_dim: outer.len() as i64,
            slice_sizes,
            ..GatherDims::default()
        };
        Ok(self.e().emit(Op::Gather(gather), &[x, indices], None))
    }

    /// Rows of `updates` combined into `x` at scalar indices along `axis` 0; without an op they replace the rows.
    pub(super) fn scattered(
        &self,
        x: InstrId,
        indices: InstrId,
        updates: InstrId,
        axis: i64,
        op: Option<BinaryOp>,
    ) -> InstrId {
        let (rank, update_rank) = (self.dims(indices).len() as i64, self.dims(updates).len() as i64);
        let dims = ScatterDims {
            update_window_dims: (rank..update_rank).collect(),
            inserted_window_dims: vec![axis],
            scatter_dims_to_operand_dims: vec![axis],
            index_vector_dim: rank,
            ..ScatterDims::default()
        };
        let to_apply = self.combination(op, self.dtype(x));
        self.e().emit(Op::Scatter { dims, to_apply }, &[x, indices, updates], None)
    }

    /// The computation by which a scatter combines an element and its update: an op, or the update itself.
    fn combination(&self, op: Option<BinaryOp>, dtype: DType) -> CompId {
        if let Some(op) = op {
            return self.e().scalar_computation(op, dtype);
        }
        self.e().with_module_mut(|module| {
            module.made_once(&format!("second_{dtype}"), |module, comp| {
                for number in [0, 1] {
                    let shape = Shape::scalar(dtype);
                    module.append(comp, Op::parameter(number), Vec::new(), shape, Metadata::default());
                }
            })
        })
    }

    /// Rows of input 0 combined by the segment ids in input 1. A segment without rows has the neutral element; for maxima and
    /// minima this is the finite one, as in TensorFlow's kernels.
    fn segments(&mut self, n: i64, op: BinaryOp) -> Outputs {
        let (x, segments) = (self.array(0)?, self.array(1)?);
        let (dims, rank) = (self.dims(x), self.dims(segments).len());
        let rows: Vec<i64> = [&[n], &dims[rank.min(dims.len())..]].concat();
        self.check_dims(&rows)?;
        let dtype = self.dtype(x);
        let empty = match op {
            BinaryOp::Add => self.e().scalar(dtype, 0.0),
            BinaryOp::Multiply => self.e().scalar(dtype, 1.0),
            op => self.least(dtype, op == BinaryOp::Minimum)?,
        };
        let start = self.e().broadcast(empty, &[], &rows);
        self.one(self.scattered(start, segments, x, 0, Some(op)))
    }

    /// Maxima, minima or, for sums, means of segments that are known; a segment without rows has 0.
    fn segments_or_zero(&mut self, op: BinaryOp) -> Outputs {
        let n = self.n_segments()?;
        let combined = self.segments(n, op)?;
        let Some(&Value::Array(combined)) = combined.first() else { return Ok(combined) };
        let (segments, dtype) = (self.array(1)?, self.dtype(combined));
        let (wide, dims) = (self.sums_in(dtype), self.dims(combined));
        let ones = self.e().full(wide, &self.dims(segments), 1.0);
        let counts = self.scattered(self.e().full(wide, &[n], 0.0), segments, ones, 0, Some(BinaryOp::Add));
        let counts = self.along(counts, 0, &dims);
        let is_empty = self.e().compare(Comparison::Eq, counts, self.like(counts, 0.0));
        let result = match op {
            BinaryOp::Add => self.e().convert(self.e().div(self.e().convert(combined, wide), counts), dtype),
            _ => combined,
        };
        self.one(self.e().select(is_empty, self.like(result, 0.0), result))
    }

    /// The least finite number of a dtype, or the largest.
    fn least(&self, dtype: DType, is_largest: bool) -> Result<InstrId, Problem> {
        let sign = |value: f64| if is_largest { value } else { -value };
        let value = match dtype {
            DType::F32 => sign(f64::from(f32::MAX)),
            DType::F64 => sign(f64::MAX),
            DType::BF16 => sign(f64::from(half::bf16::MAX.to_f32())),
            DType::F16 => sign(f64::from(half::f16::MAX.to_f32())),
            DType::S32 => f64::from(if is_largest { i32::MAX } else { i32::MIN }),
            DType::S64 if !is_largest => i64::MIN as f64,
            other => return Err(Problem::new(format!("it compares {other}, expected floats or s32"))),
        };
        Ok(self.e().scalar(dtype, value))
    }

    /// The number of segments, if the segment ids are known.
    fn n_segments(&mut self) -> Result<i64, Problem> {
        let segments = self.array(1)?;
        let known = self.lowering.known(segments).ok_or_else(|| {
            Problem::new("how many segments it has is known only when the program runs")
                .with_help("tf.math.unsorted_segment_sum with `num_segments`, as XLA asks")
        })?;
        let last = known.values.iter().filter_map(|value| value.whole()).max().unwrap_or(-1);
        Ok(last.saturating_add(1))
    }

    fn tensor_scattered(&mut self, op: Option<BinaryOp>) -> Outputs {
        let (x, indices, updates) = (self.array(0)?, self.array(1)?, self.array(2)?);
        self.one(self.scattered_nd(x, indices, updates, op)?)
    }

    /// Slices of `updates` combined into `x` at index vectors; without an op they replace the slices.
    pub(super) fn scattered_nd(
        &self,
        x: InstrId,
        indices: InstrId,
        updates: InstrId,
        op: Option<BinaryOp>,
    ) -> Result<InstrId, Problem> {
        let index_dims = self.dims(indices);
        let Some((n_indexed, outer)) = index_dims.split_last() else {
            return Err(Problem::new("its indices are a scalar, expected vectors"));
        };
        check_index_vector(*n_indexed, &self.dims(x))?;
        let update_rank = self.dims(updates).len();
        let dims = ScatterDims {
            update_window_dims: (outer.len()..update_rank).map(|axis| axis as i64).collect(),
            inserted_window_dims: (0..*n_indexed).collect(),
            scatter_dims_to_operand_dims: (0..*n_indexed).collect(),
            index_vector_dim: outer.len() as i64,
            ..ScatterDims::default()
        };
        let to_apply = self.combination(op, self.dtype(x));
        Ok(self.e().emit(Op::Scatter { dims, to_apply }, &[x, indices, updates], None))
    }
}

/// Checks that index vectors have at most as many numbers as an array has axes.
fn check_index_vector(n: i64, dims: &[i64]) -> Result<(), Problem> {
    match (0..=dims.len() as i64).contains(&n) {
        true => Ok(()),
        false => Err(Problem::new(format!("its index vectors have {n} numbers, and its array has dims {dims:?}"))),
    }
}

fn gathered_nd(c: &mut Call<'_, '_>) -> Outputs {
    if c.node.text("bad_indices_policy") == "IGNORE" {
        let problem = Problem::new("its `bad_indices_policy` gives 0 for an index out of range, where HLO clamps it");
        return Err(problem.with_help("leave the policy out, and choose by tf.where"));
    }
    let (x, indices) = (c.array(0)?, c.array(1)?);
    c.one(c.gathered_at(x, indices)?)
}

/// The first elements of each sequence in reverse order, as many as its length says.
fn reversed_sequences(c: &mut Call<'_, '_>) -> Outputs {
    let (x, lengths) = (c.array(0)?, c.array(1)?);
    let rank = c.dims(x).len();
    let axis = |name: &str| c.axis(c.node.int(name).unwrap_or(0), rank);
    let (batch, sequence) = (axis("batch_dim")?, axis("seq_dim")?);
    if batch == sequence {
        return Err(Problem::new(format!("axis {batch} is that of its examples and that of its sequences")));
    }
    let rest = (0..rank as i64).filter(|axis| *axis != batch && *axis != sequence);
    let order: Vec<i64> = [batch, sequence].into_iter().chain(rest).collect();
    let moved = c.e().transpose(x, &order);
    let places = {
        let (e, dims) = (c.e(), c.dims(moved)[..2].to_vec());
        let (place, length) = (e.iota(DType::S32, &dims, 1), e.convert(lengths, DType::S32));
        let length = e.broadcast(length, &[0], &dims);
        let mirrored = e.add_scalar(e.sub(length, place), -1.0);
        e.select(e.compare(Comparison::Lt, place, length), mirrored, place)
    };
    let reversed = c.gathered(moved, places, 1, 1)?;
    let Some(Value::Array(reversed)) = reversed.first() else { return Ok(reversed) };
    let mut back = vec![0; rank];
    order.iter().enumerate().for_each(|(at, axis)| back[*axis as usize] = at as i64);
    c.one(c.e().transpose(*reversed, &back))
}

/// An array of a default value with some values at indices.
fn sparse_to_dense(c: &mut Call<'_, '_>) -> Outputs {
    let (indices, values, default) = (c.array(0)?, c.array(2)?, c.array(3)?);
    let dims = c.ints(1)?;
    c.check_dims(&dims)?;
    let index_dims = match c.dims(indices)[..] {
        [] => vec![1, 1],
        [n] => vec![n, 1],
        [n, rank] => vec![n, rank],
        _ => return Err(Problem::new(format!("its indices have dims {:?}, expected rows", c.dims(indices)))),
    };
    let values = c.broadcast_to(values, &index_dims[..1])?;
    let (indices, start) = (c.e().reshape(indices, &index_dims), c.e().broadcast(default, &[], &dims));
    c.one(c.scattered_nd(start, indices, values, None)?)
}

/// The number of boundaries that each element has reached.
fn bucketize(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.array(0)?;
    let boundaries: Vec<f32> = c.node.list("boundaries").map(|list| list.f.clone()).unwrap_or_default();
    let dims = c.dims(x);
    let wide = [&dims[..], &[boundaries.len() as i64]].concat();
    c.check_dims(&wide)?;
    let (axes, last): (Vec<i64>, i64) = ((0..dims.len() as i64).collect(), dims.len() as i64);
    let e = c.e();
    let boundaries = e.constant(Literal::from_elements([boundaries.len() as i64], &boundaries));
    // As in C++: the wider float of both.
    let dtype = if c.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 };
    let (boundaries, x) = (e.convert(boundaries, dtype), e.broadcast(e.convert(x, dtype), &axes, &wide));
    let is_below = e.compare(Comparison::Lt, x, c.along(boundaries, last, &wide));
    c.one(e.reduce_sum(e.convert(e.unary(UnaryOp::Not, is_below), DType::S32), &[last]))
}

fn one_hot(c: &mut Call<'_, '_>) -> Outputs {
    let indices = c.array(0)?;
    let depth = c.int(1)?;
    let (on, off) = (c.array(2)?, c.array(3)?);
    let mut dims = c.dims(indices);
    let axis = match c.node.int("axis").unwrap_or(-1) {
        -1 => dims.len() as i64,
        axis => c.axis(axis, dims.len() + 1)?,
    };
    let places: Vec<i64> = (0..dims.len() as i64).map(|at| if at < axis { at } else { at + 1 }).collect();
    dims.insert(axis as usize, depth);
    c.check_dims(&dims)?;
    // Integers of 8 bits do not count to `depth`.
    let indices = if c.dtype(indices).bits() < 32 { c.e().convert(indices, DType::S32) } else { indices };
    let classes = c.e().iota(c.dtype(indices), &dims, axis);
    let is_it = c.e().compare(Comparison::Eq, classes, c.e().broadcast(indices, &places, &dims));
    let [on, off] = [on, off].map(|value| c.e().broadcast(value, &[], &dims));
    c.one(c.e().select(is_it, on, off))
}

/// Joins rows of several arrays into a single array, each at its known index.
fn stitch(c: &mut Call<'_, '_>) -> Outputs {
    let n = c.inputs.len() / 2;
    let mut rows: Vec<Option<InstrId>> = Vec::new();
    for number in 0..n {
        let places = c.ints(number)?;
        let (indices, data) = (c.array(number)?, c.array(n + number)?);
        let rank = c.dims(indices).len();
        let row_dims = c.dims(data)[rank.min(c.dims(data).len())..].to_vec();
        let flat = c.e().reshape(data, &[&[places.len() as i64], &row_dims[..]].concat());
        for (at, &place) in places.iter().enumerate() {
            let place = usize::try_from(place).ok().filter(|place| *place < 1 << 16);
            let place = place.ok_or_else(|| Problem::new(format!("one of its places is {:?}", places[at])))?;
            rows.resize(rows.len().max(place + 1), None);
            rows[place] = Some(c.slice_axis(flat, 0, at as i64, 1));
        }
    }
    let rows = rows.into_iter().collect::<Option<Vec<InstrId>>>();
    let rows = rows.filter(|rows| !rows.is_empty()).ok_or_else(|| Problem::new("one of its places has no row"))?;
    c.one(c.e().concatenate(&rows, 0))
}

/// The rows of each part, where it is known which part a row is in: else how many rows a part has is not known.
fn partition(c: &mut Call<'_, '_>) -> Outputs {
    const MAX_PARTS: i64 = 1 << 16;
    let (x, parts) = (c.array(0)?, c.array(1)?);
    let known = c.lowering.known(parts).ok_or_else(|| {
        Problem::new("how many rows a part has is known only when it runs")
            .with_help("multiply by a mask of each part, or make `partitions` a constant in the script")
    })?;
    let (dims, part_dims) = (c.dims(x), c.dims(parts));
    let Some(row_dims) = dims.strip_prefix(&part_dims[..]) else {
        return Err(Problem::new(format!("its partitions have dims {part_dims:?}, and its data {dims:?}")));
    };
    let n = c.node.int("num_partitions").filter(|n| (1..=MAX_PARTS).contains(n));
    let n = n.ok_or_else(|| Problem::new(format!("its `num_partitions` is not between 1 and {MAX_PARTS}")))?;
    let numbers = known.values.iter().map(|value| value.whole().filter(|part| (0..n).contains(part)));
    let numbers = numbers.collect::<Option<Vec<i64>>>();
    let numbers = numbers.ok_or_else(|| Problem::new(format!("a partition number is not between 0 and {}", n - 1)))?;
    let flat = c.e().reshape(x, &[&[numbers.len() as i64], row_dims].concat());
    let mut outputs = Vec::new();
    for part in 0..n {
        let places: Vec<i64> = (0..numbers.len()).filter(|at| numbers[*at] == part).map(|at| at as i64).collect();
        if places.is_empty() {
            outputs.push(Value::Array(c.slice_axis(flat, 0, 0, 0)));
            continue;
        }
        let indices = c.ints_constant(&places, &[places.len() as i64], DType::S32);
        outputs.extend(c.gathered(flat, indices, 0, 0)?);
    }
    Ok(outputs)
}

/// Unique indices, for optimizers that then sum equal rows of a table's gradient. The number of unique indices would be known only
/// at run time, so all places are kept: a repeated index becomes one outside of the table, with a row of zeros. Readers that
/// would notice the difference are refused.
fn unique(c: &mut Call<'_, '_>) -> Outputs {
    let is_update = |op: &str| op.contains("SparseApply") || op.contains("Scatter") || op.contains("Gather");
    let stranger = c.reader_beyond(|output, op| match output {
        0 => op == "Shape" || is_update(op),
        _ => op == "UnsortedSegmentSum",
    });
    if let Some(reader) = stranger {
        let message = format!("how many there are is known only when the program runs, and `{}` reads it", reader.name);
        return Err(Problem::new(message)
            .with_help("on a TPU, sum with tf.math.unsorted_segment_sum into a fixed number of rows"));
    }
    let x = c.array(0)?;
    let [n] = c.dims(x)[..] else { return Err(Problem::new("its indices are no vector")) };
    let e = c.e();
    let square = [n, n];
    let (row, column) = (e.broadcast(x, &[0], &square), e.broadcast(x, &[1], &square));
    let place = e.iota(DType::S32, &square, 1);
    let is_equal = e.compare(Comparison::Eq, row, column);
    let candidates = e.select(is_equal, place, e.full(DType::S32, &square, n as f64));
    let first = e.reduce(BinaryOp::Minimum, candidates, &[1]);
    let is_first = e.compare(Comparison::Eq, first, e.iota(DType::S32, &[n], 0));
    let indices = e.select(is_first, x, e.full_like(x, f64::from(i32::MAX)));
    let dtype = c.node.dtype("out_idx").unwrap_or(DType::S32);
    Ok(vec![Value::Array(indices), Value::Array(c.e().convert(first, dtype))])
}
