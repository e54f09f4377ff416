//! Archives of arrays, whole and damaged.

use super::*;
use bf16scope_hlo::DType;
use std::fs;

fn written(arrays: &[(&str, Header, Vec<u8>)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let mut npz = NpzWriter::create(&path).unwrap();
    for (name, header, bytes) in arrays {
        npz.add(name, header, bytes).unwrap();
    }
    npz.finish().unwrap();
    (folder, path)
}

#[test]
fn arrays_read_back() {
    let a = (0..24).collect::<Vec<u8>>();
    let (_folder, path) = written(&[
        ("var/a", Header::for_dtype(DType::F32, vec![2, 3]), a.clone()),
        ("b", Header::for_dtype(DType::U8, vec![]), vec![7]),
    ]);
    let mut npz = NpzReader::open(&path).unwrap();
    assert_eq!(npz.names().collect::<Vec<_>>(), ["b", "var/a"]);
    let entry = npz.entry("var/a").unwrap().unwrap();
    assert_eq!(entry.header, Header::for_dtype(DType::F32, vec![2, 3]));
    assert_eq!(entry.read().unwrap(), a);
    assert_eq!(npz.entry("b").unwrap().unwrap().read().unwrap(), [7]);
    assert!(npz.entry("c").unwrap().is_none());
}

/// If two members have the same name, a zip reader takes the last.
#[test]
fn an_array_that_is_there_twice_is_said() {
    let header = || Header::for_dtype(DType::U8, vec![]);
    let (_folder, path) = written(&[("x", header(), vec![1]), ("y", header(), vec![2]), ("z", header(), vec![3])]);
    let mut bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() - 5 {
        if &bytes[at..at + 5] == b"y.npy" {
            bytes[at] = b'x';
        }
    }
    fs::write(&path, bytes).unwrap();
    let error = NpzReader::open(&path).unwrap_err().to_string();
    assert!(error.ends_with("a.npz: array `x` is there twice; expected once\nhelp: leave one out"), "{error}");
}

/// Such a name would be written outside of the folder that the archive is unpacked into.
#[test]
fn names_that_leave_the_archive_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    for (name, is_right) in [
        ("x", true),
        ("block1/conv:0", true),
        ("..x", true),
        ("", false),
        ("../../evil", false),
        ("a/../b", false),
        ("/etc/passwd", false),
        ("a//b", false),
        ("a/", false),
        ("..\\evil", false),
        ("a\0b", false),
    ] {
        let mut npz = NpzWriter::create(&path).unwrap();
        let added = npz.add(name, &Header::for_dtype(DType::U8, vec![]), &[1]);
        assert_eq!(added.is_ok(), is_right, "{name:?}: {added:?}");
        if !is_right {
            let error = added.unwrap_err().to_string();
            let expected = format!(
                "a.npz: `{name}` is not a name for an array in an archive, which is the name of a file in it\n\
                     help: name it without `..`, without a backslash, and without / at an end"
            );
            assert!(error.ends_with(&expected), "{error}");
        }
    }
}

/// `[[1, 2, 3], [4, 5, 6]]` of two bytes each, as a big-endian machine with Fortran's order has them.
#[test]
fn other_orders_are_put_right() {
    let header = Header { is_big_endian: true, is_fortran: true, ..Header::for_dtype(DType::S16, vec![2, 3]) };
    let bytes = [1i16, 4, 2, 5, 3, 6].into_iter().flat_map(i16::to_be_bytes).collect();
    let (_folder, path) = written(&[("a", header, bytes)]);
    let read = NpzReader::open(&path).unwrap().entry("a").unwrap().unwrap().read().unwrap();
    assert_eq!(read, (1i16..=6).flat_map(i16::to_le_bytes).collect::<Vec<u8>>());
}

#[test]
fn what_is_damaged_is_said() {
    // A header that claims 8 EiB costs no memory.
    let (_folder, path) = written(&[
        ("long", Header::for_dtype(DType::F32, vec![1 << 61]), vec![0; 8]),
        ("short", Header::for_dtype(DType::F32, vec![1]), vec![0; 8]),
    ]);
    let mut npz = NpzReader::open(&path).unwrap();
    let error = npz.entry("long").unwrap().unwrap().read().unwrap_err().to_string();
    assert!(error.contains("array `long` holds 8 bytes or more, expected 9223372036854775808"), "{error}");
    let error = npz.entry("short").unwrap().unwrap().read().unwrap_err().to_string();
    assert!(error.contains("array `short` holds 5 bytes or more, expected 4"), "{error}");

    let mut bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let place = path.display().to_string();
    let refused = || NpzReader::open(&path).unwrap_err().to_string().replace(&place, "a.npz");
    assert_eq!(refused(), "a.npz: an archive without its end: it was cut off\nhelp: copy or save it again");
    for (bytes, expected) in [
        (&b""[..], "a.npz: an empty file, expected an .npz archive\nhelp: save it again with numpy.savez"),
        (
            b"\x93NUMPY\x01\x00",
            "a.npz: one array (.npy), expected an archive of named ones\nhelp: save it with numpy.savez(FILE, NAME=x)",
        ),
        (b"text", "a.npz: no .npz archive, or a damaged one\nhelp: make one with numpy.savez"),
    ] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(refused(), expected);
    }
    let cause = std::error::Error::source(&NpzReader::open(&path).unwrap_err()).unwrap().to_string();
    assert!(cause.contains("it has no end"), "{cause}");

    // An element of `short` changes; the archive's checksum does not.
    let at = bytes.windows(5).position(|window| window == b"short").unwrap() + "short.npy".len() + 128 + 3;
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let mut npz = NpzReader::open(&path).unwrap();
    let error = npz.entry("short").unwrap().unwrap().read().unwrap_err();
    assert!(matches!(error.kind(), DataErrorKind::Damaged), "{error}");
}

