//! Any bytes: an error, or a module. A module that verifies encodes to bytes that decode to that very module, up to
//! layouts: a proto that leaves them out means the row-major ones, and the encoder writes them.
#![no_main]

use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::verify;
use bf16scope_fuzz::with_layouts;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(module) = decode::from_bytes(bytes) else { return };
    if verify(&module).is_err() {
        return;
    }
    let encoded = encode::to_bytes(&module).expect("a verified module encodes");
    let again = decode::from_bytes(&encoded).expect("what was encoded decodes");
    let (module, again) = (with_layouts(module), with_layouts(again));
    assert!(again == module, "encoded and decoded it is another module:\n{module:#?}\n{again:#?}");
});
