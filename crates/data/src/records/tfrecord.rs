//! TFRecord files of `tf.train.Example`s, read by number.
//!
//! Opening makes an [`Index`] or finds it in the cache: 8 bytes of memory per record. Reading a record reads only its
//! bytes, in one system call, from any thread; a limited number of files is kept open.

use super::compression::Compression;
use super::index::{Index, place};
use super::shards::Shards;
use super::{Records, Values, parse};
use crate::error::{COPY_AGAIN, DataError, DataErrorKind};
use bf16scope_files::Cache;
use bf16scope_files::framing::{self, FOOT, HEAD};
use std::path::{Path, PathBuf};

/// The records of TFRecord files, one file after the other.
#[derive(Debug)]
pub struct TfRecords {
    shards: Shards,
    index: Index,
    /// For each file, the number of its first record among all.
    firsts: Vec<u64>,
    n_records: u64,
}

/// The error for files without any record.
pub(super) fn no_records(files: &[PathBuf]) -> DataError {
    let first = files.first().cloned().unwrap_or_default();
    DataError::empty(&first, "no records; expected one at least")
}

impl TfRecords {
    /// The records of `files`, in this order. `cache` is the folder in which indexes are kept for the next run; without
    /// it the files are scanned each time. Files of gzip or zlib are unpacked into it once.
    ///
    /// # Errors
    /// A file that cannot be opened, cannot be unpacked, is not a TFRecord file or is truncated; no records.
    pub fn open(files: &[PathBuf], cache: Option<&Path>) -> Result<TfRecords, DataError> {
        TfRecords::open_in(files, &cache.into())
    }

    /// The same, with a callback for download progress.
    ///
    /// # Errors
    /// Those of [`TfRecords::open`].
    pub fn open_in(files: &[PathBuf], cache: &Cache) -> Result<TfRecords, DataError> {
        TfRecords::open_as(files, cache, compression)
    }

    /// Like [`open`](TfRecords::open); `compression` recognises a file that has its records in another form, by its
    /// first bytes.
    pub(super) fn open_as(
        files: &[PathBuf],
        cache: &Cache,
        compression: fn(&[u8]) -> Option<Compression>,
    ) -> Result<TfRecords, DataError> {
        let shards = Shards::open(files, cache, compression)?;
        let index = Index::load(&shards, cache.dir.as_deref())?;
        let mut n_records = 0;
        let firsts = index.files.iter().map(|starts| {
            let first = n_records;
            n_records += starts.len() as u64 - 1;
            first
        });
        let firsts = firsts.collect();
        if n_records == 0 {
            return Err(no_records(files));
        }
        Ok(TfRecords { shards, index, firsts, n_records })
    }

    /// Like [`files`](super::files).
    ///
    /// # Errors
    /// Those of [`files`](super::files).
    pub fn files(folder: &Path, patterns: &[impl AsRef<str>]) -> Result<Vec<PathBuf>, DataError> {
        super::files(folder, patterns)
    }

    /// The bytes of record `index`, with verified checksum.
    ///
    /// # Errors
    /// A record that cannot be read or is damaged; a file that has changed.
    pub fn bytes(&self, index: u64) -> Result<Vec<u8>, DataError> {
        let (file_idx, record) = self.find(index);
        let starts = &self.index.files[file_idx];
        let (start, end) = (starts[record], starts[record + 1]);
        let shard = &self.shards.shards[file_idx];
        let place = || place(&shard.path, record);
        let n_bytes = usize::try_from(end - start).expect("the index has no record beyond its limit");
        let mut frame = vec![0; n_bytes];
        self.shards.read_exact_at(file_idx, &mut frame, start, place)?;
        let head: &[u8; HEAD] = frame.first_chunk().expect("the index has no record without a head");
        let length = n_bytes - HEAD - FOOT;
        if framing::length(head) != (length as u64, true) {
            return Err(DataError::changed(&shard.path));
        }
        let foot: [u8; FOOT] = *frame.last_chunk().expect("the index has no record without a foot");
        frame.truncate(HEAD + length);
        frame.drain(..HEAD);
        let (measured, expected) = (framing::masked_crc(&frame), u32::from_le_bytes(foot));
        match measured == expected {
            true => Ok(frame),
            false => {
                let message = format!(
                    "the checksum of its bytes is {measured:#010x}; expected {expected:#010x}: the record is damaged"
                );
                let help = format!("{COPY_AGAIN}, or leave such records out: `on_error: {{skip: N}}` under `data`");
                Err(DataError::new(DataErrorKind::Damaged, place(), message).help(help))
            }
        }
    }

    /// The file of a record, and its number there.
    pub(super) fn find(&self, index: u64) -> (usize, usize) {
        // The last of several files with the same first number is the one that has the record: the others are empty.
        let file_idx = self.firsts.partition_point(|&first| first <= index).saturating_sub(1);
        (file_idx, (index - self.firsts[file_idx]) as usize)
    }

    /// A file before unpacking.
    #[cfg(feature = "records")]
    pub(super) fn whole(&self, file_idx: usize) -> &Path {
        self.shards.shards[file_idx].whole()
    }

    /// A file, by the user's name.
    #[cfg(feature = "records")]
    pub(super) fn path(&self, file_idx: usize) -> &Path {
        &self.shards.shards[file_idx].path
    }
}

impl Records for TfRecords {
    fn n_records(&self) -> u64 {
        self.n_records
    }

    fn values(&self, index: u64, keys: Option<&[&str]>) -> Result<Values, DataError> {
        let bytes = self.bytes(index)?;
        let wrong = |message| {
            DataError::new(DataErrorKind::Format, self.place(index), format!("no tf.train.Example: {message}"))
        };
        parse(bytes, keys).map_err(wrong)
    }

