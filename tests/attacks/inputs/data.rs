//! Data sets with damaged rows, or rows that do not match the experiment.

use std::io::Write as _;
use std::time::Instant;

use bf16scope::data::{Arrays, Feature, Loader, Source, csv};
use bf16scope::hlo::DType;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::words;
use crate::door::Folder;
use crate::examples;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn utf16(text: &str) -> Vec<u8> {
    [0xFEFF].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
}

/// Reads examples of two features, in three classes; an error comes back in words, without the folder.
fn read(bytes: &[u8]) -> Result<Arrays, String> {
    let folder = Folder::new();
    folder.write("rows.csv", bytes);
    let path = folder.path("rows.csv");
    let labels = Feature::exact("labels", DType::S32, []).below(3).label();
    let place = format!("{}/", folder.path("").display()).replace("//", "/");
    csv::read_scaled(&path, &[Feature::compute("images", [2]), labels], 2.0)
        .map_err(|error| words(&error).replace(&place, ""))
}

#[test]
fn rows_that_are_none_are_named() {
    let wide = format!("1,{},0\n", "9".repeat(400));
    let cases: [(&[u8], &str); 42] = [
        (b"1,2\n", "rows.csv:1: 2 columns; expected 3: 2 of `images`, 1 of `labels`"),
        (b"1,2,0,\n", "rows.csv:1: 4 columns"),
        (b"1,2,0,1\n", "rows.csv:1: 4 columns"),
        (b"1;2;0\n", "rows.csv:1: 1 column;"),
        (b"1\t2\t0\n", "rows.csv:1: 1 column;"),
        (b"1 2 0\n", "rows.csv:1: 1 column;"),
        (b"x,y,label\n1,2,0\n", "rows.csv:1: a header, which begins with `x`; expected numbers from the first line on"),
        (b"\"x\",\"y\",\"label\"\n", "rows.csv:1: a header, which begins with `x`"),
        (b"# made by hand\n1,2,0\n", "rows.csv:1: 1 column;"),
        (b"1,2,0\n1,,0\n", "rows.csv:2: column 2, of `images`, is ``"),
        (b"1,2,0\n1,x,0\n", "rows.csv:2: column 2, of `images`, is `x`"),
        (b"1,2,0\n1,nan,0\n", "rows.csv:2: column 2, of `images`, is `nan`"),
        (b"1,2,0\n1,NaN,0\n", "rows.csv:2: column 2, of `images`, is `NaN`"),
        (b"1,2,0\n1,inf,0\n", "rows.csv:2: column 2, of `images`, is `inf`"),
        (b"1,2,0\n1,-Infinity,0\n", "rows.csv:2: column 2, of `images`, is `-Infinity`"),
        (b"1,2,0\n1,1e39,0\n", "rows.csv:2: column 2, of `images`, is `1e39`"),
        (b"1,2,0\n1,-1e400,0\n", "rows.csv:2: column 2, of `images`, is `-1e400`"),
        (wide.as_bytes(), "rows.csv:1: column 2, of `images`, is `999"),
        // Finite as it stands there, but not times two.
        (
            b"1,3e38,0\n",
            "rows.csv:1: column 2 is 300000000000000000000000000000000000000, which times the scale 2 is not a finite number\nhelp: make `scale` smaller",
        ),
        (b"1,-2e38,0\n", "which times the scale 2 is not a finite number"),
        (b"1,0x10,0\n", "rows.csv:1: column 2, of `images`, is `0x10`"),
        (b"1,1_000,0\n", "rows.csv:1: column 2, of `images`, is `1_000`"),
        (b"1,2,3\n", "rows.csv:1: column 3, of `labels`, is `3`; expected a whole number from 0 to 2"),
        (b"1,2,-1\n", "rows.csv:1: column 3, of `labels`, is `-1`"),
        (b"1,2,1.0\n", "rows.csv:1: column 3, of `labels`, is `1.0`"),
        (b"1,2,1e0\n", "rows.csv:1: column 3, of `labels`, is `1e0`"),
        (b"1,2,\n", "rows.csv:1: column 3, of `labels`, is ``"),
        (b"1,2,cat\n", "rows.csv:1: column 3, of `labels`, is `cat`"),
        (b"1,2,4294967296\n", "rows.csv:1: column 3, of `labels`, is `4294967296`"),
        (b"1,2,99999999999999999999\n", "rows.csv:1: column 3, of `labels`, is `99999999999999999999`"),
        (b"", "rows.csv: no rows"),
        (b"\n \n\t\r\n", "rows.csv: no rows"),
        (b"\xEF\xBB\xBF", "rows.csv: no rows"),
        (b"1,2,0\n1,2\0,0\n", "rows.csv:2: column 2, of `images`, is `2\0`"),
        (b"\0\0\0\0", "rows.csv:1: 1 column;"),
        (b"1,2,0\n1,\xFF,0\n", "rows.csv:2: cannot read on from here: invalid utf-8 sequence"),
        (b"\x1F\x8B", "the gzip stream ends early"),
        (b"\x1F\x8B\x08\x00 no gzip at all", "rows.csv:1: cannot read on from here"),
        (b"\x1F\x8B\x09\x00\x00\x00\x00\x00\x00\x00", "rows.csv:1: cannot read on from here"),
        (b"PK\x03\x04 a zip archive", "rows.csv:1: 1 column;"),
        (b"<html><body>404, not found</body></html>\n", "rows.csv:1: 2 columns"),
        (b"1,2,0\r1,2,0\r", "rows.csv:1: its lines end in carriage returns alone"),
    ];
    let mut others = Vec::new();
    for (bytes, expected) in cases {
        let error = read(bytes).expect_err(expected);
        if !error.contains(expected) {
            others.push(format!("{:?}: expected {expected}, not\n{error}", String::from_utf8_lossy(bytes)));
        }
    }
    assert!(others.is_empty(), "{}", others.join("\n"));
    let error = read(&utf16("1,2,0\n")).unwrap_err();
    assert!(error.starts_with("rows.csv: text in UTF-16; expected UTF-8\nhelp: write it in UTF-8: "), "{error}");
}

