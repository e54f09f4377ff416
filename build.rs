//! Lists the models of `examples/models` for the program. With the feature `xla` it tells programs and tests where XLA's libraries are, which a dependency's build script
//! cannot do for them. That there is an extension is checked by the build script of `bf16scope-pjrt`.

use std::path::PathBuf;
use std::{env, fs, io};

/// The libraries that a program with xla-rs in it needs to start, and a folder whose name the system's loader quotes when
/// it finds them nowhere else: it speaks before the program can.
const LIBRARIES: [&str; 3] = ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2", "libxla_extension.so"];
const STAND_INS: &str = "XLA-IS-MISSING--RUN-ci-xla-extension";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=examples/models");
    if let Err(error) = list_models() {
        println!("cargo::error=examples/models cannot be listed: {error}");
    }
    // The linker takes a third less time where it may leave in what nothing calls; xla-rs's library does not link so.
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|it| it == value);
    if is("PROFILE", "debug") && is("CARGO_CFG_TARGET_OS", "linux") && env::var_os("CARGO_FEATURE_XLA").is_none() {
        println!("cargo:rustc-link-arg-bins=-Wl,--no-gc-sections");
    }
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

/// Writes `models.rs` to OUT_DIR: name and text of each file of `examples/models`, in the order of their names.
fn list_models() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut files: Vec<PathBuf> = match fs::read_dir(root.join("examples/models")) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    files.retain(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    files.sort();
    let line = |path: &PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        format!("    ({name:?}, include_str!({:?})),\n", path.display().to_string())
    };
    let lines: String = files.iter().map(line).collect();
    let text = format!("const MODELS: bf16scope_cli::Shipped = &[\n{lines}];\n");
    fs::write(PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("models.rs"), text)
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
