//! Attributes of `ragged-dot`: products of groups of rows, each with a separate matrix.
//!
//! Source: `HloRaggedDotInstruction::PrintExtraAttributesImpl` in XLA.

use crate::proto::messages::{DotDimensionNumbers, HloInstructionProto, PrecisionConfig, RaggedDotDimensionNumbers};
use crate::text::forms::list;
use crate::text::lex::{Cursor, Read};

pub(super) const OPCODE: &str = "ragged-dot";

const PRECISIONS: [&str; 3] = ["default", "high", "highest"];

/// The dimensions by their attributes' names, in XLA's order.
fn dims(numbers: &mut RaggedDotDimensionNumbers) -> [(&'static str, &mut Vec<i64>); 6] {
    let RaggedDotDimensionNumbers { dot_dimension_numbers, lhs_ragged_dimensions, rhs_group_dimensions } = numbers;
    let DotDimensionNumbers {
        lhs_contracting_dimensions,
        rhs_contracting_dimensions,
        lhs_batch_dimensions,
        rhs_batch_dimensions,
    } = dot_dimension_numbers.get_or_insert_default();
    [
        ("lhs_batch_dims", lhs_batch_dimensions),
        ("lhs_contracting_dims", lhs_contracting_dimensions),
        ("rhs_batch_dims", rhs_batch_dimensions),
        ("rhs_contracting_dims", rhs_contracting_dimensions),
        ("lhs_ragged_dims", lhs_ragged_dimensions),
        ("rhs_group_dims", rhs_group_dimensions),
    ]
}

/// The texts of the attributes that are set.
pub(super) fn to_text(proto: &HloInstructionProto) -> Vec<(&'static str, String)> {
    let Some(numbers) = &proto.ragged_dot_dimension_numbers else { return Vec::new() };
    let mut numbers = numbers.clone();
    let set = dims(&mut numbers).into_iter().filter(|(_, dims)| !dims.is_empty());
    let mut texts: Vec<(&str, String)> = set.map(|(name, dims)| (name, format!("{{{}}}", list(dims)))).collect();
    let precisions = proto.precision_config.as_ref().map(|config| &config.operand_precision[..]).unwrap_or_default();
    let names: Option<Vec<&str>> = precisions.iter().map(|&number| PRECISIONS.get(number as usize).copied()).collect();
    if let Some(names) = names.filter(|_| precisions.iter().any(|&number| number != 0)) {
        texts.push(("operand_precision", format!("{{{}}}", names.join(","))));
    }
    texts
}

/// Reads the attribute `name`; `false` for any other attribute.
pub(super) fn set(name: &str, value: &mut Cursor<'_>, proto: &mut HloInstructionProto) -> Read<bool> {
    // XLA writes the default precision too.
    let default = || PrecisionConfig { operand_precision: vec![0; 2], ..Default::default() };
    let precision = proto.precision_config.get_or_insert_with(default);
    if name == "operand_precision" {
        precision.operand_precision.clear();
        value.sequence("{", "}", |value| {
            let word = value.word_or_empty();
            let number = PRECISIONS.iter().position(|&known| known == word);
            let number = number.ok_or_else(|| value.expected(PRECISIONS.join(", ")))?;
            precision.operand_precision.push(number as i32);
            Ok(())
        })?;
        return Ok(true);
    }
    let numbers = proto.ragged_dot_dimension_numbers.get_or_insert_default();
    let Some((_, dims)) = dims(numbers).into_iter().find(|(known, _)| *known == name) else { return Ok(false) };
    *dims = value.ints("{", "}")?;
    Ok(true)
}
