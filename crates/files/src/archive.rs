//! Checks of zip archives and packed bytes. Their readers (`.npz` arrays, wheels) add the file to an error.

use std::fs::File;
use std::io;
use std::path::Path;

use super::read_exact_at;

/// The signature, the size and the longest comment of a zip archive's end record.
const ZIP_END: &[u8; 4] = b"PK\x05\x06";
const N_ZIP_END: usize = 22;
const MAX_COMMENT: u64 = 0xffff;

/// Whether a file ends like a zip archive: with the location of its directory, and a comment. A reader of archives
/// searches for that record through the whole file, which takes long if gigabytes were cut off.
///
/// # Errors
/// An error of the operating system.
pub fn has_zip_end(file: &File) -> io::Result<bool> {
    let n_bytes = file.metadata()?.len();
    let n_tail = n_bytes.min(N_ZIP_END as u64 + MAX_COMMENT);
    let mut tail = vec![0; n_tail as usize];
    read_exact_at(file, &mut tail, n_bytes - n_tail)?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |number, &byte| (number << 8) | u64::from(byte));
    Ok(tail.windows(N_ZIP_END).enumerate().any(|(at, end)| {
        // Offsets beyond four gigabytes are stored elsewhere.
        let (n_directory, directory) = (number(&end[12..16]), number(&end[16..20]));
        let is_far = directory == u64::from(u32::MAX) || n_directory == u64::from(u32::MAX);
        end.starts_with(ZIP_END) && (is_far || directory + n_directory <= n_bytes - n_tail + at as u64)
    }))
}

/// Bytes that a file has on the disk, if it is mostly holes: larger than a gigabyte, and than [`MAX_UNPACKED_RATIO`]
/// times the stored bytes. Holes read as zeros, and may have any size.
pub fn stored_of_hollow(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = std::fs::metadata(path).ok()?;
        // The unit is 512 bytes, whatever the file system's block size is.
        let n_stored = metadata.blocks().saturating_mul(512);
        is_bomb(n_stored, metadata.len()).then_some(n_stored)
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// Why an archive cannot be read, in the zip reader's words.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ZipError(Box<dyn std::error::Error + Send + Sync>);

impl ZipError {
    /// Hides which crate reads archives.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> ZipError {
        ZipError(Box::new(error))
    }
}

/// The size to which packed bytes may always unpack in memory, whatever their ratio: a gigabyte of zeros is an
/// optimizer's state before its first step.
pub const UNPACKED_WITHOUT_QUESTION: u64 = 1 << 30;
/// Beyond that size, the largest ratio of unpacked to packed bytes. Deflate reaches 1,032 for equal bytes; weights and
/// images shrink to between a third and nine tenths of their size, one-hot rows of a thousand classes to a hundredth.
pub const MAX_UNPACKED_RATIO: u64 = 200;

/// Whether `n_packed` bytes exceed these limits: most likely a decompression bomb.
pub fn is_bomb(n_packed: u64, n_unpacked: u64) -> bool {
    n_unpacked > UNPACKED_WITHOUT_QUESTION && n_unpacked / MAX_UNPACKED_RATIO > n_packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn an_archive_has_an_end_and_a_cut_one_none() {
        let folder = tempfile::tempdir().unwrap();
        let has_end = |bytes: &[u8], n_bytes: u64| {
            let path = folder.path().join("a");
            let mut file = File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
            file.write_all(bytes).unwrap();
            file.set_len(n_bytes).unwrap();
            has_zip_end(&file).unwrap()
        };
        let end = |n_directory: u32, directory: u32| {
            [&b"PK\x05\x06\0\0\0\0\0\0\0\0"[..], &n_directory.to_le_bytes(), &directory.to_le_bytes(), &[0, 0]].concat()
        };
        assert!(has_end(&end(0, 0), 22));
        assert!(!has_end(&end(0, 0), 21) && !has_end(b"", 0) && !has_end(b"PK\x05\x06", 4));
        // A comment of at most 65,535 bytes may follow.
        assert!(has_end(&end(0, 0), 22 + 65_535) && !has_end(&end(0, 0), 22 + 65_536));
        // A missing directory; one whose location is stored elsewhere.
        assert!(!has_end(&end(1, 0), 22) && !has_end(&end(0, 1), 22) && has_end(&end(0, u32::MAX), 22));
    }

    #[test]
    fn a_file_of_holes_is_told_from_one_of_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"text").unwrap();
        assert_eq!(stored_of_hollow(&path), None);
        file.set_len(1 << 40).unwrap();
        assert!(stored_of_hollow(&path).is_some_and(|n| n < 1 << 20), "{:?}", stored_of_hollow(&path));
        file.set_len(1 << 30).unwrap();
        assert_eq!(stored_of_hollow(&path), None);
    }
}
