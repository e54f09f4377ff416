//! Reads the attributes that any instruction may have: frontend attributes and metadata.

use super::forms::small_int;
use super::lex::{Cursor, Read};
use super::names::Names;
use crate::Metadata;

/// `{a="b",c={"d":1}}`.
pub(super) fn frontend_attributes(value: &mut Cursor<'_>) -> Read<Vec<(String, String)>> {
    let mut attributes = Vec::new();
    value.sequence("{", "}", |value| {
        let name = value.word("an attribute's name")?.to_string();
        value.expect("=")?;
        let text = if value.peek() == Some(b'{') {
            let span = value.value()?;
            value.slice(span).to_string()
        } else {
            value.string()?
        };
        value.spend(4 * size_of::<(String, String)>())?;
        attributes.push((name, text));
        Ok(())
    })?;
    Ok(attributes)
}

/// `{op_type="…" op_name="…" source_file="…" source_line=3 stack_frame_id=2}`. Returns further fields, verbatim.
///
/// A field may not occur twice; XLA refuses that too.
pub(super) fn metadata(value: &mut Cursor<'_>, metadata: &mut Metadata) -> Read<Vec<String>> {
    let mut rest = Vec::new();
    let mut names = Names::default();
    value.expect("{")?;
    while !value.eat("}") {
        value.skip_blank();
        let start = value.pos;
        let name = value.word("a metadata field or `}`")?;
        names.insert(name, "metadata field", start)?;
        value.expect("=")?;
        match name {
            "op_type" => metadata.op_type = value.string()?,
            "op_name" => metadata.op_name = value.string()?,
            "source_file" => metadata.source_file = value.string()?,
            "source_line" => metadata.source_line = small_int(value)?,
            "stack_frame_id" => metadata.stack_frame_id = small_int(value)?,
            _ => {
                match value.peek() {
                    Some(b'"') => drop(value.string()?),
                    Some(b'{') => {
                        value.expect("{")?;
                        value.until_closed("}")?;
                    }
                    _ => drop(value.word("a value")?),
                }
                value.spend(4 * size_of::<String>())?;
                rest.push(value.text[start..value.pos].to_string());
            }
        }
        value.eat(",");
    }
    Ok(rest)
}
