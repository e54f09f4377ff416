//! Shardings ↔ `OpSharding`.
//!
//! A message that a structured [`Sharding`] would not give back exactly becomes [`Sharding::Raw`].

use super::ProtoError;
use super::messages::OpSharding;
use crate::hlo::{DeviceOrder, Sharding, TileAssignment};
use prost::Message;

const REPLICATED: i32 = 0;
const MAXIMAL: i32 = 1;
const TUPLE: i32 = 2;
const OTHER: i32 = 3;
const MANUAL: i32 = 4;
const UNKNOWN: i32 = 5;
const UNREDUCED: i32 = 6;

/// A sharding's message.
///
/// # Errors
/// A [`Sharding::Raw`] that is known only as text.
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
        Sharding::Raw { text, proto } if proto.is_empty() => match text.trim() {
            "unknown" => of_type(UNKNOWN),
            "unreduced" => of_type(UNREDUCED),
            _ => {
                let what = format!("a proto for the sharding {{{text}}}");
                return Err(ProtoError::Unsupported { place: place.to_string(), what });
            }
        },
        Sharding::Raw { proto, .. } => OpSharding::decode(proto.as_slice())?,
    })
}

/// A sharding from its message: structured where that loses nothing.
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
            let text = match proto.r#type {
                UNKNOWN => "unknown",
                UNREDUCED => "unreduced",
                _ => "",
            };
            Sharding::Raw { text: text.to_string(), proto: proto.encode_to_vec() }
        }
    }
}

/// XLA always writes a permutation; ours leaves the identity out.
pub(super) fn encode_perm(reshape_dims: &[i64], transpose_perm: &[i64]) -> Vec<i32> {
    if transpose_perm.is_empty() {
        (0..reshape_dims.len() as i32).collect()
    } else {
        transpose_perm.iter().map(|&axis| axis as i32).collect()
    }
}

/// The inverse of [`encode_perm`].
pub(super) fn decode_perm(perm: &[i32]) -> Vec<i64> {
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
        assert!(matches!(sharding, Sharding::Raw { .. }));
        assert_eq!(encode(&sharding, ""), Ok(proto));
    }
}
