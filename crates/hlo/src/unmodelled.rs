//! Converts attributes of opcodes that the IR does not model between text and proto.
//!
//! [`Unmodelled`](super::Unmodelled) keeps such attributes in the form of the input. This module converts them to the
//! other form, for a foreign module that is read from one and written to the other: fusions, collectives, custom
//! calls' extras. A field without a row here is only written in the form in which it was read; an attribute without a
//! row is an error when a proto is written.
//!
//! Source: `PrintExtraAttributesImpl` and `ToProto` of each instruction class in XLA's `hlo_instructions.cc`.

use prost::Message as _;

use super::proto::attributes::{decode_convolution_dims, decode_window, take_groups};
use super::proto::messages::{HloComputationProto, HloInstructionProto, OpMetadata, OutputOperandAliasing};
use super::proto::shape;
use super::text::forms::{dim_labels_text, finished, groups_text, list, window_text};
use super::text::lex::Cursor;
use super::text::number::escape;
use super::text::op::{BEFORE_API_VERSION, BEFORE_TARGET};
use super::text::print::METADATA;
use super::{Op, Unmodelled};

mod annotations;
mod fields;
mod lost;
mod ragged_dot;

pub use lost::{Lost, lost_in_text};

const CHANNEL_ID: &str = "channel_id";
const OUTFEED_SHAPE: &str = "outfeed_shape";
const EXECUTION_THREAD: &str = "execution_thread";
const FFT_TYPES: [&str; 4] = ["FFT", "IFFT", "RFFT", "IRFFT"];
const DISTRIBUTIONS: [&str; 3] = ["rng_invalid", "rng_uniform", "rng_normal"];
const SCHEDULES: [&str; 3] = ["SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"];
const PADDING_TYPES: [&str; 3] = ["PADDING_INVALID", "PADDING_VALID", "PADDING_SAME"];
const TRANSPOSES: [&str; 4] = ["TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"];

impl Unmodelled {
    /// The same without the parts that only say where an instruction was written, such as the columns of JAX's debug
    /// metadata: two instructions that differ only in that compute the same.
    pub fn without_metadata(&self) -> Unmodelled {
        let mut stripped = self.clone();
        stripped.attributes.retain(|(name, _)| name != METADATA);
        if let Ok(mut message) = HloInstructionProto::decode(stripped.proto.as_slice())
            && message.metadata.take().is_some()
        {
            stripped.proto = message.encode_to_vec();
        }
        stripped
    }

    /// Whether it may change what is computed.
    pub fn has_meaning(&self) -> bool {
        self.without_metadata() != Unmodelled::default()
    }
}

/// The name of a number, or an empty string.
fn name_of(names: &'static [&'static str], number: i32) -> &'static str {
    names.get(number as usize).copied().unwrap_or("")
}

/// The attributes of a text, in its order.
#[derive(Default)]
struct Attributes(Vec<(String, String)>);

impl Attributes {
    /// Without a value nothing is written: a number that is newer than its table of names has no text. `lost_in_text`
    /// reports it.
    fn put(&mut self, name: &str, value: impl Into<String>) {
        let value = value.into();
        if !value.is_empty() {
            self.0.push((name.to_string(), value));
        }
    }

    fn put_if(&mut self, is_written: bool, name: &str, value: impl ToString) {
        if is_written {
            self.put(name, value.to_string());
        }
    }
}

/// The text attributes of a message in which only unmodelled fields are set, in XLA's order.
pub(super) fn to_text(opcode: &str, proto: &HloInstructionProto) -> Vec<(String, String)> {
    let mut attributes = Attributes::default();
    collective_text(opcode, proto, &mut attributes);
    library_text(opcode, proto, &mut attributes);
    ragged_dot::to_text(proto).into_iter().for_each(|(name, text)| attributes.put(name, text));
    transfer_text(proto, &mut attributes);
    call_text(proto, &mut attributes);
    annotations::to_text(proto).into_iter().for_each(|(name, text)| attributes.put(name, text));
    attributes.put(METADATA, proto.metadata.as_ref().map(metadata_text).unwrap_or_default());
    attributes.0
}

fn braced(values: &[i64]) -> String {
    format!("{{{}}}", list(values))
}

