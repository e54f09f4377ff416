//! JPEG segments: the headers before the pixels, and how to cut off rows that are not needed.
//!
//! The decoder lacks this: a file of one scan stores its rows from top to bottom, so a window needs no rows below it. A
//! copy of the file whose header claims that smaller height decodes to the same pixels.

use std::ops::Range;

/// Segments up to and including the first one of pixels: their markers, and where their contents are.
pub(super) fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, Range<usize>)> {
    let mut at = 2;
    std::iter::from_fn(move || {
        loop {
            let &[0xff, marker, ..] = bytes.get(at..)? else { return None };
            match marker {
                // Fill bytes, and markers without a length.
                0xff => at += 1,
                0x01 | 0xd0..=0xd8 => at += 2,
                0xd9 => return None,
                _ => {
                    let &[high, low] = bytes.get(at + 2..)?.first_chunk()?;
                    let end = at + 2 + usize::from(u16::from_be_bytes([high, low])).max(2);
                    let inner = at + 4..end;
                    // After the scan header there are no more lengths.
                    at = if marker == 0xda { bytes.len() } else { end };
                    return Some((marker, inner));
                }
            }
        }
    })
}

/// Whether Adobe's segment marks the CMYK channels as inverted.
pub(super) fn has_adobe_marker(bytes: &[u8]) -> bool {
    segments(bytes).any(|(marker, inner)| marker == 0xee && bytes[inner.start..].starts_with(b"Adobe"))
}

/// Version 0.9.0 of the decoder assumes that the first and last of four components have full size, and that the two
/// between are alike and smaller by a whole factor. It would decode other files, which no known encoder writes, to
/// wrong pixels, or index beyond a row.
pub(super) fn check_inks(factors: &[[u8; 2]]) -> Result<(), String> {
    let &[first, second, third, fourth] = factors else { return Ok(()) };
    let divides = |axis: usize| second[axis] != 0 && first[axis] % second[axis] == 0;
    match first == fourth && second == third && divides(0) && divides(1) {
        true => Ok(()),
        false => {
            let each: Vec<String> = factors.iter().map(|[across, down]| format!("{across}×{down}")).collect();
            Err(format!(
                "its four components have the sampling factors {}; expected the first and the last alike, and the two \
                 between alike and dividing them",
                each.join(", ")
            ))
        }
    }
}

/// A file whose pixels are one scan, row after row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OneScan {
    pub height: usize,
    pub width: usize,
    /// Where the height is stored.
    height_at: usize,
    /// Rows of an MCU.
    block: usize,
    /// Image rows per row of the most subsampled component.
    sampling: usize,
}

/// The largest padding after the end marker: some writers fill a sector.
const MAX_PADDING: usize = 16;

impl OneScan {
    /// `None` if rows are coded in another way (progressive, arithmetic, a scan for each component), if the headers are
    /// not understood, and if the file does not end like an intact one: then the decoder has to see all of it.
    pub fn parse(bytes: &[u8]) -> Option<OneScan> {
        let tail = &bytes[bytes.len().saturating_sub(2 + MAX_PADDING)..];
        tail.windows(2).find(|two| *two == [0xff, 0xd9])?;
        let mut frame = None;
        for (marker, inner) in segments(bytes) {
            let start = inner.start;
            let inner = bytes.get(inner)?;
            match marker {
                // Baseline, and extended sequential with more tables.
                0xc0 | 0xc1 => {
                    let &[8, h1, h0, w1, w0, n, ref components @ ..] = inner else { return None };
                    let of_component = components.as_chunks::<3>().0;
                    if frame.is_some() || of_component.len() != usize::from(n) {
                        return None;
                    }
                    let sampling = of_component.iter().map(|[_, sampling, _]| usize::from(sampling & 0xf)).max()?;
                    let [height, width] = [[h1, h0], [w1, w0]].map(|two| usize::from(u16::from_be_bytes(two)));
                    if !(1..=4).contains(&sampling) || height == 0 || width == 0 {
                        return None;
                    }
                    let one = OneScan { height, width, height_at: start + 1, block: 8 * sampling, sampling };
                    frame = Some((one, n));
                }
                // Other codings; not the Huffman tables (c4), the reserved marker (c8) and arithmetic conditioning
                // (cc), which are between 0xc0 and 0xcf too.
                0xc2 | 0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => return None,
                0xda => return frame.filter(|(_, n)| inner.first() == Some(n)).map(|(one, _)| one),
                _ => {}
            }
        }
        None
    }

