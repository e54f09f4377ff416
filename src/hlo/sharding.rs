//! Shardings: how a value is laid over devices. Carried, printed and encoded; this crate partitions nothing itself, and
//! knows of the partitioner's work only what shape a device's part has.
//!
//! Source: `OpSharding` in XLA's `xla_data.proto`.

use super::proto;

/// How one value lies over the devices of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Every device holds all of it.
    Replicated,
    /// One device holds all of it.
    Maximal {
        /// That device.
        device: i64,
    },
    /// The user lays it out by hand.
    Manual,
    /// Split in tiles.
    Tiled(TileAssignment),
    /// A tuple's elements, depth first.
    Tuple(Vec<Sharding>),
    /// Another form of the text (`unknown`, subgroups, …), kept verbatim with its encoded `OpSharding`.
    Raw {
        /// What stood between the braces.
        text: String,
        /// The encoded message, if it came from a proto.
        proto: Vec<u8>,
    },
}

/// Which device holds which tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileAssignment {
    /// Number of tiles along each dimension (and, if `replicate_on_last_dim`, of replicas).
    pub dims: Vec<i64>,
    /// Devices in row-major order of the tiles.
    pub devices: DeviceOrder,
    /// Whether the last of `dims` counts replicas, not tiles.
    pub replicate_on_last_dim: bool,
}

/// An order of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceOrder {
    /// Listed one by one: `devices=[2,2]0,1,2,3`.
    List(Vec<i64>),
    /// `devices=[2,2]<=[4]` or `<=[2,2]T(1,0)`: an iota, reshaped and transposed.
    Iota {
        /// Dims the iota is reshaped to.
        reshape_dims: Vec<i64>,
        /// The transpose that follows; empty = none.
        transpose_perm: Vec<i64>,
    },
}

impl Sharding {
    /// Dims of the part of an array of these dims that one device holds: the last tiles of a dimension may be padded.
    ///
    /// `None` for the sharding of a tuple, one that does not fit the array, and one over a mesh of named axes.
    ///
    /// # Source
    /// `HloSharding::TileShape`.
    pub fn shard_dims(&self, dims: &[i64]) -> Option<Vec<i64>> {
        match self {
            Sharding::Replicated | Sharding::Maximal { .. } | Sharding::Manual => Some(dims.to_vec()),
            Sharding::Tiled(tiles) => split(dims, &tiles.dims, usize::from(tiles.replicate_on_last_dim)),
            Sharding::Tuple(_) => None,
            Sharding::Raw { .. } => {
                let message = proto::sharding::encode(self, "").ok()?;
                if message.named_sharding.is_some() || !message.tuple_shardings.is_empty() {
                    return None;
                }
                let n_groups = usize::from(message.replicate_on_last_tile_dim) + message.last_tile_dims.len();
                match message.tile_assignment_dimensions.as_slice() {
                    // Without tiles (or with the one of `maximal`) it is not split.
                    [] => Some(dims.to_vec()),
                    _ if message.r#type != proto::sharding::OTHER => Some(dims.to_vec()),
                    tiles => split(dims, tiles, n_groups),
                }
            }
        }
    }
}

/// Dims over tiles, rounded up; the last `n_groups` of the tiles' dims count groups of devices, not tiles.
fn split(dims: &[i64], tiles: &[i64], n_groups: usize) -> Option<Vec<i64>> {
    let fits = tiles.len() == dims.len() + n_groups && tiles.iter().all(|&n| n > 0) && dims.iter().all(|&dim| dim >= 0);
    fits.then(|| dims.iter().zip(tiles).map(|(&dim, &n)| dim / n + i64::from(dim % n != 0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::text;

    #[test]
    fn a_shard_has_the_dims_of_a_tile() {
        for (sharding, expected) in [
            ("replicated", Some(vec![5, 4])),
            ("manual", Some(vec![5, 4])),
            ("maximal device=1", Some(vec![5, 4])),
            ("unknown", Some(vec![5, 4])),
            ("maximal device=1 shard_as 3", Some(vec![5, 4])),
            ("devices=[2,1]0,1", Some(vec![3, 4])),
            ("devices=[2,2]<=[4]", Some(vec![3, 2])),
            ("devices=[2,2]<=[2,2]T(1,0)", Some(vec![3, 2])),
            ("devices=[8,1]<=[8]", Some(vec![1, 4])),
            ("devices=[1,2,2]<=[4] last_tile_dim_replicate", Some(vec![5, 2])),
            ("devices=[2,1,2]<=[4] last_tile_dims={manual}", Some(vec![3, 4])),
            ("devices=[2,1,2,2]<=[8] last_tile_dims={manual, replicated}", Some(vec![3, 4])),
            // Not of two dimensions, or of no tiles.
            ("devices=[2]0,1", None),
            ("devices=[2,0]0,1", None),
            ("{replicated}, {manual}", None),
        ] {
            let text = format!(
                "HloModule m\nENTRY m {{\n  ROOT x = f32[5,4]{{1,0}} parameter(0), sharding={{{sharding}}}\n}}\n"
            );
            let module = text::parse(&text, "m").unwrap();
            let sharding_of = |module: &super::super::Module| module.entry().instructions[0].sharding.clone().unwrap();
            let read = sharding_of(&module);
            assert_eq!(read.shard_dims(&[5, 4]), expected, "{sharding}");
            let bytes = proto::encode::to_bytes(&module).unwrap();
            let decoded = sharding_of(&proto::decode::from_bytes(&bytes).unwrap());
            assert_eq!(decoded.shard_dims(&[5, 4]), expected, "{sharding}");
        }
    }
}