/// Channels, groups of devices and flags, and the dimensions that collectives share with other ops.
fn collective_text(opcode: &str, proto: &HloInstructionProto, attributes: &mut Attributes) {
    attributes.put_if(proto.channel_id > 0, CHANNEL_ID, proto.channel_id);
    if is_collective(opcode)
        && let Some(groups) = take_groups(&mut proto.clone())
    {
        attributes.put("replica_groups", groups_text(&groups));
    }
    if !proto.source_target_pairs.is_empty() {
        let pairs: Vec<String> =
            proto.source_target_pairs.iter().map(|pair| format!("{{{},{}}}", pair.source, pair.target)).collect();
        attributes.put("source_target_pairs", format!("{{{}}}", pairs.join(",")));
    }
    attributes.put_if(proto.constrain_layout && opcode != "custom-call", "constrain_layout", true);
    attributes.put_if(proto.use_global_device_ids, "use_global_device_ids", true);
    attributes.put_if(proto.is_host_transfer, "is_host_transfer", true);
    attributes.put_if(proto.is_composite, "is_composite", true);
    attributes.put_if(!proto.dimensions.is_empty(), "dimensions", braced(&proto.dimensions));
}

/// Ops that XLA passes to libraries, or expands: transforms, triangular systems, factors, random numbers.
fn library_text(opcode: &str, proto: &HloInstructionProto, attributes: &mut Attributes) {
    if opcode == "fft" {
        attributes.put("fft_type", name_of(&FFT_TYPES, proto.fft_type));
        attributes.put("fft_length", braced(&proto.fft_length));
    }
    if let Some(options) = &proto.triangular_solve_options {
        attributes.put_if(options.left_side, "left_side", true);
        attributes.put_if(options.lower, "lower", true);
        attributes.put_if(options.unit_diagonal, "unit_diagonal", true);
        attributes.put("transpose_a", name_of(&TRANSPOSES, options.transpose_a));
    }
    attributes.put_if(proto.cholesky_options.is_some_and(|options| options.lower), "lower", true);
    if opcode == "topk" {
        attributes.put("k", proto.k.to_string());
        attributes.put("largest", proto.largest.to_string());
    }
    attributes.put_if(proto.delta != 0, "delta", proto.delta);
    attributes.put_if(proto.distribution != 0, "distribution", name_of(&DISTRIBUTIONS, proto.distribution));
}

/// Transfers to and from the host.
fn transfer_text(proto: &HloInstructionProto, attributes: &mut Attributes) {
    if let Some(Ok(shape)) = proto.outfeed_shape.as_deref().map(|shape| shape::decode(shape, OUTFEED_SHAPE)) {
        attributes.put(OUTFEED_SHAPE, shape.to_string());
    }
    for (name, bytes) in [("infeed_config", &proto.infeed_config), ("outfeed_config", &proto.outfeed_config)] {
        if let Ok(text) = std::str::from_utf8(bytes)
            && !bytes.is_empty()
        {
            attributes.put(name, format!("\"{}\"", escape(text)));
        }
    }
}

/// Custom calls, fusions and asynchronous starts.
fn call_text(proto: &HloInstructionProto, attributes: &mut Attributes) {
    if let Some(window) = proto.window.clone().filter(|window| !window.dimensions.is_empty()) {
        attributes.put("window", format!("{{{}}}", window_text(&decode_window(window))));
    }
    if let Some(dims) = proto.convolution_dimension_numbers.clone() {
        attributes.put("dim_labels", dim_labels_text(&decode_convolution_dims(*dims)));
    }
    attributes.put_if(proto.feature_group_count > 1, "feature_group_count", proto.feature_group_count);
    attributes.put_if(proto.batch_group_count > 1, "batch_group_count", proto.batch_group_count);
    attributes.put_if(proto.padding_type != 0, "padding_type", name_of(&PADDING_TYPES, proto.padding_type));
    if !proto.output_operand_aliasing.is_empty() {
        let pair = |pair: &OutputOperandAliasing| {
            let OutputOperandAliasing { output_shape_index, operand_index, operand_shape_index } = pair;
            format!("{}: ({operand_index}, {})", braced(output_shape_index), braced(operand_shape_index))
        };
        let pairs: Vec<String> = proto.output_operand_aliasing.iter().map(pair).collect();
        attributes.put("output_to_operand_aliasing", format!("{{{}}}", pairs.join(", ")));
    }
    attributes.put_if(proto.custom_call_schedule != 0, "schedule", name_of(&SCHEDULES, proto.custom_call_schedule));
    attributes.put("kind", proto.fusion_kind.clone());
    if !proto.async_execution_thread.is_empty() {
        attributes.put("async_execution_thread", format!("\"{}\"", escape(&proto.async_execution_thread)));
    }
    if let Some(index) = proto.cross_program_prefetch_index {
        attributes.put("cross_program_prefetch_index", index.to_string());
    }
}

