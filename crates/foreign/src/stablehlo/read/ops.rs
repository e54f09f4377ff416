//! An instruction of an op: the IR's op with what was said, or nothing for an op that is not in the table.

use super::Operation;
use super::attributes::{Attribute, Attributes};
use super::build::{Builder, Scope};
use bf16scope_hlo::ops::{
    BatchNorm, BinaryOp, CompareKind, Comparison, Convolution, DotDims, GatherDims, OperandPrecision, PadDim,
    PrecisionConfig, RngAlgorithm, ScatterDims, SliceDim, UnaryOp, Window, WindowDim,
};
use bf16scope_hlo::{ArrayShape, InstrId, Literal, Op, Shape};

impl<'t> Builder<'_, 't> {
    /// Writes an op that calls no function and holds no branches.
    pub(super) fn plain(
        &mut self,
        scope: &mut Scope<'t>,
        operation: &mut Operation<'t>,
        mut operands: Vec<InstrId>,
        types: &[Shape],
    ) -> Option<Vec<InstrId>> {
        let short = match operation.name.strip_prefix("stablehlo.") {
            Some(short) => short,
            None => return self.of_chlo(scope, operation, &operands, types),
        };
        let said = &mut operation.attributes;
        let first = operands.first().map(|id| self.shape(scope.comp, *id).clone());
        let op = match short {
            "constant" => {
                let Attribute::Dense(value) = said.take("value")? else { return None };
                let scalar = self.constant(scope, value.literal);
                return Some(vec![self.repeated(scope, scalar, &value.shape, operation.line)?]);
            }
            "broadcast_in_dim" => {
                let dims = said.take_ints("broadcast_dimensions")?;
                return self.broadcast(scope, operands[..].try_into().ok()?, &dims, types, operation.line);
            }
            "optimization_barrier" => return self.barrier(scope, &operands, types, operation.line),
            "reduce" | "sort" | "scatter" | "reduce_window" | "select_and_scatter" => {
                self.applying(scope, short, operation, &operands, types)?
            }
            _ => with_attributes(short, said, first.as_ref(), || {
                operands.get(1).map(|id| self.shape(scope.comp, *id).clone())
            })
            .or_else(|| elementwise(short))?,
        };
        if let [lhs, rhs] = operands[..]
            && commutes(&op)
            && self.is_constant(scope, lhs)
            && !self.is_constant(scope, rhs)
        {
            operands.reverse();
        }
        let changes = !changes_nothing(&op);
        let values = self.push(scope, op, &operands, types, operation.line)?;
        if let ([operand, ..], [value]) = (&operands[..], &values[..])
            && !changes
            && self.shape(scope.comp, *operand).is_compatible(self.shape(scope.comp, *value))
        {
            // It was appended to be checked.
            drop(self.module.computations[scope.comp.idx()].instructions.pop());
            return Some(vec![*operand]);
        }
        Some(values)
    }

    /// Ops of CHLO that XLA makes one instruction of.
    fn of_chlo(
        &mut self,
        scope: &Scope<'t>,
        operation: &Operation<'t>,
        operands: &[InstrId],
        types: &[Shape],
    ) -> Option<Vec<InstrId>> {
        let [operand] = operands[..] else { return None };
        match operation.name {
            "chlo.square" => self.push(scope, Op::Binary(BinaryOp::Multiply), &[operand; 2], types, operation.line),
            "chlo.erf" => self.push(scope, Op::Unary(UnaryOp::Erf), operands, types, operation.line),
            _ => None,
        }
    }

    /// Whether a value is a constant, or one repeated.
    fn is_constant(&self, scope: &Scope<'t>, id: InstrId) -> bool {
        let computation = self.module.comp(scope.comp);
        let instr = computation.instr(id);
        let operand = instr.operands.first().map(|id| &computation.instr(*id).op);
        match instr.op {
            Op::Constant(_) => true,
            Op::Broadcast { .. } => matches!(operand, Some(Op::Constant(_))),
            _ => false,
        }
    }

    /// A scalar constant repeated to a shape, once for each shape.
    fn repeated(&mut self, scope: &mut Scope<'t>, scalar: InstrId, to: &ArrayShape, line: u32) -> Option<InstrId> {
        if self.shape(scope.comp, scalar).dims() == to.dims {
            return Some(scalar);
        }
        let key = (scalar, to.dims.clone());
        if let Some(known) = scope.repeated.get(&key) {
            return Some(*known);
        }
        let to = [Shape::Array(to.clone())];
        let id = *self.push(scope, Op::Broadcast { dimensions: Vec::new() }, &[scalar], &to, line)?.first()?;
        scope.repeated.insert(key, id);
        Some(id)
    }

    /// `broadcast_in_dim`, which also repeats dimensions of size 1; HLO's `broadcast` does not.
    pub(super) fn broadcast(
        &mut self,
        scope: &mut Scope<'t>,
        [operand]: [InstrId; 1],
        dims: &[i64],
        types: &[Shape],
        line: u32,
    ) -> Option<Vec<InstrId>> {
        let [Shape::Array(to)] = types else { return None };
        let Shape::Array(from) = self.shape(scope.comp, operand).clone() else { return None };
        let mut seen = vec![false; to.rank()];
        for (axis, &dim) in dims.iter().enumerate() {
            let place = seen.get_mut(usize::try_from(dim).ok()?)?;
            let fits = from.dims.get(axis).is_some_and(|&size| size == 1 || size == to.dims[dim as usize]);
            if std::mem::replace(place, true) || !fits {
                return None;
            }
        }
        if dims.len() != from.rank() || from.dtype != to.dtype {
            return None;
        }
        let is_constant = matches!(self.module.comp(scope.comp).instr(operand).op, Op::Constant(_));
        if is_constant && from.dims.is_empty() {
            return Some(vec![self.repeated(scope, operand, to, line)?]);
        }
        let is_sorted = dims.windows(2).all(|pair| pair[0] < pair[1]);
        if is_sorted && from.dims == to.dims {
            return Some(vec![operand]);
        } else if is_sorted && from.n_elements() == to.n_elements() && to.n_elements() > 0 {
            return self.push(scope, Op::Reshape, &[operand], types, line);
        }
        // Dimensions that are repeated are removed first.
        let kept = |axis: &usize| from.dims[*axis] == to.dims[dims[*axis] as usize];
        let axes: Vec<usize> = (0..from.rank()).filter(kept).collect();
        let dimensions: Vec<i64> = axes.iter().map(|&axis| dims[axis]).collect();
        let mut operand = operand;
        if axes.len() < from.rank() {
            let sizes: Vec<i64> = axes.iter().map(|&axis| from.dims[axis]).collect();
            let squeezed = [Shape::array(from.dtype, sizes)];
            operand = *self.push(scope, Op::Reshape, &[operand], &squeezed, line)?.first()?;
        }
        self.push(scope, Op::Broadcast { dimensions }, &[operand], types, line)
    }

    /// One value as it is, several as a tuple.
    fn barrier(&mut self, scope: &Scope<'t>, operands: &[InstrId], types: &[Shape], line: u32) -> Option<Vec<InstrId>> {
        match operands {
            [] => None,
            [one] => self.push(scope, Op::OptimizationBarrier, &[*one], types, line),
            all => {
                let tuple = self.tuple(scope.comp, all);
                self.push(scope, Op::OptimizationBarrier, &[tuple], types, line)
            }
        }
    }

    /// Ops that apply a computation to pairs of elements.
    fn applying(
        &mut self,
        scope: &Scope<'t>,
        name: &str,
        operation: &mut Operation<'t>,
        operands: &[InstrId],
        types: &[Shape],
    ) -> Option<Op> {
        let said = &mut operation.attributes;
        let rank = self.shape(scope.comp, *operands.first()?).dims().len();
        let mut regions = std::mem::take(&mut operation.regions).into_iter();
        let op = match name {
            "reduce" => {
                let dimensions = said.take_ints("dimensions")?;
                let to_apply = match said.has("applies") {
                    true => {
                        let op = binary(said.take_word("applies")?.strip_prefix("stablehlo.")?)?;
                        let [_, init] = operands[..] else { return None };
                        self.module.scalar_computation(op, self.shape(scope.comp, init).dtype()?)
                    }
                    false => self.applied(scope, regions.next()?)?,
                };
                Op::Reduce { dimensions, to_apply }
            }
            "sort" => {
                let dimension = said.take_int("dimension")?;
                let is_stable = said.take_bool("is_stable")?;
                let dimension = if dimension < 0 { dimension + rank as i64 } else { dimension };
                Op::Sort { dimension, is_stable, to_apply: self.applied(scope, regions.next()?)? }
            }
            "scatter" => {
                let dims = scatter(said)?;
                Op::Scatter { dims, to_apply: self.applied(scope, regions.next()?)? }
            }
            "reduce_window" => {
                let window = window(said, rank)?;
                Op::ReduceWindow { window, to_apply: self.applied(scope, regions.next()?)? }
            }
            _ => {
                let window = window(said, rank)?;
                let select = self.applied(scope, regions.next()?)?;
                Op::SelectAndScatter { window, select, scatter: self.applied(scope, regions.next()?)? }
            }
        };
        (regions.next().is_none() && !types.is_empty()).then_some(op)
    }
}

