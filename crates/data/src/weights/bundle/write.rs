//! Writes a bundle: one data file, and an index by names, as a `Saver` writes it. TensorFlow restores it by names:
//! `tf.train.load_checkpoint`, `tf.compat.v1.train.Saver`, and `tf.train.Checkpoint` of variables with such names.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use prost::Message as _;

use super::proto::{self, Dim, Header, TensorEntry, TensorShape, Version};
use super::{index_of, shard_name, table};
use crate::weights::WeightsError;
use bf16scope_files::framing::mask;
use bf16scope_files::{self as files, Replacement};
use bf16scope_hlo::{ArrayShape, DType};

/// A bundle that is being written.
pub(in crate::weights) struct BundleWriter {
    prefix: PathBuf,
    data: BufWriter<Replacement>,
    n_bytes: u64,
    entries: BTreeMap<String, TensorEntry>,
}

impl BundleWriter {
    /// Begins one. What is there stays as it is until [`finish`](BundleWriter::finish).
    pub fn create(prefix: &Path) -> Result<BundleWriter, WeightsError> {
        let data = shard_name(prefix, 0, 1);
        let data = Replacement::begin(&data).map_err(|cause| WeightsError::write(&data, cause))?;
        let (prefix, data) = (prefix.to_path_buf(), BufWriter::new(data));
        Ok(BundleWriter { prefix, data, n_bytes: 0, entries: BTreeMap::new() })
    }

    /// Whether a bundle holds arrays of a dtype.
    pub fn holds(dtype: DType) -> bool {
        proto::number(dtype).is_some()
    }

    /// Appends an array, whose dtype a bundle [`holds`](BundleWriter::holds).
    pub fn add(&mut self, name: &str, shape: &ArrayShape, bytes: &[u8]) -> Result<(), WeightsError> {
        self.data.write_all(bytes).map_err(|cause| WeightsError::write(&self.prefix, cause))?;
        let entry = TensorEntry {
            dtype: proto::number(shape.dtype).unwrap_or_default(),
            shape: Some(TensorShape {
                dim: shape.dims.iter().map(|&size| Dim { size }).collect(),
                unknown_rank: false,
            }),
            shard_id: 0,
            offset: self.n_bytes as i64,
            size: bytes.len() as i64,
            crc32c: mask(crc32c::crc32c(bytes)),
            slices: Vec::new(),
        };
        self.n_bytes += bytes.len() as u64;
        self.entries.insert(name.to_string(), entry);
        Ok(())
    }

    /// Puts both files in their places, the index last: without it nobody reads the data.
    pub fn finish(self) -> Result<(), WeightsError> {
        let BundleWriter { prefix, data, entries, .. } = self;
        let failed = |cause| WeightsError::write(&prefix, cause);
        let data = data.into_inner().map_err(io::IntoInnerError::into_error).map_err(failed)?;
        data.finish().map_err(failed)?;
        let version = Some(Version { producer: 1, min_consumer: 0 });
        let header = Header { num_shards: 1, endianness: 0, version }.encode_to_vec();
        let pairs = entries.iter().map(|(name, entry)| (name.as_bytes(), entry.encode_to_vec()));
        let index = table::write(std::iter::once((&b""[..], header)).chain(pairs));
        files::replace(&index_of(&prefix), &index).map_err(failed)
    }
}
