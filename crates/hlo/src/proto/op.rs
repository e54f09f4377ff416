//! Converts ops to and from the fields of `HloInstructionProto`: which opcode uses which field.
//!
//! Decoding *takes* the fields it understands, so that the rest is exactly what the IR does not model.

use super::messages::{HloInstructionProto, ParameterReplication};
use super::{ProtoError, attributes, literal, shape};
use crate::ops::{
    AllReduce, BatchNorm, BinaryOp, CompareKind, Comparison, Conditional, Convolution, CustomCall, Opaque,
    RngAlgorithm, UnaryOp, WindowDim,
};
use crate::{CompId, Op, Shape};
use std::mem::take;

/// Called computations in the order of `called_computation_ids`: XLA lists a loop's body before its condition.
pub fn called(op: &Op) -> Vec<CompId> {
    match op {
        Op::While { condition, body } => vec![*body, *condition],
        _ => op.called(),
    }
}

/// Sets the fields of an op, except for opcode, operands and called computations. `lhs` is the first operand's shape.
///
/// # Errors
/// An attribute cannot be represented in a message.
pub fn encode(op: &Op, lhs: Option<&Shape>, proto: &mut HloInstructionProto, place: &str) -> Result<(), ProtoError> {
    match op {
        Op::Parameter { number, replication } => {
            proto.parameter_number = *number;
            if !replication.is_empty() {
                let replicated_at_leaf_buffers = replication.clone();
                proto.parameter_replication = Some(ParameterReplication { replicated_at_leaf_buffers });
            }
        }
        Op::Constant(literal) => proto.literal = Some(Box::new(literal::encode(literal, place)?)),
        Op::Iota { dimension } | Op::Concatenate { dimension } => proto.dimensions = vec![*dimension],
        Op::RngBitGenerator(algorithm) => proto.rng_algorithm = *algorithm as i32,
        Op::Compare { direction, kind } => {
            proto.comparison_direction = direction.name().to_string();
            let kind = kind.or_else(|| Some(CompareKind::default_of(lhs?.dtype()?)));
            proto.comparison_type = kind.map_or("", CompareKind::name).to_string();
        }
        Op::ReducePrecision { exponent_bits, mantissa_bits } => {
            proto.exponent_bits = *exponent_bits;
            proto.mantissa_bits = *mantissa_bits;
        }
        Op::Broadcast { dimensions } | Op::Reverse { dimensions } | Op::Reduce { dimensions, .. } => {
            proto.dimensions = dimensions.clone();
        }
        Op::Transpose { permutation } => proto.dimensions = permutation.clone(),
        Op::Slice(dims) => proto.slice_dimensions = attributes::encode_slice(dims),
        Op::Pad(dims) => proto.padding_config = Some(attributes::encode_padding(dims)),
        Op::DynamicSlice { slice_sizes } => proto.dynamic_slice_sizes = slice_sizes.clone(),
        Op::Gather(dims) => attributes::encode_gather(dims, proto),
        Op::Scatter { dims, .. } => attributes::encode_scatter(dims, proto),
        Op::Dot { dims, precision } => {
            proto.dot_dimension_numbers = Some(Box::new(attributes::encode_dot_dims(dims)));
            proto.precision_config = Some(attributes::encode_precision(precision, place)?);
        }
        Op::Convolution(convolution) => {
            proto.window = Some(attributes::encode_window(&convolution.window));
            proto.convolution_dimension_numbers =
                Some(Box::new(attributes::encode_convolution_dims(&convolution.dims)));
            proto.feature_group_count = convolution.feature_group_count;
            proto.batch_group_count = convolution.batch_group_count;
            proto.precision_config = Some(attributes::encode_precision(&convolution.precision, place)?);
        }
        Op::ReduceWindow { window, .. } | Op::SelectAndScatter { window, .. } => {
            proto.window = Some(attributes::encode_window(window));
        }
        Op::BatchNormTraining(norm) | Op::BatchNormInference(norm) | Op::BatchNormGrad(norm) => {
            proto.epsilon = norm.epsilon;
            proto.feature_index = norm.feature_index;
        }
        Op::Sort { dimension, is_stable, .. } => {
            proto.dimensions = vec![*dimension];
            proto.is_stable = *is_stable;
        }
        Op::GetTupleElement { index } => proto.tuple_index = *index,
        Op::CustomCall(call) => {
            proto.custom_call_target = call.target.clone();
            proto.custom_call_has_side_effect = call.has_side_effect;
            proto.custom_call_api_version = call.api_version;
            proto.constrain_layout = !call.operand_layouts.is_empty();
            proto.operand_shapes_with_layout = call.operand_layouts.iter().map(shape::encode).collect();
        }
        Op::AllReduce(all_reduce) => {
            attributes::encode_groups(&all_reduce.replica_groups, proto);
            proto.channel_id = all_reduce.channel_id.unwrap_or(0);
            proto.use_global_device_ids = all_reduce.use_global_device_ids;
            proto.constrain_layout = all_reduce.constrain_layout;
        }
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Clamp
        | Op::Convert
        | Op::BitcastConvert
        | Op::Reshape
        | Op::DynamicUpdateSlice
        | Op::Tuple
        | Op::Call { .. }
        | Op::While { .. }
        | Op::Conditional(_)
        | Op::OptimizationBarrier
        | Op::Opaque(_) => {}
    }
    Ok(())
}

