//! Estimates the memory that a message takes once it is decoded, before any is allocated.
//!
//! A field of two bytes can become a struct of two thousand, so the size of a file does not bound the memory that it
//! needs. [`bytes_needed`] walks the encoding and adds up the structs that decoding will create, and the memory of the
//! resulting module. It allocates nothing itself.

use super::messages::*;
use crate::{Computation, Instruction, Shape};
use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};

/// The deepest nesting of messages that decoding accepts; deeper ones need not be counted.
const MAX_DEPTH: usize = 100;

/// A message whose size matters: it is large, or contains large ones.
#[derive(Clone, Copy)]
enum MessageKind {
    Module,
    Computation,
    Instruction,
    ProgramShape,
    Shape,
    Layout,
    Literal,
    Sharding,
    Metadata,
    OriginalValue,
    Schedule,
    /// Any other: a few numbers, or lists of them.
    Small,
}

impl MessageKind {
    /// The memory of one such message, in its list and in the module.
    fn n_bytes(self) -> u64 {
        let n_bytes = match self {
            MessageKind::Module => 0,
            MessageKind::Computation => size_of::<HloComputationProto>() + size_of::<Computation>() + 256,
            // Ids, order and names are looked up in tables while instructions are created.
            MessageKind::Instruction => size_of::<HloInstructionProto>() + size_of::<Instruction>() + 256,
            MessageKind::ProgramShape => size_of::<ProgramShapeProto>(),
            MessageKind::Shape => size_of::<ShapeProto>() + size_of::<Shape>(),
            MessageKind::Layout => size_of::<LayoutProto>(),
            MessageKind::Literal => size_of::<LiteralProto>(),
            MessageKind::Sharding => 3 * size_of::<OpSharding>(),
            MessageKind::Metadata => size_of::<OpMetadata>(),
            MessageKind::OriginalValue | MessageKind::Schedule => 64,
            MessageKind::Small => 64,
        };
        n_bytes as u64
    }

    /// The contents of a field with a length: a message, or bytes that take this many times their size.
    fn field(self, tag: u32) -> Result<MessageKind, u64> {
        use MessageKind::*;
        Ok(match (self, tag) {
            (Module, 3) => Computation,
            (Module | Computation, 4) => ProgramShape,
            (Module, 7) => Schedule,
            (Module, 12 | 14) => Sharding,
            (Module, 8 | 10 | 17 | 18 | 19) => Small,
            (Computation, 2) => Instruction,
            (Instruction, 3 | 29 | 57) | (ProgramShape, 1 | 2) | (Shape, 4) | (Layout, 10) => Shape,
            (Shape, 5) => Layout,
            (Instruction, 7) | (Sharding, 7) => Metadata,
            (Instruction, 8) | (Literal, 10) => Literal,
            (Literal, 1) | (Sharding, 2) => Shape,
            (Instruction, 40 | 54 | 55) | (Sharding, 5) => Sharding,
            (Instruction, 88) => OriginalValue,
            (OriginalValue, 1) | (Schedule, 1) => Small,
            (Layout, 6 | 17) => Small,
            (Instruction, 15..=17 | 21 | 30 | 33 | 48 | 49 | 51 | 52 | 59 | 61 | 62 | 68 | 74 | 82 | 87 | 90..=93) => {
                Small
            }
            // Lists inside lists: groups of replicas, dimensions of a window.
            (Small, 1..=5) => Small,
            // A literal's numbers: packed in one byte each they take four or eight; those of fixed width, and bytes,
            // take their own size, and again in the row-major literal.
            (Literal, 4..=7 | 14 | 34) => return Err(12),
            (Literal, _) => return Err(3),
            (Metadata, 5) => return Err(8),
            // Names and texts are stored in the message and in the module; lists of them take a string each.
            (Module, 13 | 22) | (ProgramShape, 3) | (Instruction, 86) => return Err(40),
            (Module | Computation | Metadata, _) | (Instruction, 1 | 2 | 11 | 28 | 43 | 63 | 72 | 79) => return Err(3),
            // Packed numbers of a byte each take eight, and grow by doubling; as text they take up to twenty.
            _ => return Err(24),
        })
    }
}

/// Bytes of memory that the module in `bytes` takes while it is read, an upper estimate; `bytes` not counted.
///
/// Bytes that are not a message count as far as they can be read: decoding reports the error.
pub(super) fn bytes_needed(bytes: &[u8], is_wrapped: bool) -> u64 {
    let mut total = 0;
    let mut bytes = bytes;
    while let Some((tag, field)) = next_field(&mut bytes) {
        total += match (is_wrapped, tag, field) {
            (true, 1, Some(module)) => within(module, MessageKind::Module, 0),
            (true, _, field) => field.map_or(0, |field| field.len() as u64),
            (false, tag, Some(field)) => of_field(field, MessageKind::Module, tag, 0),
            (false, _, None) => 0,
        };
    }
    total
}

