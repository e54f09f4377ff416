//! Plugins that cannot be loaded or installed: every failure says what to do. pip is the only thing ever faked here.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bf16scope::pjrt::{Kind, Plugin, Setup, Source, locate};
use tempfile::TempDir;

fn temp() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A file with these bytes, and what loading it says, with the path left out.
fn load_error(name: &str, bytes: &[u8]) -> String {
    let dir = temp();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    without_path(&Plugin::load(&path).unwrap_err().to_string(), &path)
}

fn without_path(text: &str, path: &Path) -> String {
    let canonical = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    text.replace(canonical.to_str().unwrap(), "PATH").replace(path.to_str().unwrap(), "PATH")
}

const REINSTALL: &str = "help: name a PJRT plugin (.so, Linux x86-64), or reinstall the pinned one with \
    `bf16scope plugins install`";

#[test]
fn a_file_that_is_no_library_is_named_before_the_loader_sees_it() {
    assert_eq!(
        load_error("plugin.so", b"short"),
        format!("plugin PATH: not a usable shared library: it has 5 bytes, less than an ELF header's 64\n{REINSTALL}")
    );
    assert_eq!(
        load_error("plugin.so", &[b'x'; 100]),
        format!("plugin PATH: not a usable shared library: it does not start with the ELF magic number\n{REINSTALL}")
    );
}

#[test]
fn a_truncated_library_is_named_before_the_loader_sees_it() {
    let whole = fs::read(libm()).unwrap();
    assert_eq!(
        load_error("plugin.so", &whole[..whole.len() / 2]),
        format!(
            "plugin PATH: not a usable shared library: it is truncated: measured {} bytes, its headers expect {}\n\
             {REINSTALL}",
            whole.len() / 2,
            whole.len()
        )
    );
}

#[test]
fn a_library_that_is_no_plugin_is_named() {
    let path = libm();
    assert_eq!(
        without_path(&Plugin::load(&path).unwrap_err().to_string(), &path),
        "plugin PATH: not a PJRT plugin: it exports no GetPjrtApi\n\
         help: name a PJRT plugin, such as the one in the xla-cpu-pjrt wheel"
    );
}

#[test]
fn a_missing_plugin_says_who_named_it() {
    let setup = Setup { cpu_plugin: Some(PathBuf::from("/nowhere/plugin.so")), ..Setup::default() };
    assert_eq!(
        locate(Kind::Cpu, &setup).unwrap_err().to_string(),
        "plugin /nowhere/plugin.so: no such file (named by BF16SCOPE_CPU_PLUGIN)\n\
         help: correct the path, or leave BF16SCOPE_CPU_PLUGIN out to use the pinned plugin"
    );
}

/// The C library's mathematics, a real shared library on every Linux with glibc.
fn libm() -> PathBuf {
    ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .expect("a glibc system has libm.so.6")
}

