//! Replicas, which run a program at the same time on parts of a batch, and the collectives between them.
//!
//! [`Graph::for_replicas`] sets the number of replicas; a program of one device has no collectives. Sharded state
//! ([`VariableShard`]) saves memory on each replica: variables that train and the optimizer's slots are sharded over
//! all replicas, and the network's reads gather them.
//!
//! Source: Xu et al. 2020, "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training".

use super::{Graph, Tensor, VariableInfo};
use bf16scope_hlo::ops::{AllReduce, BinaryOp, Opaque, PadDim, ReplicaGroups, SliceDim};
use bf16scope_hlo::{DType, Emitter, InstrId, Op, POISON, Shape};
use std::num::NonZeroU32;

/// The number of replicas of a program, and what they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The number of replicas.
    pub n: NonZeroU32,
    /// The number of replicas, of consecutive ranks, over which a batch norm takes its statistics; it divides `n`.
    pub statistics: NonZeroU32,
    /// Whether trainable variables and the optimizer's state are sharded over the replicas.
    pub in_parts: bool,
}

impl Default for Replicas {
    /// One replica.
    fn default() -> Self {
        Replicas { n: NonZeroU32::MIN, statistics: NonZeroU32::MIN, in_parts: false }
    }
}

/// A group of replicas that sum together: all groups have one size, and each replica is in one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The number of replicas in a group.
    pub size: NonZeroU32,
    /// All groups; empty if all replicas are in one.
    groups: Vec<Vec<i64>>,
}

/// The order of a bf16 sum over replicas in which each addition rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumOrder {
    /// One after the other by rank, as in a ring that begins at the first: a partial sum is rounded up to N - 1 times.
    Ring,
    /// In pairs, and pairs of pairs: a value is rounded log2 N times.
    Tree,
}

/// How an array is sharded over replicas: into equal parts along one axis, the first on the first replica. The last
/// parts may be padded with zeros that nothing reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariableShard {
    /// The axis that is split.
    pub axis: usize,
    /// The size of the whole along it.
    pub whole: i64,
    /// The number of parts.
    pub n: NonZeroU32,
}

impl VariableShard {
    /// The best sharding of an array of these dims over `n` replicas; `None` if no sharding would save memory.
    ///
    /// It minimises the memory of a part on a TPU, which stores f32 arrays in tiles of 8 × 128 along their last two
    /// dimensions, or of 1024. The first axis wins a tie.
    pub fn for_dims(dims: &[i64], n: NonZeroU32) -> Option<VariableShard> {
        let axes = (0..dims.len()).map(|axis| VariableShard { axis, whole: dims[axis], n });
        let best = axes.filter(|part| part.whole >= part.n()).min_by_key(|part| stored_size(&part.dims(dims)))?;
        (n.get() > 1 && stored_size(&best.dims(dims)) < stored_size(dims)).then_some(best)
    }

    fn n(self) -> i64 {
        i64::from(self.n.get())
    }

    /// A part's size along the axis.
    pub fn length(self) -> i64 {
        (self.whole + self.n() - 1) / self.n()
    }

    /// The dims of a part, from those of the whole.
    pub fn dims(self, whole: &[i64]) -> Vec<i64> {
        self.with(whole, self.length())
    }

    /// The dims of the whole, from those of a part.
    pub fn whole_dims(self, part: &[i64]) -> Vec<i64> {
        self.with(part, self.whole)
    }

    fn with(self, dims: &[i64], size: i64) -> Vec<i64> {
        let mut dims = dims.to_vec();
        if let Some(dim) = dims.get_mut(self.axis) {
            *dim = size;
        }
        dims
    }

    /// The sharding of the array without the axis `removed`; `None` if that is the sharded one.
    pub fn without(self, removed: usize) -> Option<VariableShard> {
        (self.axis != removed).then(|| VariableShard { axis: self.axis - usize::from(self.axis > removed), ..self })
    }

    /// Whether the last parts are padded.
    pub fn is_padded(self) -> bool {
        self.length() * self.n() != self.whole
    }

    /// Cuts a replica's part out of the bytes of the whole, which has these dims and elements of `n_bytes`.
    pub fn cut(self, whole: &[u8], dims: &[i64], n_bytes: usize, replica: usize) -> Vec<u8> {
        let (outer, row) = self.rows(dims, n_bytes);
        let (size, length) = (self.whole as usize, self.length() as usize);
        let (start, end) = ((replica * length).min(size), ((replica + 1) * length).min(size));
        let mut part = Vec::with_capacity(outer * length * row);
        for block in 0..outer {
            part.extend_from_slice(&whole[(block * size + start) * row..(block * size + end) * row]);
            part.resize((block + 1) * length * row, 0);
        }
        part
    }

