//! Statistics of an array, emitted for the device and decoded on the host.
//!
//! Counts compare bits, not values: a device that flushes subnormal numbers would compare them as zeros. The bits of
//! magnitudes have the order of the magnitudes, so each count is of those from a bound on, and one reduction counts all
//! bounds. Counts are s32, exact to 2^31 elements.

use super::row::{Bins, Function, Quantity, Role, WatchRow};
use bf16scope_hlo::ops::{BinaryOp, Comparison};
use bf16scope_hlo::{DType, Emitter, InstrId, Literal, Metadata, Op, Shape};

/// How an array's bits are read: their dtype, and the position of the exponent.
#[derive(Clone, Copy)]
struct Layout {
    /// The integer dtype of the same width.
    bits: DType,
    n_significand: u32,
    n_exponent: u32,
}

impl Layout {
    fn for_dtype(dtype: DType) -> Layout {
        match dtype {
            DType::BF16 => Layout { bits: DType::S16, n_significand: 7, n_exponent: 8 },
            DType::F16 => Layout { bits: DType::S16, n_significand: 10, n_exponent: 5 },
            _ => Layout { bits: DType::S32, n_significand: 23, n_exponent: 8 },
        }
    }

    fn infinity(self) -> i32 {
        ((1 << self.n_exponent) - 1) << self.n_significand
    }

    /// The bits of 2^`exponent`; those of the least positive number if it underflows, of infinity if it overflows.
    fn power(self, exponent: i32) -> i32 {
        let bias = (1 << (self.n_exponent - 1)) - 1;
        let biased = exponent + bias;
        match biased {
            _ if biased >= (1 << self.n_exponent) - 1 => self.infinity(),
            1.. => biased << self.n_significand,
            _ => u32::try_from(self.n_significand as i32 + biased - 1).map_or(1, |shift| 1 << shift),
        }
    }

    /// The bounds of counts: positive, normal, each bound of the bins, the largest finite number, infinite.
    fn bounds(self) -> Vec<i32> {
        let ends = [1, 1 << self.n_significand];
        ends.into_iter()
            .chain(Bins::bounds().map(|exponent| self.power(exponent)))
            .chain([self.infinity() - 1, self.infinity()])
            .collect()
    }

    /// The value of a magnitude's bits.
    fn value(self, bits: i32) -> f32 {
        match (self.n_significand, self.n_exponent) {
            (7, _) => f32::from_bits((bits as u32) << 16),
            (10, _) => half::f16::from_bits(bits as u16).to_f32(),
            _ => f32::from_bits(bits as u32),
        }
    }
}

/// The dtype whose bits are read: f64 and formats narrower than 16 bits are converted to f32.
fn read_as(dtype: DType) -> DType {
    match dtype {
        DType::BF16 | DType::F16 => dtype,
        _ => DType::F32,
    }
}

/// Words of a row: the largest magnitude, the mean square relative to it, a count for each bound, two for updates, and
/// the [`LastWord`].
pub(super) const N_WORDS: usize = 5 + N_BOUNDS;
const N_BOUNDS: usize = Bins::N - 1 + 4;

/// The last word of a row.
#[derive(Clone, Copy, Default)]
pub(super) enum LastWord {
    #[default]
    None,
    /// The largest magnitude of another array, as f32.
    Largest(InstrId),
    /// The mean relative to the largest magnitude, as f32: it has the sign that a magnitude lacks.
    Mean,
}

