//! Ops: one enum, one family per file.
//!
//! A family file has, per op, its meaning, attributes and shape rule. There is one shape rule per op in the whole
//! crate: the builder calls it to compute a shape, the verifier to check one. The spelling of attributes in text and
//! proto is in `hlo::text` and `hlo::proto`.
//!
//! Source: XLA's operation semantics and `hlo_opcode.h`; shape rules as XLA's `shape_inference.cc` checks them.

use super::{CompId, Literal, Shape};
use std::borrow::Cow;

pub mod batch_norm;
pub mod collective;
pub mod control;
pub mod conversion;
pub mod convolution;
pub mod decisions;
pub mod dot;
pub mod elementwise;
pub mod error;
pub mod grad;
pub mod indexing;
pub mod movement;
pub mod opaque;
pub mod opcodes;
mod operands;
pub mod precision;
pub mod reduction;
#[cfg(test)]
pub(crate) mod samples;
pub mod source;
#[cfg(test)]
mod testing;
pub mod window;

pub use batch_norm::BatchNorm;
pub use collective::{AllReduce, ReplicaGroups};
pub use control::{Conditional, CustomCall};
pub use convolution::{Convolution, ConvolutionDims};
pub use dot::{DotDims, OperandPrecision, PrecisionConfig};
pub use elementwise::{BinaryOp, CompareKind, Comparison, UnaryOp};
pub use error::RuleError;
pub use indexing::{GatherDims, ScatterDims};
pub use movement::{PadDim, SliceDim};
pub use opaque::Opaque;
pub(super) use operands::{check_size, same_dtype};
pub use source::RngAlgorithm;
pub use window::{Window, WindowDim};

