//! Decompression of Parquet pages, without C code.
//!
//! A page states its uncompressed size; decoders never allocate more.

use std::io::{Cursor, Read};

use parquet::basic::CompressionCodec as Codec;

/// The uncompressed bytes of a page, which must be `n_bytes`.
pub(super) fn unpack(codec: Codec, packed: &[u8], n_bytes: usize) -> Result<Vec<u8>, String> {
    let name = name(codec);
    let damaged = |message: String| format!("the {name} bytes of a page are damaged: {message}");
    let out = match codec {
        Codec::UNCOMPRESSED => packed.to_vec(),
        Codec::SNAPPY => {
            let measured = snap::raw::decompress_len(packed).map_err(|error| damaged(error.to_string()))?;
            if measured != n_bytes {
                return Err(damaged(format!("{measured} bytes; expected {n_bytes}")));
            }
            snap::raw::Decoder::new().decompress_vec(packed).map_err(|error| damaged(error.to_string()))?
        }
        Codec::GZIP => whole(flate2::read::MultiGzDecoder::new(packed), n_bytes).map_err(damaged)?,
        Codec::BROTLI => whole(brotli_decompressor::Decompressor::new(packed, 4096), n_bytes).map_err(damaged)?,
        Codec::ZSTD => zstd(packed, n_bytes).map_err(damaged)?,
        Codec::LZ4_RAW => {
            let mut out = vec![0; n_bytes];
            let n = lz4_flex::block::decompress_into(packed, &mut out).map_err(|error| damaged(error.to_string()))?;
            out.truncate(n);
            out
        }
        _ => {
            return Err(format!(
                "pages compressed with {name}; expected snappy, gzip, zstd, lz4_raw, brotli or none: write the file again"
            ));
        }
    };
    match out.len() == n_bytes {
        true => Ok(out),
        false => Err(damaged(format!("{} bytes or more; expected {n_bytes}", out.len()))),
    }
}

/// Reads at most one byte more of the stream than expected.
fn whole(stream: impl Read, n_bytes: usize) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    stream.take(n_bytes as u64 + 1).read_to_end(&mut out).map_err(|error| error.to_string())?;
    Ok(out)
}

/// Consecutive Zstandard frames.
fn zstd(packed: &[u8], n_bytes: usize) -> Result<Vec<u8>, String> {
    let mut rest = Cursor::new(packed);
    let mut out = Vec::new();
    while (rest.position() as usize) < packed.len() {
        let frame = ruzstd::decoding::StreamingDecoder::new(&mut rest).map_err(|error| error.to_string())?;
        out.extend(whole(frame, n_bytes - out.len())?);
        if out.len() > n_bytes {
            break;
        }
    }
    Ok(out)
}

fn name(codec: Codec) -> String {
    format!("{codec:?}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_comes_out_than_is_said() {
        let bytes = vec![7; 100_000];
        let packed = snap::raw::Encoder::new().compress_vec(&bytes).unwrap();
        assert_eq!(unpack(Codec::SNAPPY, &packed, bytes.len()).unwrap(), bytes);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut gzip, &bytes).unwrap();
        let gzip = gzip.finish().unwrap();
        assert_eq!(unpack(Codec::GZIP, &gzip, bytes.len()).unwrap(), bytes);
        let zstd = ruzstd::encoding::compress_to_vec(&bytes[..], ruzstd::encoding::CompressionLevel::Fastest);
        assert_eq!(unpack(Codec::ZSTD, &zstd, bytes.len()).unwrap(), bytes);
        let two = [&zstd[..], &zstd].concat();
        assert_eq!(unpack(Codec::ZSTD, &two, 2 * bytes.len()).unwrap().len(), 200_000);
        for (codec, packed) in [(Codec::SNAPPY, &packed), (Codec::GZIP, &gzip), (Codec::ZSTD, &zstd)] {
            for n_bytes in [0, 99_999, 100_001] {
                let error = unpack(codec, packed, n_bytes).unwrap_err();
                assert!(error.contains("damaged: ") && error.contains(&format!("expected {n_bytes}")), "{error}");
            }
            assert!(unpack(codec, &packed[..packed.len() / 2], 100_000).is_err(), "{codec:?}");
        }
        let error = unpack(Codec::GZIP, &gzip, 100_001).unwrap_err();
        assert_eq!(error, "the gzip bytes of a page are damaged: 100000 bytes or more; expected 100001");
        let error = unpack(Codec::LZO, &[], 0).unwrap_err();
        assert_eq!(
            error,
            "pages compressed with lzo; expected snappy, gzip, zstd, lz4_raw, brotli or none: write the file again"
        );
    }
}
