//! Rows of text as arrays, and their faults.

use super::*;
use crate::Source;
use flate2::{Compression, write::GzEncoder};
use std::io::Write;

fn features() -> Vec<Feature> {
    let label = Feature::exact("label", DType::S32, []).label().below(3);
    vec![label, Feature::compute("x", [2, 1])]
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Reads bytes as a file named `rows.csv`; an error comes back as its message, without the folder.
fn read_as(bytes: &[u8], features: &[Feature], scale: f32) -> Result<Arrays, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    std::fs::write(&path, bytes).unwrap();
    read_scaled(&path, features, scale)
        .map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
}

fn message(text: &[u8]) -> String {
    read_as(text, &features(), 0.5).unwrap_err()
}

/// The numbers of each example: of `x`, then of `label`.
fn rows(arrays: &Arrays) -> Vec<(Vec<f32>, i32)> {
    let row = |idx| {
        let read = arrays.read(idx).unwrap();
        let x = read[0].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        (x, i32::from_le_bytes(read[1][..].try_into().unwrap()))
    };
    (0..arrays.n_examples()).map(row).collect()
}

#[test]
fn quotes_around_a_number_say_nothing() {
    let read = |text: &str| read_as(text.as_bytes(), &features(), 1.0).map(|arrays| rows(&arrays));
    let quoted = read("\"1\",\" 2 \",\"0\"\r\n\"3\",-4.5,\"1\"\n");
    assert_eq!(quoted.unwrap(), read("1,2,0\n3,-4.5,1\n").unwrap());
    assert!(read("\"1,2\",0\n").unwrap_err().contains("`\"1,2\"`"), "a comma is not part of a number");
    assert!(read("\",2,0\n").is_err());
}

#[test]
fn reads_plain_and_gzip() {
    let expected = vec![(vec![0.5, 1.0], 2), (vec![-2.0, 0.25], 0)];
    let texts = ["1,2,2\n-4,0.5,0\n", "1, 2 ,2\r\n\r\n-4,5e-1,0", "\u{FEFF}1,2,2\n \t\n\u{FEFF}-4,.5,+0\r\n\n"];
    for text in texts {
        for bytes in [text.as_bytes().to_vec(), gzip(text.as_bytes())] {
            let arrays = read_as(&bytes, &features(), 0.5).unwrap();
            assert_eq!(rows(&arrays), expected, "{text:?}");
            assert_eq!(arrays.arrays()[0], ArrayInfo::new("x", DType::F32, [2, 1]));
            assert_eq!(arrays.arrays()[1], ArrayInfo::new("label", DType::S32, []));
        }
    }
    // Two concatenated gzip members are one stream.
    let two = [gzip(b"1,2,2\n"), gzip(b"-4,0.5,0\n")].concat();
    assert_eq!(rows(&read_as(&two, &features(), 0.5).unwrap()), expected);
}

#[test]
fn examples_know_their_lines() {
    let arrays = read_as(b"\n1,2,0\n1,2,1\n\n\n1,2,2\n1,2,2", &features(), 1.0).unwrap();
    let lines: Vec<String> = (0..4).map(|idx| arrays.place(idx).rsplit('/').next().unwrap().to_string()).collect();
    assert_eq!(lines, ["rows.csv:2", "rows.csv:3", "rows.csv:6", "rows.csv:7"]);
}

#[test]
fn columns_know_their_sizes() {
    let arrays = read_as(b"3,200,0\n-4,0,1\n", &features(), 0.5).unwrap();
    let sizes: Vec<(u64, f32)> =
        arrays.columns("x").unwrap().into_iter().map(|column| (column.number, column.rms)).collect();
    assert_eq!(sizes, [(1, 3.125f64.sqrt() as f32), (2, 5000f64.sqrt() as f32)]);
    assert_eq!(arrays.columns("label"), None);
}

