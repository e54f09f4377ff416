//! Footers of Parquet whose schema is drawn: an error that prints, or records, each of which is an error or values.
#![no_main]

use bf16scope::data::records::Parquet;
use bf16scope_fuzz::look_at;
use bf16scope_fuzz::structured::{self, Draw};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a temporary folder");
    let path = folder.path().join("a.parquet");
    std::fs::write(&path, structured::parquet(&mut Draw(bytes))).expect("it is writable");
    match Parquet::open(&[path], Some(&folder.path().join("cache"))) {
        Ok(records) => look_at(&records),
        Err(error) => drop(error.to_string()),
    }
});
