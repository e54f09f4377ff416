//! The part of an array that one device holds, by its sharding. This crate does not partition; all it knows about the
//! partitioner is the shape of each device's part.

use super::proto;
use super::{DeviceOrder, Sharding, TileAssignment};

impl Sharding {
    /// Dims of the part that one device holds of an array of these dims: the last tiles of a dimension may be padded.
    ///
    /// `None` for the sharding of a tuple, for one that does not fit the array, and for one over a mesh of named axes.
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
                    // Without tiles (or with the single one of `maximal`) it is not split.
                    [] => Some(dims.to_vec()),
                    _ if message.r#type != proto::sharding::OTHER => Some(dims.to_vec()),
                    tiles => split(dims, tiles, n_groups),
                }
            }
        }
    }
}

/// One device's part of an array: its start and its dims. The last parts of a dimension may reach beyond its end,
/// where they are padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardBox {
    /// Its start, in the whole array.
    pub offsets: Vec<i64>,
    /// Its dims.
    pub dims: Vec<i64>,
}

impl Sharding {
    /// The part of an array of these dims that partition number `partition` holds.
    ///
    /// `None` if [`Sharding::shard_dims`] is `None`, for [`Sharding::Manual`], and for a partition that the sharding
    /// does not name.
    pub fn shard(&self, whole: &[i64], partition: i64) -> Option<ShardBox> {
        let dims = self.shard_dims(whole)?;
        let at_the_start = || Some(ShardBox { offsets: vec![0; whole.len()], dims: dims.clone() });
        let tiles = match self {
            Sharding::Replicated | Sharding::Maximal { .. } => return at_the_start(),
            Sharding::Manual | Sharding::Tuple(_) => return None,
            Sharding::Tiled(tiles) => tiles.clone(),
            Sharding::Raw { .. } => {
                let message = proto::sharding::encode(self, "").ok()?;
                // Only the user knows a manual split.
                if message.last_tile_dims.contains(&proto::sharding::MANUAL) {
                    return None;
                }
                match (message.tile_assignment_dimensions, message.r#type == proto::sharding::OTHER) {
                    (tiles, true) if !tiles.is_empty() => TileAssignment {
                        dims: tiles,
                        devices: match message.iota_reshape_dims.is_empty() {
                            true => DeviceOrder::List(message.tile_assignment_devices),
                            false => DeviceOrder::Iota {
                                reshape_dims: message.iota_reshape_dims,
                                transpose_perm: proto::sharding::decode_perm(&message.iota_transpose_perm),
                            },
                        },
                        replicate_on_last_dim: message.replicate_on_last_tile_dim,
                    },
                    _ => return at_the_start(),
                }
            }
        };
        let mut tile = tiles.devices.place_of(partition)?;
        // The tile's index along each dim, the last dim counting fastest.
        let mut index = vec![0; tiles.dims.len()];
        for (axis, &n) in tiles.dims.iter().enumerate().rev() {
            index[axis] = tile.checked_rem(n)?;
            tile /= n;
        }
        let offsets = index.iter().zip(&dims).map(|(index, dim)| index.saturating_mul(*dim)).collect();
        Some(ShardBox { offsets, dims })
    }
}

impl DeviceOrder {
    /// The position of a device in this order.
    fn place_of(&self, device: i64) -> Option<i64> {
        match self {
            DeviceOrder::List(devices) => devices.iter().position(|&it| it == device).map(|place| place as i64),
            DeviceOrder::Iota { reshape_dims, transpose_perm } => {
                // The device's index in the iota, a permutation of whose dims is the order.
                let mut rest = device;
                let mut index = vec![0; reshape_dims.len()];
                for (axis, &n) in reshape_dims.iter().enumerate().rev() {
                    index[axis] = rest.checked_rem(n)?;
                    rest /= n;
                }
                let identity: Vec<i64> = (0..reshape_dims.len() as i64).collect();
                let axes = if transpose_perm.is_empty() { &identity } else { transpose_perm };
                (rest == 0 && device >= 0).then_some(())?;
                axes.iter().try_fold(0i64, |place, &axis| {
                    let axis = usize::try_from(axis).ok()?;
                    place.checked_mul(*reshape_dims.get(axis)?)?.checked_add(*index.get(axis)?)
                })
            }
        }
    }
}