    fn place(&self, index: u64) -> String {
        let (file_idx, record) = self.find(index);
        place(&self.shards.shards[file_idx].path, record)
    }

    fn fingerprint(&self) -> &str {
        &self.index.fingerprint
    }
}

/// The compression of a file that does not begin with a record.
fn compression(head: &[u8]) -> Option<Compression> {
    let is_record = head.first_chunk().is_some_and(|head| framing::length(head).1);
    if is_record { None } else { Compression::detect(head) }
}

#[cfg(test)]
mod tests {
    use super::super::example::encode;
    use super::super::shards::MAX_OPEN;
    use super::*;
    use crate::pipeline::Options;
    use crate::records::Value;
    use crate::{Feature, FeatureSpec, Pipeline, Source as _};
    use bf16scope_files::framing::framed;
    use bf16scope_hlo::DType;
    use std::fs;
    use std::sync::Arc;

    /// Files with these numbers of records; each record contains its number.
    fn files(folder: &Path, counts: &[usize]) -> Vec<PathBuf> {
        let mut number = 0..;
        let file = |(idx, n): (usize, &usize)| {
            let path = folder.join(format!("train-{idx:02}"));
            let records: Vec<u8> =
                number.by_ref().take(*n).flat_map(|n: u32| framed(n.to_string().as_bytes())).collect();
            fs::write(&path, records).unwrap();
            path
        };
        counts.iter().enumerate().map(file).collect()
    }

    /// A label of bytes is a word, and `classes: [cat, dog]` gives its number.
    #[test]
    fn a_label_in_words_is_the_number_of_its_class() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pets");
        let record = |label: &[u8]| {
            framed(&encode(&[("label".to_string(), Value::Bytes(vec![label.to_vec()]))].into_iter().collect()))
        };
        fs::write(&path, [record(b"dog"), record(b"cat"), record(b"horse")].concat()).unwrap();
        let records = TfRecords::open(std::slice::from_ref(&path), None).unwrap();
        let label = Feature::exact("label", DType::S32, []).label();
        let spec = FeatureSpec { classes: vec!["cat".to_string(), "dog".to_string()], ..FeatureSpec::default() };
        let specs = [("label".to_string(), spec)].into();
        let pipeline = Pipeline::new(Arc::new(records), &[label], &specs, Options::default()).unwrap();
        let read = |index| pipeline.read(index).map(|arrays| arrays[0].to_vec()).map_err(|error| error.to_string());
        assert_eq!((read(0), read(1)), (Ok(1i64.to_le_bytes().to_vec()), Ok(0i64.to_le_bytes().to_vec())));
        let expected = "record 2: feature `label` is `horse`; expected one of `classes`: `cat`, `dog`";
        assert_eq!(read(2), Err(format!("{}, {expected}", path.display())));
    }

    #[test]
    fn any_record_is_read_by_number_from_more_files_than_are_open() {
        let folder = tempfile::tempdir().unwrap();
        let mut counts = vec![0, 3, 0, 0, 5];
        counts.extend([1; MAX_OPEN + 10]);
        let files = files(folder.path(), &counts);
        let records = TfRecords::open(&files, None).unwrap();
        assert_eq!(records.n_records(), 8 + MAX_OPEN as u64 + 10);
        for index in (0..records.n_records()).rev().chain(0..records.n_records()) {
            assert_eq!(records.bytes(index).unwrap(), index.to_string().as_bytes());
        }
        assert_eq!(records.shards.n_open(), MAX_OPEN);
        assert_eq!(records.place(2), format!("{}, record 2", files[1].display()));
        assert_eq!(records.place(3), format!("{}, record 0", files[4].display()));
        let empty = TfRecords::open(&files[..1], None).unwrap_err().to_string();
        assert_eq!(empty, format!("{}: no records; expected one at least", files[0].display()));
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let whole = [framed(b"one"), framed(b"three")].concat();
        for at in 19 * 8..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            let error = match TfRecords::open(std::slice::from_ref(&path), None) {
                Ok(records) => {
                    assert_eq!(records.bytes(0).unwrap(), b"one");
                    records.bytes(1).unwrap_err()
                }
                Err(error) => error,
            };
            assert!(error.to_string().contains("a, record 1"), "bit {at}: {error}");
        }
        // A bit of the bytes of the second record.
        let mut flipped = whole;
        flipped[19 + HEAD] ^= 1;
        fs::write(&path, &flipped).unwrap();
        let error = TfRecords::open(std::slice::from_ref(&path), None).unwrap().bytes(1).unwrap_err().to_string();
        let (measured, expected) = (framing::masked_crc(b"uhree"), framing::masked_crc(b"three"));
        assert_eq!(
            error,
            format!(
                "{}, record 1: the checksum of its bytes is {measured:#010x}; expected {expected:#010x}: the record is damaged\n\
                 help: copy or download the file again, or leave such records out: `on_error: {{skip: N}}` under `data`",
                path.display()
            )
        );
    }

    #[test]
    fn a_file_that_changes_under_a_run_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), &[2, 2]);
        let records = TfRecords::open(&files, None).unwrap();
        fs::write(&files[1], [framed(b"other"), framed(b"x")].concat()).unwrap();
        let error = records.bytes(2).unwrap_err().to_string();
        let expected =
            "train-01: the file has changed since this run began; expected it as it was: start the run again";
        assert!(error.ends_with(expected), "{error}");
        assert_eq!(records.bytes(1).unwrap(), b"1");
    }
}
