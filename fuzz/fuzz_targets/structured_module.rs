//! Messages of modules whose instructions are drawn: an error, or a module. One that verifies encodes to bytes that decode, and
//! encode to those bytes again.
#![no_main]

use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::verify;
use bf16scope_fuzz::structured::{self, Draw};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(module) = decode::from_bytes(&structured::module(&mut Draw(bytes))) else { return };
    if verify(&module).is_err() {
        return;
    }
    let encoded = encode::to_bytes(&module).expect("a verified module encodes");
    let again = decode::from_bytes(&encoded).expect("what was encoded decodes");
    assert_eq!(encode::to_bytes(&again).expect("it encodes once more"), encoded);
});