    /// Joins the bytes of all parts, in the order of replicas, to the whole, which has these dims.
    pub fn join(self, parts: &[Vec<u8>], dims: &[i64], n_bytes: usize) -> Vec<u8> {
        let (outer, row) = self.rows(dims, n_bytes);
        let (size, length) = (self.whole as usize, self.length() as usize);
        let mut whole = Vec::with_capacity(outer * size * row);
        for block in 0..outer {
            for (replica, part) in parts.iter().enumerate() {
                let n_here = size.saturating_sub(replica * length).min(length);
                whole.extend_from_slice(&part[block * length * row..][..n_here * row]);
            }
        }
        whole
    }

    /// The number of slices before the axis, and the bytes of one step along it.
    fn rows(self, dims: &[i64], n_bytes: usize) -> (usize, usize) {
        let product = |dims: &[i64]| dims.iter().product::<i64>() as usize;
        (product(&dims[..self.axis]), product(&dims[self.axis + 1..]) * n_bytes)
    }
}

impl VariableInfo {
    /// Dims of the whole.
    pub fn whole_dims(&self) -> Vec<i64> {
        self.part.map_or(self.dims.clone(), |part| part.whole_dims(&self.dims))
    }
}

/// The number of elements that an f32 array of these dims occupies in a TPU's memory, with padding.
fn stored_size(dims: &[i64]) -> i64 {
    let up = |dim: i64, tile: i64| ((dim.max(1) + (tile - 1)) / tile).saturating_mul(tile);
    let product = |dims: &[i64]| dims.iter().fold(1i64, |product, &dim| product.saturating_mul(dim));
    match dims {
        [] => 1,
        [dim] => up(*dim, 1024),
        [outer @ .., second, last] => product(outer).saturating_mul(up(*second, 8)).saturating_mul(up(*last, 128)),
    }
}

impl Graph {
    /// Sets the replicas of the program, for variables and layers from now on; initially one.
    #[must_use]
    pub fn for_replicas(self, replicas: Replicas) -> Graph {
        self.inner.replicas.set(replicas);
        self
    }

    /// The replicas that run the program.
    pub fn replicas(&self) -> Replicas {
        self.inner.replicas.get()
    }

    /// The replicas over which a batch norm takes its statistics, if there are several.
    pub fn statistics_group(&self) -> Option<Group> {
        let Replicas { n, statistics: size, .. } = self.replicas();
        let (n, length) = (i64::from(n.get()), i64::from(size.get()));
        let groups = match length >= n {
            true => Vec::new(),
            false => (0..n / length).map(|group| (group * length..(group + 1) * length).collect()).collect(),
        };
        (length > 1).then_some(Group { size, groups })
    }

    /// The sharding of a trainable variable of these dims, if it is sharded.
    pub(super) fn part_of(&self, dims: &[i64]) -> Option<VariableShard> {
        let Replicas { n, in_parts, .. } = self.replicas();
        if in_parts { VariableShard::for_dims(dims, n) } else { None }
    }

    /// Sets the sharding of variable `number`, whose dims are a part's: for variables declared from another program.
    pub fn set_part(&self, number: usize, part: Option<VariableShard>) {
        if let Some(variable) = self.inner.variables.borrow_mut().get_mut(number) {
            variable.part = part;
        }
    }

    /// Variable `number` as its readers see it: gathered if it is sharded.
    pub fn whole(&self, number: usize) -> Tensor {
        let gathered = self.inner.gathered.borrow().get(&number).copied();
        self.tensor(gathered.unwrap_or_else(|| self.variable(number).instr))
    }

    /// This replica's number, `u32[]`.
    #[track_caller]
    fn replica_id(&self) -> Tensor {
        if let Some(id) = self.inner.replica_id.get() {
            return self.tensor(id);
        }
        let op = Op::Opaque(Box::new(Opaque { opcode: "replica-id".to_string(), called: Vec::new() }));
        let id = self.emit_with("replica-id", |e| e.emit(op, &[], Some(&Shape::array(DType::U32, []))));
        self.inner.replica_id.set(Some(id.id).filter(|&id| id != POISON));
        id
    }

    /// The start of this replica's part along its axis, `u32[]`.
    #[track_caller]
    pub(crate) fn start_of_part(&self, part: VariableShard) -> Tensor {
        self.replica_id() * self.scalar(DType::U32, part.length() as f64)
    }
}

impl Tensor {
    /// The sum over all replicas that run the program, on each of them, in this tensor's dtype: an `all-reduce`.
    ///
    /// The number of replicas is set when the program is compiled. Its gradient is the sum of cotangents over the same
    /// replicas.
    #[track_caller]
    pub fn sum_over_replicas(&self) -> Tensor {
        self.sum_over_group(&Group { size: self.graph.replicas().n, groups: Vec::new() })
    }

