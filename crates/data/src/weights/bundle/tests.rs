//! Bundles built to exhaust memory or time, and the replacement of a bundle.

use std::fs;
use std::io::Write as _;

use super::proto::{Dim, Extent, TensorShape, TensorSlice};
use super::*;
use crate::weights::{self, WrittenFormat};
use bf16scope_hlo::Literal;

fn shape(dims: &[i64]) -> Option<TensorShape> {
    Some(TensorShape { dim: dims.iter().map(|&size| Dim { size }).collect(), unknown_rank: false })
}

/// A tensor of bytes.
fn at(offset: i64, dims: &[i64]) -> TensorEntry {
    let size = dims.iter().product();
    TensorEntry { dtype: 4, shape: shape(dims), shard_id: 0, offset, size, crc32c: 0, slices: Vec::new() }
}

/// Opens a bundle with these entries and a data file of this size.
fn opened(entries: BTreeMap<Vec<u8>, TensorEntry>, n_bytes: u64) -> Result<Opened, String> {
    opened_of(entries, &|data| data.set_len(n_bytes))
}

/// The same with the data file's bytes.
fn opened_with(entries: BTreeMap<Vec<u8>, TensorEntry>, data: &[u8]) -> Result<Opened, String> {
    opened_of(entries, &|mut file| file.write_all(data))
}

fn opened_of(
    entries: BTreeMap<Vec<u8>, TensorEntry>,
    fill: &dyn Fn(fs::File) -> std::io::Result<()>,
) -> Result<Opened, String> {
    let header = Header { num_shards: 1, endianness: 0, version: None }.encode_to_vec();
    let pairs = entries.iter().map(|(key, entry)| (key.as_slice(), entry.encode_to_vec()));
    opened_by(std::iter::once((&b""[..], header)).chain(pairs), fill)
}

/// The same by the pairs of its index.
fn opened_by<'a>(
    pairs: impl Iterator<Item = (&'a [u8], Vec<u8>)>,
    fill: &dyn Fn(fs::File) -> std::io::Result<()>,
) -> Result<Opened, String> {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("m");
    fs::write(index_of(&prefix), table::write(pairs)).unwrap();
    fill(fs::File::create(shard_name(&prefix, 0, 1)).unwrap()).unwrap();
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
    let message = opened(named(&[("a", at(0, &[4])), ("b", at(3, &[4])), ("c", at(7, &[1]))]), 9).err().unwrap();
    let expected =
        "m.index: at byte 0: `b` begins at byte 3 of data file 0, within `a`; expected each in its own place";
    assert!(message.starts_with(expected), "{message}");
    let many: BTreeMap<Vec<u8>, TensorEntry> =
        (0..3000).map(|nth| (format!("{nth:04}").into_bytes(), at(0, &[1 << 30]))).collect();
    assert!(opened(many, 1 << 30).err().unwrap().contains("`0001` begins at byte 0 of data file 0, within `0000`"));
}

/// A graph of objects with these variable names, as the bytes of its tensor; and its entry.
fn graph_of(keys: &[(&str, &str)]) -> Vec<u8> {
    let attribute = |(key, name): &(&str, &str)| proto::Attribute {
        name: "VARIABLE_VALUE".to_string(),
        full_name: name.to_string(),
        checkpoint_key: key.to_string(),
    };
    let node = |key| proto::Object { children: Vec::new(), attributes: vec![attribute(key)] };
    ObjectGraph { nodes: keys.iter().map(node).collect() }.encode_to_vec()
}

/// A tensor of one string: the length, the checksum of the lengths, and the bytes; and its entry.
fn text(bytes: &[u8]) -> (Vec<u8>, TensorEntry) {
    let mut data = Vec::new();
    prost::encoding::encode_varint(bytes.len() as u64, &mut data);
    let lengths = mask(crc32c::crc32c(&(bytes.len() as u32).to_le_bytes())).to_le_bytes();
    let crc = crc32c::crc32c(&[&(bytes.len() as u32).to_le_bytes()[..], &lengths, bytes].concat());
    data.extend([&lengths[..], bytes].concat());
    let size = data.len() as i64;
    let entry = TensorEntry { dtype: 7, shape: shape(&[]), size, crc32c: mask(crc), ..at(0, &[]) };
    (data, entry)
}

