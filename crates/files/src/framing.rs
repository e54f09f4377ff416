//! TFRecord framing: how TensorFlow stores consecutive records in a file.
//!
//! A record is its length (u64, little-endian), the masked CRC-32C of those 8 bytes, its bytes, and their masked
//! CRC-32C. Data sets and TensorBoard's event files use the same framing.
//!
//! Source: TensorFlow's `core/lib/io/record_writer.h` and `core/lib/hash/crc32c.h`.

/// The size of the header of a record.
pub const HEAD: usize = 12;
/// The size of its footer.
pub const FOOT: usize = 4;

/// TensorFlow's masked CRC-32C, so that the CRC of bytes that contain CRCs is not degenerate.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    mask(crc32c::crc32c(bytes))
}

/// The mask of a given CRC-32C.
pub fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The length in a header, and whether the header's checksum is right.
pub fn length(head: &[u8; HEAD]) -> (u64, bool) {
    let (length, crc) = head.split_at(8);
    let is_intact = masked_crc(length).to_le_bytes() == crc;
    (u64::from_le_bytes(length.try_into().expect("eight bytes")), is_intact)
}

/// A record with its header and footer.
pub fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(HEAD + bytes.len() + FOOT);
    out.extend(length);
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(bytes);
    out.extend(masked_crc(bytes).to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `tf.io.TFRecordWriter` in TensorFlow 2.21.0 for `b"bf16"`.
    #[test]
    fn a_record_is_framed_as_tensorflow_frames_it() {
        let bytes = framed(b"bf16");
        assert_eq!(crate::hex(&bytes), "04000000000000004245520462663136535e3db7");
        let mut head: [u8; HEAD] = bytes[..HEAD].try_into().unwrap();
        assert_eq!(length(&head), (4, true));
        head[0] ^= 1;
        assert_eq!(length(&head), (5, false));
    }
}