/// Installing with a `python3` that is this shell script, into a new cache directory.
fn install_error(script: Option<&str>) -> String {
    let (cache, bin) = (temp(), temp());
    if let Some(script) = script {
        let path = bin.path().join("python3");
        fs::write(&path, format!("#!/bin/sh\n[ \"$4\" = --version ] && exit 0\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let setup =
        Setup { cache_dir: Some(cache.path().to_path_buf()), search_path: Some(bin.path().into()), ..Setup::default() };
    let text = locate(Kind::Cpu, &setup).unwrap_err().to_string();
    let dir = Kind::Cpu.artifact().path_in(cache.path()).parent().unwrap().to_path_buf();
    let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"], "a failed installation leaves nothing else behind");
    text.replace(cache.path().to_str().unwrap(), "CACHE")
}

#[test]
fn without_pip_the_commands_tried_are_named() {
    assert_eq!(
        install_error(None),
        "xla-cpu-pjrt: no pip: tried `python3 -I -m pip`, `python3 -m pip`, `python -I -m pip`, `python -m pip`, `pip3`, `pip`\n\
         help: install Python 3 with pip (Debian: apt-get install python3-pip), or name the library in \
         BF16SCOPE_CPU_PLUGIN"
    );
}

#[test]
fn without_network_pips_last_lines_are_quoted() {
    assert_eq!(
        install_error(Some("echo first >&2; echo 'ERROR: no route' >&2; echo 'ERROR: nothing found' >&2; exit 1")),
        "xla-cpu-pjrt: `python3 -I -m pip download xla-cpu-pjrt==0.0.1` failed (exit status: 1): \
         ERROR: no route / ERROR: nothing found\n\
         help: is the package index reachable from this machine? else copy \
         xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl here, and set PIP_FIND_LINKS to its directory"
    );
}

/// The directory after `--dest`, the third argument from the end.
const DEST: &str = "while [ \"$1\" != --dest ]; do shift; done; dest=$2;";

#[test]
fn a_wheel_with_another_checksum_is_refused() {
    let script = format!("{DEST} echo changed > $dest/xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl");
    assert_eq!(
        install_error(Some(&script)),
        "xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl: sha256: measured \
         7f8b1dfc466b6249f06cbe55c9174df2578e7754da793fded244ef5cba2a38f1, expected \
         55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc\n\
         help: the file was changed on its way; try another network or package mirror"
    );
}

#[test]
fn another_wheel_is_named() {
    let script = format!("{DEST} echo x > $dest/other.whl");
    assert_eq!(
        install_error(Some(&script)),
        "xla-cpu-pjrt: pip brought no xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl but: other.whl"
    );
}

#[test]
fn a_full_disk_is_told_from_a_failing_network() {
    let text = install_error(Some("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1"));
    assert!(text.contains("downloading the wheel: no storage space\nhelp: make room"), "{text}");
}

#[test]
fn a_cache_that_is_a_file_is_named() {
    let dir = temp();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let setup = Setup { cache_dir: Some(file), ..Setup::default() };
    let text = locate(Kind::Cpu, &setup).unwrap_err().to_string().replace(dir.path().to_str().unwrap(), "DIR");
    assert_eq!(
        text,
        "cache DIR/file/plugins/xla-cpu-pjrt-0.0.1: making it: Not a directory (os error 20)\n\
         help: set BF16SCOPE_CACHE to a directory that can be written"
    );
}

#[test]
fn without_any_cache_directory_the_variables_are_named() {
    assert_eq!(
        locate(Kind::Tpu, &Setup::default()).unwrap_err().to_string(),
        "no cache directory: BF16SCOPE_CACHE, XDG_CACHE_HOME and HOME are unset or empty\n\
         help: set BF16SCOPE_CACHE to a directory that can hold 900 MB"
    );
}

#[test]
fn offline_refuses_to_install() {
    let dir = temp();
    let setup = Setup { cache_dir: Some(dir.path().to_path_buf()), offline: true, ..Setup::default() };
    let text = locate(Kind::Tpu, &setup).unwrap_err().to_string().replace(dir.path().to_str().unwrap(), "CACHE");
    assert_eq!(
        text,
        "libtpu 0.0.51 is not installed in CACHE, and this run is offline\n\
         help: run `bf16scope plugins install` without --offline and BF16SCOPE_OFFLINE, or name the library in \
         TPU_LIBRARY_PATH"
    );
}

/// A damaged file is seen by its size and replaced by the real plugin; a second call finds it.
#[test]
fn a_truncated_installation_is_replaced() {
    let cache = temp();
    let path = Kind::Cpu.artifact().path_in(cache.path());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "half").unwrap();
    let setup = Setup { cache_dir: Some(cache.path().to_path_buf()), ..Setup::default() };
    assert_eq!(locate(Kind::Cpu, &setup).unwrap().source, Source::Installed);
    assert_eq!(fs::metadata(&path).unwrap().len(), Kind::Cpu.artifact().library_bytes);
    assert_eq!(locate(Kind::Cpu, &setup).unwrap().source, Source::Cache);
}