/// Whether an op of two operands is one whose constants XLA's converter puts last. XLA fuses, and so sums, otherwise where
/// they come first.
fn commutes(op: &Op) -> bool {
    use BinaryOp::{Add, And, Maximum, Minimum, Multiply, Or, Xor};
    matches!(op, Op::Binary(Add | And | Maximum | Minimum | Multiply | Or | Xor))
}

/// Whether an op whose result has its first operand's shape is that operand.
fn changes_nothing(op: &Op) -> bool {
    match op {
        Op::Convert | Op::Reshape => true,
        Op::Transpose { permutation } => permutation.is_sorted(),
        Op::Slice(dims) => dims.iter().all(|dim| dim.start == 0 && dim.stride == 1),
        Op::Pad(dims) => dims.iter().all(|dim| (dim.low, dim.high, dim.interior) == (0, 0, 0)),
        _ => false,
    }
}

fn binary(name: &str) -> Option<BinaryOp> {
    BinaryOp::from_name(&name.replace('_', "-"))
}

/// Functions of elements alone; CHLO's are not StableHLO's.
fn elementwise(name: &str) -> Option<Op> {
    let of_chlo = ["acos", "acosh", "asin", "asinh", "atanh", "copy", "cosh", "erf", "sinh"];
    match name {
        "select" => Some(Op::Select),
        "clamp" => Some(Op::Clamp),
        "convert" => Some(Op::Convert),
        "bitcast_convert" => Some(Op::BitcastConvert),
        "reshape" => Some(Op::Reshape),
        "dynamic_update_slice" => Some(Op::DynamicUpdateSlice),
        "count_leading_zeros" => Some(Op::Unary(UnaryOp::Clz)),
        name if of_chlo.contains(&name) => None,
        name => match binary(name) {
            Some(op) => Some(Op::Binary(op)),
            None => UnaryOp::from_name(&name.replace('_', "-")).map(Op::Unary),
        },
    }
}

