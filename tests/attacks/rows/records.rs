//! TFRecord files and tars.

use super::Row;
use bf16scope::data::records::{Records, Tars, TfRecords};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use std::io::Write as _;
use std::path::Path;

fn said(records: &dyn Records) -> Result<String, String> {
    let mut all = Vec::new();
    for index in 0..records.n_records().min(4) {
        match records.values(index, None) {
            Ok(values) => {
                let text = format!("{values:?}");
                let cut = text.char_indices().nth(200).map_or(text.len(), |(at, _)| at);
                all.push(text[..cut].to_string());
            }
            Err(error) => all.push(format!("record {index}: {error}")),
        }
    }
    Ok(format!("{} records: {}", records.n_records(), all.join("; ")))
}

fn tfrecord(path: &Path) -> Result<String, String> {
    let cache = path.with_file_name("cache");
    let records = TfRecords::open(&[path.to_path_buf()], Some(&cache)).map_err(|error| error.to_string())?;
    said(&records)
}

fn tars(path: &Path) -> Result<String, String> {
    let cache = path.with_file_name("cache");
    let records = Tars::open(&[path.to_path_buf()], Some(&cache)).map_err(|error| error.to_string())?;
    said(&records)
}

fn crc(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// A record whose length and checksums are right.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    [&length[..], &crc(&length), bytes, &crc(bytes)].concat()
}

/// A record with a wrong length, and that length's checksum.
fn of_length(length: u64, bytes: &[u8]) -> Vec<u8> {
    let length = length.to_le_bytes();
    [&length[..], &crc(&length), bytes, &crc(bytes)].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::best());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut out = ZlibEncoder::new(Vec::new(), Compression::best());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// Field `number` of protocol buffers, of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(bytes);
    out
}

/// A feature: kind 1 is bytes, 2 floats, 3 whole numbers.
fn feature(name: &str, kind: u8, list: &[u8]) -> Vec<u8> {
    field(1, &[field(1, name.as_bytes()), field(2, &field(kind, list))].concat())
}

fn example(features: &[Vec<u8>]) -> Vec<u8> {
    field(1, &features.concat())
}