#[test]
fn exact_features_are_read_as_they_are() {
    let features = [
        Feature::exact("tokens", DType::U8, [2]),
        Feature::exact("weight", DType::F64, []),
        Feature::exact("mask", DType::Pred, []),
        Feature::compute("target", []).label(),
    ];
    let arrays = read_as(b"255,0,0.1,1,3\n", &features, 0.5).unwrap();
    assert_eq!(arrays.read(0).unwrap(), [&[255u8, 0][..], &0.1f64.to_le_bytes(), &[1], &3f32.to_le_bytes()]);
    let check = |text: &str, message: &str| assert_eq!(read_as(text.as_bytes(), &features, 0.5).unwrap_err(), message);
    check("1,256,1,1,1", "rows.csv:1: column 2, of `tokens`, is `256`; expected a whole number from 0 to 255");
    check(
        "1,25,1e999,1,1",
        "rows.csv:1: column 3, of `weight`, is `1e999`; expected a finite number\nhelp: it is beyond the range of f64, \
             whose largest number is 1.8e308",
    );
    check("1,25,1,2,1", "rows.csv:1: column 4, of `mask`, is `2`; expected 0 or 1");
    assert_eq!(
        read_as(b"1", &[Feature::exact("x", DType::BF16, [])], 1.0).unwrap_err(),
        "rows.csv: `x` is bf16, which is not read from text; expected a float for the network, f32, f64, pred or \
             integers of 8 to 64 bits"
    );
}

#[test]
fn every_bad_row_is_named() {
    let check = |text: &str, expected: &str| assert_eq!(message(text.as_bytes()), expected);
    check("1,2,0\n1,2\n", "rows.csv:2: 2 columns; expected 3: 2 of `x`, 1 of `label`");
    check("1,2,3,0\n", "rows.csv:1: 4 columns; expected 3: 2 of `x`, 1 of `label`");
    check("1,x,0\n", "rows.csv:1: column 2, of `x`, is `x`; expected a finite number");
    check(
        "1,-1e39,0\n",
        "rows.csv:1: column 2, of `x`, is `-1e39`; expected a finite number\nhelp: it is beyond the range of f32, whose \
             largest number is 3.4e38",
    );
    check("1,inf,0\n", "rows.csv:1: column 2, of `x`, is `inf`; expected a finite number");
    check("1,2,0\n\n\nnan,2,0\n", "rows.csv:4: column 1, of `x`, is `nan`; expected a finite number");
    check("1,2,0\n,2,0\n", "rows.csv:2: column 1, of `x`, is ``; expected a finite number");
    let with_comma = |column: u64, value: &str| {
        format!(
            "rows.csv:1: column {column} is `{value}`; expected a number without a comma in it\nhelp: write a point before \
                 decimals and nothing between thousands, as `1234.5`; in pandas `read_csv(FILE, decimal=',', thousands='.')`, \
                 then `to_csv(NEW)`"
        )
    };
    check("\"1,5\",2,0\n", &with_comma(1, "\"1,5\""));
    check("3,\"1.234,5\"\n", &with_comma(2, "\"1.234,5\""));
    check("3,\"1,234,567\",0\n", &with_comma(2, "\"1,234,567\""));
    check("1,\"2,0\n", "rows.csv:1: column 2, of `x`, is `\"2`; expected a finite number");
    for label in ["3", "-1", "3.0", "1.5", ""] {
        check(
            &format!("1,2,{label}\n"),
            &format!("rows.csv:1: column 3, of `label`, is `{label}`; expected a whole number from 0 to 2"),
        );
    }
    check(
        "1,2,1.0\n",
        "rows.csv:1: column 3, of `label`, is `1.0`; expected a whole number from 0 to 2\nhelp: write `1`, which \
             pandas does after `astype(int)`",
    );
    let old_mac = "rows.csv:1: its lines end in carriage returns alone, as on old Macs; expected line feeds\nhelp: write \
                       them: `tr '\\r' '\\n' < FILE > NEW`";
    check("1,2,0\r3,4,1\r", old_mac);
    check("1,2,0\r\r3,4,1", old_mac);
    for text in [&b"\xFF\xFE1\0,\0"[..], b"\xFE\xFF\x001\0,"] {
        assert_eq!(
            message(text),
            "rows.csv: text in UTF-16; expected UTF-8\nhelp: write it in UTF-8: `iconv -f UTF-16 -t UTF-8 FILE > NEW`, or \
                 in a spreadsheet save as CSV UTF-8"
        );
    }
    assert_eq!(message(&gzip(b"\xFF\xFE1\0,\0")), message(b"\xFF\xFE1\0,\0"));
    assert_eq!(message(&gzip(b"1,2,0\r3,4,1\r")), old_mac);
    // One row with such an end is read.
    assert_eq!(read_as(b"1,2,0\r", &features(), 0.5).unwrap().n_examples(), 1);
    for text in ["", "\n\n", "\u{FEFF}"] {
        let error = message(text.as_bytes());
        assert_eq!(error, "rows.csv: no rows; expected one example a line: 2 of `x`, 1 of `label`", "{text:?}");
    }
    assert_eq!(message(b"1,2,0\n1,\xFF,0\n"), "rows.csv:2: cannot read on from here");
    check(
        "x0,x1,label\n1,2,0\n",
        "rows.csv:1: a header, which begins with `x0`; expected numbers from the first line on\nhelp: say under `columns` what features are made of the columns it names, or remove it: tail -n +2",
    );
    assert_eq!(
        read_as(b"1,2e38,0\n", &features(), 4.0).unwrap_err(),
        "rows.csv:1: column 2 is 200000000000000000000000000000000000000, which times the scale 4 is not a finite \
             number\nhelp: make `scale` smaller"
    );
    assert_eq!(
        read_as(b"1,2,0\n", &features(), 0.0).unwrap_err(),
        "rows.csv: array `x` cannot be multiplied with 0; expected a finite scale other than 0"
    );
}

