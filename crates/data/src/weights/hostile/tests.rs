//! Files built to be misread, or to exhaust memory: each is built here, structure by structure.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use super::*;
use bf16scope_hlo::Literal;

/// An error's message, without the folder.
fn text(folder: &Path, error: &WeightsError) -> String {
    let cause = std::error::Error::source(error).map_or(String::new(), |cause| format!(" <- {cause}"));
    format!("{error}{cause}").replace(&format!("{}/", folder.display()), "")
}

pub(super) fn refused(folder: &Path, name: &str) -> String {
    text(folder, &open(folder.join(name)).unwrap_err())
}

fn safetensors(folder: &Path, name: &str, arrays: &[(&str, &[f32])]) {
    let arrays =
        arrays.iter().map(|(name, values)| (name.to_string(), Literal::from_elements([values.len() as i64], values)));
    write(&folder.join(name), WrittenFormat::Safetensors, arrays).unwrap();
}

fn floats(file: &WeightsFile, name: &str) -> Vec<f32> {
    let Literal::Array { bytes, .. } = file.read(name).unwrap() else { panic!("an array was read") };
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn index(folder: &Path, name: &str, map: &str) {
    fs::write(folder.join(name), format!("{{\"weight_map\": {{{map}}}}}")).unwrap();
}

/// The first file with an array of that name used to be read, up to the length of the other's array.
#[test]
fn an_array_of_a_sharded_model_comes_from_the_file_that_the_index_names() {
    let folder = tempfile::tempdir().unwrap();
    safetensors(folder.path(), "1.safetensors", &[("a", &[1.0]), ("b", &[2.0]), ("c", &[3.0, 4.0])]);
    safetensors(folder.path(), "2.safetensors", &[("a", &[5.0, 6.0]), ("c", &[7.0]), ("d", &[8.0])]);
    index(folder.path(), "x", r#""b": "1.safetensors", "a": "2.safetensors", "c": "2.safetensors""#);
    let file = open(folder.path().join("x")).unwrap();
    assert_eq!([floats(&file, "a"), floats(&file, "b"), floats(&file, "c")], [vec![5.0, 6.0], vec![2.0], vec![7.0]]);
    // Arrays that the index does not name are reported.
    let expected =
        ["a (in 1", "c (in 1", "d (in 2"].map(|array| format!("{array}.safetensors, and the index does not name it)"));
    assert_eq!(file.left_out(), expected);
}

#[test]
fn an_index_that_names_an_index_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let expected = |name: &str| {
        format!(
            "{name}: an index names it as a file of weights, and it is an index in JSON itself\n\
             help: name the files of weights in one index"
        )
    };
    index(at, "itself", r#""a": "itself""#);
    assert_eq!(refused(at, "itself"), expected("itself"));
    index(at, "ping", r#""a": "pong""#);
    index(at, "pong", r#""a": "ping""#);
    assert_eq!(refused(at, "ping"), expected("pong"));
    // A chain of 3,000 used to crash the process.
    (0..3000).for_each(|nth| index(at, &format!("{nth}"), &format!("\"a\": \"{}\"", nth + 1)));
    assert_eq!(refused(at, "0"), expected("1"));
    // The name of the folder itself, whose index this is.
    index(at, "model.safetensors.index.json", r#""a": ".""#);
    let message = refused(at, "");
    assert!(message.contains("not a regular file"), "{message}");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("itself", at.join("link")).unwrap();
        index(at, "to-link", r#""a": "link""#);
        assert_eq!(refused(at, "to-link"), expected("link"));
    }
}

#[test]
fn a_key_that_comes_twice_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    safetensors(folder.path(), "1.safetensors", &[("a", &[1.0])]);
    safetensors(folder.path(), "2.safetensors", &[("a", &[2.0])]);
    index(folder.path(), "x", r#""a": "1.safetensors", "a": "2.safetensors""#);
    assert_eq!(
        refused(folder.path(), "x"),
        "x: its key `a` is there twice; expected once\n\
         help: leave one out: which file is meant, only its writer knows"
    );
    let header = |json: &str, n_bytes: usize| {
        let bytes = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &vec![0; n_bytes]].concat();
        fs::write(folder.path().join("x"), bytes).unwrap();
        refused(folder.path(), "x")
    };
    // As integers and as floats, at the same bytes.
    let message = header(
        r#"{"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        4,
    );
    assert!(message.ends_with("<- its key `a` is there twice; expected once"), "{message}");
    let message = header(r#"{"__metadata__":{"format":"pt","format":"tf"}}"#, 0);
    assert!(message.ends_with("<- its key `format` is there twice; expected once"), "{message}");
    let message = header(r#"{"a":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}}"#, 4);
    assert!(message.ends_with("<- its key `dtype` is there twice; expected once"), "{message}");
}

/// A zip archive of these members, stored.
pub(super) fn archive(path: &Path, members: &[(&str, &[u8])]) {
    let mut zip = zip::ZipWriter::new(fs::File::create(path).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in members {
        zip.start_file(*name, stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

/// Renames members of an archive, to names of the same length.
fn rename(path: &Path, from: &str, to: &str) {
    let mut bytes = fs::read(path).unwrap();
    let places: Vec<usize> = memchr::memmem::find_iter(&bytes, from.as_bytes()).collect();
    assert_eq!(places.len(), 2, "in front of the member, and in the directory");
    places.into_iter().for_each(|at| bytes[at..at + from.len()].copy_from_slice(to.as_bytes()));
    fs::write(path, bytes).unwrap();
}

/// A text in a pickle.
pub(super) fn word(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A pickled tensor of four floats in storage 0, with sizes and strides from the operations `dims`, and `rest` after
/// the fifth and sixth value.
pub(super) fn tensor(dims: &[u8], rest: &[u8]) -> Vec<u8> {
    let storage =
        [b"((", &word("storage")[..], b"ctorch\nFloatStorage\n", &word("0"), &word("cpu"), b"K\x04tQ"].concat();
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        &storage[..],
        b"K\0",
        dims,
        b"\x89ccollections\nOrderedDict\n)R",
        rest,
        b"tR",
    ]
    .concat()
}

pub(super) const FOUR: &[u8] = b"K\x04\x85K\x01\x85";

/// A state dict filled by these operations, and a storage of four floats.
pub(super) fn torch(path: &Path, fill: &[u8]) {
    let pickle = [b"\x80\x02}", fill, b"."].concat();
    let storage: Vec<u8> = [1f32, 2.0, 3.0, 4.0].into_iter().flat_map(f32::to_le_bytes).collect();
    archive(path, &[("archive/data.pkl", &pickle), ("archive/data/0", &storage), ("archive/data/1", &storage)]);
}

#[test]
fn a_member_of_an_archive_that_comes_twice_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    torch(&path, &[word("w"), tensor(FOUR, b""), b"s".to_vec()].concat());
    assert_eq!(floats(&open(&path).unwrap(), "w"), [1.0, 2.0, 3.0, 4.0]);
    rename(&path, "archive/data/1", "archive/data/0");
    assert_eq!(
        refused(folder.path(), "a.pt"),
        "a.pt: its member `archive/data/0` is there twice; expected once\nhelp: save it again: one is another's"
    );
    // A user's own file in the archive's folder is not a second state.
    let empty = &b"\x80\x02}."[..];
    archive(&path, &[("a/data.pkl", empty), ("a/extra/data.pkl", empty)]);
    assert!(open(&path).is_ok());
    archive(&path, &[("a/data.pkl", empty), ("b/data.pkl", empty)]);
    assert!(refused(folder.path(), "a.pt").contains("it has two states, `a/data.pkl` and `b/data.pkl`; expected one"));
    let path = folder.path().join("a.keras");
    archive(&path, &[("model.weights.h5", b"one"), ("model.weights.h6", b"two")]);
    rename(&path, "model.weights.h6", "model.weights.h5");
    assert!(refused(folder.path(), "a.keras").contains("its member `model.weights.h5` is there twice"));
    // The same in NumPy's format, by the archive reader.
    let path = folder.path().join("a.npz");
    archive(&path, &[("a.npy", b"one"), ("b.npy", b"two")]);
    rename(&path, "b.npy", "a.npy");
    assert!(refused(folder.path(), "a.npz").contains("`a.npy` is there twice"));
}

/// Python's `zipfile` refuses an archive whose directory and members disagree about names: two arrays were read as one
/// another, of `.npz`, `.pt` and `.keras` alike.
#[test]
fn members_that_the_directory_calls_by_each_others_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let exchanged = |name: &str, [first, second]: [&str; 2]| {
        let path = folder.path().join(name);
        archive(&path, &[(first, b"one"), (second, b"two")]);
        let mut bytes = std::fs::read(&path).unwrap();
        let directory = bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        let place =
            |name: &str| directory + bytes[directory..].windows(name.len()).position(|w| w == name.as_bytes()).unwrap();
        let places = [place(first), place(second)];
        for (at, name) in places.into_iter().zip([second, first]) {
            bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        std::fs::write(&path, bytes).unwrap();
        refused(folder.path(), name)
    };
    let error = "its directory calls a member `b.npy` that calls itself `a.npy`; expected one name";
    assert_eq!(
        exchanged("x.npz", ["a.npy", "b.npy"]),
        format!("x.npz: {error}\nhelp: save it again: one is another's")
    );
    let error = "its directory calls a member `s/data/1` that calls itself `s/data/0`; expected one name";
    assert!(exchanged("x.pt", ["s/data/0", "s/data/1"]).contains(error));
}

/// `-x` and a conjugate are stored as `x` with a flag, which used to be dropped.
#[test]
fn a_tensor_that_is_still_to_be_negated_or_conjugated_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let marked = |mark: &[u8]| {
        let fill = [word("w"), tensor(FOUR, mark), b"s".to_vec()].concat();
        torch(&path, &fill);
        open(&path)
    };
    let dict = |key: &str, value: u8| [b"}", &word(key)[..], &[value], b"s"].concat();
    for mark in [b"".to_vec(), b"N".to_vec(), b"}".to_vec(), dict("neg", 0x89), dict("conj", 0x89)] {
        assert_eq!(floats(&marked(&mark).unwrap(), "w"), [1.0, 2.0, 3.0, 4.0]);
    }
    for key in ["neg", "conj"] {
        let message = text(folder.path(), &marked(&dict(key, 0x88)).unwrap_err());
        assert!(
            message.contains(&format!(
                "a tensor's elements are stored before an operation (`{key}`) that is still to be done"
            )),
            "{message}"
        );
        assert!(message.ends_with("help: save it as `tensor.resolve_conj().resolve_neg()`"), "{message}");
    }
    assert!(
        text(folder.path(), &marked(&dict("other", 0x88)).unwrap_err())
            .contains("a tensor has `other`, which is not known")
    );
    assert!(
        text(folder.path(), &marked(b"K\x01").unwrap_err())
            .contains("a tensor is made of other values than PyTorch writes")
    );
    assert!(
        text(folder.path(), &marked(b"}K\x01\x89s").unwrap_err()).contains("a tensor has what PyTorch does not write")
    );
}

#[test]
fn names_and_sizes_of_a_pickle_that_many_tensors_share_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    // A key of a mebibyte that prefixes the names of tensors: 100 of them exceed the limit on names.
    let below: Vec<u8> = (0..100).flat_map(|nth| [word(&nth.to_string()), b"h\0s".to_vec()].concat()).collect();
    let one = [tensor(FOUR, b""), b"q\0".to_vec()].concat();
    torch(
        &path,
        &[word("w"), one, b"s".to_vec(), word(&"k".repeat(1 << 20)), b"}".to_vec(), below, b"s".to_vec()].concat(),
    );
    assert_eq!(refused(folder.path(), "a.pt"), "a.pt: the names of its values have more than 67108864 bytes");
    // Sizes that are pickled once, and shared by every tensor.
    for n in [64, 65] {
        let ones = [b"(", &b"K\x01".repeat(n)[..], b"t"].concat();
        torch(&path, &[word("w"), tensor(&[ones.clone(), ones].concat(), b""), b"s".to_vec()].concat());
        assert_eq!(open(&path).is_ok(), n == 64, "{n}");
    }
    assert!(refused(folder.path(), "a.pt").contains("a tensor's sizes are none"));
    // A compressed pickle may be a thousand times as long as the file.
    let mut zip = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    let packed = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    zip.start_file("archive/data.pkl", packed).unwrap();
    zip.write_all(&vec![b'N'; 1 << 20]).unwrap();
    zip.finish().unwrap();
    assert_eq!(
        refused(folder.path(), "a.pt"),
        "a.pt: its `archive/data.pkl` is compressed (Deflated), as PyTorch writes none\n\
         help: save it again with torch.save"
    );
}

/// Twenty thousand views of one storage used to be read that often, and its elements written that often.
#[test]
fn a_storage_that_tensors_share_is_read_once_and_not_made_without_end() {
    const N: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let views = |n_views: usize| {
        let (class, n) = (b"ctorch\nFloatStorage\n", (N as u32).to_le_bytes());
        let storage = [b"((", &word("storage")[..], class, &word("0"), &word("cpu"), b"J", &n, b"tQ"].concat();
        let sizes = [b"J", &(N as u32).to_le_bytes()[..], b"\x85K\x01\x85"].concat();
        let one = [b"ctorch._utils\n_rebuild_tensor_v2\n", &storage[..], b"K\0", &sizes, b"\x89NtRq\0"].concat();
        let more: Vec<u8> = (1..n_views).flat_map(|nth| [word(&nth.to_string()), b"h\0s".to_vec()].concat()).collect();
        let pickle = [b"\x80\x02}", &word("0")[..], &one, b"s", &more, b"."].concat();
        let bytes: Vec<u8> = (0..N).flat_map(|nth| (nth as f32).to_le_bytes()).collect();
        archive(&path, &[("archive/data.pkl", &pickle), ("archive/data/0", &bytes)]);
    };
    views(300);
    let message = refused(folder.path(), "a.pt");
    assert!(message.starts_with("a.pt: its tensors have 1258291200 bytes, in a file of 41"), "{message}");
    let end = "; expected at most 200 times as many beyond 1073741824 bytes\n\
               help: save each tensor once, or as `tensor.clone()`";
    assert!(message.ends_with(end), "{message}");
    // The checksum of a storage with several views is verified once, and then parts of it are read.
    views(3);
    let file = open(&path).unwrap();
    for name in ["0", "1", "2", "0"] {
        assert_eq!(floats(&file, name)[N - 1], (N - 1) as f32, "{name}");
    }
    // The first view that is read notices a flipped bit.
    let mut bytes = fs::read(&path).unwrap();
    let last = memchr::memmem::find(&bytes, &((N - 1) as f32).to_le_bytes()).unwrap();
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = open(&path).unwrap().read("1").unwrap_err().to_string();
    let end = ": the storage of `1` cannot be read\nhelp: the file is damaged: copy it again";
    assert!(error.ends_with(end), "{error}");
}

#[test]
fn views_of_a_storage_are_the_same_the_first_time_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    // Two rows of two, transposed; and the second element alone.
    let transposed = b"K\x02K\x02\x86K\x01K\x02\x86";
    torch(
        &path,
        &[word("t"), tensor(transposed, b""), b"s".to_vec(), word("w"), tensor(FOUR, b""), b"s".to_vec()].concat(),
    );
    let file = open(&path).unwrap();
    for _ in 0..2 {
        assert_eq!((floats(&file, "t"), floats(&file, "w")), (vec![1.0, 3.0, 2.0, 4.0], vec![1.0, 2.0, 3.0, 4.0]));
    }
}

/// Readers of zip archives search for the end record through the whole file.
#[test]
fn an_archive_without_an_end_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.pt", "a.keras", "a.npz"] {
        let path = folder.path().join(name);
        fs::write(&path, b"PK\x03\x04").unwrap();
        // A sparse file, which takes no space on the disk.
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(64 << 30).unwrap();
        assert!(refused(folder.path(), name).contains("an archive without its end: it was cut off"));
    }
}

/// An HDF5 file under construction.
pub(super) struct Hdf5(Vec<u8>);

impl Hdf5 {
    pub(super) fn new() -> Hdf5 {
        Hdf5(vec![0; 48])
    }

    /// Appends bytes, and returns their address.
    pub(super) fn put(&mut self, bytes: &[u8]) -> u64 {
        self.0.extend_from_slice(bytes);
        (self.0.len() - bytes.len()) as u64
    }

    /// Appends an object header of the newer form.
    pub(super) fn object(&mut self, messages: &[Vec<u8>]) -> u64 {
        let messages = messages.concat();
        self.put(&[b"OHDR\x02\x02", &(messages.len() as u32).to_le_bytes()[..], &messages, &[0; 4]].concat())
    }

    /// Ends the file, whose root group is at `root`.
    pub(super) fn finish(mut self, root: u64, path: &Path) {
        let mut start = b"\x89HDF\r\n\x1a\n\x02\x08\x08\0".to_vec();
        [0, u64::MAX, self.0.len() as u64, root].iter().for_each(|number| start.extend(number.to_le_bytes()));
        self.0[..44].copy_from_slice(&start);
        fs::write(path, self.0).unwrap();
    }

    /// Ends a file of one dataset, `x`.
    fn finish_with(mut self, dataset: u64, path: &Path) {
        let root = self.object(&[link("x", dataset)]);
        self.finish(root, path);
    }
}

pub(super) fn message(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind], &(bytes.len() as u16).to_le_bytes()[..], &[0], bytes].concat()
}

fn link(name: &str, object: u64) -> Vec<u8> {
    message(6, &[&[1, 0, name.len() as u8], name.as_bytes(), &object.to_le_bytes()].concat())
}

fn dims(dims: &[u64]) -> Vec<u8> {
    let sizes: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
    message(1, &[&[2, dims.len() as u8, 0, 1], &sizes[..]].concat())
}

fn in_one_place(at: u64, n_bytes: u64) -> Vec<u8> {
    message(8, &[&[3, 1], &at.to_le_bytes()[..], &n_bytes.to_le_bytes()].concat())
}

/// An HDF5 float: class and version, three bytes of flags, size, then the positions of its parts.
fn float(marks: [u8; 3], width: u32, parts: [u8; 4], precision: u16, bias: u32) -> Vec<u8> {
    let [exponent_at, n_exponent, mantissa_at, n_mantissa] = parts;
    [
        &[0x11][..],
        &marks,
        &width.to_le_bytes(),
        &[0, 0],
        &precision.to_le_bytes(),
        &[exponent_at, n_exponent, mantissa_at, n_mantissa],
        &bias.to_le_bytes(),
    ]
    .concat()
}

/// The dtype that an element type and other messages are read as.
fn read_as(element: &[u8], others: &[Vec<u8>]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    let mut file = Hdf5::new();
    let data = file.put(&[0x40; 16]);
    let messages = [&[dims(&[2]), message(3, element), in_one_place(data, 16)], others].concat();
    let dataset = file.object(&messages);
    file.finish_with(dataset, &path);
    open(&path).unwrap().find("x").unwrap().dtype.to_string()
}

/// Floats used to be recognised by their width and the size of their exponent alone.
#[test]
fn a_float_of_hdf5_is_what_every_part_of_its_type_says() {
    let f32 = |marks, parts, precision, bias| read_as(&float(marks, 4, parts, precision, bias), &[]);
    const PARTS: [u8; 4] = [23, 8, 0, 23];
    assert_eq!(f32([0x20, 31, 0], PARTS, 32, 127), "f32");
    assert_eq!(f32([0x21, 31, 0], PARTS, 32, 127), "f32", "the other order of bytes");
    for (what, measured) in [
        ("bias", f32([0x20, 31, 0], PARTS, 32, 128)),
        ("VAX", f32([0x61, 31, 0], PARTS, 32, 127)),
        ("VAX alone", f32([0x60, 31, 0], PARTS, 32, 127)),
        ("no implied bit", f32([0x00, 31, 0], PARTS, 32, 127)),
        ("first bit always set", f32([0x10, 31, 0], PARTS, 32, 127)),
        ("sign", f32([0x20, 30, 0], PARTS, 32, 127)),
        ("exponent below", f32([0x20, 31, 0], [0, 8, 8, 23], 32, 127)),
        ("exponent shifted", f32([0x20, 31, 0], [22, 8, 0, 22], 32, 127)),
        ("mantissa shifted", f32([0x20, 31, 0], [23, 8, 1, 22], 32, 127)),
        ("precision", f32([0x20, 31, 0], PARTS, 31, 127)),
    ] {
        assert_eq!(measured, "floats of odd sizes", "{what}");
    }
    for (width, sign, parts, precision, bias, expected) in [
        (2, 15, [10, 5, 0, 10], 16, 15, "f16"),
        (2, 15, [7, 8, 0, 7], 16, 127, "bf16"),
        (8, 63, [52, 11, 0, 52], 64, 1023, "f64"),
        (1, 7, [2, 5, 0, 2], 8, 15, "f8e5m2"),
        // HDF5 does not record whether it is FN.
        (1, 7, [3, 4, 0, 3], 8, 7, "floats of odd sizes"),
        (2, 15, [10, 5, 0, 10], 16, 16, "floats of odd sizes"),
        (8, 63, [52, 11, 0, 52], 64, 1024, "floats of odd sizes"),
    ] {
        assert_eq!(read_as(&float([0x20, sign, 0], width, parts, precision, bias), &[]), expected);
    }
}

/// An enum of a byte with two names.
fn names(version: u8, first: (&str, u8), second: (&str, u8)) -> Vec<u8> {
    let name = |name: &str| {
        let mut bytes = [name.as_bytes(), b"\0"].concat();
        bytes.resize(if version < 3 { bytes.len().next_multiple_of(8) } else { bytes.len() }, 0);
        bytes
    };
    let byte = [&[0x10, 0x08, 0, 0][..], &1u32.to_le_bytes(), &[0, 0, 8, 0]].concat();
    let head = [&[version << 4 | 8, 2, 0, 0][..], &1u32.to_le_bytes(), &byte].concat();
    [head, name(first.0), name(second.0), vec![first.1, second.1]].concat()
}

#[test]
fn an_enum_of_hdf5_is_a_bool_where_false_is_0_and_true_is_1() {
    for version in 1..=3 {
        let read = |first, second| read_as(&names(version, first, second), &[]);
        assert_eq!(read(("FALSE", 0), ("TRUE", 1)), "pred");
        assert_eq!(read(("TRUE", 1), ("FALSE", 0)), "pred");
        for (first, second) in [
            (("FALSE", 1), ("TRUE", 0)),
            (("FALSE", 0), ("TRUE", 255)),
            (("FALSE", 0), ("MAYBE", 1)),
            (("NOTFALSE", 0), ("TRUE", 1)),
        ] {
            assert_eq!(read(first, second), "enum", "{first:?} {second:?}");
        }
    }
}

/// Keras writes bf16 as opaque bytes with an attribute.
#[test]
fn bf16_of_keras_is_read() {
    let opaque = |width: u32, tag: &[u8]| [&[0x15, tag.len() as u8, 0, 0][..], &width.to_le_bytes(), tag].concat();
    let attribute = |text: &str| {
        let space = [2, 0, 0, 0];
        let kind = [&[0x13, 0, 0, 0][..], &(text.len() as u32).to_le_bytes()].concat();
        let sizes = [6u16, kind.len() as u16, space.len() as u16].map(u16::to_le_bytes).concat();
        message(0x0c, &[&[3, 0][..], &sizes, &[0], b"dtype\0", &kind, &space, text.as_bytes()].concat())
    };
    assert_eq!(read_as(&opaque(2, b""), &[attribute("bfloat16")]), "bf16");
    // NumPy's `V2` written by h5py, read like NumPy's own archives.
    assert_eq!(read_as(&opaque(2, b""), &[]), "bf16");
    assert_eq!(read_as(&opaque(2, b""), &[attribute("float16")]), "opaque bytes");
    assert_eq!(read_as(&opaque(2, b"NUMPY:<"), &[]), "no numbers");
    assert_eq!(read_as(&opaque(1, b""), &[attribute("bfloat16")]), "opaque bytes");
}

/// h5py reads a dataset that was created and never written as its fill value, by default zeros.
#[test]
fn a_dataset_of_hdf5_that_was_never_written_is_its_fill_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    let opened = |n: u64, others: &[Vec<u8>]| {
        let mut file = Hdf5::new();
        let element = message(3, &float([0x20, 31, 0], 4, [23, 8, 0, 23], 32, 127));
        let dataset = file.object(&[&[dims(&[n]), element][..], others].concat());
        file.finish_with(dataset, &path);
        open(&path).unwrap()
    };
    let nowhere = in_one_place(u64::MAX, 12);
    let tree = [&[3, 2, 2][..], &u64::MAX.to_le_bytes(), &2u32.to_le_bytes(), &4u32.to_le_bytes()].concat();
    let valued = |start: &[u8]| message(5, &[start, &4u32.to_le_bytes(), &2.5f32.to_le_bytes()].concat());
    for layout in [nowhere.clone(), message(8, &tree)] {
        for (fill, expected) in [
            (vec![], 0.0),
            (vec![message(5, &[2, 2, 2, 1, 0, 0, 0, 0])], 0.0),
            (vec![message(5, &[3, 0x0a])], 0.0),
            (vec![valued(&[2, 2, 2, 1])], 2.5),
            (vec![valued(&[3, 0x2a])], 2.5),
        ] {
            assert_eq!(floats(&opened(3, &[vec![layout.clone()], fill].concat()), "x"), [expected; 3]);
        }
    }
    // Some files define no value, or say that it is never filled in: that dataset alone cannot be read.
    for fill in [message(5, &[2, 2, 2, 0]), message(5, &[3, 0x1a]), message(5, &[3, 0x06])] {
        let file = opened(3, &[nowhere.clone(), fill]);
        let error = text(folder.path(), &file.read("x").unwrap_err());
        assert_eq!(error, "x.h5: array `x` is of elements that were never written; expected numbers");
    }
    let error = opened(1 << 40, &[nowhere]).look("x").unwrap_err();
    assert_eq!(error.kind(), WeightsErrorKind::TooLarge, "{error}");
    assert_eq!(
        text(folder.path(), &error),
        format!(
            "x.h5: dataset `x` was never written, and is to become 4398046511104 bytes from a file of {}; expected at \
             most 200 times as many beyond 1073741824 bytes\n\
             help: write its elements, or leave it out of the file",
            fs::metadata(&path).unwrap().len()
        )
    );
}

/// Elements in other files used to be read as ones that were never written: as zeros.
#[test]
fn a_dataset_of_hdf5_whose_elements_are_in_other_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    let mut file = Hdf5::new();
    let element = message(3, &float([0x20, 31, 0], 4, [23, 8, 0, 23], 32, 127));
    // The version, three reserved bytes, room for a file and a file, and the names' heap; then the file: its name, and
    // from where to where.
    let external = [&[1, 0, 0, 0, 1, 0, 1, 0][..], &48u64.to_le_bytes(), &[0; 16], &12u64.to_le_bytes()].concat();
    let dataset = file.object(&[dims(&[3]), element, in_one_place(u64::MAX, 12), message(7, &external)]);
    file.finish_with(dataset, &path);
    assert_eq!(
        refused(folder.path(), "x.h5"),
        "x.h5: at byte 48: dataset `x` has its elements in other files (external storage), which are not read\n\
         help: write it again with h5py's defaults, or save the weights as .npz or safetensors"
    );
}