fn tfrecord_rows() -> Vec<(&'static str, Vec<u8>)> {
    let ints = feature("y", 3, &field(1, &[1, 2, 3]));
    let good = example(&[ints.clone(), feature("x", 2, &field(1, &1.5f32.to_le_bytes()))]);
    let whole = framed(&good);
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let record = |body: Vec<u8>| framed(&body);
    vec![
        ("an example", whole.clone()),
        ("nothing", vec![]),
        ("a record of nothing", framed(b"")),
        ("two examples", [whole.clone(), whole.clone()].concat()),
        ("a flipped bit in the length", flipped(0)),
        ("a flipped bit in the length's checksum", flipped(9)),
        ("a flipped bit in the data", flipped(14)),
        ("a flipped bit in the data's checksum", flipped(whole.len() - 1)),
        ("cut in the length", whole[..5].to_vec()),
        ("cut in the length's checksum", whole[..10].to_vec()),
        ("cut in the data", whole[..whole.len() - 8].to_vec()),
        ("cut in the data's checksum", whole[..whole.len() - 2].to_vec()),
        ("cut in the second", [&whole[..], &whole[..20]].concat()),
        ("a byte behind", [&whole[..], &[0]].concat()),
        ("zeros behind", [&whole[..], &[0; 64]].concat()),
        ("a length of 2^64 − 1", of_length(u64::MAX, &good)),
        ("a length of 2^63", of_length(1 << 63, &good)),
        ("a length that wraps the end", of_length(u64::MAX - 11, &good)),
        ("a length of a tebibyte", of_length(1 << 40, &good)),
        ("a length that is one too few", of_length(good.len() as u64 - 1, &good)),
        ("a length that is one too many", of_length(good.len() as u64 + 1, &good)),
        ("text", b"not a record at all, but a line of text\n".to_vec()),
        ("JSON", b"{\"a\": [1, 2, 3], \"b\": {\"c\": null}}".to_vec()),
        ("a record of text", framed(b"hello")),
        ("a record of zeros", framed(&[0; 40])),
        ("a record of ones", framed(&[0xff; 40])),
        ("an example without features", framed(&field(1, b""))),
        ("a feature without a name", record(example(&[feature("", 3, &field(1, &[1]))]))),
        ("a feature without a kind", record(example(&[field(1, &[field(1, b"y"), field(2, b"")].concat())]))),
        ("a feature without a value", record(example(&[field(1, &field(1, b"y"))]))),
        ("a feature twice", record(example(&[ints.clone(), feature("y", 3, &field(1, &[9]))]))),
        ("a feature of an empty list", record(example(&[feature("y", 3, b"")]))),
        ("a kind that is unknown", record(example(&[feature("y", 7, &field(1, &[1]))]))),
        ("two kinds of one feature", {
            let both = [field(2, &field(1, &1f32.to_le_bytes())), field(3, &field(1, &[7]))].concat();
            record(example(&[field(1, &[field(1, b"y"), field(2, &both)].concat())]))
        }),
        ("floats of three bytes", record(example(&[feature("x", 2, &field(1, &[0, 0, 0]))]))),
        ("floats of five bytes", record(example(&[feature("x", 2, &field(1, &[0, 0, 0, 0, 0]))]))),
        ("a whole number cut", record(example(&[feature("y", 3, &field(1, &[0x80]))]))),
        ("a whole number of eleven bytes", record(example(&[feature("y", 3, &field(1, &[0xff; 11]))]))),
        (
            "the least whole number",
            record(example(&[feature("y", 3, &field(1, &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1]))])),
        ),
        ("whole numbers that are not packed", record(example(&[feature("y", 3, &[8, 5, 8, 6])]))),
        (
            "floats that are not packed",
            record(example(&[feature("x", 2, &[&[13u8][..], &2f32.to_le_bytes()].concat())])),
        ),
        (
            "a name that is not UTF-8",
            record(example(&[field(1, &[field(1, &[0xff, 0xfe]), field(2, &field(3, &field(1, &[1])))].concat())])),
        ),
        ("a name of 10,000 letters", record(example(&[feature(&"n".repeat(10_000), 3, &field(1, &[1]))]))),
        ("a length of a field beyond the record", framed(&[0x0a, 0x7f, 0x01])),
        ("a length of a field of 2^64", framed(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01])),
        ("a group that does not end", framed(&[0x0b, 0x0b, 0x0b])),
        ("200 groups in each other", framed(&[0x0b; 200])),
        ("a wire type that is unknown", framed(&[0x0f, 1])),
        ("field 0", framed(&[0x02, 0])),
        ("a field from the future", framed(&[good.clone(), field(9, b"later")].concat())),
        ("NaN", record(example(&[feature("x", 2, &field(1, &f32::NAN.to_le_bytes()))]))),
        ("gzip", gzip(&whole)),
        ("gzip of nothing", gzip(b"")),
        ("gzip cut", gzip(&whole)[..20].to_vec()),
        ("gzip with a second stream", [gzip(&whole), gzip(&whole)].concat()),
        ("gzip with junk behind", [gzip(&whole), b"junk".to_vec()].concat()),
        ("gzip in gzip", gzip(&gzip(&whole))),
        ("gzip of text", gzip(b"hello, this is no record")),
        ("zlib", zlib(&whole)),
        ("zlib cut", zlib(&whole)[..12].to_vec()),
        ("zlib with a second stream", [zlib(&whole), zlib(&whole)].concat()),
        ("zlib with junk behind", [zlib(&whole), b"junk".to_vec()].concat()),
        ("a ZIP archive", b"PK\x03\x04\x14\0\0\0\0\0".to_vec()),
        ("a tar", tar_of(&[("a.cls", b"1")])),
        ("a Parquet file's magic", b"PAR1PAR1PAR1".to_vec()),
    ]
}

