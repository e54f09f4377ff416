//! The parts of TensorFlow's protocol buffers that are read, declared by hand so that building needs no `protoc`.
//!
//! Source: `graph.proto`, `node_def.proto`, `attr_value.proto`, `tensor.proto`, `tensor_shape.proto`, `function.proto`,
//! `op_def.proto`, `meta_graph.proto`, `saved_model.proto`, `variable.proto` and `graph_debug_info.proto` of TensorFlow.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GraphDef {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeDef>,
    #[prost(message, optional, tag = "2")]
    pub library: Option<FunctionDefLibrary>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub op: String,
    #[prost(string, repeated, tag = "3")]
    pub input: Vec<String>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub attr: BTreeMap<String, AttrValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttrValue {
    #[prost(oneof = "AttrKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub value: Option<AttrKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum AttrKind {
    #[prost(message, tag = "1")]
    List(ListValue),
    #[prost(bytes, tag = "2")]
    S(Vec<u8>),
    #[prost(int64, tag = "3")]
    I(i64),
    #[prost(float, tag = "4")]
    F(f32),
    #[prost(bool, tag = "5")]
    B(bool),
    #[prost(int32, tag = "6")]
    Type(i32),
    #[prost(message, tag = "7")]
    Shape(TensorShape),
    #[prost(message, tag = "8")]
    Tensor(TensorProto),
    #[prost(string, tag = "9")]
    Placeholder(String),
    #[prost(message, tag = "10")]
    Func(NameAttrList),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListValue {
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub s: Vec<Vec<u8>>,
    #[prost(int64, repeated, tag = "3")]
    pub i: Vec<i64>,
    #[prost(float, repeated, tag = "4")]
    pub f: Vec<f32>,
    #[prost(bool, repeated, tag = "5")]
    pub b: Vec<bool>,
    #[prost(int32, repeated, tag = "6")]
    pub r#type: Vec<i32>,
    #[prost(message, repeated, tag = "7")]
    pub shape: Vec<TensorShape>,
    #[prost(message, repeated, tag = "9")]
    pub func: Vec<NameAttrList>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NameAttrList {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<TensorDim>,
    #[prost(bool, tag = "3")]
    pub unknown_rank: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorDim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub tensor_shape: Option<TensorShape>,
    #[prost(bytes = "vec", tag = "4")]
    pub tensor_content: Vec<u8>,
    #[prost(float, repeated, tag = "5")]
    pub float_val: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    pub double_val: Vec<f64>,
    #[prost(int32, repeated, tag = "7")]
    pub int_val: Vec<i32>,
    #[prost(int64, repeated, tag = "10")]
    pub int64_val: Vec<i64>,
    #[prost(bool, repeated, tag = "11")]
    pub bool_val: Vec<bool>,
    #[prost(int32, repeated, tag = "13")]
    pub half_val: Vec<i32>,
    #[prost(uint32, repeated, tag = "16")]
    pub uint32_val: Vec<u32>,
    #[prost(uint64, repeated, tag = "17")]
    pub uint64_val: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FunctionDefLibrary {
    #[prost(message, repeated, tag = "1")]
    pub function: Vec<FunctionDef>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FunctionDef {
    #[prost(message, optional, tag = "1")]
    pub signature: Option<OpDef>,
    #[prost(message, repeated, tag = "3")]
    pub node_def: Vec<NodeDef>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub ret: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub control_ret: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OpDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub input_arg: Vec<ArgDef>,
    #[prost(message, repeated, tag = "3")]
    pub output_arg: Vec<ArgDef>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ArgDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int32, tag = "3")]
    pub r#type: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetaGraphDef {
    #[prost(message, optional, tag = "1")]
    pub meta_info_def: Option<MetaInfoDef>,
    #[prost(message, optional, tag = "2")]
    pub graph_def: Option<GraphDef>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub collection_def: BTreeMap<String, CollectionDef>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub signature_def: BTreeMap<String, SignatureDef>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetaInfoDef {
    #[prost(string, repeated, tag = "4")]
    pub tags: Vec<String>,
    #[prost(string, tag = "5")]
    pub tensorflow_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CollectionDef {
    #[prost(message, optional, tag = "1")]
    pub node_list: Option<NodeList>,
    #[prost(message, optional, tag = "2")]
    pub bytes_list: Option<BytesList>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeList {
    #[prost(string, repeated, tag = "1")]
    pub value: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub value: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SignatureDef {
    #[prost(btree_map = "string, message", tag = "1")]
    pub inputs: BTreeMap<String, TensorInfo>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub outputs: BTreeMap<String, TensorInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorInfo {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SavedModel {
    #[prost(int64, tag = "1")]
    pub saved_model_schema_version: i64,
    #[prost(message, repeated, tag = "2")]
    pub meta_graphs: Vec<MetaGraphDef>,
}

/// An element of a collection of variables, which stores it as bytes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct VariableDef {
    #[prost(string, tag = "1")]
    pub variable_name: String,
    #[prost(string, tag = "2")]
    pub initializer_name: String,
    #[prost(string, tag = "6")]
    pub initial_value_name: String,
    #[prost(bool, tag = "5")]
    pub is_resource: bool,
    #[prost(bool, tag = "7")]
    pub trainable: bool,
}

/// The lines that made the nodes of a SavedModel's functions, in a file beside it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct GraphDebugInfo {
    #[prost(string, repeated, tag = "1")]
    pub files: Vec<String>,
    #[prost(btree_map = "fixed64, message", tag = "4")]
    pub frames_by_id: BTreeMap<u64, FileLine>,
    #[prost(btree_map = "string, fixed64", tag = "5")]
    pub name_to_trace_id: BTreeMap<String, u64>,
    #[prost(btree_map = "fixed64, message", tag = "6")]
    pub traces_by_id: BTreeMap<u64, StackTrace>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FileLine {
    #[prost(int32, tag = "1")]
    pub file_index: i32,
    #[prost(int32, tag = "2")]
    pub line: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StackTrace {
    #[prost(fixed64, repeated, tag = "2")]
    pub frame_id: Vec<u64>,
}