    /// The sum over a group of replicas, on each of them, in this tensor's dtype. Its gradient is the sum of cotangents over
    /// the same group.
    #[track_caller]
    pub fn sum_over_group(&self, group: &Group) -> Tensor {
        self.emit("all-reduce", &[], |e| group.sum(e, self.id))
    }

    /// The sum over all replicas on a machine that rounds every addition to bf16, on each replica, as f32: explicit
    /// additions after an all-gather. For measuring what such sums lose: a CPU sums a bf16 `all-reduce` in f32.
    #[track_caller]
    pub fn rounded_sum_over_replicas(&self, order: SumOrder) -> Tensor {
        let rounded = |x: &Tensor| x.emit("reduce-precision", &[], |e| e.emit(Op::ROUND_TO_BF16, &[x.id], None));
        let dims = self.dims();
        let with_rank = |n: i64| [n].into_iter().chain(dims.iter().copied()).collect::<Vec<i64>>();
        let rounded_term = rounded(&self.cast(DType::F32)).cast(DType::BF16).reshape(with_rank(1));
        let all = rounded_term.gathered_from_replicas(0).cast(DType::F32);
        let term = |rank: i64| {
            let mut slice: Vec<SliceDim> =
                with_rank(1).iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
            slice[0] = SliceDim { start: rank, limit: rank + 1, stride: 1 };
            all.slice(&slice).reshape(dims.clone())
        };
        let mut terms: Vec<Tensor> = (0..i64::from(self.graph.replicas().n.get())).map(term).collect();
        let sum = |a: &Tensor, b: &Tensor| rounded(&(a + b));
        if order == SumOrder::Ring {
            return terms.into_iter().reduce(|a, b| sum(&a, &b)).unwrap_or_else(|| self.clone());
        }
        while terms.len() > 1 {
            let pair = |pair: &[Tensor]| match pair {
                [a, b] => sum(a, b),
                rest => rest[0].clone(),
            };
            terms = terms.chunks(2).map(pair).collect();
        }
        terms.remove(0)
    }

    /// The arrays of all replicas, one after the other along `axis`, on each of them: an `all-gather`. It has no gradient.
    #[track_caller]
    pub fn gathered_from_replicas(&self, axis: usize) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let mut dims = self.dims();
        dims[axis] *= i64::from(self.graph.replicas().n.get());
        let op = Op::Opaque(Box::new(Opaque { opcode: "all-gather".to_string(), called: Vec::new() }));
        let gathered =
            self.emit("all-gather", &[], |e| e.emit(op, &[self.id], Some(&Shape::array(self.dtype(), &dims[..]))));
        if !gathered.is_poison() {
            let attributes = [("replica_groups", "{}".to_string()), ("dimensions", format!("{{{axis}}}"))];
            self.graph.emitter().with_module_mut(|module| {
                let comp = module.entry;
                let instr = &mut module.computations[comp.idx()].instructions[gathered.id.idx()];
                instr.unmodelled.attributes =
                    attributes.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
            });
        }
        gathered
    }

    /// The whole array, gathered from the replicas' parts.
    #[track_caller]
    pub(crate) fn gathered(&self, part: VariableShard) -> Tensor {
        let all = self.gathered_from_replicas(part.axis);
        if all.is_poison() || !part.is_padded() {
            return all;
        }
        let whole = part.whole_dims(&all.dims());
        let dims: Vec<SliceDim> = whole.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
        all.slice(&dims)
    }

    /// This replica's part of a replicated array, with zeros as padding.
    #[track_caller]
    pub fn part(&self, part: VariableShard) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let dims = self.dims();
        let mut padding = vec![PadDim { low: 0, high: 0, interior: 0 }; dims.len()];
        padding[part.axis].high = part.length() * part.n() - part.whole;
        let padded = if part.is_padded() { self.pad(0.0, &padding) } else { self.clone() };
        let (start, zero) = (self.graph.start_of_part(part), self.graph.scalar(DType::U32, 0.0));
        let starts = (0..dims.len()).map(|axis| if axis == part.axis { &start } else { &zero });
        let operands: Vec<InstrId> = [padded.id].into_iter().chain(starts.map(|start| start.id)).collect();
        let op = Op::DynamicSlice { slice_sizes: part.dims(&dims) };
        self.emit("dynamic-slice", &[], |e| e.emit(op, &operands, None))
    }

    /// This replica's part, with its padding set to zero.
    #[track_caller]
    pub(crate) fn without_padding(&self, part: VariableShard) -> Tensor {
        if self.is_poison() || !part.is_padded() {
            return self.clone();
        }
        let dims = self.dims();
        let place = self.graph.iota(DType::U32, &dims, part.axis as i64);
        let place = place + self.graph.start_of_part(part).broadcast_to(&dims);
        let is_there = place.less(&self.graph.full(DType::U32, &dims, part.whole as f64));
        is_there.select(self, &self.graph.full(self.dtype(), &dims, 0.0))
    }

    /// The sum of all elements; for a part, over the parts of all replicas.
    #[track_caller]
    pub(crate) fn total(&self, part: Option<VariableShard>) -> Tensor {
        let axes: Vec<i64> = (0..self.rank() as i64).collect();
        match part {
            None => self.sum(&axes),
            Some(part) => self.without_padding(part).sum(&axes).sum_over_replicas(),
        }
    }

    /// The mean along `axis`; for a part, over the whole.
    #[track_caller]
    pub(crate) fn mean_along(&self, axis: usize, part: Option<VariableShard>) -> Tensor {
        match part.filter(|part| part.axis == axis) {
            None => self.mean(&[axis as i64]),
            Some(part) => {
                let sum = self.without_padding(part).sum(&[axis as i64]).sum_over_replicas();
                sum / part.whole as f64
            }
        }
    }
}

