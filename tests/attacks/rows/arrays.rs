//! CSV, IDX and `.npz`.

use super::Row;
use bf16scope::data::npz::NpzReader;
use bf16scope::data::{Arrays, DataError, Feature, Source as _, csv, idx};
use bf16scope::hlo::DType;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write as _;
use std::path::Path;

fn said(arrays: Result<Arrays, DataError>) -> Result<String, String> {
    let arrays = arrays.map_err(|error| error.to_string())?;
    let first: Vec<Vec<u8>> = arrays.read(0).unwrap().iter().map(|bytes| bytes.to_vec()).collect();
    let dims: Vec<_> = arrays.arrays().iter().map(|array| format!("{}{:?}", array.dtype, array.dims)).collect();
    let bytes: u64 = first.iter().flatten().map(|byte| u64::from(*byte)).sum();
    Ok(format!("{} examples of {}, the first's bytes sum to {bytes}", arrays.n_examples(), dims.join(", ")))
}

fn read_csv(path: &Path) -> Result<String, String> {
    let features = [Feature::compute("x", [2]), Feature::exact("y", DType::S8, []).label().below(3)];
    said(csv::read(path, &features))
}

fn read_idx(path: &Path) -> Result<String, String> {
    said(idx::read_arrays(&[("x", path)]))
}

fn read_npz(path: &Path) -> Result<String, String> {
    let mut reader = NpzReader::open(path).map_err(|error| error.to_string())?;
    let names: Vec<String> = reader.names().map(str::to_string).collect();
    let mut all = Vec::new();
    for name in names {
        let Some(entry) = reader.entry(&name).map_err(|error| error.to_string())? else { continue };
        let dims = entry.header.dims.clone();
        let bytes = entry.read().map_err(|error| error.to_string())?;
        all.push(format!("{name:?} {dims:?}, {} bytes", bytes.len()));
    }
    Ok(if all.is_empty() { "no array".to_string() } else { all.join("; ") })
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::best());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

const CSV: [(&str, &[u8]); 58] = [
    ("two rows", b"1,2,0\n3,4,2\n"),
    ("nothing", b""),
    ("a line end alone", b"\n"),
    ("line ends alone", b"\n\n\n"),
    ("blanks alone", b"  \n"),
    ("no end of the last line", b"1,2,0\n3,4,2"),
    ("DOS line ends", b"1,2,0\r\n3,4,2\r\n"),
    ("old Mac line ends", b"1,2,0\r3,4,2\r"),
    ("an empty line between", b"1,2,0\n\n3,4,2\n"),
    ("a byte-order mark", b"\xef\xbb\xbf1,2,0\n"),
    ("two byte-order marks", b"\xef\xbb\xbf\xef\xbb\xbf1,2,0\n"),
    ("UTF-16", b"\xff\xfe1\0,\x002\0,\x000\0\n\0"),
    ("a header", b"x0,x1,y\n1,2,0\n"),
    ("a header of numbers in quotes", b"\"1\",\"2\",\"0\"\n1,2,0\n"),
    ("a comment", b"# of today\n1,2,0\n"),
    ("a column too few", b"1,2\n"),
    ("a column too many", b"1,2,0,0\n"),
    ("a column too many in the second row", b"1,2,0\n1,2,0,0\n"),
    ("a comma at the end", b"1,2,0,\n"),
    ("an empty column", b"1,,0\n"),
    ("semicolons", b"1;2;0\n"),
    ("tabs", b"1\t2\t0\n"),
    ("commas for points", b"1,5,2,5,0\n"),
    ("blanks around", b" 1 , 2 , 0 \n"),
    ("NaN", b"nan,2,0\n"),
    ("minus NaN", b"-NaN,2,0\n"),
    ("infinity", b"inf,2,0\n"),
    ("minus infinity", b"1,-infinity,0\n"),
    ("a number beyond f32", b"1e39,2,0\n"),
    ("a number beyond f64", b"1e400,2,0\n"),
    ("a number below f32", b"1e-60,2,0\n"),
    (
        "a number of a thousand digits",
        b"0.00000000000000000000000000000000000000000000000000000000000000000000000000001,2,0\n",
    ),
    ("hexadecimal", b"0x10,2,0\n"),
    ("an underscore", b"1_000,2,0\n"),
    ("thousands", b"\"1,000\",2,0\n"),
    ("two signs", b"--1,2,0\n"),
    ("a sign alone", b"-,2,0\n"),
    ("a point alone", b".,2,0\n"),
    ("an exponent alone", b"e5,2,0\n"),
    ("an exponent without digits", b"1e,2,0\n"),
    ("Arabic digits", "١,2,0\n".as_bytes()),
    ("a minus of typography", "−1,2,0\n".as_bytes()),
    ("a label below 0", b"1,2,-1\n"),
    ("a label too great", b"1,2,3\n"),
    ("a label beyond its dtype", b"1,2,300\n"),
    ("a label beyond 64 bits", b"1,2,99999999999999999999\n"),
    ("a label with a fraction", b"1,2,1.5\n"),
    ("a label with a point", b"1,2,1.0\n"),
    ("a label that is a word", b"1,2,cat\n"),
    ("a label of minus zero", b"1,2,-0\n"),
    ("a label with a plus", b"1,2,+1\n"),
    ("a null byte", b"1,2\0,0\n"),
    ("a byte that is not UTF-8", b"1,2\xff,0\n"),
    ("a quote that does not end", b"\"1,2,0\n"),
    ("a quote within", b"1\"2,2,0\n"),
    ("a formula", b"=1+1,2,0\n"),
    ("HTML", b"<!DOCTYPE html><html><body>not found</body></html>\n"),
    ("a pointer of Git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"),
];