/// The second name of a dataset used to be missing.
#[test]
fn every_name_of_a_dataset_of_hdf5_is_an_array() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    let element = || message(3, &float([0x20, 31, 0], 4, [23, 8, 0, 23], 32, 127));
    let mut file = Hdf5::new();
    let data = file.put(&[1f32, 2.0, 3.0].map(f32::to_le_bytes).concat());
    let dataset = file.object(&[dims(&[3]), element(), in_one_place(data, 12)]);
    let group = file.object(&[link("z", dataset)]);
    let root = file.object(&[link("b", dataset), link("a", dataset), link("g", group), link("h", group)]);
    file.finish(root, &path);
    let file = open(&path).unwrap();
    for name in ["a", "b", "g/z"] {
        assert_eq!(floats(&file, name), [1.0, 2.0, 3.0], "{name}");
    }
    assert_eq!((file.entries().len(), file.left_out()), (3, &["h (another name of a group)".to_string()][..]));
    // A group that contains itself.
    let mut file = Hdf5::new();
    let root = file.0.len() as u64;
    let measured = file.object(&[link("a", root)]);
    assert_eq!(measured, root);
    file.finish(root, &path);
    assert_eq!(open(&path).unwrap().left_out(), ["a (another name of a group)"]);
    // A dataset of 16 MiB that was never written, under 100 names.
    let mut file = Hdf5::new();
    let dataset = file.object(&[dims(&[1 << 22]), element(), in_one_place(u64::MAX, 1 << 24)]);
    let links: Vec<Vec<u8>> = (0..100).map(|nth| link(&nth.to_string(), dataset)).collect();
    let root = file.object(&links);
    file.finish(root, &path);
    let message = refused(folder.path(), "x.h5");
    assert_eq!(
        message,
        format!(
            "x.h5: further names of its datasets stand for 1090519040 bytes, in a file of {}; expected at most 200 times as \
             many beyond 1073741824 bytes\n\
             help: write each dataset under one name",
            fs::metadata(&path).unwrap().len()
        )
    );
}