impl Group {
    /// Emits the sum of `x` over the group.
    pub(crate) fn sum(&self, e: &Emitter, x: InstrId) -> InstrId {
        let sum = AllReduce {
            to_apply: e.scalar_computation(BinaryOp::Add, e.dtype(x)),
            replica_groups: ReplicaGroups::List(self.groups.clone()),
            channel_id: None,
            use_global_device_ids: false,
            constrain_layout: false,
        };
        // Without the barrier, the TPU compiler would sum the bf16 operand of the cast and cast the sum.
        let x = e.emit(Op::OptimizationBarrier, &[x], None);
        e.emit(Op::AllReduce(Box::new(sum)), &[x], None)
    }

    /// Emits the mean of `x` over the group.
    pub(crate) fn mean(&self, e: &Emitter, x: InstrId) -> InstrId {
        e.mul_scalar(self.sum(e, x), 1.0 / f64::from(self.size.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(dims: &[i64], n: u32) -> Option<(usize, i64)> {
        VariableShard::for_dims(dims, NonZeroU32::new(n).unwrap()).map(|part| (part.axis, part.length()))
    }

    #[test]
    fn arrays_are_split_where_a_part_takes_least() {
        // BERT's table: 30522 rows are padded by 6, while 768 columns would become 96 of a tile's 128.
        assert_eq!(part(&[30522, 768], 8), Some((0, 3816)));
        assert_eq!(part(&[768, 3072], 8), Some((0, 96)));
        assert_eq!(part(&[768, 12, 64], 8), Some((0, 96)));
        assert_eq!(part(&[3072], 8), Some((0, 384)));
        // A convolution's input channels are its last axis but one; its 3 × 3 window is smaller than the number of
        // replicas.
        assert_eq!(part(&[3, 3, 64, 64], 8), Some((2, 8)));
        // Arrays of one tile stay whole, and every array on one device.
        assert_eq!(part(&[768], 8), None);
        assert_eq!(part(&[], 8), None);
        assert_eq!(part(&[4, 10], 2), None);
        assert_eq!(part(&[768, 3072], 1), None);
    }

    #[test]
    fn parts_are_cut_and_joined_along_any_axis() {
        let dims = [2, 5, 3];
        let whole: Vec<u8> = (0..2 * 5 * 3 * 2).collect();
        for (axis, n) in [(0, 2), (1, 2), (1, 4), (2, 3), (1, 5)] {
            let part = VariableShard { axis, whole: dims[axis], n: NonZeroU32::new(n).unwrap() };
            let parts: Vec<Vec<u8>> = (0..n as usize).map(|replica| part.cut(&whole, &dims, 2, replica)).collect();
            let size = part.dims(&dims).iter().product::<i64>() as usize * 2;
            assert!(parts.iter().all(|part| part.len() == size), "{axis} {n}");
            assert_eq!(part.join(&parts, &dims, 2), whole, "{axis} {n}");
        }
        // Five rows over four: two, two, one and its padding, padding alone.
        let part = VariableShard { axis: 0, whole: 5, n: NonZeroU32::new(4).unwrap() };
        let parts = [0, 1, 2, 3].map(|replica| part.cut(&[1, 2, 3, 4, 5], &[5], 1, replica));
        assert_eq!(parts, [vec![1, 2], vec![3, 4], vec![5, 0], vec![0, 0]]);
    }
}