/// A row `s32[1, N_WORDS]` of the floats `x`; `lost` and `unseen` are `pred` arrays to count.
///
/// Everything is counted in one pass, by one reduction with as many operands as there are words, which a fusion
/// computes elementwise; squares need a second pass, because they are relative to the largest.
pub(super) fn emit(e: &Emitter, x: InstrId, counted: [Option<InstrId>; 2], last: LastWord) -> InstrId {
    // A scalar cannot be reduced.
    let shaped = |x: InstrId| if e.dims(x).is_empty() { e.reshape(x, &[1]) } else { x };
    let x = shaped(e.convert(x, read_as(e.dtype(x))));
    let (layout, dims) = (Layout::for_dtype(e.dtype(x)), e.dims(x));
    let n: i64 = dims.iter().product();
    let axes: Vec<i64> = (0..dims.len() as i64).collect();
    let bits = e.emit(Op::BitcastConvert, &[x], Some(&Shape::array(layout.bits, &dims[..])));
    let word = |value: i32| e.broadcast(e.constant(Literal::scalar(value)), &[], &dims);
    let sign_off = i32::MAX >> (31 - layout.n_significand - layout.n_exponent);
    let magnitude = e.binary(BinaryOp::And, e.convert(bits, DType::S32), word(sign_off));
    let is_finite = e.compare(Comparison::Lt, magnitude, word(layout.infinity()));
    let greatest = (BinaryOp::Maximum, e.select(is_finite, magnitude, word(0)));
    let count = |pred: InstrId| (BinaryOp::Add, e.convert(shaped(pred), DType::S32));
    let bounds = layout.bounds().into_iter().map(|bound| count(e.compare(Comparison::Ge, magnitude, word(bound))));
    let of_updates = counted.iter().flatten().map(|&pred| count(pred));
    let reduced = reduce_all(e, &std::iter::once(greatest).chain(bounds).chain(of_updates).collect::<Vec<_>>(), &axes);
    let (greatest, counts) = (reduced[0], &reduced[1..=N_BOUNDS]);
    let mut of_updates = reduced[1 + N_BOUNDS..].iter().copied();
    let [lost, unseen] =
        counted.map(|pred| pred.and_then(|_| of_updates.next()).unwrap_or_else(|| e.constant(Literal::scalar(0i32))));
    // Squares of small or large numbers leave f32's range; squares of their ratios to the largest do not.
    let is_normal = e.compare(Comparison::Ge, greatest, e.constant(Literal::scalar(layout.power(-126))));
    let as_float = |bits: InstrId| {
        let narrow = e.convert(bits, layout.bits);
        let float = e.emit(Op::BitcastConvert, &[narrow], Some(&Shape::array(e.dtype(x), e.dims(bits))));
        e.convert(float, DType::F32)
    };
    let scale = e.select(is_normal, as_float(greatest), e.scalar(DType::F32, 1.0));
    let finite = e.select(is_finite, e.convert(x, DType::F32), e.full(DType::F32, &dims, 0.0));
    let ratio = e.div(finite, e.broadcast(scale, &[], &dims));
    let mean = |x: InstrId| {
        let mean = e.mul_scalar(e.reduce_sum(x, &axes), 1.0 / n.max(1) as f64);
        e.emit(Op::BitcastConvert, &[mean], Some(&Shape::scalar(DType::S32)))
    };
    let last = match last {
        LastWord::None => e.constant(Literal::scalar(0i32)),
        LastWord::Largest(beside) => largest_bits(e, shaped(beside)),
        LastWord::Mean => mean(ratio),
    };
    let words = [&[greatest, mean(e.mul(ratio, ratio))], counts, &[lost, unseen, last]].concat();
    let words: Vec<InstrId> = words.into_iter().map(|word| e.reshape(word, &[1])).collect();
    e.reshape(e.concatenate(&words, 0), &[1, N_WORDS as i64])
}

/// The bits of the largest magnitude of an array, as f32.
fn largest_bits(e: &Emitter, x: InstrId) -> InstrId {
    let (x, dims) = (e.convert(x, DType::F32), e.dims(x));
    let bits = e.emit(Op::BitcastConvert, &[x], Some(&Shape::array(DType::S32, &dims[..])));
    let mask = e.broadcast(e.constant(Literal::scalar(i32::MAX)), &[], &dims);
    let magnitude = e.binary(BinaryOp::And, bits, mask);
    let zero = e.broadcast(e.constant(Literal::scalar(0i32)), &[], &dims);
    let axes: Vec<i64> = (0..dims.len() as i64).collect();
    // The same computation serves all reductions: the second maximum is of zeros.
    reduce_all(e, &[(BinaryOp::Maximum, magnitude), (BinaryOp::Maximum, zero)], &axes)[0]
}

