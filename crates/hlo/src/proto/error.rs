//! What the proto decoder and encoder say when a module cannot pass.

use crate::DType;

/// Why bytes are no message of a schema: the decoder's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WireError(String);

impl WireError {
    /// The words of whichever decoder failed.
    pub fn new(error: impl std::fmt::Display) -> WireError {
        WireError(error.to_string())
    }
}

/// What to do about a literal without elements: TensorFlow writes such modules.
fn left_out(n_found: usize) -> &'static str {
    match n_found {
        0 => {
            "; help: whoever wrote the module left the constants' values out, as TensorFlow's stage \
             `optimized_hlo_proto_serialized` does: ask for `hlo_serialized`"
        }
        _ => "",
    }
}

/// A module that is not one, or that holds what this crate cannot represent.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtoError {
    /// The bytes are not protocol buffers of this schema.
    #[error("not an HloModuleProto: {0}")]
    Wire(#[from] WireError),
    /// More than a machine should hold for one module.
    #[error("the module takes about {} MiB of memory, at most {} may be taken for one", n_bytes >> 20, super::MAX_BYTES >> 20)]
    TooLarge {
        /// What it takes, from above.
        n_bytes: u64,
    },
    /// A field without which the message means nothing.
    #[error("{place}: {field} is missing")]
    Missing {
        /// Computation and instruction.
        place: String,
        /// The schema's name of the field.
        field: &'static str,
    },
    /// An opcode that is no word.
    #[error("{place}: `{}` is not an opcode: expected lower-case letters, digits and `-`", opcode.escape_debug())]
    NoOpcode {
        /// Computation and instruction.
        place: String,
        /// What the message says.
        opcode: String,
    },
    /// A number that the schema (as far as this crate knows it) does not give a meaning.
    #[error("{place}: {field} is {number}, expected {expected}")]
    Unknown {
        /// Computation and instruction.
        place: String,
        /// The schema's name of the field.
        field: &'static str,
        /// What it says.
        number: i64,
        /// What it may say.
        expected: &'static str,
    },
    /// A name that is not in the table it must come from.
    #[error("{place}: {field} is `{name}`, expected one of {expected}")]
    UnknownName {
        /// Computation and instruction.
        place: String,
        /// The schema's name of the field.
        field: &'static str,
        /// What it says.
        name: String,
        /// The table.
        expected: String,
    },
    /// An id that nothing has.
    #[error("{place}: {field} names id {id}, which nothing in {scope} has")]
    DanglingId {
        /// Computation and instruction.
        place: String,
        /// The schema's name of the field.
        field: &'static str,
        /// The id.
        id: i64,
        /// Where it was looked for.
        scope: String,
    },
    /// An id that two things have.
    #[error("{place}: id {id} is taken by {other}")]
    DuplicateId {
        /// The second holder.
        place: String,
        /// The id.
        id: i64,
        /// The first holder.
        other: String,
    },
    /// Instructions that wait for each other, or computations that call each other.
    #[error("{place}: {what} form a cycle, so no order runs them")]
    Cycle {
        /// One member.
        place: String,
        /// `operands`, `control predecessors` or `calls`.
        what: &'static str,
    },
    /// A literal that does not hold what its shape says.
    #[error("{place}: literal of shape {shape} holds {found} elements, expected {expected}{}", left_out(*found))]
    LiteralSize {
        /// Computation and instruction.
        place: String,
        /// The declared shape.
        shape: String,
        /// Elements found.
        found: usize,
        /// Elements the shape has.
        expected: i64,
    },
    /// A layout that is not a permutation of the array's dimensions.
    #[error("{place}: layout {{{minor_to_major}}} is not a permutation of the {rank} dimensions of {shape}")]
    BadLayout {
        /// Computation and instruction.
        place: String,
        /// The array, without layout.
        shape: String,
        /// The layout's dimensions.
        minor_to_major: String,
        /// How many dimensions the array has.
        rank: usize,
    },
    /// A schedule that leaves out instructions, repeats them, or runs one before its operands.
    #[error("{place}: the schedule is not an order of all {n_instructions} instructions that puts operands first")]
    Schedule {
        /// The computation.
        place: String,
        /// How many instructions it has.
        n_instructions: usize,
    },
    /// Something XLA has and this crate does not represent.
    #[error("{place}: {what} is not supported")]
    Unsupported {
        /// Computation and instruction.
        place: String,
        /// What it is.
        what: String,
    },
}

impl ProtoError {
    /// A literal's byte count on the way out, in elements.
    pub(super) fn literal_bytes(place: &str, shape: String, n_bytes: usize, dtype: DType, expected: i64) -> ProtoError {
        ProtoError::LiteralSize { place: place.to_string(), shape, found: n_bytes / dtype.n_bytes(), expected }
    }

    /// Says where an error of an attribute happened.
    pub(super) fn unknown(place: &str, field: &'static str, number: i64, expected: &'static str) -> ProtoError {
        ProtoError::Unknown { place: place.to_string(), field, number, expected }
    }

    /// A missing field.
    pub(super) fn missing(place: &str, field: &'static str) -> ProtoError {
        ProtoError::Missing { place: place.to_string(), field }
    }
}
