//! Installs a pinned plugin from the Python package index, with pip, once.
//!
//! Nothing is installed that does not match the pinned checksums; a library is complete or absent; concurrent processes
//! wait for one of them, which also removes the remains of killed installations. [`Setup::on_install`] receives the
//! progress; without it, progress goes to stderr, because a download of 200 MB is never silent.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fs4::fs_std::FileExt;

use super::Pinned;
use super::setup::{Located, Progress, Setup, Source};
use super::whole::{self, Damage, Installed};
use bf16scope_files::{self as files, ZipError};

fn say(setup: &Setup, progress: Progress<'_>) {
    // A line every 200 ms would flood a test's output.
    if !setup.on_install.tell(&progress) && !matches!(progress, Progress::Downloading { .. }) {
        // If stderr is closed, there is no other way to report.
        drop(writeln!(io::stderr(), "bf16scope: {progress}"));
    }
}

/// A failure to install.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// No variable names a cache directory.
    #[error(
        "no cache directory: BF16SCOPE_CACHE, XDG_CACHE_HOME and HOME are unset or empty\nhelp: set BF16SCOPE_CACHE to a directory that can hold 900 MB"
    )]
    NoCacheDir,
    /// Installation is not permitted.
    #[error("{package} {version} is not installed in {}, and this run is offline\nhelp: run `bf16scope plugins install` without --offline and BF16SCOPE_OFFLINE, or name the library in {variable}", cache_dir.display())]
    Offline {
        /// Project.
        package: &'static str,
        /// Version.
        version: &'static str,
        /// The directory it would be installed to.
        cache_dir: PathBuf,
        /// The variable that names another file.
        variable: &'static str,
    },
    /// The installed file is not the pinned library, and reinstalling is not permitted.
    #[error("{} is damaged: {damage}; and this run is offline\nhelp: run `bf16scope plugins install` without --offline and BF16SCOPE_OFFLINE, or name another library in {variable}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The difference.
        damage: Damage,
        /// The variable that names another file.
        variable: &'static str,
    },
    /// The disk has too little space for the wheel and the library.
    #[error("cache {}: no room for {package}: {} MB free, {} MB needed\nhelp: {ROOM}", path.display(), available / 1_000_000, needed.div_ceil(1_000_000))]
    NoRoom {
        /// Project.
        package: &'static str,
        /// The directory.
        path: PathBuf,
        /// Bytes free.
        available: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The wheels are for another machine.
    #[error(
        "{package}: wheels are for linux x86_64, this machine is {os} {arch}\nhelp: name a PJRT plugin for this machine in {variable}"
    )]
    Machine {
        /// Project.
        package: &'static str,
        /// This machine's operating system.
        os: &'static str,
        /// This machine's architecture.
        arch: &'static str,
        /// The variable that names another file.
        variable: &'static str,
    },
    /// There is no pip.
    #[error("{package}: no pip: tried {}\nhelp: install Python 3 with pip (Debian: apt-get install python3-pip), or name the library in {variable}", tried.join(", "))]
    NoPip {
        /// Project.
        package: &'static str,
        /// Commands tried.
        tried: Vec<String>,
        /// The variable that names another file.
        variable: &'static str,
    },
    /// pip failed.
    #[error(
        "{package}: `{command}` failed ({status}): {text}\nhelp: is the package index reachable from this machine? else copy {wheel} here, and set PIP_FIND_LINKS to its directory"
    )]
    Pip {
        /// Project.
        package: &'static str,
        /// The wheel.
        wheel: &'static str,
        /// The command, without its options.
        command: String,
        /// Its exit status.
        status: String,
        /// Its last lines.
        text: String,
    },
    /// pip did not download such a wheel.
    #[error("{package}: pip brought no {wheel} but: {}", found.join(", "))]
    NoWheel {
        /// Project.
        package: &'static str,
        /// The wheel.
        wheel: &'static str,
        /// Files that pip downloaded.
        found: Vec<String>,
    },
    /// The wheel's checksum is wrong.
    #[error(
        "{wheel}: sha256: measured {measured}, expected {expected}\nhelp: the file was changed on its way; try another network or package mirror"
    )]
    Checksum {
        /// The wheel.
        wheel: &'static str,
        /// Measured checksum.
        measured: String,
        /// Pinned checksum.
        expected: &'static str,
    },
    /// The library in the right wheel has a wrong checksum.
    #[error(
        "{member}: sha256: measured {measured}, expected {expected}\nhelp: the wheel is right, so memory or disk of this machine may be failing; try again"
    )]
    Unpacked {
        /// The library.
        member: &'static str,
        /// Measured checksum.
        measured: String,
        /// Pinned checksum.
        expected: &'static str,
    },
    /// The wheel cannot be unpacked.
    #[error("{wheel}: {member}: {source}")]
    Wheel {
        /// The wheel.
        wheel: &'static str,
        /// The file in it.
        member: &'static str,
        /// The cause.
        #[source]
        source: ZipError,
    },
    /// The cache directory is full, read-only, or not a directory.
    #[error("cache {}: {doing}: {source}\nhelp: {}", path.display(), remedy(.source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

