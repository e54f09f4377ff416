//! Sets the fields of a message that unmodelled text attributes have.

use super::{
    CHANNEL_ID, DISTRIBUTIONS, FFT_TYPES, OUTFEED_SHAPE, PADDING_TYPES, SCHEDULES, TRANSPOSES, annotations, ragged_dot,
};
use crate::ops::ReplicaGroups;
use crate::proto::attributes::{encode_convolution_dims, encode_groups, encode_window};
use crate::proto::messages::{CholeskyOptions, HloInstructionProto, OpMetadata, OutputOperandAliasing, SourceTarget};
use crate::proto::shape;
use crate::text::forms::{dim_labels, replica_groups, window};
use crate::text::lex::{Cursor, Read};
use crate::text::print::METADATA;

/// Reads one attribute; `false` if it has no row.
pub(super) fn set(opcode: &str, name: &str, value: &mut Cursor<'_>, proto: &mut HloInstructionProto) -> Read<bool> {
    Ok(opcode == ragged_dot::OPCODE && ragged_dot::set(name, value, proto)?
        || set_collective(name, value, proto)?
        || set_library(opcode, name, value, proto)?
        || set_transfer(name, value, proto)?
        || set_call(name, value, proto)?
        || set_metadata(name, value, proto)?
        || annotations::set(name, value, proto)?)
}

/// The number of a name in a table.
fn number_in(names: &[&str], value: &mut Cursor<'_>) -> Read<i32> {
    let word = value.word_or_empty();
    match names.iter().position(|&known| known == word) {
        Some(number) => Ok(number as i32),
        None => Err(value.expected(names.join(", "))),
    }
}

/// Channels, groups of devices and flags, and the dimensions that collectives share with other ops.
fn set_collective(name: &str, value: &mut Cursor<'_>, proto: &mut HloInstructionProto) -> Read<bool> {
    match name {
        CHANNEL_ID => proto.channel_id = value.int()?,
        "replica_groups" => {
            let groups = replica_groups(value)?;
            // No groups mean all replicas, as does a message without the field; it must come back without the field.
            if groups != ReplicaGroups::List(Vec::new()) {
                encode_groups(&groups, proto);
            }
        }
        "source_target_pairs" => value.sequence("{", "}", |value| {
            let pair = value.ints("{", "}")?;
            let &[source, target] = &pair[..] else { return Err(value.expected("pairs of devices")) };
            proto.source_target_pairs.push(SourceTarget { source, target });
            Ok(())
        })?,
        "constrain_layout" => proto.constrain_layout = value.boolean()?,
        "use_global_device_ids" => proto.use_global_device_ids = value.boolean()?,
        "is_host_transfer" => proto.is_host_transfer = value.boolean()?,
        "is_composite" => proto.is_composite = value.boolean()?,
        "dimensions" => proto.dimensions = value.ints("{", "}")?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Ops that XLA passes to libraries, or expands: transforms, triangular systems, factors, random numbers.
fn set_library(opcode: &str, name: &str, value: &mut Cursor<'_>, proto: &mut HloInstructionProto) -> Read<bool> {
    let triangular = &mut proto.triangular_solve_options;
    match name {
        "fft_type" => proto.fft_type = number_in(&FFT_TYPES, value)?,
        "fft_length" => proto.fft_length = value.ints("{", "}")?,
        "left_side" => triangular.get_or_insert_default().left_side = value.boolean()?,
        "unit_diagonal" => triangular.get_or_insert_default().unit_diagonal = value.boolean()?,
        "transpose_a" => triangular.get_or_insert_default().transpose_a = number_in(&TRANSPOSES, value)?,
        "lower" if opcode == "cholesky" => {
            proto.cholesky_options = Some(CholeskyOptions { lower: value.boolean()? });
        }
        "lower" => triangular.get_or_insert_default().lower = value.boolean()?,
        "k" => proto.k = value.int()?,
        "largest" => proto.largest = value.boolean()?,
        "delta" => proto.delta = value.int()?,
        "distribution" => proto.distribution = number_in(&DISTRIBUTIONS, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Transfers to and from the host.
fn set_transfer(name: &str, value: &mut Cursor<'_>, proto: &mut HloInstructionProto) -> Read<bool> {
    match name {
        "infeed_config" => proto.infeed_config = value.string()?.into_bytes(),
        "outfeed_config" => proto.outfeed_config = value.string()?.into_bytes(),
        OUTFEED_SHAPE => proto.outfeed_shape = Some(Box::new(shape::encode(&value.shape()?))),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Custom calls, fusions and asynchronous starts.
fn set_call(name: &str, value: &mut Cursor<'_>, proto: &mut HloInstructionProto) -> Read<bool> {
    match name {
        "window" => proto.window = Some(encode_window(&window(value)?)),
        "dim_labels" => {
            proto.convolution_dimension_numbers = Some(Box::new(encode_convolution_dims(&dim_labels(value)?)));
        }
        "feature_group_count" => proto.feature_group_count = value.int()?,
        "batch_group_count" => proto.batch_group_count = value.int()?,
        "padding_type" => proto.padding_type = number_in(&PADDING_TYPES, value)?,
        "output_to_operand_aliasing" => value.sequence("{", "}", |value| {
            let output_shape_index = value.ints("{", "}")?;
            value.expect(":")?;
            value.expect("(")?;
            let operand_index = value.int()?;
            value.expect(",")?;
            let operand_shape_index = value.ints("{", "}")?;
            value.expect(")")?;
            let pair = OutputOperandAliasing { output_shape_index, operand_index, operand_shape_index };
            proto.output_operand_aliasing.push(pair);
            Ok(())
        })?,
        "schedule" => proto.custom_call_schedule = number_in(&SCHEDULES, value)?,
        "kind" => proto.fusion_kind = value.word("a fusion kind")?.to_string(),
        "async_execution_thread" => proto.async_execution_thread = value.string()?,
        "cross_program_prefetch_index" => proto.cross_program_prefetch_index = Some(value.int()? as i32),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Metadata beyond what the IR models.
fn set_metadata(name: &str, value: &mut Cursor<'_>, proto: &mut HloInstructionProto) -> Read<bool> {
    if name != METADATA {
        return Ok(false);
    }
    let metadata: &mut OpMetadata = proto.metadata.get_or_insert_default();
    while !value.at_end() {
        let name = value.word("a metadata field")?;
        value.expect("=")?;
        match name {
            "source_end_line" => metadata.source_end_line = value.int()? as i32,
            "source_column" => metadata.source_column = value.int()? as i32,
            "source_end_column" => metadata.source_end_column = value.int()? as i32,
            "deduplicated_name" => metadata.deduplicated_name = value.string()?,
            "scheduling_name" => metadata.scheduling_name = value.string()?,
            _ => return Err(value.expected("a metadata field that a proto has")),
        }
    }
    Ok(true)
}
