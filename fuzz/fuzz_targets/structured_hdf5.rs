//! HDF5 whose form is right and whose content is drawn: every array is an error, which prints, or as
//! many bytes as its entry says.
#![no_main]

use bf16scope_fuzz::look_at_weights;
use bf16scope_fuzz::structured::{self, Draw};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a temporary folder");
    let path = folder.path().join("w.h5");
    std::fs::write(&path, structured::hdf5(&mut Draw(bytes))).expect("it is writable");
    look_at_weights(&path);
});
