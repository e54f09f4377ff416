//! Bundles that were made to take memory and time, and what replaces one.

use std::fs;

use super::proto::{Dim, Extent, TensorShape, TensorSlice};
use super::*;

fn shape(dims: &[i64]) -> Option<TensorShape> {
    Some(TensorShape { dim: dims.iter().map(|&size| Dim { size }).collect(), unknown_rank: false })
}

/// A tensor of bytes.
fn at(offset: i64, dims: &[i64]) -> TensorEntry {
    let size = dims.iter().product();
    TensorEntry { dtype: 4, shape: shape(dims), shard_id: 0, offset, size, crc32c: 0, slices: Vec::new() }
}

/// Opens a bundle of these entries, whose data file has so many bytes.
fn opened(entries: BTreeMap<Vec<u8>, TensorEntry>, n_bytes: u64) -> Result<Opened, String> {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("m");
    let header = Header { num_shards: 1, endianness: 0, version: None }.encode_to_vec();
    let pairs = entries.iter().map(|(key, entry)| (key.as_slice(), entry.encode_to_vec()));
    let index = table::write(std::iter::once((&b""[..], header)).chain(pairs));
    fs::write(index_of(&prefix), index).unwrap();
    fs::File::create(shard_name(&prefix, 0, 1)).unwrap().set_len(n_bytes).unwrap();
    let opened = open(&Region::open(&index_of(&prefix)).unwrap(), Format::TensorFlow);
    opened.map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
}

#[test]
fn arrays_that_share_bytes_are_refused() {
    let named = |entries: &[(&str, TensorEntry)]| {
        entries.iter().map(|(name, entry)| (name.as_bytes().to_vec(), entry.clone())).collect()
    };
    let apart = named(&[("a", at(0, &[4])), ("b", at(4, &[4])), ("empty", at(2, &[0])), ("z", at(8, &[1]))]);
    assert_eq!(opened(apart, 9).unwrap().entries.len(), 4);
    let said = opened(named(&[("a", at(0, &[4])), ("b", at(3, &[4])), ("c", at(7, &[1]))]), 9).err().unwrap();
    let expected =
        "m.index: at byte 0: `b` begins at byte 3 of data file 0, within `a`; expected each in its own place";
    assert!(said.starts_with(expected), "{said}");
    let many: BTreeMap<Vec<u8>, TensorEntry> =
        (0..3000).map(|nth| (format!("{nth:04}").into_bytes(), at(0, &[1 << 30]))).collect();
    assert!(opened(many, 1 << 30).err().unwrap().contains("`0001` begins at byte 0 of data file 0, within `0000`"));
}

/// An array of slices by columns, and the entries of those.
fn columns(name: &str, n: i64, rows: i64, place: impl Fn(i64) -> i64) -> BTreeMap<Vec<u8>, TensorEntry> {
    let slice =
        |nth| TensorSlice { extent: vec![Extent { start: 0, length: None }, Extent { start: nth, length: Some(1) }] };
    let slices: Vec<TensorSlice> = (0..n).map(slice).collect();
    let parts =
        slices.iter().zip(0..).map(|(slice, nth)| (slices::key(name.as_bytes(), slice), at(place(nth), &[rows, 1])));
    let mut entries: BTreeMap<Vec<u8>, TensorEntry> = parts.collect();
    entries.insert(name.as_bytes().to_vec(), TensorEntry { size: 0, slices, ..at(0, &[rows, n]) });
    entries
}

#[test]
fn slices_that_share_bytes_are_refused_and_pairs_of_them_are_bounded() {
    assert_eq!(opened(columns("x", 16, 10, |nth| 10 * nth), 160).unwrap().entries.len(), 1);
    assert!(
        opened(columns("x", 1024, 1 << 20, |_| 0), 1 << 20).err().unwrap().contains("begins at byte 0 of data file 0")
    );
    // Without bytes, so that none are shared: 10 arrays of 4,096 slices each.
    let many: BTreeMap<Vec<u8>, TensorEntry> =
        (0..10).flat_map(|nth| columns(&format!("{nth:02}"), 4096, 0, |_| 0)).collect();
    let said = opened(many, 0).err().unwrap();
    assert!(said.contains("`08`, with those before it, is in more slices than are compared"), "{said}");
}
