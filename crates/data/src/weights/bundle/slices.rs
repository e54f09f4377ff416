//! Partitioned variables: the whole has no bytes of its own; each slice is stored under a key that contains its
//! extents.
//!
//! Source: TensorFlow's `saved_tensor_slice_util.cc` (`EncodeTensorNameSlice`) and `tsl/lib/strings/ordered_code` of the numbers
//! in such a key.

use super::proto::TensorSlice;

/// The largest number of slices per variable: each pair of them is compared. A partitioner makes one for each parameter
/// server.
pub(super) const MAX_SLICES: usize = 4096;

/// The largest number of compared pairs for all variables of a file: eight variables with the largest number of slices,
/// or three thousand with two hundred.
pub(super) const MAX_PAIRS: u64 = 1 << 26;

/// A part of an array: where it begins along each axis, and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub starts: Vec<u64>,
    pub dims: Vec<u64>,
}

impl Slice {
    /// The part of an array with these dims; `None` if it is out of bounds.
    pub fn from_proto(slice: &TensorSlice, dims: &[u64]) -> Option<Slice> {
        if slice.extent.len() != dims.len() {
            return None;
        }
        let (mut starts, mut sizes) = (Vec::new(), Vec::new());
        for (extent, &dim) in slice.extent.iter().zip(dims) {
            let start = u64::try_from(extent.start).ok()?;
            let size = match extent.length {
                Some(length) => u64::try_from(length).ok()?,
                None => dim,
            };
            start.checked_add(size).filter(|&end| end <= dim)?;
            starts.push(start);
            sizes.push(size);
        }
        Some(Slice { starts, dims: sizes })
    }

    fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }

    fn overlaps(&self, other: &Slice) -> bool {
        let ranges = |slice: &Slice, axis: usize| (slice.starts[axis], slice.starts[axis] + slice.dims[axis]);
        let meet = |axis| {
            let ((a, a_end), (b, b_end)) = (ranges(self, axis), ranges(other, axis));
            a < b_end && b < a_end
        };
        self.n_elements() > 0 && other.n_elements() > 0 && (0..self.dims.len()).all(meet)
    }

    /// Whether the slice is complete along all axes but the first.
    pub fn is_of_rows(&self, dims: &[u64]) -> bool {
        dims.is_empty() || self.dims[1..] == dims[1..]
    }

    /// Copies the slice's bytes to their place in an array of `dims`.
    pub fn put(&self, dims: &[u64], width: usize, from: &[u8], into: &mut [u8]) {
        let Some(&row) = self.dims.last() else {
            into[..width].copy_from_slice(&from[..width]);
            return;
        };
        let row = row as usize * width;
        if row == 0 {
            return;
        }
        let mut at = vec![0; self.dims.len()];
        for chunk in from.chunks_exact(row) {
            let place = (0..dims.len()).fold(0, |place, axis| place * dims[axis] + self.starts[axis] + at[axis]);
            let place = place as usize * width;
            into[place..place + row].copy_from_slice(chunk);
            for axis in (0..dims.len() - 1).rev() {
                at[axis] += 1;
                if at[axis] < self.dims[axis] {
                    break;
                }
                at[axis] = 0;
            }
        }
    }
}

/// Whether slices cover an array, each element once. Compares pairs of slices and subtracts them from `pairs`, the
/// pairs left; `None` if these do not suffice.
pub(super) fn cover(slices: &[Slice], dims: &[u64], pairs: &mut u64) -> Option<bool> {
    let n: Option<u64> = slices.iter().try_fold(0u64, |n, slice| n.checked_add(slice.n_elements()));
    if n != Some(dims.iter().product()) {
        return Some(false);
    }
    *pairs = pairs.checked_sub((slices.len() * slices.len() / 2) as u64)?;
    let is_apart = |nth: usize| slices[..nth].iter().all(|other| !slices[nth].overlaps(other));
    Some((0..slices.len()).all(is_apart))
}