/// Ops of which something is said.
fn with_attributes(
    name: &str,
    said: &mut Attributes<'_>,
    first: Option<&Shape>,
    second: impl FnOnce() -> Option<Shape>,
) -> Option<Op> {
    Some(match name {
        "compare" => compare(said, first?)?,
        "iota" => Op::Iota { dimension: said.take_int("iota_dimension")? },
        "transpose" => Op::Transpose { permutation: said.take_ints("permutation")? },
        "reverse" => Op::Reverse { dimensions: said.take_ints("dimensions")? },
        "dynamic_slice" => Op::DynamicSlice { slice_sizes: said.take_ints("slice_sizes")? },
        "concatenate" => Op::Concatenate { dimension: said.take_int("dimension")? },
        "slice" => {
            let lists = ["start_indices", "limit_indices", "strides"].map(|name| said.take_ints(name));
            Op::Slice(threes(lists)?.map(|[start, limit, stride]| SliceDim { start, limit, stride }).collect())
        }
        "pad" => {
            let lists = ["edge_padding_low", "edge_padding_high", "interior_padding"].map(|name| said.take_ints(name));
            Op::Pad(threes(lists)?.map(|[low, high, interior]| PadDim { low, high, interior }).collect())
        }
        "reduce_precision" => Op::ReducePrecision {
            exponent_bits: said.take_int("exponent_bits")?.try_into().ok()?,
            mantissa_bits: said.take_int("mantissa_bits")?.try_into().ok()?,
        },
        "rng_bit_generator" => Op::RngBitGenerator(match said.take_word("rng_algorithm")? {
            "DEFAULT" => RngAlgorithm::Default,
            "THREE_FRY" => RngAlgorithm::ThreeFry,
            "PHILOX" => RngAlgorithm::Philox,
            _ => return None,
        }),
        "dot_general" => {
            let mut fields = take_fields(said, "dot_dimension_numbers")?;
            let mut list = |name| fields.ints_or(name, Vec::new);
            let dims = DotDims {
                lhs_batch: list("lhs_batching_dimensions")?,
                rhs_batch: list("rhs_batching_dimensions")?,
                lhs_contracting: list("lhs_contracting_dimensions")?,
                rhs_contracting: list("rhs_contracting_dimensions")?,
            };
            let precision = precision(said)?;
            fields.is_empty().then_some(Op::Dot { dims, precision })?
        }
        "convolution" => convolution(said, second()?.dims())?,
        "gather" => gather(said)?,
        "batch_norm_training" => Op::BatchNormTraining(batch_norm(said)?),
        "batch_norm_inference" => Op::BatchNormInference(batch_norm(said)?),
        "batch_norm_grad" => Op::BatchNormGrad(batch_norm(said)?),
        _ => return None,
    })
}

