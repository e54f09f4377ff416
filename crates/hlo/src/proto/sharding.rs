//! Converts shardings to and from `OpSharding`.
//!
//! A message that a structured [`Sharding`] would not restore exactly becomes [`Sharding::Raw`].

use super::messages::OpSharding;
use super::{ProtoError, WireError};
use crate::text::forms::{iota, list, write_iota};
use crate::text::lex::{Cursor, Read};
use crate::{DeviceOrder, Sharding, TileAssignment};
use prost::Message;

const REPLICATED: i32 = 0;
const MAXIMAL: i32 = 1;
const TUPLE: i32 = 2;
pub(crate) const OTHER: i32 = 3;
pub(crate) const MANUAL: i32 = 4;
const UNKNOWN: i32 = 5;
const UNREDUCED: i32 = 6;

/// A sharding's message.
///
/// # Errors
/// A [`Sharding::Raw`] that is only known as text.
pub fn encode(sharding: &Sharding, place: &str) -> Result<OpSharding, ProtoError> {
    let of_type = |r#type| OpSharding { r#type, ..OpSharding::default() };
    Ok(match sharding {
        Sharding::Replicated => of_type(REPLICATED),
        Sharding::Maximal { device } => OpSharding {
            tile_assignment_dimensions: vec![1],
            tile_assignment_devices: vec![*device],
            ..of_type(MAXIMAL)
        },
        Sharding::Manual => of_type(MANUAL),
        Sharding::Tiled(tiles) => {
            let mut proto = OpSharding {
                tile_assignment_dimensions: tiles.dims.clone(),
                replicate_on_last_tile_dim: tiles.replicate_on_last_dim,
                ..of_type(OTHER)
            };
            match &tiles.devices {
                DeviceOrder::List(devices) => proto.tile_assignment_devices = devices.clone(),
                DeviceOrder::Iota { reshape_dims, transpose_perm } => {
                    proto.iota_reshape_dims = reshape_dims.clone();
                    proto.iota_transpose_perm = encode_perm(reshape_dims, transpose_perm);
                }
            }
            proto
        }
        Sharding::Tuple(elements) => OpSharding {
            tuple_shardings: elements.iter().map(|e| encode(e, place)).collect::<Result<_, _>>()?,
            ..of_type(TUPLE)
        },
        Sharding::Raw { text, proto } if proto.is_empty() => match from_text(text) {
            Some(proto) => proto,
            None => {
                let what = format!("a proto for the sharding {{{text}}}");
                return Err(ProtoError::Unsupported { place: place.to_string(), what });
            }
        },
        Sharding::Raw { proto, .. } => OpSharding::decode(proto.as_slice()).map_err(WireError::new)?,
    })
}

/// A sharding from its message: structured if that loses nothing.
pub fn decode(proto: &OpSharding) -> Sharding {
    let structured = match proto.r#type {
        REPLICATED => Some(Sharding::Replicated),
        MAXIMAL => proto.tile_assignment_devices.first().map(|&device| Sharding::Maximal { device }),
        MANUAL => Some(Sharding::Manual),
        OTHER => Some(Sharding::Tiled(TileAssignment {
            dims: proto.tile_assignment_dimensions.clone(),
            devices: if proto.iota_reshape_dims.is_empty() {
                DeviceOrder::List(proto.tile_assignment_devices.clone())
            } else {
                DeviceOrder::Iota {
                    reshape_dims: proto.iota_reshape_dims.clone(),
                    transpose_perm: decode_perm(&proto.iota_transpose_perm),
                }
            },
            replicate_on_last_dim: proto.replicate_on_last_tile_dim,
        })),
        TUPLE => Some(Sharding::Tuple(proto.tuple_shardings.iter().map(decode).collect())),
        _ => None,
    };
    match structured {
        Some(sharding) if encode(&sharding, "").as_ref() == Ok(proto) => sharding,
        Some(_) | None => {
            // Keep the text form only if it round-trips.
            let text = to_text(proto).filter(|text| from_text(text).as_ref() == Some(proto)).unwrap_or_default();
            Sharding::Raw { text, proto: proto.encode_to_vec() }
        }
    }
}

