//! Acts with the feature `xla` only: checks that there is an XLA extension for xla-rs to be built with, and says what to
//! run if there is none; and tells our programs where its libraries are, which xla-rs's own build script can do for its
//! own programs only. Without the feature it does nothing.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Has a file for each header that xla-rs 0.4.3 includes; an XLA of another age lacks some of them.
const HEADERS: &str = "ci/no-xla-extension";

const HELP: &str =
    "help: eval \"$(ci/xla-extension)\" makes one and names it; or set XLA_EXTENSION_DIR to an xla_extension 0.10.0";

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
    println!("cargo:rerun-if-changed={HEADERS}");
    match extension() {
        Ok(dir) => {
            println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir.join("lib").display());
            match stand_ins() {
                Ok(dir) => {
                    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir.display());
                    println!("cargo:rustc-env=BF16SCOPE_STAND_INS={}", dir.display());
                }
                Err(error) => println!("cargo::error=feature xla: cannot write to OUT_DIR: {error}"),
            }
        }
        Err(why) => {
            println!("cargo::error=feature xla: {why}");
            println!("cargo::error={HELP}");
        }
    }
}

fn extension() -> Result<PathBuf, String> {
    let named = env::var_os("XLA_EXTENSION_DIR").filter(|dir| !dir.is_empty());
    let dir = PathBuf::from(named.ok_or("XLA_EXTENSION_DIR is not set: xla-rs needs XLA's headers and library")?);
    let mut files = vec![PathBuf::from("lib/libxla_extension.so")];
    headers(Path::new(HEADERS), &mut files).map_err(|error| format!("cannot read {HEADERS}: {error}"))?;
    match files.iter().find(|file| !dir.join(file).exists()) {
        Some(file) => Err(format!(
            "XLA_EXTENSION_DIR={} is no XLA that xla-rs 0.4.3 can use: {} is missing",
            dir.display(),
            file.display()
        )),
        None => Ok(dir),
    }
}

/// The paths in an extension of the headers that `dir` has files for.
fn headers(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            headers(&path, found)?;
        } else if let Ok(header) = path.strip_prefix(HEADERS) {
            found.push(Path::new("include").join(header));
        }
    }
    Ok(())
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