    /// The height to claim if no row from `end` on is needed; `None` if nothing can be cut. Chroma rows are
    /// interpolated, so one row beyond the last is decoded too.
    pub fn cut(&self, end: usize) -> Option<usize> {
        let height = (end + self.sampling).next_multiple_of(self.block);
        (height < self.height).then_some(height)
    }

    /// Writes the file with that height to `into`.
    pub fn write(&self, bytes: &[u8], height: usize, into: &mut Vec<u8>) {
        into.clear();
        into.extend_from_slice(bytes);
        into[self.height_at..][..2].copy_from_slice(&(height as u16).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libjpeg_turbo_rs::{Encoder, PixelFormat, Subsampling, compress, compress_progressive};

    fn pixels(height: usize, width: usize) -> Vec<u8> {
        (0..height * width * 3).map(|i| (i * i / 7 % 253) as u8).collect()
    }

    #[test]
    fn what_stands_before_the_pixels_is_found() {
        let plain = compress(&pixels(37, 50), 50, 37, PixelFormat::Rgb, 90, Subsampling::S420).unwrap();
        let one = OneScan::parse(&plain).unwrap();
        assert_eq!((one.height, one.width, one.block), (37, 50, 16));
        assert_eq!(
            [0, 13, 14, 15, 30, 31].map(|end| one.cut(end)),
            [Some(16), Some(16), Some(16), Some(32), Some(32), None]
        );
        let fine = compress(&pixels(37, 50), 50, 37, PixelFormat::Rgb, 90, Subsampling::S444).unwrap();
        assert_eq!(OneScan::parse(&fine).unwrap().cut(15), Some(16));
        let grey = compress(&pixels(1, 500), 50, 30, PixelFormat::Grayscale, 90, Subsampling::S444).unwrap();
        assert_eq!(OneScan::parse(&grey).map(|one| one.height), Some(30));
        // The end marker is missing, followed by some padding, or by too much of it.
        assert_eq!(OneScan::parse(&plain[..plain.len() - 2]), None);
        assert_eq!(OneScan::parse(&[&plain[..], &[0; MAX_PADDING]].concat()), Some(one));
        assert_eq!(OneScan::parse(&[&plain[..], &[0; MAX_PADDING + 1]].concat()), None);
        let several = compress_progressive(&pixels(37, 50), 50, 37, PixelFormat::Rgb, 90, Subsampling::S420).unwrap();
        assert_eq!(OneScan::parse(&several), None);
        let pixels = pixels(37, 50);
        let arithmetic = Encoder::new(&pixels, 50, 37, PixelFormat::Rgb).arithmetic(true).encode().unwrap();
        assert_eq!(OneScan::parse(&arithmetic), None);
        assert_eq!(OneScan::parse(b"\xff\xd8\xff\xd9"), None);
        assert_eq!(OneScan::parse(b""), None);
    }

    #[test]
    fn cut_headers_are_no_panic() {
        let whole = compress(&pixels(37, 50), 50, 37, PixelFormat::Rgb, 90, Subsampling::S420).unwrap();
        for end in 0..whole.len() {
            let cut = [&whole[..end], &[0xff, 0xd9]].concat();
            if let Some(one) = OneScan::parse(&cut) {
                assert!(end > one.height_at + 1);
            }
            assert!(!has_adobe_marker(&cut));
        }
    }
}