/// Three lists of one length, as one list of threes.
fn threes(lists: [Option<Vec<i64>>; 3]) -> Option<impl Iterator<Item = [i64; 3]>> {
    let [Some(first), Some(second), Some(third)] = lists else { return None };
    let n = first.len();
    (second.len() == n && third.len() == n).then(|| (0..n).map(move |i| [first[i], second[i], third[i]]))
}

fn take_fields<'t>(said: &mut Attributes<'t>, name: &str) -> Option<Attributes<'t>> {
    match said.take(name)? {
        Attribute::Fields(fields) => Some(fields),
        _ => None,
    }
}

fn compare(said: &mut Attributes<'_>, operand: &Shape) -> Option<Op> {
    let direction = Comparison::from_name(said.take_word("comparison_direction")?)?;
    let default = CompareKind::default_of(operand.dtype()?);
    let kind = match said.has("compare_type") {
        true => CompareKind::from_name(said.take_word("compare_type")?)?,
        false => default,
    };
    let is_total = (kind, default) == (CompareKind::TotalOrder, CompareKind::Float);
    (kind == default || is_total).then_some(Op::Compare { direction, kind: is_total.then_some(kind) })
}

/// One precision for each of two operands, where any is said.
fn precision(said: &mut Attributes<'_>) -> Option<PrecisionConfig> {
    let mut operand_precision = vec![OperandPrecision::Default; 2];
    if said.has("precision_config") {
        let Attribute::List(all) = said.take("precision_config")? else { return None };
        let one = |attribute| match attribute {
            Attribute::Word(word) => OperandPrecision::from_name(&word.to_ascii_lowercase()),
            _ => None,
        };
        operand_precision = all.into_iter().map(one).collect::<Option<_>>()?;
    }
    (operand_precision.len() == 2).then_some(PrecisionConfig { operand_precision, algorithm: None })
}

fn convolution(said: &mut Attributes<'_>, kernel: &[i64]) -> Option<Op> {
    let Attribute::Convolution(dims) = said.take("dimension_numbers")? else { return None };
    let size = |&axis: &i64| kernel.get(usize::try_from(axis).ok()?).copied();
    let sizes = dims.kernel_spatial.iter().map(size).collect::<Option<Vec<i64>>>()?;
    let n = sizes.len();
    let strides = said.ints_or("window_strides", || vec![1; n])?;
    let padding = padding(said, n)?;
    let base = said.ints_or("lhs_dilation", || vec![1; n])?;
    let dilation = said.ints_or("rhs_dilation", || vec![1; n])?;
    let reversal = said.ints_or("window_reversal", || vec![0; n])?;
    if [&strides, &base, &dilation, &reversal].iter().any(|list| list.len() != n) {
        return None;
    }
    let dim = |i: usize| WindowDim {
        size: sizes[i],
        stride: strides[i],
        padding_low: padding[2 * i],
        padding_high: padding[2 * i + 1],
        window_dilation: dilation[i],
        base_dilation: base[i],
        reversal: reversal[i] != 0,
    };
    Some(Op::Convolution(Box::new(Convolution {
        window: (0..n).map(dim).collect(),
        dims,
        feature_group_count: said.take_int("feature_group_count")?,
        batch_group_count: said.take_int("batch_group_count")?,
        precision: precision(said)?,
    })))
}

