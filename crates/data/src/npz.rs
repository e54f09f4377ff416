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
use std::os::unix::fs::FileExt as _;
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

/// Checks an archive whose directory begins at `start`: a member that occurs twice (readers see only the last), members
/// that share bytes (each would be unpacked separately), or one whose bytes belong to another name. Returns the fault and
/// the expectation.
pub(crate) fn flaw(file: File, start: u64) -> io::Result<Option<String>> {
    let mut seen = BTreeSet::new();
    let directory = directory(file, start)?;
    if directory.has_shared_bytes() {
        return Ok(Some(format!("{SHARED}; expected each to have its own")));
    }
    if let Some(sentence) = directory.misnamed {
        return Ok(Some(sentence));
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
    /// A sentence about the first member that the directory calls by another name than the member's own header.
    misnamed: Option<String>,
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

/// A sentence about the member at `place`, if its own header has another name than the directory, as Python's `zipfile`
/// refuses it: the entries of two members may be exchanged. (APPNOTE.TXT of PKWARE, 4.3.7: the length of the name is at
/// byte 26, the name from byte 30.) Where no header begins, nothing is said: reading the member fails.
fn misnamed(file: &File, name: &[u8], place: u32) -> Option<String> {
    let mut head = [0; LEAST_MEMBER as usize];
    file.read_exact_at(&mut head, place.into()).ok()?;
    let mut local_name = vec![0; u16::from_le_bytes([head[26], head[27]]).into()];
    file.read_exact_at(&mut local_name, u64::from(place) + LEAST_MEMBER).ok()?;
    let [central, local] = [name, &local_name].map(|name| String::from_utf8_lossy(name).escape_debug().to_string());
    let message = format!("its directory calls a member `{central}` that calls itself `{local}`; expected one name");
    (head.starts_with(b"PK\x03\x04") && local_name != name).then_some(message)
}

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
                let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
                let place = (word(42), word(20));
                if place.0 != u32::MAX && place.1 != u32::MAX {
                    directory.places.push(place);
                    directory.misnamed = directory.misnamed.or_else(|| misnamed(file.get_ref(), &name, place.0));
                }
                directory.names.push(name);
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
        if let Some(error) = DataError::hollow(path) {
            return Err(error.help("save it again with numpy.savez, or store its holes: cp --sparse=never FILE NEW"));
        }
        let zip = ZipArchive::new(file).map_err(|error| not_an_archive(path, &start, error))?;
        let again = files::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let read = again.and_then(|(n_bytes, file)| Ok((n_bytes, directory(file, zip.central_directory_start())?)));
        let (n_bytes, directory) = read.map_err(open_error)?;
        if directory.has_shared_bytes() {
            let error = DataError::new(DataErrorKind::Damaged, path, SHARED);
            return Err(error.help("save the arrays again with numpy.savez"));
        }
        let Directory { names, end, misnamed, .. } = directory;
        if let Some(message) = misnamed {
            let error = DataError::new(DataErrorKind::Damaged, path, message);
            return Err(error.help("the file is damaged, copy it again"));
        }
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
        // Archives of whole folders have entries for these too.
        let names =
            (0..zip.len()).filter_map(|idx| Some((zip.name_for_index(idx).filter(|name| !name.ends_with('/'))?, idx)));
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
    names: BTreeSet<String>,
}

impl NpzWriter {
    /// Begins an archive. A file at `path` is unchanged until [`finish`](NpzWriter::finish).
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn create(path: impl AsRef<Path>) -> Result<NpzWriter, DataError> {
        let path = path.as_ref();
        let file = Replacement::begin(path).map_err(|cause| unwritten(path, cause))?;
        let zip = ZipWriter::new(UntilFull::new(BufWriter::new(file)));
        Ok(NpzWriter { path: path.to_path_buf(), zip, names: BTreeSet::new() })
    }

    /// Writes an array whose bytes are as `header` says.
    ///
    /// # Errors
    /// A name that [`is_member_name`] rejects; one that is another's with `.npy`; an error of the operating system, such as
    /// a full disk.
    pub fn add(&mut self, name: &str, header: &Header, bytes: &[u8]) -> Result<(), DataError> {
        if !is_member_name(name) {
            let message =
                format!("`{name}` is not a name for an array in an archive, which is the name of a file in it");
            let error = DataError::new(DataErrorKind::Write, self.path.as_path(), message);
            return Err(error.help("name it without `..`, without a backslash, and without / at an end"));
        }
        // NumPy looks for a member of the name that it is asked for first, and then for one with `.npy`.
        let short = name.strip_suffix(".npy").filter(|short| self.names.contains(*short));
        if let Some(short) = short.or(self.names.contains(&format!("{name}.npy")).then_some(name)) {
            let message = format!("`{short}` and `{short}.npy` are one name to NumPy; expected others");
            let error = DataError::new(DataErrorKind::Write, self.path.as_path(), message);
            return Err(error.help("rename one, or write safetensors"));
        }
        self.names.insert(name.to_string());
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
        let NpzWriter { path, zip, .. } = self;
        let persist = || -> io::Result<()> {
            zip.finish()?.whole()?.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
        };
        persist().map_err(|cause| unwritten(&path, cause))
    }
}

#[cfg(test)]
mod tests;
