//! Any bytes as a checkpoint: an error that prints, or a checkpoint, which is written as those very bytes. The hash is put
//! right first where there is one, for no fuzzer finds a hash.
#![no_main]

use std::path::Path;

use bf16scope::train::checkpoint::Checkpoint;
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};

/// The text before the hash in the header.
const KEY: &[u8] = br#"\"sha256\":\""#;

/// The bytes with the hash that they should have.
fn hashed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = bytes.windows(KEY.len()).position(|window| window == KEY).map(|at| at + KEY.len());
    let Some(at) = at.filter(|at| at + 64 <= bytes.len()) else { return bytes };
    bytes[at..at + 64].fill(b'0');
    let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    bytes[at..at + 64].copy_from_slice(hash.as_bytes());
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzz.safetensors");
    let _ = Checkpoint::from_bytes(path, bytes).map_err(|error| error.to_string());
    match Checkpoint::from_bytes(path, &hashed(bytes)) {
        Err(error) => drop(error.to_string()),
        Ok(checkpoint) => {
            let written = checkpoint.to_bytes(path).unwrap_or_else(|error| panic!("read but not written: {error}"));
            let again = Checkpoint::from_bytes(path, &written).unwrap_or_else(|error| panic!("written but not read: {error}"));
            assert!(again == checkpoint, "written and read it is another");
        }
    }
});
