//! Any bytes as a program in another form: told what they are; and as StableHLO's text, which is left to XLA's converter
//! or gives a module. One that verifies is written as StableHLO again, or refused in words.
#![no_main]

use bf16scope::foreign::{FileKind, of_proto, stablehlo};
use bf16scope::hlo::verify;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A JAX export and a proto are only recognised here, not read.
    drop(format!("{:?} {:?}", FileKind::of(bytes), of_proto(bytes)));
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some(module) = stablehlo::read(text, "fuzz.mlir") else { return };
    if verify(&module).is_ok() {
        drop(stablehlo::write(&module).map_err(|error| error.to_string()));
    }
});