#[test]
fn pieces_of_a_header_in_one_place_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    let mut file = Hdf5::new();
    let filler = [message(0x0c, &[0; 60_000])].concat();
    let piece = file.put(&[b"OCHK", &filler[..], &[0; 4]].concat());
    let n_bytes = filler.len() as u64 + 8;
    let to = |at: u64, n_bytes: u64| message(0x10, &[at.to_le_bytes(), n_bytes.to_le_bytes()].concat());
    let root = file.object(&vec![to(piece, n_bytes); 255]);
    file.finish(root, &path);
    assert!(refused(folder.path(), "x.h5").contains("two pieces of an object's header are in one place"));
}

#[test]
fn one_long_name_of_many_links_takes_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    let mut file = Hdf5::new();
    const N_NAME: u64 = 1 << 20;
    let name = file.put(&[vec![b'n'; N_NAME as usize - 8], vec![0; 8]].concat());
    let heap = [&b"HEAP\0\0\0\0"[..], &N_NAME.to_le_bytes(), &u64::MAX.to_le_bytes(), &name.to_le_bytes()].concat();
    let heap = file.put(&heap);
    let symbol = [&[0; 8][..], &48u64.to_le_bytes(), &[0; 24]].concat();
    let symbols = file.put(&[&b"SNOD\x01\0\x64\0"[..], &symbol.repeat(100)].concat());
    let root = file.object(&[message(0x11, &[symbols.to_le_bytes(), heap.to_le_bytes()].concat())]);
    file.finish(root, &path);
    let message = refused(folder.path(), "x.h5");
    assert!(message.starts_with("x.h5: the names of its arrays has 68"), "{message}");
    assert!(message.ends_with("expected at most 67108864"), "{message}");
}