/// The op of an instruction, with every attribute that changes its meaning.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// The computation's argument. Family: [`source`].
    Parameter {
        /// Its number.
        number: i64,
        /// `parameter_replication`, a flag per leaf buffer; usually empty.
        replication: Vec<bool>,
    },
    /// A constant value. Family: [`source`].
    Constant(Literal),
    /// Counts 0, 1, … along a dimension. Family: [`source`].
    Iota {
        /// The dimension it counts along.
        dimension: i64,
    },
    /// Random bits from an explicit state. Family: [`source`].
    RngBitGenerator(RngAlgorithm),
    /// An elementwise function of one operand. Family: [`elementwise`].
    Unary(UnaryOp),
    /// An elementwise function of two operands of the same shape. Family: [`elementwise`].
    Binary(BinaryOp),
    /// Elementwise comparison. Family: [`elementwise`].
    Compare {
        /// The direction of the comparison.
        direction: Comparison,
        /// The order of the comparison, if it is not the dtype's default (`type=TOTALORDER`).
        kind: Option<CompareKind>,
    },
    /// `pred ? on_true : on_false`, elementwise or by one scalar `pred`. Family: [`elementwise`].
    Select,
    /// `min(max(low, x), high)`; operands `low`, `x`, `high`. Family: [`elementwise`].
    Clamp,
    /// To another dtype, by value. Family: [`conversion`].
    Convert,
    /// To another dtype, by bits. Family: [`conversion`].
    BitcastConvert,
    /// Rounds to fewer exponent and fraction bits, keeping the dtype. Family: [`conversion`].
    ReducePrecision {
        /// Exponent bits kept.
        exponent_bits: i32,
        /// Fraction bits kept.
        mantissa_bits: i32,
    },
    /// Repeats along new dimensions. Family: [`movement`].
    Broadcast {
        /// For each operand dimension its place in the result.
        dimensions: Vec<i64>,
    },
    /// The same elements in other dims. Family: [`movement`].
    Reshape,
    /// Permutes dimensions. Family: [`movement`].
    Transpose {
        /// For each result dimension the operand dimension it is.
        permutation: Vec<i64>,
    },
    /// A strided box at constant indices. Family: [`movement`].
    Slice(Vec<SliceDim>),
    /// Adds (or, if negative, removes) edges and gaps; operands: array, scalar. Family: [`movement`].
    Pad(Vec<PadDim>),
    /// Joins along a dimension. Family: [`movement`].
    Concatenate {
        /// That dimension.
        dimension: i64,
    },
    /// Reverses dimensions. Family: [`movement`].
    Reverse {
        /// Those dimensions.
        dimensions: Vec<i64>,
    },
    /// A box at run-time indices; operands: array, one scalar index per dimension. Family: [`indexing`].
    DynamicSlice {
        /// Size of the box.
        slice_sizes: Vec<i64>,
    },
    /// Writes a box at run-time indices; operands: array, update, one scalar index per dimension. Family: [`indexing`].
    DynamicUpdateSlice,
    /// Many boxes at run-time indices; operands: array, start indices. Family: [`indexing`].
    Gather(GatherDims),
    /// Combines updates into an array at run-time indices; operands: N arrays, indices, N updates. Family:
    /// [`indexing`].
    Scatter {
        /// Dimension numbers and promises.
        dims: ScatterDims,
        /// How an update is combined with the old value.
        to_apply: CompId,
    },
    /// Generalised matrix product. Family: [`dot`].
    Dot {
        /// Contracting and batch dimensions.
        dims: DotDims,
        /// Operand precision.
        precision: PrecisionConfig,
    },
    /// Generalised convolution; operands: input, kernel. Family: [`convolution`].
    Convolution(Box<Convolution>),
    /// Reduces dimensions; operands: N arrays, N init scalars. Family: [`reduction`].
    Reduce {
        /// The reduced dimensions.
        dimensions: Vec<i64>,
        /// The reduction.
        to_apply: CompId,
    },
    /// Reduces windows; operands: N arrays, N init scalars. Family: [`window`].
    ReduceWindow {
        /// The window, one [`WindowDim`] per dimension.
        window: Window,
        /// The reduction.
        to_apply: CompId,
    },
    /// Scatters a source to the element each window selects; operands: array, source, init. Family: [`window`].
    SelectAndScatter {
        /// The window, one [`WindowDim`] per dimension.
        window: Window,
        /// Which of two elements is selected.
        select: CompId,
        /// How scattered values are combined.
        scatter: CompId,
    },
    /// Normalises by batch statistics; operands: x, scale, offset. Family: [`batch_norm`].
    BatchNormTraining(BatchNorm),
    /// Normalises by given statistics; operands: x, scale, offset, mean, variance. Family: [`batch_norm`].
    BatchNormInference(BatchNorm),
    /// Gradients of training; operands: x, scale, mean, variance, grad. Family: [`batch_norm`].
    BatchNormGrad(BatchNorm),
    /// Sorts along a dimension; N operands of equal dims. Family: [`reduction`].
    Sort {
        /// The dimension sorted along.
        dimension: i64,
        /// Whether equal elements keep their order.
        is_stable: bool,
        /// The comparator.
        to_apply: CompId,
    },
    /// Makes a tuple. Family: [`control`].
    Tuple,
    /// Takes an element of a tuple. Family: [`control`].
    GetTupleElement {
        /// The element.
        index: i64,
    },
    /// Calls a computation. Family: [`control`].
    Call {
        /// The computation.
        to_apply: CompId,
    },
    /// Repeats `body` while `condition`. Family: [`control`].
    While {
        /// State → pred.
        condition: CompId,
        /// State → state.
        body: CompId,
    },
    /// Runs one of several computations. Family: [`control`].
    Conditional(Conditional),
    /// Calls a function the back end knows by name. Family: [`control`].
    CustomCall(Box<CustomCall>),
    /// Reduces over devices. Family: [`collective`].
    AllReduce(Box<AllReduce>),
    /// The identity, across which no optimisation moves code. Family: [`control`].
    OptimizationBarrier,
    /// An opcode that the IR does not model, preserved as it came. Family: [`opaque`].
    Opaque(Box<Opaque>),
}

impl Op {
    /// A parameter.
    pub fn parameter(number: i64) -> Op {
        Op::Parameter { number, replication: Vec::new() }
    }

