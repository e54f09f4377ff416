//! Any bytes as a file of weights, of whatever format they begin as; and as a bundle of TensorFlow, an index and a data file.
//! Every array is looked at: an error, which prints, or as many bytes as its entry says. Checksums of bundles are not
//! compared here, for no fuzzer finds one.
#![no_main]

use std::path::Path;

use bf16scope::weights::{self, WeightsDType, WeightsFile};
use libfuzzer_sys::fuzz_target;

fn look(path: &Path) {
    let Ok(file) = weights::open(path).map_err(|error| error.to_string()) else { return };
    let _ = file.check().map_err(|error| error.to_string());
    for entry in file.entries() {
        let looked = file.look(&entry.name).map_err(|error| error.to_string());
        if let (Ok(looked), WeightsDType::Array(_)) = (looked, entry.dtype) {
            check(&file, &entry.name, entry.n_bytes, looked.n_not_finite);
        }
    }
}

fn check(file: &WeightsFile, name: &str, n_bytes: u64, n_not_finite: u64) {
    // What was looked at is read, too.
    let literal = file.read(name).unwrap_or_else(|error| panic!("looked at but not read: {error}"));
    let bf16scope::hlo::Literal::Array { shape, bytes } = literal else { panic!("{name} is no array") };
    assert_eq!(bytes.len() as u64, n_bytes);
    assert!(n_not_finite as i64 <= shape.n_elements());
}

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    // The first byte says whether it is one file or two.
    match bytes {
        [0, low, high, rest @ ..] => {
            let n = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
            std::fs::write(at("x.index"), &rest[..n]).expect("it is writable");
            std::fs::write(at("x.data-00000-of-00001"), &rest[n..]).expect("it is writable");
            look(&at("x"));
        }
        bytes => {
            std::fs::write(at("x"), bytes).expect("it is writable");
            look(&at("x"));
        }
    }
});
