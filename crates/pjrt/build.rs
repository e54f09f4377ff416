//! With the feature `xla`, checks that there is an XLA extension to build xla-rs with, says what to run if there is
//! none, and passes the path of its libraries to this crate's tests, which xla-rs's own build script can do only for
//! its own programs. Without the feature it does nothing.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// A folder with a file for each header that xla-rs 0.4.3 includes; another version of XLA lacks some of them.
const HEADERS: &str = "no-xla-extension";

const HELP: &str =
    "help: eval \"$(ci/xla-extension)\" makes one and names it; or set XLA_EXTENSION_DIR to an xla_extension 0.10.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // docs.rs documents xla-rs without its library.
    if env::var_os("CARGO_FEATURE_XLA").is_none() || env::var_os("DOCS_RS").is_some() {
        return;
    }
    println!("cargo:rerun-if-env-changed=XLA_EXTENSION_DIR");
    println!("cargo:rerun-if-changed={HEADERS}");
    match extension() {
        Ok(dir) => println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir.join("lib").display()),
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

/// The paths, within an extension, of the headers that `dir` has files for.
fn headers(dir: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            headers(&path, paths)?;
        } else if let Ok(header) = path.strip_prefix(HEADERS) {
            paths.push(Path::new("include").join(header));
        }
    }
    Ok(())
}
