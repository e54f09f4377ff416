//! Plugins on disk: damaged, partly installed, and installed where something is in the way.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use bf16scope::pjrt::{Pinned, PluginSpec, Setup, locate};

use crate::door::{Ended, Folder, names};

const SHA256: &str = "88c3f28c5900f48ad4a82cab9e79bba9537809743395e341485f8794268820dc";

/// A folder whose `cache` is the cache directory, and where the CPU plugin's directory is there.
fn cache() -> (Folder, PathBuf) {
    let folder = Folder::new();
    let path = Pinned::CPU.path_in(&folder.path("cache"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    (folder, path)
}

/// The binary with that cache, and a `python3` that is this shell script, if one is given.
fn command(folder: &Folder, python: Option<&str>, args: &[&str]) -> Command {
    let mut command = folder.command(args);
    command.env("BF16SCOPE_CACHE", folder.path("cache")).env_remove("BF16SCOPE_CPU_PLUGIN");
    command.env_remove("BF16SCOPE_OFFLINE");
    // No pip of this test reaches an index.
    command.env("PIP_CONFIG_FILE", "/dev/null").env("PIP_INDEX_URL", "http://127.0.0.1:9/").env("PIP_RETRIES", "0");
    command.env_remove("PIP_EXTRA_INDEX_URL").env_remove("PIP_FIND_LINKS");
    if let Some(script) = python {
        let bin = folder.path("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("python3"), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(bin.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
        command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    }
    command
}

fn run(folder: &Folder, python: Option<&str>, args: &[&str]) -> Ended {
    crate::door::ended(&mut command(folder, python, args))
}

/// A pip that cannot download anything.
const FAILING: &str = "for word; do [ \"$word\" = --version ] && exit 0; done; echo 'ERROR: no route' >&2; exit 1";

/// Changes one byte of a file in place.
fn flip(path: &Path, at: u64, bit: u8) {
    let mut file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ (1 << bit)]).unwrap();
}

#[test]
fn a_flipped_bit_in_an_installed_plugin_is_noticed_and_the_plugin_installed_again() {
    let (folder, path) = cache();
    fs::copy(locate(PluginSpec::cpu(), &Setup::from_env()).unwrap().path, &path).unwrap();
    let located = run(&folder, None, &["plugins", "where", "cpu", "--offline"]);
    assert_eq!((located.code, located.stdout), (Some(0), format!("{}\n", path.display())), "{}", located.stderr);
    let n_bytes = Pinned::CPU.library_bytes;
    let error = |at, bit| {
        flip(&path, at, bit);
        let Ended { code, stderr, .. } = run(&folder, None, &["plugins", "where", "cpu", "--offline"]);
        assert_eq!(code, Some(2), "{stderr}");
        let start = "bf16scope: the cpu plugin could not be installed\n  caused by: ";
        let rest = stderr.strip_prefix(start).unwrap_or_else(|| panic!("{stderr}"));
        let rest = rest.strip_prefix(&format!("{} is damaged: measured sha256 ", path.display())).unwrap();
        let (measured, rest) = rest.split_at(64);
        assert_ne!(measured, SHA256);
        assert_eq!(
            rest,
            format!(
                ", expected {SHA256}; and this run is offline\n\
                 help: run `bf16scope plugins install` without --offline and BF16SCOPE_OFFLINE, or name another \
                 library in BF16SCOPE_CPU_PLUGIN\n"
            )
        );
        flip(&path, at, bit);
    };
    error(0, 7);
    error(n_bytes - 1, 0);
    // Zeroed pages, with network: it would be installed again.
    let mut file = fs::File::options().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(n_bytes / 2)).unwrap();
    file.write_all(&[0; 8192]).unwrap();
    let Ended { code, stderr, .. } = run(&folder, Some(FAILING), &["plugins", "install", "cpu"]);
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(lines[0].starts_with(&format!("bf16scope: {}: measured sha256 ", path.display())), "{stderr}");
    assert!(lines[0].ends_with(&format!(", expected {SHA256}: installing again")), "{stderr}");
    assert!(lines[1].starts_with("bf16scope: installing xla-cpu-pjrt 0.0.1 with pip"), "{stderr}");
    assert_eq!(code, Some(2), "{stderr}");
}

