//! Replaces a file atomically: written beside its place, synced, renamed. Also lock files, which are never written to.
//!
//! A half-written file is called `.NAME.writing-XXXXXX` and locked while its writer lives, so the next writer of the
//! same file recognises the remains of killed runs, and removes them. On a file system without locks nothing is
//! removed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fs4::fs_std::FileExt as _;
use tempfile::NamedTempFile;

use super::{CHARACTER_DEVICE, FIFO, FileError, check_name, check_output, folder_of, is_descriptor, not_regular};

/// Marks a half-written file.
const MARK: &str = ".writing-";
/// The number of bytes of a long name to keep: with the mark it must still be a valid name.
const MAX_NAME: usize = 200;
/// A program's standard output.
const STDOUT: &str = "/dev/stdout";
/// The largest number of chained links: Linux's limit.
const MAX_LINKS: usize = 40;

/// A file being written, beside the file that it will replace.
#[derive(Debug)]
pub struct Replacement {
    place: PathBuf,
    file: NamedTempFile,
}

impl Replacement {
    /// Begins to write the file for `path`, and removes remains of its killed writers. The existing file is unchanged
    /// until [`finish`](Replacement::finish). A symbolic link is kept, and its target is replaced, or created.
    ///
    /// # Errors
    /// An error of the operating system; a URL; an object at the path that is not a regular file; a read-only file.
    pub fn begin(path: &Path) -> io::Result<Replacement> {
        check_output(path)?;
        let place = place_of(path)?;
        let name = place.file_name().ok_or(FileError::Taken { kind: "a directory" })?;
        let mode = match fs::metadata(&place) {
            Ok(metadata) => {
                if let Some(kind) = not_regular(metadata.file_type()) {
                    return Err(FileError::Taken { kind }.into());
                }
                // Renaming would bypass it.
                if metadata.permissions().readonly() {
                    return Err(FileError::ReadOnly.into());
                }
                Some(metadata.permissions())
            }
            Err(_) => None,
        };
        let folder = folder_of(&place);
        if matches!(fs::metadata(folder), Err(error) if error.kind() == io::ErrorKind::NotFound) {
            return Err(FileError::NoFolder.into());
        }
        let prefix = prefix_of(name);
        remove_left(folder, |name| name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes()))?;
        let file = locked(folder, &prefix)?;
        // A file that only its owner may read stays so.
        if let Some(mode) = mode {
            file.as_file().set_permissions(mode)?;
        }
        Ok(Replacement { place, file })
    }

    /// The file that is replaced: the given path, or its link's target.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// The temporary file, for a caller that reads what it has written.
    pub fn writing(&self) -> &Path {
        self.file.path()
    }

    /// Moves the file, once everything is on the disk, to the first of these names in its folder that is free. Files
    /// under the other names stay, and a concurrent writer takes another name. Until [`Placed`] is dropped the file
    /// keeps its temporary name as well, by which [`remove_unnamed`] recognises the file of a killed writer.
    ///
    /// # Errors
    /// An error of the operating system; no free name.
    pub fn finish_new(self, names: impl IntoIterator<Item = PathBuf>) -> io::Result<Placed> {
        self.file.as_file().sync_all()?;
        let mut file = self.file;
        let mut has_links = true;
        for place in names {
            if has_links {
                match fs::hard_link(file.path(), &place) {
                    Ok(()) => {
                        sync_folder(&place);
                        return Ok(Placed { place, _writing: Some(file) });
                    }
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                    // A file system without hard links.
                    Err(_) => has_links = false,
                }
            }
            file = match file.persist_noclobber(&place) {
                Ok(_) => {
                    sync_folder(&place);
                    return Ok(Placed { place, _writing: None });
                }
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => error.file,
                Err(error) => return Err(error.error),
            };
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Moves the file into place, once everything is on the disk.
    ///
    /// # Errors
    /// An error of the operating system; the existing file is then unchanged.
    pub fn finish(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(&self.place).map_err(|error| error.error)?;
        sync_folder(&self.place);
        Ok(())
    }
}

/// A new file in its place, which is not referenced yet.
#[derive(Debug)]
pub struct Placed {
    place: PathBuf,
    /// Its other name, removed when this is dropped, and its lock.
    _writing: Option<NamedTempFile>,
}

impl Placed {
    /// Its path.
    pub fn place(&self) -> &Path {
        &self.place
    }
}

/// A file that is about to be removed: holds its second name until then.
#[derive(Debug)]
pub struct Doomed {
    _writing: Option<(NamedTempFile<()>, File)>,
}

/// Gives a file that is about to be superseded by one with another name a second, temporary name, so that
/// [`remove_unnamed`] removes it if this writer is killed before it does. Does nothing on a file system without hard
/// links.
pub fn doom(path: &Path) -> Doomed {
    let link = || {
        let file = File::open(path).ok()?;
        file.try_lock_exclusive().ok().filter(|is_ours| *is_ours)?;
        let prefix = prefix_of(path.file_name()?);
        let link = |name: &Path| fs::hard_link(path, name);
        Some((tempfile::Builder::new().prefix(&prefix).make_in(folder_of(path), link).ok()?, file))
    };
    Doomed { _writing: link() }
}

/// A rename is durable once the directory is synced; some file systems do not support that.
fn sync_folder(place: &Path) {
    if let Ok(folder) = File::open(folder_of(place)) {
        drop(folder.sync_all());
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl io::Seek for Replacement {
    fn seek(&mut self, position: io::SeekFrom) -> io::Result<u64> {
        self.file.seek(position)
    }
}

/// Replaces a file atomically. Objects without content to lose, such as `/dev/null` and FIFOs, and open descriptors,
/// such as `/dev/stdout` and a shell's `>(…)`, are written to directly.
///
/// # Errors
/// Those of [`Replacement`].
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path == Path::new(STDOUT) {
        let mut stdout = io::stdout().lock();
        return stdout.write_all(bytes).and_then(|()| stdout.flush());
    }
    if is_written_to(path) {
        return OpenOptions::new().append(true).open(path)?.write_all(bytes);
    }
    let mut file = Replacement::begin(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Whether [`replace`] could begin, tested without changing anything: for a caller with work to do before.
///
/// # Errors
/// Those of [`Replacement::begin`].
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    if path == Path::new(STDOUT) || is_written_to(path) { Ok(()) } else { Replacement::begin(path).map(drop) }
}

/// Whether the object at a path has no content to lose.
fn is_written_to(path: &Path) -> bool {
    is_descriptor(path) || fs::metadata(path).is_ok_and(|metadata| is_stream(metadata.file_type()))
}

/// Replaces a file in a cache, which belongs to us: a link or a FIFO in its place is removed, and the link's target is
/// unchanged.
///
/// # Errors
/// Those of [`Replacement`].
pub fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    make_way(path)?;
    let mut file = Replacement::begin(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Removes an object that is not a regular file from a place in a cache: a link, a FIFO, an empty directory. A
/// directory with content is moved aside, to a name with `.aside` and a number.
///
/// # Errors
/// An error of the operating system.
pub fn make_way(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        // Write protection of a file in a cache is ignored.
        Ok(metadata) if metadata.is_file() && metadata.permissions().readonly() => fs::remove_file(path),
        Ok(metadata) if metadata.is_file() => return Ok(()),
        Ok(metadata) if metadata.is_dir() => match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => move_aside(path),
            removed => removed,
        },
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Renames a directory to the first free name. An empty one that appears there meanwhile is replaced; one with content
/// is not.
fn move_aside(path: &Path) -> io::Result<()> {
    let name = |number: u32| {
        let mut name = path.as_os_str().to_os_string();
        name.push(format!(".aside{number}"));
        PathBuf::from(name)
    };
    let free = (0..1000).map(name).find(|name| fs::symlink_metadata(name).is_err());
    fs::rename(path, free.ok_or(io::ErrorKind::DirectoryNotEmpty)?)
}

/// Opens a lock file, creating it if necessary. An existing file is never truncated, and a dangling link is not
/// followed to create its target.
///
/// # Errors
/// An error of the operating system; [`FileError::Link`].
pub fn open_lock(path: &Path) -> io::Result<File> {
    // Twice: another process may remove it in between.
    for _ in 0..2 {
        match OpenOptions::new().read(true).append(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match OpenOptions::new().read(true).append(true).create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return opened,
        }
    }
    Err(FileError::Link.into())
}

/// Removes the remains of killed writers from a folder of our own.
///
/// # Errors
/// A folder that cannot be listed.
pub fn sweep(folder: &Path) -> io::Result<()> {
    remove_left(folder, |name| {
        let name = name.as_encoded_bytes();
        name.starts_with(b".") && name.windows(MARK.len()).any(|part| part == MARK.as_bytes())
    })
}

/// Removes the remains of killed writers of files whose names begin with `start` from a folder: half-written files, and
/// files already in place or about to be removed, unless `is_named` is true for their path.
///
/// # Errors
/// A folder that cannot be listed.
pub fn remove_unnamed(folder: &Path, start: &OsStr, is_named: impl Fn(&Path) -> bool) -> io::Result<()> {
    let hidden = [b".", start.as_encoded_bytes()].concat();
    let is_ours = |name: &OsStr| {
        let name = name.as_encoded_bytes();
        name.starts_with(&hidden) && name.windows(MARK.len()).any(|part| part == MARK.as_bytes())
    };
    each_left(folder, is_ours, |left, file| {
        let is_it = |path: &Path| path.symlink_metadata().is_ok_and(|other| is_same(&file, &other));
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if name.as_encoded_bytes().starts_with(start.as_encoded_bytes()) && is_it(&path) && !is_named(&path) {
                drop(fs::remove_file(path));
            }
        }
        drop(fs::remove_file(left));
    })
}

/// Whether a path's file is this one, under another name.
#[cfg(unix)]
fn is_same(file: &File, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().is_ok_and(|file| (file.dev(), file.ino()) == (other.dev(), other.ino()))
}

#[cfg(not(unix))]
fn is_same(_: &File, _: &fs::Metadata) -> bool {
    false
}

/// The path, or its link's target, which need not exist.
fn place_of(path: &Path) -> io::Result<PathBuf> {
    check_name(path)?;
    let text = path.as_os_str().as_encoded_bytes();
    if text.ends_with(b"/") || text.ends_with(b"/.") {
        return Err(FileError::Directory.into());
    }
    let mut place = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match fs::symlink_metadata(&place) {
            Ok(found) if found.is_symlink() => place = folder_of(&place).join(fs::read_link(&place)?),
            Ok(_) => return Ok(place),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(place),
            Err(error) => return Err(error),
        }
    }
    Err(FileError::Link.into())
}

fn is_stream(kind: fs::FileType) -> bool {
    matches!(not_regular(kind), Some(FIFO | CHARACTER_DEVICE))
}

fn prefix_of(name: &OsStr) -> OsString {
    let mut prefix = OsString::from(".");
    match name.to_str() {
        Some(text) => {
            let end = (0..=text.len().min(MAX_NAME)).rev().find(|&at| text.is_char_boundary(at));
            prefix.push(&text[..end.unwrap_or(0)]);
        }
        None if name.len() <= MAX_NAME => prefix.push(name),
        None => prefix.push("long"),
    }
    prefix.push(MARK);
    prefix
}

/// Creates a file that this process has locked.
fn locked(folder: &Path, prefix: &OsStr) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    // The usual permissions of a new file, subject to the umask. Temporary files are otherwise private to the owner.
    #[cfg(unix)]
    builder.permissions(<fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666));
    loop {
        let file = builder.tempfile_in(folder)?;
        let is_locked = file.as_file().try_lock_exclusive();
        // Between creating and locking it, another process may have removed it as a remain.
        match is_locked {
            Ok(true) if file.path().exists() => return Ok(file),
            Ok(_) => {}
            // A file system without locks, where other processes do not remove it either.
            Err(_) => return Ok(file),
        }
    }
}

