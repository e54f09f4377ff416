//! Writes a bundle: one data file, and an index by names, like a `Saver`. TensorFlow restores it by names:
//! `tf.train.load_checkpoint`, `tf.compat.v1.train.Saver`, and `tf.train.Checkpoint` of variables with such names.
//!
//! A bundle has two files, and only one file at a time can be replaced atomically. So the data file never replaces
//! another: it takes the first free name, `data-00000-of-00001` or, beside an older bundle, `data-00000-of-00002` and
//! so on, and the index names it. Replacing the index switches to the new bundle; then the old data are removed. A
//! killed writer may leave data beside a bundle; they have a second name by which the next writer recognises them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use prost::Message as _;

use super::proto::{self, Dim, Header, TensorEntry, TensorShape, Version};
use super::{Index, index_of, prefix, read_index, shard_name, table};
use crate::weights::WeightsError;
use crate::weights::region::Region;
use bf16scope_files::framing::mask;
use bf16scope_files::{self as files, Doomed, FileError, Replacement};
use bf16scope_hlo::{ArrayShape, DType};

/// A bundle being written.
pub(in crate::weights) struct BundleWriter {
    prefix: PathBuf,
    data: BufWriter<Replacement>,
    index: Replacement,
    /// The data files of the bundle to be replaced.
    replaced: Vec<PathBuf>,
    n_bytes: u64,
    entries: BTreeMap<String, TensorEntry>,
}

impl BundleWriter {
    /// Begins a bundle. The existing files are unchanged until [`finish`](BundleWriter::finish).
    pub fn create(prefix: &Path) -> Result<BundleWriter, WeightsError> {
        let index = index_of(prefix);
        // Through a link, another bundle would get this one's index but keep its own data.
        if index.is_symlink() {
            let cause = FileError::Taken { kind: "a symbolic link" }.into();
            return Err(WeightsError::write(&index, cause));
        }
        let replaced = data_files(&index);
        let begin = |path: &Path| Replacement::begin(path).map_err(|cause| WeightsError::write(path, cause));
        // Files that may not be replaced are reported before anything is written.
        for data in &replaced {
            files::check_replaceable(data).map_err(|cause| WeightsError::write(data, cause))?;
        }
        remove_unnamed(prefix, &index);
        let free = names(prefix).find(|name| name.symlink_metadata().is_err());
        let data = BufWriter::new(begin(&free.unwrap_or_else(|| shard_name(prefix, 0, 1)))?);
        let (prefix, index) = (prefix.to_path_buf(), begin(&index)?);
        Ok(BundleWriter { prefix, data, index, replaced, n_bytes: 0, entries: BTreeMap::new() })
    }

    /// Whether a bundle can hold arrays of this dtype.
    pub fn holds(dtype: DType) -> bool {
        proto::number(dtype).is_some()
    }

    /// Appends an array of a dtype that a bundle [`holds`](BundleWriter::holds).
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

    /// Moves both files into place, the index last: the data are not used without it.
    pub fn finish(self) -> Result<(), WeightsError> {
        let BundleWriter { prefix, data, mut index, replaced, entries, .. } = self;
        let failed = |cause| WeightsError::write(&prefix, cause);
        let data = data.into_inner().map_err(io::IntoInnerError::into_error).map_err(failed)?;
        let placed = data.finish_new(names(&prefix)).map_err(failed)?;
        let place = placed.place();
        let num_shards = (1..=MAX_NAMES).zip(names(&prefix)).find(|(_, name)| name == place).map_or(1, |(n, _)| n);
        let version = Some(Version { producer: 1, min_consumer: 0 });
        let header = Header { num_shards, endianness: 0, version }.encode_to_vec();
        let pairs = entries.iter().map(|(name, entry)| (name.as_bytes(), entry.encode_to_vec()));
        let table = table::write(std::iter::once((&b""[..], header)).chain(pairs));
        // Links are never removed, nor are their targets.
        let is_file = |path: &PathBuf| path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
        let replaced: Vec<&PathBuf> = replaced.iter().filter(|data| *data != place && is_file(data)).collect();
        let doomed: Vec<Doomed> = replaced.iter().map(|data| files::doom(data)).collect();
        if let Err(cause) = index.write_all(&table).and_then(|()| index.finish()) {
            // Without an index that names them, these data are unused.
            drop(files::remove_file(place));
            return Err(failed(cause));
        }
        for data in &replaced {
            if let Err(cause) = files::remove_file(data) {
                tracing::warn!("{}: no index names it any more, and it cannot be removed: {cause}", data.display());
            }
        }
        drop(doomed);
        Ok(())
    }
}

/// Removes data that killed writers of this bundle left and that its index does not name. If the index cannot be read,
/// all of them stay.
fn remove_unnamed(prefix: &Path, index: &Path) {
    let n_shards = match index.symlink_metadata() {
        Err(_) => 0,
        Ok(_) => match Region::open(index).and_then(|region| read_index(&region)) {
            Ok(Index { header: Some(header), .. }) => header.num_shards,
            Ok(_) | Err(_) => return,
        },
    };
    let Some(name) = prefix.file_name() else { return };
    let mut start = name.to_os_string();
    start.push(".data-");
    let end = format!("-of-{n_shards:05}");
    let is_named = |path: &Path| path.as_os_str().as_encoded_bytes().ends_with(end.as_bytes());
    // A file that cannot be removed does no harm.
    drop(files::remove_unnamed(folder_of(prefix), &start, is_named));
}

/// The folder of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The number of names to try for a data file.
const MAX_NAMES: i32 = 99_999;

fn names(prefix: &Path) -> impl Iterator<Item = PathBuf> {
    (1..=MAX_NAMES).map(|n| shard_name(prefix, 0, n))
}

/// The data files that an index names; empty if there is no index, or it cannot be read.
fn data_files(index: &Path) -> Vec<PathBuf> {
    let contents = Region::open(index).and_then(|region| read_index(&region)).unwrap_or_default();
    let Some(header) = contents.header else { return Vec::new() };
    let tensors = contents.tensors.values().filter(|tensor| tensor.slices.is_empty());
    let shards: BTreeSet<i32> = tensors.map(|tensor| tensor.shard_id).collect();
    shards.into_iter().map(|shard| shard_name(&prefix(index), shard, header.num_shards)).collect()
}
