//! `.npz` archives: named arrays, as `numpy.savez` and `numpy.savez_compressed` write them.
//!
//! An [`Entry`] shows its [`Header`] before any element is read, so a caller that knows what to expect never allocates
//! what a damaged file claims. The caller decides what an array's elements mean; [`read`] takes whole arrays as
//! examples.
//!
//! Headers are parsed by hand: crates for that allocate what a header claims, and need an element's type at compile
//! time (docs/DEPENDENCIES.md).
//!
//! Source: NumPy's `numpy.savez`: a zip archive with one `.npy` file for each array.

mod arrays;
mod header;
mod until_full;

pub use arrays::{read, read_arrays};
pub use header::Header;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use self::until_full::UntilFull;
use zip::read::ZipFile;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::error::{DataError, DataErrorKind};
use bf16scope_files::{self as files, Replacement, ZipError};

/// An archive open for reading.
#[derive(Debug)]
pub struct NpzReader {
    path: PathBuf,
    /// The file's size in bytes.
    n_bytes: u64,
    zip: ZipArchive<BufReader<File>>,
    /// Where each array is.
    index: BTreeMap<String, usize>,
}

/// An array whose header was read.
pub struct Entry<'a> {
    /// The type and dims of its elements.
    pub header: Header,
    path: &'a Path,
    name: &'a str,
    /// Upper bound on its packed size in bytes.
    n_packed: u64,
    file: ZipFile<'a, BufReader<File>>,
}

/// Checks an archive whose directory begins at `start`: a member that occurs twice (readers see only the last),
/// or members that share bytes (each would be unpacked separately). Returns the fault and the expectation.
pub(crate) fn flaw(file: File, start: u64) -> io::Result<Option<String>> {
    let mut seen = BTreeSet::new();
    let directory = directory(file, start)?;
    if directory.has_shared_bytes() {
        return Ok(Some(format!("{SHARED}; expected each to have its own")));
    }
    let repeated = directory.names.into_iter().find(|name| !seen.insert(name.clone()));
    let sentence = |name: Vec<u8>| {
        format!("its member `{}` is there twice; expected once", String::from_utf8_lossy(&name).escape_debug())
    };
    Ok(repeated.map(sentence))
}

const SHARED: &str = "members of the archive share bytes: it may be a decompression bomb";

/// The first name that occurs twice.
fn twice(names: Vec<Vec<u8>>) -> Option<String> {
    let mut seen = BTreeSet::new();
    let arrays = names.into_iter().map(|name| {
        let name = String::from_utf8_lossy(&name).into_owned();
        name.strip_suffix(".npy").map(str::to_string).unwrap_or(name)
    });
    arrays.into_iter().find(|name| !seen.insert(name.clone()))
}

/// The entries of a zip archive's central directory.
#[derive(Default)]
struct Directory {
    /// The names of the members, as often as they occur.
    names: Vec<Vec<u8>>,
    /// Where the archive ends, if that could be determined.
    end: Option<u64>,
    /// Where members begin, and their packed sizes in bytes. Members beyond 4 GiB have these elsewhere, and are left
    /// out.
    places: Vec<(u32, u32)>,
}

impl Directory {
    /// Whether two members begin at the same place, or one within another.
    fn has_shared_bytes(&self) -> bool {
        let mut places = self.places.clone();
        places.sort_unstable();
        places.windows(2).any(|pair| {
            let [(at, n_bytes), (next, _)] = [pair[0], pair[1]];
            u64::from(at) + LEAST_MEMBER + u64::from(n_bytes) > u64::from(next)
        })
    }
}

/// Bytes before a member's data: its local header without a name. (APPNOTE.TXT of PKWARE, 4.3.7.)
const LEAST_MEMBER: u64 = 30;