#[test]
fn variables_of_keras_are_called_as_their_layers_call_them() {
    let key = |path: &str| format!("{path}/.ATTRIBUTES/VARIABLE_VALUE");
    let called = [
        ("model/_trainable_variables/0", "sequential/dense/kernel"),
        ("model/_trainable_variables/1", "twice"),
        ("model/_trainable_variables/2", "twice"),
        ("model/_trainable_variables/3", "net/layers/0/kernel"),
        ("model/_trainable_variables/4", ""),
        // A path without private attributes stays the name.
        ("net/layers/0/kernel", "dense/kernel"),
    ];
    let keys: Vec<(String, &str)> = called.iter().map(|(path, name)| (key(path), *name)).collect();
    let keys: Vec<(&str, &str)> = keys.iter().map(|(key, name)| (key.as_str(), *name)).collect();
    let (mut data, entry) = text(&graph_of(&keys));
    let size = data.len() as i64;
    let mut entries = BTreeMap::from([(objects::KEY.as_bytes().to_vec(), entry)]);
    for (nth, (key, _)) in keys.iter().enumerate() {
        entries.insert(key.as_bytes().to_vec(), at(size + nth as i64, &[1]));
    }
    data.extend([0; 6]);
    let opened = opened_with(entries, &data).unwrap();
    let names: Vec<&str> = opened.entries.iter().map(|entry| entry.name.as_str()).collect();
    let mut expected = ["sequential/dense/kernel"].to_vec();
    expected.extend((1..=4).map(|nth| called[nth].0));
    expected.push("net/layers/0/kernel");
    assert_eq!(names, expected);
    // The previous name still finds it.
    let aliases = &opened.entries[0].aliases;
    assert!(["model/_trainable_variables/0", keys[0].0].iter().all(|name| aliases.iter().any(|alias| alias == name)));
}

/// An array sliced by columns, with the slices' entries.
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
    // Empty slices, so that no bytes are shared: 10 arrays of 4,096 slices each.
    let many: BTreeMap<Vec<u8>, TensorEntry> =
        (0..10).flat_map(|nth| columns(&format!("{nth:02}"), 4096, 0, |_| 0)).collect();
    let message = opened(many, 0).err().unwrap();
    assert_eq!(
        message,
        "m.index: `08`, with those before it, is in more slices than are compared with one another\n\
         help: save it in fewer slices"
    );
}

const DAMAGED: &str = "help: the file is damaged: copy it again";

#[test]
fn the_header_and_the_entries_of_an_index_are_told() {
    let header = |header: Header| header.encode_to_vec();
    let right = || header(Header { num_shards: 1, endianness: 0, version: None });
    let version = Some(proto::Version { producer: 1, min_consumer: 3 });
    for (pairs, expected) in [
        (vec![], format!("at byte 0: the index has no header\n{DAMAGED}")),
        (vec![("", vec![0xff])], format!("at byte 0: the index's header cannot be read\n{DAMAGED}")),
        (vec![("", right()), ("a", vec![0xff])], format!("at byte 0: the entry of `a` cannot be read\n{DAMAGED}")),
        (
            vec![("", header(Header { num_shards: 1, endianness: 0, version }))],
            "the bundle is for readers of version 3 or newer; this one is of version 1\n\
             help: save it with TensorFlow 2"
                .to_string(),
        ),
        (
            vec![("", header(Header { num_shards: 1, endianness: 1, version: None }))],
            "the bundle was written on a big-endian machine, which is not read\n\
             help: restore and save it again on another machine"
                .to_string(),
        ),
        (
            vec![("", header(Header { num_shards: 0, endianness: 0, version: None }))],
            format!("at byte 0: the index says that there are 0 data files\n{DAMAGED}"),
        ),
    ] {
        let pairs = pairs.iter().map(|(key, value)| (key.as_bytes(), value.clone()));
        let message = opened_by(pairs, &|_| Ok(())).err().unwrap();
        assert_eq!(message, format!("m.index: {expected}"));
    }
}

#[test]
fn an_entry_that_does_not_fit_is_told_by_its_name() {
    let refused = |entry: TensorEntry| opened(BTreeMap::from([(b"a".to_vec(), entry)]), 4).err().unwrap();
    for (entry, expected) in [
        (TensorEntry { shard_id: 3, ..at(0, &[4]) }, "`a` is in data file 3; expected 0 to 0"),
        (TensorEntry { shape: shape(&[-1]), ..at(0, &[4]) }, "`a` has no dims"),
        (TensorEntry { size: 3, ..at(0, &[4]) }, "`a` has 3 bytes; expected 4 as its dims say"),
        (TensorEntry { offset: -1, ..at(0, &[4]) }, "`a` is at no place of a file"),
    ] {
        assert_eq!(refused(entry), format!("m.index: at byte 0: {expected}\n{DAMAGED}"));
    }
    let slices = vec![TensorSlice { extent: vec![Extent { start: 0, length: None }] }];
    assert_eq!(
        refused(TensorEntry { dtype: 7, slices, ..at(0, &[4]) }),
        "m.index: `a` is string in 1 slices, which is not read"
    );
    // The checksum of the elements, when they are read.
    let opened = opened(BTreeMap::from([(b"a".to_vec(), at(0, &[4]))]), 4).unwrap();
    let error = opened.reader.pass(0, &opened.entries[0], &mut |_| Ok(())).unwrap_err().to_string();
    let measured = mask(crc32c::crc32c(&[0; 4]));
    let expected = format!(
        "m.data-00000-of-00001: at byte 0: the checksum of `a` (4 bytes) is {measured:08x}; expected 00000000\n{DAMAGED}"
    );
    assert!(error.ends_with(&expected), "{error}");
}

