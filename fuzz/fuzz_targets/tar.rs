//! Any bytes as a WebDataset's tar, as they are and with the checksums of its headers put right: an error that prints, or
//! records, each of which is an error or values.
#![no_main]

use bf16scope::data::records::Tars;
use bf16scope_fuzz::look_at;
use libfuzzer_sys::fuzz_target;

/// A header's bytes, and where its checksum stands: six octal digits, a null and a space.
const BLOCK: usize = 512;
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// The same with the checksum of each block that could be a header: a fuzzer finds none.
fn summed(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for block in out.chunks_exact_mut(BLOCK).filter(|block| block[257..262] == *b"ustar") {
        block[CHECKSUM].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    out
}

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in [("a.tar", bytes.to_vec()), ("b.tar", summed(bytes)), ("a.tar.gz", bytes.to_vec())] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("it is writable");
        match Tars::open(&[path], Some(folder.path())) {
            Ok(records) => look_at(&records),
            Err(error) => drop(error.to_string()),
        }
    }
});
