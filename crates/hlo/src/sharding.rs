//! Shardings: how a value is split over devices. They are carried, printed and encoded. [`shards`](super::shards)
//! computes the part of an array that one device holds.
//!
//! Source: `OpSharding` in XLA's `xla_data.proto`.

use super::Shape;
use std::ops::Range;

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

impl Sharding {
    /// The sharding of an element of a tuple with this sharding. `leaves` numbers the element's arrays among those of
    /// the tuple.
    pub fn of_element(&self, element: &Shape, leaves: Range<usize>) -> Option<Sharding> {
        match self {
            Sharding::Tuple(all) if element.as_tuple().is_some() => Some(Sharding::Tuple(all.get(leaves)?.to_vec())),
            Sharding::Tuple(all) => all.get(leaves.start).cloned(),
            Sharding::Replicated | Sharding::Maximal { .. } | Sharding::Manual => Some(self.clone()),
            // A tuple has a list of shardings; an unparsed text stays with the tuple.
            Sharding::Tiled(_) | Sharding::Raw { .. } => None,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn an_element_has_its_part_of_a_tuples_sharding() {
        let array = Shape::scalar(DType::F32);
        let pair = Shape::Tuple(vec![array.clone(), array.clone()]);
        let [first, second, third] = [0, 1, 2].map(|device| Sharding::Maximal { device });
        let all = Sharding::Tuple(vec![first.clone(), second.clone(), third.clone()]);
        assert_eq!(all.of_element(&array, 0..1), Some(first));
        assert_eq!(all.of_element(&pair, 1..3), Some(Sharding::Tuple(vec![second, third])));
        assert_eq!(all.of_element(&pair, 2..4), None);
        assert_eq!(Sharding::Replicated.of_element(&pair, 1..3), Some(Sharding::Replicated));
        let raw = Sharding::Raw { text: "unknown".to_string(), proto: Vec::new() };
        assert_eq!(raw.of_element(&array, 0..1), None);
    }
}