/// The text names of types, alone or in `last_tile_dims`.
const TYPES: [(&str, i32); 5] = [
    ("replicated", REPLICATED),
    ("maximal", MAXIMAL),
    ("manual", MANUAL),
    ("unknown", UNKNOWN),
    ("unreduced", UNREDUCED),
];

/// The text between the braces for a message that [`Sharding`] has no structure for: `unknown`, subgroups of devices,
/// and groups of values sharded alike.
fn to_text(proto: &OpSharding) -> Option<String> {
    let name = |r#type: i32| TYPES.iter().find(|(_, number)| *number == r#type).map(|(name, _)| *name);
    let mut text = match proto.r#type {
        OTHER => {
            let devices = if proto.iota_reshape_dims.is_empty() {
                list(&proto.tile_assignment_devices)
            } else {
                let mut iota = String::new();
                write_iota(&mut iota, &proto.iota_reshape_dims, &decode_perm(&proto.iota_transpose_perm));
                iota
            };
            format!("devices=[{}]{devices}", list(&proto.tile_assignment_dimensions))
        }
        MAXIMAL => format!("maximal device={}", proto.tile_assignment_devices.first()?),
        simple => name(simple)?.to_string(),
    };
    if proto.replicate_on_last_tile_dim {
        text += " last_tile_dim_replicate";
    }
    if !proto.last_tile_dims.is_empty() {
        let names = proto.last_tile_dims.iter().map(|&dim| name(dim)).collect::<Option<Vec<_>>>()?;
        text += &format!(" last_tile_dims={{{}}}", names.join(", "));
    }
    if proto.is_shard_group {
        let how = GROUPS.get(usize::try_from(proto.shard_group_type).ok()?)?;
        text += &format!(" {how} {}", proto.shard_group_id);
    }
    Some(text)
}

/// The relation of a value's sharding to its group's, by `shard_group_type`.
const GROUPS: [&str; 2] = ["shard_as", "shard_like"];

/// The message for such a text; `None` for texts of other forms.
fn from_text(text: &str) -> Option<OpSharding> {
    let mut value = Cursor::new(text);
    let proto = read(&mut value).ok().flatten();
    proto.filter(|_| value.at_end())
}