/// A B-tree whose nodes are all the same node has more chunks at each level.
#[test]
fn a_tree_of_blocks_that_points_at_one_node_ends_with_the_blocks_of_its_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    let mut file = Hdf5::new();
    let mut child = 48;
    for level in 0..4u8 {
        let pair = [&1u32.to_le_bytes()[..], &[0; 20], &u64::to_le_bytes(child)].concat();
        let head = [&b"TREE\x01"[..], &[level], &1000u16.to_le_bytes(), &[0; 16]].concat();
        child = file.put(&[head, pair.repeat(1000)].concat());
    }
    let chunked =
        message(8, &[&[3, 2, 2][..], &child.to_le_bytes(), &1u32.to_le_bytes(), &4u32.to_le_bytes()].concat());
    let element = message(3, &float([0x20, 31, 0], 4, [23, 8, 0, 23], 32, 127));
    let dataset = file.object(&[dims(&[1 << 22]), element, chunked]);
    file.finish_with(dataset, &path);
    let message = refused(folder.path(), "x.h5");
    assert!(message.contains("what says where its arrays are has"), "{message}");
}

/// Each chunk is within the limit that is unpacked without further checks; all together are not.
#[test]
fn blocks_that_are_bombs_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    let mut file = Hdf5::new();
    const BLOCK: u64 = 1 << 30;
    let places: Vec<u64> = (0..12).map(|_| file.put(&[0; 1 << 20])).collect();
    let pairs = places.iter().enumerate().map(|(nth, place)| {
        let start = nth as u64 * BLOCK;
        [&(1u32 << 20).to_le_bytes()[..], &[0; 4], &start.to_le_bytes(), &[0; 8], &place.to_le_bytes()].concat()
    });
    let pairs = pairs.collect::<Vec<_>>().concat();
    let tree = file.put(&[&b"TREE\x01\0\x0c\0"[..], &[0; 16], &pairs].concat());
    let byte = message(3, &[&[0x10, 0, 0, 0][..], &1u32.to_le_bytes(), &[0, 0, 8, 0]].concat());
    let chunked =
        message(8, &[&[3, 2, 2][..], &tree.to_le_bytes(), &(BLOCK as u32).to_le_bytes(), &1u32.to_le_bytes()].concat());
    let deflate = message(0x0b, &[2, 1, 1, 0, 0, 0, 1, 0, 9, 0, 0, 0]);
    let dataset = file.object(&[dims(&[12 * BLOCK]), byte, chunked, deflate]);
    file.finish_with(dataset, &path);
    let error = open(&path).unwrap().look("x").unwrap_err();
    assert_eq!(error.kind(), WeightsErrorKind::TooLarge, "{error}");
    assert_eq!(
        text(folder.path(), &error),
        "x.h5: dataset `x`: 12582912 packed bytes are to become 12884901888; expected at most 200 times as many beyond \
         1073741824 bytes: it may be a decompression bomb\n\
         help: if it is not, save it without compression"
    );
}