const ROOM: &str =
    "make room (a plugin takes up to 800 MB while it is installed), or set BF16SCOPE_CACHE to a roomier directory";

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ROOM,
        _ if error.get_ref().is_some_and(|inner| inner.is::<files::FileError>()) => "remove the link",
        _ if error.get_ref().is_some_and(|inner| inner.is::<files::Untrusted>()) => "plugins run as this user",
        _ => "set BF16SCOPE_CACHE to a directory that can be written",
    }
}

/// Installs a pinned library into the cache directory, unless it is there. One process does it, others wait. `variable`
/// names another library, for a machine where this one cannot be installed.
pub(super) fn install(artifact: &Pinned, variable: &'static str, setup: &Setup) -> Result<Located, InstallError> {
    let cache_dir = setup.cache_dir.as_deref().ok_or(InstallError::NoCacheDir)?;
    let path = artifact.path_in(cache_dir);
    // Checked before the existing file is examined: it may belong to another user.
    whole::trusted_folders(&path).map_err(|error| InstallError::Io {
        path: cache_dir.to_path_buf(),
        doing: "looking whose it is",
        source: error.into(),
    })?;
    if setup.offline {
        return Err(match whole::installed(artifact, &path) {
            Installed::Whole => return Ok(Located { path, source: Source::Cache }),
            Installed::Damaged(damage) => InstallError::Damaged { path, damage, variable },
            Installed::Absent => InstallError::Offline {
                package: artifact.package,
                version: artifact.version,
                cache_dir: cache_dir.to_path_buf(),
                variable,
            },
        });
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(InstallError::Machine {
            package: artifact.package,
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            variable,
        });
    }
    let dir = path.parent().expect("path_in joins three parts").to_path_buf();
    fs::create_dir_all(&dir).map_err(io_error(&dir, "making it"))?;
    let lock_path = dir.join("lock");
    let lock = files::open_lock(&lock_path).map_err(io_error(&lock_path, "making the lock file"))?;
    lock.lock_exclusive().map_err(io_error(&lock_path, "locking it"))?;
    // Another process may have installed it while this one waited. The lock is released with `lock`.
    match whole::installed(artifact, &path) {
        Installed::Whole => return Ok(Located { path, source: Source::Cache }),
        Installed::Damaged(damage) => say(setup, Progress::Damaged { path: &path, damage: &damage }),
        Installed::Absent => {}
    }
    remove_left(&dir);
    // Where the system does not know the free space, pip notices a full disk.
    if let Ok(room) = fs4::available_space(&dir) {
        check_room(artifact, &dir, room)?;
    }
    let staging = tempfile::Builder::new().prefix(STAGING).tempdir_in(&dir);
    let staging = staging.map_err(io_error(&dir.join(STAGING), "making it"))?;
    say(setup, Progress::Starting(artifact));
    let wheel = download(artifact, variable, staging.path(), setup)?;
    check_sum(artifact, &wheel)?;
    say(setup, Progress::Unpacking(artifact));
    unpack(artifact, &wheel, staging.path(), &path)?;
    whole::keep_measured(artifact, &path);
    say(setup, Progress::Installed(&path));
    Ok(Located { path, source: Source::Installed })
}

/// The prefix of directories in which a plugin is being installed.
const STAGING: &str = "staging-";

/// Removes the remains of killed installations. This process holds the lock, so no installation is running.
fn remove_left(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(STAGING.as_bytes()) {
            // A directory that cannot be removed takes space, but does no harm.
            if let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::debug!("{}: {error}", entry.path().display());
            }
        }
    }
}

