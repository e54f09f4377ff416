//! How a variable is laid out in another framework's array: as a part of an axis, with axes permuted, or with axes
//! joined.

use super::rules::{AxisPart, Rule};
use std::fmt;

/// The steps from their array to ours: cut the part, permute axes, move channels last, split joined axes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The part of their array.
    pub part: Option<AxisPart>,
    /// For each of our axes (after joining), the index of their axis.
    pub transpose: Option<Vec<usize>>,
    /// Our axes that are joined in their array.
    pub joined: Option<Vec<Vec<usize>>>,
    /// Channels, height and width of flattened images along our first axis, where ours has channels last and theirs
    /// first.
    pub channels_first: Option<[i64; 3]>,
    /// Their extra axes of length 1; [`Layout::their_dims`] omits them.
    pub ones: Vec<usize>,
    /// Whether their array is written with these axes.
    pub write_ones: bool,
    /// Their dims, if they differ from ours while the elements have the same order.
    pub dims: Option<Vec<i64>>,
}

impl Layout {
    /// The layout of a rule; `dims` are the result of [`Rule::axes_of`].
    pub(super) fn from_rule(rule: &Rule, dims: Option<Vec<i64>>) -> Layout {
        let Rule { part, transpose, joined, channels_first, ones, write_ones, .. } = rule.clone();
        Layout { part, transpose, joined, channels_first, ones, write_ones, dims }
    }

    /// Our dims with axes joined; `None` if the number of axes does not fit.
    fn joined_dims(&self, ours: &[i64]) -> Option<Vec<i64>> {
        let Some(joined) = &self.joined else { return Some(ours.to_vec()) };
        let n_axes = joined.iter().map(Vec::len).sum::<usize>();
        let product = |axes: &Vec<usize>| axes.iter().map(|&axis| ours[axis]).product();
        (n_axes == ours.len()).then(|| joined.iter().map(product).collect())
    }

    /// The dims of their part for our dims.
    fn part_dims(&self, ours: &[i64]) -> Option<Vec<i64>> {
        let joined = self.joined_dims(ours)?;
        if self.channels_first.is_some_and(|sizes| joined.first() != Some(&sizes.iter().product::<i64>())) {
            return None;
        }
        let Some(axes) = &self.transpose else { return Some(joined) };
        let mut dims = vec![0; joined.len()];
        if axes.len() != joined.len() {
            return None;
        }
        axes.iter().zip(&joined).for_each(|(&axis, &dim)| dims[axis] = dim);
        Some(dims)
    }

    /// Their dims for our dims; `None` if the number of axes does not fit.
    pub fn their_dims(&self, ours: &[i64]) -> Option<Vec<i64>> {
        let mut dims = self.part_dims(ours)?;
        if let Some(listed) = &self.dims {
            return (listed.iter().product::<i64>() == dims.iter().product::<i64>()).then(|| listed.clone());
        }
        if let Some(AxisPart { of, axis, .. }) = self.part {
            *dims.get_mut(axis)? *= of as i64;
        }
        Some(dims)
    }

    /// This layout for an array with these dims: without the extra axes of length 1 if the array lacks them.
    pub(super) fn of_dims(mut self, dims: &[i64], expected: &[i64]) -> Layout {
        if dims == expected {
            self.ones.clear();
        }
        self
    }

    /// Their dims with the extra axes of length 1.
    pub(super) fn with_ones(&self, mut dims: Vec<i64>) -> Vec<i64> {
        for &axis in &self.ones {
            dims.insert(axis.min(dims.len()), 1);
        }
        dims
    }

    /// Our bytes, row-major, from theirs, which have elements of `width` bytes and the dims of [`Layout::their_dims`].
    pub fn ours(&self, theirs: &[u8], ours: &[i64], width: usize) -> Option<Vec<u8>> {
        let part_dims = self.part_dims(ours)?;
        let part = match self.part {
            Some(part) => cut(theirs, &part_dims, part, width)?,
            None => theirs.to_vec(),
        };
        let laid = match &self.transpose {
            Some(axes) => permuted(&part, &part_dims, axes, width)?,
            None => part,
        };
        match self.channels_first {
            Some([channels, height, along]) => {
                let rest: i64 = self.joined_dims(ours)?.iter().skip(1).product();
                permuted(&laid, &[channels, height, along, rest], &[1, 2, 0, 3], width)
            }
            None => Some(laid),
        }
    }

