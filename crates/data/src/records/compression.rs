//! Compression formats of files.

use std::path::Path;

/// The largest ratio of unpacked to compressed bytes, checked after a certain number of bytes. Deflate reaches 1,032
/// for zeros; images are compressed already, numbers and text have a ratio of 2 to 20.
const MAX_RATIO: u64 = 200;
/// The same for Parquet, which stores a column of equal values in a few bytes, and names once and not in each row.
const MAX_RATIO_PARQUET: u64 = 2000;

/// The format of a whole file that contains records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zlib,
    Zstd,
    #[cfg_attr(not(feature = "records"), allow(dead_code, reason = "no such file is opened"))]
    Parquet,
}

impl Compression {
    /// Recognises the format by the first bytes of a file.
    pub(super) fn detect(head: &[u8]) -> Option<Compression> {
        match head {
            [0x1f, 0x8b, 0x08, ..] => Some(Compression::Gzip),
            // RFC 8878: a frame, or a skippable frame.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Compression::Zstd),
            // RFC 1950: deflate with a window of up to 32 KiB, and a check of the two bytes.
            [cmf @ 0x08..=0x78, flg, ..] if cmf & 0x0f == 8 && (u16::from(*cmf) << 8 | u16::from(*flg)) % 31 == 0 => {
                Some(Compression::Zlib)
            }
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zlib => "zlib",
            Compression::Zstd => "Zstandard",
            Compression::Parquet => "Parquet",
        }
    }

    /// The command that unpacks it by hand, if there is a single one.
    pub(super) fn by_hand(self, path: &Path) -> Option<String> {
        let path = path.display();
        match self {
            Compression::Gzip => Some(format!("gunzip -c {path} > {path}.unpacked")),
            Compression::Zstd => Some(format!("zstd -dc {path} > {path}.unpacked")),
            Compression::Zlib => Some(format!(
                "python3 -c 'import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))' < {path} > {path}.unpacked"
            )),
            Compression::Parquet => None,
        }
    }

    /// Distinguishes its records in the cache from those of other readers of the same file. It changes when the
    /// conversion of rows changes.
    pub(super) fn form(self) -> &'static str {
        match self {
            Compression::Gzip | Compression::Zlib | Compression::Zstd => "-2",
            Compression::Parquet => "-rows3",
        }
    }

    pub(super) fn max_ratio(self) -> u64 {
        if let Compression::Parquet = self { MAX_RATIO_PARQUET } else { MAX_RATIO }
    }
}
