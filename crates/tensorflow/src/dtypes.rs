//! TensorFlow's dtypes by number and by name, and the HLO dtypes that they become.
//!
//! Source: `types.proto`. A number above 100 is a reference to a variable of the dtype 100 below.

use bf16scope_hlo::DType;

/// Number, name without `DT_`, and HLO's dtype, where it has one.
const TABLE: [(i32, &str, Option<DType>); 28] = [
    (1, "FLOAT", Some(DType::F32)),
    (2, "DOUBLE", Some(DType::F64)),
    (3, "INT32", Some(DType::S32)),
    (4, "UINT8", Some(DType::U8)),
    (5, "INT16", Some(DType::S16)),
    (6, "INT8", Some(DType::S8)),
    (7, "STRING", None),
    (8, "COMPLEX64", Some(DType::C64)),
    (9, "INT64", Some(DType::S64)),
    (10, "BOOL", Some(DType::Pred)),
    (11, "QINT8", None),
    (12, "QUINT8", None),
    (13, "QINT32", None),
    (14, "BFLOAT16", Some(DType::BF16)),
    (15, "QINT16", None),
    (16, "QUINT16", None),
    (17, "UINT16", Some(DType::U16)),
    (18, "COMPLEX128", Some(DType::C128)),
    (19, "HALF", Some(DType::F16)),
    (20, "RESOURCE", None),
    (21, "VARIANT", None),
    (22, "UINT32", Some(DType::U32)),
    (23, "UINT64", Some(DType::U64)),
    (24, "FLOAT8_E5M2", Some(DType::F8E5M2)),
    (25, "FLOAT8_E4M3FN", Some(DType::F8E4M3FN)),
    (29, "INT4", Some(DType::S4)),
    (30, "UINT4", Some(DType::U4)),
    (0, "INVALID", None),
];

/// A handle: of a variable, a stack or a `TensorArray`.
pub(crate) const RESOURCE: i32 = 20;

/// The number of a reference dtype is this plus the number of the variable's dtype.
const REF: i32 = 100;

/// The HLO dtype of a number; a reference has the dtype of its variable.
pub(crate) fn hlo(number: i32) -> Option<DType> {
    let number = if number > REF { number - REF } else { number };
    TABLE.iter().find(|(known, ..)| *known == number).and_then(|(.., dtype)| *dtype)
}

/// The number of a dtype that the text form names (`DT_FLOAT`).
pub(crate) fn from_name(name: &str) -> Option<i64> {
    let name = name.strip_prefix("DT_")?;
    let (name, offset) = name.strip_suffix("_REF").map_or((name, 0), |name| (name, REF));
    TABLE.iter().find(|(_, known, _)| *known == name).map(|(number, ..)| i64::from(number + offset))
}

/// A dtype's name in Python: `float32`, `resource`.
pub(crate) fn name(number: i32) -> String {
    let plain = if number > REF { number - REF } else { number };
    let name = TABLE.iter().find(|(known, ..)| *known == plain).map(|(_, name, _)| *name);
    match name {
        Some("FLOAT") => "float32".to_string(),
        Some("DOUBLE") => "float64".to_string(),
        Some("HALF") => "float16".to_string(),
        Some(name) => name.to_ascii_lowercase(),
        None => format!("dtype {number}"),
    }
}