    /// Their bytes from ours: the inverse of [`Layout::ours`]. For a part, only that part's bytes.
    pub fn theirs(&self, ours: &[u8], our_dims: &[i64], width: usize) -> Option<Vec<u8>> {
        let joined = self.joined_dims(our_dims)?;
        let ours = match self.channels_first {
            Some([channels, height, along]) => {
                let rest: i64 = joined.iter().skip(1).product();
                permuted(ours, &[height, along, channels, rest], &[2, 0, 1, 3], width)?
            }
            None => ours.to_vec(),
        };
        let Some(axes) = &self.transpose else { return Some(ours) };
        let mut inverse = vec![0; axes.len()];
        axes.iter().enumerate().for_each(|(ours, &theirs)| inverse[theirs] = ours);
        permuted(&ours, &joined, &inverse, width)
    }

    /// The dims of our part of their array.
    pub fn their_part_dims(&self, ours: &[i64]) -> Option<Vec<i64>> {
        self.part_dims(ours)
    }
}

/// Cuts a part of an array along an axis; `dims` are the part's.
fn cut(bytes: &[u8], dims: &[i64], AxisPart { number, of, axis }: AxisPart, width: usize) -> Option<Vec<u8>> {
    let size = |dims: &[i64]| dims.iter().map(|&dim| dim.max(0) as usize).product::<usize>();
    let block = size(dims.get(axis..)?) * width;
    if block == 0 {
        return Some(Vec::new());
    }
    let whole = bytes.chunks_exact(block * of);
    Some(whole.flat_map(|whole| &whole[number * block..][..block]).copied().collect())
}

/// Joins parts of an array along an axis; `dims` are those of one part.
pub fn joined_parts(parts: &[Vec<u8>], dims: &[i64], axis: usize, width: usize) -> Vec<u8> {
    let block = dims.iter().skip(axis).map(|&dim| dim.max(0) as usize).product::<usize>() * width;
    let n_blocks = parts.first().map_or(0, Vec::len).checked_div(block).unwrap_or(0);
    let row = |number: usize| parts.iter().flat_map(move |part| &part[number * block..][..block]);
    (0..n_blocks).flat_map(row).copied().collect()
}