/// The context of an instruction's message.
pub struct Context<'a> {
    /// Computation and instruction, for errors.
    pub place: &'a str,
    /// `called_computation_ids`, resolved.
    pub called: Vec<CompId>,
    /// The first operand's shape.
    pub lhs: Option<&'a Shape>,
}

impl Context<'_> {
    fn missing(&self, field: &'static str) -> ProtoError {
        ProtoError::missing(self.place, field)
    }

    /// The called computations; there must be `N`.
    fn calls<const N: usize>(&self) -> Result<[CompId; N], ProtoError> {
        <[CompId; N]>::try_from(self.called.as_slice()).map_err(|_| {
            let expected = if N == 1 { "1 id" } else { "2 ids" };
            ProtoError::unknown(self.place, "called_computation_ids", self.called.len() as i64, expected)
        })
    }

    fn only(&self, dimensions: &mut Vec<i64>) -> Result<i64, ProtoError> {
        match take(dimensions)[..] {
            [dimension] => Ok(dimension),
            _ => Err(self.missing("dimensions (exactly one)")),
        }
    }

    fn named<T>(
        &self,
        field: &'static str,
        name: String,
        all: &[T],
        of: fn(&T) -> &'static str,
    ) -> Result<T, ProtoError>
    where
        T: Copy,
    {
        all.iter().copied().find(|item| of(item) == name).ok_or_else(|| ProtoError::UnknownName {
            place: self.place.to_string(),
            field,
            name,
            expected: all.iter().map(of).collect::<Vec<_>>().join(", "),
        })
    }
}