impl ShardBox {
    /// This part of an array, row by row, with zeros where it reaches beyond the array.
    pub fn cut(&self, whole: &[u8], dims: &[i64], n_bytes: usize) -> Vec<u8> {
        let mut part = vec![0; self.dims.iter().product::<i64>() as usize * n_bytes];
        self.rows(dims, |in_part, in_whole, n| {
            part[in_part * n_bytes..][..n * n_bytes].copy_from_slice(&whole[in_whole * n_bytes..][..n * n_bytes]);
        });
        part
    }

    /// Copies this part to its place in the whole array.
    pub fn place(&self, part: &[u8], whole: &mut [u8], dims: &[i64], n_bytes: usize) {
        self.rows(dims, |in_part, in_whole, n| {
            whole[in_whole * n_bytes..][..n * n_bytes].copy_from_slice(&part[in_part * n_bytes..][..n * n_bytes]);
        });
    }

    /// Calls `f` with every run of adjacent elements: its place in the part, in the array, and its length.
    fn rows(&self, dims: &[i64], mut row: impl FnMut(usize, usize, usize)) {
        let rank = dims.len();
        let length = |axis: usize| (dims[axis] - self.offsets[axis]).clamp(0, self.dims[axis]);
        let n = if rank == 0 { 1 } else { length(rank - 1) };
        if n == 0 || (0..rank).any(|axis| length(axis) == 0) {
            return;
        }
        let mut index = vec![0i64; rank.saturating_sub(1)];
        loop {
            let place = |sizes: &[i64], offsets: &[i64]| {
                let axes = (0..rank).map(|axis| (index.get(axis).copied().unwrap_or(0) + offsets[axis], sizes[axis]));
                axes.fold(0i64, |place, (index, size)| place * size + index) as usize
            };
            row(place(&self.dims, &vec![0; rank]), place(dims, &self.offsets), n as usize);
            let Some(axis) = (0..index.len()).rev().find(|&axis| index[axis] + 1 < length(axis)) else { return };
            index[axis] += 1;
            index[axis + 1..].fill(0);
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
    use crate::text;

    fn sharding(text: &str) -> Sharding {
        let text =
            format!("HloModule m\nENTRY m {{\n  ROOT x = f32[5,4]{{1,0}} parameter(0), sharding={{{text}}}\n}}\n");
        *text::parse(&text, "m").unwrap().entry().instructions[0].sharding.clone().unwrap()
    }

    #[test]
    fn a_shard_is_cut_and_placed() {
        let whole: Vec<u8> = (0..20).collect();
        for (text, n, expected) in [
            ("devices=[2,1]0,1", 2, vec![(0..12).collect(), vec![12, 13, 14, 15, 16, 17, 18, 19, 0, 0, 0, 0]]),
            (
                "devices=[1,2]1,0",
                2,
                vec![vec![2, 3, 6, 7, 10, 11, 14, 15, 18, 19], vec![0, 1, 4, 5, 8, 9, 12, 13, 16, 17]],
            ),
            (
                "devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate",
                4,
                vec![
                    vec![0, 1, 4, 5, 8, 9, 12, 13, 16, 17],
                    vec![2, 3, 6, 7, 10, 11, 14, 15, 18, 19],
                    vec![0, 1, 4, 5, 8, 9, 12, 13, 16, 17],
                    vec![2, 3, 6, 7, 10, 11, 14, 15, 18, 19],
                ],
            ),
            ("replicated", 2, vec![whole.clone(), whole.clone()]),
        ] {
            let sharding = sharding(text);
            let boxes: Vec<ShardBox> = (0..n).map(|device| sharding.shard(&[5, 4], device).unwrap()).collect();
            let parts: Vec<Vec<u8>> = boxes.iter().map(|shard| shard.cut(&whole, &[5, 4], 1)).collect();
            assert_eq!(parts, expected, "{text}");
            let mut back = vec![0; 20];
            boxes.iter().zip(&parts).for_each(|(shard, part)| shard.place(part, &mut back, &[5, 4], 1));
            assert_eq!(back, whole, "{text}");
        }
        // With more devices than rows the last ones hold only padding.
        let rows = sharding("devices=[8,1]<=[8]");
        assert_eq!(rows.shard(&[5, 4], 7).unwrap().cut(&whole, &[5, 4], 1), [0; 4]);
        assert_eq!(rows.shard(&[5, 4], 8), None);
        assert_eq!(sharding("manual").shard(&[5, 4], 0), None);
        let scalar = ShardBox { offsets: vec![], dims: vec![] };
        assert_eq!(scalar.cut(&[7], &[], 1), [7]);
    }

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
            // The number of dimensions is not two, or there are no tiles.
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