/// The array whose axis `i` is axis `axes[i]` of the input.
fn permuted(bytes: &[u8], dims: &[i64], axes: &[usize], width: usize) -> Option<Vec<u8>> {
    if axes.len() != dims.len() {
        return None;
    }
    let sizes: Vec<usize> = dims.iter().map(|&dim| dim.max(0) as usize).collect();
    let mut strides = vec![width; sizes.len()];
    for axis in (0..sizes.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * sizes[axis + 1];
    }
    let sizes: Vec<usize> = axes.iter().map(|&axis| sizes[axis]).collect();
    let strides: Vec<usize> = axes.iter().map(|&axis| strides[axis]).collect();
    let n: usize = sizes.iter().product();
    let mut out = Vec::with_capacity(n * width);
    let mut at = vec![0; sizes.len()];
    let mut offset = 0;
    for _ in 0..n {
        out.extend_from_slice(bytes.get(offset..offset + width)?);
        for axis in (0..sizes.len()).rev() {
            at[axis] += 1;
            offset += strides[axis];
            if at[axis] < sizes[axis] {
                break;
            }
            offset -= strides[axis] * sizes[axis];
            at[axis] = 0;
        }
    }
    Some(out)
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        if let Some(AxisPart { number, of, axis }) = self.part {
            words.push(format!("part {} of {of} along axis {axis}", number + 1));
        }
        words.extend(self.transpose.as_ref().map(|axes| format!("transposed {axes:?}")));
        words.extend(self.channels_first.map(|sizes| format!("channels first of {sizes:?} put last")));
        words.extend(self.joined.as_ref().map(|joined| format!("axes {joined:?} taken apart")));
        words.extend(self.dims.as_ref().map(|dims| format!("reshaped from {dims:?}")));
        if !self.ones.is_empty() {
            words.push(format!("axes {:?} of length 1 left out", self.ones));
        }
        f.write_str(&words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_goes_both_ways() {
        // Theirs is [2 units of 3 parts, 4 inputs]; ours is [4 inputs, 1 head, 2 units].
        let layout = Layout {
            part: Some(AxisPart { number: 1, of: 3, axis: 0 }),
            transpose: Some(vec![1, 0]),
            joined: Some(vec![vec![0], vec![1, 2]]),
            ..Layout::default()
        };
        let ours = [4, 1, 2];
        assert_eq!(layout.their_dims(&ours), Some(vec![6, 4]));
        let theirs: Vec<u8> = (0..24).collect();
        let read = layout.ours(&theirs, &ours, 1).unwrap();
        assert_eq!(read, [8, 12, 9, 13, 10, 14, 11, 15]);
        let back = layout.theirs(&read, &ours, 1).unwrap();
        assert_eq!(back, theirs[8..16]);
        let part = |from: usize| theirs[from..from + 8].to_vec();
        assert_eq!(joined_parts(&[part(0), part(8), part(16)], &[2, 4], 0, 1), theirs);
        assert_eq!(layout.their_dims(&[8, 2]), None);
        assert_eq!(layout.to_string(), "part 2 of 3 along axis 0, transposed [1, 0], axes [[0], [1, 2]] taken apart");
    }

    /// PyTorch's `flatten(1)` of images, and a dense layer of two units after it.
    #[test]
    fn images_that_were_flattened_channels_first_go_both_ways() {
        let layout = Layout { transpose: Some(vec![1, 0]), channels_first: Some([3, 2, 2]), ..Layout::default() };
        let ours = [12, 2];
        assert_eq!(layout.their_dims(&ours), Some(vec![2, 12]));
        let theirs: Vec<u8> = (0..24).collect();
        let read = layout.ours(&theirs, &ours, 1).unwrap();
        // Our element for unit 1 at row 1, column 0, channel 2 is their element at channel 2, row 1, column 0.
        assert_eq!(read[(2 * 3 + 2) * 2 + 1], theirs[12 + (2 * 2 + 1) * 2]);
        assert_eq!(layout.theirs(&read, &ours, 1).unwrap(), theirs);
        assert_eq!(layout.their_dims(&[13, 2]), None);
        assert_eq!(layout.to_string(), "transposed [1, 0], channels first of [3, 2, 2] put last");
    }

    #[test]
    fn theirs_may_have_axes_more() {
        let one = Layout { ones: vec![0], ..Layout::default() };
        assert_eq!((one.their_dims(&[4, 2]), one.with_ones(vec![4, 2])), (Some(vec![4, 2]), vec![1, 4, 2]));
        assert_eq!(one.to_string(), "axes [0] of length 1 left out");
        assert_eq!(one.of_dims(&[4, 2], &[4, 2]), Layout::default());
        let heads = Layout { dims: Some(vec![4, 2]), ..Layout::default() };
        assert_eq!((heads.their_dims(&[8]), heads.their_dims(&[6])), (Some(vec![4, 2]), None));
        assert_eq!(heads.to_string(), "reshaped from [4, 2]");
    }

    #[test]
    fn axes_are_permuted_whatever_their_number() {
        let bytes: Vec<u8> = (0..24).collect();
        let hwio = permuted(&bytes, &[2, 3, 2, 2], &[2, 3, 1, 0], 1).unwrap();
        // Our element [h, w, i, o] is their element [o, i, h, w].
        let at = |[h, w, i, o]: [usize; 4]| hwio[((h * 2 + w) * 3 + i) * 2 + o];
        assert_eq!(at([1, 0, 2, 1]), bytes[(5 * 2 + 1) * 2]);
        assert_eq!(permuted(&bytes[..4], &[1], &[0], 4).unwrap(), &bytes[..4]);
        assert_eq!(permuted(&bytes, &[24], &[1, 0], 1), None);
        assert_eq!(permuted(&[7], &[], &[], 1).unwrap(), [7]);
    }
}