fn read(value: &mut Cursor<'_>) -> Read<Option<OpSharding>> {
    let number = |name: &str| TYPES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let mut proto = OpSharding::default();
    match value.word("a sharding")? {
        "devices" => {
            proto.r#type = OTHER;
            value.expect("=")?;
            proto.tile_assignment_dimensions = value.ints("[", "]")?;
            if value.peek() == Some(b'<') {
                let (reshape_dims, transpose_perm) = iota(value)?;
                proto.iota_transpose_perm = encode_perm(&reshape_dims, &transpose_perm);
                proto.iota_reshape_dims = reshape_dims;
            } else {
                proto.tile_assignment_devices.push(value.int()?);
                while value.eat(",") {
                    proto.tile_assignment_devices.push(value.int()?);
                }
            }
        }
        "maximal" => {
            proto.r#type = MAXIMAL;
            if value.word_or_empty() != "device" {
                return Ok(None);
            }
            value.expect("=")?;
            proto.tile_assignment_dimensions = vec![1];
            proto.tile_assignment_devices = vec![value.int()?];
        }
        name => match number(name) {
            Some(r#type) => proto.r#type = r#type,
            None => return Ok(None),
        },
    }
    while !value.at_end() {
        match value.word("what else the sharding says")? {
            "last_tile_dim_replicate" => proto.replicate_on_last_tile_dim = true,
            "last_tile_dims" => {
                value.expect("=")?;
                let mut known = true;
                value.sequence("{", "}", |value| {
                    let dim = number(value.word_or_empty());
                    known &= dim.is_some();
                    proto.last_tile_dims.extend(dim);
                    Ok(())
                })?;
                if !known {
                    return Ok(None);
                }
            }
            name => {
                let Some(how) = GROUPS.iter().position(|known| *known == name) else { return Ok(None) };
                proto.is_shard_group = true;
                proto.shard_group_type = how as i32;
                proto.shard_group_id = value.int()?;
            }
        }
    }
    Ok(Some(proto))
}

/// XLA always writes a permutation; the IR omits the identity.
pub(super) fn encode_perm(reshape_dims: &[i64], transpose_perm: &[i64]) -> Vec<i32> {
    if transpose_perm.is_empty() {
        (0..reshape_dims.len() as i32).collect()
    } else {
        transpose_perm.iter().map(|&axis| axis as i32).collect()
    }
}

/// The inverse of [`encode_perm`].
pub(crate) fn decode_perm(perm: &[i32]) -> Vec<i64> {
    if perm.iter().copied().eq(0..perm.len() as i32) {
        Vec::new()
    } else {
        perm.iter().map(|&axis| axis.into()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structured_shardings_come_back() {
        let tiles = |devices| TileAssignment { dims: vec![2, 1, 2], devices, replicate_on_last_dim: true };
        let iota = |transpose_perm| DeviceOrder::Iota { reshape_dims: vec![2, 2], transpose_perm };
        let shardings = [
            Sharding::Replicated,
            Sharding::Maximal { device: 3 },
            Sharding::Manual,
            Sharding::Tiled(tiles(DeviceOrder::List(vec![3, 2, 1, 0]))),
            Sharding::Tiled(tiles(iota(vec![1, 0]))),
            Sharding::Tiled(tiles(iota(Vec::new()))),
        ];
        for sharding in shardings.iter().cloned().chain([Sharding::Tuple(shardings.to_vec())]) {
            assert_eq!(decode(&encode(&sharding, "").unwrap()), sharding);
        }
    }

    #[test]
    fn other_forms_are_carried_whole() {
        let proto = OpSharding {
            r#type: OTHER,
            tile_assignment_dimensions: vec![1, 2],
            iota_reshape_dims: vec![2],
            iota_transpose_perm: vec![0],
            last_tile_dims: vec![MANUAL],
            is_shard_group: true,
            shard_group_id: 7,
            ..OpSharding::default()
        };
        let sharding = decode(&proto);
        let Sharding::Raw { text, .. } = &sharding else { panic!("no structure holds it") };
        assert_eq!(text, "devices=[1,2]<=[2] last_tile_dims={manual} shard_as 7");
        assert_eq!(encode(&Sharding::Raw { text: text.clone(), proto: Vec::new() }, ""), Ok(proto.clone()));
        assert_eq!(encode(&sharding, ""), Ok(proto));
        // A message without a text form gets no text.
        let named = OpSharding { named_sharding: Some(vec![8, 1]), ..OpSharding::default() };
        let sharding = decode(&named);
        assert!(matches!(&sharding, Sharding::Raw { text, .. } if text.is_empty()));
        assert_eq!(encode(&sharding, ""), Ok(named));
    }

    #[test]
    fn texts_without_a_structure_become_messages() {
        for text in [
            "unknown",
            "unreduced",
            "replicated shard_like 3",
            "maximal device=5 shard_as 1",
            "devices=[2,2,2]3,2,1,0,4,5,6,7 last_tile_dims={manual, replicated}",
            "devices=[2,1,2]<=[2,2]T(1,0) last_tile_dims={unreduced}",
        ] {
            let proto = encode(&Sharding::Raw { text: text.to_string(), proto: Vec::new() }, "").unwrap();
            assert!(matches!(decode(&proto), Sharding::Raw { text: own, .. } if own == text), "{text}");
        }
        for text in
            ["", "devices=[2]", "unknown 3", "maximal x=1", "devices=[2]0,1 last_tile_dims={odd}", "mesh['a'=2]"]
        {
            let error = encode(&Sharding::Raw { text: text.to_string(), proto: Vec::new() }, "m/x").unwrap_err();
            assert_eq!(error.to_string(), format!("m/x: a proto for the sharding {{{text}}} is not supported"));
        }
    }
}