/// The key of a slice.
pub(super) fn key(name: &[u8], slice: &TensorSlice) -> Vec<u8> {
    let mut key = Vec::new();
    number(0, &mut key);
    for &byte in name {
        match byte {
            0 => key.extend([0, 0xff]),
            0xff => key.extend([0xff, 0]),
            byte => key.push(byte),
        }
    }
    key.extend([0, 1]);
    number(slice.extent.len() as u64, &mut key);
    for extent in &slice.extent {
        signed(extent.start, &mut key);
        signed(extent.length.unwrap_or(-1), &mut key);
    }
    key
}

/// The number of significant bytes, followed by those bytes, most significant first.
fn number(value: u64, key: &mut Vec<u8>) {
    let bytes = value.to_be_bytes();
    let n_zeros = value.leading_zeros() as usize / 8;
    key.push((8 - n_zeros) as u8);
    key.extend(&bytes[n_zeros..]);
}

/// As many one bits as there are bytes, a zero bit, and the number, most significant byte first; all inverted for a
/// negative number.
fn signed(value: i64, key: &mut Vec<u8>) {
    let magnitude = if value < 0 { !value as u64 } else { value as u64 };
    let n_bits = 64 - magnitude.leading_zeros() as usize;
    let n_bytes = n_bits / 7 + 1;
    let mut bytes = [if value < 0 { 0xff } else { 0 }; 10];
    bytes[2..].copy_from_slice(&value.to_be_bytes());
    let bytes = &mut bytes[10 - n_bytes..];
    // The one bits for up to ten bytes are in the first two.
    let ones: u16 = 0xffff_u16.checked_shl(16 - n_bytes as u32).unwrap_or(0);
    let [first, second] = ones.to_be_bytes();
    bytes[0] ^= first;
    if let Some(next) = bytes.get_mut(1) {
        *next ^= second;
    }
    key.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::super::proto::Extent;
    use super::*;

    #[test]
    fn numbers_of_keys_sort_as_they_do() {
        let coded = |value: i64| {
            let mut key = Vec::new();
            signed(value, &mut key);
            key
        };
        assert_eq!((coded(0), coded(-1), coded(63), coded(-64)), (vec![0x80], vec![0x7f], vec![0xbf], vec![0x40]));
        assert_eq!((coded(64), coded(-65)), (vec![0xc0, 0x40], vec![0x3f, 0xbf]));
        let mut values: Vec<i64> = (0..63).flat_map(|n| [1i64 << n, -(1i64 << n), (1i64 << n) - 1]).collect();
        values.extend([i64::MAX, i64::MIN]);
        values.sort_unstable();
        values.dedup();
        assert!(values.windows(2).all(|pair| coded(pair[0]) < coded(pair[1])), "{values:?}");
    }

    #[test]
    fn slices_are_joined_along_any_axis() {
        let slice = |extents: &[(i64, Option<i64>)]| TensorSlice {
            extent: extents.iter().map(|&(start, length)| Extent { start, length }).collect(),
        };
        let dims = [3, 4];
        let left = Slice::from_proto(&slice(&[(0, None), (0, Some(1))]), &dims).unwrap();
        let right = Slice::from_proto(&slice(&[(0, None), (1, Some(3))]), &dims).unwrap();
        let cover = |slices: &[Slice]| cover(slices, &dims, &mut 100).unwrap();
        assert!(cover(&[left.clone(), right.clone()]));
        assert_eq!(super::cover(&[left.clone(), right.clone()], &dims, &mut 1), None, "no more pairs are compared");
        assert!(!cover(std::slice::from_ref(&left)) && !cover(&[left.clone(), left.clone(), right.clone()]));
        assert!(Slice::from_proto(&slice(&[(0, None), (2, Some(3))]), &dims).is_none());
        assert!(Slice::from_proto(&slice(&[(0, None)]), &dims).is_none());
        let mut whole = vec![0; 12];
        left.put(&dims, 1, &[0, 4, 8], &mut whole);
        right.put(&dims, 1, &[1, 2, 3, 5, 6, 7, 9, 10, 11], &mut whole);
        assert_eq!(whole, (0..12).collect::<Vec<u8>>());
    }
}
