//! What is wrong with a zip archive, or with packed bytes. Those who read them (`.npz` arrays, wheels) say which file it was.

use std::fs::File;
use std::io;
use std::path::Path;

use super::read_exact_at;

/// The signature, the bytes and the longest comment of the end of a zip archive.
const ZIP_END: &[u8; 4] = b"PK\x05\x06";
const N_ZIP_END: usize = 22;
const MAX_COMMENT: u64 = 0xffff;

/// Whether a file ends as a zip archive does: with the place of its directory, and a comment. A reader of archives looks for
/// that end through the whole of a file, which takes long where gigabytes were cut off.
///
/// # Errors
/// What the system says.
pub fn has_zip_end(file: &File) -> io::Result<bool> {
    let n_bytes = file.metadata()?.len();
    let n_tail = n_bytes.min(N_ZIP_END as u64 + MAX_COMMENT);
    let mut tail = vec![0; n_tail as usize];
    read_exact_at(file, &mut tail, n_bytes - n_tail)?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |number, &byte| (number << 8) | u64::from(byte));
    Ok(tail.windows(N_ZIP_END).enumerate().any(|(at, end)| {
        // Places beyond four gigabytes are said elsewhere.
        let (n_directory, directory) = (number(&end[12..16]), number(&end[16..20]));
        let is_far = directory == u64::from(u32::MAX) || n_directory == u64::from(u32::MAX);
        end.starts_with(ZIP_END) && (is_far || directory + n_directory <= n_bytes - n_tail + at as u64)
    }))
}

/// Bytes that a file has on the disk, if it is mostly holes: more than a gigabyte, and [`MAX_UNPACKED_RATIO`] times what is
/// stored. Holes read as zeros, and may be as many as a number says.
pub fn stored_of_hollow(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let found = std::fs::metadata(path).ok()?;
        // Blocks are of 512 bytes whatever the file system's are.
        let n_stored = found.blocks().saturating_mul(512);
        is_bomb(n_stored, found.len()).then_some(n_stored)
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// Why an archive cannot be read: the zip reader's words.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ZipError(Box<dyn std::error::Error + Send + Sync>);

impl ZipError {
    /// Hides which crate reads archives.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> ZipError {
        ZipError(Box::new(error))
    }
}

/// What packed bytes may become in memory whatever they were packed in: a gigabyte of zeros is an optimizer's state before
/// its first step.
pub const UNPACKED_WITHOUT_QUESTION: u64 = 1 << 30;
/// Beyond that, how many bytes one packed byte may become. Deflate makes 1,032 of one where all are equal; weights and images
/// take between a third and nine tenths of their size, one-hot rows of a thousand classes a hundredth.
pub const MAX_UNPACKED_RATIO: u64 = 200;

/// Whether `n_packed` bytes become more than is unpacked into memory: a decompression bomb, most likely.
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
        // Behind it a comment of 65,535 bytes at most.
        assert!(has_end(&end(0, 0), 22 + 65_535) && !has_end(&end(0, 0), 22 + 65_536));
        // A directory that is not there; one whose place is said elsewhere.
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
