//! TensorFlow's messages as tables of field names, tags and types. `text` converts the text form to the binary one by them, and
//! `scan` bounds a file's memory before it is decoded.
//!
//! Fields that are not in the tables are skipped, in the binary and in the text form.
//!
//! Source: the `.proto` files that `messages` names.

use std::mem::size_of;

use super::messages as m;

/// A message.
pub(crate) struct Schema {
    pub name: &'static str,
    pub fields: &'static [Field],
    /// Bytes of memory that a message takes, without what it points to.
    pub n_bytes: usize,
}

/// A field of a message.
pub(crate) struct Field {
    pub tag: u32,
    pub name: &'static str,
    pub ty: FieldType,
}

/// The type of a field.
#[derive(Clone, Copy)]
pub(crate) enum FieldType {
    /// An integer or boolean.
    Varint,
    /// A `DataType` of `types.proto`: `DT_FLOAT`.
    DType,
    Fixed32,
    Fixed64,
    /// Text or bytes.
    Bytes,
    Message(&'static Schema),
}

use FieldType::{Bytes, DType, Fixed32, Fixed64, Message, Varint};

const fn field(tag: u32, name: &'static str, ty: FieldType) -> Field {
    Field { tag, name, ty }
}

const fn schema<T>(name: &'static str, fields: &'static [Field]) -> Schema {
    // A map entry also stores its key.
    Schema { name, fields, n_bytes: size_of::<T>() + size_of::<String>() }
}

macro_rules! map {
    ($name:ident, $value:expr) => {
        static $name: Schema = schema::<()>(stringify!($name), &[field(1, "key", Bytes), field(2, "value", $value)]);
    };
}

pub(crate) static GRAPH: Schema =
    schema::<m::GraphDef>("GraphDef", &[field(1, "node", Message(&NODE)), field(2, "library", Message(&LIBRARY))]);
static NODE: Schema = schema::<m::NodeDef>(
    "NodeDef",
    &[
        field(1, "name", Bytes),
        field(2, "op", Bytes),
        field(3, "input", Bytes),
        field(4, "device", Bytes),
        field(5, "attr", Message(&ATTR_ENTRY)),
    ],
);
map!(ATTR_ENTRY, Message(&ATTR));
static ATTR: Schema = schema::<m::AttrValue>(
    "AttrValue",
    &[
        field(1, "list", Message(&LIST)),
        field(2, "s", Bytes),
        field(3, "i", Varint),
        field(4, "f", Fixed32),
        field(5, "b", Varint),
        field(6, "type", DType),
        field(7, "shape", Message(&SHAPE)),
        field(8, "tensor", Message(&TENSOR)),
        field(9, "placeholder", Bytes),
        field(10, "func", Message(&FUNC)),
    ],
);
static LIST: Schema = schema::<m::ListValue>(
    "ListValue",
    &[
        field(2, "s", Bytes),
        field(3, "i", Varint),
        field(4, "f", Fixed32),
        field(5, "b", Varint),
        field(6, "type", DType),
        field(7, "shape", Message(&SHAPE)),
        field(9, "func", Message(&FUNC)),
    ],
);
static FUNC: Schema = schema::<m::NameAttrList>("NameAttrList", &[field(1, "name", Bytes)]);
static SHAPE: Schema =
    schema::<m::TensorShape>("TensorShapeProto", &[field(2, "dim", Message(&DIM)), field(3, "unknown_rank", Varint)]);
static DIM: Schema = schema::<m::TensorDim>("Dim", &[field(1, "size", Varint), field(2, "name", Bytes)]);
static TENSOR: Schema = schema::<m::TensorProto>(
    "TensorProto",
    &[
        field(1, "dtype", DType),
        field(2, "tensor_shape", Message(&SHAPE)),
        field(4, "tensor_content", Bytes),
        field(5, "float_val", Fixed32),
        field(6, "double_val", Fixed64),
        field(7, "int_val", Varint),
        field(8, "string_val", Bytes),
        field(10, "int64_val", Varint),
        field(11, "bool_val", Varint),
        field(13, "half_val", Varint),
        field(16, "uint32_val", Varint),
        field(17, "uint64_val", Varint),
    ],
);
static LIBRARY: Schema =
    schema::<m::FunctionDefLibrary>("FunctionDefLibrary", &[field(1, "function", Message(&FUNCTION))]);
static FUNCTION: Schema = schema::<m::FunctionDef>(
    "FunctionDef",
    &[
        field(1, "signature", Message(&OP)),
        field(3, "node_def", Message(&NODE)),
        field(4, "ret", Message(&TEXT_ENTRY)),
        field(6, "control_ret", Message(&TEXT_ENTRY)),
    ],
);
map!(TEXT_ENTRY, Bytes);
static OP: Schema = schema::<m::OpDef>(
    "OpDef",
    &[field(1, "name", Bytes), field(2, "input_arg", Message(&ARG)), field(3, "output_arg", Message(&ARG))],
);
static ARG: Schema = schema::<m::ArgDef>("ArgDef", &[field(1, "name", Bytes), field(3, "type", DType)]);
pub(crate) static META_GRAPH: Schema = schema::<m::MetaGraphDef>(
    "MetaGraphDef",
    &[
        field(1, "meta_info_def", Message(&INFO)),
        field(2, "graph_def", Message(&GRAPH)),
        field(4, "collection_def", Message(&COLLECTION_ENTRY)),
        field(5, "signature_def", Message(&SIGNATURE_ENTRY)),
    ],
);
static INFO: Schema =
    schema::<m::MetaInfoDef>("MetaInfoDef", &[field(4, "tags", Bytes), field(5, "tensorflow_version", Bytes)]);
map!(COLLECTION_ENTRY, Message(&COLLECTION));
static COLLECTION: Schema = schema::<m::CollectionDef>(
    "CollectionDef",
    &[field(1, "node_list", Message(&VALUES)), field(2, "bytes_list", Message(&VALUES))],
);
static VALUES: Schema = schema::<m::NodeList>("NodeList", &[field(1, "value", Bytes)]);
map!(SIGNATURE_ENTRY, Message(&SIGNATURE));
static SIGNATURE: Schema = schema::<m::SignatureDef>(
    "SignatureDef",
    &[field(1, "inputs", Message(&INFO_ENTRY)), field(2, "outputs", Message(&INFO_ENTRY))],
);
map!(INFO_ENTRY, Message(&TENSOR_INFO));
static TENSOR_INFO: Schema = schema::<m::TensorInfo>("TensorInfo", &[field(1, "name", Bytes)]);
pub(crate) static SAVED_MODEL: Schema = schema::<m::SavedModel>(
    "SavedModel",
    &[field(1, "saved_model_schema_version", Varint), field(2, "meta_graphs", Message(&META_GRAPH))],
);
pub(crate) static DEBUG_INFO: Schema = schema::<m::GraphDebugInfo>(
    "GraphDebugInfo",
    &[
        field(1, "files", Bytes),
        field(4, "frames_by_id", Message(&FRAME_ENTRY)),
        field(5, "name_to_trace_id", Message(&TRACE_ID_ENTRY)),
        field(6, "traces_by_id", Message(&TRACE_ENTRY)),
    ],
);
static FRAME_ENTRY: Schema =
    schema::<u64>("frames_by_id", &[field(1, "key", Fixed64), field(2, "value", Message(&FILE_LINE))]);
static FILE_LINE: Schema =
    schema::<m::FileLine>("FileLineCol", &[field(1, "file_index", Varint), field(2, "line", Varint)]);
map!(TRACE_ID_ENTRY, Fixed64);
static TRACE_ENTRY: Schema =
    schema::<u64>("traces_by_id", &[field(1, "key", Fixed64), field(2, "value", Message(&STACK_TRACE))]);
static STACK_TRACE: Schema = schema::<m::StackTrace>("StackTrace", &[field(2, "frame_id", Fixed64)]);
