//! Any bytes as a file of weights, of whatever format they begin as; and two pieces of them as what a format keeps apart: a
//! bundle's index and data, the index of a sharded model and its shard, a pickle of PyTorch and its storages, a Keras model's
//! description and its HDF5. Every array is looked at: an error, which prints, or as many bytes as its entry says. Checksums
//! of bundles are not compared here, and archives are made with right ones, for no fuzzer finds one.
#![no_main]

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use bf16scope::weights::{self, WeightsDType, WeightsFile};
use libfuzzer_sys::fuzz_target;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

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
    // Every array that was listed must be readable.
    let literal = file.read(name).unwrap_or_else(|error| panic!("looked at but not read: {error}"));
    let bf16scope::hlo::Literal::Array { shape, bytes } = literal else { panic!("{name} is no array") };
    assert_eq!(bytes.len() as u64, n_bytes);
    assert!(n_not_finite as i64 <= shape.n_elements());
}

/// An archive of these members, as they are.
fn zip(path: &Path, members: &[(&str, &[u8])]) {
    let mut zip = ZipWriter::new(File::create(path).expect("it is writable"));
    for (name, bytes) in members {
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        zip.start_file(*name, stored).expect("it is writable");
        zip.write_all(bytes).expect("it is writable");
    }
    zip.finish().expect("it is writable");
}

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    let write = |name: &str, bytes: &[u8]| std::fs::write(at(name), bytes).expect("it is writable");
    // The first byte says whether it is one file or two.
    let two = match bytes {
        [format @ 0..=3, low, high, rest @ ..] => {
            let n = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
            Some((*format, rest.split_at(n)))
        }
        _ => None,
    };
    match two {
        Some((0, (index, data))) => {
            write("x.index", index);
            write("x.data-00000-of-00001", data);
        }
        Some((1, (index, shard))) => {
            write("x", index);
            write("a.safetensors", shard);
        }
        Some((2, (pickle, storage))) => {
            zip(&at("x"), &[("a/data.pkl", pickle), ("a/data/0", storage), ("a/data/1", storage), ("a/data/2", storage)]);
        }
        Some((_, (config, weights))) => {
            zip(&at("x"), &[("config.json", config), ("model.weights.h5", weights)]);
        }
        None => write("x", bytes),
    }
    look(&at("x"));
});