/// Takes an op from its message. An opcode that the IR does not model, or uses of an opcode that it does not, become
/// [`Op::Opaque`] and keep their fields.
///
/// # Errors
/// A modelled opcode's message lacks a required field.
pub fn decode(proto: &mut HloInstructionProto, context: Context<'_>) -> Result<Op, ProtoError> {
    let opcode = take(&mut proto.opcode);
    if let Some(op) = UnaryOp::from_name(&opcode) {
        return Ok(Op::Unary(op));
    }
    if let Some(op) = BinaryOp::from_name(&opcode) {
        return Ok(Op::Binary(op));
    }
    let cx = &context;
    let op = match opcode.as_str() {
        "parameter" => Op::Parameter {
            number: take(&mut proto.parameter_number),
            replication: proto.parameter_replication.take().unwrap_or_default().replicated_at_leaf_buffers,
        },
        "constant" => {
            let literal = proto.literal.take().ok_or_else(|| cx.missing("literal"))?;
            Op::Constant(literal::decode(*literal, cx.place)?)
        }
        "iota" => Op::Iota { dimension: cx.only(&mut proto.dimensions)? },
        "rng-bit-generator" => {
            let number = take(&mut proto.rng_algorithm);
            let unknown = || ProtoError::unknown(cx.place, "rng_algorithm", number.into(), "0, 1 or 2");
            Op::RngBitGenerator(RngAlgorithm::ALL.get(number as usize).copied().ok_or_else(unknown)?)
        }
        "compare" => decode_compare(proto, cx)?,
        "select" => Op::Select,
        "clamp" => Op::Clamp,
        "convert" => Op::Convert,
        "bitcast-convert" => Op::BitcastConvert,
        "reduce-precision" => Op::ReducePrecision {
            exponent_bits: take(&mut proto.exponent_bits),
            mantissa_bits: take(&mut proto.mantissa_bits),
        },
        "broadcast" => Op::Broadcast { dimensions: take(&mut proto.dimensions) },
        "reshape" => Op::Reshape,
        "transpose" => Op::Transpose { permutation: take(&mut proto.dimensions) },
        "slice" => Op::Slice(attributes::decode_slice(take(&mut proto.slice_dimensions))),
        "pad" => Op::Pad(attributes::decode_padding(proto.padding_config.take().unwrap_or_default())),
        "concatenate" => Op::Concatenate { dimension: cx.only(&mut proto.dimensions)? },
        "reverse" => Op::Reverse { dimensions: take(&mut proto.dimensions) },
        "dynamic-slice" => Op::DynamicSlice { slice_sizes: take(&mut proto.dynamic_slice_sizes) },
        "dynamic-update-slice" => Op::DynamicUpdateSlice,
        "gather" => {
            let dims = proto.gather_dimension_numbers.take().ok_or_else(|| cx.missing("gather_dimension_numbers"))?;
            Op::Gather(attributes::decode_gather(*dims, proto))
        }
        "scatter" => {
            let [to_apply] = cx.calls()?;
            let dims = proto.scatter_dimension_numbers.take().ok_or_else(|| cx.missing("scatter_dimension_numbers"))?;
            Op::Scatter { dims: attributes::decode_scatter(*dims, proto), to_apply }
        }
        "dot" => {
            let dims = proto.dot_dimension_numbers.take().ok_or_else(|| cx.missing("dot_dimension_numbers"))?;
            let precision = proto.precision_config.take().unwrap_or_default();
            Op::Dot {
                dims: attributes::decode_dot_dims(*dims),
                precision: attributes::decode_precision(precision, cx.place)?,
            }
        }
        "convolution" => decode_convolution(proto, cx)?,
        "reduce" => {
            let [to_apply] = cx.calls()?;
            Op::Reduce { dimensions: take(&mut proto.dimensions), to_apply }
        }
        "reduce-window" => {
            let [to_apply] = cx.calls()?;
            Op::ReduceWindow { window: window(proto, cx)?, to_apply }
        }
        "select-and-scatter" => {
            let [select, scatter] = cx.calls()?;
            Op::SelectAndScatter { window: window(proto, cx)?, select, scatter }
        }
        "batch-norm-training" => Op::BatchNormTraining(batch_norm(proto)),
        "batch-norm-inference" => Op::BatchNormInference(batch_norm(proto)),
        "batch-norm-grad" => Op::BatchNormGrad(batch_norm(proto)),
        "sort" => {
            let [to_apply] = cx.calls()?;
            Op::Sort { dimension: cx.only(&mut proto.dimensions)?, is_stable: take(&mut proto.is_stable), to_apply }
        }
        "tuple" => Op::Tuple,
        "get-tuple-element" => Op::GetTupleElement { index: take(&mut proto.tuple_index) },
        "call" => {
            let [to_apply] = cx.calls()?;
            Op::Call { to_apply }
        }
        "while" => {
            let [body, condition] = cx.calls()?;
            Op::While { condition, body }
        }
        "conditional" => Op::Conditional(Conditional { branches: context.called }),
        "custom-call" => decode_custom_call(proto, context)?,
        "all-reduce" => decode_all_reduce(proto, context)?,
        "opt-barrier" => Op::OptimizationBarrier,
        _ => opaque(opcode, context.called),
    };
    Ok(op)
}