#[test]
fn rows_written_in_other_ways_are_read() {
    let expected = read(b"1,2,0\n-3,0.5,2\n").unwrap();
    for text in [
        &b"\xEF\xBB\xBF1,2,0\n-3,0.5,2\n"[..],
        b"1,2,0\r\n-3,0.5,2\r\n",
        b"1,2,0\n\n\n-3,0.5,2",
        b" 1 , 2 , 0 \n\t-3,5e-1, 2\n",
        b"+1,2.,+0\n-3.0,.5,02\n",
        &gzip(b"1,2,0\n-3,0.5,2\n"),
        &[gzip(b"1,2,0\n"), gzip(b""), gzip(b"-3,0.5,2\n")].concat(),
    ] {
        let fingerprint = read(text).map(|arrays| arrays.fingerprint());
        assert_eq!(fingerprint, Ok(expected.fingerprint()), "{:?}", String::from_utf8_lossy(text));
    }
    // One line is a data set; splitting it is what fails.
    let one = read(b"1,2,0").unwrap();
    assert_eq!(
        one.split_tail(1).unwrap_err().to_string(),
        "cannot keep 1 examples for testing; the data set has 1, and one must be left to train on"
    );
}

#[test]
fn every_way_to_damage_a_gzip_stream_is_noticed() {
    let text: String = (0..100).map(|row| format!("{row},{},{}\n", row * 7, row % 3)).collect();
    let whole = gzip(text.as_bytes());
    let expected = read(&whole).unwrap();
    // The time, the system and flags of the header say nothing about the rows; everything else does.
    for at in 0..whole.len() {
        for bit in [0, 3, 7] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            match read(&damaged) {
                Err(error) => assert!(error.starts_with("rows.csv"), "byte {at}, bit {bit}: {error}"),
                Ok(arrays) => assert!(
                    arrays.fingerprint() == expected.fingerprint() && (3..10).contains(&at),
                    "byte {at}, bit {bit}"
                ),
            }
        }
    }
}

#[test]
fn a_shift_that_leaves_nothing_of_an_image_is_refused() {
    let images = examples::images(vec![1.0; 24], &[3, 4, 1], vec![0; 2]);
    let features = [Feature::compute("images", [3, 4, 1])];
    let shifted = |pixels| Loader::new(&images, &features, DType::F32, 1, 0).unwrap().shifted(pixels).map(drop);
    shifted(2).unwrap();
    for pixels in [3, 4, u32::MAX] {
        assert_eq!(
            shifted(pixels).unwrap_err().to_string(),
            format!(
                "images of 3×4 pixels cannot be shifted by up to {pixels}: some would be all 0\nhelp: set `shift` to less \
                 than 3, or to 0"
            )
        );
    }
}

#[test]
fn a_row_without_an_end_takes_its_bound_of_memory_and_no_longer() {
    let began = Instant::now();
    // 128 MiB of digits in 128 KiB.
    let error = read(&gzip(&vec![b'1'; 128 << 20])).unwrap_err();
    assert!(error.starts_with("rows.csv:1: a row of more than 67108864 bytes"), "{error}");
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
}