/// Checks that there is space for the wheel and the library, before the download.
fn check_room(artifact: &Pinned, dir: &Path, available: u64) -> Result<(), InstallError> {
    let needed = artifact.wheel_bytes + artifact.library_bytes;
    if available >= needed {
        return Ok(());
    }
    Err(InstallError::NoRoom { package: artifact.package, path: dir.to_path_buf(), available, needed })
}

fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> InstallError {
    let path = path.to_path_buf();
    move |source| InstallError::Io { path, doing, source }
}

/// A way to start pip.
struct Pip {
    /// Its name in messages.
    name: &'static str,
    /// The program.
    program: &'static str,
    /// Its arguments before pip's own.
    args: &'static [&'static str],
}

/// Isolated Python: `python3 -m pip` would run a `pip.py` in the current directory.
const ISOLATED: &[&str] = &["-I", "-m", "pip"];
/// Like `-m pip`, without the current directory, for a pip that is only in the user's own site-packages or PYTHONPATH,
/// which `-I` excludes.
const WITHOUT_CURRENT_DIR: &[&str] = &[
    "-c",
    "import sys; sys.path = [place for place in sys.path if place]; import runpy; \
     runpy.run_module('pip', run_name='__main__', alter_sys=True)",
];

/// The ways to start pip, best first.
const PIPS: [Pip; 6] = [
    Pip { name: "python3 -I -m pip", program: "python3", args: ISOLATED },
    Pip { name: "python3 -m pip", program: "python3", args: WITHOUT_CURRENT_DIR },
    Pip { name: "python -I -m pip", program: "python", args: ISOLATED },
    Pip { name: "python -m pip", program: "python", args: WITHOUT_CURRENT_DIR },
    Pip { name: "pip3", program: "pip3", args: &[] },
    Pip { name: "pip", program: "pip", args: &[] },
];

impl Pip {
    fn command(&self, setup: &Setup) -> Command {
        let mut command = Command::new(self.program);
        command.args(self.args).stdin(Stdio::null());
        if let Some(search_path) = &setup.search_path {
            command.env("PATH", search_path);
        }
        command
    }

    /// Whether it prints its version within a time.
    fn answers(&self, setup: &Setup, patience: Duration) -> bool {
        let mut command = self.command(setup);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else { return false };
        let began = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) if began.elapsed() < patience => std::thread::sleep(Duration::from_millis(5)),
                // A program that does not exit is not pip.
                _ => {
                    drop(child.kill());
                    drop(child.wait());
                    return false;
                }
            }
        }
    }
}

/// The timeout for pip to print its version; a cold start of Python takes seconds.
const ANSWER: Duration = Duration::from_secs(60);
/// The timeout for pip without a new byte. It times out on a connection itself after 15 seconds, five times.
const STALLED: Duration = Duration::from_secs(300);

/// Downloads the wheel with the first available pip.
fn download(artifact: &Pinned, variable: &'static str, staging: &Path, setup: &Setup) -> Result<PathBuf, InstallError> {
    let pip = PIPS.iter().find(|pip| pip.answers(setup, ANSWER)).ok_or_else(|| InstallError::NoPip {
        package: artifact.package,
        tried: PIPS.iter().map(|pip| format!("`{}`", pip.name)).collect(),
        variable,
    })?;
    let wheels = staging.join("wheels");
    fs::create_dir(&wheels).map_err(io_error(&wheels, "making it"))?;
    let mut command = pip.command(setup);
    // The tags pin the wheel, so that any Python 3 downloads the same one.
    command
        .args(["download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"])
        .args(["--progress-bar", "off", "--platform", artifact.platform])
        .args(["--implementation", "cp", "--python-version", "3.11", "--abi", "cp311", "--dest"])
        .arg(&wheels)
        .arg(format!("{}=={}", artifact.package, artifact.version))
        // pip writes to its temporary directory first: it must have space too, and be monitored.
        .env("TMPDIR", staging)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let failed = |status: String, text: String| InstallError::Pip {
        package: artifact.package,
        wheel: artifact.wheel,
        command: format!("{} download {}=={}", pip.name, artifact.package, artifact.version),
        status,
        text,
    };
    let mut child = command.spawn().map_err(|error| failed("not started".to_string(), error.to_string()))?;
    // A pipe, not a file, which would stay empty on a full disk.
    let stderr = child.stderr.take();
    let log = std::thread::spawn(move || stderr.map(end_of).unwrap_or_default());
    let status = watch(&mut child, artifact, staging, setup, STALLED)
        .map_err(|error| failed("lost".to_string(), error.to_string()))?;
    if !status.success() {
        let log = log.join().unwrap_or_default();
        // pip fails in the usual way if the disk is full, but the remedy is a different one.
        return Err(match full(&log) {
            Some(kind) => io_error(staging, "downloading the wheel")(kind.into()),
            None => failed(status.to_string(), last_lines(&log)),
        });
    }
    let wheel = wheels.join(artifact.wheel);
    match wheel.is_file() {
        true => Ok(wheel),
        false => {
            Err(InstallError::NoWheel { package: artifact.package, wheel: artifact.wheel, found: file_names(&wheels) })
        }
    }
}