/// Whether an op may have an unmodelled attribute of this name. Opcodes that are not modelled at all may have any
/// name; others only those that HLO defines for them, as any other would be lost or mean nothing.
pub(super) fn may_have(op: &Op, name: &str) -> bool {
    let is_annotation = [METADATA, annotations::STATISTICS, annotations::ORIGIN, annotations::ACCURACY].contains(&name);
    is_annotation
        || match op {
            Op::Opaque(_) => true,
            Op::CustomCall(_) => {
                BEFORE_TARGET.contains(&name) || BEFORE_API_VERSION.contains(&name) || name == CHANNEL_ID
            }
            Op::Call { .. } => name == "is_composite",
            Op::Dot { .. } => name == "sparsity",
            Op::Convolution(_) => matches!(name, "conv_kind" | "sparsity"),
            Op::Reshape => name == "inferred_dimension",
            _ => false,
        }
}

fn is_collective(opcode: &str) -> bool {
    ["all-", "collective-broadcast", "reduce-scatter", "ragged-all"].iter().any(|prefix| opcode.starts_with(prefix))
}

fn metadata_text(metadata: &OpMetadata) -> String {
    let mut parts = Vec::new();
    let numbers = [
        ("source_end_line", metadata.source_end_line),
        ("source_column", metadata.source_column),
        ("source_end_column", metadata.source_end_column),
    ];
    parts.extend(numbers.iter().filter(|(_, number)| *number != 0).map(|(name, number)| format!("{name}={number}")));
    let texts = [("deduplicated_name", &metadata.deduplicated_name), ("scheduling_name", &metadata.scheduling_name)];
    let present = texts.iter().filter(|(_, text)| !text.is_empty());
    parts.extend(present.map(|(name, text)| format!("{name}=\"{}\"", escape(text))));
    parts.join(" ")
}

/// Why the unmodelled attributes have no message.
#[derive(Debug)]
pub(super) enum NoMessage {
    /// The stored bytes are not a message.
    Wire(prost::DecodeError),
    /// The name of the first attribute that has no row here, or whose value its row cannot read.
    Attribute(String),
}

/// The message of an instruction's unmodelled attributes. An instruction from a proto has the whole message, of which
/// its text attributes are a copy; an instruction from text only has the text attributes.
pub(super) fn message(opcode: &str, unmodelled: &Unmodelled) -> Result<HloInstructionProto, NoMessage> {
    let mut proto = HloInstructionProto::decode(unmodelled.proto.as_slice()).map_err(NoMessage::Wire)?;
    if unmodelled.proto.is_empty() {
        to_proto(opcode, &unmodelled.attributes, &mut proto).map_err(NoMessage::Attribute)?;
    }
    Ok(proto)
}

/// Sets the fields of text attributes.
///
/// # Errors
/// The name of the first attribute that has no row here, or whose value its row cannot read.
fn to_proto(opcode: &str, attributes: &[(String, String)], proto: &mut HloInstructionProto) -> Result<(), String> {
    for (name, text) in attributes {
        let mut value = Cursor::new(text);
        let known = fields::set(opcode, name, &mut value, proto).and_then(|known| {
            finished(&mut value)?;
            Ok(known)
        });
        if !matches!(known, Ok(true)) {
            return Err(name.clone());
        }
    }
    Ok(())
}

/// The text attributes of a computation's message.
pub(super) fn computation_to_text(proto: &HloComputationProto) -> Vec<(String, String)> {
    if proto.execution_thread.is_empty() {
        return Vec::new();
    }
    vec![(EXECUTION_THREAD.to_string(), format!("\"{}\"", escape(&proto.execution_thread)))]
}

/// Sets the fields of a computation's text attributes.
///
/// # Errors
/// The name of the first attribute without a field.
pub(super) fn computation_to_proto(
    attributes: &[(String, String)],
    proto: &mut HloComputationProto,
) -> Result<(), String> {
    for (name, text) in attributes {
        match (name.as_str(), Cursor::new(text).string()) {
            (EXECUTION_THREAD, Ok(thread)) => proto.execution_thread = thread,
            _ => return Err(name.clone()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
