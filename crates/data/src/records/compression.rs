//! What files are packed with.

use std::path::Path;

/// Unpacked bytes for each compressed one at most, once a certain number have come out. Deflate makes up to 1,032 of one, of
/// zeros; images are compressed already, numbers and text give 2 to 20.
const MAX_RATIO: u64 = 200;
/// The same of Parquet, which writes a column of equal values in some bytes, and where names stand once and not in each row.
const MAX_RATIO_PARQUET: u64 = 2000;

/// What a whole file is, of which records are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zlib,
    #[cfg_attr(not(feature = "records"), allow(dead_code, reason = "no such file is opened"))]
    Zstd,
    #[cfg_attr(not(feature = "records"), allow(dead_code, reason = "no such file is opened"))]
    Parquet,
}

impl Compression {
    /// By the first bytes of a file.
    pub(super) fn of(head: &[u8]) -> Option<Compression> {
        match head {
            [0x1f, 0x8b, 0x08, ..] => Some(Compression::Gzip),
            // RFC 8878: a frame, or one that is skipped.
            #[cfg(feature = "records")]
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

    /// How somebody unpacks it by hand, where that is one command.
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

    /// What tells its records in the cache from those that another reading of the same file makes. It changes with what a
    /// row becomes.
    pub(super) fn form(self) -> &'static str {
        match self {
            Compression::Gzip | Compression::Zlib | Compression::Zstd => "-2",
            Compression::Parquet => "-rows2",
        }
    }

    pub(super) fn max_ratio(self) -> u64 {
        if let Compression::Parquet = self { MAX_RATIO_PARQUET } else { MAX_RATIO }
    }
}
