//! Shardings as text, both ways: `{replicated}`, `{maximal device=0}`, `{devices=[2,1]<=[2]}`, `{{…}, {…}}`.

use super::error::ParseErrorKind;
use super::forms::{iota, list, write_iota};
use super::lex::{Cursor, MAX_DEPTH, Read};
use crate::{DeviceOrder, Sharding, TileAssignment};

/// Writes a sharding with its braces.
pub(super) fn write(out: &mut String, sharding: &Sharding) {
    match sharding {
        Sharding::Replicated => out.push_str("{replicated}"),
        Sharding::Maximal { device } => out.push_str(&format!("{{maximal device={device}}}")),
        Sharding::Manual => out.push_str("{manual}"),
        Sharding::Tiled(tiles) => {
            out.push_str(&format!("{{devices=[{}]", list(&tiles.dims)));
            match &tiles.devices {
                DeviceOrder::List(devices) => out.push_str(&list(devices)),
                DeviceOrder::Iota { reshape_dims, transpose_perm } => write_iota(out, reshape_dims, transpose_perm),
            }
            if tiles.replicate_on_last_dim {
                out.push_str(" last_tile_dim_replicate");
            }
            out.push('}');
        }
        Sharding::Tuple(elements) => {
            out.push('{');
            for (i, element) in elements.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                    if i % 5 == 0 {
                        out.push_str(&format!("/*index={i}*/"));
                    }
                }
                write(out, element);
            }
            out.push('}');
        }
        Sharding::Raw { text, .. } => out.push_str(&format!("{{{text}}}")),
    }
}

/// Whether it has a text form: a message in a form that XLA's text does not have is omitted rather than misstated.
pub(super) fn has_text(sharding: &Sharding) -> bool {
    match sharding {
        Sharding::Raw { text, proto } => !text.is_empty() || proto.is_empty(),
        Sharding::Tuple(elements) => elements.iter().all(has_text),
        Sharding::Replicated | Sharding::Maximal { .. } | Sharding::Manual | Sharding::Tiled(_) => true,
    }
}

/// `{replicated}`, `{devices=[2,1]<=[2]}`, `{{…}, {…}}`; other forms are preserved.
pub(super) fn read(value: &mut Cursor<'_>) -> Read<Sharding> {
    read_at(value, 0)
}

fn read_at(value: &mut Cursor<'_>, depth: usize) -> Read<Sharding> {
    if depth > MAX_DEPTH {
        return Err(value.fault(ParseErrorKind::TooDeep { max: MAX_DEPTH }));
    }
    value.expect("{")?;
    if value.peek() == Some(b'{') {
        let mut elements = Vec::new();
        while !value.eat("}") {
            // Encoded, it takes several times as much memory as here.
            value.spend(8 * size_of::<Sharding>())?;
            elements.push(read_at(value, depth + 1)?);
            value.eat(",");
        }
        return Ok(Sharding::Tuple(elements));
    }
    let mut plain = *value;
    if let Ok(Some(sharding)) = read_plain(&mut plain) {
        *value = plain;
        return Ok(sharding);
    }
    let span = value.until_closed("}")?;
    Ok(Sharding::Raw { text: value.slice(span).to_string(), proto: Vec::new() })
}

/// A sharding that the IR models, up to and including its brace.
fn read_plain(value: &mut Cursor<'_>) -> Read<Option<Sharding>> {
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
