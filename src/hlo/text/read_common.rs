//! What any instruction may carry beside its op, from text: sharding, frontend attributes, metadata.

use super::error::ParseErrorKind;
use super::lex::{Cursor, MAX_DEPTH, Read};
use super::read::{iota, small_int};
use crate::hlo::{DeviceOrder, Metadata, Sharding, TileAssignment};

/// `{replicated}`, `{devices=[2,1]<=[2]}`, `{{…}, {…}}`; other forms come through as they are.
pub(super) fn sharding(value: &mut Cursor<'_>) -> Read<Sharding> {
    sharding_at(value, 0)
}

fn sharding_at(value: &mut Cursor<'_>, depth: usize) -> Read<Sharding> {
    if depth > MAX_DEPTH {
        return Err(value.fault(ParseErrorKind::TooDeep { max: MAX_DEPTH }));
    }
    value.expect("{")?;
    if value.peek() == Some(b'{') {
        let mut elements = Vec::new();
        while !value.eat("}") {
            // Encoded, it takes several times what it takes here.
            value.spend(8 * size_of::<Sharding>())?;
            elements.push(sharding_at(value, depth + 1)?);
            value.eat(",");
        }
        return Ok(Sharding::Tuple(elements));
    }
    let mut plain = *value;
    if let Ok(Some(sharding)) = plain_sharding(&mut plain) {
        *value = plain;
        return Ok(sharding);
    }
    let span = value.until_closed("}")?;
    Ok(Sharding::Raw { text: value.slice(span).to_string(), proto: Vec::new() })
}

/// A sharding that the IR models, up to and including its brace.
fn plain_sharding(value: &mut Cursor<'_>) -> Read<Option<Sharding>> {
    let sharding = match value.word_or_empty() {
        "replicated" => Sharding::Replicated,
        "manual" => Sharding::Manual,
        "maximal" if value.word_or_empty() == "device" => {
            value.expect("=")?;
            Sharding::Maximal { device: value.int()? }
        }
        "devices" => {
            value.expect("=")?;
            let dims = value.ints("[", "]")?;
            let devices = if value.peek() == Some(b'<') {
                let (reshape_dims, transpose_perm) = iota(value)?;
                DeviceOrder::Iota { reshape_dims, transpose_perm }
            } else {
                let mut devices = vec![value.int()?];
                while value.eat(",") {
                    value.spend(2 * size_of::<i64>())?;
                    devices.push(value.int()?);
                }
                DeviceOrder::List(devices)
            };
            let replicate_on_last_dim = match value.word_or_empty() {
                "last_tile_dim_replicate" => true,
                "" => false,
                _ => return Ok(None),
            };
            Sharding::Tiled(TileAssignment { dims, devices, replicate_on_last_dim })
        }
        _ => return Ok(None),
    };
    Ok(value.eat("}").then_some(sharding))
}

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

/// `{op_type="…" op_name="…" source_file="…" source_line=3}`. Returns what else stands there, verbatim.
pub(super) fn metadata(value: &mut Cursor<'_>, metadata: &mut Metadata) -> Read<Vec<String>> {
    let mut rest = Vec::new();
    value.expect("{")?;
    while !value.eat("}") {
        value.skip_blank();
        let start = value.pos;
        let name = value.word("a metadata field or `}`")?;
        value.expect("=")?;
        match name {
            "op_type" => metadata.op_type = value.string()?,
            "op_name" => metadata.op_name = value.string()?,
            "source_file" => metadata.source_file = value.string()?,
            "source_line" => metadata.source_line = small_int(value)?,
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
