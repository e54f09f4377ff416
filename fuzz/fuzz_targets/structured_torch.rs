//! Archives of PyTorch whose pickles are drawn: every array is an error, which prints, or as
//! many bytes as its entry says.
#![no_main]

use bf16scope_fuzz::look_at_weights;
use bf16scope_fuzz::structured::{self, Draw};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a temporary folder");
    let path = folder.path().join("w.pt");
    std::fs::write(&path, structured::torch(&mut Draw(bytes))).expect("it is writable");
    look_at_weights(&path);
});