/// Reads the central directory that begins at `start`. (APPNOTE.TXT of PKWARE, 4.3.12: a signature, the lengths of
/// name, extra field and comment from byte 24, the name from byte 46. Then, 4.3.14 to 4.3.16: the zip64 end record,
/// whose length is at byte 4, and its locator of 20 bytes, if present; then the end record, of 22 bytes and a comment.)
fn directory(file: File, start: u64) -> io::Result<Directory> {
    let mut file = BufReader::new(file);
    let mut at = file.seek(SeekFrom::Start(start))?;
    let mut directory = Directory::default();
    loop {
        let mut head = [0; 46];
        let n_read = read_up_to(&mut file, &mut head)?;
        let length = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let n_bytes = match (&head[..4], n_read) {
            (b"PK\x01\x02", 46) => {
                let mut name = vec![0; length(28) as usize];
                file.read_exact(&mut name)?;
                directory.names.push(name);
                let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
                let place = (word(42), word(20));
                directory.places.extend((place.0 != u32::MAX && place.1 != u32::MAX).then_some(place));
                46 + length(28) + length(30) + length(32)
            }
            (b"PK\x06\x06", 46) => {
                let n_more = head[4..12].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
                n_more.saturating_add(12)
            }
            (b"PK\x06\x07", 20..) => 20,
            (b"PK\x05\x06", 22..) => {
                directory.end = Some(at + 22 + length(20));
                return Ok(directory);
            }
            _ => return Ok(directory),
        };
        at = at.saturating_add(n_bytes);
        file.seek(SeekFrom::Start(at))?;
    }
}

/// Reads up to this many bytes, fewer at the end of the file.
fn read_up_to(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut n_read = 0;
    while n_read < bytes.len() {
        match file.read(&mut bytes[n_read..])? {
            0 => break,
            n => n_read += n,
        }
    }
    Ok(n_read)
}

impl NpzReader {
    /// Opens an archive and reads its directory.
    ///
    /// # Errors
    /// A file that cannot be opened, or is not an archive.
    pub fn open(path: impl AsRef<Path>) -> Result<NpzReader, DataError> {
        let path = path.as_ref();
        let open_error = |cause| DataError::new(DataErrorKind::Read, path, "cannot open the archive").because(cause);
        let mut file = BufReader::new(files::open(path).map_err(open_error)?);
        let start = file.fill_buf().map_err(open_error)?;
        let start = start[..start.len().min(6)].to_vec();
        if !files::has_zip_end(file.get_ref()).map_err(open_error)? {
            return Err(not_an_archive(path, &start, zip::result::ZipError::InvalidArchive("it has no end".into())));
        }
        let zip = ZipArchive::new(file).map_err(|error| not_an_archive(path, &start, error))?;
        let again = files::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let read = again.and_then(|(n_bytes, file)| Ok((n_bytes, directory(file, zip.central_directory_start())?)));
        let (n_bytes, directory) = read.map_err(open_error)?;
        if directory.has_shared_bytes() {
            let error = DataError::new(DataErrorKind::Damaged, path, SHARED);
            return Err(error.help("save the arrays again with numpy.savez"));
        }
        let Directory { names, end, .. } = directory;
        if let Some(name) = twice(names) {
            let message = format!("array `{name}` is there twice; expected once");
            return Err(DataError::new(DataErrorKind::Damaged, path, message).help("leave one out"));
        }
        // Zip readers search for the end record and ignore bytes before the archive, such as another archive.
        let (before, behind) = (zip.offset(), n_bytes.saturating_sub(end.unwrap_or(n_bytes)));
        if let Some((n, side)) = [(before, "before"), (behind, "behind")].into_iter().find(|(n, _)| *n > 0) {
            let message = format!("{n} bytes {side} the archive belong to no array; expected none");
            let help = "of two archives that were joined only one would be read: save all arrays with one numpy.savez";
            return Err(DataError::new(DataErrorKind::Damaged, path, message).help(help));
        }
        let names = (0..zip.len()).filter_map(|idx| Some((zip.name_for_index(idx)?, idx)));
        let index = names.map(|(name, idx)| (name.strip_suffix(".npy").unwrap_or(name).to_string(), idx)).collect();
        Ok(NpzReader { path: path.to_path_buf(), n_bytes, zip, index })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the arrays, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str)
    }

    /// Whether there is an array of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// The array of this name with its header read; `None` if there is none.
    ///
    /// # Errors
    /// A damaged archive or header.
    pub fn entry<'a>(&'a mut self, name: &'a str) -> Result<Option<Entry<'a>>, DataError> {
        let Some(&idx) = self.index.get(name) else { return Ok(None) };
        let (path, n_bytes) = (self.path.as_path(), self.n_bytes);
        let mut file = self.zip.by_index(idx).map_err(|error| damaged(path, error))?;
        let of_array = format!("{}: array `{name}`", path.display());
        let header = Header::read(&mut file).map_err(|error| error.or_at(of_array))?;
        // An archive may claim any size for a member.
        let n_packed = file.compressed_size().min(n_bytes);
        Ok(Some(Entry { header, path, name, n_packed, file }))
    }
}