fn of_field(field: &[u8], within_kind: MessageKind, tag: u32, depth: usize) -> u64 {
    match within_kind.field(tag) {
        Ok(kind) if depth < MAX_DEPTH => kind.n_bytes() + within(field, kind, depth + 1),
        Ok(_) => 0,
        // A list of bytes takes a vector for each.
        Err(times) => times * field.len() as u64 + 64,
    }
}

fn within(mut bytes: &[u8], kind: MessageKind, depth: usize) -> u64 {
    let mut total = 0u64;
    // The contents of a `Small` may be text or packed numbers, which may look like fields; they take no more than
    // this.
    if matches!(kind, MessageKind::Small) {
        total += 24 * bytes.len() as u64;
    }
    while let Some((tag, field)) = next_field(&mut bytes) {
        total += match field {
            Some(field) => of_field(field, kind, tag, depth),
            // A single number, perhaps of a list that is not packed.
            None => 2 * size_of::<i64>() as u64,
        };
    }
    total
}

/// The next field: its tag, and its bytes if it has a length. `None` at the end, or if no field can be read.
fn next_field<'b>(bytes: &mut &'b [u8]) -> Option<(u32, Option<&'b [u8]>)> {
    let (tag, wire_type) = decode_key(bytes).ok()?;
    let n_skipped = match wire_type {
        WireType::Varint => {
            decode_varint(bytes).ok()?;
            0
        }
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => {
            let n_bytes = usize::try_from(decode_varint(bytes).ok()?).ok()?;
            let (field, rest) = bytes.split_at_checked(n_bytes)?;
            *bytes = rest;
            return Some((tag, Some(field)));
        }
        // Groups, which the schema does not use.
        WireType::StartGroup | WireType::EndGroup => 0,
    };
    (bytes.len() >= n_skipped).then(|| bytes.advance(n_skipped))?;
    Some((tag, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ProtoError;
    use crate::proto::decode;
    use prost::Message;

    fn length_delimited(tag: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        prost::encoding::encode_key(tag.into(), WireType::LengthDelimited, &mut out);
        prost::encoding::encode_varint(bytes.len() as u64, &mut out);
        [out, bytes.to_vec()].concat()
    }

    /// Two bytes that become a struct each, repeated up to a megabyte.
    #[test]
    fn small_fields_of_large_structs_are_counted() {
        const N: usize = 500_000;
        let instructions = length_delimited(3, &[0x12, 0].repeat(N));
        let shapes = length_delimited(3, &length_delimited(2, &length_delimited(3, &[0x22, 0].repeat(N))));
        let shardings = length_delimited(3, &length_delimited(2, &length_delimited(40, &[0x2a, 0].repeat(N))));
        for (bytes, size) in [
            (instructions, size_of::<HloInstructionProto>()),
            (shapes, size_of::<ShapeProto>()),
            (shardings, size_of::<OpSharding>()),
        ] {
            let least = (N * size) as u64;
            assert!(bytes_needed(&bytes, false) >= least);
            assert!(bytes_needed(&length_delimited(1, &bytes), true) >= least);
        }
        let bytes = length_delimited(3, &[0x12, 0].repeat(N));
        let error = decode::from_bytes(&bytes).unwrap_err();
        assert!(matches!(error, ProtoError::TooLarge { .. }), "{error}");
        assert!(error.to_string().ends_with(" MiB of memory, at most 1024 may be taken for one"), "{error}");
    }

    /// Real modules take a small part of the bound.
    #[test]
    fn modules_of_frameworks_fit() {
        for name in ["oracle_jax/encoder_forward", "oracle_tf/resnet_block_f32"] {
            let path = format!("{}/../../tests/data/{name}.hlo.pb", env!("CARGO_MANIFEST_DIR"));
            let bytes = std::fs::read(path).unwrap();
            let n: usize =
                HloModuleProto::decode(&bytes[..]).unwrap().computations.iter().map(|c| c.instructions.len()).sum();
            let each = bytes_needed(&bytes, false) / n as u64;
            // So 200,000 of them fit.
            assert!((1500..crate::proto::MAX_BYTES / 200_000).contains(&each), "{name}: {each} bytes an instruction");
        }
    }
}
