//! Any bytes as the manifest of a package, beside two files: an error that prints, or a manifest of files in the folder.
#![no_main]

use bf16scope::train::package::{MANIFEST, Manifest};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The seeds name these two with their sizes and hashes.
    for (name, content) in [("program.hlo.pb", &b"program"[..]), ("variables.npz", &b"variables"[..])] {
        std::fs::write(folder.path().join(name), content).expect("it is writable");
    }
    std::fs::write(folder.path().join(MANIFEST), bytes).expect("it is writable");
    match Manifest::read(folder.path()) {
        Ok(manifest) => {
            for name in [&manifest.program.file, &manifest.variables.file] {
                assert!(folder.path().join(name).is_file() && !name.contains(['/', '\\']), "{name:?}");
            }
        }
        Err(error) => drop(error.to_string()),
    }
});