#[test]
fn what_a_killed_installation_left_goes_with_the_next_one() {
    let (folder, path) = cache();
    let dir = path.parent().unwrap();
    fs::create_dir_all(dir.join("staging-dead/wheels")).unwrap();
    fs::write(dir.join("staging-dead/wheels/half.whl"), "half").unwrap();
    fs::write(dir.join("staging-dead/library"), "half").unwrap();
    symlink(folder.path("m.txt"), dir.join("staging-link")).unwrap();
    let ended = run(&folder, Some(FAILING), &["plugins", "install", "cpu"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert_eq!(names(dir), ["lock"]);
    assert!(folder.path("m.txt").exists());
}

#[test]
fn a_lock_that_is_a_link_truncates_and_makes_nothing() {
    let (folder, path) = cache();
    let lock = path.parent().unwrap().join("lock");
    folder.write("precious", "content");
    symlink(folder.path("precious"), &lock).unwrap();
    let ended = run(&folder, Some(FAILING), &["plugins", "install", "cpu"]);
    assert!(ended.stderr.contains("ERROR: no route"), "{}", ended.stderr);
    assert_eq!(fs::read(folder.path("precious")).unwrap(), b"content");
    fs::remove_file(&lock).unwrap();
    symlink(folder.path("absent"), &lock).unwrap();
    let ended = run(&folder, Some(FAILING), &["plugins", "install", "cpu"]);
    let expected = format!(
        "bf16scope: the cpu plugin could not be installed\n  caused by: cache {}: making the lock file: a symbolic link \
         that leads to no file\nhelp: remove the link\n",
        lock.display()
    );
    assert_eq!((ended.code, ended.stderr), (Some(2), expected));
    assert!(!folder.path("absent").exists());
}

/// `python3 -m pip` looks for pip in the current directory first.
#[test]
fn no_python_of_the_current_directory_is_run() {
    let (folder, _) = cache();
    for module in ["pip.py", "runpy.py", "os.py", "sys.py"] {
        folder.write(module, "open('owned', 'w').close()\n");
    }
    let ended = run(&folder, None, &["plugins", "install", "cpu"]);
    assert!(ended.stderr.contains("`python3 -I -m pip download xla-cpu-pjrt==0.0.1` failed"), "{}", ended.stderr);
    assert!(!folder.path("owned").exists());
    // A Python whose pip is the user's own, which `-I` leaves out.
    let out = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(out.stdout).unwrap();
    let script = format!("[ \"$1\" = -I ] && exit 1\nexec {} \"$@\"", python.trim());
    let ended = run(&folder, Some(&script), &["plugins", "install", "cpu"]);
    assert!(ended.stderr.contains("`python3 -m pip download xla-cpu-pjrt==0.0.1` failed"), "{}", ended.stderr);
    assert!(!folder.path("owned").exists());
}

/// Needs a private mount, if the system allows one; a test in `pjrt::install` checks the message without a mount.
#[test]
fn a_full_disk_is_called_full_before_anything_is_downloaded() {
    let (folder, path) = cache();
    let on_a_small_disk = |script: &str| {
        let mut unshared = Command::new("unshare");
        unshared.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
        unshared.arg(format!("mount -t tmpfs -o size=8m tmpfs cache || exit 99; {script}"));
        unshared.current_dir(folder.path("."));
        unshared
    };
    if !on_a_small_disk("true").status().is_ok_and(|status| status.success()) {
        eprintln!("no file system of 8 MB can be had here: see pjrt::install");
        return;
    }
    let inner = command(&folder, None, &["plugins", "install", "cpu"]);
    let mut unshared = on_a_small_disk("exec \"$0\" \"$@\"");
    unshared.arg(inner.get_program()).args(inner.get_args());
    unshared.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ended = crate::door::ended(&mut unshared);
    let expected = format!(
        "bf16scope: the cpu plugin could not be installed\n  caused by: cache {}: no room for xla-cpu-pjrt: 8 MB free, \
         323 MB needed\nhelp: make room (a plugin takes up to 800 MB while it is installed), or set BF16SCOPE_CACHE to \
         a roomier directory\n",
        path.parent().unwrap().display()
    );
    assert_eq!((ended.code, ended.stderr), (Some(2), expected));
}