/// Removes files whose writer has died.
fn remove_left(folder: &Path, is_ours: impl Fn(&OsStr) -> bool) -> io::Result<()> {
    each_left(folder, is_ours, |path, _| drop(fs::remove_file(path)))
}

/// Calls `act` with each file whose writer has died, while holding the file's lock.
fn each_left(folder: &Path, is_ours: impl Fn(&OsStr) -> bool, act: impl Fn(&Path, File)) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !is_ours(&entry.file_name()) {
            continue;
        }
        // A file that cannot be opened or removed belongs to another user, or is gone.
        if let Ok(file) = File::open(entry.path())
            && file.try_lock_exclusive().is_ok_and(|is_locked| is_locked)
        {
            act(&entry.path(), file);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced_or_made() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "old").unwrap();
        symlink("file", at("link")).unwrap();
        symlink(at("link"), at("second")).unwrap();
        symlink("absent", at("dangling")).unwrap();
        replace(&at("second"), b"new").unwrap();
        replace(&at("dangling"), b"made").unwrap();
        assert_eq!(fs::read(at("file")).unwrap(), b"new");
        assert_eq!(fs::read(at("absent")).unwrap(), b"made");
        assert_eq!(names(folder.path()), ["absent", "dangling", "file", "link", "second"]);
        assert!(["link", "second", "dangling"].iter().all(|name| at(name).is_symlink()));
        symlink("loop", at("loop")).unwrap();
        assert_eq!(replace(&at("loop"), b"x").unwrap_err().to_string(), "a symbolic link that leads to no file");
    }

    #[test]
    fn permissions_are_kept_and_heeded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        fs::write(&path, "old").unwrap();
        mode(0o600);
        replace(&path, b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        mode(0o444);
        assert_eq!(
            replace(&path, b"newer").unwrap_err().to_string(),
            "the file is read-only\nhelp: `chmod u+w` it, or name another one"
        );
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn what_killed_writers_left_goes_and_what_others_write_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for left in [".file.writing-dead00", ".other.writing-dead00"] {
            fs::write(folder.path().join(left), "half").unwrap();
        }
        let first = Replacement::begin(&path).unwrap();
        let mut second = Replacement::begin(&path).unwrap();
        assert_eq!(names(folder.path()).len(), 3, "the other file's, and two that are being written");
        second.write_all(b"second").unwrap();
        second.finish().unwrap();
        drop(first);
        assert_eq!(names(folder.path()), [".other.writing-dead00", "file"]);
        sweep(folder.path()).unwrap();
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn what_was_put_in_its_place_goes_with_its_writer_unless_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let remove = |named: &str| {
            remove_unnamed(folder.path(), OsStr::new("m.data-"), |path| path == at(named)).unwrap();
            names(folder.path()).into_iter().filter(|name| !name.starts_with('.')).collect::<Vec<_>>()
        };
        fs::write(at("m.data-1"), "another's").unwrap();
        let begun = Replacement::begin(&at("m.data-1")).unwrap();
        let placed = begun.finish_new([at("m.data-1"), at("m.data-2")]).unwrap();
        let doomed = doom(&at("m.data-1"));
        assert_eq!((placed.place(), names(folder.path()).len()), (at("m.data-2").as_path(), 4));
        // Their writer lives.
        assert_eq!(remove(""), ["m.data-1", "m.data-2"]);
        let killed = |name: &str| fs::hard_link(at(name), at(&format!(".{name}.writing-dead00"))).unwrap();
        drop((placed, doomed));
        assert_eq!(names(folder.path()), ["m.data-1", "m.data-2"]);
        killed("m.data-1");
        killed("m.data-2");
        fs::write(at(".m.data-3.writing-dead00"), "half").unwrap();
        fs::write(at(".n.data-1.writing-dead00"), "another's").unwrap();
        assert_eq!(remove("m.data-2"), ["m.data-2"]);
        assert_eq!(names(folder.path()), [".n.data-1.writing-dead00", "m.data-2"]);
    }

    #[test]
    fn names_of_any_kind_and_length() {
        use std::os::unix::ffi::OsStrExt as _;
        let folder = tempfile::tempdir().unwrap();
        let long = "ä".repeat(127);
        for name in [OsStr::from_bytes(b"not\xffutf8\n"), OsStr::new(&long), OsStr::from_bytes(&[0xfe; 255])] {
            replace(&folder.path().join(name), b"new").unwrap();
            assert_eq!(fs::read(folder.path().join(name)).unwrap(), b"new");
        }
        let error = replace(&folder.path().join("x".repeat(256)), b"new").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidFilename);
        for (path, found) in [("/", "a directory"), ("new/", "a directory"), ("/dev/full", "")] {
            let error = replace(Path::new(path), b"new").unwrap_err().to_string();
            assert!(error.contains(found), "{path}: {error}");
        }
    }

    /// Writing to a FIFO would block forever, and through a link a user's file would be overwritten.
    #[test]
    fn what_is_in_the_place_of_a_file_of_a_cache_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("precious"), "content").unwrap();
        symlink("precious", at("link")).unwrap();
        symlink("absent", at("dangling")).unwrap();
        fs::create_dir(at("directory")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        for name in ["link", "dangling", "directory", "fifo", "file", "file"] {
            put(&at(name), b"new").unwrap();
            assert_eq!(fs::read(at(name)).unwrap(), b"new", "{name}");
            assert!(fs::symlink_metadata(at(name)).unwrap().is_file(), "{name}");
        }
        assert_eq!(fs::read(at("precious")).unwrap(), b"content");
        assert!(!at("absent").exists());
        // A directory's content must not be removed, and a read-only file in the cache may be.
        for number in [0, 1] {
            fs::remove_file(at("full")).unwrap_or_default();
            fs::create_dir_all(at("full/of")).unwrap();
            put(&at("full"), b"new").unwrap();
            assert_eq!(fs::read(at("full")).unwrap(), b"new");
            assert!(at(&format!("full.aside{number}/of")).is_dir());
        }
        let mut closed = fs::metadata(at("file")).unwrap().permissions();
        closed.set_readonly(true);
        fs::set_permissions(at("file"), closed).unwrap();
        put(&at("file"), b"newer").unwrap();
        assert_eq!(fs::read(at("file")).unwrap(), b"newer");
    }

    #[test]
    fn a_lock_file_is_never_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("precious"), "content").unwrap();
        symlink("precious", at("lock")).unwrap();
        open_lock(&at("lock")).unwrap();
        assert_eq!(fs::read(at("precious")).unwrap(), b"content");
        symlink("absent", at("dangling")).unwrap();
        assert_eq!(open_lock(&at("dangling")).unwrap_err().to_string(), "a symbolic link that leads to no file");
        assert!(!at("absent").exists());
        open_lock(&at("new")).unwrap();
        open_lock(&at("new")).unwrap();
    }
}
