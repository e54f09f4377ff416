//! Acts with the feature `xla` only: tells programs and tests where XLA's libraries are, which a dependency's build script
//! cannot do for them. That there is an extension is checked by the build script of `bf16scope-pjrt`. Without the feature
//! it does nothing.

use std::path::PathBuf;
use std::{env, fs, io};

/// The libraries that a program with xla-rs in it needs to start, and a folder whose name the system's loader quotes when
/// it finds them nowhere else: it speaks before the program can.
const LIBRARIES: [&str; 3] = ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2", "libxla_extension.so"];
const STAND_INS: &str = "XLA-IS-MISSING--RUN-ci-xla-extension";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // On docs.rs xla-rs is documented without its library.
    if env::var_os("CARGO_FEATURE_XLA").is_none() || env::var_os("DOCS_RS").is_some() {
        return;
    }
    println!("cargo:rerun-if-env-changed=XLA_EXTENSION_DIR");
    if let Some(dir) = env::var_os("XLA_EXTENSION_DIR").filter(|dir| !dir.is_empty()) {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", PathBuf::from(dir).join("lib").display());
    }
    match stand_ins() {
        Ok(dir) => {
            println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir.display());
            println!("cargo:rustc-env=BF16SCOPE_STAND_INS={}", dir.display());
        }
        Err(error) => println!("cargo::error=feature xla: cannot write to OUT_DIR: {error}"),
    }
}

/// Empty files in place of the libraries, which the loader tries last and refuses by name.
fn stand_ins() -> io::Result<PathBuf> {
    let dir = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join(STAND_INS);
    fs::create_dir_all(&dir)?;
    for library in LIBRARIES {
        fs::write(dir.join(library), [])?;
    }
    Ok(dir)
}
