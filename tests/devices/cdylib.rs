//! Plugins of the tests' own, which are built while they run.

use std::path::PathBuf;
use std::process::Command;

/// The library of `tests/NAME`, a crate of its own, which needs no package of a registry.
pub fn built(name: &str) -> PathBuf {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let manifest = format!("{}/tests/{name}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--offline", "--locked", "--manifest-path", &manifest, "--target-dir"])
        .arg(&target)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target.join(format!("debug/lib{name}.so"))
}
