//! Any bytes as an image, whole and in a window, as a TFRecord file, and as a record whose checksums are right: an error that prints, or values.
#![no_main]

use std::io::Write as _;

use bf16scope::data::image::{self, Buffers, DctMethod, Image, Window};
use bf16scope::data::records::{Records as _, TfRecords};
use bf16scope::files::framing;
use libfuzzer_sys::fuzz_target;

fn read(bytes: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("room for it");
    let records = match TfRecords::open(&[file.path().to_path_buf()], None) {
        Ok(records) => records,
        Err(error) => return drop(error.to_string()),
    };
    for index in 0..records.n_records().min(8) {
        match records.values(index, None) {
            Ok(values) => drop(format!("{values:?}")),
            Err(error) => drop(error.to_string()),
        }
    }
}

/// The upper half of an image that can be decoded: the same pixels, whatever is below.
fn window(bytes: &[u8], whole: &Image, dct: DctMethod) {
    let half = Window { y: 0, x: 0, height: whole.height.div_ceil(2), width: whole.width };
    let decoded = image::decode_window(bytes, whole.channels, dct, |_| half, &mut Buffers::default());
    let (upper, window) = decoded.expect("the whole image was decoded");
    let n_bytes = half.height * half.width * whole.channels;
    assert!(window == half && upper.pixels[..n_bytes] == whole.pixels[..n_bytes]);
}

fuzz_target!(|bytes: &[u8]| {
    let fast = DctMethod::IntegerFast;
    for (channels, dct) in [(1, DctMethod::IntegerAccurate), (3, DctMethod::IntegerAccurate), (3, fast)] {
        match image::decode(bytes, channels, dct) {
            Ok(image) => {
                assert_eq!(image.pixels.len(), image.height * image.width * channels);
                window(bytes, &image, dct);
            }
            Err(error) => drop(error.to_string()),
        }
    }
    read(bytes);
    read(&framing::framed(bytes));
});