#[test]
fn elements_that_cannot_be_read_are_said() {
    let (_folder, path) = written(&[("x", Header::for_dtype(DType::F32, vec![1]), vec![0; 4])]);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(5).position(|window| window == b"x.npy").unwrap() + "x.npy".len() + 128;
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = NpzReader::open(&path).unwrap().entry("x").unwrap().unwrap().read().unwrap_err().to_string();
    let expected = "a.npz: array `x`: its elements cannot be read\nhelp: the file is damaged, copy it again";
    assert!(error.ends_with(expected), "{error}");
}

/// Two archives in one file, where readers see only the last; and two members at one offset.
#[test]
fn bytes_of_no_array_or_of_two_are_said() {
    let header = || Header::for_dtype(DType::U8, vec![]);
    let (_folder, path) = written(&[("x", header(), vec![1]), ("y", header(), vec![2])]);
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        NpzReader::open(&path).unwrap_err().to_string().replace(&path.display().to_string(), "a.npz")
    };
    let help = "of two archives that were joined only one would be read: save all arrays with one numpy.savez";
    assert_eq!(
        refused(&[&whole[..], &whole].concat()),
        format!("a.npz: {} bytes behind the archive belong to no array; expected none\nhelp: {help}", whole.len())
    );
    // The place of the second member, in the directory.
    let mut shared = whole.clone();
    let second = shared.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    shared[second + 42..second + 46].fill(0);
    assert_eq!(
        refused(&shared),
        "a.npz: members of the archive share bytes: it may be a decompression bomb\n\
             help: save the arrays again with numpy.savez"
    );
}

#[test]
fn an_array_that_becomes_gigabytes_is_refused_before_it_is_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let mut zip = ZipWriter::new(fs::File::create(&path).unwrap());
    zip.start_file("x.npy", SimpleFileOptions::default().compression_method(CompressionMethod::Deflated)).unwrap();
    zip.write_all(&Header::for_dtype(DType::U8, vec![1 << 31]).to_bytes()).unwrap();
    zip.finish().unwrap();
    let mut npz = NpzReader::open(&path).unwrap();
    let entry = npz.entry("x").unwrap().unwrap();
    let n_packed = entry.n_packed;
    assert_eq!(
        entry.read().unwrap_err().to_string().replace(&path.display().to_string(), "a.npz"),
        format!(
            "a.npz: array `x`: {n_packed} packed bytes are to become 2147483648; expected at most 200 times as many beyond \
                 1073741824 bytes: it may be a decompression bomb\n\
                 help: if it is not, save it unpacked: numpy.savez, without _compressed"
        )
    );
}

/// An archive of a whole folder, as `zip -r` makes it.
#[test]
fn folders_in_an_archive_are_no_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let mut zip = ZipWriter::new(File::create(&path).unwrap());
    zip.add_directory("block1/", SimpleFileOptions::default()).unwrap();
    zip.start_file("block1/x.npy", SimpleFileOptions::default()).unwrap();
    zip.write_all(&Header::for_dtype(DType::U8, vec![]).to_bytes()).unwrap();
    zip.write_all(&[3]).unwrap();
    zip.finish().unwrap();
    let mut npz = NpzReader::open(&path).unwrap();
    assert_eq!(npz.names().collect::<Vec<_>>(), ["block1/x"]);
    assert_eq!(npz.entry("block1/x").unwrap().unwrap().read().unwrap(), [3]);
}

/// `np.load(FILE)["x.npy"]` gives the array `x`.
#[test]
fn names_that_numpy_confuses_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let header = || Header::for_dtype(DType::U8, vec![]);
    for [first, second] in [["x", "x.npy"], ["x.npy", "x"]] {
        let mut npz = NpzWriter::create(folder.path().join("a.npz")).unwrap();
        npz.add(first, &header(), &[1]).unwrap();
        npz.add("x.np", &header(), &[1]).unwrap();
        let error = npz.add(second, &header(), &[2]).unwrap_err().to_string();
        let expected =
            "a.npz: `x` and `x.npy` are one name to NumPy; expected others\nhelp: rename one, or write safetensors";
        assert!(error.ends_with(expected), "{error}");
    }
}