fn idx_of(dtype: u8, dims: &[u32], n_bytes: usize) -> Vec<u8> {
    let dims_bytes = dims.iter().flat_map(|dim| dim.to_be_bytes());
    [0, 0, dtype, dims.len() as u8].into_iter().chain(dims_bytes).chain((0..n_bytes).map(|at| at as u8)).collect()
}

fn idx_rows() -> Vec<(String, Vec<u8>)> {
    let mut rows: Vec<(String, Vec<u8>)> = Vec::new();
    for (dtype, what) in [
        (8u8, "u8"),
        (9, "s8"),
        (11, "s16"),
        (12, "s32"),
        (13, "f32"),
        (14, "f64"),
        (10, "dtype 10"),
        (0, "dtype 0"),
        (255, "dtype 255"),
    ] {
        rows.push((
            format!("{what} of 2 by 3"),
            idx_of(dtype, &[2, 3], 6 * [1, 1, 1, 2, 4, 4, 8][usize::from(dtype.clamp(8, 14) - 8)]),
        ));
    }
    let whole = idx_of(8, &[2, 3], 6);
    for (name, bytes) in [
        ("nothing", vec![]),
        ("one byte", vec![0]),
        ("a magic alone", whole[..4].to_vec()),
        ("cut within the dims", whole[..9].to_vec()),
        ("cut before the data", whole[..12].to_vec()),
        ("a byte too few", idx_of(8, &[2, 3], 5)),
        ("a byte too many", idx_of(8, &[2, 3], 7)),
        ("no dims", idx_of(8, &[], 1)),
        ("a hundred dims", idx_of(8, &[1; 100], 1)),
        ("255 dims of 2^32 − 1", idx_of(8, &[u32::MAX; 255], 1)),
        ("dims whose product wraps to 0", idx_of(8, &[1 << 16; 4], 0)),
        ("2^32 − 1 examples", idx_of(8, &[u32::MAX], 4)),
        ("no example", idx_of(8, &[0, 3], 0)),
        ("examples of nothing", idx_of(8, &[3, 0], 0)),
        ("first byte not 0", [&[1][..], &whole[1..]].concat()),
        ("second byte not 0", [&[0, 1][..], &whole[2..]].concat()),
        ("little-endian dims", [&whole[..4], &2u32.to_le_bytes(), &3u32.to_le_bytes(), &[0; 6]].concat()),
        ("gzip", gzip(&whole)),
        ("gzip in gzip", gzip(&gzip(&whole))),
        ("gzip cut", gzip(&whole)[..20].to_vec()),
        ("gzip with a stream after it", [gzip(&whole), gzip(&[1, 2, 3])].concat()),
        ("gzip with junk after it", [gzip(&whole), vec![7; 9]].concat()),
        ("gzip with a wrong checksum", {
            let mut packed = gzip(&whole);
            let at = packed.len() - 6;
            packed[at] ^= 1;
            packed
        }),
        ("a decompression bomb", gzip(&[idx_of(8, &[1 << 20, 3], 0), vec![0; 1 << 22]].concat())),
        ("a PNG", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec()),
    ] {
        rows.push((name.to_string(), bytes));
    }
    rows
}