#[test]
fn checkpoints_of_jax_are_told_with_the_line_that_converts_them() {
    let folder = tempfile::tempdir().unwrap();
    // {"params": {"kernel": …}}, the beginning of the output of flax.serialization.to_bytes.
    fs::write(folder.path().join("flax_model.msgpack"), b"\x81\xa6params\x81\xa6kernel\xc7").unwrap();
    let message = refused(folder.path(), "flax_model.msgpack");
    let expected = "flax_model.msgpack: a dict in MessagePack, as Flax writes parameters, which is not read\nhelp: save its arrays";
    assert!(message.starts_with(expected), "{message}");
    // A map of 70,000 keys; and a map of numbers, which Flax never writes.
    fs::write(folder.path().join("x"), b"\xdf\0\x01\x11\x70\xd9\x40params").unwrap();
    assert!(refused(folder.path(), "x").contains("flax.serialization"));
    fs::write(folder.path().join("x"), b"\x82\x01\x02\x03\x04").unwrap();
    assert!(refused(folder.path(), "x").contains("no file of weights that is known"));
    for (name, item) in [
        ("_METADATA", "orbax"),
        ("manifest.ocdbt", "orbax"),
        ("_CHECKPOINT_METADATA", "orbax"),
        ("default/_METADATA", "orbax/default"),
        // The last of several steps is meant.
        ("10/default/manifest.ocdbt", "orbax/10/default"),
    ] {
        let path = folder.path().join("orbax").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "{}").unwrap();
        fs::create_dir_all(folder.path().join("orbax/9/default")).unwrap();
        fs::write(folder.path().join("orbax/checkpoint"), b"\x81\xa1a").unwrap();
        let message = refused(folder.path(), "orbax");
        assert!(
            message.starts_with("orbax: a checkpoint of Orbax, which is not read\nhelp: where it was written"),
            "{message}"
        );
        assert!(message.contains(&format!("restore(os.path.abspath('{item}'))")), "{message}");
        fs::remove_dir_all(folder.path().join("orbax")).unwrap();
    }
}