/// The end of a pipe's content, which is read completely.
fn end_of(mut pipe: impl Read) -> String {
    const KEPT: usize = 64 << 10;
    let (mut end, mut chunk) = (Vec::new(), vec![0; KEPT]);
    while let Ok(n_bytes @ 1..) = pipe.read(&mut chunk) {
        end.extend_from_slice(&chunk[..n_bytes]);
        end.drain(..end.len().saturating_sub(KEPT));
    }
    String::from_utf8_lossy(&end).into_owned()
}

/// Whether pip's log says that the disk is full: the system's errors 28 and 122.
fn full(log: &str) -> Option<io::ErrorKind> {
    let says = |texts: [&str; 2]| texts.iter().any(|text| log.contains(text));
    if says(["No space left on device", "[Errno 28]"]) {
        Some(io::ErrorKind::StorageFull)
    } else if says(["Disk quota exceeded", "[Errno 122]"]) {
        Some(io::ErrorKind::QuotaExceeded)
    } else {
        None
    }
}

/// Waits for pip, and reports the downloaded bytes. A pip without a new byte for so long is ended.
fn watch(
    child: &mut Child,
    artifact: &Pinned,
    staging: &Path,
    setup: &Setup,
    stalled: Duration,
) -> io::Result<std::process::ExitStatus> {
    let (mut n_before, mut since) = (0, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let n_bytes = largest_file(staging).min(artifact.wheel_bytes);
        say(setup, Progress::Downloading { artifact, n_bytes });
        if n_bytes != n_before {
            (n_before, since) = (n_bytes, Instant::now());
        }
        if since.elapsed() > stalled {
            child.kill()?;
            child.wait()?;
            let text = format!("no byte came for {} s, and it was ended", stalled.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Bytes of the largest file below a directory: the wheel, while pip writes or copies it.
fn largest_file(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => largest_file(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.max().unwrap_or(0)
}

fn file_names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The end of pip's log: its last two non-empty lines.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(2)..].join(" / ")
}

fn check_sum(artifact: &Pinned, wheel: &Path) -> Result<(), InstallError> {
    let read = File::open(wheel).and_then(|file| whole::sha256(file, &mut io::sink()));
    let measured = read.map_err(io_error(wheel, "reading it"))?;
    match measured == artifact.wheel_sha256 {
        true => Ok(()),
        false => Err(InstallError::Checksum { wheel: artifact.wheel, measured, expected: artifact.wheel_sha256 }),
    }
}

/// Unpacks the library beside its place, then moves it there: it is complete or absent.
fn unpack(artifact: &Pinned, wheel: &Path, staging: &Path, path: &Path) -> Result<(), InstallError> {
    let zip_error =
        |error| InstallError::Wheel { wheel: artifact.wheel, member: artifact.member, source: ZipError::new(error) };
    let file = File::open(wheel).map_err(io_error(wheel, "reading it"))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file)).map_err(zip_error)?;
    let mut member = archive.by_name(artifact.member).map_err(zip_error)?;
    let unpacked = staging.join("library");
    let mut out = File::create(&unpacked).map_err(io_error(&unpacked, "making it"))?;
    let measured = whole::sha256(&mut member, &mut out).and_then(|sum| out.sync_all().map(|()| sum));
    let measured = measured.map_err(io_error(&unpacked, "unpacking the library"))?;
    if measured != artifact.library_sha256 {
        return Err(InstallError::Unpacked { member: artifact.member, measured, expected: artifact.library_sha256 });
    }
    fs::rename(&unpacked, path).map_err(io_error(path, "moving the library into its place"))
}

#[cfg(test)]
mod tests;