/// An `.npy` with this header.
fn npy(version: [u8; 2], header: &str, data: &[u8]) -> Vec<u8> {
    let length = match version[0] {
        1 => (header.len() as u16).to_le_bytes().to_vec(),
        _ => (header.len() as u32).to_le_bytes().to_vec(),
    };
    [b"\x93NUMPY", &version[..], &length, header.as_bytes(), data].concat()
}

fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Headers of an array of 16 bytes.
const HEADERS: [&str; 60] = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }\n",
    "{'descr': '>f4', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '=f4', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '|f4', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': 'f4', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }\n",
    "{'descr': '<f2', 'fortran_order': False, 'shape': (8,), }\n",
    "{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }\n",
    "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }\n",
    "{'descr': '<c16', 'fortran_order': False, 'shape': (1,), }\n",
    "{'descr': '|b1', 'fortran_order': False, 'shape': (16,), }\n",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (16,), }\n",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }\n",
    "{'descr': '|V2', 'fortran_order': False, 'shape': (8,), }\n",
    "{'descr': '|V16', 'fortran_order': False, 'shape': (1,), }\n",
    "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n",
    "{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }\n",
    "{'descr': '|S4', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (2,), }\n",
    "{'descr': [('a', '<f4'), ('b', '<f4')], 'fortran_order': False, 'shape': (2,), }\n",
    "{'descr': '<f3', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '<f0', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '<f99999999999999999999', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '<', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '<é4', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': 7, 'fortran_order': False, 'shape': (4,), }\n",
    "{'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '<f4', 'shape': (4,), }\n",
    "{'descr': '<f4', 'fortran_order': False, }\n",
    "{'descr': '<f4', 'descr': '<i4', 'fortran_order': False, 'shape': (4,), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'more': 1, }\n",
    "{'descr': '<f4', 'fortran_order': 0, 'shape': (4,), }\n",
    "{'descr': '<f4', 'fortran_order': None, 'shape': (4,), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 0), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4.0,), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': ('4',), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': 4, }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': [4], }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4L,), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775807), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), } # and more\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), ",
    "{}\n",
    "",
    "not a dictionary\n",
    "__import__('os').system('true')\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2 + 2,), }\n",
];