/// A header with these fields of text, and its checksum.
fn header(name: &[u8], size: &[u8], kind: u8) -> Vec<u8> {
    let mut block = vec![0u8; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000644");
    block[124..124 + size.len()].copy_from_slice(size);
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    summed(block)
}

fn summed(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out.resize(bytes.len().next_multiple_of(512), 0);
    out
}

fn file(name: &str, bytes: &[u8]) -> Vec<u8> {
    [header(name.as_bytes(), format!("{:011o}", bytes.len()).as_bytes(), b'0'), padded(bytes)].concat()
}

fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let files: Vec<u8> = files.iter().flat_map(|(name, bytes)| file(name, bytes)).collect();
    [files, vec![0; 1024]].concat()
}

fn tar_rows() -> Vec<(&'static str, Vec<u8>)> {
    let good = tar_of(&[("a.cls", b"1"), ("a.txt", b"one"), ("b.cls", b"2"), ("b.txt", b"two")]);
    let tar = |parts: &[Vec<u8>]| [parts.concat(), vec![0; 1024]].concat();
    let with = |at: usize, bytes: &[u8]| {
        let mut block = header(b"a.cls", b"00000000001", b'0');
        block[at..at + bytes.len()].copy_from_slice(bytes);
        tar(&[summed(block), padded(b"1")])
    };
    vec![
        ("two examples", good.clone()),
        ("nothing", vec![]),
        ("an end alone", vec![0; 1024]),
        ("half an end", [&good[..good.len() - 1024], &[0; 512]].concat()),
        ("no end", good[..good.len() - 1024].to_vec()),
        ("one byte", vec![7]),
        ("cut in a header", good[..300].to_vec()),
        ("cut in a file", good[..513].to_vec()),
        ("a wrong checksum", {
            let mut bytes = good.clone();
            bytes[148] ^= 1;
            bytes
        }),
        ("junk behind the end", [&good[..], b"junk"].concat()),
        ("another tar behind the end", [&good[..], &good[..]].concat()),
        ("text", b"this is no tar".repeat(80)),
        ("a file without an ending", tar_of(&[("a", b"1")])),
        ("a file without a stem", tar_of(&[(".cls", b"1")])),
        ("a hidden file in a folder", tar_of(&[("d/.cls", b"1")])),
        ("a file of nothing", tar_of(&[("a.cls", b""), ("a.txt", b"x")])),
        ("one ending twice", tar_of(&[("a.cls", b"1"), ("a.cls", b"2")])),
        ("an example in two places", tar_of(&[("a.cls", b"1"), ("b.cls", b"2"), ("a.txt", b"x")])),
        ("a path above the folder", tar_of(&[("../../a.cls", b"1")])),
        ("a path at the root", tar_of(&[("/etc/a.cls", b"1")])),
        ("two points in the stem", tar_of(&[("a.b.c.cls", b"1")])),
        ("an ending in capitals", tar_of(&[("a.CLS", b"1")])),
        ("a class that is a word", tar_of(&[("a.cls", b"cat")])),
        ("a class with a fraction", tar_of(&[("a.cls", b"1.5")])),
        ("a class beyond 64 bits", tar_of(&[("a.cls", b"99999999999999999999")])),
        ("a class with blanks", tar_of(&[("a.cls", b" 7 \n")])),
        ("JSON that is none", tar_of(&[("a.json", b"{\"a\": ")])),
        ("JSON that is a list", tar_of(&[("a.json", b"[1, 2]")])),
        ("JSON with a number beyond f64", tar_of(&[("a.json", b"{\"a\": 1e999}")])),
        ("JSON with null", tar_of(&[("a.json", b"{\"a\": null, \"b\": 1}")])),
        ("JSON with a key twice", tar_of(&[("a.json", b"{\"a\": 1, \"a\": 2}")])),
        ("JSON of mixed lists", tar_of(&[("a.json", b"{\"a\": [1, \"x\", 2.5]}")])),
        ("JSON in JSON", tar_of(&[("a.json", b"{\"a\": {\"b\": {\"c\": 3}}}")])),
        ("JSON of 10,000 brackets", tar_of(&[("a.json", "[".repeat(10_000).as_bytes())])),
        ("an .npy that is none", tar_of(&[("a.npy", b"hello")])),
        ("a size that is no number", with(124, b"abcdefghijk")),
        ("a size of nothing", with(124, &[0; 12])),
        ("a size below 0", with(124, b"-0000000001")),
        ("a size of 8^11 − 1", with(124, b"77777777777")),
        ("a size in base 256 of 2^62", with(124, &[0x80, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0])),
        (
            "a size in base 256 beyond 64 bits",
            with(124, &[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ),
        ("a size in base 256 below 0", with(124, &[0xff; 12])),
        ("a size beyond the file", with(124, b"00000100000")),
        ("a folder", tar(&[header(b"d/", b"00000000000", b'5'), file("d/a.cls", b"1")])),
        ("a hard link", tar(&[file("a.cls", b"1"), header(b"b.cls", b"00000000000", b'1')])),
        ("a symbolic link", tar(&[file("a.cls", b"1"), header(b"b.cls", b"00000000000", b'2')])),
        ("a device", tar(&[file("a.cls", b"1"), header(b"b.cls", b"00000000000", b'3')])),
        ("a FIFO", tar(&[file("a.cls", b"1"), header(b"b.cls", b"00000000000", b'6')])),
        ("a sparse file", tar(&[header(b"a.cls", b"00000000001", b'S'), padded(b"1")])),
        ("a kind that is unknown", tar(&[header(b"a.cls", b"00000000001", b'Z'), padded(b"1")])),
        ("a long name without its file", tar(&[header(b"././@LongLink", b"00000000004", b'L'), padded(b"abcd")])),
        (
            "a long name of no UTF-8",
            tar(&[header(b"././@LongLink", b"00000000006", b'L'), padded(b"\xff\xfe.cls"), file("x", b"1")]),
        ),
        (
            "an extended header that is damaged",
            tar(&[header(b"x", b"00000000009", b'x'), padded(b"99 path=a"), file("a.cls", b"1")]),
        ),
        (
            "an extended header with another size",
            tar(&[header(b"x", b"00000000011", b'x'), padded(b"11 size=77\n"), file("a.cls", b"1")]),
        ),
        (
            "an extended header with another path",
            tar(&[header(b"x", b"00000000017", b'x'), padded(b"15 path=../e.cls\n"), file("a.cls", b"1")]),
        ),
        ("a name that is not UTF-8", tar(&[header(b"\xff\xfe.cls", b"00000000001", b'0'), padded(b"1")])),
        ("a name with a line end", tar(&[file("a\nb.cls", b"1")])),
        ("gzip under a tar's name", gzip(&good)),
        ("a TFRecord file", framed(&example(&[feature("y", 3, &field(1, &[1]))]))),
    ]
}

pub fn rows() -> Vec<Row> {
    let row = |area: &'static str, file: &'static str, read: fn(&Path) -> Result<String, String>| {
        move |(name, bytes): (&'static str, Vec<u8>)| Row { area, name: name.to_string(), file, bytes, read }
    };
    let records = tfrecord_rows().into_iter().map(row("tfrecord", "a.tfrecord", tfrecord));
    let packed = [("gzip that holds text", gzip(b"no tar")), ("gzip that is none", b"\x1f\x8b\x08".to_vec())];
    let gz = packed.into_iter().map(row("tar.gz", "a.tar.gz", tars));
    records.chain(tar_rows().into_iter().map(row("tar", "a.tar", tars))).chain(gz).collect()
}