#[test]
fn a_bool_that_is_neither_0_nor_1_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    for (last, is_read) in [(1, true), (2, false), (255, false)] {
        let header = r#"{"w":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#;
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0, 1, last]].concat();
        fs::write(&path, bytes).unwrap();
        let file = open(&path).unwrap();
        assert_eq!((file.read("w").is_ok(), file.look("w").is_ok()), (is_read, is_read), "{last}");
        for error in [file.read("w").err(), file.look("w").err()].into_iter().flatten() {
            assert_eq!(
                text(folder.path(), &error),
                format!(
                    "x: array `w` is of bools, and element 2 is {last}; expected 0 or 1\n\
                     help: write it with 0 and 1, or as integers"
                )
            );
        }
    }
}

/// Every 8-bit float that safetensors has is read to the bit.
#[test]
fn fp8_of_safetensors_is_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    for (name, dtype) in [("F8_E4M3", DType::F8E4M3FN), ("F8_E5M2", DType::F8E5M2), ("F8_E8M0", DType::F8E8M0FNU)] {
        let header = format!(r#"{{"w":{{"dtype":"{name}","shape":[256],"data_offsets":[0,256]}}}}"#);
        let bytes: Vec<u8> = (0..=255).collect();
        fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat()).unwrap();
        let literal = open(&path).unwrap().read("w").unwrap();
        assert_eq!(literal, Literal::Array { shape: ArrayShape::new(dtype, vec![256]), bytes });
        write(&path, WrittenFormat::Safetensors, [("w".to_string(), literal.clone())]).unwrap();
        assert_eq!(open(&path).unwrap().read("w").unwrap(), literal);
    }
}
