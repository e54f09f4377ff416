//! Tensor bundles whose index has the right form and drawn content: every array is an error, which prints, or as
//! many bytes as its entry says.
#![no_main]

use bf16scope_fuzz::look_at_weights;
use bf16scope_fuzz::structured::{self, Draw};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a temporary folder");
    let path = folder.path().join("b.index");
    let mut draw = Draw(bytes);
    std::fs::write(&path, structured::bundle_index(&mut draw)).expect("it is writable");
    let data = [draw.0, &[0; 4096]].concat();
    std::fs::write(folder.path().join("b.data-00000-of-00001"), data).expect("it is writable");
    look_at_weights(&path);
});
