//! The protocol buffers of tensor bundles: the fields that are read and written.
//!
//! Source: TensorFlow's `tensor_bundle.proto`, `tensor_shape.proto`, `tensor_slice.proto`, `versions.proto`,
//! `trackable_object_graph.proto`, `saved_tensor_slice.proto` (version 1 of the format) and `types.proto`.

use prost::Message;

use crate::weights::WeightsDType;
use bf16scope_hlo::DType;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(int32, tag = "1")]
    pub num_shards: i32,
    /// 0 means little-endian.
    #[prost(int32, tag = "2")]
    pub endianness: i32,
    #[prost(message, optional, tag = "3")]
    pub version: Option<Version>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Version {
    #[prost(int32, tag = "1")]
    pub producer: i32,
    #[prost(int32, tag = "2")]
    pub min_consumer: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorEntry {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShape>,
    #[prost(int32, tag = "3")]
    pub shard_id: i32,
    #[prost(int64, tag = "4")]
    pub offset: i64,
    #[prost(int64, tag = "5")]
    pub size: i64,
    #[prost(fixed32, tag = "6")]
    pub crc32c: u32,
    #[prost(message, repeated, tag = "7")]
    pub slices: Vec<TensorSlice>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<Dim>,
    #[prost(bool, tag = "3")]
    pub unknown_rank: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorSlice {
    #[prost(message, repeated, tag = "1")]
    pub extent: Vec<Extent>,
}

/// A range along one axis; without a length, the whole axis.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Extent {
    #[prost(int64, tag = "1")]
    pub start: i64,
    #[prost(int64, optional, tag = "2")]
    pub length: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ObjectGraph {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<Object>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Object {
    #[prost(message, repeated, tag = "1")]
    pub children: Vec<Child>,
    #[prost(message, repeated, tag = "2")]
    pub attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Child {
    #[prost(int32, tag = "1")]
    pub node_id: i32,
    #[prost(string, tag = "2")]
    pub local_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub full_name: String,
    #[prost(string, tag = "3")]
    pub checkpoint_key: String,
}

/// The value of version 1's first key: a message in field 1, where version 2 has a number.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SavedTensorSlices {
    #[prost(message, optional, tag = "1")]
    pub meta: Option<SavedTensorSliceMeta>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SavedTensorSliceMeta {
    #[prost(message, optional, tag = "2")]
    pub versions: Option<Version>,
}

/// `DT_STRING`.
const STRING: i32 = 7;

/// TensorFlow's dtype numbers. Quantized types come after the types in which they are stored.
const DTYPES: &[(i32, DType)] = &[
    (1, DType::F32),
    (2, DType::F64),
    (3, DType::S32),
    (4, DType::U8),
    (5, DType::S16),
    (6, DType::S8),
    (8, DType::C64),
    (9, DType::S64),
    (10, DType::Pred),
    (14, DType::BF16),
    (17, DType::U16),
    (18, DType::C128),
    (19, DType::F16),
    (22, DType::U32),
    (23, DType::U64),
    (24, DType::F8E5M2),
    (25, DType::F8E4M3FN),
    (26, DType::F8E4M3FNUZ),
    (27, DType::F8E4M3B11FNUZ),
    (28, DType::F8E5M2FNUZ),
    (29, DType::S4),
    (30, DType::U4),
    (31, DType::S2),
    (32, DType::U2),
    (11, DType::S8),
    (12, DType::U8),
    (13, DType::S32),
    (15, DType::S16),
    (16, DType::U16),
];

/// The type with TensorFlow's number.
pub(super) fn dtype(number: i32) -> WeightsDType {
    match (number, DTYPES.iter().find(|row| row.0 == number)) {
        (_, Some(row)) => WeightsDType::Array(row.1),
        (STRING, None) => WeightsDType::Text,
        (20, None) => WeightsDType::Other("resource"),
        (21, None) => WeightsDType::Other("variant"),
        (_, None) => WeightsDType::Other("unknown"),
    }
}

/// TensorFlow's number of a dtype.
pub(super) fn number(dtype: DType) -> Option<i32> {
    DTYPES.iter().find(|row| row.1 == dtype).map(|row| row.0)
}
