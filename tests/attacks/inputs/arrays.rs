//! Archives of arrays: headers that are wrong, and files that are not archives.

use std::io::Write as _;
use std::panic::catch_unwind;
use std::path::Path;

use bf16scope::data::npz::NpzReader;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::words;
use crate::door::Folder;

/// A `.npy` file with this line for its header.
fn npy(line: &str, n_bytes: usize) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((line.len() as u16).to_le_bytes());
    bytes.extend(line.as_bytes());
    bytes.extend(vec![0; n_bytes]);
    bytes
}

fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Reads every array; bytes in all.
fn read(path: &Path) -> Result<usize, String> {
    let mut reader = NpzReader::open(path).map_err(|error| words(&error))?;
    let names: Vec<String> = reader.names().map(str::to_string).collect();
    let mut n_bytes = 0;
    for name in names {
        if let Some(entry) = reader.entry(&name).map_err(|error| words(&error))? {
            n_bytes += entry.read().map_err(|error| words(&error))?.len();
        }
    }
    Ok(n_bytes)
}

fn read_bytes(bytes: &[u8]) -> Result<usize, String> {
    let folder = Folder::new();
    folder.write("a.npz", bytes);
    let place = folder.path("a.npz");
    read(&place).map_err(|error| error.replace(&place.display().to_string(), "a.npz"))
}

#[test]
fn headers_that_are_wrong_are_named_with_their_array() {
    let line = |descr: &str, order: &str, shape: &str| {
        format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")
    };
    let f32s = |shape: &str| line("'<f4'", "False", shape);
    assert_eq!(read_bytes(&archive(&[("x.npy", &npy(&f32s("(2,)"), 8))])), Ok(8));
    assert_eq!(read_bytes(&archive(&[("x.npy", &npy(&f32s("()"), 4)), ("y.npy", &npy(&f32s("(0, 7)"), 0))])), Ok(4));
    let cases = [
        (f32s("(2,)"), 7, "array `x` holds 7 bytes or more, expected 8 as its header says"),
        (f32s("(2,)"), 9, "array `x` holds 9 bytes or more, expected 8 as its header says"),
        (f32s("(2, 2)"), 8, "expected 16 as its header says"),
        (f32s("(4611686018427387904, 4)"), 8, "it may be a decompression bomb"),
        (f32s("(9223372036854775808,)"), 8, "the header says shape"),
        (f32s("(-1,)"), 8, "the header says shape"),
        (f32s("(2.0,)"), 8, "the header says shape"),
        (f32s("(x,)"), 8, "the header says shape"),
        (f32s("2"), 8, "the header says shape"),
        (f32s("(2,"), 8, "expected a dictionary of descr, fortran_order, shape"),
        (line("'<f17'", "False", "(2,)"), 8, "the header says descr"),
        (line("'|O'", "False", "(2,)"), 8, "its elements are Python objects (|O), expected numbers"),
        (line("'<U4'", "False", "(2,)"), 8, "its elements are texts (<U4), expected numbers"),
        (line("'<M8[ns]'", "False", "(1,)"), 8, "its elements are times (<M8[ns]), expected numbers"),
        (line("[('a', '<f4')]", "False", "(2,)"), 8, "its elements are records ([('a', '<f4')]), expected numbers"),
        (line("''", "False", "(2,)"), 8, "the header says descr"),
        (line("'<f4'", "0", "(2,)"), 8, "the header says fortran_order"),
        ("{}\n".to_string(), 8, "the header says descr: nothing"),
        (String::new(), 8, "the header is ``, expected a dictionary"),
        ("\u{feff}{'descr'".to_string(), 8, "'descr'`, expected a dictionary"),
        ("x".repeat(20_000), 0, "the header has 20000 bytes, expected at most 16384"),
    ];
    for (line, n_bytes, expected) in cases {
        let error = read_bytes(&archive(&[("x.npy", &npy(&line, n_bytes))])).expect_err(&line);
        assert!(error.starts_with("a.npz: array `x`"), "{line}: {error}");
        assert!(error.contains(expected), "{line}: expected {expected}, not\n{error}");
    }
    for (bytes, expected) in [
        (&b""[..], "the array ends within its header"),
        (b"\x93NUMPY", "the array ends within its header"),
        (b"\x93NUMPY\x01\x00\xff\xff", "the header has 65535 bytes"),
        (b"\x93NUMPY\x09\x00\x00\x00", "the array is of format 9.0"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "the header has 4294967295 bytes"),
        (b"PK\x03\x04 no array", "it begins with"),
    ] {
        let error = read_bytes(&archive(&[("x.npy", bytes)])).expect_err(expected);
        assert!(error.contains(expected), "expected {expected}, not\n{error}");
    }
}

#[test]
fn every_way_to_damage_an_archive_is_an_error_or_the_same_arrays() {
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 5), }\n";
    let mut array = npy(header, 0);
    array.extend((0..25u8).flat_map(|number| f32::from(number).to_le_bytes()));
    let whole = archive(&[
        ("in0.npy", &array),
        ("in1.npy", &npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n", 8)),
    ]);
    assert_eq!(read_bytes(&whole), Ok(108));
    let folder = Folder::new();
    let place = folder.path("a.npz");
    let check = |what: String, bytes: &[u8]| {
        std::fs::write(&place, bytes).unwrap();
        let read = catch_unwind(|| read(&place)).unwrap_or_else(|_| panic!("a panic: {what}"));
        // Names and dates are not what arrays hold; the checksum sees to what they do.
        if let Err(error) = read {
            assert!(error.contains("a.npz"), "{what}: {error}");
        }
    };
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        check(format!("byte {at}"), &damaged);
        check(format!("cut at {at}"), &whole[..at]);
    }
    for (what, bytes) in [
        ("nothing", &b""[..]),
        ("text", b"0 1 2 3\n"),
        ("a lone array", &array),
        (
            "the end of an archive",
            b"PK\x05\x06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        ),
    ] {
        check(what.to_string(), bytes);
    }
}