/// Reduces arrays of `s32` in one pass, each by its own operation.
fn reduce_all(e: &Emitter, arrays: &[(BinaryOp, InstrId)], axes: &[i64]) -> Vec<InstrId> {
    let to_apply = e.with_module_mut(|module| {
        module.made_once("count", |module, comp| {
            let scalar = Shape::scalar(DType::S32);
            let mut append = |op, operands, shape| module.append(comp, op, operands, shape, Metadata::default());
            let n = arrays.len() as i64;
            let parameters: Vec<InstrId> =
                (0..2 * n).map(|number| append(Op::parameter(number), Vec::new(), scalar.clone())).collect();
            let (sums, values) = parameters.split_at(arrays.len());
            let both = arrays.iter().zip(sums.iter().zip(values));
            let results: Vec<InstrId> =
                both.map(|(&(op, _), (&x, &y))| append(Op::Binary(op), vec![x, y], scalar.clone())).collect();
            append(Op::Tuple, results, Shape::Tuple(vec![scalar.clone(); arrays.len()]));
        })
    });
    // Counts and bits of magnitudes are not negative, so 0 is the initial value of maxima too.
    let zero = e.constant(Literal::scalar(0i32));
    let operands: Vec<InstrId> =
        arrays.iter().map(|&(_, array)| array).chain(std::iter::repeat_n(zero, arrays.len())).collect();
    let reduced = e.emit(Op::Reduce { dimensions: axes.to_vec(), to_apply }, &operands, None);
    (0..arrays.len()).map(|index| e.get_tuple_element(reduced, index)).collect()
}

/// The description of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowOf {
    pub layer: String,
    pub quantity: Quantity,
    pub role: Option<Role>,
    /// The dtype of the observed array.
    pub dtype: DType,
    /// The dtype that the row reports.
    pub reported_dtype: DType,
    pub n: u64,
    /// The rows that it depends on.
    pub takes: Vec<u32>,
    pub function: Option<Function>,
    pub is_gated: bool,
    pub is_constrained: bool,
}

impl RowOf {
    /// Whether the row has the mean of its numbers: those of features, labels and the loss have.
    pub(crate) fn has_mean(&self) -> bool {
        self.quantity == Quantity::Activation && matches!(self.role, Some(Role::Input | Role::Label | Role::Loss))
    }
}

/// Decodes a row on the host.
pub(crate) fn read_row(row: &RowOf, words: &[i32]) -> WatchRow {
    let layout = Layout::for_dtype(read_as(row.dtype));
    let share = |count: i32| f64::from(count) / row.n.max(1) as f64;
    let counts = &words[2..2 + N_BOUNDS];
    let max = layout.value(words[0]);
    let scale = if words[0] >= layout.power(-126) { f64::from(max) } else { 1.0 };
    let mean = f64::from(f32::from_bits(words[1] as u32));
    let last = f32::from_bits(words[N_WORDS - 1] as u32);
    let [above_zero, normal] = [counts[0], counts[1]];
    let (largest, infinite) = (counts[N_BOUNDS - 2], counts[N_BOUNDS - 1]);
    // From positive through the bounds of the bins to infinity: a bin is the difference of two neighbouring counts.
    let bounds: Vec<i32> = std::iter::once(above_zero).chain(counts[2..N_BOUNDS - 2].iter().copied()).collect();
    let bins = std::array::from_fn(|bin| share(bounds[bin] - bounds.get(bin + 1).copied().unwrap_or(infinite)));
    let of_update = |word: i32| (row.quantity == Quantity::Update).then(|| share(word));
    WatchRow {
        layer: row.layer.clone(),
        quantity: row.quantity,
        role: row.role,
        dtype: row.reported_dtype.to_string(),
        n: row.n,
        max,
        rms: (scale * mean.max(0.0).sqrt()) as f32,
        zero: share(row.n.min(i32::MAX as u64) as i32 - above_zero),
        subnormal: share(above_zero - normal),
        saturated: share(largest - infinite),
        not_finite: share(infinite),
        bins,
        lost: of_update(words[N_WORDS - 3]),
        unseen: of_update(words[N_WORDS - 2]),
        stored: (row.quantity == Quantity::Update).then_some(last),
        mean: row.has_mean().then(|| (scale * f64::from(last)) as f32),
        takes: row.takes.clone(),
        columns: Vec::new(),
        function: row.function,
        is_gated: row.is_gated,
        is_constrained: row.is_constrained,
    }
}
