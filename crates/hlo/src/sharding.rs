//! Shardings: how a value is split over devices. They are carried, printed and encoded. [`shards`](super::shards)
//! computes the part of an array that one device holds.
//!
//! Source: `OpSharding` in XLA's `xla_data.proto`.

/// How one value is split over the devices of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Every device holds the whole value.
    Replicated,
    /// One device holds the whole value.
    Maximal {
        /// That device.
        device: i64,
    },
    /// The user splits it manually.
    Manual,
    /// It is split in tiles.
    Tiled(TileAssignment),
    /// A tuple's elements, depth first.
    Tuple(Vec<Sharding>),
    /// Another form of the text (`unknown`, subgroups, …), preserved verbatim with its encoded `OpSharding`.
    Raw {
        /// The text between the braces.
        text: String,
        /// The encoded message, if it came from a proto.
        proto: Vec<u8>,
    },
}

/// The assignment of tiles to devices.
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
        /// Dims to which the iota is reshaped.
        reshape_dims: Vec<i64>,
        /// The transpose that follows; empty = none.
        transpose_perm: Vec<i64>,
    },
}