/// Pairs, low and high, one after another; none where it is not said.
fn padding(said: &mut Attributes<'_>, n: usize) -> Option<Vec<i64>> {
    let pairs = match said.take("padding") {
        None => vec![0; 2 * n],
        Some(Attribute::Ints(pairs)) => pairs,
        Some(Attribute::Dense(dense)) if dense.shape.dims == [n as i64, 2] => dense.ints()?,
        Some(_) => return None,
    };
    (pairs.len() == 2 * n).then_some(pairs)
}

/// The window of `reduce_window` and `select_and_scatter`.
pub(super) fn window(said: &mut Attributes<'_>, rank: usize) -> Option<Window> {
    let ones = || vec![1; rank];
    let sizes = said.ints_or("window_dimensions", ones)?;
    let strides = said.ints_or("window_strides", ones)?;
    let base = said.ints_or("base_dilations", ones)?;
    let dilation = said.ints_or("window_dilations", ones)?;
    let padding = padding(said, rank)?;
    if [&sizes, &strides, &base, &dilation].iter().any(|list| list.len() != rank) {
        return None;
    }
    let dim = |i: usize| WindowDim {
        stride: strides[i],
        padding_low: padding[2 * i],
        padding_high: padding[2 * i + 1],
        window_dilation: dilation[i],
        base_dilation: base[i],
        ..WindowDim::of_size(sizes[i])
    };
    Some((0..rank).map(dim).collect())
}

fn gather(said: &mut Attributes<'_>) -> Option<Op> {
    let mut fields = take_fields(said, "dimension_numbers")?;
    let mut list = |name| fields.ints_or(name, Vec::new);
    let dims = GatherDims {
        offset_dims: list("offset_dims")?,
        collapsed_slice_dims: list("collapsed_slice_dims")?,
        start_index_map: list("start_index_map")?,
        operand_batching_dims: list("operand_batching_dims")?,
        start_indices_batching_dims: list("start_indices_batching_dims")?,
        index_vector_dim: fields.take_int("index_vector_dim").unwrap_or(0),
        slice_sizes: said.take_ints("slice_sizes")?,
        indices_are_sorted: said.take_bool("indices_are_sorted")?,
    };
    fields.is_empty().then_some(Op::Gather(dims))
}

fn scatter(said: &mut Attributes<'_>) -> Option<ScatterDims> {
    let mut fields = take_fields(said, "scatter_dimension_numbers")?;
    let mut list = |name| fields.ints_or(name, Vec::new);
    let dims = ScatterDims {
        update_window_dims: list("update_window_dims")?,
        inserted_window_dims: list("inserted_window_dims")?,
        scatter_dims_to_operand_dims: list("scatter_dims_to_operand_dims")?,
        input_batching_dims: list("input_batching_dims")?,
        scatter_indices_batching_dims: list("scatter_indices_batching_dims")?,
        index_vector_dim: fields.take_int("index_vector_dim").unwrap_or(0),
        indices_are_sorted: said.take_bool("indices_are_sorted")?,
        unique_indices: said.take_bool("unique_indices")?,
    };
    fields.is_empty().then_some(dims)
}

fn batch_norm(said: &mut Attributes<'_>) -> Option<BatchNorm> {
    let Attribute::Float(Literal::Array { bytes, .. }) = said.take("epsilon")? else { return None };
    let epsilon = f32::from_le_bytes(bytes.try_into().ok()?);
    Some(BatchNorm { epsilon, feature_index: said.take_int("feature_index")? })
}
