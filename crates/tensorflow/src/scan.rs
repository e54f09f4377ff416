//! Bounds a binary message's memory and nesting before it is decoded: a file of a megabyte can hold a million nodes without a
//! name.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::schema::{FieldType, Schema};

/// The deepest nesting of messages that is read. prost's own limit is 100; graphs of functions nest a dozen levels.
const MAX_DEPTH: u32 = 64;
/// Bytes of memory that a decoded file may take.
pub(crate) const MAX_BYTES: u64 = 2 << 30;

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanProblem {
    /// It does not follow the schema, or is cut off.
    Wire,
    /// It nests too deeply.
    Deep,
    /// It would take more memory than [`MAX_BYTES`].
    Large,
}

/// Checks that a message can be decoded within the limits.
pub(crate) fn check(bytes: &[u8], schema: &'static Schema) -> Result<(), ScanProblem> {
    scan(bytes, schema, 0, &mut Budget { cost: 0, limit: MAX_BYTES })
}

/// Bytes of memory counted so far, and the limit.
struct Budget {
    cost: u64,
    limit: u64,
}

fn scan(mut rest: &[u8], schema: &'static Schema, depth: u32, budget: &mut Budget) -> Result<(), ScanProblem> {
    if depth > MAX_DEPTH {
        return Err(ScanProblem::Deep);
    }
    budget.cost += schema.n_bytes as u64;
    while !rest.is_empty() {
        let (tag, wire_type) = decode_key(&mut rest).map_err(|_| ScanProblem::Wire)?;
        let ty = schema.fields.iter().find(|field| field.tag == tag).map(|field| field.ty);
        match (ty, wire_type) {
            (Some(ty), WireType::LengthDelimited) => {
                let n = decode_varint(&mut rest).map_err(|_| ScanProblem::Wire)?;
                let n = usize::try_from(n).ok().filter(|n| *n <= rest.len()).ok_or(ScanProblem::Wire)?;
                let (field, after) = rest.split_at(n);
                rest = after;
                match ty {
                    FieldType::Message(inner) => scan(field, inner, depth + 1, budget)?,
                    FieldType::Bytes => budget.cost += (n + size_of::<String>()) as u64,
                    FieldType::Fixed32 | FieldType::Fixed64 => budget.cost += n as u64,
                    // Packed: a byte may decode to a number of 8 bytes.
                    FieldType::Varint | FieldType::DType => budget.cost += 8 * n as u64,
                }
            }
            _ => {
                skip_field(wire_type, tag, &mut rest, DecodeContext::default()).map_err(|_| ScanProblem::Wire)?;
                budget.cost += 8;
            }
        }
        if budget.cost > budget.limit {
            return Err(ScanProblem::Large);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
