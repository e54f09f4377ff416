//! Any bytes as a Parquet file: an error that prints, or records, each of which is an error or values.
#![no_main]

use bf16scope::data::records::Parquet;
use bf16scope_fuzz::look_at;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.parquet");
    std::fs::write(&path, bytes).expect("it is writable");
    // Rows are unpacked into a cache.
    match Parquet::open(&[path], Some(&folder.path().join("cache"))) {
        Ok(records) => look_at(&records),
        Err(error) => drop(error.to_string()),
    }
});