#[test]
fn damaged_gzip_is_named() {
    let text: String = (0..200).map(|idx| format!("{},{},{}\n", idx * 37 % 101, idx * 53 % 97, idx % 3)).collect();
    let whole = gzip(text.as_bytes());
    assert_eq!(read_as(&whole, &features(), 0.5).unwrap().n_examples(), 200);
    // Any truncation must be noticed, the trailing checksum included.
    for n_bytes in 3..whole.len() {
        let message = message(&whole[..n_bytes]);
        assert!(
            message.starts_with("rows.csv:")
                && message.ends_with(": the gzip stream ends early, at this line; copy or download the file again"),
            "{n_bytes}: {message}"
        );
    }
    let mut corrupt = whole.clone();
    let checksum_at = corrupt.len() - 8;
    corrupt[checksum_at] ^= 1;
    assert_eq!(message(&corrupt), "rows.csv:201: cannot read on from here");
}

#[test]
fn a_missing_file_is_named() {
    let error = read("/nonexistent/rows.csv", &features()).unwrap_err();
    assert_eq!(error.to_string(), "/nonexistent/rows.csv: cannot open the data file");
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), "No such file or directory (os error 2)");
}

#[test]
fn memory_and_time_are_bounded() {
    let features = features();
    let limits = Limits { text: 60, row: 20, columns: 2, empty_lines: 3 };
    let rows = |text: &str| {
        let row = CsvRow::new(Path::new("rows.csv"), &features, 1.0).unwrap();
        read_rows(text.as_bytes(), row, limits).map_err(|error| error.to_string())
    };
    let text = "1,2,0\n".repeat(10);
    assert_eq!(rows(&text).unwrap().n_examples(), 10);
    assert_eq!(
        rows(&format!("{text}\n")).unwrap_err(),
        "rows.csv: more than 60 bytes of text; expected a data set that fits in memory: split it"
    );
    assert_eq!(rows("\n\n\n1,2,0\n\r\n\n\n1,2,0").unwrap().n_examples(), 2);
    assert_eq!(
        rows("1,2,0\n\n\n \n\n").unwrap_err(),
        "rows.csv:5: more than 3 empty lines after one another; expected lines of numbers: name a CSV file, plain or gzip"
    );
    assert_eq!(
        rows("1,2,0\n1,2,0.0000000000000000000\n").unwrap_err(),
        "rows.csv:2: a row of more than 20 bytes; expected lines of numbers: name a CSV file, plain or gzip"
    );
    assert_eq!(
        rows("1").unwrap_err(),
        "rows.csv:1: 1 column; expected 3: 2 of `x`, 1 of `label`\nhelp: a comma stands between two columns"
    );
    assert_eq!(rows("1,2,0,,").unwrap_err(), "rows.csv:1: 5 columns; expected 3: 2 of `x`, 1 of `label`");
    assert_eq!(
        rows("1,2,0\n,,,,,,,,").unwrap_err(),
        "rows.csv:2: at least 9 columns; expected 3: 2 of `x`, 1 of `label`"
    );
}

#[test]
fn the_digits() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/digits.csv.gz");
    let image = Feature::compute("image", [8, 8, 1]);
    let label = Feature::exact("label", DType::S32, []).label().below(10);
    let digits = rows(&read_scaled(&path, &[image, label], 1.0 / 16.0).unwrap());
    assert_eq!(digits.len(), 1797);
    let (first, label) = &digits[0];
    assert_eq!((&first[..8], *label), (&[0.0, 0.0, 0.3125, 0.8125, 0.5625, 0.0625, 0.0, 0.0][..], 0));
}