fn opaque(opcode: String, called: Vec<CompId>) -> Op {
    let attribute = match opcode.as_str() {
        "fusion" | "async-start" => "calls",
        _ => "to_apply",
    };
    let called = if called.is_empty() { Vec::new() } else { vec![(attribute.to_string(), called)] };
    Op::Opaque(Box::new(Opaque { opcode, called }))
}

fn decode_compare(proto: &mut HloInstructionProto, cx: &Context<'_>) -> Result<Op, ProtoError> {
    let direction = take(&mut proto.comparison_direction);
    let direction = cx.named("comparison_direction", direction, Comparison::ALL, |item| item.name())?;
    let kind = match take(&mut proto.comparison_type) {
        name if name.is_empty() => None,
        name => {
            let kind = cx.named("comparison_type", name, CompareKind::ALL, |item| item.name())?;
            let default = cx.lhs.and_then(Shape::dtype).map(CompareKind::default_of);
            (Some(kind) != default).then_some(kind)
        }
    };
    Ok(Op::Compare { direction, kind })
}

fn window(proto: &mut HloInstructionProto, cx: &Context<'_>) -> Result<Vec<WindowDim>, ProtoError> {
    let window = proto.window.take().ok_or_else(|| cx.missing("window"))?;
    Ok(attributes::decode_window(window))
}

fn batch_norm(proto: &mut HloInstructionProto) -> BatchNorm {
    BatchNorm { epsilon: take(&mut proto.epsilon), feature_index: take(&mut proto.feature_index) }
}

fn decode_convolution(proto: &mut HloInstructionProto, cx: &Context<'_>) -> Result<Op, ProtoError> {
    let missing = || cx.missing("convolution_dimension_numbers");
    let dims = proto.convolution_dimension_numbers.take().ok_or_else(missing)?;
    let precision = proto.precision_config.take().unwrap_or_default();
    Ok(Op::Convolution(Box::new(Convolution {
        window: attributes::decode_window(proto.window.take().unwrap_or_default()),
        dims: attributes::decode_convolution_dims(*dims),
        // In messages older than these fields the count is 1.
        feature_group_count: take(&mut proto.feature_group_count).max(1),
        batch_group_count: take(&mut proto.batch_group_count).max(1),
        precision: attributes::decode_precision(precision, cx.place)?,
    })))
}

fn decode_custom_call(proto: &mut HloInstructionProto, cx: Context<'_>) -> Result<Op, ProtoError> {
    let constrained = take(&mut proto.constrain_layout);
    let layouts = take(&mut proto.operand_shapes_with_layout);
    // A constraint on no operands differs from no constraint: it stays among the unmodelled fields.
    proto.constrain_layout = constrained && layouts.is_empty();
    Ok(Op::CustomCall(Box::new(CustomCall {
        target: take(&mut proto.custom_call_target),
        has_side_effect: take(&mut proto.custom_call_has_side_effect),
        api_version: take(&mut proto.custom_call_api_version),
        operand_layouts: layouts.iter().map(|s| shape::decode(s, cx.place)).collect::<Result<_, _>>()?,
        called: cx.called,
    })))
}

fn decode_all_reduce(proto: &mut HloInstructionProto, cx: Context<'_>) -> Result<Op, ProtoError> {
    let [to_apply] = cx.calls()?;
    let Some(replica_groups) = attributes::take_groups(proto) else {
        return Ok(opaque("all-reduce".to_string(), cx.called));
    };
    // `all_reduce_id` is the older name of `channel_id`; neither is set unless positive.
    let channel_id = match take(&mut proto.channel_id) {
        0 => take(&mut proto.all_reduce_id),
        id => id,
    };
    Ok(Op::AllReduce(Box::new(AllReduce {
        to_apply,
        replica_groups,
        channel_id: (channel_id > 0).then_some(channel_id),
        use_global_device_ids: take(&mut proto.use_global_device_ids),
        constrain_layout: take(&mut proto.constrain_layout),
    })))
}

#[cfg(test)]
mod tests;