/// The error for a file that is not a zip archive, by its first bytes.
fn not_an_archive(path: &Path, start: &[u8], error: zip::result::ZipError) -> DataError {
    let (message, help) = match start {
        b"\x93NUMPY" => {
            ("one array (.npy), expected an archive of named ones", "save it with numpy.savez(FILE, NAME=x)")
        }
        [b'P', b'K', 3, 4, ..] => ("an archive without its end: it was cut off", "copy or save it again"),
        [] => ("an empty file, expected an .npz archive", "save it again with numpy.savez"),
        _ => return damaged(path, error),
    };
    DataError::new(DataErrorKind::Format, path, message).help(help)
}

fn damaged(path: &Path, error: zip::result::ZipError) -> DataError {
    let message = "no .npz archive, or a damaged one";
    let error = DataError::new(DataErrorKind::Damaged, path, message).because(ZipError::new(error));
    error.help("make one with numpy.savez")
}

fn unwritten(path: &Path, cause: io::Error) -> DataError {
    DataError::new(DataErrorKind::Write, path, "cannot write the archive").because(cause)
}

impl Entry<'_> {
    /// The elements, little-endian and row-major, whatever order the file has.
    ///
    /// # Errors
    /// A damaged archive; more or fewer bytes than the header says. Memory follows the bytes in the file, not the
    /// claims of its header; an array of more than a gigabyte ([`files::UNPACKED_WITHOUT_QUESTION`]) that unpacks to
    /// more than [`files::MAX_UNPACKED_RATIO`] times its packed bytes is refused before anything is unpacked.
    pub fn read(self) -> Result<Vec<u8>, DataError> {
        let Entry { header, path, name, n_packed, file } = self;
        let expected = header.n_bytes();
        let mut bytes = Vec::new();
        if file.compression() != CompressionMethod::Stored && files::is_bomb(n_packed, expected) {
            let message = format!(
                "array `{name}`: {n_packed} packed bytes are to become {expected}; expected at most {} times as many beyond \
                 {} bytes: it may be a decompression bomb",
                files::MAX_UNPACKED_RATIO,
                files::UNPACKED_WITHOUT_QUESTION
            );
            let help = "if it is not, save it unpacked: numpy.savez, without _compressed";
            return Err(DataError::new(DataErrorKind::TooLarge, path, message).help(help));
        }
        // Asks for one byte more than expected: it must not exist, and asking verifies the archive's checksum.
        let wrong = |message: String| {
            let message = format!("array `{name}`{message}");
            DataError::new(DataErrorKind::Damaged, path, message).help("the file is damaged, copy it again")
        };
        file.take(expected.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|cause| wrong(": its elements cannot be read".to_string()).because(cause))?;
        let measured = bytes.len() as u64;
        if measured != expected {
            return Err(wrong(format!(" holds {measured} bytes or more, expected {expected} as its header says")));
        }
        if header.is_big_endian {
            // A complex element is two numbers.
            let width = if header.kind == 'c' { header.width / 2 } else { header.width };
            bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
        // An empty array has no order, and its dims may be arbitrarily large.
        if header.is_fortran && header.dims.len() > 1 && !bytes.is_empty() {
            bytes = row_major(&bytes, &header);
        }
        Ok(bytes)
    }
}