fn npz_rows() -> Vec<(String, Vec<u8>)> {
    let data: Vec<u8> = (0..16).collect();
    let mut rows: Vec<(String, Vec<u8>)> = HEADERS
        .iter()
        .map(|header| (header.trim_end().to_string(), zip(&[("x.npy", &npy([1, 0], header, &data))])))
        .collect();
    let good = npy([1, 0], HEADERS[0], &data);
    for version in [[0, 0], [1, 1], [2, 0], [3, 0], [4, 0], [255, 255]] {
        let name = format!("version {}.{}", version[0], version[1]);
        rows.push((name, zip(&[("x.npy", &npy(version, HEADERS[0], &data))])));
    }
    let of_size = |dims: &str| format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({dims}), }}\n");
    let nested = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {}, }}", "(".repeat(5_000));
    let long = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }}{}\n", " ".repeat(20_000));
    let dims = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", "1, ".repeat(200));
    for (name, bytes) in [
        ("no member", zip(&[])),
        ("a member of nothing", zip(&[("x.npy", b"")])),
        ("a member that is no array", zip(&[("x.npy", b"hello"), ("y.npy", &good)])),
        ("a member of another ending", zip(&[("x.txt", b"hello"), ("y.npy", &good)])),
        ("a member without a name", zip(&[(".npy", &good)])),
        ("a member in a folder", zip(&[("a/b.npy", &good)])),
        ("a member above the folder", zip(&[("../../evil.npy", &good)])),
        ("a member at the root", zip(&[("/etc/evil.npy", &good)])),
        ("a member with a backslash", zip(&[("a\\b.npy", &good)])),
        ("a member with a null", zip(&[("a\0b.npy", &good)])),
        ("a member with a line end", zip(&[("a\nb.npy", &good)])),
        ("a member of 10,000 letters", zip(&[(&("x".repeat(10_000) + ".npy"), &good)])),
        ("names that differ by case", zip(&[("x.npy", &good), ("X.npy", &good)])),
        ("a header of 20,000 bytes", zip(&[("x.npy", &npy([1, 0], &long, &data))])),
        ("5,000 brackets", zip(&[("x.npy", &npy([1, 0], &nested, &data))])),
        ("200 dims", zip(&[("x.npy", &npy([1, 0], &dims, &[0; 4]))])),
        ("cut in the magic", zip(&[("x.npy", &good[..4])])),
        ("cut in the length", zip(&[("x.npy", &good[..9])])),
        ("cut in the header", zip(&[("x.npy", &good[..30])])),
        ("cut in the data", zip(&[("x.npy", &good[..good.len() - 1])])),
        ("a byte too many", zip(&[("x.npy", &[&good[..], &[0]].concat())])),
        ("a length beyond the file", zip(&[("x.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{")])),
        ("an .npy that stands alone", good.clone()),
        ("half of an archive", {
            let whole = zip(&[("x.npy", &good)]);
            whole[..whole.len() / 2].to_vec()
        }),
        ("an archive without its end", {
            let whole = zip(&[("x.npy", &good)]);
            whole[..whole.len() - 22].to_vec()
        }),
        ("an archive behind junk", [b"junk".to_vec(), zip(&[("x.npy", &good)])].concat()),
        ("an archive before junk", [zip(&[("x.npy", &good)]), vec![0; 100]].concat()),
        ("a directory that says 65,535 members", {
            let mut whole = zip(&[("x.npy", &good)]);
            let at = whole.len() - 22;
            whole[at + 8..at + 12].fill(0xff);
            whole
        }),
        ("a flipped bit in the data", {
            let mut whole = zip(&[("x.npy", &good)]);
            whole[50] ^= 1;
            whole
        }),
        ("a decompression bomb", zip(&[("x.npy", &npy([1, 0], HEADERS[0], &vec![0; 1 << 24]))])),
        ("2 GiB in little, packed", zip(&[("x.npy", &npy([1, 0], &of_size("536870912,"), &vec![0; 1 << 20]))])),
        ("2 GiB in little, of three axes", zip(&[("x.npy", &npy([1, 0], &of_size("1024, 1024, 512"), &[0; 64]))])),
        ("1 TiB in little, packed", zip(&[("x.npy", &npy([1, 0], &of_size("274877906944,"), &vec![0; 1 << 20]))])),
        ("1 GiB in little, packed", zip(&[("x.npy", &npy([1, 0], &of_size("268435456,"), &[0; 64]))])),
        ("nothing at all", vec![]),
        ("PK and no more", b"PK\x03\x04".to_vec()),
    ] {
        rows.push((name.to_string(), bytes));
    }
    rows
}

pub fn rows() -> Vec<Row> {
    let csv = CSV.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec()));
    let csv = csv.map(|(name, bytes)| Row { area: "csv", name, file: "a.csv", bytes, read: read_csv });
    let idx =
        idx_rows().into_iter().map(|(name, bytes)| Row { area: "idx", name, file: "a.idx", bytes, read: read_idx });
    let npz =
        npz_rows().into_iter().map(|(name, bytes)| Row { area: "npz", name, file: "a.npz", bytes, read: read_npz });
    csv.chain(idx).chain(npz).collect()
}