#[test]
fn slices_that_do_not_fit_are_told_by_the_name_of_the_whole() {
    type Entries = BTreeMap<Vec<u8>, TensorEntry>;
    type Change<'a> = &'a dyn Fn(&mut Entries);
    let whole = |entries: &mut Entries, dims: &[i64]| entries.get_mut(&b"x"[..]).unwrap().shape = shape(dims);
    // Keys of slices are before those of names.
    let first = |entries: &mut Entries, change: &dyn Fn(&mut TensorEntry)| {
        let mut entry = entries.first_entry().unwrap();
        change(entry.get_mut());
    };
    let changes: [(Change, &str); 5] = [
        (&|entries| drop(entries.pop_first()), "`x` lacks one of its 2 slices"),
        (&|entries| whole(entries, &[1, 1]), "`x` has a slice that is not within it"),
        (&|entries| first(entries, &|slice| slice.dtype = 6), "`x` has a slice of another dtype or size"),
        (&|entries| whole(entries, &[1, 3]), "`x` has slices that are not the whole of it, each element once"),
        (
            &|entries| {
                first(entries, &|slice| {
                    slice.shard_id = 5;
                    slice.slices = vec![TensorSlice { extent: Vec::new() }];
                });
            },
            "a tensor is in data file 5",
        ),
    ];
    for (change, expected) in changes {
        let mut entries = columns("x", 2, 1, |nth| nth);
        change(&mut entries);
        assert_eq!(opened(entries, 2).err().unwrap(), format!("m.index: at byte 0: {expected}\n{DAMAGED}"));
    }
}

#[test]
fn a_graph_of_objects_that_cannot_be_read_is_told() {
    let refused = |entry: &TensorEntry, data: &[u8]| {
        opened_with(BTreeMap::from([(objects::KEY.as_bytes().to_vec(), entry.clone())]), data).err().unwrap()
    };
    let (data, entry) = text(b"\xff");
    let in_data = "m.data-00000-of-00001: at byte 0:";
    assert_eq!(refused(&entry, &data), format!("{in_data} the graph of objects cannot be read\n{DAMAGED}"));
    assert_eq!(
        refused(&TensorEntry { size: 0, ..entry.clone() }, &data),
        format!("{in_data} the strings of `{}` do not fit in it\n{DAMAGED}", objects::KEY)
    );
    let (measured, mut flipped) = (mask(crc32c::crc32c(&1u32.to_le_bytes())), data);
    flipped[1] ^= 1;
    assert_eq!(
        refused(&entry, &flipped),
        format!(
            "{in_data} the checksum of the lengths of `{}` is {measured:08x}; expected {:08x}\n{DAMAGED}",
            objects::KEY,
            measured ^ 1
        )
    );
    let large = TensorEntry { size: (64 << 20) + 1, ..entry };
    let message = opened(BTreeMap::from([(objects::KEY.as_bytes().to_vec(), large)]), (64 << 20) + 1).err().unwrap();
    assert_eq!(message, "m.index: the graph of objects has 67108865 bytes; expected at most 67108864");
}

fn save(prefix: &Path, value: f32) -> Result<(), WeightsError> {
    weights::write(prefix, WrittenFormat::TensorFlow, [("x".to_string(), Literal::scalar(value))])
}

