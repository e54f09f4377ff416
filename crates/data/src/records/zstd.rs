//! Reads a Zstandard file as a stream: consecutive frames and skippable frames, as `zstd` and `pzstd` write them. A
//! frame's checksum is not verified: records, and a tar's headers, have their own.
//!
//! Source: RFC 8878.

use std::io::{self, BufRead as _, BufReader, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// About how many bytes are decoded at a time: a block has 128 KiB at most.
const AT_ONCE: usize = 128 << 10;

/// The decompressed bytes of a file's frames.
pub(super) struct Zstd<R> {
    packed: BufReader<R>,
    frame: FrameDecoder,
    /// Whether a frame has begun and is not finished.
    is_open: bool,
}

impl<R: Read> Zstd<R> {
    pub(super) fn new(packed: R) -> Zstd<R> {
        Zstd { packed: BufReader::new(packed), frame: FrameDecoder::new(), is_open: false }
    }

    /// Begins the next frame; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.packed.fill_buf()?.is_empty() {
            match self.frame.reset(&mut self.packed) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut self.packed.by_ref().take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
        Ok(false)
    }
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while !into.is_empty() {
            if !self.is_open && !self.begin()? {
                return Ok(0);
            }
            self.is_open = true;
            if self.frame.can_collect() > 0 {
                return self.frame.read(into);
            }
            if self.frame.is_finished() {
                self.is_open = false;
                continue;
            }
            let decoded = self.frame.decode_blocks(&mut self.packed, BlockDecodingStrategy::UptoBytes(AT_ONCE));
            decoded.map_err(|error| io::Error::other(error.to_string()))?;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Zstd::new(packed).read_to_end(&mut out).map(|_| out)
    }

    #[test]
    fn frames_follow_one_another_and_some_are_skipped() {
        let bytes: Vec<u8> = (0..1_000_000u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
        let packed = compress_to_vec(&bytes[..], CompressionLevel::Fastest);
        assert_eq!(unpacked(&packed).unwrap(), bytes);
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let empty = compress_to_vec(&b""[..], CompressionLevel::Fastest);
        let all = [&skipped[..], &packed, &empty, &skipped, &packed].concat();
        assert_eq!(unpacked(&all).unwrap(), [&bytes[..], &bytes].concat());
        assert_eq!(unpacked(&[]).unwrap(), b"");
        for end in [1, 5, packed.len() / 2, packed.len() - 1] {
            assert!(unpacked(&packed[..end]).is_err(), "{end}");
        }
        assert!(unpacked(&skipped[..10]).is_err());
        assert!(unpacked(&[&packed[..], b"more"].concat()).is_err());
    }
}
