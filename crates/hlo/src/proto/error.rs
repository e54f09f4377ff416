//! The errors of decoding and encoding a module.

use crate::DType;

/// Why bytes are not a message of a schema: the decoder's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WireError(String);

impl WireError {
    /// The message of any decoder.
    pub fn new(error: impl std::fmt::Display) -> WireError {
        WireError(error.to_string())
    }
}

/// Advice about a literal without elements: TensorFlow writes such modules.
fn left_out(n_found: usize) -> &'static str {
    match n_found {
        0 => {
            "; help: whoever wrote the module left the constants' values out, as TensorFlow's stage \
             `optimized_hlo_proto_serialized` does: ask for `hlo_serialized`"
        }
        _ => "",
    }
}

/// The bytes are not a module, or this crate cannot represent it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtoError {
    /// The bytes are not protocol buffers of this schema.
    #[error("not an HloModuleProto: {0}")]
    Wire(#[from] WireError),
    /// The module would take too much memory.
    #[error("the module takes about {} MiB of memory, at most {} may be taken for one", n_bytes >> 20, super::MAX_BYTES >> 20)]
    TooLarge {
        /// An upper estimate of that memory.
        n_bytes: u64,
    },
    /// A required field is missing.
    #[error("{place}: {field} is missing")]
    Missing {
        /// Computation and instruction.
        place: String,
        /// The schema's name of the field.
        field: &'static str,
    },
    /// An opcode is not a word.
    #[error("{place}: `{}` is not an opcode: expected lower-case letters, digits and `-`", opcode.escape_debug())]
    NoOpcode {
        /// Computation and instruction.
        place: String,
        /// The opcode in the message.
        opcode: String,
    },
    /// A number has no meaning in the schema (as far as this crate knows it).
    #[error("{place}: {field} is {number}, expected {expected}")]
    Unknown {
        /// Computation and instruction.
        place: String,
        /// The schema's name of the field.
        field: &'static str,
        /// The number.
        number: i64,
        /// The valid numbers.
        expected: &'static str,
    },
    /// A name is not in its table.
    #[error("{place}: {field} is `{name}`, expected one of {expected}")]
    UnknownName {
        /// Computation and instruction.
        place: String,
        /// The schema's name of the field.
        field: &'static str,
        /// The name.
        name: String,
        /// The table.
        expected: String,
    },
    /// An id does not exist.
    #[error("{place}: {field} names id {id}, which nothing in {scope} has")]
    DanglingId {
        /// Computation and instruction.
        place: String,
        /// The schema's name of the field.
        field: &'static str,
        /// The id.
        id: i64,
        /// The scope of the search.
        scope: String,
    },
    /// Two things have the same id.
    #[error("{place}: id {id} is taken by {other}")]
    DuplicateId {
        /// The second holder.
        place: String,
        /// The id.
        id: i64,
        /// The first holder.
        other: String,
    },
    /// Instructions, or computations, depend on each other in a cycle.
    #[error("{place}: {what} form a cycle, so no order runs them")]
    Cycle {
        /// A member of the cycle.
        place: String,
        /// `operands`, `control predecessors` or `calls`.
        what: &'static str,
    },
    /// A literal does not have the elements of its shape.
    #[error("{place}: literal of shape {shape} holds {found} elements, expected {expected}{}", left_out(*found))]
    LiteralSize {
        /// Computation and instruction.
        place: String,
        /// The declared shape.
        shape: String,
        /// The number of elements in the literal.
        found: usize,
        /// The number of elements of the shape.
        expected: i64,
    },
    /// A layout is not a permutation of the array's dimensions.
    #[error("{place}: layout {{{minor_to_major}}} is not a permutation of the {rank} dimensions of {shape}")]
    BadLayout {
        /// Computation and instruction.
        place: String,
        /// The array, without layout.
        shape: String,
        /// The layout's dimensions.
        minor_to_major: String,
        /// The number of the array's dimensions.
        rank: usize,
    },
    /// A schedule omits instructions, repeats them, or runs one before its operands.
    #[error("{place}: the schedule is not an order of all {n_instructions} instructions that puts operands first")]
    Schedule {
        /// The computation.
        place: String,
        /// The number of its instructions.
        n_instructions: usize,
    },
    /// XLA supports this, but this crate does not represent it.
    #[error("{place}: {what} is not supported")]
    Unsupported {
        /// Computation and instruction.
        place: String,
        /// A description of it.
        what: String,
    },
}

impl ProtoError {
    /// The error for a literal to encode, whose byte count is converted to elements.
    pub(super) fn literal_bytes(place: &str, shape: String, n_bytes: usize, dtype: DType, expected: i64) -> ProtoError {
        ProtoError::LiteralSize { place: place.to_string(), shape, found: n_bytes / dtype.n_bytes(), expected }
    }

    /// Adds the place to an error of an attribute.
    pub(super) fn unknown(place: &str, field: &'static str, number: i64, expected: &'static str) -> ProtoError {
        ProtoError::Unknown { place: place.to_string(), field, number, expected }
    }

    /// The error for a missing field.
    pub(super) fn missing(place: &str, field: &'static str) -> ProtoError {
        ProtoError::Missing { place: place.to_string(), field }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_layouts_are_shown() {
        assert_eq!(
            ProtoError::TooLarge { n_bytes: 9 << 40 }.to_string(),
            format!(
                "the module takes about {} MiB of memory, at most {} may be taken for one",
                9 << 20,
                super::super::MAX_BYTES >> 20
            )
        );
        let layout = ProtoError::BadLayout {
            place: "main/%x".to_string(),
            shape: "f32[2,3]".to_string(),
            minor_to_major: "1,1".to_string(),
            rank: 2,
        };
        assert_eq!(layout.to_string(), "main/%x: layout {1,1} is not a permutation of the 2 dimensions of f32[2,3]");
    }
}
