//! The dtypes that xla-rs supports.

use super::error::not_in_xla_rs;
use crate::PjrtError;
use bf16scope_hlo::DType;

/// Each dtype that xla-rs has by name, and that takes whole bytes.
const ELEMENT_TYPES: &[(DType, xla::ElementType)] = &[
    (DType::Pred, xla::ElementType::Pred),
    (DType::S8, xla::ElementType::S8),
    (DType::S16, xla::ElementType::S16),
    (DType::S32, xla::ElementType::S32),
    (DType::S64, xla::ElementType::S64),
    (DType::U8, xla::ElementType::U8),
    (DType::U16, xla::ElementType::U16),
    (DType::U32, xla::ElementType::U32),
    (DType::U64, xla::ElementType::U64),
    (DType::F16, xla::ElementType::F16),
    (DType::BF16, xla::ElementType::Bf16),
    (DType::F32, xla::ElementType::F32),
    (DType::F64, xla::ElementType::F64),
    (DType::C64, xla::ElementType::C64),
    (DType::C128, xla::ElementType::C128),
    (DType::F8E5M2, xla::ElementType::F8E5M2),
    (DType::F8E4M3FN, xla::ElementType::F8E4M3FN),
    (DType::F8E8M0FNU, xla::ElementType::F8E8M0FNU),
];

/// xla-rs's name of a dtype.
pub fn element_type(dtype: DType) -> Result<xla::ElementType, PjrtError> {
    ELEMENT_TYPES
        .iter()
        .find(|row| row.0 == dtype)
        .map(|row| row.1)
        .ok_or_else(|| not_in_xla_rs(&format!("arrays of {dtype}")))
}

/// The dtype of xla-rs's type; `None` for its 4-bit float, which it packs two to a byte.
pub fn dtype_of(element_type: xla::ElementType) -> Option<DType> {
    ELEMENT_TYPES.iter().find(|row| row.1 == element_type).map(|row| row.0)
}
