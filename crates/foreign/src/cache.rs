//! Conversions kept on disk by content: a record is a serialized `HloProto`, with its length and hash.
//!
//! A damaged record costs a conversion, never the answer; a folder that cannot be written to is a warning.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use bf16scope_files::{self as files, Records};
use bf16scope_pjrt::Pinned;

/// Beyond this the oldest records go.
const MAX_BYTES: u64 = 1 << 30;
/// In the key: it changes with the form of a record.
const FORM: &[u8] = b"kept1";
/// The most that is read of one.
const MAX_RECORD: u64 = 512 << 20;

/// The conversions kept below a cache directory, such as [`Setup::cache_dir`](bf16scope_pjrt::Setup::cache_dir), as files.
pub fn conversions(cache_dir: &Path) -> Records {
    Records::new(cache_dir.join("stablehlo"), "hlo", MAX_BYTES)
}

/// Where one program's conversion is kept.
pub(super) struct Cache {
    records: Records,
    key: String,
}

impl Cache {
    /// The place for this program. What converts it is in the key: another plugin may convert it otherwise.
    pub(super) fn of(cache_dir: &Path, program: &[u8]) -> Cache {
        let mut sha = Sha256::new();
        for variable in ["BF16SCOPE_CPU_PLUGIN", "TPU_LIBRARY_PATH"] {
            let value = std::env::var_os(variable).unwrap_or_default();
            sha.update((value.len() as u64).to_le_bytes());
            sha.update(value.as_encoded_bytes());
        }
        sha.update(Pinned::CPU.library_sha256);
        sha.update(Pinned::TPU.library_sha256);
        sha.update(FORM);
        sha.update(program);
        let key = files::hex(sha.finalize());
        Cache { records: conversions(cache_dir), key }
    }

    /// The cached result, if it is there and intact.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        self.records.find(&self.key, MAX_RECORD)
    }

    /// Keeps a conversion, or warns.
    pub(super) fn keep(&self, hlo: &[u8]) {
        if hlo.len() as u64 > MAX_RECORD {
            return;
        }
        let written = self.records.keep_whole(&self.key, hlo);
        if let Err(error) = written {
            tracing::warn!(
                "cache of conversions {}: {error}; this one is not remembered\nhelp: {}, or set BF16SCOPE_CACHE \
                 to a directory that can be written",
                self.records.dir().display(),
                files::room_for(&error)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_record_is_found_by_content_and_a_damaged_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::of(folder.path(), b"program");
        assert_eq!(cache.read(), None);
        cache.keep(b"its HLO");
        assert_eq!(Cache::of(folder.path(), b"program").read().unwrap(), b"its HLO");
        assert_eq!(Cache::of(folder.path(), b"another").read(), None);
        let mut record = fs::read(cache.records.path(&cache.key)).unwrap();
        record[40 - 4] ^= 1;
        fs::write(cache.records.path(&cache.key), record).unwrap();
        assert_eq!(cache.read(), None);
        fs::write(cache.records.path(&cache.key), b"short").unwrap();
        assert_eq!(cache.read(), None);
    }
}