    /// HLO's spelling of the opcode.
    pub fn opcode(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Op::Parameter { .. } => "parameter",
            Op::Constant(_) => "constant",
            Op::Iota { .. } => "iota",
            Op::RngBitGenerator(_) => "rng-bit-generator",
            Op::Unary(op) => op.name(),
            Op::Binary(op) => op.name(),
            Op::Compare { .. } => "compare",
            Op::Select => "select",
            Op::Clamp => "clamp",
            Op::Convert => "convert",
            Op::BitcastConvert => "bitcast-convert",
            Op::ReducePrecision { .. } => "reduce-precision",
            Op::Broadcast { .. } => "broadcast",
            Op::Reshape => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Slice(_) => "slice",
            Op::Pad(_) => "pad",
            Op::Concatenate { .. } => "concatenate",
            Op::Reverse { .. } => "reverse",
            Op::DynamicSlice { .. } => "dynamic-slice",
            Op::DynamicUpdateSlice => "dynamic-update-slice",
            Op::Gather(_) => "gather",
            Op::Scatter { .. } => "scatter",
            Op::Dot { .. } => "dot",
            Op::Convolution(_) => "convolution",
            Op::Reduce { .. } => "reduce",
            Op::ReduceWindow { .. } => "reduce-window",
            Op::SelectAndScatter { .. } => "select-and-scatter",
            Op::BatchNormTraining(_) => "batch-norm-training",
            Op::BatchNormInference(_) => "batch-norm-inference",
            Op::BatchNormGrad(_) => "batch-norm-grad",
            Op::Sort { .. } => "sort",
            Op::Tuple => "tuple",
            Op::GetTupleElement { .. } => "get-tuple-element",
            Op::Call { .. } => "call",
            Op::While { .. } => "while",
            Op::Conditional(_) => "conditional",
            Op::CustomCall(_) => "custom-call",
            Op::AllReduce(_) => "all-reduce",
            Op::OptimizationBarrier => "opt-barrier",
            Op::Opaque(opaque) => return Cow::Owned(opaque.opcode.clone()),
        })
    }

    /// The precision configuration of a dot or convolution; `None` for any other op.
    pub fn precision(&self) -> Option<&PrecisionConfig> {
        match self {
            Op::Dot { precision, .. } => Some(precision),
            Op::Convolution(convolution) => Some(&convolution.precision),
            _ => None,
        }
    }

    /// The same, mutable.
    pub fn precision_mut(&mut self) -> Option<&mut PrecisionConfig> {
        match self {
            Op::Dot { precision, .. } => Some(precision),
            Op::Convolution(convolution) => Some(&mut convolution.precision),
            _ => None,
        }
    }

    /// The computations that this op calls, in the order of its attributes.
    pub fn called(&self) -> Vec<CompId> {
        match self {
            Op::Scatter { to_apply, .. }
            | Op::Reduce { to_apply, .. }
            | Op::ReduceWindow { to_apply, .. }
            | Op::Sort { to_apply, .. }
            | Op::Call { to_apply } => vec![*to_apply],
            Op::SelectAndScatter { select, scatter, .. } => vec![*select, *scatter],
            Op::While { condition, body } => vec![*condition, *body],
            Op::Conditional(conditional) => conditional.branches.clone(),
            Op::CustomCall(call) => call.called.clone(),
            Op::AllReduce(all_reduce) => vec![all_reduce.to_apply],
            Op::Opaque(opaque) => opaque.called.iter().flat_map(|(_, comps)| comps).copied().collect(),
            _ => Vec::new(),
        }
    }

    /// Visits the ids of called computations, to renumber them.
    pub fn for_each_called_mut(&mut self, visit: &mut dyn FnMut(&mut CompId)) {
        match self {
            Op::Scatter { to_apply, .. }
            | Op::Reduce { to_apply, .. }
            | Op::ReduceWindow { to_apply, .. }
            | Op::Sort { to_apply, .. }
            | Op::Call { to_apply } => visit(to_apply),
            Op::SelectAndScatter { select, scatter, .. } => {
                visit(select);
                visit(scatter);
            }
            Op::While { condition, body } => {
                visit(condition);
                visit(body);
            }
            Op::Conditional(conditional) => conditional.branches.iter_mut().for_each(visit),
            Op::CustomCall(call) => call.called.iter_mut().for_each(visit),
            Op::AllReduce(all_reduce) => visit(&mut all_reduce.to_apply),
            Op::Opaque(opaque) => opaque.called.iter_mut().flat_map(|(_, comps)| comps).for_each(visit),
            Op::Parameter { .. }
            | Op::Constant(_)
            | Op::Iota { .. }
            | Op::RngBitGenerator(_)
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare { .. }
            | Op::Select
            | Op::Clamp
            | Op::Convert
            | Op::BitcastConvert
            | Op::ReducePrecision { .. }
            | Op::Broadcast { .. }
            | Op::Reshape
            | Op::Transpose { .. }
            | Op::Slice(_)
            | Op::Pad(_)
            | Op::Concatenate { .. }
            | Op::Reverse { .. }
            | Op::DynamicSlice { .. }
            | Op::DynamicUpdateSlice
            | Op::Gather(_)
            | Op::Dot { .. }
            | Op::Convolution(_)
            | Op::BatchNormTraining(_)
            | Op::BatchNormInference(_)
            | Op::BatchNormGrad(_)
            | Op::Tuple
            | Op::GetTupleElement { .. }
            | Op::OptimizationBarrier => {}
        }
    }
}

/// The computations that an op may call, such as those of a [`Module`](super::Module).
pub trait Callees {
    /// The signature of a computation, if it exists and is not empty.
    fn signature(&self, comp: CompId) -> Option<Signature<'_>>;
}