/// Converts column-major elements to row-major.
fn row_major(bytes: &[u8], header: &Header) -> Vec<u8> {
    let dims: Vec<usize> = header.dims.iter().map(|&dim| dim as usize).collect();
    let strides: Vec<usize> = dims
        .iter()
        .scan(header.width, |stride, &dim| {
            let current = *stride;
            *stride *= dim;
            Some(current)
        })
        .collect();
    let mut at = vec![0; dims.len()];
    let mut out = Vec::with_capacity(bytes.len());
    while out.len() < bytes.len() {
        let from: usize = at.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
        out.extend_from_slice(&bytes[from..from + header.width]);
        for axis in (0..dims.len()).rev() {
            at[axis] += 1;
            if at[axis] < dims[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
    out
}

/// Whether an array of this name can be a member of an archive without leaving the folder that the archive is unpacked
/// into.
pub fn is_member_name(name: &str) -> bool {
    !name.contains(['\\', '\0']) && name.split('/').all(|part| !["", ".", ".."].contains(&part))
}

/// An archive open for writing, beside the file that it will replace.
pub struct NpzWriter {
    path: PathBuf,
    zip: ZipWriter<UntilFull<BufWriter<Replacement>>>,
}

impl NpzWriter {
    /// Begins an archive. A file at `path` is unchanged until [`finish`](NpzWriter::finish).
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn create(path: impl AsRef<Path>) -> Result<NpzWriter, DataError> {
        let path = path.as_ref();
        let file = Replacement::begin(path).map_err(|cause| unwritten(path, cause))?;
        Ok(NpzWriter { path: path.to_path_buf(), zip: ZipWriter::new(UntilFull::new(BufWriter::new(file))) })
    }

    /// Writes an array whose bytes are as `header` says.
    ///
    /// # Errors
    /// A name that [`is_member_name`] rejects; an error of the operating system, such as a full disk.
    pub fn add(&mut self, name: &str, header: &Header, bytes: &[u8]) -> Result<(), DataError> {
        if !is_member_name(name) {
            let message =
                format!("`{name}` is not a name for an array in an archive, which is the name of a file in it");
            let error = DataError::new(DataErrorKind::Write, self.path.as_path(), message);
            return Err(error.help("name it without `..`, without a backslash, and without / at an end"));
        }
        // Sizes above 4 GiB need the zip64 form of an entry. No time is recorded, so equal arrays make equal files.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(bytes.len() >= (u32::MAX >> 1) as usize)
            .last_modified_time(zip::DateTime::default());
        let mut write = || -> io::Result<()> {
            self.zip.start_file(format!("{name}.npy"), options)?;
            self.zip.write_all(&header.to_bytes())?;
            self.zip.write_all(bytes)
        };
        write().map_err(|cause| unwritten(&self.path, cause))
    }

    /// Moves the complete archive into place.
    ///
    /// # Errors
    /// An error of the operating system; the file at the path is then unchanged.
    pub fn finish(self) -> Result<(), DataError> {
        let NpzWriter { path, zip } = self;
        let persist = || -> io::Result<()> {
            zip.finish()?.whole()?.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
        };
        persist().map_err(|cause| unwritten(&path, cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::DType;
    use std::fs;

    fn written(arrays: &[(&str, Header, Vec<u8>)]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let mut npz = NpzWriter::create(&path).unwrap();
        for (name, header, bytes) in arrays {
            npz.add(name, header, bytes).unwrap();
        }
        npz.finish().unwrap();
        (folder, path)
    }

    #[test]
    fn arrays_read_back() {
        let a = (0..24).collect::<Vec<u8>>();
        let (_folder, path) = written(&[
            ("var/a", Header::for_dtype(DType::F32, vec![2, 3]), a.clone()),
            ("b", Header::for_dtype(DType::U8, vec![]), vec![7]),
        ]);
        let mut npz = NpzReader::open(&path).unwrap();
        assert_eq!(npz.names().collect::<Vec<_>>(), ["b", "var/a"]);
        let entry = npz.entry("var/a").unwrap().unwrap();
        assert_eq!(entry.header, Header::for_dtype(DType::F32, vec![2, 3]));
        assert_eq!(entry.read().unwrap(), a);
        assert_eq!(npz.entry("b").unwrap().unwrap().read().unwrap(), [7]);
        assert!(npz.entry("c").unwrap().is_none());
    }

    /// If two members have the same name, a zip reader takes the last.
    #[test]
    fn an_array_that_is_there_twice_is_said() {
        let header = || Header::for_dtype(DType::U8, vec![]);
        let (_folder, path) = written(&[("x", header(), vec![1]), ("y", header(), vec![2]), ("z", header(), vec![3])]);
        let mut bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() - 5 {
            if &bytes[at..at + 5] == b"y.npy" {
                bytes[at] = b'x';
            }
        }
        fs::write(&path, bytes).unwrap();
        let error = NpzReader::open(&path).unwrap_err().to_string();
        assert!(error.ends_with("a.npz: array `x` is there twice; expected once\nhelp: leave one out"), "{error}");
    }

    /// Such a name would be written outside of the folder that the archive is unpacked into.
    #[test]
    fn names_that_leave_the_archive_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        for (name, is_right) in [
            ("x", true),
            ("block1/conv:0", true),
            ("..x", true),
            ("", false),
            ("../../evil", false),
            ("a/../b", false),
            ("/etc/passwd", false),
            ("a//b", false),
            ("a/", false),
            ("..\\evil", false),
            ("a\0b", false),
        ] {
            let mut npz = NpzWriter::create(&path).unwrap();
            let added = npz.add(name, &Header::for_dtype(DType::U8, vec![]), &[1]);
            assert_eq!(added.is_ok(), is_right, "{name:?}: {added:?}");
            if !is_right {
                let error = added.unwrap_err().to_string();
                let expected = format!(
                    "a.npz: `{name}` is not a name for an array in an archive, which is the name of a file in it\n\
                     help: name it without `..`, without a backslash, and without / at an end"
                );
                assert!(error.ends_with(&expected), "{error}");
            }
        }
    }

    /// `[[1, 2, 3], [4, 5, 6]]` of two bytes each, as a big-endian machine with Fortran's order has them.
    #[test]
    fn other_orders_are_put_right() {
        let header = Header { is_big_endian: true, is_fortran: true, ..Header::for_dtype(DType::S16, vec![2, 3]) };
        let bytes = [1i16, 4, 2, 5, 3, 6].into_iter().flat_map(i16::to_be_bytes).collect();
        let (_folder, path) = written(&[("a", header, bytes)]);
        let read = NpzReader::open(&path).unwrap().entry("a").unwrap().unwrap().read().unwrap();
        assert_eq!(read, (1i16..=6).flat_map(i16::to_le_bytes).collect::<Vec<u8>>());
    }

    #[test]
    fn what_is_damaged_is_said() {
        // A header that claims 8 EiB costs no memory.
        let (_folder, path) = written(&[
            ("long", Header::for_dtype(DType::F32, vec![1 << 61]), vec![0; 8]),
            ("short", Header::for_dtype(DType::F32, vec![1]), vec![0; 8]),
        ]);
        let mut npz = NpzReader::open(&path).unwrap();
        let error = npz.entry("long").unwrap().unwrap().read().unwrap_err().to_string();
        assert!(error.contains("array `long` holds 8 bytes or more, expected 9223372036854775808"), "{error}");
        let error = npz.entry("short").unwrap().unwrap().read().unwrap_err().to_string();
        assert!(error.contains("array `short` holds 5 bytes or more, expected 4"), "{error}");

        let mut bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let place = path.display().to_string();
        let refused = || NpzReader::open(&path).unwrap_err().to_string().replace(&place, "a.npz");
        assert_eq!(refused(), "a.npz: an archive without its end: it was cut off\nhelp: copy or save it again");
        for (bytes, expected) in [
            (&b""[..], "a.npz: an empty file, expected an .npz archive\nhelp: save it again with numpy.savez"),
            (
                b"\x93NUMPY\x01\x00",
                "a.npz: one array (.npy), expected an archive of named ones\nhelp: save it with numpy.savez(FILE, NAME=x)",
            ),
            (b"text", "a.npz: no .npz archive, or a damaged one\nhelp: make one with numpy.savez"),
        ] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(refused(), expected);
        }
        let cause = std::error::Error::source(&NpzReader::open(&path).unwrap_err()).unwrap().to_string();
        assert!(cause.contains("it has no end"), "{cause}");

        // An element of `short` changes; the archive's checksum does not.
        let at = bytes.windows(5).position(|window| window == b"short").unwrap() + "short.npy".len() + 128 + 3;
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let mut npz = NpzReader::open(&path).unwrap();
        let error = npz.entry("short").unwrap().unwrap().read().unwrap_err();
        assert!(matches!(error.kind(), DataErrorKind::Damaged), "{error}");
    }

    #[test]
    fn elements_that_cannot_be_read_are_said() {
        let (_folder, path) = written(&[("x", Header::for_dtype(DType::F32, vec![1]), vec![0; 4])]);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(5).position(|window| window == b"x.npy").unwrap() + "x.npy".len() + 128;
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = NpzReader::open(&path).unwrap().entry("x").unwrap().unwrap().read().unwrap_err().to_string();
        let expected = "a.npz: array `x`: its elements cannot be read\nhelp: the file is damaged, copy it again";
        assert!(error.ends_with(expected), "{error}");
    }

    /// Two archives in one file, one of which readers do not see; and members at one place.
    #[test]
    fn bytes_of_no_array_or_of_two_are_said() {
        let header = || Header::for_dtype(DType::U8, vec![]);
        let (_folder, path) = written(&[("x", header(), vec![1]), ("y", header(), vec![2])]);
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            NpzReader::open(&path).unwrap_err().to_string().replace(&path.display().to_string(), "a.npz")
        };
        let help = "of two archives that were joined only one would be read: save all arrays with one numpy.savez";
        assert_eq!(
            refused(&[&whole[..], &whole].concat()),
            format!("a.npz: {} bytes behind the archive belong to no array; expected none\nhelp: {help}", whole.len())
        );
        // The place of the second member, in the directory.
        let mut shared = whole.clone();
        let second = shared.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
        shared[second + 42..second + 46].fill(0);
        assert_eq!(
            refused(&shared),
            "a.npz: members of the archive share bytes: it may be a decompression bomb\n\
             help: save the arrays again with numpy.savez"
        );
    }

    #[test]
    fn an_array_that_becomes_gigabytes_is_refused_before_it_is_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let mut zip = ZipWriter::new(fs::File::create(&path).unwrap());
        zip.start_file("x.npy", SimpleFileOptions::default().compression_method(CompressionMethod::Deflated)).unwrap();
        zip.write_all(&Header::for_dtype(DType::U8, vec![1 << 31]).to_bytes()).unwrap();
        zip.finish().unwrap();
        let mut npz = NpzReader::open(&path).unwrap();
        let entry = npz.entry("x").unwrap().unwrap();
        let n_packed = entry.n_packed;
        assert_eq!(
            entry.read().unwrap_err().to_string().replace(&path.display().to_string(), "a.npz"),
            format!(
                "a.npz: array `x`: {n_packed} packed bytes are to become 2147483648; expected at most 200 times as many beyond \
                 1073741824 bytes: it may be a decompression bomb\n\
                 help: if it is not, save it unpacked: numpy.savez, without _compressed"
            )
        );
    }
}
