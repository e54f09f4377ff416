//! The part of a program that is examined before it is compiled.

use prost::Message;

use bf16scope_hlo::proto::messages::ShapeProto;

/// The part of `HloModuleProto` needed for these checks: decoding it skips the constants themselves.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Program {
    #[prost(message, repeated, tag = "3")]
    pub(super) computations: Vec<Computation>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Computation {
    #[prost(message, repeated, tag = "2")]
    pub(super) instructions: Vec<Instruction>,
    #[prost(int64, tag = "5")]
    pub(super) id: i64,
    #[prost(int64, tag = "6")]
    pub(super) root_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Instruction {
    #[prost(string, tag = "2")]
    pub(super) opcode: String,
    #[prost(message, optional, tag = "3")]
    pub(super) shape: Option<ShapeProto>,
    #[prost(int64, tag = "9")]
    pub(super) parameter_number: i64,
    #[prost(int64, repeated, tag = "14")]
    pub(super) dimensions: Vec<i64>,
    #[prost(int64, tag = "35")]
    pub(super) id: i64,
    #[prost(int64, repeated, tag = "36")]
    pub(super) operand_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    pub(super) called_computation_ids: Vec<i64>,
}