/// Parameter shapes and result shape of a called computation.
#[derive(Clone, Debug)]
pub struct Signature<'m> {
    /// Parameters, ordered by number.
    pub parameters: Vec<&'m Shape>,
    /// Result.
    pub result: &'m Shape,
}

/// Infers the result shape of an op: the only shape rule.
///
/// `callees` are the computations of the op's module. `declared` is the shape that an instruction states. Some ops
/// need it, because their operands do not determine the result: `parameter`, `iota`, `rng-bit-generator`, `convert`,
/// `bitcast-convert`, `broadcast` (new dims), `reshape`, `custom-call` and opaque ops; without it they are an error.
/// `dot` and `convolution` use only its dtype, as XLA's `preferred_element_type`; without it the result has the
/// operands' dtype. All others ignore it. The result has no layout.
///
/// # Errors
/// The broken rule of the op, with measured and expected values.
pub fn infer_shape(
    callees: &dyn Callees,
    op: &Op,
    operands: &[&Shape],
    declared: Option<&Shape>,
) -> Result<Shape, RuleError> {
    match op {
        Op::Parameter { .. } => source::parameter(operands, declared),
        Op::Constant(literal) => source::constant(literal, operands),
        Op::Iota { dimension } => source::iota(*dimension, operands, declared),
        Op::RngBitGenerator(algorithm) => source::rng_bit_generator(*algorithm, operands, declared),
        Op::Unary(op) => elementwise::unary(*op, operands),
        Op::Binary(op) => elementwise::binary(*op, operands),
        Op::Compare { direction, kind } => elementwise::compare(*direction, *kind, operands),
        Op::Select => elementwise::select(operands),
        Op::Clamp => elementwise::clamp(operands),
        Op::Convert => conversion::convert(operands, declared),
        Op::BitcastConvert => conversion::bitcast_convert(operands, declared),
        Op::ReducePrecision { exponent_bits, mantissa_bits } => {
            conversion::reduce_precision(*exponent_bits, *mantissa_bits, operands)
        }
        Op::Broadcast { dimensions } => movement::broadcast(dimensions, operands, declared),
        Op::Reshape => movement::reshape(operands, declared),
        Op::Transpose { permutation } => movement::transpose(permutation, operands),
        Op::Slice(dims) => movement::slice(dims, operands),
        Op::Pad(dims) => movement::pad(dims, operands),
        Op::Concatenate { dimension } => movement::concatenate(*dimension, operands),
        Op::Reverse { dimensions } => movement::reverse(dimensions, operands),
        Op::DynamicSlice { slice_sizes } => indexing::dynamic_slice(slice_sizes, operands),
        Op::DynamicUpdateSlice => indexing::dynamic_update_slice(operands),
        Op::Gather(dims) => indexing::gather(dims, operands),
        Op::Scatter { dims, to_apply } => indexing::scatter(callees, dims, *to_apply, operands),
        Op::Dot { dims, precision } => dot::dot(dims, precision, operands, declared),
        Op::Convolution(convolution) => convolution::convolution(convolution, operands, declared),
        Op::Reduce { dimensions, to_apply } => reduction::reduce(callees, dimensions, *to_apply, operands),
        Op::ReduceWindow { window, to_apply } => window::reduce_window(callees, window, *to_apply, operands),
        Op::SelectAndScatter { window, select, scatter } => {
            window::select_and_scatter(callees, window, *select, *scatter, operands)
        }
        Op::BatchNormTraining(attributes) => batch_norm::training(attributes, operands),
        Op::BatchNormInference(attributes) => batch_norm::inference(attributes, operands),
        Op::BatchNormGrad(attributes) => batch_norm::gradients(attributes, operands),
        Op::Sort { dimension, to_apply, .. } => reduction::sort(callees, *dimension, *to_apply, operands),
        Op::Tuple => control::tuple(operands),
        Op::GetTupleElement { index } => control::get_tuple_element(*index, operands),
        Op::Call { to_apply } => control::call(callees, *to_apply, operands),
        Op::While { condition, body } => control::while_loop(callees, *condition, *body, operands),
        Op::Conditional(conditional) => control::conditional(callees, conditional, operands),
        Op::CustomCall(call) => control::custom_call(call, operands, declared),
        Op::AllReduce(all_reduce) => collective::all_reduce(callees, all_reduce, operands),
        Op::OptimizationBarrier => control::optimization_barrier(operands),
        Op::Opaque(opaque) => opaque::opaque(opaque, operands, declared),
    }
}