fn value(prefix: &Path) -> f32 {
    let Literal::Array { bytes, .. } = weights::open(prefix).unwrap().read("x").unwrap() else { panic!("an array") };
    f32::from_le_bytes(bytes.try_into().unwrap())
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The data used to be replaced before the index: between the two, neither the old bundle nor the new one could be
/// read.
#[test]
fn a_bundle_takes_the_place_of_another_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("m");
    save(&prefix, 1.0).unwrap();
    assert_eq!(names_in(folder.path()), ["m.data-00000-of-00001", "m.index"]);
    save(&prefix, 2.0).unwrap();
    assert_eq!(
        (value(&prefix), names_in(folder.path())),
        (2.0, ["m.data-00000-of-00002", "m.index"].map(String::from).to_vec())
    );
    // The state when a writer is killed before the index: its data are beside the old bundle's.
    save(&prefix, 3.0).unwrap();
    assert_eq!(names_in(folder.path()), ["m.data-00000-of-00001", "m.index"]);
    fs::copy(shard_name(&prefix, 0, 1), shard_name(&prefix, 0, 2)).unwrap();
    save(&prefix, 4.0).unwrap();
    assert_eq!(value(&prefix), 4.0);
    // After two concurrent writers, the last index names its own data.
    let data = BTreeMap::from([("x", 5.0f32), ("y", 6.0)]);
    let writers: Vec<BundleWriter> = data
        .values()
        .map(|value| {
            let mut writer = BundleWriter::create(&prefix).unwrap();
            writer
                .add("x", &bf16scope_hlo::ArrayShape::new(bf16scope_hlo::DType::F32, vec![]), &value.to_le_bytes())
                .unwrap();
            writer
        })
        .collect();
    writers.into_iter().rev().for_each(|writer| writer.finish().unwrap());
    assert_eq!(value(&prefix), 5.0);
    assert!(weights::open(&prefix).unwrap().look("x").is_ok());
}

/// The states in which a killed writer has put its data in place, or has not removed those that it replaced.
#[test]
fn data_that_a_killed_writer_left_go_with_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let (prefix, at) = (folder.path().join("m"), |name: &str| folder.path().join(name));
    save(&prefix, 1.0).unwrap();
    for data in ["m.data-00000-of-00002", "m.data-00000-of-00001"] {
        fs::write(at(".m.data-00000-of-00007.writing-dead00"), "half").unwrap();
        fs::write(at("m.data-00000-of-00009"), "another's").unwrap();
        if !at(data).exists() {
            fs::write(at(data), "data").unwrap();
        }
        fs::hard_link(at(data), at(&format!(".{data}.writing-dead00"))).unwrap();
        drop(BundleWriter::create(&prefix).unwrap());
        // Data that the index names stay.
        assert_eq!(value(&prefix), 1.0);
        assert_eq!(names_in(folder.path()), ["m.data-00000-of-00001", "m.data-00000-of-00009", "m.index"], "{data}");
    }
    // Without an index no data are named; with an unreadable one all of them might be.
    fs::hard_link(at("m.data-00000-of-00001"), at(".m.data-00000-of-00001.writing-dead00")).unwrap();
    fs::rename(at("m.index"), at("index")).unwrap();
    fs::write(at("m.index"), "no table").unwrap();
    drop(BundleWriter::create(&prefix).unwrap());
    assert!(at("m.data-00000-of-00001").exists());
    fs::remove_file(at("m.index")).unwrap();
    drop(BundleWriter::create(&prefix).unwrap());
    assert_eq!(names_in(folder.path()), ["index", "m.data-00000-of-00009"]);
}

#[test]
fn a_bundle_that_may_not_be_replaced_stays() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("m");
    save(&prefix, 1.0).unwrap();
    for name in ["m.index", "m.data-00000-of-00001"] {
        let path = folder.path().join(name);
        let (open, mut closed) =
            (fs::metadata(&path).unwrap().permissions(), fs::metadata(&path).unwrap().permissions());
        closed.set_readonly(true);
        fs::set_permissions(&path, closed).unwrap();
        let error = save(&prefix, 2.0).unwrap_err();
        assert!(error.to_string().contains("cannot write the file of weights"), "{error}");
        fs::set_permissions(&path, open).unwrap();
        assert_eq!((value(&prefix), names_in(folder.path()).len()), (1.0, 2), "{name}");
    }
    // Writing through a link would give the other bundle this one's index, but not its data.
    std::os::unix::fs::symlink("m.index", folder.path().join("l.index")).unwrap();
    let error = save(&folder.path().join("l"), 2.0).unwrap_err();
    assert!(error.to_string().contains("l.index: cannot write the file of weights"), "{error}");
    assert_eq!((value(&prefix), names_in(folder.path()).len()), (1.0, 3));
    // The key of TensorFlow's own graph of objects could not be read back.
    let named = [(objects::KEY.to_string(), Literal::scalar(1f32))];
    let error = weights::write(&prefix, WrittenFormat::TensorFlow, named).unwrap_err().to_string();
    assert!(
        error.contains("an array is called `_CHECKPOINTABLE_OBJECT_GRAPH`, which a bundle has for itself"),
        "{error}"
    );
}
